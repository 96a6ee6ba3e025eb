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

import argparse
import math
import os

import common
import torch
from checkpoint import Checkpoints
from data import loader, share
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
    if torch.cuda.is_available():  # where a rank sees a single GPU, the scheduler has given it that one
        device = torch.device("cuda", hvd.local_rank() if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    return hvd.rank(), hvd.size(), device


def total(numbers: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors."""
    return hvd.allreduce(numbers, name="total", op=hvd.Sum)


def train_step(run: common.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list) -> torch.Tensor:
    """Make one update from this rank's share of a batch, inputs and targets [sequences, context]; return its mean loss.

    Every micro batch has the same size, so the mean of their means is the mean. Horovod averages the gradients over
    the ranks while the last micro batch's are computed: the backward_passes_per_step-th that it counts.
    """
    optimizer.zero_grad()
    mean_loss = torch.zeros((), device=run.device)
    parts = list(zip(*(tensor.split(run.args.micro_batch) for tensor in batch)))
    for tokens, targets in parts:
        with run.autocast:
            loss = model(tokens, targets).mean() / len(parts)
        loss.backward()
        mean_loss = mean_loss + loss.detach()
    optimizer.synchronize()  # the averages are there: what is clipped has to be the whole gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with optimizer.skip_synchronize():
        optimizer.step()
    return mean_loss


def train(args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    """Train from step 0, or the newest checkpoint, to args.steps."""
    run = common.Run(args, device, rank, world)
    run.total = total
    torch.manual_seed(args.seed)  # of the initial weights, which are the same everywhere
    model = GPT(args.config).to(device, run.weights)
    if args.compile:
        model.compile()
    new = common.make_optimizer(model, args.learning_rate)  # wrapped before it has moments: wrapping drops them
    optimizer = hvd.DistributedOptimizer(new, model.named_parameters(), backward_passes_per_step=args.accumulation)
    checkpoints = Checkpoints(args.out, args.keep, run.settings)
    run.start(checkpoints, model, optimizer)
    if run.first:  # a new one has no state: Horovod would make a step to get some, in which AdamW decays weights
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    numbers = share(len(run.corpus.train), args.global_batch, args.seed, run.first, args.steps, rank, world)
    for step, batch in enumerate(loader(run.corpus.train, numbers, args.workers, device), start=run.first + 1):
        common.prepare_step(step, rank, args, optimizer)
        run.note(step, train_step(run, model, optimizer, batch), model)
        if run.save:
            if rank == 0:
                checkpoints.save(run.state, model, optimizer)
            hvd.join()  # and not barrier(), for which --timeout holds: a large checkpoint may take longer
            run.saved()
        if run.stop:
            break
    run.finish()


@record
def main() -> None:
    """Join the other ranks, and train."""
    rank, world, device = join(common.flags(__doc__).parse_args().timeout)  # first: only MPI knows how many they are
    train(common.parse_arguments(__doc__, world), rank, world, device)
    hvd.barrier()  # nobody leaves while rank 0 still writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
