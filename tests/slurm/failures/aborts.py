"""Rank 0 calls abort() in compiled code, which prints nothing."""

import ctypes
import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "0":
    ctypes.CDLL(None).abort()
time.sleep(600)
