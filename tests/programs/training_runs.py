"""What the tests of the training example share: its programs run on some ranks, and what a run leaves is compared.

An import of torch costs seconds. So one rank that needs nothing special runs in this process, and all others are forked
from a server that has imported torch already; torchrun starts a few.

A test file imports the fixtures that it uses, and those that these use: without `alone` it has the GPUs of the machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import runpy
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import waiting
from waiting import PATIENCE

torch = pytest.importorskip("torch")

TRAINING = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}" / "training"
ROOMS = ("model", "data", "distributed", "precision", "schedule", "checkpoint", "arguments", "optimizer", "stop")
ROOMS += ("memory", "control", "evaluation", "metrics", "resume", "tracing", "trackers")
MODULES = (*ROOMS, "train_single", "train_ddp", "train_fsdp", "sample")
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


@pytest.fixture(scope="module")
def modules():
    """The programs and what they import, as they import it, and afterwards gone."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(TRAINING)
    patch.setattr(sys, "dont_write_bytecode", True)
    for name in MODULES:
        sys.modules.pop(name, None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a tiny model more only wait for each other
    yield argparse.Namespace(**{name: __import__(name) for name in MODULES})
    torch.set_num_threads(threads)
    sys.modules["stop"].Stop._forget()  # of the programs that ran in this process
    for name in MODULES:
        del sys.modules[name]
    patch.undo()


@pytest.fixture(scope="module")
def server(modules):
    """What ranks are forked from: it has imported all, and done nothing."""
    from multiprocessing import forkserver

    # torch imports these two late, in the first optimizer and the first checkpoint, a second and more in every rank
    late = ["torch._dynamo", "fsspec"]
    FORKING.set_forkserver_preload(["torch.distributed.checkpoint.state_dict", *late, *MODULES, Path(__file__).stem])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE"):
            patch.setenv(name, ENVIRONMENT[name])
        patch.setenv("PYTHONPATH", f"{TRAINING}:{Path(__file__).parent}:{Path(waiting.__file__).parent}")
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def alone(monkeypatch, modules):
    """No trace of a launcher, no GPU."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 21,700 bytes: 33 windows of 32 to validate, which 2 or 4 ranks cannot share equally."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    source = b"".join((TRAINING / f"{name}.py").read_bytes() for name in MODULES)
    path.write_bytes(source[:21_700].ljust(21_700))
    return path


# How programs are run


class Done(NamedTuple):
    """What ranks have left."""

    codes: list[int]
    out: str
    err: str


def be_a_rank(program: str, words: list[str], environment: dict[str, str], log: str) -> None:
    """Do in a forked process what it does that a launcher starts."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed = __import__("distributed")
    # No launcher is here to end a rank that leaves the message to another: it leaves by itself.
    distributed.time = argparse.Namespace(sleep=lambda _: distributed.shutdown(2))
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


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
        texts = ("".join(Path(f"{self.log}.{r}.{k}").read_text() for r in range(len(self.processes))) for k in STREAMS)
        return Done([process.exitcode for process in self.processes], *texts)


STREAMS = ("out", "err")


class Trained(NamedTuple):
    """A run that went well."""

    folder: Path
    figures: dict[str, Any]
    out: str
    err: str


@pytest.fixture(scope="module")
def train(server, text):
    """Run a program on some ranks to its good end."""

    def run(folder, ranks, program, *words, seconds=DEADLINE, driver=None):
        programs = [TRAINING / f"{program}.py"] if driver is None else [driver, TRAINING / f"{program}.py"]
        words = [*TINY, "--data", text, "--out", folder, "--json", f"{folder}.json", *words]
        done = Launch(folder, ranks, *programs, *words).wait(seconds)
        assert done.codes == [0] * ranks, done.err
        return Trained(folder, json.loads(Path(f"{folder}.json").read_text()), done.out, done.err)

    return run


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """The same run once for all tests, which do not change what it leaves."""
    return functools.lru_cache(maxsize=None)(
        lambda program, ranks, *words: train(tmp_path_factory.mktemp(program) / "run", ranks, program, *words)
    )


@pytest.fixture
def whole(trained):
    """What all other runs are compared with: one process, no accumulation, 40 steps without a pause."""
    return trained("train_single", 1)


@pytest.fixture
def half(trained, tmp_path):
    """A copy of what two ranks leave that stop after half of the steps: checkpoints at 10 and 20."""

    def copy(program):
        left = trained(program, 2, *TO_HALF)
        shutil.copytree(left.folder, tmp_path / "run", symlinks=True)
        return tmp_path / "run"

    return copy


@pytest.fixture
def solo(modules, monkeypatch, tmp_path):
    """Run train_single in this process; return its figures."""

    def run(*words):
        words = ["--json", tmp_path / "solo.json", "--out", tmp_path / "run", *words]
        monkeypatch.setattr(sys, "argv", [str(TRAINING / "train_single.py"), *map(str, words)])
        modules.train_single.main()
        return json.loads((tmp_path / "solo.json").read_text())

    return run


@pytest.fixture
def refused(solo, capsys):
    """Run train_single, which must end with exit code 2; return its message, without the name in front."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            solo(*words)
        assert end.value.code == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("train_single.py: error: ")
        return line.partition("error: ")[2]

    return run


@pytest.fixture
def driver(tmp_path):
    """Write a program that changes something and then is the program in its arguments."""

    def write(change):
        path = tmp_path / "driver.py"
        lines = ("import os, runpy, sys, time", "sys.argv.pop(0)", "rank = int(os.environ.get('RANK', 0))", change)
        path.write_text("\n".join((*lines, "runpy.run_path(sys.argv[0], run_name='__main__')")) + "\n")
        return path

    return write


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def largest_difference(some, others):
    assert len(some) == len(others)
    return max(abs(a - b) for a, b in zip(some, others))


def assert_same(some, others, tolerance=EXACT, last=STEPS):
    """Compare the metrics of two runs up to step `last`, line by line; a run's last step is evaluated in any case."""
    some, others = (
        [line for line in metrics(run) if line["step"] <= last and ("loss" in line or line["step"] % 10 == 0)]
        for run in (some, others)
    )
    assert sum("loss" in line for line in some) == last
    assert [(sorted(line), line["step"]) for line in some] == [(sorted(line), line["step"]) for line in others]
    for name in ("loss", "lr", "val_loss"):
        mine, theirs = ([line[name] for line in lines if name in line] for lines in (some, others))
        assert largest_difference(mine, theirs) <= tolerance, name


def checkpoints(folder):
    return sorted(path.name.partition(".")[0][-2:] for path in folder.glob("checkpoint-*"))


def damage(path, kind):
    """Do to a checkpoint what disks, people and other programs do."""
    if kind == "cut":
        part = sorted(path.glob("*.distcp"))[-1] if path.is_dir() else path
        os.truncate(part, part.stat().st_size // 2)
    elif kind == "empty":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.touch() if path.suffix else path.mkdir()
    elif kind == "of another program":
        torch.save([torch.zeros(2)], path)
    else:
        (path / kind).unlink()
