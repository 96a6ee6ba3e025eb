"""Has Python import the sources of a snapshot in place of the originals, for SNAPSHOT=1.

A program's own folder on sys.path is in the copy by itself. Others lead to the originals: those of PYTHONPATH, and
those of packages that were installed with `pip install --editable`. sitecustomize.py calls use_copies() in each rank.
"""

import os
import sys


def copies() -> list:
    """Return (folder that was copied, its copy) for each of SNAPSHOTS, as launch/code/snapshot.py has printed them."""
    found = []
    for folder in filter(None, os.environ.get("SNAPSHOTS", "").split(":")):
        original = os.path.realpath(os.path.join(folder, "original"))
        found.append((original, os.path.join(os.path.realpath(folder), os.path.basename(original))))
    return found


def in_copy(path: str) -> str:
    """Return where a path is in the copy; the path itself if no copy has it, or the copy only has a link there."""
    real = os.path.realpath(path)
    for original, copy in copies():
        if not (real + os.sep).startswith(original + os.sep):
            continue
        copied = os.path.normpath(os.path.join(copy, os.path.relpath(real, original)))
        if os.path.realpath(copied) == copied and os.path.exists(copied):
            return copied
    return path


def use_copies() -> None:
    """Replace folders of sys.path, and the folders to which editable installations lead, by those in the copies."""
    sys.path[:] = [in_copy(folder) if os.path.isabs(folder) else folder for folder in sys.path]
    for name, module in list(sys.modules.items()):
        if not name.startswith("__editable__"):  # as setuptools names its finder for such a package
            continue
        packages = getattr(module, "MAPPING", {})
        for package, path in packages.items():
            packages[package] = in_copy(path)
        namespaces = getattr(module, "NAMESPACES", {})
        for namespace, paths in namespaces.items():
            namespaces[namespace] = [in_copy(path) for path in paths]
