"""Which node is slow? Every node exchanges data with every other, and those that stand out are named.

    sbatch --nodes 8 slurm/submit_multinode.sh benchmark/pairs.py        (of many nodes: benchmark/pairs.py --rounds 32)

The nodes play a round-robin tournament: in each round disjoint pairs of nodes exchange data, all pairs at once and both
ways at once, and after n - 1 rounds (n if n is odd) every node has met every other. The bandwidth of a pair is what one
node sends, all its ranks together, while as much comes back (1 GB/s = 1e9 bytes/s = 8 Gbit/s); that of a node is the
median over its pairs, so that a slow partner does not count. A slow node makes the exit code 1.

A node is slow if it is more than 1.5 interquartile ranges below the lower quartile of the nodes (Tukey's inner fence,
https://www.itl.nist.gov/div898/handbook/prc/section1/prc16.htm) and more than MARGIN below the median node, because
somebody is often beyond the fence where all are well. So at most a quarter of the nodes can be named. Three nodes are
too few for quartiles: there, the slow one is in both slow pairs. Two are one pair, and nothing to compare it with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record

WARM_UP, EXCHANGES = 2, 10  # per pair; the first of the warm-up connects
FEWEST_ROUNDS = 3  # with fewer, the partner of a slow node has no other pairs to outvote that one
# Of nodes that are all well, normal noise of 5 or 10 % in each pair puts one beyond the fence in a quarter of the runs.
# A margin of 0.1 makes that 0 and 5 % of the runs for 8 nodes, 0.4 and 9 % for 4; 0.25 next to none (simulated).
MARGIN = 0.1
FEW, WIDE_MARGIN = 8, 0.25  # for fewer nodes than FEW, and for links, each of which is measured only once
GRACE = 5.0  # seconds for which the others wait longer than a pair that hangs, so that it speaks first
FIGURES = ("median_GBps", "median_Gbps", "slowest_GBps", "slowest_Gbps")
TITLES = """\
# node                          median  median slowest    pair  with                      verdict
#                                 GB/s  Gbit/s    GB/s  Gbit/s"""


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


def gather(value: object, world_size: int) -> list:
    """Return every rank's value, in the order of the ranks: anything that JSON can hold in 256 bytes.

    It runs on the CPU and ends for nobody before everybody has joined it: a barrier, too. all_gather_object() would do,
    but it needs numpy.
    """
    mine = torch.tensor(list(json.dumps(value).encode().ljust(256)), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)
    return [json.loads(bytes(row.tolist())) for row in rows]


def tournament(nodes: int) -> torch.Tensor:
    """Return whom each node meets in each round, shape [rounds, nodes]; -1: nobody, which happens if `nodes` is odd.

    The circle method (https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method): one node stands still, the
    `last` others, an odd number, sit in a ring. In round r those of the ring meet whose numbers add up to 2r modulo
    `last`, which is true of any two in exactly one round; node r meets the one that stands still, if there is one.
    """
    last = nodes + nodes % 2 - 1
    turn, node = torch.arange(last).unsqueeze(1), torch.arange(nodes)
    met = (2 * turn - node) % last
    met = torch.where(node == turn, last, met)
    met = torch.where(node == last, turn, met)
    return torch.where(met == nodes, -1, met)


def give_up(sentence: str) -> None:
    """End this process at once, with a sentence for the reader and for torchrun."""
    get_error_handler().record_exception(RuntimeError(sentence))
    print(sentence, file=sys.stderr, flush=True)
    os._exit(1)  # the main thread is inside NCCL or gloo and cannot be interrupted


def exchange(send: torch.Tensor, receive: torch.Tensor, partner: int, times: int) -> None:
    """Send one tensor to rank `partner` and receive the other from it, both at once, so many times.

    In a batch and in the group of all ranks: so none of the n (n - 1) / 2 pairs needs a group or a communicator of its
    own. torch runs a batch on the one NCCL communicator of all ranks, where a lone isend would make one for the two
    (ProcessGroupNCCL::pointToPoint), and NCCL has one pool of buffers for all remote peers of a rank
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-shared-buffers, 2026-11). Gloo connects
    all with all anyway. And unlike an all-reduce of two nothing is added up: what takes the time is the link.

    The receive comes first because gloo tells the partner of it in the stream in which the data goes: told behind the
    data of a send, the partner would start only when that is through, and the two ways would take turns (measured: 0.20
    instead of 0.38 Gbit/s each way on a link of 0.4). NCCL does not mind.
    """
    both = [dist.P2POp(dist.irecv, receive, partner), dist.P2POp(dist.isend, send, partner)]
    for _ in range(times):
        for work in dist.batch_isend_irecv(both):
            work.wait()


def seconds_for(send: torch.Tensor, receive: torch.Tensor, partner: int) -> float:
    """Return the seconds that EXCHANGES exchanges take this rank, after the warm-up."""
    exchange(send, receive, partner, WARM_UP)
    if send.device.type == "cpu":
        started = time.perf_counter()
        exchange(send, receive, partner, EXCHANGES)
        return time.perf_counter() - started
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()  # the events stand in the current stream, which wait() makes wait for NCCL's
    exchange(send, receive, partner, EXCHANGES)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000  # ms


def fence(values: list[float], ranges: float) -> float:
    """Return the lower quartile less so many interquartile ranges; quartiles between two values are interpolated."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low - ranges * (high - low)


def judge(rates: dict[tuple[int, int], float], nodes: int) -> tuple[list[float], list[int], list[tuple[int, int]], str]:
    """Return the median of each node, the slow nodes, the slow links, and by which rule.

    rates: bandwidth of each pair (a, b), a < b, in GB/s. A slow link joins nodes that are not slow. There are many more
    links than nodes, so they have to be beyond the outer fence, 3 interquartile ranges, and below by WIDE_MARGIN; what
    counts is the share of what both their nodes reach, lest the links of a mixed network stand out.
    """
    of_node: list[list[float]] = [[] for _ in range(nodes)]
    for pair, rate in rates.items():
        for node in pair:
            of_node[node].append(rate)
    medians = [statistics.median(own) for own in of_node]
    margin = WIDE_MARGIN if nodes < FEW else MARGIN
    if nodes < 3:
        return medians, [], [], "two nodes are one pair: hold it against the speed of the link, or take three nodes"
    if nodes == 3:
        low, middle, high = sorted(rates, key=rates.__getitem__)
        rule = f"both pairs of a slow node are more than {margin:.0%} below the third, {rates[high]:.4g} GB/s"
        if rates[middle] < (1 - margin) * rates[high]:
            return medians, sorted({*low} & {*middle}), [], rule
        return medians, [], [low] if rates[low] < (1 - margin) * rates[middle] else [], rule
    limit = min(fence(medians, 1.5), (1 - margin) * statistics.median(medians))
    slow = [node for node, median in enumerate(medians) if median < limit]
    rule = f"below {limit:.4g} GB/s (1.5 interquartile ranges, and {margin:.0%} below the median node) a node is slow"
    shares = {(a, b): rate / min(medians[a], medians[b]) for (a, b), rate in rates.items() if not {a, b} & {*slow}}
    least = min(fence([*shares.values()], 3), 1 - WIDE_MARGIN)
    return medians, slow, [pair for pair, share in shares.items() if share < least], rule


def describe(names: list[str], rates: dict[tuple[int, int], float]) -> tuple[dict, str]:
    """Return the results for --json, and the table and the sentences below it."""
    medians, slow, links, rule = judge(rates, len(names))
    slowest = {}
    for (a, b), rate in sorted(rates.items(), key=lambda item: -item[1]):  # the last that is written stays
        slowest[a], slowest[b] = (rate, b), (rate, a)
    rows, lines = [], [TITLES]
    for node in sorted(range(len(names)), key=medians.__getitem__):
        least, partner = slowest[node]
        verdict = "SLOW" if node in slow else "link" if any(node in link for link in links) else "fine"
        verdict = verdict if len(names) > 2 else "-"
        rates_of = zip(FIGURES, (medians[node], 8 * medians[node], least, 8 * least))
        row = {"node": names[node], **dict(rates_of), "slowest_with": names[partner], "verdict": verdict}
        rows.append(row)
        # Of a name that is too long its end, which is where names of nodes differ.
        figures = "".join(f"{row[key]:8.4g}" if row[key] < 1000 else f"{row[key]:8.0f}" for key in FIGURES)
        lines.append(f"{names[node][-29:]:<30}{figures}  {names[partner][-23:]:<26}{verdict}")
    lines.append(f"# {rule}")
    for node in slow:
        share = medians[node] / statistics.median(medians)
        lines.append(f"# SLOW NODE {names[node]}: {medians[node]:.4g} GB/s, {share:.0%} of the median node")
    for a, b in sorted(links, key=rates.__getitem__):
        lines.append(f"# SLOW LINK {names[a]} - {names[b]}: {rates[a, b]:.4g} GB/s; both are faster with other nodes")
    if len(names) > 2 and not slow:
        lines.append("# no node is slow")
        best = max(rates.values() if len(names) < FEW else medians)  # where two of four are slow, all medians are
        if min(medians) < (1 - WIDE_MARGIN) * best and not links:
            extremes = f"{min(medians):.4g} to {best:.4g} GB/s"
            lines.append(f"# but they differ, {extremes}: noise (run it again), or too many slow ones to tell")
    found = {"results": rows, "slow_nodes": [names[node] for node in slow], "rule": rule}
    found["slow_links"] = [[names[a], names[b]] for a, b in links]
    found["pairs_GBps"] = [[names[a], names[b], rate] for (a, b), rate in rates.items()]
    return found, "\n".join(lines)


def play(
    rounds: list[list[int]], groups: list[list[int]], hosts: list[str], size: int, device: torch.device, timeout: float
) -> dict[tuple[int, int], float]:
    """Play the rounds; return the bandwidth of each pair of nodes in GB/s.

    rounds: whom each node meets, as in tournament(). groups: the ranks of each node; a rank's partners are those of its
    place on other nodes. hosts: of each rank. size: of a message, in bytes.
    """
    rank, rates = dist.get_rank(), {}
    node, place = next((node, group.index(rank)) for node, group in enumerate(groups) if rank in group)
    send, receive = torch.zeros([2, size], dtype=torch.uint8, device=device)
    if device.type == "cuda":  # all ranks have to take part in a group's first call (see batch_isend_irecv)
        dist.all_reduce(torch.zeros(1, device=device))
    gather(0, len(hosts))
    for number, meets in enumerate(rounds, 1):
        elapsed = 0.0
        if meets[node] >= 0:
            partner = groups[meets[node]][place]
            us, them = (f"{hosts[one]} (rank {one})" for one in (rank, partner))
            lost = f"round {number} of {len(rounds)}: {us} and {them} lost each other or took more than {timeout:g} s"
            sentence = f"{lost}: leave out one of these nodes, then the other"
            # By a thread, because NCCL connects to a new peer inside the call, where no timeout of the group reaches.
            watch = threading.Timer(timeout, give_up, [sentence])
            watch.daemon = True
            watch.start()
            try:
                elapsed = seconds_for(send, receive, partner)
            except RuntimeError as error:
                raise RuntimeError(sentence) from error
            finally:
                watch.cancel()
        times = gather(elapsed, len(hosts))  # the barrier between two rounds, too
        for a, b in enumerate(meets):
            if a < b:
                longest = max(times[r] for r in groups[a] + groups[b])
                rates[a, b] = len(groups[a]) * size * EXCHANGES / longest / 1e9
    return rates


def read_flags() -> argparse.Namespace:
    """Return the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", default="64M", help="bytes that a rank sends at a time; K, M, G = powers of 1024 (default: 64M)")
    add("--rounds", type=int, default=10**6, metavar="N", help="of the n - 1 play so many (default: all)")
    add("--json", type=Path, metavar="FILE", help="write the results there too (rank 0)")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="give up on a pair's round (default: 300)")
    args = parser.parse_args()
    size = re.fullmatch(r"([1-9]\d{0,14})([KMG]?)", args.size.upper())
    if not size:
        parser.error(f"--size {args.size} is not a size in bytes; write for example 64M")
    args.size = int(size[1]) * 1024 ** " KMG".index(size[2] or " ")
    if args.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds {args.rounds} is not {FEWEST_ROUNDS} or more: a node is judged by its median round")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g} is not a number of seconds from 1 to 1e6")
    path = args.json if os.environ.get("RANK", "0") == "0" else None  # others may not even see that file system
    if path and (not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not path.is_file())):
        parser.error(f"cannot write {path}: name a file in an existing folder that you may write to")
    return args


@record
def main() -> None:
    """Play the tournament and say who is slow."""
    args = read_flags()
    # Where a peer is gone, torch's watchdog would end this process before it can say with whom it was paired; torchrun
    # sets 1 (https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html, 2026-11).
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    rank, world_size, device = setup(args.timeout + GRACE)
    hosts = gather(socket.gethostname(), world_size)
    groups: dict[str, list[int]] = {}
    for one, host in enumerate(hosts):
        groups.setdefault(host, []).append(one)
    example = {len(own): host for host, own in groups.items()}  # a node with so many ranks
    if len(groups) == 1 or len(example) > 1:
        if rank == 0:
            found = " and ".join(f"{number} on {host}" for number, host in sorted(example.items()))
            rule = "expected nodes (--nodes 3 or more) with the same number of ranks each (NPROC_PER_NODE)"
            print(f"pairs.py: ranks per node: {found}; {rule}", file=sys.stderr, flush=True)
        dist.destroy_process_group()
        sys.exit(2)

    names, table = list(groups), tournament(len(groups))
    count = min(args.rounds, len(table))
    rounds = [table[k * len(table) // count].tolist() for k in range(count)]  # spread out: partners near and far
    on_gpu = device.type == "cuda"
    job = filter(None, map(os.environ.get, ("SLURM_JOB_ID", "RUNAI_JOB_NAME", "JOB_NAME")))
    facts = {"program": "pairs.py", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "job": next(job, "")}
    facts.update(world_size=world_size, nodes=len(names), ranks_per_node=world_size // len(names), hosts=names)
    facts.update(device=torch.cuda.get_device_name() if on_gpu else "cpu", backend="nccl" if on_gpu else "gloo")
    facts.update(torch=torch.__version__, nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None)
    facts.update(bytes=args.size, exchanges=EXCHANGES, rounds=count)
    if rank == 0:
        print("# {nodes} nodes with {ranks_per_node} rank(s) each: {device}, {backend}, torch {torch}".format(**facts))
        print(f"# {count} of {len(table)} rounds; {EXCHANGES} exchanges of {args.size} bytes per rank and pair")
        print("# figures: what one node of a pair sends, all its ranks together, while as much comes back", flush=True)
    found, text = describe(names, play(rounds, [*groups.values()], hosts, args.size, device, args.timeout))
    if rank == 0:
        print(text, flush=True)
        if args.json:  # in one line: of 1024 nodes there are half a million pairs
            part = args.json.with_name(args.json.name + ".part")
            part.write_text(json.dumps({**facts, **found}) + "\n")
            part.replace(args.json)  # nobody finds half a file
    dist.destroy_process_group()
    sys.exit(1 if found["slow_nodes"] else 0)


if __name__ == "__main__":
    main()
