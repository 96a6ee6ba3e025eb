"""What does it cost that ranks can say where they are (extras/hangs/README.md)? And how long until they have said it?

    python perf/hangs.py [--rounds 45]

A step of training, in three ways that take turns: ranks that know nothing of it, whose flight recorder is off (bare);
ranks with the recorder (recorder); ranks with the recorder, the signals and the thread of extras/hangs/ (ours). Each
way has two ranks in processes of its own, which train the example's model in DDP. The ratio is the median over the
rounds of the time of bare by that of the other.

Then the CPU time of the loop in extras/hangs/hooks.sh that waits for a rank to time out, in percent of a core.

Last, extras/hangs/stacks.sh on a real Slurm of four nodes, with 4, 64 and 256 ranks: from the call to its last line. A
program that sleeps, without torch, stands for the ranks. All nodes are this one machine, and share its cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = REPOSITORY / "{{cookiecutter.project}}"
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slurm_cluster import Cluster  # noqa: E402

STEPS = 10  # of a block
# A rank: trains a block of steps for each line that it reads, and rank 0 answers with the seconds.
TRAINS = f"""\
import os, sys, time
sys.path.insert(0, {str(PROJECT / "training")!r})
import torch, torch.distributed as dist
from model import GPT, Config
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(GPT(Config()))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randint(256, (8, 65))
for line in sys.stdin:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range({STEPS}):
        optimizer.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).mean().backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        print(time.perf_counter() - begin, flush=True)
"""
WAYS = {
    "bare": {"TORCH_FR_BUFFER_SIZE": "0"},
    "recorder": {"TORCH_FR_BUFFER_SIZE": "2000"},
    "ours": {"PYTHONPATH": str(PROJECT / "extras/hangs/python")},
}
SLEEPS = "import os, time\nopen(f'here-{os.environ[\"RANK\"]}', 'w').close()\ntime.sleep(100_000)\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What it costs that ranks can say where they are.")
    parser.add_argument("--rounds", type=int, default=45, help=f"turns of each way, {STEPS} steps each (default: 45)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: expected at least 1")
    with tempfile.TemporaryDirectory() as folder:
        cost_of_a_step(Path(folder), rounds)
        cost_of_waiting()
        time_of_stacks(Path(folder))


def cost_of_a_step(folder: Path, rounds: int) -> None:
    """Print the speed of each way beside that of bare."""
    ranks = {way: start(folder, number, variables) for number, (way, variables) in enumerate(WAYS.items())}
    times = {way: [] for way in WAYS}
    for turn in range(-1, rounds):  # turn -1 warms up
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            for rank in ranks[way]:
                rank.stdin.write("\n")
                rank.stdin.flush()
            times[way].append(float(ranks[way][0].stdout.readline()))
    for pair in ranks.values():
        for rank in pair:
            rank.stdin.close()
            rank.wait()
    print(f"a step of DDP on 2 CPU ranks, {rounds} rounds of {STEPS} steps\n")
    for way, seconds in times.items():
        ratio = statistics.median(bare / other for bare, other in zip(times["bare"][1:], seconds[1:]))
        print(f"{way:<10} {1000 * statistics.median(seconds[1:]) / STEPS:7.2f} ms   {ratio:.3f} of the speed of bare")


def start(folder: Path, number: int, variables: dict[str, str]) -> list[subprocess.Popen]:
    """Start the two ranks of a way."""
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29400 + number)}
    common |= {"RUN_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [sys.executable, "-c", TRAINS]
    pipe = subprocess.PIPE
    return [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdin=pipe, stdout=pipe, text=True)
        for rank in range(2)
    ]


def cost_of_waiting(seconds: int = 30) -> None:
    """Print the CPU time of a loop as that of hangs_beside_launch in extras/hangs/hooks.sh."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    look = "[[ ! -e timeout ]] || break; compgen -G 'nccl-rank-*'"
    loop = f"for ((i = 0; i < {seconds}; i += 3)); do sleep 3; {look}; done; true"
    subprocess.run(["bash", "-c", loop], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"\nwaiting for a rank that times out: {100 * used / seconds:.2f} % of a core of the first node")


def time_of_stacks(folder: Path) -> None:
    """Print how long extras/hangs/stacks.sh takes."""
    print()
    environment = {"PYTHON": sys.executable, "LAUNCHER": "srun", "PREFLIGHT": "0"}
    with Cluster(folder / "cluster", nodes=4, cpus=64, gpus=0) as cluster:
        project = bake(folder, site="slurm", nodes="4", gpus_per_node="0", extras="hangs")
        (project / "program.py").write_text(SLEEPS)
        for ranks in (4, 64, 256):
            words = ["--nodes=4", "--cpus-per-task=64", project / "slurm/submit_multinode.sh", "program.py"]
            number = {"NPROC_PER_NODE": str(ranks // 4)}
            job = cluster.sbatch(*words, cwd=project, env={**environment, **number})
            while len(list(project.glob("here-*"))) < ranks:
                time.sleep(0.2)
            times = []
            for _ in range(3):
                begin = time.perf_counter()
                said = cluster.run("bash", project / "extras/hangs/stacks.sh", str(job), cwd=project).stdout
                times.append(time.perf_counter() - begin)
            assert said == f"ranks 0-{ranks - 1} on 4 nodes: program.py:3 in <module>\n", said
            print(f"stacks of {ranks:3d} ranks on 4 nodes: {statistics.median(times):5.2f} s")
            cluster.run("scancel", "--signal=KILL", "--full", str(job))
            cluster.wait(job)
            for file in project.glob("here-*"):
                file.unlink()


if __name__ == "__main__":
    main()
