"""Text as bytes, and who reads which part of it at which step.

    python training/data.py --ranks 4 --global-batch 8        which samples each rank reads in the first steps

To train on your own text, give the programs `--data FILE_OR_FOLDER`. For something that is not text, replace
`read_corpus`, which returns a Corpus of whatever has a length, and `Windows`, a dataset of one part of it that returns
inputs and targets for a list of numbers. What decides which rank reads which sample, `step_order`, needs to know the
number of samples and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import platform
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

DEFAULT_BYTES = 8_000_000  # of the default corpus: enough for 1855 steps of 32 x 128 bytes, read in a tenth of a second
VALIDATION_PART = 20  # the last 1/20 of the bytes is never trained on
EVALUATION = 1024  # windows of the validation text that are used: more costs time, fewer makes the figure noisy
NOT_CORPUS = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # folders the default corpus leaves out
PROBE_BYTES = 8192  # a file with a zero byte in this many first bytes is binary (git's rule)
MAPPED_BYTES = 1 << 20  # files from this size on are mapped; a process may not have more than some 65,000 mappings
HASH_BLOCK, HASH_BLOCKS = 1 << 20, 64  # bytes; up to 64 MiB all is hashed, beyond that 64 blocks spread evenly


class Text:
    """Bytes that lie in several buffers, files mapped into memory or lists, as if they lay side by side."""

    def __init__(self, pieces: list[memoryview]) -> None:
        """Keep the buffers; nothing is copied."""
        self.pieces, self.ends = pieces, list(accumulate(map(len, pieces)))

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.ends[-1] if self.ends else 0

    def views(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` up to `stop`, a view for each buffer that has some of them."""
        number = bisect_right(self.ends, start)
        while start < stop:
            offset = start - (self.ends[number] - len(self.pieces[number]))
            view = self.pieces[number][offset : offset + stop - start]
            yield view
            start, number = start + len(view), number + 1

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return these bytes, uint8 [stop - start]."""
        parts = [torch.frombuffer(view, dtype=torch.uint8) for view in self.views(start, stop)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Corpus(NamedTuple):
    """Text to learn from, and what tells whether two ranks have read the same."""

    name: str
    train: Text
    validation: Text
    checksum: str


def read_corpus(path: str | None) -> Corpus:
    """Read a file, all text files below a folder, or (None) the sources of Python's own library.

    Large files are mapped, not read: together they may be larger than memory, and the ranks of a node share them.
    Raises ValueError in words for the user, OSError for what cannot be read.
    """
    if path is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        name = f"sources of Python {platform.python_version()}'s library"
        pieces = _read_folder(library, name, suffix=".py", skip=NOT_CORPUS, limit=DEFAULT_BYTES)
    else:
        name, source = path, Path(path).expanduser()
        if source.is_dir():
            pieces = _read_folder(source, name)
        elif not source.exists():
            raise ValueError(f"--data {path}: no such file or folder (on this node, seen from {Path.cwd()})")
        elif not source.is_file():
            raise ValueError(f"--data {path} is neither a file nor a folder: name one of text")
        elif source.stat().st_size == 0:
            raise ValueError(f"--data {path} is empty: name a file or a folder with text")
        else:
            pieces = [_map(source)]
    text = Text(pieces)
    end = len(text) - len(text) // VALIDATION_PART
    return Corpus(name, Text(list(text.views(0, end))), Text(list(text.views(end, len(text)))), _checksum(text))


def _map(file: Path) -> memoryview:
    with file.open("rb") as opened:  # copy on write: torch wants writable memory, the file stays as it is
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))


def _read_folder(
    folder: Path, name: str, suffix: str = "", skip: set[str] | None = None, limit: int | None = None
) -> list[memoryview]:
    """Join the text files below `folder` in the order of their names, up to `limit` bytes; hidden ones are left out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in (skip or ())]
        found += [Path(place, f) for f in files if f.endswith(suffix) and not f.startswith(".")]
    pieces: list[memoryview] = []
    small, size = bytearray(), 0  # small files that follow one another become one piece
    for file in sorted(found, key=lambda f: f.relative_to(folder).parts):  # the file system's own order differs by node
        if not file.is_file():  # a link to nowhere
            continue
        with file.open("rb") as opened:
            if b"\0" in opened.read(PROBE_BYTES):
                continue
        size += file.stat().st_size
        if file.stat().st_size < MAPPED_BYTES:
            small += file.read_bytes()
        else:
            pieces += [memoryview(small), _map(file)] if small else [_map(file)]
            small = bytearray()
        if limit and size >= limit:
            break
    pieces += [memoryview(small)] if small else []
    if not size:
        wanted = f"{suffix} files" if suffix else "text (hidden files, and files with a zero byte, are left out)"
        raise ValueError(f"{name}: no {wanted} in {folder}; name a file or a folder with text by --data")
    return list(Text(pieces).views(0, min(size, limit or size)))


def _checksum(text: Text) -> str:
    """Hash the length and the content (of a large one a sample) to 16 hexadecimal digits."""
    size = len(text)
    digest = hashlib.sha256(str(size).encode())
    blocks = min(HASH_BLOCKS, -(-size // HASH_BLOCK))
    for block in range(blocks):
        start = max(0, size - HASH_BLOCK) * block // max(1, blocks - 1)  # the first and the last byte are in it
        for view in text.views(start, min(size, start + HASH_BLOCK)):
            digest.update(view)
    return digest.hexdigest()[:16]


class Windows(Dataset):
    """The samples of a text: `context` bytes and, for each, the one after it; they lie side by side."""

    def __init__(self, text: Text, context: int) -> None:
        """Cut nothing yet."""
        self.text, self.context = text, context

    def __len__(self) -> int:
        """Return the number of whole windows."""
        return max(0, (len(self.text) - 1) // self.context)

    def __getitem__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of these windows, both int64 [len(numbers), context]."""
        starts = [number * self.context for number in numbers]
        found = torch.stack([self.text.read(start, start + self.context + 1) for start in starts]).long()
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()


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


class Share(Sampler):
    """The windows that one rank reads, a list for each step from `first` up to `last`."""

    def __init__(
        self, windows: int, batch: int, seed: int, first: int, last: int, rank: int = 0, world: int = 1
    ) -> None:
        """Take the number of `windows`, the size of the `batch` over all ranks, and steps as step_order counts them."""
        self.windows, self.batch, self.seed, self.steps = windows, batch, seed, range(first, last)
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of a step's windows."""
        for step in self.steps:
            yield step_order(step, self.windows, self.batch, self.seed)[self.rank :: self.world].tolist()

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)


def loader(windows: Windows, share: Share, workers: int, device: torch.device) -> DataLoader:
    """Return an iterable of what `windows` has for each step of `share`, read ahead by `workers` processes."""
    return DataLoader(
        windows,
        sampler=share,
        batch_size=None,  # the sampler says what a batch is
        num_workers=workers,
        pin_memory=device.type == "cuda",  # so that copies to the GPU overlap with its work
        multiprocessing_context="fork" if workers else None,  # workers inherit the mapped files
        generator=torch.Generator(),  # else it draws from torch's own, on which the model's random numbers depend
    )


def evaluation(
    windows: Windows, size: int, rank: int = 0, world: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield inputs, targets and weights of up to EVALUATION windows spread over the text, up to `size` at once.

    Rank r takes windows r, r + world, …: none is counted twice. All ranks get batches of the same sizes, which a model
    in parts needs: where a rank has one window fewer than others, it repeats one, with weight 0. All else has weight 1.
    """
    spread = range(0, len(windows), -(-len(windows) // EVALUATION))
    mine, most = list(spread[rank::world]), -(-len(spread) // world)  # a rank has `most`, or one fewer
    for start in range(0, most, size):
        numbers = mine[start : start + size]
        weights = torch.ones(min(size, most - start), dtype=torch.float64)
        weights[len(numbers) :] = 0
        yield *windows[numbers + [0] * (len(weights) - len(numbers))], weights


def main() -> None:
    """Print who reads what."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", metavar="PATH", help="as for the training programs")
    for name, default, what in (
        ("ranks", 2, "among which a batch is divided"),
        ("global-batch", 8, "sequences per step, over all ranks"),
        ("context", 128, "bytes per sequence"),
        ("first-step", 1, "to show"),
        ("steps", 3, "to show"),
        ("seed", 0, "of the order"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    args = parser.parse_args()
    if min(args.ranks, args.global_batch, args.context, args.first_step, args.steps) < 1:
        parser.error("all but --seed count something: a whole number of at least 1")
    try:
        corpus = read_corpus(args.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    windows = Windows(corpus.train, args.context)
    per_epoch = len(windows) // args.global_batch
    if args.global_batch % args.ranks:
        parser.error(f"--global-batch {args.global_batch} is no multiple of --ranks {args.ranks}: make it one")
    if not per_epoch:
        parser.error(f"--global-batch {args.global_batch} is more than the {len(windows):,} windows of {corpus.name}")
    print(f"{corpus.name}: {len(windows):,} windows of {args.context} bytes, {per_epoch:,} steps per epoch")
    print("step  epoch  rank  windows")
    first = args.first_step - 1
    shares = [
        Share(len(windows), args.global_batch, args.seed, first, first + args.steps, rank, args.ranks)
        for rank in range(args.ranks)
    ]
    for step, rows in enumerate(zip(*shares), start=args.first_step):
        for rank, row in enumerate(rows):
            print(f"{step:4}  {(step - 1) // per_epoch:5}  {rank:4}  {' '.join(map(str, row))}")


if __name__ == "__main__":
    main()
