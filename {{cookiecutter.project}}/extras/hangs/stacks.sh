#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? if kind == "slurm"
# Prints where each rank of a running job is at this moment, by file, line and function, and which
# rank keeps the others waiting in a collective.
#
#   bash extras/hangs/stacks.sh JOBID
#
# The job itself goes on. Ranks at the same place are one line. Call it twice: a rank that has not
# moved in between may be stuck. A rank that cannot answer is shown with the state of its process.
# extras/hangs/README.md explains each line.

# shellcheck disable=SC2154 # find_running_job sets number and hosts
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" extras/hangs/stacks.sh

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
        bash "$PROJECT_DIR/extras/hangs/collect.sh" "SLURM_JOB_ID=$number"
}

# Asks each node by itself, as one that is broken may cost the answers of all.
ask_one_by_one() {
    local node
    for ((node = 0; node < ${#hosts[@]}; node++)); do
        (
            set -o pipefail
            ask 30 --nodes=1 --ntasks=1 --nodelist="${hosts[node]}" | sed "s/^ *0: /$node: /" ||
                echo "extras/hangs/stacks.sh: ${hosts[node]} does not answer, see above" >&2
        ) &
    done
    wait
}

answers=$(ask 60 --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}") || answers=$(ask_one_by_one)
python3 "$PROJECT_DIR/extras/hangs/group.py" <<<"$answers"
#? elif kind == "runai"
# Prints where each rank of a running job is at this moment, by file, line and function, and
# which rank keeps the others waiting in a collective.
#
#   bash extras/hangs/stacks.sh NAME                a job of NNODES pods (env.sh)
#   NNODES=4 bash extras/hangs/stacks.sh NAME       a job of 4 pods
#
# The job itself goes on. Ranks at the same place are one line. Call it twice: a rank that has not
# moved in between may be stuck. extras/hangs/README.md explains each line.

unset CDPATH # with it, cd could go to another folder and print it
# Not realpath: pods may know the volume by the name that is used here.
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PROJECT_DIR LC_ALL=C
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/project.sh" extras/hangs/stacks.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/submit.sh" # the functions below
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/command.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ $# == 1 && $1 =~ ^[a-z][a-z0-9-]*$ ]] ||
    die "'$*': expected the name of a job, which the submit script has printed"

read_settings        # env.sh
check_settings       # NNODES, and others
find_project_in_pods # POD_PROJECT_DIR
find_client          # RUNAI_CLI: v1 or v2
choose_job_commands  # job_commands

pods=('') # runai knows the one pod of a job by the job's name
((NNODES == 1)) || read -ra pods <<<"$(pods_of "$1")"
for pod in "${pods[@]}"; do
    # shellcheck disable=SC2086,SC2154 # job_commands are several words, which runai/command.sh sets
    $job_commands exec "$1" -p "$RUNAI_PROJECT" ${pod:+--pod "$pod"} -- \
        bash "$POD_PROJECT_DIR/extras/hangs/collect.sh" </dev/null ||
        echo "extras/hangs/stacks.sh: ${pod:-$1} does not answer, see above" >&2
done | python3 "$PROJECT_DIR/extras/hangs/group.py"
#? else
# Prints where each rank of a run on this machine is at this moment, by file, line and function, and
# which rank keeps the others waiting in a collective.
#
#   bash extras/hangs/stacks.sh            the newest run
#   bash extras/hangs/stacks.sh logs/RUN   another one
#
# The run itself goes on. Ranks at the same place are one line. Call it twice: a rank that has not
# moved in between may be stuck. extras/hangs/README.md explains each line.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/local/project.sh" extras/hangs/stacks.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ -d /proc/self/fd ]] || die "this needs Linux, where /proc shows the processes"
# Folders of runs begin with a date; logs/snapshots is another.
newest=$(find "$PROJECT_DIR/logs" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' 2>/dev/null |
    sort | tail -n 1)
run=${1:-$newest}
[[ -d $run ]] ||
    die "'$run': expected the folder of a run, as in bash extras/hangs/stacks.sh logs/RUN"
bash "$PROJECT_DIR/extras/hangs/collect.sh" "RUN_DIR=$(realpath "$run")" |
    python3 "$PROJECT_DIR/extras/hangs/group.py"
#? endif
