#!/usr/bin/env bash
#? set container = plan_of(cookiecutter).in_container
# Checks the node on which it runs. slurm/preflight.sh has srun run it once on every node of a job, with
# the source of launch/count_gpus.sh in front of it. It does not run alone.
#
#   preflight_node.sh [NAME|PATH …]{{ " [--mounts FOLDER …]" if container }}
#
# The functions below are the checks, in the order of main. The comment of each names a public
# report of what happens without it. To add one, write a function and call it in main, before "end".
# It says "tell at NAME" when it begins, and "tell fault TEXT" if the node is unfit: then
# slurm/preflight.sh needs no change.
#
# It prints lines of three fields, with tabs between them: the node, a kind and a text.
#   at                   the check that begins now, and "end" after the last one. So a check that hangs
#                        is the last one that the node names
#   fault                what is wrong with this node, and what to do
#   unreached            why this node cannot reach the master
#   gpus, drivers,       numbers that slurm/preflight.sh compares: of GPUs, of their drivers, and of RDMA
#   networks             networks with an active port, 0 or 1
#
# It reads the variables of a Slurm step, CUDA_VISIBLE_DEVICES, GLOO_SOCKET_IFNAME, and RUN_DIR,
# MASTER_ADDR and MASTER_PORT of slurm/job.sh.
set -u
export LC_ALL=C # messages of other programs are compared, so they must be in English

main() {
    check_writable /tmp "tell your site"
    check_writable /dev/shm "tell your site"
    check_writable "$RUN_DIR" "put it on a file system that all nodes share"
    check_own_name
    check_master
    check_software "$@"
    check_cores
    tell_rdma_networks
    check_gpus
    tell at end
}

# Prints one line. Arguments: its kind, its text. printf writes it at once: srun does not mix one
# write with the lines of other nodes.
tell() { printf '%s\t%s\t%s\n' "$SLURMD_NODENAME" "$1" "${*:2}"; }

# ---- folders -------------------------------------------------------------------------------------

# Without room in /tmp, torchrun, Python and bash fail
# (https://github.com/TUM-DAML/seml/issues/94, 2022-03-31). NCCL and data loaders fail if earlier
# jobs have filled /dev/shm (https://github.com/NVIDIA/nccl/issues/525, 2021-06-20). A quota may be
# used up in the folder of logs (https://github.com/RobertsLab/resources/issues/1064, 2021-01-07).
check_writable() {
    local folder=$1 fix=$2 error
    tell at "$folder"
    error=$(write_file_in "$folder" 2>&1) ||
        tell fault "cannot write to $folder (${error##*: }): free space there if it is full, else $fix"
}

# Writes a file of 16 KiB and removes it. Argument: the folder, in which other users may write, too.
# mktemp takes a name that they cannot guess, and nofollow refuses a link in its place. Some
# file systems report a used-up quota only when the data leave the node, which fsync waits for.
write_file_in() {
    local file code=0
    file=$(mktemp "$1/.preflight.XXXXXXXXXX") || return
    dd if=/dev/zero of="$file" bs=16k count=1 conv=fsync oflag=nofollow status=none || code=$?
    rm -f "$file"
    return "$code"
}

# ---- names and network ---------------------------------------------------------------------------

# Prints the addresses of a name, a line each.
addresses_of() { getent ahosts "$1" | sed 's/ .*//' | sort -u; }

# gloo takes the address of the node's own name. Without one it takes 127.0.0.1, and ranks of other
# nodes cannot connect (https://github.com/vllm-project/vllm/issues/7074, 2024-08-02). NCCL does not ask
# for the name, and neither do the ranks of one node, nor gloo if it is told the network.
check_own_name() {
    local name
    if [[ -n ${GLOO_SOCKET_IFNAME:-} || ${SLURM_STEP_NUM_NODES:-1} == 1 ]]; then return; fi
    tell at "its own name"
    name=$(uname -n) # $HOSTNAME may come from the machine on which the job was submitted
    [[ -n $(addresses_of "$name") ]] || tell fault "its own name $name does not resolve: tell your site"
}

# Connects to the ranks' endpoint. The master's name may lead to another network than the ranks'
# (https://github.com/pytorch/pytorch/issues/73656, 2022-08-04), there may be no route to it
# (https://github.com/facebookresearch/PyTorch-BigGraph/issues/99, 2019-09-25), or its port may be
# in use (https://github.com/NVIDIA/enroot/issues/243, 2025-08-07).
#
# No rank listens yet, so "Connection refused" says that the master can be reached. One address of
# its name is enough, as torch tries all. The name may have an IPv6 address where the network has no
# route for it (https://github.com/pytorch/pytorch/issues/131691, 2024-07-24).
check_master() {
    local address addresses error reached='' reason=''
    tell at "$MASTER_ADDR:$MASTER_PORT"
    mapfile -t addresses < <(addresses_of "$MASTER_ADDR")
    for address in "${addresses[@]:-$MASTER_ADDR}"; do
        if error=$(timeout 3 bash -c ": </dev/tcp/$address/$MASTER_PORT" 2>&1); then
            if [[ $SLURMD_NODENAME${MASTER_ADDR_SUFFIX:-} == "$MASTER_ADDR" ]]; then # the master alone reports it
                tell fault "the master's port $MASTER_PORT is in use:" \
                    "submit again, and the new job takes another port"
            fi
            return
        elif [[ $error == *refused* ]]; then
            reached=yes
        else
            # bash says "bash: connect: REASON" in its first line, or nothing if timeout ended it.
            reason=${error%%$'\n'*}
            reason=${reason##*: }
        fi
    done
    if [[ -z $reached ]]; then
        tell unreached "cannot reach $MASTER_ADDR:$MASTER_PORT (${reason:-no answer in 3 s}):" \
            "set MASTER_ADDR_SUFFIX in env.sh"
    fi
}

# ---- software ------------------------------------------------------------------------------------

# Looks for each NAME and PATH. The Python of an environment may be on the login node alone
# (https://github.com/ansys/pymapdl/pull/2966, 2024-04-05).
#? if container
# After --mounts, looks for the container's folders. One that a node lacks keeps the container from
# starting (https://github.com/apptainer/singularity/issues/5887, 2021-03-23).
#? endif
check_software() {
    local needed file
    #? if container
    local is_mount='' # 1 after --mounts
    #? endif
    for needed in "$@"; do
        #? if container
        if [[ $needed == --mounts ]]; then
            is_mount=1
            continue
        fi
        #? endif
        tell at "$needed"
        file=$needed
        if [[ $needed != */* ]]; then
            file=$(type -P "$needed")
        fi
        if [[ -L $file ]]; then # the Python of an environment is a link
            needed+=" -> $(readlink -m "$file")"
        fi
        if [[ -r $file ]]; then
            continue
        fi
        #? if container
        if [[ -n $is_mount ]]; then
            tell fault "the container cannot mount $needed: put it where all nodes see it," \
                "or take it out of ${MOUNTS_SETTING:-BINDS in env.sh}"
            continue
        fi
        #? endif
        tell fault "cannot read $needed: put it where all nodes see it," \
            "or name its module in MODULES of env.sh"
    done
}

# ---- hardware ------------------------------------------------------------------------------------

# A step of srun may get one core of those that the job has. Then all threads of all ranks run
# there, and data loaders are the bottleneck
# (https://github.com/Lightning-AI/pytorch-lightning/issues/18650, 2023-12-30).
check_cores() {
    tell at cores
    if ((${SLURM_CPUS_PER_TASK:-1} > 1 && $(count_cores) == 1)); then
        tell fault "one core, not SLURM_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK:" \
            "export SLURM_CPU_BIND=none in env.sh"
    fi
}

# InfiniBand and RoCE (infiniband), HPE Slingshot (hsn). If one node has no active port, NCCL hangs
# (https://github.com/NVIDIA/nccl/issues/234, 2019-06-21), or it takes TCP, several times slower
# (https://github.com/areal-project/AReaL/issues/639, 2025-11-27).
tell_rdma_networks() {
    local files=(/sys/class/infiniband/*/ports/*/state /sys/class/net/hsn*/operstate) networks=0
    tell at "RDMA ports"
    if grep -qsE 'ACTIVE$|^up$' "${files[@]}"; then networks=1; fi
    tell networks "$networks"
}

# A node may have lost a GPU (https://github.com/NVIDIA/aicr/issues/1858, 2026-07-22: seven of eight
# are listed), or the driver of all.
check_gpus() {
    local gpus
    tell at "number of GPUs"
    gpus=$(count_gpus)
    if [[ -z ${SLURM_GPUS_ON_NODE:-} ]]; then # else not compared: Slurm may give nodes different numbers
        tell gpus "$gpus"
    fi
    if ((gpus > 0)); then
        tell at "GPU driver"
        tell drivers "$(cat /sys/module/{nvidia,amdgpu}/version 2>/dev/null | wc -l)"
        if [[ -n ${SLURM_GPUS_ON_NODE:-}${CUDA_VISIBLE_DEVICES:-} ]]; then
            check_listed_gpus "$gpus"
        fi # else count_gpus has asked the driver itself
    fi
}

# Compares the GPUs that the driver lists with the number that the step got. Where neither tool is
# installed, the GPUs cannot be counted, and pass.
check_listed_gpus() {
    local wanted=$1 list answer listed error
    if type -P nvidia-smi >/dev/null; then
        list=(nvidia-smi -L)
    elif type -P rocm-smi >/dev/null; then
        list=(rocm-smi --showuniqueid)
    else
        return
    fi
    tell at "${list[*]}"
    answer=$("${list[@]}" 2>&1)
    listed=$(count_listed <<<"$answer")
    if ((listed < wanted)); then
        error=$(grep -m 1 -iE 'unable|error|fail' <<<"$answer")
        if [[ -n $error ]]; then
            error=" ($error)"
        fi
        tell fault "${list[*]} sees $listed GPU(s), not $wanted$error: tell your site"
    fi
}

# Counts the GPUs that nvidia-smi or rocm-smi lists. Slurm counts the parts (MIG) of a split GPU,
# which nvidia-smi lists below it:
#   GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)
#     MIG 3g.20gb Device 0: (UUID: MIG-…)
#     MIG 3g.20gb Device 1: (UUID: MIG-…)
count_listed() {
    local line count=0 split=''
    while read -r line; do
        if [[ $line == GPU* ]]; then
            count=$((count + 1)) split=no
        elif [[ $line == MIG* && $split == no ]]; then
            split=yes # the first part counts in place of its GPU
        elif [[ $line == MIG* ]]; then
            count=$((count + 1))
        fi
    done
    echo "$count"
}

main "$@"
