"""The flags of the training programs, and what cannot work for them."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

import torch

from lm.checkpoints import newest_settings
from lm.model import Config
from lm.setup import fail, launched_ranks

LEAST_BATCH = 32  # sequences per step, unless --global-batch says otherwise
LARGEST_MICRO_BATCH = 32  # sequences that a rank computes at once, unless --micro-batch says otherwise
DEFAULT_BATCH = f"the smallest multiple of the number of ranks that is at least {LEAST_BATCH}"


def positive_int(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a whole number above 0")
    return int(text)


def step_range(text: str) -> tuple[int, int]:
    """Read FIRST:LAST, two steps. torch.profiler warms up in the step before."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} has to be FIRST:LAST, two steps from 2 on, for example 5:8")
    return int(first), int(last)


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return the parser of the flags. doc: what --help prints first."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # one message per node, without the usage
    add = parser.add_argument

    add(
        "--steps",
        type=positive_int,
        default=200,
        metavar="N",
        help="optimizer steps in all, with those before a --resume (default: %(default)s)",
    )
    add("--data", metavar="PATH", help="text file, or folder of text files (default: sources of Python's own library)")
    add("--out", default="runs/train", metavar="FOLDER", help="for checkpoints and metrics (default: %(default)s)")
    add(
        "--resume",
        action="store_true",
        default=os.environ.get("RESTART_COUNT", "") not in ("", "0"),
        help="continue from the newest checkpoint in --out, if any (later attempts of a job always do)",
    )

    add(
        "--global-batch",
        type=positive_int,
        metavar="N",
        help=f"sequences per step, over all ranks (default: the checkpoint's, or {DEFAULT_BATCH})",
    )
    add(
        "--micro-batch",
        type=positive_int,
        metavar="N",
        help="sequences that a rank computes at once; gradients add up until its part of the batch is done "
        f"(default: the largest divisor of this part that is at most {LARGEST_MICRO_BATCH})",
    )
    add("--learning-rate", type=float, default=1e-3, metavar="RATE", help="its peak (default: %(default)s)")
    add(
        "--decay-steps",
        type=positive_int,
        metavar="N",
        help="steps until the learning rate is at its lowest (default: --steps). "
        "For a run that will be extended give its final length, from its first job on",
    )
    add("--grad-clip", type=float, default=1.0, metavar="NORM", help="largest norm of the gradient (default: 1)")
    add("--seed", type=int, default=0, metavar="N", help="of the weights and the order of samples (default: 0)")
    add(
        "--dtype",
        choices=["bfloat16", "float32", "float64"],
        help="matmul precision (default: bfloat16 where the GPU supports it, else float32)",
    )
    add("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    add(
        "--activation-checkpointing",
        action="store_true",
        help="keep each layer's input alone, and compute the rest again in the backward pass: less memory, more time",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes per rank that read ahead (default: up to 4 with GPUs, else 0)",
    )
    add(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="that a rank waits for another before it fails (default: %(default)s)",
    )

    add("--log-every", type=positive_int, default=10, metavar="N", help="steps between lines (default: %(default)s)")
    add("--eval-every", type=positive_int, default=100, metavar="N", help="between evaluations (default: %(default)s)")
    add("--save-every", type=positive_int, default=100, metavar="N", help="between checkpoints (default: %(default)s)")
    add("--keep", type=positive_int, default=3, metavar="N", help="newest checkpoints to keep (default: %(default)s)")
    add("--json", metavar="FILE", help="write losses, validation loss and tokens/s into this file too")
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
        add(f"--{name}", type=type(value), default=value, metavar="N", help="of the model (default: %(default)s)")
    return parser


def read_arguments(doc: str, world_size: int) -> argparse.Namespace:
    """Read the flags, and refuse what cannot work on so many ranks, before they join.

    Fills in global_batch and micro_batch. Adds batch_remark (why this batch) and config (of the model).
    """
    args = make_parser(doc).parse_args()
    if world_size == 1 and launched_ranks() > 1:
        fail(f"each of {launched_ranks()} ranks would train by itself: use training/train_ddp.py")
    try:
        args.config = Config(**{name: getattr(args, name) for name in vars(Config())})
    except ValueError as error:
        fail(str(error))
    try:  # a file that cannot be written is better named now than after the run
        Path(args.out).mkdir(parents=True, exist_ok=True)
        if args.json:
            Path(args.json).open("a").close()
    except OSError as error:
        fail(f"{error}: give another --out or --json")
    args.global_batch, args.batch_remark = choose_global_batch(args, world_size)

    per_rank = args.global_batch // world_size
    divisors = [number for number in range(1, LARGEST_MICRO_BATCH + 1) if per_rank % number == 0]
    args.micro_batch = args.micro_batch or max(divisors)
    if per_rank % args.micro_batch:
        fail(f"--micro-batch {args.micro_batch} does not divide the {per_rank} sequences of a rank: choose a divisor")
    if args.workers is None:  # torch has a thread per core of the rank: the launchers set OMP_NUM_THREADS
        args.workers = min(4, torch.get_num_threads() - 1) if torch.cuda.is_available() else 0
    return args


def choose_global_batch(args: argparse.Namespace, world_size: int) -> tuple[int, str]:
    """Return the sequences per step, and a remark on where the number comes from.

    A run that resumes without --global-batch keeps its checkpoint's batch, on any number of ranks that divides it. So a
    job that goes on with fewer nodes learns the same.
    """
    batch, remark = args.global_batch, ""
    if batch is None and args.resume:
        batch, remark = newest_settings(Path(args.out)).get("global_batch"), " (the batch of the checkpoint)"
    if batch is None:
        batch = math.ceil(LEAST_BATCH / world_size) * world_size
        return batch, "" if batch == LEAST_BATCH else f" ({DEFAULT_BATCH})"
    if batch % world_size:
        divisors = ", ".join(str(ranks) for ranks in range(1, batch + 1) if batch % ranks == 0)
        source = (
            f"--global-batch {batch}" if not remark else f"the batch of the checkpoints in --out {args.out}, {batch},"
        )
        fail(
            f"{source} cannot be shared equally by {world_size} ranks: use {divisors} ranks, or another batch and --out"
        )
    return batch, remark


def fixed_settings(args: argparse.Namespace, data_name: str) -> dict[str, Any]:
    """Return the settings that a checkpoint and the run that resumes from it have to agree in."""
    return {**vars(args.config), "seed": args.seed, "global_batch": args.global_batch, "corpus": data_name}
