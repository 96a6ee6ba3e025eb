"""What depends on the number of the step: its learning rate, its random numbers, and what is due after it.

Steps are counted from 1. All of it is computed from the number alone, so a resumed run needs to know nothing else.
"""

import argparse
import math

import torch

WARM_UP_PART = 0.1  # of the steps: the learning rate rises linearly to its peak
LOWEST_PART = 0.1  # of the peak: the learning rate after the last step
REFERENCE_BATCH = 32  # sequences per step for which --learning-rate is meant


def peak_learning_rate(args: argparse.Namespace) -> float:
    """Return --learning-rate, scaled by the batch if --scale-learning-rate asks for it."""
    ratio = args.global_batch / REFERENCE_BATCH
    if args.scale_learning_rate == "linear":
        return args.learning_rate * ratio
    if args.scale_learning_rate == "sqrt":
        return args.learning_rate * math.sqrt(ratio)
    return args.learning_rate


def learning_rate_at(step: int, args: argparse.Namespace) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine down to LOWEST_PART of the peak.

    It would be at its lowest in the step after the last one, as in get_lr() of nanoGPT's train.py (at e222131, read
    2026-11-22).
    """
    peak = peak_learning_rate(args)
    last_step = args.decay_steps or args.steps
    warm_up_steps = max(1, round(WARM_UP_PART * last_step))
    if step <= warm_up_steps:
        return peak * step / warm_up_steps
    decayed = min(1.0, (step - 1 - warm_up_steps) / max(1, last_step - warm_up_steps))  # from 0 to 1
    cosine = 0.5 * (1 + math.cos(math.pi * decayed))  # from 1 to 0
    return peak * (LOWEST_PART + (1 - LOWEST_PART) * cosine)


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
