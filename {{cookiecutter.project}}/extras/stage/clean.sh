#!/usr/bin/env bash
# Removes packed environments and data in logs/ with which no job was submitted for two weeks.
#
#   bash extras/stage/clean.sh              removes the packs, and lists them
#   bash extras/stage/clean.sh --dry-run    only lists the packs that it would remove
#
# A job that has waited for longer packs its files again. Files of other users, files with other
# names, and what links lead to stay. Copies on the nodes are removed by the jobs.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/stage/clean.sh

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

# Each submission sets the time of its packs. Without -H or a / at the end, find does not follow a
# link to the folder. Version 1.2 of the template wrote packs with other endings, and before 1.2.1
# into logs/staged.
while IFS= read -r pack; do
    echo "${dry_run:+would remove }${pack#"$PROJECT_DIR/"}"
    [[ -n $dry_run ]] || rm -f "$pack"
done < <(find "$PROJECT_DIR"/logs/staged{,-"$UID"} -mindepth 1 -maxdepth 1 -user "$UID" -type f \
    -mtime +13 -regextype posix-extended \
    -regex '.*/([0-9a-f]{16}\.(sqsh|tar(\.zst)?|packs(\.[^/]*)?)|\.unfinished-[^/]*)' 2>/dev/null)
