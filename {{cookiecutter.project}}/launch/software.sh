#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set slurm = site.kind == "slurm"
#? set runai = site.kind == "runai"
#? set runtime = cookiecutter.runtime
#? set bare = "pod" if runai else "none"
#? set container = slurm and runtime not in ("venv", "none")
#? set venv = not slurm or "venv" in site.runtimes
#? set flags = site.containers[runtime].options
#? set entry = site.containers[runtime].entry
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
#   set_up_software     loads MODULES, then activates the virtual environment if RUNTIME says so
#? else
#   set_up_software     activates the virtual environment if RUNTIME says so
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
    local fix="set PYTHON, or RUNTIME=venv"
    #? if slurm
    load_modules || return 2
    #? endif
    case $RUNTIME in
        #? if container
        "{{ runtime }}") enter_container "$@" && return ;;
        #? endif
        venv) activate_venv ;;
        #? if runai
        pod) ;;
        #? else
        none) ;;
        #? endif
        *) missing "RUNTIME='$RUNTIME' is not known; use {{ runtime ~ ", " if container }}venv or {{ bare }}" ;;
    esac || return
    if [[ $RUNTIME == venv ]]; then
        fix="set PYTHON, or VENV"
    fi
    command -v "$PYTHON" >/dev/null || missing "$PYTHON was not found; $fix"
}

# Says what is missing, and always returns 2: "missing … || return" makes its caller return 2, too.
missing() { echo "env.sh: $*" >&2 && return 2; }

#? if slurm
# Loads MODULES, without the modules that a login shell may have loaded.
load_modules() {
    ((${#MODULES[@]})) || return 0
    #? if site.modules_after == "reset"
    module reset
    #? else
    module purge
    #? endif
    module load "${MODULES[@]}" # the module command says what it cannot load
}

#? endif
#? if container
#? if runtime not in ("shifter", "podman-hpc")
# Refuses an IMAGE that is not there.
require_image_file() {
    [[ $IMAGE == /* && -r $IMAGE ]] ||
        #? if image_source(cookiecutter)
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
#? if runtime == "apptainer"
# Puts apptainer, or singularity where it has its old name, before the launcher.
enter_container() {
    local program=singularity
    ! command -v apptainer >/dev/null || program=apptainer
    command -v "$program" >/dev/null ||
        missing "neither apptainer nor singularity was found on $(hostname); name its module in" \
            "MODULES, or set another RUNTIME; if compute nodes alone have it, submit with sbatch" || return
    require_image_file && collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    unset BASH_ENV            # the host's would take the place of the image's
    CONTAINER_EXEC=("$program" exec)
    #? if gpu_option(cookiecutter)
    CONTAINER_EXEC+=("{{ gpu_option(cookiecutter) }}")
    #? endif
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    CONTAINER_EXEC+=(--bind "$(IFS=, && echo "${CONTAINER_FOLDERS[*]}")" "$IMAGE")
    #? for word in entry
    CONTAINER_EXEC+=("{{ word }}")
    #? endfor
}
#? elif runtime == "pyxis"
# Has pyxis, a plugin of srun, start the tasks in the container.
enter_container() {
    local names
    [[ $(srun --help 2>&1) == *--container-image* ]] ||
        missing "srun on $(hostname) knows no --container-image: pyxis is not installed; set" \
            "another RUNTIME" || return
    require_image_file && collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    count_threads_without_enroot
    # By default enroot starts a login shell, and in images of Debian /etc/profile replaces the
    # image's PATH. pyxis hands this variable of the job to enroot (pyxis 0.24.0, 2026-11-22).
    export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-no}"
    # Where image and job set the same variable, the image's value counts, but for these.
    names=$(compgen -e | grep -E '^(NCCL|GLOO|FI|UCX|OMP|TORCH|HF|WANDB)_' | paste -sd,)
    unset "${!PYXIS_@}"
    CONTAINER_SRUN_ARGS=(--container-image="$IMAGE" --container-mounts="$(IFS=, && echo "${CONTAINER_FOLDERS[*]}")"
        --container-workdir="$PWD" --container-env="MASTER_ADDR,MASTER_PORT${names:+,$names}")
    #? for flag in flags
    CONTAINER_SRUN_ARGS+=("{{ flag }}")
    #? endfor
    [[ -z $KEEP_CONTAINER ]] || CONTAINER_SRUN_ARGS+=(--container-name="$KEEP_CONTAINER")
}
#? elif runtime == "edf"
# Hands srun an EDF, the file that describes a container to CSCS's container engine. The last
# argument is the program's folder.
enter_container() {
    local folder edf file template="$PROJECT_DIR/container/{{ cookiecutter.project }}.toml"
    [[ -r $template ]] || missing "cannot read $template" || return
    [[ $(srun --help 2>&1) == *--environment* ]] ||
        missing "srun on $(hostname) knows no --environment: the container engine is not there;" \
            "set another RUNTIME" || return
    require_image_file || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    for folder in "$@"; do
        [[ -r $folder && $folder != *:* ]] ||
            missing "the container cannot see '$folder': it must be readable and have no : in" \
                "its name" || return
    done
    export IMAGE PWD PROGRAM_DIR="${!#}" # [env] of the EDF may name these too
    edf=$(fill_edf "$template") || return
    # Named after its content: jobs with other folders have another, and an attempt after a requeue
    # finds its own.
    file=$PROJECT_DIR/logs/container-$(cksum <<<"$edf" | cut -d ' ' -f 1).toml
    { mkdir -p "$PROJECT_DIR/logs" && echo "$edf" >"$file.$$" && mv "$file.$$" "$file"; } ||
        missing "cannot write $file, which srun reads" || return
    CONTAINER_SRUN_ARGS=(--environment="$file")
    # Its mounts, on one line or on several: "/FOLDER:/FOLDER"
    mapfile -t CONTAINER_FOLDERS < <(grep -v '^ *#' "$file" |
        sed -n '/^ *mounts *=/,/\]/p' | grep -oE "[\"']/[^\"':]*:" | tr -d "\"':" | sort -u)
    export MOUNTS_SETTING="mounts in container/{{ cookiecutter.project }}.toml"
}

# Prints a copy of an EDF in which each ${NAME} above the first [table] is replaced by its value.
# CSCS documents that its container engine replaces them. The parser of the engine's successor,
# Sarus Suite, does not do so in `image`, and refuses or breaks paths with spaces or any of " ; $ `
# \ (sarus-suite/raster src/lib.rs, common.rs, mount.rs at 20f75bd, 2026-11-22). So this function
# replaces ${NAME}, and refuses such values.
fill_edf() {
    local line name table=''
    while IFS= read -r line || [[ -n $line ]]; do
        # [env] and [annotations] are left to the engine, which knows the image's variables.
        [[ ! $line =~ ^[[:space:]]*\[ ]] || table=1
        if [[ -z $table && ! $line =~ ^[[:space:]]*# ]]; then
            while [[ $line =~ \$\{([A-Za-z_][A-Za-z0-9_]*)\} ]]; do
                name=${BASH_REMATCH[1]}
                [[ -n ${!name:-} ]] ||
                    missing "$1 names \${$name}, which is not set: set it, or write its" \
                        "value there" || return
                [[ ${!name} != *[[:space:]\"\;\$\`\\]* ]] ||
                    missing "the container engine takes no spaces and none of \" ; \$ \` \\" \
                        "in names, but $name is '${!name}': rename the folder" || return
                line=${line//"\${$name}"/"${!name}"}
            done
            [[ ${line%%#*} != *\$* ]] ||
                missing "$1 has a \$ that does not begin \${NAME}: $line" || return
        fi
        printf '%s\n' "$line"
    done <"$1"
}
#? elif runtime == "shifter"
# Puts shifter before the launcher. It mounts the file systems of the site by itself.
enter_container() {
    command -v shifter >/dev/null ||
        missing "shifter was not found on $(hostname); set another RUNTIME" || return
    [[ -n ${SLURM_JOB_ID:-} ]] || shifterimg lookup "docker:$IMAGE" >/dev/null 2>&1 ||
        missing "the image $IMAGE was not pulled; run 'bash slurm/build_container.sh', or set" \
            "IMAGE" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    CONTAINER_EXEC=(shifter --image="docker:$IMAGE")
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
}
#? elif runtime == "enroot"
# Puts container/start.sh before the launcher, which unpacks the image on each node and enters it.
enter_container() {
    command -v enroot >/dev/null ||
        missing "enroot was not found on $(hostname); name its module in MODULES, or set another" \
            "RUNTIME; if compute nodes alone have it, submit with sbatch" || return
    require_image_file && collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    count_threads_without_enroot
    CONTAINER_EXEC=("$PROJECT_DIR/container/start.sh" "$IMAGE" "${CONTAINER_FOLDERS[@]}" --)
}
#? else
# Puts container/start.sh before the launcher, which calls podman-hpc.
enter_container() {
    command -v podman-hpc >/dev/null ||
        missing "podman-hpc was not found on $(hostname); set another RUNTIME" || return
    # Read-only images are the migrated ones, which alone the compute nodes see (podman-hpc 1.1.4,
    # siteconfig.py, 2026-11-22).
    [[ -n $(podman-hpc images --filter readonly=true --filter reference="$IMAGE" --quiet) ]] ||
        missing "podman-hpc has no migrated image $IMAGE; run 'bash slurm/build_container.sh'," \
            "or set IMAGE" || return
    collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    CONTAINER_EXEC=("$PROJECT_DIR/container/start.sh" "$IMAGE" "${CONTAINER_FOLDERS[@]}" --)
}

#? endif
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
    [[ -d $VENV/bin && ! -e $VENV/.unfinished ]] ||
        missing "no virtual environment at $VENV, or it is still being built; build it with" \
            "'bash slurm/build_venv.sh'" || return
    #? else
    [[ -d $VENV/bin ]] ||
        missing "no virtual environment at $VENV; make it (see VENV in env.sh), set VENV, or" \
            "RUNTIME={{ bare }}" || return
    #? endif
    if [[ -d $VENV/conda-meta ]]; then
        export PATH="$VENV/bin:$PATH" CONDA_PREFIX="$VENV"
    else
        # shellcheck source=/dev/null
        source "$VENV/bin/activate"
    fi
}
