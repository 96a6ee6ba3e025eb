"""Packs an environment and data into one file each, for STAGE=1 and STAGE_DATA, and lists what each node has to copy.

    python3 launch/stage/pack.py FOLDER [--environment VENV] [--data PATH]

Thousands of small files on a shared file system are slow to open, one large file is fast to read. The packed files are
FOLDER/KEY.sqsh or FOLDER/KEY.tar. KEY follows from names, sizes and times of what is packed, so that a pack is made
once, and made anew after a change. A pack gets its name when it is whole. FOLDER belongs to one user: other users can
neither read private data in a pack, nor put a pack of their own there, as they could compute KEY.

Of a virtual environment two packs are made: the environment, and the Python from which it was made, which uv and pyenv
keep in the home directory. A Python below /usr is on the nodes already. A conda environment has its own Python.
Data that are one file are not packed.

The format is squashfs if this machine can make such a file (mksquashfs) and mount it (squashfuse), else tar. Set
STAGE_FORMAT=tar to choose.

launch/stage/enter.py reads the list. It has a line for each pack, with four fields and tabs between: the kind
(environment, data or file), KEY, the pack, and the path of the original. This script prints the name of the list.
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
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

FORMATS = {"squashfs": ".sqsh", "tar": ".tar"}
NOT_NEEDED = {"pkgs", "envs", "conda-meta"}  # of a conda installation: archives, other environments, records
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
        parser.exit(2, "launch/stage/pack.py: set STAGE=1 or STAGE_DATA, and call the submit script\n")
    try:
        make_own_folder(args.folder)
        packs = pack_environment(os.path.realpath(args.environment), args.folder) if args.environment else []
        if args.data:
            packs.append(pack_data(args.data, args.folder))
        print(write_list(packs, args.folder))
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
    """Pack an environment, and its Python if that lies elsewhere; return (kind, key, pack, path) of each."""
    settings = read_settings(environment)
    compile_modules(environment, settings)
    names = [name for name in folders_in(environment) if name not in NOT_NEEDED]
    packs = [("environment", *pack(environment, names, [], folder), environment)]
    python = os.path.dirname(os.path.realpath(settings["home"])) if "home" in settings else ""
    if python and not is_below(python, "/usr") and not is_below(python, environment):
        names = [name for name in folders_in(python) if name in ("bin", "lib", "lib64")]
        # Packages of that Python, unless the environment was made with --system-site-packages.
        uses_packages = settings.get("include-system-site-packages") == "true"
        left_out = [] if uses_packages else ["site-packages"]
        packs.append(("environment", *pack(python, names, left_out, folder), python))
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
    """Compile the modules of an environment of uv, which leaves that to the first import: a pack is read-only."""
    if "uv" in settings:
        command = [os.path.join(environment, "bin", "python"), "-m", "compileall", "-q", "-j", "8"]
        subprocess.run([*command, os.path.join(environment, "lib")], stdout=subprocess.DEVNULL, check=False)


def pack_data(path, folder):
    """Pack a folder of data; a file stays as it is. Return (kind, key, pack, path)."""
    path = os.path.realpath(path)
    if os.path.isfile(path):
        return "file", hash_of([describe(path, os.stat(path))]), path, path
    if not os.path.isdir(path):
        raise Refusal(f"STAGE_DATA='{path}': expected a file or a folder that this machine can read")
    if is_below(folder, path):
        raise Refusal(f"STAGE_DATA='{path}' has the folder of packs {folder} in it: name a folder of data alone")
    names = sorted(os.listdir(path))
    if not names:
        raise Refusal(f"STAGE_DATA='{path}' is empty")
    return ("data", *pack(path, names, [], folder), path)


def write_list(packs, folder):
    """Write the list for launch/stage/enter.py; return its name, which follows from the content."""
    for line in packs:
        if set("\t\n") & set("".join(line)):
            raise Refusal(f"{line[-1]!r} has a tab or a line break in its name: rename it")
    text = "".join("\t".join(line) + "\n" for line in packs)
    finished = os.path.join(folder, hash_of([text]) + ".packs")
    if is_there(finished):
        return finished
    unfinished = f"{finished}.{socket.gethostname()}-{os.getpid()}"
    with open(unfinished, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(unfinished, finished)
    return finished


def folders_in(folder):
    """Return the names of the folders in a folder, without links."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))


def is_below(path, folder):
    """Return whether a path is `folder`, or lies in it."""
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(folder), ""))


# ---- pack ------------------------------------------------------------------------------------------------------------


def pack(root, names, left_out, folder):
    """Pack the entries `names` of `root` into a file in `folder`; return (key, path of the file).

    left_out: names of folders that are not packed, at any depth.
    """
    key, size = key_of(root, names, left_out)
    for suffix in suffixes_wanted():
        finished = os.path.join(folder, key + suffix)
        if is_there(finished):
            return key, finished
    print(f"STAGE: packing {root}, {size / 1e9:.1f} GB, once until it changes", file=sys.stderr)
    begin = time.time()
    unfinished = os.path.join(folder, f".unfinished-{key}-{socket.gethostname()}-{os.getpid()}")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY, 0o600))  # tar and mksquashfs keep this mode
        suffix = write_pack(root, names, left_out, unfinished)
        if key_of(root, names, left_out)[0] != key:
            raise Refusal(f"files in {root} changed while they were packed: try again when nothing writes there")
        finished = os.path.join(folder, key + suffix)
        os.rename(unfinished, finished)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    packed = os.path.getsize(finished) / 1e9
    print(f"STAGE: {finished}, {packed:.1f} GB, in {time.time() - begin:.0f} s", file=sys.stderr)
    return key, finished


def is_there(file):
    """Return whether a pack or a list has been made before. It then counts as used now, for slurm/clean.sh."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return False
    return True


def key_of(root, names, left_out):
    """Return 16 digits that follow from what is packed, and its size [bytes]."""
    lines, size = [root], 0
    waiting = [os.path.join(root, name) for name in names]
    with ThreadPoolExecutor(WALKERS) as walkers:
        lines += [describe(path, os.lstat(path)) for path in waiting]
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


def suffixes_wanted():
    """Return the suffixes of packs that may be used, the better one first."""
    wanted = os.environ.get("STAGE_FORMAT") or "squashfs"
    if wanted not in FORMATS:
        raise Refusal(f"STAGE_FORMAT='{wanted}': expected squashfs or tar")
    return [".tar"] if wanted == "tar" else [".sqsh", ".tar"]


def write_pack(root, names, left_out, file):
    """Write a pack; return the suffix of its format."""
    tries_squashfs = ".sqsh" in suffixes_wanted() and shutil.which("mksquashfs") and shutil.which("squashfuse")
    if tries_squashfs and write_squashfs(root, names, left_out, file) and is_mountable(file):
        return ".sqsh"
    excluded = [f"--exclude={name}" for name in left_out]
    # Without --anchored, an excluded name may stand at any depth.
    wanted = ["."] if is_whole(root, names) else names
    check_run(["tar", "--create", "--force-local", "--file", file, "--directory", root, *excluded, "--", *wanted], root)
    return ".tar"


def is_whole(root, names):
    """Return whether `names` is all that a folder has."""
    return sorted(os.listdir(root)) == sorted(names)


def write_squashfs(root, names, left_out, file):
    """Write a squashfs file; return whether that went well."""
    # All of a folder: its names may be more than a command line takes.
    paths = [root] if is_whole(root, names) else [os.path.join(root, name) for name in names]
    # Alone, a folder would become the root of the file system.
    options = ["-keep-as-directory"] if len(paths) == 1 and paths != [root] else []
    if left_out:
        options += ["-wildcards", "-e", *(f"... {name}" for name in left_out)]
    # zstd at level 1 is read at the speed of a disk. One thread per core of a login node would be too many.
    command = ["mksquashfs", *paths, file, "-comp", "zstd", "-Xcompression-level", "1", "-processors", "8"]
    command += ["-no-progress", "-quiet", "-noappend", *options]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    text = done.stderr.decode(errors="replace").strip()
    if done.returncode or text:  # it takes a file that cannot be read for an empty one, and goes on
        print(f"STAGE: mksquashfs: {text}; trying tar", file=sys.stderr)
        return False
    return True


def is_mountable(file):
    """Return whether squashfuse mounts a file here. Its compression may be unknown, or FUSE may not be allowed."""
    folder = tempfile.mkdtemp()
    try:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.call(["squashfuse", file, folder], **quiet):
            return False
        unmount = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
        return subprocess.call([unmount, "-u" if "fuse" in unmount else "-l", folder], **quiet) == 0
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def check_run(command, root):
    """Run a command. Raises Refusal with what it says if it fails."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise Refusal(
            f"{root} could not be packed: {last}. Free space in {os.path.dirname(command[4])}, or set STAGE=0"
        )


if __name__ == "__main__":
    main()
