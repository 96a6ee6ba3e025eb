# Puts container/start.sh before the launcher, which unpacks the image on each node and enters it.
enter_container() {
    command -v enroot >/dev/null ||
        missing "enroot was not found on $(hostname); name its module in MODULES, or set another" \
            "RUNTIME. If only compute nodes have it, submit with sbatch" || return
    require_image_file && collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    count_threads_without_enroot
    CONTAINER_EXEC=(bash "$PROJECT_DIR/container/start.sh" "$IMAGE" "${CONTAINER_FOLDERS[@]}" --)
}

