"""Jobs that run a copy of the sources, run.json, repeat.py and clean.sh of extras/snapshot, on a real Slurm.

Most jobs are submitted on hold. Then the sources are edited, and the job is released. test_copies.py has what a copy
holds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from baking import bake
from launching import RUNTIMES, container_cluster, everywhere, get_image, surroundings
from needs import needs_namespaces
from slurm_cluster import PATH
from sources import LONGER, apply_changes, commit, git, repository, write
from submitting import ANSWERS, cluster, python_environment
from waiting import FOREVER, PATIENCE, wait_for

# It imports no torch: where srun starts it, a job takes a second.
PROGRAM = """\
import os, sys
import helper
with open("input.txt") as file:
    live = file.read()
words = ["first", helper.TEXT, os.environ.get("MARK", "none"), live, *sys.argv[1:]]
sys.stdout.write("RESULT " + "|".join(words) + "\\n")
"""
ARGUMENTS = ["a b", '"', "it's", "$HOME", "--max"]
QUICK_AND_DRILL = ["srun", pytest.param("torchrun", marks=pytest.mark.drill)]


def edit(*paths):
    """Replace the word that tells which version of a file it is."""
    for path in paths:
        text = path.read_text()
        assert "first" in text
        path.write_text(text.replace("first", "second"))


def results(text):
    """Return what the ranks have printed."""
    return sorted(re.findall(r"RESULT (.*)", text))


@pytest.fixture
def project(tmp_path):
    """A project under git with a program, all committed, and a module that git does not know yet."""
    project = bake(tmp_path / "a b", **ANSWERS, extras="snapshot")
    with open(project / "env.sh", "a") as file:
        file.write("export MARK=first\n")
    git(project, "init", "--quiet")
    write(project, {"prog.py": PROGRAM, "input.txt": "first"})
    commit(project)
    return write(project, {"helper.py": "TEXT = 'first'\n"})


class Jobs:
    """Submits jobs of one node and one rank to a cluster, with a launcher."""

    def __init__(self, cluster, launcher):
        self.cluster = cluster
        self.environment = python_environment(LAUNCHER=launcher, NPROC_PER_NODE="1", OMP_NUM_THREADS="1")

    def call(self, project, *words, options=(), cwd=None, check=True, **environment):
        """Call slurm/submit_multinode.sh; return the finished process."""
        before = ["--nodes=1", *options, "--"]
        command = ["bash", project / "slurm/submit_multinode.sh", *before, *words]
        environment = {**self.environment, **environment}
        return self.cluster.run(*command, cwd=cwd or project, env=environment, check=check)

    def submit(self, project, *words, options=(), **more):
        """Submit a job with SNAPSHOT=1; return its number."""
        done = self.call(project, *words, options=options, SNAPSHOT="1", **more)
        return int(re.search(r"Submitted batch job (\d+)", done.stdout)[1])

    def hold(self, *arguments, options=(), **more):
        """Submit a job that waits for `release`."""
        return self.submit(*arguments, options=["--hold", *options], **more)

    def release(self, number):
        """Release a job, and wait for its end."""
        self.cluster.run("scontrol", "release", str(number))
        return self.ended(number)

    def ended(self, number):
        """Wait for a job that has to succeed."""
        job = self.cluster.wait(number)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        return job


@pytest.fixture(params=QUICK_AND_DRILL)
def jobs(request, cluster):
    return Jobs(cluster, request.param)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.drill) for name in ("srun", "torchrun")])
def jobs_of_drills(request, cluster):
    return Jobs(cluster, request.param)


@pytest.fixture
def quick(cluster):
    """For what does not depend on the launcher."""
    return Jobs(cluster, "srun")


def run_json(project, number, attempt=0):
    return json.loads((project / f"logs/{number}.{attempt}/run.json").read_text())


def snapshots(project):
    """Return the copies in logs/snapshots."""
    return sorted(path for path in (project / "logs/snapshots").glob("*") if re.fullmatch("[0-9a-f]{12}", path.name))


# ---- a job runs what was submitted -----------------------------------------------------------------------------------


def test_a_job_runs_the_sources_as_they_were(jobs, project, tmp_path):
    """Program, a module that git does not know yet, and env.sh. The folder of submission is the live one, as are logs/.

    run.json then says which sources these were, though the commit and the files are others now.
    """
    before = commit_of(project)
    number = jobs.hold(project, "prog.py", *ARGUMENTS)
    frozen = tree(project)
    edit(*(project / name for name in ("prog.py", "helper.py", "env.sh", "input.txt")))
    commit(project)
    job = jobs.release(number)
    assert results(job.output) == ["|".join(["first", "first", "first", "second", *ARGUMENTS])], job.output
    assert (project / f"demo-{number}.out").exists()
    logs = project / f"logs/{number}.0"
    assert (project / "logs/latest").resolve() == logs.resolve()
    assert len(list(logs.glob("node0-*"))) == 1
    (copy,) = snapshots(project)
    run = run_json(project, number)
    assert (run["project"], run["folder"], run["code"]["snapshots"]) == (str(project), str(project), [str(copy)])
    assert run["program"] == [str(copy / "demo/prog.py"), *ARGUMENTS]
    script = str(copy / "demo/slurm/submit_multinode.sh")
    assert run["submitted"] == ["bash", script, "--nodes=1", "--hold", "--", *run["program"]]
    assert (run["code"]["git"]["commit"], run["code"]["git"]["untracked"]) == (before, ["helper.py"])
    assert tree(apply_changes(project, before, logs / "changes.diff", tmp_path / "again")) == frozen


def commit_of(folder):
    return git(folder, "rev-parse", "HEAD").strip()


def tree(folder):
    """Return the sources of a repository: what git tracks, or does not ignore."""
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name: (folder / name).read_bytes() for name in listed if name}


def test_without_a_snapshot_a_job_runs_the_sources_as_they_are(quick, project):
    """What the test above cannot see: that edits reach a job that is on hold. And no copy is made."""
    done = quick.call(project, "prog.py", options=["--hold"])
    edit(project / "prog.py", project / "helper.py")
    job = quick.release(int(done.stdout.split()[-1]))
    assert results(job.output) == ["second|second|first|first"], job.output
    assert not (project / "logs/snapshots").exists()


def test_a_requeued_job_runs_the_sources_as_they_were(jobs_of_drills, project):
    jobs, program = jobs_of_drills, project / "prog.py"
    wait = f"    open('started', 'w').close()\n    time.sleep({FOREVER})\n"
    program.write_text(PROGRAM + "import time\nif os.environ['RESTART_COUNT'] == '0':\n" + wait)
    number = jobs.submit(project, "prog.py")
    wait_for((project / "started").exists, "the first attempt")
    edit(*(project / name for name in ("prog.py", "helper.py", "env.sh")))
    jobs.cluster.run("scontrol", "requeue", str(number))
    job = jobs.ended(number)
    assert results(job.output)[-1] == "first|first|first|first", job.output
    (copy,) = snapshots(project)
    run = run_json(project, number, 1)
    assert (run["attempt"], run["code"]["snapshots"]) == (1, [str(copy)])


def test_a_module(jobs_of_drills, project):
    """python -m looks in the folder of submission, which is the live one: the copy of that folder comes first."""
    files = {"sub/package/__init__.py": "", "sub/package/module.py": PROGRAM, "sub/helper.py": "TEXT = 'first'\n"}
    write(project, {**files, "sub/input.txt": "first", "sub/package/own.py": "first = 1\n"})
    module = project / "sub/package/module.py"
    module.write_text("from . import own\n" + PROGRAM + "assert __name__ == '__main__' and own.first\n")
    number = jobs_of_drills.hold(project, "-m", "package.module", *ARGUMENTS, cwd=project / "sub")
    edit(module, project / "sub/helper.py", project / "sub/package/own.py", project / "env.sh")
    job = jobs_of_drills.release(number)
    assert results(job.output) == ["|".join(["first"] * 4 + ARGUMENTS)], job.output


def packages_of(project, number):
    """Return the lines of packages.txt, which a process beside the ranks writes."""
    path = project / f"logs/{number}.0/packages.txt"
    return path.read_text().splitlines()


def editable_environment(folder, *packages):
    """Make an environment with this Python's packages, and install packages into it as pip install --editable does."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    (site_packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--no-index"]
    editables = [word for package in packages for word in ("--editable", package)]
    done = subprocess.run([*pip, *editables], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return site_packages


# Packages that setuptools installs in different ways: by a finder, by a line in a .pth file (deep), with a folder of
# another name (odd), without __init__.py above it (space.part), and as one file (single). Lines of pyproject.toml that
# describe a package, and its file.
EDITABLE = {
    "flat": ("", "flat/__init__.py"),
    "deep": ("", "src/deep/__init__.py"),
    "odd": ('packages = ["odd"]\npackage-dir = {odd = "python"}\n', "python/__init__.py"),
    "space.part": ('packages = ["space.part"]\n', "space/part/__init__.py"),
    "single": ('py-modules = ["single"]\n', "single.py"),
}
BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nversion = "1"\n'


def test_packages_that_were_installed_editable(jobs_of_drills, project):
    folders = {name: project / "libraries" / name for name in EDITABLE}
    for name, (lines, file) in EDITABLE.items():
        about = f'{BUILD}name = "{name}"\n[tool.setuptools]\n{lines}'
        write(folders[name], {"pyproject.toml": about, file: "TEXT = 'first'\n"})
    write(folders["flat"], {"flat/sub.py": ""})
    site_packages = editable_environment(project / ".venv", *folders.values())
    assert len(list(site_packages.glob("__editable__*_finder.py"))) == 4, "this pip installs otherwise"
    words = ", ".join(f"{name}.TEXT" for name in EDITABLE)
    text = f"import flat.sub, {', '.join(EDITABLE)}\nprint('RESULT', {words}, flat.sub.__file__)\n"
    write(project, {"jobs/prog.py": text + LONGER})
    settings = {"RUNTIME": "venv", "PYTHON": "python"}
    number = jobs_of_drills.hold(project, "jobs/prog.py", **settings)
    edit(*(folders[name] / file for name, (_, file) in EDITABLE.items()))
    (copy,) = snapshots(project)
    job = jobs_of_drills.release(number)
    assert results(job.output) == [f"{'first ' * 5}{copy}/demo/libraries/flat/flat/sub.py"], job.output
    assert packages_of(project, number)[0].endswith(f"{project}/.venv/bin/python")


def test_a_program_in_another_repository(jobs_of_drills, project, tmp_path):
    """Both are copied. The program finds data beside it, which git ignores, where it was."""
    other = repository(
        tmp_path / "other one",
        {"src/prog.py": PROGRAM, ".gitignore": "input.txt\n", "src/helper.py": "TEXT = 'first'\n"},
    )
    program = other / "src/prog.py"
    program.write_text(PROGRAM.replace('"input.txt"', 'sys.path[0] + "/input.txt"'))
    write(other / "src", {"input.txt": "first"})
    number = jobs_of_drills.hold(project, program, cwd=tmp_path)
    edit(program, *(other / "src" / name for name in ("helper.py", "input.txt")), project / "env.sh")
    job = jobs_of_drills.release(number)
    assert results(job.output) == ["first|first|first|second"], job.output
    run = run_json(project, number)
    assert sorted(map(Path, run["code"]["snapshots"])) == snapshots(project) and len(snapshots(project)) == 2
    assert run["folder"] == str(tmp_path)


def test_equal_sources_share_a_copy(quick, project):
    """A year of jobs does not fill the disk."""
    held = [quick.hold(project, "prog.py") for _ in range(2)]
    assert len(snapshots(project)) == 1
    edit(project / "helper.py")
    held.append(quick.hold(project, "prog.py"))
    assert len(snapshots(project)) == 2
    quick.cluster.run("scancel", *map(str, held))


@pytest.mark.drill
def test_jobs_of_an_array(jobs_of_drills, project):
    number = jobs_of_drills.hold(project, "prog.py", "a part", options=["--array=3-4"])
    edit(project / "prog.py", project / "helper.py")
    jobs_of_drills.cluster.run("scontrol", "release", str(number))
    shown = wait_for(lambda: all_ended(jobs_of_drills.cluster, number), "the end of the array")
    assert shown.count("JobState=COMPLETED") == 2, shown
    output = "".join(path.read_text() for path in project.glob("demo-*.out"))
    assert results(output) == ["first|first|first|first|a part"] * 2, output
    runs = [json.loads(path.read_text()) for path in project.glob("logs/*.0/run.json")]
    assert sorted(run["array_task"] for run in runs) == ["3", "4"]
    assert {run["program"][-1] for run in runs} == {"a part"}


def all_ended(cluster, number):
    """Return Slurm's record of an array, once all its jobs have ended."""
    shown = cluster.run("scontrol", "show", "job", str(number)).stdout
    states = re.findall(r"JobState=(\S+)", shown)
    return shown if not {"PENDING", "RUNNING", "COMPLETING"} & set(states) else ""


IN_CONTAINERS = [name for name in RUNTIMES if name not in ("none", "venv")]


@pytest.mark.drill
@pytest.mark.parametrize("runtime", IN_CONTAINERS)
def test_a_container_sees_the_copy(container_cluster, runtime, everywhere, surroundings, tmp_path):
    """And the folders to which its links lead: data of the project, and of the program's own repository."""
    cluster, blank = container_cluster, "_" if runtime == "edf" else " "
    answers = {"site": everywhere, "runtime": runtime, "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path / f"my{blank}projects", **answers, extras="snapshot")
    surround = surroundings(runtime, project, tmp_path, cluster)
    # The file that describes a container for edf has the project, but no further folder to which links lead.
    below = 'os.environ["PROJECT_DIR"]' if runtime == "edf" else "sys.path[0]"
    for launcher in ("srun", "torchrun"):
        jobs = Jobs(cluster, launcher)
        jobs.environment |= surround
        if launcher == "srun":
            get_image(cluster, project, runtime, jobs.environment)
        text = PROGRAM.replace('"input.txt"', 'NAME + "/data/input.dat"'.replace("NAME", below))
        other = repository(tmp_path / f"other{blank}{launcher}", {"prog.py": text, ".gitignore": "data/\n"})
        write(other, {"helper.py": "TEXT = 'first'\n"})
        data = write(project if runtime == "edf" else other, {"data/input.dat": "first"}) / "data/input.dat"
        here = tmp_path / f"here{blank}{launcher}"
        here.mkdir()
        number = jobs.hold(project, other / "prog.py", cwd=here)
        edit(other / "prog.py", other / "helper.py", data)
        job = jobs.release(number)
        assert results(job.output) == ["first|first|none|second"], job.output
        run = run_json(project, number)
        assert len(run["code"]["snapshots"]) == 2 and run["image"]["name"], run


# ---- which job that was ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", [pytest.param(name, marks=pytest.mark.drill) for name in ("srun", "torchrun")])
def test_run_json_of_a_job_without_a_snapshot(cluster, launcher, project, tmp_path):
    """Of the command that README.md shows; on two nodes."""
    jobs = Jobs(cluster, launcher)
    jobs.environment |= {"LOADEDMODULES": "gcc/13:cuda/12.6", "NCCL_DEBUG": "WARN", "MY_API_KEY": "hidden"}
    with open(project / "env.sh", "a") as file:
        file.write('export MY_API_KEY="${MY_API_KEY:-}" MINE="${MINE:-}"\n')
    before = commit_of(project)
    (project / "prog.py").write_text(PROGRAM + LONGER)
    frozen = tree(project)
    command = ["bash", "slurm/submit_multinode.sh", "--time=7", "--", "prog.py", *ARGUMENTS]
    number = int(cluster.run(*command, cwd=project, env=jobs.environment).stdout.split()[-1])
    job = jobs.ended(number)
    assert job.output.count("RESULT") == 2, job.output
    run = run_json(project, number)
    script = str(project / "slurm/submit_multinode.sh")
    assert run["program"] == ["prog.py", *ARGUMENTS]
    assert run["submitted"] == ["bash", script, "--time=7", "--", *run["program"]]
    assert run["nodes"] == ["node1", "node2"] and run["allocation"]["nodes"] == "2"
    assert run["versions"]["slurm"] == cluster.run("sinfo", "--version").stdout.split()[-1]
    packages = packages_of(project, number)
    assert packages[0] == f"# Python {sys.version.split()[0]}, {sys.executable}"
    from importlib.metadata import version

    assert f"pytest=={version('pytest')}" in packages
    assert run["modules"] == ["gcc/13", "cuda/12.6"] and run["environment"]["NCCL_DEBUG"] == "WARN"
    changed = {"PYTHON": sys.executable, "SNAPSHOT": "0", "ALLOW_CPU": "1", "NPROC_PER_NODE": "1"}
    changed |= {"OMP_NUM_THREADS": "1", **({} if launcher == "torchrun" else {"LAUNCHER": launcher})}
    assert run["changed_settings"] == changed
    code = run["code"]
    assert (code["git"]["commit"], code["git"]["clean"], code["snapshots"]) == (before, False, [])
    again = apply_changes(project, before, project / f"logs/{number}.0/changes.diff", tmp_path / "again")
    assert tree(again) == frozen


def test_run_json_of_plain_sbatch(quick, project):
    """It has no words of sbatch, as this Slurm has no accounting, but their result. Plain sbatch makes no copy."""
    commit(project)
    script = "slurm/submit_multinode.sh"
    options = ("--nodes=1", "--time=7")
    number = quick.cluster.sbatch(
        *options, script, "prog.py", "a b", cwd=project, env={**quick.environment, "SNAPSHOT": "1"}
    )
    said = "sbatch alone has submitted this job, so it runs the files as they are now, without a copy (SNAPSHOT)"
    assert said in quick.ended(number).output
    run = run_json(project, number)
    assert (run["submitted"], run["program"]) == (None, ["prog.py", "a b"])
    assert (run["allocation"]["nodes"], run["allocation"]["time"]) == ("1", "00:07:00")
    assert run["code"]["git"]["clean"] is True
    assert not (project / f"logs/{number}.0/changes.diff").exists()
    said = repeat(quick, project, number)
    assert "how it was submitted is not known" in said.stdout
    assert re.search(
        r"^[^#]*\bbash \S.*/submit_multinode\.sh'? --nodes=1 --partition=\S+ .*--time=00:07:00 -- prog\.py 'a b'$",
        said.stdout,
        re.M,
    )


def test_a_wrong_setting_is_refused(quick, project):
    for setting, said in {
        "SNAPSHOT=2": "SNAPSHOT='2': expected 1 or 0\n",
        "SNAPSHOT_LIMIT_MB=0": "SNAPSHOT_LIMIT_MB='0': expected a whole number of MB, as in 100\n",
    }.items():
        name, value = setting.split("=")
        done = quick.call(project, "prog.py", check=False, **{name: value})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"slurm/submit_multinode.sh: {said}"), done.stderr


def test_nothing_is_submitted_if_the_sources_cannot_be_copied(quick, project):
    with open(project / "vocabulary.txt", "wb") as file:
        file.truncate(2_000_000)
    commit(project)
    done = quick.call(project, "prog.py", check=False, SNAPSHOT="1", SNAPSHOT_LIMIT_MB="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "and the limit is 20,000 files and 1 MB. The largest: vocabulary.txt (2 MB), " in done.stderr


# ---- once more -------------------------------------------------------------------------------------------------------


def repeat(jobs, project, *words, check=True):
    """Run extras/snapshot/repeat.py on the login node, from another folder."""
    return jobs.cluster.run("python3", project / "extras/snapshot/repeat.py", *map(str, words), check=check)


def resubmit(jobs, project, number):
    """Have bash run what extras/snapshot/repeat.py prints, in a shell without any settings; return the ended job."""
    command = f"bash <(python3 {str(project / 'extras/snapshot/repeat.py')!r} {number})"
    done = jobs.cluster.run("bash", "-c", command, cwd=project.parent)
    return jobs.ended(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))


def test_repeat_a_job(jobs, project):
    """The same copy, program, arguments and settings, although all was edited since; and that job once more."""
    number = jobs.submit(project, "prog.py", *ARGUMENTS)
    first = jobs.ended(number)
    edit(*(project / name for name in ("prog.py", "helper.py", "env.sh")))
    wanted = ["|".join(["first"] * 4 + ARGUMENTS)]
    assert results(first.output) == wanted, first.output
    second = resubmit(jobs, project, number)
    assert results(second.output) == wanted, second.output
    one, two = run_json(project, number), run_json(project, second.id)
    same = ("program", "folder", "submitted", "changed_settings", "code", "allocation", "nodes")
    assert {name: one[name] for name in same} == {name: two[name] for name in same}
    assert len(snapshots(project)) == 1
    assert results(resubmit(jobs, project, second.id).output) == wanted


def test_repeat_says_which_code_it_was(quick, project, tmp_path):
    """Of a job without a copy: whether the sources are the same now, and else how to get them."""
    before = commit_of(project)
    (project / "prog.py").write_text(PROGRAM + LONGER)
    number = int(quick.call(project, "prog.py").stdout.split()[-1])
    quick.ended(number)
    said = repeat(quick, project, number).stdout
    assert f"# commit {before} of main, with changes.diff\n# the sources in {project} are those of the job\n" in said
    assert re.match(rf"# job {number}, attempt 0, \S+, on 1 node\(s\): node1\n# Python \S+, \S+, torch \S+, ", said)
    assert repeat(quick, project, project / f"logs/{number}.0").stdout == said
    frozen = tree(project)
    edit(project / "prog.py")
    said = repeat(quick, project, number).stdout
    assert (
        "# the sources have changed since. This puts those of the job into another folder; submit from there:\n" in said
    )
    (recipe,) = re.findall(r"^# (git .* worktree add .*)$", said, re.MULTILINE)
    quick.cluster.run("bash", "-c", recipe)
    assert tree(project.parent / f"demo-{before[:8]}") == frozen


def test_repeat_says_that_the_copy_is_gone(quick, project):
    number = quick.submit(project, "prog.py")
    quick.ended(number)
    (copy,) = snapshots(project)
    frozen = tree(project)
    shutil.rmtree(copy)
    said = repeat(quick, project, number).stdout
    gone = f"# the copy of the sources that it ran was removed: {copy}\n"
    assert f"{gone}# the sources in {project} are those of the job\n" in said
    submit = said.splitlines()[-1]
    script, program = project / "slurm/submit_multinode.sh", project / "prog.py"
    assert submit.endswith(f" bash '{script}' --nodes=1 -- '{program}'"), submit
    edit(project / "prog.py")
    said = repeat(quick, project, number).stdout
    assert f"{gone}# the sources have changed since." in said
    (recipe,) = re.findall(r"^# (git .* worktree add .*)$", said, re.MULTILINE)
    quick.cluster.run("bash", "-c", recipe)
    assert tree(project.parent / f"demo-{commit_of(project)[:8]}") == frozen


@pytest.mark.parametrize("words", [["987654"], ["nowhere"], ["../etc"], []])
def test_repeat_knows_no_such_job(quick, project, words):
    done = repeat(quick, project, *words, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    if words:
        assert (
            done.stdout == "" and f"no run.json of '{words[0]}' in {project}/logs: expected the number" in done.stderr
        )
    else:
        assert "python3 extras/snapshot/repeat.py 123" in done.stderr and done.stdout == "", "bash <(…) would run it"


# ---- clean.sh --------------------------------------------------------------------------------------------------------


def clean(jobs, project, *words, check=True, **environment):
    return jobs.cluster.run("bash", project / "extras/snapshot/clean.sh", *words, check=check, env=environment)


def make_old(*folders, days=31):
    """Set the times of copies back."""
    for folder in folders:
        then = folder.stat().st_mtime - days * 86400
        os.utime(folder, (then, then))


def test_clean_removes_copies_that_no_job_needs(quick, project, tmp_path):
    """Not those of jobs on hold, nor of the last 30 days; but those of jobs that have ended, and unfinished ones."""
    held = [quick.hold(project, "prog.py")]
    other = repository(tmp_path / "other", {"package/__init__.py": "", "package/module.py": "", "prog.py": ""})
    held.append(quick.hold(project, "-m", "package.module", cwd=other))
    write(other, {"prog.py": "another"})
    held.append(quick.hold(project, other / "prog.py"))
    kept = snapshots(project)
    assert len(kept) == 3
    edit(project / "helper.py")
    quick.cluster.run("scancel", str(quick.hold(project, "prog.py")))
    (unused,) = set(snapshots(project)) - set(kept)
    edit(project / "prog.py")
    quick.cluster.run("scancel", str(quick.hold(project, "prog.py")))
    (recent,) = set(snapshots(project)) - {unused, *kept}
    unfinished = project / "logs/snapshots/.unfinished-node9-1"
    write(unfinished, {"demo/prog.py": "x"})
    make_old(*kept, unused, unfinished)
    make_old(recent, days=29)
    before = sorted(path for path in project.rglob("*"))
    named = sorted(f"{path.relative_to(project)}" for path in (unused, unfinished))
    said = clean(quick, project, "--dry-run").stdout
    assert sorted(said.splitlines()) == [f"would remove {name}" for name in named]
    assert sorted(path for path in project.rglob("*")) == before
    assert sorted(clean(quick, project).stdout.splitlines()) == named
    assert snapshots(project) == sorted([*kept, recent]) and not unfinished.exists()
    assert clean(quick, project).stdout == ""
    quick.cluster.run("scancel", *map(str, held))
    assert len(clean(quick, project).stdout.splitlines()) == 3 and snapshots(project) == [recent]


def test_clean_keeps_what_a_program_has_written(quick, project):
    (project / "prog.py").write_text("open(__file__ + '.result', 'w').close()\n")
    quick.ended(quick.submit(project, "prog.py"))
    (copy,) = snapshots(project)
    (copy / "demo/launch/__pycache__").mkdir()
    (copy / "demo/launch/__pycache__/x.pyc").touch()
    make_old(copy)
    done = clean(quick, project)
    said = f"logs/snapshots/{copy.name} stays: a program has written logs/snapshots/{copy.name}/demo/prog.py.result\n"
    assert (done.stdout, done.stderr) == ("", said) and snapshots(project) == [copy]
    (copy / "demo/prog.py.result").unlink()
    make_old(copy)
    assert clean(quick, project).stdout == f"logs/snapshots/{copy.name}\n" and snapshots(project) == []


def test_clean_follows_no_link_to_a_folder_of_copies(quick, project, tmp_path):
    other = write(tmp_path / "scratch", {"0123456789ab/demo/x": "", "thesis/chapter.tex": ""})
    make_old(*other.iterdir())
    (project / "logs").mkdir(exist_ok=True)
    (project / "logs/snapshots").symlink_to(other)
    assert clean(quick, project).stdout == "" and len(list(other.iterdir())) == 2


def test_clean_keeps_the_copy_of_a_job_that_runs(quick, project):
    program = project / "prog.py"
    program.write_text(f"import time\nopen('started', 'w').close()\ntime.sleep({FOREVER})\n")
    number = quick.submit(project, "prog.py")
    wait_for((project / "started").exists, "the job")
    (copy,) = snapshots(project)
    make_old(copy)
    assert clean(quick, project).stdout == "" and snapshots(project) == [copy]
    quick.cluster.run("scancel", str(number))
    quick.cluster.wait(number)
    assert clean(quick, project).stdout == f"logs/snapshots/{copy.name}\n" and snapshots(project) == []


def test_clean_removes_nothing_if_slurm_does_not_answer(quick, project, tmp_path):
    """An empty answer would be taken for an empty queue."""
    number = quick.hold(project, "prog.py")
    (copy,) = snapshots(project)
    make_old(copy)
    (write(tmp_path / "bin", {"scontrol": "#!/bin/sh\nexit 1\n"}) / "scontrol").chmod(0o755)
    done = clean(quick, project, check=False, PATH=f"{tmp_path}/bin:{PATH}")
    assert done.returncode == 2 and "No copy was removed" in done.stderr and snapshots(project) == [copy]
    quick.cluster.run("scancel", str(number))


@pytest.mark.parametrize("words", [["--all"], ["logs"], ["--dry-run", "x"]])
def test_clean_refuses_other_options(quick, project, words):
    write(project / "logs/snapshots/0123456789ab", {"demo/x": ""})
    make_old(project / "logs/snapshots/0123456789ab")
    done = clean(quick, project, *words, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "expected --dry-run, or nothing" in done.stderr
    assert len(snapshots(project)) == 1


def test_clean_says_how_it_is_used(quick, project):
    assert "bash extras/snapshot/clean.sh --dry-run    only lists the copies" in clean(quick, project, "--help").stdout
