"""LAUNCHER=mpirun and mpirun-ranks on a real Slurm, with a real Open MPI: alone, and in what a job may go through.

Under all extras at once, and in containers, they run in tests/slurm/test_launchers.py and test_containers.py.
"""

from __future__ import annotations

import re
import shutil

import pytest
from baking import bake
from launching import path_without
from slurm_cluster import PATH
from submitting import STRAY, cluster, python_environment
from two_nodes import ANSWERS, MPIRUN_AS_ROOT

LAUNCHERS = ["mpirun", "mpirun-ranks"]
SHOW = """\
import os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "RESTART_COUNT", "SLURM_ARRAY_TASK_ID")
words = [os.environ.get(name, "-") for name in names]
sys.stdout.write("RESULT " + "|".join([*words, *sys.argv[1:]]) + "\\n")
"""
AGAIN = "again_after_launch() { case $RESTART_COUNT in 0) outcome=restart ;; 1) outcome=requeue ;; esac; }\n"
OWN_RANKS = "import torch.multiprocessing as mp\ndef worker(rank): pass\nmp.spawn(worker, nprocs=2)\n"


def environment(launcher, **more):
    return python_environment(**MPIRUN_AS_ROOT, LAUNCHER=launcher, NPROC_PER_NODE="2", **more)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with this extra alone, in a folder with a space in its name."""
    project = bake(tmp_path_factory.mktemp("a b") / "mpi", **ANSWERS, extras="mpi")
    (project / "show.py").write_text(SHOW)
    (project / "own_ranks.py").write_text(OWN_RANKS)
    return project


def submit(cluster, project, *words, **more):
    """Type the command on the login node, and return the job at its end."""
    typed = ["bash", project / "slurm/submit_multinode.sh", *words]
    done = cluster.run(*typed, cwd=project, env=more)
    return cluster.wait(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_nodes_of_two_ranks(cluster, project, launcher):
    """Whatever another mpirun and another step have left in the shell."""
    left = {name: STRAY[name] for name in STRAY if name.startswith(("OMPI_", "PMI"))}
    job = submit(cluster, project, "show.py", "a b", **environment(launcher, **left))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    found = sorted(re.findall(r"RESULT (.*)", job.output))
    processes = [0, 1, 2, 3] if launcher == "mpirun-ranks" else [0, 0, 1, 1]  # one per node starts its ranks
    assert found == [f"{rank}|4|{rank % 2}|{processes[rank]}|0|-|a b" for rank in range(4)], job.output


def test_in_an_array_after_a_restart_and_after_a_requeue(cluster, project, tmp_path):
    again = shutil.copytree(project, tmp_path / "again")
    (again / "extras/again").mkdir()
    (again / "extras/again/hooks.sh").write_text(AGAIN)
    (again / "extras/again/settings.sh").touch()
    job = submit(cluster, again, "--array=3", "--", "show.py", **environment("mpirun-ranks"))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    found = sorted(re.findall(r"RESULT (.*)", job.output))
    assert found == sorted(f"{r}|4|{r % 2}|{r}|{attempt}|3" for r in range(4) for attempt in range(3)), job.output


def test_an_mpirun_that_has_lost_a_node_has_failed(cluster, project, tmp_path):
    """Open MPI 5.0.7 says so, and ends with exit code 0; the drill of test_spares.py in Apptainer has the real one."""
    lost = "PRTE has lost communication with a remote daemon."
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec echo "mpirun (Open MPI) 5.0.7"\necho "{lost}" >&2\n')
    mpirun.chmod(0o755)
    words = [project / "slurm/submit_multinode.sh", "check/hello.py"]
    for options in ([], [f"--error={tmp_path}/errors"]):
        env = environment("mpirun-ranks", PATH=f"{tmp_path}:{PATH}")
        job = cluster.submit(*options, *words, cwd=tmp_path, env=env)
        assert (job.state, job.exit_code) == ("FAILED", 1), job.output
        assert (f"\n{lost}\n" in job.output) == (not options), job.output  # the doctor quotes it in both


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(cluster, project, *words, **env):
    done = cluster.run("bash", "slurm/submit_multinode.sh", *words, cwd=project, env=env, check=False)
    assert done.returncode == 2 and "Submitted" not in done.stdout, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_without_the_extra(cluster, project, tmp_path, launcher):
    """Its folder was deleted: on the login node, and in a job that waited meanwhile."""
    bare = shutil.copytree(project, tmp_path / "bare")
    typed = ["bash", bare / "slurm/submit_multinode.sh", "--hold", "--", "show.py"]
    done = cluster.run(*typed, cwd=bare, env=environment(launcher))
    number = int(re.search(r"Submitted batch job (\d+)", done.stdout)[1])
    shutil.rmtree(bare / "extras")
    said = f"LAUNCHER={launcher}: extras/mpi is not in this project. To add it: cookiecutter "
    shown = refused(cluster, bare, "show.py", **environment(launcher))
    assert said in shown and " extras=+mpi (in the folder above the project)" in shown
    cluster.run("scontrol", "release", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code) == ("FAILED", 2) and said in job.output, job.output


def test_without_mpirun(cluster, project, tmp_path):
    path = path_without(tmp_path / "bin", "mpirun", "mpirun.openmpi")
    said = refused(cluster, project, "show.py", **environment("mpirun", PATH=path))
    assert "LAUNCHER=mpirun needs Open MPI's mpirun, which was not found" in said


def test_a_program_that_torchrun_cannot_start(cluster, project):
    """Nor can it under mpirun."""
    one = {**environment("mpirun"), "NPROC_PER_NODE": "1"}
    assert "own_ranks.py starts its own ranks" in refused(cluster, project, "own_ranks.py", **one)


def test_more_ranks_than_cores(cluster, project):
    lines = "LAUNCHER=mpirun-ranks NPROC_PER_NODE=9 bash slurm/run_here.sh show.py"
    done = cluster.run("salloc", "--nodes=2", "bash", "-c", lines, cwd=project, env=environment("x"), check=False)
    assert done.returncode == 2 and "NPROC_PER_NODE=9, but the job has 1 core(s) on each node" in done.stderr, done
