"""What slurm/doctor.py makes of the reports of torchrun, srun, launch/spawn.py and mpirun on a rank that failed."""

from __future__ import annotations

import re

import pytest
from doctor_cases import (
    DOCTOR,
    EXITS,
    GOOD,
    LAUNCHERS,
    OTHER,
    TERMINATE,
    doctor,
    labelled,
    lines_of,
    mpirun_output,
    project,
    read,
    spawn_output,
    srun_output,
    torchrun_output,
    traceback,
)

# ---- what a launcher reports comes first -----------------------------------------------------------------------------

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


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("line", [text for _, text in HARMLESS], ids=[source.split()[0] for source, _ in HARMLESS])
def test_a_line_of_good_runs_does_not_hide_that_a_rank_was_killed(read, launcher, line):
    code, report = read(LAUNCHERS[launcher](line))
    assert code == 0 and report.startswith("cause: a process was killed\nproof: my job-12.out:"), report
    assert report.count("cause: ") == 1 and "may also matter" not in report, report
    assert re.search(r"^first failure: (3|rank 3 on node2|\[node2:3\]) \(my job-12.out", report, re.MULTILINE), report


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_may_also_matter_comes_after_the_kill(read, launcher):
    report = read(LAUNCHERS[launcher](OTHER))[1]
    assert report.startswith("cause: a process was killed\nproof: "), report
    assert report.count("cause: ") == 1 and "Permission denied" not in report.splitlines()[1], report
    (other,) = re.findall(r"(?m)^may also matter: (.*)", report)
    assert other.startswith("a file or folder is not yours to read or write (my job-12.out:") and OTHER[:40] in other


def test_a_shell_s_complaint_does_not_hide_a_kill(read):
    report = read(srun_output("").replace("0: ", "/etc/profile.d/x.sh: line 3: lmod: command not found\n0: ", 1))[1]
    assert report.startswith("cause: a process was killed\n") and "may also matter: a file or command" in report, report


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_slurm_says_why_a_rank_was_killed(read, launcher):
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n"
    for text in (LAUNCHERS[launcher]("") + oom, LAUNCHERS[launcher](OTHER) + oom):
        report = read(text)[1]
        assert report.startswith("cause: the memory of a host was not enough\n") and report.count("cause: ") == 1, (
            report
        )


def test_a_rank_that_waited_in_vain_comes_before_other_lines(read):
    text = GOOD + labelled("0: ", OTHER) + traceback("RuntimeError: Timed out waiting 8000ms for recv operation", "1: ")
    report = read(text)[1]
    assert report.startswith("cause: ranks waited in vain for one that hung"), report
    assert re.findall(r"(?m)^may also matter: a file or folder is not yours", report), report


CRASHES = {
    "torchrun": lambda words: torchrun_output("", "-11 (pid: 56)", "Signal 11 (SIGSEGV) received by PID 56", words),
    "srun": lambda words: srun_output("", "Segmentation fault (core dumped)", words),
    "spawn": lambda words: spawn_output("", "was ended by signal 11", 139, words),
}


@pytest.mark.parametrize("launcher", CRASHES)
@pytest.mark.parametrize("words", ["", "Fatal Python error: Segmentation fault", "double free or corruption (!prev)"])
def test_a_crash_is_no_lack_of_memory(read, launcher, words):
    """And what the rank said is shown: under torchrun and spawn its label is [HOST:RANK]."""
    code, report = read(CRASHES[launcher](f"loading data\n{words}"))
    assert code == 0 and report.startswith("cause: a process crashed in compiled code\n"), report
    assert "PYTHONFAULTHANDLER" in report and "--mem" not in report, report
    assert report.splitlines()[-1].endswith(words or "loading data"), report


@pytest.mark.parametrize("launcher", EXITS)
def test_a_rank_that_exited_and_said_why(read, launcher):
    """srun kills the others when they do not end: that is no cause."""
    code, report = read(EXITS[launcher]("config error: no key 'lr' in x.yaml"))
    lines = report.splitlines()
    assert code == 1 and "cause: " not in report and "Killed" not in report, report
    assert re.match(r"first failure: rank 3 on node2 \(my job-12.out:\d+\); ", lines[0]), report
    assert lines[1] == "the program ended with exit code 3; its last words:", report
    assert lines[-1].endswith("config error: no key 'lr' in x.yaml") and "no cause known" not in report, report
    noise = (
        "\n[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [node1]:10002"  # old torch
    )
    assert read(EXITS[launcher]("no key lr" + noise))[1].endswith("no key lr\n")
    code, report = read(EXITS[launcher]("FileNotFoundError: [Errno 2] No such file or directory: 'x.yaml'"))
    assert code == 0 and report.startswith("cause: a file or command is not there\n"), report


def test_mpirun_names_the_rank_that_exited(read):
    """E3SM-Project/scream #2188 (Open MPI 4), read on 2026-11-22."""
    text = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be "
    text += (
        "terminated. The first process to do so was:\n\n  Process name: [[1888,1],3]\n  Exit code:    5\n"
        + "-" * 74
        + "\n"
    )
    code, report = read(GOOD + text)
    assert code == 1 and report.startswith("first failure: rank 3 (my job-12.out:"), report


def test_a_peer_that_died_is_no_wrong_interface(read):
    mesh = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer [10.0.0.2]:23942. "
    mesh += "This is typically caused by a remote worker crashing. Check the logs for connected ranks."
    report = read(GOOD + traceback(mesh, "[node1:0] "))[1]
    assert report.startswith("cause: a rank lost another one") and "interface" not in report, report
    report = read(GOOD + traceback(mesh, "[node1:0] ") + traceback("KeyError: 'x'", "[node2:3] "))[1]
    assert report.startswith("first failure: [node2:3] (") and report.endswith("[node2:3] KeyError: 'x'\n"), report


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_the_folder_that_a_container_cannot_mount_comes_before_its_start(read, launcher):
    """NVIDIA/pyxis #133: the line that says why comes after that which says that it did not start."""
    pyxis = "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    pyxis += "slurmstepd: error: pyxis: printing enroot log file:\n"
    pyxis += (
        "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /data at /tmp/enroot-data/user-36209/pyxis_479.0/"
    )
    pyxis += "data: No such file or directory\nslurmstepd: error: pyxis: couldn't start container\n"
    report = read(GOOD + pyxis + "srun: error: node1: task 0: Exited with exit code 1\n")[1]
    assert report.startswith("cause: the container cannot mount a folder") and "BINDS" in report.splitlines()[2], report


def test_a_syntax_error_has_no_traceback(read):
    error = "  File \"/x/own.py\", line 3\n    foo(\n       ^\nSyntaxError: '(' was never closed"
    code, report = read(EXITS["srun"](error))
    assert code == 1 and "the program failed by itself; its own words:" in report.splitlines()[0], report
    assert report.startswith("first failure: 3 (") and report.endswith("3: SyntaxError: '(' was never closed\n"), report


def test_no_cause_known_is_no_last_word(read):
    """The report that ends an output is not quoted when the output is read again; what comes after it counts."""
    for text in (GOOD, EXITS["srun"]("config error"), srun_output(""), GOOD + traceback("KeyError: 'x'", "1: ")):
        report = read(text)[1]
        assert read(text + report)[1] == report
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch.\n"
    assert read(GOOD + read(GOOD)[1] + oom)[1].startswith("cause: the memory of a host")


def test_harmless_lines_do_not_use_up_the_limit(read):
    for text in (HARMLESS[2][1], HARMLESS[10][1]):
        code, report = read(GOOD + f"{text}\n" * 201 + "bash: line 1: x: No route to host\nModuleNotFoundError: x\n")
        assert code == 0 and report.count("cause: ") == 2, report


# ---- what looks like something else ----------------------------------------------------------------------------------

ENDS_WITH_255 = {
    "torchrun": ("255 (pid: 56)", "To enable traceback see: https://pytorch.org"),
    "srun": ("Exited with exit code 255",),
    "spawn": ("ended with exit code 255", 255),
}


@pytest.mark.parametrize("launcher", ENDS_WITH_255)
def test_exit_code_255_is_no_signal(read, launcher):
    code, report = read(LAUNCHERS[launcher]("", *ENDS_WITH_255[launcher], words="no key lr"))
    assert code == 1 and "\nthe program ended with exit code 255; its last words:\n" in report, report
    assert report.endswith("no key lr\n") and "cause: " not in report, report


STEPS = "\n".join(f"step {step}/200  loss 2.31" for step in range(70, 100))
SURVIVED = """\
Traceback (most recent call last):
  File "x.py", line 1, in f
ValueError: bad sample 17"""
SMASHED = "*** stack smashing detected ***: terminated"


@pytest.mark.parametrize(
    ("end", "code", "cause"),
    [("signal 9", 137, "a process was killed"), ("signal 11", 139, "a process crashed in compiled code")],
)
def test_a_signal_after_an_error_that_the_rank_survived(read, end, code, cause):
    for before in (f"{SURVIVED}\n{STEPS}", f"{STEPS}\n{SURVIVED}\n{STEPS}"):
        status, report = read(spawn_output(before, f"was ended by {end}", code))
        assert status == 0 and report.startswith(f"cause: {cause}\nproof: my job-12.out:"), report
        assert f"launch/spawn.py on node2: rank 3 was ended by {end}\nfix: " in report, report
        assert "first failure: [node2:3] (" in report and "[node2:3] ValueError: bad sample 17\n" in report, report
        assert "by itself" not in report, report


def test_an_error_that_the_rank_survived_may_also_matter(read):
    before = SURVIVED.replace("ValueError: bad sample 17", "torch.OutOfMemoryError: CUDA out of memory.")
    report = read(spawn_output(f"{before}\n{STEPS}"))[1]
    assert report.startswith("cause: a process was killed\n"), report
    assert "\nmay also matter: the memory of a GPU was not enough (" in report, report


def test_compiled_code_that_fails_after_an_error_that_the_rank_survived(read):
    for steps, cause in ((STEPS, "cause: a process crashed in compiled code\n"), ("", "first failure: [node2:3] (")):
        report = read(spawn_output(f"{SURVIVED}\n{steps}\n{SMASHED}", "was ended by signal 6", 134))[1]
        assert report.startswith(cause), report


@pytest.mark.parametrize(("signal", "code"), [(6, 134), (11, 139)])
def test_a_rank_that_goes_down_with_its_error(read, signal, code):
    """It aborts behind its traceback, the message of which may have many lines: the error is the cause."""
    message = f"{SURVIVED}\nline 2\nline 3\n" + "frame #1: c10::f() + 0x9d (0x7f in /x/libc10.so)\n" * 40
    abort = TERMINATE.format("")
    for words in (f"{SURVIVED}\n{abort}", message, message + abort + "frame #2: f\n" * 40):
        text = spawn_output(f"{STEPS}\n{words.strip()}", f"was ended by signal {signal}", code)
        status, report = read(text)
        assert status == 1 and "the program failed by itself" in report, report
        assert "[node2:3] ValueError: bad sample 17\n" in report, report


def test_a_signal_after_an_error_in_the_log_of_a_rank(doctor, project):
    """The steps that follow the error stand in the output, as the rank's log has its errors alone."""
    log = project / "logs/15.0/node1-node2/0.a/attempt_0/1/stderr.log"
    for rank in range(4):
        log = project / f"logs/15.0/node{rank // 2}-node{rank // 2 + 1}/x/attempt_0/{rank % 2}/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(SURVIVED + "\n" if rank == 3 else "")
    (project / "demo-15.out").write_text(spawn_output(f"{SURVIVED}\n{STEPS}", "was ended by signal 11", 139))
    report = doctor("15", cwd=project).stdout.decode()
    assert report.startswith("cause: a process crashed in compiled code\n"), report
    assert "\nfirst failure: rank 3 on node2 (demo-15.out:" in report, report


@pytest.mark.parametrize(
    ("number", "cause"), [(7, "too little /dev/shm, memory or open files"), (4, "a library is missing, or made for")]
)
def test_a_signal_that_says_why(read, number, cause):
    """As the launchers report it: srun in words, spawn and mpirun by its number, torchrun as a negative exit code."""
    words = {7: "Bus error", 4: "Illegal instruction"}[number]
    mpirun = mpirun_output("").replace("signal 9 (Killed)", f"signal {number} ({words})")
    for text in (
        srun_output("", f"{words} (core dumped)"),
        srun_output("", f"Exited with exit code {128 + number}"),
        spawn_output("", f"was ended by signal {number}", 128 + number),
        torchrun_output("", f"-{number} (pid: 56)", f"Signal {number} received by PID 56"),
        mpirun,
    ):
        code, report = read(text)
        assert code == 0 and report.startswith(f"cause: {cause}"), report
        assert "compiled" not in report and "may also matter" not in report, report


def test_a_table_that_is_not_torchrun_s(read):
    table = "  host      : node2\n  rank      : all\n  exitcode  : none\n"
    assert read(GOOD + table + "  exitcode  : 3\n")[0] == 1
    report = read(torchrun_output("").replace("Root Cause", table + "Root Cause"))[1]
    assert report.startswith("cause: a process was killed\n"), report


def test_last_words_of_several_hosts(read):
    text = labelled("[node1:0] ", "no key lr") + labelled("[node2:1] ", "no key lr") + labelled("[node3:2] ", "other")
    for hosts in ("node[1-2]", "node1,node2"):
        report = read(GOOD + text + f"srun: error: {hosts}: tasks 0-1: Exited with exit code 3\n")[1]
        assert "exit code 3; its last words:\n" in report and report.endswith("[node2:1] no key lr\n"), report
        assert "[node1:0] no key lr\n" in report and "[node3:2]" not in report, report


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
        ("exited on", -9),
        ("Terminated", -15),
        ("Out Of Memory", -9),
        ("User defined signal 1", -10),
        ("is well", None),
    ],
)
def test_exit_codes_as_launchers_say_them(words, code):
    assert DOCTOR.code_in(words) == code


BROKEN_LINE = [
    ("signal 9 (Killed).", "killed"),
    ("signal 11 (Segmentation fault).", "crashed"),
    ("srun: error: node1: task 0: Exited with exit code 3", "killed"),  # the signal's line is lost
]


@pytest.mark.parametrize(("following", "way"), BROKEN_LINE)
def test_open_mpi_5_breaks_the_line_before_the_signal(following, way):
    lines = lines_of("prterun noticed that process rank 3 with PID 7 on node node2 exited on", following)
    assert DOCTOR.launcher_reports(lines)[0].way == way


def test_reports_end_where_srun_ends_the_others():
    told = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-21T17:20:37 ***"
    first, later = "srun: error: node[9-10]: tasks 0-1: Exited with exit code 2", "srun: error: node1: task 3: Killed"
    (report,) = DOCTOR.launcher_reports(lines_of("0: words", first, told, later))
    assert (report.launcher, report.rank, report.host, report.code, report.way) == (
        "srun",
        0,
        "node[9-10]",
        2,
        "exited",
    )
    assert DOCTOR.launcher_reports(lines_of("0: " + first)) == []  # a rank says so


@pytest.mark.parametrize(
    ("reported", "host", "same"),
    [
        ("node2", "node2", True),
        ("node2.site.org", "node2", True),
        ("node2", "node21", False),
        ("node[9-10]", "node10", True),
        ("node[9-10]", "nod", False),
        ("node[9-10]", "node11", False),
        ("a1,b2", "b2", True),
        ("a1,b2", "a1,b2", False),
        ("a1,node[1-2,5]", "node5", True),
        ("a1,node[1-2,5]", "node3", False),
        ("rack[1-2]n[01-10].site.org", "rack2n07", True),
        ("node[x]", "node1", False),
        ("10.0.0.2", "10.0.0.2", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("10.0.0.[1-2]", "10.0.0.2", True),
    ],
)
def test_a_host_and_its_names(reported, host, same):
    assert DOCTOR.same_host(reported, host) is same
