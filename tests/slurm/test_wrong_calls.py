"""Wrong calls of all commands of a written project: a sentence or the usage, exit code 2, and nothing is written.

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

# A command, and words of which each alone is a wrong call; a list of words is one call.
WRONG = {
    "slurm/stacks.sh": [*NO_JOBS, [], ["4711", "4711"], ["4711", ""]],
    "slurm/watch.sh": [*NO_JOBS, [], ["4711", "4711"], ["4711", ""], ["4711", "--every"], ["4711", "--every", "0"]],
    "slurm/doctor.py": [*NO_JOBS, [], ["4711", "4711"], ["--fault=x"], ["--fault", "4711"]],
    "slurm/repeat.py": [*NO_JOBS, "4711", [], ["4711", "4711"], ["--foreign"], ["--foreign", "4711"]],
    "slurm/sweep.sh": [
        *NO_JOBS,
        "4711",
        [],
        LINES,
        [LINES, "--"],
        [LINES, "x.py"],
        [LINES, "--max-at-once"],
        [LINES, "--max-at-once", "0", "--", "check/ranks.py"],
        [LINES, "--max-at-once=x", "--", "check/ranks.py"],
        ["README.md", "--", "check/ranks.py"],
        ["empty.txt", "--", "check/ranks.py"],
        [".", "--", "check/ranks.py"],
        ["", "--", "check/ranks.py"],
        *([LINES, "--", program] for program in (*NO_PROGRAMS, *NO_SOURCES)),
    ],
    "slurm/notebook.sh": [*NO_WORDS, "99999999", ["4711", "4711"], ["--time=1", "x"], ["--time=1", ""], ["-N1", "x"]],
    "slurm/interactive.sh": [*NO_WORDS, ["--time=1", "x"], ["-N", "1", "x"], ["-N1", "x"], ["--", "x"], ["x", "-N1"]],
    "slurm/build_venv.sh": [*NO_WORDS, ["--time=1", "x"], ["-N", "1", "x"], ["-N1", "x"], ["--", "x"], ["x", "-N1"]],
    "slurm/clean.sh": [*NO_WORDS, *NO_OPTIONS, ["--dry-run", ""], ["--dry-run", "x"]],
    "slurm/bad_nodes.sh": [
        *NO_WORDS,
        *NO_OPTIONS,
        "add",
        "forget",
        ["add", ""],
        ["add", "node1"],
        ["add", "", "slow"],
        ["add", "node7", "slow"],
        ["add", "node1", "node2"],
        ["add", HUGE, "x"],
        ["add", "-x", "slow"],
        ["forget", ""],
        ["forget", "node1"],
        ["forget", "node1", "node2"],
        ["forget", "a\nb"],
        ["forget", "*"],
    ],
    "slurm/sync_trackers.sh": ["", "nosuch", "README.md", HUGE, "a\nb", "$(ls)", "ü", *NO_OPTIONS, ["--dry-run", ""]],
    "slurm/preflight.sh": [[], *NO_WORDS],
    "slurm/submit_multinode.sh": [
        *(program for program in NO_PROGRAMS if program != "--"),  # which is the default program
        *NO_SOURCES,
        "--nodes=2",
        ["--nodes=2", "check/ranks.py"],
        ["-m", ""],
        *(["--", program] for program in (*NO_PROGRAMS, *NO_SOURCES)),
    ],
    "benchmark/scaling.sh": [
        [],
        *NO_WORDS[:6],
        "0",
        "01",
        *NO_OPTIONS,
        ["--name"],
        ["--name", ""],
        ["--name", "a b", "1"],
    ],
    "launch/torchrun.sh": [[], *NO_PROGRAMS, "ls", ["-m", ""]],
    "launch/rank.sh": [[], "nosuch.py", "/nowhere/x.py", "-x", HUGE[:200]],
    # Called by other files of the project.
    "slurm/notebook/connect.py": [[], "4711", ["4711", "node1"]],
    "slurm/notebook/lab.py": [[], "x"],
    "slurm/notebook/relay.py": [[], "nosuch"],
    "slurm/notebook/serve.sh": [[], ".", "nosuch"],
    "slurm/sweep/jobs.py": [[], LINES, [LINES, "nosuch", "x.py"]],
    "slurm/sweep/table.py": [[], "nosuch", "."],
    "slurm/watch/node.sh": [[], "4711", ["4711", "0"], ["4711", "1", "x"]],
    "slurm/watch/screen.py": [[], "4711", ["--every", "x", "4711", "node1"]],
    "slurm/watch/summary.py": [[], "4711"],
    "slurm/preflight_node.sh": [[], "x"],
    "slurm/signal_ranks.sh": [[], "4711"],
    "launch/code/snapshot.py": [[], ["a", "b", "c"], "nosuch"],
    "launch/code/run_module.py": [[], "x"],
    "launch/code/record.py": [[], "--nonsense"],
    "launch/spawn.py": [[], "x.py"],
    "launch/stacks/collect.sh": ["x", "", ["a=b", "c=d"]],
    "launch/stacks/group.py": ["nosuch", ""],
    "launch/stage/enter.py": [[], "x", ["x", "--packs", "nosuch", "--remove"]],
    "launch/stage/pack.py": [[], "x", ["x", "--nonsense"]],
    # Programs.
    "check/hello.py": [[]],
    "check/ranks.py": ["x", "--nonsense"],
    "pi/pi.py": ["x", "--nonsense", ["--intervals", "0"]],
    "benchmark/all_reduce.py": ["x", "--nonsense", ["--max", "x"]],
    "benchmark/report.py": ["nosuch", "--nonsense", ""],
    "training/train_single.py": ["x", "--nonsense", ["--steps", "x"], ["--out"]],
    "training/sample.py": ["nosuch", "--nonsense", ["--length", "-1"]],
    "training/compare.py": ["x", "--nonsense"],
}
# These answer -h with their usage. The others are called by files of the project.
WITH_HELP = [name for name in WRONG if name.count("/") == 1 and name not in ("launch/rank.sh", "check/hello.py")]
WITH_HELP = [
    name for name in WITH_HELP if name not in ("launch/spawn.py", "slurm/preflight_node.sh", "slurm/signal_ranks.sh")
]
FEW = [("slurm/stacks.sh", "12_x"), ("slurm/repeat.py", "4711"), ("slurm/sweep.sh", LINES), ("slurm/notebook.sh", "")]
FEW += [("slurm/interactive.sh", "x"), ("slurm/build_venv.sh", "x"), ("slurm/clean.sh", ""), ("slurm/bad_nodes.sh", "")]
FEW += [("launch/torchrun.sh", "nosuch.py"), ("slurm/notebook/connect.py", "4711"), ("slurm/sweep/table.py", ".")]


def calls():
    """Return a parameter for each wrong call; most are drills."""
    found = []
    for command, wrong in WRONG.items():
        for call in wrong:
            marks = () if (command, call) in FEW else (pytest.mark.drill,)
            words = [call] if isinstance(call, str) else call
            shown = " ".join(map(ascii, words))[:40]
            found.append(pytest.param(command, words, marks=marks, id=f"{command} {shown}"))
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = bake(tmp_path_factory.mktemp("wrong calls"), **ANSWERS)
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


@pytest.mark.parametrize(("command", "words"), calls())
def test_a_wrong_call_is_refused_in_a_sentence(call, command, words):
    assert_refused(call(command, *words), command, words)


def assert_refused(done, command, words):
    """Assert that a call was refused, before one of Slurm's commands was called that starts something."""
    said = done.stderr
    assert done.returncode == 2 and "was called" not in said, done
    for word in filter(str.strip, words):
        said = said.replace(word, "WORD")  # it may have line ends
    assert said.strip() and (said.count("\n") == 1 or "sage:" in said or said.count(command) > 1), said


@pytest.mark.parametrize("command", [pytest.param(name, marks=pytest.mark.drill) for name in WITH_HELP])
@pytest.mark.parametrize("word", HELP)
def test_help(call, command, word):
    done = call(command, word)
    assert (done.returncode, done.stderr) == (0, "") and command.rpartition("/")[2] in done.stdout, done


def test_an_unknown_job_is_asked_for_once(call):
    """A busy controller is asked three times."""
    asked = call.tools / "scontrol.calls"
    asked.unlink(missing_ok=True)
    assert_refused(call("slurm/stacks.sh", "99999999"), "slurm/stacks.sh", ["99999999"])
    assert asked.read_text().count("\n") == 1


@pytest.mark.parametrize("words", [["slurm/stacks.sh", "4711"], ["slurm/watch.sh", "4711", "--once"]])
def test_what_slurm_says_of_another_users_job_is_shown(call, words):
    done = call(*words)
    assert done.returncode == 1 and "Access/permission denied" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["slurm/interactive.sh", "slurm/build_venv.sh", "slurm/notebook.sh"])
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
