"""Who can connect to the ranks: a client of their port, as any user of the network could be, sends a pickle."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from baking import bake
from waiting import FOREVER, wait_for

TCPStore = pytest.importorskip("torch.distributed").TCPStore

# What each rank does: it tells where the ranks meet, and goes on once the neighbour is done.
PROGRAM = """\
import os, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
open(f"port-{os.environ['RANK']}", "w").write(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
while not os.path.exists("go"):
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


class Neighbour:
    """A pickle that makes a file where it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def attack(port, folder):
    """Write the pickle to every key of the store, and to the one by which c10d's nodes find each other."""
    pickled = base64.b64encode(pickle.dumps(Neighbour(folder / "ran"))).decode()
    store = TCPStore("127.0.0.1", int(port), is_master=False, timeout=timedelta(seconds=FOREVER))
    store.set(f"torch.rendezvous.run.0.{port}", pickled)
    for key in store.list_keys():
        if "rendezvous" in key:
            store.set(key, pickled)


@pytest.fixture
def start(tmp_path):
    """Start a node of a run, and end it with the test."""
    project = bake(tmp_path / "a", site="local")
    (tmp_path / "program.py").write_text(PROGRAM)
    nodes = []

    def call(**environment):
        clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "NPROC_PER_NODE": "1"}
        clean["GLOO_SOCKET_IFNAME"] = "lo"
        command = ["bash", str(project / "launch/torchrun.sh"), "program.py"]
        nodes.append(subprocess.Popen(command, cwd=tmp_path, env={**clean, **environment}, stderr=subprocess.DEVNULL))
        return nodes[-1]

    yield call
    for node in nodes:
        node.kill()
        node.wait()


def test_one_node_reads_no_pickle(start, tmp_path):
    node = start()
    wait_for(lambda: (tmp_path / "port-0").exists() and (tmp_path / "port-0").read_text(), "the rank", FOREVER)
    address, port = (tmp_path / "port-0").read_text().split(":")
    assert address == "127.0.0.1"
    attack(port, tmp_path)
    (tmp_path / "go").touch()
    assert node.wait(FOREVER) == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("backend", ["static", pytest.param("c10d", marks=pytest.mark.drill)])
def test_two_nodes(start, tmp_path, backend):
    """With the static backend nothing of a neighbour runs; with c10d it does, so the attack is one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nodes = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    first = start(**nodes, PET_NODE_RANK="0", TORCHRUN_OPTIONS=f"--rdzv-backend={backend}")
    attack(port, tmp_path)  # while node 0 waits for node 1
    if backend == "c10d":
        wait_for((tmp_path / "ran").exists, "the neighbour's command", FOREVER)
        return
    second = start(**nodes, PET_NODE_RANK="1")
    wait_for((tmp_path / "port-1").exists, "the ranks", FOREVER)
    attack(port, tmp_path)
    (tmp_path / "go").touch()
    assert (first.wait(FOREVER), second.wait(FOREVER)) == (0, 0)
    assert not (tmp_path / "ran").exists()
