#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set slurm = site.kind == "slurm"
#? set runai = site.kind == "runai"
#? set runtime = cookiecutter.runtime
#? set bare = "pod" if runai else "none"
#? set container = plan.in_container
#? set venv = not slurm or "venv" in site.runtimes
# Sets up the software that env.sh names. The scripts read this file after env.sh.
#
#? if container
#   set_up_software [FOLDER …]  loads MODULES, then prepares the container or environment of RUNTIME
#
#? if runtime == "edf"
# RUNTIME=edf needs at least one FOLDER. It only checks that FOLDERs are readable: programs in the
# container see what container/{{ cookiecutter.project }}.toml mounts, where ${PROGRAM_DIR} is the last FOLDER.
# Afterwards these describe the container:
#? elif runtime == "shifter"
# Programs in the container see the file systems of the site. Afterwards these describe the
# container:
#? else
# Programs in the container see the FOLDERs and the BINDS of env.sh. Afterwards these describe the
# container:
#? endif
#? if runtime in ("pyxis", "edf")
#   CONTAINER_SRUN_ARGS    options with which srun starts its tasks in the container
#   CONTAINER_EXEC         stays empty, since srun enters the container
#? else
#   CONTAINER_SRUN_ARGS    stays empty, since CONTAINER_EXEC enters the container
#   CONTAINER_EXEC         a command that, put before another command, runs it in the container
#? endif
#? if runtime == "shifter"
#   CONTAINER_FOLDERS      stays empty, since shifter mounts no other folders
#? else
#   CONTAINER_FOLDERS      the folders that the container mounts, for slurm/preflight.sh
#? endif
#? elif slurm
#   set_up_software     loads MODULES, then activates the virtual environment if RUNTIME=venv
#? else
#   set_up_software     activates the virtual environment if RUNTIME=venv
#? endif
#
#? if container
# Without a container, set_up_software checks that $PYTHON is a command, but not that it has torch.
#? else
# set_up_software checks that $PYTHON is a command, but not that it has torch.
#? endif
# If something is missing, it says what to change and returns 2.
#? if container
# shellcheck disable=SC2034,SC2329 # the scripts that read this file use what it sets

CONTAINER_SRUN_ARGS=()
CONTAINER_EXEC=()
CONTAINER_FOLDERS=()

#? endif
set_up_software() {
    #? if slurm
    load_modules || return 2
    #? endif
    case $RUNTIME in
        #? if container
        "{{ runtime }}")
            enter_container "$@"
            return # the container has a Python of its own
            ;;
        #? endif
        venv) activate_venv || return ;;
        #? if runai
        pod) ;;
        #? else
        none) ;;
        #? endif
        *)
            missing "RUNTIME='$RUNTIME' is not known; use {{ runtime ~ ", " if container }}venv or {{ bare }}"
            return
            ;;
    esac
    require_python
}

#? if slurm and not container
# Refuses a PYTHON that is no command, unless a container has it.
#? else
# Refuses a PYTHON that is no command.
#? endif
require_python() {
    local fix="set PYTHON, or RUNTIME=venv"
    #? if slurm and not container
    if ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})); then return; fi
    #? endif
    if [[ $RUNTIME == venv ]]; then
        fix="set PYTHON, or VENV"
    fi
    command -v "$PYTHON" >/dev/null || missing "$PYTHON was not found; $fix"
}

# Says what is missing, and always returns 2: "missing … || return" makes its caller return 2, too.
missing() { echo "env.sh: $*" >&2 && return 2; }

#? if slurm
# Unloads the modules that a login shell may have loaded, then loads MODULES. Without MODULES all
# stays as it is.
load_modules() {
    if ((${#MODULES[@]} == 0)); then
        return 0
    fi
    #? call plan.module_lines("before", indent="    ")
    #? endcall
    #? if site.modules_after == "reset"
    module reset
    #? else
    module purge
    #? endif
    #? if site.module_lines.after
    module load "${MODULES[@]}" || return # the module command says what it cannot load
    #? else
    module load "${MODULES[@]}" # the module command says what it cannot load
    #? endif
    #? call plan.module_lines("after", indent="    ")
    #? endcall
}

#? endif
#? if container
#? if runtime not in ("shifter", "podman-hpc")
# Refuses an IMAGE that is not there.
require_image_file() {
    #? if plan.pulls_image
    # The name of an image in a registry: srun pulls it.
    [[ ! $IMAGE =~ ^([[:alnum:]_.:-]+#)?[[:alnum:]_-]+(/[[:alnum:]_.-]+)*:[[:alnum:]_.-]+$ ]] || return 0
    #? endif
    [[ $IMAGE == /* && -r $IMAGE ]] ||
        #? if plan.pulls_image
        missing "no image at '$IMAGE': set IMAGE to a name REGISTRY#NAME:TAG, or to the absolute" \
            "path of a .sqsh file"
        #? elif plan.image_source
        missing "no image at '$IMAGE', which must be an absolute path; make it with" \
            "'bash slurm/build_container.sh', or set IMAGE"
        #? else
        missing "no image at '$IMAGE', which must be an absolute path; set IMAGE"
        #? endif
}

#? endif
#? if runtime not in ("edf", "shifter")
# Sets CONTAINER_FOLDERS to the arguments and BINDS, the folders above before those below them.
# Refuses what the container cannot mount.
collect_folders() {
    local folder
    mapfile -t CONTAINER_FOLDERS < <(printf '%s\n' "$@" "${BINDS[@]}" | LC_ALL=C sort -u)
    for folder in "${CONTAINER_FOLDERS[@]}"; do
        [[ -r $folder && $folder != *[,:]* ]] ||
            missing "the container cannot see '$folder': it must be readable and have no , or :" \
                "in its name; see BINDS" || return
        #? if runtime == "pyxis"
        # pyxis writes folders into a shell script, between double quotes (pyxis_slurmstepd.c of
        # 0.24.0, 2026-11-22).
        [[ $folder != *[\"\$\`]* ]] ||
            missing "the container cannot see '$folder': a shell of pyxis reads its name, which" \
                "must have none of \" \$ \`; rename the folder" || return
        #? endif
    done
}

#? endif
#? include "enter." ~ runtime ~ ".sh"

#? if runtime in ("pyxis", "enroot")
# For images with PyTorch, a hook of enroot sets OMP_NUM_THREADS=1 if a node has several tasks and
# the variable is not set (50-slurm-pytorch.sh of 4.1.2, 2026-11-22). If it is set, but empty,
# launch/rank.sh counts the cores.
count_threads_without_enroot() {
    [[ $LAUNCHER != srun ]] || export OMP_NUM_THREADS="${OMP_NUM_THREADS:-}"
}

#? endif
#? endif
# Activates VENV, which may be a conda environment, too.
activate_venv() {
    #? if slurm and not venv
    [[ -d $VENV/bin ]] ||
        missing "no virtual environment at $VENV; set VENV, or another RUNTIME" || return
    #? elif slurm
    [[ ! -e $VENV/.unfinished ]] ||
        missing "the virtual environment at $VENV is still being built; wait for the end of the" \
            "job build-venv. If squeue has no such job, remove $VENV and build it again" || return
    [[ -d $VENV/bin ]] ||
        missing "no virtual environment at $VENV; build it with 'bash slurm/build_venv.sh'" || return
    #? elif runai
    [[ -d $VENV/bin ]] ||
        missing "no virtual environment at $VENV; make it in a pod with" \
            "'$PYTHON -m venv --system-site-packages $VENV', set VENV, or RUNTIME=pod" || return
    #? else
    [[ -d $VENV/bin ]] ||
        missing "no virtual environment at $VENV; make it with '$PYTHON -m venv $VENV &&" \
            "$VENV/bin/pip install -r requirements.txt', set VENV, or RUNTIME=none" || return
    #? endif
    if [[ -d $VENV/conda-meta ]]; then
        export PATH="$VENV/bin:$PATH" CONDA_PREFIX="$VENV"
    else
        # shellcheck source=/dev/null
        source "$VENV/bin/activate"
    fi
}
