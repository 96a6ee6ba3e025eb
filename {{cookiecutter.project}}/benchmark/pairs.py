"""Which node is slow? Every node exchanges data with every other, and those that stand out are named.

    sbatch --nodes 8 slurm/submit_multinode.sh benchmark/pairs.py        (of many nodes: benchmark/pairs.py --rounds 32)

The nodes play a round-robin tournament: in each round disjoint pairs of nodes exchange data, all pairs at once and both
ways at once, and after n - 1 rounds (n if n is odd) every node has met every other. The bandwidth of a pair is what one
node sends, all its ranks together, while as much comes back (1 GB/s = 1e9 bytes/s = 8 Gbit/s); that of a node is the
median over its pairs, so that a slow partner does not count; of an even number of pairs it is the higher of the two
in the middle. A slow node makes the exit code 1.

A node is slow if it is more than 1.5 interquartile ranges below the lower quartile of the nodes (Tukey's inner fence,
https://www.itl.nist.gov/div898/handbook/prc/section1/prc16.htm) and more than MARGIN below the median node, because
somebody is often beyond the fence where all are well. So at most a quarter of the nodes can be named. Three nodes are
too few for quartiles: there, the margin alone counts. Two are one pair, and nothing to compare it with.

It needs all_reduce.py beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import threading
from functools import partial

import torch
import torch.distributed as dist
from all_reduce import at_least, batch, byte_count, gather, join, new_file, write
from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record

WARM_UP, EXCHANGES = 2, 10  # per pair; the first of the warm-up connects
# Of nodes that are all well, normal noise of 5 or 10 % in each pair puts one beyond the fence in a quarter of the runs.
# A margin of 0.1 makes that 0 and 5 % of the runs for 8 nodes, 0.4 and 9 % for 4; 0.25 next to none (simulated).
# The wide one is for fewer nodes than FEW, and for links, each of which is measured only once.
MARGIN, WIDE_MARGIN, FEW = 0.1, 0.25, 8
FIGURES = ("median_GBps", "median_Gbps", "slowest_GBps", "slowest_Gbps")
TITLES = """\
# figures: what one node of a pair sends, all its ranks together, while as much comes back
# node                          median  median slowest    pair  with                      verdict
#                                 GB/s  Gbit/s    GB/s  Gbit/s"""


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


def exchange(send: torch.Tensor, receive: torch.Tensor, partner: int, times: int = 1) -> None:
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
    for _ in range(times):
        both = [dist.P2POp(dist.irecv, receive, partner), dist.P2POp(dist.isend, send, partner)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def fence(values: list[float], ranges: float) -> float:
    """Return the lower quartile less so many interquartile ranges; quartiles between two values are interpolated.

    Three values or fewer have no quartiles that mean anything: nothing is beyond a fence at infinity.
    """
    if len(values) < 4:
        return math.inf
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low - ranges * (high - low)


def judge(rates: dict[tuple[str, str], float]) -> dict:
    """Return the results for --json: a row for each node, the slowest first; slow nodes, slow links, and why.

    rates: bandwidth of each pair of nodes in GB/s. A slow link joins nodes that are not slow. There are many more links
    than nodes, so they have to be beyond the outer fence, 3 interquartile ranges, and below by WIDE_MARGIN; what counts
    is the share of what both their nodes reach, lest the links of a mixed network stand out.
    """
    met: dict[str, list[tuple[float, str]]] = {}
    for (a, b), rate in rates.items():
        met.setdefault(a, []).append((rate, b))
        met.setdefault(b, []).append((rate, a))
    medians = {node: statistics.median_high(own)[0] for node, own in met.items()}
    median, margin = statistics.median(medians.values()), WIDE_MARGIN if len(met) < FEW else MARGIN
    limit = min(fence([*medians.values()], 1.5), (1 - margin) * median)
    slow = [node for node in medians if medians[node] < limit]
    shares = {(a, b): rate / min(medians[a], medians[b]) for (a, b), rate in rates.items() if not {a, b} & {*slow}}
    least = min(fence([*shares.values()], 3), 1 - WIDE_MARGIN)
    links = sorted((pair for pair, share in shares.items() if share < least), key=rates.__getitem__)
    linked, rows = {node for link in links for node in link}, []
    for node in sorted(medians, key=medians.__getitem__):
        slowest, partner = min(met[node])
        verdict = "SLOW" if node in slow else "link" if node in linked else "fine" if len(met) > 2 else "-"
        figures = dict(zip(FIGURES, (medians[node], 8 * medians[node], slowest, 8 * slowest)))
        rows.append({"node": node, **figures, "slowest_with": partner, "verdict": verdict})

    fences = "1.5 interquartile ranges, and " if len(met) > 3 else ""
    said = [f"below {limit:.4g} GB/s ({fences}{margin:.0%} below the median node) a node is slow"]
    said += [f"SLOW NODE {a}: {medians[a]:.4g} GB/s, {medians[a] / median:.0%} of the median node" for a in slow]
    said += [f"SLOW LINK {a} - {b}: {rates[a, b]:.4g} GB/s; both are faster with other nodes" for a, b in links]
    said += [] if slow else ["no node is slow"]
    low, high = min(medians.values()), max((rates if len(met) < FEW else medians).values())
    if low < (1 - WIDE_MARGIN) * high and not slow + links:  # where two of four are slow, all medians are
        said.append(f"but they differ, {low:.4g} to {high:.4g} GB/s: noise (run it again), or too many are slow")
    if len(met) == 2:
        said = ["two nodes are one pair: hold it against the speed of the link, or take three nodes"]
    found = {"results": rows, "slow_nodes": slow, "slow_links": links, "said": said}
    return {**found, "pairs_GBps": [[*pair, rate] for pair, rate in rates.items()]}


def table(found: dict) -> str:
    """Return what judge() found as text."""
    lines = [TITLES]
    for row in found["results"]:
        figures = "".join(f"{row[key]:8.4g}" if row[key] < 1000 else f"{row[key]:8.0f}" for key in FIGURES)
        # Of a name that is too long its end, which is where names of nodes differ.
        lines.append(f"{row['node'][-29:]:<30}{figures}  {row['slowest_with'][-23:]:<26}{row['verdict']}")
    return "\n# ".join(["\n".join(lines), *found["said"]])


def play(rounds: list[list[int]], hosts: list[str], size: int, device: torch.device, timeout: float) -> dict:
    """Play the rounds; return the bandwidth of each pair of nodes in GB/s.

    rounds: whom each node meets, as in tournament(). hosts: of each rank; those of one name are a node, and a rank's
    partners are those of its place on other nodes. size: of a message, in bytes.
    """
    rank, names, rates = dist.get_rank(), list(dict.fromkeys(hosts)), {}
    groups = [[one for one, host in enumerate(hosts) if host == name] for name in names]
    node, place = names.index(hosts[rank]), hosts[:rank].count(hosts[rank])
    send, receive = torch.zeros([2, size], dtype=torch.uint8, device=device)
    for number, meets in enumerate(rounds, 1):
        elapsed = 0.0
        if meets[node] >= 0:
            partner = groups[meets[node]][place]
            us, them = (f"{hosts[one]} (rank {one})" for one in (rank, partner))
            lost = f"round {number} of {len(rounds)}: {us} and {them} lost each other or took more than {timeout:g} s"
            sentence = f"{lost}: leave out one of these nodes, then the other"
            # By a thread, because NCCL connects to a new peer inside the call, where no timeout of the group reaches.
            watch = threading.Timer(timeout, give_up, [sentence])
            watch.start()
            try:
                run = partial(exchange, send, receive, partner)
                elapsed = sum(batch(device, partial(run, WARM_UP), run, EXCHANGES))
            except RuntimeError as error:
                raise RuntimeError(sentence) from error
            finally:
                watch.cancel()
        times = gather(elapsed, len(hosts))  # the barrier between two rounds, too
        for a, b in enumerate(meets):
            if a < b:
                longest = max(times[one] for one in groups[a] + groups[b])
                rates[names[a], names[b]] = len(groups[a]) * size * EXCHANGES / longest / 1e9
    return rates


@record
def main() -> None:
    """Play the tournament and say who is slow."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", type=byte_count, default="64M", help="bytes that a rank sends at a time, as 4K or 1G (default: 64M)")
    # With fewer than 3, the partner of a slow node has no other pairs to outvote that one.
    add("--rounds", type=at_least(3), default=10**6, metavar="N", help="of the n - 1, 3 or more (default: all)")
    add("--json", type=new_file, metavar="FILE", help="write the results there too (rank 0)")
    add("--timeout", type=at_least(1.0), default=300.0, metavar="SECONDS", help="give up on a round (default: 300)")
    args = parser.parse_args()
    # Where a peer is gone, torch's watchdog would end this process before it can say with whom it was paired; torchrun
    # sets 1 (https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html, 2026-11).
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    # The others wait 5 seconds longer than a pair that hangs, so that it speaks first.
    rank, device, facts = join(args.timeout + 5, bytes=args.size, exchanges=EXCHANGES)
    nodes, each = facts["nodes"], facts["ranks_per_node"]
    if nodes == 1 or nodes * each != facts["world_size"]:
        if rank == 0:
            found = f"{facts['world_size']} ranks on {nodes} node(s), {each} on one of them"
            print(f"pairs.py: {found}: expected 3 nodes or more, with the same NPROC_PER_NODE on each", file=sys.stderr)
        dist.destroy_process_group()
        sys.exit(2)
    schedule = tournament(nodes)
    count = min(args.rounds, len(schedule))
    rounds = [schedule[k * len(schedule) // count].tolist() for k in range(count)]  # spread out: partners near and far
    print(f"# rounds: {count} of {len(schedule)}", flush=True)
    found = judge(play(rounds, facts["hosts"], args.size, device, args.timeout))
    print(table(found), flush=True)
    write(args.json, json.dumps({**facts, "rounds": count, **found}))  # one line: 1024 nodes are half a million pairs
    dist.destroy_process_group()
    sys.exit(1 if found["slow_nodes"] else 0)


if __name__ == "__main__":
    main()
