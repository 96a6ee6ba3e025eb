"""Checkpoints of a model that is divided among ranks (FSDP): a folder to which each rank writes its part.

The parts fit any number of ranks: torch.distributed.checkpoint (DCP) writes and reads them. `run.json` has the state,
such as the step, and the settings.

DCP reads pickles: `.metadata` of the folder, and each value that is no tensor (torch 2.13, filesystem.py and
default_planner.py). A pickle names functions that are called as it is read. So a colleague's folder could run any
command. Here `.metadata` may name the classes of DCP alone, and DCP gets a value only after torch.load has read it with
weights_only.
"""

from __future__ import annotations

import json
import os
import pickle
import warnings
from enum import EnumMeta
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import Module
from torch.optim import Optimizer

from lm.checkpoints import Checkpoints

# What DCP writes into .metadata (torch 2.13), beside types such as torch.float32.
ALLOWED = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "collections": ("OrderedDict",),
    "pathlib": ("Path", "PosixPath"),
    "pathlib._local": ("PosixPath",),  # Python 3.13
}


class ShardedCheckpoints(Checkpoints):
    """The checkpoints in a folder. All ranks load and save."""

    suffix = ""

    def __init__(
        self, folder: str, keep: int, settings: dict[str, Any], rank: int, group: dist.ProcessGroup | None
    ) -> None:
        """Take the group in which ranks wait for each other, with a timeout that is long enough for a slow disk."""
        super().__init__(folder, keep, settings, rank)
        torch.zeros(1).numpy()  # torch.distributed.checkpoint needs NumPy: better said now than at the first save
        self.group = group

    def _read(self, path: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
        state = json.loads((path / "run.json").read_text())
        self._verify(path, state)
        weights, moments = get_state_dict(model, optimizer)
        load({"model": weights, "optimizer": moments}, path, self.group)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return state

    def _write(self, path: Path, state: dict[str, Any], model: Module, optimizer: Optimizer) -> None:
        if self.rank == 0:
            path.mkdir()
            with (path / "run.json").open("w") as file:
                print(json.dumps(state, indent=1), file=file, flush=True)
                os.fsync(file.fileno())
        dist.barrier(self.group)
        weights, moments = get_state_dict(model, optimizer)
        # It calls fsync for each of its files.
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path, process_group=self.group)


def load(state: dict[str, Any], path: Path, group: dist.ProcessGroup | None = None) -> None:
    """Fill the tensors and values of `state` from a folder. Each rank of `group` calls it, and reads its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a process group, DCP says that it reads for this process alone
        dcp.load(state, storage_reader=Reader(path), planner=Planner(), process_group=group)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a folder, put together from the parts of its ranks."""
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in Reader(path).metadata.state_dict_metadata.items()
        if name.startswith("model.") and isinstance(entry, dcp.TensorStorageMetadata)
    }
    load(weights, path)
    return {name[len("model.") :]: weight for name, weight in weights.items()}


class Reader(dcp.FileSystemReader):
    """Reads the files of a folder. What is wrong with `.metadata` is raised here: DCP would try other files first."""

    def __init__(self, path: Path) -> None:
        """Take a folder that is a checkpoint."""
        super().__init__(path)
        with (path / ".metadata").open("rb") as file:
            self.metadata = Unpickler(file).load()
        self.metadata.storage_meta.load_id = self.load_id  # as FileSystemReader does

    def read_metadata(self, *_: Any, **__: Any) -> dcp.Metadata:
        """Return what `.metadata` has."""
        return self.metadata


class Planner(dcp.DefaultLoadPlanner):
    """DCP's own, which says what each rank reads, with a check of values that are no tensors."""

    def load_bytes(self, read_item: Any, value: BytesIO) -> None:
        """Take a value that is no tensor. Raises UnpicklingError if it could run code."""
        torch.load(value, weights_only=True)  # raises; DCP reads the same bytes without this check
        value.seek(0)
        super().load_bytes(read_item, value)


class Unpickler(pickle.Unpickler):
    """Reads `.metadata`. Raises UnpicklingError if it names anything but ALLOWED and types of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f".metadata names {module}.{name}, which could run code")


def enum_member(enum: Any, name: str) -> Any:
    """Return a member of an enum. Stands in for getattr(), which would give any attribute of any object.

    Some versions of Python pickle a member of an enum as a call of getattr(): 3.11.2 does, 3.11.7 and 3.10 do not
    (tried on 2026-11-27; https://github.com/python/cpython/pull/26658). A checkpoint outlives the Python that wrote it.
    """
    if not isinstance(enum, EnumMeta) or name not in enum.__members__:
        raise pickle.UnpicklingError(f".metadata asks for {name!r} of {enum!r}, which could run code")
    return enum[name]
