"""Rank 1 raises; then what was registered for the end of the program prints more."""

import atexit
import os
import sys
import time

import startup

WORDS = "tensorboard: 12 events were written\nprofiler: trace saved to /tmp/trace.json\nbye"
atexit.register(lambda: print(WORDS, file=sys.stderr, flush=True))
time.sleep(1)
if os.environ["RANK"] == "1":
    raise ZeroDivisionError("no tokens in this batch")
time.sleep(600)
