"""Draw what training runs have measured: loss, validation loss and tokens/s, over the steps.

    python training/plot.py                                  of runs/train, into runs/train/metrics.png
    python training/plot.py runs/a runs/b --out both.png     of several runs, in one picture

A run is a folder where a training program has written metrics.jsonl. Without matplotlib, letters draw the losses.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import accumulate
from pathlib import Path
from statistics import median
from string import ascii_lowercase
from typing import NoReturn

# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), but for the
# yellow, too light for a line. Markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
PARTS = 50  # a running mean is over one of so many parts; there is none for less than twice as many points
WIDTH, HEIGHT = 60, 15  # of the picture in letters
Points = list[tuple[int, float]]  # (step, value)


def fail(message: str) -> NoReturn:
    """End with exit code 2, under the name of the program that runs."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(2)


def read_run(folder: str) -> tuple[Points, ...]:
    """Return losses, validation losses [nats per token] and speeds [tokens/s]; a line that is torn is left out."""
    path, run, bad = Path(folder, "metrics.jsonl"), ([], [], []), []
    if not path.is_file():
        fail(f"{path} is not there: name folders that training programs were given by --out")
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        try:
            found = json.loads(line)
            step, which = int(found["step"]), 1 if "val_loss" in found else 0
            loss, speed = float(found[("loss", "val_loss")[which]]), found.get("tokens_per_second")
            if not math.isfinite(loss):
                raise ValueError(f"the loss is {loss}")
            run[which].append((step, loss))
            run[2].extend([(step, speed)] if speed and len(run[0]) > 1 else [])  # the first step pays for the start
        except (ValueError, TypeError, KeyError) as error:
            bad.append(f"line {number} ({error!r})")
    if bad:
        print(f"note: {path}: {len(bad)} left out, the first of them {bad[0]}", file=sys.stderr)
    return run if run[0] else fail(f"{path} has no step in it: wait for the first one, or name another run")


def smooth(points: Points) -> Points:
    """Return means over a part of the points, on both sides alike: towards the ends over fewer."""
    sums, found = [0.0, *accumulate(value for _, value in points)], []
    for i, (step, _) in enumerate(points):
        reach = min(len(points) // PARTS // 2, i, len(points) - 1 - i)
        found.append((step, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return found


def in_letters(runs: list[tuple[Points, ...]]) -> str:
    """Return the losses as a picture in letters: a, b, … for the runs, A, B, … for their validation losses."""
    drawn = [(letter, *point) for letter, run in zip(ascii_lowercase, runs) for point in smooth(run[0])]
    drawn += [(letter.upper(), *point) for letter, run in zip(ascii_lowercase, runs) for point in run[1]]
    (left, right), (low, high) = ((min(column), max(column)) for column in list(zip(*drawn))[1:])
    rows = [[f"{'':9} |", *" " * WIDTH] for _ in range(HEIGHT)]
    rows[0][0], rows[-1][0] = f"{high:9.4f} |", f"{low:9.4f} |"
    for letter, step, value in drawn:
        row = rows[round((high - value) / (high - low or 1) * (HEIGHT - 1))]
        row[1 + round((step - left) / (right - left or 1) * (WIDTH - 1))] = letter
    rows += [[f"{'':10}+{'-' * WIDTH}"], [f"{'':11}{left}{right:{WIDTH - len(str(left))}}"]]
    return "\n".join(["loss [nats per token] over steps; capitals: validation", *("".join(row) for row in rows)])


def paint(path: Path, panels: list[tuple[str, str, list[tuple[int, Points, dict]], dict]]) -> bool:
    """Draw panels: label, title, lines (number, points, more for plot()), settings. False: there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no matplotlib here, so no {path}: pip install matplotlib")
        return False
    labels = [special["label"] for panel in panels for *_, special in panel[2] if "label" in special]
    columns = 2 if max(map(len, labels)) < 40 else 1
    figure = Figure(figsize=(7, 5 + 0.22 * math.ceil(len(labels) / columns)), layout="constrained")  # inches
    grid = figure.subplots(len(panels), sharex=True)
    for axes, (label, title, lines, settings) in zip(grid, panels):
        for number, points, special in lines:
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
            axes.plot(*zip(*points), **{**look, "linewidth": 1.4, **special})
        axes.set(ylabel=label, **settings)
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(color="0.9", linewidth=0.6)
    grid[-1].set_xlabel("step (update of the weights)")
    grid[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, handlelength=3, fontsize=9)
    try:
        figure.savefig(path, dpi=200)
    except (OSError, ValueError) as error:
        fail(f"{path}: no picture can be written there ({error}); name another place, ending in .png")
    print(f"picture: {path}")
    return True


def main() -> None:
    """Read the runs; draw."""
    parser = argparse.ArgumentParser(description="Losses and tokens/s of training runs, as a picture.")
    parser.add_argument("runs", nargs="*", default=["runs/train"], metavar="DIR", help="default: runs/train")
    parser.add_argument("--out", type=Path, metavar="PNG", help="the picture (default: metrics.png in the first DIR)")
    args = parser.parse_args()
    runs, losses, marks, speeds = [read_run(folder) for folder in args.runs], [], [], []
    for i, (name, (trained, validated, speed)) in enumerate(zip(args.runs, runs)):
        losses.append((i, trained, {"linestyle": "-", "linewidth": 0.6, "alpha": 0.4}))
        losses.append((i, smooth(trained), {"label": f"{name}, training"}))
        marks.append((i, validated, {"linestyle": "none", "marker": MARKERS[i % 8], "label": f"{name}, validation"}))
        speeds.append((i, speed, {}))
        fast = f", median {median(value for _, value in speed):,.0f} tokens/s after the first step" if speed else ""
        print(f"{ascii_lowercase[i % 26]}  {name}: loss {trained[-1][1]:.4f} at step {trained[-1][0]}{fast}")
    upper = ("loss [nats per token]", "light: every step, dark: running mean over 2 % of them", losses + marks, {})
    lower = ("throughput [tokens/s]", "without the first step", speeds, {"ylim": (0, None)})
    if not paint(args.out or Path(args.runs[0], "metrics.png"), [upper, lower]):
        print(in_letters(runs))


if __name__ == "__main__":
    main()
