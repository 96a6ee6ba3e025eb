"""Show that the training programs learn the same: one process, DDP and FSDP on 2 and 4 ranks, with accumulation.

    python training/compare.py                                        six runs on this machine, and a picture of them
    python training/compare.py --runs ddp-4 -- --data text --steps 9  one of them; what follows -- is for the programs
    python training/compare.py --figures one.json two.json            what runs elsewhere have written for --json

The first run is the reference. The same numbers added in another order give another rounding: that much may differ, and
in float64 it is too little to hide a mistake. Exit code 1: more than that differs; 2: there is nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from plot import MARKERS, fail, paint

RUNS = ("single-1", "ddp-2", "ddp-4", "ddp-2-accumulated", "fsdp-2", "fsdp-4")  # program, ranks
GPUS = 4  # with fewer, all of these runs are on the CPU
TOLERANCES = {"float64": 1e-14, "float32": 1e-5}  # numbers from 2 to 4 are 4e-16, or 2e-7, apart
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
NOISE = r"^W\d{4} .*torch/distributed.*\n|^E\d{4} .*torch/distributed[\s\S]*"  # of torchrun, when a rank has failed
FACTS = {"program": "Program", "world_size": "Ranks", "accumulation": "Accumulation"}
TITLES = ["Run", *FACTS.values(), "Steps", "Last loss", "Validation loss", "Losses differ by", "Validation by"]


def read_figures(name: str, path: Path) -> dict:
    """Read what a training program has written for --json; add the run's name, and its losses by step."""
    try:
        run = {**json.loads(path.read_text()), "name": name}
        run["by step"] = dict(enumerate(map(float, run["losses"]), start=run["first_step"] + 1))
        [run[key] for key in (*FACTS, "global_batch", "dtype")]
        if not run["by step"] or not all(map(math.isfinite, [*run["by step"].values(), run["val_loss"]])):
            raise ValueError("no loss, or one that is no number")
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is not what a training program writes for --json ({error!r}): name another")
    return run


def compare(run: dict, reference: dict) -> dict[int, float]:
    """Add the differences from the reference, and return those of the losses, by step, as far as both have the step."""
    for key in ("global_batch", "dtype"):
        if run[key] != reference[key]:
            told = f"{run[key]} in {run['name']} and {reference[key]} in {reference['name']}"
            fail(f"--{key.replace('_', '-')} was {told}: compare runs that had the same")
    mine, theirs = run["by step"], reference["by step"]
    shared = run["differences"] = {step: abs(mine[step] - theirs[step]) for step in mine if step in theirs}
    run["validation"] = abs(run["val_loss"] - reference["val_loss"]) if max(mine) == max(theirs) else None
    return shared or fail(f"{run['name']} has no step that {reference['name']} has: compare runs that share some")


def train(name: str, flags: list[str], folder: Path, reference: dict | None) -> dict:
    """Make a run in a folder of its name; it ends all if it fails."""
    import torch  # not needed to compare figures

    kind, ranks, *accumulated = name.split("-")
    flags = ["--steps", "40", *flags, "--out", str(folder / name), "--json", str(folder / name / "figures.json")]
    if accumulated:  # in 4 parts, or a few more where the share has no such divisor
        share = reference["global_batch"] // int(ranks)
        fits = [n for n in range(1, share // 4 + 1) if share % n == 0] or [1]
        flags += ["--micro-batch", str(fits[-1])]
    # The cores are divided among the ranks. What threads add in another order, too, stays within the rounding.
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // int(ranks)))}
    gpus, started = torch.cuda.device_count(), time.monotonic()
    environment |= {} if gpus >= GPUS else {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable] if ranks == "1" else [*TORCHRUN, f"--nproc-per-node={ranks}", "--"]
    command += [str(Path(__file__).with_name(f"train_{kind}.py")), *flags]
    print(f"{name} on {'GPUs' if gpus >= GPUS else f'the CPU ({gpus} of {GPUS} GPUs)'}", end=" ", flush=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        said = (re.sub(NOISE, "", done.stderr, flags=re.M).strip() or done.stderr).splitlines()[-12:]
        fail("\n".join([f"{name} ended with exit code {done.returncode}; the last that it said:", *said]))
    return read_figures(name, folder / name / "figures.json")


def judge(runs: list[dict], tolerance: float) -> bool:
    """Print the table and the verdict; return whether it is a good one."""
    rows, found = [TITLES, [":-:"] * len(TITLES)], []
    for run in runs:
        shared, last = compare(run, runs[0]), run["by step"][max(run["by step"])]
        found += [(value, f"{run['name']} at step {step}") for step, value in shared.items()]
        found += [(run["validation"] or 0, f"{run['name']} in the validation loss")]
        by = ["-" if value is None else f"{value:.1e}" for value in (max(shared.values()), run["validation"])]
        cells = [run["name"], *(run[key] for key in FACTS), f"{min(shared)}-{max(shared)}", f"{last:.12f}"]
        rows.append([*map(str, cells), f"{run['val_loss']:.12f}", *(by if run is not runs[0] else ["reference"] * 2)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    print("", *(f"| {' | '.join(map(str.center, row, widths))} |" for row in rows), "", sep="\n")
    value, where = max(found)
    told = f"the largest difference from {runs[0]['name']} is {value:.1e}, of {where}; allowed is {tolerance:g}"
    print(f"{'equal' if value <= tolerance else 'NOT equal'}: {told}")
    return value <= tolerance


def draw(path: Path, runs: list[dict], tolerance: float) -> None:
    """Draw the losses on top of each other, and their differences from the reference."""
    found = [value for run in runs for value in (*run["differences"].values(), tolerance / 10) if value]
    floor, upper, lower = 10.0 ** (math.ceil(math.log10(min(found, default=1e-15))) - 1), [], []
    for i, run in enumerate(runs):  # the first are seen behind, and around, the last
        size, label = 1 - i / len(runs), {"label": run["name"]}
        upper.append((i, list(run["by step"].items()), {"linewidth": 1 + 5 * size, **({} if i else label)}))
        points = [(step, value or floor) for step, value in run["differences"].items()]
        look = {"marker": MARKERS[i % 8], "markersize": 3 + 7 * size, "markerfacecolor": "none", "linewidth": 0.5}
        lower += [(i, points, {**look, **label})] if i else []
    ends = [(step, tolerance) for step in (min(runs[0]["by step"]), max(runs[0]["by step"]))]
    lower.append((4, ends, {"linestyle": "--", "linewidth": 1, "label": f"allowed: {tolerance:g}"}))
    first = ("loss [nats per token]", f"losses in {runs[0]['dtype']}, on top of each other", upper, {})
    title = f"differences from the first run; where there is none, the mark is at {floor:.0e}"
    paint(path, [first, ("|difference| [nats per token]", title, lower, {"yscale": "log"})])


def main() -> None:
    """Read the flags; run, judge, draw."""
    parser = argparse.ArgumentParser(description="Compare the losses of training runs that must be equal.")
    parser.add_argument("--runs", nargs="+", choices=RUNS[1:], help="besides the reference (default: all)")
    parser.add_argument("--figures", nargs="+", type=Path, metavar="JSON", help="start nothing, compare these")
    parser.add_argument("--dtype", choices=list(TOLERANCES), help="of the runs (default: float64)")
    parser.add_argument("--tolerance", type=float, metavar="X", help=f"default: by dtype, {TOLERANCES}, else 0")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for the runs and compare.png (default: runs/compare)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="the picture; without it --figures draws none")
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, flags = parser.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    if args.figures and (flags or args.runs or args.dtype or args.out or len(args.figures) < 2):
        parser.error("--figures compares two files or more, and starts nothing: only --tolerance and --plot go with it")
    if own := [flag for flag in flags if re.match("--(dt|o|j|r)", flag)]:  # --dtype, --out, --json, --resume
        parser.error(f"{own[0]} after --: give --dtype and --out before it; --json and --resume are not for these runs")
    if args.plot and not args.plot.absolute().parent.is_dir():
        parser.error(f"--plot {args.plot}: there is no folder {args.plot.absolute().parent}; make it first")
    runs = [read_figures(str(path), path) for path in args.figures or []]
    flags += ["--dtype", args.dtype or "float64"]
    folder = args.out or Path("runs/compare")
    for name in [] if runs else [RUNS[0], *(args.runs or RUNS[1:])]:
        runs.append(train(name, flags, folder, runs[0] if runs else None))
    tolerance = TOLERANCES.get(runs[0]["dtype"], 0) if args.tolerance is None else args.tolerance
    good = judge(runs, tolerance)
    if args.plot or not args.figures:
        draw(args.plot or folder / "compare.png", runs, tolerance)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
