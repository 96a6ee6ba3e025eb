#!/usr/bin/env bash
# Gives each job of a sweep the words of its line, and notes how it ended. launch/moments.sh calls
# sweep_job_start and sweep_job_end in the job's script, which sets arguments and code.
#
# extras/sweep/sweep.sh exports SWEEP_FOLDER, which has a file of words for each index of its array.
# shellcheck disable=SC2154 # see above

# Adds the words of the job's line to arguments, and writes the number of the line for each %a in them.
sweep_job_start() {
    # SWEEP_JOB is the number of the sweep's array. A job may submit another array, which inherits
    # SWEEP_FOLDER and SWEEP_JOB, and has another number: it is not part of the sweep.
    [[ -z ${SWEEP_FOLDER:-} ]] || export SWEEP_JOB=${SWEEP_JOB:-${SLURM_ARRAY_JOB_ID:-}}
    sweep_has_this_job || return 0
    local words_of_line
    [[ -f $SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID ]] ||
        die "$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID, which had the arguments of this job, was removed:" \
            "submit the sweep again with extras/sweep/sweep.sh"
    mapfile -t words_of_line <"$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID"
    arguments+=("${words_of_line[@]}")
    arguments=("${arguments[@]//"%a"/$SLURM_ARRAY_TASK_ID}")
    rm -f "$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID.end" # of an attempt before a requeue
}

# Notes, for the table, the exit code of this attempt, and how long it ran [s].
sweep_job_end() {
    # sweep.sh removes the folder if it ends before sbatch does, and the job may have begun by then.
    if sweep_has_this_job && [[ -d $SWEEP_FOLDER ]]; then
        echo "$code $SECONDS" >"$SWEEP_FOLDER/$SLURM_ARRAY_TASK_ID.end"
    fi
}

# Whether this job belongs to the sweep of SWEEP_FOLDER.
sweep_has_this_job() {
    [[ -n ${SWEEP_FOLDER:-} && -n ${SLURM_ARRAY_TASK_ID:-} ]] &&
        [[ ${SWEEP_JOB:-} == "${SLURM_ARRAY_JOB_ID:-}" ]]
}
