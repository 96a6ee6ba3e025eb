"""The written project on a real Slurm: jobs of two nodes, as a user would submit them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from baking import bake, page
from launching import OWN_PROGRAM as RANKS_MEET
from slurm_cluster import PATH, Cluster, reachable
from submitting import (
    ANSWERS,
    STRAY,
    THIS_AND_NEWER,
    cluster,
    each_slurm,
    project,
    python_environment,
    spawn_environment,
    usual_slurm,
)
from waiting import FOREVER, wait_for

# A user's own program: it knows nothing of this project.
OWN_PROGRAM = """\
import os, sys
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
threads = os.environ["OMP_NUM_THREADS"]
# one write: of a line in pieces, torchrun's --tee may prefix each
sys.stdout.write(f"sum {total.item()} of {dist.get_world_size()} {sys.argv[1:]} threads {threads}\\n")
dist.destroy_process_group()
"""


def set_default_steps(project, steps):
    """Let a training that is given no --steps make fewer than 200."""
    arguments = project / "training/lm/arguments.py"
    assert arguments.read_text().count("default=200,") == 1
    arguments.write_text(arguments.read_text().replace("default=200,", f"default={steps},"))


def result(folder, name="result.json"):
    return json.loads((folder / name).read_text())


# ---- as the README says ----------------------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.parametrize(
    ("usual_slurm", "steps", "loss"), [("cluster", "200", 2.6), ("cluster26", "8", 4.6)], indirect=["usual_slurm"]
)
def test_first_job(usual_slurm, tmp_path, steps, loss):
    """With no argument, from another folder than the project. test_first_run.py has a shorter one in every run."""
    project = bake(tmp_path / "a b", **ANSWERS)
    set_default_steps(project, steps)
    job = usual_slurm.submit(project / "slurm/submit_multinode.sh", cwd=tmp_path, env=python_environment())
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    metrics = [json.loads(line) for line in (tmp_path / "runs/train/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert len(losses) == int(steps) and losses[0] > 5 and losses[-1] < loss
    assert (tmp_path / "runs/train/latest").exists()
    assert (tmp_path / f"demo-{job.id}.out").read_text() == job.output
    logs = project / f"logs/{job.id}.0"
    assert {"node0-node1", "node1-node2"} <= {path.name for path in logs.iterdir()}
    assert len(list(logs.rglob("stdout.log"))) == 4


@pytest.mark.drill
def test_first_job_of_three_nodes(cluster, tmp_path):
    """Six ranks cannot share 32 sequences equally: the default batch follows their number."""
    project = bake(tmp_path / "project", **{**ANSWERS, "nodes": "3"})
    set_default_steps(project, 3)
    job = cluster.submit(project / "slurm/submit_multinode.sh", cwd=tmp_path, env=python_environment())
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "batch   36 sequences = 6 (ranks)" in job.output
    assert "step 3/3  validation loss" in job.output


# Runs programs one after the other, each in a process of its own. These are forked from one that has imported torch, as
# the import takes most of a short job.
IN_TURN = """\
import importlib, json, os, runpy, sys
from torch.distributed import PrefixStore
rendezvous = importlib.import_module("torch.distributed.rendezvous")
store_of_torchrun = rendezvous._create_c10d_store
for number, words in enumerate(json.loads(sys.argv[1])):
    if (process := os.fork()) == 0:
        # Else the ranks would find the addresses of those of the program before.
        own_store = lambda *args, **kwargs: PrefixStore(str(number), store_of_torchrun(*args, **kwargs))
        rendezvous._create_c10d_store = own_store
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    if code := os.waitpid(process, 0)[1]:
        sys.exit(f"{words[0]} ended with status {code}")
"""


@pytest.fixture(scope="module", params=THIS_AND_NEWER)
def four_programs(request, project, tmp_path_factory):
    """The folder and the output of a job under torchrun, submitted from a login shell full of stray variables."""
    slurm = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("four programs")
    (folder / "in_turn.py").write_text(IN_TURN)
    programs = [
        ["check/ranks.py", "--json", "check.json"],
        ["pi/pi.py", "--intervals", "1e7", "--json", "pi.json"],
        ["benchmark/all_reduce.py", "--min", "1K", "--max", "1M", "--factor", "32", "--json", "reduce.json"],
        ["training/train_ddp.py", "--steps", "5", "--layers", "1", "--width", "32", "--out", "out put"],
    ]
    programs = [[str(project / name), *words] for name, *words in programs]
    command = ["bash", project / "slurm/submit_multinode.sh", "in_turn.py", json.dumps(programs)]
    submitted = slurm.run(*command, cwd=folder, env=python_environment(**STRAY))
    job = slurm.wait(int(submitted.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    return folder, job.output


def test_check(four_programs):
    folder, output = four_programs
    rows = result(folder, "check.json")["rows"]
    assert [(row["host"], row["local_rank"]) for row in rows] == [(f"node{n}", r) for n in (1, 2) for r in (0, 1)]
    assert [row["node_rank"] for row in rows] == [0, 0, 1, 1]
    assert "all-reduce over 4 rank(s) on 2 host(s): right" in output


def test_pi(four_programs):
    folder, output = four_programs
    assert "3.14159265358979" in output
    found = result(folder, "pi.json")
    assert (found["world_size"], found["hosts"]) == (4, 2)
    assert abs(found["error"]) < 1e-13


def test_all_reduce(four_programs):
    reduced = result(four_programs[0], "reduce.json")
    assert reduced["world_size"] == 4 and len(reduced["results"]) == 3
    for row in reduced["results"]:
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 2 * 3 / 4)
        assert row["wrong"] == 0


def test_training(four_programs):
    folder, output = four_programs
    assert "ranks   4 (cpu, float32)" in output
    assert len(losses(folder / "out put")) == 5 and (folder / "out put/checkpoint-00000005.pt").exists()


def test_a_job_that_ends_well_says_nothing_of_its_end(four_programs):
    assert "exit code" not in four_programs[1]


@pytest.mark.drill
def test_programs_one_after_the_other(usual_slurm, project, tmp_path):
    """Programs, one after the other in one job, submitted by a relative path from slurm/."""
    (tmp_path / "own.py").write_text("import os\nprint(os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE'])\n")
    programs = [f"check/ranks.py --json '{tmp_path}/0.json'", f"'{tmp_path}/own.py'", "check/hello.py"]
    lines = [f"bash run_here.sh {program}" for program in programs]
    environment = python_environment(**STRAY)
    command = ["salloc", "--nodes=2", "--gpus-per-node=2", "bash", "-ec", "\n".join(lines)]
    done = usual_slurm.run(*command, cwd=project / "slurm", env=environment)
    rows = result(tmp_path, "0.json")["rows"]
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert {row["host"] for row in rows} == {"node1", "node2"}
    assert [row["local_rank"] for row in rows] == [0, 1, 0, 1]
    assert sorted(re.findall(r"\] (\d) of 4$", done.stdout, re.M)) == ["0", "1", "2", "3"], done.stdout
    hello = sorted(re.findall(r"\] rank (\d) of 4 on (node\d)", done.stdout))
    assert hello == [("0", "node1"), ("1", "node1"), ("2", "node2"), ("3", "node2")], done.stdout
    assert done.stdout.count("] the sum of all ranks is 6") == 1, done.stdout


# Waits until all ranks of both jobs are there.
TOGETHER = """\
import os, time
open("there." + os.environ["SLURM_JOB_ID"] + "." + os.environ["RANK"], "x").close()
while sum(name.startswith("there.") for name in os.listdir()) < 8:
    time.sleep(0.1)
"""


def test_two_jobs_at_once(usual_slurm, project, tmp_path):
    """On the same nodes: --exclusive=user weakens the --exclusive of the header. The ranks of each job meet."""
    shared = ["--nodelist=node1,node2", "--exclusive=user", "--cpus-per-task=2", "--gpus-per-node=1", "--mem=1G"]
    (tmp_path / "own.py").write_text(TOGETHER + RANKS_MEET)
    command = [*shared, project / "slurm/submit_multinode.sh", "own.py"]
    environment = python_environment(LAUNCHER="srun", NPROC_PER_NODE="2")
    numbers, ports = [usual_slurm.sbatch(*command, cwd=tmp_path, env=environment) for _ in range(2)], set()
    for job in map(usual_slurm.wait, numbers):
        assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ["node1", "node2"]), job.output
        found = sorted(re.findall(r"RESULT (\d\|4\|6)\|", job.output))
        assert found == [f"{rank}|4|6" for rank in range(4)], job.output
        ports.add(re.search(r"meeting at node1:(\d+)", job.output)[1])
    assert len(ports) == 2


@pytest.mark.drill
def test_one_device_and_sharded_on_two_nodes_learn_the_same(cluster, project, tmp_path):
    """As training/README.md submits them; the second half of the sharded run is resumed from its checkpoint."""
    tiny = ["--layers", "1", "--width", "32", "--context", "32", "--dtype", "float64", "--decay-steps", "6"]
    script = project / "slurm/submit_multinode.sh"
    runs = [
        (
            "single",
            ["--nodes=1", "--gpus-per-node=1"],
            ["--steps", "6"],
            {"NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1"},
        ),
        ("fsdp", ["--nodes=2", "--gpus-per-node=2"], ["--steps", "3"], {}),
        ("fsdp", ["--nodes=2", "--gpus-per-node=2"], ["--steps", "6", "--resume"], {}),
    ]
    for name, options, more, settings in runs:
        words = [*tiny, *more, "--out", tmp_path / name]
        command = [*options, script, f"training/train_{name}.py", *words]
        job = cluster.wait(cluster.sbatch(*command, cwd=tmp_path, env=python_environment(**settings)))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "ranks   4 (cpu, float64)" in job.output and "start   at step 3\n" in job.output
    single, fsdp = (losses(tmp_path / name) for name in ("single", "fsdp"))
    assert len(single) == len(fsdp) == 6
    assert max(abs(a - b) for a, b in zip(single, fsdp)) <= 1e-14


def losses(folder):
    """Return the losses of a training, step by step."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def test_a_program_of_ones_own_in_a_project_of_ones_own(usual_slurm, project, tmp_path):
    """env.sh, launch/ and slurm/ are all that has to be copied; quotes and spaces in arguments survive."""
    mine = tmp_path / "my work"
    mine.mkdir()
    for part in ("env.sh", "launch", "slurm"):
        (shutil.copytree if (project / part).is_dir() else shutil.copy2)(project / part, mine / part)
    (mine / "my program.py").write_text(OWN_PROGRAM)
    # Elsewhere four_programs is submitted from such a shell, and under torchrun.
    environment = python_environment(**STRAY) if usual_slurm.root else spawn_environment()
    job = usual_slurm.submit(
        "slurm/submit_multinode.sh", "my program.py", "a b", '"', "$HOME", cwd=mine, env=environment
    )
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    for rank, node in enumerate(["node1", "node1", "node2", "node2"]):
        assert f"[{node}:{rank}] sum 6.0 of 4 ['a b', '\"', '$HOME'] threads 1" in job.output, job.output
    nothing = usual_slurm.run("bash", "slurm/submit_multinode.sh", cwd=mine, env=python_environment(), check=False)
    assert nothing.returncode == 2
    assert "no program 'training/train_ddp.py'" in nothing.stderr and "name a Python file or a module" in nothing.stderr


# As main.py --multiprocessing-distributed of pytorch/examples and launch() of detectron2 do.
SPAWNS = """\
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist, torch.multiprocessing as mp

def worker(local_rank, ranks_per_node, url):
    rank = int(os.environ["RANK"]) * ranks_per_node + local_rank
    world_size = int(os.environ["WORLD_SIZE"]) * ranks_per_node
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    sys.stdout.write(f"sum {total.item()} of {world_size}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    url = sys.argv[1].replace("ADDRESS", os.environ["MASTER_ADDR"])
    mp.spawn(worker, nprocs=2, args=(2, url))
"""


def test_a_program_that_starts_its_own_ranks(usual_slurm, project, tmp_path):
    """Under torchrun no rank may host the store, and all would wait: refused, with the command that works."""
    (tmp_path / "main.py").write_text(SPAWNS)
    script = project / "slurm/submit_multinode.sh"
    for environment in ({}, {"NPROC_PER_NODE": "1"}, {"LAUNCHER": "srun"}, {"LAUNCHER": "spawn"}):
        command = ["bash", script, "--nodes=2", "--", "main.py", "env://"]
        done = usual_slurm.run(*command, cwd=tmp_path, env=python_environment(**environment), check=False)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert "main.py starts its own ranks, so it has to be started once per node" in done.stderr
        way = re.search(r"LAUNCHER=srun NPROC_PER_NODE=1 bash slurm/submit_multinode.sh main.py$", done.stderr, re.M)
        assert way, done.stderr
    job = usual_slurm.submit(script, "main.py", "env://", cwd=tmp_path, env=python_environment())
    assert (job.state, job.exit_code) == ("FAILED", 2) and "starts its own ranks" in job.output, job.output
    line = "LAUNCHER=srun NPROC_PER_NODE=1 bash slurm/submit_multinode.sh main.py --multiprocessing"
    assert line in page(project, "your-own-program")
    if not usual_slurm.root:  # among the drills as it stands, each of its ranks imports torch
        spawns = "mp.spawn(worker, nprocs=2, args=(2, url))"
        assert spawns in SPAWNS
        forks = spawns.replace("mp.spawn", "mp.start_processes").replace("url))", 'url), start_method="fork")')
        (tmp_path / "main.py").write_text(SPAWNS.replace(spawns, forks))
    for url in ("env://", "tcp://ADDRESS:23456")[: 2 if usual_slurm.root else 1]:  # both among the drills
        environment = python_environment(LAUNCHER="srun", NPROC_PER_NODE="1")
        job = usual_slurm.submit(script, "main.py", url, cwd=tmp_path, env=environment)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        assert job.output.count("sum 6.0 of 4") == 4, job.output


@pytest.mark.drill
def test_torchrun_keeps_ranks_waiting_that_were_spawned(cluster, project, tmp_path):
    """The reason of the refusal; where this fails, torch has learnt better, and the refusal can go."""
    (tmp_path / "main.py").write_text(SPAWNS.replace("seconds=60", "seconds=10") + "# LOCAL_RANK: not refused\n")
    environment = python_environment(NPROC_PER_NODE="1")
    job = cluster.submit(
        project / "slurm/submit_multinode.sh", "main.py", "tcp://ADDRESS:23456", cwd=tmp_path, env=environment
    )
    assert job.state == "FAILED" and "timed out" in job.output and "sum" not in job.output, job.output


def test_console_scripts_run_by_path(cluster, project, tmp_path):
    (tmp_path / "mytrain").write_text("#!/somewhere/venv/bin/python3\nimport os\nprint('rank', os.environ['RANK'])\n")
    script = project / "slurm/run_here.sh"
    command = ["salloc", "--nodes=1", "--gpus-per-node=2", "bash", script, tmp_path / "mytrain"]
    done = cluster.run(*command, cwd=project, env=python_environment())
    assert sorted(re.findall(r"rank \d", done.stdout)) == ["rank 0", "rank 1"], done.stdout


def test_copied_into_a_repository(cluster, project, tmp_path):
    """The page's own command: the job has the repository's name, and git lists neither outputs nor logs."""
    own = tmp_path / "my own work"
    (own / ".git").parent.mkdir()
    for name in ("launch", "slurm"):
        shutil.copytree(project / name, own / name)
    shutil.copy(project / "env.sh", own)
    (own / "train.py").write_text("print('done')\n")
    (own / ".gitignore").write_text("*.tmp\n")

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *words], cwd=own, check=True, capture_output=True, text=True).stdout

    section = page(project, "your-own-program").partition("## Take it into your own project\n")[2]
    *_, command = re.findall(r"```bash\n(.*?)```", section, re.S)
    subprocess.run(["bash", "-euc", command], cwd=own, check=True)
    assert (own / ".gitignore").read_text().startswith("*.tmp\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    job = cluster.submit("slurm/submit_multinode.sh", "train.py", cwd=own, env=python_environment(LAUNCHER="srun"))
    assert job.exit_code == 0, job.output
    assert f"JobName={'my-own-work'}\n" in cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert (own / f"my-own-work-{job.id}.out").exists() and (own / f"logs/{job.id}.0").exists()
    assert git("status", "--porcelain", "--untracked-files=all") == ""


@pytest.mark.parametrize(
    ("header", "typed"), [("--gpus-per-node=2", "--gres=gpu:1"), ("--gres=gpu:2", "--gpus-per-node=1")]
)
def test_gpus_asked_for_by_the_other_option(usual_slurm, tmp_path, header, typed):
    """Refused, with the option of the #SBATCH lines, which works; so does the newest Slurm."""
    project = bake(tmp_path / "project", **ANSWERS)
    script = project / "slurm/submit_multinode.sh"
    script.write_text(script.read_text().replace("#SBATCH --gpus-per-node=2 ", f"#SBATCH {header} "))
    (tmp_path / "own.py").write_text("import os\nprint('ranks:', os.environ['WORLD_SIZE'])\n")
    how = {"cwd": tmp_path, "env": python_environment(LAUNCHER="srun")}
    done = usual_slurm.run("bash", script, *typed.split("=", 1), "--", "own.py", **how, check=False)
    told = re.search(r"ask for GPUs with (\S+)N; use that", done.stderr)
    assert done.returncode == 2 and told, done.stderr
    submitted = usual_slurm.run("bash", script, f"{told[1]}1", "--", "own.py", **how)
    job = usual_slurm.wait(int(submitted.stdout.split()[-1]))
    assert (job.state, job.exit_code, job.output.count("ranks: 2")) == ("COMPLETED", 0, 2), job.output
    if usual_slurm.version >= "26":
        refused = usual_slurm.run("sbatch", typed, script, "own.py", **how, check=False)
        said = "--gpus-per-node and --gres=gpu are mutually exclusive"
        assert refused.returncode != 0 and said in refused.stderr, refused.stderr
        assert f"`{said}`" in page(project, "it-does-not-work")


def test_submitting_submits_inside_an_allocation_too(usual_slurm, project, tmp_path):
    """From a shell of salloc of one node: a job of its own size, and a line that names the other command."""
    (tmp_path / "own.py").write_text("import os\nprint('ranks:', os.environ['WORLD_SIZE'])\n")
    words = ["bash", project / "slurm/submit_multinode.sh", "own.py"]
    how = {"cwd": tmp_path, "env": python_environment(LAUNCHER="srun")}
    done = usual_slurm.run("salloc", "--nodes=1", "--nodelist=node3", "--ntasks=3", *words, **how)
    number = re.search(r"Submitted batch job (\d+)", done.stdout)[1]
    outer = re.search(r"Granted job allocation (\d+)", done.stderr)[1]
    assert f"This shell is in job {outer}, and this submits another job." in done.stderr, done.stderr
    assert "bash slurm/run_here.sh PROGRAM.py" in done.stderr
    job = usual_slurm.wait(int(number))
    assert (job.state, job.exit_code, job.output.count("ranks: 4")) == ("COMPLETED", 0, 4), job.output


READS = """\
import os, sys, time
if os.environ["RANK"] == "0":
    print("read", sys.stdin.readline().strip(), flush=True)
open(sys.argv[1] + os.environ["RANK"], "w").close()
time.sleep(3600)
"""


def test_a_shell_of_salloc_has_standard_input_and_ctrl_c(cluster, project, tmp_path):
    """What is typed reaches the ranks; SIGINT of the terminal's process group ends them, and the shell goes on."""
    (tmp_path / "reads.py").write_text(READS)
    run = (
        f"set -m; bash '{project}/slurm/run_here.sh' reads.py '{tmp_path}/rank' < <(echo typed; sleep 1000) & run=$!\n"
    )
    run += f"until [[ -e '{tmp_path}/rank0' && -e '{tmp_path}/rank1' ]]; do sleep 0.1; done\n"
    run += "kill -INT -- -$run; wait $run; echo code $?; squeue --noheader --steps --jobs=$SLURM_JOB_ID --format=%i"
    command = ["salloc", "--nodes=2", "--gpus-per-node=1", "bash", "-c", run]
    done = cluster.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER="srun", NPROC_PER_NODE="1"))
    assert "read typed" in done.stdout and "code 130" in done.stdout, done.stdout + done.stderr
    assert not re.search(r"^\d+\.\d+$", done.stdout, re.M), done.stdout  # no step of the ranks is left


def test_runs_in_one_allocation_have_folders_and_ports_of_their_own(cluster, project, tmp_path):
    """And each starts anew: RESTART_COUNT is 0."""
    (tmp_path / "own.py").write_text("import os\nprint('RESULT', os.environ['RESTART_COUNT'], os.environ['RUN_DIR'])\n")
    run = f"bash '{project}/slurm/run_here.sh' own.py"
    command = ["salloc", "--nodes=1", "--gpus-per-node=1", "bash", "-c", f"{run} & {run}; wait"]
    done = cluster.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER="srun", NPROC_PER_NODE="1"))
    runs, ports = re.findall(r"RESULT 0 (.*)$", done.stdout, re.M), re.findall(r"meeting at \S+:(\d+)", done.stdout)
    assert len(set(runs)) == len(set(ports)) == 2, done.stdout


def test_a_renamed_copy_of_the_submit_script(cluster, tmp_path):
    """In any folder of the project, with a header of its own."""
    own = bake(tmp_path / "a b", **ANSWERS, extras="none")
    script = own / "experiments/large run.sh"
    script.parent.mkdir()
    text = (own / "slurm/submit_multinode.sh").read_text()
    script.write_text(text.replace("#SBATCH --job-name=demo ", "#SBATCH --job-name=large "))
    (own / "own.py").write_text("print('RESULT')\n")
    environment = python_environment(LAUNCHER="srun")
    for command in (["bash"], ["sbatch"]):
        done = cluster.run(*command, "large run.sh", "own.py", cwd=script.parent, env=environment)
        job = cluster.wait(int(done.stdout.split()[-1]))
        assert (job.state, job.exit_code, job.output.count("RESULT")) == ("COMPLETED", 0, 4), job.output
        assert (script.parent / f"large-{job.id}.out").exists() and (own / f"logs/{job.id}.0").is_dir()


def test_a_step_of_ones_own_that_fails_without_a_word(cluster, project):
    """The job ends before its ranks start, and says at which line."""
    script = project / "own step.sh"
    text = (project / "slurm/submit_multinode.sh").read_text()
    script.write_text(text.replace("\nrun_program ", "\ntest -d /nowhere\nrun_program "))
    job = cluster.submit(script, "pi/pi.py", cwd=project, env={"PREFLIGHT": "0"})
    line = script.read_text().splitlines().index("test -d /nowhere") + 1
    said = f"slurm/submit_multinode.sh, line {line}: test -d /nowhere failed, which ends the job\n"
    assert job.state == "FAILED" and job.output.endswith(said), job.output


def test_a_job_of_version_1_2_that_waited_through_an_update(cluster, project, tmp_path):
    """It looks for slurm/lib.sh, which says what to do."""
    old = "#!/bin/bash\n#SBATCH --nodes=1\n"
    old += f"[[ -f '{project}/slurm/lib.sh' ]] && source '{project}/slurm/lib.sh' slurm/submit_multinode.sh\necho no\n"
    (tmp_path / "old.sh").write_text(old)
    job = cluster.submit(tmp_path / "old.sh", cwd=tmp_path)
    assert (job.state, job.exit_code) == ("FAILED", 2) and job.output.endswith("submit it again\n"), job.output


@pytest.mark.parametrize(
    "when", [pytest.param("before the settings", marks=pytest.mark.drill), "while the nodes are checked"]
)
def test_a_request_to_save_that_comes_early(cluster, tmp_path, when):
    """USR1 by hand counts at any time of the job: the program finds STOP_FILE when it starts, and goes on later."""
    own = bake(tmp_path / "a b", **ANSWERS, extras="none")
    name = "env.sh" if when == "before the settings" else "slurm/preflight.sh"
    waits = (
        "if [[ -n ${SLURM_JOB_ID:-} && ! -e told ]]; then touch waits; until [[ -e told ]]; do sleep 0.1; done; fi\n"
    )
    first, rest = (own / name).read_text().split("\n", 1)
    (own / name).write_text(f"{first}\n{waits}{rest}")
    text = "import os\nif os.path.exists(os.environ['STOP_FILE']): open(os.environ['REQUEUE_FILE'], 'w')\n"
    (own / "own.py").write_text(text + "print('RESULT', os.environ['RESTART_COUNT'])\n")
    environment = python_environment(LAUNCHER="srun")
    number = cluster.sbatch("--nodes=1", "slurm/submit_multinode.sh", "own.py", cwd=own, env=environment)
    wait_for((own / "waits").exists, "the job")
    cluster.run("scancel", "--signal=USR1", "--batch", str(number))
    (own / "told").touch()
    job = cluster.wait(number)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert [job.output.count(f"RESULT {attempt}") for attempt in (0, 1)] == [2, 2], job.output


def test_submitted_from_inside_another_job(usual_slurm, project, tmp_path):
    """From another project's interactive shell of one core: the new job has its own project, all cores and its GPUs."""
    (tmp_path / "own.py").write_text("import os\nprint(os.environ['SLURM_CPUS_PER_TASK'] + ' cores')\n")
    other = bake(tmp_path / "other", **ANSWERS)
    submit = f"SLURM_CPU_BIND=mask_cpu:0x1 PROJECT_DIR='{other}' CUDA_VISIBLE_DEVICES=7 SLURM_GPUS_ON_NODE=5"
    submit += f" sbatch --parsable '{project}/slurm/submit_multinode.sh' own.py"
    command = ["srun", "--nodes=1", "--cpus-per-task=1", "--ntasks-per-node=1", "bash", "-c", submit]
    job = usual_slurm.wait(int(usual_slurm.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER="srun")).stdout))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(": 4 cores") == 4, job.output  # of each node two ranks, which share its eight
    assert (project / f"logs/{job.id}.0").is_dir() and not (other / "logs").exists()


def test_submitted_from_a_job_of_an_array(cluster, project, tmp_path):
    """Slurm hands on that job's SLURM_ARRAY_* and SLURM_RESTART_COUNT; a requeue would be of the other job."""
    (tmp_path / "own.py").write_text("import os, sys\nprint('RESULT', os.environ['RESTART_COUNT'], *sys.argv[1:])\n")
    script, output = project / "slurm/submit_multinode.sh", tmp_path / "inner.out"
    inner = f"SLURM_RESTART_COUNT=3 sbatch --parsable --nodes=1 --output='{output}' '{script}' '{tmp_path}/own.py'"
    (tmp_path / "outer.sh").write_text(f"#!/bin/bash\n{inner} %a\n")
    environment = {"PYTHON": sys.executable, "LAUNCHER": "srun"}
    outer = cluster.submit(
        "--array=3", "--nodes=1", "--exclusive=user", tmp_path / "outer.sh", cwd=tmp_path, env=environment
    )
    assert outer.state == "COMPLETED", outer.output
    job = cluster.wait(int(outer.output))
    assert (job.state, "RESULT 0 %a" in output.read_text()) == ("COMPLETED", True), job.output


def test_nodes_that_differ(each_slurm, project, tmp_path):
    """Eight cores of one node and two of the other: the step takes what both have."""
    (tmp_path / "own.py").write_text("import os\nprint(os.environ['SLURM_CPUS_PER_TASK'] + ' cores')\n")
    script = project / "slurm/run_here.sh"
    command = ["salloc", "--nodes=2", "--ntasks=10", "bash", script, "own.py"]
    done = each_slurm.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER="srun", CPU_RANKS_PER_NODE="1"))
    assert len(re.findall(r": 2 cores", done.stdout)) == 2, done.stdout + done.stderr


@pytest.mark.drill
def test_wait_gives_the_exit_code_of_the_job(cluster, project, tmp_path):
    command = ["bash", project / "slurm/submit_multinode.sh", "--wait", "--", "pi/pi.py", "--intervals", "no"]
    done = cluster.run(*command, cwd=tmp_path, env=python_environment(), check=False)
    assert done.returncode in {1, 143}, done.stderr


def test_a_module_and_an_allocation(usual_slurm, project, tmp_path):
    """slurm/run_here.sh runs at once, and -m runs a module; the number of nodes is the allocation's.

    Under torchrun it is one node, as torchrun imports torch on each.
    """
    (tmp_path / "package").mkdir()
    (tmp_path / "package/own.py").write_text("import os, sys\nprint(os.environ['RANK'], __package__, *sys.argv[1:])\n")
    script = project / "slurm/run_here.sh"
    for launcher, nodes, gpus in (("srun", 3, 1), ("torchrun", 1, 2)):
        options = [f"--nodes={nodes}", f"--gpus-per-node={gpus}"]
        command = ["salloc", *options, "bash", script, "-m", "package.own", "x"]
        done = usual_slurm.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER=launcher))
        found = re.findall(r"(\d) package x", done.stdout)  # the end of a line may come with the label of the next one
        assert sorted(found) == [str(rank) for rank in range(nodes * gpus)], done.stdout + done.stderr


def test_no_python_is_started_before_the_launcher(cluster, tmp_path):
    """An import of torch costs a second: whatever is called python on PATH notes its call, and ends."""
    project = bake(tmp_path / "project", **ANSWERS, extras="none")
    for name in ("python", "python3"):
        (tmp_path / name).write_text(f"#!/bin/bash\necho \"$(hostname) $*\" >>'{tmp_path}/calls'\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{PATH}"}
    command = ["bash", "slurm/submit_multinode.sh", "--nodes=2", "--", "pi/pi.py"]
    submitted = cluster.run(*command, cwd=project, env=path)
    assert cluster.wait(int(submitted.stdout.split()[-1])).exit_code == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    login, *calls = sorted(calls)
    assert login.startswith("login -c import importlib.util, sys") and "import torch" not in login
    assert [call.split(" --")[0] for call in calls] == [f"node{n} -m torch.distributed.run" for n in (1, 2)]


def test_nodes_side_by_side(project, tmp_path):
    """Where namespaces are not allowed: two slurmd on this machine, whose names are addresses of its loopback."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "c", nodes=2, namespaces=False) as cluster:
        (tmp_path / "own.py").write_text(RANKS_MEET)
        script = project / "slurm/submit_multinode.sh"
        job = cluster.submit(script, "own.py", cwd=tmp_path, env=python_environment(LAUNCHER="srun"))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        assert job.output.count("|4|6|host|") == 4, job.output


# ---- exit codes and refusals -----------------------------------------------------------------------------------------


def test_gpus_that_torch_does_not_see_fail_the_check(cluster, project, tmp_path):
    """The invented GPUs are just that case."""
    words = ["--nodes=1", project / "slurm/submit_multinode.sh", "check/ranks.py"]
    job = cluster.submit(*words, cwd=tmp_path, env=spawn_environment(ALLOW_CPU=""))
    assert job.state == "FAILED"
    assert "FAULT: rank(s) 0, 1 on node1 were given GPUs (CUDA_VISIBLE_DEVICES=0,1), but torch" in job.output


@pytest.mark.drill  # in every run test_ends.py and test_doctor_jobs.py have such programs
def test_a_failing_program_fails_the_job(usual_slurm, project, tmp_path):
    (tmp_path / "fails.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '3': sys.exit('on purpose')\ntime.sleep({FOREVER})\n"
    )
    job = usual_slurm.submit(project / "slurm/submit_multinode.sh", "fails.py", cwd=tmp_path, env=python_environment())
    assert job.state == "FAILED" and job.exit_code != 0
    assert "on purpose" in job.output


def test_help_is_the_head_of_the_file(cluster, project):
    done = cluster.run("bash", "slurm/submit_multinode.sh", "--help", cwd=project)
    assert done.stdout.startswith("Runs a PyTorch program on all nodes") and "SAVE_SECONDS" in done.stdout
    assert "#SBATCH --" not in done.stdout and "find_project" not in done.stdout
    done = cluster.run("bash", "slurm/run_here.sh", "--help", cwd=project)
    assert done.stdout.startswith("Runs a PyTorch program on all nodes of the allocation")
    assert "shellcheck" not in done.stdout  # a line for another program, at the end of the head


def test_what_is_known_to_fail_is_not_queued(cluster, project, tmp_path):
    def refused(*arguments, env=None, cwd=project):
        script = project / "slurm/submit_multinode.sh"
        done = cluster.run(
            "bash", script, *arguments, cwd=cwd, env={**python_environment(), **(env or {})}, check=False
        )
        assert done.returncode == 2, done.stdout
        assert done.stdout == ""
        return done.stderr

    assert "no program 'nosuch.py'" in refused("nosuch.py")
    assert "build it with 'bash slurm/build_venv.sh'" in refused("pi/pi.py", env={"RUNTIME": "venv"})
    assert "RUNTIME='docker' is not known" in refused("pi/pi.py", env={"RUNTIME": "docker"})
    assert "pythonn was not found" in refused("pi/pi.py", env={"PYTHON": "pythonn"})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    bare = {"RUNTIME": "venv", "VENV": str(tmp_path / "empty"), "PYTHON": "python3"}
    assert "python3 has no torch: set MODULES or PYTHON in env.sh" in refused("pi/pi.py", env=bare)
    assert "no program '-m'" in refused("-m")
    assert "MAX_REQUEUES='no': expected a whole number" in refused("pi/pi.py", env={"MAX_REQUEUES": "no"})
    said = refused("pi/pi.py", env={"CPU_RANKS_PER_NODE": "0"})
    assert "CPU_RANKS_PER_NODE='0': expected a whole number above 0" in said
    assert "LAUNCHER='horovod' is not known" in refused("pi/pi.py", env={"LAUNCHER": "horovod"})
    assert "options for sbatch end with --" in refused("--nodes=2", "pi/pi.py")
    too_many = ["bash", "slurm/submit_multinode.sh", "--nodes=99", "--", "pi/pi.py"]
    many = cluster.run(*too_many, cwd=project, env=python_environment(), check=False)
    assert many.returncode == 1
    assert "If sbatch refused the job: list your accounts with 'sacctmgr -nP show associations user=" in many.stderr
    assert not cluster.run("squeue", "--noheader").stdout
    (tmp_path / "own.py").write_text("print('RESULT')\n")
    options = ["--nodes=2", "--time=00:31:00", "--", "own.py"]
    environment = python_environment(LAUNCHER="srun")
    done = cluster.run("bash", project / "slurm/submit_multinode.sh", *options, cwd=tmp_path, env=environment)
    job = int(done.stdout.split()[-1])
    assert "TimeLimit=00:31:00" in cluster.run("scontrol", "show", "job", str(job)).stdout
    assert cluster.wait(job).exit_code == 0


def test_checks_are_made_first_thing_in_a_job_too(cluster, project, tmp_path):
    job = cluster.submit(
        project / "slurm/submit_multinode.sh", "pi/pi.py", cwd=tmp_path, env={"RUNTIME": "venv", "SNAPSHOT": "0"}
    )
    assert (job.state, job.exit_code) == ("FAILED", 2)
    assert job.output.count("\n") == 1 and "no virtual environment" in job.output
    job = cluster.submit(
        project / "slurm/submit_multinode.sh", "x.py", cwd=tmp_path, env=python_environment(LAUNCHER="horovod")
    )
    assert (job.state, job.exit_code) == ("FAILED", 2)


def test_one_rank_with_one_core_is_found(cluster, project):
    """For real: the step is bound to one core of this machine, which has more."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "check/ranks.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"FAULT: rank\(s\) 0 on \S+ may use one core of \d+: pass --cpus-per-task", done.stdout)
    assert " gloo tcp " in done.stdout, "the ranks are connected all the same"


# ---- later attempts, other users -------------------------------------------------------------------------------------


@pytest.mark.drill
def test_a_requeued_job_keeps_its_output_and_gets_logs_of_its_own(cluster, project, tmp_path):
    (tmp_path / "waits.py").write_text(
        f"import os, time\nprint('here', flush=True)\nif not os.path.exists('go'): time.sleep({FOREVER})\n"
    )
    job = cluster.sbatch(
        "--requeue", project / "slurm/submit_multinode.sh", "waits.py", cwd=tmp_path, env=python_environment()
    )
    output = tmp_path / f"demo-{job}.out"
    wait_for(lambda: output.exists() and output.read_text().count("here") == 4)
    (tmp_path / "go").touch()
    cluster.run("scontrol", "requeue", str(job))
    done = cluster.wait(job)
    assert (done.state, done.exit_code) == ("COMPLETED", 0), done.output
    assert done.output.count("here") == 8
    ports = re.findall(r"meeting at \S+:(\d+)", done.output)
    assert len(set(ports)) == 2
    assert (project / f"logs/{job}.0").is_dir() and (project / f"logs/{job}.1").is_dir()


def test_as_an_ordinary_user():
    """The whole of it, cluster and job, without the rights of root."""
    if os.geteuid() != 0:
        pytest.skip("all other tests are run by an ordinary user already")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    if reachable(Path(sys.executable).resolve(), "nobody") and reachable(sys.executable, "nobody"):
        environment = spawn_environment()
    else:  # the tests' own Python lies in a home that others may not enter; the system's can read its packages
        environment = {"PYTHON": "/usr/bin/python3", "PYTHONPATH": packages, "LAUNCHER": "spawn"}
    if not reachable(packages, "nobody"):
        pytest.skip(f"nobody may not enter {packages}: a folder above it is closed to others")
    folder = Path(tempfile.mkdtemp(prefix="user-"))
    try:
        folder.chmod(0o755)
        project = bake(folder / "a b", **ANSWERS)
        subprocess.run(["chown", "-R", "nobody", folder], check=True)
        with Cluster(folder / "c", nodes=2, user="nobody") as cluster:
            command = ["slurm/submit_multinode.sh", "pi/pi.py", "--intervals", "1e6"]
            job = cluster.submit(*command, cwd=project, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
            assert "4 ranks" in job.output
            assert (project / f"demo-{job.id}.out").owner() == "nobody"
    finally:
        shutil.rmtree(folder)
