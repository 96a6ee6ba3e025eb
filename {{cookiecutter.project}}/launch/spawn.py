"""One per node: imports torch once and forks this node's ranks, with torch.multiprocessing.

    srun --ntasks-per-node=1 python launch/spawn.py program.py [arguments]     or: … -m package.module [arguments]

The program runs unchanged, as __main__, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
set as torchrun sets them. Signals reach every rank. The first rank that fails ends the others of its node, and its exit
code is the exit code here (128 + N after signal N).

Read from the environment, all optional but MASTER_* where there are several nodes:
    SLURM_STEP_NUM_NODES, SLURM_NODEID   how many nodes, and which one this is   (else this machine alone)
    MASTER_ADDR, MASTER_PORT             where rank 0 listens
    NPROC_PER_NODE                       ranks on this node            (else its GPUs, else CPU_RANKS_PER_NODE, else 1)
    OMP_NUM_THREADS                      threads of each rank          (else the cores it may use, divided)
    RUN_DIR                              folder for each rank's own log and error file
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
GRACE = 30  # seconds from SIGTERM to SIGKILL, as torchrun gives
HOST = os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def die(message: str) -> None:
    """Exit with code 2 and a sentence: the caller's mistake."""
    print(f"launch/spawn.py on {HOST}: {message}", file=sys.stderr)
    sys.exit(2)


def place() -> tuple[int, int]:
    """Return this node's rank and the ranks of each node; put what its ranks share into the environment."""
    seen = os.environ
    nodes, tasks = (int(seen.get(name, 1)) for name in ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"))
    node_rank = int(seen["SLURM_NODEID"]) if nodes > 1 else 0
    counts = ("NPROC_PER_NODE", "SLURM_GPUS_ON_NODE", "CPU_RANKS_PER_NODE")
    ranks = next((seen[name] for name in counts if seen.get(name)), "1")
    if tasks != nodes:
        die(f"srun started {tasks} tasks on {nodes} node(s), but one per node is wanted: srun --ntasks-per-node=1")
    if not ranks.isdecimal() or int(ranks) < 1:
        die(f"ranks per node (NPROC_PER_NODE) {ranks!r}: expected a whole number of at least 1")
    ranks = int(ranks)
    if nodes * ranks == 1:  # it meets nobody: MASTER_ADDR could be a leftover
        seen.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    elif not (seen.get("MASTER_ADDR") and seen.get("MASTER_PORT")):
        die(f"{nodes * ranks} ranks, but MASTER_ADDR and MASTER_PORT are not both set: use slurm/submit_multinode.sh")
    cores = min(len(os.sched_getaffinity(0)), int(seen.get("SLURM_CPUS_PER_TASK") or sys.maxsize))
    seen.setdefault("OMP_NUM_THREADS", str(max(cores // ranks, 1)))
    seen.update(WORLD_SIZE=str(nodes * ranks), LOCAL_WORLD_SIZE=str(ranks), GROUP_RANK=str(node_rank))
    # Frameworks take TORCHELASTIC_RUN_ID for the sign that RANK and the others are there, and leave Slurm's alone.
    run = f"{seen.get('SLURM_JOB_ID', 'run')}.{seen.get('SLURM_RESTART_COUNT', '0')}.{seen['MASTER_PORT']}"
    seen.update(TORCHELASTIC_RUN_ID=run, PYTHONUNBUFFERED="1")
    return node_rank, ranks


def run_rank(local_rank: int, outputs: list, folder: Path | None, command: list[str]) -> None:
    """Become one rank: what its program prints goes into its pipes, what it raises is printed there."""
    for owner, stream, _, pipe in outputs:
        if owner == local_rank:
            os.dup2(pipe, stream.fileno())
            stream.reconfigure(line_buffering=True)
    rank = int(os.environ["GROUP_RANK"]) * int(os.environ["LOCAL_WORLD_SIZE"]) + local_rank
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
    if folder:
        os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / str(local_rank) / "error.json")
    try:
        if command[0] == "-m":
            sys.argv, sys.path[0] = command[1:], ""
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = command, str(Path(command[0]).resolve().parent)
            runpy.run_path(os.path.abspath(command[0]), run_name="__main__")
    except (Exception, KeyboardInterrupt) as error:  # the second would be a good end to torch.multiprocessing
        traceback.print_exc()
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    finally:  # what a forked process leaves out, in Python's order
        threading._shutdown()
        atexit._run_exitfuncs()


def relay(source: int, sink, label: bytes, log: Path | str) -> None:
    """Copy lines from a rank's pipe to this process's own output, labelled, and to the rank's log as they are."""
    with os.fdopen(source, "rb") as lines, open(log, "ab", buffering=0) as file:
        for line in lines:
            sink.write(label + line)  # one write for each line: lines of several ranks do not mix
            sink.flush()
            file.write(line)


def supervise(processes: list, first_rank: int) -> int:
    """Wait for all ranks; after the first failure end the others. Return the exit code: 0, or the first failure's."""
    while True:
        alive = [process.sentinel for process in processes if process.exitcode is None]
        failed = next((process for process in processes if process.exitcode), None)
        if failed:
            break
        if not alive:
            return 0
        wait(alive)
    if failed.exitcode < 0:  # it had no time to say so itself
        rank = first_rank + processes.index(failed)
        print(f"launch/spawn.py on {HOST}: rank {rank} was ended by signal {-failed.exitcode}", file=sys.stderr)
    for process in processes:
        process.terminate()
    end = time.monotonic() + GRACE
    for process in processes:
        process.join(max(end - time.monotonic(), 0))
        process.kill()
    return failed.exitcode if failed.exitcode > 0 else 128 - failed.exitcode


def main() -> None:
    """Start the ranks, relay what they print, wait for them."""
    command = sys.argv[1:]
    if not command or command == ["-m"]:
        die("no program given. Usage: launch/spawn.py program.py [arguments]")
    node_rank, ranks = place()
    folder = Path(os.environ["RUN_DIR"], f"node{node_rank}-{HOST}") if os.environ.get("RUN_DIR") else None
    for local_rank in range(ranks if folder else 0):
        (folder / str(local_rank)).mkdir(parents=True, exist_ok=True)

    from torch.multiprocessing import start_processes  # here and not in every rank: they are forks of this process

    outputs = [(number, stream, *os.pipe()) for number in range(ranks) for stream in (sys.stdout, sys.stderr)]
    arguments = (outputs, folder, command)
    processes = start_processes(run_rank, arguments, nprocs=ranks, join=False, start_method="fork").processes

    def forward(sent, _) -> None:
        for process in processes:
            if process.exitcode is None:
                os.kill(process.pid, sent)

    for forwarded in FORWARDED:
        signal.signal(forwarded, forward)
    relays = []
    for local_rank, stream, source, pipe in outputs:
        os.close(pipe)
        label = f"[{HOST}:{node_rank * ranks + local_rank}] ".encode()
        log = folder / str(local_rank) / f"{stream.name.strip('<>')}.log" if folder else os.devnull
        relays.append(threading.Thread(target=relay, args=(source, stream.buffer, label, log), daemon=True))
        relays[-1].start()
    code = supervise(processes, node_rank * ranks)
    for thread in relays:
        thread.join(5 / len(relays))  # a process that a rank left behind may hold its pipe open
    sys.exit(code)


if __name__ == "__main__":
    main()
