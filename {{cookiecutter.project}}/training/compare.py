"""Show that the training programs learn the same: one process, DDP and FSDP on 2 and 4 ranks, with accumulation.

    python training/compare.py                                        six runs on this machine, and a picture of them
    python training/compare.py --runs ddp-4 -- --data text --steps 9  one of them; what follows -- is for the programs
    python training/compare.py --figures one.json two.json            what runs elsewhere have written for --json

All of them are on the CPU. The first is the reference. The same numbers added in another order give another rounding:
that much may differ, and in float64 it is too little to hide a mistake. Exit code 1: more than that differs; 2: there
is nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

from plot import MARKERS, fail, paint

RUNS = ("single-1", "ddp-2", "ddp-4", "ddp-2-accumulated", "fsdp-2", "fsdp-4")  # program, ranks
TOLERANCES = {"float64": 1e-14, "float32": 1e-5}  # numbers from 2 to 4 are 4e-16, or 2e-7, apart
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
TITLES = ["Run", "Program", "Ranks", "Accumulation", "Steps", "Last loss", "Validation loss", "Losses differ by"]


def read_figures(name: str, path: Path) -> dict:
    """Read what a training program has written for --json; add the run's name, and its losses by step."""
    try:
        run = {**json.loads(path.read_text()), "name": name}
        run["by step"] = dict(enumerate(run["losses"], start=run["first_step"] + 1))
        run["kind"] = f"--global-batch {run['global_batch']} --dtype {run['dtype']}"
        run["facts"] = [name, *(str(run[key]) for key in ("program", "world_size", "accumulation"))]
        if not run["losses"] or not all(map(math.isfinite, [*run["losses"], run["val_loss"]])):
            raise ValueError("no loss, or one that is no number")
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is not what a training program writes for --json ({error!r}): name another")
    return run


def train(name: str, flags: list[str], folder: Path) -> dict:
    """Make a run in a folder of its name; it ends all if it fails."""
    kind, ranks, *accumulated = name.split("-")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable] if ranks == "1" else [*TORCHRUN, f"--nproc-per-node={ranks}", "--"]
    command += [str(Path(__file__).with_name(f"train_{kind}.py")), "--dtype", "float64", "--steps", "40", *flags]
    command += ["--micro-batch", "1"] if accumulated else []
    command += ["--out", str(folder / name), "--json", str(folder / name / "figures.json")]
    print(f"{name} …", flush=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{name} ended with exit code {done.returncode}, and said:\n{done.stderr}")
    return read_figures(name, folder / name / "figures.json")


def judge(runs: list[dict], tolerance: float) -> bool:
    """Add to each run its differences from the first; print the table and the verdict, return whether it is good."""
    rows, found, reference = [TITLES, [":-:"] * len(TITLES)], [], runs[0]
    for run in runs:
        mine, theirs = run["by step"], reference["by step"]
        shared = run["differences"] = {step: abs(mine[step] - theirs[step]) for step in mine if step in theirs}
        if run["kind"] != reference["kind"] or not shared:
            told = ", ".join(f"{one['name']} had {one['kind']}, {len(one['losses'])} steps" for one in (reference, run))
            fail(f"{told}, {len(shared)} in common: compare runs that had the same, and share some steps")
        found += [(value, f"{run['name']} at step {step}") for step, value in shared.items()]
        if max(mine) == max(theirs):
            found.append((abs(run["val_loss"] - reference["val_loss"]), f"{run['name']} in the validation loss"))
        cells = [f"{min(shared)}-{max(shared)}", f"{run['losses'][-1]:.12f}", f"{run['val_loss']:.12f}"]
        rows.append([*run["facts"], *cells, "reference" if run is reference else f"{max(shared.values()):.1e}"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    print("", *(f"| {' | '.join(map(str.center, row, widths))} |" for row in rows), "", sep="\n")
    value, where = max(found)
    told = f"the largest difference from {reference['name']} is {value:.1e}, of {where}; allowed is {tolerance:g}"
    print(f"{'equal' if value <= tolerance else 'NOT equal'}: {told}")
    return value <= tolerance


def draw(path: Path, runs: list[dict], tolerance: float) -> None:
    """Draw the losses on top of each other, and their differences from the reference."""
    upper, lower = [], []
    for i, run in enumerate(runs):  # the first are seen behind, and around, the last
        size, marker = 1 - i / len(runs), MARKERS[i % len(MARKERS)]
        upper.append((i, run["by step"], {"linewidth": 1 + 5 * size}))
        look = {"marker": marker, "markersize": 3 + 7 * size, "fillstyle": "none", "linewidth": 0.5}
        lower.append((i, run["differences"], {**look, "label": run["name"]}))
    ends = dict.fromkeys((min(runs[0]["by step"]), max(runs[0]["by step"])), tolerance)
    lower.append((4, ends, {"linestyle": "--", "label": f"allowed: {tolerance:g}"}))
    first = ("loss [nats per token]", f"{runs[0]['kind']}: losses, on top of each other", {"value": "linear"}, upper)
    scale = {"value": "symlog", "linthresh": tolerance / 100 or 1e-16}
    paint(path, [first, ("|difference| [nats per token]", "differences from the first run", scale, lower)])


def main() -> None:
    """Read the flags; run, judge, draw."""
    parser = argparse.ArgumentParser(description="Compare the losses of training runs that must be equal.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--runs", nargs="+", choices=RUNS[1:], default=RUNS[1:], help="besides single-1 (default: all)")
    which.add_argument("--figures", nargs="+", type=Path, metavar="JSON", help="start nothing, compare these")
    out = "for the runs and compare.png (default: runs/compare)"
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), metavar="DIR", help=out)
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, flags = parser.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    if args.figures and len(args.figures) < 2:
        parser.error("--figures compares two files or more: name another")
    if args.figures:
        runs = [read_figures(str(path), path) for path in args.figures]
    else:
        runs = [train(name, flags, args.out) for name in (RUNS[0], *args.runs)]
    tolerance = TOLERANCES.get(runs[0]["dtype"], 0)
    good = judge(runs, tolerance)
    draw(args.out / "compare.png", runs, tolerance)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
