"""site=local: the same wrappers on this machine, several launchers on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from baking import bake
from launching import write_short_torchrun
from waiting import FOREVER, PATIENCE

SHOW = """\
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_ADDR")
# one write: of a line in pieces, torchrun's --tee may prefix each
sys.stdout.write(" ".join(f"{name}={os.environ.get(name)}" for name in names) + "\\n")
"""

# In place of Python: of torchrun, which takes seconds to import torch, it does what one rank on each node needs.
LAUNCHER = f"""\
#!/usr/bin/env bash
[[ "$1 $2" == "-m torch.distributed.run" ]] || exec {sys.executable} "$@"
while [[ $1 != -- ]]; do
    case $1 in
        --nnodes=*) export WORLD_SIZE="${{1#*=}}" ;;
        --node[-_]rank=*) export RANK="${{1#*=}}" ;;
        --nproc[-_]per[-_]node=*) [[ ${{1#*=}} == 1 ]] || exit 9 ;;
    esac
    shift
done
shift
exec {sys.executable} "$@"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b"), site="local")


@pytest.fixture
def run(project, tmp_path):
    """Returns run(*arguments, **environment) -> finished process, called from another folder than the project's."""

    def call(*arguments, wait=True, **environment):
        clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, **environment}
        process = subprocess.Popen(
            # SIGINT is ignored where pytest runs in the background of a shell, and bash could not catch it
            ["env", "--default-signal=INT", "bash", str(project / "local/submit.sh"), *map(str, arguments)],
            cwd=tmp_path, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        if not wait:
            return process
        out, err = ended(process)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return call


def ended(process):
    """Wait for the end of a run; return what it has written to its standard output and error."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        subprocess.run(
            ["pkill", "-KILL", "--session", str(process.pid)], check=False
        )  # each node is a group of its own
        raise


@pytest.fixture
def launcher(tmp_path):
    """The environment in which torchrun is LAUNCHER, where what it starts and not how it does so is the question."""
    (tmp_path / "launcher").write_text(LAUNCHER)
    (tmp_path / "launcher").chmod(0o755)
    return {"PYTHON": str(tmp_path / "launcher"), "NNODES": "2", "NPROC_PER_NODE": "1"}


def gpus(folder, count):
    """Put a stand-in for nvidia-smi that tells of `count` GPUs into `folder`; returns a PATH that finds it first."""
    tool = folder / "nvidia-smi"
    listed = f"seq 0 {count - 1}" if count else "echo No devices were found && exit 6"
    tool.write_text(f"#!/bin/bash\n[[ $* == '--query-gpu=index --format=csv,noheader' ]] && {listed}\n")
    tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_two_nodes_of_two_ranks(run, tmp_path):
    stray = {"RANK": "5", "WORLD_SIZE": "9", "PET_NNODES": "7", "SLURM_STEP_NUM_NODES": "3", "SLURM_GPUS_ON_NODE": "8"}
    stray |= {"MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "1"}
    done = run("check/ranks.py", "--json", tmp_path / "a b.json", CUDA_VISIBLE_DEVICES="", **stray)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all-reduce over 4 rank(s) on 1 host(s): right" in done.stdout
    rows = json.loads((tmp_path / "a b.json").read_text())["rows"]
    assert [(row["rank"], row["local_rank"]) for row in rows] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert sorted({row["node_rank"] for row in rows}) == [0, 1]
    cores = len(os.sched_getaffinity(0))
    assert {row["threads"] for row in rows} == {max(1, cores // 4)}


def test_gpus_go_to_the_nodes_in_disjoint_slices(run, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    write_short_torchrun(tmp_path)
    done = run("show.py", PATH=gpus(tmp_path, 5), NNODES="2")
    assert done.returncode == 0, done.stderr
    seen = dict(re.findall(r"RANK=(\d) LOCAL_RANK=\d WORLD_SIZE=4 CUDA_VISIBLE_DEVICES=(\S*)", done.stdout))
    assert seen == {"0": "0,1", "1": "0,1", "2": "2,3", "3": "2,3"}
    assert "MASTER_ADDR=127.0.0.1" in done.stdout


def test_too_few_gpus_are_left_alone(run, launcher, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    done = run("show.py", PATH=gpus(tmp_path, 1), **launcher)
    assert done.returncode == 0, done.stderr
    assert "1 GPU(s) for 2 x 1 processes are too few: running on CPUs, with gloo" in done.stderr
    assert len(re.findall(r"WORLD_SIZE=2 CUDA_VISIBLE_DEVICES= ", done.stdout)) == 2


def test_a_driver_without_gpus(run, launcher, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    done = run("show.py", PATH=gpus(tmp_path, 0), **launcher)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failing_rank_ends_the_run(run, tmp_path):
    (tmp_path / "fails.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep({FOREVER})\n"
    )
    done = run("fails.py", NPROC_PER_NODE="1")
    assert done.returncode == 1
    assert re.search(r"rank +: 1 .*\n.*exitcode +: 3", done.stderr)


# In place of the parts of a run that take time: nodes that end at once, beside a process of an extra.
AT_ONCE = """
source local/project.sh x
start_beside() { :; }
end_beside() { :; }
call_extras() { :; }
say() { :; }
NNODES=2 NPROC_PER_NODE=1 RANK_PREFIX=(true) program=x arguments=() gpus=()
sleep 6000 </dev/null &>/dev/null &
beside=$!
disown
set -e
for ((run = 0; run < 500; run++)); do launch; ((code == 0)); done
kill $beside
"""


@pytest.mark.drill
def test_nodes_that_end_at_once(project):
    """One of 500 such runs hung with bash's wait -n, which missed the last node."""
    command = ["bash", "-c", f"PROJECT_DIR=$PWD\n{AT_ONCE}"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_whose_shell_is_killed(run, launcher, tmp_path):
    """Nobody tells of its end then."""
    (tmp_path / "kills.py").write_text("import os\nos.kill(os.getppid(), 9)\n")
    assert run("kills.py", **launcher).returncode == 137


def test_what_a_program_leaves_running_goes_on(run, launcher, tmp_path):
    source = "from subprocess import DEVNULL, Popen\n"
    source += f"process = Popen(['sleep', '{FOREVER}'], stdout=DEVNULL, stderr=DEVNULL)\n"
    source += "print(f'pid {process.pid}')  # one write: two nodes print at once\n"
    (tmp_path / "leaves.py").write_text(source)
    done = run("leaves.py", **launcher)
    left = re.findall(r"pid (\d+)", done.stdout)
    assert done.returncode == 0 and len(left) == 2
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)  # fails if there is no such process


@pytest.mark.parametrize(("number", "short"), [(signal.SIGTERM, False), (signal.SIGHUP, True), (signal.SIGINT, True)])
def test_an_interrupt_leaves_nothing_behind(run, tmp_path, launcher, number, short):
    """SIGHUP comes if the terminal is closed: the nodes have process groups of their own, which it would not reach."""
    source = f"import os, time\nprint(f'pid {{os.getpid()}}', flush=True)\ntime.sleep({FOREVER})\n"
    (tmp_path / "sleeps.py").write_text(source)
    process = run("sleeps.py", wait=False, **(launcher if short else {"NPROC_PER_NODE": "1"}))
    pids = []
    while len(pids) < 2:
        line = process.stdout.readline()
        assert line, process.communicate()
        pids += [int(pid) for pid in re.findall(r"pid (\d+)", line)]
    process.send_signal(number)
    ended(process)
    assert process.returncode == -number
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_help_is_the_head_of_the_file(run):
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Runs a PyTorch program on this machine") and "Settings: env.sh" in done.stdout
    assert "die" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["nosuch.py"], {}, "no program 'nosuch.py', neither here nor in"),
        (["pi/pi.py"], {"NNODES": "two"}, "NNODES='two': expected a whole number of at least 1"),
        (["pi/pi.py"], {"NPROC_PER_NODE": "0"}, "NPROC_PER_NODE='0': expected a whole number"),
        (["pi/pi.py"], {"CPU_RANKS_PER_NODE": "0"}, "CPU_RANKS_PER_NODE='0': expected a whole number"),
        (["pi/pi.py"], {"RUNTIME": "venv"}, "no virtual environment at"),
        (["pi/pi.py"], {"RUNTIME": "conda"}, "RUNTIME='conda' is not known; use venv or none"),
    ],
)
def test_wrong_use(run, arguments, environment, expected):
    done = run(*arguments, **environment)
    assert done.returncode == 2
    assert expected in done.stderr


# ---- extras, and a command before each "node" ------------------------------------------------------------------------

MOMENTS = ("check_settings", "before_launch", "after_launch", "job_end")
BESIDE = "one_beside_launch() { trap 'echo CALL beside_ended; exit' TERM; while :; do sleep 1000 & wait; done; }\n"
PREFIX = """one_before_launch() { echo CALL before_launch; rank_prefix+=(env "SEEN=$SEEN $ONE_WORD"); }\n"""


@pytest.fixture
def own_project(project, tmp_path):
    """The project, with the extra `one` and a command before each node, and as it was after the test."""
    settings, folder = project / "env.sh", project / "extras/one"
    before = settings.read_text()
    settings.write_text(before.replace("RANK_PREFIX=()", 'RANK_PREFIX=(env "SEEN=a b")'))
    folder.mkdir(parents=True)
    (folder / "settings.sh").write_text('ONE_WORD="${ONE_WORD:-default}"\nSEEN="a b"\n')
    yield project
    settings.write_text(before)
    shutil.rmtree(folder)


def test_settings_that_end_the_script(run, own_project):
    """The run would be done, with no output and nothing run."""
    (own_project / "env.sh").write_text("exit 0\n")
    done = run("pi/pi.py")
    assert done.returncode == 2 and "env.sh ended this script: look for exit" in done.stderr


def test_moments_and_the_order_of_what_stands_before_the_launcher(run, own_project, launcher, tmp_path):
    calls = "".join(f"one_{moment}() {{ echo CALL {moment}; }}\n" for moment in MOMENTS)
    (own_project / "extras/one/hooks.sh").write_text(calls + PREFIX + BESIDE)
    (tmp_path / "show.py").write_text("import os, sys\nsys.stdout.write('SEEN ' + os.environ['SEEN'] + '\\n')\n")
    done = run("show.py", ONE_WORD="chosen", **launcher)
    assert done.returncode == 0, done.stderr
    expected = ["check_settings", "before_launch", "beside_ended", "after_launch", "job_end"]
    assert re.findall(r"CALL (\w+)", done.stdout) == expected
    assert done.stdout.count("SEEN a b chosen\n") == 2  # the extra's is the inner one


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        ("one_before_submit() { :; }", "a run on one machine has no such moments"),
        ("one_job_start() { :; }", "a run on one machine has no such moments"),
        ("one_check_settings() { return 3; }", "extras/one: one_check_settings failed with exit code 3"),
    ],
)
def test_an_extra_that_this_kind_cannot_have(run, own_project, hooks, says):
    (own_project / "extras/one/hooks.sh").write_text(hooks)
    done = run("check/hello.py")
    assert done.returncode == 2 and says in done.stderr, done
