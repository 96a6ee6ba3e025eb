#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set node = node_facts(cookiecutter)
#? set cores = cores_per_node(cookiecutter)
#? set container = cookiecutter.runtime not in ("venv", "none")
#? set mpi = "mpirun" in site.launchers
# Runs a PyTorch program on all nodes of a job: {{ site.title }}.
#
#   sbatch slurm/submit_multinode.sh                                 check/ranks.py, then training/train_ddp.py
#   sbatch slurm/submit_multinode.sh pi/pi.py --intervals 1e9        any program, with its arguments
#   sbatch --nodes=4 slurm/submit_multinode.sh -m package.module     options before the file win over the lines below
#   bash slurm/submit_multinode.sh [--nodes=4 --] pi/pi.py           first checks what would fail after hours of waiting
#   salloc --nodes=2 …, then bash slurm/submit_multinode.sh pi/pi.py inside an allocation it runs there
#   sbatch --array=0-3 slurm/submit_multinode.sh program.py --seed %a  %a in an argument becomes the index of an array job
#
# The program is looked up in the current folder, then in the project. Its exit code is the job's: 0, or not 0.
# Settings: env.sh; LAUNCHER=srun sbatch … takes another of its values for one job. Logs: logs/JOBID.ATTEMPT/ in the project.
#
# Before its walltime is over a program is asked to save and to end: the file STOP_FILE appears. If it creates REQUEUE_FILE,
# and ends with exit code 0, the job goes back into the queue, and is started again with RESTART_COUNT=1, 2, … A job that you
# cancel does not. To ask for it at any time: scancel --signal=USR1 --batch JOBID
#
#SBATCH {{ pad("--job-name=" ~ cookiecutter.project) }} # shown by squeue
#SBATCH {{ pad("--nodes=" ~ cookiecutter.nodes) }} # machines
#SBATCH {{ pad("--ntasks-per-node=1") }} # one launcher on each; it starts one process per GPU
#? for option, why in resources(cookiecutter)
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad("--requeue") }} # back into the queue after the failure of a node, a preemption, or the warning
#SBATCH {{ pad("--signal=B:USR1@" ~ warning(cookiecutter)) }} # this warning, so many seconds (or a minute more) before the walltime is over
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission: into one that does not exist, all output is lost
#SBATCH {{ pad("--open-mode=append") }} # a job that is requeued adds to its output instead of erasing it
#SBATCH {{ pad("--export=ALL") }} # NAME=value before sbatch reaches the job (not if your site sets SBATCH_EXPORT)

die() {
    echo "slurm/submit_multinode.sh: $*" >&2
    exit 2
}

# Prints the project's folder. Under sbatch this file runs as a copy in a spool folder; where the original lies is known
# to scontrol, as "Command=PATH ARGUMENTS" (PATH may be relative, or all of it "(null)").
find_project() {
    local folder command
    local candidates=("$(dirname "$(realpath "${BASH_SOURCE[0]}")")/..")
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        command=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')
        [[ $command == /* ]] || command=${SLURM_SUBMIT_DIR:-}/$command
        while [[ $command == */slurm/* ]]; do # from the right, since "/slurm/" may be part of an argument
            command=${command%/slurm/*}
            candidates+=("$command")
        done
    fi
    # PROJECT_DIR comes late: it may be another project's, from whose interactive shell this one was submitted.
    for folder in "${candidates[@]}" "${PROJECT_DIR:-}" "${SLURM_SUBMIT_DIR:-}"; do
        [[ ! -f $folder/launch/torchrun.sh ]] || { realpath "$folder" && return; }
    done
    return 1
}

# Prints where a program lies: in the current folder, else in the project.
find_program() {
    local folder
    for folder in "" "$PROJECT_DIR/"; do
        [[ ! -f $folder$1 ]] || { echo "$folder$1" && return; }
    done
    [[ $1 != python* && $1 != torchrun ]] || die "'$1': name the program alone, as in pi/pi.py or -m package.module; LAUNCHER starts $1"
    die "no program '$1' in $PWD nor in $PROJECT_DIR"
}

# Everything that can be known to be missing before the job waits in the queue.
prepare() {
    #? if container
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh" && activate "$PROJECT_DIR" "$PWD" "$(cd -- "$(dirname -- "$program")" && pwd)" || return 2
    #? else
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh" && activate || return 2
    #? endif
    case $LAUNCHER in # how many tasks on each node, and what each of them runs
        #? if "torchrun" in site.launchers
        torchrun) tasks=1 start=("$PROJECT_DIR/launch/torchrun.sh") ;;
        #? endif
        #? if "srun" in site.launchers
        srun) tasks=ranks start=("$PROJECT_DIR/launch/rank.sh") ;;
        #? endif
        #? if "spawn" in site.launchers
        spawn) tasks=1 start=("$PYTHON" "$PROJECT_DIR/launch/spawn.py") ;;
        #? endif
        #? if mpi
        mpirun) tasks=1 start=("$PROJECT_DIR/launch/torchrun.sh") ;;
        mpirun-ranks) tasks=ranks start=("$PROJECT_DIR/launch/rank.sh") ;;
        #? endif
        *) die "LAUNCHER='$LAUNCHER' is not known; use {{ site.launchers | join(", ") }}" ;;
    esac
    #? if mpi
    if [[ $LAUNCHER == mpirun* ]]; then
        [[ $(mpirun --version 2>&1) == *"Open MPI"* ]] ||
            die "LAUNCHER=$LAUNCHER needs Open MPI's mpirun, which was not found; name its module in MODULES of env.sh, or use torchrun"
        ((${#CONTAINER_SRUN_ARGS[@]} == 0)) ||
            die "LAUNCHER=$LAUNCHER cannot start RUNTIME=$RUNTIME, which lives in options of srun; use torchrun, srun or spawn"
    fi
    #? endif
    [[ $MAX_REQUEUES =~ ^[0-9]+$ ]] || die "MAX_REQUEUES='$MAX_REQUEUES': expected a whole number; 0: the job is never requeued"
    mkdir -p "$PROJECT_DIR/logs" && [[ -w $PROJECT_DIR/logs ]] || die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go"
}

# Prints a port on which nothing happens on this machine, the run's first node (or where salloc was called). It follows
# from job and attempt, so that two jobs on one node, or an attempt and its forerunner, differ; and it lies outside the
# range of outgoing connections.
free_port() {
    #? if site.ports
    local first="{{ site.ports.first }}" count="{{ site.ports.last - site.ports.first + 1 }}" port try # the site's own range
    #? else
    local low high first=10000 count=20000 port try
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    if ((low < 11000)); then
        first=$((high + 1)) count=$((65536 - first))
    elif ((low < first + count)); then
        count=$((low - first))
    fi
    ((count > 0)) || die "no port is left outside the ephemeral range $low-$high"
    #? endif
    for ((try = 0; try < count; try++)); do
        port=$((first + (SLURM_JOB_ID + 7919 * ${SLURM_RESTART_COUNT:-0} + try) % count))
        grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X $port) " /proc/net/tcp /proc/net/tcp6 || { echo $port && return; }
    done
    die "all ports from $first to $((first + count - 1)) are in use"
}

# Prints the smallest number of a list as Slurm writes it: 64(x2),32
smallest() {
    tr , '\n' <<<"$1" | sed 's/(.*//' | sort -n | head -n 1
}

# Prints the GPUs of each node of the job, or nothing. Slurm's own record has them in salloc too, where no variable does.
gpus_per_node() {
    local counts
    counts=$(scontrol --details show job "$SLURM_JOB_ID" | grep -oE '[=,]gpu(:[^:,( ]+)?:[0-9]+\(' | grep -oE '[0-9]+\($') || return 0
    smallest "${counts//$'\n'/,}"
}

# USR1 came: asks the ranks to save and to end.
# shellcheck disable=SC2329 # called by the trap
on_warning() {
    if [[ -z $early ]] && ((left < 600 && SECONDS < left / 2)); then # if the walltime is short, Slurm sends it at the start
        early=1
        echo "$(date '+%F %T') warned early: the program will be asked to save at $(date -d "@$STOP_TIME" +%T)"
        return 0 # in a trap, it would be the status of what was interrupted
    fi
    warned=1 early=''
    touch "$STOP_FILE"
    echo "$(date '+%F %T') warned: the program is asked to save and to end"
}

# Runs a command, in a batch job in the background: bash does not hear a signal while it waits for a foreground process.
follow() {
    if [[ -z $batch ]]; then
        "$@"
        return
    fi
    local command
    "$@" &
    command=$!
    while kill -0 $command 2>/dev/null; do # a signal ends the wait, not yet the command
        if [[ -z $early ]]; then
            wait $command || true
        else
            sleep 1
            (($(date +%s) < STOP_TIME)) || on_warning
        fi
    done
    wait $command
}

# Whether the job shall go on later: its program has saved and has more to do, and was not asked to end for good.
goes_on() {
    local job
    [[ -n $batch && -e $REQUEUE_FILE ]] || return
    job=$(scontrol show job "$SLURM_JOB_ID")
    [[ $job == *JobState=RUNNING* ]] || return # else scancel has come since
    # Of a preemption this script may not hear, torchrun ends with exit code 1 then, and Slurm puts back into the queue only
    # what still runs when the grace is over.
    [[ $job == *PreemptTime=[0-9]* ]] || { ((code == 0)) && [[ -z $cancelled && (-n $warned || $(date +%s) -ge STOP_TIME) ]]; }
}

# Puts the job back into the queue.
requeue() {
    local attempt=${SLURM_RESTART_COUNT:-0} now
    now=$(date '+%F %T') # the requeue ends what this script would start after it
    if ((attempt >= MAX_REQUEUES)); then
        echo "$now saved, but not done, and MAX_REQUEUES=$MAX_REQUEUES is reached: the next job with --resume goes on"
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "$now saved, but not done: back into the queue as attempt $((attempt + 1)), which will go on"
    else
        echo "$now saved, but not done, and this job may not be requeued: the next job with --resume goes on"
    fi
}

# Runs one program on all nodes.
run() {
    MASTER_PORT=$(free_port) || return
    export MASTER_PORT
    if [[ $PREFLIGHT != 0 ]]; then
        "$PROJECT_DIR/slurm/preflight.sh" "${needed[@]}" || exit
        PREFLIGHT=0
    fi
    echo "$(date '+%F %T') $* on ${#hosts[@]} node(s), meeting at $MASTER_ADDR:$MASTER_PORT"
    #? if mpi
    if [[ $LAUNCHER == mpirun* ]]; then
        # Open MPI starts its daemons with an srun of its own, which takes these: all variables, and all cores (srun 22.05 to
        # 23.02 would give it one). The header's one task per node would be one slot.
        follow env SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK="$cores" SLURM_TASKS_PER_NODE="$per_node(x${#hosts[@]})" \
            mpirun -np $((${#hosts[@]} * per_node)) --map-by "ppr:$per_node:node" --bind-to none \
            "${CONTAINER_EXEC[@]}" "${start[@]}" "$@"
        return
    fi
    #? endif
    # The step says its own size: inside this allocation, options alone are not enough. --export=ALL, because a site's
    # default may be NONE; --cpus-per-task, because srun 22.05 to 23.02 do not inherit it; --overlap in an interactive
    # shell, which is a step itself and holds what this one needs. No --gpu-bind: each rank sees all GPUs of its node.
    follow srun ${SLURM_STEP_ID:+--overlap} --export=ALL --nodes=${#hosts[@]} --ntasks=$((${#hosts[@]} * per_node)) \
        --ntasks-per-node="$per_node" --cpus-per-task=$((cores / per_node)) --kill-on-bad-exit=1 "${step[@]}" \
        "${CONTAINER_SRUN_ARGS[@]}" "${CONTAINER_EXEC[@]}" "${start[@]}" "$@"
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^#SBATCH/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
batch=''
if [[ ${BASH_SOURCE[0]##*/} == slurm_script ]]; then # Slurm's name for the copy that sbatch runs
    batch=$SLURM_JOB_ID
    trap '' USR1 # which would end this shell, until there is a program to be warned
fi
PROJECT_DIR=$(find_project) || die "found no launch/torchrun.sh; submit from the project, or set PROJECT_DIR to it"
export PROJECT_DIR
# What a login shell, or another job, left behind would be taken for this run's own.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!PET_@}" "${!OMPI_COMM_@}" "${!PMI_@}" "${!SLURM_CPU_BIND@}"
#? if mpi
for name in "${!PMIX_@}"; do # mpirun inside a step would take itself for a part of it; settings stay
    [[ $name == PMIX_MCA_* ]] || unset "$name"
done
#? endif
options=() # for sbatch
if [[ ${1:-} == -* && $1 != -m ]]; then
    [[ -z ${SLURM_JOB_ID:-} ]] || die "'$1': inside a job it is too late for options of sbatch; name a program"
    while (($#)) && [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    (($#)) || die "options for sbatch end with --, as in: bash slurm/submit_multinode.sh --nodes=4 -- pi/pi.py"
    shift
fi
case ${1:-} in
    -m) program=-m ;;
    ?*) program=$(find_program "$1") || exit ;;
    *)
        program=$PROJECT_DIR/check/ranks.py # then training/train_ddp.py
        [[ -f $program && -f $PROJECT_DIR/training/train_ddp.py ]] ||
            die "no program given, and no check/ranks.py and training/train_ddp.py in $PROJECT_DIR to run instead: name one"
        ;;
esac

if [[ -z ${SLURM_JOB_ID:-} ]]; then
    unset SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES
    command -v sbatch >/dev/null || die "sbatch was not found: this is not a login node of a Slurm cluster"
    [[ -w . ]] || die "cannot write to $PWD, where the job's output would go: submit from another folder"
    (prepare) || exit
    sbatch --export=ALL "${options[@]}" "${BASH_SOURCE[0]}" "$@" && exit
    code=$?
    echo "If sbatch refused the job: your accounts: {{ in_quotes(site.commands.get('accounts', '')) }}; queues: {{ in_quotes(site.commands.get('queues', '')) }}" >&2
    exit $code
fi

set -- "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}"
prepare || exit
set -euo pipefail # only now: modules and virtual environments read variables that are not set

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#hosts[@]} == SLURM_JOB_NUM_NODES)) || die "scontrol names ${#hosts[@]} hosts for $SLURM_JOB_NUM_NODES nodes"
export MASTER_ADDR="${hosts[0]}${MASTER_ADDR_SUFFIX:-}"
export RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
export RUN_DIR="$PROJECT_DIR/logs/$SLURM_JOB_ID.$RESTART_COUNT"
export STOP_FILE="$RUN_DIR/stop" REQUEUE_FILE="$RUN_DIR/requeue"
mkdir -p "$RUN_DIR"
ln -sfn "${RUN_DIR##*/}" "$PROJECT_DIR/logs/latest"
rm -f "$STOP_FILE" "$REQUEUE_FILE" # of a run before this one in the same allocation
#? if cores
cores=${SLURM_CPUS_PER_TASK:-$(smallest "$SLURM_JOB_CPUS_PER_NODE")} # of each node; salloc may not have been told
#? else
cores=$(smallest "$SLURM_JOB_CPUS_PER_NODE") # of each node
#? endif
gpus=$(gpus_per_node)
[[ -n $gpus ]] || unset SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES # of the step that it was submitted from
per_node=1 step=() # more options of srun
#? for option in site.srun if not option.tasks
step+=("{{ option.option }}") # {{ option.why }}
#? endfor
if [[ $tasks == ranks ]]; then
    export NPROC_PER_NODE=${NPROC_PER_NODE:-${gpus:-${CPU_RANKS_PER_NODE:-1}}}
    [[ $NPROC_PER_NODE =~ ^[1-9][0-9]*$ ]] || die "NPROC_PER_NODE='$NPROC_PER_NODE': expected a whole number of at least 1"
    ((cores >= NPROC_PER_NODE)) ||
        die "$NPROC_PER_NODE ranks on each node, but $cores core(s): raise --cpus-per-task, lower NPROC_PER_NODE, or use LAUNCHER=torchrun"
    per_node=$NPROC_PER_NODE
    step+=(--label)
    #? for option in site.srun if option.tasks == "rank"
    # {{ option.why }}
    [[ $per_node != "{{ node.gpus }}" ]] || step+=("{{ option.option }}")
    #? endfor
#? if site.srun | selectattr("tasks", "equalto", "node") | list
else
    #? for option in site.srun if option.tasks == "node"
    step+=("{{ option.option }}") # {{ option.why }}
    #? endfor
#? endif
fi

needed=("$PROJECT_DIR/launch" "${CONTAINER_EXEC[@]:0:1}") # on every node
[[ $program == -m ]] || needed+=("$(realpath "$program")")
#? if container
if ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]} == 0)); then
    needed+=("$(command -v "$PYTHON")")
elif [[ ${IMAGE:-} == /* ]]; then
    needed+=("$IMAGE")
fi
#? else
((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})) || needed+=("$(command -v "$PYTHON")")
#? endif

# Two ways to hear of the end, as a site may not send the warning, and in an interactive shell nobody is there to get it:
# STOP_TIME [seconds since 1970] is when a program saves and ends by itself.
end=${SLURM_JOB_END_TIME:-$(date -d "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)" +%s 2>/dev/null)} ||
    end=$(date -d "1 year" +%s) # no limit
left=$((end - $(date +%s)))
spare=$((left < 600 ? 30 : left > 3000 ? 150 : left / 20)) # later than the warning
export STOP_TIME=$((end - spare))
warned='' early='' cancelled=''
if [[ -n $batch ]]; then
    trap on_warning USR1
    trap 'cancelled=1 && touch "$STOP_FILE"' TERM # scancel, or a preemption
fi

code=0
if [[ -n ${1:-} ]]; then
    run "$program" "${@:2}" || code=$?
else
    run "$PROJECT_DIR/check/ranks.py" && run "$PROJECT_DIR/training/train_ddp.py" || code=$?
fi
if goes_on; then
    requeue
elif [[ -n $cancelled ]]; then
    echo "$(date '+%F %T') told to end: the walltime, scancel, a preemption or a failed node; slurm/doctor.sh $SLURM_JOB_ID says which"
elif ((code)); then
    [[ -z $batch || -z ${SLURM_ARRAY_TASK_ID:-} ]] || batch=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    "$PROJECT_DIR/slurm/doctor.sh" "${batch:-$RUN_DIR}" || true # why, and the first rank that failed
fi
exit $code
