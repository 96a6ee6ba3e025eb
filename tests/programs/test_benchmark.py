"""benchmark/all_reduce.py: what it measures, what it finds, what it prints and writes."""

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys

import pytest
import torch
from test_programs import AS_ITSELF, CLEAN, PROJECT, ends, forked, meeting_point, ranks, torchrun
from waiting import FOREVER

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
    store, meeting = meeting_point()
    code = f"import runpy, sys\n{patch}\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    meeting["WORLD_SIZE"] = str(world_size)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(ALL_REDUCE), *map(str, arguments)],
            env={**CLEAN, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    processes[0].store = store  # open as long as the test has the processes
    return processes


def check_table(out, result):
    """Compare what was printed with what was written."""
    rows = [line for line in out.splitlines() if not line.startswith("#")]
    titles = [line for line in out.splitlines() if re.match(r"# {2,}(size|bytes) ", line)]
    assert len({len(line) for line in rows + titles}) == 1, "aligned"
    assert [int(row.split()[0]) for row in rows] == [row["bytes"] for row in result["results"]]
    for row, text in zip(result["results"], rows):
        cells = text.split()
        assert cells[1] == str(row["count"]) and cells[7] == ("-" if row["wrong"] is None else str(row["wrong"]))
        keys = ["time_us", "algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps"]
        for cell, key in zip(cells[2:7], keys):
            assert float(cell) == pytest.approx(row[key], rel=1e-4, abs=1e-4), key


def check_result(result, world_size):
    """Check what holds for every result, whatever the operation."""
    factor = FACTORS[result["operation"]] * (world_size - 1) / world_size
    assert result["world_size"] == world_size and len(result["devices"]) == world_size
    for row in result["results"]:
        assert row["wrong"] == 0
        assert row["bytes"] == row["count"] * TYPES[result["dtype"]]
        assert 25 <= row["iterations"] <= 1000
        assert row["algbw_GBps"] == pytest.approx(row["bytes"] / row["time_us"] / 1000, rel=1e-12)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * factor, rel=1e-12)
        assert row["algbw_Gbps"] == 8 * row["algbw_GBps"] and row["busbw_Gbps"] == 8 * row["busbw_GBps"]


def test_the_pattern(program):
    """The shares of all ranks are the pattern; no type overflows; none is silent, and none can stand for another."""
    torch.set_num_threads(1)  # on a busy machine several would wait for each other in each of a thousand calls
    for world_size in (1, 2, 3, 39, 256):
        for key in (0, world_size - 1):
            values, total = program.pattern(key), torch.zeros(program.PATTERN, dtype=torch.int64)
            for rank in range(world_size):
                share = program.share(values, rank, world_size)
                assert share.any()
                total += share
            assert torch.equal(total, values.to(torch.int64))
    patterns = torch.stack([program.pattern(key)[:600] for key in range(300)])
    assert len(torch.unique(patterns, dim=0)) == 300
    assert patterns.min() == 1 and patterns.max() == 251
    for dtype in program.DTYPES:
        assert torch.equal(torch.arange(252).to(getattr(torch, dtype)).to(torch.int64), torch.arange(252))


def runs_of(types, folder):
    """Return arguments for every operation in and out of place, each with some of the types."""
    for operation in FACTORS:
        for place in ([], ["--out-of-place"]) if operation in ("all_gather", "reduce_scatter") else ([],):
            for dtype in types:
                file = folder / f"{len(list(place))}.{operation}.{dtype}.json"
                arguments = ["--op", operation, "--dtype", dtype, *place, *QUICK, "--json", file]
                yield [*arguments, "--min", "700000", "--max", "700000"], file


@pytest.mark.parametrize(
    ("world_size", "types"),
    [(1, ["float32"]), (2, TYPES), (3, ["uint8"]), pytest.param(4, ["bfloat16"], marks=pytest.mark.drill)],
)
def test_operations_and_types(world_size, types, tmp_path):
    runs = list(runs_of(types, tmp_path))
    done = ranks(world_size, ALL_REDUCE, [arguments for arguments, _ in runs])
    assert {one["code"] for rank in done for one in rank} == {0}, done[0]
    assert not any(one["out"] for rank in done[1:] for one in rank), "only rank 0 prints"
    assert not any(one["err"] for rank in done for one in rank)
    for (arguments, file), one in zip(runs, done[0]):
        result = json.loads(file.read_text())
        assert (result["operation"], result["dtype"]) == (arguments[1], arguments[3])
        unit = 16 if result["operation"] == "all_reduce" else 16 * world_size
        assert [row["bytes"] for row in result["results"]] == [700000 // unit * unit]
        in_place = result["operation"] != "all_to_all" and "--out-of-place" not in arguments
        assert {row["in_place"] for row in result["results"]} == {in_place}
        check_result(result, world_size)
        check_table(one["out"], result)
        assert f"# operation: {arguments[1]}\n# dtype: {arguments[3]}\n" in one["out"]
        assert f"# in_place: {in_place}\n" in one["out"]
        assert ("nothing crosses a link" in one["out"]) == (world_size == 1)


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
    sizes = ["--min", "2K", "--max", "8K", "--json", tmp_path / "wrong.json", *QUICK]
    runs = [["--op", operation, *sizes] for operation in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")]
    runs.append([*runs[0], "--no-check"])
    done = ranks(2, ALL_REDUCE, runs, patch=BROKEN.format(size=4096))
    assert [[one["code"] for one in rank] for rank in done] == [[1, 1, 1, 1, 0]] * 2
    for one in done[0][:4]:
        lines = [line for line in one["out"].splitlines() if "WRONG" in line]
        assert lines == [f"# WRONG DATA on rank 1 ({HOST}) at 4096 bytes of output: 3 of 1024 elements"]
    assert [[line.split()[7] for line in one["out"].splitlines() if line[0] == " "] for one in done[0]] == [
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


@pytest.mark.parametrize(
    "what", ["shifted data", *(pytest.param(one, marks=pytest.mark.drill) for one in [*GIVES][:2])]
)
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
    runs = [["--op", operation, "--min", "4K", "--max", "4K", *QUICK] for operation in FACTORS]
    for one in ranks(2, ALL_REDUCE, runs, patch=patch)[0]:
        assert one["code"] == 1
        assert f"# WRONG DATA on rank 0 ({HOST}) at " in one["out"], one["out"]


def test_sizes(tmp_path):
    runs = [
        ["--min", "20", "--max", "45", "--factor", "1.5"],  # 20 -> 16, 30 -> 16 (gone), 45 -> 32
        ["--min", "3", "--max", "17", "--dtype", "float64"],  # at least 16 bytes
        ["--min", "100", "--max", "100", "--op", "all_gather"],  # of each rank
    ]
    runs = [[*arguments, *QUICK, "--json", tmp_path / f"{number}.json"] for number, arguments in enumerate(runs)]
    done = ranks(2, ALL_REDUCE, runs)
    assert [[one["code"] for one in rank] for rank in done] == [[0, 0, 0]] * 2
    results = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(3)]
    sizes = [[row["bytes"] for row in result["results"]] for result in results]
    assert sizes == [[16, 32], [16], [96]]


def test_the_sizes_of_a_sweep(program):
    for factor in (2, 4, 8, 2**24):
        expected = [2**10 * factor**k for k in range(25) if factor**k <= 2**24]
        assert program.message_sizes(2**10, 2**34, factor, blocks=1) == expected


def test_no_size_is_above_the_maximum(program):
    assert program.message_sizes(1, 100, 2, blocks=2) == [32, 64]
    assert program.message_sizes(1000, 3000, 2, blocks=1) == [992, 2000]
    assert program.message_sizes(2**30, 2**31 - 1, 2, blocks=1) == [2**30, 2**31 - 16]
    assert program.message_sizes(1, 31, 2, blocks=2) == []


def test_what_rank_0_refuses_ends_all(tmp_path):
    """Once, by rank 0, which alone may see that a file cannot be written."""
    others_see_it = "if os.environ['RANK'] == '1': os.access = lambda *_: True"
    runs = [
        ["--op", "all_to_all", "--min", "1", "--max", "31", "--json", tmp_path / "none.json"],
        ["--max", "1K", *QUICK, "--json", "/no/such/folder/x.json"],
        ["--max", "1K", *QUICK, "--json", tmp_path],
    ]
    first, second = ranks(2, ALL_REDUCE, runs, patch=others_see_it)
    assert [[one["code"] for one in rank] for rank in (first, second)] == [[2, 2, 2]] * 2
    assert [one["err"] for one in first] == [
        "all_reduce.py: --max 31 bytes is too small: the smallest message of all_to_all on 2 ranks has 32 bytes; "
        "raise --max\n",
        "all_reduce.py: cannot write /no/such/folder/x.json: name a file in a folder that is there and yours\n",
        f"all_reduce.py: cannot write {tmp_path}: name a file in a folder that is there and yours\n",
    ]
    assert [one["err"] for one in second] == [""] * 3 and not list(tmp_path.iterdir())


def test_memory_is_a_small_multiple_of_the_largest_message():
    """Buffers, and what gloo copies: the largest first would hide the others."""
    most = {"all_reduce": 1, "all_to_all": 2, "all_gather": 2.5}  # x 32 MiB
    runs = [["--op", name, "--min", size, "--max", size, *QUICK] for size in ("1K", "32M") for name in most]
    runs[-1].append("--out-of-place")
    used = [one["extra_mib"] for one in ranks(2, ALL_REDUCE, runs)[0]]
    for number, times in enumerate(most.values(), 3):
        assert (times - 0.5) * 32 < used[number] - used[2] <= times * 32 + 8, used


def test_json(tmp_path):
    """Every key of the result."""
    variables = {"NCCL_IB_HCA": "mlx5", "FI_PROVIDER": "cxi", "GLOO_SOCKET_IFNAME": "lo", "SLURM_JOB_ID": "4711"}
    arguments = ["--op", "all_gather", "--max", "64K", "--factor", "8", *QUICK]
    arguments += ["--json", tmp_path / "a.json"]
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
        **{"world_size": 2, "nodes": 1, "hosts": [HOST] * 2, "devices": ["cpu", "cpu"]},
        **{
            "in_place": True,
            "backend": "gloo",
            "torch": torch.__version__,
            "nccl": None,
        },
    }
    figures = ["time_us", "algbw_GBps", "busbw_GBps", "algbw_Gbps", "busbw_Gbps"]
    for row in rows:
        assert list(row) == ["bytes", "count", "in_place", *figures, "iterations", "wrong"]
    for text in (f"hosts: {HOST} x 2", "devices: cpu x 2", "job: 4711", f"command: {command}"):
        assert f"{text}\n" in one["out"], text
    assert "NCCL_IB_HCA=mlx5" in one["out"]
    assert f"# backend: gloo\n# torch: {torch.__version__}\n" in one["out"]


def test_large_numbers_keep_the_columns(program):
    row = {"bytes": 16 * 2**30, "count": 4 * 2**30, "time_us": 123456789.0}
    row.update(algbw_GBps=9.99999, busbw_GBps=1234.5, algbw_Gbps=99.9999, busbw_Gbps=98765.4, wrong=12345)
    row.update(in_place=True, iterations=25)
    assert len(program.table_row(program.Result(**row))) == len(program.LINE.format(*[""] * 8))


def test_interrupted(tmp_path):
    """Ctrl-C: what was measured is printed; there is no file that looks like that of a complete sweep."""
    # A shell has what it runs in the background ignore SIGINT, also where that is a run of these tests.
    patch = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    processes = start(2, "--factor", "1.01", "--timeout", FOREVER, "--json", tmp_path / "a.json", patch=patch)
    lines = []
    while sum(line[0] == " " for line in lines) < 3:
        lines.append(processes[0].stdout.readline())
        assert lines[-1], processes[0].stderr.read()
    for process in processes:
        process.send_signal(signal.SIGINT)
    ends(processes)
    assert all(process.returncode for process in processes) and not list(tmp_path.iterdir())


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
    store, meeting = meeting_point()
    words = [ALL_REDUCE, "--json", tmp_path / "a.json", "--timeout", FOREVER, *QUICK]
    meeting["WORLD_SIZE"] = "2"
    of_ranks = [(words, {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    (first, out, err), (second, *_) = forked(dies + AS_ITSELF, of_ranks)
    del store
    assert first != 0 and second == 9
    assert [line.split()[0] for line in out.splitlines() if line[0] == " "] == ["1024", "2048"], out + err
    assert not list(tmp_path.iterdir())


@pytest.mark.drill  # among the fast tests it runs as a job, test_slurm.py
def test_under_torchrun(tmp_path):
    done = torchrun(2, ALL_REDUCE, "--max", "64K", "--factor", "8", "--json", tmp_path / "two.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "two.json").read_text())
    assert [row["bytes"] for row in result["results"]] == [1024, 8192, 65536]
    check_result(result, 2)


BAD = [
    (
        ["--min", "2M", "--max", "1M"],
        "--min 2097152 bytes is more than --max 1048576 bytes; exchange them, or lower --min",
    ),
    *((["--min", value], f"'{value}' is not a size in bytes") for value in ("abc", "0", "-1", "1.5K", "1KB", "")),
    (["--max", "1P"], "'1P' is not a size in bytes; write for example 4K or 256M"),
    (["--factor", "1"], "--factor 1 is not a number from 1.01 on"),
    (["--factor", "nan"], "--factor nan is not a number from 1.01 on"),
    *((["--budget", value], f"--budget: {value} is not a number above 0") for value in ("0", "nan", "inf")),
    (["--out-of-place"], "--out-of-place: torch's all_reduce is in place; leave it out, or take another --op"),
    (["--op", "broadcast"], "argument --op: invalid choice: 'broadcast' (choose from 'all_reduce', "),
    (["--dtype", "complex64"], "argument --dtype: invalid choice: 'complex64' (choose from 'float32', "),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


def test_bad_values_are_refused():
    # RANK without a meeting point: a program that tried to join before it read its flags would fail in another way.
    (done,) = ranks(1, ALL_REDUCE, [arguments for arguments, _ in BAD], patch='os.environ["RANK"] = "0"')
    for (arguments, message), one in zip(BAD, done):
        assert one["code"] == 2, arguments
        assert message.replace("'", "") in one["err"].splitlines()[-1].replace("'", ""), arguments
        assert one["out"] == ""


def test_the_clock_on_a_gpu(program, monkeypatch):
    """It runs from the start of all ranks until the GPU is done, and nothing else is inside it."""
    calls, ticks = [], iter((10.0, 13.0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    monkeypatch.setattr(program.time, "perf_counter", lambda: calls.append("clock") or next(ticks))
    barrier, run = (lambda name=name: calls.append(name) for name in ("barrier", "run"))
    assert program.time_batch(torch.device("cuda"), barrier, run, 3) == 3
    assert calls == ["wait", "barrier", "clock", "run", "run", "run", "wait", "clock"]
