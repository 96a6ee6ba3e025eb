"""Rank 0 writes a checkpoint where there is no room."""

import os
import time

import startup

print("saving checkpoint to /dev/full", flush=True)
if os.environ["RANK"] == "0":
    with open("/dev/full", "wb") as file:
        file.write(bytes(1 << 20))
time.sleep(600)
