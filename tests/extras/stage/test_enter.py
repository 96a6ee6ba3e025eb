"""What a node makes of packs: extras/stage/enter.py, without Slurm. test_stage.py has the jobs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from baking import TEMPLATE
from users import NEIGHBOUR, PYTHON, as_user, folder_of_all, needs_two_users
from waiting import FOREVER, wait_for

PACK, ENTER = TEMPLATE / "extras/stage/pack.py", TEMPLATE / "extras/stage/enter.py"


@pytest.fixture
def staged(tmp_path):
    """Data that are packed, and a folder for the copies."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("1")
    (tmp_path / "disk").mkdir()
    return tmp_path


def pack(folder, *what):
    """Return the words that pack.py prints of the packs."""
    command = [sys.executable, "-B", PACK, folder / "packs", *(what or ("--data", folder / "data"))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return printed.replace("\t", "\n").splitlines()


def enter(folder, *words, way="--use", **environment):
    """Call enter.py; return the finished process."""
    command = [sys.executable, "-I", "-B", ENTER, way, folder / "disk", *words]
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def reads(folder, *words, **more):
    """Return what a program reads of the data, and where; it gets the path of the original."""
    show = ["sh", "-c", 'echo "$1"; cat "$1/file"', "sh", folder / "data"]
    done = enter(folder, *words, "--", *show, **more)
    assert done.returncode == 0, done.stderr
    return done, *done.stdout.splitlines()


def own(folder):
    return folder / "disk" / f"staged-{os.getuid()}"


def test_a_copy_is_made_once_and_removed(staged):
    words = pack(staged)
    for _ in range(2):
        done, place, text = reads(staged, *words)
        assert (place, text) == (f"{own(staged)}/{words[1]}/content/data", "1"), done
    assert "is on this node's disk" not in done.stderr
    assert enter(staged, *words, way="--remove").returncode == 0
    assert os.listdir(own(staged)) == ["lock"]


def test_arguments_that_name_the_copy(staged):
    """Not those of outputs below the data, which would be removed with the copy."""
    words, data = pack(staged), str(staged / "data")
    copy = f"{own(staged)}/{words[1]}/content/data"
    given = [
        data,
        f"{data}/file",
        f"--data={data}",
        f"data.path={data}/file",
        f"{data}/new",
        f"--out={data}/new",
        "x=1",
    ]
    done = enter(staged, *words, "--", "printf", "%s\\n", *given)
    expected = [copy, f"{copy}/file", f"--data={copy}", f"data.path={copy}/file", *given[4:]]
    assert done.stdout.splitlines() == expected, done.stdout + done.stderr


def test_a_rank_that_cannot_copy_says_why_once(staged):
    """It uses the originals, as do the other ranks of its step. Those of the next step try again."""
    words, there = pack(staged), str(staged / "data")
    whole = Path(words[2]).read_bytes()
    Path(words[2]).write_bytes(b"x" * len(whole))
    done, place, _ = reads(staged, *words)
    assert place == there and "cannot unpack" in done.stderr and f"read {there} where they lie" in done.stderr
    Path(words[2]).write_bytes(whole)
    done, place, _ = reads(staged, *words)
    assert (place, done.stderr) == (there, "")
    assert enter(staged, *words, "--", "printenv", "STAGE_DATA").stdout == f"{there}\n"
    for later in ({"SLURM_STEP_ID": "2"}, {"RESTART_COUNT": "1"}):  # a job that is requeued counts its steps anew
        done, place, _ = reads(staged, *words, **later)
        assert place.startswith(str(own(staged))), done.stderr
        enter(staged, *words, way="--remove")
    assert sorted(os.listdir(own(staged))) == ["failed", "lock"]


def test_half_a_copy_is_never_used(staged):
    """As a process leaves it that was killed while it copied, or while it removed."""
    words = pack(staged)
    for left in (".unfinished", ".removing"):
        half = own(staged) / f"{words[1]}{left}/content/data"
        half.mkdir(parents=True)
        (half / "file").write_text("half")
        done, place, text = reads(staged, *words)
        assert text == "1" and place.startswith(str(own(staged))), done.stderr
        enter(staged, *words, way="--remove")
        assert os.listdir(own(staged)) == ["lock"]


def test_what_sbcast_has_sent_is_used_if_it_is_whole(staged):
    words = pack(staged)
    whole = Path(words[2]).read_bytes()
    for sent, said in ((whole[:-1], "read from the shared file system"), (whole, "sent by sbcast")):
        own(staged).mkdir(mode=0o700, exist_ok=True)
        (own(staged) / f"{words[1]}.sent-1").write_bytes(sent)
        done, place, text = reads(staged, *words)
        assert text == "1" and said in done.stderr and place.startswith(str(own(staged)))
        enter(staged, *words, way="--remove")
        assert os.listdir(own(staged)) == ["lock"]


def test_a_copy_in_use_is_not_removed(staged):
    words = pack(staged)
    command = [sys.executable, "-I", "-B", ENTER, "--use", staged / "disk", *words, "--", "sleep", str(FOREVER)]
    with subprocess.Popen(command) as running:
        wait_for((own(staged) / words[1]).exists, "the copy")
        wait_for(lambda: b"sleep" in Path(f"/proc/{running.pid}/cmdline").read_bytes(), "the command")
        enter(staged, *words, way="--remove")
        assert (own(staged) / words[1]).is_dir()
        running.kill()
    enter(staged, *words, way="--remove")
    assert os.listdir(own(staged)) == ["lock"]


def test_a_kept_copy_stays(staged):
    """Also when a job without KEEP_STAGE has used it, for a week since a job with it did."""
    words = pack(staged)
    reads(staged, *words, way="--keep")
    reads(staged, *words)
    enter(staged, *words, way="--remove")
    in_use = own(staged) / words[1] / "in-use"
    assert in_use.stat().st_mtime > time.time() + 6 * 86400
    os.utime(in_use, (time.time() - 1,) * 2)
    enter(staged, *words, way="--remove")
    assert not in_use.exists()


def test_left_overs_are_removed_after_a_day(staged):
    """Those of a job that was killed; not what a process uses, what is kept, or what sbcast is sending."""
    own(staged).mkdir(mode=0o700)
    for name, days in (("old", -2), ("new", 0), ("kept", 5)):
        (own(staged) / name).mkdir()
        (own(staged) / name / "in-use").touch()
        os.utime(own(staged) / name / "in-use", (time.time() + 86400 * days,) * 2)
    for name, days in (("old.sent-7", -2), ("new.sent-7", 0)):
        (own(staged) / name).touch()
        os.utime(own(staged) / name, (time.time() + 86400 * days,) * 2)
    words = pack(staged)
    reads(staged, *words)
    assert sorted(os.listdir(own(staged))) == sorted([words[1], "kept", "lock", "new", "new.sent-7"])


def test_signals_are_those_of_any_program(staged):
    """Python ignores SIGPIPE, and a program would inherit that."""
    done = enter(staged, *pack(staged), "--", "grep", "SigIgn", "/proc/self/status")
    assert int(done.stdout.split()[1], 16) & (1 << 12) == 0, done.stdout


def test_another_users_folder_is_not_used(staged):
    own(staged).symlink_to(staged)
    done, place, _ = reads(staged, *pack(staged))
    assert place == str(staged / "data") and "is not a folder of yours" in done.stderr


@needs_two_users
def test_a_folder_that_its_owner_may_not_write_to(folder_of_all):
    """A copy with its modes could not be removed. The copy of data is read-only, so that no result is lost in it."""
    script = (
        f"mkdir -p {folder_of_all}/data/inner; touch {folder_of_all}/data/inner/file; chmod -R a-w {folder_of_all}/data"
    )
    as_user(NEIGHBOUR, "sh", "-c", f"{script}; mkdir {folder_of_all}/disk")
    words = as_user(NEIGHBOUR, PYTHON, PACK, folder_of_all / "packs", "--data", folder_of_all / "data").stdout.split()
    call = [PYTHON, "-I", "-B", ENTER]
    done = as_user(NEIGHBOUR, *call, "--use", folder_of_all / "disk", *words, "--", "ls", folder_of_all / "data/inner")
    assert done.stdout == "file\n" and "is on this node's disk" in done.stderr
    for target in ("data/inner/file", "data/inner/new", "data/new"):
        line = f'f="$STAGE_DATA/{target.partition("/")[2]}"; echo result >"$f"'
        command = [*call, "--use", folder_of_all / "disk", *words, "--", "sh", "-c", line]
        done = as_user(NEIGHBOUR, *command, check=False)
        assert done.returncode and "Permission denied" in done.stderr, done
    as_user(NEIGHBOUR, *call, "--remove", folder_of_all / "disk", *words)
    assert os.listdir(folder_of_all / f"disk/staged-{NEIGHBOUR}") == ["lock"]


# ---- environments ----------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(staged):
    """A virtual environment that was made at a path with a link in it, with scripts as pip and uv write them."""
    (staged / "real").mkdir()
    (staged / "link").symlink_to("real")
    folder = staged / "link/an environment"
    venv.create(folder, symlinks=True)
    python, body = f"{folder}/bin/python", "print(__import__('sys').prefix)\n"
    scripts = {
        "by-sh": f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{body}",
        "by-uv": f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n{body}",
        "not-its-own": f"#!{sys.executable}\n{body}",
        "names-it-later": f"#!/bin/sh\necho\necho {python}\n",
    }
    for name, text in scripts.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin/binary").write_bytes(b"\x7fELF" + python.encode())
    return folder


def run_in(environment, *command, **more):
    """Run a command with the copy of an environment that was activated; return what it prints."""
    variables = {
        "VIRTUAL_ENV": str(environment),
        "PATH": f"{environment}/bin:{os.environ['PATH']}",
        "PYTHON": "python3",
    }
    folder = environment.parent.parent
    words = pack(folder, "--environment", environment)
    done = enter(folder, *words, "--", *command, **{**variables, **more})
    assert done.returncode == 0 and "where they lie" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_a_copy_of_an_environment_names_itself(environment):
    """By its real path, and by the path at which it was made."""
    prefix = run_in(environment, "python", "-c", "import sys; print(sys.prefix)")
    assert prefix.startswith(str(own(environment.parent.parent))) and prefix.endswith("/content/an environment")
    for script in ("by-sh", "by-uv"):
        assert run_in(environment, script) == prefix
    assert run_in(environment, "not-its-own") == sys.prefix
    assert run_in(environment, "names-it-later") == f"{environment}/bin/python"
    assert str(environment) in (Path(prefix) / "bin/binary").read_text()
    for name in ("by-sh", "names-it-later"):
        assert os.access(Path(prefix) / "bin" / name, os.X_OK)


def test_variables_that_lead_to_an_environment(environment):
    lists = {
        "PYTHONPATH": f"/x:{environment}/more",
        "LD_LIBRARY_PATH": f"{environment}/lib:/y",
        "OTHER": str(environment),
    }
    real = str(environment.resolve())
    shown = run_in(environment, "env", **lists, PYTHON=f"{real}/bin/python", CONDA_PREFIX=f"{real}-2")
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    copy = found["VIRTUAL_ENV"]
    assert copy.endswith("/content/an environment") and found["PATH"].startswith(f"{copy}/bin:")
    assert found["PYTHON"] == f"{copy}/bin/python" and found["CONDA_PREFIX"] == f"{real}-2"
    assert found["PYTHONPATH"] == f"/x:{copy}/more" and found["LD_LIBRARY_PATH"] == f"{copy}/lib:/y"
    assert found["OTHER"] == str(environment)


def test_a_first_line_that_would_be_too_long_stays(environment):
    """Before Linux 5.1 the kernel cuts it."""
    folder = environment.parent.parent
    (folder / "real/short").mkdir()
    short = folder / "real/short"
    (short / "bin").mkdir()
    (short / "bin/script").write_text(f"#!{short}/bin/python\n")
    (folder / "disk").rename(folder / "moved")
    deep = folder / ("d" * 100)
    deep.mkdir()
    (folder / "disk").symlink_to(deep)
    words = pack(folder, "--environment", short)
    command = [sys.executable, "-I", "-B", ENTER, "--use", deep, *words, "--", "true"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SLURM_JOB_ID": "1"})
    (script,) = deep.glob("staged-*/*/content/short/bin/script")
    assert script.read_text() == f"#!{short}/bin/python\n"
