"""Rank 1 ends with sys.exit("text"): exit code 1, no traceback."""

import os
import sys
import time

import startup

if os.environ["RANK"] == "1":
    time.sleep(1)
    sys.exit("vocabulary size 50257 does not match checkpoint 32000")
time.sleep(600)
