"""Phrases that several messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(value: object, names: Iterable[object]) -> str:
    """Return " (did you mean NAME?)" with one or two names like a value; '' if none is like it."""
    near = difflib.get_close_matches(str(value), [str(name) for name in names], n=2)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def choose_from(names: Iterable[str]) -> str:
    """Return "choose A or B", or "choose one of A, B, C"."""
    names = list(names)
    return f"choose {' or '.join(names) if len(names) < 3 else 'one of ' + ', '.join(names)}"
