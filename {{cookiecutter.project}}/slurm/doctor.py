#!/usr/bin/env python3
"""Says why a job failed: the cause, the line that proves it, the fix, and what the first failing rank said last.

  python3 slurm/doctor.py 123                 a job; 12_3 for one job of an array
  python3 slurm/doctor.py demo-123.out        an output file alone, also of a job that this project did not start
  python3 slurm/doctor.py logs/123.0          the rank logs of one attempt, and nothing else
  python3 slurm/doctor.py --json 123          one JSON object, see below

It weighs evidence in this order:
  1. what Slurm knows: time limit, memory, node failure, cancelled, preempted
  2. which rank failed first, as the launcher reports it, with its exit code or signal
  3. the last words of that rank: its error message, else its last lines
  4. a collective in which ranks waited in vain, and who was missing
If a line of these proves a known cause (slurm/doctor/causes*.py, extras/*/causes.py), the report adds the cause and
the fix. Lines elsewhere in the output that sound like failures do not count, as good runs print many of them.

It reads the last 20 MB of the job's output, the last 16 KB of each rank's log, and Slurm's record of the job.
Of an output with several attempts it reads the newest one. If the job had #SBATCH --error=FILE, name that file
instead of the number: it has the errors.
It runs on login nodes: Python 3.6, standard library only.

The JSON object has, in this order:
  job         its number; "" for a file or a folder
  state       Slurm's state, as "FAILED"; "" if it is not known
  way         how the first failing process ended, one of the words below
  rank        its number; null if it is not known
  host        its node; "" if it is not known
  exit_code   its exit code, -N for signal N; null if it is not known
  causes      a list of {"name": ..., "says": ..., "fix": ..., "proof": ...}; empty if no cause is known
  words       a list of its last lines, at most 25
Each way:
  slurm       Slurm's record or message says it: time limit, memory, node, cancelled, preempted
  killed      a launcher reports signal 9
  crashed     a launcher reports another signal
  error       it printed an error message of its own: a traceback of any kind, a C assertion, ...
  exited      it ended with an exit code, and printed no error message
  waited      ranks waited in a collective or at the rendezvous in vain
  peer        ranks lost another one, of which nothing else is known
  none        no launcher reports a rank that failed
Exit code 0: it found a cause, or Slurm's record says that the job did not fail, or has not ended.
Exit code 1: it knows no cause, or no launcher reports a rank that failed.
Exit code 2: there is nothing to read, or the arguments are wrong.

To teach it a cause, add a row to slurm/doctor/causes.py.
"""

import argparse
import json
import os
import signal
import sys

# The modules lie in slurm/doctor/.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "doctor"))

from errors import WORDS
from evidence import Diagnosis, diagnose
from logs import die, printable, read_output, read_rank_logs, short
from slurm_job import find_job

WORD_WIDTH = 240
# What a report calls the rank whose words it quotes, if another one may have failed first.
ROLES = {"waited": "a rank that waited in vain", "peer": "a rank that lost another one"}


def main():
    """Read what the job has left, weigh the evidence, and print the report."""
    what, as_json = parse_arguments()
    job = find_job(what)
    if "COMPLETED" in job.state or not job.has_ended:
        said = "did not fail" if "COMPLETED" in job.state else "has not ended"
        return show(job, Diagnosis("none"), as_json, [f"job {job.id} {said}: {job.state}"])

    logs = read_rank_logs(job.run)
    output = read_output(job.output)
    if not (output or any(log.lines for log in logs) or job.state):
        die("nothing to read in " + " and ".join(short(path) for path in (job.output, job.run) if path))
    return show(job, diagnose(job, output, logs), as_json)


def parse_arguments():
    """Return what to read, and whether the answer shall be JSON."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = lambda message: die(message + "; python3 slurm/doctor.py --help shows the calls")
    parser.add_argument("what", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    arguments = parser.parse_args()
    if arguments.help:
        write(__doc__.strip().splitlines())
        sys.exit(0)
    return " ".join(arguments.what), arguments.json


# ---- the report ------------------------------------------------------------------------------------------------------


def show(job, diagnosis, as_json, instead=()):
    """Print the diagnosis, or lines instead of it; return the exit code."""
    if as_json:
        if job.owner:
            print(printable(f"slurm/doctor.py: the job is not yours, but {job.owner}'s"), file=sys.stderr)
        write([json.dumps(as_object(job, diagnosis))])
    else:
        owner = [f"job {job.id or short(job.output)} is not yours, but {job.owner}'s"] if job.owner else []
        write([*owner, *(instead or report_lines(job, diagnosis))])
    return 0 if diagnosis.cause or instead else 1


def as_object(job, diagnosis):
    """Return the diagnosis as --help describes it."""
    failure, cause = diagnosis.failure, diagnosis.cause
    causes = [{"name": cause.row.name, "says": cause.says, "fix": cause.row.fix, "proof": cause.proof}] if cause else []
    return {
        "job": job.id,
        "state": job.state_name,
        "way": diagnosis.way,
        "rank": failure.rank if failure else None,
        "host": failure.host if failure else "",
        "exit_code": failure.code if failure else None,
        "causes": causes,
        "words": quoted(diagnosis.words),
    }


def report_lines(job, diagnosis):
    """Return the report: the cause, its proof, its fix; who failed first, and its last words."""
    if diagnosis.way == "none":
        return ["no launcher reports a rank that failed" + (f" ({job.state})" if job.state else "")]
    cause, lines = diagnosis.cause, []
    if cause:
        lines += ["cause: " + cause.says, "proof: " + cause.proof, "fix: " + cause.row.fix]
    else:
        state = f" ({job.state})" if job.state and not diagnosis.failure else ""
        words = "the last words are below" if diagnosis.words else "it said nothing of its own"
        lines.append(f"no cause known{state}: {words}")
    if diagnosis.places:
        lines += ["where each rank was:", *diagnosis.places]
    return lines + failure_lines(diagnosis) + ["    " + word for word in quoted(diagnosis.words)]


def failure_lines(diagnosis):
    """Return who failed first, and how."""
    failure, cause, lines = diagnosis.failure, diagnosis.cause, []
    if not failure:
        is_of_script = diagnosis.words and diagnosis.way == "exited"
        return ["first failure: the job's script; its last lines:"] if is_of_script else []
    if failure.silent and not diagnosis.places:
        names = [f"{speaker.name} ({speaker.log})" for speaker in failure.silent]
        lines.append("printed no error: " + ", ".join(names[:4]) + (" and others" if names[4:] else ""))
    role = ROLES.get(diagnosis.way, "a rank that noticed it" if cause and cause.row.waiting else "first failure")
    process = "a process" + (f" on {failure.host}" if failure.host else "")
    who = failure.speaker.name or (process if failure.host or failure.code is not None else "")
    line = failure.message.error if failure.message else failure.report.line
    place = f"({failure.speaker.log or line.place})"
    words = "; its last words:" if diagnosis.words else ""
    return [*lines, " ".join(part for part in (role + ":", who + ended_with(failure.code), place) if part) + words]


def ended_with(code):
    """Return how a process ended, in words that follow its name."""
    if code is None:
        return ""
    return f" ended with exit code {code}" if code >= 0 else f" was ended by signal {-code}"


def quoted(lines):
    """Return lines as a report quotes them."""
    return [line.text.rstrip()[:WORD_WIDTH] for line in lines][-WORDS:]


def write(lines):
    """Print lines, with bytes that are no UTF-8 as they were read."""
    sys.stdout.buffer.write("".join(printable(line) + "\n" for line in lines).encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if "| head" has read enough
    sys.exit(main())
