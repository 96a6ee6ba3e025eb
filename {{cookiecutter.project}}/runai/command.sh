#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set login = in_quotes(site.commands.get("login", "runai login"))
#? set projects = in_quotes(site.commands.get("accounts", "runai project list"))
#? set pools = in_quotes(site.commands.get("queues", "runai nodepool list"))
# Steps of runai/submit_multinode.sh and runai/interactive.sh that build the command for runai, print it
# and submit the job. They work with the bash of macOS (3.2), as runai/submit.sh does.
# shellcheck disable=SC2034,SC2153,SC2154 # env.sh has the settings; the scripts use what functions set

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
