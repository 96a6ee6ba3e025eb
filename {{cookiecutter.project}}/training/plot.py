"""Draw what training runs have measured: loss, validation loss and tokens/s, over the steps.

    python training/plot.py                                  of runs/train, into runs/train/metrics.png
    python training/plot.py runs/a runs/b --out both.png     of several runs, in one picture

A run is a folder where a training program has written metrics.jsonl. Without matplotlib, its last loss and its speed
are printed, and no more.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import suppress
from pathlib import Path
from statistics import mean, median

# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), but for the
# yellow, too light for a line. Markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")


def fail(message: str) -> None:
    """End with exit code 2, under the name of the program that runs."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(2)


def read_run(folder: str) -> list[dict[int, float]]:
    """Return losses, validation losses [nats per token] and speeds [tokens/s] by step, without the first step's."""
    path, found = Path(folder, "metrics.jsonl"), []
    if not path.is_file():
        fail(f"{path} is not there: name folders that training programs were given by --out")
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError):  # the line that it died in
            found.append(json.loads(line))
    keys = ("loss", "val_loss", "tokens_per_second")
    run = [{line["step"]: line[key] for line in found if key in line} for key in keys]
    if not run[0]:
        fail(f"{path} has no step in it: wait for the first one, or name another run")
    run[2].pop(min(run[0]))  # it pays for the start
    return run


def means(points: dict, parts: int) -> dict:
    """Return the mean of each of about so many parts."""
    size, pairs = math.ceil(len(points) / parts), list(points.items())
    return dict(tuple(map(mean, zip(*pairs[i : i + size]))) for i in range(0, len(pairs), size))


def paint(path: Path, panels: list[tuple[str, str, dict, list[tuple[int, dict, dict]]]]) -> None:
    """Draw panels: label, title, scale, lines (number, {step: value}, look), where there is matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print(f"no matplotlib here, so no {path}: pip install matplotlib")
    figure = Figure(figsize=(7, 6.5), layout="constrained")  # inches
    for axes, (label, title, scale, lines) in zip(figure.subplots(len(panels), sharex=True), panels):
        for number, points, look in lines:
            colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            axes.plot(list(points), list(points.values()), **{"color": colour, "linestyle": dash, **look})
        axes.set_yscale(**scale)
        axes.set_ylabel(label)
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(color="0.9", linewidth=0.6)
    axes.set(xlabel="step (update of the weights)", ylim=(0, None))  # of the last: rates, differences
    figure.legend(loc="outside lower left", frameon=False, handlelength=3, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    print(f"picture: {path}")


def main() -> None:
    """Read the runs; draw."""
    parser = argparse.ArgumentParser(description="Losses and tokens/s of training runs, as a picture.")
    parser.add_argument("runs", nargs="*", default=["runs/train"], metavar="DIR", help="default: runs/train")
    parser.add_argument("--out", type=Path, metavar="PNG", help="the picture (default: metrics.png in the first DIR)")
    args = parser.parse_args()
    runs, upper, lower = {name: read_run(name) for name in args.runs}, [], []
    for i, (name, (losses, validated, speeds)) in enumerate(runs.items()):
        upper.append((i, losses, {"linestyle": "-", "linewidth": 0.6, "alpha": 0.4}))
        upper.append((i, means(losses, 50), {"label": f"{name}, training"}))
        marker = MARKERS[i % len(MARKERS)]
        upper.append((i, validated, {"linestyle": "none", "marker": marker, "label": f"{name}, validation"}))
        lower.append((i, speeds, {}))
        speed = f", median {median(speeds.values()):,.0f} tokens/s after the first step" if speeds else ""
        print(f"{name}: loss {losses[max(losses)]:.4f} at step {max(losses)}{speed}")
    scale, light = {"value": "linear"}, "light: every step, dark: means over 2 % of them"
    panels = [("loss [nats per token]", light, scale, upper), ("tokens/s", "throughput", scale, lower)]
    paint(args.out or Path(args.runs[0], "metrics.png"), panels)


if __name__ == "__main__":
    main()
