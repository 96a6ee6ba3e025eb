"""slurm/doctor.py as a program: what it may be asked about, what Slurm knows of the job, and which Python runs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
from doctor_cases import EXITS, GOOD, LAUNCHERS, OTHER, PROGRAM, doctor, project, read, traceback
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


def test_a_number_in_a_name_need_not_be_a_job_of_ours(doctor, project, tmp_path):
    """But a date, or of another cluster's job: neither what Slurm says of it nor the logs of its ranks count."""
    record = "JobId=77 JobName=x\n   JobState=COMPLETED Reason=None\n   ExitCode=0:0\n   StdOut=/elsewhere/x-77.out\n"
    log = project / "logs/77.0/node0-node1/0/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(traceback("KeyError: 'another job'"))
    (tmp_path / "train-77.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    report = doctor("train-77.log", scontrol=record).stdout.decode()
    assert report.startswith("cause: the memory of a GPU") and "another job" not in report, report


def test_the_attempt_that_was_asked_for(doctor, project):
    """The output has several attempts, and does not tell which is which."""
    for attempt, error in enumerate(("KeyError: 'first'", "KeyError: 'second'")):
        log = project / f"logs/55.{attempt}/node0-node1/0/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(traceback(error))
    disk = "slurmstepd: error: write: No space left on device\n"
    (project / "demo-55.out").write_text(GOOD + traceback("KeyError: 'first'", "0: ") + GOOD + disk)

    def ask(what, state, **more):
        record = f"JobId=55 JobName=x\n   JobState={state} Reason=None ExitCode=1:0\n   Requeue=1 Restarts=1\n"
        return doctor(what, cwd=project, scontrol=record, **more).stdout.decode()

    for state in ("FAILED", "COMPLETED", "RUNNING"):
        report = ask("logs/55.0", state)
        assert report.startswith("first failure: rank 0 on node1 (logs/55.0/"), report
        assert report.endswith("KeyError: 'first'\n") and "cause: " not in report, report
    for what in ("55", "logs/55.1"):
        report = ask(what, "FAILED")
        assert report.startswith("cause: a disk is full") and report.endswith("KeyError: 'second'\n"), report
        assert ask(what, "COMPLETED").startswith("job 55 did not fail: ")
    assert ask("logs/55.1", "RUNNING").endswith("KeyError: 'second'\n")


def test_jobs_that_have_not_ended(doctor, project):
    for state in ("PENDING", "RUNNING", "SUSPENDED"):
        record = f"JobId=56 JobName=x\n   JobState={state} Reason=Priority Dependency=(null)\n   ExitCode=0:0\n"
        done = doctor("56", scontrol=record)
        expected = f"job 56 has not ended: JobState={state} Reason=Priority ExitCode=0:0\n"
        assert (done.returncode, done.stdout.decode()) == (0, expected)


def test_a_job_that_runs_is_read_within_itself(doctor, project):
    """As the submit script does, whose job has not ended when its ranks have."""
    (project / "demo-57.out").write_text(GOOD + "OSError: [Errno 28] No space left on device\n")
    done = doctor("57", cwd=project, within="57", scontrol="JobId=57 JobName=x\n   JobState=RUNNING Reason=None\n")
    assert done.stdout.startswith(b"cause: a disk is full")


def test_a_heterogeneous_job_is_no_array(doctor):
    record = "JobId=88 HetJobId=88 HetJobOffset=0 JobName=x\n   JobState=FAILED Reason=None ExitCode=0:53\n"
    both = record + "\n" + record.replace("JobId=88 ", "JobId=89 ", 1).replace("Offset=0", "Offset=1")
    done = doctor("88", scontrol=both)
    assert done.returncode == 2, done
    assert done.stderr == b"slurm/doctor.py: job 88 is heterogeneous: name one component, as 88+0\n"
    done = doctor("88+0", scontrol=record)
    assert done.returncode == 0 and b"\nproof: scontrol show job 88: JobState=FAILED" in done.stdout, done


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("COMPLETED|0:0|12_1\nFAILED|1:0|12_2\n", "an array: name one of its jobs, as 12_1"),
        ("COMPLETED|0:0|12_1\nPENDING|0:0|12_[2-9]\n", "an array: name one of its jobs, as 12_1"),
        ("COMPLETED|0:0|12+0\nFAILED|1:0|12+1\n", "heterogeneous: name one component, as 12+0"),
    ],
)
def test_several_jobs_that_scontrol_has_forgotten(doctor, rows, said):
    done = doctor("12", sacct=rows)
    assert (done.returncode, done.stdout) == (2, b""), done
    assert done.stderr.decode() == f"slurm/doctor.py: job 12 is {said}\n"
    one = rows.splitlines()[0].split("|")[-1]
    done = doctor(one, sacct=rows.splitlines()[0])
    expected = f"job {one} did not fail: JobState=COMPLETED ExitCode=0:0\n"
    assert (done.returncode, done.stdout.decode()) == (0, expected), done


def test_a_file_of_errors_is_read_too(doctor, project):
    """#SBATCH --error: Slurm, srun and the tracebacks write there. Of several attempts nobody knows which one wrote."""
    (project / "demo-61.out").write_text(GOOD)
    (project / "demo-61.err").write_text(traceback("OSError: [Errno 28] No space left on device"))
    record = f"JobId=61\n JobState=FAILED ExitCode=1:0\n StdErr={project}/demo-61.err\n StdOut={project}/demo-61.out\n"
    report = doctor("61", cwd=project, scontrol=record).stdout.decode()
    assert report.startswith("cause: a disk is full") and "\nproof: demo-61.err:6: OSError" in report, report
    report = doctor("61", cwd=project, scontrol=record.replace("61.err", "61.out")).stdout.decode()
    assert report.endswith(GOOD) and report.count("step 100/200") == 1, report
    (project / "demo-61.out").write_text(GOOD + GOOD)
    assert "cause: " not in doctor("61", cwd=project, scontrol=record).stdout.decode()


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
    assert code == 1 and report.endswith("\nthe program ended with exit code 3, and printed nothing\n"), report
    done = doctor("987654", scontrol="JobId=987654 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0")
    assert done.stdout.decode().endswith("ExitCode=1:0); the job left neither output nor logs\n"), done.stdout


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


def test_it_is_python_3_6_with_its_standard_library():
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imports == {"bisect", "glob", "itertools", "os", "re", "signal", "subprocess", "sys", "typing"}
    newer = r"removeprefix|removesuffix|capture_output|text=True|missing_ok|dataclass|:=|\.reconfigure|fromisoformat"
    assert not re.search(newer, PROGRAM.read_text())
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
