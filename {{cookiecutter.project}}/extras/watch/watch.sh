#!/usr/bin/env bash
# Shows a running job: the last step and the estimated end of its training, the use of each node's GPUs
# and cores, and how long each rank has printed nothing. It names idle ranks and unequal nodes.
#
#   bash extras/watch/watch.sh JOBID              on the terminal, every 5 seconds, until Ctrl-C
#   bash extras/watch/watch.sh JOBID --every 30   every 30 seconds
#   bash extras/watch/watch.sh JOBID --once       once, for a file or a pipe
#
# The job itself goes on. extras/watch/README.md explains each column.

# shellcheck disable=SC2154 # find_running_job sets number and hosts
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" extras/watch/watch.sh

job='' options=()
while (($#)); do
    case $1 in
        -h | --help)
            print_usage "${BASH_SOURCE[0]}"
            exit
            ;;
        --once) options+=(--once) ;;
        --every)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "--every '${2:-}': expected seconds, 1 or more"
            options+=(--every "$2")
            shift
            ;;
        -*) die "unknown option '$1': expected --once, or --every SECONDS" ;;
        *)
            [[ -z $job ]] || die "'$1': give the number of one job only"
            job=$1
            ;;
    esac
    shift
done
unset_options_of_srun
find_running_job "$job" # number, hosts
exec python3 -B "$PROJECT_DIR/extras/watch/screen.py" "${options[@]}" "$number" "${hosts[@]}"
