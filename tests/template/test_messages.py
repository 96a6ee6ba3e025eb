"""The messages of the template and of its projects, as tests/messages.py reads them from the source."""

import re
from functools import cache

import messages
import pytest

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


@cache
def spoken():
    """Return each message with its file, as (file, message)."""
    return [
        (path.relative_to(messages.REPOSITORY), message)
        for path in messages.source_files()
        for message in messages.messages_of(path)
    ]


def test_messages_are_found():
    """Else the scan below would pass whatever the messages say."""
    suffixes = {file.suffix for file, _ in spoken()}
    assert {".py", ".sh"} <= suffixes
    assert len(spoken()) > 500


@pytest.mark.parametrize("words", VAGUE)
def test_no_message_is_vague(words):
    found = [f"{file}: {message}" for file, message in spoken() if re.search(rf"\b{words}\b", message, re.I)]
    assert not found, "name the actor or the thing instead:\n" + "\n".join(found)
