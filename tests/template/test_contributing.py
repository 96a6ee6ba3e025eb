"""CONTRIBUTING.md is true: its steps are walked on a copy of the repository, with the very blocks that it shows.

A block of bash is run. One after a sentence that ends with a name, as in "In `sites/lab.yaml`:", is what that file
shall be; if it is a diff, what is changed in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from baking import REPOSITORY
from waiting import INSTALLATION

TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
BLOCK = re.compile(r"^(?:(?P<before>[^\n]+)\n\n)?   ```(?P<kind>\w+)\n(?P<text>.*?)^   ```$", re.M | re.S)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository as it is, with the environment that runs the tests."""
    copy = tmp_path_factory.mktemp("contributing") / "template"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".pytest_cache", ".ruff_cache")
    shutil.copytree(REPOSITORY, copy, ignore=left_out)
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


def edit(path, diff):
    """Apply what a diff shows; the lines that are to be there have to be there, once."""
    text = path.read_text()
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(f"({re.escape(line[1:])})" for line in lines if line[0] != "+").replace("…", ".*")
        found = list(re.finditer(f"^{old}", text, re.M))
        assert len(found) == 1, f"{path.name} has these lines {len(found)} times, not once:\n{hunk}"
        there = iter(found[0].groups())
        new = [line[1:] if line[0] == "+" else next(there) for line in lines]
        new = "".join(one for one, line in zip(new, lines) if line[0] != "-")
        text = text[: found[0].start()] + new + text[found[0].end() :]
    path.write_text(text)


def run(line, copy):
    """Run a line of bash as it stands, but do not let make renew the environment that the tests run in."""
    line = re.sub(r"^make ", "make -o .venv/ready ", line)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment.update(HOME=str(copy.parent), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALLATION,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def walk(section, copy):
    """Do what the steps of a section say; return what was printed."""
    steps = re.split(r"^\d\. ", SECTIONS[section], flags=re.M)[1:]
    assert 1 <= len(steps) <= 5
    printed = ""
    for step in steps:
        blocks = list(BLOCK.finditer(step))
        assert len(blocks) == step.count("```") / 2
        for block in blocks:
            text = textwrap.dedent(block["text"])
            if block["kind"] == "bash":
                printed += "".join(run(line, copy) for line in text.splitlines())
                continue
            path = copy / re.search(r"`([^`]+)`:$", block["before"])[1]
            if block["kind"] == "diff":
                edit(path, text)
            else:
                assert not path.exists()
                path.write_text(text)
    return printed


@pytest.mark.drill
def test_add_a_site(copy):
    printed = walk("Add a site", copy)
    assert "lab is written for our laboratory's cluster" in printed and " passed" in printed
    assert "#SBATCH --gres=gpu:4" in (copy / "build/lab/slurm/submit_multinode.sh").read_text()
    assert "\n| `lab` | [our laboratory's cluster](" in (copy / "docs/sites.md").read_text()
    shown = (copy / "build/lab/slurm/docs/cluster.md").read_text()
    assert "Whether compute nodes reach the internet." in shown and "/scratch/$USER" in shown


@pytest.mark.drill
def test_add_a_cause(copy):
    printed = walk("Add a cause of failure", copy)
    assert " passed" in printed and "failed" not in printed


@pytest.mark.drill
def test_add_an_extra(copy):
    printed = walk("Add an extra", copy)
    assert " passed" in printed and "failed" not in printed
    run(".venv/bin/cookiecutter --no-input --output-dir build . project=more site=slurm extras=logsize", copy)
    assert (copy / "build/more/extras/logsize/hooks.sh").is_file()


@pytest.mark.drill
def test_add_a_runtime(copy):
    """On top of the site that was added before."""
    if not (copy / "sites/lab.yaml").exists():
        walk("Add a site", copy)
    walk("Add a runtime", copy)
    run(".venv/bin/cookiecutter --no-input --output-dir build . project=charlie site=lab", copy)
    assert "'charliecloud'" not in run("ls build/charlie/slurm build/charlie/container 2>&1 || true", copy)
    assert "CONTAINER_EXEC=(ch-run " in (copy / "build/charlie/launch/software.sh").read_text()
