"""Rank 2 raises; then what was registered for the end of the program prints more (wandb 0.17, 2026-11-27)."""

import atexit
import os
import sys
import time

import startup

WORDS = "wandb: \nwandb: You can sync this run to the cloud by running:\nwandb: wandb sync wandb/offline-run-1"
atexit.register(lambda: print(WORDS, file=sys.stderr, flush=True))
time.sleep(1)
if os.environ["RANK"] == "2":
    raise ValueError("3 labels for 4 images")
time.sleep(600)
