"""launch/ and the functions of the submit script, each by itself: what they read, and what they refuse.

Python is replaced by a script that prints what it was called with, so that a case takes milliseconds. That torchrun
understands those options is shown by the runs in test_slurm.py and test_local.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from baking import TEMPLATE, bake
from waiting import FOREVER, PATIENCE

WRAPPER = TEMPLATE / "launch/torchrun.sh"
RANK = TEMPLATE / "launch/rank.sh"
STEP = {"SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NODEID": "2", "SLURMD_NODENAME": "n3"}
STEP |= {"MASTER_ADDR": "n1", "MASTER_PORT": "12345", "SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
MPI |= {"MASTER_ADDR": "m1", "MASTER_PORT": "22222"}
PET = {"PET_NNODES": "5", "PET_NODE_RANK": "4", "PET_MASTER_ADDR": "p1", "PET_MASTER_PORT": "33333"}
PODS = {"WORLD_SIZE": "6", "RANK": "5", "MASTER_ADDR": "w1", "MASTER_PORT": "44444"}
# Nothing of this may decide anything: of the job, not of the step, or left by other launchers.
STRAY = {"SLURM_JOB_NUM_NODES": "9", "SLURM_NNODES": "9", "SLURM_NTASKS": "9", "SLURM_PROCID": "8", "LOCAL_RANK": "7"}
STRAY |= {
    "SLURM_LOCALID": "6",
    "LOCAL_WORLD_SIZE": "9",
    "PET_STANDALONE": "1",
    "PET_RDZV_BACKEND": "etcd",
    "PMI_RANK": "3",
}
STRAY_RANK = {"RANK": "7", "LOCAL_RANK": "7", "WORLD_SIZE": "9", "GROUP_RANK": "5"}


@pytest.fixture
def call(tmp_path):
    """Returns call(environment, *arguments) -> torchrun options, the environment it got, and the finished process."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nenv -0 >"$0.env"\nprintf "%s\\0" "$@" >"$0.arguments"\n')
    python.chmod(0o755)

    def run(environment, *arguments, wrapper=WRAPPER):
        clean = {"PATH": os.environ["PATH"], "PYTHON": str(python), **environment}
        done = subprocess.run(
            [wrapper, *arguments], env=clean, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        if done.returncode:
            return None, None, done
        options = (tmp_path / "python.arguments").read_text().split("\0")[:-1]
        seen = dict(line.split("=", 1) for line in (tmp_path / "python.env").read_text().split("\0")[:-1])
        return options, seen, done

    return run


def options_of(arguments):
    return dict(
        option.removeprefix("--").split("=", 1) for option in arguments if option.startswith("--") and "=" in option
    )


@pytest.mark.parametrize(
    ("environment", "nodes", "node_rank", "endpoint"),
    [
        (STEP, "3", "2", "n1:12345"),
        ({**PODS, **PET, **STRAY, **STEP}, "3", "2", "n1:12345"),
        (MPI, "4", "1", "m1:22222"),
        # under mpirun every node believes to be node 0 of the step that started mpirun's own daemons
        ({**PET, **STRAY, **STEP, "SLURM_NODEID": "0", **MPI}, "4", "1", "m1:22222"),
        (PET, "5", "4", "p1:33333"),
        ({**PODS, **STRAY, **PET}, "5", "4", "p1:33333"),
        ({"PET_NNODES": "5", "PET_NODE_RANK": "4", "MASTER_ADDR": "w1", "MASTER_PORT": "44444"}, "5", "4", "w1:44444"),
        (PODS, "6", "5", "w1:44444"),
    ],
)
def test_where_this_node_stands(call, environment, nodes, node_rank, endpoint):
    arguments, seen, _ = call({**environment, "NPROC_PER_NODE": "2"}, "x.py", "--flag", "a b", "")
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert arguments[-5:] == ["--", "x.py", "--flag", "a b", ""]
    options = options_of(arguments[:-5])
    assert (options["nnodes"], options["node-rank"], options["rdzv-endpoint"]) == (nodes, node_rank, endpoint)
    assert options["nproc-per-node"] == "2"
    assert options["rdzv-backend"] == "static"
    assert endpoint.partition(":")[2] in options["rdzv-id"]
    assert not [name for name in seen if name.startswith("PET_")]
    assert "--standalone" not in arguments


ONE_NODE = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
ELSEWHERE = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "environment",
    [
        *({}, STRAY, {"MASTER_ADDR": "elsewhere"}, {"RANK": "1"}, ONE_NODE, {**ONE_NODE, **ELSEWHERE}),
        {"PET_NNODES": "1"},
    ],
)
def test_alone(call, environment):
    arguments, _, _ = call(environment, "x.py")
    assert "--standalone" in arguments
    assert options_of(arguments)["nnodes"] == "1"


def test_c10d_says_who_hosts_and_how_each_node_is_called(call):
    first, _, _ = call({**STEP, "SLURM_NODEID": "0", "RDZV_BACKEND": "c10d", "MASTER_ADDR_SUFFIX": "i"}, "x.py")
    other, _, _ = call({**STEP, "RDZV_BACKEND": "c10d", "RDZV_TIMEOUT": "7", "NODE_ADDR": "10.0.0.3"}, "x.py")
    assert options_of(first)["local-addr"] == "n3i"
    assert "--rdzv-conf=is_host=1,join_timeout=600,read_timeout=600" in first
    assert options_of(other)["local-addr"] == "10.0.0.3"
    assert "--rdzv-conf=is_host=0,join_timeout=7,read_timeout=7" in other
    assert options_of(other)["rdzv-id"] == "77.1.12345"
    assert "node-rank" not in options_of(first)


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({"NPROC_PER_NODE": "3", "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, "3"),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, "2"),  # as on MareNostrum 5
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "2"),
        ({"SLURM_GPUS_ON_NODE": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "0, 1,5"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "CPU_RANKS_PER_NODE": "2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "", "CPU_RANKS_PER_NODE": "2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "-1", "CPU_RANKS_PER_NODE": "2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, "1"),  # CUDA ignores what follows the first invalid entry
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f3c,MIG-12"}, "2"),
        ({"CPU_RANKS_PER_NODE": "2"}, "2"),
        ({"RUNAI_NUM_OF_GPUS": "8", "CPU_RANKS_PER_NODE": "2"}, "8"),
        ({"RUNAI_NUM_OF_GPUS": "0", "CPU_RANKS_PER_NODE": "2"}, "2"),
        ({"RUNAI_NUM_OF_GPUS": "0.5"}, "1"),
        ({"RUNAI_NUM_OF_GPUS": "8", "CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
        ({**PET, "PET_NPROC_PER_NODE": "4", "RUNAI_NUM_OF_GPUS": "8"}, "4"),
        ({**PET, "PET_NPROC_PER_NODE": "auto", "RUNAI_NUM_OF_GPUS": "8"}, "8"),
        ({**PET, "PET_NPROC_PER_NODE": "auto"}, "1"),  # to torchrun, without GPUs, that is the number of cores
        ({}, "1"),
    ],
)
def test_processes_per_node(call, environment, ranks):
    assert options_of(call(environment, "x.py")[0])["nproc-per-node"] == ranks


def test_gpus_are_counted_where_nobody_says(call, tmp_path):
    for tool, line in (("nvidia-smi", "GPU 0: NVIDIA H100"), ("rocm-smi", "GPU[0]\t\t: Unique ID: 0x1")):
        folder = tmp_path / tool
        folder.mkdir()
        (folder / tool).write_text(f"#!/bin/bash\nprintf '%s\\n' '{line}' '{line}' '  MIG 1g.10gb  Device 0'\n")
        (folder / tool).chmod(0o755)
        arguments, _, _ = call({"PATH": f"{folder}:{os.environ['PATH']}", "CPU_RANKS_PER_NODE": "5"}, "x.py")
        assert options_of(arguments)["nproc-per-node"] == "2", tool


def test_no_gpus_are_no_failure(tmp_path):
    """With set -e a script would end where grep counts nothing."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/bash\necho NVIDIA-SMI has failed; exit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    code = f"set -eo pipefail; source '{TEMPLATE}/launch/count_gpus.sh'; count_gpus; echo goes on"
    assert bash(code, PATH=f"{tmp_path}:{os.environ['PATH']}").stdout == "0\ngoes on\n"


def test_threads_are_the_cores_that_may_be_used_over_the_processes(call):
    cores = len(os.sched_getaffinity(0))
    assert call({"NPROC_PER_NODE": "1"}, "x.py")[1]["OMP_NUM_THREADS"] == str(cores)
    assert call({"NPROC_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "1"}, "x.py")[1]["OMP_NUM_THREADS"] == "1"
    assert call({"NPROC_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "288"}, "x.py")[1]["OMP_NUM_THREADS"] == str(cores)
    assert call({"NPROC_PER_NODE": str(cores + 1)}, "x.py")[1]["OMP_NUM_THREADS"] == "1"
    assert call({"NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "5"}, "x.py")[1]["OMP_NUM_THREADS"] == "5"


def test_a_module_is_run_as_one(call):
    assert call({}, "-m", "package.module", "--max", "3")[0][-5:] == ["-m", "--", "package.module", "--max", "3"]


def test_logs_of_each_node_and_attempt(call, tmp_path):
    arguments, seen, _ = call({**STEP, "RUN_DIR": str(tmp_path / "a b/77.1")}, "x.py")
    folder = tmp_path / "a b/77.1/node2-n3"
    assert folder.is_dir()
    assert f"--log-dir={folder}" in arguments
    assert seen["TORCHELASTIC_ERROR_FILE"] == f"{folder}/error.json"
    assert seen["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] == "[n3:${rank}] "


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, [], "no program given"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "12"}, ["x.py"], "srun started 12 tasks on 3 node(s), but one per node"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, ["x.py"], "mpirun started 4 copies on this node"),
        ({**STEP, "MASTER_ADDR": ""}, ["x.py"], "3 nodes, but MASTER_ADDR and MASTER_PORT are not both set"),
        (
            {**PET, "PET_NNODES": "2:4"},
            ["x.py"],
            "number of nodes '2:4': expected a whole number; a range",
        ),
        ({**PET, "PET_NODE_RANK": ""}, ["x.py"], "node rank '': expected a whole number from 0 to 4"),
        ({**PET, "PET_NODE_RANK": "5"}, ["x.py"], "node rank '5': expected a whole number from 0 to 4"),
        ({"NPROC_PER_NODE": "gpu"}, ["x.py"], "processes per node 'gpu'"),
        ({**STEP, "RDZV_BACKEND": "etcd"}, ["x.py"], "RDZV_BACKEND='etcd': expected static or c10d"),
        ({"PYTHON": "pythonn"}, ["x.py"], "pythonn: not found"),
    ],
)
def test_wrong_use_is_refused_in_a_sentence(call, environment, arguments, expected):
    _, _, done = call(environment, *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wrong_nodes_are_refused_without_an_operator_too(call, tmp_path):
    """With c10d and an empty rank every node would host the store."""
    wrapper = bake(tmp_path, site="local") / "launch/torchrun.sh"
    for environment, expected in (
        ({"PET_NNODES": "2:4"}, "number of nodes '2:4': expected a whole number; a range is an elastic job's: set"),
        ({"PET_NODE_RANK": ""}, "node rank '': expected a whole number from 0 to 4"),
        ({"PET_NODE_RANK": "", "RDZV_BACKEND": "c10d"}, "node rank '': expected a whole number from 0 to 4"),
    ):
        _, _, done = call({**PET, **environment}, "x.py", wrapper=wrapper)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


# ---- launch/rank.sh --------------------------------------------------------------------------------------------------

# Rank 5 of 6 on 3 nodes, as srun and as mpirun say it.
TASK = {**STEP, "SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
MPI_RANK = {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
MPI_RANK |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SIXTH = ("5", "6", "1", "2", "2", "n1", "12345")


@pytest.mark.parametrize(
    "environment",
    [
        TASK,
        {**PODS, **PET, **STRAY, **TASK},
        MPI_RANK,
        # under mpirun every process sees the step that started mpirun's own daemons
        {**STRAY, **STEP, "SLURM_NODEID": "0", "SLURM_LOCALID": "0", **MPI_RANK},
        {**TASK, "NPROC_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "4"},
        {**TASK, "SLURM_GPUS_ON_NODE": "2"},
        {**TASK, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"},
    ],
)
def test_which_rank_this_is(call, environment):
    arguments, seen, _ = call(environment, "x.py", "--flag", "a b", "", wrapper=RANK)
    assert arguments == ["x.py", "--flag", "a b", ""]
    assert tuple(seen[name] for name in NAMES) == SIXTH
    assert "12345" in seen["TORCHELASTIC_RUN_ID"]


@pytest.mark.parametrize(
    "environment", [{}, STRAY, PODS, {**ONE_NODE, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", **ELSEWHERE}]
)
def test_a_rank_alone(call, environment):
    _, seen, _ = call(environment, "x.py", wrapper=RANK)
    assert tuple(seen[name] for name in NAMES) == ("0", "1", "0", "1", "0", "127.0.0.1", "0")


def test_threads_of_a_rank(call):
    cores = len(os.sched_getaffinity(0))
    for environment, threads in (
        ({**TASK, "SLURM_CPUS_PER_TASK": "1"}, 1),
        ({**TASK, "SLURM_CPUS_PER_TASK": "288"}, cores),
        ({**MPI_RANK, "SLURM_CPUS_PER_TASK": "288"}, max(cores // 2, 1)),  # of the whole node: mpirun binds nobody
        ({**TASK, "OMP_NUM_THREADS": "5"}, 5),
    ):
        assert call(environment, "x.py", wrapper=RANK)[1]["OMP_NUM_THREADS"] == str(threads), environment


def test_a_rank_has_an_error_file_of_its_own(call, tmp_path):
    _, seen, _ = call({**TASK, "RUN_DIR": str(tmp_path / "a b")}, "x.py", wrapper=RANK)
    assert seen["TORCHELASTIC_ERROR_FILE"] == f"{tmp_path}/a b/node2-n3/1/error.json"
    (tmp_path / "fails.py").write_text("1 / 0\n")
    environment = {**ELSEWHERE, "RUN_DIR": str(tmp_path), "PATH": os.environ["PATH"], "PYTHON": sys.executable}
    done = subprocess.run([RANK, tmp_path / "fails.py"], env=environment, capture_output=True, text=True, check=False)
    logs = list(tmp_path.glob("node0-*/0/stderr.log"))
    assert done.returncode == 1
    assert [log.read_text() for log in logs] == [done.stderr] and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, [], "no program given"),
        ({"PYTHON": "pythonn"}, ["x.py"], "pythonn: not found"),
        (
            {**TASK, "SLURM_STEP_NUM_TASKS": "5"},
            ["x.py"],
            "started 5 time(s) on 3 node(s), but once per rank is wanted, 1 times on each",
        ),
        (
            {**TASK, "SLURM_STEP_NUM_TASKS": "3", "SLURM_GPUS_ON_NODE": "4"},
            ["x.py"],
            "once per rank is wanted, 4 times on each: srun --ntasks=12 --ntasks-per-node=4, or mpirun",
        ),
        (
            {**MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "NPROC_PER_NODE": "2"},
            ["x.py"],
            "2 times on each: srun --ntasks=12 --ntasks-per-node=2, or mpirun --map-by ppr:2:node",
        ),
        ({**TASK, "MASTER_PORT": ""}, ["x.py"], "6 ranks, but MASTER_ADDR and MASTER_PORT are not both set"),
    ],
)
def test_wrong_use_of_the_rank_wrapper(call, environment, arguments, expected):
    _, _, done = call(environment, *arguments, wrapper=RANK)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- launch/spawn.py, which takes the options of torchrun from launch/torchrun.sh ----

REPORT = """\
import atexit, json, os, sys
names = {names!r}
atexit.register(lambda: print("at exit", flush=True))
threads = os.environ["OMP_NUM_THREADS"]
print(json.dumps([[os.environ[name] for name in names], sys.argv, sys.path[0], __name__, threads]))
print("half a line", end="", file=sys.stderr)
"""


def spawn(environment, *arguments, cwd, **options):
    clean = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "LAUNCHER": "spawn", "TMPDIR": str(cwd)}
    command, clean = [WRAPPER, *arguments], clean | environment
    return subprocess.run(command, env=clean, cwd=cwd, capture_output=True, text=True, check=False, **options)


def test_spawned_ranks(tmp_path):
    """Node 1 of 2: both ranks know who they are, their lines are labelled, and each has its files."""
    (tmp_path / "my program.py").write_text(REPORT.format(names=NAMES))
    environment = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1", "NPROC_PER_NODE": "2"}
    environment |= {
        "SLURMD_NODENAME": "n2",
        "SLURM_CPUS_PER_TASK": "2",
        "RUN_DIR": str(tmp_path / "logs"),
        **STRAY_RANK,
    }
    environment |= {"MASTER_ADDR": "n1", "MASTER_PORT": "12345"}
    done = spawn(environment, "my program.py", "a b", "", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in (2, 3):
        (line,) = re.findall(rf"^\[n2:{rank}\] (\[\[.*)", done.stdout, re.MULTILINE)
        local = str(rank - 2)
        values = [str(rank), "4", local, "2", "1", "n1", "12345"]
        arguments = [str(tmp_path / "my program.py"), "a b", ""]
        assert json.loads(line) == [values, arguments, str(tmp_path), "__main__", "1"]
        assert f"[n2:{rank}] at exit" in done.stdout
        assert f"[n2:{rank}] half a line" in done.stderr
        (log,) = tmp_path.glob(f"logs/node1-n2/*/{local}/stdout.log")
        assert log.read_text() == line + "\nat exit\n"


def test_spawn_ends_all_ranks_when_one_fails(tmp_path):
    """The others would wait for ever; the exit code is the failed one's."""
    program = tmp_path / "x.py"
    for failure, code, said in (
        ("sys.exit(7)", 7, "rank 1 ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was ended by signal 9"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ):
        program.write_text(
            f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {failure}\ntime.sleep({FOREVER})\n"
        )
        done = spawn({"NPROC_PER_NODE": "3"}, program, cwd=tmp_path, timeout=PATIENCE)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 5)])
def test_spawn_hands_signals_on(number, code, tmp_path):
    """To a program that has no handler for TERM, and one for USR1."""
    program = tmp_path / "x.py"
    program.write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: (time.sleep(0.5), sys.exit(5)))\n"
        f"print('waiting', flush=True)\ntime.sleep({FOREVER})\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "LAUNCHER": "spawn", "NPROC_PER_NODE": "2"}
    environment["TMPDIR"] = str(tmp_path)
    with subprocess.Popen([WRAPPER, program], env=environment, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert all("waiting" in line for line in lines), lines
        process.send_signal(number)
        assert process.wait(PATIENCE) == code


def test_spawn_runs_a_module(tmp_path):
    """As python -m does: the current folder is on sys.path, by its absolute name."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    done = spawn({}, "-m", "package.module", "--max", "3", cwd=tmp_path)
    assert f"__main__ ['--max', '3'] {tmp_path}\n" in done.stdout, done.stderr


def test_spawned_ranks_draw_different_numbers(tmp_path):
    """Also where NumPy's random numbers were there before the fork, as NumPy 1 has them from the start."""
    (tmp_path / "sitecustomize.py").write_text("import numpy.random\n")
    (tmp_path / "x.py").write_text("import random, numpy\nprint(numpy.random.random())\nprint(random.random())\n")
    done = spawn({"NPROC_PER_NODE": "2", "PYTHONPATH": str(tmp_path)}, "x.py", cwd=tmp_path)
    numbers = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    assert len(numbers) == len(set(numbers)) == 4, done.stdout + done.stderr


def test_a_spawned_rank_that_cannot_write_its_output(tmp_path):
    """Where the folder of rank 1 should be is a file."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tempfile\nmake = tempfile.mkdtemp\ndef mkdtemp(*words, **options):\n"
        "    folder = make(*words, **options)\n    open(folder + '/1', 'x').close()\n    return folder\n"
        "tempfile.mkdtemp = mkdtemp\n"
    )
    (tmp_path / "x.py").write_text(f"import time\ntime.sleep({FOREVER})\n")
    done = spawn({"NPROC_PER_NODE": "2", "PYTHONPATH": str(tmp_path)}, "x.py", cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 1 and "FileExistsError" in done.stderr, done.stderr
    assert "rank 1 ended with exit code 1" in done.stderr, done.stderr


def test_spawn_on_one_node_meets_itself(tmp_path):
    """Whatever MASTER_ADDR and RDZV_BACKEND are left of another run; nor are its logs shown once more."""
    (tmp_path / "x.py").write_text("import os\nprint(os.environ['RANK'], 'meets', os.environ['MASTER_ADDR'])\n")
    for _ in range(2):
        environment = {"NPROC_PER_NODE": "2", "RUN_DIR": str(tmp_path), **ELSEWHERE, "RDZV_BACKEND": "c10d"}
        done = spawn(environment, "x.py", cwd=tmp_path)
        lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
        assert lines == ["0 meets 127.0.0.1", "1 meets 127.0.0.1"], done.stderr


# ---- container/start.sh ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [[], ["image"], ["image", "--"], ["image", "/a", "--"], ["image", "/a -- b", "true"], ["image", "true"]],
)
def test_no_command_for_the_container(arguments):
    command = [TEMPLATE / "container/start.sh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f": expected IMAGE FOLDER… -- command, but the arguments are: {' '.join(arguments)}\n")


# ---- functions of slurm/submit_multinode.sh and slurm/lib.sh ---------------------------------------------------------


def function(script, name):
    found = re.search(rf"^{name}\(\) {{.*?^}}", script.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{name} is gone from {script}"
    return found.group()


@pytest.fixture(scope="module")
def submit(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("submit"), site="slurm") / "slurm/submit_multinode.sh"


def bash(code, **environment):
    clean = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(["bash", "-c", code], env=clean, capture_output=True, text=True, check=False)


def port(submit, job, attempt=0, port_range=None):
    library = submit.with_name("lib.sh")
    code = function(library, "free_port") + "\n" + function(library, "port_range")
    in_use = re.search(r"^in_use\(\) {.*}$", library.read_text(), re.MULTILINE)[0]
    if port_range:
        code = code.replace("/proc/sys/net/ipv4/ip_local_port_range", f"<(echo {port_range})").replace("<<(", "< <(")
    done = bash(
        f'die() {{ echo "$*"; exit 2; }}\n{code}\n{in_use}\nfree_port',
        SLURM_JOB_ID=str(job),
        SLURM_RESTART_COUNT=str(attempt),
    )
    return int(done.stdout) if done.returncode == 0 else done.stdout


def test_the_port_follows_from_job_and_attempt(submit):
    assert port(submit, 1234) == port(submit, 1234)
    assert len({port(submit, 1234, attempt) for attempt in range(5)}) == 5
    assert port(submit, 1234) != port(submit, 1235)
    assert port(submit, 89) == 10089  # not an octal number


@pytest.mark.parametrize(
    ("port_range", "allowed"),
    [
        ("32768 60999", range(10000, 30000)),
        ("16384 65000", range(10000, 16384)),
        ("1024 60999", range(61000, 65536)),
        ("1024 9000", range(9001, 29001)),
        ("1024 65535", range(10000, 30000)),  # nothing is left outside
    ],
)
def test_the_port_is_outside_the_range_of_outgoing_connections(submit, port_range, allowed):
    assert all(port(submit, job, 3, port_range) in allowed for job in (1, 7, 19999, 20000, 4294967295))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_in_use_is_passed_over(submit, family):
    first = port(submit, 4711)
    with socket.socket(family) as listener:
        try:
            listener.bind(("" if family == socket.AF_INET else "::1", first))
        except OSError as error:  # a machine without IPv6 has no IPv6 port to collide with
            assert family == socket.AF_INET6, error
            return
        listener.listen()
        assert port(submit, 4711) == first + 1
    assert port(submit, 4711) == first


@pytest.mark.parametrize(
    "command",
    [
        "{project}/slurm/submit_multinode.sh",
        "{project}/slurm/submit_multinode.sh pi/pi.py --intervals 5",
        "{project}/slurm/submit_multinode.sh /data/slurm/x.py /slurm/",
        "slurm/submit_multinode.sh x.py",
        "./slurm/submit_multinode.sh",
        "(null)",
    ],
)
def test_the_project_is_found_from_a_spooled_copy(submit, command, tmp_path):
    """As in a job: this file is somewhere else, and scontrol tells where it came from."""
    project = tmp_path / "in slurm/my project"
    (project / "slurm").mkdir(parents=True)
    (project / "slurm/lib.sh").touch()
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text(
        f"#!/bin/bash\n[[ $* == 'show job 7' ]] && echo '   Command={command.format(project=project)}'\n"
    )
    scontrol.chmod(0o755)
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "slurm_script").write_text(function(submit, "find_project") + "\nfind_project\n")
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(project),
    }
    found = bash(f"source {spool}/slurm_script", **environment)
    assert found.stdout.strip().replace("/./", "/") in (str(project), f"{project}/.")
    elsewhere = bash(f"source {spool}/slurm_script", **{**environment, "SLURM_SUBMIT_DIR": "/"})
    assert (elsewhere.returncode == 0) == command.startswith("{project}")
    told = bash(f"source {spool}/slurm_script", **{**environment, "SLURM_SUBMIT_DIR": "/", "PROJECT_DIR": str(project)})
    assert told.stdout.strip() == str(project)


@pytest.mark.parametrize(("site", "own_queue"), [("slurm", False), ("clariden", True)])
def test_other_jobs_take_account_and_queue_from_the_submit_script(site, own_queue, tmp_path):
    """Edited there, they change everywhere, but for the queue that a site has for shells or for building."""
    project = bake(tmp_path, site=site, runtime="venv", account="abc", partition="debug")
    submit = project / "slurm/submit_multinode.sh"
    header = submit.read_text().replace("#SBATCH --account=abc ", "#SBATCH -A other ")
    header = header.replace("#SBATCH --partition=debug ", "#SBATCH --partition=large ")
    assert header.count("-A other") == header.count("--partition=large") == 1
    submit.write_text(header + "# #SBATCH --account=no\n")
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "salloc"):
        (tmp_path / "bin" / name).write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "RUNTIME": "none"}

    def asked(script, *options):
        command = ["bash", project / "slurm" / script, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    taken = ["--account=other", *([] if own_queue else ["--partition=large"])]
    build = [*taken, "--time=00:01:00", str(project / "slurm/build_venv.sh"), str(project)]
    assert asked("build_venv.sh", "--time=00:01:00") == ["--export=ALL", *build]
    assert ("#SBATCH --partition=normal " in (project / "slurm/build_venv.sh").read_text()) == own_queue
    shell = asked("interactive.sh")
    assert shell[: len(taken)] == taken and ("--partition=debug" in shell) == own_queue


def test_a_conda_environment_does_as_well(submit, tmp_path):
    """It has no bin/activate, and is known by its conda-meta."""
    for folder in ("bin", "conda-meta"):
        (tmp_path / "my env" / folder).mkdir(parents=True)
    python = tmp_path / "my env/bin/python3"
    python.write_text("#!/bin/bash\necho conda\n")
    python.chmod(0o755)
    settings, software = (submit.parent.parent / name for name in ("env.sh", "launch/software.sh"))
    environment = {"PROJECT_DIR": str(settings.parent), "RUNTIME": "venv", "VENV": f"{tmp_path}/my env"}
    set_up = f"source '{settings}' && source '{software}' && set_up_software"
    done = bash(f"{set_up} && $PYTHON && echo $CONDA_PREFIX", **environment)
    assert done.stdout == f"conda\n{tmp_path}/my env\n", done.stderr
    assert bash(set_up, **{**environment, "VENV": "/no/such"}).returncode == 2
    for runtime, fix in ("venv", "VENV"), ("none", "RUNTIME=venv"):
        done = bash(set_up, **{**environment, "PYTHON": "pythonn", "RUNTIME": runtime})
        assert (done.returncode, done.stderr) == (2, f"env.sh: pythonn was not found; set PYTHON, or {fix}\n")


# ---- what Slurm says of a job, or does not say -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Calls functions of slurm/lib.sh, where scontrol fails so many times before it prints a record."""
    library = bake(tmp_path_factory.mktemp("steps"), site="mn5", account="abc") / "slurm/lib.sh"
    tools = 'sleep() { echo "sleep $1" >&2; }; sbatch() { echo "sbatch $*"; }; exec() { "$@"; }\n'
    tools += "scontrol() { if [[ $2 == hostnames ]]; then echo n1; return; fi\n"
    tools += '  echo >>"$CALLS"; (($(wc -l <"$CALLS") > FAILS)) || return 1; echo "$RECORD"; }\n'

    def call(code, fails=0, record="", **environment):
        calls = tmp_path_factory.mktemp("calls") / "calls"
        calls.touch()
        environment |= {"PROJECT_DIR": str(library.parent.parent), "CALLS": str(calls), "FAILS": str(fails)}
        return bash(f"{tools}source '{library}' slurm/x.sh\n{code}", RECORD=record, **environment)

    return call


OF_AN_ARRAY = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(("record", "said"), [("JobId=9 ArrayTaskId=3", "of task 3"), ("JobId=9", "of task -")])
def test_a_busy_controller_is_asked_again_whether_a_job_is_of_an_array(steps, record, said):
    """A job that took itself for another's would have that one requeued."""
    code = 'unset_variables_of_another_job; echo "of task ${SLURM_ARRAY_TASK_ID:--}"'
    done = steps(code, fails=2, record=record, **OF_AN_ARRAY)
    assert done.stdout == f"{said}\n" and done.stderr == "sleep 1\nsleep 2\n"
    done = steps(code, fails=9, record=record, **OF_AN_ARRAY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "slurm/x.sh: Slurm does not answer 'scontrol show job 9', which says whether this job belongs" in done.stderr


def test_what_the_allocation_has(steps):
    """Cores of all tasks of a node. Without Slurm's answer its GPUs are asked in a step, and not taken for none."""
    given = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "80(x2)"}
    given |= {"SLURM_GPUS_ON_NODE": "4"}
    code = 'look_at_allocation; echo "$cores cores, gpus=$gpus, ${SLURM_GPUS_ON_NODE:-unset}"'
    record = "   Nodes=n1 CPU_IDs=0-79 Mem=0 GRES=gpu:hopper:4(IDX:0-3)"
    done = steps(code, record=record, **given, SLURM_CPUS_PER_TASK="20", SLURM_TASKS_PER_NODE="4(x2)")
    assert done.stdout == "80 cores, gpus=4, 4\n", done.stderr
    assert steps(code, record=record, **given, SLURM_CPUS_PER_TASK="20").stdout == "20 cores, gpus=4, 4\n"
    assert steps(code, record="   Nodes=n1 GRES=", **given).stdout == "80 cores, gpus=, unset\n"
    assert steps(code, fails=9, **given).stdout == "80 cores, gpus=unknown, 4\n"


def test_a_job_that_saved_says_so_where_slurm_does_not_answer(steps, tmp_path):
    (tmp_path / "requeue").touch()
    code = "batch=9 cancelled='' warning=passed-on RESTART_COUNT=0 MAX_REQUEUES=2\nrequeue_or_explain 0"
    where = {"REQUEUE_FILE": str(tmp_path / "requeue"), "TIMES_FILE": str(tmp_path / "times")}
    record = "   JobState=RUNNING Reason=None\n   Requeue=1 Restarts=0"
    assert "back into the queue as attempt 1" in steps(code, fails=2, record=record, **where).stdout
    done = steps(code, fails=9, record=record, **where)
    assert "saved, but not done, and Slurm does not answer, so this job is not requeued" in done.stdout
    answers = f"if [[ $* == *show* ]]; then echo '{record}'; else ((++asked > FAILS)); fi"
    once = f"asked=0\nscontrol() {{ {answers}; }}\n{code}"
    assert "back into the queue as attempt 1" in steps(once, fails=2, **where).stdout
    assert "and Slurm has not requeued this job, see above: the next job" in steps(once, fails=3, **where).stdout
    done = steps(code, record=record.replace("Requeue=1", "Requeue=0"), **where)
    assert "saved, but not done, and this job may not be requeued" in done.stdout


@pytest.mark.parametrize("own", ["--partition=fast", "--qos fast", "-p fast", "-qfast"])
def test_a_build_s_own_queue_stays(steps, own, tmp_path):
    script = tmp_path / "build.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    assert "--qos=" in steps(f"submit_build '{script}'").stdout
    script.write_text(f"#!/bin/bash\n#SBATCH {own}\n")
    said = steps(f"submit_build '{script}'").stdout
    assert "--account=abc" in said and "--qos=" not in said and "--partition=" not in said
