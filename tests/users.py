"""Two users of one machine, for tests in which a neighbour's files lie in the way of another user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from slurm_cluster import PATH
from waiting import PATIENCE

ONE, NEIGHBOUR = 1001, 1002  # numbers of users; no accounts are needed
PYTHON = "/usr/bin/python3"  # that of the tests may lie in root's home

CAN_CHANGE_USER = os.geteuid() == 0 and shutil.which("setpriv", path=PATH) and os.path.exists(PYTHON)
needs_two_users = pytest.mark.skipif(not CAN_CHANGE_USER, reason=f"needs root, setpriv and {PYTHON}")


def as_user(uid: int, *command: object, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    """Run a command as a user without groups."""
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *map(str, command)]
    environment = {"PATH": PATH, "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd="/"
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def folder_of_all():
    """A folder to which all users may write, as /tmp. Those of pytest are root's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
