#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
# The settings of this project, and the one file that you edit.
# The scripts of runai/ read it where you submit a job, and runai/pod.sh reads it in each pod.
#
# To change a setting for one job: NAME=value bash runai/submit_multinode.sh … This does not work
# for the lists in parentheses. Programs in the pods see the value if FORWARD has the name.
# shellcheck disable=SC2034  # the scripts that read this file use its variables

# ---- what a job asks for ------------------------------------------------------------------------
# The Run:ai project that is charged.
RUNAI_PROJECT="${RUNAI_PROJECT:-{{ cookiecutter.account }}}"
# The beginning of each job's name.
JOB_PREFIX="${JOB_PREFIX:-{{ cookiecutter.project }}}"

# The program of a job that names none; a file of the project.
#? if cookiecutter.examples == "yes"
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-training/train_ddp.py}"
#? else
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-check/ranks.py}"
#? endif
# Number of pods.
NNODES="${NNODES:-{{ cookiecutter.nodes }}}"
# GPUs of each pod. Pods that take all GPUs of a node run on different nodes.
GPUS_PER_NODE="${GPUS_PER_NODE:-{{ cookiecutter.gpus_per_node }}}"
# Cores of each pod, such as 32. Empty: the default of the Run:ai project.
CPUS_PER_NODE="${CPUS_PER_NODE:-}"
# Memory of each pod, such as 256G. Empty: the default of the Run:ai project.
MEMORY_PER_NODE="${MEMORY_PER_NODE:-}"
# Node pools where the pods may run, the best first, separated by commas. Empty: the default of the
# Run:ai project.
NODE_POOLS="${NODE_POOLS:-{{ cookiecutter.partition }}}"
# 1: Run:ai may stop the job for another and restart it later; 0: it may not. Empty: the cluster's
# default.
PREEMPTIBLE="${PREEMPTIBLE:-}"
# How often Run:ai restarts a failed run. Use at least 1: the operator also fails a worker that
# waits 200 seconds for the first pod, as it does while that pod's node still pulls the image.
RETRIES="${RETRIES:-1}"

# Container image of the pods.
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
# 1: the image's entry point runs runai/pod.sh; 0: runai/pod.sh replaces the entry point.
KEEP_ENTRYPOINT="${KEEP_ENTRYPOINT:-0}"
# 1: /dev/shm is as large as the memory; 0: it has 64 MB, which NCCL and data loaders fill at once.
LARGE_SHM="${LARGE_SHM:-1}"
# 1: pods use the node's shared memory, which most clusters forbid.
HOST_IPC="${HOST_IPC:-0}"
# More options for runai, such as --node-type=NAME or --toleration=operator=Exists,key=NAME
RUNAI_OPTIONS=()
# Generation of the client: v1 (submit-dist) or v2 (training pytorch submit). Empty: the generation
# of the installed runai.
RUNAI_CLI="${RUNAI_CLI:-}"

# ---- volumes and user ---------------------------------------------------------------------------
# Volumes (PVCs) and the folders where pods mount them: CLAIM:/FOLDER. This project has to lie on
# one of them.
#? if plan.pod_volumes
VOLUMES=("{{ plan.pod_volumes | join('" "') }}")
#? else
VOLUMES=()
#? endif
# This project's folder as pods see it. Empty: its folder here, if the machine where you submit
# mounts the volume there, too.
POD_PROJECT_DIR="${POD_PROJECT_DIR:-}"
# 1: submit only if 'runai pvc list' (CLI v1: 'kubectl get pvc', if installed) names each of
# VOLUMES; 0: do not ask.
CHECK_VOLUMES="${CHECK_VOLUMES:-1}"
#? if site.pods.run_as_user
# User and group of the processes in the pods, as numbers: root has no access to the volumes. Use
# yours, as the volumes know them: id -u and id -g on a machine that mounts them. Empty: the owner
# of this project, if its volume is mounted here.
#? else
# User and group of the processes in the pods, as numbers. Empty: the image's user, mostly root.
# Volumes that belong to users need yours (id -u, id -g).
#? endif
RUN_AS_UID="${RUN_AS_UID:-}"
RUN_AS_GID="${RUN_AS_GID:-}"

# ---- variables in the pods ----------------------------------------------------------------------
# Programs in the pods see the variables that this file exports in its copy on the volume. They also
# see these variables if you set them before a command: NAME=value bash runai/submit_multinode.sh …
# Other users see the values in the workload, so keys go into SECRETS.
FORWARD=(NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_DISABLE NCCL_NET NCCL_SOCKET_IFNAME NPROC_PER_NODE
    OMP_NUM_THREADS CPU_RANKS_PER_NODE RDZV_TIMEOUT RUNTIME VENV PYTHON ALLOW_CPU IMAGE)
# Keys, such as WANDB_API_KEY, belong here and nowhere else in this file: variables that get their
# values from secrets of the cluster, VARIABLE=SECRET,KEY as in WANDB_API_KEY=wandb,key
SECRETS=()

# Seconds that pods wait for each other at the start. A node takes minutes to pull a new image.
export RDZV_TIMEOUT="${RDZV_TIMEOUT:-1800}"

# Processes (ranks) of each node without GPUs. With GPUs there is one per GPU.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

# A command that stands before the torchrun of each pod: RANK_PREFIX=(numactl --interleave=all), or
# for a profile RANK_PREFIX=(nsys profile --output=%q{RUN_DIR}/%h-%p)
RANK_PREFIX=()

# ---- network ------------------------------------------------------------------------------------
# 1: ask for RDMA between pods, with RDMA_ANNOTATIONS and RDMA_RESOURCES, whose values depend on the
# cluster; 0: use TCP.
RDMA="${RDMA:-1}"
#? if site.pods.annotations and cookiecutter.gpus_per_node | int
RDMA_ANNOTATIONS=("{{ site.pods.annotations | join('" "') }}")
RDMA_RESOURCES=("{{ site.pods.extended_resources | join('" "') }}")
#? else
RDMA_ANNOTATIONS=() # k8s.v1.cni.cncf.io/networks=NAMESPACE/NAME
RDMA_RESOURCES=()   # rdma/NAME=1
#? endif
# 1: fail if a pod has no RDMA device, or if check/ranks.py finds that ranks use TCP; 0: go on.
REQUIRE_RDMA="${REQUIRE_RDMA:-1}"

# ---- Python -------------------------------------------------------------------------------------
# pod: the python3 of IMAGE. venv: the virtual environment VENV on the volume. To make VENV, with
# the torch of the image, run in a pod:
# python3 -m venv --system-site-packages .venv && .venv/bin/pip install PACKAGE
RUNTIME="${RUNTIME:-pod}"
# The virtual environment for RUNTIME=venv.
VENV="${VENV:-$PROJECT_DIR/.venv}"
# The interpreter that has torch.
export PYTHON="${PYTHON:-python3}"
