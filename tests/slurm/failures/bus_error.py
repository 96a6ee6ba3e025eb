"""Rank 1 reads a mapped file that has become shorter."""

import mmap
import os
import time

import startup

if os.environ["RANK"] == "1":
    with open("tokens.bin", "wb+") as file:
        file.write(bytes(1 << 16))
        file.flush()
        tokens = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
    print(tokens[4096])
time.sleep(600)
