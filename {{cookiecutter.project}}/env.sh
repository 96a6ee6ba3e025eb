#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set slurm = site.kind == "slurm"
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
#? if site.node.cpu_only
# Processes per node where no GPU says how many.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

#? endif
# ---- Python -------------------------------------------------------------------------------------
#? if slurm
# Environment modules, loaded in this order whenever the environment is built or used.
#? if site.modules
MODULES=(
    #? for module in site.modules
    "{{ module }}"
    #? endfor
)
#? else
MODULES=()
#? endif
#? endif
# venv: the virtual environment below; none: the python3 {{ "of MODULES or " if slurm }}on PATH.
RUNTIME="${RUNTIME:-{{ cookiecutter.runtime }}}"
#? if slurm
# Made by slurm/build_venv.sh.
#? else
# Made by: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt
#? endif
VENV="${VENV:-$PROJECT_DIR/.venv}"
export PYTHON="${PYTHON:-python3}"

#? if slurm
# ---- how a job's processes are started ----------------------------------------------------------
LAUNCHER="${LAUNCHER:-{{ cookiecutter.launcher }}}"
# A container goes here: flags that srun understands, and a command that is put before the launcher.
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()

# ---- network and libraries ----------------------------------------------------------------------
#? if not site.partitions
# If the ranks time out while connecting, name the network that all nodes share ('ip -br address' on a node lists them):
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# If the compute nodes reach the internet through a proxy only:
# export http_proxy=http://proxy:3128 https_proxy=http://proxy:3128

#? endif
#? if site.host_suffix or not site.partitions
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
# Called by the scripts: makes $PYTHON the interpreter that has torch. Returns 2, with a sentence, if something is missing.
activate() {
    #? if slurm
    if ((${#MODULES[@]})); then
        module purge
        module load "${MODULES[@]}" || return 2
    fi
    #? endif
    case $RUNTIME in
        venv)
            if [[ ! -f $VENV/bin/activate ]]; then
                #? if slurm
                echo "env.sh: no virtual environment at $VENV; build it with 'bash slurm/build_venv.sh', set VENV, or set RUNTIME=none" >&2
                #? else
                echo "env.sh: no virtual environment at $VENV; make it (see VENV in env.sh), set VENV, or set RUNTIME=none" >&2
                #? endif
                return 2
            fi
            #? if slurm
            if [[ -e $VENV/.unfinished ]]; then
                echo "env.sh: $VENV is still being built; wait until the output of that job ends with 'ready:'" >&2
                return 2
            fi
            #? endif
            # shellcheck source=/dev/null
            source "$VENV/bin/activate"
            ;;
        none) ;;
        *)
            echo "env.sh: RUNTIME='$RUNTIME' is not known; use venv or none" >&2
            return 2
            ;;
    esac
    if ! command -v "$PYTHON" >/dev/null; then
        echo "env.sh: $PYTHON was not found; set PYTHON, or RUNTIME=venv" >&2
        return 2
    fi
}
