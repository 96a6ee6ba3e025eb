#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set node = node_facts(cookiecutter)
#? set slurm = site.kind == "slurm"
#? set runtime = cookiecutter.runtime
#? set container = runtime not in ("venv", "none")
#? set modules = modules_of(cookiecutter)
#? set venv = not slurm or "venv" in site.runtimes
#? set suffix = "sif" if runtime == "apptainer" else "sqsh"
#? set flags = site.containers[runtime].options
# The settings of this project, and the one file to edit: where Python comes from and what the processes see.
#? if slurm
# Sourced by slurm/*.sh when a job is submitted and when it starts. NAME=value sbatch … overrides a line for one job
# (not a list in parentheses).
# Nodes, GPUs, walltime and queue are the #SBATCH lines of slurm/submit_multinode.sh.
#? else
# Sourced by local/submit.sh. NAME=value bash local/submit.sh … overrides a line for one run.
#? endif
# shellcheck disable=SC2034  # used by the scripts that source this file

#? if not slurm
# torchrun is started this many times, as on so many nodes.
NNODES="${NNODES:-{{ cookiecutter.nodes }}}"
#? endif
#? if not slurm and cookiecutter.gpus_per_node | int
# Processes of each.
export NPROC_PER_NODE="${NPROC_PER_NODE:-{{ cookiecutter.gpus_per_node }}}"
#? endif
#? if node.cpu_only
# Processes per node where no GPU says how many.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

#? endif
# ---- Python -------------------------------------------------------------------------------------
# {{ runtime ~ ": the container image below; " if container }}{{ "venv: the virtual environment below; " if venv }}none: the python3 {{ "of MODULES or " if slurm }}on PATH.
RUNTIME="${RUNTIME:-{{ runtime }}}"
#? if slurm
# Environment modules, loaded in this order whenever the environment is built or used.
#? if "" not in modules
#? if site.modules
MODULES=("{{ site.modules | join('" "') }}")
#? else
MODULES=()
#? endif
case $RUNTIME in
    #? for name, list in modules.items() if list
    "{{ name }}") MODULES=("{{ list | join('" "') }}") ;;
    #? endfor
esac
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
#? else
# Made by: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt
#? endif
VENV="${VENV:-$PROJECT_DIR/.venv}"
export PYTHON="${PYTHON:-python3}"

#? if container
# ---- container ----------------------------------------------------------------------------------
#? if runtime in ("apptainer", "pyxis", "enroot", "edf")
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
# Folders that it sees, network, variables: container/{{ cookiecutter.project }}.toml
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
# Filled by activate below: options of srun, and a command that is put before the launcher.
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()

#? endif
#? if slurm
# ---- how a job's processes are started ----------------------------------------------------------
#? if not container
# A container goes here: options of srun, and a command that is put before the launcher.
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()
#? endif
# {{ site.launchers | join(", ") }}: README.md says which starts what.
LAUNCHER="${LAUNCHER:-{{ cookiecutter.launcher }}}"

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
missing() {
    echo "env.sh: $*" >&2
    return 2
}

#? if container
#? if runtime in ("apptainer", "pyxis", "enroot", "edf")
have_image() {
    #? if image_source(cookiecutter)
    [[ $IMAGE == /* && -r $IMAGE ]] ||
        missing "no image at '$IMAGE', which must be an absolute path; make it with 'bash slurm/build_container.sh', or set IMAGE"
    #? else
    [[ $IMAGE == /* && -r $IMAGE ]] || missing "no image at '$IMAGE', which must be an absolute path; set IMAGE"
    #? endif
}

#? endif
#? if runtime not in ("edf", "shifter")
# Fills FOLDERS with what the container shall see, each folder once, those above before those below.
visible() {
    local folder
    mapfile -t FOLDERS < <(printf '%s\n' "$@" "${BINDS[@]}" | LC_ALL=C sort -u)
    for folder in "${FOLDERS[@]}"; do
        [[ -r $folder && $folder != *[,:]* ]] ||
            missing "the container cannot see '$folder': it must be readable and have no , or : in its name; see BINDS" || return
    done
}

#? endif
#? if runtime == "apptainer"
# Puts 'apptainer exec …' before the launcher.
#? elif runtime == "pyxis"
# Gives srun the options of its pyxis plug-in.
#? elif runtime == "edf"
# Gives srun the file that describes the container; the variables in that come from here.
#? elif runtime == "shifter"
# Puts 'shifter …' before the launcher.
#? else
# Puts container/start.sh before the launcher: what it hands in is known on the nodes only.
#? endif
enter_container() {
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    #? if runtime == "apptainer"
    local program=apptainer folder
    command -v apptainer >/dev/null || program=singularity
    command -v "$program" >/dev/null ||
        missing "neither apptainer nor singularity was found on $(hostname); name its module in MODULES, or set another RUNTIME;" \
            "if compute nodes alone have it, submit with sbatch" || return
    have_image && visible "$@" || return
    unset BASH_ENV # the host's would take the place of the image's
    #? if gpu_option(cookiecutter)
    CONTAINER_EXEC=("$program" exec "{{ gpu_option(cookiecutter) }}")
    #? else
    CONTAINER_EXEC=("$program" exec)
    #? endif
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    for folder in "${FOLDERS[@]}"; do
        CONTAINER_EXEC+=(--bind "$folder")
    done
    CONTAINER_EXEC+=("$IMAGE")
    #? for word in site.containers[runtime].entry
    CONTAINER_EXEC+=("{{ word }}")
    #? endfor
    #? elif runtime == "pyxis"
    local mounts names
    [[ $(srun --help 2>&1) == *--container-image* ]] ||
        missing "srun on $(hostname) knows no --container-image: pyxis is not installed; set another RUNTIME" || return
    have_image && visible "$@" || return
    mounts=$(printf ',%s' "${FOLDERS[@]}")
    # Where image and job set the same variable, the image's value counts, but for these.
    names=$(compgen -e | grep -E '^(NCCL|GLOO|FI|UCX|OMP|TORCH|HF|WANDB)_' | paste -sd,)
    unset "${!PYXIS_@}"
    CONTAINER_SRUN_ARGS=(--container-image="$IMAGE" --container-mounts="${mounts:1}" --container-workdir="$PWD"
        --container-env="MASTER_ADDR,MASTER_PORT${names:+,$names}")
    #? for flag in flags
    CONTAINER_SRUN_ARGS+=("{{ flag }}")
    #? endfor
    [[ -z $KEEP_CONTAINER ]] || CONTAINER_SRUN_ARGS+=(--container-name="$KEEP_CONTAINER")
    #? elif runtime == "edf"
    [[ $(srun --help 2>&1) == *--environment* ]] ||
        missing "srun on $(hostname) knows no --environment: the container engine is not there; set another RUNTIME" || return
    have_image || return
    export IMAGE PWD PROGRAM_DIR="${!#}"
    CONTAINER_SRUN_ARGS=(--environment="$PROJECT_DIR/container/{{ cookiecutter.project }}.toml")
    #? elif runtime == "shifter"
    command -v shifter >/dev/null || missing "shifter was not found on $(hostname); set another RUNTIME" || return
    [[ -n ${SLURM_JOB_ID:-} ]] || shifterimg lookup "docker:$IMAGE" >/dev/null 2>&1 ||
        missing "the image $IMAGE was not pulled; run 'bash slurm/build_container.sh', or set IMAGE" || return
    CONTAINER_EXEC=(shifter --image="docker:$IMAGE")
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    #? else
    #? if runtime == "enroot"
    command -v enroot >/dev/null ||
        missing "enroot was not found on $(hostname); name its module in MODULES, or set another RUNTIME;" \
            "if compute nodes alone have it, submit with sbatch" || return
    have_image || return
    #? else
    command -v podman-hpc >/dev/null || missing "podman-hpc was not found on $(hostname); set another RUNTIME" || return
    [[ -n $(podman-hpc images --quiet "$IMAGE") ]] ||
        missing "there is no image $IMAGE; run 'bash slurm/build_container.sh', or set IMAGE" || return
    #? endif
    visible "$@" || return
    CONTAINER_EXEC=("$PROJECT_DIR/container/start.sh" "$IMAGE" "${FOLDERS[@]}" --)
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
            [[ -d $VENV/bin ]] ||
                missing "no virtual environment at $VENV; build it with 'bash slurm/build_venv.sh', set VENV, or another RUNTIME" || return
            [[ ! -e $VENV/.unfinished ]] ||
                missing "$VENV is still being built; wait until the output of that job ends with 'ready:'" || return
            #? else
            [[ -d $VENV/bin ]] ||
                missing "no virtual environment at $VENV; make it (see VENV in env.sh), set VENV, or RUNTIME=none" || return
            #? endif
            if [[ -d $VENV/conda-meta ]]; then # a conda environment's folder will do as well
                export PATH="$VENV/bin:$PATH" CONDA_PREFIX="$VENV"
            else
                # shellcheck source=/dev/null
                source "$VENV/bin/activate"
            fi
            ;;
        none) ;;
        *) missing "RUNTIME='$RUNTIME' is not known; use {{ runtime ~ ", " if container }}venv or none" ;;
    esac || return
    command -v "$PYTHON" >/dev/null || missing "$PYTHON was not found; set PYTHON, or RUNTIME=venv"
}
