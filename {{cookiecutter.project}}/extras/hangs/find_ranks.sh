#!/usr/bin/env bash
# find_ranks finds the processes of a run's ranks on this node. extras/hangs/collect.sh reads this
# file.
# shellcheck disable=SC2034 # collect.sh uses what it sets

# Sets, by process, rank_of (its rank), world_size_of (the number of ranks) and file_of (the file in
# /proc that takes its answers). If no process of a rank has such a file, all those with this RANK in
# their environment are listed.
find_ranks() {
    local path target pid rank
    local -A of_the_run=() has_file=()
    declare -gA rank_of=() world_size_of=() file_of=()
    while read -r path; do
        pid=${path#/proc/}
        of_the_run[${pid%/environ}]=1
    done < <(processes_with "$@")
    while read -r path target; do
        pid=${path#/proc/} pid=${pid%%/*}
        if [[ -n ${of_the_run[$pid]:-} && $target =~ stacks-of-rank-([0-9]+)-of-([0-9]*) ]]; then
            rank=${BASH_REMATCH[1]}
            rank_of[$pid]=$rank world_size_of[$pid]=${BASH_REMATCH[2]} file_of[$pid]=$path
            has_file[$rank]=1
        fi
    done < <(find /proc/[0-9]*/fd -lname '*stacks-of-rank-*' -printf '%p %l\n' 2>/dev/null)
    for pid in "${!of_the_run[@]}"; do
        rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -m1 -xE 'RANK=[0-9]+') || continue
        rank=${rank#RANK=}
        [[ -n ${has_file[$rank]:-} ]] || rank_of[$pid]=$rank
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

# Prints a field of /proc/PID/status.
status() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" 2>/dev/null; }
