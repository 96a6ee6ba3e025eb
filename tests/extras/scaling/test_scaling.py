"""extras/scaling/scaling.sh: a measurement for each number of nodes, locally, on a real Slurm, and in pods.

The projects have this extra alone, and lie in folders with a space in their names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from baking import REPOSITORY, bake
from needs import needs_namespaces
from runai_cluster import RunaiCluster
from slurm_cluster import PATH
from test_runai import Site
from two_nodes import ANSWERS, PYTHON_ON_CPUS
from waiting import FOREVER, PATIENCE, wait_for

TINY = ["--", "--min", "1K", "--max", "4K"]
SITES = {"local": "", "mn5": "abc", "rcp": "mlo-jdoe"}


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """One of each kind."""
    folder = tmp_path_factory.mktemp("a b")
    return {site: bake(folder / site, site=site, account=account, extras="scaling") for site, account in SITES.items()}


def scaling(project: Path, *arguments, code=0, **environment):
    done = subprocess.run(
        ["bash", project / "extras/scaling/scaling.sh", *map(str, arguments)], cwd="/", timeout=PATIENCE,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHON": sys.executable, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def measured(folder: Path) -> dict[str, int]:
    """The JSON files of a run, and how many ranks each is of."""
    return {file.stem: json.loads(file.read_text())["world_size"] for file in folder.glob("*.json")}


def report(project: Path, run: str) -> list[tuple[str, str]]:
    """Have report.py read a run of scaling.sh; return nodes and ranks of each row of its table."""
    command = [sys.executable, "extras/scaling/report.py", f"logs/scaling/{run}"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"### {run}: all_reduce of float32, in place, 4 KiB\n")
    return re.findall(r"^\| +(\d) +\| +(\d) +\|", done.stdout, re.MULTILINE)


def lines(said: str) -> list[str]:
    return [line for line in said.splitlines() if re.match("nodes |report", line)]


# ---- this machine ----------------------------------------------------------------------------------------------------


@pytest.mark.drill
def test_locally_one_after_the_other(projects):
    project = projects["local"]
    settings = {"NPROC_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": "", "LAUNCHER": "spawn"}  # imports torch once per node
    scaling(project, "2", "1", "--name", "tiny", *TINY, **settings)
    folder = project / "logs/scaling/tiny"
    assert measured(folder) == {"nodes-1": 1, "nodes-2": 2}
    kept = (folder / "nodes-2.json").stat().st_mtime_ns
    (folder / "nodes-1.json").unlink()
    said = scaling(project, "1", "2", "--name", "tiny", *TINY, **settings)
    assert lines(said) == [
        "nodes 2: logs/scaling/tiny/nodes-2.json is there",
        f"report, in {project}: python3 extras/scaling/report.py logs/scaling/tiny",
    ]
    assert measured(folder) == {"nodes-1": 1, "nodes-2": 2} and (folder / "nodes-2.json").stat().st_mtime_ns == kept
    assert report(project, "tiny") == [("1", "1"), ("2", "2")]
    assert (project / "logs/.gitignore").read_text() == "*\n"


@pytest.mark.drill
def test_a_failure_is_named_and_does_not_stop_the_others(projects):
    project = projects["local"]
    program = project / "benchmark/all_reduce.py"
    text = program.read_text()
    program.write_text("import os, sys\nsys.exit(os.environ['WORLD_SIZE'] == '2')\n")
    try:
        settings = {"NPROC_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": "", "LAUNCHER": "spawn"}
        said = scaling(project, "2", "3", "--name", "bad", code=1, **settings)
    finally:
        program.write_text(text)
    end = "failed with these numbers of nodes: 2. See above, then call it again with --name bad"
    assert said.splitlines()[-1] == f"extras/scaling/scaling.sh: {end}"


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED = [
    ([], "no number of nodes: write for example bash extras/scaling/scaling.sh 1 2 4 8"),
    (["0"], "'0' is no number of nodes: write 1 2 4 8"),
    (["2", "four"], "'four' is no number of nodes"),
    (["1-4"], "'1-4' is no number of nodes"),
    (["--max", "4G", "2"], "'--max' is no number of nodes: write 1 2 4 8, and options of all_reduce.py after --"),
    (["1", "--name"], "--name '': expected letters, digits and ._- only"),
    (["1", "--name", "a/b"], "--name 'a/b': expected letters"),
    (["1", "--name", "-x"], "--name '-x': expected letters"),
    ([""], "'' is no number of nodes"),
]


@pytest.mark.parametrize("site", SITES)
def test_wrong_use(site, projects):
    before = sorted(projects[site].rglob("*"))
    for arguments, expected in REFUSED:
        assert expected in scaling(projects[site], *arguments, code=2)
    if site == "mn5":
        said = scaling(projects[site], "1", code=2, SLURM_JOB_ID="5")
        assert "this shell is inside job 5: call it from a login node" in said
    else:
        assert "'--parallel' is no number of nodes" in scaling(projects[site], "--parallel", "1", code=2)
    assert sorted(projects[site].rglob("*")) == before


def test_help_is_the_head_of_the_file(projects):
    for site, project in projects.items():
        said = scaling(project, "--help")
        assert said.startswith("Measures all-reduce on several numbers of nodes") and said.endswith(
            "Settings: env.sh.\n"
        )
        assert ("--parallel" in said) == (site == "mn5") and ("Run:ai" in said) == (site == "rcp")
        script = (project / "extras/scaling/scaling.sh").read_text()
        assert ("squeue" in script, "runai" in script, "local/submit.sh" in script) == (
            site == "mn5", site == "rcp", site == "local"
        )  # fmt: skip


# ---- Slurm -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(cluster, tmp_path_factory):
    """The cluster and a project on it."""
    needs_namespaces(cluster)
    return cluster, bake(tmp_path_factory.mktemp("a b") / "slurm", extras="scaling", **ANSWERS)


def submit(slurm, *arguments, check=True, **more):
    cluster, project = slurm
    environment = {**PYTHON_ON_CPUS, "NPROC_PER_NODE": "1", "LAUNCHER": "spawn", **more}
    command = ["bash", project / "extras/scaling/scaling.sh", *arguments]
    return cluster.run(*command, cwd=cluster.home, env=environment, check=check)


def dependency(cluster, job):
    return re.search(r"Dependency=(\S+)", cluster.run("scontrol", "show", "job", job).stdout)[1]


@contextmanager
def occupied(cluster):
    """Run a job on all nodes, so that every other job waits; it is cancelled at the end."""
    blocker = cluster.sbatch(
        "--exclusive", f"--nodes={len(cluster.nodes)}", f"--wrap=sleep {FOREVER}", cwd=cluster.home
    )
    try:
        wait_for(lambda: cluster.run("squeue", "-h", "-o%T", f"--jobs={blocker}").stdout == "RUNNING\n", "a job runs")
        yield
    finally:
        cluster.run("scancel", str(blocker))
        cluster.wait(blocker)


def test_on_slurm_in_a_chain(slurm):
    cluster, project = slurm
    folder = project / "logs/scaling/chain"
    with occupied(cluster):
        said = lines(submit(slurm, "--name", "chain", "1", "2", *TINY).stdout)
        first, second = (re.fullmatch(rf"nodes {nodes}: job (\d+)", line)[1] for nodes, line in zip("12", said))
        assert dependency(cluster, second).startswith(f"afterany:{first}")
        again = lines(submit(slurm, "--name", "chain", "1", "2", *TINY).stdout)
        assert again[:2] == [f"nodes {nodes}: job {job} waits or runs" for nodes, job in ((1, first), (2, second))]
    for job in (first, second):
        done = cluster.wait(int(job))
        assert (done.state, done.exit_code) == ("COMPLETED", 0), done.output
    assert measured(folder) == {"nodes-1": 1, "nodes-2": 2}
    assert (folder / f"nodes-2-{second}.out").exists() and "busbw" in (folder / f"nodes-2-{second}.out").read_text()
    (folder / "nodes-1.json").unlink()  # as if the job had failed
    said = lines(submit(slurm, "--name", "chain", "1", "2", *TINY).stdout)
    third = re.fullmatch(r"nodes 1: job (\d+)", said[0])[1]
    assert int(third) > int(second) and dependency(cluster, third) == "(null)"
    assert said[1:] == [
        "nodes 2: logs/scaling/chain/nodes-2.json is there",
        f"report, in {project}: python3 extras/scaling/report.py logs/scaling/chain",
    ]
    assert cluster.wait(int(third)).state == "COMPLETED"
    assert measured(folder) == {"nodes-1": 1, "nodes-2": 2}
    assert report(project, "chain") == [("1", "1"), ("2", "2")]
    assert (project / "logs/.gitignore").read_text() == "*\n"


def test_on_slurm_without_the_folder_of_the_extra(slurm, tmp_path):
    """Deleted by hand: jobs run as before, and the results stay."""
    cluster, project = slurm
    copy = tmp_path / "with out"
    shutil.copytree(project, copy)
    results = copy / "logs/scaling/kept/nodes-1.json"
    results.parent.mkdir(parents=True)
    results.write_text("{}\n")
    shutil.rmtree(copy / "extras/scaling")
    environment = {**PYTHON_ON_CPUS, "NPROC_PER_NODE": "1"}
    words = ["bash", copy / "slurm/submit_multinode.sh", "--parsable", "--nodes=2", "--", "check/hello.py"]
    job = cluster.wait(int(cluster.run(*words, cwd=copy, env=environment).stdout))
    assert (job.state, job.exit_code) == ("COMPLETED", 0) and "rank 1 of 2" in job.output, job.output
    assert results.exists()


def test_on_slurm_behind_a_job_that_waits(slurm):
    """New jobs wait for all that are left of an earlier call, whichever numbers of nodes are named now."""
    cluster, project = slurm
    with occupied(cluster):
        waiting = re.search(r"job (\d+)", submit(slurm, "--name", "behind", "2", *TINY).stdout)[1]
        said = submit(slurm, "--name", "behind", "1", *TINY).stdout
        last = re.search(r"nodes 1: job (\d+)", said)[1]
        assert dependency(cluster, last).startswith(f"afterany:{waiting}")
        assert f"nodes 2: job {waiting} waits or runs" in submit(slurm, "--name", "behind", "2", *TINY).stdout
        (project / "logs/scaling/behind/nodes-1.job").write_text("99999\n")  # which Slurm does not know
        again = re.search(r"nodes 1: job (\d+)", submit(slurm, "--name", "behind", "1", *TINY).stdout)[1]
        assert dependency(cluster, again).startswith(f"afterany:{waiting}") and int(again) > int(last)
        free = re.search(r"nodes 1: job (\d+)", submit(slurm, "--parallel", "--name", "free", "2", "1", *TINY).stdout)[
            1
        ]
        assert dependency(cluster, free) == "(null)"
        cluster.run("scancel", "--state=PENDING", f"--user={cluster.user}")


def test_on_slurm_nothing_is_submitted_while_squeue_does_not_answer(slurm, tmp_path):
    """The job may still run, and a second one would write the same file."""
    project = slurm[1]
    job = project / "logs/scaling/silent/nodes-1.job"
    job.parent.mkdir(parents=True)
    job.write_text("5\n")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    done = submit(slurm, "--name", "silent", "1", *TINY, check=False, PATH=f"{tmp_path}:{PATH}")
    assert done.returncode == 2 and "squeue does not say whether job 5 still waits or runs: slurm_load" in done.stderr
    assert sorted(path.name for path in job.parent.iterdir()) == ["nodes-1.job"] and job.read_text() == "5\n"


def test_on_slurm_what_is_refused_is_named(slurm):
    """More nodes than there are; the others are submitted all the same."""
    cluster, _ = slurm
    done = submit(slurm, "--name", "large", "999", "1", *TINY, check=False)
    assert done.returncode == 1
    job = re.search(r"nodes 1: job (\d+)", done.stdout)[1]
    assert "failed with these numbers of nodes: 999. See above" in done.stderr and "sbatch: error" in done.stderr
    assert cluster.wait(int(job)).state == "COMPLETED"


def test_on_slurm_no_more_jobs_than_the_queue_takes(slurm, tmp_path):
    """A job that waits for another counts too. Another queue may take more."""
    cluster, _ = slurm
    site = tmp_path / "few.yaml"
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    site.write_text(text + "partitions: {main: {max_jobs: 2, default: true}}\n")
    slurm = cluster, bake(tmp_path, **{**ANSWERS, "site": site, "partition": "main", "extras": "scaling"})
    try:
        with occupied(cluster):
            first = submit(slurm, "--name", "few", "1", "2", "3", "4", *TINY, check=False)
            assert (first.returncode, len(re.findall(r"nodes [12]: job \d+\n", first.stdout))) == (1, 2), first.stdout
            assert "nodes 3 4: not submitted, as main takes 2 of your jobs at a time" in first.stderr
            again = submit(slurm, "--name", "few", "1", "2", "3", "4", *TINY, check=False)
            assert (again.returncode, again.stdout.count(" waits or runs\n")) == (1, 2), again.stdout
            assert "nodes 3 4: not submitted, as main" in again.stderr
            other = submit(slurm, "--name", "few", "1", "2", "3", *TINY, SBATCH_PARTITION="main")
            assert re.search(r"nodes 3: job \d+\n", other.stdout), other.stdout
    finally:
        cluster.run("scancel", "--state=PENDING", f"--user={cluster.user}")


# ---- Run:ai ----------------------------------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.skipif(bool(RunaiCluster.missing()), reason=f"no pods: {RunaiCluster.missing()}")
@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_in_pods(generation, tmp_path):
    with Site(tmp_path, generation, extras="scaling") as site:
        folder = site.project / "logs/scaling/pods"
        folder.mkdir(parents=True)
        site.own()

        def call(*counts):
            done = site.script(*counts, "--name", "pods", *TINY, name="../extras/scaling/scaling.sh")
            assert done.returncode == 0, done.stdout + done.stderr
            return lines(done.stdout)

        jobs = [re.fullmatch(r"nodes \d: job (\S+)", line)[1] for line in call("1", "2")[:2]]
        assert len({*jobs}) == 2
        for name in jobs:
            job = site.cluster.wait(name)
            assert job.state == "Succeeded", job.output
        assert measured(folder) == {"nodes-1": 1, "nodes-2": 2}
        (folder / "nodes-2.json").unlink()
        said = call("1", "2")
        assert said[0] == "nodes 1: logs/scaling/pods/nodes-1.json is there"
        again = re.fullmatch(r"nodes 2: job (\S+)", said[1])[1]
        assert again not in jobs and call("2")[0] == f"nodes 2: job {again} waits or runs"
        assert site.cluster.wait(again).state == "Succeeded"
        assert measured(folder) == {"nodes-1": 1, "nodes-2": 2}
