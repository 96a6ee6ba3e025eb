#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
# Calls the functions of the extras at the moments of a job. launch/extras.sh reads this file if an
# extra of the project has hooks.sh.
#
# An extra with settings.sh and hooks.sh takes part in each job: hooks.sh defines functions
# NAME_MOMENT. They run in the shell of the script that calls them, and see its variables;
# beside_launch has a process of its own.
#
#? if kind == "slurm"
#   check_settings   on the login node after env.sh, and in the job after job_start; refuses what
#                    cannot work
#   before_submit    on the login node; may change sbatch_options, job_script, typed, and export
#                    variables
#   job_start        early in the job, after env.sh and before its software; may change arguments,
#                    container_folders, in a batch job attempt, or end the job by exit
#   before_launch    before each start of the ranks; may add to rank_prefix and srun_options, and
#                    export variables
#   beside_launch    a process beside the ranks, where the submit script runs; it is ended with them
#   after_launch     after each end of the ranks; may change code, and set outcome if that is empty:
#                    restart the ranks, requeue the job, or end it
#   job_end          once when the ranks have ended, before a requeue or the explanation of a failure
#
# hooks.sh may also define choose_nodes anew (slurm/job.sh), and build_step_of_LAUNCHER for a launcher
# of its own (slurm/ranks.sh). A "-" in the launcher's name is a "_" in the function's.
#? elif kind == "runai"
#   check_settings   after env.sh, where you submit and in each pod; refuses what cannot work
#   before_submit    where you submit; may change program, pod_variables, RUNAI_OPTIONS, job_script
#   job_start        first in each pod, before env.sh; may change arguments
#   before_launch    in each pod, before the ranks start; may add to rank_prefix, and export
#                    variables
#   beside_launch    in each pod, a process beside the ranks; it is ended with them
#   after_launch     in each pod, after the ranks have ended; may change code
#   job_end          once in each pod
#? else
#   check_settings   after env.sh; refuses what cannot work
#   before_launch    before the ranks start; may add to rank_prefix, and export variables
#   beside_launch    a process beside the ranks; it is ended with them
#   after_launch     after the ranks have ended; may change code
#   job_end          once
#? endif
#
# A function fails if it returns another code than 0. Bash does not end it at a command that fails:
# write "command || return". A failure ends the script with a message, but for beside_launch,
# after_launch and job_end: there the job goes on, with a message.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts of this project share variables

extras=''            # the names of those with hooks.sh, with spaces between them
extra_running=''     # what runs of an extra: "extras/NAME: FUNCTION"
beside=()            # the process groups beside the ranks
code=0               # exit code of the ranks

# Reads settings.sh and hooks.sh of each extra, in the order of names. Sets extras.
read_hooks() {
    local extra_folder extra result # names that no settings.sh sets
    for extra_folder in "$PROJECT_DIR"/extras/*/; do
        extra_folder=${extra_folder%/} extra=${extra_folder##*/}
        [[ -f $extra_folder/hooks.sh ]] || continue # a set of commands, or no extra at all
        check_extra "$extra" "$extra_folder"
        trap leave_extras EXIT
        extra_running="extras/$extra: settings.sh or hooks.sh"
        # shellcheck source=/dev/null
        source "$extra_folder/settings.sh"
        # shellcheck source=/dev/null
        source "$extra_folder/hooks.sh"
        result=$? extra_running=''
        ((result == 0)) || die "extras/$extra/hooks.sh failed: see above, or its last line"
        #? if kind == "local"
        [[ -z $(declare -F "${extra}_before_submit" "${extra}_job_start") ]] ||
            die "extras/$extra/hooks.sh defines ${extra}_before_submit or ${extra}_job_start, and" \
                "a run on one machine has no such moments: see launch/moments.sh"
        #? endif
        extras+="$extra "
    done
}

# Refuses an extra that cannot work. Arguments: its name, its folder.
check_extra() {
    [[ $1 =~ ^[a-z][a-z0-9_]*$ ]] ||
        die "extras/$1: its functions begin with this name, so it needs a small letter, then" \
            "small letters, digits or _: rename the folder"
    [[ -f $2/settings.sh ]] ||
        die "extras/$1 has hooks.sh, but no settings.sh: write one, which may be empty"
    # shellcheck source=/dev/null
    (set -u && source "$2/settings.sh") >&2 || # a trial: an unset variable ends the subshell
        die "extras/$1/settings.sh failed: see above, or its last line." \
            "It may read what it has set itself, and no other settings"
}

# Calls the functions of the extras for a moment. Argument: the moment.
call_extras() {
    local extra
    for extra in $extras; do
        if declare -F "${extra}_$1" >/dev/null; then
            call_extra "$extra" "$1"
        fi
    done
}

# Calls one function. Arguments: the extra, the moment.
call_extra() {
    local result=0
    extra_running="extras/$1: $1_$2"
    case $2 in
        after_launch | job_end)
            set +u # where the function reads an unset variable, bash would end the script
            "$1_$2" || say "$extra_running failed with exit code $?; the job goes on"
            set -u
            ;;
        *) "$1_$2" || result=$? ;;
    esac
    extra_running=''
    ((result == 0)) || die "extras/$1: $1_$2 failed with exit code $result"
}

# Starts the functions of beside_launch, each in a process group of its own. Sets beside.
start_beside() {
    local extra
    set -m # a group for each
    for extra in $extras; do
        if declare -F "${extra}_beside_launch" >/dev/null; then
            run_beside "$extra" </dev/null &
            beside+=($!)
            disown # or bash would tell of its end
        fi
    done
    set +m
}

# Runs a function beside the ranks. Argument: the extra.
run_beside() {
    trap '' TTIN TTOU # else the terminal may stop this group, which is not in its foreground
    #? if kind == "slurm"
    trap '' USR1 # the warning before the walltime is over, which is for the submit script alone
    #? endif
    "$1_beside_launch" ||
        say "extras/$1: $1_beside_launch failed with exit code $?; the job goes on"
}

# Ends what start_beside has started, with all processes of its group: by SIGTERM, and after 10 s by
# SIGKILL. SIGTERM comes each second, as bash may miss it at the start of a function.
end_beside() {
    local group try
    for group in "${beside[@]}"; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    for group in "${beside[@]}"; do
        for ((try = 1; try <= 100; try++)); do
            kill -0 -- "-$group" 2>/dev/null || continue 2
            sleep 0.1
            ((try % 10)) || kill -TERM -- "-$group" 2>/dev/null || true
        done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    beside=()
}

# Runs when the script ends. Says if an extra has ended it, by exit or die. In after_launch and
# job_end the exit code stays that of the job. job_start may end a job; elsewhere the exit code is not
# 0.
leave_extras() {
    local exit_code=$?
    end_beside
    #? if kind == "slurm"
    [[ $extra_running != *_job_start ]] || return 0
    #? endif
    case $extra_running in
        '') ;;
        *_after_launch | *_job_end)
            say "$extra_running ended the script, and with it the job, with exit code $code"
            exit "$code"
            ;;
        *)
            echo "$script: $extra_running ended the script" >&2
            exit $((exit_code ? exit_code : 2))
            ;;
    esac
}
