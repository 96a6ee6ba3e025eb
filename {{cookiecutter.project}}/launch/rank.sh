#!/usr/bin/env bash
# One process per GPU: whoever starts this file does so once for every rank, and it becomes the program.
#
#   launch/rank.sh program.py [arguments]        or: launch/rank.sh -m package.module [arguments]
#
# Which rank this is comes from whoever started it, looked up in this order:
#   OMPI_COMM_WORLD_*                   mpirun, one copy per rank
#   SLURM_STEP_*, SLURM_PROCID          srun, one task per rank
#   none of these                       this process alone
#
# Read from the environment, all optional but the first where there are several ranks:
#   MASTER_ADDR, MASTER_PORT   where rank 0 listens          (slurm/submit_multinode.sh sets them)
#   NPROC_PER_NODE             ranks that each node must have (else its GPUs; else as many as were started)
#   OMP_NUM_THREADS            threads of each rank           (else the cores it may use)
#   RUN_DIR                    folder for what each rank prints as an error
#   PYTHON                     the interpreter                (python3)
set -euo pipefail

host=${SLURMD_NODENAME:-$(hostname)}

die() {
    echo "launch/rank.sh on $host: $*" >&2
    exit 2
}

# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/count_gpus.sh"

(($#)) || die "no program given. Usage: launch/rank.sh program.py [arguments]"
command -v "${PYTHON:=python3}" >/dev/null || die "$PYTHON: not found; see RUNTIME and PYTHON in env.sh"

# nproc obeys OMP_NUM_THREADS, hence without it; a step may be allowed fewer cores than it was given, or the reverse.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
((cores <= ${SLURM_CPUS_PER_TASK:-$cores})) || cores=$SLURM_CPUS_PER_TASK

if [[ -n ${OMPI_COMM_WORLD_SIZE:-} ]]; then
    RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
    nodes=$((WORLD_SIZE / LOCAL_WORLD_SIZE)) GROUP_RANK=$((RANK / LOCAL_WORLD_SIZE))
    export SLURM_STEP_ID=${SLURM_STEP_ID:-0} # Open MPI 4, in a container under mpirun 5, takes a rank without one to be alone
    cores=$((cores > LOCAL_WORLD_SIZE ? cores / LOCAL_WORLD_SIZE : 1)) # mpirun binds nobody: these are the whole node's
elif [[ -n ${SLURM_STEP_NUM_TASKS:-} ]]; then # the step: SLURM_JOB_* and SLURM_NTASKS describe another thing, the allocation
    RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS nodes=$SLURM_STEP_NUM_NODES GROUP_RANK=$SLURM_NODEID
    LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((WORLD_SIZE / nodes))
else
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 nodes=1 GROUP_RANK=0
fi
wanted=${NPROC_PER_NODE:-${SLURM_GPUS_ON_NODE:+$(count_gpus)}}
((wanted)) || wanted=$LOCAL_WORLD_SIZE
((WORLD_SIZE == nodes * wanted)) ||
    die "started $WORLD_SIZE time(s) on $nodes node(s), but once per rank is wanted, $wanted times on each: srun --ntasks=$((nodes * wanted)) --ntasks-per-node=$wanted, or mpirun --map-by ppr:$wanted:node"
((WORLD_SIZE > 1)) || MASTER_ADDR=127.0.0.1 MASTER_PORT=0 # it meets nobody: MASTER_ADDR could be a leftover
[[ -n ${MASTER_ADDR:-} && -n ${MASTER_PORT:-} ]] ||
    die "$WORLD_SIZE ranks, but MASTER_ADDR and MASTER_PORT are not both set: start through slurm/submit_multinode.sh or set them"

export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores}
# Lightning, Accelerate and others take this for the sign that the variables above are there, and leave Slurm's alone.
export TORCHELASTIC_RUN_ID=${SLURM_JOB_ID:-run}.${SLURM_RESTART_COUNT:-0}.$MASTER_PORT
export PYTHONUNBUFFERED=1 # into a pipe Python would keep its lines back
if [[ -n ${RUN_DIR:-} ]]; then
    folder=$RUN_DIR/node$GROUP_RANK-$host/$LOCAL_RANK
    mkdir -p "$folder"
    export TORCHELASTIC_ERROR_FILE=$folder/error.json
    exec 2> >(trap '' INT TERM && exec tee "$folder/stderr.log" >&2)
fi
exec "$PYTHON" "$@"
