#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set gpus = cookiecutter.gpus_per_node | int
#? set cores = cores_per_node(cookiecutter)
# A shell on a compute node, inside the software environment of env.sh: {{ site.title }}.
#
#   bash slurm/interactive.sh                          one node, half an hour
#   bash slurm/interactive.sh --time=01:00:00          options of salloc win over the ones below
#
# In it:  bash launch/torchrun.sh pi/pi.py             all GPUs of the node
# For several nodes: salloc --nodes=2 …, then bash slurm/submit_multinode.sh PROGRAM.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/env.sh" && activate "$PROJECT_DIR" "$PWD" || exit

options=(
    --nodes=1
    --ntasks=1
    #? if gpus
    "{{ site.node.gpu_option ~ gpus }}"
    #? endif
    #? if cores
    "--cpus-per-task={{ cores }}"
    #? endif
    #? if site.node.memory
    "--mem={{ site.node.memory }}"
    #? endif
    #? for directive in site.directives
    "{{ directive.option }}"
    #? endfor
    --time=00:30:00
    #? if cookiecutter.partition
    "--partition={{ cookiecutter.partition }}"
    #? endif
    #? if cookiecutter.qos
    "--qos={{ cookiecutter.qos }}"
    #? endif
    #? if cookiecutter.account
    "--account={{ cookiecutter.account }}"
    #? endif
)
# salloc takes the node, so that the shell, a step of it, has all of its cores. On the node interactive.rc puts the
# project's Python first again, after the user's own start-up files had their say.
exec salloc "${options[@]}" "$@" srun --ntasks=1 --export=ALL --pty "${CONTAINER_SRUN_ARGS[@]}" \
    "${CONTAINER_EXEC[@]}" bash --rcfile "$PROJECT_DIR/slurm/interactive.rc"
