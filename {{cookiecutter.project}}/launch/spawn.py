"""torchrun with a quicker start: one per node, imports torch once and forks the ranks, with torch.multiprocessing.

    LAUNCHER=spawn launch/torchrun.sh program.py [arguments]

launch/torchrun.sh finds nodes, ranks, threads and folders, and hands them over as options of torchrun, which are read
here. The program runs unchanged, as __main__, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR and MASTER_PORT as torchrun sets them; the nodes meet when it calls init_process_group(). Signals reach
every rank. The first rank that fails ends the others of its node, and its exit code is the exit code here (128 + N
after signal N).
"""

import atexit
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.run import parse_args
from torch.multiprocessing import ProcessExitedException, start_processes

HOST = os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def run_rank(local_rank: int, first_rank: int, args) -> None:
    """Become one rank of the program in torchrun's `args`: what it prints, and what it raises, goes into files."""
    folder = Path(args.log_dir, str(local_rank))
    folder.mkdir(exist_ok=True)
    os.environ.update(RANK=str(first_rank + local_rank), LOCAL_RANK=str(local_rank))
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
    for name, stream in (("stdout.log", sys.stdout), ("stderr.log", sys.stderr)):
        with open(folder / name, "ab") as log:
            os.dup2(log.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True, write_through=False)  # in pieces, a line would get several labels
    program = args.training_script
    sys.argv = [program, *args.training_script_args]
    sys.path[0] = "" if args.module else str(Path(program).resolve().parent)
    try:
        if args.module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.abspath(program), run_name="__main__")
    except (Exception, KeyboardInterrupt) as error:  # the second would be a good end to torch.multiprocessing
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from error
    finally:  # what a forked process leaves out, in Python's order
        threading._shutdown()
        atexit._run_exitfuncs()


def main() -> None:
    """Start the ranks, show what they print, wait for them; exit with the first failure's code."""
    args = parse_args(None)
    ranks = int(args.nproc_per_node)
    first_rank = args.node_rank * ranks
    address, _, port = (args.rdzv_endpoint or f"127.0.0.1:{get_free_port()}").rpartition(":")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port, WORLD_SIZE=str(int(args.nnodes) * ranks))
    # Frameworks take TORCHELASTIC_RUN_ID for the sign that RANK and the others are there, and leave Slurm's alone.
    os.environ.update(LOCAL_WORLD_SIZE=str(ranks), GROUP_RANK=str(args.node_rank), TORCHELASTIC_RUN_ID=args.rdzv_id)
    args.log_dir = tempfile.mkdtemp(prefix=f"{args.rdzv_id}_", dir=args.log_dir)  # as torchrun's: of this run alone
    context = start_processes(run_rank, (first_rank, args), ranks, join=False, start_method="fork")

    def forward(number, _) -> None:
        for process in context.processes:
            if process.is_alive():
                os.kill(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    labels = {local_rank: f"[{HOST}:{first_rank + local_rank}] " for local_rank in range(ranks)}
    shown = []
    for name, sink in (("stdout.log", sys.stdout), ("stderr.log", sys.stderr)):
        files = {local_rank: f"{args.log_dir}/{local_rank}/{name}" for local_rank in range(ranks)}
        shown.append(TailLog("", files, sink, labels, interval_sec=0.03).start())
    code = 0
    try:
        while not context.join():  # after the first failure it ends the others, within 30 s
            pass
    except ProcessExitedException as failure:
        code, rank = failure.exit_code, first_rank + failure.error_index
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        print(f"launch/spawn.py on {HOST}: rank {rank} {how}", file=sys.stderr)  # a rank may have said nothing
        code = code if code > 0 else 128 - code
    for log in shown:
        log.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
