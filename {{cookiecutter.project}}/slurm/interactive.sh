#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set job = plan.interactive_answers
#? set own_queue = "partition" in site.interactive or "qos" in site.interactive or plan.has_own_queue(job)
# Opens a shell on a compute node, inside the software environment of env.sh: {{ site.title }}.
#
#   bash slurm/interactive.sh                          one node, with the options below
#   bash slurm/interactive.sh --time=00:10:00          options of salloc win over the ones below
#
# In the shell:  bash launch/torchrun.sh check/ranks.py  all GPUs that the shell has
# For several nodes: salloc --nodes=2 …, then bash slurm/run_here.sh PROGRAM.
#
#? if own_queue
# The account is that of slurm/submit_multinode.sh.

#? else
# Account and queue are those of slurm/submit_multinode.sh.

#? endif
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" slurm/interactive.sh
expect_options "${BASH_SOURCE[0]}" "$@"
unset_options_of_srun # of another job's shell
read_settings
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
#? if cookiecutter.runtime in ("venv", "none")
set_up_software || exit

#? else
set_up_software "$PROJECT_DIR" "$PWD" || exit

#? endif
#? if own_queue
mapfile -t options < <(options_of_jobs account) # of slurm/submit_multinode.sh
#? else
mapfile -t options < <(options_of_jobs account partition qos) # of slurm/submit_multinode.sh
#? endif
options+=(
    --nodes=1 --ntasks=1
    #? for option, why in plan_of(job).own_resources(own_queue)
    "{{ option }}"
    #? endfor
)
step=(--ntasks=1 --export=ALL --pty)
#? for option in site.srun if option.tasks != "rank"
step+=("{{ option.option }}") # {{ option.why }}
#? endfor
# salloc takes the node and srun opens the shell as a step of it, which has all of the node's cores.
# On the node, interactive.rc puts the project's Python in front again, after your own start-up
# files.
exec salloc "${options[@]}" "$@" srun "${step[@]}" "${CONTAINER_SRUN_ARGS[@]}" \
    "${CONTAINER_EXEC[@]}" bash --rcfile "$PROJECT_DIR/slurm/interactive.rc"
