#!/usr/bin/env bash
#? set runai = site_facts(cookiecutter.site).kind == "runai"
# count_gpus prints how many GPUs of this node a run may use: 0 on a node without GPUs.
#
# launch/torchrun.sh, slurm/submit_multinode.sh and slurm/preflight.sh read this file. It is run on each node, since
# only the step itself knows its GPUs. Slurm 22.05.8 and 24.11.5, --gpus-per-node=2 --exclusive on nodes of four GPUs
# (measured 2026-11-22):
#                          job's record   batch script   shell of salloc   step (srun, in each of them)
#   GRES                   gpu:4
#   SLURM_GPUS_ON_NODE                    4              unset             2
#   CUDA_VISIBLE_DEVICES                  0,1,2,3        unset             0,1
# With --exclusive alone the record says gpu:4, and a step has neither variable. With --gpus=4 on two nodes the steps of
# two nodes may differ: 3 and 1.

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
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then # set, but empty or -1: this run may use no GPU
        listed=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '^[^-[:space:]]')
        # A site may set SLURM_GPUS_ON_NODE to all GPUs of a node, whatever was asked: MareNostrum 5 says 4.
        # torch sees no more than CUDA_VISIBLE_DEVICES names.
        reported=$((listed < ${reported:-listed} ? listed : ${reported:-listed}))
    fi
    [[ -n $reported ]] || reported=$({ nvidia-smi -L || rocm-smi --showuniqueid; } 2>/dev/null | grep -c '^GPU')
    echo "$reported"
}
