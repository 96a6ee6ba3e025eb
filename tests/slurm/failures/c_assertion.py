"""Rank 2: an assert() of C."""

import ctypes
import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "2":
    ctypes.CDLL(None).__assert_fail(b"heads % kv_heads == 0", b"csrc/attention.cpp", 112, b"void forward(int, int)")
time.sleep(600)
