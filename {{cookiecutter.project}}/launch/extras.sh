#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
# Reads the extras of this project, and calls their functions at the moments of a job.
#
#   bash launch/extras.sh   prints the template's extras that are here, with commas, or "none"
#
# An extra is a folder extras/NAME. One with settings.sh and hooks.sh takes part in each job:
# hooks.sh defines functions NAME_MOMENT, which run in the script itself, and see its variables.
#
#? if kind == "slurm"
#   check_settings   after env.sh, on the login node and in the job; refuses what cannot work
#   before_submit    on the login node; may change sbatch_options, job_script, typed, and export
#   job_start        first in the job, before env.sh; may change arguments, container_folders,
#                    attempt
#   before_launch    before each start of the ranks; may add to rank_prefix and srun_options, and
#                    export
#   beside_launch    a process beside the ranks, on the first node; it is ended with them
#   after_launch     after each end of the ranks; may change code, and set outcome if that is empty:
#                    restart the ranks, requeue the job, or end it
#   job_end          once, before the requeue or the explanation of a failure
#
# hooks.sh may also define choose_nodes anew (slurm/nodes.sh), and build_step_of_NAME, a LAUNCHER of
# its own (slurm/lib.sh).
#? elif kind == "runai"
#   check_settings   after env.sh, where you submit and in each pod; refuses what cannot work
#   before_submit    where you submit; may change program, pod_variables, RUNAI_OPTIONS
#   job_start        first in each pod, before env.sh; may change arguments
#   before_launch    in each pod, before the ranks start; may add to rank_prefix, and export
#   beside_launch    in each pod, a process beside the ranks; it is ended with them
#   after_launch     in each pod, after the ranks have ended; may change code
#   job_end          once in each pod
#? else
#   check_settings   after env.sh; refuses what cannot work
#   before_launch    before the ranks start; may add to rank_prefix, and export
#   beside_launch    a process beside the ranks; it is ended with them
#   after_launch     after the ranks have ended; may change code
#   job_end          once
#? endif
#
# A function fails if it returns another code than 0. Bash does not end it at a command that fails:
# write "command || return". Until the ranks start, a failure ends the job with a message. Later the
# job goes on, with a message.
#
# A script sets PROJECT_DIR, and reads launch/program.sh before this file.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts that read this file share its variables

# Which extra a setting belongs to, for all extras of the template, whether they are here or not.
settings_of_extras="{{ extra_settings(cookiecutter).items() | map('join', '=') | join(' ') }}"
all_moments="check_settings before_submit job_start before_launch beside_launch after_launch"
all_moments+=" job_end"
#? if kind == "local"
moments="check_settings before_launch beside_launch after_launch job_end"

#? else
moments=$all_moments

#? endif
extras=''            # the names of those with hooks.sh, with spaces between them
called=''            # the function of an extra that is running
#? if kind == "slurm"
attempt=''           # the number of RUN_DIR, if an extra has set it
container_folders=() # further folders that the container mounts, from extras
srun_options=()      # further options of srun, from extras
#? endif
rank_prefix=()       # the words before the wrapper: RANK_PREFIX, then those of extras
beside=()            # processes beside the ranks
code=0               # exit code of the ranks
outcome=''           # what an extra wants after they have ended

# ---- read ----------------------------------------------------------------------------------------

# Reads settings.sh and hooks.sh of each extra, in the order of names. Sets extras.
read_extras() {
    local folder name
    for folder in "$PROJECT_DIR"/extras/*/; do
        [[ -f ${folder}hooks.sh ]] || continue # a set of commands, or no extra at all
        folder=${folder%/} name=${folder##*/}
        check_extra "$name" "$folder"
        # shellcheck source=/dev/null
        source "$folder/settings.sh"
        # shellcheck source=/dev/null
        source "$folder/hooks.sh"
        extras+="$name "
    done
    [[ -z $extras ]] || trap leave_extras EXIT
}

# Refuses an extra that cannot work. Arguments: its name, its folder.
check_extra() {
    local name=$1 folder=$2 functions function
    [[ $name =~ ^[a-z][a-z0-9_]*$ ]] ||
        die "extras/$name: its functions begin with this name, so it needs a small letter, then" \
            "small letters, digits or _: rename the folder"
    [[ -f $folder/settings.sh ]] ||
        die "extras/$name has hooks.sh, but no settings.sh: write one, which may be empty"
    refuse_windows_line_ends "$folder/settings.sh"
    refuse_windows_line_ends "$folder/hooks.sh"
    # shellcheck source=/dev/null
    (set -u && source "$folder/settings.sh") >&2 ||
        die "extras/$name/settings.sh ended with an error, see above, or its last line." \
            "It may read what it has set itself, and no other settings"
    functions=$(functions_of "$folder") ||
        die "extras/$name/hooks.sh ended with an error, see above, or its last line"
    for function in $functions; do
        check_function "$name" "$function"
    done
}

# Prints the functions that hooks.sh of a folder defines, in a shell of its own.
functions_of() (
    while read -r _ _ function; do
        unset -f "$function"
    done < <(declare -F)
    # shellcheck source=/dev/null
    source "$1/settings.sh" >&2 && source "$1/hooks.sh" >&2 || exit
    while read -r _ _ function; do
        echo "$function"
    done < <(declare -F)
)

# Refuses a function of an extra that would replace one of the core, or never be called. Arguments:
# the extra, the function.
check_function() {
    local moment=${2#"$1"_}
    #? if kind == "slurm"
    [[ $2 != choose_nodes && $2 != build_step_of_* ]] || return 0
    #? endif
    [[ $2 == "$1"_* ]] ||
        #? if kind == "slurm"
        die "extras/$1/hooks.sh defines $2: the names of its functions begin with $1_," \
            "but for choose_nodes and build_step_of_NAME"
        #? else
        die "extras/$1/hooks.sh defines $2: the names of its functions begin with $1_." \
            "This kind of project has no step that an extra may replace"
        #? endif
    [[ " $all_moments " != *" $moment "* || " $moments " == *" $moment "* ]] ||
        die "extras/$1/hooks.sh defines $2, but this kind of project has no moment $moment." \
            "It has: $moments"
}

# ---- call ----------------------------------------------------------------------------------------

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
    called="extras/$1: $1_$2"
    case $2 in
        after_launch | job_end)
            set +u # where the function reads an unset variable, bash would end the script
            "$1_$2" || say "$called failed with exit code $?; the job goes on"
            set -u
            ;;
        *) "$1_$2" || die "$called failed with exit code $?" ;;
    esac
    called=''
}

# Ends what runs beside the ranks, when the script ends: the trap of EXIT calls this function. It says
# if a function of an extra has ended the script. After the launch the exit code stays that of the
# ranks.
leave_extras() {
    local exit_code=$? function=$called
    called=''
    end_beside
    case $function in
        '') ;;
        *_after_launch | *_job_end)
            say "$function called exit, which ends the job here, with the exit code of the ranks"
            exit "$code"
            ;;
        *) ((exit_code == 0)) || echo "$script: $function ended the script" >&2 ;;
    esac
}

# Calls the functions of after_launch. They may change code, and set outcome if that is empty.
call_after_launch() {
    local code_of_ranks=$code
    outcome=''
    call_extras after_launch
    if [[ ! $code =~ ^[0-9]+$ ]]; then
        say "an extra has set code='$code': expected an exit code"
        code=$code_of_ranks
    fi
    #? if kind == "slurm"
    case $outcome in
        '' | restart | requeue | end) ;;
        *)
            say "an extra has set outcome='$outcome': expected restart, requeue or end"
            outcome=''
            ;;
    esac
    #? endif
}

# ---- beside the ranks ----------------------------------------------------------------------------

# Starts the functions of beside_launch. Sets beside.
start_beside() {
    local extra
    beside=()
    for extra in $extras; do
        if declare -F "${extra}_beside_launch" >/dev/null; then
            run_beside "$extra" </dev/null &
            beside+=($!)
            disown # or bash would tell of its end
        fi
    done
}

# Runs a function in a process group of its own until it ends, or until SIGTERM comes. Then the
# whole group gets SIGTERM, and SIGKILL after 10 s. Argument: the extra.
run_beside() {
    local child='' asked='' failed=0 try
    set +e
    trap '' USR1 # the warning before the walltime is over, which is for the submit script alone
    trap 'asked=1; [[ -z $child ]] || kill -TERM -- "-$child"' TERM HUP
    set -m # a group of its own
    "$1_beside_launch" &
    child=$!
    set +m
    [[ -z $asked ]] || kill -TERM -- "-$child" # the signal came before child was set
    wait "$child" 2>/dev/null || failed=$?
    if [[ -z $asked ]]; then
        ((failed == 0)) ||
            say "extras/$1: $1_beside_launch failed with exit code $failed; the job goes on"
        return
    fi
    for ((try = 0; try < 100; try++)); do
        kill -0 "$child" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$child" 2>/dev/null
}

# Ends what start_beside has started, and waits for its end.
end_beside() {
    local process
    for process in "${beside[@]}"; do
        kill -TERM "$process" 2>/dev/null || true
    done
    for process in "${beside[@]}"; do
        while kill -0 "$process" 2>/dev/null; do sleep 0.05; done
    done
    beside=()
}

# ---- settings ------------------------------------------------------------------------------------

# Refuses settings of extras that have no effect: those in env.sh, and those of extras that are not
# here. Called before env.sh is read, so that the values of variables come from the shell.
refuse_misplaced_settings() {
    local name extra value line pair
    local assignment='^[[:space:]]*(export[[:space:]]+)?([A-Z][A-Z0-9_]*)=(.*)$'
    [[ -n $settings_of_extras ]] || return 0
    while IFS= read -r line; do
        [[ $line =~ $assignment ]] || continue
        name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
        [[ " $settings_of_extras" == *" $name="* ]] || continue
        extra=" $settings_of_extras "
        extra=${extra#*" $name="}
        extra=${extra%% *}
        refuse_in_env "$name" "$extra" "$(default_in "$name" "$value")"
    done <"$PROJECT_DIR/env.sh"
    for pair in $settings_of_extras; do
        name=${pair%%=*} extra=${pair#*=}
        [[ -d $PROJECT_DIR/extras/$extra ]] || switches_off "${!name-}" ||
            die "$name: extras/$extra is not in this project. To add it:" \
                "$(command_that_adds "$extra"). $name=${!name} comes from your shell:" \
                "to run without the extra, unset $name"
    done
}

# Refuses a setting in env.sh. Where the extra is not here, a value that switches it off does no
# harm. Arguments: the setting, its extra, the value.
refuse_in_env() {
    local where="$1 in env.sh: it belongs in extras/$2/settings.sh now"
    [[ ! -d $PROJECT_DIR/extras/$2 ]] || die "$where, so move it there"
    switches_off "$3" ||
        die "$where, and extras/$2 is not in this project. To add it:" \
            "$(command_that_adds "$2"). To run without the extra, remove $1 from env.sh"
}

# Prints the value that a line of env.sh gives to a setting: 2 of SPARES="${SPARES:-2}" # nodes.
# Arguments: the setting, the line after the equals sign.
default_in() {
    local value=${2%%[[:space:]]#*}
    value=${value//[\"\'\$\{\}[:space:]]/}
    value=${value#"$1:-"}
    echo "${value#"$1-"}"
}

# Whether a value of a setting switches an extra off.
switches_off() { [[ -z $1 || $1 == 0 || $1 == no ]]; }

# Prints the command that adds an extra. Argument: its name.
command_that_adds() {
    local command="{{ in_quotes(add_command(cookiecutter, 'NAME')) }}"
    echo "${command%NAME}$1 (in the folder above the project)"
}

# Refuses a RANK_PREFIX that is one word with spaces: it would be taken for the name of a program.
check_rank_prefix() {
    [[ ${#RANK_PREFIX[@]} != 1 || ${RANK_PREFIX[0]} != *[[:space:]]* || -e ${RANK_PREFIX[0]} ]] ||
        die "RANK_PREFIX='${RANK_PREFIX[0]}': expected a list of words, as in" \
            "RANK_PREFIX=(numactl --interleave=all)"
}

# ---- as a command --------------------------------------------------------------------------------

# Prints the template's extras that are in this project, with commas between them, or "none".
print_extras() {
    local name found='' folder names="{{ extras_of(cookiecutter) | join(' ') }}"
    folder=$(dirname "${BASH_SOURCE[0]}")/../extras
    for name in $names; do
        [[ ! -d $folder/$name ]] || found+=",$name"
    done
    found=${found#,}
    echo "${found:-none}"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    print_extras
fi
