"""Rank 0 starts processes of its own by torch.multiprocessing, of which one fails."""

import os
import time

import startup
from torch.multiprocessing import start_processes


def evaluate(number):
    if number == 1:
        raise LookupError("no reference translation for sentence 204")
    time.sleep(600)


if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        start_processes(evaluate, nprocs=2)
    time.sleep(600)
