"""Rank 2 fails between two collectives; the others lose it."""

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(9):
    if step == 5 and dist.get_rank() == 2:
        raise FloatingPointError("loss is nan at step 5")
    dist.all_reduce(torch.ones(9))
