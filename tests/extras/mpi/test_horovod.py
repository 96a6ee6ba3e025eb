"""training/train_horovod.py and slurm/build_horovod.sh: close to train_ddp.py, equal losses, plain refusals.

The fast tests need no Horovod: a stand-in of one rank takes its place, and tools that only pretend take those of the
build. The drills build the real one for this Python, once into build/, and run it under mpirun on the cluster.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import types
from contextlib import nullcontext
from pathlib import Path

import pytest
from needs import needs_namespaces, skip_or_fail
from two_nodes import MPIRUN_AS_ROOT
from waiting import COMPILATION, INSTALLATION, PATIENCE

torch = pytest.importorskip("torch")

# the compiler and what comes before it
pytestmark = pytest.mark.timeout(COMPILATION + 2 * INSTALLATION)

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROJECT = REPOSITORY / "{{cookiecutter.project}}"
TRAINING = PROJECT / "training"
BUILD = PROJECT / "slurm/build_horovod.sh"
LARGEST_DIFFERENCE = 100  # lines removed and added: it is there to be read
# What may differ from train_ddp.py. All else that both have is one text.
DIFFERENT = {"train_step", "train", "main"}
ROOMS = ("arguments", "checkpoint", "control", "data", "distributed", "evaluation", "memory", "metrics", "model")
ROOMS += ("optimizer", "precision", "resume", "schedule", "stop", "tracing", "trackers")
TINY = ["--context", "16", "--layers", "1", "--heads", "2", "--width", "16", "--dtype", "float64", "--eval-every", "5"]
LAUNCHERS = ("SLURM_", "PMI", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOROVOD_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
# Byte code beside the sources would become part of every project that is written from here.
CLEAN |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


# ---- the program -----------------------------------------------------------------------------------------------------


def source(name):
    return (TRAINING / name).read_text()


def definitions(name):
    return {
        node.name: ast.unparse(node)
        for node in ast.parse(source(name)).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }


def test_the_difference_to_ddp_is_short_enough_to_be_read():
    lines = difflib.unified_diff(source("train_ddp.py").splitlines(), source("train_horovod.py").splitlines(), n=0)
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) <= LARGEST_DIFFERENCE
    ddp, horovod = definitions("train_ddp.py"), definitions("train_horovod.py")
    assert {name for name in ddp if ddp[name] != horovod.get(name)} == DIFFERENT
    assert set(horovod) - set(ddp) == {"join", "sum_over_ranks"}


class OneRank(types.ModuleType):
    """horovod.torch, as far as the program uses it, for one rank; notes what was called."""

    Average, Sum = "Average", "Sum"

    def __init__(self):
        super().__init__("hvd")
        self.calls, self.up = [], False

    def init(self):
        self.up = True

    def shutdown(self):
        self.up = False

    def is_initialized(self):
        return self.up

    def __getattr__(self, name):
        if name in ("rank", "local_rank", "size"):
            return lambda: int(name == "size")
        if name in ("barrier", "join", "broadcast_parameters", "broadcast_optimizer_state"):
            return lambda *_, **__: self.calls.append(name)
        if name == "allreduce":
            return lambda tensor, name, op=None: tensor
        raise AttributeError(name)

    def DistributedOptimizer(self, optimizer, named_parameters, *, backward_passes_per_step):
        assert len(list(named_parameters)) == sum(len(group["params"]) for group in optimizer.param_groups)
        assert not optimizer.state, "wrapping would drop it"
        self.calls.append(backward_passes_per_step)
        optimizer.synchronize, optimizer.skip_synchronize = (lambda: self.calls.append("synchronize")), nullcontext
        return optimizer


@pytest.fixture(scope="module")
def modules():
    """train_horovod and train_ddp as their neighbours import them, and afterwards gone."""
    sys.path.insert(0, str(TRAINING))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    import train_ddp
    import train_horovod

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other
    yield argparse.Namespace(train_ddp=train_ddp, train_horovod=train_horovod)
    torch.set_num_threads(threads)
    sys.dont_write_bytecode = writes
    sys.path.remove(str(TRAINING))
    for name in ("train_ddp", "train_horovod", *ROOMS):
        del sys.modules[name]


@pytest.fixture
def solo(modules, monkeypatch, tmp_path):
    """Run one of the programs in this process; return its figures."""
    for name in os.environ:
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    for name in ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # the program sets them: after the test they shall be gone
    distributed = sys.modules["distributed"]
    monkeypatch.setattr(distributed, "sum_over_ranks", distributed.sum_over_ranks)  # which train_horovod replaces
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(name, *flags, hvd=None):
        module, figures = getattr(modules, name), tmp_path / "figures.json"
        figures.unlink(missing_ok=True)  # a run that has nothing left to do keeps it
        if name == "train_horovod":
            monkeypatch.setattr(module, "hvd", hvd)
            monkeypatch.setattr(module, "why_not", "No module named 'horovod'", raising=False)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--json", str(figures), *map(str, flags)])
        try:
            module.main.__wrapped__()  # without @record, which reports to a launcher
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        return json.loads(figures.read_text())

    return run


@pytest.mark.parametrize("micro", [8, pytest.param(32, marks=pytest.mark.drill)])
def test_one_rank_does_what_ddp_does(micro, solo, tmp_path):
    """Loop, accumulation, evaluation and checkpoint; what only real ranks can show is in the drills."""
    flags = [*TINY, "--micro-batch", micro, "--decay-steps", 10]
    ddp = solo("train_ddp", *flags, "--steps", 10, "--out", tmp_path / "ddp")
    hvd = OneRank()
    half = solo("train_horovod", *flags, "--steps", 5, "--out", tmp_path / "horovod", hvd=hvd)
    assert hvd.calls == [32 // micro, "broadcast_parameters", *["synchronize"] * 5, "join", "barrier"] and not hvd.up
    whole = solo("train_horovod", *flags, "--steps", 10, "--out", tmp_path / "horovod", "--resume", hvd=hvd)
    assert "broadcast_optimizer_state" in hvd.calls
    assert os.environ["LOCAL_RANK"] == "0"  # fail() prints on this one
    assert half["losses"] + whole["losses"] == ddp["losses"]
    measured = ("tokens_per_second", "peak_memory_bytes")
    same = [name for name in ddp if name not in ("program", "losses", "first_step", *measured)]
    assert {name: whole[name] for name in same} == {name: ddp[name] for name in same}
    assert set(whole) == set(ddp) and whole["program"] == "train_horovod"
    again = solo("train_ddp", *flags, "--steps", 10, "--out", tmp_path / "horovod", "--resume")
    assert again["first_step"] == 10 and again["val_loss"] == ddp["val_loss"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_sum_over_ranks_is_horovod_s(room):
    """train_horovod.py replaces distributed.sum_over_ranks. So no other module may import the function itself."""
    names = [
        alias.name
        for node in ast.walk(ast.parse((TRAINING / f"{room}.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "distributed"
        for alias in node.names
    ]
    assert "sum_over_ranks" not in names


def test_same_flags(modules, monkeypatch, capsys):
    told = []
    for module in (modules.train_ddp, modules.train_horovod):
        monkeypatch.setattr(sys, "argv", ["x.py", "--help"])
        with pytest.raises(SystemExit):
            module.main.__wrapped__()
        told.append(capsys.readouterr().out.partition("options:")[2] or "nothing")
    assert told[0] == told[1] != "nothing"


def test_without_mpi_every_process_would_be_alone(solo, capsys, monkeypatch, tmp_path):
    def refused(hvd, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            solo("train_horovod", *TINY, "--out", tmp_path / "run", hvd=hvd)
        assert end.value.code == 2 and not (tmp_path / "run").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line.partition("error: ")[2]

    hvd = OneRank()
    expected = "2 processes were started, but not by an MPI that Horovod knows: set LAUNCHER=mpirun-ranks"
    assert refused(hvd, WORLD_SIZE="2") == expected
    assert not hvd.up  # an MPI that was not asked for may end the process before the sentence
    assert refused(hvd, WORLD_SIZE="", SLURM_STEP_NUM_TASKS="2") == expected
    assert refused(hvd, OMPI_COMM_WORLD_RANK="0", WORLD_SIZE="2") == expected  # two singletons, of another MPI


def test_horovod_is_missing(tmp_path):
    """As every user meets it: the program itself, and another rank that no launcher ends meanwhile."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'horovod'\")\n")
    environment = {**CLEAN, "PYTHONPATH": str(tmp_path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, TRAINING / "train_horovod.py"],
            env={**environment, "OMPI_COMM_WORLD_LOCAL_RANK": rank},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert (
        outputs[0]
        == outputs[1]
        == (
            "",
            "train_horovod.py: error: Horovod cannot be used (No module named 'horovod'): build it with "
            "'INSTALL_HOROVOD=1 bash slurm/build_venv.sh'\n",
        )
    )


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
        assert done.stderr.splitlines()[-1].startswith("slurm/build_horovod.sh: "), done.stderr
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
def job(cluster, horovod, tmp_path):
    """Run a command as a job of two nodes, with two ranks each; return the finished job. `{ranks}` is mpirun."""
    needs_namespaces(cluster)
    # As launch/ does it: the job has one task per node, and mpirun is told of two slots.
    mpirun = 'SLURM_TASKS_PER_NODE="2(x2)" mpirun -np 4 --map-by ppr:2:node --bind-to none'

    def run(command, *flags):
        words = " ".join(f"'{word}'" for word in (horovod, TRAINING / "train_horovod.py", *TINY, *flags))
        script = tmp_path / "job.sh"
        script.write_text(f"#!/bin/bash\n{command.format(ranks=mpirun)} {words}\n")
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE")
        environment = {**{name: CLEAN[name] for name in names}, **MPIRUN_AS_ROOT}
        options = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8"]
        return cluster.submit(*options, script, cwd=tmp_path, env=environment)

    return run


def ddp(folder, *flags):
    """Train with four ranks of train_ddp.py on this machine; return its figures."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--"]
    command += [TRAINING / "train_ddp.py", *TINY, "--out", folder, "--json", f"{folder}.json", *flags]
    command = [str(word) for word in command]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(Path(f"{folder}.json").read_text())


def largest_difference(some, others):
    assert len(some) == len(others) > 0
    return max(abs(a - b) for a, b in zip(some, others))


def changed(folder, change):
    """Write the real program, after some lines of Python, into `folder`; return how `job` runs it."""
    lines = ["import runpy, sys, time", "sys.path.insert(0, sys.argv[1].rpartition('/')[0])", change]
    lines += ["del sys.argv[0]", "runpy.run_path(sys.argv[0], run_name='__main__')"]
    (folder / "changed.py").write_text("\n".join(lines) + "\n")
    return '{ranks} bash -c \'exec "$0" changed.py "$@"\''


# A launcher on a busy machine may take longer to end the ranks than they leave the first one to print.
PATIENT = f"import distributed\ndistributed.HEAD_START = {PATIENCE}"


@pytest.mark.drill
@pytest.mark.parametrize(("dtype", "exact"), [("float64", 1e-12), ("float32", 2e-5)])
def test_same_losses_as_ddp_on_two_nodes(dtype, exact, job, tmp_path):
    flags = ["--steps", "20", "--micro-batch", "2", "--dtype", dtype]
    done = job("{ranks}", *flags, "--json", tmp_path / "hvd.json", "--out", tmp_path / "hvd")
    assert (done.state, done.exit_code) == ("COMPLETED", 0), done.output
    assert done.output.count("32 sequences = 4 (ranks) x 2 (micro batch) x 4 (accumulation)") == 1
    assert "\r" not in done.output  # a log is no terminal
    mine, theirs = json.loads((tmp_path / "hvd.json").read_text()), ddp(tmp_path / "ddp", *flags)
    assert (mine["world_size"], mine["accumulation"], mine["steps"]) == (4, 4, 20)
    assert largest_difference(mine["losses"], theirs["losses"]) <= exact
    assert abs(mine["final_loss"] - theirs["final_loss"]) <= exact
    assert abs(mine["val_loss"] - theirs["val_loss"]) <= exact


@pytest.mark.drill
def test_each_continues_the_others_checkpoint(job, tmp_path):
    whole = ddp(tmp_path / "whole", "--steps", "20")
    for first in ("hvd", "ddp"):
        out, losses = tmp_path / f"{first} first", []
        for steps, by_horovod in (("10", first == "hvd"), ("20", first != "hvd")):
            flags = ["--steps", steps, "--decay-steps", "20", "--out", out, "--json", f"{out}.json", "--resume"]
            if by_horovod:
                done = job("{ranks}", *flags)
                assert done.state == "COMPLETED", done.output
            else:
                ddp(out, *flags)
            losses += json.loads(Path(f"{out}.json").read_text())["losses"]
        assert largest_difference(losses, whole["losses"]) <= 1e-12


@pytest.mark.drill
def test_ranks_that_mpirun_did_not_start(job, tmp_path):
    srun = "srun --kill-on-bad-exit=1 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4"  # as launch/ does it
    alone = job(changed(tmp_path, PATIENT).replace("{ranks}", srun), "--out", tmp_path / "run")
    assert alone.state == "FAILED" and alone.exit_code, alone.output  # 2, or that of a rank that srun has ended
    message = "4 processes were started, but not by an MPI that Horovod knows: set LAUNCHER=mpirun-ranks"
    assert alone.output.count(message) == 2, alone.output  # one per node
    assert not (tmp_path / "run").exists()
    pmix = job("srun --mpi=pmix --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4", "--steps", "2")
    assert pmix.state == "COMPLETED" and "ranks   4 (cpu" in pmix.output, pmix.output
    for shell in ("", "srun --nodes=1 --ntasks=1"):  # a batch script, an interactive shell
        one = job(shell, "--steps", "2")
        assert one.state == "COMPLETED" and "ranks   1 (cpu" in one.output, one.output


@pytest.mark.drill
def test_a_rank_that_fails_or_never_comes_ends_the_job(job, tmp_path):
    wrong = job(changed(tmp_path, PATIENT), "--global-batch", "30")
    assert (wrong.state, wrong.exit_code) == ("FAILED", 2)
    told = re.findall("cannot be shared equally by 4 ranks: choose a multiple of 4", wrong.output)
    assert len(told) == 2, wrong.output  # one per node
    late = "import horovod.torch as hvd\nreal = hvd.allreduce\n"  # one rank sleeps before a collective
    late += "def late(*a, **k):\n    if hvd.rank() == 3: time.sleep(300)\n    return real(*a, **k)\n"
    late += "hvd.allreduce = late"
    done = job(changed(tmp_path, late), "--timeout", "3")
    assert done.state == "FAILED" and "Horovod has been shut down" in done.output, done.output
    assert re.search(r"Missing ranks:\s*\n3", done.output), done.output  # Horovod says who it waited for


@pytest.mark.drill
@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_may_take_longer_than_the_timeout(full, job, tmp_path):
    """Ranks wait for the one that writes, as long as it lives."""
    end = "raise OSError('the disk is full')" if full else "return real(*a)"
    slow = "import checkpoint\nreal = checkpoint.Checkpoints.save\n"
    slow += f"def slow(*a):\n    time.sleep(6)\n    {end}\ncheckpoint.Checkpoints.save = slow"
    flags = ["--steps", "4", "--save-every", "2", "--timeout", "2", "--out", tmp_path / "run"]
    done = job(changed(tmp_path, slow), *flags)
    assert done.state == ("FAILED" if full else "COMPLETED"), done.output
    assert ("OSError: the disk is full" in done.output) == full, done.output
    saved = [] if full else ["checkpoint-00000002.pt", "checkpoint-00000004.pt"]
    assert sorted(path.name for path in (tmp_path / "run").glob("*.pt")) == saved
