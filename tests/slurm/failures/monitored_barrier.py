"""Rank 3 does not come to a barrier that tells who lacks."""

import datetime
import time

import startup
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 3:
    time.sleep(600)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=8))
