"""Where a run begins: at the newest checkpoint, or at step 0."""

from __future__ import annotations

import argparse
from typing import Any

import distributed
import torch
from checkpoint import Checkpoints, IncompatibleCheckpoint, acquire_lock
from distributed import fail, require_same

LOCK_PATIENCE = 60  # seconds: a file server may learn so late that a node is dead


def start_or_resume(
    checkpoints: Checkpoints,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, Any]:
    """Return the state from which the run goes on: its step, loss and validation loss.

    With --resume, fill model and optimizer from the newest checkpoint. Without one, move an earlier run's files aside.
    Fails on all ranks if they see different data or checkpoints, or if another job writes to the same folder.
    """
    lock_folder(args, rank)
    require_same("corpus", f"checksum {args.corpus.checksum}", rank, world_size)
    new_run = {"step": 0, "loss": None, "val_loss": None}
    if not args.resume:
        if rank == 0 and checkpoints.existing():
            print(f"before  an earlier run is now in {checkpoints.set_aside()}; --resume would have continued it")
        elif rank == 0:
            set_aside_without_checkpoint(checkpoints)
        return new_run

    newest = next((path.name for path in checkpoints.existing()), "none")
    require_same("checkpoints", newest, rank, world_size)
    try:
        state = checkpoints.load(model, optimizer) or new_run
    except IncompatibleCheckpoint as error:
        fail(str(error))
    require_same("checkpoint to start from", f"step {state['step']}", rank, world_size)
    if rank == 0 and newest == "none":
        set_aside_without_checkpoint(checkpoints)
    return state


def set_aside_without_checkpoint(checkpoints: Checkpoints) -> None:
    """Move the files of a run aside that died before its first checkpoint: metrics.jsonl may say why it died."""
    metrics = checkpoints.folder / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:
        print(f"before  an earlier run, which had no checkpoint yet, is now in {checkpoints.set_aside()}")


def lock_folder(args: argparse.Namespace, rank: int) -> None:
    """Keep other jobs out of --out until this process ends. Fail on all ranks if another job holds it."""
    holder = acquire_lock(args.out, min(LOCK_PATIENCE, args.timeout / 2)) if rank == 0 else ""
    if distributed.sum_over_ranks(torch.tensor([float(holder != "")])) > 0:
        fail(f"--out {args.out} is in use by {holder or 'another run'}: give another --out, or wait for its end")
