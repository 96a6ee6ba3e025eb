"""Documents promise what exists: links, files, variables and options, in the template and in written projects."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest
from baking import REPOSITORY, TEMPLATE, account
from documents import dead_links, files_of, options_of, variables_of

sys.path.insert(0, str(REPOSITORY / "docs"))
from terminal import Event, draw  # the file that draws the recorded session

PICTURES = sorted(REPOSITORY.glob("docs/*.svg"))
FOLDERS = ("slurm", "runai", "local", "launch", "check", "pi", "benchmark", "training", "container", "extras")
# Made by a job or by a user.
MADE_LATER = re.compile(r"container/\S+\.(sif|tar|sqsh)")
# Of sbatch, which slurm/submit_multinode.sh and the other scripts hand on.
OF_SBATCH = {"--nodes", "--time", "--partition", "--qos", "--account", "--gpus-per-node", "--exclude", "--array"}
OF_SBATCH |= {"--signal", "--its"}  # the latter stands for the arguments of the user's own program
# Variables of other programs, which documents set and no script has to read.
OF_OTHERS = re.compile(
    r"(ACCELERATE|FI|HF|MLFLOW|NCCL|OMP|OMPI_MCA|PIP|PMIX_MCA|UCX|SALLOC|SBATCH|SLURM|SUPPRESS_DEPRECATION|TORCH|XDG)_\w+|PATH|PYTHONPATH"
)
# Most of them are what other tests have written.
PROJECTS = [
    {"site": "slurm", "runtime": "venv"},
    {"site": "slurm", "extras": "all"},
    {"site": "slurm", "runtime": "enroot", "examples": "no", "extras": "all"},
    {"site": "clariden", "extras": "all"},
    {"site": "lumi", "extras": "all"},
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
        missing = {name for name in files_of(text, FOLDERS) if not (project / name).exists()}
        assert {name for name in missing if not MADE_LATER.fullmatch(name)} == set(), document
        unknown = {name for name in variables_of(text) if not re.search(rf"\b{name}\b", scripts)}
        assert [name for name in unknown if not OF_OTHERS.fullmatch(name)] == [], document
        for script, option in options_of(text):
            known = (project / script).read_text() + arguments_of(project, script)
            assert option in known or option in OF_SBATCH, (document, script, option)


def arguments_of(project, script):
    """The programs of training/ share the definition of their options."""
    return (project / "training/lm/arguments.py").read_text() if script.startswith("training/") else ""


@pytest.mark.parametrize(
    "document",
    [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")],
    ids=lambda path: path.name,
)
def test_the_template_s_documents_name_what_it_has(document):
    # without the files of version 1
    text = re.sub(r"^git rm .*?(?=^```)", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert dead_links(document) == []
    own = ("sites", "tests", "perf", "hooks", "cluster_options", "docs")
    missing = {name for name in files_of(text, own) if not (REPOSITORY / name).exists()}
    missing |= {name for name in files_of(text, FOLDERS) if not (TEMPLATE / name).exists()}
    assert missing - EXAMPLES == set()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    sources = "\n".join(path.read_text() for path in TEMPLATE.rglob("*.sh"))
    others = {"PIP_ARGS", "GPU_ARGS", "MEMORY_EVERY"}
    assert {name for name in variables_of(text) if name not in sources} <= others


# A placeholder, files that CONTRIBUTING.md adds, and those of an extra that a page has the reader write.
EXAMPLES = {"sites/lab.yaml", "sites/NAME.yaml", *(f"extras/memory/{n}.sh" for n in ("settings", "hooks", "look"))}
EXAMPLES |= {"extras/profile/on_first_node.sh", "tests/extras/logsize/test_logsize.py"}


def test_the_template_s_placeholder_cannot_be_run_as_pasted():
    """gh:org/template is a name that anybody may own, and cookiecutter runs the hooks of what it finds there."""
    pages = {*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *TEMPLATE.rglob("*.md")}
    text = "\n".join(page.read_text() for page in pages - {REPOSITORY / "CHANGELOG.md"})
    assert "gh:<" in text and not re.findall(r"gh:(?!<)|github\.com/org/", text)


def test_the_pictures_are_well_formed():
    """Those that are kept, and one of a session that is drawn now."""
    events = [Event(0.0, "$ "), Event(0.5, "l", typed=True), Event(1.0, "\r\na <file> & more\r\n$ ")]
    assert "a &lt;file&gt; &amp; more" in draw(events, title="a title", description="a <description>")
    for svg in [draw(events, title="t", description="d"), *(path.read_text() for path in PICTURES)]:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
        # GitHub shows an SVG as an image, in which no script runs and nothing is loaded
        assert "svg" in tags and not tags & {"script", "image", "foreignObject", "use", "a"}
