"""slurm/doctor.py as a program: what it may be asked about, what Slurm knows of the job, and which Python runs it."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys

import pytest
from doctor_cases import (
    CANCELLED,
    EXITS,
    GOOD,
    LAUNCHERS,
    OTHER,
    PROGRAM,
    ask,
    ask_job,
    doctor,
    project,
    read,
    told,
    traceback,
)
from test_versions import OLD
from waiting import PATIENCE

# ---- jobs and files --------------------------------------------------------------------------------------------------

KNOWN = {"OUT_OF_MEMORY": "of a host", "TIMEOUT": "walltime", "NODE_FAIL": "a node failed", "PREEMPTED": "priority"}


@pytest.mark.parametrize("state", KNOWN)
def test_what_slurm_knows(doctor, state):
    record = f"JobId=12 JobName=x\n   JobState={state} Reason=None\n   ExitCode=0:15\n   StdOut=/nowhere/x.out\n"
    for command, answers in {  # the second one later
        "scontrol show job 12": {"scontrol": record},
        "sacct -X -j 12": {"sacct": f"{state}|0:15"},
    }.items():
        done = doctor("12", **answers)
        lines = done.stdout.decode().splitlines()
        assert done.returncode == 0 and lines[0].startswith("cause: ") and KNOWN[state] in lines[0], lines
        assert re.fullmatch(rf"proof: {command}: JobState={state}.* ExitCode=0:15", lines[1])
    assert doctor("12", scontrol=record.replace(state, "COMPLETED")).stdout.startswith(b"job 12 did not fail: ")


def test_a_rank_that_slurm_ended_is_not_named(ask_job, project):
    """srun reports the tasks that the time limit ended. A rank that had failed before is named."""
    limit = CANCELLED.replace("JOB", "STEP") + " DUE TO TIME LIMIT ***\n"
    killed, failed = (f"srun: error: node2: task 3: {how}\n" for how in ("Killed", "Exited with exit code 2"))
    record = f"JobId=64\n JobState=TIMEOUT ExitCode=0:15\n StdOut={project}/demo-64.out\n"
    for lines, expected in (
        (limit + killed, ("slurm", None, "time limit")),
        (failed + limit, ("slurm", 3, "time limit")),
    ):
        (project / "demo-64.out").write_text(GOOD + "3: x\n" + lines)
        assert told(ask_job("64", cwd=project, scontrol=record)) == expected, lines


def test_a_number_in_a_name_need_not_be_a_job_of_ours(doctor, project, tmp_path):
    """But a date, or of another cluster's job: neither what Slurm says of it nor the logs of its ranks count."""
    record = "JobId=77 JobName=x\n   JobState=COMPLETED Reason=None\n   ExitCode=0:0\n   StdOut=/elsewhere/x-77.out\n"
    log = project / "logs/77.0/node0-node1/0/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(traceback("KeyError: 'another job'"))
    error = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    (tmp_path / "train-77.log").write_text(error)
    report = doctor("train-77.log", scontrol=record).stdout.decode()
    assert report.startswith("cause: the memory of a GPU") and "another job" not in report, report


def test_the_attempt_that_was_asked_for(ask_job, project):
    """Its logs alone: the output has several attempts, and does not tell which is which."""
    for attempt, error in enumerate(("KeyError: 'first'", "KeyError: 'second'")):
        log = project / f"logs/55.{attempt}/node0-node1/0/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(traceback(error))
    disk = "slurmstepd: error: write: No space left on device\n"
    (project / "demo-55.out").write_text(GOOD + traceback("KeyError: 'first'", "0: ") + GOOD + disk)

    def ask(what, state, **more):
        record = f"JobId=55 JobName=x\n   JobState={state} Reason=None ExitCode=1:0\n   Requeue=1 Restarts=1\n"
        return ask_job(what, cwd=project, scontrol=record, **more)

    for state in ("FAILED", "COMPLETED", "RUNNING"):
        answer = ask("logs/55.0", state)
        assert told(answer) == ("error", 0, "") and answer["words"][-1] == "KeyError: 'first'", answer
    for what in ("55", "logs/55.1"):
        answer = ask(what, "FAILED")
        assert told(answer) == ("error", 0, "") and answer["words"][-1] == "KeyError: 'second'", answer
    assert told(ask("55", "COMPLETED")) == ("none", None, "")
    assert ask("logs/55.1", "RUNNING")["words"][-1] == "KeyError: 'second'"


def test_jobs_that_have_not_ended(doctor, project):
    for state in ("PENDING", "RUNNING", "SUSPENDED"):
        record = f"JobId=56 JobName=x\n   JobState={state} Reason=Priority Dependency=(null)\n   ExitCode=0:0\n"
        done = doctor("56", scontrol=record)
        expected = f"job 56 has not ended: JobState={state} Reason=Priority ExitCode=0:0\n"
        assert (done.returncode, done.stdout.decode()) == (0, expected)


def test_a_job_that_runs_is_read_within_itself(doctor, project):
    """As the submit script does, whose job has not ended when its ranks have."""
    (project / "demo-57.out").write_text(GOOD + traceback("OSError: [Errno 28] No space left on device"))
    done = doctor("57", cwd=project, within="57", scontrol="JobId=57 JobName=x\n   JobState=RUNNING Reason=None\n")
    assert done.stdout.startswith(b"cause: a disk is full")


def test_a_heterogeneous_job_is_no_array(doctor):
    record = "JobId=88 HetJobId=88 HetJobOffset=0 JobName=x\n   JobState=FAILED Reason=None ExitCode=0:53\n"
    both = record + "\n" + record.replace("JobId=88 ", "JobId=89 ", 1).replace("Offset=0", "Offset=1")
    done = doctor("88", scontrol=both)
    assert done.returncode == 2, done
    assert (
        done.stderr == b"slurm/doctor.py: job 88 is an array, or heterogeneous: name one of its jobs, as 88_1 or 88+0\n"
    )
    done = doctor("88+0", scontrol=record)
    assert done.returncode == 0 and b"\nproof: scontrol show job 88: JobState=FAILED" in done.stdout, done


@pytest.mark.parametrize(
    "rows",
    [
        "COMPLETED|0:0|12_1\nFAILED|1:0|12_2\n",
        "COMPLETED|0:0|12_1\nPENDING|0:0|12_[2-9]\n",
        "COMPLETED|0:0|12+0\nFAILED|1:0|12+1\n",
    ],
)
def test_several_jobs_that_scontrol_has_forgotten(doctor, rows):
    done = doctor("12", sacct=rows)
    assert (done.returncode, done.stdout) == (2, b""), done
    said = "job 12 is an array, or heterogeneous: name one of its jobs, as 12_1 or 12+0"
    assert done.stderr.decode() == f"slurm/doctor.py: {said}\n"
    one = rows.splitlines()[0].split("|")[-1]
    done = doctor(one, sacct=rows.splitlines()[0])
    expected = f"job {one} did not fail: JobState=COMPLETED ExitCode=0:0\n"
    assert (done.returncode, done.stdout.decode()) == (0, expected), done


def test_what_cannot_be_read(doctor, tmp_path):
    """Reading this file fails, for root too."""
    done = doctor("/proc/self/mem")
    assert (done.returncode, done.stdout) == (2, b""), done
    assert done.stderr == b"slurm/doctor.py: cannot read /proc/self/mem: Input/output error\n"


def test_nothing_to_read(doctor, tmp_path, project):
    (tmp_path / "empty.out").touch()
    (project / "logs/900017.0/node0-node1/0").mkdir(parents=True)
    (project / "logs/900017.0/node0-node1/0/stderr.log").touch()
    for given in ("empty.out", project / "logs/900017.0"):
        done = doctor(given)
        assert (done.returncode, done.stdout) == (2, b""), done
        assert done.stderr.decode() == f"slurm/doctor.py: nothing to read in {given}\n"


def test_what_is_said_where_nothing_else_is(doctor, read):
    code, report = read("0: ok\nsrun: error: node2: task 1: Exited with exit code 3\n")
    assert code == 1 and report.startswith("no cause known: it said nothing of its own\n"), report
    assert "\nfirst failure: rank 1 on node2 ended with exit code 3 (" in report, report
    done = doctor("987654", scontrol="JobId=987654 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0")
    assert done.returncode == 1 and b"ExitCode=1:0): it said nothing of its own\n" in done.stdout, done.stdout


# ---- the answer ------------------------------------------------------------------------------------------------------


def test_the_answer_has_the_form_that_help_describes(doctor, ask):
    described = doctor("--help").stdout.decode().partition("The JSON object has")[2].partition("Exit code 0")[0]
    keys, _, ways = described.partition("Each way:\n")
    for output in (GOOD, EXITS["srun"]("config error"), LAUNCHERS["torchrun"](OTHER)):
        answer = ask(output)
        assert re.findall(r"(?m)^  (\w+) ", keys) == list(answer), described
        assert answer["way"] in re.findall(r"(?m)^  (\w+) ", ways), described
        for cause in answer["causes"]:
            assert list(cause) == ["name", "says", "fix", "proof"] and all(cause.values()), cause


def test_the_cause_comes_first(read):
    lines = read(LAUNCHERS["torchrun"]("\n".join(f"line {number}" for number in range(99))))[1].splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == ["cause", "proof", "fix", "first failure"], lines
    assert len(lines) <= 4 + 25 and all(line.startswith("    ") for line in lines[4:]), lines


# ---- safety and speed ------------------------------------------------------------------------------------------------

SECONDS = 5  # on an idle machine; others may use this one
LONG = {
    "one line": lambda file: file.write("extension(s) Cuda failure " * 400_000),
    "one line of carriage returns": lambda file: file.write("\r 10%|#  | 10/100 [00:01<00:10,  4.0it/s]" * 250_000),
    "one line with labels": lambda file: file.write("[node1:0] " * 1_000_000),
    "100 MB": lambda file: many(file, lambda n: f"[node{n % 2}:{n % 8}] step {n} loss 2.31 {'x' * 70}\n"),
    "100 MB of errors": lambda file: many(file, lambda n: traceback("KeyError: 'x'", f"[n{n % 2}:{n % 8}] ", depth=1)),
    "100 MB without labels": lambda file: many(file, lambda n: f"error: x{n} failed Connection {'x' * 70}\n"),
}


def many(file, text):
    """Write 20 MB of lines and more behind a hole of 80 MB."""
    file.seek(80_000_000)
    file.writelines(text(number) for number in range(210_000))


@pytest.mark.parametrize("kind", LONG)
def test_an_output_of_many_megabytes(doctor, tmp_path, kind):
    """It answers in seconds, of the processor's time, and its lines are short."""
    with open(tmp_path / "my.out", "w") as file:
        file.write(GOOD)
        LONG[kind](file)
        file.write("\nsrun: error: node2: task 3: Exited with exit code 3\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = doctor("my.out")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    assert done.returncode in (0, 1) and max(map(len, done.stdout.splitlines())) < 400, done


@pytest.mark.parametrize("how", [["-I"], ["-P"], []])
def test_where_python_does_not_look_for_modules(project, tmp_path, how):
    """python -I, PYTHONSAFEPATH=1; and a folder whose files have the names of modules."""
    (tmp_path / "my.out").write_text(EXITS["srun"]("config error"))
    for name in ("logs", "causes", "json", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    environment = {"PATH": os.environ["PATH"], **({} if how else {"PYTHONSAFEPATH": "1"})}
    command = [
        sys.executable,
        *(how if how != ["-P"] or sys.version_info >= (3, 11) else []),
        project / "slurm/doctor.py",
    ]
    done = subprocess.run([*command, "my.out"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1 and b"config error" in done.stdout and not done.stderr, done


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes(doctor, tmp_path):
    for arguments, message in {
        (): "'': expected a job's number",
        ("1", "2"): "'1 2': expected a job's number",
        ("nosuch.out",): "'nosuch.out': expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT",
        (".",): "'.': expected",
        ("0",): "'0': expected",
        ("987654",): "Slurm does not know a job 987654, and there is no *-987654.out in",
    }.items():
        done = doctor(*arguments)
        assert (done.returncode, done.stdout) == (2, b""), done
        assert done.stderr.decode().startswith(f"slurm/doctor.py: {message}"), done.stderr


# ---- the Python of login nodes ---------------------------------------------------------------------------------------


MODULES = {
    "argparse",
    "glob",
    "itertools",
    "json",
    "os",
    "re",
    "runpy",
    "signal",
    "subprocess",
    "sys",
    "typing",
}


def test_it_is_python_3_6_with_its_standard_library():
    files = [PROGRAM, *sorted((PROGRAM.parent / "doctor").glob("*.py"))]
    files += sorted(PROGRAM.parent.parent.glob("extras/*/causes.py"))
    own = {path.stem for path in files}
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 6))
        imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imports |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert imports <= MODULES | own, path
        newer = (
            r"removeprefix|removesuffix|capture_output|text=True|missing_ok|dataclass|:=|\.reconfigure|fromisoformat"
        )
        assert not re.search(newer, path.read_text()), path
    assert os.access(PROGRAM, os.X_OK) and PROGRAM.read_text().startswith("#!/usr/bin/env python3\n")


SLOW = [pytest.param(path, marks=pytest.mark.drill) for path in OLD[1:]]


@pytest.mark.parametrize("python", [*OLD[:1], *SLOW], ids=[os.path.basename(path) for path in OLD])
def test_an_old_python_says_the_same(project, tmp_path, python):
    outputs = [*(launcher(OTHER) for launcher in LAUNCHERS.values()), *(exits("é") for exits in EXITS.values()), GOOD]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    for number, text in enumerate(outputs):
        (tmp_path / f"{number}.out").write_text(text)
        said = []
        for program in (python, sys.executable):
            command = [program, project / "slurm/doctor.py", f"{number}.out"]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=PATIENCE
            )
            assert done.returncode in (0, 1) and not done.stderr, done.stderr
            said.append((done.returncode, done.stdout))
        assert said[0] == said[1]
    done = subprocess.run([python, project / "slurm/doctor.py", "nosuch"], capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(b"slurm/doctor.py: 'nosuch': expected a job's number")
