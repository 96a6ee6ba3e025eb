#!/usr/bin/env bash
# Lists the nodes that jobs of this project avoid, adds one, or forgets one.
#
#   bash extras/spares/bad_nodes.sh                             lists them: node, time, job, reason
#   bash extras/spares/bad_nodes.sh add node7 slow
#   bash extras/spares/bad_nodes.sh add 'node[3-5],node9' slow  nodes as Slurm writes them
#   bash extras/spares/bad_nodes.sh forget node7                lets new jobs use it again
#
# A job adds a node if slurm/preflight.sh or slurm/doctor.py finds a fault on it, or if the node
# dies. For BAD_NODE_DAYS days (settings.sh) slurm/submit_multinode.sh excludes the node from new jobs
# (--exclude). The list is the file logs/bad_nodes. sbatch alone does not read it.

# shellcheck disable=SC2154 # list.sh sets spares_file
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/spares/bad_nodes.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/extras/spares/settings.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/extras/spares/list.sh"

list() {
    local lines
    lines=$(spares_remembered)
    if [[ $BAD_NODE_DAYS == 0 ]]; then
        echo "no node is avoided: BAD_NODE_DAYS=0 (extras/spares/settings.sh)"
    elif [[ -n $lines ]]; then
        column -t -s $'\t' <<<"$lines"
    else
        echo "no node was added in the last $BAD_NODE_DAYS day(s) (BAD_NODE_DAYS in extras/spares/settings.sh)"
    fi
}

# Sets the caller's variable names to single nodes. Arguments: the command, nodes as Slurm writes
# them.
read_names() {
    names=$(scontrol show hostnames "$2" 2>/dev/null) && [[ -n $names ]] ||
        die "$1: '$2' is no list of nodes; expected node7 or 'node[3-5]'"
}

# Arguments: nodes, then the words of the reason.
add() {
    local node names known
    (($# >= 2)) || die "add: expected nodes and a reason, as in: add node7 slow"
    read_names add "$1"
    known=$(spares_nodes_of_cluster) ||
        die "add: sinfo did not list the nodes of the cluster, see above: try again later"
    for node in $names; do
        grep -qxF -- "$node" <<<"$known" ||
            die "add: this cluster has no node $node; sinfo -N lists its nodes"
    done
    ! grep -qxF -- "$2" <<<"$known" ||
        die "add: '$2' is a node too: write nodes with commas between them, as in: add $1,$2 slow"
    for node in $names; do
        spares_remember "$node" "${*:2}" || die "cannot write to $spares_file"
    done
    list
}

# Argument: nodes.
forget() {
    local node names lines
    (($# == 1)) || die "forget: expected nodes, as in: forget node7"
    read_names forget "$1"
    for node in $names; do
        cut -f 1 "$spares_file" 2>/dev/null | grep -xF -- "$node" >/dev/null ||
            die "forget: $node is not in $spares_file"
    done
    lines=$(<"$spares_file") || die "cannot read $spares_file"
    for node in $names; do
        lines=$(awk -F '\t' -v node="$node" '$1 != node' <<<"$lines")
    done
    echo "$lines" >"$spares_file.$$" || die "cannot write to $spares_file.$$"
    # Not mv: the file keeps its owner and mode, which others in the project may need.
    cp "$spares_file.$$" "$spares_file" || die "cannot replace $spares_file by $spares_file.$$"
    rm "$spares_file.$$"
    list
}

case $#:${1:-} in
    0:) list ;;
    *:add | *:forget) "$@" ;;
    *:-h | *:--help) print_usage "${BASH_SOURCE[0]}" ;;
    *) die "'$1' is not known: expected add, forget, or nothing to list the nodes" ;;
esac
