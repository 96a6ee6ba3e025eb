"""launch/ and container/start.sh, each by itself: what they read, and what they refuse.

Python is replaced by a script that prints what it was called with, so that a case takes milliseconds. That torchrun
understands those options is shown by the runs in test_slurm.py and test_local.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from baking import TEMPLATE, bake
from waiting import FOREVER, PATIENCE, wait_for

WRAPPER = TEMPLATE / "launch/torchrun.sh"
RANK = TEMPLATE / "launch/rank.sh"
STEP = {"SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NODEID": "2", "SLURMD_NODENAME": "n3"}
STEP |= {"MASTER_ADDR": "n1", "MASTER_PORT": "12345", "SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}
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
    python.write_text(
        f'#!/bin/bash\n[[ $1 != -c ]] || exec {sys.executable} "$@"\n'
        'env -0 >"$0.env"\nprintf "%s\\0" "$@" >"$0.arguments"\n'
    )
    python.chmod(0o755)
    (tmp_path / "x.py").touch()

    def run(environment, *arguments, wrapper=WRAPPER):
        clean = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHON": str(python), **environment}
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
        ({**PODS, **STRAY, **STEP}, "3", "2", "n1:12345"),
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
    options = options_of(arguments)
    assert (options["nnodes"], options["node-rank"], options["rdzv-backend"]) == ("1", "0", "static")
    assert options["rdzv-endpoint"].startswith("127.0.0.1:")


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


def test_threads_are_the_cores_that_may_be_used_over_the_processes(call):
    cores = len(os.sched_getaffinity(0))
    assert call({"NPROC_PER_NODE": "1"}, "x.py")[1]["OMP_NUM_THREADS"] == str(cores)
    assert call({"NPROC_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "1"}, "x.py")[1]["OMP_NUM_THREADS"] == "1"
    assert call({"NPROC_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "288"}, "x.py")[1]["OMP_NUM_THREADS"] == str(cores)
    assert call({"NPROC_PER_NODE": str(cores + 1)}, "x.py")[1]["OMP_NUM_THREADS"] == "1"
    assert call({"NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "5"}, "x.py")[1]["OMP_NUM_THREADS"] == "5"


def test_a_module_is_run_as_one(call):
    assert call({}, "-m", "package.module", "--max", "3")[0][-5:] == ["-m", "--", "package.module", "--max", "3"]


def test_further_options_come_last(call):
    """But for launch/spawn.py, which does not know them."""
    further = {"TORCHRUN_OPTIONS": " --monitor-interval=7  --no-python "}
    assert call(further, "x.py")[0][-4:] == ["--monitor-interval=7", "--no-python", "--", "x.py"]
    assert call(further, "-m", "x")[0][-5:] == ["--monitor-interval=7", "--no-python", "-m", "--", "x"]
    assert "--no-python" not in call({**further, "LAUNCHER": "spawn"}, "x.py")[0]


def test_ranks_are_bound_where_a_site_says_so_and_torch_can(call, tmp_path):
    """On LUMI, in a job with all of a node's GPUs: not by a torch without torch.numa, nor without numactl."""
    wrapper = bake(tmp_path, site="lumi", account="project_465000000") / "launch/torchrun.sh"
    (tmp_path / "programs").mkdir()
    environment = {"PATH": f"{tmp_path}/programs:{os.environ['PATH']}", "TORCHRUN_OPTIONS": "--numa-binding=exclusive"}

    def bound(gpus="8", **more):
        """Whether torchrun was told to bind the ranks, and why not."""
        arguments, _, done = call({**environment, "SLURM_GPUS_ON_NODE": gpus, **more}, "x.py", wrapper=wrapper)
        return "--numa-binding=exclusive" in arguments, done.stderr.partition("left out: ")[2].strip()

    assert bound() == (False, "the program numactl was not found")
    (tmp_path / "programs/numactl").touch(mode=0o755)
    assert bound() == (True, "")
    assert bound("4") == bound(NPROC_PER_NODE="4") == (False, "it is for 8 processes on a node, and here are 4")
    (tmp_path / "older/torch").mkdir(parents=True)
    (tmp_path / "older/torch/__init__.py").touch()
    assert bound(PYTHONPATH=f"{tmp_path}/older") == (False, "it takes torch 2.9 or newer")
    assert bound(PYTHONPATH=f"{tmp_path}/older", **STEP) == (False, "")  # node 0 alone says why


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
        ({}, [], "name a program, or -m and a module"),
        (
            {},
            ["--nnodes=2", "x.py"],
            "'--nnodes=2': name the program first. Options of torchrun go into TORCHRUN_OPTIONS",
        ),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "12"}, ["x.py"], "srun started 12 tasks on 3 node(s), but one per node"),
        ({**STEP, "MASTER_ADDR": ""}, ["x.py"], "3 nodes, and they are to meet at ':12345'"),
        ({**STEP, "MASTER_PORT": "p"}, ["x.py"], "3 nodes, and they are to meet at 'n1:p'"),
        (
            {**PET, "PET_NNODES": "2:4"},
            ["x.py"],
            "number of nodes '2:4': expected a whole number; a range",
        ),
        ({**PET, "PET_NODE_RANK": ""}, ["x.py"], "node rank '': expected a whole number from 0 to 4"),
        ({**PET, "PET_NODE_RANK": "5"}, ["x.py"], "node rank '5': expected a whole number from 0 to 4"),
        ({"NPROC_PER_NODE": "gpu"}, ["x.py"], "processes per node 'gpu'"),
        ({"PYTHON": "pythonn"}, ["x.py"], "pythonn was not found"),
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
    ):
        _, _, done = call({**PET, **environment}, "x.py", wrapper=wrapper)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


# ---- launch/rank.sh --------------------------------------------------------------------------------------------------

# Rank 5 of 6 on 3 nodes.
TASK = {**STEP, "SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SIXTH = ("5", "6", "1", "2", "2", "n1", "12345")


@pytest.mark.parametrize(
    "environment",
    [
        TASK,
        {**PODS, **PET, **STRAY, **TASK},
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
        ({**TASK, "OMP_NUM_THREADS": "5"}, 5),
    ):
        assert call(environment, "x.py", wrapper=RANK)[1]["OMP_NUM_THREADS"] == str(threads), environment


def test_a_rank_has_an_error_file_of_its_own(call, tmp_path):
    _, seen, _ = call({**TASK, "RUN_DIR": str(tmp_path / "a b")}, "x.py", wrapper=RANK)
    assert seen["TORCHELASTIC_ERROR_FILE"] == f"{tmp_path}/a b/node2-n3/1/error.json"
    (tmp_path / "fails.py").write_text("1 / 0\n")
    environment = {
        **ELSEWHERE,
        "RUN_DIR": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHON": sys.executable,
    }
    done = subprocess.run([RANK, tmp_path / "fails.py"], env=environment, capture_output=True, text=True, check=False)
    logs = list(tmp_path.glob("node0-*/0/stderr.log"))
    assert done.returncode == 1
    assert [log.read_text() for log in logs] == [done.stderr] and "ZeroDivisionError" in done.stderr


def test_a_node_without_ranks_is_named():
    script = TEMPLATE / "slurm/signal_ranks.sh"
    done = subprocess.run(["bash", script, "/logs/4711.0", "USR1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"slurm/signal_ranks.sh: no rank runs on {os.uname().nodename}\n")


def test_a_job_that_a_rank_submits_has_ranks_of_its_own(call):
    _, seen, _ = call({**TASK, "NPROC_PER_NODE": "2"}, "x.py", wrapper=RANK)
    assert "NPROC_PER_NODE" not in seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_for_all_of_a_step_leaves_a_rank_its_messages(tmp_path, number):
    """As by scancel --signal=USR1 JOBID: what copies the messages to the log outlives the rank's last words."""
    (tmp_path / "saves.py").write_text(
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit('saved'))\nprint('ready')\nwhile True: signal.pause()\n"
    )
    environment = {**ELSEWHERE, "RUN_DIR": str(tmp_path), "PATH": os.environ["PATH"], "PYTHON": sys.executable}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([RANK, tmp_path / "saves.py"], env=environment, start_new_session=True, **pipes) as rank:
        assert rank.stdout.readline() == "ready\n"
        wait_for(lambda: list(tmp_path.glob("node0-*/0/stderr.log")))  # tee writes it
        os.killpg(rank.pid, number)
        assert (rank.communicate(timeout=PATIENCE)[1], rank.returncode) == ("saved\n", 1)
    (log,) = tmp_path.glob("node0-*/0/stderr.log")
    assert log.read_text() == "saved\n"


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, [], "no program given"),
        ({"PYTHON": "pythonn"}, ["x.py"], "pythonn was not found"),
        (
            {**TASK, "SLURM_STEP_NUM_TASKS": "5"},
            ["x.py"],
            "started 5 time(s) on 3 node(s), but once per rank is wanted, 1 times on each",
        ),
        (
            {**TASK, "SLURM_STEP_NUM_TASKS": "3", "SLURM_GPUS_ON_NODE": "4"},
            ["x.py"],
            "once per rank is wanted, 4 times on each: srun --ntasks=12 --ntasks-per-node=4",
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
    clean = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHON": sys.executable,
        "LAUNCHER": "spawn",
        "TMPDIR": str(cwd),
    }
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


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was ended by signal 9"),
        pytest.param("sys.exit(7)", 7, "rank 1 ended with exit code 7", marks=pytest.mark.drill),
        pytest.param("1 / 0", 1, "ZeroDivisionError", marks=pytest.mark.drill),
        pytest.param("raise KeyboardInterrupt", 130, "KeyboardInterrupt", marks=pytest.mark.drill),
    ],
)
def test_spawn_ends_all_ranks_when_one_fails(tmp_path, failure, code, said):
    """The others would wait for ever; the exit code is the failed one's."""
    program = tmp_path / "x.py"
    program.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {failure}\ntime.sleep({FOREVER})\n")
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
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHON": sys.executable,
        "LAUNCHER": "spawn",
        "NPROC_PER_NODE": "2",
    }
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


def test_spawned_ranks_customize_their_site(tmp_path):
    """As a Python does that starts with RANK set; the launcher has done so before, without."""
    (tmp_path / "sitecustomize.py").write_text("import os\nSEEN = os.environ.get('RANK')\n")
    (tmp_path / "x.py").write_text("import os, sitecustomize\nprint('saw', sitecustomize.SEEN, os.environ['RANK'])\n")
    done = spawn({"NPROC_PER_NODE": "2", "PYTHONPATH": str(tmp_path)}, "x.py", cwd=tmp_path)
    assert sorted(re.findall("saw .*", done.stdout)) == ["saw 0 0", "saw 1 1"], done.stdout + done.stderr


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
    """Whatever MASTER_ADDR is left of another run; nor are its logs shown once more."""
    (tmp_path / "x.py").write_text("import os\nprint(os.environ['RANK'], 'meets', os.environ['MASTER_ADDR'])\n")
    for _ in range(2):
        environment = {"NPROC_PER_NODE": "2", "RUN_DIR": str(tmp_path), **ELSEWHERE}
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
