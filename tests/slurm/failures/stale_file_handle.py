"""Rank 3: what a network file system that was unmounted answers. Only its wording is real."""

import errno
import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "3":
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/lustre/data/shard-00012.tar")
time.sleep(600)
