"""Checkpoints that survive: whole or not there at all, the last few kept, a torn one passed over.

A checkpoint is `checkpoint-00000200.pt`, a file that torch.load reads. That of train_fsdp.py is a folder of this name
without `.pt`, see shards.py. It has model, optimizer, and what else a run needs to go on exactly. `latest` is a link to
the newest.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from lm import setup

PATTERN = "checkpoint-" + 8 * "[0-9]"
PAUSES = (1, 10)  # seconds between the attempts to read a checkpoint, if the file system fails
# No faults of the file system: a part of a checkpoint is missing, or it is of the other kind, a file or a folder.
ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Of the host in an error of torch (2.13); of the C library, where torch maps a file; of a rank, in an error of DCP.
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "MemoryError")
RUN_FILES = ("latest", "unreadable-*", "metrics.jsonl", "trace-*", "tensorboard", "wandb", "*.run-id")  # of a run


class IncompatibleCheckpoint(ValueError):
    """There are checkpoints, but this run cannot go on from them. The message is in words for the user."""


def existing(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    return sorted([*folder.glob(PATTERN), *folder.glob(f"{PATTERN}.pt")], reverse=True)


def newest_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the newest checkpoint that can be read, without its weights; {} if there is none."""
    for path in existing(folder):
        with suppress(Exception):  # a torn one fails in many ways, and load() warns of it
            if path.is_dir():
                return json.loads((path / "run.json").read_text())["settings"]
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["settings"]
    return {}


class Checkpoints:
    """The checkpoints in a folder. All ranks load, rank 0 saves."""

    suffix = ".pt"  # of their names

    def __init__(self, folder: str, keep: int, settings: dict[str, Any], rank: int = 0) -> None:
        """Keep the newest `keep`. `settings`: numbers and strings that must be equal for a run to go on from one."""
        self.folder, self.keep, self.settings, self.rank = Path(folder), keep, settings, rank
        self.torn: list[Path] = []  # what load() has passed over

    def start(self, model: Module, optimizer: Optimizer, resume: bool) -> dict[str, Any]:
        """Return the step from which the run goes on, with its loss and validation loss. All ranks call.

        To resume, fill model and optimizer from the newest checkpoint. Otherwise, and without a checkpoint, move the
        files of an earlier run aside. Fails on all ranks if they see different data or checkpoints.
        """
        self._lock()
        newest = next((path.name for path in existing(self.folder)), "none")
        setup.require_same("data or checkpoints", f"{self.settings['corpus']}, newest checkpoint {newest}")
        if resume:
            try:
                state = self.load(model, optimizer)
            except IncompatibleCheckpoint as error:
                setup.fail(str(error))
            setup.require_same("checkpoint to start from", f"step {state['step'] if state else 0}")
            if state:
                return state
        if self.rank == 0:
            metrics = self.folder / "metrics.jsonl"  # without a checkpoint it may say why that run died
            if newest != "none" or (metrics.exists() and metrics.stat().st_size):
                print(f"before  an earlier run is now in {self.set_aside()}; --resume goes on from a checkpoint")
        return {"step": 0, "loss": None, "val_loss": None}

    def load(self, model: Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Fill model and optimizer from the newest checkpoint that can be read, and return what else is in it.

        Returns None if the folder has no checkpoint. Warns of each that is torn, and the next save() moves it away.
        Raises IncompatibleCheckpoint if the newest of the others belongs to another run, if there is no other, or if
        the file system does not give one.
        """
        paths = existing(self.folder)
        for path in paths:
            try:
                return self._read_patiently(path, model, optimizer)
            except BaseException as error:  # a torn one fails in many ways, and what DCP raises is no Exception
                if not is_of_torn_file(error):
                    raise
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"warning: {path} is torn, or no checkpoint ({reason}): passed over", file=sys.stderr)
                self.torn.append(path)
        if paths:
            raise IncompatibleCheckpoint(
                f"no checkpoint in {self.folder} is good: give another --out, or start without --resume"
            )
        return None

    def save(self, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        """Write the checkpoint of step state["step"]. It gets that name once it is whole and on the disk.

        If the disk does not take it, the part that was written is removed, and the error goes on.
        """
        path, temporary = (self.folder / f"checkpoint-{state['step']:08d}{end}" for end in (self.suffix, ".tmp"))
        if self.rank == 0:
            remove(temporary)  # of a run that died while it wrote
        try:
            self._write(temporary, {**state, "settings": self.settings}, model, optimizer)
            if self.rank == 0:
                self._publish(temporary, path)
        finally:
            if self.rank == 0:
                remove(temporary)  # of what did not fit

    def set_aside(self) -> Path:
        """Move an earlier run's files into a folder previous-1, -2, …, and return it."""
        others = [path for name in RUN_FILES for path in self.folder.glob(name)]
        return self._move([*existing(self.folder), *others], "previous")

    def _move(self, paths: list[Path], name: str) -> Path:
        aside = next(path for n in count(1) if not (path := self.folder / f"{name}-{n}").exists())
        aside.mkdir()
        for path in paths:
            os.replace(path, aside / path.name)
        return aside

    def _lock(self) -> None:
        """Keep other jobs out of the folder until this process ends. Fail on all ranks if another job holds it."""
        holder = acquire_lock(self.folder) if self.rank == 0 else ""
        if setup.sum_over_ranks(torch.tensor([float(holder != "")])) > 0:
            setup.fail(f"{self.folder} is in use by {holder or 'another run'}: give another --out, or wait for its end")

    def _verify(self, path: Path, state: dict[str, Any]) -> None:
        """Raise IncompatibleCheckpoint if the checkpoint has other settings than this run."""
        there = state["settings"]
        differences = [
            f"{name} is {there.get(name)} there and {here} here"
            for name, here in self.settings.items()
            if there.get(name) != here
        ]
        if differences:
            raise IncompatibleCheckpoint(
                f"{path} belongs to another run: {'; '.join(differences)}. Use its values, or give another --out"
            )

    def _read_patiently(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        """Read a checkpoint, again if the file system fails. Raises IncompatibleCheckpoint if it does not recover."""
        for pause in (*PAUSES, None):
            try:
                return self._read(path, model, optimizer)
            except BaseException as error:
                reason = file_system_error(error)
                if reason is None:
                    raise
                if pause is None:
                    raise IncompatibleCheckpoint(
                        f"{path} is there, but could not be read ({reason}): try again once the file system gives it, "
                        "or move it away to go on from an older one"
                    ) from error
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        state = torch.load(path, map_location="cpu", weights_only=True)  # weights_only: a file cannot run code
        self._verify(path, state)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        return state

    def _write(self, path: Path, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        try:
            with path.open("wb") as file:
                torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())  # or the new name may survive a crash of the node and the content not
        except RuntimeError as error:
            # On a full disk torch.save raises an OSError and then, as it closes the file, a RuntimeError that hides it.
            raise file_system_error(error) or error from None

    def _publish(self, temporary: Path, path: Path) -> None:
        """Give a complete checkpoint its name. Remove those beyond `keep`, and what crashes have left."""
        torn = [torn for torn in self.torn if torn.exists()]
        if torn:
            self._move(torn, "unreadable")  # what is wrong with them is not known
        self.torn = []
        if path.is_dir():  # os.replace() puts a file in the place of a file, and no folder
            remove(path)
        os.replace(temporary, path)
        temporary.symlink_to(path.name)
        os.replace(temporary, self.folder / "latest")
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # names are the folder's content
        os.close(folder)
        for old in (*existing(self.folder)[self.keep :], *self.folder.glob(f"{PATTERN}.tmp")):
            remove(old)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_of_torn_file(error: BaseException) -> bool:
    """Return whether an error while a checkpoint is read can come from the file itself."""
    if isinstance(error, (IncompatibleCheckpoint, ImportError, SystemExit, KeyboardInterrupt)):
        return False
    lacks_memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    return not lacks_memory and not any(text in str(error) for text in NO_MEMORY)


def file_system_error(error: BaseException) -> OSError | None:
    """Return the error of the file system behind an error, or None: then the file itself may be torn.

    A file server that is away for a moment, a folder whose group has changed: the checkpoint is as good as before.
    """
    # An error of DCP has those of the ranks, each with its traceback.
    of_ranks = [failure[0] for failure in getattr(error, "failures", {}).values()]
    reasons: list[BaseException | None] = [error, *of_ranks]
    for reason in reasons:
        if isinstance(reason, OSError) and not isinstance(reason, ABSENT):
            return reason
        if reason is not None:
            reasons.append(reason.__cause__ or reason.__context__)
    return None


def acquire_lock(folder: Path) -> str:
    """Lock a folder for this process, until it ends. Return '', or who holds the lock.

    Two cases return '' without the lock. The file system may have no locks. And an earlier attempt of this job may hold
    it: its node may be dead, which the file server does not know yet.
    """
    job = f"job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else "a process"
    file = os.open(folder / ".in-use", os.O_RDWR | os.O_CREAT, 0o666)  # never closed: that would free the lock
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.pread(file, 1000, 0).decode().strip() or "another"
        is_own = os.environ.get("RESTART_COUNT", "0") != "0" and holder.startswith(f"{job} on ")
        return "" if is_own else holder
    except OSError:  # a file system without locks
        return ""
    os.pwrite(file, f"{job} on {socket.gethostname()}".ljust(1000).encode(), 0)  # over an earlier holder's name
    return ""
