#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set login = in_quotes(site.commands.get("login", "runai login"))
#? set projects = in_quotes(site.commands.get("accounts", "runai project list"))
#? set pools = in_quotes(site.commands.get("queues", "runai nodepool list"))
#? set claims = in_quotes(site.commands.get("volumes", "runai pvc list"))
# The steps of runai/submit_multinode.sh and runai/interactive.sh as functions, in the order in
# which these scripts take them. They run where you submit a job, and work with the bash of macOS
# (3.2). That bash takes an empty list for a variable that is not set, hence no "set -u".
#
# A script reads this file with its own name, which stands in front of its messages:
#   source "$PROJECT_DIR/runai/lib.sh" runai/NAME.sh
# shellcheck disable=SC2034,SC2153,SC2154 # env.sh has the settings; the scripts use what functions set
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh" "$1"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras

# Words that need no quotes: they reach a pod unchanged through every client and shell.
PLAIN='^[A-Za-z0-9._/:=@%+,-]+$'

# Names of variables that hold keys, in capitals. MAX_TOKENS and TOKENIZERS_PARALLELISM hold none.
KEY_NAMES='KEYS?(_|$)|TOKEN(_|$)|SECRET|PASSW|CREDENTIAL'

# ---- read and check the settings ----------------------------------------------------------------

# Reads env.sh. Sets pod_variables to NAME=VALUE for each variable of FORWARD, and each setting of an
# extra, that the calling shell exports.
read_settings() {
    local name given
    given=$(compgen -e) # the names of your environment, before env.sh adds its own
    refuse_windows_line_ends "$PROJECT_DIR/env.sh"
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    refuse_misplaced_settings
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
            die "runai was not found: install it ({{ instructions(cookiecutter) }} says how)." \
                "Only --dry-run with RUNAI_CLI=v1 or v2 works without runai"
    elif [[ -n $RUNAI_CLI ]]; then
        return
    elif [[ $(runai training pytorch submit --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v2
    elif [[ $(runai submit-dist pytorch --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v1
    else
        die "this runai knows neither 'training pytorch submit' (v2)" \
            "nor 'submit-dist pytorch' (v1): get another version, see {{ instructions(cookiecutter) }}"
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
#? if cookiecutter.examples == "yes"
# Without arguments program is empty, and runai/pod.sh runs check/ranks.py, then
# training/train_ddp.py.
#? else
# Without arguments program is empty, and runai/pod.sh runs check/ranks.py.
#? endif
find_program_in_pods() {
    local word
    program=("$@")
    if (($# == 0)); then
        #? if cookiecutter.examples == "yes"
        [[ -f $PROJECT_DIR/check/ranks.py && -f $PROJECT_DIR/training/train_ddp.py ]] ||
            die "no program given, and no check/ranks.py and training/train_ddp.py" \
                "in $PROJECT_DIR to run instead: name a program"
        #? else
        [[ -f $PROJECT_DIR/check/ranks.py ]] ||
            die "no program given, and no check/ranks.py in $PROJECT_DIR to run instead:" \
                "name a program"
        #? endif
        return
    fi
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
            program_not_found "$1"
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
    ! has_own_endpoint "$1" ||
        die "$1 gives init_process_group an address of its own, tcp://…, at which no rank listens" \
            "under torchrun: leave init_method out"
}

# ---- build the command for runai ----------------------------------------------------------------

# Prints a new name for a job: its beginning, the time and a random number.
job_name() {
    echo "$(beginning_of_name "$1")-$(date +%m%d-%H%M%S)-$((RANDOM % 9000 + 1000))"
}

# Prints the argument as the beginning of a job's name. Kubernetes takes lower-case letters, digits
# and -, up to 63 with the -worker-N that the operator appends.
beginning_of_name() {
    local name
    name=$(printf %s "$1" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-')
    name=${name#-}
    name=${name:0:30}
    [[ $name == [a-z]* ]] || name=run-$name
    echo "${name%-}"
}

# Sets runai_command, which asks for the pods, and job_commands, the words with which runai's other
# commands for such a job begin. Arguments: the job's name, then the command that each pod runs.
build_command() {
    start_command "$1"
    add_variables
    add_resources
    add_rdma
    add_volumes
    add_restarts
    runai_command+=("${RUNAI_OPTIONS[@]}")
    refuse_words_with_quotes
    add_command_of_pods "${@:2}"
}

# Sets job_commands, which differ for jobs of one pod and of several.
choose_job_commands() {
    case $RUNAI_CLI:$NNODES in
        v1:*) job_commands="runai" ;;
        v2:1) job_commands="runai training standard" ;;
        v2:*) job_commands="runai training pytorch" ;;
    esac
}

# The command, which differs for one pod and for several, with the job's name, image and number of
# pods.
start_command() {
    choose_job_commands
    case $RUNAI_CLI:$NNODES in
        v1:1) runai_command=(runai submit --name "$1") ;;
        v1:*) runai_command=(runai submit-dist pytorch --name "$1") ;;
        v2:1) runai_command=(runai training standard submit "$1") ;;
        v2:*) runai_command=(runai training pytorch submit "$1") ;;
    esac
    runai_command+=(--project "$RUNAI_PROJECT" --image "$IMAGE")
    # The first pod, the master, is no worker. Running: once the master has ended, the operator ends
    # the pods that still run.
    ((NNODES == 1)) || runai_command+=(--workers $((NNODES - 1)) --clean-pod-policy Running)
}

# Variables of the pods: pod_variables and SECRETS.
add_variables() {
    local variable secret
    for variable in "${pod_variables[@]}"; do
        runai_command+=(-e "$variable")
    done
    for secret in "${SECRETS[@]}"; do # such as WANDB_API_KEY=wandb,key
        if [[ $RUNAI_CLI == v1 ]]; then
            runai_command+=(-e "${secret/=/=SECRET:}") # WANDB_API_KEY=SECRET:wandb,key
        else
            runai_command+=(--env-secret "${secret/,/,key=}") # WANDB_API_KEY=wandb,key=key
        fi
    done
}

# GPUs, cores and memory of each pod, and the node pools.
add_resources() {
    local pool gpus=gpu cores=cpu memory=memory
    if [[ $RUNAI_CLI == v2 ]]; then
        gpus=gpu-devices-request cores=cpu-core-request memory=cpu-memory-request
    fi
    if ((GPUS_PER_NODE)); then
        add_for_each_pod "$gpus" "$GPUS_PER_NODE"
    else
        # Without GPUs, an image of NVIDIA's would see all GPUs of the node
        # (https://github.com/NVIDIA/k8s-device-plugin/issues/61, 2026-11-21).
        runai_command+=(-e NVIDIA_VISIBLE_DEVICES=void)
    fi
    [[ -z $CPUS_PER_NODE ]] || add_for_each_pod "$cores" "$CPUS_PER_NODE"
    [[ -z $MEMORY_PER_NODE ]] || add_for_each_pod "$memory" "$MEMORY_PER_NODE"
    ((LARGE_SHM == 0)) || runai_command+=(--large-shm)
    ((HOST_IPC == 0)) || runai_command+=(--host-ipc)
    if [[ $RUNAI_CLI == v1 ]]; then
        [[ -z $NODE_POOLS ]] || runai_command+=(--node-pools "$NODE_POOLS")
    else
        for pool in ${NODE_POOLS//,/ }; do
            runai_command+=(--node-pools "$pool")
        done
    fi
}

# RDMA between pods. One pod alone, and pods without GPUs, need none. If there are RDMA_RESOURCES,
# and REQUIRE_RDMA is 1, runai/pod.sh refuses a pod without RDMA.
add_rdma() {
    local word
    ((RDMA && NNODES > 1 && GPUS_PER_NODE > 0)) || return 0
    for word in "${RDMA_RESOURCES[@]}"; do
        add_for_each_pod extended-resource "$word"
    done
    for word in "${RDMA_ANNOTATIONS[@]}"; do
        runai_command+=(--annotation "$word")
    done
    ((${#RDMA_RESOURCES[@]} == 0)) || runai_command+=(-e "REQUIRE_RDMA=$REQUIRE_RDMA")
}

# Volumes, and the user whom they know.
add_volumes() {
    local volume # CLAIM:/FOLDER
    for volume in "${VOLUMES[@]}"; do
        runai_command+=(--existing-pvc "claimname=${volume%%:*},path=${volume#*:}")
    done
    [[ -z $RUN_AS_UID ]] || runai_command+=(--run-as-uid "$RUN_AS_UID")
    [[ -z $RUN_AS_GID ]] || runai_command+=(--run-as-gid "$RUN_AS_GID")
}

# How often failed pods are restarted, and whether Run:ai may stop the job for another.
add_restarts() {
    local limit=$RETRIES
    # The operator adds up the restarts of all pods, and fails the job once they reach the limit
    # (PastBackoffLimit in https://github.com/kubeflow/trainer, release-1.9,
    # pkg/controller.v1/common/job.go; 2026-11-21).
    # Each failure restarts all pods, so RETRIES failures are RETRIES * NNODES restarts.
    ((RETRIES == 0 || NNODES == 1)) || limit=$((RETRIES * NNODES + 1))
    runai_command+=(--backoff-limit "$limit")
    # The policy Never would turn a job that is preempted into one that failed.
    [[ $RUNAI_CLI == v1 ]] || add_for_each_pod restart-policy OnFailure
    case $RUNAI_CLI:$PREEMPTIBLE in
        v2:0) runai_command+=(--preemptibility non-preemptible) ;;
        v2:1) runai_command+=(--preemptibility preemptible) ;;
        v1:0)
            die "PREEMPTIBLE=0: CLI v1 has no option for it, its jobs are preemptible;" \
                "leave it empty, or use CLI v2"
            ;;
    esac
}

# Adds an option and its value. CLI v2 takes some options for the workers alone, and wants them once
# more for the master.
add_for_each_pod() {
    runai_command+=("--$1" "$2")
    [[ $RUNAI_CLI == v1 || $NNODES == 1 ]] || runai_command+=("--master-$1" "$2")
}

# Refuses settings that would need quotes, since some versions of the client hand words to a shell.
# The message does not have the value, which may be a key.
refuse_words_with_quotes() {
    local word option=''
    for word in "${runai_command[@]}"; do
        [[ $word != -* ]] || option=${word%%=*}
        [[ ! $word =~ $PLAIN ]] || continue
        [[ ! $word =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || option+=" ${BASH_REMATCH[0]%=}"
        die "the value of $option cannot be handed to runai: letters, digits and ._/:=@%+,- only." \
            "A key goes into a secret of the cluster, which SECRETS names. Variables with other" \
            "values go into env.sh on the volume, as export lines"
    done
}

# The command that each pod runs.
add_command_of_pods() {
    local word
    ((KEEP_ENTRYPOINT)) || runai_command+=(--command) # it replaces the image's own entry point
    runai_command+=(--)
    for word in "$@"; do
        runai_command+=("$(encode "$word")")
    done
}

# Prints a word so that it crosses any client: some versions hand it to a shell on the way.
# runai/pod.sh decodes it.
encode() {
    if [[ $1 =~ $PLAIN && $1 != base64:* ]]; then
        printf '%s\n' "$1" # echo would take -n for an option of its own
    else
        echo "base64:$(printf %s "$1" | base64 | tr -d '\n')"
    fi
}

# ---- print and submit ---------------------------------------------------------------------------

# Prints runai_command so that it can be pasted, one option per line. The functions above refuse or
# encode words that would need quotes.
print_command() {
    local word line='' options=1
    for word in "${runai_command[@]}"; do
        if [[ -n $options && $word == -* ]]; then
            printf '%s \\\n' "$line"
            line="   "
        fi
        [[ $word != -- ]] || options='' # the command of the pods begins
        line+="${line:+ }$word"
    done
    echo "$line"
}

# Submits the job.
submit() {
    "${runai_command[@]}" ||
        die "runai refused the job, see above. To log in: {{ login }}. Your projects: {{ projects }}." \
            "Node pools: {{ pools }}. To use the other generation of the client: RUNAI_CLI=v1 or v2"
}

# Prints the commands with which to look after a job. Argument: its name.
print_next_commands() {
    local job="$1 -p $RUNAI_PROJECT" of=''
    [[ $RUNAI_CLI == v2 ]] || of="job " # describe job NAME, but logs NAME
    echo
    print_row "state, and why it waits:" "$job_commands describe $of$job"
    print_row "follow the first pod:" "$job_commands logs $job --follow"
    print_row "a shell in it:" "$job_commands bash $job"
    print_row "delete:" "$job_commands delete $of$job"
    ((NNODES == 1)) ||
        print_row "another pod:" "--pod $1-worker-0 after logs or bash; the first is $1-master-0"
}

# Prints a line in two columns.
print_row() { printf '%-26s%s\n' "$1" "$2"; }

# ---- pods that wait: runai/interactive.sh -------------------------------------------------------

# Prints how many seconds a time [D-]HH:MM:SS is.
seconds_of() {
    local form='^(([0-9]+)-)?([0-9]+):([0-5][0-9]):([0-5][0-9])$' hours seconds
    [[ $1 =~ $form ]] || die "'$1': expected a time [D-]HH:MM:SS, such as 02:00:00"
    hours=$((10#0${BASH_REMATCH[2]} * 24 + 10#${BASH_REMATCH[3]})) # 10#: 08 is no octal number
    seconds=$((hours * 3600 + 10#${BASH_REMATCH[4]} * 60 + 10#${BASH_REMATCH[5]}))
    ((seconds)) || die "'$1': expected a time above zero"
    echo "$seconds"
}

# Deletes a job of this project and ends the script with runai's exit code. Argument: the job's name.
# A word such as --all would reach runai as an option.
delete_job() {
    [[ $1 =~ ^[a-z][a-z0-9-]*$ ]] ||
        die "--delete '$1': expected the name of one job: lower-case letters, digits and -"
    read_settings
    require_project
    [[ $1 == "$(beginning_of_name "$JOB_PREFIX")"-* ||
        $1 == "$(beginning_of_name "$JOB_PREFIX-shell")"-* ]] ||
        die "--delete '$1': expected a job of this project, whose name begins with" \
            "$(beginning_of_name "$JOB_PREFIX")- (JOB_PREFIX in env.sh); delete others with runai itself"
    find_client
    [[ $RUNAI_CLI == v2 ]] || exec runai delete job "$1" -p "$RUNAI_PROJECT"
    exec runai workload delete "$1" -y -p "$RUNAI_PROJECT"
}

# Prints the names of the pods of a job on several nodes. Argument: the job's name.
pods_of() {
    local worker pods="$1-master-0"
    for ((worker = 0; worker < NNODES - 1; worker++)); do
        pods+=" $1-worker-$worker"
    done
    echo "$pods"
}

# Prints how to enter each pod, and how to run a program in all of them. Argument: the job's name.
print_how_to_enter() {
    local pod pods command="bash $POD_PROJECT_DIR/runai/pod.sh check/ranks.py"
    if ((NNODES == 1)); then
        echo "In the shell:  $command"
        return
    fi
    pods=$(pods_of "$1")
    echo "To open a shell in each pod:"
    for pod in $pods; do
        echo "  $job_commands bash $1 -p $RUNAI_PROJECT --pod $pod"
    done
    echo "To run a program, wait until all pods run, then type the same command in every shell:"
    echo "  $command"
    echo "To run it from here, without shells:"
    echo "  for pod in $pods; do $job_commands exec $1 -p $RUNAI_PROJECT --pod \$pod" \
        "-- $command & done; wait"
}
