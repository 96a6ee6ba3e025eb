#!/usr/bin/env bash
#? set runtime = cookiecutter.runtime
#? set flags = site_facts(cookiecutter.site).containers[runtime].options
#? if runtime == "enroot"
# Runs a command in the container, on the node where it is called. enroot hands nothing in by itself: neither variables
# nor the current folder.
#? else
# Runs a command in the container, on the node where it is called. podman hands nothing in by itself: neither variables
# nor the current folder.
#? endif
#
#   container/start.sh IMAGE FOLDER… -- command [arguments]       the folders are seen in it under their own names
#
# Called by slurm/*.sh (CONTAINER_EXEC of env.sh).
set -euo pipefail

die() {
    echo "container/start.sh on ${SLURMD_NODENAME:-$(hostname)}: $*" >&2
    exit 2
}

[[ $# -ge 3 && " $* " == *" -- "* ]] || die "expected IMAGE FOLDER… -- command, but the arguments are: $*"
image=$1
shift
options=()
while [[ $1 != -- ]]; do
    #? if runtime == "enroot"
    options+=(--mount "${1// /\\040}") # a line of fstab, in which \040 is a space
    #? else
    options+=(--volume "$1:$1")
    #? endif
    shift
done
shift

# All of the job's variables, but for those that belong to the host's software.
while read -r name; do
    case $name in
        PATH | LD_* | PYTHONHOME | VIRTUAL_ENV | CUDA_HOME | CUDA_PATH | BASH_ENV | ENV) ;;
        HOME | SHELL | TMPDIR | TERM | PWD | OLDPWD | SHLVL | _) ;;
        *) [[ ${!name} == *$'\n'* ]] || options+=(--env "$name") ;;
    esac
done < <(compgen -e)

#? if runtime == "enroot"
# Unpack the image once per node. The name holds the image's time and size, so that a new image is unpacked again, and the
# node, as nodes may share enroot's folder. Jobs on one node take turns by a lock in /var/tmp, as each may have a /tmp and a
# /dev/shm of its own. The mark is written last: a copy without it was left half unpacked by a cancelled job, and is removed.
name="{{ image_name(cookiecutter) }}-${SLURMD_NODENAME:-$(hostname)}-$(stat --format=%Y-%s "$image")"
mark=/var/tmp/$name-$UID
(
    flock 9
    there=$(enroot list | grep -xF "$name") || true
    if [[ -z $there || ! -e $mark.unpacked ]]; then
        [[ -z $there ]] || enroot remove --force "$name"
        # enroot prints a dozen lines on every node, which matter only if it fails.
        said=$(enroot create --name "$name" "$image" 2>&1) || die "enroot could not unpack $image: $said"
        touch "$mark.unpacked"
    fi
) 9>"$mark.lock" >&2

# By default enroot starts a login shell, and in images of Debian /etc/profile replaces the image's PATH (enroot 4.1.2,
# 2026-11-22). A login shell would also set HOME. Without it bash sets HOME: ~ is the user's home of /etc/passwd.
export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-no}"
# shellcheck disable=SC2016 # $1 and $@ are those of the shell in the container
exec enroot start "${options[@]}" "$name" bash -c 'export HOME=${HOME:-~} && cd "$1" && shift && exec "$@"' _ \
    "$PWD" "$@"
#? else
#? for flag in flags
options+=("{{ flag }}")
#? endfor
[[ ! -t 0 ]] || options+=(--interactive --tty) # slurm/interactive.sh
# --ipc, --network: NCCL needs the host's shared memory and its network.
# --pid: in a PID namespace of its own a rank would be process 1, for which the kernel drops a SIGTERM that the program
# does not handle: pid_namespaces(7). After scancel, or when another rank fails, it would live until Slurm sends SIGKILL
# (seen with podman-hpc 1.1.4, 2026-11-22).
# --: after it podman-hpc takes no option of the program for its own.
exec podman-hpc run --rm --pull=never --ipc=host --network=host --pid=host --workdir="$PWD" "${options[@]}" \
    -- "$image" "$@"
#? endif
