#!/usr/bin/env bash
# Asks the ranks of a run on this node where they are, and prints their stacks.
#
#   launch/stacks/collect.sh                    all ranks on this machine, or in this Kubernetes pod
#   launch/stacks/collect.sh VARIABLE=VALUE     those with this variable, as SLURM_JOB_ID=4711
#
# Each process of a rank prints a line of facts, then its stacks as Python's faulthandler writes
# them. launch/stacks/group.py reads both:
#   == rank=2 of=8 host=node3 pid=4242 parent=4200 state=S wchan=futex_wait_queue name=python3
# A process that cannot answer has no stacks: it is stopped (state T), waits in the kernel (D), or
# has not read launch/stacks/python/sitecustomize.py.
set -uo pipefail
unset RANK # of a rank that calls this script, whose processes would pass for ranks

main() {
    [[ $# == 0 || ($# == 1 && $1 == ?*=*) ]] || {
        echo "launch/stacks/collect.sh: '$*': expected VARIABLE=VALUE, as SLURM_JOB_ID=4711" >&2
        exit 2
    }
    find_ranks "$@"  # sets rank_of, of and file_of
    ask              # sends the signal to all processes that can answer, and sets asked
    wait_for_answers # for five seconds at most
    for pid in "${!rank_of[@]}"; do
        print_facts "$pid"
        if [[ -n ${asked[$pid]:-} ]]; then
            tail -c +$((asked[$pid] + 1)) "${file_of[$pid]}" 2>/dev/null
            echo
        fi
    done
}

# Sets, by process, rank_of (its rank), of (the number of ranks) and file_of (the file in /proc that
# has its stacks). Of a rank without such a file, all processes with RANK in their environment count.
find_ranks() {
    local path target pid rank
    local -A of_the_run=() answers=()
    declare -gA rank_of=() of=() file_of=()
    while read -r path; do
        pid=${path#/proc/}
        of_the_run[${pid%/environ}]=1
    done < <(processes_with "$@")
    while read -r path target; do
        pid=${path#/proc/} pid=${pid%%/*}
        if [[ -n ${of_the_run[$pid]:-} && $target =~ stacks-of-rank-([0-9]+)-of-([0-9]*) ]]; then
            rank=${BASH_REMATCH[1]}
            rank_of[$pid]=$rank of[$pid]=${BASH_REMATCH[2]} file_of[$pid]=$path answers[$rank]=1
        fi
    done < <(find /proc/[0-9]*/fd -lname '*stacks-of-rank-*' -printf '%p %l\n' 2>/dev/null)
    for pid in "${!of_the_run[@]}"; do
        rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -xE 'RANK=[0-9]+') || continue
        rank=${rank#RANK=}
        [[ -n ${answers[$rank]:-} ]] || rank_of[$pid]=$rank
    done
}

# Prints /proc/PID/environ of each process of this node, and, if there is an argument, with this
# variable. The tests have several nodes on one machine, so the name of the node has to fit, too.
processes_with() {
    local variable found=(/proc/[0-9]*/environ)
    for variable in "$@" ${SLURMD_NODENAME:+"SLURMD_NODENAME=$SLURMD_NODENAME"}; do
        ((${#found[@]} == 0)) ||
            mapfile -t found < <(grep -lzxF -e "$variable" "${found[@]}" 2>/dev/null)
    done
    ((${#found[@]} == 0)) || printf '%s\n' "${found[@]}"
}

# Sets asked[PID], the length of the file before the answer. A process that does not catch signal 60
# (bit 59 of SigCgt) would be ended by it.
ask() {
    local pid caught
    declare -gA asked=()
    for pid in "${!file_of[@]}"; do
        caught=$(status "$pid" SigCgt)
        if [[ $(status "$pid" State) == [RSD]* ]] && ((0x${caught:-0} >> 59 & 1)); then
            asked[$pid]=$(size_of "$pid")
            kill -60 "$pid" 2>/dev/null
        fi
    done
}

# Returns as soon as all files have grown and grow no longer.
wait_for_answers() {
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

# Prints the length of a process's file; 0 if the process has ended.
size_of() { stat -L -c %s "${file_of[$1]}" 2>/dev/null || echo 0; }

# Prints a field of /proc/PID/status.
status() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" 2>/dev/null; }

# Prints what the kernel says of a process.
print_facts() {
    local state wchan
    state=$(status "$1" State)
    wchan=$(cat "/proc/$1/wchan" 2>/dev/null)
    echo "== rank=${rank_of[$1]} of=${of[$1]:-} host=${SLURMD_NODENAME:-$HOSTNAME} pid=$1" \
        "parent=$(status "$1" PPid) state=${state:0:1} wchan=${wchan:-0} name=$(status "$1" Name)"
}

main "$@"
