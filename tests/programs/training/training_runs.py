"""What the tests of the training example share: its programs run on some ranks, and what a run leaves is compared.

An import of torch costs seconds. So one rank that needs nothing special runs in this process, and all others are forked
from a server that has imported torch already; torchrun starts a few.

The fixtures are in conftest.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from waiting import PATIENCE

with suppress(ImportError):  # the test files skip themselves
    import torch

TRAINING = Path(__file__).resolve().parents[3] / "{{cookiecutter.project}}" / "training"
LM = ("arguments", "checkpoints", "data", "metrics", "model", "schedule", "setup", "stop")
MODULES = (*(f"lm.{name}" for name in LM), "train_single", "train_ddp", "train_fsdp", "sample")
# Which program writes, on two ranks, the checkpoints that another one reads: any reads those of any other.
WRITER = {"train_single": "train_ddp", "train_ddp": "train_fsdp", "train_fsdp": "train_fsdp"}
STEPS, HALF = 40, 20
TO_HALF = ("--steps", HALF, "--save-every", 10)
SHAPE = ["--context", "32", "--layers", "2", "--heads", "2", "--width", "32", "--dtype", "float64"]
TINY = [*SHAPE, "--steps", STEPS, "--decay-steps", STEPS, "--global-batch", 16, "--eval-every", 10, "--log-every", 7]
EXACT, EXACT_COMPILED = 1e-14, 1e-12  # between orders of adding the same numbers in float64
EXACT_FLOAT32 = 1e-5
DEADLINE = PATIENCE  # for a launch
NO_LAUNCHER = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}}
# Byte code beside the sources would become part of every project that is written from here.
ENVIRONMENT = {**NO_LAUNCHER, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
FORKING = multiprocessing.get_context("forkserver")


class Done(NamedTuple):
    """What ranks have left."""

    codes: list[int]
    out: str
    err: str


def be_a_rank(program: str, words: list[str], environment: dict[str, str], log: str) -> None:
    """Do in a forked process what it does that a launcher starts."""
    for descriptor, name in enumerate(STREAMS, start=1):
        os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


STREAMS = ("out", "err")


class Launch:
    """Ranks that are running; the store through which they meet is in this process, as in torchrun's."""

    def __init__(self, log, ranks, program, *words, **more):
        self.log, self.store = log, torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.store.port, "WORLD_SIZE": ranks}
        shared |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        self.processes = []
        for rank in range(ranks):
            environment = {**shared, "RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
            environment = {name: str(value) for name, value in {**environment, **more}.items()}
            arguments = (str(program), [str(word) for word in words], environment, f"{log}.{rank}")
            self.processes.append(FORKING.Process(target=be_a_rank, args=arguments))
            self.processes[-1].start()

    def kill(self):
        for process in self.processes:
            process.kill()

    def wait(self, seconds=DEADLINE):
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        self.kill()
        for process in self.processes:
            process.join()
        return Done([process.exitcode for process in self.processes], *map(self._read, STREAMS))

    def _read(self, stream):
        """Return what all ranks have written to `stream`."""
        return "".join(Path(f"{self.log}.{rank}.{stream}").read_text() for rank in range(len(self.processes)))


class Trained(NamedTuple):
    """A run that went well."""

    folder: Path
    figures: dict[str, Any]
    out: str
    err: str


def write_driver(path, change):
    """Write a program that changes something and then is the program in its arguments. `rank` is known to it."""
    lines = (
        "import os, runpy, sys, time",
        "sys.argv.pop(0)",
        "sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as of a program that Python starts",
        "rank = int(os.environ.get('RANK', 0))",
        change,
        "runpy.run_path(sys.argv[0], run_name='__main__')",
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def metrics(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def figures_of(folder, first_step):
    """Return the losses of the steps after `first_step`, where a run began, and its last figures."""
    rows = metrics(folder)
    losses = [row for row in rows if "loss" in row]
    return {
        "first_step": first_step,
        "steps": losses[-1]["step"],
        "losses": [row["loss"] for row in losses if row["step"] > first_step],
        "final_loss": losses[-1]["loss"],
        "val_loss": [row["val_loss"] for row in rows if "val_loss" in row][-1:],
    }


def started_at(out):
    """Return the step at which a run says that it starts."""
    return int(re.search(r"start   at step (\d+)", out)[1])


def largest_difference(some, others):
    assert len(some) == len(others)
    return max(abs(a - b) for a, b in zip(some, others))


def metrics_to_compare(folder, last):
    """Return the metrics up to step `last`, without an evaluation at a step where longer runs have none."""
    return [line for line in metrics(folder) if line["step"] <= last and ("loss" in line or line["step"] % 10 == 0)]


def assert_same(some, others, tolerance=EXACT, last=STEPS):
    """Compare the metrics of two runs up to step `last`, line by line; a run's last step is evaluated in any case."""
    some, others = metrics_to_compare(some, last), metrics_to_compare(others, last)
    assert len([line for line in some if "loss" in line]) == last
    assert [(sorted(line), line["step"]) for line in some] == [(sorted(line), line["step"]) for line in others]
    for name in ("loss", "lr", "val_loss"):
        mine = [line[name] for line in some if name in line]
        theirs = [line[name] for line in others if name in line]
        assert largest_difference(mine, theirs) <= tolerance, name


def assert_continues(run, first_step, whole, last=STEPS):
    """Compare a run that was resumed after `first_step` with one that had no pause."""
    assert run.figures["first_step"] == first_step
    assert largest_difference(run.figures["losses"], whole.figures["losses"][first_step:last]) <= EXACT
    assert_same(run.folder, whole.folder, last=last)


def await_steps(folder, steps, launch):
    """Wait until a run has noted so many."""
    end = time.monotonic() + DEADLINE
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < steps:
        assert launch.processes[0].is_alive(), "ended by itself"
        assert time.monotonic() < end, "no progress"
        time.sleep(0.002)


def checkpoints(folder):
    return sorted(path.name.partition(".")[0][-2:] for path in folder.glob("checkpoint-*.pt"))


def damage(path, kind):
    """Do to a checkpoint what disks, people and other programs do."""
    if kind == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif kind == "cut short":  # torch says EINVAL
        os.truncate(path, 10_000)
    elif kind == "empty":
        os.truncate(path, 0)
    elif kind == "of another program":
        torch.save([torch.zeros(2)], path)
