"""Checks rank and GPU placement: node, GPU, cores and network of each rank. Run it before any other program.

    python check/ranks.py        alone, as the only rank; a job's submit script starts it on all ranks

Rank 0 prints a table with one row per rank, and below it a sentence for each fault. With a fault, the exit code is 1.
These are the faults:

- Two ranks share a GPU.
- torch sees no GPU, although the job was given GPUs. ALLOW_CPU=1 accepts that.
- An all-reduce over all ranks gives a wrong sum. It is not tried after one of the faults above.
- Ranks talk TCP, or through a network that NCCL does not name, although REQUIRE_RDMA=1 forbids that.
- Ranks are bound to one core each, although their host has other cores, to which no such rank is bound.

Only NCCL's debug output names the network. So this program sets NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE
itself. To see that output, set them for another program.
"""

import argparse
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

# Columns of the table: fields of Row.
COLUMNS = ["rank", "host", "node_rank", "local_rank", "device", "uuid", "cores", "threads", "torch", "nccl", "network"]
# Variables that say which GPUs this process has, and their values that mean none.
GPU_VARIABLES = {"CUDA_VISIBLE_DEVICES": ("", "-1"), "RUNAI_NUM_OF_GPUS": ("", "0")}
# What NCCL prints with NCCL_DEBUG=INFO, for example:
#   n1:1:2 [0] NCCL INFO Using network IB
#   n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.1.1<0>
# NCCL's plug-in for libfabric also prints what libfabric uses, its provider. The wording differs between versions
# (https://github.com/aws/aws-ofi-nccl/issues/889, 2026-11-22):
#   n1:1:2 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
NCCL_NETWORK = re.compile(r"Using network (.+)")
NCCL_CARDS = re.compile(r"NET/\w+ *: *Using (\[0\][^;\n]+)")
NCCL_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
# Names of TCP: NCCL's own, and libfabric's providers (man pages fi_tcp(7) and fi_sockets(7), 2026-11-22). libfabric
# joins the names of layers by ";", as in "tcp;ofi_rxm".
NAMES_OF_TCP = {"Socket", "tcp", "sockets"}

# The tensors that ranks exchange, kept so that Python is the last that releases them. Otherwise torch 2.4 and 2.6 may
# hang at the end: destroy_process_group() holds Python's lock, the GIL, and waits for a thread of gloo. That thread
# waits for the lock if it is the last that releases a tensor (https://github.com/pytorch/pytorch/pull/154976).
KEPT = []


@dataclass
class Row:
    """What one rank tells about itself."""

    rank: int
    host: str
    node_rank: int
    local_rank: int
    device: str  # for example "cuda:0 NVIDIA H100", or "CPU"
    uuid: str  # tells this GPU from the others of its host, whatever its number is; "" on a CPU
    cores: list[int]  # the cores that this process may use
    threads: int  # how many threads torch uses
    torch: str  # version
    nccl: str  # version, "-" on a CPU
    host_cores: int  # how many cores the host has
    given: str  # the variable that gives this process GPUs, for example "CUDA_VISIBLE_DEVICES=0,1", or ""
    network: str = ""  # what connects this rank to the others; "" before the first all-reduce


@record
def main() -> None:
    """Describe all ranks, look for faults, report from rank 0."""
    args = read_flags()
    nccl_log = open_nccl_log()
    rank, world_size, device = setup(args.timeout)

    rows = [Row(**fields) for fields in gather(asdict(describe(rank, device)), world_size)]
    faults = [*ranks_that_share_a_gpu(rows), *ranks_that_see_no_gpu(rows)]
    if not faults:  # else NCCL would stop the ranks with an error of its own
        faults += check_all_reduce(rank, world_size, device)
        networks = gather(network_of(device, nccl_log.read()), world_size)
        for row, network in zip(rows, networks):
            row.network = network
        if os.environ.get("REQUIRE_RDMA") == "1":
            faults += ranks_without_rdma(rows)
    faults += ranks_with_one_core(rows)

    if rank == 0:
        print("\n".join([table(rows), *(f"FAULT: {fault}" for fault in faults)]), flush=True)
        if not faults:
            print(
                f"all-reduce over {world_size} rank(s) on {len({row.host for row in rows})} host(s): right", flush=True
            )
        if args.json:
            args.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "faults": faults}, indent=1) + "\n")
    # The launcher ends all ranks when the first one fails. So no rank leaves before rank 0 has printed its report.
    gather(None, world_size)
    dist.destroy_process_group()
    sys.exit(1 if faults else 0)


def read_flags() -> argparse.Namespace:
    """Return the flags; exit with a message if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write rows and faults to FILE")
    add("--timeout", type=float, default=60, metavar="SECONDS", help="until a silent rank is lost (default: 60)")
    args = parser.parse_args()
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    cannot_write = args.json and (args.json.is_dir() or not os.access(args.json.parent, os.W_OK))
    if cannot_write and os.environ.get("RANK", "0") == "0":
        parser.error(f"--json {args.json}: name a file in a folder that is there and yours")
    return args


def open_nccl_log() -> IO[str]:
    """Return a file to which NCCL will write its debug output. Only there does NCCL say which network it uses.

    Call this before NCCL starts, and keep the file: it is deleted when it is closed.
    """
    log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=log.name)
    return log


def setup(timeout: float) -> tuple[int, int, torch.device]:
    """Join the process group of all ranks; return rank, world size and this rank's device.

    launch/ and torchrun set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables). Without RANK, this process is the
    only rank. A collective that another rank does not join within `timeout` seconds fails.
    """
    tasks = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "RANK" not in os.environ and tasks != "1":
        sys.exit(
            f"{tasks} tasks started, but RANK is not set, so each would run as a separate job: "
            f"start {sys.argv[0]} through the submit script"
        )

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        # Where a rank sees a single GPU, the scheduler has given it that one.
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"

    wait = timedelta(seconds=timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=wait)
    else:
        dist.init_process_group(backend, timeout=wait, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size(), device


def describe(rank: int, device: torch.device) -> Row:
    """Return the row of this rank, without its network."""
    name, uuid, nccl = "CPU", "", "-"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name = f"{device} {properties.name}"
        # Where torch knows no UUID, the PCI bus or the number tells the GPUs of a host apart.
        uuid = str(getattr(properties, "uuid", f"pci {getattr(properties, 'pci_bus_id', device.index)}"))
        nccl = ".".join(str(number) for number in torch.cuda.nccl.version())
    return Row(
        rank=rank,
        host=socket.gethostname(),
        node_rank=int(os.environ.get("GROUP_RANK", "0")),  # torchrun's name for the rank of the node
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        device=name,
        uuid=uuid,
        cores=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        nccl=nccl,
        host_cores=os.cpu_count(),
        given=assigned_gpus(),
    )


def assigned_gpus() -> str:
    """Return the variable that gives GPUs to this process, with its value.

    Returns "" if there is none, or if ALLOW_CPU=1 accepts CPUs. The first variable of GPU_VARIABLES that is set counts.
    """
    if os.environ.get("ALLOW_CPU") == "1":
        return ""
    for name, values_for_none in GPU_VARIABLES.items():
        if name in os.environ:
            value = os.environ[name]
            return "" if value in values_for_none else f"{name}={value}"
    return ""


def network_of(device: torch.device, nccl_log: str) -> str:
    """Return what connects this rank to the others.

    On a GPU that is the network that NCCL's log names. On a CPU it is the interface of gloo, or this host's address.
    """
    if device.type == "cuda":
        matches = [expression.search(nccl_log) for expression in (NCCL_NETWORK, NCCL_CARDS, NCCL_PROVIDER)]
        return " ".join(["nccl", *(match[1].strip() for match in matches if match)])
    address = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not address:
        try:
            address = socket.gethostbyname(socket.gethostname())
        except OSError:  # no address belongs to the name of this host
            address = ""
    return f"gloo tcp {address}".strip()


def table(rows: list[Row]) -> str:
    """Return the rows as text, one line each, below a line with the names of the columns; "-" is an empty field."""
    lines = [COLUMNS]
    for row in rows:
        fields = {**asdict(row), "uuid": row.uuid[:12], "cores": f"{len(row.cores)}/{row.host_cores}"}
        lines.append([str(fields[name]) or "-" for name in COLUMNS])
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


# ---- faults: each kind has a function, which yields sentences: what is wrong, and what to do -------------------------


def ranks_that_share_a_gpu(rows: list[Row]) -> Iterator[str]:
    """Two or more ranks compute on one GPU of a host."""
    on_gpus = [row for row in rows if row.uuid]
    for group in groups(on_gpus, "host", "uuid"):
        if len(group) > 1:
            yield (
                f"ranks {ranks_of(group)} share one GPU of {group[0].host} ({group[0].uuid}). "
                "Set NPROC_PER_NODE to the number of GPUs of the node, and do not pass --gpus-per-task"
            )


def ranks_that_see_no_gpu(rows: list[Row]) -> Iterator[str]:
    """The scheduler gave GPUs, but torch sees none. This torch was built for CPUs, or for another driver."""
    on_cpus = [row for row in rows if row.given and not row.uuid]
    for group in groups(on_cpus, "host"):
        yield (
            f"rank(s) {ranks_of(group)} on {group[0].host} were given GPUs ({group[0].given}), "
            f"but torch {group[0].torch} sees none. Install a torch for this driver, or accept CPUs with ALLOW_CPU=1"
        )


def ranks_with_one_core(rows: list[Row]) -> Iterator[str]:
    """Ranks are bound to one core each, and their host has other cores, to which no such rank is bound."""
    with_one_core = [row for row in rows if len(row.cores) == 1]
    for group in groups(with_one_core, "host"):
        used_cores = {row.cores[0] for row in group}
        if len(used_cores) < group[0].host_cores:  # else each core has a rank of its own, and nothing is wrong
            yield (
                f"rank(s) {ranks_of(group)} on {group[0].host} may use one core of {group[0].host_cores}: "
                "pass --cpus-per-task to srun, or --bind-to none to mpirun"
            )


def ranks_without_rdma(rows: list[Row]) -> Iterator[str]:
    """Ranks talk TCP, or NCCL does not name their network."""
    without_rdma = [row for row in rows if not uses_rdma(row)]
    for group in groups(without_rdma, "host", "network"):
        yield (
            f"REQUIRE_RDMA=1, but rank(s) {ranks_of(group)} on {group[0].host} talk through {group[0].network}. "
            "There may be no RDMA device, no libibverbs or no librdmacm. Or NCCL_IB_DISABLE, NCCL_NET or FI_PROVIDER "
            "is set. Any other program with NCCL_DEBUG=INFO prints the reason. REQUIRE_RDMA=0 accepts TCP"
        )


def uses_rdma(row: Row) -> bool:
    """Return whether NCCL names a network, and this is not TCP."""
    names = row.network.replace(";", " ").split()
    return row.network.startswith("nccl ") and NAMES_OF_TCP.isdisjoint(names)


def groups(rows: list[Row], *names: str) -> list[list[Row]]:
    """Return the rows in groups. The rows of a group agree in the fields `names`."""
    rows_by_values = {}
    for row in rows:
        values = tuple(getattr(row, name) for name in names)
        rows_by_values.setdefault(values, []).append(row)
    return list(rows_by_values.values())


def ranks_of(rows: list[Row]) -> str:
    """Return the ranks of these rows, as in "0, 1, 2"."""
    return ", ".join(str(rank) for rank in sorted(row.rank for row in rows))


def check_all_reduce(rank: int, world_size: int, device: torch.device) -> list[str]:
    """Add up the numbers 1 ... world_size, one of each rank. Return a sentence for each rank with a wrong sum."""
    total = torch.tensor(rank + 1, device=device)
    dist.all_reduce(total)
    KEPT.append(total)
    expected = world_size * (world_size + 1) // 2
    return [
        f"the all-reduce over {world_size} ranks gave {found} on rank {number}, not {expected}"
        for number, found in enumerate(gather(total.item(), world_size))
        if found != expected
    ]


def gather(value, world_size: int) -> list:
    """Return the `value` of every rank, in the order of ranks. Every rank gets the list.

    value: anything that JSON can hold. It travels between CPUs, so this works also where NCCL fails.
    dist.all_gather_object would do the same, but needs NumPy.
    """
    text = json.dumps(value).encode()
    longest = torch.tensor(len(text))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded_text = torch.tensor(list(text.ljust(int(longest))), dtype=torch.uint8)
    texts = [torch.empty_like(padded_text) for _ in range(world_size)]
    dist.all_gather(texts, padded_text)
    KEPT.append((longest, padded_text, texts))
    return [json.loads(bytes(text.tolist())) for text in texts]


if __name__ == "__main__":
    main()
