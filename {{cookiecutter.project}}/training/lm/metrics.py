"""What a run tells: lines of progress, metrics.jsonl, trackers, and --json. Rank 0 alone writes and prints."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import distributed
import torch
from distributed import fail
from memory import peak_memory
from precision import Precision, peak_flops
from schedule import learning_rate_at
from trackers import start_trackers


class Metrics:
    """The losses and the speed of a run.

    Losses stay on the device until log() reads those of several steps at once, so that the device seldom waits.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        state: dict[str, Any],
        model: torch.nn.Module,
        precision: Precision,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Say what is about to happen.

        state: step, loss and validation loss of the checkpoint that the run goes on from. It is updated in place.
        """
        self.args, self.state, self.precision, self.device = args, state, precision, device
        self.rank, self.world_size = rank, world_size
        self.first_step = state["step"]
        self.losses: list[float] = []  # mean of all ranks, of each step
        self.unread: list[torch.Tensor] = []  # this rank's losses since the last log()
        # Without the first step, which pays for memory, buckets and kernels, and without evaluations and checkpoints.
        self.tokens, self.seconds = 0, 0.0
        self.mfu_per_speed = model.flops() / (world_size * peak_flops(precision, device))  # MFU / (tokens/s); or 0
        # A bar that is drawn anew on a terminal. mpirun gives ranks a terminal even where its own output is a file.
        self.bar = sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ
        self.trackers = []
        if rank == 0:
            path = Path(args.out, "metrics.jsonl")
            self.file = open_metrics(path, self.first_step)
            self.trackers = start_trackers(args, self.first_step, path)
        self.say(self.plan(model))
        for tracker in self.trackers:
            self.say(tracker.start_line)
        self.spent: dict[str, float] = {}  # seconds, by what they were spent on
        self.clock = time.monotonic()
        if "START_TIME" in os.environ:  # when the submit script started [s since 1970]
            self.spent["start"] = max(0.0, time.time() - float(os.environ["START_TIME"]))

    def plan(self, model: torch.nn.Module) -> str:
        """Return what is trained, on what and how, in lines."""
        args, corpus = self.args, self.args.corpus
        parameters = sum(parameter.numel() for parameter in model.parameters())
        compiled = ", compiled" if args.compile else ""
        steps_per_epoch = len(corpus.train) // args.global_batch
        samples = f"{len(corpus.train):,} samples to train on, {len(corpus.validation):,} to validate"
        tokens = args.global_batch * args.context
        divided = f"{self.world_size} (ranks) x {args.micro_batch} (micro batch) x {args.accumulation} (accumulation)"
        left = ""
        if self.first_step >= args.steps:
            left = f": nothing is left of --steps {args.steps}, a larger number continues"
        lines = [
            f"ranks   {self.world_size} ({self.device.type}, {self.precision.name}{compiled})",
            f"model   {parameters:,} parameters, {args.config}",
            f"corpus  {corpus.name}: {samples}; steps per epoch: {steps_per_epoch:,}",
            f"batch   {args.global_batch} sequences{args.batch_remark} = {divided}, {tokens:,} tokens a step",
            f"start   at step {self.first_step}{left}",
        ]
        return "\n".join(lines)

    def add(self, loss: torch.Tensor) -> None:
        """Keep the loss of a step, a tensor on the device."""
        self.unread.append(loss)

    def log(self, step: int) -> None:
        """Read the losses since the last log() from all ranks, write and print them. All ranks have to call.

        Fails on all ranks if a loss is no longer finite.
        """
        means = distributed.sum_over_ranks(torch.stack(self.unread).double()) / self.world_size
        losses = means.tolist()  # waits for the device
        seconds = time.monotonic() - self.clock
        tokens = self.args.global_batch * self.args.context * len(losses)
        if self.losses:
            self.tokens += tokens
            self.seconds += seconds
        self.losses += losses
        self.unread = []

        speed = self.speed(tokens, seconds)
        for number, loss in enumerate(losses, start=step - len(losses) + 1):
            self.write(number, "loss", loss, lr=learning_rate_at(number, self.args), **speed)
        self.say(f"step {step}/{self.args.steps}  loss {losses[-1]:.4f}, {speed_in_words(**speed)}")
        self.draw_bar(step, seconds / len(losses))
        self.restart_clock("steps")

    def log_validation(self, step: int, loss: float) -> None:
        """Write and print the validation loss. Fails if it is not finite."""
        self.write(step, "val_loss", loss)
        self.say(f"step {step}/{self.args.steps}  validation loss {loss:.4f}")
        self.restart_clock("evaluation")

    def restart_clock(self, what: str) -> None:
        """Count the time until now for `what`, as "checkpoints", and measure the speed of training from now on."""
        now = time.monotonic()
        self.spent[what] = self.spent.get(what, 0.0) + now - self.clock
        self.clock = now

    def finish(self) -> None:
        """Say how the run went, write the figures for --json, and let the trackers end."""
        args, state = self.args, self.state
        speed = self.speed(self.tokens, self.seconds)
        memory = peak_memory(self.device)
        if self.losses:
            self.say("time    " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.spent.items()))
        if state["step"] < args.steps:
            self.say(
                f"stopped at step {state['step']} of {args.steps}, saved in {args.out}; --resume goes on from there"
            )
        elif self.losses:
            fell = f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}, validation {state['val_loss']:.4f}"
            used = f"{memory / 2**30:.1f} GiB on rank 0"
            self.say(f"done    {fell}, {speed_in_words(**speed)}, {used}; see {args.out}")
        # A run that had nothing left to do keeps the figures of the run before it.
        if args.json and self.rank == 0 and (self.losses or not Path(args.json).stat().st_size):
            figures = {
                "program": Path(sys.argv[0]).stem,
                "world_size": self.world_size,
                "device": self.device.type,
                "dtype": self.precision.name,
                "global_batch": args.global_batch,
                "micro_batch": args.micro_batch,
                "accumulation": args.accumulation,
                "first_step": self.first_step,
                "steps": state["step"],
                "losses": self.losses,
                "final_loss": state["loss"],
                "val_loss": state["val_loss"],
                "peak_memory_bytes": memory,
                **speed,
            }
            Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
        for tracker in self.trackers:
            if line := tracker.finish():
                self.say(line)

    def say(self, text: str) -> None:
        """Print lines on rank 0, in place of the bar if there is one."""
        if self.rank == 0:
            print(f"\r\033[K{text}" if self.bar else text, flush=True)

    def draw_bar(self, step: int, seconds_per_step: float) -> None:
        """Draw how much is done and how long the rest takes, on a terminal."""
        if self.rank == 0 and self.bar:
            bar = "#" * (40 * step // self.args.steps)
            left = timedelta(seconds=round((self.args.steps - step) * seconds_per_step))
            print(f"\r\033[K[{bar:40}] {step}/{self.args.steps}, {left} left", end="", flush=True)

    def speed(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return tokens/s of all ranks and MFU, the part of the GPUs' peak rate that the model uses; None: not known.

        MFU: model FLOPs utilization (PaLM, https://arxiv.org/abs/2204.02311, section 4.1).
        """
        tokens_per_second = tokens / seconds if seconds else 0
        mfu = tokens_per_second * self.mfu_per_speed
        return {"tokens_per_second": round(tokens_per_second, 1) or None, "mfu": round(mfu, 4) or None}

    def write(self, step: int, name: str, loss: float, **others: float | None) -> None:
        """Write a loss of a step. If it is not finite, fail on all ranks, before a checkpoint of this step is saved."""
        self.state.update({"step": step, name: loss})
        is_finite = math.isfinite(loss)
        row = {"step": step, name: loss, **others}
        now = {"steps": self.args.steps, "time": round(time.time(), 1)}  # for who watches: when is it done?
        if self.rank == 0:
            line = {**row, **now, name: loss if is_finite else None}  # JSON has no NaN
            print(json.dumps(line), file=self.file, flush=True)
        for tracker in self.trackers:
            tracker.write(row)
        if not is_finite:
            fail(f"{name} is {loss} at step {step}: lower --learning-rate {self.args.learning_rate:g}")


def open_metrics(path: Path, first_step: int) -> Any:
    """Open metrics.jsonl to add lines to those of the steps up to `first_step`.

    A run that died has written lines after its last checkpoint. These steps come again, so their lines are dropped.
    """
    lines = path.read_text().splitlines(keepends=True) if first_step and path.exists() else []
    kept = [line for line in lines if line.endswith("}\n") and json.loads(line)["step"] <= first_step]
    file = path.with_suffix(".part").open("w")
    file.writelines(kept)
    file.flush()
    os.replace(file.name, path)  # at once: a run that is killed here loses no line
    return file


def speed_in_words(tokens_per_second: float | None, mfu: float | None) -> str:
    """Return the speed for a line of progress."""
    return f"{tokens_per_second or 0:,.0f} tokens/s" + (f", mfu {mfu:.1%}" if mfu else "")
