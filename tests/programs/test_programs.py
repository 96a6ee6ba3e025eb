"""check/hello.py and pi/pi.py, run as they are: alone, under torchrun, as ranks started by hand. What all share, too.

An import of torch takes a second or more, so most tests make several checks in one process (`ranks` below), and ranks
are forked from one that has imported it.
"""

import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist
from waiting import PATIENCE

PROJECT = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}"
HELLO, PI = PROJECT / "check/hello.py", PROJECT / "pi/pi.py"
RESERVED = ("SLURM_", "PET_", "OMPI_", "PMI", "TORCHELASTIC_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_")
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(RESERVED) and name not in ("RANK", "WORLD_SIZE", "PYTHONPATH")
}
CLEAN.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

# Runs a program once per list of arguments, in one process, and prints what came of it. Without numpy, because the
# programs promise to need torch alone. Each run meets through a store of its own.
DRIVER = """
import contextlib, io, json, os, runpy, sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")
import torch
{patch}
def peak():  # MiB
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
bare = peak()
for port, argv in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = port
    sys.argv, code, streams = argv, 0, (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
    out, err = (stream.getvalue() for stream in streams)
    print(json.dumps({{"code": code, "out": out, "err": err, "extra_mib": peak() - bare}}), flush=True)
"""


def meeting_point():
    """Return a store, and the variables with which ranks meet through it as long as something refers to the store.

    This process opens the store, as torchrun does for its ranks. Ranks that open one need a port that is free when they
    get to it, and another test may have it by then.
    """
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    return store, {**meeting, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


# For each line that it reads, forks the ranks of a run, and prints their exit codes: all share one import of torch.
# Like DRIVER, without numpy.
FORK = """
import json, multiprocessing, os, sys
sys.modules["numpy"] = None
import torch.distributed.distributed_c10d
def be_a_rank(script, words, environment, log, cwd):
    os.chdir(cwd)
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    sys.argv = ["-c", *words]
    exec(script, {"__name__": "__main__"})
fork = multiprocessing.get_context("fork")
for line in sys.stdin:
    processes = [fork.Process(target=be_a_rank, args=one) for one in json.loads(line)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(json.dumps([process.exitcode for process in processes]), flush=True)
"""


@cache
def forking():
    """Return the process that runs FORK, which ends with this one."""
    command, pipes = [sys.executable, "-W", "ignore", "-c", FORK], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=CLEAN, text=True, start_new_session=True, **pipes)


def forked(script, words_and_environments, cwd="."):
    """Run `script` in a process per rank, each with its own words and variables; return [(exit code, out, err)]."""
    with tempfile.TemporaryDirectory() as folder:
        given = [
            (script, list(map(str, words)), environment, f"{folder}/{rank}", str(Path(cwd).absolute()))
            for rank, (words, environment) in enumerate(words_and_environments)
        ]
        process = forking()
        try:
            print(json.dumps(given), file=process.stdin, flush=True)
            assert select.select([process.stdout], [], [], PATIENCE)[0], "the ranks do not end"
            codes = json.loads(process.stdout.readline())
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            forking.cache_clear()
            raise
        texts = [[Path(f"{log}.{name}").read_text() for name in ("out", "err")] for *_, log, _ in given]
    return [(code, *text) for code, text in zip(codes, texts)]


# Runs one program as it is.
AS_ITSELF = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ranks(world_size, program, argument_lists, patch=""):
    """Run `program` with each list of arguments on so many ranks; return, per rank, one result per list."""
    stores, meetings = zip(*(meeting_point() for _ in argument_lists))
    words = [[str(program), *map(str, arguments)] for arguments in argument_lists]
    runs = [(meeting["MASTER_PORT"], argv) for meeting, argv in zip(meetings, words)]
    environments = [
        {**meetings[0], "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        for rank in range(world_size)
    ]
    if world_size == 1:
        environments = [{}]
    done = forked(DRIVER.format(patch=patch), [([json.dumps(runs)], environment) for environment in environments])
    results = []
    for _, out, err in done:
        results.append([json.loads(line) for line in out.splitlines()])
        assert len(results[-1]) == len(runs), err
    del stores
    return results


def ends(processes):
    """Wait until all these have ended; return what each has written to its standard output and error."""
    try:
        return [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()


def run(*command, **environment):
    command = [str(part) for part in command]
    env = {**CLEAN, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


def torchrun(world_size, *program):
    """Run `program` under torchrun; without the `--` it would look for its own options among the program's."""
    options = ["--standalone", f"--nproc-per-node={world_size}"]
    return run(sys.executable, "-m", "torch.distributed.run", *options, "--", *program)


@pytest.mark.drill  # among the fast tests it runs as a job, test_slurm.py
def test_hello_under_torchrun():
    done = torchrun(2, HELLO)
    assert done.returncode == 0, done.stderr
    host = socket.gethostname()
    expected = [f"rank 0 of 2 on {host}", f"rank 1 of 2 on {host}", "the sum of all ranks is 1"]
    assert sorted(done.stdout.splitlines()) == expected


def test_hello_without_a_launcher_names_one():
    ((done,),) = ranks(1, HELLO, [[]])
    assert (done["code"], done["out"]) == (2, "")
    assert done["err"].startswith("RANK is not set: start this program with a launcher, as in torchrun ")
    assert done["err"].count("\n") == 1, done


def trapezoid(n):
    """Return the trapezoid rule's value, one point after the other."""
    return 4 * math.fsum([0.75, *(1 / (1 + (i / n) ** 2) for i in range(1, n))]) / n


# Below, at and around what a rank takes in one go (2^16 points).
SMALL = [1, 2, 3, 4, 5, 7, 10, 1000, 65535, 65536, 65537, 65538, 196611, 200003]


def pi_runs(folder, counts):
    return [["--intervals", n, "--json", folder / f"{n}.json"] for n in counts]


def pi_results(folder, counts):
    return {n: json.loads((folder / f"{n}.json").read_text()) for n in counts}


def test_pi_alone(tmp_path):
    counts = [*SMALL, 20_000_000, "1e9"]
    (done,) = ranks(1, PI, pi_runs(tmp_path, counts))
    assert [one["code"] for one in done] == [0] * len(counts)
    results = pi_results(tmp_path, counts)
    for n in SMALL:
        assert abs(results[n]["pi"] - trapezoid(n)) <= 1e-15, n
        assert results[n]["intervals"] == n
    last = results["1e9"]
    assert set(last) == {"pi", "error", "intervals", "seconds", "intervals_per_second", "world_size", "hosts"}
    assert last["intervals"] == 1_000_000_000 and isinstance(last["intervals"], int)
    assert abs(last["pi"] - math.pi) <= 1e-15 and last["error"] == last["pi"] - math.pi
    assert last["intervals_per_second"] == pytest.approx(last["intervals"] / last["seconds"])
    assert (last["world_size"], last["hosts"]) == (1, 1)
    assert re.search(r"^pi +3\.14159265358979\d{3}$", done[-1]["out"], re.M)
    assert "1 rank on 1 host (cpu)" in done[-1]["out"]
    # Little memory, and no more of it for 50 times the work (measured with everything else that a run needs).
    assert done[-1]["extra_mib"] < 50
    assert done[-1]["extra_mib"] - done[-2]["extra_mib"] < 5


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.drill), 3])
def test_pi_is_the_same_on_several_ranks(world_size, tmp_path):
    counts = [*SMALL, "1e8"]
    done = ranks(world_size, PI, pi_runs(tmp_path, counts))
    assert {one["code"] for rank in done for one in rank} == {0}
    for n, result in pi_results(tmp_path, counts).items():
        expected = math.pi if n == "1e8" else trapezoid(n)
        assert abs(result["pi"] - expected) <= 1e-15, n
        assert result["world_size"] == world_size
    assert f"{world_size} ranks on 1 host (cpu)" in done[0][0]["out"]
    assert not any(one["out"] for rank in done[1:] for one in rank), "only rank 0 prints"


@pytest.mark.drill  # among the fast tests it runs as a job, test_slurm.py
def test_pi_under_torchrun(tmp_path):
    done = torchrun(2, PI, "--intervals", "1e9", "--json", tmp_path / "pi.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "pi.json").read_text())
    assert abs(result["error"]) <= 1e-15
    assert result["world_size"] == 2
    assert done.stdout.count("\n") == 4


WHOLE, SECONDS = "expected a whole number from 1 to 2^53, for example 1e9", "expected a number of seconds from 1 to 1e6"
BAD = [
    *((["--intervals", value], WHOLE) for value in ("0", "-1", "1.5", "nan", "inf", "1e99999999999")),
    *((["--intervals", value], f"invalid float value: '{value}'") for value in ("abc", "")),
    *((["--timeout", value], SECONDS) for value in ("0", "-1", "nan", "inf")),
    (["--timeout", "soon"], "invalid float value: 'soon'"),
    *(
        (["--json", name], f"--json {name}: name a file in a folder that is there and yours")
        for name in ("/no/such/folder/x.json", "/")
    ),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


def test_bad_values_are_refused():
    # RANK without a meeting point: a program that tried to join before it read its flags would fail in another way.
    (done,) = ranks(1, PI, [arguments for arguments, _ in BAD], patch='os.environ["RANK"] = "0"')
    for (arguments, message), one in zip(BAD, done):
        assert (one["code"], one["out"]) == (2, ""), arguments
        assert message in one["err"].splitlines()[-1], arguments


def test_a_peer_that_never_comes(tmp_path):
    """The rank that waits gives up in time, and leaves what torchrun reports as the first failure."""
    # Port 0: the system gives out one that is free, which nobody has to be told.
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    error = tmp_path / "error.json"
    environment = {**alone, "TORCHELASTIC_ERROR_FILE": str(error)}
    ((code, _, err),) = forked(AS_ITSELF, [([PI, "--timeout", "1"], environment)])
    assert code == 1
    assert "timed out" in json.loads(error.read_text())["message"]["message"].lower(), err


def test_setup_is_the_same_everywhere():
    found = {}
    for path in sorted(PROJECT.rglob("*.py")):
        match = re.search(r"^def setup\(.*?(?=^\S|\Z)", path.read_text(), re.M | re.S)
        if match:
            found[path.relative_to(PROJECT).as_posix()] = match[0].rstrip()
    assert {"pi/pi.py", "benchmark/all_reduce.py"} <= set(found)
    assert len(set(found.values())) == 1, f"setup() differs among {list(found)}"
