"""Rank 1: a sample cannot be read, in a process of the DataLoader."""

import os
import time

import startup
import torch


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 17:
            raise ValueError("sample 17 has no label")
        return torch.ones(3)


if os.environ["RANK"] == "1":
    for _ in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2):
        pass
time.sleep(600)
