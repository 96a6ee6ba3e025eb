"""The causes of failures that are known: data for slurm/doctor.py.

To add one, add a row here, most likely to BY_RANK. In the template's repository, add an example to doctor_examples.py
under the row's name, too. A pattern is searched in one line, without the label of a rank: in "[node1:0] KeyError: 'lr'"
the pattern ^KeyError matches. Of two rows that match the same message, the first counts. Some patterns lack the first
letter of a message, which is written in both cases. A fix says "the proof" for the line that matched, which the report
prints.

A cause that needs a container runtime stands in a file of its own, causes_NAME.py beside this one. One that only an
extra can have stands in extras/NAME/causes.py. A project without that part does not have the file.
"""

from typing import NamedTuple


class Cause(NamedTuple):
    """One known cause."""

    name: str
    patterns: tuple  # regular expressions
    says: str  # is printed after "cause:"; empty: the line that was found says it
    fix: str
    source: str  # whose words the patterns are
    signals: tuple = ()  # a launcher that reports one of these signals proves it, too
    waiting: bool = False  # ranks waited for another one. If stacks.txt says where each was, the report prints that


# A row of two tables, BY_SLURM and BY_RANK.
HOST_MEMORY = Cause(
    name="host memory",
    patterns=(
        r"^slurmstepd\S*: .*oom[-_]kill event",
        r"^JobState=OUT_OF_MEMORY",
        r"MemoryError: Unable to allocate",
        r"^MemoryError(?:$|: )",
        r"std::bad_alloc",
        r"Cannot allocate memory",
        r"DefaultCPUAllocator",
    ),
    says="the memory of a host was not enough",
    fix="Ask for more with --mem (--mem=0: all of a node), or start fewer processes that read data (num_workers).",
    source="Slurm, CPython, torch",
)

# Searched first: in Slurm's record of the job, and in lines of Slurm in its output.
BY_SLURM = (
    HOST_MEMORY,
    Cause(
        name="node failure",
        patterns=(r"DUE TO NODE FAILURE", r"^JobState=(?:NODE_FAIL|BOOT_FAIL)", r"^srun: error: Node failure on \S"),
        says="a node failed",
        fix="Submit with --requeue and save often. If the node fails again, submit with --exclude=NODE.",
        source="Slurm",
    ),
    Cause(
        name="preemption",
        patterns=(r"DUE TO PREEMPTION", r"^JobState=PREEMPTED"),
        says="a job of higher priority took the nodes",
        fix="Submit with --requeue, save often, and let the program go on from what was saved.",
        source="Slurm",
    ),
    Cause(
        name="time limit",
        patterns=(r"DUE TO TIME LIMIT", r"^JobState=(?:TIMEOUT|DEADLINE)"),
        says="the walltime was over",
        fix="Ask for more --time, or go on from what was saved. If the output stops long before, a rank hung.",
        source="Slurm",
    ),
    Cause(
        name="cancelled",
        patterns=(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (?:DUE TO JOB REQUEUE )?\*\*\*", r"^JobState=CANCELLED"),
        says="the job was cancelled or requeued",
        fix="To see who cancelled it, and whether Slurm starts it again, run sacct -D -X -o jobid,state%30 -j JOBID.",
        source="Slurm",
    ),
    Cause(
        name="output folder",
        patterns=(r"^JobState=.*ExitCode=0:53",),
        says="Slurm could not write the job's output",
        fix="ExitCode 0:53: the folder of --output has to exist, and be yours, before the job starts.",
        source="Slurm",
    ),
)

# What starts the ranks has printed it: srun, sbatch, a container runtime, a script of this project. Searched if no rank
# failed by itself, in lines without the label of a rank.
BY_STARTER = (
    Cause(
        name="project",
        patterns=(
            r"(?:^|[ /])(?:launch|slurm|container)/[a-z_]+\.(?:sh|py)(?: on \S+)?: (?!rank )\S",
            r"(?:^|[ /])env\.sh: (?!line )\S",
            r"^preflight: .*: \S",
            r"^\S*\.py: error: \S",
            r"(?:^|# |x )FAULT: \S",
            r"WRONG DATA on \S",
        ),
        says="",
        fix="Do what the cause line asks for.",
        source="this project, argparse",
    ),
    Cause(
        name="inherited options",
        patterns=(
            r"^(?:srun|sbatch|salloc): .*(?:is|are) mutually exclusive",
            r"cpus[-_]per[-_]task set by two different environment variables",
            r"Unable to satisfy cpu bind request",
            r"CPU binding outside of job step allocation",
        ),
        says="Slurm refuses options, one of them mostly from the shell that submitted",
        fix="Submit from a login shell, or unset the variables that the proof names (of cores, SLURM_CPU_BIND).",
        source="Slurm",
    ),
    Cause(
        name="missing program",
        patterns=(r"^slurmstepd\S*: .*execve\(\): .*No such file", r"can not load PMIx library"),
        says="srun cannot start the program: a file or a library is not there",
        fix="Run ls -ld PATH on a compute node: the path has to be where all nodes see it. If it is the PMIx library,"
        " leave out --mpi=pmix: only programs that call MPI need it.",
        source="Slurm",
    ),
    Cause(
        name="step launch",
        patterns=(r"Task launch for \S+ failed on node", r"Application launch failed: \S"),
        says="srun could not start the program on a node",
        fix="If the proof ends with a network error, submit with --exclude=NODE. Else change the option that it names.",
        source="Slurm",
    ),
    Cause(
        name="returned early",
        patterns=(r"srun: First task exited \d+s ago",),
        says="a rank ended, without an error, while others still waited for it",
        fix="First look at the program: all ranks need the same number of steps, and the same collectives.",
        source="Slurm",
        waiting=True,
    ),
    Cause(
        name="killed",
        patterns=(r"line \d+: +\d+ Killed",),
        says="a process was killed",
        fix="Mostly memory was lacking: ask for more --mem, or let the program start fewer processes that read data.",
        source="Slurm, bash",
        signals=(9,),
    ),
)

# The last words of the rank that failed first say so.
BY_RANK = (
    Cause(
        name="conda",
        patterns=(r"CondaError: Run 'conda init'",),
        says="conda activate needs a shell that conda has set up, which that of a job is not",
        fix='Write eval "$(conda shell.bash hook)" before conda activate, or name the environment in VENV of env.sh.',
        source="conda",
    ),
    Cause(
        name="module",
        patterns=(r"ModuleNotFoundError: \S", r"python[0-9.]*: No module named \S", r"module\(s\) are unknown"),
        says="a module is not found",
        fix="Check RUNTIME, VENV and MODULES in env.sh (module spider finds modules). Install a missing Python package."
        " Add the folder of a module of your own to PYTHONPATH.",
        source="CPython, Lmod",
    ),
    Cause(
        name="locked memory",
        patterns=(r"ibv_\S*reg_mr.* failed.* Cannot allocate memory",),
        says="the limit of locked memory is too low for the network",
        fix="Put ulimit -l unlimited into env.sh. If a node refuses that, ask your site to raise the limit of jobs.",
        source="NCCL, UCX",
    ),
    Cause(
        name="threads",
        patterns=(
            r"can't start new thread",
            r"(?:pthread_create|fork).*Resource temporarily unavailable",
            r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        ),
        says="a limit of threads and processes of the node or of the user is reached",
        fix="Set OMP_NUM_THREADS, and let the program start fewer processes that read data. ulimit -u shows the limit.",
        source="CPython, OpenBLAS",
    ),
    HOST_MEMORY,
    Cause(
        name="GPU memory",
        patterns=(
            r"(?:CUDA|HIP|XPU) out of memory\. ",
            r"(?:CUDA|HIP)(?: driver)? error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"Triton Error \[CUDA\]: out of memory",
        ),
        says="the memory of a GPU was not enough",
        fix="Use a smaller batch per GPU and accumulate gradients, or shard the model with FSDP.",
        source="torch, CUDA",
    ),
    Cause(
        name="GPU driver",
        patterns=(r"on your system is too old", r"driver version is insufficient", r"no kernel image is"),
        says="this torch does not support this GPU driver or GPU",
        fix="Install a torch for the CUDA that nvidia-smi shows, with these GPUs in torch.cuda.get_arch_list().",
        source="torch",
    ),
    Cause(
        name="busy GPU",
        patterns=(r"CUDA-capable device.* busy or unavailable",),
        says="another process uses the GPU alone, or the GPU does not answer",
        fix="Use the device cuda:LOCAL_RANK. If that does not help, submit with --exclude=NODE, and tell your site.",
        source="CUDA",
    ),
    Cause(
        name="no GPU",
        patterns=(
            r"No (?:CUDA|HIP) GPUs are available",
            r"no CUDA-capable device",
            r"not compiled with CUDA",
            r"is only supported with GPUs",
            r"Duplicate GPU",
            r"invalid device ordinal",
        ),
        says="the ranks see no GPU, or not one each",
        fix="Ask for --gpus-per-node, not --gpus-per-task. Use the device cuda:LOCAL_RANK. Install a torch for"
        " your GPUs, CUDA or ROCm. Start Apptainer with --nv or --rocm.",
        source="torch, NCCL",
    ),
    Cause(
        name="GPU hardware",
        patterns=(
            r"uncorrectable (?:NVLink|ECC) error\b",
            r"GPU is lost",
            r"system not yet initialized",  # NVIDIA's fabric manager does not run
        ),
        says="a GPU or a node is broken",
        fix="Submit again with --exclude=NODE, and tell your site.",
        source="CUDA",
    ),
    Cause(
        name="driver of two versions",
        patterns=(r"river/library version mismatch",),
        says="a node's GPU driver was updated, and the old one is still loaded",
        fix="Submit again with --exclude=NODE, and ask your site to restart the node. If all nodes say so, the"
        " container or LD_LIBRARY_PATH may have a libcuda or libnvidia-ml of its own.",
        source="NVML",
    ),
    Cause(
        name="shared memory",
        patterns=(
            r"unable to (?:write to|open|allocate shared memory\(shm\) for) file </torch_",
            r"failed to extend /dev/shm/nccl-",
            r"Error while creating shared memory segment",
            r"posix_fallocate failed : No space left",
        ),
        says="/dev/shm is full, or too small",
        fix="Let the program start fewer processes that read data (num_workers). On the node, df -h /dev/shm shows"
        " whether it is full. If a container has a /dev/shm of its own, make that larger.",
        source="torch, NCCL",
    ),
    Cause(
        name="compiler cache",
        patterns=(r"(?:resource busy|No such file or directory): '.*(?:triton/|triton_|torchinductor)",),
        says="ranks wrote the cache of compiled kernels at the same time, on a file system that all nodes share",
        fix="Write export TRITON_CACHE_DIR=/tmp/triton-$USER TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$USER into env.sh.",
        source="Triton, torch",
    ),
    Cause(
        name="file system",
        patterns=(r"[Ss]tale file handle", r"Input/output error", r"No locks available"),
        says="the file system did not answer as it should: the node may have lost it, or it has no locks",
        fix="Submit again. If one node fails again, submit with --exclude=NODE, and tell your site. Without locks, set"
        " HF_DATASETS_USE_SOFT_FILELOCK=1 for datasets, or keep the cache elsewhere (HF_HOME in env.sh).",
        source="Linux",
    ),
    Cause(
        name="disk",
        patterns=(
            r"Disk quota exceeded",
            r"No space left on device",
            r"Read-only file system",
            r"inline_container\.cc.* unexpected pos",
            r"basic_ios::clear: iostream error",
        ),
        says="a disk is full, over your quota, or read-only",
        fix="To make room, remove files (quotas limit their number, too), or write elsewhere: TMPDIR, HF_HOME.",
        source="Linux, torch",
    ),
    Cause(
        name="data loader",
        patterns=(
            r"DataLoader worker \(pid.*(?:signal: (?:Bus|Killed)|unexpectedly)",
            r": Bus error",
            r"Too many open files",
            r"received 0 items of ancdata",
        ),
        says="too little /dev/shm, memory or open files to read data ahead (DataLoader)",
        fix="Use a smaller num_workers of DataLoader (0 shows the error), or put ulimit -n 65536 into env.sh.",
        source="torch",
        signals=(7,),
    ),
    Cause(
        name="MPI without PMI",
        patterns=(r"OMPI was not built with SLURM's PMI support",),
        says="the program calls MPI itself, as with mpi4py, and mpirun did not start it",
        fix="Ask your site how its MPI starts: srun --mpi=list shows what Slurm has. Where the site has mpirun,"
        " LAUNCHER=mpirun-ranks starts such a program.",
        source="Open MPI",
    ),
    Cause(
        name="library",
        patterns=(
            r"(?:GLIBC|GLIBCXX|CXXABI)_[0-9.]+' not found",
            r"cannot open shared",
            r": undefined symbol: \S",
            r"Illegal instruction",
        ),
        says="a library is missing, or made for another system or processor",
        fix="Build the library on a compute node, use a container, or name its module in MODULES of env.sh.",
        source="glibc",
        signals=(4,),
    ),
    Cause(
        name="process group",
        patterns=(r"terminate called without an active exception",),
        says="a rank ended while its process group was still at work",
        fix="First look at the program: all ranks need the same number of steps, then destroy_process_group().",
        source="torch",
    ),
    Cause(
        name="different tensors",
        patterns=(r"Received data size doesn't", r"Is there a distributed collective mismatch"),
        says="ranks called different collectives at the same time, or with tensors of different shapes or types",
        fix="Let all ranks call the same collectives, in the same order, with tensors of the same shape and type.",
        source="gloo",
        waiting=True,
    ),
    Cause(
        name="port",
        patterns=(r"EADDRINUSE", r"ddress already in use"),
        says="the port is taken",
        fix="To get another port, submit again. Do not set MASTER_PORT, and start torchrun once on a node.",
        source="torch",
    ),
    Cause(
        name="gloo was refused",
        patterns=(r"[Gg]loo.*connect.*: Connection refused",),
        says="gloo found no rank at an address: a rank had ended, or the program made its process group a second time",
        fix="Let the program call init_process_group once. With hydra -m, start a job for each run instead.",
        source="gloo",
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
        source="gloo, NCCL",
    ),
    Cause(
        name="certificate",
        patterns=(r"CERTIFICATE_VERIFY_FAILED",),
        says="the certificate of a host on the internet cannot be verified: mostly a proxy of the site stands between",
        fix="Ask your site for the certificate of its proxy, and name its file in SSL_CERT_FILE and REQUESTS_CA_BUNDLE"
        " in env.sh. Or download on a login node first.",
        source="OpenSSL",
    ),
    Cause(
        name="name or route",
        patterns=(
            r"ame or service not known",
            r"name resolution",
            r"(?:etwork|ost|estination) is unreachable",
            r"No route to host",
            r"Max retries exceeded with url",
            r"onnect to 'http",
            r"Couldn't reach .* on the Hub",
            r"urlopen error",
            r"requests\.exceptions\.Conn",
        ),
        says="a host has no address, or cannot be reached",
        fix="For a node's name, set MASTER_ADDR_SUFFIX in env.sh. From the internet, download on a login node first.",
        source="Linux, UCX, requests, huggingface_hub",
    ),
    Cause(
        name="rendezvous",
        patterns=(r"client socket has timed out", r"seconds waiting for clients"),
        says="not all nodes joined the rendezvous in time, or its address cannot be reached",
        fix="If nodes start slowly, raise RDZV_TIMEOUT. --exclude nodes without a folder in logs/JOBID.ATTEMPT.",
        source="torch",
    ),
    Cause(
        name="missing file",
        patterns=(r"FileNotFoundError: \S", r": command not found", r"Permission denied(?! \()"),
        says="a file or command is not there, or not yours to use",
        fix="Run ls -ld PATH on a compute node, also for its folders: the path has to be where all nodes see it.",
        source="CPython, bash, Linux",
    ),
    Cause(
        name="crashed",
        patterns=(r"[Ss]egmentation fault",),
        says="a process crashed in compiled code",
        fix="Set PYTHONFAULTHANDLER=1 to see where. Often packages were built for different versions of each other.",
        source="Slurm",
        signals=(11, 6, 8, 5),
    ),
    Cause(
        name="network retries",
        patterns=(r"Transport retry count exceeded",),
        says="the network gave up sending to another node, which had ended, or has a bad cable or adapter",
        fix="Look at the other node's ranks first. If none had ended, submit with --exclude=NODE, and tell your site.",
        source="UCX",
    ),
)

# A rank waited in vain, or lost another one, and no rank is known to have failed. Found by the words in errors.py.
BY_WAITING = {
    "waited": Cause(
        name="waited in vain",
        patterns=(),
        says="ranks waited in vain for one that hung, or was busy",
        fix="If the rank was stuck, see where. If it was slow, raise timeout of init_process_group. If it had returned,"
        " correct the program: all ranks need the same number of steps, and the same collectives.",
        source="torch",
        waiting=True,
    ),
    "peer": Cause(
        name="lost another rank",
        patterns=(),
        says="a rank lost another one that printed no error",
        fix="First look at the program: all ranks need the same number of steps. Then look at the other node: the logs"
        " of its ranks, sinfo -N -l.",
        source="torch, NCCL, Horovod",
        waiting=True,
    ),
}
