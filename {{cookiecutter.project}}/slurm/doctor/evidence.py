"""Weighs the evidence of a run, and returns the diagnosis. The order in which it is weighed stands in diagnose()."""

import itertools
import re
from typing import NamedTuple

from causes import BY_WAITING
from errors import RECENT, last_words
from failures import Ranks
from known_causes import (
    BY_RANK,
    BY_SLURM,
    BY_STARTER,
    cause_of_signal,
    proven_by,
    search,
    search_message,
)
from launchers import ENDED_BY_OTHERS, read_reports
from logs import Line, shown, speakers_of


class Diagnosis(NamedTuple):
    """What follows from the evidence."""

    way: str  # one of those that doctor.py --help lists
    failure: object = None  # of the rank that failed first
    cause: object = None  # a ProvenCause, if it is known
    words: tuple = ()  # the last lines of the rank
    places: tuple = ()  # where the ranks were, if they waited


def diagnose(job, output, logs):
    """Return the diagnosis: of the first evidence that there is."""
    run = Run(job, output, logs)
    diagnosis = (
        ended_by_slurm(run)
        or rank_that_failed(run)
        or ranks_that_waited(run)
        or ranks_that_did_not_start(run)
        or script_that_failed(run)
        or Diagnosis("none")
    )
    if job.run and diagnosis.cause and diagnosis.cause.row.waiting:
        return with_stacks(diagnosis, run)
    return diagnosis


class Run:
    """All that is known of a run before the evidence is weighed."""

    def __init__(self, job, output, logs):
        """Read the launchers' reports, and join the ranks' logs with the output."""
        self.job, self.output = job, output
        self.record = Line(job.record, 0, "", job.state)  # Slurm's
        self.ranks = Ranks(speakers_of(output, logs))
        self.first = self.ranks.first_failure(read_reports(output))
        self.unlabelled = [line for line in output if not line.label][-RECENT:]


def ended_by_slurm(run):
    """Return the diagnosis if Slurm ended the ranks, or the job ended itself as no rank moved."""
    said = [line for line in run.output if is_of_slurm(line)]
    cause = search(BY_SLURM, [run.record, *said])
    if not cause:
        return None
    if cause.row.waiting:  # the job ended all ranks itself
        return Diagnosis("waited", None, cause)
    failure = run.first if run.first and run.first.report and run.first.code not in ENDED_BY_OTHERS else None
    words = last_words(failure.message) if failure and failure.message else []
    return Diagnosis("slurm", failure, cause, tuple(words))


def is_of_slurm(line):
    """Tell whether Slurm wrote a line, or the job as it ended itself. srun -l labels those of slurmstepd, too."""
    return "slurmstepd" in line.text or (not line.label and ("srun: " in line.text or " stuck: " in line.text))


def rank_that_failed(run):
    """Return the diagnosis if a rank failed by itself: its launcher reports it, or its last words are an error."""
    first = run.first
    if not first or first.way in ("waited", "peer"):
        return None
    if first.message:
        words, cause = last_words(first.message), search_message(first.message)
    else:
        words, proofs = run.ranks.last_lines(first)
        cause = None
        if first.way == "exited":
            cause = search(BY_STARTER + BY_RANK, proofs[::-1]) or search(BY_STARTER, run.unlabelled)
    if not cause and first.report and (first.message is None or first.message.native):
        cause = cause_of_signal(first.code, first.report.line)
    return Diagnosis(first.way, first, cause, tuple(words))


def ranks_that_waited(run):
    """Return the diagnosis if ranks waited in vain, or lost another rank, and none is known to have failed."""
    first = run.first
    if not first:
        return None
    cause = search(BY_STARTER, run.unlabelled) or search_message(first.message)  # mpirun may have lost a node
    cause = cause or proven_by(first.message.error, BY_WAITING[first.way])
    return Diagnosis(first.way, first, cause, tuple(last_words(first.message)))


def ranks_that_did_not_start(run):
    """Return the diagnosis if no rank failed, as Slurm, the container runtime or a script of the project refused."""
    cause = search(BY_STARTER, run.unlabelled)
    return Diagnosis("error", None, cause, (cause.line,)) if cause else None


def script_that_failed(run):
    """Return the diagnosis if Slurm's record says that the job failed, and no launcher reports a rank."""
    if run.job.state_name != "FAILED":
        return None
    words = [line for line in run.unlabelled if line.text.strip()][-10:]
    return Diagnosis("exited", None, search(BY_STARTER + BY_RANK, words[::-1]), tuple(words))


# ---- where ranks waited ----------------------------------------------------------------------------------------------

VERDICT = re.compile(r"ranks? [\d,-]+(?: on \S+| on \d+ nodes)? ha(?:s|ve) |ranks disagree: |all ranks have entered ")


def with_stacks(diagnosis, run):
    """Return a diagnosis with where each rank was; if it is known who kept the others waiting, that is the cause.

    An extra may write stacks.txt when ranks wait in vain. It begins with both, up to an empty line.
    """
    try:
        with open(run.job.run + "/stacks.txt", encoding="utf-8", errors="surrogateescape") as file:
            head = [with_host(shown(line.rstrip("\n")), run.ranks) for line in itertools.takewhile(str.strip, file)]
    except OSError:
        return diagnosis
    verdict = next((line for line in head if VERDICT.match(line)), "")
    # The error of a rank says more than where the others waited for it, unless it is that they disagree.
    if verdict and (diagnosis.way != "error" or verdict.startswith("ranks disagree")):
        head.remove(verdict)
        diagnosis = diagnosis._replace(cause=diagnosis.cause._replace(says=verdict))
    return diagnosis._replace(places=tuple(head))


def with_host(line, ranks):
    """Return a line with the host of a rank whose process is gone: its log tells which."""
    gone = re.match(r"rank (\d+)(?= has |: )", line)
    host = next((rank.host for rank in ranks.named if gone and rank.rank == int(gone.group(1))), "")
    return line.replace(gone.group(0), f"{gone.group(0)} on {host}", 1) if host else line
