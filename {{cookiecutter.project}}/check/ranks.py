"""Who is rank N, on which GPU, with how many cores, over which network: the table to read before anything else.

    sbatch slurm/submit_multinode.sh check/ranks.py        or, here and alone: python check/ranks.py

Prints one row for each rank and ends with an all-reduce over all of them. Exit code 1, with a sentence for each fault,
when two ranks share a GPU, when torch sees none of the GPUs that were given (ALLOW_CPU=1 accepts that), when versions
differ between ranks, when a rank has one core of a machine that has many, or, with REQUIRE_RDMA=1, when ranks talk TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


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
    if torch.cuda.is_available():  # a single visible GPU is this rank's own, given by the scheduler
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **alone)
    return dist.get_rank(), dist.get_world_size(), device


def describe(rank: int, device: torch.device) -> dict:
    """Return this process's row of the table; see COLUMNS for the keys that are shown."""
    row = {
        "host": socket.gethostname(),
        "node_rank": int(os.environ.get("GROUP_RANK", 0)),  # torchrun's name for the rank of the node
        "rank": rank,
        "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
        "device": "CPU",
        "uuid": "",
        "given": given_gpus(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count())),
        "host_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "nccl": "",
        "network": "",
    }
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


def faults(rows: list[dict]) -> list[str]:
    """Return what is wrong with the rows of all ranks, one sentence each; [] when nothing is.

    rows: one `describe()` for each rank, in any order.
    """
    found = []
    ranks_of_gpu, ranks_of_host = defaultdict(list), defaultdict(list)
    for row in rows:
        ranks_of_host[row["host"]].append(row)
        if row["uuid"]:
            ranks_of_gpu[row["host"], row["uuid"]].append(row["rank"])
    for (host, uuid), ranks in ranks_of_gpu.items():
        if len(ranks) > 1:
            found.append(
                f"ranks {_listed(ranks)} share one GPU of {host} ({uuid}): start as many processes per node as it has "
                "GPUs (NPROC_PER_NODE), and let every process see all of them (no --gpus-per-task)"
            )
    for host, here in ranks_of_host.items():
        blind = [row for row in here if not row["uuid"] and row["given"]]
        if blind:
            found.append(
                f"rank(s) {_listed(row['rank'] for row in blind)} on {host} were given GPUs ("
                f"{blind[0]['given']}), but torch {blind[0]['torch']} sees none: install a torch that is built for "
                "these GPUs and not newer than their driver"
            )
    for key, name in (("torch", "torch"), ("nccl", "NCCL")):
        hosts_of_version = defaultdict(set)
        for row in rows:
            hosts_of_version[row[key] or "none"].add(row["host"])
        if len(hosts_of_version) > 1:
            versions = "; ".join(f"{version} on {_listed(hosts)}" for version, hosts in hosts_of_version.items())
            found.append(f"the ranks run different versions of {name}: {versions}. Use one environment on all nodes")
    for host, here in ranks_of_host.items():
        lonely = [row for row in here if len(row["cores"]) == 1]
        shared = len({row["cores"][0] for row in lonely}) < len(lonely)
        many = here[0]["host_cores"]
        if lonely and many > 1 and (shared or many > len(here)):
            ranks = _listed(row["rank"] for row in lonely)
            found.append(
                f"rank(s) {ranks} on {host} may use one core of {many}: pass --cpus-per-task to srun "
                "(under mpirun: --bind-to none)"
            )
    return found


def without_rdma(rows: list[dict]) -> list[str]:
    """Return a sentence for each host whose ranks talk through TCP, or through nobody knows what."""
    ranks_of = defaultdict(list)
    for row in rows:
        library, _, network = row["network"].partition(" ")
        if library != "nccl" or network.startswith("Socket") or not network:
            ranks_of[row["host"], row["network"]].append(row["rank"])
    return [
        f"REQUIRE_RDMA=1, but rank(s) {_listed(ranks)} on {host} talk through {network}: no RDMA device was given, "
        "or libibverbs, librdmacm or the device's own library are missing where python3 runs, or NCCL_IB_DISABLE or "
        "NCCL_NET wants it so (NCCL_DEBUG=INFO tells more). REQUIRE_RDMA=0 accepts TCP"
        for (host, network), ranks in ranks_of.items()
    ]


def network_of(nccl_log: str) -> str:
    """Return the network that NCCL says it took, from its NCCL_DEBUG=INFO output; '' when it does not say."""
    name = re.search(r"Using network (.+)", nccl_log)
    cards = re.search(r"NET/\w+ *: *Using (\[0\][^;\n]+)", nccl_log)
    return " ".join(found.group(1).strip() for found in (name, cards) if found)


def gloo_network() -> str:
    """Return the interface, or else the address of this host's name, which gloo connects through."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return f"tcp {interface}"
    try:
        return f"tcp {socket.gethostbyname(socket.gethostname())}"
    except OSError:
        return "tcp"


def table(rows: list[dict]) -> str:
    """Return the rows as text, one line each, in the order of ranks."""
    columns = {
        "rank": lambda row: row["rank"],
        "host": lambda row: row["host"],
        "node": lambda row: row["node_rank"],
        "local": lambda row: row["local_rank"],
        "device": lambda row: row["device"],
        "UUID": lambda row: row["uuid"][:12] or "-",
        "cores": lambda row: f"{len(row['cores'])}/{row['host_cores']}",
        "threads": lambda row: row["threads"],
        "torch": lambda row: row["torch"],
        "NCCL": lambda row: row["nccl"] or "-",
        "network": lambda row: row["network"] or "-",
    }
    lines = [[str(cell(row)) for cell in columns.values()] for row in sorted(rows, key=lambda row: row["rank"])]
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in [list(columns), *lines])


def _listed(values) -> str:
    return ", ".join(map(str, sorted(values)))


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


def report(rows: list[dict], found: list[str], file: str | None) -> None:
    """Print table and faults, and write both to `file` if one is given."""
    print(table(rows), flush=True)
    for sentence in found:
        print(f"FAULT: {sentence}", flush=True)
    if file:
        Path(file).write_text(json.dumps({"rows": rows, "faults": found}, indent=1) + "\n")


@record
def main() -> None:
    """Read the flags, join the group, look around, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows, with all fields, to FILE")
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="SECONDS", help="give up on a silent rank (%(default)s)"
    )
    arguments = parser.parse_args()
    if not arguments.timeout >= 1:
        parser.error(f"--timeout {arguments.timeout:g}: expected at least 1 second")
    if arguments.json and not Path(arguments.json).resolve().parent.is_dir():
        parser.error(
            f"--json {arguments.json}: there is no folder {Path(arguments.json).resolve().parent}; make it first"
        )

    # NCCL says which network it took only in its debug output, which goes to a file of this process.
    log = Path(tempfile.gettempdir()) / f"nccl-{os.getpid()}.log"
    if torch.cuda.is_available() and "NCCL_DEBUG_FILE" not in os.environ:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(log))

    rank, world, device = setup(arguments.timeout)
    rows = gather(describe(rank, device), world)
    found = faults(rows)
    if not found:  # with a fault, NCCL would stop the ranks with an error of its own
        total = torch.tensor(rank + 1, dtype=torch.int64, device=device)
        dist.all_reduce(total)
        if total.item() != world * (world + 1) // 2:
            found = [f"the all-reduce over {world} ranks gave {total.item()}, not {world * (world + 1) // 2}"]
        network = gloo_network() if device.type == "cpu" else network_of(log.read_text()) if log.exists() else ""
        log.unlink(missing_ok=True)
        for row, name in zip(rows, gather(network, world)):
            row["network"] = f"{'nccl' if row['nccl'] else 'gloo'} {name}".strip()
        found += without_rdma(rows) if os.environ.get("REQUIRE_RDMA") == "1" else []
    if rank == 0:
        report(rows, found, arguments.json)
        if not found:
            hosts = len({row["host"] for row in rows})
            print(f"all-reduce over {world} rank(s) on {hosts} host(s): right", flush=True)
    dist.destroy_process_group()
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
