"""What a written project's page on one's own program tells users to do, done as it says, on Slurm and here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import argument_for_hydra, bake, page
from needs import needs_namespaces
from two_nodes import ANSWERS, PYTHON_ON_CPUS

# Reads a relative path, and prints its argument as hydra would read it.
PROGRAM = """\
import os, re, sys
text = open("data/train.txt").read().strip()
argument = re.sub(r"[$]{oc[.]env:(\\w+)}", lambda found: os.environ[found[1]], sys.argv[1])
# one write: of a line in pieces, torchrun's --tee may prefix each
sys.stdout.write(f"read {text}, {argument}\\n")
"""


def test_it_shows_the_smallest_program_whole(written):
    project = written(site="slurm", extras="all")
    hello = (project / "check/hello.py").read_text()
    assert hello and f"```python\n{hello}```\n" in page(project, "your-own-program")


@pytest.fixture
def folder(tmp_path):
    """Where the user works: a program, and its data beside it. The project is elsewhere."""
    folder = tmp_path / "my work"
    (folder / "data").mkdir(parents=True)
    (folder / "data/train.txt").write_text("forty-two\n")
    (folder / "own.py").write_text(PROGRAM)
    return folder


def test_relative_paths_and_one_folder_for_hydra(folder, tmp_path):
    project = bake(tmp_path / "local", site="local")
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", project / "local/submit.sh", "own.py", argument_for_hydra(project)]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named = re.findall(r"read forty-two, hydra\.run\.dir=(.*)", done.stdout)
    assert len(named) == 4 and len(set(named)) == 1, done.stdout
    assert Path(named[0]).parent == project / "logs" and Path(named[0]).is_dir()


@pytest.mark.parametrize("version", ["cluster", pytest.param("cluster24", marks=pytest.mark.drill)])
def test_relative_paths_and_one_folder_for_hydra_on_slurm(request, version, folder, tmp_path):
    cluster = request.getfixturevalue(version)
    needs_namespaces(cluster)
    project = bake(tmp_path / "slurm", **ANSWERS)
    submit, environment = project / "slurm/submit_multinode.sh", PYTHON_ON_CPUS
    job = cluster.submit(submit, "own.py", argument_for_hydra(project), cwd=folder, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"] read forty-two, hydra.run.dir=outputs/{job.id}\n") == 4, job.output
