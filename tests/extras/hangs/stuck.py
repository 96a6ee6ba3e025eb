"""Ranks that wait for ever, each in its own way: the program of test_stacks.py. hanging.py has more ways."""

import itertools
import os
import signal
import socket
import sys
import threading
import time

RANK = int(os.environ["RANK"])


def sleeps():
    time.sleep(100_000)


def reads_from_a_pipe_that_stays_empty():
    os.read(os.pipe()[0], 1)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def spins_in_c():
    all(itertools.repeat(True))  # keeps the lock of the interpreter


def worker(sample):
    time.sleep(100_000)


def waits_for_a_data_loader():
    import torch

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


def waits_for_the_others():
    listener = socket.create_server(("", 0))
    listener.accept()


WAYS = [
    waits_for_the_others,
    sleeps,
    reads_from_a_pipe_that_stays_empty,
    is_stopped,
    spins_in_c,
    waits_for_a_data_loader,
    waits_for_threads_that_wait_for_each_other,
    waits_for_the_others,
]

if __name__ == "__main__":
    print("rank", RANK, "is on its way", flush=True)
    WAYS[RANK]()
    sys.exit("it came back")
