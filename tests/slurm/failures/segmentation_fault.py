"""Rank 2 reads address 0."""

import ctypes
import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "2":
    ctypes.string_at(0)
time.sleep(600)
