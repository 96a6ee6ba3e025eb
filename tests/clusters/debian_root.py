"""The root directory of a Debian 13, whose Slurm is another one than this machine's."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from waiting import INSTALLATION

# Slurm, what the scripts under test call, and the libraries that a Python of another distribution may need.
DEBIAN13_PACKAGES = (
    "slurm-wlm,munge,openmpi-bin,iproute2,procps,hostname,libbz2-1.0,libexpat1,libffi8,libgomp1,liblzma5,libncursesw6"
    ",libreadline8t64,libsqlite3-0,libssl3t64,libuuid1,zlib1g"
)


def make_debian13_root(cache: Path) -> tuple[Path | None, str]:
    """Install Debian 13, whose Slurm is 24.11, into the directory `cache`, unless it is there already.

    Returns the directory, or None and the reason why it cannot be had. Takes half a minute and 450 MB, once.
    """
    if (cache / "usr").is_dir():
        return cache, ""
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    text = "\n".join(path.read_text(errors="replace") for path in sources)
    mirror = re.search(r"^(?:URIs:|deb\s(?:\[.*?\])?)\s*(\S+/debian)/?\s", text, re.M)
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not mirror:
        return None, "this takes mmdebstrap, the rights of root, and a Debian mirror among the package sources of apt"
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix=f".{cache.name}-") as unfinished:
        new = Path(unfinished) / "root"
        packages = f"--include={DEBIAN13_PACKAGES}"
        # in a mount namespace of its own nothing stays mounted if this is interrupted
        words = ["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", packages, "trixie", new, mirror[1]]
        try:
            subprocess.run(
                words, check=True, capture_output=True, text=True, timeout=INSTALLATION, stdin=subprocess.DEVNULL
            )
        except subprocess.SubprocessError as error:
            return None, f"{error}\n{str(error.stderr)[-1000:]}"
        (new / "etc/hosts").touch()  # a mount point
        with contextlib.suppress(OSError):  # somebody else was faster
            new.rename(cache)
    return cache, ""
