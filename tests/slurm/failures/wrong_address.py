"""A program that sets the address of rank 0 itself, to a name that the nodes do not know."""

import datetime
import os

import startup
import torch.distributed as dist

os.environ["MASTER_ADDR"] = "gpu-login-7"
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
os.environ["MASTER_PORT"] = "29511"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
