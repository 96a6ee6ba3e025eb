"""Four ranks that add up numbers, and then rank 1 does something else: the program of test_hangs.py, beside stuck.py.

hanging.py WAY TIMEOUT      a function of this file or of stuck.py, without "()"; the timeout of collectives [s]
"""

import sys
from datetime import timedelta

import stuck
import torch
import torch.distributed as dist

NUMBERS = torch.ones(1024)


def step():
    dist.all_reduce(NUMBERS)


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
        stuck.sleeps()
    dist.all_reduce(NUMBERS, group=PAIR)


if __name__ == "__main__":
    name, timeout = sys.argv[1], timedelta(seconds=int(sys.argv[2]))
    way = globals().get(name) or getattr(stuck, name)
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
