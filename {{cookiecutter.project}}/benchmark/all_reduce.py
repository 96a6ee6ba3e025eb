"""How fast do the ranks add up a tensor? A sweep of all-reduce over message sizes.

    torchrun --nproc-per-node 2 -- benchmark/all_reduce.py --min 1K --max 256M

(Without the `--`, torchrun takes --max for its own --max-restarts: https://github.com/pytorch/pytorch/issues/120601.)

Per size S in bytes: time t of one all-reduce, algbw = S / t, and busbw = algbw * 2 (n - 1) / n for n ranks. Unless
switches do the adding, every rank has to send and to receive 2 (n - 1) / n of the data at least, so busbw can be held
against the speed of the hardware whatever n is (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
1 GB/s = 1e9 bytes/s = 8 Gbit/s; sizes count in powers of 1024 (1K = 1024 bytes).

Before the clock starts on a size, one all-reduce of small whole numbers is checked element by element on every rank.
A wrong element makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import sys
import textwrap
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DTYPE = torch.float32
ELEMENT = 4  # bytes
SECONDS_PER_SIZE = 0.2  # aim of the timed batch, from which the number of operations follows
FEWEST, MOST = 5, 1000  # operations in a timed batch
PERIOD = 251  # of the test pattern; a prime, so that exchanged blocks (powers of two) are not taken for each other
TITLES = ("size", "count", "number", "time", "algbw", "busbw", "algbw", "busbw", "wrong")
IN_UNITS = ("bytes", "float32", "of ops", "us", "GB/s", "GB/s", "Gbit/s", "Gbit/s", "elements")
WIDTHS = (13, 12, 6, 11, 9, 9, 9, 9, 8)  # with a space between: 94 columns


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


def gather(number: float, world_size: int) -> list[float]:
    """Return every rank's number (as float64), in the order of the ranks.

    It runs on the CPU and ends for nobody before everybody has joined it: a barrier, too.
    """
    mine = torch.tensor([number], dtype=torch.float64)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [row.item() for row in rows]


def gather_text(text: str, world_size: int) -> list[str]:
    """Return every rank's `text` (at most 256 bytes), in the order of the ranks.

    all_gather_object() would do, but it needs numpy.
    """
    mine = torch.tensor(list(text.encode()[:256].ljust(256, b"\0")), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]


def allocate(count: int, device: torch.device) -> torch.Tensor | None:
    """Return `count` zeros, shape [count], or None where the allocator has no room for them.

    A CPU's allocator promises more than there is: Linux may end the process later instead, when it fills the memory.
    """
    try:
        return torch.zeros(count, dtype=DTYPE, device=device)
    except RuntimeError:  # torch.cuda.OutOfMemoryError is one as well
        return None


def pattern(rank: int) -> torch.Tensor:
    """Return what a rank contributes to the check, over and over: whole numbers from 1 to PERIOD, shape [PERIOD]."""
    return (torch.arange(PERIOD) + rank) % PERIOD + 1


def count_wrong(buffer: torch.Tensor, rank: int, world_size: int) -> int:
    """All-reduce a known pattern in `buffer`, shape [count]; return the number of wrong elements on this rank.

    Every sum is a whole number below 2^24 up to 66 000 ranks: float32 holds it exactly in whatever order it is added.
    """
    body = buffer[: len(buffer) // PERIOD * PERIOD].view(-1, PERIOD)
    tail = buffer[body.numel() :]
    mine = pattern(rank).to(buffer)
    body.copy_(mine)
    tail.copy_(mine[: len(tail)])
    dist.all_reduce(buffer)
    total = torch.zeros(PERIOD, dtype=torch.int64)
    for other in range(world_size):
        total += pattern(other)
    total = total.to(buffer)
    # In pieces, because a comparison of everything at once would need another quarter of the memory.
    wrong = sum(int(torch.count_nonzero(piece != total)) for piece in body.split(2**14))
    return wrong + int(torch.count_nonzero(tail != total[: len(tail)]))


def seconds_each(buffer: torch.Tensor, iterations: int, world_size: int) -> float:
    """Return the seconds that one all-reduce of `buffer` takes: a batch of them back to back, on the slowest rank.

    The ranks start together, and nothing but the operations is inside the clock. On a GPU the events stand in the
    current stream, which all_reduce() makes wait for the stream of NCCL.
    """
    if buffer.device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        gather(0, world_size)
        begin.record()
        for _ in range(iterations):
            dist.all_reduce(buffer)
        end.record()
        end.synchronize()
        elapsed = begin.elapsed_time(end) / 1000  # ms
    else:
        gather(0, world_size)
        started = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(buffer)
        elapsed = time.perf_counter() - started
    return max(gather(elapsed, world_size)) / iterations


def bandwidths(size: int, seconds_of_one: float, world_size: int) -> dict[str, float]:
    """Return algbw and busbw of an all-reduce of `size` bytes, in GB/s (1e9 bytes/s) and Gbit/s (1e9 bit/s)."""
    algbw = size / seconds_of_one / 1e9
    busbw = algbw * (2 * (world_size - 1) / world_size)
    return {"algbw_GBps": algbw, "busbw_GBps": busbw, "algbw_Gbps": 8 * algbw, "busbw_Gbps": 8 * busbw}


def measure(buffer: torch.Tensor, rank: int, world_size: int) -> tuple[dict, list[int]]:
    """Check, warm up and time one size; return its row of results and the number of wrong elements on each rank."""
    wrong = [int(number) for number in gather(count_wrong(buffer, rank, world_size), world_size)]
    buffer.zero_()  # sums of zeros stay zeros; other numbers would grow n-fold with every operation until they overflow
    # Warm-up: batches that grow until one is long enough to tell the speed. Every rank gets the time of the slowest, so
    # they agree on each number of operations.
    iterations = 1
    estimate = seconds_each(buffer, iterations, world_size)
    while iterations < MOST and iterations * estimate < SECONDS_PER_SIZE / 4:
        iterations *= 4
        estimate = seconds_each(buffer, iterations, world_size)
    iterations = min(max(math.ceil(SECONDS_PER_SIZE / estimate), FEWEST), MOST)
    each = seconds_each(buffer, iterations, world_size)
    size = buffer.numel() * ELEMENT
    row = {"bytes": size, "iterations": iterations, "time_us": each * 1e6}
    return {**row, **bandwidths(size, each, world_size), "wrong": sum(wrong)}, wrong


def sizes(smallest: int, largest: int, factor: float) -> list[int]:
    """Return the sizes of the sweep in bytes, each a whole number of elements."""
    result = []
    size = float(smallest)
    while size <= largest:
        whole = int(size) // ELEMENT * ELEMENT
        if not result or whole > result[-1]:  # a factor close to 1 gives the same size again
            result.append(whole)
        size *= factor
    return result


def byte_count(text: str) -> int:
    """Read a size in bytes, at least one element: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)", text.upper())
    size = int(match[1]) * UNITS[match[2]] if match else 0
    if not ELEMENT <= size <= UNITS["T"] * 1024:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size from {ELEMENT} bytes (one float32) to 1024T; write for example 4096, 1K or 256M"
        )
    return size


def growth(text: str) -> float:
    """Read the ratio of a size to the one before, more than 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1.01 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1.01 to 1e6; write for example 2")
    return number


def seconds(text: str) -> float:
    """Read a time in seconds, from 1 to 1e6."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 1e6; write for example 300")
    return number


def new_file(text: str) -> Path:
    """Read the name of a file that rank 0 will write at the end; find out now whether it can."""
    path = Path(text)
    if os.environ.get("RANK", "0") == "0":  # the other ranks may not even see that file system
        if path.exists() and not path.is_file():
            raise argparse.ArgumentTypeError(f"{text!r} is not a file; name a file in an existing folder")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise argparse.ArgumentTypeError(f"cannot write in folder {str(path.parent)!r}; create it or name another")
    return path


def write_json(path: Path, result: dict) -> None:
    """Write `result` so that a reader finds a whole file or none."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, path)


def in_columns(cells: tuple[str, ...]) -> str:
    """Return the cells side by side, right-aligned."""
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS))


def header(world_size: int, hosts: list[str], devices: list[str], backend: str, nccl: str | None, sweep: str) -> str:
    """Return what somebody needs to know to repeat the measurement, then the titles of the columns."""

    def counted(names: list[str]) -> str:
        return ", ".join(f"{name} x {number}" for name, number in Counter(names).items())

    lines = [
        f"all-reduce, sum of float32, in place, {sweep}",
        f"ranks: {world_size}; torch {torch.__version__}, backend {backend}" + (f", NCCL {nccl}" if nccl else ""),
        f"hosts x ranks: {counted(hosts)}",
        f"devices x ranks: {counted(devices)}",
        "time: of one operation in a batch, on the slowest rank; GB/s = 1e9 bytes/s",
        f"busbw = algbw * 2 (n - 1) / n = algbw * {2 * (world_size - 1) / world_size:.6g}",
    ]
    if world_size == 1:
        lines.append("n = 1: nothing crosses a link; this is the cost of a call and says nothing of a network")
    wrapped = [piece for line in lines for piece in textwrap.wrap(line, 96, subsequent_indent="  ")]
    titles = ["#" + in_columns(row)[1:] for row in (TITLES, IN_UNITS)]
    return "\n".join([*(f"# {line}" for line in wrapped), *titles])


def table_row(result: dict) -> str:
    """Return one line of the table."""
    cells = (
        str(result["bytes"]),
        str(result["bytes"] // ELEMENT),
        str(result["iterations"]),
        f"{result['time_us']:.1f}",
        f"{result['algbw_GBps']:.4f}",
        f"{result['busbw_GBps']:.4f}",
        f"{result['algbw_Gbps']:.3f}",
        f"{result['busbw_Gbps']:.3f}",
        str(result["wrong"]),
    )
    return in_columns(cells)


@record
def main() -> None:
    """Sweep the sizes and print a line for each."""
    parser = argparse.ArgumentParser(description="Time and check all-reduce over a range of message sizes.")
    size_help = "{} size in bytes; K, M, G, T = powers of 1024 (default: {})"
    parser.add_argument("--min", type=byte_count, default="1K", help=size_help.format("smallest", "1K"))
    parser.add_argument("--max", type=byte_count, default="256M", help=size_help.format("largest", "256M"))
    parser.add_argument("--factor", type=growth, default=2.0, help="from each size to the next, > 1 (default: 2)")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the results there too (rank 0)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="give up when a rank is this late for the others (default: 300)",
    )
    args = parser.parse_args()
    if args.min > args.max:
        parser.error(f"--min {args.min} bytes is more than --max {args.max} bytes; exchange them")

    rank, world_size, device = setup(args.timeout)
    on_gpu = device.type == "cuda"
    hosts = gather_text(socket.gethostname(), world_size)
    devices = gather_text(torch.cuda.get_device_name(device) if on_gpu else "cpu", world_size)
    backend = "nccl" if on_gpu else "gloo"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None

    def say(line: str) -> None:
        if rank == 0:
            print(line, flush=True)

    sweep = f"--min {args.min} --max {args.max} --factor {args.factor:g}"
    say(header(world_size, hosts, devices, backend, nccl, sweep))
    results = []
    for size in sizes(args.min, args.max, args.factor):
        buffer = allocate(size // ELEMENT, device)
        short = [r for r, fits in enumerate(gather(buffer is not None, world_size)) if not fits]
        if short:  # all ranks know, so all of them end the sweep here
            say(f"# from {size} bytes on skipped: no memory for it on rank {short[0]} ({hosts[short[0]]})")
            break
        row, wrong = measure(buffer, rank, world_size)
        del buffer  # before the next one is allocated
        results.append(row)
        say(table_row(row))
        for r, number in enumerate(wrong):
            if number:
                say(f"# WRONG DATA on rank {r} ({hosts[r]}) at {size} bytes: {number} of {size // ELEMENT} elements")

    if rank == 0 and args.json:
        result = {"world_size": world_size, "hosts": list(dict.fromkeys(hosts)), "devices": devices, "backend": backend}
        write_json(args.json, {**result, "torch": torch.__version__, "nccl": nccl, "results": results})
    failed = sum(row["wrong"] > 0 for row in results)
    if failed:
        say(f"# {failed} of {len(results)} sizes gave wrong data: trust no result of these nodes")
    if not results:
        say("# nothing was measured: choose a smaller --min")
    dist.destroy_process_group()
    if failed or not results:
        sys.exit(1)


if __name__ == "__main__":
    main()
