#!/usr/bin/env bash
# Runs a PyTorch program on this machine as if on several nodes. Each "node" is one torchrun; there
# is no scheduler.
#
#   bash local/submit.sh                                       DEFAULT_PROGRAM of env.sh
#? if cookiecutter.examples == "yes"
#   bash local/submit.sh pi/pi.py --intervals 1e9              any program, with its arguments
#   NNODES=4 NPROC_PER_NODE=1 bash local/submit.sh pi/pi.py    4 nodes of one process each
#? else
#   bash local/submit.sh program.py --lr 1e-3                  any program, with its arguments
#   NNODES=4 NPROC_PER_NODE=1 bash local/submit.sh program.py  4 nodes of one process each
#? endif
#
# The nodes share this machine's cores and GPUs, and each GPU goes to one process. If there are
# fewer GPUs than processes, all processes run on CPUs. The program is looked up in the current
# folder, then in the project. Its exit code is this script's: 0, or not 0. What each rank printed
# is also below logs/. Settings: env.sh.

# shellcheck disable=SC2154 # the functions below set code
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/local/project.sh" local/submit.sh # the functions below

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi

unset_stale_variables               # RANK, WORLD_SIZE … of the calling shell
ranks_asked_for=${NPROC_PER_NODE:-} # for this run; env.sh may set it for all runs
read_settings                       # env.sh
read_extras                         # extras/*/: call_extras calls their functions
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
set_up_software || exit
set -euo pipefail # only now: virtual environments read variables that are not set

check_settings
read_program "$@" # program, arguments
refuse_program_with_own_ranks "$ranks_asked_for"
share_gpus        # NPROC_PER_NODE, and the GPUs of each node
share_cores       # OMP_NUM_THREADS
use_loopback      # the nodes meet at 127.0.0.1
make_run_folder   # logs/TIME.PROCESS

launch            # torchrun for each node; sets code
call_extras job_end
exit "$code"
