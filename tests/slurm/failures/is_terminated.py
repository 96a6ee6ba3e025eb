"""Rank 3 gets a SIGTERM that nobody else got."""

import os
import signal
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "3":
    os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
