"""Rank 3: the GPU is full. Only the wording is real: the tests have no GPU."""

import os
import time

import startup
import torch

time.sleep(1)
if os.environ["RANK"] == "3":
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 39.39 GiB of which 1.12 GiB is "
        "free. Including non-PyTorch memory, this process has 38.26 GiB memory in use."
    )
time.sleep(600)
