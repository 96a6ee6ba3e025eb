"""How a run begins and ends: the ranks join, choose a precision, report an error and leave.

A rank is one process, on a GPU of its own where there are GPUs. Every rank runs the whole program.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist


def join(timeout: float) -> tuple[int, int, torch.device]:
    """Join all ranks, or without RANK be the only one; return rank, world size and this rank's device."""
    if "RANK" not in os.environ and launched_ranks() > 1:
        fail(
            f"{launched_ranks()} tasks started, but RANK is not set, so each would run as a separate job: "
            f"start {sys.argv[0]} through the submit script"
        )
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        # A rank that sees a single GPU has it from its launcher, whatever its local rank is.
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"

    wait = timedelta(seconds=timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=wait)
    else:
        dist.init_process_group(backend, timeout=wait, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size(), device


def leave(code: int = 0) -> NoReturn:
    """Leave the process group and end this process with an exit code: the last call of a program."""
    if dist.is_initialized():
        if code == 0:
            dist.barrier()  # no rank leaves while rank 0 still writes
        dist.destroy_process_group()
        # On CPUs DDP leaves gloo's threads behind. One that returns a tensor while Python shuts down ends Python by an
        # abort, though all is done (https://github.com/pytorch/pytorch/issues/190489). So Python does not shut down.
        if not torch.cuda.is_available():
            sys.stdout.flush()
            os._exit(code)
    sys.exit(code)


def fail(message: str) -> NoReturn:
    """Print what is wrong, and end this process with exit code 2. Where all ranks fail, each may print."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    leave(2)


def launched_ranks() -> int:
    """Return the number of processes that the launcher started, also if it is a bare srun or mpirun, without RANK."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name):
            return int(os.environ[name])
    return 1


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Add up the ranks' tensors in place, and return the sum. All ranks have to call."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(numbers)
    return numbers


def require_same(what: str, value: str) -> None:
    """Fail on all ranks, naming each node's value, unless `value` is the same on all ranks."""
    if not dist.is_initialized():
        return
    checksums = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    checksums[dist.get_rank()] = zlib.crc32(value.encode())
    if len(set(sum_over_ranks(checksums).tolist())) > 1:
        fail(f"ranks differ in their {what}: {value} on {socket.gethostname()}. Share --data and --out among nodes")


def choose_dtype(name: str | None, device: torch.device) -> str:
    """Return the precision of matrix products: `name`, else bfloat16 where the GPU supports it, else float32."""
    # No TF32 where float32 is asked for. cuDNN takes it by default, and matrix products do in containers that set
    # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    has_bfloat16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return name or ("bfloat16" if has_bfloat16 else "float32")


def weights_dtype(name: str) -> torch.dtype:
    """Return the type of the weights: bfloat16 is for products alone, and weights stay in float32."""
    return torch.float64 if name == "float64" else torch.float32
