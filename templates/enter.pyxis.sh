#? set flags = site_facts(cookiecutter.site).containers[cookiecutter.runtime].options
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

