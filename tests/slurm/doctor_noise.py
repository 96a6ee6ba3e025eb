"""Puts what good runs of common stacks print (doctor_noise.txt) around, and between, the lines of an output.

    with_noise(text, "before")         at the start, on all ranks, as libraries print it when they are imported
    with_noise(text, "between")        before the first error, on all ranks
    with_noise(text, "after")          at the end, as libraries print it when they are unloaded
    with_noise(text, "on one rank")    at the start, of the rank 2 alone

The lines have the labels that the lines of the output have: `[node1:0] ` of torchrun, `0: ` of srun, or none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PLACES = ("before", "between", "after", "on one rank")
RANKS = range(4)
# Lines that only the batch script and srun print: they have no label.
WITHOUT_LABEL = "slurm"
# What libraries print when a program ends.
AT_THE_END = re.compile(r"destroy|resource_tracker|retry loop|Retrying|git repository|device-side")
ERROR = re.compile(
    r"Traceback|[Ee]rror|Killed|Terminat|CANCELLED|Watchdog|FAULT|fatal|failed|warning:|mpirun|prterun|still disabled"
)


class Message(NamedTuple):
    """One message of a library: one line or several."""

    stack: str
    source: str
    lines: tuple


def read_messages() -> list[Message]:
    """Return the messages of doctor_noise.txt."""
    found = []
    for paragraph in Path(__file__).with_suffix(".txt").read_text().split("\n\n")[1:]:
        head, *lines = paragraph.strip("\n").splitlines()
        stack, source = head[2:].split(" | ", 1)
        found.append(Message(stack, source, tuple(lines)))
    return found


MESSAGES = read_messages()


def label_style(text: str) -> str:
    """Return how the lines of an output are labelled: "torchrun", "srun" or "" """
    if re.search(r"(?m)^\d+: ", text):
        return "srun"
    return "torchrun" if re.search(r"(?m)^\[\w+:\d+\] ", text) else ""


def label(rank: int, style: str) -> str:
    """Return the label of a rank, of which two are on each node."""
    return {"srun": f"{rank}: ", "torchrun": f"[node{rank // 2 + 1}:{rank}] ", "": ""}[style]


def said_by(rank: int, line: str) -> str:
    """Return a line of a message as a rank prints it: torch puts the rank in front of some."""
    return re.sub(r"^\[rank\d+\]:", f"[rank{rank}]:", line)


def printed(messages: list[Message], style: str, ranks=RANKS) -> list[str]:
    """Return what ranks print: each one all messages, the lines of one rank between those of the others."""
    lines = []
    for message in messages:
        if message.stack == WITHOUT_LABEL:
            lines += message.lines
        elif style:
            lines += [label(rank, style) + said_by(rank, line) for line in message.lines for rank in ranks]
        else:
            lines += [said_by(rank, line) for rank in ranks for line in message.lines]
    return lines


def first_error(lines: list[str]) -> int:
    """Return the place before the first line that tells of an error."""
    return next((place for place, line in enumerate(lines) if ERROR.search(line)), len(lines))


def with_noise(text: str, where: str) -> str:
    """Return an output with noise in one of PLACES."""
    style, lines = label_style(text), text.splitlines()
    if where == "before":
        lines = printed(MESSAGES, style) + lines
    elif where == "on one rank":
        lines = printed(MESSAGES, style, [2]) + lines
    elif where == "between":
        place = first_error(lines)
        lines = lines[:place] + printed(MESSAGES, style) + lines[place:]
    elif where == "after":
        lines += printed([message for message in MESSAGES if AT_THE_END.search("".join(message.lines))], style)
    else:
        raise ValueError(f"{where!r}: expected one of {PLACES}")
    return "\n".join(lines) + "\n"
