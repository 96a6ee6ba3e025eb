#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? set own_options = site_facts(cookiecutter.site).torchrun
#? set gpus_of_node = plan_of(cookiecutter).node_facts.gpus if own_options else 0
# Runs once per node: finds the node's rank and the rendezvous endpoint, then becomes torchrun.
# torchrun starts one process per GPU.
#
#   launch/torchrun.sh program.py [arguments]
#   launch/torchrun.sh -m package.module [arguments]
#
# The number of nodes, this node's rank and the endpoint come from the variables of the launcher
# that started this script. The first of these launchers whose variables are set decides:
#? if kind == "slurm"
#   SLURM_STEP_*               srun, one task per node
#? endif
#? if kind == "local"
#   PET_*                      local/submit.sh, which starts several nodes on this machine
#? else
#   PET_*                      a Kubernetes operator, which sets torchrun's own variables
#? endif
#? if kind == "runai"
#   RANK, WORLD_SIZE           PyTorchJob before 1.7, where both count pods. Later versions set
#                              PET_*, and their WORLD_SIZE counts processes
#                              (https://github.com/kubeflow/trainer/pull/1840, 2026-08-20)
#? endif
#   none of these              one node: this machine
# The endpoint is MASTER_ADDR:MASTER_PORT; on one node 127.0.0.1 and a free port. Where PET_* decide,
# PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT are read. No PET_* is handed on to
# torchrun.
#
# Read from the environment, all optional:
#   NPROC_PER_NODE       processes on this node     (its GPUs, else CPU_RANKS_PER_NODE, else 1)
#   CPU_RANKS_PER_NODE   processes on a node without GPUs     (1)
#   OMP_NUM_THREADS      threads of each process    (the node's usable cores / processes)
#   RDZV_BACKEND         static: node 0 has rank 0, and one port is enough (default)
#                        c10d: torch orders the nodes by address, and needs a second, random port.
#                        Who can connect to the endpoint can then run code as you: torchrun
#                        unpickles what it finds there (torch 2.13). One node is always static
#   RDZV_TIMEOUT         seconds that several nodes wait for each other   (600)
#   NODE_ADDR            c10d: the name at which other nodes reach this one
#                        (its name in Slurm, else its hostname; MASTER_ADDR_SUFFIX is appended)
#   MASTER_ADDR_SUFFIX   c10d: ending of a node's name in the network of the ranks   (none)
#   RUN_DIR              folder for each rank's log and each node's error file
#   PYTHON               the interpreter                         (python3)
#   TORCHRUN_OPTIONS     further options of torchrun, separated by spaces   (none)
#   TORCH_ELASTIC_SHUTDOWN_TIMEOUT
#                        seconds that the processes may take to end after SIGTERM   (300)
#? if kind == "runai"
#   PET_NPROC_PER_NODE   processes on this node, where NPROC_PER_NODE is not set
#? endif
#? if kind == "slurm"
#   LAUNCHER             spawn: start launch/spawn.py in place of torchrun, with torchrun's options.
#                        It knows the static backend alone, and no TORCHRUN_OPTIONS
#? endif
#
# Sets for the ranks, beside the variables of torchrun itself:
#   OMP_NUM_THREADS, TORCH_ELASTIC_SHUTDOWN_TIMEOUT   unless they are set, see above
#   PYTHONUNBUFFERED=1                                a rank's lines appear at once
#   TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE             [HOST:RANK] before each line
#   TORCHELASTIC_ERROR_FILE                           with RUN_DIR: a file for a rank's error
set -euo pipefail

main() {
    starter=(-m torch.distributed.run) # what Python runs
    #? if kind == "slurm"
    if [[ ${LAUNCHER:-} == spawn ]]; then
        starter=("$here/spawn.py")
        RDZV_BACKEND=static TORCHRUN_OPTIONS=''
    fi
    #? endif
    check_program "$@"
    find_this_node   # sets nodes, node_rank, endpoint
    choose_processes # sets processes
    # torchrun would read each option that is not on its command line from PET_*. It is no rank
    # itself, and gives its processes theirs.
    unset "${!PET_@}" RANK
    check_settings
    set_threads

    options=(--nnodes="$nodes" --nproc-per-node="$processes")
    choose_rendezvous # adds options, as the next three steps do
    choose_output
    choose_intervals
    add_further_options
    if [[ $1 == -m ]]; then
        options+=(-m)
        shift
    fi
    # Without -- torchrun takes the program's --max for an abbreviation of its own --max-restarts.
    exec "$PYTHON" "${starter[@]}" "${options[@]}" -- "$@"
}

# Refuses what torchrun would tell of in forty lines. Arguments: the program and its arguments.
check_program() {
    if (($# == 0)); then
        die "no program given. Usage: launch/torchrun.sh program.py [arguments]"
    fi
    case $1 in
        -h | --help)
            sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit
            ;;
        -m) [[ -n ${2:-} ]] || die "no program '-m': name a module, as in -m package.module" ;;
        -*) die "no program '$1': write ./$1 if a file has this name" ;;
        *)
            [[ -f $1 || -f $1/__main__.py || ${TORCHRUN_OPTIONS:-} == *--no?python* ]] ||
                die "no program '$1' in $PWD:" \
                    "name a Python file or a module, as in program.py or -m package.module"
            ;;
    esac
}

# ---- this node's place in the run ----------------------------------------------------------------

# Sets nodes, node_rank and endpoint, which is empty if it is not known.
find_this_node() {
    nodes=1 node_rank=0 address=${MASTER_ADDR:-} port=${MASTER_PORT:-}
    read_launcher
    endpoint=''
    if [[ $nodes == 1 ]]; then
        # No other machine has to connect, and MASTER_ADDR may be a stale variable.
        endpoint=127.0.0.1:$(free_port "$port")
    elif [[ -n $address && -n $port ]]; then
        endpoint=$address:$port
    fi
}

# Sets nodes and node_rank, address and port to what the launcher says that started this script.
read_launcher() {
    #? if kind == "slurm"
    if [[ -n ${SLURM_STEP_NUM_NODES:-} ]]; then
        read_srun
        return
    fi
    #? endif
    if [[ -n ${PET_NNODES:-} ]]; then
        read_pet
        #? if kind != "local"
        return
        #? endif
    fi
    #? if kind == "runai"
    if [[ -n ${RANK:-} && -n ${WORLD_SIZE:-} && -n ${MASTER_ADDR:-} ]]; then
        nodes=$WORLD_SIZE node_rank=$RANK
    fi
    #? elif kind == "slurm"
    if ((${SLURM_JOB_NUM_NODES:-1} > 1)); then
        echo "launch/torchrun.sh: no srun started this, so it uses this node alone, of the" \
            "$SLURM_JOB_NUM_NODES of the job" >&2
    fi
    #? endif
}

#? if kind == "slurm"
# Reads the variables of srun's step. SLURM_JOB_* and SLURM_NTASKS describe the allocation, which
# may be larger.
read_srun() {
    [[ $SLURM_STEP_NUM_TASKS == "$SLURM_STEP_NUM_NODES" ]] ||
        die "srun started $SLURM_STEP_NUM_TASKS tasks on $SLURM_STEP_NUM_NODES node(s)," \
            "but one per node is wanted (torchrun starts the processes):" \
            "srun --ntasks=$SLURM_STEP_NUM_NODES --ntasks-per-node=1"
    nodes=$SLURM_STEP_NUM_NODES
    node_rank=$SLURM_NODEID
}

#? endif
# Reads torchrun's own variables.
read_pet() {
    nodes=$PET_NNODES
    node_rank=${PET_NODE_RANK:-}
    if [[ $nodes == 1 && -z $node_rank ]]; then
        node_rank=0
    fi
    address=${PET_MASTER_ADDR:-$address}
    port=${PET_MASTER_PORT:-$port}
}

# Prints a port of this machine at which nobody listens. Argument: the port to try first, which is
# MASTER_PORT: the submit script chooses one for its job. If it is in use, or no port, others are
# tried below 32768, from where on the kernel takes the ports of outgoing connections.
free_port() {
    local try=$1
    while [[ ! $try =~ ^[1-9][0-9]{3,4}$ ]] || ((try > 65535)) || is_in_use "$try"; do
        try=$((10000 + RANDOM % 20000))
    done
    echo "$try"
}

is_in_use() { (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; }

# ---- processes and threads -----------------------------------------------------------------------

# Sets processes, the number on this node.
choose_processes() {
    processes=${NPROC_PER_NODE:-$(count_gpus)}
    if [[ $processes == 0 ]]; then
        processes=${CPU_RANKS_PER_NODE:-1}
    fi
}

check_settings() {
    #? if kind == "runai"
    local fix="submit without --min-replicas and --max-replicas"
    #? else
    local fix="set PET_NNODES to the number of nodes"
    #? endif
    [[ $nodes =~ ^[1-9][0-9]*$ ]] ||
        die "number of nodes '$nodes': expected a whole number; a range is an elastic job's: $fix"
    if [[ ! $node_rank =~ ^(0|[1-9][0-9]*)$ ]] || ((node_rank >= nodes)); then
        die "node rank '$node_rank': expected a whole number from 0 to $((nodes - 1))"
    fi
    [[ $processes =~ ^[1-9][0-9]*$ ]] ||
        die "processes per node '$processes': expected a whole number of at least 1;" \
            "set NPROC_PER_NODE"
    [[ -n $endpoint ]] ||
        die "$nodes nodes, but MASTER_ADDR and MASTER_PORT are not both set:" \
            "start through the submit script, or set them"
    [[ ${RDZV_BACKEND:=static} == static || $RDZV_BACKEND == c10d ]] ||
        die "RDZV_BACKEND='$RDZV_BACKEND': expected static or c10d"
    command -v "${PYTHON:=python3}" >/dev/null ||
        die "$PYTHON was not found: set RUNTIME or PYTHON in env.sh"
}

# Exports OMP_NUM_THREADS, so that the processes share the cores.
set_threads() {
    local cores threads=1
    cores=$(count_cores)
    if ((cores > processes)); then
        threads=$((cores / processes))
    fi
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
}

# ---- options of torchrun -------------------------------------------------------------------------

# Adds the options by which the nodes find each other. One node does not take --standalone, which is
# c10d at a port that all machines reach.
choose_rendezvous() {
    local timeout=${RDZV_TIMEOUT:-600} is_host=0
    options+=(--rdzv-endpoint="$endpoint")
    options+=(--rdzv-id="${SLURM_JOB_ID:-run}.${SLURM_RESTART_COUNT:-0}.${endpoint##*:}")
    if [[ $RDZV_BACKEND == static ]] || ((nodes == 1)); then
        options+=(--rdzv-backend=static --node-rank="$node_rank" --rdzv-conf="timeout=$timeout")
        return
    fi
    # Without is_host torch would guess from host names which node hosts the store. torch may give
    # rank 0 to any node, which then tells its local-addr to the others.
    if ((node_rank == 0)); then
        is_host=1
    fi
    # read_timeout: how long a node tries to reach the store, whose own node may start last.
    options+=(--rdzv-backend=c10d --local-addr="${NODE_ADDR:-$host${MASTER_ADDR_SUFFIX:-}}"
        --rdzv-conf="is_host=$is_host,join_timeout=$timeout,read_timeout=$timeout")
}

# Adds the options that send the ranks' lines to the console, with a prefix, and to a file per rank.
choose_output() {
    options+=(--tee=3)
    # shellcheck disable=SC2016 # torchrun fills in ${rank}
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[$host:"'${rank}] '
    # --tee makes each rank write to a file, where Python would keep lines back.
    export PYTHONUNBUFFERED=1
    if [[ -n ${RUN_DIR:-} ]]; then
        local folder=$RUN_DIR/node$node_rank-$host
        # torchrun may write an early failure to error.json before it makes the folder.
        mkdir -p "$folder"
        options+=(--log-dir="$folder")
        export TORCHELASTIC_ERROR_FILE=$folder/error.json
    fi
}

# Adds how often torchrun looks after its processes, and sets how long they may take to end.
choose_intervals() {
    # torchrun looks every 100 ms by default. Every 30 ms it notices the end or a failure sooner, and
    # so makes up for part of the tenth of a second that --tee costs.
    local interval=0.03
    # Node 0 hosts the store and ends later, with 100 ms. Else other nodes that still ask the store
    # print a harmless trace, "Error waiting on exit barrier": in 9 of 53 runs with 30 ms on node 0,
    # and in 1 of 40 with 100 ms (https://github.com/pytorch/pytorch/issues/69520).
    if ((nodes > 1 && node_rank == 0)); then
        interval=0.1
    fi
    options+=(--monitor-interval="$interval")
    # After SIGTERM torchrun 2.12 and later waits this long before it kills its processes
    # (torchrun's default: 30 s). The processes use the time to save.
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
}

# Adds TORCHRUN_OPTIONS, which win over the options before them.
add_further_options() {
    local word
    for word in ${TORCHRUN_OPTIONS:-}; do
        #? if own_options
        if [[ $word == --numa?binding=* ]] && ! can_bind; then
            continue
        fi
        #? endif
        options+=("$word")
    done
}

#? if own_options
# Whether torchrun can bind ranks, else node 0 says why not. A job with some of a node's GPUs may
# have no core next to one of them, and torchrun would fail.
can_bind() {
    local torch reason=''
    torch=$("$PYTHON" -c 'from importlib.util import find_spec; print(find_spec("torch").origin)')
    if [[ $processes != "{{ gpus_of_node }}" ]]; then
        reason="it is for {{ gpus_of_node }} processes on a node, and here are $processes"
    elif ! type -P numactl >/dev/null; then
        reason="the program numactl was not found"
    elif [[ ! -d ${torch%/*}/numa ]]; then
        reason="it takes torch 2.9 or newer"
    else
        return 0
    fi
    if ((node_rank == 0)); then
        echo "launch/torchrun.sh on $host: --numa-binding is left out: $reason" >&2
    fi
    return 1
}

#? endif
die() {
    echo "launch/torchrun.sh on $host: $*" >&2
    exit 2
}

host=${SLURMD_NODENAME:-$(hostname 2>/dev/null || echo "$HOSTNAME")}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$here/count_gpus.sh"
main "$@"
