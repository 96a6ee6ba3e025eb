"""Does benchmark/all_reduce.py time an operation as a loop written by hand does? Both take turns. steps.py starts it.

    torchrun event_timing.py PROJECT RATIOS.json

Several ranks time an all-reduce. A single rank has nothing to reduce, and NCCL returns at once: it times an all-gather
into another tensor, which copies. The file has, by size, the ratio of each round: bandwidth of ours by that by hand.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS = 9
SECONDS = 0.1  # that a batch takes


def main() -> None:
    """Measure on this rank; rank 0 writes the file."""
    program = load(Path(sys.argv[1], "benchmark/all_reduce.py"))
    file = Path(sys.argv[2])
    sys.argv[1:] = [] if int(os.environ["WORLD_SIZE"]) > 1 else ["--op", "all_gather", "--out-of-place"]
    benchmark = program.Benchmark(program.parse_arguments())
    sizes = (2**26, 2**28) if benchmark.device.type == "cuda" else (2**22,)
    ratios = {f"{size >> 20} MiB": ratios_of(benchmark, program, size) for size in sizes}
    if benchmark.rank == 0:
        file.write_text(json.dumps(ratios))
    program.leave(0)


def load(path: Path):
    """Import a program from its file."""
    spec = importlib.util.spec_from_file_location("all_reduce_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratios_of(benchmark, program, size: int) -> list[float]:
    """Return the ratio of each round, after one to warm up."""
    output, given = benchmark.buffers(size)
    benchmark.time_operation(output, given, 5)
    seconds = benchmark.time_operation(output, given, 5)
    number = max(5, min(1000, int(SECONDS / seconds)))  # the figures of the slowest rank: the same on all
    found = []
    for turn in range(-1, ROUNDS):
        ways = [
            lambda: benchmark.time_operation(output, given, number),
            lambda: by_hand(benchmark, output, given, number, program),
        ]
        if turn % 2:  # none always comes after the other
            theirs, ours = ways[1](), ways[0]()
        else:
            ours, theirs = ways[0](), ways[1]()
        if turn >= 0:
            found.append(theirs / ours)
    return found


def by_hand(benchmark, output: torch.Tensor, given: torch.Tensor, number: int, program) -> float:
    """Return the seconds of an operation in a loop with a clock round it, on the slowest rank."""
    on_gpu = benchmark.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    program.gather(0, dist.get_world_size())  # a barrier
    begin = time.perf_counter()
    for _ in range(number):
        benchmark.run(output, given)
    if on_gpu:
        torch.cuda.synchronize()
    return max(program.gather((time.perf_counter() - begin) / number, dist.get_world_size()))


if __name__ == "__main__":
    main()
