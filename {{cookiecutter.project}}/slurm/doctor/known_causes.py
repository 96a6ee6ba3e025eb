"""Searches lines for the causes of causes.py, of each causes_NAME.py beside it, and of each extras/NAME/causes.py."""

import glob
import re
import runpy
from typing import NamedTuple

import causes
from causes import Cause
from errors import HARMLESS, OF_COMMUNICATION, WORDS, way_of
from logs import PROJECT, Line

PROOF_WIDTH = 300

# The tables of optional parts come first: the first row that fits counts.
FILES = [
    path
    for name in ("slurm/doctor/causes_*.py", "extras/*/causes.py")
    for path in glob.glob(f"{glob.escape(PROJECT)}/{name}")
]
TABLES = [runpy.run_path(path) for path in sorted(FILES)] + [vars(causes)]
BY_SLURM, BY_STARTER, BY_RANK = (
    [row for tables in TABLES for row in tables.get(name, ())] for name in ("BY_SLURM", "BY_STARTER", "BY_RANK")
)


class ProvenCause(NamedTuple):
    """A known cause, and the line that proves it."""

    row: Cause
    line: Line
    says: str

    @property
    def proof(self):
        """The line, with its place."""
        return f"{self.line.place}: {(self.line.label + self.line.text).strip()[:PROOF_WIDTH]}"


def proven_by(line, row):
    """Return the cause of a row, which a line proves."""
    return ProvenCause(row, line, row.says or line.text.strip()[:PROOF_WIDTH])


def search(table, lines):
    """Return the cause of the first row that a line proves, with the first line of its pattern; else None."""
    lines = [line for line in lines if not HARMLESS.search(line.text)]
    for row in table:
        for pattern in row.patterns:
            for line in lines:
                if re.search(pattern, line.text):
                    return proven_by(line, row)
    return None


def search_message(message):
    """Return what an error message proves: its first error first, then the lines behind it; None if nothing."""
    for line in message.errors:
        for row in BY_STARTER + BY_RANK:
            if any(re.search(pattern, line.text) for pattern in row.patterns):
                return proven_by(line, row)
        if way_of(line.text) != "error":
            return None  # what a rank says behind "Connection closed by peer" follows from that
    if not (message.native or OF_COMMUNICATION.search(message.error.text)):
        return None  # behind any other message may stand what another process printed
    behind = message.lines[message.end + 1 : message.end + 1 + WORDS]
    within = message.lines[message.start : message.end + 1] if message.native else []
    return search(BY_RANK, [*within, *behind])


def cause_of_signal(code, line):
    """Return the cause that an exit code of minus a signal proves, which stands in a line; None if there is none."""
    of_signal = [row for row in BY_RANK + BY_STARTER if -code in row.signals]
    return proven_by(line, of_signal[0]) if of_signal else None
