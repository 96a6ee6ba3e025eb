#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set node = node_facts(cookiecutter)
#? set cores = cores_per_node(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set container = runtime not in ("venv", "none")
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
# Before the walltime is over this script asks the program to save and to end: it creates the file STOP_FILE. If the program
# then creates REQUEUE_FILE and ends with exit code 0, this script puts the job back into the queue, and Slurm starts it again
# with RESTART_COUNT=1, 2, … A job that you cancel is not requeued. To ask a program at any time:
# scancel --signal=USR1 --batch JOBID
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

# Prints a line with the time, without a process: none can be started any more when a requeue ends this script.
say() { printf '%(%F %T)T %s\n' -1 "$*"; }

# Prints the project's folder. Under sbatch this file runs as a copy in a spool folder; where the original lies is known
# to scontrol, as "Command=PATH ARGUMENTS" (PATH may be relative, or all of it "(null)").
find_project() {
    local folder command
    local candidates=("$(dirname "$(realpath "${BASH_SOURCE[0]}")")/..")
    command=${SLURM_JOB_ID:+$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')}
    [[ $command == /* ]] || command=${SLURM_SUBMIT_DIR:-}/$command
    while [[ $command == */slurm/* ]]; do # every folder before a "/slurm/", the longest first: arguments may have one too
        command=${command%/slurm/*}
        candidates+=("$command")
    done
    # PROJECT_DIR comes late: the shell of another project's slurm/interactive.sh exports that project's.
    for folder in "${candidates[@]}" "${PROJECT_DIR:-}" "${SLURM_SUBMIT_DIR:-}"; do
        [[ -f $folder/launch/torchrun.sh ]] && realpath "$folder" && return
    done
}

# Everything that can be known to be missing before the job waits in the queue.
prepare() {
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    #? if container
    set_up_software "$PROJECT_DIR" "$PWD" "$(cd -- "$(dirname -- "$program")" && pwd)" || return 2
    #? else
    set_up_software || return 2
    #? endif
    type -P srun >/dev/null || die "srun is not found any more once MODULES are loaded: name Slurm's own module there too"
    [[ " {{ site.launchers | join(' ') }} " == *" $LAUNCHER "* ]] ||
        die "LAUNCHER='$LAUNCHER' is not known; use {{ site.launchers | join(', ') }}"
    case $LAUNCHER in # how many tasks on each node, and what each of them runs
        torchrun | spawn | mpirun) tasks=1 wrapper=("$PROJECT_DIR/launch/torchrun.sh") ;; # which looks at LAUNCHER too
        srun | mpirun-ranks) tasks=ranks wrapper=("$PROJECT_DIR/launch/rank.sh") ;;
    esac
    #? if mpi
    [[ $LAUNCHER != mpirun* || $(mpirun --version 2>&1) == *"Open MPI"* ]] ||
        die "LAUNCHER=$LAUNCHER needs Open MPI's mpirun, which was not found; name its module in MODULES of env.sh, or use torchrun"
    #? if runtime in ("pyxis", "edf")
    [[ $LAUNCHER != mpirun* || ${#CONTAINER_SRUN_ARGS[@]} == 0 ]] ||
        die "LAUNCHER=$LAUNCHER cannot start RUNTIME=$RUNTIME, which lives in options of srun; use torchrun, srun or spawn"
    #? endif
    #? endif
    [[ ${NPROC_PER_NODE:-1} =~ ^[1-9][0-9]*$ ]] || die "NPROC_PER_NODE='$NPROC_PER_NODE': expected a whole number of ranks on each node"
    case ${NPROC_PER_NODE:-unset}:$LAUNCHER in # 1:srun is the way for such a program; 2 or more overrides this check
        unset:* | 1:torchrun | 1:mpirun)
            ! starts_its_own_ranks "$program" ||
                die "$program starts its own ranks, so it has to be started once per node, and not by torchrun: LAUNCHER=srun NPROC_PER_NODE=1 sbatch slurm/submit_multinode.sh $program"
            ;;
    esac
    [[ $MAX_REQUEUES =~ ^(0|[1-9][0-9]*)$ ]] || die "MAX_REQUEUES='$MAX_REQUEUES': expected a whole number; 0: the job is never requeued"
    # Of the Python outside of containers, and without an import, which takes a second.
    [[ -n ${SLURM_JOB_ID:-} ]] || ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})) ||
        "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
        die "$PYTHON has no torch: see RUNTIME, MODULES, PYTHON in env.sh"
    make_logs_folder || die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go"
}

# Prints a port on which nothing happens on this machine, the run's first node (or where salloc was called). It follows
# from job and attempt, so that two jobs on one node, or an attempt and its forerunner, differ; and it lies outside the
# range of outgoing connections, if that leaves room.
free_port() {
    #? if site.ports
    local first="{{ site.ports.first }}" count="{{ site.ports.last - site.ports.first + 1 }}" port try # the site's own range
    #? else
    local low high port try
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    local first=10000 count=20000
    if ((low < 11000 && high < 65000)); then # there is room above the range of outgoing connections
        first=$((high + 1))
        ((count <= 65535 - high)) || count=$((65535 - high))
    elif ((11000 <= low && low < 30000)); then # or below it
        count=$((low - first))
    fi
    #? endif
    for ((try = 0; try < count; try++)); do
        port=$((first + (SLURM_JOB_ID + 7919 * ${SLURM_RESTART_COUNT:-0} + try) % count))
        grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf %04X $port) " /proc/net/tcp /proc/net/tcp6 || { echo $port && return; }
    done
    die "none of the $count ports from $first on is free"
}

# Prints the smallest number of a list as Slurm writes it: 64(x2),32 or gpu:a100:4(IDX:0-3)
smallest() { tr , '\n' | sed 's/(.*//; s/.*://' | sort -n | head -n 1; }

# Prints how many GPUs a step gets on each node, the smallest number if the nodes differ. The job's record may say more:
# with --exclusive it has all GPUs of the nodes, and a step those that were asked for (launch/count_gpus.sh).
gpus_of_a_step() {
    local counts
    counts=$(srun --overlap --export=ALL --input=none --nodes=${#hosts[@]} --ntasks=${#hosts[@]} --ntasks-per-node=1 \
        --cpus-per-task="$cores" bash -c "$(<"$PROJECT_DIR/launch/count_gpus.sh")"$'\n'count_gpus) ||
        die "srun could not count the GPUs of each node, see above: ask for them with --gpus-per-node, or set NPROC_PER_NODE"
    counts=$(grep -E '^[0-9]+$' <<<"$counts") || # a site's TaskProlog may print lines of its own
        die "no node said how many GPUs it has: set NPROC_PER_NODE"
    sort -n <<<"$counts" | head -n 1
}

# Sets `step`, the command that starts a launcher on all nodes, and how many of them on each.
build_step() {
    # torchrun counts the GPUs of its step by itself. srun has to be told how many ranks to start. mpirun runs outside of a
    # step on the first node, where it may see GPUs that no step gets.
    if [[ $tasks == ranks || $LAUNCHER == mpirun ]]; then
        [[ -n ${NPROC_PER_NODE:-} || -z $gpus ]] || NPROC_PER_NODE=$(gpus_of_a_step) || exit
        [[ ${NPROC_PER_NODE:-0} != 0 ]] || NPROC_PER_NODE=${CPU_RANKS_PER_NODE:-1}
        export NPROC_PER_NODE
    fi
    if [[ $tasks == ranks ]]; then
        ((NPROC_PER_NODE <= cores)) ||
            die "NPROC_PER_NODE=$NPROC_PER_NODE: there are $cores core(s) on each node: raise --cpus-per-task, lower it, or use LAUNCHER=torchrun"
        per_node=$NPROC_PER_NODE
    fi
    # The step says its own size: inside this allocation, options alone are not enough. --export=ALL, because a site's
    # default may be NONE; --cpus-per-task, because srun 22.05 to 23.02 do not inherit it; --overlap in an interactive
    # shell, which is a step itself and holds what this one needs. No --gpu-bind: each rank sees all GPUs of its node.
    step=(srun ${SLURM_STEP_ID:+--overlap} --export=ALL --nodes=${#hosts[@]} --ntasks=$((${#hosts[@]} * per_node))
        --ntasks-per-node="$per_node" --cpus-per-task=$((cores / per_node)) --kill-on-bad-exit=1 "${CONTAINER_SRUN_ARGS[@]}")
    [[ $tasks == 1 ]] || step+=(--label)
    #? for option in site.srun
    #? if option.tasks
    # {{ option.why }}
    #? if option.tasks == "rank"
    [[ $tasks == 1 || $per_node != "{{ node.gpus }}" ]] || step+=("{{ option.option }}")
    #? else
    [[ $tasks == ranks ]] || step+=("{{ option.option }}")
    #? endif
    #? else
    step+=("{{ option.option }}") # {{ option.why }}
    #? endif
    #? endfor
    #? if mpi
    if [[ $LAUNCHER == mpirun* ]]; then
        # Open MPI starts its daemons with an srun of its own, which takes these: all variables, and all cores (srun 22.05 to
        # 23.02 would give it one). The header's one task per node would be one slot.
        step=(env SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK="$cores" SLURM_TASKS_PER_NODE="$per_node(x${#hosts[@]})"
            mpirun -np $((${#hosts[@]} * per_node)) --map-by "ppr:$per_node:node" --bind-to none)
    fi
    #? endif
}

# USR1 came, or the time is up: asks the ranks to save and to end.
# shellcheck disable=SC2329 # called by the trap
on_warning() {
    # If the walltime is short, Slurm sends USR1 soon after the start: in the first half of the time, or before the program
    # can have made a step. This script then waits until STOP_TIME.
    if [[ -z $warned ]] && ((left < 600 && (SECONDS < left / 2 || SECONDS < ${took[start]:-0}))); then
        warned=early
        say "warned early: the program will be asked to save at $(date -d "@$STOP_TIME" +%T)"
    else
        warned=now
        touch "$STOP_FILE"
        say "warned: the program is asked to save and to end"
    fi
}

# Fills took[start], took[look] and took[save] with the longest times [s] that earlier attempts of this job have measured.
# training/stop.py writes and explains them. A torn line does not count.
read_times() {
    local file name seconds
    for file in "$PROJECT_DIR/logs/$SLURM_JOB_ID".*/times; do
        [[ -r $file ]] || continue
        while read -r name seconds; do
            [[ $name =~ ^(start|look|save)$ && $seconds =~ ^(0|[1-9][0-9]{0,5})$ ]] || continue
            ((seconds <= ${took[$name]:-0})) || took[$name]=$seconds
        done <"$file"
    done
}

# Whether the program tells of its steps in TIMES_FILE: an earlier attempt has done so, or stop.py lies beside the program.
tells_of_steps() { ((${#took[@]})) || [[ -f $(dirname -- "$running")/stop.py ]]; }

# Runs a command in the background: bash does not hear a signal while it waits for a foreground process. A signal ends
# `wait`, hence the loop; bash keeps the command's exit code for the last `wait`.
# shellcheck disable=SC2329 # called in batch jobs
follow() {
    "$@" &
    local command=$!
    while kill -0 "$command" 2>/dev/null; do
        if [[ $warned == early ]]; then
            sleep 1
            (($(date +%s) < STOP_TIME)) || on_warning
        else
            wait "$command" || true
        fi
    done
    wait "$command"
}

# Runs one program on all nodes.
run() {
    running=$1 launched=$SECONDS
    say "$* on ${#hosts[@]} node(s), meeting at $MASTER_ADDR:$MASTER_PORT"
    ${batch:+follow} "${step[@]}" "${CONTAINER_EXEC[@]}" "${wrapper[@]}" "$@"
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '/^#!/d; /^#SBATCH/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit; }
batch='' warned='' cancelled='' record='' per_node=1 code=0
declare -A took=()
# A job that a job of an array has submitted inherits these, though it is in no array.
if [[ -n ${SLURM_JOB_ID:-} && -n ${SLURM_ARRAY_TASK_ID:-} && $(scontrol show job "$SLURM_JOB_ID") != *ArrayTaskId=* ]]; then
    unset "${!SLURM_ARRAY_@}"
fi
if [[ ${BASH_SOURCE[0]##*/} == slurm_script ]]; then # Slurm's name for the copy that sbatch runs
    # ARRAY_INDEX in an array: the last of its jobs has the array's own number, which scontrol takes for all of them.
    batch=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}
    trap '' USR1 # which would end this shell, until there is a program to be warned
fi
PROJECT_DIR=$(find_project) || die "found no launch/torchrun.sh; submit from the project, or set PROJECT_DIR to it"
export PROJECT_DIR
# Unset stale variables of the submitting shell, which the launchers would take for this run's.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!PET_@}" "${!OMPI_COMM_@}" "${!PMI_@}" "${!SLURM_CPU_BIND@}"
#? if mpi
# mpirun inside a step would take itself for a part of it; settings stay.
mapfile -t left_by_mpi < <(compgen -e PMIX_ | grep -v ^PMIX_MCA_)
unset "${left_by_mpi[@]}"
#? endif
options=() # for sbatch
if [[ ${1:-} == -* && $1 != -m ]]; then
    [[ -z ${SLURM_JOB_ID:-} ]] || die "'$1': inside a job it is too late for options of sbatch; name a program"
    while (($#)) && [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift || die "options for sbatch end with --, as in: bash slurm/submit_multinode.sh --nodes=4 -- pi/pi.py"
fi
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh"
program=$(find_program "$@") || exit

if [[ -z ${SLURM_JOB_ID:-} ]]; then
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
export MASTER_ADDR="${hosts[0]}${MASTER_ADDR_SUFFIX:-}"
export RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
export RUN_DIR="$PROJECT_DIR/logs/$SLURM_JOB_ID.$RESTART_COUNT"
export STOP_FILE="$RUN_DIR/stop" REQUEUE_FILE="$RUN_DIR/requeue" TIMES_FILE="$RUN_DIR/times"
mkdir -p "$RUN_DIR"
ln -sfn "${RUN_DIR##*/}" "$PROJECT_DIR/logs/latest" || true # two jobs may start at once
rm -f "$STOP_FILE" "$REQUEUE_FILE" "$TIMES_FILE" # of a run before this one in the same allocation
#? if cores
cores=${SLURM_CPUS_PER_TASK:-$(smallest <<<"$SLURM_JOB_CPUS_PER_NODE")} # of each node; salloc may not have been told
#? else
cores=$(smallest <<<"$SLURM_JOB_CPUS_PER_NODE") # of each node
#? endif
# Slurm's own record has the GPUs in salloc too, where no variable does.
gpus=$(scontrol --details show job "$SLURM_JOB_ID" | grep -oE '\<gpu(:[^:,( ]+)?:[0-9]+\(' | smallest) || true
[[ -n $gpus ]] || unset SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES # of the shell or step that it was submitted from

# Two ways to hear of the end, as a site may not send the warning, and in an interactive shell nobody is there to get it:
# STOP_TIME [seconds since 1970] is when a program saves and ends by itself.
end=${SLURM_JOB_END_TIME:-$(date -d "$(squeue --noheader --jobs="${batch:-$SLURM_JOB_ID}" --format=%e || echo unknown)" +%s 2>/dev/null)} ||
    end=$(date -d "1 year" +%s) # no limit, or not known
left=$((end - $(date +%s)))
spare=$((left < 600 ? 30 : left > 3000 ? 150 : left / 20)) # a guess: the warning of --signal comes earlier
read_times
if [[ -n ${took[save]:-} ]]; then # measured by an earlier attempt: half as much again, and 10 s for the launcher to end
    measured=$((10 + 3 * (${took[look]:-0} + took[save]) / 2))
    measured=$((measured < left / 2 ? measured : left / 2))
    # It replaces a guess that is too short, or so long that the program would have less time for its steps.
    if ((measured > spare || ${took[start]:-0} + 2 * spare >= left)); then spare=$measured; fi
fi
export STOP_TIME=$((end - spare)) START_TIME=$(($(date +%s) - SECONDS))
[[ -z $batch ]] || trap on_warning USR1
[[ -z $batch ]] || trap 'cancelled=1 && touch "$STOP_FILE"' TERM # scancel, or a preemption

needed=("$PROJECT_DIR/launch" "${CONTAINER_EXEC[@]:0:1}") # on every node
[[ $program == -m ]] || needed+=("$(realpath "$program")")
((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})) || needed+=("$(command -v "$PYTHON")")
#? if runtime in ("apptainer", "pyxis", "enroot", "edf")
[[ $RUNTIME != "{{ runtime }}" ]] || needed+=("$IMAGE")
#? endif
#? if runtime in ("enroot", "podman-hpc")
[[ $RUNTIME != "{{ runtime }}" ]] || needed+=("{{ runtime }}") # which container/start.sh calls
#? endif
#? if container
((${#CONTAINER_FOLDERS[@]} == 0)) || needed+=(--mounts "${CONTAINER_FOLDERS[@]}")
#? endif
MASTER_PORT=$(free_port)
export MASTER_PORT
[[ $PREFLIGHT == 0 ]] || "$PROJECT_DIR/slurm/preflight.sh" "${needed[@]}" || exit
build_step # after the preflight, which finds a node that would keep srun waiting
run "$program" "${@:2}" || code=$?
if [[ -z ${1:-} && $code == 0 ]]; then
    MASTER_PORT=$(free_port)
    run "$PROJECT_DIR/training/train_ddp.py" || code=$?
fi
# Slurm's record says why a job ends: needed if the program asks for a requeue, or if Slurm sent TERM.
if [[ -n $batch && (-e $REQUEUE_FILE || -n $cancelled) ]]; then record=$(scontrol show job "$batch") || true; fi
again=''
[[ ! -e $REQUEUE_FILE ]] || case $record in
    # Slurm may preempt the job without a signal to this script, and torchrun then ends with exit code 1. Slurm itself
    # requeues only a job that still runs when its grace time is over.
    *JobState=RUNNING*PreemptTime=[0-9]*) again=1 ;;
    # It is not running if scancel has come since.
    *JobState=RUNNING*)
        if [[ $code == 0 && -z $cancelled && ($warned == now || $(date +%s) -ge $STOP_TIME) ]]; then again=1; fi
        ;;
    # The program has saved in time, but the launcher has not ended in time. Slurm leaves this script seconds (KillWait).
    *Reason=TimeLimit*) again=1 ;;
esac
if [[ -n $again ]]; then
    if ((RESTART_COUNT >= MAX_REQUEUES)); then
        say "saved, but not done, and MAX_REQUEUES=$MAX_REQUEUES is reached: the next job with --resume goes on"
    elif scontrol requeue "$batch" || (($? > 128)); then # a signal: the requeue has ended scontrol, too, before it could tell
        say "saved, but not done: back into the queue as attempt $((RESTART_COUNT + 1)), which will go on"
    else
        say "saved, but not done, and this job may not be requeued: the next job with --resume goes on"
    fi
elif [[ $record == *Reason=TimeLimit* && ! -e $TIMES_FILE ]] && tells_of_steps; then
    limit=${record#*TimeLimit=}
    say "the time limit of ${limit%%[[:space:]]*} was over $((SECONDS - launched)) s into the program's start," \
        "before its first step: raise --time"
elif [[ -n $cancelled ]]; then
    say "told to end: the walltime, scancel, a preemption or a failed node; slurm/doctor.py $batch says which"
elif ((code)) && type -P python3 >/dev/null; then
    python3 "$PROJECT_DIR/slurm/doctor.py" "${batch:-$RUN_DIR}" || true # why, and the first rank that failed
elif ((code)); then
    say "failed with exit code $code; this node has no python3: run python3 slurm/doctor.py ${batch:-$RUN_DIR} on another"
fi
exit $code
