"""Train a language model that is too large for one GPU: fully sharded data parallel, each rank keeps a part (FSDP2).

    python training/train_fsdp.py                        one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_fsdp.py   two, as any launcher starts them

Weights, gradients and optimizer are divided among the ranks. A layer's weights are whole only while it is computed.
Same flags and losses as train_ddp.py, which is faster for a model that fits. Needs torch 2.6 or newer, and NumPy.

To train something of your own, replace the text (data.py) and the model with its loss (model.py). A run writes into
--out: checkpoints, from the newest of which --resume continues, and metrics.jsonl, with a line per step and per
evaluation. Exit code 2: something that you asked for cannot be done, and the message says what to change.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from arguments import fixed_settings, parse_arguments
from checkpoint import ShardedCheckpoints
from control import Control
from data import data_loader, sample_indices
from distributed import checkpoint_group, fail, launched_world_size, setup, shutdown
from evaluation import evaluate
from memory import checkpoint_activations
from metrics import Metrics
from model import GPT
from optimizer import make_optimizer
from precision import Precision, choose_precision
from resume import start_or_resume
from schedule import due, seed_step, set_learning_rate
from tracing import Profiler

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    fail(f"this program needs torch 2.6 or newer, and this is {torch.__version__}: train_ddp.py runs with torch 2.4")


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    args: argparse.Namespace,
    precision: Precision,
) -> torch.Tensor:
    """Update the weights once; return the mean loss of this rank's part of the batch.

    batch: inputs and targets, each [sequences, ...]. The gradients of its micro batches add up. All micro batches have
    the same size, so the mean of their means is the batch's mean. FSDP averages the gradients over the ranks during the
    backward pass of the last micro batch, and leaves each rank its part. Until then a rank adds up whole gradients.
    """
    optimizer.zero_grad()
    mean_loss = 0.0
    micro_batches = list(zip(*(tensor.split(args.micro_batch) for tensor in batch)))
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        model.set_requires_gradient_sync(number == len(micro_batches))
        with precision.autocast:
            loss = model(inputs, targets).mean() / len(micro_batches)
        loss.backward()
        mean_loss += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    return mean_loss


def build_sharded_model(
    args: argparse.Namespace, precision: Precision, rank: int, world_size: int, device: torch.device
) -> torch.nn.Module:
    """Return the model, of which this rank holds its part, with the initial weights that train_ddp.py gives it."""
    one_by_one = hasattr(GPT, "init_weight")
    with torch.device("meta" if one_by_one else "cpu"):  # meta: shapes without memory
        model = GPT(args.config).to(precision.weights_dtype)
    if one_by_one and list(model.buffers()):
        fail("GPT in model.py has init_weight() and buffers, which have no values here: compute them in forward()")
    if args.activation_checkpointing:
        checkpoint_activations(model.blocks)

    # Weights are rounded before they are gathered. Autocast would keep a rounded copy of each layer's float32 weights.
    rounded = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    policy = rounded if precision.name == "bfloat16" else MixedPrecisionPolicy()
    # Without the device type, a torch that is built for GPUs looks for them, also on a machine without.
    mesh = init_device_mesh(device.type, (world_size,))
    for block in model.blocks:
        if args.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    if one_by_one:
        model.to_empty(device=device)  # memory for this rank's parts
        for name, weight in model.named_parameters():
            whole = torch.empty(weight.shape)  # in the host's memory
            model.init_weight(name, whole)
            parts = whole.chunk(world_size)  # as fully_shard divides it
            if rank < len(parts):  # a small weight has fewer parts than there are ranks
                weight.detach().to_local().copy_(parts[rank])
    return model


def train(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    """Train from step 0, or from the newest checkpoint, to step args.steps."""
    corpus = args.corpus  # read by parse_arguments(), as is the model's args.config
    precision = choose_precision(args.dtype, device)
    torch.manual_seed(args.seed)  # for the initial weights
    model = build_sharded_model(args, precision, rank, world_size, device)
    optimizer = make_optimizer(model, args.learning_rate)

    checkpoints = ShardedCheckpoints(args.out, args.keep, fixed_settings(args), checkpoint_group())
    state = start_or_resume(checkpoints, model, optimizer, args, rank, world_size)
    first_step = state["step"]
    metrics = Metrics(args, state, model, precision, device, rank, world_size)
    control = Control(args, first_step, device, rank, world_size)
    profiler = Profiler(args, metrics)

    indices = sample_indices(len(corpus.train), args.global_batch, args.seed, first_step, args.steps, rank, world_size)
    batches = data_loader(corpus.train, indices, args.workers, device)
    for step, batch in enumerate(batches, start=first_step + 1):
        profiler.begin(step)  # records the steps of --profile
        set_learning_rate(optimizer, step, args)
        seed_step(args.seed, step, rank)
        loss = train_step(model, optimizer, batch, args, precision)
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
                checkpoints.save(metrics.state, model, optimizer)
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
