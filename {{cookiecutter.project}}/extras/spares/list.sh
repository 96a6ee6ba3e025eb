#!/usr/bin/env bash
# The list of bad nodes, logs/bad_nodes: nodes that jobs of this project found unfit, or that died.
# hooks.sh and bad_nodes.sh read this file.
# shellcheck disable=SC2154 # slurm/submit_multinode.sh sets sbatch_options and job_script

# One line per fault: the node, the time, the job and the reason, with tabs between them.
spares_file=$PROJECT_DIR/logs/bad_nodes

# Adds a node to the file. Arguments: the node, the reason.
spares_remember() {
    make_logs_folder &&
        printf '%s\t%(%FT%T)T\t%s\t%s\n' \
            "$1" -1 "${SLURM_JOB_ID:--}" "${2//[$'\t\n']/ }" >>"$spares_file"
}

# Prints the newest line of each node, if it is younger than BAD_NODE_DAYS. Control characters, which
# a terminal obeys, become "?".
spares_remembered() {
    local now since
    [[ -r $spares_file ]] || return 0
    printf -v now '%(%s)T' -1
    printf -v since '%(%FT%T)T' $((now - 86400 * BAD_NODE_DAYS))
    awk -F '\t' -v since="$since" '
        NF == 4 && $2 > since { newest[$1] = $0 }
        END { for (node in newest) print newest[node] }' "$spares_file" | sort |
        LC_ALL=C sed 's/[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]/?/g'
}

# Prints the nodes of the cluster, a line each, and those of hidden partitions too.
spares_nodes_of_cluster() { sinfo --all --noheader --Node --format=%N; }

# Adds --exclude for the bad nodes to the options of sbatch, and says so. It leaves out names that the
# cluster does not know any more, which sbatch would refuse, and those of --nodelist.
spares_avoid_bad_nodes() {
    local node time job reason known asked excluded
    local bad=()
    [[ $BAD_NODE_DAYS != 0 && -s $spares_file ]] || return 0
    known=$(spares_nodes_of_cluster) || return 0
    asked=$(spares_nodes_of_option nodelist w) || return
    asked=$(scontrol show hostnames "$asked" 2>/dev/null) || true
    while IFS=$'\t' read -r node time job reason; do
        grep -qxF -- "$node" <<<"$known" || continue
        ! grep -qxF -- "$node" <<<"$asked" || continue
        bad+=("$node")
        [[ $job == - ]] && job="added by hand" || job="found by job $job"
        echo "without $node: $reason ($job, ${time/T/ })"
    done < <(spares_remembered)
    ((${#bad[@]})) || return 0
    echo "to use a node again: bash extras/spares/bad_nodes.sh forget ${bad[0]}." \
        "To use every node in one job: BAD_NODE_DAYS=0 bash slurm/submit_multinode.sh …"
    excluded=$(spares_nodes_of_option exclude x) || return
    sbatch_options+=("--exclude=${excluded:+$excluded,}$(IFS=, && echo "${bad[*]}")")
}

# Prints the nodes that an option of sbatch names, with commas between them. Arguments: its long name,
# its letter.
spares_nodes_of_option() {
    local value
    value=$(option_of_job "$1" "$2" "$job_script")
    if [[ $value == */* ]]; then # sbatch takes this for a file with the names
        [[ -r $value ]] || die "--$1=$value: cannot read this file; expected nodes, or a file of them"
        value=$(xargs <"$value" | tr ' ' ,)
    fi
    echo "$value"
}
