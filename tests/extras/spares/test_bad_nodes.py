"""What slurm/submit_multinode.sh asks for with spare nodes, and which nodes it avoids.

The drills of test_spares.py show what becomes of such jobs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import datetime, timedelta

import pytest
from baking import bake
from slurm_cluster import PATH
from submitting import ANSWERS, cluster, python_environment


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("bad nodes"), **ANSWERS, extras="spares")


@pytest.fixture
def remember(project):
    """Write lines into the file of bad nodes: of each node the days since a fault was found, and which one."""
    file = project / "logs/bad_nodes"
    file.parent.mkdir(exist_ok=True)

    def write(*lines):
        times = [f"{datetime.now() - timedelta(days=days):%FT%T}" for _, days, _ in lines]
        text = [f"{node}\t{time}\t7\t{reason}\n" for (node, _, reason), time in zip(lines, times)]
        file.write_text("".join(text))

    yield write
    file.unlink(missing_ok=True)


@pytest.fixture
def submit(cluster, project):
    """Submit a job that is held; return what was printed, and Slurm's record of the job, or its refusal."""

    def call(*options, check=True, **environment):
        command = ["bash", project / "slurm/submit_multinode.sh", "--hold", *options, "--", "check/ranks.py"]
        done = cluster.run(*command, cwd=project, env={**python_environment(), **environment}, check=check)
        found = re.search(r"Submitted batch job (\d+)", done.stdout)
        if not found:
            return done.stdout, done.stderr
        shown = cluster.run("scontrol", "show", "job", found[1]).stdout
        cluster.run("scancel", found[1])
        return done.stderr + done.stdout, shown

    return call


def asked(shown, name):
    return re.search(rf"\b{name}=(\S+)", shown)[1]


# ---- spare nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--nodes=1"], ["-N1"], ["-N", "1"], ["--nodes", "1"]])
def test_spares_are_asked_for_beside_the_nodes(submit, options):
    said, shown = submit(*options, SPARES="1")
    assert "asking for 2 nodes: 1 for the ranks, and SPARES=1" in said and asked(shown, "NumNodes") == "2-2"


def test_spares_are_added_to_the_nodes_of_the_header(submit):
    said, shown = submit(SPARES="1")
    assert "asking for 3 nodes: 2 for the ranks, and SPARES=1" in said and asked(shown, "NumNodes") == "3-3"


def test_without_spares_nothing_is_added(submit):
    said, shown = submit()
    assert asked(shown, "NumNodes") == "2-2" and said.startswith("Submitted")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SPARES": "one"}, "SPARES='one': expected a whole number of nodes that stand by; 0: none"),
        ({"MIN_NODES": "0"}, "MIN_NODES='0': expected a whole number of nodes; empty: as many as asked for"),
        ({"MAX_RESTARTS": "-1"}, "MAX_RESTARTS='-1': expected a whole number; 0: ranks are not started again"),
        ({"BAD_NODE_DAYS": "1.5"}, "BAD_NODE_DAYS='1.5': expected whole days; 0: bad nodes are not avoided"),
    ],
)
def test_settings_are_refused(submit, settings, says):
    said, refused = submit(check=False, **settings)
    assert said == "" and refused == f"slurm/submit_multinode.sh: {says}\n"


def test_a_range_of_nodes_is_refused(submit):
    said, refused = submit("--nodes=1-2", check=False, SPARES="1")
    wanted = "--nodes=1-2: expected one whole number, to which SPARES=1 is added"
    assert said == "" and refused.startswith(f"slurm/submit_multinode.sh: {wanted}\n")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SPARES": "1"}, "SPARES=1: this job has 1 node(s), so none is left for ranks"),
        ({"MIN_NODES": "2"}, "MIN_NODES=2: the ranks of this job run on 1 node(s), without the spares"),
    ],
)
def test_a_job_with_too_few_nodes_says_so(cluster, project, settings, says):
    script = project / "slurm/submit_multinode.sh"
    job = cluster.submit("--nodes=1", script, "check/ranks.py", cwd=project, env={**python_environment(), **settings})
    assert job.exit_code == 2 and f"slurm/submit_multinode.sh: {says}\n" in job.output, job.output


# ---- bad nodes -------------------------------------------------------------------------------------------------------


def test_bad_nodes_are_avoided(submit, remember):
    """Those that the cluster knows, and whose fault is not too old; the newest fault of each is told."""
    remember(("node1", 3, "long ago"), ("node2", 1.5, "first"), ("node2", 1, "its clock is off"), ("node99", 0, "gone"))
    said, shown = submit("--nodes=1")
    assert asked(shown, "ExcNodeList") == "node2"
    lines = said.splitlines()
    assert re.fullmatch(r"without node2: its clock is off \(found by job 7, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)", lines[0])
    assert lines[1].startswith(
        "to use a node again: bash extras/spares/bad_nodes.sh forget node2. To use every node in one job: "
    )
    assert lines[2].startswith("Submitted batch job ") and len(lines) == 3
    assert asked(submit("--nodes=1", BAD_NODE_DAYS="0")[1], "ExcNodeList") == "(null)"
    assert asked(submit("--nodes=1", BAD_NODE_DAYS="9", check=False)[1], "ExcNodeList") == "node[1-2]"


def test_what_the_user_says_of_nodes_counts(submit, remember, project):
    remember(("node2", 0, "bad"))
    assert asked(submit("--nodes=1", "--exclude=node1")[1], "ExcNodeList") == "node[1-2]"
    assert asked(submit("--nodes=1", "-x", "node1")[1], "ExcNodeList") == "node[1-2]"
    (project / "to avoid").write_text("node1\n")
    assert asked(submit("--nodes=1", f"--exclude={project}/to avoid")[1], "ExcNodeList") == "node[1-2]"
    refused = submit("--nodes=1", "--exclude=no/file", check=False)[1]
    assert ": --exclude=no/file: cannot read this file; expected nodes, or a file of them\n" in refused, refused
    said, shown = submit("--nodes=1", "--nodelist=node2")
    assert (asked(shown, "ExcNodeList"), asked(shown, "ReqNodeList")) == ("(null)", "node2") and "without" not in said


def test_what_a_header_says_of_nodes_counts(submit, remember, project):
    """A line may have several options, and a reason after them."""
    remember(("node2", 0, "bad"))
    script = project / "slurm/submit_multinode.sh"
    text = script.read_text()
    line = "#SBATCH --comment='a b' --exclude=node1 # --exclude=node2\n"
    try:
        script.write_text(text.replace("#SBATCH --nodes", line + "#SBATCH --nodes", 1))
        assert asked(submit("--nodes=1")[1], "ExcNodeList") == "node[1-2]"
    finally:
        script.write_text(text)


def test_the_list_of_bad_nodes(cluster, project, remember):
    remember()

    def call(*words):
        done = cluster.run("bash", project / "extras/spares/bad_nodes.sh", *words, check=False)
        return done.returncode, done.stdout + done.stderr

    assert call() == (0, "no node was added in the last 2 day(s) (BAD_NODE_DAYS in extras/spares/settings.sh)\n")
    code, said = call("add", "node[1-2]", "slow", "by", "half")
    assert code == 0 and [line.split(maxsplit=3)[::3] for line in said.splitlines()] == [
        ["node1", "slow by half"],
        ["node2", "slow by half"],
    ]
    refused = f"extras/spares/bad_nodes.sh: forget: node3 is not in {project}/logs/bad_nodes\n"
    assert call("forget", "node[2-3]") == (2, refused) and len(call()[1].splitlines()) == 2  # nothing was forgotten
    code, said = call("forget", "node1")
    assert code == 0 and said.startswith("node2 ") and len(said.splitlines()) == 1
    for words, refused in (
        (["forget", "node1"], f"forget: node1 is not in {project}/logs/bad_nodes"),
        (["forget"], "forget: expected nodes, as in: forget node7"),
        (["add", "node1"], "add: expected nodes and a reason, as in: add node7 slow"),
        (["forget", "node."], f"forget: node. is not in {project}/logs/bad_nodes"),
        (["add", "node[1,77]", "slow"], "add: this cluster has no node node77; sinfo -N lists its nodes"),
        (
            ["add", "node1", "node2", "slow"],
            "add: 'node2' is a node too: write nodes with commas between them, as in: add node1,node2 slow",
        ),
        (["add", ",", "slow"], "add: ',' is no list of nodes; expected node7 or 'node[3-5]'"),
        (["list"], "'list' is not known: expected add, forget, or nothing to list the nodes"),
    ):
        assert call(*words) == (2, f"extras/spares/bad_nodes.sh: {refused}\n")
    assert len(call()[1].splitlines()) == 1  # what was refused has changed nothing
    assert cluster.run("bash", project / "extras/spares/bad_nodes.sh", env={"BAD_NODE_DAYS": "0"}).stdout == (
        "no node is avoided: BAD_NODE_DAYS=0 (extras/spares/settings.sh)\n"
    )


# ---- whose fault it is that the preflight finds ----------------------------------------------------------------------

NOTE = """\
PROJECT_DIR='{project}' RUN_DIR='{folder}' stop='' SLURM_RESTART_COUNT={restarts} hosts=({hosts})
source "$PROJECT_DIR/slurm/project.sh" x
source "$PROJECT_DIR/extras/spares/hooks.sh"
spares_remember() {{ :; }}
spares_note_unfit_nodes
echo "$? ${{!spares_unfit[*]}}"
"""


@pytest.mark.parametrize(
    ("hosts", "faults", "restarts", "noted"),
    [
        ("node1 node2", {"node2": "no /data"}, 0, "0 node2"),
        ("node1 node2", {"node1": "no /data", "node2": "a wrong clock"}, 0, "0 node2 node1"),
        # The project is at fault, or the other job on the first node.
        ("node1 node2", {"node1": "no /data", "node2": "no /data"}, 0, "1 "),
        ("node1", {"node1": "no /data"}, 0, "1 "),
        ("node1", {"node1": "no /data"}, 1, "0 node1"),
        ("node1 node2", {"node1": "the master's port 29500 is in use"}, 0, "1 "),
        ("node1 node2", {}, 0, "1 "),
    ],
)
def test_faults_of_nodes_and_of_the_project(project, tmp_path, hosts, faults, restarts, noted):
    if faults:
        (tmp_path / "unfit").write_text("".join(f"{node}\t{fault}\n" for node, fault in faults.items()))
    code = NOTE.format(project=project, folder=tmp_path, hosts=hosts, restarts=restarts)
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert (sorted(done.stdout.split()), done.stderr) == (sorted(noted.split()), ""), done


# ---- the folder extras/spares ----------------------------------------------------------------------------------------


def test_deleted(cluster, project, submit, remember, tmp_path):
    """A job with an unfit node ends, names it, and remembers nothing. The extra's settings are refused."""
    remember()
    own = tmp_path / "own"
    shutil.copytree(project, own, symlinks=True)
    shutil.rmtree(own / "extras/spares")
    (own / "logs").mkdir(exist_ok=True)
    (own / "logs/bad_nodes").write_text(f"node1\t{datetime.now():%FT%T}\t7\tslow\n")
    (own / "nproc").write_text("#!/bin/sh\n[ $(uname -n) = node2 ] && exec echo 1\nexec echo 8\n")
    (own / "nproc").chmod(0o755)
    command = ["bash", own / "slurm/submit_multinode.sh", "--nodes=2", "--", "check/ranks.py"]
    environment = {**python_environment(), "PATH": f"{own}:{PATH}"}
    done = cluster.run(*command, cwd=own, env=environment)
    job = cluster.wait(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))
    assert (job.state, job.exit_code) == ("FAILED", 1), job.output
    assert "Restarts=0" in cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert re.search(r"preflight: node2: one core, not SLURM_CPUS_PER_TASK=\d", job.output)
    assert "node2" not in (own / "logs/bad_nodes").read_text()
    done = cluster.run(*command, cwd=own, env={**environment, "SPARES": "1"}, check=False)
    assert done.returncode == 2 and "SPARES=1: extras/spares is not in this project" in done.stderr, done.stderr
