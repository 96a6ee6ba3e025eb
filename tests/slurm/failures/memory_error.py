"""Rank 0 wants more memory than there is."""

import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "0":
    embedding = bytearray(1 << 55)
time.sleep(600)
