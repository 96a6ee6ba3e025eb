"""Checkpoints that survive: whole or not there at all, the last few kept, a damaged one passed over.

A checkpoint is `checkpoint-00000200.pt`, a file that torch.load reads. That of train_fsdp.py is a folder of this name
without `.pt`. It has model, optimizer, and what else a run needs to go on exactly. `latest` is a link to the newest.
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
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

PATTERN = "checkpoint-" + 8 * "[0-9]"
PATIENCE = (1, 10)  # seconds between the attempts to read a checkpoint, if the file system fails
# No faults of the file system: a part of a checkpoint is missing, or it is of the other kind, a file or a folder.
ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
RUN_FILES = (
    "latest",
    "unreadable-*",
    "metrics.jsonl",
    "trace-*",
    "tensorboard",
    "wandb",
)  # of a run, beside its checkpoints


class IncompatibleCheckpoint(ValueError):
    """There are checkpoints, but this run cannot go on from them. The message is in words for the user."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that the host or the GPU has too little memory: a checkpoint is not torn by that.

    Torch says so of the host in the text of a RuntimeError, and DCP has the ranks' errors in the text of its own.
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    texts = (
        "can't allocate memory",  # torch's allocator, 2.13
        "Cannot allocate memory",  # the C library, where torch maps a file
        "MemoryError",  # an error of a rank, in DCP's text
    )
    return any(text in str(error) for text in texts)


def failed_read(error: BaseException) -> OSError | None:
    """Return the error of the file system behind an error, or None: then the file itself may be torn.

    A file server that is away for a moment, a folder whose group has changed: the checkpoint is as good as before.
    """
    reasons, seen = [error], []
    while reasons:
        reason = reasons.pop()
        if isinstance(reason, OSError) and not isinstance(reason, ABSENT):
            return reason
        seen.append(reason)
        # An error of DCP has those of the ranks, each with its traceback.
        of_ranks = [failure[0] for failure in getattr(reason, "failures", {}).values()]
        behind = (reason.__cause__, reason.__context__, *of_ranks)
        reasons += [other for other in behind if other is not None and other not in seen]
    return None


def acquire_lock(folder: str, patience: float) -> str:
    """Lock a folder for this process, until it ends. Return '', or who still holds the lock after `patience` seconds.

    Two cases return '' without the lock. The file system may have no locks. And an earlier attempt of this job may hold
    it: its node may be dead, which the file server does not know yet.
    """
    job = f"job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else "a process"
    file = os.open(Path(folder, ".in-use"), os.O_RDWR | os.O_CREAT, 0o666)  # never closed: that would free the lock
    for _ in range(1 + int(2 * patience)):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file, f"{job} on {socket.gethostname()}".ljust(1000).encode(), 0)  # over an earlier holder's name
            return ""
        except (BlockingIOError, PermissionError):
            holder = os.pread(file, 1000, 0).decode().strip() or "another"
        except OSError:  # a file system without locks
            return ""
        if os.environ.get("RESTART_COUNT", "0") != "0" and holder.startswith(f"{job} on "):
            return ""
        time.sleep(0.5)
    return holder


def _numbered(name: str) -> Path:
    """Return NAME-1, or NAME-2, …: the first that is not there."""
    return next(path for n in count(1) if not (path := Path(f"{name}-{n}")).exists())


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if not path.suffix:  # a crash may leave a part of the folder, which must not have a checkpoint's name
        leaving = path.with_suffix(".old")
        shutil.rmtree(leaving, ignore_errors=True)  # of such a crash
        path = path.rename(leaving)
    shutil.rmtree(path)


class Checkpoints:
    """The checkpoints in a folder. Any number of ranks load, one saves."""

    suffix = ".pt"  # of their names
    is_writer = True  # one rank gives checkpoints their names and removes old ones

    def __init__(self, folder: str, keep: int, settings: dict[str, Any]) -> None:
        """Keep the newest `keep`. `settings`: numbers and strings that must be equal for a run to go on from one."""
        self.folder, self.keep, self.settings = Path(folder), keep, settings
        self.passed_over: list[Path] = []  # by load(), because they are torn

    def existing(self) -> list[Path]:
        """Return the checkpoints in the folder, newest first."""
        return sorted([*self.folder.glob(PATTERN), *self.folder.glob(f"{PATTERN}.pt")], reverse=True)

    def newest_settings(self) -> dict[str, Any]:
        """Return the settings of the newest checkpoint of either kind, without reading its weights; {} if none is good.

        Silently passes over what cannot be read: load() warns of it.
        """
        for path in self.existing():
            with suppress(Exception):  # a torn one fails in many ways
                if path.is_dir():
                    return json.loads((path / "run.json").read_text())["settings"]
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["settings"]
        return {}

    def load(self, model: Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Fill model and optimizer from the newest checkpoint that can be read, and return what else is in it.

        Returns None if the folder has no checkpoint. Warns of each that is torn, and the next save() moves it away.
        Raises IncompatibleCheckpoint if the newest of the others belongs to another run, if there is no other, or if
        the file system does not give one.
        """
        for path in self.existing():
            try:
                return self._read_patiently(path, model, optimizer)
            except BaseException as error:  # a torn one fails in many ways, and what DCP raises is no Exception
                ends = (SystemExit, KeyboardInterrupt)
                if isinstance(error, (IncompatibleCheckpoint, ImportError, *ends)) or lacks_memory(error):
                    raise  # no fault of the file
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"warning: {path} is torn, or no checkpoint ({reason}): passed over", file=sys.stderr)
                self.passed_over.append(path)
        if self.existing():
            raise IncompatibleCheckpoint(
                f"no checkpoint in {self.folder} is good: give another --out, or start without --resume"
            )
        return None

    def save(self, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        """Write the checkpoint of step state["step"]. It gets that name once it is whole and on the disk.

        If the disk does not take it, the part that was written is removed. The error is an OSError, or of a sharded
        checkpoint DCP's CheckpointException.
        """
        path, temporary = (self.folder / f"checkpoint-{state['step']:08d}{end}" for end in (self.suffix, ".tmp"))
        if self.is_writer:
            _remove(temporary)  # of a run that died while it wrote
        try:
            self._write(temporary, {**state, "settings": self.settings}, model, optimizer)
            if self.is_writer:
                self._publish(temporary, path)
        finally:
            if self.is_writer:
                _remove(temporary)  # of what did not fit

    def set_aside(self) -> Path:
        """Move an earlier run's files into a folder previous-1, -2, …, and return it."""
        aside = _numbered(f"{self.folder}/previous")
        aside.mkdir()
        others = [path for name in RUN_FILES for path in self.folder.glob(name)]
        for path in (*self.existing(), *others):
            os.replace(path, aside / path.name)
        return aside

    def _keep_torn(self) -> None:
        """Move what load() has passed over into a folder unreadable-1, -2, …: what is wrong with it is not known."""
        torn = [path for path in self.passed_over if path.exists()]
        self.passed_over = []
        if torn:
            aside = _numbered(f"{self.folder}/unreadable")
            aside.mkdir()
            for path in torn:
                os.replace(path, aside / path.name)

    def _verify(self, path: Path, state: dict[str, Any]) -> None:
        """Raise IncompatibleCheckpoint if the checkpoint has other settings than this run."""
        differences = []
        for name, here in self.settings.items():
            there = state["settings"].get(name)
            if there != here:
                differences.append(f"{name} is {there} there and {here} here")
        if differences:
            raise IncompatibleCheckpoint(
                f"{path} belongs to another run: {'; '.join(differences)}. Use its values, or give another --out"
            )

    def _read_patiently(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        """Read a checkpoint, again if the file system fails. Raises IncompatibleCheckpoint if it does not recover."""
        for pause in (*PATIENCE, None):
            try:
                return self._read(path, model, optimizer)
            except BaseException as error:
                reason = failed_read(error)
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
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    def _publish(self, temporary: Path, path: Path) -> None:
        """Give a complete checkpoint its name. Remove those beyond `keep`, and what crashes have left."""
        self._keep_torn()
        if path.is_dir() or temporary.is_dir():  # os.replace() puts a file in the place of a file, and no folder
            _remove(path)
        os.replace(temporary, path)
        temporary.symlink_to(path.name)
        os.replace(temporary, self.folder / "latest")
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # names are the folder's content
        os.close(folder)
        leftovers = [*self.folder.glob(f"{PATTERN}.tmp"), *self.folder.glob(f"{PATTERN}.old")]  # of a crash
        for old in (*self.existing()[self.keep :], *leftovers):
            _remove(old)


class ShardedCheckpoints(Checkpoints):
    """The same for a model that is divided among ranks (FSDP): a folder to which each writes its part. All ranks call.

    The parts fit any number of ranks: torch.distributed.checkpoint (DCP) reads and writes them. run.json has the state,
    such as the step, and the settings.
    """

    suffix = ""

    def __init__(self, folder: str, keep: int, settings: dict[str, Any], group: dist.ProcessGroup) -> None:
        """Take the group in which ranks wait for each other, with a timeout that is long enough for a slow disk."""
        import shards  # imports torch.distributed.checkpoint: half a second that the other programs do without
        import torch.distributed.checkpoint.state_dict

        super().__init__(folder, keep, settings)
        torch.zeros(1).numpy()  # torch.distributed.checkpoint needs NumPy: better said now than at the first save
        self.group, self.dcp, self.shards = group, torch.distributed.checkpoint, shards
        self.is_writer = dist.get_rank() == 0

    def _read(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        state = json.loads((path / "run.json").read_text())
        self._verify(path, state)
        weights, moments = self.dcp.state_dict.get_state_dict(model, optimizer)
        self.shards.load({"model": weights, "optimizer": moments}, path, self.group)
        self.dcp.state_dict.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return state

    def _write(self, path: Path, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        if self.is_writer:
            path.mkdir()
            with (path / "run.json").open("w") as file:
                print(json.dumps(state, indent=1), file=file, flush=True)
                os.fsync(file.fileno())
        dist.barrier(self.group)
        weights, moments = self.dcp.state_dict.get_state_dict(model, optimizer)
        # It calls fsync for each of its files.
        self.dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path, process_group=self.group)
