"""Train a small language model with DistributedDataParallel: same losses for 1, 2 or 100 ranks.

    python training/train_ddp.py                         one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_ddp.py    two, as any launcher starts them

The batch of a step is fixed for the whole job (--global-batch) and divided among the ranks. So the number of ranks
changes the speed, and not the result.

To train something of your own, replace the text (data.py) and the model with its loss (model.py). A run writes into
--out: checkpoints, from the newest of which --resume continues, and metrics.jsonl, with a line per step and per
evaluation. Exit code 2: something that you asked for cannot be done, and the message says what to change.
"""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from arguments import fixed_settings, parse_arguments
from checkpoint import Checkpoints
from control import Control
from data import data_loader, sample_indices
from distributed import checkpoint_group, launched_world_size, setup, shutdown
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
    """Update the weights once; return the mean loss of this rank's part of the batch.

    batch: inputs and targets, each [sequences, ...]. The gradients of its micro batches add up. All micro batches have
    the same size, so the mean of their means is the batch's mean. DDP averages the gradients over the ranks during the
    backward pass of the last micro batch. no_sync() keeps it from doing so in each backward pass.
    """
    optimizer.zero_grad()
    mean_loss = 0.0
    micro_batches = list(zip(*(tensor.split(args.micro_batch) for tensor in batch)))
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with nullcontext() if number == len(micro_batches) else model.no_sync():
            with precision.autocast:
                loss = model(inputs, targets).mean() / len(micro_batches)
            loss.backward()
        mean_loss += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
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
    state = start_or_resume(checkpoints, model, optimizer, args, rank, world_size)
    first_step = state["step"]
    metrics = Metrics(args, state, model, precision, device, rank, world_size)
    control = Control(args, first_step, device, rank, world_size)
    profiler = Profiler(args, metrics)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    save_group = checkpoint_group()

    indices = sample_indices(len(corpus.train), args.global_batch, args.seed, first_step, args.steps, rank, world_size)
    batches = data_loader(corpus.train, indices, args.workers, device)
    for step, batch in enumerate(batches, start=first_step + 1):
        profiler.begin(step)  # records the steps of --profile
        set_learning_rate(optimizer, step, args)
        seed_step(args.seed, step, rank)
        loss = train_step(ddp, optimizer, batch, args, precision)
        metrics.add(loss)  # stays on the device

        request = control.request(step)  # "stop", "save" or ""
        evaluating = due(step, args.eval_every, args.steps)
        saving = request or due(step, args.save_every, args.steps)
        if due(step, args.log_every, args.steps) or evaluating or saving or step == first_step + 1:
            metrics.log(step)  # reads the losses since the last line, and updates metrics.state
        if evaluating:
            val_loss = evaluate(model, corpus.validation, args.micro_batch, precision, device, rank, world_size)
            metrics.log_validation(step, val_loss)
        if saving:
            with control.saving():
                if rank == 0:
                    checkpoints.save(metrics.state, model, optimizer)
                dist.barrier(save_group)
            metrics.restart_clock("checkpoints")
        if request == "stop":
            control.requeue()
            break
    profiler.finish()
    metrics.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    args = parse_arguments(__doc__, launched_world_size())
    train(args, *setup(args.timeout))


if __name__ == "__main__":
    main()
    shutdown()
