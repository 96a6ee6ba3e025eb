"""Wrong calls of commands: stand-ins for Slurm's programs, and what a refusal looks like.

Slurm's commands are stand-ins, which know one job: 4711, which runs, and belongs to another user.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from baking import bake
from two_nodes import ANSWERS
from waiting import PATIENCE

# Commands that a refused call must not reach, as they would start something.
STARTING = ("sbatch", "salloc", "srun", "scancel", "podman-hpc")
STAND_INS = dict.fromkeys(STARTING, 'echo "$0 was called" >&2; exit 7')
STAND_INS["srun"] = """\
echo "$0 was called" >&2
echo "srun: error: Unable to create step for job 4711: Access/permission denied" >&2; exit 1"""
STAND_INS["scontrol"] = """\
echo "$*" >>"$0.calls"
case "$*" in
    *" job 4711") echo "JobId=4711 JobName=theirs
   UserId=anna(54321) JobState=RUNNING Reason=None
   NodeList=node1 Command=/home/anna/x.sh" ;;
    "show hostnames node"[0-9]) echo "$3" ;;
    "show config") ;;
    *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac"""
STAND_INS["sinfo"] = "printf 'node1\\nnode2\\n'"
STAND_INS["squeue"] = STAND_INS["sacct"] = "exit 1"
STAND_INS["sleep"] = ""  # a busy controller is asked three times

HUGE = "9" * 400
NO_JOBS = ["", " ", "0", "-1", "1.5", "0x10", "abc", "12a", "99999999", HUGE, "12_", "_3", "12_x", "12_[1-3]", "12-14"]
NO_JOBS += ["12,13", "4711 ", "47\n11", "4711\n", "4711;ls", "$(ls)", "`ls`", "*", ".", "/", "../..", "--", "-", "-x"]
NO_JOBS += ["--nonsense", "ü", "\x1b[2J", "nosuch.txt"]
NO_WORDS = ["", " ", "x", "a b", "a\nb", ".", "/", "../..", "4711", HUGE, "$(ls)", "*", "ü", "README.md"]
NO_OPTIONS = ["-x", "-", "--nonsense", "--nonsense=1", "-x y"]
NO_PROGRAMS = ["", " ", "nosuch.py", "a b.py", "a\nb.py", "/nowhere/x.py", "-m", "-e.py", "--", "-", "-x", "--nonsense"]
NO_PROGRAMS += [".", "slurm", HUGE, "ü.py", "$(ls)", "4711"]
NO_SOURCES = ["README.md", "env.sh", "A=1", "python", "torchrun", "bash", "ls"]
HELP = ["-h", "--help"]
LINES = "lines.txt"  # of a sweep; in the current folder


def calls(table, few):
    """Return a parameter for each wrong call of a table; all are drills but those of `few`."""
    found = []
    for command, wrong in table.items():
        for call in wrong:
            marks = () if (command, call) in few else (pytest.mark.drill,)
            words = [call] if isinstance(call, str) else call
            shown = " ".join(map(ascii, words))[:40]
            found.append(pytest.param(command, words, marks=marks, id=f"{command} {shown}"))
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = bake(tmp_path_factory.mktemp("wrong calls"), **ANSWERS, extras="all")
    (project / "logs/sweeps").mkdir(parents=True)  # as in any project that has run
    (project / "logs/.gitignore").write_text("*\n")
    return project


@pytest.fixture(scope="module")
def call(project, tmp_path_factory):
    """Returns call(command, *words) -> the finished process, which has written nothing.

    The current folder has lines of a sweep.
    """
    tools, here = tmp_path_factory.mktemp("bin"), tmp_path_factory.mktemp("here")
    for name, text in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    (here / LINES).write_text("--a 1\n")
    (here / "empty.txt").touch()
    (here / "README.md").write_text("# Not a program, and 'no line of a sweep\n")

    def run(command, *words, project=project):
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(here), "LANG": "C.UTF-8"}
        environment |= {"PYTHON": sys.executable, "RUNTIME": "none", "PYTHONDONTWRITEBYTECODE": "1"}
        before = files(project), files(here)
        interpreter = "bash" if command.endswith(".sh") else sys.executable
        done = subprocess.run(
            [interpreter, project / command, *words],
            cwd=here,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
        assert (files(project), files(here)) == before
        for fault in ("Traceback", "unbound variable", "syntax error", "command not found", ": line "):
            assert fault not in done.stdout + done.stderr, done
        return done

    run.tools = tools
    return run


def files(folder):
    """Return the files and folders below a folder, each with its size."""
    return {path: path.lstat().st_size for path in folder.rglob("*")}


def assert_refused(done, command, words):
    """Assert that a call was refused, before one of Slurm's commands was called that starts something."""
    said = done.stderr
    assert done.returncode == 2 and "was called" not in said, done
    for word in filter(str.strip, words):
        said = said.replace(word, "WORD")  # it may have line ends
    assert said.strip() and (said.count("\n") == 1 or "sage:" in said or said.count(command) > 1), said
