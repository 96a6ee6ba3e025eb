"""Rank 0 evaluates in processes of its own, started by torch.multiprocessing, of which one fails."""

import os
import time

import starts_processes_evaluate
import startup

if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        starts_processes_evaluate.evaluate_in_parallel()
    time.sleep(600)
