"""Who is rank N, on which GPU, with how many cores, over which network: the table to read before anything else.

    python check/ranks.py        here and alone; through the submit script all ranks of a job

Prints one row for each rank and ends with an all-reduce over all of them. Exit code 1, with a sentence for each fault,
when two ranks share a GPU, when torch sees none of the GPUs that were given (ALLOW_CPU=1 accepts that), when versions
differ between ranks, when a rank has one core of a machine that has many, or, with REQUIRE_RDMA=1, when ranks talk TCP.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

COLUMNS = ["rank", "host", "node_rank", "local_rank", "device", "uuid", "cores", "threads", "torch", "nccl", "network"]
# What is wrong, and what to do; told() fills in the names.
SHARED = "ranks {ranks} share one GPU of {host} ({uuid}): set NPROC_PER_NODE to its number of GPUs; no --gpus-per-task"
BLIND = "rank(s) {ranks} on {host} were given GPUs ({given}), but torch {torch} sees none: install one for this driver"
ONE_CORE = "rank(s) {ranks} on {host} may use one core of {host_cores}: pass --cpus-per-task (mpirun: --bind-to none)"
TCP = "REQUIRE_RDMA=1, but rank(s) {ranks} on {host} talk through {network}: no RDMA device, no libibverbs or no "
TCP += "librdmacm, or NCCL_IB_DISABLE or NCCL_NET (a program with NCCL_DEBUG=INFO tells); REQUIRE_RDMA=0 accepts TCP"


def setup(timeout: float) -> tuple[int, int, torch.device]:
    """Join the process group that the launcher described; return rank, world size and this process's device.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come from launch/ or torchrun
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables); without RANK the process is alone.
    A collective that a peer never joins fails after `timeout` seconds.
    """
    started = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "RANK" not in os.environ and started != "1":
        sys.exit(f"started {started} times without RANK, each would be alone: put launch/rank.sh before {sys.argv[0]}")
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    device = torch.device("cpu")
    if torch.cuda.is_available():  # where a rank sees a single GPU, the scheduler has given it that one
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def describe(rank: int, device: torch.device) -> dict:
    """Return this process's row of the table, and what else `faults()` looks at."""
    row = {"rank": rank, "host": socket.gethostname(), "host_cores": os.cpu_count(), "given": given_gpus(), "uuid": ""}
    row["node_rank"] = int(os.environ.get("GROUP_RANK", "0"))  # torchrun's name for the rank of the node
    row["local_rank"] = int(os.environ.get("LOCAL_RANK", "0"))
    row["cores"] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
    row |= {"threads": torch.get_num_threads(), "torch": torch.__version__, "device": "CPU", "nccl": "-", "network": ""}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        row["device"] = f"{device} {properties.name}"
        row["uuid"] = str(getattr(properties, "uuid", f"pci {getattr(properties, 'pci_bus_id', device.index)}"))
        row["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return row


def given_gpus() -> str:
    """Return what says that this process was given GPUs; '' when nothing does, or when ALLOW_CPU accepts CPUs."""
    for name, none in (("CUDA_VISIBLE_DEVICES", {"", "-1"}), ("RUNAI_NUM_OF_GPUS", {"", "0"})):
        if name in os.environ and not os.environ.get("ALLOW_CPU"):
            return "" if os.environ[name] in none else f"{name}={os.environ[name]}"
    return ""


def told(rows: list[dict], keys: list[str], sentence: str, least: int = 1) -> list[str]:
    """Return `sentence` for each group of at least `least` rows that agree in `keys`.

    Filled in are {ranks} and {hosts} of the group and any field of a row.
    """
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for group in groups.values():
        ranks, hosts = (", ".join(map(str, sorted({row[key] for row in group}))) for key in ("rank", "host"))
        if len(group) >= least:
            found.append(sentence.format(ranks=ranks, hosts=hosts, **group[0]))
    return found


def faults(rows: list[dict]) -> list[str]:
    """Return what is wrong with the rows of all ranks, one sentence each; [] when nothing is.

    rows: one `describe()` for each rank, in any order.
    """
    found = told([row for row in rows if row["uuid"]], ["host", "uuid"], SHARED, least=2)
    found += told([row for row in rows if row["given"] and not row["uuid"]], ["host"], BLIND)
    versions = told(rows, ["torch", "nccl"], "torch {torch} with NCCL {nccl} on {hosts}")
    if len(versions) > 1:
        found.append(f"the ranks run different versions: {'; '.join(versions)}. Use one environment on all nodes")
    lonely = [row for row in rows if len(row["cores"]) == 1]
    taken = Counter(host for host, _ in {(row["host"], row["cores"][0]) for row in lonely})
    lonely = [row for row in lonely if taken[row["host"]] < row["host_cores"]]  # else each core has a rank of its own
    return found + told(lonely, ["host"], ONE_CORE)


def without_rdma(rows: list[dict]) -> list[str]:
    """Return a sentence for each host whose ranks talk through TCP, or through nobody knows what."""
    return told([row for row in rows if not re.match("nccl (?!Socket)", row["network"])], ["host", "network"], TCP)


def network_of(device: torch.device, nccl_log: str) -> str:
    """Return what connects this rank: the network that NCCL's log names, or the interface or address of gloo."""
    if device.type == "cuda":
        name = re.search(r"Using network (.+)", nccl_log)
        cards = re.search(r"NET/\w+ *: *Using (\[0\][^;\n]+)", nccl_log)
        return " ".join(["nccl", *(found.group(1).strip() for found in (name, cards) if found)])
    address = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with contextlib.suppress(OSError):  # a host whose name leads nowhere
        address = address or socket.gethostbyname(socket.gethostname())
    return f"gloo tcp {address}".strip()


def table(rows: list[dict]) -> str:
    """Return the rows as text, one line each."""
    rows = [{**row, "uuid": row["uuid"][:12], "cores": f"{len(row['cores'])}/{row['host_cores']}"} for row in rows]
    lines = [COLUMNS, *([str(row[name]) or "-" for name in COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def gather(value, world: int) -> list:
    """Return `value` (anything that JSON can hold) of every rank, on every rank, in the order of ranks.

    dist.all_gather_object would do, but it needs NumPy.
    """
    text = json.dumps(value).encode()
    longest = torch.tensor(len(text))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = [torch.empty(int(longest), dtype=torch.uint8) for _ in range(world)]
    dist.all_gather(padded, torch.tensor(list(text.ljust(int(longest))), dtype=torch.uint8))
    return [json.loads(bytes(row.tolist())) for row in padded]


@record
def main() -> None:
    """Read the flags, join the group, look around, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, with all fields, to FILE")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="give up on a silent rank (60)")
    if os.environ.get("LOCAL_RANK", "0") != "0":  # local rank 0 speaks for its node; the launcher then ends the others
        parser.error = lambda _: time.sleep(5) or sys.exit(2)
    args = parser.parse_args()
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    if args.json and os.environ.get("RANK", "0") == "0" and not os.access(args.json.parent, os.W_OK):
        parser.error(f"--json {args.json}: cannot write in folder {args.json.parent}; create it or name another")

    # NCCL says which network it took only in its debug output.
    log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115  (it lives as long as NCCL does)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=log.name)
    rank, world, device = setup(args.timeout)
    rows = gather(describe(rank, device), world)
    found = faults(rows)
    if not found:  # with a fault, NCCL would stop the ranks with an error of its own
        total, expected = torch.tensor(rank + 1, device=device), world * (world + 1) // 2
        dist.all_reduce(total)
        if total.item() != expected:
            found = [f"the all-reduce over {world} ranks gave {total.item()}, not {expected}"]
        for row, network in zip(rows, gather(network_of(device, log.read()), world)):
            row["network"] = network
        found += without_rdma(rows) if os.environ.get("REQUIRE_RDMA") == "1" else []
    if rank == 0:
        hosts = len({row["host"] for row in rows})
        right = [] if found else [f"all-reduce over {world} rank(s) on {hosts} host(s): right"]
        print("\n".join([table(rows), *(f"FAULT: {sentence}" for sentence in found), *right]), flush=True)
        if args.json:
            args.json.write_text(json.dumps({"rows": rows, "faults": found}, indent=1) + "\n")
    gather(None, world)  # whoever leaves with a fault has all others ended: not before rank 0 has told it
    dist.destroy_process_group()
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
