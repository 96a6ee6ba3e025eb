"""What runs of benchmark/all_reduce.py have measured: tables in Markdown, ratios between runs, a picture.

    python3 benchmark/report.py benchmark/published.csv benchmark/results/before      a run beside what others published
    python3 benchmark/report.py benchmark/results/before benchmark/results/after --plot picture
    python3 benchmark/report.py FIRST LATER --tolerance 0.1       exit code 1 if LATER is more than 10 % below FIRST

A run is a folder of JSON files, one per number of nodes, or one such file; published.csv is a run for each of its
tables. The first run is the reference. Bandwidths are in Gbit/s (1e9 bit/s) and GB/s (1e9 bytes/s = 8 Gbit/s), sizes in
powers of 1024. busbw is algbw times a factor of n, the number of ranks (or GPUs); a row where it is not is flagged,
with the likely cause. Any Python from 3.9 will do; the picture takes matplotlib, and is drawn with letters where that
is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter, namedtuple
from pathlib import Path

SLACK = 0.02  # between busbw and algbw times the factor: rounding explains no more
# busbw = algbw * bus * (n - 1) / n (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21)
BUS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), without the
# yellow, too light for a line. Markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")


# A measurement: size in bytes, bandwidths in Gbit/s, number of wrong elements. None is what is not known.
Row = namedtuple("Row", "nodes ranks size algbw busbw wrong", defaults=[0])
# All rows, of which those of one size, that all numbers of nodes have, are the table. kind: operation, type and place.
# size: None for published figures, of one unknown size. line_rate: Gbit/s or None.
Run = namedtuple("Run", "name kind title about size line_rate rows")


def fail(message: str) -> None:
    """End with exit code 2: it is the call that is wrong, not what was measured."""
    print(f"benchmark/report.py: {message}", file=sys.stderr)
    sys.exit(2)


def size_text(size: int) -> str:
    """Return a size in bytes as people write it: 256 MiB."""
    power = min(4, int(math.log2(size)) // 10)
    return f"{size / 1024**power:.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def number(value: float) -> str:
    """Return a bandwidth with one decimal, and with more where it is below 10."""
    return f"{value:.{max(1, 2 - math.floor(math.log10(value))) if value > 0 else 1}f}"


def both_units(gbit: float | None) -> str:
    """Return a bandwidth, given in Gbit/s, in both units."""
    return "not known" if gbit is None else f"{number(gbit)} Gbit/s ({number(gbit / 8)} GB/s)"


def where(nodes: int | None, ranks: int | None, size: int | None = None) -> str:
    """Return what was measured on, and with which size: 2 nodes (8 ranks), 256 MiB."""
    text = f"{nodes or '?'} node{'s' * (nodes != 1)} ({ranks or '?'} rank{'s' * (ranks != 1)})"
    return f"{text}, {size_text(size)}" if size else text


def read_json(path: Path) -> Run:
    """Return what all_reduce.py --json has written."""
    facts = json.loads(path.read_text())
    if facts["program"] != "all_reduce.py" or facts["operation"] not in BUS:
        raise ValueError(f"{facts['operation']} of {facts['program']}")
    # "nodes" counts hosts, and local/submit.sh runs all nodes on one; the name has what scaling.sh asked for.
    named = re.fullmatch(r"nodes-(\d+)", path.stem)
    place = (int(named[1] if named else facts["nodes"]), facts["world_size"])
    keys, found = ("bytes", "algbw_Gbps", "busbw_Gbps"), facts["results"]
    rows = sorted(Row(*place, *(row[key] for key in keys), row["wrong"] or 0) for row in found)
    kind = f"{facts['operation']} of {facts['dtype']}, {'in' if found[0]['in_place'] else 'out of'} place"
    about = [", ".join(f"{count} x {name}" for name, count in Counter(facts["devices"]).items())]
    about += [" ".join(filter(None, (facts["backend"], facts["nccl"], facts["network"])))]
    about += [f"torch {facts['torch']}", facts["date"], facts["job"] and f"job {facts['job']}"]
    about += [" ".join(f"{name}={value}" for name, value in facts["environment"].items())]
    return Run(str(path), kind, "", "; ".join(filter(None, about)), None, facts["line_rate_Gbps"], rows)


def read_published(path: Path) -> list[Run]:
    """Return the tables of published.csv, each as a run."""
    runs: dict[tuple, Run] = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            texts = ("all_reduce", line["about"], f"Source: {line['source']}")
            run = runs.setdefault(texts, Run(f"published {len(runs) + 1}", *texts, None, None, []))
            keys = ("nodes", "gpus", "algbw_Gbps", "busbw_Gbps")
            nodes, gpus, algbw, busbw = (json.loads(line[key] or "null") for key in keys)
            run.rows.append(Row(nodes, gpus, None, algbw, busbw))
    return list(runs.values())


def read(path: Path) -> list[Run]:
    """Return the tables of a CSV file, or the one run of a folder of JSON files or of such a file."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        fail(f"no JSON file in {path}: benchmark/scaling.sh collects them there while its jobs end")
    runs = []
    for file in files:
        try:
            runs += read_published(file) if file.suffix == ".csv" else [read_json(file)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            what = "neither what all_reduce.py --json writes nor a table like benchmark/published.csv"
            fail(f"{file} is {what} ({error!r}); remove it, or name another")
    if path.suffix == ".csv":
        return runs
    runs.sort(key=lambda run: run.rows[0])
    shared = set.intersection(*({(run.kind, row.size) for row in run.rows} for run in runs))
    if not shared:
        fail(f"no operation, type and message size that all files of {path} have; measure again with the same flags")
    size, rows = max(shared)[1], [row for run in runs for row in run.rows]
    name, title = path.name if path.is_dir() else str(path), f"{runs[-1].kind}, {size_text(size)}"
    return [runs[-1]._replace(name=name, title=title, size=size, rows=rows)]


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table with centred columns."""
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    lines = [titles, [f":{'-' * (width - 2)}:" for width in widths], *rows]
    return "\n".join(f"| {' | '.join(map(str.center, line, widths))} |" for line in lines) + "\n"


def odd(kind: str, row: Row) -> str:
    """Return why the two bandwidths of a row do not belong together, '' if they do."""
    bus, share = BUS[kind.split(maxsplit=1)[0]], 1 - 1 / (row.ranks or 1)
    factor, ratio = bus * share, row.busbw / (row.algbw or math.inf)
    if not factor or not row.algbw or abs(ratio / factor - 1) <= SLACK:
        return ""
    causes = (  # not that they are means of repetitions: the mean of busbw is the mean of algbw times the factor
        (8 * factor, "one is in Gbit/s, the other in GB/s"),
        (factor / 8, "one is in Gbit/s, the other in GB/s"),
        (1, "busbw is algbw without its factor"),
        (bus * (1 - 1 / (row.nodes or 1)), "n is the number of nodes in it"),
        (ratio, "rounded by hand, or not of one measurement"),
    )
    cause = next(text for value, text in causes if abs(ratio - value) <= SLACK * value)
    expected = f"algbw {number(row.algbw)} x {factor:.4g} = {number(row.algbw * factor)} Gbit/s"
    return f"busbw {number(row.busbw)} is not {expected}, {ratio / factor - 1:+.2%}; {cause}"


def flag(sentences: list[str]) -> bool:
    """Print what is wrong; return whether anything is."""
    print("".join(f"FLAG: {sentence}\n\n" for sentence in sentences), end="")
    return bool(sentences)


def show(run: Run) -> bool:
    """Print the table of a run; return whether some of its rows have wrong data, or are odd."""
    table = [row for row in run.rows if row.size == run.size]
    cells = [[*(str(n or "?") for n in row[:2]), both_units(row.busbw), both_units(row.algbw)] for row in table]
    print(f"### {run.name}: {run.title}\n\n{run.about}\n")
    print(markdown(["Nodes", "Ranks", "Bus bandwidth", "Algorithm bandwidth"], cells))
    found = [(row, f"{row.wrong} wrong elements") for row in run.rows if row.wrong]
    found += [(row, odd(run.kind, row)) for row in run.rows]
    return flag([f"{run.name}, {where(*row[:3])}: {text}" for row, text in found if text])


def compare(reference: Run, run: Run, tolerance: float | None) -> bool:
    """Print the ratios of a run to the reference; return whether one is too low, or missing."""
    if not run.kind.startswith(reference.kind):  # of what was published only the operation is known
        fail(f"{reference.name}: {reference.kind}, {run.name}: {run.kind}; compare like with like")
    rows = [row._replace(size=row.size or run.size) for row in reference.rows]
    before, after = ({row[:3]: row.busbw for row in some if row.busbw} for some in (rows, run.rows))
    ratios = {key: f"{after[key] / before[key]:.2f}" for key in sorted(before.keys() & after.keys())}
    places, sizes = sorted({key[:2] for key in ratios}), sorted({key[2] for key in ratios})
    cells = [[size_text(size), *(ratios.get((*place, size), "-") for place in places)] for size in sizes]
    table = markdown(["Message size", *(where(*place) for place in places)], cells)
    print(f"### Bus bandwidth of {run.name} / {reference.name}\n")
    print(table if ratios else "Nothing in common: another number of nodes or ranks, or other message sizes.\n")
    if tolerance is None:
        return False
    low = [
        f"{run.name}, {where(*key)}: {number(after[key])} Gbit/s, {ratio} of {number(before[key])} in {reference.name}"
        for key, ratio in ratios.items()
        if after[key] < before[key] * (1 - tolerance)
    ]
    if reference.size or not ratios:  # a job that failed must not pass for a good one
        gone = dict.fromkeys(where(*key[:2]) for key in before if key[:2] not in places)
        low += [f"{run.name}: nothing to hold against {place} of {reference.name}" for place in gone]
    return flag(low)


def pictures_of(runs: list[Run]) -> dict[str, list[tuple]]:
    """Return bandwidths over message size and over nodes where there are several: label, colour, dash, {x: Gbit/s}."""
    found: dict[str, list] = {"message size": [], "nodes": []}
    places = sorted({row[:2] for run in runs if run.size for row in run.rows})
    for order, run in enumerate(runs):
        rows = [row for row in run.rows if row.busbw]
        for place in sorted({row[:2] for row in rows if run.size}):
            points = {row.size: row.busbw for row in rows if row[:2] == place}
            found["message size"].append((f"{run.name}, {where(*place)}", places.index(place), order, points))
        points = {row.nodes: row.busbw for row in rows if row.size == run.size and row.nodes}
        found["nodes"] += [(f"{run.name}: {run.title}"[:52], order, order, points)] if points else []
    return {axis: lines for axis, lines in found.items() if len({x for line in lines for x in line[-1]}) > 1}


def in_letters(pictures: dict[str, list[tuple]]) -> None:
    """Print the lines as bars."""
    for axis, lines in pictures.items():
        least = min(y for line in lines for y in line[-1].values())
        print(f"```\nbus bandwidth [Gbit/s] over {axis}: two # more are twice as much")
        for label, *_, points in lines:
            print(f"{label}:")
            for x, y in points.items():
                name = size_text(x) if axis == "message size" else x
                print(f"{name:>12} {number(y):>10} {'#' * round(1 + 2 * math.log2(y / least))}")
        print("```\n")


def draw(runs: list[Run], prefix: Path) -> None:
    """Write PREFIX.png and PREFIX.svg, as wide as a column of print; print letters where there is no matplotlib."""
    pictures = pictures_of(runs) or fail("nothing to draw: this is one message size on one number of nodes")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        print(f"benchmark/report.py: no matplotlib, so no {prefix}.png: pip install matplotlib", file=sys.stderr)
        return in_letters(pictures)
    matplotlib.rcParams.update({"font.size": 8, "legend.fontsize": 7, "lines.markersize": 4, "svg.fonttype": "none"})
    height = sum(2.6 + 0.16 * len(lines) for lines in pictures.values())
    figure = Figure(figsize=(3.5, 0.4 + height), layout="constrained")  # inches
    figure.suptitle("\n".join([runs[-1].kind, *runs[-1].about.split("; ")[:2]]), fontsize=8)
    rate = max(run.line_rate or 0 for run in runs)
    for axes, (axis, lines) in zip(figure.subplots(len(pictures), squeeze=False)[:, 0], pictures.items()):
        for label, colour, dash, points in lines:
            look = {"color": COLOURS[colour % len(COLOURS)], "marker": MARKERS[colour % len(MARKERS)]}
            look |= {"linestyle": DASHES[dash % len(DASHES)], "fillstyle": "none" if dash else "full"}
            axes.plot(list(points), list(points.values()), label=label, linewidth=1.2, **look)
        if rate:
            axes.axhline(rate, color="0.4", linewidth=0.8, label=f"line rate, {rate:g} Gbit/s")
        axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="bus bandwidth [Gbit/s]")
        xs = sorted({x for line in lines for x in line[-1]})
        xs = xs[:: math.ceil(len(xs) / 5)]  # so that the labels have room
        axes.set_xticks(xs, [size_text(x) if axis == "message size" else str(x) for x in xs])
        low, high = axes.get_ylim()
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if high < 300 * low else (1,))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(color="0.9", linewidth=0.6)
        # It lies below the axis' own labels, and never covers a line.
        axes.legend(loc="upper left", bbox_to_anchor=(-0.25, 0), borderaxespad=4, frameon=False, handlelength=2.8)
    prefix.absolute().parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(f"{prefix}{suffix}", dpi=300)
    print(f"Picture: {prefix}.png, {prefix}.svg\n")


def main() -> None:
    """Read the flags and the runs; print, draw, judge."""
    parser = argparse.ArgumentParser(description="Tables, ratios and pictures of what all_reduce.py measured.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of JSON files, one of them, or a CSV")
    lower = "exit code 1 if a bus bandwidth is lower than the first run's by more than this: 0.1 for 10 %%"
    parser.add_argument("--tolerance", type=float, metavar="SHARE", help=lower)
    parser.add_argument("--plot", type=Path, metavar="PREFIX", help="draw PREFIX.png and PREFIX.svg")
    args = parser.parse_args()
    runs = [run for path in args.runs for run in read(path)]
    if args.tolerance is not None and (len(runs) < 2 or not runs[-1].size or not 0 <= args.tolerance < 1):
        parser.error("--tolerance takes two runs, the reference first, and a share from 0 to below 1: 0.1 for 10 %")
    bad = [show(run) and run.size for run in runs]  # what others published is not ours to mend
    bad += [compare(runs[0], run, args.tolerance) for run in runs[1:] if run.size]
    if args.plot:
        draw(runs, args.plot)
    sys.exit(1 if any(bad) else 0)


if __name__ == "__main__":
    main()
