"""Finds slow nodes: every node exchanges data with every other, and the nodes that stand out are named.

Submit it as any program, on 3 nodes or more: README.md beside this file has the command. On more than a hundred nodes,
--rounds 32 takes a sample of the pairs.

The nodes play a round-robin tournament. In each round disjoint pairs of nodes exchange data, all pairs at once and both
ways at once. After n - 1 rounds (n if n is odd) every node has met every other.

The bandwidth of a pair is what one node sends, all its ranks together, while as much comes back. The bandwidth of a
node is the median over its pairs, so a slow partner does not count. Of an even number of pairs it is the higher of the
two in the middle. 1 GB/s = 1e9 bytes/s = 8 Gbit/s.

A node is slow if its bandwidth is below both of these:

- Tukey's inner fence: 1.5 interquartile ranges below the lower quartile of the nodes
  (https://www.itl.nist.gov/div898/handbook/prc/section1/prc16.htm)
- MARGIN below the median node, because the fence alone often names a node where all are well. Of fewer nodes than
  FEW_NODES, WIDE_MARGIN

So at most a quarter of the nodes can be named. Three nodes are too few for quartiles: there, the margin alone counts.
Two nodes are one pair, with no other to compare it with. A slow node makes the exit code 1.

The file needs no other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import socket
import statistics
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record

WARM_UP = 2  # exchanges of a pair before the clock starts; the first one connects the two nodes
EXCHANGES = 10  # of a pair while the clock runs
# Tukey's fences, in interquartile ranges below the lower quartile.
INNER_FENCE = 1.5
OUTER_FENCE = 3
# Of nodes that are all well, normal noise of 5 or 10 % in each pair puts one beyond the fence in a quarter of the runs.
# With a margin of 0.1 these are 0 and 5 % of the runs for 8 nodes, 0.4 and 9 % for 4 nodes. With 0.25 next to none are
# left. (These shares were simulated.)
MARGIN = 0.1
# The wide margin is for fewer nodes than FEW_NODES, and for links, each of which is measured only once.
WIDE_MARGIN = 0.25
FEW_NODES = 8
# Least widths of the columns with names. With these, a line has at most 100 characters; longer names make it longer.
NODE_WIDTH = 30
PARTNER_WIDTH = 26
SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The tensors of the last calls of gather(), so that Python is the last that releases them. Otherwise torch 2.4 and 2.6
# may hang in destroy_process_group() (https://github.com/pytorch/pytorch/pull/154976).
KEPT = deque(maxlen=8)


class NodeResult(NamedTuple):
    """What was found of a node: a row of the table, and of "results" in --json."""

    node: str
    median_GBps: float  # the node's bandwidth: the median over its pairs
    median_Gbps: float
    slowest_GBps: float  # bandwidth of its slowest pair
    slowest_Gbps: float
    slowest_with: str  # the other node of that pair
    verdict: str  # SLOW; link: one end of a slow link; fine; -: two nodes cannot be compared


class Findings(NamedTuple):
    """What the bandwidths of all pairs say."""

    nodes: list[NodeResult]  # the slowest first
    slow_nodes: list[str]
    slow_links: list[tuple[str, str]]  # the slowest first
    sentences: list[str]  # which node or link is slow, and below which bandwidth one is
    pairs: dict[tuple[str, str], float]  # the bandwidths in GB/s

    def as_json(self) -> dict:
        """Return these findings under the keys of --json."""
        return {
            "results": [node._asdict() for node in self.nodes],
            "slow_nodes": self.slow_nodes,
            "slow_links": self.slow_links,
            "said": self.sentences,
            "pairs_GBps": [[node, partner, bandwidth] for (node, partner), bandwidth in self.pairs.items()],
        }


# ---- the process group -----------------------------------------------------------------------------------------------


def join(timeout: float) -> torch.device:
    """Join the process group of all ranks, and connect them; return this rank's device.

    launch/ and torchrun set the variables that init_process_group() reads. A collective that another rank does not join
    within `timeout` seconds fails.
    """
    if "RANK" not in os.environ:
        sys.exit("slow_nodes.py: RANK is not set, so this process is alone: start it through the submit script")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        # Where a rank sees a single GPU, the scheduler has given it that one.
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    # Where a peer is gone, torch's watchdog would end this process before it can say with which node it was paired.
    # torchrun sets 1 (https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html, 2026-11).
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    # The first operation of the group must be one of all ranks, for batch_isend_irecv() of NCCL to work.
    dist.all_reduce(torch.zeros(1, device=device))
    return device


def gather(value: object) -> list:
    """Return every rank's value, in the order of the ranks: anything that JSON can hold in 256 bytes.

    It runs on the CPU. No rank returns before all ranks have called it, so it is a barrier, too. all_gather_object()
    would do, but it needs NumPy.
    """
    own = torch.tensor(list(json.dumps(value).encode()[:256].ljust(256)), dtype=torch.uint8)
    of_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, own)
    KEPT.append((own, of_ranks))
    return [json.loads(bytes(text.tolist())) for text in of_ranks]


def leave(exit_code: int) -> NoReturn:
    """Leave the process group, and end this process. All ranks call this.

    The launcher ends all ranks when the first one fails. So no rank leaves before rank 0 has printed and written.
    """
    gather(None)
    dist.destroy_process_group()
    sys.exit(exit_code)


def refuse_on_all_ranks(message: str) -> NoReturn:
    """Print the message on rank 0 and end with exit code 2. All ranks call this."""
    if dist.get_rank() == 0:
        print(f"slow_nodes.py: {message}", file=sys.stderr, flush=True)
    leave(2)


def seconds_of(device: torch.device, warm_up: Callable, run: Callable) -> float:
    """Return the seconds that run() takes on this rank after warm_up(). On a GPU, CUDA events take the time.

    NCCL works in a stream of its own. Each operation makes the current stream wait for it, and the events are recorded
    in the current stream.
    """
    if device.type == "cpu":
        warm_up()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    warm_up()
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000  # it is in milliseconds


# ---- the tournament --------------------------------------------------------------------------------------------------


def tournament(nodes: int) -> torch.Tensor:
    """Return whom each node meets in each round, shape [rounds, nodes]; -1: no node, which happens if `nodes` is odd.

    The circle method (https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method): one node stands still, and
    the others, an odd number, sit in a ring. In round r those of the ring meet whose numbers add up to 2 r modulo the
    length of the ring. That is true of any two in exactly one round. Node r meets the node that stands still, or no
    node if `nodes` is odd.
    """
    ring = nodes - 1 if nodes % 2 == 0 else nodes  # nodes in the ring, and number of the one that stands still
    round_number = torch.arange(ring).unsqueeze(1)
    node = torch.arange(nodes)
    met = (2 * round_number - node) % ring
    met = torch.where(node == round_number, ring, met)
    met = torch.where(node == ring, round_number, met)
    return torch.where(met == nodes, -1, met)


def choose_rounds(nodes: int, most: int) -> tuple[list[list[int]], int]:
    """Return at most so many rounds of the tournament, and how many it has; they are spread out evenly.

    So each node meets partners whose numbers are near and far.
    """
    all_rounds = tournament(nodes).tolist()
    count = min(most, len(all_rounds))
    rounds = [all_rounds[number * len(all_rounds) // count] for number in range(count)]
    return rounds, len(all_rounds)


def give_up(sentence: str) -> None:
    """End this process at once, with a sentence for the reader and for torchrun."""
    get_error_handler().record_exception(RuntimeError(sentence))
    print(sentence, file=sys.stderr, flush=True)
    os._exit(1)  # the main thread is inside NCCL or gloo, where it cannot be interrupted


def exchange(send: torch.Tensor, receive: torch.Tensor, partner: int, times: int) -> None:
    """Send one tensor to rank `partner` and receive the other from it, both at once, so many times.

    Unlike an all-reduce of two ranks, this adds nothing up: what takes the time is the link.

    Both go in one batch of the group of all ranks. So none of the n (n - 1) / 2 pairs needs a group or a communicator
    of its own. torch runs a batch on the one NCCL communicator of all ranks; a lone isend would make one for the two
    ranks (ProcessGroupNCCL::pointToPoint). NCCL has one pool of buffers for all remote peers of a rank
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-shared-buffers, 2026-11). Gloo connects
    all ranks with each other anyway.

    The receive comes first for gloo, which announces it to the partner in the stream of the data. An announcement
    behind the data of a send would arrive after them. The partner would start only then, and the two ways would take
    turns: measured were 0.20 instead of 0.38 Gbit/s each way on a link of 0.4. For NCCL the order does not matter.
    """
    for _ in range(times):
        receive_and_send = [dist.P2POp(dist.irecv, receive, partner), dist.P2POp(dist.isend, send, partner)]
        for work in dist.batch_isend_irecv(receive_and_send):
            work.wait()


def time_exchanges(
    send: torch.Tensor, receive: torch.Tensor, partner: int, timeout: float, sentence_if_lost: str
) -> float:
    """Return the seconds of EXCHANGES exchanges with a partner; end with the sentence if it takes too long."""
    # A thread watches, because NCCL connects to a new peer inside the call, where no timeout of the group reaches.
    watch = threading.Timer(timeout, give_up, [sentence_if_lost])
    watch.start()
    try:
        return seconds_of(
            send.device,
            warm_up=lambda: exchange(send, receive, partner, WARM_UP),
            run=lambda: exchange(send, receive, partner, EXCHANGES),
        )
    except RuntimeError as error:
        raise RuntimeError(sentence_if_lost) from error
    finally:
        watch.cancel()


def play(
    rounds: list[list[int]], hosts: list[str], size: int, device: torch.device, timeout: float
) -> dict[tuple[str, str], float]:
    """Play the rounds; return the bandwidth of each pair of nodes in GB/s.

    rounds: whom each node meets, as in tournament(). hosts: the name of each rank's host. size: bytes of a message.
    Ranks with one host name are a node. The first rank of a node meets the first ranks of other nodes, and so on.
    """
    own_rank = dist.get_rank()
    nodes = list(dict.fromkeys(hosts))
    ranks_of = [[rank for rank, host in enumerate(hosts) if host == node] for node in nodes]
    own_node = nodes.index(hosts[own_rank])
    rank_on_node = ranks_of[own_node].index(own_rank)
    send, receive = torch.zeros([2, size], dtype=torch.uint8, device=device)
    pairs = {}
    for number, partner_of in enumerate(rounds, 1):
        seconds = 0.0
        if partner_of[own_node] >= 0:
            partner = ranks_of[partner_of[own_node]][rank_on_node]
            both = f"{hosts[own_rank]} (rank {own_rank}) and {hosts[partner]} (rank {partner})"
            sentence_if_lost = (
                f"round {number} of {len(rounds)}: {both} lost each other or took more than {timeout:g} s:"
                " leave out one of these nodes, then the other"
            )
            seconds = time_exchanges(send, receive, partner, timeout, sentence_if_lost)
        seconds_of_ranks = gather(seconds)  # is the barrier between two rounds, too
        for node, partner_node in enumerate(partner_of):
            if node < partner_node:  # each pair once
                slowest = max(seconds_of_ranks[rank] for rank in ranks_of[node] + ranks_of[partner_node])
                bytes_sent = len(ranks_of[node]) * size * EXCHANGES
                pairs[nodes[node], nodes[partner_node]] = bytes_sent / slowest / 1e9
    return pairs


# ---- the verdict -----------------------------------------------------------------------------------------------------


def fence(values: list[float], interquartile_ranges: float) -> float:
    """Return the lower quartile less so many interquartile ranges; quartiles between two values are interpolated.

    Three values or fewer have no quartiles that mean anything. The fence is then at infinity. All values
    are below it, so the other limit alone decides.
    """
    if len(values) < 4:
        return math.inf
    lower_quartile, _, upper_quartile = statistics.quantiles(values, n=4, method="inclusive")
    return lower_quartile - interquartile_ranges * (upper_quartile - lower_quartile)


def partners_by_node(pairs: dict[tuple[str, str], float]) -> dict[str, list[tuple[float, str]]]:
    """Return for each node the bandwidth with each partner, and the partner; the slowest first."""
    partners: dict[str, list[tuple[float, str]]] = {}
    for (node, partner), bandwidth in pairs.items():
        partners.setdefault(node, []).append((bandwidth, partner))
        partners.setdefault(partner, []).append((bandwidth, node))
    return {node: sorted(bandwidths) for node, bandwidths in partners.items()}


def find_slow_links(
    pairs: dict[tuple[str, str], float], medians: dict[str, float], slow_nodes: list[str]
) -> list[tuple[str, str]]:
    """Return the pairs of nodes that are slow though neither node is; the slowest first.

    There are many more links than nodes, so the limits are wider: OUTER_FENCE and WIDE_MARGIN. A link is compared with
    what the slower of its two nodes reaches, because some networks have links of several speeds.
    """
    slow = set(slow_nodes)
    of_node_median = {}
    for (node, partner), bandwidth in pairs.items():
        if node not in slow and partner not in slow:
            of_node_median[node, partner] = bandwidth / min(medians[node], medians[partner])
    limit = min(fence(list(of_node_median.values()), OUTER_FENCE), 1 - WIDE_MARGIN)
    slow_links = [pair for pair, ratio in of_node_median.items() if ratio < limit]
    return sorted(slow_links, key=lambda pair: pairs[pair])


def judge(pairs: dict[tuple[str, str], float]) -> Findings:
    """Find the slow nodes and the slow links. pairs: the bandwidth of each pair of nodes in GB/s."""
    partners = partners_by_node(pairs)
    medians = {node: statistics.median_high(bandwidths)[0] for node, bandwidths in partners.items()}
    median_node = statistics.median(medians.values())
    margin = WIDE_MARGIN if len(medians) < FEW_NODES else MARGIN
    limit = min(fence(list(medians.values()), INNER_FENCE), (1 - margin) * median_node)
    slow_nodes = [node for node, bandwidth in medians.items() if bandwidth < limit]
    slow_links = find_slow_links(pairs, medians, slow_nodes)

    results = []
    for node in sorted(medians, key=lambda node: medians[node]):
        slowest, partner = partners[node][0]
        if node in slow_nodes:
            verdict = "SLOW"
        elif any(node in link for link in slow_links):
            verdict = "link"
        elif len(medians) == 2:
            verdict = "-"
        else:
            verdict = "fine"
        results.append(NodeResult(node, medians[node], 8 * medians[node], slowest, 8 * slowest, partner, verdict))

    if len(medians) == 2:
        sentences = ["two nodes are one pair: hold it against the speed of the link, or take three nodes"]
        return Findings(results, slow_nodes, slow_links, sentences, pairs)
    fence_text = "1.5 interquartile ranges, and " if len(medians) > 3 else ""
    sentences = [f"below {limit:.4g} GB/s ({fence_text}{margin:.0%} below the median node) a node is slow"]
    for node in slow_nodes:
        of_median_node = medians[node] / median_node
        sentences.append(f"SLOW NODE {node}: {medians[node]:.4g} GB/s, {of_median_node:.0%} of the median node")
    for node, partner in slow_links:
        bandwidth = pairs[node, partner]
        sentences.append(f"SLOW LINK {node} - {partner}: {bandwidth:.4g} GB/s; both are faster with other nodes")
    if not slow_nodes:
        sentences.append("no node is slow")
    if not slow_nodes and not slow_links:
        sentences += doubt(pairs, medians)
    return Findings(results, slow_nodes, slow_links, sentences, pairs)


def doubt(pairs: dict[tuple[str, str], float], medians: dict[str, float]) -> list[str]:
    """Return a sentence if the nodes differ much though none was found to be slow, else [].

    Where two of four nodes are slow, the medians of all nodes are. So the fastest pair counts where nodes are few.
    """
    lowest = min(medians.values())
    highest = max(pairs.values()) if len(medians) < FEW_NODES else max(medians.values())
    if lowest >= (1 - WIDE_MARGIN) * highest:
        return []
    return [f"but they differ, {lowest:.4g} to {highest:.4g} GB/s: noise (run it again), or too many are slow"]


def bandwidth_cell(value: float) -> str:
    """Return a bandwidth with four digits, all those before its point, or five after it, in 8 characters."""
    if value < 0.01:
        return f"{value:8.5f}"
    return f"{value:8.4g}" if value < 1000 else f"{value:8.0f}"


def table(findings: Findings) -> str:
    """Return the findings as text: a line for each node, and the sentences as comments."""
    longest_name = max(len(result.node) for result in findings.nodes)
    node_width = max(NODE_WIDTH, longest_name + 1)
    partner_width = max(PARTNER_WIDTH, longest_name + 1)
    lines = [
        "# figures: what one node of a pair sends, all its ranks together, while as much comes back",
        f"{'# node':<{node_width}}  median  median slowest    pair  {'with':<{partner_width}}verdict",
        f"{'#':<{node_width}}    GB/s  Gbit/s    GB/s  Gbit/s",
    ]
    for result in findings.nodes:
        median = bandwidth_cell(result.median_GBps) + bandwidth_cell(result.median_Gbps)
        slowest = bandwidth_cell(result.slowest_GBps) + bandwidth_cell(result.slowest_Gbps)
        figures = f"{median}{slowest}"
        lines.append(f"{result.node:<{node_width}}{figures}  {result.slowest_with:<{partner_width}}{result.verdict}")
    lines += [f"# {sentence}" for sentence in findings.sentences]
    return "\n".join(lines)


# ---- the command -----------------------------------------------------------------------------------------------------


def byte_count(text: str) -> int:
    """Read a size in bytes: 4096, 4K, 256M, 4G; K, M, G and T are powers of 1024."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes; write for example 4K or 256M")
    return int(match[1]) * SIZE_UNITS[match[2]]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--size", type=byte_count, default="64M", help="bytes that a rank sends at a time, as 4K or 1G (default: 64M)"
    )
    parser.add_argument(
        "--rounds", type=int, default=10**6, metavar="N", help="play only N rounds (default: n - 1 for n nodes)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="rank 0 writes header and results to FILE")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="seconds until a round counts as failed (default: 300)",
    )
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error(f"--rounds {args.rounds}: with fewer than 3 rounds, no other pair outvotes a slow one; raise it")
    if not 1 <= args.timeout <= 1e6:
        parser.error(f"--timeout {args.timeout:g}: expected a number of seconds from 1 to 1e6")
    return args


def refuse_uneven_nodes(facts: dict) -> None:
    """End with exit code 2 unless there are several nodes with the same number of ranks on each."""
    nodes, ranks_per_node, world_size = facts["nodes"], facts["ranks_per_node"], facts["world_size"]
    if nodes > 1 and nodes * ranks_per_node == world_size:
        return
    found = f"{world_size} ranks on {nodes} node(s), {ranks_per_node} on one of them"
    expected = "expected 3 nodes or more, with the same NPROC_PER_NODE on each"
    refuse_on_all_ranks(f"{found}: {expected}")


def refuse_unwritable_file(path: Path | None) -> None:
    """End all ranks if rank 0 cannot write this file. The other ranks may not see its file system."""
    refused = path and (not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not path.is_file()))
    if gather(bool(refused))[0]:
        refuse_on_all_ranks(f"cannot write {path}: name a file in a folder that is there and yours")


def describe_run(args: argparse.Namespace) -> dict:
    """Return the facts that a reader needs to repeat the run; they are printed, and are in --json."""
    hosts = gather(socket.gethostname())
    return {
        "program": "slow_nodes.py",
        "arguments": shlex.join(sys.argv[1:]),
        "bytes": args.size,
        "exchanges": EXCHANGES,
        "world_size": len(hosts),
        "nodes": len(set(hosts)),
        "ranks_per_node": max(Counter(hosts).values()),
        "hosts": hosts,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "job": os.environ.get("SLURM_JOB_ID") or os.environ.get("RUNAI_JOB_NAME") or os.environ.get("JOB_NAME") or "",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def print_header(facts: dict) -> None:
    """Print the facts of a run as comments, each host once with its number of ranks."""
    hosts = ", ".join(f"{host} x {ranks}" for host, ranks in Counter(facts["hosts"]).items())
    for name, value in {**facts, "hosts": hosts}.items():
        if value != "":
            print(f"# {name}: {value}")


def write_file(path: Path, text: str) -> None:
    """Write a file under another name, and rename it once it is complete."""
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n")
    part.replace(path)


@record
def main() -> None:
    """Join the process group, play the tournament, judge the nodes, report."""
    args = parse_arguments()
    # Other ranks wait 5 seconds longer than a pair that hangs, so that the pair speaks first.
    device = join(args.timeout + 5)
    facts = describe_run(args)
    if dist.get_rank() != 0:
        sys.stdout = None  # print() does nothing then
    print_header(facts)
    refuse_unwritable_file(args.json)
    refuse_uneven_nodes(facts)

    rounds, all_rounds = choose_rounds(facts["nodes"], args.rounds)
    print(f"# rounds: {len(rounds)} of {all_rounds}", flush=True)
    findings = judge(play(rounds, facts["hosts"], args.size, device, args.timeout))
    print(table(findings), flush=True)

    if args.json and dist.get_rank() == 0:
        # JSON on one line: 1024 nodes are half a million pairs.
        write_file(args.json, json.dumps({**facts, "rounds": len(rounds), **findings.as_json()}))
    leave(1 if findings.slow_nodes else 0)


if __name__ == "__main__":
    main()
