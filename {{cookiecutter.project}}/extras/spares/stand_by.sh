#!/usr/bin/env bash
# Takes over a job if the node dies on which its slurm/submit_multinode.sh runs. slurm/nodes.sh
# starts this script as a step on another node of the job, if the job has SPARES or MIN_NODES.
#
#   slurm/stand_by.sh NODE [PROGRAM …]
#
# It waits until NODE is no longer part of the job. Then it runs slurm/submit_multinode.sh with
# PROGRAM, which starts the ranks again on the nodes that are left. After the run it ends the job.
#
# Read from the environment, beside the variables of the job:
#   VARIABLES_OF_BATCH   Slurm's variables in the job's script on NODE, printed by "declare -px".
#                        In this step srun has overwritten them

main() {
    local output errors code=0 dead=${1:-} own_step=${SLURM_STEP_ID:-}
    [[ -n $own_step && -n ${VARIABLES_OF_BATCH:-} ]] ||
        die "this is not for you to call: a job with SPARES or MIN_NODES starts this script"
    shift
    trap : USR1 # may come to all steps; not '', which slurm/submit_multinode.sh would inherit
    restore_variables_of_job
    refuse_other_node "$dead"
    wait_for_death_of "$dead"
    find_output # sets output, errors
    exec >>"$output" 2>>"$errors"
    say "$dead, on which this job's script ran, has died: $SLURMD_NODENAME takes over"
    end_other_steps "$own_step" || say "steps that $dead has started may still run"
    run_submit_script "$dead" "$@" || code=$?
    end_job "$code"
}

restore_variables_of_job() {
    unset "${!SLURM_@}"
    # shellcheck source=/dev/null
    source <(echo "${VARIABLES_OF_BATCH//declare -x/export}")
    unset VARIABLES_OF_BATCH
    batch=$SLURM_JOB_ID # the job's number for scontrol, as look_at_allocation in slurm/lib.sh
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || batch=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# Refuses a node that the job did not have at its start: it would count as dead. Argument: the node.
refuse_other_node() {
    grep -qxF -- "$1" <<<"$(scontrol show hostnames "$SLURM_JOB_NODELIST")" ||
        die "'$1' is not a node of job $SLURM_JOB_ID: expected the one on which the job's script runs"
}

# Asks Slurm twice a minute, until a node has left this job. When the job ends, Slurm ends this
# script. Ends it if this node has left the job, too. Argument: the node.
wait_for_death_of() {
    local now
    while :; do
        sleep 30
        now=$(nodes_of_job) && [[ -n $now ]] || continue # Slurm is busy, or the job ends
        now=" ${now//$'\n'/ } "
        [[ $now == *" $SLURMD_NODENAME "* ]] || exit 1
        [[ $now == *" $1 "* ]] || return 0
    done
}

# Sets the caller's variables output and errors, the files to which the job writes.
find_output() {
    local record
    record=$(job_record "$batch") || true
    output=$(sed -n 's/^ *StdOut=//p' <<<"$record")
    errors=$(sed -n 's/^ *StdErr=//p' <<<"$record")
    # If Slurm does not answer, or the folder was one of the dead node's.
    { : >>"$output"; } 2>/dev/null || output=$PROJECT_DIR/logs/$SLURM_JOB_ID.out
    { : >>"$errors"; } 2>/dev/null || errors=$output # Slurm 26.05 omits StdErr if it is StdOut
}

# Ends the other steps of this job, which the dead node has started. Slurm ends a step itself if one
# of its ranks ran on that node. But a spare that had taken over runs no rank: if it dies, Slurm
# leaves the ranks running. Fails if there are other steps after 10 s. Argument: the number of this
# step.
end_other_steps() {
    local try step steps others
    for ((try = 0; try < 10; try++)); do
        others=()
        steps=$(squeue --noheader --steps --jobs="$batch" --format=%i) || others=(unknown)
        for step in $steps; do
            if [[ $step == "$batch".[0-9]* && $step != "$batch.$1" ]]; then # not of other jobs
                others+=("$step")
                scancel --signal=KILL "$step" 2>/dev/null || true # it may have ended
            fi
        done
        ((${#others[@]})) || return 0
        sleep 1
    done
    return 1
}

# Runs the submit script, and passes SIGTERM on to it: after scancel, Slurm sends that to this step.
# Arguments: the dead node, then the program. Returns the exit code of the run.
run_submit_script() {
    local script code=0
    TAKES_OVER=$1 bash "$PROJECT_DIR/slurm/submit_multinode.sh" "${@:2}" &
    script=$!
    trap 'kill -TERM "$script"' TERM
    while kill -0 "$script" 2>/dev/null; do # a signal ends wait, hence the loop
        wait "$script" || true
    done
    trap : TERM
    wait "$script" || code=$?
    return "$code"
}

# Ends the job. Slurm takes an exit code from the job's own script alone. So this function writes
# the code to a file, and requeues the job with one node for one minute. There the job's script ends
# with that code (end_if_taken_over). Argument: the exit code.
end_job() {
    local record
    record=$(job_record "$batch") || true
    # It may have been cancelled, or be in the queue already.
    [[ -z $record || $record == *JobState=RUNNING* ]] || return 0
    say "the run has ended with exit code $1: this job goes back into the queue to tell Slurm so"
    if ! leave_exit_code "$1" || ! ask_for_requeue; then
        say "this job cannot be requeued, so it is cancelled; the exit code of the run is $1"
        rm -f "$PROJECT_DIR/logs/$SLURM_JOB_ID.ended"
        scancel "$batch"
        return
    fi
    change_waiting_job NumNodes=1 TimeLimit=1 || true # else it waits for all its nodes
}

# Writes the file that end_if_taken_over in slurm/nodes.sh reads. Argument: the exit code.
leave_exit_code() {
    local file=$PROJECT_DIR/logs/$SLURM_JOB_ID.ended
    echo "$1" >"$file.new" && mv "$file.new" "$file"
}

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/stand_by.sh
main "$@"
