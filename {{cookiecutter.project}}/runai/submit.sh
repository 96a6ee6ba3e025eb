#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set projects = in_quotes(site.commands.get("accounts", "runai project list"))
#? set claims = in_quotes(site.commands.get("volumes", "runai pvc list"))
# Steps of runai/submit_multinode.sh and runai/interactive.sh that read the settings, check them, and
# ask the client and the cluster. They run where you submit a job, and work with the bash of macOS
# (3.2). That bash takes an empty list for a variable that is not set, hence no "set -u".
#
# A script reads runai/project.sh first. runai/command.sh has the steps after these.
# shellcheck disable=SC2034,SC2153,SC2154 # env.sh has the settings; the scripts use what functions set

# Words that need no quotes: they reach a pod unchanged through every client and shell.
PLAIN='^[A-Za-z0-9._/:=@%+,-]+$'

# Names of variables that hold keys, in capitals. MAX_TOKENS and TOKENIZERS_PARALLELISM hold none.
KEY_NAMES='KEYS?(_|$)|TOKEN(_|$)|SECRET|PASSW|CREDENTIAL'

# ---- read and check the settings ----------------------------------------------------------------

# Reads env.sh and the extras. Sets pod_variables to NAME=VALUE for each variable of FORWARD, and each
# setting of an extra, that the calling shell exports.
read_settings_for_pods() {
    local name given
    given=$(compgen -e) # the names of your environment, before env.sh adds its own
    read_settings
    read_extras
    pod_variables=()
    for name in "${FORWARD[@]}" $(settings_of_hooks); do
        ! grep -qx "$name" <<<"$given" || pod_variables+=("$name=${!name}")
    done
}

# Prints the names of the settings of extras that take part in a job.
settings_of_hooks() {
    local extra
    for extra in $extras; do
        sed -nE 's/^(export )?([A-Z][A-Z0-9_]*)=.*/\2/p' "$PROJECT_DIR/extras/$extra/settings.sh"
    done
}

# Refuses settings that cannot work.
check_settings() {
    local name secret volume
    require_project
    [[ -n $IMAGE ]] || die "IMAGE is empty; set it in env.sh"
    [[ $NNODES =~ ^[1-9][0-9]*$ ]] || die "NNODES='$NNODES': expected a whole number of at least 1"
    for name in GPUS_PER_NODE RETRIES; do
        [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] ||
            die "$name='${!name}': expected a whole number of at least 0"
    done
    for name in RDMA REQUIRE_RDMA LARGE_SHM HOST_IPC KEEP_ENTRYPOINT CHECK_VOLUMES; do
        [[ ${!name} == [01] ]] || die "$name='${!name}': expected 0 or 1"
    done
    [[ $PREEMPTIBLE =~ ^[01]?$ ]] || die "PREEMPTIBLE='$PREEMPTIBLE': expected 0 or 1, or nothing"
    for name in "${FORWARD[@]}"; do
        [[ ! $(tr '[:lower:]' '[:upper:]' <<<"$name") =~ $KEY_NAMES ]] ||
            die "FORWARD in env.sh: $name is the name of a key, and other users would see its value in the" \
                "workload: put it into a secret of the cluster, and name that in SECRETS"
    done
    for secret in "${SECRETS[@]}"; do
        [[ $secret =~ ^[A-Za-z_][A-Za-z0-9_]*=[^=,]+,[^=,]+$ ]] ||
            die "SECRETS in env.sh: '$secret' is not VARIABLE=SECRET,KEY"
    done
    ((${#VOLUMES[@]})) ||
        die "VOLUMES in env.sh is empty: name the PVC that holds this project, as CLAIM:/FOLDER" \
            "({{ claims }} lists them)"
    for volume in "${VOLUMES[@]}"; do
        [[ $volume =~ ^[^:,]+:/[^:,]*[^:,/]$ ]] ||
            die "VOLUMES in env.sh: '$volume' is not CLAIM:/FOLDER (no / at the end, no :ro)"
    done
    check_rank_prefix
    call_extras check_settings
}

# Refuses a job that no project is charged for.
require_project() {
    [[ -n $RUNAI_PROJECT ]] ||
        die "RUNAI_PROJECT is empty; set it in env.sh ({{ projects }} lists yours)"
}

# Sets POD_PROJECT_DIR, unless env.sh does, to the project's folder here. Refuses a folder that pods
# do not see.
find_project_in_pods() {
    if [[ -z $POD_PROJECT_DIR ]]; then
        on_volume "$PROJECT_DIR" ||
            die "this project, $PROJECT_DIR, lies below none of VOLUMES (${VOLUMES[*]}):" \
                "copy it to one, and set POD_PROJECT_DIR to its folder as pods see it"
        POD_PROJECT_DIR=$PROJECT_DIR
    fi
    on_volume "$POD_PROJECT_DIR" ||
        die "POD_PROJECT_DIR='$POD_PROJECT_DIR' lies below none of VOLUMES (${VOLUMES[*]}):" \
            "set it to the project's folder as pods see it"
    [[ $POD_PROJECT_DIR =~ $PLAIN ]] ||
        die "POD_PROJECT_DIR='$POD_PROJECT_DIR': use letters, digits and ._/:=@%+,- only"
    [[ ! -d $POD_PROJECT_DIR || -f $POD_PROJECT_DIR/runai/pod.sh ]] ||
        die "there is no runai/pod.sh in POD_PROJECT_DIR='$POD_PROJECT_DIR': copy the project there"
}

# Whether pods see a path: its name lies below one of VOLUMES. Whether the volume is mounted here is
# not looked at.
on_volume() {
    local volume
    for volume in "${VOLUMES[@]}"; do
        [[ $1/ != "${volume#*:}"/* ]] || return 0
    done
    return 1
}

#? if site.pods.run_as_user
# Sets RUN_AS_UID and RUN_AS_GID, unless env.sh does, to the owner of the project. If the volume is
# not mounted here, env.sh must name them. Refuses root, who has no access to the volumes.
#? else
# Checks RUN_AS_UID and RUN_AS_GID. If they are empty, processes in the pods have the image's user.
#? endif
choose_user() {
    #? if site.pods.run_as_user
    if [[ -z $RUN_AS_UID$RUN_AS_GID && $POD_PROJECT_DIR -ef $PROJECT_DIR ]]; then
        [[ -O $PROJECT_DIR ]] ||
            die "$PROJECT_DIR is not yours: submit from a copy of your own," \
                "or set RUN_AS_UID and RUN_AS_GID"
        read -r _ _ RUN_AS_UID RUN_AS_GID _ <<<"$(ls -ldn "$PROJECT_DIR")"
    fi
    [[ $RUN_AS_UID =~ ^[1-9][0-9]*$ && $RUN_AS_GID =~ ^[0-9]+$ ]] ||
        die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected two numbers," \
            "yours (not root's) and your group's, as the volume knows them; see env.sh"
    #? else
    [[ $RUN_AS_UID$RUN_AS_GID =~ ^[0-9]*$ ]] ||
        die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected numbers, or nothing"
    #? endif
}

# ---- ask the client and the cluster -------------------------------------------------------------

# Sets RUNAI_CLI, unless env.sh does, to the generation of the installed client: v1 or v2.
find_client() {
    [[ $RUNAI_CLI =~ ^(v1|v2)?$ ]] || die "RUNAI_CLI='$RUNAI_CLI': expected v1 or v2, or nothing"
    if ! command -v runai >/dev/null; then
        [[ -n $dry_run && -n $RUNAI_CLI ]] ||
            die "runai was not found: install it ({{ plan.instructions }} says how)." \
                "Only --dry-run with RUNAI_CLI=v1 or v2 works without runai"
    elif [[ -n $RUNAI_CLI ]]; then
        return
    elif [[ $(runai training pytorch submit --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v2
    elif [[ $(runai submit-dist pytorch --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v1
    else
        die "this runai knows neither 'training pytorch submit' (v2)" \
            "nor 'submit-dist pytorch' (v1): get another version, see {{ plan.instructions }}"
    fi
}

# Refuses VOLUMES that the cluster does not have. A job with such a volume waits for ever, and CLI
# v1 does not even list the job. If the cluster does not answer, nothing is refused.
check_volumes() {
    local volume claims list=(runai pvc list -p "$RUNAI_PROJECT")
    # CLI v1 has no command that lists volumes.
    [[ $RUNAI_CLI == v2 ]] || list=(kubectl get pvc --namespace "runai-$RUNAI_PROJECT")
    [[ -z $dry_run && $CHECK_VOLUMES == 1 ]] || return 0
    claims=$("${list[@]}" 2>/dev/null) || return 0
    claims=$(tr -s '[:space:]' '\n' <<<"$claims") # one word per line
    for volume in "${VOLUMES[@]}"; do
        grep -qxF -e "${volume%%:*}" <<<"$claims" ||
            die "'${list[*]}' has no volume '${volume%%:*}', which VOLUMES in env.sh names:" \
                "correct VOLUMES, or submit without this check by CHECK_VOLUMES=0"
    done
}

# ---- find the program ---------------------------------------------------------------------------

# Sets program to what pods run: a program's path there, or -m and a module, and the arguments.
# Without arguments that is DEFAULT_PROGRAM.
find_program_in_pods() {
    local word
    if (($# == 0)); then set -- "$DEFAULT_PROGRAM"; fi
    program=("$@")
    for word in "$@"; do
        [[ $word != "#" ]] ||
            die "'#' is an argument: your shell takes comments for a part of the command;" \
                "leave out # and what follows it"
    done
    case $1 in
        "") die "no program '': name one, as in program.py or -m package.module" ;;
        -m) [[ -n ${2:-} ]] || die "-m: name a module, as in -m package.module" ;;
        -*) die "'$1': options for runai go into RUNAI_OPTIONS of env.sh; name a program" ;;
        *) program[0]=$(path_in_pods "$@") || exit ;;
    esac
}

# Prints a program's path in the pods. Arguments: the program as you named it, then its arguments.
path_in_pods() {
    local file=$1
    refuse_launch_command "$@"
    [[ -e $file ]] || file=$PROJECT_DIR/$1
    if [[ ! -e $file ]]; then
        # A laptop does not see the volumes: a path below one of them is taken as it stands.
        if [[ $1 != /* || -d $(dirname "$1") ]] || ! on_volume "$1"; then
            die "no program '$1', neither here nor in $PROJECT_DIR:" \
                "name a Python file or a module, as in program.py or -m package.module"
        fi
        echo "$1"
        return
    fi
    refuse_other_than_python "$file"
    refuse_program_with_own_ranks "$file" "$1"
    file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
    [[ $file != "$PROJECT_DIR"/* ]] || file=$POD_PROJECT_DIR/${file#"$PROJECT_DIR"/}
    on_volume "$file" ||
        die "'$1': pods do not see $file, which lies neither in the project" \
            "nor below one of VOLUMES (${VOLUMES[*]}): copy it into the project"
    echo "$file"
}

# Refuses a program that starts its own ranks, unless you set NPROC_PER_NODE for this job.
# Arguments: the program's file, and the program as you named it.
refuse_program_with_own_ranks() {
    [[ " ${pod_variables[*]:-} " != *" NPROC_PER_NODE="* ]] || return 0
    ! starts_its_own_ranks "$1" ||
        die "$1 starts its own ranks, so it has to be started once per pod:" \
            "NPROC_PER_NODE=1 bash runai/submit_multinode.sh $2," \
            "and let its ranks meet by env://, not by tcp://"
}
