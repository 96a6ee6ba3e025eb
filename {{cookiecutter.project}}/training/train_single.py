"""Train a small language model on one device: what train_ddp.py does on many.

    python training/train_single.py                      on the GPU if there is one

Exit code 2: a flag, the data or --out does not fit, and the error names the fix. See README.md.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where lm/ is; PYTHONSAFEPATH=1 leaves it out

from lm import schedule, setup
from lm.arguments import fixed_settings, read_arguments
from lm.checkpoints import Checkpoints
from lm.data import load_data
from lm.metrics import Metrics, evaluate
from lm.model import GPT
from lm.stop import Stop


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from step 0, or from the newest checkpoint, to step args.steps."""
    data, validation, data_name = load_data(args)
    args.dtype = setup.choose_dtype(args.dtype, device)
    torch.manual_seed(args.seed)  # for the initial weights
    model = GPT(args.config).to(device, setup.weights_dtype(args.dtype))  # bfloat16: float32, and autocast
    if args.compile:
        model.compile()
    optimizer = schedule.make_optimizer(model, args.learning_rate)

    stop = Stop()
    checkpoints = Checkpoints(args.out, args.keep, fixed_settings(args, data_name))
    state = checkpoints.start(model, optimizer, args.resume)  # the last step and its losses
    first_step = state["step"]
    metrics = Metrics(args, state, device)
    metrics.print_plan(model, len(data), len(validation), data_name)

    batches = schedule.make_batches(data, args, device, first_step)
    for step, batch in enumerate(metrics.profiled(batches), start=first_step + 1):
        schedule.set_learning_rate(optimizer, step, args)
        schedule.seed_step(args.seed, step)
        loss = schedule.train_step(model, optimizer, batch, args, device)
        metrics.add(loss)  # stays on the device

        stopping = stop.requested()  # by a file, a signal or the clock; all ranks agree
        evaluating = schedule.due(step, args.eval_every, args.steps)
        saving = stopping or schedule.due(step, args.save_every, args.steps)
        if schedule.due(step, args.log_every, args.steps) or evaluating or saving or step == first_step + 1:
            metrics.log(step)  # reads the losses since the last line, and updates state
        if evaluating:
            metrics.log_validation(step, evaluate(model, validation, args, device))
        if saving:
            checkpoints.save(state, model, optimizer)
            metrics.restart_clock()
        if stopping:
            if step < args.steps:
                stop.requeue()  # asks the submit script to put the job back into the queue
            break
    metrics.finish()


def main() -> None:
    """Train on the GPU, if there is one."""
    args = read_arguments(__doc__, world_size=1)
    train(args, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
