"""Text as bytes, and who reads which part of it at which step.

To train on your own data, give the programs `--data FILE_OR_FOLDER`. For something that is not text, replace
`read_corpus` (what there is) and `cut` (what the model is fed with); what decides which rank reads which sample,
`step_order`, needs to know the number of samples and nothing else.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

DEFAULT_BYTES = 8_000_000  # of the default corpus: enough for 1855 steps of 32 x 128 bytes, read in a tenth of a second
VALIDATION_PART = 20  # the last 1/20 of the bytes is never trained on
NOT_CORPUS = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # folders the default corpus leaves out
PROBE_BYTES = 8192  # a file with a zero byte in this many first bytes is binary (git's rule)
HASH_BLOCK, HASH_BLOCKS = 1 << 20, 64  # bytes; up to 64 MiB all is hashed, beyond that 64 blocks spread evenly


class Corpus(NamedTuple):
    """Bytes to learn from: uint8 tensors [bytes], and what tells whether two ranks have read the same ones."""

    name: str
    train: torch.Tensor
    validation: torch.Tensor
    checksum: str


def read_corpus(path: str | None) -> Corpus:
    """Read a file, all text files below a folder, or (None) the sources of Python's own library.

    A file is mapped, not read: it may be larger than memory and is shared by the ranks of a node. A folder is read
    into the memory of each rank. Raises ValueError in words for the user, OSError for what cannot be read.
    """
    if path is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        name = f"sources of Python {platform.python_version()}'s library"
        content = _read_folder(library, name, suffix=".py", skip=NOT_CORPUS, limit=DEFAULT_BYTES)
    else:
        name, source = path, Path(path).expanduser()
        if source.is_dir():
            content = _read_folder(source, name)
        elif not source.exists():
            raise ValueError(f"--data {path}: no such file or folder (on this node, seen from {Path.cwd()})")
        elif not source.is_file():
            raise ValueError(f"--data {path} is neither a file nor a folder: name one of text")
        elif source.stat().st_size == 0:
            raise ValueError(f"--data {path} is empty: name a file or a folder with text")
        else:
            with source.open("rb") as file:  # copy on write: torch wants writable memory, the file stays as it is
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tokens = torch.frombuffer(content, dtype=torch.uint8)
    end = len(content) - len(content) // VALIDATION_PART
    return Corpus(name, tokens[:end], tokens[end:], _checksum(content))


def _read_folder(
    folder: Path, name: str, suffix: str = "", skip: set[str] | None = None, limit: int | None = None
) -> bytearray:
    """Join the text files below `folder` in the order of their names, up to `limit` bytes; hidden ones are left out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in (skip or ())]
        found += [Path(place, f) for f in files if f.endswith(suffix) and not f.startswith(".")]
    content = bytearray()
    for file in sorted(found, key=lambda f: f.relative_to(folder).parts):  # the file system's own order differs by node
        if file.is_file():  # a link to nowhere is not
            data = file.read_bytes()
            content += b"" if b"\0" in data[:PROBE_BYTES] else data
        if limit and len(content) >= limit:
            del content[limit:]
            break
    if not content:
        wanted = f"{suffix} files" if suffix else "text (hidden files, and files with a zero byte, are left out)"
        raise ValueError(f"{name}: no {wanted} in {folder}; name a file or a folder with text by --data")
    return content


def _checksum(content: mmap.mmap | bytearray) -> str:
    """Hash the length and the content (of a large one a sample) to 16 hexadecimal digits."""
    size = len(content)
    digest = hashlib.sha256(str(size).encode())
    blocks = min(HASH_BLOCKS, -(-size // HASH_BLOCK))
    with memoryview(content) as view:
        for block in range(blocks):
            start = max(0, size - HASH_BLOCK) * block // max(1, blocks - 1)  # the first and the last byte are in it
            digest.update(view[start : start + HASH_BLOCK])
    return digest.hexdigest()[:16]


def count(tokens: torch.Tensor, context: int) -> int:
    """Return how many windows of `context` inputs, each with the byte that follows it, fit side by side."""
    return max(0, (len(tokens) - 1) // context)


@lru_cache(maxsize=2)
def epoch_order(windows: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order [windows] in which an epoch visits the windows; another one for each seed and epoch."""
    # One number below 2**32 from both: torch's CPU generator ignores the upper half of a longer seed.
    generator = torch.Generator().manual_seed((seed + 1_000_003 * epoch) % 2**32)
    return torch.randperm(windows, generator=generator)


def step_order(step: int, windows: int, batch: int, seed: int) -> torch.Tensor:
    """Return the windows [batch] that step 0, 1, … trains on, over all ranks: rank r of n takes [r::n].

    It is a function of the step alone. So the batch is the same for any number of ranks, no window is read twice in
    an epoch, and a resumed run needs the number of its step to go on in the middle of one. The windows left over at
    the end of an epoch, fewer than `batch`, are left out; the next epoch leaves out others.
    """
    epoch, place = divmod(step, windows // batch)
    return epoch_order(windows, seed, epoch)[place * batch : (place + 1) * batch]


def cut(tokens: torch.Tensor, windows: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, both int64 [len(windows), context]; a target is the byte after its input."""
    places = windows[:, None] * context + torch.arange(context + 1)
    bytes_ = tokens[places].long()
    return bytes_[:, :-1], bytes_[:, 1:]
