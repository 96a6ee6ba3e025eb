"""What the newest Slurm does otherwise, on a real one: stop signals, requeues, expedited requeues, arrays, segments.

Where a task fails, 26.05 sends the others CONT and TERM, and KILL only after KillWait (CHANGELOG/slurm-26.05.md). The
launchers and the jobs of an ordinary day run there too, where the tests of the other files name the fixture cluster26.
"""

from __future__ import annotations

import os
import re
import signal

import pytest
from baking import REPOSITORY, bake, page
from drills import OWN_PROGRAM, TELLS, Drill, first_failure, reference
from needs import cluster_of, needs_namespaces
from submitting import python_environment
from two_nodes import ANSWERS
from waiting import wait_for

from cluster_options.runtimes import LAUNCHERS

# ---- requeues and stop signals ---------------------------------------------------------------------------------------

# As a site checks a node after a job: this one finds node NAME ill if there is a file ill.NAME.
EPILOG = """\
#!/bin/sh
read -r name </proc/sys/kernel/hostname
test ! -e "$(dirname "$0")/ill.$name"
"""
HELD = "Reason=job_requeued_in_held_state"


@pytest.fixture(scope="session")
def breakable(debian14, tmp_path_factory):
    """Three nodes of a cluster that allows expedited requeues."""
    folder = tmp_path_factory.mktemp("slurm") / "x"
    folder.mkdir()
    epilog = folder / "epilog.sh"
    epilog.write_text(EPILOG)
    epilog.chmod(0o755)
    conf = f"SlurmctldParameters=enable_expedited_requeue\nEpilog={epilog}\nKillWait=30"
    cluster = cluster_of(debian14, folder, nodes=3, extra_conf=conf)
    needs_namespaces(cluster)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(breakable):
    yield breakable
    breakable.run("scancel", "--user", breakable.user)
    for path in breakable.directory.glob("ill.*"):
        path.unlink()
        breakable.run("scontrol", "update", f"NodeName={path.suffix[1:]}", "State=RESUME")
    breakable.wait_for_nodes()


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project for a site that says so."""
    folder = tmp_path_factory.mktemp("a b")
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (folder / "site.yaml").write_text(f"{text}expedited_requeue: true\n")
    return bake(folder / "newest", **{**ANSWERS, "site": folder / "site.yaml"})


@pytest.fixture
def drill(cluster, project, tmp_path, reference, record_property):
    return Drill(cluster, project, tmp_path, reference, record_property)


@pytest.fixture
def short(cluster, project, tmp_path, record_property):
    """The same without a run to compare with."""
    return Drill(cluster, project, tmp_path, {}, record_property)


def record(cluster, job):
    return cluster.run("scontrol", "show", "job", str(job)).stdout


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_early_warning(drill, cluster, launcher):
    drill.submit(LAUNCHER=launcher)
    drill.reach()
    drill.start_clock()
    assert "ExpeditedRequeue=Yes" in record(cluster, drill.job)
    cluster.run("scancel", "--signal=USR1", "--batch", str(drill.job))
    drill.assert_requeued(f"early warning, {launcher}, Slurm 26.05")


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_is_killed(drill, launcher):
    """The others are told to end, which the training takes for a stop request: the job ends no later for that."""
    drill.submit("--no-requeue", LAUNCHER=launcher)
    drill.reach()
    drill.start_clock()
    os.kill(drill.rank(3), signal.SIGKILL)
    job, seconds = drill.await_failure(within=30)
    said = first_failure(job.output, rank=3, node="node2")
    lost = drill.resume()
    drill.row(f"`kill -9` of a rank, {launcher}, Slurm 26.05", job, seconds, message=said, lost=lost)


@pytest.mark.drill
def test_scancel(drill, cluster):
    drill.submit()
    drill.reach()
    drill.start_clock()
    cluster.run("scancel", str(drill.job))
    job, seconds = drill.await_end(within=30)
    drill.assert_cancelled(job)
    lost = drill.resume()
    assert lost == 0, job.output
    drill.row("`scancel`, Slurm 26.05", job, seconds, lost=lost)


@pytest.mark.drill
def test_a_launcher_that_does_not_end_before_the_time_limit(short):
    """The program has saved, and Slurm ends all: the job goes on at once."""
    (short.folder / "tells.py").write_text(TELLS)
    for attempt in "01":
        (short.folder / f"start.{attempt}").touch()
    short.submit("--nodes=1", "--time=1", program="tells.py", LINGER="1", LAUNCHER="srun", NPROC_PER_NODE="1")
    wait_for(lambda: "saved" in short.output, "the end of the walltime")
    (short.folder / "enough").touch()
    short.start_clock()
    seconds = short.await_restart(within=120)
    job, _ = short.await_end()
    assert (job.state, job.exit_code, short.attempts) == ("COMPLETED", 0, 2), job.output
    name = "time limit of a minute, the launcher does not end, Slurm 26.05"
    short.row(name, job, seconds, until="running again", lost=0, compare=False)


@pytest.mark.drill
def test_one_job_of_an_array_is_requeued(short, cluster):
    """The others go on, and each has its index."""
    (short.folder / "own.py").write_text("import os, sys\nos.chdir(sys.argv[1])\n" + OWN_PROGRAM)
    for index in "12":
        (short.folder / index).mkdir()
    options = ["--array=1-2", "--nodes=1", "--gpus-per-node=1", "--exclusive=user", "--mem=1G", "--output=%a.out"]
    words = [*options, short.project / "slurm/submit_multinode.sh", "own.py", "%a"]
    how = python_environment(LAUNCHER="srun", NPROC_PER_NODE="1")
    array = cluster.sbatch(*words, cwd=short.folder, env=how)
    outputs = [short.folder / f"{index}.out" for index in "12"]
    wait_for(lambda: all(path.exists() and "starts at" in path.read_text() for path in outputs), "both jobs")
    cluster.run("scancel", "--signal=USR1", "--batch", f"{array}_1")
    states = re.compile(r"ArrayTaskId=(\d).*?JobState=(\w+).*?Restarts=(\d)", re.S)

    def ended():
        shown = states.findall(record(cluster, array))
        return shown if {state for _, state, _ in shown} == {"COMPLETED"} else None

    assert sorted(wait_for(ended, "both ends")) == [("1", "COMPLETED", "1"), ("2", "COMPLETED", "0")]
    assert [(short.folder / index / "count").read_text() for index in "12"] == ["100", "100"]


# Fails in its first attempt, and says on which nodes it runs.
FAILS = """\
import os, sys
print("attempt", os.environ["RESTART_COUNT"], "on", os.environ["SLURM_JOB_NODELIST"], flush=True)
if os.environ["RESTART_COUNT"] == "0":
    sys.exit("on purpose")
"""


@pytest.mark.drill
def test_a_program_that_fails_on_healthy_nodes_is_held(short, cluster):
    """Its output and the doctor say so, and either of the two commands goes on."""
    (short.folder / "own.py").write_text(FAILS)
    how = {"program": "own.py", "LAUNCHER": "srun"}
    for command, state in (("release", "COMPLETED"), ("scancel", "CANCELLED")):
        job = short.submit(**how)
        wait_for(lambda: HELD in record(cluster, short.job), "the hold")
        line = rf"Slurm now holds this job: 'scontrol release {job}' runs it again, 'scancel {job}' ends it"
        assert line in short.output and "on purpose" in short.output, short.output
        assert "JobState=REQUEUE_HOLD" in record(cluster, job)
        doctor = cluster.run("python3", short.project / "slurm/doctor.py", str(job), cwd=short.folder, check=False)
        assert "on purpose" in doctor.stdout and "has not ended" not in doctor.stdout, doctor.stdout
        cluster.run(*(["scontrol", "release"] if command == "release" else ["scancel"]), str(job))
        assert cluster.wait(job).state == state
    held = page(short.project, "it-does-not-work")
    assert "`job requeued in held state`" in held and "`scontrol release JOBID` runs it again" in held
    job = short.submit("--no-requeue", **how)
    done = cluster.wait(job)
    assert done.state == "FAILED" and "Slurm now holds" not in done.output, done.output


@pytest.mark.drill
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


@pytest.mark.parametrize("debian", ["debian13", pytest.param("debian14", marks=pytest.mark.drill)])
def test_segments_of_a_block_topology(debian, request, tmp_path):
    """Slurm takes the segment that the project asks for, with each number of nodes that it lets pass."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (tmp_path / "site.yaml").write_text(text.replace("node:\n", "node:\n  segment: 4\n"))
    project = bake(tmp_path / "project", **{**ANSWERS, "site": tmp_path / "site.yaml", "nodes": "8"})
    script = project / "slurm/submit_multinode.sh"
    assert "#SBATCH --segment=4 " in script.read_text()
    (tmp_path / "c/etc").mkdir(parents=True)
    (tmp_path / "c/etc/topology.conf").write_text(RACKS)
    conf = "TopologyPlugin=topology/block"
    with cluster_of(request.getfixturevalue(debian), tmp_path / "c", nodes=8, extra_conf=conf) as racks:

        def submit(*options, command=("bash",), end=("--", "check/ranks.py"), **environment):
            words = [*command, script, "--test-only", *options, *end]
            return racks.run(*words, cwd=project, env=python_environment(**environment), check=False)

        taken = ([], ["--nodes=8"], ["--nodes=4"], ["--nodes=2"], ["--nodes=1"], ["--nodes=6", "--segment=3"])
        for options in taken:
            done = submit(*options)
            assert done.returncode == 0 and " to start at " in done.stderr, (options, done.stderr)
        assert submit("--nodes=6", SBATCH_SEGMENT_SIZE="2").returncode == (0 if racks.version >= "25" else 1)
        refused = submit("--nodes=6")
        assert refused.returncode == 2 and "needs a multiple of 4 here; use 4 or 8, or add" in refused.stderr
        # sbatch alone is told by Slurm
        said = racks.run("sbatch", "--nodes=6", script, cwd=project, env=python_environment(), check=False).stderr
        known = re.search("does not fit the job size|Requested topology configuration is not available", said)
        assert known and f"{known[0]}`" in page(project, "it-does-not-work"), said
