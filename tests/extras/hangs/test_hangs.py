"""Which rank keeps the others waiting, and where? Asked while the job hangs, after a timeout, and by the watchdog.

Of four ranks on two nodes rank 1 does something else than the others (hanging.py). What is said of it is the same under
each launcher. Most of this are drills, and make the table of docs.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from baking import bake
from launching import RUNTIMES, container_cluster, everywhere, get_image, surroundings
from needs import needs_namespaces
from submitting import apptainer_project, cluster
from submitting import project_of_extras as project
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import wait_for

PROGRAMS = [Path(__file__).with_name(name) for name in ("hanging.py", "stuck.py")]
LAUNCHERS = ["torchrun", "srun", "mpirun-ranks"]
SETTINGS = {**ENVIRONMENT, "NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
LATE = r"rank 1 on node1 has not entered all_reduce number 4, in which ranks 0,2-3 have waited since [\d:]+"
MUTE = r"rank 1 on node1 has told nothing, and ranks 0,2-3 have waited in all_reduce number 4 since [\d:]+"
GONE = r"rank 1 on node1 has (?:no process any more|told nothing|not entered all_reduce number 4).*"  # it may still end
OTHER = r"ranks disagree: number 4 is all_reduce of \[1024\] float32 on ranks 0,2-3 and {} on rank 1"
TENSORS = "ranks called different collectives at the same time, or with tensors of different shapes or types"


class Way:
    """How rank 1 hangs, and what is said of that."""

    def __init__(self, what, verdict, place, line="", timeout=None):
        """what: in words. verdict: who keeps the others waiting. place: of rank 1. line: what stands there."""
        self.what, self.verdict, self.place, self.line = what, verdict, place, line
        self.at_timeout = timeout or place  # its own collective fails, too


WAYS = {
    "sleeps": Way("sleeps", LATE, r"stuck.py:(\d+) in sleeps\(\)", "time.sleep("),
    "reads_from_a_pipe_that_stays_empty": Way(
        "reads from a pipe that stays empty",
        LATE,
        r"stuck.py:(\d+) in reads_from_a_pipe_that_stays_empty\(\)",
        "os.read(",
    ),
    "is_stopped": Way("is stopped (`kill -STOP`)", MUTE, r"no answer: stopped by a signal \(state T.*\)"),
    "spins_in_c": Way("computes in C for ever", MUTE, r"stuck.py:(\d+) in spins_in_c\(\)", "all("),
    "waits_for_a_data_loader": Way(
        "waits for a data-loader worker that sleeps",
        LATE,
        r"__next__\(\) in \w+\(\), called from stuck.py:(\d+) in waits_for_a_data_loader\(\)",
        "next(iter(",
    ),
    "waits_for_threads_that_wait_for_each_other": Way(
        "has two threads that wait for each other's lock",
        LATE,
        r"stuck.py:(\d+) in wants_a_lock\(\)",
        "with second",
    ),
    "skips_a_collective": Way(
        "skips a collective",
        OTHER.format("barrier"),
        r"barrier\(\), called from hanging.py:(\d+) in <module>",
        "dist.barrier()",
        timeout=r"failed in barrier\(\), called from hanging.py:(\d+) in <module>",
    ),
    "calls_another_collective": Way(
        "calls another collective",
        OTHER.format(r"broadcast of \[1024\] float32"),
        r"broadcast\(\), called from hanging.py:(\d+) in calls_another_collective\(\)",
        "dist.broadcast(",
        timeout=r"failed in broadcast\(\), called from hanging.py:(\d+) in calls_another_collective\(\)",
    ),
}


def submitted(cluster, project, folder, way, timeout, **environment):
    for program in PROGRAMS:
        (folder / program.name).write_text(program.read_text())
    words = [project / "slurm/submit_multinode.sh", "hanging.py", way, str(timeout)]
    return cluster.sbatch("--nodes=2", *words, cwd=folder, env={**SETTINGS, **environment})


def has_line(pattern, text, line):
    """Whether a line of the text fits, and stands for this line of one of the programs."""
    found = re.search(f"^{pattern}$", text, re.MULTILINE)
    sources = [program.read_text().splitlines() for program in PROGRAMS if found and program.name in found[0]]
    return found and (not line or line in sources[0][int(found[1]) - 1])


def assert_found_while_it_hangs(cluster, project, job, folder, way):
    def said():
        words = ["bash", project / "extras/hangs/stacks.sh", str(job)]
        return cluster.run(*words, cwd=folder, check=False).stdout

    def is_named():
        state = re.search(r"JobState=(\S+)", cluster.run("scontrol", "show", "job", str(job)).stdout)[1]
        text = said()
        assert text or state not in {"COMPLETED", "FAILED", "CANCELLED"}, f"the job has ended: {state}"
        return has_line(f"rank 1 on node1: {way.place}", text, way.line) and has_line(way.verdict, text, "")

    wait_for(is_named, said)


def assert_doctor_names_it(cluster, project, job, folder, verdict, place, line):
    text = cluster.run("python3", project / "slurm/doctor.py", str(job.id), cwd=folder, check=False).stdout
    assert re.match(f"cause: {verdict}\n", text), text
    assert has_line(f"rank 1 on node1: {place}", text, line), text
    assert text in job.output, job.output
    return text


def recorded(record_property, way, doctor):
    cells = [re.search(pattern, doctor, re.MULTILINE)[1] for pattern in (r"^cause: (.*)", r"^(rank 1 .*: .*)")]
    record_property("hang", {"rank 1": way.what, "the doctor's cause": f"`{cells[0]}`", "and place": f"`{cells[1]}`"})


def drills_but(usual, names):
    """All of these as drills, but one in every run."""
    return [name if name == usual else pytest.param(name, marks=pytest.mark.drill) for name in names]


@pytest.mark.parametrize("launcher", drills_but("torchrun", [*LAUNCHERS, "spawn"]))
@pytest.mark.parametrize("name", drills_but("skips_a_collective", WAYS))
def test_a_timeout(cluster, project, tmp_path, launcher, name, record_property):
    """All ranks are asked where they are before the launcher ends them. The doctor begins with the one to look at."""
    way = WAYS[name]
    job = submitted(cluster, project, tmp_path, name, 25, LAUNCHER=launcher)
    assert_found_while_it_hangs(cluster, project, job, tmp_path, way)
    job = cluster.wait(job)
    assert job.state == "FAILED", job.output
    doctor = assert_doctor_names_it(cluster, project, job, tmp_path, way.verdict, way.at_timeout, way.line)
    assert not re.search(r"^(?:first failure|printed no error): .*rank [023]", doctor, re.MULTILINE), doctor
    if launcher == "torchrun":
        recorded(record_property, way, doctor)


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", WAYS)
def test_the_watchdog(cluster, project, tmp_path, launcher, name):
    """It ends the job, and leaves what the doctor needs."""
    way = WAYS[name]
    job = cluster.wait(submitted(cluster, project, tmp_path, name, 900, LAUNCHER=launcher, STALL_TIMEOUT="10"))
    assert (job.state, job.exit_code) == ("FAILED", 124), job.output
    assert_doctor_names_it(cluster, project, job, tmp_path, way.verdict, way.place, way.line)


# Stands in for ranks whose NCCL has timed out: torch has written a file per rank, says so, and ends the rank a minute
# later. Rank 1 is elsewhere.
NCCL = """\
import os, pickle, sys, time
def entry(number, state):
    numbers = {"record_id": number, "collective_seq_id": number, "time_created_ns": time.time_ns()}
    return {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "is_p2p": False, "state": state,
            "retired": False, "input_sizes": [[9]], "input_dtypes": ["Float"], "frames": [], **numbers}
rank = os.environ["RANK"]
calls = [entry(1, "completed")] + ([] if rank == "1" else [entry(2, "started")])
groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
def is_elsewhere():
    while not os.path.exists(os.environ["RUN_DIR"] + "/stacks.txt"): time.sleep(0.1)
with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as file:
    pickle.dump({"entries": calls, "pg_config": groups}, file, protocol=2)
is_elsewhere()
if rank != "1":
    print(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout", file=sys.stderr)
    os.abort()
time.sleep(100_000)
"""


@pytest.mark.drill
@pytest.mark.parametrize("is_asked", [True, False])
def test_what_nccl_writes_after_a_timeout(cluster, project, tmp_path, is_asked):
    """All ranks are asked as soon as the files are there. If a node does not answer, the files tell what is known."""
    if not is_asked:
        project = bake(tmp_path / "own", **ANSWERS, extras="hangs")
        (project / "extras/hangs/collect.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nccl.py").write_text(NCCL)
    words = [project / "slurm/submit_multinode.sh", "nccl.py"]
    job = cluster.wait(cluster.sbatch("--nodes=2", *words, cwd=tmp_path, env={**SETTINGS, "LAUNCHER": "srun"}))
    late = "rank 1 has not entered all_reduce number 2, in which ranks 0,2-3 have waited since "
    places = ["ranks 0-3 on 2 nodes: nccl.py:10 in is_elsewhere()", late, ""]
    if not is_asked:
        places = ["ranks 0,2-3: waited in all_reduce number 2", "rank 1: last seen in all_reduce number 1", late]
    lines = (project / f"logs/{job.id}.0/stacks.txt").read_text().splitlines()
    assert [line.startswith(place) for line, place in zip(lines, places)] == [True] * 3, lines
    place = "ranks 0-3 on 2 nodes: " if is_asked else "rank 1 on node1: last seen in "
    doctor = cluster.run("python3", project / "slurm/doctor.py", str(job.id), cwd=tmp_path, check=False).stdout
    late = r"cause: rank 1 on node1 has not entered all_reduce number 2, in which ranks 0,2-3 have waited since "
    assert re.match(late, doctor), doctor
    assert re.search(f"\n{place}.*\na rank that waited in vain: rank ", doctor), doctor


@pytest.mark.drill
@pytest.mark.parametrize("launcher", [*LAUNCHERS, "spawn", "mpirun"])
def test_alone_and_deleted(cluster, tmp_path, launcher):
    """In a project without other extras. Without its folder nobody asks the ranks, and its setting is refused."""
    own = bake(tmp_path / "own", **ANSWERS, launcher=launcher, extras="hangs")
    way = WAYS["skips_a_collective"]
    job = cluster.wait(submitted(cluster, own, tmp_path, "skips_a_collective", 15))
    assert_doctor_names_it(cluster, own, job, tmp_path, way.verdict, way.at_timeout, way.line)
    shutil.rmtree(own / "extras/hangs")
    job = cluster.wait(submitted(cluster, own, tmp_path, "skips_a_collective", 15))
    assert job.state == "FAILED" and "where each" not in job.output, job.output
    assert re.search(r"^cause: (?:ranks waited in vain|a rank lost another one)", job.output, re.MULTILINE), job.output
    assert not list((own / f"logs/{job.id}.0").glob("*-rank-*")), job.output
    job = cluster.wait(submitted(cluster, own, tmp_path, "skips_a_collective", 15, STALL_TIMEOUT="10"))
    assert ": extras/hangs is not in this project" in job.output, job.output


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_returns_early(cluster, project, tmp_path, launcher):
    job = cluster.wait(submitted(cluster, project, tmp_path, "returns_early", 15, LAUNCHER=launcher))
    assert job.state == "FAILED", job.output
    if "terminate called" not in job.output:
        assert_doctor_names_it(cluster, project, job, tmp_path, GONE, ".*", "")  # it may take a while to end
    else:  # torch's threads were still at work
        assert "cause: a rank ended while its process group was still at work" in job.output, job.output
        assert "first failure: rank 1 on node1" in job.output, job.output


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", ["has_another_shape", "has_another_type"])
def test_other_tensors(cluster, project, tmp_path, launcher, name):
    """gloo notices, and ends the rank that has got too much: any of them."""
    job = cluster.wait(submitted(cluster, project, tmp_path, name, 15, LAUNCHER=launcher))
    doctor = cluster.run("python3", project / "slurm/doctor.py", str(job.id), cwd=tmp_path, check=False).stdout
    assert doctor.startswith((f"cause: {TENSORS}\n", "cause: ranks disagree: number 4 is ")), doctor
    assert "first failure" not in doctor and "printed no error" not in doctor, doctor


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_waits_itself_is_not_blamed(cluster, project, tmp_path, launcher):
    job = cluster.wait(submitted(cluster, project, tmp_path, "waits_in_a_smaller_group", 15, LAUNCHER=launcher))
    doctor = cluster.run("python3", project / "slurm/doctor.py", str(job.id), cwd=tmp_path, check=False).stdout
    late = r"cause: rank 3 on node2 has not entered all_reduce number 1 of the group \d+, in which rank 1 has waited"
    assert re.match(late, doctor), doctor


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_in_apptainer(containers, sif, tmp_path, tmp_path_factory, launcher):
    needs_namespaces(containers)
    project = apptainer_project(tmp_path_factory, sif, "hangs,mpi" if "mpi" in launcher else "hangs")
    way = WAYS["skips_a_collective"]
    job = submitted(containers, project, tmp_path, "skips_a_collective", 15, LAUNCHER=launcher)
    assert_found_while_it_hangs(containers, project, job, tmp_path, way)
    job = containers.wait(job)
    assert_doctor_names_it(containers, project, job, tmp_path, way.verdict, way.at_timeout, way.line)


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name not in ("none", "venv", "apptainer")])
def test_in_every_container(container_cluster, runtime, launcher, everywhere, surroundings, tmp_path):
    """The stand-ins for the runtimes make the namespaces that the real ones make; the ranks are asked from outside."""
    cluster = container_cluster
    needs_namespaces(cluster)
    answers = {"site": everywhere, "runtime": runtime, "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path / "my_projects", **answers, extras="hangs")
    environment = {**SETTINGS, **surroundings(runtime, project, tmp_path, cluster), "LAUNCHER": launcher}
    get_image(cluster, project, runtime, environment)
    here = tmp_path / "here"
    here.mkdir()
    way = WAYS["sleeps"]
    job = submitted(cluster, project, here, "sleeps", 15, **environment)
    assert_found_while_it_hangs(cluster, project, job, here, way)
    job = cluster.wait(job)
    assert_doctor_names_it(cluster, project, job, here, way.verdict, way.at_timeout, way.line)
