"""The smallest distributed program: the ranks join, each prints where it runs, and they add up one number."""

import os
import socket
import sys

import torch
import torch.distributed as dist

if "RANK" not in os.environ:
    how = f"start this program with a launcher, as in torchrun --nproc-per-node 2 {sys.argv[0]}"
    print(f"RANK is not set: {how}", file=sys.stderr)
    sys.exit(2)

# Join. The launcher has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
if torch.cuda.is_available():
    gpu = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size} on {socket.gethostname()}")

# Each rank brings its own number. After the all-reduce, every rank has the sum.
number = torch.tensor(rank, device=device)
dist.all_reduce(number)
if rank == 0:
    print(f"the sum of all ranks is {number.item()}")

# Leave.
dist.destroy_process_group()
