"""How long until all ranks have imported torch, from a slow shared file system and with STAGE=1?

    python perf/stage.py [--nodes 1,2,4,8] [--rounds 3] [--latency 0.001] [--bandwidth 5e8]

A virtual environment with torch lies on a file system that is slow on purpose (tests/clusters/slow_files.py). All nodes
have one server. Each lookup, stat, open and listing takes --latency seconds, and it reads --bandwidth bytes per second.
Each node caches for itself what it has read.
A job of one rank per node imports torch, on a real Slurm. In turns, its ranks read

    shared    the environment where it lies (STAGE=0)
    sbcast    a copy on their node's disk (STAGE=1): sbcast reads the pack once, and Slurm's daemons hand it on
    read      the same, but each node reads the pack from the shared file system

The seconds count from sbatch to the last rank that has imported torch. They include the copying, and not the packing,
which is done once when a job is submitted, and is shown by itself. The numbers of opens and bytes are those that the
shared file system was asked for. All nodes are this one machine, whose cores they share: eight nodes take longer than
one in any case. The disk of a node is memory here, 2 GB for each node while it unpacks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters", "tests/slurm")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slow_files import slow_files  # noqa: E402
from slurm_cluster import Cluster  # noqa: E402
from two_nodes import ANSWERS, PYTHON_ON_CPUS  # noqa: E402

PROGRAM = """\
import os, time
import torch
with open(os.path.join(os.environ["READY"], os.environ["RANK"]), "w") as file:
    file.write(str(time.time()))
"""
WAYS = ("shared", "sbcast", "read")


def environment_of_venv(venv: Path) -> None:
    """Make a virtual environment with this one's torch and the packages that it needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = venv / "lib" / version / "site-packages"
    for package in packages_of({"torch", "numpy"}):
        for file in distribution(package).files or []:
            original = Path(distribution(package).locate_file(file))
            if ".." not in file.parts and original.is_file():  # not the scripts in bin/
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(original, target / file)


def packages_of(names: set[str]) -> set[str]:
    """Return the packages that are installed of these and of those that they need."""
    found: set[str] = set()
    while names:
        name = names.pop()
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:  # for another platform
            continue
        found.add(name)
        needed = {re.match(r"[\w.-]+", line)[0] for line in requirements if "extra ==" not in line}
        names |= needed - found
    return found


def pack(project: Path, folder: Path) -> None:
    """Pack the environment, and put the packs on the file system that will be slow."""
    (folder / "shared/staged").mkdir()
    (project / "logs").mkdir(exist_ok=True)
    packs = project / f"logs/staged-{os.getuid()}"
    packs.symlink_to(folder / "shared/staged")
    script = [
        sys.executable,
        "-B",
        "extras/stage/pack.py",
        packs,
        "--environment",
        folder / "shared/venv",
    ]
    subprocess.run(script, cwd=project, check=True, stdout=subprocess.DEVNULL)


def start(cluster: Cluster, project: Path, folder: Path, way: str, nodes: int, counts) -> tuple[float, dict]:
    """Return the seconds from sbatch to the last rank, and what the shared file system was asked for meanwhile."""
    ready = folder / f"ready-{time.time_ns()}"
    ready.mkdir(parents=True)
    settings = {**PYTHON_ON_CPUS, "LAUNCHER": "srun", "OMP_NUM_THREADS": "1", "NPROC_PER_NODE": "1"}
    settings |= {"RUNTIME": "venv", "PYTHON": "python3", "VENV": str(folder / "shared/venv"), "READY": str(ready)}
    settings |= {"STAGE": "0" if way == "shared" else "1", "STAGE_DIR": "/dev/shm"}  # which is each node's own
    if way == "read":
        settings["PATH"] = f"{folder / 'no-sbcast'}:{os.environ['PATH']}"
    before, begin = counts(), time.time()
    script = ["bash", "slurm/submit_multinode.sh", f"--nodes={nodes}", "--", str(folder / "prog.py")]
    shown = cluster.run(*script, cwd=project, env=settings, check=True).stdout
    job = shown.split()[-1]
    submitted = time.time()
    cluster.wait(job, timeout=900)
    times = [float(file.read_text()) for file in ready.iterdir()]
    if len(times) != nodes:
        sys.exit((project / f"demo-{job}.out").read_text())
    asked = {name: number - before.get(name, 0) for name, number in counts().items()}
    return max(times) - submitted, {**asked, "submission": submitted - begin}


def main() -> None:
    """Start jobs in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,2,4,8", help="numbers of nodes (1,2,4,8)")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind (3)")
    parser.add_argument("--latency", type=float, default=0.001, help="seconds of a metadata operation (0.001)")
    parser.add_argument("--bandwidth", type=float, default=5e8, help="bytes per second (5e8)")
    args = parser.parse_args()
    sizes = [int(number) for number in args.nodes.split(",")]
    nodes = [f"node{number}" for number in range(1, max(sizes) + 1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment_of_venv(folder / "shared/venv")
        (folder / "prog.py").write_text(PROGRAM)
        (folder / "no-sbcast").mkdir()
        (folder / "no-sbcast/sbcast").write_text("#!/bin/sh\nexit 1\n")
        (folder / "no-sbcast/sbcast").chmod(0o755)
        project = bake(folder / "project", **ANSWERS, extras="stage")
        begin = time.time()
        pack(project, folder)
        print(f"packing: {time.time() - begin:.0f} s\n")
        (folder / "shared").rename(folder / "disks")
        (folder / "shared").mkdir()
        with (
            slow_files(folder / "disks", folder / "shared", args.latency, args.bandwidth, nodes) as counts,
            Cluster(folder / "cluster", nodes=max(sizes)) as cluster,
        ):
            bind = f'mount --bind "{folder}/shared-$SLURMD_NODENAME" "{folder}/shared"'
            cluster.run("srun", "--overcommit", f"--nodes={max(sizes)}", "sh", "-c", bind, check=True)
            print("nodes  way     seconds  opens   metadata operations  GB read  submission")
            for nodes in sizes:
                found: dict[str, list] = {way: [] for way in WAYS}
                for _ in range(args.rounds):
                    for way in WAYS:
                        found[way].append(start(cluster, project, folder, way, nodes, counts))
                for way in WAYS:
                    seconds = statistics.median(seconds for seconds, _ in found[way])
                    asked = found[way][-1][1]
                    metadata = sum(asked.get(name, 0) for name in ("getattr", "open", "readdir", "readlink"))
                    print(
                        f"{nodes:5}  {way:6}  {seconds:7.1f}  {asked.get('open', 0):5}  {metadata:19}"
                        f"  {asked.get('bytes', 0) / 1e9:7.2f}  {asked['submission']:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
