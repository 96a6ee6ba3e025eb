"""The project's own tests: they pass on a login node, with pytest and torch, without GPU or scheduler.

What it starts gets a thread for each process, and none of the variables of a job in whose shell this may run.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
OTHERS = ("SLURM_", "PET_", "OMPI_", "PMI", "RANK", "WORLD_", "LOCAL_", "MASTER_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
PATIENCE = 600  # seconds; login nodes are often busy
CLEAN.update(PYTHON=sys.executable, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")


def start(*command, **environment):
    return subprocess.Popen([str(part) for part in command], env={**CLEAN, **environment})


def test_scripts_are_bash():
    for script in [PROJECT / "env.sh", *PROJECT.glob("*/*.sh")]:
        assert start("bash", "-n", script).wait(PATIENCE) == 0


def test_pi_on_two_nodes_of_two_processes(tmp_path):
    """The same wrapper as on the cluster, four ranks on this machine."""
    pi = ["bash", PROJECT / "launch/torchrun.sh", PROJECT / "pi/pi.py"]
    pi += ["--intervals", "1e6", "--json", tmp_path / "pi.json"]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(15000 + os.getpid() % 10000), "NPROC_PER_NODE": "2"}
    # Where a node stands in the run: as srun tells it, and as torchrun reads it.
    where |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "PET_NNODES": "2"}
    agents = [start(*pi, **where, SLURM_NODEID=str(node), PET_NODE_RANK=str(node)) for node in range(2)]
    assert [agent.wait(PATIENCE) for agent in agents] == [0, 0]
    result = json.loads((tmp_path / "pi.json").read_text())
    assert result["world_size"] == 4
    assert abs(result["pi"] - math.pi) < 1e-12


def test_training_learns_and_continues(tmp_path):
    train = [sys.executable, PROJECT / "training/train_ddp.py", "--out", tmp_path, "--resume", "--global-batch", "16"]
    losses = []
    for steps in ("10", "20"):
        assert start(*train, "--layers", "1", "--steps", steps).wait(PATIENCE) == 0
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        losses.append([row["loss"] for row in rows if "loss" in row][-1])
    assert losses[1] < losses[0] < math.log(256) + 0.5
