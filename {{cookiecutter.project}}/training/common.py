"""What the training programs share: their flags, the optimizer, the learning rate, and what they tell of a run."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch
import torch.distributed as dist
from checkpoint import Checkpoints, Foreign, occupied
from data import Corpus, Windows, read_corpus
from model import Config
from stop import Stop

try:
    from tqdm import tqdm
except ImportError:  # lines do as well
    tqdm = None

BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1  # AdamW; biases and gains are not decayed
WARM_UP, LAST = 0.1, 0.1  # the learning rate rises over this part of the steps, and falls to this part of its peak
REFERENCE_BATCH = 32  # sequences per step for which --learning-rate is meant, if it is scaled at all
LARGEST_MICRO = 32  # sequences that a rank computes at once, unless --micro-batch says otherwise
MOST_WORKERS = 4  # processes that read ahead, for each rank that has a GPU
SPEAK_FIRST = 2.0  # seconds that the other ranks of a node leave to the one that prints an error
SAVE_TIMEOUT = 7200  # seconds that ranks wait for the one that writes a checkpoint
AGREE_BYTES = 192  # of a fact and a host name, when ranks compare what they found
LOOK = 5.0  # seconds, or one step if that takes longer, until all ranks know that one was asked to stop
OCCUPIED = 60  # seconds to wait for a folder in use: a file server learns late that a node is dead
# Largest rate of dense bfloat16 products [FLOP/s] by a part of the GPU's name, the first that fits: from the makers'
# data sheets as torchtitan/tools/utils.py lists them (https://github.com/pytorch/torchtitan, read 2026-11-21).
PEAKS = (("A100", 312e12), ("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989e12), ("H200", 989e12))  # and GH200
PEAKS += (("B200", 2250e12), ("MI250X", 191.5e12), ("MI300X", 1300e12))  # MI250X: a half, as torch sees two


def setup(timeout: float) -> tuple[int, int, torch.device]:
    """Join the process group that the launcher described; return rank, world size and this process's device.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come from launch/ or torchrun
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables); without RANK the process is alone.
    A collective that a peer never joins fails after `timeout` seconds.
    """
    started = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "RANK" not in os.environ and started != "1":
        sys.exit(f"started {started} times without RANK, each would be alone: put launch/rank.sh before {sys.argv[0]}")
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a single visible GPU is this rank's own, given by the scheduler
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def leave() -> None:
    """Leave the process group, and end this process: the last call of a program."""
    if not dist.is_initialized():  # after --help
        return
    dist.barrier()  # nobody leaves while rank 0 still writes
    dist.destroy_process_group()
    # DDP leaves gloo's threads behind. One that gives back a tensor while Python shuts down aborts the process, though
    # all is done (https://github.com/pytorch/pytorch/issues/190489): so Python does not shut down.
    if not torch.cuda.is_available():
        sys.stdout.flush()
        os._exit(0)


def writers() -> dist.ProcessGroup:
    """Return a group in which the ranks wait long enough for a large checkpoint on a slow file system."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=SAVE_TIMEOUT))


def ranks() -> int:
    """Return the number of ranks that the launcher started, also where they have not been told of each other."""
    names = ("WORLD_SIZE",) if "RANK" in os.environ else ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    return int(next((os.environ[name] for name in names if os.environ.get(name)), "1"))


def need_numpy() -> None:
    """Fail where torch.distributed.checkpoint would, at the first save."""
    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        fail("torch.distributed.checkpoint needs NumPy: install it, or use train_ddp.py")


def fail(message: str) -> NoReturn:
    """Print what is wrong, once per node, and end this process with exit code 2."""
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
    if next((os.environ[name] for name in names if os.environ.get(name)), "0") == "0":
        print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    else:  # a launcher ends all ranks as soon as one has failed; let that be the one with the message
        time.sleep(SPEAK_FIRST)
    if dist.is_initialized():
        dist.destroy_process_group()
        if not torch.cuda.is_available():  # as in leave()
            sys.stdout.flush()
            os._exit(2)
    sys.exit(2)


def gather_rows(mine: torch.Tensor) -> torch.Tensor:
    """Return the rows that the ranks have, [ranks, columns], from each one's own, [1, columns]."""
    if not dist.is_initialized():
        return mine
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.cat(rows)


def to_row(text: str) -> torch.Tensor:
    """Return ASCII as a row to gather: a tensor of bytes, because all_gather_object needs NumPy."""
    return torch.tensor([list(text.encode()[:AGREE_BYTES].ljust(AGREE_BYTES, b"\0"))], dtype=torch.uint8)


def to_text(row: torch.Tensor) -> str:
    """Return what to_row() was given."""
    return bytes(row.tolist()).rstrip(b"\0").decode()


def agree(what: str, fact: str, fix: str, gather: Callable[[torch.Tensor], torch.Tensor] = gather_rows) -> None:
    """Fail on all ranks, naming the hosts, unless `fact` (ASCII, short) is the same on each of them."""
    sides: dict[str, dict[str, list[str]]] = {}  # fact -> host -> ranks
    for rank, row in enumerate(gather(to_row(f"{fact}\0{socket.gethostname()}"))):
        seen, host = to_text(row).split("\0")
        sides.setdefault(seen, {}).setdefault(host, []).append(str(rank))
    if len(sides) > 1:
        told = []
        for seen, hosts in sides.items():
            named = [f"{host} (rank {', '.join(ranks)})" for host, ranks in hosts.items()]
            told.append(f"{seen} on {', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}")
        fail(f"the ranks do not have the same {what}: {'; '.join(told)}. {fix}")


def number(kind: type, least: float = 0, above: bool = False) -> Callable[[str], Any]:
    """Return an argparse type: a finite number of `kind`, at least (or above) `least`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            rule = f"{'a whole number' if kind is int else 'a number'} {'above' if above else 'of at least'} {least}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
        return value

    return parse


def flags(doc: str) -> argparse.ArgumentParser:
    """Return what reads the flags."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # one message per node, without the usage
    add, n, positive = partial(parser.add_argument, metavar="N"), number(int, 1), number(float, above=True)
    add("--steps", type=n, default=200, help="updates of the weights, counted from step 0 (default: %(default)s)")
    add("--data", metavar="PATH", help="text file, or folder of them (default: the sources of Python's own library)")
    add("--out", metavar="DIR", default="runs/train", help="for checkpoints and metrics (default: %(default)s)")
    again = os.environ.get("RESTART_COUNT", "0") != "0"  # this job was requeued
    resume = "continue from the newest checkpoint in DIR, if any (a job that was requeued always does)"
    parser.add_argument("--resume", action="store_true", default=again, help=resume)
    add("--json", metavar="FILE", help="write losses, validation loss and tokens/s into this file too")
    add("--timeout", type=positive, default=600, metavar="SECONDS", help="of waiting for a rank (default: %(default)s)")
    add("--global-batch", type=n, default=32, help="sequences per step, over all ranks (default: %(default)s)")
    add("--micro-batch", type=n, help=f"sequences a rank computes at once (default: its share, if <= {LARGEST_MICRO})")
    add("--learning-rate", type=positive, default=1e-3, metavar="X", help="at its peak (default: %(default)s)")
    scales = f"multiply it by --global-batch / {REFERENCE_BATCH}, or by the root of that (default: neither)"
    add("--scale-learning-rate", choices=["linear", "sqrt"], metavar="RULE", help=f"linear or sqrt: {scales}")
    falls = f"steps until it is down to {LAST:g} of that (default: --steps; set it to extend a run)"
    add("--decay-steps", type=n, help=falls)
    add("--seed", type=number(int), default=0, help="of the weights and the order of samples (default: %(default)s)")
    kinds = ["bfloat16", "tf32", "float32", "float64"]
    types = f"of products: {', '.join(kinds)} (default: bfloat16 on GPUs that have it, else float32)"
    add("--dtype", metavar="TYPE", choices=kinds, help=f"{types}; weights are in float32, or float64 too")
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    add("--workers", type=number(int), help="processes per rank that read ahead (default: from its cores; CPU: none)")
    add("--eval-every", type=n, default=100, help="steps; the last one also (default: %(default)s)")
    add("--save-every", type=n, default=100, help="steps; the last one also (default: %(default)s)")
    add("--save-minutes", type=positive, metavar="M", help="save also when the last checkpoint is M minutes old")
    add("--keep", type=n, default=3, help="checkpoints on the disk (default: %(default)s)")
    add("--log-every", type=n, default=10, help="steps per line of progress (default: %(default)s)")
    for name, value in asdict(Config()).items():
        kind = n if isinstance(value, int) else number(float)
        add(f"--{name}", type=kind, default=value, help="of the model (default: %(default)s)")
    return parser


def parse_arguments(doc: str, world: int) -> argparse.Namespace:
    """Read the flags and refuse what cannot work for `world` ranks; add config, accumulation and rate_factor."""
    args = flags(doc).parse_args()
    if world == 1 and ranks() > 1:
        fail(f"each of {ranks()} ranks would train the whole: use training/train_ddp.py")
    if args.global_batch % world:
        below = args.global_batch // world * world
        near = " or ".join(str(n) for n in (below, below + world) if n)
        fail(f"--global-batch {args.global_batch} sequences cannot be shared equally by {world} ranks: choose {near}")
    share = args.global_batch // world
    fits = [n for n in range(1, share + 1) if share % n == 0]
    args.micro_batch = args.micro_batch or max(n for n in fits if n <= LARGEST_MICRO)
    args.accumulation = share // args.micro_batch
    if args.micro_batch not in fits:
        fail(
            f"--micro-batch {args.micro_batch} does not divide the {share} sequences that each of {world} ranks gets "
            f"of --global-batch {args.global_batch}: choose one of {', '.join(map(str, fits))}"
        )
    scale = args.global_batch / REFERENCE_BATCH
    args.rate_factor = {None: 1.0, "linear": scale, "sqrt": scale**0.5}[args.scale_learning_rate]
    try:
        args.config = Config(**{name: getattr(args, name) for name in asdict(Config())})
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        fail(str(error) if isinstance(error, ValueError) else f"--out {args.out} cannot be a folder ({error})")
    if args.seed >= 2**32:
        fail(f"--seed {args.seed} is too large: give one below 2**32")
    if args.json and Path(args.json).is_dir():
        fail(f"--json {args.json} is a folder: name a file")
    if args.json and not Path(args.json).resolve().parent.is_dir():
        fail(f"--json {args.json}: there is no folder {Path(args.json).resolve().parent}; make it first")
    return args


def open_corpus(args: argparse.Namespace) -> tuple[Corpus, dict[str, Any]]:
    """Read the corpus, and look whether it is enough; return it, and what a checkpoint has to have in common."""
    try:
        corpus = read_corpus(args.data)
    except (OSError, ValueError) as error:
        fail(str(error))
    train, validation = (len(Windows(text, args.context)) for text in (corpus.train, corpus.validation))
    if train < args.global_batch or not validation:
        needed = max(20 * args.global_batch * args.context // 19, 20 * args.context + 19) + 1
        fail(
            f"{corpus.name} has {len(corpus.train) + len(corpus.validation):,} bytes; a batch of {args.global_batch} x "
            f"{args.context} bytes and something to validate need {needed:,}: add text, or lower --global-batch or "
            "--context"
        )
    settings = {**asdict(args.config), "seed": args.seed, "global_batch": args.global_batch, "corpus": corpus.checksum}
    return corpus, settings


def open_run(
    args: argparse.Namespace,
    corpus: Corpus,
    checkpoints: Checkpoints,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int = 0,
    gather: Callable[[torch.Tensor], torch.Tensor] = gather_rows,
) -> dict[str, Any]:
    """Fill model and optimizer from the checkpoint to go on from, and return its step and losses, or those of a start.

    Fails if the ranks find different ones, or if another job is at work there. What is in the way of a new run is moved
    aside.
    """
    shared = f"Put --out {args.out} on a file system that all nodes share"
    holder = to_text(gather(to_row(occupied(args.out, min(OCCUPIED, args.timeout / 2)) if rank == 0 else ""))[0])
    if holder:
        fail(f"--out {args.out} is in use by {holder}: give another --out, or wait for the end of that")
    agree("corpus", f"checksum {corpus.checksum}", "Give --data a path that all nodes share", gather)
    state = None
    if args.resume:
        agree("checkpoints", next((path.name for path in checkpoints.there()), "none"), shared, gather)
        try:
            state = checkpoints.load(model, optimizer)
        except Foreign as error:
            fail(str(error))
        agree("checkpoint to start from", f"step {state['step']}" if state else "none", shared, gather)
    elif rank == 0 and (aside := checkpoints.set_aside()):
        print(f"before  the run that was in {args.out} is now in {aside}; --resume would have continued it", flush=True)
    return {name: state[name] if state else value for name, value in (("step", 0), ("loss", None), ("val_loss", None))}


def precision(dtype: str | None, device: torch.device) -> tuple[str, AbstractContextManager, torch.dtype]:
    """Return the type of products by name, what to compute the loss in, and the type of weights."""
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = dtype or ("bfloat16" if ampere else "float32")
    if dtype == "tf32" and (not ampere or torch.version.hip):
        fail("--dtype tf32 is for NVIDIA's GPUs since Ampere: choose float32 or bfloat16")
    # Said, and not left to defaults: cuDNN's is TF32, and a variable in some containers makes it that of matrices too.
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    autocast = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    return dtype, autocast, torch.float64 if dtype == "float64" else torch.float32


def workers(args: argparse.Namespace, device: torch.device) -> int:
    """Return how many processes read ahead: on a CPU none, because its cores are busy with the model."""
    # The launchers set OMP_NUM_THREADS to the cores of a rank.
    from_cores = min(MOST_WORKERS, torch.get_num_threads() - 1) if device.type == "cuda" else 0
    return from_cores if args.workers is None else args.workers


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW, as one fused kernel; matrices are decayed."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=True)


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """Return the learning rate of step 1, 2, …: a linear rise, then half a cosine down to LAST of the peak."""
    rise = max(1, round(WARM_UP * steps))
    if step <= rise:
        return peak * step / rise
    done = min(1.0, (step - 1 - rise) / max(1, steps - rise))
    return peak * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done)))


def prepare_step(step: int, rank: int, args: argparse.Namespace, optimizer: torch.optim.Optimizer) -> float:
    """Set the learning rate of step 1, 2, …, which is returned, and seed what the model draws (dropout).

    Both are functions of the step, so that a resumed run needs to know its number alone; each rank draws others.
    """
    seed = (args.seed + 1_000_003 * step + 7919 * rank) % 2**32
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also formats three stack traces, 0.1 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    rate = learning_rate_at(step, args.decay_steps or args.steps, args.learning_rate * args.rate_factor)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def due(step: int, every: int, args: argparse.Namespace) -> bool:
    """Return whether something is to be done after this step that is done every so many, and after the last."""
    return step % every == 0 or step == args.steps


def peak_memory(device: torch.device) -> int:
    """Return the most memory [bytes] that tensors on the GPU have had, or on a CPU this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Pace:
    """When the ranks look at their losses, save and stop: all after the same step, as they decide together."""

    def __init__(self, args: argparse.Namespace, log: Log) -> None:
        """Begin; from now on signals do not end the process."""
        self.args, self.log, self.stop_request = args, log, Stop(0 if log.speaks else 1)
        self.look, self.saved = log.first + 1, time.monotonic()
        self.save = self.stop = False

    def due(self, step: int) -> bool:
        """Return whether the losses are to be read after this step, for which the device has to be waited for."""
        return step >= self.look or step % self.args.log_every == 0 or due(step, self.args.save_every, self.args)

    def wishes(self) -> list[float]:
        """Return what this rank has to say: whether to save (0 or 1), whether to stop, the seconds of a step."""
        minutes = self.args.save_minutes or math.inf
        return [time.monotonic() - self.saved > 60 * minutes, self.stop_request.asked(), self.log.seconds_per_step]

    def decide(self, step: int, wishes: list[float]) -> None:
        """Set `save` and `stop` from the mean of all ranks' wishes."""
        save, stop, seconds = wishes
        self.look = step + max(1, min(self.args.log_every, int(LOOK / max(seconds, 1e-9))))
        self.stop = stop > 0 and step < self.args.steps
        self.save = save > 0 or self.stop or due(step, self.args.save_every, self.args)

    def has_saved(self) -> None:
        """Count the minutes to the next checkpoint from here."""
        self.saved = time.monotonic()
        if self.stop:
            self.stop_request.obey()


class Log:
    """What a run tells: metrics.jsonl, lines of progress, the figures for --json. Silent on all ranks but 0."""

    def __init__(
        self,
        args: argparse.Namespace,
        corpus: Corpus,
        model: torch.nn.Module,
        dtype: str,
        device: torch.device,
        state: dict[str, Any],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Say what is about to happen, from `state` on: the step and the losses there.

        What a run that died wrote after its checkpoint will come again: it is dropped.
        """
        self.args, self.device, self.speaks, self.state, self.first = args, device, rank == 0, state, state["step"]
        self.tokens_per_step = args.global_batch * args.context
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" and dtype == "bfloat16" else ""
        peak = next((rate for name, rate in PEAKS if re.search(rf"{name}\b", gpu)), 0)
        self.mfu_per_speed = model.flops() / (world * peak) if peak else 0
        self.figures: dict[str, Any] = {
            "program": Path(sys.argv[0]).stem, "world_size": world, "device": device.type, "dtype": dtype,
            "global_batch": args.global_batch, "micro_batch": args.micro_batch, "accumulation": args.accumulation,
            "first_step": self.first, "losses": [],
        }  # fmt: skip
        self.pending: list[torch.Tensor] = []  # losses and learning rates of the steps since the last line: they are
        self.rates: list[float] = []  # read together, so that the device is seldom waited for
        self.tokens, self.seconds = 0, 0.0  # without the first step, which pays for memory, buckets and kernels
        self.seconds_per_step = LOOK  # not known yet
        self.clock = time.perf_counter()
        self.bar = None
        if not self.speaks:
            return
        self._keep_metrics_up_to(self.first)
        # mpirun gives ranks a terminal even where its own output is a file.
        if tqdm and sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ:
            self.bar = tqdm(total=args.steps, initial=self.first, unit="step", file=sys.stdout, dynamic_ncols=True)
        samples, held_out = (len(Windows(part, args.context)) for part in (corpus.train, corpus.validation))
        scaled = f" x {args.rate_factor:g} ({args.scale_learning_rate})" if args.scale_learning_rate else ""
        shape = ", ".join(f"{name} {value:,}" for name, value in asdict(args.config).items())
        self.say(
            f"ranks   {world} ({device.type}, {dtype}{', compiled' if args.compile else ''})\n"
            f"model   {sum(p.numel() for p in model.parameters()):,} parameters ({shape})\n"
            f"corpus  {corpus.name}: {samples:,} samples to train on, {held_out:,} to validate; "
            f"steps per epoch: {samples // args.global_batch:,}\n"
            f"batch   {args.global_batch} sequences = {world} (ranks) x {args.micro_batch} (micro batch) x "
            f"{args.accumulation} (accumulation), {self.tokens_per_step:,} tokens a step\n"
            f"rate    {args.learning_rate:g}{scaled}, after a rise over "
            f"{WARM_UP:.0%} of the steps\n"
            f"start   {self._where_from()}"
        )

    def say(self, text: str) -> None:
        """Print a line on rank 0, above the progress bar if there is one."""
        if self.speaks:
            (self.bar.write if self.bar else partial(print, flush=True))(text)

    def add(self, loss: torch.Tensor, rate: float) -> None:
        """Note a step; its loss stays on the device."""
        self.pending.append(loss)
        self.rates.append(rate)

    def trained(self, step: int, losses: list[float]) -> None:
        """Note the losses of the steps up to `step` that are pending, as numbers and over all ranks."""
        seconds, tokens = time.perf_counter() - self.clock, self.tokens_per_step * len(losses)
        if self.figures["losses"]:
            self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self.seconds_per_step = seconds / len(losses)
        self.figures["losses"] += losses
        self.state.update(step=step, loss=losses[-1])
        measured = {"tokens_per_second": round(tokens / seconds, 1)}
        text = f"loss {losses[-1]:.4f}  lr {self.rates[-1]:.2e}  {tokens / seconds:11,.0f} tokens/s"
        if self.mfu_per_speed:
            measured["mfu"] = round(self.mfu_per_speed * tokens / seconds, 4)
            text += f"  mfu {measured['mfu']:.1%}"
        for number, (loss, rate) in enumerate(zip(losses, self.rates), start=step - len(losses) + 1):
            self._write({"step": number, "loss": loss, "lr": rate, **measured})
        if self.bar:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(len(losses))
        elif step % self.args.log_every == 0 or step in (self.first + 1, self.args.steps):
            self.say(f"{self._step(step)}  {text}")
        self.pending, self.rates = [], []
        self._demand_numbers("loss", dict(enumerate(losses, start=step - len(losses) + 1)))

    def evaluated(self, step: int, loss: float) -> None:
        """Note the loss on the validation text after `step`."""
        self.state["val_loss"] = loss
        self._write({"step": step, "val_loss": loss})
        self.say(f"{self._step(step)}  validation loss {loss:.4f}")
        self._demand_numbers("validation loss", {step: loss})

    def resume_clock(self) -> None:
        """Begin to count the time of steps again, after an evaluation or a checkpoint."""
        self.clock = time.perf_counter()

    def finish(self) -> None:
        """Say how it went, and write the figures for --json."""
        speed, memory = self.tokens / self.seconds if self.seconds else None, peak_memory(self.device)
        mfu = self.mfu_per_speed * speed if self.mfu_per_speed and speed else None
        self.close()
        losses = self.figures["losses"]
        if self.state["step"] < self.args.steps:
            told = f"{self.state['step']} of {self.args.steps}, and saved in {self.args.out}"
            self.say(f"stopped at step {told}; --resume goes on from there")
        elif losses:
            told = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, validation {self.state['val_loss']:.4f}"
            told += f", {speed:,.0f} tokens/s" if speed else ""
            told += f", mfu {mfu:.1%}" if mfu else ""
            self.say(f"done    {told}, {memory / 2**30:.1f} GiB on rank 0; see {self.args.out}")
        self.figures |= {
            "steps": self.state["step"], "final_loss": self.state["loss"], "val_loss": self.state["val_loss"],
            "tokens_per_second": speed, "mfu": mfu, "peak_memory_bytes": memory,
        }  # fmt: skip
        if self.args.json and self.speaks:
            Path(self.args.json).write_text(json.dumps(self.figures, indent=1) + "\n")

    def close(self) -> None:
        """Leave the line of the progress bar."""
        if self.bar:
            self.bar.close()
            self.bar = None

    def _demand_numbers(self, what: str, losses: dict[int, float]) -> None:
        """Fail, on all ranks alike, if a step has none: before a checkpoint is written from which none comes again."""
        for step, loss in losses.items():
            if not math.isfinite(loss):
                self.close()
                fail(f"the {what} is {loss} at step {step}: lower --learning-rate {self.args.learning_rate:g}")

    def _keep_metrics_up_to(self, first: int) -> None:
        path, kept = Path(self.args.out, "metrics.jsonl"), ""
        for line in path.read_text().splitlines() if first and path.exists() else []:
            try:
                kept += line + "\n" if json.loads(line)["step"] <= first else ""
            except (ValueError, TypeError, KeyError):  # the line that it died in
                break
        path.with_suffix(".tmp").write_text(kept)
        os.replace(path.with_suffix(".tmp"), path)
        self.file = path.open("a")

    def _where_from(self) -> str:
        if self.first >= self.args.steps:
            return f"at step {self.first}: nothing is left of --steps {self.args.steps}, a larger number continues"
        if self.first:
            return f"at step {self.first}, from the checkpoint in {self.args.out}"
        if self.args.resume:
            return f"at step 0, there is no checkpoint in {self.args.out} yet"
        return "at step 0"

    def _step(self, step: int) -> str:
        return f"step {step:{len(str(self.args.steps))}}/{self.args.steps}"

    def _write(self, line: dict[str, Any]) -> None:
        if self.speaks:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
