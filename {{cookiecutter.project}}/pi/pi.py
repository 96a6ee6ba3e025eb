"""Pi by the trapezoid rule, on as many processes as there are: the first distributed program.

    python pi/pi.py                                   one process
    torchrun --nproc-per-node 2 pi/pi.py              two processes on this machine

Pi is the integral of 4 / (1 + x^2) over [0, 1]. The trapezoid rule with n intervals of width 1/n
    (4 / n) * (g(0)/2 + g(1/n) + g(2/n) + ... + g(1)/2),    g(x) = 1 / (1 + x^2)
differs from pi by 1 / (6 n^2) (Euler-Maclaurin, https://dlmf.nist.gov/3.5#i): from n = 1e8 on that is less than the
spacing of float64 numbers at pi, 4.4e-16, and whatever error is seen is rounding. Each rank adds up its own share of
the inner points; one exchange at the end brings the shares together.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

# Pairs of points that are worked on at once. On a CPU the three buffers (8 bytes a pair each) should stay in its L2
# cache; a GPU needs enough points to fill it.
PAIRS = {"cpu": 2**15, "cuda": 2**22}
BLOCK = 256  # chunks between two visits of the exact sum; it bounds the memory, whatever the number of intervals


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


def partial_sum(first: int, last: int, intervals: int, device: torch.device) -> tuple[float, float]:
    """Sum 1 / (1 + (i / intervals)^2) over i = first ... last - 1.

    Returned as two float64 numbers, high + low, because one number would round the result once more.

    A division costs a CPU as much as all the other arithmetic here, so two points share one. Around the middle m of a
    chunk stand the points m - d and m + d; with s = 1 + m^2 + d^2 their terms add up to
        1 / (1 + (m - d)^2) + 1 / (1 + (m + d)^2) = 2 s / (s^2 - 4 m^2 d^2) = s / (d^2 - s^2 / (4 m^2)) / (-2 m^2),
    and d^2 is the same in every chunk. The denominator is the product of two numbers >= 1: no digits cancel.
    """
    size = PAIRS[device.type]
    # Buffers of shape [pairs], allocated once: a temporary per operation costs more than the operation.
    d2 = torch.arange(size, dtype=torch.float64, device=device).add_(0.5).div_(intervals).square_()
    s, denominator = torch.empty_like(d2), torch.empty_like(d2)
    sums = []
    high, low = 0.0, 0.0
    while first < last:
        pairs = min(size, (last - first) // 2)
        if pairs == 0:  # an odd number of points leaves one over
            sums.append(1 / (1 + (first / intervals) ** 2))
            first += 1
        else:
            if pairs < size:  # the last chunk
                d2, s, denominator = d2[:pairs], s[:pairs], denominator[:pairs]
            m2 = ((first + pairs - 0.5) / intervals) ** 2
            torch.add(d2, 1 + m2, out=s)
            torch.addcmul(d2, s, s, value=-0.25 / m2, out=denominator)
            sums.append(s.div_(denominator).sum().item() / (-2 * m2))
            first += 2 * pairs
        if len(sums) == BLOCK or first == last:
            # fsum adds exactly and rounds once; what it rounded off is kept in `low`.
            sums += [high, low]
            high = math.fsum(sums)
            low = math.fsum([*sums, -high])
            sums.clear()
    return high, low


def gather_text(text: str, world_size: int) -> list[str]:
    """Return every rank's `text` (at most 256 bytes), in the order of the ranks.

    all_gather_object() would do, but it needs numpy.
    """
    mine = torch.tensor(list(text.encode()[:256].ljust(256, b"\0")), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]


def interval_count(text: str) -> int:
    """Read a whole number >= 1, written 1000000000 or 1e9."""
    try:
        number = Decimal(text)
        whole = number.is_finite() and 1 <= number <= 2**53 and number == int(number)
    except InvalidOperation:
        whole = False
    if not whole:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 2^53; write for example 1e9")
    return int(number)


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


@record
def main() -> None:
    """Compute pi, time it, report from rank 0."""
    parser = argparse.ArgumentParser(description="Pi by the trapezoid rule for 4 / (1 + x^2) on [0, 1].")
    parser.add_argument(
        "--intervals", type=interval_count, default=10**9, help="trapezoids over all ranks, 1 to 2^53 (default: 1e9)"
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the result there too (rank 0)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="give up when a rank is this late for the others (default: 300)",
    )
    args = parser.parse_args()

    rank, world_size, device = setup(args.timeout)
    hosts = list(dict.fromkeys(gather_text(socket.gethostname(), world_size)))

    # The inner points are 1 ... n - 1. Whatever n and the number of ranks, these shares differ by at most one point,
    # and a rank with nothing to do takes part in the exchange all the same.
    n = args.intervals
    first = 1 + (n - 1) * rank // world_size
    last = 1 + (n - 1) * (rank + 1) // world_size

    # Start-up (imports, links between ranks, first use of a kernel) is not timed: a small run and an exchange first.
    # A gather ends for nobody before everybody has joined it, so it is the barrier in front of the clock as well.
    mine = torch.tensor(partial_sum(1, 1000, 1000, device), dtype=torch.float64, device=device)
    shares = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(shares, mine)
    torch.cat(shares).tolist()  # waits for the GPU, too

    begin = time.perf_counter()
    mine = torch.tensor(partial_sum(first, last, n, device), dtype=torch.float64, device=device)
    dist.all_gather(shares, mine)
    # The end points count half: g(0)/2 + g(1)/2 = 1/2 + 1/4. fsum makes the total independent of the number of ranks
    # but for the rounding inside the chunks.
    estimate = 4 * math.fsum([0.75, *torch.cat(shares).tolist()]) / n
    slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)

    if rank == 0:
        error = estimate - math.pi  # math.pi itself is 1.2e-16 below pi
        elapsed = slowest.item()
        rate = n / elapsed
        print(f"pi     {estimate:.17f}")
        print(f"error  {error:+.1e}")
        print(f"time   {elapsed:.6f} s, slowest rank, start-up excluded: {rate:.3g} intervals/s of {n}")
        plural = "" if world_size == 1 else "s", "" if len(hosts) == 1 else "s"
        print(f"by     {world_size} rank{plural[0]} on {len(hosts)} host{plural[1]} ({device.type})", flush=True)
        if args.json:
            result = {
                "pi": estimate,
                "error": error,
                "intervals": n,
                "seconds": elapsed,
                "intervals_per_second": rate,
                "world_size": world_size,
                "hosts": hosts,
            }
            write_json(args.json, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
