"""The versions of cookiecutter and Python that the template works with, and what older ones are told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, bake
from build_folder import one_at_a_time

from cluster_options.first_job import table

OLDEST, NEWEST = "2.2.0", "2.7.1"
BETWEEN = ("2.3.1", "2.4.0", "2.5.0", "2.6.0", "2.7.0")
ANSWERS = {"project": "demo", "site": "mn5", "account": "abc"}


def pythons():
    """Return the Python interpreters of this machine that are not the one of the tests, one of each minor version."""
    folders = [*map(Path, os.environ["PATH"].split(":")), *Path.home().glob(".pyenv/versions/*/bin")]
    versions = {}
    for path in [path for folder in folders for path in folder.glob("python3.*") if path.name[8:].isdigit()]:
        ask = [path, "-c", "import sys; print(sys.version_info[1], sys.executable)"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0:  # a shim of pyenv may lead nowhere
            minor, executable = done.stdout.strip().split(" ", 1)
            versions.setdefault((3, int(minor)), executable)
    versions.pop(sys.version_info[:2], None)
    return dict(sorted(versions.items()))


PYTHONS = pythons()
NEW = [path for version, path in PYTHONS.items() if version >= (3, 9)]
OLD = [path for version, path in PYTHONS.items() if version < (3, 9)]


def install(requirement, python=sys.executable):
    """Return a folder with a package and what it needs; it is kept in build/."""
    folder = REPOSITORY / "build" / f"{requirement}-{Path(python).name}"
    with one_at_a_time():
        if not folder.exists():
            command = [python, "-m", "pip", "install", "--quiet", "--target", f"{folder}.new", requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                shutil.rmtree(f"{folder}.new", ignore_errors=True)
                if "No matching distribution" in done.stderr and "from versions: none" not in done.stderr:
                    pytest.fail(done.stderr)
                pytest.skip(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
            Path(f"{folder}.new").rename(folder)
    return folder


def run(python, packages, *arguments, home):
    """Run a Python with one folder of packages and nothing else."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(packages)}
    command = [python, "-s", "-B", *map(str, arguments)]
    return subprocess.run(command, cwd=home, env=environment, input="", capture_output=True, text=True, check=False)


def assert_bakes_the_same(python, packages, tmp_path):
    words = [f"{name}={answer}" for name, answer in ANSWERS.items()]
    done = run(python, packages, "-m", "cookiecutter", "--no-input", REPOSITORY, *words, home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo is written for MareNostrum 5" in done.stdout
    same = ["diff", "-r", tmp_path / "demo", bake(tmp_path / "newest", **ANSWERS)]
    assert subprocess.run(same, capture_output=True, text=True, check=False).stdout == ""


# ---- cookiecutter ----------------------------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.parametrize("version", (OLDEST, *BETWEEN))
def test_cookiecutter(version, tmp_path):
    """Each writes, byte for byte, what the newest one writes, which all other tests run."""
    assert f"cookiecutter=={NEWEST}\n" in (REPOSITORY / "requirements-dev.txt").read_text()
    assert_bakes_the_same(sys.executable, install(f"cookiecutter=={version}"), tmp_path)


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("2.1.1", "this template needs cookiecutter 2.2 or newer, and this is 2.1.1"),
        pytest.param("1.7.3", "No module named 'needs_cookiecutter_2_1_or_newer'\n", marks=pytest.mark.drill),
    ],
)
def test_an_older_cookiecutter_says_what_is_missing(version, missing, tmp_path):
    packages = install(f"cookiecutter=={version}")
    done = run(sys.executable, packages, "-m", "cookiecutter", "--no-input", REPOSITORY, home=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "demo").exists()
    said = done.stdout + done.stderr
    assert said.startswith(f"Unable to load extension: {missing}") and said.count("\n") == 1


# ---- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", NEW, ids=lambda path: Path(path).name)
def test_another_python_compiles_everything(python, written, tmp_path):
    projects = [written(site=site, account="me" if site == "runai" else "") for site in ("slurm", "local", "runai")]
    files = [path for folder in (*projects, REPOSITORY / "tests", REPOSITORY / "perf") for path in folder.rglob("*.py")]
    files += REPOSITORY.glob("*.py")
    compiles = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, encoding='utf-8').read(), name, 'exec')"
    done = run(python, "", "-W", "error::SyntaxWarning", "-c", compiles, *files, home=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(python, "", REPOSITORY / "cluster_options", "describe", home=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("describe: scontrol") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("python", "version"),
    [(path, OLDEST) for path in NEW[:1]] + [pytest.param(path, "2.6.0", marks=pytest.mark.drill) for path in NEW],
    ids=lambda value: Path(value).name,
)
def test_another_python_bakes(python, version, tmp_path):
    """The oldest of each in every run; cookiecutter 2.6.0 is the newest for Python 3.9."""
    packages = install(f"cookiecutter=={version}", python)
    assert_bakes_the_same(python, packages, tmp_path)
    done = run(python, packages, REPOSITORY / "cluster_options", "table", home=tmp_path)
    assert done.stdout == table(), done.stderr


@pytest.mark.parametrize("python", OLD, ids=lambda path: Path(path).name)
def test_an_older_python_says_what_is_missing(python, tmp_path):
    for command in ("describe", "table"):
        done = run(python, "", REPOSITORY / "cluster_options", command, home=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("this template needs Python 3.9 or newer, and ") and done.stderr.count("\n") == 1


@pytest.mark.drill
@pytest.mark.parametrize("python", [path for path in OLD if path.endswith("3.8")], ids=lambda path: Path(path).name)
def test_cookiecutter_with_an_older_python_says_what_is_missing(python, tmp_path):
    packages = install("cookiecutter==2.5.0", python)
    done = run(python, packages, "-m", "cookiecutter", "--no-input", REPOSITORY, home=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("Unable to load extension: this template needs Python 3.9 or newer"), done.stderr


# ---- bash ------------------------------------------------------------------------------------------------------------

# EPOCHSECONDS and wait -f are of 5.0; wait -p, ${x@U} and SRANDOM of 5.1; ${ command; } of 5.3
NEWER_THAN_4_4 = r"EPOCH(REAL|SECONDS)|BASH_ARGV0|SRANDOM|\bwait( -\w+)* -[pf]|\$\{\w+(\[.\])?@[UuLKk]\}|\$\{[ |]"


def test_scripts_use_nothing_that_is_newer_than_bash_4_4():
    for script in [*TEMPLATE.rglob("*.sh"), *TEMPLATE.rglob("*.rc")]:
        assert not re.search(NEWER_THAN_4_4, script.read_text()), script
    assert all(re.search(NEWER_THAN_4_4, new) for new in ("wait -n -p pid", "${x@U}", "$EPOCHREALTIME", "${ date; }"))
