"""Rank 1: a kernel reads where it may not. The wording is that of torch 2.11 on an H200."""

import os
import time

import startup
import torch

WORDS = """\
CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html \
for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
time.sleep(1)
if os.environ["RANK"] == "1":
    raise torch.AcceleratorError(WORDS)
time.sleep(600)
