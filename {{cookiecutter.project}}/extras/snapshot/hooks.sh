#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? set runtime = cookiecutter.runtime
#? set container = plan_of(cookiecutter).in_container
# Copies the sources when a job is submitted, has the job run the copy, and records the run in
# RUN_DIR/run.json. launch/moments.sh calls the functions snapshot_MOMENT.
#
# A job runs a copy if its scripts lie in one: PROJECT_DIR is logs/snapshots/HASH/NAME. No variable
# says so, as a job that this one submits would inherit it.
# shellcheck disable=SC2034,SC2153,SC2154,SC2329 # variables and calls of the scripts that read this

# Of a job that runs a copy: snapshot_original is the project's folder that you edit, and
# snapshot_copies are the folders logs/snapshots/HASH of the project and of the program. Else they are
# PROJECT_DIR and none.
snapshot_original=$PROJECT_DIR snapshot_copies=()
snapshot_recorder='' # the process of record.py
snapshot_recorded='' # the RUN_DIR of which it writes run.json

# Refuses settings that cannot work.
snapshot_check_settings() {
    [[ $SNAPSHOT == [01] ]] || die "SNAPSHOT='$SNAPSHOT': expected 1 or 0"
    [[ $SNAPSHOT_LIMIT_MB =~ ^[1-9][0-9]*$ ]] ||
        die "SNAPSHOT_LIMIT_MB='$SNAPSHOT_LIMIT_MB': expected a whole number of MB, as in 100"
}

#? if kind == "slurm"
# On a login node: makes the copy, and has sbatch submit the script of the copy. The script of a copy,
# whose command repeat.py prints, submits that copy again. Exports SNAPSHOT_SUBMITTED, the command, for
# run.json.
snapshot_before_submit() {
    local copy
    snapshot_find_copies "${typed[@]}" || return
    if ((${#snapshot_copies[@]})); then
        touch "${snapshot_copies[@]}" 2>/dev/null || true # clean.sh looks at the time of one's own
    elif [[ $SNAPSHOT == 1 ]]; then
        snapshot_take "${typed[0]+$program}" "$PWD" "${typed[@]:1}" || return
        typed=("${snapshot_words[@]}")
        job_script=$copy/slurm/submit_multinode.sh
    fi
    SNAPSHOT_SUBMITTED=$(snapshot_quoted bash "$(realpath "$job_script")" "${sbatch_options[@]}" \
        -- "${typed[@]}")
    export SNAPSHOT_SUBMITTED
}

# Has the container mount the copies, and what their links lead to. With the runtime edf, the first
# folder stands for PROJECT_DIR in the file that describes the container: the copy lies in there, too.
snapshot_job_start() {
    local folder
    snapshot_find_copies ${typed[0]+"$program"} "${typed[@]:1}" || return
    for folder in "${snapshot_copies[@]}"; do
        container_folders+=("$(realpath "$folder/original")" "$(realpath "$folder")")
    done
    if [[ $SNAPSHOT == 1 && ${#snapshot_copies[@]} == 0 && $in_batch_job == 1 ]]; then
        say "sbatch alone has submitted this job, so it runs the files as they are now, without a" \
            "copy (SNAPSHOT)"
    fi
}

# Prints words so that a shell, or Python's shlex, reads them as they are.
snapshot_quoted() {
    local quote=\' word
    for word in "$@"; do
        printf "'%s' " "${word//$quote/$quote\\$quote$quote}"
    done
}

#? else
# Where you submit: makes the copy on the volume, and has the pods run its scripts.
snapshot_before_submit() {
    local copy PROJECT_DIR=$PROJECT_DIR
    [[ $SNAPSHOT == 1 ]] || return 0
    [[ $POD_PROJECT_DIR -ef $PROJECT_DIR ]] ||
        die "SNAPSHOT=1: this machine does not see POD_PROJECT_DIR='$POD_PROJECT_DIR', so it cannot" \
            "make a copy there: submit where the volume is mounted, or set SNAPSHOT=0"
    [[ -z ${program[0]:-} || ${program[0]} == -m || -e ${program[0]} ]] ||
        die "SNAPSHOT=1: this machine does not see '${program[0]}', so it cannot copy it: submit" \
            "where its volume is mounted, or set SNAPSHOT=0"
    PROJECT_DIR=$POD_PROJECT_DIR # the name that pods know
    snapshot_take "${program[0]:-}" "$POD_PROJECT_DIR" "${program[@]:1}" || return
    program=("${snapshot_words[@]}")
    job_script=$copy/runai/pod.sh
}

# The program's working directory is the project's folder, also if its scripts are those of a copy.
snapshot_job_start() {
    snapshot_find_copies "${arguments[@]}" || return
    cd "$snapshot_original" || return
}

#? endif
# Puts enter.sh before the launcher, and has record.py write run.json, once for each RUN_DIR.
snapshot_before_launch() {
    rank_prefix+=(bash "$PROJECT_DIR/extras/snapshot/enter.sh" "${snapshot_copies[@]}" --)
    if [[ $snapshot_recorded != "$RUN_DIR" ]]; then
        snapshot_recorded=$RUN_DIR
        snapshot_record
    fi
}

# Waits until run.json is whole, for two seconds at most: a short program may end before it is.
snapshot_job_end() {
    local try
    [[ -n $snapshot_recorder ]] || return 0
    for ((try = 0; try < 20; try++)); do
        kill -0 "$snapshot_recorder" 2>/dev/null || return 0
        sleep 0.1
    done
}

# ---- copies --------------------------------------------------------------------------------------

# Copies the sources of the project, and those of the program. Sets the caller's variable copy to the
# project's folder in the copy, and snapshot_words to the program in the copy and its arguments.
# Arguments: the program, -m or '' for none; the folder in which Python looks for modules; the words
# that follow the program.
snapshot_take() {
    local output what=$1
    type -P python3 >/dev/null ||
        die "SNAPSHOT=1 copies the sources with python3, which was not found on this machine:" \
            "load a module that has it, or set SNAPSHOT=0"
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the copies of sources go:" \
            "copy the project to a folder that is yours"
    [[ $1 != -m ]] || what=$2
    output=$(python3 -B "$PROJECT_DIR/extras/snapshot/snapshot.py" "$SNAPSHOT_LIMIT_MB" \
        "$PROJECT_DIR" ${what:+"$what"}) || return
    { IFS= read -r copy && IFS= read -r what; } <<<"$output"
    case $1 in
        '') snapshot_words=() ;;
        -m) snapshot_words=("$copy/extras/snapshot/run_module.py" "$what" "${@:3}") ;;
        *) snapshot_words=("$what" "${@:3}") ;;
    esac
}

# Sets snapshot_copies and snapshot_original. Arguments: the program and its arguments.
snapshot_find_copies() {
    local path inside pattern='^(.*/logs/snapshots/[0-9a-f]{12})/'
    snapshot_copies=() snapshot_original=$PROJECT_DIR
    [[ $PROJECT_DIR =~ $pattern && -L ${BASH_REMATCH[1]}/original ]] || return 0
    snapshot_copies=("${BASH_REMATCH[1]}")
    inside=${PROJECT_DIR#"${BASH_REMATCH[1]}"/}/ # NAME/, or NAME/folder/ in a larger repository
    snapshot_original=$(cd -P "${BASH_REMATCH[1]}/original/${inside#*/}" && pwd) || return
    path=${1:-}
    [[ $path != */extras/snapshot/run_module.py ]] || path=${2:-}/ # the folder of the module
    if [[ $path =~ $pattern && ! ${BASH_REMATCH[1]} -ef ${snapshot_copies[0]} ]]; then
        snapshot_copies+=("${BASH_REMATCH[1]}")
    fi
}

# ---- the record ----------------------------------------------------------------------------------

# Has record.py write run.json: code, program, settings, nodes. The ranks do not wait for it.
snapshot_record() {
    local python copy options=(--parent=$$ --project="$snapshot_original")
    #? if kind == "slurm"
    rm -rf "$RUN_DIR"/{packages.txt,packages.txt.new,imports} # of an earlier run in the same shell of salloc
    python=$(type -P python3 || type -P "$PYTHON") || return 0
    options+=(--nodes="$(IFS=, && echo "${hosts[*]}")")
    #? if container
    [[ $RUNTIME != "{{ runtime }}" ]] || options+=(--image="$IMAGE")
    #? if runtime == "podman-hpc"
    options+=(--digest-command="podman-hpc images --quiet --no-trunc $IMAGE")
    #? elif runtime == "shifter"
    options+=(--digest-command="shifterimg lookup docker:$IMAGE")
    #? endif
    #? endif
    #? else
    echo "$HOSTNAME on ${NODE_NAME:-a node}" >>"$RUN_DIR/nodes"
    ((pod == 0)) || return 0
    python=$(type -P "$PYTHON") || return 0
    options+=(--image="$IMAGE")
    #? endif
    for copy in "${snapshot_copies[@]}"; do
        options+=(--copy="$copy")
    done
    #? if kind == "slurm"
    set -- ${typed[0]+"${typed[0]}"} "${arguments[@]}"
    #? else
    set -- "${arguments[@]}"
    #? endif
    "$python" -B "$PROJECT_DIR/extras/snapshot/record.py" "${options[@]}" -- "$@" </dev/null &
    snapshot_recorder=$!
    disown "$snapshot_recorder" # or bash would tell of its end
}
