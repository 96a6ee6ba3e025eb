"""What a written project's page on one's own program tells users to do, done as it says, on Slurm."""

from __future__ import annotations

import pytest
from baking import argument_for_hydra, bake
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


@pytest.mark.parametrize("version", ["cluster", pytest.param("cluster24", marks=pytest.mark.drill)])
def test_relative_paths_and_one_folder_for_hydra(request, version, tmp_path):
    """The user works in a folder with a program, and its data beside it. The project is elsewhere."""
    folder = tmp_path / "my work"
    (folder / "data").mkdir(parents=True)
    (folder / "data/train.txt").write_text("forty-two\n")
    (folder / "own.py").write_text(PROGRAM)
    cluster = request.getfixturevalue(version)
    needs_namespaces(cluster)
    project = bake(tmp_path / "slurm", **ANSWERS)
    submit, environment = project / "slurm/submit_multinode.sh", PYTHON_ON_CPUS
    job = cluster.submit(submit, "own.py", argument_for_hydra(project), cwd=folder, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"] read forty-two, hydra.run.dir=outputs/{job.id}\n") == 4, job.output
