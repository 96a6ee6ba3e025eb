#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# The job of extras/notebook/notebook.sh: runs JupyterLab on its node, in the software of env.sh.
# Argument: the project's folder, as Slurm runs a copy of this file.

if [[ ! -f ${1:-}/slurm/project.sh || -z ${SLURM_JOB_ID:-} ]]; then
    echo "extras/notebook/serve.sh: call bash extras/notebook/notebook.sh, which submits this file" >&2
    exit 2
fi
PROJECT_DIR=$1
export PROJECT_DIR
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/notebook/notebook.sh
unset_stale_variables
read_settings
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
#? if cookiecutter.runtime in ("venv", "none")
set_up_software || exit
#? else
set_up_software "$PROJECT_DIR" "$PWD" || exit
#? endif

folder=$PROJECT_DIR/logs/$SLURM_JOB_ID.0
make_logs_folder || die "cannot write to $PROJECT_DIR/logs, where the notebook's socket goes"
umask 077 # the folder has the token and the socket: nobody else may look into it
mkdir -p "$folder" && chmod 700 "$folder" || exit

step=(--ntasks=1 --export=ALL --input=none)
#? for option in site.srun if option.tasks != "rank"
step+=("{{ option.option }}") # {{ option.why }}
#? endfor
exec srun "${step[@]}" "${CONTAINER_SRUN_ARGS[@]}" "${CONTAINER_EXEC[@]}" \
    "$PYTHON" -B "$PROJECT_DIR/extras/notebook/lab.py" "$folder" "$PWD"
