"""extras/scaling/slow_nodes.py: the schedule, verdicts on invented figures, real runs, also where tc slows the network.

An import of torch takes a second or more, so what can be tested without starting ranks is tested in this process.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import sys

import pytest
import torch
from baking import TEMPLATE, bake
from needs import needs_namespaces
from slurm_cluster import PATH, ClusterError
from test_programs import forked, meeting_point
from two_nodes import PYTHON_ON_CPUS
from waiting import FOREVER

PROGRAM = TEMPLATE / "extras/scaling/slow_nodes.py"
SPEC = importlib.util.spec_from_file_location("slow_nodes", PROGRAM)
slow_nodes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(slow_nodes)

# ---- the schedule ----------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    """Threads of torch, which wait for each other all the time, are slower than one where processors are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FEW = [*range(2, 66), 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("numbers", [FEW, pytest.param(range(2, 1025), marks=pytest.mark.drill)], ids=["few", "all"])
def test_every_pair_meets_exactly_once(numbers):
    for nodes in numbers:
        table = slow_nodes.tournament(nodes)
        node = torch.arange(nodes)
        assert table.shape == (nodes - 1 + nodes % 2, nodes)
        idle = table < 0
        assert (idle.sum(1) == nodes % 2).all() and (idle.sum(0) == nodes % 2).all(), nodes
        # Disjoint: whom I meet meets me, and so nobody else. Where nobody is met, stand in for it.
        met = torch.where(idle, node, table)
        assert torch.equal(met.gather(1, met), node.expand_as(table)), nodes
        seen = torch.eye(nodes, dtype=torch.bool).scatter_(0, met, True)
        assert seen.all(), nodes  # n - 1 meetings (the idle round is not counted) with n - 1 others: each once


# ---- the verdicts ----------------------------------------------------------------------------------------------------


def figures(nodes, speeds=(), links=(), noise=0.05, seed=0, rounds=None):
    """Return invented bandwidths: 10 GB/s, except for the given nodes and links, with uniform noise.

    speeds: {node: GB/s}. links: {(a, b): GB/s}. rounds: the numbers of those that are played (default: all).
    """
    invent = random.Random(seed)
    speeds, links = dict(speeds), dict(links)
    table = slow_nodes.tournament(nodes)
    rates = {}
    for row in (table if rounds is None else table[rounds]).tolist():
        for a, b in enumerate(row):
            if a < b:
                speed = min(speeds.get(a, 10.0), speeds.get(b, 10.0), links.get((a, b), 10.0))
                rates[a, b] = speed * invent.uniform(1 - noise, 1 + noise)
    return rates


def judge(rates):
    """Return the median of each node, the slow nodes and the slow links."""
    found = slow_nodes.judge(rates).as_json()
    medians = {row["node"]: row["median_GBps"] for row in found["results"]}
    assert list(medians.values()) == sorted(medians.values())
    return [medians[node] for node in range(len(medians))], sorted(found["slow_nodes"]), sorted(found["slow_links"])


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 7, 8, 9, 16, 64, pytest.param(1024, marks=pytest.mark.drill)])
def test_noise_names_nobody(nodes):
    for seed in range(1 if nodes > 100 else 200):
        assert judge(figures(nodes, seed=seed))[1:] == ([], []), seed
    if nodes >= 64:  # and normal noise neither, which is beyond the fences for a few of so many
        invent = random.Random(1)
        rates = {pair: invent.gauss(10, 0.3) for pair in figures(nodes)}
        assert judge(rates)[1:] == ([], [])


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 7, 8, 9, 64, 256])
def test_a_slow_node_is_found(nodes):
    for which in range(nodes) if nodes < 10 else (0, 17, nodes - 1):
        medians, slow, links = judge(figures(nodes, {which: 5}, seed=which))
        assert (slow, links) == ([which], []), which
        assert medians[which] == pytest.approx(5, rel=0.06)
        assert min(medians[:which] + medians[which + 1 :]) > 9


@pytest.mark.parametrize("nodes", [8, 64, pytest.param(1024, marks=pytest.mark.drill)])
def test_a_little_slow(nodes):
    """Nodes are named from MARGIN on, if the others are alike; few nodes only from WIDE_MARGIN on."""
    assert judge(figures(nodes, {1: 8.5}, noise=0.02))[1] == [1]
    assert judge(figures(nodes, {1: 9.5}, noise=0.02))[1] == []
    for few in (3, 4, 7):
        assert judge(figures(few, {1: 8.5}, noise=0.02))[1] == []
        assert judge(figures(few, {1: 7}, noise=0.02))[1] == [1]


@pytest.mark.parametrize("nodes", [8, 9, 64, 256])
def test_two_slow_nodes(nodes):
    for slow in ([0, 1], [2, nodes - 1]):
        assert judge(figures(nodes, {slow[0]: 5, slow[1]: 3}, seed=nodes))[1:] == (slow, [])


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 64])
def test_a_slow_link_is_a_link_and_no_node(nodes):
    for link in itertools.islice(itertools.combinations(range(nodes), 2), 30):
        assert judge(figures(nodes, links={link: 4}, seed=sum(link)))[1:] == ([], [link])


def test_a_slow_node_and_a_slow_link():
    rates = figures(8, {3: 5}, links={(0, 6): 4})
    assert judge(rates)[1:] == ([3], [(0, 6)])


def test_a_sample_of_rounds_is_enough():
    for seed in range(20):
        assert judge(figures(64, {9: 5}, seed=seed, rounds=[0, 21, 42]))[1:] == ([9], [])


def describe(rates, names):
    findings = slow_nodes.judge({(names[a], names[b]): rate for (a, b), rate in rates.items()})
    found, text = findings.as_json(), slow_nodes.table(findings)
    assert all(len(line) <= 100 for line in text.splitlines()), text
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return found, rows, text


def test_the_table():
    names = [f"nid{number:06}" for number in range(8)]
    found, rows, text = describe(figures(8, {3: 5}, links={(0, 6): 4}), names)
    assert rows[0][0] == "nid000003" and len(rows) == 8
    medians = [float(row[1]) for row in rows]
    assert medians == sorted(medians)
    assert {row[0]: row[-1] for row in rows} == dict.fromkeys(names, "fine") | {
        "nid000003": "SLOW", "nid000000": "link", "nid000006": "link"
    }  # fmt: skip
    for row in rows:  # GB/s and Gbit/s
        assert float(row[2]) == pytest.approx(8 * float(row[1]), rel=1e-3)
        assert float(row[4]) == pytest.approx(8 * float(row[3]), rel=1e-3)
    partner = {row[0]: row[5] for row in rows}
    assert partner["nid000000"] == "nid000006" and partner["nid000001"] == "nid000003"
    assert found["slow_nodes"] == ["nid000003"] and found["slow_links"] == [("nid000000", "nid000006")]
    assert [row["node"] for row in found["results"]] == [row[0] for row in rows]
    assert all(row["median_Gbps"] == 8 * row["median_GBps"] for row in found["results"])
    assert len(found["pairs_GBps"]) == 28
    assert re.search(r"^# below \d\.\d+ GB/s \(1\.5 interquartile ranges, and 10% below the median node\)", text, re.M)
    assert re.search(r"^# SLOW NODE nid000003: [45]\.\d+ GB/s, [45]\d% of the median node$", text, re.M)
    assert re.search(r"^# SLOW LINK nid000000 - nid000006: [34]\.\d+ GB/s; both are faster", text, re.M)


def test_long_names_and_large_figures_fit():
    """Names that differ at their start, and names that differ at their end: the columns are as wide as the longest."""
    names = [f"node{number}.rack.of.a.very.long.domain.example.org" for number in range(3)]
    names.append("a-workload-with-a-very-long-name-indeed-and-more-worker-3")
    findings = slow_nodes.judge({(names[a], names[b]): 123456.789 for a, b in figures(4)})
    lines = slow_nodes.table(findings).splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert {row.split()[0] for row in rows} == set(names)
    assert {row.split()[5] for row in rows} <= set(names)
    assert {row.index("fine") for row in rows} == {lines[1].index("verdict")}, "aligned"
    describe({pair: 123456.789 for pair in figures(4)}, [f"node{number}.of.a.domain" for number in range(4)])


@pytest.mark.parametrize("bandwidth", [1e-4, 0.00123456, 0.0123456, 0.123456, 1.23456, 1234.56])
def test_columns_do_not_touch(bandwidth):
    findings = slow_nodes.judge({pair: bandwidth for pair in itertools.combinations("abc", 2)})
    rows = [line.split() for line in slow_nodes.table(findings).splitlines() if not line.startswith("#")]
    assert [len(row) for row in rows] == [7] * 3
    assert float(rows[0][1]) == pytest.approx(bandwidth, rel=0.01)


def test_what_few_nodes_can_tell():
    found, rows, text = describe(figures(2, {0: 5}), ["a", "b"])
    assert (
        "two nodes are one pair: hold it against the speed of the link" in text and "slow" not in text.split("\n")[-1]
    )
    assert {row[-1] for row in rows} == {"-"} and found["slow_nodes"] == []
    _, _, text = describe(figures(3), list("abc"))
    assert "GB/s (25% below the median node) a node is slow" in text and "# no node is slow" in text
    _, _, text = describe(figures(4, {0: 5, 1: 5}), list("abcd"))  # one pair of six is fast: who is slow?
    assert "# no node is slow\n# but they differ, 5.006 to 9.905 GB/s" in text and "or too many are slow" in text
    _, _, text = describe(figures(4), list("abcd"))
    assert "but they differ" not in text


# ---- flags -----------------------------------------------------------------------------------------------------------

BAD = [
    *((["--size", value], f"--size: '{value}' is not a size in bytes") for value in ("0", "1P", "1.5M", "x", "")),
    (["--size=-1"], "--size: '-1' is not a size in bytes; write for example 4K or 256M"),
    *((["--rounds", value], f"--rounds {value}: with fewer than 3 rounds, no other") for value in ("0", "2", "-3")),
    (["--rounds", "3.5"], "argument --rounds: invalid int value: '3.5'"),
    *(
        (["--timeout", value], f"--timeout {value}: expected a number of seconds from 1")
        for value in ("0", "-1", "nan", "inf")
    ),
    (["--timeout", "soon"], "argument --timeout: invalid float value: 'soon'"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


def test_bad_values_are_refused(monkeypatch, capsys):
    for arguments, message in BAD:
        monkeypatch.setattr(sys, "argv", ["slow_nodes.py", *arguments])
        with pytest.raises(SystemExit) as end:
            slow_nodes.main()
        assert end.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1], arguments
    monkeypatch.setattr(sys, "argv", ["slow_nodes.py"])
    monkeypatch.setattr(slow_nodes, "join", lambda timeout: sys.exit(f"{timeout:g} s"))
    with pytest.raises(SystemExit, match=r"^305 s$"):
        slow_nodes.main()


def test_how_the_ranks_meet(monkeypatch):
    """A GPU each; the watchdog of NCCL does not end a rank before it has said with which node it was paired."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="RANK is not set, so this process is alone: start it through the submit"):
        slow_nodes.join(305)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, timeout: chosen.append(backend))
    monkeypatch.setattr(torch.distributed, "all_reduce", chosen.append)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, device: zeros(size))
    for gpus, device in ((4, "cuda:1"), (1, "cuda:0")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert slow_nodes.join(305) == torch.device(device)
        assert chosen[:2] == [torch.device(device), "cpu:gloo,cuda:nccl"] and len(chosen) == 3
        chosen.clear()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_the_clock_on_a_gpu(monkeypatch):
    """The first event comes after the warm-up, the second after the exchanges, and the CPU waits for it alone."""
    calls = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("record")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, end):
            return 2500.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    warm_up, run = (lambda name=name: calls.append(name) for name in ("warm up", "run"))
    assert slow_nodes.seconds_of(torch.device("cuda"), warm_up, run) == 2.5
    assert calls == ["warm up", "record", "run", "record", "wait"]


# ---- ranks of this machine that give out names of different hosts ----------------------------------------------------

PRETEND = """
import json, os, runpy, socket, sys, threading, time
sys.dont_write_bytecode = True
sys.modules["numpy"] = None  # the program needs torch alone
import torch
import torch.distributed as dist
rank, host, calls, real = int(os.environ["RANK"]), sys.argv[1], [], dist.batch_isend_irecv
socket.gethostname = lambda: host
{more}
def exchange(operations):
    calls.append(operations[0].peer)
    if rank == {broken_rank} and len(calls) == {broken_call}:
        {fault}
    return real(operations)
dist.batch_isend_irecv = exchange
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(sys.argv[0])
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("met", json.dumps(calls), file=sys.stderr)
"""


def run(hosts, *arguments, errors=None, more="", fault="pass", broken_rank=-1, broken_call=0):
    """Run the program with a rank on each of these hosts; return (exit code, stdout, stderr) of each.

    errors: the folder in which the ranks run, and for what torchrun would be told. more: lines that every rank executes
    first. fault: what broken_rank does instead of its exchange number broken_call.
    """
    store, meeting = meeting_point()
    script = PRETEND.format(fault=fault, more=more, broken_rank=broken_rank, broken_call=broken_call)
    started = []
    for rank, host in enumerate(hosts):
        environment = {**meeting, "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0"}
        if errors:
            environment["TORCHELASTIC_ERROR_FILE"] = str(errors / f"{rank}.json")
        started.append(([host, PROGRAM, *arguments], environment))
    done = forked(script, started, cwd=errors or ".")
    del store
    return done


def test_each_rank_meets_those_of_its_place(tmp_path):
    """Two ranks on each of three nodes, given out in turns."""
    done = run(["a", "b", "c", "a", "b", "c"], "--size", "64K", "--json", tmp_path / "result.json")
    # Whether somebody is named is left open: six ranks are too many for most machines.
    assert len({code for code, _, _ in done}) == 1 and done[0][0] in (0, 1), done
    assert not any(out for _, out, _ in done[1:]), "only rank 0 prints"
    for rank, (_, _, err) in enumerate(done):
        met = json.loads(re.search(r"^met (.*)$", err, re.M)[1])
        expected = {other for other in range(6) if other // 3 == rank // 3 and other != rank}
        assert set(met) == expected and len(met) == 2 * (slow_nodes.WARM_UP + slow_nodes.EXCHANGES)
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["program"], found["hosts"], found["ranks_per_node"]) == ("slow_nodes.py", ["a", "b", "c"] * 2, 2)
    assert (found["nodes"], found["world_size"], found["bytes"], found["rounds"]) == (3, 6, 65536, 3)
    assert sorted(pair[:2] for pair in found["pairs_GBps"]) == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert all(0 < pair[2] < 1000 for pair in found["pairs_GBps"])
    assert done[0][0] == int(bool(found["slow_nodes"]))
    assert "# ranks_per_node: 2\n# hosts: a x 2, b x 2, c x 2\n# device: cpu\n" in done[0][1]
    assert not list(tmp_path.glob("*.part"))


def test_a_sample_of_rounds(tmp_path):
    """Five nodes, one of which is idle in each round."""
    done = run("abcde", "--size", "64K", "--rounds", "3", "--json", tmp_path / "result.json")
    assert "# rounds: 3 of 5\n" in done[0][1], done
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["rounds"] == 3 and len(found["pairs_GBps"]) == 6


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("aa", "2 ranks on 1 node(s), 2 on one of them"),
        ("aab", "3 ranks on 2 node(s), 2 on one of them"),
    ],
)
def test_what_cannot_be_measured_is_refused(hosts, found):
    done = run(hosts)
    assert [code for code, _, _ in done] == [2] * len(hosts), done
    assert f"slow_nodes.py: {found}: expected 3 nodes or more, with the same NPROC_PER_NODE on each" in done[0][2]
    assert not any("slow_nodes.py:" in err for _, _, err in done[1:])


@pytest.mark.parametrize("file", ["/no/such/folder/x.json", "/dev/null"])
def test_a_file_that_rank_0_cannot_write_is_refused_by_all(file):
    """Rank 0 alone may see that; the others do not wait for it until their time is over."""
    others_see_it = "if rank > 0: os.access = lambda *_: True"
    done = run("abc", "--size", "1K", "--json", file, more=others_see_it)
    assert [code for code, _, _ in done] == [2] * 3, done
    message = f"slow_nodes.py: cannot write {file}: name a file in a folder that is there and yours\nmet []\n"
    assert [err for _, _, err in done] == [message, "met []\n", "met []\n"]


# Rank 3 hangs until rank 1 has given up. The time of rank 1 is over as soon as rank 3 hangs, and not after a number of
# seconds, which would be too short on a busy machine or a waste on a quiet one.
HANGS = """
        open("hangs", "w").close()
        while not os.path.exists("1.json"):
            time.sleep(0.05)
        os._exit(9)
"""
IMPATIENT = f"""
class ImpatientTimer(threading.Timer):
    def __init__(self, seconds, *rest):
        assert seconds == {FOREVER}, seconds
        super().__init__(seconds, *rest)
    def run(self):
        while not self.finished.wait(0.05):
            if os.path.exists("hangs"):
                return self.function(*self.args)
if rank == 1:
    threading.Timer = ImpatientTimer
"""


@pytest.mark.parametrize("what", ["hangs", "dies"])
def test_a_partner_that_is_lost_is_named(what, tmp_path):
    """In the second round, of d with b; a and c, who wait for these two, come later."""
    broken = {"fault": HANGS if what == "hangs" else "os._exit(9)", "broken_rank": 3, "broken_call": 14}
    done = run("abcd", "--size", "64K", "--timeout", FOREVER, errors=tmp_path, more=IMPATIENT, **broken)
    assert (done[1][0], done[3][0]) == (1, 9), done
    lost = f"b (rank 1) and d (rank 3) lost each other or took more than {FOREVER} s"
    sentence = f"round 2 of 3: {lost}: leave out one of these"
    assert sentence in done[1][2] and sentence in json.loads((tmp_path / "1.json").read_text())["message"]["message"]
    for rank in (0, 2):
        assert done[rank][0] == 1 and "lost each other" not in done[rank][2]
    if what == "hangs":
        assert os.stat(tmp_path / "1.json").st_mtime <= os.stat(tmp_path / "0.json").st_mtime


# ---- nodes with a network each ---------------------------------------------------------------------------------------

FAST, SLOW = 100, 25  # Mbit/s: an exchange takes so long that a processor that is busy elsewhere hardly matters
LIMIT = "root tbf rate {}mbit burst 128kb latency 50ms"


@pytest.fixture
def tc(cluster):
    """Runs tc where the cables of the cluster's nodes end: what is said of veth1 is true of all that node1 receives."""
    needs_namespaces(cluster)
    if not shutil.which("tc", path=PATH):
        pytest.skip("tc is not installed: apt-get install iproute2")

    def tc(command):
        cluster.run("tc", *command.split())

    try:
        tc("qdisc replace dev veth1 " + LIMIT.format(FAST))
        tc("qdisc del dev veth1 root")
    except ClusterError as error:
        pytest.skip(f"this kernel cannot limit a rate: {error}")
    yield tc
    for number in range(1, 5):
        cluster.run("tc", "qdisc", "del", "dev", f"veth{number}", "root", check=False)


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    return bake(
        tmp_path_factory.mktemp("a b") / "slow_nodes", site="slurm", nodes="4", gpus_per_node="0", extras="scaling"
    )


@pytest.mark.drill
def test_the_slow_node_of_a_cluster_is_named(cluster, tc, project, tmp_path):
    """Four nodes with fast cables; then one with a slow one; then slow only between two nodes."""
    environment = {**PYTHON_ON_CPUS, "NPROC_PER_NODE": "1", "LAUNCHER": "srun"}

    def measured(name):
        arguments = ["extras/scaling/slow_nodes.py", "--size", "1M", "--json", tmp_path / name]
        job = cluster.submit("--nodes=4", "slurm/submit_multinode.sh", *arguments, cwd=project, env=environment)
        return job, json.loads((tmp_path / name).read_text())

    for number in range(1, 5):
        tc(f"qdisc replace dev veth{number} " + LIMIT.format(FAST))
    job, found = measured("fine")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert found["hosts"] == ["node1", "node2", "node3", "node4"]
    assert (found["slow_nodes"], found["slow_links"]) == ([], []) and "# no node is slow" in job.output
    # Both ways at once, each at full speed: turns would give half of it.
    assert all(0.7 * FAST < 1000 * row["median_Gbps"] < 1.1 * FAST for row in found["results"]), job.output

    tc("qdisc replace dev veth3 " + LIMIT.format(SLOW))
    job, found = measured("slow")
    # All ranks end with 1, but srun ends those that are not the first to: 1 or 143.
    assert job.state == "FAILED" and job.exit_code, job.output
    assert "Exited with exit code 1" in job.output
    assert (found["slow_nodes"], found["slow_links"]) == (["node3"], []), job.output
    assert found["results"][0]["node"] == "node3" and 1000 * found["results"][0]["median_Gbps"] < 1.1 * SLOW
    assert "# SLOW NODE node3: " in job.output

    # What node3 receives from node1 (10.77.0.11) has SLOW, the rest FAST.
    tc("qdisc replace dev veth3 root handle 1: htb default 1")
    tc(f"class add dev veth3 parent 1: classid 1:1 htb rate {FAST}mbit")
    tc(f"class add dev veth3 parent 1: classid 1:2 htb rate {SLOW}mbit")
    tc("filter add dev veth3 parent 1: protocol ip u32 match ip src 10.77.0.11/32 flowid 1:2")
    job, found = measured("link")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert (found["slow_nodes"], found["slow_links"]) == ([], [["node1", "node3"]]), job.output
