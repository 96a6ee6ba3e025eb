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
    files = list(messages.source_files())
    spoken = [(path.relative_to(messages.REPOSITORY), said) for path in files for said in messages.messages_of(path)]
    assert {".py", ".sh"} <= {file.suffix for file, _ in spoken} and len(spoken) > 500
    found = [f"{file}: {said}" for file, said in spoken if re.search(rf"\b({'|'.join(VAGUE)})\b", said, re.I)]
    assert not found, "name the actor or the thing instead:\n" + "\n".join(found)
