#!/usr/bin/env bash
#? set runai = site_facts(cookiecutter.site).kind == "runai"
# count_gpus prints how many GPUs of this node a run may use: 0 on a node without GPUs.
#
# launch/torchrun.sh, launch/rank.sh, slurm/submit_multinode.sh and slurm/preflight.sh read this file. Under Slurm only a
# step knows its GPUs, so they call count_gpus on each node, in a step. Measured with Slurm 22.05.8 and 24.11.5 and
# --gpus-per-node=2 --exclusive on nodes of four GPUs (2026-11-22):
#
#                          scontrol show job   batch script   shell of salloc   step of srun
#   GRES                   gpu:4               -              -                 -
#   SLURM_GPUS_ON_NODE     -                   4              unset             2
#   CUDA_VISIBLE_DEVICES   -                   0,1,2,3        unset             0,1
#
# With --exclusive alone Slurm sets neither variable in a step, and nvidia-smi counts. With --gpus=4 on two nodes Slurm
# may give one node three GPUs and the other one.

count_gpus() {
    local listed reported=${SLURM_GPUS_ON_NODE:-}
    #? if runai
    if [[ ${PET_NPROC_PER_NODE:-} =~ ^[0-9]+$ ]]; then # else "auto", which means one per core on a node without GPUs
        echo "$PET_NPROC_PER_NODE"
        return
    fi
    # RUNAI_NUM_OF_GPUS may be a part of one GPU, which nvidia-smi lists as one.
    [[ ! ${RUNAI_NUM_OF_GPUS:-} =~ ^[0-9]+$ ]] || reported=$RUNAI_NUM_OF_GPUS
    #? endif
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        # An empty variable, -1 and NoDevFiles (of Slurm) mean: no GPU.
        listed=$(tr -d '[:space:]' <<<"$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -vcE '^(|-.*|NoDevFiles)$')
        # torch sees no more GPUs than CUDA_VISIBLE_DEVICES names. SLURM_GPUS_ON_NODE may count more, where a site sets it to
        # all GPUs of a node.
        [[ -n $reported ]] && ((reported <= listed)) || reported=$listed
    fi
    [[ -n $reported ]] || reported=$({ nvidia-smi -L || rocm-smi --showuniqueid; } 2>/dev/null | grep -c '^GPU')
    echo "$reported"
}
