#!/usr/bin/env bash
# Runs in each task of Open MPI's mpirun: sets the variables by which srun would tell the task who it
# is, then becomes launch/torchrun.sh or launch/rank.sh, which read them.
#
#   mpirun --map-by ppr:1:node --bind-to none extras/mpi/ranks.sh launch/torchrun.sh program.py [arguments]
#   mpirun --map-by ppr:N:node --bind-to none extras/mpi/ranks.sh launch/rank.sh program.py [arguments]
#
# A task may also see the variables of the step in which srun started mpirun's daemons. Those of
# mpirun replace them.
set -euo pipefail

main() {
    [[ -n ${OMPI_COMM_WORLD_SIZE:-} ]] ||
        die "Open MPI's mpirun has not started this: bash slurm/submit_multinode.sh, with" \
            "LAUNCHER=mpirun or mpirun-ranks, does so"
    case ${1:-} in
        */torchrun.sh) check_one_per_node ;;
        */rank.sh) share_cores ;;
        *) die "expected launch/torchrun.sh or launch/rank.sh, and a program" ;;
    esac
    export SLURM_STEP_NUM_TASKS=$OMPI_COMM_WORLD_SIZE
    export SLURM_STEP_NUM_NODES=$((OMPI_COMM_WORLD_SIZE / OMPI_COMM_WORLD_LOCAL_SIZE))
    export SLURM_PROCID=$OMPI_COMM_WORLD_RANK
    export SLURM_LOCALID=$OMPI_COMM_WORLD_LOCAL_RANK
    export SLURM_NODEID=$((OMPI_COMM_WORLD_RANK / OMPI_COMM_WORLD_LOCAL_SIZE))
    # Open MPI 4 in a container, started by mpirun 5, takes a rank without SLURM_STEP_ID for a run of
    # one.
    export SLURM_STEP_ID=${SLURM_STEP_ID:-0}
    exec bash "$@"
}

check_one_per_node() {
    [[ $OMPI_COMM_WORLD_LOCAL_SIZE == 1 ]] ||
        die "mpirun started $OMPI_COMM_WORLD_LOCAL_SIZE copies on this node, but one per node is" \
            "wanted (torchrun starts the processes): mpirun --map-by ppr:1:node --bind-to none"
}

# Exports SLURM_CPUS_PER_TASK, a rank's share of the node's cores: mpirun --bind-to none lets the
# ranks of a node use all of them. Slurm may allow fewer cores than SLURM_CPUS_PER_TASK, or more: the
# smaller number counts.
share_cores() {
    local cores ranks=$OMPI_COMM_WORLD_LOCAL_SIZE
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys both variables
    if ((cores > ${SLURM_CPUS_PER_TASK:-$cores})); then
        cores=$SLURM_CPUS_PER_TASK
    fi
    export SLURM_CPUS_PER_TASK=$((cores > ranks ? cores / ranks : 1))
}

die() {
    echo "extras/mpi/ranks.sh on ${SLURMD_NODENAME:-$(hostname)}: $*" >&2
    exit 2
}

main "$@"
