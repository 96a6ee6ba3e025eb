"""Samples the nodes of a job every SECONDS, and writes a summary at SIGTERM.

    python3 extras/watch/summary.py --every SECONDS --file FILE JOBID HOST [HOST ...]

hooks.sh starts it beside the ranks. FILE is written only if samples
came. Python 3.6, standard library only.
"""

import argparse
import math
import os
import signal
import sys
from statistics import mean

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from sampling import Sampling

GIB = 1024  # MiB


def main():
    """Measure until SIGTERM, then write the summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("job")
    parser.add_argument("hosts", nargs="+")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    totals, sampling = Totals(), None
    try:
        sampling = Sampling(args.job, args.hosts, [args.every, "while-ranks"], totals.add)
        sampling.asked_one_by_one = True  # no steps for single nodes: a summary may be missing
        sampling.run(until=math.inf)
    finally:
        if totals.lines():
            with open(args.file, "w") as file:
                file.writelines(line + "\n" for line in totals.lines())
        if sampling:
            sampling.stop()


def end(*_):
    """Leave the loop, and write the summary, however often SIGTERM comes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


class Totals:
    """Sums over all samples.

    gpus: for each GPU, by node and index, its uses [%]. gpu_memory, node_memory: the highest use and the total [MiB].
    last: by node and rank, time and CPU time of the last sample. cores: by node and rank, seconds of CPU and elapsed
    seconds.
    """

    def __init__(self):
        """Begin with nothing."""
        self.gpus, self.gpu_memory, self.node_memory, self.last, self.cores = {}, (0, 0), (0, 0), {}, {}

    def add(self, node):
        """Take the newest sample of a node."""
        sample = node.last()
        for index, gpu in enumerate(sample.gpus):
            uses = self.gpus.setdefault((node.name, index), [])
            if gpu.use is not None:
                uses.append(gpu.use)
        memory = [(gpu.used, gpu.total or 0) for gpu in sample.gpus if gpu.used is not None]
        self.gpu_memory = max([self.gpu_memory, *memory])
        self.node_memory = max(self.node_memory, (sample.used or 0, sample.total or 0))
        for rank, (cpu, _) in sample.ranks.items():
            key = (node.name, rank)
            if key in self.last:
                used, seconds = self.cores.get(key, (0.0, 0.0))
                # Less than before: a process of the rank has ended, as a worker of a data loader.
                more = max(0.0, cpu - self.last[key][1])
                self.cores[key] = (used + more, seconds + sample.time - self.last[key][0])
            self.last[key] = (sample.time, cpu)

    def lines(self):
        """Return the summary in words; nothing if too little was measured."""
        uses = {gpu: mean(values) for gpu, values in self.gpus.items() if values}
        if uses:
            (node, index), least = min(uses.items(), key=lambda item: item[1])
            words = f"GPUs: on average {mean(uses.values()):.0f} % in use"
            if len(uses) > 1:
                words += f" (least: {least:.0f} %, GPU {index} of {node})"
            return [words + (f", memory {at_most(self.gpu_memory)}" if self.gpu_memory[0] else "")]
        cores = [used / seconds for used, seconds in self.cores.values() if seconds > 0]
        if not cores:
            return []
        return [f"CPUs: a rank used {mean(cores):.2f} cores on average, memory of a node {at_most(self.node_memory)}"]


def at_most(memory):
    """Return the highest use and the total [MiB] in words."""
    return f"at most {memory[0] / GIB:.1f} of {memory[1] / GIB:.1f} GiB"


if __name__ == "__main__":
    main()
