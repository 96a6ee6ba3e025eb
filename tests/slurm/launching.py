"""What tests of launchers and of container runtimes share: an allocation, a program of one's own, a site with all."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from baking import REPOSITORY
from container_root import FAST_SQUASHFS, python_folders
from slurm_cluster import PATH
from two_nodes import ENVIRONMENT
from waiting import PATIENCE

from cluster_options.runtimes import IN_SRUN, KINDS, LAUNCHERS, PULLING

RUNTIMES = KINDS["slurm"]["runtimes"]
STAND_INS = REPOSITORY / "tests/clusters/stand_ins"
# All ranks meet rank 0, without torch, whose import would take most of the time; test_launchers.py has some with it.
OWN_PROGRAM = """\
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1  # torchrun itself has the other
assert os.environ.get("SET_LAST") != "by the entry"  # of apptainer at the site `everywhere`
total = rank
if rank == 0:
    if "REQUEUE_FILE" in os.environ:
        open(os.environ["REQUEUE_FILE"], "x").close()
    with socket.create_server(("", here[1]), backlog=world) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(f"{total}\\n".encode())
else:
    while True:
        try:
            with socket.create_connection(here) as peer:
                peer.sendall(f"{rank}\\n".encode())
                total = int(peer.makefile().readline())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
runtime = os.environ.get("STAND_IN_RUNTIME") or ("apptainer" if os.path.exists("/.singularity.d") else "host")
assert runtime != "apptainer" or "OF_THE_HOST" not in os.environ  # unset at the site `everywhere`
words = [rank, world, total, runtime, os.getcwd(), *sys.argv[1:]]
sys.stdout.write("RESULT " + "|".join(map(str, words)) + "\\n")
"""


# Of torchrun what many tests need: it starts the ranks, and tells them which they are. It spares the import of torch.
# The drills run the real one; test_minimal.py does in every run.
SHORT_TORCHRUN = """\
import os, subprocess, sys
end = sys.argv.index("--")
given = dict(word[2:].split("=", 1) for word in sys.argv[1:end])
nodes, node, each = (int(given[name]) for name in ("nnodes", "node-rank", "nproc-per-node"))
address, _, port = given.get("rdzv-endpoint", "").rpartition(":")
address, port = given.get("master-addr", address), given.get("master-port", port)
os.environ.update(WORLD_SIZE=str(nodes * each), MASTER_ADDR=address, MASTER_PORT=port)
command, ranks = [sys.executable, *sys.argv[end + 1 :]], []
for local in range(each):
    own = {"RANK": str(node * each + local), "LOCAL_RANK": str(local)}
    ranks.append(subprocess.Popen(command, env={**os.environ, **own}))
sys.exit(max(rank.wait() for rank in ranks))
"""


def write_short_torchrun(folder):
    """Write SHORT_TORCHRUN where python3 -m torch.distributed.run finds it: in the current folder, or PYTHONPATH."""
    (folder / "torch/distributed").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/distributed/__init__.py"):
        (folder / name).touch()
    (folder / "torch/distributed/run.py").write_text(SHORT_TORCHRUN)


def salloc(cluster, lines, *, cwd, timeout=PATIENCE, options=(), check=True, **environment):
    """Run lines of bash in an allocation of two nodes; stops at the first that fails."""
    command = [
        "salloc",
        "--nodes=2",
        "--gpus-per-node=2",
        "--cpus-per-task=8",
        *options,
        "bash",
        "-ec",
        "\n".join(lines),
    ]
    return cluster.run(*command, cwd=cwd, env={**ENVIRONMENT, **environment}, timeout=timeout, check=check)


def path_without(folder, *names):
    """Return a PATH with all programs but some, which are left out of a new folder of links."""
    folder.mkdir()
    for place in PATH.split(":"):
        for tool in Path(place).glob("*"):
            if tool.name not in names and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.fixture(scope="session")
def everywhere(tmp_path_factory):
    """A site that has every runtime and every launcher, and whose containers see this Python."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    text = re.sub("runtimes: .*", f"runtimes: [{', '.join(RUNTIMES)}]", text)
    text += "containers:\n  shifter: {options: [--module=gpu]}\n  podman-hpc: {options: [--gpu, --nccl]}\n"
    text += "  apptainer:\n    entry: [env, SET_LAST=by the entry]\n"
    text += "    entry_environment: [{name: SET_LAST, value: after it, why: x}]\n"
    text += "    unset: [{name: OF_THE_HOST, why: x}]\n"
    text += f"binds: [{', '.join(PYTHON_FOLDERS)}]\n"
    path = tmp_path_factory.mktemp("site") / "everywhere.yaml"
    path.write_text(text)
    return path


# The folders of the tests' Python, as far as no image has them.
PYTHON_FOLDERS = [sys.prefix, *map(str, python_folders())]


@pytest.fixture
def container_cluster(request):
    """The cluster that has a runtime: for apptainer one whose nodes are Debian 13 with Debian's Apptainer."""
    runtime = request.getfixturevalue("runtime")
    return request.getfixturevalue("containers" if runtime == "apptainer" else "cluster")


def stand_in_image(file):
    """An image as the stand-ins read it: this Python, a PATH of its own, and the variable of images with PyTorch."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTORCH_VERSION": "2.13.0"}
    file.write_text(json.dumps({"env": environment, "binds": PYTHON_FOLDERS, "workdir": "/"}))
    return file


@pytest.fixture
def surroundings(request):
    return partial(surroundings_of, request)


def surroundings_of(request, runtime, project, tmp_path, cluster):
    """What the environment of the tests adds for a runtime; the image is made by the project's own script."""
    if runtime == "venv":
        return {"VENV": sys.prefix, "PYTHON": "python3"}
    if runtime == "apptainer":  # what Docker saved elsewhere, and no time lost in packing it
        (project / "container/demo.tar").symlink_to(request.getfixturevalue("archive"))
        return {"APPTAINER_MKSQUASHFS_ARGS": FAST_SQUASHFS}
    if runtime == "none":
        return {}
    if os.geteuid() != 0:
        pytest.skip("the stand-ins mount things, as root")
    image = stand_in_image(tmp_path / "registry.json")
    ready = {} if (project / "slurm/build_container.sh").exists() else {"IMAGE": str(image)}
    return ready | {
        "PATH": f"{STAND_INS}:{Path(sys.executable).parent}:{PATH}",
        "STAND_IN_SPANK": runtime if runtime in IN_SRUN else "",
        "STAND_IN_HIDE": f"{tmp_path}:{project.parent}",
        "STAND_IN_IMAGE": str(image),
        "STAND_IN_LOG": str(tmp_path / "log"),
        "STAND_IN_GATEWAY": str(tmp_path / "gateway"),
        "STAND_IN_SITE_FS": f"{tmp_path}:{project}",
        "SCRATCH": str(tmp_path / "scratch"),
        "ENROOT_DATA_PATH": f"{cluster.node_local}/enroot",
    }


def get_image(cluster, project, runtime, environment):
    """Make the image of a project whose first job needs one; edf pulls it for the job."""
    if runtime not in PULLING and (project / "slurm/build_container.sh").exists():
        build_image(cluster, project, environment)


def build_image(cluster, project, environment):
    """Run slurm/build_container.sh to its end."""
    done = cluster.run("bash", "slurm/build_container.sh", cwd=project, env=environment)
    output = done.stdout
    if number := re.search(r"Submitted batch job (\d+)", output):
        job = cluster.wait(int(number[1]))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        output = job.output
    assert "ready: " in output, output
    return output


@pytest.fixture(scope="module")
def matrix(request):
    """Collects the cells, and prints them when the last test is done."""
    cells = {}
    yield cells
    width = max(map(len, RUNTIMES)) + 2
    lines = ["", "launcher x runtime, 2 nodes x 2 ranks; Slurm and Open MPI are real in every cell"]
    lines.append(" " * width + "".join(f"{launcher:14}" for launcher in LAUNCHERS))
    for runtime in RUNTIMES:
        row = [cells.get((runtime, launcher), "drill") for launcher in LAUNCHERS]
        lines.append(f"{runtime:{width}}" + "".join(f"{cell:14}" for cell in row).rstrip())
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n".join(lines))
