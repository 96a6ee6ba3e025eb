#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set software = {"venv": "virtual environment", "none": "modules"}.get(cookiecutter.runtime, "container")
# Runs a PyTorch program on all nodes of a job, on {{ site.title }}. Written by version {{ VERSION }} of its template.
#
#   bash slurm/submit_multinode.sh                               DEFAULT_PROGRAM of env.sh
#? if cookiecutter.examples == "yes"
#   bash slurm/submit_multinode.sh pi/pi.py --intervals 1e9      any Python program
#? else
#   bash slurm/submit_multinode.sh program.py --lr 1e-3          any Python program
#? endif
#   bash slurm/submit_multinode.sh -m package.module             a module
#   bash slurm/submit_multinode.sh --nodes=4 -- program.py       options of sbatch first, then --
#   sbatch --nodes=4 slurm/submit_multinode.sh program.py        without the checks and SAVE_SECONDS
#
# In a terminal, this script checks what would fail after hours in the queue, then submits itself. In
# the job, where Slurm starts it, it runs the program. To run a program in an allocation of salloc,
# type there: bash slurm/run_here.sh program.py
#
# The program is looked up in the current folder, then in the project. The program of an array
# (sbatch --array=0-3 …) reads its index from SLURM_ARRAY_TASK_ID. The ranks' logs are in the folder
# logs/JOBID.N/ of the project. N and the variable RESTART_COUNT are 0 at the first start of the ranks,
# then 1, 2, …
#
# The job ends with the exit code of the launcher: 0 if all ranks ended well. If a rank fails, the
# launcher ends the others with a signal, and the job's code may come from that, such as 143 from
# SIGTERM. The job's output names the rank that failed first, and its own exit code.
#
# Where to change what:
#   #SBATCH lines below         nodes, GPUs, walltime, account, queue. For a second set of them, copy this
#                               file under any name to any folder of the project, and submit the copy
#   env.sh                      all settings: Python, program, LAUNCHER, network, variables of your own,
#                               SAVE_SECONDS (time to save), MAX_REQUEUES (how often a job restarts)
#? if software == "container"
#   launch/software.sh          flags of the container: enter_container
#? else
#   env.sh, CONTAINER_…         flags of a container of your own
#? endif
#   port_range in slurm/job.sh  MASTER_PORT, where the ranks meet
#   near the end of this file   the place for a step of your own, before the ranks start
#   extras/NAME/hooks.sh        functions of your own at further moments of a job: launch/moments.sh
#
# You may edit each script of slurm/ and launch/. check/ranks.py shows whether the ranks still find each
# other. slurm/docs/updating.md says how a newer version of the template keeps your edits.
#
# To change a setting for one job, write it before the command. NPROC_PER_NODE is the number of ranks on
# each node: LAUNCHER=srun NPROC_PER_NODE=2 bash slurm/submit_multinode.sh …
#
# Login and compute nodes need bash 4.4.
#
# SAVE_SECONDS before the time limit, this script asks the program to save and to end: it creates the
# file that the variable STOP_FILE names. The program has to look for that file now and then. If it then
# creates the file that REQUEUE_FILE names, and ends with exit code 0, this script puts the job back into
# the queue, at most MAX_REQUEUES times. A job that you cancel is not put back. To ask the program
# yourself, with the same effect: scancel --signal=USR1 --batch JOBID
#
#SBATCH {{ pad("--job-name=" ~ cookiecutter.project) }} # shown by squeue
#SBATCH {{ pad("--nodes=" ~ cookiecutter.nodes) }} # machines
#SBATCH {{ pad("--ntasks-per-node=1") }} # leave it at 1, with every LAUNCHER: the script starts the ranks itself
#? for option, why in plan.resources
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad(plan.requeue_option) }} # the job may go back into the queue: after a preemption, a node's failure, or when the program was asked to save
#SBATCH {{ pad("--signal=B:USR1@" ~ plan.warning) }} # seconds to save, if you type sbatch; bash slurm/submit_multinode.sh takes SAVE_SECONDS of env.sh instead. Slurm may be a minute early
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission; before Slurm 23.02, a folder named here has to exist
#SBATCH {{ pad("--open-mode=append") }} # a job that is requeued adds to its output instead of erasing it
#SBATCH {{ pad("--export=ALL") }} # NAME=value before sbatch reaches the job (not if your site sets SBATCH_EXPORT)
#
# shellcheck disable=SC2034,SC2154 # the files of slurm/ share variables with the steps below

# Finds the project: the folder above this file that holds slurm/job.sh. Slurm runs a copy of this file
# that is named slurm_script. Its record of the job names the original, then the arguments, as in
#    Command=/home/me/my project/slurm/submit_multinode.sh program.py --lr 1e-3
# The path may be relative to the folder of submission, or "(null)".
record=''
if [[ ${0##*/} == slurm_script && -n ${SLURM_JOB_ID:-} ]]; then
    in_batch_job=1 stop=''
    trap 'stop=asked' USR1 # until arrange_stop_request; without a trap the signal would end this shell
    unset SLURM_CLUSTERS # of another shell: scontrol would ask that cluster
    record=$(SLURM_TIME_FORMAT=standard scontrol --details show job "$SLURM_JOB_ID") || record=''
    original=$(sed -n 's/^ *Command=//p' <<<"$record" | head -n 1)
    case $original in
        /*) ;;
        '' | "(null)") original='' ;;
        *) original=${SLURM_SUBMIT_DIR:-}/$original ;;
    esac
else
    in_batch_job=0
    original=$(realpath "${BASH_SOURCE[0]}")
fi
# Without the path of the original, PROJECT_DIR counts, which a submission by this script has set. A
# shell of slurm/interactive.sh may have set that of another project, so the path is tried first. The
# folders end with /. because the loop cuts off the last name, that of a file, before it looks.
for folder in "$original" "${PROJECT_DIR:-}/." "${SLURM_SUBMIT_DIR:-}/."; do
    while [[ $folder == */* ]]; do
        folder=${folder%/*}
        if [[ -f $folder/slurm/job.sh ]]; then break 2; fi
    done
done
if [[ ! -f $folder/slurm/job.sh ]]; then
    echo "slurm/submit_multinode.sh: no folder above '$original' holds slurm/job.sh: keep this file" \
        "in the project, submit from there, or set PROJECT_DIR" >&2
    exit 2
fi
PROJECT_DIR=$(realpath "$folder")
export PROJECT_DIR

# These files, and those that they read, define the steps below. read_extras comes after them, as an
# extra may define a step anew.
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" slurm/submit_multinode.sh || exit
for file in slurm/submit.sh slurm/job.sh slurm/ranks.sh; do
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/$file" || exit
done

if [[ $in_batch_job == 0 ]]; then
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        print_usage "${BASH_SOURCE[0]}"
        exit
    fi
    job_script=${BASH_SOURCE[0]}
    read_extras                   # extras/*/: their functions take part wherever call_extras stands
    read_command_line "$@"        # sbatch_options, typed
    check_submission              # refuses what would fail after hours in the queue
    call_extras before_submit >&2 # may change sbatch_options, job_script, typed
    submit                        # Slurm starts this file again, in the job: it takes the steps below
    exit
fi

typed=("$@")
unset_stale_variables
identify_job             # sets job_id, requeues
read_settings            # sets what env.sh sets
read_extras              # extras/*/, in the job
read_program "$@"        # sets program, arguments
call_extras job_start    # may change arguments and container_folders, set attempt, or exit
load_software            # what env.sh names: modules, environment, container
check_settings
set -euo pipefail        # only now: modules and environments read variables that are not set
trap 'say "$script, line $LINENO: $BASH_COMMAND failed, which ends the job"' ERR
read_allocation          # sets nodes, cores, gpus
number_attempt           # sets attempt, N of logs/JOBID.N, if no extra has
make_run_folder          # makes logs/JOBID.N
arrange_stop_request     # so that the program saves before the time limit
choose_nodes             # sets hosts, MASTER_ADDR, MASTER_PORT; has the nodes checked
#? if software == "container"
# A step of your own goes here. It runs once, on the first node, outside the container. If it fails,
# the job ends.

#? else
# A step of your own goes here. It runs once, on the node of this script. If it fails, the job ends. To
# run one on each node: srun --export=ALL --ntasks-per-node=1 COMMAND

#? endif
run_program              # starts the ranks as LAUNCHER says, and waits for their end; sets code
call_extras job_end
requeue_or_explain       # back into the queue, or the reason of a failure
exit "$code"
