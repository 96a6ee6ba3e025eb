"""Checkpoints that survive: whole or not there at all, the last few kept, a damaged one passed over.

A checkpoint is `checkpoint-00000200.pt`, a file that torch.load reads; of train_fsdp.py a folder of that name without
`.pt`. It has model, optimizer, and what else a run needs to go on exactly. `latest` is a link to the newest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FORMAT = "training, 2"  # stands in each checkpoint: what does not have it was written by something else
PATTERN = "checkpoint-" + 8 * "[0-9]"


class Foreign(ValueError):
    """There are checkpoints that this run cannot go on from; the message is in words for the user."""


def occupied(folder: str, patience: float) -> str:
    """Take a folder for this process, until that ends; return '', or who still has it after `patience` seconds.

    An earlier attempt of the same job does not count: its node may be dead, and nobody have told the file server yet.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID", "").split(".")  # JOBID.ATTEMPT.PORT, by launch/
    job, attempt = (run[0], int(run[1])) if len(run) == 3 and run[0].isdigit() else ("", 0)
    file = os.open(Path(folder, ".in-use"), os.O_RDWR | os.O_CREAT, 0o666)  # for good: closing it gives the folder back
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                return ""
        holder = {"host": "?", "job": "", "attempt": 0} | json.loads(os.pread(file, 1000, 0) or "{}")
        if job and holder["job"] == job and holder["attempt"] < attempt:
            return ""
        if time.monotonic() > end:
            return f"{'job ' + holder['job'] if holder['job'] else 'a process'} on {holder['host']}"
        time.sleep(0.5)
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps({"host": socket.gethostname(), "job": job, "attempt": attempt}).encode(), 0)
    return ""


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class Checkpoints:
    """The checkpoints in a folder. Any number of ranks load, one saves."""

    def __init__(self, folder: str, keep: int, settings: dict[str, Any]) -> None:
        """Keep the newest `keep`. `settings`: numbers and strings that must be equal for a run to go on from one."""
        self.folder, self.keep, self.settings = Path(folder), keep, settings

    def there(self) -> list[Path]:
        """Return what is there, newest first."""
        return sorted([*self.folder.glob(PATTERN), *self.folder.glob(f"{PATTERN}.pt")], reverse=True)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Fill model and optimizer from the newest good checkpoint, and return what else is in it; None if none is.

        Warns of each that cannot be read. Raises Foreign if it is another run's, or if there are some and none is good.
        """
        for path in self.there():
            try:
                return self._read(path, model, optimizer)
            except Foreign:
                raise
            except Exception as error:  # a torn file fails in many ways (zip, pickle, end of file)
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"warning: {path} is torn, or no checkpoint ({reason}): passed over", file=sys.stderr)
        if self.there():
            raise Foreign(f"no checkpoint in {self.folder} is good: give another --out, or start without --resume")
        return None

    def save(self, state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write all, as state["step"]; whenever the power fails, the file is whole or has another name.

        Raises OSError if the disk does not take it; what was written of it is removed.
        """
        path = self.folder / f"checkpoint-{state['step']:08d}.pt"
        temporary = path.with_suffix(".tmp")
        whole = {"format": FORMAT, "settings": self.settings, **state}
        _remove(temporary)  # a folder, of train_fsdp.py
        try:
            with temporary.open("wb") as file:
                torch.save({**whole, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())  # or the new name may survive a crash of the node and the content not
        except (OSError, RuntimeError) as error:
            _remove(temporary)
            reason = error.__context__ if isinstance(error.__context__, OSError) else error  # torch fails once more
            raise OSError(f"{path} could not be written ({reason}); the checkpoints before it are whole") from None
        self._publish(path)

    def set_aside(self) -> Path | None:
        """Move an earlier run's files into a folder previous-1, -2, …, and return it; None if there is none to move."""
        left = self.there()
        if not left:
            return None
        taken = [int(name) for name in (path.name[9:] for path in self.folder.glob("previous-*")) if name.isdigit()]
        aside = self.folder / f"previous-{max(taken, default=0) + 1}"
        aside.mkdir()
        for path in (*left, *self.folder.glob("latest"), *self.folder.glob("metrics.jsonl")):
            os.replace(path, aside / path.name)
        return aside

    def _read(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        if path.is_dir():
            raise Foreign(f"{path} was written by train_fsdp.py: continue with that, or give another --out")
        state = torch.load(path, map_location="cpu", weights_only=True)  # weights_only: a file cannot run code
        self._verify(path, state)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        return state

    def _verify(self, path: Path, state: dict[str, Any]) -> None:
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r} and not {FORMAT!r}")
        other = [
            f"{name} is {state['settings'].get(name)} there and {value} here"
            for name, value in self.settings.items()
            if state["settings"].get(name) != value
        ]
        if other:
            raise Foreign(f"{path} belongs to another run: {'; '.join(other)}. Use its values, or give another --out")

    def _publish(self, path: Path) -> None:
        """Give what is complete its name; remove what need not be kept."""
        _remove(path)  # a torn one that was passed over: a folder cannot be replaced
        os.replace(path.with_suffix(".tmp"), path)
        link = self.folder / "latest.tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        os.replace(link, self.folder / "latest")
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # names are the folder's content
        os.close(folder)
        there = self.there()
        ours = there.index(path)  # newer ones have been passed over, and trained again since
        for old in there[:ours] + there[ours + self.keep :] + list(self.folder.glob(f"{PATTERN}.tmp")):
            _remove(old)


class ShardedCheckpoints(Checkpoints):
    """The same for a model that is divided among ranks (FSDP): a folder to which each writes its part. All ranks call.

    The parts fit any number of ranks (torch.distributed.checkpoint); run.json has the rest. `group` serves to wait.
    """

    def __init__(self, folder: str, keep: int, settings: dict[str, Any], group: dist.ProcessGroup) -> None:
        """Wait for other ranks in `group`."""
        import torch.distributed.checkpoint.state_dict  # half a second that the other programs do without

        super().__init__(folder, keep, settings)
        self.group, self.dcp = group, torch.distributed.checkpoint

    def save(self, state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write all, as state["step"]; whenever the power fails, the folder is whole or has another name."""
        path = self.folder / f"checkpoint-{state['step']:08d}"
        temporary = path.with_suffix(".tmp")
        if dist.get_rank() == 0:
            _remove(temporary)  # of a run that died while it wrote
            temporary.mkdir()
            whole = {"format": FORMAT, "settings": self.settings, **state}
            (temporary / "run.json").write_text(json.dumps(whole, indent=1) + "\n")
        dist.barrier(self.group)
        try:  # with fsync
            self.dcp.save(self._parts(model, optimizer), checkpoint_id=temporary, process_group=self.group)
        except self.dcp.CheckpointException:  # on all ranks alike
            if dist.get_rank() == 0:
                _remove(temporary)
            raise
        if dist.get_rank() == 0:
            self._publish(path)

    def _read(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        if path.is_file():
            raise Foreign(f"{path} was not written by train_fsdp.py: continue with what did, or give another --out")
        state = json.loads((path / "run.json").read_text())
        self._verify(path, state)
        parts = self._parts(model, optimizer)
        try:
            self.dcp.load(parts, checkpoint_id=path, process_group=self.group)
        except self.dcp.CheckpointException as error:  # on all ranks alike; no Exception, but a BaseException
            raise next(iter(error.failures.values()))[0] from error
        self.dcp.state_dict.set_state_dict(
            model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
        )
        return state

    def _parts(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), self.dcp.state_dict.get_state_dict(model, optimizer)))
