"""All ranks multiply matrices that do not fit each other."""

import startup
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model(torch.ones(4, 64))
