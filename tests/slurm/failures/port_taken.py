"""Rank 0 wants a port that another program has."""

import os
import socket
import time

import startup
import torch.distributed as dist

if os.environ["RANK"] == "0":
    other = socket.create_server(("", 0))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], other.getsockname()[1], 4, is_master=True)
time.sleep(600)
