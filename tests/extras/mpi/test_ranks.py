"""extras/mpi/ranks.sh by itself: what launch/torchrun.sh and launch/rank.sh read behind it, and what it refuses."""

from __future__ import annotations

import os

import pytest
from baking import TEMPLATE
from test_launch import NAMES, PET, RANK, SIXTH, STEP, STRAY, WRAPPER, call, options_of

RANKS = TEMPLATE / "extras/mpi/ranks.sh"
NODE = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
NODE |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "m1", "MASTER_PORT": "22222"}
# Rank 5 of 6 on 3 nodes.
TASK = {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
TASK |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}


@pytest.mark.parametrize(
    "environment",
    [
        NODE,
        # every node believes to be node 0 of the step that started mpirun's own daemons
        {**STRAY, **STEP, "SLURM_NODEID": "0", **NODE},
    ],
)
def test_where_this_node_stands(call, environment):
    arguments, _, _ = call({**environment, "NPROC_PER_NODE": "2"}, WRAPPER, "x.py", "a b", "", wrapper=RANKS)
    assert arguments[-4:] == ["--", "x.py", "a b", ""]
    options = options_of(arguments[:-4])
    assert (options["nnodes"], options["node-rank"], options["rdzv-endpoint"]) == ("4", "1", "m1:22222")
    assert options["nproc-per-node"] == "2"


@pytest.mark.parametrize("environment", [TASK, {**STRAY, **STEP, "SLURM_NODEID": "0", "SLURM_LOCALID": "0", **TASK}])
def test_which_rank_this_is(call, environment):
    arguments, seen, _ = call(environment, RANK, "x.py", "--flag", "a b", "", wrapper=RANKS)
    assert arguments == ["x.py", "--flag", "a b", ""]
    assert tuple(seen[name] for name in NAMES) == SIXTH
    assert seen["SLURM_STEP_ID"]  # without it Open MPI 4, started by mpirun 5, runs alone


def test_the_ranks_of_a_node_share_its_cores(call):
    """Mpirun binds none of them."""
    cores = len(os.sched_getaffinity(0))
    for given, threads in ({"SLURM_CPUS_PER_TASK": "288"}, max(cores // 2, 1)), ({"OMP_NUM_THREADS": "5"}, 5):
        _, seen, _ = call({**TASK, **given}, RANK, "x.py", wrapper=RANKS)
        assert seen["OMP_NUM_THREADS"] == str(threads), given
    _, seen, _ = call({**NODE, "SLURM_CPUS_PER_TASK": "288", "NPROC_PER_NODE": "1"}, WRAPPER, "x.py", wrapper=RANKS)
    assert seen["OMP_NUM_THREADS"] == str(cores)  # torchrun shares them out itself


@pytest.mark.parametrize(
    ("environment", "words", "expected"),
    [
        ({}, [RANK, "x.py"], "Open MPI's mpirun has not started this"),
        (TASK, [], "expected launch/torchrun.sh or launch/rank.sh, and a program"),
        (TASK, ["x.py"], "expected launch/torchrun.sh or launch/rank.sh, and a program"),
        (TASK, [WRAPPER, "x.py"], "mpirun started 2 copies on this node, but one per node is wanted"),
        (TASK, [RANK], "no program given"),
        ({**TASK, "NPROC_PER_NODE": "3"}, [RANK, "x.py"], "once per rank is wanted, 3 times on each"),
    ],
)
def test_wrong_use_is_refused_in_a_sentence(call, environment, words, expected):
    _, _, done = call(environment, *words, wrapper=RANKS)
    assert done.returncode == 2
    assert expected in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
