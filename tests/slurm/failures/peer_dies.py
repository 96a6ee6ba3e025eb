"""Rank 3 gets a signal 9 between two collectives; the others print tracebacks."""

import os
import signal

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(9):
    if step == 5 and dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(9))
