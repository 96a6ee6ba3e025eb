#!/usr/bin/env bash
# The steps of runai/pod.sh as functions, in the order in which it takes them. They run in the pods.
# shellcheck disable=SC2034,SC2153,SC2154 # env.sh has the settings; runai/pod.sh uses what functions set

if [[ ! -f $PROJECT_DIR/launch/torchrun.sh ]]; then
    echo "runai/pod.sh in $HOSTNAME: there is no launch/ in $PROJECT_DIR:" \
        "copy the whole project to the volume" >&2
    exit 2
fi
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/project.sh" "runai/pod.sh in $HOSTNAME"

# ---- look at the volume, keep a log -------------------------------------------------------------

# Refuses a project that lies in the pod's image, which is gone with the pod.
require_volume() {
    mounted "$PROJECT_DIR" ||
        die "$PROJECT_DIR lies in the image, and would be gone with the pod:" \
            "copy the project to a volume, and name that in VOLUMES of env.sh"
}

# Whether a folder lies on a volume that was mounted into the pod: on any file system but the
# image's.
mounted() {
    local point
    while read -r _ _ _ _ point _; do
        [[ $point == / || $1/ != "$point"/* ]] || return 0
    done </proc/self/mountinfo
    return 1
}

# Exports HOME and USER. A user whom the image does not know has neither, and programs write caches
# to HOME.
set_home() {
    [[ -w ${HOME:-/nowhere} ]] || export HOME=/tmp
    export USER=${USER:-$(id -u)}
}

# Copies all further output to a file on the volume, which outlives the pod. Exports RUN_DIR, the
# folder of this job's logs. Sets pod (this pod's number, from 0), log (the file) and tee (its
# writer, a process).
start_log() {
    # Jobs of CLI v1 have JOB_NAME and JOB_UUID.
    local job=${RUNAI_JOB_NAME:-${JOB_NAME:-run}}
    local uuid=${RUNAI_JOB_UUID:-${JOB_UUID:-$(date +%Y%m%d)}}
    pod=${PET_NODE_RANK:-${RANK:-0}}
    export RUN_DIR="$PROJECT_DIR/logs/$job.$uuid"
    { make_logs_folder && mkdir -p "$RUN_DIR" && RUN_DIR=$(realpath "$RUN_DIR"); } ||
        die "cannot write below $PROJECT_DIR as user $(id -u), group $(id -g):" \
            "set RUN_AS_UID and RUN_AS_GID in env.sh to the owner of the volume"
    log=$RUN_DIR/pod$pod.log
    exec > >(trap '' INT TERM && exec tee -a "$log") 2>&1
    tee=$!
    trap finish_log EXIT
}

# Reads the extras. What they print when this script ends comes into the log, too.
read_extras_of_pod() {
    read_extras
    trap 'leave_extras; finish_log' EXIT
}

# Waits until the log is written: when this script, process 1 of the pod, ends, the kernel kills
# tee. The wait ends after 5 s, since a process that the program left behind may keep the log open.
# shellcheck disable=SC2329 # called when the script ends
finish_log() {
    exec >&- 2>&-
    for _ in {1..50}; do
        kill -0 "$tee" || return 0
        sleep 0.1
    done
}

# ---- hand on the signal that ends a pod ---------------------------------------------------------

# Arranges that the program gets SIGTERM, too. Kubernetes sends it to process 1 of a pod alone,
# which is this script. Sets signalled (1 after a signal) and child (the process of torchrun.sh),
# both empty at first.
hand_on_signals() {
    child='' signalled=''
    trap on_signal INT TERM
}

# Notes the signal and hands it on.
# shellcheck disable=SC2329 # called by the trap
on_signal() {
    signalled=1
    [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
}

# ---- look at the arguments, torch and RDMA ------------------------------------------------------

# Sets arguments to the script's arguments. Those that some clients would change arrive as base64:…
decode_arguments() {
    local word text
    arguments=()
    for word in "$@"; do
        if [[ $word == base64:* ]]; then
            text=$(base64 -d <<<"${word#base64:}" && echo x) || die "argument '$word' is no base64"
            word=${text%x} # without the x, $(…) would remove newlines from the end of the word
        fi
        arguments+=("$word")
    done
}

# Prints where the program runs.
describe_pod() {
    say "pod $pod: $HOSTNAME on ${NODE_NAME:-a node}, user $(id -u)," \
        "${RUNAI_NUM_OF_GPUS:-?} GPU(s), job ${RUN_DIR##*/}"
}

# Refuses a Python without torch. It imports nothing: importing torch takes a second.
require_torch() {
    "$PYTHON" -c \
        'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
        die "$PYTHON does not start here, or has no torch; set another IMAGE," \
            "or RUNTIME=venv with a VENV on the volume (env.sh)"
}

# Prints the RDMA devices, and sets NCCL_IB_GID_INDEX if NCCL needs it. Argument: 1 refuses a pod
# without RDMA.
set_up_rdma() {
    local index devices=/sys/class/infiniband # of the node; a pod may use those of /dev/infiniband
    if ! compgen -G "/dev/infiniband/uverbs*" >/dev/null; then
        [[ $1 != 1 ]] ||
            die "no /dev/infiniband in this pod:" \
                "set RDMA_RESOURCES in env.sh to those of this cluster, or RDMA=0 to use TCP"
        return 0
    fi
    index=$(roce_gid_index "$devices")
    echo "RDMA of the node: $(cd "$devices" && echo *), GID index ${index:--}," \
        "locked memory $(ulimit -l)"
    set_gid_index_for_old_nccl "$index"
}

# Prints the GID index of RoCE v2 over IPv4 that the active Ethernet ports of a folder share; ports
# without one do not count. Prints nothing if there is none, or if the ports have different ones.
roce_gid_index() {
    local port gid index lowest common=
    for port in "$1"/*/ports/*; do
        # InfiniBand needs no index, and NCCL uses active ports alone.
        [[ $(cat "$port/link_layer" 2>/dev/null) == Ethernet ]] || continue
        [[ $(cat "$port/state" 2>/dev/null) == *ACTIVE* ]] || continue
        lowest=
        for gid in "$port"/gids/*; do
            index=${gid##*/}
            [[ $(cat "$gid" 2>/dev/null) == 0000:0000:0000:0000:0000:ffff:* ]] || continue # IPv4
            # The kernel also lists GIDs of other pods' networks, but their type cannot be read.
            [[ $(cat "$port/gid_attrs/types/$index" 2>/dev/null) == "RoCE v2" ]] || continue
            if [[ -z $lowest ]] || ((index < lowest)); then
                lowest=$index
            fi
        done
        [[ -n $lowest ]] || continue
        [[ -z $common || $common == "$lowest" ]] || return 0
        common=$lowest
    done
    echo "$common"
}

# Exports NCCL_IB_GID_INDEX for NCCL before 2.26, unless env.sh has set it. Argument: the index, or
# ''. An NCCL before 2.21 takes index 0. Up to 2.25 it looks for the index, but stops at the first
# GID of another pod (https://github.com/NVIDIA/nccl/issues/1573, 2026-08-20). A later NCCL may use
# ports with different indices, so it is left alone. To ask for the version takes a second.
set_gid_index_for_old_nccl() {
    local version major minor
    [[ -n $1 && -z ${NCCL_IB_GID_INDEX:-} ]] || return 0
    version=$("$PYTHON" -c 'import torch; print(*torch.cuda.nccl.version()[:2])' 2>/dev/null) ||
        return 0 # torch without NCCL
    read -r major minor <<<"$version"
    if ((major == 2 && minor < 26)); then
        export NCCL_IB_GID_INDEX=$1
        echo "NCCL $major.$minor: NCCL_IB_GID_INDEX=$1"
    fi
}

# ---- launch -------------------------------------------------------------------------------------

# Runs a program with launch/torchrun.sh. Sets code to its exit code, or to what an extra makes of it,
# also if a signal has interrupted the wait for it. RANK_PREFIX stands before what
# extras put there: what they set for the ranks is not for a program of the user's.
launch() {
    code=0
    if [[ -n $signalled ]]; then
        code=143
        return
    fi
    rank_prefix=("${RANK_PREFIX[@]}")
    call_extras before_launch
    say "$*"
    "${rank_prefix[@]}" bash "$PROJECT_DIR/launch/torchrun.sh" "$@" &
    child=$!
    start_beside
    [[ -z $signalled ]] || kill -TERM "$child" # the signal came before child was set
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal has ended the wait, but not yet the program
        code=0
        wait "$child" || code=$?
    done
    child=''
    end_beside
    call_extras after_launch
}
