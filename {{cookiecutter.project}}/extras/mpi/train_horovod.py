"""Train the model of train_ddp.py with Horovod, over MPI. Compare the two files to see what differs.

    python training/train_horovod.py                                             one process
    mpirun -np 2 --bind-to none python training/train_horovod.py                 two
    LAUNCHER=mpirun-ranks bash slurm/submit_multinode.sh training/train_horovod.py    one per GPU of the job

slurm/build_horovod.sh builds Horovod. Same flags, files and losses as train_ddp.py; either continues the other's
checkpoint. The learning rate is not multiplied by the ranks, as is often done: the batch does not grow with them.

To train something of your own, replace the text (data.py) and the model with its loss (model.py). A run writes into
--out: checkpoints, from the newest of which --resume continues, and metrics.jsonl, with a line per step and per
evaluation. Exit code 2: something that you asked for cannot be done, and the message says what to change.
"""

import argparse
import math
import os
import sys
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

import distributed
from arguments import fixed_settings, make_parser, parse_arguments
from checkpoint import Checkpoints
from control import Control
from data import data_loader, sample_indices
from distributed import fail
from evaluation import evaluate
from memory import checkpoint_activations
from metrics import Metrics
from model import GPT
from optimizer import make_optimizer
from precision import Precision, choose_precision
from resume import start_or_resume
from schedule import due, seed_step, set_learning_rate
from tracing import Profiler

try:
    import horovod.torch as hvd
except (ImportError, OSError) as error:  # not built, or for another torch or MPI
    hvd, why_not = None, str(error).strip().partition("\n")[0]

STALL = 60  # seconds without a rank after which Horovod says which one it waits for
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # what those who start MPI ranks set


def join(timeout: float) -> tuple[int, int, torch.device]:
    """Join the ranks that mpirun (or srun with PMI) started; return rank, world size and this process's device.

    Horovod asks MPI and nothing else: RANK and WORLD_SIZE would not reach it. Without MPI every process would be alone
    and train the whole by itself. A collective that a peer never joins fails after about `timeout` seconds.
    """
    if hvd is None:
        fail(f"Horovod cannot be used ({why_not}): build it with 'INSTALL_HOROVOD=1 bash slurm/build_venv.sh'")
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
        fail(f"{started} processes were started, but {missing}")
    os.environ["LOCAL_RANK"] = str(hvd.local_rank())  # which fail needs: not every MPI tells it by a variable
    device = torch.device("cpu")
    if torch.cuda.is_available():  # where a rank sees a single GPU, the scheduler has given it that one
        device = torch.device("cuda", hvd.local_rank() if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    return hvd.rank(), hvd.size(), device


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors. All ranks have to call."""
    return hvd.allreduce(numbers, name="sum", op=hvd.Sum)


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    args: argparse.Namespace,
    precision: Precision,
) -> torch.Tensor:
    """Update the weights once; return the mean loss of this rank's part of the batch.

    batch: inputs and targets, each [sequences, ...]. The gradients of its micro batches add up. All micro batches have
    the same size, so the mean of their means is the batch's mean. Horovod averages the gradients over the ranks
    during the backward pass of the last micro batch: the backward_passes_per_step-th that it counts.
    """
    optimizer.zero_grad()
    mean_loss = 0.0
    micro_batches = list(zip(*(tensor.split(args.micro_batch) for tensor in batch)))
    for inputs, targets in micro_batches:
        with precision.autocast:
            loss = model(inputs, targets).mean() / len(micro_batches)
        loss.backward()
        mean_loss += loss.detach()
    optimizer.synchronize()  # the averages are there: what is clipped has to be the whole gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    with optimizer.skip_synchronize():
        optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    """Train from step 0, or from the newest checkpoint, to step args.steps."""
    distributed.sum_over_ranks = sum_over_ranks  # for metrics, evaluation and requests
    corpus = args.corpus  # read by parse_arguments(), as is the model's args.config
    precision = choose_precision(args.dtype, device)
    torch.manual_seed(args.seed)  # for the initial weights
    model = GPT(args.config).to(device, precision.weights_dtype)
    if args.activation_checkpointing:
        checkpoint_activations(model.blocks)
    if args.compile:
        model.compile()
    plain = make_optimizer(model, args.learning_rate)  # wrapped before it has moments: wrapping drops them
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), backward_passes_per_step=args.accumulation)

    checkpoints = Checkpoints(args.out, args.keep, fixed_settings(args))
    state = start_or_resume(checkpoints, model, optimizer, args, rank, world_size)
    first_step = state["step"]
    metrics = Metrics(args, state, model, precision, device, rank, world_size)
    control = Control(args, first_step, device, rank, world_size)
    profiler = Profiler(args, metrics)
    if first_step:  # a new optimizer has no state: Horovod would make a step to get some, in which weights decay
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    indices = sample_indices(len(corpus.train), args.global_batch, args.seed, first_step, args.steps, rank, world_size)
    batches = data_loader(corpus.train, indices, args.workers, device)
    for step, batch in enumerate(batches, start=first_step + 1):
        profiler.begin(step)  # records the steps of --profile
        set_learning_rate(optimizer, step, args)
        seed_step(args.seed, step, rank)
        loss = train_step(model, optimizer, batch, args, precision)
        metrics.add(loss)  # stays on the device

        request = control.request(step)  # "stop", "save" or ""
        evaluating = due(step, args.eval_every, args.steps)
        saving = request or due(step, args.save_every, args.steps)
        if due(step, args.log_every, args.steps) or evaluating or saving or step == first_step + 1:
            metrics.log(step)  # reads the losses since the last line, and updates metrics.state
        if evaluating:
            val_loss = evaluate(model, corpus.validation, args.micro_batch, precision, device, rank, world_size)
            metrics.log_validation(step, val_loss)
        if saving:
            with control.saving():
                if rank == 0:
                    checkpoints.save(metrics.state, model, optimizer)
                hvd.join()  # and not barrier(), for which --timeout holds: a large checkpoint may take longer
            metrics.restart_clock("checkpoints")
        if request == "stop":
            control.requeue()
            break
    profiler.finish()
    metrics.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    rank, world_size, device = join(
        make_parser(__doc__).parse_args().timeout
    )  # first: only MPI knows how many they are
    train(parse_arguments(__doc__, world_size), rank, world_size, device)
    hvd.barrier()  # no rank leaves while rank 0 still writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
