"""A network interface that the nodes do not have, as copied from another cluster's script."""

import os

import startup
import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "ib9"
dist.init_process_group("gloo")
dist.barrier()
