"""Train a small language model with DistributedDataParallel: same losses for 1, 2 or 100 ranks.

    python training/train_ddp.py                         one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_ddp.py    two, as any launcher starts them

The batch of a step is fixed for the whole job (--global-batch) and divided among the ranks, so that the number of
ranks changes the speed and not the result.

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

import argparse
from contextlib import nullcontext

import common
import torch
import torch.distributed as dist
from checkpoint import Checkpoints
from data import loader, share
from model import GPT
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CLIP = 1.0  # largest norm of the gradient


def train_step(run: common.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list) -> torch.Tensor:
    """Make one update from this rank's share of a batch, inputs and targets [sequences, context]; return its mean loss.

    Every micro batch has the same size, so the mean of their means is the mean. DDP averages the gradients over the
    ranks while the last micro batch's are computed; no_sync() keeps it from doing so for each of those before.
    """
    optimizer.zero_grad()
    mean_loss = torch.zeros((), device=run.device)
    parts = list(zip(*(tensor.split(run.args.micro_batch) for tensor in batch)))
    for number, (tokens, targets) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else model.no_sync():
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
    model = GPT(args.config).to(device, run.weights)
    if args.compile:
        model.compile()
    optimizer = common.make_optimizer(model, args.learning_rate)
    checkpoints = Checkpoints(args.out, args.keep, run.settings)
    run.start(checkpoints, model, optimizer)
    ddp, others_wait = DistributedDataParallel(model, gradient_as_bucket_view=True), common.writers()

    numbers = share(len(run.corpus.train), args.global_batch, args.seed, run.first, args.steps, rank, world)
    for step, batch in enumerate(loader(run.corpus.train, numbers, args.workers, device), start=run.first + 1):
        common.prepare_step(step, rank, args, optimizer)
        run.note(step, train_step(run, ddp, optimizer, batch), model)
        if run.save:
            if rank == 0:
                checkpoints.save(run.state, model, optimizer)
            dist.barrier(others_wait)
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
