"""The causes that slurm/doctor.py knows, on outputs as users post them: each row of its table, and what is no cause."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from baking import account, bake
from doctor_cases import (
    BY_WAITING,
    CANCELLED,
    CAUSES,
    GOOD,
    KNOWN,
    LOGS,
    REPORT_ENDS,
    TRACEBACK,
    ask,
    doctor,
    failing,
    labelled,
    lines_of,
    project,
    read,
    traceback,
)
from doctor_examples import EXAMPLES as EXAMPLES_OF
from waiting import PATIENCE

# Cause, fix, and lines of a log; the last one is the proof, or the one before `|`.
CASES = [
    ("no program 'x.py'", "asks for", "slurm/submit_multinode.sh: no program 'x.py', neither here nor in /b"),
    ("no virtual environment", "asks for", "env.sh: no virtual environment at /a/.venv; build it"),
    ("4 ranks, but", "asks for", "launch/rank.sh on node2: 4 ranks, but MASTER_ADDR is not set"),
    ("--micro-batch 3", "asks for", "train_ddp.py: error: --micro-batch 3 does not fit"),
    ("may use one core", "asks for", "FAULT: rank(s) 0 on node1 may use one core of 8: pass it"),
    ("WRONG DATA on rank 1", "asks for", "# WRONG DATA on rank 1 (node2) at 4096 bytes: 3 of 1024 elements"),
    ("no command python", "asks for", "preflight: node2: no command python: name"),
    ("cannot be reached", "MASTER_ADDR_SUFFIX", "node1:42 UCX ERROR connect failed: Destination is unreachable"),
    # nextflow #5932, PyBNF #118
    ("of a host", "--mem", "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.|"
     "srun: error: node2: task 3: Killed"),
    ("of a host", "--mem", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to"),
    ("of a host", "--mem", TRACEBACK + "MemoryError"),
    ("of a host", "--mem", TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for"),
    ("of a GPU", "smaller batch", TRACEBACK + "RuntimeError: Triton Error [CUDA]: out of memory"),
    ("locked memory", "ulimit -l", TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled"
     " system error\nncclSystemError: System call failed.\nLast error:\n"
     "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    ("/dev/shm is full", "df -h", TRACEBACK + "RuntimeError: unable to write to file </torch_1_2_3>: No space left on"
     " device (28)"),
    ("crashed in compiled", "PYTHONFAULTHANDLER", TRACEBACK + "RuntimeError: DataLoader worker (pid 7) is"
     " killed by signal: Segmentation fault. "),
    ("another process uses the GPU", "LOCAL_RANK", TRACEBACK + "RuntimeError: CUDA error: all CUDA-capable devices are"
     " busy or unavailable"),
    ("or requeued", "sacct -D", CANCELLED + " DUE TO JOB REQUEUE ***"),
    ("waited in vain", "timeout of", TRACEBACK + "RuntimeError: Rank 1 failed to pass monitoredBarrier in 8000 ms"),
    ("of a GPU", "smaller batch", "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ("does not support", "nvidia-smi", "RuntimeError: The NVIDIA driver on your system is too old (found version 1"),
    ("does not support", "get_arch_list", "CUDA error: no kernel image is available for execution on the device"),
    ("see no GPU", "--gpus-per-node", "RuntimeError: No CUDA GPUs are available"),
    ("or not one each", "LOCAL_RANK", "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"),
    ("broken", "--exclude", "CUDA error: uncorrectable NVLink error detected during the execution"),
    ("over your quota", "remove files", TRACEBACK + "OSError: [Errno 122] Disk quota exceeded: 'runs/step-10.tmp'"),
    ("a disk is full", "elsewhere", "OSError: [Errno 28] No space left on device"),
    ("read-only", "elsewhere", "OSError: [Errno 30] Read-only file system: '/home/x'"),
    ("too little /dev/shm", "num_workers", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."),
    ("open files", "num_workers", "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"),
    ("open files", "ulimit", "OSError: [Errno 24] Too many open files"),
    ("module is not found", "RUNTIME", "ModuleNotFoundError: No module named 'torch'"),
    ("module is not found", "Install a missing", "/usr/bin/python3: No module named wandb"),
    ("library", "container", "/lib64/libc.so.6: version `GLIBC_2.34' not found (required by x.so)"),
    ("processor", "compute node", "srun: error: node2: task 3: Illegal instruction (core dumped)"),
    ("a module is not found", "spider", 'Lmod has detected an error: The following module(s) are unknown: "x"'),
    ("more processes than", "--ntasks-per-node", "There are not enough slots available in the system to satisfy the 4"),
    # NVIDIA/pyxis #127, apptainer/singularity #5183
    ("image", "IMAGE", "slurmstepd: error: pyxis: failed to import docker image"),
    ("image", "IMAGE", "FATAL:   could not open image /a/x.sif: failed to retrieve path"),
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
    ("waited in vain", "timeout of", "[rank0]:[E321 NCCL.cpp:607] Watchdog caught collective operation timeout"),
    ("waited in vain", "timeout of", TRACEBACK + "RuntimeError: Timed out waiting 8000ms for recv operation"),
    ("process was killed", "--mem", "srun: error: node2: task 3: Killed"),
    ("process was killed", "--mem", "/var/spool/slurmd/job12/slurm_script: line 12: 12345 Killed      python x.py"),
    ("crashed in compiled", "PYTHONFAULTHANDLER", "srun: error: node2: task 3: Segmentation fault (core dumped)"),
    ("lost another", "other node", TRACEBACK + "RuntimeError: NCCL error: ncclRemoteError: A call failed"),
]  # fmt: skip


# ---- causes ----------------------------------------------------------------------------------------------------------


# How the lines begin of what starts the ranks, and of Slurm: no rank has said them.
OF_NO_RANK = re.compile(
    r"srun: |sbatch: |slurmstepd|slurm/|env\.sh: |preflight: |There are not|/var/spool|launch/spawn|\S+ \S+ stuck"
)


def output_with(lines):
    """A job's output that ends with these lines: as the last words of the rank that failed, if a rank said them."""
    return GOOD + lines + "\n" if OF_NO_RANK.match(lines) else failing(lines)


@pytest.mark.parametrize(("cause", "fix", "log"), CASES, ids=[case[0] for case in CASES])
def test_a_cause_its_proof_its_fix(read, cause, fix, log):
    log, _, after = log.partition("|")
    code, report = read(f"{output_with(log)}{after}\n[node1:1] step 100/200  loss 2.31\n")
    lines = report.splitlines()
    assert code == 0, report
    assert lines[0].startswith("cause: ") and cause in lines[0], report
    assert re.match(r"proof: my job-12.out:\d+: ", lines[1]), report
    assert any(said.strip() and lines[1].endswith(said.strip()) for said in log.splitlines()), report
    assert lines[2].startswith("fix: ") and fix in lines[2], report
    assert report.count("cause: ") == 1, report


NAMED = {cause.name: cause for cause in CAUSES}
EXAMPLES = [(NAMED[name], example) for name, (_, *examples) in EXAMPLES_OF.items() for example in examples]
OF_RECORD = [(cause, example) for cause, example in EXAMPLES if example.startswith("JobState=")]
OF_OUTPUT = [(cause, example) for cause, example in EXAMPLES if not example.startswith("JobState=")]


def assert_row(answer, cause, example):
    (found,) = answer["causes"]
    assert (found["name"], found["says"], found["fix"]) == (cause.name, cause.says or example, cause.fix), answer
    assert found["proof"].endswith(example[-200:]), answer


@pytest.mark.parametrize(("cause", "example"), OF_OUTPUT, ids=[cause.name for cause, _ in OF_OUTPUT])
def test_an_example_of_each_row(ask, cause, example):
    """Its row is the answer. What a rank says counts as the last words of the rank that failed."""
    of_a_rank = cause in KNOWN.BY_RANK and not OF_NO_RANK.match(example)
    words = traceback(example) if cause in BY_WAITING else example
    assert_row(ask(failing(words) if of_a_rank or cause in BY_WAITING else f"{GOOD}{example}\n"), cause, example)


@pytest.mark.parametrize(("cause", "example"), OF_RECORD, ids=[cause.name for cause, _ in OF_RECORD])
def test_an_example_of_slurm_s_record(doctor, cause, example):
    assert_row(json.loads(doctor("--json", "12", scontrol=f"JobId=12\n {example}\n").stdout), cause, example)


def test_the_table():
    """Each row can be told from the others, and has an example, which says where its wording was read, and when."""
    names = [cause.name for cause in CAUSES]
    assert len(set(names)) == len(names) and set(names) == set(EXAMPLES_OF)
    for source, *examples in EXAMPLES_OF.values():
        assert re.search(r"\(2026-\d\d-\d\d\)$", source) and examples, source


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


NOTHING = (1, "no launcher reports a rank that failed\n")


def test_a_good_log_has_no_cause(read):
    for end in ("", "could not import flash_attn: No module named 'flash_attn'; using sdpa\n", BARRIER):
        assert read(GOOD + end) == NOTHING, end
    code, report = read(BARRIER + GOOD + traceback("KeyError: 'x'", "[node1:0] ") + BARRIER)
    assert code == 1 and re.match(r"no cause known.*\nfirst failure: rank 0 on node1 \(my job-12.out:", report), report
    assert report.endswith("    KeyError: 'x'\n"), report


def test_warnings_beside_an_error_are_no_cause(read):
    """A rank that failed of itself says why; what stands in good runs too is not it. But what Slurm says counts."""
    warnings = "WARNING: A matching Triton is not available. Error: ModuleNotFoundError: No module named 'triton'\n"
    warnings += "INFO: wandb: Max retries exceeded with url: /graphql\n"
    error = traceback("ValueError: num_samples should be a positive integer value")
    code, report = read(GOOD + warnings + error)
    assert code == 1 and "cause: " not in report, report
    assert report.splitlines()[2] == "    Traceback (most recent call last):", report
    assert report.endswith("    ValueError: num_samples should be a positive integer value\n"), report
    _, report = read(GOOD + warnings + error + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0\n")
    assert re.findall(r"(?m)^cause: (.*)", report) == ["the memory of a host was not enough"], report
    _, report = read(GOOD + warnings + traceback("ModuleNotFoundError: No module named 'mine'"))
    assert report.count("cause: ") == 1 and "No module named 'mine'" in report.splitlines()[1], report


def test_the_help_of_the_programs_has_no_cause(read, project):
    text = GOOD
    for script in ("slurm/submit_multinode.sh", "slurm/doctor.py"):
        text += subprocess.run([project / script, "--help"], capture_output=True, text=True, check=True).stdout
    text += (project / "training/lm/arguments.py").read_text()  # what train_ddp.py --help prints
    assert "--micro-batch" in text and "It reads the last 20 MB" in text
    assert read(text) == NOTHING


def test_what_slurm_knows_is_the_only_cause(read):
    """Nothing else is put beside it as if it were one."""
    words = ("Permission denied", "Disk quota exceeded", "CUDA out of memory. ", "task 1: Killed")
    said = "".join(f"srun: error: node1: {text}\n" for text in words)
    code, report = read(GOOD + said + "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0\n")
    assert code == 0 and re.findall(r"(?m)^cause: (.*)", report) == ["the memory of a host was not enough"], report


def test_an_attempt_that_is_past_does_not_count(read):
    requeued = CANCELLED + " DUE TO NODE FAILURE, SEE X ***\nsrun: error: node1: task 0: Killed\n"
    code, report = read(GOOD + requeued + GOOD + traceback("OSError: [Errno 28] No space left on device"))
    assert code == 0 and report.count("cause: ") == 1 and "disk is full" in report, report


@pytest.mark.parametrize("label", ["", "0: ", "[node1:0] "])
def test_what_doctor_quoted_from_a_rank_s_log_is_no_proof(label):
    """The output has its lines in the report, too, without the label of the rank."""
    error = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    output = GOOD + labelled(label, error)
    report = "cause: the memory of a GPU was not enough\nproof: logs/12.0/node0-node1/0/stderr.log:6: [rank0]: torch\n"
    report += (
        "fix: Use a smaller batch\nfirst failure: rank 0 on node1 ended with exit code 1 (logs/12.0/node0-node1)\n"
    )
    lines = lines_of(*(output + report + labelled("    ", error) + REPORT_ENDS + "after\n").splitlines())
    assert LOGS.without_reports(lines) == lines[: output.count("\n")] + lines[-1:]


def test_long_and_strange_logs(read):
    bar = b"".join(b"\r%3d%%|##\xff\xe2\x96| step" % (n % 100) for n in range(1000)) + b"\n"
    proof = TRACEBACK.encode() + b"\x1b[31m  9%|#\rOSError: [Errno 28] No space left on device\x1b[0m\r\n"
    code, report = read(bar * 2000 + b"\0\n" + proof + b"x" * 100_000 + b"\n")
    assert code == 0 and "(its end):" in report
    assert ": OSError: [Errno 28] No space left on device\n" in report
    assert max(map(len, report.splitlines())) <= 330


# ---- what looks like something else ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "DEFAULT: lr=0.1",
        "/opt/conda_env.sh: line 3: module: command found",
        "retrying after OutOfMemoryError",
        "node2: Permission denied (publickey,password).",
        "memory.events: oom 0 oom_kill 0",
        "Port 6006: Address already in use, trying 6007",
        "Volatile uncorrectable ECC errors: 0",
        "this flag is kept for forward compatibility",
        "note: the code below is unreachable",
        "[ERROR] URL fetch failed, skipping",
        "FATAL:  could not open file 'postgresql.conf'",
        "handler installed for signal 10",
        "kernel: NVRM: Xid (PCI:0000:04:00): 31, pid=7, name=python, MMU Fault: ENGINE GRAPHICS",
    ],
)
def test_what_is_no_cause(read, line):
    assert read(GOOD + line + "\n") == NOTHING
    assert "cause: " not in read(failing(line))[1]


@pytest.mark.parametrize("line", ["/a b/env.sh: IMAGE is not set", "# FAULT: rank 0 has no GPU", "x FAULT: no GPU"])
def test_where_a_message_of_the_project_may_begin(read, line):
    assert read(GOOD + line + "\n")[1].startswith(f"cause: {line}\n")


def test_a_traceback_that_a_library_handles_with_its_chain(read):
    triton = "A matching Triton is not available, some optimizations will not be enabled\n"
    chain = traceback("ModuleNotFoundError: No module named 'triton'")
    chain += "\nDuring handling of the above exception, another exception occurred:\n\n"
    chain += traceback("ModuleNotFoundError: No module named 'triton.x'")
    assert "cause: " not in read(GOOD + triton + chain)[1]


def test_a_level_of_a_logger_is_no_part_of_a_path(read):
    for name in ("/data/INFO/x.json", "/data/x WARNING y.json"):
        code, report = read(GOOD + traceback(f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"))
        assert code == 0 and report.startswith("cause: a file or command is not there, or not yours to use\n"), report
    for level in ("INFO:x:", "[INFO] ", "2026-11-22 01:02:03,456 - x - INFO - ", "2026-11-22 | INFO     | x:f:1 - "):
        assert "cause: " not in read(GOOD + level + "urlopen error\n")[1], level


@pytest.mark.parametrize(
    ("site", "runtime"),
    [
        ("slurm", "venv"),
        ("slurm", "none"),
        ("slurm", "pyxis"),
        ("lumi", "apptainer"),
        ("mn5", "venv"),
        ("clariden", "edf"),
    ],
)
def test_fixes_name_files_of_the_project(tmp_path, site, runtime):
    """No row sends a user to a script that this runtime does not have."""
    for examples in ("yes", "no"):
        answers = {"site": site, "runtime": runtime, "account": account(site), "examples": examples}
        answers["extras"] = "all"
        project = bake(tmp_path / examples, **answers)
        files = [*(project / "slurm/doctor").glob("causes*.py"), *project.glob("extras/*/causes.py")]
        rows = "".join(path.read_text() for path in files)
        fixes = re.findall(r"(?s)fix=(.*?)\n +source=", rows)
        assert len(fixes) > 30
        named = re.findall(r"[\w/-]+\.(?:sh|py|md|sbatch)\b", "".join(fixes))
        assert "env.sh" in named and not [name for name in named if not (project / name).exists()]
        assert not re.search(r"--(?:workers|micro-batch|resume|out|timeout)\b", "".join(fixes)), "flags of our examples"


FILES = {  # of rows, by site and runtime
    ("slurm", "venv"): {"causes"},
    ("slurm", "pyxis"): {"causes", "causes_pyxis"},
    ("slurm", "enroot"): {"causes"},
    ("lumi", "apptainer"): {"causes", "causes_apptainer"},
    ("clariden", "edf"): {"causes", "causes_pyxis"},
}


@pytest.mark.parametrize(("site", "runtime"), FILES)
def test_rows_of_what_the_project_does_not_have(tmp_path, site, runtime):
    """Rows of other runtimes and launchers are not written."""
    project = bake(tmp_path, site=site, runtime=runtime, account=account(site))
    assert {path.stem for path in (project / "slurm/doctor").glob("causes*.py")} == FILES[site, runtime]
