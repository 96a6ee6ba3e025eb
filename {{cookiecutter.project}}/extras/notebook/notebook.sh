#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set job = plan.interactive_answers
#? set own_queue = "partition" in site.interactive or "qos" in site.interactive or plan.has_own_queue(job)
# Opens JupyterLab on a compute node, inside the software environment of env.sh: {{ site.title }}.
#
#   bash extras/notebook/notebook.sh                     submits a job of one node, and connects to it
#   bash extras/notebook/notebook.sh --time=00:10:00     options of sbatch replace the defaults of this script
#   bash extras/notebook/notebook.sh JOBID               connects to the notebook of job JOBID
#
# Once the job runs, this script prints a command for your own machine, and an address for its
# browser. Ctrl-C, or the end of your login, ends this script alone. The notebook goes on until its
# time limit. scancel JOBID ends it.
#
#? if own_queue
# The account is that of slurm/submit_multinode.sh.
#? else
# Account and queue are those of slurm/submit_multinode.sh.
#? endif
# extras/notebook/README.md says how it works, and what to do if it does not.

# shellcheck disable=SC2154 # find_running_job sets number and hosts
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" extras/notebook/notebook.sh

# Submits the job, and sets number.
submit_notebook() {
    local options
    #? if own_queue
    mapfile -t options < <(options_of_jobs account) # of slurm/submit_multinode.sh
    #? else
    mapfile -t options < <(options_of_jobs account partition qos) # of slurm/submit_multinode.sh
    #? endif
    options+=(
        --nodes=1 --ntasks=1 --job-name=notebook --output=notebook-%j.out --export=ALL
        --no-requeue # after a requeue all variables of the kernels would be lost
        #? for option, why in plan_of(job).own_resources(own_queue)
        "{{ option }}"
        #? endfor
    )
    unset_stale_variables
    check_software || exit # now, and not after hours in the queue
    number=$(sbatch --parsable "${options[@]}" "$@" "$PROJECT_DIR/extras/notebook/serve.sh" "$PROJECT_DIR") ||
        die "sbatch refused the job, see above"
    number=${number%%;*} # on a federation of clusters the cluster's name follows
    echo "job $number is submitted"
}

# Refuses software without JupyterLab, unless a container has it.
check_software() (
    read_settings
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    #? if cookiecutter.runtime in ("venv", "none")
    set_up_software || exit
    #? else
    set_up_software "$PROJECT_DIR" "$PWD" || exit
    ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]} == 0)) || exit 0
    #? endif
    "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("jupyterlab") is None)' ||
        die "$PYTHON has no JupyterLab: $PYTHON -m pip install jupyterlab"
)

# Says what Ctrl-C leaves in the queue.
interrupted() {
    echo "job $number stays in the queue: scancel $number removes it." \
        "When it runs, bash extras/notebook/notebook.sh $number connects to it"
    exit 130
}

# Waits until the job runs.
wait_for_start() {
    local state='' last='' record output=''
    while [[ $state != RUNNING ]]; do
        [[ -z $last ]] || sleep 2
        record=$(job_record "$number") || die "Slurm does not answer. Later, run: bash extras/notebook/notebook.sh $number"
        [[ $record =~ JobState=([A-Z_]+)\ Reason=([^[:space:]]+) ]]
        state="${BASH_REMATCH[1]} (${BASH_REMATCH[2]})"
        [[ ! $record =~ StdOut=([^=]+)\ [A-Za-z]+= ]] || output=${BASH_REMATCH[1]}
        [[ $state =~ ^(PENDING|CONFIGURING|RUNNING|COMPLETING) ]] ||
            die "job $number has ended: ${state%% *}. See its output, ${output:-notebook-$number.out}"
        [[ $state == "$last" ]] || echo "job $number: ${state% (None)}"
        last=$state state=${state%% *}
    done
}

if (($# == 0)) || [[ $1 == -* ]]; then
    expect_options "${BASH_SOURCE[0]}" "$@"
    submit_notebook "$@"
    trap interrupted INT
    wait_for_start
    trap - INT
elif (($# > 1)); then
    die "'$*': expected options of sbatch, or the number of one job"
fi
unset_options_of_srun
find_running_job "${number:-$1}" # number, hosts
[[ $(job_record "$number") == *Command=*/extras/notebook/serve.sh* ]] ||
    die "extras/notebook/notebook.sh did not start job $number"
exec python3 -B "$PROJECT_DIR/extras/notebook/connect.py" \
    "$number" "${hosts[0]}" "$PROJECT_DIR/logs/$number.0"
