"""A stand-in for a busy shared file system: shows a folder at another path, slowly, and counts what is asked of it.

    python3 slow_files.py SOURCE MOUNTPOINT [--latency SECONDS] [--bandwidth BYTES_PER_SECOND] [--count FILE]

One server answers all nodes, one request after another, as the metadata server of a busy file system does: each lookup,
stat, open and listing takes --latency seconds, each read its bytes through --bandwidth. The kernel caches
names for a second, attributes not at all, and forgets a file's content when it is opened again: the nodes of a test
cluster share one kernel, and a real node does not profit from what another one has read. Read-only.

--count: a file that holds, as JSON, how often each operation was asked for. It is written when SIGUSR1 comes, and at
the end. Needs FUSE (libfuse 2 or 3, /dev/fuse) and the package mfusepy.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FUSE_IS_HERE = os.path.exists("/dev/fuse") and os.access("/dev/fuse", os.R_OK | os.W_OK)


def operations(source: str, latency: float, bandwidth: float, counts: collections.Counter):
    """Return the operations of the file system, for mfusepy."""
    import mfusepy

    class SlowFiles(mfusepy.Operations):
        use_ns = True  # times are whole nanoseconds

        def place(self, path, operation):
            """Count and delay an operation; return the path in the source."""
            counts[operation] += 1
            time.sleep(latency)
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
            # Several nodes read a pack at once, each for itself. Other files stay in the cache for mmap.
            info.direct_io = path.endswith((".sqsh", ".tar"))
            return 0

        def read(self, path, size, offset, info):
            data = os.pread(info.fh, size, offset)
            counts["read"] += 1
            counts["bytes"] += len(data)
            time.sleep(len(data) / bandwidth)
            return data

        def release(self, path, info):
            os.close(info.fh)
            return 0

    return SlowFiles()


@contextlib.contextmanager
def slow_files(source: Path, mountpoint: Path, latency: float = 0.0, bandwidth: float = 1e12):
    """Mount a folder at another path for as long as the context lives; give a function that returns the counts."""
    count = source.parent / f"{source.name}-counts.json"
    command = [sys.executable, __file__, source, mountpoint]
    options = ["--latency", str(latency), "--bandwidth", str(bandwidth), "--count", count]
    server = subprocess.Popen([*map(str, [*command, *options])])
    try:
        while not os.path.ismount(mountpoint):
            if server.poll() is not None:
                raise RuntimeError(f"slow_files.py ended with exit code {server.returncode}")
            time.sleep(0.02)

        def counts() -> dict:
            count.unlink(missing_ok=True)
            server.send_signal(signal.SIGUSR1)
            while not count.exists():
                time.sleep(0.02)
                os.path.exists(mountpoint / "wake")  # a request, after which Python handles the signal
            return json.loads(count.read_text())

        yield counts
    finally:
        unmount = shutil.which("fusermount3") or "fusermount"
        subprocess.run([unmount, "-u", "-z", str(mountpoint)], check=False)
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
    parser.add_argument("--bandwidth", type=float, default=1e12, help="bytes per second, of all nodes together")
    parser.add_argument("--count", default="", help="a file for the numbers of operations")
    args = parser.parse_args()
    counts: collections.Counter = collections.Counter()

    def write_counts(*_):
        if args.count:
            Path(f"{args.count}.new").write_text(json.dumps(counts))
            os.replace(f"{args.count}.new", args.count)

    signal.signal(signal.SIGUSR1, write_counts)
    served = operations(os.path.realpath(args.source), args.latency, args.bandwidth, counts)
    uncached = {"attr_timeout": 0, "entry_timeout": 1, "negative_timeout": 0, "auto_cache": False}
    mfusepy.FUSE(
        served, args.mountpoint, foreground=True, nothreads=True, ro=True, allow_other=True, raw_fi=True, **uncached
    )
    write_counts()


if __name__ == "__main__":
    main()
