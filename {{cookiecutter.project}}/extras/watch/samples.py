"""Parses the lines of extras/watch/node.sh, and finds idle ranks and slow nodes.

screen.py and summary.py, beside this file, import it. Python 3.6, standard library only.
"""

import re
from collections import deque
from statistics import mean, median

from words import shortened

WINDOW = 30.0  # seconds over which use is averaged
IDLE_CORES = 0.02  # a rank that uses less than this part of a core is idle
GPU_POINTS = 20  # a node is named if its mean GPU use is so many percentage points below the others'
CPU_PART = 0.7  # a node is named if its ranks use less than this part of the others' cores

# srun puts the number of its task before each line: lines of several nodes arrive mixed.
LABEL = re.compile(r" *(\d+): (.*)", re.DOTALL)


class Gpu:
    """A GPU at one moment: use [%], used and total memory [MiB], power [W]; None: the command prints none."""

    def __init__(self, use, used, total, power):
        """Take numbers, or text of which "[N/A]" and the like stand for None."""
        self.use, self.used, self.total, self.power = map(number, (use, used, total, power))


class Sample:
    """A node at one moment.

    time: of the node's own clock [s]. load: the load average of one minute. used, total: its memory [MiB].
    ranks: by rank, CPU time so far and how long it has printed nothing [s]; the latter None if that is not known.
    """

    def __init__(self):
        """Begin with nothing."""
        self.time = self.load = self.used = self.total = None
        self.gpus, self.ranks, self.metrics = [], {}, []


class Node:
    """The samples of a node in the last WINDOW seconds, the newest last, and when the last one came [s]."""

    def __init__(self, name):
        """Begin without a sample."""
        self.name, self.samples, self.heard = name, deque(), None

    def add(self, sample, now):
        """Take a new sample, and forget samples older than WINDOW."""
        self.samples.append(sample)
        self.heard = now
        while len(self.samples) > 2 and self.samples[1].time <= sample.time - WINDOW:
            self.samples.popleft()

    def last(self):
        """Return the newest sample, None before the first."""
        return self.samples[-1] if self.samples else None

    def cores(self):
        """Return how many cores each rank has used on average, by rank."""
        used, seconds = {}, {}
        samples = list(self.samples)
        for index, after in enumerate(samples[1:]):
            before = samples[index]
            for rank in set(before.ranks) & set(after.ranks):
                # Less than before: a process of the rank has ended, as a worker of a data loader.
                more = max(0.0, after.ranks[rank][0] - before.ranks[rank][0])
                used[rank] = used.get(rank, 0.0) + more
                seconds[rank] = seconds.get(rank, 0.0) + after.time - before.time
        return {rank: used[rank] / seconds[rank] for rank in sorted(used) if seconds[rank] > 0}

    def gpu_use(self):
        """Return the mean use of each GPU [%], None where it is not known."""
        # The vendor's command may have failed once.
        of_all = zip(*([gpu.use for gpu in sample.gpus] for sample in self.samples if sample.gpus))
        return [None if None in uses else mean(uses) for uses in of_all]

    def gpu_of(self, rank):
        """Return the index of a rank's GPU, or None: ranks and GPUs are in the same order if there is one for each."""
        ranks = sorted(self.last().ranks)
        return ranks.index(rank) if len(ranks) == len(self.last().gpus) else None


class Reader:
    """Makes samples of the lines of one step, and gives them to their nodes."""

    def __init__(self, nodes):
        """nodes: by name; those that are missing are added."""
        self.nodes, self.begun = nodes, {}

    def add(self, line, now):
        """Take a line; return the node whose sample is whole now, else None. Lines of other programs are left out."""
        label, text = LABEL.fullmatch(line).groups() if LABEL.fullmatch(line) else ("", line)
        kind, _, rest = text.partition(" ")
        if kind == "node":
            facts = dict(re.findall(r"(\w+)=(\S*)", rest))
            sample = Sample()
            sample.load, sample.used, sample.total = (number(facts.get(name)) for name in ("load", "used", "total"))
            self.begun[label] = (facts.get("host", "?"), sample, [])
        elif label in self.begun:
            name, sample, columns = self.begun[label]
            if kind == "end":
                sample.time = number(rest)
                del self.begun[label]
                node = self.nodes.setdefault(name, Node(name))
                node.add(sample, now)
                return node
            take(sample, columns, kind, rest)
        return None


def take(sample, columns, kind, rest):
    """Add a line of node.sh to a sample. columns: the titles of rocm-smi's table, from its header."""
    if kind == "rank":
        facts = re.fullmatch(r"(\d+) cpu=([\d.]+) silent=(\d*)", rest)
        if facts:
            sample.ranks[int(facts.group(1))] = (float(facts.group(2)), number(facts.group(3)))
    elif kind == "metrics":
        sample.metrics.append(rest)
    elif kind == "nvidia":
        fields = [field.strip() for field in rest.split(",")]
        if len(fields) == 5:
            sample.gpus.append(Gpu(*fields[1:]))
    elif kind == "amd" and rest.startswith("device"):
        columns[:] = rest.split(",")
    elif kind == "amd":
        facts = dict(zip(columns, rest.split(",")))
        gpu = Gpu(facts.get("GPU use (%)"), None, None, None)
        used, total = (number(facts.get(f"VRAM Total {name}Memory (B)")) for name in ("Used ", ""))
        gpu.used, gpu.total = (value and value / 2**20 for value in (used, total))
        sample.gpus.append(gpu)


def number(text):
    """Return text as a number; None if it is no number, as "[N/A]" and ""."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def remarks(nodes):
    """Return a line for idle ranks, and a line for each node that does less than the others."""
    nodes = [node for node in nodes if node.last()]
    return idle_ranks(nodes) + slow_nodes(nodes)


def idle_ranks(nodes):
    """Return a line for the ranks that have used neither CPU nor GPU."""
    idle, busy = [], 0
    for node in nodes:
        use = node.gpu_use()
        for rank, cores in node.cores().items():
            gpu = node.gpu_of(rank)
            # If the rank's GPU is not known, those of its node count.
            of_gpu = use[gpu] if gpu is not None and gpu < len(use) else any(use)
            if cores >= IDLE_CORES or of_gpu:
                busy += 1
            else:
                where = node.name if gpu is None else f"GPU {gpu} of {node.name}"
                idle.append(f"{rank} ({where})")
    if idle and not busy and not any(use for node in nodes for use in node.gpu_use()):
        return ["no rank computes: the job hangs, or all ranks wait for data"]
    if idle:
        return [f"idle: rank {shortened(idle)}"] if len(idle) == 1 else [f"idle: ranks {shortened(idle)}"]
    return idle_gpus(nodes)


def idle_gpus(nodes):
    """Return a line for GPUs that no rank uses, if others are used."""
    use = {f"GPU {index} of {node.name}": use for node in nodes for index, use in enumerate(node.gpu_use())}
    idle = [name for name, value in use.items() if value == 0]
    return [f"idle: {shortened(idle)}"] if idle and any(use.values()) else []


def slow_nodes(nodes):
    """Return a line for each node that does less than the median of the others: of its GPUs, else of its cores."""
    gpus = {node.name: mean(use) for node, use in ((node, node.gpu_use()) for node in nodes) if use and None not in use}
    cores = {node.name: sum(node.cores().values()) for node in nodes if node.cores()}
    lines = []
    for what, values in (("GPU use", gpus), ("cores in use", cores)):
        for name, value in sorted(values.items()):
            others = [other for node, other in values.items() if node != name]
            usual = median(others) if others else 0
            if what == "GPU use" and value < usual - GPU_POINTS:
                lines.append(f"unequal: {name} uses its GPUs to {value:.0f} %, the other nodes to {usual:.0f} %")
            elif what != "GPU use" and not gpus and value < usual * CPU_PART:
                lines.append(f"unequal: the ranks on {name} use {value:.1f} cores, those on other nodes {usual:.1f}")
    return lines if len(lines) <= 5 else [*lines[:5], f"unequal: {len(lines) - 5} more nodes"]
