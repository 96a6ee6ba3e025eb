"""Train a small language model on one device: what train_ddp.py does on many.

    python training/train_single.py                      on the GPU if there is one

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

import common
import torch
from checkpoint import Checkpoints
from data import Share, Windows, evaluation, loader
from model import GPT

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
    """Make one update from a batch, [sequences, context]; return its mean loss.

    Every micro batch has the same size, so the mean of their means is the mean.
    """
    optimizer.zero_grad(set_to_none=True)
    mean_loss = torch.zeros((), device=tokens.device)
    parts = list(zip(tokens.split(micro_batch), targets.split(micro_batch)))
    for inputs, wanted in parts:
        mean_loss = mean_loss + gradients_of(model, inputs, wanted, len(parts), autocast)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return mean_loss


def collect(losses: list[torch.Tensor], wishes: list[float]) -> tuple[list[float], list[float]]:
    """Return the losses as numbers, and the wishes; this waits for the device."""
    numbers = torch.cat([torch.stack(losses), losses[0].new_tensor(wishes)]).double()
    return numbers[: len(losses)].tolist(), numbers[len(losses) :].tolist()


@torch.no_grad()
def evaluate(model: torch.nn.Module, windows: Windows, size: int, autocast: AbstractContextManager) -> float:
    """Return the mean loss over windows spread over the text, `size` at once."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, of their number
    model.eval()
    for batch in evaluation(windows, size):
        tokens, targets, weights = (part.to(device) for part in batch)
        with autocast:
            losses = model(tokens, targets).double().view(len(weights), -1)
        sums += torch.stack([(losses.mean(1) * weights).sum(), weights.sum()])
    model.train()
    return (sums[0] / sums[1]).item()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    corpus, settings = common.open_corpus(args)
    dtype, autocast, weights_in = common.precision(args.dtype, device)
    torch.manual_seed(args.seed)  # of the initial weights
    model = GPT(args.config).to(device, weights_in)
    if args.compile:
        model.compile()
    optimizer = common.make_optimizer(model, args.learning_rate)
    checkpoints = Checkpoints(args.out, args.keep, settings)
    state = common.open_run(args, corpus, checkpoints, model, optimizer)

    log = common.Log(args, corpus, model, dtype, device, state)
    windows, validation = Windows(corpus.train, args.context), Windows(corpus.validation, args.context)
    share = Share(len(windows), args.global_batch, args.seed, log.first, args.steps)
    pace = common.Pace(args, log)
    for step, batch in enumerate(loader(windows, share, common.workers(args, device), device), start=log.first + 1):
        tokens, targets = (part.to(device, non_blocking=True) for part in batch)
        rate = common.prepare_step(step, 0, args, optimizer)
        log.add(train_step(model, optimizer, tokens, targets, args.micro_batch, autocast), rate)
        evaluate_now = common.due(step, args.eval_every, args)
        if not (evaluate_now or pace.due(step)):
            continue
        losses, wishes = collect(log.pending, pace.wishes())
        log.trained(step, losses)
        pace.decide(step, wishes)
        if evaluate_now:
            log.evaluated(step, evaluate(model, validation, args.micro_batch, autocast))
        if pace.save:
            checkpoints.save(log.state, model, optimizer)
            pace.has_saved()
        if pace.stop:
            break
        log.resume_clock()
    log.finish()


def main() -> None:
    """Train on the GPU, if there is one."""
    args = common.parse_arguments(__doc__, world=1)
    train(args, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
