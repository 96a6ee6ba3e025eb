"""The messages of the template and of its projects, as tests/messages.py reads them from the source."""

import re

import messages

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


def test_no_message_is_vague():
    """Each names the actor or the thing instead."""
    spoken = [(path, message) for path in messages.source_files() for message in messages.messages_of(path)]
    assert len(spoken) > 500 and {".py", ".sh"} <= {path.suffix for path, _ in spoken}
    vague = re.compile(rf"\b({'|'.join(VAGUE)})\b", re.I)
    assert [f"{path}: {message}" for path, message in spoken if vague.search(message)] == []
