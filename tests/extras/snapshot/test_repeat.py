"""repeat.py by itself: bash runs what it prints, and run.json may be odd, or another user's.

test_snapshot.py repeats jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from baking import TEMPLATE
from sources import write
from waiting import PATIENCE

NASTY = "a\nb\tc' \\ \x1b[2J\x9b$(touch x)`touch x`\udc9b\udcff ü"


@pytest.fixture
def repeat(tmp_path):
    """Returns repeat(*words, run) -> what repeat.py prints of a run.json with these values, and its exit code."""
    project = tmp_path / "project"
    names = ("extras/snapshot/repeat.py", "extras/snapshot/git_state.py")
    write(project, {name: (TEMPLATE / name).read_text() for name in names})
    script = project / "extras/snapshot/repeat.py"
    file = project / "logs/7.0/run.json"
    file.parent.mkdir(parents=True)

    def call(*words, uid=None, text=None, path=os.environ["PATH"], **values):
        run = {"job": "7", "attempt": 0, "started": "now", "nodes": ["n1"], "versions": {}}
        run |= {"submitted": ["sbatch", "job.sh"], "folder": str(tmp_path), "changed_settings": {}, "environment": {}}
        run |= {"project": str(project), "program": [], "allocation": {}, "code": None, **values}
        file.write_text(text or json.dumps(run))
        if uid is not None:
            os.chown(file, uid, -1)
        command = [sys.executable, "-B", script, *(words or ["7"])]
        environment = {**os.environ, "PATH": path}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE
        )

    return call


@pytest.fixture
def bash(tmp_path):
    """Returns bash(text) -> the folder and the words with which bash, running a text, calls sbatch."""
    stand_in = tmp_path / "bin/sbatch"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "$PWD" "$A" "$@"\n')
    stand_in.chmod(0o755)

    def call(text):
        environment = {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["bash"], input=text, env=environment, cwd=tmp_path, capture_output=True, check=True, timeout=PATIENCE
        )
        assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("x", "bin")) == ["bin"]
        return list(map(os.fsdecode, done.stdout.split(b"\0")))[:-1]

    return call


def test_all_that_a_run_json_says_is_a_comment_or_a_word(repeat, bash, tmp_path):
    folder = tmp_path / NASTY
    folder.mkdir()
    git = {"commit": NASTY, "branch": NASTY, "repository": NASTY, "changed_submodules": [NASTY]}
    texts = {"job": NASTY, "started": NASTY, "nodes": [NASTY], "versions": {NASTY: NASTY}}
    code = {"git": git, "snapshots": [NASTY], "originals": [NASTY]}
    done = repeat(
        **texts, code=code, folder=str(folder), submitted=["sbatch", NASTY, "a b"], changed_settings={"A": NASTY}
    )
    *comments, command, end = done.stdout.split(b"\n")
    assert all(line.startswith(b"# ") for line in comments) and command.startswith(b"cd ") and end == b"", done
    assert not set(done.stdout.decode(errors="surrogateescape")) & set("\x1b\x9b\t\udc9b")
    assert bash(done.stdout) == [str(folder), NASTY, NASTY, "a b"]


@pytest.mark.parametrize(
    "values",
    [
        {"changed_settings": {"A=1; touch x; B": "1"}},
        {"changed_settings": {"A\n": "1"}},
        {"submitted": ["touch", "x"]},
        {"submitted": [["sbatch"]]},
        {"submitted": "x"},
        {"code": 7},
        {"folder": None},
        {"folder": "\ud800"},
        {"text": "[]"},
        {"text": "{"},
        {"text": "[" * 100_000},
    ],
)
def test_an_odd_run_json_is_refused(repeat, values):
    done = repeat(**values)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and b"run.json cannot be read" in done.stderr


@pytest.mark.parametrize(
    "values", [{"submitted": ["sbatch", "job.sh", "--token=***"]}, {"changed_settings": {"PROXY": "http://***@proxy"}}]
)
def test_a_key_that_the_record_lacks_is_to_be_typed(repeat, values):
    done = repeat(**values)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"with them: cd -- " in done.stderr and b"sbatch" in done.stderr and b"***" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_run_json_is_shown_when_asked_for(repeat, bash, tmp_path):
    done = repeat(uid=1002)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"1002" in done.stderr and b"--foreign" in done.stderr
    assert bash(repeat("--foreign", "7", uid=1002).stdout) == [str(tmp_path), "", "job.sh"]


def test_words_of_the_accounting(repeat, bash, tmp_path):
    """Where sbatch alone was called, Slurm's accounting has its words, unless an argument needed quotes."""
    line = "sbatch -N2 job.sh prog.py"
    (write(tmp_path / "bin", {"sacct": f"#!/bin/bash\n[[ $* == *--jobs=7* ]] && echo '{line}'\n"}) / "sacct").chmod(
        0o755
    )
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = repeat(submitted=None, program=["prog.py"], path=path)
    assert done.stdout.endswith(b" && sbatch -N2 job.sh prog.py\n"), done
    done = repeat(submitted=None, program=["a b"], allocation={"nodes": "2"}, path=path)
    assert b"how it was submitted is not known" in done.stdout
    assert done.stdout.endswith(b"/slurm/submit_multinode.sh --nodes=2 -- 'a b'\n"), done
