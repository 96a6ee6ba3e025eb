"""Train a small language model on one device: what train_ddp.py does on many.

    python training/train_single.py                      on the GPU if there is one

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

import argparse

import common
import torch
from checkpoint import Checkpoints
from data import loader, share
from model import GPT

CLIP = 1.0  # largest norm of the gradient


def train_step(run: common.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list) -> torch.Tensor:
    """Make one update from a batch, inputs and targets [sequences, context]; return its mean loss.

    Every micro batch has the same size, so the mean of their means is the mean.
    """
    optimizer.zero_grad()
    mean_loss = torch.zeros((), device=run.device)
    parts = list(zip(*(tensor.split(run.args.micro_batch) for tensor in batch)))
    for tokens, targets in parts:
        with run.autocast:
            loss = model(tokens, targets).mean() / len(parts)
        loss.backward()
        mean_loss = mean_loss + loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    run = common.Run(args, device)
    torch.manual_seed(args.seed)  # of the initial weights
    model = GPT(args.config).to(device, run.weights)
    if args.compile:
        model.compile()
    optimizer = common.make_optimizer(model, args.learning_rate)
    checkpoints = Checkpoints(args.out, args.keep, run.settings)
    run.start(checkpoints, model, optimizer)

    numbers = share(len(run.corpus.train), args.global_batch, args.seed, run.first, args.steps)
    for step, batch in enumerate(loader(run.corpus.train, numbers, args.workers, device), start=run.first + 1):
        common.prepare_step(step, 0, args, optimizer)
        run.note(step, train_step(run, model, optimizer, batch), model)
        if run.save:
            checkpoints.save(run.state, model, optimizer)
            run.saved()
        if run.stop:
            break
    run.finish()


def main() -> None:
    """Train on the GPU, if there is one."""
    args = common.parse_arguments(__doc__, world=1)
    train(args, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
