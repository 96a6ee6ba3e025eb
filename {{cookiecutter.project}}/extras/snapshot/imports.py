"""Prints path=FOLDERS, the PYTHONPATH with which Python imports the sources of a snapshot in place of the originals.

    python extras/snapshot/imports.py COPY…

COPY is a folder logs/snapshots/HASH. A program's own folder is in the copy by itself. Others lead to the originals:
those of PYTHONPATH, and those of packages that were installed with `pip install --editable`. Such a package has a line
in a .pth file, or a finder of setuptools. Python looks in PYTHONPATH before it comes to either of them.

enter.sh starts this program with the Python of the ranks, which has read the .pth files by then.
"""

import contextlib
import os
import sys


def main() -> None:
    """Print the folders, with ":" between them, on the last line: a line of a .pth file may have printed, too."""
    copies = [(os.path.realpath(os.path.join(copy, "original")), os.path.realpath(copy)) for copy in sys.argv[1:]]
    if not copies or not os.environ.get("RUN_DIR"):
        sys.stderr.write("extras/snapshot/imports.py: expected COPY…, and RUN_DIR; jobs call this program\n")
        sys.exit(2)
    given = os.environ.get("PYTHONPATH", "")
    folders = [in_copy(folder, copies) or folder for folder in given.split(":")] if given else []
    folders += filter(None, (in_copy(folder, copies) for folder in sys.path))
    for package, path in mapped_packages().items():
        copied = in_copy(path, copies)
        if copied:
            folders.append(folder_of(package, copied))
    print("path=" + ":".join(dict.fromkeys(folders)))


def in_copy(path: str, copies: list) -> str:
    """Return where the file or folder of a module is in the copies; '' if it is in none, or only linked from there."""
    real = os.path.realpath(path) if path else ""
    for original, copy in copies:
        if (real + os.sep).startswith(original + os.sep):
            copied = os.path.normpath(os.path.join(copy, os.path.basename(original), os.path.relpath(real, original)))
            is_there = os.path.exists(copied) or os.path.exists(copied + ".py")  # a module's path has no suffix
            if is_there and os.path.realpath(copied) == copied:
                return copied
    return ""


def mapped_packages() -> dict:
    """Return the packages that setuptools has installed as editable by a finder, with the path of each."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            found.update(getattr(module, "MAPPING", {}))
    return found


def folder_of(package: str, path: str) -> str:
    """Return the folder in which Python finds a package, or a module, that lies at `path`."""
    inside = os.sep + package.replace(".", os.sep)
    if path.endswith(inside):
        return path[: -len(inside)]
    # package_dir of setuptools has given the folder another name: a link has the package's.
    folder = os.path.join(os.environ["RUN_DIR"], "imports")
    link = os.path.join(folder, *package.split("."))
    os.makedirs(os.path.dirname(link), exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another node, or rank, has made it
        os.symlink(path, link)
    return folder


if __name__ == "__main__":
    main()
