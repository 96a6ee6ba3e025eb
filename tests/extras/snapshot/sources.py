"""Small folders and git repositories, for the extra snapshot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NAMES = {f"GIT_{who}_{what}": "me@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# The end of a program: waits until a process beside the ranks has listed the packages. A short job ends before that.
LONGER = """\
import glob, time
while not glob.glob("logs/*/packages.txt"):
    time.sleep(0.1)
"""


def git(folder: Path, *arguments: object) -> str:
    """Run git, without this user's settings; return what it prints."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **NAMES}
    command = ["git", "-C", folder, "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files, by name; return the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def commit(folder: Path) -> str:
    """Commit all that lies in a repository; return the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a commit")
    return git(folder, "rev-parse", "HEAD").strip()


def repository(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a new repository and commit them; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    write(folder, files)
    commit(folder)
    return folder


def apply_changes(repository: Path, commit: str, diff: Path, target: Path) -> Path:
    """Return a clone of a repository at a commit, with a diff applied."""
    git(repository.parent, "clone", "--quiet", "--no-checkout", repository, target)
    git(target, "checkout", "--quiet", "--detach", commit)
    if diff.exists() and diff.stat().st_size:
        git(target, "apply", diff)
    return target
