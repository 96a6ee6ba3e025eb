"""A program for each line of a file, as an array of jobs: extras/sweep on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from baking import bake
from needs import needs_namespaces
from submitting import apptainer_project, cluster
from submitting import project_of_extras as project
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import PATIENCE, wait_for

SETTINGS = {**ENVIRONMENT, "NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1", "PREFLIGHT": "0"}
# A title, the clipboard, another screen, a reset, a way back in the line; a byte that is no UTF-8.
NASTY = "\x1b]0;t\x07\x1b]52;c;eA==\x07\x1b[?1049h\x1bc\x9b2J\x08\x7f\udc9b ü"
OPTIONS = ("--nodes=1", "--gpus-per-node=0", "--exclusive=user")
TRAINING = [
    "training/train_ddp.py",
    "--steps",
    "4",
    "--layers",
    "1",
    "--width",
    "16",
    "--context",
    "16",
    "--global-batch",
    "4",
]
# Prints its arguments, and ends as the first of them says.
PROGRAM = """\
import sys, time
print("got", sys.argv[1:], flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def sweep(cluster, project, tmp_path):
    """Returns sweep(lines, *words) -> the number of its job. The program is prog.py."""
    (tmp_path / "prog.py").write_text(PROGRAM)
    begun = []

    def start(lines, *words, name="lines.txt", check=True, **environment):
        (tmp_path / name).write_text(lines)
        command = ["bash", project / "extras/sweep/sweep.sh", name, *map(str, words)]
        done = cluster.run(*command, cwd=tmp_path, env={**SETTINGS, **environment}, check=check)
        if not check:
            return done
        begun.append(int(re.search(r"sweep.sh (\d+) prints the table of this sweep\n$", done.stdout).group(1)))
        return begun[-1]

    yield start
    cluster.run("scancel", *map(str, begun), check=False)


def table(cluster, project, number):
    return cluster.run("bash", project / "extras/sweep/sweep.sh", str(number)).stdout


def ended(cluster, project, number):
    """Return the table once no job of the sweep waits or runs."""
    last = []

    def over():
        last[:] = [table(cluster, project, number)]
        return not re.search("PENDING|RUNNING|COMPLETING", last[0])

    wait_for(over, lambda: last[0])
    return last[0]


def outputs(folder, name="lines"):
    return sorted(
        line
        for path in folder.glob(f"{name}-*.out")
        for line in re.findall(r"^(?:\[\S+\]|\d+:) (got .*)", path.read_text(), re.M)
    )


def test_a_job_for_each_line(cluster, project, tmp_path, sweep):
    """Words are those of a shell; empty lines and comments do not count; %a is the number of the line."""
    number = sweep("# code seconds words\n0 0 'a b' --out=%a\n\n3 0 it\\'s ß\n", *OPTIONS, "--", "prog.py")
    said = ended(cluster, project, number)
    assert outputs(tmp_path) == ["got ['0', '0', 'a b', '--out=2']", "got ['3', '0', \"it's\", 'ß']"]
    rows = [line.split()[:2] for line in said.splitlines()[:3]]
    assert rows == [["line", "state"], ["2", "COMPLETED"], ["4", "FAILED"]], said
    assert "\n1 COMPLETED, 1 FAILED\n" in said
    assert re.search(rf"^line 4: got \['3', .* \(python3 slurm/doctor\.py {number}_4\)$", said, re.MULTILINE), said


@pytest.mark.drill
@pytest.mark.parametrize("name", ["cluster24", "cluster26"])
def test_newer_slurms(request, name, project, tmp_path):
    cluster = request.getfixturevalue(name)
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "lines.txt").write_text("0 0 a\n3 0 b\n")
    command = ["bash", project / "extras/sweep/sweep.sh", "lines.txt", *OPTIONS, "--", "prog.py"]
    number = int(re.search(r"sweep.sh (\d+) prints", cluster.run(*command, cwd=tmp_path, env=SETTINGS).stdout).group(1))
    said = ended(cluster, project, number)
    assert "\n1 COMPLETED, 1 FAILED\n" in said, said
    assert outputs(tmp_path) == ["got ['0', '0', 'a']", "got ['3', '0', 'b']"]


def test_trainings_have_folders_and_losses(cluster, project, tmp_path, sweep):
    number = sweep("--learning-rate 1e-3\n--learning-rate 1e-2\n--steps x\n", *OPTIONS, "--", *map(str, TRAINING))
    said = ended(cluster, project, number)
    (runs,) = tmp_path.glob("runs/lines.*")
    for line, rate in ((1, "1e-3"), (2, "1e-2")):
        rows = [json.loads(row) for row in (runs / f"{line}/metrics.jsonl").read_text().splitlines()]
        loss = [row["loss"] for row in rows if "loss" in row][-1]
        validation = [row["val_loss"] for row in rows if "val_loss" in row][-1]
        cells = rf"^{line}     COMPLETED  0:0\d:\d\d  4     {loss:.4f}  {validation:.4f} +--learning-rate {rate} --out "
        assert re.search(cells, said, re.MULTILINE), said
    assert re.search(r"^line 3: .*argument --steps: 'x' has to be a whole number", said, re.MULTILINE), said


def test_no_more_at_once(cluster, project, tmp_path, sweep):
    """And a table while they run and wait; one that is cancelled is told."""
    number = sweep("0 6000\n0 6000\n0 6000\n", "--max-at-once", 1, *OPTIONS, "--", "prog.py")
    wait_for(lambda: "1 RUNNING" in table(cluster, project, number), lambda: table(cluster, project, number))
    assert "2 PENDING, 1 RUNNING" in table(cluster, project, number)
    cluster.run("scancel", f"{number}_1")
    wait_for(lambda: re.search("^1     CANCELLED", table(cluster, project, number), re.MULTILINE))
    cluster.run("scancel", f"{number}_3")  # it has not begun, and Slurm may have forgotten it
    said = table(cluster, project, number)
    assert f"line 1: the job was cancelled or requeued (python3 slurm/doctor.py {number}_1)" in said, said
    assert re.search(r"^line 3: (the job was cancelled|no cause found, perhaps cancelled)", said, re.MULTILINE), said


def test_two_sweeps_at_once(cluster, project, tmp_path, sweep):
    first = sweep("0 0 first\n0 0 first\n", *OPTIONS, "--", "prog.py")
    second = sweep("0 0 second\n", *OPTIONS, "--", "prog.py")
    said = [ended(cluster, project, number) for number in (first, second)]
    assert [text.count("COMPLETED  ") for text in said] == [2, 1], said
    assert outputs(tmp_path) == [f"got ['0', '0', '{word}']" for word in ("first", "first", "second")]


@pytest.mark.drill
def test_an_array_that_a_job_submits_is_no_part_of_the_sweep(cluster, project, tmp_path, sweep):
    inner = f"""bash {shlex.quote(str(project / "slurm/submit_multinode.sh"))} --array=2 --job-name=inner"""
    (tmp_path / "outer.py").write_text(
        f"import os, subprocess\n"
        f"os.environ.pop('SLURM_JOB_ID')\n"
        f"subprocess.run({inner!r} + ' {shlex.join(OPTIONS)} -- prog.py 0 0 inner', shell=True, check=True)\n"
    )
    number = sweep("# one\n0 0 outer\n", *OPTIONS, "--", "outer.py")
    assert "1 COMPLETED" in ended(cluster, project, number)
    wait_for(lambda: outputs(tmp_path, "inner"), "the output of the inner job")
    assert outputs(tmp_path, "inner") == ["got ['0', '0', 'inner']"]


@pytest.mark.drill
def test_a_requeued_job_keeps_its_line(cluster, project, tmp_path, sweep):
    number = sweep("0 6000 a\n", *OPTIONS, "--", "prog.py")
    wait_for(lambda: outputs(tmp_path) == ["got ['0', '6000', 'a']"])
    cluster.run("scontrol", "requeue", f"{number}_1")
    wait_for(lambda: outputs(tmp_path) == ["got ['0', '6000', 'a']"] * 2)
    assert "RUNNING" in table(cluster, project, number)


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        ("", ("--", "prog.py"), "'lines.txt' has no line with arguments: write one line for each job"),
        ("# all\n\n", ("--", "prog.py"), "'lines.txt' has no line with arguments"),
        ('1\n--a "b\n', ("--", "prog.py"), 'lines.txt:2: --a "b: No closing quotation: in a word, write'),
        ("1\n--a \\\n", ("--", "prog.py"), "lines.txt:2: --a \\: No escaped character: in a word, write"),
        ("1\n2\n", ("--", "prog.py", "--out", "x"), "lines.txt:2: line 1 has --out x too: write --out x/%a"),
        ("--out=x\n--out ./x/\n", ("--", "prog.py"), "lines.txt:2: line 1 has --out x too"),
        (
            "\n" * 1001 + "1\n",
            ("--", "prog.py"),
            "lines.txt:1002: Slurm numbers the jobs of an array up to 1000: split ",
        ),
        ("1\n2 # two\n", ("--", "prog.py"), "lines.txt:2: 2 # two: a comment needs a line of its own"),
        ("1\n", (), "no program: expected bash extras/sweep/sweep.sh lines.txt -- PROGRAM ARGUMENTS"),
        ("1\n", ("--",), "no program: expected"),
        ("1\n", ("--max-at-once", "0", "--", "prog.py"), "--max-at-once '0': expected a number of jobs, 1 or more"),
        ("1\n", ("--wait", "--", "prog.py"), "--wait: leave it out. The lines of the file are the array"),
        ("1\n", ("--array=3", "--", "prog.py"), "--array=3: leave it out"),
        ("1\n", ("--export=NONE", "--", "prog.py"), "--export=NONE: leave it out"),
        ("1\n", ("--max-at-once",), "--max-at-once '': expected"),
        ("1\n", ("--", "nowhere.py"), "no program 'nowhere.py'"),
        ("1\n", ("--partition=nowhere", "--", "prog.py"), "invalid partition specified"),
    ],
)
def test_bad_input_is_refused(cluster, project, sweep, lines, words, said):
    """And nothing is left of it."""
    before = set(project.glob("logs/sweeps/*"))
    done = sweep(lines, *words, check=False)
    assert done.returncode and said in done.stderr and done.stdout == "", done
    assert set(project.glob("logs/sweeps/*")) == before


def test_what_is_no_sweep(cluster, project, tmp_path):
    for words, said in (
        (["999999"], "job 999999 is no sweep of this project"),
        ([], "expected a file with a line for each job"),
        (["nofile", "--", "prog.py"], "cannot read 'nofile'"),
    ):
        (tmp_path / "prog.py").write_text("")
        done = cluster.run("bash", project / "extras/sweep/sweep.sh", *words, cwd=tmp_path, env=SETTINGS, check=False)
        assert done.returncode == 2 and said in done.stderr, done


def test_control_characters_are_shown(project, tmp_path):
    """Of the arguments, and of the causes that doctor.py tells."""
    (tmp_path / "7").mkdir()
    record = {"folder": str(tmp_path), "command": ["prog.py"], "jobs": {"1": ["--name", NASTY]}}
    (tmp_path / "7/sweep.json").write_text(json.dumps(record))
    (tmp_path / "7/1.end").write_text("1 5")
    command = [sys.executable, "-B", project / "extras/sweep/table.py", tmp_path / "7"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:replace"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE)
    text = done.stdout.decode(errors="surrogateescape")
    assert not done.stderr and "^[]52;c;" in text
    assert not [line for line in text.splitlines() if not line.isprintable()], text


@pytest.mark.drill
def test_in_apptainer(containers, sif, tmp_path, tmp_path_factory):
    needs_namespaces(containers)
    own = apptainer_project(tmp_path_factory, sif, "sweep")
    (own / "prog.py").write_text(PROGRAM)
    (own / "lines.txt").write_text("0 0 a%a\n3 0 'b c'\n")
    command = ["bash", own / "extras/sweep/sweep.sh", "lines.txt", *OPTIONS, "--", "prog.py"]
    number = int(re.search(r"sweep.sh (\d+) prints", containers.run(*command, cwd=own, env=SETTINGS).stdout).group(1))
    said = ended(containers, own, number)
    assert "\n1 COMPLETED, 1 FAILED\n" in said, said
    assert outputs(own) == ["got ['0', '0', 'a1']", "got ['3', '0', 'b c']"]


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_alone_and_deleted(cluster, tmp_path, launcher):
    """In a project without other extras; without its folder jobs run, and the command is gone."""
    own = bake(tmp_path / "own", **ANSWERS, extras="sweep")
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "lines.txt").write_text("0 0 a%a\n3 0 b\n")
    settings = {**SETTINGS, "LAUNCHER": launcher}
    command = ["bash", own / "extras/sweep/sweep.sh", "lines.txt", *OPTIONS, "--", "prog.py"]
    number = int(re.search(r"sweep.sh (\d+) prints", cluster.run(*command, cwd=tmp_path, env=settings).stdout).group(1))
    said = ended(cluster, own, number)
    assert "\n1 COMPLETED, 1 FAILED\n" in said, said
    assert outputs(tmp_path) == ["got ['0', '0', 'a1']", "got ['3', '0', 'b']"]
    shutil.rmtree(own / "extras/sweep")
    job = cluster.submit(*OPTIONS, own / "slurm/submit_multinode.sh", "prog.py", "0", "0", cwd=tmp_path, env=settings)
    assert job.state == "COMPLETED" and "got ['0', '0']" in job.output, job.output
