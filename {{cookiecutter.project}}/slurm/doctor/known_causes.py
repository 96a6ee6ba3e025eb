"""Searches lines for the causes of causes.py, and of each causes_NAME.py that stands beside it."""

import glob
import importlib
import os
import re
from typing import NamedTuple

from causes import Cause
from errors import HARMLESS, OF_COMMUNICATION, WORDS
from logs import Line

PROOF_WIDTH = 300


def rows(table):
    """Return the rows of all tables of this name, those of optional parts first: the first row that fits counts."""
    paths = sorted(glob.glob(glob.escape(os.path.dirname(os.path.abspath(__file__))) + "/causes_*.py"))
    names = [os.path.basename(path)[: -len(".py")] for path in paths]
    modules = [importlib.import_module(name) for name in [*names, "causes"]]
    return [row for module in modules for row in getattr(module, table, ())]


BY_SLURM, BY_STARTER, BY_RANK, BY_WAITING = map(rows, ("BY_SLURM", "BY_STARTER", "BY_RANK", "BY_WAITING"))


class Found(NamedTuple):
    """A known cause, and the line that proves it."""

    cause: Cause
    line: Line
    says: str
    fix: str

    @property
    def name(self):
        """The name of the row."""
        return self.cause.name

    @property
    def proof(self):
        """The line, with its place."""
        return f"{self.line.place}: {(self.line.label + self.line.text).strip()[:PROOF_WIDTH]}"


def found(cause, line):
    """Return a known cause that a line proves."""
    return Found(cause, line, cause.says or line.text.strip()[:PROOF_WIDTH], cause.fix)


def cause_named(name):
    """Return the row of this name."""
    return next(cause for cause in BY_SLURM + BY_STARTER + BY_RANK + BY_WAITING if cause.name == name)


def search(causes, lines):
    """Return the first of these causes that a line proves, with the first line of its pattern; else None."""
    lines = [line for line in lines if not HARMLESS.search(line.text)]
    for cause in causes:
        for pattern in cause.patterns:
            matching = [at for at, line in enumerate(lines) if re.search(pattern, line.text)]
            if matching and not is_undone(cause, lines[matching[-1] :]):
                return found(cause, lines[matching[0]])
    return None


def is_undone(cause, lines):
    """Tell whether one of the lines, from the last match on, says that all went well after all."""
    return bool(cause.undone_by) and any(re.search(cause.undone_by, line.text) for line in lines)


def search_message(message):
    """Return what an error message proves: its first error first, then the lines behind it; None if nothing."""
    by_rank = BY_RANK + (BY_WAITING if message.way in ("waited", "peer") else [])
    for line in message.errors:
        for cause in BY_STARTER + by_rank:
            if any(re.search(pattern, line.text) for pattern in cause.patterns):
                return found(cause, line)
    if not (message.native or OF_COMMUNICATION.search(message.error.text)):
        return None  # behind any other message may stand what another process printed
    behind = message.lines[message.end + 1 : message.end + 1 + WORDS]
    within = message.lines[message.start : message.end + 1] if message.native else []
    return search(by_rank, [*within, *behind])


def cause_of_signal(report):
    """Return the cause that a launcher's report of a signal proves; None if there is none."""
    causes = [cause for cause in BY_RANK + BY_STARTER if report.code and -report.code in cause.signals]
    return found(causes[0], report.line) if causes else None
