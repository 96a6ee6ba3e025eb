#!/usr/bin/env bash
# Looks at every node of a job before the ranks start: one line, with the fix, for each node that would fail them.
#
#   slurm/preflight.sh [NAME|PATH …] [--mounts FOLDER …]
#
# Call it in a job or salloc; slurm/submit_multinode.sh calls it first, unless PREFLIGHT=0. Each NAME has to be a command
# on every node, each PATH readable there. Each FOLDER is one that the container mounts: without it, it cannot start.
# Beside these: names, the way to the master and its port, clocks, folders, cores, GPUs and their driver, RDMA.
# Exit code: 0 all nodes are fit, 1 not, 2 called wrongly.
#
# Read from the environment, all optional:
#   MASTER_ADDR, MASTER_PORT   where the ranks will meet                          (the first node, 29500)
#   RUN_DIR                    folder of the ranks' logs                          (the current folder)
#   MIN_FREE_GB                GiB to be left there                               (1)
#   PREFLIGHT_TIMEOUT          seconds until a node counts as hanging             (30)
#   MOUNTS_SETTING             where the container's folders are named            (BINDS in env.sh)
set -u
export LC_ALL=C # messages are compared

# ---- on each node ----------------------------------------------------------------------------------------------------

# tell KIND TEXT: a fault, "at" before what may hang, or something to be compared with the other nodes. In one write, which
# srun does not mix with another node's.
tell() { printf '%s\t%s\t%s\n' "$SLURMD_NODENAME" "$1" "$2"; }

if [[ ${1:-} == --node ]]; then
    tell clock "$(date +%s)"
    for folder in /tmp /dev/shm "$RUN_DIR"; do
        tell at "$folder"
        probe=$folder/.preflight.$SLURM_JOB_ID.$SLURMD_NODENAME
        # A quota that is used up shows only in writing, on some file systems only when the data leave the node: fsync.
        answer=$(dd if=/dev/zero of="$probe" bs=16k count=1 conv=fsync status=none 2>&1) ||
            tell fault "cannot write to $folder (${answer##*: }): free space there, or put it on a file system that all nodes share"
        rm -f "$probe"
    done
    # Some file systems do not count their blocks, and say 0.
    free=$((($(stat -f -c '%b ? %a * %S : 1 << 60' "$RUN_DIR" 2>/dev/null || echo "1 << 60")) >> 20))
    ((free >= MIN_FREE_GB * 1024)) || tell fault "$RUN_DIR has $free MiB left, not $MIN_FREE_GB GiB: free space there, or set MIN_FREE_GB"

    tell at "its own name"
    # Not $HOSTNAME, which may come from where the job was submitted.
    getent ahosts "$(uname -n)" >/dev/null || tell fault "its own name $(uname -n) does not resolve: tell your site"
    answer=$(timeout 3 bash -c ": </dev/tcp/$MASTER_ADDR/$MASTER_PORT" 2>&1 && echo "in use")
    if [[ $answer == "in use" ]]; then
        ((SLURM_NODEID > 0)) || tell fault "the master's port $MASTER_PORT is in use: submit again, which takes another"
    elif [[ $answer != *refused* ]]; then # the answer of a master that can be reached, as nobody listens yet
        answer=${answer%%$'\n'*} answer=${answer##*: } # the reason; without one, the time was up
        tell fault "cannot reach $MASTER_ADDR:$MASTER_PORT (${answer:-no answer in 3 s}): set MASTER_ADDR_SUFFIX in env.sh"
    fi

    fault="cannot read" fix="or name its module in MODULES of env.sh"
    for need in "${@:2}"; do
        if [[ $need == --mounts ]]; then # the container's folders follow
            fault="the container cannot mount" fix="or take it out of ${MOUNTS_SETTING:-BINDS in env.sh}"
            continue
        fi
        tell at "$need"
        file=$need
        [[ $need == */* ]] || file=$(type -P "$need")
        [[ ! -L $file ]] || need+=" -> $(readlink -m "$file")" # mostly a venv made from a Python of the login node
        [[ -r $file ]] || tell fault "$fault $need: put it where all nodes see it, $fix"
    done

    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # it would obey them
    ((cores > 1 || ${SLURM_CPUS_PER_TASK:-1} == 1)) ||
        tell fault "one core, not SLURM_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK: export SLURM_CPU_BIND=none in env.sh"
    tell ports "$(cat /sys/class/infiniband/*/ports/*/state /sys/class/net/hsn*/operstate 2>/dev/null | grep -cE 'ACTIVE$|^up$')"
    if ((${SLURM_GPUS_ON_NODE:-0} > 0)); then
        wanted=$SLURM_GPUS_ON_NODE
        ! declare -F count_gpus >/dev/null || wanted=$(count_gpus) # launch/count_gpus.sh
        tell driver "$(cat /sys/module/{nvidia,amdgpu}/version 2>/dev/null | head -n 1)"
        list=(nvidia-smi -L)
        type -P nvidia-smi >/dev/null || list=(rocm-smi --showuniqueid)
        tell at "${list[*]}"
        answer=$("${list[@]}" 2>&1)
        seen=$(grep -cE '^ *(GPU|MIG)' <<<"$answer") wrong=$(grep -m 1 -iE 'unable|error|fail' <<<"$answer") # MIG: a part of one
        ((seen >= wanted)) || [[ $answer == *"command not found"* ]] ||
            tell fault "${list[*]} sees $seen GPU(s), not $wanted${wrong:+ ($wrong)}"
    fi
    tell at end
    exit
fi

# ---- on the first node, or where salloc was called: starts the above, compares, prints -------------------------------

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '/^#!/d; /^set/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit; }
export RUN_DIR=${RUN_DIR:-$PWD} MASTER_PORT=${MASTER_PORT:-29500} MIN_FREE_GB=${MIN_FREE_GB:-1}
[[ -n ${SLURM_JOB_ID:-} ]] || { echo "slurm/preflight.sh: there is no job: salloc --nodes=2 bash slurm/preflight.sh" >&2 && exit 2; }
[[ $MIN_FREE_GB =~ ^(0|[1-9][0-9]*)$ ]] || { echo "slurm/preflight.sh: MIN_FREE_GB='$MIN_FREE_GB': expected whole GiB" >&2 && exit 2; }
count_gpus=$(dirname "${BASH_SOURCE[0]}")/../launch/count_gpus.sh
[[ -f $count_gpus ]] || count_gpus=/dev/null # "sbatch slurm/preflight.sh" runs a copy of this file, alone in a folder
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}${MASTER_ADDR_SUFFIX:-}}

# With NoInAddrAny srun listens at the address of its own machine's name alone. Where that is 127.0.1.1, as Debian writes
# it into /etc/hosts, no node reaches srun, which waits without a word; slurmd's log says "connect io: Connection refused"
# (Slurm 22.05.8 and 24.11.5, measured 2026-11-22). Nodes that have loopback addresses as names are all this machine.
own=$(getent ahosts "$(uname -n)" | sed 's/ .*//; q')
if [[ ($own == 127.* || $own == ::1) && ${hosts[0]} != 127.* ]] &&
    [[ $(scontrol show config | sed -n 's/^CommunicationParameters *= */,/p'), == *,NoInAddrAny,* ]]; then
    echo "preflight: $(uname -n) resolves its own name to $own. Slurm's NoInAddrAny makes srun listen there, where no node reaches it: have your site give the name its network address in /etc/hosts. Without this node: sbatch --exclude=$(uname -n)" >&2
    exit 1
fi

# The text of both files is handed over, since their folder may be what a node does not see. --overlap: Slurm lets go of this
# step a moment late, and the ranks' step would wait. --foreground: Ctrl-C reaches srun.
lines=$(timeout --foreground -k 5 "${PREFLIGHT_TIMEOUT:-30}" srun --overlap --export=ALL --input=none \
    --nodes=${#hosts[@]} --ntasks=${#hosts[@]} --ntasks-per-node=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    bash -c "$(<"$count_gpus")"$'\n'"$(<"${BASH_SOURCE[0]}")" \
    preflight.sh --node "$@" 2>&1)

declare -A facts=() faults=()
while IFS=$'\t' read -r host kind text; do
    [[ $kind != fault ]] || faults[$host]+="; $text"
    facts[$host $kind]=$text
done <<<"$lines"
srun_says=$(grep -m 1 -v $'\t' <<<"$lines")
[[ $lines == *$'\t'* ]] || { echo "preflight: srun started nothing in $SECONDS s: ${srun_says:-it says nothing}" >&2 && exit 1; }

# The most frequent value of a kind, or the greater of two.
usual() { sed -n "s/.*\t$1\t//p" <<<"$lines" | sort -rV | uniq -c | sort -rns | sed 's/^ *[0-9]* //; q'; }
driver=$(usual driver) ports=$(usual ports) lost=""
# Time servers keep nodes within milliseconds, and srun starts all of them within seconds; with a wrong clock, ranks save
# too late. The right one is the median, where this machine's own counts too: it decides between two nodes.
mapfile -t clocks < <({ sed -n "s/.*\tclock\t//p" <<<"$lines" && date +%s; } | sort -n)
clock=${clocks[${#clocks[@]} / 2]}
[[ ! $lines =~ failed\ on\ node\ ([^:]+) ]] || lost=${BASH_REMATCH[1]} # srun may have ended the others then
for host in "${hosts[@]}"; do
    has_driver=${facts[$host driver]-$driver} has_ports=${facts[$host ports]:-$ports} off=$((${facts[$host clock]:-$clock} - clock))
    [[ $has_driver == "$driver" ]] || faults[$host]+="; GPU driver: ${has_driver:-none}, but ${driver:-none} on others"
    ((has_ports >= ports)) || faults[$host]+="; active RDMA ports: $has_ports, but $ports on others"
    ((-5 - SECONDS <= off && off <= 5 + SECONDS)) || faults[$host]+="; its clock is off by $off s"
    [[ ${facts[$host at]:-} == end || ${lost:-$host} != "$host" ]] ||
        faults[$host]+="; no answer, stuck at: ${facts[$host at]:-${srun_says:-its start}}"
done
((${#faults[@]})) || { echo "preflight: ${#hosts[@]} node(s) fit ($SECONDS s)" && exit; }
if ((${#faults[@]} == ${#hosts[@]})) && [[ $(printf '%s\n' "${faults[@]}" | sort -u | wc -l) == 1 ]]; then
    echo "preflight: on all of ${#hosts[@]} node(s): ${faults[${hosts[0]}]:2}" # which is no single one's fault
else
    for host in "${hosts[@]}"; do
        [[ -z ${faults[$host]:-} ]] || echo "preflight: $host: ${faults[$host]:2}. Without it: sbatch --exclude=$host"
    done
fi >&2
echo "preflight: ${#faults[@]} of ${#hosts[@]} nodes unfit; PREFLIGHT=0 starts all the same" >&2
exit 1
