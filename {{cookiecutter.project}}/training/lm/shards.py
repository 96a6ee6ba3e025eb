"""Reads a sharded checkpoint, a folder of train_fsdp.py, without running code that somebody put into its files.

torch.distributed.checkpoint (DCP) reads pickles: `.metadata` of the folder, and each value that is no tensor (torch
2.13, filesystem.py and default_planner.py). A pickle names functions that are called as it is read. So a colleague's
folder could run any command. Here `.metadata` may name the classes of DCP alone, and DCP gets a value only after
torch.load has read it with weights_only.
"""

from __future__ import annotations

import pickle
from enum import EnumMeta
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

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


def enum_member(enum: Any, name: str) -> Any:
    """Return a member of an enum. Stands in for getattr(), which would give any attribute of any object.

    Some versions of Python pickle a member of an enum as a call of getattr(): 3.11.2 does, 3.11.7 and 3.10 do not
    (tried on 2026-11-27; https://github.com/python/cpython/pull/26658). A checkpoint outlives the Python that wrote it.
    """
    if not isinstance(enum, EnumMeta) or name not in enum.__members__:
        raise pickle.UnpicklingError(f".metadata asks for {name!r} of {enum!r}, which could run code")
    return enum[name]


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


def load(state: dict[str, Any], path: Path, group: dist.ProcessGroup | None = None) -> None:
    """Fill the tensors and values of `state` from a folder. Each rank of `group` calls it, and reads its own parts."""
    dcp.load(state, storage_reader=Reader(path), planner=Planner(), process_group=group)


def empty_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return a tensor for each weight of the model in a folder, of its full shape and its type, for load() to fill."""
    contents = Reader(path).metadata.state_dict_metadata
    return {
        name[len("model.") :]: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in contents.items()
        if name.startswith("model.") and isinstance(entry, dcp.TensorStorageMetadata)
    }
