"""Train a small network with Horovod: it learns to predict the next byte of a text. One file; needs torch and Horovod.

    LAUNCHER=mpirun-ranks bash slurm/submit_multinode.sh extras/mpi/train_horovod.py     one rank per GPU of the job
    mpirun -np 2 --bind-to none python extras/mpi/train_horovod.py                       two ranks here
    python extras/mpi/train_horovod.py                                                   one

The batch of a step is fixed for the whole job (--global-batch) and divided among the ranks. So the number of ranks
changes the speed, and not the losses, and the learning rate is not multiplied by it, as is often done.

When the job asks it to stop (STOP_FILE, STOP_TIME), rank 0 saves a checkpoint, and the job goes back into the queue
(REQUEUE_FILE). A job that was requeued goes on from there, as --resume does. Exit code 2: something that you asked for
cannot be done, and the message says what to change.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

try:
    import horovod.torch as hvd
except (ImportError, OSError) as error:  # not built, or for another torch or MPI
    hvd, why_not = None, str(error).strip().partition("\n")[0]

# Seconds after which a collective that a rank never joins ends the job. Horovod waits for ever by default.
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600")


class NextByte(nn.Module):
    """A recurrent network over bytes."""

    def __init__(self, width: int) -> None:
        """width: numbers in the state."""
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, 256)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss [nats]. Both tensors: bytes, [sequences, context]."""
        states, _ = self.recurrent(self.embedding(inputs))
        return nn.functional.cross_entropy(self.output(states).flatten(0, 1), targets.flatten())


def fail(message: str) -> NoReturn:
    """Print what is wrong, and end this process with exit code 2."""
    print(f"train_horovod.py: error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__), help="the text (default: this file)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the checkpoint (default: out)")
    parser.add_argument("--steps", type=int, default=200, help="last step (default: 200)")
    parser.add_argument("--global-batch", type=int, default=32, help="sequences per step, of all ranks (default: 32)")
    parser.add_argument("--context", type=int, default=64, help="bytes of a sequence (default: 64)")
    parser.add_argument("--width", type=int, default=128, help="size of the network (default: 128)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="of AdamW (default: 3e-3)")
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints (default: 100)")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: 0)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def join() -> torch.device:
    """Join the ranks that mpirun started; return this rank's device.

    Horovod asks MPI for its rank, and does not read RANK. Without MPI each process would train the whole by itself.
    """
    if hvd is None:
        fail(f"Horovod cannot be used ({why_not}): build it with 'bash extras/mpi/build_horovod.sh'")
    started = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    by_mpi = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"))
    if started > 1 and not by_mpi:
        fail(f"{started} processes were started, but not by MPI: set LAUNCHER=mpirun-ranks")
    if not by_mpi:  # in a step of srun, Open MPI would ask srun for its rank
        os.environ.pop("SLURM_STEPID", None)
        os.environ.pop("SLURM_STEP_ID", None)
    hvd.init()
    if hvd.size() < started:
        fail(f"{started} processes were started by an MPI that Horovod was not built with: build it again")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # Where a rank sees a single GPU, the scheduler has given it that one.
    torch.cuda.set_device(hvd.local_rank() if torch.cuda.device_count() > 1 else 0)
    return torch.device("cuda", torch.cuda.current_device())


def draw_batch(text: torch.Tensor, step: int, args: argparse.Namespace, device: torch.device) -> tuple:
    """Return this rank's part of a step's batch, inputs and targets: the same batch for any number of ranks."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - args.context, (args.global_batch,), generator=generator)
    mine = starts.chunk(hvd.size())[hvd.rank()]
    sequences = torch.stack([text[start : start + args.context + 1] for start in mine]).to(device)
    return sequences[:, :-1], sequences[:, 1:]


def stop_requested() -> bool:
    """Return whether the job asks to stop. All ranks answer alike, as each adds what it has seen."""
    file, moment = os.environ.get("STOP_FILE"), float(os.environ.get("STOP_TIME") or "inf")
    seen = bool(file and os.path.exists(file)) or time.time() >= moment
    return hvd.allreduce(torch.tensor(float(seen)), name="stop", op=hvd.Sum).item() > 0


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint on rank 0, under its name only when it is whole."""
    if hvd.rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
        unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read the checkpoint on rank 0, and give all ranks its state; return its step, 0 without a checkpoint."""
    step = 0
    if hvd.rank() == 0 and path.exists():
        # AdamW keeps its counts of steps on the CPU, as on the other ranks: Horovod sends between equal devices alone.
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    return hvd.broadcast_object(step, root_rank=0)


def main() -> None:
    """Join the other ranks, and train."""
    args = parse_arguments()
    device = join()
    if args.global_batch % hvd.size():
        fail(f"--global-batch {args.global_batch} cannot be shared equally by {hvd.size()} ranks")
    text = torch.frombuffer(bytearray(args.data.read_bytes()), dtype=torch.uint8).long()
    if len(text) <= args.context:
        fail(f"--data {args.data} has {len(text)} bytes, and a sequence takes {args.context + 1}")

    torch.manual_seed(args.seed)
    model = NextByte(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # averages gradients over the ranks
    checkpoint, first = args.out / "checkpoint.pt", 0
    if args.resume or int(os.environ.get("RESTART_COUNT") or 0) > 0:
        first = load(checkpoint, model, optimizer)
    if first:  # a new optimizer has no state: Horovod would make a step to get some, in which weights decay
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s) on {device.type}, from step {first} to {args.steps}", flush=True)

    for step in range(first + 1, args.steps + 1):
        optimizer.zero_grad()
        loss = model(*draw_batch(text, step, args, device))
        loss.backward()
        optimizer.step()

        if step % args.log_every == 0 or step in (first + 1, args.steps):
            mean_loss = hvd.allreduce(loss.detach(), name="loss").item()
            if hvd.rank() == 0:
                print(f"step {step}, loss {mean_loss:.6f}", flush=True)
        stopping = stop_requested() and step < args.steps
        if stopping or step % args.save_every == 0 or step == args.steps:
            save(checkpoint, step, model, optimizer)
        if stopping:
            if hvd.rank() == 0 and "REQUEUE_FILE" in os.environ:
                Path(os.environ["REQUEUE_FILE"]).touch()
            break
    hvd.barrier()  # no rank leaves while rank 0 still writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
