"""Says in words where the ranks of a run are. It reads what launch/stacks/collect.sh prints on each node.

    srun --label launch/stacks/collect.sh SLURM_JOB_ID=4711 | python3 launch/stacks/group.py

Ranks at the same place are one line. The lines of the fewest ranks come last: those that wait are usually many, and
they usually wait for a single rank. With --stacks, the whole stack of each rank's main thread follows below an empty
line. Exit code 0: all ranks that were found have answered; 1: one runs or sleeps without an answer, or there is none.
Python 3.6 is enough.
"""

import os
import re
import sys

# srun puts the number of a node before each line, as "2: ", because lines of several nodes arrive mixed.
LABEL = re.compile(r"(?: *(\d+): )?(.*)", re.DOTALL)
FACTS = re.compile(r"== rank=(\d+) of=(\d*) host=(\S*) pid=(\d+) parent=(\d*) state=(\S?) wchan=(\S+) name=(.*)")
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*most recent call first")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Code that nobody of the project has written.
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<(?!stdin)|/torchinductor_|/launch/(?:spawn\.py|stacks/)"
)
# Wrappers that stand in stacks between a call and the function that was called.
WRAPPERS = {"wrapper", "inner", "_fn", "decorate_context", "_wrapped_call_impl", "_call_impl"}
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting in the kernel", "Z": "ended"}
STATES.update({"R": "running", "S": "sleeping"})


def main():
    """Print the lines."""
    processes = read(sys.stdin)
    if not processes:
        sys.exit("no rank was found: have they started, and through the scripts in launch/?")
    print(*describe(processes), sep="\n")
    if "--stacks" in sys.argv:
        print(*whole_stacks(processes), sep="\n")
    if any(not process.threads and process.state in "RS" for process in processes):
        sys.exit(1)


class Process:
    """A process of a rank: the rank itself, or one that it has started.

    threads: stacks, each a list of frames (file, line, function), the innermost first. main_thread: the one of them
    that has taken the signal. The kernel prefers a process's main thread.
    """

    def __init__(self, rank, world_size, host, pid, parent, state, wchan, name):
        """Take the facts that collect.sh prints; the stacks are added as they are read."""
        self.rank, self.world_size = int(rank), int(world_size or 0)
        self.host, self.pid, self.parent = host, int(pid), int(parent or 0)
        self.state, self.wchan, self.name = state, wchan, name
        self.threads, self.main_thread = [], []


def read(lines):
    """Return the processes that the lines describe."""
    processes, newest = [], {}  # the newest of each node
    for text in lines:
        node, line = LABEL.match(text).groups()
        facts, thread, frame = FACTS.match(line), THREAD.match(line), FRAME.match(line)
        process = newest.get(node)
        if facts:
            newest[node] = Process(*facts.groups())
            processes.append(newest[node])
        elif process and thread:
            process.threads.append([])
            if thread[1] == "Current thread":
                process.main_thread = process.threads[-1]
        elif process and process.threads and frame:
            process.threads[-1].append((frame[1], int(frame[2]), frame[3]))
    return processes


def describe(processes):
    """Return lines: the ranks, those at the same place together; those without a process; then what ranks started."""
    ranks, others = {}, []  # of the processes of a rank, the one that the others come from
    known = {(process.host, process.pid) for process in processes}
    for process in sorted(processes, key=lambda process: ((process.host, process.parent) in known, process.pid)):
        if process.rank in ranks:
            others.append(process)
        else:
            ranks[process.rank] = process
    lines = grouped(ranks.values(), "rank")
    missing = set(range(max(process.world_size for process in processes))) - set(ranks)
    if missing:
        plural = "s" if len(missing) > 1 else ""
        lines.append(f"rank{plural} {ranges(missing)}: no process was found")
    return lines + grouped(others, "other process of rank")


def whole_stacks(processes):
    """Return, for each process, an empty line, its rank, and the stack of its main thread, innermost frame first."""
    lines = []
    for process in sorted(processes, key=lambda process: (process.rank, process.pid)):
        lines += ["", f"rank {process.rank}, process {process.pid} on {process.host}"]
        lines += [f"    {file}:{line} in {function}" for file, line, function in process.main_thread]
    return lines


def grouped(processes, kind):
    """Return the lines for processes of a kind, the largest group first."""
    groups = {}
    for process in sorted(processes, key=lambda process: process.rank):
        groups.setdefault(place(process), []).append(process)
    lines = []
    for words, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        ranks = {process.rank for process in members}
        hosts = sorted({process.host for process in members})
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes"
        if len(members) > len(ranks):
            where += f" ({len(members)} processes)"
        plural = "s" if len(ranks) > 1 else ""
        lines += [f"{kind}{plural} {ranges(ranks)} on {where}: {words}", *other_threads(members, ranks)]
    return lines


def place(process):
    """Return in words where a process is, by its main thread."""
    if process.threads:
        return in_words(process.main_thread)
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


def is_own(frame):
    """Tell whether a frame is code of the user's project, and no library's."""
    return not LIBRARY.search(frame[0])


def in_words(stack):
    """Return 'fit() in all_reduce(), called from train.py:41 in step()' of a stack, or the like."""
    if not stack:
        return "no Python code"
    own = next((number for number, frame in enumerate(stack) if is_own(frame)), None)
    file, line, function = stack[own or 0]
    at = f"{short(file)}:{line} in {function}" + ("" if function.startswith("<") else "()")
    if not own:  # the innermost frame, or there is no code of the project
        return at
    called = [frame[2] for frame in stack[:own] if frame[2] not in WRAPPERS] or [stack[0][2]]
    inside = f" in {called[0]}()" if called[0] != called[-1] else ""  # fit() may be anywhere, in all_reduce() it is not
    return f"{called[-1]}(){inside}, called from {at}"


def short(path):
    """Return a path as seen from the current folder, if it lies below."""
    from_here = os.path.relpath(path)
    return path if from_here.startswith("..") else from_here


def ranges(numbers):
    """Return numbers as 0-3,7."""
    parts = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


if __name__ == "__main__":
    main()
