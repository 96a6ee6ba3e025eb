"""Train a small language model on one device: what train_ddp.py does on many.

    python training/train_single.py                      on the GPU if there is one

To train something of your own, replace the text (data.py) and the model with its loss (model.py). A run writes into
--out: checkpoints, from the newest of which --resume continues, and metrics.jsonl, with a line per step and per
evaluation. Exit code 2: something that you asked for cannot be done, and the message says what to change.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from arguments import fixed_settings, parse_arguments
from checkpoint import Checkpoints
from control import Control
from data import data_loader, sample_indices
from evaluation import evaluate
from memory import checkpoint_activations
from metrics import Metrics
from model import GPT
from optimizer import make_optimizer
from precision import Precision, choose_precision
from resume import start_or_resume
from schedule import due, seed_step, set_learning_rate
from tracing import Profiler


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    args: argparse.Namespace,
    precision: Precision,
) -> torch.Tensor:
    """Update the weights once; return the mean loss of the batch.

    batch: inputs and targets, each [sequences, ...]. The gradients of its micro batches add up. All micro batches have
    the same size, so the mean of their means is the batch's mean.
    """
    optimizer.zero_grad()
    mean_loss = 0.0
    micro_batches = list(zip(*(tensor.split(args.micro_batch) for tensor in batch)))
    for inputs, targets in micro_batches:
        with precision.autocast:
            loss = model(inputs, targets).mean() / len(micro_batches)
        loss.backward()
        mean_loss += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from step 0, or from the newest checkpoint, to step args.steps."""
    corpus = args.corpus  # read by parse_arguments(), as is the model's args.config
    precision = choose_precision(args.dtype, device)
    torch.manual_seed(args.seed)  # for the initial weights
    model = GPT(args.config).to(device, precision.weights_dtype)
    if args.activation_checkpointing:
        checkpoint_activations(model.blocks)
    if args.compile:
        model.compile()
    optimizer = make_optimizer(model, args.learning_rate)

    checkpoints = Checkpoints(args.out, args.keep, fixed_settings(args))
    state = start_or_resume(checkpoints, model, optimizer, args)
    first_step = state["step"]
    metrics = Metrics(args, state, model, precision, device)
    control = Control(args, first_step, device)
    profiler = Profiler(args, metrics)

    indices = sample_indices(len(corpus.train), args.global_batch, args.seed, first_step, args.steps)
    batches = data_loader(corpus.train, indices, args.workers, device)
    for step, batch in enumerate(batches, start=first_step + 1):
        profiler.begin(step)  # records the steps of --profile
        set_learning_rate(optimizer, step, args)
        seed_step(args.seed, step)
        loss = train_step(model, optimizer, batch, args, precision)
        metrics.add(loss)  # stays on the device

        request = control.request(step)  # "stop", "save" or ""
        evaluating = due(step, args.eval_every, args.steps)
        saving = request or due(step, args.save_every, args.steps)
        if due(step, args.log_every, args.steps) or evaluating or saving or step == first_step + 1:
            metrics.log(step)  # reads the losses since the last line, and updates metrics.state
        if evaluating:
            val_loss = evaluate(model, corpus.validation, args.micro_batch, precision, device)
            metrics.log_validation(step, val_loss)
        if saving:
            with control.saving():
                checkpoints.save(metrics.state, model, optimizer)
            metrics.restart_clock("checkpoints")
        if request == "stop":
            control.requeue()
            break
    profiler.finish()
    metrics.finish()


def main() -> None:
    """Train on the GPU, if there is one."""
    args = parse_arguments(__doc__, world_size=1)
    train(args, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
