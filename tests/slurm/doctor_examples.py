"""A real line for each row of slurm/doctor/causes*.py, as it was posted or printed, without the label of a rank.

Under the name of the row: where its wording was read, and when; then lines. tests/slurm/test_doctor_causes.py gives
each line to the doctor, and expects the row.
"""

# ruff: noqa: E501

EXAMPLES = {
    "stuck": (
        "slurm/ranks.sh of this project (2026-11-23)",
        "2026-11-23 16:00:00 stuck: nothing was printed for 600 s (STALL_TIMEOUT), and no rank moves; where each",
    ),
    "project": (
        "messages of this project's scripts and of argparse (2026-11-23)",
        "slurm/submit_multinode.sh: no program 'x.py', neither here nor in /b",
        "preflight: node2: no command python: name its module in MODULES",
        "launch/rank.sh on node2: 4 ranks, but MASTER_ADDR is not set",
        "train_ddp.py: error: --micro-batch 3 does not fit",
        "# WRONG DATA on rank 1 (node2) at 4096 bytes: 3 of 1024 elements",
    ),
    "locked memory": (
        "NVIDIA/nccl-tests #206; openucx/ucx #6264 #2712 (2026-11-22)",
        "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "UCX ERROR ibv_reg_mr failed: Cannot allocate memory",
    ),
    "host memory": (
        "Slurm 22.05 and 24.11; nextflow-io/nextflow #5932; torch 2.13; CPython; lanl/PyBNF #118 (2026-11-21); mrnugget/opencv-haar-classifier-training #33 (2026-11-28)",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM",
        "JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory",
        "MemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "GPU memory": (
        "torch 2.13, ATen/cuda/Exceptions.h; NVIDIA/nccl #1948; CUDA's driver API (2026-11-22); QwenLM/Qwen3 #873 (2026-11-28)",
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    "GPU driver": (
        "torch 2.13; vllm-project/vllm #5222 (2026-11-21); nagadomi/nunif #702 (2026-11-28)",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    ),
    "no GPU": (
        "torch 2.13; meta-llama/codellama #125, NVIDIA/nccl #861 (2026-11-22); an H200, torch 2.11 (2026-11-27)",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
    ),
    "busy GPU": (
        "NVIDIA/DIGITS #2005, facebookresearch/detectron2 #2580, ggml-org/llama.cpp #11841 (2026-11-22)",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    "driver of two versions": (
        "oddmario/NVIDIA-Ubuntu-Driver-Guide #4, NVIDIA/nvidia-container-toolkit #394 (2026-11-24)",
        "Failed to initialize NVML: Driver/library version mismatch",
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.",
    ),
    "shared memory": (
        "torch 2.13; idiap/ESLAM #20, MIC-DKFZ/nnUNet #2162; NVIDIA/nccl #290 #525 (2026-11-27)",
        "RuntimeError: unable to write to file </torch_31911_952036340_6686>: No space left on device (28)",
        "NCCL WARN Error: failed to extend /dev/shm/nccl-nyj24T to 10486116 bytes, error: No space left on device",
        "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on",
        "[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_2504_2926493785_0>: No space left on device (28)",
    ),
    "disk": (
        "pytorch/pytorch #156955, innnky/so-vits-svc #46, OpenROAD #7875, nmslib #502 (2026-11-22)",
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0",
        "RuntimeError: basic_ios::clear: iostream error",
    ),
    "data loader": (
        "torch 2.13; pytorch/pytorch #5040 #73656 #108861 (2026-11-21); pytorch/pytorch #973 (2026-11-28)",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's",
        "RuntimeError: DataLoader worker (pid 2287) is killed by signal: Killed.",
        "OSError: [Errno 24] Too many open files",
        "RuntimeError: received 0 items of ancdata",
    ),
    "module": (
        "CPython 3.6 to 3.13; Lmod; Environment Modules (2026-11-21)",
        "ModuleNotFoundError: No module named 'torch'",
        "/usr/bin/python3: No module named wandb",
        'Lmod has detected an error: The following module(s) are unknown: "x"',
    ),
    "library": (
        "glibc; NVIDIA/nccl #96 (2026-11-22)",
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /a/x.so)",
        "ImportError: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /a/x.so)",
        "error while loading shared libraries: libcudart.so.11.0: cannot open shared object file: No such file or",
        "srun: error: node2: task 3: Illegal instruction (core dumped)",
    ),
    "process group": (
        "torch 2.13, gloo: sys.exit(0) between two all_reduce() (2026-11-22)",
        "terminate called without an active exception",
    ),
    "different tensors": (
        "torch 2.13, gloo: all_reduce of 1024 and of 7 numbers (2026-11-23)",
        "what(): [enforce fail at pair.cc:456] preamble.length <= op.nbytes. 512 vs 4. Received data size doesn't",
        "match expected size. Is there a distributed collective mismatch in your code?",
    ),
    "mpirun as root": (
        "Open MPI 4.1 (2026-11-26)",
        "mpirun has detected an attempt to run as root.",
    ),
    "MPI without PMI": (
        "Open MPI 4.1, mpi4py 4.1 (2026-11-26)",
        "but OMPI was not built with SLURM's PMI support and therefore cannot",
    ),
    "slots of mpirun": (
        "Open MPI 4.1 (2026-11-21)",
        "There are not enough slots available in the system to satisfy the 4",
    ),
    "port": (
        "torch 2.13; pytorch/pytorch #73656 (2026-11-21)",
        "torch.distributed.DistNetworkError: port: 29713, code: -98, name: EADDRINUSE, message: address already in",
    ),
    "network interface": (
        "torch 2.13; sgl-project/sglang #3226 #5594; NVIDIA/nccl #975 #1515, nccl-tests #166 (2026-11-22); marin-community/marin #6940 (2026-11-28)",
        "RuntimeError: ifa != nullptr. Unable to find address for: ib0",
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
        "[0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort",
        "[0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : No route to host",
        "node1:42:42 [0] NCCL WARN Bootstrap : no socket interface found",
    ),
    "time limit": (
        "Slurm 22.05 and 24.11 (2026-11-21)",
        "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO TIME LIMIT ***",
    ),
    "preemption": (
        "Slurm 22.05 and 24.11 (2026-11-21)",
        "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO PREEMPTION ***",
    ),
    "node failure": (
        "Slurm 22.05 and 24.11 (2026-11-21)",
        "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        "srun: error: Node failure on node2",
    ),
    "step launch": (
        "Slurm 22.05; aws/aws-parallelcluster #4179 (2026-11-22)",
        "srun: error: Task launch for StepId=20.0 failed on node node2: Socket timed out on send/recv operation",
        "srun: error: Application launch failed: Communication connection failure",
    ),
    "daemons of mpirun": (
        "Open MPI 5.0.7 of Debian 13; openpmix/prrte #1448 #2155 (2026-11-24)",
        "The Slurm process starter requires a minimum Slurm version level",
    ),
    "mpirun lost a node": (
        "Open MPI 4.1.4 of Debian 12 and 5.0.7 of Debian 13 (2026-11-24)",
        "ORTE has lost communication with a remote daemon.",
        "PRTE has lost communication with a remote daemon.",
    ),
    "cancelled": (
        "Slurm 22.05 and 24.11; Slurm 22.05 (2026-11-21)",
        "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 ***",
        "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-21T17:20:37 DUE TO JOB REQUEUE ***",
    ),
    "output folder": (
        "Slurm 22.05 and 24.11 (2026-11-21)",
        "JobState=FAILED Reason=RaisedSignal:53 ExitCode=0:53",
    ),
    "name or route": (
        "torch 2.13, c10d/socket.cpp; huggingface/datasets #7197, huggingface/accelerate #2246, hiyouga/LlamaFactory #4186 (2026-11-22)",
        "[W1121 17:20:31.214 socket.cpp:767] [c10d] The IPv4 network addresses of (node1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "ConnectionError: Couldn't reach 'wikitext' on the Hub (LocalEntryNotFoundError)",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    "rendezvous": (
        "torch 2.13; pytorch/pytorch #69197 #126510 (2026-11-21)",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
    ),
    "missing file": (
        "CPython 3.6 to 3.13; bash 5; Slurm 22.05; CPython 3.6 to 3.13 (2026-11-21)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/local/x'",
        "PermissionError: [Errno 13] Permission denied: '/sys/x'",
    ),
    "waited in vain": (
        "torch 2.13; hiyouga/LlamaFactory #7396 #8549, xdit-project/xDiT #147 (2026-11-22)",
        "RuntimeError: Rank 2 failed to pass monitoredBarrier in 8000 ms",
        "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3",
        "[rank1]:[E704 13:48:58.260509461 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued",
        "[rank0]:[E321 NCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,",
        "RuntimeError: Timed out waiting 8000ms for recv operation to complete",
    ),
    "returned early": (
        "NatLabRockies/torc #318 (2026-11-22)",
        "srun: First task exited 30s ago",
    ),
    "killed": (
        "Slurm 22.05; torch 2.13; hpcaitech/ColossalAI #3514 (2026-11-22)",
        "srun: error: node2: task 3: Killed",
        "/var/spool/slurmd/job12/slurm_script: line 12: 12345 Killed      python x.py",
        "launch/spawn.py on node2: rank 3 was ended by signal 9",
        "mpirun noticed that process rank 3 with PID 7 on node node2 exited on signal 9 (Killed).",
    ),
    "crashed": (
        "Slurm 22.05; torch 2.13; pytorch/pytorch #146118; harshatejas/pytorch_custom_object_detection #1, STVIR/pysot #140 (2026-11-22)",
        "srun: error: node2: task 3: Segmentation fault (core dumped)",
        "launch/spawn.py on node2: rank 3 was ended by signal 11",
        "RuntimeError: DataLoader worker (pid 4487) is killed by signal: Segmentation fault.",
        "ERROR: Unexpected segmentation fault encountered in worker.",
    ),
    "lost another rank": (
        "torch 2.13; NVIDIA/nccl #1948; horovod/horovod #1364 (2026-11-22)",
        "RuntimeError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer [10.0.0.2]:23942. This is typically caused by a remote worker crashing.",
    ),
    "GPU hardware": (
        "torch 2.13; NVIDIA's driver messages; pytorch/pytorch #35710 (2026-11-22)",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    "missing program": (
        "Slurm 22.05; openpmix/openpmix #3038, pyiron/executorlib #761 (2026-11-21)",
        "slurmstepd: error: execve(): python: No such file or directory",
        "srun: error:  mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx library",
    ),
    "conda": (
        "conda/conda #8536, marbits-icm/marbits-public #78 (2026-11-27)",
        "CondaError: Run 'conda init' before 'conda activate'",
    ),
    "threads": (
        "OpenMathLib/OpenBLAS #1668, MIC-DKFZ/nnUNet #1343, CFIA-NCFAD/nf-flu #105 (2026-11-27)",
        "RuntimeError: can't start new thread",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    ),
    "compiler cache": (
        "pytorch/pytorch #173679, pytorch/torchtitan #2146, triton-lang/triton #2688 #11512 (2026-11-27)",
        "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: '/home/x/triton_cache_255441/E5DAZ/triton_red_fused_arange_0.hsaco'",
        "OSError: [Errno 16] Device or resource busy: '/root/.triton/cache/x/cuda_utils.cpython-310-x86_64-linux-gnu.so'",
    ),
    "file system": (
        "databricks/megablocks #106; outputs of users' jobs; huggingface/datasets #2618 #8638, DataBiosphere/toil #4846 (2026-11-27)",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 5] Input/output error",
        "OSError: [Errno 37] No locks available",
    ),
    "gloo was refused": (
        "pytorch/pytorch #108732; hydra 1.3 with -m (2026-11-27)",
        "RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [172.31.71.170]:13195: Connection refused",
    ),
    "certificate": (
        "huggingface/transformers #17611 #25552, open-webui/open-webui #3168 (2026-11-27)",
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)",
    ),
    "network retries": (
        "openucx/ucx #5199 #6669 #9590 (2026-11-27)",
        "[b5244:224582:0:224582] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
    ),
    "inherited options": (
        "SchedMD/slurm src/common/slurm_opt.c; Slurm 26.05.5; mehta-lab/recOrder #482, snakemake/snakemake #2230, bessagroup/f3dasm #352; FairRootGroup/DDS #490, snakemake/snakemake-executor-plugin-slurm #373; llnl/ATS #133, ascii-supply-networks/dagster-slurm #64 (2026-11-27)",
        "srun: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.",
        "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.",
        "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.",
        "srun: fatal: cpus_per_task set by two different environment variables SLURM_CPUS_PER_TASK=2 != SLURM_TRES_PER_TASK=cpu:1",
        "srun: fatal: SLURM_TRES_PER_TASK is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU",
        "srun: error: Task launch for StepId=1932.2 failed on node node2: Unable to satisfy cpu bind request",
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x34000004.",
    ),
    "pyxis": (
        "NVIDIA/pyxis #12 #138; NVIDIA/pyxis #133; NVIDIA/pyxis #61 #127 #168 and enroot.c, pyxis_slurmstepd.c (2026-11-27)",
        "slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied",
        "slurmstepd: error: pyxis: --container-mounts: source path does not exist: /scratch/x",
        "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /scratch/x at /tmp/pyxis_479.0/x: No such",
        "slurmstepd: error: pyxis: failed to import docker image",
        "slurmstepd: error: pyxis: container start failed with error code: 1",
        "slurmstepd: error: pyxis: child 4711 failed with error code: 1",
    ),
    "Apptainer": (
        "apptainer/singularity #5183; apptainer/apptainer #1895 (2026-11-22)",
        "FATAL:   could not open image /a/x.sif: failed to retrieve path",
        "FATAL:   container creation failed: mount hook function failure: mount /var/apptainer/mnt/session/storage->/storage error: while mounting /var/apptainer/mnt/session/storage: destination /storage doesn't exist in container",
    ),
}
