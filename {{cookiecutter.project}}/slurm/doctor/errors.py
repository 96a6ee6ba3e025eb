"""Reads the error messages that a rank printed: tracebacks of any kind, and what compiled code prints as it goes down.

A rank may have survived them, or complain of another rank: Message.way and Message.behind() tell.
"""

import re

WORDS = 25  # lines of a rank that a report quotes, at most
RECENT = 2000  # lines of a rank that are searched
# A rank that prints more lines than these behind a message has survived it. What is nearer may belong to the message.
LINES_BEHIND = 12
MOST_BEHIND = 60  # if the rank ended with exit code 1, as Python does after an error: the message may be long

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
# gloo's threads abort a Python that ends while its process group is at work (torch 2.13), also after an error.
ABORT_AT_THE_END = re.compile(r"terminate called without an active exception")
WATCHDOG = re.compile(r"Watchdog caught|Heartbeat monitor timed out|watchdog got stuck")
BEGINNING = re.compile("|".join(pattern.pattern for pattern in (TRACEBACK, SYNTAX_ERROR, NATIVE)))
WITHIN_TRACEBACK = (" ", "Traceback", "╭", "+", "│", "╰", "|")  # how its lines begin, but for the last one, the error
OF_A_GROUP = re.compile(r"[ |]+\| (?! |Traceback)(\S.*)")  # an error within a group of exceptions

# ---- what surrounds it -----------------------------------------------------------------------------------------------

# The traceback after such a line is no failure: Python tidies up, or a library goes on without something …
NO_FAILURE = re.compile(
    r"Exception ignored|Error in atexit|Retry attempt failed|Triton is not available|--- Logging error ---"
    r"|Exception in callback|exception was never retrieved|^(?:future|handle|task|protocol|transport): <"  # asyncio
)
# … or it belongs to the message before it: a chain of exceptions, or a thread that goes down too.
GOES_ON = re.compile(r"During handling of|The above exception was|Exception in thread")
# Errors that follow from those before them: of torchrun, and of accelerate or another program that started a command.
OF_LAUNCHER = re.compile(r"ChildFailedError|api\.SignalException|CalledProcessError")
CONTINUES = re.compile(r" |frame #|<omitting|Exception raised from ")  # more of a message, the calls in compiled code
# Lines of launchers and libraries, which are no words of a rank.
NOISE = re.compile(
    r"(?!.*gai error)\[?[WIE](?:\d+ |\S*(?: \S+)? \S+\.cpp:\d+\])|srun: |slurmstepd|-----|=====|[ ]*$"
    r"|\*\*\* (?:STEP|JOB) |launch/spawn\.py on \S+ rank "
)
# Lines that good runs print: they prove no cause.
HARMLESS = re.compile(
    r"--numa-binding is left out"  # launch/torchrun.sh goes on
    r"|Address family not supported|IPv6 network addresses of"  # c10d tries IPv6 first; OFA-Sys/OFA #307
    r"|NCCL INFO|dso_loader"  # NVIDIA/nccl #1231, yekaizhou/duet #9
    r"|(?:^|[\s\[(|:])(?:INFO|WARNING)(?:[\s\])|:]|$)"  # the level of a message, as loggers print it
    r"|Warning: "
    r"|: ignored\.?$|\(ignored\)$"  # ld.so, Open MPI: rizsotto/Bear #582, BirolLab/abyss #175
    r"|ddress already in use, trying"  # TensorBoard and others take the next port
    r"|\bRetrying\b|thrown while requesting|^wandb: "  # huggingface_hub, urllib3
)
# A step of a program, as in "step 3/100": an error before the last one did not end the rank.
STEP = re.compile(r"\b(?:step|iter(?:ation)?|epoch)s?\b\W*\d.*\d|\bloss\b\W*\d", re.IGNORECASE)

# ---- words about another rank ----------------------------------------------------------------------------------------

PEER = re.compile(  # the last words of a rank that ended because of another one
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|(?:recvVector|sendBytes) failed|got 0 bytes"
    r"|remote process exited|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError"
    r"|SignalException|KeyboardInterrupt|reached monitoredBarrier, but received errors|MPI_ERR_PROC_FAILED"
    r"|Transport retry count exceeded"  # UCX: the other side does not answer
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
    """Return how a rank with this error failed: "peer" (it lost another rank), "waited" or "error" (its own)."""
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

    @property
    def error(self):
        """The line that says what is wrong: of a chain the first one, which the others follow from."""
        return self.errors[0] if self.errors else self.lines[self.end]

    @property
    def way(self):
        """How the rank failed that ended with it."""
        traceback = self.lines[self.start : self.end + 1]
        text = self.error.text
        behind = [line.text for line in self.lines[self.end + 1 : self.end + 1 + LINES_BEHIND]]
        way = way_of(text, traceback)
        if way == "error" and OF_COMMUNICATION.search(text):
            said = [line.text for line in traceback if line.text.startswith("  what(): ")]
            ways = [way_of(line) for line in said + behind]
            way = next((other for other in ("peer", "waited") if other in ways), way)
        return way

    def behind(self):
        """Return what the rank printed behind it, without numbers."""
        return {digits_gone(line.text) for line in self.lines[self.end + 1 :] if not CONTINUES.match(line.text)}


def digits_gone(text):
    """Return a line with 0 for each number, so that the lines of different ranks compare equal."""
    return re.sub(r"\d+", "0", text)


def own(lines):
    """Return the newest of these lines that no launcher or library printed."""
    return [line for line in lines[-RECENT:] if not NOISE.match(line.text) or WATCHDOG.search(line.text)]


def read_messages(lines):
    """Return the error messages in the lines of one rank, each with the messages that belong to it."""
    messages, message = [], None
    previous = ""  # the last line that is not empty
    apart = 0  # lines since the message, but for calls in compiled code
    for index, line in enumerate(lines):
        text = line.text
        if message and message.inside:
            if text.startswith(WITHIN_TRACEBACK):
                message.end = index
                continue
            end_traceback(message, line, index)
            apart = 0
            if message.end == index:
                continue
        if BEGINNING.match(text) or WATCHDOG.search(text):
            is_traceback = bool(TRACEBACK.match(text))
            native = bool(NATIVE.match(text)) and not is_traceback
            belongs = native or text.startswith("Original") or GOES_ON.match(previous)
            if not (message and belongs and apart <= LINES_BEHIND):
                message = Message(lines, index, native, bool(NO_FAILURE.search(previous)))
                messages.append(message)
            message.inside = is_traceback or bool(SYNTAX_ERROR.match(text))
            message.end, apart = index, 0
            if not message.inside and not (message.errors and ABORT_AT_THE_END.match(text)):
                message.errors.append(line)
        elif message and CONTINUES.match(text):
            message.end = index if index == message.end + 1 else message.end
        else:
            apart += 1
        if text.strip('" '):
            previous = text
    if message and message.inside:
        end_group(message)
    return messages


def end_traceback(message, line, index):
    """End a traceback before or with the line behind its frames, which is the error."""
    message.inside = False
    if not end_group(message):
        message.errors.append(line)
        message.end = index


def end_group(message):
    """Take the errors that stand within a group of exceptions, the last one first; tell whether it is a group."""
    body = message.lines[message.start : message.end + 1]
    if "Exception Group Traceback" not in body[0].text:
        return False
    message.errors += [line for line in body if OF_A_GROUP.match(line.text)][::-1]
    return True


def last_words(message):
    """Return the lines to quote: the end of a message with what follows it, and its first errors."""
    lines = [line for line in message.lines[message.start :] if not line.text.startswith("frame #")]
    if len(lines) <= WORDS:
        return lines
    kept = lines[-WORDS:]
    missing = [line for line in message.errors[:2] if line not in kept]
    return missing + kept[len(missing) :]
