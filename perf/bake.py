"""How long does it take to write a project? `cookiecutter --no-input` with this template, against an empty one.

    python perf/bake.py [--rounds 7]

The empty template has one question and one file, so its time is that of Python and cookiecutter. The two take turns in
changing order. Each round gives a ratio, and the program prints the median of the rounds. A missed target does not
change the exit code.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from start import QUIET, REPOSITORY, cpu_seconds, environment, time_of

SECONDS = 2.0  # target: a person at a terminal should not wait


def empty_template(folder: Path) -> Path:
    """Write a template with one question and one file; return its folder."""
    (folder / "{{cookiecutter.project}}").mkdir(parents=True)
    (folder / "{{cookiecutter.project}}/README.md").write_text("{{ cookiecutter.project }}\n")
    (folder / "cookiecutter.json").write_text('{"project": "demo"}\n')
    return folder


def bake(template: Path, folder: Path, *answers: str) -> float:
    """Return the seconds that cookiecutter takes to write a project into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [sys.executable, "-m", "cookiecutter", "--no-input", "--output-dir", str(folder), str(template), *answers]
    return time_of(command, environment(HOME=str(folder)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time of writing a project.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each template (default: 7)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        empty = empty_template(folder / "empty")
        ways = {
            "this template, site=slurm": lambda: bake(REPOSITORY, folder / "ours", "site=slurm"),
            "an empty template": lambda: bake(empty, folder / "theirs"),
        }
        for way in ways.values():  # Python compiles what it imports
            way()
        begin = cpu_seconds()
        times = {way: [] for way in ways}
        for turn in range(args.rounds):
            for way in list(ways)[:: 1 if turn % 2 else -1]:
                times[way].append(ways[way]())
        wall, busy, own = (after - before for before, after in zip(begin, cpu_seconds()))

    print(f"writing a project, {args.rounds} rounds\n")
    print(f"{'':28}{'median':>9}{'range':>16}   target")
    for way, values in times.items():
        target = f"< {SECONDS:g} s" if way.startswith("this") else ""
        shown = f"{min(values):.2f}-{max(values):.2f}"
        print(f"{way:28}{statistics.median(values):7.2f} s{shown:>16}   {target}".rstrip())
    ours, theirs = times.values()
    ratios = [one / other for one, other in zip(ours, theirs)]
    print(f"{'ratio':28}{statistics.median(ratios):9.2f}{f'{min(ratios):.2f}-{max(ratios):.2f}':>16}")
    others = max(0.0, busy - own) / wall
    print(f"\nOther work used {others:.0%} of a CPU meanwhile: {'quiet enough' if others <= QUIET else 'repeat it'}.")


if __name__ == "__main__":
    main()
