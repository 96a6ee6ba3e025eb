"""Every combination of answers is written whole and clean; the template itself is clean too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from baking import REPOSITORY, TEMPLATE, account, bake, combinations, documents, page, write
from documents import dead_links

from cluster_options.answers import suggest
from cluster_options.files import files as files_of_project
from cluster_options.files import needed, template_files
from cluster_options.questions import cookiecutter_json, table
from cluster_options.sbatch import is_for_tests
from cluster_options.sites import site_facts

# examples=no: what a project that exists has of its own, and programs to learn from
EXAMPLES = re.compile(r"(?:benchmark|pi|tests|training)/|(?:README\.md|\.gitignore|requirements\.txt|check/hello\.py)$")
INTO_A_PROJECT = [
    {"site": "local", "runtime": "venv"},
    {"site": "rcp", "account": "mlo-jdoe"},
    {"site": "slurm", "runtime": "venv", "launcher": "mpirun-ranks"},
    {"site": "slurm", "runtime": "apptainer"},
    {"site": "slurm", "runtime": "enroot"},
    {"site": "clariden", "runtime": "edf"},
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
def test_examples_are_left_out_whole_and_clean(answers, written):
    project = written(examples="no", **answers, extras="all")
    facts = site_facts(answers["site"])
    defaults = {"runtime": facts["runtimes"][0], "launcher": facts["launchers"][0]}
    assert files(project) == kept({**defaults, **answers, "examples": "no"})
    assert not [name for name in files(project) if EXAMPLES.match(name)]
    assert (project / f"{facts['kind']}/README.md").exists()
    assert_clean(project)


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


def assert_clean(project):
    """Nothing of Jinja is left, no link is dead, and bash, shellcheck and ruff have nothing to say."""
    for path in project.rglob("*"):
        if path.suffix == ".png":
            assert path.read_bytes() == (TEMPLATE / path.relative_to(project)).read_bytes()
        elif path.is_file():
            left = re.findall(r"\{\{.*|\{%.*|^\s*#\?.*|cookiecutter\.\w+", path.read_text(), re.MULTILINE)
            assert not left, f"{path}: {left}"
            if path.suffix == ".svg":
                ElementTree.parse(path)
    for document in project.rglob("*.md"):
        assert not dead_links(document), document
    assert lint(project) == ""


def test_the_template_is_clean_before_it_is_rendered():
    """What else is Python or bash in this repository is the matter of `make lint`."""
    assert lint(TEMPLATE) + lint(REPOSITORY / "templates") == ""


def test_a_variable_for_one_job_stands_before_a_script_that_exports_it():
    """At some sites sbatch drops variables. The submit script calls it with --export=ALL, and so they arrive."""
    for path in [path for suffix in ("md", "sh", "py") for path in TEMPLATE.rglob(f"*.{suffix}")]:
        dropped = re.findall(r"\b(?!SBATCH_)[A-Z_]+=\S+ sbatch .*", path.read_text())
        assert not dropped, f"{path}: {dropped}"


def options_in(project, script="submit_multinode.sh"):
    return re.findall(r"^#SBATCH (\S+)", (project / "slurm" / script).read_text(), re.MULTILINE)


def test_the_header_follows_the_answers(tmp_path):
    answers = {"account": "abc@h100", "nodes": "3", "gpus_per_node": "2", "time_limit": "01:00:00", "qos": "acc_debug"}
    # mn5 shares nodes: two of four GPUs come with half of the 80 cores
    expected = {"--account=abc@h100", "--nodes=3", "--gres=gpu:2", "--cpus-per-task=40", "--time=01:00:00"}
    assert expected <= set(options_in(bake(tmp_path, site="mn5", **answers)))
    # Of a cluster that is not known, a job asks for its GPUs and some cores, and not for a node. The signal comes early
    # enough for a checkpoint, and late enough to be worth the wait before.
    for gpus, cores, limit, signal in ((0, 4, "00:02:00", 30), (1, 4, "00:30:00", 180), (4, 16, "1-00:00:00", 300)):
        options = options_in(bake(tmp_path / str(gpus), site="slurm", gpus_per_node=gpus, time_limit=limit))
        assert {f"--cpus-per-task={cores}", f"--signal=B:USR1@{signal}"} <= set(options)
        assert not [option for option in options if option.startswith(("--exclusive", "--mem"))]
        assert any("gpu" in option for option in options) is (gpus > 0)
    # where a whole node has to be asked for, pip takes a part of it
    lab = (REPOSITORY / "sites/slurm.yaml").read_text()
    lab = lab.replace("  cores_per_gpu: 4\n", "  memory: '0'\n  whole: true\n")
    (tmp_path / "lab.yaml").write_text(f"{lab}directives: [{{option: --exclusive, why: x}}]\n")
    project = bake(tmp_path / "build", site=tmp_path / "lab.yaml", gpus_per_node="4")
    options = options_in(project, "build_venv.sh")
    assert "--gpus-per-node=1" in options and not {"--exclusive", "--mem=0"} & set(options)
    assert "--exclusive" in options_in(project)


VENV, APPTAINER = {"runtime": "venv"}, {"runtime": "apptainer"}
OF_DOCKER = {"image": "docker://nvcr.io/nvidia/pytorch:25.05-py3"}
SHARED = {"qos": "shared", "nodes": "1", "gpus_per_node": "1"}
ENTERED = 'CONTAINER_EXEC+=("/host/adapt.sh")\n    CONTAINER_EXEC+=(env)'
LIBRARIES = 'export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH" # the '
DEFINED = "    source /etc/profile.d/zz-csc-env.sh # defines the command module\n    module purge"
TRANSFER = "rsync -P container/demo.tar USER@transfer1.bsc.es:/gpfs/projects/GROUP/USER/demo/container/"
WHEELS = "#   pip download --extra-index-url=https://download.pytorch.org/whl/cu126 -r req"
PULL = "\nsrun --account=ABC_1 --partition=lrd_all_serial --time=04:00:00 --mem=16G --gres=tmpfs:100G singularity pull "
# What a site's file says, and where it has to arrive: one row for each key that does something.
SPECIFIC = [
    ("juwels-booster", {}, "env.sh", 'MASTER_ADDR_SUFFIX="${MASTER_ADDR_SUFFIX:-i}"'),
    ("juwels-booster", {}, "env.sh", 'export "CUDA_VISIBLE_DEVICES=0,1,2,3"'),
    ("juwels-booster", {}, "slurm/ranks.sh", 'if [[ $1 != rank.sh ]]; then step+=("--cpu-bind=none"); fi'),
    ("jupiter", {}, "slurm/interactive.sh", 'step+=("--cpu-bind=none")'),
    ("frontier", {}, "launch/software.sh", "    module reset\n"),
    ("frontier", {}, "launch/software.sh", LIBRARIES),
    ("roihu", {}, "launch/software.sh", DEFINED),
    ("frontier", {}, "env.sh", 'LAUNCHER="${LAUNCHER:-srun}"'),
    ("frontier", {}, "slurm/ranks.sh", '$per_node == "8" ]]; then step+=("--cpu-bind=mask_cpu:'),
    ("frontier", {}, "slurm/submit_multinode.sh", "#SBATCH --network=disable_rdzv_get "),
    ("frontier", {}, "slurm/build_venv.sh", "torch.version.hip is None"),
    ("lumi", {}, "launch/torchrun.sh", '[[ $processes != "8" ]]'),
    ("lumi", {}, "env.sh", "IMAGE:-/appl/local/laifs/containers/lumi-multitorch-latest.sif"),
    ("lumi", {}, "slurm/minimal.sbatch", 'export "TORCHINDUCTOR_CACHE_DIR=/tmp/'),
    ("isambard-ai", APPTAINER, "launch/software.sh", ENTERED),
    ("isambard-ai", APPTAINER, "env.sh", 'export "NCCL_CROSS_NIC=${NCCL_CROSS_NIC:-1}"'),
    ("isambard-ai", VENV, "requirements.txt", "\ntorch==2.11.0\n"),
    ("fir", APPTAINER, "launch/software.sh", 'unset "PYTHONPATH" #'),
    ("fir", VENV, "slurm/build_venv.sh", "-m pip install --no-index -r"),
    ("daint", {}, "container/demo.toml", '    "${SCRATCH}:${SCRATCH}",\n'),
    ("jean-zay", {}, "slurm/job.sh", 'echo "10001 10000"'),
    ("jean-zay", {}, "env.sh", '"none" ]] || MODULES=("arch/h100" "pytorch-gpu/'),
    ("mn5", {}, "extras/scaling/README.md", "| 128 | 512 | 633.6 | 317.4 |"),
    ("mn5", OF_DOCKER, "README.md", TRANSFER),
    ("mn5", {}, "slurm/docs/container.md", "packages/bin/pip install --no-index --find-links image-wheels einops\n"),
    ("lumi", {}, "slurm/docs/container.md", "packages/bin/pip install einops\n"),
    ("lumi", {}, "README.md", ":/scratch/PROJECT/USER/\nssh USER@lumi.csc.fi\ncd /scratch/PROJECT/$USER/demo\n"),
    ("leonardo", {}, "README.md", "\nmkdir -p $WORK/$USER && mv ~/demo $WORK/$USER/\n"),
    ("clariden", {}, "README.md", 'rsync -e "ssh -J USER@ela.cscs.ch" -a demo USER@clariden.alps.cscs.ch:/iopsstor/'),
    ("clariden", {}, "slurm/build_container.sh", "#SBATCH --partition=normal "),
    ("clariden", {}, "slurm/interactive.sh", '"--partition=debug"'),
    ("alex", {}, "extras/stage/README.md", 'write `STAGE_DIR="${STAGE_DIR:-${TMPDIR:-/tmp}}"` into'),
    ("leonardo", {}, "slurm/build_venv.sh", WHEELS),
    ("leonardo", {**APPTAINER, "account": "ABC_1"}, "README.md", PULL),
    ("leonardo", {"gpus_per_node": "1"}, "slurm/submit_multinode.sh", "#SBATCH --mem=123500M "),
    ("perlmutter", SHARED, "slurm/submit_multinode.sh", "--cpus-per-task=32 "),
    ("snellius", {"partition": "rome", "gpus_per_node": "0"}, "slurm/submit_multinode.sh", "--cpus-per-task=128 "),
]


@pytest.mark.parametrize(("site", "answers", "file", "text"), SPECIFIC, ids=lambda value: str(value)[:40])
def test_what_a_site_says_arrives(site, answers, file, text, written):
    answers = {"site": site, "account": account(site), "extras": "all", **answers}
    assert text in (written(**answers) / file).read_text()


def test_a_container_gets_the_option_of_its_gpus(written):
    """None without GPUs, and where the site's file says so."""
    cases = (("slurm", "1", "--nv"), ("slurm", "0", ""), ("dardel", "1", "--rocm"), ("frontier", "8", ""))
    for site, gpus, option in cases:
        project = written(site=site, account=account(site), extras="all", gpus_per_node=gpus, **APPTAINER)
        found = re.findall(r'"(--(?:nv|rocm))"', (project / "launch/software.sh").read_text())
        assert found == ([option] if option else []), site


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


@pytest.mark.parametrize(
    ("case", "runtime", "shortest"),
    [
        ("no more than is needed", "venv", ""),
        ("partitions alone", "apptainer", "00:05:00"),  # p takes no job of one node, q no longer one
        ("QoS alone, and modules", "apptainer", "00:20:00"),
        ("what newer Slurms have", "venv", ""),
    ],
)
def test_a_site_file_may_leave_out_what_it_likes(case, runtime, shortest, tmp_path):
    """A short job asks for no more time than its queue gives; the modules of a runtime come after those of all."""
    (tmp_path / "lab.yaml").write_text(HEAD + OWN[case])
    project = bake(tmp_path, site=tmp_path / "lab.yaml", runtime=runtime)
    assert_clean(project)
    for row in re.findall(r"^\|.*", documents(project), re.MULTILINE):  # a | of the file is no end of a cell
        assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5), row
    for script in ("interactive.sh", "build_venv.sh", "build_container.sh") if shortest else ():
        text = (project / "slurm" / script).read_text()
        assert re.findall(r"--time=([\d:]+)", text)[-1] == shortest, script
    settings = (project / "env.sh").read_text()
    assert ('"venv" ]] || MODULES=("base" "python")' in settings) is ("modules" in case)


def test_a_queue_for_tests_is_told_by_its_fact_or_its_name():
    for name, said, expected in (("latest", None, False), ("acc_debug", None, True), ("quick", True, True)):
        assert is_for_tests(name, {"for_tests": said}) is expected
    assert not is_for_tests("debug", {"for_tests": False})


def test_a_site_s_own_row_takes_the_place_of_one_that_all_projects_have(written):
    table = page(written(site="roihu", account=account("roihu"), extras="all"), "it-does-not-work")
    assert table.count("Invalid account or account/partition combination") == 1


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


def test_the_questions_are_the_ones_of_cookiecutter_json_and_of_the_page():
    """`make questions` writes both."""
    written = (REPOSITORY / "cookiecutter.json").read_text()
    assert written == json.dumps(cookiecutter_json(), indent=2) + "\n"
    text = (REPOSITORY / "docs/questions.md").read_text()
    between = re.search(r"<!-- make questions -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert between and between[1] == table()


def test_all_files_are_written_where_no_hook_says_which(tmp_path):
    """A bake before, with hooks, leaves no trace."""
    bake(tmp_path / "hooks", site="local")
    config = {"default_config": True, "no_input": True, "accept_hooks": False}
    write(str(REPOSITORY), extra_context={"site": "local"}, output_dir=str(tmp_path), **config)
    for name in ("slurm/job.sh", "runai/docs/cluster.md", "local/README.md"):
        assert (tmp_path / "demo" / name).read_text(), name


@pytest.mark.drill
def test_the_written_project_passes_its_own_tests(tmp_path):
    """Where nothing can be imported but pytest and torch. No file may be executed, as on a file system with noexec."""
    project = bake(tmp_path, site="slurm", nodes="2", gpus_per_node="2")
    for script in project.rglob("*.*"):
        script.chmod(0o644 if script.is_file() else 0o755)
    for name in ("numpy", "matplotlib", "tqdm", "tensorboard", "wandb"):
        (tmp_path / f"without/{name}").mkdir(parents=True)
        (tmp_path / f"without/{name}/__init__.py").write_text("raise ModuleNotFoundError('not in this test')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "without")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout and "skipped" not in done.stdout
