"""Rank 2 sleeps while the others wait for it, 10 seconds long."""

import datetime
import time

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=10))
for step in range(9):
    if step == 5 and dist.get_rank() == 2:
        time.sleep(600)
    dist.all_reduce(torch.ones(9), group=group)
