"""A project is written again, updated, replayed, written over, and from other kinds of source."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from baking import REPOSITORY, TEMPLATE, bake, cookiecutter, page, typed

from cluster_options.provenance import VERSION, template_source
from cluster_options.questions import QUESTION_NAMES

TOOLS = Path(sys.executable).parent
QUICK = REPOSITORY / "tests/quick"  # cookiecutter and cruft, which compile each template once for all tests
COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
QUESTIONS = QUESTION_NAMES
ANSWERS = {"project": "demo", "site": "slurm", "nodes": "3", "runtime": "venv"}
SCONTROL = """#!/bin/sh
case $* in
ping) echo "Slurmctld(primary) at toy is UP" ;;
*config) echo "ClusterName = toy" ;;
*partition) echo "PartitionName=p State=UP Default=YES MaxTime=01:00:00 TotalNodes=2 Nodes=n1,n2" ;;
*) for n in 1 2; do echo "NodeName=n$n CPUTot=8 CPUEfctv=8 RealMemory=100 Gres=gpu:2 Partitions=p State=IDLE"; done ;;
esac
"""


def shell(command, folder, home):
    """Run a line of bash as a user would who has cookiecutter and cruft on PATH; fails with what it printed."""
    path = f"{QUICK}:{TOOLS}:{home}/bin:{os.environ['PATH']}"
    git = {f"GIT_{who}_{what}": "me@here" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "COMPILED_TEMPLATES": COMPILED.name, **git}
    if not command.startswith("cruft"):  # which has to live with the bytecode of two versions
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def tree(folder):
    """Return the content and the mode of every file, but for what git and cruft keep."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts]
    found = {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files}
    found.pop(".cruft.json", None)
    return found


def change(path, old, new):
    """Replace one text in a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A git repository of the template, with a tag v1, and a version v2 that changes a bit of everything."""
    home = tmp_path_factory.mktemp("template")
    folder = home / "our-template.git"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("the template is not in git here")
    for name in filter(None, tracked.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    shell("git init -q && git add -A && git commit -qm v1 && git tag v1", folder, home)
    written = folder / TEMPLATE.name
    change(written / "env.sh", "#!/usr/bin/env bash\n", "#!/usr/bin/env bash\n# New in v2.\n")
    change(written / "launch/torchrun.sh", "#!/usr/bin/env bash\n", "#!/usr/bin/env bash\n# New in v2.\n")
    for extra in ("watch", "sweep"):
        change(written / f"extras/{extra}/settings.sh", "#!/usr/bin/env bash\n", "#!/usr/bin/env bash\n# New in v2.\n")
    (written / "launch/new.sh").write_text("#!/usr/bin/env bash\n")
    (written / "launch/new.sh").chmod(0o755)
    with (written / "README.md").open("a") as readme:
        readme.write("\n{{ news() }}\n")
    change(folder / "cluster_options/provenance.py", f'"{VERSION}"', '"9.9.9"')
    change(
        folder / "cluster_options/extension.py",
        "GLOBALS = [",
        'def news():\n    return "news of v2"\n\n\nGLOBALS = [news,',
    )
    change(folder / "sites/slurm.yaml", "title: your Slurm cluster", "title: your newer cluster")
    shell("git add -A && git commit -qm v2 && git tag v2", folder, home)
    return folder


def commands(project):
    """Return the blocks of commands of the page on updating: how the project is written again, how it is updated."""
    return re.findall(r"```bash\n(.*?)\n```", page(project, "updating"), re.DOTALL)


# ---- the command on the page on updating -----------------------------------------------------------------------------

AGAIN = {
    "a site with an account": {"site": "mn5", "account": "abc@h100", "qos": "acc_debug", "time_limit": "01:00:00"},
    "an image": {"site": "slurm", "runtime": "pyxis", "image": "registry.lab:5000#group/torch:1.0"},
    "an answer that empties a default": {"site": "clariden", "partition": "", "project": "My.project-2"},
    "a site's file": {"site": "our 'big' $cluster.yaml", "gpus_per_node": "0"},
    "here": {"site": "here", "nodes": "1"},
    "into a project that exists": {"site": "slurm", "nodes": "3", "examples": "no"},
}


@pytest.mark.parametrize("case", AGAIN)
def test_the_page_s_command_writes_the_same_project(case, tmp_path):
    shutil.copy(REPOSITORY / "sites/slurm.yaml", tmp_path / "our 'big' $cluster.yaml")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").write_text(SCONTROL)
    (tmp_path / "bin/scontrol").chmod(0o755)
    # a configuration that the answers were given in spite of
    (tmp_path / ".cookiecutterrc").write_text("default_context: {nodes: '2', launcher: srun, site: mn5}\n")
    answers = {"project": "demo", "launcher": "torchrun", **AGAIN[case]}
    source = os.path.relpath(REPOSITORY, tmp_path)
    done = cookiecutter("--no-input", "-o", "first", source, home=tmp_path, **answers)
    assert done.returncode == 0, done.stdout + done.stderr
    first = tmp_path / "first" / answers["project"]
    assert f"\n  cd first/{answers['project']}\n" in done.stdout
    before = tree(first)
    if answers.get("examples") == "no":  # the command writes what is missing
        shutil.rmtree(first / "check")
    done = typed(commands(first)[0], first.parent, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    again = first if answers.get("examples") == "no" else first.parent / "again" / answers["project"]
    assert tree(again) == before
    assert ("`site=here` is the cluster that this is typed on" in page(first, "updating")) == (case == "here")


def test_the_pages_commands_add_the_scripts_and_horovod(tmp_path):
    """The one writes into a project that exists, and the other the folder of an extra."""
    project = bake(tmp_path, site="slurm", nodes="3", extras="none")
    before = tree(project)
    (tmp_path / "NAME").mkdir()
    (tmp_path / "NAME/README.md").write_text("mine")
    section = page(project, "your-own-program").partition("## Take it into your own project\n")[2]
    for text in (section, page(project, "launchers")):
        shell(re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1], tmp_path, tmp_path)
    assert (tmp_path / "NAME/README.md").read_text() == "mine"
    assert "#SBATCH --nodes=3 " in (tmp_path / "NAME/slurm/submit_multinode.sh").read_text()
    after = tree(project)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[1] for name in {*after} - {*before}} == {"mpi"} and "extras/mpi/build_horovod.sh" in after


@pytest.mark.parametrize("source", ["git", pytest.param("zip", marks=pytest.mark.drill)])
def test_other_sources(source, template, tmp_path):
    """What a tag gave is written again although the template has moved on. A zip file loses run bits, which is fine."""
    given = f"file://{template} --checkout v1"
    if source == "zip":
        shell(f"git -C {template} archive -o {tmp_path}/v2.zip --prefix=t/ v2", tmp_path, tmp_path)
        given = "v2.zip"
    shell(f"cookiecutter --no-input -o first {given} project=demo site=slurm nodes=3", tmp_path, tmp_path)
    command, *link, overwrite = commands(tmp_path / "first/demo")
    shell(command, tmp_path / "first", tmp_path)
    found = tree(tmp_path / "first/demo")
    assert found == tree(tmp_path / "first/again/demo")
    assert (f"{tmp_path}/v2.zip" if source == "zip" else f" file://{template} ") in command
    assert len(link) == (source == "git")
    version = "9.9.9" if source == "zip" else VERSION
    assert f"\nWritten by version {version} of the template" in (tmp_path / "first/demo/README.md").read_text()
    expected = set(tree(bake(tmp_path / "third", site="slurm", nodes="3")))
    assert set(found) == expected | ({"launch/new.sh"} if source == "zip" else set())
    (tmp_path / "first/demo/own.txt").write_text("mine")
    shell(overwrite, tmp_path / "first", tmp_path)  # by the newest version
    assert "\nWritten by version 9.9.9 of the template" in (tmp_path / "first/demo/README.md").read_text()
    assert (tmp_path / "first/demo/own.txt").read_text() == "mine"


# ---- a newer version -------------------------------------------------------------------------------------------------


# What cluster_options.py did before version 1.2, when it was a file. `cruft update` runs this class for both versions.
FLAT = """\
import importlib, sys
from pathlib import Path
from jinja2.ext import Extension
from earlier.extension import GLOBALS
from earlier.provenance import VERSION
from earlier.runtimes import LAUNCHER_ROWS

def stamps():
    folder = Path(__file__).resolve().parent
    return {path: path.stat().st_mtime_ns for path in [*folder.glob("*.py"), *folder.glob("sites/*.yaml")]}

STAMPS = stamps()

class ClusterOptions(Extension):
    def __init__(self, environment):
        super().__init__(environment)
        if stamps() != STAMPS:
            importlib.reload(sys.modules[__name__])
        environment.globals.update({function.__name__: function for function in GLOBALS})
        environment.globals.update(LAUNCHER_ROWS=LAUNCHER_ROWS, VERSION=VERSION)
"""


@pytest.mark.drill
def test_cruft_updates_from_the_version_of_one_file(template, tmp_path):
    shell(
        f"git clone -q {template} t.git && git -C t.git checkout -q v1 && git -C t.git mv cluster_options earlier",
        *[tmp_path] * 2,
    )
    (tmp_path / "t.git/cluster_options.py").write_text(FLAT)
    loads = tmp_path / "t.git/needs_cookiecutter_2_1_or_newer.py"
    loads.write_text("from cluster_options import ClusterOptions\n")
    shell("git add -A && git commit -qm v0 && git tag v0", tmp_path / "t.git", tmp_path)
    shell(f"cruft create -y --checkout v0 t.git --extra-context '{json.dumps(ANSWERS)}'", tmp_path, tmp_path)
    shell("git init -q && git add -A && git commit -qm first", tmp_path / "demo", tmp_path)
    shell("git checkout -q v2", tmp_path / "t.git", tmp_path)
    shell("cruft update -y --checkout v2", tmp_path / "demo", tmp_path)
    readme = (tmp_path / "demo/README.md").read_text()
    assert "\nWritten by version 9.9.9 of the template" in readme and "news of v2" in readme
    assert "your newer cluster" in (tmp_path / "demo/slurm/submit_multinode.sh").read_text()


def test_cruft_merges_a_newer_version_with_the_user_s_edits(template, tmp_path):
    project = tmp_path / "demo"
    shell(f"cruft create -y --checkout v1 {template} --extra-context '{json.dumps(ANSWERS)}'", tmp_path, tmp_path)
    shell("git init -q && git add -A && git commit -qm first", project, tmp_path)
    shell("cruft check --checkout v1", project, tmp_path)
    shell("! cruft check", project, tmp_path)
    with (project / "env.sh").open("a") as settings:
        settings.write('export MINE="yes"\n')
    (project / "my_program.py").write_text("print()\n")
    shell("git add -A && git commit -qm mine", project, tmp_path)
    before = tree(project)
    said = shell("cruft update -y", project, tmp_path)
    assert said.count("demo is written for") == 2  # the hook ran for the old and for the new version
    shell("cruft check", project, tmp_path)
    after = tree(project)
    settings = (project / "env.sh").read_text()
    assert "# New in v2.\n" in settings and settings.endswith('export MINE="yes"\n')
    assert "# New in v2.\n" in (project / "launch/torchrun.sh").read_text()
    readme = (project / "README.md").read_text()
    assert "\nWritten by version 9.9.9 of the template" in readme and "news of v2" in readme
    assert "your newer cluster" in (project / "slurm/submit_multinode.sh").read_text()
    assert set(after) - set(before) == {"launch/new.sh"} and os.access(project / "launch/new.sh", os.X_OK)
    assert set(before) <= set(after) and all(after[name][0] == mode for name, (mode, _) in before.items())
    assert "nodes=3" in commands(project)[0] and "runtime=venv" in commands(project)[0]


@pytest.mark.parametrize("how", ["with cruft", "without"])
def test_extras_that_came_or_went_stay_so(how, template, tmp_path):
    """One that was added later is updated, too, and one whose folder was deleted stays away."""
    project = tmp_path / "demo"
    words = " ".join(f"{name}={value}" for name, value in ANSWERS.items())
    shell(f"cookiecutter --no-input --checkout v1 file://{template} {words} extras=hangs,sweep", tmp_path, tmp_path)
    page = (project / "slurm/docs/extras.md").read_text()
    shell(re.search(r"```bash\n(.*)\n```", page)[1].replace("+NAME", "+watch"), tmp_path, tmp_path)
    shutil.rmtree(project / "extras/sweep")
    shell("git init -q && git add -A && git commit -qm first", project, tmp_path)
    _, link, overwrite = commands(project)
    if how == "with cruft":
        shell(link, project, tmp_path)
        shell("cruft update -y", project, tmp_path)
        shell("cruft check", project, tmp_path)
    else:
        shell(overwrite, tmp_path, tmp_path)
    assert {path.name for path in (project / "extras").iterdir()} == {"hangs", "watch"}
    assert "# New in v2.\n" in (project / "extras/watch/settings.sh").read_text()
    assert "\nWritten by version 9.9.9 of the template" in (project / "README.md").read_text()


@pytest.mark.parametrize(
    "missing",
    [("examples", "image", "time_limit"), pytest.param(QUESTIONS[2:], marks=pytest.mark.drill)],
    ids=["three", "all"],
)
def test_a_replay_of_an_older_version(missing, tmp_path):
    """Questions that are new are asked; Enter is the site's default. What computes and checks is this version's."""
    fresh = tree(bake(tmp_path / "fresh", site="slurm"))
    bake(tmp_path, "--config-file", "/dev/null", project="other", site="slurm")
    replay = next((tmp_path / ".cookiecutter_replay").glob("*.json"))
    context = json.loads(replay.read_text())
    context["cookiecutter"]["project"] = "demo"
    for name in missing:
        del context["cookiecutter"][name], context["cookiecutter"][f"__{name}"]
    del context["cookiecutter"]["__checked"]
    (tmp_path / "old.json").write_text(json.dumps(context))
    command = [sys.executable, "-m", "cookiecutter", "--replay-file", tmp_path / "old.json", "-o", tmp_path, REPOSITORY]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, input="\n" * 20, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\(the\s+default\)", done.stdout)) == len({*missing} - {"examples", "extras"})
    assert tree(tmp_path / "demo") == fresh


def test_a_replay_records_the_version_that_writes(template, tmp_path):
    shell(f"cookiecutter --no-input file://{template} --checkout v1 project=demo site=slurm", tmp_path, tmp_path)
    shell(f"yes | cookiecutter --replay -o again file://{template} --checkout v2", tmp_path, tmp_path)
    assert "\nWritten by version 9.9.9 of the template" in (tmp_path / "again/demo/README.md").read_text()


def test_answers_from_a_file(tmp_path):
    """No question is a choice: cookiecutter#2219 drops all that follows one that it does not know."""
    questions = json.loads((REPOSITORY / "cookiecutter.json").read_text())
    assert all(isinstance(questions[name], str) for name in QUESTIONS)
    config = tmp_path / "answers.yaml"
    config.write_text("default_context: {project: demo, site: slurm, nodes: 3, launcher: spawn}\n")
    done = cookiecutter("--no-input", "--config-file", config, "-o", tmp_path, REPOSITORY, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "demo") == tree(bake(tmp_path / "b", site="slurm", nodes="3", launcher="spawn"))
    config.write_text("default_context: {project: again, site: slurm, launcher: slurm}\n")
    done = cookiecutter("--no-input", "--config-file", config, "-o", tmp_path, REPOSITORY, home=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "again").exists()


# ---- over a project --------------------------------------------------------------------------------------------------


def test_writing_over_a_project_with_other_answers(tmp_path):
    """What these answers need is replaced. All else stays: of an earlier run, or the user's."""
    project = bake(tmp_path, site="slurm")
    mine = {"slurm/mine.sh": "mine", "local/notes.txt": "mine", "container/own/Dockerfile": "mine", "data.bin": "mine"}
    for name, text in mine.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "container/Dockerfile").write_text("FROM mine\n")
    (project / "env.sh").write_text("edited\n")
    before, fresh = tree(project), tree(bake(tmp_path / "fresh", "--overwrite-if-exists", site="local"))
    bake(tmp_path, "--overwrite-if-exists", site="local")
    assert tree(project) == {**before, **fresh}


def test_writing_what_is_missing_into_a_project(tmp_path):
    """With --skip-if-file-exists nothing that is there changes or goes, even where the template has such a name."""
    project = bake(tmp_path, site="slurm")
    (project / "slurm/doctor.py").unlink()
    for name in ("env.sh", "slurm/submit_multinode.sh", "container/Dockerfile", "slurm/mine.sh"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("mine\n")
    before = tree(project)
    bake(tmp_path, "--overwrite-if-exists", "--skip-if-file-exists", site="slurm")
    after = tree(project)
    assert set(after) - set(before) == {"slurm/doctor.py"}
    assert all(after[name] == before[name] for name in before if not name.endswith("mine.sh"))


@pytest.mark.parametrize(
    ("given", "name", "url"),
    [
        ("gh:org/template", "gh:org/template", "https://github.com/org/template.git"),
        ("https://gitlab.com/org/template.git", "gl:org/template", "https://gitlab.com/org/template.git"),
        ("git@host:org/template.git", "git@host:org/template.git", "git@host:org/template.git"),
        ("https://host/template.zip", "https://host/template.zip", ""),
    ],
)
def test_a_source_is_named_alike_by_cookiecutter_and_cruft(given, name, url):
    source = template_source({"_template": given})
    assert (source["name"], source["git"]) == (name, url)


# ---- which version this is -------------------------------------------------------------------------------------------


def test_the_version_is_the_newest_of_the_changelog():
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)(?:, \d{4}-\d\d-\d\d| \(not released\))$", changes, re.MULTILINE)
    assert newest[1] == VERSION
