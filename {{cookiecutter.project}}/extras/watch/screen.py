"""Shows a running job on one screen: its training, and each node and rank. watch.sh calls it.

    python3 extras/watch/screen.py [--once] [--every SECONDS] JOBID HOST [HOST ...]

sampling.py, beside this file, runs node.sh on each node. Exit code 1: a node has not answered. Python 3.6,
standard library only.
"""

import argparse
import os
import re
import shutil
import sys
import time
from itertools import groupby
from statistics import mean

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from job import facts_of
from progress import Training
from samples import remarks
from sampling import Sampling
from words import duration, printable, ranges, shortened

ONCE_WITHIN = 40  # seconds after which --once prints what it knows
GIB = 1024  # MiB


def main():
    """Draw the screen until the job ends; with --once, print it once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("job")
    parser.add_argument("hosts", nargs="+")
    args = parser.parse_args()
    once = args.once or not sys.stdout.isatty()
    sampling = Sampling(args.job, args.hosts, [2, 2] if once else [args.every])
    try:
        if once:
            sampling.run(until=time.monotonic() + ONCE_WITHIN, enough=2)
            print("\n".join(screen(args.job, sampling, width=None, height=None)))
        else:
            until = time.monotonic() + min(args.every, 5)
            while sampling.steps:
                sampling.run(until)
                until = time.monotonic() + args.every
                size = shutil.get_terminal_size()
                draw(screen(args.job, sampling, size.columns, size.lines - 1))
    except KeyboardInterrupt:
        pass
    finally:
        has_ended = not sampling.steps
        sampling.stop()
    if not once:
        print("\n" + printable(last_words(args.job, sampling.last_error() if has_ended else "")))
    sys.exit(1 if any(node.heard is None for node in sampling.nodes.values()) else 0)


# ---- what the screen shows -------------------------------------------------------------------------------------------


def screen(job, sampling, width, height):
    """Return the lines of the screen: at most `height`, each at most `width` wide; None: as many as there are."""
    nodes, now = list(sampling.nodes.values()), time.time()
    facts = facts_of(job)
    unusual = silent_nodes(sampling) + remarks(nodes)
    lines = [header(job, facts, nodes), *training_lines(nodes, facts, now, unusual)]
    lines += ["! " + line for line in unusual] + [""]
    lines += table(nodes, unusual, None if height is None else height - len(lines))
    return [printable(line)[:width] for line in lines[:height]]


def header(job, facts, nodes):
    """Return a line about the job."""
    ran = duration(time.time() - facts["start"]) if facts["start"] else "?"
    limit = f" of {duration(facts['end'] - facts['start'])}" if facts["start"] and facts["end"] else ""
    return f"job {job}, {facts['name']}: {facts['state']} for {ran}{limit}, {len(nodes)} node(s). {time.strftime('%T')}"


def training_lines(nodes, facts, now, unusual):
    """Return the line about the training, and put warnings about it first in `unusual`."""
    files = sorted({path for node in nodes if node.last() for path in node.last().metrics})
    lines = []
    for path in files:
        try:
            training = Training(path)
        except OSError as error:
            lines.append(f"training: {path} cannot be read here: {error.strerror}")
            continue
        which = f"training {os.path.relpath(path)}" if len(files) > 1 else "training"
        lines.append(f"{which}: {in_words(training, now)}")
        left = training.seconds_left(now)
        if training.is_late(now):
            unusual.insert(0, f"no step for {duration(now - training.time)}")
        elif left and facts["end"] and now + left > facts["end"]:
            unusual.insert(
                0, f"the walltime is over in {duration(facts['end'] - now)}, but the training needs {duration(left)}"
            )
    if not files and any(node.last() for node in nodes):
        lines.append("training: no rank has a metrics.jsonl open")
    return lines


def in_words(training, now):
    """Return in words how far a training is."""
    if training.step is None:
        return "no step yet"
    words = [f"step {training.step}" + (f" of {training.steps}" if training.steps else "")]
    if training.loss is not None:
        words.append(f"loss {training.loss:.4f}")
    if training.val_loss is not None:
        words.append(f"validation {training.val_loss:.4f}")
    if training.tokens_per_second:
        words.append(f"{training.tokens_per_second:,.0f} tokens/s")
    left = training.seconds_left(now)
    if left is not None:
        words.append(f"done in {duration(left)}, at {time.strftime('%H:%M', time.localtime(now + left))}")
    return ", ".join(words)


def silent_nodes(sampling):
    """Return a line that names the nodes without an answer, and the last error of srun."""
    now, patience = time.monotonic(), 3 * sampling.arguments[0] + 10
    silent = []
    for node in sampling.nodes.values():
        since = now - (sampling.started if node.heard is None else node.heard)
        if since > patience or (node.heard is None and not sampling.steps):
            silent.append(node.name)
    if not silent:
        return []
    return [line for line in (f"no answer: {shortened(silent)}", sampling.last_error()) if line]


def table(nodes, unusual, height):
    """Return rows of nodes, at most `height`: first nodes in `unusual`. The last line sums up hidden nodes."""
    with_gpus = any(node.last() and node.last().gpus for node in nodes)
    titles = ["node", "ranks", "GPU use [%]", "GPU memory [GiB]", "power [W]", "cores used", "last line of each rank"]
    if not with_gpus:
        titles = ["node", "ranks", "cores used", "load", "memory [GiB]", "last line of each rank"]
    shown, hidden = nodes, []
    if height is not None and len(nodes) + 1 > height:
        text = "\n".join(unusual)
        ordered = sorted(nodes, key=lambda node: not re.search(rf"\b{re.escape(node.name)}\b", text))
        shown, hidden = ordered[: max(1, height - 2)], ordered[max(1, height - 2) :]
    rows = [titles, *(row(node, with_gpus) for node in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths)).rstrip() for row in rows]
    return lines + ([summed_up(hidden)] if hidden else [])


def row(node, with_gpus):
    """Return the cells of a node."""
    sample, ranks = node.last(), ranges(node.last().ranks) if node.last() else ""
    if not sample:
        return [node.name, "no sample", *[""] * (5 if with_gpus else 4)]
    cores = f"{sum(node.cores().values()):.1f}" if len(node.samples) > 1 else "-"
    silent = last_lines([silent for _, (_, silent) in sorted(sample.ranks.items())])
    if not with_gpus:
        return [node.name, ranks, cores, f"{sample.load:.1f}", of(sample.used, sample.total), silent]
    use = " ".join("-" if value is None else f"{value:3.0f}" for value in node.gpu_use())
    memory = [gpu.used for gpu in sample.gpus if gpu.used is not None]
    total = next((gpu.total for gpu in sample.gpus if gpu.total), None)
    power = [gpu.power for gpu in sample.gpus if gpu.power is not None]
    watts = " ".join(f"{value:.0f}" for value in power) or "-"
    return [node.name, ranks, use, of(max(memory), total) if memory else "-", watts, cores, silent]


def of(used, total):
    """Return memory in GiB, of MiB."""
    return f"{used / GIB:.1f} of {total / GIB:.1f}" if total else f"{used / GIB:.1f}"


def last_lines(seconds):
    """Return how long each rank has printed nothing; equal ages of neighbouring ranks are one entry: 3s, 4m x7."""
    groups = [(text, len(list(same))) for text, same in groupby(map(age, seconds))]
    return ", ".join(text if count == 1 else f"{text} x{count}" for text, count in groups)


def age(seconds):
    """Return seconds in short."""
    if seconds is None:
        return "?"
    return (
        f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"
    )


def summed_up(nodes):
    """Return a line about nodes for which there is no room."""
    cores = [sum(node.cores().values()) for node in nodes if node.last()]
    uses = [value for node in nodes for value in node.gpu_use() if value is not None]
    text = f"{len(nodes)} more node(s)"
    if uses:
        return f"{text}: GPU use {min(uses):.0f} to {max(uses):.0f} %, on average {mean(uses):.0f} %"
    return f"{text}: {min(cores):.1f} to {max(cores):.1f} cores used" if cores else text


def draw(lines):
    """Draw lines over those that stand on the terminal."""
    print("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", end="", flush=True)


def last_words(job, error):
    """Return the line below the screen at the end. error: the last line of srun if srun has ended before Ctrl-C."""
    state = facts_of(job)["state"]
    if state == "RUNNING":
        return f"job {job} goes on" + (f", but the step that watched it has ended: {error}" if error else "")
    return f"job {job} is {state} now. Why a job ended: python3 slurm/doctor.py {job}"


if __name__ == "__main__":
    main()
