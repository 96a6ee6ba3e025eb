"""Where is each rank of a job that hangs? extras/hangs/stacks.sh on a real Slurm, and extras/hangs/ by itself.

One job has a rank for each way to wait for ever (stuck.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import TEMPLATE
from needs import needs_namespaces
from submitting import apptainer_project, cluster
from submitting import project_of_extras as project
from two_nodes import ENVIRONMENT
from waiting import PATIENCE, wait_for

STUCK = Path(__file__).with_name("stuck.py")
GROUP = TEMPLATE / "extras/hangs/group.py"
SETTINGS = {**ENVIRONMENT, "NPROC_PER_NODE": "4", "OMP_NUM_THREADS": "1"}
# What is said of the eight ranks of stuck.py; (\d+) is the line of a function.
SAID = r"""ranks 0,7 on 2 nodes: accept\(\), called from stuck.py:(\d+) in waits_for_the_others\(\)
rank 1 on node1: stuck.py:(\d+) in sleeps\(\)
rank 2 on node1: stuck.py:(\d+) in reads_from_a_pipe_that_stays_empty\(\)
rank 3 on node1: no answer: stopped by a signal \(state T.*\)
rank 4 on node2: stuck.py:(\d+) in spins_in_c\(\)
rank 5 on node2: __next__\(\) in \w+\(\), called from stuck.py:(\d+) in waits_for_a_data_loader\(\)
rank 6 on node2: stuck.py:(\d+) in wants_a_lock\(\)
    another thread: stuck.py:(\d+) in wants_a_lock\(\)
other process of rank 5 on node2: stuck.py:(\d+) in worker\(\)
"""
# What stands in each of these lines of stuck.py.
LINES = [
    "listener.accept()",
    "time.sleep(",
    "os.read(",
    "all(",
    "next(iter(",
    "with second",
    "with second",
    "time.sleep(",
]


def stacks(cluster, project, job, cwd, check=True):
    return cluster.run("bash", project / "extras/hangs/stacks.sh", str(job), cwd=cwd, check=check)


def assert_each_rank_is_found(cluster, project, folder, **environment):
    (folder / "stuck.py").write_text(STUCK.read_text())
    script = project / "slurm/submit_multinode.sh"
    job = cluster.sbatch(script, "stuck.py", cwd=folder, env={**SETTINGS, **environment})
    try:
        wait_for(
            lambda: names_each_line(stacks(cluster, project, job, folder, check=False).stdout),
            lambda: stacks(cluster, project, job, folder, check=False).stdout,
        )
    finally:
        cluster.run("scancel", "--signal=KILL", "--full", str(job))
        cluster.wait(job)


def names_each_line(said):
    """Whether all ranks are said to be where they stay. At first they are still on their way."""
    found, source = re.fullmatch(SAID, said), STUCK.read_text().splitlines()
    return found and all(text in source[int(number) - 1] for text, number in zip(LINES, found.groups()))


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun",
        *(pytest.param(name, marks=pytest.mark.drill) for name in ("srun", "spawn", "mpirun", "mpirun-ranks")),
    ],
)
def test_each_rank_is_found(cluster, project, tmp_path, launcher):
    assert_each_rank_is_found(cluster, project, tmp_path, LAUNCHER=launcher)


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun-ranks"])
def test_each_rank_is_found_in_apptainer(containers, sif, tmp_path, tmp_path_factory, launcher):
    """The stacks are read from outside of the container."""
    needs_namespaces(containers)
    project = apptainer_project(tmp_path_factory, sif, "hangs,mpi" if "mpi" in launcher else "hangs")
    assert_each_rank_is_found(containers, project, tmp_path, LAUNCHER=launcher)


# A Python that starts each rank in another way. An own sitecustomize.py may hide that of the extra, or be hidden by it.
WAYS_TO_START = """\
#!/bin/bash
case ${{RANK:-}} in
    0) PYTHONSAFEPATH=1 PYTHONPATH=$PYTHONPATH:{own} exec {python} "$@" ;;
    1) exec {python} -I "$@" ;;
    2) exec {python} -S "$@" ;;
    3) PYTHONPATH={own}:$PYTHONPATH exec {python} "$@" ;;
esac
exec {python} "$@"
"""


def test_ranks_that_it_cannot_see_run_as_before_and_are_named(cluster, project, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("TEXT = 'of the user'\n")
    (tmp_path / "tells.py").write_text(
        "import os, sys, time\n"
        "text = getattr(sys.modules.get('sitecustomize'), 'TEXT', '')\n"
        "print('RANK', os.environ['RANK'], sys.flags.isolated, sys.flags.no_site, text, flush=True)\n"
        "time.sleep(100_000)\n"
    )
    python = tmp_path / "python"
    python.write_text(WAYS_TO_START.format(own=own, python=sys.executable))
    python.chmod(0o755)
    environment = {**SETTINGS, "NPROC_PER_NODE": "2", "LAUNCHER": "srun", "PYTHON": python}
    job = cluster.sbatch(project / "slurm/submit_multinode.sh", "tells.py", cwd=tmp_path, env=environment)
    lines = ["0 0 0 of the user", "1 1 0 ", "2 0 1 ", "3 0 0 of the user"]
    said = r"rank 0 on node1: tells.py:4 in <module>\n"
    unseen = r"ranks 1-3 on 2 nodes: no answer: sleeping \(state S.*\)\n"
    tees = "other process of ranks 1-3 .*\n"  # of launch/rank.sh
    try:
        wait_for(
            lambda: re.fullmatch(unseen + said + tees, stacks(cluster, project, job, tmp_path, check=False).stdout),
            lambda: stacks(cluster, project, job, tmp_path, check=False).stdout,
        )
    finally:
        cluster.run("scancel", "--signal=KILL", "--full", str(job))
    output = cluster.wait(job).output
    assert sorted(re.findall(r"RANK (.*)", output)) == lines, output


def test_wrong_use_is_refused(cluster, project, tmp_path):
    def refused(*words):
        done = cluster.run("bash", project / "extras/hangs/stacks.sh", *words, cwd=tmp_path, check=False)
        assert done.returncode == 2 and done.stdout == "", done.stdout
        return done.stderr

    assert "'': expected the number of one job" in refused()
    assert "'demo': expected the number of a job" in refused("demo")
    assert "Slurm knows no job 999999" in refused("999999")
    job = cluster.submit("--wrap=true", cwd=tmp_path)
    assert f"job {job.id} is COMPLETED: only a running one has ranks" in refused(str(job.id))


def test_a_job_without_ranks(cluster, project, tmp_path):
    job = cluster.sbatch("--wrap=sleep 1000", cwd=tmp_path)
    try:
        wait_for(lambda: "RUNNING" in cluster.run("squeue", "-h", "-o%T", f"--jobs={job}").stdout, "the job")
        done = stacks(cluster, project, job, tmp_path, check=False)
    finally:
        cluster.run("scancel", str(job))
    assert done.returncode == 1 and "no rank was found" in done.stderr, done.stdout + done.stderr


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun-ranks"])
def test_a_healthy_job_does_not_notice(cluster, project, tmp_path, launcher):
    """Asked all the time, it ends with the same losses and exit code."""
    run = "training/train_ddp.py --steps 60 --layers 1 --width 32 --global-batch 8 --dtype float64"
    losses = []
    for asked in (False, True):
        words = [project / "slurm/submit_multinode.sh", *run.split(), "--out", str(asked)]
        job = cluster.sbatch(*words, cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher, "OMP_NUM_THREADS": "1"})
        answers = 0
        while asked and cluster.run("squeue", "-h", "-o%T", f"--jobs={job}", check=False).stdout.strip():
            answers += "rank" in stacks(cluster, project, job, tmp_path, check=False).stdout
        done = cluster.wait(job)
        assert (done.state, done.exit_code) == ("COMPLETED", 0), done.output
        assert answers or not asked
        rows = [json.loads(line) for line in (tmp_path / str(asked) / "metrics.jsonl").read_text().splitlines()]
        losses.append([row["loss"] for row in rows if "loss" in row])
    assert losses[0] == losses[1]


# ---- a job that is stuck ends by itself ------------------------------------------------------------------------------

# Rank 1 hangs in the first attempt, and the others wait for it.
HANGS = """\
import os, time
def reads():
    time.sleep(100_000)
def waits():
    time.sleep(100_000)
print("begins", flush=True)
if os.environ["RESTART_COUNT"] == "0":
    reads() if os.environ["RANK"] == "1" else waits()
"""
PLACES = "ranks 0,2-3 on 2 nodes: hangs.py:5 in waits()\nrank 1 on node1: hangs.py:3 in reads()\n"
# Silent and healthy, each in its own way, for longer than STALL_TIMEOUT and what follows it.
HEALTHY = {
    "does not answer": "import signal, time\nsignal.signal(60, lambda *_: 0)\nfor i in range(32):\n    time.sleep(1)\n",
    "prints": "import time\nfor i in range(8):\n    print(i, flush=True)\n    time.sleep(4)\n",
    "moves": "import time\n" + 32 * "time.sleep(1)\n",
    "adds up": """\
import time, torch, torch.distributed
torch.distributed.init_process_group("gloo")
for i in range(64):
    torch.distributed.all_reduce(torch.ones(1)); time.sleep(0.5)
""",
    # Rank 1 needs ten times as long for its last two steps as for those before, and the others wait for it. A step has
    # ten places, so that five looks rarely meet the same one by chance.
    "slows down": """\
import time, torch, torch.distributed
def compute():
"""
    + 10 * "    time.sleep(0.21)\n"
    + """\
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
for step in range(8):
    for _ in range(10 if rank == 1 and step >= 6 else 1):
        compute()
    torch.distributed.all_reduce(torch.ones(1))
    if rank == 0: print("step", step, flush=True)
""",
    "touches": "import os, time\nfor i in range(8):\n    open(os.environ['HEARTBEAT_FILE'], 'w')\n    time.sleep(4)\n",
}


@pytest.mark.parametrize(
    "launcher",
    [
        "srun",
        *(pytest.param(name, marks=pytest.mark.drill) for name in ("torchrun", "spawn", "mpirun", "mpirun-ranks")),
    ],
)
def test_a_job_that_is_stuck_ends(cluster, project, tmp_path, launcher):
    (tmp_path / "hangs.py").write_text(HANGS)
    stall = {"LAUNCHER": launcher, "STALL_TIMEOUT": "10"}
    job = cluster.submit(project / "slurm/submit_multinode.sh", "hangs.py", cwd=tmp_path, env={**ENVIRONMENT, **stall})
    assert (job.state, job.exit_code) == ("FAILED", 124), job.output
    assert PLACES in job.output and "stuck: nothing was printed for 10 s (STALL_TIMEOUT)" in job.output, job.output
    whole = (project / f"logs/{job.id}.0/stacks.txt").read_text()
    assert whole.startswith(f"{PLACES}\nrank 0, process ") and "hangs.py:3 in reads\n" in whole, whole
    doctor = cluster.run("python3", project / "slurm/doctor.py", str(job.id), cwd=tmp_path, check=False).stdout
    assert doctor.startswith("cause: the ranks waited for something that never came"), doctor
    assert doctor.endswith(f"\n{PLACES}") and doctor in job.output, doctor


@pytest.mark.drill
def test_a_job_that_is_stuck_goes_back_into_the_queue(cluster, project, tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    stall = {"LAUNCHER": "srun", "STALL_TIMEOUT": "10", "STALL_ACTION": "requeue"}
    job = cluster.submit(project / "slurm/submit_multinode.sh", "hangs.py", cwd=tmp_path, env={**ENVIRONMENT, **stall})
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "back into the queue as attempt 1" in job.output and job.output.count("meeting at") == 2, job.output


@pytest.mark.drill
@pytest.mark.parametrize("way", HEALTHY)
def test_a_silent_job_that_is_healthy_goes_on(cluster, project, tmp_path, way):
    (tmp_path / "own.py").write_text(HEALTHY[way])
    stall = {"LAUNCHER": "srun", "STALL_TIMEOUT": "10"}
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env={**ENVIRONMENT, **stall})
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output


@pytest.mark.drill
@pytest.mark.parametrize("way", ["adds up", "slows down"])
def test_a_healthy_job_beside_busy_processes_goes_on(cluster, project, tmp_path, way):
    (tmp_path / "own.py").write_text(HEALTHY[way])
    words = [project / "slurm/submit_multinode.sh", "own.py"]
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(8)]
    try:
        stall = {"LAUNCHER": "srun", "STALL_TIMEOUT": "10"}
        job = cluster.submit(*words, cwd=tmp_path, env={**ENVIRONMENT, **stall})
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert (job.state, job.exit_code) == ("COMPLETED", 0) and "stuck" not in job.output, job.output


def test_wrong_settings_are_refused(cluster, project, tmp_path):
    for variable, value in (("STALL_TIMEOUT", "5"), ("STALL_TIMEOUT", "1h"), ("STALL_ACTION", "kill")):
        words = ["bash", project / "slurm/submit_multinode.sh", "check/ranks.py"]
        done = cluster.run(*words, cwd=tmp_path, env={**ENVIRONMENT, variable: value}, check=False)
        assert done.returncode == 2 and f"{variable}='{value}': expected" in done.stderr, done.stderr


# ---- extras/hangs/ by itself ----------------------------------------------------------------------------------------


def started(program, folder, stdin=None, **environment):
    """A process that has read extras/hangs/sitecustomize.py; it has printed a line."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TEMPLATE / "extras/hangs/python"), **environment}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # in the template's folder
    command, pipe = [sys.executable, "-uc", program], subprocess.PIPE
    process = subprocess.Popen(command, env=environment, cwd=folder, stdin=stdin, stdout=pipe)
    process.stdout.readline()
    return process


def collect(*words, **environment):
    command = ["bash", TEMPLATE / "extras/hangs/collect.sh", *words]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_only_ranks_of_the_run_are_asked(tmp_path):
    """A rank of another run, and a Python that is no rank, go on without having seen the signal."""
    program = "import time; print(1); time.sleep(1000)"
    own = [started(program, tmp_path, RANK=str(rank), WORLD_SIZE="2", RUN=f"a {tmp_path}") for rank in range(2)]
    others = [started(program, tmp_path, RUN=f"a {tmp_path}"), started(program, tmp_path, RANK="5", RUN="b")]
    try:
        said = collect(f"RUN=a {tmp_path}").stdout
        assert sorted(re.findall(r"^== rank=(\d+) of=2 .* pid=(\d+)", said, re.MULTILINE)) == [
            (str(rank), str(process.pid)) for rank, process in enumerate(own)
        ]
        assert said.count('File "<string>", line 1 in <module>') == 2, said
        assert all(process.poll() is None for process in own + others)
    finally:
        for process in own + others:
            process.kill()
            process.wait()


def test_a_rank_without_sitecustomize_is_named_and_lives(tmp_path):
    rank = started("import time; print(1); time.sleep(1000)", tmp_path, RANK="3", PYTHONPATH="", RUN=str(tmp_path))
    try:
        said = collect(f"RUN={tmp_path}").stdout
        done = subprocess.run([sys.executable, "-B", GROUP], input=said, capture_output=True, text=True, check=False)
        assert re.fullmatch(r"rank 3 on \S+: no answer: sleeping \(state S.*\)\n", done.stdout), done.stdout
        assert done.returncode == 1  # nobody knows where it is
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.wait()


def test_py_spy_sees_ranks_that_do_not_answer(tmp_path):
    """One that is stopped, and one without sitecustomize."""
    tools = Path(sys.executable).parent
    waits = (
        "import os, signal, sys\nprint(1, flush=True)\nos.kill(os.getpid(), signal.SIGSTOP) if {} else os.read(0, 1)"
    )
    ranks = []
    for rank, path in enumerate((str(TEMPLATE / "extras/hangs/python"), "")):
        (tmp_path / f"own{rank}.py").write_text(waits.format(rank == 0))
        program = f"import runpy; runpy.run_path({str(tmp_path / f'own{rank}.py')!r})"
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "RUN": str(tmp_path), "PYTHONPATH": path}
        ranks.append(started(program, tmp_path, stdin=subprocess.PIPE, **environment))
    try:
        dump = [tools / "py-spy", "dump", "--pid", str(ranks[1].pid)]
        if subprocess.run(dump, capture_output=True, check=False).returncode:
            pytest.skip("py-spy may not read other processes here")
        wait_for(lambda: Path(f"/proc/{ranks[0].pid}/stat").read_text().split()[2] == "T", "the stop")
        said = collect(f"RUN={tmp_path}", PATH=f"{tools}:{os.environ['PATH']}").stdout
        done = subprocess.run([sys.executable, "-B", GROUP], input=said, capture_output=True, text=True, check=False)
        assert re.fullmatch(
            r"rank 0 on \S+: stopped by a signal: \S+/own0.py:3 in <module>\n"
            r"rank 1 on \S+: \S+/own1.py:3 in <module>\n",
            done.stdout,
        ), done.stdout + said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_a_rank_that_the_signal_would_end_is_not_asked(tmp_path):
    """A program may have put the default action back."""
    program = "import signal, time; signal.signal(60, signal.SIG_DFL); print(1); time.sleep(1000)"
    rank = started(program, tmp_path, RANK="0", RUN=str(tmp_path))
    try:
        said = collect(f"RUN={tmp_path}").stdout
        assert said.startswith("== rank=0 ") and "File" not in said, said
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.wait()


def test_the_sitecustomize_of_others_is_run_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_site = 'here'\n")
    path = f"{TEMPLATE / 'extras/hangs/python'}:{tmp_path}"
    command = [sys.executable, "-c", "print(of_the_site)"]
    for rank in ({"RANK": "0"}, {}):
        done = subprocess.run(
            command,
            env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **rank},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("here\n", ""), done.stderr


def test_wrong_use_of_collect():
    for words in (["4711"], ["A=1", "B=2"], ["=1"]):
        done = collect(*words)
        assert done.returncode == 2 and f"'{' '.join(words)}': expected VARIABLE=VALUE, as SLURM" in done.stderr


ANSWER = """\
{node}: == rank={rank} of=5 host={host} pid={pid} parent={parent} state=S wchan=0 name=python3
{node}: Thread 0x00007f (most recent call first):
{node}:   File "/usr/lib/python3.11/threading.py", line 320 in wait
{node}:   File "/p/{thread}.py", line 7 in run
{node}: Current thread 0x00007f [python3] (most recent call first):
{node}:   File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252 in {call}
{node}:   File "/x/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
{node}:   File "/x/site-packages/lightning/trainer.py", line 83 in fit
{node}:   File "/p/train.py", line 41 in step
{node}:   File "/p/train.py", line 90 in <module>
"""


def grouped(*answers):
    """What is said of answers whose lines arrive mixed, as srun passes them on."""
    lines = [
        ANSWER.format(**{"host": f"n{answer['node']}", "pid": 7, "parent": 1, "thread": "a", **answer}).splitlines()
        for answer in answers
    ]
    mixed = "\n".join(line for each in zip(*lines) for line in each)
    return subprocess.run([sys.executable, "-B", GROUP], input=mixed, capture_output=True, text=True, check=True).stdout


def test_ranks_are_grouped_by_where_their_main_thread_is():
    """Also below a call of a library that lasts for the whole run. Ranks without a process are named."""
    said = grouped(
        {"node": 0, "rank": 0, "call": "all_reduce"},
        {"node": 11, "rank": 1, "call": "all_reduce", "thread": "b"},
        {"node": 2, "rank": 4, "call": "barrier"},
    )
    assert said.splitlines() == [
        "ranks 0-1 on 2 nodes: fit() in all_reduce(), called from /p/train.py:41 in step()",
        "    another thread of rank 0: wait(), called from /p/a.py:7 in run()",
        "    another thread of rank 1: wait(), called from /p/b.py:7 in run()",
        "rank 4 on n2: fit() in barrier(), called from /p/train.py:41 in step()",
        "    another thread: wait(), called from /p/a.py:7 in run()",
        "ranks 2-3: no process was found",
    ]


def test_what_a_rank_has_started_is_told_apart():
    said = grouped(
        {"node": 0, "rank": 0, "call": "barrier", "pid": 10},
        {"node": 1, "host": "n0", "rank": 0, "call": "read", "pid": 9, "parent": 10},
        {"node": 2, "host": "n0", "rank": 0, "call": "read", "pid": 11, "parent": 10},
    )
    assert "rank 0 on n0: fit() in barrier(), called from" in said
    assert "other process of rank 0 on n0 (2 processes): fit() in read(), called from" in said
