"""Weighs the evidence of a run, and returns the diagnosis. The order in which it is weighed stands in diagnose()."""

from typing import NamedTuple

from errors import RECENT, last_words
from failures import Ranks
from known_causes import (
    BY_RANK,
    BY_SLURM,
    BY_STARTER,
    cause_of_signal,
    proven_by,
    row_named,
    search,
    search_message,
)
from launchers import read_reports
from logs import Line, speakers_of
from stacks import read_stacks


class Diagnosis(NamedTuple):
    """What follows from the evidence."""

    way: str  # one of failures.WAYS
    failure: object = None  # of the rank that failed first
    cause: object = None  # a ProvenCause, if it is known
    words: tuple = ()  # the last lines of the rank
    places: tuple = ()  # where the ranks were, if they waited


def diagnose(job, output, logs):
    """Return the diagnosis: of the first evidence that there is."""
    run = Run(job, output, logs)
    return (
        ended_by_slurm(run)
        or rank_that_failed(run)
        or ranks_that_waited(run)
        or ranks_that_did_not_start(run)
        or script_that_failed(run)
        or Diagnosis("none")
    )


class Run:
    """All that is known of a run before the evidence is weighed."""

    def __init__(self, job, output, logs):
        """Read the launchers' reports, and join the ranks' logs with the output."""
        self.job, self.output, self.logs = job, output, logs
        self.record = Line(job.record, 0, "", job.state)  # Slurm's
        self.ranks = Ranks(speakers_of(output, logs))
        self.first = self.ranks.first_failure(read_reports(output))
        self.unlabelled = [line for line in output if not line.label][-RECENT:]

    def stacks(self):
        """Return verdicts on who kept whom waiting, and where the ranks were; empty lists if they are not known."""
        return read_stacks(self.job.run, self.logs)


def ended_by_slurm(run):
    """Return the diagnosis if Slurm ended the ranks, or the job ended itself as no rank moved."""
    said = [line for line in run.output if is_of_slurm(line)]
    cause = search(BY_SLURM, [run.record, *said])
    if not cause:
        return None
    failure = run.first if run.first and run.first.report else None
    in_output = search([cause.row], said)
    if failure and in_output and cause.name != "host memory":
        is_before = failure.report.line.number < in_output.line.number
        failure = failure if is_before else None  # else the rank ended because Slurm ended all
    way = cause.row.way
    verdicts, places = run.stacks() if way == "waited" else ([], [])
    cause = with_verdict(cause, verdicts)
    words = last_words(failure.message) if failure and failure.message else []
    return Diagnosis(way, failure, cause, tuple(words), tuple(places))


def is_of_slurm(line):
    """Tell whether Slurm wrote a line, or the job as it ended itself. srun -l labels those of slurmstepd, too."""
    return "slurmstepd" in line.text or (not line.label and ("srun: " in line.text or " stuck: " in line.text))


def rank_that_failed(run):
    """Return the diagnosis if a rank failed by itself: its launcher reports it, or its last words are an error."""
    first = run.first
    if not first or first.way in ("waited", "peer"):
        return None
    if first.message:
        return rank_with_an_error(run, first)
    words, own_lines = run.ranks.last_lines(first)
    if first.way in ("killed", "crashed"):
        cause = cause_of_signal(first.code, first.report.line)
    else:
        cause = search(BY_STARTER + BY_RANK, own_lines[::-1]) if own_lines else search(BY_STARTER, run.unlabelled)
    return Diagnosis(first.way, first, cause, tuple(words))


def rank_with_an_error(run, first):
    """Return the diagnosis if the last words of the rank are an error message."""
    cause, places = search_message(first.message), []
    if not cause and first.message.native and first.report:
        cause = cause_of_signal(first.code, first.report.line)
    if cause and cause.name == "different tensors":
        verdicts, places = run.stacks()
        cause = with_verdict(cause, verdicts)
    return Diagnosis(first.way, first, cause, tuple(last_words(first.message)), tuple(places))


def ranks_that_waited(run):
    """Return the diagnosis if ranks waited in vain, or lost another rank, and none is known to have failed."""
    first = run.first
    if not first:
        return None
    verdicts, places = run.stacks()
    cause = with_verdict(cause_of_waiting(run, first), verdicts)
    return Diagnosis(first.way, first, cause, tuple(last_words(first.message)), tuple(places))


def cause_of_waiting(run, first):
    """Return why a rank waited or lost another one, as its error says; a general cause if it says no more than that."""
    cause = search(BY_STARTER, run.unlabelled) or search_message(first.message)  # mpirun may have lost a node
    if cause:
        return cause
    name = "waited in vain" if first.way == "waited" else "lost another rank"
    if first.way == "peer" and first.suspects and run.output:
        name = "returned early"  # as no launcher reports that it failed
    return proven_by(first.message.error, row_named(name))


def ranks_that_did_not_start(run):
    """Return the diagnosis if no rank failed, as Slurm, the container runtime or a script of the project refused."""
    cause = search(BY_STARTER, run.unlabelled)
    return Diagnosis("error", None, cause, (cause.line,)) if cause else None


def script_that_failed(run):
    """Return the diagnosis if Slurm's record has an exit code of the job's script, and no launcher reports a rank."""
    code = run.job.exit_code
    if code is None:
        return None
    way = "exited" if code > 0 else "killed" if code == -9 else "crashed"
    words = [line for line in run.unlabelled if line.text.strip()][-10:]
    cause = search(BY_STARTER + BY_RANK, words[::-1])
    if not cause and code < 0:
        cause = cause_of_signal(code, run.record)
    return Diagnosis(way, None, cause, tuple(words))


# For these causes the verdict on a collective, if there is one, replaces what the row says: it also names the rank that
# the others waited for.
OF_WAITING = ("waited in vain", "lost another rank", "returned early", "process group")


def with_verdict(cause, verdicts):
    """Return a cause with what is known of the collective in which the ranks waited."""
    if verdicts and verdicts[0].startswith("ranks disagree"):
        return proven_by(cause.line, row_named("different tensors"))._replace(says=verdicts[0])
    waited = cause.row.way == "waited" or cause.name in OF_WAITING
    return cause._replace(says=verdicts[0]) if verdicts and waited else cause
