"""Pi by the trapezoid rule, on as many processes as there are: the first distributed program.

    python pi/pi.py                                   one process
    torchrun --nproc-per-node 2 pi/pi.py              two processes on this machine

Pi is the integral of 4 / (1 + x^2) over [0, 1]. The trapezoid rule with n intervals of width 1/n
    (4 / n) * (g(0)/2 + g(1/n) + g(2/n) + ... + g(1)/2),    g(x) = 1 / (1 + x^2)
differs from pi by 1 / (6 n^2) (Euler-Maclaurin, https://dlmf.nist.gov/3.5#i): from n = 1e8 on that is less than the
spacing of float64 numbers at pi, 4.4e-16, and whatever error is seen is rounding. Each rank adds up its own share of
the inner points; one exchange at the end brings the shares together.
"""

import argparse
import json
import math
import os
import socket
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

# Pairs of points that are worked on at once. On a CPU the three buffers (8 bytes a pair each) should stay in its L2
# cache; a GPU needs enough points to fill it.
PAIRS = {"cpu": 2**15, "cuda": 2**22}


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
    high = low = 0.0
    if (last - first) % 2:  # an odd number of points leaves one over
        high = 1 / (1 + (first / intervals) ** 2)
        first += 1
    while first < last:
        pairs = min(size, (last - first) // 2)
        if pairs < size:  # the last chunk
            d2, s, denominator = d2[:pairs], s[:pairs], denominator[:pairs]
        m2 = ((first + pairs - 0.5) / intervals) ** 2
        torch.add(d2, 1 + m2, out=s)
        torch.addcmul(d2, s, s, value=-0.25 / m2, out=denominator)
        terms = [high, low, s.div_(denominator).sum().item() / (-2 * m2)]
        high = math.fsum(terms)  # adds exactly and rounds once; what it rounded off is kept in `low`
        low = math.fsum([*terms, -high])
        first += 2 * pairs
    return high, low


def exchange(mine: list[float], world_size: int, device: torch.device) -> list[float]:
    """Return the numbers of all ranks, in the order of the ranks; ends for nobody before everybody has joined."""
    mine = torch.tensor(mine, dtype=torch.float64, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(all_of_them, mine)
    return torch.cat(all_of_them).tolist()  # waits for the GPU, too


@record
def main() -> None:
    """Compute pi, time it, report from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--intervals", type=float, default=1e9, metavar="N", help="trapezoids over all ranks (1e9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too (rank 0)")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="give up on a silent rank (300)")
    if os.environ.get("LOCAL_RANK", "0") != "0":  # local rank 0 speaks for its node; the launcher then ends the others
        parser.error = lambda _: time.sleep(5) or sys.exit(2)
    args = parser.parse_args()
    if not (1 <= args.intervals <= 2**53 and args.intervals.is_integer()):
        parser.error(f"--intervals {args.intervals:g}: expected a whole number from 1 to 2^53, for example 1e9")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    if args.json and os.environ.get("RANK", "0") == "0" and not os.access(args.json.parent, os.W_OK):
        parser.error(f"--json {args.json}: cannot write in folder {args.json.parent}; create it or name another")

    # Start-up (imports, links between ranks, first use of a kernel) is not timed: a small run and two exchanges first,
    # which are the barrier in front of the clock as well.
    rank, world_size, device = setup(args.timeout)
    exchange(partial_sum(1, 1000, 1000, device), world_size, device)
    host = zlib.crc32(socket.gethostname().encode())  # a number, because that is what ranks exchange here
    hosts = len(set(exchange([host], world_size, device)))

    # The inner points are 1 ... n - 1. Whatever n and the number of ranks, these shares differ by at most one point,
    # and a rank with nothing to do takes part in the exchange all the same.
    n = int(args.intervals)
    first = 1 + (n - 1) * rank // world_size
    last = 1 + (n - 1) * (rank + 1) // world_size
    begin = time.perf_counter()
    shares = exchange(partial_sum(first, last, n, device), world_size, device)
    # The end points count half: g(0)/2 + g(1)/2 = 1/2 + 1/4. fsum makes the total independent of the number of ranks
    # but for the rounding inside the chunks.
    estimate = 4 * math.fsum([0.75, *shares]) / n
    seconds = max(exchange([time.perf_counter() - begin], world_size, device))

    if rank == 0:
        error = estimate - math.pi  # math.pi itself is 1.2e-16 below pi
        print(f"pi     {estimate:.17f}")
        print(f"error  {error:+.1e}")
        print(f"time   {seconds:.6f} s, slowest rank, start-up excluded: {n / seconds:.3g} intervals/s of {n}")
        ranks = f"{world_size} rank{'s' if world_size > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
        print(f"by     {ranks} ({device.type})", flush=True)
        if args.json:
            result = {"pi": estimate, "error": error, "intervals": n, "seconds": seconds}
            result |= {"intervals_per_second": n / seconds, "world_size": world_size, "hosts": hosts}
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
