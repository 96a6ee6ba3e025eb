"""Which rank failed first, as slurm/doctor.py finds it in outputs and in the logs of ranks, and what it said last."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest
from doctor_cases import (
    EXITS,
    GOOD,
    PEER,
    TERMINATE,
    TRACEBACK,
    ask,
    ask_job,
    doctor,
    labelled,
    lines_of,
    project,
    read,
    srun_output,
    told,
    torchrun_output,
    traceback,
    write_logs,
)

WAITED = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"
MPIRUN_LOST_A_NODE = (
    "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : node1\n  Remote daemon: node2\n"
)
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"

# ---- in an output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (traceback("KeyError: 'x'", "[node2:3] [rank3]: "), ("error", 3, "")),
        (traceback("torch.OutOfMemoryError: CUDA out of memory. Tried", "[node2:3] "), ("error", 3, "GPU memory")),
        (traceback("RuntimeError: CUDA error: uncorrectable NVLink error", "[node2:3] "), ("error", 3, "GPU hardware")),
        ("3: x\nsrun: error: node2: task 3: Exited with exit code 3\n", ("exited", 3, "")),
        ("3: x\nsrun: error: node2: task 3: Killed\n", ("killed", 3, "killed")),
        # Ranks that complain of another one.
        (traceback(PEER, "[node1:0] "), ("peer", 0, "lost another rank")),
        (traceback(PEER, "[node1:0] ") + traceback("KeyError: 'x'", "[node2:3] ", depth=500), ("error", 3, "")),
        (
            traceback(PEER, "[node1:0] ") + traceback("RuntimeError: CUDA error: GPU is lost", "[node2:3] "),
            ("error", 3, "GPU hardware"),
        ),
        (traceback(PEER) + traceback("ValueError: bad"), ("error", None, "")),
        (traceback("ValueError: bad") + traceback(PEER), ("error", None, "")),
        # mpirun has lost a node, and the ranks have words of their own for that.
        (traceback(PEER, "[node1:0] ") + MPIRUN_LOST_A_NODE, ("peer", 0, "mpirun lost a node")),
        (
            traceback("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure") + MPIRUN_LOST_A_NODE,
            ("peer", None, "mpirun lost a node"),
        ),
        (traceback("KeyError: 'x'", "[node1:0] ") + MPIRUN_LOST_A_NODE, ("error", 0, "")),
        # A good run that only prints what sounds like a failure.
        ("[node2:3] Failed to initialize NVML: Driver/library version mismatch\n", ("none", None, "")),
    ],
)
def test_which_rank_failed_first(ask, lines, expected):
    assert told(ask(GOOD + lines)) == expected


@pytest.mark.parametrize(
    "error",
    [
        traceback("jaxlib.xla_extension.XlaRuntimeError: UNKNOWN: Gloo AllReduce failed: Connection closed by peer"),
        traceback("BrokenPipeError: [Errno 32] Broken pipe"),
        traceback("ConnectionResetError: [Errno 104] Connection reset by peer").replace(
            "x.py", "/x/torch/distributed/y.py"
        ),
        traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, NCCL version 2.2")
        + "ncclRemoteError: x\n",
        traceback(
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send"
        ),
        f"{TRACEBACK}{PEER}\nterminate called without an active exception\n",
    ],
    ids=["library", "pipe", "frame", "several lines", "barrier", "crashes as well"],
)
def test_a_rank_that_lost_another_is_not_the_first(ask, error):
    answer = ask(GOOD + labelled("[node1:0] ", error) + traceback("KeyError: 'x'", "[node2:3] "))
    assert told(answer) == ("error", 3, "") and answer["words"][-1] == "KeyError: 'x'", answer


@pytest.mark.parametrize(
    "error",
    [
        "redis.exceptions.ConnectionError: Error 111 connecting to node9:6379. Connection refused.",
        "TimeoutError: Timed out waiting for lock /a/x.lock",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "subprocess.TimeoutExpired: Command x timed out after 5 seconds",
    ],
)
def test_a_connection_that_is_not_to_a_rank(ask, error):
    """The rank that says so has failed by itself, and others have lost it."""
    answer = ask(GOOD + traceback(PEER, "[node1:0] ") + traceback(error, "[node2:3] "))
    assert answer["way"] == "error" and answer["rank"] == 3, answer


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


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_traceback_of_rich(ask, encoding):
    """As typer prints it. Of the chain the first error counts, which is the rank's own."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8" if encoding == "utf-8" else "C"}
    done = subprocess.run([sys.executable, "-c", RICH], capture_output=True, check=False, env=environment)
    said = done.stderr.decode()
    assert ("╭──" in said) == (encoding == "utf-8") and "Traceback (most recent call last) -" in said.replace("─", "-")
    answer = ask(GOOD + traceback(PEER, "[node1:0] ") + labelled("[node2:3] ", said))
    assert told(answer) == ("error", 3, "") and "KeyError: 'lr'" in answer["words"], answer


def test_of_a_chain_the_first_exception_decides(ask):
    answer = ask(traceback(PEER, "0: ") + labelled("1: ", traceback("KeyError: 'x'") + DURING + traceback(PEER)))
    assert told(answer) == ("error", 1, "") and "KeyError: 'x'" in answer["words"], answer
    chain = traceback("torch.OutOfMemoryError: CUDA out of memory. x") + DURING + traceback("X: y", depth=40)
    answer = ask(labelled("1: ", chain))
    assert told(answer) == ("error", 1, "GPU memory") and len(answer["words"]) == 25, answer
    assert answer["words"][0].startswith("torch.OutOfMemoryError"), "what the others follow from is quoted, too"


BAR = "  0%|   | 0/100 [00:00<?, ?it/s] 10%|#  | 10/100 [00:01<00:10,  4.0it/s, loss=2]"
IN_A_THREAD = "Exception in thread Thread-2 (_pin_memory_loop):\n"
IN_DEL = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n"
IN_FLUSH = "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>\n"
IN_FLUSH += "BrokenPipeError: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BAR, ""),
        ("", IN_A_THREAD + traceback("ConnectionResetError: [Errno 104] Connection reset by peer")),
        ("", IN_DEL + traceback("AssertionError: can only test a child process")),
        ("", IN_FLUSH),
        ("", TERMINATE.format("")),
        ("", traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ") * 2),
        ("", traceback("subprocess.CalledProcessError: Command '['x.py']' returned non-zero exit status 1.")),
    ],
    ids=["bar", "in a thread", "in __del__", "in flush", "terminate", "torchrun", "accelerate"],
)
@pytest.mark.parametrize("label", ["", "1: ", "1: [rank1]: ", "[node1:1] "])
def test_the_error_is_what_is_said_first(ask, label, before, after):
    """Not behind a progress bar; not what a rank says as it goes down; not its launcher's traceback."""
    answer = ask(GOOD + label + before + traceback("KeyError: 'lr'", label)[len(label) :] + labelled(label, after))
    assert told(answer) == ("error", 1 if label else None, ""), answer
    assert "KeyError: 'lr'" in answer["words"], answer


def test_an_abort_that_srun_reports_after_an_error(ask):
    words = labelled("1: ", traceback("KeyError: 'lr'") + TERMINATE.format(""))
    answer = ask(GOOD + words + "srun: error: node2: task 1: Aborted (core dumped)\n")
    assert (*told(answer), answer["exit_code"]) == ("error", 1, "", -6), answer
    assert "KeyError: 'lr'" in answer["words"], answer


def test_a_watchdog_that_got_stuck(ask):
    said = "[rank1]:[{0} ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] {1}\n"
    error = said.format("E", "Heartbeat monitor timed out! Process will be terminated after dumping debug info.")
    error += said.format("E", "ProcessGroupNCCL preparing to dump debug info.")
    error += said.format("F", "ProcessGroupNCCL's watchdog got stuck for 600 seconds")
    assert told(ask(GOOD + labelled("1: ", error))) == ("waited", 1, "waited in vain")


def test_who_waited_in_an_output_without_labels(ask):
    """Python ends with 1 after a traceback: another exit code is that of a rank that failed before."""
    for code, way in ((1, "waited"), (3, "exited")):
        end = f"srun: error: node2: task 1: Exited with exit code {code}\n"
        assert ask(GOOD + traceback(WAITED) + end)["way"] == way


def test_a_second_step_after_one_that_was_ended(ask):
    first = "srun: error: node1: task 0: Exited with exit code 2\nsrun: Terminating StepId=12.0\n"
    first += "srun: error: node[1-2]: tasks 1-3: Killed\n"
    second = "srun: error: node2: task 3: Segmentation fault\nsrun: Terminating StepId=12.1\n"
    answer = ask(GOOD + first + second)
    assert (answer["way"], answer["exit_code"]) == ("exited", 2), answer


# ---- in the logs of ranks --------------------------------------------------------------------------------------------


def test_a_rank_has_the_number_that_torch_says(ask_job, project):
    """torchrun may number the nodes in another order than slurm/job.sh: rank 0 of this job is on node2."""
    run = project / "logs/900014.0"
    write_logs(run, {0: "", 1: traceback("RuntimeError: CUDA error: uncorrectable ECC error", "[rank0]: ")}, per_node=1)
    answer = ask_job(run)
    assert (*told(answer), answer["host"]) == ("error", 0, "GPU hardware", "node2"), answer


def test_the_node_that_mpirun_has_lost_comes_before_a_rank_that_said_nothing(ask_job, project):
    """The others lost rank 1, which printed no error: its node died."""
    write_logs(
        project / "logs/900013.0", {0: traceback("ConnectionError: Connection reset by peer"), 1: ""}, per_node=1
    )
    (project / "demo-900013.out").write_text(GOOD + MPIRUN_LOST_A_NODE)
    answer = ask_job("900013", cwd=project)
    assert answer["causes"][0]["name"] == "mpirun lost a node", answer


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.12 GiB is free. Including non-PyTorch memory, this process has 77.98 GiB memory in use. Of the "
    "allocated memory 76.50 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)


@pytest.mark.parametrize("label", ["", "3: ", "[node2:3] "])
def test_a_long_line_in_the_log_and_in_the_output(ask_job, project, label):
    """The log has it with the label of torch, the output with one more."""
    error = traceback(OOM, "[rank3]: ")
    write_logs(project / "logs/60.0", {rank: error if rank == 3 else "" for rank in range(4)})
    (project / "demo-60.out").write_text(GOOD + labelled(label, error))
    answer = ask_job("60", cwd=project)
    assert (*told(answer), answer["host"]) == ("error", 3, "GPU memory", "node2"), answer


def test_who_kept_the_others_waiting(doctor, ask_job, project):
    """Of the logs alone, as in an interactive shell: the rank that said nothing."""
    run = project / "logs/900012.10"  # a number that no job of the other tests has, which share the project
    write_logs(run, {**{rank: traceback(WAITED) for rank in range(3)}, 3: "a warning\n"})
    assert told(ask_job(run))[::2] == ("waited", "waited in vain")
    assert "\nprinted no error: rank 3 on node2 (" in doctor(run).stdout.decode()


def test_the_oldest_failure_of_the_newest_attempt(ask_job, project):
    write_logs(project / "logs/900019.9", {0: traceback("KeyError: 'past'")})
    run = project / "logs/900019.10"
    for rank, age in ((0, 10), (1, 20), (2, 30)):
        write_logs(run, {rank: traceback(f"KeyError: {rank}")})
        os.utime(run / f"node{rank // 2}-node{rank // 2 + 1}/{rank % 2}/stderr.log", (1e9 - age, 1e9 - age))
    answer = ask_job("900019", cwd=project / "logs")
    assert told(answer) == ("error", 2, "") and answer["words"][-1] == "KeyError: 2", answer


def test_who_hung_beside_a_launcher_that_ended(doctor, project):
    """torchrun ends as its ranks did, and srun says so of the node: which one is first means nothing."""
    for hung, ended in itertools.product(range(4), ("node1: task 0", "node2: task 1", "node[1-2]: tasks 0-1")):
        texts = {rank: "" if rank == hung else traceback(WAITED) for rank in range(4)}
        write_logs(project / "logs/14.0", texts, inner="x/attempt_0")
        (project / "demo-14.out").write_text(f"srun: error: {ended}: Exited with exit code 1\n")
        report = doctor("14", cwd=project).stdout.decode()
        assert f"\nprinted no error: rank {hung} on node{hung // 2 + 1} (" in report, report


def test_what_a_rank_said_before_it_left(ask_job, project):
    """It printed why, and ended with an exit code: its errors are empty."""
    write_logs(project / "logs/13.0", {0: "", 1: ""}, inner="0.a/attempt_0")
    for rank in range(2):
        log = project / f"logs/13.0/node0-node1/0.a/attempt_0/{rank}/stdout.log"
        log.write_text("progress\nconfig.yaml: no such key\n" if rank else "progress\n")
    table = "Root Cause (first observed failure):\n[0]:\n  host      : node1\n  rank      : 1 (local_rank: 1)\n"
    start = "2026-11-21 on 1 node(s), meeting at node1:10013\n"
    (project / "demo-13.out").write_text(f"{start}{table}  exitcode  : 3 (pid: 9)\n")
    answer = ask_job("13", cwd=project)
    assert (*told(answer), answer["exit_code"]) == ("exited", 1, "", 3), answer
    assert answer["words"] == ["config.yaml: no such key"], answer


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a warning\n", traceback("RuntimeError: CUDA out of memory. Tried to allocate")], ("error", 1, "GPU memory")),
        (["a warning\n", f"1\nTraceback (most recent call last):\n  f()\n{PEER}\n"], ("peer", 1, "lost another rank")),
    ],
)
def test_logs_without_an_output(ask_job, tmp_path, words, expected):
    write_logs(tmp_path / "900016.0", dict(enumerate(words)))
    answer = ask_job("900016.0")
    assert told(answer) == expected, answer
    number = words[1].count("\n")
    assert answer["causes"][0]["proof"].startswith(f"900016.0/node0-node1/1/stderr.log:{number}: RuntimeError: "), (
        answer
    )


def test_a_command_that_a_rank_ran_is_no_launcher(ask_job, tmp_path):
    """A CUDA extension that torch cannot build. A launcher's traceback comes after that of a rank."""
    ninja = traceback("subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.")
    build = traceback("RuntimeError: Error building extension 'fused_adam'")
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    for words in (ninja, ninja + direct + build, traceback("KeyError: 'x'") * 2):
        write_logs(tmp_path / "900018.0", {0: traceback(PEER), 1: words})
        answer = ask_job("900018.0")
        assert answer["way"] == "error" and answer["rank"] == 1, answer
        assert answer["words"][-1] == words.splitlines()[-1], answer


def test_a_rank_that_starts_a_launcher(ask_job, tmp_path):
    """That launcher's traceback, in the log of the rank, is not what failed."""
    child = traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    command = traceback("subprocess.CalledProcessError: Command '['x.py']' returned non-zero exit status 1.")
    write_logs(tmp_path / "900020.0", {0: child, 1: traceback("KeyError: 'x'") + command})
    answer = ask_job("900020.0")
    assert told(answer) == ("error", 1, "") and "KeyError: 'x'" in answer["words"], answer


def test_a_proof_names_the_file_that_it_stands_in(ask_job, project):
    error = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    write_logs(project / "logs/77771.0", {0: error})
    (project / "demo-77771.out").touch()
    proof = ask_job("77771", cwd=project)["causes"][0]["proof"]
    assert proof.startswith("logs/77771.0/node0-node1/0/stderr.log:6: torch."), proof
    write_logs(project / "logs/77771.0", {0: "step\n" * 9999 + error})
    proof = ask_job("77771", cwd=project)["causes"][0]["proof"]
    assert proof.startswith("logs/77771.0/node0-node1/0/stderr.log (its end):"), proof


def test_a_rank_that_crashes_as_it_has_lost_another_one(doctor, ask_job, project):
    """It says so of itself: the other one returned early."""
    words = traceback(PEER) + "terminate called without an active exception\n"
    write_logs(project / "logs/59.0", {0: words, 1: ""})
    (project / "demo-59.out").write_text(GOOD + labelled("0: ", words))
    assert told(ask_job("59", cwd=project)) == ("peer", 0, "lost another rank")
    report = doctor("59", cwd=project).stdout.decode()
    assert "\nprinted no error: rank 1 on node1 (" in report, report
    assert "\na rank that lost another one: rank 0 on node1 (" in report, report


def test_an_abort_behind_an_error_is_no_cause(ask):
    """After the error Python ends, and gloo's threads abort it: the error is what to look at."""
    words = traceback("FloatingPointError: loss is nan") + "terminate called without an active exception\n"
    answer = ask(GOOD + labelled("[node1:0] ", words))
    assert told(answer) == ("error", 0, ""), answer
    assert "FloatingPointError: loss is nan" in answer["words"]


# ---- errors that a rank survived, or that all had --------------------------------------------------------------------


def test_an_error_that_all_ranks_caught_once_and_died_of_later(ask_job, project):
    """The last time counts, of each rank."""
    words = traceback("RuntimeError: no batch") + "step 2 of 9\n" + traceback("RuntimeError: no batch")
    for other in (words, words + "".join(f"tidying up file {letter}\n" for letter in "abcdefghijklmnop")):
        write_logs(project / "logs/161.0", {0: words, 1: other})
        (project / "demo-161.out").write_text(GOOD + "srun: error: node1: task 0: Exited with exit code 1\n")
        answer = ask_job("161", cwd=project)
        assert (answer["way"], answer["words"][-1]) == ("error", "RuntimeError: no batch"), answer


def test_a_line_of_another_process_behind_an_error_proves_nothing(ask_job, project):
    """torchrun itself dies, beside a file argparse.py; the other node's shell complains behind it."""
    error = traceback("AttributeError: partially initialized module 'argparse' has no attribute 'ArgumentParser'")
    lines = error + "/etc/profile.d/z00_lmod.sh: line 32: module: command not found\n"
    (project / "demo-163.out").write_text(GOOD + lines + "srun: error: node1: task 0: Exited with exit code 1\n")
    answer = ask_job("163", cwd=project)
    assert answer["causes"] == [] and any("AttributeError" in word for word in answer["words"]), answer


def test_the_last_line_is_shown_though_all_ranks_printed_it(ask_job, project):
    words = {rank: f"loaded shard {letter}\nfatal: disk full\n" for rank, letter in enumerate("ab")}
    write_logs(project / "logs/162.0", words)
    (project / "demo-162.out").write_text(GOOD + "srun: error: node1: task 0: Exited with exit code 3\n")
    answer = ask_job("162", cwd=project)
    assert answer["words"] == ["loaded shard a", "fatal: disk full"], answer


def test_an_error_before_the_last_step_did_not_end_a_rank(ask):
    survived = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried") + "step 7/200  loss 2.31\n"
    for launcher, output in EXITS.items():
        answer = ask(output(survived + "config error: no key lr"))
        assert told(answer) == ("exited", 3, ""), (launcher, answer)
        assert answer["words"][-1] == "config error: no key lr", (launcher, answer)


def test_an_exit_code_of_3_cannot_come_from_a_traceback(ask):
    for output in EXITS.values():
        assert told(ask(output(traceback("KeyError: 'caught'") + "0 of 512 answers can be parsed"))) == (
            "exited",
            3,
            "",
        )


def test_a_table_of_torchrun_names_the_rank(ask):
    answer = ask(torchrun_output("", words="loading"))
    assert (*told(answer), answer["host"], answer["exit_code"]) == ("killed", 3, "killed", "node2", -9), answer
    answer = ask(srun_output("", words="loading"))
    assert (*told(answer), answer["host"], answer["exit_code"]) == ("killed", 3, "killed", "node2", -9), answer


def test_the_reader_of_messages():
    """A chain is one message, whose first error decides."""
    (message,) = sys.modules["errors"].read_messages(
        lines_of(*(traceback("A: b") + DURING + traceback("C: d")).splitlines())
    )
    assert [line.text for line in message.errors] == ["A: b", "C: d"] and message.way == "error"
