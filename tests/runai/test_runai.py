"""The written project in pods: submitted with each generation of the client, started by each operator that there is.

runai_cluster.py is the stand-in for the cluster: pods are namespaces with a network each, and with the
variables that the operators set. Torch and its processes are real.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from baking import argument_for_hydra, bake, page
from infiniband import OF_IPV4, PAIR
from runai_cluster import Image, RunaiCluster
from stand_in_runai import parse  # runai_cluster has put its folder on the path
from waiting import FOREVER, PATIENCE, wait_for

UID, GID = "4321", "765"
IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
POD_PROJECT_DIR = "/mnt/mlo/scratch/demo"
OPERATORS = ("1.6", "1.9", "trainjob")
pytestmark = pytest.mark.skipif(bool(RunaiCluster.missing()), reason=f"no pods: {RunaiCluster.missing()}")


class Site:
    """A cluster with one volume, the project on it, and a user who submits from elsewhere."""

    def __init__(
        self,
        folder: Path,
        generation: str = "v2",
        operator: str = "1.9",
        image: Image | None = None,
        extras: str = "none",
        **more,
    ):
        self.folder, self.volume = folder, folder / "volume"
        answers = {"site": "rcp", "account": "mlo-jdoe", "partition": "cpu", "gpus_per_node": "0"}
        self.project = bake(self.volume, **answers, extras=extras)
        self.own()
        options = {
            "volumes": {"mlo-scratch": self.volume}, "projects": ["mlo-jdoe"], "node_pools": ["cpu"],
            "images": {IMAGE: image or Image()}, "hide": [folder], **more,
        }  # fmt: skip
        self.cluster = RunaiCluster(folder / "cluster", generation=generation, operator=operator, **options)

    def own(self):
        """Give all that lies on the volume to the user; root may not write there."""
        subprocess.run(["chown", "-R", f"{UID}:{GID}", self.volume], check=True)

    def __enter__(self):
        self.cluster.__enter__()
        return self

    def __exit__(self, *exception):
        self.cluster.__exit__(*exception)

    def script(self, *arguments, name="submit_multinode.sh", **environment):
        """Run one of the project's scripts on the submitting side."""
        settings = {"POD_PROJECT_DIR": POD_PROJECT_DIR, "RUN_AS_UID": UID, "RUN_AS_GID": GID, "NPROC_PER_NODE": "1"}
        settings |= {"OMP_NUM_THREADS": "1", "RETRIES": "0", **environment}  # the pods share few cores
        return self.cluster.run(
            "bash", self.project / "runai" / name, *arguments, cwd=self.folder, check=False, **settings
        )

    def submit(self, *arguments, **environment) -> str:
        """Submit; return the name of the job."""
        done = self.script(*arguments, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.name()

    def name(self) -> str:
        """The job that was submitted last."""
        call = [call for call in self.cluster.calls if call.get("words")][-1]
        return call["options"].get("name") or call["arguments"][0]

    def run(self, *arguments, **environment):
        """Submit, wait, return the job."""
        return self.cluster.wait(self.submit(*arguments, **environment))

    def without_torchrun(self) -> None:
        """Put a launcher in place of launch/torchrun.sh that becomes the program at once, where that is enough."""
        launcher = '#!/usr/bin/env bash\nexport RANK=${PET_NODE_RANK:-${RANK:-0}}\nexec "$PYTHON" "$@"\n'
        (self.project / "launch/torchrun.sh").write_text(launcher)
        self.own()

    def program(self, text: str) -> str:
        """Put a program on the volume; return its name."""
        (self.project / "program.py").write_text(text)
        self.own()
        return "program.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("runai")) as site:
        yield site


def succeeded(job):
    """The job has; a worker that was still ending when the master had ended may have been told to."""
    first, *others = job.exit_codes.values()
    assert (job.state, first) == ("Succeeded", 0) and set(others) <= {0, 143}, job.output


# ---- programs, generations, operators, pods --------------------------------------------------------------------------

# What rank 0 prints: the number of ranks, and the result.
PROGRAMS = {
    "pi": (["pi/pi.py", "--intervals", "1e7"], r"by +(\d) ranks", r"pi +3\.14159265"),
    "all-reduce": (["benchmark/all_reduce.py", "--max", "64K"], r"# world_size: (\d)", r"busbw"),
    "training": (
        ["training/train_ddp.py", "--steps", "3", "--global-batch", "24"], r"ranks +(\d) \(cpu", r"done +loss"
    ),
}  # fmt: skip
# One write: of a line in pieces, torchrun's --tee may prefix each.
RANKS = """\
import os, sys
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n")
"""
MATRIX = list(product(("v1", "v2"), OPERATORS, (2, 3), PROGRAMS))
# With ranks without torch. The waiting pods of every run have torch, and the drill runs every combination with it.
WITHOUT_TORCH = [("v1", "1.6", 2, "ranks"), pytest.param("v2", "trainjob", 3, "ranks", marks=pytest.mark.drill)]


def run_of_the_matrix(generation, operator, pods, program, tmp_path):
    arguments, ranks, expected = {**PROGRAMS, "ranks": (["ranks.py"], r"of (\d)", "rank 0 of")}[program]
    nproc = 1 if operator == "1.9" and pods == 3 else None  # then WORLD_SIZE counts processes
    with Site(tmp_path, generation, operator, nproc_per_node=nproc) as site:
        (site.project / "ranks.py").write_text(RANKS)
        job = site.run(*arguments, NNODES=str(pods), NPROC_PER_NODE="2" if pods == 2 else "1")
        succeeded(job)
        assert len(job.exit_codes) == pods
        first, *others = job.outputs.values()
        assert re.search(expected, first), first
        assert int(re.search(ranks, first)[1]) == (4 if pods == 2 else 3)
        assert not any(re.search(expected, other) for other in others)  # rank 0 is the master's
        (logs,) = (site.project / "logs").glob(f"{site.name()}.*")
        for number, output in enumerate(job.outputs.values()):
            assert (logs / f"pod{number}.log").read_text() == output  # all of it, though process 1 has ended
            assert len(list(logs.glob(f"node{number}-*/*/attempt_0/*/stdout.log"))) == (2 if pods == 2 else 1)


@pytest.mark.parametrize(("generation", "operator", "pods", "program"), WITHOUT_TORCH)
def test_programs_run_in_pods(generation, operator, pods, program, tmp_path):
    run_of_the_matrix(generation, operator, pods, program, tmp_path)


@pytest.mark.drill
@pytest.mark.parametrize(("generation", "operator", "pods", "program"), MATRIX)
def test_all_programs_run_in_all_pods(generation, operator, pods, program, tmp_path):
    run_of_the_matrix(generation, operator, pods, program, tmp_path)


@pytest.mark.drill
def test_without_a_program_the_training_runs(tmp_path):
    with Site(tmp_path) as site:
        arguments = site.project / "training/lm/arguments.py"  # enough steps to see that it runs
        assert arguments.read_text().count("default=200,") == 1
        arguments.write_text(arguments.read_text().replace("default=200,", "default=10,"))
        site.own()
        job = site.run(NPROC_PER_NODE="2")
        succeeded(job)
        output = job.outputs[next(iter(job.outputs))]
        assert "ranks   4 (cpu" in output and "step 10/10" in output and "done    loss" in output


@pytest.mark.drill
def test_the_first_run_of_the_readme(tmp_path):
    """Its commands are typed as they stand, on a laptop: step 2 copies the project to a folder of the user's."""
    with Site(tmp_path) as site:
        laptop = bake(tmp_path / "laptop", site="rcp", account="mlo-jdoe")
        readme = (laptop / "README.md").read_text()
        arguments = laptop / "training/lm/arguments.py"
        arguments.write_text(arguments.read_text().replace("default=200,", "default=10,"))
        (laptop / "env.sh").write_text((laptop / "env.sh").read_text() + "export OMP_NUM_THREADS=1\n")

        def typed(command):
            done = site.cluster.run("bash", "-c", command, cwd=laptop, check=False, **of_the_test)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        # The pods have no GPUs.
        of_the_test = {"GPUS_PER_NODE": "0", "NODE_POOLS": "cpu", "NPROC_PER_NODE": "1"}
        assert "mlo-jdoe" in typed(re.search("^runai project list$", readme, re.M)[0])
        there = re.search(r"^rsync .* (\./) GASPAR@\S+:(/mnt/mlo/scratch/)(YOU/demo)/$", readme, re.M)
        for command in "mkdir -p", "ls -ldn":
            assert f"\nssh GASPAR@jumphost.rcp.epfl.ch {command} {there[2]}{there[3]}\n" in readme
        settings = (laptop / "env.sh").read_text()
        edits = r'`((?:RUN_AS_UID|RUN_AS_GID|POD_PROJECT_DIR)="\$\{\w+:-)(\S+)\}"`'
        for name, shown in re.findall(edits, readme):
            assert f'{name}}}"' in settings
            value = shown.replace("THIRD", UID).replace("FOURTH", GID)
            settings = settings.replace(f'{name}}}"', f'{name}{value}}}"')
        (laptop / "env.sh").write_text(settings)
        assert settings.count(f":-{there[2]}{there[3]}}}") == settings.count(f":-{UID}}}") == 1
        shutil.copytree(laptop, site.volume / there[3], symlinks=True)
        site.own()
        assert "\nbash runai/submit_multinode.sh --dry-run\n" in readme
        check = re.search(r"^NNODES=1 GPUS_PER_NODE=1 (bash runai/submit_multinode\.sh check/\S+)$", readme, re.M)[1]
        of_the_test["NNODES"] = "1"
        dry_run = typed("bash runai/submit_multinode.sh --dry-run")
        assert dry_run.splitlines()[-1].strip().startswith(f"-- bash {there[2]}{there[3]}/runai/pod.sh ")
        printed, name = typed(check), site.name()
        shown = re.search(r"^state, and why it waits: .*?(?=^```)", page(laptop, "output-and-logs"), re.M | re.S)[0]
        assert shown.replace("NAME", name) in printed, printed
        job = site.cluster.wait(name)
        succeeded(job)
        assert any(line.endswith("right") for line in job.output.splitlines()[-10:]), job.output


def test_one_pod_is_no_distributed_job(site):
    job = site.run(site.program(RANKS), NNODES="1", NPROC_PER_NODE="2")
    succeeded(job)
    assert site.cluster.calls[-1]["command"] == "training standard submit"
    assert sorted(re.findall(r"rank \d of \d", job.output)) == ["rank 0 of 2", "rank 1 of 2"]
    assert len(job.exit_codes) == 1


STAGES = """\
import os, sys
print("stage", os.path.basename(sys.argv[0]), os.environ["MASTER_PORT"], os.environ.get("PET_MASTER_PORT"), flush=True)
sys.exit(int(os.environ["STAGE_CODE"]) if os.environ["RANK"] == "0" else 0)  # or the other may end it before it speaks
"""


@pytest.mark.parametrize("code", [0, 9])
def test_a_job_that_names_no_program(code, tmp_path):
    """It runs DEFAULT_PROGRAM, and ends with its exit code."""
    with Site(tmp_path) as site:
        site.without_torchrun()
        with (site.project / "env.sh").open("a") as settings:
            settings.write(f"export STAGE_CODE={code}\n[[ -n $NOTHING ]] && export NOTHING\n")  # ends with a failure
        (site.project / "training/train_ddp.py").write_text(STAGES)
        job = site.run(NNODES="2")
        stages = re.findall(r"^stage (.*)", job.outputs[f"{site.name()}-master-0"], re.MULTILINE)
        assert stages == ["train_ddp.py 23456 23456"]
        assert job.exit_codes[f"{site.name()}-master-0"] == code


# ---- what arrives ----------------------------------------------------------------------------------------------------

SHOW = """\
import json, os, sys, time
names = ["NCCL_IB_GID_INDEX", "WANDB_API_KEY", "NCCL_DEBUG", "FROM_ENV_SH", "HOME", "USER", "NOT_FORWARDED"]
found = {"arguments": sys.argv[1:], "uid": os.getuid(), "cwd": os.getcwd(), "prefix": sys.prefix}
found["run_dir"] = os.environ["RUN_DIR"]
found["environ"] = {name: os.environ[name] for name in names if name in os.environ}
open(f"part{os.environ['RANK']}.json", "w").write(json.dumps(found))
os.rename(f"part{os.environ['RANK']}.json", f"shown{os.environ['RANK']}.json")
while os.environ["RANK"] == "0" and not os.path.exists("shown1.json"):  # with the master the workers end
    time.sleep(0.05)
"""
ARGUMENTS = ["a b", "", "$HOME `id`", "it's", 'say "x"', "*", "a;b|c&d", "--flag=[1, 2]", "é", "a=1,2"]
ARGUMENTS += ["two\nlines\n", "\\", "base64:x", "long " * 40, "-n", "-e"]
WRAPS = ["bash", "-c", 'exec bash -c "$*"', "entrypoint"]
IMAGES = {
    "as it is": (Image(), "0"),
    "wrapping, replaced": (Image(entrypoint=WRAPS), "0"),
    "wrapping, kept": (Image(entrypoint=WRAPS), "1"),
}


def shown(site, rank=0):
    return json.loads((site.project / f"shown{rank}.json").read_text())


def show(site, *arguments, **settings):
    """Run SHOW in two pods."""
    site.without_torchrun()
    for old in site.project.glob("shown*.json"):
        old.unlink()
    job = site.run(site.program(SHOW), *arguments, **settings)
    succeeded(job)
    return job


CROSSING = [
    ("v1", "wrapping, kept"),
    ("v2", "wrapping, replaced"),
    *(pytest.param(*row, marks=pytest.mark.drill) for row in [("v1", "as it is"), ("v2", "wrapping, kept")]),
]


@pytest.mark.parametrize(("generation", "image"), CROSSING)
def test_arguments_arrive_as_typed(generation, image, tmp_path):
    """Through a client that hands the words after -- to a shell, and images that do."""
    wrapping, keep = IMAGES[image]
    with Site(tmp_path, generation, image=wrapping, mangle_quotes=generation == "v1") as site:
        arguments = [*ARGUMENTS, argument_for_hydra(site.project)]
        assert "${oc.env:RUN_DIR}" in arguments[-1]
        show(site, *arguments, KEEP_ENTRYPOINT=keep)
        assert shown(site)["arguments"] == arguments
        assert shown(site, 1)["arguments"] == arguments
        assert shown(site)["run_dir"] == shown(site, 1)["run_dir"]


@pytest.mark.parametrize("generation", [pytest.param("v1", marks=pytest.mark.drill), "v2"])
def test_variables_secrets_and_the_user_arrive(generation, tmp_path):
    with Site(tmp_path, generation, secrets={("wandb", "key"): "s3 cret'"}) as site:
        settings = (site.project / "env.sh").read_text()
        settings = settings.replace("\nSECRETS=()", '\nSECRETS=("WANDB_API_KEY=wandb,key")')
        (site.project / "env.sh").write_text(settings + "export FROM_ENV_SH='a \"b\" c'\n")
        job = show(site, NCCL_DEBUG="WARN", NOT_FORWARDED="1")
        expected = {"WANDB_API_KEY": "s3 cret'", "NCCL_DEBUG": "WARN", "FROM_ENV_SH": 'a "b" c', "HOME": "/tmp"}
        assert shown(site)["environ"] == {**expected, "USER": UID}
        assert shown(site)["uid"] == int(UID) and shown(site)["cwd"] == POD_PROJECT_DIR
        assert "s3 cret" not in json.dumps(site.cluster.calls)
        assert f"user {UID}, " in job.output


def test_an_environment_on_the_volume(tmp_path):
    """RUNTIME=venv, as made in a waiting pod; the torch is the image's."""
    with Site(tmp_path) as site:
        environment = site.project / ".venv/bin"
        environment.mkdir(parents=True)
        (environment / "activate").write_text(f'export PATH="{POD_PROJECT_DIR}/.venv/bin:$PATH" VIRTUAL_ENV=here\n')
        python = '#!/bin/bash\nexport FROM_ENV_SH="of the venv"\nexec /opt/image/bin/python3 "$@"\n'
        (environment / "python3").write_text(python)
        (environment / "python3").chmod(0o755)
        show(site, RUNTIME="venv")
        assert shown(site)["environ"]["FROM_ENV_SH"] == "of the venv"
        shutil.rmtree(site.project / ".venv")
        job = site.run(site.program(SHOW), RUNTIME="venv")
        assert job.state == "Failed" and 2 in job.exit_codes.values(), job.output
        assert "no virtual environment at /mnt/mlo/scratch/demo/.venv; make it" in job.output


def test_settings_that_end_the_script(tmp_path):
    """In a pod, where the job would have succeeded with nothing run, and where it is submitted."""
    with Site(tmp_path) as site, (site.project / "env.sh").open("a") as settings:
        print(f"[[ $PROJECT_DIR != {POD_PROJECT_DIR} ]] || exit 0", file=settings, flush=True)
        job = site.run(site.program(SHOW))
        assert job.state == "Failed" and 2 in job.exit_codes.values(), job.output
        assert "env.sh ended this script: look for exit" in job.output
        print("exit 0", file=settings, flush=True)
        done = site.script("program.py")
        assert done.returncode == 2 and "env.sh ended this script" in done.stderr


# ---- RDMA ------------------------------------------------------------------------------------------------------------

DEVICE = {"mlx5_bond_0": {1: {"link_layer": "Ethernet", "gids": PAIR}}}
OTHER = {"mlx5_bond_0": {1: {"link_layer": "Ethernet", "gids": [(OF_IPV4, None), (OF_IPV4, None), *PAIR]}}}
ASKED = {"RDMA_ANNOTATIONS=()": "RDMA_ANNOTATIONS=(a/b=c)", "RDMA_RESOURCES=()  ": "RDMA_RESOURCES=(rdma/rdma=1)  "}


def asks_for_rdma(site):
    text = (site.project / "env.sh").read_text()
    for old, new in ASKED.items():
        assert old in text
        text = text.replace(old, new)
    (site.project / "env.sh").write_text(text)


def with_nccl(version):
    """An image whose torch claims to bring this NCCL, for which it would take GPUs."""
    say = f'[[ $* == *nccl.version* && -n "{version}" ]] && echo "{version}" && exit'
    say = f'#!/bin/bash\n{say}\nexec /opt/image/bin/python "$@"\n'
    return Image(programs={"python3": say})


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("2 25", "", "35"),
        ("2 26", "", "--"),
        *(
            pytest.param(*row, marks=pytest.mark.drill)
            for row in [("2 21", "", "35"), ("", "", "--"), ("2 20", "5", "55")]
        ),
    ],
)
def test_the_gid_index_is_each_pod_s_own_and_for_old_nccl_alone(version, given, expected, tmp_path):
    with Site(tmp_path, image=with_nccl(version), infiniband=[DEVICE, OTHER]) as site:
        if given:
            with (site.project / "env.sh").open("a") as settings:
                settings.write(f"export NCCL_IB_GID_INDEX={given}\n")
        asks_for_rdma(site)
        job = show(site, GPUS_PER_NODE="1")
        assert "RDMA of the node: mlx5_bond_0, GID index 3, locked memory" in job.output
        assert "".join(shown(site, rank)["environ"].get("NCCL_IB_GID_INDEX", "-") for rank in (0, 1)) == expected


@pytest.mark.parametrize(
    ("infiniband", "settings", "code", "message"),
    [
        pytest.param(
            DEVICE,
            {},
            1,
            r"FAULT: REQUIRE_RDMA=1, but rank\(s\) 0 on .*-master-0 talk through gloo tcp",
            id="by the check, with a device that is not used",
            marks=pytest.mark.drill,
        ),
        pytest.param(
            {}, {}, 2, "no /dev/infiniband in this pod: set RDMA_RESOURCES", id="by the pod, without a device"
        ),
        pytest.param(
            {}, {"REQUIRE_RDMA": "0"}, 0, "right", id="by nobody when the submission says so", marks=pytest.mark.drill
        ),
    ],
)
def test_tcp_is_refused_where_rdma_was_asked_for(infiniband, settings, code, message, tmp_path):
    with Site(tmp_path, infiniband=infiniband) as site:
        asks_for_rdma(site)
        job = site.run("check/ranks.py", GPUS_PER_NODE="1", ALLOW_CPU="1", **settings)
    assert re.search(message, job.output), job.output
    assert code in job.exit_codes.values(), job.output
    assert job.state == ("Succeeded" if code == 0 else "Failed")


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_a_volume_that_does_not_exist(generation, tmp_path):
    with Site(tmp_path, generation, volumes={"other-scratch": tmp_path / "volume"}) as site:
        listed = "runai pvc list -p mlo-jdoe"
        if generation == "v1":  # a stand-in for kubectl, which lists one volume
            listed = "kubectl get pvc --namespace runai-mlo-jdoe"
            says = f'[[ "kubectl $*" == "{listed}" ]] && printf "%s\\n" "NAME STATUS" "home-mlo-scratch Bound"'
            (tmp_path / "kubectl").write_text(f"#!/bin/bash\n{says}\n")
            (tmp_path / "kubectl").chmod(0o755)
        done = site.script("pi/pi.py", PATH=f"{tmp_path}:{site.cluster.environment['PATH']}")
        assert done.returncode == 2
        assert f"'{listed}' has no volume 'mlo-scratch', which VOLUMES in env.sh names" in done.stderr
        job = site.run("pi/pi.py", CHECK_VOLUMES="0")
        assert job.state == "Pending"
        assert 'persistentvolumeclaim "mlo-scratch" not found' in job.output


def test_a_project_that_is_not_where_it_should_be(site):
    job = site.run("pi/pi.py", POD_PROJECT_DIR="/mnt/mlo/scratch/elsewhere")
    assert job.state == "Failed" and 127 in job.exit_codes.values()
    assert "/mnt/mlo/scratch/elsewhere/runai/pod.sh: No such file or directory" in job.output


def test_a_volume_that_belongs_to_others(site):
    job = site.run("pi/pi.py", RUN_AS_UID="999")
    assert job.state == "Failed" and 2 in job.exit_codes.values()
    assert f"cannot write below {POD_PROJECT_DIR} as user 999, group {GID}: set RUN_AS_UID" in job.output


def test_an_image_without_torch(tmp_path):
    with Site(tmp_path, image=Image(torch=False)) as site:
        job = site.run("pi/pi.py")
        assert job.state == "Failed" and 2 in job.exit_codes.values()
        assert "python3 does not start here, or has no torch; set another IMAGE" in job.output


@pytest.mark.drill
def test_gpus_that_torch_does_not_see(tmp_path):
    with Site(tmp_path, image=Image()) as site:
        job = site.run("check/ranks.py", GPUS_PER_NODE="2", NPROC_PER_NODE="")
        assert job.state == "Failed" and 1 in job.exit_codes.values()
        assert "rank(s) 0, 1 on" in job.output and "were given GPUs (RUNAI_NUM_OF_GPUS=2), but torch" in job.output


@pytest.mark.drill
def test_a_master_that_appears_late(tmp_path):
    """Later than its worker gives up without help: TrainJob has no init container that waits."""
    with Site(tmp_path, operator="trainjob", late={"master": 3}) as site:
        job = site.run("pi/pi.py", "--intervals", "1e6")
        succeeded(job)
        assert re.search(r"pi +3\.14159265", job.output)


@pytest.mark.drill
def test_an_image_that_reaches_the_master_minutes_later(tmp_path):
    """PyTorchJob's init container gives up then; RETRIES=1 has the pod started anew, 0 would have the job fail."""
    with Site(tmp_path, late={"master": 4}, init_seconds=2) as site:
        site.without_torchrun()
        succeeded(site.run(site.program("print('done')\n"), RETRIES="1"))


def test_a_master_that_never_appears(tmp_path):
    with Site(tmp_path, operator="trainjob", late={"master": FOREVER}) as site:
        job = site.run("pi/pi.py", RDZV_TIMEOUT="2")
        assert job.state == "Failed" and 1 in job.exit_codes.values()
        assert re.search(r"timed out after 2000ms while trying to connect to \(\S+-node-0-0\.\S+, 29500\)", job.output)
        assert re.search(r"runai/pod.sh in .*-node-0-1: ended with exit code 1; all that was printed: /mnt", job.output)


@pytest.mark.parametrize("operator", [pytest.param("1.6", marks=pytest.mark.drill), "trainjob"])
def test_a_worker_that_dies(operator, tmp_path):
    with Site(tmp_path, operator=operator) as site:
        dies = "import os, sys, time\nif os.environ['RANK'] == '1': time.sleep(1); sys.exit(7)\n"
        job = site.run(site.program(f"{dies}time.sleep({FOREVER})\n"))
        codes = list(job.exit_codes.values())
        assert job.state == "Failed" and codes[1] == 1 and codes[0] != 0
        assert re.search(r"rank +: 1 .*\n.*exitcode +: 7", job.output)
        assert "-1: ended with exit code 1" in job.output or "worker-0: ended with exit code 1" in job.output


def test_a_run_that_failed_is_started_anew(tmp_path):
    """RETRIES=1: once, in all pods; then the job has failed."""
    counts = "import os, sys\nprint('attempt', flush=True)\nsys.exit(3)\n"
    with Site(tmp_path) as site:
        site.without_torchrun()
        job = site.run(site.program(counts), RETRIES="1")
        assert job.state == "Failed" and 3 in job.exit_codes.values()
        attempts = [output.count("attempt") for output in job.outputs.values()]
        # The operator counts the restarts of both together. How many there are depends on which fails first, and a
        # pod that starts late may find them used up.
        assert sum(attempts) in (4, 5) and min(attempts) >= 1
        (log,) = (site.project / "logs").glob(f"{site.name()}.*/pod1.log")
        assert log.read_text().count("attempt") == attempts[1]


def test_an_elastic_job_is_refused(tmp_path):
    with Site(tmp_path, elastic="1:3") as site:
        job = site.run("pi/pi.py")
        assert job.state == "Failed" and 2 in job.exit_codes.values()
        assert "number of nodes '1:3': expected a whole number; a range is an elastic job's" in job.output


def test_the_signal_that_ends_a_pod_reaches_the_program(tmp_path):
    """Preemption and deletion send SIGTERM to process 1 alone."""
    waits = "import signal, sys, time\n"
    waits += "signal.signal(15, lambda *_: (time.sleep(1), print('saved', flush=True), sys.exit(5)))\n"
    with Site(tmp_path, grace=PATIENCE) as site:
        site.without_torchrun()
        name = site.submit(site.program(f"{waits}print('began', flush=True)\ntime.sleep({FOREVER})\n"))
        wait_for(
            lambda: site.cluster.job(name).output.count("began") == 2, lambda: site.cluster.job(name).output, pause=0.1
        )
        done = site.script("--delete", name, name="interactive.sh")
        assert done.returncode == 0, done.stderr
        job = site.cluster.wait(name)
        assert (job.state, list(job.exit_codes.values())) == ("Deleted", [5, 5]), job.output  # none had to be killed
        for number in (0, 1):
            (log,) = (site.project / "logs").glob(f"{name}.*/pod{number}.log")
            assert "saved" in log.read_text() and "ended with exit code 5" in log.read_text()


def test_a_project_that_lacks_the_launcher(tmp_path):
    with Site(tmp_path) as site:
        shutil.rmtree(site.project / "launch")
        job = site.run("pi/pi.py")
        assert job.state == "Failed" and "there is no launch/ in /mnt/mlo/scratch/demo: copy the whole" in job.output


def test_what_the_client_refuses_is_told(site):
    done = site.script("pi/pi.py", RUNAI_PROJECT="mlo-nobody")
    assert done.returncode == 2
    assert "runai refused the job, see above. To log in: runai login. Your projects: runai project list" in done.stderr
    done = site.script("pi/pi.py", RUNAI_CLI="v1")
    assert done.returncode == 2 and 'unknown command "submit-dist"' in done.stdout + done.stderr
    assert "the other generation of the client: RUNAI_CLI=v1 or v2" in done.stderr


# ---- waiting pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [pytest.param("v1", marks=pytest.mark.drill), "v2"])
def test_waiting_pods_are_entered_used_and_deleted(generation, tmp_path):
    """With the commands that are printed, as they are printed."""
    with Site(tmp_path, generation) as site:
        done = site.script("01:00:00", name="interactive.sh", NNODES="2")
        assert done.returncode == 0, done.stdout + done.stderr
        name = site.name()
        site.cluster.wait_until_running(name)
        shells = re.findall(r"^  (runai .*bash .*--pod \S+)$", done.stdout, re.MULTILINE)
        assert len(shells) == 2
        for shell, pod in zip(shells, (f"{name}-master-0", f"{name}-worker-0")):
            inside = site.cluster.run("bash", "-c", f"echo 'hostname; echo user $USER' | {shell}", cwd=tmp_path)
            assert pod in inside.stdout and f"user {UID}\n" in inside.stdout
        (line,) = re.findall(r"^  (for pod in .*wait)$", done.stdout, re.MULTILINE)
        run = site.cluster.run("bash", "-c", line, cwd=tmp_path)
        assert "all-reduce over 2 rank(s) on 2 host(s): right" in run.stdout
        lines = re.findall(r"^(?:state|follow|a shell|delete).*?: +(runai .*)$", done.stdout, re.MULTILINE)
        calls = [parse(generation, line.split()[1:]) for line in lines]
        assert [call["command"].split()[-1].replace("job", "") for call in calls] in (
            ["describe", "logs", "bash", "delete"], ["", "logs", "bash", ""],
        )  # fmt: skip
        assert all(call["arguments"] == [name] and call["options"]["project"] == "mlo-jdoe" for call in calls)
        assert calls[1]["options"]["follow"] is True
        for line in lines[0], f"{lines[1]} --pod {name}-worker-0".replace("--follow", ""), f"{lines[2]} </dev/null":
            site.cluster.run("bash", "-c", line, cwd=tmp_path)
        assert f"--pod {name}-worker-0 after logs or bash; the first is {name}-master-0" in done.stdout
        assert f"  bash {POD_PROJECT_DIR}/runai/pod.sh check/ranks.py" in done.stdout.splitlines()
        (line,) = re.findall(r"or now: (bash .*)$", done.stdout, re.MULTILINE)
        deleted = site.script(*line.split()[2:], name="interactive.sh")
        assert deleted.returncode == 0, deleted.stdout + deleted.stderr
        assert site.cluster.wait(name).state == "Deleted"


def test_waiting_pods_end_by_themselves(site):
    done = site.script("00:00:02", name="interactive.sh", NNODES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    succeeded(site.cluster.wait(site.name()))


MOMENTS = ("check_settings", "job_start", "before_launch", "beside_launch", "after_launch", "job_end")
SEEN = """\
import os, sys, time
while not os.path.exists("beside-" + os.uname().nodename):  # or it may end before what is beside it begins
    time.sleep(0.05)
open("seen" + os.environ["RANK"], "w").write("|".join([os.environ["SEEN"], *sys.argv[1:]]))
"""


def test_the_moments_of_each_pod(tmp_path):
    """The user's command before the launcher, then the extra's; an argument; a failure that changes nothing."""
    with Site(tmp_path) as site:
        site.without_torchrun()
        settings = site.project / "env.sh"
        settings.write_text(settings.read_text().replace("RANK_PREFIX=()", 'RANK_PREFIX=(env "SEEN=a b")'))
        folder = site.project / "extras/one"
        folder.mkdir(parents=True)
        (folder / "settings.sh").write_text('ONE_WORD="${ONE_WORD:-default}"\n')
        does = {
            "job_start": 'arguments+=("c d")',
            "before_launch": 'rank_prefix+=(sh -c \'SEEN="$SEEN $0" exec "$@"\' "$ONE_WORD")',
            "beside_launch": 'touch "beside-$HOSTNAME"; while sleep 1000; do :; done',
            "after_launch": "return 3",
            # The job ends with its master, and these ranks do not wait for each other.
            "job_end": "[[ $HOSTNAME == *-worker-* ]] && touch ended || until [[ -e ended ]]; do sleep 0.1; done",
        }
        lines = [f"one_{moment}() {{ echo CALL {moment}; {does.get(moment, ':')}; }}\n" for moment in MOMENTS]
        (folder / "hooks.sh").write_text("".join(lines))
        job = site.run(site.program(SEEN), ONE_WORD="mine")
        succeeded(job)
        for rank, output in enumerate(job.outputs.values()):
            calls = re.findall(r"CALL (\w+)", output)
            assert calls == ["job_start", "check_settings", *MOMENTS[2:]], output
            assert "extras/one: one_after_launch failed with exit code 3; the job goes on" in output
            assert (site.project / f"seen{rank}").read_text() == "a b mine|c d"
