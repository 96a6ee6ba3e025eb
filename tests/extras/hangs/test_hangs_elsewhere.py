"""Where is each rank of a run on one machine, and of a job on Run:ai: while it hangs, and after a timeout?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from baking import bake
from runai_cluster import RunaiCluster
from test_runai import Site
from waiting import PATIENCE, wait_for

needs_files_in_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux alone has files in memory")
needs_pods = pytest.mark.skipif(bool(RunaiCluster.missing()), reason=f"no pods: {RunaiCluster.missing()}")
WAITS = """\
import os, time
def reads():
    time.sleep(100_000)
def waits():
    time.sleep(100_000)
reads() if os.environ["RANK"] == "1" else waits()
"""
# Rank 1 does not enter the second all-reduce.
LATE = """\
import datetime, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    time.sleep(100_000)
dist.all_reduce(torch.ones(4))
"""
VERDICT = r"rank 1(?: on \S+)? has (?:not entered|left no record, and rank 0).* all_reduce number 2"


# ---- on one machine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["all", pytest.param("hangs", marks=pytest.mark.drill)])
def project(request, tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b"), site="local", extras=request.param)


@contextmanager
def running(project, folder, program, **environment):
    """A run, which is ended if it has not ended by itself."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": sys.executable, **environment}
    command = ["bash", str(project / "local/submit.sh"), program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                subprocess.run(["pkill", "-KILL", "--session", str(process.pid)], check=False)
                raise


@needs_files_in_memory
def test_where_each_rank_is(project, tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    (project / "logs/snapshots").mkdir(parents=True, exist_ok=True)  # no run, but the last of the names

    def stacks(*words):
        command = ["bash", project / "extras/hangs/stacks.sh", *words]
        environment = {"PATH": os.environ["PATH"]}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    expected = re.compile(r"ranks 0,2-3 on \S+: waits.py:5 in waits\(\)\nrank 1 on \S+: waits.py:3 in reads\(\)\n")
    with running(project, tmp_path, "waits.py", NNODES="2", NPROC_PER_NODE="2") as process:
        wait_for(lambda: expected.fullmatch(stacks().stdout), lambda: stacks().stdout + stacks().stderr)
        newest = max((project / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
        assert expected.fullmatch(stacks(newest).stdout)
    assert process.returncode == -signal.SIGTERM
    done = stacks(newest)
    assert done.returncode == 1 and "no rank was found" in done.stderr
    done = stacks("logs/none")
    assert done.returncode == 2 and "'logs/none': expected the folder of a run, as in bash extras/hangs" in done.stderr


@pytest.mark.drill
@needs_files_in_memory
def test_a_timeout(tmp_path):
    project = bake(tmp_path / "own", site="local", extras="hangs")
    (tmp_path / "late.py").write_text(LATE)
    with running(project, tmp_path, "late.py", NNODES="2", NPROC_PER_NODE="1") as process:
        output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode not in (0, 143), output
    places = r"(?m)^rank 0 on \S+: failed in .*\nrank 1 on \S+: late.py:5 in <module>\n"
    assert re.search(places + VERDICT, output), output
    (stacks,) = project.glob("logs/*/stacks.txt")
    assert re.search(VERDICT, stacks.read_text())
    shutil.rmtree(project / "extras/hangs")
    with running(project, tmp_path, "late.py", NNODES="2", NPROC_PER_NODE="1") as process:
        output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode not in (0, 143) and "late.py:5" not in output, output


def test_what_is_for_slurm_is_refused(project, tmp_path):
    with running(project, tmp_path, "x.py", STALL_TIMEOUT="60") as process:
        output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 2 and "STALL_TIMEOUT='60': only on Slurm" in output, output


# ---- on Run:ai -------------------------------------------------------------------------------------------------------


@needs_pods
@pytest.mark.parametrize("generation", [pytest.param("v1", marks=pytest.mark.drill), "v2"])
def test_where_each_rank_of_a_job_is(generation, tmp_path):
    """In a job that is stuck."""
    with Site(tmp_path, generation, extras="hangs") as site:
        program = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(99999)\ntime.sleep(99999)\n"
        (site.project / "waits.py").write_text(program)
        site.own()
        name = site.submit("waits.py", NNODES="2")

        def said(*words, **environment):
            done = site.script(*words, name="../extras/hangs/stacks.sh", NNODES="2", **environment)
            return done.stdout + done.stderr

        expected = re.compile(r"rank 0 on \S+: \S+/waits.py:4 in <module>\nrank 1 on \S+: \S+/waits.py:3 in <module>\n")
        wait_for(lambda: expected.fullmatch(said(name)), lambda: said(name))
        done = site.script(name="../extras/hangs/stacks.sh")
        assert done.returncode == 2 and "'': expected the name of a job" in done.stderr
        assert site.script("--delete", name, name="interactive.sh").returncode == 0
        site.cluster.wait(name)
        assert f"extras/hangs/stacks.sh: {name}-worker-0 does not answer, see above" in said(name)


@pytest.mark.drill
@needs_pods
def test_a_timeout_of_a_job(tmp_path):
    with Site(tmp_path, extras="hangs") as site:
        (site.project / "late.py").write_text(LATE)
        site.own()
        job = site.run("late.py", NNODES="2")
        assert job.state == "Failed", job.output
        assert re.search(rf"what ranks have left when they failed:\n(?:.*\n)*?{VERDICT}", job.output), job.output
