#!/usr/bin/env bash
# Looks at every node of a job before the ranks start: one line, with the fix, for each node that would fail them.
#
#   slurm/preflight.sh [NAME|PATH …]     in a job or salloc; slurm/submit_multinode.sh calls it first, unless PREFLIGHT=0
#
# Each NAME has to be a command on every node, each PATH readable there. Beside these: names, the way to the master and its
# port, clocks, folders, cores, GPUs and their driver, RDMA. Exit code: 0 all nodes are fit, 1 not, 2 called wrongly.
#
# Read from the environment, all optional:
#   MASTER_ADDR, MASTER_PORT   where the ranks will meet                          (the first node, 29500)
#   RUN_DIR                    folder of the ranks' logs                          (the current folder)
#   MIN_FREE_GB                GiB to be left there and in the current folder     (1)
#   PREFLIGHT_TIMEOUT          seconds until a node counts as hanging             (30)
set -u
export LC_ALL=C # messages are compared

# ---- on each node ----------------------------------------------------------------------------------------------------

# tell KIND TEXT: a fault, a warning, "at" before what may hang, or something to be compared with the other nodes
tell() {
    printf '%s\t%s\t%s\n' "$SLURMD_NODENAME" "$1" "$2" # one write, which srun does not mix with another node's
}

# look_at_folder FOLDER GIB [warning]: it can be written to, and so many GiB are left
look_at_folder() {
    local answer free kind=${3:-fault} probe=$1/$mark.$SLURMD_NODENAME
    tell at "$1"
    # A quota that is used up shows only in writing, on some file systems only when the data leave the node: fsync.
    if [[ ! -d $1 ]]; then
        tell "$kind" "no folder $1: put it on a file system that all nodes share"
    elif ! answer=$(dd if=/dev/zero of="$probe" bs=16k count=1 conv=fsync status=none 2>&1); then
        tell "$kind" "cannot write to $1 (${answer##*: }): free space there, or look at its rights"
    elif free=$((($(stat -f -c '%b ? %a * %S : 1 << 60' "$1")) >> 20)) && ((free < $2 * 1024)); then # some do not count: 0
        tell "$kind" "$1 has $free MiB left, not $2 GiB: free space there, or set MIN_FREE_GB"
    elif [[ $1 == "$RUN_DIR" && ! -e $1/$mark ]]; then
        tell fault "$1 is another folder than on the first node: put the project on a file system that all nodes share"
    fi
    rm -f "$probe"
}

look_at_network() {
    local address answer
    tell at "its own name"
    address=$(getent ahosts "$(uname -n)") # not $HOSTNAME, which may come from where the job was submitted
    if [[ -z $address ]]; then
        tell fault "its own name $(uname -n) does not resolve: tell your site"
    elif [[ $address == 127.* && -z ${GLOO_SOCKET_IFNAME:-} ]] && ((SLURM_JOB_NUM_NODES > 1)); then # NCCL does not care
        tell warning "its own name leads to ${address%% *}: for ranks on CPUs set GLOO_SOCKET_IFNAME in env.sh"
    fi
    tell at "$MASTER_ADDR:$MASTER_PORT"
    answer=$(timeout 3 bash -c ": </dev/tcp/$MASTER_ADDR/$MASTER_PORT" 2>&1 && echo "in use")
    if [[ $answer == "in use" ]]; then
        ((SLURM_NODEID > 0)) || tell fault "the master's port $MASTER_PORT is in use: submit again, which takes another"
    elif [[ $answer != *refused* ]]; then # the answer of a master that can be reached, as nobody listens yet
        answer=${answer%%$'\n'*} answer=${answer##*: } # the reason; without one, the time was up
        tell fault "cannot reach $MASTER_ADDR:$MASTER_PORT (${answer:-no answer in 3 s}): set MASTER_ADDR_SUFFIX in env.sh"
    fi
}

look_at_software() {
    local need
    for need; do
        tell at "$need"
        if [[ $need != */* ]]; then
            type -P "$need" >/dev/null || tell fault "no command $need: name its module in MODULES of env.sh"
        elif [[ ! -r $need ]]; then
            [[ ! -L $need ]] || need+=" -> $(readlink -m "$need")" # mostly a venv made from a Python of the login node
            tell fault "cannot read $need: put it on a file system that all nodes share"
        fi
    done
}

look_at_hardware() {
    local list=(nvidia-smi -L) answer seen wrong cores
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # it would obey them
    ((cores > 1 || ${SLURM_CPUS_PER_TASK:-1} == 1)) ||
        tell fault "one core, not SLURM_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK: export SLURM_CPU_BIND=none in env.sh"
    answer=$(cat /sys/class/infiniband/*/ports/*/state /sys/class/net/hsn*/operstate 2>/dev/null)
    tell "active RDMA ports" "$(grep -cE 'ACTIVE$|^up$' <<<"$answer")"
    ((${SLURM_GPUS_ON_NODE:-0} > 0)) || return 0
    tell "GPU driver" "$({ cat /sys/module/nvidia/version || cat /sys/module/amdgpu/version || echo 0; } 2>/dev/null)"
    type -P nvidia-smi >/dev/null || list=(rocm-smi --showuniqueid)
    type -P "${list[0]}" >/dev/null || return 0
    tell at "${list[*]}"
    answer=$("${list[@]}" 2>&1)
    seen=$(grep -cE '^ *(GPU|MIG)' <<<"$answer") wrong=$(grep -m 1 -iE 'unable|error|fail' <<<"$answer") # MIG: a part of one
    ((seen >= SLURM_GPUS_ON_NODE)) || tell fault "${list[*]} sees $seen GPU(s), not $SLURM_GPUS_ON_NODE${wrong:+ ($wrong)}"
}

if [[ ${1:-} == --node ]]; then
    mark=$2
    tell clock "$(date +%s)"
    look_at_folder "$RUN_DIR" "$MIN_FREE_GB"
    [[ $3 == "$RUN_DIR" ]] || look_at_folder "$3" "$MIN_FREE_GB" warning # a program may write elsewhere
    look_at_folder /tmp 0
    look_at_folder /dev/shm 0
    look_at_network
    look_at_software "${@:4}"
    look_at_hardware
    tell at end
    exit
fi

# ---- on the first node, or where salloc was called: starts the above, compares, prints -------------------------------

die() {
    echo "slurm/preflight.sh: $*" >&2
    exit 2
}

blame() {
    faults[$1]+="${faults[$1]:+; }$2"
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^set/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
[[ -n ${SLURM_JOB_ID:-} ]] || die "there is no job: call it in one, as in salloc --nodes=2 bash slurm/preflight.sh"
export RUN_DIR=${RUN_DIR:-$PWD} MASTER_PORT=${MASTER_PORT:-29500} MIN_FREE_GB=${MIN_FREE_GB:-1}
[[ $MIN_FREE_GB =~ ^[0-9]+$ ]] || die "MIN_FREE_GB='$MIN_FREE_GB': expected a whole number of GiB"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}${MASTER_ADDR_SUFFIX:-}}
mark=.preflight.$SLURM_JOB_ID.$$
trap 'rm -f "$RUN_DIR/$mark"* "$PWD/$mark"*' EXIT # a node that hangs leaves its own behind
: 2>/dev/null >"$RUN_DIR/$mark" # every node has to see it; if it cannot be written, they say why

# The text of this file is handed over, since its folder may be what a node does not see. --overlap: Slurm lets go of this
# step a moment late, and the ranks' step would wait. --foreground: Ctrl-C reaches srun.
lines=$(timeout --foreground -k 5 "${PREFLIGHT_TIMEOUT:-30}" srun --overlap --export=ALL --input=none \
    --nodes=${#hosts[@]} --ntasks=${#hosts[@]} --ntasks-per-node=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    bash -c "$(<"${BASH_SOURCE[0]}")" preflight.sh --node "$mark" "$PWD" "$@" 2>&1)

declare -A at=() facts=() faults=()
while IFS=$'\t' read -r host kind text; do
    case $kind in
        at) at[$host]=$text ;;
        fault) blame "$host" "$text" ;;
        warning) echo "preflight: warning: $host: $text" >&2 ;;
        *) facts[$host $kind]=$text ;;
    esac
done <<<"$lines"
srun_says=$(grep -m 1 -v $'\t' <<<"$lines")
((${#at[@]} > 0)) || { echo "preflight: srun started nothing in $SECONDS s: ${srun_says:-it says nothing}" >&2 && exit 1; }

for kind in "GPU driver" "active RDMA ports"; do # the odd ones differ from the most frequent value, or the greater of two
    usual=$(sed -n "s/.*\t$kind\t//p" <<<"$lines" | sort -rV | uniq -c | sort -rns | sed 's/^ *[0-9]* //; q')
    for host in "${hosts[@]}"; do
        value=${facts[$host $kind]:-$usual}
        [[ $value == "$usual" || ($kind == *RDMA* && $value -gt $usual) ]] || blame "$host" "$kind: $value, but $usual on others"
    done
done
# Time servers keep nodes within milliseconds, and srun starts all of them within seconds; with a wrong clock, ranks save
# too late. The right one is the median, where this machine's own counts too: it decides between two nodes.
mapfile -t clocks < <({ sed -n "s/.*\tclock\t//p" <<<"$lines" && date +%s; } | sort -n)
clock=${clocks[${#clocks[@]} / 2]} lost=""
[[ ! $lines =~ failed\ on\ node\ ([^:]+) ]] || lost=${BASH_REMATCH[1]} # srun may have ended the others then
for host in "${hosts[@]}"; do
    off=$((${facts[$host clock]:-$clock} - clock))
    ((-5 - SECONDS <= off && off <= 5 + SECONDS)) || blame "$host" "its clock is off by $off s"
    [[ ${at[$host]:-} == end || ${lost:-$host} != "$host" ]] || blame "$host" "no answer, stuck at: ${at[$host]:-${srun_says:-its start}}"
done
for host in "${hosts[@]}"; do
    [[ -n ${faults[$host]:-} ]] || continue
    # What all nodes have is no single one's fault.
    [[ $(printf '%s\n' "${faults[@]}" | sort -u | wc -l) -gt 1 || ${#faults[@]} -lt ${#hosts[@]} ]] ||
        { echo "preflight: on all of ${#hosts[@]} node(s): ${faults[$host]}" >&2 && break; }
    echo "preflight: $host: ${faults[$host]}. Without it: sbatch --exclude=$host" >&2
done
((${#faults[@]} == 0)) || { echo "preflight: ${#faults[@]} of ${#hosts[@]} nodes unfit; PREFLIGHT=0 starts all the same" >&2 && exit 1; }
echo "preflight: ${#hosts[@]} node(s) fit ($SECONDS s)"
