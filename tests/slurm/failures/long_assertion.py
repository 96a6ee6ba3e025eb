"""Rank 0: an assertion whose message has many lines."""

import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "0":
    differing = "\n".join(
        f"  layers.{number}.mlp.weight: expected 4096x11008, found 4096x14336" for number in range(60)
    )
    assert not differing, f"checkpoint and model differ:\n{differing}\nthat was 60 of 291 tensors"
time.sleep(600)
