"""The question `extras`: what it takes, what is written, and how an extra comes into a project that is there."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from baking import REPOSITORY, bake, cookiecutter, page, typed
from test_existing_project import state as files_and_folders

from cluster_options import extras
from cluster_options.answers import problems
from cluster_options.extras import EXTRAS, extras_at

KINDS = ("slurm", "runai", "local")


def state(project):
    """Return content, mode and time of each file."""
    return {name: what for name, what in files_and_folders(project).items() if what != "folder"}


def folders(project):
    return sorted(path.name for path in project.glob("extras/*"))


@pytest.mark.parametrize("site", KINDS)
def test_all_of_a_kind_of_site_none_and_one(site, written):
    """No extra changes a file outside; and the table is the same whatever was chosen."""
    account = {"account": "mlo-jdoe"} if site == "runai" else {}
    there = sorted(extras_at(site))
    whole, bare = (written(site=site, extras=answer, **account) for answer in ("all", "none"))
    one = written(site=site, extras=there[0], **account)
    assert (folders(whole), folders(one), folders(bare)) == (there, there[:1], [])
    assert not (bare / "extras").exists()
    for project in (whole, one):
        core = {path: what[0] for path, what in state(project).items() if not path.startswith("extras/")}
        assert core == {path: what[0] for path, what in state(bare).items()}
    assert dict(re.findall(r"(?m)^\| `(\w+)` \| (.+) \|$", page(bare, "extras"))) == extras_at(site)


@pytest.mark.parametrize(
    ("site", "answer", "said"),
    [
        ("slurm", "notebok", "extra 'notebok' is not known (did you mean notebook?); choose one of none, all, "),
        ("local", "notebook", "extra 'notebook' is for Slurm, but this machine has no scheduler; leave it out"),
        ("slurm", "scaling,scaling", "extras 'scaling,scaling' has a name twice; write extras=scaling"),
        ("slurm", "scaling, notebook", "without spaces; write extras=scaling,notebook"),
        ("slurm", "all,notebook", "extras 'all,notebook': all and none stand alone; answer none, all, or names with"),
        ("slurm", "", "extras '' has no name in it; answer none, all, or names with commas, as in "),
        ("slurm", "+", "extras '+' has no name in it; "),
        ("slurm", "+none", "extras '+none' adds nothing; name extras, as in +"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_refused_with_the_right_form(site, answer, said, tmp_path):
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, project="demo", site=site, extras=answer)
    assert done.returncode != 0 and said in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(("launcher", "extras"), [("mpirun", "none"), ("mpirun-ranks", "notebook"), ("mpirun", "all")])
def test_a_launcher_brings_its_extra_along(launcher, extras, tmp_path):
    answers = {"project": "demo", "site": "slurm", "launcher": launcher, "extras": extras}
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, **answers)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"(?m)^  less extras/mpi/README.md +# .*launcher={launcher}", done.stdout), done.stdout
    wanted = {"none": {"mpi"}, "notebook": {"mpi", "notebook"}, "all": set(extras_at("slurm"))}[extras]
    assert set(folders(tmp_path / "demo")) == wanted
    again = add(tmp_path / "demo", "trackers")  # and nothing else, as the user may have deleted the other
    assert "extras/mpi" not in again.stdout and set(folders(tmp_path / "demo")) == {*wanted, "trackers"}


def test_an_extra_is_for_sites_that_have_its_launchers(written, tmp_path):
    assert "mpi" not in folders(written(site="clariden", extras="all"))
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, project="other", site="clariden", extras="mpi")
    assert done.returncode != 0 and "extra 'mpi' is for the launchers mpirun or mpirun-ranks, which" in done.stderr


def test_every_name_can_be_answered_and_typed():
    for name, (kinds, word, purpose) in EXTRAS.items():
        assert re.fullmatch("[a-z]+", name) and set(kinds) <= set(KINDS) and len(word) < 20 < len(purpose) < 100


def test_the_hook_refuses_too():
    """A replay is asked nothing."""
    answers = {"project": "demo", "site": "local", "launcher": "torchrun", "runtime": "none", "image": ""}
    answers |= dict.fromkeys(("account", "partition", "qos", "time_limit"), "")
    answers |= {"nodes": "2", "gpus_per_node": "0", "examples": "no", "extras": "scaling,scaling"}
    twice, needs = problems(answers)
    assert twice == "extras 'scaling,scaling' has a name twice; write extras=scaling"
    assert "which examples=no leaves out" in needs


# ---- adding an extra later -------------------------------------------------------------------------------------------


def add(project, name):
    """Type the command of the page on extras in the folder above a project; return what was printed."""
    command = re.search(r"```bash\n(.*)\n```", page(project, "extras"))[1].replace("extras=+NAME", f"extras=+{name}")
    return typed(command, project.parent, project.parent)


@pytest.mark.parametrize(("site", "examples"), [("slurm", "yes"), ("slurm", "no"), ("runai", "yes"), ("local", "yes")])
def test_adding_writes_the_folders_and_nothing_else(site, examples, written, tmp_path):
    """Files that the user has changed, deleted or added stay so."""
    account = {"account": "mlo-jdoe"} if site == "runai" else {}
    project = bake(tmp_path, site=site, extras="none", examples=examples, **account)
    names = list(extras.extras_of({"site": site, "examples": examples}))
    with (project / "env.sh").open("a") as settings:
        settings.write("export MINE=1\n")
    (project / "check/ranks.py").unlink()
    (project / "train.py").write_text("print()\n")
    if examples == "no":
        (project / "README.md").write_text("# mine\n")
    before = state(project)
    done = add(project, ",".join(names))
    assert done.returncode == 0, done.stderr
    assert all(f"less extras/{name}/README.md" in done.stdout for name in names)
    after = state(project)
    assert {path: after[path] for path in before} == before
    added = {path: what[0] for path, what in after.items() if path not in before}
    assert {path.split("/")[1] for path in added} == {*names}
    fresh = state(written(site=site, extras="all", examples=examples, **account))
    assert {path: what[0] for path, what in fresh.items() if path.startswith("extras/")} == added


def test_an_extra_that_is_there_keeps_the_user_s_changes(tmp_path):
    project = bake(tmp_path, site="slurm", extras="notebook,scaling")
    page_of_extra = project / "extras/scaling/README.md"
    page_of_extra.write_text("mine\n")
    shutil.rmtree(project / "extras/notebook")
    assert add(project, "notebook").returncode == 0
    assert page_of_extra.read_text() == "mine\n" and folders(project) == ["notebook", "scaling"]
    assert add(project, "scaling").returncode == 0
    assert page_of_extra.read_text() == "mine\n"


def test_a_forgotten_option_overwrites_nothing(tmp_path):
    """Without --skip-if-file-exists cookiecutter writes over what is there, but not over what is left out."""
    project = bake(tmp_path, site="local", extras="none")
    (project / "env.sh").write_text("export MINE=1\n")
    before = state(project)
    words = ("--no-input", "--overwrite-if-exists", REPOSITORY)
    done = cookiecutter(*words, home=tmp_path, project="demo", site="local", extras="+scaling")
    assert done.returncode == 0, done.stderr
    after = state(project)
    assert {name: after[name] for name in before} == before and folders(project) == ["scaling"]


def test_adding_to_a_project_that_is_not_there_is_refused(tmp_path):
    """Also to one that has an env.sh of its own, but is none of the template's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/env.sh").write_text("export MINE=1\n")
    for name in ("mine", "new"):
        words = ("--no-input", "--overwrite-if-exists", "--skip-if-file-exists", REPOSITORY)
        done = cookiecutter(*words, home=tmp_path, project=name, site="local", extras="+scaling")
        assert done.returncode != 0 and "adds to a project of this template" in done.stderr, done.stderr
        assert "write the project with extras=scaling" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["env.sh"] and not (tmp_path / "new").exists()


def test_the_pages_read_the_extras_from_the_folders_that_are_there(tmp_path):
    """So they are the same whatever was answered, and stay true when an extra comes or goes."""
    project = bake(tmp_path, site="slurm", extras="notebook,scaling")
    shutil.rmtree(project / "extras/notebook")
    (project / "extras/mine").mkdir()
    command = re.search(r"```bash\n(.*)\n```", page(project, "updating"))[1]
    command = ["bash", "-c", command.replace("cookiecutter", "echo", 1)]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shown.endswith("extras=scaling\n")
    shutil.rmtree(project / "extras")
    assert subprocess.check_output(["bash", project / "launch/list_extras.sh"], text=True) == "none\n"


def test_settings_are_read_from_the_extras_own_files(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "FOLDER", tmp_path)
    (tmp_path / "notebook").mkdir()
    (tmp_path / "notebook/settings.sh").write_text('# NOT=one\nLAB="${LAB:-1}"\nexport PORT="${PORT:-8888}"\n')
    assert extras.extra_settings({"site": "slurm", "examples": "yes"}) == {"LAB": "notebook", "PORT": "notebook"}
    assert extras.extra_settings({"site": "local", "examples": "yes"}) == {}
