"""Checkpoints that survive: whole or not there at all, the last few kept, a torn one passed over. See README.md."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from lm import setup

PATTERN = "checkpoint-" + 8 * "[0-9]"
RUN_FILES = (f"{PATTERN}.*", "latest", "metrics.jsonl", "trace-*", "tensorboard", "wandb", "*.run-id")  # of a run
IN_USE = ".in-use"  # the lock of the folder; its content is the number of the job that last trained in it
CONTENT = ("step", "loss", "val_loss", "settings", "model", "optimizer")  # of a checkpoint
# An OSError that is the file's: it is gone, or was cut to 4 to 69 KiB (EINVAL of torch 2.13, 2026-11-29).
OF_FILE = (errno.ENOENT, errno.EINVAL)
# In an error of torch (2.13) that is the machine's and not the file's: memory is short, or the file server fails.
OF_MACHINE = ("can't allocate memory", "Cannot allocate memory", "unable to open file", "Input/output error")


def existing(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first; or the one that is given in place of the folder."""
    return [folder] if folder.is_file() else sorted(folder.glob(f"{PATTERN}.pt"), reverse=True)


def read_newest(folder: Path, mmap: bool) -> tuple[Path | None, dict[str, Any], list[Path]]:
    """Return the newest checkpoint that can be read, its content, and those that are torn, of which it warns.

    Returns None and {} if the folder has no checkpoint. Fails if all are torn, or if one could not be read for another
    reason. mmap: only what is used is read from the disk.
    """
    torn = []
    for path in existing(folder):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)  # a file cannot run code
            return path, {name: content[name] for name in CONTENT}, torn
        except Exception as error:  # noqa: BLE001 - a torn one fails in many ways
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
            if not is_of_file(error):
                setup.fail(
                    f"{path} is there, but could not be read ({reason}): try again once the machine can, or move it "
                    "away to go on from an older one"
                )
            if os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"warning: {path} is torn, or no checkpoint ({reason}): passed over", file=sys.stderr)
            torn.append(path)
    if torn:
        setup.fail(f"no checkpoint in {folder} is good: give another --out, or move these files away")
    return None, {}, []


class Checkpoints:
    """The checkpoints in a folder. All ranks load and save; rank 0 writes."""

    def __init__(self, folder: str, keep: int, settings: dict[str, Any], rank: int = 0) -> None:
        """Keep the newest `keep`. `settings`: those that must be equal for a run to go on from one."""
        self.folder, self.keep, self.settings, self.rank = Path(folder), keep, settings, rank
        # Ranks that wait for a checkpoint may have to wait for a slow disk, longer than for each other.
        is_alone = not dist.is_initialized()
        self.group = None if is_alone else dist.new_group(backend="gloo", timeout=timedelta(hours=2))

    def start(self, model: Module, optimizer: Optimizer, resume: bool) -> dict[str, Any]:
        """Return the step from which the run goes on, with its loss and validation loss. All ranks call.

        To resume, fill model and optimizer from the newest checkpoint that can be read. Without one, move
        what an earlier run has left into a folder of its own. Fails if the checkpoint is of another run, or if ranks
        see different ones or data.
        """
        self._lock()
        mmap = is_divided(next(model.parameters()))  # then a rank reads its own part alone
        path, state, torn = read_newest(self.folder, mmap) if resume else (None, {}, [])
        if self.group:
            dist.barrier(self.group)  # a rank may read for longer than --timeout
        step = state.get("step", 0)
        setup.require_same("data or checkpoints", f"{self.settings['data']}, to start after step {step}")
        if path:
            self._verify(path, state.pop("settings"))
        if self.rank == 0:
            if path is None:
                self._set_aside()
            # Only now: a job that was refused, or has died, must not own what the run before it has left here.
            os.ftruncate(self.lock, 0)
            os.pwrite(self.lock, os.environ.get("SLURM_JOB_ID", "").encode(), 0)
        if path is None:
            return {"step": 0, "loss": None, "val_loss": None}
        for damaged in torn if self.rank == 0 else ():
            if damaged.exists():  # renamed, or it would count as one of the newest, and a good one would be removed
                os.replace(damaged, next(p for n in count(1) if not (p := damaged.with_suffix(f".torn-{n}")).exists()))
                self._link_latest(path)
        weights, moments = state.pop("model"), state.pop("optimizer")
        fill(model, optimizer, weights, moments)
        return state

    def save(self, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        """Write the checkpoint of step state["step"]. All ranks call, and wait until it is written.

        It gets its name once it is whole and on the disk. If the disk does not take it, the part that was written is
        removed, and the error goes on.
        """
        weights = {name: self._whole(weight) for name, weight in model.state_dict().items()}
        moments = optimizer.state_dict()  # its dictionaries are the optimizer's own: not changed here
        whole = {number: {n: self._whole(v) for n, v in values.items()} for number, values in moments["state"].items()}
        content = {**state, "settings": self.settings, "model": weights, "optimizer": {**moments, "state": whole}}
        if self.rank == 0:
            for left in self.folder.glob(f"{PATTERN}.tmp"):  # by a crash
                left.unlink()
            temporary = self.folder / f"checkpoint-{state['step']:08d}.tmp"
            try:
                with temporary.open("wb") as file:
                    torch.save(content, file)
                    file.flush()
                    os.fsync(file.fileno())  # or the new name may survive a crash of the node and the content not
                self._publish(temporary)
            finally:
                temporary.unlink(missing_ok=True)  # what did not fit
        if self.group:
            dist.barrier(self.group)

    def _whole(self, value: Any) -> Any:
        """Return a tensor that train_fsdp.py has divided among the ranks, put together in the memory of rank 0.

        All ranks have to call. Any other value is returned as it is.
        """
        if not is_divided(value):
            return value
        whole = value.full_tensor()
        return whole.cpu() if self.rank == 0 else None

    def _set_aside(self) -> None:
        """Move what an earlier run has left into a folder previous-1, -2, …; metrics.jsonl may say why it died."""
        files = [path for name in RUN_FILES for path in self.folder.glob(name)]
        if files:
            aside = next(path for n in count(1) if not (path := self.folder / f"previous-{n}").exists())
            aside.mkdir()
            for path in files:
                os.replace(path, aside / path.name)
            print(f"before  an earlier run is now in {aside}; --resume goes on from a checkpoint")

    def _lock(self) -> None:
        """Keep other runs out of the folder until this process ends. Fail on all ranks if another run is in it."""
        try:  # on all ranks, so that each names what is wrong with the folder
            self.lock = os.open(self.folder / IN_USE, os.O_RDWR | os.O_CREAT, 0o666)  # never closed: that frees it
        except OSError as error:
            setup.fail(f"{error}: give another --out")
        is_in_use = False
        try:
            if self.rank == 0:
                fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # An earlier attempt of this job may hold it: its node may be dead, which the file server does not know yet.
            is_in_use = not is_own_run(self.folder)
        except OSError:  # a file system without locks
            pass
        if setup.sum_over_ranks(torch.tensor([float(is_in_use)])) > 0:
            setup.fail(f"{self.folder} is in use by another run: give another --out, or wait for the end of that run")

    def _verify(self, path: Path, settings: dict[str, Any]) -> None:
        """Fail if a checkpoint has other settings than this run."""
        differences = [
            f"--{name.replace('_', '-')} is {settings.get(name)} there and {here} here"
            for name, here in self.settings.items()
            if settings.get(name) != here
        ]
        if differences:
            what = f"{path} belongs to another run: {'; '.join(differences)}"
            setup.fail(f"{what}. Give the values of the checkpoint, or another --out")

    def _link_latest(self, path: Path) -> None:
        """Let the link `latest` name a checkpoint."""
        link = path.with_suffix(".tmp")
        link.unlink(missing_ok=True)  # left by a crash
        link.symlink_to(path.name)
        os.replace(link, self.folder / "latest")

    def _publish(self, temporary: Path) -> None:
        """Give a complete checkpoint its name. Remove those beyond `keep`."""
        path = temporary.with_suffix(".pt")
        os.replace(temporary, path)
        self._link_latest(path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # names are the folder's content
        os.close(folder)
        for old in existing(self.folder)[self.keep :]:
            old.unlink()


def fill(model: Module, optimizer: Optimizer, weights: dict[str, Any], moments: dict[str, Any]) -> None:
    """Fill model and optimizer from what one process would have, or this rank's parts of them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if is_divided(parameters[0]):
        parts = model.state_dict()
        weights = {name: part_like(parts[name], weight) for name, weight in weights.items()}
        for number, values in moments["state"].items():
            values.update({name: part_like(parameters[number], value) for name, value in values.items()})
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)


def is_divided(value: Any) -> bool:
    """Return whether train_fsdp.py has divided a tensor among the ranks. torch calls that a DTensor."""
    return hasattr(value, "full_tensor")


def part_like(tensor: torch.Tensor, whole: Any) -> Any:
    """Return a value divided as a tensor is. A buffer and a number, as the optimizer's count of steps, stay whole."""
    if not is_divided(tensor) or getattr(whole, "shape", None) != tensor.shape:
        return whole
    divided = torch.empty_like(tensor)
    parts = whole.chunk(dist.get_world_size())  # as fully_shard divides it
    if dist.get_rank() < len(parts):  # a small tensor has fewer parts than there are ranks
        divided.to_local().copy_(parts[dist.get_rank()])
    return divided


def is_of_file(error: BaseException | None) -> bool:
    """Return whether an error while a checkpoint is read can come from the file itself: it is torn.

    It does not if memory is short, or if the file system fails: a server that is away for a moment, a folder whose
    group has changed. Then the checkpoint is as good as before.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in OF_FILE):
            return False
        if any(text in str(error) for text in OF_MACHINE):
            return False
        error = error.__cause__ or error.__context__
    return True


def is_own_run(folder: Path) -> bool:
    """Return whether an earlier attempt of this job has trained in a folder: this attempt then goes on with its run.

    The submit script counts attempts in RESTART_COUNT, and Slurm in SLURM_RESTART_COUNT.
    """
    job = os.environ.get("SLURM_JOB_ID")
    restarts = os.environ.get("RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT") or "0"
    with suppress(OSError):  # no run has begun there
        return bool(job) and restarts != "0" and (folder / IN_USE).read_text() == job
    return False
