"""Fixtures that several test files share."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from slurm_cluster import PATH, Cluster, ClusterError, make_debian13_root

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A cluster with this machine's Slurm."""
    if not shutil.which("slurmctld", path=PATH):
        missing = "Slurm is not installed: apt-get install slurm-wlm munge iproute2 openmpi-bin"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)  # in CI, a run without it would prove nothing
    with Cluster(tmp_path_factory.mktemp("slurm") / "a") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def debian13():
    """The root directory of a Debian 13."""
    root, reason = make_debian13_root(REPOSITORY / "build/debian13")
    if not root:
        pytest.skip(f"no Debian 13 to run its Slurm: {reason}")
    return root


@pytest.fixture(scope="session")
def cluster24(debian13, tmp_path_factory):
    """A cluster with the Slurm of Debian 13, and with this Python."""
    bind = [REPOSITORY, Path(sys.base_prefix)]
    if sys.base_prefix == "/usr":  # the system's own Python, without the rest of that system
        python = Path("/usr/bin/python3")
        bind[1:] = [python, python.resolve(), Path(sysconfig.get_path("stdlib"))]
    try:
        cluster = Cluster(tmp_path_factory.mktemp("slurm") / "b", root=debian13, bind=bind)
    except ClusterError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster
