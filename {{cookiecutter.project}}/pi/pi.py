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

# Points that are worked on at once. On a CPU their two buffers should stay in the cache (8 bytes a point each, 1 MB
# together). A GPU needs enough points to be busy.
CHUNK = {"cpu": 2**16, "cuda": 2**22}

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
    partial_sum(1, 1000, 1000, device)  # loads kernels, which is not to be timed
    # An exchange connects the ranks, and all start the clock together. A checksum stands for the name of a host.
    hosts = len(set(exchange(zlib.crc32(socket.gethostname().encode()), world_size, device)))

    begin = time.perf_counter()
    # Inner points 1 ... n - 1, at i / n. The numbers of points of two ranks differ by at most one.
    first, last = (1 + (n - 1) * number // world_size for number in (rank, rank + 1))
    partial_sums = exchange(partial_sum(first, last, n, device), world_size, device)
    estimate = 4 * math.fsum([0.75, *partial_sums]) / n  # the end points count half: g(0)/2 + g(1)/2 = 1/2 + 1/4
    seconds = max(exchange(time.perf_counter() - begin, world_size, device))

    if rank == 0:
        speed = n / seconds
        print(f"pi     {estimate:.17f}")
        print(f"error  {estimate - math.pi:+.1e}")  # math.pi itself is 1.2e-16 below pi
        print(f"time   {seconds:.6f} s, slowest rank, start-up excluded: {speed:.3g} intervals/s of {n}")
        plurals = ["s" if number > 1 else "" for number in (world_size, hosts)]
        print(f"by     {world_size} rank{plurals[0]} on {hosts} host{plurals[1]} ({device.type})", flush=True)
        if args.json:
            result = {"pi": estimate, "error": estimate - math.pi, "intervals": n, "seconds": seconds}
            result |= {"intervals_per_second": speed, "world_size": world_size, "hosts": hosts}
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


def partial_sum(first: int, last: int, n: int, device: torch.device) -> float:
    """Return the sum of 1 / (1 + (i / n)^2) over i = first ... last - 1.

    torch adds up a chunk in pairs, which keeps the rounding small. math.fsum() adds the chunks without rounding. So the
    result does not depend on the number of chunks.
    """
    chunk = CHUNK[device.type]
    # Two buffers, allocated once: a temporary per operation costs more than the operation.
    offsets = torch.arange(chunk, dtype=torch.float64, device=device).div_(n)
    terms, one = torch.empty_like(offsets), torch.ones((), dtype=torch.float64, device=device)
    sums = []
    for begin in range(first, last, chunk):
        count = min(chunk, last - begin)
        x = torch.add(offsets[:count], begin / n, out=terms[:count])
        sums.append(torch.addcmul(one, x, x, out=x).reciprocal_().sum().item())
    return math.fsum(sums)


def exchange(number: float, world_size: int, device: torch.device) -> list[float]:
    """Return the numbers of all ranks, in the order of the ranks, to every rank.

    An exchange is a barrier too: it ends on no rank before all ranks have called it.
    """
    own = torch.tensor([number], dtype=torch.float64, device=device)
    of_all_ranks = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(of_all_ranks, own)
    KEPT.append((own, of_all_ranks))
    return torch.cat(of_all_ranks).tolist()  # tolist() waits for the GPU


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


def read_flags() -> argparse.Namespace:
    """Return the flags; exit with a message if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--intervals", type=float, default=1e9, metavar="N", help="number of trapezoids (default: 1e9)")
    add("--json", type=Path, metavar="FILE", help="rank 0 also writes the result to FILE")
    add("--timeout", type=float, default=300, metavar="SECONDS", help="until a silent rank is lost (default: 300)")
    args = parser.parse_args()
    if not (1 <= args.intervals <= 2**53 and args.intervals.is_integer()):
        parser.error(f"--intervals {args.intervals:g}: expected a whole number from 1 to 2^53, for example 1e9")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    cannot_write = args.json and (args.json.is_dir() or not os.access(args.json.parent, os.W_OK))
    if cannot_write and os.environ.get("RANK", "0") == "0":
        parser.error(f"--json {args.json}: name a file in a folder that is there and yours")
    return args


if __name__ == "__main__":
    main()
