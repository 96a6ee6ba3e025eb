"""Rank 2: another process has the GPU. Only the wording is real: the tests have no GPU."""

import os
import time

import startup

WORDS = """\
CUDA error: CUDA-capable device(s) is/are busy or unavailable
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
time.sleep(1)
if os.environ["RANK"] == "2":
    raise RuntimeError(WORDS)
time.sleep(600)
