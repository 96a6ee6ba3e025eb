#!/usr/bin/env bash
# Runs a PyTorch program on all nodes of the allocation that this shell is in, as after salloc.
#
#   salloc --nodes=2 --gpus-per-node=1 --exclusive    opens such a shell; it reads no #SBATCH lines
#   bash slurm/run_here.sh program.py [arguments]     in that shell, or in a script of your own
#
# It takes the steps of slurm/submit_multinode.sh in the job, but never requeues. What you type reaches
# the ranks, and Ctrl-C ends them. In a loop that reads lines, give it </dev/null, or the ranks read the
# lines. Programs read STOP_TIME, when they have to save. The logs of each run are in another folder
# logs/JOBID.N/. It needs bash 4.4.
# shellcheck disable=SC2034,SC2154 # the scripts of slurm/ share variables

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" slurm/run_here.sh
for file in slurm/submit.sh slurm/job.sh slurm/ranks.sh; do
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/$file" || exit
done

# Refuses a shell whose job has ended: a terminal that was opened in a shell of salloc outlives the job.
require_allocation() {
    if [[ -z ${SLURM_JOB_ID:-} ]]; then
        die "this shell is in no allocation: run salloc first, or bash slurm/submit_multinode.sh"
    elif [[ $(field JobState) != RUNNING ]]; then
        die "this shell belongs to job $SLURM_JOB_ID, which Slurm does not show as running. If it has" \
            "ended, run salloc again, or bash slurm/submit_multinode.sh"
    fi
}

# Makes the first folder logs/JOBID.N that does not exist, and sets attempt and first_attempt to N. So
# the program starts anew, also beside another one in this allocation.
take_run_folder() {
    attempt=0
    until mkdir "$PROJECT_DIR/logs/$SLURM_JOB_ID.$attempt" 2>/dev/null; do
        [[ -e $PROJECT_DIR/logs/$SLURM_JOB_ID.$attempt ]] || die "cannot write to $PROJECT_DIR/logs"
        attempt=$((attempt + 1))
    done
    first_attempt=$attempt
}

# Ends the ranks, and this script.
# shellcheck disable=SC2329 # called by the trap
stop_here() {
    if [[ -n $ranks ]]; then
        kill "$ranks" 2>/dev/null || true
        wait "$ranks" || true
    fi
    exit 130
}

case ${1:-} in
    -h | --help)
        print_usage "${BASH_SOURCE[0]}"
        exit
        ;;
esac

in_batch_job=0 stop='' record='' typed=("$@")
trap stop_here INT TERM HUP
unset_stale_variables
if [[ -n ${SLURM_JOB_ID:-} ]]; then identify_job; fi
require_allocation
read_settings
read_extras
read_program "$@"
call_extras job_start
load_software
check_settings
set -euo pipefail
read_allocation
take_run_folder
make_run_folder
set_stop_time
choose_nodes
run_program
call_extras job_end
if [[ -e $REQUEUE_FILE ]]; then
    say "saved, but not done. A run inside another job is not requeued: start the program again," \
        "with --resume, to go on"
fi
if ((code)); then explain_failure; fi
exit "$code"
