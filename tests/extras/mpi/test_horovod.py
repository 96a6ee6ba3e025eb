"""extras/mpi/train_horovod.py and build_horovod.sh: losses that do not depend on the ranks, plain refusals.

The fast tests need no Horovod: a stand-in of one rank takes its place, and tools that only pretend take those of the
build. The drills build the real one for this Python, once into build/, and run it under mpirun on the cluster.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, bake
from needs import skip_or_fail
from submitting import cluster, python_environment
from two_nodes import ANSWERS, MPIRUN_AS_ROOT
from waiting import COMPILATION, FOREVER, INSTALLATION, PATIENCE, wait_for

torch = pytest.importorskip("torch")

# the compiler and what comes before it
pytestmark = pytest.mark.timeout(COMPILATION + 2 * INSTALLATION)

PROGRAM = TEMPLATE / "extras/mpi/train_horovod.py"
BUILD = TEMPLATE / "extras/mpi/build_horovod.sh"
TINY = ["--data", PROGRAM, "--width", "16", "--context", "16", "--log-every", "1"]
LAUNCHERS = ("SLURM_", "PMI", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOROVOD_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
# Byte code beside the sources would become part of every project that is written from here.
CLEAN |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


# ---- the program -----------------------------------------------------------------------------------------------------

# horovod.torch, as far as the program uses it, for one rank. HOROVOD_SAYS: how many there are.
ONE_RANK = """\
import os
Sum = "sum"
init = shutdown = barrier = lambda: None
rank = local_rank = lambda: 0
size = lambda: int(os.environ.get("HOROVOD_SAYS", "1"))
allreduce = lambda tensor, name, op=None: tensor
broadcast_object = lambda thing, root_rank: thing
broadcast_parameters = broadcast_optimizer_state = lambda state, root_rank: None
def DistributedOptimizer(optimizer, named_parameters):
    assert not optimizer.state, "wrapping would drop it"
    assert len(list(named_parameters)) == sum(len(group["params"]) for group in optimizer.param_groups)
    return optimizer
"""


def losses(output):
    """Return the losses by step that the program has printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+), loss ([\d.]+)", output)}


@pytest.fixture
def solo(tmp_path):
    """Run the program by itself, with the stand-in for Horovod; return the finished process."""
    (tmp_path / "one/horovod").mkdir(parents=True)
    (tmp_path / "one/horovod/__init__.py").touch()
    (tmp_path / "one/horovod/torch.py").write_text(ONE_RANK)

    def run(*flags, **environment):
        environment = {**CLEAN, "PYTHONPATH": str(tmp_path / "one"), **environment}
        command = [sys.executable, PROGRAM, *TINY, "--out", tmp_path / "out", *map(str, flags)]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    return run


def test_it_learns_and_goes_on_as_if_nothing_had_been(solo, tmp_path):
    whole = solo("--steps", 30)
    assert whole.returncode == 0, whole.stderr
    expected = losses(whole.stdout)
    assert expected[30] < expected[1] - 0.5
    stop, requeue = tmp_path / "stop", tmp_path / "requeue"
    half = solo("--steps", 15, "--save-every", 10, "--out", tmp_path / "half")
    assert losses(half.stdout) == {step: expected[step] for step in range(1, 16)}
    stop.touch()  # the job asks at once: one step, and a checkpoint
    job = {"STOP_FILE": str(stop), "REQUEUE_FILE": str(requeue)}
    asked = solo("--steps", 30, "--resume", "--out", tmp_path / "half", **job)
    assert asked.returncode == 0 and set(losses(asked.stdout)) == {16} and requeue.exists(), asked
    stop.unlink()
    rest = solo("--steps", 30, "--out", tmp_path / "half", RESTART_COUNT="1", **job)  # the job was requeued
    found = losses(rest.stdout)
    assert set(found) == set(range(17, 31)), rest
    assert all(abs(found[step] - expected[step]) <= 1e-5 for step in found)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        ([], {"WORLD_SIZE": "2"}, "2 processes were started, but not by MPI: set LAUNCHER=mpirun-ranks"),
        ([], {"SLURM_STEP_NUM_TASKS": "2"}, "2 processes were started, but not by MPI: set LAUNCHER=mpirun-ranks"),
        (
            [],
            {"OMPI_COMM_WORLD_RANK": "0", "WORLD_SIZE": "2"},
            "2 processes were started by an MPI that Horovod was not built with: build it again",
        ),
        (["--global-batch", "31"], {"HOROVOD_SAYS": "2"}, "--global-batch 31 cannot be shared equally by 2 ranks"),
        (["--context", "99999"], {}, "and a sequence takes 100000"),
        (
            [],
            {"PYTHONPATH": ""},
            "Horovod cannot be used (No module named 'horovod'): build it with 'bash extras/mpi/build_horovod.sh'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(solo, tmp_path, flags, environment, said):
    done = solo(*flags, **environment)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr and not (tmp_path / "out").exists(), done


# ---- the build, with tools that only pretend -------------------------------------------------------------------------

BASICS = ["bash", "cat", "cp", "dirname", "env", "grep", "gzip", "head", "ln", "ls", "mkdir", "mktemp", "mv", "nproc"]
BASICS += ["realpath", "rm", "sed", "sort", "tail", "tar", "touch", "tr", "uname"]
# Answers what the script asks; "builds" by noting the environment and what became of the sources.
PYTHON = """#!/bin/bash
case "$*" in
    *"import torch; print"*) [[ -n $TORCH ]] || { echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1; }
        echo "$TORCH" ;;
    *"import nvidia.nccl"*) [[ -n $PIP_NCCL ]] && echo "$PIP_NCCL" ;;
    *get_paths*) echo "$HERE/include" ;;
    *"import horovod"*) [[ -z $BROKEN ]] || { echo "ImportError: libmpi.so.40: cannot open" >&2; exit 1; } ;;
    *sys.prefix*) echo "$HERE" ;;
    "-m pip --version") [[ -z $NO_PIP ]] ;;
    "-m pip download"*) [[ -n $SOURCE ]] && cp "$SOURCE" "$(sed 's/.*--dest //; s/ --find-links.*//' <<<"$*")" ;;
    "-m pip wheel"*)
        [[ -z $FAILS ]] || { echo "mpi.cc:1: error: no such luck"; exit 1; }
        env >"$HERE/environment"
        cat CMakeLists.txt horovod/torch/CMakeLists.txt horovod/common/ops/cuda/CMakeLists.txt >"$HERE/sources"
        library=$(sed -n 's/.*NCCL_LIBNAME "\\(.*\\)")/\\1/p' cmake/Modules/FindNCCL.cmake)
        [[ -z $HOROVOD_NCCL_HOME ]] ||
            cat "$HOROVOD_NCCL_HOME/include/nccl.h" "$HOROVOD_NCCL_LIB/$library" >"$HERE/nccl"
        folder=$(sed 's/.*--wheel-dir //; s/ \\.$//' <<<"$*")
        mkdir "$folder"
        touch "$folder/horovod-0.28.1+$HOROVOD_LOCAL_VERSION-cp311-cp311-linux_$(uname -m).whl" ;;
    "-m pip "*) echo "$*" >>"$HERE/pip" ;;
    *) echo "python was asked: $*" >&2; exit 9 ;;
esac
"""
COMPILES = "#!/bin/bash\n"
FAKES = {
    "python": PYTHON,
    "cmake": COMPILES,
    "make": COMPILES,
    "c++": COMPILES,
    "mpicxx": COMPILES,
}


@pytest.fixture
def build(tmp_path):
    """Run the script in a folder of its own, with tools of which some may be other ones, or missing (None)."""
    for name in BASICS:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").touch()
    source = tmp_path / "horovod-0.28.1.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name, text in {
            "CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14)\n",
            "horovod/torch/CMakeLists.txt": "    set(CMAKE_CXX_STANDARD 14)\n"
            'COMMAND ${PY_EXE} -c "from distutils.sysconfig import get_python_inc; print(get_python_inc())"\n',
            "horovod/common/ops/cuda/CMakeLists.txt": "set(CMAKE_CUDA_STANDARD 11)\n",
            "cmake/Modules/FindNCCL.cmake": '    set(NCCL_LIBNAME "nccl")\n',
        }.items():
            member = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    wheels, temporary = tmp_path / "my wheels", tmp_path / "tmp"
    temporary.mkdir()

    def run(tools=(), **environment):
        for name, text in {**FAKES, **dict(tools)}.items():
            (tmp_path / "bin" / name).unlink(missing_ok=True)
            if text is not None:
                (tmp_path / "bin" / name).write_text(text)
                (tmp_path / "bin" / name).chmod(0o755)
        env = {"PATH": str(tmp_path / "bin"), "HERE": str(tmp_path), "TORCH": "2.13.0+cpu - - cp311"}
        env |= {"PYTHON": "python", "SOURCE": str(source), "TMPDIR": str(temporary), **environment}
        command = [shutil.which("bash"), BUILD, wheels]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert not list(temporary.iterdir()), "something is left"
        return done

    def refused(tools=(), **environment):
        done = run(tools, **environment)
        assert done.returncode == 2, done.stdout + done.stderr
        assert not list(wheels.glob("**/*")) and not list(wheels.glob(".*")), "something is left"
        assert done.stderr.splitlines()[-1].startswith("extras/mpi/build_horovod.sh: "), done.stderr
        return done.stderr

    return argparse.Namespace(run=run, refused=refused, wheels=wheels, folder=tmp_path)


def test_missing_tools_are_named_together(build):
    message = build.refused({"cmake": None, "make": None, "c++": None})
    gone = "{0}: command not found"
    named = [("cmake", "cmake"), ("make", "make"), ("a C++17 compiler", "c++")]
    assert "missing: " + "; ".join(f"{what} ({gone.format(tool)})" for what, tool in named) + "; load" in message
    assert "apt-get install cmake make g++ libopenmpi-dev python3-dev" in message
    assert "missing: MPI with its headers (mpicxx: command not found); load" in build.refused({"mpicxx": None})
    no_headers = "#!/bin/bash\necho 'fatal error: mpi.h: No such file or directory' >&2\nexit 1\n"
    said = "(fatal error: mpi.h: No such file or directory); load"
    assert f"missing: MPI with its headers {said}" in build.refused({"mpicxx": no_headers})
    assert f"missing: a C++17 compiler {said}" in build.refused({"c++": no_headers})
    (build.folder / "include/Python.h").unlink()
    message = build.refused()
    assert "missing: Python's headers (ls: " in message and f"{build.folder}/include/Python.h" in message


def test_a_python_that_will_not_do(build):
    assert "nosuch: not found; set PYTHON" in build.refused(PYTHON="nosuch")
    assert "python cannot import torch (ModuleNotFoundError: No module named 'torch')" in build.refused(TORCH="")
    assert "python has no pip" in build.refused(NO_PIP="1")
    assert "built for ROCm" in build.refused(TORCH="2.13.0+rocm7.1 - 7.1 cp311")


def test_no_source_and_no_index(build):
    message = build.refused(SOURCE="")
    assert "pip could not download the source of Horovod" in message and f"copy wheels/ to {build.wheels}" in message


def test_a_build_that_fails_leaves_nothing(build):
    message = build.refused(FAILS="1")
    assert "mpi.cc:1: error: no such luck" in message and "Horovod's build failed" in message


def test_built_once_per_torch(build):
    done = build.run()
    assert done.returncode == 0, done.stderr
    name = f"horovod-0.28.1+torch2.13.0.cpu-cp311-cp311-linux_{os.uname().machine}.whl"
    assert [path.name for path in build.wheels.iterdir()] == [name]
    assert done.stdout.endswith(f"installed: Horovod 0.28.1 for torch 2.13.0+cpu into {build.folder}\n")
    installed = f"-m pip install --quiet --find-links {build.wheels} {build.wheels}/{name}"
    removed = "-m pip uninstall --quiet --yes horovod"  # or pip would keep one of the same version
    assert (build.folder / "pip").read_text().splitlines()[-2:] == [removed, installed]
    sources = (build.folder / "sources").read_text()
    assert sources.count("CXX_STANDARD 17)") == 2 and "CUDA_STANDARD 17)" in sources
    assert "\"import sysconfig; print(sysconfig.get_paths()['include'])\"" in sources and "distutils" not in sources
    environment = (build.folder / "environment").read_text()
    assert "HOROVOD_WITH_PYTORCH=1" in environment and "HOROVOD_WITH_MPI=1" in environment
    assert "HOROVOD_GPU" not in environment and "HOROVOD_NCCL" not in environment
    again = build.run({"cmake": None, "mpicxx": None}, SOURCE="")  # nothing is built, so nothing is needed
    assert (again.returncode, again.stdout.splitlines()) == (0, done.stdout.splitlines()[-1:]), again.stderr
    assert (build.folder / "pip").read_text().splitlines()[-1] == installed
    other = build.run(TORCH="2.13.0a0+ECF3bae.nv25_12 - - cp311")
    assert other.returncode == 0, other.stderr
    assert len(list(build.wheels.glob("horovod-0.28.1+torch2.13.0a0.ecf3bae.nv25.12-*.whl"))) == 1


def test_a_wheel_that_does_not_work_here_is_not_left_installed(build):
    done = build.run(BROKEN="1")
    assert done.returncode == 2
    assert "does not work here (ImportError: libmpi.so.40: cannot open): load the modules" in done.stderr
    assert (build.folder / "pip").read_text().splitlines()[-1] == "-m pip uninstall --quiet --yes horovod"


def test_gpus_take_nvcc_and_nccl(build):
    cuda = {"TORCH": "2.13.0+cu130 13.0 - cp311"}
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        assert "missing: nvcc of CUDA 13.0 (CUDA_HOME); load" in build.refused(**cuda)
    nvcc = {"nvcc": COMPILES}
    message = build.refused(nvcc, **cuda)
    assert "built for CUDA 13.0, but pip installed no NCCL beside it: set NCCL_PATH to a folder with" in message
    nccl = build.folder / "my nccl"
    nccl.mkdir()
    assert f"no include/nccl.h in '{nccl}' (NCCL_PATH)" in build.refused(nvcc, **cuda, NCCL_PATH=str(nccl))
    (nccl / "include").mkdir()
    (nccl / "include/nccl.h").write_text("header ")
    assert f"no libnccl.so in lib, lib64 or lib/{os.uname().machine}-linux-gnu of '{nccl}'" in build.refused(
        nvcc, **cuda, NCCL_PATH=str(nccl)
    )
    (nccl / "lib").mkdir()
    (nccl / "lib/libnccl.so.2").write_text("library")  # as pip has it
    for name in ("NCCL_PATH", "PIP_NCCL"):
        done = build.run(nvcc, **cuda, **{name: str(nccl)}, HOROVOD_GPU_OPERATIONS="MPI")
        assert done.returncode == 0, done.stderr
        assert (build.folder / "nccl").read_text() == "header library"
        environment = (build.folder / "environment").read_text().splitlines()
        assert {"HOROVOD_GPU_OPERATIONS=NCCL", "HOROVOD_NCCL_LINK=SHARED"} <= set(environment)
        assert f"HOROVOD_CUDA_HOME={build.folder}" in environment
        (wheel,) = build.wheels.iterdir()
        assert "+torch2.13.0.cu130-" in wheel.name
        wheel.unlink()
        (build.folder / "nccl").unlink()


# ---- the real one ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def horovod(tmp_path_factory):
    """A Python with the tests' packages and Horovod, in a folder with a space; the wheel stays in build/."""
    venv = tmp_path_factory.mktemp("horovod") / "a venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin/python"
    own = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                         check=True, capture_output=True, text=True).stdout.strip()  # fmt: skip
    Path(own, "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    script = hashlib.sha256(BUILD.read_bytes()).hexdigest()[:8]  # another script makes another wheel
    wheels = REPOSITORY / f"build/horovod-{script}"
    if not (wheels / "horovod-0.28.1.tar.gz").exists():  # as a site without a package index is told to
        wanted = re.search(r"pip download -d wheels (.*)", BUILD.read_text())[1].replace("'", "").split()
        subprocess.run(
            [python, "-m", "pip", "download", "--quiet", "-d", wheels, *wanted], check=True, timeout=INSTALLATION
        )
    environment = {**CLEAN, "PYTHON": str(python), "PIP_NO_INDEX": "1"}
    command = ["bash", BUILD, wheels]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=COMPILATION)
    if done.returncode and "missing: " in done.stderr:
        skip_or_fail(done.stderr)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def project(tmp_path):
    return bake(tmp_path / "a b", **ANSWERS, extras="mpi")


@pytest.fixture
def job(cluster, horovod, project):
    """Returns job(*words, **environment) -> the finished job of two nodes, with two ranks each."""

    def run(*words, wait=True, **environment):
        given = {"PYTHON": str(horovod), "NPROC_PER_NODE": "2", "PREFLIGHT": "0", "LAUNCHER": "mpirun-ranks"}
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE")
        given |= {name: CLEAN[name] for name in names} | MPIRUN_AS_ROOT | environment
        typed = ["bash", "slurm/submit_multinode.sh", *map(str, words)]
        done = cluster.run(*typed, cwd=project, env=python_environment(**given))
        number = int(re.search(r"Submitted batch job (\d+)", done.stdout)[1])
        return cluster.wait(number) if wait else number

    return run


HERE = "extras/mpi/train_horovod.py"


def changed(project, change):
    """Write the program, after some lines of Python, into a project; return its name."""
    lines = [
        "import runpy, sys, time",
        change,
        f"sys.argv[0] = {HERE!r}",
        f"runpy.run_path({HERE!r}, run_name='__main__')",
    ]
    (project / "changed.py").write_text("\n".join(lines) + "\n")
    return "changed.py"


@pytest.mark.drill
def test_four_ranks_on_two_nodes_have_the_losses_of_one(job, horovod, tmp_path):
    flags = [*TINY, "--steps", "20"]
    done = job(HERE, *flags, "--out", tmp_path / "four")
    assert (done.state, done.exit_code) == ("COMPLETED", 0), done.output
    assert "4 rank(s) on cpu, from step 0 to 20" in done.output
    command = [horovod, PROGRAM, *flags, "--out", tmp_path / "one"]
    alone = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert alone.returncode == 0 and "1 rank(s)" in alone.stdout, alone.stderr
    four, one = losses(done.output), losses(alone.stdout)
    assert set(four) == set(one) == set(range(1, 21))
    assert max(abs(four[step] - one[step]) for step in one) <= 1e-4
    # the ranks of the job go on where the one has ended, and the one where they have
    more = job(HERE, *flags[:-1], "30", "--resume", "--out", tmp_path / "one")
    assert more.state == "COMPLETED" and "4 rank(s) on cpu, from step 20 to 30" in more.output, more.output


@pytest.mark.drill
def test_it_is_asked_to_stop_and_goes_on_after_the_requeue(job, cluster, project, tmp_path):
    number = job(HERE, *TINY, "--steps", str(FOREVER), "--out", tmp_path / "out", wait=False)
    output = project / f"demo-{number}.out"

    def shown(pattern):
        return output.exists() and re.search(pattern, output.read_text())

    wait_for(lambda: shown(r"step 5, loss"), output.read_text)
    cluster.run("scancel", "--signal=USR1", "--batch", str(number))
    wait_for(lambda: shown(r"4 rank\(s\) on cpu, from step [1-9]"), output.read_text)
    cluster.run("scancel", str(number))
    assert "back into the queue as attempt 1" in cluster.wait(number).output


@pytest.mark.drill
def test_ranks_that_mpirun_did_not_start(job, tmp_path):
    alone = job(HERE, *TINY, "--out", tmp_path / "run", LAUNCHER="srun")
    assert alone.state == "FAILED" and not (tmp_path / "run").exists(), alone.output
    assert "4 processes were started, but not by MPI: set LAUNCHER=mpirun-ranks" in alone.output
    one = job("--nodes=1", "--", HERE, *TINY, "--steps", "2", LAUNCHER="srun", NPROC_PER_NODE="1")
    assert one.state == "COMPLETED" and "1 rank(s) on cpu" in one.output, one.output


@pytest.mark.drill
def test_a_rank_that_never_comes_ends_the_job(job, project):
    late = "import horovod.torch as hvd\nreal = hvd.allreduce\n"
    late += f"def late(*a, **k):\n    if hvd.rank() == 3: time.sleep({FOREVER})\n    return real(*a, **k)\n"
    late += "hvd.allreduce = late"
    patience = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}
    done = job(changed(project, late), *TINY, **patience)
    assert done.state == "FAILED" and "Horovod has been shut down" in done.output, done.output
    assert re.search(r"Missing ranks:\s*\n3", done.output), done.output  # Horovod says who it waited for
