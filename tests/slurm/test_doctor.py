"""slurm/doctor.py: its table, on outputs as users post them, and on jobs that fail on a real Slurm."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import time

import pytest
from baking import TEMPLATE, bake
from test_versions import OLD
from waiting import FOREVER, PATIENCE

# What a run prints as long as all is well.
GOOD = """\
2026-11-21 17:20:27 training/train_ddp.py on 2 node(s), meeting at node1:10002
preflight: 2 node(s) fit (0.3 s)
[node1:0] [W1121 17:20:31.214 socket.cpp:767] [c10d] The client socket cannot be initialized to connect to \
[node1]:10002 (errno: 97 - Address family not supported by protocol).
[node1:0] x.py:1: UserWarning: Failed to initialize NumPy: No module named 'numpy'
[node1:0] before  the run that was in runs/train is now in runs/train.1; --resume would have continued it
[node1:0] step 100/200  loss 2.31  killed 0  out of memory 0  timeout 600 s  errors 0
"""

PROGRAM = TEMPLATE / "slurm/doctor.py"
spec = importlib.util.spec_from_file_location("doctor", PROGRAM)
DOCTOR = importlib.util.module_from_spec(spec)
spec.loader.exec_module(DOCTOR)

TRACEBACK = "Traceback (most recent call last):\n"
CANCELLED = "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37"
# Cause, fix, and lines of a log; the last one is the proof, or the one before `|`.
CASES = [
    ("no program 'x.py'", "asks for", "slurm/submit_multinode.sh: no program 'x.py' in /a nor in /b"),
    ("no virtual environment", "asks for", "env.sh: no virtual environment at /a/.venv; build it"),
    ("4 ranks, but", "asks for", "1: launch/rank.sh on node2: 4 ranks, but MASTER_ADDR is not set"),
    ("--micro-batch 3", "asks for", "[node1:0] train_ddp.py: error: --micro-batch 3 does not fit"),
    ("may use one core", "asks for", "[node1:0] FAULT: rank(s) 0 on node1 may use one core of 8: pass it"),
    ("SLOW NODE node2", "asks for", "[node1:0] # SLOW NODE node2: 0.57 GB/s, 66% of|exitcode  : 1 (pid: 9)"),
    ("WRONG DATA on rank 1", "asks for", "[node1:0] # WRONG DATA on rank 1 (node2) at 4096 bytes: 3 of 1024 elements"),
    ("no command python", "asks for", "preflight: node2: no command python: name"),
    # nextflow #5932, PyBNF #118
    ("of a host", "--mem", "error: Detected 1 oom_kill event in StepId=12.0.|srun: error: node2: task 3: Killed"),
    ("of a host", "--mem", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to"),
    ("of a host", "--mem", TRACEBACK + "MemoryError"),
    ("of a host", "--mem", TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for"),
    ("of a GPU", "--micro", TRACEBACK + "RuntimeError: Triton Error [CUDA]: out of memory"),
    ("locked memory", "ulimit -l", TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled"
     " system error\nncclSystemError: System call failed.\nLast error:\n"
     "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    ("/dev/shm is full", "df -h", TRACEBACK + "RuntimeError: unable to write to file </torch_1_2_3>: No space left on"
     " device (28)"),
    ("worker that reads data crashed", "PYTHONFAULTHANDLER", TRACEBACK + "RuntimeError: DataLoader worker (pid 7) is"
     " killed by signal: Segmentation fault. "),
    ("another process uses the GPU", "LOCAL_RANK", TRACEBACK + "RuntimeError: CUDA error: all CUDA-capable devices are"
     " busy or unavailable"),
    ("was requeued", "sacct -D", CANCELLED + " DUE TO JOB REQUEUE ***"),
    ("waited in vain", "--timeout", TRACEBACK + "RuntimeError: Rank 1 failed to pass monitoredBarrier in 8000 ms"),
    ("of a GPU", "--micro", "[node2:3] [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ("does not support", "nvidia-smi", "RuntimeError: The NVIDIA driver on your system is too old (found version 1"),
    ("does not support", "get_arch_list", "CUDA error: no kernel image is available for execution on the device"),
    ("see no GPU", "--gpus-per-node", "RuntimeError: No CUDA GPUs are available"),
    ("or not one each", "LOCAL_RANK", "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"),
    ("broken", "--exclude", "CUDA error: uncorrectable NVLink error detected during the execution"),
    ("over your quota", "remove files", "OSError: [Errno 122] Disk quota exceeded: 'runs/step-10.tmp'"),
    ("a disk is full", "elsewhere", "OSError: [Errno 28] No space left on device"),
    ("read-only", "elsewhere", "OSError: [Errno 30] Read-only file system: '/home/x'"),
    ("too little /dev/shm", "--workers", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."),
    ("files to read", "--workers", "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"),
    ("open files to read", "ulimit", "OSError: [Errno 24] Too many open files"),
    ("module is not found", "RUNTIME", "ModuleNotFoundError: No module named 'torch'"),
    ("module is not found", "requirements.txt", "/usr/bin/python3: No module named wandb"),
    ("library", "container", "/lib64/libc.so.6: version `GLIBC_2.34' not found (required by x.so)"),
    ("processor", "compute node", "srun: error: node2: task 3: Illegal instruction (core dumped)"),
    ("a module is not found", "spider", 'Lmod has detected an error: The following module(s) are unknown: "x"'),
    ("refuses", "sacctmgr", "sbatch: error: Batch job submission failed: Invalid account or account"),
    ("refuses", "#SBATCH", "There are not enough slots available in the system to satisfy the 4"),
    # NVIDIA/pyxis #127, apptainer/singularity #5183
    ("image", "build_container.sh", "slurmstepd: error: pyxis: failed to import docker image"),
    ("image", "build_container.sh", "FATAL:   could not open image /a/x.sif: failed to retrieve path"),
    ("the port", "submit", "torch.distributed.DistNetworkError: port: 29713, code: -98, name: EADDRINUSE, message"),
    ("interface", "GLOO_SOCKET_IFNAME", "ifa != nullptr. Unable to find address for: ib0"),
    ("walltime was over", "--time", CANCELLED + " DUE TO TIME LIMIT ***|srun: error: node1: tasks 0-1: Killed"),
    ("of higher priority", "--requeue", CANCELLED + " DUE TO PREEMPTION ***"),
    ("a node failed", "--exclude", CANCELLED + " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("was cancelled", "sacct", CANCELLED + " ***"),
    ("no address", "MASTER_ADDR_SUFFIX", "[W1121 socket.cpp] addresses (gai error: -2 - Name or service not known)"),
    ("cannot be reached", "login node", TRACEBACK + "OSError: We couldn't connect to 'https://huggingface.co' to load"),
    ("cannot be reached", "login node", TRACEBACK + "requests.exceptions.ConnectionError: ('Connection aborted.', "
     "ConnectionResetError(104, 'Connection reset by peer'))"),
    ("in time", "RDZV_TIMEOUT", "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients"),
    ("in time", "logs/JOBID.ATTEMPT", "DistNetworkError: The client socket has timed out after 60000ms while trying"),
    ("not there", "all nodes see", "FileNotFoundError: [Errno 2] No such file or directory: '/local/x'"),
    ("not there", "all nodes see", "slurmstepd: error: execve(): python: No such file or directory"),
    ("not yours", "ls -ld", "PermissionError: [Errno 13] Permission denied: '/sys/x'"),
    # LlamaFactory #7396
    ("waited in vain", "--timeout", "[rank0]:[E321 NCCL.cpp:607] Watchdog caught collective operation timeout"),
    ("waited in vain", "--timeout", TRACEBACK + "RuntimeError: Timed out waiting 8000ms for recv operation"),
    ("process was killed", "--mem", "srun: error: node2: task 3: Killed"),
    ("process was killed", "--mem", "/var/spool/slurmd/job12/slurm_script: line 12: 12345 Killed      python x.py"),
    ("crashed in compiled", "PYTHONFAULTHANDLER", "srun: error: node2: task 3: Segmentation fault (core dumped)"),
    ("lost another", "other node", TRACEBACK + "RuntimeError: NCCL error: ncclRemoteError: A call failed"),
]  # fmt: skip


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project, in a folder with a space in its name."""
    return bake(tmp_path_factory.mktemp("a b") / "slurm", site="slurm", nodes="2", gpus_per_node="2")


@pytest.fixture
def doctor(project, tmp_path):
    """Calls doctor.py, `within` a job or outside, where scontrol and sacct say what they are told to."""

    def call(*arguments, cwd=tmp_path, within="", **answers):
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        for name in ("scontrol", "sacct"):
            (tools / name).write_text(f"#!/bin/sh\nprintf %s '{answers.get(name, '')}'\n")
            (tools / name).chmod(0o755)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "LANG": "C.UTF-8", "SLURM_JOB_ID": within}
        command = [sys.executable, project / "slurm/doctor.py", *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=PATIENCE)

    return call


@pytest.fixture
def read(tmp_path, monkeypatch, capsysbinary):
    """Returns exit code and report on a text. In this process: of an output alone doctor.py asks no other program."""

    def read(text):
        (tmp_path / "my job-12.out").write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PWD", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["slurm/doctor.py", "my job-12.out"])
        code = DOCTOR.main()
        said = capsysbinary.readouterr()
        assert not said.err, said.err
        return code, said.out.decode(errors="replace")

    return read


# ---- causes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cause", "fix", "log"), CASES, ids=[case[0] for case in CASES])
def test_a_cause_its_proof_its_fix(read, cause, fix, log):
    log, _, after = log.partition("|")
    number = (GOOD + log).count("\n") + 1
    code, report = read(f"{GOOD}{log}\n{after}\n{GOOD.splitlines()[-1]}\n")
    lines = report.splitlines()
    assert code == 0, report
    assert lines[0].startswith("cause: ") and cause in lines[0], report
    assert lines[1] == f"proof: my job-12.out:{number}: {log.splitlines()[-1]}", report
    assert lines[2].startswith("fix: ") and fix in lines[2], report
    assert report.count("cause: ") == 1, report


EXAMPLES = [(cause, example) for cause in DOCTOR.CAUSES for example in cause.examples]


@pytest.mark.parametrize(("cause", "example"), EXAMPLES, ids=[cause.name for cause, _ in EXAMPLES])
def test_an_example_of_each_row(read, doctor, cause, example):
    """The row that a line stands in is the answer, or the first one of several."""
    if example.startswith("JobState="):
        report = doctor("12", scontrol=f"JobId=12\n {example}\n").stdout.decode()
    else:
        code, report = read(GOOD + example + "\n")
        assert code == 0, report
        assert report.splitlines()[1].endswith(f": {example}"), report
    assert report.splitlines()[0] == f"cause: {cause.says or DOCTOR.LABEL.sub('', example, count=1)}", report
    assert report.splitlines()[2] == f"fix: {cause.fix}", report


def test_the_table():
    """Each row can be told from the others, and says where its wording was read, and when."""
    names = [cause.name for cause in DOCTOR.CAUSES]
    assert len(set(names)) == len(names)
    for cause in DOCTOR.CAUSES:
        assert cause.strength in DOCTOR.STRENGTHS and cause.examples, cause.name
        assert re.search(r"\(2026-\d\d-\d\d\)", cause.source) or cause.name == "project", cause.source
        for pattern in cause.patterns:
            assert not re.search(pattern, "\n"), pattern


KNOWN = {"OUT_OF_MEMORY": "of a host", "TIMEOUT": "walltime", "NODE_FAIL": "a node failed", "PREEMPTED": "priority"}
# What torchrun may end a good run with (pytorch/pytorch #69520): the first node was gone before another had its answer.
BARRIER = """\
[W1121 20:40:54.356173506 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4, \
addr=[::ffff:10.77.0.12]:37344, remote=[::ffff:10.77.0.11]:23101): Connection reset by peer
Exception raised from recvBytes at /__w/pytorch/torch/csrc/distributed/c10d/Utils.hpp:784 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fbdfd379b8d in /x/libc10.so)
E1121 20:40:54.435000 75 site-packages/torch/distributed/elastic/agent/server/api.py:1008] Error waiting on exit barrier. Elapsed: 0.03
E1121 20:40:54.435000 75 site-packages/torch/distributed/elastic/agent/server/api.py:1008] Traceback (most recent call last):
E1121 20:40:54.435000 75 site-packages/torch/distributed/elastic/agent/server/api.py:1008]   File "/x/api.py", line 994, in _exit
E1121 20:40:54.435000 75 site-packages/torch/distributed/elastic/agent/server/api.py:1008]     store_util.barrier(
E1121 20:40:54.435000 75 site-packages/torch/distributed/elastic/agent/server/api.py:1008] torch.distributed.DistNetworkError: \
Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
"""  # noqa: E501


@pytest.mark.parametrize("state", KNOWN)
def test_what_slurm_knows(doctor, state):
    record = f"JobId=12 JobName=x\n   JobState={state} Reason=None\n   ExitCode=0:15\n   StdOut=/nowhere/x.out\n"
    for command, answers in {  # the second one later
        "scontrol show job 12": {"scontrol": record},
        "sacct -X -j 12": {"sacct": f"{state}|0:15"},
    }.items():
        done = doctor("12", **answers)
        lines = done.stdout.decode().splitlines()
        assert done.returncode == 0 and lines[0].startswith("cause: ") and KNOWN[state] in lines[0], lines
        assert re.fullmatch(rf"proof: {command}: JobState={state}.* ExitCode=0:15", lines[1])
    assert doctor("12", scontrol=record.replace(state, "COMPLETED")).stdout.startswith(b"job 12 did not fail: ")


def test_a_good_log_has_no_cause(read):
    said = "no cause known to doctor.py; what follows may say more\n"
    assert read(GOOD) == (1, said + GOOD)
    assert "cause: " not in read(GOOD + "could not import flash_attn: No module named 'flash_attn'; using sdpa\n")[1]
    assert read(GOOD + BARRIER) == (1, said + "".join((GOOD + BARRIER).splitlines(keepends=True)[-10:]))
    code, report = read(BARRIER + GOOD + traceback("KeyError: 'x'", "[node1:0] ") + BARRIER)
    assert (
        code == 1
        and report.startswith("first failure: [node1:0] (my job-12.out:")
        and report.endswith("KeyError: 'x'\n")
    )


def test_warnings_beside_an_error_are_no_cause(read):
    """A rank that failed of itself says why; what stands in good runs too is not it. But what Slurm says counts."""
    warnings = "WARNING: A matching Triton is not available. Error: ModuleNotFoundError: No module named 'triton'\n"
    warnings += "INFO: wandb: Max retries exceeded with url: /graphql\n"
    error = traceback("ValueError: num_samples should be a positive integer value")
    code, report = read(GOOD + warnings + error)
    assert code == 1 and "cause: " not in report, report
    assert report.startswith("first failure: (my job-12.out:9): the program failed by itself; its own words:\nTrace")
    assert report.endswith("ValueError: num_samples should be a positive integer value\n"), report
    _, report = read(GOOD + warnings + error + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0\n")
    assert re.findall(r"(?m)^cause: (.*)", report) == ["the memory of a host was not enough"], report
    _, report = read(GOOD + warnings + traceback("ModuleNotFoundError: No module named 'mine'"))
    assert report.count("cause: ") == 1 and "No module named 'mine'" in report.splitlines()[1], report


def test_a_number_in_a_name_need_not_be_a_job_of_ours(doctor, project, tmp_path):
    """But a date, or of another cluster's job: neither what Slurm says of it nor the logs of its ranks count."""
    record = "JobId=77 JobName=x\n   JobState=COMPLETED Reason=None\n   ExitCode=0:0\n   StdOut=/elsewhere/x-77.out\n"
    log = project / "logs/77.0/node0-node1/0/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(traceback("KeyError: 'another job'"))
    (tmp_path / "train-77.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    report = doctor("train-77.log", scontrol=record).stdout.decode()
    assert report.startswith("cause: the memory of a GPU") and "another job" not in report, report


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


def test_the_help_of_the_programs_has_no_cause(read, project):
    text = GOOD
    for script in ("slurm/submit_multinode.sh", "slurm/doctor.py"):
        text += subprocess.run([project / script, "--help"], capture_output=True, text=True, check=True).stdout
    words = [sys.executable, project / "training/train_ddp.py", "--help"]
    text += subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert "--micro-batch" in text and "It reads the last 20 MB" in text
    code, report = read(text)
    assert code == 1 and "cause: " not in report, report


def test_several_causes_the_most_probable_first(read):
    words = ("Permission denied", "Disk quota exceeded", "CUDA out of memory", "oom_kill", "task 1: Killed")
    code, report = read(GOOD + "".join(f"srun: error: node1: {text}\n" for text in words))
    causes = re.findall(r"^cause: (.*)", report, re.MULTILINE)
    assert code == 0 and len(causes) == 3
    assert "quota" in causes[0] and "of a GPU" in causes[1] and "of a host" in causes[2]
    assert len(report.splitlines()) <= 40


def test_an_attempt_that_is_past_does_not_count(read):
    requeued = CANCELLED + " DUE TO NODE FAILURE, SEE X ***\nsrun: error: node1: task 0: Killed\n"
    code, report = read(GOOD + requeued + GOOD + "OSError: [Errno 28] No space left on device\n")
    assert report.count("cause: ") == 1 and "disk is full" in report
    assert code == 0 and "first failure" not in report


def test_what_doctor_said_before_is_no_proof(read):
    log = GOOD + "OSError: [Errno 28] No space left on device\n"
    code, report = read(log)
    assert (code, report.count("cause: ")) == (0, 1)
    assert read(log + report)[1] == report


@pytest.mark.parametrize("label", ["", "0: ", "[node1:0] "])
def test_what_doctor_quoted_from_a_rank_s_log_is_no_proof(label):
    """torch writes [rank0]: into the log. The output has that behind the label of srun or torchrun."""
    error = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "[rank0]: ")
    output = GOOD + labelled(label, error)
    report = "cause: the memory of a GPU was not enough\nproof: logs/12.0/node0-node1/0/stderr.log:6: [rank0]: torch\n"
    report += "fix: Use a smaller --micro-batch\nfirst failure: rank 0 on node1 (logs/12.0/node0-node1/0/stderr.log)\n"
    lines = lines_of(*(output + report + error).splitlines())
    assert DOCTOR.without_own_report(lines) == lines[: output.count("\n")]


def test_long_and_strange_logs(read):
    bar = b"".join(b"\r%3d%%|##\xff\xe2\x96| step" % (n % 100) for n in range(1000)) + b"\n"
    proof = b"\x1b[31m  9%|#\rOSError: [Errno 28] No space left on device\x1b[0m\r\n"
    code, report = read(bar * 2000 + b"\0\n" + proof + b"x" * 100_000 + b"\n")
    assert code == 0 and "(its last 20 MB):" in report
    assert ": OSError: [Errno 28] No space left on device\n" in report
    assert max(map(len, report.splitlines())) <= 330


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
OTHER = (
    "PermissionError: [Errno 13] Permission denied: '/root/.cache/x'; going on without a cache"  # this one may matter
)
PEERS = "RuntimeError: [pair.cc:553] Connection closed by peer [10.77.0.12]:23942. This is typically caused by a remote"


def labelled(label, text):
    """Return lines with the label of a rank."""
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def torchrun_output(before, end="-9 (pid: 56)", after="Signal 9 (SIGKILL) received by PID 56", words=""):
    """What a job under torchrun printed when rank 3 of 4 was killed (Slurm 22.05, torch 2.13)."""
    table = "=" * 60 + "\nprogram.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60
    table += "\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_17:20:35\n  host      : node2\n"
    table += (
        f"  rank      : 3 (local_rank: 1)\n  exitcode  : {end}\n  error_file: <N/A>\n  traceback : {after}\n" + "=" * 60
    )
    api = "E1121 17:20:35.0 40 site-packages/torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: "
    return (
        GOOD
        + labelled("[node2:3] ", before)
        + labelled("[node2:3] ", words)
        + f"{api}{end.split()[0]}) local_rank: 1 (pid: 56) of binary: /usr/bin/python3\n"
        + traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + f"{table}\nsrun: error: node2: task 1: Exited with exit code 1\nsrun: Terminating StepId=12.0\n"
        + f"{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("[node1:0] ", traceback(PEERS))
        + "srun: error: node1: task 0: Terminated\nsrun: Force Terminated StepId=12.0\n"
    )


def srun_output(before, end="Killed", words=""):
    """The same under srun, with a label before each line; the other ranks are killed when they do not end."""
    return (
        GOOD
        + labelled("3: ", before)
        + labelled("3: ", words)
        + f"srun: error: node2: task 3: {end}\nsrun: Terminating StepId=12.0\n"
        + f"{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("0: ", traceback(PEERS))
        + "srun: error: node1: tasks 0-1: Killed\nsrun: error: node2: task 2: Killed\n"
    )


def spawn_output(before, end="was ended by signal 9", code=137, words=""):
    """The same under launch/spawn.py."""
    return (
        GOOD
        + labelled("[node2:3] ", before)
        + labelled("[node2:3] ", words)
        + f"launch/spawn.py on node2: rank 3 {end}\nsrun: error: node2: task 1: Exited with exit code {code}\n"
        + f"srun: Terminating StepId=12.0\n{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***\n"
        + labelled("[node1:0] ", traceback(PEERS))
        + "launch/spawn.py on node1: rank 0 was ended by signal 15\n"
        + "srun: error: node1: task 0: Exited with exit code 143\n"
    )


def mpirun_output(before):
    """The same under mpirun (Open MPI 4.1), which gives no labels."""
    line = "-" * 74 + "\n"
    return (
        GOOD
        + before
        + "\n"
        + line
        + "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job "
        + f"has been aborted.\n{line}{line}"
        + f"mpirun noticed that process rank 3 with PID 0 on node node2 exited on signal 9 (Killed).\n{line}"
    )


LAUNCHERS = {"torchrun": torchrun_output, "srun": srun_output, "spawn": spawn_output, "mpirun": mpirun_output}


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


EXITS = {
    "torchrun": lambda words: torchrun_output("", "3 (pid: 56)", "To enable traceback see: https://pytorch.org", words),
    "srun": lambda words: srun_output("", "Exited with exit code 3", words),
    "spawn": lambda words: spawn_output("", "ended with exit code 3", 3, words),
}


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


# ---- what looks like something else ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "DEFAULT: lr=0.1",
        "/opt/conda_env.sh: line 3: module: command found",
        "retrying after OutOfMemoryError",
        "node2: Permission denied (publickey,password).",
    ],
)
def test_what_is_no_cause(read, line):
    code, report = read(GOOD + line + "\n")
    assert code == 1 and "cause: " not in report, report


@pytest.mark.parametrize("line", ["/a b/env.sh: IMAGE is not set", "# FAULT: rank 0 has no GPU", "x FAULT: no GPU"])
def test_where_a_message_of_the_project_may_begin(read, line):
    assert read(GOOD + line + "\n")[1].startswith(f"cause: {line}\n")


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


def test_what_cannot_be_read(doctor, tmp_path):
    """Reading this file fails, for root too."""
    done = doctor("/proc/self/mem")
    assert (done.returncode, done.stdout) == (2, b""), done
    assert done.stderr == b"slurm/doctor.py: cannot read /proc/self/mem: Input/output error\n"


def test_nothing_to_read(doctor, tmp_path, project):
    (tmp_path / "empty.out").touch()
    (project / "logs/900017.0/node0-node1/0").mkdir(parents=True)
    (project / "logs/900017.0/node0-node1/0/stderr.log").touch()
    for given in ("empty.out", project / "logs/900017.0"):
        done = doctor(given)
        assert (done.returncode, done.stdout) == (2, b""), done
        assert done.stderr.decode() == f"slurm/doctor.py: nothing to read in {given}\n"


def test_harmless_lines_do_not_use_up_the_limit(read):
    for text in (HARMLESS[2][1], HARMLESS[10][1]):
        code, report = read(GOOD + f"{text}\n" * 201 + "bash: line 1: x: No route to host\nModuleNotFoundError: x\n")
        assert code == 0 and report.count("cause: ") == 2, report


def test_a_traceback_is_handled_only_if_there_is_one(read):
    triton = "A matching Triton is not available, some optimizations will not be enabled\n"
    code, report = read(GOOD + triton + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert code == 0 and report.startswith("cause: the memory of a GPU"), report
    chain = traceback("ModuleNotFoundError: No module named 'triton'")
    chain += "\nDuring handling of the above exception, another exception occurred:\n\n"
    chain += traceback("ModuleNotFoundError: No module named 'triton.x'")
    assert "cause: " not in read(GOOD + triton + chain)[1]


def test_a_level_of_a_logger_is_no_part_of_a_path(read):
    for name in ("/data/INFO/x.json", "/data/x WARNING y.json"):
        code, report = read(GOOD + traceback(f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"))
        assert code == 0 and report.startswith("cause: a file or command is not there\n"), report
    code, report = read(GOOD + "FileNotFoundError: [Errno 2] No such file or directory: '/data/INFO/x.json'\n")
    assert code == 0 and report.startswith("cause: a file or command is not there\n"), report
    for level in ("INFO:x:", "[INFO] ", "2026-11-22 01:02:03,456 - x - INFO - ", "2026-11-22 | INFO     | x:f:1 - "):
        assert "cause: " not in read(GOOD + level + "urlopen error\n")[1], level


def test_last_words_of_several_hosts(read):
    text = labelled("[node1:0] ", "no key lr") + labelled("[node2:1] ", "no key lr") + labelled("[node3:2] ", "other")
    for hosts in ("node[1-2]", "node1,node2"):
        report = read(GOOD + text + f"srun: error: {hosts}: tasks 0-1: Exited with exit code 3\n")[1]
        assert "exit code 3; its last words:\n" in report and report.endswith("[node2:1] no key lr\n"), report
        assert "[node1:0] no key lr\n" in report and "[node3:2]" not in report, report


def test_the_attempt_that_was_asked_for(doctor, project):
    """The output has several attempts, and does not tell which is which."""
    for attempt, error in enumerate(("KeyError: 'first'", "KeyError: 'second'")):
        log = project / f"logs/55.{attempt}/node0-node1/0/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(traceback(error))
    disk = "slurmstepd: error: write: No space left on device\n"
    (project / "demo-55.out").write_text(GOOD + traceback("KeyError: 'first'", "0: ") + GOOD + disk)

    def ask(what, state, **more):
        record = f"JobId=55 JobName=x\n   JobState={state} Reason=None ExitCode=1:0\n   Requeue=1 Restarts=1\n"
        return doctor(what, cwd=project, scontrol=record, **more).stdout.decode()

    for state in ("FAILED", "COMPLETED", "RUNNING"):
        report = ask("logs/55.0", state)
        assert report.startswith("first failure: rank 0 on node1 (logs/55.0/"), report
        assert report.endswith("KeyError: 'first'\n") and "cause: " not in report, report
    for what in ("55", "logs/55.1"):
        report = ask(what, "FAILED")
        assert report.startswith("cause: a disk is full") and report.endswith("KeyError: 'second'\n"), report
        assert ask(what, "COMPLETED").startswith("job 55 did not fail: ")
    assert ask("logs/55.1", "RUNNING").endswith("KeyError: 'second'\n")


def test_jobs_that_have_not_ended(doctor, project):
    for state in ("PENDING", "RUNNING", "SUSPENDED"):
        record = f"JobId=56 JobName=x\n   JobState={state} Reason=Priority Dependency=(null)\n   ExitCode=0:0\n"
        done = doctor("56", scontrol=record)
        expected = f"job 56 has not ended: JobState={state} Reason=Priority ExitCode=0:0\n"
        assert (done.returncode, done.stdout.decode()) == (0, expected)


def test_a_job_that_runs_is_read_within_itself(doctor, project):
    """As the submit script does, whose job has not ended when its ranks have."""
    (project / "demo-57.out").write_text(GOOD + "OSError: [Errno 28] No space left on device\n")
    done = doctor("57", cwd=project, within="57", scontrol="JobId=57 JobName=x\n   JobState=RUNNING Reason=None\n")
    assert done.stdout.startswith(b"cause: a disk is full")


def test_a_heterogeneous_job_is_no_array(doctor):
    record = "JobId=88 HetJobId=88 HetJobOffset=0 JobName=x\n   JobState=FAILED Reason=None ExitCode=0:53\n"
    both = record + "\n" + record.replace("JobId=88 ", "JobId=89 ", 1).replace("Offset=0", "Offset=1")
    done = doctor("88", scontrol=both)
    assert done.returncode == 2, done
    assert done.stderr == b"slurm/doctor.py: job 88 is heterogeneous: name one of it, as 88+0\n"
    done = doctor("88+0", scontrol=record)
    assert done.returncode == 0 and b"\nproof: scontrol show job 88: JobState=FAILED" in done.stdout, done


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("COMPLETED|0:0|12_1\nFAILED|1:0|12_2\n", "an array: name one of it, as 12_1"),
        ("COMPLETED|0:0|12_1\nPENDING|0:0|12_[2-9]\n", "an array: name one of it, as 12_1"),
        ("COMPLETED|0:0|12+0\nFAILED|1:0|12+1\n", "heterogeneous: name one of it, as 12+0"),
    ],
)
def test_several_jobs_that_scontrol_has_forgotten(doctor, rows, said):
    done = doctor("12", sacct=rows)
    assert (done.returncode, done.stdout) == (2, b""), done
    assert done.stderr.decode() == f"slurm/doctor.py: job 12 is {said}\n"
    one = rows.splitlines()[0].split("|")[-1]
    done = doctor(one, sacct=rows.splitlines()[0])
    expected = f"job {one} did not fail: JobState=COMPLETED ExitCode=0:0\n"
    assert (done.returncode, done.stdout.decode()) == (0, expected), done


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


def lines_of(*texts):
    return [DOCTOR.labelled(number, text, "x.out") for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("label", "rank", "host"),
    [
        ("[node2:3] ", 3, "node2"),
        ("[node2:3] [rank3]: ", 3, "node2"),
        ("12: ", 12, ""),
        ("1: [rank1]: ", 1, ""),
        ("", None, ""),
    ],
)
def test_who_said_a_line(label, rank, host):
    (line,) = lines_of(f"{label}words: 3: more")
    assert (line.label, line.text) == (label, "words: 3: more")
    assert DOCTOR.rank_of(label) == (rank, host)


@pytest.mark.parametrize(
    "line",
    [
        "[WARNING|trainer.py:906] 2025-11-26 12:43:53,007 >> The model is already on multiple devices.",  # transformers
        "[INFO|tokenization_utils_base.py:2060] 2025-11-26 12:43:30,112 >> loading file tokenizer.json",
        "[train.py:30] step 100 loss 2.31",
        "[pair.cc:553] Connection closed by peer [10.77.0.12]:23942",
    ],
)
def test_the_place_in_a_source_file_is_no_label(line):
    for label in ("", "3: ", "[node2:3] ", "[node2.site.org:3] "):
        (found,) = lines_of(label + line)
        assert (found.label, found.text) == (label, line)
    assert bool(DOCTOR.HARMLESS.search(found.text)) is ("|" in line)  # the level of a logger is seen


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


def test_what_is_said_where_nothing_else_is(doctor, read):
    code, report = read("0: ok\nsrun: error: node2: task 1: Exited with exit code 3\n")
    assert code == 1 and report.endswith("\nthe program ended with exit code 3, and printed nothing\n"), report
    done = doctor("987654", scontrol="JobId=987654 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0")
    assert done.stdout.decode().endswith("ExitCode=1:0); the job left neither output nor logs\n"), done.stdout


def test_of_one_rank_the_last_failure_counts():
    first = DOCTOR.first_failure([failure("error", 0), failure("error", 1), failure("waited", 0)], logs=[])
    assert first.failed.rank == 1


def test_a_progress_bar_as_a_terminal_shows_it():
    assert (
        DOCTOR.shown("10%|#  | 1/9 [00:01<00:10,  4.0it/s]\r20%|## | 2/9 [00:01<00:10,  4.0it/s, loss=2]words\r")
        == "words"
    )
    assert DOCTOR.shown("100 it/s") == "100 it/s"
    assert DOCTOR.shown("7it [00:01,  4.00it/s]words") == DOCTOR.shown("0%| | 0/9 [00:00<?, ?s/it]words") == "words"


@pytest.mark.parametrize("label", ["3: ", "[node2:3] ", "[node2:3] [rank3]: "])
def test_a_progress_bar_does_not_hide_a_label(read, label):
    """srun writes its label where the line begins, and tqdm a carriage return behind it."""
    bars = "\r  0%|          | 0/100 [00:00<?, ?it/s]\r 10%|#         | 10/100 [00:01<00:10,  4.0it/s]"
    outer, space, inner = label.partition(" ")
    for bar in (bars, bars.lstrip("\r")):
        text = outer + space + bar + inner + traceback("KeyError: 'lr'", label)[len(label) :]
        code, report = read(GOOD + text)
        said = f"first failure: {label.strip(': ')} (my job-12.out:7): the program failed by itself; its own words:\n"
        assert code == 1 and report == said + traceback("KeyError: 'lr'", label), report


def test_a_progress_bar_may_begin_with_a_number_that_is_no_label():
    """tqdm(desc="3"), of an output without labels."""
    (line,) = lines_of("\r3:  10%|#         | 10/100 [00:01<00:10,  4.0it/s]Traceback (most recent call last):")
    assert (line.label, line.text) == ("", "Traceback (most recent call last):")


@pytest.mark.parametrize("path", ["git/src/m.pt", "units/items", "100it/s"])
def test_what_looks_like_a_progress_bar(path):
    error = f"RuntimeError: /home/u/{path}: size mismatch [4096] vs [512]"
    assert DOCTOR.shown(error) == error


# ---- the Python of login nodes ---------------------------------------------------------------------------------------


def test_it_is_python_3_6_with_its_standard_library():
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imports == {"bisect", "glob", "itertools", "os", "re", "subprocess", "sys", "typing"}
    newer = r"removeprefix|removesuffix|capture_output|text=True|missing_ok|dataclass|:=|\.reconfigure|fromisoformat"
    assert not re.search(newer, PROGRAM.read_text())
    assert os.access(PROGRAM, os.X_OK) and PROGRAM.read_text().startswith("#!/usr/bin/env python3\n")


SLOW = [pytest.param(path, marks=pytest.mark.drill) for path in OLD[1:]]


@pytest.mark.parametrize("python", [*OLD[:1], *SLOW], ids=[os.path.basename(path) for path in OLD])
def test_an_old_python_says_the_same(project, tmp_path, python):
    outputs = [*(launcher(OTHER) for launcher in LAUNCHERS.values()), *(exits("é") for exits in EXITS.values()), GOOD]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    for number, text in enumerate(outputs):
        (tmp_path / f"{number}.out").write_text(text)
        said = []
        for program in (python, sys.executable):
            command = [program, project / "slurm/doctor.py", f"{number}.out"]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=PATIENCE
            )
            assert done.returncode in (0, 1) and not done.stderr, done.stderr
            said.append((done.returncode, done.stdout))
        assert said[0] == said[1]
    done = subprocess.run([python, project / "slurm/doctor.py", "nosuch"], capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(b"slurm/doctor.py: 'nosuch': expected a job's number")


# ---- the first failure -----------------------------------------------------------------------------------------------

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.77.0.12]:23942. This is typically caused by"


def traceback(error, label="", depth=2):
    lines = ["Traceback (most recent call last):", *['  File "x.py", line 1, in f', "    f()"] * depth, error]
    return "".join(f"{label}{line}\n" for line in lines)


def test_the_rank_that_complains_of_others_is_not_the_first(read):
    other, first = "[node1:0] [rank0]: ", "[node2:3] [rank3]: "
    code, report = read(GOOD + traceback(PEER, other) + traceback("KeyError: 'x'", first, depth=500))
    assert code == 1
    assert report.startswith("first failure: [node2:3] [rank3] (my job-12.out:13): the program failed by itself; its")
    assert report.endswith(f"{first}KeyError: 'x'\n") and report.count(first) == 30


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
TERMINATE = "{0}terminate called after throwing an instance of 'c10::Error'\n{0}  what():  Connection reset by peer\n"
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


def test_a_file_of_errors_is_read_too(doctor, project):
    """#SBATCH --error: Slurm, srun and the tracebacks write there. Of several attempts nobody knows which one wrote."""
    (project / "demo-61.out").write_text(GOOD)
    (project / "demo-61.err").write_text(traceback("OSError: [Errno 28] No space left on device"))
    record = f"JobId=61\n JobState=FAILED ExitCode=1:0\n StdErr={project}/demo-61.err\n StdOut={project}/demo-61.out\n"
    report = doctor("61", cwd=project, scontrol=record).stdout.decode()
    assert report.startswith("cause: a disk is full") and "\nproof: demo-61.err:6: OSError" in report, report
    report = doctor("61", cwd=project, scontrol=record.replace("61.err", "61.out")).stdout.decode()
    assert report.endswith(GOOD) and report.count("step 100/200") == 1, report
    (project / "demo-61.out").write_text(GOOD + GOOD)
    assert "cause: " not in doctor("61", cwd=project, scontrol=record).stdout.decode()


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


@pytest.mark.parametrize("label", ["[node1:4242] ", "[step:3] ", "[step:100] "])
def test_a_label_is_that_of_a_rank_of_the_job(doctor, project, label):
    """Open MPI names a process there, and a program what it likes."""
    logs = [DOCTOR.RankLog("f", 0.0, rank, f"node{rank // 2 + 1}", 3, []) for rank in range(4)]
    is_rank = DOCTOR.rank_test("node[1-2]", logs)
    for outer in ("", "2: ", "[node2:3] ", "[node2.site.org:3] "):
        line = DOCTOR.labelled(1, f"{outer}{label}words", "x.out", is_rank)
        assert (line.label, line.text) == (outer, f"{label}words")
    assert DOCTOR.rank_test("", [])("step", "100")  # of an output alone nothing is known
    assert DOCTOR.rank_test("", logs)("node7", "9")  # whose logs may lack
    assert is_rank("node1", "3")  # torchrun may number the nodes in another order than the folders of the logs
    record = f"JobId=62\n JobState=FAILED ExitCode=1:0\n NodeList=node[1-2]\n StdOut={project}/demo-62.out\n"
    (project / "demo-62.out").write_text(GOOD + labelled("[step:100] ", traceback("KeyError: 'x'")))
    report = doctor("62", cwd=project, scontrol=record).stdout.decode()
    assert "Traceback" in report and not report.startswith("first failure: "), report


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
    run = project / "logs/900012.10"  # a number that no job of the tests below has, which share the project
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


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes(doctor, tmp_path):
    for arguments, message in {
        (): "'': expected a job's number",
        ("1", "2"): "'1 2': expected a job's number",
        ("nosuch.out",): "'nosuch.out': expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT",
        (".",): "'.': expected",
        ("0",): "'0': expected",
        ("987654",): "Slurm does not know a job 987654, and there is no *-987654.out in",
    }.items():
        done = doctor(*arguments)
        assert (done.returncode, done.stdout) == (2, b""), done
        assert done.stderr.decode().startswith(f"slurm/doctor.py: {message}"), done.stderr


# ---- real jobs -------------------------------------------------------------------------------------------------------

FAILS = f"""\
import os, signal, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "is here", flush=True)
time.sleep(0.5)
if rank == 3 and sys.argv[1] == "raise":
    raise ValueError("bad sample 17")
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep({FOREVER})
"""
HANGS = f"""\
import datetime, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()  # only from here on nobody is late because the machine is slow
group = dist.new_group(timeout=datetime.timedelta(seconds=5))
for step in range(9):
    if step == 5 and dist.get_rank() == 2:
        time.sleep({FOREVER})
    dist.all_reduce(torch.ones(9), group=group)
"""


RETURNS_EARLY = """\
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(9):
    if step == 5 and dist.get_rank() == 2:
        dist.destroy_process_group()
        sys.exit(0)
    dist.all_reduce(torch.ones(9))
"""


@pytest.fixture(scope="session")
def launched(tmp_path_factory):
    """A project for real jobs, whose numbers are none of those that the tests above made up."""
    return bake(tmp_path_factory.mktemp("a b") / "slurm", site="slurm", nodes="2", gpus_per_node="2")


@pytest.fixture
def slurm(cluster):
    """The cluster, if its nodes have names of their own."""
    return cluster if cluster.namespaces else pytest.skip(f"no namespaces: {cluster.no_namespaces}")


def fail(slurm, launched, folder, program, *arguments, launcher="srun"):
    """Submit a program that fails; returns the job, and the report in its output."""
    (folder / "own.py").write_text(program)
    environment = {"PYTHON": sys.executable, "LAUNCHER": launcher, "ALLOW_CPU": "1"}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [launched / "slurm/submit_multinode.sh", "own.py", *arguments]
    job = slurm.submit(*command, cwd=folder, env=environment)
    assert job.state == "FAILED", job.output
    done = slurm.run("python3", launched / "slurm/doctor.py", job.id, cwd=folder, check=False)
    assert not done.stderr
    return job, done.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn", "mpirun-ranks"])
def test_a_rank_that_raises(slurm, launched, tmp_path, launcher):
    job, report = fail(slurm, launched, tmp_path, FAILS, "raise", launcher=launcher)
    log = rf"{launched}/logs/{job.id}.0/node1-node2/.*1/stderr.log"
    said = "the program failed by itself; its own words:"
    assert re.match(rf"first failure: rank 3 on node2 \({log}\): {said}\nTraceback", report), report
    for text in (report, job.output):  # the job ends with it, too
        assert text.endswith('    raise ValueError("bad sample 17")\nValueError: bad sample 17\n'), text


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_a_rank_that_is_killed(slurm, launched, tmp_path, launcher):
    job, report = fail(slurm, launched, tmp_path, FAILS, "kill", launcher=launcher)
    assert report.startswith("cause: a process was killed\nproof: "), report
    for text in (report, job.output):
        assert text.splitlines()[-1].startswith("first failure: rank 3 on node2 ("), text


def test_a_rank_that_hangs(slurm, launched, tmp_path):
    _, report = fail(slurm, launched, tmp_path, HANGS)
    assert report.startswith("cause: ranks waited in vain for one that hung"), report
    assert re.search(r"^first failure: rank 2 on node2 \(.*\) hung, or ended", report, re.MULTILINE), report
    assert "Timed out waiting 5000ms" in report.splitlines()[-1], report


def test_a_rank_that_returns_early(slurm, launched, tmp_path):
    """It ends with code 0, and the others lose it: the program is at fault, not the node."""
    job, report = fail(slurm, launched, tmp_path, RETURNS_EARLY)
    assert report.startswith("cause: a rank ended, without an error, while others still waited for it\n"), report
    fix = report.splitlines()[2]
    assert "look at the program" in fix and "node" not in fix, report
    # Where rank 2 has not quite left when srun ends the step, it cannot be told from rank 0, which is silent too.
    found = re.search(r"^first failure: .*rank 2 on node2 \(.*\) ended without an error$", report, re.MULTILINE)
    assert found, job.output


@pytest.mark.drill
def test_a_rank_that_leaves_its_process_group_running(slurm, launched, tmp_path):
    program = RETURNS_EARLY.replace("        dist.destroy_process_group()\n", "")
    _, report = fail(slurm, launched, tmp_path, program)
    assert "look at the program" in report.splitlines()[2] and "rank 2 on node2" in report, report


def test_a_rank_that_exits_with_a_message(slurm, launched, tmp_path):
    for launcher in ("srun", "spawn", "torchrun"):
        program = "import os, sys, time\nif os.environ['RANK'] == '2':\n    sys.exit('config error: no key lr')\n"
        program += "time.sleep(60)\n"
        job, report = fail(slurm, launched, tmp_path, program, launcher=launcher)
        assert report.startswith("first failure: rank 2 on node2 (") and "cause: " not in report, report
        assert "\nthe program ended with exit code 1; its last words:\n" in report, report
        assert report.endswith("config error: no key lr\n"), report
        again = slurm.run(
            "python3", launched / "slurm/doctor.py", f"demo-{job.id}.out", cwd=tmp_path, check=False
        ).stdout
        assert "exit code 1; its last words:\n" in again and again.endswith("config error: no key lr\n"), again


def test_a_node_without_python3(slurm, launched, tmp_path):
    """The job's own exit code stays, and its output says how to learn the cause."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in os.scandir(folder):
            if not tool.name.startswith("python") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool.path)
    (tmp_path / "own.py").write_text("import sys\nsys.exit(3)\n")
    environment = {"PYTHON": sys.executable, "LAUNCHER": "srun", "ALLOW_CPU": "1", "PATH": str(tools)}
    job = slurm.submit(launched / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 3), job.output
    assert job.output.endswith(f"has no python3: run python3 slurm/doctor.py {job.id} on another\n"), job.output


def test_jobs_of_all_kinds(slurm, launched, tmp_path):
    """That went well, that cannot start, of an array: nothing of this project in them."""

    def ask(job):
        done = slurm.run("python3", launched / "slurm/doctor.py", job, cwd=tmp_path, check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    (tmp_path / "job.sh").write_text("#!/bin/bash\necho here\n$1\n")
    good = slurm.submit("job.sh", cwd=tmp_path)
    assert ask(good.id) == f"job {good.id} did not fail: JobState=COMPLETED Reason=None ExitCode=0:0\n"
    nowhere = slurm.submit("--output=nosuch/x.out", "job.sh", cwd=tmp_path)
    assert "ExitCode 0:53: the folder of --output" in ask(nowhere.id)
    array = slurm.sbatch("--array=1-2", "job.sh", "nosuchcommand", cwd=tmp_path)
    slurm.wait(array)
    done = slurm.run("python3", launched / "slurm/doctor.py", array, cwd=tmp_path, check=False)
    assert done.returncode == 2 and f"is an array: name one of it, as {array}_1" in done.stderr, done.stderr
    report = ask(f"{array}_2")
    assert f"proof: slurm-{array}_2.out:2: " in report and "nosuchcommand: command not found" in report
