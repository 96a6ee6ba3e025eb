"""The messages of the template and of its projects: they change only together with the list that a person has read."""

import re
import subprocess
import sys

import pytest
from baking import REPOSITORY

LIST = REPOSITORY / "tests/template/messages.txt"
CHANGED = (
    "messages have changed: read them by the rules of CONTRIBUTING.md, "
    "then python tests/messages.py >tests/template/messages.txt"
)
# Words that stand for an actor or a thing that has a name.
VAGUE = (
    "all else",
    "anybody",
    "everybody",
    "likewise",
    "of those",
    "somebody",
    "that one",
    "the one that",
    "this message",
    "this warning",
    "whatever",
    "whichever",
    "whoever",
)


def listed():
    """Yield each message of the list, with its file."""
    file = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            file = line[3:]
        elif line:
            yield file, line


def test_list_is_up_to_date():
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tests/messages.py"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    if done.stdout != LIST.read_text(encoding="utf-8"):
        pytest.fail(CHANGED)


def test_list_has_every_kind_of_message():
    """Each of these was read from its source in another way."""
    messages = [message for _, message in listed()]
    for expected in (
        "nodes {nodes}: {where} allows at most {most}",  # an f-string that is yielded
        "learning rate at its peak (default: %(default)s)",  # a help text
        "Print which samples each rank reads in the first steps, counted from 1.",  # a function's docstring
        "Checks rank and GPU placement: node, GPU, cores and network of each rank. Run it before any other program.",
        "the port is taken",  # a row of a table
        "'$file' is empty: save the program, or name another one",  # die
        "SNAPSHOT=1 copies the sources with python3, which was not found on this machine: load a module that has it, "
        "or set SNAPSHOT=0",  # on two lines
        "bash slurm/clean.sh --dry-run only lists the copies that it would remove",  # a line of a usage
        "1: check every node before launch (a second or less); 0: skip.",  # a comment of env.sh
    ):
        assert expected in messages, expected


@pytest.mark.parametrize("words", VAGUE)
def test_no_message_is_vague(words):
    found = [f"{file}: {message}" for file, message in listed() if re.search(rf"\b{words}\b", message, re.I)]
    assert not found, "name the actor or the thing instead:\n" + "\n".join(found)
