"""runai/submit_multinode.sh and interactive.sh without a cluster: the command that they make, and what they refuse.

The commands are read as the client of each generation reads them (stand_ins/stand_in_runai.py, with the sources).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import TEMPLATE, bake, documents
from infiniband import DOWN, LINK_LOCAL, OF_IPV4, PAIR, UP, V1, V2, write_infiniband
from waiting import PATIENCE

from cluster_options.sites import SITES

sys.path.insert(0, str(TEMPLATE.parent / "tests/clusters/stand_ins"))
from stand_in_runai import Refused, parse

ON_VOLUME = {"POD_PROJECT_DIR": "/mnt/mlo/scratch/jdoe/demo", "RUN_AS_UID": "1234", "RUN_AS_GID": "567"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b"), site="rcp", account="mlo-jdoe", gpus_per_node="8")


def script(project, *arguments, name="submit_multinode.sh", cwd=None, path="/usr/bin:/bin", **environment):
    return subprocess.run(
        ["bash", project / "runai" / name, *arguments], env={"PATH": path, "HOME": "/nowhere", **environment},
        cwd=cwd or project, capture_output=True, text=True, check=False,
    )  # fmt: skip


def pasted(shown):
    """The words of a command that is printed over several lines."""
    return shlex.split(shown.replace("\\\n", " "))


def command(project, generation, *arguments, **more):
    """The command that --dry-run prints, as the client reads it."""
    done = script(project, "--dry-run", *arguments, **{**ON_VOLUME, "RUNAI_CLI": generation, **more})
    assert done.returncode == 0, done.stderr
    words = pasted(done.stdout)
    assert words[0] == "runai"
    return parse(generation, words[1:])


# ---- flag by flag ----------------------------------------------------------------------------------------------------

# What their authors document for this cluster and for Run:ai, and the settings that say the same here. Left out: the
# job's name, a placeholder of the documents; image pull policy and working directory, which are RUNAI_OPTIONS.
DOCUMENTED = {
    # https://github.com/epfml/getting-started at 5b3f69d (2026-03-18), docs/multinode.md
    "epfml": (
        "v1", "submit-dist pytorch --name distributed-job --workers=1 -g 4 -i ic-registry.epfl.ch/mlo/mlo:v1 "
        "--annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1",
        {"GPUS_PER_NODE": "4", "IMAGE": "ic-registry.epfl.ch/mlo/mlo:v1"},
    ),
    # https://github.com/AleHD/smollm, README.md, course EE-628 (2025)
    "smollm": (
        "v1", "submit-dist pytorch --name nanotron --image registry.rcp.epfl.ch/me/ee628 --workers 1 --node-pools h200 "
        "--gpu 8 --large-shm --existing-pvc claimname=mlo-scratch,path=/mnt/mlo/scratch "
        "--annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1 --command",
        {"IMAGE": "registry.rcp.epfl.ch/me/ee628", "RETRIES": "1", "NODE_POOLS": "h200"},
    ),
    # https://github.com/run-ai/docs, docs/Researcher/cli-reference/runai-submit-dist-pytorch.md
    "Run:ai v1": (
        "v1", "submit-dist pytorch --name distributed-job --workers=2 -g 1 -i an/image:1",
        {"NNODES": "3", "GPUS_PER_NODE": "1", "IMAGE": "an/image:1"},
    ),
    # Run:ai 2.25 (2026-05): tutorials, distributed-pytorch, CLI v2; since then at https://docs.nvidia.com/run-ai/self-hosted
    "Run:ai v2": (
        "v2", "training pytorch submit a-name -i my-reg/pytorch-ddp-example:24.07-py3 --workers 1 -g 1 "
        "--existing-pvc claimname=mlo-scratch,path=/mnt/mlo/scratch --command",
        {"GPUS_PER_NODE": "1", "IMAGE": "my-reg/pytorch-ddp-example:24.07-py3"},
    ),
    # NeMo's executor for Run:ai (RunAICliExecutor, 2026), with the network and the devices of this cluster
    "NeMo": (
        "v2", "training pytorch submit a-name -p mlo-jdoe -i an/image:1 -g 8 --workers 3 --large-shm "
        "--node-pools default --existing-pvc claimname=mlo-scratch,path=/mnt/mlo/scratch "
        "--extended-resource rdma/rdma=1 --master-extended-resource rdma/rdma=1 "
        "--annotation k8s.v1.cni.cncf.io/networks=kube-system/roce -e NCCL_DEBUG=INFO --command",
        {"NNODES": "4", "IMAGE": "an/image:1", "NCCL_DEBUG": "INFO"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTED)
def test_the_command_says_what_is_documented(document, project):
    generation, line, settings = DOCUMENTED[document]
    wanted = parse(generation, [*shlex.split(line), "--", "some", "command"])
    ours = command(project, generation, "pi/pi.py", **settings)
    assert ours["command"] == wanted["command"]
    for name, value in wanted["options"].items():
        if name == "name":
            continue
        if isinstance(value, list) and name.startswith("env"):
            assert set(value) <= set(ours["options"][name])
        else:
            assert ours["options"][name] == value, name
    assert ours["words"][:2] == ["bash", "/mnt/mlo/scratch/jdoe/demo/runai/pod.sh"]


SETTINGS = [  # what is set, and what that is to each generation; None: not a word of it
    ({"NNODES": "5"}, {"workers": 4}, {"workers": 4}),
    ({"NNODES": "1"}, {"workers": None, "clean-pod-policy": None}, {"workers": None, "clean-pod-policy": None}),
    ({"NNODES": "1"}, {"extended-resource": None}, {"master-gpu-devices-request": None, "annotation": None}),
    ({}, {"gpu": 8.0}, {"gpu-devices-request": 8, "master-gpu-devices-request": 8}),
    ({"GPUS_PER_NODE": "0"}, {"gpu": None}, {"gpu-devices-request": None, "master-gpu-devices-request": None}),
    ({"CPUS_PER_NODE": "16"}, {"cpu": 16.0}, {"cpu-core-request": 16.0, "master-cpu-core-request": 16.0}),
    ({"MEMORY_PER_NODE": "9G"}, {"memory": "9G"}, {"cpu-memory-request": "9G", "master-cpu-memory-request": "9G"}),
    ({"RDMA": "0"}, {"extended-resource": None, "annotation": None}, {"master-extended-resource": None}),
    ({}, {"environment": ["REQUIRE_RDMA=1"]}, {"environment-variable": ["REQUIRE_RDMA=1"]}),
    ({"REQUIRE_RDMA": "0"}, {"environment": ["REQUIRE_RDMA=0"]}, {"environment-variable": ["REQUIRE_RDMA=0"]}),
    ({"RDMA": "0", "ALLOW_CPU": "1"}, {"environment": ["ALLOW_CPU=1"]}, {"environment-variable": ["ALLOW_CPU=1"]}),
    ({"RDMA": "0", "SOMETHING": "1"}, {"environment": None}, {"environment-variable": None}),
    ({}, {"run-as-uid": 1234, "run-as-gid": 567}, {"run-as-uid": 1234, "run-as-gid": 567}),
    ({}, {"large-shm": True, "host-ipc": None}, {"large-shm": True, "host-ipc": None}),
    ({"LARGE_SHM": "0", "HOST_IPC": "1"}, {"large-shm": None, "host-ipc": True}, {"large-shm": None, "host-ipc": True}),
    ({"PREEMPTIBLE": "1"}, {}, {"preemptibility": "preemptible"}),
    ({"PREEMPTIBLE": "0", "RUNAI_CLI": "v2"}, None, {"preemptibility": "non-preemptible"}),
    ({}, {"clean-pod-policy": "Running"}, {"clean-pod-policy": "Running"}),
    ({}, {"backoff-limit": 3}, {"backoff-limit": 3, "master-restart-policy": "OnFailure"}),  # of two pods together
    ({"RETRIES": "2", "NNODES": "4"}, {"backoff-limit": 9}, {"backoff-limit": 9}),
    ({"RETRIES": "2", "NNODES": "1"}, {"backoff-limit": 2}, {"backoff-limit": 2, "restart-policy": "OnFailure"}),
    ({"RETRIES": "0"}, {"backoff-limit": 0}, {"backoff-limit": 0, "restart-policy": "OnFailure"}),
    ({"NODE_POOLS": "h100,h200"}, {"node-pools": ["h100", "h200"]}, {"node-pools": ["h100", "h200"]}),
    ({"NODE_POOLS": "", "PYTHON": "python"}, {}, {"environment-variable": ["PYTHON=python", "REQUIRE_RDMA=1"]}),
    ({"GPUS_PER_NODE": "0"}, {"annotation": None}, {"environment-variable": ["NVIDIA_VISIBLE_DEVICES=void"]}),
    ({"KEEP_ENTRYPOINT": "1"}, {"command": None}, {"command": None}),
    ({"RUNAI_PROJECT": "mlo-other"}, {"project": "mlo-other"}, {"project": "mlo-other"}),
]


@pytest.mark.parametrize(("settings", "v1", "v2"), SETTINGS, ids=lambda value: str(value)[:40])
def test_each_setting_arrives_in_both_generations(settings, v1, v2, project):
    for generation, expected in (("v1", v1), ("v2", v2)):
        if expected is None:
            continue
        options = command(project, generation, "pi/pi.py", **settings)["options"]
        for name, value in expected.items():
            assert options.get(name) == value, (generation, name)


def test_lists_of_env_sh(tmp_path):
    project = bake(tmp_path, site="runai", account="lab")
    settings = (project / "env.sh").read_text()
    for old, new in {
        "VOLUMES=()": "VOLUMES=(data:/data home:/home/me)",
        "SECRETS=()": "SECRETS=(WANDB_API_KEY=wandb,key HF_TOKEN=hf,token)",
        "RUNAI_OPTIONS=()": "RUNAI_OPTIONS=(--node-type=NVIDIA-H200-141GB --toleration operator=Exists,key=gpu)",
        "RDMA_ANNOTATIONS=()": "RDMA_ANNOTATIONS=(a/b=c/d)",
        "RDMA_RESOURCES=()": "RDMA_RESOURCES=(nvidia.com/r0=1 nvidia.com/r1=1)",
    }.items():
        assert settings.count(f"\n{old}") == 1, old
        settings = settings.replace(f"\n{old}", f"\n{new}")
    (project / "env.sh").write_text(settings)
    own = {"POD_PROJECT_DIR": "/data/demo", "RUN_AS_UID": "", "RUN_AS_GID": ""}
    for generation in ("v1", "v2"):
        options = command(project, generation, "pi/pi.py", **own)["options"]
        assert options["existing-pvc"] == ["claimname=data,path=/data", "claimname=home,path=/home/me"]
        assert options["annotation"] == ["a/b=c/d"]
        assert options["extended-resource"] == ["nvidia.com/r0=1", "nvidia.com/r1=1"]
        assert options["node-type"] == "NVIDIA-H200-141GB"
        assert "run-as-uid" not in options
        if generation == "v1":
            assert {"WANDB_API_KEY=SECRET:wandb,key", "HF_TOKEN=SECRET:hf,token"} < set(options["environment"])
        else:
            assert options["env-secret"] == ["WANDB_API_KEY=wandb,key=key", "HF_TOKEN=hf,key=token"]
            assert options["master-extended-resource"] == options["extended-resource"]


def test_without_gpus_there_is_no_rdma_to_ask_for(tmp_path):
    project = bake(tmp_path, site="rcp", account="mlo-jdoe", partition="cpu", gpus_per_node="0")
    options = command(project, "v2", "pi/pi.py")["options"]
    assert not {"annotation", "extended-resource", "gpu-devices-request"} & set(options)
    assert options["environment-variable"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert options["node-pools"] == ["cpu"]


def test_the_volume_follows_from_the_project(tmp_path):
    for account, volume in (("mlo-jdoe", "mlo"), ("course-cs-552-jdoe", "course-cs-552")):
        settings = (bake(tmp_path / account, site="rcp", account=account) / "env.sh").read_text()
        assert f'VOLUMES=("{volume}-scratch:/mnt/{volume}/scratch")' in settings


# ---- names, programs, arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["demo", "My_Project.v2", "2024", "-x-", "é", "a" * 64, "UPPER--case__"])
def test_the_job_s_name_is_one_and_unique(wanted, project):
    names = {command(project, "v2", "pi/pi.py", JOB_PREFIX=wanted)["arguments"][0] for _ in range(2)}
    for name in names:
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and "--" not in name
        assert len(f"{name}-worker-9999") <= 63
    assert len(names) == 2


def test_where_programs_lie(project, tmp_path):
    pod = "/mnt/mlo/scratch/jdoe/demo"
    (project / "my own.py").write_text("print()\n")
    for arguments, cwd, expected in (
        (["pi/pi.py"], tmp_path, f"{pod}/pi/pi.py"),  # in the project
        (["pi.py"], project / "pi", f"{pod}/pi/pi.py"),  # in the current folder
        ([str(project / "pi/pi.py")], tmp_path, f"{pod}/pi/pi.py"),
        (["/mnt/mlo/scratch/other/x.py"], tmp_path, "/mnt/mlo/scratch/other/x.py"),  # not to be seen from here
        (["my own.py"], project, f"base64:{to_base64(f'{pod}/my own.py')}"),
        (["-m", "package.module"], tmp_path, "-m"),
    ):
        words = command(project, "v2", *arguments, cwd=cwd)["words"]
        assert words[:3] == ["bash", f"{pod}/runai/pod.sh", expected]


def to_base64(text):
    return subprocess.run(["base64", "-w0"], input=text, capture_output=True, text=True, check=True).stdout


def test_words_that_cross_the_client_need_no_quotes(project):
    arguments = [
        "a b",
        "",
        "$HOME",
        "it's",
        '"',
        "x;y",
        "*",
        "--flag=[1, 2]",
        "é",
        "base64:x",
        "l1\nl2\n",
        "long " * 40,
    ]
    arguments += ["plain=1,2"]
    words = command(project, "v1", "pi/pi.py", *arguments)["words"]
    assert all(re.fullmatch(r"[A-Za-z0-9._/:=@%+,-]+", word) for word in words)
    assert words[-1] == "plain=1,2" and words[3] == f"base64:{to_base64('a b')}"


WRONG = [
    ({"NNODES": "2x"}, [], "NNODES='2x': expected a whole number of at least 1"),
    ({"NNODES": "0"}, [], "NNODES='0'"),
    ({"GPUS_PER_NODE": "-1"}, [], "GPUS_PER_NODE='-1': expected a whole number of at least 0"),
    ({"GPUS_PER_NODE": "08"}, [], "GPUS_PER_NODE='08': expected a whole number of at least 0"),
    ({"RETRIES": "no"}, [], "RETRIES='no': expected a whole number of at least 0"),
    ({"RDMA": "yes"}, [], "RDMA='yes': expected 0 or 1"),
    ({"LARGE_SHM": "true"}, [], "LARGE_SHM='true': expected 0 or 1"),
    ({"RUN_AS_GID": "staff"}, [], "RUN_AS_UID='1234' RUN_AS_GID='staff': expected two numbers"),
    ({"RUNAI_CLI": "3"}, [], "RUNAI_CLI='3': expected v1 or v2"),
    ({"RUNAI_CLI": ""}, [], "runai was not found: install it"),
    ({"PREEMPTIBLE": "yes"}, [], "PREEMPTIBLE='yes': expected 0 or 1"),
    ({"PREEMPTIBLE": "0", "RUNAI_CLI": "v1"}, [], "CLI v1 has no option for it"),
    ({"RUN_AS_UID": ""}, [], "expected two numbers, yours (not root's) and your group's"),
    ({"RUN_AS_UID": "0"}, [], "RUN_AS_UID='0'"),
    ({"POD_PROJECT_DIR": ""}, [], "lies below none of VOLUMES (mlo-scratch:/mnt/mlo/scratch): copy it to one"),
    ({"POD_PROJECT_DIR": "/mnt/mlo/scratchy/x"}, [], "lies below none of VOLUMES"),
    ({"POD_PROJECT_DIR": "/mnt/mlo/scratch/my demo"}, [], "POD_PROJECT_DIR='/mnt/mlo/scratch/my demo': use letters"),
    ({"NCCL_DEBUG": "INFO;rm"}, [], "the value of -e NCCL_DEBUG cannot be handed to runai: letters, digits and"),
    ({"IMAGE": "an image"}, [], "the value of --image cannot be handed to runai"),
    ({"RUNAI_PROJECT": "a b"}, [], "the value of --project cannot be handed to runai"),
    ({}, ["nosuch.py"], "no program 'nosuch.py', neither here nor in"),
    ({}, ["/mnt/else/x.py"], "no program '/mnt/else/x.py'"),
    ({}, ["/etc/hosts"], "pods do not see /etc/hosts"),
    ({}, ["torchrun"], "no program 'torchrun': the submit script starts Python and the ranks"),
    ({}, ["python", "pi/pi.py"], "env.sh; name only the program and its arguments, as in"),
    ({}, ["-m"], "-m: name a module"),
    ({}, ["pi/pi.py", "#", "a", "comment"], "'#' is an argument: your shell takes comments for a part of the command"),
    ({}, ["--nodes=4"], "'--nodes=4': options for runai go into RUNAI_OPTIONS"),
]


@pytest.mark.parametrize(("settings", "arguments", "expected"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_use_is_refused_in_a_sentence(settings, arguments, expected, project):
    done = script(project, "--dry-run", *arguments, **{**ON_VOLUME, "RUNAI_CLI": "v2", **settings})
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "hf_token"])
def test_keys_are_not_forwarded(name, project, tmp_path):
    mine = Path(shutil.copytree(project, tmp_path / "mine"))
    text = (mine / "env.sh").read_text()
    (mine / "env.sh").write_text(text.replace("FORWARD=(", f"FORWARD=({name} "))
    done = script(mine, "--dry-run", "pi/pi.py", **ON_VOLUME, RUNAI_CLI="v2", **{name: "s3cr3t"})
    assert (done.returncode, done.stdout) == (2, "") and "s3cr3t" not in done.stderr
    assert f"FORWARD in env.sh: {name} " in done.stderr and "SECRETS" in done.stderr
    (mine / "env.sh").write_text(text.replace("FORWARD=(", "FORWARD=(MAX_TOKENS TOKENIZERS_PARALLELISM "))
    done = script(mine, "--dry-run", "pi/pi.py", **ON_VOLUME, RUNAI_CLI="v2", MAX_TOKENS="7")
    assert done.returncode == 0 and "-e MAX_TOKENS=7" in done.stdout, done.stderr


@pytest.mark.parametrize("setting", ["FORWARD=(NAME)", "RUNAI_OPTIONS=(--env=NAME='s3 cr3t')"])
def test_a_value_that_is_refused_is_not_printed(setting, project, tmp_path):
    """It may be a key, for which the message names SECRETS."""
    mine = Path(shutil.copytree(project, tmp_path / "mine"))
    text = (mine / "env.sh").read_text()
    (mine / "env.sh").write_text(re.sub(rf"(?m)^{setting.partition('=')[0]}=\([^)]*\)", setting, text))
    done = script(mine, "--dry-run", "pi/pi.py", **ON_VOLUME, RUNAI_CLI="v2", NAME="s3 cr3t")
    assert (done.returncode, done.stdout) == (2, "") and "cr3t" not in done.stderr
    assert "the value of -" in done.stderr and "SECRETS" in done.stderr, done.stderr


def test_volumes_are_needed(tmp_path):
    project = bake(tmp_path, site="runai", account="lab")
    done = script(project, "--dry-run", RUNAI_CLI="v2")
    assert done.returncode == 2 and "VOLUMES in env.sh is empty: name the PVC" in done.stderr
    text = (project / "env.sh").read_text()
    for volume in ("data=/data", ":/data", "data:/data/", "data:/data:ro", "data:data"):
        (project / "env.sh").write_text(text.replace("\nVOLUMES=()", f'\nVOLUMES=("{volume}")'))
        done = script(project, "--dry-run", RUNAI_CLI="v2")
        assert done.returncode == 2 and f"'{volume}' is not CLAIM:/FOLDER" in done.stderr
    text = text.replace("\nVOLUMES=()", '\nVOLUMES=("data:/data")').replace("\nSECRETS=()", "\nSECRETS=(TOKEN=hf)")
    (project / "env.sh").write_text(text)
    done = script(project, "--dry-run", RUNAI_CLI="v2")
    assert done.returncode == 2 and "SECRETS in env.sh: 'TOKEN=hf' is not VARIABLE=SECRET,KEY" in done.stderr
    settings = {"POD_PROJECT_DIR": "/data/demo", "RUNAI_CLI": "v2"}
    (project / "env.sh").write_text(text.replace("SECRETS=(TOKEN=hf)", "SECRETS=()").replace(":-lab}", ":-}"))
    done = script(project, "--dry-run", **settings)
    assert done.returncode == 2 and "RUNAI_PROJECT is empty; set it in env.sh (runai project list" in done.stderr
    done = script(project, "--dry-run", **settings, RUNAI_PROJECT="lab", RUN_AS_UID="me")
    assert done.returncode == 2 and "RUN_AS_UID='me' RUN_AS_GID='': expected numbers, or nothing" in done.stderr


def test_a_project_on_a_volume_needs_no_word_of_it(tmp_path):
    """As on a jump host: the folder here is the one in the pods, and its owner the one to be."""
    project = bake(tmp_path / "vol", site="rcp", account="mlo-jdoe")
    settings = (project / "env.sh").read_text()
    (project / "env.sh").write_text(settings.replace("/mnt/mlo/scratch", str(tmp_path / "vol")))
    folder = project.stat()
    (tmp_path / "vol/other").mkdir()
    (tmp_path / "vol/other/x.py").write_text("print()\n")
    known = {"RUN_AS_UID": "77", "RUN_AS_GID": "88"}  # root, who may run the tests, is nobody on a volume
    done = script(project, "--dry-run", "x.py", cwd=tmp_path / "vol/other", RUNAI_CLI="v2", **known)
    assert done.returncode == 0, done.stderr
    found = parse("v2", pasted(done.stdout)[1:])
    assert found["words"] == ["bash", f"{project}/runai/pod.sh", f"{tmp_path}/vol/other/x.py"]
    done = script(project, "--dry-run", RUNAI_CLI="v2")
    if folder.st_uid:
        found = parse("v2", pasted(done.stdout)[1:])
        assert (found["options"]["run-as-uid"], found["options"]["run-as-gid"]) == (folder.st_uid, folder.st_gid)
    else:
        assert "RUN_AS_UID='0' RUN_AS_GID='0': expected two numbers, yours (not root's)" in done.stderr
        os.chown(project, 4321, 765)
        assert f"{project} is not yours: submit from a copy" in script(project, "--dry-run", RUNAI_CLI="v2").stderr
    done = script(project, "--dry-run", RUNAI_CLI="v2", **{**known, "POD_PROJECT_DIR": str(tmp_path / "vol/other")})
    assert done.returncode == 2 and "there is no runai/pod.sh in POD_PROJECT_DIR" in done.stderr


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_pods_that_wait(generation, project):
    done = {}
    for time in ([], ["00:30:00"], ["1-00:00:01", "--dry-run"]):
        for nodes in ("1", "3"):
            settings = {**ON_VOLUME, "RUNAI_CLI": generation, "NNODES": nodes}
            words = time if "--dry-run" in time else ["--dry-run", *time]
            shown = script(project, *words, name="interactive.sh", **settings)
            assert shown.returncode == 0, shown.stderr
            done[(*time, nodes)] = call = parse(generation, pasted(shown.stdout)[1:])
            variables = call["options"]["environment" if generation == "v1" else "environment-variable"]
            assert "HOME=/tmp" in variables  # the image's belongs to another user
    assert [one["words"] for one in done.values()][::2] == [["sleep", "7200"], ["sleep", "1800"], ["sleep", "86401"]]
    assert done["3",]["options"]["workers"] == 2 and "workers" not in done["1",]["options"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["0:30"], "'0:30': expected a time [D-]HH:MM:SS"),
        (["00:30:00", "01:00:00"], "'00:30:00 01:00:00': expected at most one time, such as 00:30:00, and --dry-run"),
        (["00:30:00", "--delete", "a"], "expected one job: bash runai/interactive.sh --delete NAME"),
        (["00:00:00"], "expected a time above zero"),
        (["--delete"], "expected one job"),
        (["--delete", "a", "b"], "expected one job"),
        (["--delete", "--all"], "'--all': expected the name of one job"),
        (["--delete", "-A"], "'-A': expected the name of one job"),
        (["--delete", ""], "'': expected the name of one job"),
        (["--delete", "demo-0101-120000-1234 x"], "expected the name of one job"),
        (["--delete", "colleague-0101-120000-1234"], "expected a job of this project, whose name begins with demo-"),
    ],
)
def test_wrong_use_of_waiting_pods(arguments, expected, project):
    done = script(project, *arguments, name="interactive.sh", RUNAI_CLI="v2", **ON_VOLUME)
    assert done.returncode == 2 and expected in done.stderr


@pytest.mark.parametrize("prefix", ["demo", "My_Project.v2", "2024", "-x-", "é", "a" * 29, "a" * 64, ""])
def test_every_job_of_the_project_can_be_deleted(prefix, project, tmp_path):
    (tmp_path / "runai").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "runai").chmod(0o755)
    settings = {**ON_VOLUME, "RUNAI_CLI": "v2", "JOB_PREFIX": prefix, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shell = script(project, "--dry-run", name="interactive.sh", **settings)
    for shown in (script(project, "--dry-run", "pi/pi.py", **settings), shell):
        name = shlex.split(shown.stdout.replace("\\\n", ""))[4]
        done = script(project, "--delete", name, name="interactive.sh", **settings)
        assert done.stdout == f"workload delete {name} -y -p mlo-jdoe\n", done.stderr


@pytest.mark.parametrize(("setting", "words"), [("RUNAI_PROJECT", ["--delete", "a"]), ("IMAGE", ["--dry-run"])])
def test_what_env_sh_lacks_is_named(setting, words, project, tmp_path):
    mine = Path(shutil.copytree(project, tmp_path / "mine"))
    settings = mine / "env.sh"
    text, count = re.subn(rf"^{setting}=.*$", f'{setting}=""', settings.read_text(), flags=re.MULTILINE)
    assert count == 1
    settings.write_text(text)
    done = script(mine, *words, name="interactive.sh", RUNAI_CLI="v2", **ON_VOLUME)
    assert done.returncode == 2 and f"{setting} is empty; set it in env.sh" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("file", "first"), [("submit_multinode.sh", "Runs a PyTorch"), ("interactive.sh", "Pods that")]
)
def test_help_is_the_head_of_the_file(file, first, project):
    done = script(project, "--help", name=file)
    assert done.returncode == 0 and done.stdout.startswith(first) and "die" not in done.stdout


@pytest.mark.parametrize("site", ["rcp", "runai"])
def test_the_commands_of_the_documents_are_ones_of_the_client(site, tmp_path):
    """Every `runai …` of them, those for CLI v1 as well."""
    text = documents(bake(tmp_path, site=site, account="mlo-jdoe"))
    found = re.findall(r"(?:`|^)(runai [a-z][^`\n…]*)", text, re.MULTILINE)
    assert len(found) > 15
    for line in found:
        if line.split()[1] == "login":  # which the stand-in has not
            continue
        words, read = line.split()[1:], []
        words += ["a-name", "--image", "i"] if words[-1] == "submit" else []
        for generation in ("v1", "v2"):
            with contextlib.suppress(Refused):
                read.append(parse(generation, words))
        assert read, line


def test_what_is_submitted_from_macos_needs_no_more_than_bash_3(project):
    """Which is not at hand in tests: these are what later versions brought."""
    newer = r"\b(mapfile|readarray|declare -[Ang]|coproc|wait -n)\b|\$\{\w+(,|\^|@\w)|\[\[ -v |&>>|\|&|local -[An]"
    files = (
        "env.sh",
        "launch/extras.sh",
        "launch/moments.sh",
        "runai/project.sh",
        "runai/submit.sh",
        "runai/command.sh",
        "runai/submit_multinode.sh",
        "runai/interactive.sh",
    )
    for file in files:
        assert not re.search(newer, (project / file).read_text()), file


# ---- RDMA ------------------------------------------------------------------------------------------------------------

POD_LIB = (TEMPLATE / "runai/job.sh").read_text()
FUNCTION = re.search(r"^roce_gid_index\(\) {\n.*?^}\n", POD_LIB, re.DOTALL | re.M)[0]
OTHER = "0" * 39


def tree(folder, devices):
    """Write a /sys/class/infiniband of devices with one port each: link layer, state, GIDs with their types."""
    for device, (link_layer, state, gids) in devices.items():
        write_infiniband(folder, {device: {1: {"link_layer": link_layer, "state": state, "gids": gids}}})
    return folder


TREES = {
    "one pair": ({"mlx5_bond_0": ("Ethernet", UP, PAIR)}, "3"),
    "one match alone": ({"mlx5_bond_0": ("Ethernet", UP, [(LINK_LOCAL, V1), (OF_IPV4, V2)])}, "1"),
    "no RoCE v2 over IPv4": ({"mlx5_bond_0": ("Ethernet", UP, PAIR[:3])}, ""),
    "nothing": ({}, ""),
    "two addresses: the lowest": ({"mlx5_0": ("Ethernet", UP, [*PAIR, (OF_IPV4, V2), (OTHER, V2)])}, "3"),
    "ten before two, as a shell sorts": (
        {"m": ("Ethernet", UP, [(LINK_LOCAL, V1)] * 2 + [(OF_IPV4, V2)] + [(OF_IPV4, V2)] * 9)},
        "2",
    ),
    "several that agree": ({"mlx5_0": ("Ethernet", UP, PAIR), "bnxt_re1": ("Ethernet", UP, PAIR)}, "3"),
    "several that differ": ({"mlx5_0": ("Ethernet", UP, PAIR), "mlx5_1": ("Ethernet", UP, PAIR[1:])}, ""),
    "another that is down": ({"mlx5_0": ("Ethernet", DOWN, PAIR[1:]), "mlx5_1": ("Ethernet", UP, PAIR)}, "3"),
    "of another pod": ({"m": ("Ethernet", UP, [(OF_IPV4, None), (OF_IPV4, None), (OTHER, None), *PAIR])}, "6"),
    "InfiniBand": ({"mlx5_0": ("InfiniBand", UP, PAIR)}, ""),
    "InfiniBand beside": ({"mlx5_0": ("InfiniBand", UP, PAIR[1:]), "mlx5_1": ("Ethernet", UP, PAIR)}, "3"),
}


@pytest.mark.parametrize("case", TREES)
def test_the_gid_index_of_roce(case, tmp_path):
    devices, expected = TREES[case]
    folder = tree(tmp_path / "infini band", devices)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'{FUNCTION}\nroce_gid_index "$1"', "test", folder],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, expected, "")


def test_a_folder_of_the_image_is_told_from_a_volume(tmp_path):
    """By what /proc/self/mountinfo says; here of a pod with a volume whose name has another's before it."""
    function = re.search(r"^mounted\(\) {\n.*?^}\n", POD_LIB, re.DOTALL | re.M)[0]
    table = "500 400 0:90 / / rw - overlay overlay rw\n501 500 0:91 /x /mnt/mlo/scratch rw - nfs4 server:/ rw\n"
    (tmp_path / "mountinfo").write_text(table + "502 500 0:92 / /dev/shm rw - tmpfs tmpfs rw\n")
    assert function.count("/proc/self/mountinfo") == 1
    function = function.replace("/proc/self/mountinfo", str(tmp_path / "mountinfo"))
    for folder, code in (("/mnt/mlo/scratch", 0), ("/mnt/mlo/scratch/a/b", 0), ("/mnt/mlo/scratchy/a", 1), ("/a", 1)):
        done = subprocess.run(["bash", "-euc", f'{function}\nmounted "$1"', "test", folder], check=False)
        assert done.returncode == code, folder


def test_a_site_of_one_s_own(tmp_path):
    """A file of a user's own for Run:ai: what it says of pods is written."""
    text = (SITES / "runai.yaml").read_text()
    pods = "pods: {volumes: [{claim: data, path: /data}], run_as_user: true, annotations: [n=x/y], "
    (tmp_path / "lab.yaml").write_text(text + pods + "extended_resources: [a/b=2]}\n")
    settings = (bake(tmp_path, site=tmp_path / "lab.yaml", account="x") / "env.sh").read_text()
    for line in ('VOLUMES=("data:/data")', 'RDMA_ANNOTATIONS=("n=x/y")', 'RDMA_RESOURCES=("a/b=2")'):
        assert f"\n{line}\n" in settings
    assert "root has no access to the volumes" in settings


# ---- extras ----------------------------------------------------------------------------------------------------------


def test_what_an_extra_may_change_before_the_submission(tmp_path):
    """Its setting of the calling shell reaches the pods, too."""
    project = bake(tmp_path, site="rcp", account="mlo-jdoe", extras="none")
    folder = project / "extras/one"
    folder.mkdir(parents=True)
    (folder / "settings.sh").write_text('ONE_WORD="${ONE_WORD:-default}"\nONE_OTHER="${ONE_OTHER:-2}"\n')
    added = 'pod_variables+=(FROM="$ONE_WORD") program+=(added) RUNAI_OPTIONS+=(--node-type=x)'
    (folder / "hooks.sh").write_text(f"one_before_submit() {{ {added}; }}\n")
    made = command(project, "v2", "pi/pi.py", ONE_WORD="mine")
    assert {"FROM=mine", "ONE_WORD=mine"} <= set(made["options"]["environment-variable"]), made
    assert not [word for word in made["options"]["environment-variable"] if word.startswith("ONE_OTHER")]
    assert made["words"][-2:] == [f"{ON_VOLUME['POD_PROJECT_DIR']}/pi/pi.py", "added"]


def test_a_setting_of_an_extra_that_is_not_here(tmp_path):
    project = bake(tmp_path, site="rcp", account="mlo-jdoe", extras="none")
    done = script(project, "--dry-run", "pi/pi.py", **ON_VOLUME, RUNAI_CLI="v2", SNAPSHOT="1")
    assert done.returncode == 2
    said = "runai/submit_multinode.sh: SNAPSHOT=1: extras/snapshot is not in this project. To add it: "
    assert done.stderr.startswith(said)
