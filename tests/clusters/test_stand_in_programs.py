"""The stand-ins that are programs, enroot, shifter and podman-hpc: as strict as these, and a way into a container."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from stand_in_place import HERE, LOGIN_PATH, PYTHON, ROOT_ONLY, place

pytestmark = [ROOT_ONLY, pytest.mark.drill]

# ---- enroot


def test_enroot_from_import_to_remove(place):
    place.run("enroot", "import", "--output", "a b.sqsh", "docker://nvcr.io#nvidia/pytorch:24.01")
    said = place.refused("enroot", "import", "-o", "a b.sqsh", "docker://nvcr.io#nvidia/pytorch:24.01")
    assert said == f"[ERROR] File already exists: {place.work}/a b.sqsh\n"
    place.run("enroot", "import", "docker://ubuntu")
    assert "connection refused" in place.refused("enroot", "import", "podman://localhost/mine:1")
    (place.work / "Containerfile").touch()
    place.run("podman", "build", "--network=host", "--tag", "localhost/mine:1", ".")
    place.run("enroot", "import", "podman://localhost/mine:1", PATH=f"{docker(place)}:{place.environ['PATH']}")
    assert not list(place.folder.glob("node/podman-containers/*"))
    assert (place.work / "ubuntu+latest.sqsh").exists() and (place.work / "localhost+mine+1.sqsh").exists()
    place.run("enroot", "create", "--name=mine", "a b.sqsh")
    home = f"{place.environ['HOME']}/.local/share/enroot"
    said = place.refused("enroot", "create", "--name", "mine", "a b.sqsh")
    assert said == f"[ERROR] File already exists: {home}/mine\n"
    assert place.run("enroot", "list") == "mine\n"
    place.run("enroot", "export", "-o", "out.sqsh", "mine")
    place.run("enroot", "remove", "-f", "mine")
    assert place.refused("enroot", "remove", "-f", "mine") == f"[ERROR] No such file or directory: {home}/mine\n"
    assert place.run("enroot", "start", "./out.sqsh", "pwd") == "/usr\n"
    assert "squashfuse" in place.refused("enroot", "start", "./out.sqsh", "pwd", STAND_IN_SQUASHFUSE="no")
    assert [line["argv"][0] for line in place.logged()][:3] == ["import"] * 3


def docker(place):
    """A folder with a `docker` that is podman, in a folder that exists."""
    folder = place.folder / "docker"
    folder.mkdir()
    (folder / "docker").write_text('#!/bin/sh\ncd / && exec podman "$@"\n')
    (folder / "docker").chmod(0o755)
    return folder


def test_enroot_imports_from_podman_with_docker(place):
    """src/docker.sh:588: it fails without docker, and with a docker that does not start in a folder that is gone."""
    words = ["enroot", "import", "podman://mine"]
    process = place.start(*words)
    assert process.wait() == 1 and (place.work / "mine.sqsh").exists()  # which is complete
    assert len(list(place.folder.glob("node/podman-containers/enroot.*"))) == 1
    (place.work / "mine.sqsh").unlink()
    link = place.folder / "link"
    link.mkdir()
    (link / "docker").symlink_to(HERE / "podman")
    assert place.start(*words, PATH=f"{link}:{place.environ['PATH']}").wait() == 1
    (place.work / "mine.sqsh").unlink()
    place.run(*words, PATH=f"{docker(place)}:{place.environ['PATH']}")


def test_enroot_containers_keep_what_is_written(place):
    place.run("enroot", "create", "-n", "mine", place.image)
    place.refused("enroot", "start", "mine", "touch", "/.mark")
    place.run("enroot", "start", "--rw", "mine", "bash", "-c", "touch /.mark; mkdir /data")
    place.run("enroot", "start", "-m", ".:/data/x", "mine", "ls", "/.mark", "/data/x/here")
    assert not Path("/.mark").exists()
    place.run("enroot", "start", "--rw", place.image, "touch", "/.mark")
    place.refused("enroot", "start", place.image, "ls", "/.mark")


def test_enroot_containers_in_the_making(place):
    """Two tasks that create one container: one fails, and who starts it too early finds half of it."""
    where = {"ENROOT_DATA_PATH": f"{place.folder}/data"}
    hold = place.folder / "hold"
    hold.touch()
    first = place.start("enroot", "create", "-n", "mine", place.image, **where, STAND_IN_HOLD=str(hold))
    while not (place.folder / "data/mine").exists():
        time.sleep(0.01)
    assert "failed to execute: /bin/sh" in place.refused("enroot", "start", "mine", "true", **where)
    assert "File already exists" in place.refused("enroot", "create", "-n", "mine", place.image, **where)
    hold.unlink()
    assert first.wait() == 0
    place.run("enroot", "start", "mine", "true", **where)


def test_enroot_environment_is_not_handed_in(place):
    options = ["-e", "OF_HOST", "--env=NEW=a b", "-e", "ENROOT_X=1"]
    found = place.env("enroot", "start", *options, place.image, TERM="vt100")
    assert (found["OF_HOST"], found["NEW"], found["OF_IMAGE"], found["BOTH"]) == ("host", "a b", "image", "image")
    assert found["TERM"] == "vt100"
    assert found["STAND_IN_RUNTIME"] == "enroot" and found["HOME"] == "/root" and found["ENTRY"] == "1"
    assert not {"SLURM_JOB_ID", "ENROOT_X", "SCRATCH"} & set(found)
    assert found["PATH"] == LOGIN_PATH
    found = place.env("enroot", "start", place.image, ENROOT_LOGIN_SHELL="no")
    assert found["PATH"] == f"{PYTHON}:/usr/bin:/bin" and not {"HOME", "SHELL", "USER", "LOGNAME"} & set(found)
    (place.work / "conf").write_text("environ() { env; }\nmounts() { echo '/usr /data/usr none x-create=dir,bind'; }\n")
    found = place.env("enroot", "start", "--conf", "conf", place.image)
    assert (found["SLURM_JOB_ID"], found["BOTH"]) == ("7", "host")
    place.run("enroot", "start", "--conf", "conf", place.image, "ls", "/data/usr/bin")


def test_enroot_with_an_image_that_has_pytorch(place):
    image = json.loads(place.image.read_text())
    image["env"]["PYTORCH_VERSION"] = "2"
    place.image.write_text(json.dumps(image))
    step = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
    found = place.env("enroot", "start", place.image, **step)
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")] == ["3", "1", "4", "1"]
    found = place.env("enroot", "start", "--env=OMP_NUM_THREADS", "--env=RANK=7", place.image, **step)
    assert (found["RANK"], found["OMP_NUM_THREADS"]) == ("7", "")  # set, though it is empty
    assert "OMP_NUM_THREADS" not in place.env("enroot", "start", place.image, SLURM_NTASKS="2")


def test_enroot_mounts(place):
    space = str(place.work).replace(" ", r"\040")
    assert place.run("enroot", "start", "-m", f"{space}:/data/x", place.image, "cat", "/data/x/here") == "here"
    assert place.run("enroot", "start", "--mount=.:mnt/x", place.image, "cat", "/mnt/x/here") == "here"
    assert "No such file" in place.refused("enroot", "start", place.image, "cat", place.work / "here")
    words = ["enroot", "start", "-m", f"{space}:/x:none:rbind,ro,x-create=dir", place.image, "touch", "/x/y"]
    assert "Read-only" in place.refused(*words)
    place.run("enroot", "start", "--rw", place.image, "touch", "/x")
    assert "Read-only" in place.refused("enroot", "start", place.image, "touch", "/x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "/a b:/x"], "[ERROR] Invalid argument: /a b:/x"),
        (["-m", "/no/such:/x"], "enroot-mount: failed to mount: /no/such at /x: No such file or directory"),
        (["-m", "/usr:/x:ro"], "failed to mount: /usr at /x: No such device"),
        (["-m", "/usr:/x:none:bind,readonly"], "Invalid argument"),
        (["-e", "1A=x"], "[ERROR] Invalid argument: 1A=x"),
        (["--workdir=/usr"], "unknown option --workdir=/usr"),
        (["-e"], "no value"),
        (["--mount="], "no value"),
        (["-eA=1"], "unknown option"),
        (["--conf=/no/such"], "[ERROR] No such file or directory: /no/such"),
    ],
)
def test_enroot_start_refuses(place, words, said):
    image = [place.image, "true"] if words != ["-e"] else []
    assert said in place.refused("enroot", "start", *words, *image)


def test_enroot_refuses(place):
    assert "unknown option -x" in place.refused("enroot", "import", "-x", "mount", "podman://a")
    path = f"{docker(place)}:{place.environ['PATH']}"
    place.run("enroot", "import", "-x", "mount", "podman://a", STAND_IN_SPANK="edf", PATH=path)
    assert "unknown option --force" in place.refused("enroot", "import", "--force", "docker://a")
    assert "Invalid image reference" in place.refused("enroot", "import", "docker://A#b#c")
    assert "401" in place.refused("enroot", "import", "docker://nvcr.io/nvidia/pytorch:24.01")
    assert "Invalid argument: ubuntu" in place.refused("enroot", "import", "ubuntu")
    assert "Invalid image format" in place.refused("enroot", "create", "here")
    assert "Invalid argument: a/b" in place.refused("enroot", "create", "-n", "a/b", place.image)
    assert "No such file or directory" in place.refused("enroot", "start", "mine", "true")
    assert "Invalid argument: a/b" in place.refused("enroot", "start", "a/b", "true")


# ---- shifter


@pytest.fixture
def shifter(place):
    place.environ["STAND_IN_SITE_FS"] = str(place.work)
    place.run("shifterimg", "pull", "docker:nersc/pytorch:24.08.01")
    return place


def test_shifter(shifter):
    (shifter.folder / "scratch").mkdir()
    words = ["shifter", "--image=docker:nersc/pytorch:24.08.01", "--module=gpu,nccl-plugin"]
    assert shifter.run(*words, "cat", "here") == "here"  # the caller's folder, and the site mounts it
    found = shifter.env(*words, "-e", "NEW=1", LD_LIBRARY_PATH="/x", TMPDIR="/x")
    assert (found["OF_HOST"], found["BOTH"], found["NEW"]) == ("host", "image", "1")
    assert not {"LD_LIBRARY_PATH", "TMPDIR"} & set(found)
    assert "OF_HOST" not in shifter.env(*words, "--clearenv")
    process = shifter.start(*words, "pwd", cwd=shifter.folder / "scratch")
    out, err = process.communicate()
    assert (out, process.returncode) == ("/\n", 0) and "Failed to switch to working dir" in err
    assert shifter.run(*words, "--workdir", "pwd") == "/usr\n"
    shifter.run("shifter", "env", SHIFTER_IMAGETYPE="docker", SHIFTER_IMAGE="nersc/pytorch:24.08.01")
    assert "nersc/pytorch:24.08.01" in shifter.run("shifterimg", "images")
    plain = shifter.folder / "plain"
    plain.mkdir()
    (plain / "file").touch()
    shown = {"STAND_IN_SITE_FS": f"{shifter.work}:{plain}"}
    assert shifter.run(*words, f"--volume={plain}:/data", "ls", "/data", **shown) == "file\n"


def test_shifter_says_which_image_by_its_hash(shifter):
    """The request is as it was written; without --image it comes from the environment, or there is none."""
    name = "nersc/pytorch:24.08.01"
    identifier = shifter.run("shifterimg", "lookup", name).strip()
    assert len(identifier) == 64 and not set(identifier) - set("0123456789abcdef")
    for request in (name, f"docker:{name}"):
        found = shifter.env("shifter", f"--image={request}")
        assert (found["SHIFTER_IMAGE"], found["SHIFTER_IMAGEREQUEST"]) == (identifier, request)
    found = shifter.env("shifter", SHIFTER_IMAGETYPE="docker", SHIFTER_IMAGE=name)
    assert found["SHIFTER_IMAGE"] == identifier and "SHIFTER_IMAGEREQUEST" not in found
    # In a container a hash without a type counts for nothing; the request is what a second container is made of.
    inner = {"SHIFTER_IMAGE": identifier, "SHIFTER_IMAGEREQUEST": f"docker:{name}"}
    assert shifter.env("shifter", **inner)["SHIFTER_IMAGE"] == identifier
    assert "No image specified" in shifter.refused("shifter", "true", SHIFTER_IMAGE=identifier)
    assert shifter.env("shifter", f"--image=id:{identifier}")["OF_IMAGE"] == "image"


def test_shifter_s_words_for_a_folder_that_cannot_be_mounted(shifter):
    words = ["shifter", "--image=nersc/pytorch:24.08.01", "--volume=/usr:/data", "true"]
    assert shifter.refused(*words, STAND_IN_NO_MOUNT=str(shifter.work)).splitlines() == [
        f"BIND MOUNT FAILED from {shifter.work} to /var/udiMount{shifter.work}",
        "FAILED to mount siteFs volumes",
        "FAILED to properly setup site modifications",
        "FAILED to mount image into UDI",
        "FAILED to setup image.",
    ]
    assert shifter.refused(*words, STAND_IN_NO_MOUNT="/none:/usr").splitlines() == [
        "BIND MOUNT FAILED from /usr to /var/udiMount/data",
        "FAILED to setup user-requested mounts.",
        "FAILED to setup image.",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image=docker:never:pulled"], "FAILED to lookup docker image never:pulled"),
        (["--mount=/usr"], "shifter: unrecognized option '--mount=/usr'"),
        (["--env=A"], "Improperly formatted environment variable: A"),
        (["--env=A="], "Improperly formatted environment variable: A="),
        (["--module=gpus"], "Invalid shifter module selection: gpus"),
        (["-V", "/usr:/etc/x"], "Invalid Volume Map"),
        (["-V", "/usr:/variable"], "Invalid Volume Map"),
        (["-V", "/usr"], "Invalid Volume Map"),
        (["-V", "/usr:/x:rw"], "Invalid mount flags specified: rw"),
        (["-V", "/no/such:/x"], 'FAILED to find real path for volume "from"'),
        (["-V", "/usr:/x/y/z"], 'FAILED to create volume "to"'),
        (["-V", "{}/node:/x"], 'FAILED to find real path for volume "from"'),  # it is, but not in the container
    ],
)
def test_shifter_refuses(shifter, words, said):
    (shifter.folder / "node").mkdir()
    words = [word.format(shifter.folder) for word in words]
    assert said in shifter.refused("shifter", "--image=nersc/pytorch:24.08.01", *words, "true")


def test_shifter_without_an_image(shifter):
    assert "No image specified" in shifter.refused("shifter", "true")
    shifter.refused("shifterimg", "lookup", "docker:never:pulled")
    assert "FAILURE" in shifter.run("shifterimg", "pull", "docker:a:1", STAND_IN_IMAGE="")


# ---- podman-hpc


def test_podman_hpc_images(place):
    (place.work / "Containerfile").touch()
    place.run("podman-hpc", "build", "-t", "mine:1", ".")
    place.run("podman-hpc", "run", "--rm", "mine:1", "true")
    elsewhere = {"STAND_IN_STATE": f"{place.folder}/other"}
    assert "pinging container registry" in place.refused("podman-hpc", "run", "--rm", "mine:1", "true", **elsewhere)
    said = place.refused("podman-hpc", "run", "--pull=never", "mine:1", "true", **elsewhere)
    assert said == "Error: mine:1: image not known\n"
    assert place.start("podman-hpc", "migrate", "other:1").communicate()[1] == "ERROR:root:Image other:1 not found\n\n"
    place.run("podman-hpc", "migrate", "mine:1")
    place.run("podman-hpc", "run", "--rm", "localhost/mine:1", "true", **elsewhere)
    assert place.run("podman-hpc", "images", **elsewhere).count("mine") == 1
    assert place.run("podman-hpc", "images").count("mine") == 2  # one local, one migrated
    assert "filter(s)" in place.refused("podman-hpc", "images", "--filter", "readonly=true", "mine:1")
    assert len(place.run("podman-hpc", "images", "--quiet", "mine:1", **elsewhere)) == 13
    assert not place.run("podman-hpc", "images", "--quiet", "mine:2", **elsewhere)
    place.run("podman-hpc", "image", "exists", "mine:1")
    place.refused("podman-hpc", "image", "exists", "mine:1", **elsewhere)
    assert "no Containerfile" in place.refused("podman-hpc", "build", "-t", "x", "/usr")


def test_podman_hpc_migrate_that_fails(place):
    """It exits with 0, and `images NAME` lists the local image; the filter for read-only images tells."""
    (place.work / "Containerfile").touch()
    place.run("podman-hpc", "build", "-t", "mine:1", ".")
    migrated = ["podman-hpc", "images", "--filter", "readonly=true", "--filter", "reference=mine:1", "--quiet"]

    def migrate(**environ):
        process = place.start("podman-hpc", "migrate", "mine:1", **environ)
        said = process.communicate()[1]
        assert process.returncode == 0
        return said

    assert "ERROR:root:Squash Failed" in migrate(STAND_IN_MKSQUASHFS="no")
    assert place.run("podman-hpc", "images", "--quiet", "mine:1") and not place.run(*migrated)
    assert migrate() == "" and len(place.run(*migrated)) == 13
    assert migrate(STAND_IN_MKSQUASHFS="no") == "" and place.run(*migrated)  # "Previously migrated"
    # A new image of the same name takes the name from the migrated one before it is packed.
    place.image.write_text(json.dumps({"workdir": "/"}))
    place.run("podman-hpc", "build", "-t", "mine:1", ".")
    assert "ERROR:root:Squash Failed" in migrate(STAND_IN_MKSQUASHFS="no")
    assert not place.run(*migrated)


@pytest.fixture
def podman(place):
    place.run("podman-hpc", "pull", "nersc/pytorch:1")
    place.words = ["podman-hpc", "run", "--rm", "--gpu", "--nccl", "--ipc=host", "--net", "host"]
    return place


def test_podman_hpc(podman):
    image, mount = "nersc/pytorch:1", ["-v", f"{podman.work}:{podman.work}", "-w", podman.work]
    assert podman.run(*podman.words, *mount, image, "cat", "here") == "here"
    assert podman.logged()[-1]["modules"] == ["gpu", "nccl"]
    found = podman.env(*podman.words, "-e", "SLURM_*", "--env=NEW=1", "-eNONE", "-e", "OF_HOST", image)
    assert (found["SLURM_PROCID"], found["NEW"], found["OF_HOST"], found["BOTH"]) == ("3", "1", "host", "image")
    assert not {"SCRATCH", "NONE", "STAND_IN_LOG"} & set(found) and found["STAND_IN_RUNTIME"] == "podman-hpc"
    assert podman.env(*podman.words, "--env-host", image)["SCRATCH"]
    assert "No such file" in podman.refused(*podman.words, image, "cat", podman.work / "here")
    podman.run(*podman.words, image, "touch", "/stand_in_new", "/tmp/stand_in_new")
    assert not Path("/stand_in_new").exists() and not Path("/tmp/stand_in_new").exists()
    said = podman.refused(*podman.words, "--entrypoint=", image, "no_such_program")
    assert "`no_such_program` not found in $PATH" in said
    # the site's flags, and --help, are taken from the program's arguments
    say = [image, "bash", "-c", 'echo "$@"', "_", "--nccl", "--x"]
    assert podman.run(*podman.words, *say) == "--x\n"
    assert podman.run(*podman.words, "--", *say) == "--nccl --x\n"
    assert "Usage" in podman.run(*podman.words, image, "python3", "--help")
    connect = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(*socket.if_nameindex())"
    assert podman.run("podman-hpc", "run", image, "python3", "-c", connect) == "(1, 'lo')\n"  # no --network=host


# Says its number, sends itself SIGTERM, and ends when somebody sends it USR1.
PROCESS_1 = """\
import os, signal, sys
print(os.getpid() == 1, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGTERM)
print("alive", flush=True)
signal.sigwait({signal.SIGUSR1})
sys.exit(3)
"""


def test_podman_hpc_process_1(podman):
    """As process 1 a command does not hear SIGTERM unless it handles it; with --pid=host it is not process 1."""
    command = ["nersc/pytorch:1", "python3", "-c", PROCESS_1]
    process = podman.start(*podman.words, *command)
    assert [process.stdout.readline() for _ in range(2)] == ["True\n", "alive\n"]
    process.send_signal(signal.SIGTERM)  # podman hands on what it gets
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 3
    process = podman.start(*podman.words, "--pid=host", *command)
    assert (process.communicate()[0], process.returncode) == ("False\n", 128 + signal.SIGTERM)
    process = podman.start(*podman.words, "--pid=host", "nersc/pytorch:1", "bash", "-c", "echo; exec sleep 1000")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    seen = podman.run(*podman.words, "nersc/pytorch:1", "bash", "-c", "echo /proc/[0-9]*").split()
    assert seen == ["/proc/1"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--mounts=/usr:/usr"], 125, "Error: unknown flag: --mounts"),
        (["--gpus=4"], 125, "Error: unknown flag: --gpus"),
        (["-z"], 125, "Error: unknown shorthand flag: 'z' in -z"),
        (["-v", "/no/such:/x"], 125, "Error: statfs /no/such: no such file or directory"),
        (["-v", "/usr:x"], 125, 'Error: invalid container path "x", must be an absolute path'),
        (["-v", "/usr:/x:readonly"], 125, 'Error: invalid option type "readonly"'),
        (["-w", "/no/such"], 126, 'Error: workdir "/no/such" does not exist on container'),
        (["-w", "no/such"], 126, 'Error: workdir "no/such" does not exist on container'),
    ],
)
def test_podman_hpc_refuses(podman, words, code, said):
    process = podman.start(*podman.words, *words, "nersc/pytorch:1", "true")
    assert said in process.communicate()[1] and process.returncode == code
