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
from data import read_corpus
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
EVALUATION = 1024  # windows of the validation text that are used: more costs time, fewer makes the figure noisy
SPEAK_FIRST = 2.0  # seconds that the other ranks of a node leave to the one that prints an error
SAVE_TIMEOUT = 7200  # seconds that ranks wait for the one that writes a checkpoint
AGREE_BYTES = 192  # of a fact and a host name, when ranks compare what they found
LOOK = 5.0  # seconds, or one step if that takes longer, until all ranks know that one was asked to stop
OCCUPIED = 60  # seconds to wait for a folder in use: a file server learns late that a node is dead
Total = Callable[[torch.Tensor], torch.Tensor]
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


def leave(code: int = 0) -> NoReturn:
    """Leave the process group, and end this process: the last call of a program."""
    if dist.is_initialized():  # not after --help
        if code == 0:
            dist.barrier()  # nobody leaves while rank 0 still writes
        dist.destroy_process_group()
        # DDP leaves gloo's threads behind. One that gives back a tensor while Python shuts down aborts the process,
        # though all is done (https://github.com/pytorch/pytorch/issues/190489): so Python does not shut down.
        if not torch.cuda.is_available():
            sys.stdout.flush()
            os._exit(code)
    sys.exit(code)


def fail(message: str) -> NoReturn:
    """Print what is wrong, once per node, and end this process with exit code 2."""
    if _from_launcher("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", default="0") == "0":
        print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    else:  # a launcher ends all ranks as soon as one has failed; let that be the one with the message
        time.sleep(SPEAK_FIRST)
    leave(2)


def _from_launcher(*names: str, default: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


def ranks() -> int:
    """Return the number of ranks that the launcher started, also where they have not been told of each other."""
    return int(_from_launcher("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default="1"))


def writers() -> dist.ProcessGroup:
    """Return a group in which the ranks wait long enough for a large checkpoint on a slow file system."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=SAVE_TIMEOUT))


FLAGS = (  # name, type, default, help; --resume, --compile and those of the model's Config are added
    ("steps", int, 200, "updates of the weights, counted from step 0"),
    ("data", str, None, "text file, or folder of them; else the sources of Python's own library"),
    ("out", str, "runs/train", "folder for checkpoints and metrics"),
    ("json", str, None, "write losses, validation loss and tokens/s into this file too"),
    ("timeout", float, 600.0, "seconds of waiting for a rank"),
    ("global-batch", int, 32, "sequences per step, over all ranks"),
    ("micro-batch", int, None, f"sequences a rank computes at once; else its share, or at most {LARGEST_MICRO}"),
    ("learning-rate", float, 1e-3, "at its peak"),
    ("scale-learning-rate", ["linear", "sqrt"], None, f"by --global-batch / {REFERENCE_BATCH}, or by the root of that"),
    ("decay-steps", int, None, "of the learning rate, else --steps: set it to extend a run"),
    ("seed", int, 0, "of the weights and the order of samples"),
    ("dtype", ["bfloat16", "tf32", "float32", "float64"], None, "of products; else bfloat16 on GPUs that have it"),
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
    of_model = [(name, type(value), value, "of the model") for name, value in asdict(Config()).items()]
    for name, kind, default, what in (*FLAGS, *of_model):
        of_kind = {"choices": kind} if isinstance(kind, list) else {"type": kind, "metavar": kind.__name__.upper()}
        parser.add_argument(f"--{name}", default=default, help=f"{what} (default: {default})", **of_kind)
    again = os.environ.get("RESTART_COUNT", "0") != "0"  # this job was requeued
    resume = "continue from the newest checkpoint in --out, if any (a job that was requeued always does)"
    parser.add_argument("--resume", action="store_true", default=again, help=resume)
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    return parser


def parse_arguments(doc: str, world: int) -> argparse.Namespace:
    """Read the flags and refuse what cannot work for `world` ranks; add config and accumulation."""
    args = flags(doc).parse_args()
    if world == 1 and ranks() > 1:
        fail(f"each of {ranks()} ranks would train the whole: use training/train_ddp.py")
    for name, kind, *_ in FLAGS:
        value = getattr(args, name.replace("-", "_"))
        good = kind not in (int, float) or value is None or (value == 0 and name in ("seed", "workers"))
        if not good and not 0 < value < math.inf:
            fail(f"--{name} {value} has to be above 0, and finite (--seed and --workers may be 0)")
    share = args.global_batch // world
    if args.global_batch % world:
        near = " or ".join(str(n * world) for n in (share, share + 1) if n)
        fail(f"--global-batch {args.global_batch} sequences cannot be shared equally by {world} ranks: choose {near}")
    args.micro_batch = args.micro_batch or max(n for n in range(1, LARGEST_MICRO + 1) if share % n == 0)
    args.accumulation = share // args.micro_batch
    if share % args.micro_batch:
        of = f"{share} sequences that each of {world} ranks gets of --global-batch {args.global_batch}"
        fail(f"--micro-batch {args.micro_batch} does not divide the {of}: choose one that does")
    try:
        args.config = Config(**{name: getattr(args, name) for name in asdict(Config())})
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        fail(str(error) if isinstance(error, ValueError) else f"--out {args.out} cannot be a folder ({error})")
    if args.json and (Path(args.json).is_dir() or not Path(args.json).absolute().parent.is_dir()):
        fail(f"--json {args.json} has to be a file in a folder that is there")
    return args


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


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW, as one fused kernel; matrices are decayed."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=True)


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
    seed = (args.seed + 1_000_003 * step + 7919 * rank) % 2**32
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also formats three stack traces, 0.1 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, args)


class Run:
    """One run of a program on one rank: what it reads, tells and decides. Silent on all ranks but 0.

    The ranks read their losses, evaluate, save and stop after the same steps: they add up what each has to say.
    """

    def __init__(
        self, args: argparse.Namespace, device: torch.device, rank: int = 0, world: int = 1, total: Total = lambda x: x
    ) -> None:
        """Read the corpus, and look whether it is enough. `total` returns the sum of the ranks' tensors."""
        self.args, self.device, self.rank, self.world, self.total = args, device, rank, world, total
        self.dtype, self.autocast, self.weights = precision(args.dtype, device)
        try:
            self.corpus = read_corpus(args.data, args.context)
        except (OSError, ValueError) as error:
            fail(str(error))
        self.samples, self.held_out = len(self.corpus.train), len(self.corpus.validation)
        if self.samples < args.global_batch or not self.held_out:
            has = f"{self.samples:,} samples of {args.context} bytes to train on and {self.held_out:,} to validate"
            fix = f"{args.global_batch} and 1 are needed: add text, or lower --global-batch or --context"
            fail(f"{self.corpus.name} has {has}; {fix}")
        same = {"seed": args.seed, "global_batch": args.global_batch, "corpus": self.corpus.checksum}
        self.settings = {**asdict(args.config), **same}  # of a run and of the checkpoint that it goes on from
        if args.workers is None:  # the launchers set OMP_NUM_THREADS to the cores of a rank; on a CPU these are busy
            args.workers = min(MOST_WORKERS, torch.get_num_threads() - 1) if device.type == "cuda" else 0
        self.state: dict[str, Any] = {"step": 0, "loss": None, "val_loss": None}
        self.pending: list[torch.Tensor] = []  # losses since the last look, read together: so the device seldom waits
        self.losses: list[float] = []
        self.tokens, self.seconds = 0, 0.0  # without the first look, which pays for memory, buckets and kernels
        self.seconds_per_step, self.save, self.stop, self.bar = LOOK, False, False, None

    def start(self, checkpoints: Checkpoints, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Fill model and optimizer from the checkpoint to go on from, or move what is in the way of a new run aside.

        Fails if the ranks find different ones, or if another job is at work there. Says what is about to happen. From
        now on signals do not end the process.
        """
        args, state = self.args, None
        holder = self.gather(occupied(args.out, min(OCCUPIED, args.timeout / 2)) if self.rank == 0 else "")[0]
        if holder:
            fail(f"--out {args.out} is in use by {holder}: give another --out, or wait for the end of that")
        self.agree("corpus", f"checksum {self.corpus.checksum}", "Give --data a path that all nodes share")
        if args.resume:
            shared = f"Put --out {args.out} on a file system that all nodes share"
            self.agree("checkpoints", next((path.name for path in checkpoints.there()), "none"), shared)
            try:
                state = checkpoints.load(model, optimizer)
            except Foreign as error:
                fail(str(error))
            self.agree("checkpoint to start from", f"step {state['step']}" if state else "none", shared)
        elif self.rank == 0 and (aside := checkpoints.set_aside()):
            self.say(f"before  the run that was in {args.out} is now in {aside}; --resume would have continued it")
        self.state = state or self.state
        self.first = self.state["step"]
        self.next_look = self.first + 1
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" and self.dtype == "bfloat16" else ""
        peak = next((rate for name, rate in PEAKS if re.search(rf"{name}\b", gpu)), math.inf)
        self.mfu_per_speed = model.flops() / (self.world * peak)  # or 0
        if self.rank == 0:
            self._open_metrics()
            # mpirun gives ranks a terminal even where its own output is a file.
            if tqdm and sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ:
                self.bar = tqdm(total=args.steps, initial=self.first, unit="step", file=sys.stdout, dynamic_ncols=True)
        left = f": nothing is left of --steps {args.steps}, a larger number continues"
        self.say(
            f"ranks   {self.world} ({self.device.type}, {self.dtype}{', compiled' if args.compile else ''})\n"
            f"model   {sum(p.numel() for p in model.parameters()):,} parameters, {args.config}\n"
            f"corpus  {self.corpus.name}: {self.samples:,} samples to train on, {self.held_out:,} to validate; "
            f"steps per epoch: {self.samples // args.global_batch:,}\n"
            f"batch   {args.global_batch} sequences = {self.world} (ranks) x {args.micro_batch} (micro batch) x "
            f"{args.accumulation} (accumulation), {args.global_batch * args.context:,} tokens a step\n"
            f"start   at step {self.first}{left if self.first >= args.steps else ''}"
        )
        self.clock = self.last_save = time.monotonic()
        self.stop_request = Stop(self.rank)

    def say(self, text: str) -> None:
        """Print lines on rank 0, above the progress bar if there is one."""
        if self.rank == 0:
            (self.bar.write if self.bar else partial(print, flush=True))(text)

    def gather(self, text: str) -> list[str]:
        """Return what the ranks have given, ASCII of up to AGREE_BYTES: each adds its row to a table of zeros."""
        table = torch.zeros(self.world, AGREE_BYTES, dtype=torch.int64)
        table[self.rank] = torch.tensor(list(text.encode()[:AGREE_BYTES].ljust(AGREE_BYTES, b"\0")))
        return [bytes(row).rstrip(b"\0").decode() for row in self.total(table).tolist()]

    def agree(self, what: str, fact: str, fix: str) -> None:
        """Fail on all ranks, naming a host for each, unless `fact` (ASCII, short) is the same on all of them."""
        sides: dict[str, str] = {}
        for rank, told in enumerate(self.gather(f"{fact}\0{socket.gethostname()}")):
            seen, host = told.split("\0")
            sides.setdefault(seen, f"{seen} on {host} (rank {rank})")
        if len(sides) > 1:
            fail(f"the ranks do not have the same {what}: {'; '.join(sides.values())}. {fix}")

    def look(self, step: int, model: torch.nn.Module) -> None:
        """Read the losses over all ranks, evaluate if it is time, and set `save` and `stop` as the ranks decide."""
        args = self.args
        overdue = time.monotonic() - self.last_save > 60 * (args.save_minutes or math.inf)
        wishes = self.pending[0].new_tensor([overdue, self.stop_request.asked(), self.seconds_per_step])
        means = self.total(torch.cat([torch.stack(self.pending), wishes]).double()) / self.world
        *losses, save, stop, seconds_per_step = means.tolist()  # waits for the device
        seconds, tokens = time.monotonic() - self.clock, args.global_batch * args.context * len(losses)
        if self.losses:
            self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self.losses += losses
        self.pending, self.seconds_per_step = [], seconds / len(losses)
        measured, told = self._speed(tokens, seconds)
        for number, loss in enumerate(losses, start=step - len(losses) + 1):
            self._note(number, "loss", loss, lr=learning_rate_at(number, args), **measured)
        if step % args.log_every == 0 or step in (self.first + 1, args.steps):
            self.say(f"step {step}/{args.steps}  loss {losses[-1]:.4f}, {told}")
        if self.bar:
            self.bar.update(len(losses))
        if self._after(step, args.eval_every):
            self._note(step, "val_loss", self.evaluate(model))
            self.say(f"step {step}/{args.steps}  validation loss {self.state['val_loss']:.4f}")
        soon = step + max(1, int(LOOK / max(seconds_per_step, 1e-9)))
        often = (args.log_every, args.eval_every, args.save_every)
        self.next_look = min(soon, args.steps, *(step - step % every + every for every in often))
        self.stop = stop > 0 and step < args.steps
        self.save = save > 0 or self.stop or self._after(step, args.save_every)
        self.clock = time.monotonic()

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> float:
        """Return the mean loss over windows spread over the validation text, each computed by one rank.

        A model in parts needs batches of the same sizes on all ranks: where one has a window fewer than others, it
        computes another and does not count it. So nothing is counted twice, and sums are added up, not means.
        """
        windows, size = self.corpus.validation, self.args.micro_batch
        spread = range(0, len(windows), -(-len(windows) // EVALUATION))
        mine = [*spread, *[0] * (-len(spread) % self.world)][self.rank :: self.world]
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # of losses, of their number
        model.eval()
        for start in range(0, len(mine), size):
            numbers = mine[start : start + size]
            counted = max(0, min(len(numbers), len(spread[self.rank :: self.world]) - start))
            with self.autocast:
                losses = model(*(part.to(self.device) for part in windows[numbers])).double()
            sums[0] += losses.view(len(numbers), -1).mean(1)[:counted].sum()
            sums[1] += counted
        model.train()
        sums = self.total(sums)
        return (sums[0] / sums[1]).item()

    def saved(self) -> None:
        """Note that there is a checkpoint; if the run shall stop, tell the submit script."""
        self.clock = self.last_save = time.monotonic()
        if self.stop:
            self.stop_request.obey()

    def finish(self) -> None:
        """Say how it went, and write the figures for --json."""
        args, losses, state = self.args, self.losses, self.state
        measured, told = self._speed(self.tokens, self.seconds)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.device)
        if self.bar:
            self.bar.close()
            self.bar = None
        if state["step"] < args.steps:
            where = f"{state['step']} of {args.steps}, and saved in {args.out}"
            self.say(f"stopped at step {where}; --resume goes on from there")
        elif losses:
            fell = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, validation {state['val_loss']:.4f}"
            self.say(f"done    {fell}, {told}, {memory / 2**30:.1f} GiB on rank 0; see {args.out}")
        if args.json and self.rank == 0:
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

    def _after(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.args.steps

    def _note(self, step: int, what: str, loss: float, **more: float) -> None:
        """Note a loss; fail, on all ranks alike, if it is none: before a checkpoint from which none comes again."""
        self.state.update({"step": step, what: loss})
        if self.rank == 0:
            self.file.write(json.dumps({"step": step, what: loss, **more}) + "\n")
            self.file.flush()
        if not math.isfinite(loss):
            kind = "validation loss" if what == "val_loss" else "loss"
            fail(f"the {kind} is {loss} at step {step}: lower --learning-rate {self.args.learning_rate:g}")

    def _open_metrics(self) -> None:
        """Open metrics.jsonl; what a run that died wrote after its checkpoint will come again, and is dropped."""
        path = Path(self.args.out, "metrics.jsonl")
        lines = path.read_text().splitlines(keepends=True) if self.first and path.exists() else []
        kept = [line for line in lines if line.endswith("}\n") and json.loads(line)["step"] <= self.first]
        path.with_suffix(".tmp").write_text("".join(kept))
        os.replace(path.with_suffix(".tmp"), path)
        self.file = path.open("a")
