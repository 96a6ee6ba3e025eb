"""Every launcher on a real Slurm, with every container runtime: the same programs, the same ranks, the same results.

Open MPI is real; which runtimes are is said at each.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from baking import REPOSITORY, bake
from container_root import FAST_SQUASHFS, python_folders
from slurm_cluster import PATH, Cluster
from waiting import FOREVER, PATIENCE, wait_for

from cluster_options.runtimes import IN_SRUN, KINDS, LAUNCHERS

RUNTIMES = KINDS["slurm"]["runtimes"]
ANSWERS = {"site": "slurm", "nodes": "2", "gpus_per_node": "2"}
# Where tests run as root, Open MPI wants to be told so. GPUs are invented, hence ALLOW_CPU.
ENVIRONMENT = {"PYTHON": sys.executable, "ALLOW_CPU": "1"}
ENVIRONMENT |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TRAINING = "training/train_ddp.py --steps 3 --layers 1 --width 32 --global-batch 8"
PROGRAMS = {"check": "check/ranks.py", "pi": "pi/pi.py --intervals 1e6"}
PROGRAMS |= {"all_reduce": "benchmark/all_reduce.py --max 4K", "train": TRAINING}


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b") / "launchers", **ANSWERS)


@pytest.fixture(params=["cluster", "cluster24"])
def either(request):
    """One version of Slurm, and of Open MPI, after the other."""
    cluster = request.getfixturevalue(request.param)
    if not cluster.namespaces:
        pytest.skip(f"no namespaces: {cluster.no_namespaces}")
    return cluster


def salloc(cluster, lines, *, cwd, timeout=PATIENCE, options=(), check=True, **environment):
    """Run lines of bash in an allocation of two nodes; stops at the first that fails."""
    command = [
        "salloc",
        "--nodes=2",
        "--gpus-per-node=2",
        "--cpus-per-task=8",
        *options,
        "bash",
        "-ec",
        "\n".join(lines),
    ]
    return cluster.run(*command, cwd=cwd, env={**ENVIRONMENT, **environment}, timeout=timeout, check=check)


SHARED_OUT = [("cluster", "check")]  # the drills run all, and the other Slurm
MORE = (("cluster24", "check train"), ("cluster", " ".join(PROGRAMS)))
SHARED_OUT += [pytest.param(*more, marks=pytest.mark.drill) for more in MORE]


@pytest.mark.parametrize(("either", "names"), SHARED_OUT, indirect=["either"])
def test_the_same_programs_give_the_same_results_under_every_launcher(either, project, tmp_path, names):
    programs = {name: PROGRAMS[name] for name in names.split()}
    lines = [
        f"LAUNCHER={launcher} bash slurm/submit_multinode.sh {program} --json '{tmp_path}/{launcher}.{name}'"
        + (f" --out '{tmp_path}/{launcher}'" if name == "train" else "")
        for launcher in LAUNCHERS
        for name, program in programs.items()
    ]
    salloc(either, lines, cwd=project)

    def results(name):
        return {launcher: json.loads((tmp_path / f"{launcher}.{name}").read_text()) for launcher in LAUNCHERS}

    for launcher, found in results("check").items() if "check" in programs else ():
        rows = [[row[key] for key in ("rank", "host", "node_rank", "local_rank")] for row in found["rows"]]
        assert rows == [[0, "node1", 0, 0], [1, "node1", 0, 1], [2, "node2", 1, 0], [3, "node2", 1, 1]], launcher
    if "pi" in programs:
        values = [found["pi"] for found in results("pi").values()]
        assert max(values) - min(values) <= 1e-12 and abs(values[0] - 3.141592653589793) < 1e-12
        for launcher, found in results("all_reduce").items() if "all_reduce" in programs else ():
            assert found["world_size"] == 4 and all(row["wrong"] == 0 for row in found["results"]), launcher
    if "train" in programs:
        losses = [found["losses"] if "losses" in found else found["loss"] for found in results("train").values()]
        # in float32, and with as many threads per rank as a launcher leaves it
        assert all(abs(a - b) < 1e-5 for loss in losses for a, b in zip(loss, losses[0])), losses


@pytest.mark.parametrize("launcher", ["srun", "spawn", "mpirun", "mpirun-ranks"])  # torchrun: test_slurm.py
def test_a_rank_that_fails_ends_the_job(cluster, project, tmp_path, launcher):
    """The others sleep for hours; the job fails, and says why."""
    (tmp_path / "fails.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '3': sys.exit('on purpose')\ntime.sleep({FOREVER})\n"
    )
    script = project / "slurm/submit_multinode.sh"
    job = cluster.submit(script, "fails.py", cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher})
    assert job.state == "FAILED" and job.exit_code != 0, job.output
    assert "on purpose" in job.output


@pytest.mark.parametrize("either", ["cluster", pytest.param("cluster24", marks=pytest.mark.drill)], indirect=True)
def test_ranks_are_as_many_as_the_gpus_that_were_asked_for(either, project, tmp_path):
    """One GPU of two on each node, with --exclusive: the job's record and the batch script say 2, and a step says 1."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    launchers = [launcher for launcher in LAUNCHERS if launcher != "spawn"]  # which torchrun.sh starts
    allocated, batch = (launchers, launchers) if either.root else (["srun", "mpirun"], ["torchrun", "mpirun-ranks"])
    wanted = [f"{rank}|2|1|host|" for rank in range(2)]
    options = ["--nodes=2", "--gpus-per-node=1", "--exclusive"]
    for place, names in (([], allocated), (["srun", "--nodes=1", "--ntasks=1"], ["srun"])):
        lines = "\n".join(f"LAUNCHER={name} bash slurm/submit_multinode.sh '{tmp_path}/own.py'" for name in names)
        command = ["salloc", *options, "--cpus-per-task=8", *place, "bash", "-ec", lines]
        done = either.run(*command, cwd=project, env=ENVIRONMENT)
        found = re.findall(r"RESULT (\d\|\d\|\d\|host\|)", done.stdout)
        assert sorted(found) == sorted(wanted * len(names)), done.stdout + done.stderr
    script = project / "slurm/submit_multinode.sh"
    for launcher in batch:
        job = either.submit(*options, script, "own.py", cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher})
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        assert sorted(re.findall(r"RESULT (\d\|\d\|\d\|host\|)", job.output)) == wanted, (launcher, job.output)


def test_a_site_that_counts_all_gpus_of_a_node(cluster, project, tmp_path):
    """MareNostrum 5 sets SLURM_GPUS_ON_NODE to 4 whatever was asked; here a TaskProlog does so, and prints a line."""
    prolog = tmp_path / "prolog.sh"
    prolog.write_text("#!/bin/bash\necho export SLURM_GPUS_ON_NODE=4\necho print a line of the site\n")
    prolog.chmod(0o755)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    script = project / "slurm/submit_multinode.sh"
    with Cluster(tmp_path / "cluster", nodes=2, gpus=4, extra_conf=f"TaskProlog={prolog}") as counting:
        for launcher in ("torchrun", "srun", "mpirun-ranks"):
            environment = {**ENVIRONMENT, "LAUNCHER": launcher}
            job = counting.submit("--nodes=2", "--gpus-per-node=2", script, "own.py", cwd=tmp_path, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
            found = sorted(re.findall(r"RESULT (\d\|\d\|\d\|host\|)", job.output))
            assert found == [f"{rank}|4|6|host|" for rank in range(4)], (launcher, job.output)


def test_inside_an_interactive_shell(either, project, tmp_path):
    """A step within a step, where a plain srun would wait for ever."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    lines = [
        f"LAUNCHER={launcher} bash slurm/submit_multinode.sh '{tmp_path}/own.py'"
        for launcher in ("srun", "mpirun-ranks")
    ]
    allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
    command = [*allocation, "srun", "--nodes=1", "--ntasks=1", "bash", "-ec", "\n".join(lines)]
    done = either.run(*command, cwd=project, env=ENVIRONMENT)
    assert done.stdout.count("|4|6|host|") == 8, done.stdout


def test_wrong_use_is_refused(cluster, project, tmp_path):
    def refused(*command, code=2, **environment):
        done = cluster.run(*command, cwd=project, env={**ENVIRONMENT, **environment}, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr

    step = ["srun", "--nodes=2", "--gpus-per-node=2"]
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "12345"}
    for launcher in ("torchrun", "spawn"):
        said = refused(*step, "--ntasks-per-node=2", "launch/torchrun.sh", "pi/pi.py", LAUNCHER=launcher)
        assert "srun started 4 tasks on 2 node(s), but one per node is wanted" in said
    said = refused(*step, "--ntasks-per-node=1", "launch/rank.sh", "pi/pi.py", **meeting)
    assert "started 2 time(s) on 2 node(s), but once per rank is wanted, 2 times on each: srun --ntasks=4" in said
    said = refused(*step, "--ntasks-per-node=2", sys.executable, "pi/pi.py", code=1)
    assert "started 4 times without RANK, each would be alone: put launch/rank.sh before pi/pi.py" in said
    script = ["bash", "slurm/submit_multinode.sh"]
    assert "no program 'python3': python3 is started by the launcher" in refused(*script, "python3", "pi/pi.py")
    bare = tmp_path / "bin"
    bare.mkdir()
    for folder in PATH.split(":"):
        for tool in Path(folder).glob("*"):
            if tool.name not in {"mpirun", "mpirun.openmpi"} and not (bare / tool.name).exists():
                (bare / tool.name).symlink_to(tool)
    said = refused(*script, "pi/pi.py", LAUNCHER="mpirun", PATH=str(bare))
    assert "LAUNCHER=mpirun needs Open MPI's mpirun, which was not found" in said
    (bare / "srun").unlink()
    assert "srun is not found any more once MODULES are loaded" in refused(*script, "pi/pi.py", PATH=str(bare))
    said = refused("salloc", "--nodes=2", "--gpus-per-node=2", *script, "pi/pi.py", LAUNCHER="srun", NPROC_PER_NODE="9")
    assert "NPROC_PER_NODE=9: there are 1 core(s) on each node" in said
    said = refused("salloc", "--nodes=2", *script, "pi/pi.py", LAUNCHER="srun", NPROC_PER_NODE="two")
    assert "NPROC_PER_NODE='two': expected a whole number of ranks on each node" in said


# ---- every runtime ---------------------------------------------------------------------------------------------------

STAND_INS = REPOSITORY / "tests/clusters/stand_ins"
REAL = ("none", "venv", "apptainer")  # the others are stand-ins, which check what they are given as the real ones do
# All ranks meet rank 0, without torch, whose import would take most of the time; programs with torch are tested above.
OWN_PROGRAM = """\
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1  # torchrun itself has the other
total = rank
if rank == 0:
    if "REQUEUE_FILE" in os.environ:
        open(os.environ["REQUEUE_FILE"], "x").close()
    with socket.create_server(("", here[1]), backlog=world) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(f"{total}\\n".encode())
else:
    while True:
        try:
            with socket.create_connection(here) as peer:
                peer.sendall(f"{rank}\\n".encode())
                total = int(peer.makefile().readline())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
runtime = os.environ.get("STAND_IN_RUNTIME") or ("apptainer" if os.path.exists("/.singularity.d") else "host")
words = [rank, world, total, runtime, os.getcwd(), *sys.argv[1:]]
sys.stdout.write("RESULT " + "|".join(map(str, words)) + "\\n")
"""
ARGUMENTS = ["a b", '"', "$HOME", "--max"]


@pytest.fixture(scope="session")
def everywhere(tmp_path_factory):
    """A site that has every runtime and every launcher, and whose containers see this Python."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    text = re.sub("runtimes: .*", f"runtimes: [{', '.join(RUNTIMES)}]", text)
    text += "containers:\n  shifter: {options: [--module=gpu]}\n  podman-hpc: {options: [--gpu, --nccl]}\n"
    text += f"binds: [{', '.join(PYTHON_FOLDERS)}]\n"
    path = tmp_path_factory.mktemp("site") / "everywhere.yaml"
    path.write_text(text)
    return path


# The folders of the tests' Python, as far as no image has them.
PYTHON_FOLDERS = [sys.prefix, *map(str, python_folders())]


@pytest.fixture
def container_cluster(request):
    """The cluster that has a runtime: for apptainer one whose nodes are Debian 13 with Debian's Apptainer."""
    runtime = request.getfixturevalue("runtime")
    return request.getfixturevalue("containers" if runtime == "apptainer" else "cluster")


def stand_in_image(file):
    """An image as the stand-ins read it: this Python, a PATH of its own, and the variable of images with PyTorch."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTORCH_VERSION": "2.13.0"}
    file.write_text(json.dumps({"env": environment, "binds": PYTHON_FOLDERS, "workdir": "/"}))
    return file


@pytest.fixture
def surroundings(request):
    return partial(surroundings_of, request)


def surroundings_of(request, runtime, project, tmp_path, cluster):
    """What the environment of the tests adds for a runtime; the image is made by the project's own script."""
    if runtime == "venv":
        return {"VENV": sys.prefix, "PYTHON": "python3"}
    if runtime == "apptainer":  # what Docker saved elsewhere, and no time lost in packing it
        (project / "container/demo.tar").symlink_to(request.getfixturevalue("archive"))
        return {"APPTAINER_MKSQUASHFS_ARGS": FAST_SQUASHFS}
    if runtime == "none":
        return {}
    if os.geteuid() != 0:
        pytest.skip("the stand-ins mount things, as root")
    image = stand_in_image(tmp_path / "registry.json")
    ready = {} if (project / "slurm/build_container.sh").exists() else {"IMAGE": str(image)}
    return ready | {
        "PATH": f"{STAND_INS}:{Path(sys.executable).parent}:{PATH}",
        "STAND_IN_SPANK": runtime if runtime in IN_SRUN else "",
        "STAND_IN_HIDE": f"{tmp_path}:{project.parent}",
        "STAND_IN_IMAGE": str(image),
        "STAND_IN_LOG": str(tmp_path / "log"),
        "STAND_IN_GATEWAY": str(tmp_path / "gateway"),
        "STAND_IN_SITE_FS": f"{tmp_path}:{project}",
        "SCRATCH": str(tmp_path / "scratch"),
        "ENROOT_DATA_PATH": f"{cluster.node_local}/enroot",
    }


def build_image(cluster, project, environment):
    """Run slurm/build_container.sh to its end."""
    done = cluster.run("bash", "slurm/build_container.sh", cwd=project, env=environment)
    output = done.stdout
    if number := re.search(r"Submitted batch job (\d+)", output):
        job = cluster.wait(int(number[1]))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        output = job.output
    assert "ready: " in output
    return output


def cells():
    """Rows of the matrix. In every run: without a container all launchers, else two and those that are refused."""
    for runtime in RUNTIMES:
        refused = [name for name in LAUNCHERS if runtime in IN_SRUN and "mpi" in name]
        quick = LAUNCHERS if runtime == "none" else ["torchrun", "srun", *refused]
        yield pytest.param(runtime, quick, id=runtime)
        if rest := [name for name in LAUNCHERS if name not in quick]:
            yield pytest.param(runtime, rest, id=f"{runtime}-rest", marks=pytest.mark.drill)


@pytest.mark.parametrize(("runtime", "launchers"), cells())
def test_every_launcher_with_every_runtime(
    container_cluster, runtime, launchers, everywhere, surroundings, tmp_path, matrix
):
    """Each cell of the matrix runs on two nodes of two ranks, or is refused with its reason.

    The project, the program and where it is started from are three folders, with spaces in their names, but for edf.
    """
    cluster = container_cluster
    blank = "_" if runtime == "edf" else " "
    project = bake(tmp_path / f"my{blank}projects", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    if (project / "slurm/build_container.sh").exists():
        build_image(cluster, project, environment)
    here, there = tmp_path / f"here{blank}I{blank}am", tmp_path / f"my{blank}programs"
    here.mkdir()
    there.mkdir()
    (there / "own.py").write_text(OWN_PROGRAM)
    command = ["bash", project / "slurm/submit_multinode.sh", there / "own.py", *ARGUMENTS]
    for launcher in launchers:
        allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
        done = cluster.run(*allocation, *command, cwd=here, env={**environment, "LAUNCHER": launcher}, check=False)
        if runtime in IN_SRUN and launcher.startswith("mpirun"):
            assert done.returncode == 2 and "RESULT" not in done.stdout
            assert f"LAUNCHER={launcher} cannot start RUNTIME={runtime}, which lives in options of srun" in done.stderr
            matrix[runtime, launcher] = "refused"
            continue
        assert done.returncode == 0, done.stdout + done.stderr
        inside = runtime if runtime not in ("none", "venv") else "host"
        found = sorted(re.findall(r"RESULT (.*)", done.stdout))
        assert found == ["|".join([str(rank), "4", "6", inside, str(here), *ARGUMENTS]) for rank in range(4)], launcher
        (requeue,) = project.glob("logs/latest/requeue")  # a program reaches what it may ask by, wherever it runs
        requeue.unlink()
        matrix[runtime, launcher] = "real" if runtime in REAL else "stand-in"


# Of torchrun what counts here: it starts the ranks, and tells them which they are. It lies in the current folder, where
# python3 -m looks first, and spares the import of torch. The drills run the real one; test_minimal.py does without a
# container.
SHORT_TORCHRUN = """\
import os, subprocess, sys
end = sys.argv.index("--")
given = dict(word[2:].split("=") for word in sys.argv[1:end])
nodes, node, each = (int(given[name]) for name in ("nnodes", "node-rank", "nproc-per-node"))
os.environ.update(WORLD_SIZE=str(nodes * each), MASTER_ADDR=given["master-addr"], MASTER_PORT=given["master-port"])
command = [sys.executable, *sys.argv[end + 1 :]]
ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(node * each + local)}) for local in range(each)]
sys.exit(max(rank.wait() for rank in ranks))
"""
STARTED_BY = [("short", runtime) for runtime in RUNTIMES if runtime not in REAL]
STARTED_BY += [pytest.param("real", runtime, marks=pytest.mark.drill) for runtime in RUNTIMES if runtime != "none"]


@pytest.mark.parametrize(("torchrun", "runtime"), STARTED_BY)
def test_minimal_with_every_runtime(container_cluster, torchrun, runtime, everywhere, surroundings, tmp_path):
    """In a folder that holds the file, the program, and the image or the environment."""
    cluster, alone = container_cluster, tmp_path / "alone"
    project = bake(tmp_path / "project", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    if (project / "slurm/build_container.sh").exists():
        build_image(cluster, project, environment)
    alone.mkdir()
    text = (project / "slurm/minimal.sbatch").read_text()
    if "IMAGE" in environment:  # a ready file: the user names it
        text = re.sub("(?m)^export IMAGE=.*", f'export IMAGE="{environment["IMAGE"]}"', text)
    (alone / "minimal.sbatch").write_text(text)
    (alone / "own.py").write_text(OWN_PROGRAM)
    (alone / ".venv").symlink_to(sys.prefix)
    if (project / "container").exists():
        (alone / "container").symlink_to(project / "container")
    if torchrun == "short":
        (alone / "torch/distributed").mkdir(parents=True)
        (alone / "torch/distributed/run.py").write_text(SHORT_TORCHRUN)
        (alone / "torch/__init__.py").touch()
        (alone / "torch/distributed/__init__.py").touch()
    environment["APPTAINERENV_PREPEND_PATH"] = str(Path(sys.executable).parent)  # its image has no torch
    before = {path.name for path in alone.iterdir()}
    job = cluster.submit("minimal.sbatch", "own.py", *ARGUMENTS, cwd=alone, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    inside = runtime if runtime != "venv" else "host"
    expected = ["|".join([str(rank), "4", "6", inside, str(alone), *ARGUMENTS]) for rank in range(4)]
    assert sorted(re.findall(r"RESULT (.*)", job.output)) == expected, job.output
    assert {path.name for path in alone.iterdir()} - before == {f"demo-{job.id}.out"}, "it leaves files behind"


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "edf"])
def test_an_image_with_packages_of_one_s_own(cluster, everywhere, runtime, surroundings, tmp_path):
    """podman builds it and enroot imports it, on nodes without docker; podman's container is removed."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    with open(project / "container/requirements.txt", "a") as file:
        file.write("einops\n")
    build_image(cluster, project, environment)
    assert [path.suffix for path in (project / "container").glob("demo.sqsh*")] == [".sqsh"]
    calls = [json.loads(line)["argv"] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls[-1][:1] == ["rm"] and calls[-2][0] == "import" and calls[-2][-1] == "podman://demo:latest"
    look = "ls /dev/shm/stand_ins/podman-containers"
    assert cluster.run("srun", "--nodes=2", "bash", "-c", f"{look} || true").stdout == ""


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_the_image_s_path_and_each_rank_s_threads(cluster, everywhere, runtime, surroundings, tmp_path):
    """enroot's login shell has another PATH, and its hook for PyTorch would give each rank one thread."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "PYTHON": "python3"}
    build_image(cluster, project, environment)
    names = ("PATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS")
    (tmp_path / "own.py").write_text(
        "import os, sys\ncores = min(len(os.sched_getaffinity(0)), int(os.environ['SLURM_CPUS_PER_TASK']))\n"
        f"values = [os.environ[name] for name in {names}]\n"
        "sys.stdout.write('RESULT ' + '|'.join([str(cores), str('HOME' in os.environ), *values]) + '\\n')\n"
    )
    command = ["bash", project / "slurm/submit_multinode.sh", "own.py"]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"

    def run(launcher, **more):
        allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
        done = cluster.run(*allocation, *command, cwd=tmp_path, env={**environment, "LAUNCHER": launcher, **more})
        found = sorted(line.split("|") for line in re.findall(r"RESULT (.*)", done.stdout))
        cores = found[0][0]
        ranks = [[cores, "True", path, str(rank), "4", str(rank % 2)] for rank in range(4)]
        assert [row[:-1] for row in found] == ranks
        return int(cores), {int(row[-1]) for row in found}

    cores, threads = run("srun")
    assert threads == {cores}
    assert run("srun", OMP_NUM_THREADS="3")[1] == {3}
    cores, threads = run("torchrun")
    assert threads == {max(cores // 2, 1)}


NAMES = ["costs $5", 'a "b"', "`id`"]


@pytest.mark.parametrize(("runtime", "names"), [("pyxis", NAMES), ("edf", [*NAMES, "a b", "a;b", "back\\slash"])])
def test_names_that_a_container_engine_breaks(cluster, everywhere, runtime, names, surroundings, tmp_path):
    """Each is refused when the job is submitted, and in the job; other names work."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    build_image(cluster, project, environment)
    said = {
        "pyxis": "env.sh: the container cannot see '{}': a shell of pyxis reads its name",
        "edf": "env.sh: the container engine takes no spaces and none of \" ; $ ` \\ in names, but PROGRAM_DIR is '{}'",
    }[runtime]
    script = project / "slurm/submit_multinode.sh"
    for name in [*names, "it's" if runtime == "edf" else "it's one's own"]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.py").write_text(OWN_PROGRAM)
        if name not in names:
            job = cluster.submit(script, folder / "own.py", cwd=project, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0) and job.output.count("RESULT") == 4, job.output
            continue
        done = cluster.run("bash", script, folder / "own.py", cwd=project, env=environment, check=False)
        assert done.returncode == 2 and done.stderr.startswith(said.format(folder)), done.stderr
        assert len(done.stderr.splitlines()) == 1 and "Submitted" not in done.stdout
    job = cluster.submit(script, tmp_path / names[0] / "own.py", cwd=project, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 2) and said.format(tmp_path / names[0]) in job.output, job.output


def test_the_file_that_describes_a_container_is_filled_in(cluster, everywhere, surroundings, tmp_path):
    """The user's own lines stay, and what srun gets has no ${NAME} but in [env]."""
    project = bake(tmp_path, site=everywhere, runtime="edf", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("edf", project, tmp_path, cluster), "DATA": str(tmp_path / "data")}
    build_image(cluster, project, environment)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.bin").touch()
    template = project / "container/demo.toml"
    own = template.read_text().replace("mounts = [", 'mounts = [\n    "${DATA}:/data:ro",\n    # "${NOWHERE}:/x",')
    template.write_text(own + 'SEEN = "${DATA}"\n')
    (tmp_path / "own.py").write_text("import os\nprint(*os.listdir('/data'), os.environ['SEEN'], flush=True)\n")
    submit = ["bash", project / "slurm/submit_multinode.sh", tmp_path / "own.py"]
    job = cluster.wait(int(cluster.run(*submit, cwd=project, env=environment).stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"train.bin {environment['DATA']}") == 4, job.output
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (option,) = {argument for call in calls if call["runtime"] == "edf" for argument in call["argv"]}
    written = list(project.glob("logs/container-*"))
    assert [f"--environment={path}" for path in written] == [option]  # at submission, and in the job
    lines = [line for line in written[0].read_text().splitlines() if "${" in line and not line.strip().startswith("#")]
    assert lines == ['SEEN = "${DATA}"'] and f'"{tmp_path}/data:/data:ro",' in written[0].read_text()
    for line, said in (
        ('"${NOWHERE}:/x",', "names ${NOWHERE}, which is not set"),
        ('"$HOME:/x",', "a $ that does not begin"),
    ):
        template.write_text(own.replace('# "${NOWHERE}:/x",', line))
        done = cluster.run(*submit, cwd=project, env=environment, check=False)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_enroot_speaks_only_where_it_fails(cluster, everywhere, surroundings, tmp_path):
    """What it prints while it unpacks an image is kept back, and shown where that fails."""
    project = bake(tmp_path, site=everywhere, runtime="enroot", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("enroot", project, tmp_path, cluster)}
    build_image(cluster, project, environment)
    (tmp_path / "own.py").write_text("print('RESULT', flush=True)\n")
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert job.output.count("RESULT") == 4 and "Extracting" not in job.output, job.output
    (project / "container/demo.sqsh").write_text("cut off")
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert job.state == "FAILED" and "[ERROR] Invalid image format: " in job.output, job.output


@pytest.mark.parametrize("runtime", ["shifter", "podman-hpc"])
def test_perlmutter_s_own_flags(cluster, runtime, surroundings, tmp_path):
    """With the image and the flags that its site file names; podman's folders there are variables."""
    project = bake(tmp_path / "a b", site="perlmutter", runtime=runtime)
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "CFS": str(tmp_path)}
    (tmp_path / "scratch").mkdir()
    options = ["--constraint=", "--gpus-per-node=2", "--cpus-per-task=8"]
    build_image(cluster, project, environment)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    command = ["bash", project / "slurm/submit_multinode.sh", *options, "--", "own.py"]
    environment["LAUNCHER"] = "spawn"
    job = cluster.wait(int(cluster.run(*command, cwd=tmp_path, env=environment).stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"|4|6|{runtime}|{tmp_path}") == 4, job.output


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "edf", "podman-hpc"])
def test_an_interactive_shell_in_a_container(cluster, everywhere, runtime, surroundings, tmp_path):
    """A terminal of its own, as a user has; in it a program runs on all ranks of the node."""
    project = bake(
        tmp_path / ("a_b" if runtime == "edf" else "a b"),
        site=everywhere,
        runtime=runtime,
        nodes="2",
        gpus_per_node="2",
    )
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "TERM": "dumb"}
    build_image(cluster, project, environment)
    typed = 'echo "in $STAND_IN_RUNTIME on $(hostname)"\nbash launch/torchrun.sh pi/pi.py --intervals 1e3\nexit\n'
    command = ["script", "-qec", "bash slurm/interactive.sh --time=00:02:00", "/dev/null"]
    done = cluster.run(*command, cwd=project, env=environment, stdin=typed)
    assert f"in {runtime} on node" in done.stdout, done.stdout
    assert "2 ranks on 1 host" in done.stdout, done.stdout
    line = re.search(r"the same as .*\n\n```bash\n(.*)\n```", (project / "README.md").read_text())[1]
    typed = 'echo "in $STAND_IN_RUNTIME on $(hostname), which sees $(ls env.sh)"\nexit\n'
    done = cluster.run("script", "-qec", line, "/dev/null", cwd=project, env=environment, stdin=typed)
    assert re.search(rf"in {runtime} on node\d, which sees env.sh", done.stdout), done.stdout


def test_two_jobs_at_once_unpack_the_image_once_per_node(cluster, everywhere, surroundings, tmp_path):
    """enroot create is neither atomic nor locked: a second job on the node must wait for the first one's."""
    answers = {"project": "at-once", "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path, site=everywhere, runtime="enroot", **answers)
    environment = {**ENVIRONMENT, **surroundings("enroot", project, tmp_path, cluster), "LAUNCHER": "spawn"}
    build_image(cluster, project, environment)
    options = ["--nodelist=node1,node2", "--exclusive=user", "--cpus-per-task=2", "--gpus-per-node=1", "--mem=1G"]
    jobs = [
        cluster.sbatch(*options, project / "slurm/submit_multinode.sh", "pi/pi.py", cwd=project, env=environment)
        for _ in range(2)
    ]
    for job in [cluster.wait(job) for job in jobs]:
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    made = [call["host"] for call in calls if call["runtime"] == "enroot" and call["argv"][0] == "create"]
    assert sorted(made) == ["node1", "node2"]


def test_a_named_container_is_used_again(cluster, everywhere, surroundings, tmp_path):
    """With pyxis and KEEP_CONTAINER the second run finds what the first one unpacked; without it nothing is kept."""
    answers = {"project": "named", "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path, site=everywhere, runtime="pyxis", **answers)
    environment = {**ENVIRONMENT, **surroundings("pyxis", project, tmp_path, cluster), "LAUNCHER": "spawn"}
    build_image(cluster, project, environment)
    (project / "own.py").write_text(OWN_PROGRAM)
    run = "bash slurm/submit_multinode.sh own.py"
    salloc(cluster, [f"KEEP_CONTAINER=kept {run}"] * 2 + [run] * 2, cwd=project, **environment)
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    found = [call["how"] for call in calls if call["host"] == "node2" and "how" in call]
    assert found == ["created", "reused", "temporary", "temporary"]


def test_what_a_container_lacks_is_said_before_the_queue(cluster, everywhere, surroundings, tmp_path):
    """Program, image and folders, for each runtime; inside a job too, and before anything is started on the nodes."""
    said = {
        "apptainer": "neither apptainer nor singularity was found on login",
        "pyxis": "srun on login knows no --container-image: pyxis is not installed",
        "edf": "srun on login knows no --environment: the container engine is not there",
        "enroot": "enroot was not found on login",
        "shifter": "shifter was not found on login",
        "podman-hpc": "podman-hpc was not found on login",
    }
    for runtime, sentence in said.items():
        answers = {"project": f"lacks-{runtime}", "nodes": "2", "gpus_per_node": "2"}
        project = bake(tmp_path, site=everywhere, runtime=runtime, **answers)
        submit = ["bash", project / "slurm/submit_multinode.sh", "pi/pi.py"]

        def refused(submit=submit, project=project, **more):
            done = cluster.run(*submit, cwd=project, env={**ENVIRONMENT, **more}, check=False)
            assert (done.returncode, done.stdout) == (2, ""), done.stdout
            assert len(done.stderr.splitlines()) == 1, done.stderr
            return done.stderr

        assert sentence in refused()
        if runtime == "apptainer":
            continue
        environment = surroundings(runtime, project, tmp_path, cluster)
        missing = {"shifter": "was not pulled", "podman-hpc": "has no migrated image"}.get(runtime, "no image at")
        assert missing in refused(**environment) and "slurm/build_container.sh" in refused(**environment)
        if runtime not in ("edf", "shifter"):
            build_image(cluster, project, {**ENVIRONMENT, **environment})
            settings = project / "env.sh"
            settings.write_text(settings.read_text().replace("BINDS=(", "BINDS=(\n    /no/such/folder"))
            assert "the container cannot see '/no/such/folder'" in refused(**environment)
        job = cluster.submit(*submit[1:], cwd=project, env=ENVIRONMENT)
        assert (job.state, job.exit_code) == ("FAILED", 2), job.output
        assert sentence.replace("login", "node1") in job.output


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis", "edf", "enroot", "podman-hpc"])
def test_a_folder_of_the_container_that_one_node_lacks(cluster, everywhere, runtime, surroundings, tmp_path):
    """The line before the launch names node, folder and setting; nothing of the container is started."""
    if not cluster.namespaces:
        pytest.skip(f"no namespaces: {cluster.no_namespaces}")
    space = "_" if runtime == "edf" else " "  # the container engine takes no spaces
    folder = cluster.node_local / f"data{space}of{space}{runtime}"
    site = tmp_path / "site.yaml"
    site.write_text(re.sub("binds: .*", f'binds: ["{folder}"]', everywhere.read_text()))
    project = bake(tmp_path / f"a{space}b", site=site, runtime=runtime, nodes="2", gpus_per_node="2")
    if runtime == "apptainer":  # any program of that name: it is not started
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/apptainer").symlink_to("/bin/true")
        image = stand_in_image(tmp_path / "image")
        environment = {**ENVIRONMENT, "IMAGE": str(image), "PATH": f"{tmp_path}/bin:{PATH}"}
    else:
        environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
        build_image(cluster, project, environment)
    cluster.run("srun", "--nodes=1", "--nodelist=node1", "mkdir", "-p", folder)
    submit = ["--nodelist=node1,node2", project / "slurm/submit_multinode.sh", "pi/pi.py"]
    job = cluster.submit(*submit, cwd=project, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 1), job.output
    lines = [line for line in job.output.splitlines() if line.startswith("preflight: ")]
    said = f"the container cannot mount {folder}: put it where all nodes see it, or take it out of {SETTING[runtime]}"
    assert len(lines) == 2 and lines[0] == f"preflight: node2: {said}. Without it: sbatch --exclude=node2", job.output
    assert "1 of 2 nodes unfit" in lines[1] and "meeting at" not in job.output


@pytest.mark.parametrize("runtime", ["enroot", "podman-hpc"])  # container/start.sh calls them
def test_a_runtime_that_one_node_lacks(cluster, everywhere, runtime, surroundings, tmp_path):
    if not cluster.namespaces:
        pytest.skip(f"no namespaces: {cluster.no_namespaces}")
    project = bake(tmp_path / "a b", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    build_image(cluster, project, environment)
    on_node2 = ["srun", "--nodes=1", "--nodelist=node2"]
    cluster.run(*on_node2, "mount", "-t", "tmpfs", "tmpfs", STAND_INS)
    try:
        submit = ["--nodelist=node1,node2", project / "slurm/submit_multinode.sh", "pi/pi.py"]
        job = cluster.submit(*submit, cwd=project, env=environment)
    finally:
        cluster.run(*on_node2, "umount", STAND_INS)
    assert (job.state, job.exit_code) == ("FAILED", 1), job.output
    assert f"preflight: node2: cannot read {runtime}: put it where all nodes see it, or name its module" in job.output


# Where a project names the folders that its container sees.
SETTING = dict.fromkeys(RUNTIMES, "BINDS in env.sh") | {"edf": "mounts in container/demo.toml"}


def test_podman_hpc_s_image_has_to_be_migrated(cluster, everywhere, surroundings, tmp_path):
    """An image that only the login node has is refused there, by the build and before the queue."""
    project = bake(tmp_path / "a b", site=everywhere, runtime="podman-hpc", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("podman-hpc", project, tmp_path, cluster)}
    build = ["bash", "slurm/build_container.sh"]
    done = cluster.run(*build, cwd=project, env={**environment, "STAND_IN_MKSQUASHFS": "no"}, check=False)
    assert done.returncode == 2 and "ready: " not in done.stdout, done.stdout
    assert "the image was not migrated, see above" in done.stderr and "Squash Failed" in done.stderr
    submit = ["bash", "slurm/submit_multinode.sh", "pi/pi.py"]
    done = cluster.run(*submit, cwd=project, env=environment, check=False)
    assert done.returncode == 2 and "no migrated image localhost/demo:latest" in done.stderr, done.stderr
    build_image(cluster, project, environment)


@pytest.mark.parametrize("end", ["a rank fails", "scancel"])
def test_ranks_in_podman_hpc_end_by_the_first_signal(cluster, everywhere, surroundings, tmp_path, end):
    """Slurm sends SIGTERM, and SIGKILL after KillWait: none of the ranks has to wait for that."""
    project = bake(tmp_path / "a b", site=everywhere, runtime="podman-hpc", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("podman-hpc", project, tmp_path, cluster), "LAUNCHER": "srun"}
    build_image(cluster, project, environment)
    (project / "waits.py").write_text(WAITS)
    job = cluster.sbatch(project / "slurm/submit_multinode.sh", "waits.py", cwd=project, env=environment)

    def all_started():
        assert cluster.run("squeue", "-h", f"--jobs={job}").stdout, (project / f"demo-{job}.out").read_text()
        return len(list(project.glob("started.*"))) == 4

    wait_for(all_started)
    if end == "scancel":
        cluster.run("scancel", str(job))
    else:
        (project / "fail").touch()
    job = cluster.wait(job)
    assert job.state == ("CANCELLED" if end == "scancel" else "FAILED"), job.output
    ended = {}
    for tasks, how in re.findall(r"srun: error: node\d: tasks? ([\d,-]+): (.*)", job.output):
        ended |= dict.fromkeys(numbers(tasks), how)
    by_sigterm = "Exited with exit code 143"
    last = by_sigterm if end == "scancel" else "Exited with exit code 7"
    assert ended == {0: by_sigterm, 1: by_sigterm, 2: by_sigterm, 3: last}, job.output


# Ranks that wait for each other, until the last one fails.
WAITS = """\
import os, sys, time
open(f"started.{os.environ['RANK']}", "x").close()
while not (os.environ["RANK"] == "3" and os.path.exists("fail")):
    time.sleep(0.1)
sys.exit(7)
"""


def numbers(tasks):
    """The tasks that srun means by 0,2-3."""
    ends = [part.split("-") for part in tasks.split(",")]
    return [number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)]


@pytest.fixture(scope="module")
def matrix(request):
    """Collects the cells, and prints them when the last test is done."""
    cells = {}
    yield cells
    width = max(map(len, RUNTIMES)) + 2
    lines = ["", "launcher x runtime, 2 nodes x 2 ranks; Slurm and Open MPI are real in every cell"]
    lines.append(" " * width + "".join(f"{launcher:14}" for launcher in LAUNCHERS))
    for runtime in RUNTIMES:
        row = [cells.get((runtime, launcher), "drill") for launcher in LAUNCHERS]
        lines.append(f"{runtime:{width}}" + "".join(f"{cell:14}" for cell in row).rstrip())
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n".join(lines))
