"""Rank 1 prints a batch in one line of 1.3 MB, then fails."""

import os
import time

import startup

print("batch:", " ".join(str(number * 7919 % 50257) for number in range(230_000)), flush=True)
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise ValueError("token 50256 at position 131071 is out of range")
time.sleep(600)
