"""Jobs of a project that has other extras beside snapshot, and of one from which it was deleted, on a real Slurm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
from baking import bake
from sources import LONGER
from submitting import ANSWERS, cluster, python_environment
from two_nodes import MPIRUN_AS_ROOT
from waiting import wait_for

PROGRAM = """\
import os, sys
import helper
sys.stdout.write("RESULT " + "|".join([helper.TEXT, *sys.argv[1:], __file__, sys.prefix]) + "\\n")
"""
# It asks for a requeue at its first attempt.
ASKED_ONCE = """\
import os, sys, time
import helper
print("got", helper.TEXT, *sys.argv[1:], os.environ["RESTART_COUNT"], flush=True)
if os.environ["RESTART_COUNT"] == "0":
    while not os.path.exists(os.environ["STOP_FILE"]):
        time.sleep(0.1)
    open(os.environ["REQUEUE_FILE"], "w").close()
    sys.exit()
time.sleep(6)
"""


def written(tmp_path, extras, program=PROGRAM):
    """Return a project with these extras, a program and its module."""
    project = bake(tmp_path / "a b", **ANSWERS, extras=extras)
    (project / "prog.py").write_text(program)
    (project / "helper.py").write_text("TEXT = 'first'\n")
    return project


def submit(cluster, project, *words, **environment):
    """Submit a job; return its number."""
    settings = {"NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1", "PREFLIGHT": "0", "SNAPSHOT": "1", **environment}
    settings = python_environment(**settings)
    done = cluster.run("bash", project / "slurm/submit_multinode.sh", *words, cwd=project, env=settings)
    return int(re.search(r"Submitted batch job (\d+)", done.stdout)[1])


def released(cluster, number):
    """Release a job, and return it at its end, which has to be a good one."""
    cluster.run("scontrol", "release", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    return job


def test_deleted_by_hand(cluster, tmp_path):
    """A job runs the files as they are, and records nothing; the setting is refused, with the command that adds it."""
    project = written(tmp_path, "all")
    shutil.rmtree(project / "extras/snapshot")
    number = submit(cluster, project, "--hold", "--nodes=1", "--", "prog.py", LAUNCHER="srun", SNAPSHOT="0")
    (project / "helper.py").write_text("TEXT = 'second'\n")
    job = released(cluster, number)
    assert "RESULT second" in job.output
    assert not (project / "logs/snapshots").exists() and not list(project.glob("logs/*/run.json"))
    command = ["bash", project / "slurm/submit_multinode.sh", "prog.py"]
    done = cluster.run(*command, cwd=project, env=python_environment(SNAPSHOT="1"), check=False)
    assert done.returncode == 2 and ": extras/snapshot is not in this project. To add it: " in done.stderr


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["spawn", "mpirun", "mpirun-ranks"])
def test_other_launchers(cluster, tmp_path, launcher):
    """torchrun and srun have tests of their own."""
    project = written(tmp_path, "snapshot,mpi", PROGRAM + LONGER)
    number = submit(cluster, project, "--hold", "--", "prog.py", "a b", LAUNCHER=launcher, **MPIRUN_AS_ROOT)
    (project / "helper.py").write_text("TEXT = 'second'\n")
    job = released(cluster, number)
    (copy,) = project.glob("logs/snapshots/*/demo")
    expected = f"first|a b|{copy}/prog.py|{sys.prefix}"
    assert re.findall(r"RESULT (.*)", job.output) == [expected] * 2, job.output
    assert (project / f"logs/{number}.0/packages.txt").read_text().startswith(f"# Python {sys.version.split()[0]}")


def test_the_environment_is_copied_to_the_nodes_too(cluster, tmp_path):
    """The extra stage copies the environment, and snapshot the sources. A package that is editable is a source."""
    project = written(tmp_path, "snapshot,stage", "import thing\nassert thing.VALUE == 'first'\n" + PROGRAM)
    folder = project / ".venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "paths.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{project}/library\n")
    (project / "library").mkdir()
    (project / "library/thing.py").write_text("VALUE = 'first'\n")
    staged = {"STAGE": "1", "STAGE_DIR": "/dev/shm", "RUNTIME": "venv", "PYTHON": "python3", "LAUNCHER": "srun"}
    number = submit(cluster, project, "--hold", "--", "prog.py", **staged)
    for name in ("helper.py", "library/thing.py"):
        path = project / name
        path.write_text(path.read_text().replace("first", "second"))
    job = released(cluster, number)
    (copy,) = project.glob("logs/snapshots/*/demo")
    pattern = rf"first\|{re.escape(str(copy))}/prog\.py\|/dev/shm/staged-\d+/[0-9a-f]{{16}}/content/\.venv"
    assert len(found := re.findall(r"RESULT (.*)", job.output)) == 2, job.output
    assert all(re.fullmatch(pattern, line) for line in found), found


def test_the_command_that_repeats_one_job_of_a_sweep(cluster, tmp_path):
    project = written(tmp_path, "snapshot,sweep")
    (project / "lines.txt").write_text("0 'a b' %a\n")
    typed = ["bash", project / "extras/sweep/sweep.sh", "lines.txt", "--nodes=1", "--", "prog.py"]
    done = cluster.run(*typed, cwd=project, env=python_environment(LAUNCHER="srun", NPROC_PER_NODE="1"))
    number = re.search(r"sweep.sh (\d+) prints", done.stdout)[1]
    table = ["bash", project / "extras/sweep/sweep.sh", number]
    wait_for(lambda: "1 COMPLETED" in cluster.run(*table).stdout, lambda: cluster.run(*table).stdout)
    (record,) = project.glob("logs/*.0/run.json")
    assert json.loads(record.read_text())["program"] == ["prog.py", "0", "a b", "1"]
    said = cluster.run("python3", project / "extras/snapshot/repeat.py", record.parent).stdout
    assert said.endswith(" -- prog.py 0 'a b' 1\n") and "--array" not in said, said


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_all_extras_together_in_an_array_after_a_requeue(cluster, tmp_path, launcher):
    project = written(tmp_path, "all", ASKED_ONCE)
    settings = {"LAUNCHER": launcher, "MEASURE_EVERY": "1"}
    number = submit(cluster, project, "--array=3", "--", "prog.py", "a b", **settings)

    def output():
        return "".join(path.read_text() for path in project.glob("demo-*.out"))

    wait_for(lambda: output().count("got first a b 0") == 2, output)
    (project / "helper.py").write_text("TEXT = 'second'\n")
    cluster.run("scancel", "--signal=USR1", "--batch", f"{number}_3")
    wait_for(lambda: "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", f"{number}_3").stdout, output)
    assert output().count("got first a b 1") == 2 and "got second" not in output(), output()
    runs = [json.loads((folder / "run.json").read_text()) for folder in sorted(project.glob("logs/[0-9]*.[01]"))]
    assert [run["attempt"] for run in runs] == [0, 1] and runs[0]["code"] == runs[1]["code"]


def test_a_rank_gets_pythonpath_and_no_code(cluster, tmp_path):
    """Where a folder of PYTHONPATH is a source, it is that of the copy. Without a copy the variable stays as it is."""
    text = "import os, sys, thing\nown = [name for name in sys.modules if 'snapshot' in name or name == 'imports']\n"
    text += "path = [name for name in os.environ['PYTHONPATH'].split(':') if not name.endswith('/stacks/python')]\n"
    project = written(tmp_path, "snapshot", text + "print('RESULT', thing.VALUE, path, own)\n")
    (project / "library").mkdir()
    (project / "library/thing.py").write_text("VALUE = 'first'\n")
    words = ["--hold", "--nodes=1", "--", "prog.py"]
    given = {"LAUNCHER": "srun", "PYTHONPATH": "library:/nowhere"}
    numbers = [submit(cluster, project, *words, SNAPSHOT=snapshot, **given) for snapshot in ("1", "0")]
    (copy,) = project.glob("logs/snapshots/*/demo")
    (project / "library/thing.py").write_text("VALUE = 'second'\n")
    found = [re.findall(r"RESULT (.*)", released(cluster, number).output) for number in numbers]
    expected = [f"first {[f'{copy}/library', '/nowhere']} []"], [f"second {['library', '/nowhere']} []"]
    assert found == list(expected)
