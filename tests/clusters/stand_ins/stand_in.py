"""What the stand-ins for container runtimes share: reading options, images, and the way into a container.

Nothing here is a container runtime. A stand-in is put before the real program on PATH. It refuses what the real program
refuses, but for what its first lines call not imitated. Then it runs the command in a mount namespace of its own, where
only those folders are left that the real program would show. It takes root. Environment:

  STAND_IN_HIDE      colon-separated folders that no image has: empty inside, but for what was mounted
  STAND_IN_NO_MOUNT  colon-separated folders that cannot be mounted, as where a file system refuses root
  STAND_IN_HOLD      a file: while it exists, no container that is being unpacked gets ready
  STAND_IN_IMAGE     what any registry delivers: an image file
  STAND_IN_LOG       a line of JSON is added for each call: runtime, host, argv, and mounts etc. of a container
  STAND_IN_STATE     folder that belongs to one node (/dev/shm/stand_ins); tests without a cluster set it to tmp_path
  STAND_IN_SITE_FS   shifter: colon-separated folders that the site mounts into every container

Inside, STAND_IN_RUNTIME is the runtime's name. An image file is JSON, all of it optional: {"env": {"PATH": ...},
"binds": [host folders that count as part of the image], "workdir": "/", "entrypoint": [words]}.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
STAGE = "/sys"  # where the new root is put together; exists everywhere, and nobody mounts it
HOST_WRITABLE = ("dev", "proc", "sys", "run", "tmp")


def set_of(text: str) -> set[str]:
    return set(text.split())


# enroot bin/enroot-mount.c (8ea147d, 2026-04-29): mount_opts; pyxis and the container engine hand flags on to it
MOUNT_OPTIONS = set_of(
    """async atime bind dev diratime dirsync exec iversion loud mand noatime nodev nodiratime noexec noiversion nomand
    norelatime nostrictatime nosuid private rbind relatime remount ro rprivate rshared rslave runbindable rw shared
    silent slave strictatime suid sync unbindable lazytime nolazytime auto defaults group noauto nofail nogroup noowner
    nouser nousers owner user users x-create=dir x-create=file x-create=auto x-move x-detach"""
)

Mount = namedtuple("Mount", "source target flags", defaults=("",))  # flags: comma-separated; only ro has an effect
libc = ctypes.CDLL(None, use_errno=True)


class Refused(SystemExit):
    """What the real program would say. If nothing catches it, it is printed and the exit code is 1."""


def fail(message: str, code: int = 1):
    print(message, file=sys.stderr)
    raise SystemExit(code)


def log(runtime: str, **facts) -> None:
    path = os.environ.get("STAND_IN_LOG")
    if path:
        line = json.dumps({"runtime": runtime, "host": os.uname().nodename, **facts}) + "\n"
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, line.encode())  # one write: several tasks add lines
        os.close(handle)


def state() -> Path:
    """A folder of this node."""
    path = Path(os.environ.get("STAND_IN_STATE", "/dev/shm/stand_ins"))
    path.mkdir(parents=True, exist_ok=True)
    return path


# ---- options


def getopt(program: str, words: list[str], options: dict[str, int], short: dict[str, str]):
    """Read options like glibc's getopt_long does, up to the first word that is none: [(name, value)], other words.

    `options`: 0 without a value, 1 with, 2 with --name=value only. `short`: letter -> name.
    """
    found, words = [], list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            found.append(long_option(program, word, words, options))
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in short:
                raise Refused(f"{program}: invalid option -- '{letter}'")
            kind, value = options[short[letter]], None
            if kind:
                value, letters = letters, ""
                if kind == 1 and not value:
                    if not words:
                        raise Refused(f"{program}: option requires an argument -- '{letter}'")
                    value = words.pop(0)
            found.append((short[letter], value or None if kind == 2 else value))
    return found, words


def long_option(program: str, word: str, words: list[str], options: dict[str, int]) -> tuple[str, str | None]:
    name, equals, value = word[2:].partition("=")
    names = [name] if name in options else sorted(option for option in options if option.startswith(name))
    if not names:
        raise Refused(f"{program}: unrecognized option '{word}'")
    if len(names) > 1:
        shown = " ".join(f"'--{one}'" for one in names)
        raise Refused(f"{program}: option '{word}' is ambiguous; possibilities: {shown}")
    kind = options[names[0]]
    if equals and not kind:
        raise Refused(f"{program}: option '--{names[0]}' doesn't allow an argument")
    if kind == 1 and not equals:
        if not words:
            raise Refused(f"{program}: option '--{names[0]}' requires an argument")
        value = words.pop(0)
    return names[0], value if kind == 1 or equals else None


# ---- images


def read_image(path: str | Path) -> dict:
    """An image file. ValueError: it is none."""
    image = json.loads(Path(path).read_text())
    known = {"env": dict, "binds": list, "workdir": str, "entrypoint": list, "reference": str}
    if not isinstance(image, dict) or any(not isinstance(image[key], known.get(key, ())) for key in image):
        raise ValueError(f"{path}: not an image file of the stand-ins")
    return {"env": {}, "binds": [], "workdir": "/", "entrypoint": [], **image}


def pulled(reference: str) -> dict:
    """What a registry delivers. OSError: it does not."""
    if not os.environ.get("STAND_IN_IMAGE"):
        raise OSError("STAND_IN_IMAGE is not set: no registry can be reached")
    return {**read_image(os.environ["STAND_IN_IMAGE"]), "reference": reference}


def docker_reference(uri: str) -> tuple[str, str, str]:
    """Registry, image and tag of docker://[USER@][REGISTRY#]IMAGE[:TAG], else Refused.

    As enroot 3.5.0 does, src/docker.sh docker::_parse_uri. Since 4.0.1 a slash may follow the registry as well; before,
    that was the name of an image on Docker Hub, where there is none.
    """
    user, image, tag = r"[\w.!~*'()%;:&=+$,-]+", r"[a-z0-9/._-]+", r"[\w.:-]+"
    match = re.fullmatch(rf"docker://(?:{user}@)?(?:([^#]+)#)?({image})(?::({tag}))?", uri, re.ASCII)
    if not match:
        raise Refused(f"[ERROR] Invalid image reference: {uri}")
    registry, name, tag = match[1] or "registry-1.docker.io", match[2], match[3] or "latest"
    if not match[1] and "/" not in name:
        name = f"library/{name}"
    if "/" in registry or (not match[1] and "." in name.split("/")[0]):
        url = f"https://{registry}/v2/{name}/manifests/{tag}"
        raise Refused(f"[ERROR] URL {url} returned error code: 401 Unauthorized")
    return registry, name, tag


def says_no(name: str) -> bool:
    """A setting of enroot that is switched off: config::fini of enroot.in drops those that say no."""
    return bool(re.fullmatch("no?|N[oO]?|[fF](alse)?|FALSE", os.environ.get(name, "")))


def login_environment(image: dict, more: dict[str, str]) -> dict[str, str]:
    """The environment of a container of enroot: nothing of the caller's but TERM and what was asked for.

    src/runtime.sh _do_environ: the image's /etc/environment (with ${NAME} of the caller), environ.d (as delivered:
    TERM), then the arguments. Unless ENROOT_LOGIN_SHELL says no (enroot.in: it is true), bin/enroot-switchroot.c
    sys_login adds from passwd what is still not set, and starts a login shell, whose /etc/profile sets PATH: every
    image counts as Debian's, whose /etc/profile does (Debian 13, 2026-11-22).
    """
    caller = os.environ
    result = {k: re.sub(r"\$\{(\w+)\}", lambda m: caller.get(m[1], ""), v) for k, v in image["env"].items()}
    result["TERM"] = caller.get("TERM", "")
    result.update((key, value) for key, value in more.items() if not key.startswith("ENROOT_"))
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if says_no("ENROOT_LOGIN_SHELL"):
        return {"PATH": path, **result}
    user = pwd.getpwuid(os.geteuid())
    login = {"HOME": user.pw_dir, "SHELL": user.pw_shell, "USER": user.pw_name, "LOGNAME": user.pw_name}
    path = path if os.geteuid() == 0 else "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
    return {**login, **result, "PATH": path}


def pytorch_hook(found: dict[str, str], environ: dict[str, str]) -> None:
    """Add to a container's variables what NVIDIA/enroot conf/hooks/extra/50-slurm-pytorch.sh adds.

    It runs for images that have PYTORCH_VERSION, leaves what is set already, even if it is empty, and counts as
    installed. `environ` is what enroot itself was started with.
    """
    if "PYTORCH_VERSION" not in found:
        return
    if environ.get("SLURM_STEP_NODELIST") and shutil.which("scontrol"):
        words = ["scontrol", "show", "hostname", environ["SLURM_STEP_NODELIST"]]
        hosts = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
        found.setdefault("MASTER_ADDR", "".join(hosts[:1]))
    if environ.get("SLURM_JOB_ID"):
        found.setdefault("MASTER_PORT", str(int(environ["SLURM_JOB_ID"]) % 4536 + 61000))
    for name, slurm in (("WORLD_SIZE", "SLURM_NTASKS"), ("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
        if environ.get(slurm):
            found.setdefault(name, environ[slurm])
    if int(environ.get("SLURM_STEP_NUM_TASKS") or 1) > int(environ.get("SLURM_STEP_NUM_NODES") or 1):
        found.setdefault("OMP_NUM_THREADS", "1")


# ---- the way in


def call(function, *arguments, path: str) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    call(libc.mount, *words, ctypes.c_ulong(flags), None if data is None else data.encode(), path=target)


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def folders(name: str) -> list[str]:
    """The folders that an environment variable names, and that exist."""
    return [os.path.realpath(path) for path in os.environ.get(name, "").split(":") if os.path.isdir(path)]


def loopback_up() -> None:
    with socket.socket() as handle:
        fcntl.ioctl(handle, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


class Root:
    """A new root folder: the machine's, read-only, without what is hidden. What is new in it is kept in a folder."""

    def __init__(self, hidden: list[str], fresh: list[str], kept: Path | None):
        self.own: dict[int, str] = {}  # device -> path of the empty file systems that were put somewhere
        self.fresh = fresh
        entries = self.contents("/")
        self.machine = {name for name, _, _ in entries}
        if kept:
            kept.mkdir(exist_ok=True)
            mount(str(kept), STAGE, None, MS_BIND)
        else:
            self.empty(STAGE)
        entries.sort(key=lambda entry: f"/{entry[0]}" != STAGE)  # see below
        self.fill(STAGE, entries)
        for name, handle, _ in entries:
            if handle is not None and name not in HOST_WRITABLE:
                mount(None, f"{STAGE}/{name}", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.chroot(STAGE)
        os.chdir("/")
        self.own = {}
        call(libc.umount2, STAGE.encode(), MNT_DETACH, path=STAGE)  # binding it took along what had been put over it
        for folder in sorted({*hidden, *fresh}):
            if os.path.isdir(folder) and not any(below(folder, done) for done in self.own.values()):
                self.empty(folder, "1777" if folder in fresh else "755")

    @staticmethod
    def contents(folder: str) -> list[tuple]:
        found = []
        for entry in os.scandir(folder):
            if entry.is_symlink():
                found.append((entry.name, None, os.readlink(entry.path)))
            else:
                found.append((entry.name, os.open(entry.path, os.O_PATH | os.O_NOFOLLOW), entry.is_dir()))
        return found

    def empty(self, path: str, mode: str = "755") -> None:
        mount("tmpfs", path, "tmpfs", 0, f"mode={mode}")
        self.own[os.stat(path).st_dev] = path

    def fill(self, folder: str, entries: list[tuple]) -> None:
        for name, handle, fact in entries:
            if handle is None:
                with contextlib.suppress(FileExistsError):
                    os.symlink(fact, f"{folder}/{name}")
            else:
                self.create(f"{folder}/{name}", fact)
                mount(f"/proc/self/fd/{handle}", f"{folder}/{name}", None, MS_BIND | MS_REC)
                os.close(handle)

    @staticmethod
    def create(path: str, is_folder: bool) -> None:
        if is_folder:
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "a").close()

    def bind(self, handle: int, entry: Mount, mounted: list[str]) -> None:
        if entry.source in os.environ.get("STAND_IN_NO_MOUNT", "").split(":"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry.target)
        is_folder = os.path.isdir(f"/proc/self/fd/{handle}")
        target = os.path.realpath(entry.target)
        ancestor = target
        while not os.path.exists(ancestor):
            ancestor = os.path.dirname(ancestor)
        if ancestor != target:
            in_machine = ancestor.split("/")[1] in self.machine and os.stat(ancestor).st_dev not in self.own
            if in_machine and not any(below(ancestor, path) for path in mounted):
                entries = self.contents(ancestor)  # the machine's own folder is to stay as it is
                self.empty(ancestor)
                self.fill(ancestor, entries)
            self.create(target, is_folder)
        mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
        if "ro" in entry.flags.split(","):
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
        mounted.append(target)

    def close(self) -> None:
        """Make the image read-only, but not a folder that was mounted over one of its own."""
        mount(None, "/", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
        for device, path in self.own.items():
            if path not in self.fresh and os.stat(path).st_dev == device:
                mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter(
    runtime: str,
    argv: list[str],
    image: dict,
    mounts: list[Mount],
    environ: dict[str, str],
    cwd: str,
    command: list[str],
    *,
    writable: bool = False,
    fresh: tuple[str, ...] = ("/tmp",),
    network: bool = True,
    shared_memory: bool = True,
    shown: tuple[str, ...] = (),
    no_cwd: str = "",
    kept: Path | None = None,
    child: str = "",
    **facts,
) -> None:
    """Run the command in a container. Returns only by OSError, whose filename is the path that did not work.

    `fresh`: folders that are new and writable. `network`, `shared_memory`: the machine's. `shown`: folders that the
    site mounts. `no_cwd`: go on in / with this message. `kept`: folder for what is written to the container.
    `child`: the command is a child of this process, in a PID namespace of its "own" or in that of the "host".
    """
    log(runtime, argv=argv, image=image.get("reference", ""), mounts=[list(m) for m in mounts], cwd=cwd,
        command=command, **facts)  # fmt: skip
    hidden = folders("STAND_IN_HIDE")
    call(libc.unshare, CLONE_NEWNS | (0 if network else CLONE_NEWNET), path="/proc/self/ns")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    if not network:
        loopback_up()
    all_mounts = [*(Mount(path, path, "ro") for path in image["binds"]), *(Mount(path, path) for path in shown)]
    # Opened before they are hidden; a name below /proc/self/fd reaches them afterwards.
    opened = [(os.open(entry.source, os.O_PATH), entry) for entry in [*all_mounts, *mounts]]
    root = Root(hidden, list(fresh), kept)
    mounted: list[str] = []
    for handle, entry in opened:
        root.bind(handle, entry, mounted)
    if not shared_memory:
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777,size=64m")
    if not writable:
        root.close()
    if child:
        go_on_in_child(own_namespace=child == "own")
    try:
        os.chdir(cwd)
    except OSError as error:
        if not no_cwd:
            raise OSError(error.errno, error.strerror, "cwd") from None
        print(no_cwd, file=sys.stderr)
        os.chdir("/")
    sys.stdout.flush()
    with contextlib.suppress(FileNotFoundError):
        os.execvpe(command[0], command, {**environ, "STAND_IN_RUNTIME": runtime})
    raise FileNotFoundError(2, os.strerror(2), "command")


def go_on_in_child(own_namespace: bool) -> None:
    """Return in a child. This process hands its signals on to the child, and ends with the child's exit code."""
    handed_on = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)  # one that comes now waits until there is a child
    if own_namespace:
        call(libc.unshare, CLONE_NEWPID, path="/proc/self/ns/pid")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
        if own_namespace:
            mount("proc", "/proc", "proc")
        return

    def hand_on(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in handed_on:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    status = os.waitpid(child, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


# ---- container file systems of enroot, which pyxis uses as well


def podman_image(name: str) -> Path:
    """Where this node's podman has an image."""
    return record(state() / "podman", name)


def podman_container(name: str) -> Path:
    """Where this node's podman has a container that was created and not removed."""
    return state() / "podman-containers" / name


def record(folder: Path, name: str) -> Path:
    """The file of an image of podman in a folder of such files."""
    name = re.sub("^(docker.io/library/|docker.io/|localhost/)", "", name)
    name += "" if ":" in name.split("/")[-1] else ":latest"
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"


def create_rootfs(folder: Path, image: dict) -> None:
    """Slow, and not at once, as unsquashfs is: whoever looks in between sees half of it."""
    folder.mkdir(parents=True)
    time.sleep(0.3)
    while os.path.exists(os.environ.get("STAND_IN_HOLD", "")):
        time.sleep(0.01)
    (folder / "image.json").write_text(json.dumps(image))
