#!/usr/bin/env bash
# Takes over a job when the node dies on which slurm/submit_multinode.sh runs. slurm/nodes.sh starts
# this script as a step on another node of the job, if the job has SPARES or MIN_NODES.
#
#   slurm/stand_by.sh NODE [PROGRAM …]
#
# It waits until NODE is no longer part of the job. Then it runs slurm/submit_multinode.sh with
# PROGRAM, which starts the ranks again on the nodes that are left. In the end it ends the job.
#
# Read from the environment, beside the variables of the job:
#   VARIABLES_OF_BATCH   the variables of Slurm on NODE, as bash declares them: those of this step
#                        describe the step

main() {
    local output errors code=0 dead=$1
    shift
    restore_variables_of_job
    wait_for_death_of "$dead"
    find_output # sets output, errors
    exec >>"$output" 2>>"$errors"
    say "$dead, on which this job's script ran, has died: $SLURMD_NODENAME takes over"
    run_submit_script "$dead" "$@" || code=$?
    end_job "$code"
}

restore_variables_of_job() {
    unset "${!SLURM_@}"
    # shellcheck source=/dev/null
    source <(echo "${VARIABLES_OF_BATCH//declare -x/export}")
    unset VARIABLES_OF_BATCH
    batch=$SLURM_JOB_ID # as look_at_allocation in slurm/lib.sh
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || batch=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# Asks Slurm twice a minute, until a node has left this job. When the job ends, Slurm ends this
# script.
wait_for_death_of() {
    local now
    while sleep 30; do
        now=$(nodes_of_job) || continue # Slurm is busy, or the job ends
        grep -qxF -- "$1" <<<"$now" || return 0
    done
}

# Sets the caller's variables output and errors, the files to which the job writes.
find_output() {
    local record
    record=$(job_record "$batch") || true
    output=$(sed -n 's/^ *StdOut=//p' <<<"$record")
    errors=$(sed -n 's/^ *StdErr=//p' <<<"$record")
    output=${output:-$PROJECT_DIR/logs/$SLURM_JOB_ID.out} # if Slurm does not answer
    errors=${errors:-$output} # Slurm 26.05 names no StdErr that is the same
}

# Runs the submit script, and passes SIGTERM on to it: after scancel, Slurm sends that to this step.
# Arguments: the dead node, then the program. Returns the exit code of the run.
run_submit_script() {
    local script code=0
    TAKES_OVER=$1 bash "$PROJECT_DIR/slurm/submit_multinode.sh" "${@:2}" &
    script=$!
    trap 'kill -TERM "$script"' TERM
    while kill -0 "$script" 2>/dev/null; do # a signal ends wait, hence the loop
        wait "$script" && code=0 || code=$?
    done
    return "$code"
}

# Ends the job. Slurm takes an exit code from the job's own script alone. So the job goes back into
# the queue for a moment, as one of a node and a minute, and its script finds the exit code in a
# file. Argument: the exit code.
end_job() {
    local record
    record=$(job_record "$batch") || true
    [[ $record == *JobState=RUNNING* ]] || return 0 # it was cancelled, or is in the queue already
    echo "$1" >"$PROJECT_DIR/logs/$SLURM_JOB_ID.ended.new"
    mv "$PROJECT_DIR/logs/$SLURM_JOB_ID.ended.new" "$PROJECT_DIR/logs/$SLURM_JOB_ID.ended"
    say "the run has ended with exit code $1: this job goes back into the queue to tell Slurm so"
    trap : TERM
    if ! ask_for_requeue; then
        say "Slurm does not requeue this job, so it is cancelled; its exit code is $1"
        scancel "$batch"
        return
    fi
    change_waiting_job NumNodes=1 TimeLimit=1 || true # else it waits for all its nodes
}

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/stand_by.sh
main "$@"
