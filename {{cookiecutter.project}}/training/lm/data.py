"""Text as bytes, and who reads which part of it at which step.

    python training/data.py --ranks 4 --global-batch 8        which samples each rank reads in the first steps

To train on your own text, give the programs `--data FILE_OR_FOLDER`. For something that is not text, replace
`read_corpus`. It returns a Corpus: two datasets that map a list of sample numbers to a batch, inputs and targets, and a
checksum. `sample_indices` decides which rank reads which sample. It needs the number of samples and nothing else.
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


def sample_indices(
    samples: int, batch: int, seed: int, first_step: int, last_step: int, rank: int = 0, world_size: int = 1
) -> Iterator[list[int]]:
    """Yield, for each step after `first_step` up to `last_step`, the numbers of the samples that a rank reads.

    samples: how many there are. batch: how many all ranks read in a step.

    The numbers are a function of the step alone. So the batch of all ranks is the same for any number of them, no
    sample is read twice in an epoch, and a resumed run goes on in the middle of one. The samples left over at the end
    of an epoch, fewer than a batch, are left out. The next epoch leaves out others.
    """
    steps_per_epoch = samples // batch
    shuffled_epoch = None
    for step in range(first_step, last_step):
        epoch, step_of_epoch = divmod(step, steps_per_epoch)
        if epoch != shuffled_epoch:
            order = shuffled(samples, seed, epoch)
            shuffled_epoch = epoch
        of_all_ranks = order[step_of_epoch * batch : (step_of_epoch + 1) * batch]
        yield of_all_ranks[rank::world_size].tolist()


def shuffled(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the numbers of all samples, int64 [samples], in another order for each seed and epoch."""
    # One number below 2**32 from both: torch's CPU generator ignores the upper half of a longer seed.
    generator = torch.Generator().manual_seed((seed + 1_000_003 * epoch) % 2**32)
    return torch.randperm(samples, generator=generator)


def data_loader(
    samples: Dataset, indices: Iterator[list[int]], workers: int | None, device: torch.device
) -> Iterator[list[torch.Tensor]]:
    """Yield the batch of each list of sample numbers, inputs and targets, on the device.

    workers: processes that read ahead. None: on a GPU by the cores of this rank, on a CPU none, as its cores compute.
    """
    if workers is None:  # torch has a thread per core of the rank: the launchers set OMP_NUM_THREADS
        workers = min(4, torch.get_num_threads() - 1) if device.type == "cuda" else 0
    batches = DataLoader(
        samples,
        batch_size=None,  # the sampler says what a batch is
        sampler=indices,
        num_workers=workers,
        pin_memory=device.type == "cuda",  # so that copies to the GPU overlap with its work
        multiprocessing_context="fork" if workers else None,  # forked workers inherit the mapped file
    )
    for batch in batches:
        yield [tensor.to(device, non_blocking=True) for tensor in batch]


def main() -> None:
    """Print which samples each rank reads in the first steps, counted from 1."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", metavar="PATH", help="text (default: sources of Python's library)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="number of ranks (default: %(default)s)")
    parser.add_argument(
        "--global-batch",
        type=int,
        default=8,
        metavar="N",
        help="samples per step, over all ranks (default: %(default)s)",
    )
    parser.add_argument("--context", type=int, default=128, metavar="N", help="bytes per sample (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed of the order of samples (default: %(default)s)"
    )
    parser.add_argument(
        "--first-step", type=int, default=1, metavar="N", help="first step to print (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps to print (default: %(default)s)")
    args = parser.parse_args()
    for name in ("ranks", "global_batch", "context", "first_step", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)} has to be above 0")
    try:
        corpus = read_corpus(args.data, args.context)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    batch, samples = args.global_batch, len(corpus.train)
    if not args.ranks <= batch <= samples:
        parser.error(
            f"--global-batch {batch} has to be at least --ranks {args.ranks} and at most {samples}, all samples"
        )
    if batch % args.ranks:
        parser.error(
            f"--global-batch {batch} cannot be shared equally by {args.ranks} ranks: choose a multiple of {args.ranks}"
        )
    steps_per_epoch = samples // batch
    print(f"{corpus.name}: {samples:,} samples of {args.context} bytes, {steps_per_epoch:,} steps per epoch")
    print("step  epoch  rank  samples")
    before = args.first_step - 1
    ranks = [
        sample_indices(samples, batch, args.seed, before, before + args.steps, rank, args.ranks)
        for rank in range(args.ranks)
    ]
    for step, lists in enumerate(zip(*ranks), start=args.first_step):
        for rank, numbers in enumerate(lists):
            print(f"{step:4}  {(step - 1) // steps_per_epoch:5}  {rank:4}  {' '.join(map(str, numbers))}")


if __name__ == "__main__":
    main()
