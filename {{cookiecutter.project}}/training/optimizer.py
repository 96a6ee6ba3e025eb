"""The optimizer that the training programs use."""

import torch


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW as one fused kernel. Weight decay acts on matrices, and not on biases and gains."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
