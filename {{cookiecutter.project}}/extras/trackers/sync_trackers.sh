#!/usr/bin/env bash
# Sends what trackers have written on compute nodes without internet: runs of W&B and of MLflow.
#
#   bash extras/trackers/sync_trackers.sh             sends the runs in the current folder and below
#   bash extras/trackers/sync_trackers.sh runs logs   sends the runs in these folders
#   bash extras/trackers/sync_trackers.sh --dry-run   only lists the runs
#
# Call it on a machine that reaches the trackers' servers. It sends a run once, and only your own: other
# users' runs would go to your account. It leaves out runs that have changed within the last ten minutes,
# as their jobs may still run.
#
# It needs the command wandb, or export-experiments of the package mlflow-export-import, and for MLflow
# the variable MLFLOW_TRACKING_URI. extras/trackers/README.md says how programs write such runs.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/trackers/sync_trackers.sh
read_settings
PATH=$PATH:$VENV/bin # where slurm/build_venv.sh installs the trackers' commands

dry_run='' folders=()
while (($#)); do
    case $1 in
        -h | --help)
            print_usage "${BASH_SOURCE[0]}"
            exit
            ;;
        --dry-run) dry_run=1 ;;
        -*) die "'$1' is not known: expected --dry-run, or folders" ;;
        *)
            [[ -d $1 ]] || die "'$1' is no folder"
            [[ $1 == /* ]] || set -- "./$1" "${@:2}" # find would take "!" or "(" for words of its own
            folders+=("$1")
            ;;
    esac
    shift
done
((${#folders[@]})) || folders=(.)

# Prints the user's files whose path fits a pattern, the oldest first, that were not sent and have not just
# changed. find follows no links: logs/latest leads to a folder that it finds anyway. Other programs would take
# a path that begins with - for an option.
unsent() {
    local file
    while IFS= read -r file; do
        if [[ ! -e $file.synced ]]; then
            if [[ -n $(find "$file" -mmin -10) ]]; then
                echo "left out: $file has changed within ten minutes, its job may still run" >&2
            else
                echo "$file"
            fi
        fi
    done < <(find -H "${folders[@]}" -path "$1" -type f -user "$UID" -printf '%T@ %p\n' | sort -n |
        cut -d ' ' -f 2- | xargs -r -d '\n' realpath --relative-to=. | sed 's|^-|./-|' | awk '!seen[$0]++')
}

# Refuses to go on without a command. Arguments: the command, and the package that has it.
need() {
    [[ -n $dry_run ]] || type -P "$1" >/dev/null ||
        die "there are runs to send, but no command $1: pip install $2 (in $VENV, or on PATH)"
}

failed=0 sent=0

mapfile -t files < <(unsent '*offline-run-*/run-*.wandb')
((${#files[@]} == 0)) || need wandb wandb
for file in "${files[@]}"; do
    echo "W&B: ${file%/*}"
    if [[ -z $dry_run ]]; then
        if wandb sync "${file%/*}" </dev/null; then
            touch "$file.synced"
        else
            failed=1
        fi
    fi
    sent=$((sent + 1))
done

mapfile -t files < <(unsent '*/mlflow.db')
if ((${#files[@]})); then
    need export-experiments mlflow-export-import
    [[ -n $dry_run || ${MLFLOW_TRACKING_URI:-} == http* ]] ||
        die "there are runs of MLflow to send: export MLFLOW_TRACKING_URI=https://YOUR-SERVER"
fi
for file in "${files[@]}"; do
    echo "MLflow: $file"
    if [[ -z $dry_run ]]; then
        copy=$(mktemp -d) || exit
        if MLFLOW_TRACKING_URI="sqlite:///$(realpath "$file")" \
            export-experiments --experiments all --output-dir "$copy" &&
            import-experiments --input-dir "$copy"; then
            touch "$file.synced"
        else
            failed=1
        fi
        rm -rf "$copy"
    fi
    sent=$((sent + 1))
done

((sent)) || echo "nothing to send in ${folders[*]#./}"
((failed == 0)) || die "some runs were not sent, see above: call extras/trackers/sync_trackers.sh again"
