#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set node = node_facts(cookiecutter)
#? set slurm = site.kind == "slurm"
#? set runai = site.kind == "runai"
#? set runtime = cookiecutter.runtime
#? set bare = "pod" if runai else "none"
#? set container = slurm and runtime not in ("venv", "none")
#? set modules = modules_of(cookiecutter)
#? set venv = not slurm or "venv" in site.runtimes
#? set suffix = "sif" if runtime == "apptainer" else "sqsh"
#? set flags = site.containers[runtime].options
#? if runai
# The settings of this project, and the one file to edit: what a job asks for, where Python comes from, what the processes see.
# Sourced by runai/*.sh: where a job is submitted, and in each pod. NAME=value bash runai/submit_multinode.sh … overrides a line
# for one job (not a list in parentheses); to reach the programs in the pods, the name has to stand in FORWARD too.
#? else
# The settings of this project, and the one file to edit: where Python comes from and what the processes see.
#? endif
#? if slurm
# Sourced by slurm/*.sh when a job is submitted and when it starts. NAME=value sbatch … overrides a line for one job
# (not a list in parentheses).
# Nodes, GPUs, walltime and queue are the #SBATCH lines of slurm/submit_multinode.sh.
#? elif not runai
# Sourced by local/submit.sh. NAME=value bash local/submit.sh … overrides a line for one run.
#? endif
# shellcheck disable=SC2034  # used by the scripts that source this file

#? if runai
# ---- what a job asks for ------------------------------------------------------------------------
# The project that is charged, and the beginning of the job's name.
RUNAI_PROJECT="${RUNAI_PROJECT:-{{ cookiecutter.account }}}"
JOB_PREFIX="${JOB_PREFIX:-{{ cookiecutter.project }}}"

# Pods, and the GPUs of each. Those that take all GPUs of a node cannot land on the same one.
NNODES="${NNODES:-{{ cookiecutter.nodes }}}"
GPUS_PER_NODE="${GPUS_PER_NODE:-{{ cookiecutter.gpus_per_node }}}"
# Cores and memory of each pod, such as 32 and 256G; empty: what the project has for a default.
CPUS_PER_NODE="${CPUS_PER_NODE:-}"
MEMORY_PER_NODE="${MEMORY_PER_NODE:-}"
# Node pools where the pods may run, the best first, with commas; empty: the project's own.
NODE_POOLS="${NODE_POOLS:-{{ cookiecutter.partition }}}"
# 1: the job may be stopped for others and started anew; 0: it may not; empty: as the cluster has it.
PREEMPTIBLE="${PREEMPTIBLE:-}"
# How often a run that failed is started anew. 1, not 0: the operator gives up on a worker, too, if its master's image takes more
# than 200 seconds longer to arrive.
RETRIES="${RETRIES:-1}"

IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
# 1: our command is handed to the image's own entry point instead of replacing it.
KEEP_ENTRYPOINT="${KEEP_ENTRYPOINT:-0}"
# 1: /dev/shm is as large as the memory, not 64 MB, which NCCL and data loaders fill at once.
LARGE_SHM="${LARGE_SHM:-1}"
# 1: shared memory is the node's; most clusters forbid it.
HOST_IPC="${HOST_IPC:-0}"
# What else your runai understands, as in --node-type=NAME or --toleration=operator=Exists,key=NAME
RUNAI_OPTIONS=()
# v1 (submit-dist) or v2 (training pytorch submit); empty: what the installed runai is.
RUNAI_CLI="${RUNAI_CLI:-}"

# ---- volumes and user ---------------------------------------------------------------------------
# PVCs of the project and where pods mount them, CLAIM:/FOLDER. This project has to lie on one.
#? if pod_volumes(cookiecutter)
VOLUMES=("{{ pod_volumes(cookiecutter) | join('" "') }}")
#? else
VOLUMES=()
#? endif
# This project's folder as pods see it. Empty: the folder that it has here, which is right where a volume has the same name here.
POD_PROJECT_DIR="${POD_PROJECT_DIR:-}"
# 1: before submission 'runai pvc list' (CLI v1: 'kubectl get pvc', if it is there) has to name each of them.
CHECK_VOLUMES="${CHECK_VOLUMES:-1}"
#? if site.pods.run_as_user
# Who the pods are: root has no access to the volumes. Numbers: your own (id -u) and your group's, as the volumes know them.
# Empty: the owner of this project, if it lies on a volume here.
#? else
# Who the pods are, numbers; empty: the image's user, mostly root. Volumes that belong to users want your own (id -u, id -g).
#? endif
RUN_AS_UID="${RUN_AS_UID:-}"
RUN_AS_GID="${RUN_AS_GID:-}"

# ---- variables in the pods ----------------------------------------------------------------------
# Programs in the pods see what this file exports, from its copy on the volume (not HOME, which runai needs where you submit),
# and of what is set before a command these names.
FORWARD=(NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_DISABLE NCCL_NET NCCL_SOCKET_IFNAME NPROC_PER_NODE
    OMP_NUM_THREADS CPU_RANKS_PER_NODE RDZV_BACKEND RDZV_TIMEOUT RUNTIME VENV PYTHON ALLOW_CPU)
# Secrets of the cluster, by name, never by value: VARIABLE=SECRET,KEY as in WANDB_API_KEY=wandb,key
SECRETS=()

# Ranks wait for each other so many seconds: an image that is new to one node takes minutes to arrive there.
export RDZV_TIMEOUT="${RDZV_TIMEOUT:-1800}"

#? elif not slurm
# torchrun is started this many times, as on so many nodes.
NNODES="${NNODES:-{{ cookiecutter.nodes }}}"
#? endif
#? if site.kind == "local" and cookiecutter.gpus_per_node | int
# Processes of each.
export NPROC_PER_NODE="${NPROC_PER_NODE:-{{ cookiecutter.gpus_per_node }}}"
#? endif
#? if node.cpu_only or runai
# Processes per node where no GPU says how many.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

#? endif
#? if runai
# ---- network ------------------------------------------------------------------------------------
# RDMA between pods takes an annotation and an extended resource that are each cluster's own. RDMA=0: without, over TCP.
RDMA="${RDMA:-1}"
#? if site.pods.annotations and cookiecutter.gpus_per_node | int
RDMA_ANNOTATIONS=("{{ site.pods.annotations | join('" "') }}")
RDMA_RESOURCES=("{{ site.pods.extended_resources | join('" "') }}")
#? else
RDMA_ANNOTATIONS=() # k8s.v1.cni.cncf.io/networks=NAMESPACE/NAME
RDMA_RESOURCES=()   # rdma/NAME=1
#? endif
# 1: a pod without an RDMA device, and check/ranks.py where ranks talk TCP all the same, fail.
REQUIRE_RDMA="${REQUIRE_RDMA:-1}"

# ---- Python -------------------------------------------------------------------------------------
# pod: the python3 of IMAGE; venv: the virtual environment below, made in a pod, on the volume:
# python3 -m venv --system-site-packages .venv && .venv/bin/pip install … keeps the torch of the image.
RUNTIME="${RUNTIME:-pod}"
#? else
# ---- Python -------------------------------------------------------------------------------------
# {{ runtime ~ ": the container image below; " if container }}{{ "venv: the virtual environment below; " if venv }}none: the python3 {{ "of MODULES or " if slurm }}on PATH.
RUNTIME="${RUNTIME:-{{ runtime }}}"
#? endif
#? if slurm
# Environment modules, loaded in this order whenever the environment is built or used.
#? if "" not in modules
#? if site.modules
MODULES=("{{ site.modules | join('" "') }}")
#? else
MODULES=()
#? endif
#? for name, list in modules.items() if list
[[ $RUNTIME != "{{ name }}" ]] || MODULES=("{{ list | join('" "') }}")
#? endfor
#? elif modules[""]
MODULES=("{{ modules[''] | join('" "') }}")
#? else
MODULES=()
#? endif
#? endif
#? if slurm and venv
# Made by slurm/build_venv.sh.
#? elif slurm
# One that you have, for RUNTIME=venv.
#? elif not runai
# Made by: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt
#? endif
VENV="${VENV:-$PROJECT_DIR/.venv}"
export PYTHON="${PYTHON:-python3}"

#? if container
# ---- container ----------------------------------------------------------------------------------
#? if runtime not in ("shifter", "podman-hpc")
#? if image_source(cookiecutter)
# Made by slurm/build_container.sh: some gigabytes.
IMAGE="${IMAGE:-$PROJECT_DIR/container/{{ cookiecutter.project ~ "." ~ suffix }}}"
#? else
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
#? endif
#? elif runtime == "shifter"
# Pulled by slurm/build_container.sh.
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
#? else
# Made by slurm/build_container.sh.
IMAGE="${IMAGE:-localhost/{{ image_name(cookiecutter) }}:latest}"
#? endif
#? if runtime == "edf"
# To change mounts, network or variables of the container, edit container/{{ cookiecutter.project }}.toml.
#? elif runtime == "shifter"
# It sees the file systems of the site, and nothing else has to be said.
#? else
# Folders that it sees under their own names, beside the project, the folder of submission and the program's.
BINDS=(
    #? for folder in site.binds or ["$HOME"]
    "{{ folder }}"
    #? endfor
)
#? endif
#? if runtime == "enroot"
# Each node unpacks the image where the site has set it up; if that is below $HOME, name a folder on the nodes' own disks:
# export ENROOT_DATA_PATH=/local/$USER/enroot
#? elif runtime == "pyxis"
# A name keeps the unpacked image on the nodes, and the next start is quicker. It stays there, also when IMAGE changes:
# then take another name, and on the nodes: enroot remove pyxis_NAME
KEEP_CONTAINER="${KEEP_CONTAINER:-}"
#? endif
# activate, below, fills these: options of srun, a command that is put before the launcher, and the folders that the
# container mounts, which slurm/preflight.sh looks for on each node.
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()
CONTAINER_FOLDERS=()

#? endif
#? if slurm
# ---- how a job's processes are started ----------------------------------------------------------
#? if not container
# A container goes here: options of srun, and a command that is put before the launcher.
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()
#? endif
# {{ site.launchers | join(", ") }}: README.md says which starts what.
export LAUNCHER="${LAUNCHER:-{{ cookiecutter.launcher }}}"
# 1: first each node is looked at, a second or less; 0: it is not.
PREFLIGHT="${PREFLIGHT:-1}"
# How often a job that saved before its walltime was over goes back into the queue by itself.
MAX_REQUEUES="${MAX_REQUEUES:-20}"

# ---- network and libraries ----------------------------------------------------------------------
#? if not (site.partitions or site.qos)
# If the ranks time out while connecting, name the network that all nodes share ('ip -br address' on a node lists them):
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# If the compute nodes reach the internet through a proxy only:
# export http_proxy=http://proxy:3128 https_proxy=http://proxy:3128

#? endif
#? if site.host_suffix or not (site.partitions or site.qos)
# Appended to the first node's name, where a second name leads to the fast network.
export MASTER_ADDR_SUFFIX="${MASTER_ADDR_SUFFIX:-{{ site.host_suffix }}}"

#? endif
#? for variable in site.environment
# {{ variable.why }}
export "{{ variable.name }}={{ overridable(variable) }}"

#? endfor
#? if site.internet is false
# Compute nodes reach no package index: slurm/build_venv.sh installs from this folder.
WHEELS="${WHEELS:-$PROJECT_DIR/wheels}"

#? endif
#? endif
# Says what is missing; returns 2.
missing() { echo "env.sh: $*" >&2 && return 2; }

#? if container
#? if runtime == "edf"
# Prints a copy of an EDF in which each ${NAME} above the first [table] is replaced by its value. CSCS documents that its
# container engine replaces them. The parser of the engine's successor, Sarus Suite, does not do so in `image`, and refuses
# or breaks paths with spaces or any of " ; $ ` \ (sarus-suite/raster src/lib.rs, common.rs, mount.rs at 20f75bd,
# 2026-11-22). So this function replaces ${NAME}, and refuses such values.
fill_edf() {
    local line name table=''
    while IFS= read -r line || [[ -n $line ]]; do
        # [env] and [annotations] are left to the engine, which knows the image's variables.
        [[ ! $line =~ ^[[:space:]]*\[ ]] || table=1
        if [[ -z $table && ! $line =~ ^[[:space:]]*# ]]; then
            while [[ $line =~ \$\{([A-Za-z_][A-Za-z0-9_]*)\} ]]; do
                name=${BASH_REMATCH[1]}
                [[ -n ${!name:-} ]] || missing "$1 names \${$name}, which is not set: set it, or write its value there" || return
                [[ ${!name} != *[[:space:]\"\;\$\`\\]* ]] ||
                    missing "the container engine takes no spaces and none of \" ; \$ \` \\ in names," \
                        "but $name is '${!name}': rename the folder" || return
                line=${line//"\${$name}"/"${!name}"}
            done
            [[ ${line%%#*} != *\$* ]] || missing "$1 has a \$ that does not begin \${NAME}: $line" || return
        fi
        printf '%s\n' "$line"
    done <"$1"
}

#? endif
# Says how the launcher gets into the container. Arguments: folders that it must see.
enter_container() {
    #? if runtime == "apptainer"
    local folder folders program=singularity
    ! command -v apptainer >/dev/null || program=apptainer
    #? elif runtime == "edf"
    local folder edf file template="$PROJECT_DIR/container/{{ cookiecutter.project }}.toml"
    #? elif runtime != "shifter"
    local folder folders
    #? endif
    #? if runtime == "apptainer"
    command -v "$program" >/dev/null ||
        missing "neither apptainer nor singularity was found on $(hostname); name its module in MODULES, or set another" \
            "RUNTIME; if compute nodes alone have it, submit with sbatch" || return
    #? elif runtime == "pyxis"
    [[ $(srun --help 2>&1) == *--container-image* ]] ||
        missing "srun on $(hostname) knows no --container-image: pyxis is not installed; set another RUNTIME" || return
    #? elif runtime == "edf"
    [[ $(srun --help 2>&1) == *--environment* ]] ||
        missing "srun on $(hostname) knows no --environment: the container engine is not there; set another RUNTIME" || return
    #? elif runtime == "shifter"
    command -v shifter >/dev/null || missing "shifter was not found on $(hostname); set another RUNTIME" || return
    [[ -n ${SLURM_JOB_ID:-} ]] || shifterimg lookup "docker:$IMAGE" >/dev/null 2>&1 ||
        missing "the image $IMAGE was not pulled; run 'bash slurm/build_container.sh', or set IMAGE" || return
    #? elif runtime == "enroot"
    command -v enroot >/dev/null ||
        missing "enroot was not found on $(hostname); name its module in MODULES, or set another RUNTIME;" \
            "if compute nodes alone have it, submit with sbatch" || return
    #? else
    command -v podman-hpc >/dev/null || missing "podman-hpc was not found on $(hostname); set another RUNTIME" || return
    # Read-only images are the migrated ones, which alone the compute nodes see (podman-hpc 1.1.4, siteconfig.py, 2026-11-22).
    [[ -n $(podman-hpc images --filter readonly=true --filter reference="$IMAGE" --quiet) ]] ||
        missing "podman-hpc has no migrated image $IMAGE; run 'bash slurm/build_container.sh', or set IMAGE" || return
    #? endif
    #? if runtime not in ("shifter", "podman-hpc")
    [[ $IMAGE == /* && -r $IMAGE ]] ||
        #? if image_source(cookiecutter)
        missing "no image at '$IMAGE', which must be an absolute path; make it with 'bash slurm/build_container.sh', or set IMAGE" || return
        #? else
        missing "no image at '$IMAGE', which must be an absolute path; set IMAGE" || return
        #? endif
    #? endif
    #? if runtime not in ("edf", "shifter")
    mapfile -t folders < <(printf '%s\n' "$@" "${BINDS[@]}" | LC_ALL=C sort -u) # those above before those below
    for folder in "${folders[@]}"; do
        [[ -r $folder && $folder != *[,:]* ]] ||
            missing "the container cannot see '$folder': it must be readable and have no , or : in its name; see BINDS" || return
        #? if runtime == "pyxis"
        # pyxis writes folders into a shell script, between double quotes (pyxis_slurmstepd.c of 0.24.0, 2026-11-22).
        [[ $folder != *[\"\$\`]* ]] ||
            missing "the container cannot see '$folder': a shell of pyxis reads its name, which must have none of" \
                "\" \$ \`; rename the folder" || return
        #? endif
    done
    CONTAINER_FOLDERS=("${folders[@]}")
    #? endif
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    #? if runtime in ("pyxis", "enroot")
    # For images with PyTorch, a hook of enroot sets OMP_NUM_THREADS=1 if a node has several tasks and the variable is not
    # set (50-slurm-pytorch.sh of 4.1.2, 2026-11-22). If it is set, but empty, launch/rank.sh counts the cores.
    [[ $LAUNCHER != srun ]] || export OMP_NUM_THREADS="${OMP_NUM_THREADS:-}"
    #? endif
    #? if runtime == "apptainer"
    unset BASH_ENV # the host's would take the place of the image's
    #? if gpu_option(cookiecutter)
    CONTAINER_EXEC=("$program" exec "{{ gpu_option(cookiecutter) }}")
    #? else
    CONTAINER_EXEC=("$program" exec)
    #? endif
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    CONTAINER_EXEC+=(--bind "$(IFS=, && echo "${folders[*]}")" "$IMAGE")
    #? for word in site.containers[runtime].entry
    CONTAINER_EXEC+=("{{ word }}")
    #? endfor
    #? elif runtime == "pyxis"
    # By default enroot starts a login shell, and in images of Debian /etc/profile replaces the image's PATH. pyxis hands
    # this variable of the job to enroot (pyxis 0.24.0, 2026-11-22).
    export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-no}"
    # Where image and job set the same variable, the image's value counts, but for these.
    local names
    names=$(compgen -e | grep -E '^(NCCL|GLOO|FI|UCX|OMP|TORCH|HF|WANDB)_' | paste -sd,)
    unset "${!PYXIS_@}"
    CONTAINER_SRUN_ARGS=(--container-image="$IMAGE" --container-mounts="$(IFS=, && echo "${folders[*]}")"
        --container-workdir="$PWD" --container-env="MASTER_ADDR,MASTER_PORT${names:+,$names}")
    #? for flag in flags
    CONTAINER_SRUN_ARGS+=("{{ flag }}")
    #? endfor
    [[ -z $KEEP_CONTAINER ]] || CONTAINER_SRUN_ARGS+=(--container-name="$KEEP_CONTAINER")
    #? elif runtime == "edf"
    for folder in "$@"; do
        [[ -r $folder && $folder != *:* ]] ||
            missing "the container cannot see '$folder': it must be readable and have no : in its name" || return
    done
    export IMAGE PWD PROGRAM_DIR="${!#}" # the last folder is the program's; [env] of the EDF may name these too
    edf=$(fill_edf "$template") || return
    # Named after its content: jobs with other folders have another, and an attempt after a requeue finds its own.
    file=$PROJECT_DIR/logs/container-$(cksum <<<"$edf" | cut -d ' ' -f 1).toml
    { mkdir -p "$PROJECT_DIR/logs" && echo "$edf" >"$file.$$" && mv "$file.$$" "$file"; } ||
        missing "cannot write $file, which srun reads" || return
    CONTAINER_SRUN_ARGS=(--environment="$file")
    # Its mounts, on one line or on several: "/FOLDER:/FOLDER"
    mapfile -t CONTAINER_FOLDERS < <(sed -n '/^ *mounts *=/,/\]/p' "$file" | grep -oE "[\"']/[^\"':]*:" | tr -d "\"':" | sort -u)
    export MOUNTS_SETTING="mounts in container/{{ cookiecutter.project }}.toml"
    #? elif runtime == "shifter"
    CONTAINER_EXEC=(shifter --image="docker:$IMAGE")
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    #? else
    CONTAINER_EXEC=("$PROJECT_DIR/container/start.sh" "$IMAGE" "${folders[@]}" --)
    #? endif
}

#? endif
#? if container
# Called by the scripts: makes $PYTHON the interpreter that has torch. Arguments: folders that a container must see.
#? else
# Called by the scripts: makes $PYTHON the interpreter that has torch.
#? endif
# Returns 2, with a sentence, if something is missing.
activate() {
    #? if slurm
    if ((${#MODULES[@]})); then
        #? if site.modules_after == "reset"
        module reset
        #? else
        module purge
        #? endif
        module load "${MODULES[@]}" || return 2
    fi
    #? endif
    case $RUNTIME in
        #? if container
        "{{ runtime }}") enter_container "$@" && return ;;
        #? endif
        venv)
            #? if slurm and not venv
            [[ -d $VENV/bin ]] || missing "no virtual environment at $VENV; set VENV, or another RUNTIME" || return
            #? elif slurm
            [[ -d $VENV/bin && ! -e $VENV/.unfinished ]] ||
                missing "no virtual environment at $VENV, or it is still being built; build it with 'bash slurm/build_venv.sh'" || return
            #? else
            [[ -d $VENV/bin ]] ||
                missing "no virtual environment at $VENV; make it (see VENV in env.sh), set VENV, or RUNTIME={{ bare }}" || return
            #? endif
            [[ ! -d $VENV/conda-meta ]] || export PATH="$VENV/bin:$PATH" CONDA_PREFIX="$VENV" # a conda environment will do as well
            # shellcheck source=/dev/null
            [[ -d $VENV/conda-meta ]] || source "$VENV/bin/activate"
            ;;
        #? if runai
        pod) ;;
        #? else
        none) ;;
        #? endif
        *) missing "RUNTIME='$RUNTIME' is not known; use {{ runtime ~ ", " if container }}venv or {{ bare }}" ;;
    esac || return
    command -v "$PYTHON" >/dev/null || missing "$PYTHON was not found; set PYTHON, or RUNTIME=venv"
}
