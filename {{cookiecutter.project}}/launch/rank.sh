#!/usr/bin/env bash
# Runs once per rank: sets the variables that PyTorch reads (RANK, WORLD_SIZE, MASTER_ADDR …), then
# becomes the program.
#
#   launch/rank.sh program.py [arguments]
#   launch/rank.sh -m package.module [arguments]
#
# The rank comes from the variables of srun, which starts one task per rank: SLURM_STEP_*,
# SLURM_PROCID. Without them this process is the only rank.
#
# Read from the environment. With several ranks MASTER_ADDR and MASTER_PORT are required.
#   MASTER_ADDR, MASTER_PORT   where rank 0 listens         (slurm/submit_multinode.sh sets them)
#   NPROC_PER_NODE             ranks on each node           (its GPUs, else the started ranks)
#   OMP_NUM_THREADS            threads of each rank         (the cores that the rank may use)
#   RUN_DIR                    folder for each rank's messages and error file
#   PYTHON                     the interpreter              (python3)
#
# Sets for the rank:
#   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT
#   OMP_NUM_THREADS            unless it is set, see above
#   TORCHELASTIC_RUN_ID        Lightning, Accelerate and others then read the variables above
#   PYTHONUNBUFFERED=1         the rank's lines appear at once
#   TORCHELASTIC_ERROR_FILE    with RUN_DIR: a file for the rank's error
set -euo pipefail

main() {
    local cores
    (($#)) || die "no program given. Usage: launch/rank.sh program.py [arguments]"
    [[ $1 != -* || $1 == -m ]] || die "no program '$1': write ./$1 if a file has this name"
    command -v "${PYTHON:=python3}" >/dev/null ||
        die "$PYTHON was not found: set RUNTIME or PYTHON in env.sh"
    find_this_rank # sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, nodes
    check_ranks_per_node
    choose_endpoint # sets MASTER_ADDR, MASTER_PORT
    export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT

    cores=$(count_cores)
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores}
    # Lightning, Accelerate and others look for this variable of torchrun. Where it is set, they
    # read the variables above and leave Slurm's alone.
    export TORCHELASTIC_RUN_ID=${SLURM_JOB_ID:-run}.${SLURM_RESTART_COUNT:-0}.$MASTER_PORT
    export PYTHONUNBUFFERED=1 # Python would keep lines back, as it writes into a pipe
    if [[ -n ${RUN_DIR:-} ]]; then
        keep_messages "$RUN_DIR/node$GROUP_RANK-$host/$LOCAL_RANK"
    fi
    unset NPROC_PER_NODE # a job that this rank submits has a number of its own
    exec "$PYTHON" "$@"
}

# Sets nodes and the variables of PyTorch that tell the ranks apart. SLURM_STEP_* describe srun's
# step; SLURM_JOB_* and SLURM_NTASKS the allocation, which may be larger.
find_this_rank() {
    if [[ -z ${SLURM_STEP_NUM_TASKS:-} ]]; then # no srun: this process is the only rank
        nodes=1 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0
        return
    fi
    nodes=$SLURM_STEP_NUM_NODES
    RANK=$SLURM_PROCID
    WORLD_SIZE=$SLURM_STEP_NUM_TASKS
    LOCAL_RANK=$SLURM_LOCALID
    LOCAL_WORLD_SIZE=$((WORLD_SIZE / nodes))
    GROUP_RANK=$SLURM_NODEID
}

# Refuses a number of ranks that leaves GPUs idle, or gives one GPU to two ranks.
check_ranks_per_node() {
    local per_node=${NPROC_PER_NODE:-}
    if [[ -z $per_node && -n ${SLURM_GPUS_ON_NODE:-} ]]; then
        per_node=$(count_gpus)
    fi
    if [[ -z $per_node || $per_node == 0 ]]; then
        per_node=$LOCAL_WORLD_SIZE
    fi
    ((WORLD_SIZE == nodes * per_node)) ||
        die "started $WORLD_SIZE time(s) on $nodes node(s), but once per rank is wanted," \
            "$per_node times on each:" \
            "srun --ntasks=$((nodes * per_node)) --ntasks-per-node=$per_node"
}

# Sets MASTER_ADDR and MASTER_PORT, where rank 0 listens.
choose_endpoint() {
    # One rank needs no endpoint: ignore an inherited MASTER_ADDR. Port 0 stands for any free port.
    if ((WORLD_SIZE == 1)); then
        MASTER_ADDR=127.0.0.1 MASTER_PORT=0
    fi
    [[ -n ${MASTER_ADDR:-} && -n ${MASTER_PORT:-} ]] ||
        die "$WORLD_SIZE ranks, but MASTER_ADDR and MASTER_PORT are not both set:" \
            "start through slurm/submit_multinode.sh or set them"
}

# Copies what the rank prints to stderr into a file in FOLDER, and names its error file.
keep_messages() {
    local folder=$1
    mkdir -p "$folder"
    export TORCHELASTIC_ERROR_FILE=$folder/error.json
    # A signal that ends the rank must not end tee before it has written the rank's last lines.
    exec 2> >(trap '' HUP INT TERM USR1 USR2 && exec tee "$folder/stderr.log" >&2)
}

die() {
    echo "launch/rank.sh on $host: $*" >&2
    exit 2
}

host=${SLURMD_NODENAME:-$(hostname)}
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/count_gpus.sh"
main "$@"
