"""Rank 1 fails while a progress bar is in its last line, as with Lightning or tqdm."""

import os
import sys
import time

import startup

print("GPU available: False, used: False\nTPU available: False, using: 0 TPU cores", flush=True)
for step in range(10):
    bar = f"\rEpoch 0:  {10 * step}%|{'█' * step:10}| {step}/10 [00:0{step}<00:0{9 - step},  4.99it/s, v_num=0]"
    print(bar, end="", file=sys.stderr, flush=True)
    time.sleep(0.1)
if os.environ["RANK"] == "1":
    raise IndexError("index 10 is out of bounds for axis 0 with size 10")
time.sleep(600)
