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
# Works with both generations of the client (submit-dist, training pytorch submit) and with the bash of macOS (3.2). Settings: env.sh.

unset CDPATH # cd would go elsewhere, and say so
PLAIN='^[A-Za-z0-9._/:=@%+,-]+$' # what reaches the pod as it is, whatever hands it on

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
find_in_pods() {
    local file=$1
    refuse_launch_command "$@"
    [[ -e $file ]] || file=$PROJECT_DIR/$1
    if [[ -e $file ]]; then
        refuse_other_than_python "$file"
        [[ " ${forwarded[*]:-} " == *" NPROC_PER_NODE="* ]] || ! starts_its_own_ranks "$file" ||
            die "$file starts its own ranks, so it has to be started once per pod: NPROC_PER_NODE=1 bash runai/submit_multinode.sh $1, and let its ranks meet by env://, not by tcp://"
        file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
        [[ $file != "$PROJECT_DIR"/* ]] || file=$POD_PROJECT_DIR/${file#"$PROJECT_DIR"/}
        on_volume "$file" || die "'$1': pods do not see $file, which lies neither in the project nor below one of VOLUMES (${VOLUMES[*]})"
    else
        # from a laptop, what lies on a volume cannot be seen
        { [[ $1 == /* && ! -d $(dirname "$1") ]] && on_volume "$1"; } || program_not_found "$1"
        file=$1
    fi
    echo "$file"
}

# Prints a name for the job that Kubernetes takes, here and with -worker-N after it, and that no other job has.
job_name() {
    local name
    name=$(printf %s "$1" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/^-*//' | cut -c 1-30)
    [[ $name == [a-z]* ]] || name=run-$name
    echo "${name%-}-$(date +%m%d-%H%M%S)-$((RANDOM % 9000 + 1000))"
}

# Prints an argument as it can cross the client, of which some versions hand it to a shell on the way; pod.sh reads it.
encode() {
    if [[ $1 =~ $PLAIN && $1 != base64:* ]]; then
        echo "$1"
    else
        echo "base64:$(printf %s "$1" | base64 | tr -d '\n')"
    fi
}

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
    source "$PROJECT_DIR/env.sh"
    forwarded=() # what was set for this job alone
    for name in "${FORWARD[@]}"; do
        ! grep -qx "$name" <<<"$given" || forwarded+=("$name=${!name}")
    done
    [[ -n $RUNAI_PROJECT ]] || die "RUNAI_PROJECT is empty; set it in env.sh ({{ in_quotes(site.commands.get('accounts', 'runai project list')) }} lists yours)"
    [[ $NNODES =~ ^[1-9][0-9]*$ ]] || die "NNODES='$NNODES': expected a whole number of at least 1"
    for name in GPUS_PER_NODE RETRIES; do
        [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || die "$name='${!name}': expected a whole number of at least 0"
    done
    for name in RDMA REQUIRE_RDMA LARGE_SHM HOST_IPC KEEP_ENTRYPOINT CHECK_VOLUMES; do
        [[ ${!name} == [01] ]] || die "$name='${!name}': expected 0 or 1"
    done
    for name in "${SECRETS[@]}"; do
        [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*=[^=,]+,[^=,]+$ ]] || die "SECRETS in env.sh: '$name' is not VARIABLE=SECRET,KEY"
    done
    # without GPUs an image of NVIDIA's sees all of the node's (https://github.com/NVIDIA/k8s-device-plugin/issues/61, 2026-11-21)
    ((GPUS_PER_NODE)) || forwarded+=(NVIDIA_VISIBLE_DEVICES=void)
    ((RDMA && NNODES > 1 && GPUS_PER_NODE > 0)) || RDMA_ANNOTATIONS=() RDMA_RESOURCES=()
    ((${#RDMA_RESOURCES[@]} == 0)) || forwarded+=("REQUIRE_RDMA=$REQUIRE_RDMA")
    ((${#VOLUMES[@]})) || die "VOLUMES in env.sh is empty: name the PVC that holds this project, as CLAIM:/FOLDER ({{ in_quotes(site.commands.get('volumes', 'runai pvc list')) }} lists them)"
    for volume in "${VOLUMES[@]}"; do
        [[ $volume =~ ^[^:,]+:/[^:,]*[^:,/]$ ]] || die "VOLUMES in env.sh: '$volume' is not CLAIM:/FOLDER (no / at the end, no :ro)"
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
    if [[ -z $RUN_AS_UID$RUN_AS_GID && $POD_PROJECT_DIR -ef $PROJECT_DIR ]]; then # the owner's, as the folder is seen from here
        [[ -O $PROJECT_DIR ]] || die "$PROJECT_DIR is not yours: submit from a copy of your own, or set RUN_AS_UID and RUN_AS_GID"
        read -r _ _ RUN_AS_UID RUN_AS_GID _ <<<"$(ls -ldn "$PROJECT_DIR")"
    fi
    [[ $RUN_AS_UID =~ ^[1-9][0-9]*$ && $RUN_AS_GID =~ ^[0-9]+$ ]] ||
        die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected two numbers, yours (not root's) and your group's, as the volume knows them; see env.sh"
    #? else
    [[ $RUN_AS_UID$RUN_AS_GID =~ ^[0-9]*$ ]] || die "RUN_AS_UID='$RUN_AS_UID' RUN_AS_GID='$RUN_AS_GID': expected numbers, or nothing"
    #? endif

    find_client
    # A job whose volume does not exist waits for ever, with CLI v1 unseen; who lists volumes depends on the generation.
    local list=(runai pvc list -p "$RUNAI_PROJECT")
    [[ $RUNAI_CLI == v2 ]] || list=(kubectl get pvc --namespace "runai-$RUNAI_PROJECT")
    if [[ -z $dry && $CHECK_VOLUMES == 1 ]] && claims=$("${list[@]}" 2>/dev/null); then
        for volume in "${VOLUMES[@]}"; do
            awk -v claim="${volume%%:*}" '{ for (i = 1; i <= NF; i++) found += $i == claim } END { exit !found }' <<<"$claims" ||
                die "VOLUMES names '${volume%%:*}', but '${list[*]}' does not; CHECK_VOLUMES=0 submits all the same"
        done
    fi
}

# Fills `submit` with the command that asks for the pods: assemble NAME COMMAND [ARGUMENTS].
assemble() {
    local name=$1 gpus=gpu cores=cpu memory=memory word
    shift
    case $RUNAI_CLI:$NNODES in
        v1:1) verb=runai submit=(runai submit --name "$name") ;;
        v1:*) verb=runai submit=(runai submit-dist pytorch --name "$name") ;;
        v2:1) verb="runai training standard" submit=(runai training standard submit "$name") ;;
        v2:*) verb="runai training pytorch" submit=(runai training pytorch submit "$name") ;;
    esac
    [[ $RUNAI_CLI == v1 ]] || gpus=gpu-devices-request cores=cpu-core-request memory=cpu-memory-request
    submit+=(--project "$RUNAI_PROJECT" --image "$IMAGE")
    ((NNODES == 1)) || submit+=(--workers $((NNODES - 1)) --clean-pod-policy Running) # the master is a pod more
    ((GPUS_PER_NODE == 0)) || each "$gpus" "$GPUS_PER_NODE"
    each "$cores" "$CPUS_PER_NODE"
    each "$memory" "$MEMORY_PER_NODE"
    for word in "${RDMA_RESOURCES[@]}"; do
        each extended-resource "$word"
    done
    for word in "${RDMA_ANNOTATIONS[@]}"; do
        submit+=(--annotation "$word")
    done
    for word in "${VOLUMES[@]}"; do
        submit+=(--existing-pvc "claimname=${word%%:*},path=${word#*:}")
    done
    ((LARGE_SHM == 0)) || submit+=(--large-shm)
    ((HOST_IPC == 0)) || submit+=(--host-ipc)
    [[ -z $RUN_AS_UID ]] || submit+=(--run-as-uid "$RUN_AS_UID")
    [[ -z $RUN_AS_GID ]] || submit+=(--run-as-gid "$RUN_AS_GID")
    # The operator adds up the restarts of all pods (PastBackoffLimit in https://github.com/kubeflow/trainer, release-1.9,
    # pkg/controller.v1/common/job.go; 2026-11-21). Never would turn a job that is preempted into one that failed.
    submit+=(--backoff-limit $((RETRIES && NNODES > 1 ? RETRIES * NNODES + 1 : RETRIES)))
    case $RUNAI_CLI:$PREEMPTIBLE in
        v1: | v2: | v1:1) ;;
        v2:0) submit+=(--preemptibility non-preemptible) ;;
        v2:1) submit+=(--preemptibility preemptible) ;;
        v1:0) die "PREEMPTIBLE=0: CLI v1 has no option for it, its jobs are preemptible; leave it empty, or use CLI v2" ;;
        *) die "PREEMPTIBLE='$PREEMPTIBLE': expected 0 or 1, or nothing" ;;
    esac
    if [[ $RUNAI_CLI == v1 ]]; then
        [[ -z $NODE_POOLS ]] || submit+=(--node-pools "$NODE_POOLS")
        for word in "${SECRETS[@]}"; do
            submit+=(-e "${word/=/=SECRET:}")
        done
    else
        each restart-policy OnFailure
        for word in ${NODE_POOLS//,/ }; do
            submit+=(--node-pools "$word")
        done
        for word in "${SECRETS[@]}"; do
            submit+=(--env-secret "${word/,/,key=}")
        done
    fi
    for word in "${forwarded[@]}"; do
        submit+=(-e "$word")
    done
    submit+=("${RUNAI_OPTIONS[@]}")
    for word in "${submit[@]}"; do
        [[ $word =~ $PLAIN ]] ||
            die "'$word' cannot be handed to runai: letters, digits and ._/:=@%+,- only. Variables with other values go into env.sh on the volume, as export lines"
    done
    ((KEEP_ENTRYPOINT)) || submit+=(--command) # in place of the image's own entry point
    submit+=(-- "$@")
}

# Adds an option, unless its value is empty; CLI v2 wants it once more for the master.
each() {
    [[ -n $2 ]] || return 0
    submit+=("--$1" "$2")
    [[ $RUNAI_CLI == v1 || $NNODES == 1 ]] || submit+=("--master-$1" "$2")
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
    local job="$1 -p $RUNAI_PROJECT" of='' # v1: describe job NAME, but logs NAME
    [[ $RUNAI_CLI == v2 ]] || of="job "
    show
    [[ -z $dry ]] || return 0
    "${submit[@]}" || die "runai refused it, see above. Not logged in: {{ in_quotes(site.commands.get('login', 'runai login')) }}; projects: {{ in_quotes(site.commands.get('accounts', 'runai project list')) }}; node pools: {{ in_quotes(site.commands.get('queues', 'runai nodepool list')) }}; another generation of the client: RUNAI_CLI=v1 or v2"
    printf '%-26s%s\n' "" "" "state, and why it waits:" "$verb describe $of$job" "follow the first pod:" "$verb logs $job --follow" \
        "a shell in it:" "$verb bash $job" "delete:" "$verb delete $of$job"
    ((NNODES == 1)) || printf '%-26s%s\n' "another pod:" "--pod $1-worker-0 after logs or bash; the first is $1-master-0"
}

PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # not realpath: the volume may have another name below
export PROJECT_DIR LC_ALL=C
[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0 # interactive.sh has use for the functions alone

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^$/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
[[ " $* " != *" # "* ]] || die "'#' is an argument: your shell takes comments for a part of the command, leave them out"
dry=
if [[ ${1:-} == --dry-run ]]; then
    dry=1
    shift
fi
prepare
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh"
program=() # and its arguments
case ${1:-} in
    "")
        [[ -f $PROJECT_DIR/check/ranks.py && -f $PROJECT_DIR/training/train_ddp.py ]] ||
            die "no program given, and no check/ranks.py and training/train_ddp.py in $PROJECT_DIR to run instead: name one"
        ;;
    -m)
        [[ -n ${2:-} ]] || die "-m: name a module, as in -m package.module"
        program=("$@")
        ;;
    -*) die "'$1': options for runai go into RUNAI_OPTIONS of env.sh; name a program" ;;
    *)
        program=("$(find_in_pods "$@")") || exit
        program+=("${@:2}")
        ;;
esac
words=()
for word in "${program[@]}"; do
    words+=("$(encode "$word")")
done
name=$(job_name "$JOB_PREFIX")
assemble "$name" bash "$POD_PROJECT_DIR/runai/pod.sh" "${words[@]}"
hand_over "$name"
[[ -n $dry ]] || printf '%-26s%s\n' "what each pod printed:" "$POD_PROJECT_DIR/logs/$name.*/"
