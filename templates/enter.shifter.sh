#? set flags = site_facts(cookiecutter.site).containers[cookiecutter.runtime].options
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

