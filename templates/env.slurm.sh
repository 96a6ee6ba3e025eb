#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set container = plan.in_container
#? set modules = plan.modules_of
#? set venv = "venv" in site.runtimes
# The settings of this project: software, launcher, network. The #SBATCH lines of
# slurm/submit_multinode.sh set nodes, GPUs, walltime, account and queue. The scripts of slurm/ read
# this file when you submit a job and again when it starts, so an edit reaches jobs that wait in the
# queue, too. But the signal of --signal comes as SAVE_SECONDS was at the submission.
#
# To change a setting of the form NAME="${NAME:-value}" for one job, write it before the command:
#   NAME=value bash slurm/submit_multinode.sh …
# The header of launch/torchrun.sh lists more that you may set in this way, such as NPROC_PER_NODE
# and RDZV_TIMEOUT. Passwords and keys of an API do not belong here: wandb login and hf auth login
# keep them in files that only you can read.
# shellcheck disable=SC2034  # the scripts that read this file use its variables

#? if plan.node_facts.cpu_only
# Ranks on each node without GPUs. With GPUs there is a rank per GPU.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

#? endif
# ---- Python -------------------------------------------------------------------------------------
# Where Python and torch come from:
#? if container
# {{ (runtime ~ ":").ljust(11) }} the container image IMAGE
#? endif
#? if venv
# venv:       the virtual environment VENV
#? else
# venv:       a virtual environment of yours, VENV
#? endif
# none:       the python3 of MODULES, or on PATH
RUNTIME="${RUNTIME:-{{ runtime }}}"
#? if site.modules_after == "reset"
# Environment modules, as in MODULES=("gcc" "cuda"). Each job and slurm/build_*.sh go back to the
# site's default modules, then load MODULES in this order.
#? else
# Environment modules, as in MODULES=("gcc" "cuda"). Each job and slurm/build_*.sh unload all others,
# then load MODULES in this order. With MODULES=(), the modules of your shell stay.
#? endif
#? if site.module_lines.before or site.module_lines.after
# load_modules of launch/software.sh has the lines that this site needs around module load.
#? endif
#? if "" not in modules
# The first line is for each RUNTIME that has no line of its own below.
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
#? if venv
# The environment for RUNTIME=venv, made by venv, uv or conda. slurm/build_venv.sh makes it.
#? else
# The virtual environment for RUNTIME=venv.
#? endif
VENV="${VENV:-$PROJECT_DIR/.venv}"
#? if plan.packages_from == "folder"
# Folder from which slurm/build_venv.sh installs, as compute nodes reach no package index.
WHEELS="${WHEELS:-$PROJECT_DIR/wheels}"
#? endif
# The interpreter that has torch. With RUNTIME=venv, python3 is that of VENV.
export PYTHON="${PYTHON:-python3}"

#? if container
#? include "env.container.sh"
#? endif
# ---- launch -------------------------------------------------------------------------------------
#? if not container
# To run the ranks in a container of your own, set one of these lists. Options of srun, as in
# CONTAINER_SRUN_ARGS=(--container-image=/images/torch.sqsh), or a command before the launcher, as in
# CONTAINER_EXEC=(apptainer exec --nv /images/torch.sif).
CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()
#? endif
# The program of a job for which you name none: a file of the project.
#? if cookiecutter.examples == "yes"
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-training/train_ddp.py}"
#? else
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-check/ranks.py}"
#? endif
#? set by_extra = plan.extra_launchers.values() | sum(start=[])
# Which program starts the ranks: {{ site.launchers | reject("in", by_extra) | join(", ") }} (slurm/docs/launchers.md compares them).
#? if by_extra
# The extra mpi adds {{ by_extra | join(" and ") }}.
#? endif
export LAUNCHER="${LAUNCHER:-{{ cookiecutter.launcher }}}"
# Further options of torchrun, or none (empty). Launchers without torchrun ignore them.
#? for option in site.torchrun
# {{ option.option }}: {{ option.why }}
#? endfor
export TORCHRUN_OPTIONS="${TORCHRUN_OPTIONS-{{ site.torchrun | map(attribute="option") | join(" ") }}}"
# A command before the launcher on each node; with LAUNCHER=srun before each rank. It runs in the
# container, if there is one. As in RANK_PREFIX=(numactl --interleave=all)
#? if plan.node_facts.gpu_vendor == "nvidia"
# or, for profiles in the folder of logs, RANK_PREFIX=(nsys profile --output=%q{RUN_DIR}/%h-%p). nsys
# replaces the words with %.
#? endif
RANK_PREFIX=()
# 1: check every node before launch, in about a second (slurm/preflight.sh); 0: skip.
PREFLIGHT="${PREFLIGHT:-1}"
# How many seconds before the time limit the program is asked to save. If saving takes longer, raise
# it. If you type sbatch yourself, set the number of --signal in the #SBATCH lines to the same.
# For a program that reads STOP_TIME it is at most a tenth of the time that remains.
SAVE_SECONDS="${SAVE_SECONDS:-{{ plan.warning }}}"
# How often a job may go back into the queue, after its program has saved near the time limit. Requeues
# by Slurm itself, as after a node's failure, count too. With 0 the scripts never requeue.
MAX_REQUEUES="${MAX_REQUEUES:-20}"
# A signal that asks each rank to save, such as USR1, for programs that wait for one. Empty: no signal.
# The file STOP_FILE asks in any case (slurm/docs/longer-than-the-walltime.md).
STOP_SIGNAL="${STOP_SIGNAL:-}"

# ---- network and libraries -----------------------------------------------------------------------
# Variables of your own go here, as in export NCCL_DEBUG=INFO. All ranks get them.

#? if not (site.partitions or site.qos)
# If the ranks time out while connecting, remove the # before this export, and name the interface of
# the network that all nodes share. It is in the first column of: srun --nodes=1 ip -br address
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# If the compute nodes reach the internet through a proxy only:
# export http_proxy=http://proxy:3128 https_proxy=http://proxy:3128

#? endif
#? for variable in site.environment + site.containers[runtime].entry_environment
# {{ variable.why }}
export "{{ variable.name }}={{ overridable(variable) }}"
#? endfor
# Ending of the first node's name in the network where the ranks meet: with -ib0 they meet at
# node1-ib0. Empty: at the node's own name.
export MASTER_ADDR_SUFFIX="${MASTER_ADDR_SUFFIX:-{{ site.host_suffix }}}"
