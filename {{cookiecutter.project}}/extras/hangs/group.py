"""Says in words where the ranks of a run are. It reads what extras/hangs/collect.sh prints on each node.

    srun --ntasks-per-node=1 --label extras/hangs/collect.sh SLURM_JOB_ID=4711 | python3 extras/hangs/group.py
    python3 extras/hangs/group.py logs/4711.0         what ranks have left there when they failed
    python3 extras/hangs/group.py --add logs/4711.0   the same, added to stacks.txt in that folder

Ranks at the same place are one line, and the smallest groups of ranks come last: most ranks usually wait for a single
one. Then come processes that ranks have started, and last a line for each group of ranks that waits in a collective,
which names the rank that is missing (collectives.py). With --stacks, the whole stack of each rank's main thread follows
below an empty line. Exit code 1: no rank was found, or one that runs or sleeps has not answered. Python 3.6 is enough.
"""

import io
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from collectives import named, numbered, oldest_unfinished, ranges, verdicts
from records import left_by_ranks, rank_collectives

# srun puts the number of its task before each line, here of a node, as "2: ": lines of several nodes arrive mixed.
LABEL = re.compile(r"(?: *(\d+): )?(.*)", re.DOTALL)
FACTS = re.compile(r"== rank=(\d+) of=(\d*) host=(\S*) pid=(\d+) parent=(\d*) state=(\S) wchan=(\S*) name=(.*)")
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*most recent call first")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
COLLECTIVE = re.compile(r"collective (\{.*\})$")
# Files that are not the user's code.
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<(?!stdin)|/torchinductor_|/launch/spawn\.py|/extras/hangs/"
)
# Wrappers that stand in stacks between a call and the function that was called.
WRAPPERS = {"wrapper", "inner", "_fn", "decorate_context", "_wrapped_call_impl", "_call_impl"}
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting in the kernel", "Z": "ended"}
STATES.update({"R": "running", "S": "sleeping"})
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8


def main():
    """Print the lines."""
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--stacks", "--add")]
    if arguments and not os.path.isdir(arguments[0]):
        sys.stderr.write(printable(f"'{arguments[0]}': expected the folder of a run, as logs/4711.0") + "\n")
        sys.exit(2)
    if arguments and "--add" in sys.argv:
        add_records(arguments[0])
        sys.exit()
    answers = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    processes = read(left_by_ranks(arguments[0]) if arguments else answers)
    if not processes:
        sys.exit("no rank was found: wait until the ranks have started, in a job of a project with extras/hangs")
    lines = describe(processes) + (whole_stacks(processes) if "--stacks" in sys.argv else [])
    sys.stdout.buffer.write(as_bytes(lines))
    sys.exit(1 if any(not process.threads and process.state in ("R", "S") for process in processes) else 0)


def add_records(run):
    """Add what ranks have left in the folder of a run to its stacks.txt.

    If the ranks were asked where they are, that is only what NCCL has recorded: their answers have all the rest.
    """
    path = os.path.join(run, "stacks.txt")
    asked = b""
    if os.path.exists(path):
        with open(path, "rb") as file:
            asked = file.read()
    if asked.strip():
        places, empty_line, stacks = asked.partition(b"\n\n")
        ranks = {process.rank: process for process in read(left_by_ranks(run, "nccl"))}
        added = as_bytes(who_waits(ranks))
        text = places.rstrip(b"\n") + b"\n" + added + (empty_line + stacks)[1:]
    else:
        text = as_bytes(describe(read(left_by_ranks(run))))
    with open(path, "wb") as file:
        file.write(text)


class Process:
    """A process of a rank: the rank itself, or one that it has started.

    threads: stacks, each a list of frames (file, line, function), the innermost first.
    main_thread: one of them. The kernel gives the signal to the main thread if it can. A rank that has failed tells the
        stack of its failure.
    collectives: the newest, as rank_collectives.lines_of() makes them.
    told: the backends, as gloo, of which these are complete.
    """

    def __init__(self, rank, world_size, host, pid, parent, state, wchan, name):
        """Take the facts that collect.sh prints; the stacks are added as they are read."""
        self.rank, self.world_size = int(rank), int(world_size or 0)
        self.host, self.pid, self.parent = host, int(pid), int(parent or 0)
        self.state, self.wchan, self.name = state, wchan, name
        self.threads, self.main_thread, self.has_failed = [], [], False
        self.collectives, self.told, self.is_torn = [], set(), False

    def add(self, line):
        """Take a line of its answer; one that is torn is left out."""
        thread, frame, call = THREAD.match(line), FRAME.match(line), COLLECTIVE.match(line)
        if thread:
            self.threads.append([])
            if thread.group(1) == "Current thread":
                self.main_thread = self.threads[-1]
        elif line.strip() == "failed":
            self.has_failed, self.main_thread = True, []
            self.threads.append(self.main_thread)
        elif self.threads and frame:
            self.threads[-1].append((frame.group(1), int(frame.group(2)), frame.group(3)))
        elif call:
            try:
                self.collectives.append(json.loads(call.group(1)))
            except ValueError:
                self.is_torn = True
        elif line.startswith("collective "):
            self.is_torn = True
        elif line.startswith(rank_collectives.END) and not self.is_torn:
            self.told.update(line[len(rank_collectives.END) :].split())


def read(lines):
    """Return the processes that the lines describe."""
    processes, current = [], {}  # the process of each node to which its lines belong
    for text in lines:
        node, line = LABEL.match(text).groups()
        if line.startswith("== "):
            facts = FACTS.match(line)  # without a state the process has just ended
            current[node] = Process(*facts.groups()) if facts else None
            processes += [current[node]] if facts else []
        elif current.get(node):
            current[node].add(line)
    return merged(processes)


def merged(processes):
    """Return the processes, with one for what a rank has left in several files."""
    kept, of_files = [], {}
    for process in processes:
        first = of_files.setdefault(process.rank, process) if process.state == "X" else process
        if first is process:
            kept.append(process)
        else:
            first.collectives += process.collectives
            first.told |= process.told
            first.world_size = max(first.world_size, process.world_size)
    return kept


def describe(processes):
    """Return lines: the ranks; those without a process; what ranks have started; who keeps whom waiting."""
    ranks, others = {}, []  # of the processes of a rank, the one that has started the others
    known = {(process.host, process.pid) for process in processes}

    def order(process):
        return (process.host, process.parent) in known, not process.told, process.pid

    for process in sorted(processes, key=order):
        first = ranks.setdefault(process.rank, process)
        if first.threads and process.told and not first.told:  # first is a wrapper, which has started the rank
            ranks[process.rank] = process
            others.append(first)
        elif first is not process:
            others.append(process)
    lines = grouped(ranks.values(), "")
    missing = set(range(size_of_world(ranks))) - set(ranks)
    if missing:
        lines.append(f"{named(missing)}: {'no process was found' if are_live(ranks) else 'left no record'}")
    return lines + grouped(others, "other process of ") + who_waits(ranks)


def who_waits(ranks):
    """Return lines that say who keeps whom waiting. ranks: a process for each rank."""
    calls_of = {rank: process.collectives for rank, process in ranks.items()}
    told = {rank: process.told for rank, process in ranks.items()}
    hosts = {rank: process.host for rank, process in ranks.items()}
    return verdicts(calls_of, told, hosts, size_of_world(ranks), are_live(ranks))


def size_of_world(ranks):
    """Return the number of ranks that the run has, as they say; 0 if none says it."""
    return max((process.world_size for process in ranks.values()), default=0)


def are_live(ranks):
    """Tell whether the ranks were asked while they ran, and have not left records."""
    return any(process.state != "X" for process in ranks.values())


def whole_stacks(processes):
    """Return, for each process, an empty line, its rank, the stack of its main thread, and its newest collective."""
    lines = []
    for process in sorted(processes, key=lambda process: (process.rank, process.pid)):
        lines += ["", f"rank {process.rank}, process {process.pid} on {process.host}"]
        lines += [f"    {file}:{line} in {function}" for file, line, function in process.main_thread]
        if process.collectives:
            newest = max(process.collectives, key=lambda call: call["since"])
            lines.append(f"    newest collective: {numbered(newest)}")
    return lines


def grouped(processes, kind):
    """Return the lines for processes of a kind, which stands before the ranks, the largest group first."""
    groups = {}
    for process in sorted(processes, key=lambda process: process.rank):
        groups.setdefault(place(process), []).append(process)
    lines = []
    for words, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        ranks = {process.rank for process in members}
        who = kind + named(ranks, {process.rank: process.host for process in members})
        if len(members) > len(ranks):
            who += f" ({len(members)} processes)"
        lines += [f"{who}: {words}", *other_threads(members, ranks)]
    return lines


def place(process):
    """Return in words where a process is, by its main thread."""
    if process.threads:
        stopped = process.state in (
            "T",
            "t",
            "D",
        )  # such a process cannot answer itself, but py-spy may read its stacks
        state = f"{STATES[process.state]}: " if stopped else ""
        return state + ("failed in " if process.has_failed else "") + in_words(process.main_thread)
    if process.collectives:  # of what NCCL's recorder has written
        call = oldest_unfinished(process.collectives) or max(process.collectives, key=lambda call: call["since"])
        where = in_words(call["frames"]) if call["frames"] else numbered(call)
        return ("last seen in " if call["finished"] else "waited in ") + where
    wchan = f", in {process.wchan}" if process.wchan != "0" else ""
    return f"no answer: {STATES.get(process.state, 'ended')} (state {process.state or '?'}{wchan})"


def other_threads(members, ranks):
    """Return a line for each place where code of the project runs in another thread of these processes."""
    places = {}
    for process in members:
        for thread in process.threads:
            if thread is not process.main_thread and any(is_own(frame) for frame in thread):
                places.setdefault(in_words(thread), set()).add(process.rank)
    of = {words: "" if found == ranks else f" of rank {ranges(found)}" for words, found in places.items()}
    return [f"    another thread{of[words]}: {words}" for words in sorted(places)]


def as_bytes(lines):
    """Return lines as they are written: without control characters."""
    return "".join(f"{printable(line)}\n" for line in lines).encode("utf-8", "replace")


def printable(text):
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def is_own(frame):
    """Tell whether a frame is code of the user's project, and no library's."""
    return not LIBRARY.search(frame[0])


def in_words(stack):
    """Return words for a stack, as 'fit() in all_reduce(), called from train.py:41 in run()'.

    So line 41 of train.py, in its function run(), has called fit() of a library, which is now in all_reduce().
    """
    if not stack:
        return "no Python code, as it starts or ends"
    own = next((number for number, frame in enumerate(stack) if is_own(frame)), None)
    file, line, function = stack[own or 0]
    at = f"{short(file)}:{line} in {function}" + ("" if function.startswith("<") else "()")
    if not own:  # the innermost frame, or there is no code of the project
        return at
    called = [frame[2] for frame in stack[:own] if frame[2] not in WRAPPERS] or [stack[0][2]]
    inside = f" in {called[0]}()" if called[0] != called[-1] else ""  # where in that function it is
    return f"{called[-1]}(){inside}, called from {at}"


def short(path):
    """Return a path as seen from the current folder, if it lies below."""
    try:
        from_here = os.path.relpath(path)
    except (OSError, ValueError):  # the folder was deleted, or the path is empty
        return path
    return path if from_here.startswith("..") else from_here


if __name__ == "__main__":
    main()
