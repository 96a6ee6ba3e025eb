"""Ranks whose second all-reduce never ends, until its timeout. steps.py starts them, with the folder for their marks.

With several ranks, rank 1 stays away from it. A rank alone has nobody to wait for: on a GPU, a kernel that computes for
long stands before the all-reduce in the queue. So the all-reduce is under way, and does not begin.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = 20  # seconds; the harness asks for stacks before it
FOREVER = 150  # seconds: longer than timeout and dump take
# Seconds that a kernel keeps the GPU busy: longer than the timeout. The end of the process may have to wait for it.
BUSY = 40
CLOCK_RATE = 2e9  # cycles per second; GPUs have about as many


def main() -> None:
    """Enter the all-reduce, or stay away from it."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=TIMEOUT))
    numbers = torch.ones(1024, device=device)
    dist.all_reduce(numbers)
    numbers.sum().item()  # waits for the first one
    if dist.get_world_size() == 1:
        torch.cuda._sleep(int(BUSY * CLOCK_RATE))
    leave_mark()
    if dist.get_rank() == 1:
        stay_away()
    enter(numbers)


def leave_mark() -> None:
    """Tell the harness that this rank is about to enter, or to stay away."""
    Path(sys.argv[1], f"entered-{dist.get_rank()}").touch()


def stay_away() -> None:
    """Do something else."""
    time.sleep(FOREVER)


def enter(numbers: torch.Tensor) -> None:
    """Wait in the second all-reduce."""
    dist.all_reduce(numbers)
    numbers.sum().item()
    print("the all-reduce has ended", flush=True)


if __name__ == "__main__":
    main()
