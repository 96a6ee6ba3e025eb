"""Did training runs learn the same? A table, a picture of losses, tokens/s and differences, and a verdict.

    python training/compare.py                                       six runs that must be equal, made here, on the CPU
    python training/compare.py single-1 ddp-4 -- --data my.txt       two of them; what follows -- is for the programs
    python training/compare.py runs/first runs/second                folders that programs were given by --out, also
                                                                     while they still write there

The first run is the reference. The same numbers added in another order give another rounding: that much may differ, and
in float64, as in the runs that are made here, it is too little to hide a mistake. Exit code 1: more than that differs;
2: there is nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median

RUNS = ("single-1", "ddp-2", "ddp-4", "ddp-2-accumulated", "fsdp-2", "fsdp-4")  # program, ranks
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--master-addr=127.0.0.1"]
# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), but for the
# yellow, too light for a line. Markers tell the lines apart in grey.
COLOURS, MARKERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00"), "osD^vPX*"


def fail(message: str) -> None:
    """End with exit code 2: there is nothing to judge."""
    print(f"compare.py: error: {message}", file=sys.stderr)
    sys.exit(2)


def make(name: str, flags: list[str], folder: Path) -> Path:
    """Make one of RUNS, and return its folder; it ends all if it fails."""
    kind, ranks, *accumulated = name.split("-")
    program = [str(Path(__file__).with_name(f"train_{kind}.py")), "--dtype", "float64", "--steps", "40"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # other processes of this machine get others for a while
    command = [*TORCHRUN, f"--master-port={port}", f"--nproc-per-node={ranks}", "--", *program]
    command += ["--out", str(folder / name), *flags]
    command += ["--micro-batch", "1"] if accumulated else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    print(f"{name} …", flush=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{name} ended with exit code {done.returncode}, and said:\n{done.stderr}")
    return folder / name


def read(folder: Path) -> dict[str, dict[int, float]]:
    """Return losses and validation losses [nats per token], and speeds [tokens/s], by step."""
    path, run = folder / "metrics.jsonl", {"loss": {}, "val_loss": {}, "tokens_per_second": {}}
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with suppress(ValueError):  # the line that it died in
            found = json.loads(line, parse_constant=lambda _: None)  # older programs wrote NaN for null
            for kind in run.keys() & found.keys():
                # null: the loss was not finite. So it is far from all numbers.
                run[kind][found["step"]] = math.inf if found[kind] is None else found[kind]
    if not run["loss"]:
        fail(f"no step in {path}: name folders that programs were given by --out, or some of {' '.join(RUNS)}")
    return run


def differences(run: dict, reference: dict, kind: str) -> dict[int, float]:
    """Return by how much two runs' losses of one kind differ, by step."""
    return {step: abs(loss - reference[kind][step]) for step, loss in run[kind].items() if step in reference[kind]}


def judge(runs: dict[str, dict], tolerance: float) -> bool:
    """Print a table of the runs and, of several, whether their losses are equal; return that."""
    (first, reference), largest = next(iter(runs.items())), []
    print("\nlast step         loss  validation loss  tokens/s  differs by  run")
    for name, run in runs.items():
        found = [(value, f"{name} at step {step}") for step, value in differences(run, reference, "loss").items()]
        validated = differences(run, reference, "val_loss")
        found += [(value, f"{name} in the validation at step {step}") for step, value in validated.items()]
        largest.append(max(found, default=None) or fail(f"{name} has no step in common with {first}: compare others"))
        loss, val_loss, speeds = (list(points.values()) or [math.nan] for points in run.values())
        figures = f"{loss[-1]:14.12f} {val_loss[-1]:16.12f} {median(speeds):9,.0f} {largest[-1][0]:11.1e}"
        print(f"{max(run['loss']):9} {figures}  {name}")
    value, where = max(largest[1:] or largest)
    if len(runs) > 1:
        told = f"the largest difference from {first} is {value:.1e}, of {where}; allowed is {tolerance:g}"
        print(f"\n{'equal' if value <= tolerance else 'NOT equal'}: {told}")
    return value <= tolerance


def curve(points: dict[int, float]) -> list[list[float]]:
    """Return the steps and the values to draw: of a longer run, means over a hundredth of the steps."""
    size = 1 + len(points) // 100
    return [[fmean(some[i : i + size]) for i in range(0, len(some), size)] for some in ([*points], [*points.values()])]


def draw(path: Path, runs: dict[str, dict], tolerance: float) -> None:
    """Draw losses, tokens/s and differences over the steps, where there is matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print(f"no matplotlib here, so no {path}: pip install matplotlib")
    figure, reference = Figure(figsize=(7, 9), layout="constrained"), next(iter(runs.values()))  # inches
    losses, speeds, apart = figure.subplots(3, sharex=True)
    for i, (name, run) in enumerate(runs.items()):
        later, colour = len(runs) - 1 - i, COLOURS[i % len(COLOURS)]  # those drawn on top of this one are thinner
        mark = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "markersize": 4 + later, "fillstyle": "none"}
        losses.plot(*curve(run["loss"]), color=colour, linewidth=1.2 + later)
        losses.plot(*curve(run["val_loss"]), **mark, linestyle="none", label=name)
        speeds.plot(*curve(run["tokens_per_second"]), color=colour)
        apart.plot(*curve(differences(run, reference, "loss")), **mark, linewidth=0.5)
    apart.axhline(tolerance, color="0.4", linestyle="--", label=f"allowed: {tolerance:g}")
    apart.set_yscale("symlog", linthresh=max(tolerance / 100, 1e-16))
    losses.set(title="lines: training, markers: validation", ylabel="loss [nats per token]")
    speeds.set(ylabel="tokens/s", ylim=(0, None))
    apart.set(ylabel="difference from the first run", ylim=(0, None), xlabel="step (update of the weights)")
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    print(f"picture: {path}")


def main() -> None:
    """Read the flags; make the runs, judge, draw."""
    parser = argparse.ArgumentParser(description="Compare training runs: losses, tokens/s, and whether they are equal.")
    which = f"folder that a program was given by --out, or a run to make, of {' '.join(RUNS)} (default: all these)"
    parser.add_argument("runs", nargs="*", default=RUNS, metavar="RUN", help=which)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-14,
        help="largest difference of equal losses (default: 1e-14, for float64)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder of new runs and of compare.png")
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, flags = parser.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    runs = {name: read(make(name, flags, args.out) if name in RUNS else Path(name)) for name in args.runs}
    good = judge(runs, args.tolerance)
    draw(args.out / "compare.png", runs, args.tolerance)
    sys.exit(not good)


if __name__ == "__main__":
    main()
