"""benchmark/all_reduce.py: what it measures, what it finds, what it prints and writes."""

import csv
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from test_programs import BAD_EVERYWHERE, CLEAN, PROJECT, free_port, ranks, torchrun

ALL_REDUCE = PROJECT / "benchmark/all_reduce.py"
QUICK = ["--budget", "0.001"]  # the fewest operations
FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # of (n - 1) / n
TYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}  # bytes
HOST = socket.gethostname()


@pytest.fixture(scope="module")
def program():
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("all_reduce_program", ALL_REDUCE)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True  # beside these sources it would become part of every project written from them
    spec.loader.exec_module(module)
    return module


def start(world_size, *arguments, patch="", **environment):
    """Start so many ranks, each after `patch`; return their processes."""
    code = f"import runpy, sys\n{patch}\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(ALL_REDUCE), *map(str, arguments)],
            env={**CLEAN, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def check_table(out, result):
    """Compare what was printed with what was written."""
    lines = out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    rows = [line for line in lines if not line.startswith("#")]
    titles = [line for line in lines if re.match(r"# +(size|bytes) ", line)]
    assert len({len(line) for line in rows + titles}) == 1, "aligned"
    assert [int(row.split()[0]) for row in rows] == [row["bytes"] for row in result["results"]]
    assert re.match("# +size +count +time +p50 +p95 +algbw +busbw +algbw +busbw +wrong", titles[0])
    assert re.match(rf"# +bytes +{result['dtype']} +us +us +us +GB/s +GB/s +Gbit/s +Gbit/s", titles[1])
    for row, text in zip(result["results"], rows):
        cells = text.split()
        assert cells[1] == str(row["count"]) and cells[9] == ("-" if row["wrong"] is None else str(row["wrong"]))
        keys = ["time_us", "p50_us", "p95_us", "algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps"]
        for cell, key in zip(cells[2:9], keys):
            assert float(cell) == pytest.approx(row[key], rel=1e-3, abs=0.06 if key.endswith("_us") else 1e-4), key


def check_result(result, world_size):
    """Check what holds for every result, whatever the operation."""
    factor = FACTORS[result["operation"]] * (world_size - 1) / world_size
    assert result["world_size"] == world_size and len(result["devices"]) == world_size
    for row in result["results"]:
        assert row["wrong"] == 0
        assert row["bytes"] == row["count"] * TYPES[result["dtype"]]
        assert 25 <= row["iterations"] <= 1000
        assert 0 < row["p50_us"] <= row["p95_us"] <= row["p99_us"] <= row["time_us"] * row["iterations"] * 1.001
        assert row["algbw_GBps"] == pytest.approx(row["bytes"] / row["time_us"] / 1000, rel=1e-12)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * factor, rel=1e-12)
        assert row["algbw_Gbps"] == 8 * row["algbw_GBps"] and row["busbw_Gbps"] == 8 * row["busbw_GBps"]


def test_the_pattern(program):
    """The shares of all ranks are the pattern; no type overflows; no rank is silent, and none can stand for another."""
    for world_size in [*range(1, 40), 64, 251, 255, 256, 259, 1024, 4096]:
        for key in (0, world_size - 1):
            shares = torch.stack([program.share(key, rank, world_size) for rank in range(world_size)])
            assert torch.equal(shares.sum(0), program.pattern(key))
            assert shares.min() >= 0 and program.pattern(key).min() >= 1 and program.pattern(key).max() <= 251
            if key == 0:
                assert (shares.sum(1) > 0).all(), world_size
                assert world_size > 259 or len(torch.unique(shares, dim=0)) == world_size
    patterns = torch.stack([program.pattern(key) for key in range(5000)])
    assert len(torch.unique(patterns, dim=0)) == 5000
    for dtype in program.DTYPES:
        assert torch.equal(torch.arange(252).to(getattr(torch, dtype)).to(torch.int64), torch.arange(252))


def test_the_comparison(program):
    """It counts wrong elements wherever they are, and leaves zeros."""
    values = program.pattern(7)
    row = program.PERIOD * program.REPEATS
    for dtype in program.DTYPES:
        for length in (1, 250, 512, 768, row - 2, row, 2 * row + 300):
            block = torch.zeros(length, dtype=getattr(torch, dtype))
            program.fill(block, values)
            assert torch.equal(block.to(torch.int64), values.repeat(length // program.PERIOD + 1)[:length])
            places = sorted({0, length // 2, length - 1})
            wrong = block.clone()
            wrong[places] += 1
            assert program.count_wrong(block, values) == 0 and not block.any()
            assert program.count_wrong(wrong, values) == len(places) and not wrong.any()
    lost = torch.full((2 * row,), float("nan"))
    assert program.count_wrong(lost, values) == 2 * row and not lost.any()


def runs_of(types, folder):
    """Return arguments for every operation in and out of place, each with some of the types."""
    for operation in FACTORS:
        for place in ([], ["--out-of-place"]) if operation in ("all_gather", "reduce_scatter") else ([],):
            for dtype in types:
                file = folder / f"{len(list(place))}.{operation}.{dtype}.json"
                arguments = ["--op", operation, "--dtype", dtype, *place, *QUICK, "--json", file]
                yield [*arguments, "--size", "700000"], file


@pytest.mark.parametrize(("world_size", "types"), [(1, ["float32"]), (2, TYPES), (3, ["uint8"]), (4, ["bfloat16"])])
def test_operations_and_types(world_size, types, tmp_path):
    runs = list(runs_of(types, tmp_path))
    done = ranks(world_size, ALL_REDUCE, [arguments for arguments, _ in runs])
    assert {one["code"] for rank in done for one in rank} == {0}, done[0]
    assert not any(one["out"] for rank in done[1:] for one in rank), "only rank 0 prints"
    assert not any(one["err"] for rank in done for one in rank)
    for (arguments, file), one in zip(runs, done[0]):
        result = json.loads(file.read_text())
        assert (result["operation"], result["dtype"]) == (arguments[1], arguments[3])
        unit = TYPES[result["dtype"]] if result["operation"] == "all_reduce" else 16 * world_size
        assert [row["bytes"] for row in result["results"]] == [700000 // unit * unit]
        in_place = result["operation"] != "all_to_all" and "--out-of-place" not in arguments
        assert {row["in_place"] for row in result["results"]} == {in_place}
        check_result(result, world_size)
        check_table(one["out"], result)
        assert one["out"].startswith(f"# {arguments[1]} of {arguments[3]}, {'in' if in_place else 'out of'} place")
        assert ("nothing crosses a link" in one["out"]) == (world_size == 1)
    assert not list(tmp_path.glob("*.part"))


# Rank 1 gets wrong data from one size on: three elements of what it has, after the operation.
BROKEN = """
import torch.distributed as dist
def broken(name):
    real = getattr(dist, name)
    def run(output, *args, **kwargs):
        real(output, *args, **kwargs)
        if dist.get_rank() == 1 and output.numel() * output.element_size() == {size}:
            output[7:10] -= 1
    setattr(dist, name, run)
for name in ("all_reduce", "all_gather_single", "all_gather_into_tensor", "reduce_scatter_single",
             "reduce_scatter_tensor", "all_to_all_single"):
    if hasattr(dist, name):
        broken(name)
"""


def test_wrong_data_is_named(tmp_path):
    sizes = ["--min", "2K", "--max", "8K", "--csv", tmp_path / "wrong.csv", "--json", tmp_path / "wrong.json", *QUICK]
    runs = [["--op", operation, *sizes] for operation in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")]
    runs.append([*runs[0], "--no-check"])
    done = ranks(2, ALL_REDUCE, runs, patch=BROKEN.format(size=4096))
    assert [[one["code"] for one in rank] for rank in done] == [[1, 1, 1, 1, 0]] * 2
    for one, size, held in zip(done[0][:4], (4096, 4096, 4096, 8192), (1024,) * 4):
        lines = [line for line in one["out"].splitlines() if "WRONG" in line]
        assert lines == [f"# WRONG DATA on rank 1 ({HOST}) at {size} bytes: 3 of {held} elements"]
        assert "1 of 3 sizes gave wrong data" in one["out"]
    assert [[line.split()[9] for line in one["out"].splitlines() if line[0] == " "] for one in done[0]] == [
        *([["0", "3", "0"]] * 3),
        ["0", "0", "3"],
        ["-", "-", "-"],
    ]
    result = json.loads((tmp_path / "wrong.json").read_text())
    assert [row["wrong"] for row in result["results"]] == [None, None, None]
    check_table(done[0][4]["out"], result)


# Rank 1 gives something else than it should: zeros, what rank 0 gives, or its data one place further on.
GIVES = {
    "nothing": "given.zero_()",
    "what another gives": "dist.broadcast(given, 0)",
    "shifted data": "given.copy_(given.roll(1))",
}


@pytest.mark.parametrize("what", GIVES)
def test_a_rank_that_gives_the_wrong_data(what):
    patch = f"""
import torch.distributed as dist
def broken(name, of):
    real = getattr(dist, name)
    def run(*args, **kwargs):
        given = args[of]
        if given.numel() > 1:
            before = given.clone()
            {GIVES[what]}
            if dist.get_rank() == 0:
                given.copy_(before)
        real(*args, **kwargs)
    setattr(dist, name, run)
broken("all_reduce", 0)
for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor",
             "all_to_all_single"):
    if hasattr(dist, name):
        broken(name, 1)
"""
    runs = [["--op", operation, "--size", "4K", *QUICK] for operation in FACTORS]
    for one in ranks(2, ALL_REDUCE, runs, patch=patch)[0]:
        assert one["code"] == 1
        assert f"# WRONG DATA on rank 0 ({HOST}) at 4096 bytes: " in one["out"], one["out"]


def test_sizes_and_memory(program, tmp_path):
    runs = [
        ["--min", "4", "--max", "9", "--factor", "1.5"],  # 4, 6 -> 4 (gone), 9 -> 8
        ["--size", "1k"],
        ["--size", "3", "--dtype", "float64"],  # at least one element
        ["--min", "1M", "--max", "512T", "--factor", "1e6"],
        ["--size", "512T"],
    ]
    runs = [[*arguments, *QUICK, "--json", tmp_path / f"{number}.json"] for number, arguments in enumerate(runs)]
    done = ranks(2, ALL_REDUCE, runs)
    assert [[one["code"] for one in rank] for rank in done] == [[0, 0, 0, 0, 1]] * 2
    results = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(5)]
    sizes = [[row["bytes"] for row in result["results"]] for result in results]
    assert sizes == [[4, 8], [1024], [8], [1048576], []]
    assert f"from 562949953421312 bytes on skipped: no memory for it on rank 0 ({HOST})" in done[0][4]["out"]
    assert "nothing was measured: choose a smaller --min" in done[0][4]["out"]
    assert program.room(torch.device("cpu"), 2) == pytest.approx(program.room(torch.device("cpu"), 1) / 2, rel=0.2)


def test_memory_is_a_small_multiple_of_the_largest_message():
    """Buffers, and what gloo copies: the largest first would hide the others."""
    most = {"all_reduce": 1, "all_to_all": 2, "all_gather": 2.5}  # x 32 MiB
    runs = [["--op", operation, "--size", size, *QUICK] for size in ("1K", "32M") for operation in most]
    runs[-1].append("--out-of-place")
    used = [one["extra_mib"] for one in ranks(2, ALL_REDUCE, runs)[0]]
    for number, times in enumerate(most.values(), 3):
        assert (times - 0.5) * 32 < used[number] - used[2] <= times * 32 + 8, used


def test_json_and_csv(tmp_path):
    """Every key of the result, and the same rows in the CSV file."""
    variables = {"NCCL_IB_HCA": "mlx5", "FI_PROVIDER": "cxi", "GLOO_SOCKET_IFNAME": "lo", "SLURM_JOB_ID": "4711"}
    files = ["--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv"]
    arguments = ["--op", "all_gather", "--max", "64K", "--factor", "8", "--line-rate", "1e6", *QUICK, *files]
    patch = f"os.environ.pop('NCCL_DEBUG', 0); os.environ.update({variables})"
    one = ranks(2, ALL_REDUCE, [arguments], patch=patch)[0][0]
    assert one["code"] == 0, one["err"]
    result = json.loads((tmp_path / "a.json").read_text())
    check_result(result, 2)
    check_table(one["out"], result)
    rows = result.pop("results")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.pop("date"))
    command = result.pop("command")
    assert command.startswith("benchmark/all_reduce.py --op all_gather --max 64K --factor 8")
    environment = {name: value for name, value in variables.items() if name != "SLURM_JOB_ID"}
    assert environment.items() <= result.pop("environment").items()
    assert result == {
        **{"program": "all_reduce.py", "operation": "all_gather", "dtype": "float32", "job": "4711"},
        **{"world_size": 2, "nodes": 1, "hosts": [HOST], "ranks_per_node": 2, "devices": ["cpu", "cpu"]},
        **{"backend": "gloo", "torch": torch.__version__, "nccl": None, "network": "tcp lo", "line_rate_Gbps": 1e6},
    }
    rates = ["algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps"]
    times = ["time_us", "p50_us", "p95_us", "p99_us"]
    for row in rows:
        assert list(row) == ["bytes", "count", "in_place", "iterations", *times, *rates, "wrong"]
    written = list(csv.DictReader((tmp_path / "a.csv").open()))
    common = {"operation": "all_gather", "dtype": "float32", "world_size": "2", "nodes": "1"}
    assert written == [{**common, **{key: str(value) for key, value in row.items()}} for row in rows]
    out = one["out"].replace("\n#  ", "")
    for text in (f"hosts x ranks: {HOST} x 2", "network of rank 0: tcp lo", "job: 4711", "NCCL_IB_HCA=mlx5", command):
        assert text in out, text
    assert f"torch {torch.__version__}, backend gloo" in out


def test_line_rate(program, tmp_path):
    runs = [["--size", "1M", "--line-rate", rate, *QUICK] for rate in ("1e6", "0.5")]
    much, little = ranks(2, ALL_REDUCE, runs)[0]
    assert [one["code"] for one in (much, little)] == [0, 0]
    assert "WARNING" not in much["out"]
    text = little["out"].replace("\n#  ", "")
    (percent,) = re.findall(r"# WARNING: (\d+)% of the line rate at 1048576 bytes", text)
    assert f"{percent}%" in text.split("# WARNING")[0].splitlines()[-1].split()
    assert "tree sends half" in text and "NVLS or SHARP" in text and "Gbit/s" in text
    assert "line rate: 0.5 Gbit/s out of a rank" in text
    assert all(len(line) <= 100 for line in little["out"].splitlines())
    (alone,) = ranks(1, ALL_REDUCE, [runs[1]])[0]
    assert "WARNING" not in alone["out"] and alone["out"].splitlines()[-1].split()[-1] == "-"
    # Four ranks on each of two nodes: half of the 8 - 1 shares that each sends in an all-to-all leave the node.
    bench = SimpleNamespace(line_rate=400.0, world_size=8, hosts=["a"] * 4 + ["b"] * 4)
    for operation, share in (("all_reduce", 0.5), ("all_gather", 0.5), ("all_to_all", 0.5 * 4 * 4 / 7)):
        bench.operation = program.OPERATIONS[operation]
        assert program.Bench.share_of_line(bench, {"busbw_Gbps": 200}) == pytest.approx(share)


def test_large_numbers_keep_the_columns(program):
    row = {"bytes": 16 * 2**30, "count": 4 * 2**30, "time_us": 123456789.0, "p50_us": 999999.94, "p95_us": 1e8}
    row.update(algbw_GBps=999.994, busbw_GBps=1234.5, algbw_Gbps=7999.95, busbw_Gbps=98765.4, wrong=12345)
    bench = SimpleNamespace(line_rate=1.0, share_of_line=lambda row: 99.99)
    assert len(program.table_row(row, bench)) == 100
    bench.line_rate = None
    assert len(program.table_row(row, bench)) == 94


def test_interrupted(tmp_path):
    """Ctrl-C: what was measured is printed, and kept beside the file that a complete sweep would have left."""
    files = ["--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv"]
    processes = start(2, "--factor", "1.01", "--budget", "0.2", *files)
    lines = []
    while sum(line[0] == " " for line in lines) < 3:
        lines.append(processes[0].stdout.readline())
        assert lines[-1], processes[0].stderr.read()
    for process in processes:
        process.send_signal(signal.SIGINT)
    out, err = processes[0].communicate(timeout=30)
    processes[1].communicate(timeout=30)
    assert [process.returncode for process in processes] == [130, 130], err
    rows = [line for line in [*lines, *out.splitlines()] if line.startswith(" ")]
    kept = json.loads((tmp_path / "a.json.part").read_text())
    sizes = [row["bytes"] for row in kept["results"]]
    assert sizes[: len(rows)] == [int(row.split()[0]) for row in rows] and len(sizes) <= len(rows) + 1
    assert f"# stopped by Ctrl-C: {len(sizes)} sizes were measured and kept in {tmp_path}/a.json.part" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv.part", "a.json.part"]
    assert len((tmp_path / "a.csv.part").read_text().splitlines()) == 1 + len(sizes)
    check_result(kept, 2)


def test_a_rank_that_dies(tmp_path):
    dies = """
import os
import torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *args, **kwargs):
    if os.environ["RANK"] == "1" and tensor.numel() == 1024:
        os._exit(9)
    real(tensor, *args, **kwargs)
dist.all_reduce = all_reduce
"""
    processes = start(2, "--json", tmp_path / "a.json", "--timeout", "20", *QUICK, patch=dies)
    out, err = processes[0].communicate(timeout=60)
    processes[1].communicate(timeout=60)
    assert processes[0].returncode != 0 and processes[1].returncode == 9
    assert "# stopped by an error: 2 sizes were measured and kept in" in out, out + err
    assert len(json.loads((tmp_path / "a.json.part").read_text())["results"]) == 2
    assert not (tmp_path / "a.json").exists()


def test_progress_on_a_terminal():
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ALL_REDUCE), "--max", "4K", *QUICK]
    done = subprocess.run(command, env=CLEAN, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "\r\033[K# 2 of 3: 2048 bytes, warm-up\r\033[K# 2 of 3: 2048 bytes, " in shown
    assert shown.endswith("\r\033[K") and "\n" not in shown
    assert "\r" not in done.stdout and done.stdout.count("\n") > 10


def test_under_torchrun(tmp_path):
    done = torchrun(2, ALL_REDUCE, "--max", "64K", "--factor", "8", "--json", tmp_path / "two.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "two.json").read_text())
    assert [row["bytes"] for row in result["results"]] == [1024, 8192, 65536]
    check_result(result, 2)


BAD = [
    (["--min", "2M", "--max", "1M"], "--min 2097152 bytes is more than --max 1048576 bytes; exchange them"),
    (["--max", "1"], "--min 1024 bytes is more than --max 1 bytes; exchange them"),
    *((["--min", value], f"'{value}' is not a size from 1 byte") for value in ("abc", "0", "-1", "1.5K", "1KB", "")),
    (["--max", "1025T"], "is not a size from 1 byte to 1024T; write for example 4K or 256M"),
    *((["--factor", value], f"'{value}' is not a number from 1.01") for value in ("1", "-2", "nan", "inf", "x")),
    *((["--budget", value], f"'{value}' is not a number of seconds from 0.001") for value in ("0", "nan", "1 s")),
    *((["--line-rate", value], f"'{value}' is not a number of Gbit/s from 0.001") for value in ("0", "-1", "200G")),
    (["--size", "1M", "--factor", "4"], "--size is one size, --min, --max and --factor are a sweep; choose one"),
    (["--out-of-place"], "--out-of-place: torch's all_reduce is in place; leave it out, or take another --op"),
    (["--op", "broadcast"], "argument --op: invalid choice: 'broadcast' (choose from 'all_reduce', "),
    (["--dtype", "complex64"], "argument --dtype: invalid choice: 'complex64' (choose from 'float32', "),
    (["--json", "x.out", "--csv", "x.out"], "--json and --csv are both 'x.out'; name two files"),
    (["--csv", "/no/such/folder/x.csv"], "cannot write in folder '/no/such/folder'; create it or name another"),
]


def test_bad_values_are_refused():
    cases = BAD + BAD_EVERYWHERE
    (done,) = ranks(1, ALL_REDUCE, [arguments for arguments, _ in cases], patch='os.environ["RANK"] = "0"')
    for (arguments, message), one in zip(cases, done):
        assert one["code"] == 2, arguments
        assert message.replace("'", "") in one["err"].splitlines()[-1].replace("'", ""), arguments
        assert one["out"] == ""


def test_the_clock_on_a_gpu(program, monkeypatch):
    """Between the first and the last event of a batch there is nothing but operations and events."""
    calls = []

    class Event:
        made = 0

        def __init__(self, enable_timing):
            assert enable_timing
            self.number = Event.made = Event.made + 1

        def record(self):
            calls.append("record")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, end):
            return 1000.0 * (end.number - self.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(program, "gather", lambda numbers, world_size: calls.append("barrier") or [numbers])
    operation = SimpleNamespace(run=lambda output, given: calls.append("run"))
    bench = SimpleNamespace(device=torch.device("cuda"), operation=operation, world_size=1)
    assert program.Bench.batch(bench, None, None, 3) == [1, 1, 1]
    assert calls == ["record"] * 4 + ["synchronize", "barrier", "record"] + ["run", "record"] * 3 + ["wait"]


def test_the_network_in_the_words_of_nccl(program):
    log = """
n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO Using network IB
"""
    assert program.network_of(log) == "IB [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]"
    assert program.network_of("NCCL INFO nothing of the kind") == ""
