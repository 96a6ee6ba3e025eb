"""Fixtures of the tests of the training example: its programs, run on some ranks. See training_runs.py."""

from __future__ import annotations

import argparse
import functools
import importlib
import shutil
import signal
import sys
from pathlib import Path

import pytest
import training_runs
import waiting
from training_runs import (
    DEADLINE,
    ENVIRONMENT,
    FORKING,
    MODULES,
    STEPS,
    TINY,
    TO_HALF,
    TRAINING,
    Launch,
    Trained,
    figures_of,
    started_at,
    write_driver,
)


@pytest.fixture(scope="package")
def modules():
    """The programs and what they import, as they import it, and afterwards gone."""
    import torch

    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(TRAINING)
    patch.setattr(sys, "dont_write_bytecode", True)
    for name in ("lm", *MODULES):
        sys.modules.pop(name, None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a tiny model more only wait for each other
    yield argparse.Namespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in MODULES})
    torch.set_num_threads(threads)
    for number in sys.modules["lm.stop"].SIGNALS:  # of the programs that ran in this process
        signal.signal(number, signal.SIG_DFL)
    for name in ("lm", *MODULES):
        del sys.modules[name]
    patch.undo()


@pytest.fixture(scope="package")
def server(modules):
    """What ranks are forked from: it has imported all, and done nothing."""
    from multiprocessing import forkserver

    late = "torch._dynamo"  # which torch imports in the first optimizer, a second and more in every rank
    FORKING.set_forkserver_preload([late, *MODULES, training_runs.__name__])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE"):
            patch.setenv(name, ENVIRONMENT[name])
        patch.setenv("PYTHONPATH", f"{TRAINING}:{Path(training_runs.__file__).parent}:{Path(waiting.__file__).parent}")
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def no_launcher_and_no_gpu(monkeypatch, modules):
    """Take away every trace of a launcher, and the machine's GPUs."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(scope="package")
def text(tmp_path_factory):
    """A file of 21,700 bytes: 33 samples of 32 to validate, which 2 or 4 ranks cannot share equally."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    source = b"".join(path.read_bytes() for path in sorted(TRAINING.glob("lm/*.py")))
    path.write_bytes(source[:21_700].ljust(21_700))
    return path


@pytest.fixture(scope="package")
def train(server, text):
    """Run a program on some ranks to its good end."""

    def run(folder, ranks, program, *words, seconds=DEADLINE, driver=None):
        programs = [TRAINING / f"{program}.py"] if driver is None else [driver, TRAINING / f"{program}.py"]
        words = [*TINY, "--data", text, "--out", folder, *words]
        done = Launch(folder, ranks, *programs, *words).wait(seconds)
        assert done.codes == [0] * ranks, done.err
        return Trained(folder, figures_of(folder, started_at(done.out)), done.out, done.err)

    return run


@pytest.fixture(scope="package")
def trained(train, tmp_path_factory):
    """The same run once for all tests, which do not change what it leaves."""

    @functools.cache
    def run(program, ranks, *words):
        return train(tmp_path_factory.mktemp(program) / "run", ranks, program, *words)

    return run


@pytest.fixture
def whole(trained):
    """What all other runs are compared with: one process, no accumulation, 40 steps without a pause."""
    return trained("train_single", 1)


@pytest.fixture
def whole_to(whole, train, tmp_path):
    """Return a run without a pause that has at least so many steps."""

    def run(steps):
        if steps <= STEPS:
            return whole
        return train(tmp_path / "whole", 1, "train_single", "--steps", steps)

    return run


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
    began, start = [], modules.checkpoints.Checkpoints.start

    def note(self, *given):
        state = start(self, *given)
        began.append((self.folder, state["step"]))
        return state

    monkeypatch.setattr(modules.checkpoints.Checkpoints, "start", note)

    def run(*words):
        words = ["--out", tmp_path / "run", *words]
        monkeypatch.setattr(sys, "argv", [str(TRAINING / "train_single.py"), *map(str, words)])
        modules.train_single.main()
        return figures_of(*began[-1])

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
    return functools.partial(write_driver, tmp_path / "driver.py")
