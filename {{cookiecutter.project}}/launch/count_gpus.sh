#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
# Counts the GPUs and the cores of this node that a run may use. Other scripts read this file:
#
#   count_gpus     prints the number of GPUs, 0 on a node without
#   count_cores    prints the number of cores
#? if kind == "slurm"
#
# launch/torchrun.sh, launch/rank.sh and slurm/preflight.sh call these functions on each node, in a
# step of srun. Only a step knows its GPUs. Measured with Slurm 22.05.8
# and 24.11.5 and --gpus-per-node=2 --exclusive on nodes of four GPUs (2026-11-22):
#
#                          scontrol show job   batch script   shell of salloc   step of srun
#   GRES                   gpu:4               -              -                 -
#   SLURM_GPUS_ON_NODE     -                   4              unset             2
#   CUDA_VISIBLE_DEVICES   -                   0,1,2,3        unset             0,1
#
# "-": no such field or variable there. "unset": Slurm could set the variable there, and does not.
#
# With --exclusive alone Slurm sets neither variable in a step, and count_gpus asks nvidia-smi. With
# --gpus=4 on two nodes Slurm may give one node three GPUs and the other node one.
#? endif

count_gpus() {
    local reported=${SLURM_GPUS_ON_NODE:-} visible
    #? if kind == "runai"
    # PET_NPROC_PER_NODE may be "auto", which torchrun takes for one per core on a node without
    # GPUs.
    if [[ ${PET_NPROC_PER_NODE:-} =~ ^[0-9]+$ ]]; then
        echo "$PET_NPROC_PER_NODE"
        return
    fi
    # RUNAI_NUM_OF_GPUS may be a part of one GPU, as in 0.5. nvidia-smi lists that as one.
    if [[ ${RUNAI_NUM_OF_GPUS:-} =~ ^[0-9]+$ ]]; then
        reported=$RUNAI_NUM_OF_GPUS
    fi
    #? endif
    # torch sees no more GPUs than CUDA_VISIBLE_DEVICES names. SLURM_GPUS_ON_NODE may be larger: a
    # site may set it to all GPUs of a node.
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        visible=$(count_visible_devices)
        if [[ -z $reported ]] || ((visible < reported)); then
            reported=$visible
        fi
    fi
    if [[ -z $reported ]]; then
        reported=$({ nvidia-smi -L || rocm-smi --showuniqueid; } 2>/dev/null | grep -c '^GPU') ||
            true # at 0 lines grep -c prints 0 and returns 1
    fi
    echo "$reported"
}

# Prints how many devices CUDA_VISIBLE_DEVICES names. CUDA ends the list at the first name that is
# none of a device, such as an empty one, -1 or NoDevFiles (of Slurm).
count_visible_devices() {
    local device devices count=0
    IFS=, read -r -a devices <<<"${CUDA_VISIBLE_DEVICES//[[:space:]]/}"
    for device in "${devices[@]:-}"; do
        case $device in
            '' | -* | NoDevFiles) break ;;
        esac
        count=$((count + 1))
    done
    echo "$count"
}

# Slurm may allow a step fewer cores than SLURM_CPUS_PER_TASK, or more: the smaller number counts.
count_cores() {
    local cores
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys both variables
    if ((cores > ${SLURM_CPUS_PER_TASK:-$cores})); then
        cores=$SLURM_CPUS_PER_TASK
    fi
    echo "$cores"
}
