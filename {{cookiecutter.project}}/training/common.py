"""What the training programs share: their flags, the optimizer, the learning rate, and what they tell of a run.

A program calls in this order:

    parse_arguments()       is told the number of ranks()
    setup()                 joins the other ranks; train_single.py has none
    Run(), Run.start()      reads the newest checkpoint
    prepare_step()          before each step
    Run.note()              after each step: decides whether to save and to stop
    Run.saved()             after each checkpoint
    Run.finish()
    leave()                 where there was setup()
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import socket
import sys
import time
import zlib
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from checkpoint import Checkpoints, Foreign, occupied
from data import read_corpus
from model import Config
from stop import Stop

WARM_UP, LAST = 0.1, 0.1  # the learning rate rises over this part of the steps, and falls to this part of its peak
REFERENCE_BATCH = 32  # sequences per step for which --learning-rate is meant; the least without --global-batch
LARGEST_MICRO = 32  # most sequences that a rank computes at once, unless --micro-batch says otherwise
EVALUATION = 1024  # most windows of the validation text that are used: more cost time, fewer make the loss noisy
SPEAK_FIRST = 2.0  # seconds that the other ranks of a node leave to the one that prints an error
LOOK = 5.0  # seconds, or one step if that takes longer, until all ranks know that one was asked to stop
# Largest rate of dense bfloat16 products [FLOP/s] by a part of the GPU's name, the first that fits: from the makers'
# data sheets as torchtitan/tools/utils.py lists them (https://github.com/pytorch/torchtitan, read 2026-11-21).
PEAKS = ((" MIG", math.inf), ("A100", 312e12), ("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989e12))
PEAKS += (("H200", 989e12), ("B200", 2250e12), ("MI250X", 191.5e12), ("MI300X", 1300e12))  # and GH200; a half MI250X


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
    if torch.cuda.is_available():  # where a rank sees a single GPU, the scheduler has given it that one
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def leave(code: int = 0) -> NoReturn:
    """Leave the process group, and end this process: the last call of a program."""
    if dist.is_initialized():  # not after --help, from which @record returns, nor where fail() comes before setup()
        if code == 0:
            dist.barrier()  # no rank leaves while rank 0 still writes
        dist.destroy_process_group()
        # DDP leaves gloo's threads behind. One that gives back a tensor while Python shuts down aborts the process,
        # though all is done (https://github.com/pytorch/pytorch/issues/190489): so Python does not shut down.
        if not torch.cuda.is_available():
            sys.stdout.flush()
            os._exit(code)
    sys.exit(code)


def fail(message: str) -> NoReturn:
    """Print what is wrong and end this process with exit code 2. Where all ranks fail, one of each node prints.

    The others wait. A launcher ends all ranks as soon as one has failed, so a rank that is not ended has failed alone.
    """
    if _from_launcher("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", default="0") != "0":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run that has begun would outlive the launcher's signal
        time.sleep(SPEAK_FIRST)
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    leave(2)


def _from_launcher(*names: str, default: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


def ranks() -> int:
    """Return the number of ranks that the launcher started.

    Also under a bare srun or mpirun, which sets no RANK: parse_arguments() or setup() then refuses to go on.
    """
    return int(_from_launcher("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default="1"))


def writers() -> dist.ProcessGroup:
    """Return a group in which the ranks wait long enough for a large checkpoint on a slow file system."""
    return dist.new_group(backend="gloo", timeout=timedelta(hours=2))


DEFAULT_BATCH = f"the smallest multiple of the number of ranks that is at least {REFERENCE_BATCH}"
DEFAULT_MICRO = f"the largest divisor of its share of a step that is at most {LARGEST_MICRO}"
DEFAULT_DECAY = "--steps. For a run that will be extended give its final length, from its first job on"
FLAGS = (  # name, type, default, help; --resume, --compile and those of the model's Config are added
    ("steps", int, 200, "updates of the weights in all, with those before a --resume"),
    ("data", str, None, "text file, or folder of them; else the sources of Python's own library"),
    ("out", str, "runs/train", "folder for checkpoints and metrics"),
    ("json", str, None, "write losses, validation loss and tokens/s into this file too"),
    ("timeout", float, 600.0, "seconds that a rank waits for another before it fails"),
    ("global-batch", int, None, f"sequences per step, over all ranks; else the checkpoint's, or {DEFAULT_BATCH}"),
    ("micro-batch", int, None, f"sequences a rank computes at once; else {DEFAULT_MICRO}"),
    ("learning-rate", float, 1e-3, "at its peak"),
    ("scale-learning-rate", ["linear", "sqrt"], None, f"by --global-batch / {REFERENCE_BATCH}, or by the root of that"),
    ("decay-steps", int, None, f"steps until the learning rate is at its lowest; else {DEFAULT_DECAY}"),
    ("seed", int, 0, "of the weights and the order of samples"),
    ("dtype", ["bfloat16", "tf32", "float32", "float64"], None, "matmul precision; else bfloat16 on GPUs that have it"),
    ("workers", int, None, "processes per rank that read ahead; else by its cores, on CPUs none"),
    ("eval-every", int, 100, "steps; the last one also"),
    ("save-every", int, 100, "steps; the last one also"),
    ("save-minutes", float, None, "save also when the last checkpoint is so old"),
    ("keep", int, 3, "checkpoints on the disk"),
    ("log-every", int, 10, "steps per line of progress"),
)


def flags(doc: str) -> argparse.ArgumentParser:
    """Return what reads the flags."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # one message per node, without the usage
    of_model = [(name, type(value), value, "of the model") for name, value in vars(Config()).items()]
    for name, kind, default, what in (*FLAGS, *of_model):
        of_kind = {"choices": kind} if isinstance(kind, list) else {"type": kind, "metavar": kind.__name__.upper()}
        parser.add_argument(f"--{name}", default=default, help=f"{what} (default: {default})", **of_kind)
    again = os.environ.get("RESTART_COUNT", "") not in ("", "0")  # this job was requeued
    resume = "continue from the newest checkpoint in --out, if any (a job that was requeued always does)"
    parser.add_argument("--resume", action="store_true", default=again, help=resume)
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    return parser


def default_batch(world: int) -> int:
    """Return DEFAULT_BATCH for `world` ranks."""
    return math.ceil(REFERENCE_BATCH / world) * world


def choose_batch(args: argparse.Namespace, world: int) -> tuple[int, str]:
    """Return the sequences per step, and a remark on where the number comes from.

    A run that resumes without --global-batch keeps its checkpoint's batch, on any number of ranks that divides it.
    """
    if args.global_batch:
        if args.global_batch % world:
            batch = f"--global-batch {args.global_batch}"
            fail(f"{batch} cannot be shared equally by {world} ranks: choose a multiple of that")
        return args.global_batch, ""
    if args.resume and (batch := Checkpoints(args.out, args.keep, {}).newest_settings().get("global_batch")):
        if batch % world:
            begun = f"the checkpoints in --out {args.out} were made with --global-batch {batch}"
            fitting = ", ".join(str(ranks) for ranks in range(1, batch + 1) if batch % ranks == 0)
            fail(f"{begun}, which {world} ranks cannot share equally: resume on {fitting} ranks, or give another --out")
        return batch, " (the batch of the checkpoint)" if batch != default_batch(world) else ""
    batch = default_batch(world)
    return batch, f" ({DEFAULT_BATCH})" if batch != REFERENCE_BATCH else ""


def parse_arguments(doc: str, world: int) -> argparse.Namespace:
    """Read the flags and refuse what cannot work for `world` ranks.

    Fills in global_batch and micro_batch; adds remark (on the batch), accumulation, config and corpus.
    """
    args = flags(doc).parse_args()
    if world == 1 and ranks() > 1:
        fail(f"each of {ranks()} ranks would train the whole: use training/train_ddp.py")
    for name, kind, *_ in FLAGS:
        value = getattr(args, name.replace("-", "_"))
        allowed = value is None or (value == 0 and name in ("seed", "workers"))
        if kind in (int, float) and not allowed and not 0 < value < math.inf:
            fail(f"--{name} {value} has to be above 0, and finite (--seed and --workers may be 0)")
    args.global_batch, args.remark = choose_batch(args, world)
    share = args.global_batch // world
    args.micro_batch = args.micro_batch or max(n for n in range(1, LARGEST_MICRO + 1) if share % n == 0)
    args.accumulation = share // args.micro_batch
    if share % args.micro_batch:
        fail(f"--micro-batch {args.micro_batch} does not divide the {share} sequences of a rank: choose one that does")
    try:
        args.config = Config(**{name: getattr(args, name) for name in vars(Config())})
        for folder in (Path(args.out), Path(args.json or args.out).parent):
            folder.mkdir(parents=True, exist_ok=True)
        if args.json:
            Path(args.json).open("a").close()  # better said now than after the last step
        args.corpus = read_corpus(args.data, args.context)
    except (ValueError, OSError) as error:
        fail(f"{error}{'' if isinstance(error, ValueError) else ': give another --out, --json or --data'}")
    samples, held_out = len(args.corpus.train), len(args.corpus.validation)
    if samples < args.global_batch or not held_out:
        has = f"{samples:,} samples of {args.context} bytes to train on and {held_out:,} to validate"
        fail(f"{args.corpus.name} has {has}: add text, or lower --global-batch {args.global_batch} or --context")
    return args


def precision(dtype: str | None, device: torch.device) -> tuple[str, AbstractContextManager, torch.dtype]:
    """Return the name of the matmul precision, the context in which to compute the loss, and the type of weights."""
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = dtype or ("bfloat16" if ampere else "float32")
    if dtype == "tf32" and (not ampere or torch.version.hip):
        fail("--dtype tf32 is for NVIDIA's GPUs since Ampere: choose float32 or bfloat16")
    # Not left to defaults: cuDNN's is TF32, and some containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which makes it
    # that of matrix products too.
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    autocast = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    return dtype, autocast, torch.float64 if dtype == "float64" else torch.float32


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW, as one fused kernel; matrices are decayed, biases and gains are not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate_at(step: int, args: argparse.Namespace) -> float:
    """Return the learning rate of step 1, 2, …: a linear rise, then half a cosine down to LAST of the peak."""
    scale = (args.global_batch / REFERENCE_BATCH) ** {None: 0, "sqrt": 0.5, "linear": 1}[args.scale_learning_rate]
    peak, steps = args.learning_rate * scale, args.decay_steps or args.steps
    rise = max(1, round(WARM_UP * steps))
    if step <= rise:
        return peak * step / rise
    done = min(1.0, (step - 1 - rise) / max(1, steps - rise))
    return peak * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done)))


def prepare_step(step: int, rank: int, args: argparse.Namespace, optimizer: torch.optim.Optimizer) -> None:
    """Set the learning rate of step 1, 2, …, and seed what the model draws (dropout).

    Both are functions of the step, so that a resumed run needs to know its number alone; each rank draws others.
    """
    # These are what torch.manual_seed seeds, which also formats three stack traces, 0.1 ms.
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed((args.seed + 1_000_003 * step + 7919 * rank) % 2**32)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, args)


class Run:
    """One run of a program on one rank: what it reads, tells and decides. Silent on all ranks but 0.

    All ranks read their losses, evaluate, save and stop after the same steps: note() decides from sums over all ranks.
    """

    def __init__(self, args: argparse.Namespace, device: torch.device, rank: int = 0, world: int = 1) -> None:
        """Take what parse_arguments() has returned."""
        self.args, self.device, self.rank, self.world, self.corpus = args, device, rank, world, args.corpus
        self.dtype, self.autocast, self.weights = precision(args.dtype, device)
        # A run and the checkpoint that it resumes from have to agree in these.
        same = {"seed": args.seed, "global_batch": args.global_batch, "corpus": self.corpus.checksum}
        self.settings = {**vars(args.config), **same}
        if args.workers is None:  # the launchers set OMP_NUM_THREADS to the cores of a rank; on a CPU these are busy
            args.workers = min(4, torch.get_num_threads() - 1) if device.type == "cuda" else 0
        self.state: dict[str, Any] = {"step": 0, "loss": None, "val_loss": None}
        self.losses, self.pending = [], []  # those not yet read are read together: so the device seldom waits
        self.tokens, self.seconds = 0, 0.0  # without the first step, which pays for memory, buckets and kernels
        # This rank's, between its last two looks. At the next look the ranks choose the one after it by their mean.
        self.seconds_per_step = LOOK
        self.save, self.stop = False, False
        # A line that is drawn anew. mpirun gives ranks a terminal even where its own output is a file.
        self.bar = sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' tensors."""
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers

    def start(self, checkpoints: Checkpoints, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Fill model and optimizer from the checkpoint to go on from, or move what is in the way of a new run aside.

        Fails if the ranks find different ones, or if another job is at work there. Says what is about to happen. From
        now on signals do not end the process.
        """
        args, corpus = self.args, self.corpus
        # A minute of patience: a file server learns late that a node is dead.
        holder = occupied(args.out, min(60, args.timeout / 2)) if self.rank == 0 else ""
        if self.total(torch.tensor([float(holder != "")])) > 0:
            fail(f"--out {args.out} is in use by {holder or 'another run'}: give another --out, or wait for its end")
        self.agree("corpus", f"checksum {corpus.checksum}")
        if args.resume:
            self.agree("checkpoints", next((path.name for path in checkpoints.there()), "none"))
            try:
                self.state = checkpoints.load(model, optimizer) or self.state
            except Foreign as error:
                fail(str(error))
            self.agree("checkpoint to start from", f"step {self.state['step']}")
        elif self.rank == 0 and checkpoints.there():
            self.say(f"before  an earlier run is now in {checkpoints.set_aside()}; --resume would have continued it")
        self.first = self.state["step"]
        self.next_look = self.first + 1
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" and self.dtype == "bfloat16" else ""
        peak = next((rate for name, rate in PEAKS if f"{name} " in gpu.replace("-", " ") + " "), math.inf)
        self.mfu_per_speed = model.flops() / (self.world * peak)  # or 0
        if self.rank == 0:  # what a run that died wrote after its checkpoint will come again, and is dropped
            path = Path(args.out, "metrics.jsonl")
            lines = path.read_text().splitlines(keepends=True) if self.first and path.exists() else []
            kept = [line for line in lines if line.endswith("}\n") and json.loads(line)["step"] <= self.first]
            self.file = path.with_suffix(".part").open("w")
            print("".join(kept), end="", file=self.file, flush=True)
            os.replace(self.file.name, path)  # a run that is killed here loses nothing
        left = f": nothing is left of --steps {args.steps}, a larger number continues"
        self.say(
            f"ranks   {self.world} ({self.device.type}, {self.dtype}{', compiled' if args.compile else ''})\n"
            f"model   {sum(p.numel() for p in model.parameters()):,} parameters, {args.config}\n"
            f"corpus  {corpus.name}: {len(corpus.train):,} samples to train on, {len(corpus.validation):,} to validate"
            f"; steps per epoch: {len(corpus.train) // args.global_batch:,}\n"
            f"batch   {args.global_batch} sequences{args.remark} = {self.world} (ranks) x {args.micro_batch} "
            f"(micro batch) x {args.accumulation} (accumulation), {args.global_batch * args.context:,} tokens a step\n"
            f"start   at step {self.first}{left if self.first >= args.steps else ''}"
        )
        self.clock = self.last_save = time.monotonic()
        self.stop_request = Stop(self.rank)

    def say(self, text: str) -> None:
        """Print lines on rank 0, in place of the bar if there is one."""
        if self.rank == 0:
            print(f"\r\033[K{text}" if self.bar else text, flush=True)

    def agree(self, what: str, fact: str) -> None:
        """Fail on all ranks, and tell for each node what it has, unless `fact` is the same on all of them."""
        facts = (torch.arange(self.world) == self.rank) * zlib.crc32(fact.encode())
        if len(set(self.total(facts).tolist())) > 1:
            fail(f"ranks differ in their {what}: {fact} on {socket.gethostname()}. Share --data and --out among nodes")

    def note(self, step: int, loss: torch.Tensor, model: torch.nn.Module) -> None:
        """Keep the loss of a step. Now and then read those of all ranks, evaluate, and decide on `save` and `stop`."""
        self.pending.append(loss)
        if step < self.next_look:
            return
        args, last = self.args, step == self.args.steps
        overdue = time.monotonic() - self.last_save > 60 * (args.save_minutes or math.inf)
        wishes = loss.new_tensor([overdue, self.stop_request.asked(), self.seconds_per_step])
        means = self.total(torch.cat([torch.stack(self.pending), wishes]).double()) / self.world
        *losses, save, stop, seconds_per_step = means.tolist()  # waits for the device
        seconds, tokens = time.monotonic() - self.clock, args.global_batch * args.context * len(losses)
        if self.losses:
            self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self.losses += losses
        self.pending, self.seconds_per_step = [], seconds / len(losses)
        measured, told = self._speed(tokens, seconds)
        for number, mean in enumerate(losses, start=step - len(losses) + 1):
            self._write(number, "loss", mean, lr=learning_rate_at(number, args), **measured)
        if last or step % args.log_every == 0 or step == self.first + 1:
            self.say(f"step {step}/{args.steps}  loss {losses[-1]:.4f}, {told}")
        if last or step % args.eval_every == 0:
            self._write(step, "val_loss", self.evaluate(model))
            self.say(f"step {step}/{args.steps}  validation loss {self.state['val_loss']:.4f}")
        if self.rank == 0 and self.bar:
            bar, left = "#" * (40 * step // args.steps), round((args.steps - step) * seconds_per_step)
            print(f"\r\033[K[{bar:40}] {step}/{args.steps}, {timedelta(seconds=left)} left", end="", flush=True)
        soon = step + max(1, int(LOOK / max(seconds_per_step, 1e-9)))
        often = (args.log_every, args.eval_every, args.save_every)
        self.next_look = min(soon, args.steps, *(step - step % every + every for every in often))
        self.stop = stop > 0 and not last
        # saving: from now on SIGTERM does not end a rank that waits for the one that writes (stop.py).
        self.save = self.stop_request.saving = last or save > 0 or self.stop or step % args.save_every == 0
        self.clock = time.monotonic()

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> float:
        """Return the mean loss over windows spread over the validation text, each computed by one rank.

        A model in parts is gathered by all ranks at once, and so each computes the same number of batches: one that has
        no window left computes another, and does not count it. Nothing is counted twice; sums are added up, not means.
        """
        windows, batch = self.corpus.validation, self.args.micro_batch * self.world
        spread = range(0, len(windows), -(-len(windows) // EVALUATION))
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # of losses, of their number
        model.eval()
        for start in range(0, len(spread), batch):
            mine = list(spread[start : start + batch][self.rank :: self.world])
            with self.autocast:
                losses = model(*(part.to(self.device) for part in windows[mine or [0]]))[: len(mine)]
            sums[0] += losses.double().sum()
            sums[1] += losses.numel()
        model.train()
        return torch.div(*self.total(sums)).item()

    def saved(self) -> None:
        """Note that a checkpoint is there. If the run stops before its end, ask the submit script for a requeue."""
        self.clock = self.last_save = time.monotonic()
        self.save = self.stop_request.saving = False
        if self.stop:
            self.stop_request.obey()  # creates REQUEUE_FILE

    def finish(self) -> None:
        """Say how it went, and write the figures for --json."""
        args, losses, state = self.args, self.losses, self.state
        measured, told = self._speed(self.tokens, self.seconds)
        of_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else of_host
        if state["step"] < args.steps:
            self.say(
                f"stopped at step {state['step']} of {args.steps}, saved in {args.out}; --resume goes on from there"
            )
        elif losses:
            fell = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, validation {state['val_loss']:.4f}"
            self.say(f"done    {fell}, {told}, {memory / 2**30:.1f} GiB on rank 0; see {args.out}")
        # The file of a run that had nothing left to do keeps the figures of the run that did it.
        if args.json and self.rank == 0 and (losses or not Path(args.json).stat().st_size):
            figures = {
                "program": Path(sys.argv[0]).stem, "world_size": self.world, "device": self.device.type,
                "dtype": self.dtype, "global_batch": args.global_batch, "micro_batch": args.micro_batch,
                "accumulation": args.accumulation, "first_step": self.first, "steps": state["step"], "losses": losses,
                "final_loss": state["loss"], "val_loss": state["val_loss"], "peak_memory_bytes": memory, **measured,
            }  # fmt: skip
            Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")

    def _speed(self, tokens: int, seconds: float) -> tuple[dict[str, float | None], str]:
        """Return tokens/s and MFU, None where they are not known, and both in words."""
        speed = tokens / seconds if seconds else 0
        mfu = speed * self.mfu_per_speed
        told = f"{speed:,.0f} tokens/s{f', mfu {mfu:.1%}' if mfu else ''}"
        return {"tokens_per_second": round(speed, 1) or None, "mfu": round(mfu, 4) or None}, told

    def _write(self, step: int, what: str, loss: float, **more: float) -> None:
        """Write a loss. If it is NaN or infinite, fail on all ranks, before a checkpoint of this step is saved."""
        self.state.update({"step": step, what: loss})
        if self.rank == 0:
            print(json.dumps({"step": step, what: loss, **more}), file=self.file, flush=True)
        if not math.isfinite(loss):
            fail(f"{what} is {loss} at step {step}: lower --learning-rate {self.args.learning_rate:g}")
