"""A program that runs until somebody ends it: the time limit, scancel, or the end of a node."""

import os
import time

import startup

for step in range(6000):
    print(f"iter {step}: loss {8 / (step + 1):.4f}, time 1000.00ms, mfu 12.01%", flush=True)
    time.sleep(1)
