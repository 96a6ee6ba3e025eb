"""The loss on the validation text."""

from __future__ import annotations

import distributed
import torch
from precision import Precision
from torch.utils.data import Dataset

MOST_SAMPLES = 1024  # of the validation text: more cost time, fewer make the loss noisy


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    samples: Dataset,
    micro_batch: int,
    precision: Precision,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
) -> float:
    """Return the mean loss over samples spread over the validation text, each computed by one rank.

    A sharded model is gathered by all ranks at once. So every rank computes the same number of batches. A rank that has
    no sample left computes the first one, and does not count it. The ranks add up sums of losses, and not means,
    because their numbers of samples differ.
    """
    spacing = -(-len(samples) // MOST_SAMPLES)  # rounded up
    indices = range(0, len(samples), spacing)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    loss_count = 0
    model.eval()
    for start in range(0, len(indices), micro_batch * world_size):
        mine = list(indices[start : start + micro_batch * world_size][rank::world_size])
        inputs, targets = samples[mine or [0]]
        with precision.autocast:
            losses = model(inputs.to(device), targets.to(device))[: len(mine)]
        loss_sum += losses.double().sum()
        loss_count += losses.numel()
    model.train()
    loss_sum, loss_count = distributed.sum_over_ranks(torch.stack([loss_sum, loss_sum.new_tensor(loss_count)]))
    return (loss_sum / loss_count).item()
