"""How fast do the ranks exchange a tensor? A sweep of one collective, all-reduce or that of --op, over message sizes.

    torchrun --nproc-per-node 2 -- benchmark/all_reduce.py --min 1K --max 256M

The `--` is needed: without it, torchrun takes --max for its own --max-restarts
(https://github.com/pytorch/pytorch/issues/120601).

The columns, for a message of S bytes over n ranks
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21):

    time    of one operation
    algbw   S / time
    busbw   algbw * 2 (n - 1) / n for an all-reduce, algbw * (n - 1) / n for the other operations

busbw is what every rank has to send, and to receive, per second. So it can be compared with the speed of the hardware,
whatever n is. The exception is a network whose switches do the adding. In an all-gather or a reduce-scatter each rank
has a part of the message, and S is the whole: the part x n. 1 GB/s = 1e9 bytes/s = 8 Gbit/s. Sizes count in powers of
1024.

How it is timed: after a barrier, each rank runs a batch of operations back to back. The time of an operation is the
time of the batch on the slowest rank, divided by the number of operations. The percentiles are of the operations of
that batch, each percentile on its slowest rank. A mean of rates would overstate, because a few slow operations count
too little in it: on loopback up to 3 times, for messages below 4 MiB.

How it is checked: the first operation on each size moves a pattern of small whole numbers. Every rank compares every
element that it receives. A rank with wrong data is named, and the exit code is 1. It is 1 too if there is not memory
enough for a single size.

Rank 0 prints each size as soon as it is measured. It writes --json and --csv when the sweep is complete.

This file needs no other.
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
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

# Types that both gloo and NCCL add up.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
# Operations in a timed batch. The check of a large message takes less than 3 % of the time of 25 operations on it.
MIN_ITERATIONS = 25
MAX_ITERATIONS = 1000
# Each block of a message has a multiple of so many bytes, as in nccl-tests.
BLOCK_UNIT = 16
# Length of the test pattern. It is a prime. So two stretches of 2^k elements of a message begin at different places of
# the pattern, and if they change places, the check sees it.
PERIOD = 251
# Repetitions of the pattern that are copied or compared at once: on a CPU at most 0.5 MB, which a core's cache holds.
REPETITIONS = {"cpu": 2**8, "cuda": 2**14}
# Bytes of an element -> an integer type of that size. It compares elements bit by bit: as numbers, 0.0 equals -0.0, and
# no NaN equals itself.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bytes that the ranks of a machine may take together where they run on CPUs: half of its memory. A job's own limit (a
# cgroup) can be lower. This program does not know that limit; Linux ends a process that exceeds it.
CPU_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The tensors of the last calls of gather(), so that Python is the last that releases them. Otherwise torch 2.4 and 2.6
# may hang at the end: destroy_process_group() holds Python's lock, the GIL, and waits for a thread of gloo. That thread
# waits for the lock if it is the last that releases a tensor (https://github.com/pytorch/pytorch/pull/154976).
KEPT = deque(maxlen=8)


# ---- what is measured ------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """A collective operation. A rank's input and output consist of blocks: a single one, or one for each rank."""

    run: Callable  # run(output_tensor, input_tensor); both are flat
    busbw_factor: int  # busbw = algbw * busbw_factor * (n - 1) / n
    reduces: bool  # True: it adds up the inputs of all ranks; False: it moves them
    input_block_per_rank: bool
    output_block_per_rank: bool
    # Which pattern a block holds before and after the operation: functions of (rank, block, world_size).
    input_key: Callable
    output_key: Callable

    def input_blocks(self, world_size: int) -> int:
        """Return the number of blocks in a rank's input."""
        return world_size if self.input_block_per_rank else 1

    def output_blocks(self, world_size: int) -> int:
        """Return the number of blocks in a rank's output."""
        return world_size if self.output_block_per_rank else 1


def all_reduce(output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> None:
    """Add up the tensors of all ranks; torch does that in place only, so both tensors are one."""
    dist.all_reduce(output_tensor)


# torch 2.13 renames these two, and warns of the old names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def same_key(rank: int, block: int, world_size: int) -> int:
    """Return 0: all ranks have the same pattern."""
    return 0


def rank_key(rank: int, block: int, world_size: int) -> int:
    """Return the rank: each has a pattern of its own."""
    return rank


def block_key(rank: int, block: int, world_size: int) -> int:
    """Return the number of the block, which is the rank that gives or gets it."""
    return block


def sent_key(rank: int, block: int, world_size: int) -> int:
    """Return a number of its own for what `rank` sends to rank `block`."""
    return rank * world_size + block


def received_key(rank: int, block: int, world_size: int) -> int:
    """Return the sent_key() of what rank `block` sends to `rank`."""
    return block * world_size + rank


OPERATIONS = {
    "all_reduce": Operation(
        run=all_reduce,
        busbw_factor=2,
        reduces=True,
        input_block_per_rank=False,
        output_block_per_rank=False,
        input_key=same_key,
        output_key=same_key,
    ),
    "all_gather": Operation(
        run=all_gather,
        busbw_factor=1,
        reduces=False,
        input_block_per_rank=False,
        output_block_per_rank=True,
        input_key=rank_key,
        output_key=block_key,
    ),
    "reduce_scatter": Operation(
        run=reduce_scatter,
        busbw_factor=1,
        reduces=True,
        input_block_per_rank=True,
        output_block_per_rank=False,
        input_key=block_key,
        output_key=rank_key,
    ),
    "all_to_all": Operation(
        run=dist.all_to_all_single,
        busbw_factor=1,
        reduces=False,
        input_block_per_rank=True,
        output_block_per_rank=True,
        input_key=sent_key,
        output_key=received_key,
    ),
}


class Timing(NamedTuple):
    """Seconds of an operation in a batch, each figure on its slowest rank."""

    mean: float
    p50: float
    p95: float
    p99: float


class Result(NamedTuple):
    """What was measured with one message size: an entry of "results" in --json, a row of --csv."""

    bytes: int  # of the message
    count: int  # its elements
    in_place: bool
    time_us: float  # mean time of an operation
    p50_us: float  # 50 % of the operations took at most this
    p95_us: float
    p99_us: float
    algbw_GBps: float
    busbw_GBps: float
    algbw_Gbps: float
    busbw_Gbps: float
    iterations: int  # operations in the timed batch
    wrong: int | None  # wrong elements on all ranks; None: not checked
    of_line_rate: float | None  # share of --line-rate; None: not given, or a single rank


# ---- the table that rank 0 prints ------------------------------------------------------------------------------------


def five_digits(value: float) -> str:
    """Return a number with five digits, or with all those before its point if they are more."""
    digits_before_point = len(str(int(value)))
    return f"{value:.{max(0, 5 - digits_before_point)}f}"


def percent(value: float) -> str:
    """Return a ratio as whole percent."""
    return f"{value:.0%}"


class Column(NamedTuple):
    """A column of the table."""

    field: str  # of Result
    width: int
    title: str
    unit: str  # or the second line of the title
    text: Callable  # turns the field's value into text


COLUMNS = (  # with a space between them, a line has 100 characters
    Column("bytes", 12, "size", "bytes", str),
    Column("count", 11, "count", "elem.", str),
    Column("time_us", 9, "time", "us", five_digits),
    Column("p50_us", 9, "p50", "us", five_digits),
    Column("p95_us", 9, "p95", "us", five_digits),
    Column("algbw_GBps", 7, "algbw", "GB/s", five_digits),
    Column("busbw_GBps", 7, "busbw", "GB/s", five_digits),
    Column("algbw_Gbps", 8, "algbw", "Gbit/s", five_digits),
    Column("busbw_Gbps", 8, "busbw", "Gbit/s", five_digits),
    Column("wrong", 5, "wrong", "elem.", str),
    Column("of_line_rate", 5, "line", "rate", percent),
)


def table_line(cells: list[str]) -> str:
    """Return a line of the table: each cell at the right of its column."""
    return " ".join(cell.rjust(column.width) for cell, column in zip(cells, COLUMNS))


def table_titles() -> str:
    """Return the two lines above the table, each a comment."""
    titles = table_line([column.title for column in COLUMNS])
    units = table_line([column.unit for column in COLUMNS])
    return f"#{titles[1:]}\n#{units[1:]}"


def table_row(result: Result) -> str:
    """Return the line of one message size; '-' stands for what is not known."""
    cells = []
    for column in COLUMNS:
        value = getattr(result, column.field)
        cells.append("-" if value is None else column.text(value))
    return table_line(cells)


# ---- the process group -----------------------------------------------------------------------------------------------


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
    would do, but it needs NumPy. A longer value is cut, so it is a ValueError on every rank, and no rank waits for one
    that failed.
    """
    text = json.dumps(value).encode()[:256].ljust(256)
    own = torch.tensor(list(text), dtype=torch.uint8)
    texts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(texts, own)
    KEPT.append((own, texts))
    return [json.loads(bytes(text.tolist())) for text in texts]


def join(timeout: float, **settings: object) -> tuple[int, torch.device, dict]:
    """Join the process group, connect the ranks, print the header; return rank, device and the facts of the header.

    settings: facts of the calling program. From here on, print() prints on rank 0 alone.
    """
    environment = network_variables()  # those of the user: the next line sets more
    nccl_log = let_nccl_write_a_log()
    rank, world_size, device = setup(timeout)
    dist.all_reduce(torch.zeros(1, device=device))  # connects the ranks, and returns when that is done
    hardware = describe_hardware(device, nccl_log)
    facts = describe_run(world_size, settings, hardware, environment)
    if rank != 0:
        sys.stdout = None  # print() does nothing then
    print_header(facts)
    return rank, device, facts


def network_variables() -> dict[str, str]:
    """Return the environment variables that change how fast ranks communicate."""
    prefixes = ("NCCL_", "GLOO_", "FI_", "OMP_")
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}


def let_nccl_write_a_log() -> IO[str] | None:
    """Have NCCL say in a file of this process which network it takes; return the file, which is deleted when closed.

    NCCL says so only in its debug output. INIT and NET write while NCCL connects, and nothing during an operation.
    Where the user has set NCCL_DEBUG or NCCL_DEBUG_FILE, these stay, and there is no such file.
    """
    if not torch.cuda.is_available() or "NCCL_DEBUG" in os.environ or "NCCL_DEBUG_FILE" in os.environ:
        return None
    log = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=log.name)
    return log


def network_of(nccl_log: str) -> str:
    """Return the cards and the network that NCCL's log names; '' if it names none."""
    names = []
    for line in nccl_log.splitlines():
        for expression in (r"NET/\w+ *: *Using (\[0\][^;]*)", r"Using network ([^;]+)"):
            match = re.search(expression, line)
            if match and match[1] not in names:
                names.append(match[1])
    return " ".join(names)


def describe_hardware(device: torch.device, nccl_log: IO[str] | None) -> dict:
    """Return this rank's device, and what the ranks communicate with."""
    if device.type == "cpu":
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "by hosts' names")
        return {"device": "cpu", "backend": "gloo", "nccl": None, "network": f"tcp {interface}"}
    network = "see what NCCL prints"
    if nccl_log:
        text = nccl_log.read()
        nccl_log.close()
        if text:
            network = network_of(text)
    nccl_version = ".".join(map(str, torch.cuda.nccl.version()))
    return {"device": torch.cuda.get_device_name(), "backend": "nccl", "nccl": nccl_version, "network": network}


def describe_run(world_size: int, settings: dict, hardware: dict, environment: dict[str, str]) -> dict:
    """Return the facts that a reader needs to repeat the run; they are printed, and are in --json."""
    hosts = gather(socket.gethostname(), world_size)
    devices = gather(hardware["device"], world_size)
    program = Path(sys.argv[0])
    program_in_project = "/".join(program.resolve().parts[-2:])
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("RUNAI_JOB_NAME") or os.environ.get("JOB_NAME") or ""
    return {
        "program": program.name,
        **settings,
        "world_size": world_size,
        "nodes": len(set(hosts)),
        "hosts": hosts,
        "ranks_per_node": max(Counter(hosts).values()),
        "devices": devices,
        "backend": hardware["backend"],
        "nccl": hardware["nccl"],
        "network": hardware["network"],
        "torch": torch.__version__,
        "environment": environment,
        "job": job,
        "command": shlex.join([program_in_project, *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def refuse_on_all_ranks(message: str) -> NoReturn:
    """Print the message on rank 0 and end with exit code 2. All ranks call this."""
    if dist.get_rank() == 0:
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)
    leave(2)


def leave(exit_code: int) -> NoReturn:
    """Leave the process group, and end this process. All ranks call this.

    The launcher ends all ranks when the first one fails. So no rank leaves before rank 0 has printed and written.
    """
    gather(None, dist.get_world_size())
    dist.destroy_process_group()
    sys.exit(exit_code)


def refuse_unwritable_files(paths: list[Path | None]) -> None:
    """End all ranks if rank 0 cannot write one of these files. The other ranks may not see its file system."""
    unwritable = []
    for path in paths:
        if path and not is_writable(path):
            unwritable.append(str(path))
    refused_by_rank = gather(bool(unwritable), dist.get_world_size())
    if refused_by_rank[0]:
        names = ", ".join(unwritable)
        refuse_on_all_ranks(f"cannot write {names}: name a file in a folder that is there and yours")


def is_writable(path: Path) -> bool:
    """Return whether this process can write a file of that name, new or in the place of another."""
    return os.access(path.parent, os.W_OK | os.X_OK) and (path.is_file() or not path.exists())


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


# ---- the check -------------------------------------------------------------------------------------------------------


def pattern(key: int) -> torch.Tensor:
    """Return whole numbers from 1 to 251 that depend on `key`, shape [PERIOD]; uint8 and bfloat16 hold them exactly."""
    # From 1 to 250, beginning with 3. A step of 251 would make all numbers the same.
    step = 1 + (2 + key // PERIOD) % (PERIOD - 1)
    return 1 + (torch.arange(PERIOD) * step + key) % PERIOD


def contribution(key: int, rank: int, world_size: int) -> torch.Tensor:
    """Return what a rank adds so that all ranks together have pattern(key), shape [PERIOD].

    They are whole numbers, none negative. So no partial sum exceeds 251, and every type is exact whatever the order of
    the additions. Up to 4096 ranks, none contributes nothing but zeros. Up to 259 ranks, no two contribute the same.
    """
    # Each number is split into world_size parts. Which part a rank adds changes from one number to the next.
    part = (torch.arange(PERIOD) + rank) % world_size
    return pattern(key) * (part + 1) // world_size - pattern(key) * part // world_size


def repeated(values: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Return `values`, shape [PERIOD], in the type of the block, over and over, but no longer than a cache holds.

    The result is a view as int64, the fastest type to copy and to compare. That works for every block, because its
    length is a multiple of BLOCK_UNIT.
    """
    for_whole_block = len(block) // PERIOD // 8 * 8 + 8  # a multiple of 8: whole int64, whatever the type
    repetitions = min(REPETITIONS[block.device.type], for_whole_block)
    return values.to(block).repeat(repetitions).view(torch.int64)


def fill_input(operation: Operation, input_tensor: torch.Tensor, rank: int, world_size: int) -> None:
    """Write the patterns, or this rank's contributions to them, into the input."""
    for block_number, block in enumerate(input_tensor.chunk(operation.input_blocks(world_size))):
        key = operation.input_key(rank, block_number, world_size)
        row = repeated(contribution(key, rank, world_size) if operation.reduces else pattern(key), block)
        words = block.view(torch.int64)
        rows = len(words) // len(row)
        words[: rows * len(row)].view(rows, len(row)).copy_(row)
        rest = words[rows * len(row) :]
        rest.copy_(row[: len(rest)])


def count_wrong_elements(operation: Operation, output_tensor: torch.Tensor, rank: int, world_size: int) -> int:
    """Return how many elements of the output differ from the patterns that belong there; leave zeros."""
    wrong = 0
    for block_number, block in enumerate(output_tensor.chunk(operation.output_blocks(world_size))):
        row = repeated(pattern(operation.output_key(rank, block_number, world_size)), block)
        differences = torch.zeros_like(row)
        for chunk in block.view(torch.int64).split(len(row)):
            chunk.bitwise_xor_(row[: len(chunk)])  # zero where the chunk is right
            differences[: len(chunk)].bitwise_or_(chunk)
        if differences.any():
            for chunk in block.view(INTEGERS[block.element_size()]).split(len(row)):
                wrong += int(torch.count_nonzero(chunk))
            block.zero_()
    return wrong


def run_and_check(
    operation: Operation, output_tensor: torch.Tensor, input_tensor: torch.Tensor, rank: int, world_size: int
) -> int:
    """Run the operation once on a known pattern; return the number of wrong elements on this rank.

    Afterwards, the tensors of an operation that reduces are zeros. Other numbers would grow with each operation in
    place, and overflow.
    """
    fill_input(operation, input_tensor, rank, world_size)
    operation.run(output_tensor, input_tensor)
    wrong = count_wrong_elements(operation, output_tensor, rank, world_size)
    if operation.reduces and input_tensor is not output_tensor:
        input_tensor.zero_()
    return wrong


# ---- the clock -------------------------------------------------------------------------------------------------------


def time_batch(device: torch.device, start_together: Callable, run: Callable, iterations: int) -> list[float]:
    """Return the seconds of each of `iterations` calls of run() on this rank, back to back.

    start_together: returns on all ranks at about the same time; it is called before the clock starts. Nothing but the
    operations is inside the clock.
    """
    if device.type == "cuda":
        return time_batch_on_gpu(start_together, run, iterations)
    start_together()
    times = [time.perf_counter()]
    for _ in range(iterations):
        run()
        times.append(time.perf_counter())
    return [times[number + 1] - times[number] for number in range(iterations)]


def time_batch_on_gpu(start_together: Callable, run: Callable, iterations: int) -> list[float]:
    """Return the seconds of each of `iterations` calls of run() on this rank's GPU, measured with CUDA events.

    NCCL works in a stream of its own. Each operation makes the current stream wait for it, and the events are recorded
    in the current stream. The CPU waits for the last event only.

    torch's watchdog counts the time of an operation from the call of run(), not from its start on the GPU: checkTimeout
    and workStartTime_ in
    https://github.com/pytorch/pytorch/blob/0007e752d518/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (2026-11-22).
    So --timeout must be longer than a whole batch. In the default of 300 seconds, each of 25 operations may take 12.
    """
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    for event in events:
        event.record()  # CUDA creates an event when it is first recorded: here, outside the clock
    torch.cuda.synchronize()
    start_together()
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    events[-1].synchronize()
    milliseconds = [events[number].elapsed_time(events[number + 1]) for number in range(iterations)]
    return [value / 1000 for value in milliseconds]


def percentile(sorted_values: list[float], percent_of_values: float) -> float:
    """Return the smallest value such that so many percent of the values are not larger (nearest rank)."""
    return sorted_values[math.ceil(percent_of_values / 100 * len(sorted_values)) - 1]


# ---- the benchmark ---------------------------------------------------------------------------------------------------


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


def busbw_at_line_rate(line_rate: float | None, op: str, world_size: int, ranks_per_node: int) -> float | None:
    """Return the busbw, in Gbit/s, at which the network cards of a node are busy all the time; None: not known.

    A ring enters and leaves each node once, whatever the number of its ranks. So busbw is what all cards of a node
    carry together. On a single node it is what the link of a rank carries. In an all-to-all, each of a node's r ranks
    sends (n - r) / (n - 1) of its data to other nodes.
    """
    if line_rate is None or world_size == 1:
        return None
    if op == "all_to_all" and ranks_per_node < world_size:
        return line_rate / (ranks_per_node * (world_size - ranks_per_node) / (world_size - 1))
    return line_rate


class Benchmark:
    """One operation on one type over the ranks of this run."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Join the process group; keep what does not change between sizes."""
        self.op = args.op
        self.operation = OPERATIONS[args.op]
        self.dtype = getattr(torch, args.dtype)
        self.check = args.check
        self.budget = args.budget
        # In place: the smaller of input and output is a part of the larger, or both are the same tensor. torch's
        # all_to_all works out of place only.
        self.in_place = args.op != "all_to_all" and not args.out_of_place

        settings = {"operation": args.op, "dtype": args.dtype, "in_place": self.in_place}
        self.rank, self.device, self.facts = join(args.timeout, **settings, line_rate_Gbps=args.line_rate)
        self.hosts = self.facts["hosts"]
        self.world_size = self.facts["world_size"]
        self.ranks_per_node = self.facts["ranks_per_node"]

        self.input_blocks = self.operation.input_blocks(self.world_size)
        self.output_blocks = self.operation.output_blocks(self.world_size)
        self.blocks = max(self.input_blocks, self.output_blocks)
        self.sizes = message_sizes(args.min, args.max, args.factor, self.blocks)
        self.busbw_per_algbw = self.operation.busbw_factor * (self.world_size - 1) / self.world_size
        self.full_busbw = busbw_at_line_rate(args.line_rate, args.op, self.world_size, self.ranks_per_node)

    def least_memory(self) -> tuple[float, int]:
        """Return the bytes that the rank with the least memory may take, and that rank.

        On a GPU these are the free bytes. On a CPU they are this rank's share of CPU_MEMORY.
        """
        torch.cuda.empty_cache()  # frees the buffers of the size before
        own_bytes = CPU_MEMORY / self.ranks_per_node
        if self.device.type == "cuda":
            own_bytes = torch.cuda.mem_get_info()[0]
        bytes_of_ranks = gather(own_bytes, self.world_size)
        return min((number_of_bytes, rank) for rank, number_of_bytes in enumerate(bytes_of_ranks))

    def memory_needed(self, size: int) -> float:
        """Return the bytes that a message takes on a rank: buffers, check, and the copy that gloo makes of blocks."""
        return size * (1.25 if self.op == "all_reduce" else 3)

    def buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and input for a message of `size` bytes: flat tensors of zeros.

        The larger of the two is the message. The other is this rank's block of it, or as large.
        """
        message = torch.zeros(size, dtype=torch.uint8, device=self.device).view(self.dtype)
        other = message
        if self.input_blocks != self.output_blocks:
            other = message.chunk(self.world_size)[self.rank]
        if not self.in_place:
            other = torch.zeros_like(other)
        if self.input_blocks <= self.output_blocks:
            return message, other
        return other, message

    def time_operation(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, iterations: int) -> Timing:
        """Time a batch; return the figures of the slowest rank, on every rank the same."""
        barrier = partial(gather, 0, self.world_size)
        run = partial(self.operation.run, output_tensor, input_tensor)
        seconds = sorted(time_batch(self.device, barrier, run, iterations))
        own = Timing(
            mean=sum(seconds) / iterations,
            p50=percentile(seconds, 50),
            p95=percentile(seconds, 95),
            p99=percentile(seconds, 99),
        )
        timings_of_ranks = gather(own, self.world_size)
        return Timing(*map(max, zip(*timings_of_ranks)))

    def choose_iterations(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> int:
        """Warm up with longer and longer batches; return how many operations fit into the budget.

        A batch that takes a fortieth of the budget is long enough. The times are those of the slowest rank, so all
        ranks return the same number.
        """
        for iterations in (1, 4, 16, 64, 256):
            seconds = self.time_operation(output_tensor, input_tensor, iterations).mean
            if iterations * seconds > self.budget / 40:
                break
        return min(max(math.ceil(self.budget / seconds), MIN_ITERATIONS), MAX_ITERATIONS)

    def run_first_operation(self, size: int, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> int | None:
        """Run the operation for the first time on a size, and check it unless --no-check is given.

        Name each rank with wrong data. Return the number of wrong elements on all ranks; None: not checked.
        """
        if not self.check:
            self.operation.run(output_tensor, input_tensor)
            return None
        wrong = run_and_check(self.operation, output_tensor, input_tensor, self.rank, self.world_size)
        wrong_per_rank = gather(wrong, self.world_size)
        for rank, wrong_on_rank in enumerate(wrong_per_rank):
            if wrong_on_rank:
                where = f"rank {rank} ({self.hosts[rank]}) at {size} bytes"
                print(f"# WRONG DATA on {where}: {wrong_on_rank} of {len(output_tensor)} elements")
        return sum(wrong_per_rank)

    def measure(self, size: int) -> Result:
        """Check, warm up and time one message size."""
        output_tensor, input_tensor = self.buffers(size)
        wrong = self.run_first_operation(size, output_tensor, input_tensor)
        iterations = self.choose_iterations(output_tensor, input_tensor)
        timing = self.time_operation(output_tensor, input_tensor, iterations)
        algbw = size / timing.mean / 1e9
        busbw = algbw * self.busbw_per_algbw
        return Result(
            bytes=size,
            count=size // output_tensor.element_size(),
            in_place=self.in_place,
            time_us=timing.mean * 1e6,
            p50_us=timing.p50 * 1e6,
            p95_us=timing.p95 * 1e6,
            p99_us=timing.p99 * 1e6,
            algbw_GBps=algbw,
            busbw_GBps=busbw,
            algbw_Gbps=8 * algbw,
            busbw_Gbps=8 * busbw,
            iterations=iterations,
            wrong=wrong,
            of_line_rate=None if self.full_busbw is None else 8 * busbw / self.full_busbw,
        )


def sweep(benchmark: Benchmark) -> list[Result]:
    """Measure size after size and print a line for each; end at the first for which a rank has no memory."""
    print(table_titles(), flush=True)
    results = []
    for number, size in enumerate(benchmark.sizes, 1):
        free, rank = benchmark.least_memory()
        if benchmark.memory_needed(size) > free:
            print(f"# from {size} bytes on skipped: no memory for it on rank {rank} ({benchmark.hosts[rank]})")
            break
        if benchmark.rank == 0 and sys.stderr.isatty():  # the line of the table will overwrite this one
            print(f"# {number} of {len(benchmark.sizes)}: {size} bytes", end="\r", file=sys.stderr, flush=True)
        result = benchmark.measure(size)
        print(table_row(result), flush=True)
        results.append(result)
    return results


# ---- the command -----------------------------------------------------------------------------------------------------


def byte_count(text: str) -> int:
    """Read a size in bytes: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes; write for example 4K or 256M")
    return int(match[1]) * SIZE_UNITS[match[2]]


def at_least(least: float) -> Callable:
    """Return a function that reads a number from `least` to 1e6: a whole one if `least` is an int, else a float."""

    def number(text: str) -> float:
        value = type(least)(text)
        if not least <= value <= 1e6:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} to 1e6")
        return value

    return number


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time and check a collective operation over a range of message sizes.")
    parser.add_argument(
        "--min",
        type=byte_count,
        default="1K",
        metavar="SIZE",
        help="smallest message in bytes; K, M, G, T are powers of 1024 (default: %(default)s)",
    )
    parser.add_argument(
        "--max",
        type=byte_count,
        default="256M",
        metavar="SIZE",
        help="largest message in bytes; K, M, G, T are powers of 1024 (default: %(default)s)",
    )
    parser.add_argument(
        "--factor", type=at_least(1.01), default=2.0, help="ratio of each message size to the one before (default: 2)"
    )
    parser.add_argument("--size", type=byte_count, help="a single message size, instead of --min, --max and --factor")
    parser.add_argument("--op", choices=OPERATIONS, default="all_reduce", help="the operation (default: all_reduce)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of the message's elements (default: float32)"
    )
    parser.add_argument(
        "--out-of-place", action="store_true", help="input and output are separate tensors; not for all_reduce"
    )
    parser.add_argument(
        "--budget",
        type=at_least(0.001),
        default=0.2,
        metavar="SECONDS",
        help="how long to time each message size; a batch has 25 to 1000 operations (default: 0.2)",
    )
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not check the data")
    parser.add_argument(
        "--line-rate",
        type=at_least(0.001),
        metavar="GBIT/S",
        help="speed of all network cards of a node together, or of a rank's link on a single node",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="rank 0 writes header and results to FILE")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="rank 0 writes a row per message size to FILE")
    parser.add_argument(
        "--timeout",
        type=at_least(1.0),
        default=300.0,
        metavar="SECONDS",
        help="give up on a late rank; on GPUs, a batch of operations must end within this time, too (default: 300)",
    )
    if os.environ.get("LOCAL_RANK", "0") != "0":
        parser.error = exit_silently
    args = parser.parse_args()
    if args.size:
        args.min = args.max = args.size
    if args.min > args.max:
        parser.error(f"--min {args.min} bytes is more than --max {args.max} bytes; exchange them, or lower --min")
    if args.json and args.json == args.csv:
        parser.error(f"--csv {args.csv}: --json names the same file; give each a name of its own")
    if args.out_of_place and args.op == "all_reduce":
        parser.error("--out-of-place: torch's all_reduce is in place; leave it out, or take another --op")
    return args


def exit_silently(_message: str) -> None:
    """Exit because of a wrong flag, but leave the message to local rank 0 of this node.

    The launcher ends all ranks when the first one exits. So this rank gives local rank 0 the time to print.
    """
    time.sleep(5)
    sys.exit(2)


def refuse_too_small_maximum(args: argparse.Namespace, benchmark: Benchmark) -> None:
    """End all ranks with exit code 2 if not even the smallest message is within --max."""
    if benchmark.sizes:
        return
    flag = "--size" if args.size else "--max"
    smallest = BLOCK_UNIT * benchmark.blocks
    rule = f"the smallest message of {args.op} on {benchmark.world_size} ranks has {smallest} bytes"
    refuse_on_all_ranks(f"{flag} {args.max} bytes is too small: {rule}; raise {flag}")


def print_explanations(benchmark: Benchmark) -> None:
    """Print what the columns mean, for this operation and this number of ranks."""
    factor = benchmark.operation.busbw_factor
    print("# time: of one operation of a batch, on the slowest rank; p50, p95: most that 50 % or 95 % took")
    print(
        f"# busbw: algbw * {factor} (n - 1) / n = algbw * {benchmark.busbw_per_algbw:.6g};"
        " 1 GB/s = 1e9 bytes/s = 8 Gbit/s"
    )
    if benchmark.world_size == 1:
        print("# n = 1: nothing crosses a link; this is the cost of a call and says nothing of a network")


def warn_above_line_rate(results: list[Result]) -> None:
    """Print a warning if some size exceeds the line rate by more than 5 %.

    Trees: https://github.com/NVIDIA/nccl/issues/837. NVLS: https://github.com/NVIDIA/nccl-tests/issues/153.
    """
    shares = [(result.of_line_rate or 0, result.bytes) for result in results]
    share, size = max(shares, default=(0, 0))
    if share > 1.05:
        print(f"# WARNING: {share:.0%} of the line rate at {size} bytes: --line-rate is not in Gbit/s of all cards")
        print("# of a node, or less crosses the links than busbw counts: on 2 nodes NCCL's tree sends half")
        print("# of it (NCCL_ALGO=Ring shows the links), and with NVLS or SHARP the switch adds.")


def write_file(path: Path | None, text: str) -> None:
    """Write a file on rank 0, if the user named one. All ranks call this and return when the file is complete.

    Until it is complete, the file has another name.
    """
    if path and dist.get_rank() == 0:
        part = path.with_name(path.name + ".part")
        part.write_text(text + "\n")
        part.replace(path)
    gather(0, dist.get_world_size())


def json_text(facts: dict, results: list[Result]) -> str:
    """Return the facts of the header and the results as JSON."""
    return json.dumps({**facts, "results": [result._asdict() for result in results]}, indent=1)


def csv_text(facts: dict, results: list[Result]) -> str:
    """Return a row for each result, below the names of the columns; '' without results. None is an empty cell.

    No text contains a comma.
    """
    common = {key: facts[key] for key in ("operation", "dtype", "world_size", "nodes")}
    rows = [{**common, **result._asdict()} for result in results]
    lines = [",".join(row) for row in rows[:1]]
    for row in rows:
        cells = ["" if value is None else str(value) for value in row.values()]
        lines.append(",".join(cells))
    return "\n".join(lines)


@record
def main() -> None:
    """Read the flags, join the process group, sweep the message sizes, write the results."""
    args = parse_arguments()
    benchmark = Benchmark(args)  # joins the process group, prints the header
    refuse_unwritable_files([args.json, args.csv])
    refuse_too_small_maximum(args, benchmark)
    print_explanations(benchmark)
    results = sweep(benchmark)
    warn_above_line_rate(results)
    write_file(args.json, json_text(benchmark.facts, results))
    write_file(args.csv, csv_text(benchmark.facts, results))
    all_right = results and not any(result.wrong for result in results)
    leave(0 if all_right else 1)


if __name__ == "__main__":
    main()
