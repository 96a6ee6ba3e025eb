"""What runs of benchmark/all_reduce.py have measured: tables in Markdown, ratios between runs, a picture.

    python3 extras/scaling/report.py extras/scaling/published.csv logs/scaling/before   a run beside published ones
    python3 extras/scaling/report.py logs/scaling/before logs/scaling/after --plot picture
    python3 extras/scaling/report.py FIRST LATER --tolerance 0.1    exit code 1 if LATER is more than 10 % below FIRST

A run is a folder of JSON files, one per number of nodes, or a single such file. Each table of published.csv is a run,
too. The first run is the reference.

Bandwidths are in Gbit/s (1e9 bit/s) and in GB/s (1e9 bytes/s = 8 Gbit/s), sizes in powers of 1024. busbw is algbw times
a factor that depends on the number of ranks (or GPUs). Where it is not, the row is flagged with the likely cause.

Any Python from 3.9 on will do. The picture needs matplotlib; without it, bars of letters are printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Between busbw and algbw times the factor. Rounding explains no larger difference.
SLACK = 0.02
# busbw = algbw * BUSBW_FACTORS[operation] * (n - 1) / n
# (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-21)
BUSBW_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/, 2026-11-21), without the
# yellow, which is too light for a line. Markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")


class Scale(NamedTuple):
    """On how many nodes and ranks something was measured; None: not known."""

    nodes: int | None
    ranks: int | None

    def __str__(self) -> str:
        """Return it in words: 2 nodes (8 ranks)."""
        node_word = "node" if self.nodes == 1 else "nodes"
        rank_word = "rank" if self.ranks == 1 else "ranks"
        return f"{self.nodes or '?'} {node_word} ({self.ranks or '?'} {rank_word})"


class Measurement(NamedTuple):
    """One message size on one number of nodes."""

    scale: Scale
    size: int | None  # bytes of the message; None: not known
    algbw: float | None  # Gbit/s; None: not known
    busbw: float | None  # Gbit/s; None: not known
    wrong: int = 0  # wrong elements

    def __str__(self) -> str:
        """Return what was measured, not the result: 2 nodes (8 ranks), 256 MiB."""
        return f"{self.scale}, {size_text(self.size)}" if self.size else str(self.scale)


class Run(NamedTuple):
    """What is compared with other runs: measurements of one operation on one or several numbers of nodes."""

    name: str
    kind: str  # operation, type and place: only runs of one kind are comparable
    title: str  # of its table
    about: str  # hardware and software, or the source
    table_size: int | None  # message size of its table: the largest that all numbers of nodes have; None: published
    measurements: list[Measurement]  # of all sizes

    def is_published(self) -> bool:
        """Return whether it is a table of published.csv."""
        return self.table_size is None

    def in_table(self) -> list[Measurement]:
        """Return the measurements of the table's size."""
        return [measurement for measurement in self.measurements if measurement.size == self.table_size]


class Line(NamedTuple):
    """A line of a plot."""

    label: str
    colour: int  # index for COLOURS and MARKERS
    dash: int  # index for DASHES
    points: dict[int, float]  # x -> busbw in Gbit/s


class Plot(NamedTuple):
    """Bandwidth over something: a part of the picture."""

    x_axis: str
    x_text: Callable[[int], str]  # returns an x as text
    lines: list[Line]

    def x_values(self) -> list[int]:
        """Return every x of every line once, in order."""
        return sorted({x for line in self.lines for x in line.points})


def tell(message: str) -> None:
    """Print a message on standard error."""
    print(f"extras/scaling/report.py: {message}", file=sys.stderr)


def fail(message: str) -> None:
    """End with exit code 2: the command is wrong, not what was measured."""
    tell(message)
    sys.exit(2)


# ---- numbers as text -------------------------------------------------------------------------------------------------


def size_text(size: int) -> str:
    """Return a size in bytes as people write it: 256 MiB."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log2(size)) // 10, len(units) - 1)
    return f"{size / 1024**power:.4g} {units[power]}"


def bandwidth_text(value: float) -> str:
    """Return a bandwidth with one decimal, or with three digits where it is below 10."""
    decimals = 1
    if value > 0:
        decimals = max(1, 2 - math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"


def in_both_units(gbit: float | None) -> str:
    """Return a bandwidth, given in Gbit/s, in both units."""
    if gbit is None:
        return "not known"
    return f"{bandwidth_text(gbit)} Gbit/s ({bandwidth_text(gbit / 8)} GB/s)"


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table with centred columns."""
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows)]
    rule = [f":{'-' * (width - 2)}:" for width in widths]
    lines = []
    for cells in (titles, rule, *rows):
        lines.append("| " + " | ".join(cell.center(width) for cell, width in zip(cells, widths)) + " |")
    return "\n".join(lines) + "\n"


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Run:
    """Return what all_reduce.py --json has written."""
    facts = json.loads(path.read_text())
    if facts["program"] != "all_reduce.py" or facts["operation"] not in BUSBW_FACTORS:
        raise ValueError(f"{facts['operation']} of {facts['program']}")
    # scaling.sh names its files after the number of nodes. "nodes" in the file is the number of hosts, and
    # local/submit.sh runs all nodes on one.
    nodes_in_name = re.fullmatch(r"nodes-(\d+)", path.stem)
    nodes = nodes_in_name[1] if nodes_in_name else facts["nodes"]
    scale = Scale(int(nodes), facts["world_size"])
    measurements = []
    for result in facts["results"]:
        bandwidths = {"algbw": result["algbw_Gbps"], "busbw": result["busbw_Gbps"]}
        measurements.append(Measurement(scale, result["bytes"], **bandwidths, wrong=result["wrong"] or 0))
    place = "in place" if facts["results"][0]["in_place"] else "out of place"
    return Run(
        name=str(path),
        kind=f"{facts['operation']} of {facts['dtype']}, {place}",
        title="",
        about=describe(facts),
        table_size=None,
        measurements=sorted(measurements, key=lambda measurement: measurement.size),
    )


def describe(facts: dict) -> str:
    """Return hardware, software and settings of a run, from the facts in its JSON file."""
    devices = ", ".join(f"{count} x {name}" for name, count in Counter(facts["devices"]).items())
    backend = f"{facts['backend']} {facts['nccl'] or ''}".strip()
    job = f"job {facts['job']}" if facts["job"] else ""
    environment = " ".join(f"{name}={value}" for name, value in facts["environment"].items())
    parts = [devices, backend, f"torch {facts['torch']}", facts["date"], job, environment]
    return "; ".join(part for part in parts if part)


def read_published(path: Path) -> list[Run]:
    """Return the tables of published.csv, each as a run. Rows of one table have the same text and source."""
    runs: dict[tuple[str, str], Run] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            table = (row["about"], row["source"])
            if table not in runs:
                runs[table] = Run(
                    name=f"published {len(runs) + 1}",
                    kind="all_reduce",
                    title=row["about"],
                    about=f"Source: {row['source']}",
                    table_size=None,
                    measurements=[],
                )
            scale = Scale(number_or_none(row["nodes"]), number_or_none(row["gpus"]))
            bandwidths = {"algbw": number_or_none(row["algbw_Gbps"]), "busbw": number_or_none(row["busbw_Gbps"])}
            runs[table].measurements.append(Measurement(scale, None, **bandwidths))
    return list(runs.values())


def number_or_none(text: str) -> float | None:
    """Return the number in a cell of a CSV file, None if the cell is empty; whole numbers stay whole."""
    return json.loads(text) if text else None


def read(path: Path) -> list[Run]:
    """Return the tables of a CSV file, or the one run of a folder of JSON files or of such a file."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        fail(f"no JSON file in {path}: extras/scaling/scaling.sh collects them there while its jobs end")
    runs = []
    for file in files:
        try:
            runs += read_published(file) if file.suffix == ".csv" else [read_json(file)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            expected = "neither what all_reduce.py --json writes nor a table like extras/scaling/published.csv"
            fail(f"{file} is {expected} ({error!r}); remove it, or name another")
    return runs if path.suffix == ".csv" else [merge(path, runs)]


def merge(path: Path, runs: list[Run]) -> Run:
    """Return the JSON files of a folder, each on another number of nodes, as one run."""
    file_of_nodes: dict[int | None, str] = {}
    for run in runs:
        nodes = run.measurements[0].scale.nodes
        if nodes in file_of_nodes:
            both = f"{file_of_nodes[nodes]} and {run.name} both have nodes = {nodes}"
            fail(f"{both}: a folder has one file per number of nodes; move one of them to another folder")
        file_of_nodes[nodes] = run.name
    runs.sort(key=lambda run: run.measurements[0].scale)
    kinds_and_sizes = [{(run.kind, measurement.size) for measurement in run.measurements} for run in runs]
    in_all_files = set.intersection(*kinds_and_sizes)
    if not in_all_files:
        fail(f"no operation, type and message size that all files of {path} have; measure again with the same flags")
    kind, table_size = max(in_all_files)
    return runs[-1]._replace(
        name=path.name if path.is_dir() else str(path),
        title=f"{kind}, {size_text(table_size)}",
        table_size=table_size,
        measurements=[measurement for run in runs for measurement in run.measurements],
    )


# ---- tables and flags ------------------------------------------------------------------------------------------------


def mismatch(operation: str, measurement: Measurement) -> str:
    """Return why busbw and algbw of a measurement do not belong together, '' if they do."""
    nodes, ranks = measurement.scale
    algbw, busbw = measurement.algbw, measurement.busbw
    factor = BUSBW_FACTORS[operation] * (1 - 1 / (ranks or 1))
    if not factor or not algbw or busbw is None:
        return ""
    ratio = busbw / algbw
    if abs(ratio / factor - 1) <= SLACK:
        return ""
    factor_of_nodes = BUSBW_FACTORS[operation] * (1 - 1 / (nodes or 1))
    # Not among the causes: both are means of repetitions. The mean of busbw is the mean of algbw times the factor.
    causes = (
        (8 * factor, "one is in Gbit/s, the other in GB/s"),
        (factor / 8, "one is in Gbit/s, the other in GB/s"),
        (1, "busbw is algbw without its factor"),
        (factor_of_nodes, "n is the number of nodes in it"),
    )
    likely_cause = "rounded by hand, or not of one measurement"
    for ratio_of_cause, cause in causes:
        if abs(ratio - ratio_of_cause) <= SLACK * ratio_of_cause:
            likely_cause = cause
            break
    expected = f"algbw {bandwidth_text(algbw)} x {factor:.4g} = {bandwidth_text(algbw * factor)} Gbit/s"
    return f"busbw {bandwidth_text(busbw)} is not {expected}, {ratio / factor - 1:+.2%}; {likely_cause}"


def print_flags(sentences: list[str]) -> bool:
    """Print what is wrong; return whether anything is."""
    for sentence in sentences:
        print(f"FLAG: {sentence}\n")
    return bool(sentences)


def print_table(run: Run) -> bool:
    """Print the table of a run; return whether a measurement has wrong data or bandwidths that do not fit."""
    rows = []
    for measurement in run.in_table():
        nodes, ranks = str(measurement.scale.nodes or "?"), str(measurement.scale.ranks or "?")
        rows.append([nodes, ranks, in_both_units(measurement.busbw), in_both_units(measurement.algbw)])
    print(f"### {run.name}: {run.title}\n\n{run.about}\n")
    print(markdown(["Nodes", "Ranks", "Bus bandwidth", "Algorithm bandwidth"], rows))

    operation = run.kind.split()[0]
    flags = []
    for measurement in run.measurements:
        if measurement.wrong:
            flags.append(f"{run.name}, {measurement}: {measurement.wrong} wrong elements")
    for measurement in run.measurements:
        sentence = mismatch(operation, measurement)
        if sentence:
            flags.append(f"{run.name}, {measurement}: {sentence}")
    return print_flags(flags)


def print_ratios(reference: Run, run: Run, tolerance: float | None) -> bool:
    """Print the ratios of a run to the reference; return whether one is too low, or missing in one of the two."""
    # Of published figures only the operation is known.
    if not run.kind.startswith(reference.kind):
        fail(f"{reference.name}: {reference.kind}, {run.name}: {run.kind}; compare like with like")

    # Published figures have no size: compare them with the size of the run's table.
    before, after = {}, {}
    for measurement in reference.measurements:
        if measurement.busbw:
            before[measurement.scale, measurement.size or run.table_size] = measurement.busbw
    for measurement in run.measurements:
        if measurement.busbw:
            after[measurement.scale, measurement.size] = measurement.busbw
    ratios = {key: f"{after[key] / before[key]:.2f}" for key in sorted(before.keys() & after.keys())}
    scales = sorted({scale for scale, _ in ratios})
    sizes = sorted({size for _, size in ratios})
    rows = [[size_text(size), *(ratios.get((scale, size), "-") for scale in scales)] for size in sizes]
    print(f"### Bus bandwidth of {run.name} / {reference.name}\n")
    if ratios:
        print(markdown(["Message size", *(str(scale) for scale in scales)], rows))
    else:
        print("Nothing in common: another number of nodes or ranks, or other message sizes.\n")
    if tolerance is None:
        return False

    flags = []
    for (scale, size), ratio in ratios.items():
        busbw_before, busbw_after = before[scale, size], after[scale, size]
        if busbw_after < busbw_before * (1 - tolerance):
            lower = f"{bandwidth_text(busbw_after)} Gbit/s, {ratio} of {bandwidth_text(busbw_before)}"
            flags.append(f"{run.name}, {scale}, {size_text(size)}: {lower} in {reference.name}")
    # A number of nodes whose job failed must not pass for a good one. Published figures may have more than a run has.
    if not reference.is_published() or not ratios:
        missing = dict.fromkeys(scale for scale, _ in before if scale not in scales)
        flags += [f"{run.name}: nothing to hold against {scale} of {reference.name}" for scale in missing]
    # Nor must a sweep that ended early, or one of other sizes. Published figures have a single size.
    if not reference.is_published():
        missing_after = [key for key in sorted(before.keys() - after.keys()) if key[0] in scales]
        missing_before = [key for key in sorted(after.keys() - before.keys()) if key[0] in scales]
        flags += missing_sizes(missing_after, run, reference)
        flags += missing_sizes(missing_before, reference, run)
    return print_flags(flags)


def missing_sizes(keys: list[tuple[Scale, int]], run: Run, other: Run) -> list[str]:
    """Return a sentence for each number of nodes and message size that `run` lacks and `other` has."""
    return [f"{run.name}, {scale}, {size_text(size)}: missing, but {other.name} has it" for scale, size in keys]


# ---- the picture -----------------------------------------------------------------------------------------------------


def plots_of(runs: list[Run]) -> list[Plot]:
    """Return what can be drawn: bandwidth over message size, and over nodes, where there are several."""
    by_size = Plot("message size", size_text, [])
    by_nodes = Plot("nodes", str, [])
    scales = sorted({measurement.scale for run in runs if not run.is_published() for measurement in run.measurements})
    for run_number, run in enumerate(runs):
        measurements = [measurement for measurement in run.measurements if measurement.busbw]
        for scale in scales:
            points = {measurement.size: measurement.busbw for measurement in measurements if measurement.scale == scale}
            if points and not run.is_published():
                line = Line(f"{run.name}, {scale}", colour=scales.index(scale), dash=run_number, points=points)
                by_size.lines.append(line)
        points = {}
        for measurement in run.in_table():
            if measurement.busbw and measurement.scale.nodes:
                points[measurement.scale.nodes] = measurement.busbw
        if points:
            label = f"{run.name}: {run.title}"[:52]
            by_nodes.lines.append(Line(label, colour=run_number, dash=run_number, points=points))
    return [plot for plot in (by_size, by_nodes) if len(plot.x_values()) > 1]


def print_bars(plot: Plot) -> None:
    """Print a plot as bars of letters."""
    lowest = min(busbw for line in plot.lines for busbw in line.points.values())
    print(f"```\nbus bandwidth [Gbit/s] over {plot.x_axis}: two # more are twice as much")
    for line in plot.lines:
        print(f"{line.label}:")
        for x, busbw in line.points.items():
            bar = "#" * round(1 + 2 * math.log2(busbw / lowest))
            print(f"{plot.x_text(x):>12} {bandwidth_text(busbw):>10} {bar}")
    print("```\n")


def draw_plot(axes, plot: Plot, line_rate: float | None) -> None:
    """Draw a plot into matplotlib's axes."""
    for line in plot.lines:
        axes.plot(
            list(line.points),
            list(line.points.values()),
            label=line.label,
            linewidth=1.2,
            color=COLOURS[line.colour % len(COLOURS)],
            marker=MARKERS[line.colour % len(MARKERS)],
            linestyle=DASHES[line.dash % len(DASHES)],
            fillstyle="none" if line.dash else "full",
        )
    if line_rate:
        axes.axhline(line_rate, color="0.4", linewidth=0.8, label=f"line rate, {line_rate:g} Gbit/s")
    axes.set(xscale="log", yscale="log", xlabel=plot.x_axis, ylabel="bus bandwidth [Gbit/s]")
    x_values = plot.x_values()
    ticks = x_values[:: math.ceil(len(x_values) / 5)]  # so that their labels have room
    axes.set_xticks(ticks, [plot.x_text(x) for x in ticks])
    low, high = axes.get_ylim()
    axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if high < 300 * low else (1,))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(color="0.9", linewidth=0.6)
    # The legend is below the axis' own labels, and never covers a line.
    axes.legend(loc="upper left", bbox_to_anchor=(-0.25, 0), borderaxespad=4, frameon=False, handlelength=2.8)


def draw(runs: list[Run], plots: list[Plot], prefix: Path, line_rate: float | None) -> None:
    """Write PREFIX.png and PREFIX.svg, as wide as a column of print; print bars where there is no matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        tell(f"no matplotlib, so no {prefix}.png: pip install matplotlib")
        for plot in plots:
            print_bars(plot)
        return
    matplotlib.rcParams.update({"font.size": 8, "legend.fontsize": 7, "lines.markersize": 4, "svg.fonttype": "none"})
    height = 0.4 + sum(2.6 + 0.16 * len(plot.lines) for plot in plots)
    figure = Figure(figsize=(3.5, height), layout="constrained")  # inches
    figure.suptitle("\n".join([runs[-1].kind, *runs[-1].about.split("; ")[:2]]), fontsize=8)
    for axes, plot in zip(figure.subplots(len(plots), squeeze=False)[:, 0], plots):
        draw_plot(axes, plot, line_rate)
    prefix.absolute().parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(f"{prefix}{suffix}", dpi=300)
    print(f"Picture: {prefix}.png, {prefix}.svg\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the flags and the runs; print the tables, print the ratios, draw, judge."""
    parser = argparse.ArgumentParser(description="Tables, ratios and pictures of what all_reduce.py measured.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of JSON files, one of them, or a CSV")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="SHARE",
        help="exit code 1 if a bus bandwidth is missing or lower than the first run's by more than this: 0.1 for 10 %%",
    )
    parser.add_argument("--plot", type=Path, metavar="PREFIX", help="draw PREFIX.png and PREFIX.svg")
    parser.add_argument(
        "--line-rate", type=float, metavar="GBIT/S", help="of all cards of a node: a line in the picture"
    )
    args = parser.parse_args()

    runs = [run for path in args.runs for run in read(path)]
    reference = runs[0]
    if args.tolerance is not None and (len(runs) < 2 or runs[-1].is_published() or not 0 <= args.tolerance < 1):
        parser.error("--tolerance takes two runs, the reference first, and a share from 0 to below 1: 0.1 for 10 %")

    failed = False
    for run in runs:
        flagged = print_table(run)
        if flagged and not run.is_published():  # a flag on what others published is information only
            failed = True
    for run in runs[1:]:
        if not run.is_published() and print_ratios(reference, run, args.tolerance):
            failed = True
    sys.stdout.flush()  # messages about the picture come after the tables
    if args.plot:
        plots = plots_of(runs)
        if plots:
            draw(runs, plots, args.plot, args.line_rate)
        else:
            tell("nothing to draw: this is one message size on one number of nodes")
            sys.exit(1 if failed else 2)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
