"""Rank 1 does not find its data, as nanoGPT's train.py says it."""

import os
import time

import startup

print(f"tokens per iteration will be: {8 * 1024 * 12:,}", flush=True)
data_dir = os.path.join("data", "openwebtext")
if os.environ["RANK"] == "1":
    with open(os.path.join(data_dir, "train.bin"), "rb") as data:
        print(len(data.read()))
time.sleep(600)
