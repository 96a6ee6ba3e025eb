# The settings of this project, and the one file that you edit. local/submit.sh reads it.
#
# To change a setting for one run: NAME=value bash local/submit.sh …
# Keys do not belong here: wandb login and hf auth login keep them in files that nobody else reads.
# shellcheck disable=SC2034  # the scripts that read this file use its variables

# Number of "nodes": local/submit.sh starts one torchrun for each, all on this machine.
NNODES="${NNODES:-{{ cookiecutter.nodes }}}"
#? if cookiecutter.gpus_per_node | int
# Processes (ranks) of each node.
export NPROC_PER_NODE="${NPROC_PER_NODE:-{{ cookiecutter.gpus_per_node }}}"
#? endif
#? if plan_of(cookiecutter).node_facts.cpu_only
# Processes (ranks) of each node without GPUs. With GPUs there is one per GPU.
export CPU_RANKS_PER_NODE="${CPU_RANKS_PER_NODE:-2}"

#? endif
# The program of a run that names none; a file of the project.
#? if cookiecutter.examples == "yes"
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-training/train_ddp.py}"
#? else
DEFAULT_PROGRAM="${DEFAULT_PROGRAM:-check/ranks.py}"
#? endif
# A command that stands before the torchrun of each "node": RANK_PREFIX=(numactl --interleave=all), or
# for a profile RANK_PREFIX=(nsys profile --output=%q{RUN_DIR}/%h-%p)
RANK_PREFIX=()

# ---- Python -------------------------------------------------------------------------------------
# Where Python and torch come from:
# venv:       the virtual environment VENV
# none:       the python3 on PATH
RUNTIME="${RUNTIME:-{{ cookiecutter.runtime }}}"
# The virtual environment for RUNTIME=venv. Make it with: python3 -m venv .venv && .venv/bin/pip
# install -r requirements.txt
VENV="${VENV:-$PROJECT_DIR/.venv}"
# The interpreter that has torch.
export PYTHON="${PYTHON:-python3}"
