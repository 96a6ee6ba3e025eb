"""Wrong calls of all commands of a written project: a sentence or the usage, exit code 2, and nothing is written."""

from __future__ import annotations

import pytest
from baking import bake
from two_nodes import ANSWERS
from wrong_calls import (
    HELP,
    HUGE,
    LINES,
    NO_JOBS,
    NO_PROGRAMS,
    NO_SOURCES,
    NO_WORDS,
    assert_refused,
    call,
    calls,
    project,
)

# A command, and words of which each alone is a wrong call; a list of words is one call.
WRONG = {
    "slurm/doctor.py": [*NO_JOBS, [], ["4711", "4711"], ["--json"], ["--json=x", "4711"]],
    "slurm/interactive.sh": [*NO_WORDS, ["--time=1", "x"], ["-N", "1", "x"], ["-N1", "x"], ["--", "x"], ["x", "-N1"]],
    "slurm/build_venv.sh": [*NO_WORDS, ["--time=1", "x"], ["-N", "1", "x"], ["-N1", "x"], ["--", "x"], ["x", "-N1"]],
    "slurm/submit_multinode.sh": [
        *(program for program in NO_PROGRAMS if program != "--"),  # which is the default program
        *NO_SOURCES,
        "--nodes=2",
        ["--nodes=2", "check/ranks.py"],
        ["-m", ""],
        *(["--", program] for program in (*NO_PROGRAMS, *NO_SOURCES)),
    ],
    "launch/torchrun.sh": [[], "-x", "--", "--nproc-per-node=2"],
    "launch/rank.sh": [[], "nosuch.py", "/nowhere/x.py", "-x", HUGE[:200]],
    # Called by other files of the project.
    "slurm/signal_ranks.sh": [[], "4711"],
    "launch/spawn.py": [[], "x.py"],
    # Programs.
    "check/hello.py": [[]],
    "check/ranks.py": ["x", "--nonsense"],
    "pi/pi.py": ["x", "--nonsense", ["--intervals", "0"]],
    "benchmark/all_reduce.py": ["x", "--nonsense", ["--max", "x"]],
    "training/train_single.py": ["x", "--nonsense", ["--steps", "x"], ["--out"]],
    "training/sample.py": ["nosuch", "--nonsense", ["--length", "-1"]],
    "training/compare.py": ["x", "--nonsense"],
}
# These answer -h with their usage. The others are called by files of the project.
WITH_HELP = [
    name
    for name in WRONG
    if name.count("/") == 1 and name not in ("launch/torchrun.sh", "launch/rank.sh", "check/hello.py")
]
CALLED_BY_FILES = ("launch/spawn.py", "slurm/signal_ranks.sh")
WITH_HELP = [name for name in WITH_HELP if name not in CALLED_BY_FILES]
FEW = [("slurm/interactive.sh", "x"), ("slurm/build_venv.sh", "x")]
FEW += [("launch/torchrun.sh", "--nproc-per-node=2")]


@pytest.mark.parametrize(("command", "words"), calls(WRONG, FEW))
def test_a_wrong_call_is_refused_in_a_sentence(call, command, words):
    assert_refused(call(command, *words), command, words)


@pytest.mark.parametrize("command", [pytest.param(name, marks=pytest.mark.drill) for name in WITH_HELP])
@pytest.mark.parametrize("word", HELP)
def test_help(call, command, word):
    done = call(command, word)
    assert (done.returncode, done.stderr) == (0, "") and command.rpartition("/")[2] in done.stdout, done


@pytest.mark.parametrize("command", ["slurm/interactive.sh", "slurm/build_venv.sh"])
@pytest.mark.parametrize("words", [["--time=1"], ["--time", "1"], ["-t", "1", "-vN1", "--exclusive"]])
def test_options_of_slurm_reach_it(call, command, words):
    """A word after an option without = may be its value."""
    done = call(command, *words)
    assert "was called" in done.stderr or "has no JupyterLab" in done.stderr, done


@pytest.mark.parametrize(
    "answers", [{"runtime": "apptainer"}, {"site": "perlmutter", "runtime": "podman-hpc", "account": "m1234"}]
)
def test_build_container(call, answers, tmp_path):
    """Where it submits a job, and where it builds on the login node."""
    project, command = bake(tmp_path, **{**ANSWERS, **answers}), "slurm/build_container.sh"
    for word in HELP:
        done = call(command, word, project=project)
        assert (done.returncode, done.stderr) == (0, "") and command in done.stdout
    for words in (["x"], [""], ["--time=1", "x"], *([["--time=1"]] if "site" in answers else [])):
        assert_refused(call(command, *words, project=project), command, words)
