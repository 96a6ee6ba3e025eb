#!/usr/bin/env bash
# Prints where each rank of a running job is at this moment, by file, line and function, and which
# rank keeps the others waiting in a collective.
#
#   bash slurm/stacks.sh JOBID
#
# Ranks at the same place are one line. The job itself goes on. Call it twice: a rank that has not
# moved in between may be stuck. A rank that cannot answer is shown with the state of its process.
# slurm/docs/it-hangs.md explains each line.

# shellcheck disable=SC2154 # find_running_job sets number and hosts
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/stacks.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ $# == 1 ]] || die "'$*': expected the number of one job"
unset_options_of_srun
find_running_job "$1" # number, hosts

# Asks nodes in a step of its own, outside of the ranks' container. --overlap: the ranks hold all
# cores of the job. Arguments: the seconds to wait, then options of srun that name the nodes.
ask() {
    timeout --foreground --kill-after=10 "$1" srun --jobid="$number" --overlap --ntasks-per-node=1 \
        --cpus-per-task=1 --label --input=none --export=ALL "${@:2}" \
        "$PROJECT_DIR/launch/stacks/collect.sh" "SLURM_JOB_ID=$number"
}

# Asks each node by itself, as one that is broken may cost the answers of all.
ask_one_by_one() {
    local node
    for ((node = 0; node < ${#hosts[@]}; node++)); do
        (
            set -o pipefail
            ask 30 --nodes=1 --ntasks=1 --nodelist="${hosts[node]}" | sed "s/^ *0: /$node: /" ||
                echo "slurm/stacks.sh: ${hosts[node]} does not answer, see above" >&2
        ) &
    done
    wait
}

answers=$(ask 60 --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}") || answers=$(ask_one_by_one)
python3 "$PROJECT_DIR/launch/stacks/group.py" <<<"$answers"
