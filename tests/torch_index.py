"""Prints pip's option for PyTorch's index of CPU wheels, or nothing where pip's own index has to do.

For Linux on x86-64 pip's own index has torch for CUDA alone, gigabytes of it with its libraries; the CPU wheels have an
index of their own (https://pytorch.org/get-started/locally/, 2026-11-22). They are enough where there is no NVIDIA GPU.
Where their index does not answer, pip is told nothing of it. The Makefile takes what is printed for PIP_ARGS.
"""

from __future__ import annotations

import os
import subprocess
import threading
from http.client import HTTPException
from urllib.request import Request, urlopen

INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
ANSWER = 5.0  # seconds for the index, the resolution of its name included
LISTING = 30.0  # seconds for nvidia-smi, which wakes the GPUs first


def has_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LISTING, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU " in done.stdout


def answers(index: str) -> bool:
    """Whether the index has a page for torch, and sends its head in time."""
    answered = []

    def ask() -> None:
        try:
            with urlopen(Request(f"{index}/torch/", method="HEAD"), timeout=ANSWER):
                answered.append(index)
        except (OSError, HTTPException, ValueError):
            pass

    # In a thread, because urlopen's timeout does not count the resolution of the name. It ends with this process.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER)
    return bool(answered)


if __name__ == "__main__" and not has_gpu() and answers(INDEX):
    print(f"--extra-index-url {INDEX}")
