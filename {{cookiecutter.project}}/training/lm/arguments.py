"""The flags of the training programs, and the refusal of values that cannot work."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from lm.checkpoints import is_own_run
from lm.model import Config
from lm.setup import fail, launched_ranks

LEAST_BATCH = 32  # sequences per step, unless --global-batch says otherwise


def positive_int(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a whole number above 0")
    return int(text)


def positive_float(text: str) -> float:
    """Read a number above 0."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a number above 0")
    return float(text)


def step_range(text: str) -> tuple[int, int]:
    """Read FIRST:LAST, two steps. torch.profiler warms up in the step before."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} has to be FIRST:LAST, two steps from 2 on, for example 5:8")
    return int(first), int(last)


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return the parser of the flags. doc: what --help prints first."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # argparse would print the usage before each message
    add = parser.add_argument

    add("--steps", type=positive_int, default=200, metavar="N", help="optimizer steps in all (default: %(default)s)")
    add("--data", metavar="FILE", help="text to learn from (default: sources of Python's own library)")
    add("--out", default="runs/train", metavar="FOLDER", help="for checkpoints and metrics (default: %(default)s)")
    add(
        "--resume",
        action="store_true",
        help="continue from the newest checkpoint in --out, if any (later attempts of a job do, from their own)",
    )
    add(
        "--global-batch",
        type=positive_int,
        metavar="N",
        help="sequences per step, over all ranks (default: the smallest multiple of their number that is at least "
        f"{LEAST_BATCH})",
    )
    add(
        "--micro-batch",
        type=positive_int,
        metavar="N",
        help="sequences that a rank computes at once; gradients add up until its part of the batch is done "
        "(default: the whole part)",
    )
    add("--learning-rate", type=positive_float, default=1e-3, metavar="RATE", help="its peak (default: %(default)s)")
    add("--decay-steps", type=positive_int, metavar="N", help="until the rate is at its lowest (default: --steps)")
    add("--grad-clip", type=positive_float, default=1.0, metavar="NORM", help="largest norm (default: 1; inf: any)")
    add("--seed", type=int, default=0, metavar="N", help="of the weights and the order of samples (default: 0)")
    add(
        "--dtype",
        choices=["bfloat16", "float32", "float64"],
        help="matmul precision (default: bfloat16 where the GPU supports it, else float32)",
    )
    add("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    workers = 2 if torch.cuda.is_available() else 0
    add("--workers", type=int, default=workers, metavar="N", help="processes per rank that read ahead (%(default)s)")
    add("--timeout", type=positive_int, default=600, metavar="SECONDS", help="that a rank waits for another (600)")

    add("--log-every", type=positive_int, default=10, metavar="N", help="steps between lines (default: %(default)s)")
    add("--eval-every", type=positive_int, default=100, metavar="N", help="between evaluations (default: %(default)s)")
    add("--save-every", type=positive_int, default=100, metavar="N", help="between checkpoints (default: %(default)s)")
    add("--keep", type=positive_int, default=3, metavar="N", help="newest checkpoints to keep (default: %(default)s)")
    add("--tensorboard", action="store_true", help="write metrics for TensorBoard too, into tensorboard/ of --out")
    add("--wandb", metavar="PROJECT", help="report metrics to this project of W&B too")
    add("--mlflow", metavar="EXPERIMENT", help="report metrics to this experiment of MLflow too")
    add(
        "--profile",
        type=step_range,
        metavar="FIRST:LAST",
        help="record these steps of rank 0 with torch.profiler: a trace in --out for https://ui.perfetto.dev",
    )
    for name, value in vars(Config()).items():
        of_a_kind = {"action": argparse.BooleanOptionalAction} if isinstance(value, bool) else {"type": type(value)}
        add(f"--{name.replace('_', '-')}", default=value, help="of the model (default: %(default)s)", **of_a_kind)
    return parser


def read_arguments(doc: str, world_size: int) -> argparse.Namespace:
    """Read the flags, and refuse values that cannot work on `world_size` ranks, before the ranks join.

    Fills in global_batch, micro_batch and decay_steps. Adds config (of the model).
    """
    args = make_parser(doc).parse_args()
    if world_size == 1 and launched_ranks() > 1:
        fail(f"each of {launched_ranks()} ranks would train by itself: use training/train_ddp.py")
    try:
        args.config = Config(**{name: getattr(args, name) for name in vars(Config())})
    except ValueError as error:
        fail(str(error))
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{error}: give another --out")

    args.resume = args.resume or is_own_run(Path(args.out))
    args.global_batch = args.global_batch or math.ceil(LEAST_BATCH / world_size) * world_size
    if args.global_batch % world_size:
        fail(
            f"--global-batch {args.global_batch} cannot be shared equally by {world_size} ranks: "
            f"choose a multiple of {world_size}, or a number of ranks that divides {args.global_batch}"
        )
    per_rank = args.global_batch // world_size
    args.micro_batch = args.micro_batch or per_rank
    if per_rank % args.micro_batch:
        fail(f"--micro-batch {args.micro_batch} does not divide the {per_rank} sequences of a rank: choose a divisor")
    args.decay_steps = args.decay_steps or args.steps
    if args.profile and args.profile[1] > args.steps:
        fail(f"--profile {args.profile[0]}:{args.profile[1]} ends after --steps {args.steps}: record earlier steps")
    if args.workers < 0:
        fail(f"--workers {args.workers} has to be 0 or more")
    return args


def fixed_settings(args: argparse.Namespace, data_name: str) -> dict[str, Any]:
    """Return the settings that a checkpoint keeps, and in which a run that resumes has to agree with it."""
    return {**vars(args.config), "seed": args.seed, "global_batch": args.global_batch, "data": data_name}
