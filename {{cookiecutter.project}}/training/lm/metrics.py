"""What a run tells: lines of progress, metrics.jsonl, trackers and --profile; and the validation loss.

A tracker is a function of the flags and `rows`, which returns two: log(step, values), and end(). A run that resumes
repeats the steps after its last checkpoint. `rows` are the lines of metrics.jsonl before them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.profiler import profile, schedule
from torch.utils.data import Dataset, default_collate

from lm import setup
from lm.schedule import learning_rate_at

MOST_SAMPLES = 1024  # of the validation data: more cost time, fewer make the loss noisy
HEARTBEAT_SECONDS = 5.0


class Metrics:
    """The losses and the speed of a run. Rank 0 alone writes and prints.

    Losses stay on the device until log() reads those of several steps at once, so that the device seldom waits.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        state: dict[str, Any],
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Open the files. `state`: where the run begins, see Checkpoints.start(). It is updated in place."""
        self.args, self.state, self.device, self.rank, self.world_size = args, state, device, rank, world_size
        self.first_step = state["step"]
        self.unread: list[torch.Tensor] = []  # this rank's losses since the last log()
        self.trackers = {}
        if rank == 0:
            self.file, rows = open_metrics(Path(args.out, "metrics.jsonl"), self.first_step)
            for name in TRACKERS:
                if getattr(args, name):
                    self.start_tracker(name, rows)
        self.clock = self.heartbeat = time.monotonic()

    def start_tracker(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Start the tracker of a flag. Fail if it does not start."""
        try:
            self.trackers[name] = TRACKERS[name](self.args, rows)
        except Exception as error:  # noqa: BLE001 - each package has errors of its own
            reason = " ".join(str(error).split()).rstrip(".")
            needs = f"It needs the package {name}. Without internet, see training/README.md"
            setup.fail(f"--{name} does not start: {reason}. {needs}")

    def print_plan(self, model: torch.nn.Module, samples: int, validation_samples: int, data_name: str) -> None:
        """Print what is trained, on what and how."""
        args = self.args
        parameters = sum(parameter.numel() for parameter in model.parameters())
        compiled = ", compiled" if args.compile else ""
        accumulation = args.global_batch // self.world_size // args.micro_batch
        divided = f"{self.world_size} (ranks) x {args.micro_batch} (micro batch) x {accumulation} (accumulation)"
        data = f"{samples:,} samples to train on, {validation_samples:,} to validate"
        left = "" if self.first_step < args.steps else f": nothing is left of --steps {args.steps}"
        self.say(f"ranks   {self.world_size} ({self.device.type}, {args.dtype}{compiled})")
        self.say(f"model   {parameters:,} parameters, {args.config}")
        self.say(f"corpus  {data_name}: {data}; steps per epoch: {samples // args.global_batch:,}")
        self.say(f"batch   {args.global_batch} sequences = {divided}")
        self.say(f"start   at step {self.first_step}{left}")

    def profiled(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches. Rank 0 records the steps of --profile, also if the run stops in the middle of them."""
        if not self.args.profile or self.rank > 0:
            yield from batches
            return
        first, last = self.args.profile
        path = Path(self.args.out, f"trace-rank0-steps{first}-{last}.json.gz")

        def write(profiler: profile) -> None:
            profiler.export_chrome_trace(str(path))
            self.say(f"profile {path}: open it in https://ui.perfetto.dev")

        # Add record_shapes=True for the shapes of tensors, with_stack=True for the lines of Python. Both cost time.
        profiler = profile(
            schedule=schedule(wait=first - 1, warmup=1, active=last - first + 1, repeat=1),
            on_trace_ready=write,
        )
        profiler.step_num = self.first_step + 1
        profiler.current_action = profiler.schedule(profiler.step_num)  # was that of step 0
        with profiler:
            for batch in batches:
                yield batch
                profiler.step()

    def add(self, loss: torch.Tensor) -> None:
        """Keep the loss of a step, a tensor on the device, and say that the run is alive."""
        self.unread.append(loss)
        heartbeat = os.environ.get("HEARTBEAT_FILE")  # of extras/hangs, which ends a job that stands still
        if heartbeat and self.rank == 0 and time.monotonic() >= self.heartbeat:
            Path(heartbeat).touch()
            self.heartbeat = time.monotonic() + HEARTBEAT_SECONDS

    def log(self, step: int) -> None:
        """Read the losses since the last log() from all ranks, write and print them. All ranks have to call.

        Fails on all ranks if a loss is no longer finite.
        """
        means = setup.sum_over_ranks(torch.stack(self.unread).double()) / self.world_size
        losses = means.tolist()  # waits for the device
        self.unread = []
        seconds = time.monotonic() - self.clock
        tokens = self.args.global_batch * getattr(self.args, "context", 1) * len(losses)  # or samples
        speed = round(tokens / seconds, 1) if seconds else None
        for number, loss in enumerate(losses, start=step - len(losses) + 1):
            self.write(number, "loss", loss, lr=learning_rate_at(number, self.args), tokens_per_second=speed)
        self.say(f"step {step}/{self.args.steps}  loss {losses[-1]:.4f}, {speed or 0:,.0f} tokens/s")
        self.restart_clock()

    def log_validation(self, step: int, loss: float) -> None:
        """Write and print the validation loss. Fails if it is not finite."""
        self.write(step, "val_loss", loss)
        self.say(f"step {step}/{self.args.steps}  validation loss {loss:.4f}")
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from now on: neither evaluations nor checkpoints are training."""
        self.clock = time.monotonic()

    def finish(self) -> None:
        """Say how the run ended, and let trackers end."""
        args, state = self.args, self.state
        if state["step"] < args.steps:
            stopped = f"stopped at step {state['step']} of {args.steps}"
            self.say(f"{stopped}, saved in {args.out}; --resume goes on from there")
        elif self.first_step < args.steps:
            self.say(f"done    loss {state['loss']:.4f}, validation {state['val_loss']:.4f}; see {args.out}")
        for tracker, (_, end) in self.trackers.items():
            try:
                end()
            except Exception as error:  # noqa: BLE001 - the training is done
                self.say(f"warning: --{tracker} may lack the last steps: {error}")

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def write(self, step: int, name: str, loss: float, **others: float | None) -> None:
        """Write a loss of a step. If it is not finite, fail on all ranks, before a checkpoint of this step is saved."""
        self.state.update({"step": step, name: loss})
        is_finite = math.isfinite(loss)
        row = {"step": step, name: loss if is_finite else None, **others}  # JSON has no NaN
        if self.rank == 0:
            # Who watches the run wants to know when it is done.
            print(json.dumps({**row, "steps": self.args.steps, "time": round(time.time(), 1)}), file=self.file)
            self.file.flush()
        for tracker, (log, _) in list(self.trackers.items()):
            try:
                log(step, numbers(row))
            except Exception as error:  # noqa: BLE001 - a server that is away must not end the training
                self.say(f"warning: --{tracker} is off from step {step} on: {error}")
                del self.trackers[tracker]
        if not is_finite:
            setup.fail(f"{name} is {loss} at step {step}: lower --learning-rate {self.args.learning_rate:g}")


def open_metrics(path: Path, first_step: int) -> tuple[TextIO, list[dict[str, Any]]]:
    """Open metrics.jsonl to add lines to those of the steps up to `first_step`; return these lines, too.

    A run that died has written lines after its last checkpoint. These steps come again, so their lines are dropped.
    """
    lines = path.read_text(errors="replace").splitlines(keepends=True) if first_step and path.exists() else []
    kept = []
    for line in lines:
        with suppress(ValueError):  # the line in which it died: cut short, or zeros if the node died
            if json.loads(line)["step"] <= first_step and line.endswith("\n"):
                kept.append(line)
    file = path.with_suffix(".part").open("w")
    file.writelines(kept)
    file.flush()
    os.replace(file.name, path)  # at once: a run that is killed here loses no line
    return file, [json.loads(line) for line in kept]


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    samples: Dataset,
    args: argparse.Namespace,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
) -> float:
    """Return the mean loss over samples spread over the validation data, each computed by one rank.

    A sharded model is gathered by all ranks at once. So every rank computes the same number of batches. A rank that has
    no sample left computes the first one, and does not count it. The ranks add up sums of losses, and not means,
    because their numbers of samples differ.
    """
    spacing = -(-len(samples) // MOST_SAMPLES)  # rounded up
    numbers_of_samples = range(0, len(samples), spacing)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    in_training = [module for module in model.modules() if module.training]  # the model may keep others in eval mode
    model.eval()
    for start in range(0, len(numbers_of_samples), args.micro_batch * world_size):
        mine = numbers_of_samples[start : start + args.micro_batch * world_size][rank::world_size]
        batch = default_collate([samples[number] for number in mine or numbers_of_samples[:1]])
        with torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = model(*(tensor.to(device) for tensor in batch))
        loss_sum += len(mine) * loss.double()
    for module in in_training:
        module.training = True
    return setup.sum_over_ranks(loss_sum).item() / len(numbers_of_samples)


def tensorboard(args: argparse.Namespace, rows: list[dict[str, Any]]) -> tuple[Callable, Callable]:
    """Write event files into the folder tensorboard of --out. TensorBoard forgets the steps that are repeated."""
    from torch.utils.tensorboard import SummaryWriter

    last_step = rows[-1]["step"] if rows else 0
    writer = SummaryWriter(str(Path(args.out, "tensorboard")), purge_step=last_step + 1)

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # onto the disk: the checkpoint of this step comes later

    return log, writer.close


def wandb(args: argparse.Namespace, rows: list[dict[str, Any]]) -> tuple[Callable, Callable]:
    """Go on with the run of the same --out. With WANDB_MODE=offline each attempt has a folder, with the whole run."""
    import wandb

    file = Path(args.out, "wandb.run-id")
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:12])
    run = wandb.init(project=args.wandb, dir=args.out, id=file.read_text(), resume="allow", config=vars(args))

    def log(step: int, values: dict[str, float]) -> None:
        if step >= run.starting_step:  # else W&B's server has it from an earlier attempt
            run.log(values, step=step)

    for row in rows:
        log(row["step"], numbers(row))
    return log, run.finish


def mlflow(args: argparse.Namespace, _rows: list[dict[str, Any]]) -> tuple[Callable, Callable]:
    """Go on with the run of the same --out. The server has a repeated step twice, with equal values."""
    import mlflow

    mlflow.set_experiment(args.mlflow)
    file = Path(args.out, "mlflow.run-id")
    known = file.read_text() if file.exists() else None
    run = mlflow.start_run(run_id=known, run_name=Path(args.out).name)
    if not known:
        file.write_text(run.info.run_id)
        mlflow.log_params(vars(args))
    return lambda step, values: mlflow.log_metrics(values, step=step), mlflow.end_run


TRACKERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}  # by their flags


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return what a line of metrics.jsonl measures, without what was not finite."""
    others = ("step", "steps", "time")
    return {name: value for name, value in row.items() if name not in others and value is not None}
