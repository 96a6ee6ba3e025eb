"""Pi by the trapezoid rule, on as many ranks as there are: the second distributed program, after check/hello.py.

    python pi/pi.py                                   one rank
    torchrun --nproc-per-node 2 pi/pi.py              two ranks on this machine

Pi is the integral of 4 / (1 + x^2) over [0, 1]. With n intervals of width 1/n, the trapezoid rule is
    (4 / n) * (g(0)/2 + g(1/n) + g(2/n) + ... + g(1)/2),    g(x) = 1 / (1 + x^2)
Each rank adds up its part of the terms between, g(1/n), g(2/n), ... One exchange at the end brings the sums together.

The rule differs from pi by 1 / (6 n^2) (Euler-Maclaurin, https://dlmf.nist.gov/3.5#i). From n = 1e8 on, that is less
than the spacing of float64 numbers at pi, 4.4e-16. The error that is then left comes from rounding.
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

# Points are worked on in pairs, see partial_sum(). So many pairs make a chunk. On a CPU, the three buffers of a chunk
# should stay in the cache (8 bytes a pair each, 0.8 MB together). A GPU needs enough points to be busy.
PAIRS_PER_CHUNK = {"cpu": 2**15, "cuda": 2**22}

# The tensors that ranks exchange, kept so that Python is the last that releases them. Otherwise torch 2.4 and 2.6 may
# hang at the end: destroy_process_group() holds Python's lock, the GIL, and waits for a thread of gloo. That thread
# waits for the lock if it is the last that releases a tensor (https://github.com/pytorch/pytorch/pull/154976).
KEPT = []


@record
def main() -> None:
    """Compute pi on all ranks, measure the time, report from rank 0."""
    args = read_flags()
    n = int(args.intervals)
    rank, world_size, device = setup(args.timeout)
    warm_up(world_size, device)
    hosts = count_hosts(world_size, device)  # an exchange: all ranks start the clock together

    first, last = points_of(rank, world_size, n)
    begin = time.perf_counter()
    partial_sums = exchange(partial_sum(first, last, n, device), world_size, device)
    # The end points count half: g(0)/2 + g(1)/2 = 1/2 + 1/4. fsum makes the total independent of the number of ranks,
    # but for the rounding inside the chunks.
    estimate = 4 * math.fsum([0.75, *partial_sums]) / n
    seconds = max(exchange([time.perf_counter() - begin], world_size, device))

    if rank == 0:
        result = {
            "pi": estimate,
            "error": estimate - math.pi,  # math.pi itself is 1.2e-16 below pi
            "intervals": n,
            "seconds": seconds,
            "intervals_per_second": n / seconds,
            "world_size": world_size,
            "hosts": hosts,
        }
        print_result(result, device)
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


def read_flags() -> argparse.Namespace:
    """Return the flags; exit with a message if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--intervals", type=float, default=1e9, metavar="N", help="number of trapezoids (default: 1e9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rank 0 also writes the result to FILE")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="seconds until a silent rank counts as lost (default: 300)",
    )
    if os.environ.get("LOCAL_RANK", "0") != "0":
        parser.error = exit_silently
    args = parser.parse_args()
    if not (1 <= args.intervals <= 2**53 and args.intervals.is_integer()):
        parser.error(f"--intervals {args.intervals:g}: expected a whole number from 1 to 2^53, for example 1e9")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    if args.json and os.environ.get("RANK", "0") == "0" and not os.access(args.json.parent, os.W_OK):
        parser.error(f"--json {args.json}: cannot write in folder {args.json.parent}; create it or name another")
    if args.json and args.json.is_dir():
        parser.error(f"--json {args.json}: expected the name of a file, but this is a folder; name a file in it")
    return args


def exit_silently(_message: str) -> None:
    """Exit because of a wrong flag, but leave the message to local rank 0 of this node.

    The launcher ends all ranks when the first one exits. So this rank gives local rank 0 the time to print.
    """
    time.sleep(5)
    sys.exit(2)


def setup(timeout: float) -> tuple[int, int, torch.device]:
    """Join the process group of all ranks; return rank, world size and this rank's device.

    launch/ and torchrun set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables). Without RANK, this process is the
    only rank. A collective that another rank does not join within `timeout` seconds fails.
    """
    tasks = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "RANK" not in os.environ and tasks != "1":
        sys.exit(
            f"{tasks} tasks started, but RANK is not set, so each would run as a separate job: "
            f"start {sys.argv[0]} through the submit script"
        )

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        # Where a rank sees a single GPU, the scheduler has given it that one.
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"

    wait = timedelta(seconds=timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=wait)
    else:
        dist.init_process_group(backend, timeout=wait, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size(), device


def warm_up(world_size: int, device: torch.device) -> None:
    """Compute a little and exchange it. This loads kernels and connects the ranks, which is not to be timed."""
    exchange(partial_sum(1, 1000, 1000, device), world_size, device)


def count_hosts(world_size: int, device: torch.device) -> int:
    """Return on how many hosts the ranks run. Ranks exchange numbers here, so a checksum stands for a host's name."""
    checksum = zlib.crc32(socket.gethostname().encode())
    return len(set(exchange([checksum], world_size, device)))


def points_of(rank: int, world_size: int, n: int) -> tuple[int, int]:
    """Return the first inner point of this rank, and the one after its last.

    Point i lies at x = i / n. The inner points are 1 ... n - 1. The numbers of points of two ranks differ by at most
    one. With few points a rank may have none: it takes part in the exchange all the same.
    """
    first = 1 + (n - 1) * rank // world_size
    last = 1 + (n - 1) * (rank + 1) // world_size
    return first, last


def partial_sum(first: int, last: int, n: int, device: torch.device) -> tuple[float, float]:
    """Return the sum of 1 / (1 + (i / n)^2) over i = first ... last - 1.

    The sum is two float64 numbers, high + low. A single one would round it once more.

    On a CPU a division costs as much as all the other arithmetic here, so two points share one division. In a chunk
    with the middle m, the points m - d and m + d form a pair. With s = 1 + m^2 + d^2, the terms of a pair add up to
        1 / (1 + (m - d)^2) + 1 / (1 + (m + d)^2) = 2 s / (s^2 - 4 m^2 d^2) = s / (d^2 - s^2 / (4 m^2)) / (-2 m^2).
    d^2 is the same in every chunk. No digits cancel: s^2 - 4 m^2 d^2 is the product of two numbers >= 1.
    """
    pairs_per_chunk = PAIRS_PER_CHUNK[device.type]
    # Buffers of shape [pairs], allocated once: a temporary per operation costs more than the operation.
    d2 = torch.arange(pairs_per_chunk, dtype=torch.float64, device=device).add_(0.5).div_(n).square_()
    s, denominator = torch.empty_like(d2), torch.empty_like(d2)

    high = low = 0.0
    if (last - first) % 2:  # an odd number of points leaves one over
        high = 1 / (1 + (first / n) ** 2)
        first += 1

    while first < last:
        pairs = min(pairs_per_chunk, (last - first) // 2)
        if pairs < pairs_per_chunk:  # the last chunk
            d2, s, denominator = d2[:pairs], s[:pairs], denominator[:pairs]
        m2 = ((first + pairs - 0.5) / n) ** 2
        torch.add(d2, 1 + m2, out=s)
        torch.addcmul(d2, s, s, value=-0.25 / m2, out=denominator)
        chunk = s.div_(denominator).sum().item() / (-2 * m2)
        terms = [high, low, chunk]
        high = math.fsum(terms)  # adds exactly and rounds once
        low = math.fsum([*terms, -high])  # what that rounding took away
        first += 2 * pairs
    return high, low


def exchange(numbers: list[float], world_size: int, device: torch.device) -> list[float]:
    """Return the numbers of all ranks, in the order of the ranks. Every rank gets the list.

    An exchange is a barrier too: it ends on no rank before all ranks have called it.
    """
    own = torch.tensor(numbers, dtype=torch.float64, device=device)
    of_all_ranks = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(of_all_ranks, own)
    KEPT.append((own, of_all_ranks))
    return torch.cat(of_all_ranks).tolist()  # tolist() waits for the GPU


def print_result(result: dict, device: torch.device) -> None:
    """Print the result in four lines."""
    world_size, hosts = result["world_size"], result["hosts"]
    speed = f"{result['intervals_per_second']:.3g} intervals/s of {result['intervals']}"
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
    print(f"pi     {result['pi']:.17f}")
    print(f"error  {result['error']:+.1e}")
    print(f"time   {result['seconds']:.6f} s, slowest rank, start-up excluded: {speed}")
    print(f"by     {ranks} ({device.type})", flush=True)


if __name__ == "__main__":
    main()
