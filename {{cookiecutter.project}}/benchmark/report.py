"""What runs of benchmark/all_reduce.py have measured: tables in Markdown, ratios between runs, a picture.

    python3 benchmark/report.py                                   the published figures and the newest run of scaling.sh
    python3 benchmark/report.py benchmark/results/before benchmark/results/after --plot picture
    python3 benchmark/report.py FIRST LATER --tolerance 0.1       exit code 1 if LATER is more than 10 % below FIRST

A run is a folder of JSON files, one per number of nodes, or one such file; published.csv is a run for each of its
tables. The first run is the reference. Bandwidths are in Gbit/s (1e9 bit/s) and GB/s (1e9 bytes/s = 8 Gbit/s), sizes in
powers of 1024. busbw is algbw times a factor of n, the number of ranks; a row where it is not is named, with the likely
cause. Any Python from 3.9 will do; the picture takes matplotlib, and is drawn with letters where that is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path
from string import ascii_letters
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS, PUBLISHED = HERE / "results", HERE / "published.csv"
WIDTH = 100  # columns of what is printed
SLACK = 0.02  # between busbw and algbw times the factor: rounding explains no more
# busbw / algbw for n ranks (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21)
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n}
FACTORS |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), lambda n: (n - 1) / n)
KEYS = ("dtype", "devices", "backend", "nccl", "network", "torch", "date", "job", "environment", "line_rate_Gbps")
# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), without the
# yellow, too light for a line. Markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")


class Row(NamedTuple):
    """A measurement: size in bytes, bandwidths in Gbit/s, number of wrong elements. None is what is not known."""

    nodes: int | None
    ranks: int | None
    size: int | None
    in_place: bool
    algbw: float | None
    busbw: float
    wrong: int = 0


class Run(NamedTuple):
    """All rows, those in place or else out of place (`curve`), and of these the largest size. `line_rate` in Gbit/s."""

    name: str
    title: str
    about: str
    operation: str
    dtype: str | None  # None: published figures, of one unknown size
    unit: str
    line_rate: float | None
    rows: list[Row]
    curve: list[Row]
    table: list[Row]


class Line(NamedTuple):
    """A line of a picture through points (bytes or nodes, Gbit/s); colour and dash are indexes."""

    label: str
    colour: int
    dash: int
    points: list[tuple[float, float]]


def fail(message: str) -> None:
    """End with exit code 2: it is the call that is wrong, not what was measured."""
    print(f"benchmark/report.py: {message}", file=sys.stderr)
    sys.exit(2)


def size_text(size: float) -> str:
    """Return a size in bytes as people write it: 256 MiB."""
    power = min(4, int(math.log2(size)) // 10)
    return f"{size / 1024**power:.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def number(value: float) -> str:
    """Return a bandwidth with one decimal, and with more where it is below 10."""
    return f"{value:.{max(1, 2 - math.floor(math.log10(value))) if value > 0 else 1}f}"


def both_units(gbit: float | None) -> str:
    """Return a bandwidth, given in Gbit/s, in both units."""
    return "not known" if gbit is None else f"{number(gbit)} Gbit/s ({number(gbit / 8)} GB/s)"


def where(row: tuple, unit: str) -> str:
    """Return what a row, or its first two fields, was measured on: 2 nodes (8 GPUs)."""
    text = f"{row[0] or '?'} node{'s' * (row[0] != 1)}"
    return f"{text} ({row[1]} {unit if row[1] != 1 else unit[:-1]})" if row[1] else text


def read_json(path: Path) -> tuple[dict, list[Row]]:
    """Return what all_reduce.py --json has written, as a whole and as rows."""
    try:
        found = json.loads(path.read_text())
        if found["program"] != "all_reduce.py" or found["operation"] not in FACTORS:
            raise ValueError(f"it is of {found['program']}, operation {found.get('operation')}")
        # "nodes" counts hosts, and local/submit.sh runs all nodes on one; the name has what scaling.sh asked for.
        named = re.fullmatch(r"nodes-(\d+)", path.stem)
        place, rows = (int(named[1]) if named else int(found["nodes"]), int(found["world_size"])), []
        for row in found["results"]:
            algbw, busbw = float(row["algbw_Gbps"]), float(row["busbw_Gbps"])
            if not (0 < algbw < math.inf and 0 <= busbw < math.inf and row["bytes"] >= 1):
                raise ValueError(f"{row['bytes']} bytes at {algbw} and {busbw} Gbit/s cannot be")
            rows.append(Row(*place, int(row["bytes"]), bool(row["in_place"]), algbw, busbw, row["wrong"] or 0))
        if not rows:
            raise ValueError("nothing was measured")
        [found[name] for name in KEYS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        fail(f"{path} is not what benchmark/all_reduce.py --json writes ({said}); remove it, or name another")
    return found, rows


def read_run(path: Path) -> Run:
    """Read a folder of JSON files, or one of them."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        fail(f"no JSON file in {path}: benchmark/scaling.sh collects them there while its jobs end")
    found = {file: read_json(file) for file in files}
    same_kind({str(file): (facts["operation"], facts["dtype"]) for file, (facts, _) in found.items()})
    places: dict[tuple, Path] = {}
    for file, (_, rows) in found.items():
        if (other := places.setdefault(rows[0][:2], file)) is not file:
            fail(f"{other} and {file} are both of {where(rows[0], 'ranks')}; a run has one file per number of nodes")
    common = set.intersection(*({(row.size, row.in_place) for row in rows} for _, rows in found.values()))
    if not common:
        fail(f"the files of {path} have no message size in common; measure again with the same --min and --max")
    size, in_place = max(common)
    rows = sorted(row for _, rows in found.values() for row in rows)
    curve = [row for row in rows if row.in_place == in_place]
    facts = max((facts for facts, _ in found.values()), key=lambda facts: facts["world_size"])
    title = f"{facts['operation']} of {facts['dtype']}, {'in' if in_place else 'out of'} place, {size_text(size)}"
    about = [", ".join(f"{count} x {name}" for name, count in Counter(facts["devices"]).items())]
    about += [(f"NCCL {facts['nccl']} " if facts["nccl"] else f"{facts['backend']} ") + facts["network"]]
    about += [f"torch {facts['torch']}", facts["date"], facts["job"] and f"job {facts['job']}"]
    about += [" ".join(f"{name}={value}" for name, value in facts["environment"].items())]
    kind = (facts["operation"], facts["dtype"], "ranks" if set(facts["devices"]) == {"cpu"} else "GPUs")
    table = [row for row in curve if row.size == size]
    name = path.name if path.resolve().parent == RESULTS else str(path)
    return Run(name, title, "; ".join(filter(None, about)), *kind, facts["line_rate_Gbps"], rows, curve, table)


def read_published(path: Path) -> list[Run]:
    """Return the tables of published.csv, each as a run."""
    runs: dict[tuple, Run] = {}
    try:
        with open(path, newline="") as file:
            for line in csv.DictReader(file):
                nodes, gpus = (int(line[name]) if line[name] else None for name in ("nodes", "gpus"))
                algbw = float(line["algbw_Gbps"]) if line["algbw_Gbps"] else None
                texts = (line["about"], f"Source: {line['source']}")
                run = Run(f"published {len(runs) + 1}", *texts, "all_reduce", None, "GPUs", None, *([[]] * 3))
                runs.setdefault(texts, run).table.append(Row(nodes, gpus, None, True, algbw, float(line["busbw_Gbps"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is no table like benchmark/published.csv ({error!r})")
    return list(runs.values())


def same_kind(kinds: dict[str, tuple[str, str]]) -> None:
    """Refuse to compare one operation, or one dtype, with another."""
    (first, kind), *others = kinds.items()
    for name, other in others:
        if other != kind:
            fail(f"{first}: {' of '.join(kind)}, {name}: {' of '.join(other)}; compare like with like")


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table with centred columns."""
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    lines = [titles, [f":{'-' * (width - 2)}:" for width in widths], *rows]
    return "\n".join(f"| {' | '.join(map(str.center, line, widths))} |" for line in lines) + "\n"


def odd(run: Run, row: Row) -> str:
    """Return why the two bandwidths of a row do not belong together, '' if they do."""
    n, factor = row.ranks or 1, FACTORS[run.operation]
    expected = (row.algbw or 0) * factor(n)
    if not expected or abs(row.busbw / expected - 1) <= SLACK:
        return ""
    ratio = row.busbw / row.algbw
    nearest = min((row.nodes or 2, *(2**power for power in range(1, 15))), key=lambda k: abs(factor(k) - ratio))
    causes = [(unit * factor(n), "one is in Gbit/s, the other in GB/s") for unit in (8, 1 / 8)]
    causes += [(1, "busbw is algbw without its factor"), (factor(nearest), f"that is the factor of n = {nearest}")]
    causes += [(other(n), f"that is the factor of {name}") for name, other in FACTORS.items()]
    # Not that they are means of repetitions: the mean of busbw is the mean of algbw times the factor.
    causes += [(ratio, "no other n, operation or unit fits: rounded by hand, or not of one measurement")]
    cause = next(cause for value, cause in causes if abs(ratio - value) <= SLACK * value)
    return (
        f"{run.name}, {where(row, run.unit)}: busbw {number(row.busbw)} is not algbw {number(row.algbw)} x "
        f"{factor(n):.4g} = {number(expected)} Gbit/s, {row.busbw / expected - 1:+.2%}; {cause}"
    )


def show(run: Run) -> list[str]:
    """Print the table of a run; return a sentence for each row with wrong data, or that is odd."""
    about = textwrap.fill(run.about, WIDTH, break_on_hyphens=False, break_long_words=False)
    print(f"### {run.name}: {run.title}\n\n{about}\n")
    cells = [[*(str(n or "?") for n in row[:2]), both_units(row.busbw), both_units(row.algbw)] for row in run.table]
    print(markdown(["Nodes", run.unit.replace("r", "R"), "Bus bandwidth", "Algorithm bandwidth"], cells))
    if any(row.ranks == 1 for row in run.table):
        print("One rank alone: nothing crosses a link.\n")
    wrong = [row for row in run.rows if row.wrong]
    wrong = [f"{run.name}, {where(row, run.unit)}, {size_text(row.size)}: {row.wrong} wrong elements" for row in wrong]
    return wrong + [sentence for row in run.rows if (sentence := odd(run, row))]


def compare(reference: Run, run: Run, tolerance: float | None) -> list[str]:
    """Print the ratios of a run to the reference; return a sentence for each value that is too low or missing."""
    sized = reference.dtype is not None  # else only the tables can be compared

    def by_key(run: Run) -> dict[tuple, float]:
        rows = run.curve if sized else run.table
        return {(row.size if sized else 0, row[:2]): row.busbw for row in rows if row.busbw}

    before, after = by_key(reference), by_key(run)
    keys = sorted(before.keys() & after.keys())
    places, low, cells = sorted({place for _, place in keys}), [], {}
    print(f"### Bus bandwidth of {run.name} / {reference.name}\n")
    for size, place in keys:
        text, new, old = size_text(size or run.table[0].size), after[size, place], before[size, place]
        cells.setdefault(size, [text, *["-"] * len(places)])[1 + places.index(place)] = f"{new / old:.2f}"
        if tolerance is not None and new < old * (1 - tolerance):
            numbers = f"{number(new)} Gbit/s, {new / old:.2f} of {number(old)} in {reference.name}"
            low.append(f"{run.name}, {where(place, run.unit)}, {text}: {numbers}")
    if keys:
        print(markdown(["Message size", *(where(place, run.unit) for place in places)], list(cells.values())))
    else:
        print("Nothing in common: another number of nodes or ranks, or other message sizes.\n")
    if tolerance is not None and (sized or not keys):  # a job that failed must not pass for a good one
        gone = dict.fromkeys(where(place, run.unit) for _, place in before if place not in places)
        low += [f"{run.name}: nothing to hold against {text} of {reference.name}" for text in gone]
    return low


def lines_of(runs: list[Run]) -> dict[str, list[Line]]:
    """Return the lines of bus bandwidth over message size and over nodes, as far as there is more than one of these."""
    measured = [run for run in runs if run.dtype]
    places = sorted({row[:2] for run in measured for row in run.table})
    found: dict[str, list[Line]] = {"message size": [], "nodes": []}
    for order, run in enumerate(runs):
        for colour, place in enumerate(places if run.dtype else []):
            points = [(row.size, row.busbw) for row in run.curve if row[:2] == place and row.busbw]
            label = where(place, run.unit) + f", {run.name}" * (len(measured) > 1)
            found["message size"].append(Line(label, colour, measured.index(run), points))
        label = f"{run.name}: {size_text(run.table[0].size) if run.dtype else run.title}"
        points = sorted({row.nodes: row.busbw for row in run.table if row.nodes and row.busbw}.items())
        found["nodes"].append(Line(textwrap.shorten(label, 52, placeholder=" …"), order, order, points))
    found = {axis: [line for line in lines if line.points] for axis, lines in found.items()}
    return {axis: lines for axis, lines in found.items() if len({x for line in lines for x, _ in line.points}) > 1}


def ticks(axis: str, lines: list[Line], most: int) -> dict[float, str]:
    """Return places and names of the labels of the horizontal axis: all values if few, else some powers of two."""
    xs = sorted({x for line in lines for x, _ in line.points})
    if len(xs) > most:
        low, high = math.ceil(math.log2(xs[0])), math.floor(math.log2(xs[-1]))
        xs = [2**power for power in range(low, high + 1, max(1, (high - low) // most + 1))] or [xs[0], xs[-1]]
    return {x: size_text(x) if axis == "message size" else str(x) for x in xs}


def in_letters(axis: str, lines: list[Line], rate: float | None) -> str:
    """Return a picture in letters, both axes logarithmic."""
    width, height = WIDTH - 12, 16
    xs = [math.log(x) for line in lines for x, _ in line.points]
    ys = [math.log(y) for line in lines for _, y in line.points] + ([math.log(rate)] if rate else [])
    left, top = min(xs), max(ys)
    across, down = (width - 1) / (max(xs) - left), (height - 1) / max(top - min(ys), 1e-9)
    canvas = [[" "] * width for _ in range(height)]
    if rate:
        canvas[round((top - math.log(rate)) * down)] = ["-"] * width
    named = list(zip(ascii_letters, lines))
    for letter, line in named:
        for x, y in line.points:
            canvas[round((top - math.log(y)) * down)][round((math.log(x) - left) * across)] = letter
    under = " " * width
    for x, name in ticks(axis, lines, 7).items():
        start = min(round((math.log(x) - left) * across), width - len(name))
        under = under[:start] + name + under[start + len(name) :]
    values = [number(math.exp(top - row / down)) if row % 5 == 0 else "" for row in range(height)]
    text = [f"bus bandwidth [Gbit/s] over {axis}"]
    text += [f"{value:>9} |{''.join(row)}" for value, row in zip(values, canvas)]
    text += [f"{'':>10}+{'-' * width}", f"{'':>11}{under}", *(f"{letter:>9}  {line.label}" for letter, line in named)]
    return "\n".join(line.rstrip() for line in text + ["        -  line rate"] * bool(rate)) + "\n"


def paint(pictures: dict[str, list[Line]], rate: float | None, title: list[str], prefix: Path) -> None:
    """Write PREFIX.png and PREFIX.svg: as wide as a column of print, both axes logarithmic."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    matplotlib.rcParams.update({"font.size": 8, "legend.fontsize": 7, "svg.fonttype": "none"})
    # Legends lie below: in two columns where the labels are short, so that they never cover a line.
    columns = [2 if max(len(line.label) for line in lines) < 24 else 1 for lines in pictures.values()]
    heights = [2.3 + 0.16 * (len(lines) // n + 1) for lines, n in zip(pictures.values(), columns)]  # inches
    figure = Figure(figsize=(3.5, 0.4 + sum(heights)), layout="constrained")
    figure.suptitle("\n".join(textwrap.shorten(line, 54, placeholder=" …") for line in title), fontsize=8)
    grid = figure.subplots(len(pictures), squeeze=False, height_ratios=heights)
    for axes, (axis, lines), ncols in zip(grid[:, 0], pictures.items(), columns):
        for line in lines:
            style = {"color": COLOURS[line.colour % len(COLOURS)], "marker": MARKERS[line.colour % len(MARKERS)]}
            style |= {"linestyle": DASHES[line.dash % len(DASHES)], "markersize": 4, "linewidth": 1.2}
            axes.plot(*zip(*line.points), label=line.label, markerfacecolor="white" if line.dash else None, **style)
        if rate:
            axes.axhline(rate, color="0.4", linewidth=0.8, label=f"line rate, {rate:g} Gbit/s")
        axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="bus bandwidth [Gbit/s]")
        named = ticks(axis, lines, 5)
        axes.set_xticks(list(named), list(named.values()))
        low, high = axes.get_ylim()
        subs = (1, 2, 3, 4, 6, 8) if high < 10 * low else (1, 2, 5) if high < 300 * low else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(color="0.9", linewidth=0.6)
        below = {"loc": "upper left", "bbox_to_anchor": (-0.25, 0), "borderaxespad": 4}  # the axis' own labels
        axes.legend(frameon=False, handlelength=2.8, ncols=ncols, **below)
    for suffix in (".png", ".svg"):
        figure.savefig(f"{prefix}{suffix}", dpi=300)


def draw(runs: list[Run], prefix: Path | None, text: bool) -> None:
    """Write the picture, and print it in letters where that is asked for or there is no matplotlib."""
    pictures = lines_of(runs)
    rate = max((run.line_rate for run in runs if run.line_rate), default=None)
    if not pictures:
        fail("nothing to draw: this is one message size on one number of nodes")
    if prefix:
        try:
            what = runs[-1].title.rsplit(", ", 1)[0] if runs[-1].dtype else runs[-1].title
            paint(pictures, rate, [what, *runs[-1].about.split("; ")[:2]], prefix)
            print(f"Picture: {prefix}.png, {prefix}.svg\n")
        except ImportError:
            print(f"benchmark/report.py: no matplotlib, so no {prefix}.png: pip install matplotlib", file=sys.stderr)
            text = True
    for axis, lines in pictures.items() if text else ():
        print(f"```\n{in_letters(axis, lines, rate)}```\n")


def read(paths: list[Path], published_alone: bool) -> list[Run]:
    """Return the runs that were named or, if none was, the published figures and then the newest run."""
    for path in paths:
        if not path.exists():
            fail(f"there is no {path}; runs of benchmark/scaling.sh are folders in {RESULTS}")
    if paths:
        return [run for path in paths for run in (read_published(path) if path.suffix == ".csv" else [read_run(path)])]
    published = read_published(PUBLISHED) if PUBLISHED.exists() else []
    if published_alone:
        return published or fail(f"there is no {PUBLISHED}: no figures of this site have been published")
    files = list(RESULTS.glob("*/*.json"))
    if not files:
        hint = "; --published prints what others measured" if published else ""
        fail(f"no results in {RESULTS}: bash benchmark/scaling.sh 1 2 4 measures{hint}")
    newest = read_run(max(files, key=lambda file: file.stat().st_mtime).parent)
    return [*(published if newest.operation == "all_reduce" else []), newest]


def main() -> None:
    """Read the flags and the runs; print, draw, judge."""
    parser = argparse.ArgumentParser(description="Tables, ratios and pictures of what all_reduce.py measured.")
    which = "folder, JSON file or published.csv (default: published.csv and the newest folder of benchmark/results)"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help=which)
    parser.add_argument("--published", action="store_true", help="print the published figures alone")
    lower = "exit code 1 if a bus bandwidth is lower than the reference by more than this share, 0.1 for 10 %%"
    parser.add_argument("--tolerance", type=float, metavar="SHARE", help=lower)
    parser.add_argument("--plot", type=Path, metavar="PREFIX", help="write the picture as PREFIX.png and PREFIX.svg")
    parser.add_argument("--text", action="store_true", help="print the picture in letters")
    args = parser.parse_args()
    if args.published and args.runs:
        parser.error(
            "--published prints the published figures alone; to compare, name benchmark/published.csv as a RUN"
        )
    if args.tolerance is not None and not 0 <= args.tolerance < 1:
        parser.error(f"--tolerance {args.tolerance:g} is not a share from 0 to below 1; write 0.1 for 10 %")
    if args.plot and not args.plot.absolute().parent.is_dir():
        parser.error(f"--plot {args.plot}: there is no folder {args.plot.absolute().parent}; make it first")
    runs = read(args.runs, args.published)
    same_kind({run.name: (run.operation, run.dtype) for run in runs if run.dtype} or {"": ("", "")})
    if args.tolerance is not None and (len(runs) < 2 or not runs[-1].dtype):
        parser.error("--tolerance takes a reference and a run: name two, the reference first")
    bad = []
    for run in runs:
        found = show(run)
        bad += found if run.dtype else []
        for sentence in [] if run.dtype else found:  # nobody here can mend what was published
            print(f"NOTE: {sentence}\n")
    for run in runs[1:]:
        bad += compare(runs[0], run, args.tolerance) if run.dtype else []
    if args.plot or args.text:
        draw(runs, args.plot, args.text)
    print("".join(f"FLAG: {sentence}\n" for sentence in bad), end="")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
