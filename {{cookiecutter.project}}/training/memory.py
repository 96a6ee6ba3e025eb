"""Memory: how much a rank has used, and how to do with less."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(blocks: Iterable[torch.nn.Module]) -> None:
    """Let each layer keep its input alone. It computes its activations again in the backward pass.

    That is one forward pass more, and saves most of the memory of activations
    (https://docs.pytorch.org/docs/stable/checkpoint.html, 2026-11-22).
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def peak_memory(device: torch.device) -> int:
    """Return the most memory [bytes] that this rank has had: of the GPU, or on a CPU of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
