"""Whether a file in sites/ names a source for each kind of fact.

Sources stand in comments, which YAML does not keep, so this reads the text:

    # [W] https://wiki.example.org/cluster, 2026-11-21
    title: our laboratory's cluster
    ...
    partitions: # [W]
"""

from __future__ import annotations

import re

# Files of no cluster in particular, which hold few facts.
GENERIC = ("local", "runai", "slurm")
# Facts that cost a job if they are wrong, or the way to it.
FACTS = ("node", "partitions", "qos", "directives", "srun", "torchrun", "containers", "login", "file_systems")
TAG = re.compile(r"\[([A-Z]\w?)\]")


def missing_sources(text: str) -> list[str]:
    """Return a sentence for each kind of fact without a source, and for each source that the head does not explain."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    head, body = "\n".join(lines[:start]), lines[start:]
    explained = set(TAG.findall(head))
    if not explained:
        return ['no source: begin a line at the top with "# [X]", and the address and date of what it stands for']
    faults = []
    for key, block in blocks(body).items():
        comments = [comment_of(line) for line in block]
        if key in FACTS and not any(comments):
            faults.append(f"{key}: no source; put it into a comment beside the fact, such as # [{min(explained)}]")
        unknown = sorted(set(TAG.findall(" ".join(comments))) - explained)
        faults += [f"{key}: [{tag}] is not among the sources at the top; add a line # [{tag}] there" for tag in unknown]
    return faults


def blocks(body: list[str]) -> dict[str, list[str]]:
    """Return the lines of each key of the file, with the comments above them."""
    found: dict[str, list[str]] = {}
    above: list[str] = []
    key = ""
    for line in body:
        if line.startswith("#"):
            above.append(line)
            continue
        key = match[1] if (match := re.match(r"(\w+):", line)) else key
        found.setdefault(key, []).extend([*above, line])
        above = []
    return found


def comment_of(line: str) -> str:
    """Return the comment of a line of YAML; a # between quotes begins none."""
    bare = re.sub(r"\"(\\.|[^\"\\])*\"|'[^']*'", "", line)
    return bare.partition("#")[2] if re.match(r"\s*#", bare) else bare.partition(" #")[2]
