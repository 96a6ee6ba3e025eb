"""Rank 2 raises; then W&B, which runs offline, prints how to send the run."""

import os
import time

import startup

if os.environ["RANK"] == "2":
    import wandb

    wandb.init(project="pretraining", mode="offline")
    raise ValueError("3 labels for 4 images")
time.sleep(600)
