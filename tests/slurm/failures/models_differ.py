"""Rank 1 builds another model than the others, and DistributedDataParallel compares them."""

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
layers = [torch.nn.Linear(8, 8) for _ in range(3 if dist.get_rank() == 1 else 2)]
torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
