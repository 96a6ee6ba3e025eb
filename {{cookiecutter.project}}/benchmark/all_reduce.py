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
and makes the exit code 1. What is measured is printed at once; --json and --csv grow in FILE.part and get their name
when the sweep is complete.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import textwrap
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")  # that gloo and NCCL both add up
FEWEST, MOST = 25, 1000  # operations in a timed batch; of 25 large ones the check takes less than 3 % of the time
WARM_UP = 0.1  # of the budget
ALIGNMENT = 16  # bytes, of each rank's part of a message, as in nccl-tests
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of so many bytes
PERIOD = 251  # of the test pattern; a prime, so that exchanged blocks (powers of two) are not taken for each other
REPEATS = 256  # of the pattern, filled and compared in one go: 0.5 MB of the widest type, in a core's cache
TOO_FAST = 1.05  # of the line rate
JOB = ("SLURM_JOB_ID", "RUNAI_JOB_NAME", "JOB_NAME")  # variables that name it
QUANTILES = {"p50_us": 0.5, "p95_us": 0.95, "p99_us": 0.99}
COLUMNS = {"size": 12, "count": 11, "time": 9, "p50": 9, "p95": 9}  # widths, with a space between: 94 columns,
COLUMNS.update({"algbw": 7, "busbw": 7, "algbw ": 8, "busbw ": 8, "wrong": 5, "line": 5})  # 100 with the line rate
IN_UNITS = ("bytes", "", "us", "us", "us", "GB/s", "GB/s", "Gbit/s", "Gbit/s", "elem.", "rate")
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


class Operation(NamedTuple):
    """One collective: its bandwidth, where its data lies, and which pattern is right in it."""

    bus: int  # busbw = algbw * bus * (n - 1) / n, from nccl-tests (see the top)
    inputs: int  # blocks that a rank gives: 1, or 0 for one per rank
    outputs: int  # blocks that a rank gets, likewise
    adds: bool  # what the ranks give, or just moves it
    in_place: bool  # can the smaller of input and output lie in the other?
    run: Callable  # of (output, input), each a flat tensor
    given: Callable  # of (rank, block, number of ranks): the key of the pattern in a block of the input
    expected: Callable  # the same of the output


# torch's all_reduce works in place only, its all_to_all out of place only.
OPERATIONS = {
    "all_reduce": Operation(2, 1, 1, True, True, lambda o, i: dist.all_reduce(o), lambda r, b, n: 0, lambda r, b, n: 0),
    "all_gather": Operation(1, 1, 0, False, True, ALL_GATHER, lambda r, b, n: r, lambda r, b, n: b),
    "reduce_scatter": Operation(1, 0, 1, True, True, REDUCE_SCATTER, lambda r, b, n: b, lambda r, b, n: r),
    "all_to_all": Operation(1, 0, 0, False, False, ALL_TO_ALL, lambda r, b, n: r * n + b, lambda r, b, n: b * n + r),
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
    if torch.cuda.is_available():  # a single visible GPU is this rank's own, given by the scheduler
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def gather(numbers: list[float], world_size: int) -> list[list[float]]:
    """Return every rank's numbers (as float64), in the order of the ranks.

    It runs on the CPU and ends for nobody before everybody has joined it: a barrier, too.
    """
    mine = torch.tensor(numbers, dtype=torch.float64)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [row.tolist() for row in rows]


def gather_text(text: str, world_size: int) -> list[str]:
    """Return every rank's `text` (at most 256 bytes), in the order of the ranks.

    all_gather_object() would do, but it needs numpy.
    """
    rows = gather(list(text.encode()[:256].ljust(256, b"\0")), world_size)
    return [bytes(map(int, row)).rstrip(b"\0").decode(errors="replace") for row in rows]


class Bench:
    """One operation on one type over the ranks of this run."""

    def __init__(self, args: argparse.Namespace, rank: int, hosts: list[str], device: torch.device) -> None:
        """Keep what does not change between sizes; hosts: of each rank."""
        self.rank, self.world_size, self.hosts, self.device = rank, len(hosts), hosts, device
        self.operation, self.dtype = OPERATIONS[args.op], getattr(torch, args.dtype)
        self.in_place = self.operation.in_place and not args.out_of_place
        self.inputs = self.operation.inputs or self.world_size
        self.outputs = self.operation.outputs or self.world_size
        self.element = torch.empty(0, dtype=self.dtype).element_size()
        self.check, self.budget, self.line_rate = args.check, args.budget, args.line_rate

    def sizes(self, smallest: int, largest: int, factor: float) -> list[int]:
        """Return the sizes of the sweep in bytes, each of whole elements, or of whole aligned parts; at least one."""
        parts = max(self.inputs, self.outputs)
        unit = self.element if self.operation.inputs == self.operation.outputs == 1 else parts * ALIGNMENT
        result = []
        size = float(smallest)
        while size <= largest:
            whole = max(int(size) // unit, 1) * unit
            if not result or whole > result[-1]:  # a factor close to 1 gives the same size again
                result.append(whole)
            size *= factor
        return result

    def needs(self, size: int) -> int:
        """Return the bytes that the buffers of a message take, and the copy that gloo makes where it has parts."""
        fewer, more = sorted((self.inputs, self.outputs))
        copied = self.device.type == "cpu" and fewer < more
        return size + (0 if self.in_place else size * fewer // more) + size * copied

    def buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and input for a message of `size` bytes, zeros of shape [blocks * count of a block] each."""
        fewer, more = sorted((self.inputs, self.outputs))
        block = size // self.element // more
        whole = torch.zeros(more * block, dtype=self.dtype, device=self.device)
        part = whole[self.rank * block :][:block] if fewer < more else whole
        if not self.in_place:
            part = torch.zeros(fewer * block, dtype=self.dtype, device=self.device)
        return (whole, part) if self.inputs <= self.outputs else (part, whole)

    def wrong_after_one(self, output: torch.Tensor, given: torch.Tensor) -> int:
        """Move a known pattern once; return the number of wrong elements on this rank.

        What is to be added is left as zeros: other numbers would grow with every operation in place and overflow.
        """
        for number, block in enumerate(given.chunk(self.inputs)):
            key = self.operation.given(self.rank, number, self.world_size)
            fill(block, share(key, self.rank, self.world_size) if self.operation.adds else pattern(key))
        self.operation.run(output, given)
        wrong = 0
        for number, block in enumerate(output.chunk(self.outputs)):
            wrong += count_wrong(block, pattern(self.operation.expected(self.rank, number, self.world_size)))
        if self.operation.adds and given is not output:
            given.zero_()
        return wrong

    def batch(self, output: torch.Tensor, given: torch.Tensor, iterations: int) -> list[float]:
        """Return the seconds of each of so many operations on this rank.

        The ranks start together, and nothing but the operations is inside the clock. On a GPU the events stand in the
        current stream, which each operation makes wait for NCCL's, and the CPU waits for the last of them alone.
        """
        run = self.operation.run
        if self.device.type == "cuda":
            events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
            for event in events:
                event.record()  # which makes it: not to be done inside the clock
            torch.cuda.synchronize()
            gather([0], self.world_size)
            events[0].record()
            for event in events[1:]:
                run(output, given)
                event.record()
            events[-1].synchronize()
            return [begin.elapsed_time(end) / 1000 for begin, end in zip(events, events[1:])]  # from ms
        gather([0], self.world_size)
        times = [time.perf_counter()]
        for _ in range(iterations):
            run(output, given)
            times.append(time.perf_counter())
        return [end - begin for begin, end in zip(times, times[1:])]

    def batch_of_slowest(self, output: torch.Tensor, given: torch.Tensor, iterations: int) -> list[float]:
        """Return the seconds of one operation and their QUANTILES (nearest rank), each the largest of all ranks'."""
        each = sorted(self.batch(output, given, iterations))
        mine = [sum(each) / iterations, *(each[math.ceil(q * iterations) - 1] for q in QUANTILES.values())]
        return [max(column) for column in zip(*gather(mine, self.world_size))]

    def measure(self, size: int, progress: Callable) -> tuple[dict, list[int]]:
        """Check, warm up and time one size; return its row of results and the wrong elements of each rank.

        Every rank gets the time of the slowest, so they agree on each number of operations.
        """
        output, given = self.buffers(size)
        wrong = []
        if self.check:
            mine = self.wrong_after_one(output, given)
            wrong = [int(number) for (number,) in gather([mine], self.world_size)]
        else:
            self.operation.run(output, given)  # connects
        iterations, estimate = 1, self.batch_of_slowest(output, given, 1)[0]
        while iterations * 4 <= MOST and iterations * estimate < WARM_UP / 4 * self.budget:
            iterations *= 4
            estimate = self.batch_of_slowest(output, given, iterations)[0]
        iterations = min(max(math.ceil(self.budget / estimate), FEWEST), MOST)
        progress(f"{iterations} operations, {iterations * estimate:.1f} s")
        each, *quantiles = self.batch_of_slowest(output, given, iterations)
        algbw = size / each / 1e9
        busbw = algbw * (self.operation.bus * (self.world_size - 1) / self.world_size)
        row = {"bytes": size, "count": size // self.element, "in_place": self.in_place, "iterations": iterations}
        row.update({"time_us": each * 1e6, **{name: q * 1e6 for name, q in zip(QUANTILES, quantiles)}})
        row.update(algbw_GBps=algbw, busbw_GBps=busbw, algbw_Gbps=8 * algbw, busbw_Gbps=8 * busbw)
        return {**row, "wrong": sum(wrong) if self.check else None}, wrong

    def share_of_line(self, row: dict) -> float | None:
        """Return the part of the line rate that a result takes; None without a rate or a link.

        A ring enters and leaves every node once, whatever the number of its ranks, so busbw is what all cards of a node
        carry together (on one node: what the link of a rank carries). In an all-to-all each of a node's r ranks sends
        (n - r) / (n - 1) of its traffic to other nodes.
        """
        if not self.line_rate or self.world_size == 1:
            return None
        here = max(Counter(self.hosts).values())
        exchanges = self.operation.inputs == self.operation.outputs == 0 and here < self.world_size
        crossing = here * (self.world_size - here) / (self.world_size - 1) if exchanges else 1
        return row["busbw_Gbps"] * crossing / self.line_rate


def fill(block: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values`, shape [PERIOD], into a flat block over and over."""
    rows, tail, row = in_rows(block, values)
    rows.copy_(row)
    tail.copy_(row[: len(tail)])


def count_wrong(block: torch.Tensor, values: torch.Tensor) -> int:
    """Return how many elements of a flat block are not what fill() writes there, and turn it into zeros.

    Right bits turn into zeros when they are combined, 8 bytes at a time, with what is right (exclusive or): that is the
    fastest comparison, and the zeros are of use.
    """
    rows, tail, row = in_rows(block, values)
    wrong = int(torch.count_nonzero(tail != row[: len(tail)]))
    tail.zero_()
    pieces = rows.split(1) if block.device.type == "cpu" else [rows]  # a row stays in the core's cache for the count
    for piece in pieces:
        bits = piece.view(torch.int64).bitwise_xor_(row.view(torch.int64))
        if torch.count_nonzero(bits):
            wrong += int(torch.count_nonzero(piece.view(INTEGERS[piece.element_size()])))
            piece.zero_()
    return wrong


def in_rows(block: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a flat block's rows [number, REPEATS * PERIOD], its tail (all of a short one), and the values of a row."""
    row = values.to(block).repeat(min(REPEATS, (len(block) // PERIOD + 8) // 8 * 8))  # multiples of 8 bytes
    whole = len(block) // len(row) * len(row)
    return block[:whole].view(-1, len(row)), block[whole:], row


def room(device: torch.device, ranks_here: int) -> float:
    """Return the bytes that this rank may take: free on its GPU, or its share of what this machine has available.

    A limit of the job below that (a cgroup) is not known here: Linux would end the process when it is reached.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the buffers of the size before
        return torch.cuda.mem_get_info(device)[0]
    try:
        return int(re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024 / ranks_here
    except (OSError, TypeError):  # not Linux
        return math.inf


def network_of(nccl_log: str) -> str:
    """Return the network that NCCL says it took, from its NCCL_DEBUG=INFO output; '' when it does not say."""
    name = re.search(r"Using network (.+)", nccl_log)
    cards = re.search(r"NET/\w+ *: *Using (\[0\][^;\n]+)", nccl_log)
    return " ".join(found.group(1).strip() for found in (name, cards) if found)


def gloo_network() -> str:
    """Return the interface, or else the address of this host's name, which gloo connects through."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return f"tcp {interface}"
    try:
        return f"tcp {socket.gethostbyname(socket.gethostname())}"
    except OSError:
        return "tcp"


def join(args: argparse.Namespace) -> tuple[Bench, dict]:
    """Join the group; return the bench and what somebody needs to know to repeat the run."""
    named = ("NCCL_", "GLOO_", "FI_")
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(named)}
    if "OMP_NUM_THREADS" in os.environ:
        variables["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    # NCCL says which network it took only in its debug output, which goes to a file of this process unless the user
    # has other plans for it. INIT and NET are said while it connects; nothing is said of an operation.
    log = Path(tempfile.gettempdir()) / f"nccl-{os.getpid()}.log"
    if torch.cuda.is_available() and not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(os.environ):
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(log))
    rank, world_size, device = setup(args.timeout)
    on_gpu = device.type == "cuda"
    dist.all_reduce(torch.zeros(1, device=device))  # connects
    network = gloo_network()
    if on_gpu:
        torch.cuda.synchronize()
        network = network_of(log.read_text(errors="replace")) if log.exists() else ""
        log.unlink(missing_ok=True)
    hosts = gather_text(socket.gethostname(), world_size)
    per_host = set(Counter(hosts).values())
    facts = {
        "program": Path(__file__).name,
        "operation": args.op,
        "dtype": args.dtype,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "job": next((os.environ[name] for name in JOB if os.environ.get(name)), ""),
        "world_size": world_size,
        "nodes": len(set(hosts)),
        "hosts": list(dict.fromkeys(hosts)),
        "ranks_per_node": per_host.pop() if len(per_host) == 1 else None,
        "devices": gather_text(torch.cuda.get_device_name(device) if on_gpu else "cpu", world_size),
        "backend": "nccl" if on_gpu else "gloo",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "network": network,
        "environment": variables,
        "command": shlex.join(["/".join(Path(__file__).resolve().parts[-2:]), *sys.argv[1:]]),
        "line_rate_Gbps": args.line_rate,
    }
    return Bench(args, rank, hosts, device), facts


def byte_count(text: str) -> int:
    """Read a size in bytes: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)", text.upper())
    size = int(match[1]) * UNITS[match[2]] if match else 0
    if not 1 <= size <= UNITS["T"] * 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 1 byte to 1024T; write for example 4K or 256M")
    return size


def number_from(least: float, most: float, what: str, example: str) -> Callable[[str], float]:
    """Return a reader of numbers of that range."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            expected = f"a {what} from {least:g} to {most:g}; write for example {example}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return number

    return read


def new_file(text: str) -> Path:
    """Read the name of a file that rank 0 will write at the end; find out now whether it can."""
    path = Path(text)
    if os.environ.get("RANK", "0") == "0":  # the other ranks may not even see that file system
        if path.exists() and not path.is_file():
            raise argparse.ArgumentTypeError(f"{text!r} is not a file; name a file in an existing folder")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise argparse.ArgumentTypeError(f"cannot write in folder {str(path.parent)!r}; create it or name another")
    return path


def unfinished(path: Path) -> Path:
    """Return the name of a file whose sweep is not complete."""
    return path.with_name(path.name + ".part")


def write_parts(args: argparse.Namespace, facts: dict, results: list[dict]) -> None:
    """Write what there is so far, so that it survives whatever ends the run."""
    if args.json:
        unfinished(args.json).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")
    if args.csv:
        common = {key: facts[key] for key in ("operation", "dtype", "world_size", "nodes")}
        with unfinished(args.csv).open("w", newline="") as file:
            lines = csv.DictWriter(file, [*common, *results[0]] if results else list(common), lineterminator="\n")
            lines.writeheader()
            lines.writerows({**common, **row} for row in results)


def comment(line: str) -> str:
    """Return a line that is not of the table, wrapped to at most 100 columns."""
    return "\n".join(f"# {piece}" for piece in textwrap.wrap(line, 96, subsequent_indent="  ", break_on_hyphens=False))


def in_columns(cells: list[str]) -> str:
    """Return the cells side by side, right-aligned."""
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values()))


def header(facts: dict, bench: Bench) -> str:
    """Return what somebody needs to know to repeat the run, then the titles of the columns."""
    n, bus, rate = bench.world_size, bench.operation.bus, bench.line_rate

    def counted(names: list[str]) -> str:
        return ", ".join(f"{name} x {number}" for name, number in Counter(names).items())

    lines = [
        f"{facts['operation']} of {facts['dtype']}, {'in place' if bench.in_place else 'out of place'}, ranks: {n}",
        f"hosts x ranks: {counted(bench.hosts)}",
        f"devices x ranks: {counted(facts['devices'])}",
        f"torch {facts['torch']}, backend {facts['backend']}" + (f" {facts['nccl']}" if facts["nccl"] else ""),
        f"network of rank 0: {facts['network'] or 'not known: NCCL_DEBUG is set, see what NCCL prints'}",
        "environment: " + " ".join(f"{name}={value}" for name, value in facts["environment"].items()),
        f"date: {facts['date']}" + (f", job: {facts['job']}" if facts["job"] else ""),
        f"command: {facts['command']}",
        "time: of one operation of a batch, on the slowest rank; p50, p95: most that 50 % or 95 % took",
        f"busbw = algbw * {'2 ' if bus == 2 else ''}(n - 1) / n = algbw * {bus * (n - 1) / n:.6g};"
        " 1 GB/s = 1e9 bytes/s = 8 Gbit/s",
    ]
    if rate and n > 1:
        lines.append(f"line rate: {rate:g} Gbit/s out of a {'node' if facts['nodes'] > 1 else 'rank'}")
    if n == 1:
        lines.append("n = 1: nothing crosses a link; this is the cost of a call and says nothing of a network")
    units = ["bytes", facts["dtype"], *IN_UNITS[2:]]
    titles = ["#" + in_columns(row if rate else row[:-1])[1:] for row in (list(COLUMNS), units)]
    return "\n".join([*map(comment, lines), *titles])


def table_row(row: dict, bench: Bench) -> str:
    """Return one line of the table."""

    def shown(number: float) -> str:
        return f"{number:.{4 if number < 10 else 3 if number < 100 else 2 if number < 1000 else 1}f}"

    times = [f"{row[key]:.{1 if row[key] < 1e6 else 0}f}" for key in ("time_us", "p50_us", "p95_us")]
    rates = [shown(row[key]) for key in ("algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps")]
    cells = [str(row["bytes"]), str(row["count"]), *times, *rates, "-" if row["wrong"] is None else str(row["wrong"])]
    if bench.line_rate:
        taken = bench.share_of_line(row)
        cells.append("-" if taken is None else f"{min(taken, 99.99):.0%}")
    return in_columns(cells)


def warning(results: list[dict], bench: Bench) -> str:
    """Return what to think of a result above the line rate; '' if there is none."""
    taken, size = max(((bench.share_of_line(row) or 0, row["bytes"]) for row in results), default=(0, 0))
    if taken <= TOO_FAST:
        return ""
    return comment(
        f"WARNING: {taken:.0%} of the line rate at {size} bytes, more than a link carries. Either --line-rate is not "
        "in Gbit/s, or not of all network cards of a node together; or less crosses the links than busbw counts: on 2 "
        "nodes NCCL's tree sends half as much over each (https://github.com/NVIDIA/nccl/issues/837; NCCL_ALGO=Ring "
        "shows the links), and with NVLS or SHARP the switch adds (https://github.com/NVIDIA/nccl-tests/issues/153)."
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time and check a collective operation over a range of message sizes.")
    size_help = "{} message in bytes; K, M, G, T = powers of 1024 (default: {})"
    parser.add_argument("--min", type=byte_count, metavar="SIZE", help=size_help.format("smallest", "1K"))
    parser.add_argument("--max", type=byte_count, metavar="SIZE", help=size_help.format("largest", "256M"))
    factor = number_from(1.01, 1e6, "number", "2")
    parser.add_argument("--factor", type=factor, help="from each size to the next, > 1 (default: 2)")
    parser.add_argument("--size", type=byte_count, help="this one size, in place of the three above")
    parser.add_argument("--op", choices=OPERATIONS, default="all_reduce", help="(default: all_reduce)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the elements (default: float32)")
    parser.add_argument("--out-of-place", action="store_true", help="input and output apart, where torch has both")
    budget = number_from(0.001, 1e6, "number of seconds", "0.2")
    budget_help = f"seconds of timed operations per size; {FEWEST} at least, {MOST} at most (default: 0.2)"
    parser.add_argument("--budget", type=budget, default=0.2, metavar="SECONDS", help=budget_help)
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not check the data")
    rate = number_from(0.001, 1e9, "number of Gbit/s", "800, for four cards of 200")
    rate_help = "Gbit/s that all network cards of a node send together (one node: the link of a rank); adds a column"
    parser.add_argument("--line-rate", type=rate, metavar="GBIT", help=rate_help)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the results there too (rank 0)")
    parser.add_argument("--csv", type=new_file, metavar="FILE", help="write the rows there too (rank 0)")
    late = number_from(1, 1e6, "number of seconds", "300")
    late_help = "give up when a rank is this late for the others (default: 300)"
    parser.add_argument("--timeout", type=late, default=300.0, metavar="SECONDS", help=late_help)
    args = parser.parse_args()
    if args.size and (args.min or args.max or args.factor):
        parser.error("--size is one size, --min, --max and --factor are a sweep; choose one of the two")
    args.min, args.max = args.size or args.min or 2**10, args.size or args.max or 2**28
    args.factor = args.factor or 2.0
    if args.min > args.max:
        parser.error(f"--min {args.min} bytes is more than --max {args.max} bytes; exchange them")
    if args.out_of_place and args.op == "all_reduce":
        parser.error("--out-of-place: torch's all_reduce is in place; leave it out, or take another --op")
    if args.json and args.json == args.csv:
        parser.error(f"--json and --csv are both {str(args.csv)!r}; name two files")
    return args


def progress(before: str, text: str) -> None:
    """Show what is going on in a line that the next one overwrites; only on a terminal, only rank 0."""
    if os.environ.get("RANK", "0") == "0" and sys.stderr.isatty():
        print(f"\r\033[K{before}{text}", end="", file=sys.stderr, flush=True)


def sweep(args: argparse.Namespace, facts: dict, bench: Bench, results: list[dict]) -> None:
    """Measure size after size, print a line for each and append it to `results`."""
    sizes, hosts = bench.sizes(args.min, args.max, args.factor), bench.hosts
    for number, size in enumerate(sizes, 1):
        # A quarter more than the buffers: on a GPU the comparison takes an eighth of the message.
        rooms = gather([room(bench.device, hosts.count(hosts[bench.rank]))], bench.world_size)
        short = [r for r, (there,) in enumerate(rooms) if 1.25 * bench.needs(size) > there]
        if short:  # all ranks know, so all of them end the sweep here
            if bench.rank == 0:
                print(f"# from {size} bytes on skipped: no memory for it on rank {short[0]} ({hosts[short[0]]})")
            return
        here = partial(progress, f"# {number} of {len(sizes)}: {size} bytes, ")
        here("warm-up")
        row, wrong = bench.measure(size, here)
        progress("", "")
        results.append(row)
        if bench.rank == 0:
            print(table_row(row, bench), flush=True)
            held = row["count"] * bench.outputs // max(bench.inputs, bench.outputs)
            for r, elements in enumerate(wrong):
                if elements:
                    print(f"# WRONG DATA on rank {r} ({hosts[r]}) at {size} bytes: {elements} of {held} elements")
            write_parts(args, facts, results)


@record
def main() -> None:
    """Read the flags, join the group, sweep the sizes, report."""
    args = arguments()
    bench, facts = join(args)
    results = []
    files = [path for path in (args.json, args.csv) if path]

    def say(line: str) -> None:
        if bench.rank == 0 and line:
            print(line, flush=True)

    def stopped(why: str) -> None:
        if bench.rank == 0:
            write_parts(args, facts, results)  # the signal may have come while they were written
        kept = f" and kept in {', '.join(str(unfinished(path)) for path in files)}" if files else ""
        say(f"\n# stopped by {why}: {len(results)} sizes were measured{kept}")

    def interrupted(*_: object) -> None:
        stopped("Ctrl-C")
        os._exit(130)  # the group cannot be left in order: the others may wait in an operation

    signal.signal(signal.SIGINT, interrupted)
    say(header(facts, bench))
    try:
        sweep(args, facts, bench, results)
    except RuntimeError:
        stopped("an error")
        raise
    failed = sum(bool(row["wrong"]) for row in results)
    if failed:
        say(f"# {failed} of {len(results)} sizes gave wrong data: trust no result of these nodes")
    if not results:
        say("# nothing was measured: choose a smaller --min")
    say(warning(results, bench))
    if bench.rank == 0:
        write_parts(args, facts, results)
        for path in files:
            os.replace(unfinished(path), path)
    dist.destroy_process_group()
    if failed or not results:
        sys.exit(1)


if __name__ == "__main__":
    main()
