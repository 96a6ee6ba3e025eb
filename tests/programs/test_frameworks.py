"""Users' own scripts for Hugging Face Accelerate and Lightning, unchanged, through every launcher of a written project.

Both libraries guess from the environment who started them. Where a variable is missing they guess wrong, and each rank
may train alone, with exit code 0. Hence the scripts print who they are and what they have learnt.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from baking import REPOSITORY, bake
from debian_root import unfinished
from needs import needs_namespaces, skip_or_fail
from slurm_cluster import PATH
from two_nodes import ANSWERS, MPIRUN_AS_ROOT

pytestmark = pytest.mark.drill
SCRIPTS = Path(__file__).resolve().parent / "frameworks"
LAUNCHERS = ["torchrun", "srun", "spawn", "mpirun", "mpirun-ranks"]
NAMES = ["accelerate", "lightning"]
TORCHS_ABORT = "terminate called without an active exception"
# Variables of jobs around this one, and of MPI, that these libraries would believe.
STRAY = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "5"}
STRAY |= {"NODE_RANK": "5", "TORCHELASTIC_RUN_ID": "old", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}
STRAY |= {"PMI_SIZE": "3", "PMI_RANK": "1", "PMIX_RANK": "2", "SLURM_NTASKS": "5", "SLURM_PROCID": "3"}
STRAY |= {"SLURM_NTASKS_PER_NODE": "3"}


@pytest.fixture(scope="session")
def frameworks():
    """The folder with both libraries and what they import beside torch; installed once, then kept."""
    requirements = SCRIPTS / "requirements.txt"
    key = hashlib.sha256(f"{sys.version}\n{requirements.read_text()}".encode()).hexdigest()[:12]
    folder = REPOSITORY / "build/frameworks" / key
    if folder.is_dir():
        return folder
    with unfinished(folder) as new:
        # --no-deps: the tests' own torch is meant, and pip knows nothing of it where --target is given
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*pip, "--target", new, "-r", requirements], capture_output=True, text=True, check=False)
        if done.returncode:
            skip_or_fail(f"accelerate and lightning cannot be installed: {done.stderr[-1000:]}")
    return folder


@pytest.fixture(scope="session")
def environment(frameworks):
    """What the user's shell has: the libraries, and the word that Accelerate wants where torch sees no GPU."""
    mine = {"PYTHON": sys.executable, "PYTHONPATH": str(frameworks), "ACCELERATE_USE_CPU": "true"}
    return {**mine, **MPIRUN_AS_ROOT}


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project for two nodes of two ranks; the GPUs are invented."""
    return bake(tmp_path_factory.mktemp("a b"), **ANSWERS, extras="mpi")


@pytest.fixture(scope="session")
def alone(environment, tmp_path_factory):
    """What each script learns in one process, which sees all of every batch."""

    def run(name):
        command = [sys.executable, SCRIPTS / f"{name}_script.py"]
        # no PATH: a srun on it makes Lightning complain
        clean = {"HOME": str(tmp_path_factory.getbasetemp()), "CUDA_VISIBLE_DEVICES": "", **environment}
        done = subprocess.run(
            command, cwd=tmp_path_factory.mktemp(name), env=clean, capture_output=True, text=True, check=False
        )
        found = printed(done.stdout)
        assert [line[:3] for line in found] == [(0, 0, 1)], done.stdout + done.stderr
        return found[0][3]

    return {name: run(name) for name in NAMES}


@pytest.fixture
def cluster(cluster):
    """The cluster, if its nodes have names of their own."""
    needs_namespaces(cluster)
    return cluster


def printed(output):
    """What the ranks said, sorted: rank, local rank, number of ranks, checksum of the weights."""
    found = re.findall(r"rank (\d+) \((\d+)\) of (\d+), weights ([\d.]+);", output)
    return sorted((int(rank), int(local), int(ranks), float(weights)) for rank, local, ranks, weights in found)


def assert_trained_together(output, expected):
    """Four ranks have the same weights, and they are those of one process: gradients were averaged over all four."""
    found = printed(output)
    assert [line[:3] for line in found] == [(0, 0, 4), (1, 1, 4), (2, 0, 4), (3, 1, 4)], output
    weights = {line[3] for line in found}
    assert len(weights) == 1, output
    assert weights.pop() == pytest.approx(expected, abs=1e-4), output


def needs_mpirun(launcher):
    if launcher.startswith("mpirun") and not shutil.which("mpirun", path=PATH):
        skip_or_fail("mpirun is not installed: apt-get install openmpi-bin")


def until_torch_ends_well(run):
    """Run once more, at most twice, what torch itself aborted while it ended.

    A thread of gloo may drop the last reference to a tensor while Python is finalized, and Python before 3.14 ends such
    a thread so that C++ answers with SIGABRT. It takes busy cores, and no launcher can prevent it:
    https://github.com/pytorch/pytorch/issues/190489
    """
    for _attempt in range(3):
        failed, output = run()
        if not failed or TORCHS_ABORT not in output:
            break
        warnings.warn("torch aborted at the end of a run, see until_torch_ends_well", stacklevel=2)
    assert not failed, output
    return output


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_users_script_trains_on_two_nodes(cluster, project, environment, alone, tmp_path, launcher, name):
    needs_mpirun(launcher)
    script = shutil.copy(SCRIPTS / f"{name}_script.py", tmp_path)
    mine = {**environment, "LAUNCHER": launcher}

    def run():
        shutil.rmtree(tmp_path / "lightning_logs", ignore_errors=True)
        job = cluster.submit(project / "slurm/submit_multinode.sh", script, cwd=tmp_path, env=mine)
        return (job.state, job.exit_code) != ("COMPLETED", 0), job.output

    assert_trained_together(until_torch_ends_well(run), alone[name])
    if name == "lightning":  # rank 0 alone writes, for all nodes
        assert len(list(tmp_path.rglob("*.ckpt"))) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["cluster", "cluster24"])
def test_in_an_allocation_with_stray_variables(request, version, project, environment, alone, tmp_path, name):
    """salloc calls the job "interactive", which to Lightning means that Slurm did not start it."""
    slurm = request.getfixturevalue(version)
    needs_mpirun("mpirun")
    command = ["salloc", "--nodes=2", "--gpus-per-node=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    command += ["bash", project / "slurm/run_here.sh", SCRIPTS / f"{name}_script.py"]
    for launcher in LAUNCHERS:
        mine = {**environment, **STRAY, "LAUNCHER": launcher}

        def run(mine=mine):
            done = slurm.run(*command, cwd=tmp_path, env=mine, check=False)
            return done.returncode != 0, done.stdout + done.stderr

        assert_trained_together(until_torch_ends_well(run), alone[name])
