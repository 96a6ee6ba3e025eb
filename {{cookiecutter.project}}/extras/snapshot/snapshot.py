"""Copies the sources of a program as they are now, for SNAPSHOT=1, and prints where the copies are.

    python3 extras/snapshot/snapshot.py LIMIT PROJECT [PROGRAM | FOLDER]

It copies PROJECT's git repository. If PROGRAM (with `python -m`, the FOLDER of the module) lies outside of it, it
copies that repository too. Of a repository it copies the files that git tracks, as they are on disk, and new files that
git does not ignore, unless they look like data. Without git, it copies files with the suffixes of SOURCES, up to 1 MiB.

A copy is PROJECT/logs/snapshots/HASH/NAME. NAME is that of the copied folder. HASH follows from content, commit,
branch and user, so jobs of one user with equal sources share a copy. A copy is made under another name, and renamed
when it is whole. All else in the folder (data, checkpoints, environments, logs) is a link in the copy to the original.
Beside the copy stand

    original       a link to the folder that was copied
    git.json       commit, branch, and whether all was committed
    changes.diff   what was not committed

Prints two lines: PROJECT's copy, and PROGRAM's or FOLDER's. LIMIT is how much it copies [MB]. Exit code 2, with a
message, if the sources cannot be copied whole.
It runs on login nodes: Python 3.6, standard library only.
"""

import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from git_state import (
    LARGEST_NEW_FILE,
    GitError,
    git,
    names,
    private,
    repository_of,
    state_of,
)

# Without git: what counts as a source. Files without a suffix count if they can be executed.
SOURCES = {
    *(".py", ".pyi", ".pyx", ".ipynb", ".sh", ".bash", ".sbatch", ".rc"),
    *(".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".jinja", ".j2", ".cmake"),
    *(".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".conf", ".md", ".rst", ".txt", ".lock"),
}
# With git: what is no source, if git does not track it and the user has not told git to ignore it.
DATA = {
    *(".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".onnx", ".gguf", ".npy", ".npz", ".h5", ".hdf5", ".pkl"),
    *(".parquet", ".arrow", ".feather", ".lmdb", ".sqlite", ".tar", ".gz", ".xz", ".zst", ".zip", ".sif", ".sqsh"),
    *(".out", ".log", ".wandb"),
}
NEVER = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}  # neither copied nor linked
MOST_FILES = 20_000  # of a copy, and of the files that a folder without git may hold beside its sources
MOST_LINKS = 1_000  # in one folder; a folder with more is data


class Refusal(Exception):
    """The sources cannot be copied; the message says why, and what to do."""


def main():
    """Copy, and print where the copies are."""
    if len(sys.argv) not in (3, 4) or not sys.argv[1].isdigit():
        sys.exit(refuse("the submit script calls extras/snapshot/snapshot.py: set SNAPSHOT=1, and call that"))
    limit = int(sys.argv[1]) * 10**6  # bytes
    project = os.path.realpath(sys.argv[2])
    # Not the real path: pods may know the volume by the name that is used here.
    snapshots = os.path.join(os.path.abspath(sys.argv[2]), "logs", "snapshots")
    program = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else ""
    try:
        if ":" in snapshots or "\n" in snapshots:
            raise Refusal(f"the folder {snapshots!r}: ':' separates the folders of PYTHONPATH, and a line ends a name")
        root = root_of(project)
        copies = [(root, take(root, snapshots, limit))]
        for name in ("env.sh", "launch/extras.sh"):
            path_in_copy(os.path.join(project, name), *copies[0])
        frozen_program = ""
        if program:
            folder = os.path.realpath(program if os.path.isdir(program) else os.path.dirname(program))
            program = folder if os.path.isdir(program) else os.path.join(folder, os.path.basename(program))
            if not is_below(folder, root):
                other = root_of(folder)
                copies.append((other, take(other, snapshots, limit)))
            frozen_program = path_in_copy(program, *copies[-1])
    except (GitError, OSError, Refusal) as error:
        sys.exit(refuse(error))
    print(path_in_copy(project, *copies[0]))
    print(frozen_program)


def refuse(error):
    """Print why the sources are not copied; return the exit code."""
    print(f"SNAPSHOT=1: {error}", file=sys.stderr)
    return 2


def root_of(folder):
    """Return which folder is copied for the sources in `folder`: the top of its git repository, or itself."""
    return repository_of(folder) or os.path.realpath(folder)


def is_below(path, folder):
    """Return whether a path is `folder`, or lies in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def path_in_copy(path, root, folder):
    """Return the path in the copy of `root`, which lies in `folder`, of a path in `root`.

    Raises Refusal if the copy has only a link there: then later edits would reach the job. Programs in an environment
    are an exception. They are installed, and pip has written them.
    """
    inside = os.path.relpath(path, root)
    copied = os.path.normpath(os.path.join(folder, os.path.basename(root), inside))
    if not os.path.lexists(copied):
        raise Refusal(f"{path} was not copied: is it still there?")
    if not is_below(os.path.realpath(copied), os.path.realpath(folder)) and not is_in_environment(path, root):
        if repository_of(root):
            fix = "git ignores it, or does not track it and it is no source: git add it"
        else:
            fix = f"{root} is under no git, and it has not the suffix of a source: rename it, or run git init"
        raise Refusal(f"{path} would not be copied. {fix}; or submit with SNAPSHOT=0")
    return copied


def is_in_environment(path, root):
    """Return whether a path lies in a virtual environment or a conda environment below `root`."""
    while is_below(path, root) and path != root:
        if is_environment(path):
            return True
        path = os.path.dirname(path)
    return False


def is_environment(folder):
    """Return whether a folder is a virtual environment or a conda environment."""
    return any(os.path.exists(os.path.join(folder, name)) for name in ("pyvenv.cfg", "conda-meta"))


# ---- which files -----------------------------------------------------------------------------------------------------


def sources_of(root, snapshots):
    """Return the sources in a folder, as a sorted list of paths relative to it."""
    found = sources_in_repository(root) if repository_of(root) == root else sources_without_git(root)
    # Slurm scripts of a project write into logs/, also in a repository that does not ignore it.
    logs = os.path.relpath(os.path.join(os.path.realpath(os.path.join(snapshots, "../..")), "logs"), root)
    return sorted(name for name in found if not is_below(name, logs))


def sources_in_repository(top):
    """Return what git tracks in a repository and in those below it, and new files that it does not ignore."""
    found = set()
    tracked = names(git(top, "ls-files", "-z", "--cached"))
    new = names(git(top, "ls-files", "-z", "--others", "--exclude-standard"))
    environments = {os.path.dirname(name) for name in new if os.path.basename(name) == "pyvenv.cfg"}
    environments |= {name.partition("/conda-meta/")[0] for name in new if "/conda-meta/" in name}
    environments.discard("")  # an environment at the top has the whole project in it
    for name in tracked:
        path = os.path.join(top, name)
        if os.path.isdir(path) and not os.path.islink(path):  # a submodule
            if os.path.exists(os.path.join(path, ".git")):
                found.update(os.path.join(name, inner) for inner in sources_in_repository(path))
        elif os.path.lexists(path):
            found.add(name)
    for name in new:
        path = os.path.join(top, name)
        if name.endswith("/"):  # a repository that is no submodule
            found.update(os.path.join(name, inner) for inner in sources_in_repository(path))
        elif not any(is_below(name, folder) for folder in environments) and is_new_source(path):
            found.add(name)
    return found


def is_new_source(path):
    """Return whether a file that git neither tracks nor ignores is a source."""
    if not os.path.lexists(path) or os.path.splitext(path)[1].lower() in DATA:
        return False
    return os.lstat(path).st_size <= LARGEST_NEW_FILE


def sources_without_git(root):
    """Return the sources below a folder, by suffix and size."""
    found, seen = set(), 0
    for folder, folders, files in os.walk(root):
        if is_environment(folder) and folder != root:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in NEVER and not name.startswith(".")]
        if folder == root:
            folders[:] = [name for name in folders if name != "logs"]
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found.update(os.path.relpath(os.path.join(folder, name), root) for name in linked)
        seen += len(files)
        if seen > MOST_FILES:
            raise Refusal(
                f"{root} is under no git and holds more than {MOST_FILES:,} files, so it is not clear which are"
                " sources: run git init, and list data in .gitignore; or submit with SNAPSHOT=0"
            )
        for name in files:
            path = os.path.join(folder, name)
            suffix = os.path.splitext(name)[1]
            is_script = not suffix and os.access(path, os.X_OK)
            if (suffix in SOURCES or is_script) and os.lstat(path).st_size <= LARGEST_NEW_FILE:
                found.add(os.path.relpath(path, root))
    return found


# ---- copy ------------------------------------------------------------------------------------------------------------


def take(root, snapshots, limit):
    """Copy the sources of `root` to snapshots/HASH; return that folder. Raises Refusal above `limit` [bytes]."""
    sources = sources_of(root, snapshots)
    size = check_size(root, sources, limit)
    os.makedirs(snapshots, exist_ok=True)
    unfinished = os.path.join(snapshots, f".unfinished-{socket.gethostname()}-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        os.makedirs(unfinished)
        state = write_git_state(root, unfinished)
        content = copy(root, os.path.join(unfinished, os.path.basename(root)), sources)
        if sources_of(root, snapshots) != sources:
            raise Refusal(f"files of {root} came or went while it was copied: submit again")
        owner = str(os.lstat(unfinished).st_uid).encode()  # users of a shared project have copies of their own
        finished = os.path.join(snapshots, hashlib.sha256(state + content + owner).hexdigest()[:12])
        link(root, os.path.join(unfinished, "original"))
        is_new = rename(unfinished, finished)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    os.utime(finished)  # clean.sh leaves copies alone that were asked for within the last month
    kind = f"copied {len(sources)} files, {size / 1e6:.1f} MB" if is_new else "the copy is there already"
    print(f"SNAPSHOT=1: {finished} of {root}: {kind}", file=sys.stderr)
    return finished


def check_size(root, sources, limit):
    """Return the size of the sources [bytes]. Raises Refusal above `limit`, or if there are too many."""
    sizes = {name: os.lstat(os.path.join(root, name)).st_size for name in sources}
    total = sum(sizes.values())
    if total <= limit and len(sources) <= MOST_FILES:
        return total
    largest = sorted(sizes, key=sizes.get, reverse=True)[:3]
    examples = ", ".join(f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest)
    raise Refusal(
        f"the sources in {root} are {len(sources):,} files of {total / 1e6:.0f} MB, and the limit is"
        f" {MOST_FILES:,} files and {limit / 1e6:.0f} MB. The largest: {examples}. List what is no source in"
        " .gitignore, raise SNAPSHOT_LIMIT_MB, or submit with SNAPSHOT=0"
    )


def copy(root, target, sources):
    """Copy sources, and link all else; return the hash of what was copied."""
    digest = hashlib.sha256(root.encode(errors="surrogateescape"))
    os.makedirs(target)
    for name in sources:
        path, copied = os.path.join(root, name), os.path.join(target, name)
        os.makedirs(os.path.dirname(copied), exist_ok=True)
        try:
            content = copy_file(root, path, copied)
        except FileNotFoundError as error:
            raise Refusal(f"{path} went while it was copied: submit again") from error
        digest.update(os.fsencode(name) + b"\0" + content + b"\0")
    for name in sorted(link_the_rest(root, target)):
        digest.update(os.fsencode(name) + b"\0linked\0")
    return digest.digest()


def copy_file(root, path, copied):
    """Copy one file or link; return its mode and the hash of what was written."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        destination = os.readlink(path)
        resolved = os.path.realpath(path)
        if not is_below(resolved, root):
            destination = resolved  # a relative link that leads out of the folder would end elsewhere
        elif os.path.isabs(destination):
            destination = os.path.relpath(resolved, os.path.dirname(path))
        os.symlink(destination, copied)
        return b"link " + os.fsencode(destination)
    if not stat.S_ISREG(status.st_mode):
        return b"neither file nor link"
    with open(path, "rb") as file:
        content = file.read()
    with open(copied, "wb") as file:
        file.write(content)
    os.chmod(copied, stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
    os.utime(copied, ns=(status.st_atime_ns, status.st_mtime_ns))  # Python's .pyc files name the time of the source
    executable = b"x" if status.st_mode & stat.S_IXUSR else b"-"
    return executable + hashlib.sha256(content).digest()


def link_the_rest(root, target):
    """Link in the copy what was not copied: data, environments, logs. Return the names."""
    links = []
    for folder, folders, _ in os.walk(target):
        inside = os.path.relpath(folder, target)
        copied = set(os.listdir(folder))
        rest = [name for name in os.listdir(os.path.join(root, inside)) if is_linked(name) and name not in copied]
        if len(rest) > MOST_LINKS:
            below = [name for _, _, names_below in os.walk(folder) for name in names_below]
            if inside == "." or any(is_code(name) for name in below):
                raise Refusal(
                    f"{os.path.join(root, inside)} has {len(rest):,} files that are no sources beside its sources:"
                    " move them into a folder of their own, or submit with SNAPSHOT=0"
                )
            shutil.rmtree(folder)  # a folder of data, with a .gitkeep, a README or the like
            folders.clear()
            links.append(inside)
        else:
            links += [os.path.normpath(os.path.join(inside, name)) for name in rest]
    for name in sorted(links):
        link(os.path.join(root, name), os.path.join(target, name))
    return links


def link(path, name):
    """Make a link. It is relative, as pods may know the volume by another name, and the project may be moved."""
    os.symlink(os.path.relpath(path, os.path.realpath(os.path.dirname(name))), name)


def is_code(name):
    """Return whether a source of this name is more than a note in a folder of data."""
    return not name.startswith((".git", "README")) and os.path.splitext(name)[1] not in (".md", ".txt")


def is_linked(name):
    """Return whether a copy links a file or folder of this name that it has not copied.

    The output of a job is left out: with a link to it, each job would make a copy of its own.
    """
    return name not in NEVER and not name.endswith((".pyc", ".out"))


def write_git_state(root, folder):
    """Write git.json and changes.diff, which say what the copy is a copy of; return commit and branch as bytes."""
    state, diff = state_of(root)
    with open(os.path.join(folder, "git.json"), "w") as file:
        json.dump(state, file, indent=1)
    with open(os.path.join(folder, "changes.diff"), "wb", opener=private) as file:
        file.write(diff)
    return "{commit} {branch} ".format(**state).encode(errors="surrogateescape") if state else b""


def rename(unfinished, finished):
    """Give a whole copy its name. Return False if the user has one of this name already.

    Raises Refusal if it is another user's: anyone can compute HASH, and give that name to other sources.
    """
    try:
        os.rename(unfinished, finished)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if os.lstat(finished).st_uid != os.lstat(unfinished).st_uid:
            fix = f"have its owner remove it (ls -ld {finished}), or submit with SNAPSHOT=0"
            raise Refusal(f"{finished} is not a copy of yours: {fix}") from error
        return False
    return True


if __name__ == "__main__":
    main()
