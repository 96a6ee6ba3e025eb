#!/usr/bin/env python3
"""Says why a job failed: the cause, the line that proves it, the fix, and what the first failing rank said last.

  python3 slurm/doctor.py 123                 a job; 12_3 for one job of an array
  python3 slurm/doctor.py demo-123.out        an output file alone, also of a job that this project did not start
  python3 slurm/doctor.py logs/123.0          the rank logs of one attempt

It reads the last 20 MB of the job's output, the last 16 KB of each rank's stderr.log, and Slurm's record of the job.
Exit code: 0 if it found a cause, or the job did not fail; 1 if it knows no cause; 2 if there is nothing to read.

To teach it a cause, add a row to CAUSES. It runs on login nodes: Python 3.6, standard library only.
"""

import glob
import os
import re
import subprocess
import sys
from bisect import bisect_right
from itertools import islice
from typing import NamedTuple

OUTPUT_BYTES, LOG_BYTES = 20_000_000, 16_384  # how much of the ends is read
MOST_CAUSES = 3
QUOTED_LINES, QUOTED_WIDTH, PROOF_WIDTH = 30, 240, 300


def main():
    """Read the job, find its first failure and the known causes, print what follows from both."""
    job = find_job(sys.argv[1:])
    if "COMPLETED" in job.state:
        return show([f"job {job.id} did not fail: {job.state}"], code=0)

    output = read_output(job.output)
    logs = read_rank_logs(job.run)

    failures = failures_in_logs(logs) if logs else failures_in_output(output)
    for report in launcher_reports(output):
        attach(report, failures, logs, output)
    first = first_failure(failures, logs)

    hits = find_hits(output or log_lines(first.failed, logs), job.state)
    mark_own_hits(hits, first, output)
    causes, others = weigh(hits, first, heard_launchers=bool(output))

    report = cause_lines(causes, others, proof_file(job, first), job)
    report += failure_lines(first, causes, output, job)
    return show(report, code=0 if causes else 1)


# ---- what is known: the causes ---------------------------------------------------------------------------------------

# What a line tells, from the strongest evidence to the weakest.
TELLS_WHY = "says by itself why the run failed"
SLURM_ACTED = "what Slurm or the network did to the run, which may follow from a stronger cause"
LAST_SIGN = "all that is left of a rank that could not say why"
LOST_PEER = "a rank complains that it lost another one"
STRENGTH = (TELLS_WHY, SLURM_ACTED, LAST_SIGN, LOST_PEER)


class Cause(NamedTuple):
    """One row of the table. `says` is printed after "cause:"; empty: the line that was found says it."""

    name: str
    tells: str
    patterns: tuple  # regular expressions; one that begins with plain letters is found fastest
    says: str
    fix: str
    source: str  # where the wording was read, and when
    examples: tuple  # real lines, for the tests


CAUSES = (
    Cause(
        name="project",
        tells=TELLS_WHY,
        patterns=(
            r"launch/[a-z_]+\.(?:sh|py)(?: on \S+)?: (?!rank )\S",
            r"slurm/[a-z_]+\.(?:sh|py): \S",
            r"container/[a-z_]+\.sh: \S",
            r"env\.sh: \S",
            r"\.py: error: \S",
            r"FAULT: \S",
            r"SLOW NODE \S",
            r"WRONG DATA on \S",
            r"preflight: .*: \S",
        ),
        says="",
        fix="as that line says",
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
        name="host memory",
        tells=TELLS_WHY,
        patterns=(
            r"oom[-_]kill",
            r": Out Of Memory",
            r"OUT_OF_MEMORY",
            r"MemoryError: Unable to allocate",
            r"MemoryError$",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"DefaultCPUAllocator",
        ),
        says="the memory of a host was not enough",
        fix="ask for more with --mem (--mem=0: all of a node), or use fewer --workers and ranks per node",
        source="Slurm 22.05 and 24.11; torch 2.13; nextflow-io/nextflow #5932, lanl/PyBNF #118 (2026-11-21)",
        examples=(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory",
        ),
    ),
    Cause(
        name="GPU memory",
        tells=TELLS_WHY,
        patterns=(
            r"CUDA out of memory",
            r"HIP out of memory",
            r"XPU out of memory",
            r"CUDA error: out of memory",
            r"HIP error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"Cuda failure.*out of memory",
        ),
        says="the memory of a GPU was not enough",
        fix="a smaller batch per rank (--micro-batch keeps the global batch), or shard the model as train_fsdp.py does",
        source="torch 2.13; NVIDIA/nccl #1948 (2026-11-21)",
        examples=("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",),
    ),
    Cause(
        name="GPU driver",
        tells=TELLS_WHY,
        patterns=(
            r"on your system is too old",
            r"forward compatibility",
            r"driver version is insufficient",
            r"Driver/library version",
            r"no kernel image is",
        ),
        says="torch, driver and GPUs do not fit",
        fix="install a torch for the CUDA that nvidia-smi shows, and with these GPUs in torch.cuda.get_arch_list()",
        source="torch 2.13; vllm-project/vllm #5222 (2026-11-21)",
        examples=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ),
    ),
    Cause(
        name="no GPU",
        tells=TELLS_WHY,
        patterns=(
            r"No (?:CUDA|HIP) GPUs are available",
            r"CUDA-capable device",
            r"Found no NVIDIA",
            r"not compiled with CUDA",
            r"is only supported with GPUs",
            r"Duplicate GPU",
            r"invalid device ordinal",
        ),
        says="the ranks see no GPU, or not one each",
        fix="--gpus-per-node; --nv for a container; torch for CUDA; in the program cuda:LOCAL_RANK; no --gpus-per-task",
        source="torch 2.13; meta-llama/codellama #125, NVIDIA/nccl #861 (2026-11-22)",
        examples=(
            "RuntimeError: No CUDA GPUs are available",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
        ),
    ),
    Cause(
        name="GPU program",
        tells=TELLS_WHY,
        patterns=(r"device-side assert", r"illegal memory access"),
        says="a kernel on a GPU read or wrote where it may not",
        fix="set CUDA_LAUNCH_BLOCKING=1 to see the line; mostly an index or a label is out of range",
        source="karpathy/nanoGPT #470, huggingface/trl #2996, ymcui/Chinese-LLaMA-Alpaca-2 #376 (2026-11-22)",
        examples=(
            "RuntimeError: CUDA error: device-side assert triggered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
    ),
    Cause(
        name="broken node",
        tells=TELLS_WHY,
        patterns=(
            r"Xid \(PCI",
            r"uncorrectable (?:NVLink|ECC)",
            r"UNCORRECTABLE MEMORY",
            r"GPU is lost",
            r"fallen off the bus",
            r"determine the device handle",
        ),
        says="a GPU or a node is broken",
        fix="submit again with --exclude=NODE, and tell your site",
        source="torch 2.13; NVIDIA's driver messages (2026-11-21)",
        examples=("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",),
    ),
    Cause(
        name="disk",
        tells=TELLS_WHY,
        patterns=(
            r"Disk quota exceeded",
            r"No space left on device",
            r"Read-only file system",
            r"inline_container\.cc.* unexpected pos",
            r"PytorchStreamWriter failed writing file",
            r"basic_ios::clear: iostream error",
        ),
        says="a disk is full, over your quota, or read-only",
        fix="remove files (their number counts too), or write elsewhere: --out, TMPDIR, HF_HOME",
        source="pytorch/pytorch #156955, innnky/so-vits-svc #46, OpenROAD #7875, nmslib #502 (2026-11-22)",
        examples=(
            "OSError: [Errno 28] No space left on device",
            "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0",
            "RuntimeError: basic_ios::clear: iostream error",
        ),
    ),
    Cause(
        name="data loader",
        tells=TELLS_WHY,
        patterns=(
            r"DataLoader worker \(pid.*(?:signal: [^T]|unexpectedly)",
            r"insufficient shared memory",
            r": Bus error",
            r"Too many open files",
            r"received 0 items of ancdata",
            r"exitcode +: -7 ",
            r"rank \d+ was ended by signal 7$",
        ),
        says="too little /dev/shm, memory or open files to read data ahead",
        fix="fewer --workers (0 shows errors), or ulimit -n 65536 in env.sh",
        source="torch 2.13; pytorch/pytorch #5040 #73656 #108861 (2026-11-21)",
        examples=(
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's",
            "OSError: [Errno 24] Too many open files",
        ),
    ),
    Cause(
        name="module",
        tells=TELLS_WHY,
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
        fix="RUNTIME, VENV, MODULES (module spider) in env.sh; of pip: requirements.txt; your own: -m, or PYTHONPATH",
        source="CPython 3.6 to 3.13; Lmod; Environment Modules (2026-11-21)",
        examples=(
            "ModuleNotFoundError: No module named 'torch'",
            "/usr/bin/python3: No module named wandb",
            'Lmod has detected an error: The following module(s) are unknown: "x"',
        ),
    ),
    Cause(
        name="library",
        tells=TELLS_WHY,
        patterns=(
            r"GLIBC(?:XX)?_[0-9.]+' not found",
            r"static TLS block",
            r"cannot open shared",
            r": undefined symbol: \S",
            r"Illegal instruction",
            r"exitcode +: -4 ",
            r"rank \d+ was ended by signal 4$",
        ),
        says="a library is missing, or made for another system or processor",
        fix="build it on a compute node, use a container, or MODULES in env.sh",
        source="glibc; NVIDIA/nccl #96 (2026-11-22)",
        examples=(
            "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /a/x.so)",
            "error while loading shared libraries: libcudart.so.11.0: cannot open shared object file: No such file or",
            "srun: error: node2: task 3: Illegal instruction (core dumped)",
        ),
    ),
    Cause(
        name="process group",
        tells=TELLS_WHY,
        patterns=(r"terminate called without an active exception",),
        says="a rank ended while its process group was still at work",
        fix="look at the program: all ranks need the same number of steps, and destroy_process_group() after the last",
        source="torch 2.13, gloo: sys.exit(0) between two all_reduce() (2026-11-22)",
        examples=("terminate called without an active exception",),
    ),
    Cause(
        name="refused by Slurm",
        tells=TELLS_WHY,
        patterns=(
            r"Invalid (?:account|qos)",
            r"nvalid partition",
            r"Requested (?:node con|time li)",
            r"violates accounting",
            r"Unable to create step",
            r"More processors req",
            r"not enough slots",
        ),
        says="Slurm refuses the request",
        fix="edit the #SBATCH lines; sinfo shows queues, and sacctmgr show associations user=$USER your accounts",
        source="Slurm 22.05 and 24.11; Open MPI 4.1 (2026-11-21)",
        examples=(
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "There are not enough slots available in the system to satisfy the 4",
        ),
    ),
    Cause(
        name="container folder",
        tells=TELLS_WHY,
        patterns=(
            r"--container-mounts: source path does not exist",
            r"enroot-mount: failed to (?:re)?mount",
            r"statfs .*: no such file or directory",
            r"BIND MOUNT FAILED from",
            r"FAILED to find (?:real path for )?volume",
            r"mount source .* doesn't exist",
        ),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="BINDS in env.sh: name folders that exist on every node, and mount them where the image has that folder",
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
        tells=TELLS_WHY,
        patterns=(
            r"pyxis: failed to \S",
            r"\[ERROR\] (?:No such file|URL )",
            r"FATAL: +(?:could not open|Unable to handle|[Ww]hile )",
            r"FAILED to find requested image",
        ),
        says="the container image is not there, or does not start",
        fix="slurm/build_container.sh makes it; IMAGE in env.sh has to be a path that all nodes see",
        source="NVIDIA/pyxis #127 #168, NVIDIA/enroot #243, apptainer/singularity #5183, apptainer/apptainer #1051;"
        " NERSC/shifter shifter.c (2026-11-22)",
        examples=(
            "slurmstepd: error: pyxis: failed to import docker image",
            "FATAL:   could not open image /a/x.sif: failed to retrieve path",
        ),
    ),
    Cause(
        name="port",
        tells=TELLS_WHY,
        patterns=(r"EADDRINUSE", r"ddress already in use"),
        says="the port is taken",
        fix="submit again (the port follows from the job), do not set MASTER_PORT, and start torchrun once on a node",
        source="torch 2.13; pytorch/pytorch #73656 (2026-11-21)",
        examples=(
            "torch.distributed.DistNetworkError: port: 29713, code: -98, name: EADDRINUSE, message: address already in",
        ),
    ),
    Cause(
        name="network interface",
        tells=TELLS_WHY,
        patterns=(
            r"Unable to find address for: ",
            r"o socket interface found",
            r"connectFullMesh failed(?!.*(?:closed|reset) by)",
            r"socketStartConnect: Connect to .* failed : (?:No route to host|Software caused connection abort)",
        ),
        says="the ranks use the wrong network interface",
        fix="set NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME to an interface that all nodes have (ip -br address)",
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
        tells=SLURM_ACTED,
        patterns=(r"DUE TO TIME LIMIT", r"JobState=(?:TIMEOUT|DEADLINE)"),
        says="the walltime was over",
        fix="more --time, or --resume from what was saved; a program of your own whose rank hangs ends so too",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO TIME LIMIT ***",),
    ),
    Cause(
        name="preemption",
        tells=SLURM_ACTED,
        patterns=(r"DUE TO PREEMPTION", r"JobState=PREEMPTED"),
        says="a job of higher priority took the nodes",
        fix="submit with --requeue, save often, and --resume",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO PREEMPTION ***",),
    ),
    Cause(
        name="node failure",
        tells=SLURM_ACTED,
        patterns=(r"DUE TO NODE FAILURE", r"JobState=(?:NODE_FAIL|BOOT_FAIL)", r"error: Node failure on \S"),
        says="a node failed",
        fix="submit with --requeue, save often, and --resume; --exclude=NODE if it fails again",
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
        name="cancelled",
        tells=SLURM_ACTED,
        patterns=(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*", r"JobState=CANCELLED"),
        says="the job was cancelled",
        fix="sacct -X -o state%30 -j JOBID says by whom",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 ***",),
    ),
    Cause(
        name="output folder",
        tells=SLURM_ACTED,
        patterns=(r"ExitCode=0:53",),
        says="Slurm could not write the job's output",
        fix="ExitCode 0:53: the folder of --output has to be there, and yours, before the job starts",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
        examples=("JobState=FAILED Reason=RaisedSignal:53 ExitCode=0:53",),
    ),
    Cause(
        name="container start",
        tells=SLURM_ACTED,
        patterns=(r"pyxis: container start failed", r"pyxis: child \d+ failed with error code", r"pyxis: couldn't \S"),
        says="the container image is not there, or does not start",
        fix="the lines around the proof say why; slurm/build_container.sh makes the image, IMAGE in env.sh names it",
        source="NVIDIA/pyxis #61 and enroot.c, pyxis_slurmstepd.c (2026-11-22)",
        examples=(
            "slurmstepd: error: pyxis: container start failed with error code: 1",
            "slurmstepd: error: pyxis: child 4711 failed with error code: 1",
        ),
    ),
    Cause(
        name="download",
        tells=SLURM_ACTED,
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
        fix="download on the login node first: compute nodes often have no internet",
        source="huggingface/datasets #7197, huggingface/accelerate #2246, hiyouga/LlamaFactory #4186 (2026-11-22)",
        examples=(
            "ConnectionError: Couldn't reach 'wikitext' on the Hub (LocalEntryNotFoundError)",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        ),
    ),
    Cause(
        name="name or route",
        tells=SLURM_ACTED,
        patterns=(r"ame or service not known", r"name resolution", r"is unreachable", r"No route to host"),
        says="a host has no address, or cannot be reached",
        fix="a node: MASTER_ADDR_SUFFIX in env.sh; the internet: download on the login node first",
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
        tells=SLURM_ACTED,
        patterns=(
            r"client socket has timed out",
            r"seconds waiting for clients",
            r"Rendezvous(?:Timeout|Connection|Closed)Error",
        ),
        says="not all nodes met",
        fix="--exclude nodes that have no folder in logs/JOBID.ATTEMPT; if nodes start slowly, raise RDZV_TIMEOUT",
        source="torch 2.13; pytorch/pytorch #69197 #126510 (2026-11-21)",
        examples=(
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
        ),
    ),
    Cause(
        name="missing file",
        tells=SLURM_ACTED,
        patterns=(
            r"FileNotFoundError: \S",
            r"can't open file '",
            r"execve\(\): .*No such file",
            r": command not found",
        ),
        says="a file or command is not there",
        fix="ls -ld PATH on a compute node: the path has to be where all nodes see it",
        source="CPython 3.6 to 3.13; bash 5; Slurm 22.05 (2026-11-21)",
        examples=(
            "FileNotFoundError: [Errno 2] No such file or directory: '/local/x'",
            "slurmstepd: error: execve(): python: No such file or directory",
        ),
    ),
    Cause(
        name="permission",
        tells=SLURM_ACTED,
        patterns=(r"Permission denied",),
        says="a file or folder is not yours to read or write",
        fix="ls -ld PATH on a compute node, also of the folders above it",
        source="CPython 3.6 to 3.13 (2026-11-21)",
        examples=("PermissionError: [Errno 13] Permission denied: '/sys/x'",),
    ),
    Cause(
        name="waited in vain",
        tells=LAST_SIGN,
        patterns=(
            r"Watchdog caught collective operation timeout",
            r"Timed out waiting \d+ms for (?:send|recv) operation",
            r"Monitored barrier",
        ),
        says="ranks waited in vain for one that hung, or was busy",
        fix="see who below; if it was busy, raise --timeout (your program: init_process_group); if it had returned,"
        " correct the program: all ranks need the same number of steps",
        source="torch 2.13; hiyouga/LlamaFactory #7396 (2026-11-21)",
        examples=(
            "[rank0]:[E321 NCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,",
            "RuntimeError: Timed out waiting 8000ms for recv operation to complete",
        ),
    ),
    Cause(
        name="returned early",
        tells=LAST_SIGN,
        patterns=(r"srun: First task exited \d+s ago",),
        says="a rank ended, without an error, while others still waited for it",
        fix="look at the program: a rank that returns early, or skips a collective operation that the others call,"
        " leaves them waiting; give all ranks the same number of steps",
        source="NatLabRockies/torc #318 (2026-11-22)",
        examples=("srun: First task exited 30s ago",),
    ),
    Cause(
        name="killed",
        tells=LAST_SIGN,
        patterns=(
            r"tasks? [0-9,-]+: Killed",
            r"line \d+: +\d+ Killed",
            r"exitcode +: -9 ",
            r"exit code 137$",
            r"signal 9(?: \(|$)",
        ),
        says="a process was killed",
        fix="mostly for lack of memory: more --mem, fewer --workers, fewer ranks per node",
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
        tells=LAST_SIGN,
        patterns=(
            r"Segmentation fault",
            r"exitcode +: -11 ",
            r"exit code 139$",
            r"signal 11(?: \(|$)",
            r"tasks? [0-9,-]+: (?:Aborted|Floating point)",
            r"exitcode +: -[68] ",
            r"exit code 13[46]$",
            r"signal [68](?: \(|$)",
        ),
        says="a process crashed in compiled code",
        fix="PYTHONFAULTHANDLER=1 shows where; often packages that were built for different versions of each other",
        source="Slurm 22.05; torch 2.13; pytorch/pytorch #146118 (2026-11-22)",
        examples=(
            "srun: error: node2: task 3: Segmentation fault (core dumped)",
            "launch/spawn.py on node2: rank 3 was ended by signal 11",
        ),
    ),
    Cause(
        name="unexpected signal",
        tells=LAST_SIGN,
        patterns=(
            r"tasks? [0-9,-]+: (?:User defined signal|Hangup)",
            r"exitcode +: -(?:1|10|12) ",
            r"signal (?:1|10|12)(?: \(|$)",
        ),
        says="a signal ended a process that does not handle it",
        fix="handle SIGUSR1 in the program, or do not send it (--signal); STOP_FILE asks to end without a signal",
        source="Slurm 22.05 (2026-11-22)",
        examples=(
            "srun: error: node2: task 3: User defined signal 1",
            "launch/spawn.py on node2: rank 3 was ended by signal 10",
        ),
    ),
    Cause(
        name="lost another rank",
        tells=LOST_PEER,
        patterns=(r"ncclRemoteError", r"Connection (?:closed|reset) by peer", r"HorovodInternalError"),
        says="a rank lost another one, which left no word",
        fix="look whether a rank of the program returns early; then at the other node: sinfo -N -l, its ranks' logs",
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
    r"Address family not supported",  # c10d tries IPv6 first
    r"IPv6 network addresses of",  # c10d tries IPv6 first; antgroup/animate-x #15, OFA-Sys/OFA #307 (2026-11-22)
    r"failed to shutdown the rendezvous",
    r"exit barrier",  # pytorch/pytorch #69520
    r"recvValueWithTimeout",  # pytorch/pytorch #69520
    r"NCCL INFO",  # NVIDIA/nccl #162 and #1231: "harmless" (2026-11-22)
    r"dso_loader",  # TensorFlow looks for libraries; yekaizhou/duet #9 (2026-11-22)
    r"\bINFO\b",
    r"\bWARNING\b",
    r"Warning: ",
    r"Error caught was: ",  # xformers without triton; oobabooga/textgen #1086 (2026-11-22)
    r"\bRetrying\b|thrown while requesting|entering retry loop",  # huggingface_hub, urllib3, wandb (2026-11-22)
)
HARMLESS = re.compile("|".join(HARMLESS_LINES))
OWN_REPORT = re.compile(  # how lines of a report of this program begin
    r"(?:cause|proof|fix|may also matter|first failure|who waited for it): |no cause known to doctor"
    r"|the program ended with exit code \d+; "
)
# What Slurm or the kernel says: it counts also where a rank has spoken for itself.
SLURM_SAYS = re.compile(
    r"^(?:slurmstepd|srun|sbatch|salloc): |JobState=|oom[-_]kill|Out Of Memory|OUT_OF_ME|DUE TO [A-Z]|Xid \("
    r"|\*\*\* (?:JOB|STEP) "
)


# ---- the job: number, state, output, logs ----------------------------------------------------------------------------


class Job(NamedTuple):
    """What is to be read; each field may be empty."""

    id: str
    state: str  # as "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0"
    output: str  # a file
    run: str  # a folder logs/JOBID.ATTEMPT


def die(message):
    """End with an error of the user's."""
    print(f"slurm/doctor.py: {message}", file=sys.stderr)
    sys.exit(2)


def find_job(arguments):
    """Return the job that the command line names."""
    if arguments[:1] in (["-h"], ["--help"]):
        show(__doc__.strip().splitlines(), code=0)
        sys.exit(0)
    given = arguments[0] if len(arguments) == 1 else ""
    if os.path.isfile(given):  # alone: a number in its name may be a date, or a job of another cluster
        return Job("", "", given, "")
    run = os.path.realpath(given) if os.path.isdir(given) else ""  # logs/latest is a link
    number = os.path.splitext(os.path.basename(run))[0] if run else given
    if not re.match(r"[1-9]\d*(_\d+)?$", number):
        expected = "expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT"
        die(f"'{' '.join(arguments)}': {expected}")
    return ask_slurm(number, run)


def ask_slurm(number, run):
    """Return the job that Slurm knows under this number, with its output file and the logs of its newest attempt."""
    record = answer_of("scontrol", "show", "job", number)
    if len(re.findall(r"(?m)^JobId=", record)) > 1:
        die(f"job {number} is an array: name one of it, as {number}_1")
    identity = re.search(r"JobId=(\d+)", record)
    job = identity.group(1) if identity else number  # that of 12_3 is another number
    state = " ".join(re.findall(r"\b(?:JobState|Reason|ExitCode)=\S+", record))
    if not state:  # scontrol forgets a job after minutes
        first = answer_of("sacct", "-nPX", "-j", job, "-o", "State,ExitCode").partition("\n")[0]
        state = "JobState={} ExitCode={}".format(*first.rsplit("|", 1)) if "|" in first else ""

    project = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    output = re.search(r"(?m)^ *StdOut=(.*)", record)
    output = output.group(1) if output else ""
    if not os.path.isfile(output):
        outputs = [f"{glob.escape(folder)}/*-{name}.out" for folder in (here(), project) for name in (job, number)]
        output = next((path for pattern in outputs for path in sorted(glob.glob(pattern))), "")
    attempts = glob.glob(f"{glob.escape(project)}/logs/{job}.*")
    run = run or max(attempts, key=lambda path: int("0" + re.sub(r"\D", "", path.rpartition(".")[2])), default="")
    if not (output or run or state):
        searched = f"there is no *-{job}.out in {here()} or {project}"
        die(f"Slurm does not know a job {job}, and {searched}: name its output file")
    return Job(job, state, output, run)


def answer_of(*command):
    """Return what a command prints, or '' if it fails."""
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

# A line of a rank begins with [HOST:RANK], RANK: or [rankRANK]: or several of these.
LABEL = re.compile(r"(?:\[[^] :]+:\d+\] ?|\[(?:default|rank)\d+\]: ?| *\d+: )*")
LABEL_RANK = re.compile(r"(?:\[(?P<host>[^] :]+):|\[(?:default|rank)|^ *)(?P<rank>\d+)")


class Line(NamedTuple):
    """One line of an output or a log."""

    file: str
    number: int  # in the part of the file that was read
    label: str  # as "[node2:3] "
    text: str  # without it

    @property
    def place(self):
        """The line's file and number, as the user would type them."""
        return f"{short(self.file)}:{self.number}"

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
    """Return the lines of a file's end as a terminal would show them."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - size))
        text = file.read(size).decode("utf-8", "surrogateescape")  # not every byte is UTF-8
    text = text.replace("\0", "").replace("\t", " ")
    if "\x1b" in text:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)  # colours
    return [shown(line) for line in text.rstrip("\n").split("\n")] if text else []


def shown(line):
    """Return what a terminal shows of a line: the last state of a progress bar, and no bar before words."""
    if "\r" in line:
        line = line.rstrip("\r").rpartition("\r")[2]
    rate = max(line.rfind("it/s"), line.rfind("s/it"))
    bar_ends = line.find("]", rate) if rate >= 0 else -1
    return line[bar_ends + 1 :] or line


def read_output(path):
    """Return the lines of the newest attempt in a job's output, without an earlier report of this program."""
    if not path or not os.path.isfile(path):
        return []
    lines = [labelled(number, line, path) for number, line in enumerate(read_end(path, OUTPUT_BYTES), 1)]
    begins = [at for at, line in enumerate(lines) if " node(s), meeting at " in line.text]
    return without_own_report(lines[begins[-1] :] if begins else lines)


def labelled(number, line, file):
    """Return a line apart from its label."""
    end = LABEL.match(line).end() if line[:1] in "[ 0123456789" else 0
    return Line(file, number, line[:end], line[end:])


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
            seen.update((line.quoted, line.text[:QUOTED_WIDTH]))
    return kept


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
        lines = [labelled(number, line, path) for number, line in enumerate(read_end(path, LOG_BYTES), 1)]
        depth = path[len(run) :].count("/")
        logs.append(RankLog(path, ended, node * ranks_per_node + local_rank, host, depth, lines))
    return logs


def log_lines(failure, logs):
    """Return the lines of the log in which a failure stands."""
    return next((log.lines for log in logs if failure and log.file == failure.file), [])


# ---- failures: what each rank said last ------------------------------------------------------------------------------

# How a rank failed. Of several ranks, the one whose way stands first here failed first: the others follow from it.
WAYS = ("killed", "crashed", "error", "exited", "aborted", "waited", "peer")
PEER = re.compile(  # the last words of a rank that ended because of another one
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|(?:recvVector|sendBytes) failed|got 0 bytes"
    r"|remote process exited|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError"
    r"|SignalException|KeyboardInterrupt"
)
WAITED = re.compile(r"[Tt]imed out (?:waiting|after)|Watchdog caught|[Ww]ait timeout|client socket has timed out")
DOWNLOAD = re.compile(r"[a-z]*(?:requests|urllib|http)")  # the peer in their errors is no rank
LAUNCHER_ERROR = re.compile(r"ChildFailedError|CalledProcessError")

TRACEBACK = re.compile(r"Traceback \(most")
SYNTAX_ERROR = re.compile(r'  File ".*", line \d+$')  # of the program itself: it has no "Traceback"
NATIVE = re.compile(  # compiled code says that it goes down
    r"terminate called|Fatal Python error|\*\*\* stack smashing detected|double free or corruption|corrupted size vs"
    r"|free\(\): |munmap_chunk\(\): |malloc(?:\(\)|_consolidate\(\)): "
)
BEGINNING = re.compile("|".join(pattern.pattern for pattern in (TRACEBACK, SYNTAX_ERROR, NATIVE)))
# Lines of launchers and libraries, which are no words of a rank.
UNSAID = re.compile(r"\[?[WIE]\d+ |srun: |slurmstepd|-----|[ ]*$")
# The traceback after such a line is no failure of its own: Python tidies up, or a library goes on without something …
NO_FAILURE = re.compile(r"Exception ignored|Error in atexit|Retry attempt failed|Triton is not available")
# … or it belongs to one that has begun: a chain of exceptions, a thread that goes down too.
GOES_ON = re.compile(r"During handling of|The above exception was|Exception in thread")
MESSAGE_LINES = 12  # at most, of an error that is no traceback, or behind one


class Failure:
    """What one rank, or the launcher of one node, left behind."""

    def __init__(self, who, rank, host, file, place, number=0):
        """Begin a failure that says nothing so far."""
        self.who, self.rank, self.host = who, rank, host
        self.file, self.place, self.number = file, place, number  # where it stands
        self.way = "silent"  # or one of WAYS; cut: its traceback ends early; launcher: it is one of a launcher
        self.native = False  # compiled code said it
        self.words = []
        self.first_error = None  # which of the words is the first exception of a chain
        self.report = None  # what the launcher says of it
        self.only_reported = False  # nothing but that says that it failed

    @property
    def spoke(self):
        """Tell whether it left an error message."""
        return self.way not in ("silent", "launcher")


def way_of(text):
    """Return how a rank failed whose error message this is."""
    if PEER.search(text) and not DOWNLOAD.match(text):
        return "peer"
    return "waited" if WAITED.search(text) else "error"


def begins_error(text):
    """Tell whether an error message begins in this line."""
    return bool(BEGINNING.match(text)) or "Watchdog caught" in text or ".py: error: " in text


class Speaker:
    """Follows the lines of one rank, and keeps the failures that they tell of."""

    def __init__(self, new_failure, logs_all=False):
        """Begin to listen; with `logs_all` a rank that tells of no failure has one that is silent."""
        self.new_failure = new_failure  # makes a Failure that begins in a line
        self.failures = [new_failure(None)] if logs_all else []
        self.last = self.failures[0] if logs_all else None  # the failure that it told of last
        self.inside = False  # a traceback
        self.chained = False  # the next traceback is no failure of its own
        self.skips = False  # the last traceback was none
        self.room = 0  # for so many more lines of a message

    def hear(self, line):
        """Take in one more line."""
        text = line.text
        if UNSAID.match(text) and "Watchdog caught" not in text:
            return
        if not self.inside and begins_error(text):
            self.begin(line)
        if self.last and (self.inside or self.last.way == "silent" or self.room > 0):
            self.keep(line)
        on_its_way = self.skips or (self.last and self.last.way != "silent")
        self.chained = bool(NO_FAILURE.search(text) or (on_its_way and GOES_ON.match(text)))
        if self.inside and not text.startswith((" ", "Traceback")):  # the traceback's last line, which is the error
            self.inside = False

    def begin(self, line):
        """A traceback, or another message that a rank ends with, begins in this line."""
        native = bool(NATIVE.match(line.text))
        self.inside = bool(TRACEBACK.match(line.text) or SYNTAX_ERROR.match(line.text))
        if native and self.last and self.last.way in ("error", "waited", "peer"):
            self.room = 0  # it goes down, and has said why
        elif self.chained:
            self.skips = not (self.last and self.last.spoke)
        else:
            self.last = self.new_failure(line)
            self.failures.append(self.last)
            self.last.native = native
            self.last.way = "cut" if self.inside else way_of(line.text)
            self.room, self.skips = MESSAGE_LINES, False

    def keep(self, line):
        """Add a line to the words of the failure, and see what it means."""
        failure, text = self.last, line.text
        failure.words.append(line.quoted)
        if not self.inside:
            self.room -= 1
            if failure.way == "error" and way_of(text) == "peer":
                failure.way = "peer"
        elif not text.startswith((" ", "Traceback")):
            if not line.label and len(self.failures) > 1 and LAUNCHER_ERROR.search(text):
                failure.way = "launcher"  # a rank has spoken before
            elif failure.way == "cut":  # of a chain of exceptions the first one decides
                failure.way = way_of(text)
            if failure.first_error is None:
                failure.first_error = len(failure.words) - 1


def failures_in_logs(logs):
    """Return the failures that the logs of the ranks tell of; a log without one is a failure that is silent."""
    failures = []
    for log in logs:
        who = f"rank {log.rank} on {log.host}"
        speaker = Speaker(
            lambda _, log=log, who=who: Failure(who, log.rank, log.host, log.file, short(log.file)), logs_all=True
        )
        for line in log.lines:
            speaker.hear(line)
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
            speakers.setdefault(key, Speaker(new_failure)).hear(line)
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
    "Out Of Memory": 9,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Hangup": 1,
    "Terminated": 15,
    "Interrupt": 2,
}
TOLD = (0, None, -15, -2)  # no failure of its own: launchers and Slurm end the other ranks with signals 15 and 2
TOLD_TO_END = re.compile(r" (?:STEP|JOB) [0-9.]+ ON .* CANCELLED AT |Terminating (?:StepId|job step)")
SRUN = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: (?P<end>.*)")
SPAWN = re.compile(r"launch/spawn\.py on (?P<host>\S+): rank (?P<rank>\d+) (?P<end>.*)")
MPIRUN = re.compile(r"[a-z]+ noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) (?P<end>.*)")
MPIRUN_NAME = re.compile(r" +Process name: .*,(?P<rank>\d+)\]$")
MPIRUN_CODE = re.compile(r" +Exit code: +(?P<code>\d+)$")
TORCHRUN = re.compile(r" +(?P<key>host|rank|exitcode) +: (?P<value>\S+)")


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
    for name, signal in SIGNALS.items():
        if words.startswith(name):
            return -signal
    signal = re.search(r"signal (\d+)", words)
    code = re.search(r"exit code (\d+)", words)
    if signal:
        return -int(signal.group(1))
    if code:
        return int(code.group(1)) if int(code.group(1)) <= 128 else 128 - int(code.group(1))
    return -9 if words.startswith("exited on") else None  # Open MPI 5 breaks the line before the signal


def launcher_reports(output):
    """Return what launchers say of ranks that ended by themselves: not of those that srun ended after the first."""
    reports, told, table, name = [], False, {}, None
    for line in output:
        text = line.text
        if line.label:
            continue
        told = told or bool(TOLD_TO_END.search(text))
        for launcher, sentence in (("srun", SRUN), ("spawn.py", SPAWN), ("mpirun", MPIRUN)):
            match = sentence.match(text)
            if match and not (told and launcher != "mpirun"):
                code = code_in(match.group("end"))
                reports.append(Report(line, launcher, int(match.group("rank")), match.group("host"), code))
        if not text.startswith(" "):
            continue
        name = MPIRUN_NAME.match(text) or name  # mpirun's message and torchrun's table have several lines
        code, row = MPIRUN_CODE.match(text), TORCHRUN.match(text)
        if code and name:
            reports.append(Report(line, "mpirun", int(name.group("rank")), "", int(code.group("code"))))
        if row and row.group("key") == "exitcode" and "rank" in table:
            reports.append(Report(line, "torchrun", int(table["rank"]), table.get("host", ""), int(row.group("value"))))
        elif row:
            table[row.group("key")] = row.group("value")
    return [report for report in reports if report.code not in TOLD]


def attach(report, failures, logs, output):
    """Give a report to the failure that it is about; a rank that said nothing gets a failure of its own."""
    per_node = any(log.depth > 3 for log in logs)  # a task of srun or mpirun is then the launcher of a node
    if report.launcher == "mpirun" and per_node and not report.host:
        return  # it ended as one of its ranks did
    of_node = report.launcher in ("srun", "mpirun") and per_node
    failure = failure_on_node(report, failures) if of_node else failure_of_rank(report, failures, bool(logs))
    if failure is None:
        failure = silent_failure(report, of_node, output)
        failures.append(failure)
    failure.report = failure.report or report
    if failure.way in ("silent", "cut"):
        failure.way, failure.only_reported = report.way, True


def failure_on_node(report, failures):
    """Return the failure of a rank, as the launcher of its node has ended like that rank."""
    if report.way != "exited":  # but a signal was for the launcher alone
        return None
    return newest(failure for failure in failures if failure.spoke and same_host(report.host, failure.host))


def failure_of_rank(report, failures, has_logs):
    """Return the failure of the rank that a report names."""
    if report.launcher == "srun" and not has_logs:  # its task is a rank where it gives a label to each line
        by_label = newest(failure for failure in failures if re.match(rf"{report.rank}(?::|$)", failure.who))
        return by_label or failure_on_node(report, failures)
    return newest(
        failure
        for failure in failures
        if failure.rank == report.rank and (not failure.host or not report.host or same_host(report.host, failure.host))
    )


def newest(failures):
    """Return the last one, or None."""
    return next(iter(list(failures)[::-1]), None)


def same_host(reported, host):
    """Tell whether a launcher names this host: it may add the domain, and srun may name several, as node[9-10]."""
    pattern = re.sub(r"\\\[.*?\\\]", r"\\d+", re.escape(reported.partition(".")[0]))
    return bool(re.match(pattern + "$", host.partition(".")[0]))


def silent_failure(report, of_node, output):
    """Return the failure of a rank of which only the launcher speaks."""
    labels = {line.label for line in output}
    has_label = any(re.match(rf" *{report.rank}: ", label) for label in labels)
    is_rank = not of_node and (report.launcher != "srun" or has_label)
    rank = report.rank if is_rank else None
    who = [f"rank {rank}"] * is_rank + [f"on {report.host}"] * bool(report.host)
    failure = Failure(" ".join(who), rank, report.host, report.line.file, report.line.place)
    if report.way != "killed":  # it could say something
        failure.words = last_words(output, rank, report.host)
    return failure


def last_words(output, rank, host, most=10):
    """Return the last lines of a rank, or of a host whose rank is not known."""
    own = set()
    for label in {line.label for line in output if line.label}:
        its_rank, its_host = rank_of(label)
        if its_rank == rank if rank is not None else its_host == host:
            own.add(label)
    said = [line.quoted for line in output if line.label in own and not UNSAID.match(line.text)]
    return said[-most:]


# ---- the first failure -----------------------------------------------------------------------------------------------


class First(NamedTuple):
    """The failure that the others follow from."""

    way: str  # one of WAYS, or none
    failed: Failure  # whose words are shown
    hung: Failure  # the rank that others waited for, or lost


def first_failure(failures, logs):
    """Return which rank failed first."""
    newest_of = {failure.who: failure for failure in failures if failure.way != "launcher"}  # what each said last
    failures = [failure for failure in failures if newest_of.get(failure.who) is failure]
    earliest = {failure.way: failure for failure in reversed(failures)}
    way = next((way for way in WAYS if way in earliest), "none")
    failed, hung = earliest.get(way), None
    if way in ("waited", "peer"):  # all others complain: it is the one that said nothing
        hung = earliest.get("silent")
    if way == "waited" and not hung:
        hung = woken_rank(failures, logs)
    if way == "peer" and hung and hung.words:  # it has an error message of its own
        failed = hung
    return First(way, failed, hung)


def woken_rank(failures, logs):
    """Return the rank that had been stopped, if one was: it woke up to be told to end, later than all others."""
    if not logs:
        return None
    last = newest(failure for failure in failures if failure.file == logs[-1].file)
    late = len(logs) > 1 and logs[-1].ended - logs[-2].ended > 0.5
    return last if last and (late or last.way == "peer") else None


# ---- known causes in the lines ---------------------------------------------------------------------------------------


class Hit:
    """A line that proves a cause."""

    def __init__(self, cause, line):
        """Join a row of the table and a line that matches it."""
        self.cause, self.line = cause, line
        self.own = False  # the first failing rank said it
        self.by_slurm = bool(SLURM_SAYS.search(line.text))
        self.strong = cause.tells in (TELLS_WHY, SLURM_ACTED)  # it is more than a sign of a rank that says nothing


def find_hits(lines, state, most=200):
    """Return the lines that match a cause, and do not stand in good runs too; Slurm's record of the job is line 0."""
    lines = [Line("", 0, "", state), *lines]
    text, starts = "\n".join(line.text for line in lines), [0]
    for line in lines:
        starts.append(starts[-1] + len(line.text) + 1)
    hits = []
    for cause in CAUSES:
        for pattern in cause.patterns:  # which never match the end of a line
            for match in islice(re.finditer(pattern, text, re.MULTILINE), most):
                line = lines[bisect_right(starts, match.start()) - 1]
                if not HARMLESS.search(line.text):
                    hits.append(Hit(cause, line))
    handled = lines_of_handled_errors(lines)
    hits = [hit for hit in hits if hit.line.number not in handled]
    told = next((line.number for line in lines if TOLD_TO_END.search(line.text)), None)
    return [hit for hit in hits if told is None or hit.line.number <= told or not is_clean_up(hit)]


def lines_of_handled_errors(lines):
    """Return the numbers of the lines of tracebacks that a library printed and went on."""
    numbers, states = set(), {}
    for line in lines:
        text, state = line.text, states.get(line.label)
        if NO_FAILURE.search(text):
            states[line.label] = "inside"
        elif state == "inside":
            numbers.add(line.number)
            states[line.label] = "inside" if text.startswith((" ", "Traceback")) else "ended"
        elif state == "ended" and text:  # a chain of exceptions goes on behind an empty line
            states[line.label] = "inside" if GOES_ON.match(text) else ""
    return numbers


def is_clean_up(hit):
    """Tell whether srun says here that it ended a rank."""
    return hit.cause.name in ("killed", "crashed", "unexpected signal") and hit.line.text.startswith("srun: error: ")


def mark_own_hits(hits, first, output):
    """Mark what the first failing rank said itself."""
    concerned = [failure for failure in (first.failed, first.hung) if failure]
    words = {word for failure in concerned for word in failure.words}
    words |= {LABEL.sub("", word, count=1) for word in words}
    for hit in hits:
        in_last_words = hit.line.quoted in words or hit.line.text[:QUOTED_WIDTH] in words
        by_label = first.way in ("exited", "peer") and any(is_speaker(failure, hit.line.label) for failure in concerned)
        hit.own = in_last_words or by_label
    if first.way == "exited" and not any(is_speaker(first.failed, label) for label in {line.label for line in output}):
        for hit in hits:  # the rank has no label: what no rank said may be its own
            hit.own = hit.own or (not hit.line.label and hit.line.number > 0)


def is_speaker(failure, label):
    """Tell whether lines with this label are those of the rank, or of the node, that failed."""
    rank, host = rank_of(label)
    if failure.rank is not None:
        return rank == failure.rank
    return bool(host) and same_host(failure.host, host)


def weigh(hits, first, heard_launchers):
    """Return the causes, the most probable first, and hits that may matter too.

    A rank that failed by itself says why: its own words count, and what Slurm says. If the launcher reports that a rank
    was killed, or if ranks waited in vain, that is the cause, unless Slurm says more. Without any of these, every line
    counts.
    """
    own = [hit for hit in hits if hit.own or hit.by_slurm]
    if first.way == "error":  # beside it are warnings that stand in good runs too
        own += [hit for hit in hits if hit.cause.name == "project" and ".sh" in hit.line.text]
        return strongest(hit for hit in own if hit.strong) or crash_of(first), []
    if first.way == "none":
        return strongest(hits), []
    own += [hit for hit in hits if hit.cause.name == "project"]
    if first.way in ("killed", "crashed", "aborted"):
        causes = strongest(hit for hit in hits if hit.by_slurm and hit.strong) or crash_of(first)
    elif first.way == "exited":
        causes = strongest(hit for hit in own if hit.strong)
    elif first.way == "waited":
        causes = strongest(own) or strongest(hits)
    elif first.hung and heard_launchers:  # "peer"; and no launcher reports how the lost rank ended
        causes = strongest(hit for hit in own if hit.strong) or returned_early(hits)
    else:
        causes = strongest(hits)
    known = {hit.cause.name for hit in causes}
    return causes, strongest(hit for hit in hits if hit.strong and hit.cause.name not in known)


def strongest(hits):
    """Return the best three, one per cause and per line. A sign of a silent rank counts where nothing says more."""
    chosen = []
    for hit in sorted(hits, key=lambda hit: (STRENGTH.index(hit.cause.tells), not hit.own, hit.line.number)):
        known = any(hit.cause is one.cause or hit.line.number == one.line.number for one in chosen)
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
    lost = [hit for hit in hits if hit.cause.tells == LOST_PEER]
    return [Hit(cause_named("returned early"), hit.line) for hit in lost[:1]]


def cause_named(name):
    """Return a row of the table."""
    return next(cause for cause in CAUSES if cause.name == name)


# ---- the report ------------------------------------------------------------------------------------------------------


def proof_file(job, first):
    """Return the file that proofs stand in, as the user would type it."""
    file = job.output or (first.failed.file if first.failed else "")
    too_long = os.path.isfile(file) and os.path.getsize(file) > OUTPUT_BYTES
    return short(file) + (" (its last 20 MB)" if too_long else "")


def cause_lines(causes, others, file, job):
    """Return the causes, each with its proof and its fix."""
    lines = []
    for hit in [*causes, *others]:
        line, says = hit.line, hit.cause.says or hit.line.text[:PROOF_WIDTH]
        where = f"{file}:{line.number}" if line.number else f"scontrol show job {job.id}"
        if hit in causes:
            lines.append(f"cause: {says}")
            lines.append(f"proof: {where}: {(line.label + line.text)[:PROOF_WIDTH]}")
            lines.append(f"fix: {hit.cause.fix}")
        else:
            lines.append(f"may also matter: {says} ({where}: {line.quoted[:120]})")
    return lines


def failure_lines(first, causes, output, job):
    """Return who failed first, and what that rank said last."""
    failed, hung, lines = first.failed, first.hung, []
    if not causes and first.way not in ("error", "exited"):
        state = f" ({job.state})" if job.state else ""
        lines.append(f"no cause known to doctor.py{state}; what follows may say more")
    if first.way == "none":
        return lines + ([] if causes else [line.quoted for line in output[-10:]])

    if hung:
        how = "hung, or ended without a traceback" if first.way == "waited" else "ended without an error"
        lines.append(f"first failure: {hung.who} ({hung.place}) {how}")
    if failed is not hung:
        what = "who waited for it" if hung else "first failure"
        report = f"; {failed.report.line.text.strip()}" if failed.only_reported else ""
        lines.append(f"{what}: {failed.who + ' ' if failed.who else ''}({failed.place}){report}")
    if first.way == "error" and not causes:
        lines[-1] += ": the program failed by itself; its own words:"
    words = quoted_words(failed)
    if first.way == "exited":
        words += words_on_stdout(failed) or ([] if words else last_words(output, failed.rank, failed.host))
        if words and not causes:
            lines.append(f"the program ended with exit code {failed.report.code}; its last words:")
    return lines + words


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
    return [line[:QUOTED_WIDTH] for line in read_end(file, LOG_BYTES)[-most:]]


def show(lines, code):
    """Print lines, with bytes that are no UTF-8 as they were read; return the exit code."""
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return code


if __name__ == "__main__":
    sys.exit(main())
