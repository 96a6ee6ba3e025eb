"""What does it cost a job to be watched?

    python perf/watch.py [--rounds 10]

A training of two nodes of one rank on a real Slurm. In turns of 20 seconds, extras/watch/watch.sh watches it every 5
seconds, or does not. Printed is the median of the ratios of steps per second, watched to unwatched, of two turns that
follow each other. Also printed: the CPU time of a sample of extras/watch/node.sh with four ranks of this machine. Ranks
and sampler share this machine's cores; on a real node the sampler has most cores for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters", "tests/slurm")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slurm_cluster import Cluster  # noqa: E402
from two_nodes import ANSWERS, ENVIRONMENT  # noqa: E402
from waiting import wait_for  # noqa: E402

TURN = 20.0  # seconds
TRAINING = "--steps 10000000 --save-every 10000000 --eval-every 10000000 --log-every 10"
TRAINING += " --layers 2 --width 64 --context 64 --global-batch 16"


def rows(run: Path) -> list[dict]:
    """Return the whole lines of metrics.jsonl."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps_per_second(run: Path, begin: float, end: float) -> float:
    """Return the speed between two times [s since 1970]."""
    steps = {row["time"]: row["step"] for row in rows(run) if begin <= row["time"] <= end}
    first, last = min(steps), max(steps)
    return (steps[last] - steps[first]) / (last - first)


def ratio_of_speeds(cluster: Cluster, project: Path, folder: Path, rounds: int) -> list[float]:
    """Return the speed of the watched training over that of the unwatched one, of each pair of turns."""
    run = folder / "run"
    words = [project / "slurm/submit_multinode.sh", "training/train_ddp.py", *TRAINING.split(), "--out", run]
    environment = {**ENVIRONMENT, "NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1", "MEASURE_EVERY": "0"}
    job = cluster.sbatch("--nodes=2", *words, cwd=folder, env=environment)
    wait_for(lambda: len(rows(run)) > 50, "the training")

    def turn(watched: bool) -> float:
        begin = time.time()
        if watched:
            # script: a terminal, without which extras/watch/watch.sh looks only once.
            watch = f"timeout --foreground --signal=INT {TURN} bash {project}/extras/watch/watch.sh {job} --every 5"
            cluster.run("script", "--quiet", "--command", watch, folder / "typescript", cwd=folder, check=False)
        else:
            time.sleep(TURN)
        return steps_per_second(run, begin, time.time())

    found = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        speeds = {watched: turn(watched) for watched in order}
        found.append(speeds[True] / speeds[False])
        print(f"  watched {speeds[True]:.1f}, unwatched {speeds[False]:.1f} steps/s", file=sys.stderr, flush=True)
    cluster.run("scancel", str(job))
    cluster.wait(job)
    return found


def seconds_per_sample(project: Path, samples: int = 20) -> float:
    """Return the CPU time of a sample [s], with four processes for ranks."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    ranks = [
        subprocess.Popen(sleeper, env={**environment, "SLURM_JOB_ID": "4711", "RANK": str(rank)}) for rank in range(4)
    ]

    def used(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = ["bash", project / "extras/watch/node.sh", "4711", "1", str(count)]
        told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert told.count("\nrank ") == 4 * count, told
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))

    try:
        return (used(samples + 1) - used(1)) / samples
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of turns (10)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = bake(folder / "project", **ANSWERS, extras="watch")
        sample = seconds_per_sample(project)
        with Cluster(folder / "cluster", nodes=2) as cluster:
            ratios = ratio_of_speeds(cluster, project, folder, rounds)
    print(f"steps per second, watched to unwatched: {statistics.median(ratios):.3f}", end="")
    print(f" (from {min(ratios):.3f} to {max(ratios):.3f}, {rounds} pairs)")
    print(f"CPU time of a sample: {1000 * sample:.0f} ms, of one core and 5 s: {sample / 5:.2%}")


if __name__ == "__main__":
    main()
