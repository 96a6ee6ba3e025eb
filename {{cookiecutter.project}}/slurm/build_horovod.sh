#!/usr/bin/env bash
# Builds Horovod for a Python that has torch, and installs it there: for training/train_horovod.py alone.
#
#   PYTHON=/path/to/python bash slurm/build_horovod.sh [WHEEL_FOLDER]
#
# slurm/build_venv.sh calls it where INSTALL_HOROVOD=1; it needs no Slurm, so a Dockerfile may too. The wheel is kept in
# WHEEL_FOLDER (wheels/ of the project): a later call for the same Python and torch installs it from there, in seconds.
# A build takes two minutes of two cores, with CUDA five, and: cmake, make, a C++17 compiler, MPI with its headers
# (mpicxx), Python's headers; for a torch with CUDA also nvcc and NCCL. Build with the modules that the jobs will load.
#
# Read from the environment, all optional:
#   PYTHON         the interpreter, with torch and pip                 (python3)
#   NCCL_PATH      folder with include/nccl.h and lib/libnccl.so*      (else the NCCL that pip installed beside torch)
#   CUDA_HOME      folder with bin/nvcc                                (else that of nvcc on PATH, else /usr/local/cuda)
#   HOROVOD_BUILD_CUDA_CC_LIST   the GPUs to build for: 90 is H100     (all that nvcc knows)
#   MAKEFLAGS      -jN: compile N files at once, 1.5 GB each           (one per core, at most 16)
#   PIP_NO_INDEX   1: no package index can be reached, take all from WHEEL_FOLDER. To fill it, on a machine that
#                  reaches one and has the same processor and Python version:
#                  pip download -d wheels horovod==0.28.1 'setuptools<81' wheel
set -euo pipefail

VERSION=0.28.1 # the last one; written for torch 2.0, hence the changes below
TOOLS='setuptools<81' # newer ones have no pkg_resources

die() {
    echo "slurm/build_horovod.sh: $*" >&2
    exit 2
}

# Asks the interpreter; what torch or a site's start-up files print goes elsewhere. Some Pythons end without a flush of
# what is not sys.stdout any more.
ask() {
    "$PYTHON" -c "import sys; out, sys.stdout = sys.stdout, sys.stderr; $1; out.flush()" 2>"$work/said"
}

# Sets nccl (the folder) and nccl_library (the file in it).
find_nccl() {
    nccl=${NCCL_PATH:-}
    [[ -n $nccl ]] || nccl=$(ask 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0], file=out)') ||
        die "torch $torch is built for CUDA $cuda, but pip installed no NCCL beside it: set NCCL_PATH to a folder with include/nccl.h and lib/libnccl.so"
    [[ -f $nccl/include/nccl.h ]] || die "no include/nccl.h in '$nccl' (NCCL_PATH): name the folder that has it"
    for nccl_library in "$nccl"/{lib,lib64,"lib/$(uname -m)-linux-gnu"}/libnccl.so{,.2}; do
        [[ ! -e $nccl_library ]] || return 0
    done
    die "no libnccl.so in lib, lib64 or lib/$(uname -m)-linux-gnu of '$nccl' (NCCL_PATH): name the folder that has it"
}

# need WHAT COMMAND [ARGUMENTS]: notes WHAT as missing where the command fails, and what it says first.
need() {
    "${@:2}" >/dev/null 2>"$work/said" || missing+=("$1 ($(sed 's/.*: line [0-9]*: //; q' "$work/said"))")
}

# Stops with all that is missing, before minutes of compiling.
check_tools() {
    local missing=() nvcc
    need cmake cmake --version # which itself says where it is too old
    need make make --version
    need "a C++17 compiler" "${CXX:-c++}" -std=c++17 -x c++ -fsyntax-only /dev/null
    need "MPI with its headers" mpicxx -include mpi.h -x c++ -fsyntax-only /dev/null
    need "Python's headers" ls "$(ask 'import sysconfig; print(sysconfig.get_paths()["include"], file=out)')/Python.h"
    if [[ -n $cuda ]]; then
        nvcc=$(command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" || command -v /usr/local/cuda/bin/nvcc) ||
            missing+=("nvcc of CUDA $cuda (CUDA_HOME)")
        [[ -z $nvcc ]] || CUDA_HOME=$(dirname "$(dirname "$(realpath "$nvcc")")")
    fi
    ((${#missing[@]} == 0)) ||
        die "missing: $(printf '%s; ' "${missing[@]}")load the modules that have them (MODULES in env.sh); on Debian: apt-get install cmake make g++ libopenmpi-dev python3-dev"
}

build() {
    check_tools
    [[ -z $cuda ]] || find_nccl
    # What setup.py imports, beside the environment and not in it.
    "$PYTHON" -m pip install --quiet --target "$work/tools" --find-links "$wheels" \
        "$TOOLS" wheel packaging cloudpickle psutil pyyaml cffi
    export PYTHONPATH="$work/tools${PYTHONPATH:+:$PYTHONPATH}"
    "$PYTHON" -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation --dest "$work" \
        --find-links "$wheels" "horovod==$VERSION" ||
        die "the source of Horovod cannot be had: put horovod-$VERSION.tar.gz into $wheels (see the top of this file)"
    tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
    cd "$work/horovod-$VERSION"
    # torch's headers are C++17; distutils, which Python 3.12 no longer has, is asked for one path.
    sed -i -E 's/(CMAKE_C(XX|UDA)_STANDARD) 1[14]\)/\1 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt \
        horovod/common/ops/cuda/CMakeLists.txt
    sed -i "s/from distutils.sysconfig import get_python_inc; print(.*())/import sysconfig; print(sysconfig.get_paths()['include'])/" \
        horovod/torch/CMakeLists.txt

    export HOROVOD_LOCAL_VERSION=$label HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    # gloo is for starting without MPI; the copy of it that Horovod brings stops newer compilers.
    export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1
    unset HOROVOD_GPU_OPERATIONS
    if [[ -n $cuda ]]; then
        export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL
        export HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_LIB=${nccl_library%/*}
        export HOROVOD_NCCL_LINK=SHARED # the one that torch has loaded, not a second
        # pip's NCCL has no libnccl.so without a number.
        sed -i "s/set(NCCL_LIBNAME \"nccl\")/set(NCCL_LIBNAME \"${nccl_library##*/}\")/" cmake/Modules/FindNCCL.cmake
    fi
    local cores
    cores=$(nproc)
    export MAKEFLAGS=${MAKEFLAGS:--j$((cores < 16 ? cores : 16))}
    echo "building Horovod $VERSION for torch $torch with $(command -v mpicxx)${cuda:+, NCCL} and $MAKEFLAGS: some minutes"
    "$PYTHON" -m pip wheel --no-deps --no-build-isolation --no-index --wheel-dir "$work/wheel" . >"$work/log" 2>&1 || {
        grep -E 'error|Error' "$work/log" | head -n5 >&2 || true
        tail -n30 "$work/log" >&2
        die "the build failed, see above"
    }
    # It appears under its name only when it is whole: other calls may be looking for it.
    local made=("$work"/wheel/horovod-*.whl)
    cp "${made[0]}" "$wheels/.${made[0]##*/}.$$"
    mv "$wheels/.${made[0]##*/}.$$" "$wheels/${made[0]##*/}"
}

here=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
command -v "${PYTHON:=python3}" >/dev/null || die "$PYTHON: not found; set PYTHON"
mkdir -p "${1:-$here/wheels}"
wheels=$(realpath "${1:-$here/wheels}")
work=$(mktemp -d)
trap 'rm -rf "$work" "$wheels"/.horovod-*.$$' EXIT

facts=$(ask 'import torch; print(torch.__version__, torch.version.cuda or "-", torch.version.hip or "-", "cp%d%d" % sys.version_info[:2], file=out)') ||
    die "$PYTHON cannot import torch ($(tail -n1 "$work/said")): name one that can, PYTHON=$here/.venv/bin/python for example"
read -r torch cuda hip tag <<<"$facts"
[[ $cuda != - ]] || cuda=
[[ $hip == - ]] || die "torch $torch is built for ROCm: this script knows CPUs and CUDA"
"$PYTHON" -m pip --version >/dev/null 2>&1 || die "$PYTHON has no pip: $PYTHON -m ensurepip, or another PYTHON"
label=torch$(tr -c 'A-Za-z0-9\n' . <<<"$torch" | tr '[:upper:]' '[:lower:]') # a wheel fits one torch: its name says which

found() {
    local match=("$wheels/horovod-$VERSION+$label-$tag-"*"_$(uname -m).whl")
    [[ -e ${match[0]} ]] && echo "${match[0]}"
}
if ! wheel=$(found); then
    (build) # not in a condition, where bash would go on after an error
    wheel=$(found)
fi
# Else pip keeps one that has the same version and was built otherwise.
"$PYTHON" -m pip uninstall --quiet --yes horovod 2>/dev/null || true
"$PYTHON" -m pip install --quiet --find-links "$wheels" "$wheel"
# It may have been built with other modules than are loaded now.
ask "import horovod.torch as hvd; assert hvd.mpi_built(), 'without MPI'; assert hvd.nccl_built() or not '$cuda', 'without NCCL'" || {
    "$PYTHON" -m pip uninstall --quiet --yes horovod
    die "$wheel does not work here ($(tail -n1 "$work/said")): load the modules it was built with, or remove it and run this again"
}
echo "installed: Horovod $VERSION for torch $torch into $("$PYTHON" -c 'import sys; print(sys.prefix)')"
