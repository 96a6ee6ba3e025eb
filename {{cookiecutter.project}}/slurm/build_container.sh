#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set job = plan.build_answers("01:00:00")
#? set own_queue = plan.has_own_queue(job)
#? set runtime = cookiecutter.runtime
#? set in_job = runtime in ("apptainer", "pyxis", "enroot", "edf")
#? set source = plan.image_source
#? set name = plan.image_name
#? if runtime == "apptainer"
# Makes the container image of env.sh (IMAGE), on a compute node, where there is room and time for it: {{ site.title }}.
#
#   bash slurm/build_container.sh [options of sbatch]  submits itself
#
#? if site.internet is false
#? if plan.pull_command
# Compute nodes reach no registry. On a login node, this gets the image, and this script is not needed:
#   {{ plan.pull_command }}
# For one with packages of your own, on a machine with the same processor:
#? else
# Compute nodes reach no registry. On a machine that does and has the same processor:
#? endif
#   docker build -t {{ name }} -f container/Dockerfile .  &&  docker save -o container/{{ cookiecutter.project }}.tar {{ name }}
# copy that file here, and this script makes the image from it.
#? else
# Takes {{ source }} as it is. For one with packages of your own, on a machine with docker:
#   docker build -t {{ name }} -f container/Dockerfile .  &&  docker save -o container/{{ cookiecutter.project }}.tar {{ name }}
# copy that file here, and this script makes the image from it.
#? endif
#? elif runtime == "edf"
# Builds container/Dockerfile and makes of it container/{{ cookiecutter.project }}.sqsh, or the file that IMAGE of env.sh names, on a compute node and in one job, because what
# podman built is gone when the job ends: {{ site.title }}.
# Not needed for an image as it is in a registry: the container engine pulls that.
#
#   bash slurm/build_container.sh [options of sbatch]  submits itself
#? elif in_job
# Makes the container image of env.sh (IMAGE), on a compute node: {{ site.title }}.
# It is {{ source }} as it is, or, where container/requirements.txt names packages, what podman builds from
# container/Dockerfile.
#
#   bash slurm/build_container.sh [options of sbatch]  submits itself
#? elif runtime == "shifter"
# Pulls the container image of env.sh (IMAGE), so that the compute nodes have it: {{ site.title }}.
# One of your own: build container/Dockerfile on a machine with docker, push it to a registry, and name it in IMAGE.
#
#? if site.containers[runtime].build_with
#   {{ site.containers[runtime].build_with }} bash slurm/build_container.sh

#? else
#   bash slurm/build_container.sh                      on a login node

#? endif
#? else
# Builds container/Dockerfile and makes it known to the compute nodes as the image of env.sh (IMAGE): {{ site.title }}.
#
#? if site.containers[runtime].build_with
#   {{ site.containers[runtime].build_with }} bash slurm/build_container.sh

#? else
#   bash slurm/build_container.sh                      on a login node

#? endif
#? endif
#? if in_job
#
#? if own_queue
# The account is that of slurm/submit_multinode.sh.
#? else
# Account and queue are those of slurm/submit_multinode.sh.
#? endif
#
#SBATCH {{ pad("--job-name=build-container") }} # shown by squeue
#SBATCH {{ pad("--nodes=1") }} # one machine
#SBATCH {{ pad("--ntasks=1") }} # packing uses its cores by itself
#? for option, why in plan_of(job).own_resources(own_queue, builds=true)
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission

#? endif
#? if in_job
# Refuses what would fail after hours in the queue.
prepare() {
    read_settings
    #? if plan.pulls_image
    if [[ $IMAGE != /* ]]; then # the name of an image in a registry
        IMAGE="$PROJECT_DIR/container/{{ cookiecutter.project }}.sqsh"
    fi
    #? endif
    [[ ! -e $IMAGE ]] || die "$IMAGE exists already; remove it first, or set IMAGE to another file"
    mkdir -p "$(dirname "$IMAGE")" && [[ -w $(dirname "$IMAGE") ]] ||
        die "cannot write to $(dirname "$IMAGE"); set IMAGE to another file"
    #? if runtime == "apptainer" and site.internet is false
    [[ -f "$PROJECT_DIR/container/{{ cookiecutter.project }}.tar" ]] ||
        die "no container/{{ cookiecutter.project }}.tar to make the image from:" \
            "the top of slurm/build_container.sh shows how to get the image without internet on" \
            "compute nodes"
    #? endif
}

#? if runtime != "apptainer"
# Imports an image of podman into $work/image. Arguments: those of enroot import. At the end of an
# import enroot calls "docker rm", for images of podman too, and fails where there is no docker:
# src/docker.sh:588 of NVIDIA/enroot 4.1.2, line 377 of 3.4.1 and 3.5.0 (2026-11-22). So this
# function gives enroot a docker that calls podman. It first changes to /, because enroot has
# deleted its folder by then and podman needs one that exists.
import_from_podman() {
    mkdir "$work/bin"
    cat >"$work/bin/docker" <<'END'
#!/bin/sh
cd / && exec podman "$@"
END
    chmod +x "$work/bin/docker"
    PATH="$work/bin:$PATH" enroot import --output "$work/image" "$@"
}

#? endif
# In the job this file is a copy in a spool folder, and its first argument is the project.
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
[[ -f $PROJECT_DIR/env.sh ]] || PROJECT_DIR=${1:-$SLURM_SUBMIT_DIR}
if [[ ! -f $PROJECT_DIR/env.sh ]]; then
    echo "slurm/build_container.sh: no env.sh in '$PROJECT_DIR':" \
        "submit with 'bash slurm/build_container.sh'" >&2
    exit 2
fi
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" slurm/build_container.sh
export RUNTIME="{{ runtime }}" # MODULES of env.sh may depend on it

if [[ ${BASH_SOURCE[0]##*/} != slurm_script ]]; then # called with bash
    expect_options "${BASH_SOURCE[0]}" "$@"
    (prepare) || exit # in a shell of its own: the job reads env.sh itself
    submit_build "${BASH_SOURCE[0]}" "$@"
fi

prepare
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/software.sh"
# Loads MODULES alone. A build needs no container and no Python, and bash is a command everywhere.
RUNTIME=none PYTHON=bash set_up_software || exit
set -euo pipefail
work=$(mktemp -d "$IMAGE.XXXXXX") # beside it: there is room, and half an image never has its name
trap 'rm -rf "$work"' EXIT
#? if runtime == "apptainer"
# Layers are kept beside the image while it is made: by default they would fill a cache in $HOME.
# They are unpacked in TMPDIR, else /tmp; if that is too small, set APPTAINER_TMPDIR.
export APPTAINER_CACHEDIR=$work SINGULARITY_CACHEDIR=$work
program=$(command -v apptainer || command -v singularity) ||
    die "neither apptainer nor singularity was found on $(hostname);" \
        "name its module in MODULES of env.sh"
#? if site.internet is false
"$program" build "$work/image" "docker-archive://$PROJECT_DIR/container/{{ cookiecutter.project }}.tar"
#? else
if [[ -f "$PROJECT_DIR/container/{{ cookiecutter.project }}.tar" ]]; then
    "$program" build "$work/image" "docker-archive://$PROJECT_DIR/container/{{ cookiecutter.project }}.tar"
else
    "$program" pull "$work/image" "docker://{{ source }}"
fi
#? endif
#? else
command -v enroot >/dev/null ||
    die "enroot was not found on $(hostname); name its module in MODULES of env.sh"
export ENROOT_CACHE_PATH=$work/cache # by default it would fill $HOME
mkdir "$ENROOT_CACHE_PATH"
#? if runtime == "edf"
# podman's store in memory, as CSCS advises (build-install/containers): the parallel file systems
# cannot hold it. mktemp: another user could have made a folder by a name that can be guessed.
store=$(mktemp -d "/dev/shm/podman.XXXXXXXXXX")
cat >"$work/storage.conf" <<END
[storage]
driver = "overlay"
runroot = "$store/runroot"
graphroot = "$store/root"
END
export CONTAINERS_STORAGE_CONF=$work/storage.conf
podman build --network=host --tag "{{ name }}:latest" \
    --file "$PROJECT_DIR/container/Dockerfile" "$PROJECT_DIR"
import_from_podman -x mount "podman://{{ name }}:latest"
#? else
packages=$(grep '^[^#[:space:]]' "$PROJECT_DIR/container/requirements.txt" || true)
if [[ -n $packages ]]; then
    command -v podman >/dev/null ||
        die "container/requirements.txt names packages, which podman adds to the image, but" \
            "$(hostname) has no podman: name its module in MODULES of env.sh, or empty that file"
    podman build --network=host --tag "{{ name }}:latest" \
        --file "$PROJECT_DIR/container/Dockerfile" "$PROJECT_DIR"
    import_from_podman "podman://{{ name }}:latest"
else
    enroot import --output "$work/image" "docker://{{ cookiecutter.image }}"
fi
#? endif
#? endif
mv "$work/image" "$IMAGE"
#? if plan.pulls_image
echo "To run jobs in this image, name it in env.sh: IMAGE=\"\${IMAGE:-$IMAGE}\""
#? endif
echo "ready: $IMAGE"
#? else
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" slurm/build_container.sh
expect_options "${BASH_SOURCE[0]}" "$@"
(($# == 0)) || die "'$*' is not known: this script has no options"
read_settings
set -euo pipefail
#? if runtime == "shifter"
command -v shifterimg >/dev/null || die "shifterimg was not found: call this on a login node"
shifterimg pull "docker:$IMAGE" # exits with 0 also when it fails
shifterimg lookup "docker:$IMAGE" >/dev/null || die "the image was not pulled, see above"
#? else
command -v podman-hpc >/dev/null || die "podman-hpc was not found: call this on a login node"
podman-hpc build --tag "$IMAGE" --file "$PROJECT_DIR/container/Dockerfile" "$PROJECT_DIR"
podman-hpc migrate "$IMAGE" # into a file that the compute nodes see
# migrate exits with 0 also when it fails (podman-hpc 1.1.4, migrate2scratch.py, 2026-11-22). Only a
# migrated image is read-only: `images NAME` would list the one that was just built.
[[ -n $(podman-hpc images --filter readonly=true --filter reference="$IMAGE" --quiet) ]] ||
    die "the image was not migrated, see above"
#? endif
echo "ready: $IMAGE"
#? endif
