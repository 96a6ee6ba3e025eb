"""A stand-in for a busy shared file system: shows a folder at another path, slowly, and counts what is asked of it.

    python3 slow_files.py SOURCE MOUNTPOINT --counts FOLDER [--latency SECONDS] [--bandwidth BYTES_PER_SECOND]

Each lookup, stat, open and listing takes --latency seconds, and each read its bytes through --bandwidth. Start it once
for each node: mountpoints with the same --counts are clients of one server, which serves them one after another. Each
mountpoint has a cache of its own in the kernel, as each node of a cluster has one. On the nodes of a test cluster, bind
the node's mountpoint to the path that all nodes use (`mount --bind`). Read-only, but for the times of files.

--counts: a folder in which each mountpoint writes, as JSON, how often each operation was asked for. It does so when
SIGUSR1 comes, and at the end. Needs FUSE (libfuse 2 or 3, /dev/fuse) and the package mfusepy.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FUSE_IS_HERE = os.path.exists("/dev/fuse") and os.access("/dev/fuse", os.R_OK | os.W_OK)


SHORTEST = 0.005  # [s] that reads take at a time: a sleep is longer than asked for, by a tenth of a millisecond or more


def operations(source: str, latency: float, bandwidth: float, counts: collections.Counter, turn):
    """Return the operations of the file system, for mfusepy. Who has locked the open file `turn` is being served."""
    import mfusepy

    def take(seconds: float) -> None:
        fcntl.flock(turn, fcntl.LOCK_EX)
        time.sleep(seconds)
        fcntl.flock(turn, fcntl.LOCK_UN)

    class SlowFiles(mfusepy.Operations):
        use_ns = True  # times are whole nanoseconds
        owed = 0.0  # seconds that reads have not taken yet

        def place(self, path, operation):
            """Count and delay an operation; return the path in the source."""
            counts[operation] += 1
            take(latency)
            return source + path

        def getattr(self, path, info=None):
            status = os.lstat(self.place(path, "getattr"))
            names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks")
            facts = {name: getattr(status, name) for name in names}
            return {**facts, **{f"st_{x}time": getattr(status, f"st_{x}time_ns") for x in "amc"}}

        def readdir(self, path, info):
            return [".", "..", *os.listdir(self.place(path, "readdir"))]

        def readlink(self, path):
            return os.readlink(self.place(path, "readlink"))

        def statfs(self, path):
            status = os.statvfs(source + path)
            return {name: getattr(status, name) for name in dir(status) if name.startswith("f_") and name != "f_fsid"}

        def open(self, path, info):
            if info.flags & (os.O_WRONLY | os.O_RDWR):
                raise mfusepy.FuseOSError(errno.EROFS)
            info.fh = os.open(self.place(path, "open"), info.flags)
            return 0

        def read(self, path, size, offset, info):
            data = os.pread(info.fh, size, offset)
            counts["read"] += 1
            counts["bytes"] += len(data)
            self.owed += len(data) / bandwidth
            if self.owed > SHORTEST:
                take(self.owed)
                self.owed = 0.0
            return data

        def utimens(self, path, times=None):
            os.utime(self.place(path, "utimens"), ns=times)

        def release(self, path, info):
            os.close(info.fh)
            return 0

    return SlowFiles()


@contextlib.contextmanager
def slow_files(source: Path, mountpoint: Path, latency: float = 0.0, bandwidth: float = 1e12, nodes=()):
    """Mount a folder at `mountpoint`, and at `mountpoint`-NODE for each of `nodes`, as long as the context lives.

    Gives a function that returns the counts of all mountpoints together.
    """
    mountpoints = [mountpoint, *(mountpoint.with_name(f"{mountpoint.name}-{node}") for node in nodes)]
    folder = source.parent / f"{source.name}-counts"
    folder.mkdir()
    options = ["--latency", str(latency), "--bandwidth", str(bandwidth), "--counts", str(folder)]
    servers = []
    try:
        for path in mountpoints:
            path.mkdir(exist_ok=True)
            servers.append(subprocess.Popen([sys.executable, __file__, str(source), str(path), *options]))
        for path, server in zip(mountpoints, servers):
            while not os.path.ismount(path):
                if server.poll() is not None:
                    raise RuntimeError(f"slow_files.py ended with exit code {server.returncode}")
                time.sleep(0.02)

        def counts() -> dict:
            total: collections.Counter = collections.Counter()
            for path, server in zip(mountpoints, servers):
                count = folder / f"{path.name}.json"
                count.unlink(missing_ok=True)
                server.send_signal(signal.SIGUSR1)
                while not count.exists():
                    time.sleep(0.02)
                    os.path.exists(path / "wake")  # a request, after which Python handles the signal
                total += json.loads(count.read_text())
            return total

        yield counts
    finally:
        unmount = shutil.which("fusermount3") or "fusermount"
        for path, _ in zip(mountpoints, servers):
            subprocess.run([unmount, "-u", "-z", str(path)], check=False)
        for server in servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)  # it ends when nothing uses the mount any more
            server.kill()
            server.wait()


def main() -> None:
    """Serve the files until the mount ends."""
    import mfusepy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the folder to show")
    parser.add_argument("mountpoint", help="where to show it")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds of each lookup, stat, open and listing")
    parser.add_argument("--bandwidth", type=float, default=1e12, help="bytes per second, of all mountpoints together")
    parser.add_argument("--counts", required=True, type=Path, help="a folder for the numbers of operations")
    args = parser.parse_args()
    counts: collections.Counter = collections.Counter()

    def write_counts(*_):
        file = args.counts / f"{os.path.basename(args.mountpoint)}.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(counts))
        os.replace(new, file)

    signal.signal(signal.SIGUSR1, write_counts)
    cached = {"attr_timeout": 1, "entry_timeout": 1, "negative_timeout": 0, "auto_cache": False}
    with open(args.counts / "turn", "a") as turn:
        served = operations(os.path.realpath(args.source), args.latency, args.bandwidth, counts, turn)
        mfusepy.FUSE(served, args.mountpoint, foreground=True, nothreads=True, allow_other=True, raw_fi=True, **cached)
    write_counts()


if __name__ == "__main__":
    main()
