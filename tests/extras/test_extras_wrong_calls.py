"""Wrong calls of the commands of extras: a sentence or the usage, exit code 2, and nothing is written."""

from __future__ import annotations

import pytest
from wrong_calls import (
    HELP,
    HUGE,
    LINES,
    NO_JOBS,
    NO_OPTIONS,
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
    "extras/hangs/stacks.sh": [*NO_JOBS, [], ["4711", "4711"], ["4711", ""]],
    "extras/hangs/collect.sh": ["x", "", ["a=b", "c=d"]],
    "extras/hangs/group.py": ["nosuch", "", ["--add", "nosuch"]],
    "extras/mpi/ranks.sh": [[], "x.py", "launch/torchrun.sh", ["launch/rank.sh", "nosuch.py"]],
    "extras/mpi/build_horovod.sh": [*NO_OPTIONS, ["wheels", "wheels"]],
    "extras/notebook/notebook.sh": [
        *NO_WORDS,
        "99999999",
        ["4711", "4711"],
        ["--time=1", "x"],
        ["--time=1", ""],
        ["-N1", "x"],
    ],
    "extras/notebook/connect.py": [[], "4711", ["4711", "node1"]],
    "extras/notebook/lab.py": [[], "x"],
    "extras/notebook/relay.py": [[], "nosuch"],
    "extras/notebook/serve.sh": [[], ".", "nosuch"],
    "extras/scaling/scaling.sh": [
        [],
        *NO_WORDS[:6],
        "0",
        "01",
        *NO_OPTIONS,
        ["--name"],
        ["--name", ""],
        ["--name", "a b", "1"],
    ],
    "extras/scaling/report.py": ["nosuch", "--nonsense", ""],
    "extras/snapshot/repeat.py": [*NO_JOBS, "4711", [], ["4711", "4711"], ["--foreign"], ["--foreign", "4711"]],
    "extras/snapshot/clean.sh": [*NO_WORDS, *NO_OPTIONS, ["--dry-run", ""], ["--dry-run", "x"]],
    "extras/snapshot/enter.sh": [[], "x", "--", ["--", "ls"]],
    "extras/snapshot/imports.py": [[], "x"],
    "extras/snapshot/packages.py": [[], ["a", "b"]],
    "extras/snapshot/record.py": [[], "--nonsense"],
    "extras/snapshot/run_module.py": [[], "x"],
    "extras/snapshot/snapshot.py": [[], "x", ["x", "y"], ["1", "a", "b", "c"], ["1", "nosuch"]],
    "extras/spares/bad_nodes.sh": [
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
    "extras/spares/fault.py": [[]],
    "extras/spares/stand_by.sh": [[], "-h", ["node1", "out", "errors", "check/ranks.py"]],
    "extras/stage/clean.sh": [*NO_WORDS, ["--dry-run", "x"], ["--dry-run", "--dry-run"]],
    "extras/stage/enter.py": [[], "x", ["--use", "x"], ["--use", "x", "--"], ["--remove", "x", "a", "b", "c", "d"]],
    "extras/stage/pack.py": [[], "x", ["x", "--nonsense"]],
    "extras/sweep/sweep.sh": [
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
    "extras/sweep/jobs.py": [[], LINES, [LINES, "nosuch", "x.py"]],
    "extras/sweep/table.py": [[], "nosuch", "."],
    "extras/trackers/sync_trackers.sh": [
        "",
        "nosuch",
        "README.md",
        HUGE,
        "a\nb",
        "$(ls)",
        "ü",
        *NO_OPTIONS,
        ["--dry-run", ""],
    ],
    "extras/watch/watch.sh": [
        *NO_JOBS,
        [],
        ["4711", "4711"],
        ["4711", ""],
        ["4711", "--every"],
        ["4711", "--every", "0"],
    ],
    "extras/watch/node.sh": [[], "4711", ["4711", "0"], ["4711", "1", "x"]],
    "extras/watch/screen.py": [[], "4711", ["--every", "x", "4711", "node1"]],
    "extras/watch/summary.py": [[], "4711"],
}
FEW = [
    ("extras/hangs/stacks.sh", "12_x"),
    ("extras/notebook/notebook.sh", ""),
    ("extras/notebook/connect.py", "4711"),
    ("extras/scaling/scaling.sh", "0"),
]
FEW += [("extras/snapshot/repeat.py", "4711"), ("extras/snapshot/clean.sh", "")]
FEW += [
    ("extras/spares/bad_nodes.sh", ""),
    ("extras/stage/clean.sh", ""),
    ("extras/sweep/sweep.sh", LINES),
    ("extras/sweep/table.py", "."),
]
WITH_HELP = [
    "extras/hangs/stacks.sh",
    "extras/notebook/notebook.sh",
    "extras/scaling/scaling.sh",
    "extras/scaling/report.py",
    "extras/snapshot/clean.sh",
    "extras/snapshot/repeat.py",
    "extras/spares/bad_nodes.sh",
    "extras/stage/clean.sh",
    "extras/trackers/sync_trackers.sh",
    "extras/watch/watch.sh",
]


@pytest.mark.parametrize(("command", "words"), calls(WRONG, FEW))
def test_a_wrong_call_is_refused_in_a_sentence(call, command, words):
    assert_refused(call(command, *words), command, words)


@pytest.mark.parametrize("command", WITH_HELP)
@pytest.mark.parametrize("word", HELP)
def test_help(call, command, word):
    done = call(command, word)
    assert (done.returncode, done.stderr) == (0, "") and command.rpartition("/")[2] in done.stdout, done


@pytest.mark.parametrize("words", [["--time=1"], ["--time", "1"], ["-t", "1", "-vN1", "--exclusive"]])
def test_options_of_slurm_reach_it(call, words):
    """A word after an option without = may be its value."""
    done = call("extras/notebook/notebook.sh", *words)
    assert "was called" in done.stderr or "has no JupyterLab" in done.stderr, done


def test_an_unknown_job_is_asked_for_once(call):
    """A busy controller is asked three times."""
    asked = call.tools / "scontrol.calls"
    asked.unlink(missing_ok=True)
    assert_refused(call("extras/hangs/stacks.sh", "99999999"), "extras/hangs/stacks.sh", ["99999999"])
    assert asked.read_text().count("\n") == 1


@pytest.mark.parametrize("words", [["extras/hangs/stacks.sh", "4711"]])
def test_what_slurm_says_of_another_users_job_is_shown(call, words):
    done = call(*words)
    assert done.returncode == 1 and "Access/permission denied" in done.stdout + done.stderr
