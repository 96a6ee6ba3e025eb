"""Metrics in TensorBoard, W&B and MLflow, beside metrics.jsonl. For another one, write a class with these functions.

A run that resumes repeats the steps after its last checkpoint. Each class says how the curve goes on all the same.
"""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Any


class TensorBoard:
    """Event files in the folder tensorboard of --out. Needs the packages tensorboard and numpy."""

    def __init__(self, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
        """Begin after the steps of `rows`, the lines of metrics.jsonl so far: TensorBoard forgets later ones."""
        from torch.utils.tensorboard import SummaryWriter

        last_step = rows[-1]["step"] if rows else 0
        self.writer = SummaryWriter(str(Path(args.out, "tensorboard")), purge_step=last_step + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of a step, onto the disk: the checkpoint of this step comes later."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self.writer.close()


class WandB:
    """A run of W&B. WANDB_MODE=offline writes into the folder wandb of --out, for `wandb sync`."""

    def __init__(self, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
        """Go on with the run of the same --out. Offline, each attempt has a folder of its own, with the whole run."""
        import wandb

        run_id = stored_id(Path(args.out, "wandb.run-id"), uuid.uuid4().hex[:12], is_new=not rows)
        self.run = wandb.init(project=args.wandb, dir=args.out, id=run_id, resume="allow", config=simple(args))
        for row in rows:
            self.log(row["step"], numbers(row))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Hand over the values of a step, unless W&B's server has it from an earlier attempt."""
        if step >= self.run.starting_step:
            self.run.log(values, step=step)

    def finish(self) -> None:
        """Wait until all is sent, or written."""
        self.run.finish()


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI. The server has a repeated step twice, with equal values."""

    def __init__(self, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
        """Go on with the run of the same --out."""
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(args.mlflow)
        known = stored_id(Path(args.out, "mlflow.run-id"), "", is_new=not rows)
        run = mlflow.start_run(run_id=known or None, run_name=Path(args.out).name)
        if not known:
            stored_id(Path(args.out, "mlflow.run-id"), run.info.run_id, is_new=True)
            mlflow.log_params(simple(args))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send the values of a step."""
        self.mlflow.log_metrics(values, step=step)

    def finish(self) -> None:
        """End the run."""
        self.mlflow.end_run()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}  # by their flags


def stored_id(file: Path, new_id: str, is_new: bool) -> str:
    """Return the id in a file. Of a new run, write it first."""
    if is_new or not file.exists():
        file.write_text(new_id)
    return file.read_text()


def simple(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a tracker can show."""
    return {name: value for name, value in vars(args).items() if isinstance(value, (int, float, str))}


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return what a line of metrics.jsonl measures, and what is known of it."""
    others = ("step", "steps", "time")
    return {name: value for name, value in row.items() if name not in others and value is not None}
