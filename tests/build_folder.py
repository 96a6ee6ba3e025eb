"""What the processes of a run share. build/ also keeps for the next run what takes long to make."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"


@contextmanager
def one_at_a_time(folder: Path = BUILD) -> Iterator[None]:
    """Let one of the processes that run tests make what is kept in the folder, while the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
