#!/usr/bin/env bash
#? set runtime = cookiecutter.runtime
# What the scripts of slurm/ and of extras/ share: messages, settings and software, Slurm's record of a
# job. slurm/commands.sh has more for commands that are no jobs.
#
# A script sets PROJECT_DIR, and reads this file with its own name, which stands in front of messages:
#   source "$PROJECT_DIR/slurm/project.sh" slurm/NAME.sh
# shellcheck disable=SC2034,SC2154 # the scripts of slurm/ share variables

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "$1: bash $BASH_VERSION is too old: 4.4 or newer is needed, as RHEL 8 and SLES 15 have it" >&2
    exit 2
fi

#? include "messages.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras

# ---- stale variables -----------------------------------------------------------------------------

# Unsets variables of the submitting shell, which the launchers and srun would take for this run's.
unset_stale_variables() {
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RUN_ID
    unset "${!PET_@}" "${!PMI_@}"
    unset_options_of_srun
}

# Unsets each variable that srun reads as an option. A shell of salloc, a step or a login shell may
# have left it, and sbatch hands it on to the job. What env.sh and modules set later counts. A step
# has memory, network and threads per core of its job without any option (Slurm 22.05 to 26.05).
# The names are those of srun(1), INPUT ENVIRONMENT VARIABLES, and of srun's sources, 22.05 to 26.05.
unset_options_of_srun() {
    unset "${!SRUN_@}" "${!SLURM_CPU_@}" "${!SLURM_GPU_@}" "${!SLURM_GPUS_PER_@}" "${!SLURM_GRES@}" \
        "${!SLURM_MEM_@}" "${!SLURM_NTASKS@}" "${!SLURM_STD@}" "${!SLURM_TRES_@}"
    unset SLURM_{ACCOUNT,ACCTG_FREQ,ARBITRARY_NODELIST,BCAST,BCAST_EXCLUDE,BURST_BUFFER,CLUSTERS} \
        SLURM_{CLUSTER_CONSTRAINT,COMPRESS,CONSOLIDATE_SEGMENTS,CONSTRAINT,CONTAINER,CONTAINER_ID} \
        SLURM_{CORE_SPEC,CPUS_PER_GPU} \
        SLURM_{DEBUG,DEBUG_FLAGS,DELAY_BOOT,DEPENDENCY,DISABLE_STATUS,DISTRIBUTION,DIST_PLANESIZE} \
        SLURM_{EPILOG,EXACT,EXCLUSIVE,EXIT_ERROR,EXIT_IMMEDIATE,EXPORT_ENV,EXTERNAL_LAUNCHER,GPUS} \
        SLURM_{HINT,HOSTFILE,IMMEDIATE,KILL_BAD_EXIT,LABELIO,MPI_TYPE,NCORES_PER_SOCKET,NETWORK} \
        SLURM_{NO_KILL,NPROCS,NSOCKETS_PER_NODE,OOMKILLSTEP,OOM_KILL_STEP,OPEN_MODE,OVERCOMMIT} \
        SLURM_{OVERLAP,PARTITION,PMI_KVS_NO_DUP_KEYS,POWER,PROFILE,PROLOG,QOS,REMOTE_CWD,REQ_SWITCH} \
        SLURM_{RESERVATION,RESV_PORTS,SEND_LIBS,SIGNAL,SPREAD_JOB,SPREAD_SEGMENTS,SRUN_MULTI} \
        SLURM_{SRUN_REDUCE_TASK_EXIT_MSG,STEP_GRES,STEP_KILLED_MSG_NODE_ID,TASK_EPILOG,TASK_PROLOG} \
        SLURM_{TEST_EXEC,THREADS,THREADS_PER_CORE,THREAD_SPEC,TIMELIMIT,TREE_WIDTH,UMASK} \
        SLURM_{UNBUFFEREDIO,USE_MIN_NODES,WAIT,WAIT4SWITCH,WCKEY,WORKING_DIR}
}

# ---- software -------------------------------------------------------------------------------------

#? if plan_of(cookiecutter).in_container
# Loads MODULES of env.sh, and its environment or container. Reads program and container_folders: the
# container mounts their folders.
#? else
# Loads MODULES of env.sh, and its environment.
#? endif
load_software() {
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    #? if plan_of(cookiecutter).in_container
    set_up_software "${container_folders[@]}" "$PROJECT_DIR" "$PWD" \
        "$(cd -- "$(dirname -- "$program")" && pwd)" || exit
    #? else
    set_up_software || exit
    #? endif
}

# ---- Slurm's record of a job ---------------------------------------------------------------------

# Prints Slurm's record of a job. A busy controller may not answer at once: it is asked three times,
# unless it says that there is no such job. Argument: 123, or 120_2 for a job of an array.
job_record() {
    local pause errors
    for pause in 1 2 0; do
        # Its errors go into the variable, and the record to this function's output.
        { errors=$(SLURM_TIME_FORMAT=standard scontrol --details show job "$1" 2>&1 >&3) && return; } 3>&1
        if [[ $errors == *"Invalid job id"* ]]; then break; fi
        sleep "$pause"
    done
    echo "$errors" >&2
    return 1
}

# Prints a field of $record, the first of its name; nothing if there is none. The order of fields
# differs between versions of Slurm. record has lines such as
#    Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
field() {
    if [[ $record =~ (^|[[:space:]])$1=([^[:space:]]*) ]]; then
        echo "${BASH_REMATCH[2]}"
    fi
}
