#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set node = plan.node_facts
#? set cores = plan.cores_per_node
#? set runtime = cookiecutter.runtime
#? set container = plan.in_container
# Steps of slurm/submit_multinode.sh and slurm/run_here.sh in the job, up to choose_nodes: those two
# scripts call them, in the order of this file. slurm/ranks.sh has arrange_stop_request, and the steps
# after choose_nodes. They share, beside the variables that slurm/submit.sh lists:
#
#   variable            what it holds                                                set by
#   in_batch_job        1: Slurm has started the script; 0: slurm/run_here.sh        those two scripts
#   record              what Slurm knows of this job: scontrol show job              identify_job
#   job_id              the job's name for scontrol: 123, or 120_2 in an array       identify_job
#   requeues            how often Slurm has put this job back into the queue         identify_job
#   nodes               all nodes of the job                                         read_allocation
#   cores               cores of a node, the fewest                                  read_allocation
#   gpus                GPUs of a node; '' if it has none, unknown without record    read_allocation
#   attempt             number of RUN_DIR, logs/JOBID.N               number_attempt, slurm/run_here.sh
#   first_attempt       the number at which run_here.sh has begun; 0 in a batch job  slurm/run_here.sh
#   hosts               the nodes on which the ranks run                             choose_nodes
#   stop                '', asked (to save) or cancelled                             traps of USR1, TERM
#   interrupted         1: a signal for this script has come                         traps of USR1, TERM
#   on_hosts            options of srun for a step on hosts                          launch
#   srun_options        further options of srun for the ranks, from extras           before_launch
#   rank_prefix         words before the wrapper: RANK_PREFIX, then extras'          before_launch
#   step, wrapper       what starts tasks on hosts, and what each task runs          build_step_of_LAUNCHER
#   ranks               process of the step, while it runs                           start_ranks
#   code                exit code of the ranks                                       wait_for_ranks
#   outcome             '', or what an extra wants: restart, requeue, end            after_launch
#   explained           1: explain_failure has run for this start of the ranks       explain_failure
#? if container
#   container_folders   further folders for the container, from extras               job_start
#? endif
#
# Three counters are easily confused. A job that Slurm has requeued once, and whose ranks an extra has started again
# before, has requeues=1 (as Slurm counts, for MAX_REQUEUES), attempt=2 (logs/JOBID.2, and the port) and
# RESTART_COUNT=2, which the program reads. The second slurm/run_here.sh in one allocation has
# first_attempt=1, attempt=1 (logs/JOBID.1) and RESTART_COUNT=0, as its program starts anew.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts of slurm/ share variables

nodes=() hosts=() on_hosts=() container_folders=() srun_options=()
attempt='' first_attempt=0 ranks='' outcome='' interrupted=''

# ---- the job -------------------------------------------------------------------------------------

# Sets record, job_id and requeues. Slurm's variables alone are not enough. For the last job of an
# array SLURM_JOB_ID is the array's number, and the record of that has all jobs of the array. A job that
# was submitted from another one inherits that one's variables of arrays and restarts. This function
# unsets them.
identify_job() {
    job_id=$SLURM_JOB_ID
    if [[ -z ${record:-} ]]; then record=$(job_record "$job_id") || record=''; fi
    if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
        [[ -n $record ]] ||
            die "Slurm does not answer 'scontrol show job $job_id', which says whether this job" \
                "belongs to an array: submit again"
        if [[ $record == *ArrayTaskId=* ]]; then
            job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
            record=$(job_record "$job_id") || record=''
        else
            unset "${!SLURM_ARRAY_@}"
        fi
    fi
    requeues=$(field Restarts)
    requeues=${requeues:-${SLURM_RESTART_COUNT:-0}}
    if ((requeues == 0)); then unset SLURM_RESTART_COUNT; fi
}

# Sets nodes, cores and gpus. Reads record.
read_allocation() {
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST") # node[1-2], one a line
    ((${#nodes[@]})) || die "Slurm does not name the nodes of $SLURM_JOB_NODELIST: submit again"
    #? if cores
    # salloc may have been called without --cpus-per-task.
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        cores=$((SLURM_CPUS_PER_TASK * $(smallest "${SLURM_TASKS_PER_NODE:-1}")))
    else
        cores=$(smallest "$SLURM_JOB_CPUS_PER_NODE")
    fi
    #? else
    cores=$(smallest "$SLURM_JOB_CPUS_PER_NODE")
    #? endif
    gpus=unknown
    if [[ -n $record ]]; then read_gpus; fi
    # A job without GPUs inherits these from a shell that has some.
    if [[ -z $gpus ]]; then
        unset SLURM_GPUS_ON_NODE
        is_in_env CUDA_VISIBLE_DEVICES || unset CUDA_VISIBLE_DEVICES
    fi
}

# Prints the smallest number of a list as Slurm writes it. Argument: the list, as 64(x2),32
smallest() {
    local number least=''
    for number in ${1//,/ }; do
        number=${number%(*}
        if [[ -z $least ]] || ((number < least)); then least=$number; fi
    done
    echo "$least"
}

# Sets gpus, the fewest of a node. Refuses a job that asked for GPUs as a whole, if its nodes have
# different numbers. Reads record, which has such a line for each group of nodes, and says what was
# asked for:
#    Nodes=node[1-2] CPU_IDs=0-31 Mem=0 GRES=gpu:a100:4(IDX:0-3)
#    TresPerNode=gres:gpu:a100:2
# Slurm gives a step all GPUs of its job only if the job asked for them per node. With --gpus=4 or
# --gpus-per-task=1 a step of one task per node gets one on each node, or three and one (Slurm
# 22.05.8, 2026-11-26). Then SLURM_GPUS_PER_NODE tells each srun how many there are.
read_gpus() {
    local held asked='TresPerNode=[^[:space:]]*gres[:/]gpu([:=][^,[:space:]]+)?([,[:space:]]|$)'
    mapfile -t held < <(
        grep -oE '\<gpu(:[^:,( ]+)?:[0-9]+\(' <<<"$record" | sed 's/.*:\([0-9]*\)(/\1/' | sort -n -u
    )
    gpus=${held[0]:-}
    if [[ $record =~ $asked ]]; then
        gpus=${BASH_REMATCH[1]##*[:=]} # of gpu:a100:2; with --exclusive the job may hold more
        if [[ ! $gpus =~ ^[0-9]+$ ]]; then gpus=1; fi
    elif [[ $record =~ TresPer(Job|Task|Socket)=[^[:space:]]*gpu ]]; then
        ((${#held[@]} == 1)) ||
            die "this job has unequal nodes, of ${held[*]} GPUs: ask for the same number on each" \
                "with --gpus-per-node, in place of --gpus or --gpus-per-task"
        export SLURM_GPUS_PER_NODE=$gpus
    fi # else it asked for none, and holds those of its nodes by --exclusive
}

# ---- run folder ----------------------------------------------------------------------------------

# Sets attempt, unless an extra or slurm/run_here.sh has. Slurm counts requeues alone, and not the starts
# of ranks in one allocation, which have a folder each. The first start of a job takes logs/JOBID.0, also
# if another job, which had this number long ago, has left it.
number_attempt() {
    if [[ -n $attempt ]]; then return; fi
    attempt=$requeues
    while ((attempt > 0)) && [[ -d $PROJECT_DIR/logs/$SLURM_JOB_ID.$attempt ]]; do
        attempt=$((attempt + 1))
    done
}

# Makes RUN_DIR, the folder of this attempt's logs, and exports it. Exports RESTART_COUNT, 0 if the
# program starts anew, and the files by which this script and the program talk: STOP_FILE,
# REQUEUE_FILE. Reads attempt, stop.
make_run_folder() {
    RUN_DIR="$(realpath "$PROJECT_DIR/logs")/$SLURM_JOB_ID.$attempt"
    export RUN_DIR STOP_FILE="$RUN_DIR/stop" REQUEUE_FILE="$RUN_DIR/requeue"
    export RESTART_COUNT=$((attempt - first_attempt))
    mkdir -p "$RUN_DIR"
    ln -sfn "${RUN_DIR##*/}" "$PROJECT_DIR/logs/latest" || true # two jobs may start at once
    rm -f "$STOP_FILE" "$REQUEUE_FILE" # of a job that had this number long ago
    if [[ -n $stop ]]; then touch "$STOP_FILE"; fi
}

# ---- nodes and rendezvous endpoint ---------------------------------------------------------------

# Sets hosts, and where rank 0 listens. Ends this script if the ranks would fail on one of hosts. An
# extra may define this function anew, to choose other hosts.
choose_nodes() {
    hosts=("${nodes[@]}")
    set_endpoint
    check_nodes || exit 1
}

# Exports MASTER_ADDR and MASTER_PORT, where rank 0 listens: on the first of hosts.
set_endpoint() {
    export MASTER_ADDR="${hosts[0]}${MASTER_ADDR_SUFFIX:-}"
    MASTER_PORT=$(free_port) || exit
    export MASTER_PORT
}

# Prints a port that is free on this machine: the first node, or where salloc was called. The search
# starts at a port that follows from the numbers of job and attempt. So two jobs on one node rarely
# try the same port, and a new attempt does not meet the ranks of the last one.
free_port() {
    local first count port try
    read -r first count < <(port_range)
    for ((try = 0; try < count; try++)); do
        port=$((first + (SLURM_JOB_ID + 7919 * attempt + try) % count))
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
        if ((count > 65535 - high)); then count=$((65535 - high)); fi
    elif ((11000 <= low && low < 30000)); then # room below it
        count=$((low - first))
    fi
    echo "$first $count"
    #? endif
}

# Whether a process on this machine uses a TCP port. The kernel's tables have it in hexadecimal, as
# 4E20 for 20000 in:   0: 0100007F:4E20 00000000:0000 0A …
in_use() { grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") " /proc/net/tcp /proc/net/tcp6; }

# Checks hosts, unless PREFLIGHT=0. Returns 1 if one of them is unfit.
check_nodes() {
    local needed=("$PROJECT_DIR/launch" "${CONTAINER_EXEC[@]:0:1}") # on every node
    if [[ $PREFLIGHT == 0 ]]; then return; fi
    if [[ $program != -m ]]; then needed+=("$(realpath "$program")"); fi
    if ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]} == 0)); then
        needed+=("$(type -P "$PYTHON")" "${RANK_PREFIX[@]:0:1}") # in a container they are the image's
    fi
    #? if runtime in ("apptainer", "pyxis", "enroot", "edf")
    if [[ $RUNTIME == "{{ runtime }}" && $IMAGE == /* ]]; then needed+=("$IMAGE"); fi # else it names one
    #? endif
    #? if runtime in ("enroot", "podman-hpc")
    if [[ $RUNTIME == "{{ runtime }}" ]]; then needed+=("{{ runtime }}"); fi # which container/start.sh calls
    #? endif
    #? if container
    if ((${#CONTAINER_FOLDERS[@]})); then needed+=(--mounts "${CONTAINER_FOLDERS[@]}"); fi
    #? endif
    # shellcheck source=/dev/null
    (source "$PROJECT_DIR/slurm/preflight.sh" && preflight "${needed[@]}")
}

# Prints words, joined with commas.
joined() { (IFS=, && echo "$*"); }
