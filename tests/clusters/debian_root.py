"""Debian for tests, kept from one test run to the next; here the root directories of newer Debians, for their Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from waiting import INSTALLATION

# Slurm, what the scripts under test call, and the libraries that a Python of another distribution may need.
SLURM_PACKAGES = (
    "slurm-wlm,munge,openmpi-bin,python3,iproute2,procps,hostname,libbz2-1.0,libexpat1,libffi8,libgomp1,liblzma5"
    ",libncursesw6,libreadline8t64,libsqlite3-0,libssl3t64,libuuid1,zlib1g"
)


class Unavailable(RuntimeError):
    """Something cannot be had here; the message says why."""


def make_debian_root(cache: Path, suite: str) -> tuple[Path | None, str]:
    """Install a Debian into the directory `cache`, unless it is there already.

    The Slurm of the suite trixie is 24.11, that of forky 26.05 (2026-11-23). Returns the directory, or None and the
    reason why it cannot be had. Takes half a minute to a minute and 450 to 560 MB, once.
    """
    if (cache / "usr").is_dir():
        return cache, ""
    try:
        with unfinished(cache) as new:
            # A suite that is not released yet has lists of packages that are valid for a week, by this machine's clock.
            fresh = '--aptopt=Acquire::Check-Valid-Until "false"'
            mmdebstrap(fresh, f"--include={SLURM_PACKAGES}", suite, new, debian_mirror())
            (new / "etc/hosts").touch()  # a mount point
    except Unavailable as error:
        return None, str(error)
    return cache, ""


@contextlib.contextmanager
def unfinished(cache: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes `cache` at once, and only if all went well."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix=f".{cache.name}-") as folder:
        new = Path(folder) / cache.name
        yield new
        try:
            new.rename(cache)
        except OSError:
            if not cache.is_dir():  # else somebody else was faster
                raise


def debian_mirror() -> str:
    """Return the Debian mirror that this machine's apt uses, or nothing."""
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    text = "\n".join(path.read_text(errors="replace") for path in sources)
    found = re.search(r"^(?:URIs:|deb\s(?:\[.*?\])?)\s*(\S+/debian)/?\s", text, re.M)
    return found[1] if found else ""


def mmdebstrap(*arguments: str | Path) -> None:
    """Install a small Debian. Raises Unavailable if that fails."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not debian_mirror():
        raise Unavailable("this takes mmdebstrap, the rights of root, and a Debian mirror among apt's package sources")
    # in a mount namespace of its own nothing stays mounted if this is interrupted
    words = ["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", *arguments]
    try:
        subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=INSTALLATION, stdin=subprocess.DEVNULL
        )
    except subprocess.SubprocessError as error:
        raise Unavailable(f"{error}\n{str(error.stderr)[-1000:]}") from error
