#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set node = node_facts(cookiecutter)
#? set cores = cores_per_node(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set container = in_container(cookiecutter)
#? set once_per_node = site.launchers | select("in", ["torchrun", "spawn"]) | join('" | "')
# The steps of slurm/submit_multinode.sh as functions, in the order in which it takes them. From
# look_at_allocation on they run under set -euo pipefail; env.sh and modules, which are read before,
# may not bear it. All scripts of slurm/ use the first group.
# launch/program.sh adds die, say, find_program and others, which its first lines list.
#
# A script reads this file with its own name, which stands in front of its messages:
#   source "$PROJECT_DIR/slurm/lib.sh" slurm/NAME.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh" "$1"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras

# ---- all scripts ---------------------------------------------------------------------------------

# Prints options of the #SBATCH lines of slurm/submit_multinode.sh, one per line. Arguments:
# account, partition, qos.
options_of_jobs() {
    local name short header="$PROJECT_DIR/slurm/submit_multinode.sh"
    for name in "$@"; do
        case $name in
            account) short=A ;;
            partition) short=p ;;
            qos) short=q ;;
        esac
        sed -nE "s/^#SBATCH +(--${name}[= ]+|-$short *)([^ #]+).*/--$name=\2/p" "$header"
    done
}

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

# Prints Slurm's record of a job. A busy controller may not answer at once: it is asked three times,
# unless it says that there is no such job.
job_record() {
    local pause errors
    for pause in 1 2 0; do
        { errors=$(scontrol --details show job "$1" 2>&1 >&3) && return; } 3>&1
        [[ $errors != *"Invalid job id"* ]] || break
        sleep "$pause"
    done
    echo "$errors" >&2
    return 1
}

# Sets number, what Slurm calls a job that runs, and hosts, its nodes. Refuses one that does not run.
# Argument: the number as squeue shows it, also of a job of an array.
find_running_job() {
    local record state=unknown nodes=''
    [[ $1 =~ ^[0-9]+(_[0-9]+)?$ ]] ||
        die "'$1': expected the number of a job, as 4711 or 4711_3; squeue --me lists yours"
    record=$(job_record "$1" 2>&1) ||
        die "Slurm knows no job $1 (${record%%$'\n'*}): squeue --me lists yours"
    [[ $record =~ JobState=([A-Z_]+) ]] && state=${BASH_REMATCH[1]}
    [[ $state != PENDING ]] ||
        die "job $1 waits in the queue, and has no ranks yet: squeue --start --jobs=$1 says when it may start"
    [[ $state == RUNNING ]] ||
        die "job $1 is $state: only a running one has ranks. Why a job ended: python3 slurm/doctor.py $1"
    # shellcheck disable=SC2034 # for the script that calls
    [[ $record =~ JobId=([0-9]+) ]] && number=${BASH_REMATCH[1]}
    [[ $record =~ [[:space:]]NodeList=([^[:space:]]+) ]] && nodes=${BASH_REMATCH[1]}
    mapfile -t hosts < <(scontrol show hostnames "$nodes")
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

# ---- unset stale variables -----------------------------------------------------------------------

# Unsets variables of the submitting shell, which the launchers and srun would take for this run's.
unset_stale_variables() {
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
    unset "${!PET_@}" "${!PMI_@}"
    [[ -z ${SLURM_JOB_ID:-} ]] || unset_options_of_srun # sbatch reads some, on a login node
    unset_variables_of_another_job
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

# Unsets the variables of arrays and restarts, if they belong to the job from which this one was
# submitted. Slurm sets them only in jobs of an array, and in jobs that were restarted.
unset_variables_of_another_job() {
    local job=${SLURM_JOB_ID:-} record
    if [[ -n $job && -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
        record=$(job_record "$job") ||
            die "Slurm does not answer 'scontrol show job $job', which says whether this job" \
                "belongs to an array: submit again"
        if [[ $record == *ArrayTaskId=* ]]; then
            job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
        else
            unset "${!SLURM_ARRAY_@}"
        fi
    fi
    if [[ -n $job && -n ${SLURM_RESTART_COUNT:-} ]]; then
        if record=$(job_record "$job") && [[ $record == *Restarts=0* ]]; then
            unset SLURM_RESTART_COUNT
        fi
    fi
}

# ---- read the arguments --------------------------------------------------------------------------

# Sets words and typed (program and arguments), program (its path, or -m), arguments and
# sbatch_options (the words before "--").
read_arguments() {
    sbatch_options=()
    if [[ ${1:-} == -* && $1 != -m ]]; then
        [[ -z ${SLURM_JOB_ID:-} ]] ||
            die "'$1': inside a job, options of sbatch have no effect: leave them out," \
                "and name a program"
        while (($#)) && [[ $1 != -- ]]; do
            sbatch_options+=("$1")
            shift
        done
        shift ||
            die "options for sbatch end with --, as in:" \
                "bash slurm/submit_multinode.sh --nodes=4 -- program.py"
    fi
    words=("$@") typed=("$@")
    program=$(find_program "$@") || exit
    # shellcheck disable=SC2034 # for slurm/submit_multinode.sh
    arguments=("${words[@]:1}")
}

# ---- set up the software -------------------------------------------------------------------------

# Reads env.sh, sets up the software that it names, and refuses settings that cannot work. Sets what
# check_settings sets.
set_up_run() {
    refuse_windows_line_ends "$PROJECT_DIR/env.sh"
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    refuse_misplaced_settings
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    #? if container
    # shellcheck disable=SC2154 # launch/extras.sh sets container_folders
    set_up_software "${container_folders[@]}" "$PROJECT_DIR" "$PWD" \
        "$(cd -- "$(dirname -- "$program")" && pwd)" || exit
    #? else
    set_up_software || exit
    #? endif
    check_settings
}

# Refuses settings that cannot work. Sets wrapper, the script that srun starts on the nodes and that
# becomes torchrun or a rank, and tasks, how often it starts on each node: 1, or the word "ranks" for
# once per rank, as their number is not known yet. The word "own" stands for a launcher of an extra,
# which sets wrapper itself.
check_settings() {
    type -P srun >/dev/null ||
        die "srun was not found after MODULES of env.sh were loaded: add the module of Slurm itself"
    case $LAUNCHER in
        #? if once_per_node
        "{{ once_per_node }}") tasks=1 wrapper=("$PROJECT_DIR/launch/torchrun.sh") ;;
        #? endif
        #? if "srun" in site.launchers
        srun) tasks=ranks wrapper=("$PROJECT_DIR/launch/rank.sh") ;;
        #? endif
        *)
            refuse_unknown_launcher
            tasks=own wrapper=()
            ;;
    esac
    [[ ${NPROC_PER_NODE:-1} =~ ^[1-9][0-9]*$ ]] ||
        die "NPROC_PER_NODE='$NPROC_PER_NODE': expected a whole number of ranks on each node"
    [[ ${CPU_RANKS_PER_NODE:-1} =~ ^[1-9][0-9]*$ ]] ||
        die "CPU_RANKS_PER_NODE='$CPU_RANKS_PER_NODE': expected a whole number of ranks on each" \
            "node without GPUs"
    [[ $MAX_REQUEUES =~ ^(0|[1-9][0-9]*)$ ]] ||
        die "MAX_REQUEUES='$MAX_REQUEUES': expected a whole number; 0: the job is never requeued"
    [[ -z $STOP_SIGNAL || $STOP_SIGNAL =~ ^(USR1|USR2|TERM|INT|HUP)$ ]] ||
        die "STOP_SIGNAL='$STOP_SIGNAL': expected USR1, USR2, TERM, INT, HUP, or nothing"
    check_rank_prefix
    call_extras check_settings
    refuse_program_with_own_ranks
    refuse_own_endpoint
    [[ -n ${SLURM_JOB_ID:-} ]] || require_torch
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go:" \
            "copy the project to a folder that is yours"
}

# Refuses a program that starts its own ranks, unless it is started once per node, and not by
# torchrun, whose variables would keep its ranks waiting. To override this check, set NPROC_PER_NODE
# to 2 or more.
refuse_program_with_own_ranks() {
    if [[ -n ${NPROC_PER_NODE:-} ]]; then
        [[ $NPROC_PER_NODE == 1 ]] && starts_torchrun || return 0
    fi
    ! starts_its_own_ranks "$program" ||
        die "$program starts its own ranks, so it has to be started once per node, and not by" \
            "torchrun: LAUNCHER=srun NPROC_PER_NODE=1 bash slurm/submit_multinode.sh $program"
}

# Refuses a program whose ranks torchrun would keep waiting for each other.
refuse_own_endpoint() {
    ! starts_torchrun || ! has_own_endpoint "$program" ||
        die "$program gives init_process_group an address of its own, tcp://…, at which no rank" \
            "listens under torchrun: leave init_method out, or use LAUNCHER=srun"
}

# Whether each node runs torchrun, which starts the ranks.
starts_torchrun() { [[ $LAUNCHER != spawn && ${wrapper[*]} == */launch/torchrun.sh ]]; }

# Refuses a Python without torch, unless a container has the Python. It imports nothing: importing
# torch takes a second.
require_torch() {
    ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]} == 0)) || return 0
    "$PYTHON" -c \
        'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
        #? if "venv" in site.runtimes
        die "$PYTHON has no torch: set MODULES or PYTHON in env.sh to one that has it, or set" \
            "RUNTIME=venv and build the environment with 'bash slurm/build_venv.sh'"
        #? else
        die "$PYTHON has no torch: set RUNTIME, MODULES or PYTHON in env.sh to one that has it"
        #? endif
}

# ---- on a login node: check and submit -----------------------------------------------------------

# Refuses what would fail after hours in the queue. Argument: the script with the #SBATCH lines.
check_submission() {
    command -v sbatch >/dev/null ||
        die "sbatch was not found: this is not a login node of a Slurm cluster"
    [[ -w . ]] ||
        die "cannot write to $PWD, where the job's output would go: submit from another folder"
    refuse_options "$1"
    # In a shell of its own, as the job loads its modules itself. What they print is not for
    # standard output, which --parsable leaves to the job's number.
    (set_up_run) >&2 || exit
}

# Refuses options of sbatch with which the job would end without output or without the settings of
# this shell, or would not find its program. Argument: the script with the #SBATCH lines.
refuse_options() {
    local option value
    value=$(option_of_job export '' "$1")
    [[ -z $value || $value =~ ^ALL(,|$) ]] ||
        die "--export=$value: the job needs the settings of this shell: --export=ALL,NAME=value"
    value=$(option_of_job chdir D "$1")
    [[ -z $value ]] || die "--chdir=$value: run this script in that folder instead: cd '$value'"
    value=$(option_of_job job-name J "$1")
    [[ $value != */* ]] ||
        die "--job-name=$value: leave the slash out, which makes a folder of %x in --output"
    for option in "output o" "error e"; do
        # shellcheck disable=SC2086 # two words
        value=$(option_of_job $option "$1")
        # Slurm 23.02 and later makes the folder, an older one ends the job without output.
        [[ $value != */* || ${value%/*} == *%* || -z ${value%/*} || -d ${value%/*} ]] ||
            die "--${option% *}=$value: there is no folder '${value%/*}': mkdir -p '${value%/*}'"
    done
}

# Prints the value of an option of sbatch: as it was typed, else as in the #SBATCH lines. Arguments:
# its long name, its letter ('' if it has none), the script with these lines.
option_of_job() {
    local long=$1 letter=${2:-none} value='' header
    mapfile -t header < <(sed -n 's/^#SBATCH \(.*\)/\1/p' "$3" | sed 's/ #.*//' | xargs -n 1)
    set -- "${header[@]}" "${sbatch_options[@]}"
    while (($#)); do
        case $1 in
            "--$long" | "-$letter") value=${2:-} ;;
            "--$long="*) value=${1#*=} ;;
            "-$letter"*) value=${1#"-$letter"} ;;
        esac
        shift
    done
    echo "$value"
}

# Spells the GPUs among sbatch's options as the #SBATCH lines do: --gpus-per-node=N or --gres=gpu:N.
# An option replaces a line only if both are spelled alike. With both spellings Slurm 26.05 refuses
# the job, and older versions may give it the GPUs of the line. Argument: the script with the lines.
match_gpu_option() {
    local header item items wanted=() gres=() options=()
    header=$(grep -oE '^#SBATCH [^#]*--(gpus-per-node|gres[= ][^# ]*gpu)' "$1" | head -n 1)
    [[ -n $header ]] || return 0
    set -- "${sbatch_options[@]}"
    while (($#)); do
        if [[ $1 == --gres || $1 == --gpus-per-node ]] && (($# > 1)); then
            set -- "$1=$2" "${@:3}" # the value was the next word
        fi
        case $1 in
            --gpus-per-node=?*) IFS=, read -ra wanted <<<"${1#*=}" ;;
            --gres=?*) IFS=, read -ra gres <<<"${1#*=}" ;;
            *) options+=("$1") ;;
        esac
        shift
    done
    items=("${wanted[@]/#/gpu:}" "${gres[@]}") # as --gres has them
    wanted=() gres=()
    for item in "${items[@]}"; do
        case $header:$item in
            *--gpus-per-node:gpu) wanted+=(1) ;;
            *--gpus-per-node:gpu:*) wanted+=("${item#gpu:}") ;;
            *) gres+=("$item") ;;
        esac
    done
    local IFS=, # between the words of "${gres[*]}"
    ((${#wanted[@]} == 0)) || options+=("--gpus-per-node=${wanted[*]}")
    ((${#gres[@]} == 0)) || options+=("--gres=${gres[*]}")
    sbatch_options=("${options[@]}")
}

#? if node.segment
# Gives a job whose --nodes=N was typed a --segment that fits, unless a segment was chosen too.
# Slurm refuses a segment that does not divide N, and before 26.05 one that is larger than N.
match_segment() {
    local option nodes='' segment="{{ node.segment }}"
    [[ -z ${SBATCH_SEGMENT_SIZE:-} ]] || return 0
    for option in "${sbatch_options[@]}"; do
        case $option in
            --segment*) return 0 ;;
            --nodes=*) nodes=${option#*=} ;;
        esac
    done
    [[ $nodes =~ ^[1-9][0-9]*$ ]] || return 0 # the #SBATCH lines have nodes and segment that fit
    ((nodes > segment)) || segment=$nodes
    ((nodes % segment == 0)) ||
        die "--nodes=$nodes: a job of more than $segment nodes needs a multiple of $segment here;" \
            "use $((nodes - nodes % segment)) or $((nodes - nodes % segment + segment))," \
            "or add --segment=S, of which $nodes is a multiple"
    sbatch_options+=("--segment=$segment")
}

#? endif
# Submits a script and ends this one with sbatch's exit code.
submit() {
    local code=0
    match_gpu_option "$1"
    #? if node.segment
    match_segment
    #? endif
    sbatch --export=ALL "${sbatch_options[@]}" "$1" "${typed[@]}" || code=$? # extras may change typed
    ((code == 0)) || explain_refusal "$1" >&2
    exit $code
}

# Prints where to look if sbatch has refused the job. Argument: the script with the #SBATCH lines.
explain_refusal() {
    local header
    header=$(sed -nE 's/^#SBATCH +(--(gpus|gres|mem|ntasks|cpus)[^ ]*).*/\1/p' "$1" | xargs)
    echo "If sbatch refused the job: list your accounts with '{{ in_quotes(site.commands.get('accounts', '')) }}', your queues with '{{ in_quotes(site.commands.get('queues', '')) }}'"
    echo "An option replaces only the #SBATCH line of its own name. The lines ask for $header"
}

# ---- look at the allocation ----------------------------------------------------------------------

# Sets what Slurm has given to this job:
#   batch    in a batch job its number for scontrol, N or ARRAY_TASK; '' in a shell of salloc
#   nodes    its nodes; choose_nodes sets hosts, those on which the ranks run
#   cores    of each node
#   gpus     of each node; '' if it has none, "unknown" if Slurm does not answer
# Refuses a shell whose job has ended.
look_at_allocation() {
    local record
    batch=''
    if [[ ${0##*/} == slurm_script ]]; then # Slurm's name for the copy that sbatch runs
        batch=$SLURM_JOB_ID
        # The last job of an array has the array's own number, which scontrol takes for all of its
        # jobs.
        [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || batch=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    hosts=()
    #? if cores
    # salloc may have been called without --cpus-per-task.
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        cores=$((SLURM_CPUS_PER_TASK * $(smallest <<<"${SLURM_TASKS_PER_NODE:-1}")))
    else
        cores=$(smallest <<<"$SLURM_JOB_CPUS_PER_NODE")
    fi
    #? else
    cores=$(smallest <<<"$SLURM_JOB_CPUS_PER_NODE")
    #? endif
    # Slurm's own record names the GPUs in a shell of salloc, too, where no variable does.
    gpus=unknown
    if record=$(job_record "${batch:-$SLURM_JOB_ID}"); then
        [[ $record == *JobState=RUNNING* ]] ||
            die "SLURM_JOB_ID=$SLURM_JOB_ID of this shell is a job that has ended:" \
                "'unset SLURM_JOB_ID', then submit"
        read_gpus "$record"
    elif [[ -z $batch ]]; then
        die "Slurm has no record of job $SLURM_JOB_ID, which this shell names, see above:" \
            "if that job has ended, 'unset SLURM_JOB_ID', then submit"
    fi
    # A job without GPUs inherits these from a shell that has some.
    [[ -n $gpus ]] || unset SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES
}

# Sets gpus. Refuses a job with unequal nodes. Argument: Slurm's record of the job.
#
# Slurm gives a step all GPUs of its job only if the job asked for them per node. With --gpus=4 or
# --gpus-per-task=1 a step of one task per node gets one on each node, or three and one (Slurm
# 22.05.8, 2026-11-26). Then SLURM_GPUS_PER_NODE tells each srun how many there are.
read_gpus() {
    local record=$1 held asked='TresPerNode=[^[:space:]]*gres[:/]gpu([:=][^,[:space:]]+)?'
    mapfile -t held < <(
        grep -oE '\<gpu(:[^:,( ]+)?:[0-9]+\(' <<<"$record" | grep -oE '[0-9]+' | sort -n -u
    )
    gpus=${held[0]:-}
    if [[ $record =~ $asked ]]; then
        gpus=${BASH_REMATCH[1]##*[:=]} # of gpu:a100:2; with --exclusive the job may hold more
        [[ $gpus =~ ^[0-9]+$ ]] || gpus=1
    elif [[ $record =~ TresPer(Job|Task|Socket)=[^[:space:]]*gpu ]]; then
        ((${#held[@]} == 1)) ||
            die "this job has unequal nodes, of ${held[*]} GPUs: ask for the same number on each" \
                "with --gpus-per-node, in place of --gpus or --gpus-per-task"
        export SLURM_GPUS_PER_NODE=$gpus
    fi # else it asked for none, and holds those of its nodes by --exclusive
}

# Prints the smallest number of a list as Slurm writes it: 64(x2),32
smallest() { tr , '\n' | sed 's/(.*//; s/.*://' | sort -n | sed -n 1p; }

# Makes the folder of an attempt's logs. Exports RUN_DIR (the folder), RESTART_COUNT (the attempt's
# number: 0, then 1, 2, …), and the files by which this script and the program talk: STOP_FILE,
# REQUEUE_FILE, TIMES_FILE. Argument: the number, if the ranks have started before in this allocation.
make_run_folder() {
    RESTART_COUNT=${1:-${attempt:-$(count_attempts)}}
    export RESTART_COUNT
    attempt=$RESTART_COUNT
    RUN_DIR="$(realpath "$PROJECT_DIR/logs")/$SLURM_JOB_ID.$RESTART_COUNT"
    export RUN_DIR
    export STOP_FILE="$RUN_DIR/stop" REQUEUE_FILE="$RUN_DIR/requeue" TIMES_FILE="$RUN_DIR/times"
    mkdir -p "$RUN_DIR"
    ln -sfn "${RUN_DIR##*/}" "$PROJECT_DIR/logs/latest" || true # two jobs may start at once
    # Of an earlier run in this allocation.
    rm -f "$STOP_FILE" "$REQUEUE_FILE" "$TIMES_FILE"
}

# Prints how many attempts this job has made. Slurm counts requeues alone, and not the restarts
# within an allocation, which have a folder each. At its first start, a job may find the folders of
# another one, which had its number long ago.
count_attempts() {
    local count=${SLURM_RESTART_COUNT:-0}
    while ((count > 0)) && [[ -d $PROJECT_DIR/logs/$SLURM_JOB_ID.$count ]]; do
        count=$((count + 1))
    done
    echo "$count"
}

# ---- nodes and rendezvous endpoint ---------------------------------------------------------------

# Sets hosts, the nodes on which the ranks run: all of the job. Exports MASTER_ADDR and MASTER_PORT,
# where they meet. Ends this script if a node is unfit. An extra may define this function anew. It
# sets hosts, then calls set_rendezvous_endpoint, and check_nodes, which returns 1 if the ranks would
# fail on one of them.
choose_nodes() {
    hosts=("${nodes[@]}")
    set_rendezvous_endpoint
    check_nodes || exit 1
}

# Prints hosts with commas between them; nothing if they are all nodes of the job, which srun takes
# without a list.
listed_hosts() {
    ((${#hosts[@]} == SLURM_JOB_NUM_NODES)) || (IFS=, && echo "${hosts[*]}")
}

# Exports MASTER_ADDR and MASTER_PORT, where rank 0 listens: the first of hosts, and the port that
# free_port prints.
set_rendezvous_endpoint() {
    export MASTER_ADDR="${hosts[0]}${MASTER_ADDR_SUFFIX:-}"
    MASTER_PORT=$(free_port)
    export MASTER_PORT
}

# Prints a port that is free on this machine: the first node, or where salloc was called. The search
# starts at a port that follows from the numbers of job and attempt. So two jobs on one node rarely
# try the same port, and a new attempt does not meet the ranks of the last one.
free_port() {
    local first count port try
    read -r first count < <(port_range)
    for ((try = 0; try < count; try++)); do
        port=$((first + (SLURM_JOB_ID + 7919 * RESTART_COUNT + try) % count))
        if ! in_use "$port"; then
            echo "$port"
            return
        fi
    done
    die "none of the $count ports from $first on is free"
}

#? if site.ports
# Prints the first port of this site's range for users, and how many there are.
#? else
# Prints a first port and how many to choose from. They lie outside the range from which the kernel
# takes ports of outgoing connections, if that leaves room.
#? endif
port_range() {
    #? if site.ports
    echo "{{ site.ports.first }} {{ site.ports.last - site.ports.first + 1 }}"
    #? else
    local first=10000 count=20000 low high
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    if ((low < 11000 && high < 65000)); then # room above that range
        first=$((high + 1))
        ((count <= 65535 - high)) || count=$((65535 - high))
    elif ((11000 <= low && low < 30000)); then # room below it
        count=$((low - first))
    fi
    echo "$first $count"
    #? endif
}

# Whether a process on this machine uses a TCP port. The kernel's tables have it in hexadecimal.
in_use() { grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") " /proc/net/tcp /proc/net/tcp6; }

# ---- stop request before the time limit ----------------------------------------------------------

# Arranges that the program saves before the time limit, in two ways. Slurm warns this script
# (--signal), which creates STOP_FILE. And programs stop by themselves at STOP_TIME, as a site may
# not send the warning and a shell gets none. Exports STOP_TIME and START_TIME, when this script
# started [seconds since 1970]. Sets left, the seconds from now to the end of the job, and
# stop_second.
arrange_stop_request() {
    local now end reserve
    printf -v now '%(%s)T' -1
    find_end_of_job
    left=$((end - now))
    read_times
    choose_reserve
    export STOP_TIME=$((end - reserve)) START_TIME=$((now - SECONDS))
    stop_second=$((SECONDS + left - reserve)) # STOP_TIME on bash's own clock
    warning='' cancelled=''
    if [[ -n $batch ]]; then
        trap on_warning USR1
        trap 'cancelled=1 && touch "$STOP_FILE" || true' TERM # scancel, or a preemption
    else
        trap - USR1 # which slurm/submit_multinode.sh ignores until here
    fi
}

# Sets the caller's variable end, when Slurm ends this job [seconds since 1970]: in a year if it has
# no time limit, or none that is known.
find_end_of_job() {
    local text
    if [[ -n ${SLURM_JOB_END_TIME:-} ]]; then # Slurm 23.02 or later
        end=$SLURM_JOB_END_TIME
        return
    fi
    # standard: the user's own format may be one that date cannot read.
    text=$(SLURM_TIME_FORMAT=standard \
        squeue --noheader --jobs="${batch:-$SLURM_JOB_ID}" --format=%e || echo unknown)
    end=$(date -d "${text:-unknown}" +%s 2>/dev/null || date -d "1 year" +%s)
}

# Sets the caller's variable reserve: how many seconds before the end of the job the program has to
# stop.
choose_reserve() {
    local measured
    # Without a measurement: 30 s of a short job, 150 s of a long one, a twentieth of the time in
    # between. The warning of --signal comes earlier.
    if ((left < 600)); then
        reserve=30
    elif ((left > 3000)); then
        reserve=150
    else
        reserve=$((left / 20))
    fi
    if [[ -n ${took[save]:-} ]]; then
        # Half as much again as an earlier attempt took between two looks at STOP_FILE and to save,
        # and 10 s for the launcher to end.
        measured=$((10 + 3 * (${took[look]:-0} + took[save]) / 2))
        measured=$((measured < left / 2 ? measured : left / 2))
        # It replaces a guess that is too short, or that would leave the program less time for its
        # steps than for saving.
        if ((measured > reserve || ${took[start]:-0} + 2 * reserve >= left)); then
            reserve=$measured
        fi
    fi
}

# Sets took[start], took[look] and took[save] to the longest times [s] that earlier attempts of this
# job have measured. The program writes them to TIMES_FILE, as lines "start SECONDS" and so on. A
# torn line does not count.
read_times() {
    local file name seconds
    declare -gA took=()
    for file in "$PROJECT_DIR/logs/$SLURM_JOB_ID".*/times; do
        [[ -r $file ]] || continue
        while read -r name seconds; do
            [[ $name =~ ^(start|look|save)$ && $seconds =~ ^(0|[1-9][0-9]{0,5})$ ]] || continue
            ((seconds < ${took[$name]:-0})) || took[$name]=$seconds
        done <"$file"
    done
}

# Asks the program to save and to end. Called when Slurm's warning comes, and after an early one
# again at STOP_TIME.
# shellcheck disable=SC2329 # called by the trap
on_warning() {
    # If the walltime is short, Slurm warns soon after the start: in the first half of the time, or
    # before the program can have made a step. Then this script asks at STOP_TIME.
    if [[ -z $warning ]] &&
        ((left < 600 && (SECONDS < left / 2 || SECONDS < ${took[start]:-0}))); then
        warning=early
        say "warned early: the program will be asked to save at $(date -d "@$STOP_TIME" +%T)"
    else
        warning=passed-on
        touch "$STOP_FILE" || true
        say "warned: the program is asked to save and to end"
        [[ -z $STOP_SIGNAL ]] || signal_ranks
    fi
}

# Sends STOP_SIGNAL to the ranks alone, in a step that ends at once. A code above 128 says that a signal
# has ended the step. That is no fault: a rank may have saved and requeued the job by then.
# shellcheck disable=SC2329 # called by the trap
signal_ranks() {
    local code=0
    timeout --kill-after=10 60 srun --overlap "${on_hosts[@]}" --ntasks=${#hosts[@]} \
        --ntasks-per-node=1 --cpus-per-task=1 --export=ALL --input=none \
        "$PROJECT_DIR/slurm/signal_ranks.sh" "$SLURM_JOB_ID" "$STOP_SIGNAL" || code=$?
    ((code == 0 || code > 128)) ||
        say "STOP_SIGNAL=$STOP_SIGNAL has not reached all ranks, see above"
}

# ---- check the nodes -----------------------------------------------------------------------------

# Has slurm/preflight.sh look at each of hosts, unless PREFLIGHT=0. Returns 1 if one is unfit.
check_nodes() {
    local needed=("$PROJECT_DIR/launch" "${CONTAINER_EXEC[@]:0:1}") # on every node
    [[ $PREFLIGHT != 0 ]] || return 0
    [[ $program == -m ]] || needed+=("$(realpath "$program")")
    ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})) || needed+=("$(command -v "$PYTHON")")
    #? if runtime in ("apptainer", "pyxis", "enroot", "edf")
    [[ $RUNTIME != "{{ runtime }}" || $IMAGE != /* ]] || needed+=("$IMAGE") # a file, else a name
    #? endif
    #? if runtime in ("enroot", "podman-hpc")
    [[ $RUNTIME != "{{ runtime }}" ]] || needed+=("{{ runtime }}") # which container/start.sh calls
    #? endif
    #? if container
    ((${#CONTAINER_FOLDERS[@]} == 0)) || needed+=(--mounts "${CONTAINER_FOLDERS[@]}")
    #? endif
    PREFLIGHT_NODES=$(listed_hosts) "$PROJECT_DIR/slurm/preflight.sh" "${needed[@]}"
}

# ---- launch --------------------------------------------------------------------------------------

# Sets step, the command that starts the wrapper on hosts: once per node or once per rank. Sets also
# on_hosts, the options of srun for a step on hosts. A launcher of an extra builds its own step.
build_step() {
    local per_node=1
    name_hosts
    if [[ -n ${NPROC_PER_NODE:-} && $gpus =~ ^[0-9]+$ ]] && ((NPROC_PER_NODE < gpus)); then
        say "NPROC_PER_NODE=$NPROC_PER_NODE on nodes of $gpus GPUs"
    fi
    if [[ $tasks != 1 ]]; then
        set_ranks_per_node # torchrun counts the GPUs of its node itself, others have to be told
    fi
    if [[ $tasks == own ]]; then
        "build_step_of_${LAUNCHER//-/_}"
        return
    fi
    if [[ $tasks == ranks ]]; then
        per_node=$NPROC_PER_NODE
        ((per_node <= cores)) ||
            die "NPROC_PER_NODE=$per_node, but the job has $cores core(s) on each node: raise" \
                "--cpus-per-task, lower NPROC_PER_NODE, or use LAUNCHER=torchrun"
    fi
    # The step is given its size, because a shell of salloc may lack the tasks and cores of the
    # #SBATCH lines.
    #   --export=ALL      a site's default may be NONE
    #   --cpus-per-task   srun 22.05 to 23.02 do not inherit it
    #   --overlap         the shell of slurm/interactive.sh is a step, which holds what this one needs
    #   no --gpu-bind     each rank sees all GPUs
    step=(srun ${SLURM_STEP_ID:+--overlap} --export=ALL --kill-on-bad-exit=1
        "${on_hosts[@]}" --ntasks=$((${#hosts[@]} * per_node)) --ntasks-per-node="$per_node"
        --cpus-per-task=$((cores / per_node)) "${CONTAINER_SRUN_ARGS[@]}")
    [[ $tasks != ranks ]] || step+=(--label)
    #? for option in site.srun
    #? if option.tasks == "rank"
    # {{ option.why }}
    [[ $tasks == 1 || $per_node != "{{ node.gpus }}" ]] || step+=("{{ option.option }}")
    #? elif option.tasks
    # {{ option.why }}
    [[ $tasks == ranks ]] || step+=("{{ option.option }}")
    #? else
    step+=("{{ option.option }}") # {{ option.why }}
    #? endif
    #? endfor
}

# Sets on_hosts, the options of srun for a step on hosts.
name_hosts() {
    local list
    list=$(listed_hosts)
    on_hosts=("--nodes=${#hosts[@]}" ${list:+"--nodelist=$list"})
}

# Exports NPROC_PER_NODE: as the user set it, else the GPUs of a node, else CPU_RANKS_PER_NODE, else
# 1. Refuses a step with fewer GPUs than the job has.
set_ranks_per_node() {
    if [[ -z ${NPROC_PER_NODE:-} && -n $gpus ]]; then
        NPROC_PER_NODE=$(gpus_of_a_step) || exit
        [[ $gpus == unknown ]] || ((NPROC_PER_NODE >= gpus)) ||
            die "each node of this job has $gpus GPU(s), and srun gives a step $NPROC_PER_NODE:" \
                "ask for them with --gpus-per-node=$gpus, or name the number of ranks," \
                "NPROC_PER_NODE=$((NPROC_PER_NODE ? NPROC_PER_NODE : 1))"
    fi
    if [[ ${NPROC_PER_NODE:-0} == 0 ]]; then
        NPROC_PER_NODE=${CPU_RANKS_PER_NODE:-1}
    fi
    export NPROC_PER_NODE
}

# Prints how many GPUs a step gets on each node, the smallest number if the nodes differ. The job's
# record may say more: with --exclusive it has all GPUs of the nodes, and a step those that were
# asked for (launch/count_gpus.sh).
gpus_of_a_step() {
    local code counts
    code="$(<"$PROJECT_DIR/launch/count_gpus.sh")"$'\n'count_gpus
    counts=$(srun --overlap --export=ALL --input=none "${on_hosts[@]}" --ntasks=${#hosts[@]} \
        --ntasks-per-node=1 --cpus-per-task="$cores" bash -c "$code") ||
        die "srun could not count the GPUs of each node, see above:" \
            "ask for them with --gpus-per-node, or set NPROC_PER_NODE"
    counts=$(grep -E '^[0-9]+$' <<<"$counts") || # a site's TaskProlog may print lines of its own
        die "no node said how many GPUs it has: set NPROC_PER_NODE"
    sort -n <<<"$counts" | sed -n 1p
}

# Begins the attempt that an extra wants (outcome=restart): its nodes, its folder, its step.
begin_next_attempt() {
    RESTART_COUNT=$((RESTART_COUNT + 1))
    choose_nodes
    make_run_folder "$RESTART_COUNT"
    build_step
    [[ -z $cancelled ]] || exit 143 # while the nodes were checked
    [[ $warning != passed-on ]] || touch "$STOP_FILE" # the next attempt is asked to save, too
}

# Runs a program on all nodes. Arguments: the program and its arguments. Sets code to its exit code,
# or to what an extra makes of it, and returns it.
#
# RANK_PREFIX stands before what extras put there: they are nearer to the ranks, so that what they set
# for the ranks is not seen by a program of the user's, nor changed by it.
# shellcheck disable=SC2153,SC2154 # env.sh sets RANK_PREFIX
launch() {
    local command
    running=$1 launched=$SECONDS # for requeue_or_explain, which looks at the program and its start
    explained='' code=0 outcome='' ranks=''
    rank_prefix=("${RANK_PREFIX[@]}") srun_options=()
    call_extras before_launch
    [[ ${step[0]} == srun ]] || srun_options=() # not the step of this launcher
    command=("${step[@]}" "${srun_options[@]}" "${CONTAINER_EXEC[@]}" "${rank_prefix[@]}"
        "${wrapper[@]}" "$@")
    say "$* on ${#hosts[@]} node(s), meeting at $MASTER_ADDR:$MASTER_PORT"
    if [[ -n $batch ]]; then
        wait_and_hear_signals "${command[@]}" || code=$?
    else
        start_beside
        "${command[@]}" || code=$?
    fi
    end_beside
    hear_after_launch
    return "$code"
}

# Runs a command in the background, because bash handles no signal while it waits for a command in
# the foreground. A signal ends `wait`, hence the loop. After an early warning the program has to be
# asked at STOP_TIME, so the loop looks at the time once a second. Returns the command's exit code.
# Sets ranks, the command's process.
# shellcheck disable=SC2329 # called in batch jobs
wait_and_hear_signals() {
    local nothing
    "$@" &
    ranks=$!
    start_beside
    exec {nothing}<> <(:) # a pipe without writers: to read from it is to sleep without a program
    while kill -0 "$ranks" 2>/dev/null; do
        if [[ $warning == early ]]; then
            read -r -t 1 -u "$nothing" || true
            ((SECONDS < stop_second)) || on_warning
        else
            wait "$ranks" || true
        fi
    done
    exec {nothing}>&-
    wait "$ranks"
}

# ---- requeue, or explain the failure -------------------------------------------------------------

# Requeues a job whose program has saved and wants to go on, or says why the run ended. Argument:
# the exit code.
requeue_or_explain() {
    local code=$1 limit record=''
    if [[ -n $outcome && -z $cancelled ]]; then
        requeue_or_end_for_extra "$code"
        return
    fi
    # Slurm's record says why a job ends.
    if [[ -n $batch && (-e $REQUEUE_FILE || -n $cancelled) ]]; then
        record=$(job_record "$batch") || true
    fi
    if wants_requeue "$code" "$record"; then
        requeue "$record"
    elif [[ -z $batch && -e $REQUEUE_FILE ]]; then
        say "saved, but not done. A run inside another job is not requeued: start the program again," \
            "with --resume, to go on"
    elif [[ -n $batch && -e $REQUEUE_FILE && -z $record ]]; then
        say "saved, but not done, and Slurm does not answer, so this job is not requeued:" \
            "the next job with --resume goes on"
    elif [[ $record == *Reason=TimeLimit* && ! -e $TIMES_FILE ]] && tells_of_steps; then
        limit=${record#*TimeLimit=}
        say "the time limit of ${limit%%[[:space:]]*} was over $((SECONDS - launched)) s into the" \
            "program's start, before its first step: raise --time"
    elif [[ -n $cancelled ]]; then
        say "told to end: the walltime, scancel, a preemption or a failed node;" \
            "python3 slurm/doctor.py $batch says which"
    elif ((code)); then
        explain_failure "$code"
        #? if site.expedited_requeue
        tell_of_hold
        #? endif
    fi
}

# Does what an extra wants by outcome: requeues the job, or ends it. Explains a failure. Argument: the
# exit code.
requeue_or_end_for_extra() {
    if [[ $outcome == requeue ]]; then
        if [[ -z $batch ]]; then
            say "an extra wants a requeue, but a run inside another job is not requeued"
        elif ((${SLURM_RESTART_COUNT:-0} >= MAX_REQUEUES)); then
            say "an extra wants a requeue, but MAX_REQUEUES=$MAX_REQUEUES is reached"
        elif ask_for_requeue; then
            say "back into the queue as attempt $((RESTART_COUNT + 1)), as an extra wants"
            return
        else
            say "an extra wants a requeue, but Slurm has not requeued this job, see above"
        fi
    fi
    (($1 == 0)) || explain_failure "$1"
}

# Whether the program has saved and asks to go on, and the job ends for a reason that a requeue
# overcomes.
wants_requeue() {
    local code=$1 record=$2
    [[ -e $REQUEUE_FILE ]] || return
    case $record in # the first line that matches counts
        # A preemption. Slurm may not signal this script, and torchrun then ends with exit code 1.
        # Slurm requeues a job by itself only if it still runs when its grace time is over.
        *JobState=RUNNING*PreemptTime=[0-9]*) return 0 ;;
        # The program ended when it was asked to. After scancel the job is not RUNNING.
        *JobState=RUNNING*) [[ $code == 0 && -z $cancelled ]] && stop_was_due && return 0 ;;
        # The program saved in time, but the launcher ended too late. Slurm leaves this script
        # seconds (KillWait).
        *Reason=TimeLimit*) return 0 ;;
    esac
    return 1
}

# Whether the program was asked to stop, or stopped by itself at STOP_TIME.
stop_was_due() { [[ $warning == passed-on ]] || (($(date +%s) >= STOP_TIME)); }

# Puts this job back into the queue, unless it was restarted MAX_REQUEUES times. Restarts by Slurm
# itself, as after a node's failure, count too. Argument: Slurm's record.
requeue() {
    if ((${SLURM_RESTART_COUNT:-0} >= MAX_REQUEUES)); then
        say "saved, but not done, and MAX_REQUEUES=$MAX_REQUEUES is reached:" \
            "the next job with --resume goes on"
    elif [[ $1 == *Requeue=0* ]]; then
        say "saved, but not done, and this job may not be requeued:" \
            "the next job with --resume goes on"
    elif ask_for_requeue; then
        say "saved, but not done: back into the queue as attempt $((RESTART_COUNT + 1))," \
            "which will go on"
    else
        say "saved, but not done, and Slurm has not requeued this job, see above:" \
            "the next job with --resume goes on"
    fi
}

# Asks Slurm up to three times, as job_record does.
ask_for_requeue() {
    local pause
    for pause in 1 2 0; do
        scontrol requeue "$batch" && return
        (($? <= 128)) || return 0 # a signal: the requeue ended scontrol, too
        sleep "$pause"
    done
    return 1
}

# Whether the program writes its steps to TIMES_FILE: an earlier attempt has done so, or stop.py
# lies beside the program.
tells_of_steps() {
    ((${#took[@]})) || [[ $running != -m && -f $(dirname -- "$running")/stop.py ]]
}

#? if site.expedited_requeue
# Prints what Slurm does with a job of --requeue=expedite that ends with another exit code than 0.
tell_of_hold() {
    [[ -n $batch && $(job_record "$batch") == *Requeue=1*ExpeditedRequeue=Yes* ]] || return 0
    say "if all nodes are healthy, Slurm now holds this job: 'scontrol release $batch' runs it" \
        "again, 'scancel $batch' ends it. Else Slurm starts it again by itself"
}

#? endif
DOCTOR_LIMIT=120 # [s] slurm/doctor.py may take, as the nodes wait for it

# Prints why the run failed, its exit code, and how to ask again. Does so once for each start of the
# program. Argument: the exit code.
explain_failure() {
    local ended="$LAUNCHER ended with exit code $1" again doctor_code=0
    again="python3 slurm/doctor.py ${batch:-logs/${RUN_DIR##*/}}"
    [[ -z ${explained:-} ]] || return 0
    explained=1
    if ! type -P python3 >/dev/null; then
        say "$ended. To see why, run $again on a login node: this node has no python3"
        return
    fi
    timeout --kill-after=5 "$DOCTOR_LIMIT" python3 -B "$PROJECT_DIR/slurm/doctor.py" \
        "${batch:-$RUN_DIR}" || doctor_code=$?
    if ((doctor_code == 124 || doctor_code == 137)); then # timeout has ended it, by TERM or by KILL
        say "slurm/doctor.py found no answer within $DOCTOR_LIMIT s" >&2
    fi
    say "$ended. To ask again, run $again"
}
