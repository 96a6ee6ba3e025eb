"""The text to learn from, as bytes. To train on something else, replace this file.

The programs call load_data(args). It returns two datasets, to train on and to validate with, neither of them empty, and
a text that names the data: a checkpoint of other data is refused. A sample is a tuple of tensors, with which the model
is called.
"""

from __future__ import annotations

import argparse
import mmap
import platform
import sysconfig
import zlib
from pathlib import Path

import torch
from torch.utils.data import Dataset

from lm.setup import fail

VALIDATION_PART = 20  # the last 1/20 of the bytes is never trained on
CHECKED_BYTES = 2**26  # at the beginning of the text: other bytes are other data


class Text(Dataset):
    """The samples of a part of a text. They lie side by side."""

    def __init__(self, text: bytes | mmap.mmap, start: int, stop: int, context: int) -> None:
        """Take the bytes from `start` up to `stop`."""
        self.text, self.start, self.stop, self.context = text, start, stop, context

    def __len__(self) -> int:
        """Return the number of whole samples."""
        return max(0, (self.stop - self.start - 1) // self.context)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `context` bytes and, for each, the one after it: inputs and targets, both int64 [context]."""
        start = self.start + number * self.context
        window = bytearray(self.text[start : start + self.context + 1])
        tokens = torch.frombuffer(window, dtype=torch.uint8).long()
        return tokens[:-1], tokens[1:]


def load_data(args: argparse.Namespace) -> tuple[Dataset, Dataset, str]:
    """Return a text in two parts, to train on and to validate with, and its name with a checksum."""
    try:
        text = read_text(args.data)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        fail(f"--data {args.data}: {error} (on this node, seen from {Path.cwd()}): give another text file")
    end = len(text) - len(text) // VALIDATION_PART
    train, validation = Text(text, 0, end, args.context), Text(text, end, len(text), args.context)
    if not len(train) or not len(validation):
        fail(f"--data {args.data} has {len(text)} bytes of text, too few for --context {args.context}: add text")
    name = f"text of {len(text):,} bytes" if args.data else f"sources of Python {platform.python_version()}'s library"
    return train, validation, f"{name} (checksum {zlib.crc32(text[:CHECKED_BYTES]):08x})"


def read_text(path: str | None) -> bytes | mmap.mmap:
    """Read a file, or without a path the sources of Python's own library.

    A file is mapped, not read: it may be larger than memory, and the ranks of a node share it.
    """
    if path:
        with Path(path).expanduser().open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))  # the order of the file system differs by node
    return b"".join(file.read_bytes() for file in files)
