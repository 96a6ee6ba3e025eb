"""Measures from time to time what the nodes of a job do, and sums it up when it is told to end (SIGTERM).

    python3 slurm/watch/summary.py --every SECONDS --file FILE JOBID HOST [HOST ...]

The submit script starts it beside the ranks (start_measuring in slurm/lib.sh). FILE is written at the end, if there is
something to sum up. Python 3.6, standard library only.
"""

import argparse
import math
import signal
import sys
from statistics import mean

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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    totals, sampling = Totals(), None
    try:
        sampling = Sampling(args.job, args.hosts, [args.every], totals.add)
        sampling.asked_one_by_one = True  # without an answer there is no summary
        sampling.run(until=math.inf)
    finally:
        if totals.lines():
            with open(args.file, "w") as file:
                file.writelines(line + "\n" for line in totals.lines())
        if sampling:
            sampling.stop()


class Totals:
    """What all samples together have told.

    gpus: for each GPU, by node and index, its uses [%]. memory: the highest use and the total [MiB] of a GPU's memory,
    else of a node's. first, last: by node and rank, time and CPU time [s] of the first and last sample.
    """

    def __init__(self):
        """Begin with nothing."""
        self.gpus, self.memory, self.first, self.last = {}, (0, 0), {}, {}

    def add(self, node):
        """Take the newest sample of a node."""
        sample = node.last()
        for index, gpu in enumerate(sample.gpus):
            uses = self.gpus.setdefault((node.name, index), [])
            if gpu.use is not None:
                uses.append(gpu.use)
        memory = [(gpu.used, gpu.total or 0) for gpu in sample.gpus if gpu.used is not None]
        if not sample.gpus and sample.used is not None:
            memory = [(sample.used, sample.total)]
        self.memory = max([self.memory, *memory])
        for rank, (cpu, _) in sample.ranks.items():
            self.first.setdefault((node.name, rank), (sample.time, cpu))
            self.last[node.name, rank] = (sample.time, cpu)

    def lines(self):
        """Return the summary in words; nothing without two samples."""
        used = f"at most {self.memory[0] / GIB:.1f} of {self.memory[1] / GIB:.1f} GiB"
        uses = {gpu: mean(values) for gpu, values in self.gpus.items() if values}
        if uses:
            (node, index), least = min(uses.items(), key=lambda item: item[1])
            words = f"GPUs: on average {mean(uses.values()):.0f} % in use"
            if len(uses) > 1:
                words += f" (least: {least:.0f} %, GPU {index} of {node})"
            return [f"{words}, memory {used}"]
        cores = [
            (self.last[key][1] - cpu) / (self.last[key][0] - begin)
            for key, (begin, cpu) in self.first.items()
            if self.last[key][0] > begin
        ]
        return [f"CPUs: a rank used {mean(cores):.2f} cores on average, memory of a node {used}"] if cores else []


if __name__ == "__main__":
    main()
