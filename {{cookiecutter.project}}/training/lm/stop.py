"""When a run has to end before it is done: it is asked by a file, a signal or the clock. For any program.

    stop = Stop(rank)                              # once, before the first step
    ...
    # after the first step, and then every few seconds, on all ranks after the same step
    asked = torch.tensor(float(stop.asked()), device=device)
    dist.all_reduce(asked)                         # if one has heard of it, all end here: the others would wait for it
    if asked:
        stop.saving = True                         # now SIGTERM does not end a rank that waits for the one that writes
        save()
        stop.obey()                                # there is more to do: the job goes back into the queue
        sys.exit(0)

The submit script for Slurm sets STOP_FILE, STOP_TIME, REQUEUE_FILE, TIMES_FILE and START_TIME. Without them only a
signal asks a run to stop. Rank 0 writes into TIMES_FILE how long three things took, in seconds:

    start 50    from START_TIME to the first call of asked(), after the first step
    look 5      the longest time between two calls of asked()
    save 3      from the last call of asked() to obey()

From these the submit script knows how early it has to ask the next attempts of the job.
"""

import math
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

# SIGTERM: a preemption, or scancel. SIGUSR1, SIGUSR2: the warning of a scheduler that signals each process.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Seconds that a rank has to notice SIGTERM. After them it probably waits in a collective for a dead rank, and is ended.
STUCK = 15


class Stop:
    """Notes that the run shall end.

    No single way of asking is sure: few launchers pass on every signal, and only a submit script sets file and time.
    """

    def __init__(self, rank: int) -> None:
        """Listen from now on; rank 0 also looks for the file. In the main thread only."""
        self.rank, self.signalled, self.saving = rank, False, False
        self.file, self.time = os.environ.get("STOP_FILE", ""), float(os.environ.get("STOP_TIME") or "inf")
        self.times, self.last = {}, float(os.environ.get("START_TIME") or time.time())
        for number in SIGNALS:
            signal.signal(number, self._note)
        # Python calls _note when the main thread is back in Python, and a collective with a dead rank may never return.
        # The pipe gets its byte at once, and a thread reads it.
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        threading.Thread(target=self._end_if_stuck, args=(source,), daemon=True).start()
        os.register_at_fork(after_in_child=self._forget)  # a signal ends data loader workers

    def asked(self) -> bool:
        """Return whether this rank has been asked to stop; looks at the disk, so not after every millisecond."""
        self._measure("look" if self.times else "start")
        return self.signalled or time.time() >= self.time or (self.rank == 0 and os.path.exists(self.file))

    def obey(self) -> None:
        """Tell the submit script that all is saved, and that there is more to do."""
        if self.rank == 0 and "REQUEUE_FILE" in os.environ:
            self._measure("save")
            Path(os.environ["REQUEUE_FILE"]).touch()

    def _measure(self, what: str) -> None:
        """Write the seconds since the last measurement into TIMES_FILE, if `what` has never taken longer."""
        seconds, self.last = math.ceil(max(0.0, time.time() - self.last)), time.time()
        if seconds <= self.times.get(what, -1):
            return
        self.times[what] = seconds
        if self.rank == 0 and os.environ.get("TIMES_FILE"):
            file = Path(os.environ["TIMES_FILE"])
            with suppress(OSError):  # a full disk is no reason to end the run
                file.with_suffix(".part").write_text("".join(f"{name} {n}\n" for name, n in self.times.items()))
                file.with_suffix(".part").replace(file)

    def _note(self, *_: object) -> None:
        self.signalled = True

    def _end_if_stuck(self, source: int) -> None:
        while number := os.read(source, 1):
            if number[0] == signal.SIGTERM:
                time.sleep(STUCK)
                if not (self.signalled or self.saving):  # while one rank writes, the others wait inside a collective
                    os._exit(128 + signal.SIGTERM)

    @staticmethod
    def _forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
