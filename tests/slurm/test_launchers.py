"""Every launcher on a real Slurm, with no container: the same programs, the same ranks, the same results.

Open MPI is real.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from baking import REPOSITORY, bake
from launching import OWN_PROGRAM, path_without, salloc, write_short_torchrun
from needs import needs_namespaces
from slurm_cluster import PATH, Cluster
from submitting import THIS_AND_NEWER
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import FOREVER

from cluster_options.runtimes import LAUNCHERS

TRAINING = "training/train_ddp.py --steps 3 --layers 1 --width 32 --global-batch 8"
PROGRAMS = {"check": "check/ranks.py", "pi": "pi/pi.py --intervals 1e6"}
PROGRAMS |= {"all_reduce": "benchmark/all_reduce.py --max 4K", "train": TRAINING}


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b") / "launchers", **ANSWERS, extras="mpi")


@pytest.fixture(params=["cluster", "cluster24", pytest.param("cluster26", marks=pytest.mark.drill)])
def each_slurm(request):
    """One version of Slurm, and of Open MPI, after the other."""
    cluster = request.getfixturevalue(request.param)
    needs_namespaces(cluster)
    return cluster


SHARED_OUT = (("cluster", " ".join(PROGRAMS)), ("cluster24", "check train"), ("cluster26", "check train"))


@pytest.mark.drill  # in every run test_containers.py has a small program under every launcher
@pytest.mark.parametrize(("each_slurm", "names"), SHARED_OUT, indirect=["each_slurm"])
def test_the_same_programs_give_the_same_results_under_every_launcher(each_slurm, project, tmp_path, names):
    programs = {name: PROGRAMS[name] for name in names.split()}
    lines = [
        f"LAUNCHER={launcher} bash slurm/run_here.sh {program} "
        f"{'--out' if name == 'train' else '--json'} '{tmp_path}/{launcher}.{name}'"
        for launcher in LAUNCHERS
        for name, program in programs.items()
    ]
    salloc(each_slurm, lines, cwd=project)

    def results(name):
        return {launcher: json.loads((tmp_path / f"{launcher}.{name}").read_text()) for launcher in LAUNCHERS}

    for launcher, found in results("check").items() if "check" in programs else ():
        rows = [[row[key] for key in ("rank", "host", "node_rank", "local_rank")] for row in found["rows"]]
        assert rows == [[0, "node1", 0, 0], [1, "node1", 0, 1], [2, "node2", 1, 0], [3, "node2", 1, 1]], launcher
    if "pi" in programs:
        values = [found["pi"] for found in results("pi").values()]
        assert max(values) - min(values) <= 1e-12 and abs(values[0] - 3.141592653589793) < 1e-12
        for launcher, found in results("all_reduce").items() if "all_reduce" in programs else ():
            assert found["world_size"] == 4 and all(row["wrong"] == 0 for row in found["results"]), launcher
    if "train" in programs:
        files = [tmp_path / f"{launcher}.train/metrics.jsonl" for launcher in LAUNCHERS]
        rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        losses = [[row["loss"] for row in run if "loss" in row] for run in rows]
        # in float32, and with as many threads per rank as a launcher leaves it
        assert all(abs(a - b) < 1e-5 for loss in losses for a, b in zip(loss, losses[0])), losses


# test_ends.py and test_doctor_jobs.py have the other launchers.
@pytest.mark.parametrize("launcher", [pytest.param("mpirun", marks=pytest.mark.drill), "mpirun-ranks"])
def test_a_rank_that_fails_ends_the_job(cluster, project, tmp_path, launcher):
    """The others sleep for hours; the job fails, and says why."""
    (tmp_path / "fails.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '3': sys.exit('on purpose')\ntime.sleep({FOREVER})\n"
    )
    script = project / "slurm/submit_multinode.sh"
    job = cluster.submit(script, "fails.py", cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher})
    assert job.state == "FAILED" and job.exit_code != 0, job.output
    assert "on purpose" in job.output


@pytest.mark.parametrize("each_slurm", THIS_AND_NEWER, indirect=True)
def test_ranks_are_as_many_as_the_gpus_that_were_asked_for(each_slurm, project, tmp_path):
    """One GPU of two on each node, with --exclusive: the job's record and the batch script say 2, and a step says 1."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    launchers = [launcher for launcher in LAUNCHERS if launcher != "spawn"]  # which torchrun.sh starts
    allocated, batch = (launchers, launchers) if each_slurm.root else (["srun", "mpirun-ranks"], ["torchrun"])
    wanted = [f"{rank}|2|1|host|" for rank in range(2)]
    options = ["--nodes=2", "--gpus-per-node=1", "--exclusive"]
    for place, names in (([], allocated), (["srun", "--nodes=1", "--ntasks=1"], ["srun"])):
        lines = "\n".join(f"LAUNCHER={name} bash slurm/run_here.sh '{tmp_path}/own.py'" for name in names)
        command = ["salloc", *options, "--cpus-per-task=8", *place, "bash", "-ec", lines]
        done = each_slurm.run(*command, cwd=project, env=ENVIRONMENT)
        found = re.findall(r"RESULT (\d\|\d\|\d\|host\|)", done.stdout)
        assert sorted(found) == sorted(wanted * len(names)), done.stdout + done.stderr
    write_short_torchrun(tmp_path)
    script = project / "slurm/submit_multinode.sh"
    for launcher in batch:
        job = each_slurm.submit(*options, script, "own.py", cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher})
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        assert sorted(re.findall(r"RESULT (\d\|\d\|\d\|host\|)", job.output)) == wanted, (launcher, job.output)


def test_a_site_that_counts_all_gpus_of_a_node(cluster, project, tmp_path):
    """MareNostrum 5 sets SLURM_GPUS_ON_NODE to 4 whatever was asked; here a TaskProlog does so, and prints a line."""
    prolog = tmp_path / "prolog.sh"
    prolog.write_text("#!/bin/bash\necho export SLURM_GPUS_ON_NODE=4\necho print a line of the site\n")
    prolog.chmod(0o755)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    write_short_torchrun(tmp_path)
    script = project / "slurm/submit_multinode.sh"
    with Cluster(tmp_path / "cluster", nodes=2, gpus=4, extra_conf=f"TaskProlog={prolog}") as counting:
        for launcher in ("torchrun", "srun", "mpirun-ranks"):
            environment = {**ENVIRONMENT, "LAUNCHER": launcher}
            job = counting.submit("--nodes=2", "--gpus-per-node=2", script, "own.py", cwd=tmp_path, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
            found = sorted(re.findall(r"RESULT (\d\|\d\|\d\|host\|)", job.output))
            assert found == [f"{rank}|4|6|host|" for rank in range(4)], (launcher, job.output)


@pytest.mark.drill
@pytest.mark.parametrize("gpu_option", ["--gres=gpu:", "--gpus-per-node="])
def test_half_the_gpus_of_nodes_that_are_given_whole(cluster, tmp_path, gpu_option):
    """As MareNostrum 5 gives them to jobs on several: the batch script sees four GPUs, a step the two of the header."""
    needs_namespaces(cluster)
    site = tmp_path / "half.yaml"
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    site.write_text(text.replace('gpu_option: "--gpus-per-node="', f'gpu_option: "{gpu_option}"'))
    project = bake(tmp_path, **{**ANSWERS, "site": str(site)})
    assert re.search(rf"^#SBATCH {gpu_option}2 ", (project / "slurm/minimal.sbatch").read_text(), re.MULTILINE)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    (tmp_path / "count.sh").write_text("#!/bin/bash\necho $SLURM_GPUS_ON_NODE\n")
    jobs = {name: ("submit_multinode.sh", {**ENVIRONMENT, "LAUNCHER": name}) for name in ("torchrun", "srun", "spawn")}
    jobs["no launcher"] = "minimal.sbatch", {"PATH": f"{Path(sys.executable).parent}:{PATH}"}
    with Cluster(tmp_path / "cluster", nodes=2, gpus=4) as whole:
        counted = whole.submit("--nodes=2", f"{gpu_option}2", "--exclusive", "count.sh", cwd=tmp_path).output
        assert counted == "4\n"  # what no script of the project may take for the number of ranks
        for name, (script, environment) in jobs.items():
            job = whole.submit("--exclusive", project / "slurm" / script, "own.py", cwd=tmp_path, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0), (name, job.output)
            found = sorted(re.findall(r"RESULT (\d\|\d\|\d\|host\|)", job.output))
            assert found == [f"{rank}|4|6|host|" for rank in range(4)], (name, job.output)


def test_inside_an_interactive_shell(each_slurm, project, tmp_path):
    """A step within a step, where a plain srun would wait for ever."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    lines = [f"LAUNCHER={launcher} bash slurm/run_here.sh '{tmp_path}/own.py'" for launcher in ("srun", "mpirun-ranks")]
    allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
    command = [*allocation, "srun", "--nodes=1", "--ntasks=1", "bash", "-ec", "\n".join(lines)]
    done = each_slurm.run(*command, cwd=project, env=ENVIRONMENT)
    assert done.stdout.count("|4|6|host|") == 8, done.stdout


def test_wrong_use_is_refused(cluster, project, tmp_path):
    def refused(*command, code=2, **environment):
        done = cluster.run(*command, cwd=project, env={**ENVIRONMENT, **environment}, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr

    step = ["srun", "--nodes=2", "--gpus-per-node=2"]
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "12345"}
    for launcher in ("torchrun", "spawn"):
        said = refused(*step, "--ntasks-per-node=2", "launch/torchrun.sh", "pi/pi.py", LAUNCHER=launcher)
        assert "srun started 4 tasks on 2 node(s), but one per node is wanted" in said
    said = refused(*step, "--ntasks-per-node=1", "launch/rank.sh", "pi/pi.py", **meeting)
    assert "started 2 time(s) on 2 node(s), but once per rank is wanted, 2 times on each: srun --ntasks=4" in said
    said = refused("srun", "--ntasks=2", sys.executable, "pi/pi.py", code=1)
    assert (
        "2 tasks started, but RANK is not set, so each would run as a separate job: "
        "start pi/pi.py through the submit script" in said
    )
    script = ["bash", "slurm/submit_multinode.sh"]
    assert "no program 'python3': the submit script starts Python" in refused(*script, "python3", "pi/pi.py")
    bare = path_without(tmp_path / "bin", "srun")
    assert "srun was not found after MODULES of env.sh were loaded" in refused(*script, "pi/pi.py", PATH=bare)
    script = ["bash", "slurm/run_here.sh"]
    said = refused("salloc", "--nodes=2", "--gpus-per-node=2", *script, "pi/pi.py", LAUNCHER="srun", NPROC_PER_NODE="9")
    assert "NPROC_PER_NODE=9, but the job has 1 core(s) on each node" in said
    said = refused("salloc", "--nodes=2", *script, "pi/pi.py", LAUNCHER="srun", NPROC_PER_NODE="two")
    assert "NPROC_PER_NODE='two': expected a whole number above 0" in said
