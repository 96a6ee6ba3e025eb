"""What Slurm 26.05 (fixture debian14) does otherwise than the Slurm of most tests, on a real one.

Stop signals: where a task fails, it sends the others CONT and TERM, and KILL only after KillWait
(CHANGELOG/slurm-26.05.md of its sources). Expedited requeues: a job that fails does not end. If a node's Epilog fails
too, Slurm starts the job again on other nodes; else it holds the job. Arrays and segments work as before; the test of
segments runs on Debian 13 too.

Launchers and ordinary jobs run there too, where the tests of other files name the fixture cluster26.
"""

from __future__ import annotations

import re

import pytest
from baking import REPOSITORY, bake, page
from drills import (
    TELLS,
    Drill,
    cancelled,
    launcher_stays_until_the_time_limit,
    rank_killed,
    reference,  # a fixture, which here takes breakable and project below
    warned_early,
)
from needs import cluster_of, needs_namespaces
from slurm_cluster import Nodes
from submitting import python_environment
from two_nodes import ANSWERS
from waiting import PATIENCE, wait_for

from cluster_options.runtimes import LAUNCHERS

pytestmark = pytest.mark.drill

# ---- requeues and stop signals ---------------------------------------------------------------------------------------

# A site's check of a node after a job: it fails on node NAME while a file ill.NAME lies beside it.
EPILOG = """\
#!/bin/sh
read -r name </proc/sys/kernel/hostname
test ! -e "$(dirname "$0")/ill.$name"
"""


@pytest.fixture(scope="session")
def breakable(debian14, tmp_path_factory):
    """Three nodes, of which the third is a spare. Slurm allows expedited requeues."""
    folder = tmp_path_factory.mktemp("slurm") / "x"
    folder.mkdir()
    epilog = folder / "epilog.sh"
    epilog.write_text(EPILOG)
    epilog.chmod(0o755)
    # With this KillWait, a test whose job ends at all has not waited for KILL.
    conf = f"SlurmctldParameters=enable_expedited_requeue\nEpilog={epilog}\nKillWait={4 * PATIENCE}"
    cluster = cluster_of(debian14, folder, nodes=[Nodes(2), Nodes(1, more="Weight=9")], extra_conf=conf)
    needs_namespaces(cluster)
    with cluster:
        assert cluster.version >= "26.05"
        yield cluster


@pytest.fixture
def cluster(breakable):
    """The cluster, whole again after each test."""
    yield breakable
    breakable.run("scancel", "--signal=KILL", "--full", "--user", breakable.user)  # if a test has failed
    breakable.run("scancel", "--user", breakable.user)
    for path in breakable.directory.glob("ill.*"):
        path.unlink()
        breakable.run("scontrol", "update", f"NodeName={path.suffix[1:]}", "State=RESUME", check=False)  # if drained
    breakable.wait_for_nodes()


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project for a site with `expedited_requeue: true`."""
    folder = tmp_path_factory.mktemp("a b")
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (folder / "site.yaml").write_text(f"{text}expedited_requeue: true\n")
    return bake(folder / "newest", **{**ANSWERS, "site": folder / "site.yaml", "extras": "mpi"})


@pytest.fixture
def drill(cluster, project, tmp_path, reference, record_property):
    return Drill(cluster, project, tmp_path, reference, record_property)


@pytest.fixture
def short(cluster, project, tmp_path, record_property):
    """The same without a run to compare with."""
    return Drill(cluster, project, tmp_path, {}, record_property)


def record(cluster, job):
    return cluster.run("scontrol", "show", "job", str(job)).stdout


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_early_warning(drill, cluster, launcher):
    warned_early(drill, f"early warning, {launcher}, Slurm 26.05", LAUNCHER=launcher)
    assert "ExpeditedRequeue=Yes" in record(cluster, drill.job)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_is_killed(drill, launcher):
    """The job does not wait for KILL. With a requeue, Slurm would hold it instead of ending it."""
    rank_killed(drill, f"`kill -9` of a rank, {launcher}, Slurm 26.05", "--no-requeue", LAUNCHER=launcher)


def test_scancel(drill):
    cancelled(drill, "`scancel`, Slurm 26.05")


def test_a_launcher_that_does_not_end_before_the_time_limit(short):
    launcher_stays_until_the_time_limit(short, "time limit of a minute, the launcher does not end, Slurm 26.05")


def test_one_job_of_an_array_is_requeued(short, cluster):
    """The array's other job goes on."""
    begins = "stop = Stop()\nopen('runs', 'w').close()\n"
    tells = TELLS.replace("stop = Stop()\n", begins)
    assert begins in tells
    (short.folder / "own.py").write_text(f"import os, sys\nos.chdir(os.environ['SLURM_ARRAY_TASK_ID'])\n{tells}")
    for index in "12":
        (short.folder / index).mkdir()
        for attempt in "01":
            (short.folder / index / f"start.{attempt}").touch()
    options = ["--array=1-2", "--nodes=1", "--gpus-per-node=1", "--exclusive=user", "--mem=1G", "--output=%a.out"]
    words = [*options, short.project / "slurm/submit_multinode.sh", "own.py"]
    how = python_environment(LAUNCHER="srun", NPROC_PER_NODE="1")
    array = cluster.sbatch(*words, cwd=short.folder, env=how)
    wait_for(
        lambda: all((short.folder / index / "runs").exists() for index in "12"),
        lambda: f"both jobs: {record(cluster, array)}",
    )
    cluster.run("scancel", "--signal=USR1", "--batch", f"{array}_1")
    first, second = (short.folder / f"{index}.out" for index in "12")
    wait_for(lambda: first.read_text().count("meeting at") == 2, first.read_text)
    for index in "12":
        (short.folder / index / "enough").touch()
    states = re.compile(r"ArrayTaskId=(\d).*?JobState=(\w+).*?Restarts=(\d)", re.S)

    def ended():
        shown = states.findall(record(cluster, array))
        return shown if {state for _, state, _ in shown} <= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"} else None

    assert sorted(wait_for(ended, lambda: f"both ends: {record(cluster, array)}")) == [
        ("1", "COMPLETED", "1"),
        ("2", "COMPLETED", "0"),
    ]
    assert "saved" in first.read_text() and "saved" not in second.read_text()


# Fails in its first attempt, and says on which nodes it runs.
FAILS = """\
import os, sys
print("attempt", os.environ["RESTART_COUNT"], "on", os.environ["SLURM_JOB_NODELIST"], flush=True)
if os.environ["RESTART_COUNT"] == "0":
    sys.exit("on purpose")
"""


COMMANDS = [("scontrol release {job}", "COMPLETED"), ("scancel {job}", "CANCELLED")]


@pytest.mark.parametrize(("command", "state"), COMMANDS)
def test_a_program_that_fails_on_healthy_nodes_is_held(short, cluster, command, state):
    """Each of the two commands that the page names does what it says."""
    (short.folder / "own.py").write_text(FAILS)
    job = short.submit(program="own.py", LAUNCHER="srun")
    held = "JobState=REQUEUE_HOLD Reason=job_requeued_in_held_state"
    wait_for(lambda: held in record(cluster, job), lambda: f"the hold: {record(cluster, job)}{short.output}")
    assert "on purpose" in short.output, short.output
    doctor = cluster.run("python3", short.project / "slurm/doctor.py", str(job), cwd=short.folder, check=False)
    assert "on purpose" in doctor.stdout, doctor.stdout
    cluster.run(*command.format(job=job).split())
    assert cluster.wait(job).state == state


def test_a_hold_is_explained(project):
    table = page(project, "it-does-not-work")
    assert "`job requeued in held state`" in table and "`scontrol release JOBID` runs it again" in table


def test_a_program_that_fails_ends_without_requeue(short, cluster):
    (short.folder / "own.py").write_text(FAILS)
    done = cluster.wait(short.submit("--no-requeue", program="own.py", LAUNCHER="srun"))
    assert done.state == "FAILED" and "on purpose" in done.output, done.output


def test_a_program_that_fails_on_a_faulty_node_starts_again_on_others(short, cluster):
    """The node's Epilog finds it ill, and nobody has to do anything."""
    (short.folder / "own.py").write_text(FAILS)
    (cluster.directory / "ill.node2").touch()
    job = cluster.wait(short.submit(program="own.py", LAUNCHER="srun"))
    assert (job.state, job.nodes) == ("COMPLETED", ["node1", "node3"]), job.output
    assert "attempt 0 on node[1-2]" in job.output and "attempt 1 on node[1,3]" in job.output, job.output


# ---- block topologies ------------------------------------------------------------------------------------------------

# Racks of four nodes, as topology.conf says it.
RACKS = "BlockName=rack1 Nodes=node[1-4]\nBlockName=rack2 Nodes=node[5-8]\nBlockSizes=4\n"


@pytest.mark.parametrize("debian", ["debian13", "debian14"])
def test_segments_of_a_block_topology(debian, request, tmp_path):
    """Slurm takes the segment that the project asks for, with each number of nodes that its script accepts."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (tmp_path / "site.yaml").write_text(text.replace("node:\n", "node:\n  segment: 4\n"))
    project = bake(tmp_path / "project", **{**ANSWERS, "site": tmp_path / "site.yaml", "nodes": "8"})
    script = project / "slurm/submit_multinode.sh"
    assert re.search(r"^#SBATCH --segment=4 +#", script.read_text(), re.MULTILINE)
    (tmp_path / "c/etc").mkdir(parents=True)
    (tmp_path / "c/etc/topology.conf").write_text(RACKS)
    conf = "TopologyPlugin=topology/block"
    with cluster_of(request.getfixturevalue(debian), tmp_path / "c", nodes=8, extra_conf=conf) as racks:

        def submit(*options, **environment):
            """Submit a job that is held; return what Slurm takes for its segment, or what is said against it."""
            words = ["bash", script, "--hold", "--parsable", *options, "--", "check/ranks.py"]
            done = racks.run(*words, cwd=project, env=python_environment(**environment), check=False)
            if done.returncode:
                return done.stderr
            shown = racks.run("scontrol", "show", "job", done.stdout.strip()).stdout
            return (re.search(r"SegmentSize=(\d+)", shown) or ["", "accepted"])[1]

        taken = [(), ("--nodes=8",), ("--nodes=4",), ("--nodes=2", "--segment=2"), ("--nodes=6", "--segment=3")]
        segments = ["4", "4", "4", "2", "3"]
        if racks.version < "25":  # it does not show segments: all that is seen is that sbatch accepts the job
            segments = ["accepted"] * len(taken)
        assert [submit(*options) for options in taken] == segments
        if racks.version >= "25":
            assert submit("--nodes=8", SBATCH_SEGMENT_SIZE="2") == "2"
        # Slurm refuses in words of its version.
        said = racks.run("sbatch", "--nodes=6", script, cwd=project, env=python_environment(), check=False).stderr
        known = re.search("does not fit the job size|Requested topology configuration is not available", said)
        assert known and f"{known[0]}`" in page(project, "it-does-not-work"), said
