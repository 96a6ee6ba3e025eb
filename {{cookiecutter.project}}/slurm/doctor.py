#!/usr/bin/env python3
"""Says why a job failed: the cause, the line that proves it, the fix, and what the first failing rank said last.

  python3 slurm/doctor.py 123                 a job; 12_3 for one job of an array
  python3 slurm/doctor.py demo-123.out        an output file alone, also of a job that this project did not start
  python3 slurm/doctor.py logs/123.0          the rank logs of one attempt
  python3 slurm/doctor.py --json 123          one JSON object, see below

It weighs evidence in this order:
  1. what Slurm knows: time limit, memory, node failure, cancelled, preempted
  2. which rank failed first, as the launcher reports it, with its exit code or signal
  3. the last words of that rank: its error message, else its last lines
  4. a collective in which ranks waited in vain, and who was missing
  5. known causes (slurm/doctor/causes*.py), if one of these lines proves them. A known cause adds the fix
A line that only stands somewhere in the output proves nothing: good runs print many that sound like failures.

It reads the last 20 MB of the job's output, the last 16 KB of each rank's log, and Slurm's record of the job.
Of an output with several attempts it reads the newest one. Of an older attempt, or one that still runs, it reads
the rank logs alone, as the output does not say which attempt is which.
If the job had #SBATCH --error=FILE, it reads that file too, unless the job had several attempts. If you name the
output file of such a job, name that of --error instead: it has the errors.
It runs on login nodes: Python 3.6, standard library only.

The JSON object has, in this order:
  job         its number; "" for a file or a folder
  state       Slurm's state, as "FAILED"; ""
  way         how the first failing process ended, one of the words below
  rank        its number; null
  host        its node; ""
  exit_code   its exit code, -N for signal N; null
  causes      a list of {"name": ..., "says": ..., "fix": ..., "proof": ...}, the most probable first
  words       a list of its last lines, at most 25
Each way:
WAYS
Exit code 0: it found a cause, or Slurm's record says that the job did not fail, or has not ended.
Exit code 1: it knows no cause, or no launcher reports a rank that failed.
Exit code 2: there is nothing to read, or the arguments are wrong.

To teach it a cause, add a row to slurm/doctor/causes.py.
"""

import argparse
import glob
import importlib.util
import json
import os
import re
import signal
import sys
from typing import NamedTuple

# PYTHONSAFEPATH=1 and python -I leave this folder out.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "doctor"))

from causes import CAUSES as CORE_CAUSES
from causes import RANK, SLURM, STARTER
from failures import HARMLESS, RECENT, WAYS, WORDS, Ranks, last_words
from launchers import ranks_ended_by_srun, read_reports
from logs import Line, die, printable, read_output, read_rank_logs, short, speakers_of
from slurm_job import find_job
from stacks import read_stacks

ROOM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "doctor")
PROOF_WIDTH, WORD_WIDTH = 300, 240
OF_SYSTEM = ("srun: ", "slurmstepd", "kernel: ", "'oom-kill'", " stuck: ")  # in lines of Slurm, the kernel, the job


def main():
    """Read what the job has left, weigh the evidence, and print the report."""
    what, as_json = parse_arguments()
    job = find_job(what)
    if "COMPLETED" in job.state or not job.has_ended:
        said = "did not fail" if "COMPLETED" in job.state else "has not ended"
        return show(job, Diagnosis("none"), as_json, [f"job {job.id} {said}: {job.state}"])

    logs = read_rank_logs(job.run)
    run = Run(job, read_output(job, logs), logs)
    if not (run.output or any(log.lines for log in logs) or job.state):
        die("nothing to read in " + " and ".join(short(path) for path in (job.output, job.errors, job.run) if path))

    diagnosis = (
        ended_by_slurm(run)  # 1
        or rank_that_failed(run)  # 2 and 3
        or ranks_that_waited(run)  # 4
        or ranks_that_did_not_start(run)
        or script_that_failed(run)
        or Diagnosis("none")
    )
    return show(job, diagnosis, as_json)


def parse_arguments():
    """Return what to read, and whether the answer shall be JSON."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = lambda message: die(message + "; python3 slurm/doctor.py --help shows the calls")
    parser.add_argument("what", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    arguments = parser.parse_args()
    if arguments.help:
        ways = "\n".join(f"  {way:<10}{meaning}" for way, meaning in WAYS.items())
        write(__doc__.strip().replace("WAYS", ways).splitlines())
        sys.exit(0)
    if len(arguments.what) != 1:
        given = " ".join(arguments.what)
        die(f"'{given}': expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT")
    return arguments.what[0], arguments.json


# ---- the evidence ----------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A known cause, and what proves it."""

    name: str
    says: str
    fix: str
    proof: str


class Diagnosis(NamedTuple):
    """What follows from the evidence."""

    way: str  # one of WAYS
    failure: object = None  # of the rank that failed first
    causes: tuple = ()  # Found, the most probable first
    words: tuple = ()  # the last lines of the rank
    places: tuple = ()  # where the ranks were, if they waited


class Run:
    """All that is known of a run before the evidence is weighed."""

    def __init__(self, job, output, logs):
        """Read the launchers' reports, and join the ranks' logs with the output."""
        self.job, self.output, self.logs = job, output, logs
        self.reports = read_reports(output)
        self.ranks = Ranks(speakers_of(output, logs))
        self.of_system = [line for line in output if any(word in line.text for word in OF_SYSTEM)]
        self.unlabelled = [line for line in output if not line.label][-RECENT:]
        self.first = self.ranks.first_failure(self.reports)
        self.causes = load_causes()


def ended_by_slurm(run):
    """Return the diagnosis if Slurm or the kernel ended the ranks, or the job ended itself as no rank moved."""
    record = Line(run.job.record, 0, "", run.job.state)
    found, line = search(run.causes, [record, *run.of_system], SLURM)
    if not found:
        return None
    failure = run.first
    if failure and failure.report and line is not record and found.name not in ("host memory", "process memory"):
        is_before = run.output.index(failure.report.line) < run.output.index(line)
        failure = failure if is_before else None  # else it ended because Slurm ended all
    elif not (failure and failure.report):
        failure = None
    way = next(cause.way for cause in run.causes if cause.name == found.name) or "slurm"
    places = read_stacks(run.job.run, run.output, run.logs)[1] if way == "waited" else []
    words = last_words(failure.message) if failure and failure.message else []
    return Diagnosis(way, failure, (found,), tuple(words), tuple(places))


def rank_that_failed(run):
    """Return the diagnosis if a rank failed by itself: its launcher reports it, or its last words are an error."""
    first = run.first
    if not first or first.way in ("waited", "peer"):
        return None
    if first.message:
        found, _ = search_message(run.causes, first.message)
        if not found and first.message.native and first.report:
            found = cause_of_signal(run, first.report)
        words = last_words(first.message)
        places = []
        if found and found.name == "different tensors":
            verdicts, places = read_stacks(run.job.run, run.output, run.logs)
            found = with_verdict(found, verdicts)
        return Diagnosis(first.way, first, (found,) if found else (), tuple(words), tuple(places))
    words, alone = run.ranks.last_lines(first)
    if first.way in ("killed", "crashed"):
        found = cause_of_signal(run, first.report)
    else:
        found, _ = search(run.causes, alone[::-1], RANK, STARTER)
        if not found and not alone:
            found, _ = search(run.causes, run.unlabelled, STARTER)
    return Diagnosis(first.way, first, (found,) if found else (), tuple(words))


def ranks_that_waited(run):
    """Return the diagnosis if ranks waited in vain, or lost another rank, and none is known to have failed."""
    first = run.first
    if not first:
        return None
    found, _ = search(run.causes, run.unlabelled, STARTER)  # mpirun may have lost a node
    if not found:
        found, _ = search_message(run.causes, first.message)
    if found and found.name == "rendezvous":  # torch says in a warning before that it cannot look up the address
        route, _ = search([cause_named(run.causes, "name or route")], first.message.lines, RANK)
        found = route or found
    if not found or found.name == "lost another rank":
        name = "waited in vain" if first.way == "waited" else "lost another rank"
        if first.way == "peer" and first.suspects and run.output:
            name = "returned early"  # as no launcher reports that it failed
        found = found_cause(cause_named(run.causes, name), first.message.error)
    ended = frozenset() if not run.ranks.tasks_are_ranks() else ranks_ended_by_srun(run.output)
    alive = [speaker for speaker in first.suspects if speaker.rank not in ended]
    first.suspects = alive[:1] or first.suspects or stopped_rank(run, first)
    verdicts, places = read_stacks(run.job.run, run.output, run.logs)
    words = last_words(first.message)
    return Diagnosis(first.way, first, (with_verdict(found, verdicts),), tuple(words), tuple(places))


def stopped_rank(run, first):
    """Return the rank that had been stopped, if one was: it woke up to be told to end, later than all others."""
    if len(run.logs) < 2 or first.way != "waited":
        return []
    in_time = sorted(run.logs, key=lambda log: log.ended)
    last, message = in_time[-1], run.ranks.last_message(in_time[-1], None)
    is_late = last.ended - in_time[-2].ended > 0.5
    return [last] if is_late or (message and message.way == "peer") else []


def ranks_that_did_not_start(run):
    """Return the diagnosis if no rank failed, as Slurm, the container runtime or a script of the project refused."""
    found, line = search(run.causes, run.unlabelled, STARTER)
    return Diagnosis("error", None, (found,), (line,)) if found else None


def script_that_failed(run):
    """Return the diagnosis if Slurm's record has an exit code of the job's script, and no launcher reports a rank."""
    code = run.job.exit_code
    if code is None:
        return None
    way = "exited" if code > 0 else "killed" if code == -9 else "crashed"
    words = [line for line in run.unlabelled if line.text.strip()][-10:]
    found, _ = search(run.causes, reversed(words), RANK, STARTER)
    return Diagnosis(way, None, (found,) if found else (), tuple(words))


# ---- known causes ----------------------------------------------------------------------------------------------------


def load_causes():
    """Return the rows of all files of causes, those of optional parts first."""
    rows = []
    project = os.path.dirname(os.path.dirname(ROOM))
    optional = glob.glob(glob.escape(ROOM) + "/causes_*.py") + glob.glob(glob.escape(project) + "/extras/*/causes.py")
    for path in sorted(optional):
        spec = importlib.util.spec_from_file_location("optional_causes", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rows += module.CAUSES
    return [*rows, *CORE_CAUSES]


def search(causes, lines, *said_by):
    """Return the first known cause of these speakers that a line proves, and the line; None, None if there is none."""
    lines = [line for line in lines if not HARMLESS.search(line.text)]
    for cause in causes:
        if cause.said_by not in said_by:
            continue
        for pattern in cause.patterns:
            at = next((at for at, line in enumerate(lines) if re.search(pattern, line.text)), None)
            if at is not None and not is_undone(cause, lines[at:]):
                return found_cause(cause, lines[at]), lines[at]
    return None, None


def is_undone(cause, lines):
    """Tell whether a later line says that all went well after all."""
    return bool(cause.undone_by) and any(re.search(cause.undone_by, line.text) for line in lines)


def search_message(causes, message):
    """Return the known cause that an error message proves: its first error first, then the lines behind it."""
    behind = message.lines[message.end + 1 : message.end + 1 + WORDS]
    within = message.lines[message.start : message.end + 1] if message.native else []
    for line in message.errors:
        rows = [cause for cause in causes if cause.said_by != SLURM]
        for cause in rows:
            if any(re.search(pattern, line.text) for pattern in cause.patterns):
                return found_cause(cause, line), line
    return search(causes, [*within, *behind], RANK)


def found_cause(cause, line):
    """Return a known cause with the line that proves it."""
    proof = f"{line.place}: {(line.label + line.text).strip()[:PROOF_WIDTH]}"
    return Found(cause.name, cause.says or line.text.strip()[:PROOF_WIDTH], cause.fix, proof)


def cause_named(causes, name):
    """Return the known cause of this name."""
    return next(cause for cause in causes if cause.name == name)


def cause_of_signal(run, report):
    """Return the cause that a launcher's report of a signal proves; None if there is none."""
    cause = next((cause for cause in run.causes if report.code and -report.code in cause.signals), None)
    return found_cause(cause, report.line) if cause else None


# Causes in whose place the report puts the verdict on a collective: it also names the rank that the others waited for.
OF_WAITING = ("waited in vain", "lost another rank", "returned early", "process group")


def with_verdict(found, verdicts):
    """Return a cause with what is known of the collective in which the ranks waited."""
    if not verdicts:
        return found
    disagree = verdicts[0].startswith("ranks disagree")
    if disagree:
        tensors = cause_named(CORE_CAUSES, "different tensors")
        return found._replace(says=verdicts[0], fix=tensors.fix)
    return found._replace(says=verdicts[0]) if found.name in OF_WAITING else found


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
    return 0 if diagnosis.causes or instead else 1


def as_object(job, diagnosis):
    """Return the diagnosis as --help describes it."""
    failure = diagnosis.failure
    code = failure.code if failure else job.exit_code if diagnosis.way != "none" else None
    return {
        "job": job.id,
        "state": job.state_name,
        "way": diagnosis.way,
        "rank": failure.rank if failure else None,
        "host": failure.host if failure else "",
        "exit_code": code,
        "causes": [cause._asdict() for cause in diagnosis.causes],
        "words": quoted(diagnosis.words),
    }


def report_lines(job, diagnosis):
    """Return the report: the cause, its proof, its fix; who failed first, and its last words."""
    lines = []
    for cause in diagnosis.causes:
        lines += ["cause: " + cause.says, "proof: " + cause.proof, "fix: " + cause.fix]
    if diagnosis.way == "none":
        return ["no launcher reports a rank that failed" + (f" ({job.state})" if job.state else "")]
    if not lines:
        state = f" ({job.state})" if job.exit_code is not None else ""
        says_more = "what it said last may say more" if diagnosis.words else "it said nothing of its own"
        lines.append(f"no cause known{state}: {says_more}")
    if diagnosis.places:
        lines += ["where each rank was:", *diagnosis.places]
    return lines + failure_lines(job, diagnosis) + ["    " + word for word in quoted(diagnosis.words)]


def failure_lines(job, diagnosis):
    """Return who failed first, and how."""
    failure, lines = diagnosis.failure, []
    if not failure:
        if diagnosis.words and diagnosis.way != "error":
            lines.append(f"first failure: the job's script{ended_with(job.exit_code)}; its last lines:")
        return lines
    role = "first failure"
    if any(cause.name == "different tensors" for cause in diagnosis.causes):
        role = "one that noticed it"
    elif diagnosis.way in ("waited", "peer") and (diagnosis.places or failure.suspects):
        role = "one that waited in vain" if diagnosis.way == "waited" else "one that lost it"
        if failure.suspects and not diagnosis.places:
            lines.append("first failure: " + suspects_in_words(failure.suspects, diagnosis.way))
    who = failure.speaker.name
    if not failure.rank and not failure.speaker.host and failure.host:
        who = "on " + failure.host
    line = failure.message.error if failure.message else failure.report.line
    place = failure.speaker.log or line.place
    ends = ":" if not diagnosis.words else "; its last words:"
    ends = "" if not diagnosis.words else ends
    return [*lines, f"{role}: {who}{ended_with(failure.code)} ({place}){ends}".replace(":  ", ": ")]


def ended_with(code):
    """Return how a process ended, in words that follow its name."""
    if code is None:
        return ""
    return f" ended with exit code {code}" if code >= 0 else f" was ended by signal {-code}"


def suspects_in_words(suspects, way):
    """Return the ranks that said nothing, while the others waited for one, or lost one."""
    how = "hung, or ended without an error" if way == "waited" else "ended without an error"
    names = [f"{suspect.name} ({suspect.log})" for suspect in suspects]
    more = f" or one of {len(names) - 4} more" if len(names) > 4 else ""
    return "{}{} {}".format(" or ".join(names[:4]), more, how)


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
