"""README.md's commands, typed as they stand on the login node of a cluster that has the site's names.

First the numbered steps of the first run, then a program of the user's own.

What the test cannot have, it replaces: the way from the laptop to the cluster is a copy to the folder that README.md
names, below tmp_path; `docker build` is an archive that lies ready; the image has no torch, so it sees this Python. The
cluster's GPUs are invented. So the ranks run on CPUs, one on each node, and the training is shorter.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import accounting
import pytest
from baking import bake
from container_root import FAST_SQUASHFS, python_folders
from launching import STAND_INS, stand_in_image
from needs import cluster_of, skip_or_fail
from slurm_cluster import PATH, Cluster, Nodes
from submitting import python_environment

GROUP = "bsc12"
# There are no modules here. sbatch hands this function on to the job, as it does with the one of a real site.
MODULES = {"BASH_FUNC_module%%": "() { :; }"}


class Walk:
    """A user with README.md: takes the commands of one step after the other, and types them in the project's folder."""

    def __init__(self, cluster: Cluster, written: Path, sites_files: Path, **environment: str):
        self.cluster, self.written, self.sites_files = cluster, written, sites_files
        self.environment = python_environment(NPROC_PER_NODE="1", OMP_NUM_THREADS="1", **environment)
        self.readme = (written / "README.md").read_text()
        (section,) = re.findall(r"(?ms)^## First run\n(.*?)^## ", self.readme)
        parts = re.split(r"(?m)^\*\*(\d)\. ", section)[1:]
        self.steps = {int(number): text for number, text in zip(parts[::2], parts[1::2])}
        self.project = self.copied()

    def commands(self, step: int) -> list[str]:
        """Return the lines of a step's blocks of commands, without the comments beside them."""
        blocks = re.findall(r"(?ms)^```bash\n(.*?)^```", self.steps[step])
        return [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]

    def copied(self) -> Path:
        """Copy the project to where step 1 says, and return the folder that its last command enters."""
        rsync, ssh, cd = self.commands(1)
        *_, source, target = shlex.split(rsync)
        folder = target.partition(":")[2]
        assert source == self.written.name and shlex.split(ssh)[-1].startswith("USER@")
        entered = cd.removeprefix("cd ").replace("$USER", "USER")
        assert entered == f"{folder}{source}", "the user enters another folder than the copy"
        there = self.sites_files / entered.replace("GROUP", GROUP).lstrip("/")
        shutil.copytree(self.written, there, symlinks=True)
        arguments = there / "training/arguments.py"
        assert arguments.read_text().count("default=200,") == 1
        arguments.write_text(arguments.read_text().replace("default=200,", "default=20,"))
        return there

    def typed(self, command: str) -> str:
        """Run a command on the login node, in the project; return what it prints."""
        done = self.cluster.run("bash", "-c", command, cwd=self.project, env=self.environment, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def followed(self, printed: str, tail: str) -> list[str]:
        """Wait for the job that a command submitted; return the lines of the file that `tail -F FILE` follows."""
        number = re.search(r"^Submitted batch job (\d+)$", printed, re.M)[1]
        job = self.cluster.wait(int(number))
        file = self.project / tail.removeprefix("tail -F ").replace("JOBID", number)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        self.environment["JOBID"] = number
        return file.read_text().splitlines()

    def image_is_made(self) -> None:
        """Step 3, on the cluster: a job makes the image, and its output ends as the step says."""
        build, tail = self.commands(3)[-2:]
        assert 'the last line begins with "ready:"' in self.steps[3]
        assert self.followed(self.typed(build), tail)[-1].startswith("ready: ")

    def job_runs(self) -> None:
        """Step 4: a check and a training, whose output ends as the step says. Then the commands for jobs that fail."""
        submit, squeue, tail, doctor, _stacks, watch = self.commands(4)
        assert 'one of its last lines has "done    loss"' in self.steps[4]
        printed = self.typed(submit)
        self.typed(squeue)
        last = self.followed(printed, tail)[-10:]
        assert any("done    loss" in line for line in last), last
        number = self.environment["JOBID"]
        assert f"job {number} did not fail" in self.typed(doctor.replace("JOBID", number))
        ended = self.cluster.run(
            *watch.replace("JOBID", number).split(), cwd=self.project, env=self.environment, check=False
        )
        assert f"job {number} is COMPLETED: only a running one" in ended.stdout + ended.stderr

    def own_program_runs(self) -> None:
        """The lines that join the ranks, as a program, submitted with the first command of that section."""
        (section,) = re.findall(r"(?ms)^## Your own program, environment and data\n(.*?)^## ", self.readme)
        lines = re.search(r"(?ms)^```python\n(.*?)^```", section)[1].splitlines()
        on_cpus = [line for line in lines if not line.endswith("# on GPUs")]
        on_cpus.insert(-1, 'print("rank", torch.distributed.get_rank(), __import__("sys").argv[1:])')
        (self.project / "program.py").write_text("\n".join(on_cpus) + "\n")
        command = re.search(r"^bash slurm/submit_multinode\.sh program\.py .*$", section, re.M)[0]
        *_, tail, _doctor, _stacks, _watch = self.commands(4)
        output = "\n".join(self.followed(self.typed(command), tail))
        assert sorted(re.findall(r"rank \d \[.*\]", output)) == [f"rank {n} ['--its', 'arguments']" for n in (0, 1)]

    def replace(self, file: str, old: str, new: str) -> None:
        """Edit a file of the copy."""
        path = self.project / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new))


def test_slurm_with_an_environment_that_exists(tmp_path):
    """The account is one of the database, and VENV is changed in env.sh as step 3 says."""
    if accounting.missing():
        skip_or_fail(accounting.missing())
    accounts = accounting.accounts("test", {"acc": ["root"]})
    with Cluster(tmp_path / "cluster", nodes=2, accounts=accounts) as cluster:
        written = bake(tmp_path / "laptop", site="slurm", account="acc", runtime="venv", nodes="2", gpus_per_node="2")
        walk = Walk(cluster, written, tmp_path / "files")
        command = re.match(r"Check the account\.\*\* `(.+?)` prints yours", walk.steps[2])[1]
        assert "acc" in walk.typed(command).splitlines()
        assert "main infinite 2 gpu:2" in walk.typed(re.search("`(sinfo .+?)`", walk.steps[2])[1]).replace("*", "")
        new = re.search(r" to `(VENV=.+?)`, and go to step 4", walk.steps[3])[1].replace("/ITS/FOLDER", sys.prefix)
        walk.replace("env.sh", 'VENV="${VENV:-$PROJECT_DIR/.venv}"', new)
        walk.environment["PYTHON"] = "python3"
        walk.job_runs()
        walk.own_program_runs()


@pytest.mark.drill
def test_mn5_with_apptainer(debian13, archive, tmp_path):
    """Apptainer is real. The archive goes where step 3 copies it to."""
    acc = "PartitionName=acc Nodes=ALL Default=YES State=UP"
    nodes = [Nodes(2, cpus=80, gpus=4)]
    with cluster_of(debian13, tmp_path / "cluster", nodes=nodes, partitions=(acc,)) as cluster:
        written = bake(tmp_path / "laptop", site="mn5", account=GROUP, runtime="apptainer")
        walk = Walk(
            cluster, written, tmp_path / "files", **MODULES,
            MASTER_ADDR_SUFFIX="", APPTAINER_MKSQUASHFS_ARGS=FAST_SQUASHFS,
        )  # fmt: skip
        _build, save, rsync = walk.commands(3)[:3]
        name = shlex.split(save)[shlex.split(save).index("-o") + 1]
        *_, source, target = shlex.split(rsync)
        assert source == name
        there = walk.sites_files / target.partition(":")[2].replace("GROUP", GROUP).lstrip("/") / Path(source).name
        there.symlink_to(archive)
        binds = "".join(f'    "{path}"\n' for path in (sys.prefix, *python_folders()))
        walk.replace("env.sh", '    "/gpfs/projects"\n    "/gpfs/scratch"\n', binds)
        walk.image_is_made()
        walk.job_runs()
        walk.own_program_runs()


@pytest.mark.drill
def test_clariden_with_its_container_engine(tmp_path):
    """podman, enroot and the container engine are stand-ins."""
    partitions = tuple(f"PartitionName={name} Nodes=ALL State=UP" for name in ("debug", "normal"))
    nodes = [Nodes(2, cpus=288, gpus=4, memory_mb=460800)]
    with Cluster(tmp_path / "cluster", nodes=nodes, partitions=partitions) as cluster:
        written = bake(tmp_path / "laptop", site="clariden", account="g123", runtime="edf")
        image = stand_in_image(tmp_path / "registry.json")
        walk = Walk(
            cluster, written, tmp_path / "files", **MODULES,
            PATH=f"{STAND_INS}:{Path(sys.executable).parent}:{PATH}", STAND_IN_SPANK="edf", STAND_IN_IMAGE=str(image),
            STAND_IN_HIDE=str(tmp_path), STAND_IN_SITE_FS=str(tmp_path),
        )  # fmt: skip
        walk.replace("container/demo.toml", '    "/capstor:/capstor",\n    "/iopsstor:/iopsstor",\n', "")
        walk.image_is_made()
        walk.job_runs()
        walk.own_program_runs()
