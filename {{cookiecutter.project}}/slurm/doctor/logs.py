"""Reads what a job has printed: its output and the logs of its ranks, as lines of which the speaker is known.

A line of a rank begins with a label: [node1:0] of torchrun and spawn, "0: " of srun, [rank0]: of torch itself.
Only the end of each file is read, and only the begin of each line is kept: a log may have gigabytes, or one line of
megabytes. Control characters are shown as ^[ and the like, as a terminal would obey them.
"""

import glob
import os
import re
import sys
from typing import NamedTuple

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUTPUT_BYTES, LOG_BYTES = 20_000_000, 16_384  # of the end of an output, and of a rank's log
MOST_LINES = 200_000  # of the end of a file
WIDTH = 2048  # characters of a line that are kept
ATTEMPT_BEGINS = " node(s), meeting at "  # the submit script prints a line with these words before it starts the ranks
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Line(NamedTuple):
    """One line of an output or a log."""

    file: str  # as the user would type it
    number: int  # in what was read of the file; 0: the file is a command, which prints this line
    label: str  # as "[node2:3] "
    text: str  # without it

    @property
    def place(self):
        """Where the line stands."""
        return f"{self.file}:{self.number}" if self.number else self.file


class Speaker:
    """A rank, with what it printed; or the part of an output that has no label."""

    def __init__(self, rank=None, host=""):
        """Begin a speaker that has said nothing."""
        self.rank, self.host = rank, host
        self.lines = []  # of the output; of its stdout.log and stderr.log if the output has none of it
        self.errors = []  # of its stderr.log
        self.log = ""  # the rank's own log, as the user would type it
        self.ended = 0.0  # the time of its log's last change; the number of its last line, if it has no log
        self.starts_ranks = False  # its log is that of a rank of torchrun or spawn.py, and not of a task of srun

    @property
    def name(self):
        """The speaker, as a report calls it."""
        words = [] if self.rank is None else [f"rank {self.rank}"]
        return " ".join(words + ([f"on {self.host}"] if self.host else []))


# ---- files -----------------------------------------------------------------------------------------------------------


def die(message):
    """End with a mistake of the user's."""
    print(printable("slurm/doctor.py: " + message), file=sys.stderr)
    sys.exit(2)


def printable(text):
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def here():
    """Return the working folder as the user calls it, which may be through a link."""
    named = os.environ.get("PWD", "")
    return named if named and os.path.isdir(named) and os.path.samefile(named, ".") else os.getcwd()


def short(path):
    """Return a path as the user would type it."""
    return path[len(here()) + 1 :] if path.startswith(here() + "/") else path


def labelled_lines(path, size):
    """Return the lines of a file's end, as a terminal shows them, with their labels and places."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - size))
            text = file.read(size).decode("utf-8", "surrogateescape")  # not every byte is UTF-8
    except OSError as error:
        die(f"cannot read {short(path)}: {error.strerror}")
    if not text.strip("\n"):
        return []
    lines = text.rstrip("\n").rsplit("\n", MOST_LINES)
    is_end = os.path.getsize(path) > size or len(lines) > MOST_LINES
    name = short(path) + (" (its end)" if is_end else "")
    return [labelled(number, shown(line), name) for number, line in enumerate(lines[-MOST_LINES:], 1)]


# A progress bar of tqdm ends with times and a rate: [00:01<00:10,  4.0it/s, loss=2]
PROGRESS_BAR = re.compile(r"\[[0-9:]+(?:<[^],]*)?, *(?:\?|[0-9.]+[kMG]?)(?:it/s|s/it)[^]]*\]")


def shown(line):
    """Return what a terminal shows of a line: no colours, the last state of a progress bar, no bar before words.

    The label stays: srun writes it where the line begins, and tqdm a carriage return behind it.
    """
    if "\r" in line or "it/s" in line or "s/it" in line:
        label = LABEL.match(line[:WIDTH]).group()
        words = line[len(label) :].rstrip("\r").rpartition("\r")[2][:WIDTH]
        behind = PROGRESS_BAR.split(words)[-1]  # tqdm covers the rest of a longer bar with blanks
        line = label + (behind if behind.strip() else words)
    line = line[:WIDTH]
    if line.isprintable():
        return line
    return printable(COLOUR.sub("", line.replace("\0", "").replace("\t", " ")))


# ---- labels ----------------------------------------------------------------------------------------------------------

# [train.py:30] is no label: a logger names a source file there. transformers has [WARNING|trainer.py:906] (2026-11-22).
SOURCE_FILE = r"[^] ]*(?:\||\.(?:py|cc|cpp|cu|h|hpp):)"
# First that of the launcher, then that of torch. Open MPI writes process ids with five digits: [node1:00040].
LABEL = re.compile(
    r"(?:\[(?!" + SOURCE_FILE + r")(?P<host>[^] :]+):(?P<rank>0|[1-9]\d{0,3})\] ?| *(?P<task>\d+): )?"
    r"(?:\[(?:default|rank)(?P<of_torch>\d+)\]: ?)*"
)


def labelled(number, line, file):
    """Return a line apart from its labels."""
    end = LABEL.match(line).end()
    return Line(file, number, line[:end], line[end:])


def rank_of(label):
    """Return rank and host of a label; None and "" if it does not name them."""
    named = LABEL.match(label)
    rank = named.group("rank") or named.group("of_torch") or named.group("task")
    return (int(rank) if rank else None), named.group("host") or ""


def same_host(name, other):
    """Tell whether two names are of the same host: one may have a domain."""
    return name == other or name.startswith(other + ".") or other.startswith(name + ".")


# ---- the output of a job, and the logs of its ranks ------------------------------------------------------------------

# The report of the doctor in the output of a job: it must not prove itself.
REPORT_BEGINS = re.compile(r"cause: |no cause known|no launcher reports a rank that failed")
REPORT_ENDS = ". To ask again, run python3 slurm/doctor.py "  # in the line of the job behind it


def read_output(output):
    """Return the lines of the newest attempt in an output, without earlier reports of the doctor."""
    lines = labelled_lines(output, OUTPUT_BYTES) if os.path.isfile(output) else []
    newest = max((index for index, line in enumerate(lines) if ATTEMPT_BEGINS in line.text), default=0)
    return without_reports(lines[newest:])


def without_reports(lines):
    """Leave out reports of the doctor."""
    kept, begin = [], None
    for line in lines:
        if not line.label and REPORT_BEGINS.match(line.text):
            begin = len(kept)
        kept.append(line)
        if begin is not None and REPORT_ENDS in line.text:
            del kept[begin:]
            begin = None
    return kept


def read_rank_logs(run):
    """Return the ranks that have a log in the folder of an attempt."""
    paths = []
    for path in glob.glob(glob.escape(run) + "/node*/**/stderr.log", recursive=True) if run else []:
        match = re.match(r"node(\d+)-([^/]+)/(?:.*/)?(\d+)/stderr\.log$", path[len(run) + 1 :])
        if match:
            paths.append((path, int(match.group(1)), match.group(2), int(match.group(3))))
    ranks_per_node = 1 + max((local_rank for *_, local_rank in paths), default=0)
    logs = []
    for path, node, host, local_rank in paths:
        speaker = Speaker(node * ranks_per_node + local_rank, host)
        speaker.log, speaker.ended = short(path), os.path.getmtime(path)
        speaker.errors = labelled_lines(path, LOG_BYTES)
        stdout = re.sub(r"stderr\.log$", "stdout.log", path)
        speaker.lines = (labelled_lines(stdout, LOG_BYTES) if os.path.isfile(stdout) else []) + speaker.errors
        speaker.starts_ranks = path[len(run) :].count("/") > 3
        named = next((rank_of(line.label)[0] for line in reversed(speaker.errors) if "[rank" in line.label), None)
        speaker.rank = speaker.rank if named is None else named  # torchrun may number the nodes in another order
        logs.append(speaker)
    return logs


def speakers_of(output, logs):
    """Return who speaks: the ranks by their numbers, and last the lines without a label.

    If the output has no labels, as that of mpirun, the logs tell what each rank printed.
    """
    ranks, rest = {}, Speaker()
    for line in output:
        if not line.label:
            rest.lines.append(line)
            continue
        rank, host = rank_of(line.label)
        speaker = ranks.setdefault(rank, Speaker(rank, host))
        speaker.host = speaker.host or host
        speaker.lines.append(line)
        speaker.ended = line.number
    for log in logs:
        if log.rank in ranks:
            log.lines = ranks[log.rank].lines
        ranks[log.rank] = log
    return [*sorted(ranks.values(), key=lambda speaker: speaker.rank), rest]
