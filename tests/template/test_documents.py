"""Documents promise what exists: links, files, variables and options, in the template and in written projects."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, account
from documents import dead_links, files_of, options_of, variables_of

FOLDERS = ("slurm", "runai", "local", "launch", "check", "pi", "benchmark", "training", "container", "extras")
# Made by a job or by a user.
MADE_LATER = re.compile(r"container/\S+\.(sif|tar|sqsh)")
# Of sbatch, which slurm/submit_multinode.sh and the other scripts hand on.
OF_SBATCH = {
    "--nodes",
    "--time",
    "--partition",
    "--qos",
    "--account",
    "--gpus-per-node",
    "--exclude",
    "--array",
    "--signal",
    "--its",  # stands for the arguments of the user's own program
}
# Variables of other programs, which documents set and no script has to read.
OF_OTHERS = re.compile(
    r"(ACCELERATE|FI|HF|MLFLOW|NCCL|OMP|OMPI_MCA|PIP|PMIX_MCA|UCX|SALLOC|SBATCH|SLURM|SUPPRESS_DEPRECATION|TORCH|XDG)_\w+|PATH|PYTHONPATH"
)
PROJECTS = [
    {"site": "slurm", "runtime": "venv"},
    {"site": "slurm", "runtime": "venv", "extras": "all"},
    {"site": "slurm", "runtime": "none", "launcher": "mpirun-ranks"},
    {"site": "slurm", "runtime": "enroot", "examples": "no", "extras": "all"},
    {"site": "clariden", "runtime": "edf"},
    {"site": "mn5", "runtime": "apptainer", "extras": "all"},
    {"site": "lumi", "runtime": "apptainer"},
    {"site": "perlmutter", "runtime": "podman-hpc"},
    {"site": "rcp", "extras": "all"},
    {"site": "rcp", "examples": "no"},
    {"site": "local"},
    {"site": "local", "extras": "all"},
]


@pytest.fixture(params=PROJECTS, ids=lambda answers: "-".join(answers.values()), scope="module")
def project(request, written):
    answers = request.param
    return written(account=account(answers["site"]), **answers)


def test_a_written_project_s_documents_name_what_it_has(project):
    scripts = "\n".join(
        path.read_text() for path in project.rglob("*") if path.is_file() and path.suffix not in (".md", ".png", ".svg")
    )
    for document in project.rglob("*.md"):
        text = document.read_text()
        assert dead_links(document) == [], document
        missing = {name for name in files_of(text, FOLDERS) if not (project / name).exists()}
        assert {name for name in missing if not MADE_LATER.fullmatch(name)} == set(), document
        unknown = {name for name in variables_of(text) if not re.search(rf"\b{name}\b", scripts)}
        assert [name for name in unknown if not OF_OTHERS.fullmatch(name)] == [], document
        for script, option in options_of(text):
            assert option in (project / script).read_text() + arguments_of(project, script) or option in OF_SBATCH, (
                document,
                script,
                option,
            )


def arguments_of(project, script):
    """The programs of training/ share the definition of their options."""
    return (project / "training/lm/arguments.py").read_text() if script.startswith("training/") else ""


@pytest.mark.parametrize(
    "document",
    [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")],
    ids=lambda path: path.name,
)
def test_the_template_s_documents_name_what_it_has(document):
    text = re.sub(
        r"^git rm .*?(?=^```)", "", document.read_text(), flags=re.DOTALL | re.MULTILINE
    )  # files of version 1
    assert dead_links(document) == []
    own = ("sites", "tests", "perf", "hooks", "cluster_options", "docs")
    missing = {name for name in files_of(text, own) if not (REPOSITORY / name).exists()}
    missing |= {name for name in files_of(text, FOLDERS) if not (TEMPLATE / name).exists()}
    assert missing - EXAMPLES == set()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    sources = "\n".join(path.read_text() for path in Path(TEMPLATE).rglob("*.sh"))
    assert {name for name in variables_of(text) if name not in sources} - {
        "PIP_ARGS",
        "GPU_ARGS",
        "MEMORY_EVERY",
    } == set()


# A placeholder, files that CONTRIBUTING.md adds, and those of an extra that a page has the reader write.
EXAMPLES = {"sites/lab.yaml", "sites/NAME.yaml", *(f"extras/memory/{n}.sh" for n in ("settings", "hooks", "look"))}
EXAMPLES |= {"extras/profile/on_first_node.sh", "tests/extras/logsize/test_logsize.py"}


def test_the_template_s_placeholder_cannot_be_run_as_pasted(tmp_path):
    """gh:org/template is a name that anybody may own, and cookiecutter runs the hooks of what it finds there."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *TEMPLATE.rglob("*.md")]
    pages = [page for page in pages if page.name != "CHANGELOG.md"]
    text = "\n".join(page.read_text() for page in pages)
    lines = re.findall(r"^(?:uvx|git clone|\S*cookiecutter) .*<.*", text, re.MULTILINE)
    assert len(lines) >= 5 and not re.findall(r"gh:(?!<)|github\.com/org/", text)
    for name in ("uvx", "git", "cookiecutter"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
        (tmp_path / name).chmod(0o755)
    for line in lines:
        command = line.replace("~/cookiecutter/bin/", "")
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode and sorted(path.name for path in tmp_path.iterdir()) == ["cookiecutter", "git", "uvx"], (
            line
        )
