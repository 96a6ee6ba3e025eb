"""What the training example's loop costs: its speed beside a bare loop's, Lightning's, Accelerate's and one rank's.

    python perf/ddp_step.py                  about two minutes, on 2 CPU ranks of one thread
    python perf/ddp_step.py --rounds 100     for a noisy machine

Five ways train the example's model on the example's text. They take turns in one process group, a block of steps each.
So other work on the machine disturbs all of them alike.

- ours: train() of training/train_ddp.py itself. It has its defaults, but neither evaluates nor saves.
- bare: the shortest loop that one would write by hand. It logs nothing.
- lightning: its Trainer, in the mode that it has for such comparisons. It logs, saves and shows nothing.
- accelerate: the loop of its documentation. It logs nothing.
- solo: train() of training/train_single.py on rank 0, while rank 1 sleeps. A step has the sequences of one rank. With
  those of two ranks, a step of solo would be slower on a CPU. That would flatter us.

All have the same model, windows of text, batch, AdamW, clipping and buckets of DDP. In none does another process read
ahead.

The program prints two ratios, because other work on the machine disturbs each in its own way:

- The median over the rounds of the ratio within a round.
- The ratio in the quiet rounds. Its two speeds are those that each way exceeds in a tenth of its rounds.

The exit code is 1 if a way did not train. A missed target does not change it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

TRAINING = Path(__file__).resolve().parents[1] / "{{cookiecutter.project}}" / "training"
sys.path.insert(0, str(TRAINING))
sys.dont_write_bytecode = True  # beside these sources it would become part of every project written from them

import train_ddp  # noqa: E402
import train_single  # noqa: E402
from lm import schedule, setup, stop  # noqa: E402
from lm.arguments import read_arguments  # noqa: E402
from lm.data import load_data  # noqa: E402
from lm.model import GPT  # noqa: E402
from lm.schedule import make_optimizer  # noqa: E402
from lm.setup import join, leave, sum_over_ranks  # noqa: E402

RANKS = 2
WARM_UP = 10  # steps of each way before the first round, in which it also gets ready: a line of our log
# the peer of ours, how often its speed is meant, and the least that the ratio should be
TARGETS = {"bare": (1, 0.98), "lightning": (1, 0.97), "accelerate": (1, 0.97), "solo": (RANKS, 0.90)}


class Way(threading.Thread):
    """A way to train. Its loop runs in a thread of its own, which stands still between blocks of steps."""

    def __init__(self, loop: Callable[[Way], None], args: argparse.Namespace) -> None:
        """Take a loop that calls step_done() after every step, and the flags of train_ddp.py."""
        super().__init__(daemon=True)
        self.loop, self.args, self.model, self.losses = loop, args, None, []
        self.left, self.go, self.stands = 0, threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        """Train. The loop has more steps than the blocks ask for, so its end is always an error."""
        self.go.acquire()
        torch.manual_seed(dist.get_rank())  # differs, so that ranks that do not train together end up apart
        try:
            self.loop(self)
            print(f"{self.loop.__name__} ended too early", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # torchrun then ends the other rank

    def block(self, steps: int) -> None:
        """Do so many steps."""
        self.left = steps
        self.go.release()
        self.stands.acquire()

    def step_done(self, *loss: torch.Tensor) -> None:
        """Keep the loss of a step, if given. After the last step of a block, wait for the next block."""
        self.losses += loss
        self.left -= 1
        if not self.left:
            self.stands.release()
            self.go.acquire()

    def paced(self, *given: Any, **named: Any) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of one of our programs. When the program asks for the next one, a step is done."""
        for batch in DataLoader(*given, **named):
            yield batch
            self.step_done()

    def new_model(self) -> tuple[GPT, torch.optim.Optimizer]:
        """Return the model and the optimizer of train_ddp.py."""
        self.model = GPT(self.args.config)
        return self.model, make_optimizer(self.model, self.args.learning_rate)

    def new_loader(self) -> DataLoader:
        """Return a loader as users of the frameworks have it; the frameworks share it out among the ranks."""
        return DataLoader(load_data(self.args)[0], self.args.micro_batch, shuffle=True)


def sum_of_the_way(numbers: torch.Tensor) -> torch.Tensor:
    """Add up the ranks' tensors. The program of one rank, which shares the process, gets its own tensor back."""
    return numbers if getattr(threading.current_thread(), "is_alone", False) else sum_over_ranks(numbers)


def ours(way: Way) -> None:
    """Run train_ddp.py."""
    schedule.DataLoader = way.paced
    train_ddp.train(way.args, dist.get_rank(), RANKS, torch.device("cpu"))


def solo(way: Way) -> None:
    """Run train_single.py. It knows of no other rank, so nothing is added up over ranks."""
    way.is_alone = True
    way.args.global_batch = way.args.micro_batch
    schedule.DataLoader = way.paced
    train_single.Stop = lambda: argparse.Namespace(requested=bool)  # never; the real one asks the other rank
    train_single.train(way.args, torch.device("cpu"))


def bare(way: Way) -> None:
    """Cut random windows out of the text; loss, backward, clip, step."""
    context = way.args.context
    part, *_ = load_data(way.args)
    text = torch.frombuffer(bytearray(part.text[: part.stop]), dtype=torch.uint8)
    windows = text.unfold(0, context + 1, context)
    model, optimizer = way.new_model()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    while True:
        batch = windows[torch.randint(len(windows), (way.args.micro_batch,))].long()
        optimizer.zero_grad()
        loss = ddp(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), way.args.grad_clip)
        optimizer.step()
        way.step_done(loss.detach())


def accelerate(way: Way) -> None:
    """Do as https://huggingface.co/docs/accelerate/basic_tutorials/migration, with an option of DDP added."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])
    model, optimizer, loader = accelerator.prepare(*way.new_model(), way.new_loader())
    while True:  # an epoch
        for tokens, targets in loader:
            optimizer.zero_grad()
            loss = model(tokens, targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), way.args.grad_clip)
            optimizer.step()
            way.step_done(loss.detach())


def lightning(way: Way) -> None:
    """Call Trainer.fit(); neither `barebones` nor DDP's option is the default."""
    from lightning import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = way.new_model()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
            return self.model(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def on_train_batch_end(self, outputs: dict[str, torch.Tensor], *_given: Any) -> None:
            way.step_done(outputs["loss"])

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # not its advice
    options = {"accelerator": "cpu", "devices": RANKS, "strategy": DDPStrategy(gradient_as_bucket_view=True)}
    options |= {"barebones": True, "max_epochs": -1, "gradient_clip_val": way.args.grad_clip}
    Trainer(**options).fit(Module(), way.new_loader())


def measure(rounds: int, steps: int, folder: str) -> None:
    """Run the blocks on this rank; rank 0 prints the table."""
    rank, _, _ = join(timeout=600)
    setup.sum_over_ranks, setup.require_same = sum_of_the_way, lambda *_: None
    stop.signal = argparse.Namespace(signal=lambda *_: None)  # which is for the main thread alone
    whole = str(WARM_UP + rounds * steps + 1)  # one more than are asked for: the last would evaluate and save
    never, ways = ["--steps", whole, "--eval-every", whole, "--save-every", whole], {}
    for loop in (ours, bare, lightning, accelerate, solo):
        name = loop.__name__
        sys.argv[1:] = ["--out", f"{folder}/{name}{rank}", *never]
        if loop not in (lightning, accelerate) or importlib.util.find_spec(name):
            ways[name] = Way(loop, read_arguments("", RANKS))
    speed: dict[str, list[float]] = {name: [] for name in ways}  # tokens/s of each round
    with contextlib.redirect_stdout(io.StringIO()):  # lines of progress
        for number in range(-1, rounds):
            for name in list(ways) if number % 2 else list(ways)[::-1]:  # no way always comes after the same other way
                dist.barrier()
                begin = time.perf_counter()
                if rank == 0 or name != "solo" or number < 0:
                    ways[name].block(WARM_UP if number < 0 else steps)
                seconds = time.perf_counter() - begin
                dist.barrier()  # a rank that has nothing to do sleeps here
                if number >= 0:
                    speed[name].append(steps * ways[name].args.global_batch * ways[name].args.context / seconds)
    weights = torch.stack([sum(p.detach().sum() for p in way.model.parameters()) for way in ways.values() if way.model])
    found = [torch.empty_like(weights) for _ in range(RANKS)]
    dist.all_gather(found, weights)
    if not torch.equal(*found):
        sys.exit("no ratio: the weights of a way's ranks differ, they did not train together")
    if rank == 0:
        for way in (ways["ours"], ways["solo"]):
            lines = Path(way.args.out, "metrics.jsonl").read_text().splitlines()
            way.losses = [json.loads(line)["loss"] for line in lines]
        report(speed, {name: way.losses for name, way in ways.items()})


def report(speed: dict[str, list[float]], losses: dict[str, list[float]]) -> None:
    """Print speeds [tokens/s of each round], first and last of the losses, and the ratios beside their targets."""
    print(f"{'':20}{'median':>12}{'best tenth':>12}")
    best = {name: statistics.quantiles(values, n=10)[-1] for name, values in speed.items()}
    for name, values in speed.items():
        first, last = float(losses[name][0]), float(losses[name][-1])
        middle = statistics.median(values)
        print(f"{name:20}{middle:12,.0f}{best[name]:12,.0f}   tokens/s, loss {first:.2f} -> {last:.2f}")
        if last > first - 0.5:  # nats; it falls by more in ten steps
            sys.exit(f"no ratio: {name} did not learn")
    for peer, (times, target) in TARGETS.items():
        name = f"ours / {peer}" if times == 1 else f"ours / ({times} x {peer})"
        if peer not in speed:
            print(f"{name:20}{peer} is not installed, see perf/requirements.txt")
            continue
        middle = statistics.median(a / b / times for a, b in zip(speed["ours"], speed[peer]))
        print(f"{name:20}{middle:12.3f}{best['ours'] / best[peer] / times:12.3f}   target {target:.2f} or more")


def main() -> None:
    """Start the two ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="blocks of each way (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps per block (default: %(default)s)")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < 2 or args.steps < 1:
        parser.error(f"--rounds {args.rounds} --steps {args.steps}: choose at least 2 rounds of 1 step")
    if args.folder:
        measure(args.rounds, args.steps, args.folder)
        leave()
    # One heap for all threads. So each way finds the same memory, although it runs in a thread of its own.
    env = dict(os.environ, OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1", CUDA_VISIBLE_DEVICES="", PYTHONWARNINGS="ignore")
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", __file__]
        run += [f"--rounds={args.rounds}", f"--steps={args.steps}", f"--folder={folder}"]
        print(f"{args.rounds} rounds of {args.steps} steps on {RANKS} ranks of one thread", flush=True)
        sys.exit(subprocess.run(run, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
