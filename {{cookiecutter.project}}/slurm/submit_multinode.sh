#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set software = {"venv": "virtual environment", "none": "modules"}.get(cookiecutter.runtime, "container")
# Runs a PyTorch program on all nodes of a job, on {{ site.title }}.
#
#? if cookiecutter.examples == "yes"
#   bash slurm/submit_multinode.sh                               check/ranks.py, then a training
#   bash slurm/submit_multinode.sh pi/pi.py --intervals 1e9      any Python program
#? else
#   bash slurm/submit_multinode.sh                               check/ranks.py
#   bash slurm/submit_multinode.sh program.py --lr 1e-3          any Python program
#? endif
#   bash slurm/submit_multinode.sh -m package.module             a module
#   bash slurm/submit_multinode.sh --nodes=4 -- program.py       options of sbatch end with --
#
# On a login node, this script checks what would fail after hours in the queue, then submits itself.
# Inside a job, as in a shell of salloc, it runs the program there: salloc takes none of the #SBATCH
# lines below.
#
# To submit without these checks, call sbatch. Its options come first. The program of an array reads
# its index from SLURM_ARRAY_TASK_ID:
#
#   sbatch --nodes=4 slurm/submit_multinode.sh program.py
#   sbatch --array=0-3 slurm/submit_multinode.sh program.py
#
# The program is looked up in the current folder, then in the project. The job ends with the exit
# code of the launcher: 0 if all ranks ended well. Else it may be that of a rank which the launcher
# ended, such as 143: the rank that failed first, and its own code, stand in the job's output. The
# ranks' logs are in logs/JOBID.ATTEMPT/ of the project.
#
# Edit two places: the #SBATCH lines below, and env.sh in the project's folder. That file sets
#? if software == "container"
# the container, modules, the launcher and variables of the network. A variable of your own goes
#? else
# Python, modules, the launcher and variables of the network. A variable of your own goes
#? endif
# there, too, as: export NAME="${NAME:-value}". A key does not: wandb login and hf auth login keep it
# in a file of yours that nobody else reads. To change a setting of env.sh for one job, write it
# before the command: LAUNCHER=srun bash slurm/submit_multinode.sh …
# The rules for port, stop request and requeue are functions in slurm/lib.sh.
#
# Before the walltime is over, this script asks the program to save and to end: it creates the file
# that the variable STOP_FILE names. If the program then creates the file that REQUEUE_FILE names,
# and ends with exit code 0, this script puts the job back into the queue. ATTEMPT and the variable
# RESTART_COUNT are 0 at first, then 1, 2, … A job that you cancel is not put back. To ask the
# program yourself, with the same effect: scancel --signal=USR1 --batch JOBID
#
#SBATCH {{ pad("--job-name=" ~ cookiecutter.project) }} # shown by squeue
#SBATCH {{ pad("--nodes=" ~ cookiecutter.nodes) }} # machines
#SBATCH {{ pad("--ntasks-per-node=1") }} # leave it at 1, with every LAUNCHER: the steps below start a process per GPU
#? for option, why in resources(cookiecutter)
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad(requeue_option(cookiecutter)) }} # the job may go back into the queue: after a preemption, a node's failure, the warning
#SBATCH {{ pad("--signal=B:USR1@" ~ warning(cookiecutter)) }} # the warning, so many seconds (or a minute more) before the end: time to save
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission; before Slurm 23.02, a folder named here has to exist
#SBATCH {{ pad("--open-mode=append") }} # a job that is requeued adds to its output instead of erasing it
#SBATCH {{ pad("--export=ALL") }} # NAME=value before sbatch reaches the job (not if your site sets SBATCH_EXPORT)
#
# bash cannot read a copy that was saved on Windows, whose lines end with another character. The
# next line can: in a comment the character does no harm.
if grep -q $'\r$' "$0"; then printf '%s\n' "$0 was saved on Windows: sed -i 's/\r\$//' '$0'" >&2 && exit 2; fi # here

# Prints the project's folder. Slurm runs a copy of this file from a spool folder. scontrol knows
# where the original lies, as "Command=PATH ARGUMENTS". PATH may be relative, and the whole of it
# may be "(null)".
find_project() {
    local folder command
    local candidates=("$(dirname "$(realpath "${BASH_SOURCE[0]}")")/..")
    command=${SLURM_JOB_ID:+$(env -u SLURM_CLUSTERS scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')}
    [[ $command == /* ]] || command=${SLURM_SUBMIT_DIR:-}/$command
    while [[ $command == */slurm/* ]]; do # arguments may have a "/slurm/", too: the longest first
        command=${command%/slurm/*}
        candidates+=("$command")
    done
    # PROJECT_DIR comes late: in the shell of another project's slurm/interactive.sh it names that
    # project.
    for folder in "${candidates[@]}" "${PROJECT_DIR:-}" "${SLURM_SUBMIT_DIR:-}"; do
        [[ -f $folder/slurm/lib.sh ]] && realpath "$folder" && return
    done
    echo "slurm/submit_multinode.sh: found no slurm/lib.sh;" \
        "submit from the project, or set PROJECT_DIR to it" >&2
    return 2
}

# Runs a program, and sets code to its exit code. An extra may say that the program starts again.
# shellcheck disable=SC2154 # slurm/lib.sh and launch/extras.sh set code, outcome, cancelled
run() {
    launch "$@" || code=$?
    while [[ $outcome == restart && -z $cancelled ]]; do
        begin_next_attempt # chooses the nodes anew
        launch "$@" || code=$?
    done
}

trap '' USR1 # in a short job Slurm may warn at the start, which would end this shell
PROJECT_DIR=$(find_project) || exit
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/lib.sh" slurm/submit_multinode.sh # the functions that are called below

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    print_usage "${BASH_SOURCE[0]}"
    exit
fi
unset_stale_variables
read_extras         # extras/*/: their functions take part at the moments that call_extras names
# shellcheck disable=SC2034 # slurm/lib.sh reads them
program='' words=()
read_arguments "$@" # program, arguments; words: both, as typed; the options of sbatch

if [[ -z ${SLURM_JOB_ID:-} ]]; then # not in a job, so on a login node
    job_script=${BASH_SOURCE[0]}
    check_submission "$job_script" # refuses what would fail after hours in the queue
    call_extras before_submit >&2  # may change sbatch_options, job_script, typed
    submit "$job_script"           # calls sbatch and ends: the job takes the steps below
fi

call_extras job_start    # may change arguments, container_folders, attempt; may exit
set_up_run               # env.sh, {{ software }}
set -euo pipefail        # only now: modules and environments read variables that are not set
look_at_allocation       # nodes, cores, GPUs
make_run_folder          # logs/JOBID.ATTEMPT
arrange_stop_request     # so that the program saves before the time limit
choose_nodes             # checks them; MASTER_ADDR, MASTER_PORT
build_step               # the srun command that starts the launcher, or the ranks, on these nodes
#? if software == "container"
# A step of your own goes here. It runs once, on the first node, outside the container. If it fails,
# the job ends.

#? else
# A step of your own goes here. It runs once, on the first node. If it fails, the job ends.

#? endif
# shellcheck disable=SC2154 # read_arguments sets arguments
run "$program" "${arguments[@]}"
#? if cookiecutter.examples == "yes"
if [[ ${#words[@]} == 0 && $code == 0 && -z $outcome ]]; then # no program: check, then training
    set_rendezvous_endpoint # another port: the check may still hold the first
    run "$PROJECT_DIR/training/train_ddp.py"
fi
#? endif
call_extras job_end
requeue_or_explain "$code"
exit "$code"
