"""Asks a program to save and end early: by a file, a signal or the clock. Copy this file into any program.

    stop = Stop()                              # once the ranks have joined, in the main thread
    loader = DataLoader(data, num_workers=8, worker_init_fn=ignore_signals)
    for batch in loader:
        train_step(batch)
        if stop.requested():                   # the same answer on all ranks, so they leave the loop together
            save()
            stop.requeue()                     # there is more to do: the job goes back into the queue
            break

The submit script sets the variables STOP_FILE, STOP_TIME and REQUEUE_FILE. Without them, a signal alone asks.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

# SIGTERM: scancel, or a preemption. SIGUSR1, SIGUSR2: the warning of a scheduler that signals each process.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
CHECK_SECONDS = 1.0  # between two exchanges of the ranks; if a step takes longer, they exchange after every step
MOST_STEPS = 100  # from one exchange to the next, in case that steps become slower


class Stop:
    """Notes that this run has to save and end."""

    def __init__(self) -> None:
        """Listen to the signals from now on. They no longer end this process."""
        self.signalled = self.stopping = False
        for number in SIGNALS:
            signal.signal(number, self._note)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.step, self.next_check = 0, 1
        self.longest_step, self.last_call = 0.0, time.monotonic()

    def requested(self) -> bool:
        """Return whether to save and end now. All ranks call this after each step, and get the same answer.

        No rank decides alone: the others would wait for it in the next step. So the ranks exchange their answers, about
        once in CHECK_SECONDS. They also exchange how long their longest step took, and so agree on the step of the next
        exchange. The longest, and not the mean: slow and quick steps may alternate. Each step forgets a tenth of it.
        """
        if self.stopping:  # the loops of a program may be nested
            return True
        now = time.monotonic()
        self.longest_step, self.last_call = max(now - self.last_call, 0.9 * self.longest_step), now
        self.step += 1
        if self.step < self.next_check:
            return False
        answers = torch.tensor([float(self._asked()), self.longest_step], dtype=torch.float64)
        if dist.is_initialized():
            if dist.get_backend() == "nccl":  # which exchanges tensors of the GPU alone
                answers = answers.cuda()
            dist.all_reduce(answers, dist.ReduceOp.MAX)
        asked, seconds = answers.tolist()
        self.next_check = self.step + min(max(int(CHECK_SECONDS / max(seconds, 1e-9)), 1), MOST_STEPS)
        self.stopping = asked > 0
        return self.stopping

    def requeue(self) -> None:
        """Tell the submit script that all is saved and that there is more to do."""
        if self.rank == 0 and os.environ.get("REQUEUE_FILE"):
            Path(os.environ["REQUEUE_FILE"]).touch()

    def _asked(self) -> bool:
        """Return whether this rank has been asked. Rank 0 alone looks for the file, which many ranks may share."""
        is_late = time.time() >= float(os.environ.get("STOP_TIME") or "inf")
        return self.signalled or is_late or (self.rank == 0 and os.path.exists(os.environ.get("STOP_FILE", "")))

    def _note(self, *_: object) -> None:
        self.signalled = True


def ignore_signals(_worker: int = 0) -> None:
    """Let a process that reads data live on after these signals: for worker_init_fn of a DataLoader.

    scancel and a preemption signal all processes of a job. If a worker dies of it, the DataLoader fails in its rank,
    before the rank has saved (KempnerForge, issue 177; tried on 2026-11-26). At its end the rank waits for its workers.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
