#!/usr/bin/env python3
"""Says why a job failed: the cause, the line that proves it, the fix, and what the first failing rank said last.

  python3 slurm/doctor.py 123                 a job; 12_3 for one job of an array
  python3 slurm/doctor.py demo-123.out        an output file alone, also of a job that this project did not start
  python3 slurm/doctor.py logs/123.0          the rank logs of one attempt
  python3 slurm/doctor.py --fault=FILE 123    also writes into FILE whose fault it is (slurm/nodes.sh reads that):
                                              node NAME, program (another start would fail too), or unknown.
                                              It writes nothing if the job hung, did not fail, or has not ended

It reads the last 20 MB of the job's output, the last 16 KB of each rank's stderr.log, and Slurm's record of the job.
Of an output with several attempts it reads the newest one. Of an older attempt, or one that still runs, it reads
the rank logs alone, as the output does not say which attempt is which.
If the job had #SBATCH --error=FILE, it reads that file too, unless the job had several attempts. If you name the
output file of such a job, name that of --error instead: it has the errors.
It runs on login nodes: Python 3.6, standard library only.

Exit code 0: it found a cause, or Slurm's record says that the job did not fail, or has not ended.
Exit code 1: it knows no cause. That is also the answer to the output alone of a job that did not fail.
Exit code 2: there is nothing to read, or the arguments are wrong.

To teach it a cause, add a row to CAUSES: the comment above the table says how.
"""

import glob
import os
import re
import signal
import subprocess
import sys
from bisect import bisect_right
from itertools import islice
from typing import NamedTuple

OUTPUT_BYTES, LOG_BYTES = 20_000_000, 16_384  # how much of the ends is read
ATTEMPT_BEGINS = " node(s), meeting at "  # the submit script prints a line with these words before it starts the ranks
MOST_CAUSES = 3
QUOTED_LINES, QUOTED_WIDTH, PROOF_WIDTH = 30, 240, 300
SEARCHED_WIDTH = 4096  # of a line; with two words and .* between them, a search takes the square of it
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8


def main():
    """Read the job, find its first failure and the known causes, print what follows from both."""
    arguments = sys.argv[1:]
    fault_file = arguments.pop(0)[len("--fault=") :] if arguments and arguments[0].startswith("--fault=") else ""
    job = find_job(arguments)
    if job.owner:
        show([f"job {job.id} is not yours, but {job.owner}'s"], code=0)
    if "COMPLETED" in job.state:
        return show([f"job {job.id} did not fail: {job.state}"], code=0)
    if not job.has_ended:
        return show([f"job {job.id} has not ended: {job.state}"], code=0)

    logs = read_rank_logs(job.run)
    output = read_output(job, logs)
    if not (output or any(log.lines for log in logs) or job.state):
        die("nothing to read in " + " and ".join(short(path) for path in (job.output, job.errors, job.run) if path))

    failures = failures_in_logs(logs) if logs else failures_in_output(output)
    for report in launcher_reports(output):
        match_report(report, failures, logs, output)
    first = first_failure(failures, logs, ranks_ended_by_srun(logs, output))

    lines = output or log_lines(logs, first.failed)  # the output alone is enough: it holds the stderr of all ranks
    hits = find_hits(lines, job)
    stuck = [hit for hit in hits if hit.cause.name == "stuck"][:1]
    mismatch = [hit for hit in hits if hit.cause.name == "different tensors"]
    places = places_of_ranks(job.run, lines, logs) if stuck or mismatch or first.way in ("waited", "peer") else []
    if stuck:
        return show(cause_lines(stuck, [], places) + without_verdicts(places), code=0)
    mark_what_first_said(hits, first, lines)
    causes, others = weigh(hits, first, has_output=bool(output))

    answer = cause_lines(causes, others, places) + failure_lines(first, causes, lines, job, places)
    code = show(answer, code=0 if causes else 1)
    if fault_file:
        write_fault(fault_file, fault_of(first, causes, hits, logs))
    return code


# ---- what is known: the causes ---------------------------------------------------------------------------------------

# How much a line proves, from the strongest evidence to the weakest. The report names the stronger causes first.
TELLS_WHY = "says by itself why the run failed"
MAY_FOLLOW = "says what stopped the run (Slurm, network, file), which may follow from a cause that TELLS_WHY"
LAST_SIGN = "all that is left of a rank that could not say why; counts where no stronger line does"
LOST_PEER = "a rank complains that it lost another one; counts where no stronger line does"
STRENGTHS = (TELLS_WHY, MAY_FOLLOW, LAST_SIGN, LOST_PEER)


class Cause(NamedTuple):
    """One row of the table. `says` is printed after "cause:"; empty: the line that was found says it."""

    name: str
    strength: str  # one of STRENGTHS
    patterns: tuple  # regular expressions; one that begins with plain letters is found fastest
    says: str
    fix: str
    source: str  # where the wording was read, and when
    examples: tuple  # real lines, for the tests


# To teach doctor.py a cause, add a row. Its `strength` says how much its lines prove beside those of other rows.
# Of two rows that match the same line, with as much strength, the one that stands first in the table counts.
# A pattern sees a line without its label. In "[node1:0] KeyError: 'lr'" the pattern ^KeyError matches. All lines are
# searched at once, so no pattern may match a newline: write " +" for \s+ and "[^)\n]" for [^)].
# In the template's repository, tests/slurm/test_doctor_causes.py runs each example: the report begins with its row.
#
# A new message may need a pattern in another list, too:
#   HARMLESS_LINES   good runs print the line as well
#   NO_FAILURE       a library prints it before a traceback, and goes on
#   PEER             a rank ends with it because it lost another rank
#   WAITED           a rank ends with it because it waited in vain for another rank
#   NCCL_WATCHDOG    WAITED, and torch prints it without a traceback
#   OF_COMMUNICATION an error of several lines begins with it, and a later line matches PEER
#   OTHER_PEER       it matches PEER or WAITED, but speaks of a web server or a command
#   LAUNCHER_ERROR   the traceback of a launcher ends with it
#   NATIVE           compiled code prints it as it goes down, without a traceback
#   LAUNCHER_NOISE   a launcher or a library prints it, and it is no part of a rank's error message
#   SLURM_SAYS       Slurm or the kernel prints it, and it counts beside a rank's own error
CAUSES = (
    Cause(
        name="stuck",
        strength=TELLS_WHY,
        patterns=(r"stuck: nothing was printed for \d+ s",),
        says="the ranks waited for something that never came (STALL_TIMEOUT)",
        fix="Look at where each rank was, below: one that stands alone kept the others waiting.",
        source="slurm/lib.sh of this project (2026-11-23)",
        examples=(
            "2026-11-23 16:00:00 stuck: nothing was printed for 600 s (STALL_TIMEOUT), and no rank moves; where each",
        ),
    ),
    Cause(
        name="project",
        strength=TELLS_WHY,
        patterns=(
            r"launch/[a-z_]+\.(?:sh|py)(?: on \S+)?: (?!rank )\S",
            r"slurm/[a-z_]+\.(?:sh|py): \S",
            r"container/[a-z_]+\.sh: \S",
            r"^env\.sh: \S",
            r"[ /]env\.sh: \S",
            r"\.py: error: \S",
            r"^FAULT: \S",
            r"[ #]FAULT: \S",
            r"SLOW NODE \S",
            r"WRONG DATA on \S",
            r"preflight: .*: \S",
        ),
        says="",
        fix="Do what the cause line asks for.",
        source="messages of this project's scripts and of argparse",
        examples=(
            "slurm/submit_multinode.sh: no program 'x.py' in /a nor in /b",
            "preflight: node2: no command python: name its module in MODULES",
            "1: launch/rank.sh on node2: 4 ranks, but MASTER_ADDR is not set",
            "[node1:0] train_ddp.py: error: --micro-batch 3 does not fit",
            "[node1:0] # WRONG DATA on rank 1 (node2) at 4096 bytes: 3 of 1024 elements",
        ),
    ),
    Cause(
        name="locked memory",
        strength=TELLS_WHY,
        patterns=(
            r"ibv_\S*reg_mr\S* failed(?: with error|:) Cannot allocate memory",
            r"ibv_\S*reg_mr\(.*failed: Cannot allocate memory",
        ),
        says="the limit of locked memory is too low for the network",
        fix="Put ulimit -l unlimited into env.sh. If a node refuses that, ask your site to raise the limit of jobs.",
        source="NVIDIA/nccl-tests #206; openucx/ucx #6264 #2712 (2026-11-22)",
        examples=(
            "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "UCX ERROR ibv_reg_mr failed: Cannot allocate memory",
        ),
    ),
    Cause(
        name="host memory",
        strength=TELLS_WHY,
        patterns=(
            r"oom[-_]kill event",
            r"oom-kill:",
            r"invoked oom-killer",
            r"result 'oom-kill'",
            r": Out Of Memory",
            r"JobState=OUT_OF_MEMORY",
            r"MemoryError: Unable to allocate",
            r"^MemoryError$",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"DefaultCPUAllocator",
        ),
        says="the memory of a host was not enough",
        fix="Ask for more with --mem (--mem=0: all of a node), or use fewer --workers and ranks per node.",
        source="Slurm 22.05 and 24.11; torch 2.13; nextflow-io/nextflow #5932, lanl/PyBNF #118 (2026-11-21)",
        examples=(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM",
            "JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125",
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory",
        ),
    ),
    Cause(
        name="GPU memory",
        strength=TELLS_WHY,
        patterns=(
            r"CUDA out of memory",
            r"HIP out of memory",
            r"XPU out of memory",
            r"CUDA error: out of memory",
            r"HIP error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"Cuda failure.*out of memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"CUDA driver error: out of memory",
            r"Triton Error \[CUDA\]: out of memory",
        ),
        says="the memory of a GPU was not enough",
        fix="Use a smaller --micro-batch, which keeps the global batch, or shard the model with FSDP.",
        source="torch 2.13, ATen/cuda/Exceptions.h; NVIDIA/nccl #1948; CUDA's driver API (2026-11-22)",
        examples=(
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "RuntimeError: CUDA driver error: out of memory",
            "RuntimeError: Triton Error [CUDA]: out of memory",
            "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        ),
    ),
    Cause(
        name="GPU driver",
        strength=TELLS_WHY,
        patterns=(
            r"on your system is too old",
            r"forward compatibility was attempted",
            r"driver version is insufficient",
            r"no kernel image is",
        ),
        says="this torch does not support this GPU driver or GPU",
        fix="Install a torch for the CUDA that nvidia-smi shows, with these GPUs in torch.cuda.get_arch_list().",
        source="torch 2.13; vllm-project/vllm #5222 (2026-11-21)",
        examples=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ),
    ),
    Cause(
        name="no GPU",
        strength=TELLS_WHY,
        patterns=(
            r"No (?:CUDA|HIP) GPUs are available",
            r"no CUDA-capable device",
            r"Found no NVIDIA",
            r"not compiled with CUDA",
            r"is only supported with GPUs",
            r"Duplicate GPU",
            r"invalid device ordinal",
        ),
        says="the ranks see no GPU, or not one each",
        fix="Ask for --gpus-per-node and not --gpus-per-task, start Apptainer with --nv, install a torch for CUDA, and"
        " use the device cuda:LOCAL_RANK in the program.",
        source="torch 2.13; meta-llama/codellama #125, NVIDIA/nccl #861 (2026-11-22)",
        examples=(
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
        ),
    ),
    Cause(
        name="busy GPU",
        strength=TELLS_WHY,
        patterns=(r"CUDA-capable device.* busy or unavailable",),
        says="another process uses the GPU alone, or the GPU does not answer",
        fix="Use the device cuda:LOCAL_RANK in the program, so that each rank has a GPU of its own. If that does"
        " not help, submit with --exclude=NODE, and tell your site.",
        source="NVIDIA/DIGITS #2005, facebookresearch/detectron2 #2580, ggml-org/llama.cpp #11841 (2026-11-22)",
        examples=(
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ),
    ),
    Cause(
        name="GPU program",
        strength=TELLS_WHY,
        patterns=(r"device-side assert", r"illegal memory access"),
        says="a kernel on a GPU read or wrote where it may not",
        fix="Set CUDA_LAUNCH_BLOCKING=1 to see the line. Mostly an index or a label is out of range.",
        source="karpathy/nanoGPT #470, huggingface/trl #2996, ymcui/Chinese-LLaMA-Alpaca-2 #376 (2026-11-22)",
        examples=(
            "RuntimeError: CUDA error: device-side assert triggered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
    ),
    Cause(
        name="broken node",
        strength=TELLS_WHY,
        patterns=(
            r"Xid \(PCI[^)\n]*\): (?!(?:13|31|43|45)\b)",  # with these the program is at fault, or has ended
            r"uncorrectable (?:NVLink|ECC) error\b",
            r"UNCORRECTABLE MEMORY",
            r"GPU is lost",
            r"fallen off the bus",
            r"determine the device handle",
            r"system not yet initialized",  # NVIDIA's fabric manager does not run
        ),
        says="a GPU or a node is broken",
        fix="Submit again with --exclude=NODE, and tell your site.",
        source="torch 2.13; NVIDIA's driver messages; pytorch/pytorch #35710 (2026-11-22). The Xids of programs:"
        " plexus.company/guides/gpu-xid-errors (2026-11-24)",
        examples=(
            "kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=2646416, GPU has fallen off the bus.",
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        ),
    ),
    Cause(
        name="driver of two versions",
        strength=TELLS_WHY,
        patterns=(r"river/library version mismatch",),
        says="a node's GPU driver was updated, and the old one is still loaded",
        fix="Submit again with --exclude=NODE, and ask your site to restart the node. If all nodes say so, the"
        " container or LD_LIBRARY_PATH may have a libcuda or libnvidia-ml of its own.",
        source="oddmario/NVIDIA-Ubuntu-Driver-Guide #4, NVIDIA/nvidia-container-toolkit #394 (2026-11-24)",
        examples=(
            "Failed to initialize NVML: Driver/library version mismatch",
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.",
        ),
    ),
    Cause(
        name="shared memory",
        strength=TELLS_WHY,
        patterns=(
            r"unable to write to file </torch_",
            r"failed to extend /dev/shm/nccl-",
            r"Error while creating shared memory segment",
            r"posix_fallocate failed : No space left",
        ),
        says="/dev/shm is full, or too small",
        fix="Use fewer --workers. On the node, df -h /dev/shm shows whether it is full, and ls -l /dev/shm what"
        " other jobs left there. If a container has a /dev/shm of its own, make that larger.",
        source="idiap/ESLAM #20, MIC-DKFZ/nnUNet #2162; deepseek-ai/DeepEP #53, NVIDIA/nccl #290 #525 (2026-11-22)",
        examples=(
            "RuntimeError: unable to write to file </torch_31911_952036340_6686>: No space left on device (28)",
            "NCCL WARN Error: failed to extend /dev/shm/nccl-nyj24T to 10486116 bytes, error: No space left on device",
            "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on",
            "[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        ),
    ),
    Cause(
        name="disk",
        strength=TELLS_WHY,
        patterns=(
            r"Disk quota exceeded",
            r"No space left on device",
            r"Read-only file system",
            r"inline_container\.cc.* unexpected pos",
            r"PytorchStreamWriter failed writing file",
            r"basic_ios::clear: iostream error",
        ),
        says="a disk is full, over your quota, or read-only",
        fix="To make room, remove files (quotas also limit their number), or set --out, TMPDIR, HF_HOME elsewhere.",
        source="pytorch/pytorch #156955, innnky/so-vits-svc #46, OpenROAD #7875, nmslib #502 (2026-11-22)",
        examples=(
            "OSError: [Errno 28] No space left on device",
            "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0",
            "RuntimeError: basic_ios::clear: iostream error",
        ),
    ),
    Cause(
        name="data loader",
        strength=TELLS_WHY,
        patterns=(
            r"DataLoader worker \(pid.*(?:signal: (?:Bus|Killed)|unexpectedly)",
            r"insufficient shared memory",
            r": Bus error",
            r"Too many open files",
            r"received 0 items of ancdata",
            r"exitcode +: -7 ",
            r"exit code 135$",
            r"(?<!for )signal 7(?: \(|$)",
        ),
        says="too little /dev/shm, memory or open files to read data ahead",
        fix="Use fewer --workers (with 0 the rank itself reads, and shows errors), or put ulimit -n 65536 into env.sh.",
        source="torch 2.13; pytorch/pytorch #5040 #73656 #108861 (2026-11-21)",
        examples=(
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's",
            "RuntimeError: DataLoader worker (pid 2287) is killed by signal: Killed.",
            "OSError: [Errno 24] Too many open files",
        ),
    ),
    Cause(
        name="data loader crash",
        strength=TELLS_WHY,
        patterns=(
            r"DataLoader worker \(pid.*signal: (?:Segmentation|Aborted|Floating)",
            r"Unexpected (?:segmentation fault|floating-point exception) encountered in worker",
        ),
        says="a worker that reads data crashed in compiled code",
        fix="Use --workers 0 with PYTHONFAULTHANDLER=1: then the rank itself reads, and Python shows where it crashes.",
        source="torch 2.13; harshatejas/pytorch_custom_object_detection #1, STVIR/pysot #140 (2026-11-22)",
        examples=(
            "RuntimeError: DataLoader worker (pid 4487) is killed by signal: Segmentation fault.",
            "ERROR: Unexpected segmentation fault encountered in worker.",
        ),
    ),
    Cause(
        name="module",
        strength=TELLS_WHY,
        patterns=(
            r"ModuleNotFoundError: \S",
            r"python[0-9.]*: No module named \S",
            r"module\(s\) are unknown",
            r"module\(s\).* cannot be loaded",
            r"extension\(s\) are unknown",
            r"extension\(s\).* cannot be loaded",
            r"locate a modulefile",
        ),
        says="a module is not found",
        fix="Check RUNTIME and VENV in env.sh. Name a module of the site, which module spider finds, in MODULES of"
        " env.sh. Add a missing Python package to requirements.txt. Start a module of your own with -m, or add its"
        " folder to PYTHONPATH.",
        source="CPython 3.6 to 3.13; Lmod; Environment Modules (2026-11-21)",
        examples=(
            "ModuleNotFoundError: No module named 'torch'",
            "/usr/bin/python3: No module named wandb",
            'Lmod has detected an error: The following module(s) are unknown: "x"',
        ),
    ),
    Cause(
        name="library",
        strength=TELLS_WHY,
        patterns=(
            r"GLIBC(?:XX)?_[0-9.]+' not found",
            r"CXXABI_[0-9.]+' not found",
            r"static TLS block",
            r"cannot open shared",
            r": undefined symbol: \S",
            r"Illegal instruction",
            r"exitcode +: -4 ",
            r"exit code 132$",
            r"(?<!for )signal 4(?: \(|$)",
        ),
        says="a library is missing, or made for another system or processor",
        fix="Build the library on a compute node, use a container, or name its module in MODULES of env.sh.",
        source="glibc; NVIDIA/nccl #96 (2026-11-22)",
        examples=(
            "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /a/x.so)",
            "ImportError: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /a/x.so)",
            "error while loading shared libraries: libcudart.so.11.0: cannot open shared object file: No such file or",
            "srun: error: node2: task 3: Illegal instruction (core dumped)",
        ),
    ),
    Cause(
        name="process group",
        strength=TELLS_WHY,
        patterns=(r"terminate called without an active exception",),
        says="a rank ended while its process group was still at work",
        fix="First look at the program: all ranks need the same number of steps, then destroy_process_group().",
        source="torch 2.13, gloo: sys.exit(0) between two all_reduce() (2026-11-22)",
        examples=("terminate called without an active exception",),
    ),
    Cause(
        name="different tensors",
        strength=TELLS_WHY,
        patterns=(r"Received data size doesn't", r"Is there a distributed collective mismatch"),
        says="ranks called different collectives at the same time, or with tensors of different shapes or types",
        fix="Let all ranks call the same collectives, in the same order, with tensors of the same shape and type.",
        source="torch 2.13, gloo: all_reduce of 1024 and of 7 numbers (2026-11-23)",
        examples=(
            "what(): [enforce fail at pair.cc:456] preamble.length <= op.nbytes. 512 vs 4. Received data size doesn't",
            "match expected size. Is there a distributed collective mismatch in your code?",
        ),
    ),
    Cause(
        name="refused by Slurm",
        strength=TELLS_WHY,
        patterns=(
            r"Invalid (?:account|qos|generic resource)",
            r"nvalid partition",
            r"Requested (?:node con|time li)",
            r"violates accounting",
            r"Unable to create step",
            r"More processors req",
        ),
        says="Slurm refuses the request",
        fix="Edit the #SBATCH lines. Your queues: sinfo. Your accounts: sacctmgr show associations user=$USER.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=(
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        ),
    ),
    Cause(
        name="mpirun as root",
        strength=TELLS_WHY,
        patterns=(r"mpirun has detected an attempt to run as root",),
        says="mpirun does not run as root",
        fix="Submit as an ordinary user. Where there is none, OMPI_ALLOW_RUN_AS_ROOT=1 and"
        " OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 allow it.",
        source="Open MPI 4.1 (2026-11-26)",
        examples=("mpirun has detected an attempt to run as root.",),
    ),
    Cause(
        name="MPI without PMI",
        strength=TELLS_WHY,
        patterns=(r"OMPI was not built with SLURM's PMI support",),
        says="the program calls MPI itself, as with mpi4py, and mpirun did not start it",
        fix="Use LAUNCHER=mpirun-ranks, where the site has it.",
        source="Open MPI 4.1, mpi4py 4.1 (2026-11-26)",
        examples=("but OMPI was not built with SLURM's PMI support and therefore cannot",),
    ),
    Cause(
        name="slots of mpirun",
        strength=TELLS_WHY,
        patterns=(r"not enough slots",),
        says="mpirun shall start more processes than the job has slots for",
        fix="mpirun starts as many ranks on a node as the job has tasks there: ask for them with --ntasks-per-node.",
        source="Open MPI 4.1 (2026-11-21)",
        examples=("There are not enough slots available in the system to satisfy the 4",),
    ),
    Cause(
        name="two GPU options",
        strength=TELLS_WHY,
        patterns=(r"--gpus-per-node and --gres=gpu are mutually exclusive",),
        says="Slurm 26.05 takes --gpus-per-node or --gres=gpu, not both; srun has the first from its job",
        fix="Use the option that the #SBATCH lines have, as in srun --gpus-per-node=1.",
        source="SchedMD/slurm src/common/slurm_opt.c; Slurm 26.05.5 (2026-11-23)",
        examples=(
            "srun: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.",
            "sbatch: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.",
        ),
    ),
    Cause(
        name="container folder",
        strength=TELLS_WHY,
        patterns=(
            r"--container-mounts: source path does not exist",
            r"enroot-mount: failed to (?:re)?mount",
            r"statfs .*: no such file or directory",
            r"BIND MOUNT FAILED from",
            r"FAILED to find (?:real path for )?volume",
            r"mount source .* doesn't exist",
        ),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="Name folders that exist on every node, in BINDS of env.sh or in mounts of the container's .toml, and mount"
        " them where the image has them.",
        source="NVIDIA/pyxis pyxis_slurmstepd.c #133; NVIDIA/enroot enroot-mount.c #36; NERSC/shifter shifter_core.c"
        " #252 #327; containers/podman #18444; apptainer/singularity #4712 (2026-11-22)",
        examples=(
            "slurmstepd: error: pyxis: --container-mounts: source path does not exist: /scratch/x",
            "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /scratch/x at /tmp/pyxis_479.0/x: No such",
            "enroot-mount: failed to mount: /opt/x at /home/x/.local/share/enroot/ubuntu/opt/x: No such file",
            "BIND MOUNT FAILED from /var/udiMount//global/u2/x to /var/udiMount/data",
            'FAILED to find real path for volume "from": /opt/cray/pe/mpich/8.1.24/ofi/gnu/9.1',
            "Error: statfs /scratch/x: no such file or directory",
        ),
    ),
    Cause(
        name="container image",
        strength=TELLS_WHY,
        patterns=(
            r"pyxis: failed to \S",
            r"\[ERROR\] (?:No such file|URL \S+ returned)",
            r"FATAL: +(?:could not open image|Unable to handle|[Ww]hile )",
            r"FAILED to find requested image",
        ),
        says="the container image is not there, or does not start",
        fix="Set IMAGE in env.sh to an image at a path that all nodes see.",
        source="NVIDIA/pyxis #127 #168, NVIDIA/enroot #243, apptainer/singularity #5183, apptainer/apptainer #1051;"
        " NERSC/shifter shifter.c (2026-11-22)",
        examples=(
            "slurmstepd: error: pyxis: failed to import docker image",
            "FATAL:   could not open image /a/x.sif: failed to retrieve path",
        ),
    ),
    Cause(
        name="port",
        strength=TELLS_WHY,
        patterns=(r"EADDRINUSE", r"ddress already in use"),
        says="the port is taken",
        fix="To get another port, submit again. Do not set MASTER_PORT, and start torchrun once on a node.",
        source="torch 2.13; pytorch/pytorch #73656 (2026-11-21)",
        examples=(
            "torch.distributed.DistNetworkError: port: 29713, code: -98, name: EADDRINUSE, message: address already in",
        ),
    ),
    Cause(
        name="network interface",
        strength=TELLS_WHY,
        patterns=(
            r"Unable to find address for: ",
            r"o socket interface found",
            r"connectFullMesh failed(?!.*(?:closed|reset) by)",
            r"socketStartConnect: Connect to .* failed : (?:No route to host|Software caused connection abort)",
        ),
        says="the ranks use the wrong network interface",
        fix="Set NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME to an interface of all nodes (ip -br address lists them).",
        source="torch 2.13; sgl-project/sglang #3226 #5594; NVIDIA/nccl #975 #1515, nccl-tests #166 (2026-11-22)",
        examples=(
            "RuntimeError: ifa != nullptr. Unable to find address for: ib0",
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
            (
                "[0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : "
                "Software caused connection abort"
            ),
            (
                "[0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : "
                "No route to host"
            ),
        ),
    ),
    Cause(
        name="time limit",
        strength=MAY_FOLLOW,
        patterns=(r"DUE TO TIME LIMIT", r"JobState=(?:TIMEOUT|DEADLINE)"),
        says="the walltime was over",
        fix="Ask for more --time, or --resume from what was saved. If the output stops long before, a rank hung.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO TIME LIMIT ***",),
    ),
    Cause(
        name="preemption",
        strength=MAY_FOLLOW,
        patterns=(r"DUE TO PREEMPTION", r"JobState=PREEMPTED"),
        says="a job of higher priority took the nodes",
        fix="Submit with --requeue, save often, and --resume.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO PREEMPTION ***",),
    ),
    Cause(
        name="node failure",
        strength=MAY_FOLLOW,
        patterns=(r"DUE TO NODE FAILURE", r"JobState=(?:NODE_FAIL|BOOT_FAIL)", r"error: Node failure on \S"),
        says="a node failed",
        fix="Submit with --requeue, save often, and --resume. If the node fails again, submit with --exclude=NODE.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=(
            (
                "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO NODE FAILURE, SEE "
                "SLURMCTLD LOG FOR DETAILS ***"
            ),
            "srun: error: Node failure on node2",
        ),
    ),
    Cause(
        name="requeued",
        strength=MAY_FOLLOW,
        patterns=(r"DUE TO JOB REQUEUE",),
        says="the job was requeued: Slurm starts it again",
        fix="Wait for its next attempt. To see its attempts, run sacct -D -X -j JOBID.",
        source="Slurm 22.05 (2026-11-22)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO JOB REQUEUE ***",),
    ),
    Cause(
        name="step launch",
        strength=MAY_FOLLOW,
        patterns=(r"Task launch for \S+ failed on node", r"Application launch failed: \S"),
        says="srun could not start the program on a node",
        fix="If the proof ends with a network error, submit again with --exclude=NODE, and tell your site. Otherwise"
        " change the option that the proof names.",
        source="Slurm 22.05; aws/aws-parallelcluster #4179, snakemake-executor-plugin-slurm #225 (2026-11-22)",
        examples=(
            "srun: error: Task launch for StepId=20.0 failed on node node2: Socket timed out on send/recv operation",
            "srun: error: Application launch failed: Communication connection failure",
        ),
    ),
    Cause(
        name="daemons of mpirun",
        strength=MAY_FOLLOW,
        patterns=("The Slurm process starter requires a minimum Slurm version level",),
        says="mpirun could not start its helper process (prted) on each node. Then it asks for a newer Slurm, even"
        " if Slurm is new enough",
        fix="Submit again: srun may have failed, or a killed prted has left a folder /tmp/prted.HOST.PID.UID on a node."
        " If that does not help, use LAUNCHER=torchrun or LAUNCHER=srun, which need no prted.",
        source="Open MPI 5.0.7 of Debian 13 (2026-11-24); openpmix/prrte #1448, #2155: it asks for the version after a"
        " start has failed, and reads 0.0 from Debian's 'slurm-wlm 24.11.5'. The folder: strace of prted (2026-11-24)",
        examples=("The Slurm process starter requires a minimum Slurm version level",),
    ),
    Cause(
        name="mpirun lost a node",
        strength=MAY_FOLLOW,
        patterns=(
            "PRTE has lost communication with a remote daemon",
            "ORTE has lost communication with a remote daemon",
        ),
        says="mpirun lost a node: the node died, its network failed, or mpirun's process there was killed",
        fix="The output names the node a few lines after the proof (Remote daemon). Submit again with --exclude=NODE,"
        " and tell your site.",
        source="Open MPI 4.1.4 of Debian 12 and 5.0.7 of Debian 13 (2026-11-24)",
        examples=(
            "ORTE has lost communication with a remote daemon.",
            "PRTE has lost communication with a remote daemon.",
        ),
    ),
    Cause(
        name="cancelled",
        strength=MAY_FOLLOW,
        patterns=(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*", r"JobState=CANCELLED"),
        says="the job was cancelled",
        fix="To see who cancelled it, run sacct -X -o state%30 -j JOBID.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 ***",),
    ),
    Cause(
        name="output folder",
        strength=MAY_FOLLOW,
        patterns=(r"ExitCode=0:53",),
        says="Slurm could not write the job's output",
        fix="ExitCode 0:53: the folder of --output has to exist, and be yours, before the job starts.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("JobState=FAILED Reason=RaisedSignal:53 ExitCode=0:53",),
    ),
    Cause(
        name="warning of a script",
        strength=MAY_FOLLOW,
        patterns=(
            r"JobLaunchFailure ExitCode=0:1[02]\b",
            r"RaisedSignal:1[02]\b",
        ),
        says="a signal that asks for saving (10 is USR1, 12 is USR2) ended the job's own script",
        fix="A script with the line --signal=B:USR1@SECONDS has to catch the signal, as by trap '' USR1.",
        source="Slurm 22.05 (2026-11-26)",
        examples=("JobState=FAILED Reason=JobLaunchFailure ExitCode=0:10",),
    ),
    Cause(
        name="container start",
        strength=MAY_FOLLOW,
        patterns=(r"pyxis: container start failed", r"pyxis: child \d+ failed with error code", r"pyxis: couldn't \S"),
        says="the container image is not there, or does not start",
        fix="Read the lines around the proof, which say why. Make the image anew, and name it in IMAGE of env.sh.",
        source="NVIDIA/pyxis #61 and enroot.c, pyxis_slurmstepd.c (2026-11-22)",
        examples=(
            "slurmstepd: error: pyxis: container start failed with error code: 1",
            "slurmstepd: error: pyxis: child 4711 failed with error code: 1",
        ),
    ),
    Cause(
        name="download",
        strength=MAY_FOLLOW,
        patterns=(
            r"Max retries exceeded with url",
            r"onnect to 'http",
            r"Couldn't reach .* on the Hub",
            r"LocalEntryNotFoundError",
            r"urlopen error",
            r"requests\.exceptions\.Conn",
            r"Could not resolve host",
        ),
        says="a host on the internet cannot be reached",
        fix="Download on a login node first, as compute nodes often have no internet.",
        source="huggingface/datasets #7197, huggingface/accelerate #2246, hiyouga/LlamaFactory #4186 (2026-11-22)",
        examples=(
            "ConnectionError: Couldn't reach 'wikitext' on the Hub (LocalEntryNotFoundError)",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        ),
    ),
    Cause(
        name="name or route",
        strength=MAY_FOLLOW,
        patterns=(
            r"ame or service not known",
            r"name resolution",
            r"etwork is unreachable",
            r"ost is unreachable",
            r"estination is unreachable",  # UCX; openucx/ucx #3513 (2026-11-24)
            r"No route to host",
        ),
        says="a host has no address, or cannot be reached",
        fix="For a node's name, set MASTER_ADDR_SUFFIX in env.sh. From the internet, download on a login node first.",
        source="torch 2.13, c10d/socket.cpp (2026-11-22)",
        examples=(
            (
                "[W1121 17:20:31.214 socket.cpp:767] [c10d] The IPv4 network addresses of (node1, 29500) cannot be "
                "retrieved (gai error: -2 - Name or service not known)."
            ),
        ),
    ),
    Cause(
        name="rendezvous",
        strength=MAY_FOLLOW,
        patterns=(
            r"client socket has timed out",
            r"seconds waiting for clients",
            r"Rendezvous(?:Timeout|Connection|Closed)Error",
        ),
        says="not all nodes joined the rendezvous in time",
        fix="If nodes start slowly, raise RDZV_TIMEOUT. --exclude nodes without a folder in logs/JOBID.ATTEMPT.",
        source="torch 2.13; pytorch/pytorch #69197 #126510 (2026-11-21)",
        examples=(
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
        ),
    ),
    Cause(
        name="missing file",
        strength=MAY_FOLLOW,
        patterns=(
            r"FileNotFoundError: \S",
            r"can't open file '",
            r"execve\(\): .*No such file",
            r": command not found",
        ),
        says="a file or command is not there",
        fix="Run ls -ld PATH on a compute node: the path has to be where all nodes see it.",
        source="CPython 3.6 to 3.13; bash 5; Slurm 22.05 (2026-11-21)",
        examples=(
            "FileNotFoundError: [Errno 2] No such file or directory: '/local/x'",
            "slurmstepd: error: execve(): python: No such file or directory",
        ),
    ),
    Cause(
        name="permission",
        strength=MAY_FOLLOW,
        patterns=(r"Permission denied(?! \((?:publickey|gssapi|password|keyboard|hostbased))",),  # which ssh says
        says="a file or folder is not yours to read or write",
        fix="Run ls -ld PATH on a compute node, also for the folders above it.",
        source="CPython 3.6 to 3.13 (2026-11-21)",
        examples=("PermissionError: [Errno 13] Permission denied: '/sys/x'",),
    ),
    Cause(
        name="waited in vain",
        strength=LAST_SIGN,
        patterns=(
            r"Watchdog caught collective operation timeout",
            r"Heartbeat monitor timed out",
            r"watchdog got stuck for \d+ seconds",
            r"failed to pass monitoredBarrier",
            r"Timed out waiting \d+ms for (?:send|recv) operation",
            r"Monitored barrier",
        ),
        says="ranks waited in vain for one that hung, or was busy",
        fix="If the rank was stuck, see where. If it was slow, raise --timeout (in a program of your own: timeout of"
        " init_process_group). If it had returned, correct the program: all ranks need the same number of steps.",
        source="torch 2.13; hiyouga/LlamaFactory #7396 #8549, xdit-project/xDiT #147 (2026-11-22)",
        examples=(
            "RuntimeError: Rank 2 failed to pass monitoredBarrier in 8000 ms",
            (
                "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be "
                "terminated after dumping debug info. workMetaList_.size()=3"
            ),
            (
                "[rank1]:[E704 13:48:58.260509461 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
                "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued"
            ),
            "[rank0]:[E321 NCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,",
            "RuntimeError: Timed out waiting 8000ms for recv operation to complete",
        ),
    ),
    Cause(
        name="returned early",
        strength=LAST_SIGN,
        patterns=(r"srun: First task exited \d+s ago",),
        says="a rank ended, without an error, while others still waited for it",
        fix="First look at the program: a rank that returns early, or skips a collective operation that the others"
        " call, leaves them waiting. Give all ranks the same number of steps.",
        source="NatLabRockies/torc #318 (2026-11-22)",
        examples=("srun: First task exited 30s ago",),
    ),
    Cause(
        name="killed",
        strength=LAST_SIGN,
        patterns=(
            r"tasks? [0-9,-]+: Killed",
            r"line \d+: +\d+ Killed",
            r"exitcode +: -9 ",
            r"exit code 137$",
            r"(?<!for )signal 9(?: \(|$)",
        ),
        says="a process was killed",
        fix="Mostly memory was lacking: ask for more --mem, or use fewer --workers and ranks per node.",
        source="Slurm 22.05; torch 2.13; hpcaitech/ColossalAI #3514 (2026-11-22)",
        examples=(
            "srun: error: node2: task 3: Killed",
            "/var/spool/slurmd/job12/slurm_script: line 12: 12345 Killed      python x.py",
            "launch/spawn.py on node2: rank 3 was ended by signal 9",
            "mpirun noticed that process rank 3 with PID 7 on node node2 exited on signal 9 (Killed).",
        ),
    ),
    Cause(
        name="crashed",
        strength=LAST_SIGN,
        patterns=(
            r"Segmentation fault",
            r"exitcode +: -11 ",
            r"exit code 139$",
            r"(?<!for )signal 11(?: \(|$)",
            r"tasks? [0-9,-]+: (?:Aborted|Floating point)",
            r"exitcode +: -[68] ",
            r"exit code 13[46]$",
            r"(?<!for )signal [68](?: \(|$)",
        ),
        says="a process crashed in compiled code",
        fix="Set PYTHONFAULTHANDLER=1 to see where. Often packages were built for different versions of each other.",
        source="Slurm 22.05; torch 2.13; pytorch/pytorch #146118 (2026-11-22)",
        examples=(
            "srun: error: node2: task 3: Segmentation fault (core dumped)",
            "launch/spawn.py on node2: rank 3 was ended by signal 11",
        ),
    ),
    Cause(
        name="unexpected signal",
        strength=LAST_SIGN,
        patterns=(
            r"tasks? [0-9,-]+: (?:User defined signal|Hangup)",
            r"exitcode +: -(?:1|10|12) ",
            r"(?<!for )signal (?:1|10|12)(?: \(|$)",
        ),
        says="a signal ended a process that does not handle it",
        fix="Handle SIGUSR1 in the program, or do not send it (--signal). STOP_FILE asks to end without a signal.",
        source="Slurm 22.05 (2026-11-22)",
        examples=(
            "srun: error: node2: task 3: User defined signal 1",
            "launch/spawn.py on node2: rank 3 was ended by signal 10",
        ),
    ),
    Cause(
        name="lost another rank",
        strength=LOST_PEER,
        patterns=(r"ncclRemoteError", r"Connection (?:closed|reset) by peer", r"HorovodInternalError"),
        says="a rank lost another one that printed no error",
        fix="See whether a rank returns early, then look at the other node: the logs of its ranks, sinfo -N -l.",
        source="torch 2.13; NVIDIA/nccl #1948; horovod/horovod #1364 (2026-11-22)",
        examples=(
            "RuntimeError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
            (
                "RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer "
                "[10.0.0.2]:23942. This is typically caused by a remote worker crashing."
            ),
        ),
    ),
)

# Lines that stand in good runs too, and so prove nothing.
HARMLESS_LINES = (
    r"--numa-binding is left out|so it uses this node alone",  # launch/torchrun.sh goes on
    r"Address family not supported",  # c10d tries IPv6 first
    r"IPv6 network addresses of",  # c10d tries IPv6 first; antgroup/animate-x #15, OFA-Sys/OFA #307 (2026-11-22)
    r"failed to shutdown the rendezvous",
    r"exit barrier",  # pytorch/pytorch #69520
    r"recvValueWithTimeout",  # pytorch/pytorch #69520
    r"NCCL INFO",  # NVIDIA/nccl #162 and #1231: "harmless" (2026-11-22)
    r"dso_loader",  # TensorFlow looks for libraries; yekaizhou/duet #9 (2026-11-22)
    r"(?:^|[\s\[(|:])(?:INFO|WARNING)(?:[\s\])|:]|$)",  # the level of a message, as loggers print it
    r"Warning: ",
    r"Error caught was: ",  # xformers without triton; oobabooga/textgen #1086 (2026-11-22)
    r": ignored\.?$",  # ld.so, of a library in LD_PRELOAD; rizsotto/Bear #582 (2026-11-22)
    r"\(ignored\)$",  # Open MPI, of a plugin; BirolLab/abyss #175 (2026-11-22)
    r"ddress already in use, trying",  # TensorBoard and others take the next port
    r"\bRetrying\b|thrown while requesting|entering retry loop",  # huggingface_hub, urllib3, wandb (2026-11-22)
)
HARMLESS = re.compile("|".join(HARMLESS_LINES))
# Lines of launch/stacks/group.py: where ranks were, and who kept the others waiting.
PLACE = re.compile(r"(?:ranks?|other process of ranks?) [\d,-]+(?: on [^:]+)?: | {4}another thread")
VERDICT = re.compile(
    r"ranks? [\d,-]+(?: on \S+| on \d+ nodes)? ha(?:s|ve) (?:not entered|told nothing|no process|left no record)"
    r"|ranks disagree: |all ranks have entered "
)
ASKED = re.compile(r"[\d-]+ [\d:]+ .*where each of them (?:is|was):$")  # slurm/lib.sh, in the line before
# Causes in whose place the report puts the verdict, if there is one: it also names the rank that the others waited for.
WAITS = ("stuck", "waited in vain", "lost another rank", "returned early", "process group")
OWN_REPORT = re.compile(  # how lines of a report of this program begin
    r"(?:cause|proof|fix|may also matter|first failure|who (?:waited for it|lost it|complained|noticed it)): "
    r"|no cause known to doctor|where each rank was:$"
    r"|the program ended with exit code \d+; "
)
# What Slurm or the kernel says: it counts also where a rank has spoken for itself.
SLURM_SAYS = re.compile(
    r"^(?:slurmstepd|srun|sbatch|salloc): |JobState=|oom[-_]kill event|oom-kill:|invoked oom-killer|Out Of Memory"
    r"|DUE TO [A-Z]|Xid \(|\*\*\* (?:JOB|STEP) "
)


# ---- the job: number, state, output, logs ----------------------------------------------------------------------------


class Job(NamedTuple):
    """What is to be read; each field may be empty."""

    id: str
    state: str  # as "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0"
    record: str  # the command that prints the state
    output: str  # a file
    errors: str  # the file of --error, if it is another one
    run: str  # a folder logs/JOBID.ATTEMPT
    hosts: str  # of its nodes, as "node[1-2]"
    owner: str = ""  # the user who has submitted it, if that is another one

    @property
    def has_ended(self):
        """Tell whether it does not wait or run; the submit script asks within the job, when its ranks have ended."""
        within = os.environ.get("SLURM_JOB_ID") == self.id
        # --requeue=expedite: REQUEUE_HOLD is a job that has failed
        waits_or_runs = r"JobState=(?:PENDING|CONFIGURING|RUNNING|SUSPENDED|REQUEUE(?!_HOLD))"
        return within or not re.search(waits_or_runs, self.state)


def die(message):
    """End with an error of the user's."""
    print(printable(f"slurm/doctor.py: {message}"), file=sys.stderr)
    sys.exit(2)


def find_job(arguments):
    """Return the job that the command line names."""
    if arguments[:1] in (["-h"], ["--help"]):
        show(__doc__.strip().splitlines(), code=0)
        sys.exit(0)
    given = arguments[0] if len(arguments) == 1 else ""
    if os.path.isfile(given):  # alone: a number in its name may be a date, or a job of another cluster
        return Job("", "", "", given, "", "", "")
    run = os.path.realpath(given) if os.path.isdir(given) else ""  # logs/latest is a link
    number = os.path.splitext(os.path.basename(run))[0] if run else given
    if not re.match(r"[1-9]\d*([_+]\d+)?$", number):  # 12_3 is of an array, 12+3 of a heterogeneous job
        expected = "expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT"
        die(f"'{' '.join(arguments)}': {expected}")
    return ask_slurm(number, run)


def ask_slurm(number, asked_run):
    """Return the job that Slurm knows under this number; of an attempt that is past, or still runs, the logs alone."""
    record = answer_of("scontrol", "show", "job", number)
    if len(re.findall(r"(?m)^JobId=", record)) > 1:
        die_of_several(number, heterogeneous="HetJobOffset=" in record)
    identity = re.search(r"JobId=(\d+)", record)
    job_id = identity.group(1) if identity else number  # that of 12_3 is another number
    state, command = state_of(job_id, record)

    project = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    output = find_output(record, project, (job_id, number))
    newest_run = find_newest_run(record, project, job_id)
    hosts = re.search(r"(?m)^ *NodeList=([^(\s]+)", record)  # (null) while it waits
    hosts = hosts.group(1) if hosts else ""
    owner = owner_of(record)
    job = Job(job_id, state, command, output, find_errors(record, output), asked_run or newest_run, hosts, owner)
    if asked_run and (not job.has_ended or attempt_of(asked_run) != attempt_of(newest_run or asked_run)):
        return Job(job_id, "", "", "", "", asked_run, hosts, owner)
    if not (job.output or job.run or job.state):
        folders = " or ".join(sorted({here(), project}))
        searched = f"there is no *-{job_id}.out in {folders}"
        die(f"Slurm does not know a job {job_id}, and {searched}: name its output file")
    return job


def owner_of(record):
    """Return the name of the user whose job Slurm's record is of; '' if it is this user's, or not known."""
    owner = re.search(r"(?m)^ *UserId=(\S+)\((\d+)\)", record)
    return owner.group(1) if owner and int(owner.group(2)) != os.getuid() else ""


def state_of(job_id, record):
    """Return the state of a job, and the command that prints it."""
    state = " ".join(re.findall(r"\b(?:JobState|Reason|ExitCode)=\S+", record))
    if state:
        return state, f"scontrol show job {job_id}"
    # scontrol has forgotten the job. sacct prints a line for each job of an array.
    answer = answer_of("sacct", "-nPX", "-j", job_id, "-o", "State,ExitCode,JobID")
    rows = [line.split("|") for line in answer.splitlines() if "|" in line]
    if len(rows) > 1 and job_id.isdigit():
        die_of_several(job_id, heterogeneous="+" in rows[0][-1])
    if not rows:
        return "", ""
    return "JobState={} ExitCode={}".format(*rows[0]), f"sacct -X -j {job_id}"


def die_of_several(number, heterogeneous):
    """End with an error, as this number stands for several jobs."""
    if heterogeneous:
        die(f"job {number} is heterogeneous: name one component, as {number}+0")
    die(f"job {number} is an array: name one of its jobs, as {number}_1")


def find_output(record, project, numbers):
    """Return the output file that the record names, or one that has a number of the job in its name."""
    named = file_in(record, "StdOut")
    if named:
        return named
    patterns = [f"{glob.escape(folder)}/*-{number}.out" for folder in (here(), project) for number in numbers]
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), "")


def find_errors(record, output):
    """Return the file of --error that the record names, if it is not the output."""
    named = file_in(record, "StdErr")
    return "" if named and output and os.path.samefile(named, output) else named


def file_in(record, key):
    """Return the file that stands in a line of Slurm's record, as StdOut=FILE, if it is there."""
    named = re.search(rf"(?m)^ *{key}=(.*)", record)
    return named.group(1) if named and os.path.isfile(named.group(1)) else ""


def find_newest_run(record, project, job_id):
    """Return the folder of the job's newest attempt, which has the number of its restarts if Slurm still knows that."""
    restarts = re.search(r"\bRestarts=(\d+)", record)
    if restarts:
        return f"{project}/logs/{job_id}.{restarts.group(1)}"
    return max(glob.glob(f"{glob.escape(project)}/logs/{job_id}.*"), key=attempt_of, default="")


def attempt_of(run):
    """Return the number of the attempt that a folder logs/JOBID.ATTEMPT is of."""
    return int("0" + re.sub(r"\D", "", run.rpartition(".")[2]))


def answer_of(*command):
    """Return what a command prints to stdout, also if it fails; '' if it cannot start or takes too long."""
    try:
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(answer.stdout)


def here():
    """Return the working folder as the user calls it, which may be through a link."""
    named = os.environ.get("PWD", "")
    return named if named and os.path.isdir(named) and os.path.samefile(named, ".") else os.getcwd()


def short(path):
    """Return a path as the user would type it."""
    return path[len(here()) + 1 :] if path.startswith(here() + "/") else path


# ---- reading: lines, and who said them -------------------------------------------------------------------------------

# A line of a rank begins with its labels. A label is [HOST:RANK] or [rankRANK]: or RANK:
# [train.py:30] is none: a logger names a source file there. transformers has [WARNING|trainer.py:906] (2026-11-22).
SOURCE_FILE = r"[^] ]*(?:\||\.(?:py|cc|cpp|cu|h|hpp):)"
ONE_LABEL = re.compile(rf"\[(?!{SOURCE_FILE})[^] :]+:\d+\] ?|\[(?:default|rank)\d+\]: ?| *\d+: ")
LABEL = re.compile(f"(?:{ONE_LABEL.pattern})*")
HOST_LABEL = re.compile(r"\[([^] :]+):(\d+)\]")
LABEL_RANK = re.compile(r"(?:\[(?P<host>[^] :]+):|\[(?:default|rank)|^ *)(?P<rank>\d+)")


class Line(NamedTuple):
    """One line of an output or a log."""

    file: str  # as the user would type it
    number: int  # in what was read of the file; 0: the file is a command, which prints this line
    label: str  # as "[node2:3] "
    text: str  # without it

    @property
    def place(self):
        """Where the line stands."""
        return f"{self.file}:{self.number}" if self.number else self.file

    @property
    def quoted(self):
        """The whole line, but not more of it than fits into a report."""
        return (self.label + self.text)[:QUOTED_WIDTH]


class RankLog(NamedTuple):
    """The end of one rank's stderr.log."""

    file: str
    ended: float  # the time of its last change
    rank: int
    host: str
    depth: int  # of folders: rank.sh makes 3, torchrun and spawn.py more
    lines: list


def read_end(path, size):
    """Return the lines of a file's end, without colours."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - size))
            text = file.read(size).decode("utf-8", "surrogateescape")  # not every byte is UTF-8
    except OSError as error:
        die(f"cannot read {short(path)}: {error.strerror}")
    text = text.replace("\0", "").replace("\t", " ")
    if "\x1b" in text:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)  # colours
    return text.rstrip("\n").split("\n") if text else []


def printable(text):
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def labelled_lines(path, size, is_rank=None):
    """Return the lines of a file's end, with their labels and places."""
    name = short(path)
    lines = read_end(path, size)
    if os.path.getsize(path) > size:
        name += f" (its last {size // 1_000_000} MB)" if size > 1_000_000 else f" (its last {size // 1024} KB)"
    return [labelled(number, line, name, is_rank) for number, line in enumerate(lines, 1)]


# A progress bar of tqdm ends with times and a rate: [00:01<00:10,  4.0it/s, loss=2]
PROGRESS = re.compile(r"\[[0-9:]+(?:<[^],]*)?, *(?:\?|[0-9.]+[kMG]?)(?:it/s|s/it)[^]]*\]")


def shown(line):
    """Return what a terminal shows of a line: the last state of a progress bar, and no bar before words."""
    if "\r" in line:
        line = line.rstrip("\r").rpartition("\r")[2]
    line = printable(line[:SEARCHED_WIDTH])
    if "it/s" not in line and "s/it" not in line:
        return line
    bar_ends = max((bar.end() for bar in PROGRESS.finditer(line)), default=0)
    return line[bar_ends:] or line


def read_output(job, logs):
    """Return the lines of the newest attempt in a job's output, without an earlier report of this program."""
    is_rank = rank_test(job.hosts, logs)
    lines = labelled_lines(job.output, OUTPUT_BYTES, is_rank) if os.path.isfile(job.output) else []
    attempts = [at for at, line in enumerate(lines) if ATTEMPT_BEGINS in line.text]
    lines = without_own_report(lines[attempts[-1] :] if attempts else lines)
    if job.errors and len(attempts) < 2:  # where an attempt begins does not stand in the file of --error
        lines += labelled_lines(job.errors, OUTPUT_BYTES, is_rank)
    return lines


def rank_test(hosts, logs):
    """Return a function that tells whether a label [HOST:NUMBER] may be that of a rank of this job.

    It may also be [step:100], or the process id in Open MPI's [node1:4242]. Of an output alone nothing is known, and
    every label counts. Which ranks a host has is not asked: torchrun may number the nodes in another order.
    """
    ranks, answers = 1 + max((log.rank for log in logs), default=0), {}

    def is_rank(host, number):
        if (host, number) not in answers:
            has_log = any(same_host(log.host, host) for log in logs)
            is_host = has_log or not hosts or same_host(hosts, host)
            answers[host, number] = is_host and (not has_log or int(number) < ranks)
        return answers[host, number]

    return is_rank


def labelled(number, line, file, is_rank=None):
    """Return a line as a terminal shows it, apart from its labels: one may stand on each side of a progress bar."""
    label, words = cut_label(line, is_rank)
    after_bar = shown(words)
    if after_bar != words:
        inner_label, words = cut_label(after_bar, is_rank)
        label += inner_label
    return Line(file, number, label, words)


def cut_label(line, is_rank=None):
    """Return the label of a line, and what follows it."""
    end = LABEL.match(line).end() if line[:1] in "[ 0123456789" else 0
    for match in HOST_LABEL.finditer(line, 0, end) if is_rank else ():
        if not is_rank(*match.groups()):
            end = match.start()
            break
    return line[:end], line[end:]


def without_own_report(lines):
    """Leave out a report of this program: it would prove itself."""
    if not any(OWN_REPORT.match(line.text) for line in lines if not line.label):
        return lines
    kept, seen, inside = [], set(), False
    for line in lines:
        begins = not line.label and OWN_REPORT.match(line.text)
        inside = bool(begins) or (inside and line.quoted in seen)  # it quotes
        if not inside:
            kept.append(line)
            seen.update(quotes_of(line))
    return kept


def quotes_of(line):
    """Return a line as a report may quote it: with all its labels, or as in a rank's log, where the outer ones lack."""
    begins = [0] + [label.end() for label in ONE_LABEL.finditer(line.label)]
    return [(line.label + line.text)[begin:][:QUOTED_WIDTH] for begin in begins]


def read_rank_logs(run):
    """Return the logs of the ranks, the first one to end first."""
    found = []
    for path in glob.glob(f"{glob.escape(run)}/node*/**/stderr.log", recursive=True) if run else []:
        match = re.match(r"node(\d+)-([^/]+)/(?:.*/)?(\d+)/stderr\.log$", path[len(run) + 1 :])
        if match:
            found.append((os.path.getmtime(path), path, int(match.group(1)), match.group(2), int(match.group(3))))
    ranks_per_node = 1 + max((local_rank for *_, local_rank in found), default=0)
    logs = []
    for ended, path, node, host, local_rank in sorted(found):
        depth = path[len(run) :].count("/")
        rank = node * ranks_per_node + local_rank
        logs.append(RankLog(path, ended, rank, host, depth, labelled_lines(path, LOG_BYTES)))
    return logs


def log_lines(logs, failure):
    """Return the lines of all logs, first those of the log in which a failure stands."""
    in_order = sorted(logs, key=lambda log: failure is None or log.file != failure.file)
    return [line for log in in_order for line in log.lines]


# ---- failures: what each rank said last ------------------------------------------------------------------------------

# How a rank may fail. The order matters: of several ranks, the one whose way stands first here failed first, and the
# others follow from it. The ways below "none" are never chosen as the first failure.
WAYS = {
    "killed": "a launcher reports that signal 9 ended it",
    "crashed": "a launcher reports that another signal ended it",
    "error": "it printed an error of its own",
    "exited": "a launcher reports its exit code, and it printed no error",
    "aborted": "a launcher reports signal 6, with which many ranks end that have lost another one",
    "waited": "it printed that it waited in vain for another rank",
    "peer": "it printed that it lost another rank",
    "none": "no rank failed in one of the ways above, and those below do not tell which one failed first",
    "cut": "its traceback ends before the error",
    "silent": "it printed no error",
    "launcher": "a launcher printed a traceback of its own, after those of ranks",
}
PEER = re.compile(  # the last words of a rank that ended because of another one
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|(?:recvVector|sendBytes) failed|got 0 bytes"
    r"|remote process exited|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError"
    r"|SignalException|KeyboardInterrupt|reached monitoredBarrier, but received errors|MPI_ERR_PROC_FAILED"
)
NCCL_WATCHDOG = re.compile(r"Watchdog caught|Heartbeat monitor timed out|watchdog got stuck")
WAITED = re.compile(
    r"[Tt]imed out (?:waiting|after)|[Ww]ait timeout|client socket has timed out|failed to pass monitoredBarrier"
    "|" + NCCL_WATCHDOG.pattern
)
# Errors of several lines, of which a later one may say that another rank was lost.
OF_COMMUNICATION = re.compile(r"CCL|[Gg]loo|c10|torch\.distributed|terminate called")
OTHER_PEER = re.compile(  # the peer in these errors is no rank
    r"[a-z]*(?:requests|urllib|http)|(?:subprocess|redis|pymongo|botocore|psycopg2?|sqlalchemy|filelock|grpc|mlflow)\."
)
SOCKET_ERROR = re.compile(  # of Redis, S3, MLflow, locks, too; torch mostly says more
    r"(?:Connection(?:Reset|Refused|Aborted)|Timeout)Error\b"
)
BETWEEN_RANKS = re.compile(r'(?:File "|[│|] ).*\b(?:torch/distributed|horovod|deepspeed|mpi4py)/')
LAUNCHER_ERROR = re.compile(r"ChildFailedError|CalledProcessError")

# Python's own, and that of rich, which typer and others print: a box of │ and ─, or of | and - (rich 15.0, 2026-11-24).
TRACEBACK = re.compile(r"(?:[╭+][─-]+ )?Traceback \(most")
RICH = ("╭", "+-")
WITHIN_TRACEBACK = (" ", "Traceback", *RICH, "│", "╰", "|")  # how its lines begin, but for the last one, the error
SYNTAX_ERROR = re.compile(r'  File ".*", line \d+$')  # of the program itself: it has no "Traceback"
NATIVE = re.compile(  # compiled code says that it goes down
    r"terminate called|Fatal Python error|\*\*\* stack smashing detected|double free or corruption|corrupted size vs"
    r"|free\(\): |munmap_chunk\(\): |malloc(?:\(\)|_consolidate\(\)): "
)
BEGINNING = re.compile("|".join(pattern.pattern for pattern in (TRACEBACK, SYNTAX_ERROR, NATIVE)))
# Lines of launchers and libraries, which are no words of a rank.
LAUNCHER_NOISE = re.compile(r"\[?[WIE]\d+ |\[[WIE] \S+\.cpp:\d+\]|srun: |slurmstepd|-----|[ ]*$")
# The traceback after such a line is no failure of its own: Python tidies up, or a library goes on without something …
NO_FAILURE = re.compile(
    r"Exception ignored|Error in atexit|Retry attempt failed|Triton is not available|--- Logging error ---"
    r"|Exception in callback|exception was never retrieved|^(?:future|handle|task|protocol|transport): <"  # asyncio
)
# … or it belongs to one that has begun: a chain of exceptions, a thread that goes down too.
GOES_ON = re.compile(r"During handling of|The above exception was|Exception in thread")
CONTINUES = re.compile(r" |frame #")  # a message of several lines, the calls in compiled code
MESSAGE_LINES = 12  # at most, of an error that is no traceback, or behind one


class Failure:
    """What one rank, or the launcher of one node, left behind."""

    def __init__(self, who, rank, host, file, place, number=0):
        """Begin a failure that says nothing so far."""
        self.who, self.rank, self.host = who, rank, host
        self.file, self.place, self.number = file, place, number  # where it stands
        self.way = "silent"  # one of WAYS
        self.native = False  # compiled code said it
        self.words = []
        self.error = ""  # the line that says what is wrong, the last one of a traceback
        self.first_error = None  # which of the words is the first exception of a chain
        self.report = None  # what the launcher says of it
        self.only_reported = False  # nothing but that says that it failed

    @property
    def is_socket_error(self):
        """Tell whether a connection to a server broke, and not one to another rank."""
        return self.way == "error" and bool(SOCKET_ERROR.match(self.error))

    @property
    def spoke(self):
        """Tell whether it left an error message, or a launcher reports its end."""
        return self.way not in ("silent", "launcher")


def way_of(text, traceback=()):
    """Return how a rank failed whose error message this is, the last line of a traceback or a message without one."""
    if OTHER_PEER.match(text):
        return "error"
    if SOCKET_ERROR.match(text) and not any(BETWEEN_RANKS.search(line) for line in traceback):
        return "error"
    if PEER.search(text):
        return "peer"
    return "waited" if WAITED.search(text) else "error"


def begins_error(text):
    """Tell whether an error message begins in this line."""
    return bool(BEGINNING.match(text) or NCCL_WATCHDOG.search(text)) or ".py: error: " in text


class Speaker:
    """Follows the lines of one rank, and keeps the failures that they tell of.

    A failure begins with a traceback, or with a message of compiled code; its words are that and some lines behind it.
    A traceback that Python or a library survived, or that goes on with an earlier one, begins no failure.
    """

    def __init__(self, new_failure, logs_all=False):
        """Begin to listen; with `logs_all` a rank that tells of no failure has one that is silent."""
        self.new_failure = new_failure  # makes a Failure that begins in a line
        self.logs_all = logs_all  # it reads a rank's log, and not an output
        self.failures = [new_failure(None)] if logs_all else []
        self.last = self.failures[0] if logs_all else None  # the failure that it told of last
        self.inside = False  # a traceback
        self.is_of_rich = False  # the newest traceback is one of rich
        self.error_line = ""  # the last line of the newest traceback, as it is quoted
        self.next_traceback_belongs_here = False  # to what has begun, or to a line that announces no failure
        self.in_survived_traceback = False  # the traceback that began last is no failure
        self.message_lines_left = 0  # so many more lines may belong to the last message

    def feed(self, line):
        """Take in one more line.

        A line may end up in the words of the last failure: of a silent rank each line does, of a traceback those up to
        its error, and of a message, or behind a traceback, MESSAGE_LINES.
        """
        text = line.text
        if LAUNCHER_NOISE.match(text) and not NCCL_WATCHDOG.search(text):
            return
        if not self.inside and begins_error(text):
            self.begin(line)
        if self.last and (self.inside or self.last.way == "silent" or self.message_lines_left > 0):
            self.keep(line)
        has_begun = self.in_survived_traceback or (self.last and self.last.way != "silent")
        self.next_traceback_belongs_here = bool(NO_FAILURE.search(text) or (has_begun and GOES_ON.match(text)))
        if self.inside and not text.startswith(WITHIN_TRACEBACK):  # the traceback's last line, which is the error
            self.inside = False

    def begin(self, line):
        """A traceback, or another message that a rank ends with, begins in this line."""
        native = bool(NATIVE.match(line.text))
        self.is_of_rich = line.text.startswith(RICH)
        self.inside = bool(TRACEBACK.match(line.text) or SYNTAX_ERROR.match(line.text))
        if native and self.last and self.last.way in ("error", "waited", "peer"):
            self.message_lines_left = 0  # it goes down, and has said why
        elif self.next_traceback_belongs_here:
            self.in_survived_traceback = not (self.last and self.last.spoke)
        else:
            self.last = self.new_failure(line)
            self.failures.append(self.last)
            self.last.native = native
            self.last.error = line.text
            self.last.way = "cut" if self.inside else way_of(line.text)
            self.message_lines_left, self.in_survived_traceback = MESSAGE_LINES, False

    def keep(self, line):
        """Add a line to the words of the last failure, and see what it says of the way in which the rank failed.

        The line that ends a traceback decides, the first one if several belong together. A later line of a message may
        still say that another rank was lost.
        """
        failure, text = self.last, line.text
        failure.words.append(line.quoted)
        if not self.inside:
            self.message_lines_left -= 1
            if failure.way == "error" and OF_COMMUNICATION.search(failure.error) and way_of(text) == "peer":
                failure.way = "peer"  # a message of several lines: the first one says less
            follows_error = failure.words[-2:-1] == [self.error_line]
            if failure.way == "error" and self.is_of_rich and follows_error:  # rich breaks lines at 80 columns
                failure.way = way_of(f"{failure.error.rstrip()} {text}")
        elif not text.startswith(WITHIN_TRACEBACK):
            failure.error, self.error_line = text, line.quoted
            if self.is_of_launcher(line):
                failure.way = "launcher"
            elif failure.way == "cut":  # of a chain of exceptions the first one decides
                failure.way = way_of(text, failure.words)
            if failure.first_error is None:
                failure.first_error = len(failure.words) - 1

    def is_of_launcher(self, line):
        """Tell whether a launcher's traceback ends in this line, and not one of a rank."""
        if line.label or not LAUNCHER_ERROR.search(line.text):
            return False
        if self.logs_all and "ChildFailedError" in line.text:
            return True  # the rank of this log has started torchrun
        return any(failure.way != "silent" for failure in self.failures[:-1])  # a rank has spoken before


def failures_in_logs(logs):
    """Return the failures that the logs of the ranks tell of; a log without one is a failure that is silent."""
    failures = []
    for log in logs:
        who = f"rank {log.rank} on {log.host}"
        speaker = Speaker(
            lambda _, log=log, who=who: Failure(who, log.rank, log.host, log.file, short(log.file)), logs_all=True
        )
        for line in log.lines:
            speaker.feed(line)
        failures += speaker.failures
    return failures


def failures_in_output(output):
    """Return the failures that an output tells of, whose lines have the labels of ranks or none."""

    def new_failure(line):
        rank, host = rank_of(line.label)
        return Failure(line.label.strip(": "), rank, host, line.file, line.place, line.number)

    speakers = {}
    for line in output:
        key = line.label.rstrip(": ")
        if key in speakers or begins_error(line.text) or NO_FAILURE.search(line.text):
            speakers.setdefault(key, Speaker(new_failure)).feed(line)
    failures = [failure for speaker in speakers.values() for failure in speaker.failures]
    return sorted(failures, key=lambda failure: failure.number)


def rank_of(label):
    """Return rank and host of a label, as far as it names them."""
    rank, host = None, ""
    for match in LABEL_RANK.finditer(label):
        rank, host = int(match.group("rank")), match.group("host") or host
    return rank, host


# ---- what the launchers say of ranks that ended ----------------------------------------------------------------------

SIGNALS = {  # as srun names them
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Trace/breakpoint trap": 5,
    "Out Of Memory": 9,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Hangup": 1,
    "Terminated": 15,
    "Interrupt": 2,
}
ENDED_BY_OTHERS = (-15, -2)  # launchers and Slurm end the other ranks with signals 15 and 2
STEP_ENDED = re.compile(
    r" (?:STEP|JOB) (?P<cancelled>[0-9.+]+) ON .* CANCELLED AT "
    r"|Terminating (?:StepId=|job step )(?P<terminated>[0-9.+]+)"
)
SRUN = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>(?P<rank>\d+)\S*): (?P<end>.*)")
SPAWN = re.compile(r"launch/spawn\.py on (?P<host>\S+): rank (?P<rank>\d+) (?P<end>.*)")
MPIRUN = re.compile(r"[a-z]+ noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) (?P<end>.*)")
MPIRUN_NAME = re.compile(r" +Process name: .*,(?P<rank>\d+)\]$")
MPIRUN_CODE = re.compile(r" +Exit code: +(?P<code>\d+)$")
TORCHRUN = re.compile(r" +(?P<key>host|rank|exitcode) +: (?P<value>\S+)")  # a row of its table
NUMBER = re.compile(r"-?\d+$")
IP_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.")  # how it begins


class Report(NamedTuple):
    """A launcher says that a rank has ended, or the launcher of a node."""

    line: Line
    launcher: str
    rank: int  # srun's and mpirun's may be that of a node's launcher
    host: str  # srun may name several at once: node[9-10]
    code: int  # the exit code; or minus the signal, as torchrun has it

    @property
    def way(self):
        """How it ended, as one of WAYS."""
        return {-9: "killed", -6: "aborted"}.get(self.code, "crashed") if self.code < 0 else "exited"


def code_in(words):
    """Return the exit code that srun, spawn.py or mpirun tell of, or minus the signal; None if they tell of neither."""
    for name, number in SIGNALS.items():
        if words.startswith(name):
            return -number
    by_signal = re.search(r"signal (\d+)", words)
    code = re.search(r"exit code (\d+)", words)
    if by_signal:
        return -int(by_signal.group(1))
    if code:
        return signal_or_code(int(code.group(1)))
    return -9 if words.startswith("exited on") else None  # a signal, whose line is lost


def signal_or_code(code):
    """Return an exit code; or minus the signal, of which shells and Slurm make the exit codes from 129 to 192."""
    return 128 - code if 129 <= code <= 128 + 64 else code


def launcher_reports(output):
    """Return what launchers say of ranks that ended by themselves, in the order of the lines.

    That leaves out ranks which srun ended after the first one, and those that ended well.
    """
    unlabelled = [(at, line) for at, line in enumerate(output) if not line.label]
    found = sentence_reports(unlabelled, clean_up_reports(output))
    indented = [(at, line) for at, line in unlabelled if line.text.startswith(" ")]
    found += mpirun_message_reports(indented) + torchrun_table_reports(indented)
    reports = [report for _, report in sorted(found, key=lambda place_and_report: place_and_report[0])]
    return [report for report in reports if report.code and report.code not in ENDED_BY_OTHERS]


def sentence_reports(lines, clean_up):
    """Return the reports that are one line each, with their places: of srun, of spawn.py, of mpirun on a signal."""
    found = []
    for index, (at, line) in enumerate(lines):
        for launcher, sentence in (("srun", SRUN), ("spawn.py", SPAWN), ("mpirun", MPIRUN)):
            match = sentence.match(line.text)
            if match and at not in clean_up:
                end = match.group("end")
                following = lines[index + 1][1].text if index + 1 < len(lines) else ""
                if end == "exited on" and following.startswith("signal "):  # Open MPI 5 breaks the line
                    end += f" {following}"
                found.append((at, Report(line, launcher, int(match.group("rank")), match.group("host"), code_in(end))))
    return found


def mpirun_message_reports(lines):
    """Return mpirun's reports of exit codes, with their places: first comes a line with the rank, then the code."""
    found, name = [], None
    for at, line in lines:
        name = MPIRUN_NAME.match(line.text) or name
        code = MPIRUN_CODE.match(line.text)
        if code and name:
            code = signal_or_code(int(code.group("code")))
            found.append((at, Report(line, "mpirun", int(name.group("rank")), "", code)))
    return found


def torchrun_table_reports(lines):
    """Return the reports of torchrun's table, with their places: rows with the host, the rank and the exit code."""
    found, table = [], {}
    for at, line in lines:
        row = TORCHRUN.match(line.text)
        if row and row.group("key") == "host":
            table["host"] = row.group("value")
        elif row and NUMBER.match(row.group("value")):
            table[row.group("key")] = int(row.group("value"))
            if row.group("key") == "exitcode" and "rank" in table:
                code = signal_or_code(table["exitcode"])
                found.append((at, Report(line, "torchrun", table["rank"], table.get("host", ""), code)))
    return found


def clean_up_reports(lines):
    """Return in which lines srun or spawn.py reports a rank that srun ended, as another one of its step had failed.

    These are the reports after the end of a step. But a job may have a later step, and a report does not name its step.
    srun says that it terminates a step right after it has reported the task that failed: that report is of this step.
    """
    clean_up, ended = [], set()
    for at, line in enumerate(lines):
        end = STEP_ENDED.search(line.text)
        if end:
            step = end.group("terminated")
            is_later_step = step and ended and not {step, step.partition(".")[0]} & ended
            if is_later_step and clean_up:
                clean_up.pop()
                if clean_up and SPAWN.match(lines[clean_up[-1]].text):  # spawn.py, whose task ended as its rank did
                    clean_up.pop()
            ended.add(step or end.group("cancelled"))
        elif ended and not line.label and (SRUN.match(line.text) or SPAWN.match(line.text)):
            clean_up.append(at)
    return frozenset(clean_up)


def task_numbers(ranges):
    """Return the numbers in ranges as 0,5-6."""
    numbers = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def ranks_ended_by_srun(logs, output):
    """Return the ranks that srun ended because another one had failed, where srun started the ranks themselves."""
    if tasks_are_nodes(logs):
        return frozenset()
    tasks = set()
    for line in output:
        match = SRUN.match(line.text)
        if match and match.group("end").startswith("Terminated"):
            tasks |= task_numbers(match.group("tasks"))
    return tasks


def tasks_are_nodes(logs):
    """Tell whether a task of srun or mpirun is the launcher of a node, and no rank."""
    return any(log.depth > 3 for log in logs)


def match_report(report, failures, logs, output):
    """Give a report to the failure that it is about; a rank that said nothing gets a failure of its own.

    A task of srun or mpirun may be the launcher of a node, which ends as one of its ranks did: then the report says
    nothing new of a rank that spoke. A report of signal 9 changes how a rank failed, another signal only if the rank
    went on after its error.
    """
    per_node = tasks_are_nodes(logs)
    if report.launcher == "mpirun" and per_node and not report.host:
        return  # it ended as one of its ranks did
    if report.launcher == "srun" and any(is_of_spawn(failure.report, report.host) for failure in failures):
        return  # spawn.py has reported its rank, and ended as that did
    of_node = report.launcher in ("srun", "mpirun") and per_node
    failure = failure_on_node(report, failures) if of_node else failure_of_rank(report, failures, bool(logs))
    if failure is None:
        failure = silent_failure(report, of_node, output)
        failures.append(failure)
    failure.report = failure.report or report
    if failure.way in ("silent", "cut"):
        failure.way, failure.only_reported = report.way, True
    # A rank does not kill itself. But it may crash as it goes down with its error: the crash then proves nothing.
    elif failure.spoke and report.code < 0 and (report.way == "killed" or went_on(failure, output)):
        failure.way, failure.only_reported = report.way, True
        failure.place = report.line.place


def is_of_spawn(report, host):
    """Tell whether a report is one of spawn.py on this host."""
    return report is not None and report.launcher == "spawn.py" and same_host(host, report.host)


def went_on(failure, output):
    """Tell whether a rank printed more behind its error than belongs to that: it had survived it."""
    said = lines_of(failure.rank, failure.host, output)
    error_at = max((at for at, line in enumerate(said) if line.text == failure.error), default=len(said))
    more = 0
    for line in said[error_at + 1 :]:
        if NATIVE.match(line.text):
            break
        if not CONTINUES.match(line.text) and not LAUNCHER_NOISE.match(line.text):
            more += 1
    return more > MESSAGE_LINES


def failure_on_node(report, failures):
    """Return the failure of a rank, as the launcher of its node has ended like that rank."""
    if report.way != "exited":  # but a signal was for the launcher alone
        return None
    return last_of(failure for failure in failures if failure.spoke and same_host(report.host, failure.host))


def failure_of_rank(report, failures, has_logs):
    """Return the failure of the rank that a report names."""
    if report.launcher == "srun" and not has_logs:  # its task is a rank where it gives a label to each line
        by_label = last_of(failure for failure in failures if re.match(rf"{report.rank}(?::|$)", failure.who))
        return by_label or failure_on_node(report, failures) or unlabelled_wait(report, failures)
    return last_of(
        failure
        for failure in failures
        if failure.rank == report.rank and (not failure.host or not report.host or same_host(report.host, failure.host))
    )


def unlabelled_wait(report, failures):
    """Return the failure of ranks that waited in vain, of an output without labels, where srun reports their exit."""
    if report.code != 1:  # with which Python ends after a traceback
        return None
    return last_of(failure for failure in failures if failure.way == "waited" and not failure.who)


def places_of_ranks(run, lines, logs):
    """Return where the ranks were, and who kept the others waiting, as launch/stacks/group.py says it; [] if unknown.

    slurm/lib.sh asks the ranks when one has waited in vain, or none moves. Else they may have left something in RUN_DIR
    when they failed.
    """
    asked = f"{run}/stacks.txt"
    if run and os.path.isfile(asked):
        told = [shown(line) for line in read_end(asked, OUTPUT_BYTES)]  # below an empty line are whole stacks
    else:
        begin = next((at + 1 for at, line in enumerate(lines) if ASKED.match(line.text)), None)
        told = [line.text for line in lines[begin:]] if begin else []
    end = next((at for at, line in enumerate(told) if not PLACE.match(line) and not VERDICT.match(line)), len(told))
    told = told[:end]
    if not any(map(VERDICT.match, told)) and glob.glob(f"{glob.escape(run)}/*-rank-*"):
        reader = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "launch/stacks/group.py")
        left = answer_of(sys.executable, reader, run).splitlines()
        told += [line for line in left if VERDICT.match(line) or not told]
    return [with_host(line, logs) for line in told]


def with_host(line, logs):
    """Return a line of these with the host of a rank whose process is gone, if its log tells which."""
    gone = re.match(r"rank (\d+)(?= has |: )", line)
    host = next((log.host for log in logs if gone and log.rank == int(gone.group(1))), "")
    return line.replace(gone.group(0), f"{gone.group(0)} on {host}", 1) if host else line


def without_verdicts(places):
    """Return only where the ranks were."""
    return [line for line in places if not VERDICT.match(line)]


def last_of(failures):
    """Return the last one, or None."""
    return next(iter(list(failures)[::-1]), None)


def same_host(reported, host):
    """Tell whether a launcher names this host: it may add the domain, and srun names several as a1,node[1-2,5]."""
    names = re.findall(r"(?:\[[^]]*\]|[^,\[])+", reported)  # a comma within brackets does not end a name
    return any(names_host(name, host) for name in names)


def names_host(name, host):
    """Tell whether a name, in which [1-2,5] stands for numbers, is that of a host; both may have a domain."""
    parts = re.split(r"\[([0-9,-]+)\]", without_domain(name))
    texts, ranges = parts[::2], parts[1::2]
    match = re.match(r"(\d+)".join(re.escape(text) for text in texts) + "$", without_domain(host))
    return bool(match) and all(map(in_ranges, match.groups(), ranges))


def without_domain(name):
    """Return a host's name without its domain; an IP address has none."""
    return name if IP_ADDRESS.match(name) else name.partition(".")[0]


def in_ranges(number, ranges):
    """Tell whether a number is in ranges as 1-2,5."""
    pairs = re.findall(r"(\d+)(?:-(\d+))?", ranges)
    return any(int(low) <= int(number) <= int(high or low) for low, high in pairs)


def silent_failure(report, of_node, output):
    """Return the failure of a rank of which only the launcher speaks."""
    labels = {line.label for line in output}
    has_label = any(re.match(rf" *{report.rank}: ", label) for label in labels)
    is_rank = not of_node and (report.launcher != "srun" or has_label)
    rank = report.rank if is_rank else None
    who = []
    if is_rank:
        who.append(f"rank {rank}")
    if report.host:
        who.append(f"on {report.host}")
    failure = Failure(" ".join(who), rank, report.host, report.line.file, report.line.place)
    if report.way != "killed":  # it could say something
        failure.words = last_words(output, rank, report.host)
    return failure


def last_words(output, rank, host, most=10):
    """Return the last lines of a rank, or of a host whose rank is not known."""
    said = [line.quoted for line in lines_of(rank, host, output) if not LAUNCHER_NOISE.match(line.text)]
    return said[-most:]


def lines_of(rank, host, output):
    """Return the lines of a rank, or of a host whose rank is not known."""
    labels = {label for label in {line.label for line in output} if is_label_of(rank, host, label)}
    return [line for line in output if line.label in labels]


def is_label_of(rank, host, label):
    """Tell whether a label is that of a rank, or of a rank on a host whose rank is not known."""
    its_rank, its_host = rank_of(label)
    if rank is not None:
        return its_rank == rank
    return bool(its_host) and same_host(host, its_host)


# ---- the first failure -----------------------------------------------------------------------------------------------


class First(NamedTuple):
    """The failure that the others follow from."""

    way: str  # one of WAYS
    failed: Failure  # whose words are shown
    hung: Failure  # the rank that others waited for, or lost
    or_one_of: tuple = ()  # ranks that cannot be told from it


def first_failure(failures, logs, ended_by_srun=frozenset()):
    """Return which rank failed first, and which one the others waited for, or lost.

    Of each rank the last failure counts, as it has survived those before. The way in which a rank failed decides who
    was first (see WAYS), and among ranks that failed in the same way the order of `failures`, which is that of time.

    Where all ranks that spoke complain of another one ("waited", "peer"), that one is silent: it is `hung`, and
    `failed` is the first to complain. A rank that srun ended is silent, too, but the others did not wait for it.
    """
    last_of_rank = {}
    for failure in failures:
        if failure.way != "launcher":
            speaker = failure.who or failure.way  # lines without a label are of any rank: each way may be of another
            if speaker in last_of_rank and failure.is_socket_error and last_of_rank[speaker].way in ("waited", "peer"):
                continue  # as the rank went down, its connection to a tracker or the like broke too
            last_of_rank.pop(speaker, None)
            last_of_rank[speaker] = failure
    failures = list(last_of_rank.values())
    earliest = {failure.way: failure for failure in reversed(failures)}
    way = next(way for way in WAYS if way in earliest or way == "none")
    failed, hung, suspects = earliest.get(way), None, []
    if way in ("waited", "peer"):  # all others complain: it is the one that said nothing
        silent = [failure for failure in failures if failure.way == "silent"]
        suspects = [failure for failure in silent if failure.rank not in ended_by_srun][:1] or silent
        hung = suspects[0] if suspects else None
    if way == "waited" and not hung:
        hung = stopped_rank(failures, logs)
    if way == "peer" and hung and hung.words:  # it has an error message of its own
        failed = hung
    return First(way, failed, hung, tuple(suspects[1:]))


def stopped_rank(failures, logs):
    """Return the rank that had been stopped, if one was: it woke up to be told to end, later than all others."""
    if not logs:
        return None
    last = last_of(failure for failure in failures if failure.file == logs[-1].file)
    late = len(logs) > 1 and logs[-1].ended - logs[-2].ended > 0.5
    return last if last and (late or last.way == "peer") else None


# ---- known causes in the lines ---------------------------------------------------------------------------------------


class Hit:
    """A line that proves a cause."""

    def __init__(self, cause, line, at=0):
        """Join a row of the table and a line that matches it."""
        self.cause, self.line = cause, line
        self.at = at  # which of the lines that were searched
        self.said_by_first = False  # by the rank that failed first
        self.by_slurm = bool(SLURM_SAYS.search(line.text))
        self.by_project = cause.name == "project"
        self.by_script = self.by_project and ".sh" in line.text  # and not by a program of the project, which a rank is
        self.strong = cause.strength in (TELLS_WHY, MAY_FOLLOW)  # it is more than a sign of a rank that says nothing


def find_hits(lines, job, most=200):
    """Return the lines, also of Slurm's record of the job, that match a cause and do not stand in good runs too."""
    lines = [Line(job.record, 0, "", job.state), *lines]
    handled, errors = read_tracebacks(lines)

    def is_proof(at):
        return at not in handled and (at in errors or not HARMLESS.search(lines[at].text))

    text, starts = "\n".join(line.text for line in lines), [0]
    for line in lines:
        starts.append(starts[-1] + len(line.text) + 1)
    hits = []
    for cause in CAUSES:
        for pattern in cause.patterns:  # which never match a newline
            matches = re.finditer(pattern, text, re.MULTILINE)
            places = (bisect_right(starts, match.start()) - 1 for match in matches)
            hits += [Hit(cause, lines[at], at) for at in islice(filter(is_proof, places), most)]
    clean_up = clean_up_reports(lines)
    return [hit for hit in hits if hit.at not in clean_up or not is_clean_up(hit)]


def read_tracebacks(lines):
    """Return which lines belong to tracebacks that a library survived, and in which lines all others end.

    Speaker follows tracebacks, too, but for another question, and by other rules. It looks for the last failure of a
    rank, whose words go on behind the traceback. Here each traceback counts for itself, wherever it stands, and ends
    with its error.
    """
    handled, errors, states = set(), set(), {}
    for at, line in enumerate(lines):
        text, speaker = line.text, (line.file, line.label)
        state = states.get(speaker)
        if state in ("handled", "inside") and text.startswith(WITHIN_TRACEBACK):
            if state == "handled":
                handled.add(at)
        elif state == "handled":  # its last line
            handled.add(at)
            states[speaker] = "was handled"
        elif state == "inside":
            errors.add(at)
            states[speaker] = None
        elif TRACEBACK.match(text):
            states[speaker] = "handled" if state == "announced" else "inside"
            if state == "announced":
                handled.add(at)
        elif NO_FAILURE.search(text) or (state == "was handled" and GOES_ON.match(text)):
            states[speaker] = "announced"
        elif text:  # an empty line parts the tracebacks of a chain
            states[speaker] = None
    return handled, errors


def is_clean_up(hit):
    """Tell whether srun says here that it ended a rank."""
    return hit.cause.name in ("killed", "crashed", "unexpected signal") and hit.line.text.startswith("srun: error: ")


def mark_what_first_said(hits, first, lines):
    """Mark what the first failing rank said itself: its last words; if its way is "exited" or "peer", all it said."""
    concerned = [failure for failure in (first.failed, first.hung) if failure]
    words = {word for failure in concerned for word in failure.words}
    speakers = []  # of whom other lines count, too
    if first.way == "exited":
        speakers = concerned
    elif first.way == "peer":  # a rank that lost another one may crash as it goes down: that says nothing of the other
        speakers = [first.hung or first.failed]
    for hit in hits:
        in_last_words = not words.isdisjoint(quotes_of(hit.line))
        hit.said_by_first = in_last_words or any(is_speaker(failure, hit.line.label) for failure in speakers)
    if first.way == "exited" and not any(is_speaker(first.failed, label) for label in {line.label for line in lines}):
        for hit in hits:  # the rank has no label: what no rank said may be its own
            hit.said_by_first = hit.said_by_first or (not hit.line.label and hit.line.number > 0)


def is_speaker(failure, label):
    """Tell whether lines with this label are those of the rank, or of the node, that failed."""
    return is_label_of(failure.rank, failure.host, label)


def weigh(hits, first, has_output):
    """Return the causes, the most probable first, and hits that may matter too.

    Lines that match a cause stand in good runs as well, or follow from the failure. So how the first rank failed
    decides whose lines count. A rank that said why it failed is believed, and nothing else may matter. The less is
    known of the rank that failed first, the more lines count, in the end all.

    `has_output`: what launchers report is known. Then a rank of which they report nothing did not fail.
    """
    said_by_first_or_slurm = [hit for hit in hits if hit.said_by_first or hit.by_slurm]
    if first.way == "error":
        # The rank says why, in its own words, or Slurm or a script does: all else stands in good runs too.
        evidence = said_by_first_or_slurm + [hit for hit in hits if hit.by_script]
        return strongest(hit for hit in evidence if hit.strong) or crash_of(first), []
    if first.way == "none":
        # It is not known which rank failed: every line counts.
        return strongest(hits), []
    evidence = said_by_first_or_slurm + [
        hit for hit in hits if hit.by_project or hit.cause.name == "mpirun lost a node"
    ]
    if first.way in ("killed", "crashed", "aborted"):
        # The signal is the cause, unless Slurm, or the launcher that reports it, says what is behind it.
        report = first.failed.report.line
        causes = strongest(hit for hit in hits if hit.strong and (hit.by_slurm or hit.line == report))
        causes = causes or crash_of(first)
    elif first.way == "exited":
        # The rank printed no traceback, but may have said why: a warning of another rank does not count.
        causes = strongest(hit for hit in evidence if hit.strong)
    elif first.way == "waited":
        # That ranks waited in vain is the cause, unless they, or the one that hung, say more.
        causes = strongest(evidence) or strongest(hits)
    elif first.hung and has_output:
        # Ranks lost one that printed no error, and no launcher reports that it failed: it has returned early.
        causes = strongest(hit for hit in evidence if hit.strong) or returned_early(hits)
    else:
        # Ranks lost another one, of which nothing is known: every line counts.
        causes = strongest(hits)
    names, proofs = {hit.cause.name for hit in causes}, [hit.line for hit in causes]
    others = (hit for hit in hits if hit.strong and hit.cause.name not in names and hit.line not in proofs)
    return causes, strongest(others)


def strongest(hits):
    """Return the best three, one per cause and per line. A sign of a silent rank counts where nothing says more."""
    chosen = []
    for hit in sorted(hits, key=lambda hit: (STRENGTHS.index(hit.cause.strength), not hit.said_by_first, hit.at)):
        known = any(hit.cause is one.cause or hit.at == one.at for one in chosen)
        if not known and len(chosen) < MOST_CAUSES and (hit.strong or not chosen):
            chosen.append(hit)
    return chosen


def crash_of(first):
    """Return that a rank was killed, or crashed, if its launcher reports that."""
    report = first.failed.report
    if report is None or report.code >= 0 or (first.way == "error" and not first.failed.native):
        return []
    names = {-9: "killed", -1: "unexpected signal", -10: "unexpected signal", -12: "unexpected signal"}
    return [Hit(cause_named(names.get(report.code, "crashed")), report.line)]


def returned_early(hits):
    """Return that a rank had ended, with the line that says that another one lost it."""
    lost = [hit for hit in hits if hit.cause.strength == LOST_PEER]
    return [Hit(cause_named("returned early"), hit.line) for hit in lost[:1]]


# Causes that another start may not meet again, and why. If all causes of a run are of these, its fault is "unknown".
# Any other cause is the program's, and would end the next start too.
MAY_PASS = {
    "broken node": "slurm/preflight.sh may find the node, and leave it out",
    "driver of two versions": "slurm/preflight.sh may find the node, and leave it out",
    "busy GPU": "the other process may end",
    "port": "each attempt has another port",
    "node failure": "Slurm takes the node out of the job",
    "step launch": "Slurm may take the node out of the job",
    "daemons of mpirun": "prted has another number then, and another folder",
    "mpirun lost a node": "Slurm may take the node out of the job",
    "name or route": "the network may recover",
    "rendezvous": "a node that started slowly may have read its files",
    "waited in vain": "the rank that hung may have hung because of its node",
    "killed": "something else on the node may have taken its memory",
    "crashed": "a fault of the node's memory crashes a rank too",
    "unexpected signal": "the sender of the signal may not send it again",
    "lost another rank": "the network may recover",
}


def fault_of(first, causes, hits, logs):
    """Return whose fault it is: "node NAME"; "program", if the next start would fail too; or "unknown"."""
    names = {hit.cause.name for hit in causes}
    of_nodes = names & {"broken node", "driver of two versions"}
    hosts = {host_of(hit, first, logs) for hit in hits if hit.cause.name in of_nodes} - {""}
    if len(hosts) == 1:  # what several nodes say may be the fault of the container
        return f"node {hosts.pop()}"
    if names:
        return "unknown" if names.issubset(MAY_PASS) else "program"
    return "program" if first.way in ("error", "exited") else "unknown"


def host_of(hit, first, logs):
    """Return the host of the rank that printed the line of a hit; "" if that is not known."""
    rank, host = rank_of(hit.line.label)
    if not host:
        host = next((log.host for log in logs if hit.line.file.startswith(short(log.file))), "")
    if not host and hit.said_by_first and first.failed:
        host = first.failed.host
    # Last, as the ranks of logs are counted by their nodes, which torchrun may number in another order.
    return host or next((log.host for log in logs if log.rank == rank), "")


def write_fault(path, fault):
    """Write whose fault it is into a file."""
    try:
        with open(path, "w") as file:
            file.write(f"{fault}\n")
    except OSError as error:
        die(f"--fault={path}: {error.strerror}")


def cause_named(name):
    """Return a row of the table."""
    return next(cause for cause in CAUSES if cause.name == name)


# ---- the report ------------------------------------------------------------------------------------------------------


def cause_lines(causes, others, places=()):
    """Return the causes, each with its proof and its fix; of ranks that waited, which one they waited for, if known."""
    lines = []
    for hit in [*causes, *others]:
        line, says = hit.line, hit.cause.says or hit.line.text[:PROOF_WIDTH]
        fix = hit.cause.fix
        verdict = next(filter(VERDICT.match, places), "")
        disagree = verdict.startswith("ranks disagree")
        if verdict and (hit.cause.name in WAITS or (disagree and hit.cause.name == "different tensors")):
            says, fix = verdict, cause_named("different tensors").fix if disagree else fix
        if hit in causes:
            lines.append(f"cause: {says}")
            lines.append(f"proof: {line.place}: {(line.label + line.text)[:PROOF_WIDTH]}")
            lines.append(f"fix: {fix}")
        else:
            lines.append(f"may also matter: {says} ({line.place}: {line.quoted[:120]})")
    return lines


def failure_lines(first, causes, lines, job, places=()):
    """Return who failed first, and what that rank said last; places: where the ranks were, if that is known."""
    failed, hung, report_lines = first.failed, first.hung, []
    if not causes and first.way not in ("error", "exited"):
        state = f" ({job.state})" if job.state else ""
        says_more = lines or first.way != "none"
        report_lines.append(
            f"no cause known to doctor.py{state}; what follows may say more"
            if says_more
            else f"no cause known to doctor.py{state}; the job left neither output nor logs"
        )
    if first.way == "none":
        return report_lines + ([] if causes else [line.quoted for line in lines[-10:]])

    if places:
        report_lines += ["where each rank was:", *without_verdicts(places)]
    elif hung:
        how = "hung, or ended without a traceback" if first.way == "waited" else "ended without an error"
        if hung.words and first.way == "peer":
            how = "ended without a traceback; its last lines:"
        suspects = [f"{suspect.who} ({suspect.place})" for suspect in [hung, *first.or_one_of]]
        more = f" or one of {len(suspects) - 4} more" if len(suspects) > 4 else ""
        report_lines.append(f"first failure: {' or '.join(suspects[:4])}{more} {how}")
    if failed is not hung or places:
        report = f"; {failed.report.line.text.strip()}" if failed.only_reported else ""
        report_lines.append(
            f"{role_of(first, causes, places)}: {failed.who + ' ' if failed.who else ''}({failed.place}){report}"
        )
    if first.way == "error" and not causes:
        report_lines[-1] += ": the program failed by itself; its own words:"
    words = quoted_words(failed)
    if first.way == "exited":
        words += words_on_stdout(failed) or ([] if words else last_words(lines, failed.rank, failed.host))
        if words and not causes:
            report_lines.append(f"the program ended with exit code {failed.report.code}; its last words:")
        elif not causes:
            report_lines.append(f"the program ended with exit code {failed.report.code}, and printed nothing")
    return report_lines + words


def role_of(first, causes, places):
    """Return what the rank is whose words are shown: the first one to fail, or one that suffers from another."""
    if any(hit.cause.name == "different tensors" for hit in causes):
        return "who noticed it"
    if first.failed is first.hung or not (first.hung or places):
        return "first failure"
    if places:
        return "who complained"
    return "who waited for it" if first.way == "waited" else "who lost it"


def quoted_words(failure):
    """Return the last words of a failure, and the first exception of a chain if that is not among them."""
    words, first = failure.words[-QUOTED_LINES:], failure.first_error
    cut = first is not None and first < len(failure.words) - QUOTED_LINES
    return [failure.words[first], *words] if cut else words


def words_on_stdout(failure, most=10):
    """Return the end of what a rank printed elsewhere than where errors go: it may have said there why it ends."""
    file = re.sub(r"stderr\.log$", "stdout.log", failure.file)
    if file == failure.file or not os.path.isfile(file):
        return []
    return [shown(line)[:QUOTED_WIDTH] for line in read_end(file, LOG_BYTES)[-most:]]


def show(lines, code):
    """Print lines, with bytes that are no UTF-8 as they were read; return the exit code."""
    sys.stdout.buffer.write("".join(f"{printable(line)}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if "| head" has read enough
    sys.exit(main())
