"""Text as bytes, and who reads which part of it at which step.

    python training/data.py --ranks 4 --global-batch 8        which samples each rank reads in the first steps

To train on your own text, give the programs `--data FILE_OR_FOLDER`. For something that is not text, replace
`read_corpus`: it returns a Corpus with two datasets that map a list of numbers to a batch, inputs and targets, and a
checksum. What decides which rank reads which sample, `share`, needs to know the number of samples and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

VALIDATION_PART = 20  # the last 1/20 of the bytes is never trained on
HASH_BLOCK, HASH_BLOCKS = 1 << 20, 64  # bytes; up to 64 MiB all is hashed, beyond that 64 blocks spread evenly


class Windows(Dataset):
    """The samples of a part of a text: `context` bytes and, for each, the one after it; they lie side by side."""

    def __init__(self, text: bytes | mmap.mmap, start: int, stop: int, context: int) -> None:
        """Take the bytes from `start` up to `stop`; nothing is cut yet."""
        self.text, self.start, self.stop, self.context = text, start, stop, context

    def __len__(self) -> int:
        """Return the number of whole windows."""
        return max(0, (self.stop - self.start - 1) // self.context)

    def __getitem__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of these windows, both int64 [len(numbers), context]."""
        starts = [self.start + number * self.context for number in numbers]
        found = bytearray().join(self.text[start : start + self.context + 1] for start in starts)
        windows = torch.frombuffer(found, dtype=torch.uint8).view(len(numbers), -1).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class Corpus(NamedTuple):
    """What to learn from, what to validate with, and what tells whether two ranks have read the same."""

    name: str
    train: Dataset
    validation: Dataset
    checksum: str


def read_corpus(path: str | None, context: int) -> Corpus:
    """Read a file, all text files below a folder, or (None) the sources of Python's own library.

    A file is mapped, not read: it may be larger than memory, and the ranks of a node share it. The files of a folder
    are joined in the memory of each rank: make one file of what is large. Raises ValueError in words for the user,
    OSError for what cannot be read.
    """
    name, source, pattern = f"--data {path}", Path(path or "").expanduser(), "**/*"
    if path is None:
        name = f"sources of Python {platform.python_version()}'s library"
        source, pattern = Path(sysconfig.get_paths()["stdlib"]), "*.py"
    if not source.exists():
        raise ValueError(f"--data {path}: no such file or folder (on this node, seen from {Path.cwd()})")
    if source.is_file() and source.stat().st_size:
        with source.open("rb") as file:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:  # in the order of names: the file system's own differs by node
        shown = (file for file in source.glob(pattern) if "/." not in f"/{file.relative_to(source)}")
        contents = (file.read_bytes() for file in sorted(shown) if file.is_file())  # and no link to nowhere
        text = b"".join(content for content in contents if b"\0" not in content[:8192])  # or binary: git's rule
    if not text:
        raise ValueError(f"{name} has no text in it (hidden and binary files are left out): give --data what has some")
    end = len(text) - len(text) // VALIDATION_PART
    return Corpus(name, Windows(text, 0, end, context), Windows(text, end, len(text), context), checksum(text))


def checksum(text: bytes | mmap.mmap) -> str:
    """Hash the length and the content (of a large one a sample) to 16 hexadecimal digits."""
    digest = hashlib.sha256(str(len(text)).encode())
    blocks = min(HASH_BLOCKS, -(-len(text) // HASH_BLOCK))
    for block in range(blocks):
        start = max(0, len(text) - HASH_BLOCK) * block // max(1, blocks - 1)  # the first and the last byte are in it
        digest.update(text[start : start + HASH_BLOCK])
    return digest.hexdigest()[:16]


def share(windows: int, batch: int, seed: int, first: int, last: int, rank: int = 0, world: int = 1) -> Iterator[list]:
    """Yield the windows that a rank reads in each step from `first` up to `last`, counted from 0.

    They are a function of the step alone. So the `batch` of all ranks is the same for any number of them, no window is
    read twice in an epoch, and a resumed run needs the number of its step to go on in the middle of one. The windows
    left over at the end of an epoch, fewer than `batch`, are left out; the next epoch leaves out others.
    """
    for step in range(first, last):
        epoch, place = divmod(step, windows // batch)
        if step == first or place == 0:  # another order for each seed and epoch
            # One number below 2**32 from both: torch's CPU generator ignores the upper half of a longer seed.
            generator = torch.Generator().manual_seed((seed + 1_000_003 * epoch) % 2**32)
            order = torch.randperm(windows, generator=generator)
        yield order[place * batch : (place + 1) * batch][rank::world].tolist()


def loader(windows: Dataset, numbers: Iterator[list[int]], workers: int, device: torch.device) -> Iterator[list]:
    """Yield what `windows` has for each list of `numbers`, read ahead by `workers` processes, on the device."""
    # Memory is pinned so that copies to the GPU overlap with its work; forked workers inherit the mapped file.
    how = {"pin_memory": device.type == "cuda", "multiprocessing_context": "fork" if workers else None}
    # No batch size: the sampler says what a batch is.
    batches = DataLoader(windows, batch_size=None, sampler=numbers, num_workers=workers, **how)
    yield from ([tensor.to(device, non_blocking=True) for tensor in batch] for batch in batches)


def main() -> None:
    """Print who reads what in the first steps, counted from 1."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", metavar="PATH", help="as for the training programs")
    flags = {"ranks": 2, "global-batch": 8, "context": 128, "seed": 0, "first-step": 1, "steps": 3}
    for name, default in flags.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    try:
        corpus = read_corpus(args.data, args.context)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    batch, ranks, windows = args.global_batch, args.ranks, len(corpus.train) if args.context > 0 else 0
    if not 0 < ranks <= batch <= windows:
        parser.error(f"--global-batch {batch} has to be at least --ranks {ranks} and at most {windows}, the windows")
    print(f"{corpus.name}: {windows:,} windows of {args.context} bytes, {windows // batch:,} steps per epoch")
    print("step  epoch  rank  windows")
    first = args.first_step - 1
    shares = [share(windows, batch, args.seed, first, first + args.steps, rank, ranks) for rank in range(ranks)]
    for step, rows in enumerate(zip(*shares), start=first):
        for rank, row in enumerate(rows):
            print(f"{step + 1:4}  {step // (windows // batch):5}  {rank:4}  {' '.join(map(str, row))}")


if __name__ == "__main__":
    main()
