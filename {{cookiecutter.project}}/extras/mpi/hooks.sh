#!/usr/bin/env bash
#? set runtime = cookiecutter.runtime
# Two launchers of Open MPI. mpirun starts launch/torchrun.sh once on each node, and mpirun-ranks starts
# launch/rank.sh once for each rank. launch/moments.sh calls the functions mpi_MOMENT, which stand here
# in the order of the calls. For the launch, slurm/ranks.sh calls build_step_of_LAUNCHER.
# shellcheck disable=SC2034,SC2154 # the scripts of slurm/ share their variables

# Unsets the variables of another mpirun, or of a step of another job. With them mpirun would take
# itself for a task of that step. PMIX_MCA_* are the user's settings, and stay.
mpi_job_start() {
    local left
    mapfile -t left < <(compgen -e PMIX_ | grep -v ^PMIX_MCA_)
    unset "${!OMPI_COMM_@}" "${left[@]}"
}

# Sets wrapper, what each task of mpirun runs. Refuses what mpirun cannot start.
mpi_check_settings() {
    case $LAUNCHER in
        mpirun) wrapper=(bash "$PROJECT_DIR/extras/mpi/ranks.sh" "$PROJECT_DIR/launch/torchrun.sh") ;;
        mpirun-ranks) wrapper=(bash "$PROJECT_DIR/extras/mpi/ranks.sh" "$PROJECT_DIR/launch/rank.sh") ;;
        *) return 0 ;;
    esac
    local version
    version=$(mpirun --version 2>&1)
    [[ $version == *"Open MPI"* ]] ||
        die "LAUNCHER=$LAUNCHER needs Open MPI's mpirun, which was not found: name its module in" \
            "MODULES of env.sh, or use torchrun. 'mpirun --version' says: ${version%%$'\n'*}"
    #? if runtime in ("pyxis", "edf")
    ((${#CONTAINER_SRUN_ARGS[@]} == 0)) ||
        die "LAUNCHER=$LAUNCHER cannot start RUNTIME=$RUNTIME, a container that only srun starts;" \
            "use torchrun, srun or spawn"
    #? endif
}

# Has torchrun start as many ranks as the job has GPUs on a node. torchrun cannot count them itself:
# Open MPI 6 starts its daemons by srun --external-launcher, which shows all GPUs of the node
# (6.0.0rc2 with Slurm 26.05, 2026-11-29). On nodes that differ, "unknown", it has to count.
build_step_of_mpirun() {
    if [[ $gpus != unknown ]]; then set_ranks_per_node; fi
    mpi_build_step 1
}

build_step_of_mpirun_ranks() {
    set_ranks_per_node
    require_cores "$NPROC_PER_NODE"
    mpi_build_step "$NPROC_PER_NODE"
}

# Sets step. mpirun starts its daemons by an srun of its own, which reads variables in place of options:
#   SLURM_EXPORT_ENV, SRUN_CPUS_PER_TASK   all of the environment, and all cores (srun 22.05 to 23.02
#                                          would give it one core)
# The other variables tell mpirun the nodes, and how many tasks each takes, in place of the header's one.
# Argument: how many tasks mpirun starts on each node.
mpi_build_step() {
    local per_node=$1 list
    list=$(IFS=, && echo "${hosts[*]}")
    step=(env SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK="$cores"
        SLURM_JOB_NODELIST="$list" SLURM_NODELIST="$list"
        SLURM_TASKS_PER_NODE="$per_node(x${#hosts[@]})"
        mpirun -np $((${#hosts[@]} * per_node)) --map-by "ppr:$per_node:node" --bind-to none)
}

# Has the ranks meet on the node on which mpirun runs, if ranks run there: mpirun puts rank 0 on it.
# Notes the sizes of the job's output and error file [bytes], for mpi_has_lost_a_node.
mpi_before_launch() {
    [[ $LAUNCHER == mpirun* ]] || return 0
    if [[ " ${hosts[*]} " == *" ${SLURMD_NODENAME:-} "* ]]; then
        export MASTER_ADDR="$SLURMD_NODENAME${MASTER_ADDR_SUFFIX:-}"
    fi
    mapfile -t mpi_sizes < <(stat -L -c %s "/proc/$$/fd/1" "/proc/$$/fd/2")
}

# If mpirun has lost a node, the ranks have not come to their end, but Open MPI 5.0.7 ends with exit
# code 0 (measured 2026-11-24).
mpi_after_launch() {
    if [[ $LAUNCHER == mpirun* && $code == 0 ]] && mpi_has_lost_a_node; then
        say "mpirun ended with exit code 0, but it has lost a node: the ranks have not come to their end"
        code=1
    fi
}

# Whether mpirun has printed, since mpi_before_launch, that it lost a node.
mpi_has_lost_a_node() {
    local number file
    for number in 1 2; do
        file=/proc/$$/fd/$number
        [[ -f $file ]] || continue # a terminal or a pipe, which cannot be read again
        # Not grep -q, which would end tail by a signal.
        if tail -c +$((${mpi_sizes[number - 1]:-0} + 1)) "$file" |
            grep -F "has lost communication with a remote daemon" >/dev/null; then
            return 0
        fi
    done
    return 1
}
