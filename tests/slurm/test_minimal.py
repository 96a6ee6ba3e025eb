"""slurm/minimal.sbatch: for every site and runtime one file that needs no other; alone in a folder, it runs on Slurm.

test_bake.py has shellcheck look at it, test_sites.py shows it to every site's scheduler, and test_containers.py runs it
with every container runtime.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, account, bake
from cookiecutter.main import cookiecutter as write
from launching import write_short_torchrun
from needs import needs_namespaces
from slurm_cluster import PATH
from submitting import STRAY
from waiting import FOREVER

from cluster_options.sites import site_facts, site_names

NAME = "slurm/minimal.sbatch"
PAIRS = [
    (site, runtime)
    for site in site_names()
    if site_facts(site)["kind"] == "slurm"
    for runtime in site_facts(site)["runtimes"]
]
# The one with the environment that the tests run in; `python3` is found there.
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{PATH}"}


@pytest.fixture(scope="module")
def minimal(tmp_path_factory):
    """Writes this file of a project alone, once for the same answers, and returns its path."""
    template = tmp_path_factory.mktemp("template")
    shutil.copy(REPOSITORY / "cookiecutter.json", template)
    (template / TEMPLATE.name / NAME).parent.mkdir(parents=True)
    shutil.copy(TEMPLATE / NAME, template / TEMPLATE.name / NAME)

    @cache
    def write_it(**answers):
        out = tmp_path_factory.mktemp("out")
        (out / "config").write_text(f"replay_dir: {out}/replay\n")
        write(
            str(template),
            no_input=True,
            extra_context=answers,
            output_dir=str(out),
            config_file=str(out / "config"),
            accept_hooks=False,
        )
        return out / "demo" / NAME

    return write_it


# ---- as it is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("site", "runtime"), PAIRS)
def test_it_is_short_and_reads_no_other_file(minimal, site, runtime):
    text = minimal(site=site, runtime=runtime, account=account(site)).read_text()
    lines = text.splitlines()
    most = 70 if runtime == "edf" else 60  # the container's description is in it
    assert len(lines) <= most and max(map(len, lines)) <= 100, text
    assert not re.search(r"\{\{|#\?|cookiecutter", text), text
    of_site = [entry["line"] for entries in site_facts(site)["module_lines"].values() for entry in entries]
    code = [line for line in lines if not re.match(r" *#", line) and line.partition(" # ")[0] not in of_site]
    sourced = [line for line in code if re.match(r" *(source|\.) ", line)]
    assert [line.split()[1] for line in sourced] == [".venv/bin/activate"] * (runtime == "venv")
    others = [path.name for path in TEMPLATE.rglob("*.sh")] + ["doctor.py", "launch/", "env.sh"]
    named = [name for name in others for line in code if name in line.partition(" # ")[0]]
    assert named == [], text
    for option in (line for line in lines if line.startswith("#SBATCH")):
        assert re.fullmatch(r"#SBATCH --[a-z-]+=?\S* +# \S.*", option), f"no reason: {option}"


SPECIFIC = [
    ("juwels-booster", "none", 'MASTER_ADDR+="i"'),
    ("juwels-booster", "none", '    "--cpu-bind=none" # one task per node'),
    ("jean-zay", "none", 'MASTER_PORT="$((10001 + SLURM_JOB_ID % 10000))"'),
    ("jean-zay", "none", 'module load "arch/h100" "pytorch-gpu/py3/2.13.0" || exit'),
    ("lumi", "apptainer", 'export IMAGE="/appl/local/laifs/containers/lumi-multitorch-latest.sif"'),
    ("frontier", "venv", "module reset\n"),
    ("frontier", "venv", ' || exit\nexport LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH" # the libraries'),
    ("roihu", "none", "source /etc/profile.d/zz-csc-env.sh # defines the command module\nmodule purge\n"),
    ("isambard-ai", "apptainer", ' "$IMAGE" # folders that it sees\n    "/host/adapt.sh"\n    env # sets'),
    ("isambard-ai", "apptainer", '    "NCCL_CROSS_NIC=$NCCL_CROSS_NIC"\n    "FI_HMEM_CUDA_'),
    ("isambard-ai", "apptainer", 'export "NCCL_CROSS_NIC=1" # faster'),
    ("isambard-ai", "podman-hpc", "    --gpu --openmpi-pmi2 \\\n"),
    ("perlmutter", "shifter", '    "--module=gpu,nccl-cu13-plugin"\n'),
    ("mn5", "apptainer", '    singularity exec "--nv" # '),
    ("mn5", "apptainer", '    --bind "$PWD,/gpfs/projects,/gpfs/scratch" "$IMAGE"'),
    ("clariden", "edf", 'mounts = ["$PWD:$PWD", "/capstor:/capstor", "/iopsstor:/iopsstor"]\n'),
    ("clariden", "edf", 'export "NCCL_PROTO=^LL128"\n'),
]


@pytest.mark.parametrize(("site", "runtime", "text"), SPECIFIC)
def test_what_a_site_says_arrives(minimal, site, runtime, text):
    assert text in minimal(site=site, runtime=runtime, account=account(site)).read_text()


def test_only_what_builds_software_is_left_out(minimal):
    """Variables for pip and for the making of images; each other variable of a site is there."""
    for site, runtime in PAIRS:
        text = minimal(site=site, runtime=runtime, account=account(site)).read_text()
        names = [variable["name"] for variable in site_facts(site)["environment"]]
        left_out = [name for name in names if f'\nexport "{name}=' not in text]
        assert set(left_out) <= {"PIP_EXTRA_INDEX_URL", "APPTAINER_TMPDIR"}, (site, runtime)


# Calls the command that minimal.sbatch gives it, as on a node of three cores.
SRUN = """\
#!/bin/bash
until [[ $1 == bash ]]; do shift; done
export SLURM_CPUS_PER_TASK=3 SLURM_NODEID=0 {gpus}
"$@"
"""


@pytest.mark.parametrize(
    ("gpus", "started"),
    [
        ("", "2 ranks, 2 threads"),
        ("SLURM_GPUS_ON_NODE=0", "2 ranks, 2 threads"),
        ("SLURM_GPUS_ON_NODE=4", "4 ranks, 1 threads"),
    ],
)
def test_ranks_and_threads_of_a_node(minimal, tmp_path, gpus, started):
    """Without GPUs, too, and with fewer cores than ranks."""
    programs = {
        "srun": SRUN.format(gpus=gpus),
        "scontrol": "#!/bin/bash\necho node1\n",
        "python3": "#!/bin/bash\n[[ $* =~ --nproc-per-node=([0-9]+) ]]\n"
        'echo "${BASH_REMATCH[1]} ranks, $OMP_NUM_THREADS threads"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "3"}
    command = ["bash", minimal(site="slurm", runtime="none"), "program.py"]
    done = subprocess.run(
        command, env={"PATH": f"{tmp_path}:{PATH}", **job}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, started), done.stderr


# ---- as it runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(cluster):
    """The cluster, if its nodes have names of their own."""
    needs_namespaces(cluster)
    return cluster


@pytest.fixture
def alone(minimal, tmp_path):
    """A folder that holds this file and programs, and nothing else of a project."""

    def copy(name, **answers):
        shutil.copy(minimal(site="slurm", runtime="none", nodes="2", **answers), tmp_path / f"my work/{name}")
        return name

    (tmp_path / "my work").mkdir()
    copy.folder = tmp_path / "my work"
    return copy


@pytest.fixture
def without_torch(tmp_path):
    """What a job's environment has in which python3 finds the stand-in for torchrun."""
    write_short_torchrun(tmp_path / "short")
    return {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "short")}


# Waits until the ranks of both jobs are there. One job spares the import of torch, which takes most of the time.
TOGETHER = """\
import os, sys, time
rank, world, total = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), ""
if world == 2:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    tensor = torch.ones(1) + rank
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    total = tensor.item()
open(f"there.{os.environ['SLURM_JOB_ID']}.{rank}", "x").close()
while sum(name.startswith("there.") for name in os.listdir()) < 6:
    time.sleep(0.1)
sys.stdout.write(f"{rank} of {world}, sum {total}, {sys.argv[1:]} threads {os.environ['OMP_NUM_THREADS']}\\n")
"""


@pytest.mark.drill
def test_two_jobs_at_once_alone_in_a_folder(cluster, alone, without_torch):
    """On the same two nodes, one on a GPU of each, one on their cores; from a shell full of stale variables."""
    (alone.folder / "own.py").write_text(TOGETHER)
    shared = ["--nodelist=node1,node2", "--exclusive=user", "--cpus-per-task=2", "--mem=1G"]
    scripts = [alone("gpus.sbatch", gpus_per_node="1"), alone("cores.sbatch", gpus_per_node="0")]
    arguments = ["a b", '"', "$HOME", "--max"]
    jobs = []
    for script, own in zip(scripts, (ENVIRONMENT, without_torch)):
        environment = {**STRAY, **own, "OMP_NUM_THREADS": "7"}
        jobs.append(cluster.sbatch(*shared, script, "own.py", *arguments, cwd=alone.folder, env=environment))
    for job, (world, total, threads) in zip([cluster.wait(job) for job in jobs], [(2, "3.0", 2), (4, "", 1)]):
        assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ["node1", "node2"]), job.output
        said = [f"{rank} of {world}, sum {total}, {arguments} threads {threads}" for rank in range(world)]
        assert sorted(re.findall(r"\d of .*", job.output)) == said, job.output


FAILS = f"""\
import os, sys, time
if os.environ["RANK"] == "3":
    sys.exit(f"on purpose: rank 3 of {{os.environ['WORLD_SIZE']}}")
time.sleep({FOREVER})
"""


def test_a_failing_rank_fails_the_job(cluster, alone):
    """The other ranks, two of them on another node, sleep for hours."""
    (alone.folder / "fails.py").write_text(FAILS)
    script = alone("minimal.sbatch", gpus_per_node="2")
    job = cluster.submit(script, "fails.py", cwd=alone.folder, env=ENVIRONMENT)
    assert job.state == "FAILED" and job.exit_code != 0, job.output
    assert "on purpose: rank 3 of 4" in job.output, job.output


def test_nodes_without_gpus(cluster, tmp_path, without_torch):
    """README's advice for them: remove the line that asks for GPUs."""
    needs_namespaces(cluster)
    project = bake(tmp_path / "project", site="slurm", gpus_per_node="2", nodes="2")
    script = project / "slurm/minimal.sbatch"
    script.write_text(re.sub(r"(?m)^#SBATCH --gpus-per-node=.*\n", "", script.read_text()))
    # One write: print writes in pieces, which those of other ranks may part.
    own = "import os, sys; sys.stdout.write('RANK {RANK} of {WORLD_SIZE}\\n'.format(**os.environ))"
    (tmp_path / "own.py").write_text(own)
    job = cluster.submit(script, "own.py", cwd=tmp_path, env={**without_torch, "SLURM_GPUS_ON_NODE": "4"})
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert sorted(re.findall(r"RANK (\d) of 4", job.output)) == ["0", "1", "2", "3"], job.output
