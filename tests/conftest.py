"""Fixtures that several test files share."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from baking import bake, given
from build_folder import BUILD, one_at_a_time
from container_root import make_base_archive, make_container_root, make_sif
from debian_root import make_debian_root
from needs import cluster_of, skip_or_fail
from slurm_cluster import PATH, Cluster

# An assertion in these shows its values, as in a test file.
pytest.register_assert_rewrite("doctor_cases", "drills", "launching", "training_runs")

LONGEST = (
    "test_spares",
    "test_hangs",
    "test_drills",
    "test_doctor_failures",
    "test_newest_slurm",
    "test_containers",
    "test_slurm",
    "test_runai",
    "test_launchers",
    "test_bake",
    "test_sites",
)
LONGEST += (
    "test_slurm_cluster",
    "test_benchmark",
    "test_updates",
    "test_contributing",
    "test_training_losses",
    "test_stacks",
)
LONGEST += ("test_training_learning", "test_training_checkpoints", "test_training_refusals")


def pytest_collection_modifyitems(items):
    """Begin with the longest files: some run at a time, and the last one alone would keep everybody waiting."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_terminal_summary(terminalreporter):
    """Print what the drills measured as tables, and write them to the files that DRILLS_FILE and its like name."""
    passed = terminalreporter.stats.get("passed", [])
    reports = sorted((r for r in passed if r.when == "call"), key=lambda report: report.location[:2])
    for kind in ("drill", "hang", "spare"):
        rows = [value for report in reports for name, value in report.user_properties if name == kind]
        if rows:
            write_table(terminalreporter, rows, f"{kind}s")


def write_table(terminalreporter, rows, title):
    """Print rows, dictionaries with the same keys, as a table; write it to the file that TITLE_FILE names."""
    lines = [" | ".join(["", *rows[0], ""]).strip(), "|---" * len(rows[0]) + "|"]
    lines += [" | ".join(["", *(str(cell).replace("|", "\\|") for cell in row.values()), ""]).strip() for row in rows]
    terminalreporter.section(title)
    terminalreporter.write_line("\n".join(lines))
    file = os.environ.get(f"{title.upper()}_FILE")
    if file:
        Path(file).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Returns written(**answers) -> a project that is written once for all tests of a run, which only read it."""
    run = tmp_path_factory.getbasetemp()
    run = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run  # else each worker has a folder of its own

    def find_or_bake(**answers):
        answers = given(answers)
        folder = run / "written" / hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()[:16]
        with one_at_a_time(folder):
            if not (folder / "whole").exists():
                bake(folder, **answers)
                (folder / "whole").touch()
        return folder / answers["project"]

    return find_or_bake


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A cluster with this machine's Slurm."""
    if not shutil.which("slurmctld", path=PATH):
        missing = "Slurm is not installed: apt-get install slurm-wlm munge iproute2 openmpi-bin"
        skip_or_fail(missing)
    with Cluster(tmp_path_factory.mktemp("slurm") / "a") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def debian13():
    """The root directory of a Debian 13, with Apptainer and podman where these can be had."""
    with one_at_a_time():
        root, _ = make_container_root(BUILD / "containers13")
        reason = ""
        if not root:
            root, reason = make_debian_root(BUILD / "debian13", "trixie")
    if not root:
        pytest.skip(f"no Debian 13 to run its Slurm: {reason}")
    return root


@pytest.fixture(scope="session")
def debian14():
    """The root directory of the coming Debian 14."""
    with one_at_a_time():
        root, reason = make_debian_root(BUILD / "debian14", "forky")
    if not root:
        pytest.skip(f"no Debian 14 to run its Slurm: {reason}")
    return root


@pytest.fixture(scope="session")
def cluster24(debian13, tmp_path_factory):
    """A cluster with the Slurm of Debian 13."""
    with cluster_of(debian13, tmp_path_factory.mktemp("slurm") / "b") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster26(debian14, tmp_path_factory):
    """A cluster with the newest Slurm, that of Debian 14."""
    with cluster_of(debian14, tmp_path_factory.mktemp("slurm") / "e") as cluster:
        yield cluster


# ---- real containers: see container_root.py --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def archive():
    """A small Debian 13 with Python, as `docker save` writes it."""
    with one_at_a_time():
        archive, reason = make_base_archive(BUILD / "base13.tar")
    if not archive:
        pytest.skip(f"no image: {reason}")
    return archive


@pytest.fixture(scope="session")
def containers(cluster24):
    """The cluster, if its nodes have Apptainer and podman and can use them."""
    if not (cluster24.root / "usr/bin/apptainer").exists():
        pytest.skip("no Apptainer: it takes Debian's sid beside Debian 13 on the mirror of apt")
    if not Path("/dev/loop-control").exists():
        pytest.skip("no loop devices, which Apptainer mounts images with")
    return cluster24


@pytest.fixture(scope="session")
def sif(containers, archive):
    """The same as an Apptainer image."""
    with one_at_a_time():
        return make_sif(containers, archive, BUILD / "base13.sif")
