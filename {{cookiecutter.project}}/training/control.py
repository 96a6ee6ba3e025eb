"""When the run has to save or to stop before it is done, and how all ranks come to know."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import distributed
import torch
from stop import Stop

CHECK_SECONDS = 5.0  # at most this long, or one step, a request to stop goes unnoticed


class Control:
    """Tells all ranks after the same step that the run has to save or to stop.

    No rank may decide by itself: the others would wait for it in the next step. So the ranks ask each other, after
    every `--log-every`-th step, and every CHECK_SECONDS where steps are slow.
    """

    def __init__(
        self, args: argparse.Namespace, first_step: int, device: torch.device, rank: int = 0, world_size: int = 1
    ) -> None:
        """Listen for requests from now on. SIGTERM, SIGUSR1 and SIGUSR2 are requests, and do not end the process."""
        self.args, self.device, self.world_size = args, device, world_size
        self.stop = Stop(rank)
        self.checked_step = first_step
        self.next_check = first_step + 1
        self.checked_at = self.saved_at = time.monotonic()

    def request(self, step: int) -> str:
        """Return "stop", "save", or "" for neither: the same on all ranks. After the last step there is no request."""
        if step < self.next_check:
            return ""
        now = time.monotonic()
        overdue = now - self.saved_at > 60 * (self.args.save_minutes or math.inf)
        seconds_per_step = (now - self.checked_at) / (step - self.checked_step)
        answers = torch.tensor([self.stop.asked(), overdue, seconds_per_step], dtype=torch.float64, device=self.device)
        asked_to_stop, overdue, seconds_per_step = (distributed.sum_over_ranks(answers) / self.world_size).tolist()

        self.checked_step, self.checked_at = step, now
        steps_until_check = max(1, int(CHECK_SECONDS / max(seconds_per_step, 1e-9)))
        steps_until_log = self.args.log_every - step % self.args.log_every
        self.next_check = min(step + steps_until_check, step + steps_until_log, self.args.steps)
        if step == self.args.steps:
            return ""
        if asked_to_stop:
            return "stop"
        return "save" if overdue else ""

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let ranks wait for a checkpoint that is being written. Otherwise stop.py ends a rank 15 s after SIGTERM."""
        self.stop.saving = True
        try:
            yield
        finally:
            self.stop.saving = False
        self.saved_at = time.monotonic()

    def requeue(self) -> None:
        """Tell the submit script that all is saved and that there is more to do, by the file REQUEUE_FILE."""
        self.stop.obey()
