#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# Runs a PyTorch program in the pods of a Run:ai job, one pod per node: {{ site.title }}.
#
#   bash runai/submit_multinode.sh                            DEFAULT_PROGRAM of env.sh
#? if cookiecutter.examples == "yes"
#   bash runai/submit_multinode.sh pi/pi.py --intervals 1e9   any program, with its arguments
#? else
#   bash runai/submit_multinode.sh program.py --lr 1e-3       any program, with its arguments
#? endif
#   bash runai/submit_multinode.sh -m package.module          a module, with its arguments
#   bash runai/submit_multinode.sh --dry-run program.py       prints the command for runai
#   NNODES=4 bash runai/submit_multinode.sh program.py        another number of pods, for this job
#
# It looks for the program in the current folder, then in the project. Pods run it in the project's
# folder. Settings: env.sh. It works with both generations of the client, v1 (submit-dist) and v2
# (training pytorch submit), and with the bash of macOS (3.2).

# shellcheck disable=SC2154 # functions set program
unset CDPATH # with it, cd could go to another folder and print it
# Not realpath: pods may know the volume by the name that is used here.
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PROJECT_DIR LC_ALL=C
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/project.sh" runai/submit_multinode.sh
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/submit.sh" # the functions below
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/command.sh"

dry_run=''
case ${1:-} in
    -h | --help)
        print_usage "${BASH_SOURCE[0]}"
        exit
        ;;
    --dry-run)
        dry_run=1
        shift
        ;;
esac

read_settings_for_pods    # env.sh and extras/*/, and which of their variables your shell exports
check_settings            # refuses what would fail after the wait for nodes
find_project_in_pods      # POD_PROJECT_DIR
choose_user               # RUN_AS_UID, RUN_AS_GID
find_client               # RUNAI_CLI: v1 or v2
check_volumes             # asks the cluster for VOLUMES
find_program_in_pods "$@" # program: its path in the pods, and its arguments
job_script=$POD_PROJECT_DIR/runai/pod.sh # each pod runs it, and it starts the program
call_extras before_submit # may change program, pod_variables, RUNAI_OPTIONS, job_script

name=$(job_name "$JOB_PREFIX")
build_command "$name" bash "$job_script" "${program[@]}"
print_command
[[ -z $dry_run ]] || exit 0
submit
print_next_commands "$name" # state, output, a shell, delete
print_row "what each pod printed:" "$POD_PROJECT_DIR/logs/$name.*/"
