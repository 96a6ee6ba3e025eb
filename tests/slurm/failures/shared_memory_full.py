"""Rank 3: /dev/shm has no room for the batches of a DataLoader. The rank gets a small one of its own."""

import ctypes
import os
import time

import startup
import torch

if os.environ["RANK"] == "3":
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_PRIVATE | MS_REC
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=256k") == 0, os.strerror(ctypes.get_errno())
    data = torch.utils.data.TensorDataset(torch.ones(64, 100_000))
    for _ in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        pass
time.sleep(600)
