"""Train a language model that is too large for one GPU: fully sharded data parallel, each rank keeps a part (FSDP2).

    python training/train_fsdp.py                        one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_fsdp.py   two, as any launcher starts them

Weights, gradients and optimizer are divided among the ranks. A layer's weights are whole only while it is computed.
Same flags, checkpoints and losses as train_ddp.py, which is faster for a model that fits. In bfloat16 the losses differ
a little, as the activations between layers are rounded here, too. Needs torch 2.6 or newer, on CPUs a newer one:
README.md, Packages.

Exit code 2: a flag, the data or --out does not fit, and the error names the fix. See README.md.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where lm/ is; PYTHONSAFEPATH=1 leaves it out

from lm import schedule, setup
from lm.arguments import fixed_settings, read_arguments
from lm.checkpoints import Checkpoints
from lm.data import load_data
from lm.metrics import Metrics, evaluate
from lm.model import GPT
from lm.stop import Stop

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    setup.fail(
        f"this program needs torch 2.6 or newer, and this is {torch.__version__}: train_ddp.py runs with torch 2.4"
    )


def build_sharded_model(args: argparse.Namespace, world_size: int, device: torch.device) -> torch.nn.Module:
    """Return the model, of which this rank holds its part, with the initial weights that train_ddp.py gives it."""
    model = GPT(args.config).to(setup.weights_dtype(args.dtype))  # whole, in the host's memory

    # Weights are rounded before they are gathered. Autocast would keep a rounded copy of each layer's float32 weights.
    rounded = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = rounded if args.dtype == "bfloat16" else MixedPrecisionPolicy()
    # Without the device type, a torch that is built for GPUs looks for them, also on a machine without.
    mesh = init_device_mesh(device.type, (world_size,))
    for block in model.blocks:
        if args.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def train(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    """Train from step 0, or from the newest checkpoint, to step args.steps."""
    data, validation, data_name = load_data(args)
    args.dtype = setup.choose_dtype(args.dtype, device)
    torch.manual_seed(args.seed)  # for the initial weights
    model = build_sharded_model(args, world_size, device)
    optimizer = schedule.make_optimizer(model, args.learning_rate)

    stop = Stop()
    checkpoints = Checkpoints(args.out, args.keep, fixed_settings(args, data_name), rank)
    state = checkpoints.start(model, optimizer, args.resume)  # the last step and its losses
    first_step = state["step"]
    metrics = Metrics(args, state, device, rank, world_size)
    metrics.print_plan(model, len(data), len(validation), data_name)

    batches = schedule.make_batches(data, args, device, first_step, rank, world_size)
    for step, batch in enumerate(metrics.profiled(batches), start=first_step + 1):
        schedule.set_learning_rate(optimizer, step, args)
        schedule.seed_step(args.seed, step, rank)
        loss = schedule.train_step(model, optimizer, batch, args, device, model.set_requires_gradient_sync)
        metrics.add(loss)  # stays on the device

        stopping = stop.requested()  # by a file, a signal or the clock; all ranks agree
        evaluating = schedule.due(step, args.eval_every, args.steps)
        saving = stopping or schedule.due(step, args.save_every, args.steps)
        if schedule.due(step, args.log_every, args.steps) or evaluating or saving or step == first_step + 1:
            metrics.log(step)  # reads the losses since the last line, and updates state
        if evaluating:
            metrics.log_validation(step, evaluate(model, validation, args, device, rank, world_size))
        if saving:
            checkpoints.save(state, model, optimizer)
            metrics.restart_clock()
        if stopping:
            if step < args.steps:
                stop.requeue()  # asks the submit script to put the job back into the queue
            break
    metrics.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    args = read_arguments(__doc__, setup.launched_ranks())
    rank, world_size, device = setup.join(args.timeout)
    train(args, rank, world_size, device)


if __name__ == "__main__":
    main()
    setup.leave()
