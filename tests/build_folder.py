"""build/, where tests keep from one run to the next what takes long to make."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one of the processes that run tests make what is kept, while the others wait."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
