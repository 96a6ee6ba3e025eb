"""The speed of train_single.py beside a plain loop, Lightning and Accelerate, on one device. steps.py starts it.

    python speed.py PROJECT SPEED.json ROUNDS --layers=12 …         the flags are those of train_single.py

The ways take turns in one process, a block of steps each, so that a slow machine slows all of them. All have the same
model, text, batch, precision, optimizer and clipping. Each way is a loop in a thread of its own, which stands still
between its blocks.

The file has the tokens/s of each round and way, and which ways are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(sys.argv[1], "training")))

import train_single
from lm import schedule
from lm.arguments import read_arguments
from lm.data import load_data
from lm.model import GPT
from lm.schedule import make_optimizer
from lm.setup import choose_dtype

STEPS = 10  # of a block
WARM_UP = 10  # steps of each way before the first round
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LEAST_FALL = 0.3  # a way whose loss does not fall by so much [nats] has not trained


class Way(threading.Thread):
    """A way to train: a loop that calls step_done() after every step. It goes on when block() is called."""

    def __init__(self, loop: Callable[[Way], None], args: argparse.Namespace) -> None:
        """Start the thread, which waits for the first block."""
        super().__init__(daemon=True)
        self.loop, self.args = loop, args
        self.losses: list[torch.Tensor] = []
        self.left, self.go, self.stands = 0, threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        """Train. The loop has more steps than the blocks ask for, so its end is always an error."""
        self.go.acquire()
        torch.manual_seed(self.args.seed)
        try:
            self.loop(self)
            print(f"{self.loop.__name__} ended too early", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def block(self, steps: int) -> float:
        """Do so many steps, and return the seconds until the GPU has done them."""
        self.left = steps
        begin = time.perf_counter()
        self.go.release()
        self.stands.acquire()
        return time.perf_counter() - begin

    def step_done(self, *loss: torch.Tensor) -> None:
        """Keep the loss of a step, if given. After the last step of a block, wait for the next block."""
        self.losses += loss
        self.left -= 1
        if not self.left:
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            self.stands.release()
            self.go.acquire()

    def batches(self) -> Iterator[list[torch.Tensor]]:
        """Yield batches on the device, read as train_single.py reads them."""
        data, *_ = load_data(self.args)
        loader = DataLoader(
            data,
            self.args.global_batch,
            shuffle=True,
            num_workers=self.args.workers,
            multiprocessing_context="fork" if self.args.workers else None,
            pin_memory=DEVICE.type == "cuda",
        )
        while True:  # an epoch
            for batch in loader:
                yield [tensor.to(DEVICE, non_blocking=True) for tensor in batch]

    def new_model(self) -> tuple[GPT, torch.optim.Optimizer]:
        """Return the model and the optimizer of train_single.py."""
        model = GPT(self.args.config).to(DEVICE)
        return model, make_optimizer(model, self.args.learning_rate)


def ours(way: Way) -> None:
    """Run train() of train_single.py. When it asks for the next batch, a step is done."""

    def paced(*given: Any, **named: Any) -> Iterator[list[torch.Tensor]]:
        for batch in DataLoader(*given, **named):
            yield batch
            way.step_done()

    def train_step(*given: Any) -> torch.Tensor:
        loss = own_step(*given)
        way.losses.append(loss)
        return loss

    own_step = schedule.train_step
    schedule.DataLoader, schedule.train_step = paced, train_step
    train_single.train(way.args, DEVICE)


def plain(way: Way) -> None:
    """Train in the shortest loop that one would write by hand. It logs nothing."""
    model, optimizer = way.new_model()
    is_rounded = choose_dtype(way.args.dtype, DEVICE) == "bfloat16"
    for tokens, targets in way.batches():
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=is_rounded):
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), way.args.grad_clip)
        optimizer.step()
        way.step_done(loss.detach())


def accelerate(way: Way) -> None:
    """Do as https://huggingface.co/docs/accelerate/basic_tutorials/migration."""
    from accelerate import Accelerator

    bfloat16 = choose_dtype(way.args.dtype, DEVICE) == "bfloat16"
    accelerator = Accelerator(cpu=DEVICE.type == "cpu", mixed_precision="bf16" if bfloat16 else "no")
    model, optimizer = accelerator.prepare(*way.new_model())
    for tokens, targets in way.batches():
        optimizer.zero_grad()
        loss = model(tokens, targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), way.args.grad_clip)
        optimizer.step()
        way.step_done(loss.detach())


def lightning(way: Way) -> None:
    """Call Trainer.fit(), in the mode that it has for such comparisons: it logs, saves and shows nothing."""
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = way.new_model()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
            return self.model(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def configure_gradient_clipping(self, *_given: Any, **_named: Any) -> None:
            # Its own clipping refuses a fused optimizer under bf16-mixed (Lightning 2.6.6, H200, 2026-11-27).
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), way.args.grad_clip)

        def on_train_batch_end(self, outputs: dict[str, torch.Tensor], *_given: Any) -> None:
            way.step_done(outputs["loss"].detach())

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # not its advice
    bfloat16 = choose_dtype(way.args.dtype, DEVICE) == "bfloat16"
    Trainer(
        accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if bfloat16 else "32-true",
        barebones=True,
        max_epochs=-1,
    ).fit(Module(), way.batches())


def main() -> None:
    """Let the ways take turns, and write what they took."""
    output, rounds, flags = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    train_single.Stop = lambda: argparse.Namespace(requested=bool)  # never; the real one needs the main thread
    steps = str(WARM_UP + rounds * STEPS + 1)  # one more than is asked for: ours would evaluate and save after the last
    ways, not_installed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for loop in (ours, plain, lightning, accelerate):
            name = loop.__name__
            if loop in (lightning, accelerate) and not importlib.util.find_spec(name):
                not_installed.append(name)
                continue
            sys.argv[1:] = [*flags, "--out", f"{folder}/{name}", "--steps", steps]
            sys.argv[1:] += ["--eval-every", steps, "--save-every", steps]
            ways[name] = Way(loop, read_arguments("", 1))
        speeds = take_turns(ways, rounds)
    losses = {name: [loss.item() for loss in way.losses] for name, way in ways.items()}
    for name, values in losses.items():
        if values[0] - values[-1] < LEAST_FALL:
            sys.exit(f"no ratio: {name} did not learn, its losses are {values}")
    found = {"tokens_per_second": speeds, "not_installed": not_installed}
    output.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the threads stand in their loops


def take_turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Return the tokens/s of each way and round."""
    for way in ways.values():
        way.block(WARM_UP)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(ways)[::-1]:  # none always comes after the same other one
            tokens = STEPS * ways[name].args.global_batch * ways[name].args.context
            speeds[name].append(tokens / ways[name].block(STEPS))
    return speeds


if __name__ == "__main__":
    main()
