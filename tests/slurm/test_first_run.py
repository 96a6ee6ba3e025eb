"""README.md's commands, typed as they stand on the login node of a cluster that has the site's names.

First the numbered steps of the first run, then a program of the user's own. What the test cannot have, it replaces:

- rsync and ssh are read, and not typed. The project is copied to the folder that they name, below tmp_path.
- docker is read, and not typed. An archive lies ready instead, without torch: the container sees this Python.
- tail is read, and not typed. The file that it follows is read when the job has ended.
- The account command is typed where it is Slurm's own.
- The GPUs are invented, so the ranks run on CPUs. NPROC_PER_NODE starts one on each node, and the training is shorter.
"""

from __future__ import annotations

import os
import pwd
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
from slurm_cluster import PATH, Cluster, Job, Nodes
from submitting import python_environment

# There are no modules here. sbatch hands this function on to the job, as it does with the one of a real site.
MODULES = {"BASH_FUNC_module%%": "() { :; }"}
# Where files go at a site that has a host of its own for them, by where its users log in.
TRANSFER_HOSTS = {"USER@alogin1.bsc.es": "USER@transfer1.bsc.es"}


class Walk:
    """A user with README.md: takes the commands of one step after the other, and types them in the project's folder.

    `written` is the project as it was baked, and `files` stands for the cluster's root directory.
    """

    def __init__(self, cluster: Cluster, written: Path, files: Path, **environment: str):
        self.cluster, self.written, self.files = cluster, written, files
        self.environment = python_environment(NPROC_PER_NODE="1", OMP_NUM_THREADS="1", **environment)
        self.readme = (written / "README.md").read_text()
        parts = re.split(r"(?m)^\*\*(\d)\. ", self.found(r"(?ms)^## First run\n(.*?)^## ", self.readme))[1:]
        self.steps = {int(number): text for number, text in zip(parts[::2], parts[1::2])}
        assert list(self.steps) == [1, 2, 3, 4], "this test knows four steps"
        self.project = self.copy()
        self.replace("training/lm/arguments.py", "default=200,", "default=20,")

    @staticmethod
    def found(pattern: str, text: str) -> str:
        """Return the only group of a pattern in a text."""
        match = re.search(pattern, text)
        assert match, f"{pattern} is not in:\n{text}"
        return match[1]

    def commands(self, step: int) -> list[str]:
        """Return the lines of a step's blocks of commands, without the comments beside them."""
        blocks = re.findall(r"(?ms)^```bash\n(.*?)^```", self.steps[step])
        return [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]

    def target(self, rsync: str, host: str) -> tuple[str, str]:
        """Return what an rsync command copies, and the folder to which it does. It has to go to this host."""
        program, *_, source, target = shlex.split(rsync)
        there, _, folder = target.partition(":")
        assert (program, there) == ("rsync", host)
        return source, folder

    def copy(self) -> Path:
        """Copy the project to where step 1 says, and return the folder that its last command enters."""
        rsync, ssh, cd = self.commands(1)
        user = shlex.split(ssh)[-1]
        assert ssh.startswith("ssh ") and user.startswith("USER@")
        source, folder = self.target(rsync, TRANSFER_HOSTS.get(user, user))
        entered = self.found("^cd (.*)$", cd).replace("$USER", "USER")
        assert (source, entered) == (self.written.name, f"{folder}{source}"), "the user enters another folder"
        shutil.copytree(self.written, self.files / entered.lstrip("/"), symlinks=True)
        return self.files / entered.lstrip("/")

    def replace(self, file: str, old: str, new: str) -> None:
        """Edit a file of the copy, at one place."""
        path = self.project / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new))

    def typed(self, command: str, code: int = 0) -> str:
        """Run a command on the login node, in the project, and expect this exit code; return what it prints."""
        done = self.cluster.run("bash", "-c", command, cwd=self.project, env=self.environment, check=False)
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def followed(self, printed: str, tail: str) -> Job:
        """Wait for the job that a command submitted; its output is the file that `tail -F FILE` follows."""
        job = self.cluster.wait(int(self.found(r"(?m)^Submitted batch job (\d+)$", printed)))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        file = self.project / self.found(r"^tail -F (\S+)$", tail).replace("JOBID", str(job.id))
        assert file.read_text() == job.output
        return job

    def make_image(self, build: str, tail: str) -> None:
        """Step 3, on the cluster: a job makes the image, and its output ends as the step says."""
        assert 'the last line begins with "ready:"' in self.steps[3]
        assert self.followed(self.typed(build), tail).output.splitlines()[-1].startswith("ready: ")

    def run_job(self, checked_nodes: int = 2) -> None:
        """Step 4: a check, then a training; the ends of their outputs. Then the commands for jobs that fail."""
        check, squeue, tail, train, doctor = self.commands(4)
        assert 'one of its last lines ends with "right"' in self.steps[4]
        assert "one of the last lines has `done    loss`" in self.steps[4]
        self.environment["LAUNCHER"] = "srun"  # imports torch once less on each node; the training has torchrun
        printed = self.typed(check)
        del self.environment["LAUNCHER"]
        self.typed(squeue)  # the job may have ended already
        job = self.followed(printed, tail)
        assert len(job.nodes) == checked_nodes
        over = f"all-reduce over {checked_nodes} rank(s) on {checked_nodes} host(s): right"
        # The extra watch may print its summary behind it.
        # torchrun of another node may print 30 lines behind it, if the first node's has ended before (pytorch #69520).
        assert any(line.endswith(over) for line in job.output.splitlines()[-50:]), job.output
        job = self.followed(self.typed(train), tail)
        assert job.nodes == ["node1", "node2"]
        assert re.search(r"ranks   2 \(cpu, float32\)$", job.output, re.MULTILINE), job.output
        assert any("done    loss" in line for line in job.output.splitlines()[-50:]), job.output
        number = str(job.id)
        assert f"job {number} did not fail" in self.typed(doctor.replace("JOBID", number))

    def run_own_program(self) -> None:
        """The lines that join the ranks, as a program, submitted with the first command of that section."""
        section = self.found(r"(?ms)^## Your own program, environment and data\n(.*?)^## ", self.readme)
        program = self.found(r"(?ms)^```python\n(.*?)^```", section)
        own = 'print("rank", torch.distributed.get_rank(), __import__("sys").argv[1:])'
        assert program.count("\n...") == 1
        (self.project / "program.py").write_text(program.replace("\n...", f"\n{own}"))
        command = self.found(r"(?m)^(bash slurm/submit_multinode\.sh program\.py .*)$", section)
        self.environment["LAUNCHER"] = "srun"  # it imports torch once less on each node
        job = self.followed(self.typed(command), self.commands(4)[2])
        ranks = sorted(re.findall(r"rank \d \[.*\]", job.output))
        assert ranks == [f"rank {number} ['--its', 'arguments']" for number in (0, 1)]


def test_slurm_with_an_environment_that_exists(tmp_path):
    """The account is one of the database, and VENV is changed in env.sh as step 3 says."""
    if accounting.missing():
        skip_or_fail(accounting.missing())
    accounts = accounting.accounts("test", {"acc": [pwd.getpwuid(os.geteuid()).pw_name]})
    with Cluster(tmp_path / "cluster", nodes=2, accounts=accounts) as cluster:
        written = bake(tmp_path / "laptop", site="slurm", account="acc", runtime="venv", nodes="2", gpus_per_node="2")
        walk = Walk(cluster, written, tmp_path / "files")
        accounts_of_mine = walk.found(r"^Check the account\*\* \(1 minute\)\. `(.+?)` prints yours", walk.steps[2])
        assert "acc" in walk.typed(accounts_of_mine).splitlines()
        partitions = walk.found("`(sinfo .+?)` prints partitions", walk.steps[2])
        assert "main* infinite 2 gpu:2" in walk.typed(partitions)  # the star: the default
        mine = walk.found(r"with `VENV=`, as in `(VENV=.+?)`", walk.steps[3])
        walk.replace("env.sh", 'VENV="${VENV:-$PROJECT_DIR/.venv}"', mine.replace("/ITS/FOLDER", sys.prefix))
        walk.environment["PYTHON"] = "python3"  # that of the environment
        walk.run_job()
        walk.run_own_program()


@pytest.mark.drill
def test_mn5_with_apptainer(debian13, archive, tmp_path):
    """Apptainer is real. The archive goes where step 3 copies it to."""
    acc = "PartitionName=acc Nodes=ALL Default=YES State=UP"
    nodes = [Nodes(2, cpus=80, gpus=4)]
    with cluster_of(debian13, tmp_path / "cluster", nodes=nodes, partitions=(acc,)) as cluster:
        image = "docker://nvcr.io/nvidia/pytorch:25.05-py3"
        written = bake(tmp_path / "laptop", site="mn5", account="bsc12", runtime="apptainer", image=image)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/python3").symlink_to(sys.executable)  # of the login node, for the doctor
        walk = Walk(
            cluster, written, tmp_path / "files", **MODULES, PATH=f"{PATH}:{tmp_path}/bin",
            MASTER_ADDR_SUFFIX="", APPTAINER_MKSQUASHFS_ARGS=FAST_SQUASHFS,
        )  # fmt: skip
        docker_build, docker_save, rsync, build, tail = walk.commands(3)
        tag = walk.found("^docker build -t (\\S+) -f container/Dockerfile .$", docker_build)
        file = walk.found(f"^docker save -o (\\S+) {tag}$", docker_save)
        source, folder = walk.target(rsync, TRANSFER_HOSTS["USER@alogin1.bsc.es"])
        assert source == file
        (walk.files / folder.lstrip("/") / Path(file).name).symlink_to(archive)
        binds = "".join(f'    "{path}"\n' for path in (sys.prefix, *python_folders()))
        walk.replace("env.sh", '    "/gpfs/projects"\n    "/gpfs/scratch"\n', binds)
        walk.make_image(build, tail)
        walk.run_job()
        walk.run_own_program()


@pytest.mark.drill
@pytest.mark.skipif(os.geteuid() != 0, reason="the stand-ins mount things, as root")
def test_clariden_with_its_container_engine(tmp_path):
    """The container engine is a stand-in, which gets the image from a registry."""
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
        assert walk.commands(3) == []
        walk.run_job(checked_nodes=1)
        walk.run_own_program()
