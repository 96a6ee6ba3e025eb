"""The stand-ins that are options of srun: as strict as pyxis and the container engine, and a way into a container."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from needs import needs_namespaces
from slurm_cluster import PATH
from stand_in_place import HERE, LOGIN_PATH, PYTHON, ROOT_ONLY, place
from waiting import FOREVER

pytestmark = [ROOT_ONLY, pytest.mark.drill]

# ---- pyxis


@pytest.fixture
def pyxis(place):
    place.environ["STAND_IN_SPANK"] = "pyxis"
    place.srun = ["srun", f"--container-image={place.image}"]
    return place


def test_pyxis_shows_only_what_was_mounted(pyxis):
    other = pyxis.folder / "other"
    other.mkdir()
    look = ["bash", "-c", f'cd "{pyxis.folder}"; ls; cat "{pyxis.work}/here"; touch "{pyxis.work}/new"; ls /data/x']
    out = pyxis.run(*pyxis.srun, f"--container-mounts={pyxis.work},{pyxis.work}:/data/x:ro+rprivate", *look)
    assert out.split() == ["work", "space", "herehere", "new"]
    assert (pyxis.work / "new").exists() and not Path("/data/x").exists()
    assert "No such file" in pyxis.refused(*pyxis.srun, "cat", pyxis.work / "here")
    assert pyxis.refused(*pyxis.srun, "bash", "-c", "touch /usr/x || touch /x").count("Read-only") == 2
    pyxis.run(*pyxis.srun, "touch", "/tmp/stand_in_x")
    pyxis.run(*pyxis.srun, "--container-writable", "touch", "/stand_in_x")
    assert not any(Path(path).exists() for path in ("/stand_in_x", "/tmp/stand_in_x"))
    assert "Read-only" in pyxis.refused(*pyxis.srun, f"--container-mounts={other}:/data/x:ro", "touch", "/data/x/y")


def test_pyxis_working_folder(pyxis):
    assert pyxis.run(*pyxis.srun, "pwd") == "/usr\n"  # the image's, not the caller's
    mounts = f"--container-mounts={pyxis.work}"
    assert pyxis.run(*pyxis.srun, mounts, f"--container-workdir={pyxis.work}", "pwd") == f"{pyxis.work}\n"
    said = pyxis.refused(*pyxis.srun, f"--container-workdir={pyxis.work}", "pwd")
    assert f"pyxis: couldn't chdir to {pyxis.work}: No such file" in said


def test_pyxis_environment(pyxis):
    found = pyxis.env(*pyxis.srun, LANG="C.UTF-8", LD_X="kept")
    assert (found["OF_HOST"], found["OF_IMAGE"], found["BOTH"], found["LD_X"]) == ("host", "image", "image", "kept")
    assert found["PATH"] == LOGIN_PATH and found["STAND_IN_RUNTIME"] == "pyxis"
    assert "LANG" not in found and "RANK" not in found and "ENTRY" not in found
    assert found["HOME"] == "/root" != pyxis.environ["HOME"]
    found = pyxis.env(*pyxis.srun, "--container-env=BOTH,LANG,NONE", "--container-entrypoint", LANG="C.UTF-8")
    assert (found["BOTH"], found["LANG"], found["ENTRY"]) == ("host", "C.UTF-8", "1")
    found = pyxis.env(*pyxis.srun, ENROOT_LOGIN_SHELL="no")
    assert (found["PATH"], found["HOME"]) == (f"{PYTHON}:/usr/bin:/bin", pyxis.environ["HOME"])


def test_pyxis_with_an_image_that_has_pytorch(pyxis):
    image = json.loads(pyxis.image.read_text())
    image["env"]["PYTORCH_VERSION"] = "2"
    pyxis.image.write_text(json.dumps(image))
    mine = {"MASTER_PORT": "1", "SLURM_NTASKS": "2", "RANK": "0", "WORLD_SIZE": "8"}
    found = pyxis.env(*pyxis.srun, **mine)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("3", "1", "2", "61007")
    assert pyxis.env(*pyxis.srun, "--container-env=MASTER_PORT", **mine)["MASTER_PORT"] == "1"
    threads = "OMP_NUM_THREADS"
    several = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
    assert threads not in pyxis.env(*pyxis.srun, **mine)
    assert pyxis.env(*pyxis.srun, **several)[threads] == "1"
    assert pyxis.env(*pyxis.srun, **several, **{threads: "3"})[threads] == "1"  # not handed to enroot
    assert pyxis.env(*pyxis.srun, f"--container-env={threads}", **several, **{threads: ""})[threads] == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a b", None),
        ("it's", None),
        ("costs $5", "$5: unbound variable"),
        ("$UNSET", "UNSET: unbound variable"),
        ("$(uname)", "{}/Linux: No such file or directory"),
        ("`uname`", "{}/Linux: No such file or directory"),
        ('1" disk', "[ERROR] Invalid argument: /tmp/.enroot_config_"),
    ],
)
def test_pyxis_hands_mounts_to_a_shell(pyxis, name, said):
    folder = pyxis.folder / name
    folder.mkdir()
    words = [*pyxis.srun, f"--container-mounts={folder}:/data/x", "ls", "/data"]
    if said is None:
        assert pyxis.run(*words) == "x\n"
    else:
        found = pyxis.refused(*words).replace(" at /data/x", "")
        assert said.format(f"failed to mount: {pyxis.folder}") in found
        assert "pyxis: container start failed with error code: 1\n" in found


def test_what_pyxis_says_when_a_container_does_not_start(pyxis):
    """In this order: pyxis_slurmstepd.c enroot_start_once, enroot.c child_wait."""

    def said(*words):
        lines = pyxis.refused(*words, "true").splitlines()
        assert all(line.startswith("slurmstepd: error: ") for line in lines)
        return [line.removeprefix("slurmstepd: error: ").removeprefix("pyxis: ") for line in lines]

    lines = said(*pyxis.srun, "--container-mounts=/no/such/folder")
    assert lines[:3] == [
        "--container-mounts: source path does not exist: /no/such/folder",
        "couldn't create enroot start configuration script",
        "printing enroot log file:",
    ]
    assert lines[4:] == [
        "container was not started successfully by another task",
        "spank: required plugin spank_pyxis.so: task_init() failed with rc=-1",
        "Failed to invoke spank plugin stack",
    ]
    lines = said("srun", "--container-image=/no.sqsh")
    assert re.fullmatch(r"child \d+ failed with error code: 1", lines[0])
    assert lines[1:4] == [
        "failed to create container filesystem for image: /no.sqsh",
        "printing enroot log file:",
        "    [ERROR] No such file or directory: /no.sqsh",
    ]


def test_pyxis_home(pyxis):
    Path(pyxis.environ["HOME"]).mkdir()
    (Path(pyxis.environ["HOME"]) / "file").touch()
    command = ["bash", "-c", "ls $HOME"]
    assert pyxis.run(*pyxis.srun, "--container-mount-home", *command) == "file\n"
    assert "file" not in pyxis.run(*pyxis.srun, "--no-container-mount-home", *command)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--container-imag=x", "srun: unrecognized option '--container-imag=x'"),
        ("--container-mount=/usr", "srun: unrecognized option '--container-mount=/usr'"),
        ("--environment=x", "srun: unrecognized option '--environment=x'"),
        ("--container-image=/other", "pyxis: --container-image specified multiple times"),
        ("--container-readonly=1", "option '--container-readonly' doesn't allow an argument"),
        ("--container-mounts=", "pyxis: --container-mounts: argument required"),
        ("--container-mounts=/usr:", "pyxis: --container-mounts: invalid format: /usr:"),
        ("--container-mounts=usr:/usr", "mount source must be a relative path, an absolute path"),
        ("--container-mounts=/usr:usr", "mount target must be a relative path or an absolute path"),
        ("--container-mounts=/usr:/a:readonly", "mount flags not known: readonly"),
        ("--container-mounts=/no/such/folder", "--container-mounts: source path does not exist: /no/such/folder"),
        ("--container-env=A,,B", "pyxis: --container-env: invalid format: A,,B"),
        ("--container-name=:create", "--container-name: empty name"),
        ("--container-name=x:new", 'flag is not "auto", "create"'),
    ],
)
def test_pyxis_refuses(pyxis, option, said):
    assert said in pyxis.refused(*pyxis.srun, option, "true")


def test_pyxis_images(pyxis):
    assert "No such file or directory: /no.sqsh" in pyxis.refused("srun", "--container-image=/no.sqsh", "true")
    assert "Invalid image format" in pyxis.refused("srun", "--container-image=./here", "true")
    assert "failed to import" in pyxis.refused("srun", "--container-image=docker://nvcr.io#a/b:1", "true")
    assert "401" in pyxis.refused("srun", "--container-image=nvcr.io/nvidia/pytorch:24.01-py3", "true")
    assert pyxis.env("srun", "--container-image", "me@nvcr.io#nvidia/pytorch:24.01-py3")["OF_IMAGE"] == "image"
    said = pyxis.refused("srun", "--container-image=ubuntu", "true", STAND_IN_IMAGE="")
    assert "failed to import docker image: ubuntu" in said
    process = pyxis.start("srun", "--container-mounts=/usr", "env")  # as the real one: a warning, and no container
    out, err = process.communicate()
    assert process.returncode == 0 and "STAND_IN_RUNTIME" not in out
    assert "ignoring --container-mounts because neither --container-image nor" in err


def test_pyxis_named_container(pyxis):
    name, said = "--container-name=mine", 'a container with name "pyxis_mine" does not exist'
    assert said in pyxis.refused("srun", name, "true", SLURM_STEP_ID="0")
    pyxis.run(*pyxis.srun, name, "true", SLURM_STEP_ID="1")
    pyxis.run("srun", name, "true", SLURM_STEP_ID="2")
    assert [line["how"] for line in pyxis.logged()] == ["created", "reused"]
    assert "already exists" in pyxis.refused(*pyxis.srun, f"{name}:create", "true", SLURM_STEP_ID="3")
    assert "is not running" in pyxis.refused(*pyxis.srun, f"{name}:exec", "true", SLURM_STEP_ID="4")
    said = pyxis.refused("srun", name, "true", SLURM_STEP_ID="5", STAND_IN_CONTAINER_SCOPE="job")
    assert '"pyxis_7_mine" does not exist' in said


def test_pyxis_joins_a_running_container(pyxis):
    """Mounts of the second step are ignored: it sees those of the first."""
    name = "--container-name=mine"
    words = [*pyxis.srun, name, f"--container-mounts={pyxis.work}"]
    with pyxis.start(*words, "bash", "-c", f"echo; sleep {FOREVER}", SLURM_STEP_ID="5") as process:
        process.stdout.readline()
        words[-1] = "--container-mounts=/usr:/else"
        assert pyxis.run(*words, "bash", "-c", f"cat '{pyxis.work}'/here; ls /else; :", SLURM_STEP_ID="6") == "here"
        process.kill()
    assert pyxis.logged()[-1]["how"] == "joined"


def test_srun_hands_on_its_own_options(pyxis):
    command = ["bash", "-c", 'echo "$@"', "_", "--container-imag", "-n", "a b"]
    for own in (["-n", "4"], ["-ln2"], ["--ntasks", "4", "-l"], ["--ntasks=4"]):
        assert pyxis.run("srun", *own, *command) == "--container-imag -n a b\n"
        assert pyxis.run(*pyxis.srun, *own, *command) == "--container-imag -n a b\n"
    shown = pyxis.run("srun", "--help")
    assert "--mpi=type" in shown and "--container-image=" in shown and "--environment" not in shown
    assert "--environment=" in pyxis.run("srun", "--help", STAND_IN_SPANK="edf")
    assert "container" not in pyxis.run("srun", "--help", STAND_IN_SPANK="")
    line = (pyxis.run(*pyxis.srun, "true"), pyxis.logged()[-1])[1]
    assert line["argv"] == [f"--container-image={pyxis.image}"] and line["runtime"] == "pyxis"


# ---- the container engine of CSCS


@pytest.fixture
def edf(place):
    pytest.importorskip("tomllib")
    place.environ["STAND_IN_SPANK"] = "edf"
    place.spaced, place.work = place.work, place.folder / "work"
    shutil.copytree(place.spaced, place.work)

    def write(text, image=True):
        path = place.work / "ngc.toml"
        path.write_text((f'image = "{place.image}"\n' if image else "") + text)
        return f"--environment={path}"

    place.write = write
    return place


def test_edf(edf):
    text = """\
        mounts = ["${PWD}:${PWD}", "/usr:/data/usr:ro"]
        workdir = "${PWD}"
        [env]
        BOTH = "edf"
        OF_HOST = ""
        ALSO = "${BOTH} $${X} ${X:-}"
        [annotations]
        com.hooks.aws_ofi_nccl.enabled = "true"
        """
    option = edf.write(text)
    found = edf.env("srun", option, PWD=str(edf.work), LANG="C")
    assert (found["BOTH"], found["ALSO"], found["OF_IMAGE"]) == ("edf", "image ${X} ", "image")
    assert "OF_HOST" not in found and found["STAND_IN_RUNTIME"] == "edf"
    assert edf.logged()[-1]["annotations"] == {"com.hooks.aws_ofi_nccl.enabled": "true"}
    assert edf.run("srun", option, "cat", "here", PWD=str(edf.work)) == "here"
    assert edf.run("srun", "--environment=./ngc.toml", "cat", "here", PWD=str(edf.work)) == "here"
    assert edf.run("srun", "--environment=ngc", "cat", "here", PWD=str(edf.work), EDF_PATH=f"/usr:{edf.work}") == "here"
    assert 'environment "ngc" not found at' in edf.refused("srun", "--environment=ngc", "true")
    assert 'environment "ngc.toml" not found' in edf.refused("srun", "--environment=ngc.toml", "true")
    (edf.work / "more.toml").write_text('base_environment = "./ngc.toml"\nworkdir = "/usr"\n[env]\nNEW = "1"')
    found = edf.env("srun", "--environment=./more.toml", PWD=str(edf.work))
    assert (found["NEW"], found["BOTH"], found["PWD"]) == ("1", "edf", str(edf.work))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mount = ["/usr:/usr"]', "unknown key 'mount'"),
        ('mounts = "/usr:/usr"', "not of the right type"),
        ("mounts = [1]", "not a list of strings"),
        ('mounts = ["/usr"]', '"/usr" does not match'),
        ('mounts = ["usr:/usr"]', "must start with . or /"),
        ('mounts = ["/usr:/a:ro,private"]', None),
        ('mounts = ["/usr:/a:writable"]', "flags not known: writable"),
        ('mounts = ["/no/such:/a"]', "source path does not exist: /no/such"),
        ('mounts = ["${NOWHERE}:/a"]', "cannot expand variable NOWHERE"),
        ('mounts = ["/a b:/a"]', "statfs /a\\040b: no such file or directory"),
        ('mounts = ["/a;b:/a"]', "cannot expand string /a;b:/a, invalid string"),
        ("mounts = ['/a\"b:/a']", "invalid string"),
        ('mounts = ["/$(id):/a"]', "invalid string"),
        ('mounts = ["/`id`:/a"]', "invalid string"),
        ('workdir = "$HOME"', "a $ that is neither"),
        ('workdir = "/no/such"', "couldn't chdir to /no/such"),
        ('writable = "true"', "not of the right type"),
        ("[env]\nA = 1", "env.A: 1 is not a string"),
        ("[annotations]\ncom.hooks.cxi.enabled = false", "is not a string"),
        ("[env]\nA = 'x", "ngc.toml"),
    ],
)
def test_edf_refuses(edf, text, said):
    if said:
        assert said in edf.refused("srun", edf.write(text), "true")
    else:
        edf.run("srun", edf.write(text), "true")


def test_edf_refuses_images(edf):
    assert "No such file or directory: /no" in edf.refused("srun", edf.write('image = "/no"', image=False), "true")
    assert "image is not expanded: ${HOME}/x" in edf.refused(
        "srun", edf.write('image = "${HOME}/x"', image=False), "true"
    )
    assert "neither image nor base_environment" in edf.refused("srun", edf.write("", image=False), "true")
    assert "failed to import" in edf.refused("srun", edf.write('image = "nvcr.io/a/b"', image=False), "true")
    edf.run("srun", edf.write('image = "nvcr.io#a/b:1"', image=False), "true")
    assert "specified multiple times" in edf.refused("srun", "--environment=a", "--environment=b", "true")
    assert "unrecognized option '--container-image=x'" in edf.refused("srun", "--container-image=x", "true")


# ---- on a cluster


def test_pyxis_on_two_nodes(cluster, place):
    """The real srun, two tasks on each of two nodes, with a container that the second step finds on each node."""
    needs_namespaces(cluster)
    keys = ("STAND_IN_HIDE", "STAND_IN_LOG")
    environ = {key: place.environ[key] for key in keys} | {"STAND_IN_SPANK": "pyxis", "PATH": f"{HERE}:{PYTHON}:{PATH}"}
    program = 'echo "$SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME in $STAND_IN_RUNTIME: $(cat here)"'
    (place.work / "job.sh").write_text(f"""#!/bin/bash
    run() {{ srun --ntasks-per-node=2 -n 4 "$@" --container-name=mine '--container-mounts={place.work}' \\
        '--container-workdir={place.work}' bash -c '{program}'; }}
    run '--container-image={place.image}' && run
    """)
    job = cluster.submit("--nodes=2", "--ntasks-per-node=2", "--export=ALL", "job.sh", cwd=place.work, env=environ)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    lines = [f"{rank} of 4 on node{rank // 2 + 1} in pyxis: here" for rank in range(4)]
    assert sorted(line for line in job.output.splitlines() if "in pyxis" in line) == sorted(lines * 2)
    found = sorted((line["host"], line["how"]) for line in place.logged())
    assert found == [(node, how) for node in ("node1", "node2") for how in ("created", "created", "reused", "reused")]
    assert shutil.which("srun", path=PATH)
