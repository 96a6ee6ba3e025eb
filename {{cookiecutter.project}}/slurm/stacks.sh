#!/usr/bin/env bash
# Prints where each rank of a running job is at this moment, by file, line and function, and which
# rank keeps the others waiting in a collective.
#
#   bash slurm/stacks.sh JOBID
#
# Ranks at the same place are one line. The job itself goes on. Call it twice: a rank that has not
# moved in between may be stuck. A rank that cannot answer is shown with the state of its process.
# slurm/docs/it-hangs.md explains each line.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/stacks.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ $# == 1 && $1 =~ ^[0-9]+(_[0-9]+)?$ ]] ||
    die "'$*': expected the number of a job, as in bash slurm/stacks.sh 4711; squeue --me lists yours"

record=$(job_record "$1") || die "Slurm knows no job $1: squeue --me lists yours"
[[ $record =~ JobState=([A-Z_]+) ]] && state=${BASH_REMATCH[1]}
[[ $state == RUNNING ]] ||
    die "job $1 is $state: only a running one has ranks. Why a job ended: python3 slurm/doctor.py $1"
[[ $record =~ JobId=([0-9]+) ]] && number=${BASH_REMATCH[1]} # of a job of an array, too
[[ $record =~ [[:space:]]NodeList=([^[:space:]]+) ]] && nodes=${BASH_REMATCH[1]}
mapfile -t hosts < <(scontrol show hostnames "$nodes")

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
