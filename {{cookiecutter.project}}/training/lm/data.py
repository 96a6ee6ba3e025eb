"""The text to learn from, as bytes. To train on something else, replace this file.

The programs call load_data(args). It returns two datasets, to train on and to validate with, and a text that names the
data: a checkpoint of other data is refused. A sample is a tuple of tensors, with which the model is called.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import platform
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset

from lm.setup import fail

VALIDATION_PART = 20  # the last 1/20 of the bytes is never trained on
HASH_BLOCK, HASH_BLOCKS = 1 << 20, 64  # bytes; up to 64 MiB all is hashed, beyond that 64 blocks spread evenly


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
    except OSError as error:
        fail(f"{error}: give another --data")
    end = len(text) - len(text) // VALIDATION_PART
    train, validation = Text(text, 0, end, args.context), Text(text, end, len(text), args.context)
    if not len(train) or not len(validation):
        fail(f"--data {args.data} has {len(text)} bytes of text, too few for --context {args.context}: add text")
    name = f"text of {len(text):,} bytes" if args.data else f"sources of Python {platform.python_version()}'s library"
    return train, validation, f"{name} (checksum {checksum(text)})"


def read_text(path: str | None) -> bytes | mmap.mmap:
    """Read a file, all text files below a folder, or (None) the sources of Python's own library.

    A file is mapped, not read: it may be larger than memory, and the ranks of a node share it. The files of a folder
    are joined in the memory of each rank.
    """
    source = Path(path).expanduser() if path else Path(sysconfig.get_paths()["stdlib"])
    if not source.exists():
        fail(f"--data {path}: no such file or folder (on this node, seen from {Path.cwd()})")
    if source.is_file() and source.stat().st_size:
        with source.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    files = sorted(source.glob("**/*") if path else source.glob("*.py"))  # the order of the file system differs by node
    shown = [file for file in files if "/." not in f"/{file.relative_to(source)}" and file.is_file()]
    contents = [file.read_bytes() for file in shown]
    return b"".join(content for content in contents if b"\0" not in content[:8192])  # or binary: git's rule


def checksum(text: bytes | mmap.mmap) -> str:
    """Hash the length and the content (of a large one a sample) to 16 hexadecimal digits."""
    digest = hashlib.sha256(str(len(text)).encode())
    blocks = min(HASH_BLOCKS, -(-len(text) // HASH_BLOCK))
    for block in range(blocks):
        start = max(0, len(text) - HASH_BLOCK) * block // max(1, blocks - 1)  # the first and the last byte are in it
        digest.update(text[start : start + HASH_BLOCK])
    return digest.hexdigest()[:16]
