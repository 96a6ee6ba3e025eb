"""Packs an environment and data into one file each, for STAGE=1 and STAGE_DATA, and prints what each node has to copy.

    python3 extras/stage/pack.py FOLDER [--environment VENV] [--data PATH]

Thousands of small files on a shared file system are slow to open, one large file is fast to read. A packed file is
FOLDER/KEY.tar, or KEY.tar.zst if this machine has zstd. KEY follows from names, sizes and times of what is packed, so
that a pack is made once, and made anew after a change. A pack gets its name when it is whole. FOLDER belongs to one
user: other users can neither read private data in a pack, nor put a pack of their own there, as they could compute
KEY.

Of a virtual environment two packs are made: the Python from which it was made, which uv and pyenv keep in the home
directory, and the environment. A Python below /usr is on the nodes already. A conda environment has its own Python.
Data that are one file are not packed.

This script prints a line for each pack. enter.py takes its words, which have tabs between them:
    kind    python, environment, data (a folder) or file
    KEY
    pack    the path of the packed file
    path    the real path of the original
    name    its path as the user has typed it, or as pyvenv.cfg has it

Exit code 2, with a message, if something cannot be packed.
It runs on login nodes: Python 3.6, standard library only.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

NOT_NEEDED = {"pkgs", "envs", "conda-meta"}  # of a conda installation: archives, other environments, records
# Level 1 is unpacked at the speed of a disk. One thread per core of a login node would be too many.
COMPRESSOR = "zstd -1 -T4"
WALKERS = 16  # threads that read folders; each waits for the shared file system most of the time


class Refusal(Exception):
    """Something cannot be packed; the message says why, and what to do."""


def main():
    """Pack, and print what was packed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath, help="where the packs go; it is made if it is not there")
    parser.add_argument("--environment", default="", help="a virtual environment or a conda environment")
    parser.add_argument("--data", default="", help="a file or a folder")
    args = parser.parse_args()
    if not (args.environment or args.data):
        parser.exit(2, "extras/stage/pack.py: set STAGE=1 or STAGE_DATA, and call the submit script\n")
    try:
        make_own_folder(args.folder)
        packs = pack_environment(args.environment, args.folder) if args.environment else []
        if args.data:
            packs.append(pack_data(args.data, args.folder))
        print_packs(packs)
    except (OSError, Refusal) as error:
        print(f"STAGE: {error}", file=sys.stderr)
        sys.exit(2)


def make_own_folder(folder):
    """Make a folder of this user alone. Raises Refusal if another user has made it, or a link of this name."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    owners = {os.lstat(folder).st_uid, os.stat(folder).st_uid}  # a link of one's own may lead to another file system
    if owners != {os.getuid()} or not os.path.isdir(folder):
        raise Refusal(f"{folder} is not a folder of yours: have its owner remove it (ls -ld {folder}), or set STAGE=0")


def pack_environment(environment, folder):
    """Pack the Python of an environment, if it lies elsewhere, and the environment; return the line of each."""
    path = os.path.realpath(environment)
    settings = read_settings(path)
    compile_modules(path, settings)
    packs, key_of_python = [], ""
    home = settings.get("home", "").rstrip("/")
    python = os.path.dirname(os.path.realpath(home)) if home else ""
    if python and not is_below(python, "/usr") and not is_below(python, path):
        names = [name for name in sorted(os.listdir(python)) if name in ("bin", "lib", "lib64")]
        # Packages of that Python, unless the environment was made with --system-site-packages.
        uses_packages = settings.get("include-system-site-packages") == "true"
        left_out = [] if uses_packages else ["site-packages"]
        key_of_python, file = pack(python, names, left_out, folder)
        packs.append(("python", key_of_python, file, python, os.path.dirname(home)))
    names = sorted(set(os.listdir(path)) - NOT_NEEDED)
    # On a node, an environment's copy names its Python's copy: another Python makes another copy of the environment.
    key, file = pack(path, names, [], folder, key_of_python)
    packs.append(("environment", key, file, path, environment.rstrip("/")))
    return packs


def read_settings(environment):
    """Return the settings in a virtual environment's pyvenv.cfg; none for a conda environment."""
    file = os.path.join(environment, "pyvenv.cfg")
    if not os.path.exists(file):
        return {}
    with open(file, encoding="utf-8", errors="surrogateescape") as lines:
        pairs = [line.partition("=") for line in lines]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def compile_modules(environment, settings):
    """Compile the modules of an environment of uv, which leaves that to the first import, on each node."""
    if "uv" in settings:
        command = [os.path.join(environment, "bin", "python"), "-m", "compileall", "-q", "-j", "8"]
        subprocess.run([*command, os.path.join(environment, "lib")], stdout=subprocess.DEVNULL, check=False)


def pack_data(data, folder):
    """Pack a folder of data; a file stays as it is. Return its line."""
    path, name = os.path.realpath(data), data.rstrip("/")
    if os.path.isfile(path):
        return "file", hash_of(["file", describe(path, os.stat(path))]), path, path, name
    if not os.path.isdir(path):
        raise Refusal(f"STAGE_DATA='{data}': expected a file or a folder; a relative path starts at {os.getcwd()}")
    if is_below(os.path.realpath(folder), path):
        raise Refusal(f"STAGE_DATA='{data}' has the folder of packs, {folder}, in it: name a folder of data alone")
    names = sorted(os.listdir(path))
    if not names:
        raise Refusal(f"STAGE_DATA='{data}' is empty")
    key, file = pack(path, names, [], folder)
    return "data", key, file, path, name


def is_below(path, folder):
    """Return whether a path is a folder, or in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def print_packs(packs):
    """Print a line for each pack."""
    for words in packs:
        if set("\t\n") & set("".join(words)):
            raise Refusal(f"{words[-1]!r} has a tab or a line break in its name: rename it")
    text = "".join("\t".join(words) + "\n" for words in packs)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))


# ---- a pack ----------------------------------------------------------------------------------------------------------


def pack(root, names, left_out, folder, basis=""):
    """Pack the entries `names` of `root` into a file in `folder`; return (key, path of the file).

    left_out: names of folders that are not packed, at any depth. basis: what the key depends on beside the files.
    """
    key, size = key_of(root, names, left_out, basis)
    compressor = COMPRESSOR if shutil.which("zstd") else None
    finished = os.path.join(folder, key + (".tar.zst" if compressor else ".tar"))
    if os.path.exists(finished):
        os.utime(finished)  # it counts as used now, for clean.sh
        return key, finished
    print(f"STAGE: packing {root}, {size / 1e9:.1f} GB, once until it changes", file=sys.stderr)
    begin = time.time()
    unfinished = os.path.join(folder, f".unfinished-{key}-{socket.gethostname()}-{os.getpid()}")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY, 0o600))  # tar keeps this mode
        write_tar(root, names, left_out, unfinished, compressor)
        if key_of(root, names, left_out, basis)[0] != key:
            raise Refusal(f"files in {root} changed while they were packed: try again when nothing writes there")
        os.rename(unfinished, finished)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    print(f"STAGE: {finished}, in {time.time() - begin:.0f} s", file=sys.stderr)
    return key, finished


def key_of(root, names, left_out, basis):
    """Return 16 digits that follow from what is packed, and its size [bytes]."""
    lines, size = [root, basis], 0
    waiting = [os.path.join(root, name) for name in names]
    with ThreadPoolExecutor(WALKERS) as walkers:
        for path in waiting:
            status = os.lstat(path)
            lines.append(describe(path, status))
            size += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        waiting = [path for path in waiting if os.path.isdir(path) and not os.path.islink(path)]
        while waiting:
            folders, waiting = waiting, []
            for entries in walkers.map(list_folder, folders, repeat(left_out)):
                for path, line, bytes_of_file, is_folder in entries:
                    lines.append(line)
                    size += bytes_of_file
                    if is_folder:
                        waiting.append(path)
    return hash_of(sorted(lines)), size


def hash_of(lines):
    """Return 16 digits that follow from strings."""
    return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]


def list_folder(folder, left_out):
    """Return (path, line for the key, size, whether it is a folder) of each entry of a folder."""
    found = []
    for entry in os.scandir(folder):
        if entry.name in left_out or entry.name == "__pycache__":
            continue  # Python writes .pyc files while jobs run; a pack may have older ones
        is_folder, status = entry.is_dir(follow_symlinks=False), entry.stat(follow_symlinks=False)
        found.append((entry.path, describe(entry.path, status), 0 if is_folder else status.st_size, is_folder))
    return found


def describe(path, status):
    """Return the line of a path for the key: size, time and mode of a file, mode of a folder, target of a link."""
    if stat.S_ISLNK(status.st_mode):
        return f"{path} -> {os.readlink(path)}"
    if stat.S_ISDIR(status.st_mode):
        return f"{path} {status.st_mode}"
    return f"{path} {status.st_mode} {status.st_size} {status.st_mtime_ns}"


def write_tar(root, names, left_out, file, compressor):
    """Write a tar. Raises Refusal with what the program tar says if it fails."""
    # All of a folder: its names may be more than a command line takes.
    wanted = ["."] if sorted(os.listdir(root)) == names else names
    excluded = [f"--exclude={name}" for name in left_out]  # at any depth, without --anchored
    # --force-local: tar takes a name with a colon for one on another machine. --mode: a folder that its owner may not
    # enter or write to could not be unpacked, or be removed from the nodes.
    options = ["--force-local", "--mode=u+rwX", "--file", file, "--directory", root, *excluded]
    if compressor:
        options.append(f"--use-compress-program={compressor}")
    command = ["tar", "--create", *options, "--", *wanted]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode > 1:  # 1: a file changed, as in a __pycache__; if it counts, the key differs afterwards
        first = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
        fix = f"If {os.path.dirname(file)} is full, free space there, or set STAGE=0 and STAGE_DATA="
        raise Refusal(f"{root} could not be packed: {first}. {fix}")


if __name__ == "__main__":
    main()
