"""The optimizer, and what follows from the number of the step: samples, learning rate, random numbers, what is due.

Steps are counted from 1. All of it is computed from the number alone, so a resumed run needs to know nothing else.
"""

import argparse
import math
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from lm.setup import fail
from lm.stop import ignore_signals

WARM_UP_PART = 0.1  # of the steps: the learning rate rises linearly to its peak
LOWEST_PART = 0.1  # of the peak: the learning rate after the last step


class StepSampler(Sampler[int]):
    """The samples that a rank reads, from any step on, as README.md says: Who reads which sample.

    The samples left over at the end of an epoch, fewer than a batch, are left out. The next epoch leaves out others.
    """

    def __init__(
        self, samples: int, args: argparse.Namespace, first_step: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        """Take the number of samples in all. The steps are those after `first_step`, up to args.steps."""
        if samples < args.global_batch:
            fail(f"there are {samples:,} samples to train on: add data, or lower --global-batch {args.global_batch}")
        self.samples, self.batch, self.seed = samples, args.global_batch, args.seed
        self.steps = range(first_step, max(first_step, args.steps))
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        """Return how many samples this rank reads."""
        return len(self.steps) * self.batch // self.world_size

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the samples, step after step."""
        steps_per_epoch = self.samples // self.batch
        shuffled_epoch = None
        for step in self.steps:
            epoch, step_of_epoch = divmod(step, steps_per_epoch)
            if epoch != shuffled_epoch:
                # One number below 2**32 from both: torch's CPU generator ignores the upper half of a longer seed.
                generator = torch.Generator().manual_seed((self.seed + 1_000_003 * epoch) % 2**32)
                order = torch.randperm(self.samples, generator=generator)
                shuffled_epoch = epoch
            seed_step(self.seed, step, self.rank)  # for data that draws numbers, without workers
            of_all_ranks = order[step_of_epoch * self.batch : (step_of_epoch + 1) * self.batch]
            yield from of_all_ranks[self.rank :: self.world_size].tolist()


def make_batches(
    data: Dataset, args: argparse.Namespace, device: torch.device, first_step: int, rank: int = 0, world_size: int = 1
) -> DataLoader:
    """Return the batches that this rank reads in the steps after `first_step`, up to args.steps."""
    seed = (args.seed + 1_000_003 * first_step + 7919 * rank) % 2**32
    return DataLoader(
        data,
        batch_size=args.global_batch // world_size,
        sampler=StepSampler(len(data), args, first_step, rank, world_size),
        num_workers=args.workers,
        worker_init_fn=ignore_signals,
        generator=torch.Generator().manual_seed(seed),  # so workers of each rank and start draw other numbers
        multiprocessing_context="fork" if args.workers else None,  # they share the file that data.py maps
        pin_memory=device.type == "cuda",  # so that copies to the GPU overlap with its work
    )


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW as one fused kernel. Weight decay acts on matrices, and not on biases and gains."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    args: argparse.Namespace,
    device: torch.device,
    synchronize: Callable[[bool], None] = lambda is_last: None,
) -> torch.Tensor:
    """Update the weights once; return the mean loss of the batch, or of this rank's part of it.

    The gradients of the micro batches add up. read_arguments() sees to it that they have the same size. So the mean of
    their means is the batch's mean. `synchronize(is_last)` is called before each: the ranks average their gradients in
    the last one alone.
    """
    optimizer.zero_grad()
    mean_loss = 0.0
    micro_batches = list(zip(*(tensor.to(device, non_blocking=True).split(args.micro_batch) for tensor in batch)))
    for number, micro_batch in enumerate(micro_batches, start=1):
        synchronize(number == len(micro_batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = model(*micro_batch) / len(micro_batches)
        loss.backward()
        mean_loss += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    if hasattr(norm, "full_tensor"):  # of train_fsdp.py: each rank has a part of it
        norm = norm.full_tensor()
    # A gradient that is not finite has spoilt the weights. A loss of NaN ends the run before they are saved.
    return torch.where(norm.isfinite(), mean_loss, torch.nan)


def learning_rate_at(step: int, args: argparse.Namespace) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine down to LOWEST_PART of the peak.

    It would be at its lowest in the step after the last one, as in get_lr() of nanoGPT's train.py (at e222131, read
    2026-11-22).
    """
    warm_up_steps = max(1, round(WARM_UP_PART * args.decay_steps))
    if step <= warm_up_steps:
        return args.learning_rate * step / warm_up_steps
    decayed = min(1.0, (step - 1 - warm_up_steps) / max(1, args.decay_steps - warm_up_steps))  # from 0 to 1
    cosine = 0.5 * (1 + math.cos(math.pi * decayed))  # from 1 to 0
    return args.learning_rate * (LOWEST_PART + (1 - LOWEST_PART) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, args: argparse.Namespace) -> None:
    """Give all parameter groups the learning rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, args)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed what the model draws in this step (dropout). Each rank and each step draws other numbers."""
    number = (seed + 1_000_003 * step + 7919 * rank) % 2**32
    # torch.manual_seed seeds the same generators, but also formats three stack traces (0.1 ms).
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(number)


def due(step: int, every: int, last_step: int) -> bool:
    """Return whether this is a step after which something happens that is done every so many steps, and at the end."""
    return step % every == 0 or step == last_step
