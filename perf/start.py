"""What do our scripts cost? A start through launch/torchrun.sh against a bare torchrun, and the scripts by themselves.

    python perf/start.py [--rounds 7]

Three ways start two ranks, which import torch, meet over gloo and end:

- through launch/torchrun.sh: the wrapper.
- torchrun --tee=3: the same choices. They are one node, two processes, static rendezvous, and lines that name their
  rank.
- torchrun: without --tee, to show the cost of these lines.

The ways take turns in changing order. Each round gives a ratio, and the program prints the median of the rounds. A
missed target does not change the exit code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WRAPPER = REPOSITORY / "{{cookiecutter.project}}/launch/torchrun.sh"
PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()  # a rank that left at once could end while its peer is still connecting to it
dist.destroy_process_group()
"""
RATIO, OWN = 1.05, 0.1  # targets: wrapper / bare, and the wrapper's own seconds
CALLS = 20  # of the wrapper by itself
QUIET = 0.05  # share of the CPUs that others may use before a figure should be repeated
STRAY = ("SLURM_", "PET_", "OMPI_", "PMI", "TORCHELASTIC_", "MASTER_", "LOCAL_")


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """Return this environment without the variables that a job or a launcher left in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STRAY)}
    for name in ("RANK", "WORLD_SIZE", "RUN_DIR"):
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def time_of(command: list[str], env: dict[str, str]) -> float:
    """Return the seconds that `command` takes. If it fails, print its messages and raise CalledProcessError."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - started
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return elapsed


def through_wrapper(program: str, python: str) -> float:
    """Return the seconds of a start of `program` through the wrapper, with `python` as the interpreter."""
    here = {
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
    }
    return time_of(["bash", str(WRAPPER), program], environment(**here, NPROC_PER_NODE="2", PYTHON=python))


def bare(program: str, *more: str) -> float:
    """Return the seconds of a start of `program` by torchrun alone, with `more` options."""
    options = ["--nnodes=1", "--node-rank=0", "--nproc-per-node=2", *more]
    options += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return time_of([sys.executable, "-m", "torch.distributed.run", *options, program], environment())


def cpu_seconds() -> tuple[float, float, float]:
    """Return three clocks in seconds: wall time, CPU time of all cores of this machine, CPU time of this run."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle time and waits for a disk
    return time.perf_counter(), busy, sum(os.times()[:4])


def through_submit(folder: Path) -> list[float]:
    """Return the seconds that slurm/run_here.sh takes up to srun, inside a job on the test cluster.

    A script that does nothing stands in for srun. The list is empty where Slurm is not installed.
    """
    sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests/clusters")]
    from baking import bake
    from slurm_cluster import PATH, Cluster

    if not shutil.which("slurmctld", path=PATH):
        return []
    project = bake(folder, "--overwrite-if-exists", site="slurm")
    (folder / "bin").mkdir()
    (folder / "bin/srun").write_text("#!/bin/sh\n")
    (folder / "bin/srun").chmod(0o755)
    # Each call finds no run folders, as the first run in an allocation does: it tries their numbers in turn.
    timed = f"for i in {{1..{CALLS}}}; do rm -rf logs; a=$EPOCHREALTIME; PATH={folder}/bin:$PATH bash slurm/run_here.sh"
    timed += " pi/pi.py >/dev/null; b=$EPOCHREALTIME; echo $((${b/./} - ${a/./})); done"
    with Cluster(folder / "cluster", nodes=2) as cluster:
        alone = {"PYTHON": sys.executable, "PREFLIGHT": "0"}  # which would be an srun by itself
        done = cluster.run("salloc", "--nodes=2", "--time=10", "bash", "-c", timed, cwd=project, env=alone)
    return [int(line) / 1e6 for line in done.stdout.split()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of the start through launch/torchrun.sh.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way (default: 7)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")

    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        bare(str(program))  # reads the files of torch into memory
        begin = cpu_seconds()
        ways = {
            "through launch/torchrun.sh": lambda: through_wrapper(str(program), sys.executable),
            "torchrun --tee=3": lambda: bare(str(program), "--tee=3"),
            "torchrun": lambda: bare(str(program)),
        }
        times = {name: [] for name in ways}
        for turn in range(args.rounds):
            for name in list(ways) if turn % 2 == 0 else reversed(ways):
                times[name].append(ways[name]())
        own = [through_wrapper(str(program), "/bin/true") for _ in range(CALLS)]
        submit = through_submit(Path(folder))

    wrapped, same, plain = times.values()
    print(f"start and end of 2 ranks, {args.rounds} rounds, {os.cpu_count()} cores\n")
    print(f"{'':<40} {'median':>8} {'range':>16}   target")
    for name, figures, unit, target in (
        *((name, seconds, "s", "") for name, seconds in times.items()),
        ("ratio to torchrun --tee=3", [one / other for one, other in zip(wrapped, same)], "", f"<= {RATIO}"),
        ("ratio to torchrun", [one / other for one, other in zip(wrapped, plain)], "", ""),
        ("launch/torchrun.sh, PYTHON=/bin/true", own, "s", f"< {OWN} s"),
        *([("slurm/submit_multinode.sh up to srun", submit, "s", f"< {OWN} s")] if submit else []),
    ):
        span = f"{min(figures):.3f}-{max(figures):.3f}"
        print(f"{name:<40} {statistics.median(figures):6.3f} {unit:1} {span:>16}   {target}".rstrip())

    wall, busy, mine = (end - start for start, end in zip(begin, cpu_seconds()))
    foreign = max(0.0, busy - mine) / (wall * os.cpu_count())
    note = "quiet enough" if foreign < QUIET else "too busy to judge a target by: repeat on a quiet machine"
    print(f"\nOther work used {foreign:.0%} of this machine meanwhile: {note}.")


if __name__ == "__main__":
    main()
