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
    CONTAINER_EXEC=(bash "$PROJECT_DIR/container/start.sh" "$IMAGE" "${CONTAINER_FOLDERS[@]}" --)
}

