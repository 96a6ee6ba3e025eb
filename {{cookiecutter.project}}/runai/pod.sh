#!/usr/bin/env bash
# Runs a PyTorch program in a pod. Each pod of a job runs this script: runai/submit_multinode.sh
# tells Run:ai to start it. In pods that wait (runai/interactive.sh) you start it yourself.
#
#   bash runai/pod.sh                              DEFAULT_PROGRAM of env.sh
#? if cookiecutter.examples == "yes"
#   bash runai/pod.sh pi/pi.py --intervals 1e9     any program, with its arguments
#? else
#   bash runai/pod.sh program.py --lr 1e-3         any program, with its arguments
#? endif
#
# It checks what the pod was given: volume, user, torch, RDMA. Then it runs launch/torchrun.sh,
# whose exit code is its own: 0, or not 0. All output goes also to logs/JOB.UUID/podN.log on the
# volume; N counts the pods. Settings: env.sh.

# shellcheck disable=SC2154 # functions set arguments and log
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/runai/job.sh" # the functions below

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi

require_volume  # refuses a project that lies in the image
set_home        # for a user whom the image does not know
cd "$PROJECT_DIR" || exit
rdma_required=${REQUIRE_RDMA:-0} # the submit script's value; env.sh would set its own default
read_settings   # env.sh
start_log       # all further output also goes to logs/JOB.UUID/podN.log
hand_on_signals # SIGTERM, which Kubernetes sends to this script alone, reaches the program too

read_extras_of_pod    # extras/*/: call_extras calls their functions
decode_arguments "$@" # sets arguments
call_extras job_start # may change arguments, and the working directory
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
set_up_software || exit
set -euo pipefail # only now: virtual environments read variables that are not set

call_extras check_settings
if ((${#arguments[@]} == 0)); then arguments=("$DEFAULT_PROGRAM"); fi
(read_program "${arguments[@]}") || exit # refuses what is no program of Python
describe_pod
require_torch
set_up_rdma "$rdma_required" # refuses a pod without RDMA if the job has asked for it

launch "${arguments[@]}" # sets code
call_extras job_end
((code == 0)) ||
    echo "runai/pod.sh in $HOSTNAME: ended with exit code $code; all that was printed: $log"
exit "$code"
