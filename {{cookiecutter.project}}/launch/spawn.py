"""Like torchrun, with a quicker start: one launcher per node imports torch and forks the ranks.

    LAUNCHER=spawn launch/torchrun.sh program.py [arguments]

launch/torchrun.sh finds nodes, ranks, threads and folders, and passes them on as options of torchrun. This script
reads --nnodes, --nproc-per-node, --node-rank, --rdzv-endpoint, --rdzv-id, --log-dir and -m. It ignores the others.

The program runs unchanged, as __main__, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR
and MASTER_PORT as torchrun sets them. The nodes meet when the program calls init_process_group(). When the program
starts, torch is imported already. So set the variables that torch reads at import in env.sh, not in the program. With
NumPy 1, torch imports numpy.random, too: all ranks of a node then draw the same numbers, until the program seeds it.

This script passes signals on to every rank. When a rank fails, this script ends the other ranks of its node. It exits
with the exit code of the rank that failed first, or with 128 + N after signal N.
"""

import atexit
import os
import runpy
import signal
import site
import socket
import sys
import tempfile
import threading
from pathlib import Path

from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.run import parse_args
from torch.multiprocessing import ProcessExitedException, start_processes

HOST = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LOGS = {"stdout.log": sys.stdout, "stderr.log": sys.stderr}  # of each rank, and where they are shown


def main() -> None:
    """Start the ranks of this node, show what they print, and exit with the exit code of the first failure."""
    args = parse_args(None)
    if not args.rdzv_endpoint:
        print("launch/spawn.py: call launch/torchrun.sh with LAUNCHER=spawn, which calls this script", file=sys.stderr)
        sys.exit(2)
    # As torchrun does: each run has a folder of its own.
    args.log_dir = tempfile.mkdtemp(prefix=f"{args.rdzv_id}_", dir=args.log_dir)
    ranks = int(args.nproc_per_node)
    first_rank = args.node_rank * ranks
    set_variables_of_the_node(args, ranks)
    context = start_processes(run_rank, (first_rank, args), ranks, join=False, start_method="fork")
    pass_signals_on(context.processes)
    shown = show_output(args.log_dir, range(first_rank, first_rank + ranks))
    try:
        code = wait(context, first_rank)
    finally:
        for log in shown:
            log.stop()  # after it has shown the last lines; its threads would keep this process alive
    sys.exit(code)


def set_variables_of_the_node(args, ranks: int) -> None:
    """Export the variables that are the same for all ranks of this node."""
    address, _, port = args.rdzv_endpoint.rpartition(":")
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = port
    os.environ["WORLD_SIZE"] = str(int(args.nnodes) * ranks)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    os.environ["GROUP_RANK"] = str(args.node_rank)
    # Where this variable of torchrun is set, frameworks read the variables above and leave Slurm's alone.
    os.environ["TORCHELASTIC_RUN_ID"] = args.rdzv_id


def run_rank(local_rank: int, first_rank: int, args) -> None:
    """Become one rank of the program in torchrun's `args`, in a forked process; its output goes into files."""
    try:
        folder = Path(args.log_dir, str(local_rank))
        folder.mkdir(exist_ok=True)
        write_to_files(folder)
        os.environ["RANK"] = str(first_rank + local_rank)
        os.environ["LOCAL_RANK"] = str(local_rank)
        Path("/proc/self/comm").write_text("rank " + os.environ["RANK"])  # ps and top show it
        os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
        customize_site()
        run_program(args)
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes twice: from the terminal, and passed on
        sys.last_value = error  # as Python does, for what atexit has registered
        sys.excepthook(type(error), error, error.__traceback__)
        # torch.multiprocessing would take a KeyboardInterrupt for a good end.
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from error
    finally:
        # Python ends a program in this order: it waits for the program's threads, then calls what atexit has
        # registered. At the end of a forked process multiprocessing calls nothing that atexit has registered.
        threading._shutdown()
        atexit._run_exitfuncs()


def customize_site() -> None:
    """Run sitecustomize.py again, if there is one: in a Python that started as this rank, it would have seen RANK."""
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()


def write_to_files(folder: Path) -> None:
    """Redirect stdout and stderr, also those of libraries in C, into files of this rank."""
    for name, stream in LOGS.items():
        with open(folder / name, "ab") as log:
            os.dup2(log.fileno(), stream.fileno())
        # launch/torchrun.sh sets PYTHONUNBUFFERED, with which Python writes a line in pieces, and each piece would
        # be shown with a label of its own. So collect whole lines.
        stream.reconfigure(line_buffering=True, write_through=False)


def run_program(args) -> None:
    """Run the program or module as `python program.py` or `python -m module` would."""
    program = args.training_script
    sys.argv = [program, *args.training_script_args]
    folder = os.getcwd() if args.module else str(Path(program).resolve().parent)
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH=1, Python 3.11: no folder goes first
        sys.path[0] = folder
    if args.module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(program), run_name="__main__")


def pass_signals_on(processes) -> None:
    """Send each signal that this process gets to all ranks."""

    def handler(number, _) -> None:
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, number)

    for number in PASSED_ON:
        signal.signal(number, handler)


def show_output(folder: str, ranks: range) -> list:
    """Start to show what the ranks print, each line with a label as under torchrun."""
    labels = {local_rank: f"[{HOST}:{rank}] " for local_rank, rank in enumerate(ranks)}
    shown = []
    for name, stream in LOGS.items():
        files = {local_rank: f"{folder}/{local_rank}/{name}" for local_rank in labels}
        shown.append(TailLog("", files, stream, labels, interval_sec=0.03).start())
    return shown


def wait(context, first_rank: int) -> int:
    """Wait for the ranks; return 0, or the exit code of the rank that failed first."""
    try:
        while not context.join():  # after a failure it ends the other ranks, within 30 s
            pass
    except ProcessExitedException as failure:
        rank, code = first_rank + failure.error_index, failure.exit_code
        if code > 0:
            how = f"ended with exit code {code}"
        else:  # minus the number of a signal
            how = f"was ended by signal {-code}"
            code = 128 - code
        # The rank itself may have printed nothing.
        print(f"launch/spawn.py on {HOST}: rank {rank} {how}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    main()
