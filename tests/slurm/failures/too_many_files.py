"""Rank 2 opens more files than its limit allows."""

import os
import resource
import time

import startup

if os.environ["RANK"] == "2":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    shards = [open("/etc/hosts") for _ in range(100)]
time.sleep(600)
