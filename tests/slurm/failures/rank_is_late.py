"""Rank 1 compiles for longer than the others wait for it at the rendezvous."""

import datetime
import os
import time

import startup
import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(600)
port = int(os.environ["MASTER_PORT"]) + 1
rank = int(os.environ["RANK"])
patience = datetime.timedelta(seconds=10)
store = dist.TCPStore(os.environ["MASTER_ADDR"], port, 4, rank == 0, timeout=patience)
dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=patience)
