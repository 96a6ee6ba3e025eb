"""What slurm/doctor.py makes of the reports of torchrun, srun, launch/spawn.py and mpirun on a rank that failed."""

from __future__ import annotations

import pytest
from doctor_cases import (
    EXITS,
    GOOD,
    LAUNCHER_REPORTS,
    LAUNCHERS,
    LOGS,
    OTHER,
    REPORT_ENDS,
    TERMINATE,
    ask,
    ask_job,
    doctor,
    labelled,
    lines_of,
    mpirun_output,
    project,
    read,
    spawn_output,
    srun_output,
    told,
    torchrun_output,
    traceback,
    write_logs,
)

KILLED = ("killed", 3, "killed")

# ---- what a launcher reports comes before lines ----------------------------------------------------------------------

# What good runs print, as it was posted, with where it was read (2026-11-22). The older doctor took each for the cause.
HARMLESS = """\
NVIDIA/nccl #162 #1504: there is no plugin for the network of one vendor
node2:4009:4009 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so

NVIDIA/nccl #1231
node2:4009:4009 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation

NVIDIA/nccl #975
node2:4009:4557 [0] NCCL INFO misc/socket.cc:504 -> 2 (No route to host)

antgroup/animate-x #15, OFA-Sys/OFA #307
[W1121 17:20:31.214 socket.cpp:601] [c10d] The IPv6 network addresses of (node1, 51595) cannot be retrieved (gai error: -2 - Name or service not known).

ali-vilab/dreamtalk #32, yekaizhou/duet #9
2024-02-25 18:52:47.991396: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory

AUTOMATIC1111/stable-diffusion-webui #17165
WARNING:huggingface_hub.utils._http:'(MaxRetryError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x/config.json (Caused by NewConnectionError(': Failed to establish a new connection: [Errno 101] Network is unreachable'))"), '(Request ID: 5f7287e5)')' thrown while requesting HEAD https://huggingface.co/x

huggingface/lerobot #2566
'(MaxRetryError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x/config.json (Caused by ConnectTimeoutError())"), '(Request ID: 092a846c)')' thrown while requesting HEAD https://huggingface.co/x

drprojects/superpoint_transformer #7
[2023-07-10 19:24:01,331][urllib3.connectionpool][WARNING] - Retrying (Retry(total=2, connect=None)) after connection broken by 'NewConnectionError(': Failed to establish a new connection: [Errno -2] Name or service not known')': /api/

wandb/wandb #8825
wandb: Network error (ConnectionError: HTTPSConnectionPool: Max retries exceeded with url: /graphql), entering retry loop.

RVC-Project/Retrieval-based-Voice-Conversion-WebUI #999
WARNING | xformers | Triton is not available, some optimizations will not be enabled: ModuleNotFoundError: No module named 'triton'

Nerogar/OneTrainer #223
A matching Triton is not available, some optimizations will not be enabled
Traceback (most recent call last):
  File "/x/xformers/__init__.py", line 55, in _is_triton_available
    import triton
ModuleNotFoundError: No module named 'triton'

torchvision's image.so
/x/torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: '/x/image.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev'If you don't plan on using image functionality from `torchvision.io`, you can ignore this warning.

rizsotto/Bear #582, xalt/xalt #58
ERROR: ld.so: object '/N/soft/xalt/lib64/libxalt_init.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.

BirolLab/abyss #175, conda-forge/fenics-feedstock #211
[xanadu-20.cam.uchc.edu:23503] mca_base_component_repository_open: unable to open mca_plm_tm: libtorque.so.2: cannot open shared object file: No such file or directory (ignored)

CPython's logging
--- Logging error ---
Traceback (most recent call last):
  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit
    msg = self.format(record)
PermissionError: [Errno 13] Permission denied: '/x'
Call stack:
  File "/x/own.py", line 3, in <module>
    logging.warning("%d")
Message: '%d'
Arguments: ()

CPython's asyncio, of a task
Task exception was never retrieved
future: <Task finished name='Task-2' coro=<f() done, defined at /x/own.py:2> exception=FileNotFoundError(2)>
Traceback (most recent call last):
  File "/x/own.py", line 3, in f
    open("/nosuch")
FileNotFoundError: [Errno 2] No such file or directory: '/nosuch'

CPython's asyncio, of a callback
Exception in callback g() at /x/own.py:4
handle: <Handle g() at /x/own.py:4>
Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/events.py", line 80, in _run
    self._context.run(self._callback, *self._args)
PermissionError: [Errno 13] Permission denied: '/x'

wandb/server #83
Retry attempt failed:
Traceback (most recent call last):
  File "/x/urllib3/connection.py", line 174, in _new_conn
    conn = connection.create_connection(
socket.gaierror: [Errno -2] Name or service not known
"""  # noqa: E501
HARMLESS = [block.strip().split("\n", 1) for block in HARMLESS.split("\n\n")]
WORDS_BEFORE = {
    **{source.split()[0]: text for source, text in HARMLESS},
    "a caught error": OTHER,
    "a shell": "/etc/profile.d/x.sh: line 3: lmod: command not found",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("words", WORDS_BEFORE.values(), ids=WORDS_BEFORE)
def test_a_line_does_not_hide_that_a_rank_was_killed(ask, launcher, words):
    assert told(ask(LAUNCHERS[launcher](words))) == KILLED


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_slurm_says_why_a_rank_was_killed(ask, launcher):
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n"
    for words in ("", OTHER):
        answer = ask(LAUNCHERS[launcher](words) + oom)
        assert told(answer) == ("slurm", 3, "host memory") and answer["exit_code"] == -9, answer


def test_a_rank_that_waited_in_vain_comes_before_other_lines(ask):
    waited = traceback("RuntimeError: Timed out waiting 8000ms for recv operation", "1: ")
    assert told(ask(GOOD + labelled("0: ", OTHER) + waited)) == ("waited", 1, "waited in vain")


CRASHES = {
    "torchrun": lambda words: torchrun_output("", "-11 (pid: 56)", "Signal 11 (SIGSEGV) received by PID 56", words),
    "srun": lambda words: srun_output("", "Segmentation fault (core dumped)", words),
    "spawn": lambda words: spawn_output("", "was ended by signal 11", 139, words),
}


@pytest.mark.parametrize("launcher", CRASHES)
@pytest.mark.parametrize("words", ["", "Fatal Python error: Segmentation fault", "double free or corruption (!prev)"])
def test_a_crash_is_no_lack_of_memory(ask, launcher, words):
    answer = ask(CRASHES[launcher](f"loading data\n{words}"))
    assert (*told(answer), answer["exit_code"]) == ("error" if words else "crashed", 3, "crashed", -11), answer
    assert answer["words"][-1] == words or "loading data", answer


@pytest.mark.parametrize("launcher", EXITS)
def test_a_rank_that_exited_and_said_why(ask, launcher):
    """srun kills the others when they do not end: that is no cause."""
    noise = (
        "\n[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [node1]:10002"  # old torch
    )
    for words in ("config error: no key 'lr' in x.yaml", "config error: no key 'lr' in x.yaml" + noise):
        answer = ask(EXITS[launcher](words))
        assert (*told(answer), answer["exit_code"], answer["host"]) == ("exited", 3, "", 3, "node2"), answer
        assert answer["words"][-1] == "config error: no key 'lr' in x.yaml", answer
    answer = ask(EXITS[launcher]("FileNotFoundError: [Errno 2] No such file or directory: 'x.yaml'"))
    assert told(answer) == ("exited", 3, "missing file"), answer


def test_mpirun_names_the_rank_that_exited(ask):
    """E3SM-Project/scream #2188 (Open MPI 4), read on 2026-11-22."""
    text = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be "
    text += "terminated. The first process to do so was:\n\n  Process name: [[1888,1],3]\n  Exit code:    5\n"
    answer = ask(f"{text}{'-' * 74}\n")
    assert (*told(answer), answer["exit_code"]) == ("exited", 3, "", 5), answer


def test_a_peer_that_died_is_no_wrong_interface(ask):
    mesh = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer [10.0.0.2]:23942. "
    mesh = traceback(mesh + "This is typically caused by a remote worker crashing.", "[node1:0] ")
    assert told(ask(GOOD + mesh)) == ("peer", 0, "lost another rank")
    assert told(ask(GOOD + mesh + traceback("KeyError: 'x'", "[node2:3] "))) == ("error", 3, "")


def test_the_folder_that_a_container_cannot_mount_comes_before_its_start(ask):
    """NVIDIA/pyxis #133: the line that says why comes after that which says that it did not start."""
    pyxis = "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    pyxis += "slurmstepd: error: pyxis: printing enroot log file:\n"
    pyxis += (
        "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /data at /tmp/enroot-data/pyxis_479.0/data: No"
    )
    pyxis += " such file or directory\nslurmstepd: error: pyxis: couldn't start container\n"
    answer = ask(GOOD + pyxis + "srun: error: node1: task 0: Exited with exit code 1\n")
    assert answer["causes"][0]["name"] == "pyxis" and "BINDS" in answer["causes"][0]["fix"], answer


@pytest.mark.parametrize(
    "words",
    [
        "enroot-mount: failed to mount: /opt/x at /home/x/.local/share/enroot/ubuntu/opt/x: No such file",  # enroot #36
        "Error: statfs /scratch/x: no such file or directory",  # containers/podman #18444
        "BIND MOUNT FAILED from /var/udiMount//global/u2/x to /var/udiMount/data",  # NERSC/shifter #252
    ],
)
def test_what_a_container_runtime_said_is_quoted(ask, words):
    """A project with this runtime has no row for it: the words say which folder is missing."""
    for output in (words, labelled("0: ", words)):
        answer = ask(output + "\nsrun: error: node1: task 0: Exited with exit code 1\n")
        assert (answer["way"], answer["causes"], answer["words"]) == ("exited", [], [words]), answer


def test_a_syntax_error_has_no_traceback(ask):
    error = "  File \"/x/own.py\", line 3\n    foo(\n       ^\nSyntaxError: '(' was never closed"
    answer = ask(srun_output("", "Exited with exit code 1", error))
    assert told(answer) == ("error", 3, "") and answer["words"][-1] == "SyntaxError: '(' was never closed", answer


def test_a_report_of_the_doctor_is_no_last_word(read):
    """The report that ends an output is not quoted when the output is read again; what comes after it counts."""
    for text in (GOOD, EXITS["srun"]("config error"), srun_output(""), GOOD + traceback("KeyError: 'x'", "1: ")):
        report = read(text)[1]
        assert read(text + report + REPORT_ENDS)[1] == report
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch.\n"
    assert read(GOOD + read(GOOD)[1] + REPORT_ENDS + oom)[1].startswith("cause: the memory of a host")


# ---- what looks like something else ----------------------------------------------------------------------------------

ENDS_WITH_255 = {
    "torchrun": ("255 (pid: 56)", "To enable traceback see: https://pytorch.org"),
    "srun": ("Exited with exit code 255",),
    "spawn": ("ended with exit code 255", 255),
}


@pytest.mark.parametrize("launcher", ENDS_WITH_255)
def test_exit_code_255_is_no_signal(ask, launcher):
    answer = ask(LAUNCHERS[launcher]("", *ENDS_WITH_255[launcher], words="no key lr"))
    assert (*told(answer), answer["exit_code"]) == ("exited", 3, "", 255), answer
    assert answer["words"][-1] == "no key lr", answer


STEPS = "\n".join(f"step {step}/200  loss 2.31" for step in range(70, 100))
SURVIVED = """\
Traceback (most recent call last):
  File "x.py", line 1, in f
ValueError: bad sample 17"""
SURVIVED_OOM = SURVIVED.replace("ValueError: bad sample 17", "torch.OutOfMemoryError: CUDA out of memory. Tried")
SMASHED = "*** stack smashing detected ***: terminated"


@pytest.mark.parametrize(("end", "code", "way"), [("signal 9", 137, "killed"), ("signal 11", 139, "crashed")])
def test_a_signal_after_an_error_that_the_rank_survived(ask, end, code, way):
    for before in (f"{SURVIVED}\n{STEPS}", f"{STEPS}\n{SURVIVED}\n{STEPS}", f"{SURVIVED_OOM}\n{STEPS}"):
        answer = ask(spawn_output(before, f"was ended by {end}", code))
        assert told(answer) == (way, 3, way), answer
        assert f"launch/spawn.py on node2: rank 3 was ended by {end}" in answer["causes"][0]["proof"], answer


def test_compiled_code_that_fails_after_an_error_that_the_rank_survived(ask):
    for steps, cause, words in ((STEPS, "crashed", SMASHED), ("", "", "ValueError: bad sample 17")):
        answer = ask(spawn_output(f"{SURVIVED}\n{steps}\n{SMASHED}", "was ended by signal 6", 134))
        assert told(answer) == ("error", 3, cause) and words in answer["words"], answer


@pytest.mark.parametrize(("signal", "code"), [(6, 134), (11, 139)])
def test_a_rank_that_goes_down_with_its_error(ask, signal, code):
    """It aborts behind its traceback, the message of which may have many lines: the error is the cause."""
    message = f"{SURVIVED}\nline 2\nline 3\n" + "frame #1: c10::f() + 0x9d (0x7f in /x/libc10.so)\n" * 40
    abort = TERMINATE.format("")
    for words in (f"{SURVIVED}\n{abort}", message, message + abort + "frame #2: f\n" * 40):
        answer = ask(spawn_output(f"{STEPS}\n{words.strip()}", f"was ended by signal {signal}", code))
        assert told(answer) == ("error", 3, "") and "ValueError: bad sample 17" in answer["words"], answer


def test_a_signal_after_an_error_in_the_log_of_a_rank(ask_job, project):
    """The steps that follow the error stand in the output, as the rank's log has its errors alone."""
    texts = {rank: SURVIVED + "\n" if rank == 3 else "" for rank in range(4)}
    write_logs(project / "logs/15.0", texts, inner="x/attempt_0")
    (project / "demo-15.out").write_text(spawn_output(f"{SURVIVED}\n{STEPS}", "was ended by signal 11", 139))
    answer = ask_job("15", cwd=project)
    assert (*told(answer), answer["host"]) == ("crashed", 3, "crashed", "node2"), answer


@pytest.mark.parametrize(("number", "cause"), [(7, "data loader"), (4, "library")])
def test_a_signal_that_says_why(ask, number, cause):
    """As the launchers report it: srun in words, spawn and mpirun by its number, torchrun as a negative exit code."""
    words = {7: "Bus error", 4: "Illegal instruction"}[number]
    for text in (
        srun_output("", f"{words} (core dumped)"),
        srun_output("", f"Exited with exit code {128 + number}"),
        spawn_output("", f"was ended by signal {number}", 128 + number),
        torchrun_output("", f"-{number} (pid: 56)", f"Signal {number} received by PID 56"),
        mpirun_output("").replace("signal 9 (Killed)", f"signal {number} ({words})"),
    ):
        answer = ask(text)
        assert (*told(answer), answer["exit_code"]) == ("crashed", 3, cause, -number), answer


def test_a_table_that_is_not_torchrun_s(ask):
    table = "  host      : node2\n  rank      : all\n  exitcode  : none\n"
    assert told(ask(GOOD + table + "  exitcode  : 3\n")) == ("none", None, "")
    assert told(ask(torchrun_output("").replace("Root Cause", table + "Root Cause"))) == KILLED


def test_last_words_of_several_hosts(ask):
    text = labelled("[node1:0] ", "no key lr") + labelled("[node2:1] ", "no key lr")
    for hosts in ("node[1-2]", "node1,node2"):
        answer = ask(GOOD + text + f"srun: error: {hosts}: tasks 0-1: Exited with exit code 3\n")
        assert answer["way"] == "exited" and answer["words"] == ["no key lr", "no key lr"], answer


# ---- exit codes and hosts in reports ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Exited with exit code 3", 3),
        ("Exited with exit code 137", -9),
        ("ended with exit code 255", 255),  # sys.exit(-1)
        ("Exited with exit code 192", -64),
        ("Exited with exit code 193", 193),
        ("Segmentation fault (core dumped)", -11),
        ("was ended by signal 9", -9),
        ("ended with exit code 1", 1),
        ("exited on signal 9 (Killed).", -9),
        ("Terminated", -15),
        ("Out Of Memory", -9),
        ("User defined signal 1", -10),
        ("is well", None),
    ],
)
def test_exit_codes_as_launchers_say_them(words, code):
    assert LAUNCHER_REPORTS.code_in(words) == code


BROKEN_LINE = [
    ("signal 9 (Killed).", -9),
    ("signal 11 (Segmentation fault).", -11),
]


@pytest.mark.parametrize(("following", "code"), BROKEN_LINE)
def test_open_mpi_5_breaks_the_line_before_the_signal(following, code):
    lines = lines_of("prterun noticed that process rank 3 with PID 7 on node node2 exited on", following)
    assert LAUNCHER_REPORTS.read_reports(lines)[0].code == code


def test_of_ranks_that_srun_names_together_the_one_that_said_why_counts(ask):
    words = labelled("2: ", traceback("ValueError: a bug"))
    answer = ask(GOOD + words + "srun: error: node2: tasks 0-1,2-3: Exited with exit code 1\n")
    assert told(answer) == ("error", 2, "") and answer["words"][-1] == "ValueError: a bug", answer


def test_reports_end_where_srun_ends_the_others():
    told = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-21T17:20:37 ***"
    first, later = "srun: error: node[9-10]: tasks 0-1: Exited with exit code 2", "srun: error: node1: task 3: Killed"
    (report,) = LAUNCHER_REPORTS.read_reports(lines_of("0: words", first, told, later))
    assert (report.launcher, report.ranks, report.host, report.code) == ("srun", (0, 1), "", 2)
    assert LAUNCHER_REPORTS.read_reports(lines_of("0: " + first)) == []  # a rank says so


@pytest.mark.parametrize(
    ("reported", "host", "same"),
    [
        ("node2", "node2", True),
        ("node2.site.org", "node2", True),
        ("node2", "node21", False),
        ("node2", "node2.site.org", True),
        ("10.0.0.2", "10.0.0.2", True),
        ("10.0.0.2", "10.0.0.1", False),
    ],
)
def test_a_host_and_its_names(reported, host, same):
    assert LOGS.same_host(reported, host) is same
