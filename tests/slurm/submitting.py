"""What the tests share that submit jobs of a written project as a user would: clusters, a project, and environments."""

from __future__ import annotations

import sys

import pytest
from baking import bake
from container_root import python_folders
from needs import needs_namespaces
from two_nodes import ANSWERS, PYTHON_ON_CPUS

# What a login shell may hold when somebody has worked in it all day.
STRAY = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.9.9.9"}
STRAY |= {"MASTER_PORT": "1", "PET_NNODES": "5", "PET_NODE_RANK": "4", "PET_STANDALONE": "1", "PET_RDZV_ID": "x"}
STRAY |= {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "PMI_RANK": "1",
    "PMIX_RANK": "2",
    "GROUP_RANK": "5",
}
STRAY |= {"SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_STEP_NUM_NODES": "7", "SLURM_STEP_NUM_TASKS": "9"}
STRAY |= {"SLURM_NTASKS": "5", "SLURM_NNODES": "4", "TORCHELASTIC_RUN_ID": "old", "CUDA_VISIBLE_DEVICES": "7"}


# Fixtures of clusters, for params: this machine's Slurm, and the newer ones as drills.
THIS_AND_NEWER = ["cluster", *(pytest.param(name, marks=pytest.mark.drill) for name in ("cluster24", "cluster26"))]


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project, in a folder with a space in its name. Its only extra adds the launchers mpirun and mpirun-ranks."""
    return bake(tmp_path_factory.mktemp("a b") / "slurm", **ANSWERS, extras="mpi")


@pytest.fixture(scope="session")
def project_of_extras(tmp_path_factory):
    """A project with all extras."""
    return bake(tmp_path_factory.mktemp("a b") / "extras", **ANSWERS, extras="all")


def apptainer_project(tmp_path_factory, sif, extras):
    """Return a project whose ranks run in an image that sees this Python."""
    answers = {**ANSWERS, "runtime": "apptainer", "image": sif, "extras": extras}
    project = bake(tmp_path_factory.mktemp("a b") / "apptainer", **answers)
    settings = project / "env.sh"
    binds = "".join(f"    {path!s}\n" for path in (sys.prefix, *python_folders()))
    settings.write_text(settings.read_text().replace("BINDS=(\n", f"BINDS=(\n{binds}"))
    return project


@pytest.fixture(scope="session")
def cluster(cluster):
    """The cluster, if its nodes have names of their own; else test_nodes_side_by_side is what is left."""
    needs_namespaces(cluster)
    return cluster


@pytest.fixture(params=["cluster", "cluster24", pytest.param("cluster26", marks=pytest.mark.drill)])
def each_slurm(request):
    """One version of Slurm after the other; among the drills the newest one too."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=THIS_AND_NEWER)
def usual_slurm(request):
    """This machine's Slurm; among the drills the newer ones too."""
    return request.getfixturevalue(request.param)


def python_environment(**environment):
    """Return what a user sets to run on CPUs although the cluster gives out (invented) GPUs, with the tests' Python."""
    return {**PYTHON_ON_CPUS, **environment}


def spawn_environment(**environment):
    """Return the same with the launcher that imports torch once per node, for where any launcher will do."""
    return python_environment(LAUNCHER="spawn", **environment)
