"""How long does each launcher take on a real Slurm?

    python perf/launchers.py [--rounds 5]

Each launcher starts 2 nodes x 2 ranks. The ranks import torch, meet over gloo and end. One job holds all starts. The
launchers take turns in changing order, each through slurm/submit_multinode.sh. Each round gives a launcher's ratio to
torchrun, and the program prints the median of the rounds.

All "nodes" are this one machine, whose few cores pay for every import of torch. On a cluster the differences are of
another size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters", "perf")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slurm_cluster import Cluster  # noqa: E402
from start import PROGRAM  # noqa: E402

from cluster_options.runtimes import LAUNCHERS  # noqa: E402


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Start of 2 nodes x 2 ranks by each launcher.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each launcher (default: 5)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: expected at least 1")
    launchers = LAUNCHERS
    turns = [launchers if turn % 2 == 0 else launchers[::-1] for turn in range(-1, rounds)]  # turn -1 fills caches
    timed = "\n".join(
        f"a=$EPOCHREALTIME; LAUNCHER={launcher} bash slurm/run_here.sh program.py >/dev/null\n"
        f"b=$EPOCHREALTIME; echo {launcher} $((${{b/./}} - ${{a/./}}))"
        for turn in turns
        for launcher in turn
    )
    environment = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "cluster", nodes=2) as cluster:
        project = bake(Path(folder), "--overwrite-if-exists", site="slurm", nodes="2", gpus_per_node="2", extras="mpi")
        (project / "program.py").write_text(PROGRAM)
        command = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8", "bash", "-ec", timed]
        lines = cluster.run(*command, cwd=project, env=environment, timeout=60 * (rounds + 1)).stdout.splitlines()
    times = {launcher: [] for launcher in launchers}
    for line in lines[len(launchers) :]:
        launcher, microseconds = line.split()
        times[launcher].append(int(microseconds) / 1e6)

    print(f"start and end of 2 nodes x 2 ranks, {rounds} rounds, {os.cpu_count()} cores\n")
    print(f"{'launcher':<14} {'median':>8} {'range':>14} {'to torchrun':>12}")
    for launcher, seconds in times.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, times["torchrun"]))
        span = f"{min(seconds):.2f}-{max(seconds):.2f}"
        print(f"{launcher:<14} {statistics.median(seconds):6.2f} s {span:>14} {ratio:12.2f}")


if __name__ == "__main__":
    main()
