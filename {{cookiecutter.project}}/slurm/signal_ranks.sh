#!/usr/bin/env bash
# Sends a signal to the ranks of a job on this node. torchrun does not get it, nor does what a rank has
# started, such as the workers of a DataLoader.
#
#   slurm/signal_ranks.sh JOBID SIGNAL        as in: slurm/signal_ranks.sh 4711 USR1
#
# slurm/submit_multinode.sh calls this on each node, in a step outside of the ranks' container, when
# STOP_SIGNAL (env.sh) is set and the program is asked to save.
#
# A rank is a process that was started with the variable RANK. What a rank starts has the same RANK. So
# the parent of a rank has another RANK, or none. /proc shows no RANK of the ranks that launch/spawn.py
# forks. It gets the signal itself, and passes it on to them.
set -uo pipefail

main() {
    local path pid
    [[ $# == 2 ]] || {
        echo "slurm/signal_ranks.sh: '$*': expected a job and a signal, as 4711 USR1" >&2
        exit 2
    }
    while read -r path; do
        pid=${path#/proc/} pid=${pid%/environ}
        if is_spawner "$pid" || is_rank "$pid"; then
            kill -"$2" "$pid" || true # it may have ended by now
        fi
        # The processes of the job: a file environ has the variables, and a byte 0 after each.
    done < <(grep -lzxF "SLURM_JOB_ID=$1" /proc/[0-9]*/environ 2>/dev/null)
}

# Whether a process is a rank, and not one that launch/spawn.py has forked.
is_rank() {
    local rank parent
    rank=$(rank_of "$1") parent=$(parent_of "$1")
    [[ -n $rank && $rank != "$(rank_of "$parent")" ]] && ! is_of_spawn "$parent"
}

# Prints RANK=N of the environment with which a process was started; nothing if it has none.
rank_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -m 1 -xE 'RANK=[0-9]+'; }

parent_of() { sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null; }

# Whether a process is launch/spawn.py itself, and not one of the ranks that it has forked.
is_spawner() { is_of_spawn "$1" && ! is_of_spawn "$(parent_of "$1")"; }

# Whether a process is launch/spawn.py, or a rank that it has forked.
is_of_spawn() { [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") == *"/launch/spawn.py "* ]]; }

main "$@"
