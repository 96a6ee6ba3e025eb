"""extras/scaling/report.py on invented runs and on the published figures of the sites."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from baking import TEMPLATE, account, bake

from cluster_options.sites import site_facts, site_names

REPORT = TEMPLATE / "extras/scaling/report.py"
PUBLISHING = [site for site in site_names() if site_facts(site)["all_reduce"]]
MN5 = """\
| Nodes | Ranks |       Bus bandwidth        |    Algorithm bandwidth     |
| :---: | :---: | :------------------------: | :------------------------: |
|   1   |   4   | 2512.1 Gbit/s (314.0 GB/s) | 1674.7 Gbit/s (209.3 GB/s) |
|   2   |   8   | 1192.2 Gbit/s (149.0 GB/s) |  681.2 Gbit/s (85.2 GB/s)  |
|   4   |   16  |  655.7 Gbit/s (82.0 GB/s)  |  349.7 Gbit/s (43.7 GB/s)  |
|   8   |   32  |  658.3 Gbit/s (82.3 GB/s)  |  339.8 Gbit/s (42.5 GB/s)  |
|   16  |   64  |  662.0 Gbit/s (82.8 GB/s)  |  336.3 Gbit/s (42.0 GB/s)  |
|   32  |  128  |  663.8 Gbit/s (83.0 GB/s)  |  334.5 Gbit/s (41.8 GB/s)  |
|   64  |  256  |  660.3 Gbit/s (82.5 GB/s)  |  331.5 Gbit/s (41.4 GB/s)  |
|  128  |  512  |  633.6 Gbit/s (79.2 GB/s)  |  317.4 Gbit/s (39.7 GB/s)  |
"""
RCP = """\
|   2   |   16  |  122.3 Gbit/s (15.3 GB/s)  |  65.2 Gbit/s (8.15 GB/s)  |
|   4   |   32  |  76.2 Gbit/s (9.53 GB/s)   |  39.3 Gbit/s (4.91 GB/s)  |

### published 2: 4 GB, without RDMA, pods of 8 GPUs; 2024-04

Source: https://github.com/epfml/getting-started/blob/8523871/docs/multinode.md

| Nodes | Ranks |      Bus bandwidth      |   Algorithm bandwidth   |
| :---: | :---: | :---------------------: | :---------------------: |
|   2   |   16  | 29.1 Gbit/s (3.64 GB/s) | 15.5 Gbit/s (1.94 GB/s) |
|   4   |   32  | 30.1 Gbit/s (3.76 GB/s) | 15.6 Gbit/s (1.95 GB/s) |
"""
K, M = 2**10, 2**20


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """Every site that has figures, and one that has none."""
    folder = tmp_path_factory.mktemp("projects")
    sites = {**{site: account(site) for site in PUBLISHING}, "mn5": "abc", "rcp": "mlo-jdoe", "local": ""}
    return {site: bake(folder / site, site=site, account=charged, extras="scaling") for site, charged in sites.items()}


def report(*arguments, program=REPORT, code=0, cwd=None, **environment):
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)], cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout if code < 2 else done.stderr


def row(size, busbw, ranks, in_place=True, factor=None, **changes):
    """One line of results; busbw in Gbit/s."""
    factor = 2 * (ranks - 1) / ranks if factor is None else factor
    algbw = busbw / factor if factor else 100.0
    return {"bytes": size, "in_place": in_place, "algbw_Gbps": algbw, "busbw_Gbps": busbw, "wrong": 0, **changes}


def write(file: Path, nodes, results, ranks=None, **changes):
    """Write what all_reduce.py would."""
    ranks = ranks or 4 * nodes
    facts = {
        "program": "all_reduce.py", "operation": "all_reduce", "dtype": "float32", "date": "2026-11-21T11:40:00Z",
        "job": "77", "world_size": ranks, "nodes": nodes, "hosts": [f"n{n}" for n in range(nodes)],
        "devices": ["NVIDIA H100"] * ranks, "backend": "nccl", "torch": "2.13.0", "nccl": "2.29.7",
        "environment": {"NCCL_DEBUG": "INFO"},
        "results": results,
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**facts, **changes}))
    return file


def sweep(folder: Path, scale=1.0, counts=(1, 2, 4), sizes=(K, M, 64 * M), **changes):
    """A run on some numbers of nodes; busbw doubles with each size, up to 800 Gbit/s inside a node, 400 outside."""
    for nodes in counts:
        most = scale * (800 if nodes == 1 else 400)
        results = [row(size, most / 2**power, 4 * nodes) for power, size in enumerate(reversed(sizes))]
        write(folder / f"nodes-{nodes}.json", nodes, results[::-1], **changes)
    return folder


# ---- published figures -----------------------------------------------------------------------------------------------


def test_the_two_tables_of_the_seeds(projects):
    said = {site: report(projects[site] / "extras/scaling/published.csv") for site in ("mn5", "rcp")}
    assert said["mn5"] == (
        "### published 1: 4.0 GB payload, mean of 20 repetitions, 4 x H100 64 GB per node, in NVIDIA's image "
        "pytorch:24.04-py3, 2024-05\n\nSource: https://github.com/TJ-Solergibert/MN5-Distributed-PyTorch\n\n"
        + MN5
        + "\n"
    )
    rcp = re.sub(" +", " ", said["rcp"])  # of however many GPUs one pod has been measured
    assert rcp.endswith(re.sub(" +", " ", RCP) + "\n") and said["rcp"].startswith(
        "### published 1: 4 GB, RDMA over RoCE, pods of 8 GPUs"
    )
    assert "| 1 | 8 | 1662.4 Gbit/s (207.8 GB/s) | 949.9 Gbit/s (118.7 GB/s) |\n| 2 | 16 |" in rcp


@pytest.mark.parametrize("site", PUBLISHING)
def test_published_csv_has_the_rows_of_the_site(site, projects):
    with open(projects[site] / "extras/scaling/published.csv", newline="") as file:
        found = list(csv.DictReader(file))
    tables = site_facts(site)["all_reduce"]
    wanted = [(table, figures) for table in tables for figures in table["rows"]]
    assert len(found) == len(wanted)
    for line, (table, figures) in zip(found, wanted):
        unit = {"GB/s": 8, "Gbit/s": 1}[table["unit"]]
        assert (line["about"], line["source"]) == (table["about"], table["source"])
        assert (line["nodes"], line["gpus"]) == (str(figures["nodes"]), str(figures["gpus"]))
        assert float(line["busbw_Gbps"]) == pytest.approx(figures["busbw"] * unit)
        assert (
            line["algbw_Gbps"] == "" if not figures["algbw"] else float(line["algbw_Gbps"]) == figures["algbw"] * unit
        )


def test_the_one_published_row_whose_figures_do_not_fit(projects):
    """Of all sites; LUMI's are what a test there expects, 125 and 70 GB/s, each rounded, not a measurement."""
    for site in PUBLISHING:
        flags = re.findall("^FLAG: .*", report(projects[site] / "extras/scaling/published.csv"), re.MULTILINE)
        assert flags == (
            [
                "FLAG: published 1, 1 node (8 ranks): busbw 1000.0 is not algbw 560.0 x 1.75 = 980.0 Gbit/s, +2.04%; "
                "rounded by hand, or not of one measurement"
            ]
            if site == "lumi"
            else []
        )


def test_a_site_without_figures(projects):
    assert not (projects["local"] / "extras/scaling/published.csv").exists()


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_the_table_of_a_run(tmp_path):
    """Of the largest size that all numbers of nodes have; by nodes, whatever the names of the files."""
    sweep(tmp_path / "a", counts=(10, 2))
    write(tmp_path / "a/one.json", 1, [row(K, 8, 4), row(M, 0.032, 4)], job="")
    assert report(tmp_path / "a") == (
        "### a: all_reduce of float32, in place, 1 MiB\n\n"
        "40 x NVIDIA H100; nccl 2.29.7; torch 2.13.0; 2026-11-21T11:40:00Z; job 77; "
        "NCCL_DEBUG=INFO\n\n"
        "| Nodes | Ranks |        Bus bandwidth         |     Algorithm bandwidth      |\n"
        "| :---: | :---: | :--------------------------: | :--------------------------: |\n"
        "|   1   |   4   | 0.0320 Gbit/s (0.00400 GB/s) | 0.0213 Gbit/s (0.00267 GB/s) |\n"
        "|   2   |   8   |   200.0 Gbit/s (25.0 GB/s)   |   114.3 Gbit/s (14.3 GB/s)   |\n"
        "|   10  |   40  |   200.0 Gbit/s (25.0 GB/s)   |   102.6 Gbit/s (12.8 GB/s)   |\n\n"
    )


def test_out_of_place_alone_on_cpus(tmp_path):
    facts = {"devices": ["cpu", "cpu"], "backend": "gloo", "nccl": None, "environment": {}}
    results = [row(1536, 3, 2, in_place=False)]
    said = report(write(tmp_path / "b.json", 1, results, ranks=2, **facts))
    assert "b.json: all_reduce of float32, out of place, 1.5 KiB\n\n2 x cpu; gloo; torch" in said
    assert "| Nodes | Ranks |      Bus bandwidth       |" in said
    assert "|   1   |   2   | 3.00 Gbit/s (0.375 GB/s) |" in said


def test_the_name_of_the_file_says_how_many_nodes(tmp_path):
    """Locally, all nodes are one host."""
    for nodes in (1, 2):
        write(tmp_path / f"r/nodes-{nodes}.json", 1, [row(M, 5, 2 * nodes)], ranks=2 * nodes)
    assert re.findall(r"^\| +(\d) +\| +(\d) +\|", report(tmp_path / "r"), re.MULTILINE) == [("1", "2"), ("2", "4")]


def test_one_rank_alone(tmp_path):
    said = report(write(tmp_path / "x.json", 1, [row(M, 0.0, 1)], ranks=1))
    assert "|   1   |   1   | 0.0 Gbit/s (0.0 GB/s) | 100.0 Gbit/s (12.5 GB/s) |" in said


# ---- comparisons -----------------------------------------------------------------------------------------------------


def ratios(said):
    """The tables of ratios, each as its title and its cells."""
    parts = said.split("### Bus bandwidth of ")[1:]
    return {part.split("\n")[0]: re.findall(r"(?<=\| ) *(\S.*?) *(?= \|)", part) for part in parts}


def test_ratios_to_the_first_run(tmp_path):
    """By size and by number of nodes; what only one of them has is left out."""
    sweep(tmp_path / "before")
    sweep(tmp_path / "after", 0.5, counts=(2, 4, 8), sizes=(M, 64 * M, 128 * M))
    write(tmp_path / "more/nodes-4.json", 4, [row(M, 100, 16)])
    assert ratios(report("before", "after", "more", cwd=tmp_path)) == {
        "after / before": [
            *("Message size", "2 nodes (8 ranks)", "4 nodes (16 ranks)", ":----------:"),
            *(":---------------:", ":----------------:", "1 MiB", "0.25", "0.25", "64 MiB", "0.25", "0.25"),
        ],
        "more / before": [
            *("Message size", "4 nodes (16 ranks)", ":----------:", ":----------------:", "1 MiB", "0.50"),
        ],
    }
    sweep(tmp_path / "other", counts=(16,))
    assert "Nothing in common: another number of nodes or ranks" in report("before", "other", cwd=tmp_path)


def test_a_size_that_one_number_of_nodes_lacks(tmp_path):
    sweep(tmp_path / "before", counts=(2, 4))
    write(tmp_path / "after/nodes-2.json", 2, [row(K, 100, 8), row(M, 200, 8)])
    write(tmp_path / "after/nodes-4.json", 4, [row(M, 100, 16)])
    (cells,) = ratios(report("before", "after", cwd=tmp_path)).values()
    assert cells[6:] == ["1 KiB", "1.00", "-", "1 MiB", "1.00", "0.50"]


def test_tolerance(tmp_path):
    sweep(tmp_path / "before")
    sweep(tmp_path / "after", 0.9)
    report("before", "after", "--tolerance", "0.11", cwd=tmp_path)
    assert "FLAG" not in report("before", "after", cwd=tmp_path)  # without it, nothing is judged
    write(tmp_path / "after/nodes-2.json", 2, [row(K, 100, 8), row(M, 170, 8), row(64 * M, 300, 8)])
    said = report("before", "after", "--tolerance", "0.11", code=1, cwd=tmp_path)
    assert re.findall("^FLAG.*", said, re.MULTILINE) == [
        "FLAG: after, 2 nodes (8 ranks), 1 MiB: 170.0 Gbit/s, 0.85 of 200.0 in before",
        "FLAG: after, 2 nodes (8 ranks), 64 MiB: 300.0 Gbit/s, 0.75 of 400.0 in before",
    ]
    (tmp_path / "after/nodes-2.json").unlink()  # its job failed
    said = report("before", "after", "--tolerance", "0.11", code=1, cwd=tmp_path)
    assert said.endswith("\nFLAG: after: nothing to hold against 2 nodes (8 ranks) of before\n\n")
    assert "FLAG" not in report("after", "before", "--tolerance", "0.11", cwd=tmp_path)


def test_a_size_that_one_of_two_runs_lacks_fails_the_tolerance(tmp_path):
    """Its sweep has ended early, or has other flags; a row without a bus bandwidth counts as none."""
    sweep(tmp_path / "before", counts=(1, 2))
    sweep(tmp_path / "after", counts=(1, 2))
    report("before", "after", "--tolerance", "0.1", cwd=tmp_path)
    write(tmp_path / "after/nodes-2.json", 2, [row(K, 100, 8), row(M, 200, 8), row(2 * M, 300, 8)])
    said = report("before", "after", "--tolerance", "0.1", code=1, cwd=tmp_path)
    assert re.findall("^FLAG.*", said, re.MULTILINE) == [
        "FLAG: after, 2 nodes (8 ranks), 64 MiB: missing, but before has it",
        "FLAG: before, 2 nodes (8 ranks), 2 MiB: missing, but after has it",
    ]
    assert "FLAG" not in report("before", "after", cwd=tmp_path)  # without it, nothing is judged
    unknown = row(64 * M, 1, 8, busbw_Gbps=None)
    write(tmp_path / "after/nodes-2.json", 2, [row(K, 100, 8), row(M, 200, 8), unknown])
    said = report("before", "after", "--tolerance", "0.1", code=1, cwd=tmp_path)
    flags = re.findall("^FLAG.*", said, re.MULTILINE)
    assert flags == ["FLAG: after, 2 nodes (8 ranks), 64 MiB: missing, but before has it"]


def test_a_run_against_the_published_figures(projects):
    """Of the table's size, with the first table. What others published does not make the exit code 1."""
    project = projects["rcp"]
    for nodes in (2, 16):  # pods of 8 GPUs
        results = [row(M, 18, 8 * nodes), row(64 * M, 120, 8 * nodes)]
        write(project / f"logs/scaling/new/nodes-{nodes}.json", nodes, results, ranks=8 * nodes)
    named = ["extras/scaling/published.csv", "logs/scaling/new"]
    said = report(*named, cwd=project)
    titles = [title.split(":")[0] for title in re.findall("^### (.*)", said, re.MULTILINE)]
    assert titles == ["published 1", "published 2", "new", "Bus bandwidth of new / published 1"]
    (cells,) = ratios(said).values()
    assert cells[1] == "2 nodes (16 ranks)" and cells[4:] == ["64 MiB", "0.98"]
    report(*named, "--tolerance", "0.1", cwd=project)
    said = report(*named, "--tolerance", "0.01", cwd=project, code=1)
    assert "FLAG: new, 2 nodes (16 ranks), 64 MiB: 120.0 Gbit/s, 0.98 of 122.3 in published 1\n" in said
    gathered = write(project / "g.json", 1, [row(M, 30, 8, factor=7 / 8)], ranks=8, operation="all_gather")
    assert "compare like with like" in report(named[0], gathered, cwd=project, code=2)


# ---- rows that cannot be ---------------------------------------------------------------------------------------------

FACTOR = 2 * 15 / 16
ODD = [  # algbw, busbw on 4 nodes of 4 ranks, and what is said about it
    (100, 100, "-46.67%; busbw is algbw without its factor"),
    (100, 100 * FACTOR * 8, "+700.00%; one is in Gbit/s, the other in GB/s"),
    (100, 100 * FACTOR / 8, "-87.50%; one is in Gbit/s, the other in GB/s"),
    (100, 150, "-20.00%; n is the number of nodes in it"),
    (100, 130, "-30.67%; rounded by hand, or not of one measurement"),
    (100, 0, "-100.00%; rounded by hand, or not of one measurement"),
]


@pytest.mark.parametrize(("algbw", "busbw", "why"), ODD)
def test_a_row_whose_two_bandwidths_do_not_belong_together(algbw, busbw, why, tmp_path):
    good = [row(K, 100 * FACTOR * share, 16, algbw_Gbps=100.0) for share in (1, 1.019, 0.981)]
    file = write(tmp_path / "nodes-4.json", 4, [*good, row(M, busbw, 16, algbw_Gbps=algbw)])
    (said,) = re.findall("^FLAG.*", report(file, code=1), re.MULTILINE)
    assert f"1 MiB: busbw {busbw:.1f} is not algbw 100.0 x 1.875 = 187.5 Gbit/s" in said
    assert said.endswith(why)


def test_a_row_without_a_bus_bandwidth(tmp_path):
    said = report(write(tmp_path / "a.json", 2, [row(M, 10, 8, busbw_Gbps=None)]))
    assert re.search(r"^\| +2 +\| +8 +\| +not known +\| 5\.71 Gbit/s", said, re.MULTILINE)
    (tmp_path / "a.csv").write_text("about,source,nodes,gpus,algbw_Gbps,busbw_Gbps\nus,here,2,8,100,\n")
    said = report(tmp_path / "a.csv")
    assert re.search(r"^\| +2 +\| +8 +\| +not known +\| 100\.0 Gbit/s", said, re.MULTILINE)


def test_wrong_data(tmp_path):
    results = [row(M, 10, 8, wrong=None), row(K, 1, 8, wrong=3)]
    said = report(write(tmp_path / "a.json", 2, results), code=1)
    assert said.endswith(f"\nFLAG: {tmp_path}/a.json, 2 nodes (8 ranks), 1 KiB: 3 wrong elements\n\n")


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -r requirements-dev.txt")
    sweep(tmp_path / "before")
    sweep(tmp_path / "after", 0.5)
    said = report("before", "after", "--plot", "picture", "--line-rate", "800", cwd=tmp_path)
    assert "Picture: picture.png, picture.svg\n" in said and "```" not in said
    png = (tmp_path / "picture.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", png[16:24])
    assert width == 3.5 * 300 and 1200 < height < 2400  # a column of print at 300 dots per inch
    root = ET.parse(tmp_path / "picture.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"message size", "nodes", "1 KiB", "64 MiB", "line rate, 800 Gbit/s"} <= set(texts)
    assert texts.count("bus bandwidth [Gbit/s]") == 2
    assert {"all_reduce of float32, in place", "16 x NVIDIA H100", "nccl 2.29.7"} <= set(texts)
    for run in ("before", "after"):
        assert {f"{run}, {place}" for place in ("1 node (4 ranks)", "2 nodes (8 ranks)", "4 nodes (16 ranks)")} <= set(
            texts
        )
        assert f"{run}: all_reduce of float32, in place, 64 MiB" in texts


def test_a_picture_of_what_there_is(tmp_path, projects):
    """One number of nodes, or published figures alone: one of the two."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -r requirements-dev.txt")
    sweep(tmp_path / "a", counts=(2,))
    report("a", "--plot", "size", cwd=tmp_path)
    text = (tmp_path / "size.svg").read_text()
    assert ">message size<" in text and ">nodes<" not in text and "line rate" not in text
    report(projects["mn5"] / "extras/scaling/published.csv", "--plot", tmp_path / "new/mn5")
    text = (tmp_path / "new/mn5.svg").read_text()
    assert ">message size<" not in text and ">nodes<" in text and ">64<" in text


WITHOUT = "raise ImportError('not in this test')"


def test_the_picture_in_letters(tmp_path):
    sweep(tmp_path / "before", sizes=[2**power for power in range(10, 31)])
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/matplotlib.py").write_text(WITHOUT)
    said = report("before", "--plot", "picture", cwd=tmp_path, PYTHONPATH=str(tmp_path / "nothing"))
    assert not list(tmp_path.glob("picture*"))
    first, second = (text.splitlines() for text in re.findall("```\n(.*?)```\n", said, re.DOTALL))
    assert first[0] == "bus bandwidth [Gbit/s] over message size: two # more are twice as much"
    assert first[1] == "before, 1 node (4 ranks):" and len(first) == 1 + 3 * 22
    lengths = [line.count("#") for line in first[2:23]]
    assert lengths[-1] == 43 and first[22].startswith("       1 GiB      800.0 ####")
    assert {b - a for a, b in zip(lengths, lengths[1:])} == {2}, "every doubling is as long as the others"
    assert first[46].split() == ["1", "KiB", "0.000381", "#"]
    assert second[0].startswith("bus bandwidth [Gbit/s] over nodes")
    assert second[1] == "before: all_reduce of float32, in place, 1 GiB:"
    assert [line.split()[:2] for line in second[2:]] == [["1", "800.0"], ["2", "400.0"], ["4", "400.0"]]


def test_the_tolerance_decides_the_exit_code_whatever_can_be_drawn(tmp_path):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/matplotlib.py").write_text(WITHOUT)
    for sizes in ([K, M], [M]):  # bars of letters, and nothing to draw
        for name, busbw in (("before", 100), ("after", 10)):
            write(tmp_path / f"{name}.json", 2, [row(size, busbw, 8) for size in sizes])
        arguments = ["before.json", "after.json", "--tolerance", "0.1", "--plot", "x"]
        said = report(*arguments, code=1, cwd=tmp_path, PYTHONPATH=str(tmp_path / "nothing"))
        assert "FLAG: after.json, 2 nodes (8 ranks), 1 MiB: 10.0 Gbit/s, 0.10 of 100.0 in before.json" in said
        assert ("```" in said) == (len(sizes) == 2)


def test_letters_of_equal_values(tmp_path):
    (tmp_path / "matplotlib.py").write_text(WITHOUT)
    write(tmp_path / "a.json", 2, [row(1100, 5, 8), row(1300, 5, 8)])
    said = report("a.json", "--plot", "x", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert re.findall("KiB +5.00 (#+)$", said, re.MULTILINE) == ["#", "#"]


# ---- wrong use -------------------------------------------------------------------------------------------------------

LONELY = {"nodes-2.json": (2, [row(M, 1, 8)], {})}
REFUSED = {  # name -> arguments, files (nodes, results, changes), what is said
    "no run": ([], LONELY, "the following arguments are required: RUN"),
    "no such run": (["r/none"], LONELY, "r/none is neither what all_reduce.py --json writes nor"),
    "empty folder": (["e"], LONELY, "no JSON file in e: extras/scaling/scaling.sh collects them there"),
    "no JSON": (["r"], {"a.json": "# no"}, "a.json is neither what all_reduce.py --json writes nor"),
    "a list": (["r"], {"a.json": "[1]"}, "(TypeError('list indices"),
    "binary": (["r"], {"a.json": b"\x80\xff"}, "(UnicodeDecodeError("),
    "another program": (
        ["r"], {"a.json": (1, [row(M, 1, 4)], {"program": "slow_nodes.py"})}, "all_reduce of slow_nodes.py"
    ),
    "unknown operation": (["r"], {"a.json": (1, [row(M, 1, 4)], {"operation": "send"})}, "send of all_reduce.py"),
    "no results": (["r"], {"a.json": (1, [], {})}, "remove it, or name another"),
    "no busbw": (["r"], {"a.json": (1, [{"bytes": 4, "algbw_Gbps": 1.0}], {})}, "(KeyError('busbw_Gbps'))"),
    "no nodes": (["r"], {"a.json": '{"program": "all_reduce.py", "operation": "all_reduce"}'}, "(KeyError('nodes'))"),
    "sizes": (["r"], {**LONELY, "nodes-4.json": (4, [row(K, 1, 16)], {})}, "message size that all files of r have"),
    "dtypes": (
        ["r"], {**LONELY, "nodes-4.json": (4, [row(M, 1, 16)], {"dtype": "bfloat16"})},
        "no operation, type and message size that all files of r have; measure again with the same flags",
    ),
    "the same nodes twice": (
        ["r"], {**LONELY, "b.json": (2, [row(M, 2, 8)], {})},
        "r/b.json and r/nodes-2.json both have nodes = 2: a folder has one file per number of nodes; move one of them",
    ),
    "operations": (
        ["r/nodes-2.json", "r/b.json"], {**LONELY, "b.json": (2, [row(M, 1, 8)], {"operation": "all_gather"})},
        "float32, in place, r/b.json: all_gather of float32, in place; compare like with like",
    ),
    "out of place": (
        ["r/nodes-2.json", "r/b.json"], {**LONELY, "b.json": (2, [row(M, 1, 8, in_place=False)], {})},
        "float32, in place, r/b.json: all_reduce of float32, out of place; compare like with like",
    ),
    "a table of another kind": (["r/a.csv"], {"a.csv": "x,y\n1,2\n"}, "nor a table like extras/scaling/published.csv"),
    "nothing to draw": (["r", "--plot", "x"], LONELY, "nothing to draw: this is one message size on one number of"),
    "no reference": (["r", "--tolerance", "0.1"], LONELY, "--tolerance takes two runs, the reference first"),
    "percent": (["r", "r", "--tolerance", "10"], LONELY, "a share from 0 to below 1: 0.1 for 10 %"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_use(case, tmp_path):
    arguments, files, expected = REFUSED[case]
    (tmp_path / "e").mkdir()
    (tmp_path / "r").mkdir()
    for name, content in files.items():
        if isinstance(content, tuple):
            nodes, results, changes = content
            write(tmp_path / "r" / name, nodes, results, **changes)
        else:
            (tmp_path / "r" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert expected in report(*arguments, code=2, cwd=tmp_path)
