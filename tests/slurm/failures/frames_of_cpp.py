"""Rank 1: torch shows the frames of C++ after its message, which then is not the last line."""

import os
import time

import startup

os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
import torch

if os.environ["RANK"] == "1":
    torch.ones(2) + torch.ones(3)
time.sleep(600)
