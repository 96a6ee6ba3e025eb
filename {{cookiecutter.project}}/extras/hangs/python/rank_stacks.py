"""A rank tells at which line it is, and goes on: extras/hangs/collect.sh asks with two signals, and reads the answers.

On signal 60 Python's faulthandler writes the Python stacks of all threads, even while one sleeps or computes in C. On
signal 61 a thread of this module writes the newest collectives, from torch's flight recorder (rank_collectives.py).

The answers go to a file in memory, or a deleted one where Python was built for an old Linux. Others see it as a link,
/proc/PID/fd/N -> /memfd:stacks-of-rank-3-of-8 (deleted), also from outside of a container. It ends with the process.
"""

import _thread
import atexit
import faulthandler
import os
import signal
import sys
import warnings

import rank_collectives

# Real-time signals have no names. Libraries that want some take the first ones, from 34 on.
STACKS_SIGNAL, COLLECTIVES_SIGNAL = 60, 61


def start():
    """Have this process, a rank, answer from now on. Processes that it forks, as data loaders do, tell their stacks."""
    if sys.platform != "linux":
        return
    name = f"stacks-of-rank-{os.environ['RANK']}-of-{os.environ.get('WORLD_SIZE', '')}"
    file = new_file_for_stacks(name)
    start_thread_for_collectives(file)

    def take_another_file():
        nonlocal file
        signal.signal(COLLECTIVES_SIGNAL, signal.SIG_IGN)  # the thread stays behind in the rank
        file, old = new_file_for_stacks(name), file
        os.close(old)

    os.register_at_fork(after_in_child=take_another_file)
    atexit.register(rank_collectives.tell_of_failure)
    rank_collectives.prepare()


def new_file_for_stacks(name):
    """Make the file, have faulthandler write to it on STACKS_SIGNAL, and return its descriptor."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
    else:
        import tempfile

        file, path = tempfile.mkstemp(prefix=name + ".")
        os.unlink(path)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    return file


def start_thread_for_collectives(file):
    """Start a thread that writes to the file on COLLECTIVES_SIGNAL.

    A handler in Python would not do: it has to wait until the main thread comes back from C. All threads block the
    signal, also those that are started later, so that it reaches the thread that waits for it. Where a library unblocks
    it, an empty handler keeps it from ending the process.
    """

    def answer():
        while True:
            signal.sigwait({COLLECTIVES_SIGNAL})
            try:
                os.write(file, rank_collectives.answer().encode(errors="replace"))
            except OSError:  # the program has closed all files that it does not know
                return

    signal.signal(COLLECTIVES_SIGNAL, lambda *_: None)
    # The new thread begins with all signals blocked: those for the program are for its own threads.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Python 3.12 would warn each program that forks: the thread is harmless there, as it only waits.
    warnings.filterwarnings("ignore", r"This process .* is multi-threaded, use of fork", DeprecationWarning)
    try:
        _thread.start_new_thread(answer, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before | {COLLECTIVES_SIGNAL})
