"""Reads where the ranks were, and which one kept the others waiting, from stacks.txt of a run's folder.

The job writes that file as soon as ranks wait in vain: first a line for each place, with the ranks that were there,
then verdicts, then an empty line and whole stacks.
"""

import glob
import itertools
import os
import re
import sys

from logs import OUTPUT_BYTES, read_end
from slurm_job import answer_of

PLACE = re.compile(r"(?:ranks?|other process of ranks?) [\d,-]+(?: on [^:]+)?: | {4}another thread")
VERDICT = re.compile(
    r"ranks? [\d,-]+(?: on \S+| on \d+ nodes)? ha(?:s|ve) (?:not entered|told nothing|no process|left no record)"
    r"|ranks disagree: |all ranks have entered "
)


def read_stacks(run, ranks):
    """Return verdicts and places; two empty lists if they are not known."""
    path = run + "/stacks.txt"
    lines = read_end(path, OUTPUT_BYTES)[0] if run and os.path.isfile(path) else []
    answers = list(itertools.takewhile(lambda line: PLACE.match(line) or VERDICT.match(line), lines))
    if not any(map(VERDICT.match, answers)):
        answers += [line for line in left_by_ranks(run) if VERDICT.match(line) or not answers]
    answers = [with_host(line, ranks) for line in answers]
    return [line for line in answers if VERDICT.match(line)], [line for line in answers if not VERDICT.match(line)]


def left_by_ranks(run):
    """Return what launch/stacks/group.py makes of the records that ranks left in the folder when they failed."""
    reader = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launch/stacks/group.py")
    if not run or not glob.glob(glob.escape(run) + "/*-rank-*") or not os.path.isfile(reader):
        return []
    return answer_of(sys.executable, "-B", reader, run).splitlines()


def with_host(line, ranks):
    """Return a line of these with the host of a rank whose process is gone, if its log tells which."""
    gone = re.match(r"rank (\d+)(?= has |: )", line)
    host = next((rank.host for rank in ranks if gone and rank.rank == int(gone.group(1))), "")
    return line.replace(gone.group(0), f"{gone.group(0)} on {host}", 1) if host else line
