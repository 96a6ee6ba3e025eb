#!/usr/bin/env bash
#? set runai = site_facts(cookiecutter.site).kind == "runai"
#? set slurm = site_facts(cookiecutter.site).kind == "slurm"
# One torchrun per node: every node of a run starts this same file, and torchrun starts one process per GPU.
#
#   launch/torchrun.sh program.py [arguments]        or: launch/torchrun.sh -m package.module [arguments]
#
# Number of nodes, this node's rank and the meeting point come from whoever started it, looked up in this order:
#   OMPI_COMM_WORLD_*                   mpirun, one copy per node
#   SLURM_STEP_*, MASTER_*              srun, one task per node (MASTER_* are set by the submit script)
#   PET_*                               Kubernetes operators, and whoever starts several on one machine
#? if runai
#   RANK, WORLD_SIZE, MASTER_*          PyTorchJob before 1.7, where WORLD_SIZE counts pods; later ones set PET_* too, and
#                                       count processes in it (https://github.com/kubeflow/trainer/pull/1840, 2026-08-20)
#? endif
#   none of these                       this machine alone
#
# Read from the environment, all optional:
#   NPROC_PER_NODE     processes on this node         (else its GPUs, else CPU_RANKS_PER_NODE, else 1)
#   OMP_NUM_THREADS    threads of each process        (else the cores it may use, divided among the processes)
#   RDZV_BACKEND       static (default) or c10d       static: node 0 is rank 0 and one port is enough; c10d: torch
#                                                     orders the nodes by address and needs a second, random port
#   RDZV_TIMEOUT       seconds to wait for all nodes  (600)
#   NODE_ADDR          this node's name for the others, c10d only   (else its name in Slurm, or hostname)
#   RUN_DIR            folder for each rank's own log and each node's error file
#   PYTHON             the interpreter                (python3)
#? if slurm
#   LAUNCHER           spawn: launch/spawn.py does torchrun's part, from the same options
#? endif
set -euo pipefail

host=${SLURMD_NODENAME:-$(hostname 2>/dev/null || echo "$HOSTNAME")}

die() {
    echo "launch/torchrun.sh on $host: $*" >&2
    exit 2
}

# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/count_gpus.sh"

(($#)) || die "no program given. Usage: launch/torchrun.sh program.py [arguments]"

nodes=1 node_rank=0 address=${MASTER_ADDR:-} port=${MASTER_PORT:-}
if [[ -n ${OMPI_COMM_WORLD_SIZE:-} ]]; then
    [[ $OMPI_COMM_WORLD_LOCAL_SIZE == 1 ]] ||
        die "mpirun started $OMPI_COMM_WORLD_LOCAL_SIZE copies on this node, but one per node is wanted (torchrun starts the processes): mpirun --map-by ppr:1:node"
    nodes=$OMPI_COMM_WORLD_SIZE node_rank=$OMPI_COMM_WORLD_RANK
elif [[ -n ${SLURM_STEP_NUM_NODES:-} ]]; then # the step: SLURM_JOB_* and SLURM_NTASKS describe another thing, the allocation
    [[ $SLURM_STEP_NUM_TASKS == "$SLURM_STEP_NUM_NODES" ]] ||
        die "srun started $SLURM_STEP_NUM_TASKS tasks on $SLURM_STEP_NUM_NODES node(s), but one per node is wanted (torchrun starts the processes): srun --ntasks=$SLURM_STEP_NUM_NODES --ntasks-per-node=1"
    nodes=$SLURM_STEP_NUM_NODES node_rank=$SLURM_NODEID
elif [[ -n ${PET_NNODES:-} ]]; then
    nodes=$PET_NNODES node_rank=${PET_NODE_RANK:-} address=${PET_MASTER_ADDR:-$address} port=${PET_MASTER_PORT:-$port}
#? if runai
elif [[ -n ${RANK:-} && -n ${WORLD_SIZE:-} && -n ${MASTER_ADDR:-} ]]; then
    nodes=$WORLD_SIZE node_rank=$RANK
#? endif
fi
# On one node torchrun meets itself, on a port that it picks: MASTER_ADDR could be a leftover.
[[ -n $port && ($nodes != 1 || -n ${PET_NNODES:-}) ]] || address=''
ranks=${NPROC_PER_NODE:-$(count_gpus)}
[[ $ranks != 0 ]] || ranks=${CPU_RANKS_PER_NODE:-1}
# torchrun reads every option that is not given here from PET_*: what the operator or a login shell left must not decide.
unset "${!PET_@}"
#? if runai
[[ $nodes =~ ^[1-9][0-9]*$ ]] || die "number of nodes '$nodes': expected a whole number; a range is an elastic job's: submit without --min-replicas and --max-replicas"
[[ $node_rank =~ ^[0-9]+$ ]] || die "node rank '$node_rank': expected a whole number from 0 to $((nodes - 1))"
#? endif
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "processes per node '$ranks': expected a whole number of at least 1; set NPROC_PER_NODE"
[[ -n $address || $nodes == 1 ]] ||
    die "$nodes nodes, but MASTER_ADDR and MASTER_PORT are not both set: start through the submit script, or set them"
command -v "${PYTHON:=python3}" >/dev/null || die "$PYTHON: not found; see RUNTIME and PYTHON in env.sh"

# nproc obeys OMP_NUM_THREADS, hence without it; a step may be allowed fewer cores than it was given, or the reverse.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
((cores <= ${SLURM_CPUS_PER_TASK:-$cores})) || cores=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}

start=(-m torch.distributed.run)
#? if slurm
[[ ${LAUNCHER:-} != spawn ]] || RDZV_BACKEND=static start=("$(dirname "${BASH_SOURCE[0]}")/spawn.py")
#? endif
# --tee=3: lines go to the console, prefixed, and to a file per rank. That takes a tenth of a second at the end of a run;
# looking after the processes every 30 ms, not 100, makes up for some of it and notices a failure sooner.
options=(--nnodes="$nodes" --nproc-per-node="$ranks" --tee=3 --monitor-interval=0.03)
# But node 0 every 100 ms: it takes the store with it, and whoever still asks that one for the others' end prints a harmless
# trace, "Error waiting on exit barrier" (https://github.com/pytorch/pytorch/issues/69520; of 53 runs 9 did, so 1 of 40).
((nodes == 1 || node_rank)) || options+=(--monitor-interval=0.1)
case ${RDZV_BACKEND:-static}:$address in
    static: | c10d:) options+=(--standalone) ;;
    static:*) options+=(--rdzv-backend=static --node-rank="$node_rank" --rdzv-conf="timeout=${RDZV_TIMEOUT:-600}") ;;
    c10d:*) # who hosts the store is said, not guessed from names; local-addr is what rank 0's node tells the others
        options+=(--rdzv-backend=c10d --local-addr="${NODE_ADDR:-$host${MASTER_ADDR_SUFFIX:-}}"
            --rdzv-conf="is_host=$((node_rank == 0)),join_timeout=${RDZV_TIMEOUT:-600}") ;;
    *) die "RDZV_BACKEND='$RDZV_BACKEND': expected static or c10d" ;;
esac
[[ -z $address ]] || options+=(--rdzv-endpoint="$address:$port" --rdzv-id="${SLURM_JOB_ID:-run}.${SLURM_RESTART_COUNT:-0}.$port")

if [[ -n ${RUN_DIR:-} ]]; then
    mkdir -p "$RUN_DIR/node$node_rank-$host" # torchrun would, but after what may fail and be told in error.json
    options+=(--log-dir="$RUN_DIR/node$node_rank-$host")
    export TORCHELASTIC_ERROR_FILE=$RUN_DIR/node$node_rank-$host/error.json
fi
# shellcheck disable=SC2016 # ${rank} is torchrun's, which fills it in
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[$host:"'${rank}] '
# Told to end, torchrun tells its processes and kills them after 30 s (torch 2.12 and later read this): time to save.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
export PYTHONUNBUFFERED=1 # --tee writes through files, where Python would keep lines back

[[ $1 != -m ]] || { options+=(-m) && shift; }
# Without -- torchrun takes --max, meant for the program, for an abbreviation of its own --max-restarts.
exec "$PYTHON" "${start[@]}" "${options[@]}" -- "$@"
