#!/usr/bin/env bash
# Gives each job of a sweep the words of its line, and notes how it ended. launch/extras.sh calls these
# functions.
# shellcheck disable=SC2154 # the submit script sets code

# Adds the words of the job's line to arguments, and replaces %a, the number of the line.
sweep_job_start() {
    # An array that a job of a sweep submits inherits both variables, but is not part of the sweep.
    [[ -z ${SWEEP_FOLDER:-} ]] || export SWEEP_JOB=${SWEEP_JOB:-${SLURM_ARRAY_JOB_ID:-}}
    sweep_has_this_job || return 0
    local words_of_line
    [[ -f $SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID ]] ||
        die "$SWEEP_FOLDER, which had the arguments of this job, was removed:" \
            "submit the sweep again with extras/sweep/sweep.sh"
    mapfile -t words_of_line <"$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID"
    arguments+=("${words_of_line[@]}")
    arguments=("${arguments[@]//"%a"/$SLURM_ARRAY_TASK_ID}")
    rm -f "$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID.end" # of an attempt before this one
}

# Notes the exit code, and how long the job ran [s], for the table of sweep.sh.
sweep_job_end() {
    # sweep.sh removes the folder if it is interrupted.
    if sweep_has_this_job && [[ -d $SWEEP_FOLDER ]]; then
        echo "$code $SECONDS" >"$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID.end"
    fi
}

# Whether this job belongs to the sweep that SWEEP_FOLDER names.
sweep_has_this_job() {
    [[ -n ${SWEEP_FOLDER:-} && -n ${SLURM_ARRAY_TASK_ID:-} ]] &&
        [[ ${SWEEP_JOB:-} == "${SLURM_ARRAY_JOB_ID:-}" ]]
}
