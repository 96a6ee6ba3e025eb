"""Rank 2 prepares its data in a pool of processes, one of which raises."""

import concurrent.futures
import os
import time

import startup


def tokenize(document):
    if document == 7:
        raise UnicodeError("document 7 is not UTF-8")
    return [document]


if __name__ == "__main__":
    if os.environ["RANK"] == "2":
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            print(list(pool.map(tokenize, range(9))))
    time.sleep(600)
