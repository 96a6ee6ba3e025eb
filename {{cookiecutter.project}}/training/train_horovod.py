"""Train the same model with Horovod: what train_ddp.py does, over MPI; compare the two files to see what differs.

    python training/train_horovod.py                                             one process
    mpirun -np 2 --bind-to none python training/train_horovod.py                 two
    LAUNCHER=mpirun-ranks sbatch slurm/submit_multinode.sh training/train_horovod.py    one per GPU of the job

Needs Horovod: slurm/build_horovod.sh builds it. Same flags, files and losses as train_ddp.py, and either continues the
other's checkpoint. The learning rate is not multiplied by the number of ranks, as is often done with Horovod, because
the batch of a step (--global-batch) does not grow with it. Exit code 2: something that you asked for cannot be done,
and the message says what would be.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any, Callable, NoReturn

import torch
import torch.nn.functional as F
from data import Corpus, count, cut, read_corpus, step_order
from model import GPT, Config
from torch.distributed.elastic.multiprocessing.errors import record

try:
    import horovod.torch as hvd
except (ImportError, OSError) as error:  # not built, or for another torch or MPI
    hvd, why_not = None, str(error).strip().partition("\n")[0]

BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1  # AdamW; biases and gains are not decayed
CLIP = 1.0  # largest norm of the gradient
WARM_UP, LAST = 0.1, 0.1  # the learning rate rises over this part of the steps, and falls to this part of its peak
LARGEST_MICRO = 32  # sequences that a rank computes at once, unless --micro-batch says otherwise
EVALUATION = 1024  # windows of the validation text that are used: more costs time, fewer makes the figure noisy
CHECKPOINT = "checkpoint.pt"
FORMAT = "train_ddp.py, 1"  # stands in each checkpoint: what does not have it was written by something else
SPEAK_FIRST = 2.0  # seconds that the other ranks of a node leave to the one that prints an error
AGREE_BYTES = 192  # of a fact and a host name, when ranks compare what they found
STALL = 60  # seconds without a rank after which Horovod says which one it waits for
MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # what those who start MPI ranks set
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")  # who knows best comes first


def join(timeout: float) -> torch.device:
    """Join the ranks that mpirun (or srun with PMI) started; return this process's device.

    Horovod asks MPI and nothing else: RANK and WORLD_SIZE would not reach it. Without MPI every process would be alone
    and train the whole by itself. A collective that a peer never joins fails after about `timeout` seconds.
    """
    if hvd is None:
        fail(f"Horovod cannot be used ({why_not}): build it with 'INSTALL_HOROVOD=1 bash slurm/build_venv.sh'")
    started = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    by_mpi = any(name in os.environ for name in MPI_RANK)
    if by_mpi or started == 1:
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(math.ceil(min(STALL, timeout))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(math.ceil(timeout)))
        for name in () if by_mpi else ("SLURM_STEPID", "SLURM_STEP_ID"):  # or Open MPI would ask srun for its rank
            os.environ.pop(name, None)
        hvd.init()
    if started > 1 and not (by_mpi and hvd.size() > 1):
        fail(f"{started} processes were started, but not by an MPI that Horovod knows: set LAUNCHER=mpirun-ranks")
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a single visible GPU is this rank's own, given by the scheduler
        device = torch.device("cuda", hvd.local_rank() if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    return device


def fail(message: str) -> NoReturn:
    """Print what is wrong, once per node, and end this process with exit code 2."""
    joined = hvd is not None and hvd.is_initialized()
    told = next((os.environ[name] for name in LOCAL_RANK if os.environ.get(name)), "0")
    if (hvd.local_rank() if joined else int(told)) == 0:
        print(f"{Path(__file__).name}: error: {message}", file=sys.stderr, flush=True)
    else:  # a launcher ends all ranks as soon as one has failed; let that be the one with the message
        time.sleep(SPEAK_FIRST)
    if joined:
        hvd.shutdown()
    sys.exit(2)


def agree(what: str, fact: str, device: torch.device, fix: str) -> None:
    """Fail on all ranks, naming the hosts, unless `fact` (ASCII, short) is the same on each of them."""
    # A tensor of bytes, because allgather_object needs NumPy.
    mine = f"{fact}\0{socket.gethostname()}".encode()[:AGREE_BYTES].ljust(AGREE_BYTES, b"\0")
    packed = torch.tensor(list(mine), dtype=torch.uint8, device=device)
    gathered = hvd.allgather(packed[None], name=what)
    sides: dict[str, dict[str, list[str]]] = {}  # fact -> host -> ranks
    for rank, row in enumerate(gathered):
        seen, host = bytes(row.tolist()).rstrip(b"\0").decode().split("\0")
        sides.setdefault(seen, {}).setdefault(host, []).append(str(rank))
    if len(sides) > 1:
        told = []
        for seen, hosts in sides.items():
            named = [f"{host} (rank {', '.join(ranks)})" for host, ranks in hosts.items()]
            told.append(f"{seen} on {', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}")
        fail(f"the ranks do not have the same {what}: {'; '.join(told)}. {fix}")


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW, as one fused kernel where this torch has one for the device; matrices are decayed."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=True)
    except RuntimeError:  # on the CPU before torch 2.4
        return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS)


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """Return the learning rate of step 0, 1, …: a linear rise, then half a cosine down to LAST of the peak."""
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return peak * (step + 1) / rise
    done = min(1.0, (step - rise) / max(1, steps - rise))
    return peak * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done)))


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    micro_batch: int,
    autocast: AbstractContextManager,
) -> torch.Tensor:
    """Make one update from this rank's share of the batch, [sequences, context]; return the share's mean loss.

    Horovod averages each gradient over the ranks as soon as backward_passes_per_step passes have added to it, while the
    backward pass of the last micro batch still runs. Every micro batch has the same size, so the mean of their means is
    the mean.
    """
    optimizer.zero_grad()
    mean_loss = torch.zeros((), device=tokens.device)
    parts = list(zip(tokens.split(micro_batch), targets.split(micro_batch)))
    for inputs, wanted in parts:
        with autocast:
            loss = F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()) / len(parts)
        loss.backward()
        mean_loss = mean_loss + loss.detach()
    optimizer.synchronize()  # the averages are there: what is clipped has to be the whole gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with optimizer.skip_synchronize():
        optimizer.step()
    return mean_loss


def over_ranks(losses: list[torch.Tensor]) -> list[float]:
    """Return the means over all ranks of a list of scalars, in one all-reduce; it also waits for their steps."""
    return hvd.allreduce(torch.stack(losses).double(), name="losses", op=hvd.Average).tolist()


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, text: torch.Tensor, context: int, size: int, autocast: AbstractContextManager
) -> float:
    """Return the mean loss over up to EVALUATION windows spread over `text`, each computed by one rank, `size` at once.

    Rank r takes windows r, r + world, …, none twice: shares may differ by one, so sums are reduced and not means.
    """
    device = next(model.parameters()).device
    windows = count(text, context)
    mine = torch.arange(0, windows, -(-windows // EVALUATION))[hvd.rank() :: hvd.size()]
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, of tokens
    model.eval()
    for start in range(0, len(mine), size):
        tokens, targets = (part.to(device) for part in cut(text, mine[start : start + size], context))
        with autocast:
            losses = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        sums += torch.stack([losses.double().sum(), torch.tensor(losses.numel(), dtype=torch.float64, device=device)])
    model.train()
    sums = hvd.allreduce(sums, name="evaluation", op=hvd.Sum)
    return (sums[0] / sums[1]).item()


def replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a new file, such that `path` is at any moment either the old one or the whole new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # or the new name may survive a crash of the node and the content not
    os.replace(temporary, path)


def load_checkpoint(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint; fail if it cannot be read, or was trained with other `settings`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # weights_only: a file cannot run code
    except Exception as error:  # a torn file fails in many ways (zip, pickle, end of file)
        reason = str(error).strip().partition("\n")[0][:120]
        fail(
            f"{path} cannot be read ({type(error).__name__}: {reason}): it is torn, or no checkpoint. "
            "Put a good copy in its place, or start from step 0 without --resume"
        )
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        fail(f"{path} was not written by this program ({FORMAT}): give another --out, or start without --resume")
    if state["settings"] != settings:
        other = [
            f"{name} is {state['settings'].get(name)} there and {value} here"
            for name, value in settings.items()
            if state["settings"].get(name) != value
        ]
        fail(f"{path} belongs to another run: {'; '.join(other)}. Use its values, or give another --out")
    return state


class Recorder:
    """What a run tells: metrics.jsonl, a line of progress, the losses for --json. Silent on all ranks but 0."""

    def __init__(self, path: Path, rank: int, args: argparse.Namespace, start: int) -> None:
        """Open `path`. What a run that died wrote after its checkpoint, step `start`, will come again: drop it."""
        self.speaks, self.steps, self.tokens_per_step = rank == 0, args.steps, args.global_batch * args.context
        self.losses: list[float] = []
        self.tokens, self.seconds = 0, 0.0  # without the first step, which pays for memory, buckets and kernels
        # mpirun gives ranks a terminal even where its own output is a file.
        self.terminal, self.line_open = sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ, False
        if self.speaks:
            kept = ""
            for line in path.read_text().splitlines() if start and path.exists() else []:
                try:
                    kept += line + "\n" if json.loads(line)["step"] <= start else ""
                except (ValueError, TypeError, KeyError):  # the line that it died in
                    break
            replace(path, lambda file: file.write(kept.encode()))
            self.file = path.open("a")

    def say(self, text: str) -> None:
        """Print a line on rank 0, below a line of progress if there is one."""
        if self.speaks:
            print("\n" * self.line_open + text, flush=True)
            self.line_open = False

    def trained(self, step: int, losses: list[float], rates: list[float], seconds: float) -> None:
        """Note losses and learning rates of the steps up to `step` (1, 2, …), which together took `seconds`."""
        if self.losses:
            self.tokens, self.seconds = self.tokens + self.tokens_per_step * len(losses), self.seconds + seconds
        self.losses += losses
        speed = self.tokens_per_step * len(losses) / seconds
        for number, (loss, rate) in enumerate(zip(losses, rates), start=step - len(losses) + 1):
            self._write({"step": number, "loss": loss, "lr": rate, "tokens_per_second": round(speed, 1)})
        text = f"{self._step(step)}  loss {losses[-1]:.4f}  lr {rates[-1]:.2e}  {speed:11,.0f} tokens/s"
        if self.speaks and self.terminal:
            print(f"\r{text}\x1b[K", end="", flush=True)  # the code clears what is left of a longer line
            self.line_open = True
        else:
            self.say(text)

    def evaluated(self, step: int, loss: float) -> None:
        """Note the loss on the validation text after `step`."""
        self._write({"step": step, "val_loss": loss})
        self.say(f"{self._step(step)}  validation loss {loss:.4f}")

    def finished(self, validation: float, out: str) -> float | None:
        """Say how it went; return the mean speed [tokens/s], evaluation and checkpoints not counted."""
        speed = self.tokens / self.seconds if self.seconds else None
        if self.losses:
            told = f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}, validation {validation:.4f}"
            self.say(f"done    {told}{f', {speed:,.0f} tokens/s' if speed else ''}; see {out}")
        return speed

    def _step(self, step: int) -> str:
        return f"step {step:{len(str(self.steps))}}/{self.steps}"

    def _write(self, line: dict[str, Any]) -> None:
        if self.speaks:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def train(
    args: argparse.Namespace, corpus: Corpus, settings: dict[str, Any], start: dict | None, device: torch.device
) -> dict[str, Any]:
    """Train from `start` (a checkpoint, or None) to args.steps; return the figures for --json."""
    rank, world = hvd.rank(), hvd.size()
    config = Config(**{name: settings[name] for name in asdict(Config())})
    dtype = args.dtype or default_dtype(device)
    autocast = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    share = args.global_batch // world
    micro = args.micro_batch or max(n for n in range(1, min(share, LARGEST_MICRO) + 1) if share % n == 0)
    at_once = args.micro_batch or LARGEST_MICRO  # in evaluation, where it makes no difference to the result

    torch.manual_seed(args.seed)  # equal weights everywhere; from here on nothing draws from this generator
    model = GPT(config).to(device, torch.float64 if dtype == "float64" else torch.float32)
    # The optimizer is wrapped while it is new: wrapping one drops the moments that it has.
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(model, args.learning_rate),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=share // micro,
    )
    state = {"format": FORMAT, "settings": settings, "step": 0, "loss": None, "val_loss": None}
    if start:
        model.load_state_dict(start["model"])
        optimizer.load_state_dict(start["optimizer"])
        state = {name: start[name] for name in state}
        start.clear()  # the second copy of the weights
        # Never for a new one: it has no state, so that Horovod would make a step to get some, and AdamW decay weights.
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    first, windows = state["step"], count(corpus.train, config.context)
    note = Recorder(Path(args.out, "metrics.jsonl"), rank, args, first)
    note.say(
        f"ranks   {world} ({device.type}, {dtype})\n"
        f"model   {sum(p.numel() for p in model.parameters()):,} parameters (layers {config.layers}, "
        f"heads {config.heads}, width {config.width}, context {config.context})\n"
        f"corpus  {corpus.name}: {len(corpus.train):,} bytes to train on, {len(corpus.validation):,} to validate; "
        f"steps per epoch: {windows // args.global_batch:,}\n"
        f"batch   {args.global_batch} sequences = {world} (ranks) x {micro} (micro batch) x {share // micro} "
        f"(accumulation), {args.global_batch * config.context:,} tokens a step\n"
        f"start   {where_from(args, first)}"
    )
    losses, rates = [], []  # of the steps since the last line: read together, so that the GPU is seldom waited for
    clock = time.perf_counter()
    for step in range(first, args.steps):
        mine = step_order(step, windows, args.global_batch, args.seed)[rank::world]
        tokens, targets = (part.to(device) for part in cut(corpus.train, mine, config.context))
        rates.append(learning_rate_at(step, args.decay_steps or args.steps, args.learning_rate))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        losses.append(train_step(model, optimizer, tokens, targets, micro, autocast))

        done = step + 1
        evaluate_now = done % args.eval_every == 0 or done == args.steps
        save_now = done % args.save_every == 0 or done == args.steps
        if not (evaluate_now or save_now or step == first or done % args.log_every == 0):
            continue
        means = over_ranks(losses)
        note.trained(done, means, rates, time.perf_counter() - clock)
        losses, rates = [], []
        if not math.isfinite(means[-1]):  # on all ranks alike; the checkpoint on the disk is older, and good
            note.say("")
            fail(f"the loss is {means[-1]} at step {done}: lower --learning-rate {args.learning_rate:g}")
        state.update(step=done, loss=means[-1])
        if evaluate_now:
            state["val_loss"] = evaluate(model, corpus.validation, config.context, at_once, autocast)
            note.evaluated(done, state["val_loss"])
        if save_now and rank == 0:
            whole = {**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            replace(Path(args.out, CHECKPOINT), partial(torch.save, whole))
        clock = time.perf_counter()

    speed = note.finished(state["val_loss"], args.out)
    return {
        "program": "train_horovod",
        "world_size": world,
        "device": device.type,
        "dtype": dtype,
        "global_batch": args.global_batch,
        "micro_batch": micro,
        "accumulation": share // micro,
        "first_step": first,
        "steps": state["step"],
        "losses": note.losses,  # of the steps after first_step
        "final_loss": state["loss"],
        "val_loss": state["val_loss"],
        "tokens_per_second": speed,
    }


def where_from(args: argparse.Namespace, first: int) -> str:
    """Return in words where the run starts, and what becomes of an earlier one."""
    checkpoint = Path(args.out, CHECKPOINT)
    if first >= args.steps:
        return f"{checkpoint} is at step {first}: nothing is left of --steps {args.steps}, a larger number continues"
    if first:
        return f"at step {first}, from {checkpoint}"
    if args.resume:
        return f"at step 0, there is no {checkpoint} yet"
    return f"at step 0{f'; {checkpoint} will be overwritten (--resume continues it)' if checkpoint.exists() else ''}"


def default_dtype(device: torch.device) -> str:
    """Return bfloat16 where the hardware multiplies it, else float32."""
    return "bfloat16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "float32"


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


def parse_arguments() -> argparse.Namespace:
    """Read the flags and refuse what cannot work, before any rank waits for another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # one message per node, without the usage
    add, n, positive = partial(parser.add_argument, metavar="N"), number(int, 1), number(float, above=True)
    add("--steps", type=n, default=200, help="updates of the weights, counted from step 0 (default: %(default)s)")
    add("--data", metavar="PATH", help="text file, or folder of them (default: the sources of Python's own library)")
    add("--out", metavar="DIR", default="runs/train", help="for checkpoint and metrics (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue from DIR/checkpoint.pt if there is one")
    add("--json", metavar="FILE", help="write losses, validation loss and tokens/s into this file too")
    add("--timeout", type=positive, default=600, metavar="SECONDS", help="of waiting for a rank (default: %(default)s)")
    add("--global-batch", type=n, default=32, help="sequences per step, over all ranks (default: %(default)s)")
    add("--micro-batch", type=n, help=f"sequences a rank computes at once (default: its share, if <= {LARGEST_MICRO})")
    add("--learning-rate", type=positive, default=3e-3, metavar="X", help="at its peak (default: %(default)s)")
    add(
        "--decay-steps",
        type=n,
        help=f"steps until it is down to {LAST:g} of that (default: --steps; set it to extend a run)",
    )
    add("--seed", type=number(int), default=0, help="of the weights and the order of samples (default: %(default)s)")
    kinds = "bfloat16 keeps weights in float32; float64 is for comparisons (default: bfloat16 on GPUs that have it)"
    add("--dtype", metavar="TYPE", choices=["float32", "float64", "bfloat16"], help=kinds)
    add("--eval-every", type=n, default=100, help="steps; the last one also (default: %(default)s)")
    add("--save-every", type=n, default=100, help="steps; the last one also (default: %(default)s)")
    add("--log-every", type=n, default=10, help="steps per line of progress (default: %(default)s)")
    for name, value in asdict(Config()).items():
        if name != "vocabulary":
            add(f"--{name}", type=n, default=value, help="of the model (default: %(default)s)")
    args = parser.parse_args()

    args.device = join(args.timeout)  # before the rest is checked: only Horovod knows the number of ranks
    world = hvd.size()
    if args.global_batch % world:
        below = args.global_batch // world * world
        near = " or ".join(str(n) for n in (below, below + world) if n)
        fail(f"--global-batch {args.global_batch} sequences cannot be shared equally by {world} ranks: choose {near}")
    share = args.global_batch // world
    if args.micro_batch and share % args.micro_batch:
        fits = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
        fail(
            f"--micro-batch {args.micro_batch} does not divide the {share} sequences that each of {world} ranks gets "
            f"of --global-batch {args.global_batch}: choose one of {fits}"
        )
    if args.width % args.heads:
        fits = args.width // args.heads * args.heads or args.heads
        fail(f"--width {args.width} is no multiple of --heads {args.heads}: choose --width {fits}")
    if Path(args.out).exists() and not Path(args.out).is_dir():
        fail(f"--out {args.out} is a file: name a folder")
    if args.json and not Path(args.json).resolve().parent.is_dir():
        fail(f"--json {args.json}: there is no folder {Path(args.json).resolve().parent}; make it first")
    return args


@record
def main() -> None:
    """Join the others, check everything, then train."""
    args = parse_arguments()
    try:
        corpus = read_corpus(args.data)
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        fail(str(error))
    size = len(corpus.train) + len(corpus.validation)
    if count(corpus.train, args.context) < args.global_batch or not count(corpus.validation, args.context):
        needed = max(20 * args.global_batch * args.context // 19, 20 * args.context + 19) + 1
        fail(
            f"{corpus.name} has {size:,} bytes; a batch of {args.global_batch} x {args.context} bytes and something to "
            f"validate need {needed:,}: add text, or lower --global-batch or --context"
        )
    settings = {name: getattr(args, name, value) for name, value in asdict(Config()).items()}
    settings.update(seed=args.seed, global_batch=args.global_batch, corpus=corpus.checksum)
    checkpoint = Path(args.out, CHECKPOINT)
    start = load_checkpoint(checkpoint, settings) if args.resume and checkpoint.exists() else None

    rank, device = hvd.rank(), args.device
    agree("corpus", f"checksum {corpus.checksum}", device, "Give --data a path that all nodes share")
    found = f"step {start['step']}" if start else "none"
    agree("checkpoint to start from", found, device, f"Put --out {args.out} on a file system that all nodes share")
    figures = train(args, corpus, settings, start, device)
    if args.json and rank == 0:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    hvd.barrier()  # nobody leaves while rank 0 still writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
