#!/usr/bin/env bash
#? set plan = plan_of(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set flags = site_facts(cookiecutter.site).containers[runtime].options
# Runs a command in the container, on the node where it is called.
#
#   container/start.sh IMAGE FOLDER… -- command [arguments]
#
# Each FOLDER is an absolute path, and the command sees it under its own name. The command runs in
# the current folder, which has to lie in one of them, with the job's variables. The scripts in
# slurm/ call this script, as CONTAINER_EXEC.
#? if runtime == "enroot"
# enroot by itself passes neither variables nor the current folder into a container.
#? else
# podman by itself passes neither variables nor the current folder into a container.
#? endif
set -euo pipefail

main() {
    read_arguments "$@" # sets image, command, and options for the folders
    pass_variables
    #? if runtime == "enroot"
    unpack_image # sets container_name
    enter_enroot
    #? else
    enter_podman
    #? endif
}

read_arguments() {
    local given=$*
    image=${1-} options=()
    shift || true
    while (($#)) && [[ $1 != -- ]]; do
        #? if runtime == "enroot"
        options+=(--mount "${1// /\\040}") # a line of fstab, in which \040 is a space
        #? else
        options+=(--volume "$1:$1")
        #? endif
        shift
    done
    # Now the arguments are -- and the command.
    (($# >= 2)) || die "expected IMAGE FOLDER… -- command, but the arguments are: $given"
    command=("${@:2}")
}

# Adds an option for each variable of the job. The variables listed here, of the host's software and
# shell, stay outside, and so do values of several lines.
pass_variables() {
    local name
    while read -r name; do
        case $name in
            PATH | LD_* | PYTHONHOME | VIRTUAL_ENV | CUDA_HOME | CUDA_PATH) continue ;;
            BASH_ENV | ENV | HOME | SHELL | TMPDIR | TERM | PWD | OLDPWD | SHLVL | _) continue ;;
        esac
        if [[ ${!name} != *$'\n'* ]]; then
            options+=(--env "$name")
        fi
    done < <(compgen -e)
}

#? if runtime == "enroot"
# Unpacks the image once per node. The container's name holds the image's time and size, so that a
# new image is unpacked again. It also holds the node's name, since nodes may share enroot's folder.
unpack_image() {
    local node=${SLURMD_NODENAME:-$(hostname)}
    container_name="{{ plan.image_name }}-$node-$(stat --format=%Y-%s "$image")"
    # Jobs on one node take turns, by a lock in /var/tmp: each may have its own /tmp and /dev/shm.
    local locks="/var/tmp/{{ plan.image_name }}-$UID"
    make_own_folder "$locks"
    (
        flock 9
        unpack_if_needed "$locks/$container_name.unpacked"
    ) 9>"$locks/$container_name.lock" >&2
}

# Makes a folder that other users cannot enter. All users may write to /var/tmp, so one of them may
# have made a folder or a link of this name.
make_own_folder() {
    mkdir -m 700 "$1" 2>/dev/null || true # a job before this one may have made it
    [[ -d $1 && -O $1 && ! -L $1 ]] ||
        die "$1, where jobs lock the image, could not be made, or is not a folder of yours:" \
            "see ls -ld $1, and have its owner or your site remove it"
    chmod 700 "$1"
}

# unpack_if_needed MARK creates the file MARK last. A cancelled job leaves a container without its
# mark, half unpacked, which this function removes.
unpack_if_needed() {
    local mark=$1 present messages
    present=$(enroot list | grep -xF "$container_name") || true
    if [[ -n $present && -e $mark ]]; then
        return
    fi
    if [[ -n $present ]]; then
        enroot remove --force "$container_name"
    fi
    # enroot prints a dozen lines on every node, which matter only if it fails.
    messages=$(enroot create --name "$container_name" "$image" 2>&1) ||
        die "enroot could not unpack $image: $messages"
    touch "$mark"
}

# By default enroot starts a login shell, and in images of Debian /etc/profile replaces the image's
# PATH (enroot 4.1.2, 2026-11-22). A login shell would also set HOME. Without one, bash takes ~ from
# /etc/passwd.
enter_enroot() {
    export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-no}"
    # shellcheck disable=SC2016 # the shell in the container expands $1 and $@
    exec enroot start "${options[@]}" "$container_name" \
        bash -c 'export HOME=${HOME:-~} && cd "$1" && shift && exec "$@"' _ "$PWD" "${command[@]}"
}

#? else
enter_podman() {
    #? if flags
    # This site's options of podman-hpc, which bring its GPUs and libraries into the container. The
    # template's file of the site names their source.
    #? endif
    #? for flag in flags
    options+=("{{ flag }}")
    #? endfor
    if [[ -t 0 ]]; then # slurm/interactive.sh
        options+=(--interactive --tty)
    fi
    # --ipc, --network: NCCL needs the host's shared memory and its network.
    # --pid: in a PID namespace of its own a rank would be process 1. The kernel drops a SIGTERM
    # that process 1 does not handle: pid_namespaces(7). After scancel, or when another rank fails,
    # the rank would live until Slurm sends SIGKILL (seen with podman-hpc 1.1.4, 2026-11-22).
    # The -- before the image: podman-hpc would take an option of the command for its own.
    exec podman-hpc run --rm --pull=never --ipc=host --network=host --pid=host --workdir="$PWD" \
        "${options[@]}" -- "$image" "${command[@]}"
}

#? endif
die() {
    echo "container/start.sh on ${SLURMD_NODENAME:-$(hostname)}: $*" >&2
    exit 2
}

main "$@"
