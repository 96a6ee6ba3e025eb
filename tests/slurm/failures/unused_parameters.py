"""A layer gets no gradient, which DistributedDataParallel finds out in the second step."""

import startup
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 1), "unused": torch.nn.Linear(4, 1)})
model.forward = lambda batch: model["used"](batch)
parallel = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(3):
    parallel(torch.ones(2, 4)).sum().backward()
