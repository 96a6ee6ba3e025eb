"""Rank 3 broadcasts while the others add up."""

import datetime

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=10))
for step in range(9):
    if step == 5 and dist.get_rank() == 3:
        dist.broadcast(torch.ones(4096), 3, group=group)
    dist.all_reduce(torch.ones(4096), group=group)
