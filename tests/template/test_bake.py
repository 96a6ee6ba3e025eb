"""Every combination of answers is written whole and clean; the template itself is clean too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, account, bake, combinations, cookiecutter, documents, page, write
from documents import dead_links

from cluster_options.answers import suggest
from cluster_options.contradictions import PLUGIN_OPTIONS
from cluster_options.files import files as files_of_project
from cluster_options.files import needed, template_files
from cluster_options.questions import QUESTION_NAMES, cookiecutter_json, table
from cluster_options.sites import site_facts, site_names

SITES = site_names()
# examples=no: what a project that exists has of its own, and programs to learn from
EXAMPLES = re.compile(r"(?:benchmark|pi|tests|training)/|(?:README\.md|\.gitignore|requirements\.txt|check/hello\.py)$")
INTO_A_PROJECT = [
    {"site": "local", "runtime": "venv"},
    {"site": "runai", "account": "mlo-jdoe"},
    {"site": "rcp", "account": "mlo-jdoe"},
    *({"site": "slurm", "runtime": runtime} for runtime in ("none", "venv", "apptainer", "pyxis", "enroot")),
    {"site": "slurm", "runtime": "venv", "launcher": "mpirun-ranks"},
    {"site": "mn5", "account": "abc", "runtime": "apptainer"},
    {"site": "clariden", "runtime": "edf"},
    {"site": "lumi", "account": account("lumi")},
    {"site": "perlmutter", "account": account("perlmutter"), "runtime": "shifter"},
    {"site": "perlmutter", "account": account("perlmutter"), "runtime": "podman-hpc"},
]
COMBINATIONS = combinations()
TOOLS = Path(sys.executable).parent


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


LINTED = set()  # contents that were found clean: launchers and GPU counts change few files


# A line of a script that is one word of plain text, or prints or keeps one: a message with the site's own commands.
PLAIN_TEXT = re.compile(r'(?m)^( *(?:echo |local \w+=)?)"(?:[^"$`\\]|\\"|\$USER\b)*"(?: # .*)?$')


def linted(path):
    """Return what shellcheck or ruff sees of a file: a script without texts and comments, but with directives."""
    text = path.read_text()
    if path.suffix == ".py":
        return text
    return PLAIN_TEXT.sub(r'\1"text"', re.sub(r"(?m)^ *#(?!!| shellcheck).*\n", "\n", text))


def lint(folder):
    """Return what bash -n, shellcheck and ruff have to say about a folder; '' is what it should be."""
    new = [
        path
        for path in folder.rglob("*")
        if path.suffix in {".sh", ".sbatch", ".rc", ".py"} and linted(path) not in LINTED
    ]
    scripts = [str(path) for path in new if path.suffix != ".py"]
    commands = []
    if scripts:
        commands.append(["bash", "-c", 'for script; do bash -n "$script"; done', "_", *scripts])
        commands.append([TOOLS / "shellcheck", *scripts])
    if programs := [path for path in new if path.suffix == ".py"]:
        ruff = [TOOLS / "ruff", "check", "-q", "--no-cache"]
        commands.append([*ruff, "--config", REPOSITORY / "pyproject.toml", *programs])
        commands.append([*ruff, "--isolated", *programs])  # a written project brings no configuration
    said = [subprocess.run(command, capture_output=True, text=True, check=False) for command in commands]
    faults = "".join(done.stdout + done.stderr for done in said)
    if not faults:
        LINTED.update(map(linted, new))
    return faults


def usual(answers):
    """Whether a project has what its site suggests, or is one of `slurm` with another launcher or runtime.

    The others, nine of ten, are left to the drills.
    """
    questions = ("runtime", "launcher", "gpus_per_node")
    differences = sum(answers[question] != suggest(answers["site"], question) for question in questions)
    return differences <= (1 if answers["site"] == "slurm" else 0)


@pytest.mark.parametrize(
    "answers",
    [answers if usual(answers) else pytest.param(answers, marks=pytest.mark.drill) for answers in COMBINATIONS],
    ids=lambda answers: "-".join(filter(None, answers.values())),
)
def test_every_combination_is_whole_and_clean(answers, written):
    project = written(**answers, extras="all")
    assert files(project) == kept(answers)
    assert_clean(project)


@pytest.mark.parametrize("answers", INTO_A_PROJECT, ids=lambda answers: "-".join(answers.values()))
def test_examples_are_left_out_whole_and_clean(answers, tmp_path):
    """Nothing that is written names a file that is not."""
    project = bake(tmp_path, examples="no", **answers, extras="all")
    facts = site_facts(answers["site"])
    defaults = {"runtime": facts["runtimes"][0], "launcher": facts["launchers"][0]}
    assert files(project) == kept({**defaults, **answers, "examples": "no"})
    assert not [name for name in files(project) if EXAMPLES.match(name)]
    assert (project / f"{facts['kind']}/README.md").exists()
    assert_clean(project)
    for path in filter(Path.is_file, project.rglob("*")):
        if path.name == "notebook.png":
            continue
        text = path.read_text()
        names = re.findall(r"(?<![\w/.-])(?:training|pi|benchmark|tests)/\w+\S*", text)
        names += re.findall(r"train_(?:ddp|fsdp|single)\S*|\bpi\.py|all_reduce\.py|\bhello\.py", text)
        names += re.findall(r"(?<!/)README\.md", text) if path.name != "README.md" else []
        assert not names, f"{path}: {names}"


def kept(answers):
    """Return the files that cluster_options/files.py keeps for the answers."""
    answers = {"project": "demo", "examples": "yes", "extras": "all", **answers}
    answers.setdefault("image", suggest(answers["site"], "image", answers["runtime"]))
    return {name for name, is_kept in files_of_project(answers).items() if is_kept}


def test_each_row_of_the_table_of_files_names_a_file():
    """A row whose file was renamed or removed would keep nothing, and drop nothing."""
    answers = {"project": "demo", "site": "slurm", "runtime": "edf", "launcher": "torchrun", "image": "x#y"}
    answers |= {"examples": "yes", "extras": "all"}
    assert set(needed(answers)) <= set(template_files())


def joined_in_markdown(text):
    """Return what lacks the blank line before it: headings, tables, code, bold beginnings, text after a table."""
    blocks = re.split(r"^(```.*?^```)$", text, flags=re.DOTALL | re.MULTILINE)
    joined = [code for before, code in zip(blocks[::2], blocks[1::2]) if not before.endswith("\n\n")]
    for prose in blocks[::2]:
        joined += re.findall(r"[^\n]\n(?:#+ .*|\|---.*\n[^|].*|\*\*.*)", prose)
        joined += re.findall(r"(?m)^\|.*\n[^|\n].*", prose)
    return joined


def assert_clean(project):
    for path in project.rglob("*"):
        if path.suffix == ".png":
            assert path.read_bytes() == (TEMPLATE / path.relative_to(project)).read_bytes()
        elif path.is_file():
            text = path.read_text()
            left = re.findall(r"\{\{.*|\{%.*|^\s*#\?.*|cookiecutter\.\w+", text, re.MULTILINE)
            assert not left, f"{path}: {left}"
            assert text.endswith("\n") and not text.endswith("\n\n"), path
            prose = re.sub(r"^```.*?^```$", "code", text, flags=re.DOTALL | re.MULTILINE)  # a program has such lines
            assert path.suffix == ".py" or "\n\n\n" not in prose, path
    for document in project.rglob("*.md"):
        assert not joined_in_markdown(document.read_text()), document
        assert not dead_links(document), document
    for script in [*project.glob("slurm/*.sh"), *project.glob("slurm/*.sbatch")]:
        for line in re.findall(r"^#SBATCH.*", script.read_text(), re.MULTILINE):
            assert re.fullmatch(r"#SBATCH --[a-z-]+=?\S* +# \S.*", line), f"{script}: no reason: {line}"
            assert not any(option in line for option in PLUGIN_OPTIONS), "breaks elsewhere"
    assert lint(project) == ""


def test_the_template_is_clean_before_it_is_rendered():
    assert lint(TEMPLATE) + lint(REPOSITORY / "templates") == ""
    others = [REPOSITORY / name for name in ("hooks", "tests", "perf")] + sorted(REPOSITORY.glob("*.py"))
    for command in (["check", "--quiet", "--no-cache"], ["format", "--check", "--quiet", "--no-cache"]):
        done = subprocess.run(
            [TOOLS / "ruff", *command, TEMPLATE, *others], cwd=REPOSITORY, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout.decode()


def test_no_condition_stands_inside_a_sentence():
    """A document reads as it will be written: what depends on an answer is a paragraph, a line of a list, or a file."""
    parts = REPOSITORY / "templates"
    documents = [*TEMPLATE.rglob("*.md"), *parts.glob("*.md"), *parts.glob("env.*")]
    assert len(documents) > 40
    for document in documents:
        woven = re.findall(r"\{\{[^}]* if .*|\{%.*", document.read_text())
        assert not woven, f"{document.relative_to(REPOSITORY)}: {woven}"


def test_a_variable_for_one_job_stands_before_a_script_that_exports_it():
    """At some sites sbatch drops variables. The submit script calls it with --export=ALL, and so they arrive."""
    for path in [path for suffix in ("md", "sh", "py") for path in TEMPLATE.rglob(f"*.{suffix}")]:
        dropped = re.findall(r"\b(?!SBATCH_)[A-Z_]+=\S+ sbatch .*", path.read_text())
        assert not dropped, f"{path}: {dropped}"


def test_the_header_follows_the_answers(tmp_path):
    answers = {"account": "abc@h100", "nodes": "3", "gpus_per_node": "2", "time_limit": "01:00:00", "qos": "acc_debug"}
    header = (bake(tmp_path, site="mn5", **answers) / "slurm/submit_multinode.sh").read_text()
    options = re.findall(r"^#SBATCH (\S+)", header, re.MULTILINE)
    # mn5 shares nodes: two of four GPUs come with half of the 80 cores
    for option in ("--account=abc@h100", "--nodes=3", "--gres=gpu:2", "--cpus-per-task=40", "--time=01:00:00"):
        assert option in options
    # early enough for a checkpoint, late enough to be worth the wait before
    for limit, signal in (("00:02:00", 30), ("00:30:00", 180), ("1-00:00:00", 300)):
        header = (bake(tmp_path / limit, site="slurm", time_limit=limit) / "slurm/submit_multinode.sh").read_text()
        assert f"#SBATCH --signal=B:USR1@{signal} " in header
    cpu = (bake(tmp_path / "cpu", site="slurm", gpus_per_node="0") / "slurm/submit_multinode.sh").read_text()
    assert not re.search(r"^#SBATCH.*gpu", cpu, re.MULTILINE)
    # of a cluster that is not known, a job asks for its GPUs and some cores, and not for a node
    for gpus, cores in (("0", "4"), ("1", "4"), ("4", "16")):
        project = bake(tmp_path / f"unknown{gpus}", site="slurm", gpus_per_node=gpus)
        options = re.findall(r"^#SBATCH (\S+)", (project / "slurm/submit_multinode.sh").read_text(), re.MULTILINE)
        assert f"--cpus-per-task={cores}" in options
        assert not [option for option in options if option.startswith(("--exclusive", "--mem"))]
    # where a whole node has to be asked for, pip takes a part of it
    lab = (
        (REPOSITORY / "sites/slurm.yaml").read_text().replace("  cores_per_gpu: 4\n", "  memory: '0'\n  whole: true\n")
    )
    (tmp_path / "lab.yaml").write_text(f"{lab}directives: [{{option: --exclusive, why: x}}]\n")
    project = bake(tmp_path / "build", site=tmp_path / "lab.yaml", gpus_per_node="4")
    options = re.findall(r"^#SBATCH (\S+)", (project / "slurm/build_venv.sh").read_text(), re.MULTILINE)
    assert "--gpus-per-node=1" in options and not {"--exclusive", "--mem=0"} & set(options)
    assert "--exclusive" in (project / "slurm/submit_multinode.sh").read_text()


OF_DOCKER = {"image": "docker://nvcr.io/nvidia/pytorch:25.05-py3"}
# What a site's file says, and where it has to arrive.
SPECIFIC = [
    ("juwels-booster", {}, "env.sh", 'MASTER_ADDR_SUFFIX="${MASTER_ADDR_SUFFIX:-i}"'),
    ("juwels-booster", {}, "env.sh", 'export "CUDA_VISIBLE_DEVICES=0,1,2,3"'),
    ("juwels-booster", {}, "slurm/ranks.sh", 'if [[ $1 != rank.sh ]]; then step+=("--cpu-bind=none"); fi'),
    ("jupiter", {}, "slurm/interactive.sh", 'step+=("--cpu-bind=none")'),
    ("frontier", {}, "launch/software.sh", "    module reset\n"),
    (
        "frontier",
        {},
        "launch/software.sh",
        '    export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH" # the ',
    ),
    (
        "roihu",
        {},
        "launch/software.sh",
        "    source /etc/profile.d/zz-csc-env.sh # defines the command module\n    module purge",
    ),
    ("frontier", {}, "env.sh", 'LAUNCHER="${LAUNCHER:-srun}"'),
    ("frontier", {}, "env.sh", "https_proxy=${https_proxy:-http://proxy.ccs.ornl.gov:3128/}"),
    ("frontier", {}, "slurm/ranks.sh", '$per_node == "8" ]]; then step+=("--cpu-bind=mask_cpu:'),
    ("frontier", {}, "slurm/submit_multinode.sh", "#SBATCH --network=disable_rdzv_get "),
    ("frontier", {}, "slurm/build_venv.sh", "torch.version.hip is None"),
    ("frontier", {"runtime": "apptainer"}, "launch/software.sh", 'CONTAINER_EXEC=("$program" exec)'),
    ("lumi", {}, "env.sh", 'export "MIOPEN_USER_DB_PATH=/tmp/miopen-${USER}-${SLURM_JOB_ID}"'),
    ("lumi", {}, "env.sh", 'TORCHRUN_OPTIONS="${TORCHRUN_OPTIONS---numa-binding=exclusive}"'),
    ("lumi", {}, "launch/torchrun.sh", '[[ $processes != "8" ]]'),
    ("lumi", {}, "env.sh", "IMAGE:-/appl/local/laifs/containers/lumi-multitorch-latest.sif"),
    (
        "isambard-ai",
        {"runtime": "apptainer"},
        "launch/software.sh",
        'CONTAINER_EXEC+=("/host/adapt.sh")\n    CONTAINER_EXEC+=(env)',
    ),
    (
        "isambard-ai",
        {"runtime": "apptainer"},
        "launch/software.sh",
        'CONTAINER_EXEC+=("NCCL_CROSS_NIC=$NCCL_CROSS_NIC")',
    ),
    ("isambard-ai", {"runtime": "apptainer"}, "env.sh", 'export "NCCL_CROSS_NIC=${NCCL_CROSS_NIC:-1}"'),
    ("isambard-ai", {}, "README.md", "\nssh PROJECT.aip2.isambard\n"),
    ("jean-zay", {}, "slurm/job.sh", 'echo "10001 10000"'),
    ("isambard-ai", {"runtime": "venv"}, "env.sh", '"brics/default" "cray-python" "brics/nccl")'),
    ("lumi", {}, "env.sh", 'export "TRITON_CACHE_DIR=/tmp/triton-'),
    ("lumi", {}, "slurm/minimal.sbatch", 'export "TORCHINDUCTOR_CACHE_DIR=/tmp/'),
    ("jean-zay", {}, "env.sh", '"none" ]] || MODULES=("arch/h100" "pytorch-gpu/'),
    ("mn5", {}, "env.sh", 'export "HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}"'),
    ("mn5", {"extras": "all"}, "extras/scaling/README.md", "| 128 | 512 | 633.6 | 317.4 |"),
    ("slurm", {}, "README.md", "\nssh USER@HOST\n"),
    ("clariden", {}, "README.md", "\nssh -J USER@ela.cscs.ch USER@clariden.alps.cscs.ch\n"),
    ("clariden", {}, "README.md", 'rsync -e "ssh -J USER@ela.cscs.ch" -a demo USER@clariden.alps.cscs.ch:/iopsstor/'),
    ("alex", {"extras": "all"}, "extras/stage/README.md", 'write `STAGE_DIR="${STAGE_DIR:-${TMPDIR:-/tmp}}"` into'),
    ("mn5", {"extras": "all"}, "extras/notebook/README.md", "such as --time=02:00:00"),
    ("mn5", {"extras": "all"}, "extras/sweep/README.md", "--nodes=1 --qos=NAME -- training/"),
    (
        "mn5",
        OF_DOCKER,
        "README.md",
        "rsync -P container/demo.tar USER@transfer1.bsc.es:/gpfs/projects/GROUP/demo/container/",
    ),
    (
        "leonardo",
        {},
        "slurm/build_venv.sh",
        "#   pip download --extra-index-url=https://download.pytorch.org/whl/cu126 -r req",
    ),
    ("leonardo", {"gpus_per_node": "1"}, "slurm/submit_multinode.sh", "#SBATCH --mem=123500M "),
    (
        "perlmutter",
        {"qos": "shared", "nodes": "1", "gpus_per_node": "1"},
        "slurm/submit_multinode.sh",
        "--cpus-per-task=32 ",
    ),
    ("snellius", {"partition": "gpu_h100", "gpus_per_node": "4"}, "slurm/submit_multinode.sh", "--cpus-per-task=64 "),
    ("snellius", {"partition": "rome", "gpus_per_node": "0"}, "slurm/submit_multinode.sh", "--cpus-per-task=128 "),
    ("clariden", {}, "slurm/build_container.sh", "#SBATCH --partition=normal "),
    ("clariden", {}, "slurm/interactive.sh", '"--partition=debug"'),
    (
        "clariden",
        {},
        "README.md",
        "bash slurm/submit_multinode.sh --nodes=2 -- benchmark/all_reduce.py",
    ),  # 4 are too long
    ("trillium", {}, "README.md", "multinode.sh --partition=debug --time=00:15:00 -- check/ranks.py"),
    ("mn5", {}, "README.md", "--nodes=4 --time=08:00:00 --qos=NAME -- training/train_ddp.py"),
    ("setonix", {}, "slurm/submit_multinode.sh", "#SBATCH --gres=gpu:1 "),
    ("mn5", {}, "README.md", "bash slurm/submit_multinode.sh --nodes=4 -- benchmark/all_reduce.py"),
]


@pytest.mark.parametrize(("site", "answers", "file", "text"), SPECIFIC, ids=lambda value: str(value)[:40])
def test_what_a_site_says_arrives(site, answers, file, text, written):
    answers = {"site": site, "account": account(site), "extras": "all", **answers}
    assert text in (written(**answers) / file).read_text()


def row_of(project, words):
    """Return the row of the table of problems whose message has these words; '' if there is none."""
    rows = [line for line in page(project, "it-does-not-work").splitlines() if words in line.split(" | ")[0]]
    assert len(rows) < 2, rows
    return "".join(rows)


def test_an_image_is_pulled_where_its_cluster_lets_it(tmp_path):
    """No page sends to a login node that would end the pull, nor to the script that waits for its result."""
    answers = {"site": "leonardo", "runtime": "apptainer", "account": "ABC_1"}
    project = bake(tmp_path, **answers)
    job = "srun --account=ABC_1 --partition=lrd_all_serial --time=04:00:00 --mem=16G --gres=tmpfs:100G"
    line = f"{job} singularity pull container/demo.sif docker://nvcr.io/"
    readme = (project / "README.md").read_text()
    assert readme.count("singularity pull") == readme.count(f"\n{line}") == 1
    assert readme.index(line) < readme.index("\nbash slurm/build_container.sh")
    assert "$PROJECT_DIR/container/demo.sif" in (project / "env.sh").read_text()
    script = (project / "slurm/build_container.sh").read_text()
    assert f"\n#   {line}" in script and "the top of slurm/build_container.sh shows" in script
    fix = row_of(project, "CPU time limit exceeded").split(" | ")[2]
    assert job.replace("ABC_1", "ACCOUNT") in fix and "build_container" not in fix
    # where login nodes pull, and where there is nothing to pull from
    answers = {"site": "jean-zay", "runtime": "apptainer", "account": account("jean-zay"), "project": "pulls"}
    assert "\nsingularity pull container/pulls.sif docker://" in (bake(tmp_path, **answers) / "README.md").read_text()
    project = bake(tmp_path, site="mn5", account=account("mn5"), project="packs", **OF_DOCKER)
    assert "singularity pull" not in documents(project) + (project / "slurm/build_container.sh").read_text()


TORCH = [  # a site, the version, and a word of the reason
    ("leonardo", "2.13.0", "CUDA 12.6"),
    ("isambard-ai", "2.11.0", "CUDA 12.6"),
    ("deltaai", "2.9.1", "CUDA 12.9"),
    ("karolina", "2.13.0", "CUDA 13.0"),
    ("dardel", "2.13.0", ""),
]


@pytest.mark.parametrize(("site", "version", "reason"), TORCH)
def test_requirements_name_the_torch_that_fits_the_driver(site, version, reason, written):
    """One line for pip. The others are comments."""
    project = written(site=site, account=account(site), runtime="venv", extras="all")
    text = (project / "requirements.txt").read_text()
    assert [line for line in text.splitlines() if line.startswith("torch")] == [f"torch=={version}"]
    comments = " ".join(re.findall(r"^# (.*)", text, re.MULTILINE))
    assert reason in comments and bool(comments) is bool(reason)
    assert ("2.14" in comments) is bool(
        re.search("12[.]6|cu126", comments)
    )  # until when an index for CUDA 12.6 has torch
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("site", ["fir", "narval", "nibi", "rorqual", "trillium"])
@pytest.mark.parametrize("runtime", ["apptainer", "venv"])
def test_packages_of_the_host_do_not_hide_those_of_an_image(site, runtime, written):
    """PYTHONPATH is the work of a module that an environment needs, too: there it stays."""
    project = written(site=site, account=account(site), runtime=runtime, extras="all")
    for file in "launch/software.sh", "slurm/minimal.sbatch":
        text = (project / file).read_text()
        assert bool(re.search(r'^ *unset "PYTHONPATH" #', text, re.MULTILINE)) is (runtime == "apptainer"), file
    assert ("; unset PYTHONPATH; salloc " in page(project, "cluster")) is (runtime == "apptainer")


def test_jobs_of_lumi_are_spared_what_makes_collectives_hang(written):
    project = written(site="lumi", account=account("lumi"), extras="all")
    for file in "env.sh", "slurm/minimal.sbatch":
        text = (project / file).read_text()
        assert "NCCL_NET_GDR_LEVEL" not in text and 'export "FI_MR_CACHE_MONITOR=' in text, file
    row = row_of(project, "a second process group")
    assert "unset NCCL_NET_GDR_LEVEL" in row and "kdreg2" in row


def test_the_scratch_of_daint_is_the_one_that_is_set(written):
    """CSCS has two. Neither the steps of the README nor a container takes one of them for granted."""
    project = written(site="daint", account=account("daint"), extras="all")
    readme, toml = (project / "README.md").read_text(), (project / "container/demo.toml").read_text()
    assert "\nmv ~/demo $SCRATCH/\ncd $SCRATCH/demo\n" in readme and "cscs/$USER" not in readme
    assert '    "${SCRATCH}:${SCRATCH}",\n' in toml and "ritom" not in toml
    assert '"/capstor:/capstor", "${SCRATCH}:${SCRATCH}"]' in (project / "slurm/minimal.sbatch").read_text()
    assert "`echo $SCRATCH` prints which" in page(project, "cluster") and "/ritom:/ritom" in row_of(project, "/ritom")


# Whatever a laboratory leaves out, or says beside.
HEAD = "title: lab\nkind: slurm\ndocs: https://example.org\nchecked: '2026-11-21'\ncontact: x\n"
HEAD += "runtimes: [venv, apptainer]\n"
HEAD += "commands: {accounts: id, queues: sinfo -s | head}\n"
OWN = {
    "no more than is needed": "launchers: [srun]\ndefaults: {nodes: 1, gpus_per_node: 2, time_limit: '00:10:00'}\n",
    "partitions alone": (
        "launchers: [torchrun]\ndefaults: {nodes: 2, gpus_per_node: 1, time_limit: '00:10:00', partition: p}\n"
        "partitions: {p: {max_time: '00:10:00', min_nodes: 2, about: 'a|b'}, "
        "q: {default: true, max_time: '00:05:00'}}\n"
    ),
    "QoS alone, and modules": (
        "launchers: [spawn, mpirun]\ndefaults: {nodes: 1, gpus_per_node: 0, time_limit: '00:10:00'}\nmodules: [base]\n"
        "node: {cpu_only: true, memory: 1T, gpus: 4, cores: 8}\nqos: {dev: {max_time: '00:20:00', default: true}}\n"
        "containers: {venv: {modules: [python]}}\nsrun: [{option: --cpu-bind=none, why: x}]\n"
        "directives: [{option: '--constraint=a|b', why: 'one | the other'}]\n"
    ),
    "what newer Slurms have": (
        "launchers: [torchrun, mpirun]\ndefaults: {nodes: 16, gpus_per_node: 4, time_limit: '00:10:00'}\n"
        "expedited_requeue: true\nnode: {gpus: 4, cores: 144, gpu_option: '--gres=gpu:gb200:', segment: 16}\n"
    ),
}


def bake_own(tmp_path, case, runtime):
    (tmp_path / "lab.yaml").write_text(HEAD + OWN[case])
    return bake(tmp_path, site=tmp_path / "lab.yaml", runtime=runtime)


@pytest.mark.parametrize("runtime", ["venv", "apptainer"])
@pytest.mark.parametrize("case", OWN)
def test_a_site_file_may_leave_out_what_it_likes(case, runtime, tmp_path):
    project = bake_own(tmp_path, case, runtime)
    assert_clean(project)
    for row in re.findall(r"^\|.*", documents(project), re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5), row


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("partitions alone", "00:05:00"),  # p takes no job of one node, q no longer one
        ("QoS alone, and modules", "00:20:00"),
    ],
)
def test_a_short_job_asks_for_no_more_time_than_its_queue_gives(case, expected, tmp_path):
    project = bake_own(tmp_path, case, "apptainer")
    for script in ("interactive.sh", "build_venv.sh", "build_container.sh"):
        text = (project / "slurm" / script).read_text()
        assert re.findall(r"--time=([\d:]+)", text)[-1] == expected, script


@pytest.mark.parametrize(
    ("queue", "limits", "expected"),
    [
        ("long", "{about: a few tests and production}", False),
        ("latest", "{}", False),
        ("acc_debug", "{}", True),
        ("quick", "{for_tests: true}", True),
        ("debug", "{for_tests: false}", False),
    ],
)
def test_a_queue_for_tests_is_told_by_its_fact_or_its_name(queue, limits, expected, tmp_path):
    """What it is for, in words, does not count."""
    site = tmp_path / "own.yaml"
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    site.write_text(f"{text}partitions: {{{queue}: {limits}}}\n")
    pages = documents(bake(tmp_path, site=site, partition=queue))
    assert (", a queue for tests." in pages) is expected
    assert ("A queue for tests is shared by all who test" in pages) is expected


def test_the_modules_of_a_runtime_come_after_those_of_all(tmp_path):
    settings = (bake_own(tmp_path, "QoS alone, and modules", "apptainer") / "env.sh").read_text()
    assert 'MODULES=("base")\n[[ $RUNTIME != "apptainer" ]] || MODULES=("base")' in settings
    assert '"venv" ]] || MODULES=("base" "python")' in settings


def test_a_site_s_own_row_takes_the_place_of_one_that_all_projects_have(written):
    """Where it prints the same. A message of few letters may be a word of another, and is no reason."""
    table = page(written(site="roihu", account=account("roihu"), extras="all"), "it-does-not-work")
    assert table.count("Invalid account or account/partition combination") == 1
    assert table.count("Requested node configuration is not available") == 1
    assert "| `squeue` says `QOSMaxWallDurationPerJobLimit` or" in table and "| `EADDRINUSE` |" in table
    assert "| `ChildFailedError` |" in table and table.endswith(" |\n"), table


@pytest.mark.parametrize("runtime", ["venv", "apptainer"])
def test_what_concerns_one_runtime_is_told_in_its_projects(runtime, tmp_path):
    site, texts = tmp_path / "own.yaml", ("a note of venv", "a fact of venv", "it broke in venv")
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    site.write_text(
        text + "notes: [for all, {text: a note of venv, runtimes: [venv]}]\n"
        "unconfirmed: [open to all, {text: a fact of venv, runtimes: [venv]}]\n"
        "problems: [{printed: it broke in venv, cause: a, fix: b, runtimes: [venv, none]}]\n"
    )
    pages = documents(bake(tmp_path, site=site, runtime=runtime))
    assert "- for all\n" in pages and "- open to all\n" in pages
    assert [text in pages for text in texts] == [runtime == "venv"] * 3


def test_containers_follow_the_site_s_gpus(tmp_path):
    """--nv or --rocm, and the vendor's own image; neither flag without GPUs."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (tmp_path / "amd.yaml").write_text(text.replace("node:\n", "node:\n  gpu_vendor: amd\n", 1))
    for site, gpus, flag, other, image in (
        ("slurm", "1", "--nv", "--rocm", "nvcr.io/nvidia/pytorch"),
        (tmp_path / "amd.yaml", "1", "--rocm", "--nv", "docker.io/rocm/pytorch"),
        ("slurm", "0", "exec)", "--nv", "nvcr.io/nvidia/pytorch"),
    ):
        project = bake(tmp_path / f"{flag}-{gpus}", site=site, runtime="apptainer", gpus_per_node=gpus)
        software = (project / "launch/software.sh").read_text()
        assert flag in software and other not in software
        base = re.search('ARG BASE="(.*)"', (project / "container/Dockerfile").read_text())[1]
        assert base.partition(":")[0] == image
        assert "APPTAINER_CACHEDIR=$work" in (project / "slurm/build_container.sh").read_text()  # not in $HOME


@pytest.mark.parametrize("internet", ["false", "true"])
@pytest.mark.parametrize("runtime", ["venv", "apptainer"])
def test_a_site_with_a_wheelhouse_asks_for_no_folder_of_wheels(runtime, internet, tmp_path):
    """There pip takes what the site has built, in the version it has, whether nodes reach the internet or not."""
    site = HEAD.replace("[venv, apptainer]", "[venv, apptainer, none]") + OWN["no more than is needed"]
    site += f"containers: {{venv: {{wheelhouse: avail_wheels}}}}\ninternet: {internet}\nlogin_internet: true\n"
    (tmp_path / "lab.yaml").write_text(site)
    for used in (runtime, "none"):
        project = bake(tmp_path / used, site=tmp_path / "lab.yaml", runtime=used)
        assert lint(project) == ""
        build = (project / "slurm/build_venv.sh").read_text()
        assert "-m pip install --no-index -r" in build and "--find-links" not in build
        assert (project / "requirements.txt").read_text() == "numpy\ntorch\n"
        for text in (build, (project / "env.sh").read_text(), documents(project)):
            assert not re.search("pip download -r|WHEELS|`wheels/`", text), text
        assert "`avail_wheels NAME` lists what it has" in documents(project)
    project = bake(tmp_path / "existing", site=tmp_path / "lab.yaml", runtime="venv", examples="no")
    assert "`avail_wheels torch` lists them" in documents(project)
    assert "name packages without versions" in (project / "slurm/README.md").read_text()


def test_the_questions_are_the_ones_of_cookiecutter_json_and_of_the_page():
    """`make questions` writes both."""
    written = (REPOSITORY / "cookiecutter.json").read_text()
    assert written == json.dumps(cookiecutter_json(), indent=2) + "\n"
    asked = [name for name in json.loads(written) if not name.startswith("_")]
    assert asked == list(QUESTION_NAMES)
    text = (REPOSITORY / "docs/questions.md").read_text()
    between = re.search(r"<!-- make questions -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert between and between[1] == table()


@pytest.mark.parametrize("site", ["local", "rcp"])
def test_all_files_are_written_where_no_hook_says_which(site, tmp_path):
    """A bake before, with hooks, leaves no trace."""
    bake(tmp_path / "hooks", site=site, account=account(site))
    config = {"default_config": True, "no_input": True, "accept_hooks": False}
    given = {"site": site, "account": account(site)}
    write(str(REPOSITORY), extra_context=given, output_dir=str(tmp_path), **config)
    for name in ("slurm/job.sh", "runai/docs/cluster.md", "local/README.md"):
        assert (tmp_path / "demo" / name).read_text(), name


def test_the_next_commands_are_printed(tmp_path):
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, site="local")
    assert done.stdout == "demo is written for this machine. Next:\n  cd demo\n  less README.md\n"


def test_a_site_file_of_ones_own(tmp_path):
    """A laboratory describes its own cluster without a fork, also by a path relative to where it stands."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (tmp_path / "our cluster.yaml").write_text(text.replace("your Slurm cluster", "'our \"big\" cluster'"))
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, site="./our cluster.yaml")
    assert done.returncode == 0, done.stderr
    assert 'is written for our "big" cluster' in done.stdout
    assert 'our "big" cluster' in (tmp_path / "demo/slurm/submit_multinode.sh").read_text()


EXTRAS = ("matplotlib", "tqdm", "tensorboard", "wandb")


@pytest.mark.drill
def test_the_written_project_passes_its_own_tests(tmp_path):
    """Where nothing can be imported but pytest and torch. No file may be executed, as on a file system with noexec."""
    project = bake(tmp_path, site="slurm", nodes="2", gpus_per_node="2")
    for script in project.rglob("*.*"):
        script.chmod(0o644 if script.is_file() else 0o755)
    for name in ("numpy", *EXTRAS):
        (tmp_path / f"without/{name}").mkdir(parents=True)
        (tmp_path / f"without/{name}/__init__.py").write_text("raise ModuleNotFoundError('not in this test')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "without")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout and "skipped" not in done.stdout
