"""How fast do the ranks exchange a tensor? A sweep of one collective, all-reduce or that of --op, over message sizes.

    torchrun --nproc-per-node 2 -- benchmark/all_reduce.py --min 1K --max 256M

The `--` is needed: without it, torchrun takes --max for its own --max-restarts
(https://github.com/pytorch/pytorch/issues/120601).

The columns, for a message of S bytes over n ranks
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21):

    time    of one operation: that of a batch of operations on its slowest rank, divided by their number
    algbw   S / time
    busbw   algbw * 2 (n - 1) / n for an all-reduce, algbw * (n - 1) / n for the other operations

busbw is what every rank has to send, and to receive, per second. So it can be compared with the speed of the hardware,
whatever n is. It can be higher where less crosses the links: on 2 nodes NCCL's tree sends half (NCCL_ALGO=Ring shows
the links, https://github.com/NVIDIA/nccl/issues/837), and with NVLS or SHARP the switch adds
(https://github.com/NVIDIA/nccl-tests/issues/153). In an all-gather or a reduce-scatter each rank has a part of the
message, and S is the whole: the part x n. 1 GB/s = 1e9 bytes/s = 8 Gbit/s. Sizes count in powers of 1024.

Rank 0 prints each size as soon as it is measured. It writes --json when the sweep is complete. The exit code is 1 if
data were wrong. check/ranks.py names the network between the ranks. This file needs no other.
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
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

# Types that both gloo and NCCL add up.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
BUSBW_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # of (n - 1) / n
# Operations in a timed batch.
MIN_ITERATIONS, MAX_ITERATIONS = 25, 1000
# Each block of a message has a multiple of so many bytes, as in nccl-tests.
BLOCK_UNIT = 16
# Elements of the test pattern, which a message repeats. It is a prime, so two stretches of 2^k elements begin at
# different places of the pattern: if they change places, the check sees it.
PATTERN = 65521
# Repetitions of the pattern that a GPU compares at once. A CPU takes one, which its cache holds.
REPETITIONS = {"cpu": 1, "cuda": 256}
# A line of the table.
LINE = "{:>12} {:>11} {:>9} {:>7} {:>7} {:>8} {:>8} {:>5}"
SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The tensors of the last calls of gather(), so that Python is the last that releases them. Otherwise torch 2.4 and 2.6
# may hang at the end: destroy_process_group() holds Python's lock, the GIL, and waits for a thread of gloo. That thread
# waits for the lock if it is the last that releases a tensor (https://github.com/pytorch/pytorch/pull/154976).
KEPT = deque(maxlen=8)


# ---- the clock -------------------------------------------------------------------------------------------------------


def time_batch(device: torch.device, start_together: Callable, run: Callable, iterations: int) -> float:
    """Return the seconds that `iterations` calls of run() take on this rank, back to back.

    start_together: returns on all ranks at about the same time. It is called before the clock starts: a rank that began
    early would wait for the others inside the clock. Nothing but the operations is inside the clock. A GPU works
    through them while the CPU goes on, so the clock stops when the GPU is done, as in BenchTime() of nccl-tests
    (https://github.com/NVIDIA/nccl-tests/blob/01d6761451d6/src/common.cu, 2026-11-28).

    torch's watchdog counts the time of an operation from the call of run(), not from its start on the GPU: checkTimeout
    and workStartTime_ in
    https://github.com/pytorch/pytorch/blob/0007e752d518/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (2026-11-22).
    So --timeout must be longer than a whole batch. In the default of 300 seconds, each of 25 operations may take 12.
    """
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start_together()
    started = time.perf_counter()
    for _ in range(iterations):
        run()
    wait()
    return time.perf_counter() - started


class Result(NamedTuple):
    """What was measured with one message size: an entry of "results" in --json."""

    bytes: int  # of the message
    count: int  # its elements
    in_place: bool
    time_us: float  # mean time of an operation
    algbw_GBps: float
    busbw_GBps: float
    algbw_Gbps: float
    busbw_Gbps: float
    iterations: int  # operations in the timed batch
    wrong: int | None  # wrong elements on all ranks; None: not checked


class Benchmark:
    """One operation on one type over the ranks of this run."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Join the process group, print the header; keep what does not change between sizes."""
        self.op, self.dtype, self.args = args.op, getattr(torch, args.dtype), args
        # In place: the smaller of input and output is a part of the larger, or both are the same tensor. torch's
        # all_to_all works out of place only.
        self.in_place = args.op != "all_to_all" and not args.out_of_place
        self.rank, self.world_size, self.device = setup(args.timeout)
        dist.all_reduce(torch.zeros(1, device=self.device))  # connects the ranks, and returns when that is done
        settings = {"operation": args.op, "dtype": args.dtype, "in_place": self.in_place}
        self.facts = describe_run(self.world_size, settings, self.device)
        if self.rank != 0:
            sys.stdout = None  # print() does nothing then
        print_header(self.facts)
        self.given, self.expected = patterns_of(self.op, self.rank, self.world_size)
        self.busbw_per_algbw = BUSBW_FACTORS[self.op] * (self.world_size - 1) / self.world_size

    def run(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> None:
        """Run the operation once; both tensors are flat."""
        if self.op == "all_reduce":  # torch has it in place only: both tensors are one
            dist.all_reduce(output_tensor)
        elif self.op == "all_gather":  # torch 2.13 renames these two, and warns of the old names
            (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(output_tensor, input_tensor)
        elif self.op == "reduce_scatter":
            (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(output_tensor, input_tensor)
        else:
            dist.all_to_all_single(output_tensor, input_tensor)

    def measure(self, size: int) -> Result:
        """Check, warm up and time one message size."""
        output_tensor, input_tensor = self.buffers(size)
        wrong = self.check(output_tensor, input_tensor) if self.args.check else None
        for iterations in (1, 4, 16, 64, 256):  # until a batch is long enough to tell the time of an operation
            seconds = self.time_operation(output_tensor, input_tensor, iterations)
            if iterations * seconds > self.args.budget / 40:
                break
        iterations = min(max(math.ceil(self.args.budget / seconds), MIN_ITERATIONS), MAX_ITERATIONS)
        seconds = self.time_operation(output_tensor, input_tensor, iterations)
        algbw = size / seconds / 1e9
        busbw = algbw * self.busbw_per_algbw
        return Result(
            bytes=size,
            count=size // output_tensor.element_size(),
            in_place=self.in_place,
            time_us=seconds * 1e6,
            algbw_GBps=algbw,
            busbw_GBps=busbw,
            algbw_Gbps=8 * algbw,
            busbw_Gbps=8 * busbw,
            iterations=iterations,
            wrong=wrong,
        )

    def buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and input for a message of `size` bytes: flat tensors of zeros.

        The larger of the two is the message. The other is this rank's block of it, or as large.
        """
        message = torch.zeros(size, dtype=torch.uint8, device=self.device).view(self.dtype)
        other = message
        if len(self.given) != len(self.expected):
            other = message.chunk(self.world_size)[self.rank]
        if not self.in_place:
            other = torch.zeros_like(other)
        return (message, other) if len(self.given) <= len(self.expected) else (other, message)

    def time_operation(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, iterations: int) -> float:
        """Return the seconds of one operation in a batch on its slowest rank: a collective is as slow as that one.

        A mean of rates would overstate, because a few slow operations count too little in it: on loopback up to 3
        times, for messages below 4 MiB (2026-11-20).
        """
        barrier = partial(gather, 0, self.world_size)
        run = partial(self.run, output_tensor, input_tensor)
        seconds = time_batch(self.device, barrier, run, iterations)
        return max(gather(seconds, self.world_size)) / iterations

    def check(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> int:
        """Run the operation once on a known pattern. Name each rank with wrong data; return all wrong elements.

        Afterwards, the tensors are zeros: other numbers would grow with each sum in place, and overflow.
        """
        repetitions = REPETITIONS[self.device.type]
        for values, block in zip(self.given, input_tensor.chunk(len(self.given))):
            row = values.to(block).repeat(repetitions)
            for chunk in block.split(len(row)):
                chunk.copy_(row[: len(chunk)])
        self.run(output_tensor, input_tensor)
        wrong = 0
        for values, block in zip(self.expected, output_tensor.chunk(len(self.expected))):
            row = values.to(block).repeat(repetitions)
            wrong += sum(torch.count_nonzero(chunk != row[: len(chunk)]) for chunk in block.split(len(row))).item()
        output_tensor.zero_()
        input_tensor.zero_()
        wrong_per_rank = gather(wrong, self.world_size)
        for rank, wrong_on_rank in enumerate(wrong_per_rank):
            if wrong_on_rank:
                where = f"rank {rank} ({self.facts['hosts'][rank]}) at {output_tensor.nbytes} bytes of output"
                print(f"# WRONG DATA on {where}: {wrong_on_rank} of {len(output_tensor)} elements")
        return sum(wrong_per_rank)


def patterns_of(op: str, rank: int, world_size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what each block of a rank's input holds before the operation, and each block of its output after it."""
    ranks = range(world_size)
    if op == "all_reduce":
        return [share(pattern(0), rank, world_size)], [pattern(0)]
    if op == "all_gather":
        return [pattern(rank)], [pattern(other) for other in ranks]
    if op == "reduce_scatter":
        return [share(pattern(other), rank, world_size) for other in ranks], [pattern(rank)]
    sent = [pattern(rank * world_size + other) for other in ranks]
    return sent, [pattern(other * world_size + rank) for other in ranks]


def pattern(key: int) -> torch.Tensor:
    """Return whole numbers from 1 to 251, shape [PATTERN], random but the same on all ranks. All types hold them."""
    return torch.randint(1, 252, [PATTERN], generator=torch.Generator().manual_seed(key), dtype=torch.uint8)


def share(values: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Return what a rank adds so that all ranks together have `values`: those at its own places, and zeros elsewhere.

    So every type is exact, whatever the order of the additions, and a rank that adds something else is seen.
    """
    is_own = torch.arange(PATTERN) % world_size == rank
    return values * is_own


# ---- the ranks and what they are -------------------------------------------------------------------------------------


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


def gather(value: object, world_size: int) -> list:
    """Return every rank's value, in the order of the ranks: anything that JSON can hold in 256 bytes.

    It runs on the CPU. No rank returns before all ranks have called it, so it is a barrier, too. all_gather_object()
    would do, but it needs NumPy. A longer value is a ValueError on every rank.
    """
    text = json.dumps(value).encode()[:256].ljust(256)
    own = torch.tensor(list(text), dtype=torch.uint8)
    texts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(texts, own)
    KEPT.append((own, texts))
    return [json.loads(bytes(text.tolist())) for text in texts]


def network_variables() -> dict[str, str]:
    """Return the environment variables that change how fast ranks communicate."""
    prefixes = ("NCCL_", "GLOO_", "FI_", "OMP_")
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}


def describe_run(world_size: int, settings: dict, device: torch.device) -> dict:
    """Return the facts that a reader needs to repeat the run; they are printed, and are in --json."""
    name, backend, nccl = "cpu", "gloo", None
    if device.type == "cuda":
        name, backend, nccl = torch.cuda.get_device_name(), "nccl", ".".join(map(str, torch.cuda.nccl.version()))
    hosts = gather(socket.gethostname(), world_size)
    program = Path(sys.argv[0])
    return {
        "program": program.name,
        **settings,
        "world_size": world_size,
        "nodes": len(set(hosts)),
        "hosts": hosts,
        "devices": gather(name, world_size),
        "backend": backend,
        "nccl": nccl,
        "torch": torch.__version__,
        "environment": network_variables(),
        "job": os.environ.get("SLURM_JOB_ID") or os.environ.get("RUNAI_JOB_NAME") or os.environ.get("JOB_NAME") or "",
        "command": shlex.join(["/".join(program.resolve().parts[-2:]), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def leave(exit_code: int) -> NoReturn:
    """Leave the process group, and end this process. All ranks call this.

    The launcher ends all ranks when the first one fails. So no rank leaves before rank 0 has printed and written.
    """
    gather(None, dist.get_world_size())
    dist.destroy_process_group()
    sys.exit(exit_code)


def refuse(message: str) -> NoReturn:
    """Print the message on rank 0 and end with exit code 2. All ranks call this."""
    if dist.get_rank() == 0:
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)
    leave(2)


# ---- the sweep and its table -----------------------------------------------------------------------------------------


def message_sizes(smallest: int, largest: int, factor: float, blocks: int) -> list[int]:
    """Return the sizes of a sweep in bytes, each once and none above `largest`; none at all if a block does not fit.

    Like nccl-tests, round down so that each of the blocks of a message has a multiple of BLOCK_UNIT.
    """
    steps = int(math.log(largest / smallest, factor) + 1e-9)  # the log of a power of `factor` may be rounded down
    unit = BLOCK_UNIT * blocks
    sizes = set()
    for step in range(steps + 1):
        units = int(min(smallest * factor**step, largest)) // unit
        sizes.add(max(units, 1) * unit)
    return sorted(size for size in sizes if size <= largest)


def sweep(benchmark: Benchmark) -> list[Result]:
    """Measure size after size and print a line for each."""
    args, blocks = benchmark.args, max(len(benchmark.given), len(benchmark.expected))
    sizes = message_sizes(args.min, args.max, args.factor, blocks)
    if not sizes:
        rule = f"the smallest message of {args.op} on {benchmark.world_size} ranks has {BLOCK_UNIT * blocks} bytes"
        refuse(f"--max {args.max} bytes is too small: {rule}; raise --max")
    for titles in (
        ("size", "count", "time", "algbw", "busbw", "algbw", "busbw", "wrong"),
        ("bytes", "elem.", "us", "GB/s", "GB/s", "Gbit/s", "Gbit/s", "elem."),
    ):
        print(f"#{LINE.format(*titles)[1:]}", flush=True)
    results = []
    for size in sizes:
        result = benchmark.measure(size)
        print(table_row(result), flush=True)
        results.append(result)
    return results


def table_row(result: Result) -> str:
    """Return the line of one message size; '-' stands for what is not known."""
    figures = (result.time_us, result.algbw_GBps, result.busbw_GBps, result.algbw_Gbps, result.busbw_Gbps)
    wrong = "-" if result.wrong is None else result.wrong
    return LINE.format(result.bytes, result.count, *map(five_digits, figures), wrong)


def five_digits(value: float) -> str:
    """Return a number with five digits, or with all those before its point if they are more."""
    digits_before_point = len(str(int(value)))
    return f"{value:.{max(0, 5 - digits_before_point)}f}"


def print_header(facts: dict) -> None:
    """Print the facts of a run as comments; those that are not known are left out."""
    texts = dict(facts)
    texts["hosts"] = counted(facts["hosts"])
    texts["devices"] = counted(facts["devices"])
    texts["environment"] = " ".join(f"{name}={value}" for name, value in facts["environment"].items())
    lines = [f"# {key}: {text}" for key, text in texts.items() if text is not None and text != ""]
    print("\n".join(lines), flush=True)


def counted(names: list[str]) -> str:
    """Return each name once with its count: node1 x 4, node2 x 4."""
    return ", ".join(f"{name} x {count}" for name, count in Counter(names).items())


# ---- the command -----------------------------------------------------------------------------------------------------


def byte_count(text: str) -> int:
    """Read a size in bytes: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes; write for example 4K or 256M")
    return int(match[1]) * SIZE_UNITS[match[2]]


def positive(text: str) -> float:
    """Read a number above 0."""
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return float(text)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time and check a collective operation over a range of message sizes.")
    add, powers = parser.add_argument, "message in bytes; K, M, G, T are powers of 1024 (default: %(default)s)"
    add("--min", type=byte_count, default="1K", metavar="SIZE", help=f"smallest {powers}")
    add("--max", type=byte_count, default="256M", metavar="SIZE", help=f"largest {powers}")
    add("--factor", type=float, default=2.0, help="ratio of each size to the one before (default: %(default)s)")
    add("--op", choices=BUSBW_FACTORS, default="all_reduce", help="the operation (default: %(default)s)")
    add("--dtype", choices=DTYPES, default="float32", help="type of the elements (default: %(default)s)")
    add("--out-of-place", action="store_true", help="input and output are separate tensors; not for all_reduce")
    add("--budget", type=positive, default=0.2, metavar="SECONDS", help="to time a size, with 25 to 1000 operations")
    add("--no-check", dest="check", action="store_false", help="do not check the data")
    add("--json", type=Path, metavar="FILE", help="rank 0 writes header and results to FILE")
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="give up on a late rank; on GPUs, a batch of operations must end within this time, too (default: 300)",
    )
    args = parser.parse_args()
    if args.min > args.max:
        parser.error(f"--min {args.min} bytes is more than --max {args.max} bytes; exchange them, or lower --min")
    if not 1.01 <= args.factor < math.inf:
        parser.error(f"--factor {args.factor:g} is not a number from 1.01 on")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    if args.out_of_place and args.op == "all_reduce":
        parser.error("--out-of-place: torch's all_reduce is in place; leave it out, or take another --op")
    return args


@record
def main() -> None:
    """Read the flags, join the process group, sweep the message sizes, write the results."""
    args = parse_arguments()
    benchmark = Benchmark(args)
    # Rank 0 alone may see that a file cannot be written.
    writable = args.json is None or (os.access(args.json.parent, os.W_OK) and not args.json.is_dir())
    if not gather(writable, benchmark.world_size)[0]:
        refuse(f"cannot write {args.json}: name a file in a folder that is there and yours")
    if benchmark.world_size == 1:
        print("# n = 1: nothing crosses a link; this is the cost of a call and says nothing of a network")
    results = sweep(benchmark)
    if benchmark.rank == 0 and args.json:
        rows = [result._asdict() for result in results]
        args.json.write_text(json.dumps({**benchmark.facts, "results": rows}, indent=1) + "\n")
    leave(1 if any(result.wrong for result in results) else 0)


if __name__ == "__main__":
    main()
