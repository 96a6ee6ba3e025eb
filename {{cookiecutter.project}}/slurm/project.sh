#!/usr/bin/env bash
#? set runtime = cookiecutter.runtime
# What the scripts of slurm/ and of extras/ share: messages, Slurm's record of a job, settings and
# software, options of the #SBATCH lines.
#
# A script sets PROJECT_DIR, and reads this file with its own name, which stands in front of messages:
#   source "$PROJECT_DIR/slurm/project.sh" slurm/NAME.sh
# shellcheck disable=SC2034,SC2154 # the scripts of slurm/ share variables

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "$1: bash $BASH_VERSION is too old: 4.4 or newer is needed, as RHEL 8 and SLES 15 have it" >&2
    exit 2
fi

#? include "parts/messages.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras

# ---- stale variables -----------------------------------------------------------------------------

# Unsets variables of the submitting shell, which the launchers and srun would take for this run's.
unset_stale_variables() {
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
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

# ---- settings and software -----------------------------------------------------------------------

# Reads env.sh. Sets its settings.
read_settings() {
    refuse_windows_line_ends "$PROJECT_DIR/env.sh"
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    refuse_misplaced_settings
}

# Loads MODULES of env.sh, and its environment or container. Reads program and container_folders: the
# container mounts their folders.
load_software() {
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    #? if in_container(cookiecutter)
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

# Prints a field of record, the first of its name; nothing if there is none. The order of fields
# differs between versions of Slurm. record has lines such as
#    Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
field() {
    if [[ $record =~ (^|[[:space:]])$1=([^[:space:]]*) ]]; then
        echo "${BASH_REMATCH[2]}"
    fi
}

# Sets number, what Slurm calls a job that runs, and hosts, its nodes. Refuses one that does not run.
# Argument: the number as squeue shows it, also of a job of an array.
find_running_job() {
    local record state
    [[ $1 =~ ^[0-9]+(_[0-9]+)?$ ]] ||
        die "'$1': expected the number of a job, as 4711 or 4711_3; squeue --me lists yours"
    record=$(job_record "$1" 2>&1) ||
        die "Slurm knows no job $1 (${record%%$'\n'*}): squeue --me lists yours"
    state=$(field JobState)
    [[ $state != PENDING ]] ||
        die "job $1 waits in the queue, and has no ranks yet: squeue --start --jobs=$1 says when it may start"
    [[ $state == RUNNING ]] ||
        die "job $1 is $state: only a running one has ranks. Why a job ended: python3 slurm/doctor.py $1"
    number=$(field JobId)
    mapfile -t hosts < <(scontrol show hostnames "$(field NodeList)")
}

# ---- commands that submit other jobs -------------------------------------------------------------

# Prints the usage of a script if it is asked for. Refuses words that are neither options nor follow one:
# sbatch would take one for its script, and salloc for its command. Arguments: the script, and its words.
expect_options() {
    local word before=''
    for word in "${@:2}"; do
        if [[ $word == -h || $word == --help ]]; then
            print_usage "$1"
            exit
        fi
        # After --option and -o, a word may be the option's value.
        [[ $word == -?* || $before =~ ^(-[A-Za-z]|--[^=]+)$ ]] ||
            die "'$word' is not known: expected options of Slurm, as in --time=00:10:00"
        before=$word
    done
}

# Prints options of the #SBATCH lines of slurm/submit_multinode.sh, one per line. Arguments: account,
# partition, qos.
options_of_jobs() {
    local name letter
    for name in "$@"; do
        case $name in
            account) letter=A ;;
            partition) letter=p ;;
            qos) letter=q ;;
        esac
        sed -nE "s/^#SBATCH +(--${name}[= ]+|-$letter *)([^ #]+).*/--$name=\2/p" \
            "$PROJECT_DIR/slurm/submit_multinode.sh"
    done
}

# Submits a script that builds something and ends this one. Arguments: the script, then options of
# sbatch. Slurm runs a copy of the script from a spool folder, so the job gets the project's folder
# as its argument.
submit_build() {
    local names=(account) options
    # A script that has a queue of its own keeps it.
    grep -qE '^#SBATCH +(--(partition|qos)[= ]|-[pq])' "$1" || names+=(partition qos)
    mapfile -t options < <(options_of_jobs "${names[@]}")
    exec sbatch --export=ALL "${options[@]}" "${@:2}" "$1" "$PROJECT_DIR"
}
