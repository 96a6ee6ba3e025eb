"""The project's own tests: they pass on a login node, with pytest and torch, without GPU or scheduler."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "OMPI_", "PMI"))}
CLEAN.update(PYTHON=sys.executable, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    CLEAN.pop(name, None)


def run(*command, **environment):
    return subprocess.run(
        [str(part) for part in command],
        env={**CLEAN, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("script", [PROJECT / "env.sh", *sorted(PROJECT.glob("*/*.sh"))], ids=lambda path: path.name)
def test_scripts_are_bash(script):
    assert run("bash", "-n", script).returncode == 0
    assert os.access(script, os.X_OK) or script.name == "env.sh"


def test_pi_on_two_nodes_of_two_processes(tmp_path):
    """The same wrapper as on the cluster, four ranks on this machine."""
    port = str(15000 + os.getpid() % 10000)
    common = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "NPROC_PER_NODE": "2"}
    pi = [PROJECT / "launch/torchrun.sh", PROJECT / "pi/pi.py", "--intervals", "1e6", "--json", tmp_path / "pi.json"]
    agents = [
        subprocess.Popen([str(part) for part in pi], env={**CLEAN, **common, "PET_NODE_RANK": str(node)})
        for node in range(2)
    ]
    assert [agent.wait(120) for agent in agents] == [0, 0]
    result = json.loads((tmp_path / "pi.json").read_text())
    assert result["world_size"] == 4
    assert abs(result["pi"] - math.pi) < 1e-12


def test_training_learns_and_continues(tmp_path):
    train = [sys.executable, PROJECT / "training/train_ddp.py", "--out", tmp_path, "--resume"]
    first = run(*train, "--steps", "6", "--json", tmp_path / "first.json")
    assert first.returncode == 0, first.stderr
    second = run(*train, "--steps", "12", "--json", tmp_path / "second.json")
    assert second.returncode == 0, second.stderr
    losses = [json.loads((tmp_path / name).read_text())["final_loss"] for name in ("first.json", "second.json")]
    assert losses[1] < losses[0] < math.log(256) + 0.5


def test_faults_are_named():
    spec = importlib.util.spec_from_file_location("ranks", PROJECT / "check/ranks.py")
    ranks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ranks)
    row = {
        "host": "a",
        "rank": 0,
        "uuid": "GPU-1",
        "given": "CUDA_VISIBLE_DEVICES=0,1",
        "cores": [0, 1],
        "host_cores": 4,
        "torch": "2",
        "nccl": "2",
    }
    assert ranks.faults([row, {**row, "rank": 1, "uuid": "GPU-2"}]) == []
    assert "ranks 0, 1 share one GPU of a" in ranks.faults([row, {**row, "rank": 1}])[0]
    assert "sees none" in ranks.faults([{**row, "uuid": ""}])[0]
