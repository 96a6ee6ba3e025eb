"""Does benchmark/all_reduce.py report what a loop written by hand reports? What does it cost? 2 CPU ranks, gloo.

    python perf/all_reduce.py [--rounds 7]

Three ways to time all-reduce take turns in one process group. So other work on the machine disturbs all of them alike.

- ours: a batch of the program's own Benchmark, with its barrier, its clock and its maximum over ranks.
- by hand: a barrier, then a clock round a loop of dist.all_reduce(). The larger time of both ranks counts.
- each alone: a barrier before each operation, and a clock round each. The mean of the rates counts, and of the ranks.
  network/benchmarks/all_reduce_bench.py of https://github.com/stas00/ml-engineering (744d01e) does it in this way.

Each round gives a ratio of two bandwidths, and the table has the median of the rounds. The sizes start at 16 MiB,
because below that a few slow operations make every figure a matter of luck. Three more figures follow:

- The wall time of benchmark/all_reduce.py's default sweep, over the time of the operations that it timed.
- The cost of its check.
- The seconds of the whole command.

A missed target does not change the exit code.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

PROGRAM = Path(__file__).resolve().parents[1] / "{{cookiecutter.project}}/benchmark/all_reduce.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--"]
SIZES = (2**24, 2**26, 2**28)  # bytes
OPERATIONS = {2**24: 20, 2**26: 10, 2**28: 5}  # in a batch of each way
NOT_BELOW = {"by hand": 2**24, "each alone": 2**26}  # sizes that a target is set for
CLOSE, OVERHEAD, CHECK, WHOLE = (0.9, 1.1), 1.3, 0.03, 15  # targets


def by_hand(buffer: torch.Tensor, number: int) -> float:
    """Return the seconds of one operation in a loop, on the slower rank."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(number):
        dist.all_reduce(buffer)
    seconds = torch.tensor((time.perf_counter() - started) / number)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def each_alone(buffer: torch.Tensor, number: int) -> float:
    """Return the bandwidth of one operation after a barrier, in bytes/s. It is the mean of the rates of all ranks."""
    rates = []
    for _ in range(number):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(buffer)
        rates.append(buffer.nbytes / (time.perf_counter() - started))
    mean = torch.tensor(statistics.fmean(rates), dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def measure(rounds: int) -> None:
    """Measure as one of the two ranks. Rank 0 prints."""
    spec = importlib.util.spec_from_file_location("all_reduce_program", PROGRAM)
    sys.dont_write_bytecode = True  # beside these sources it would become part of every project written from them
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    sys.argv[1:] = []
    bench = program.Benchmark(program.parse_arguments())
    rows = []
    for size in SIZES:
        output, given = bench.buffers(size)
        number = OPERATIONS[size]
        ways = {
            "ours": lambda o=output, g=given, n=number: o.nbytes / bench.time_operation(o, g, n),
            "by hand": lambda o=output, n=number: o.nbytes / by_hand(o, n),
            "each alone": lambda o=output, n=number: each_alone(o, n),
            "check": lambda o=output, g=given: checking(bench, o, g),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-1, rounds):
            for name in list(ways) if turn % 2 else list(ways)[::-1]:  # no way always comes after the same other way
                value = ways[name]()
                if turn >= 0:
                    found[name].append(value)
        rows.append((size, found))
        del output, given, ways
    program.gather(0, 2)
    started = time.perf_counter()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the table of the sweep)
    results = program.sweep(bench)
    sys.stdout = sys.__stdout__
    wall = time.perf_counter() - started
    if bench.rank == 0:
        report(rows, wall / sum(result.time_us * result.iterations / 1e6 for result in results), program.MIN_ITERATIONS)
    dist.destroy_process_group()


def checking(bench, output: torch.Tensor, given: torch.Tensor) -> float:
    """Return the seconds that the check of one size takes, without the operation in it, a part of the warm-up."""
    run, inside = bench.run, []

    def timed(*buffers: torch.Tensor) -> None:
        dist.barrier()
        started = time.perf_counter()
        run(*buffers)
        inside.append(time.perf_counter() - started)

    bench.run = timed
    started = time.perf_counter()
    dist.barrier()
    waited = time.perf_counter() - started
    bench.check(output, given)
    bench.run = run
    return time.perf_counter() - started - waited - inside[0]


def report(rows: list[tuple[int, dict[str, list[float]]]], overhead: float, fewest: int) -> None:
    """Print bandwidths [bytes/s per round], check [s per round] and the sweep's overhead beside the targets."""
    print(f"{'GB/s, median':<28} {'ours':>10} {'by hand':>10} {'each alone':>10}")
    for size, found in rows:
        middle = [statistics.median(found[name]) / 1e9 for name in ("ours", "by hand", "each alone")]
        print(f"{f'{size >> 20} MiB':<28} " + " ".join(f"{value:10.3f}" for value in middle))
    print(f"\n{'ratio':<28} {'median':>8} {'range':>14}   target")

    def line(what: str, ratios: list[float], target: str) -> None:
        print(f"{what:<28} {statistics.median(ratios):8.3f} {min(ratios):7.3f}-{max(ratios):.3f}   {target}")

    for size, found in rows:
        for peer, least in NOT_BELOW.items():
            if size >= least:
                ratios = [ours / theirs for ours, theirs in zip(found["ours"], found[peer])]
                line(f"ours / {peer}, {size >> 20} MiB", ratios, f"{CLOSE[0]} to {CLOSE[1]}")
    for size, found in rows:
        shares = [seconds * rate / size / fewest for seconds, rate in zip(found["check"], found["ours"])]
        line(f"check / timed, {size >> 20} MiB", shares, f"<= {CHECK}")
    print(f"{'sweep / timed operations':<28} {overhead:8.3f} {'':>14}   <= {OVERHEAD}")


def main() -> None:
    """Start the two ranks, or be one of them."""
    parser = argparse.ArgumentParser(description="benchmark/all_reduce.py against other ways to time all-reduce.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way (default: 7)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")
    if "RANK" in os.environ:
        measure(args.rounds)
        return
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if subprocess.run([*TORCHRUN, __file__, f"--rounds={args.rounds}"], env=env, check=False).returncode:
        print("no ratio: the ranks failed, see above")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        started = time.perf_counter()
        subprocess.run([*TORCHRUN, str(PROGRAM), "--json", str(result)], env=env, check=True, capture_output=True)
        seconds = time.perf_counter() - started
        sizes = len(json.loads(result.read_text())["results"])
    print(f"{f'whole command, {sizes} sizes, s':<28} {seconds:8.1f} {'':>14}   <= {WHOLE}")


if __name__ == "__main__":
    main()
