"""What a test does where this machine lacks what it needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test. In CI fail: what it needs is installed there, and a run without it would prove nothing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def needs_namespaces(cluster) -> None:
    """Skip the test unless each node of the cluster has a name, a network and mounts of its own."""
    if not cluster.namespaces:
        pytest.skip(f"no namespaces: {cluster.no_namespaces}")
