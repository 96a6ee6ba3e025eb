"""Finds which rank failed first, and its last words.

A launcher names the rank; the rank's last words say why. Words that only complain of another rank do not make a rank
the first to fail. A traceback counts only if it was the end of its rank: many a program prints one, and goes on.
"""

import itertools
import re

from launchers import ENDED_BY_OTHERS
from logs import Speaker, same_host

# How the first failing process ended, for --json. The order matters: where a launcher names several ranks, the first
# one counts that did not end because of another one.
WAYS = {
    "slurm": "Slurm's record or message says it: time limit, memory, node, cancelled, preempted",
    "killed": "a launcher reports signal 9",
    "crashed": "a launcher reports another signal",
    "error": "it printed an error message of its own: a traceback of any kind, a C assertion, ...",
    "exited": "it ended with an exit code, and printed no error message",
    "waited": "ranks waited in a collective or at the rendezvous in vain",
    "peer": "ranks lost another one, of which nothing else is known",
    "none": "no launcher reports a rank that failed",
}
WORDS = 25  # lines that a report quotes
RECENT = 2000  # lines of a rank that are searched
NEWEST = 10  # error messages of a rank that are considered
LINES_BEHIND = 12  # a rank whose traceback has more lines behind it has survived it

# ---- how an error message begins -------------------------------------------------------------------------------------

# Python's own, those of groups, of worker processes, of rich: a box of ╭, │ and ─, or of +, | and - (rich 15.0).
TRACEBACK = re.compile(
    r"(?:[╭+][─-]+ )?Traceback \(most|Original Traceback \(most| *\+ Exception Group Traceback \(most"
)
SYNTAX_ERROR = re.compile(r'  File ".*", line \d+$')  # of the program itself: it has no "Traceback"
NATIVE = re.compile(  # compiled code says that it goes down
    r"terminate called|Fatal Python error|\*\*\* stack smashing detected|double free or corruption|corrupted size vs"
    r"|free\(\): |munmap_chunk\(\): |malloc(?:\(\)|_consolidate\(\)): "
    r"|.*: Assertion [`'].*' failed|F\d{4} .*\] |.*Check failed: |The application appears to have been direct launched"
)
WATCHDOG = re.compile(r"Watchdog caught|Heartbeat monitor timed out|watchdog got stuck")
# The last line of a traceback alone, or argparse: nothing that goes on begins a line so.
ERROR_LINE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: \S|$)|\S+\.py: error: \S|CUDA error: \S")
BEGINNING = re.compile("|".join(pattern.pattern for pattern in (TRACEBACK, SYNTAX_ERROR, NATIVE, ERROR_LINE)))
WITHIN_TRACEBACK = (" ", "Traceback", "╭", "+", "│", "╰", "|")  # how its lines begin, but for the last one, the error
OF_A_GROUP = re.compile(r"[ |]+\| (?! |Traceback)(\S.*)")  # an error within a group of exceptions

# ---- what surrounds it -----------------------------------------------------------------------------------------------

# The traceback after such a line is no failure: Python tidies up, or a library goes on without something …
NO_FAILURE = re.compile(
    r"Exception ignored|Error in atexit|Retry attempt failed|Triton is not available|--- Logging error ---"
    r"|Exception in callback|exception was never retrieved|^(?:future|handle|task|protocol|transport): <"  # asyncio
)
# … or it belongs to one that has begun: a chain of exceptions, a thread that goes down too, a launcher.
GOES_ON = re.compile(r"During handling of|The above exception was|Exception in thread")
OF_TORCHRUN = re.compile(r"ChildFailedError|api\.SignalException")
OF_LAUNCHER = re.compile(OF_TORCHRUN.pattern + "|CalledProcessError")  # also accelerate, or a command that a rank ran
CONTINUES = re.compile(r" |frame #|<omitting|Exception raised from ")  # more of a message, the calls in compiled code
# Lines of launchers and libraries, which are no words of a rank.
NOISE = re.compile(
    r"(?!.*gai error)\[?[WIE](?:\d+ |\S*(?: \S+)? \S+\.cpp:\d+\])|srun: |slurmstepd|-----|=====|[ ]*$"
    r"|\*\*\* (?:STEP|JOB) |launch/spawn\.py on \S+ rank "
)
# Lines that good runs print: they do not tell that a rank went on after its error, and prove no cause.
HARMLESS = re.compile(
    r"--numa-binding is left out|so it uses this node alone"  # launch/torchrun.sh goes on
    r"|Address family not supported|IPv6 network addresses of"  # c10d tries IPv6 first; OFA-Sys/OFA #307
    r"|failed to shutdown the rendezvous|exit barrier|recvValueWithTimeout"  # pytorch/pytorch #69520
    r"|will retry\.?$|NCCL INFO|dso_loader"  # pytorch/pytorch #71864, NVIDIA/nccl #1231, yekaizhou/duet #9
    r"|(?:^|[\s\[(|:])(?:INFO|WARNING)(?:[\s\])|:]|$)"  # the level of a message, as loggers print it
    r"|Warning: |Error caught was: |\bwarn(?:ings\.warn)?\("  # xformers without triton
    r"|: ignored\.?$|\(ignored\)$"  # ld.so, Open MPI: rizsotto/Bear #582, BirolLab/abyss #175
    r"|ddress already in use, trying"  # TensorBoard and others take the next port
    r"|\bRetrying\b|thrown while requesting|entering retry loop|^wandb: "  # huggingface_hub, urllib3, wandb
    r"|not a git repository"
)
# A step of a program: what stands before the last one did not end the rank.
STEP = re.compile(r"\b(?:step|iter(?:ation)?|epoch)s?\b\W*\d.*\d|\bloss\b\W*\d", re.IGNORECASE)

# ---- words about another rank ----------------------------------------------------------------------------------------

PEER = re.compile(  # the last words of a rank that ended because of another one
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|(?:recvVector|sendBytes) failed|got 0 bytes"
    r"|remote process exited|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError"
    r"|SignalException|KeyboardInterrupt|reached monitoredBarrier, but received errors|MPI_ERR_PROC_FAILED"
    r"|Transport retry count exceeded|Endpoint timeout"  # UCX: the other side does not answer
)
WAITED = re.compile(
    r"[Tt]imed out (?:waiting|after)|[Ww]ait timeout|client socket has timed out|failed to pass monitoredBarrier"
    "|" + WATCHDOG.pattern
)
# Errors of several lines, of which a later one may say that another rank was lost.
OF_COMMUNICATION = re.compile(r"CCL|[Gg]loo|c10|torch\.distributed|terminate called|UCX")
OTHER_PEER = re.compile(  # the peer in these errors is no rank
    r"[a-z]*(?:requests|urllib|http)|(?:subprocess|redis|pymongo|botocore|psycopg2?|sqlalchemy|filelock|grpc|mlflow)\."
)
SOCKET_ERROR = re.compile(r"(?:Connection(?:Reset|Refused|Aborted)|Timeout)Error\b")  # of Redis, S3, MLflow, locks, too
BETWEEN_RANKS = re.compile(r'(?:File "|[│|] ).*\b(?:torch/distributed|horovod|deepspeed|mpi4py)/')


def way_of(text, traceback=()):
    """Return how a rank failed whose error is this line: "error", "waited" or "peer"."""
    if OTHER_PEER.match(text):
        return "error"
    if SOCKET_ERROR.match(text) and not any(BETWEEN_RANKS.search(line.text) for line in traceback):
        return "error"
    if PEER.search(text):
        return "peer"
    return "waited" if WAITED.search(text) else "error"


# ---- one reader of error messages ------------------------------------------------------------------------------------


class Message:
    """An error message of a rank: a traceback, a chain of them, or what compiled code prints."""

    def __init__(self, lines, start, native, is_harmless):
        """Begin at a line; `lines` are all of the rank."""
        self.lines, self.start, self.native = lines, start, native
        self.end = start  # the last line that surely belongs to it
        self.errors = []  # the lines that say what is wrong, the first one of a chain first
        self.is_harmless = is_harmless  # a line before it has announced that the program goes on
        self.inside = False  # a traceback, whose error has not come
        self.is_bare = False  # a line alone, without a traceback

    @property
    def error(self):
        """The line that says what is wrong: of a chain the first one, which the others follow from."""
        return self.errors[0] if self.errors else self.lines[self.end]

    @property
    def of_launcher(self):
        """Tell whether it is a launcher's: its ranks have failed before, and say more."""
        return bool(OF_LAUNCHER.search(self.error.text))

    @property
    def way(self):
        """How the rank failed that ended with it."""
        traceback = self.lines[self.start : self.end + 1]
        text = self.error.text
        behind = [line.text for line in self.lines[self.end + 1 : self.end + 1 + LINES_BEHIND]]
        way = way_of(text, traceback)
        if way == "error" and behind and traceback[0].text[:1] in "╭+":  # rich breaks lines at 80 columns
            way = way_of(text.rstrip() + " " + behind[0], traceback)
        if way == "error" and OF_COMMUNICATION.search(text):
            said = [line.text for line in traceback if line.text.startswith("  what(): ")]
            ways = [way_of(line) for line in said + behind]
            way = next((other for other in ("peer", "waited") if other in ways), way)
        return way

    def behind(self):
        """Return what the rank printed behind it, without numbers, and without what good runs print."""
        return {
            digits_gone(line.text)
            for line in self.lines[self.end + 1 :]
            if not CONTINUES.match(line.text) and not HARMLESS.search(line.text)
        }


def digits_gone(text):
    """Return a line without numbers, in which it may differ from one rank to the next."""
    return re.sub(r"\d+", "0", text)


def own(lines):
    """Return the newest of these lines that no launcher or library printed."""
    return [line for line in lines[-RECENT:] if not NOISE.match(line.text) or WATCHDOG.search(line.text)]


def read_messages(lines):
    """Return the error messages in the lines of one rank, each with the messages that belong to it."""
    messages, message, announced, joins, apart = [], None, "", False, 0
    for at, line in enumerate(lines):
        text = line.text
        if message and message.inside:
            apart = 0
            if text.startswith(WITHIN_TRACEBACK):
                message.end = at
                continue
            end_traceback(message, line, at)
            if message.end == at:
                continue
        begins = BEGINNING.match(text) or WATCHDOG.search(text)
        if begins:
            native = bool(NATIVE.match(text)) and not TRACEBACK.match(text)
            belongs = joins or text.startswith("Original") or native
            if not (message and belongs and apart <= LINES_BEHIND):
                is_harmless = bool(announced and TRACEBACK.match(text)) or "Exception ignored" in announced
                message = Message(lines, at, native, is_harmless)
                messages.append(message)
            message.inside = bool(TRACEBACK.match(text) or SYNTAX_ERROR.match(text))
            message.end, apart = at, 0
            if not message.inside:
                message.is_bare = not native and not message.errors
                message.errors.append(line)
        elif message and CONTINUES.match(text):
            message.end = at if at == message.end + 1 else message.end
        else:
            apart += 1
        if text.strip('" '):
            joins = bool(message and GOES_ON.match(text))
            announced = text if NO_FAILURE.search(text) else ""
    if message and message.inside:
        end_group(message)
    return joined_with_launchers(messages)


def end_traceback(message, line, at):
    """End a traceback before or with the line behind its frames, which is the error."""
    message.inside = False
    if not end_group(message):
        message.errors.append(line)
        message.end = at


def end_group(message):
    """Take the errors of a group of exceptions, which stand within it, the innermost last; tell whether it is one."""
    body = message.lines[message.start : message.end + 1]
    if "Exception Group Traceback" not in body[0].text:
        return False
    message.errors += [line for line in body if OF_A_GROUP.match(line.text)][::-1]
    return True


def joined_with_launchers(messages):
    """Let the traceback of a launcher, or of a command that a rank ran, belong to the one before it."""
    joined = []
    for message in messages:
        before = joined[-1] if joined else None
        if before and message.of_launcher and message.start - before.end <= LINES_BEHIND:
            before.end = message.end
            before.errors += message.errors
        else:
            joined.append(message)
    return joined


# ---- the rank that failed first --------------------------------------------------------------------------------------


class Failure:
    """How a rank ended, as its launcher or its last words tell."""

    def __init__(self, way, speaker, report=None, message=None):
        """Join what a launcher reports and what the rank printed; either may be missing."""
        self.way, self.speaker, self.report, self.message = way, speaker, report, message
        self.suspects = []  # of ranks that waited in vain, or lost another one: ranks that said nothing

    @property
    def rank(self):
        """The number of the rank; None if it is not known."""
        return self.speaker.rank

    @property
    def host(self):
        """The node; "" if it is not known."""
        return self.speaker.host or (self.report.host if self.report else "")

    @property
    def code(self):
        """The exit code, or minus the signal; None if it is not known."""
        return self.report.code if self.report else None

    @property
    def weakness(self):
        """How little it tells that this one failed first."""
        if self.way in ("waited", "peer"):
            return 4 if self.way == "waited" else 6
        if self.report is None:
            return 5 if self.message.is_bare else 2  # a line may be a warning of a rank that others waited for
        if self.message is None and self.rank is None and self.code == 1:
            return 3  # a launcher that ended as one of its ranks did
        return 1 if self.code == -6 and self.message is None else 0  # as many ranks end that have lost another one


class Ranks:
    """All ranks of a run, to ask which one failed first."""

    def __init__(self, speakers):
        """Take the ranks, and last the lines without a label."""
        self.named, self.rest = speakers[:-1], speakers[-1]
        self.names_ranks = self.launchers_of_ranks()  # before launchers' own lines are left out
        self.printed, self.messages = {}, {}  # what was read, by the id of a speaker or of lines
        for speaker in speakers:
            speaker.errors, speaker.lines = own(speaker.errors), own(speaker.lines)

    def launchers_of_ranks(self):
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
        reports = self.of_ranks(reports)
        failures = [self.reported(report) for report in reports]
        known = {id(failure.speaker) for failure in failures}
        for speaker in [*self.in_time(), self.rest]:
            message = self.last_message(speaker, None) if id(speaker) not in known else None
            if message:
                failures.append(Failure(message.way, speaker, None, message))
        first = min(failures, key=lambda failure: failure.weakness, default=None)
        if first and first.way in ("waited", "peer"):
            spoke = {id(failure.speaker) for failure in failures}
            first.suspects = [speaker for speaker in self.named if speaker.log and id(speaker) not in spoke]
        return first

    def of_ranks(self, reports):
        """Return the reports of ranks; those of the launchers of nodes only if there are no others.

        Signals 15 and 2 count only where nothing else is reported: launchers end the other ranks with them.
        """
        reports = [report for report in reports if report.launcher in self.names_ranks] or reports
        return [report for report in reports if report.code not in ENDED_BY_OTHERS] or reports

    def in_time(self):
        """Return the ranks in the order in which they ended, or began their last message."""
        if all(speaker.log for speaker in self.named):
            return sorted(self.named, key=lambda speaker: speaker.ended)
        starts = {}
        for speaker in self.named:
            message = self.last_message(speaker, None)
            starts[id(speaker)] = message.lines[message.start].number if message else 0
        return sorted(self.named, key=lambda speaker: starts[id(speaker)])

    def reported(self, report):
        """Return the failure that a launcher reports, with the last words of the rank."""
        if report.launcher in self.names_ranks:
            same = [speaker for speaker in self.named if speaker.rank == report.rank]
            speaker = same[0] if same else Speaker(report.rank, report.host)
            speaker.host = report.host if "[" not in report.host and report.host else speaker.host
            return self.failure(speaker, report)
        of_node = [speaker for speaker in self.named if speaker.host and same_host(report.host, speaker.host)]
        failures = [self.failure(speaker, report) for speaker in (of_node or [self.rest])]
        said_why = [failure for failure in failures if failure.message]
        if said_why:
            return min(said_why, key=lambda failure: failure.weakness)
        whole_node = Speaker(None, report.host)
        said = [line for speaker in of_node or [self.rest] for line in speaker.lines]
        whole_node.lines = sorted(said, key=lambda line: line.number)
        return self.failure(whole_node, report)

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
            ends = [message for message in self.newest_messages(lines) if self.is_end(message, speaker, code)]
            if code is not None and code > 1:
                ends = [message for message in ends if message.native or ".py: error: " in message.error.text]
            ends = [message for message in ends if not self.others_survived(message, speaker)]
            if ends:
                return self.chosen(ends, speaker)
        return None

    def newest_messages(self, lines):
        """Return the newest error messages in the lines of a rank, which are read once."""
        if id(lines) not in self.messages:
            self.messages[id(lines)] = read_messages(lines)[-NEWEST:]
        return self.messages[id(lines)]

    def chosen(self, ends, speaker):
        """Return the one of several error messages that tells why; None if they are a launcher's, of other ranks."""
        if speaker is self.rest:  # of any rank: each message may be of another one
            ends = [message for message in ends if not message.of_launcher] or ends
            order = ["error", "waited", "peer"]
            return min(ends, key=lambda message: order.index(message.way))
        last, before = ends[-1], ends[-2] if len(ends) > 1 else None
        if before is None and OF_TORCHRUN.search(last.error.text):
            return None  # the rank of this log has started torchrun
        lost_server = last.way == "error" and SOCKET_ERROR.match(last.error.text)
        if before and lost_server and before.way in ("waited", "peer"):
            return before  # as the rank went down, its connection to a tracker or the like broke, too
        return last

    def is_end(self, message, speaker, code):
        """Tell whether a rank printed little behind an error message, and went no step further.

        A launcher may mix up stdout and stderr. So an error that is the very last line of stderr counts anyway, if the
        exit code is that of an error.
        """
        if message.is_harmless or not message.errors:
            return False
        behind = message.behind()
        if code == 1 and message.lines[0] in speaker.errors and not behind:
            return True
        most = 5 * LINES_BEHIND if code == 1 else LINES_BEHIND  # the message itself may be long
        return len(behind) <= most and not any(map(STEP.search, behind)) and not self.went_on(message, speaker)

    def went_on(self, message, speaker):
        """Tell whether the output has a step of the rank behind an error that it printed."""
        error = message.error.text
        behind = list(itertools.takewhile(lambda line: line.text != error, reversed(speaker.lines)))
        return len(behind) < len(speaker.lines) and any(STEP.search(line.text) for line in behind)

    def others_survived(self, message, speaker):
        """Tell whether all other ranks printed the same error, too, and one of them went on."""
        others = self.others_than(speaker)
        if not others or not self.is_alike(message.error, speaker):
            return False
        text = digits_gone(message.error.text)
        return any(
            not self.is_end(same, other, None)
            for other in others
            for same in self.newest_messages(other.errors or other.lines)
            if digits_gone(same.error.text) == text
        )

    def others_than(self, speaker):
        """Return other ranks that have printed something; none for lines of which the rank is not known."""
        if speaker not in self.named:
            return []
        return [other for other in self.named if other is not speaker and (other.lines or other.errors)][:64]

    def is_alike(self, line, speaker):
        """Tell whether all other ranks printed this line, too, but for numbers."""
        others, text = self.others_than(speaker), digits_gone(line.text)
        return bool(others) and all(text in self.texts_of(other) for other in others)

    def texts_of(self, speaker):
        """Return the newest lines of a rank without their numbers."""
        if id(speaker) not in self.printed:
            lines = speaker.lines + speaker.logged
            self.printed[id(speaker)] = {digits_gone(line.text) for line in lines}
        return self.printed[id(speaker)]

    def last_lines(self, failure, most=10):
        """Return the last lines of a rank that printed no error message, and which of them it printed alone.

        What all ranks printed is left out, unless it is the very end: then all may have failed alike.
        """
        speaker, shown, alone = failure.speaker, [], []
        errors = {line.text for line in speaker.errors}
        printed = [line for line in speaker.lines if line.text not in errors] if errors else speaker.lines
        for stream in (printed, speaker.errors):
            lines = [line for line in stream if not HARMLESS.search(line.text)]
            last_step = max((at for at, line in enumerate(lines) if STEP.search(line.text)), default=-1)
            its_own = [line for line in lines[last_step + 1 :] if not self.is_alike(line, speaker)][-most:]
            alone += its_own
            ends_alone = bool(its_own) and its_own[-1] is lines[-1]
            shown.append((its_own, lines[-most:] if not ends_alone else its_own))
        if alone:
            return [line for own_lines, end in shown for line in (own_lines or [])], alone
        return [line for _, end in shown for line in end][-most:], alone


# Frames of what starts the program, above the program's own.
STARTS_PROGRAM = re.compile(r'  File "(?:.*/launch/spawn\.py|<frozen runpy>|.*/runpy\.py)", line ')


def last_words(message):
    """Return the lines of an error message: its end, and the first errors of a chain if these are not among them."""
    lines, is_left_out = [], False
    for line in message.lines[message.start : message.end + 1]:
        if line.text.startswith("  File "):
            is_left_out = bool(STARTS_PROGRAM.match(line.text))
        elif not line.text.startswith("    "):
            is_left_out = line.text.startswith("frame #")
        if not is_left_out:
            lines.append(line)
    lines += [line for line in message.lines[message.end + 1 :] if not HARMLESS.search(line.text)]
    if len(lines) <= WORDS:
        return lines
    kept = lines[-WORDS:]
    missing = [line for line in message.errors[:2] if line not in kept]
    return missing + kept[len(missing) :]
