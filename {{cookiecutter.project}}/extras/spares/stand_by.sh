#!/usr/bin/env bash
# Takes over a job if the node dies on which its submit script runs. extras/spares/hooks.sh starts
# this script as a step on another node of the job, if the job has SPARES or MIN_NODES.
#
#   extras/spares/stand_by.sh NODE OUTPUT ERRORS [PROGRAM …]
#
# It waits until NODE is no longer part of the job. Then it runs slurm/submit_multinode.sh with
# PROGRAM, which starts the ranks again on the nodes that are left, and adds to the files OUTPUT and
# ERRORS. After the run it ends the job.
#
# Read from the environment, beside the variables of the job:
#   VARIABLES_OF_BATCH   Slurm's variables in the job's script on NODE, printed by "declare -px".
#                        In this step srun has overwritten them

main() {
    local code=0 dead=${1:-} output=${2:-} errors=${3:-} own_step=${SLURM_STEP_ID:-}
    [[ -n $own_step && -n ${VARIABLES_OF_BATCH:-} && -n $errors ]] ||
        die "this is not for you to call: a job with SPARES or MIN_NODES starts this script"
    trap : USR1 # may come to all steps; not '', which the submit script would inherit
    restore_variables_of_job
    wait_for_death_of "$dead"
    trap : TERM # the submit script gets it, too
    exec >>"$output" || true # without the folder, the run goes on all the same
    exec 2>>"$errors" || true
    say "$dead, on which this job's script ran, has died: $SLURMD_NODENAME takes over"
    end_other_steps || say "steps that $dead has started may still run"
    run_submit_script "${@:4}" || code=$?
    end_job "$code"
}

restore_variables_of_job() {
    unset "${!SLURM_@}"
    # shellcheck source=/dev/null
    source <(echo "${VARIABLES_OF_BATCH//declare -x/export}")
    unset VARIABLES_OF_BATCH
    job_id=$SLURM_JOB_ID # the job's number for scontrol, as in slurm/job.sh
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# Asks Slurm twice a minute, until a node has left this job. When the job ends, Slurm ends this
# script. Ends it if this node has left the job, too. Argument: the node.
wait_for_death_of() {
    local now
    while :; do
        sleep 30
        now=$(spares_nodes_of_job) && [[ -n $now ]] || continue # Slurm is busy, or the job ends
        now=" ${now//$'\n'/ } "
        [[ $now == *" $SLURMD_NODENAME "* ]] || exit 1
        [[ $now == *" $1 "* ]] || return 0
    done
}

# Ends the other steps of this job, which the dead node has started. Slurm ends a step itself if one
# of its ranks ran on that node. But a spare that had taken over runs no rank: if it dies, Slurm
# leaves the ranks running. Fails if there are other steps after 10 s. Reads the caller's variable
# own_step.
end_other_steps() {
    local try step steps others
    for ((try = 0; try < 10; try++)); do
        others=()
        steps=$(squeue --noheader --steps --jobs="$job_id" --format=%i) || others=(unknown)
        for step in $steps; do
            if [[ $step == "$job_id".[0-9]* && $step != "$job_id.$own_step" ]]; then # not of other jobs
                others+=("$step")
                scancel --signal=KILL "$step" 2>/dev/null || true # it may have ended
            fi
        done
        ((${#others[@]})) || return 0
        sleep 1
    done
    return 1
}

# Runs the submit script under the name that Slurm gives its copy, so that it takes itself for the
# job's script. Arguments: the program and its arguments. Returns the exit code of the run.
run_submit_script() {
    local script=$RUN_DIR/slurm_script
    ln -sfn "$PROJECT_DIR/slurm/submit_multinode.sh" "$script"
    SPARES_TAKES_OVER=$dead bash "$script" "$@"
}

# Ends the job. Slurm takes an exit code from the job's own script alone. So this function writes
# the code to a file, and requeues the job with one node for one minute. There the job's script ends
# with that code (spares_job_start). Argument: the exit code.
end_job() {
    local record left=$PROJECT_DIR/logs/$SLURM_JOB_ID.ended
    # It may have been cancelled, or the run may have put it back into the queue. Slurm then ends this
    # step, and its signal may come while Slurm is asked (22.05.8, 2026-11-28).
    record=$(job_record "$job_id") || (($? <= 128)) || return 0
    [[ -z $record || $record == *JobState=RUNNING* ]] || return 0
    say "the run has ended with exit code $1: this job goes back into the queue to tell Slurm so"
    if { echo "$1" >"$left.new" && mv "$left.new" "$left"; } && ask_for_requeue; then
        spares_change_waiting_job NumNodes=1 TimeLimit=1 || true # else it waits for all its nodes
    else
        say "this job cannot be requeued, so it is cancelled; the exit code of the run is $1"
        rm -f "$left"
        scancel "$job_id"
    fi
}

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/spares/stand_by.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/ranks.sh" # ask_for_requeue
# shellcheck source=/dev/null
source "$PROJECT_DIR/extras/spares/hooks.sh"
main "$@"
