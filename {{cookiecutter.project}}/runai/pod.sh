#!/usr/bin/env bash
# What each pod of a job runs; bash runai/submit_multinode.sh has it started, in waiting pods (runai/interactive.sh) you do.
#
#   bash runai/pod.sh                              check/ranks.py, then training/train_ddp.py
#   bash runai/pod.sh pi/pi.py --intervals 1e9     any program, with its arguments
#
# Looks at what the pod was given (volume, user, torch, RDMA), then becomes launch/torchrun.sh. Its exit code is torchrun's: 0, or not 0. All that
# is printed goes to logs/JOB.UUID/podRANK.log on the volume too, which outlives the pod. Settings: env.sh.

die() {
    echo "runai/pod.sh in $HOSTNAME: $*" >&2
    exit 2
}

# Whether a folder lies on something that was mounted into the pod, not in its image.
mounted() {
    local point
    while read -r _ _ _ _ point _; do
        [[ $point == / || $1/ != "$point"/* ]] || return 0
    done </proc/self/mountinfo
    return 1
}

# Prints the GID index of RoCE v2 over IPv4, the same for all RDMA ports below the folder; nothing if there is none or if they differ.
roce_gid_index() {
    local port gid index lowest common=
    for port in "$1"/*/ports/*; do
        [[ $(cat "$port/link_layer" 2>/dev/null) == Ethernet ]] || continue # InfiniBand has no such thing
        [[ $(cat "$port/state" 2>/dev/null) == *ACTIVE* ]] || continue      # NCCL leaves out the others too
        lowest=
        for gid in "$port"/gids/*; do
            index=${gid##*/}
            [[ $(cat "$gid" 2>/dev/null) == 0000:0000:0000:0000:0000:ffff:* ]] || continue
            # what belongs to another pod's network is listed, but cannot be read
            [[ $(cat "$port/gid_attrs/types/$index" 2>/dev/null) == "RoCE v2" ]] || continue
            [[ -n $lowest ]] && ((lowest < index)) || lowest=$index
        done
        [[ -n $lowest ]] || continue
        [[ -z $common || $common == "$lowest" ]] || return 0
        common=$lowest
    done
    echo "$common"
}

# Runs one program. This script is process 1 of the pod, to which alone goes the signal that ends a pod.
run() {
    local code=0
    [[ -z $signalled ]] || return 143
    echo "$(date '+%F %T') $*"
    "$PROJECT_DIR/launch/torchrun.sh" "$@" &
    child=$!
    [[ -z $signalled ]] || kill -TERM "$child" # it came just now
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # the signal ended the wait, not yet the program
        code=0
        wait "$child" || code=$?
    done
    return $code
}

# Waits until the log is written: with process 1 the kernel ends all others. Not for long, as a lost process may hold it open.
# shellcheck disable=SC2329 # called when the script ends
finish() {
    exec >&- 2>&-
    for _ in {1..50}; do
        kill -0 "$tee" || return 0
        sleep 0.1
    done
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^$/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export PROJECT_DIR
pod=${PET_NODE_RANK:-${RANK:-0}}
rdma_required=${REQUIRE_RDMA:-0} # by the submission, which knows what it asked for; env.sh has its default
# A user whom the image does not know has no home; programs write caches there.
[[ -w ${HOME:-/nowhere} ]] || export HOME=/tmp
export USER=${USER:-$(id -u)}

[[ -f $PROJECT_DIR/launch/torchrun.sh ]] || die "there is no launch/ in $PROJECT_DIR: copy the whole project to the volume"
mounted "$PROJECT_DIR" || die "$PROJECT_DIR lies in the image, not on a volume, and would be gone with the pod; see VOLUMES in env.sh"
RUN_DIR="$PROJECT_DIR/logs/${RUNAI_JOB_NAME:-${JOB_NAME:-run}}.${RUNAI_JOB_UUID:-${JOB_UUID:-$(date +%Y%m%d)}}"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh"
{ make_logs_folder && mkdir -p "$RUN_DIR"; } || die "cannot write below $PROJECT_DIR as user $(id -u), group $(id -g): the volume belongs to others; see RUN_AS_UID in env.sh"
export RUN_DIR
log="$RUN_DIR/pod$pod.log"
exec > >(trap '' INT TERM && exec tee -a "$log") 2>&1
tee=$!
trap finish EXIT
child='' signalled=''
trap 'signalled=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' INT TERM

cd "$PROJECT_DIR" || exit
# shellcheck source=/dev/null
source env.sh
# shellcheck source=/dev/null
source launch/software.sh
set_up_software || exit
set -euo pipefail
arguments=()
for word in "$@"; do
    if [[ $word == base64:* ]]; then # what has characters that some clients would change; x keeps a line's end
        text=$(base64 -d <<<"${word#base64:}" && echo x) || die "'$word' cannot be decoded"
        word=${text%x}
    fi
    arguments+=("$word")
done
find_program "${arguments[@]}" >/dev/null || exit

echo "$(date '+%F %T') pod $pod: $HOSTNAME on ${NODE_NAME:-a node}, user $(id -u), ${RUNAI_NUM_OF_GPUS:-no} GPU(s), job ${RUN_DIR##*/}"
"$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
    die "$PYTHON of this image has no torch; set another IMAGE, or RUNTIME=venv with a VENV on the volume (env.sh)"
rdma=/sys/class/infiniband # of the whole node; what a pod may use are the devices below /dev
if compgen -G "/dev/infiniband/uverbs*" >/dev/null; then
    index=$(roce_gid_index $rdma)
    echo "RDMA: $(cd $rdma && echo *), GID index ${index:--}, locked memory $(ulimit -l)"
    if [[ -n $index && -z ${NCCL_IB_GID_INDEX:-} ]]; then
        # NCCL before 2.26 looks for the index itself and stops at the first that is another pod's; before 2.21 it takes 0
        # (https://github.com/NVIDIA/nccl/issues/1573, fixed in 2.26.2; 2026-08-20). Later ones may use several ports that differ,
        # and are better left alone: worth the second that it takes to ask.
        nccl=$("$PYTHON" -c 'import torch; print(*torch.cuda.nccl.version()[:2])' 2>/dev/null) || nccl="0 0" # none
        read -r major minor <<<"$nccl"
        if ((major == 2 && minor < 26)); then
            export NCCL_IB_GID_INDEX=$index
            echo "NCCL $major.$minor: NCCL_IB_GID_INDEX=$index"
        fi
    fi
elif [[ $rdma_required == 1 ]]; then
    die "no /dev/infiniband in this pod: RDMA_RESOURCES in env.sh are not what this cluster has; RDMA=0 goes without"
fi

code=0
if ((${#arguments[@]})); then
    run "${arguments[@]}" || code=$?
else
    run check/ranks.py || code=$?
    if ((code == 0)); then # on another port: the other pods may still hold the first one
        port=$((${PET_MASTER_PORT:-${MASTER_PORT:-29500}} + 1))
        export MASTER_PORT=$port ${PET_MASTER_PORT:+PET_MASTER_PORT=$port}
        run training/train_ddp.py || code=$?
    fi
fi
((code == 0)) || echo "runai/pod.sh in $HOSTNAME: ended with exit code $code; all that was printed: $log"
exit $code
