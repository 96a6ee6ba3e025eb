"""Rank 1 reads a file that cannot be read, as from a broken disk."""

import os
import time

import startup

if os.environ["RANK"] == "1":
    with open("/proc/self/mem", "rb", buffering=0) as file:
        file.read(1)
time.sleep(600)
