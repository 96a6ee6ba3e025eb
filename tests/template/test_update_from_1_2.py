"""A project of version 1.2 is updated to this one: a real clone at the commit of 1.2.0, with cruft and without."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from baking import REPOSITORY
from test_updates import ANSWERS, shell, tree

FIRST = "d882bb8f19428760b3012aa985690fde6f2fe31e"  # version 1.2.0
KEEP_ALL = """cruft update --variables-to-update '{"extras": "all"}'"""


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A clone with the whole history, whose newest commit is the template as it stands here."""
    home = tmp_path_factory.mktemp("history")
    if subprocess.run(["git", "cat-file", "-e", FIRST], cwd=REPOSITORY, capture_output=True, check=False).returncode:
        pytest.skip(f"version 1.2.0 ({FIRST[:7]}) is not in this clone: git fetch --unshallow")
    folder = home / "our-template.git"
    shell(f"git clone -q {REPOSITORY} {folder} && git -C {folder} checkout -qB now", home, home)
    shell("git rm -qr .", folder, home)
    for name in filter(None, shell("git ls-files -z", REPOSITORY, home).split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    shell("git add -A && git commit -qm now --allow-empty", folder, home)
    return folder


def answered(answers):
    return " ".join(f"{name}={value}" for name, value in answers.items())


def write(history, folder, version, answers):
    """Write a project by a version of the template."""
    shell(f"git -C {history} checkout -q {version}", history.parent, history.parent)
    folder.mkdir()
    shell(f"cookiecutter --no-input {history} {answered(answers)}", folder, history.parent)
    shell(f"git -C {history} checkout -q now", history.parent, history.parent)
    return folder / "demo"


@pytest.fixture
def old(written_before, tmp_path):
    """A copy of it."""
    return shutil.copytree(written_before, tmp_path / "demo", symlinks=True)


@pytest.fixture(scope="module")
def written_before(history, tmp_path_factory):
    """A project of 1.2.0 that follows the template with cruft, in git, with edits of the user's."""
    tmp_path = tmp_path_factory.mktemp("old")
    extra = "{" + ", ".join(f'"{name}": "{value}"' for name, value in ANSWERS.items()) + "}"
    shell(f"cruft create -y --checkout {FIRST} {history} --extra-context '{extra}'", tmp_path, tmp_path)
    project = tmp_path / "demo"
    shell("git init -q && git add -A && git commit -qm first", project, tmp_path)
    for name in ("env.sh", "launch/torchrun.sh", "slurm/watch.sh", "slurm/lib.sh"):
        with open(project / name, "a") as file:
            file.write("# mine\n")
    settings = project / "env.sh"
    text = settings.read_text()
    assert text.count('SPARES="${SPARES:-0}"') == 1
    settings.write_text(text.replace('SPARES="${SPARES:-0}"', 'SPARES="${SPARES:-2}"'))
    (project / "my_program.py").write_text("print()\n")
    shell("git add -A && git commit -qm mine", project, tmp_path)
    return project


def conflicts(project):
    """Return the files that git lists as unmerged."""
    return set(shell("git diff --name-only --diff-filter=U", project, project.parent).split())


def test_cruft_keeps_every_feature(history, old, tmp_path):
    """Each file is that of a new project with all extras; what the user has edited is merged, or a conflict."""
    shell(f"{KEEP_ALL} -y", old, tmp_path)
    fresh = tree(write(history, tmp_path / "fresh", "now", {**ANSWERS, "extras": "all"}))
    found = tree(old)
    in_conflict = conflicts(old)
    assert found.pop("my_program.py")[1] == b"print()\n"
    edited = {"env.sh", "launch/torchrun.sh", "extras/watch/watch.sh", "slurm/lib.sh"}
    assert in_conflict <= edited
    assert {name for name in {*found, *fresh} - edited if found.get(name) != fresh.get(name)} == set()
    assert '++SPARES="${SPARES:-2}"' in shell("git diff env.sh", old, tmp_path).replace(" +", "++")
    for name in edited:
        assert b"# mine\n" in found[name][1], name


def test_without_the_answer_cruft_says_first_what_it_takes_away(old, tmp_path):
    said = shell("cruft update <<<n || true", old, tmp_path)
    assert "hangs, mpi, notebook, scaling, snapshot, spares, stage, sweep, trackers, watch" in said
    assert said.index(KEEP_ALL) < said.index("demo is written for your Slurm cluster", said.index(KEEP_ALL))
    assert shell("git status --short", old, tmp_path) == ""
    shell("cruft update -y", old, tmp_path)
    assert not (old / "extras").exists() and not (old / "slurm/stacks.sh").exists()
    rejected = (old / "env.sh.rej").read_text() if (old / "env.sh.rej").exists() else ""
    assert 'SPARES="${SPARES:-2}"' in (old / "env.sh").read_text() + rejected
    assert (old / "slurm/watch.sh").read_text().endswith("# mine\n"), "an edited file was lost in silence"


@pytest.mark.parametrize(
    "answers",
    [
        ANSWERS,
        pytest.param({"project": "demo", "site": "rcp", "account": "mlo-jdoe"}, marks=pytest.mark.drill),
        pytest.param({"project": "demo", "site": "local"}, marks=pytest.mark.drill),
        {**ANSWERS, "examples": "no"},
    ],
    ids=["slurm", "runai", "local", "no examples"],
)
def test_without_cruft(history, answers, tmp_path):
    """The page's first command removes what has moved; then the project is written over."""
    project = write(history, tmp_path / "first", FIRST, answers)
    shell("git init -q && git add -A && git commit -qm first", project, tmp_path)
    page = (REPOSITORY / "docs/updating.md").read_text()
    (command,) = re.findall(r"```bash\n(git rm .*?)```", page, re.DOTALL)
    shell(command, project, tmp_path)
    over = "--overwrite-if-exists"
    shell(f"cookiecutter --no-input {over} {history} {answered(answers)} extras=all", tmp_path / "first", tmp_path)
    fresh = tree(write(history, tmp_path / "fresh", "now", {**answers, "extras": "all"}))
    found = tree(project)
    assert {name for name in {*found, *fresh} if found.get(name) != fresh.get(name)} == set()
