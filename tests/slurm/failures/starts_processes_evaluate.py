"""What starts_processes.py imports."""

import time

import torch.multiprocessing


def evaluate(number):
    if number == 1:
        raise LookupError("no reference translation for sentence 204")
    time.sleep(600)


def evaluate_in_parallel():
    torch.multiprocessing.spawn(evaluate, nprocs=2)
