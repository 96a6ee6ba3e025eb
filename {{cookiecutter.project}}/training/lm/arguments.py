"""The flags of the training programs, and what cannot work for them."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from checkpoint import Checkpoints
from data import Corpus, read_corpus
from distributed import fail, launched_world_size
from model import Config
from schedule import REFERENCE_BATCH
from trackers import require_packages

LARGEST_MICRO_BATCH = 32  # sequences that a rank computes at once, unless --micro-batch says otherwise
DEFAULT_BATCH = f"the smallest multiple of the number of ranks that is at least {REFERENCE_BATCH}"


def positive_int(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a whole number above 0")
    return int(text)


def zero_or_more(text: str) -> int:
    """Read a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} has to be a whole number, 0 or more")
    return int(text)


def positive_number(text: str) -> float:
    """Read a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a number above 0")
    return number


def step_range(text: str) -> tuple[int, int]:
    """Read FIRST:LAST, two steps."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} has to be FIRST:LAST, two steps, for example 5:8")
    if int(first) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} begins with step 0, but steps are counted from 1")
    if int(first) > int(last):
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins: give the first step first")
    return int(first), int(last)


def rank_list(text: str) -> list[int]:
    """Read ranks with commas between them; return them in their order, each once."""
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} has to be ranks with commas between them, for example 0,3")
    return sorted(set(map(int, numbers)))


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return the parser of the flags. doc: what --help prints first."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # one message per node, without the usage

    parser.add_argument(
        "--steps",
        type=positive_int,
        default=200,
        metavar="N",
        help="optimizer steps in all, with those before a --resume (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="text file, or folder of text files (default: the sources of Python's own library)",
    )
    parser.add_argument(
        "--out",
        default="runs/train",
        metavar="FOLDER",
        help="folder for checkpoints and metrics (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write losses, validation loss and tokens/s into this file too")
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write metrics for TensorBoard too, into the folder tensorboard of --out",
    )
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="report metrics to this project of W&B too; without internet, into the folder wandb of --out",
    )
    parser.add_argument(
        "--timeout",
        type=positive_number,
        default=600.0,
        metavar="SECONDS",
        help="seconds that a rank waits for another before it fails (default: %(default)s)",
    )

    parser.add_argument(
        "--global-batch",
        type=positive_int,
        metavar="N",
        help=f"sequences per step, over all ranks (default: the checkpoint's, or {DEFAULT_BATCH})",
    )
    parser.add_argument(
        "--micro-batch",
        type=positive_int,
        metavar="N",
        help="sequences that a rank computes at once "
        f"(default: the largest divisor of a rank's part of the batch that is at most {LARGEST_MICRO_BATCH})",
    )
    parser.add_argument(
        "--learning-rate",
        type=positive_number,
        default=1e-3,
        metavar="RATE",
        help="learning rate at its peak (default: %(default)s)",
    )
    parser.add_argument(
        "--scale-learning-rate",
        choices=["linear", "sqrt"],
        help="linear: multiply the learning rate by --global-batch / "
        f"{REFERENCE_BATCH}; sqrt: by the square root of this ratio (default: no scaling)",
    )
    parser.add_argument(
        "--decay-steps",
        type=positive_int,
        metavar="N",
        help="steps until the learning rate is at its lowest (default: --steps). "
        "For a run that will be extended give its final length, from its first job on",
    )
    parser.add_argument(
        "--seed",
        type=zero_or_more,
        default=0,
        metavar="N",
        help="random seed of the initial weights and of the order of samples (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "tf32", "float32", "float64"],
        help="matmul precision (default: bfloat16 where the GPU supports it, else float32)",
    )
    parser.add_argument(
        "--workers",
        type=zero_or_more,
        metavar="N",
        help="processes per rank that read ahead (default: by the rank's cores on GPUs, 0 on CPUs)",
    )
    parser.add_argument(
        "--grad-clip",
        type=positive_number,
        default=1.0,
        metavar="NORM",
        help="largest norm of the gradient: a longer one is scaled down to it (default: %(default)s)",
    )
    parser.add_argument(
        "--activation-checkpointing",
        action="store_true",
        help="keep each layer's input alone, and compute the rest again in the backward pass: less memory, more time",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute first, then faster")

    parser.add_argument(
        "--log-every",
        type=positive_int,
        default=10,
        metavar="N",
        help="steps from one line of progress to the next (default: %(default)s)",
    )
    parser.add_argument(
        "--eval-every",
        type=positive_int,
        default=100,
        metavar="N",
        help="steps from one evaluation to the next; the last step has one too (default: %(default)s)",
    )
    parser.add_argument(
        "--save-every",
        type=positive_int,
        default=100,
        metavar="N",
        help="steps from one checkpoint to the next; the last step has one too (default: %(default)s)",
    )
    parser.add_argument(
        "--save-minutes",
        type=positive_number,
        metavar="MINUTES",
        help="save also when the last checkpoint is this many minutes old",
    )
    parser.add_argument(
        "--keep", type=positive_int, default=3, metavar="N", help="newest checkpoints to keep (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        type=step_range,
        metavar="FIRST:LAST",
        help="record these steps with torch.profiler: a trace in --out for https://ui.perfetto.dev. "
        "A step's slice also has what follows until the next step: evaluation, checkpoint, the wait for the next batch",
    )
    parser.add_argument(
        "--profile-ranks",
        type=rank_list,
        metavar="RANK,RANK",
        help="ranks that --profile records (default: 0)",
    )
    restarted = os.environ.get("RESTART_COUNT", "") not in ("", "0")
    parser.add_argument(
        "--resume",
        action="store_true",
        default=restarted,
        help="continue from the newest checkpoint in --out, if any (later attempts of a job always do)",
    )

    for name, value in vars(Config()).items():
        parser.add_argument(
            f"--{name}",
            type=type(value),
            default=value,
            metavar="N",
            help=f"{name} of the model (default: %(default)s)",
        )
    return parser


def parse_arguments(doc: str, world_size: int) -> argparse.Namespace:
    """Read the flags, and refuse what cannot work on so many ranks, before they join.

    Fills in global_batch, micro_batch and profile_ranks. Adds batch_remark (why this batch), accumulation (micro
    batches per step), config (of the model) and corpus (the data).
    """
    args = make_parser(doc).parse_args()
    if world_size == 1 and launched_world_size() > 1:
        fail(f"each of {launched_world_size()} ranks would train by itself: use training/train_ddp.py")
    require_packages(args)
    args.global_batch, args.batch_remark = choose_global_batch(args, world_size)
    args.micro_batch, args.accumulation = choose_micro_batch(args, world_size)
    args.config = read_config(args)
    args.profile_ranks = choose_profile_ranks(args, world_size)
    make_folders(args)
    args.corpus = read_data(args)
    return args


def default_batch(world_size: int) -> int:
    """Return DEFAULT_BATCH for so many ranks."""
    return math.ceil(REFERENCE_BATCH / world_size) * world_size


def choose_global_batch(args: argparse.Namespace, world_size: int) -> tuple[int, str]:
    """Return the sequences per step, and a remark on where the number comes from.

    A run that resumes without --global-batch keeps its checkpoint's batch, on any number of ranks that divides it.
    """
    if args.global_batch:
        if args.global_batch % world_size:
            batch = f"--global-batch {args.global_batch}"
            fail(f"{batch} cannot be shared equally by {world_size} ranks: choose a multiple of {world_size}")
        return args.global_batch, ""

    usual = default_batch(world_size)
    batch = checkpoint_batch(args) if args.resume else None
    if batch is None:
        return usual, "" if usual == REFERENCE_BATCH else f" ({DEFAULT_BATCH})"
    if batch % world_size:
        divisors = ", ".join(str(ranks) for ranks in range(1, batch + 1) if batch % ranks == 0)
        fail(
            f"the checkpoints in --out {args.out} were made with --global-batch {batch}, which {world_size} ranks "
            f"cannot share equally: resume on {divisors} ranks, or give another --out"
        )
    return batch, "" if batch == usual else " (the batch of the checkpoint)"


def checkpoint_batch(args: argparse.Namespace) -> int | None:
    """Return the global batch of the newest checkpoint in --out, None where there is none."""
    return Checkpoints(args.out, args.keep, {}).newest_settings().get("global_batch")


def choose_micro_batch(args: argparse.Namespace, world_size: int) -> tuple[int, int]:
    """Return the sequences that a rank computes at once, and how often it does so per step."""
    per_rank = args.global_batch // world_size
    divisors = [number for number in range(1, LARGEST_MICRO_BATCH + 1) if per_rank % number == 0]
    micro_batch = args.micro_batch or max(divisors)
    if per_rank % micro_batch:
        fail(f"--micro-batch {micro_batch} does not divide the {per_rank} sequences of a rank: choose one that does")
    return micro_batch, per_rank // micro_batch


def read_config(args: argparse.Namespace) -> Config:
    """Return the model's shape, of the flags that are named after its fields."""
    try:
        return Config(**{name: getattr(args, name) for name in vars(Config())})
    except ValueError as error:
        fail(str(error))


def choose_profile_ranks(args: argparse.Namespace, world_size: int) -> list[int]:
    """Return the ranks that record the steps of --profile, if the run has these ranks and steps."""
    ranks = ",".join(map(str, args.profile_ranks or []))
    if not args.profile:
        if args.profile_ranks:
            fail(f"--profile-ranks {ranks} needs steps to record: give --profile FIRST:LAST too")
        return []
    first, last = args.profile
    if last > args.steps:
        fail(f"--profile {first}:{last} ends after --steps {args.steps}: choose earlier steps")
    if args.profile_ranks and args.profile_ranks[-1] >= world_size:
        existing = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
        fail(f"--profile-ranks {ranks}: this run has {existing}, choose from these")
    return args.profile_ranks or [0]


def make_folders(args: argparse.Namespace) -> None:
    """Make --out and the folder of --json. A file that cannot be written is better named now than after the run."""
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        if args.json:
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)
            Path(args.json).open("a").close()
    except OSError as error:
        fail(f"{error}: give another --out or --json")


def read_data(args: argparse.Namespace) -> Corpus:
    """Return the text, if it is enough for one step and an evaluation."""
    try:
        corpus = read_corpus(args.data, args.context)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error}: give another --data")
    samples, held_out = len(corpus.train), len(corpus.validation)
    if samples < args.global_batch or not held_out:
        fail(
            f"{corpus.name} has {samples:,} samples of {args.context} bytes to train on and {held_out:,} to validate: "
            f"add text, or lower --global-batch {args.global_batch} or --context"
        )
    return corpus


def fixed_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a checkpoint and the run that resumes from it have to agree in."""
    return {
        **vars(args.config),
        "seed": args.seed,
        "global_batch": args.global_batch,
        "corpus": args.corpus.checksum,
    }
