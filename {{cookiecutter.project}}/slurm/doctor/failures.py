"""Finds which rank failed first.

A launcher names the rank; the rank's last words say why. Words that only complain of another rank do not make a rank
the first to fail. A traceback counts only if it was the end of its rank: many a program prints one, and goes on.
"""

import itertools

from errors import (
    HARMLESS,
    LINES_BEHIND,
    MOST_BEHIND,
    OF_LAUNCHER,
    STEP,
    digits_gone,
    own,
    read_messages,
)
from launchers import ENDED_BY_OTHERS
from logs import Speaker, same_host

NEWEST = 10  # error messages of a rank that are considered


class Failure:
    """How a rank ended, as its launcher or its last words tell."""

    def __init__(self, way, speaker, report=None, message=None):
        """Join what a launcher reports and what the rank printed; either may be missing."""
        self.way, self.speaker, self.report, self.message = way, speaker, report, message
        self.rank, self.host = speaker.rank, speaker.host or (report.host if report else "")
        self.code = report.code if report else None  # the exit code, or minus the signal
        self.silent = []  # ranks that printed no error, while this one waited in vain, or lost another one

    @property
    def weakness(self):
        """How little it tells that this one failed first: of several failures the one with the least counts."""
        if self.way in ("waited", "peer"):
            return 2 if self.way == "waited" else 3
        is_launcher = self.rank is None and self.code == 1  # that of a node, which ended because one of its ranks did
        return 1 if is_launcher or self.code in ENDED_BY_OTHERS else 0


class Ranks:
    """All ranks of a run, to ask which one failed first."""

    def __init__(self, speakers):
        """Take the ranks, and last the lines without a label."""
        self.named, self.rest = speakers[:-1], speakers[-1]
        self.rank_launchers = self.find_rank_launchers()  # before launchers' own lines are left out
        for speaker in speakers:
            speaker.errors, speaker.lines = own(speaker.errors), own(speaker.lines)

    def find_rank_launchers(self):
        """Return the launchers whose reports name ranks: a task of srun or mpirun may be the launcher of a node."""
        logs = [speaker for speaker in self.named if speaker.log]
        if logs:
            return ("torchrun", "spawn.py", *([] if any(log.starts_ranks for log in logs) else ["srun", "mpirun"]))
        is_numbered = any(line.label[:1] in " 0123456789" for speaker in self.named for line in speaker.lines)
        has_hosts = any(speaker.host for speaker in self.named)  # labels of torchrun or spawn.py
        return ("torchrun", "spawn.py", *(["srun"] if is_numbered else []), *([] if has_hosts else ["mpirun"]))

    def first_failure(self, reports):
        """Return the first failure; None if no rank failed.

        Of several ranks the one counts that did not end because of another one. Among these, the order of the
        launchers' reports decides, or without a report the order in which the ranks ended.
        """
        failures = [self.failure_of(report) for report in reports]
        reported = {id(failure.speaker) for failure in failures}
        for speaker in [*sorted(self.named, key=lambda speaker: speaker.ended), self.rest]:
            message = self.last_message(speaker, None) if id(speaker) not in reported else None
            if message:
                failures.append(Failure(message.way, speaker, None, message))
        first = min(failures, key=lambda failure: failure.weakness, default=None)
        if first and first.way in ("waited", "peer"):
            spoke = {id(failure.speaker) for failure in failures}
            first.silent = [speaker for speaker in self.named if speaker.log and id(speaker) not in spoke]
        return first

    def failure_of(self, report):
        """Return the failure that a launcher reports, with the last words of the rank."""
        of_ranks = report.launcher in self.rank_launchers
        if of_ranks:
            named = {speaker.rank: speaker for speaker in self.named}
            speakers = [named.get(rank) or Speaker(rank) for rank in report.ranks]
            for speaker in speakers:
                speaker.host = report.host or speaker.host
        else:
            of_node = [speaker for speaker in self.named if not report.host or same_host(report.host, speaker.host)]
            speakers = of_node or [self.rest]
        failures = [self.failure(speaker, report) for speaker in speakers]
        said_why = [failure for failure in failures if failure.message]
        if of_ranks or said_why:
            return min(said_why or failures, key=lambda failure: failure.weakness)
        node = Speaker(None, report.host)  # any of its ranks may be meant
        node.lines = sorted((line for speaker in speakers for line in speaker.lines), key=lambda line: line.number)
        return self.failure(node, report)

    def failure(self, speaker, report):
        """Return how a rank ended of which a launcher reports the exit code or the signal."""
        message = self.last_message(speaker, report.code)
        if report.code == -9:
            return Failure("killed", speaker, report)
        if message:
            return Failure(message.way, speaker, report, message)
        return Failure("crashed" if report.code < 0 else "exited", speaker, report)

    def last_message(self, speaker, code):
        """Return the error message that a rank ended with; None if it had survived all that it printed.

        Python ends with 1 after a traceback, so another exit code has another reason.
        """
        for lines in (speaker.errors, speaker.lines):
            newest = read_messages(lines)[-NEWEST:]
            ends = [message for message in newest if self.is_end(message, speaker, code)]
            if code is not None and code > 1:
                ends = [message for message in ends if message.native]
            if ends:
                return self.chosen(ends, speaker)
        return None

    def chosen(self, ends, speaker):
        """Return the one of several error messages that tells why."""
        # Those of launchers and of commands that a rank ran follow from others.
        ends = [message for message in ends if not OF_LAUNCHER.search(message.error.text)] or ends
        if speaker is self.rest:  # of any rank: each message may be of another one
            order = ["error", "waited", "peer"]
            return min(ends, key=lambda message: order.index(message.way))
        return ends[-1]

    def is_end(self, message, speaker, code):
        """Tell whether a rank printed little behind an error message, and went no step further."""
        most = MOST_BEHIND if code == 1 else LINES_BEHIND
        return not message.is_harmless and len(message.behind()) <= most and not self.went_on(message, speaker)

    def went_on(self, message, speaker):
        """Tell whether the output has a step of the rank behind an error that it printed."""
        error = message.error.text
        behind = list(itertools.takewhile(lambda line: line.text != error, reversed(speaker.lines)))
        return len(behind) < len(speaker.lines) and any(STEP.search(line.text) for line in behind)

    def not_of_all(self, lines, speaker):
        """Return these lines of a rank, but those that all other ranks that printed something printed, too."""
        others = [other for other in self.named if other is not speaker and (other.lines or other.errors)][:64]
        if not others or speaker not in self.named:
            return lines
        of_all = set.intersection(*({digits_gone(line.text) for line in rank.lines + rank.errors} for rank in others))
        return [line for line in lines if digits_gone(line.text) not in of_all]

    def last_lines(self, failure, most=10):
        """Return the last lines of a rank that printed no error message, and those of them that may prove a cause.

        Lines that all other ranks printed, too, are left out. If none remains, all ranks may have failed alike: then
        the very last line may prove the cause.
        """
        speaker, own_lines, end = failure.speaker, [], []
        errors = {line.text for line in speaker.errors}
        printed = [line for line in speaker.lines if line.text not in errors] if errors else speaker.lines
        for stream in (printed, speaker.errors):
            lines = [line for line in stream if not HARMLESS.search(line.text)]
            last_step = max((index for index, line in enumerate(lines) if STEP.search(line.text)), default=-1)
            own_lines += self.not_of_all(lines[last_step + 1 :], speaker)[-most:]
            end += lines[-most:]
        if own_lines:
            return own_lines + [line for line in end[-1:] if line not in own_lines], own_lines
        return end[-most:], end[-1:]
