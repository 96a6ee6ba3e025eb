"""What a job with spare nodes does when a node fails, on a real Slurm: the ranks go on elsewhere, and nothing is lost.

Like the drills of test_drills.py, but the job stays in its allocation as long as enough nodes are left. A row of the
table says how long it took from the fault to the first new step. drills.SLOWLY is the program: it pauses PAUSE seconds
in each step of the first SLOW_ATTEMPTS attempts (1), so that there is time to break something.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import drills
import pytest
from baking import bake
from drills import BUSY, Drill
from launching import RUNTIMES, everywhere, get_image, surroundings
from needs import cluster_of, needs_namespaces
from slurm_cluster import PATH, Cluster, Nodes
from submitting import apptainer_project
from two_nodes import ANSWERS
from waiting import wait_for

from cluster_options.runtimes import LAUNCHERS

pytestmark = pytest.mark.drill

cluster, reference = drills.cluster, drills.reference  # both use `breakable`, and `cluster` mends it after each test
# What slurm/submit_multinode.sh passes to sbatch with SPARES=1 and --nodes=2 (test_bad_nodes.py).
ONE_SPARE = ("--nodes=3", "--no-kill")


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """The extra alone, but for that of two launchers."""
    return bake(tmp_path_factory.mktemp("a b") / "spares", **ANSWERS, extras="mpi,spares")


@pytest.fixture(scope="session")
def breakable(request, tmp_path_factory):
    """Six nodes: the biggest job has four, and finds four when two of them have died. The parameter names a Debian."""
    # SlurmdTimeout: on a busy machine, healthy nodes have been silent for 5 s.
    conf = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSlurmdTimeout=20\nKillWait=30"
    how = {"nodes": [Nodes(6)], "partitions": drills.PARTITIONS, "extra_conf": conf}
    folder = tmp_path_factory.mktemp("slurm") / "s"
    if debian := getattr(request, "param", None):
        nodes = cluster_of(request.getfixturevalue(debian), folder, **how)
    else:
        nodes = Cluster(folder, **how)
    needs_namespaces(nodes)
    with nodes:
        yield nodes


class SpareDrill(Drill):
    """A run with spare nodes."""

    table = "spare"

    def await_new_step(self, count=2, within=30):
        """Wait until the ranks have started `count` times and then made a step; return the seconds since start_clock().

        Fails if the job ends before.
        """
        end = time.monotonic() + BUSY * within
        while True:
            shown = self.cluster.run("scontrol", "show", "job", str(self.job)).stdout
            ended = re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", shown)
            found = re.findall(r"start   at step (\d+)", self.output)  # after the state: the job may end in between
            if len(found) >= count and self.step() > int(found[-1]):
                return time.monotonic() - self.broken
            assert time.monotonic() < end and not ended, shown + self.output
            if len(found) < count:
                self.reached = max(self.reached, self.step())
            time.sleep(0.1)

    def said_of_nodes(self):
        """Return the last line of the output that says of a node what is wrong with it."""
        return re.findall(r"^.*(?:it failed, says Slurm|preflight: node\d: .*)$", self.output, re.MULTILINE)[-1]

    def more(self, job):
        """Say on which nodes the ranks ran."""
        return {"nodes of each start": ", then ".join(" ".join(nodes) for nodes in starts(job.output)) or "–"}


def starts(output):
    """Return the nodes of each start of the ranks, in the order of the log."""
    return [line.split() for line in re.findall(r"ranks on \d+ node\(s\) of \d+: (.*)", output)]


@pytest.fixture
def drill(cluster, project, tmp_path, reference, record_property):
    shutil.rmtree(project / "logs", ignore_errors=True)  # of jobs with the same numbers on another cluster, too
    return SpareDrill(cluster, project, tmp_path, reference, record_property)


def went_on(drill, name, *nodes, restarts=0, says="", without_ranks=0):
    """The run goes on elsewhere and comes to its end, with the losses of an undisturbed run.

    nodes: a pattern for the nodes of each start. restarts: how often Slurm has requeued the job. If another node has
    taken over, that is once, at the end, as Slurm takes an exit code from the job's own script alone.
    without_ranks: how many attempts found too few fit nodes.
    """
    seconds = drill.await_new_step(len(nodes))
    job, _ = drill.await_end()
    shown = drill.cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert f"Restarts={restarts} " in shown, shown
    assert re.fullmatch(";".join(nodes), ";".join(map(" ".join, starts(job.output)))), job.output
    assert says in job.output, job.output
    drill.await_no_process()
    attempts = {int(path.suffix[1:]) for path in (drill.project / "logs").glob(f"{job.id}.[0-9]*")}
    assert attempts == set(range(len(nodes) + without_ranks)), attempts  # a folder for each
    lost = drill.lost() if len(nodes) > 1 else 0
    drill.row(name, job, seconds, until="first new step", lost=lost, message=drill.said_of_nodes())
    return job


def remembered(drill):
    """Return the nodes in the file of bad nodes."""
    file = drill.project / "logs/bad_nodes"
    return [line.split("\t")[0] for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def full_shared_memory(drill, node, *options):
    """Make a node unfit: torch could not share memory between the processes of a rank any more."""
    step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    command = "mount -t tmpfs -o size=64k tmpfs /dev/shm; head -c 1M /dev/zero >/dev/shm/full || true"
    drill.cluster.run(*step, *options, "bash", "-ec", command)
    try:
        yield
    finally:
        drill.cluster.run("scancel", "--user", drill.cluster.user)  # after a failure, umount would wait for the job
        drill.cluster.run(*step, "umount", "/dev/shm")


def path_with(drill, name, script):
    """Return a PATH on which `script` comes first under the name of a program."""
    folder = drill.folder / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{PATH}"


# ---- a node dies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_another_node_dies(drill, cluster, launcher):
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER=launcher)
    drill.reach()
    drill.start_clock()
    cluster.crash("node2")
    went_on(drill, f"power failure of the second node, {launcher}, a spare", "node1 node2", "node1 node3")
    assert remembered(drill) == ["node2"]


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun-ranks"])
def test_the_first_node_dies(drill, cluster, launcher):
    """It ran the job's script: another node takes over, and hands Slurm the exit code in the end."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER=launcher)
    drill.reach()
    drill.start_clock()
    cluster.crash("node1")
    name = f"power failure of the first node, {launcher}, a spare"
    job = went_on(drill, name, "node1 node2", "node2 node3", restarts=1)
    assert "node1, on which this job's script ran, has died: node3 takes over" in job.output, job.output
    assert remembered(drill) == ["node1"]


@pytest.mark.parametrize("breakable", ["debian13", "debian14"], indirect=True)
@pytest.mark.parametrize("node", ["node1", "node2"])
def test_newer_slurm(drill, cluster, node):
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="srun", PAUSE="0.1")
    drill.reach()
    drill.start_clock()
    cluster.crash(node)
    name = f"power failure of {node}, Slurm {cluster.version}, a spare"
    others = {"node1": "node2 node3", "node2": "node1 node3"}[node]
    went_on(drill, name, "node1 node2", others, restarts=1 if node == "node1" else 0)


@pytest.mark.parametrize("breakable", ["debian13"], indirect=True)
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun-ranks"])
def test_in_apptainer(drill, cluster, sif, tmp_path_factory, launcher):
    drill.project = apptainer_project(tmp_path_factory, sif, "mpi,spares")
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER=launcher, PAUSE="0.1")
    drill.reach()
    drill.start_clock()
    cluster.crash("node2")
    went_on(drill, f"power failure of the second node, {launcher} in Apptainer, a spare", "node1 node2", "node1 node3")


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name not in ("none", "venv", "apptainer")])
def test_in_every_other_container(cluster, runtime, everywhere, surroundings, tmp_path, reference, record_property):
    """The stand-ins for the runtimes make the namespaces that the real ones make. The first node dies."""
    answers = {"site": everywhere, "runtime": runtime, "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path / "my_projects", **answers, extras="spares")
    environment = {**drills.ONE_THREAD, **surroundings(runtime, project, tmp_path, cluster)}
    get_image(cluster, project, runtime, environment)
    here = tmp_path / "here"
    here.mkdir()
    drill = SpareDrill(cluster, project, here, reference, record_property)
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="srun", PAUSE="0.1", **environment)
    drill.reach()
    drill.start_clock()
    cluster.crash("node1")
    name = f"power failure of the first node, srun, stand-in for {runtime}, a spare"
    went_on(drill, name, "node1 node2", "node2 node3", restarts=1)


def test_with_all_other_extras(drill, cluster, tmp_path_factory):
    """The job runs a copy of the sources, and its data from the nodes' disks. The first node dies."""
    drill.project = bake(tmp_path_factory.mktemp("a b") / "all", **ANSWERS, extras="all")
    (drill.folder / "data").write_text("some data")
    settings = {"SPARES": "1", "LAUNCHER": "srun", "MEASURE_EVERY": "1", "STALL_TIMEOUT": "600"}
    settings = {**drills.ONE_THREAD, **settings, "STAGE_DATA": "data", "STAGE_DIR": "/dev/shm", "SNAPSHOT": "1"}
    words = ["bash", drill.project / "slurm/submit_multinode.sh", "--nodes=2", "--", "slowly.py"]
    submitted = cluster.run(*words, *drills.RUN.split(), "--out", drill.out, cwd=drill.folder, env=settings)
    drill.jobs.append(int(re.search(r"Submitted batch job (\d+)", submitted.stdout)[1]))
    drill.reach()
    drill.start_clock()
    cluster.crash("node1")
    name = "power failure of the first node, all extras, a spare"
    job = went_on(drill, name, "node1 node2", "node2 node3", restarts=1)
    for attempt in range(2):
        logs = drill.project / f"logs/{job.id}.{attempt}"
        assert (logs / "run.json").exists() and (logs / "staged.txt").exists(), list(logs.iterdir())
        run = json.loads((logs / "run.json").read_text())
        assert run["code"]["snapshots"] and run["attempt"] == attempt, run
    assert len(run["nodes"]) == 2 and (logs / "use.txt").exists(), run


def test_an_array(drill, cluster):
    """Of the array's two jobs the second waits, and keeps the array's own number, which scontrol takes for both."""
    array = drill.submit(*ONE_SPARE, "--array=7-8%1", SPARES="1", LAUNCHER="srun")
    shown = wait_for(lambda: cluster.run("squeue", "--noheader", "--states=R", "--format=%A %F_%K").stdout, "task 7")
    number, task = shown.split()
    assert task == f"{array}_7" and int(number) != array, shown
    drill.jobs[-1] = int(number)
    cluster.run("scontrol", "hold", f"{array}_8")  # Slurm may start it once node1 is gone
    drill.reach()
    drill.start_clock()
    cluster.crash("node1")
    name = "power failure of the first node, a job of an array, a spare"
    wait_for(lambda: "takes over" in drill.output, "the other node")
    cluster.run("scancel", f"{array}_8")
    went_on(drill, name, "node1 node2", "node2 node3", restarts=1)


def test_an_allocation_of_salloc(drill, cluster):
    """The script runs where salloc was called, and needs no node that takes over."""
    script = drill.project / "slurm/run_here.sh"
    words = ["salloc", *ONE_SPARE, "bash", script, "slowly.py", *drills.RUN.split()]
    environment = {**drills.ONE_THREAD, "SPARES": "1", "LAUNCHER": "spawn", "PAUSE": "0.1"}
    with ThreadPoolExecutor() as pool:
        done = pool.submit(cluster.run, *words, "--out", drill.out, cwd=drill.folder, env=environment, check=False)
        wait_for(lambda: drill.step() >= 30 or done.done(), "step 30")
        cluster.crash("node1")
    said = done.result().stdout
    assert done.result().returncode == 0, said + done.result().stderr
    assert starts(said) == [["node1", "node2"], ["node2", "node3"]], said
    assert drill.difference() <= drills.SAME


def test_the_program_fails_after_the_first_node_has_died(drill, cluster):
    """The exit code of the run becomes that of the job."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", RAISE_AT="60", PAUSE="1")
    drill.reach(10)
    cluster.crash("node1")
    job, _ = drill.await_end()
    said = re.search(r"the run has ended with exit code (\d+)", job.output)
    assert job.state == "FAILED" and job.exit_code == int(said[1]) > 0, job.output
    assert "KeyError: 'a bug'" in job.output and "takes over" in job.output, job.output


def test_scancel_after_the_first_node_has_died(drill, cluster):
    """It reaches the script on the node that has taken over, and the ranks."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", SLOW_ATTEMPTS="2")
    drill.reach()
    drill.start_clock()
    cluster.crash("node1")
    drill.await_new_step()
    cluster.run("scancel", str(drill.job))
    job, _ = drill.await_end()
    assert job.state == "CANCELLED" and drill.attempts == 2, job.output
    drill.await_no_process()
    assert "Restarts=0 " in cluster.run("scontrol", "show", "job", str(job.id)).stdout


# Until the third attempt it waits to be asked to stop, and wants to go on.
WAITS = """\
import os, time
print("attempt", os.environ["RESTART_COUNT"], flush=True)
while int(os.environ["RESTART_COUNT"]) < 2:
    time.sleep(0.1)
    if os.path.exists(os.environ["STOP_FILE"]):
        open(os.environ["REQUEUE_FILE"], "w").close()
        break
"""


def test_the_walltime_is_over_after_the_first_node_has_died(drill, cluster):
    """Slurm warns nobody. The program is asked to save all the same, and the job goes back into the queue."""
    (drill.folder / "own.py").write_text(WAITS)
    options = [*ONE_SPARE, "--time=0:03:00"]
    drill.submit(*options, program="own.py", SPARES="1", LAUNCHER="srun", NPROC_PER_NODE="1")
    wait_for(lambda: "stand_by.sh" in str(cluster.running("node3")), "the node that stands by")
    cluster.crash("node1")
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, len(starts(job.output))) == ("COMPLETED", 0, 3), job.output
    assert "the program is asked to save and to end" in job.output, job.output


def test_a_slurmd_is_killed(drill):
    """Slurm takes the node for dead, though its ranks live on for a while."""
    drill.submit(*ONE_SPARE, SPARES="1", PAUSE="1")
    drill.reach(10)
    ranks = drill.rank(3), drill.rank(2)
    drill.start_clock()
    os.kill(drill.process("node2", "slurmd -D", daemons=True), signal.SIGKILL)
    time.sleep(1)  # a rank that the death of slurmd ended would be gone
    assert all(Path(f"/proc/{rank}").exists() for rank in ranks)
    went_on(drill, "`kill -9` of a slurmd, a spare", "node1 node2", "node1 node3")


def test_the_slurmd_of_the_first_node_is_killed(drill):
    """The job's script lives on there. It leaves the run to the node that takes over."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="srun", PAUSE="1")
    drill.reach(10)
    drill.start_clock()
    os.kill(drill.process("node1", "slurmd -D", daemons=True), signal.SIGKILL)
    name = "`kill -9` of the first node's slurmd, a spare"
    job = went_on(drill, name, "node1 node2", "node2 node3", restarts=1)
    assert "node1 is no longer part of this job: its script waits for the end" in job.output, job.output


def test_two_nodes_die_and_there_is_one_spare(drill, cluster):
    """The second time the job goes back into the queue, and asks for as many nodes as in the beginning."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", SLOW_ATTEMPTS="2")
    drill.reach()
    cluster.crash("node2")
    drill.await_new_step()
    drill.reach(drill.step() + 10)
    drill.start_clock()
    cluster.crash("node3")
    name = "two nodes die, one spare"
    says = "1 of 3 node(s) are fit, and the ranks need 2"
    job = went_on(
        drill, name, "node1 node2", "node1 node3", "node[1456] node[456]", restarts=1, says=says, without_ranks=1
    )
    assert re.findall(r"preflight: (\d) node\(s\) fit", job.output) == ["3", "2", "3"], job.output


def test_the_node_that_took_over_dies_too(drill, cluster):
    """Node4, the last of the job, takes over and runs no rank. So Slurm would let the ranks live on beside new ones."""
    drill.submit("--nodes=4", "--no-kill", SPARES="2", LAUNCHER="spawn", SLOW_ATTEMPTS="2", PAUSE="1")
    drill.reach(10)
    cluster.crash("node1")
    drill.await_new_step()
    old = [drill.rank(2), drill.rank(4)]
    drill.start_clock()
    cluster.crash("node4")
    name = "the first node dies, then its spare"
    wait_for(lambda: len(starts(drill.output)) == 3, "the third start")
    assert not any(Path(f"/proc/{number}").exists() for number in old), "the old ranks run beside the new ones"
    taken_over = re.findall("(node.), on which this job's script ran, has died: (node.) takes over", drill.output)
    assert taken_over == [("node1", "node4"), ("node4", "node3")], drill.output
    went_on(drill, name, "node1 node2", "node2 node3", "node2 node3", restarts=1)


def test_no_spare_but_fewer_nodes_will_do(drill, cluster):
    drill.submit("--nodes=2", "--no-kill", MIN_NODES="1", LAUNCHER="spawn")
    drill.reach()
    drill.start_clock()
    cluster.crash("node2")
    went_on(drill, "power failure of the second node, `MIN_NODES=1`", "node1 node2", "node1")


def test_no_spare_and_no_fewer_nodes(drill, cluster):
    """What a requeue costs on this cluster, for comparison."""
    drill.submit("--nodes=2", LAUNCHER="spawn")
    drill.reach()
    drill.start_clock()
    cluster.crash("node2")
    seconds = drill.await_new_step()
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, len(job.nodes)) == ("COMPLETED", 0, 2), job.output
    assert "node2" not in job.nodes, job.nodes
    assert "Restarts=1 " in cluster.run("scontrol", "show", "job", str(job.id)).stdout
    drill.row("power failure of the second node, no spare", job, seconds, until="first new step", lost=drill.lost())


# ---- a node is unfit -------------------------------------------------------------------------------------------------


def unfit_before_the_start(drill, fault, says, **settings):
    """Node2 is left out and remembered. The job is not requeued."""
    drill.start_clock()
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", PAUSE="0", **settings)
    went_on(drill, f"{fault} before the start, a spare", "node1 node3", says=f"node2: {says}")
    assert remembered(drill) == ["node2"]


def test_a_node_is_full_before_the_start(drill, cluster):
    with full_shared_memory(drill, "node2"):
        cluster.wait_for_nodes()
        unfit_before_the_start(drill, "a full node", "cannot write to /dev/shm (No space left on device)")


def test_a_node_hangs_before_the_start(drill):
    path = path_with(drill, "nproc", "[[ $(uname -n) != node2 ]] || sleep 600; echo 8")
    says = "no answer, stuck at: cores"
    unfit_before_the_start(drill, "a hanging node", says, PREFLIGHT_TIMEOUT="20", PATH=path)


def test_a_node_is_unfit_from_the_second_attempt_on(drill):
    drill.submit(*ONE_SPARE, SPARES="1")
    drill.reach()
    with full_shared_memory(drill, "node2", f"--jobid={drill.job}", "--overlap"):
        drill.start_clock()
        os.kill(drill.rank(3), signal.SIGKILL)
        went_on(drill, "a rank dies on a node that has become unfit, a spare", "node1 node2", "node1 node3")
    assert remembered(drill) == ["node2"]


def test_a_requeued_job_meets_an_unfit_node(drill, cluster):
    """It has no spare: it goes back into the queue without the node, as its file of bad nodes then says."""
    drill.submit("--nodes=2", LAUNCHER="spawn")
    drill.reach()
    others = ["scontrol", "update", "NodeName=node[3-6]"]
    with full_shared_memory(drill, "node2", f"--jobid={drill.job}", "--overlap"):
        cluster.run(*others, "State=DRAIN", "Reason=test")  # else the job may get two of these
        try:
            drill.start_clock()
            cluster.run("scontrol", "requeue", str(drill.job))
            wait_for(lambda: "back into the queue, to run without node2" in drill.output, "node2 to be found unfit")
        finally:
            cluster.run(*others, "State=RESUME")
        seconds = drill.await_new_step()
        job, _ = drill.await_end()
    assert (job.state, job.exit_code, len(job.nodes)) == ("COMPLETED", 0, 2), job.output
    assert "node2" not in job.nodes, job.nodes
    shown = cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert "Restarts=2 " in shown and "ExcNodeList=node2" in shown, shown
    said = re.search("back into the queue, to run without node2", job.output)[0]
    assert remembered(drill) == ["node2"]
    name = "a requeued job meets an unfit node"
    drill.row(name, job, seconds, until="first new step", lost=drill.lost(), message=said)


# ---- the program fails -----------------------------------------------------------------------------------------------


def test_a_bug_that_ends_a_rank_without_a_word(drill):
    """It may be the node's fault, so the ranks start once more; no node is blamed."""
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", ABORT_AT="10")
    drill.start_clock()
    job, seconds = drill.await_failure(within=60)
    said = re.search("two attempts have failed within ten minutes each, and no node is at fault", job.output)[0]
    assert drill.attempts == 2 and remembered(drill) == [], job.output
    drill.row("a rank aborts at step 10 of each attempt", job, seconds, message=said, lost=drill.resume())


def test_a_bug_that_says_what_it_is(drill):
    drill.submit(*ONE_SPARE, SPARES="1", LAUNCHER="spawn", RAISE_AT="10")
    drill.start_clock()
    job, seconds = drill.await_failure(within=60)
    assert drill.attempts == 1 and remembered(drill) == [], job.output
    assert job.output.count("spawn ended with exit code") == 1, job.output
    answer = drill.ask_doctor(job)
    assert (answer["way"], answer["causes"], answer["exit_code"]) == ("error", [], 1), answer
    drill.row("a rank raises an error", job, seconds, message="KeyError: 'a bug'", lost=drill.resume())


FAILS_ON_A_NODE = """\
import os, sys, time
if {where}:
    raise {error}
time.sleep(5)
"""
ON_NODE2, ON_THE_SECOND = "os.uname().nodename == 'node2'", "os.environ['RANK'] == '2'"


@pytest.mark.parametrize(
    ("where", "error", "nodes", "bad"),
    [
        # slurm/preflight.sh finds nothing, as there is no GPU.
        (ON_NODE2, "RuntimeError('CUDA error: uncorrectable ECC error')", ["node1 node2", "node1 node3"], ["node2"]),
        (ON_THE_SECOND, "OSError(116, 'Stale file handle', '/data')", ["node1 node2"] * 2, []),
        (ON_THE_SECOND, "ValueError('no samples')", ["node1 node2"], []),
    ],
    ids=["of a node", "unknown", "of the program"],
)
def test_whose_fault_an_error_is(drill, cluster, where, error, nodes, bad):
    """extras/spares/fault.py decides it from what the doctor says."""
    (drill.folder / "own.py").write_text(FAILS_ON_A_NODE.format(where=where, error=error))
    drill.submit(*ONE_SPARE, program="own.py", SPARES="1", LAUNCHER="spawn")
    job = cluster.wait(drill.job)
    assert list(map(" ".join, starts(job.output))) == nodes, job.output
    assert (job.state, remembered(drill)) == ("COMPLETED" if bad else "FAILED", bad), job.output
    reports = len(nodes) - (job.state == "COMPLETED")
    assert job.output.count("first failure: rank 2 on node2 ") == reports, job.output
    assert job.output.count("spawn ended with exit code ") == reports, job.output


def test_restarts_are_counted(drill, cluster):
    drill.submit("--nodes=4", "--no-kill", SPARES="2", MAX_RESTARTS="1", LAUNCHER="spawn", SLOW_ATTEMPTS="2")
    drill.reach()
    cluster.crash("node2")
    drill.await_new_step()
    cluster.crash("node3")
    job, _ = drill.await_failure(within=60)
    assert starts(job.output) == [["node1", "node2"], ["node1", "node3"]], job.output
    assert "MAX_RESTARTS=1 is reached" in job.output, job.output


# ---- the job has to stop while its nodes are swapped -----------------------------------------------------------------


def swap_slowly(drill, cluster, *options, **settings):
    """Bring a run to where its second node has died, and the others are being checked; that ends by go_on_swapping."""
    waits = "{ rm slow; touch checking; until [[ -e go_on ]]; do sleep 0.1; done; }"
    srun = f'[[ "$*" != *preflight_node.sh* || ! -e slow ]] || {waits}; exec /usr/bin/srun "$@"'
    settings = {"SPARES": "1", "LAUNCHER": "spawn", "PATH": path_with(drill, "srun", srun), **settings}
    drill.submit(*(options or ONE_SPARE), PREFLIGHT_TIMEOUT="600", **settings)
    drill.reach()
    (drill.folder / "slow").touch()
    drill.start_clock()
    cluster.crash("node2")
    wait_for((drill.folder / "checking").exists, "the swap")


def go_on_swapping(drill):
    (drill.folder / "go_on").touch()


def test_scancel_during_a_swap(drill, cluster):
    swap_slowly(drill, cluster)
    cluster.run("scancel", str(drill.job))
    job, seconds = drill.await_end()
    drill.assert_cancelled(job)
    assert remembered(drill) == ["node2"]  # the others do not answer any more, which is no fault of theirs
    drill.row("`scancel` during a swap", job, seconds, lost=drill.resume(), message="scancel")


def test_walltime_during_a_swap(drill, cluster):
    """The next attempt saves after its first step, and the job goes back into the queue."""
    swap_slowly(drill, cluster)
    drill.warn()
    time.sleep(5)  # bash hears the signal only when the check has ended, so nothing tells when Slurm has sent it
    go_on_swapping(drill)
    seconds = drill.await_new_step()
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, drill.attempts) == ("COMPLETED", 0, 3), job.output
    assert "back into the queue" in job.output, job.output
    _, second, third = map(int, re.findall(r"start   at step (\d+)", job.output))
    assert third == second + 1, job.output
    drill.row("early warning during a swap", job, seconds, until="first new step", lost=drill.lost())


def test_the_walltime_is_over_during_a_swap(drill, cluster):
    """Slurm ends the job; what was saved is whole."""
    swap_slowly(drill, cluster, *ONE_SPARE, "--time=0:04:00")
    job, seconds = drill.await_end(within=300)
    assert job.state == "TIMEOUT" and drill.attempts == 1, job.output
    drill.await_no_process()
    drill.row("the walltime is over during a swap", job, seconds, lost=drill.resume(), message="TIME LIMIT")


@pytest.mark.parametrize("noticed", [True, False], ids=["Slurm knows", "Slurm does not know yet"])
def test_another_node_dies_during_a_swap(drill, cluster, noticed):
    """Slurm then starts nothing on it, and may take it out of the job before the check begins there."""
    swap_slowly(drill, cluster, "--nodes=4", "--no-kill", SPARES="2")
    cluster.crash("node3")
    if noticed:
        job = ["scontrol", "show", "job", str(drill.job)]
        wait_for(lambda: " NodeList=node[1,4]\n" in cluster.run(*job).stdout, "the end of node3")
    go_on_swapping(drill)
    name = "another node dies during a swap" + ("" if noticed else ", and Slurm does not know yet")
    went_on(drill, name, "node1 node2", "node1 node4")
    assert sorted(remembered(drill)) == ["node2", "node3"]


def test_preemption(drill, cluster):
    """Slurm itself puts the job back into the queue: no node has failed."""
    drill.submit(*ONE_SPARE, SPARES="1")
    drill.reach()
    drill.start_clock()
    (drill.folder / "urgent.sh").write_text("#!/bin/sh\nsrun sleep 1\n")
    options = ["--partition=urgent", "--nodelist=node1,node2", "--exclusive"]
    urgent = cluster.sbatch(*options, drill.folder / "urgent.sh", cwd=drill.folder)
    drill.assert_requeued("preemption of a job with a spare, 10 s of grace")
    assert cluster.wait(urgent).state == "COMPLETED" and remembered(drill) == []
