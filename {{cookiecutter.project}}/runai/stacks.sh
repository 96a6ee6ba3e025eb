#!/usr/bin/env bash
# Prints where each rank of a running job is at this moment, by file, line and function, and
# which rank keeps the others waiting in a collective.
#
#   bash runai/stacks.sh NAME                a job of NNODES pods (env.sh)
#   NNODES=4 bash runai/stacks.sh NAME       a job of 4 pods
#
# Ranks at the same place are one line. The job itself goes on. Call it twice: a rank that has not
# moved in between may be stuck. runai/docs/it-hangs.md explains each line.

unset CDPATH # with it, cd could go to another folder and print it
# Not realpath: pods may know the volume by the name that is used here.
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PROJECT_DIR LC_ALL=C
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/lib.sh" runai/stacks.sh # the functions below

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
    # shellcheck disable=SC2086,SC2154 # job_commands are several words, which runai/lib.sh sets
    $job_commands exec "$1" -p "$RUNAI_PROJECT" ${pod:+--pod "$pod"} -- \
        bash "$POD_PROJECT_DIR/launch/stacks/collect.sh" </dev/null ||
        echo "runai/stacks.sh: ${pod:-$1} does not answer, see above" >&2
done | python3 "$PROJECT_DIR/launch/stacks/group.py"
