"""read_program of the submit scripts: which words name a program, and what it says of others; without a scheduler."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from baking import REPOSITORY, bake

PYTHON_TEXT = "import os\nprint(os.environ['RANK'])\n"
SPAWNS = "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=2)\n"
ONLY = "name only the program and its arguments, as in"


@pytest.fixture
def found(tmp_path):
    """Returns found(*words, cwd=…) -> exit code and what is printed, in a project beside the current folder."""
    (tmp_path / "project/pi").mkdir(parents=True)
    (tmp_path / "project/pi/pi.py").write_text(PYTHON_TEXT)
    (tmp_path / "here/package").mkdir(parents=True)
    (tmp_path / "bin").mkdir()

    def call(*words, cwd="here", function="read_program"):
        messages, program = (REPOSITORY / "templates" / name for name in ("messages.sh", "program.sh"))
        code = f"source '{messages}' x; source '{program}'; die() {{ echo \"$*\" >&2; exit 2; }}\n"
        code += 'DEFAULT_PROGRAM=check/ranks.py; "$@" && echo "${program:-}"'
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", code, "x", function, *words],
            env={"PATH": path, "PROJECT_DIR": str(tmp_path / "project")},
            cwd=tmp_path / cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert len(done.stderr.splitlines()) == (1 if done.returncode == 2 else 0), done.stderr
        return done.returncode, done.stdout.rstrip("\n") or done.stderr

    return call


def test_a_program_that_is_not_there_is_no_launch_command(found):
    """Its arguments may be Python files that are there. A variable may have a path for its value."""
    code, told = found("tran.py", "--config", "pi/pi.py")
    assert code == 2 and "no program 'tran.py', neither" in told and "not needed" not in told
    code, told = found("HF_HOME=/scratch/me", "pi/pi.py")
    assert code == 2 and "put variables before this command" in told


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.py", PYTHON_TEXT),
        ("lr=0.1.py", PYTHON_TEXT),
        ("a b.py", "#!/bin/bash\n"),  # its name says that it is Python's
        ("train", PYTHON_TEXT),
        ("mytrain", "#!/opt/venv/bin/python3.11\n" + PYTHON_TEXT),
        ("one-line", "print()"),
        ("python3_train.py", "print()"),
        ("app.pyz", "PK"),
        ("app.pex", "#!/usr/bin/env python3\nPK\3\4\0\0"),
        ("app.zip", "PK\3\4\0\0"),
    ],
)
def test_programs_of_python(found, tmp_path, name, text):
    (tmp_path / "here" / name).write_text(text)
    assert found(name, "--flag") == (0, name)
    assert found(str(tmp_path / "here" / name)) == (0, str(tmp_path / "here" / name))


def test_where_programs_are_looked_up(found, tmp_path):
    assert found("pi/pi.py", "x") == (0, f"{tmp_path}/project/pi/pi.py")
    assert found("pi/pi.py", cwd="project") == (0, "pi/pi.py")
    assert found("-m", "package.main") == (0, "-m")
    assert found("-m") == (2, "no program '-m': name a module, as in -m package.module\n")
    (tmp_path / "here/-e.py").write_text(PYTHON_TEXT)
    code, said = found("-e.py")
    assert code == 2 and said.startswith("no program '-e.py'") and "write ./-e.py" in said
    assert found("./-e.py") == (0, "./-e.py")
    assert found("./-e.py", function="starts_its_own_ranks") == (1, "")
    code, said = found()
    assert code == 2 and said.startswith(f"no program 'check/ranks.py', neither here nor in {tmp_path}/project: ")
    assert found("nosuch.py", cwd="project")[1].startswith(
        f"no program 'nosuch.py', neither here nor in {tmp_path}/project: name a Python file or a module, as in"
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.sh", "python x.py\n", "'run.sh' is no Python program by its name, and the launcher starts Python"),
        ("config.yaml", "a: 1\n", "'config.yaml' is no Python program by its name"),
        ("train.v2", PYTHON_TEXT, "'train.v2' is no Python program by its name"),
        ("x.ipynb", "{}\n", "'x.ipynb' is no Python program by its name"),
    ],
)
def test_files_that_are_no_programs(found, tmp_path, name, text, expected):
    (tmp_path / "here" / name).write_text(text)
    code, said = found(name)
    assert code == 2 and said.startswith(expected), said


@pytest.mark.parametrize(
    "words",
    [
        *("python x.py", "python3.11 -u x.py", "/usr/bin/python3 -m package.main", "accelerate launch x.py"),
        *("torchrun --nproc-per-node 2 x.py", "srun python x.py", "mpirun -np 4 x.py", "bash x.sh"),
    ],
)
def test_commands_that_start_python_or_the_ranks(found, tmp_path, words):
    (tmp_path / "here/x.py").write_text(PYTHON_TEXT)
    code, said = found(*words.split())
    assert code == 2 and said.startswith(f"no program '{words.split()[0]}': ") and ONLY in said, said


def test_words_that_are_no_files(found, tmp_path):
    for words, expected in (
        ("pi/pi", "no program 'pi/pi', neither here nor in {project}: name a Python file or a module"),
        ("uv run x.py", "no program 'uv', neither here nor in {project}: name a Python file or a module"),
        ("/nowhere/pi/pi.py", "no program '/nowhere/pi/pi.py', neither here nor in "),
        ("package", "'package' is a folder: name the program in it, or a package as -m package"),
    ):
        folders = {name: str(tmp_path / name) for name in ("here", "project")}
        code, said = found(*words.split())
        assert code == 2 and expected.format(**folders) in said, said


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SPAWNS, 0),
        (SPAWNS.replace("mp.spawn", "torch.multiprocessing.spawn"), 0),
        (SPAWNS.replace("mp.spawn", "mp.start_processes"), 0),
        ("from torch.multiprocessing import Process, spawn\nspawn(print)\n", 0),
        (PYTHON_TEXT + "self.comp.spawn(print)\n", 1),
        ("from torch.multiprocessing import spawn as start\nstart(print)\n", 0),
        ("from torch.multiprocessing import set_start_method  # spawn\n", 1),
        ("# from torch.multiprocessing import spawn\n" + PYTHON_TEXT, 1),
        ("from torch.multiprocessing import spawner\n", 1),
        ("from multiprocessing import spawn\n", 1),
        ("# mp.spawn(\n" + PYTHON_TEXT, 1),
        (SPAWNS + "local_rank = os.environ['LOCAL_RANK']\n", 1),  # does both: torchrun's ranks or its own
        ("demo.launch()\n", 1),
        (PYTHON_TEXT, 1),
    ],
)
def test_which_programs_start_their_own_ranks(found, tmp_path, text, code):
    (tmp_path / "here/x.py").write_text(text)
    assert found("x.py", function="starts_its_own_ranks") == (code, "")


SUBMIT = {"slurm": "slurm/submit_multinode.sh", "runai": "runai/submit_multinode.sh", "local": "local/submit.sh"}


@pytest.mark.parametrize("site", SUBMIT)
def test_each_submit_script_refuses(site, tmp_path):
    """Before anything else, so neither a scheduler nor pods are needed."""
    project = bake(tmp_path, site=site, **({"account": "lab"} if site == "runai" else {}))
    (project / "run.sh").write_text("#!/bin/bash\npython pi/pi.py\n")
    (project / "spawns.py").write_text(SPAWNS)
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "HOME": str(tmp_path)}
    environment |= {"RUNAI_CLI": "v2", "RUN_AS_UID": "1234", "RUN_AS_GID": "5678", "POD_PROJECT_DIR": "/volume/demo"}
    if site == "runai":
        text = (project / "env.sh").read_text()
        (project / "env.sh").write_text(re.sub(r"(?m)^VOLUMES=.*", "VOLUMES=(claim:/volume)", text))
    script = [SUBMIT[site], *(["--dry-run"] if site == "runai" else [])]
    for words, expected in (
        ("run.sh", "run.sh' is no Python program by its name, and the launcher starts Python"),
        ("accelerate launch pi/pi.py", ONLY),
        ("pi", "is a folder: name the program in it"),
        ("nosuch.py", f"no program 'nosuch.py', neither here nor in {project}: name a Python file or a module"),
    ):
        done = subprocess.run(
            ["bash", *script, *words.split()], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
        assert expected in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    if site == "slurm":  # in the job; at submission sbatch is looked for first: test_slurm.py
        return
    done = subprocess.run(
        ["bash", *script, "spawns.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    way = {"local": f"run it without this script, {sys.executable} spawns.py", "runai": "NPROC_PER_NODE=1 bash runai/"}
    assert done.returncode == 2 and "spawns.py starts its own ranks" in done.stderr, done.stderr
    assert way[site] in done.stderr, done.stderr


def test_logs_hide_themselves_from_git(found, tmp_path):
    repository = tmp_path / "project"
    assert found(function="make_logs_folder") == (0, "")
    (repository / "logs/1.0").mkdir()
    (repository / "logs/1.0/out").write_text("x")
    subprocess.run(shlex.split("git init -q ."), cwd=repository, check=True)
    listed = subprocess.check_output(shlex.split("git status --porcelain -uall"), cwd=repository, text=True)
    assert listed == "?? pi/pi.py\n"
    (repository / "logs/.gitignore").write_text("!kept\n")  # somebody's own stays
    assert found(function="make_logs_folder") == (0, "")
    assert (repository / "logs/.gitignore").read_text() == "!kept\n"
