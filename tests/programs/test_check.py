"""check/ranks.py: the faults it must find, on rows of clusters that are not at hand, and what it reads from NCCL."""

from __future__ import annotations

import importlib.util
import json
import socket
from dataclasses import replace

import pytest
import torch
from baking import TEMPLATE
from test_programs import ranks as started

PROGRAM = TEMPLATE / "check/ranks.py"
NO_NUMPY = """
try:
    import numpy
    raise SystemExit("here is NumPy")
except ModuleNotFoundError:
    pass
"""
spec = importlib.util.spec_from_file_location("ranks", PROGRAM)
ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ranks)


def row(rank, host="a", local=0, **fields):
    """One rank of a GPU cluster where all is well: four GPUs and 288 cores a node."""
    well = ranks.Row(
        rank=rank,
        host=host,
        node_rank=0,
        local_rank=local,
        device=f"cuda:{local} H100",
        uuid=f"GPU-{host}-{local}",
        cores=list(range(288)),
        threads=72,
        torch="2.13.0",
        nccl="2.29.1",
        host_cores=288,
        given="CUDA_VISIBLE_DEVICES=0,1,2,3",
    )
    return replace(well, **fields)


def cluster():
    return [row(4 * node + local, host, local) for node, host in enumerate("ab") for local in range(4)]


def changed(rank, **fields):
    rows = cluster()
    rows[rank] = replace(rows[rank], **fields)
    return rows


def with_network(network):
    return [replace(row, network=network) for row in cluster()]


def faults_of(rows):
    kinds = (
        ranks.ranks_that_share_a_gpu,
        ranks.ranks_that_see_no_gpu,
        ranks.ranks_with_one_core,
    )
    return [sentence for kind in kinds for sentence in kind(rows)]


def test_no_fault():
    assert faults_of(cluster()) == []
    # The same UUID on another host is another GPU.
    assert faults_of([row(0, "a"), row(1, "b", uuid="GPU-a-0")]) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (changed(5, uuid="GPU-b-0"), ["ranks 4, 5 share one GPU of b (GPU-b-0)", "NPROC_PER_NODE"]),
        (
            changed(6, uuid=""),
            ["rank(s) 6 on b were given GPUs (CUDA_VISIBLE_DEVICES=0,1,2,3), but torch 2.13.0 sees none"],
        ),
        (changed(2, cores=[17]), ["rank(s) 2 on a may use one core of 288", "--cpus-per-task"]),
        (
            [row(n, local=n, cores=[3], host_cores=4) for n in range(4)],
            ["rank(s) 0, 1, 2, 3 on a may use one core of 4"],
        ),
    ],
)
def test_each_fault_is_a_sentence(rows, expected):
    found = faults_of(rows)
    for words in expected:
        assert any(words in sentence for sentence in found), found


def test_one_core_each_is_right_where_there_is_no_more():
    assert faults_of([row(n, local=n, cores=[n], host_cores=4) for n in range(4)]) == []
    assert faults_of([row(n, local=n, cores=[0], host_cores=1) for n in range(4)]) == []


def test_several_faults_are_all_told():
    assert len(faults_of(changed(5, uuid="GPU-b-0", cores=[1]))) == 2


@pytest.mark.parametrize(
    ("log", "network"),
    [
        (
            "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.1.1<0>\n"
            "n1:1:2 [0] NCCL INFO Using network IB\n",
            "IB [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]",
        ),
        (
            "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.1.1<0>\nn1:1:2 [0] NCCL INFO Using network Socket\n",
            "Socket [0]eth0:10.1.1.1<0>",
        ),
        ("nid1:1:2 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        (  # the wording of older plug-ins
            "n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)\n"
            "n1:1:2 [0] NCCL INFO Using network AWS Libfabric\n",
            "AWS Libfabric cxi",
        ),
        (
            "n1:1:2 [0] NCCL INFO NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.1.1.0/24 (found 1 nics)\n"
            "n1:1:2 [0] NCCL INFO Using network Libfabric\n",
            "Libfabric tcp;ofi_rxm",
        ),
        ("", ""),
    ],
)
def test_the_network_that_nccl_took(log, network):
    assert ranks.network_of(torch.device("cuda"), log) == f"nccl {network}".strip()


def test_what_gloo_connects_through(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.1")
    assert ranks.network_of(torch.device("cpu"), "") == "gloo tcp 10.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert ranks.network_of(torch.device("cpu"), "") == "gloo tcp eth0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: socket.inet_aton("nowhere"))  # OSError
    assert ranks.network_of(torch.device("cpu"), "") == "gloo tcp"


def test_what_says_that_there_are_gpus(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "ALLOW_CPU"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.assigned_gpus() == ""
    monkeypatch.setenv("RUNAI_NUM_OF_GPUS", "0")
    assert ranks.assigned_gpus() == ""
    monkeypatch.setenv("RUNAI_NUM_OF_GPUS", "8")
    assert ranks.assigned_gpus() == "RUNAI_NUM_OF_GPUS=8"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden from this process
    assert ranks.assigned_gpus() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert ranks.assigned_gpus() == "CUDA_VISIBLE_DEVICES=0"
    for no in ("0", ""):
        monkeypatch.setenv("ALLOW_CPU", no)
        assert ranks.assigned_gpus() == "CUDA_VISIBLE_DEVICES=0"
    monkeypatch.setenv("ALLOW_CPU", "1")
    assert ranks.assigned_gpus() == ""


def test_tcp_is_told_where_rdma_is_required():
    rdma = with_network("nccl IB [0]mlx5_bond_0:1/RoCE [RO]; OOB net1:172.18.128.3<0>")
    assert list(ranks.ranks_without_rdma(rdma)) == []
    for network in ("nccl AWS Libfabric", "nccl AWS Libfabric cxi", "nccl Libfabric verbs;ofi_rxm"):
        assert list(ranks.ranks_without_rdma(with_network(network))) == []
    rdma[5].network = rdma[6].network = "nccl Socket [0]net1:172.18.128.3<0> [1]eth0:172.16.46.52<0>"
    (sentence,) = ranks.ranks_without_rdma(rdma)
    assert "rank(s) 5, 6 on b talk through nccl Socket [0]net1" in sentence and "libibverbs" in sentence
    for network in ("gloo tcp 10.0.0.1", "nccl"):  # NCCL that says nothing proves nothing
        assert len(list(ranks.ranks_without_rdma(with_network(network)))) == 2
    for provider in ("tcp", "tcp;ofi_rxm", "sockets"):  # libfabric can talk TCP too, for example with FI_PROVIDER=tcp
        sentence, _ = ranks.ranks_without_rdma(with_network(f"nccl AWS Libfabric {provider}"))
        assert f"talk through nccl AWS Libfabric {provider}. " in sentence and "FI_PROVIDER is set" in sentence


def test_a_wrong_sum_is_a_fault(monkeypatch):
    """On whichever rank: rank 0 tells of all."""
    monkeypatch.setattr(ranks, "gather", lambda total, _: [total, total, total, 9])
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda total: total.fill_(10))
    found = ranks.check_all_reduce(0, 4, torch.device("cpu"))
    assert found == ["the all-reduce over 4 ranks gave 9 on rank 3, not 10"]
    monkeypatch.setattr(ranks, "gather", lambda total, world_size: [total] * world_size)
    assert ranks.check_all_reduce(0, 4, torch.device("cpu")) == []


def test_the_table():
    lines = [" ".join(line.split()) for line in ranks.table(cluster()).splitlines()]
    assert lines[0] == "rank host node_rank local_rank device uuid cores threads torch nccl network"
    assert lines[5] == "4 b 0 0 cuda:0 H100 GPU-b-0 288/288 72 2.13.0 2.29.1 -"


def test_it_needs_torch_alone(tmp_path):
    """Two ranks where importing NumPy fails, as where it is not installed."""
    done = started(2, PROGRAM, [["--json", tmp_path / "rows.json"]], patch=NO_NUMPY)
    assert [one["code"] for (one,) in done] == [0, 0], done
    content = json.loads((tmp_path / "rows.json").read_text())
    assert set(content) == {"rows", "faults"} and [row["rank"] for row in content["rows"]] == [0, 1]
    assert set(content["rows"][0]) == {*ranks.COLUMNS, "given", "host_cores"}


def test_wrong_flags_are_refused_at_once(tmp_path):
    for flags, expected in (
        (["--timeout", "0"], "--timeout 0: expected a number of seconds from 1 to 1e6"),
        (["--json", tmp_path / "no/rows.json"], "name a file in a folder that is there and yours"),
        (["--json", tmp_path], f"--json {tmp_path}: name a file in a folder that is there and yours"),
    ):
        ((done,),) = started(1, PROGRAM, [flags])
        assert done["code"] == 2
        assert expected in done["err"]
