#!/usr/bin/env bash
# Asks the ranks of a run on this node where they are, and prints their stacks.
#
#   extras/hangs/collect.sh                    all ranks on this machine, or in this Kubernetes pod
#   extras/hangs/collect.sh VARIABLE=VALUE     those with this variable, as SLURM_JOB_ID=4711
#
# For each process of a rank this prints a line of facts, then its stacks as Python's faulthandler
# writes them, and its newest collectives (extras/hangs/python/). extras/hangs/group.py puts all
# that into words. A line of facts:
#   == rank=2 of=8 host=node3 pid=4242 parent=4200 state=S wchan=futex_wait_queue name=python3
# A process that does not answer is stopped (state T), waits in the kernel (D), or was started
# without extras/hangs/python/sitecustomize.py. If py-spy is on PATH, it may find its stacks.
# shellcheck disable=SC2154 # find_ranks sets rank_of, world_size_of and file_of
set -uo pipefail
unset RANK # if a rank calls this script: commands that start here would pass for ranks

STACKS_SIGNAL=60 COLLECTIVES_SIGNAL=61 # as in extras/hangs/python/rank_stacks.py
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/find_ranks.sh" # adds find_ranks and status

main() {
    [[ $# == 0 || ($# == 1 && $1 == ?*=*) ]] || {
        echo "extras/hangs/collect.sh: '$*': expected VARIABLE=VALUE, as SLURM_JOB_ID=4711" >&2
        exit 2
    }
    find_ranks "$@"      # sets rank_of, world_size_of and file_of
    ask_for_stacks       # signals all processes that can answer, and sets asked
    wait_for_stacks      # for five seconds at most
    ask_for_collectives  # once the stacks are complete, or the lines would mix; sets asked_again
    wait_for_collectives # for two seconds at most
    for pid in "${!rank_of[@]}"; do
        print_facts "$pid"
        if [[ -n ${asked[$pid]:-} ]] && (($(size_of "$pid") > asked[$pid])); then
            tail -c +$((asked[$pid] + 1)) "${file_of[$pid]}" 2>/dev/null
            echo
        else
            spy_on "$pid"
        fi
    done
    return 0 # a process may have ended meanwhile
}

# Sets asked[PID], the length of the file before the answer.
ask_for_stacks() {
    local pid size
    declare -gA asked=()
    for pid in "${!file_of[@]}"; do
        size=$(size_of "$pid")
        if [[ $(status "$pid" State) == [RSD]* ]] && has "$pid" SigCgt "$STACKS_SIGNAL"; then
            asked[$pid]=$size
            kill -"$STACKS_SIGNAL" "$pid" 2>/dev/null
        fi
    done
}

# Returns as soon as all files have grown and grow no longer.
wait_for_stacks() {
    local pid size all='' end=$((SECONDS + 5))
    local -A last=()
    while [[ -z $all ]] && ((SECONDS <= end)); do
        all=1
        for pid in "${!asked[@]}"; do
            size=$(size_of "$pid")
            if ((size <= asked[$pid] || size != ${last[$pid]:-0})) && [[ -d /proc/$pid ]]; then
                all=''
            fi
            last[$pid]=$size
        done
        [[ -n $all ]] || sleep 0.1
    done
}

# Sets asked_again, the processes in which a thread waits for this signal: their main threads catch it
# and block it.
ask_for_collectives() {
    local pid
    asked_again=()
    for pid in "${!asked[@]}"; do
        if has "$pid" SigCgt "$COLLECTIVES_SIGNAL" && has "$pid" SigBlk "$COLLECTIVES_SIGNAL"; then
            asked_again+=("$pid")
            kill -"$COLLECTIVES_SIGNAL" "$pid" 2>/dev/null
        fi
    done
}

# Returns as soon as all files end with the last line of such an answer (rank_collectives.py).
wait_for_collectives() {
    local pid all='' end=$((SECONDS + 2))
    while [[ -z $all ]] && ((SECONDS <= end)); do
        all=1
        for pid in "${asked_again[@]}"; do
            [[ ! -d /proc/$pid || $(tail -n 1 "${file_of[$pid]}" 2>/dev/null) == end* ]] || all=''
        done
        [[ -n $all ]] || sleep 0.1
    done
}

# Prints the stacks of a process as faulthandler would, if py-spy is installed and may read them.
# --nonblocking reads without pausing the process, and so reads those of a stopped one, too.
spy_on() {
    type -P py-spy >/dev/null || return 0
    timeout --kill-after=1 5 py-spy dump --nonblocking --full-filenames --pid "$1" 2>/dev/null | sed -nE \
        -e "s/^Thread $1 .*/Current thread 0x0 (most recent call first):/p" \
        -e 's/^Thread .*/Thread 0x0 (most recent call first):/p' \
        -e 's/^    (.*) \((.*):([0-9]+)\)$/  File "\2", line \3 in \1/p'
}

# Whether a process has a signal in a mask of /proc/PID/status, as SigCgt: those that it catches. A
# signal that is not caught would end it.
has() {
    local mask
    mask=$(status "$1" "$2")
    ((0x${mask:-0} >> ($3 - 1) & 1))
}

# Prints the length of a process's file; 0 if the process has ended.
size_of() { stat -L -c %s "${file_of[$1]}" 2>/dev/null || echo 0; }

# Prints what the kernel says of a process.
print_facts() {
    local state wchan
    state=$(status "$1" State)
    wchan=$(cat "/proc/$1/wchan" 2>/dev/null)
    echo "== rank=${rank_of[$1]} of=${world_size_of[$1]:-} host=${SLURMD_NODENAME:-$HOSTNAME} pid=$1" \
        "parent=$(status "$1" PPid) state=${state:0:1} wchan=${wchan:-0} name=$(status "$1" Name)"
}

main "$@"
