"""Checkpoints that survive: whole or not there at all, the last few kept, a damaged one passed over.

A checkpoint is `checkpoint-00000200.pt`, a file that torch.load reads; of train_fsdp.py a folder of that name without
`.pt`. It has model, optimizer, and what else a run needs to go on exactly. `latest` is a link to the newest.
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


class Foreign(ValueError):
    """There are checkpoints that this run cannot go on from; the message is in words for the user."""


def occupied(folder: str, patience: float) -> str:
    """Take a folder for this process, until that ends; return '', or who still has it after `patience` seconds.

    An earlier attempt of the same job does not count: its node may be dead, and nobody have told the file server yet.
    """
    job = f"job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else "a process"
    file = os.open(Path(folder, ".in-use"), os.O_RDWR | os.O_CREAT, 0o666)  # for good: closing it gives the folder back
    for _ in range(1 + int(2 * patience)):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file, f"{job} on {socket.gethostname()}".ljust(1000).encode(), 0)  # over all that stands there
            return ""
        except (BlockingIOError, PermissionError):
            holder = os.pread(file, 1000, 0).decode().strip() or "another"
        except OSError:  # a file system without locks
            return ""
        if "SLURM_RESTART_COUNT" in os.environ and holder.startswith(f"{job} on "):
            return ""
        time.sleep(0.5)
    return holder


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


class Checkpoints:
    """The checkpoints in a folder. Any number of ranks load, one saves."""

    suffix, first = ".pt", True  # of their names; whether this rank gives what is written its name

    def __init__(self, folder: str, keep: int, settings: dict[str, Any]) -> None:
        """Keep the newest `keep`. `settings`: numbers and strings that must be equal for a run to go on from one."""
        self.folder, self.keep, self.settings = Path(folder), keep, settings

    def there(self) -> list[Path]:
        """Return what is there, newest first."""
        return sorted([*self.folder.glob(PATTERN), *self.folder.glob(f"{PATTERN}.pt")], reverse=True)

    def newest_settings(self) -> dict[str, Any]:
        """Return the settings of the newest checkpoint of either kind, without reading its weights; {} if none is good.

        Passes over what cannot be read without a word: load() warns of it.
        """
        for path in self.there():
            with suppress(Exception):  # a torn one fails in many ways
                if path.is_dir():
                    return json.loads((path / "run.json").read_text())["settings"]
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["settings"]
        return {}

    def load(self, model: Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Fill model and optimizer from the newest good checkpoint, and return what else is in it; None if none is.

        Warns of each that cannot be read. Raises Foreign if it is another run's, or if there are some and none is good.
        """
        for path in self.there():
            try:
                return self._read(path, model, optimizer)
            except BaseException as error:  # a torn one fails in many ways (zip, pickle, end of file, DCP's own kind)
                if isinstance(error, (Foreign, KeyboardInterrupt, MemoryError, torch.cuda.OutOfMemoryError)):
                    raise  # no fault of the file
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"warning: {path} is torn, or no checkpoint ({reason}): passed over", file=sys.stderr)
        if self.there():
            raise Foreign(f"no checkpoint in {self.folder} is good: give another --out, or start without --resume")
        return None

    def save(self, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        """Write all, as state["step"]; whenever the power fails, it is whole or has another name.

        Raises OSError if the disk does not take it; what was written of it is removed.
        """
        path, temporary = (self.folder / f"checkpoint-{state['step']:08d}{end}" for end in (self.suffix, ".tmp"))
        if self.first:
            _remove(temporary)  # of a run that died while it wrote
        try:
            self._write(temporary, {**state, "settings": self.settings}, model, optimizer)
            if self.first:
                self._publish(temporary, path)
        finally:
            if self.first:
                _remove(temporary)  # of what did not fit

    def set_aside(self) -> Path:
        """Move an earlier run's files into a folder previous-1, -2, …, and return it."""
        aside = next(path for n in count(1) if not (path := self.folder / f"previous-{n}").exists())
        aside.mkdir()
        for path in (*self.there(), *self.folder.glob("latest"), *self.folder.glob("metrics.jsonl")):
            os.replace(path, aside / path.name)
        return aside

    def _verify(self, path: Path, state: dict[str, Any]) -> None:
        there = state["settings"]
        other = [f"{k} is {there.get(k)} there and {v} here" for k, v in self.settings.items() if there.get(k) != v]
        if other:
            raise Foreign(f"{path} belongs to another run: {'; '.join(other)}. Use its values, or give another --out")

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
        except RuntimeError as error:  # where the disk is full torch fails once more, with a message that hides it
            raise error.__context__ or error from None

    def _publish(self, temporary: Path, path: Path) -> None:
        """Give what is complete its name; remove what need not be kept."""
        _remove(path)  # a torn one that was passed over: a folder cannot be replaced
        os.replace(temporary, path)
        temporary.symlink_to(path.name)
        os.replace(temporary, self.folder / "latest")
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # names are the folder's content
        os.close(folder)
        kept = [old for old in self.there() if old <= path][: self.keep]  # what is newer was passed over
        for old in {*self.there(), *self.folder.glob(f"{PATTERN}.tmp")}.difference(kept):
            _remove(old)


class ShardedCheckpoints(Checkpoints):
    """The same for a model that is divided among ranks (FSDP): a folder to which each writes its part. All ranks call.

    The parts fit any number of ranks (torch.distributed.checkpoint); run.json has the rest. `group` serves to wait.
    """

    suffix = ""

    def __init__(self, folder: str, keep: int, settings: dict[str, Any], group: dist.ProcessGroup) -> None:
        """Wait for other ranks in `group`."""
        import torch.distributed.checkpoint.state_dict  # half a second that the other programs do without

        super().__init__(folder, keep, settings)
        torch.zeros(1).numpy()  # torch.distributed.checkpoint needs NumPy: better said now than at the first save
        self.group, self.dcp, self.first = group, torch.distributed.checkpoint, dist.get_rank() == 0

    def _read(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        state = json.loads((path / "run.json").read_text())
        self._verify(path, state)
        weights, moments = self.dcp.state_dict.get_state_dict(model, optimizer)
        self.dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=path, process_group=self.group)
        self.dcp.state_dict.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return state

    def _write(self, path: Path, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        if self.first:
            path.mkdir()
            with (path / "run.json").open("w") as file:
                print(json.dumps(state, indent=1), file=file, flush=True)
                os.fsync(file.fileno())
        dist.barrier(self.group)
        weights, moments = self.dcp.state_dict.get_state_dict(model, optimizer)
        # With fsync.
        self.dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path, process_group=self.group)
