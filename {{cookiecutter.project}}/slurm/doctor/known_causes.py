"""Searches lines for the causes of causes.py, and of each causes_NAME.py that stands beside it."""

import glob
import importlib
import os
import re
from typing import NamedTuple

from causes import Cause
from errors import HARMLESS, OF_COMMUNICATION, WORDS, way_of
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
            matching = [line for line in lines if re.search(pattern, line.text)]
            if matching:
                return found(cause, matching[0])
    return None


def search_message(message):
    """Return what an error message proves: its first error first, then the lines behind it; None if nothing."""
    for line in message.errors:
        for cause in BY_STARTER + BY_RANK:
            if any(re.search(pattern, line.text) for pattern in cause.patterns):
                return found(cause, line)
        if way_of(line.text) != "error":
            return None  # what a rank says behind "Connection closed by peer" follows from that
    if not (message.native or OF_COMMUNICATION.search(message.error.text)):
        return None  # behind any other message may stand what another process printed
    behind = message.lines[message.end + 1 : message.end + 1 + WORDS]
    within = message.lines[message.start : message.end + 1] if message.native else []
    return search(BY_RANK, [*within, *behind])


def cause_of_signal(code, line):
    """Return the cause that an exit code of minus a signal proves, which stands in a line; None if there is none."""
    causes = [cause for cause in BY_RANK + BY_STARTER if -code in cause.signals]
    return found(causes[0], line) if causes else None
