#!/usr/bin/env bash
# Sends a signal to the ranks of a job on this node, and to no other process: not to the launcher,
# nor to what a rank has started, such as the workers of a DataLoader.
#
#   slurm/signal_ranks.sh JOBID SIGNAL        as in: slurm/signal_ranks.sh 4711 USR1
#
# slurm/submit_multinode.sh calls this on each node, in a step outside of the ranks' container, when
# STOP_SIGNAL (env.sh) is set and the walltime is nearly over.
#
# A rank is a process that was started with the variable RANK by one that was not: what the rank
# starts has its RANK, too. launch/spawn.py forks its ranks, and passes each signal on to them.
set -uo pipefail

main() {
    local path pid rank parent
    [[ $# == 2 ]] || {
        echo "slurm/signal_ranks.sh: '$*': expected a job and a signal, as 4711 USR1" >&2
        exit 2
    }
    while read -r path; do
        pid=${path#/proc/} pid=${pid%/environ}
        if is_spawner "$pid"; then
            kill -"$2" "$pid"
            continue
        fi
        rank=$(rank_of "$pid")
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
        [[ -z $rank || $rank == "$(rank_of "$parent")" ]] || kill -"$2" "$pid"
    done < <(grep -lzxF "SLURM_JOB_ID=$1" /proc/[0-9]*/environ 2>/dev/null)
}

# Prints RANK of the environment with which a process was started; nothing if it has none.
rank_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -m 1 -xE 'RANK=[0-9]+'; }

# Whether a process is launch/spawn.py itself, and not one of the ranks that it has forked.
is_spawner() {
    local parent
    [[ $(words_of "$1") == *"/launch/spawn.py "* ]] || return
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [[ $(words_of "$parent") != *"/launch/spawn.py "* ]]
}

words_of() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline"; }

main "$@"
