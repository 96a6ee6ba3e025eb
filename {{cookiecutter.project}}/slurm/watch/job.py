"""Asks scontrol for the facts of a job. Python 3.6, standard library only."""

import os
import re
import subprocess
import time
from datetime import datetime


def facts_of(job):
    """Return name, state, start, end and output of a job.

    state: "gone" if Slurm does not know the job, or does not answer. start, end: [s since 1970; None if not known].
    output: the path of the job's standard output; "" if not known.
    """
    record = output_of("scontrol", "--oneliner", "show", "job", job)
    facts = dict(reversed(re.findall(r"(\w+)=(.*?)(?= +\w+=|\s*$)", record)))  # the first value counts
    return {
        "name": facts.get("JobName", "?"),
        "state": facts.get("JobState", "gone"),
        "start": moment(facts.get("StartTime")),
        "end": moment(facts.get("EndTime")) if facts.get("TimeLimit") != "UNLIMITED" else None,
        "output": facts.get("StdOut", ""),
    }


def moment(text):
    """Return a time of Slurm's as seconds since 1970; None for Unknown."""
    try:
        return time.mktime(datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%S").timetuple())
    except ValueError:
        return None


def output_of(*command, codes=(0,)):
    """Return the standard output of a command; "" if it ends with no code of `codes`, or takes more than 60 s."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode in codes else ""
