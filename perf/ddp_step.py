"""How much of a bare DDP loop's speed the training example keeps, on 2 CPU ranks of one thread.

    python perf/ddp_step.py                  about a minute
    python perf/ddp_step.py --rounds 100     for a noisy machine

Three ways to train the example's model on the example's text take turns, a block of steps each, in one process group,
so that whatever else the machine does meets all of them:

- ours: what training/train_ddp.py does for each step (its order of samples, schedule, accumulation code, reduced loss);
- bare: the shortest loop one would write by hand, below. It has the same DDP options and optimizer, so that the
  difference is the loop and nothing else;
- solo: the bare loop without DDP on rank 0, while rank 1 sleeps: the speed that two ranks should double.

Two ratios are given, because other work on the machine disturbs both in its own way: the median over the rounds of the
ratio within a round, and the ratio of the speeds that each way exceeds in a tenth of its rounds, the quiet ones. The
exit code is 0 whatever they are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

TRAINING = Path(__file__).resolve().parents[1] / "{{cookiecutter.project}}" / "training"
sys.path.insert(0, str(TRAINING))
sys.dont_write_bytecode = True  # beside these sources it would become part of every project written from them

from data import count, cut, read_corpus, step_order  # noqa: E402
from model import GPT, Config  # noqa: E402
from train_ddp import learning_rate_at, make_optimizer, over_ranks, setup, train_step  # noqa: E402

RANKS = 2
BATCH = 32  # sequences per step, over all ranks: the example's default
LOG_EVERY = 10  # steps: likewise
PEAK = 3e-3  # learning rate: likewise
WARM_UP = 5  # steps of each way before the first round
RATIOS = {"ours / bare": ("ours", "bare", 1, 0.98), "ours / (2 x solo)": ("ours", "solo", RANKS, 0.90)}


class Ours:
    """The loop of train_ddp.py, a block at a time."""

    def __init__(self, config: Config, device: torch.device) -> None:
        """Make model and optimizer as train_ddp.py does."""
        self.config, self.corpus, self.step = config, read_corpus(None), 0
        self.windows = count(self.corpus.train, config.context)
        model = GPT(config).to(device)
        self.optimizer = make_optimizer(model, PEAK)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def run(self, steps: int) -> None:
        """Train for `steps`, the losses reduced every LOG_EVERY as train_ddp.py does for its log."""
        losses, rank = [], dist.get_rank()
        for _ in range(steps):
            mine = step_order(self.step, self.windows, BATCH, seed=0)[rank::RANKS]
            tokens, targets = cut(self.corpus.train, mine, self.config.context)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate_at(self.step, 10_000, PEAK)
            losses.append(train_step(self.ddp, self.optimizer, tokens, targets, BATCH // RANKS, nullcontext()))
            self.step += 1
            if self.step % LOG_EVERY == 0:
                losses = over_ranks(losses) and []


class Bare:
    """A loop written by hand: random windows, loss, backward, clip, step; nothing reduced, nothing scheduled."""

    def __init__(self, config: Config, device: torch.device, parallel: bool) -> None:
        """Make the same model and optimizer; `parallel`: inside DDP."""
        self.context, self.text = config.context, read_corpus(None).train
        self.model = GPT(config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
        if parallel:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def run(self, steps: int) -> None:
        """Train for `steps` on BATCH / RANKS windows per rank."""
        for step in range(steps):
            starts = torch.randint(len(self.text) - self.context - 1, (BATCH // RANKS,)).tolist()
            tokens = torch.stack([self.text[i : i + self.context] for i in starts]).long()
            targets = torch.stack([self.text[i + 1 : i + 1 + self.context] for i in starts]).long()
            loss = F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % LOG_EVERY == 0:
                loss.item()


def measure(rounds: int, steps: int) -> None:
    """Run the blocks on this rank; rank 0 prints the table."""
    rank, _, device = setup(timeout=600)
    torch.manual_seed(0)
    config = Config()
    ways = {"ours": Ours(config, device), "bare": Bare(config, device, True), "solo": Bare(config, device, False)}
    speed: dict[str, list[float]] = {name: [] for name in ways}  # tokens/s of each round
    for number in range(-1, rounds):
        names = list(ways) if number % 2 else list(ways)[::-1]  # so that nobody always comes after the same one
        for name in names:
            dist.barrier()
            begin = time.perf_counter()
            if rank == 0 or name != "solo":
                ways[name].run(WARM_UP if number < 0 else steps)
            seconds = time.perf_counter() - begin
            dist.barrier()  # a rank that has nothing to do sleeps here
            if number >= 0:
                speed[name].append(steps * BATCH * config.context / (RANKS if name == "solo" else 1) / seconds)
    if rank == 0 and rounds > 1:
        report(speed, rounds, steps)
    del ways
    dist.destroy_process_group()


def report(speed: dict[str, list[float]], rounds: int, steps: int) -> None:
    """Print speeds [tokens/s per round] and their ratios beside the targets."""
    print(f"{rounds} rounds of {steps} steps, {RANKS} ranks x 1 thread, {BATCH // RANKS} sequences per rank and step")
    print(f"{'':20}{'median':>12}{'best tenth':>12}")
    best = {name: statistics.quantiles(values, n=10)[-1] for name, values in speed.items()}
    for name, values in speed.items():
        print(f"{name:20}{statistics.median(values):12,.0f}{best[name]:12,.0f}   tokens/s")
    for name, (way, peer, times, target) in RATIOS.items():
        middle = statistics.median(a / b / times for a, b in zip(speed[way], speed[peer]))
        print(f"{name:20}{middle:12.3f}{best[way] / best[peer] / times:12.3f}   target {target:.2f} or more")


def main() -> None:
    """Start the two ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="blocks of each way (default: 24)")
    parser.add_argument("--steps", type=int, default=4, help="steps per block (default: 4)")
    args = parser.parse_args()
    if "RANK" in os.environ:
        measure(args.rounds, args.steps)
        return
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", __file__]
    given = [f"--rounds={args.rounds}", f"--steps={args.steps}"]
    if subprocess.run([*run, *given], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode:
        print("no ratio: the ranks failed, see above")


if __name__ == "__main__":
    main()
