"""What the user's shell, another job or an edited header leaves to a job, and to the srun of a written project."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import bake
from launching import write_short_torchrun
from submitting import ANSWERS, cluster, project, python_environment, usual_slurm
from two_nodes import ENVIRONMENT

# Each rank writes one line, in one write. Without torch, whose import would take most of the time.
WHERE = """\
import os, sys
e = os.environ
words = [e["RANK"], e["WORLD_SIZE"], e["SLURMD_NODENAME"], e["LOCAL_RANK"], e.get("CUDA_VISIBLE_DEVICES", "-")]
words += [str(os.path.dirname(os.path.abspath(__file__)) in sys.path), e.get("FOO", "-")]
sys.stdout.write("WHERE " + " ".join(words) + "\\n")
"""
# Rank, world size, node, local rank and GPUs as each job of two nodes with two GPUs has them.
RIGHT = [f"{2 * node + gpu} 4 node{node + 1} {gpu} 0,1" for node in (0, 1) for gpu in (0, 1)]
LAUNCHERS = ["torchrun", "srun"]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "where.py"
    path.write_text(WHERE)
    return path


@pytest.fixture
def own(tmp_path):
    """A project that the test may edit."""
    return bake(tmp_path / "own", **ANSWERS, extras="snapshot,spares")


def ranks(output):
    """Return rank, world size, node, local rank and GPUs of each rank, in the order of the ranks."""
    return sorted(" ".join(line.split()[:5]) for line in re.findall(r"WHERE (.*)", output))


def submit(cluster, project, *words, **environment):
    """Submit with the project's own command; return the job at its end."""
    command = ["bash", "slurm/submit_multinode.sh", *words]
    done = cluster.run(*command, cwd=project, env=python_environment(**environment), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return cluster.wait(int(done.stdout.split()[-1]))


def refused(cluster, project, *words, **environment):
    """Return what the project's own command says when it refuses to submit."""
    command = ["bash", "slurm/submit_multinode.sh", *words]
    done = cluster.run(*command, cwd=project, env=python_environment(**environment), check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Submitted" not in done.stdout
    return done.stderr


def edit_header(project, old, *new):
    """Replace the #SBATCH line that begins with `old`."""
    script = project / "slurm/submit_multinode.sh"
    lines = "\n".join(f"#SBATCH {option}" for option in new)
    text, count = re.subn(rf"(?m)^#SBATCH {old}.*$", lines, script.read_text())
    assert count == 1
    script.write_text(text)


# ---- options of srun in the environment ------------------------------------------------------------------------------

# Values that would end the step, or change what it prints. Each other variable gets a 1.
HOSTILE = {
    "SLURM_ARBITRARY_NODELIST": "nowhere",
    "SLURM_CLUSTERS": "elsewhere",
    "SLURM_CONSTRAINT": "nothing",
    "SLURM_CPU_BIND": "mask_cpu:0x1",
    "SLURM_DEBUG_FLAGS": "Gres",  # Slurm 26.05 refuses another word, also in scontrol
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_GPU_BIND": "single:1",
    "SLURM_GRES": "gpu:1",
    "SLURM_HINT": "multithread",
    "SLURM_MPI_TYPE": "nothing",
    "SLURM_PARTITION": "nowhere",
    "SLURM_STDOUTMODE": "none",
    "SLURM_STEP_GRES": "gpu:1",
    "SLURM_WORKING_DIR": "/",
    "SRUN_EXPORT_ENV": "NONE",
    "SRUN_OUTPUT": "none",
}
# What srun reads, and Slurm sets anew in each job.
OF_THE_JOB = {"SLURM_CONF", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES"}
OF_THE_JOB |= {"SLURM_NNODES"}


def variables_of_srun():
    """Return the names that srun's manual page lists; those of Slurm 22.05 that matter most, where there is none."""
    page = Path("/usr/share/man/man1/srun.1.gz")
    names = set(HOSTILE) | {"SLURM_EXCLUSIVE", "SLURM_GPUS", "SLURM_NTASKS_PER_GPU", "SLURM_SRUN_MULTI"}
    if page.exists():
        text = gzip.decompress(page.read_bytes()).decode()
        text = text[text.index('"INPUT ENVIRONMENT VARIABLES"') : text.index('"OUTPUT ENVIRONMENT VARIABLES"')]
        names |= set(re.findall(r"(?m)^\\fB(S(?:LURM|RUN)_[A-Z_0-9]+)", text))
        assert len(names) > 90
    return names - OF_THE_JOB


@pytest.mark.parametrize(
    ("script", "launcher"),
    [
        ("slurm/submit_multinode.sh", "srun"),
        pytest.param("slurm/submit_multinode.sh", "torchrun", marks=pytest.mark.drill),
        ("slurm/minimal.sbatch", "torchrun"),
    ],
)
def test_options_of_srun_that_another_shell_left(usual_slurm, project, program, tmp_path, script, launcher):
    """All at once, given to the job alone: sbatch itself would refuse some of them."""
    left = ",".join(f"{name}={HOSTILE.get(name, '1')}" for name in sorted(variables_of_srun()))
    environment = python_environment(LAUNCHER=launcher)
    if script == "slurm/minimal.sbatch":
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its python3
        write_short_torchrun(tmp_path)
    words = ["--gpus-per-node=2", f"--export=ALL,{left}", project / script, program]
    job = usual_slurm.submit(*words, cwd=tmp_path, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert ranks(job.output) == RIGHT, job.output


@pytest.mark.parametrize("source", ["env.sh", "module", "site"])
def test_options_of_srun_that_the_project_sets(cluster, tmp_path, program, source):
    """They reach srun: ranks are dealt out between the nodes, as SLURM_DISTRIBUTION says."""
    answers = dict(ANSWERS)
    environment = {}
    if source == "site":
        text = (Path(__file__).parents[2] / "sites/slurm.yaml").read_text()
        answers["site"] = str(tmp_path / "lab.yaml")
        (tmp_path / "lab.yaml").write_text(
            text + "environment: [{name: SLURM_DISTRIBUTION, value: cyclic, why: for a test}]\n"
        )
    own = bake(tmp_path / "own", **answers)
    if source == "env.sh":
        with open(own / "env.sh", "a") as settings:
            settings.write("export SLURM_DISTRIBUTION=cyclic\n")
    elif source == "module":
        settings = own / "env.sh"
        settings.write_text(settings.read_text().replace("\nMODULES=()", '\nMODULES=("mpi")'))
        environment = {"BASH_FUNC_module%%": '() { [[ "$*" != *load* ]] || export SLURM_DISTRIBUTION=cyclic; }'}
    job = submit(cluster, own, program, LAUNCHER="srun", SLURM_DISTRIBUTION="block", **environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    nodes = [line.split()[2] for line in ranks(job.output)]
    assert nodes == ["node1", "node2", "node1", "node2"], job.output


def test_options_of_sbatch_count(cluster, project, program):
    """SBATCH_* are the user's: they replace the header's lines, as sbatch(1) says."""
    job = submit(cluster, project, program, LAUNCHER="srun", SBATCH_TIMELIMIT="7", SBATCH_JOB_NAME="mine")
    assert job.state == "COMPLETED", job.output
    shown = cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert "JobName=mine" in shown and "TimeLimit=00:07:00" in shown


def test_from_a_step_of_another_job(cluster, own, program):
    """srun --pty bash, as slurm/interactive.sh opens it, leaves SLURM_DISTRIBUTION and the binding of its own step."""
    done = cluster.run(
        *("salloc", "--nodes=1", "--gpus-per-node=1", "--cpus-per-task=2", "srun", "--cpu-bind=map_cpu:1"),
        *("sbatch", "--parsable", "slurm/submit_multinode.sh", program),
        cwd=own, env={**ENVIRONMENT, "LAUNCHER": "srun"},
    )  # fmt: skip
    job = cluster.wait(int(done.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert ranks(job.output) == [
        line.replace("node2", job.nodes[1]).replace("node1", job.nodes[0]) for line in RIGHT
    ], job.output


def test_a_shell_whose_job_has_ended(cluster, project, program):
    """A terminal that was opened in a shell of salloc outlives the job, and keeps its number."""
    number = re.search(r"\d+", cluster.run("salloc", "--nodes=1", "true").stderr)[0]
    variables = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_CPUS_PER_NODE": "8"}
    variables["record"] = "JobState=RUNNING"  # of the user's own, and no record of Slurm
    for left in (number, "999999"):
        environment = python_environment(**{**variables, "SLURM_JOB_ID": left})
        done = cluster.run("bash", "slurm/run_here.sh", program, cwd=project, env=environment, check=False)
        assert done.returncode == 2 and f"this shell belongs to job {left}, " in done.stderr, done


# ---- GPUs that no rank uses ------------------------------------------------------------------------------------------

PER_JOB = ["--gpus=4"]
PER_TASK = ["--gpus-per-task=1"]


@pytest.mark.parametrize("launcher", ["srun", pytest.param("torchrun", marks=pytest.mark.drill)])
@pytest.mark.parametrize("asked", [PER_JOB, PER_TASK], ids=["per job", "per task"])
def test_gpus_that_the_header_does_not_ask_for_per_node(usual_slurm, own, program, asked, launcher):
    edit_header(own, "--gpus-per-node", *asked)
    if asked is PER_TASK:
        edit_header(own, "--ntasks-per-node", "--ntasks-per-node=2")
        edit_header(own, "--cpus-per-task", "--cpus-per-task=4")
    script = own / "slurm/submit_multinode.sh"
    job = usual_slurm.submit(script, program, cwd=own, env=python_environment(LAUNCHER=launcher))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert ranks(job.output) == RIGHT, job.output


IN_SALLOC = [["-n4", "--gpus=4"], ["-n4", "--gpus-per-task=1"], ["-n4", "--ntasks-per-gpu=1", "--gpus=4"]]


@pytest.mark.parametrize(
    ("options", "launcher"),
    [
        *((options, "srun") for options in IN_SALLOC),
        (IN_SALLOC[1], "torchrun"),
        *(pytest.param(IN_SALLOC[number], "torchrun", marks=pytest.mark.drill) for number in (0, 2)),
    ],
)
def test_gpus_in_a_shell_of_salloc(cluster, project, program, options, launcher, tmp_path):
    write_short_torchrun(tmp_path)
    command = ["salloc", "--nodes=2", "--nodelist=node1,node2", "--exclusive", *options]
    command += ["bash", project / "slurm/run_here.sh", program]
    done = cluster.run(*command, cwd=tmp_path, env={**ENVIRONMENT, "LAUNCHER": launcher})
    assert ranks(done.stdout) == RIGHT, done.stdout + done.stderr


def test_unequal_nodes_are_refused(cluster, own, program):
    edit_header(own, "--gpus-per-node", "--gpus=3")
    edit_header(own, "--cpus-per-task", "--cpus-per-task=1")
    job = cluster.submit(own / "slurm/submit_multinode.sh", program, cwd=own, env=python_environment())
    assert (job.state, job.exit_code) == ("FAILED", 2), job.output
    assert "unequal nodes, of 1 2 GPUs" in job.output and "--gpus-per-node" in job.output
    assert not ranks(job.output)


@pytest.mark.parametrize("launcher", ["srun", pytest.param("torchrun", marks=pytest.mark.drill)])
def test_ranks_that_were_asked_for(cluster, project, program, launcher):
    """NPROC_PER_NODE=1 leaves a GPU of each node to nobody."""
    job = submit(cluster, project, program, LAUNCHER=launcher, NPROC_PER_NODE="1")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert [line.split()[:2] for line in ranks(job.output)] == [["0", "2"], ["1", "2"]]


# ---- the state of the user's shell -----------------------------------------------------------------------------------

SHELLS = {
    "options": {"SHELLOPTS": "noclobber:nounset:errexit", "BASHOPTS": "nullglob:failglob"},
    "posix": {"POSIXLY_CORRECT": "1"},
    "start-up file": {"BASH_ENV": "start-up"},
}


@pytest.mark.parametrize("kind", SHELLS)
def test_a_shell_in_another_state(cluster, project, program, tmp_path, kind):
    environment = dict(SHELLS[kind])
    if kind == "start-up file":
        (tmp_path / "start-up").write_text("set -e\nIFS=:\nshopt -s nullglob\n")
        environment["BASH_ENV"] = str(tmp_path / "start-up")
    command = ["bash", project / "slurm/submit_multinode.sh", program]
    done = cluster.run(*command, cwd=tmp_path, env=python_environment(LAUNCHER="srun", **environment), check=False)
    assert done.returncode == 0, done.stderr
    job = cluster.wait(int(done.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert ranks(job.output) == RIGHT, job.output
    assert "\033[" not in job.output
    assert "preflight: 2 node(s) fit" in job.output


# ---- options of sbatch -----------------------------------------------------------------------------------------------

WITHOUT_EFFECT = [
    (["--export=FOO=bar,PATH"], "--export=ALL,NAME=value"),
    (["--export", "NONE"], "--export=ALL,NAME=value"),
    (["--chdir=/tmp"], "cd '/tmp'"),
    (["-D", "/tmp"], "cd '/tmp'"),
    (["--output=outs/%x-%j.out"], "mkdir -p 'outs'"),
    (["--error=outs/deep/%j.err"], "mkdir -p 'outs/deep'"),
    (["-o", "outs/%j.out"], "mkdir -p 'outs'"),
    (["--output=/tmp"], "name a file, as in /tmp/%x-%j.out"),
]


@pytest.mark.parametrize(("options", "fix"), WITHOUT_EFFECT, ids=lambda value: " ".join(value)[:20])
def test_options_with_which_a_job_would_fail(cluster, project, program, options, fix):
    said = refused(cluster, project, *options, "--", program)
    assert options[-1].split("=", 1)[-1] in said
    assert fix in said


@pytest.mark.parametrize("where", ["typed", "header"])
def test_the_same_options_used_well(cluster, own, program, where):
    (own / "outs").mkdir()
    options = ["--export=ALL,FOO=bar", "--output=outs/%x-%j.out", "--job-name=exp-1"]
    if where == "header":
        script = own / "slurm/submit_multinode.sh"
        script.write_text(script.read_text().replace("#SBATCH --export=ALL ", f"#SBATCH {options.pop(0)} "))
    job = submit(cluster, own, *options, "--", program, LAUNCHER="srun")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert (own / f"outs/exp-1-{job.id}.out").exists()
    assert re.findall(r"WHERE .* (\w+)$", job.output, re.M) == ["bar"] * 4, job.output


def test_a_number_for_scripts(cluster, own, program):
    """--parsable prints the job's number alone, whatever else there is to say."""
    cluster.run("bash", "extras/spares/bad_nodes.sh", "add", "node4", "a test", cwd=own)
    with open(own / "env.sh", "a") as settings:
        settings.write("echo a module says hello\n")
    command = ["bash", "slurm/submit_multinode.sh", "--parsable", "--", program]
    environment = python_environment(LAUNCHER="srun", SPARES="1")
    done = cluster.run(*command, cwd=own, env=environment)
    assert done.stdout.strip().isdigit(), done.stdout
    assert "without node4" in done.stderr
    cluster.run("scancel", done.stdout.strip())


@pytest.mark.parametrize("option", ["--gpus-per-node=nosuch:1", "--nodelist=nowhere"])
def test_a_value_that_sbatch_refuses(cluster, project, program, option):
    command = ["bash", "slurm/submit_multinode.sh", option, "--", program]
    done = cluster.run(*command, cwd=project, env=python_environment(), check=False)
    assert done.returncode == 1 and "sbatch: " in done.stderr
    assert "your queues with 'sinfo -s'" in done.stderr


# ---- Python without the folder of a program --------------------------------------------------------------------------

needs_safe_path = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has PYTHONSAFEPATH")


def programs_with_siblings(project):
    """Return each Python program of a project that imports a file or package beside it, or one of another folder."""
    names = {path.stem for path in project.rglob("*.py")} | {
        path.parent.name for path in project.rglob("*/__init__.py")
    }
    for path in sorted(project.rglob("*.py")):
        text = path.read_text()
        imported = set(re.findall(r"(?m)^(?:from|import) (\w+)", text))
        if "__name__ == " in text and imported & names - {path.stem}:
            yield path


# Asks each program for its usage, in a process of its own. These are forked from one that has imported torch.
ASK_ALL = """\
import os, runpy, sys
import torch
for path in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv = [path, "--help"]
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    os.wait()
"""


@pytest.mark.drill
@needs_safe_path
def test_programs_find_their_siblings(tmp_path):
    own = bake(tmp_path / "own", **ANSWERS, extras="all")
    programs = list(programs_with_siblings(own))
    assert {"train_ddp.py", "snapshot.py", "screen.py", "group.py"} <= {path.name for path in programs}
    command = [sys.executable, "-P", "-B", "-c", ASK_ALL, *programs]
    done = subprocess.run(command, capture_output=True, text=True, input="", check=False)
    assert done.returncode == 0 and done.stdout.count("usage: ") >= 4, done.stderr
    assert "ModuleNotFoundError" not in done.stderr, done.stderr


@needs_safe_path
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_ranks_keep_a_safe_path(cluster, project, program, launcher):
    job = submit(cluster, project, "--nodes=1", "--", program, LAUNCHER=launcher, PYTHONSAFEPATH="1")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert re.findall(r"WHERE .* (\w+) -$", job.output, re.M) == ["False"] * 2, job.output


@pytest.mark.drill
@needs_safe_path
def test_a_training_of_a_snapshot_with_a_safe_path(cluster, own):
    """The tools of a job run: the copy of the sources, run.json, and the training itself."""
    options = ["--nodes=1", "--gpus-per-node=1", "--"]
    words = ["training/train_ddp.py", "--steps", "2", "--layers", "1", "--width", "32", "--out", own / "out"]
    job = submit(cluster, own, *options, *words, LAUNCHER="srun", SNAPSHOT="1", PYTHONSAFEPATH="1")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert (own / f"logs/{job.id}.0/run.json").exists()
