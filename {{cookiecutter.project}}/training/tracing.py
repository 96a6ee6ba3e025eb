"""A timeline of a few steps: which operation ran when, on the CPU and on the GPU.

    python training/train_single.py --profile 5:8        records the steps 5, 6, 7 and 8

Each rank of --profile-ranks writes a trace to --out, for example trace-rank0-steps5-8.json.gz. Open it in Perfetto,
https://ui.perfetto.dev. Without --profile nothing is recorded.

A step's slice begins when its batch is there, and ends where the next step's begins. So the evaluation and the
checkpoint after a step are in its slice, and so is the wait for the next batch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import distributed
import torch
from metrics import Metrics
from torch.profiler import ProfilerActivity, profile, record_function


class Profiler:
    """Records the steps of --profile with torch.profiler, on the ranks of --profile-ranks."""

    def __init__(self, args: argparse.Namespace, metrics: Metrics) -> None:
        """Take from `metrics` this rank, its device, the step after which the run begins, and how to print.

        Says so if the run begins too late to record these steps.
        """
        self.rank, self.world_size, self.device = metrics.rank, metrics.world_size, metrics.device
        self.say = metrics.say
        self.folder, self.ranks = Path(args.out), args.profile_ranks
        self.first, self.last = args.profile or (0, 0)  # steps are counted from 1: no step is between 0 and 0
        self.step = 0  # the step of --profile that runs now; 0: none does
        self.profiler = None  # on a rank that records
        if 0 < self.first <= metrics.first_step:
            begin = f"step {self.first} is over, this run begins at step {metrics.first_step + 1}"
            self.say(f"profile no trace of the steps {self.first} to {self.last}: {begin}")
            self.first = self.last = 0

    def begin(self, step: int) -> None:
        """Record this step, if it is one of --profile. Call it first in each step: the step before ends here."""
        if 0 < self.step == self.last:
            self.finish()
        if step == self.first:
            self._start_recording()
        if self.first <= step <= self.last:
            self._end_slice()
            self._begin_slice(step)

    def finish(self) -> None:
        """Write what was recorded. A run that is stopped before the last step of --profile has a shorter trace.

        All ranks have to call: rank 0 prints the names of the traces that were written.
        """
        if self.step == 0:
            return
        last = self.step
        self._end_slice()
        is_written = False
        if self.profiler:
            self.profiler.stop()  # waits for the GPU
            is_written = self._write(self._path(str(self.rank), last))
            self.profiler = None
        has_trace = torch.zeros(self.world_size)  # 1 for each rank that has written one
        has_trace[self.rank] = is_written
        written = [str(rank) for rank in distributed.sum_over_ranks(has_trace).nonzero().flatten().tolist()]
        if written:
            ranks = written[0] if len(written) == 1 else "{" + ",".join(written) + "}"  # a shell expands {0,1}
            self.say(f"profile {self._path(ranks, last)}: open it in https://ui.perfetto.dev")

    def _path(self, ranks: str, last: int) -> Path:
        return self.folder / f"trace-rank{ranks}-steps{self.first}-{last}.json.gz"

    def _start_recording(self) -> None:
        if self.rank not in self.ranks:
            return
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(self.device)  # or the GPU's work for the step before would be recorded too
        # record_shapes=True adds the shapes of tensors, with_stack=True the lines of Python. Both cost time and memory.
        self.profiler = profile(activities=activities, record_shapes=False, with_stack=False)
        self.profiler.start()

    def _begin_slice(self, step: int) -> None:
        """Name the step on the timeline. ProfilerStep#N is the name by which other tools know a step."""
        self.slice = record_function(f"ProfilerStep#{step}")
        self.slice.__enter__()
        self.step = step

    def _end_slice(self) -> None:
        if self.step:
            self.slice.__exit__(None, None, None)
        self.step = 0

    def _write(self, path: Path) -> bool:
        """Write the trace, and return whether that went well. If not, the run goes on without it."""
        temporary = path.with_name(f".{path.name}")
        try:
            self.profiler.export_chrome_trace(str(temporary))
            os.replace(temporary, path)  # a trace with this name is whole
            return True
        except (OSError, RuntimeError) as error:
            temporary.unlink(missing_ok=True)
            print(f"warning: rank {self.rank} has no trace {path}: {error}", file=sys.stderr)
            return False
