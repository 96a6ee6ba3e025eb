"""How fast do the ranks add up, or exchange, a tensor? A sweep of all-reduce and its relatives over message sizes.

    torchrun --nproc-per-node 2 -- benchmark/all_reduce.py --min 1K --max 256M

(Without the `--`, torchrun takes --max for its own --max-restarts: https://github.com/pytorch/pytorch/issues/120601.)

Per message of S bytes: time t of one operation, algbw = S / t, and busbw = algbw * 2 (n - 1) / n for an all-reduce over
n ranks, algbw * (n - 1) / n for the others. Unless switches do the adding, every rank has to send and to receive that
share of the data, so busbw can be held against the speed of the hardware whatever n is. As there, S is the total over
the ranks where each has a part of the message: count per rank x n
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21).
1 GB/s = 1e9 bytes/s = 8 Gbit/s; sizes count in powers of 1024 (1K = 1024 bytes).

The time is that of a batch of operations back to back, after one barrier, on the slowest rank, over their number. The
percentiles are of the operations of the same batch, each on its slowest rank. (A mean of rates instead of times would
overstate: on loopback up to 3 times below 4 MiB, where a few operations are slow.)

The first operation on a size moves small whole numbers, and every element is checked on every rank. Wrong data is named
and makes the exit code 1. What is measured is printed at once; --json and --csv are written when the sweep is complete.

pairs.py takes functions from here and needs this file beside it; this file needs no other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import socket
import sys
import tempfile
import time
from collections import Counter, namedtuple
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")  # that gloo and NCCL both add up
FEWEST, MOST = 25, 1000  # operations in a timed batch; of 25 large ones the check takes less than 3 % of the time
PERIOD = 251  # of the test pattern; a prime, so that exchanged blocks (powers of two) are not taken for each other
REPEATS = {"cpu": 2**8, "cuda": 2**14}  # of the pattern in one go: 0.5 MB of the widest type, in a core's cache
# Bytes that all ranks of a machine may take, half of what it has, if they run on CPUs. A limit of the job below that (a
# cgroup) is not known here: Linux would end the process when it is reached.
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
FIGURES = ("time_us", "p50_us", "p95_us", "p99_us", "algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps")
WIDTHS = (12, 11, 9, 9, 9, 7, 7, 8, 8, 5, 5)  # of the table's columns, with a space between: 100
TITLES = """\
#       size       count      time       p50       p95   algbw   busbw    algbw    busbw wrong  line
#      bytes       elem.        us        us        us    GB/s    GB/s   Gbit/s   Gbit/s elem.  rate"""
# torch 2.13 renames these two and warns of the old names.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALL_TO_ALL = dist.all_to_all_single


def pattern(key: int) -> torch.Tensor:
    """Return whole numbers from 1 to 251 that depend on `key`, shape [PERIOD]; uint8 and bfloat16 hold them exactly."""
    return 1 + (torch.arange(PERIOD) * (3 + key // PERIOD) + key) % PERIOD


def share(key: int, rank: int, world_size: int) -> torch.Tensor:
    """Return what a rank adds so that all together have pattern(key), shape [PERIOD]: whole numbers, none negative.

    So no partial sum exceeds 251 and every type is exact, in whatever order and over however many ranks is added. Up to
    4096 ranks no share is zero everywhere; up to 259 no two are equal.
    """
    place = (torch.arange(PERIOD) + rank) % world_size  # the larger shares go round
    return pattern(key) * (place + 1) // world_size - pattern(key) * place // world_size


def pieces(block: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the pieces of a flat block, each beside what is right in it: `values`, shape [PERIOD], over and over.

    Both are seen as int64: the fastest to copy and to compare. The block holds a multiple of 8 bytes.
    """
    row = values.to(block).repeat(min(REPEATS[block.device.type], len(block) // PERIOD // 8 * 8 + 8)).view(torch.int64)
    return [(piece, row[: len(piece)]) for piece in block.view(torch.int64).split(len(row))]


# A collective: busbw = algbw * bus * (n - 1) / n (see the top); how many blocks a rank gives and gets, 0 for
# one per rank; is what they give added, or just moved; run(output, input), each a flat tensor; which key the pattern
# in a block has where it is given and where it is expected: functions of (rank, block, number of ranks).
Operation = namedtuple("Operation", ("bus", "inputs", "outputs", "adds", "run", "given", "expected"))
# torch's all_reduce works in place only, its all_to_all out of place only.
OPERATIONS = {
    "all_reduce": Operation(2, 1, 1, True, lambda o, i: dist.all_reduce(o), lambda r, b, n: 0, lambda r, b, n: 0),
    "all_gather": Operation(1, 1, 0, False, ALL_GATHER, lambda r, b, n: r, lambda r, b, n: b),
    "reduce_scatter": Operation(1, 0, 1, True, REDUCE_SCATTER, lambda r, b, n: b, lambda r, b, n: r),
    "all_to_all": Operation(1, 0, 0, False, ALL_TO_ALL, lambda r, b, n: r * n + b, lambda r, b, n: b * n + r),
}


def setup(timeout: float) -> tuple[int, int, torch.device]:
    """Join the process group that the launcher described; return rank, world size and this process's device.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come from launch/ or torchrun
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables); without RANK the process is alone.
    A collective that a peer never joins fails after `timeout` seconds.
    """
    started = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "RANK" not in os.environ and started != "1":
        sys.exit(f"started {started} times without RANK, each would be alone: put launch/rank.sh before {sys.argv[0]}")
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    device = torch.device("cpu")
    if torch.cuda.is_available():  # where a rank sees a single GPU, the scheduler has given it that one
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def gather(value: object, world_size: int) -> list:
    """Return every rank's value, in the order of the ranks: anything that JSON can hold in 256 bytes.

    It runs on the CPU and ends for nobody before everybody has joined it: a barrier, too. all_gather_object() would do,
    but it needs numpy. A longer value is half a text of JSON, so it is a ValueError on every rank, and nobody waits.
    """
    mine = torch.tensor(list(json.dumps(value).encode()[:256].ljust(256)), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [json.loads(bytes(row.tolist())) for row in rows]


def network_of(nccl_log: str) -> str:
    """Return the cards and the network that NCCL says it took, from its NCCL_DEBUG=INFO output; '' if it says none."""
    return " ".join(dict.fromkeys(re.findall(r"(?:Using network |NET/\w+ *: *Using (?=\[0\]))([^;\n]+)", nccl_log)))


def join(timeout: float, **settings: object) -> tuple[int, torch.device, dict]:
    """Join the group and connect; print what somebody needs to repeat the run; return rank, device and that.

    From then on rank 0 prints for all.
    """
    environment = {name: os.environ[name] for name in sorted(os.environ) if re.match("NCCL_|GLOO_|FI_|OMP_", name)}
    # NCCL says which network it took only in its debug output, which goes to a file of this process unless the user
    # has other plans for it. INIT and NET are said while it connects; nothing is said of an operation.
    log = Path(tempfile.gettempdir(), f"nccl-{os.getpid()}.log")
    if torch.cuda.is_available() and not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(os.environ):
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(log))
    rank, n, device = setup(timeout)
    dist.all_reduce(torch.zeros(1, device=device))  # connects, and returns when that is done
    name, backend, nccl, network = "cpu", "gloo", None, "tcp " + os.environ.get("GLOO_SOCKET_IFNAME", "by hosts' names")
    if device.type == "cuda":
        name, backend, nccl = torch.cuda.get_device_name(), "nccl", ".".join(map(str, torch.cuda.nccl.version()))
        network = network_of(log.read_text(errors="replace")) if log.exists() else "see what NCCL prints"
        log.unlink(missing_ok=True)
    hosts, devices = gather(socket.gethostname(), n), gather(name, n)
    job = next(filter(None, map(os.environ.get, ("SLURM_JOB_ID", "RUNAI_JOB_NAME", "JOB_NAME"))), "")
    facts = {"program": Path(sys.argv[0]).name, **settings, "world_size": n, "nodes": len(set(hosts)), "hosts": hosts}
    facts.update(ranks_per_node=max(Counter(hosts).values()), devices=devices, backend=backend, nccl=nccl)
    facts.update(network=network, torch=torch.__version__, environment=environment, job=job)
    facts.update(command=shlex.join(["/".join(Path(sys.argv[0]).resolve().parts[-2:]), *sys.argv[1:]]))
    facts.update(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    if rank:
        sys.stdout = None  # print() does nothing then
    shown = {**facts, "environment": " ".join(map("=".join, environment.items()))}
    for key, values in {"hosts": hosts, "devices": devices}.items():
        shown[key] = ", ".join(f"{one} x {count}" for one, count in Counter(values).items())
    print("\n".join(f"# {key}: {value}" for key, value in shown.items() if value not in (None, "")), flush=True)
    return rank, device, facts


def batch(device: torch.device, ready: Callable, run: Callable, iterations: int) -> list[float]:
    """Call `ready`, then so many times `run`; return the seconds of each operation that run() starts on this rank.

    Nothing but the operations is inside the clock. On a GPU the events stand in the current stream, which each
    operation makes wait for NCCL's, and the CPU waits for the last of them alone.
    """
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        for event in events:
            event.record()  # which makes it: not to be done inside the clock
        torch.cuda.synchronize()
        ready()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        events[-1].synchronize()
        return [events[i].elapsed_time(events[i + 1]) / 1000 for i in range(iterations)]  # from ms
    ready()
    times = [time.perf_counter()]
    for _ in range(iterations):
        run()
        times.append(time.perf_counter())
    return [times[i + 1] - times[i] for i in range(iterations)]


def byte_count(text: str) -> int:
    """Read a size in bytes: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes; write for example 4K or 256M")
    return int(match[1]) * 1024 ** " KMGT".index(match[2] or " ")


def at_least(least: float) -> Callable:
    """Return a function that reads a number from `least` to 1e6, of the type of `least`."""

    def number(text: str) -> float:
        if not least <= type(least)(text) <= 1e6:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} to 1e6")
        return type(least)(text)

    return number


def new_file(text: str) -> Path:
    """Read the name of a file that rank 0 will write; the other ranks may not even see that file system."""
    path = Path(text)
    refused = not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not path.is_file())
    if refused and os.environ.get("RANK", "0") == "0":
        raise argparse.ArgumentTypeError(f"cannot write {path}: name a file in a folder that is there and yours")
    return path


def write(path: Path | None, text: str) -> None:
    """Write a file on rank 0, if it has a name; nobody finds it half written. All ranks call."""
    if path and dist.get_rank() == 0:
        part = path.with_name(path.name + ".part")
        part.write_text(text + "\n")
        part.replace(path)
    gather(0, dist.get_world_size())  # whoever leaves with exit code 1 has all others ended


class Bench:
    """One operation on one type over the ranks of this run."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Join the group; keep what does not change between sizes."""
        self.in_place = args.op != "all_to_all" and not args.out_of_place  # one of input and output lies in the other
        settings = {"operation": args.op, "dtype": args.dtype, "in_place": self.in_place}
        self.rank, self.device, self.facts = join(args.timeout, **settings, line_rate_Gbps=args.line_rate)
        self.hosts, here, n = self.facts["hosts"], self.facts["ranks_per_node"], self.facts["world_size"]
        self.args, self.operation, self.dtype = args, OPERATIONS[args.op], getattr(torch, args.dtype)
        self.world_size, self.inputs, self.outputs = n, self.operation.inputs or n, self.operation.outputs or n
        self.fewer, self.more = sorted((self.inputs, self.outputs))
        # A ring enters and leaves every node once, whatever the number of its ranks, so busbw is what all cards of a
        # node carry together (on one node: what the link of a rank carries). In an all-to-all each of a node's r ranks
        # sends (n - r) / (n - 1) of its traffic to other nodes.
        crossing = here * (n - here) / (n - 1) if args.op == "all_to_all" and here < n else 1
        self.full = args.line_rate / crossing if args.line_rate and n > 1 else None  # busbw of full links, Gbit/s

    def sizes(self) -> list[int]:
        """Return the sizes of the sweep in bytes, each of whole aligned parts; at least one."""
        steps = int(math.log(self.args.max / self.args.min, self.args.factor) + 1e-9)
        unit = self.more * 16  # each rank's part of a message, as in nccl-tests
        return sorted({max(int(self.args.min * self.args.factor**k) // unit, 1) * unit for k in range(steps + 1)})

    def buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and input for a message of `size` bytes, zeros of shape [blocks * count of a block] each."""
        whole = torch.zeros(size, dtype=torch.uint8, device=self.device).view(self.dtype)
        parts = self.more // self.fewer
        part = whole.chunk(parts)[self.rank % parts]
        part = part if self.in_place else torch.zeros_like(part)
        return (whole, part) if self.inputs <= self.outputs else (part, whole)

    def wrong_after_one(self, output: torch.Tensor, given: torch.Tensor) -> int:
        """Move a known pattern once; return the number of wrong elements on this rank.

        What is to be added is left as zeros: other numbers would grow with every operation in place and overflow.
        """
        operation, rank, n, wrong = self.operation, self.rank, self.world_size, 0
        for number, block in enumerate(given.chunk(self.inputs)):
            key = operation.given(rank, number, n)
            for piece, right in pieces(block, share(key, rank, n) if operation.adds else pattern(key)):
                piece.copy_(right)
        operation.run(output, given)
        for number, block in enumerate(output.chunk(self.outputs)):
            for piece, right in pieces(block, pattern(operation.expected(rank, number, n))):
                if torch.count_nonzero(piece.bitwise_xor_(right)):  # zeros are what is right
                    wrong += int(piece.view(torch.uint8).unflatten(0, (-1, output.element_size())).any(1).sum())
                    piece.zero_()
        if operation.adds and given is not output:
            given.zero_()
        return wrong

    def batch_of_slowest(self, output: torch.Tensor, given: torch.Tensor, iterations: int) -> list[float]:
        """Return an operation's mean seconds, p50, p95 and p99 (nearest rank), each the largest of all ranks'."""
        barrier, run = partial(gather, 0, self.world_size), partial(self.operation.run, output, given)
        each = sorted(batch(self.device, barrier, run, iterations))
        mine = [sum(each) / iterations, *(each[math.ceil(q * iterations) - 1] for q in (0.5, 0.95, 0.99))]
        return [max(column) for column in zip(*gather(mine, self.world_size))]

    def measure(self, size: int) -> dict:
        """Check, warm up and time one size; return its row of results.

        Every rank gets the time of the slowest, so they agree on each number of operations.
        """
        output, given = self.buffers(size)
        once = self.wrong_after_one if self.args.check else self.operation.run
        found = gather(once(output, given), self.world_size)  # None where nothing was checked
        for rank, (host, wrong) in enumerate(zip(self.hosts, found)):
            if wrong:
                print(f"# WRONG DATA on rank {rank} ({host}) at {size} bytes: {wrong} of {len(output)} elements")
        for iterations in (1, 4, 16, 64, 256):  # until they take a tenth of the budget in all: enough to warm up
            estimate = self.batch_of_slowest(output, given, iterations)[0]
            if iterations * estimate > self.args.budget / 40:
                break
        iterations = min(max(math.ceil(self.args.budget / estimate), FEWEST), MOST)
        times = [seconds * 1e6 for seconds in self.batch_of_slowest(output, given, iterations)]
        algbw = size / times[0] / 1e3
        busbw = algbw * (self.operation.bus * (self.world_size - 1) / self.world_size)
        figures = dict(zip(FIGURES, (*times, algbw, busbw, 8 * algbw, 8 * busbw)))
        row = {"bytes": size, "count": size // output.element_size(), "in_place": self.in_place, **figures}
        row.update(iterations=iterations, wrong=sum(found) if self.args.check else None)
        return {**row, "of_line_rate": self.full and 8 * busbw / self.full}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time and check a collective operation over a range of message sizes.")
    add = parser.add_argument
    size_help = "message in bytes; K, M, G, T = powers of 1024 (default: %(default)s)"
    add("--min", type=byte_count, default="1K", metavar="SIZE", help=f"smallest {size_help}")
    add("--max", type=byte_count, default="256M", metavar="SIZE", help=f"largest {size_help}")
    add("--factor", type=at_least(1.01), default=2.0, help="from each size to the next, > 1 (default: 2)")
    add("--size", type=byte_count, help="this one size, in place of the three above")
    add("--op", choices=OPERATIONS, default="all_reduce", help="(default: all_reduce)")
    add("--dtype", choices=DTYPES, default="float32", help="type of the elements (default: float32)")
    add("--out-of-place", action="store_true", help="input and output apart, where torch has both")
    add("--budget", type=at_least(0.001), default=0.2, metavar="SECONDS", help="of timed operations (default: 0.2)")
    add("--no-check", dest="check", action="store_false", help="do not check the data")
    add("--line-rate", type=at_least(0.001), metavar="GBIT/S", help="of a node's network cards, or of a rank's link")
    add("--json", type=new_file, metavar="FILE", help="write the results there too (rank 0)")
    add("--csv", type=new_file, metavar="FILE", help="write the rows there too (rank 0)")
    add("--timeout", type=at_least(1.0), default=300.0, metavar="SECONDS", help="give up on a late rank (default: 300)")
    args = parser.parse_args()
    if args.size:
        args.min = args.max = args.size
    if args.min > args.max:
        parser.error(f"--min {args.min} bytes is more than --max {args.max} bytes; exchange them")
    if args.out_of_place and args.op == "all_reduce":
        parser.error("--out-of-place: torch's all_reduce is in place; leave it out, or take another --op")
    return args


def table_row(row: dict) -> str:
    """Return one line of the table."""
    figures = [f"{row[name]:.{max(0, 5 - len(str(int(row[name]))))}f}" for name in FIGURES if name != "p99_us"]
    wrong, line = ("-" if row[name] is None else row[name] for name in ("wrong", "of_line_rate"))
    cells = [row["bytes"], row["count"], *figures, wrong, line if line == "-" else f"{line:.0%}"]
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS))


def sweep(bench: Bench) -> list[dict]:
    """Measure size after size, print a line for each; return their rows of results."""
    results, sizes = [], bench.sizes()
    for number, size in enumerate(sizes, 1):
        torch.cuda.empty_cache()  # the buffers of the size before
        room = torch.cuda.mem_get_info()[0] if bench.device.type == "cuda" else MEMORY / bench.facts["ranks_per_node"]
        room, rank = min((free, rank) for rank, free in enumerate(gather(room, bench.world_size)))
        # Buffers, check, and the copy that gloo makes where it has parts.
        if size * (1.25 if bench.args.op == "all_reduce" else 3) > room:  # all ranks know, and end the sweep here
            print(f"# from {size} bytes on skipped: no memory for it on rank {rank} ({bench.hosts[rank]})")
            break
        if bench.rank == 0 and sys.stderr.isatty():  # the line of the table will overwrite it
            print(f"# {number} of {len(sizes)}: {size} bytes", end="\r", file=sys.stderr, flush=True)
        results.append(bench.measure(size))
        print(table_row(results[-1]), flush=True)
    return results


@record
def main() -> None:
    """Read the flags, join the group, sweep the sizes, report."""
    args = arguments()
    bench = Bench(args)
    n, bus = bench.world_size, bench.operation.bus
    print("# time: of one operation of a batch, on the slowest rank; p50, p95: most that 50 % or 95 % took")
    print(f"# busbw: algbw * {bus} (n - 1) / n = algbw * {bus * (n - 1) / n:.6g}; 1 GB/s = 1e9 bytes/s = 8 Gbit/s")
    if n == 1:
        print("# n = 1: nothing crosses a link; this is the cost of a call and says nothing of a network")
    print(TITLES, flush=True)
    results = sweep(bench)
    share, size = max(((row["of_line_rate"] or 0, row["bytes"]) for row in results), default=(0, 0))
    if share > 1.05:
        # https://github.com/NVIDIA/nccl/issues/837 (trees), https://github.com/NVIDIA/nccl-tests/issues/153 (NVLS)
        print(f"# WARNING: {share:.0%} of the line rate at {size} bytes: --line-rate is not in Gbit/s of all cards")
        print("# of a node, or less crosses the links than busbw counts: on 2 nodes NCCL's tree sends half")
        print("# of it (NCCL_ALGO=Ring shows the links), and with NVLS or SHARP the switch adds.")
    write(args.json, json.dumps({**bench.facts, "results": results}, indent=1))
    common = {"operation": args.op, "dtype": args.dtype, "world_size": n, "nodes": bench.facts["nodes"]}
    rows = [{**common, **row} for row in results]
    write(args.csv, "\n".join(",".join(map(str, cells)) for cells in [*rows[:1], *map(dict.values, rows)]))
    dist.destroy_process_group()
    sys.exit(int(not results or any(row["wrong"] for row in results)))


if __name__ == "__main__":
    main()
