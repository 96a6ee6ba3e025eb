"""Horovod in an Apptainer image, the whole way that extras/mpi/horovod.md describes, with real podman and Apptainer.

The base image stands for NVIDIA's: a Debian 12, whose Python is the one that torch's wheel here is for, with torch, MPI
and a compiler. Its Open MPI (4.1) is not the nodes' (5.0): mpirun and image often differ, and PMIx lets them talk.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys

import pytest
from baking import REPOSITORY, bake
from container_root import FAST_SQUASHFS, make_base_archive, offer_image, write_storage_conf
from debian_root import unfinished
from needs import skip_or_fail
from test_horovod import losses
from two_nodes import MPIRUN_AS_ROOT
from waiting import COMPILATION, INSTALLATION, PATIENCE

torch = pytest.importorskip("torch")

# the compiler and what comes before it
pytestmark = pytest.mark.timeout(COMPILATION + 2 * INSTALLATION)

BUILD = REPOSITORY / "build"
PACKAGES = "hostname,procps,python3-pip,python3-dev,libgomp1,cmake,make,g++,openmpi-bin,libopenmpi-dev"
# What extras/mpi/build_horovod.sh asks pip for. The base brings it along, since no node reaches an index.
WANTED = [f"torch=={torch.__version__}", "horovod==0.28.1", "setuptools<81"]
WANTED += ["wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi"]
OFFLINE = ["PIP_NO_INDEX=1", "PIP_FIND_LINKS=/opt/site-wheels"]
INSTALL = [
    'chroot "$1" python3 -m pip install --quiet --no-index --find-links /opt/site-wheels torch',
    'rm "$1"/opt/site-wheels/torch-*',
]
RECIPE = hashlib.sha256(repr((PACKAGES, WANTED, OFFLINE, INSTALL)).encode()).hexdigest()[:8]
TINY = "--context 16 --width 16 --steps 20 --log-every 1"


@pytest.fixture(scope="module")
def vendor():
    """The base image as a docker archive, made once: two minutes and 1.8 GB in build/."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Debian 12 has Python 3.11, for which this Python cannot fetch wheels")
    if torch.version.cuda or torch.version.hip:
        pytest.skip(f"torch {torch.__version__} is not one for CPUs, and too large to be put into an image")
    wheels = BUILD / f"base12-{RECIPE}-wheels"
    if not wheels.is_dir():
        with unfinished(wheels) as new:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "-d", new, *WANTED]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALLATION)
            if done.returncode:
                skip_or_fail(f"no wheels for the image: {done.stderr[-1000:]}")
    hooks = [f'cp -r {shlex.quote(str(wheels))} "$1/opt/site-wheels"', *INSTALL]
    name = f"localhost/horovod-base:{RECIPE}"
    archive, reason = make_base_archive(
        BUILD / f"base12-{RECIPE}.tar", name, suite="bookworm", packages=PACKAGES, hooks=hooks, environment=OFFLINE
    )
    if not archive:
        skip_or_fail(f"no image: {reason}")
    return archive


@pytest.mark.drill
def test_from_dockerfile_to_ranks_in_apptainer(containers, vendor, tmp_path):
    answers = {"runtime": "apptainer", "launcher": "mpirun-ranks", "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path / "my projects", site="slurm", **answers)
    (append,) = re.findall(r"(?m)^cat .*$", (project / "extras/mpi/horovod.md").read_text())
    subprocess.run(["bash", "-c", append], cwd=project, check=True)
    dockerfile = (project / "container/Dockerfile").read_text()
    offer_image(containers, vendor, re.search(r'^ARG BASE="(.*)"', dockerfile, re.M)[1])

    # elsewhere, with podman for docker; without a network, so that apt-get, if it were called, would fail
    storage = {"CONTAINERS_STORAGE_CONF": str(write_storage_conf(tmp_path / "storage.conf", f"{tmp_path}/images"))}
    command = ["podman", "build", "-t", "demo", "-f", "container/Dockerfile", "."]
    built = containers.run(*command, cwd=project, env={**storage, "MAKEFLAGS": "-j2"}, check=False, timeout=COMPILATION)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    assert f"installed: Horovod 0.28.1 for torch {torch.__version__}" in built.stdout
    command = ["podman", "save", "--format", "docker-archive", "-o", "container/demo.tar", "demo"]
    containers.run(*command, cwd=project, env=storage, timeout=INSTALLATION)

    # on the cluster
    environment = {"APPTAINER_MKSQUASHFS_ARGS": FAST_SQUASHFS}
    submitted = containers.run("bash", "slurm/build_container.sh", cwd=project, env=environment)
    job = containers.wait(int(submitted.stdout.split()[-1]), timeout=PATIENCE)
    assert job.state == "COMPLETED" and "ready: " in job.output, job.output

    environment = {"ALLOW_CPU": "1", **MPIRUN_AS_ROOT}
    # What a user of this pair of MPIs has to set. Debian 13's PMIx has a file of settings that names the folder of its
    # components; mpirun (5.0) tells the ranks that it is Open MPI's, and the image's finds nothing of its own there.
    environment["PMIX_MCA_mca_base_param_files"] = "none"
    found = {}
    for launcher, options in (("mpirun-ranks", ["--nodes=2"]), ("srun", ["--nodes=1"])):
        given = {**environment, "LAUNCHER": launcher, "NPROC_PER_NODE": "2" if launcher == "mpirun-ranks" else "1"}
        words = [*options, "--", "extras/mpi/train_horovod.py", *TINY.split(), "--out", tmp_path / launcher]
        submitted = containers.run("bash", "slurm/submit_multinode.sh", *words, cwd=project, env=given)
        job = containers.wait(int(submitted.stdout.split()[-1]), timeout=PATIENCE)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        found[launcher] = losses(job.output)
        assert f"{4 if launcher == 'mpirun-ranks' else 1} rank(s) on cpu" in job.output
    four, one = found.values()
    assert set(four) == set(one) == set(range(1, 21))
    assert max(abs(four[step] - one[step]) for step in one) <= 1e-4
