"""What a test does where this machine lacks what it needs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from container_root import python_folders
from slurm_cluster import Cluster, ClusterError

REPOSITORY = Path(__file__).resolve().parent.parent


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test. In CI fail: what it needs is installed there, and a run without it would prove nothing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def needs_namespaces(cluster) -> None:
    """Skip the test unless each node of the cluster has a name, a network and mounts of its own."""
    if not cluster.namespaces:
        pytest.skip(f"no namespaces: {cluster.no_namespaces}")


def cluster_of(root: Path, folder: Path, **options) -> Cluster:
    """Return a cluster with the Slurm of another Debian, and with this Python; skip the test where there is none."""
    if sys.base_prefix != "/usr":  # else python3 is among python_folders()
        python = root / "usr/local/bin/python3"
        with suppress(FileExistsError):  # of an earlier run, or of one beside this one
            python.symlink_to(sys.executable)
    try:
        return Cluster(folder, root=root, bind=[REPOSITORY, Path(sys.prefix), *python_folders()], **options)
    except ClusterError as error:
        pytest.skip(str(error))
