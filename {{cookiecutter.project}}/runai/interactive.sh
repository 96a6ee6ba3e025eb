#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# Pods that wait for you to enter them: {{ site.title }}.
#
#   bash runai/interactive.sh                        NNODES pods (env.sh), for two hours
#   NNODES=1 bash runai/interactive.sh 00:30:00      one pod, for half an hour ([D-]HH:MM:SS)
#   bash runai/interactive.sh --dry-run              prints the command for runai, submits nothing
#   bash runai/interactive.sh --delete NAME          ends the pods of job NAME now
#
# After that time the pods end by themselves. GPUs are charged while pods wait, so delete pods that
# you do not use. This script prints how to enter each pod and how to start a program in all of
# them. A program that you start in a shell ends with the connection, unless you use tmux or nohup.
# Settings: env.sh.

unset CDPATH # with it, cd could go to another folder and print it
# Not realpath: pods may know the volume by the name that is used here.
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PROJECT_DIR LC_ALL=C
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/project.sh" runai/interactive.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/submit.sh" # the functions below
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/command.sh"

dry_run='' times=()
for word in "$@"; do
    case $word in
        -h | --help)
            print_usage "${BASH_SOURCE[0]}"
            exit
            ;;
        --delete)
            [[ $# == 2 && $1 == --delete ]] ||
                die "expected one job: bash runai/interactive.sh --delete NAME"
            delete_job "$2" # and ends this script
            ;;
        --dry-run) dry_run=1 ;;
        *) times+=("$word") ;;
    esac
done
((${#times[@]} <= 1)) || die "'$*': expected at most one time, such as 00:30:00, and --dry-run"
time=${times[0]-02:00:00}
seconds=$(seconds_of "$time") || exit

read_settings_for_pods # env.sh, and which of its variables your shell exports
check_settings         # refuses what would fail after the wait for nodes
find_project_in_pods   # POD_PROJECT_DIR
choose_user            # RUN_AS_UID, RUN_AS_GID
find_client            # RUNAI_CLI: v1 or v2
check_volumes          # asks the cluster for VOLUMES

name=$(job_name "$JOB_PREFIX-shell")
[[ -z $RUN_AS_UID ]] || pod_variables+=(HOME=/tmp "USER=$RUN_AS_UID") # the image knows neither
build_command "$name" sleep "$seconds" # all that the pods run, until you start something in them
print_command
[[ -z $dry_run ]] || exit 0
submit
print_next_commands "$name" # state, output, a shell, delete
echo
print_how_to_enter "$name"
echo "The pods end by themselves after $time, or now: bash runai/interactive.sh --delete $name"
