"""Real Apptainer and real podman on the nodes of the test cluster, and a small image for them to run and build on.

    root, reason = make_container_root(build / "containers13")
    archive, reason = make_base_archive(build / "base.tar")
    with Cluster(tmp_path / "cluster", nodes=2, root=root, bind=bind) as cluster:
        offer_image(cluster, archive, "localhost/base:1", "nvcr.io/nvidia/pytorch:25.06-py3")  # FROM finds these
        image = make_sif(cluster, archive, build / "base.sif")
        cluster.run("srun", "-N2", "apptainer", "exec", image, "hostname")

Jobs call `apptainer` (or `singularity`) and `podman` as on any cluster, without an option that only tests would need:
what this machine asks for beyond that is in the root directory's /etc. podman fails unless CONTAINERS_STORAGE_CONF
names a storage.conf, as on sites whose home directories cannot hold images. Everything runs as root.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from debian_root import SLURM_PACKAGES, Unavailable, debian_mirror, mmdebstrap, unfinished
from slurm_cluster import Cluster

# Apptainer brings uidmap and squashfs-tools. podman's bridge, netavark, comes along and is never used: CONTAINERS_CONF.
CONTAINER_PACKAGES = f"{SLURM_PACKAGES},podman,apptainer"
# What stands in for a vendor's image: a shell, Python with pip for RUN, the libraries that a Python from outside needs.
BASE_PACKAGES = (
    "hostname,procps,python3-pip,libbz2-1.0,libexpat1,libffi8,libgomp1,liblzma5,libncursesw6,libreadline8t64"
    ",libsqlite3-0,libssl3t64,libstdc++6,libuuid1,zlib1g"
)
# Inside the root directory, so that all nodes of all clusters have it under the same name.
IMAGE_STORE = "/usr/lib/test-images"
# Little is gained by more in a test: Apptainer's own choice (gzip, level 9) takes four times as long.
FAST_SQUASHFS = "-comp zstd -Xcompression-level 3"

CONTAINERS_CONF = """\
[containers]
# podman wants to raise these, which takes CAP_SYS_RESOURCE; a machine that is a guest may not have it
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
# otherwise in /run and /var/tmp, which the nodes of the test cluster share
tmp_dir = "/dev/shm/libpod"
image_copy_tmp_dir = "/dev/shm"
# chroot: crun refuses the mixed control groups of some machines; it also means the node's own network, never a bridge.
env = ["BUILDAH_ISOLATION=chroot", "PODMAN_IGNORE_CGROUPSV1_WARNING=1"]
"""

# A script that does not name its own storage must not pass by chance.
STORAGE_CONF = """\
[storage]
driver = "overlay"
runroot = "/proc/set-CONTAINERS_STORAGE_CONF"
graphroot = "/proc/set-CONTAINERS_STORAGE_CONF"
"""


# Images for FROM, whatever storage.conf the caller has; it is too late for that in containers.conf, which is read after
# the stores are opened, and drivers other than overlay refuse the option.
PODMAN = f"""\
#!/bin/sh
if grep -qs '^ *driver *= *"overlay"' "$CONTAINERS_STORAGE_CONF"; then
    export STORAGE_OPTS="${{STORAGE_OPTS:+$STORAGE_OPTS,}}overlay.additionalimagestore={IMAGE_STORE}"
fi
exec /usr/bin/podman "$@"
"""


def python_folders() -> list[Path]:
    """What the Python of the tests consists of beside its virtual environment: to be seen in other file systems too."""
    if sys.base_prefix != "/usr":
        return [Path(sys.base_prefix)]
    python = Path("/usr/bin/python3")  # the system's own, without the rest of that system
    library = Path(sysconfig.get_path("stdlib"))
    # Debian's sitecustomize.py is a link to /etc. The training reads the library, which has to be the same everywhere.
    elsewhere = {path.resolve().parent for path in library.glob("*.py") if path.is_symlink()} - {library}
    return [python, python.resolve(), library, *sorted(elsewhere)]


def make_container_root(cache: Path) -> tuple[Path | None, str]:
    """Install Debian 13 with Slurm, podman and Apptainer into the directory `cache`, unless it is there already.

    Returns the directory, or None and the reason why it cannot be had. Takes a minute and 720 MB, once.
    """
    if os.geteuid() != 0:
        return None, "this takes the rights of root"
    try:
        if not (cache / "usr").is_dir():
            mirror = debian_mirror()
            with unfinished(cache) as new:
                # Apptainer is in Debian's sid alone, and needs nothing else of it. A release file of sid is valid for
                # a week only, too short for a mirror that stands still.
                mmdebstrap(
                    *["--aptopt=APT::Default-Release trixie", f"--include={CONTAINER_PACKAGES}", "trixie", new],
                    *[f"deb {mirror} trixie main", f"deb [check-valid-until=no] {mirror} sid main"],
                )
        _configure(cache)  # also one that is there already: it may be older than what stands in this file
    except Unavailable as error:
        return None, str(error)
    return cache, ""


def make_base_archive(
    cache: Path,
    name: str = "localhost/base:1",
    *,
    suite: str = "trixie",
    packages: str = BASE_PACKAGES,
    hooks: Sequence[str] = (),
    environment: Sequence[str] = (),
) -> tuple[Path | None, str]:
    """Make the file `cache`, a small Debian as `docker save` would write it, unless it is there already.

    `hooks` are lines of shell that change it before it is packed, $1 being its root directory; `environment`
    (NAME=value) is what its processes find. Returns the file, or None and the reason why it cannot be had. Takes half a
    minute and 130 MB, once.
    """
    if cache.is_file():
        return cache, ""
    try:
        with unfinished(cache) as new:
            layer = new.with_name("layer.tar")
            mmdebstrap(
                f"--include={packages}",
                *[f"--dpkgopt=path-exclude=/usr/share/{unused}/*" for unused in ("doc", "locale", "man", "zoneinfo")],
                # pip installs into this Python without further ado, as in the images of vendors
                '--customize-hook=rm "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED; ln -s python3 "$1/usr/bin/python"',
                *[f"--customize-hook={hook}" for hook in hooks],
                *[suite, layer, debian_mirror()],
            )
            _write_archive(new, layer, name, environment)
    except Unavailable as error:
        return None, str(error)
    return cache, ""


def make_sif(cluster: Cluster, archive: Path, target: Path) -> Path:
    """Make the Apptainer image `target` of a docker archive on the login node of `cluster`, unless it is there already.

    The cluster must see both paths: its argument `bind`.
    """
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target) as new:
            words = ["apptainer", "build", f"--mksquashfs-args={FAST_SQUASHFS}", new, f"docker-archive://{archive}"]
            cluster.run(*words)
    return target


def offer_image(cluster: Cluster, archive: Path, *names: str) -> None:
    """Make a docker archive available under `names` to FROM in every `podman build`, on all nodes, without a download.

    It stays in the root directory of the cluster, for the next cluster too.
    """
    podman = ["podman", "--root", IMAGE_STORE, "--runroot", "/dev/shm/test-images", "--storage-driver", "overlay"]
    # with the usual configuration the store would be an addition to itself
    environment = {"CONTAINERS_CONF": "/dev/null", "TMPDIR": "/dev/shm"}
    with tarfile.open(archive) as tar:
        loaded = json.load(tar.extractfile("manifest.json"))[0]["RepoTags"][0]
    have = cluster.run(*podman, "images", "--format={{.Repository}}:{{.Tag}}", env=environment).stdout.split()
    if loaded not in have:
        cluster.run(*podman, "load", "--input", archive, env=environment)
    for name in {*names} - {loaded}:  # an earlier test may have given it to another image
        cluster.run(*podman, "tag", loaded, name, env=environment)


def write_storage_conf(path: Path, place: str, driver: str = "overlay") -> Path:
    """Write a storage.conf for CONTAINERS_STORAGE_CONF that keeps images in `place`: the form that CSCS recommends."""
    path.write_text(f'[storage]\ndriver = "{driver}"\nrunroot = "{place}/runroot"\ngraphroot = "{place}/root"\n')
    return path


def _configure(root: Path) -> None:
    """Write what containers need on this machine into the root directory's /etc."""
    conf = root / "etc/apptainer/apptainer.conf"
    # by default root keeps all 41 capabilities, and Apptainer fails where the machine does not give it all of them;
    # without any, root is closer to the ordinary user of a real cluster
    key = "root default capabilities"
    text, changes = re.subn(rf"(?m)^{key} = .*$", f"{key} = no", conf.read_text())
    if changes != 1:
        raise Unavailable(f"this Apptainer's {conf.name} has no line '{key}'")
    podman = root / "usr/local/bin/podman"
    containers = root / "etc/containers"
    contents = {conf: text, podman: PODMAN}
    contents |= {containers / "containers.conf": CONTAINERS_CONF, containers / "storage.conf": STORAGE_CONF}
    for path, content in contents.items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    podman.chmod(0o755)
    for name in ("images", "layers"):  # an empty store, or podman refuses to start
        store = root / IMAGE_STORE[1:] / f"overlay-{name}"
        store.mkdir(parents=True, exist_ok=True)
        (store / f"{name}.lock").touch()
    (root / "etc/hosts").touch()  # a mount point


def _write_archive(target: Path, layer: Path, name: str, environment: Sequence[str]) -> None:
    """Write a docker archive with one layer, the tar file `layer`."""
    environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *environment]
    digest = hashlib.sha256()
    with open(layer, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"Env": environment, "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        for member, content in (("manifest.json", manifest), ("config.json", config)):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, "layer.tar")


def write_wheel(folder: Path) -> None:
    """The smallest wheel, `answer`, whose module has the constant ANSWER."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "answer-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("answer.py", "ANSWER = 42\n")
        wheel.writestr("answer-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: answer\nVersion: 1.0\n")
        wheel.writestr("answer-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("answer-1.0.dist-info/RECORD", "")
