"""Rank 0 crashes, and Python's faulthandler shows where."""

import ctypes
import faulthandler
import os
import time

import startup

faulthandler.enable()


def attention():
    ctypes.string_at(0)


time.sleep(1)
if os.environ["RANK"] == "0":
    attention()
time.sleep(600)
