"""Reads where the ranks were, and which one kept the others waiting, from stacks.txt of a run's folder.

An extra may write that file when ranks wait in vain: first a line for each place, with the ranks that were there, then
verdicts, then an empty line and whole stacks.
"""

import itertools
import os
import re

from logs import OUTPUT_BYTES, read_end

PLACE = re.compile(r"(?:ranks?|other process of ranks?) [\d,-]+(?: on [^:]+)?: | {4}another thread")
VERDICT = re.compile(
    r"ranks? [\d,-]+(?: on \S+| on \d+ nodes)? ha(?:s|ve) (?:not entered|told nothing|no process|left no record)"
    r"|ranks disagree: |all ranks have entered "
)


def read_stacks(run, ranks):
    """Return verdicts and places; two empty lists if they are not known."""
    path = run + "/stacks.txt"
    lines = read_end(path, OUTPUT_BYTES)[0] if run and os.path.isfile(path) else []
    answers = itertools.takewhile(lambda line: PLACE.match(line) or VERDICT.match(line), lines)
    answers = [with_host(line, ranks) for line in answers]
    return [line for line in answers if VERDICT.match(line)], [line for line in answers if not VERDICT.match(line)]


def with_host(line, ranks):
    """Return a line of these with the host of a rank whose process is gone, if its log tells which."""
    gone = re.match(r"rank (\d+)(?= has |: )", line)
    host = next((rank.host for rank in ranks if gone and rank.rank == int(gone.group(1))), "")
    return line.replace(gone.group(0), f"{gone.group(0)} on {host}", 1) if host else line
