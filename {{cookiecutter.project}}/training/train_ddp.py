"""Train a small language model with DistributedDataParallel: same losses for 1, 2 or 100 ranks.

    python training/train_ddp.py                         one process, on the GPU if there is one
    torchrun --nproc-per-node 2 training/train_ddp.py    two, as any launcher starts them

The batch of a step is fixed for the whole job (--global-batch) and divided among the ranks, so that the number of
ranks changes the speed and not the result.

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

import common
import torch
import torch.distributed as dist
from checkpoint import Checkpoints
from data import Share, Windows, evaluation, loader
from model import GPT
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CLIP = 1.0  # largest norm of the gradient


def gradients_of(
    model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor, parts: int, autocast: AbstractContextManager
) -> torch.Tensor:
    """Add a micro batch's gradients to those of the others of `parts`; return its mean loss, divided by `parts`."""
    with autocast:
        loss = model(tokens, targets).mean() / parts
    loss.backward()
    return loss.detach()


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    micro_batch: int,
    autocast: AbstractContextManager,
) -> torch.Tensor:
    """Make one update from this rank's share of the batch, [sequences, context]; return the share's mean loss.

    Every micro batch has the same size, so the mean of their means is the mean. DDP averages the gradients over the
    ranks while the last micro batch's are computed; no_sync() keeps it from doing so for each of those before.
    """
    optimizer.zero_grad(set_to_none=True)
    mean_loss = torch.zeros((), device=tokens.device)
    parts = list(zip(tokens.split(micro_batch), targets.split(micro_batch)))
    for number, (inputs, wanted) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else model.no_sync():
            mean_loss = mean_loss + gradients_of(model, inputs, wanted, len(parts), autocast)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return mean_loss


def collect(losses: list[torch.Tensor], wishes: list[float]) -> tuple[list[float], list[float]]:
    """Return the losses as numbers, and the wishes, means over the ranks; this waits for the device."""
    numbers = torch.cat([torch.stack(losses), losses[0].new_tensor(wishes)]).double()
    dist.all_reduce(numbers)
    numbers /= dist.get_world_size()
    return numbers[: len(losses)].tolist(), numbers[len(losses) :].tolist()


@torch.no_grad()
def evaluate(model: torch.nn.Module, windows: Windows, size: int, autocast: AbstractContextManager) -> float:
    """Return the mean loss over windows spread over the text, `size` at once, each computed by one rank."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, of their number
    model.eval()
    for batch in evaluation(windows, size, dist.get_rank(), dist.get_world_size()):
        tokens, targets, weights = (part.to(device) for part in batch)
        with autocast:
            losses = model(tokens, targets).double().view(len(weights), -1)
        sums += torch.stack([(losses.mean(1) * weights).sum(), weights.sum()])
    model.train()
    dist.all_reduce(sums)  # and not means: a rank may have one window fewer
    return (sums[0] / sums[1]).item()


def train(args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    corpus, settings = common.open_corpus(args)
    dtype, autocast, weights_in = common.precision(args.dtype, device)
    torch.manual_seed(args.seed)  # of the initial weights, which are the same everywhere
    model = GPT(args.config).to(device, weights_in)
    if args.compile:
        model.compile()
    optimizer = common.make_optimizer(model, args.learning_rate)
    checkpoints = Checkpoints(args.out, args.keep, settings)
    state = common.open_run(args, corpus, checkpoints, model, optimizer, rank)
    ddp, others_wait = DistributedDataParallel(model, gradient_as_bucket_view=True), common.writers()

    log = common.Log(args, corpus, model, dtype, device, state, rank, world)
    windows, validation = Windows(corpus.train, args.context), Windows(corpus.validation, args.context)
    share = Share(len(windows), args.global_batch, args.seed, log.first, args.steps, rank, world)
    pace = common.Pace(args, log)
    for step, batch in enumerate(loader(windows, share, common.workers(args, device), device), start=log.first + 1):
        tokens, targets = (part.to(device, non_blocking=True) for part in batch)
        rate = common.prepare_step(step, rank, args, optimizer)
        log.add(train_step(ddp, optimizer, tokens, targets, args.micro_batch, autocast), rate)
        evaluate_now = common.due(step, args.eval_every, args)
        if not (evaluate_now or pace.due(step)):
            continue
        losses, wishes = collect(log.pending, pace.wishes())
        log.trained(step, losses)
        pace.decide(step, wishes)
        if evaluate_now:
            log.evaluated(step, evaluate(model, validation, args.micro_batch, autocast))
        if pace.save:
            if rank == 0:
                checkpoints.save(log.state, model, optimizer)
            dist.barrier(others_wait)
            pace.has_saved()
        if pace.stop:
            break
        log.resume_clock()
    log.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    args = common.parse_arguments(__doc__, world=common.ranks())
    train(args, *common.setup(args.timeout))


if __name__ == "__main__":
    main()
    common.leave()
