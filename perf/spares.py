"""How long until a job whose node has died makes its next step, with a spare node and by a requeue?

    python perf/spares.py [--rounds 3]

A training of two nodes of two ranks, on a real Slurm of four nodes. In the middle of the run the power of one of its
nodes fails. In turns, the job has a spare (SPARES=1), or none, so that Slurm puts it back into the queue. Nobody else
waits there: on a real cluster the requeue takes longer by the wait in the queue.

The seconds count from the fault to the first new step. Slurm notices the fault after some of them, SlurmdTimeout and
more, which both ways have in common: they are also shown without. A requeued job may start only when the credentials
of its first start have expired, which is Slurm's own default here (120 s). All nodes are this one machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters", "tests/slurm")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slurm_cluster import Cluster  # noqa: E402
from two_nodes import ANSWERS, ENVIRONMENT  # noqa: E402
from waiting import wait_for  # noqa: E402

CONF = "SlurmdTimeout=5\nAuthInfo=socket=/run/munge.sock"
TRAINING = "--steps 100000 --save-every 20 --log-every 1 --eval-every 1000000 --timeout 10"
TRAINING += " --layers 1 --width 32 --context 32 --global-batch 8"
WAYS = {"spare": ("--nodes=3", "--no-kill"), "requeue": ("--nodes=2",)}


def newest_step(run: Path) -> int:
    """Return the newest step in metrics.jsonl, 0 if there is none; the last line may not be whole yet."""
    steps = [0]
    with suppress(OSError, ValueError):
        for line in (run / "metrics.jsonl").read_text().splitlines():
            steps.append(json.loads(line)["step"])
    return steps[-1]


def seconds_to_the_next_step(cluster: Cluster, project: Path, folder: Path, way: str) -> tuple[float, float]:
    """Break a node of a new run; return the seconds until Slurm knew it, and until the first new step."""
    command = [*WAYS[way], project / "slurm/submit_multinode.sh", "training/train_ddp.py", *TRAINING.split()]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "SPARES": "1" if way == "spare" else "0"}
    job = cluster.sbatch(*command, "--out", folder / "run", cwd=folder, env=environment)
    output = folder / f"demo-{job}.out"
    wait_for(lambda: newest_step(folder / "run") >= 30, "step 30")
    begin = time.monotonic()
    cluster.crash("node2")
    wait_for(lambda: "down" in cluster.run("sinfo", "-hN", "-n", "node2", "-o", "%T").stdout, "Slurm")
    noticed = time.monotonic() - begin

    def went_on() -> bool:
        starts = re.findall(r"start   at step (\d+)", output.read_text())
        return len(starts) == 2 and newest_step(folder / "run") > int(starts[1])

    wait_for(went_on, "the first new step")
    seconds = time.monotonic() - begin
    cluster.run("scancel", str(job))
    cluster.wait(job)
    cluster.boot("node2")
    cluster.wait_for_nodes()
    (project / "logs/bad_nodes").unlink(missing_ok=True)  # else the next job would take node2 for its spare
    return noticed, seconds


def main() -> None:
    """Break nodes in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (3)")
    rounds = parser.parse_args().rounds
    found = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="spares-") as temporary:
        home = Path(temporary)
        project = bake(home / "project", **ANSWERS, extras="spares")
        with Cluster(home / "c", nodes=4, extra_conf=CONF) as cluster:
            for number in range(rounds):
                for way in WAYS:
                    folder = home / f"{way}{number}"
                    folder.mkdir()
                    found[way].append(seconds_to_the_next_step(cluster, project, folder, way))
                    print(f"# {way}: known to Slurm after {found[way][-1][0]:.1f} s, ", end="")
                    print(f"first new step after {found[way][-1][1]:.1f} s", flush=True)
    total = {way: statistics.median(seconds for _, seconds in found[way]) for way in WAYS}
    after = {way: statistics.median(seconds - noticed for noticed, seconds in found[way]) for way in WAYS}
    print(f"{'':30}{'spare':>10}{'requeue':>10}{'ratio':>10}")
    for name, row in (("from the fault [s]", total), ("from Slurm's notice of it [s]", after)):
        print(f"{name:30}{row['spare']:10.1f}{row['requeue']:10.1f}{row['spare'] / row['requeue']:10.2f}")


if __name__ == "__main__":
    main()
