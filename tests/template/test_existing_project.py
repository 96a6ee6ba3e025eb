"""examples=no: the template writes into a project that exists, changes nothing of it, and its programs run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from baking import REPOSITORY, cookiecutter
from needs import needs_namespaces

# What a project may have: also under names that the template has, and a folder that the template writes into.
THEIRS = {
    "README.md": "# mine\n",
    ".gitignore": "data/\n",
    "requirements.txt": "torch\n",
    "pyproject.toml": "[project]\nname = 'mine'\n",
    "tests/test_project.py": "def test_mine():\n    assert True\n",
    "slurm/old_job.sh": "#!/bin/bash\nsrun python train.py\n",
    "extras/scaling/scaling.sh": "echo not executable\n",
    "train.py": """\
import sys
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
# one write: of a line in pieces, torchrun's --tee may prefix each
sys.stdout.write(f"{int(total)} ranks with {sys.argv[1:]}\\n")
dist.destroy_process_group()
""",
}
OPTIONS = ("--overwrite-if-exists", "--skip-if-file-exists")
LONG_AGO = 1_600_000_000_123_456_789  # [ns]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The user's project, in git, which lists no change."""
    folder = tmp_path_factory.mktemp("a b") / "mine"
    for name, text in THEIRS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(LONG_AGO, LONG_AGO))
    (folder / "pi").mkdir()  # empty, and a name of the template
    (folder / "results").mkdir()
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "mine")
    return folder


@pytest.fixture(scope="module")
def slurm(before, tmp_path_factory):
    """The user's project after the command of README.md, for a Slurm cluster; and what was printed."""
    return written(before, tmp_path_factory.mktemp("a b"), site="slurm", nodes="2", gpus_per_node="2")


def git(folder, *words):
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def write(project, *options, **answers):
    """Run the command in the folder above a project, as README.md says; return what was printed."""
    words = ("--no-input", *options, "-o", project.parent, REPOSITORY)
    answers = {"examples": "no", "extras": "all", **answers}
    done = cookiecutter(*words, home=project.parent, project=project.name, **answers)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(before, place, *options, **answers):
    project = place / "mine"
    shutil.copytree(before, project)
    return project, write(project, *(options or OPTIONS), **answers)


def state(project):
    """Return content, mode and time of each file but git's, and every folder."""
    paths = [path for path in project.rglob("*") if ".git" not in path.relative_to(project).parts]
    found = {path.relative_to(project).as_posix(): path for path in paths}
    return {
        name: "folder"
        if path.is_dir()
        else os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for name, path in found.items()
    }


def test_no_file_of_the_user_s_is_changed(before, slurm):
    project, said = slurm
    old, new = state(before), state(project)
    assert {name: new[name] for name in old} == old
    added = [name for name in new if name not in old]
    assert {name.split("/")[0] for name in added} == {"env.sh", "launch", "slurm", "check", "extras"}
    assert not git(project, "diff")
    listed = git(project, "status", "--short", "--untracked-files=all").splitlines()
    assert sorted(listed) == sorted(f"?? {name}" for name in added if new[name] != "folder")
    assert "kept" not in said and said.endswith("  cd mine\n  less slurm/README.md\n")


def test_a_second_run_changes_nothing(before, tmp_path):
    project, _ = written(before, tmp_path, site="local")
    old = state(project)
    said = write(project, *OPTIONS, site="local")
    assert state(project) == old
    assert "none was changed" in said


def test_the_user_s_files_stay_if_one_option_was_forgotten(before, tmp_path):
    """Without --skip-if-file-exists cookiecutter writes over what is there, but not over what is left out."""
    project, _ = written(before, tmp_path, "--overwrite-if-exists", site="local")
    old, new = state(before), state(project)
    assert {name: new[name] for name in old} == old
    assert {name.split("/")[0] for name in new if name not in old} == {"env.sh", "launch", "local", "check", "extras"}


def test_files_that_these_answers_do_not_need_stay_and_are_listed(tmp_path):
    """They may come from an earlier run with other answers, or be the user's."""
    mine = {"container/Dockerfile": "FROM mine\n", "runai/pod.sh": "echo mine\n", "runai/job.sh": "echo mine\n"}
    for name, text in mine.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    for _ in range(2):  # in a folder that was no project of the template, and in one that is
        said = write(tmp_path / "mine", "--overwrite-if-exists", site="local", examples="yes", extras="none")
        listed = re.findall("^  (.*/.*)$", said, re.MULTILINE)
        assert sorted(listed)[:2] == ["container/: Dockerfile", "runai/: job.sh, pod.sh"], said
        assert {name: (tmp_path / "mine" / name).read_text() for name in mine} == mine


def test_files_of_the_same_name_are_kept_and_named(before, tmp_path):
    project = tmp_path / "mine"
    shutil.copytree(before, project)
    for name in ("env.sh", "launch/rank.sh"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("export MINE=1\n")
    old = state(project)
    said = write(project, *OPTIONS, site="slurm")
    new = state(project)
    assert {name: new[name] for name in old} == old  # their modes too
    assert "2 were there before, and were kept: env.sh, launch/rank.sh\n" in said


@pytest.mark.parametrize(
    ("name", "kind"), [("check", "file"), ("env.sh", "folder"), ("check", "link"), ("env.sh", "link")]
)
def test_a_file_where_a_folder_is_needed_is_refused(name, kind, before, tmp_path):
    """Before anything is written; and a folder where a file is needed, which cookiecutter would leave out unsaid."""
    project = tmp_path / "mine"
    shutil.copytree(before, project)
    if kind == "file":
        (project / name).write_text("#!/bin/sh\n")
    elif kind == "link":
        (project / name).symlink_to("/no/such/file")
    else:
        (project / name).mkdir()
    old = state(project)
    words = ("--no-input", *OPTIONS, "-o", tmp_path, REPOSITORY)
    done = cookiecutter(*words, home=tmp_path, project="mine", site="local", examples="no")
    assert done.returncode != 0 and f"'{name}' is a {kind}" in done.stderr and "the template writes " in done.stderr
    assert state(project) == old


# ---- it runs ---------------------------------------------------------------------------------------------------------


def test_programs_run_on_slurm(cluster, slurm):
    """Both jobs at once, on two nodes each."""
    needs_namespaces(cluster)
    project, _ = slurm
    environment = {"PYTHON": sys.executable, "ALLOW_CPU": "1", "LAUNCHER": "spawn"}  # imports torch once per node
    command = ["bash", "slurm/submit_multinode.sh", "train.py", "two words"]
    number = int(cluster.run(*command, cwd=project, env=environment).stdout.split()[-1])
    check = cluster.submit("slurm/submit_multinode.sh", cwd=project, env=environment)
    own = cluster.wait(number)
    assert (check.state, own.state) == ("COMPLETED", "COMPLETED"), check.output + own.output
    assert "all-reduce over 4 rank(s) on 2 host(s): right" in check.output
    assert check.output.count("meeting at") == 1  # and no second program
    assert own.output.count("4 ranks with ['two words']") == 4


def test_an_environment_takes_the_user_s_packages(slurm, tmp_path):
    """No requirements.txt: refused before a job waits in the queue."""
    project = tmp_path / "mine"
    shutil.copytree(slurm[0], project, symlinks=True)
    (project / "requirements.txt").unlink()
    command = ["bash", "slurm/build_venv.sh"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"no requirements.txt in {project}: write one" in done.stderr
