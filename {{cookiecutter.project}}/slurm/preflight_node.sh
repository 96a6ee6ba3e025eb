#!/usr/bin/env bash
# Checks the node on which it runs. slurm/preflight.sh has srun run it on every node of a job. It
# cannot run alone: it needs count_gpus, so slurm/preflight.sh puts the text of launch/count_gpus.sh
# before the text of this file.
#
#   preflight_node.sh [NAME|PATH …] [--mounts FOLDER …]
#
# It prints lines of three fields, with tabs between them: the node, a kind and a text.
#   fault                    what is wrong with this node, and what to do
#   unreached                why the master cannot be reached from this node
#   at                       the check that begins now, and "end" after the last one. A node that
#                            hangs never prints "end", and its last "at" names the check
#   loopback                 the address that this node gives its own name, if no other node reaches it
#   clock, ports, gpus,      a value that slurm/preflight.sh compares with those of other nodes
#   driver
#
# It reads the variables of a Slurm step, NPROC_PER_NODE, and RUN_DIR, MIN_FREE_GB, MASTER_ADDR,
# MASTER_PORT and MOUNTS_SETTING, which slurm/preflight.sh describes.
set -u
if ! declare -F count_gpus >/dev/null; then
    echo "slurm/preflight_node.sh: call bash slurm/preflight.sh, which runs this file on each node" >&2
    exit 2
fi
export LC_ALL=C # messages of other programs are compared, so they must be in English

main() {
    tell clock "$(date +%s)"
    check_writable /tmp "free space there, or tell your site"
    check_writable /dev/shm "free space there, or tell your site"
    check_writable "$RUN_DIR" "free space there, or put it on a file system that all nodes share"
    check_free_space "$RUN_DIR"
    check_own_name
    check_master
    check_software_and_mounts "$@"
    check_cores
    tell at "RDMA ports"
    tell ports "$(count_rdma_ports)"
    # With NPROC_PER_NODE, and without GPUs from Slurm, the run may be one on CPUs.
    if [[ -n ${SLURM_GPUS_ON_NODE:-} || -z ${NPROC_PER_NODE:-} ]]; then
        check_gpus
    fi
    tell at end
}

# tell KIND TEXT… prints one line, in one write: srun does not mix a write with other nodes' lines.
tell() {
    printf '%s\t%s\t%s\n' "$SLURMD_NODENAME" "$1" "${*:2}"
}

# ---- folders ------------------------------------------------------------------------------------

check_writable() {
    local folder=$1 fix=$2 error
    tell at "$folder"
    error=$(write_file_in "$folder" 2>&1) ||
        tell fault "cannot write to $folder (${error##*: }): $fix"
}

# Writes a file of 16 KiB and removes it. fsync: some file systems report a used-up quota only when
# the data leave the node. mktemp: other users may write to the folder too, and could have made a file
# or a link by a name that they guess. nofollow: nor may a link take the file's place.
write_file_in() {
    local file code=0
    file=$(mktemp "$1/.preflight.XXXXXXXXXX") || return
    dd if=/dev/zero of="$file" bs=16k count=1 conv=fsync oflag=nofollow status=none || code=$?
    rm -f "$file"
    return "$code"
}

# A file system that does not count its blocks reports 0 of 0, and passes.
check_free_space() {
    local folder=$1 blocks free_blocks block_size free_mib
    read -r blocks free_blocks block_size < <(stat -f -c '%b %a %S' "$folder" 2>/dev/null)
    if ((${blocks:-0} == 0)); then
        return
    fi
    free_mib=$((free_blocks * block_size / 1024 / 1024))
    if ((free_mib < MIN_FREE_GB * 1024)); then
        tell fault "$folder has $free_mib MiB left, not $MIN_FREE_GB GiB:" \
            "free space there, or set MIN_FREE_GB"
    fi
}

# ---- names and network --------------------------------------------------------------------------

# Prints the addresses of a name, a line each.
addresses_of() { getent ahosts "$1" | sed 's/ .*//' | sort -u; }

# Asks uname, because $HOSTNAME may come from the machine on which the job was submitted. Debian gives
# a machine's own name the address 127.0.1.1, and gloo sends that to the other nodes' ranks.
check_own_name() {
    local addresses
    tell at "its own name"
    addresses=$(addresses_of "$(uname -n)")
    if [[ -z $addresses ]]; then
        tell fault "its own name $(uname -n) does not resolve: tell your site"
    elif ! grep -qvE '^(127\.|::1$)' <<<"$addresses" && ((${SLURM_STEP_NUM_NODES:-1} > 1)) &&
        [[ $SLURMD_NODENAME != 127.* && -z ${GLOO_SOCKET_IFNAME:-} ]]; then
        tell loopback "${addresses%%$'\n'*}"
    fi
}

# Connects to the ranks' endpoint. No rank listens yet, so "Connection refused" says that the master
# can be reached. One address of its name is enough, as torch tries them all: the name may have an
# IPv6 address where the network has no route for it (pytorch issue 131691).
check_master() {
    local address addresses error reached='' reason=''
    tell at "$MASTER_ADDR:$MASTER_PORT"
    mapfile -t addresses < <(addresses_of "$MASTER_ADDR")
    for address in "${addresses[@]:-$MASTER_ADDR}"; do
        if error=$(timeout 3 bash -c ": </dev/tcp/$address/$MASTER_PORT" 2>&1); then
            if ((SLURM_NODEID == 0)); then # every node sees it, and one report is enough
                tell fault "the master's port $MASTER_PORT is in use: submit again, which takes another"
            fi
            return
        elif [[ $error == *refused* ]]; then
            reached=1
        else
            # bash says "bash: connect: REASON" in its first line, or nothing if timeout ended it.
            reason=${error%%$'\n'*}
            reason=${reason##*: }
        fi
    done
    [[ -n $reached ]] ||
        tell unreached "cannot reach $MASTER_ADDR:$MASTER_PORT (${reason:-no answer in 3 s}):" \
            "set MASTER_ADDR_SUFFIX in env.sh"
}

# ---- software and folders of the container ------------------------------------------------------

# Looks for each NAME on PATH, for each file PATH, and for the container's folders after --mounts.
check_software_and_mounts() {
    local needed
    local fault="cannot read" fix="or name its module in MODULES of env.sh"
    for needed in "$@"; do
        if [[ $needed == --mounts ]]; then
            fault="the container cannot mount"
            fix="or take it out of ${MOUNTS_SETTING:-BINDS in env.sh}"
        else
            check_readable "$needed" "$fault" "$fix"
        fi
    done
}

check_readable() {
    local needed=$1 fault=$2 fix=$3 file=$1
    tell at "$needed"
    if [[ $needed != */* ]]; then
        file=$(type -P "$needed")
    fi
    if [[ -L $file ]]; then # often the Python of a venv, whose target is on the login node only
        needed+=" -> $(readlink -m "$file")"
    fi
    [[ -r $file ]] || tell fault "$fault $needed: put it where all nodes see it, $fix"
}

# ---- hardware -----------------------------------------------------------------------------------

# A step with one core, where Slurm gave it several, would run all threads of a rank on that core.
# Slurm counts each hardware thread of a core.
check_cores() {
    local cores given=${SLURM_CPUS_PER_TASK:-1}
    tell at cores
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys both variables
    if ((cores < given)) && { ((cores == 1)) || has_one_core; }; then
        tell fault "one core, not SLURM_CPUS_PER_TASK=$given: export SLURM_CPU_BIND=none in env.sh"
    fi
}

# Whether this process may use the hardware threads of one core, and the node has more cores.
has_one_core() {
    local allowed threads_of_core cpus=/sys/devices/system/cpu
    allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) # as in 3,67 or 6-7
    threads_of_core=$(cat "$cpus/cpu${allowed%%[,-]*}/topology/thread_siblings_list" 2>/dev/null)
    [[ $allowed == "$threads_of_core" && $allowed != "$(cat "$cpus/online" 2>/dev/null)" ]]
}

# Prints the number of active ports: InfiniBand and RoCE (infiniband), HPE Slingshot (hsn).
count_rdma_ports() {
    cat /sys/class/infiniband/*/ports/*/state /sys/class/net/hsn*/operstate 2>/dev/null |
        grep -cE 'ACTIVE$|^up$'
}

driver_version() {
    cat /sys/module/{nvidia,amdgpu}/version 2>/dev/null | head -n 1
}

# Checks the GPUs. Where neither Slurm nor a variable says how many there are, count_gpus asks the
# driver, and slurm/preflight.sh compares the nodes.
check_gpus() {
    local gpus
    tell at "number of GPUs"
    gpus=$(count_gpus)
    if [[ -z ${SLURM_GPUS_ON_NODE:-} ]]; then # else Slurm may give the nodes different numbers
        tell gpus "$gpus"
    fi
    if ((gpus > 0)); then
        tell at "GPU driver"
        tell driver "$(driver_version)"
        [[ -z ${SLURM_GPUS_ON_NODE:-}${CUDA_VISIBLE_DEVICES:-} ]] || check_listed_gpus "$gpus"
    fi
}

# Compares the number of GPUs that the driver lists with the number that the step got. Where neither
# tool is installed, the GPUs cannot be counted, and pass.
check_listed_gpus() {
    local wanted=$1 list=(nvidia-smi -L) answer seen error
    type -P nvidia-smi >/dev/null || list=(rocm-smi --showuniqueid)
    tell at "${list[*]}"
    type -P "${list[0]}" >/dev/null || return
    answer=$("${list[@]}" 2>&1)
    seen=$(count_listed <<<"$answer")
    if ((seen < wanted)); then
        error=$(grep -m 1 -iE 'unable|error|fail' <<<"$answer")
        tell fault "${list[*]} sees $seen GPU(s), not $wanted${error:+ ($error)}: tell your site"
    fi
}

# Counts the GPUs in what nvidia-smi or rocm-smi lists. A GPU that is split (MIG) counts as its parts,
# which follow it.
count_listed() {
    awk '/^GPU/ { count++; whole = 1 }
        /^ *MIG/ { count += 1 - whole; whole = 0 }
        END { print count + 0 }'
}

main "$@"
