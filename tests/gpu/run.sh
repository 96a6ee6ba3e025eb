#!/usr/bin/env bash
# Runs everything that needs a GPU, and ends with a table, in about ten minutes on one H200.
#
#   bash tests/gpu/run.sh                  all steps
#   bash tests/gpu/run.sh --only doctor    the steps whose names contain a word
#   bash tests/gpu/run.sh --list           their names
#   bash tests/gpu/run.sh --rehearse       without a GPU: on the CPU what can run there
#
# It needs Linux, bash, a Python with torch 2.6 or newer (PYTHON names it; default: python3), and one GPU
# or more. It needs no network, no root, no make. The steps run on a project that the template writes:
#
#   make gpu-bundle    writes the project and these files into build/gpu-bundle. Copy that folder to the
#                      machine with the GPU, and type: bash gpu-bundle/run.sh
#   in a clone         this script does the same, if PYTHON has cookiecutter
#
# Results: build/gpu/results.json below the current folder; --out=FOLDER changes that. Exit code 0:
# no step has failed. 1: a step has failed. 2: the steps cannot run here.
set -euo pipefail

main() {
    case ${1:-} in
        -h | --help)
            sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit
            ;;
    esac
    command -v "${PYTHON:=python3}" >/dev/null || die "$PYTHON was not found: set PYTHON"
    if [[ ${1:-} == --write-bundle ]]; then # of make gpu-bundle
        write_bundle "${2:-$repository/build/gpu-bundle}"
        exit
    fi
    bundle=$here
    if [[ ! -d $bundle/project ]]; then # this is no bundle, but a clone
        bundle=$repository/build/gpu-bundle
        write_bundle "$bundle"
    fi
    exec "$PYTHON" -B "$bundle/steps.py" --project "$bundle/project" "$@"
}

# Writes a project and the files of this folder into a new folder. The steps read no documents.
write_bundle() {
    "$PYTHON" -c 'import cookiecutter' 2>/dev/null ||
        die "$PYTHON has no cookiecutter to write a project with:" \
            "run make gpu-bundle where make and pip are, and copy build/gpu-bundle to this machine"
    [[ ! -e $1 || -f $1/steps.py ]] || die "$1 is there, and no bundle: name a new folder"
    rm -rf "$1"
    mkdir -p "$1"
    "$PYTHON" -B -m cookiecutter --no-input --output-dir "$1" "$repository" project=project site=slurm extras=hangs,watch >/dev/null
    rm -rf "$1/project/slurm/docs" "$1/project/tests"
    find "$1/project" -name '*.md' -delete
    cp "$here"/{run.sh,steps.py,harness.py,provoke.py,speed.py,event_timing.py,stuck_collective.py} "$1"
}

die() {
    echo "tests/gpu/run.sh: $*" >&2
    exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$here/../..
main "$@"
