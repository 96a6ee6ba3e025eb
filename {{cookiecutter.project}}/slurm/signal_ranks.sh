#!/usr/bin/env bash
# Sends a signal to the ranks of a run on this node, and to no other process: not to torchrun, nor to the
# workers of a DataLoader.
#
#   slurm/signal_ranks.sh RUN_DIR SIGNAL        as in: slurm/signal_ranks.sh /…/logs/4711.0 USR1
#
# When the program is asked to save, and env.sh sets STOP_SIGNAL, slurm/submit_multinode.sh calls this
# on each node, outside of the ranks' container.
#
# Of all processes with the same RANK, the oldest is the rank. Ranks that launch/spawn.py forks show no
# RANK in /proc, so launch/spawn.py gets the signal, and passes it on.
set -uo pipefail

main() {
    local path pid rank spawner=''
    local -A ranks=() # the process of each rank
    [[ $# == 2 ]] || {
        echo "slurm/signal_ranks.sh: '$*': expected RUN_DIR and a signal, as /…/logs/4711.0 USR1" >&2
        exit 2
    }
    # The processes of the run. A file environ has the variables with which a process was started, and a
    # byte 0 after each. The submit script itself was started without RUN_DIR.
    while read -r path; do
        pid=${path#/proc/} pid=${pid%/environ} rank=$(rank_of "$pid")
        if is_of_spawn "$pid"; then
            if is_older "$pid" "$spawner"; then spawner=$pid; fi
        elif [[ -n $rank ]] && is_older "$pid" "${ranks[$rank]:-}"; then
            ranks[$rank]=$pid
        fi
    done < <(grep -lzxF "RUN_DIR=$1" /proc/[0-9]*/environ 2>/dev/null)
    if [[ -n $spawner ]]; then ranks=([spawner]=$spawner); fi
    if ((${#ranks[@]} == 0)); then
        echo "slurm/signal_ranks.sh: no rank runs on $(uname -n)" >&2
        exit 1
    fi
    for pid in "${ranks[@]}"; do
        kill -"$2" "$pid" || true # it may have ended by now
    done
}

# Prints RANK=N of the environment with which a process was started; nothing if it has none.
rank_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -m 1 -xE 'RANK=[0-9]+'; }

# Whether a process is launch/spawn.py, or a rank that it has forked.
is_of_spawn() { [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") == *"/launch/spawn.py "* ]]; }

# Whether a process started before another one, or there is no other. Arguments: their numbers.
is_older() {
    local own other=''
    own=$(start_of "$1")
    if [[ -n $2 ]]; then other=$(start_of "$2"); fi
    [[ -n $own ]] && { [[ -z $other ]] || ((own < other || (own == other && $1 < $2))); }
}

# Prints when a process started, in ticks since the boot: field 22 of stat. Field 2, the name, may have
# spaces, and ends with the last bracket.
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

main "$@"
