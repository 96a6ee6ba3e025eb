"""On signal 60 a rank writes the stacks of its threads, and goes on. launch/stacks/collect.sh sends it, and reads them.

The stacks go to a file without a name: in memory, or a deleted one where Python was built for an old Linux. Others find
it as a link, /proc/PID/fd/N -> …stacks-of-rank-3-of-8…, also from outside of a container, and it goes with the process.
Python's faulthandler writes them, even while the process sleeps or computes in C.
"""

import faulthandler
import os
import sys
import tempfile

# Not one of the signals with a name, nor one of the first real-time signals (34 and above), which libraries take.
SIGNAL = 60


def start():
    """Begin in this process, a rank, and in each that it forks, as data loaders do: they get files of their own."""
    if sys.platform != "linux":
        return
    name = f"stacks-of-rank-{os.environ['RANK']}-of-{os.environ.get('WORLD_SIZE', '')}"
    file = write_stacks_to_new_file(name)

    def take_another_file():
        nonlocal file
        file, old = write_stacks_to_new_file(name), file
        os.close(old)

    os.register_at_fork(after_in_child=take_another_file)


def write_stacks_to_new_file(name):
    """Make the file, have faulthandler write to it on SIGNAL, and return its number."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
    else:
        file, path = tempfile.mkstemp(prefix=name + ".")
        os.unlink(path)
    faulthandler.register(SIGNAL, file=file, all_threads=True)
    return file
