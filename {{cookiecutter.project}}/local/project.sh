#!/usr/bin/env bash
# The steps of local/submit.sh as functions, in the order in which it takes them, and what the commands
# of extras share with it.
#
# A script sets PROJECT_DIR, and reads this file with its own name, which stands in front of messages:
#   source "$PROJECT_DIR/local/project.sh" local/NAME.sh
# shellcheck disable=SC2034,SC2153,SC2154 # env.sh has the settings; the scripts use what functions set

#? include "messages.sh"
#? include "program.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras

# ---- settings ------------------------------------------------------------------------------------

# Unsets variables of the calling shell, which the launcher would take for this run's.
unset_stale_variables() {
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
    unset "${!PET_@}" "${!PMI@}" "${!SLURM_@}"
}

# Refuses settings that cannot work.
check_settings() {
    [[ $NNODES =~ ^[1-9][0-9]*$ ]] || die "NNODES='$NNODES': expected a whole number of at least 1"
    [[ ${NPROC_PER_NODE:-1} =~ ^[1-9][0-9]*$ ]] ||
        die "NPROC_PER_NODE='$NPROC_PER_NODE': expected a whole number of at least 1"
    [[ $CPU_RANKS_PER_NODE =~ ^[1-9][0-9]*$ ]] ||
        die "CPU_RANKS_PER_NODE='$CPU_RANKS_PER_NODE': expected a whole number of at least 1"
    check_rank_prefix
    call_extras check_settings
}

# Refuses a program that starts its own ranks, unless you have set their number for this run.
# Argument: NPROC_PER_NODE of your shell.
refuse_program_with_own_ranks() {
    if [[ -z $1 ]] && starts_its_own_ranks "$program"; then
        die "$program starts its own ranks: run it without this script, $PYTHON $program"
    fi
}

# ---- share this machine among the nodes ---------------------------------------------------------

# Sets gpus to the GPUs that the run uses; none if there are too few for one per process. Exports
# NPROC_PER_NODE, unless you have set it: GPUs per node, or CPU_RANKS_PER_NODE if there are fewer
# GPUs than nodes.
share_gpus() {
    mapfile -t gpus < <(visible_gpus)
    if [[ -z ${NPROC_PER_NODE:-} ]]; then
        NPROC_PER_NODE=$CPU_RANKS_PER_NODE
        ((${#gpus[@]} < NNODES)) || NPROC_PER_NODE=$((${#gpus[@]} / NNODES))
    fi
    export NPROC_PER_NODE
    if ((${#gpus[@]} > 0 && ${#gpus[@]} < NNODES * NPROC_PER_NODE)); then
        echo "local/submit.sh: ${#gpus[@]} GPU(s) for $NNODES x $NPROC_PER_NODE processes are too few:" \
            "running on CPUs, with gloo" >&2
        gpus=()
    fi
}

# Prints the GPUs that the run may use, one per line.
visible_gpus() {
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        tr ',' '\n' <<<"${CUDA_VISIBLE_DEVICES// /}" | grep '^[^-]' # -1 means: no GPU
    elif command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index --format=csv,noheader | grep -xE '[0-9]+' # or "No devices were found"
    fi
}

# Exports OMP_NUM_THREADS, unless you have set it: the cores of this machine over the processes of
# all nodes.
share_cores() {
    local cores processes=$((NNODES * NPROC_PER_NODE))
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys these variables
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > processes ? cores / processes : 1))}
}

# Has gloo connect over the loopback interface. By itself it takes the address of the machine's own
# name, which on a laptop often leads nowhere, or to an address that changes.
use_loopback() {
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
}

# Makes the folder of logs. Exports RUN_DIR, where the launcher puts what each rank prints.
make_run_folder() {
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go:" \
            "copy the project to a folder that is yours"
    RUN_DIR="$(realpath "$PROJECT_DIR/logs")/$(date +%Y%m%d-%H%M%S).$$"
    export RUN_DIR
}

# ---- launch -------------------------------------------------------------------------------------

# Runs the program on all nodes. When a node fails, the others are ended. Sets code: 0, or the exit code
# of the first node that failed; after_launch of an extra may change it. RANK_PREFIX comes before the
# words of extras. So a profiler in RANK_PREFIX does not see what an extra sets for the ranks.
#
# Each node is a process group, and writes its exit code into a pipe. bash 5.2.15 may miss one of two
# nodes that end at once, if it waits by wait -n. The next wait -n then goes on for as long as a process
# of an extra runs.
launch() {
    local node port write_end read_end words=("$program" "${arguments[@]}")
    code=0
    port=$(free_port) || exit
    rank_prefix=("${RANK_PREFIX[@]}")
    call_extras before_launch
    say "${words[*]} as $NNODES node(s) x $NPROC_PER_NODE process(es)"
    trap 'end_by HUP' HUP # the terminal was closed
    trap 'end_by INT' INT
    trap 'end_by TERM' TERM
    start_beside
    exec {write_end}<> <(:) # a pipe, opened for reading and writing
    exec {read_end}</dev/fd/"$write_end"
    set -m # a process group for each node
    for ((node = 0; node < NNODES; node++)); do
        run_node "$node" "$port" "${words[@]}" </dev/null &
    done
    set +m
    exec {write_end}>&- # each node has its own, so the pipe ends with the last of them
    for ((node = 0; node < NNODES && code == 0; node++)); do
        read -r code <&"$read_end" || code=137 # the pipe has ended: the shell of a node was killed
    done
    exec {read_end}<&-
    if ((code)); then end_nodes; fi
    end_beside
    trap - HUP INT TERM
    call_extras after_launch
}

# Runs torchrun for a node, and writes its exit code to write_end. Arguments: the node, the port, the
# program, its arguments.
run_node() {
    local gpus_here result=0
    gpus_here=$(gpus_of_node "$1")
    trap '' TTIN TTOU # else the terminal may stop this group, which is not in its foreground
    trap : TERM # torchrun gets the signal, too, and ends by it; this shell goes on and writes its code
    CUDA_VISIBLE_DEVICES=$gpus_here \
        PET_NNODES=$NNODES PET_NODE_RANK=$1 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=$2 \
        "${rank_prefix[@]}" bash "$PROJECT_DIR/launch/torchrun.sh" "${@:3}" || result=$?
    echo "$result" >&"$write_end"
}

# Ends the nodes, and this script by the signal that it got, so that a loop around it ends, too. What
# runs of extras is ended by leave_extras. Argument: the signal.
end_by() {
    end_nodes
    trap - "$1"
    kill "-$1" $$
}

# Ends the nodes that still run, and waits for them. SIGTERM asks their ranks to save. The jobs of this
# shell are the nodes alone: start_beside disowns the processes of extras.
end_nodes() {
    local group groups
    groups=$(jobs -p)
    for group in $groups; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    for group in $groups; do
        wait "$group" || true
    done
}

# Prints a node's part of gpus, separated by commas. Argument: the node, from 0.
gpus_of_node() {
    local IFS=,
    echo "${gpus[*]:$1 * NPROC_PER_NODE:NPROC_PER_NODE}"
}

# Prints a free port, outside the range from which the kernel takes ports of outgoing connections
# (32768 and above).
free_port() {
    local port
    for ((port = 10000 + $$ % 20000; port < 32768; port++)); do
        if ! in_use "$port"; then
            echo "$port"
            return
        fi
    done
    die "no port up to 32767 is free: end other runs on this machine (ss -tlnp lists them)"
}

# Whether a process on this machine uses a TCP port. The kernel's tables have it in hexadecimal.
in_use() { grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") " /proc/net/tcp /proc/net/tcp6; }
