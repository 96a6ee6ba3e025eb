# Hands srun an EDF, the file that describes a container to CSCS's container engine. The last
# argument is the program's folder.
enter_container() {
    local folder edf file template="$PROJECT_DIR/container/{{ cookiecutter.project }}.toml"
    [[ -r $template ]] ||
        missing "cannot read $template, which describes the container: bring that file back" || return
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
    # The first folder holds the project. It is PROJECT_DIR, unless an extra mounts a larger one.
    edf=$(PROJECT_DIR=$1 fill_edf "$template") || return
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
                missing "$1 has a \$ that does not begin \${NAME}, so write it as \${NAME}: $line" || return
        fi
        printf '%s\n' "$line"
    done <"$1"
}

