#!/usr/bin/env bash
# Checks every node of a job before the ranks start. Prints one line, with the fix, for each node on
# which the ranks would fail.
#
#   salloc --nodes=2 bash slurm/preflight.sh [NAME|PATH …] [--mounts FOLDER …]
#   sbatch --nodes=2 slurm/preflight.sh [NAME|PATH …] [--mounts FOLDER …]
#
# slurm/submit_multinode.sh calls this script before the launch, unless PREFLIGHT=0. Each NAME has
# to be a command on every node, and each PATH readable there. The container mounts each FOLDER, and
# cannot start without it. This script also checks names, the way to the master and its port,
# clocks, folders, cores, GPUs and their driver, RDMA.
#
# Exit code: 0 all nodes are fit, 1 a node is not, 2 called wrongly
#
# Read from the environment, all optional:
#   MASTER_ADDR, MASTER_PORT   the ranks' rendezvous endpoint                (the first node, 29500)
#   RUN_DIR                    folder of the ranks' logs                     (the current folder)
#   MIN_FREE_GB                GiB that must be free in RUN_DIR              (1)
#   PREFLIGHT_TIMEOUT          seconds until a node counts as hanging        (30)
#   MOUNTS_SETTING             which setting names the container's folders   (BINDS in env.sh)
#   PREFLIGHT_NODES            the nodes to check, with commas between them  (all of the job)
#   UNFIT_FILE                 a file for the unfit nodes, a line each: NODE, a tab, its faults
set -u
export LC_ALL=C # messages of other programs are compared, so they must be in English

main() {
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        print_usage
        exit
    fi
    read_settings
    project=$(find_project) ||
        die "slurm/preflight_node.sh was not found: submit from the project's folder," \
            "or run there: salloc --nodes=2 bash slurm/preflight.sh"
    mapfile -t hosts < <(scontrol show hostnames "${PREFLIGHT_NODES:-$SLURM_JOB_NODELIST}")
    export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}${MASTER_ADDR_SUFFIX:-}}

    refuse_srun_that_no_node_reaches
    ask_nodes "$@" # runs slurm/preflight_node.sh on every node, sets answers
    read_answers   # sets facts, faults, srun_message
    compare_nodes  # adds faults
    tell_of_loopback_names
    report
}

# ---- before the nodes are asked -----------------------------------------------------------------

# Prints the comment at the top of this file.
print_usage() {
    sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

read_settings() {
    export RUN_DIR=${RUN_DIR:-$PWD} MASTER_PORT=${MASTER_PORT:-29500} MIN_FREE_GB=${MIN_FREE_GB:-1}
    [[ -n ${SLURM_JOB_ID:-} ]] || die "there is no job: salloc --nodes=2 bash slurm/preflight.sh"
    [[ $MIN_FREE_GB =~ ^(0|[1-9][0-9]*)$ ]] || die "MIN_FREE_GB='$MIN_FREE_GB': expected whole GiB"
}

# Prints the folder above slurm/. With "sbatch slurm/preflight.sh" this file runs as a copy, alone
# in a spool folder. scontrol knows the original as "Command=PATH ARGUMENTS", where PATH may be
# relative to the folder of submission.
find_project() {
    local folder command candidates
    candidates=("$(dirname "${BASH_SOURCE[0]}")/..")
    if [[ ${BASH_SOURCE[0]##*/} == slurm_script ]]; then # Slurm's name for the copy
        command=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')
        if [[ $command != /* ]]; then
            command=${SLURM_SUBMIT_DIR:-}/$command
        fi
        candidates+=("${command%%/preflight.sh*}/.." "${PROJECT_DIR:-}" "${SLURM_SUBMIT_DIR:-}")
    fi
    for folder in "${candidates[@]}"; do
        if [[ -f $folder/slurm/preflight_node.sh && -f $folder/launch/count_gpus.sh ]]; then
            echo "$folder"
            return
        fi
    done
    return 1
}

# With NoInAddrAny srun listens only at the address of its own machine's name. Debian writes
# 127.0.1.1 for that name into /etc/hosts. Then no node reaches srun, and srun waits without a word.
# slurmd's log says "connect io: Connection refused" (Slurm 22.05.8 and 24.11.5, measured
# 2026-11-22). If the nodes' names are loopback addresses, all nodes are this machine, and reach it.
refuse_srun_that_no_node_reaches() {
    local name address
    name=$(uname -n)
    address=$(getent ahosts "$name" | sed 's/ .*//; q')
    if [[ $address != 127.* && $address != ::1 ]] || [[ ${hosts[0]} == 127.* ]]; then
        return
    fi
    if [[ ,$(communication_parameters), == *,NoInAddrAny,* ]]; then
        echo "preflight: $name resolves its own name to $address." \
            "Slurm's NoInAddrAny makes srun listen there, where no node reaches it:" \
            "have your site give the name its network address in /etc/hosts." \
            "Without this node: sbatch --exclude=$name" >&2
        exit 1
    fi
}

# Prints the parameters of Slurm's communication, with commas between them.
communication_parameters() {
    scontrol show config | sed -n 's/^CommunicationParameters *= *//p'
}

# ---- the nodes' answers -------------------------------------------------------------------------

# Runs slurm/preflight_node.sh on every node. Sets answers to the lines of the nodes and of srun.
ask_nodes() {
    local scripts step
    step=(--nodes=${#hosts[@]} --ntasks=${#hosts[@]} --ntasks-per-node=1 --export=ALL --input=none)
    # Slurm frees the cores of a step a moment late. Without --overlap the ranks' step would wait.
    step+=(--overlap ${PREFLIGHT_NODES:+"--nodelist=$PREFLIGHT_NODES"})
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        step+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    fi
    # srun hands over the text of both files: the project's folder may be what a node does not see.
    scripts="$(<"$project/launch/count_gpus.sh")"$'\n'"$(<"$project/slurm/preflight_node.sh")"
    # --foreground: Ctrl-C reaches srun. --kill-after: srun may ignore the first signal.
    answers=$(timeout --foreground --kill-after=5 "${PREFLIGHT_TIMEOUT:-30}" \
        srun "${step[@]}" bash -c "$scripts" preflight_node.sh "$@" 2>&1)
}

# Reads answers: messages of srun, and lines of slurm/preflight_node.sh, which describes them. Sets
#   facts["HOST KIND"]   the last text of this kind from this node
#   faults[HOST]         the node's faults, joined by "; "
#   unreached[HOST]      why this node cannot reach the master
#   srun_message         the first line of srun
# Ends this script if no node has answered and srun does not say because of which node.
read_answers() {
    local host kind text
    srun_message=$(grep -m 1 -v $'\t' <<<"$answers")
    if [[ $answers != *$'\t'* && -z $(lost_node) ]]; then
        echo "preflight: srun started nothing in $SECONDS s: ${srun_message:-it says nothing}" >&2
        exit 1
    fi
    while IFS=$'\t' read -r host kind text; do
        if [[ $kind == fault ]]; then
            add_fault "$host" "$text"
        elif [[ $kind == unreached ]]; then
            unreached[$host]=$text
        fi
        facts[$host $kind]=$text
    done <<<"$answers"
}

add_fault() {
    local host=$1 text=$2
    faults[$host]+="${faults[$host]:+; }$text"
}

# ---- comparing the nodes ------------------------------------------------------------------------

# Adds the faults that show only beside the other nodes.
compare_nodes() {
    local host driver ports gpus clock lost
    driver=$(most_frequent driver)
    ports=$(most_frequent ports)
    gpus=$(most_frequent gpus)
    clock=$(median_clock)
    lost=$(lost_node)
    for host in "${hosts[@]}"; do
        compare_driver "$host" "$driver"
        compare_ports "$host" "$ports"
        compare_gpus "$host" "$gpus"
        compare_clock "$host" "$clock"
        # After "failed on node X" srun may end the tasks of the other nodes: only X is at fault.
        if [[ -z $lost || $host == "$lost" ]]; then
            check_whole_answer "$host"
        fi
    done
    # If the master is unfit itself, the others do not reach it through no fault of theirs.
    if [[ -z ${faults[${MASTER_ADDR%"${MASTER_ADDR_SUFFIX:-}"}]:-} ]]; then
        for host in "${!unreached[@]}"; do
            add_fault "$host" "${unreached[$host]}"
        done
    fi
}

# A node without a driver sends an empty version. A node without GPUs, or that hangs, sends none.
compare_driver() {
    local host=$1 usual=$2 own
    own=${facts[$host driver]-$usual}
    if [[ $own != "$usual" ]]; then
        add_fault "$host" "GPU driver: ${own:-none}, but ${usual:-none} on others"
    fi
}

compare_ports() {
    local host=$1 usual=$2 own
    own=${facts[$host ports]:-$usual}
    if ((own < usual)); then
        add_fault "$host" "active RDMA ports: $own, but $usual on others"
    fi
}

# Nodes send a number of GPUs only where Slurm does not say it.
compare_gpus() {
    local host=$1 usual=$2 own
    own=${facts[$host gpus]:-$usual}
    if ((own < usual)); then
        add_fault "$host" "GPUs: $own, but $usual on others"
    fi
}

# With a wrong clock, ranks save too late. Time servers keep nodes within milliseconds. The nodes
# read their clocks at different times, all within the seconds that this script has run.
compare_clock() {
    local host=$1 usual=$2 off
    off=$((${facts[$host clock]:-$usual} - usual))
    if ((off < -5 - SECONDS || off > 5 + SECONDS)); then
        add_fault "$host" "its clock is off by $off s"
    fi
}

# Adds a fault if the node has not come to the end of its checks.
check_whole_answer() {
    local host=$1 at
    at=${facts[$host at]:-${srun_message:-its start}}
    if [[ $at != end ]]; then
        add_fault "$host" "no answer, stuck at: $at"
    fi
}

# Prints the texts of one kind, a line each.
texts_of() {
    sed -n "s/.*\t$1\t//p" <<<"$answers"
}

# Prints the text that most nodes have. Of equally frequent texts it prints the greatest version.
most_frequent() {
    texts_of "$1" |
        sort --version-sort --reverse |          # puts equal texts together, the greatest first
        uniq --count |                           # "   3 570.86.15"
        sort --numeric-sort --reverse --stable | # puts the most frequent first
        sed 's/^ *[0-9]* //; q'                  # prints the first, without its count
}

# Prints the median of the nodes' clocks and this machine's, which decides between two nodes.
median_clock() {
    local clocks
    mapfile -t clocks < <({ texts_of clock && date +%s; } | sort --numeric-sort)
    echo "${clocks[${#clocks[@]} / 2]}"
}

# Prints the node of which srun says that it failed; nothing if there is none.
lost_node() {
    if [[ $answers =~ failed\ on\ node\ ([^:]+) ]]; then
        echo "${BASH_REMATCH[1]}"
    fi
}

# ---- the result ---------------------------------------------------------------------------------

# Names the nodes whose own name leads to themselves alone. NCCL does not ask for it, so they are fit.
tell_of_loopback_names() {
    local host named=()
    for host in "${hosts[@]}"; do
        [[ -z ${facts[$host loopback]:-} ]] || named+=("$host (${facts[$host loopback]})")
    done
    ((${#named[@]} == 0)) ||
        echo "preflight: ${named[*]}: this address of the node's own name is its own alone. Ranks on gloo" \
            "cannot connect: set GLOO_SOCKET_IFNAME in env.sh to the network that all nodes share" >&2
}

# Prints the faults, and writes UNFIT_FILE. Returns 1 if there are any.
report() {
    local host advice=''
    if ((${#faults[@]} == 0)); then
        echo "preflight: ${#hosts[@]} node(s) fit ($SECONDS s)"
        return
    fi
    if ((${#hosts[@]} > 1)) && all_nodes_have_one_fault; then # no other node would do better
        echo "preflight: on all of ${#hosts[@]} node(s): ${faults[${hosts[0]}]}"
    else
        for host in "${hosts[@]}"; do
            if [[ -n ${faults[$host]:-} ]]; then
                # With UNFIT_FILE, the one who reads it says what to do.
                [[ -n ${UNFIT_FILE:-} ]] || advice=". Without it: sbatch --exclude=$host"
                echo "preflight: $host: ${faults[$host]}$advice"
            fi
        done
    fi >&2
    echo "preflight: ${#faults[@]} of ${#hosts[@]} nodes unfit; PREFLIGHT=0 starts all the same" >&2
    if [[ -n ${UNFIT_FILE:-} ]]; then
        for host in "${!faults[@]}"; do
            printf '%s\t%s\n' "$host" "${faults[$host]}"
        done >"$UNFIT_FILE"
    fi
    return 1
}

all_nodes_have_one_fault() {
    local different
    different=$(printf '%s\n' "${faults[@]}" | sort --unique | wc -l)
    ((${#faults[@]} == ${#hosts[@]} && different == 1))
}

die() {
    echo "slurm/preflight.sh: $*" >&2
    exit 2
}

declare -A facts=() faults=() unreached=()
main "$@"
