"""What the tests of slurm/doctor.py share: the program as a module, fixtures that ask it about a text or a job,
and what runs print that go well or fail.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from baking import TEMPLATE, bake
from two_nodes import ANSWERS
from waiting import PATIENCE

# What a run prints as long as all is well.
GOOD = """\
2026-11-21 17:20:27 training/train_ddp.py on 2 node(s), meeting at node1:10002
preflight: 2 node(s) fit (0.3 s)
[node1:0] [W1121 17:20:31.214 socket.cpp:767] [c10d] The client socket cannot be initialized to connect to \
[node1]:10002 (errno: 97 - Address family not supported by protocol).
[node1:0] x.py:1: UserWarning: Failed to initialize NumPy: No module named 'numpy'
[node1:0] before  the run that was in runs/train is now in runs/train.1; --resume would have continued it
[node1:0] step 100/200  loss 2.31  killed 0  out of memory 0  timeout 600 s  errors 0
"""

PROGRAM = TEMPLATE / "slurm/doctor.py"
spec = importlib.util.spec_from_file_location("doctor", PROGRAM)
DOCTOR = importlib.util.module_from_spec(spec)
spec.loader.exec_module(DOCTOR)
LOGS, LAUNCHER_REPORTS, KNOWN = sys.modules["logs"], sys.modules["launchers"], sys.modules["known_causes"]
BY_WAITING = list(sys.modules["causes"].BY_WAITING.values())
CAUSES = list(dict.fromkeys(KNOWN.BY_SLURM + KNOWN.BY_STARTER + KNOWN.BY_RANK + BY_WAITING))  # one is in two tables

# What the job prints behind the doctor's report.
REPORT_ENDS = "2026-11-21 17:20:40 srun ended with exit code 1. To ask again, run python3 slurm/doctor.py 12\n"

TRACEBACK = "Traceback (most recent call last):\n"
CANCELLED = "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37"


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project, in a folder with a space in its name."""
    return bake(tmp_path_factory.mktemp("a b") / "slurm", **ANSWERS, extras="hangs,mpi")


@pytest.fixture
def doctor(project, tmp_path):
    """Calls doctor.py, `within` a job or outside, where scontrol and sacct say what they are told to."""

    def call(*arguments, cwd=tmp_path, within="", **answers):
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        for name in ("scontrol", "sacct"):
            (tools / name).write_text(f"#!/bin/sh\nprintf %s '{answers.get(name, '')}'\n")
            (tools / name).chmod(0o755)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "LANG": "C.UTF-8", "SLURM_JOB_ID": within}
        command = [sys.executable, project / "slurm/doctor.py", *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=PATIENCE)

    return call


@pytest.fixture
def ask_job(doctor):
    """Calls doctor.py as `doctor` does, and returns its answer as JSON."""

    def ask_job(*arguments, **more):
        done = doctor("--json", *arguments, **more)
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    return ask_job


@pytest.fixture
def read(tmp_path, monkeypatch, capsysbinary):
    """Returns exit code and report on a text. In this process: of an output alone doctor.py asks no other program."""

    def read(text):
        (tmp_path / "my job-12.out").write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PWD", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["slurm/doctor.py", "my job-12.out"])
        code = DOCTOR.main()
        said = capsysbinary.readouterr()
        assert not said.err, said.err
        return code, said.out.decode(errors="replace")

    return read


@pytest.fixture
def ask(read, monkeypatch, capsysbinary):
    """Returns what the doctor says of a text, as JSON."""

    def ask(text):
        read(text)
        monkeypatch.setattr(sys, "argv", ["slurm/doctor.py", "--json", "my job-12.out"])
        DOCTOR.main()
        return json.loads(capsysbinary.readouterr().out)

    return ask


def told(answer):
    """Return how the first rank failed, its number, and the name of the cause; "" if none is known."""
    return answer["way"], answer["rank"], answer["causes"][0]["name"] if answer["causes"] else ""


def write_logs(run, texts, per_node=2, inner=""):
    """Write the stderr.log of ranks into the folder of an attempt; `inner` are the folders of torchrun."""
    for rank, text in texts.items():
        node = rank // per_node
        log = run / f"node{node}-node{node + 1}" / inner / str(rank % per_node) / "stderr.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)


# ---- lines and errors ------------------------------------------------------------------------------------------------

OTHER = "PermissionError: [Errno 13] Permission denied: '/root/.cache/x'; going on without a cache"
PEERS = "RuntimeError: [pair.cc:553] Connection closed by peer [10.77.0.12]:23942. This is typically caused by a remote"

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.77.0.12]:23942. This is typically caused by"

TERMINATE = "{0}terminate called after throwing an instance of 'c10::Error'\n{0}  what():  Connection reset by peer\n"


def labelled(label, text):
    """Return lines with the label of a rank."""
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def lines_of(*texts):
    return [LOGS.labelled(number, text, "x.out") for number, text in enumerate(texts, 1)]


def failing(words, code=1):
    """What a job printed of which rank 3 ended with an exit code, and said something before."""
    end = f"launch/spawn.py on node2: rank 3 ended with exit code {code}\n"
    return GOOD + labelled("[node2:3] ", words) + end


def traceback(error, label="", depth=2):
    lines = ["Traceback (most recent call last):", *['  File "x.py", line 1, in f', "    f()"] * depth, error]
    return "".join(f"{label}{line}\n" for line in lines)


# ---- what launchers print when a rank fails --------------------------------------------------------------------------


def torchrun_output(before, end="-9 (pid: 56)", after="Signal 9 (SIGKILL) received by PID 56", words=""):
    """What a job under torchrun printed when rank 3 of 4 was killed (Slurm 22.05, torch 2.13)."""
    table = "=" * 60 + "\nprogram.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60
    table += "\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_17:20:35\n  host      : node2\n"
    table += (
        f"  rank      : 3 (local_rank: 1)\n  exitcode  : {end}\n  error_file: <N/A>\n  traceback : {after}\n" + "=" * 60
    )
    api = "E1121 17:20:35.0 40 site-packages/torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: "
    return (
        GOOD
        + labelled("[node2:3] ", before)
        + labelled("[node2:3] ", words)
        + f"{api}{end.split()[0]}) local_rank: 1 (pid: 56) of binary: /usr/bin/python3\n"
        + traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + f"{table}\nsrun: error: node2: task 1: Exited with exit code 1\nsrun: Terminating StepId=12.0\n"
        + f"{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("[node1:0] ", traceback(PEERS))
        + "srun: error: node1: task 0: Terminated\nsrun: Force Terminated StepId=12.0\n"
    )


def srun_output(before, end="Killed", words=""):
    """The same under srun, with a label before each line; the other ranks are killed when they do not end."""
    return (
        GOOD
        + labelled("3: ", before)
        + labelled("3: ", words)
        + f"srun: error: node2: task 3: {end}\nsrun: Terminating StepId=12.0\n"
        + f"{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("0: ", traceback(PEERS))
        + "srun: error: node1: tasks 0-1: Killed\nsrun: error: node2: task 2: Killed\n"
    )


def spawn_output(before, end="was ended by signal 9", code=137, words=""):
    """The same under launch/spawn.py."""
    return (
        GOOD
        + labelled("[node2:3] ", before)
        + labelled("[node2:3] ", words)
        + f"launch/spawn.py on node2: rank 3 {end}\nsrun: error: node2: task 1: Exited with exit code {code}\n"
        + f"srun: Terminating StepId=12.0\n{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("[node1:0] ", traceback(PEERS))
        + "launch/spawn.py on node1: rank 0 was ended by signal 15\n"
        + "srun: error: node1: task 0: Exited with exit code 143\n"
    )


def mpirun_output(before):
    """The same under mpirun (Open MPI 4.1), which gives no labels."""
    line = "-" * 74 + "\n"
    return (
        GOOD.replace("[node1:0] ", "")
        + before
        + "\n"
        + line
        + "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job "
        + f"has been aborted.\n{line}{line}"
        + f"mpirun noticed that process rank 3 with PID 0 on node node2 exited on signal 9 (Killed).\n{line}"
    )


LAUNCHERS = {"torchrun": torchrun_output, "srun": srun_output, "spawn": spawn_output, "mpirun": mpirun_output}

EXITS = {
    "torchrun": lambda words: torchrun_output("", "3 (pid: 56)", "To enable traceback see: https://pytorch.org", words),
    "srun": lambda words: srun_output("", "Exited with exit code 3", words),
    "spawn": lambda words: spawn_output("", "ended with exit code 3", 3, words),
}
