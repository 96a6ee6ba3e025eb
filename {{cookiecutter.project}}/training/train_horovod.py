"""Train the same model with Horovod: what train_ddp.py does, over MPI; compare the two files to see what differs.

    python training/train_horovod.py                                             one process
    mpirun -np 2 --bind-to none python training/train_horovod.py                 two
    LAUNCHER=mpirun-ranks sbatch slurm/submit_multinode.sh training/train_horovod.py    one per GPU of the job

slurm/build_horovod.sh builds Horovod. Same flags, files and losses as train_ddp.py; either continues the other's
checkpoint. The learning rate is not multiplied by the ranks, as is often done: the batch does not grow with them.

Which text is read is decided in data.py, the model is in model.py. What a run writes into --out: checkpoints (--resume
continues from the newest) and metrics.jsonl (one line per step, one per evaluation). Exit code 2: something that you
asked for cannot be done, and the message says what would be.
"""

from __future__ import annotations

import argparse
import math
import os
from contextlib import AbstractContextManager
from functools import partial

import common
import torch
from checkpoint import Checkpoints
from data import Share, Windows, evaluation, loader
from model import GPT
from torch.distributed.elastic.multiprocessing.errors import record

try:
    import horovod.torch as hvd
except (ImportError, OSError) as error:  # not built, or for another torch or MPI
    hvd, why_not = None, str(error).strip().partition("\n")[0]

CLIP = 1.0  # largest norm of the gradient
STALL = 60  # seconds without a rank after which Horovod says which one it waits for
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # what those who start MPI ranks set


def join(timeout: float) -> tuple[int, int, torch.device]:
    """Join the ranks that mpirun (or srun with PMI) started; return rank, world size and this process's device.

    Horovod asks MPI and nothing else: RANK and WORLD_SIZE would not reach it. Without MPI every process would be alone
    and train the whole by itself. A collective that a peer never joins fails after about `timeout` seconds.
    """
    if hvd is None:
        common.fail(f"Horovod cannot be used ({why_not}): build it with 'INSTALL_HOROVOD=1 bash slurm/build_venv.sh'")
    started = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    by_mpi = any(name in os.environ for name in MPI_RANKS)
    if by_mpi or started == 1:
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(math.ceil(min(STALL, timeout))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(math.ceil(timeout)))
        for name in () if by_mpi else ("SLURM_STEPID", "SLURM_STEP_ID"):  # or Open MPI would ask srun for its rank
            os.environ.pop(name, None)
        hvd.init()
    if started > 1 and not (by_mpi and hvd.size() > 1):
        missing = "not by an MPI that Horovod knows: set LAUNCHER=mpirun-ranks"
        common.fail(f"{started} processes were started, but {missing}")
    os.environ["LOCAL_RANK"] = str(hvd.local_rank())  # which common.fail needs: not every MPI tells it by a variable
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a single visible GPU is this rank's own, given by the scheduler
        device = torch.device("cuda", hvd.local_rank() if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    return hvd.rank(), hvd.size(), device


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

    Every micro batch has the same size, so the mean of their means is the mean. Horovod averages the gradients over
    the ranks while the last micro batch's are computed: the backward_passes_per_step-th that it counts.
    """
    optimizer.zero_grad()  # Horovod's takes no set_to_none
    mean_loss = torch.zeros((), device=tokens.device)
    parts = list(zip(tokens.split(micro_batch), targets.split(micro_batch)))
    for inputs, wanted in parts:
        mean_loss = mean_loss + gradients_of(model, inputs, wanted, len(parts), autocast)
    optimizer.synchronize()  # the averages are there: what is clipped has to be the whole gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with optimizer.skip_synchronize():
        optimizer.step()
    return mean_loss


def collect(losses: list[torch.Tensor], wishes: list[float]) -> tuple[list[float], list[float]]:
    """Return the losses as numbers, and the wishes, means over the ranks; this waits for the device."""
    numbers = torch.cat([torch.stack(losses), losses[0].new_tensor(wishes)]).double()
    numbers = hvd.allreduce(numbers, name="losses", op=hvd.Average)
    return numbers[: len(losses)].tolist(), numbers[len(losses) :].tolist()


@torch.no_grad()
def evaluate(model: torch.nn.Module, windows: Windows, size: int, autocast: AbstractContextManager) -> float:
    """Return the mean loss over windows spread over the text, `size` at once, each computed by one rank."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, of their number
    model.eval()
    for batch in evaluation(windows, size, hvd.rank(), hvd.size()):
        tokens, targets, weights = (part.to(device) for part in batch)
        with autocast:
            losses = model(tokens, targets).double().view(len(weights), -1)
        sums += torch.stack([(losses.mean(1) * weights).sum(), weights.sum()])
    model.train()
    sums = hvd.allreduce(sums, name="evaluation", op=hvd.Sum)  # and not means: a rank may have one window fewer
    return (sums[0] / sums[1]).item()


def train(args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    corpus, settings = common.open_corpus(args)
    dtype, autocast, weights_in = common.precision(args.dtype, device)
    torch.manual_seed(args.seed)  # of the initial weights, which are the same everywhere
    model = GPT(args.config).to(device, weights_in)
    if args.compile:
        model.compile()
    new = common.make_optimizer(model, args.learning_rate)  # wrapped before it has moments: wrapping drops them
    optimizer = hvd.DistributedOptimizer(new, model.named_parameters(), backward_passes_per_step=args.accumulation)
    checkpoints = Checkpoints(args.out, args.keep, settings)
    state = common.open_run(args, corpus, checkpoints, model, optimizer, rank, partial(hvd.allgather, name="agreement"))
    if state["step"]:  # a new one has no state: Horovod would make a step to get some, in which AdamW decays weights
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    log = common.Log(args, corpus, model, dtype, device, state, rank, world)
    windows, validation = Windows(corpus.train, args.context), Windows(corpus.validation, args.context)
    share = Share(len(windows), args.global_batch, args.seed, log.first, args.steps, rank, world)
    pace = common.Pace(args, log)
    for step, batch in enumerate(loader(windows, share, common.workers(args, device), device), start=log.first + 1):
        tokens, targets = (part.to(device, non_blocking=True) for part in batch)
        rate = common.prepare_step(step, rank, args, optimizer)
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
            if rank == 0:
                checkpoints.save(log.state, model, optimizer)
            hvd.join()  # and not barrier(), for which --timeout holds: a large checkpoint may take longer
            pace.has_saved()
        if pace.stop:
            break
        log.resume_clock()
    log.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    rank, world, device = join(common.flags(__doc__).parse_args().timeout)  # first: only MPI knows how many they are
    train(common.parse_arguments(__doc__, world), rank, world, device)
    hvd.barrier()  # nobody leaves while rank 0 still writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
