"""Makes copies of an environment and data on this node's disk, and becomes a command that loads them from there.

    python3 extras/stage/enter.py --use FOLDER PACK … -- COMMAND …    makes copies that are missing, and becomes COMMAND
    python3 extras/stage/enter.py --keep FOLDER PACK … -- COMMAND …   the same; later jobs leave the copies for a week
    python3 extras/stage/enter.py --remove FOLDER PACK …              removes the copies, unless another job uses them

PACK stands for the five words that pack.py prints of each pack. Its copy is FOLDER/staged-UID/KEY/content/NAME, where
NAME is that of the original, as programs look at the endings of names.

The copy of an environment is made to work where it lies: pyvenv.cfg, links to Python and the first lines of scripts
in bin/ name the copy. COMMAND gets the variables that lead to an environment, such as PATH, and STAGE_DATA, with the
paths of the copies. In its arguments, a path of the data becomes that of their copy.

One process of a node at a time makes or removes copies, as it holds a lock. A copy gets its name when it is whole. That
of data is read-only.
Each process that uses a copy holds a lock of its file in-use. The kernel releases the locks when the process ends, also
when it is killed. The time of in-use says until when jobs that end leave the copy.

If a node cannot make the copies, this script says why, and COMMAND uses the originals.
It runs on compute nodes: Python 3.6, standard library only.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import namedtuple

DAY = 24 * 3600  # [s]; a copy that no process has used for a day was left by a job that was killed
KEPT_FOR = 7 * DAY  # [s]; with --keep
# The variables that lead to the packages and scripts of an environment. Some are lists with colons.
VARIABLES = ("PATH", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
LONGEST_FIRST_LINE = 127  # bytes; before Linux 5.1 the kernel cuts the first line of a script there (execve(2))

WORDS_OF_PACK = 5
# What pack.py prints of a pack. names: the paths by which the original is named.
Pack = namedtuple("Pack", "kind key file path names")


class NotStaged(Exception):
    """The copies cannot be made on this node; the message says why."""


def main():
    """Make the copies and run the command; or remove the copies."""
    way, folder, packs, command = read_arguments(sys.argv[1:])
    if way == "--remove":
        remove_copies(own_folder(folder), packs)
        return
    try:
        copies = make_copies(own_folder(folder), packs, keep=way == "--keep")
    except (NotStaged, OSError, subprocess.SubprocessError) as error:
        copies = []
        say(f"{error}. The ranks of this node read {', '.join(pack.path for pack in packs)} where they lie")
    command = use_copies(copies, packs, command)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


def read_arguments(words):
    """Return what is to be done, the folder, the packs and the command."""
    end = words.index("--") if "--" in words else len(words)
    options, of_packs, command = words[:2], words[2:end], words[end + 1 :]
    is_known = words[:1] == ["--remove"] or (words[:1] in (["--use"], ["--keep"]) and command)
    if not is_known or end < 2 or len(of_packs) % WORDS_OF_PACK:
        sys.stderr.write("extras/stage/enter.py: set STAGE=1, and call the submit script, which starts this file\n")
        sys.exit(2)
    starts = range(0, len(of_packs), WORDS_OF_PACK)
    packs = [read_pack(*of_packs[start : start + WORDS_OF_PACK]) for start in starts]
    return (*options, packs, command)


def read_pack(kind, key, file, path, name):
    """Return a pack; the words are those that pack.py prints."""
    names = {path, name}
    if kind == "environment":  # its scripts have the path at which it was made, which may lead over a link
        names |= {os.environ.get(variable, "") for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")}
        names = {name for name in names if os.path.isabs(name) and os.path.realpath(name) == path}
    return Pack(kind, key, file, path, sorted(names))


def say(text):
    """Print a line about this node."""
    sys.stderr.write(f"extras/stage on {socket.gethostname()}: {text}\n")
    sys.stderr.flush()


def own_folder(folder):
    """Return the user's folder of copies on this node. Raises NotStaged if another user has made it."""
    own = os.path.join(folder, f"staged-{os.getuid()}")
    try:
        os.mkdir(own, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        fix = "set STAGE_DIR to a folder on the node's disk"
        raise NotStaged(f"cannot write to {folder} ({error.strerror}): {fix}") from error
    status = os.lstat(own)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise NotStaged(f"{own} is not a folder of yours: set STAGE_DIR to another folder")
    os.chmod(own, 0o700)
    return own


@contextlib.contextmanager
def locked(own):
    """Wait until no other process of this node makes or removes copies."""
    with open(os.path.join(own, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- make copies -----------------------------------------------------------------------------------------------------


def make_copies(own, packs, keep):
    """Make the copies that are missing; return pairs of a pack and the path of its copy.

    Where one rank has failed, the other ranks of its step do not try again. They use the originals, too.
    """
    with locked(own):
        if step_that_failed(own) == this_step():
            return []
        try:
            remove_left_overs(own, {pack.key for pack in packs})
            copies = []
            for pack in packs:
                copies.append((pack, copy_of(pack, own, keep, copies)))
            return copies
        except (NotStaged, OSError, subprocess.SubprocessError):
            remove_sent(own, packs)
            note_failure(own)
            raise


def this_step():
    """Return a name for the start of the ranks: a job that is requeued counts its steps anew."""
    return ".".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "RESTART_COUNT", "SLURM_STEP_ID"))


def note_failure(own):
    """Note that this step has failed, by what a link leads to: on a full disk a file would have no space for that."""
    link = os.path.join(own, "failed")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    with contextlib.suppress(OSError):
        os.symlink(this_step(), link)


def step_that_failed(own):
    """Return what note_failure() has noted last."""
    try:
        return os.readlink(os.path.join(own, "failed"))
    except OSError:
        return None


def copy_of(pack, own, keep, copies):
    """Return the path of a copy; make it if there is none yet.

    From now on this process, and the command that it becomes, hold a lock of it.
    """
    place, sent = os.path.join(own, pack.key), sent_file(pack, own)
    if not os.path.isdir(place):
        begin = time.time()
        was_sent = is_whole(sent, os.path.getsize(pack.file))
        if not was_sent:
            remove_sent(own, [pack])  # a part of it takes space
        make_copy(pack, sent if was_sent else pack.file, place, copies)
        if os.environ.get("SLURM_NODEID", "0") == "0":
            way = "sent by sbcast" if was_sent else "read from the shared file system"
            size, seconds = os.path.getsize(pack.file) / 1e9, time.time() - begin
            say(f"{pack.path} is on this node's disk: {size:.1f} GB, {way}, ready in {seconds:.1f} s")
    remove_sent(own, [pack])
    in_use = os.open(os.path.join(place, "in-use"), os.O_RDWR)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    until = time.time() + KEPT_FOR if keep else max(time.time(), os.stat(in_use).st_mtime)
    os.utime(in_use, (until, until))
    os.set_inheritable(in_use, True)
    return content(pack, place)


def content(pack, place):
    """Return the path of a copy in its place."""
    return os.path.join(place, "content", os.path.basename(pack.path))


def sent_file(pack, own):
    """Return where hooks.sh has sbcast put a pack."""
    return os.path.join(own, f"{pack.key}.sent-{os.environ.get('SLURM_JOB_ID', '')}")


def remove_sent(own, packs):
    """Remove the files that sbcast has put here."""
    for pack in packs:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(sent_file(pack, own))


def is_whole(sent, size):
    """Return whether sbcast has brought a whole file here: one of this user, of the right size."""
    try:
        status = os.lstat(sent)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_size == size


def make_copy(pack, source, place, copies):
    """Make a copy, and give it its name when it is whole."""
    unfinished = place + ".unfinished"
    target = content(pack, unfinished)
    try:
        os.makedirs(os.path.dirname(target), 0o700)
        open(os.path.join(unfinished, "in-use"), "w").close()
        if pack.kind != "file":
            unpack(source, target, is_compressed=pack.file.endswith(".zst"))
        elif source == pack.file:
            shutil.copyfile(source, target)
        else:
            os.rename(source, target)
        if pack.kind == "environment":
            relocate(target, [*copies, (pack, content(pack, place))])
        elif pack.kind != "python":  # data: a result that is written there shall fail, and not be removed with the copy
            subprocess.run(["chmod", "-R", "a-w", target], check=True)
        os.rename(unfinished, place)
    except BaseException:
        remove_folder(unfinished)
        raise


def remove_folder(folder):
    """Remove a folder of copies, as far as that goes. The folders of data do not allow it yet."""
    subprocess.run(["chmod", "-R", "u+w", folder], stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def unpack(tar, folder, is_compressed):
    """Unpack a tar into a new folder. Raises NotStaged with what the program tar says if it fails."""
    os.mkdir(folder)
    options = ["--use-compress-program=zstd"] if is_compressed else []
    command = ["tar", "--extract", *options, "--force-local", "--file", tar, "--directory", folder]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        text = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
        raise NotStaged(f"cannot unpack {tar}: {text}")


# ---- make an environment work where its copy lies --------------------------------------------------------------------


def relocate(folder, copies):
    """Have the copy of an environment name itself, and the copy of its Python, in place of the originals."""
    config = os.path.join(folder, "pyvenv.cfg")
    if os.path.exists(config):
        rename_in(config, copies)
    for entry in os.scandir(os.path.join(folder, "bin")):
        if entry.is_symlink():
            link_to_copy(entry.path, [pair for pair in copies if pair[0].kind == "python"])
        elif entry.is_file():
            with open(entry.path, "rb") as file:
                is_script = file.read(2) == b"#!"
            if is_script:
                rename_in(entry.path, copies, lines=2)


def rename_in(file, copies, lines=None):
    """Replace the paths of originals in a file by those of their copies, in its first lines alone if `lines` is given.

    A script's first line names its Python. If that is too long a line, or has a space, pip and uv write a script that
    sh passes to the Python of the second line.
    """
    with open(file, "r+b") as opened:
        text = opened.read().split(b"\n")
        count = len(text) if lines is None else lines
        renamed = [copied_paths(line, copies) for line in text[:count]]
        if renamed != text[:count] and (lines is None or len(renamed[0]) <= LONGEST_FIRST_LINE):
            opened.seek(0)
            opened.write(b"\n".join(renamed + text[count:]))
            opened.truncate()


def copied_paths(line, copies):
    """Return a line with the paths of copies in place of the originals'."""
    for pack, copy in copies:
        for name in pack.names:
            path = rb"(?<=[!= \"'])" + re.escape(os.fsencode(name)) + rb"(?=/)"
            line = re.sub(path, os.fsencode(copy).replace(b"\\", rb"\\"), line)
    return line


def link_to_copy(link, copies):
    """Have a link that leads into an original lead into its copy, if what it leads to is there."""
    target = copied(os.path.realpath(link), copies)
    if os.path.isabs(os.readlink(link)) and target != os.path.realpath(link) and os.path.exists(target):
        os.unlink(link)
        os.symlink(target, link)


def copied(path, copies):
    """Return where the copy of a path lies; the path itself, if it is not in an original."""
    for pack, copy in copies:
        for name in pack.names:
            if path == name or path.startswith(name + "/"):
                return copy + path[len(name) :]
    return path


# ---- use copies ------------------------------------------------------------------------------------------------------


def use_copies(copies, packs, command):
    """Set the variables that lead to an environment and to data; return the command with the paths of the copies.

    The command is the launcher, the program (a file, or -m and a module), and its arguments. Under mpirun the launcher
    is two words, and the program is looked at like an argument.
    """
    environments = [pair for pair in copies if pair[0].kind == "environment"]
    for name in VARIABLES:
        if name in os.environ:
            os.environ[name] = ":".join(copied(path, environments) for path in os.environ[name].split(":"))
    data = [pair for pair in copies if pair[0].kind in ("data", "file")]
    for pack in packs:
        if pack.kind in ("data", "file"):
            os.environ["STAGE_DATA"] = copied(pack.path, data)
    count = 3 if command[1:2] == ["-m"] else 2
    return command[:count] + [copied_argument(word, data) for word in command[count:]]


def copied_argument(word, data):
    """Return an argument of the program, PATH or NAME=PATH, with the path of the copy.

    A path that is not in the copy stays: it may be that of an output, which would be removed with the copy.
    """
    name, equals, path = word.partition("=")
    for before, given in ((name + equals, path), ("", word)):
        there = copied(given, data)
        if there != given and os.path.exists(there):
            return before + there
    return word


# ---- remove copies ---------------------------------------------------------------------------------------------------


def remove_copies(own, packs):
    """Remove the copies that no process uses any more, and that no job wants to be kept."""
    with locked(own):
        remove_sent(own, packs)
        for pack in packs:
            if unused_for(os.path.join(own, pack.key)) >= 0:
                remove(os.path.join(own, pack.key))


def remove_left_overs(own, wanted):
    """Remove what jobs that were killed have left on this node, but for the copies that are wanted now."""
    for name in os.listdir(own):
        path = os.path.join(own, name)
        key, _, suffix = name.partition(".")
        if suffix in ("unfinished", "removing"):  # nobody is at work on it, as this process holds the lock
            remove_folder(path)
        elif suffix.startswith("sent-") and time.time() - os.lstat(path).st_mtime > DAY:
            os.unlink(path)
        elif key not in wanted and unused_for(path) > DAY:
            remove(path)


def unused_for(place):
    """Return for how long no process has begun to use a copy [s]; less than 0 for one that is kept, or is none."""
    try:
        return time.time() - os.stat(os.path.join(place, "in-use")).st_mtime
    except OSError:
        return -1


def remove(place):
    """Remove a copy, unless a process holds its lock."""
    with contextlib.suppress(OSError), open(os.path.join(place, "in-use"), "r+") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError if a process uses it
        os.rename(place, place + ".removing")  # if the removal is interrupted, nobody takes the rest for whole
        remove_folder(place + ".removing")


if __name__ == "__main__":
    main()
