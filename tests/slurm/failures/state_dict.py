"""All ranks load weights of another model: an error message of several lines."""

import startup
import torch

small, large = (torch.nn.Sequential(torch.nn.Embedding(n, 8), torch.nn.Linear(8, n)) for n in (10, 20))
small.load_state_dict(large.state_dict())
