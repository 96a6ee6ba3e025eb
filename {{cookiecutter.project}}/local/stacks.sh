#!/usr/bin/env bash
# Prints where each rank of a run on this machine is at this moment, by file, line and function, and
# which rank keeps the others waiting in a collective.
#
#   bash local/stacks.sh            the newest run
#   bash local/stacks.sh logs/RUN   another one
#
# Ranks at the same place are one line. The run itself goes on. Call it twice: a rank that has not
# moved in between may be stuck. local/docs/it-hangs.md explains each line.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh" local/stacks.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ -d /proc/self/fd ]] || die "this needs Linux, where /proc shows the processes"
# Folders of runs begin with a date; logs/snapshots is another.
newest=$(find "$PROJECT_DIR/logs" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' 2>/dev/null |
    sort | tail -n 1)
run=${1:-$newest}
[[ -d $run ]] || die "'$run': expected the folder of a run, as in bash local/stacks.sh logs/RUN"
"$PROJECT_DIR/launch/stacks/collect.sh" "RUN_DIR=$(realpath "$run")" |
    python3 "$PROJECT_DIR/launch/stacks/group.py"
