"""slurm/doctor.py on jobs that fail on a real Slurm."""

from __future__ import annotations

import json
import os
import re

import pytest
from baking import bake
from doctor_cases import told
from needs import needs_namespaces
from two_nodes import ANSWERS, ENVIRONMENT, PYTHON_ON_CPUS
from waiting import FOREVER

FAILS = f"""\
import os, signal, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "is here", flush=True)
time.sleep(0.5)
if rank == 3 and sys.argv[1] == "raise":
    raise ValueError("bad sample 17")
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep({FOREVER})
"""
HANGS = f"""\
import datetime, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()  # only from here on nobody is late because the machine is slow
group = dist.new_group(timeout=datetime.timedelta(seconds=5))
for step in range(9):
    if step == 5 and dist.get_rank() == 1:
        time.sleep({FOREVER})
    dist.all_reduce(torch.ones(9), group=group)
"""


RETURNS_EARLY = """\
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(9):
    if step == 5 and dist.get_rank() == 1:
        dist.destroy_process_group()
        sys.exit(0)
    dist.all_reduce(torch.ones(9))
"""


@pytest.fixture(scope="session")
def launched(tmp_path_factory):
    """A project for real jobs, whose numbers are none of those that the other tests of doctor.py made up."""
    return bake(tmp_path_factory.mktemp("a b") / "slurm", **ANSWERS, extras="hangs,mpi")


@pytest.fixture
def slurm(cluster):
    """The cluster, if its nodes have names of their own."""
    needs_namespaces(cluster)
    return cluster


def fail(slurm, launched, folder, program, *arguments, launcher="srun", per_node=2):
    """Submit a program that fails; returns the job, the report, and the answer as JSON."""
    (folder / "own.py").write_text(program)
    environment = {**ENVIRONMENT, "LAUNCHER": launcher, "NPROC_PER_NODE": str(per_node)}
    job = slurm.submit(launched / "slurm/submit_multinode.sh", "own.py", *arguments, cwd=folder, env=environment)
    assert job.state == "FAILED", job.output
    command = ["python3", launched / "slurm/doctor.py"]
    report, answer = (slurm.run(*command, *more, job.id, cwd=folder, check=False).stdout for more in ((), ["--json"]))
    return job, report, json.loads(answer)


OTHERS = [pytest.param(name, marks=pytest.mark.drill) for name in ("torchrun", "spawn")]


@pytest.mark.parametrize("launcher", ["srun", "mpirun-ranks", *OTHERS])
def test_a_rank_that_raises(slurm, launched, tmp_path, launcher):
    job, report, answer = fail(slurm, launched, tmp_path, FAILS, "raise", launcher=launcher)
    assert (*told(answer), answer["host"]) == ("error", 3, "", "node2"), answer
    for text in (report, job.output):  # the job ends with it, too
        assert '    raise ValueError("bad sample 17")\n    ValueError: bad sample 17\n' in text, text


@pytest.mark.parametrize("launcher", ["srun", *OTHERS])  # under torchrun: test_ends.py
def test_a_rank_that_is_killed(slurm, launched, tmp_path, launcher):
    job, report, answer = fail(slurm, launched, tmp_path, FAILS, "kill", launcher=launcher)
    assert (*told(answer), answer["host"], answer["exit_code"]) == ("killed", 3, "killed", "node2", -9), answer
    for text in (report, job.output):
        assert "\ncause: a process was killed\nproof: " in "\n" + text, text


@pytest.mark.drill
def test_a_rank_that_hangs(slurm, launched, tmp_path):
    _, report, answer = fail(slurm, launched, tmp_path, HANGS, per_node=1)
    late = "rank 1 on node2 has not entered all_reduce number 6 of the group"
    assert answer["way"] == "waited" and answer["causes"][0]["says"].startswith(late), answer
    assert "\nrank 1 on node2: own.py:8 in <module>\na rank that waited in vain: rank " in report, report
    assert "Timed out waiting 5000ms" in answer["words"][-1], answer


@pytest.mark.drill
def test_a_rank_that_returns_early(slurm, launched, tmp_path):
    """It ends with code 0, and the others lose it."""
    _, report, answer = fail(slurm, launched, tmp_path, RETURNS_EARLY, per_node=1)
    # It has no process any more; or it has not ended yet, and tells nothing, or that it has not entered the next one.
    gone = r"rank 1 on node2 has (no process any more|told nothing|not entered all_reduce number 6)"
    cause = answer["causes"][0]
    assert answer["way"] == "peer" and re.match(gone, cause["says"]), answer
    assert cause["fix"].startswith("First look at the program"), answer
    assert "\nwhere each rank was:\n" in report and "\nrank 1 on node2: " in report, report


@pytest.mark.drill
def test_a_rank_that_leaves_its_process_group_running(slurm, launched, tmp_path):
    program = RETURNS_EARLY.replace("        dist.destroy_process_group()\n", "")
    _, report, answer = fail(slurm, launched, tmp_path, program, per_node=1)
    assert "look at the program" in answer["causes"][0]["fix"] and "rank 1 on node2" in report, report


@pytest.mark.parametrize("launcher", ["srun", *OTHERS])
def test_a_rank_that_exits_with_a_message(slurm, launched, tmp_path, launcher):
    """Of the job, and of its output alone. Under torchrun: exits_with_a_text of test_doctor_failures.py."""
    program = "import os, sys, time\nif os.environ['RANK'] == '2':\n    sys.exit('config error: no key lr')\n"
    program += "time.sleep(60)\n"
    job, _, answer = fail(slurm, launched, tmp_path, program, launcher=launcher)
    command = ["python3", launched / "slurm/doctor.py", "--json", f"demo-{job.id}.out"]
    again = json.loads(slurm.run(*command, cwd=tmp_path, check=False).stdout)
    for said in (answer, again):
        assert (*told(said), said["exit_code"], said["host"]) == ("exited", 2, "", 1, "node2"), said
        assert said["words"][-1] == "config error: no key lr", said


def test_a_node_without_python3(slurm, launched, tmp_path):
    """The job's own exit code stays, and its output says how to learn the cause."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in os.scandir(folder):
            if not tool.name.startswith("python") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool.path)
    (tmp_path / "own.py").write_text("import sys\nsys.exit(3)\n")
    # One rank: srun may end the others before they can exit with 3, and then it exits with 143.
    environment = {**PYTHON_ON_CPUS, "LAUNCHER": "srun", "NPROC_PER_NODE": "1", "PATH": str(tools)}
    job = slurm.submit("--nodes=1", launched / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 3), job.output
    advice = f"To see why, run python3 slurm/doctor.py {job.id} on a login node: this node has no python3\n"
    assert job.output.endswith(advice), job.output


def test_jobs_of_all_kinds(slurm, launched, tmp_path):
    """That went well, that cannot start, of an array: nothing of this project in them."""

    def ask(job):
        done = slurm.run("python3", launched / "slurm/doctor.py", job, cwd=tmp_path, check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    (tmp_path / "job.sh").write_text("#!/bin/bash\necho here\n$1\n")
    good = slurm.submit("job.sh", cwd=tmp_path)
    assert ask(good.id) == f"job {good.id} did not fail: JobState=COMPLETED Reason=None ExitCode=0:0\n"
    nowhere = slurm.submit("--output=nosuch/x.out", "job.sh", cwd=tmp_path)
    assert "ExitCode 0:53: the folder of --output" in ask(nowhere.id)
    array = slurm.sbatch("--array=1-2", "job.sh", "nosuchcommand", cwd=tmp_path)
    slurm.wait(array)
    done = slurm.run("python3", launched / "slurm/doctor.py", array, cwd=tmp_path, check=False)
    assert (
        done.returncode == 2 and f"is an array, or heterogeneous: name one of its jobs, as {array}_1" in done.stderr
    ), done.stderr
    report = ask(f"{array}_2")
    assert f"proof: slurm-{array}_2.out:2: " in report and "nosuchcommand: command not found" in report
