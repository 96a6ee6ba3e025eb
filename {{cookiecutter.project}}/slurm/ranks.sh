#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set node = plan.node_facts
# Steps of slurm/submit_multinode.sh and slurm/run_here.sh that ask the program to save, start the
# ranks and wait for them, then requeue the job or explain its failure. slurm/job.sh lists the
# variables that they share.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts of slurm/ share variables

# ---- stop request before the time limit ----------------------------------------------------------

# USR1 asks the program to save and to end: Slurm sends it SAVE_SECONDS before the time limit
# (--signal), and you may at any time. TERM comes from scancel, a preemption or the time limit, and
# STOP_FILE asks the program then, too. Programs may also read STOP_TIME, and stop without any signal.
arrange_stop_request() {
    set_stop_time
    trap 'interrupted=1 && ask_to_save' USR1
    trap 'interrupted=1 && stop=cancelled && touch "$STOP_FILE" || true' TERM
    if [[ -n $stop ]]; then touch "$STOP_FILE"; fi # an earlier trap has noted a signal
}

# Exports STOP_TIME, when the program has to save [s since 1970]: the job's end, less SAVE_SECONDS or a
# tenth of the remaining time, whichever is shorter. Reads record, which has such a line:
#    StartTime=2026-08-20T11:30:00 EndTime=2026-08-20T12:00:00 Deadline=N/A
set_stop_time() {
    local now end reserve
    printf -v now '%(%s)T' -1
    end=$(field EndTime)
    if [[ -z $end && -n ${SLURM_JOB_END_TIME:-} ]]; then # no record; Slurm 23.02 or later sets it
        end=@$SLURM_JOB_END_TIME
    elif [[ -z $end ]]; then
        say "Slurm does not answer, so the end of this job is not known: STOP_TIME is a year from now"
        end=Unknown
    fi
    end=$(date -d "$end" +%s 2>/dev/null || date -d "1 year" +%s) # Unknown: no time limit
    reserve=$(((end - now) / 10))
    if ((reserve > SAVE_SECONDS)); then reserve=$SAVE_SECONDS; fi
    export STOP_TIME=$((end - reserve))
}

# Asks the program to save and to end, by STOP_FILE and, if that is set, STOP_SIGNAL.
ask_to_save() {
    if [[ $stop != cancelled ]]; then stop=asked; fi
    touch "$STOP_FILE" || true
    say "the program is asked to save and to end"
    if [[ -n $STOP_SIGNAL && -n $ranks ]]; then signal_ranks; fi
}

# Sends STOP_SIGNAL to the ranks alone, in a step that ends at once. A code above 128 says that a signal
# has ended the step. That is no fault: a program that requeues its job itself, as Lightning does, may
# have done so by then.
signal_ranks() {
    local step_code=0
    timeout --kill-after=10 60 srun --overlap "${on_hosts[@]}" --ntasks=${#hosts[@]} \
        --ntasks-per-node=1 --cpus-per-task=1 --export=ALL --input=none \
        bash "$PROJECT_DIR/slurm/signal_ranks.sh" "$RUN_DIR" "$STOP_SIGNAL" || step_code=$?
    if ((step_code > 0 && step_code <= 128)); then
        say "STOP_SIGNAL=$STOP_SIGNAL has not reached all ranks, see above"
    fi
}

# ---- launch --------------------------------------------------------------------------------------

# Runs the program on hosts. Starts it again if an extra says so, with the next run folder and port,
# on nodes chosen anew. Sets code and outcome.
run_program() {
    launch
    while [[ $outcome == restart && $stop != cancelled ]]; do
        attempt=$((attempt + 1))
        make_run_folder
        choose_nodes
        launch
    done
}

# Starts the ranks once, with what extras run beside them, and waits for them. Extras may set outcome to
# restart (start the ranks again), requeue (the job) or end (without a requeue).
#
# The command: srun with its options and those of the container, the command that enters a container,
# RANK_PREFIX, the words of extras, the wrapper, the program. So a profiler in RANK_PREFIX gets none of the
# variables that an extra sets by its words, as in env NAME=value.
launch() {
    local command words=("$program" "${arguments[@]}")
    if [[ $stop == cancelled ]]; then exit 143; fi # TERM came while the nodes were checked
    on_hosts=(--nodes=${#hosts[@]} --nodelist="$(joined "${hosts[@]}")")
    rank_prefix=("${RANK_PREFIX[@]}") srun_options=() outcome='' explained=''
    call_extras before_launch
    "build_step_of_${LAUNCHER//-/_}"
    command=("${step[@]}")
    if [[ ${step[0]} == srun ]]; then command+=("${srun_options[@]}" "${CONTAINER_SRUN_ARGS[@]}"); fi
    command+=("${CONTAINER_EXEC[@]}" "${rank_prefix[@]}" "${wrapper[@]}" "${words[@]}")
    say "${words[*]} on ${#hosts[@]} node(s), meeting at $MASTER_ADDR:$MASTER_PORT"
    start_ranks "${command[@]}"
    start_beside
    wait_for_ranks
    end_beside
    call_extras after_launch
}

# LAUNCHER names one of these functions. Each sets step, the command that starts tasks on hosts, and
# wrapper, what each task runs. For spawn that is launch/torchrun.sh as well, which reads LAUNCHER. An
# extra may add build_step_of_NAME; a "-" of LAUNCHER is a "_" there.
#? if "torchrun" in site.launchers
build_step_of_torchrun() { build_srun_step torchrun.sh 1; }
#? endif
#? if "spawn" in site.launchers
build_step_of_spawn() { build_srun_step torchrun.sh 1; }
#? endif
#? if "srun" in site.launchers
build_step_of_srun() { set_ranks_per_node; build_srun_step rank.sh "$NPROC_PER_NODE"; }

#? endif
# Sets step, a command of srun, and wrapper. The step names its size, because a shell of salloc may
# lack the tasks and cores of the #SBATCH lines.
#   --export=ALL      a site's default may be NONE
#   --cpus-per-task   srun 22.05 to 23.02 do not inherit it
#   --overlap         the shell of slurm/interactive.sh is a step, which holds what this one needs
#   no --gpu-bind     each rank sees all GPUs
# Arguments: the wrapper in launch/, and how many tasks each node runs.
build_srun_step() {
    local per_node=$2
    require_cores "$per_node"
    wrapper=(bash "$PROJECT_DIR/launch/$1")
    step=(srun --export=ALL --kill-on-bad-exit=1 "${on_hosts[@]}" --ntasks=$((${#hosts[@]} * per_node))
        --ntasks-per-node="$per_node" --cpus-per-task=$((cores / per_node)))
    if [[ -n ${SLURM_STEP_ID:-} ]]; then step+=(--overlap); fi
    if [[ $1 == rank.sh ]]; then step+=(--label); fi
    #? for option in site.srun
    #? if option.tasks == "rank"
    # {{ option.why }}
    if [[ $1 == rank.sh && $per_node == "{{ node.gpus }}" ]]; then step+=("{{ option.option }}"); fi
    #? elif option.tasks
    # {{ option.why }}
    if [[ $1 != rank.sh ]]; then step+=("{{ option.option }}"); fi
    #? else
    step+=("{{ option.option }}") # {{ option.why }}
    #? endif
    #? endfor
}

# Ends the job if a node has fewer cores than tasks. Argument: the tasks.
require_cores() {
    if (($1 > cores)); then
        die "NPROC_PER_NODE=$1, but the job has $cores core(s) on each node: raise" \
            "--cpus-per-task, lower NPROC_PER_NODE, or use LAUNCHER=torchrun"
    fi
}

# Exports NPROC_PER_NODE: as the user set it, else the GPUs of a node, else CPU_RANKS_PER_NODE, else
# 1. torchrun needs no such number: it counts the GPUs of its node itself.
set_ranks_per_node() {
    local number=$gpus
    export NPROC_PER_NODE=${NPROC_PER_NODE:-}
    if [[ -n $NPROC_PER_NODE ]]; then return; fi
    if [[ $gpus == unknown ]]; then
        number=${SLURM_GPUS_ON_NODE:-} # of the first node
        [[ -n $number ]] ||
            die "Slurm does not tell how many GPUs the nodes of this job have: set NPROC_PER_NODE"
    fi
    if [[ ${number:-0} == 0 ]]; then number=${CPU_RANKS_PER_NODE:-1}; fi
    NPROC_PER_NODE=$number
}

# Starts a command in the background, because bash handles no signal while it waits for one in the
# foreground. It keeps this script's standard input, which bash would replace. Sets ranks.
start_ranks() {
    "$@" <&0 &
    ranks=$!
}

# Sets code to the exit code of the ranks. A signal for this script ends bash's wait early, with a code
# above 128, and its trap sets interrupted: then wait again. Else the ranks have ended, and bash may
# have forgotten their code, so there is no second wait.
wait_for_ranks() {
    while true; do
        interrupted='' code=0
        wait "$ranks" || code=$?
        if [[ -z $interrupted ]] || ((code <= 128)); then break; fi
    done
    ranks=''
}

# ---- requeue, or explain the failure -------------------------------------------------------------

# Requeues a job whose program has saved and wants to go on, or says why the run ended.
requeue_or_explain() {
    local done_so_far=''
    if [[ $stop == cancelled && $outcome != end ]]; then outcome=''; fi # scancel wins over an extra
    if [[ $outcome == requeue ]]; then
        done_so_far="an extra wants a requeue"
    elif [[ $outcome != end && -e $REQUEUE_FILE ]]; then
        done_so_far="saved, but not done"
    fi
    # Slurm's record says why the job ends.
    if [[ -n $done_so_far || $stop == cancelled ]]; then record=$(job_record "$job_id") || record=''; fi
    if [[ -n $done_so_far ]] && requeue_is_due; then
        requeue "$done_so_far"
    elif [[ $stop == cancelled ]]; then
        say "told to end: the walltime, scancel, a preemption or a failed node;" \
            "python3 slurm/doctor.py $job_id says which"
    elif ((code)); then
        if [[ -n $done_so_far ]]; then say "$done_so_far: no requeue, as the program failed"; fi
        explain_failure
    elif [[ -n $done_so_far ]]; then
        say "$done_so_far: no requeue, as no stop was due. The next job with --resume goes on"
    fi
}

# Whether the job ends for a reason that a requeue overcomes: an extra says so, the time limit, a
# preemption, or the program ended as it was asked to. Reads record. If that is empty, because Slurm
# does not answer, what this script has seen itself decides.
requeue_is_due() {
    local state
    # The program saved in time, but the launcher ended too late. Slurm leaves this script seconds
    # (KillWait).
    if [[ $(field Reason) == TimeLimit ]]; then return; fi
    # After scancel the job is not RUNNING. Then it stays cancelled, whatever an extra wants.
    state=$(field JobState)
    if [[ ${state:-RUNNING} != RUNNING ]]; then return 1; fi
    if [[ $outcome == requeue ]]; then return; fi
    # A preemption. Slurm may not signal this script, and torchrun then ends with exit code 1. Slurm
    # requeues a job by itself only if it still runs when its grace time is over.
    if [[ $(field PreemptTime) == [0-9]* ]]; then return; fi
    # The program ended when it was asked to, or by itself at STOP_TIME.
    [[ $code == 0 && $stop != cancelled ]] && { [[ -n $stop ]] || (($(date +%s) >= STOP_TIME)); }
}

# Puts this job back into the queue, unless it was restarted MAX_REQUEUES times. Restarts by Slurm
# itself, as after a node's failure, count too. Argument: what was done so far.
requeue() {
    local else_go_on="the next job with --resume goes on"
    if ((requeues >= MAX_REQUEUES)); then
        say "$1, and MAX_REQUEUES=$MAX_REQUEUES is reached: $else_go_on"
    elif [[ $(field Requeue) == 0 ]]; then
        say "$1, and this job may not be requeued: $else_go_on"
    elif ask_for_requeue; then
        say "$1: back into the queue as attempt $((attempt + 1))"
        return
    else
        say "$1, and Slurm has not requeued this job, see above: $else_go_on"
    fi
    ((code == 0)) || explain_failure
}

# Asks Slurm up to three times, as job_record does.
ask_for_requeue() {
    local pause
    for pause in 1 2 0; do
        scontrol requeue "$job_id" && return
        if (($? > 128)); then return 0; fi # the requeue ends all processes of this job, scontrol too
        sleep "$pause"
    done
    return 1
}

DOCTOR_LIMIT=120 # [s] slurm/doctor.py may take, as the nodes wait for it

# Prints why the run failed, its exit code, and the command that prints it again. Does so once for each
# start of the program. Reads code.
explain_failure() {
    local what=$job_id doctor_code=0 ended="$LAUNCHER ended with exit code $code"
    local again="python3 slurm/doctor.py $job_id"
    if [[ -n $explained ]]; then return; fi
    explained=1
    if [[ $in_batch_job == 0 ]]; then # Slurm knows nothing of this run, and its logs do
        what=$RUN_DIR again="python3 slurm/doctor.py logs/${RUN_DIR##*/}"
    fi
    if ! type -P python3 >/dev/null; then
        say "$ended. To see why, run $again on a login node: this node has no python3"
        return
    fi
    timeout --kill-after=5 "$DOCTOR_LIMIT" python3 -B "$PROJECT_DIR/slurm/doctor.py" "$what" ||
        doctor_code=$?
    if ((doctor_code == 124 || doctor_code == 137)); then # timeout has ended it, by TERM or by KILL
        say "slurm/doctor.py found no answer within $DOCTOR_LIMIT s" >&2
    fi
    say "$ended. To ask again, run $again"
}
