#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? if kind == "slurm"
# Has each rank tell where it is: when stacks.sh asks, when a collective times out, and when the job is
# stuck. launch/moments.sh calls the functions hangs_MOMENT at the moments of a job that it lists. They read
# what slurm/job.sh lists: hosts, on_hosts, ranks, stop, in_batch_job. They change code and outcome.
#? elif kind == "local"
# Has each rank tell where it is: when stacks.sh asks, and when a collective times out.
# launch/moments.sh calls the functions hangs_MOMENT at the moments of a run that it lists. They read code,
# the exit code of the ranks.
#? else
# Has each rank tell where it is when stacks.sh asks, and leave a record when a collective times out.
# launch/moments.sh calls the functions hangs_MOMENT at the moments of a job that it lists. They read code,
# the exit code of the ranks, and pod, the number of this pod.
#? endif
#
# Files in RUN_DIR:
#? if kind != "runai"
#   timeout              a rank's collective has timed out: the rank waits for stacks.txt, a minute at
#                        most
#? endif
#   collectives-rank-R   rank R's collectives, written when one has failed
#   nccl-rank-R          the same, as torch writes it for NCCL
#   stacks.txt           where the ranks were, who kept whom waiting, an empty line, whole stacks
#? if kind == "slurm"
#   stuck                the job was ended, as no rank moved
#? endif
# shellcheck disable=SC2034,SC2154 # the scripts that read this file share its variables

hangs_check_settings() {
    #? if kind == "slurm"
    [[ $STALL_TIMEOUT == 0 || $STALL_TIMEOUT =~ ^[1-9][0-9]+$ ]] ||
        die "STALL_TIMEOUT='$STALL_TIMEOUT': expected seconds, 10 or more; 0: no job counts as stuck"
    [[ $STALL_ACTION == end || $STALL_ACTION == requeue ]] ||
        die "STALL_ACTION='$STALL_ACTION': expected end or requeue"
    #? else
    [[ ${STALL_TIMEOUT:-0} == 0 ]] ||
        die "STALL_TIMEOUT='$STALL_TIMEOUT': only on Slurm a job that is stuck is ended; unset it"
    #? endif
}

hangs_before_launch() {
    rm -f "$RUN_DIR"/{stuck,timeout,stacks.txt} "$RUN_DIR"/*-rank-* # of an earlier start
    rank_prefix+=(bash "$PROJECT_DIR/extras/hangs/with_stacks.sh")
}

#? if kind != "runai"
hangs_beside_launch() {
    #? if kind == "slurm"
    local looked=0 next_look=0
    #? endif
    while sleep 3 && kill -0 $$ 2>/dev/null; do # as long as the script lives that started this
        hangs_answer_timeout
        #? if kind == "slurm"
        ! hangs_watches_for_stall || hangs_end_if_stuck
        #? endif
    done
}

#? endif
hangs_after_launch() {
    #? if kind == "slurm"
    ((code)) || return 0
    hangs_add_records
    [[ -e $RUN_DIR/stuck ]] || return 0
    code=124 # as that of the command timeout
    [[ -n $outcome || $stop == cancelled ]] || outcome=$STALL_ACTION
    #? elif kind == "local"
    ((code == 0)) || hangs_add_records
    #? else
    ((code != 0 && pod == 0)) || return 0
    hangs_add_records
    [[ ! -s $RUN_DIR/stacks.txt ]] ||
        say "what ranks have left when they failed:"$'\n'"$(sed '/^$/,$d' "$RUN_DIR/stacks.txt")"
    #? endif
}

#? if kind != "runai"
# ---- where the ranks are -------------------------------------------------------------------------

# If a collective of a rank has timed out, asks all ranks where they are, before the launcher ends
# them. With gloo that rank creates the file timeout, and waits (python/rank_collectives.py). With
# NCCL torch writes nccl-rank-R, and ends the ranks a minute later (torch 2.13, ProcessGroupNCCL.cpp).
hangs_answer_timeout() {
    local places
    [[ ! -e $RUN_DIR/stacks.txt ]] || return 0
    [[ -e $RUN_DIR/timeout ]] || compgen -G "$RUN_DIR/nccl-rank-*" >/dev/null || return 0
    places=$(hangs_where_ranks_are) || true
    [[ -z $places ]] ||
        say "a rank has waited in vain; where each of them was:"$'\n'"${places%%$'\n\n'*}"
    echo "$places" >"$RUN_DIR/stacks"
    mv "$RUN_DIR/stacks" "$RUN_DIR/stacks.txt" # at once, as ranks wait for it
}

# Prints at which line each rank is, as stacks.sh does, and below an empty line their whole stacks.
#? if kind == "slurm"
# Fails if a node gives no answer, or a rank that runs or sleeps gives none.
#? endif
hangs_where_ranks_are() {
    #? if kind == "slurm"
    local answers
    answers=$(timeout --foreground --kill-after=10 60 srun --overlap "${on_hosts[@]}" \
        --ntasks=${#hosts[@]} --ntasks-per-node=1 --cpus-per-task=1 --label --input=none \
        --export=ALL bash "$PROJECT_DIR/extras/hangs/collect.sh" "SLURM_JOB_ID=$SLURM_JOB_ID" \
        2>/dev/null) || return
    hangs_group --stacks <<<"$answers" 2>/dev/null
    #? else
    bash "$PROJECT_DIR/extras/hangs/collect.sh" "RUN_DIR=$RUN_DIR" | hangs_group --stacks
    #? endif
}

#? endif
# Adds to stacks.txt what ranks have left in RUN_DIR when they failed.
hangs_add_records() {
    compgen -G "$RUN_DIR/*-rank-*" >/dev/null || return 0
    hangs_group --add "$RUN_DIR" </dev/null
}

# Runs group.py. Arguments: its own.
hangs_group() {
    local interpreter
    interpreter=$(type -P python3) || interpreter=$PYTHON
    "$interpreter" -B "$PROJECT_DIR/extras/hangs/group.py" "$@"
}
#? if kind == "slurm"

# ---- a job that is stuck -------------------------------------------------------------------------

# Whether to look if the job is stuck. It looks in a batch job alone, until one of these has happened: the
# program is asked to save or to end, a collective has timed out, the job was found to be stuck.
hangs_watches_for_stall() {
    [[ $STALL_TIMEOUT != 0 && $in_batch_job == 1 && ! -e $STOP_FILE ]] &&
        [[ ! -e $RUN_DIR/timeout && ! -e $RUN_DIR/stacks.txt ]]
}

# Ends the ranks if the job has printed nothing for STALL_TIMEOUT seconds, nor written to a file of
# RUN_DIR, and no rank moves. Changes looked, when this function was called last, and next_look, before
# which nothing is looked at.
hangs_end_if_stuck() {
    local now last places before=$looked
    printf -v now '%(%s)T' -1
    looked=$now
    if ((next_look == 0 || now > before + 60)); then # this launch has just begun, or was suspended
        next_look=$((now + STALL_TIMEOUT))
    fi
    ((now >= next_look)) || return 0
    last=$(hangs_last_output)
    if ((now < last + STALL_TIMEOUT)); then
        next_look=$((last + STALL_TIMEOUT))
        return
    fi
    if ! hangs_ranks_stand_still || (($(hangs_last_output) > last)) || ! hangs_watches_for_stall ||
        ! kill -0 "$ranks" 2>/dev/null; then # it has printed, was asked to end, or has ended meanwhile
        printf -v looked '%(%s)T' -1
        next_look=$((looked + STALL_TIMEOUT))
        return
    fi
    say "stuck: nothing was printed for $STALL_TIMEOUT s (STALL_TIMEOUT), and no rank moves;" \
        "where each of them is:"$'\n'"${places%%$'\n\n'*}"
    echo "$places" >"$RUN_DIR/stacks.txt"
    touch "$RUN_DIR/stuck"
    hangs_kill_ranks # this process ends with them
}

# Whether all ranks are at the same place at five looks. Sets the caller's variable places. If a node
# or a rank does not answer, its place is not known, and the ranks do not count as standing still.
hangs_ranks_stand_still() {
    local again pause pauses=(5 17 9 13) # [s] unequal: a loop of 10 s would be met at the same place
    ((STALL_TIMEOUT >= 60)) || pauses=(0.5 1.7 0.9 1.3)
    places=$(hangs_where_ranks_are) || return
    for pause in "${pauses[@]}"; do
        hangs_watches_for_stall || return
        sleep "$pause"
        again=$(hangs_where_ranks_are) && [[ $again == "$places" ]] || return
    done
}

# Prints when the job wrote its newest line: to its output, or to a file of RUN_DIR [seconds since
# 1970]; 0 if never.
hangs_last_output() {
    local times
    times=$(find -L "/proc/$$/fd/1" "/proc/$$/fd/2" "$RUN_DIR" -type f -printf '%T@\n' 2>/dev/null)
    sort -n <<<"${times:-0}" | sed -n '$s/[.].*//;$p'
}

# Ends the ranks with KILL, as they may be stopped, or not listen. Asks Slurm step by step, because
# with the number of the job the submit script would end, too.
hangs_kill_ranks() {
    local try
    for ((try = 0; try < 6; try++)); do
        squeue --noheader --steps --jobs="$job_id" --format=%i | grep -E '[.][0-9]+$' |
            xargs -r -n 1 scancel --signal=KILL
        sleep 5
        kill -0 "$ranks" 2>/dev/null || return 0
    done
    pkill -KILL -P "$ranks" # ranks that are in no step of Slurm
    kill -KILL "$ranks" 2>/dev/null
}
#? endif
