#!/usr/bin/env bash
# On which nodes the ranks run. These functions of slurm/submit_multinode.sh choose nodes, replace
# those that fail, and remember them. slurm/lib.sh reads this file.
#
# A node is unfit for this job if slurm/preflight.sh or slurm/doctor.py finds a fault on it. It is
# also unfit if it has died, and Slurm has taken it out of the job. A bad node is one that an
# earlier job found unfit. A spare is a fit node of the job on which no rank runs. With SPARES or
# MIN_NODES (env.sh) a job stays in its allocation when a node fails: its ranks start again on the
# nodes that are left.
#
# Variables of slurm/lib.sh and slurm/submit_multinode.sh: nodes are those of the job, hosts those
# of the ranks. batch is the job's number, and empty in a shell of salloc.
# shellcheck disable=SC2034,SC2154 # slurm/lib.sh and slurm/submit_multinode.sh share variables

# ---- nodes that were found bad -------------------------------------------------------------------

# One line per fault: the node, the time, the job and the reason, with tabs between them.
bad_nodes=$PROJECT_DIR/logs/bad_nodes

# Adds a node to the file. Arguments: the node, the reason.
remember_bad_node() {
    make_logs_folder &&
        printf '%s\t%(%FT%T)T\t%s\t%s\n' \
            "$1" -1 "${SLURM_JOB_ID:--}" "${2//[$'\t\n']/ }" >>"$bad_nodes"
}

# Prints the newest line of each node, if it is younger than BAD_NODE_DAYS. Control characters, which
# a terminal obeys, become "?".
remembered_nodes() {
    local now since
    [[ -r $bad_nodes ]] || return 0
    printf -v now '%(%s)T' -1
    printf -v since '%(%FT%T)T' $((now - 86400 * BAD_NODE_DAYS))
    awk -F '\t' -v since="$since" '
        NF == 4 && $2 > since { newest[$1] = $0 }
        END { for (node in newest) print newest[node] }' "$bad_nodes" | sort |
        LC_ALL=C sed 's/[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]/?/g'
}

# Adds --exclude for these nodes to the options of sbatch, and says so. It leaves out names that the
# cluster does not know any more, which sbatch would refuse, and those of --nodelist. Argument: the
# script with the #SBATCH lines.
avoid_bad_nodes() {
    local node time job reason known asked excluded
    local bad=()
    [[ $BAD_NODE_DAYS != 0 && -s $bad_nodes ]] || return 0
    known=$(nodes_of_cluster) || return 0
    asked=$(nodes_of_option nodelist w "$1") || exit
    asked=$(scontrol show hostnames "$asked" 2>/dev/null) || true
    while IFS=$'\t' read -r node time job reason; do
        grep -qxF -- "$node" <<<"$known" || continue
        ! grep -qxF -- "$node" <<<"$asked" || continue
        bad+=("$node")
        [[ $job == - ]] && job="added by hand" || job="found by job $job"
        echo "without $node: $reason ($job, ${time/T/ })"
    done < <(remembered_nodes)
    ((${#bad[@]})) || return 0
    echo "to use a node again: bash slurm/bad_nodes.sh forget ${bad[0]}." \
        "To use every node in one job: BAD_NODE_DAYS=0 bash slurm/submit_multinode.sh …"
    excluded=$(nodes_of_option exclude x "$1") || exit
    sbatch_options+=("--exclude=${excluded:+$excluded,}$(with_commas "${bad[@]}")")
}

# Prints the nodes of the cluster, a line each, and those of hidden partitions too.
nodes_of_cluster() { sinfo --all --noheader --Node --format=%N; }

with_commas() { (IFS=, && echo "$*"); }

# ---- when a job is submitted ---------------------------------------------------------------------

# Whether the ranks start again on other nodes of the job when one fails.
stays_in_allocation() { ((SPARES > 0)) || [[ -n $MIN_NODES ]]; }

# Asks sbatch for SPARES more nodes than were typed, or than the #SBATCH lines have. Argument: the
# script with these lines.
ask_for_spares() {
    local typed
    stays_in_allocation || return 0
    sbatch_options+=(--no-kill) # the death of a node does not end the job
    ((SPARES > 0)) || return 0
    typed=$(option_of_job nodes N "$1")
    [[ $typed =~ ^[1-9][0-9]*$ ]] ||
        die "--nodes=$typed: expected one whole number, to which SPARES=$SPARES is added"
    sbatch_options+=("--nodes=$((typed + SPARES))") # of two --nodes, sbatch takes the last
    echo "asking for $((typed + SPARES)) nodes: $typed for the ranks, and SPARES=$SPARES"
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

# Prints the nodes that an option names, with commas between them. Arguments: as for option_of_job.
nodes_of_option() {
    local value
    value=$(option_of_job "$@")
    if [[ $value == */* ]]; then # sbatch takes this for a file with the names
        [[ -r $value ]] || die "--$1=$value: cannot read this file; expected nodes, or a file of them"
        value=$(xargs <"$value" | tr ' ' ,)
    fi
    echo "$value"
}

# ---- choose the nodes ----------------------------------------------------------------------------

declare -A unfit=() # unfit[NODE]: why the ranks do not run there, in this job
in_vain=0           # attempts that failed without a newer checkpoint, while no node was at fault

# Sets wanted, the number of nodes for the ranks, and fewest, the smallest with which they start.
count_nodes() {
    wanted=$((SLURM_JOB_NUM_NODES - SPARES))
    ((wanted > 0)) ||
        die "SPARES=$SPARES: this job has $SLURM_JOB_NUM_NODES node(s), so none is left for ranks"
    fewest=${MIN_NODES:-$wanted}
    ((fewest <= wanted)) ||
        die "MIN_NODES=$MIN_NODES: the ranks of this job run on $wanted node(s), without the spares"
}

# Sets hosts, the nodes on which the ranks run: those of the job that are fit, without the spares.
# Exports MASTER_ADDR and MASTER_PORT, where they meet. Ends this script if too few nodes are fit. An
# extra may define this function anew. It sets hosts, then calls set_rendezvous_endpoint, and
# check_nodes, which returns 1 if the ranks would fail on one of them.
choose_nodes() {
    local node ran=("${hosts[@]}")
    count_nodes
    look_at_nodes
    while :; do
        hosts=()
        for node in "${nodes[@]}"; do
            [[ -n ${unfit[$node]:-} ]] || hosts+=("$node")
        done
        ((${#hosts[@]} >= fewest)) || give_up
        set_rendezvous_endpoint
        ! check_nodes || break
        # If preflight blames no node, and none has died, other nodes would not help.
        note_unfit_nodes || one_has_died || exit 1
    done
    if ((${#hosts[@]} > wanted)); then
        set_spares_aside
        set_rendezvous_endpoint # the first node may have become a spare
    fi
    if stays_in_allocation; then
        say "attempt $RESTART_COUNT: ranks on ${#hosts[@]} node(s) of $wanted: ${hosts[*]}"
    fi
}

# Sets nodes to those that the job has now. One that has died is no longer there, if the job has
# --no-kill.
look_at_nodes() {
    local now node
    local before=("${nodes[@]}")
    now=$(nodes_of_job) && [[ -n $now ]] || return 0 # Slurm does not answer: they stay the same
    mapfile -t nodes <<<"$now"
    for node in "${before[@]}"; do
        [[ " ${nodes[*]} " != *" $node "* && -z ${unfit[$node]:-} ]] || continue
        unfit[$node]="it failed, says Slurm"
        say "$node: ${unfit[$node]}"
        remember_bad_node "$node" "${unfit[$node]}" || true
    done
    [[ -z $batch || " ${nodes[*]} " == *" $SLURMD_NODENAME "* ]] || await_end_of_job
}

# Waits until the job has ended, and ends this script. Slurm has taken the node of this script out
# of the job, though the node lives: its slurmd has died. Another node takes over
# (slurm/stand_by.sh). If this script ended before the job, Slurm would end the job (measured with
# Slurm 22.05.8, 2026-11-24).
await_end_of_job() {
    local record
    say "$SLURMD_NODENAME is no longer part of this job: its script waits for the end"
    until record=$(job_record "$batch") && [[ $record != *JobState=RUNNING* ]]; do
        sleep 30
    done
    exit 1
}

# Whether one of hosts has died, as Slurm says now.
one_has_died() {
    local node
    look_at_nodes
    for node in "${hosts[@]}"; do
        [[ -z ${unfit[$node]:-} ]] || return 0
    done
    return 1
}

# Prints the nodes of this job, a line each. Fails if the job does not run any more.
nodes_of_job() {
    local record
    record=$(job_record "${batch:-$SLURM_JOB_ID}") || return
    [[ $record == *JobState=RUNNING* && $record =~ \ NodeList=([^[:space:]]+) ]] || return
    scontrol show hostnames "${BASH_REMATCH[1]}"
}

# Notes those of hosts on which check_nodes has found a fault. Returns 1 if there are none. After
# scancel Slurm ends the check, and nodes that do not answer any more are not at fault.
note_unfit_nodes() {
    local node reason code=1
    [[ -r $UNFIT_FILE && -z $cancelled ]] || return 1
    while IFS=$'\t' read -r node reason; do
        [[ -n $node && " ${hosts[*]} " == *" $node "* ]] || continue
        unfit[$node]=$reason
        remember_bad_node "$node" "$reason" || true
        code=0
    done <"$UNFIT_FILE"
    return "$code"
}

# Leaves as many of hosts as are wanted. It drops remembered bad nodes first, then nodes on which no
# rank ran in the last attempt, which the caller's list ran has.
set_spares_aside() {
    local order node bad kept
    bad=$(remembered_nodes | cut -f 1)
    kept=$(for node in "${hosts[@]}"; do
        order=1
        [[ " ${ran[*]} " != *" $node "* ]] || order=0
        ! grep -qxF -- "$node" <<<"$bad" || order=2
        echo "$order $node"
    done | sort --stable --key=1,1 | sed -n "1,${wanted}s/^. //p") # head would end sort by SIGPIPE
    # In the order of the job:
    mapfile -t hosts < <(printf '%s\n' "${hosts[@]}" | grep -xF -- "$kept")
}

# Ends this script, because fewer nodes are fit than are needed. A job goes back into the queue to
# wait for others, if it has been requeued before, or has SPARES or MIN_NODES.
give_up() {
    local names
    names=$(printf '%s\n' "${!unfit[@]}" | sort --version-sort | paste -sd ,)
    say "${#hosts[@]} of $SLURM_JOB_NUM_NODES node(s) are fit, and the ranks need $fewest"
    if [[ -n $batch ]] && { stays_in_allocation || ((${SLURM_RESTART_COUNT:-0} > 0)); } &&
        ((${SLURM_RESTART_COUNT:-0} < MAX_REQUEUES)) && requeue_without "$names"; then
        exit 1
    fi
    if [[ $BAD_NODE_DAYS != 0 ]]; then
        say "submit again: slurm/submit_multinode.sh then avoids $names;" \
            "with sbatch, --exclude=$names"
    else
        say "submit again with --exclude=$names"
    fi
    exit 1
}

# Puts the job back into the queue, and keeps it from nodes. If Slurm does not keep it from them,
# the job may get the same node again, find it unfit again, and go back. Argument: the nodes, with
# commas between them.
requeue_without() {
    local record excluded
    record=$(job_record "$batch") || return
    excluded=$(sed -nE 's/.* ExcNodeList=([^ ]+).*/\1/p' <<<"$record")
    [[ $excluded != "(null)" ]] || excluded=''
    trap : TERM # not '', which the commands below would inherit
    ask_for_requeue || return
    if change_waiting_job "ExcNodeList=${excluded:+$excluded,}$1"; then
        say "back into the queue, to run without $1"
    else
        say "back into the queue; Slurm refused to exclude $1, so the job may get it again"
    fi
}

# Changes this job, which has just gone back into the queue: Slurm takes some changes only of a job
# that waits. But as soon as it waits, Slurm sends SIGTERM to this script and to the scontrol that
# runs then. The next scontrol succeeds, long before Slurm sends SIGKILL, after KillWait (measured
# with Slurm 22.05.8, 2026-11-24). Gives up after 10 s. Arguments: what scontrol update is to
# change.
change_waiting_job() {
    local began=$SECONDS
    until scontrol update "JobId=$batch" "$@" 2>/dev/null; do
        ((SECONDS < began + 10)) || return 1
        read -rt 0.2 <> <(:) || true # sleep would be ended, too
    done
}

# Prints hosts with commas between them; nothing if they are all nodes of the job, which srun takes
# without a list.
listed_hosts() {
    ((${#hosts[@]} == SLURM_JOB_NUM_NODES)) || with_commas "${hosts[@]}"
}

# ---- after a failure -----------------------------------------------------------------------------

# Whether the ranks are to start again on the nodes that this job has: an extra says so by outcome, or
# leaves it open, and restart_may_help. Argument: the exit code of launch.
wants_restart() {
    case $outcome in
        '') restart_may_help "$1" ;;
        restart) restart_is_possible ;;
        *) return 1 ;;
    esac
}

# Whether the job has time and restarts left for the restart that an extra wants.
restart_is_possible() {
    if [[ -n $cancelled || $warning == passed-on ]]; then
        say "an extra wants a restart, but the job is about to end"
    elif ((RESTART_COUNT - ${SLURM_RESTART_COUNT:-0} >= MAX_RESTARTS)); then
        say "an extra wants a restart, but MAX_RESTARTS=$MAX_RESTARTS is reached"
    else
        return 0
    fi
    outcome='' # the program may have asked for a requeue
    return 1
}

# Whether the ranks are to start again on the nodes that this job has. They are not if the job was
# cancelled, or has been asked to save. Argument: the exit code of launch.
restart_may_help() {
    (($1)) && stays_in_allocation || return 1
    [[ ! -e $SAVED_FILE ]] || in_vain=0
    [[ -z $cancelled && $warning != passed-on && ! -e $REQUEUE_FILE ]] || return 1
    if a_node_is_at_fault; then
        in_vain=0
    else
        retry_may_succeed "$1" || return 1
    fi
    ((RESTART_COUNT - ${SLURM_RESTART_COUNT:-0} < MAX_RESTARTS)) && return
    say "MAX_RESTARTS=$MAX_RESTARTS is reached: the ranks do not start again"
    return 1
}

# Whether one of hosts has died, or slurm/preflight.sh finds a fault on it now.
a_node_is_at_fault() {
    one_has_died || { ! check_nodes && note_unfit_nodes; }
}

# Whether another start may succeed, though slurm/preflight.sh finds no fault: slurm/fault.py
# blames a node, or does not know whose fault it is. In the second case, two failed attempts in a
# row end the job, unless the program saves a checkpoint, and then creates SAVED_FILE. Argument:
# the exit code of launch.
retry_may_succeed() {
    local fault='' node=''
    type -P python3 >/dev/null || return 1
    read -r fault node < <(whose_fault) || return 1 # the doctor has not answered
    [[ $fault != program ]] || return 1
    explain_failure "$1"
    if [[ $fault == node && " ${hosts[*]} " == *" $node "* ]]; then
        unfit[$node]="broken, says a rank of job $SLURM_JOB_ID"
        remember_bad_node "$node" "${unfit[$node]}" || true
        return 0
    fi
    in_vain=$((in_vain + 1))
    if ((in_vain >= 2)); then
        say "two attempts have failed without a newer checkpoint, and no node is at fault"
        return 1
    fi
    say "no fault was found on a node, and no error of the program"
}

# Prints "node NODE", "program" or "unknown", as slurm/fault.py says.
whose_fault() {
    local answer
    answer=$(ask_doctor --json) || (($? == 1)) || return # 1: it knows no cause
    python3 -B "$PROJECT_DIR/slurm/fault.py" <<<"$answer"
}

# Begins the next attempt: its nodes, its folder, its step.
begin_next_attempt() {
    RESTART_COUNT=$((RESTART_COUNT + 1))
    choose_nodes
    make_run_folder "$RESTART_COUNT"
    build_step
    [[ -z $cancelled ]] || exit 143 # while the nodes were checked
    [[ $warning != passed-on ]] || touch "$STOP_FILE"
}

# ---- a node that takes over ----------------------------------------------------------------------

# Has another node wait for the death of this one, in jobs that stay in their allocation. If the
# node dies on which this script runs, Slurm neither ends the job (--no-kill) nor starts the script
# again: the other nodes would be idle until the time limit.
stand_by() {
    [[ -n $batch ]] && stays_in_allocation && ((${#nodes[@]} > 1)) || return 0
    keep_a_node_standing_by &
    disown
}

# Ends this script with the exit code that slurm/stand_by.sh has left, if another node has taken
# over this job and run it to the end.
end_if_taken_over() {
    local code='' file=$PROJECT_DIR/logs/$SLURM_JOB_ID.ended
    [[ ! -r $file ]] || read -r code <"$file" || true
    rm -f "$file"
    # At its first start, a job may find the file of another one, which had its number long ago.
    [[ -z ${SLURM_RESTART_COUNT:-} || ! $code =~ ^[0-9]+$ ]] || exit "$code"
}

# Starts slurm/stand_by.sh on the job's last node; if that one ends or fails, on the one before it,
# and so on.
keep_a_node_standing_by() {
    local turn=0 all others node log=$RUN_DIR/stand_by.log
    trap '' USR1
    VARIABLES_OF_BATCH=$(declare -px "${!SLURM_@}") # the step has values of its own
    export VARIABLES_OF_BATCH
    while kill -0 $$ 2>/dev/null; do
        all=$(nodes_of_job) || all='' # Slurm does not answer now
        [[ -z $all ]] || grep -qxF -- "$SLURMD_NODENAME" <<<"$all" || return 0 # await_end_of_job
        mapfile -t others < <(grep -vxF -- "$SLURMD_NODENAME" <<<"$all" | tac)
        if [[ -n ${others[*]} ]]; then
            node=${others[turn++ % ${#others[@]}]}
            srun --overlap --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
                --nodelist="$node" --input=none --output=none "$PROJECT_DIR/slurm/stand_by.sh" \
                "$SLURMD_NODENAME" "${words[@]}" &>>"$log" || true
        fi
        sleep $((turn < 6 ? 10 << turn : 600)) &>/dev/null || return 0
    done
}
