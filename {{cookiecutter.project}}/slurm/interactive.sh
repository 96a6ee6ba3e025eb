#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set job = interactive_answers(cookiecutter)
# A shell on a compute node, inside the software environment of env.sh: {{ site.title }}.
#
#   bash slurm/interactive.sh                          one node, with what stands below
#   bash slurm/interactive.sh --time=00:10:00          options of salloc win over the ones below
#
# In it:  bash launch/torchrun.sh pi/pi.py             all GPUs that the shell has
# For several nodes: salloc --nodes=2 …, then bash slurm/submit_multinode.sh PROGRAM.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/env.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
#? if cookiecutter.runtime in ("venv", "none")
set_up_software || exit
#? else
set_up_software "$PROJECT_DIR" "$PWD" || exit
#? endif

options=(
    --nodes=1 --ntasks=1
    #? for option, why in resources(job)
    "{{ option }}"
    #? endfor
)
step=(--ntasks=1 --export=ALL --pty)
#? for option in site.srun if option.tasks != "rank"
step+=("{{ option.option }}") # {{ option.why }}
#? endfor
# salloc takes the node, so that the shell, a step of it, has all of its cores. On the node interactive.rc puts the
# project's Python first again, after the user's own start-up files had their say.
exec salloc "${options[@]}" "$@" srun "${step[@]}" "${CONTAINER_SRUN_ARGS[@]}" \
    "${CONTAINER_EXEC[@]}" bash --rcfile "$PROJECT_DIR/slurm/interactive.rc"
