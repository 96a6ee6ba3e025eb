"""Runs a command on a node that sees copies on the node's own disk in place of an environment and data, for STAGE=1.

    python3 launch/stage/enter.py FOLDER --packs FILE -- COMMAND …    copies what is missing, and becomes COMMAND
    python3 launch/stage/enter.py FOLDER --packs FILE --remove        removes the copies, unless another job uses them

FILE is the list that launch/stage/pack.py has written. The copies are in FOLDER/staged-UID/KEY. COMMAND sees each copy
under the path of the original. For that, COMMAND runs in a mount namespace, so that other processes do not see it. An
ordinary user needs a user namespace, too. All ranks of a node share the namespaces, as processes in different ones may
not read each other's memory, which MPI does.

The first rank of a node makes a copy, and the other ranks wait. A copy gets its name when it is whole. Each rank holds
a lock of the copies that it uses. The kernel releases the lock when the rank ends, also when it is killed.

If a node cannot make or mount the copies, this script says why, and COMMAND sees the originals.
It runs on compute nodes: Python 3.6, standard library only.
"""

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19  # sys/mount.h
CAP_SYS_ADMIN, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 21, 47, 2  # linux/capability.h, linux/prctl.h
MOUNT_WITHIN = 60  # seconds that squashfuse may take
DAY = 24 * 3600  # [s]; a copy that no process has used for a day was left by a job that was killed
KEPT_FOR = 7 * DAY  # [s]; of copies with KEEP_STAGE=1, since their last use
libc = ctypes.CDLL(None, use_errno=True)


class NotStaged(Exception):
    """The copies cannot be used on this node; the message says why."""


def main():
    """Copy, mount and run; or remove."""
    if len(sys.argv) < 5 or not os.path.isfile(sys.argv[3]) or not {"--", "--remove"}.intersection(sys.argv[4:]):
        sys.stderr.write("launch/stage/enter.py: set STAGE=1, and call the submit script, which starts this file\n")
        sys.exit(2)
    folder, packs_file = sys.argv[1], sys.argv[3]
    with open(packs_file, encoding="utf-8", errors="surrogateescape") as lines:
        packs = [Pack(*line.rstrip("\n").split("\t")) for line in lines]
    if sys.argv[4] == "--remove":
        remove(folder, packs)
        return
    command = sys.argv[sys.argv.index("--") + 1 :]
    try:
        own = own_folder(folder)
        remove_left_overs(own, {pack.key for pack in packs})
        copies = [copy_to_node(pack, own) for pack in packs]
        see_copies(list(zip(packs, copies)), own)
    except (NotStaged, OSError, ValueError) as error:
        paths = ", ".join(pack.path for pack in packs)
        say(f"{error}. Ranks of this node read {paths} from the shared file system")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


class Pack:
    """A line of launch/stage/pack.py.

    kind: "environment" (its folders are mounted one by one), "data" (a folder), or "file" (not packed).
    """

    def __init__(self, kind, key, file, path):
        """Take the fields of the line."""
        self.kind, self.key, self.file, self.path = kind, key, file, path
        self.is_squashfs = kind != "file" and file.endswith(".sqsh")
        self.is_tar = kind != "file" and file.endswith(".tar")
        self.was_sent = False  # whether sbcast has brought the file to this node

    @property
    def size(self):
        """The size of the file [bytes]; unpacked, a tar takes about as much."""
        return os.path.getsize(self.file)


def say(text):
    """Print a line about this node."""
    sys.stderr.write(f"launch/stage/enter.py on {socket.gethostname()}: {text}\n")
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
    return own


def locked(path):
    """Open a file, and wait until no other process of this node has it locked; return the open file."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


# ---- copies ----------------------------------------------------------------------------------------------------------


def copy_to_node(pack, own):
    """Return the folder of the copy on this node; make the copy if there is none yet.

    From now on this process, and the command that it becomes, hold a lock of it.
    """
    copy = os.path.join(own, pack.key)
    with locked(copy + ".lock"):
        sent = sent_file(pack, own)
        if not os.path.isdir(copy):
            begin = time.time()
            make_copy(pack, sent, copy)
            if os.environ.get("SLURM_NODEID", "0") == "0":
                way = "sent by sbcast" if pack.was_sent else "read from the shared file system"
                size, seconds = pack.size / 1e9, time.time() - begin
                say(f"{pack.path} is on this node's disk: {size:.1f} GB, {way}, ready in {seconds:.1f} s")
        if os.path.exists(sent):
            os.unlink(sent)
        in_use = os.open(os.path.join(copy, "in-use"), os.O_RDWR)
        fcntl.flock(in_use, fcntl.LOCK_SH)
        os.utime(in_use)
        os.set_inheritable(in_use, True)
        if os.environ.get("KEEP_STAGE") == "1":
            open(os.path.join(copy, "keep"), "w").close()
    return copy


def sent_file(pack, own):
    """Return where slurm/stage.sh has sbcast put a pack."""
    return os.path.join(own, f"{pack.key}.sent-{os.environ.get('SLURM_JOB_ID', '')}")


def make_copy(pack, sent, copy):
    """Make the copy, and give it its name when it is whole."""
    unfinished = copy + ".unfinished"  # the lock is held, so what is there was left by a process that was killed
    shutil.rmtree(unfinished, ignore_errors=True)
    pack.was_sent = is_whole(sent, pack.size)
    check_space(pack, os.path.dirname(copy))
    os.mkdir(unfinished, 0o700)
    open(os.path.join(unfinished, "in-use"), "w").close()
    try:
        if pack.is_tar:
            os.mkdir(os.path.join(unfinished, "content"))
            source = sent if pack.was_sent else pack.file
            command = ["tar", "--extract", "--file", source, "--directory", os.path.join(unfinished, "content")]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            if done.returncode:
                text = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
                raise NotStaged(f"{pack.file} cannot be unpacked: {text}")
        elif pack.was_sent:
            os.rename(sent, os.path.join(unfinished, "content"))
        else:
            shutil.copyfile(pack.file, os.path.join(unfinished, "content"))
            if os.path.getsize(os.path.join(unfinished, "content")) != pack.size:
                raise NotStaged(f"{pack.file} changed while it was copied")
        os.rename(unfinished, copy)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def is_whole(sent, size):
    """Return whether sbcast has brought a whole file here: one of this user, of the right size."""
    try:
        status = os.lstat(sent)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_size == size


def check_space(pack, folder):
    """Raise NotStaged if the node's disk has not the space for a copy."""
    needed = pack.size if pack.is_tar or not pack.was_sent else 0
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise NotStaged(
            f"{folder} has {free / 1e9:.1f} GB left, and {pack.path} needs {needed / 1e9:.1f} GB:"
            " set STAGE_DIR to a larger disk of the node"
        )


def remove(folder, packs):
    """Remove the copies that no process uses any more."""
    own = own_folder(folder)
    for pack in packs:
        if os.path.exists(sent_file(pack, own)):
            os.unlink(sent_file(pack, own))
        remove_copy(os.path.join(own, pack.key))
    for name in os.listdir(own):
        if name.startswith(f"namespace-{socket.gethostname()}-{os.environ.get('SLURM_JOB_ID', '')}."):
            os.unlink(os.path.join(own, name))


def remove_left_overs(own, wanted):
    """Remove what jobs that were killed have left on this node, but for the copies that are wanted now."""
    for sent in glob.glob(os.path.join(glob.escape(own), "*.sent-*")):
        with contextlib.suppress(OSError):  # another rank may have removed it
            if time.time() - os.stat(sent).st_mtime > DAY:
                os.unlink(sent)
    for name in os.listdir(own):
        key, _, suffix = name.partition(".")
        if key not in wanted and suffix in ("", "unfinished", "removing") and unused_for(os.path.join(own, name)) > DAY:
            remove_copy(os.path.join(own, key))


def unused_for(copy):
    """Return for how long no process has begun to use a copy [s]; 0 for what is no copy."""
    try:
        return time.time() - os.stat(os.path.join(copy, "in-use")).st_mtime
    except OSError:
        return 0


def remove_copy(copy):
    """Remove a copy, and what is left of it, unless a process holds its lock, or a job wants it to be kept."""
    with locked(copy + ".lock"):
        for left in (copy + ".unfinished", copy + ".removing"):
            shutil.rmtree(left, ignore_errors=True)
        if os.path.exists(os.path.join(copy, "keep")) and unused_for(copy) < KEPT_FOR:
            return
        with contextlib.suppress(OSError), open(os.path.join(copy, "in-use"), "r+") as in_use:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError if a process uses it
            end_squashfuse(copy)
            os.rename(copy, copy + ".removing")  # if the removal is interrupted, nobody takes the rest for whole
            shutil.rmtree(copy + ".removing", ignore_errors=True)


# ---- mounts ----------------------------------------------------------------------------------------------------------


def see_copies(pairs, own):
    """Enter the namespaces in which the originals are covered by the copies; make them, if this rank is the first.

    If that fails, the record has the reason, so that the other ranks of the node do not try, too.
    """
    folder, step = os.getcwd(), f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    keys = hashlib.sha256(" ".join(pack.key for pack, _ in pairs).encode()).hexdigest()[:8]
    with locked(namespace_file(own, f"{step}-{keys}")) as record:
        kind, *words = record.read().split(" ", 2) or [""]
        if kind == "failed" and words[0] == step:
            raise NotStaged("another rank could not mount the copies")
        if kind != "process" or not join(*words):
            try:
                child = make_namespaces(pairs)
            except (NotStaged, OSError):
                write_record(record, f"failed {step}")
                raise
            join(child, start_time(child))
            end(child)  # the namespaces live on with this process
            write_record(record, f"process {os.getpid()} {start_time(os.getpid())}")
    os.chdir(folder)  # by its path, as it may lie in what is covered now


def write_record(record, text):
    """Replace the text of an open file."""
    record.seek(0)
    record.truncate()
    record.write(text)


def make_namespaces(pairs):
    """Have a child make the namespaces, and mount the copies there; return the child, which then waits.

    If the child fails, this process has not moved, and can run the command where it is. Raises NotStaged then.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            new_namespace()
            for pack, copy in pairs:
                mount_copy(pack, copy)
            os.write(write, b"mounted")
        except (NotStaged, OSError, ValueError) as error:
            os.write(write, str(error).encode(errors="replace")[:4000])
        os.close(write)
        while True:
            signal.pause()
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        answer = answers.read().decode(errors="replace")
    if answer != "mounted":
        end(child)
        raise NotStaged(answer or "the process that mounts the copies was killed")
    return child


def end(child):
    """End a child."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def namespace_file(own, name):
    """Return the file of a namespace of this node; the name of the node is for a disk that nodes share."""
    return os.path.join(own, f"namespace-{socket.gethostname()}-{name}")


def start_time(process):
    """Return when a process started, in the kernel's own count; None if there is no such process."""
    try:
        with open(f"/proc/{process}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def join(process=None, began=None):
    """Join the namespaces of a process; return False if there is none, or it has ended."""
    if process is None or start_time(process) != began:
        return False
    try:
        namespaces = [f"/proc/{process}/ns/mnt"]
        if os.getuid() != 0:
            namespaces.insert(0, f"/proc/{process}/ns/user")
        files = [os.open(name, os.O_RDONLY) for name in namespaces]
    except OSError:
        return False
    for file in files:
        call("join the namespace of the first rank", libc.setns, file, 0)
        os.close(file)
    return True


def new_namespace():
    """Give this process a mount namespace of its own. The ids of user and group stay what they are."""
    user, group = os.getuid(), os.getgid()
    if user == 0:
        call("make a mount namespace", libc.unshare, CLONE_NEWNS)
    else:
        call("make a user namespace, which this node may forbid", libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount("none", "/", MS_REC | MS_SLAVE)


def mount_copy(pack, copy):
    """Cover the original by the copy."""
    content = os.path.join(copy, "content")
    if pack.is_squashfs:
        mount_squashfs(copy, content)
        content = os.path.join(copy, "mounted")
    if pack.kind != "environment":
        mount(content, pack.path, MS_BIND)
        return
    for name in sorted(os.listdir(content)):
        mount(os.path.join(content, name), os.path.join(pack.path, name), MS_BIND)


def mount_squashfs(copy, file):
    """Start squashfuse, which serves the files of a pack as long as this namespace lives.

    It outlives the rank that has started it, for the sake of the others, and ends with the job's step. It ignores the
    signals that ask a job to end, as the ranks still need their files then.
    """
    mounted = os.path.join(copy, "mounted")
    os.makedirs(mounted, exist_ok=True)
    before = os.stat(mounted).st_dev
    try:
        server = subprocess.Popen(
            ["squashfuse", "-f", file, mounted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=prepare_server,  # noqa: PLW1509  this process has one thread
        )
    except FileNotFoundError as error:
        raise NotStaged("squashfuse is not on this node: set STAGE_FORMAT=tar") from error
    until = time.time() + MOUNT_WITHIN
    while os.stat(mounted).st_dev == before:
        if server.poll() is not None or time.time() > until:
            server.kill()
            text = server.stderr.read().decode(errors="replace").strip()
            raise NotStaged(f"squashfuse cannot mount a file: {text}. Set STAGE_FORMAT=tar")
        time.sleep(0.01)
    with open(os.path.join(copy, f"squashfuse-{server.pid}"), "w") as record:
        record.write(str(start_time(server.pid)))


def prepare_server():
    """Prepare a process to become squashfuse: a session of its own, ended by SIGKILL alone, allowed to mount."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if os.getuid() != 0:  # in a user namespace, execve takes the capability away unless it is ambient
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of capget and capset
        sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
        libc.capget(header, sets)
        sets[2] |= 1 << CAP_SYS_ADMIN
        libc.capset(header, sets)
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0)


def end_squashfuse(copy):
    """End the squashfuse processes that serve a copy, if Slurm has not."""
    for name in os.listdir(copy):
        if name.startswith("squashfuse-"):
            process = name.split("-")[1]
            with open(os.path.join(copy, name)) as file:
                if start_time(process) == file.read():
                    os.kill(int(process), signal.SIGKILL)


def mount(source, target, flags):
    """Call mount(2). Raises NotStaged if the kernel refuses."""
    names = os.fsencode(source), os.fsencode(target)
    call(f"mount {source} at {target}", libc.mount, *names, None, ctypes.c_ulong(flags), None)


def call(what, function, *arguments):
    """Call a function of the C library. Raises NotStaged if it fails."""
    if function(*arguments):
        number = ctypes.get_errno()
        raise NotStaged(f"cannot {what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
