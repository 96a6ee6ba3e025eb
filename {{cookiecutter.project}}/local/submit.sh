#!/usr/bin/env bash
# Runs a PyTorch program on this machine as on several nodes: one torchrun each, all on loopback, no scheduler.
#
#   bash local/submit.sh                                             check/ranks.py, then training/train_ddp.py
#   bash local/submit.sh pi/pi.py --intervals 1e9                    any program, with its arguments
#   NNODES=4 NPROC_PER_NODE=1 bash local/submit.sh pi/pi.py          4 nodes of one process
#
# The "nodes" share this machine's cores and GPUs, each GPU going to one of them. With fewer GPUs than processes all run
# on CPUs. The program is looked up in the current folder, then in the project. Its exit code is this script's: 0, or not 0.
# Settings: env.sh. What each rank printed is also below logs/.

die() {
    echo "local/submit.sh: $*" >&2
    exit 2
}

# Prints the GPUs that may be used, one a line.
visible_gpus() {
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep '^[^-[:space:]]'
    elif command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index --format=csv,noheader
    fi
}

# Prints a port on which nothing happens, from outside the range that outgoing connections draw from (32768 and above).
free_port() {
    local port
    for ((port = 10000 + $$ % 20000; port < 32768; port++)); do
        grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X $port) " /proc/net/tcp /proc/net/tcp6 || { echo $port && return; }
    done
    die "no free port"
}

# Runs one program on all "nodes"; the first failure ends the others.
run() {
    local node port code=0 agents=()
    port=$(free_port) || exit
    echo "$(date '+%F %T') $* as $NNODES node(s) x $NPROC_PER_NODE process(es)"
    trap 'kill "${agents[@]}" 2>/dev/null; wait; exit 143' INT TERM
    for ((node = 0; node < NNODES; node++)); do
        CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:node * NPROC_PER_NODE:NPROC_PER_NODE}") \
            PET_NNODES=$NNODES PET_NODE_RANK=$node PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=$port \
            "$PROJECT_DIR/launch/torchrun.sh" "$@" &
        agents+=($!)
    done
    for ((node = 0; node < NNODES && code == 0; node++)); do
        wait -n || code=$?
    done
    ((code == 0)) || kill "${agents[@]}" 2>/dev/null || true
    wait
    trap - INT TERM
    return $code
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^$/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# Unset stale variables of the calling shell, which the launchers would take for this run's.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!PET_@}" "${!OMPI_@}" "${!PMI@}" "${!SLURM_@}"
asked=${NPROC_PER_NODE:-} # for this run, before env.sh sets it for all
# shellcheck source=/dev/null
source "$PROJECT_DIR/env.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
set_up_software || exit
set -euo pipefail # only now: virtual environments read variables that are not set

[[ $NNODES =~ ^[1-9][0-9]*$ ]] || die "NNODES='$NNODES': expected a whole number of at least 1"
[[ ${NPROC_PER_NODE:-1} =~ ^[1-9][0-9]*$ ]] || die "NPROC_PER_NODE='$NPROC_PER_NODE': expected a whole number of at least 1"
mapfile -t gpus < <(visible_gpus)
if [[ -z ${NPROC_PER_NODE:-} ]]; then
    NPROC_PER_NODE=$((${#gpus[@]} >= NNODES ? ${#gpus[@]} / NNODES : CPU_RANKS_PER_NODE))
fi
if ((${#gpus[@]} > 0 && ${#gpus[@]} < NNODES * NPROC_PER_NODE)); then
    echo "local/submit.sh: ${#gpus[@]} GPU(s) for $NNODES x $NPROC_PER_NODE processes are too few: running on CPUs, with gloo" >&2
    gpus=()
fi
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
ranks=$((NNODES * NPROC_PER_NODE))
export NPROC_PER_NODE OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
# Loopback, because a laptop's own name often leads nowhere, or to an address that changes.
export NODE_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
RUN_DIR="$PROJECT_DIR/logs/$(date +%Y%m%d-%H%M%S).$$"
export RUN_DIR

# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh"
program=$(find_program "$@") || exit
if [[ -z $asked ]] && starts_its_own_ranks "$program"; then
    die "$program starts its own ranks: run it without this script, $PYTHON $program"
fi
make_logs_folder || die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go"
run "$program" "${@:2}"
[[ -n ${1:-} ]] || run "$PROJECT_DIR/training/train_ddp.py"
