#!/usr/bin/env bash
#? set container = plan_of(cookiecutter).in_container
# The check of the nodes, which slurm/job.sh calls before each start of the ranks, in about a second. For
# each node on which the ranks would fail it prints one line: what is wrong, and what to do.
#
# What it looks for:
#   - a full disk, a used-up quota, a missing folder        /tmp, /dev/shm, the folder of logs
#   - names and network: the node's own name, the way to the master, whether its port is free
#   - programs and files that the node does not see{{ ", folders that the container cannot mount" if container }}
#   - one core for all ranks
#   - fewer GPUs than on other nodes, no active RDMA port, no GPU driver; a wrong clock
#   - a node, or a driver, that does not answer
# It warns of an older driver or fewer ports than on other nodes, and of a name that leads to 127.0.1.1.
#
# slurm/preflight_node.sh has the checks, and names for each a public report of the failure. This file
# runs them on all nodes in one step of srun, compares the nodes, and prints the result.
# shellcheck disable=SC2154 # hosts is of slurm/job.sh

# What the functions share:
declare answers      # what the nodes and srun printed, see ask_nodes
declare -A faults    # by node: what is wrong with it, joined by "; "

# Checks hosts. Returns 1 if one of them is unfit. Arguments: names, each of a command that every node
# has to have, and paths, each readable there{{ "; then --mounts and the folders that the container mounts" if container }}. Reads hosts, RUN_DIR, MASTER_ADDR,
# MASTER_PORT, MASTER_ADDR_SUFFIX and, if they are set,
#   PREFLIGHT_TIMEOUT   seconds for all checks (30); nodes without an answer until then hang
#   UNFIT_FILE          a file for the unfit nodes, a line each: NODE, a tab, its faults
preflight() {
    set +e +o pipefail # a check that fails is what this is for
    export LC_ALL=C    # messages of other programs are compared, so they must be in English
    SECONDS=0 faults=()
    ask_nodes "$@"
    refuse_silence
    collect_faults
    find_unlike_others driver "GPU driver"
    find_unlike_others ports "active RDMA ports"
    find_unlike_others gpus "GPUs"
    find_wrong_clocks
    find_unfinished_nodes
    find_unreached_master # after the faults: it asks whether the master itself has one
    name_loopback_nodes
    report
}

# ---- ask the nodes -------------------------------------------------------------------------------

# Runs the checks on all hosts. Sets answers: lines of slurm/preflight_node.sh, which have three
# fields with tabs between them (NODE, KIND, TEXT), and messages of srun, which have none.
ask_nodes() {
    local scripts step limit=${PREFLIGHT_TIMEOUT:-30}
    step=(--nodes=${#hosts[@]} --nodelist="$(joined "${hosts[@]}")" --ntasks=${#hosts[@]}
        --ntasks-per-node=1 --export=ALL --input=none)
    # The step of the ranks follows at once. Slurm frees the cores of this step a moment late, and
    # without --overlap that step would wait for them.
    step+=(--overlap)
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        step+=(--cpus-per-task="$SLURM_CPUS_PER_TASK") # srun 22.05 to 23.02 do not inherit it
    fi
    # srun hands over the text of both files: a node may not see the project's folder.
    scripts="$(<"$PROJECT_DIR/launch/count_gpus.sh")"$'\n'"$(<"$PROJECT_DIR/slurm/preflight_node.sh")"
    # The outer timeout is for an srun that does not end. --foreground: Ctrl-C reaches it.
    # --kill-after: it may ignore the first signal. The inner timeout kills the bash that checks a node,
    # so that it cannot go on to its next check: the last one that it named is the one that hangs.
    answers=$(timeout --foreground --kill-after=5 $((limit + 5)) \
        srun "${step[@]}" timeout --signal=KILL "$limit" \
        bash -c "$scripts" preflight_node.sh "$@" 2>&1)
}

# Prints what the nodes said of one kind, a line each: NODE, a tab, TEXT.
said() { awk -F '\t' -v OFS='\t' -v kind="$1" '$2 == kind { print $1, $3 }' <<<"$answers"; }

# Prints srun's first message that has a text. Argument: the text; '' for its first message of all.
message_of_srun() { grep -v $'\t' <<<"$answers" | grep -m 1 -F -- "$1"; }

# Prints the nodes on which srun could start nothing: "Task launch … failed on node cn-2: …"
lost_nodes() {
    local host
    for host in "${hosts[@]}"; do
        if [[ $answers == *"failed on node $host:"* ]]; then echo "$host"; fi
    done
}

# Ends the check if srun has started nothing, and blames no node.
refuse_silence() {
    local message
    if [[ $answers != *$'\t'* && -z $(lost_nodes) ]]; then
        message=$(message_of_srun '')
        echo "preflight: srun started nothing in $SECONDS s: ${message:-it says nothing}" >&2
        exit 1
    fi
}

# ---- find the faults -----------------------------------------------------------------------------

# Arguments: a node, what is wrong with it.
add_fault() {
    if [[ -n ${faults[$1]:-} ]]; then
        faults[$1]+="; $2"
    else
        faults[$1]=$2
    fi
}

# Takes over the faults that the nodes have found on themselves.
collect_faults() {
    local host text
    while IFS=$'\t' read -r host text; do
        add_fault "$host" "$text"
    done < <(said fault)
}

# Finds the nodes that have less than most of the others. Fewer GPUs are a fault, as one may be lost. So
# is no port, and no driver, whose version is then empty. Fewer ports and an older driver may be as the
# site wants it: it updates drivers node by node, and some nodes may have a port more for their files.
# Arguments: the kind of line in which the nodes say what they have, and its name in messages.
find_unlike_others() {
    local kind=$1 name=$2 usual host own others=()
    usual=$(said "$kind" | cut -f 2 | most_frequent)
    while IFS=$'\t' read -r host own; do
        if [[ $own == "$usual" ]] || ! is_less "$own" "$usual"; then
            continue
        elif [[ $kind == gpus || ${own:-0} == 0 ]]; then
            add_fault "$host" "$name: ${own:-none}, but $usual on others"
        else
            others+=("$host ($own)")
        fi
    done < <(said "$kind")
    if ((${#others[@]})); then
        warn "${others[*]}: $name, $usual on others. If the ranks fail there: sbatch --exclude=NODE"
    fi
}

# Prints the most frequent line of its input; of equally frequent ones the greatest.
most_frequent() {
    sort |
        uniq --count | # "   3 570.86.15"
        sort --key=1n,1 --key=2V,2 |
        tail -n 1 |
        sed 's/^ *[0-9]* //'
}

# Whether a number or a version comes before another.
is_less() { [[ $(printf '%s\n' "$@" | sort --version-sort | sed -n 1p) == "$1" ]]; }

# Finds the nodes whose clock is off. torch's rendezvous may time out between them
# (https://github.com/awslabs/awsome-distributed-ai/issues/180, 2024-03-06), and ranks would save
# too late before the time limit. The right time is the median of all nodes and of this machine, whose
# clock decides between two nodes: in a batch job it is the first node, and the second one is blamed.
# The nodes read their clocks during the check.
find_wrong_clocks() {
    local host clock clocks right off
    mapfile -t clocks < <({ said clock | cut -f 2 && date +%s; } | sort --numeric-sort)
    right=${clocks[${#clocks[@]} / 2]}
    while IFS=$'\t' read -r host clock; do
        off=$((clock - right))
        if ((off < -5 - SECONDS || off > 5 + SECONDS)); then
            add_fault "$host" "its clock is off by $off s"
        fi
    done < <(said clock)
}

# Finds the nodes that have not come to the end of their checks. A driver that hangs is one reason
# (https://github.com/sgl-project/sglang/pull/31229, 2026-07-14). If srun cannot start a task on some
# nodes, it may end the checks of the others. Then only the nodes without a task have a fault (seen
# with Slurm 22.05.8 and nodes that had lost their power, 2026-11-24).
find_unfinished_nodes() {
    local host text suspects message
    local -A last_check=()
    while IFS=$'\t' read -r host text; do
        last_check[$host]=$text
    done < <(said at)
    mapfile -t suspects < <(lost_nodes)
    if ((${#suspects[@]} == 0)); then suspects=("${hosts[@]}"); fi
    for host in "${suspects[@]}"; do
        if [[ ${last_check[$host]:-} != end ]]; then
            message=$(message_of_srun "on node $host:" || message_of_srun '')
            add_fault "$host" "no answer, stuck at: ${last_check[$host]:-${message:-its start}}"
        fi
    done
}

# Finds the nodes that cannot reach the master. If the master itself has a fault, they have none.
find_unreached_master() {
    local host text master=${MASTER_ADDR%"${MASTER_ADDR_SUFFIX:-}"}
    if [[ -n ${faults[$master]:-} ]]; then return; fi
    while IFS=$'\t' read -r host text; do
        add_fault "$host" "$text"
    done < <(said unreached)
}

# ---- print the result ----------------------------------------------------------------------------

# Names the nodes whose own name leads to an address such as 127.0.1.1, at which no other node reaches
# them. They are fit: NCCL does not look the name up.
name_loopback_nodes() {
    local host address nodes=()
    while IFS=$'\t' read -r host address; do
        nodes+=("$host ($address)")
    done < <(said loopback)
    if ((${#nodes[@]})); then
        warn "${nodes[*]}: the node's name leads to an address at which other nodes do not reach it." \
            "Ranks on gloo cannot connect: set GLOO_SOCKET_IFNAME in env.sh to the network that all" \
            "nodes share"
    fi
}

# Prints what is no fault. slurm/doctor.py takes no such line for the cause of a failure.
warn() { echo "preflight warns: $*" >&2; }

# Prints the faults, and writes UNFIT_FILE. Returns 1 if there are any.
report() {
    local host unfit=''
    if ((${#faults[@]} == 0)); then
        echo "preflight: ${#hosts[@]} node(s) fit ($SECONDS s)"
        return
    fi
    if all_nodes_have_one_fault; then # no other node would do better
        echo "preflight: on all of ${#hosts[@]} node(s): ${faults[${hosts[0]}]}"
    else
        for host in "${hosts[@]}"; do
            if [[ -n ${faults[$host]:-} ]]; then
                echo "preflight: $host: ${faults[$host]}"
                unfit+=,$host
            fi
        done
    fi >&2
    echo "preflight: ${#faults[@]} of ${#hosts[@]} nodes unfit; PREFLIGHT=0 starts the ranks" \
        "anyway${unfit:+, and sbatch --exclude=${unfit#,} takes others}" >&2
    if [[ -n ${UNFIT_FILE:-} ]]; then
        for host in "${!faults[@]}"; do
            printf '%s\t%s\n' "$host" "${faults[$host]}"
        done >"$UNFIT_FILE"
    fi
    return 1
}

# Whether each of several nodes has a fault, and all have the same one.
all_nodes_have_one_fault() {
    local different
    different=$(printf '%s\n' "${faults[@]}" | sort --unique | wc -l)
    ((${#hosts[@]} > 1 && ${#faults[@]} == ${#hosts[@]} && different == 1))
}
