"""Train a language model that is too large for one GPU: fully sharded data parallel, each rank keeps a part (FSDP2).

    python training/train_fsdp.py                        one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_fsdp.py   two, as any launcher starts them

Weights, gradients and optimizer are divided among the ranks; the whole of a layer exists only while it is computed.
Same flags and losses as train_ddp.py, which is faster for a model that fits. Needs torch 2.6 or newer, and NumPy.

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

import argparse

import common
import torch
from checkpoint import ShardedCheckpoints
from data import loader, share
from model import GPT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

CLIP = 1.0  # largest norm of the gradient


def train_step(run: common.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list) -> torch.Tensor:
    """Make one update from this rank's share of a batch, inputs and targets [sequences, context]; return its mean loss.

    Every micro batch has the same size, so the mean of their means is the mean. FSDP averages the gradients over the
    ranks while the last micro batch's are computed, and leaves each its part; until then a rank adds up whole ones.
    """
    optimizer.zero_grad()
    mean_loss = torch.zeros((), device=run.device)
    parts = list(zip(*(tensor.split(run.args.micro_batch) for tensor in batch)))
    for number, (tokens, targets) in enumerate(parts, start=1):
        model.set_requires_gradient_sync(number == len(parts))
        with run.autocast:
            loss = model(tokens, targets).mean() / len(parts)
        loss.backward()
        mean_loss = mean_loss + loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    run = common.Run(args, device, rank, world)
    torch.manual_seed(args.seed)  # of the initial weights, which are the same everywhere
    model = GPT(args.config).to(run.weights)  # in the host's memory
    # Rounded before they are gathered: of whole float32 weights autocast would keep a rounded copy of each layer's.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if run.dtype == "bfloat16" else MixedPrecisionPolicy()
    # Said, as a torch built for GPUs would look for them on a machine without.
    how = {"mesh": init_device_mesh(device.type, (world,)), "mp_policy": policy}
    for layer in model.blocks:
        if args.compile:
            layer.compile()
        fully_shard(layer, **how)  # this rank's part of it goes to the GPU
    fully_shard(model, **how)
    optimizer = common.make_optimizer(model, args.learning_rate)
    checkpoints = ShardedCheckpoints(args.out, args.keep, run.settings, common.writers())
    run.start(checkpoints, model, optimizer)

    numbers = share(len(run.corpus.train), args.global_batch, args.seed, run.first, args.steps, rank, world)
    for step, batch in enumerate(loader(run.corpus.train, numbers, args.workers, device), start=run.first + 1):
        common.prepare_step(step, rank, args, optimizer)
        run.note(step, train_step(run, model, optimizer, batch), model)
        if run.save:
            checkpoints.save(run.state, model, optimizer)
            run.saved()
        if run.stop:
            break
    run.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    args = common.parse_arguments(__doc__, world=common.ranks())
    train(args, *common.setup(args.timeout))


if __name__ == "__main__":
    main()
    common.leave()
