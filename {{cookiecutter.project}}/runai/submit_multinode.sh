#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# Runs a PyTorch program in the pods of a Run:ai job, one pod per node: {{ site.title }}.
#
#   bash runai/submit_multinode.sh                              check/ranks.py, then training/train_ddp.py
#   bash runai/submit_multinode.sh pi/pi.py --intervals 1e9     any program, with its arguments
#   bash runai/submit_multinode.sh -m package.module            a module, likewise
#   bash runai/submit_multinode.sh --dry-run pi/pi.py           prints the command for runai instead, to be pasted
#   NNODES=4 bash runai/submit_multinode.sh pi/pi.py            a line of env.sh, for one job
#
# The program is looked up in the current folder, then in the project; pods run it in the project's folder.
# Works with both generations of the client (submit-dist, training pytorch submit) and with the bash of macOS. Settings: env.sh.

die() {
    echo "runai/submit_multinode.sh: $*" >&2
    exit 2
}

# Whether pods see this path: it lies below one of VOLUMES.
on_volume() {
    local volume
    for volume in "${VOLUMES[@]}"; do
        [[ $1/ != "${volume#*:}"/* ]] || return 0
    done
    return 1
}

# Prints where pods find a program.
find_program() {
    local file=$1
    [[ -f $file ]] || file=$PROJECT_DIR/$1
    if [[ -f $file ]]; then
        file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
        [[ $file != "$PROJECT_DIR"/* ]] || file=$POD_PROJECT_DIR/${file#"$PROJECT_DIR"/}
        on_volume "$file" || die "'$1': pods do not see $file, which lies neither in the project nor below one of VOLUMES (${VOLUMES[*]})"
    else
        [[ $1 != python* && $1 != torchrun ]] || die "'$1': name the program alone, as in pi/pi.py or -m package.module"
        # from a laptop, what lies on a volume cannot be seen
        { [[ $1 == /* && ! -d $(dirname "$1") ]] && on_volume "$1"; } || die "no program '$1' in $PWD nor in $PROJECT_DIR"
        file=$1
    fi
    echo "$file"
}

# Prints a name for the job that Kubernetes takes, here and with -worker-N after it, and that no other job has.
job_name() {
    local name
    name=$(printf %s "$1" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/^-*//' | cut -c 1-30)
    [[ $name == [a-z]* ]] || name=run-$name
    echo "${name%-}-$(date +%m%d-%H%M%S)-$((RANDOM % 900 + 100))"
}

# Prints an argument as it can cross the client, of which some versions hand it to a shell on the way; pod.sh reads it.
encode() {
    if [[ $1 =~ $PLAIN && $1 != base64:* ]]; then
        echo "$1"
    else
        echo "base64:$(printf %s "$1" | base64 | tr -d '\n')"
    fi
}
PLAIN='^[A-Za-z0-9._/:=@%+,-]+$'

# Finds out which generation of the client is installed, unless RUNAI_CLI says it.
find_client() {
    [[ $RUNAI_CLI =~ ^(v1|v2)?$ ]] || die "RUNAI_CLI='$RUNAI_CLI': expected v1 or v2, or nothing"
    if ! command -v runai >/dev/null; then
        [[ -n $dry && -n $RUNAI_CLI ]] || die "runai was not found; install it, see README.md; --dry-run with RUNAI_CLI=v1 or v2 goes without"
    elif [[ -n $RUNAI_CLI ]]; then
        return
    elif [[ $(runai training pytorch submit --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v2
    elif [[ $(runai submit-dist pytorch --help 2>&1) == *--workers* ]]; then
        RUNAI_CLI=v1
    else
        die "this runai knows neither 'training pytorch submit' (v2) nor 'submit-dist pytorch' (v1): get another version, see README.md"
    fi
}

# shellcheck disable=SC2153 # the settings come from env.sh
# Reads env.sh and checks what can be checked before the pods wait for nodes.
prepare() {
    local given name volume claims
    given=$(compgen -e)
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh" || exit
    forwarded=() # what was set for this job alone
    for name in "${FORWARD[@]}"; do
        ! grep -qx "$name" <<<"$given" || forwarded+=("$name=${!name}")
    done
    [[ -n $RUNAI_PROJECT ]] || die "RUNAI_PROJECT is empty; set it in env.sh ({{ in_quotes(site.commands.get('accounts', 'runai project list')) }} lists yours)"
    [[ $NNODES =~ ^[1-9][0-9]*$ ]] || die "NNODES='$NNODES': expected a whole number of at least 1"
    [[ $GPUS_PER_NODE =~ ^[0-9]+$ ]] || die "GPUS_PER_NODE='$GPUS_PER_NODE': expected a whole number of at least 0"
    [[ $RDMA == 1 && $NNODES != 1 && $GPUS_PER_NODE != 0 ]] || RDMA_ANNOTATIONS=() RDMA_RESOURCES=()
    ((${#RDMA_RESOURCES[@]} == 0)) || forwarded+=("REQUIRE_RDMA=$REQUIRE_RDMA")
    [[ $BACKOFF_LIMIT =~ ^[0-9]+$ ]] || die "BACKOFF_LIMIT='$BACKOFF_LIMIT': expected a whole number of at least 0"
    ((${#VOLUMES[@]})) || die "VOLUMES in env.sh is empty: name the PVC that holds this project, as CLAIM:/FOLDER ({{ in_quotes(site.commands.get('volumes', 'runai pvc list')) }} lists them)"
    for volume in "${VOLUMES[@]}"; do
        [[ $volume == ?*:/?* ]] || die "VOLUMES in env.sh: '$volume' is not CLAIM:/FOLDER"
    done
    if [[ -z $POD_PROJECT_DIR ]]; then
        on_volume "$PROJECT_DIR" ||
            die "this project, $PROJECT_DIR, lies below none of VOLUMES (${VOLUMES[*]}): copy it to one, and set POD_PROJECT_DIR to its folder as pods see it"
        POD_PROJECT_DIR=$PROJECT_DIR
    fi
    on_volume "$POD_PROJECT_DIR" ||
        die "POD_PROJECT_DIR='$POD_PROJECT_DIR' lies below none of VOLUMES (${VOLUMES[*]}): pods would not see the project"
    [[ $POD_PROJECT_DIR =~ $PLAIN ]] || die "POD_PROJECT_DIR='$POD_PROJECT_DIR': use letters, digits and ._/:=@%+,- only"
    [[ ! -d $POD_PROJECT_DIR || -f $POD_PROJECT_DIR/runai/pod.sh ]] ||
        die "there is no runai/pod.sh in POD_PROJECT_DIR='$POD_PROJECT_DIR': copy the project there"
    #? if site.pods.run_as_user
    if [[ -z $RUN_AS_UID$RUN_AS_GID && $POD_PROJECT_DIR -ef $PROJECT_DIR ]]; then
        read -r _ _ RUN_AS_UID RUN_AS_GID _ <<<"$(ls -ldn "$PROJECT_DIR")" # the owner's, as the folder is seen from here
    fi
    [[ $RUN_AS_UID =~ ^[1-9][0-9]*$ && $RUN_AS_GID =~ ^[0-9]+$ ]] ||
        die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected two numbers, yours (not root's) and your group's, as the volume knows them; see env.sh"
    #? else
    [[ $RUN_AS_UID$RUN_AS_GID =~ ^[0-9]*$ ]] || die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected numbers, or nothing"
    #? endif

    find_client
    # A job whose volume does not exist waits for ever, with CLI v1 unseen.
    if [[ -z $dry && $CHECK_VOLUMES == 1 && $RUNAI_CLI == v2 ]] && claims=$(runai pvc list -p "$RUNAI_PROJECT"); then
        for volume in "${VOLUMES[@]}"; do
            grep -qwF -e "${volume%%:*}" <<<"$claims" ||
                die "VOLUMES names '${volume%%:*}', but 'runai pvc list -p $RUNAI_PROJECT' does not; CHECK_VOLUMES=0 submits all the same"
        done
    fi
}

# Fills `submit` with the command that asks for the pods: assemble NAME COMMAND [ARGUMENTS].
assemble() {
    local name=$1 pools volume pair policy=Never
    shift
    workload="training standard" # what CLI v2 calls it
    ((NNODES == 1)) || workload="training pytorch"
    if [[ $RUNAI_CLI == v2 ]]; then
        # shellcheck disable=SC2206 # two words
        submit=(runai $workload submit "$name")
    elif ((NNODES == 1)); then
        submit=(runai submit --name "$name")
    else
        submit=(runai submit-dist pytorch --name "$name")
    fi
    submit+=(--project "$RUNAI_PROJECT" --image "$IMAGE")
    ((NNODES == 1)) || submit+=(--workers $((NNODES - 1)) --clean-pod-policy Running) # the master is a pod more
    if [[ $RUNAI_CLI == v2 ]]; then
        ((GPUS_PER_NODE == 0)) || each gpu-devices-request "$GPUS_PER_NODE"
        each cpu-core-request "$CPUS_PER_NODE"
        each cpu-memory-request "$MEMORY_PER_NODE"
        for pair in ${RDMA_RESOURCES[@]+"${RDMA_RESOURCES[@]}"}; do
            each extended-resource "$pair"
        done
        for pair in ${NODE_POOLS[@]+"${NODE_POOLS[@]}"}; do
            submit+=(--node-pools "$pair")
        done
        case $PREEMPTIBLE in
            "") ;;
            0) submit+=(--preemptibility non-preemptible) ;;
            1) submit+=(--preemptibility preemptible) ;;
            *) die "PREEMPTIBLE='$PREEMPTIBLE': expected 0 or 1, or nothing" ;;
        esac
        ((BACKOFF_LIMIT == 0)) || policy=OnFailure
        each restart-policy $policy
        for pair in ${SECRETS[@]+"${SECRETS[@]}"}; do
            submit+=(--env-secret "${pair/,/,key=}")
        done
    else
        ((GPUS_PER_NODE == 0)) || submit+=(--gpu "$GPUS_PER_NODE")
        [[ -z $CPUS_PER_NODE ]] || submit+=(--cpu "$CPUS_PER_NODE")
        [[ -z $MEMORY_PER_NODE ]] || submit+=(--memory "$MEMORY_PER_NODE")
        for pair in ${RDMA_RESOURCES[@]+"${RDMA_RESOURCES[@]}"}; do
            submit+=(--extended-resource "$pair")
        done
        pools=${NODE_POOLS[*]-}
        [[ -z $pools ]] || submit+=(--node-pools "${pools// /,}")
        [[ $PREEMPTIBLE =~ ^1?$ ]] || die "PREEMPTIBLE='$PREEMPTIBLE': CLI v1 has no option for it, its jobs are preemptible; leave it empty, or use CLI v2"
        for pair in ${SECRETS[@]+"${SECRETS[@]}"}; do
            submit+=(-e "${pair/=/=SECRET:}")
        done
    fi
    for pair in ${RDMA_ANNOTATIONS[@]+"${RDMA_ANNOTATIONS[@]}"}; do
        submit+=(--annotation "$pair")
    done
    for volume in "${VOLUMES[@]}"; do
        submit+=(--existing-pvc "claimname=${volume%%:*},path=${volume#*:}")
    done
    [[ $LARGE_SHM != 1 ]] || submit+=(--large-shm)
    [[ $HOST_IPC != 1 ]] || submit+=(--host-ipc)
    [[ -z $RUN_AS_UID ]] || submit+=(--run-as-uid "$RUN_AS_UID")
    [[ -z $RUN_AS_GID ]] || submit+=(--run-as-gid "$RUN_AS_GID")
    submit+=(--backoff-limit "$BACKOFF_LIMIT")
    for pair in ${forwarded[@]+"${forwarded[@]}"}; do
        submit+=(-e "$pair")
    done
    submit+=(${RUNAI_OPTIONS[@]+"${RUNAI_OPTIONS[@]}"})
    for pair in "${submit[@]}"; do
        [[ $pair =~ $PLAIN ]] ||
            die "'$pair' cannot be handed to runai: letters, digits and ._/:=@%+,- only. Variables with other values go into env.sh on the volume, as export lines"
    done
    [[ $KEEP_ENTRYPOINT == 1 ]] || submit+=(--command) # in place of the image's own entry point
    submit+=(-- "$@")
}

# Adds an option of CLI v2 for the workers and, as --master-…, for the master; nothing for an empty value.
each() {
    [[ -z $2 ]] || submit+=("--$1" "$2")
    [[ -z $2 ]] || ((NNODES == 1)) || submit+=("--master-$1" "$2")
}

# Prints `submit` so that it can be pasted, an option a line; no word of it needs quotes, assemble and encode have seen to that.
show() {
    local word line='' after=
    for word in "${submit[@]}"; do
        if [[ $word == -* && -z $after ]]; then
            printf '%s \\\n' "$line"
            line="   "
        fi
        [[ $word != -- ]] || after=1
        line+="${line:+ }$word"
    done
    echo "$line"
}

# Submits, or shows, and says how to go on.
hand_over() {
    local name=$1 verb="runai $workload" job="$1 -p $RUNAI_PROJECT"
    show
    [[ -z $dry ]] || return 0
    "${submit[@]}" || die "runai refused it, see above. Not logged in: {{ in_quotes(site.commands.get('login', 'runai login')) }}; projects: {{ in_quotes(site.commands.get('accounts', 'runai project list')) }}; node pools: {{ in_quotes(site.commands.get('queues', 'runai nodepool list')) }}; another generation of the client: RUNAI_CLI=v1 or v2"
    echo
    if [[ $RUNAI_CLI == v2 ]]; then
        printf '%-26s%s\n' "state, and why it waits:" "$verb describe $job" "follow the first pod:" "$verb logs $job --follow" \
            "a shell in it:" "$verb bash $job" "delete:" "$verb delete $job"
    else
        printf '%-26s%s\n' "state, and why it waits:" "runai describe job $job" "follow the first pod:" "runai logs $job --follow" \
            "a shell in it:" "runai bash $job" "delete:" "runai delete job $job"
    fi
    ((NNODES == 1)) || printf '%-26s%s\n' "another pod:" "--pod $name-worker-0 after logs or bash; the first is $name-master-0"
}

PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # not realpath: the volume may have another name below
export PROJECT_DIR LC_ALL=C
[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0 # interactive.sh has use for the functions alone

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^$/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
dry=
if [[ ${1:-} == --dry-run ]]; then
    dry=1
    shift
fi
prepare
program=() # and its arguments
case ${1:-} in
    "")
        [[ -f $PROJECT_DIR/check/ranks.py && -f $PROJECT_DIR/training/train_ddp.py ]] ||
            die "no program given, and no check/ranks.py and training/train_ddp.py in $PROJECT_DIR to run instead: name one"
        ;;
    -m) program=("$@") ;;
    -*) die "'$1': options for runai go into RUNAI_OPTIONS of env.sh; name a program" ;;
    *)
        program=("$(find_program "$1")") || exit
        program+=("${@:2}")
        ;;
esac
words=()
for word in ${program[@]+"${program[@]}"}; do
    words+=("$(encode "$word")")
done
name=$(job_name "$JOB_PREFIX")
assemble "$name" bash "$POD_PROJECT_DIR/runai/pod.sh" ${words[@]+"${words[@]}"}
hand_over "$name"
[[ -n $dry ]] || printf '%-26s%s\n' "what each pod printed:" "$POD_PROJECT_DIR/logs/$name.*/"
