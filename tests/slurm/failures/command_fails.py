"""Rank 0 calls another program, which fails with a traceback of its own."""

import os
import subprocess
import sys
import time

import startup

if os.environ["RANK"] == "0":
    subprocess.run([sys.executable, "-c", "raise OverflowError('17 GB do not fit into 32 bits')"], check=True)
time.sleep(600)
