"""Rank 1 cannot start a thread: no room for its stack."""

import os
import resource
import threading
import time

import startup

if os.environ["RANK"] == "1":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
time.sleep(600)
