"""Rank 2 raises while W&B tracks the run offline, which prints how to send it."""

import os
import time

import startup

if os.environ["RANK"] == "2":
    import wandb

    wandb.init(project="pretraining", mode="offline")
    raise ValueError("3 labels for 4 images")
time.sleep(600)
