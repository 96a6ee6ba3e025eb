#!/usr/bin/env bash
# Lists the nodes that jobs of this project avoid, adds one, or forgets one.
#
#   bash slurm/bad_nodes.sh                                lists them: node, time, job, reason
#   bash slurm/bad_nodes.sh add node7 slow
#   bash slurm/bad_nodes.sh add node[3-5],node9 no reply   nodes as Slurm writes them
#   bash slurm/bad_nodes.sh forget node7
#
# Jobs add a node if slurm/preflight.sh finds a fault on it, or if it dies. For BAD_NODE_DAYS
# (env.sh) slurm/submit_multinode.sh then submits with --exclude=NODE. sbatch alone does not read
# the list, which is the file logs/bad_nodes.

# shellcheck disable=SC2154 # slurm/nodes.sh sets bad_nodes
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/bad_nodes.sh

list() {
    local lines
    BAD_NODE_DAYS=$(setting_of_env BAD_NODE_DAYS)
    lines=$(remembered_nodes)
    if [[ -n $lines ]]; then
        column -t -s $'\t' <<<"$lines"
    else
        echo "no bad nodes within $BAD_NODE_DAYS day(s) (BAD_NODE_DAYS in env.sh)"
    fi
}

# Arguments: nodes, then the words of the reason.
add() {
    local node names
    (($# >= 2)) || die "add: expected nodes and a reason, as in: add node7 slow"
    names=$(scontrol show hostnames "$1") ||
        die "add: '$1' is no list of nodes; expected node7 or node[3-5]"
    for node in $names; do
        sinfo --noheader --Node --format=%N | grep -qxF -- "$node" ||
            die "add: this cluster has no node $node; sinfo -N lists its nodes"
        remember_bad_node "$node" "${*:2}" || die "cannot write to $bad_nodes"
    done
    list
}

# Argument: nodes.
forget() {
    local node names
    (($# == 1)) || die "forget: expected nodes, as in: forget node7"
    names=$(scontrol show hostnames "$1") ||
        die "forget: '$1' is no list of nodes; expected node7 or node[3-5]"
    for node in $names; do
        grep -qs "^$node"$'\t' "$bad_nodes" || die "forget: $node is not in $bad_nodes"
        awk -F '\t' -v node="$node" '$1 != node' "$bad_nodes" >"$bad_nodes.new" ||
            die "cannot write to $bad_nodes.new"
        mv "$bad_nodes.new" "$bad_nodes" || die "cannot write to $bad_nodes"
    done
    list
}

case ${1:-} in
    '') list ;;
    add | forget) "$@" ;;
    -h | --help) print_usage "${BASH_SOURCE[0]}" ;;
    *) die "'$1' is not known: expected add, forget, or nothing to list the nodes" ;;
esac
