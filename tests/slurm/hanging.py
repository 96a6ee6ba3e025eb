"""Four ranks that add up numbers, and then rank 1 does something else: the program of test_hangs.py.

hanging.py WAY TIMEOUT      a function of this file, without "()"; the timeout of collectives [s]
"""

import itertools
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

NUMBERS = torch.ones(1024)


def step():
    dist.all_reduce(NUMBERS)


def sleeps():
    time.sleep(100_000)


def reads_from_a_pipe_that_nobody_fills():
    os.read(os.pipe()[0], 1)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def spins_in_c():
    all(itertools.repeat(True))  # keeps the lock of the interpreter


def worker(sample):
    time.sleep(100_000)


def waits_for_a_data_loader():
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return worker(index)

    next(iter(torch.utils.data.DataLoader(Samples(), num_workers=1)))


def wants_a_lock(first, second):
    with first:
        time.sleep(1)
        with second:
            pass


def waits_for_threads_that_wait_for_each_other():
    one, other = threading.Lock(), threading.Lock()
    thread = threading.Thread(target=wants_a_lock, args=(one, other))
    thread.start()
    wants_a_lock(other, one)


def skips_a_collective():
    pass


def calls_another_collective():
    dist.broadcast(NUMBERS, 1)


def has_another_shape():
    dist.all_reduce(torch.ones(7))


def has_another_type():
    dist.all_reduce(NUMBERS.double())


def returns_early():
    sys.exit()


def waits_in_a_smaller_group():
    """Rank 1 waits for rank 3 in a group of theirs, and rank 3 sleeps: ranks 0 and 2 wait for both."""
    if RANK == 3:
        sleeps()
    dist.all_reduce(NUMBERS, group=PAIR)


if __name__ == "__main__":
    way, timeout = globals()[sys.argv[1]], timedelta(seconds=int(sys.argv[2]))
    dist.init_process_group("gloo", timeout=timeout)
    RANK = dist.get_rank()
    PAIR = dist.new_group([1, 3], timeout=timeout)
    for _ in range(3):
        step()
    if RANK == 1 or (RANK == 3 and way is waits_in_a_smaller_group):
        way()
    else:
        step()
    dist.barrier()
