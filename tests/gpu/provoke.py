"""Fails in the way that is named: each failure is a real one of torch, CUDA or NCCL. steps.py starts it as ranks.

    python provoke.py out-of-memory

Where torch or NCCL allows what should fail, it prints "NOT PROVOKED" with the reason, and ends with exit code 0.
"""

import sys

import torch
import torch.distributed as dist


def out_of_memory() -> None:
    """Take memory until there is no more."""
    blocks, size = [], torch.cuda.get_device_properties(0).total_memory // 8
    while True:
        blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def device_side_assert() -> None:
    """Use an index that is out of range."""
    table = torch.zeros(4, device="cuda")
    table[torch.tensor([10], device="cuda")].sum().item()


def illegal_memory_access() -> None:
    """Compute with a tensor that says to be larger than its memory, far behind its end."""
    few, count = torch.zeros(16, device="cuda"), 2**42
    storage = torch._C._construct_storage_from_data_pointer(few.data_ptr(), few.device, 4 * count)
    many = torch.empty(0, device="cuda").set_(storage, 0, (count,), (1,))
    (many[-1024:] + 1).sum().item()


def invalid_device_ordinal() -> None:
    """Use the GPU behind the last one, as a rank does that has no GPU of its own."""
    torch.zeros(1, device=f"cuda:{torch.cuda.device_count()}")


def mixed_devices() -> None:
    """Multiply a matrix on the GPU by one on the CPU."""
    torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def no_visible_gpu() -> None:
    """Use a GPU where CUDA_VISIBLE_DEVICES is empty. A driver that is too old cannot be had on purpose."""
    torch.zeros(1, device="cuda")


def duplicate_gpu() -> None:
    """Let two ranks on one GPU talk through NCCL."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    numbers = torch.ones(1, device="cuda")
    dist.all_reduce(numbers)
    print(f"NOT PROVOKED: two ranks on one GPU have added up {numbers.item():g}", flush=True)
    dist.destroy_process_group()


FUNCTIONS = (out_of_memory, device_side_assert, illegal_memory_access, invalid_device_ordinal)
FUNCTIONS += (mixed_devices, no_visible_gpu, duplicate_gpu)
FAILURES = {function.__name__.replace("_", "-"): function for function in FUNCTIONS}


def main() -> None:
    """Run the function of the failure that is named."""
    if len(sys.argv) != 2 or sys.argv[1] not in FAILURES:
        sys.exit(f"provoke.py: expected one of {' '.join(FAILURES)}")
    FAILURES[sys.argv[1]]()


if __name__ == "__main__":
    main()
