"""Finds the job that a user names: what Slurm knows of it, its output, and the folder of its newest attempt."""

import glob
import os
import re
import subprocess
from typing import NamedTuple

from logs import PROJECT, die


class Job(NamedTuple):
    """What is to be read; each field may be empty."""

    id: str = ""
    state: str = ""  # as "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0"
    record: str = ""  # the command that prints the state
    output: str = ""  # a file
    run: str = ""  # a folder logs/JOBID.ATTEMPT

    @property
    def has_ended(self):
        """Tell whether it does not wait or run; the submit script asks within the job, when its ranks have ended."""
        within = os.environ.get("SLURM_JOB_ID") == self.id
        # --requeue=expedite: REQUEUE_HOLD is a job that has failed
        waits_or_runs = r"JobState=(?:PENDING|CONFIGURING|RUNNING|SUSPENDED|REQUEUE(?!_HOLD))"
        return within or not re.search(waits_or_runs, self.state)

    @property
    def state_name(self):
        """The state alone, as FAILED."""
        name = re.search(r"JobState=(\w+)", self.state)
        return name.group(1) if name else ""


def find_job(given):
    """Return the job that a number, an output file or a folder of logs names."""
    if os.path.isfile(given):  # alone: a number in its name may be a date, or a job of another cluster
        return Job(output=given)
    run = os.path.realpath(given)  # logs/latest is a link
    if os.path.isdir(run) and re.search(r"/[1-9]\d*\.\d+$", run):
        return Job(run=run)
    if not re.match(r"[1-9]\d*([_+]\d+)?$", given):  # 12_3 is of an array, 12+3 of a heterogeneous job
        die(f"'{given}': expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT")
    return ask_slurm(given)


def ask_slurm(number):
    """Return the job that Slurm knows under this number."""
    record = answer_of("scontrol", "show", "job", number)
    if len(re.findall(r"(?m)^JobId=", record)) > 1:
        die_of_several(number)
    identity = re.search(r"JobId=(\d+)", record)
    job_id = identity.group(1) if identity else number  # that of 12_3 is another number
    state, command = state_of(job_id, record)

    output = find_output(record, (job_id, number))
    run = find_newest_run(record, job_id)
    if not (output or run or state):
        searched = "there is no *-{}.out in {}".format(job_id, " or ".join(sorted({os.getcwd(), PROJECT})))
        die(f"Slurm does not know a job {job_id}, and {searched}: name its output file")
    return Job(job_id, state, command, output, run)


def state_of(job_id, record):
    """Return the state of a job, and the command that prints it."""
    state = " ".join(re.findall(r"\b(?:JobState|Reason|ExitCode)=\S+", record))
    if state:
        return state, "scontrol show job " + job_id
    # scontrol has forgotten the job. sacct prints a line for each job of an array.
    answer = answer_of("sacct", "-nPX", "-j", job_id, "-o", "State,ExitCode,JobID")
    rows = [line.split("|") for line in answer.splitlines() if "|" in line]
    if len(rows) > 1:
        die_of_several(job_id)
    if not rows:
        return "", ""
    return "JobState={} ExitCode={}".format(*rows[0]), "sacct -X -j " + job_id


def die_of_several(number):
    """End with an error, as this number stands for several jobs."""
    die(f"job {number} is an array, or heterogeneous: name one of its jobs, as {number}_1 or {number}+0")


def find_output(record, numbers):
    """Return the output file that the record names, or one that has a number of the job in its name."""
    named = re.search(r"(?m)^ *StdOut=(.*)", record)
    if named and os.path.isfile(named.group(1)):
        return named.group(1)
    patterns = [f"{glob.escape(folder)}/*-{number}.out" for folder in (os.getcwd(), PROJECT) for number in numbers]
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), "")


def find_newest_run(record, job_id):
    """Return the folder of the job's newest attempt; the number of its restarts is in Slurm's record."""
    logs = os.path.realpath(f"{PROJECT}/logs")  # it may be a link
    restarts = re.search(r"\bRestarts=(\d+)", record)
    if restarts:
        return f"{logs}/{job_id}.{restarts.group(1)}"
    return max(glob.glob(f"{glob.escape(logs)}/{job_id}.*"), key=os.path.getmtime, default="")


def answer_of(*command):
    """Return what a command prints to stdout, also if it fails; '' if it cannot start or takes too long."""
    try:
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(answer.stdout)
