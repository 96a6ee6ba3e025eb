#!/usr/bin/env bash
# Prints where each rank of a run on this machine is at this moment: file, line and function.
#
#   bash local/stacks.sh            the newest run
#   bash local/stacks.sh logs/RUN   another one
#
# Ranks at the same place are one line. In a run that hangs, many ranks often wait in a collective,
# and one is somewhere else: that one is printed last. The run itself goes on, and does not notice.
# Call it twice: ranks that have not moved in between may be stuck.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/program.sh" local/stacks.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
[[ -d /proc/self/fd ]] || die "this needs Linux, where /proc shows the processes"
run=${1:-$(find "$PROJECT_DIR/logs" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort | tail -n 1)}
[[ -d $run ]] || die "'$run': expected the folder of a run, as in bash local/stacks.sh logs/RUN"
"$PROJECT_DIR/launch/stacks/collect.sh" "RUN_DIR=$(realpath "$run")" |
    python3 "$PROJECT_DIR/launch/stacks/group.py"
