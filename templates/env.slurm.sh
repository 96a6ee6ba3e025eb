#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set container = plan.in_container
#? set modules = plan.modules_of
#? set venv = "venv" in site.runtimes
# The settings of this project: software, launcher, network. Edit two places, this file and the
# #SBATCH lines of slurm/submit_multinode.sh, which set nodes, GPUs, walltime, account and queue.
# The scripts of slurm/ read this file when you submit a job and when it starts. A job that waits
# sees your edits, unless an extra has copied this file.
#
# To change a setting for one job: NAME=value bash slurm/submit_multinode.sh … This does not work
# for the lists in parentheses. Keys do not belong here: wandb login and hf auth login keep them in
# files that nobody else reads.
# shellcheck disable=SC2034  # the scripts that read this file use its variables

#? if plan.node_facts.cpu_only
# Processes (ranks) of each node without GPUs. With GPUs there is one per GPU.
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
# then load MODULES in this order.
#? endif
#? if site.module_lines.before or site.module_lines.after
# load_modules of launch/software.sh has the lines that this site needs around module load.
#? endif
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
#? if venv
# The environment for RUNTIME=venv, of venv, uv or conda. slurm/build_venv.sh makes .venv.
#? else
# The virtual environment for RUNTIME=venv.
#? endif
VENV="${VENV:-$PROJECT_DIR/.venv}"
#? if plan.packages_from == "folder"
# Folder from which slurm/build_venv.sh installs, as compute nodes reach no package index.
WHEELS="${WHEELS:-$PROJECT_DIR/wheels}"
#? endif
# The interpreter that has torch.
export PYTHON="${PYTHON:-python3}"

#? if container
#? include "env.container.sh"
#? endif
# ---- launch -------------------------------------------------------------------------------------
#? if not container
# For a container of your own: options of srun that start tasks in it.
CONTAINER_SRUN_ARGS=()
# For a container of your own: a command that stands before the launcher and runs it in the
# container.
CONTAINER_EXEC=()
#? endif
# The program of a job that names none; a file of the project.
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
# Further options of torchrun, separated by spaces.
#? for option in site.torchrun
# {{ option.option }}: {{ option.why }}
#? endfor
export TORCHRUN_OPTIONS="${TORCHRUN_OPTIONS-{{ site.torchrun | map(attribute="option") | join(" ") }}}"
# A command that stands before the launcher on each node, or before each rank if LAUNCHER starts them
# one by one. It runs in the container, if there is one: RANK_PREFIX=(numactl --interleave=all), or
# for profiles RANK_PREFIX=(nsys profile --output=%q{RUN_DIR}/%h-%p)
RANK_PREFIX=()
# 1: check every node before launch (a second or less); 0: skip.
PREFLIGHT="${PREFLIGHT:-1}"
# Seconds before the time limit at which the program is asked to save; a tenth of the remaining time
# where STOP_TIME would come earlier. If saving takes longer, raise it here, and in --signal of the
# #SBATCH lines for jobs of plain sbatch.
SAVE_SECONDS="${SAVE_SECONDS:-{{ plan.warning }}}"
# How often the submit script requeues a job whose program saved because the walltime was nearly
# over. 0: never.
MAX_REQUEUES="${MAX_REQUEUES:-20}"
# A signal that each rank gets, beside STOP_FILE, when the walltime is nearly over: USR1 for programs
# that save on it (slurm/docs/longer-than-the-walltime.md). Empty: none.
STOP_SIGNAL="${STOP_SIGNAL:-}"

# ---- network and libraries -----------------------------------------------------------------------
#? if not (site.partitions or site.qos)
# If the ranks time out while connecting, name the network that all nodes share. 'ip -br address' on
# a node lists them:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# If the compute nodes reach the internet through a proxy only:
# export http_proxy=http://proxy:3128 https_proxy=http://proxy:3128

#? endif
#? for variable in site.environment + site.containers[runtime].entry_environment
# {{ variable.why }}
export "{{ variable.name }}={{ overridable(variable) }}"
#? endfor
# Suffix of the nodes' names on the network where ranks meet: -ib0 turns node1 into node1-ib0.
# Empty: ranks meet at the node's own name.
export MASTER_ADDR_SUFFIX="${MASTER_ADDR_SUFFIX:-{{ site.host_suffix }}}"
