"""Rank 3 leaves by os._exit, as after a fork, without flushing anything."""

import os
import time

import startup

print("rank", os.environ["RANK"], "started", flush=True)
time.sleep(1)
if os.environ["RANK"] == "3":
    os.write(2, b"worker pool is gone\n")
    os._exit(7)
time.sleep(600)
