"""A program that wants a GPU, with a torch that was built for CPUs."""

import startup
import torch

model = torch.nn.Linear(8, 8).cuda()
