#!/usr/bin/env bash
# Removes the copies of sources that SNAPSHOT=1 has made, but for those that a job still needs.
#
#   bash slurm/clean.sh              removes them, and says which
#   bash slurm/clean.sh --dry-run    only says which
#
# A job needs its copy while it waits in the queue or runs. This script asks Slurm for the commands
# of all jobs. It leaves alone copies that were asked for within the last hour, as their job may be
# about to be submitted, and copies of other users, whose jobs you may not see.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/clean.sh

(($# <= 1)) || die "too many words: expected --dry-run, or nothing"
dry_run=''
case ${1:-} in
    '') ;;
    --dry-run) dry_run=1 ;;
    -h | --help)
        print_usage "${BASH_SOURCE[0]}"
        exit
        ;;
    *) die "'$1' is not known: expected --dry-run, or nothing" ;;
esac

# Prints the folders logs/snapshots/HASH that jobs of the queue name, a line each.
needed_snapshots() {
    local jobs
    jobs=$(scontrol --oneliner show job) ||
        die "Slurm does not say which jobs there are, see above: no copy was removed"
    grep -vE ' JobState=(COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|DEADLINE) ' \
        <<<"$jobs" | grep -oE 'logs/snapshots/[0-9a-f]{12}' | sort -u
}

needed=$(needed_snapshots) || exit
while IFS= read -r snapshot; do
    ! grep -qxF "logs/snapshots/${snapshot##*/}" <<<"$needed" || continue
    echo "${dry_run:+would remove }${snapshot#"$PROJECT_DIR/"}"
    if [[ -z $dry_run ]]; then
        # Renamed first: half of a copy is not to be taken for a whole one.
        mv -T "$snapshot" "$PROJECT_DIR/logs/snapshots/.unfinished-$$" &&
            rm -rf "$PROJECT_DIR/logs/snapshots/.unfinished-$$"
    fi
done < <(find "$PROJECT_DIR/logs/snapshots/" -mindepth 1 -maxdepth 1 -type d -user "$UID" \
    \( -name '????????????' -o -name '.unfinished-*' \) -mmin +60 2>/dev/null)
