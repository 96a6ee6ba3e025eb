"""How a run is asked to save and to end: training/stop.py in processes of its own, without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import FOREVER, PATIENCE

TRAINING = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}" / "training"
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
    assert process.communicate(timeout=PATIENCE)[0] == "saved\n"
    assert process.returncode == 0


def test_the_file_is_for_rank_0_which_tells_the_others(start, tmp_path):
    text = "s = stop.Stop(int(os.environ['R']))\nassert not s.asked()\n"
    text += f"print('ready', flush=True)\n{AWAIT}s.obey()"
    files = {"STOP_FILE": str(tmp_path / "stop"), "REQUEUE_FILE": str(tmp_path / "requeue")}
    first, second = (start(text, R=str(rank), **files) for rank in (0, 1))
    (tmp_path / "stop").touch()
    assert first.wait(PATIENCE) == 0
    assert (tmp_path / "requeue").exists()
    (tmp_path / "requeue").unlink()
    time.sleep(0.3)
    assert second.poll() is None  # it does not look at the disk
    second.send_signal(signal.SIGUSR1)
    assert second.wait(PATIENCE) == 0
    assert not (tmp_path / "requeue").exists()  # and leaves it to rank 0 to say that all is saved


def test_the_clock(start):
    process = start(f"s = stop.Stop(1)\nprint('ready', flush=True)\n{AWAIT}", STOP_TIME=str(time.time() + 0.5))
    assert process.wait(PATIENCE) == 0
    process = start("s = stop.Stop(0)\nprint('ready', flush=True)\nassert not s.asked()\ns.obey()")
    assert process.wait(PATIENCE) == 0  # none of the variables is set


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 0)])
def test_a_rank_that_waits_for_a_dead_one_is_ended(start, number, code):
    """Where a collective does not return, Python does not come to the handler; a long computation in C is like that."""
    wait = "hashlib.pbkdf2_hmac('sha512', b'', b'', 2_000_000)"
    process = start(f"import hashlib\ns = stop.Stop(0)\nprint('ready', flush=True)\n{wait}")
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(PATIENCE) == code


def test_a_process_that_reads_data_dies_of_the_signal_and_its_rank_does_not_notice(start):
    text = "s = stop.Stop(0)\nready, tell = os.pipe()\nchild = os.fork()\n"
    text += f"if not child:\n    print('ready', flush=True)\n    os.write(tell, b'.')\n    time.sleep({FOREVER})\n"
    text += "os.read(ready, 1)\nos.kill(child, signal.SIGTERM)\n"
    text += "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15\ntime.sleep(0.5)\nassert not s.asked()"
    assert start(text).wait(PATIENCE) == 0


# A clock that the test sets; looks after 40 s, then 3 s and 2 s later, and has saved 7 s after the last look.
LOOKS = """\
import json, types
now = [1000.0]
stop.time = types.SimpleNamespace(time=lambda: now[0], sleep=time.sleep)
s = stop.Stop(int(os.environ["R"]))
seen = []
for seconds, look in ((40, s.asked), (2.5, s.asked), (2, s.asked), (7, s.obey)):
    now[0] += seconds
    look()
    seen.append(open("times").read() if os.path.exists("times") else None)
json.dump(seen, open("seen", "w"))
print("ready", flush=True)
"""
FILES = {"TIMES_FILE": "times", "REQUEUE_FILE": "requeue", "START_TIME": "1000"}


def test_the_times_that_a_run_takes(start, tmp_path):
    first, then = "start 40\n", "start 40\nlook 3\n"
    start(LOOKS, R="0", **FILES)
    assert json.loads((tmp_path / "seen").read_text()) == [first, then, then, f"{then}save 7\n"]


@pytest.mark.parametrize(
    "environment", [{**FILES, "R": "1"}, {**FILES, "R": "0", "TIMES_FILE": "no/folder"}, {"R": "0"}]
)
def test_times_that_nobody_writes(start, environment, tmp_path):
    """Rank 0 alone writes them; where it cannot, or is not told to, the run goes on."""
    process = start(LOOKS, **environment)
    assert process.wait(PATIENCE) == 0
    assert json.loads((tmp_path / "seen").read_text()) == 4 * [None]
