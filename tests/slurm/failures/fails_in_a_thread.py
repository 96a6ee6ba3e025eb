"""Rank 1: the thread that prefetches ends with a KeyError, and the main thread gives up."""

import os
import queue
import sys
import threading
import time

import startup

batches = queue.Queue(2)


def prefetch():
    for _ in range(3):
        batches.put({"tokens": []}["tokens"])
    batches.put({"tokens": []}["input_ids"])


if os.environ["RANK"] != "1":
    time.sleep(600)
thread = threading.Thread(target=prefetch, name="prefetch")
thread.start()
while thread.is_alive() or not batches.empty():
    batches.get()
    time.sleep(0.2)
sys.exit(1)
