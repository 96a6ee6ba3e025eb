"""Rank 2 raises in a function that torch records, as programs of large projects do."""

import os
import time

import startup
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "2":
        raise ValueError("dataset has 0 samples after the filter")
    time.sleep(600)


main()
