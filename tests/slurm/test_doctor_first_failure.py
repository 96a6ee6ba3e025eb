"""Which rank failed first, as slurm/doctor.py finds it in outputs and in the logs of ranks."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time

import pytest
from doctor_cases import (
    CANCELLED,
    DOCTOR,
    GOOD,
    PEER,
    PEERS,
    TERMINATE,
    TRACEBACK,
    doctor,
    labelled,
    lines_of,
    project,
    read,
    traceback,
)

# ---- the first failure -----------------------------------------------------------------------------------------------


def test_the_rank_that_complains_of_others_is_not_the_first(read):
    other, first = "[node1:0] [rank0]: ", "[node2:3] [rank3]: "
    code, report = read(GOOD + traceback(PEER, other) + traceback("KeyError: 'x'", first, depth=500))
    assert code == 1
    assert report.startswith("first failure: [node2:3] [rank3] (my job-12.out:13): the program failed by itself; its")
    assert report.endswith(f"{first}KeyError: 'x'\n") and report.count(first) == 30


MPIRUN_LOST_A_NODE = (
    "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : node1\n  Remote daemon: node2\n"
)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (traceback("KeyError: 'x'", "[node2:3] [rank3]: "), "program"),
        (traceback("torch.OutOfMemoryError: CUDA out of memory.", "[node2:3] [rank3]: "), "program"),
        ("srun: error: node2: task 3: Exited with exit code 3\n", "program"),
        ("srun: error: node2: task 3: Killed\n", "unknown"),
        (traceback(PEER, "[node1:0] [rank0]: "), "unknown"),
        (traceback("RuntimeError: CUDA error: uncorrectable NVLink error", "[node2:3] [rank3]: "), "node node2"),
        # The rank that complains first is not on the node that broke.
        (traceback(PEER, "[node1:0] [rank0]: ") + "[node2:3] RuntimeError: CUDA error: GPU is lost\n", "node node2"),
        ("[node2:3] Failed to initialize NVML: Driver/library version mismatch\n", "node node2"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "unknown"),
        # On all nodes: the container may have a driver's library of its own.
        ("".join(f"[node{n}:{n}] NVML: Driver/library version mismatch\n" for n in (1, 2)), "unknown"),
        (traceback("KeyError: 'x'", "[node1:0] ") + MPIRUN_LOST_A_NODE, "program"),
        (traceback("KeyError: 'x'", "[node1:0] ") + "node2 kernel: NVRM: Xid (PCI:0000:04:00): 31, pid=7\n", "program"),
        # mpirun has lost a node, and the ranks have words of their own for that
        (traceback(PEER, "[node1:0] ") + MPIRUN_LOST_A_NODE, "unknown"),
        (traceback("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure", "") + MPIRUN_LOST_A_NODE, "unknown"),
    ],
)
def test_whose_fault_it_is(doctor, tmp_path, lines, fault):
    """Whether another start may go better, for slurm/nodes.sh; the report is the same."""
    (tmp_path / "my.out").write_text(GOOD + lines)
    said = doctor(f"--fault={tmp_path}/fault", "my.out")
    assert (tmp_path / "fault").read_text() == f"{fault}\n", said.stdout.decode()
    assert said.stdout == doctor("my.out").stdout


def test_causes_that_may_pass_are_in_the_table():
    assert set(DOCTOR.MAY_PASS) <= {cause.name for cause in DOCTOR.CAUSES}


def test_a_fault_that_cannot_be_written(doctor, tmp_path):
    (tmp_path / "my.out").write_text(GOOD + traceback("KeyError: 'x'"))
    done = doctor("--fault=no/fault", "my.out")
    assert (done.returncode, done.stderr) == (2, b"slurm/doctor.py: --fault=no/fault: No such file or directory\n")
    assert b"KeyError" in done.stdout


def test_the_node_at_fault_is_that_of_the_log(doctor, project, tmp_path):
    """torchrun may number the nodes in another order than slurm/lib.sh: rank 0 of this job is on node2."""
    run = project / "logs/900014.0"
    for node, text in ((0, ""), (1, traceback("RuntimeError: CUDA error: uncorrectable ECC error", "[rank0]: "))):
        folder = run / f"node{node}-node{node + 1}/0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
        os.utime(folder / "stderr.log", (node, node))
    doctor(f"--fault={tmp_path}/fault", run)
    assert (tmp_path / "fault").read_text() == "node node2\n"


def test_the_node_that_mpirun_has_lost_comes_before_a_rank_that_said_nothing(doctor, project):
    """The others lost rank 1, which printed no error: the program is not at fault, as the node died."""
    run = project / "logs/900013.0"
    for rank, text in enumerate((traceback("ConnectionError: Connection reset by peer"), "")):
        folder = run / f"node{rank}-node{rank + 1}/0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    output = project / "demo-900013.out"
    output.write_text(GOOD + MPIRUN_LOST_A_NODE)
    report = doctor("900013", cwd=project).stdout.decode()
    assert report.startswith("cause: mpirun lost a node"), report


RICH = """\
import rich.traceback
rich.traceback.install()
def step():
    try:
        {}["lr"]
    except KeyError as error:
        raise RuntimeError("Connection closed by peer") from error
step()
"""


LOST = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection\nclosed by peer"


def test_an_error_that_rich_breaks_at_80_columns(read):
    """It is the error of a rank that lost another one, as the second line says."""
    box = f"╭{'─' * 9} Traceback (most recent call last) {'─' * 9}╮\n│ /x.py:1 in <module> │\n╰{'─' * 53}╯\n"
    lines = labelled("[node1:0] ", f"{box}{LOST}\n") + traceback("KeyError: 'x'", "[node2:3] ")
    assert read(GOOD + lines)[1].startswith("first failure: [node2:3] (")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_traceback_of_rich(read, encoding):
    """As typer prints it. Of the chain the first error counts, which is the rank's own."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8" if encoding == "utf-8" else "C"}
    done = subprocess.run([sys.executable, "-c", RICH], capture_output=True, check=False, env=environment)
    said = done.stderr.decode()
    assert ("╭──" in said) == (encoding == "utf-8") and "Traceback (most recent call last) -" in said.replace("─", "-")
    report = read(GOOD + traceback(PEER, "[node1:0] ") + labelled("[node2:3] ", said))[1]
    assert report.startswith("first failure: [node2:3] (") and "[node2:3] KeyError: 'lr'\n" in report, report


@pytest.mark.parametrize(
    "error",
    [
        "redis.exceptions.ConnectionError: Error 111 connecting to node9:6379. Connection refused.",
        "TimeoutError: Timed out waiting for lock /a/x.lock",
    ],
)
def test_a_connection_that_is_not_to_a_rank(read, error):
    """The rank that says so has failed by itself, and others have lost it."""
    report = read(GOOD + traceback(PEER, "[node1:0] ") + traceback(error, "[node2:3] "))[1]
    assert "first failure: [node2:3] (" in report, report


@pytest.mark.parametrize(
    "error",
    [
        "jaxlib.xla_extension.XlaRuntimeError: UNKNOWN: Gloo AllReduce failed: Connection closed by peer",
        f"{PEER}\n{TRACEBACK}ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
    ids=["a library between ranks", "a tracker that breaks as the rank goes down", "a pipe"],
)
def test_a_rank_that_lost_another_is_not_the_first(read, error):
    report = read(GOOD + labelled("[node1:0] ", traceback(error)) + traceback("KeyError: 'x'", "[node2:3] "))[1]
    assert report.startswith("first failure: [node2:3] ("), report


def test_of_a_chain_the_first_exception_decides(read):
    during = "1: \n1: During handling of the above exception, another exception occurred:\n1: \n"
    chain = traceback("KeyError: 'x'", "1: ") + during + traceback(PEER, "1: ")
    report = read(traceback(PEER, "0: ") + chain)[1]
    assert "first failure: 1 (" in report and "1: KeyError: 'x'\n" in report
    assert report.endswith(f"1: {PEER}\n")
    chain = traceback("torch.OutOfMemoryError: CUDA out of memory.", "1: ") + during + traceback("X: y", "1: ", 40)
    report = read(chain)[1]  # of which the user sees the last 30 lines
    assert report.startswith("cause: the memory of a GPU") and report.count("torch.OutOfMemoryError: ") == 2, report


BAR = "  0%|   | 0/100 [00:00<?, ?it/s] 10%|#  | 10/100 [00:01<00:10,  4.0it/s, loss=2]"
IN_A_THREAD = "Exception in thread Thread-2 (_pin_memory_loop):\n"
IN_DEL = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n"
IN_FLUSH = "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>\n"
IN_FLUSH += "BrokenPipeError: [Errno 32] Broken pipe\n"

ABORTED = "srun: error: node2: task 1: Aborted (core dumped)\n"


@pytest.mark.parametrize(
    ("label", "before", "after"),
    [
        ("", BAR, ""),
        ("[rank0]: ", BAR, ""),
        ("", "", IN_A_THREAD + traceback("ConnectionResetError: [Errno 104] Connection reset by peer")),
        ("", "", IN_DEL + traceback("AssertionError: can only test a child process")),
        ("", "", TERMINATE.format("")),
        ("1: [rank1]: ", "", TERMINATE.format("1: ") + ABORTED),
        ("", "", traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ") * 2),
        ("", "", traceback("subprocess.CalledProcessError: Command '['x.py']' returned non-zero exit status 1.")),
    ],
    ids=["bar", "bar and label", "in a thread", "in __del__", "terminate", "aborted", "torchrun", "accelerate"],
)
def test_the_error_is_what_is_said_first(read, label, before, after):
    """Not behind a progress bar; not what a rank says as it goes down; not its launcher's traceback."""
    code, report = read(GOOD + before + traceback("KeyError: 'lr'", label) + after)
    who = f"{label.rstrip(': ')} " if label else ""
    assert code == 1, report
    assert report.startswith(f"first failure: {who}(my job-12.out:7): the program failed by itself; its own"), report
    assert f"\n{label}KeyError: 'lr'\n" in report, report


TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_17:20:35
  host      : node2
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 56)  (SIGKILL)"""


@pytest.mark.parametrize(
    ("who", "lines"),
    [
        ("rank 3 on node2", TORCHRUN),
        ("on node2", "srun: error: node2: tasks 2-3: Segmentation fault (core dumped)"),
        ("on node2", "srun: error: node2: task 3: Exited with exit code 3"),
        ("rank 3 on node2", "launch/spawn.py on node2: rank 3 was ended by signal 9"),
        ("rank 3 on node2", "mpirun noticed that process rank 3 with PID 7 on node node2 exited on signal 9 (Killed)."),
        ("rank 3 on node2", "prterun noticed that process rank 3 with PID 7 on node node2 exited on"),
    ],
)
def test_who_ended_first_as_the_launchers_say(read, who, lines):
    told = CANCELLED.replace("JOB 12", "STEP 12.0") + " ***\nsrun: error: node2: tasks 2-3: Killed\n"
    log = GOOD + traceback(PEER, "0: ")
    where, said = f"(my job-12.out:{(log + lines).count(chr(10)) + 1})", lines.splitlines()[-1].strip()
    assert re.search(rf"^first failure: {who} {re.escape(f'{where}; {said}')}$", read(f"{log}{lines}\n{told}")[1], re.M)
    report = read(log + told)[1]  # the others were told to end
    assert "\nfirst failure: 0 (" in report and "was killed" not in report


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.12 GiB is free. Including non-PyTorch memory, this process has 77.98 GiB memory in use. Of the "
    "allocated memory 76.50 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)


@pytest.mark.parametrize("label", ["", "3: ", "[node2:3] "])
def test_a_line_longer_than_what_is_quoted_is_the_rank_s_own(doctor, project, label):
    """The log has it with the label of torch, the output with one more: both are cut, at different words."""
    error = traceback(OOM, "[rank3]: ")
    for rank in range(4):
        log = project / f"logs/60.0/node{rank // 2}-node{rank // 2 + 1}/{rank % 2}/stderr.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(error if rank == 3 else "")
    (project / "demo-60.out").write_text(GOOD + labelled(label, error))
    report = doctor("60", cwd=project).stdout.decode()
    assert report.startswith("cause: the memory of a GPU was not enough\nproof: demo-60.out:"), report
    assert "\nfirst failure: rank 3 on node2 (logs/60.0/" in report, report


@pytest.mark.parametrize(
    ("error", "after"),
    [
        ("ValueError: bad", IN_FLUSH),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", ""),
        ("ConnectionRefusedError: [Errno 111] Connection refused", ""),
    ],
)
def test_an_error_that_is_of_no_other_rank(read, error, after):
    """The other side is a pipe that was closed, or Redis, S3, MLflow."""
    code, report = read(GOOD + traceback(error) + after)
    assert code == 1 and report.startswith("first failure: (my job-12.out:7): the program failed by itself"), report


@pytest.mark.parametrize(
    "error",
    [
        traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, NCCL version 2.2\n")
        + "ncclRemoteError: x\n",
        traceback(
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send"
        ),
        traceback("ConnectionResetError: [Errno 104] Connection reset by peer").replace(
            "x.py", "/x/torch/distributed/y.py"
        ),
    ],
    ids=["of several lines", "monitored barrier", "a frame of torch.distributed"],
)
def test_an_error_that_another_rank_was_lost(error):
    log = DOCTOR.RankLog("f", 0.0, 0, "node1", 3, lines_of(*error.splitlines()))
    assert DOCTOR.failures_in_logs([log])[-1].way == "peer"


def test_a_watchdog_that_got_stuck(read):
    error = (
        "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be terminated\n"
    )
    error += "[rank1]:[E ProcessGroupNCCL.cpp:1153] [PG 5 Rank 0] ProcessGroupNCCL preparing to dump debug info.\n"
    error += (
        "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 5 Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds\n"
    )
    code, report = read(GOOD + labelled("1: ", error))
    assert code == 0 and report.startswith("cause: ranks waited in vain for one that hung"), report
    assert "\nfirst failure: 1: [rank1] (" in report and "preparing" not in report, report


def test_who_waited_in_an_output_without_labels(read):
    """srun reports the exit of each task: that is the traceback's end, and no rank that failed before."""
    wait = traceback("RuntimeError: Timed out waiting 8000ms for recv operation to complete")
    code, report = read(GOOD + wait + "srun: error: node2: task 1: Exited with exit code 1\n")
    assert code == 0 and report.startswith("cause: ranks waited in vain for one that hung"), report
    code, report = read(GOOD + wait + "srun: error: node2: task 1: Exited with exit code 3\n")
    assert "the program ended with exit code 3" in report, report


def test_a_second_step_after_one_that_was_ended(read):
    first = "srun: error: node1: task 0: Exited with exit code 2\nsrun: Terminating StepId=12.0\n"
    first += "srun: error: node[1-2]: tasks 1-3: Killed\n"
    second = (
        "launch/spawn.py on node2: rank 3 was ended by signal 11\nsrun: error: node2: task 1: Exited with exit code 139"
    )
    for text in ("srun: error: node2: task 3: Segmentation fault", second):
        lines = lines_of(
            *(first + text + "\nsrun: Terminating StepId=12.1\nsrun: error: node1: task 0: Killed").splitlines()
        )
        reports = DOCTOR.launcher_reports(lines)
        assert [report.code for report in reports] == [2, *[-11] * (text.count("\n") + 1)]
    _, report = read(GOOD + first + "srun: error: node2: task 3: Segmentation fault\nsrun: Terminating StepId=12.1\n")
    assert report.startswith("cause: a process crashed in compiled code\n"), report


def test_logs_of_ranks(doctor, project, tmp_path):
    """Of one attempt and without any output, as in an interactive shell: who hung, and the oldest failure."""
    run = project / "logs/900012.10"  # a number that no job of the other tests has, which share the project
    (project / "logs/900012.9").mkdir(parents=True)
    words = [traceback("RuntimeError: Timed out waiting 8000ms for recv operation to complete")] * 3 + ["a warning\n"]
    for rank, text in enumerate(words):
        folder = run / f"node{rank // 2}-node{rank // 2 + 1}" / str(rank % 2)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    report = doctor(run).stdout.decode()
    assert "cause: ranks waited in vain" in report
    assert f"first failure: rank 3 on node2 ({run}/node1-node2/1/stderr.log) hung, or ended" in report
    assert report.endswith("Timed out waiting 8000ms for recv operation to complete\n")
    for last in ("Timed out waiting 8000ms for recv operation", "Connection closed by peer"):  # stopped, and woken
        (run / "node1-node2/1/stderr.log").write_text(traceback(f"RuntimeError: {last}"))
        os.utime(run / "node1-node2/1/stderr.log", (time.time() + 2, time.time() + 2))
        assert "first failure: rank 3 on node2" in doctor(run).stdout.decode(), last
    for rank, age, folder in ((0, 40, "0.a/attempt_0/0"), (1, 20, "1"), (2, 30, "0")):  # that of rank 0 is past
        log = run / f"node{rank // 2}-node{rank // 2 + 1}" / folder / "stderr.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback(f"KeyError: {rank}"))
        os.utime(log, (1e9 - age, 1e9 - age))
    report = doctor("900012", cwd=project / "logs").stdout.decode()
    assert "first failure: rank 2 on node2 (900012.10/node1-node2/0/stderr.log)" in report
    assert report.endswith("KeyError: 2\n")


def test_who_hung_beside_a_launcher_that_ended(doctor, project):
    """torchrun ends as its ranks did, and srun says so of the node: which one is first means nothing."""
    for hung, ended in itertools.product(range(4), ("node9: task 0", "node10: task 1", "node[9-10]: tasks 0-1")):
        for rank in range(4):
            log = project / f"logs/14.0/node{rank // 2}-node{rank // 2 + 9}/x/attempt_0/{rank % 2}/stderr.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            waited = traceback("RuntimeError: Timed out waiting 8000ms for recv operation to complete")
            log.write_text("" if rank == hung else waited)
        (project / "demo-14.out").write_text(f"srun: error: {ended}: Exited with exit code 1\n")
        report = doctor("14", cwd=project).stdout.decode()
        assert re.search(rf"^first failure: rank {hung} on node{hung // 2 + 9} \(.*\) hung, or", report, re.M), report


# ---- what looks like something else ----------------------------------------------------------------------------------


def test_what_a_rank_said_before_it_left(doctor, project):
    """It printed why, and ended with an exit code: its errors are empty."""
    run = project / "logs/13.0"
    for rank in range(2):
        folder = run / f"node0-node1/0.a/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stderr.log").touch()
        (folder / "stdout.log").write_text("progress\nconfig.yaml: no such key\n" if rank else "progress\n")
    (project / "demo-13.out").write_text(
        "2026-11-21 on 1 node(s), meeting at node1:10013\nRoot Cause (first observed failure):\n[0]:\n"
        "  host      : node1\n  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 9)\n"
    )
    report = doctor("13", cwd=project).stdout.decode()
    assert "first failure: rank 1 on node1" in report and report.endswith("config.yaml: no such key\n"), report


def test_an_error_comes_before_a_lost_peer_without_labels_too(read):
    for text in (traceback("ValueError: bad") + traceback(PEER), traceback(PEER) + traceback("ValueError: bad")):
        code, report = read(GOOD + text)
        assert code == 1 and "by itself" in report and report.endswith("ValueError: bad\n"), report


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["a warning\n", "RuntimeError: CUDA out of memory. Tried to allocate\n"], "the memory of a GPU"),
        (["a warning\n", "1\n" + "Traceback (most recent call last):\n  f()\n" + PEERS + "\n"], "a rank lost another"),
    ],
)
def test_logs_without_an_output(doctor, project, tmp_path, words, cause):
    run = tmp_path / "900016.0"
    for rank, text in enumerate(words):
        log = run / f"node0-node1/{rank}/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(text)
    done = doctor("900016.0")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0 and lines[0].startswith(f"cause: {cause}"), lines
    number = words[1].count("\n")
    assert lines[1].startswith(f"proof: 900016.0/node0-node1/1/stderr.log:{number}: RuntimeError: "), lines


def test_a_command_that_a_rank_ran_is_no_launcher(doctor, tmp_path):
    """A CUDA extension that torch cannot build. A launcher's traceback comes after that of a rank."""
    ninja = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."
    build = "RuntimeError: Error building extension 'fused_adam'"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    run = tmp_path / "900018.0"
    for rank in range(2):
        (run / f"node0-node1/{rank}").mkdir(parents=True)
        (run / f"node0-node1/{rank}/stderr.log").write_text(traceback(PEER))
    for words in (traceback(ninja), traceback(ninja) + direct + traceback(build), traceback("KeyError: 'x'") * 2):
        (run / "node0-node1/1/stderr.log").write_text(words)
        done = doctor("900018.0")
        said = "first failure: rank 1 on node1 (900018.0/node0-node1/1/stderr.log): the program failed by itself; its"
        assert done.returncode == 1 and done.stdout.decode().startswith(said), done.stdout
        assert done.stdout.decode().endswith(f"\n{words.splitlines()[-1]}\n"), done.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_rank_that_starts_a_launcher(launcher):
    """That launcher's traceback, in the log of the rank, is not what failed."""
    child = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    command = "subprocess.CalledProcessError: Command '['x.py']' returned non-zero exit status 1."
    words = {"torchrun": traceback(child), "accelerate": traceback("KeyError: 'x'") + traceback(command)}[launcher]
    log = DOCTOR.RankLog("f", 0.0, 0, "node1", 3, lines_of(*words.splitlines()))
    ways = {"torchrun": ["silent", "launcher"], "accelerate": ["silent", "error", "launcher"]}[launcher]
    assert [failure.way for failure in DOCTOR.failures_in_logs([log])] == ways


def test_a_proof_names_the_file_that_it_stands_in(doctor, project):
    log = project / "logs/77771.0/node0-node1/0/stderr.log"
    log.parent.mkdir(parents=True)
    error = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    log.write_text(error)
    (project / "demo-77771.out").touch()
    report = doctor("77771", cwd=project).stdout.decode()
    assert "\nproof: logs/77771.0/node0-node1/0/stderr.log:6: torch." in report, report
    log.write_text("step\n" * 9999 + error)  # of which it reads the last 16 KB
    report = doctor("77771", cwd=project).stdout.decode()
    assert re.search(r"\nproof: logs/77771.0/node0-node1/0/stderr.log \(its last 16 KB\):\d+: torch\.", report), report


def test_a_rank_that_crashes_as_it_has_lost_another_one(doctor, project):
    """It says so of itself: the other one returned early."""
    words = traceback(PEER) + "terminate called without an active exception\n"
    for rank in range(2):
        log = project / f"logs/59.0/node0-node1/{rank}/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("" if rank else words)
    (project / "demo-59.out").write_text(GOOD + labelled("0: ", words))
    report = doctor("59", cwd=project).stdout.decode()
    assert report.startswith("cause: a rank ended, without an error, while others still waited for it\n"), report
    assert "\nfirst failure: rank 1 on node1 (" in report and "\nwho lost it: rank 0 on node1 (" in report, report


def test_who_lost_a_rank_did_not_wait_for_it(doctor, project):
    for rank in range(2):
        log = project / f"logs/58.0/node0-node1/{rank}/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("" if rank else traceback(PEER))
    (project / "demo-58.out").write_text(GOOD)
    report = doctor("58", cwd=project).stdout.decode()
    assert "\nwho lost it: rank 0 on node1 (" in report and "who waited" not in report, report


# ---- its functions ---------------------------------------------------------------------------------------------------


def failure(way, rank, words=()):
    found = DOCTOR.Failure(f"rank {rank}", rank, "", f"{rank}", f"{rank}:1", rank)
    found.way, found.words = way, list(words)
    return found


@pytest.mark.parametrize(
    ("ways", "way", "failed", "hung"),
    [
        (["peer", "error", "peer"], "error", 1, None),
        (["error", "killed"], "killed", 1, None),
        (["waited", "silent", "waited"], "waited", 0, 1),
        (["peer", "silent"], "peer", 0, 1),
        (["aborted", "error"], "error", 1, None),
        (["launcher", "silent"], "none", None, None),
    ],
)
def test_which_rank_failed_first(ways, way, failed, hung):
    first = DOCTOR.first_failure([failure(way, rank) for rank, way in enumerate(ways)], logs=[])
    assert first.way == way
    assert (first.failed and first.failed.rank) == failed and (first.hung and first.hung.rank) == hung


def test_a_rank_that_srun_ended_is_not_the_one_that_was_lost():
    """Rank 0 said nothing, either, as srun ended it before it could."""
    text = "srun: error: node1: tasks 0,5-6: Terminated\nsrun: error: node2: task 3: Killed\n"
    output = [DOCTOR.Line("x", number, "", line) for number, line in enumerate(text.splitlines(), 1)]
    ended = DOCTOR.ranks_ended_by_srun([], output)
    assert ended == {0, 5, 6}
    failures = [failure(way, rank) for rank, way in enumerate(["silent", "peer", "silent"])]
    assert DOCTOR.first_failure(failures, [], ended).hung.rank == 2
    assert DOCTOR.first_failure(failures[:2], [], ended).hung.rank == 0
    first = DOCTOR.first_failure(failures, [], {0, 2})  # both: either may be the one
    assert [failure.rank for failure in (first.hung, *first.or_one_of)] == [0, 2]
    log = DOCTOR.RankLog("f", 0.0, 0, "node1", 5, [])  # torchrun's: the tasks are nodes
    assert not DOCTOR.ranks_ended_by_srun([log], output)


def test_a_time_limit_of_a_command_is_no_rank_that_was_waited_for(read):
    before = "retry: No space left on device, using /scratch instead\n"
    code, report = read(before + TRACEBACK + "subprocess.TimeoutExpired: Command x timed out after 5 seconds\n")
    assert code == 1 and "the program failed by itself" in report and "disk" not in report.splitlines()[0], report


def test_of_one_rank_the_last_failure_counts():
    first = DOCTOR.first_failure([failure("error", 0), failure("error", 1), failure("waited", 0)], logs=[])
    assert first.failed.rank == 1
