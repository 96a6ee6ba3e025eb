"""How a run is asked to save and to end: training/stop.py in processes of its own, without torch.

And what the submit script makes of the times that it has measured, on a real Slurm.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from baking import bake
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


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("project"), site="slurm", nodes="1", gpus_per_node="1")


LIMITS = {"short": 5, "long": 60}  # minutes


@pytest.mark.parametrize(
    ("limit", "times", "reserve"),
    [
        ("short", None, 30),  # the first attempt: seconds that are guessed
        ("short", "", 30),
        ("long", None, 150),
        ("long", "start 40\nlook 20\n", 150),  # it did not come to save
        ("long", "start 40\nlook 20\nsave 1", 150),  # torn
        ("long", "start 4x\nlook 20\nsave 08\n\0\n", 150),
        ("long", "start 40\nlook 20\nsave 30\n", 150),  # it has time enough
        ("long", "start 40\nlook 20\nsave 300\n", 490),
        ("long", "start 40\nlook 20000\nsave 2\n", 1800),  # it stood still: half of the time is left to it
        ("short", "start 40\nlook 2\nsave 2\n", 30),
        ("short", "start 250\nlook 2\nsave 2\n", 16),  # else it would have less time for its steps
        ("short", "start 40\nlook 20\nsave 40\n", 100),
    ],
)
def test_a_later_attempt_knows_what_the_first_one_took(limit, times, reserve, cluster, project, tmp_path):
    """In an allocation, where another attempt of its job has left its times."""
    (tmp_path / "told.py").write_text("import os\nprint('STOP_TIME', os.environ['STOP_TIME'], flush=True)\n")
    if times is not None:
        (tmp_path / "times").write_text(times)
    script = f"logs='{project}/logs'; mkdir -p $logs/$SLURM_JOB_ID.7; cp times $logs/$SLURM_JOB_ID.7/ 2>/dev/null; "
    script += f"bash '{project}/slurm/submit_multinode.sh' told.py; "
    script += "squeue --noheader --job=$SLURM_JOB_ID --format=%e"
    environment = {"PYTHON": sys.executable, "LAUNCHER": "srun", "NPROC_PER_NODE": "1", "PREFLIGHT": "0"}
    command = ["salloc", f"--time={LIMITS[limit]}", "--nodes=1", "--gpus-per-node=1", "bash", "-c", script]
    done = cluster.run(*command, cwd=tmp_path, env=environment)
    stop = int(re.search(r"STOP_TIME (\d+)", done.stdout)[1])
    end = datetime.strptime(done.stdout.split()[-1], "%Y-%m-%dT%H:%M:%S").astimezone().timestamp()
    assert abs(end - stop - reserve) <= 2, done.stdout
