"""Reads what launchers report of ranks that ended: torchrun's table, srun's and mpirun's messages, launch/spawn.py.

A launcher ends the other ranks when one has failed, and reports those, too. Such reports follow from the first one and
are left out.
"""

import re
from typing import NamedTuple

from logs import Line

SIGNALS = {  # as srun names them
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Trace/breakpoint trap": 5,
    "Out Of Memory": 9,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Hangup": 1,
    "Terminated": 15,
    "Interrupt": 2,
}
ENDED_BY_OTHERS = (-15, -2)  # launchers and Slurm end the other ranks with these signals
STEP_ENDED = re.compile(r" (?:STEP|JOB) \S+ ON .* CANCELLED AT |Terminating (?:StepId=|job step )")
SRUN = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<ranks>[\d,-]+): (?P<end>.*)")
SPAWN = re.compile(r"launch/spawn\.py on (?P<host>\S+): rank (?P<ranks>\d+) (?P<end>.*)")
MPIRUN = re.compile(r"[a-z]+ noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<host>\S+) (?P<end>.*)")
SENTENCES = (("srun", SRUN), ("spawn.py", SPAWN), ("mpirun", MPIRUN))
MPIRUN_NAME = re.compile(r" +Process name: .*,(?P<rank>\d+)\]$")
MPIRUN_CODE = re.compile(r" +Exit code: +(?P<code>\d+)$")
TORCHRUN_FIRST = "Root Cause (first observed failure):"  # torchrun's table names other ranks of the node above it
TORCHRUN_ROW = re.compile(r" +(?P<key>time|host|rank|exitcode) +: (?P<value>\S+)")
NUMBER = re.compile(r"-?\d+$")


class Report(NamedTuple):
    """A launcher says that ranks have ended, or the launchers of nodes. srun names all that ended alike."""

    line: Line
    launcher: str
    ranks: tuple  # their numbers; srun's and mpirun's may be those of nodes' launchers
    host: str  # "" if srun names several at once
    code: int  # the exit code; or minus the signal, as torchrun has it
    time: str = ""  # torchrun tells it


def read_reports(lines):
    """Return the reports of ranks that ended by themselves, the first one to end first.

    torchrun's reports come first: beside them, those of srun and mpirun are of the launchers of nodes.
    """
    unlabelled = without_clean_up(lines)
    others = sorted(sentences(unlabelled) + mpirun_messages(unlabelled), key=lambda report: report.line.number)
    return [report for report in torchrun_tables(unlabelled) + others if report.code]


def without_clean_up(lines):
    """Return the lines without a label, but no report of a rank that srun ended, as another one of its step had failed.

    These are the reports after the first end of a step: if the job goes on with another step, the first one counts.
    """
    kept, is_ended = [], False
    for line in lines:
        is_ended = is_ended or bool(STEP_ENDED.search(line.text))
        is_clean_up = is_ended and (SRUN.match(line.text) or SPAWN.match(line.text))
        if not line.label and not is_clean_up:
            kept.append(line)
    return kept


def sentences(lines):
    """Return the reports that are one line each: of srun, of spawn.py, of mpirun on a signal."""
    reports = []
    for index, line in enumerate(lines):
        for launcher, sentence in SENTENCES:
            match = sentence.match(line.text)
            if match:
                end = match.group("end")
                following = lines[index + 1].text if index + 1 < len(lines) else ""
                if end == "exited on" and following.startswith("signal "):  # Open MPI 5 breaks the line
                    end += " " + following
                host = "" if re.search(r"[\[,]", match.group("host")) else match.group("host")  # node[9-10], a1,b2
                reports.append(Report(line, launcher, numbers(match.group("ranks")), host, code_in(end)))
    return reports


def numbers(text):
    """Return the numbers of 0-2,5."""
    found = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def code_in(words):
    """Return the exit code that srun, spawn.py or mpirun tell of, or minus the signal; None if they tell of neither."""
    for name, number in SIGNALS.items():
        if words.startswith(name):
            return -number
    by_signal = re.search(r"signal (\d+)", words)
    if by_signal:
        return -int(by_signal.group(1))
    code = re.search(r"exit code (\d+)", words)
    return signal_or_code(int(code.group(1))) if code else None


def signal_or_code(code):
    """Return an exit code; or minus the signal, of which shells and Slurm make the exit codes from 129 to 192."""
    return 128 - code if 129 <= code <= 128 + 64 else code


def mpirun_messages(lines):
    """Return mpirun's reports of exit codes: first comes a line with the rank, then the code."""
    reports, name = [], None
    for line in lines:
        name = MPIRUN_NAME.match(line.text) or name
        code = MPIRUN_CODE.match(line.text)
        if code and name:
            code = signal_or_code(int(code.group("code")))
            reports.append(Report(line, "mpirun", (int(name.group("rank")),), "", code))
    return reports


def torchrun_tables(lines):
    """Return the reports of torchrun's tables, one of each node, in the order of the times that the tables tell.

    A node whose rank lost another one may print its table first.
    """
    reports, table = [], None
    for line in lines:
        if line.text.startswith(TORCHRUN_FIRST):
            table = {}
        row = TORCHRUN_ROW.match(line.text) if table is not None else None
        if not row:
            continue
        table[row.group("key")] = row.group("value")
        if row.group("key") == "exitcode":
            if NUMBER.match(table.get("rank", "")) and NUMBER.match(table["exitcode"]):
                code = signal_or_code(int(table["exitcode"]))
                ranks = (int(table["rank"]),)
                reports.append(Report(line, "torchrun", ranks, table.get("host", ""), code, table.get("time", "")))
            table = None
    return sorted(reports, key=lambda report: report.time)
