#? set plan = plan_of(cookiecutter)
#? set flags = site_facts(cookiecutter.site).containers[cookiecutter.runtime].options
#? set unset = site_facts(cookiecutter.site).containers[cookiecutter.runtime].unset
#? set entry = site_facts(cookiecutter.site).containers[cookiecutter.runtime].entry
#? set entry_environment = site_facts(cookiecutter.site).containers[cookiecutter.runtime].entry_environment
# Puts apptainer, or singularity where it has its old name, before the launcher.
enter_container() {
    local program=singularity
    ! command -v apptainer >/dev/null || program=apptainer
    command -v "$program" >/dev/null ||
        missing "neither apptainer nor singularity was found on $(hostname); name its module in" \
            "MODULES, or set another RUNTIME. If only compute nodes have it, submit with sbatch" || return
    require_image_file && collect_folders "$@" || return
    export PYTHONNOUSERSITE=1 # else packages in ~/.local come before the image's
    unset BASH_ENV            # the host's would take the place of the image's
    #? for variable in unset
    unset "{{ variable.name }}" # {{ variable.why }}
    #? endfor
    CONTAINER_EXEC=("$program" exec)
    #? if plan.gpu_option
    CONTAINER_EXEC+=("{{ plan.gpu_option }}")
    #? endif
    #? for flag in flags
    CONTAINER_EXEC+=("{{ flag }}")
    #? endfor
    CONTAINER_EXEC+=(--bind "$(IFS=, && echo "${CONTAINER_FOLDERS[*]}")" "$IMAGE")
    #? for word in entry
    CONTAINER_EXEC+=("{{ word }}")
    #? endfor
    #? if entry_environment
    CONTAINER_EXEC+=(env) # sets variables of env.sh that {{ entry[0] }} overwrites
    #? endif
    #? for variable in entry_environment
    #? set assignment = variable.name ~ "=$" ~ variable.name
    CONTAINER_EXEC+=("{{ assignment }}")
    #? endfor
}

