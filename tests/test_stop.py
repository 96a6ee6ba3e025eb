"""How a run is asked to save and to end: training/stop.py in processes of its own, without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAINING = Path(__file__).resolve().parent.parent / "{{cookiecutter.project}}" / "training"
HEAD = "import os, sys, time, signal, stop\nstop.STUCK = 0.3\n"
AWAIT = "while not s.asked(): time.sleep(0.01)\n"


@pytest.fixture
def start(tmp_path):
    """Start a program that imports stop; its standard output is a pipe, on which it says when it is ready."""
    started = []

    def run(text, **environment):
        words = [sys.executable, "-B", "-c", HEAD + text]
        seen = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TRAINING), **environment}
        process = subprocess.Popen(words, cwd=tmp_path, env=seen, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_is_noted_and_ends_nothing(start, rank, number):
    process = start(f"s = stop.Stop({rank})\nprint('ready', flush=True)\n{AWAIT}print('saved')")
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == "saved\n"
    assert process.returncode == 0


def test_the_file_is_for_rank_0_which_tells_the_others(start, tmp_path):
    text = "s = stop.Stop(int(os.environ['R']))\nassert not s.asked()\n"
    text += f"print('ready', flush=True)\n{AWAIT}s.obey()"
    files = {"STOP_FILE": str(tmp_path / "stop"), "REQUEUE_FILE": str(tmp_path / "requeue")}
    first, second = (start(text, R=str(rank), **files) for rank in (0, 1))
    (tmp_path / "stop").touch()
    assert first.wait(10) == 0
    assert (tmp_path / "requeue").exists()
    (tmp_path / "requeue").unlink()
    time.sleep(0.3)
    assert second.poll() is None  # it does not look at the disk
    second.send_signal(signal.SIGUSR1)
    assert second.wait(10) == 0
    assert not (tmp_path / "requeue").exists()  # and leaves it to rank 0 to say that all is saved


def test_the_clock(start):
    process = start(f"s = stop.Stop(1)\nprint('ready', flush=True)\n{AWAIT}", STOP_TIME=str(time.time() + 0.5))
    assert process.wait(10) == 0
    process = start("s = stop.Stop(0)\nprint('ready', flush=True)\nassert not s.asked()\ns.obey()")
    assert process.wait(10) == 0  # none of the variables is set


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 0)])
def test_a_rank_that_waits_for_a_dead_one_is_ended(start, number, code):
    """Where a collective does not return, Python does not come to the handler; a long computation in C is like that."""
    wait = "hashlib.pbkdf2_hmac('sha512', b'', b'', 2_000_000)"
    process = start(f"import hashlib\ns = stop.Stop(0)\nprint('ready', flush=True)\n{wait}")
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(30) == code


def test_a_process_that_reads_data_dies_of_the_signal_and_its_rank_does_not_notice(start):
    text = "s = stop.Stop(0)\nchild = os.fork()\n"
    text += "if not child:\n    print('ready', flush=True)\n    time.sleep(30)\n"
    text += "time.sleep(0.3)\nos.kill(child, signal.SIGTERM)\n"
    text += "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15\ntime.sleep(0.5)\nassert not s.asked()"
    assert start(text).wait(10) == 0
