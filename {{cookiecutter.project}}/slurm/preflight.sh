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
#   - fewer GPUs than on other nodes, no active RDMA port, no GPU driver
#   - a node, or a driver, that does not answer
#
# slurm/preflight_node.sh has the checks, and names for each a public report of the failure. This file
# runs them on all nodes in one step of srun, compares the nodes, and prints the result.
# shellcheck disable=SC2154 # hosts is of slurm/job.sh

# What the functions share:
declare answers      # what the nodes and srun printed, see ask_nodes
declare -A faults    # by node: what is wrong with it, joined by "; "

# Checks hosts. Returns 1 if one of them is unfit. Called in a subshell: it sets options of the shell, and
# may end it. Arguments: names, each of a command that every node
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
    find_unlike_others gpus "GPUs"
    find_unlike_others drivers "GPU drivers"
    find_unlike_others networks "RDMA networks with an active port"
    find_unfinished_nodes
    find_unreached_master # after the faults: it asks whether the master itself has one
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
    # without --overlap the ranks' step would wait for them.
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

# Finds the nodes that have less than most of the others. Arguments: the kind of line in which the nodes
# say a number, and what it counts.
find_unlike_others() {
    local kind=$1 name=$2 usual host own
    usual=$(said "$kind" | cut -f 2 | most_frequent)
    while IFS=$'\t' read -r host own; do
        if ((own < usual)); then add_fault "$host" "$name: $own, but $usual on others"; fi
    done < <(said "$kind")
}

# Prints the most frequent number of its input; of equally frequent ones the greatest.
most_frequent() {
    sort --numeric-sort |
        uniq --count | # "   3 8": three nodes have 8
        sort --key=1n,1 --key=2n,2 |
        tail -n 1 |
        sed 's/.* //'
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

# Prints the faults, and writes UNFIT_FILE. Returns 1 if there are any.
report() {
    local host unfit=()
    if ((${#faults[@]} == 0)); then
        echo "preflight: ${#hosts[@]} node(s) fit ($SECONDS s)"
        return
    fi
    for host in "${hosts[@]}"; do
        if [[ -n ${faults[$host]:-} ]]; then unfit+=("$host"); fi
    done
    print_faults "${unfit[@]}" >&2
    if [[ -n ${UNFIT_FILE:-} ]]; then
        for host in "${unfit[@]}"; do
            printf '%s\t%s\n' "$host" "${faults[$host]}"
        done >"$UNFIT_FILE"
    fi
    return 1
}

# Prints the faults, a line for each node; one line if all nodes have the same: other nodes would have it,
# too. Arguments: the unfit nodes.
print_faults() {
    local host anyway="PREFLIGHT=0 starts the ranks anyway"
    if (($# > 1 && $# == ${#hosts[@]})) && [[ $(printf '%s\n' "${faults[@]}" | sort -u | wc -l) == 1 ]]; then
        echo "preflight: on all of $# nodes: ${faults[$1]}; $anyway"
        return
    fi
    for host in "$@"; do
        echo "preflight: $host: ${faults[$host]}"
    done
    echo "preflight: $# of ${#hosts[@]} nodes unfit; $anyway, and sbatch --exclude=$(joined "$@") takes others"
}
