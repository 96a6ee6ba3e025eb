"""A layer gets no gradient, which DistributedDataParallel finds out in the second step."""

import startup
import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.used(batch)


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Model())
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
