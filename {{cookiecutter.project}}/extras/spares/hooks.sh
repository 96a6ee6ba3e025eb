#!/usr/bin/env bash
# Chooses the nodes on which the ranks run, replaces those that fail, and remembers them.
# launch/moments.sh calls the functions spares_MOMENT, and slurm/submit_multinode.sh calls
# choose_nodes.
#
# A node is unfit for this job if slurm/preflight.sh or slurm/doctor.py finds a fault on it. It is
# also unfit if it has died, and Slurm has taken it out of the job. A bad node is one that an
# earlier job found unfit. A spare is a fit node of the job on which no rank runs. With SPARES or
# MIN_NODES (settings.sh) a job stays in its allocation when a node fails: its ranks start again on
# the nodes that are left.
# shellcheck disable=SC2034,SC2154 # the scripts of slurm/ share their variables

# shellcheck source=/dev/null
source "$PROJECT_DIR/extras/spares/list.sh" # spares_remember, spares_remembered, spares_avoid_bad_nodes

declare -gA spares_unfit=() # spares_unfit[NODE]: why the ranks do not run there, in this job
spares_failed_soon=0        # attempts in a row that failed within ten minutes, no node being at fault
spares_launched=0           # when this attempt began, as SECONDS
spares_lasted=0             # how long it lasted [s]
spares_dead=''              # the first node, if this script has taken over from it
spares_outputs=()           # the job's files for output and errors, if another node stands by

# Refuses settings that cannot work.
spares_check_settings() {
    [[ $SPARES =~ ^(0|[1-9][0-9]*)$ ]] ||
        die "SPARES='$SPARES': expected a whole number of nodes that stand by; 0: none"
    [[ -z $MIN_NODES || $MIN_NODES =~ ^[1-9][0-9]*$ ]] ||
        die "MIN_NODES='$MIN_NODES': expected a whole number of nodes; empty: as many as asked for"
    [[ $MAX_RESTARTS =~ ^(0|[1-9][0-9]*)$ ]] ||
        die "MAX_RESTARTS='$MAX_RESTARTS': expected a whole number; 0: ranks are not started again"
    [[ $BAD_NODE_DAYS =~ ^(0|[1-9][0-9]*)$ ]] ||
        die "BAD_NODE_DAYS='$BAD_NODE_DAYS': expected whole days; 0: bad nodes are not avoided"
}

# On a login node: asks sbatch for the spares, and for nodes that are not bad.
spares_before_submit() {
    export SPARES MIN_NODES # the job keeps them if settings.sh changes
    spares_ask_for_nodes || return
    spares_avoid_bad_nodes
}

# Ends this job with the exit code that stand_by.sh has left, if another node has taken over and run
# it to the end. In a script that takes over, sets attempt: Slurm has counted nothing.
spares_job_start() {
    local left=$PROJECT_DIR/logs/$SLURM_JOB_ID.ended ended=''
    spares_dead=${SPARES_TAKES_OVER:-}
    unset SPARES_TAKES_OVER # or a job that this one submits would inherit it
    [[ ! -r $left ]] || read -r ended <"$left"
    rm -f "$left"
    # At its first start, a job may find the file of another one, which had its number long ago.
    [[ -z ${SLURM_RESTART_COUNT:-} || ! $ended =~ ^[0-9]+$ ]] || exit "$ended"
    [[ -n $spares_dead ]] || return 0
    attempt=${SLURM_RESTART_COUNT:-0}
    while [[ -d $PROJECT_DIR/logs/$SLURM_JOB_ID.$attempt ]]; do
        attempt=$((attempt + 1))
    done
}

# Has another node stand by, from the first start of the ranks to the end of the job.
#
# If a node dies after a rank of its step has failed, Slurm 22.05.8 keeps the step alive, and that
# step the cores of its other nodes. With SLURM_OVERLAP, which is srun's --overlap, the next step
# shares them (measured 2026-11-24). mpirun starts its daemons by srun, too.
spares_before_launch() {
    spares_launched=$SECONDS
    spares_stays_in_allocation || return 0
    export SLURM_OVERLAP=1
    [[ $in_batch_job == 1 ]] && ((${#spares_outputs[@]} == 0 && ${#nodes[@]} > 1)) || return 0
    # Read here: while the script calls a function with a redirection, its descriptors lead elsewhere.
    spares_outputs=("$(readlink "/proc/$$/fd/1")" "$(readlink "/proc/$$/fd/2")")
    spares_keep_a_node_standing_by &
    disown $! # or bash would tell of its end
}

# Slurm's warning before the time limit goes to the first node. If that has died, this process sends
# the warning, at STOP_TIME.
spares_beside_launch() {
    local now
    [[ -n $spares_dead ]] || return 0
    printf -v now '%(%s)T' -1
    ((now >= STOP_TIME)) || sleep $((STOP_TIME - now))
    kill -USR1 $$
}

# Has the ranks start again if that may help: a node is at fault, or nothing is known against it. Not
# if the job was cancelled, or has been asked to save.
spares_after_launch() {
    spares_lasted=$((SECONDS - spares_launched)) # before the checks below, which take time
    ((code != 0)) && [[ -z $outcome && $stop != cancelled ]] && spares_stays_in_allocation || return 0
    [[ ! -e $STOP_FILE && ! -e $REQUEUE_FILE ]] || return 0
    if spares_a_node_is_at_fault; then
        spares_failed_soon=0
    else
        spares_another_start_may_help || return 0
    fi
    if ((RESTART_COUNT - ${SLURM_RESTART_COUNT:-0} >= MAX_RESTARTS)); then
        say "MAX_RESTARTS=$MAX_RESTARTS is reached: the ranks do not start again"
        return
    fi
    outcome=restart
}

# Whether the ranks start again on other nodes of the job when one fails.
spares_stays_in_allocation() { ((SPARES > 0)) || [[ -n $MIN_NODES ]]; }

# ---- when a job is submitted ---------------------------------------------------------------------

# Asks sbatch for SPARES more nodes than were typed, or than the #SBATCH lines have.
spares_ask_for_nodes() {
    local typed
    spares_stays_in_allocation || return 0
    sbatch_options+=(--no-kill) # the death of a node does not end the job
    ((SPARES > 0)) || return 0
    typed=$(option_of_job nodes N "$job_script")
    [[ $typed =~ ^[1-9][0-9]*$ ]] ||
        die "--nodes=$typed: expected one whole number, to which SPARES=$SPARES is added"
    sbatch_options+=("--nodes=$((typed + SPARES))") # of two --nodes, sbatch takes the last
    echo "asking for $((typed + SPARES)) nodes: $typed for the ranks, and SPARES=$SPARES"
}

# ---- choose the nodes ----------------------------------------------------------------------------

# Sets hosts, the nodes on which the ranks run: those of the job that are fit, without the spares.
# Ends this script if too few nodes are fit. Replaces the function of slurm/job.sh.
choose_nodes() {
    local node wanted fewest ran=("${hosts[@]}")
    spares_count_nodes # wanted, fewest
    spares_look_at_nodes
    while :; do
        hosts=()
        for node in "${nodes[@]}"; do
            [[ -n ${spares_unfit[$node]:-} ]] || hosts+=("$node")
        done
        ((${#hosts[@]} >= fewest)) || spares_give_up
        set_endpoint
        ! spares_check_hosts || break
        # If preflight blames no node, and none has died, other nodes would not help.
        spares_note_unfit_nodes || spares_one_has_died || exit 1
    done
    if ((${#hosts[@]} > wanted)); then
        spares_set_aside
        set_endpoint # the first node may have become a spare
    fi
    if spares_stays_in_allocation; then
        say "attempt $RESTART_COUNT: ranks on ${#hosts[@]} node(s) of $wanted: ${hosts[*]}"
    fi
}

# Sets the caller's variables wanted, the number of nodes for the ranks, and fewest, the smallest with
# which they start.
spares_count_nodes() {
    wanted=$((SLURM_JOB_NUM_NODES - SPARES))
    ((wanted > 0)) ||
        die "SPARES=$SPARES: this job has $SLURM_JOB_NUM_NODES node(s), so none is left for ranks"
    fewest=${MIN_NODES:-$wanted}
    ((fewest <= wanted)) ||
        die "MIN_NODES=$MIN_NODES: the ranks of this job run on $wanted node(s), without the spares"
}

# Sets nodes to those that the job has now. One that has died is no longer there, if the job has
# --no-kill.
spares_look_at_nodes() {
    local now node
    local before=("${nodes[@]}")
    now=$(spares_nodes_of_job) && [[ -n $now ]] || return 0 # Slurm does not answer
    mapfile -t nodes <<<"$now"
    for node in "${before[@]}"; do
        [[ " ${nodes[*]} " != *" $node "* && -z ${spares_unfit[$node]:-} ]] || continue
        spares_unfit[$node]="it failed, says Slurm"
        say "$node: ${spares_unfit[$node]}"
        spares_remember "$node" "${spares_unfit[$node]}" || true
    done
    [[ $in_batch_job == 0 || " ${nodes[*]} " == *" $SLURMD_NODENAME "* ]] || spares_await_end_of_job
}

# Waits until the job has ended, and ends this script. Slurm has taken the node of this script out
# of the job, though the node lives: its slurmd has died. Another node takes over (stand_by.sh). If
# this script ended before the job, Slurm would end the job (measured with Slurm 22.05.8, 2026-11-24).
spares_await_end_of_job() {
    local record
    say "$SLURMD_NODENAME is no longer part of this job: its script waits for the end"
    until record=$(job_record "$job_id") && [[ $record != *JobState=RUNNING* ]]; do
        sleep 30
    done
    trap - EXIT # the other node has the last word
    exit 1
}

# Whether one of hosts has died, as Slurm says now.
spares_one_has_died() {
    local node
    spares_look_at_nodes
    for node in "${hosts[@]}"; do
        [[ -z ${spares_unfit[$node]:-} ]] || return 0
    done
    return 1
}

# Prints the nodes of this job, a line each. Fails if the job does not run any more.
spares_nodes_of_job() {
    local record
    record=$(job_record "$job_id") || return
    [[ $record == *JobState=RUNNING* && $record =~ \ NodeList=([^[:space:]]+) ]] || return
    scontrol show hostnames "${BASH_REMATCH[1]}"
}

# Whether slurm/preflight.sh finds all of hosts fit. Else RUN_DIR/unfit has a line for each fault.
spares_check_hosts() {
    rm -f "$RUN_DIR/unfit"
    UNFIT_FILE=$RUN_DIR/unfit check_nodes
}

# Notes those of hosts on which spares_check_hosts has found a fault of their own. Returns 1 if there
# are none. After scancel Slurm ends the check, and nodes that do not answer any more are not at
# fault. Another job's port is no fault of a node. If all nodes have one fault in common, or the one
# node of a job that has not run yet, the project is more likely at fault.
spares_note_unfit_nodes() {
    local node reason faults different code=1
    [[ -r $RUN_DIR/unfit && $stop != cancelled ]] || return 1
    faults=$(wc -l <"$RUN_DIR/unfit")
    different=$(cut -f 2 "$RUN_DIR/unfit" | sort --unique | wc -l)
    if ((different == 1 && faults == ${#hosts[@]})) &&
        ((faults > 1 || ${SLURM_RESTART_COUNT:-0} == 0)); then
        return 1
    fi
    while IFS=$'\t' read -r node reason; do
        [[ $reason != "the master's port "* ]] || continue
        spares_unfit[$node]=$reason
        spares_remember "$node" "$reason" || true
        code=0
    done <"$RUN_DIR/unfit"
    return "$code"
}

# Leaves as many of hosts as are wanted. It drops remembered bad nodes first, then nodes on which no
# rank ran in the last attempt, which the caller's list ran has.
spares_set_aside() {
    local order node bad kept
    bad=$(spares_remembered | cut -f 1)
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
spares_give_up() {
    local names
    names=$(printf '%s\n' "${!spares_unfit[@]}" | sort --version-sort | paste -sd ,)
    say "${#hosts[@]} of $SLURM_JOB_NUM_NODES node(s) are fit, and the ranks need $fewest"
    if [[ $in_batch_job == 1 ]] &&
        { spares_stays_in_allocation || ((${SLURM_RESTART_COUNT:-0} > 0)); } &&
        ((${SLURM_RESTART_COUNT:-0} < MAX_REQUEUES)) && spares_requeue_without "$names"; then
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
spares_requeue_without() {
    local record excluded
    record=$(job_record "$job_id") || return
    excluded=$(sed -nE 's/.* ExcNodeList=([^ ]+).*/\1/p' <<<"$record")
    [[ $excluded != "(null)" ]] || excluded=''
    trap : TERM # not '', which the commands below would inherit
    ask_for_requeue || return
    if spares_change_waiting_job "ExcNodeList=${excluded:+$excluded,}$1"; then
        say "back into the queue, to run without $1"
    else
        say "back into the queue; Slurm refused to exclude $1, so the job may get it again"
    fi
}

# Changes this job, which has just gone back into the queue: Slurm takes some changes only of a job
# that waits. But as soon as it waits, Slurm sends SIGTERM to this script and to the scontrol that
# runs then. The next scontrol succeeds, long before Slurm sends SIGKILL, after KillWait (measured
# with Slurm 22.05.8, 2026-11-24). Gives up after 10 s. Arguments: what scontrol update is to change.
spares_change_waiting_job() {
    local began=$SECONDS
    until scontrol update "JobId=$job_id" "$@" 2>/dev/null; do
        ((SECONDS < began + 10)) || return 1
        read -rt 0.2 <> <(:) || true # sleep would be ended, too
    done
}

# ---- after a failure -----------------------------------------------------------------------------

# Whether one of hosts has died, or slurm/preflight.sh finds a fault on it now.
spares_a_node_is_at_fault() {
    spares_one_has_died || { ! spares_check_hosts && spares_note_unfit_nodes; }
}

# Whether another start may succeed, though slurm/preflight.sh finds no fault: fault.py blames a node,
# or does not know whose fault it is. In the second case, two attempts in a row that failed within ten
# minutes end the job. Prints why the ranks failed, if they are to start again.
spares_another_start_may_help() {
    local fault='' node=''
    type -P python3 >/dev/null || return 1
    read -r fault node < <(spares_whose_fault) || return 1 # the doctor has not answered
    [[ $fault != program ]] || return 1
    if [[ $fault == node && " ${hosts[*]} " == *" $node "* ]]; then
        spares_unfit[$node]="broken, says a rank of job $SLURM_JOB_ID"
        spares_remember "$node" "${spares_unfit[$node]}" || true
        spares_failed_soon=0
        explain_failure
        return 0
    fi
    spares_failed_soon=$((spares_failed_soon + 1))
    if ((spares_lasted >= 600)); then
        spares_failed_soon=0
    fi
    if ((spares_failed_soon >= 2)); then
        say "two attempts have failed within ten minutes each, and no node is at fault"
        return 1
    fi
    explain_failure
    say "no fault was found on a node, and no error of the program"
}

# Prints "node NODE", "program" or "unknown", as fault.py says.
spares_whose_fault() {
    local answer what=$job_id
    if [[ $in_batch_job == 0 ]]; then what=$RUN_DIR; fi
    # Exit code 1: the doctor knows no cause.
    answer=$(timeout --kill-after=5 120 python3 -B "$PROJECT_DIR/slurm/doctor.py" --json "$what") || (($? == 1)) || return
    python3 -B "$PROJECT_DIR/extras/spares/fault.py" <<<"$answer"
}

# ---- a node that takes over ----------------------------------------------------------------------

# Has another node wait for the death of this one. If the node dies on which this script runs, Slurm
# neither ends the job (--no-kill) nor starts the script again: the other nodes would be idle until
# the time limit. Starts stand_by.sh on the job's last node; if that one ends or fails, on the one
# before it, and so on.
spares_keep_a_node_standing_by() {
    local turn=0 all others node
    trap '' USR1
    VARIABLES_OF_BATCH=$(declare -px "${!SLURM_@}") # the step has values of its own
    export VARIABLES_OF_BATCH
    while kill -0 $$ 2>/dev/null; do
        all=$(spares_nodes_of_job) || all='' # Slurm does not answer now
        [[ -z $all ]] || grep -qxF -- "$SLURMD_NODENAME" <<<"$all" || return 0 # taken over
        mapfile -t others < <(grep -vxF -- "$SLURMD_NODENAME" <<<"$all" | tac)
        if [[ -n ${others[*]} ]]; then
            node=${others[turn++ % ${#others[@]}]}
            srun --overlap --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
                --nodelist="$node" --input=none --output=none \
                bash "$PROJECT_DIR/extras/spares/stand_by.sh" "$SLURMD_NODENAME" "${spares_outputs[@]}" \
                "${typed[@]}" &>>"$RUN_DIR/stand_by.log" || true
        fi
        sleep 30 &>/dev/null || return 0
    done
}
