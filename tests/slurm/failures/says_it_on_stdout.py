"""Rank 2 prints the reason on standard output alone."""

import os
import time

import startup

print("loading shards for rank", os.environ["RANK"], flush=True)
time.sleep(1)
if os.environ["RANK"] == "2":
    print("FATAL tokenizer.model has 0 merges, giving up")
    raise SystemExit(4)
time.sleep(600)
