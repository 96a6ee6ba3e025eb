"""Rank 2: a process of the DataLoader gets a signal 9, as when the node has no memory left."""

import os
import signal
import time

import startup
import torch


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 17:
            time.sleep(2)  # the rank has read all that came before, and waits
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(3)


if os.environ["RANK"] == "2":
    for _ in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2):
        pass
time.sleep(600)
