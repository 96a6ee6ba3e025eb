#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? set own_options = site_facts(cookiecutter.site).torchrun
#? set gpus_of_node = plan_of(cookiecutter).node_facts.gpus if own_options else 0
# Runs once per node: finds the node's rank and the rendezvous endpoint, then becomes torchrun, which
# starts the ranks. It needs launch/count_gpus.sh{{ " and, for LAUNCHER=spawn, launch/spawn.py" if kind == "slurm" }} beside it.
#
#   launch/torchrun.sh program.py [arguments]
#   launch/torchrun.sh -m package.module [arguments]
#
#? if kind == "slurm"
# If the variables of srun are set, they decide.
#? else
# The first row whose variables are set decides. torchrun's own variables begin with PET_.
#? endif
#
#   started by                  nodes, rank of this one              rendezvous endpoint
#? if kind == "slurm"
#   srun, one task per node     SLURM_STEP_NUM_NODES, SLURM_NODEID   MASTER_ADDR, MASTER_PORT
#? endif
#? if kind == "local"
#   local/submit.sh             PET_NNODES, PET_NODE_RANK            PET_MASTER_ADDR, PET_MASTER_PORT
#? endif
#? if kind == "runai"
#   an operator of Kubernetes   PET_NNODES, PET_NODE_RANK            PET_MASTER_ADDR, PET_MASTER_PORT,
#                                                                    else MASTER_ADDR, MASTER_PORT
#   PyTorchJob before 1.7       WORLD_SIZE, RANK: they count pods    MASTER_ADDR, MASTER_PORT
#? endif
#   anything else               one node                             127.0.0.1, a free port
#
# One node always takes 127.0.0.1 and a free port: MASTER_PORT, if that is free.
#? if kind == "runai"
# PyTorchJob 1.7 and later sets PET_*, and its WORLD_SIZE counts processes
# (https://github.com/kubeflow/trainer/pull/1840, 2026-08-20).
#? endif
#
# Read from the environment, too, all optional:
#   NPROC_PER_NODE       ranks on this node   (its GPUs; without GPUs CPU_RANKS_PER_NODE)
#? if kind == "runai"
#   PET_NPROC_PER_NODE   ranks on this node, where NPROC_PER_NODE is not set
#? endif
#   CPU_RANKS_PER_NODE   ranks on a node without GPUs                              (1)
#   OMP_NUM_THREADS      threads of each rank   (the usable cores, divided by the ranks)
#   RDZV_TIMEOUT         seconds that several nodes wait for each other          (600)
#   RUN_DIR              folder for each rank's log, and a file for the node's first error
#   PYTHON               the interpreter                                     (python3)
#   TORCHRUN_OPTIONS     further options of torchrun, separated by spaces       (none)
#   TORCH_ELASTIC_SHUTDOWN_TIMEOUT
#                        seconds that the ranks may take to end after SIGTERM, with torchrun 2.12
#                        and later                                               (300)
#? if kind == "slurm"
#   LAUNCHER             spawn: start launch/spawn.py in place of torchrun, with the same options.
#                        TORCHRUN_OPTIONS is then ignored
#? endif
#
# Sets for the ranks, beside the variables of torchrun itself:
#   OMP_NUM_THREADS, TORCH_ELASTIC_SHUTDOWN_TIMEOUT   unless they are set, see above
#   PYTHONUNBUFFERED=1                                a rank's lines appear at once
#   TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE             [HOST:RANK] before each line
#   TORCHELASTIC_ERROR_FILE                           with RUN_DIR: the file for the first error
set -euo pipefail

main() {
    PYTHON=${PYTHON:-python3}
    starter=(-m torch.distributed.run) # what Python runs
    #? if kind == "slurm"
    if [[ ${LAUNCHER:-} == spawn ]]; then
        starter=("$here/spawn.py")
        TORCHRUN_OPTIONS=''
    fi
    #? endif
    (($#)) || die "name a program, or -m and a module: launch/torchrun.sh program.py [arguments]"
    [[ $1 != -* || $1 == -m ]] ||
        die "'$1': name the program first. Options of torchrun go into TORCHRUN_OPTIONS"
    find_this_node   # sets nodes, node_rank, endpoint
    choose_processes # sets processes
    # torchrun would take each option that is not on its command line from PET_*. A RANK that is set
    # here is a pod's or another job's: torchrun sets it for each process.
    unset "${!PET_@}" RANK
    check_settings
    set_threads
    set_shutdown_timeout

    options=(--nnodes="$nodes" --nproc-per-node="$processes")
    choose_rendezvous # these three steps add options
    choose_output
    add_further_options
    if [[ $1 == -m ]]; then
        options+=(-m)
        shift
    fi
    # Without -- torchrun takes the program's --max for an abbreviation of its own --max-restarts.
    exec "$PYTHON" "${starter[@]}" "${options[@]}" -- "$@"
}

# ---- this node's place in the run ----------------------------------------------------------------

# Sets nodes, node_rank and endpoint: as the program says that has started this script, else for this
# node alone.
find_this_node() {
    nodes=1 node_rank=0 address=${MASTER_ADDR:-} port=${MASTER_PORT:-}
    #? if kind != "slurm"
    if [[ -n ${PET_NNODES:-} ]]; then
        read_pet
        #? if kind == "runai"
    elif [[ -n ${RANK:-} && -n ${WORLD_SIZE:-} && -n ${MASTER_ADDR:-} ]]; then
        nodes=$WORLD_SIZE node_rank=$RANK
        #? endif
    fi
    #? else
    if [[ -n ${SLURM_STEP_NUM_NODES:-} ]]; then
        read_srun
    fi
    #? endif
    if [[ $nodes == 1 ]]; then
        address=127.0.0.1 # no other machine has to connect, and MASTER_ADDR may be a stale variable
        # Below 32768, where the kernel begins with the ports of outgoing connections.
        while [[ ! $port =~ ^[1-9][0-9]{0,4}$ ]] || is_in_use "$port"; do
            port=$((10000 + RANDOM % 20000))
        done
    fi
    endpoint=$address:$port
}

# Whether a process listens on a port of this machine. Argument: the port.
is_in_use() { (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; }

#? if kind == "slurm"
# Reads the variables of srun's step. SLURM_JOB_* and SLURM_NTASKS describe the job, which may have
# more nodes than the step.
read_srun() {
    [[ $SLURM_STEP_NUM_TASKS == "$SLURM_STEP_NUM_NODES" ]] ||
        die "srun started $SLURM_STEP_NUM_TASKS tasks on $SLURM_STEP_NUM_NODES node(s)," \
            "but one per node is wanted (torchrun starts the processes):" \
            "srun --ntasks=$SLURM_STEP_NUM_NODES --ntasks-per-node=1"
    nodes=$SLURM_STEP_NUM_NODES
    node_rank=$SLURM_NODEID
}

#? else
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

#? endif
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
    #? elif kind == "local"
    local fix="set PET_NNODES to the number of nodes"
    #? endif
    #? if kind != "slurm"
    [[ $nodes =~ ^[1-9][0-9]*$ ]] ||
        die "number of nodes '$nodes': expected a whole number; a range is an elastic job's: $fix"
    if [[ ! $node_rank =~ ^(0|[1-9][0-9]*)$ ]] || ((node_rank >= nodes)); then
        die "node rank '$node_rank': expected a whole number from 0 to $((nodes - 1))"
    fi
    #? endif
    [[ $processes =~ ^[1-9][0-9]*$ ]] ||
        die "processes per node '$processes': expected a whole number of at least 1;" \
            "set NPROC_PER_NODE"
    [[ $endpoint =~ ^.+:[1-9][0-9]*$ ]] ||
        die "$nodes nodes, and they are to meet at '$endpoint': start through the submit script," \
            "or set MASTER_ADDR to a host and MASTER_PORT to a number"
    command -v "$PYTHON" >/dev/null ||
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

# After SIGTERM torchrun 2.12 and later waits this long before it kills its processes (torchrun's
# default: 30 s). The processes use the time to save.
set_shutdown_timeout() {
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
}

# ---- options of torchrun -------------------------------------------------------------------------

# Adds the options by which the nodes find each other. torchrun --standalone, its usual way for one
# node, would listen on all networks and unpickle what any client sends (torch 2.13).
choose_rendezvous() {
    options+=(--rdzv-backend=static --rdzv-endpoint="$endpoint" --node-rank="$node_rank")
    options+=(--rdzv-id="${SLURM_JOB_ID:-run}.${SLURM_RESTART_COUNT:-0}.${endpoint##*:}")
    options+=(--rdzv-conf="timeout=${RDZV_TIMEOUT:-600}")
}

# Adds the options that send the ranks' lines to the console, with a prefix, and to a file per rank.
choose_output() {
    options+=(--tee=3) # standard output and error
    # shellcheck disable=SC2016 # torchrun fills in ${rank}
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[$host:"'${rank}] '
    # --tee makes each rank write to a file, for which Python would buffer lines.
    export PYTHONUNBUFFERED=1
    if [[ -n ${RUN_DIR:-} ]]; then
        local folder=$RUN_DIR/node$node_rank-$host
        # torchrun may write an early failure to error.json before it makes the folder.
        mkdir -p "$folder"
        options+=(--log-dir="$folder")
        export TORCHELASTIC_ERROR_FILE=$folder/error.json
    fi
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
source "$here/count_gpus.sh" # count_gpus, count_cores
main "$@"
