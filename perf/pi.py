"""How fast is pi/pi.py? One thread against a numba loop and a SIMD loop in C, and two ranks against one.

    python perf/pi.py [--rounds 5] [--intervals 1e9]

All ways of a comparison take turns, round after round, in one run. Each round gives a ratio, and the program prints the
median of the rounds. So a slower or busier machine touches both sides. A missed target does not change the exit code.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = REPOSITORY / "{{cookiecutter.project}}/pi/pi.py"
C_SOURCE = REPOSITORY / "perf/pi_simd.c"
C_FLAGS = ["-O3", "-march=native", "-fopenmp-simd", "-shared", "-fPIC"]
OVER_NUMBA, OVER_C, EFFICIENCY = 1.5, 0.2, 0.9  # targets
QUIET = 0.05  # share of the CPUs that others may use before a figure should be repeated

Way = Callable[[int], float]  # intervals -> pi


def torch_way() -> Way:
    """Return pi.py's own sum on one thread. The ends are added as its main() adds them."""
    spec = importlib.util.spec_from_file_location("pi_program", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    return lambda n: 4 * math.fsum([0.75, program.partial_sum(1, n, n, cpu)]) / n


def numba_way() -> Way:
    """Return a loop that numba compiles, as most first examples have it. Without numba, raise ImportError."""
    import numba

    @numba.njit
    def trapezoid(n):
        h = 1.0 / n
        total = 0.75
        for i in range(1, n):
            x = i * h
            total += 1.0 / (1.0 + x * x)
        return 4.0 * h * total

    return trapezoid


def c_way(folder: str) -> Way:
    """Return the C loop, compiled into `folder`. Without a compiler, raise OSError or CalledProcessError."""
    library = Path(folder, "pi_simd.so")
    subprocess.run([os.environ.get("CC", "cc"), *C_FLAGS, C_SOURCE, "-o", library], check=True, capture_output=True)
    trapezoid = ctypes.CDLL(str(library)).trapezoid
    trapezoid.restype, trapezoid.argtypes = ctypes.c_double, [ctypes.c_long]
    return trapezoid


def time_ranks(world_size: int, intervals: int, folder: str) -> float:
    """Return the seconds that the program itself reports on `world_size` ranks of one thread each."""
    result = Path(folder, "pi.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "--"]
    command += [str(PROGRAM), "--intervals", str(intervals), "--json", str(result)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, env=env, check=True, capture_output=True)
    return json.loads(result.read_text())["seconds"]


def cpu_seconds() -> tuple[float, float, float]:
    """Return three clocks in seconds: wall time, CPU time of all cores of this machine, CPU time of this run."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle time and waits for a disk
    return time.perf_counter(), busy, sum(os.times()[:4])


def print_ratios(rows: list[tuple[str, list[float], str]]) -> None:
    """Print a line for each (what, ratios of the rounds, target)."""
    print(f"\n{'ratio':<36} {'median':>8} {'range':>14}   target")
    for what, ratios, target in rows:
        print(f"{what:<36} {statistics.median(ratios):8.2f} {min(ratios):7.2f}-{max(ratios):.2f}   {target}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of pi/pi.py relative to its peers.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every way (default: 5)")
    parser.add_argument("--intervals", type=float, default=1e9, help="trapezoids (default: 1e9)")
    args = parser.parse_args()
    n = int(args.intervals)
    if args.rounds < 1 or n < 1:
        parser.error(f"--rounds {args.rounds} --intervals {n}: expected at least 1 of each")
    begin = cpu_seconds()

    with tempfile.TemporaryDirectory() as folder:
        ways = {"pi.py": torch_way()}
        try:
            ways["numba loop"] = numba_way()
        except ImportError as error:
            print(f"no numba loop: {error}; pip install numba")
        try:
            ways["C, SIMD loop"] = c_way(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no C loop: {error}; install a C compiler or name one with CC=")
        for way in ways.values():
            way(1000)  # compiles, loads

        times = {name: [] for name in ways}
        values = {}
        for _ in range(args.rounds):
            for name, way in ways.items():
                started = time.perf_counter()
                values[name] = way(n)
                times[name].append(time.perf_counter() - started)
        ranks = {1: [], 2: []}
        for _ in range(args.rounds):
            for world_size, seconds in ranks.items():
                seconds.append(time_ranks(world_size, n, folder))

    print(f"pi, {n:.3g} intervals, {args.rounds} rounds, torch {torch.__version__}, {os.cpu_count()} cores\n")
    print(f"{'one thread':<36} {'seconds':>8} {'intervals/s':>14}   error")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:<36} {median:8.3f} {n / median:14.3g}   {values[name] - math.pi:+.1e}")
    for world_size, seconds in ranks.items():
        median = statistics.median(seconds)
        print(f"{f'pi.py, ranks of one thread: {world_size}':<36} {median:8.3f} {n / median:14.3g}")

    mine = times["pi.py"]
    targets = {"numba loop": OVER_NUMBA, "C, SIMD loop": OVER_C}
    rows = [
        (f"speed of pi.py / {name}", [theirs / own for own, theirs in zip(mine, times[name])], f">= {target}")
        for name, target in targets.items()
        if name in times
    ]
    efficiency = [one / (2 * two) for one, two in zip(ranks[1], ranks[2])]
    rows.append(("efficiency of 2 ranks, t1 / (2 t2)", efficiency, f">= {EFFICIENCY} (2 free cores)"))
    print_ratios(rows)

    wall, busy, own = (end - start for start, end in zip(begin, cpu_seconds()))
    foreign = max(0.0, busy - own) / (wall * os.cpu_count())
    note = "quiet enough" if foreign < QUIET else "too busy to judge a target by: repeat on a quiet machine"
    print(f"\nOther work used {foreign:.0%} of this machine meanwhile: {note}.")


if __name__ == "__main__":
    main()
