"""The causes of failures that are known: data for slurm/doctor.py.

To add one, add a row to CAUSES, and an example under its name to tests/slurm/doctor_examples.py of the template.
Of two rows that match the same message, the one that stands first counts. A pattern is searched in one line, without
its label: in "[node1:0] KeyError: 'lr'" the pattern ^KeyError matches. `said_by` tells whose lines are searched.

A cause that only an optional part of the project can have stands in a file of its own, causes_NAME.py beside this one.
"""

from typing import NamedTuple

# ? set site = site_facts(cookiecutter.site)
# ? set runtime = cookiecutter.runtime
# The first evidence: Slurm's record of the job, lines of slurmstepd and srun, lines of the kernel.
SLURM = "Slurm or the kernel"
# What starts ranks: srun, sbatch, a container runtime, scripts of this project. Their lines count where no rank failed
# by itself.
STARTER = "what starts the ranks"
# The last words of the rank that failed first.
RANK = "the failing rank"


class Cause(NamedTuple):
    """One known cause. `says` is printed after "cause:"; empty: the line that was found says it."""

    name: str
    patterns: tuple  # regular expressions
    says: str
    fix: str
    source: str  # where the wording was read, and when
    said_by: str = RANK
    signals: tuple = ()  # a launcher that reports one of these signals proves it, too
    undone_by: str = ""  # a later line that matches this pattern says that all went well after all
    way: str = ""  # how the ranks ended, if said_by does not tell


CAUSES = (
    # ---- what Slurm knows --------------------------------------------------------------------------------------------
    Cause(
        name="host memory",
        said_by=SLURM,
        patterns=(
            r"^slurmstepd\S*: .*oom[-_]kill event",
            r"^srun: error: .*: Out Of Memory",
            r"^JobState=OUT_OF_MEMORY",
            r"result 'oom-kill'",
            r"(?:^| )kernel: .*(?:invoked oom-killer|oom-kill:)",
        ),
        says="the memory of a host was not enough",
        fix="Ask for more with --mem (--mem=0: all of a node), or start fewer processes that read data (num_workers).",
        source="Slurm 22.05 and 24.11; nextflow-io/nextflow #5932 (2026-11-21)",
    ),
    Cause(
        name="broken node",
        said_by=SLURM,
        patterns=(r"Xid \(PCI[^)]*\): (?!(?:13|31|43|45)\b)",),  # with these the program is at fault, or has ended
        says="a GPU or a node is broken",
        fix="Submit again with --exclude=NODE, and tell your site.",
        source="plexus.company/guides/gpu-xid-errors (2026-11-24)",
    ),
    Cause(
        name="node failure",
        said_by=SLURM,
        patterns=(r"DUE TO NODE FAILURE", r"^JobState=(?:NODE_FAIL|BOOT_FAIL)", r"^srun: error: Node failure on \S"),
        says="a node failed",
        fix="Submit with --requeue and save often. If the node fails again, submit with --exclude=NODE.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="preemption",
        said_by=SLURM,
        patterns=(r"DUE TO PREEMPTION", r"^JobState=PREEMPTED"),
        says="a job of higher priority took the nodes",
        fix="Submit with --requeue, save often, and let the program go on from what was saved.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="step waits",
        said_by=SLURM,
        patterns=(r"^srun: Job (?:\d+ )?step creation (?:temporarily|still) disabled, retrying",),
        undone_by=r"^srun: (?:Job step|Step) created",
        says="srun waited for cores, memory or GPUs of this job, which another step of it has",
        fix="End the other step (scontrol show step JOBID), or start both with --exact and a part of the job each.",
        source="fractal-analytics-platform/fractal-server #2835, llnl/smith #688 (2026-11-27)",
    ),
    Cause(
        name="time limit",
        said_by=SLURM,
        patterns=(r"DUE TO TIME LIMIT", r"^JobState=(?:TIMEOUT|DEADLINE)"),
        says="the walltime was over",
        fix="Ask for more --time, or go on from what was saved. If the output stops long before, a rank hung.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="requeued",
        said_by=SLURM,
        patterns=(r"DUE TO JOB REQUEUE",),
        says="the job was requeued: Slurm starts it again",
        fix="Wait for its next attempt. To see its attempts, run sacct -D -X -j JOBID.",
        source="Slurm 22.05 (2026-11-22)",
    ),
    Cause(
        name="cancelled",
        said_by=SLURM,
        patterns=(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*", r"^JobState=CANCELLED"),
        says="the job was cancelled",
        fix="To see who cancelled it, run sacct -X -o state%30 -j JOBID.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="output folder",
        said_by=SLURM,
        patterns=(r"^JobState=.*ExitCode=0:53",),
        says="Slurm could not write the job's output",
        fix="ExitCode 0:53: the folder of --output has to exist, and be yours, before the job starts.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="warning of a script",
        said_by=SLURM,
        patterns=(r"JobLaunchFailure ExitCode=0:1[02]\b", r"RaisedSignal:1[02]\b"),
        says="a signal that asks for saving (10 is USR1, 12 is USR2) ended the job's own script",
        fix="A script with the line --signal=B:USR1@SECONDS has to catch the signal, as by trap '' USR1.",
        source="Slurm 22.05 (2026-11-26)",
    ),
    # ---- what starts the ranks ---------------------------------------------------------------------------------------
    Cause(
        name="project",
        said_by=STARTER,
        patterns=(
            r"(?:^|[ /])(?:launch|slurm|container)/[a-z_]+\.(?:sh|py)(?: on \S+)?: (?!rank )\S",
            r"(?:^|[ /])env\.sh: (?!line )\S",
            r"^preflight: .*: \S",
            r"^\S*\.py: error: \S",
            r"(?:^|# |x )FAULT: \S",
            r"SLOW NODE \S",
            r"WRONG DATA on \S",
        ),
        says="",
        fix="Do what the cause line asks for.",
        source="messages of this project's scripts and of argparse (2026-11-23)",
    ),
    Cause(
        name="two GPU options",
        said_by=STARTER,
        patterns=(r"--gpus-per-node and --gres=gpu are mutually exclusive",),
        says="Slurm 26.05 takes --gpus-per-node or --gres=gpu, not both; srun has the first from its job",
        fix="Use the option that the #SBATCH lines have, as in srun --gpus-per-node=1.",
        source="SchedMD/slurm src/common/slurm_opt.c; Slurm 26.05.5 (2026-11-23)",
    ),
    Cause(
        name="two memory options",
        said_by=STARTER,
        patterns=(
            r"SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually",
            r"--mem, --mem-per-cpu, and --mem-per-gpu are mutually",
        ),
        says="memory is asked for per node, per core and per GPU at once; one may come from the shell that submitted",
        fix="Keep one of --mem, --mem-per-cpu, --mem-per-gpu, and unset SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU"
        " SLURM_MEM_PER_GPU before you submit from within a job.",
        source="mehta-lab/recOrder #482, snakemake/snakemake #2230, bessagroup/f3dasm #352 (2026-11-27)",
    ),
    Cause(
        name="two options for tasks",
        said_by=STARTER,
        patterns=(
            r"cpus[-_]per[-_]task set by two different environment variables",
            r"SLURM_TRES_PER_TASK is mutually exclusive with --ntasks-per-gpu",
        ),
        says="srun gets two numbers of cores or GPUs per task, one of them from the shell that submitted",
        fix="Submit from a login shell, or unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_GPU before.",
        source="FairRootGroup/DDS #490, snakemake/snakemake-executor-plugin-slurm #373 (2026-11-27)",
    ),
    Cause(
        name="cpu bind",
        said_by=STARTER,
        patterns=(r"Unable to satisfy cpu bind request", r"CPU binding outside of job step allocation"),
        says="srun shall bind tasks to cores that the step does not have",
        fix="Submit from a login shell, or unset SLURM_CPU_BIND and the like before; leave --cpu-bind out.",
        source="llnl/ATS #133, ascii-supply-networks/dagster-slurm #64 (2026-11-27)",
    ),
    Cause(
        name="refused by Slurm",
        said_by=STARTER,
        patterns=(
            r"^(?:srun|sbatch|salloc): .*Invalid (?:account|qos|generic resource)",
            r"^(?:srun|sbatch|salloc): .*(?:nvalid partition|violates accounting|Unable to create step)",
            r"^(?:srun|sbatch|salloc): .*(?:Requested (?:node con|time li)|More processors req)",
        ),
        says="Slurm refuses the request",
        fix="Edit the #SBATCH lines. Your queues: sinfo. Your accounts: sacctmgr show associations user=$USER.",
        source="Slurm 22.05 and 24.11 (2026-11-21)",
    ),
    Cause(
        name="PMIx of Slurm",
        said_by=STARTER,
        patterns=(r"can not load PMIx library", r"Invalid MPI type 'pmix"),
        says="srun cannot load the PMIx library of the node",
        fix="Start the program without --mpi=pmix: torchrun, srun and spawn need no PMIx. For MPI, ask your site.",
        source="openpmix/openpmix #3038, pyiron/executorlib #761 (2026-11-27)",
    ),
    Cause(
        name="sockets of srun",
        said_by=STARTER,
        patterns=(r"^srun: .*initialize step context.*Address already in use", r"^srun: .*step context socket.*in use"),
        says="srun found no free port for itself on this node",
        fix="Submit again. If it comes back, tell your site: SrunPortRange of slurm.conf may be too small.",
        source="the output of a user's job (2026-11-26)",
    ),
    Cause(
        name="missing program",
        said_by=STARTER,
        patterns=(r"^slurmstepd\S*: .*execve\(\): .*No such file",),
        says="a file or command is not there",
        fix="Run ls -ld PATH on a compute node: the path has to be where all nodes see it.",
        source="Slurm 22.05 (2026-11-21)",
    ),
    Cause(
        name="step launch",
        said_by=STARTER,
        patterns=(r"Task launch for \S+ failed on node", r"Application launch failed: \S"),
        says="srun could not start the program on a node",
        fix="If the proof ends with a network error, submit again with --exclude=NODE, and tell your site. Otherwise"
        " change the option that the proof names.",
        source="Slurm 22.05; aws/aws-parallelcluster #4179 (2026-11-22)",
    ),
    # ? if runtime == "pyxis" or runtime == "edf"
    Cause(
        name="folders of enroot",
        said_by=STARTER,
        patterns=(r"pyxis: .*mkdir: cannot create directory .*: Permission denied",),
        says="enroot may not make its folders on the node",
        fix="Tell your site: /etc/enroot/enroot.conf has to name folders that each user may write to.",
        source="NVIDIA/pyxis #12 #138 (2026-11-27)",
    ),
    # ? endif
    # ? if runtime not in ("venv", "none")
    Cause(
        name="container folder",
        said_by=STARTER,
        patterns=(
            # ? if runtime in ("pyxis", "edf", "enroot")
            r"--container-mounts: source path does not exist",
            r"enroot-mount: failed to (?:re)?mount",
            # ? endif
            # ? if runtime == "podman-hpc"
            r"statfs .*: no such file or directory",
            # ? endif
            # ? if runtime == "shifter"
            r"BIND MOUNT FAILED from",
            r"FAILED to find (?:real path for )?volume",
            # ? endif
            r"mount source .* doesn't exist",
        ),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="Name folders that exist on every node, and mount them where the image has them:"
        # ? if runtime == "edf"
        " in mounts of the container's .toml."
        # ? else
        " in BINDS of env.sh."
        # ? endif
        "",
        source="NVIDIA/pyxis #133; NVIDIA/enroot #36; NERSC/shifter #252 #327; containers/podman #18444 (2026-11-22)",
    ),
    Cause(
        name="container image",
        said_by=STARTER,
        patterns=(
            # ? if runtime in ("pyxis", "edf")
            r"pyxis: failed to \S",
            # ? endif
            # ? if runtime in ("pyxis", "edf", "enroot")
            r"\[ERROR\] (?:No such file|URL \S+ returned)",
            # ? endif
            # ? if runtime == "apptainer"
            r"FATAL: +(?:could not open image|Unable to handle|[Ww]hile )",
            # ? endif
            r"FAILED to find requested image",
        ),
        says="the container image is not there, or does not start",
        fix="Set IMAGE in env.sh to an image at a path that all nodes see.",
        source="NVIDIA/pyxis #127 #168, NVIDIA/enroot #243, apptainer/singularity #5183 (2026-11-22)",
    ),
    # ? endif
    # ? if runtime in ("pyxis", "edf")
    Cause(
        name="container start",
        said_by=STARTER,
        patterns=(r"pyxis: container start failed", r"pyxis: child \d+ failed with error code", r"pyxis: couldn't \S"),
        says="the container image is not there, or does not start",
        fix="Read the lines around the proof, which say why. Make the image anew, and name it in IMAGE of env.sh.",
        source="NVIDIA/pyxis #61 and enroot.c, pyxis_slurmstepd.c (2026-11-22)",
    ),
    # ? endif
    Cause(
        name="conda",
        patterns=(r"CondaError: Run 'conda init'", r"shell has not been properly configured to use 'conda activate'"),
        says="conda activate needs a shell that conda has set up, which that of a job is not",
        fix='Write eval "$(conda shell.bash hook)" before conda activate, or name the environment in VENV of env.sh instead.',
        source="conda/conda #8536, marbits-icm/marbits-public #78 (2026-11-27)",
    ),
    Cause(
        name="no command module",
        patterns=(r"(?:^|: )(?:module|ml): command not found$",),
        says="the shell has no command module",
        fix="Start the job's script with #!/bin/bash -l, or source the file that /etc/profile.d has for it.",
        source="bash 5.2, Lmod (2026-11-27)",
    ),
    Cause(
        name="module",
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
        " env.sh. Install a missing Python package. Start a module of your own with -m, or add its folder to"
        " PYTHONPATH.",
        source="CPython 3.6 to 3.13; Lmod; Environment Modules (2026-11-21)",
    ),
    # ---- what the failing rank says ----------------------------------------------------------------------------------
    Cause(
        name="locked memory",
        patterns=(r"ibv_\S*reg_mr.* failed.* Cannot allocate memory",),
        says="the limit of locked memory is too low for the network",
        fix="Put ulimit -l unlimited into env.sh. If a node refuses that, ask your site to raise the limit of jobs.",
        source="NVIDIA/nccl-tests #206; openucx/ucx #6264 #2712 (2026-11-22)",
    ),
    Cause(
        name="threads",
        patterns=(
            r"can't start new thread",
            r"pthread_create.*Resource temporarily unavailable",
            r"OpenBLAS blas_thread_init: ",
            r"fork: (?:retry: )?Resource temporarily unavailable",
            r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        ),
        says="a limit of threads and processes of the node or of the user is reached",
        fix="Set OMP_NUM_THREADS, and let the program start fewer processes that read data. ulimit -u shows the limit.",
        source="OpenMathLib/OpenBLAS #1668, MIC-DKFZ/nnUNet #1343, CFIA-NCFAD/nf-flu #105 (2026-11-27)",
    ),
    Cause(
        name="process memory",
        patterns=(
            r"MemoryError: Unable to allocate",
            r"^MemoryError(?:$|: )",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"DefaultCPUAllocator",
        ),
        says="the memory of a host was not enough",
        fix="Ask for more with --mem (--mem=0: all of a node), or start fewer processes that read data (num_workers).",
        source="torch 2.13; CPython; lanl/PyBNF #118 (2026-11-21)",
    ),
    Cause(
        name="GPU memory",
        patterns=(
            r"(?:CUDA|HIP|XPU) out of memory\. ",
            r"(?:CUDA|HIP) error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"Cuda failure.*out of memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"CUDA driver error: out of memory",
            r"Triton Error \[CUDA\]: out of memory",
        ),
        says="the memory of a GPU was not enough",
        fix="Use a smaller batch per GPU (and accumulate gradients to keep the global batch), or shard the model with"
        " FSDP.",
        source="torch 2.13, ATen/cuda/Exceptions.h; NVIDIA/nccl #1948; CUDA's driver API (2026-11-22)",
    ),
    Cause(
        name="GPU driver",
        patterns=(
            r"on your system is too old",
            r"forward compatibility was attempted",
            r"driver version is insufficient",
            r"no kernel image is",
        ),
        says="this torch does not support this GPU driver or GPU",
        fix="Install a torch for the CUDA that nvidia-smi shows, with these GPUs in torch.cuda.get_arch_list().",
        source="torch 2.13; vllm-project/vllm #5222 (2026-11-21)",
    ),
    Cause(
        name="busy GPU",
        patterns=(r"CUDA-capable device.* busy or unavailable",),
        says="another process uses the GPU alone, or the GPU does not answer",
        fix="Use the device cuda:LOCAL_RANK in the program, so that each rank has a GPU of its own. If that does"
        " not help, submit with --exclude=NODE, and tell your site.",
        source="NVIDIA/DIGITS #2005, facebookresearch/detectron2 #2580, ggml-org/llama.cpp #11841 (2026-11-22)",
    ),
    Cause(
        name="no GPU",
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
        fix="Ask for --gpus-per-node and not --gpus-per-task, install a torch for CUDA, and use the device"
        " cuda:LOCAL_RANK in the program."
        # ? if runtime == "apptainer"
        " Start Apptainer with --nv."
        # ? endif
        "",
        source="torch 2.13; meta-llama/codellama #125, NVIDIA/nccl #861 (2026-11-22)",
    ),
    Cause(
        name="GPU hardware",
        patterns=(
            r"uncorrectable (?:NVLink|ECC) error\b",
            r"UNCORRECTABLE MEMORY",
            r"GPU is lost",
            r"fallen off the bus",
            r"determine the device handle",
            r"system not yet initialized",  # NVIDIA's fabric manager does not run
        ),
        says="a GPU or a node is broken",
        fix="Submit again with --exclude=NODE, and tell your site.",
        source="torch 2.13; NVIDIA's driver messages; pytorch/pytorch #35710 (2026-11-22)",
    ),
    Cause(
        name="driver of two versions",
        patterns=(r"river/library version mismatch",),
        says="a node's GPU driver was updated, and the old one is still loaded",
        fix="Submit again with --exclude=NODE, and ask your site to restart the node. If all nodes say so, the"
        " container or LD_LIBRARY_PATH may have a libcuda or libnvidia-ml of its own.",
        source="oddmario/NVIDIA-Ubuntu-Driver-Guide #4, NVIDIA/nvidia-container-toolkit #394 (2026-11-24)",
    ),
    Cause(
        name="GPU program",
        # Each CUDA error ends with "Compile with TORCH_USE_CUDA_DSA to enable device-side assertions."
        patterns=(r"device-side assert triggered", r"illegal memory access was encountered"),
        says="a kernel on a GPU read or wrote where it may not",
        fix="Set CUDA_LAUNCH_BLOCKING=1 to see the line. Mostly an index or a label is out of range.",
        source="karpathy/nanoGPT #470, huggingface/trl #2996, ymcui/Chinese-LLaMA-Alpaca-2 #376 (2026-11-22)",
    ),
    Cause(
        name="shared memory",
        patterns=(
            r"unable to (?:write to|open|allocate shared memory\(shm\) for) file </torch_",
            r"failed to extend /dev/shm/nccl-",
            r"Error while creating shared memory segment",
            r"posix_fallocate failed : No space left",
            r"insufficient shared memory",
        ),
        says="/dev/shm is full, or too small",
        fix="Let the program start fewer processes that read data (num_workers of DataLoader). On the node, df -h"
        " /dev/shm shows whether it is full, and ls -l /dev/shm what other jobs left there. If a container has a"
        " /dev/shm of its own, make that larger.",
        source="torch 2.13; idiap/ESLAM #20, MIC-DKFZ/nnUNet #2162; NVIDIA/nccl #290 #525 (2026-11-27)",
    ),
    Cause(
        name="compiler cache",
        patterns=(
            r"(?:[Ss]tale file handle|[Rr]esource busy|No such file or directory|No locks available).*triton",
            r"triton.*(?:[Ss]tale file handle|[Rr]esource busy|No locks available)",
            r"No such file or directory: '[^']*(?:torchinductor_|\.(?:hsaco|cubin|ttir|ttgir|llir)\b)",
        ),
        says="ranks wrote the cache of compiled kernels at the same time, on a file system that all nodes share",
        fix="Write export TRITON_CACHE_DIR=/tmp/triton-$USER TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$USER into env.sh.",
        source="pytorch/pytorch #173679, pytorch/torchtitan #2146, triton-lang/triton #2688 #11512 (2026-11-27)",
    ),
    Cause(
        name="compiler",
        patterns=(r"Failed to find C compiler", r"Python\.h: No such file or directory"),
        says="torch.compile and Triton build code when the program starts, and the node has no compiler or no Python.h",
        fix="Name a module with gcc in MODULES of env.sh, or set CC. Python.h comes with the package python3-dev, or"
        " with a Python of conda or uv.",
        source="apple/ml-cross-entropy #5, MIC-DKFZ/nnUNet #2268 (2026-11-27)",
    ),
    Cause(
        name="file locks",
        patterns=(r"No locks available",),
        says="the file system has no locks",
        fix="Keep the cache on another file system, as by HF_HOME in env.sh, or set HF_DATASETS_USE_SOFT_FILELOCK=1"
        " for datasets.",
        source="huggingface/datasets #2618 #8638, DataBiosphere/toil #4846 (2026-11-27)",
    ),
    Cause(
        name="file system",
        patterns=(r"[Ss]tale file handle", r"Input/output error", r"Transport endpoint is not connected"),
        says="the file system did not answer as it should: the node may have lost it, or another job removed the file",
        fix="Submit again. If one node fails again, submit with --exclude=NODE, and tell your site.",
        source="databricks/megablocks #106; outputs of users' jobs (2026-11-27)",
    ),
    Cause(
        name="disk",
        patterns=(
            r"Disk quota exceeded",
            r"No space left on device",
            r"Read-only file system",
            r"inline_container\.cc.* unexpected pos",
            r"PytorchStreamWriter failed writing file",
            r"basic_ios::clear: iostream error",
        ),
        says="a disk is full, over your quota, or read-only",
        fix="To make room, remove files (quotas also limit their number), or write elsewhere: TMPDIR, HF_HOME, and"
        " where the program saves.",
        source="pytorch/pytorch #156955, innnky/so-vits-svc #46, OpenROAD #7875, nmslib #502 (2026-11-22)",
    ),
    Cause(
        name="data loader crash",
        patterns=(
            r"DataLoader worker \(pid.*signal: (?:Segmentation|Aborted|Floating)",
            r"Unexpected (?:segmentation fault|floating-point exception) encountered in worker",
        ),
        says="a worker that reads data crashed in compiled code",
        fix="Use num_workers=0 of DataLoader with PYTHONFAULTHANDLER=1: then the rank itself reads, and Python shows"
        " where it crashes.",
        source="torch 2.13; harshatejas/pytorch_custom_object_detection #1, STVIR/pysot #140 (2026-11-22)",
    ),
    Cause(
        name="data loader",
        signals=(7,),
        patterns=(
            r"DataLoader worker \(pid.*(?:signal: (?:Bus|Killed)|unexpectedly)",
            r": Bus error",
            r"Too many open files",
            r"received 0 items of ancdata",
        ),
        says="too little /dev/shm, memory or open files to read data ahead (DataLoader)",
        fix="Use a smaller num_workers of DataLoader (with 0 the rank itself reads, and shows errors), or put"
        " ulimit -n 65536 into env.sh.",
        source="torch 2.13; pytorch/pytorch #5040 #73656 #108861 (2026-11-21)",
    ),
    Cause(
        name="MPI without PMI",
        patterns=(r"OMPI was not built with SLURM's PMI support", r"PMI2_Init failed", r"PMIX? .*not.*initialized"),
        says="the program calls MPI itself, as with mpi4py, and mpirun did not start it",
        fix="Ask your site how its MPI starts: srun --mpi=list shows what Slurm has."
        # ? if "mpirun-ranks" in site.launchers
        " Or use LAUNCHER=mpirun-ranks."
        # ? endif
        "",
        source="Open MPI 4.1, mpi4py 4.1 (2026-11-26)",
    ),
    Cause(
        name="library",
        signals=(4,),
        patterns=(
            r"GLIBC(?:XX)?_[0-9.]+' not found",
            r"CXXABI_[0-9.]+' not found",
            r"static TLS block",
            r"cannot open shared",
            r": undefined symbol: \S",
            r"Illegal instruction",
        ),
        says="a library is missing, or made for another system or processor",
        fix="Build the library on a compute node, use a container, or name its module in MODULES of env.sh.",
        source="glibc; NVIDIA/nccl #96 (2026-11-22)",
    ),
    Cause(
        name="process group",
        patterns=(r"terminate called without an active exception",),
        says="a rank ended while its process group was still at work",
        fix="First look at the program: all ranks need the same number of steps, then destroy_process_group().",
        source="torch 2.13, gloo: sys.exit(0) between two all_reduce() (2026-11-22)",
    ),
    Cause(
        name="different tensors",
        patterns=(r"Received data size doesn't", r"Is there a distributed collective mismatch"),
        says="ranks called different collectives at the same time, or with tensors of different shapes or types",
        fix="Let all ranks call the same collectives, in the same order, with tensors of the same shape and type.",
        source="torch 2.13, gloo: all_reduce of 1024 and of 7 numbers (2026-11-23)",
    ),
    Cause(
        name="port",
        patterns=(r"EADDRINUSE", r"ddress already in use"),
        says="the port is taken",
        fix="To get another port, submit again. Do not set MASTER_PORT, and start torchrun once on a node.",
        source="torch 2.13; pytorch/pytorch #73656 (2026-11-21)",
    ),
    Cause(
        name="gloo was refused",
        patterns=(r"gloo.*connect .*: Connection refused", r"[Gg]loo connectFullMesh failed.*Connection refused"),
        says="gloo found no rank at an address: a rank had ended, or the program made its process group a second time",
        fix="Let the program call init_process_group once. With hydra -m, start a job for each run instead.",
        source="pytorch/pytorch #108732; hydra 1.3 with -m (2026-11-27)",
    ),
    Cause(
        name="network interface",
        patterns=(
            r"Unable to find address for: ",
            r"o socket interface found",
            r"connectFullMesh failed(?!.*(?:closed|reset) by)",
            r"socketStartConnect: Connect to .* failed : (?:No route to host|Software caused connection abort)",
        ),
        says="the ranks use the wrong network interface",
        fix="Set NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME to an interface of all nodes (ip -br address lists them).",
        source="torch 2.13; sgl-project/sglang #3226 #5594; NVIDIA/nccl #975 #1515, nccl-tests #166 (2026-11-22)",
    ),
    Cause(
        name="certificate",
        patterns=(r"CERTIFICATE_VERIFY_FAILED",),
        says="the certificate of a host on the internet cannot be verified: mostly a proxy of the site stands between",
        fix="Ask your site for the certificate of its proxy, and name its file in SSL_CERT_FILE and REQUESTS_CA_BUNDLE"
        " in env.sh. Or download on a login node first.",
        source="huggingface/transformers #17611 #25552, open-webui/open-webui #3168 (2026-11-27)",
    ),
    Cause(
        name="download",
        patterns=(
            r"Max retries exceeded with url",
            r"onnect to 'http",
            r"Couldn't reach .* on the Hub",
            r"LocalEntryNotFoundError: ",
            r"urlopen error",
            r"requests\.exceptions\.Conn",
            r"Could not resolve host",
        ),
        says="a host on the internet cannot be reached",
        fix="Download on a login node first, as compute nodes often have no internet.",
        source="huggingface/datasets #7197, huggingface/accelerate #2246, hiyouga/LlamaFactory #4186 (2026-11-22)",
    ),
    Cause(
        name="name or route",
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
    ),
    Cause(
        name="rendezvous",
        patterns=(
            r"client socket has timed out",
            r"seconds waiting for clients",
            r"Rendezvous(?:Timeout|Connection|Closed)Error",
        ),
        says="not all nodes joined the rendezvous in time, or its address cannot be reached",
        fix="If nodes start slowly, raise RDZV_TIMEOUT. --exclude nodes without a folder in logs/JOBID.ATTEMPT.",
        source="torch 2.13; pytorch/pytorch #69197 #126510 (2026-11-21)",
    ),
    Cause(
        name="missing file",
        patterns=(
            r"FileNotFoundError: \S",
            r"can't open file '",
            r": command not found",
        ),
        says="a file or command is not there",
        fix="Run ls -ld PATH on a compute node: the path has to be where all nodes see it.",
        source="CPython 3.6 to 3.13; bash 5; Slurm 22.05 (2026-11-21)",
    ),
    Cause(
        name="permission",
        patterns=(r"Permission denied(?! \((?:publickey|gssapi|password|keyboard|hostbased))",),  # which ssh says
        says="a file or folder is not yours to read or write",
        fix="Run ls -ld PATH on a compute node, also for the folders above it.",
        source="CPython 3.6 to 3.13 (2026-11-21)",
    ),
    # ---- how ranks ended, where nothing else is known ----------------------------------------------------------------
    Cause(
        name="network retries",
        patterns=(r"Transport retry count exceeded", r"UCX .*Endpoint timeout"),
        says="the network gave up sending to another node, which had ended, or has a bad cable or adapter",
        fix="Look at the other node's ranks first. If none had ended, submit with --exclude=NODE, and tell your site.",
        source="openucx/ucx #5199 #6669 #9590 (2026-11-27)",
    ),
    Cause(
        name="waited in vain",
        patterns=(
            r"Watchdog caught collective operation timeout",
            r"Heartbeat monitor timed out",
            r"watchdog got stuck for \d+ seconds",
            r"failed to pass monitoredBarrier",
            r"Timed out waiting \d+ms for (?:send|recv) operation",
            r"Monitored barrier",
            r"[Ww]ait timeout after \d+ms, keys",
        ),
        says="ranks waited in vain for one that hung, or was busy",
        fix="If the rank was stuck, see where. If it was slow, raise timeout of init_process_group. If it had returned,"
        " correct the program: all ranks need the same number of steps.",
        source="torch 2.13; hiyouga/LlamaFactory #7396 #8549, xdit-project/xDiT #147 (2026-11-22)",
    ),
    Cause(
        name="returned early",
        patterns=(r"srun: First task exited \d+s ago",),
        said_by=STARTER,
        says="a rank ended, without an error, while others still waited for it",
        fix="First look at the program: a rank that returns early, or skips a collective operation that the others"
        " call, leaves them waiting. Give all ranks the same number of steps.",
        source="NatLabRockies/torc #318 (2026-11-22)",
    ),
    Cause(
        name="lost another rank",
        patterns=(
            r"ncclRemoteError",
            r"Connection (?:closed|reset) by peer",
            r"Connection refused",
            r"HorovodInternalError",
        ),
        says="a rank lost another one that printed no error",
        fix="See whether a rank returns early, then look at the other node: the logs of its ranks, sinfo -N -l.",
        source="torch 2.13; NVIDIA/nccl #1948; horovod/horovod #1364 (2026-11-22)",
    ),
    Cause(
        name="killed",
        signals=(9,),
        patterns=(r"line \d+: +\d+ Killed",),
        said_by=STARTER,
        says="a process was killed",
        fix="Mostly memory was lacking: ask for more --mem, or let the program start fewer processes that read data.",
        source="Slurm 22.05; torch 2.13; hpcaitech/ColossalAI #3514 (2026-11-22)",
    ),
    Cause(
        name="crashed",
        signals=(11, 6, 8, 5),
        patterns=(r"Segmentation fault",),
        says="a process crashed in compiled code",
        fix="Set PYTHONFAULTHANDLER=1 to see where. Often packages were built for different versions of each other.",
        source="Slurm 22.05; torch 2.13; pytorch/pytorch #146118 (2026-11-22)",
    ),
    Cause(
        name="unexpected signal",
        signals=(1, 10, 12),
        patterns=(),
        says="a signal ended a process that does not handle it",
        fix="Handle SIGUSR1 in the program, or do not send it (--signal). STOP_FILE asks to end without a signal.",
        source="Slurm 22.05 (2026-11-22)",
    ),
)
