"""Rank 1 has fewer batches than the others, and ends with 0."""

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(5 if rank == 1 else 9):
    dist.all_reduce(torch.ones(9))
print("rank", rank, "is done", flush=True)
