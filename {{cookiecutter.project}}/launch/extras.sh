#!/usr/bin/env bash
#? set plan = plan_of(cookiecutter)
#? set kind = site_facts(cookiecutter.site).kind
# Extras are the folders extras/NAME of this project. This file reads those that take part in jobs, and
# refuses settings of those that are not here.
#
# An extra with hooks.sh takes part in jobs. launch/moments.sh says how, and is read only if there is one.
# A script sets PROJECT_DIR, and reads {{ kind }}/project.sh, which reads this file.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts that read this file share its variables

RANK_PREFIX=()       # env.sh sets it; that of an older version does not
rank_prefix=()       # what stands before the launcher: RANK_PREFIX, then the words of extras

# Reads the extras that take part in jobs.
read_extras() {
    local hooks=("$PROJECT_DIR"/extras/*/hooks.sh)
    if [[ ${hooks[0]} != "$PROJECT_DIR/extras/*/hooks.sh" ]]; then # without a file the pattern stays
        # shellcheck source=/dev/null
        source "$PROJECT_DIR/launch/moments.sh"
        read_hooks
    fi
}

# What the scripts call at the moments of a job. launch/moments.sh defines these functions anew.
#? if kind == "runai"
leave_extras() { :; }
#? endif
call_extras() { :; }
start_beside() { :; }
end_beside() { :; }

# Refuses settings of extras where they have no effect: in env.sh, or without the extra. A value that
# switches off an extra which is not here is let through. Called when env.sh has been read.
refuse_misplaced_settings() {
    local setting name extra
    # SETTING=EXTRA for each setting of the template's extras.
    local owners="{{ plan.extra_settings.items() | map('join', '=') | join(' ') }}"
    for setting in $owners; do
        name=${setting%%=*} extra=${setting#*=}
        if [[ -d $PROJECT_DIR/extras/$extra ]]; then
            ! is_in_env "$name" ||
                die "$name in env.sh: it belongs in extras/$extra/settings.sh, so move it there"
        elif [[ ${!name-} != '' && ${!name} != 0 && ${!name} != no ]]; then
            die "$name=${!name}: extras/$extra is not in this project. To add it: $(adding "$extra")." \
                "To run without it, unset $name in your shell, or remove it from env.sh"
        fi
    done
}

# Prints the command that adds an extra of the template, and where to type it. Argument: its name.
adding() {
    local command="{{ in_quotes(plan.add_command('NAME')) }}"
    echo "${command%NAME}$1 (in the folder above the project)"
}

#? if kind == "slurm"
# Refuses a LAUNCHER that neither slurm/ranks.sh nor an extra of this project has, and names the extra
# of the template that has it.
refuse_unknown_launcher() {
    ! declare -F "build_step_of_${LAUNCHER//-/_}" >/dev/null || return 0
    #? for extra, launchers in plan.extra_launchers.items()
    case $LAUNCHER in
        "{{ launchers | join('" | "') }}")
            die "LAUNCHER=$LAUNCHER: extras/{{ extra }} is not in this project. To add it: $(adding "{{ extra }}")"
            ;;
    esac
    #? endfor
    die "LAUNCHER='$LAUNCHER' is not known; use {{ site_facts(cookiecutter.site).launchers | reject('in', plan.extra_launchers.values() | sum(start=[])) | join(', ') }}"
}

#? endif
# Whether env.sh sets a variable. Argument: its name.
is_in_env() { grep -qE "^[[:space:]]*(export[[:space:]]+([^#]*[[:space:]])?)?\"?$1=" "$PROJECT_DIR/env.sh"; }

# Refuses a RANK_PREFIX that is one word with spaces, or an empty one: it would be taken for the name of
# a program.
check_rank_prefix() {
    [[ ${#RANK_PREFIX[@]} != 1 || -e ${RANK_PREFIX[0]} || ${RANK_PREFIX[0]} =~ ^[^[:space:]]+$ ]] ||
        die "RANK_PREFIX='${RANK_PREFIX[0]}': expected a list of words, as in" \
            "RANK_PREFIX=(numactl --interleave=all), or RANK_PREFIX=()"
}
