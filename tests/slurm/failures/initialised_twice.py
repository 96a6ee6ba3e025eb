"""All ranks initialise torch.distributed, and so does a library of theirs."""

import startup
import torch.distributed as dist

dist.init_process_group("gloo")
dist.init_process_group("gloo")
