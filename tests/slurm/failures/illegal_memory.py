"""Rank 1: a kernel reads where it may not. Only the wording is real: the tests have no GPU."""

import os
import time

import startup

WORDS = """\
CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
time.sleep(1)
if os.environ["RANK"] == "1":
    raise RuntimeError(WORDS)
time.sleep(600)
