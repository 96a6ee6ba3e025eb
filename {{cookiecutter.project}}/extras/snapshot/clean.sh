#!/usr/bin/env bash
# Removes copies of sources in logs/snapshots from which no job was submitted for 30 days, and that no
# job which waits or runs was started from. A copy into which a program has written stays, too.
#
#   bash extras/snapshot/clean.sh              removes the copies, and lists them
#   bash extras/snapshot/clean.sh --dry-run    only lists the copies that it would remove
#
# This script asks Slurm for the commands of all jobs. But Slurm tells nothing of jobs on other
# clusters (sbatch -M), and may hide those of a colleague who has repeated your job. To keep a copy for
# such a job: touch logs/snapshots/HASH
#
# Files of other users, files with other names, and what links lead to stay.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/snapshot/clean.sh

(($# <= 1)) || die "too many words: expected --dry-run, or nothing"
dry_run=''
case $#:${1:-} in
    0:) ;;
    1:--dry-run) dry_run=1 ;;
    1:-h | 1:--help)
        print_usage "${BASH_SOURCE[0]}"
        exit
        ;;
    *) die "'$1' is not known: expected --dry-run, or nothing" ;;
esac

# Prints the folders logs/snapshots/HASH that jobs of the queue name, a line each.
needed_snapshots() {
    local jobs
    jobs=$(scontrol --oneliner show job) ||
        die "scontrol did not list the jobs, see above. No copy was removed: try again later"
    grep -vE ' JobState=(COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|DEADLINE) ' \
        <<<"$jobs" | grep -oE 'logs/snapshots/[0-9a-f]{12}' | sort -u
}

# Prints a file that a program has written into a copy, if there is one. Copied files have the times of
# the originals, so they are older than changes.diff of the copy. Argument: the folder logs/snapshots/HASH.
result_in() {
    find "$1" -name __pycache__ -prune -o -type f -newer "$1/changes.diff" -print -quit 2>/dev/null
}

# Removes a folder, and says so. It is renamed first: if this script is ended before all of
# a folder is removed, no job takes the rest for a whole copy. The next call removes the rest.
remove() {
    echo "${dry_run:+would remove }${1#"$PROJECT_DIR/"}"
    [[ -z $dry_run ]] || return 0
    local renamed="${1%/*}/.unfinished-$$-${1##*/}"
    mv -T "$1" "$renamed" && rm -rf "$renamed"
}

needed=$(needed_snapshots) || exit
# Each submission sets the time of its copies. Without -H or a / at the end, find does not
# follow a link to the folder.
find_own=(-mindepth 1 -maxdepth 1 -user "$UID" -regextype posix-extended)
while IFS= read -r snapshot; do
    ! grep -qxF "logs/snapshots/${snapshot##*/}" <<<"$needed" || continue
    result=$(result_in "$snapshot")
    if [[ -n $result ]]; then
        echo "${snapshot#"$PROJECT_DIR/"} stays: a program has written ${result#"$PROJECT_DIR/"}" >&2
    else
        remove "$snapshot"
    fi
done < <(find "$PROJECT_DIR/logs/snapshots" "${find_own[@]}" -type d \( \
    -regex '.*/[0-9a-f]{12}' -mtime +29 -o -regex '.*/\.unfinished-[^/]*' -mmin +60 \) 2>/dev/null)
