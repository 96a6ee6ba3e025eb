#!/usr/bin/env bash
# Builds Horovod for a Python that has torch, and installs it there, for programs that use it.
#
#   bash extras/mpi/build_horovod.sh [WHEEL_FOLDER]
#
# Run it on a compute node, in a shell of slurm/interactive.sh. It needs no Slurm itself, so a
# Dockerfile may call it too. It keeps the wheel in WHEEL_FOLDER, or in wheels/ of the project. A
# later call for the same Python and torch installs that wheel, in seconds.
#
# A build takes two minutes of two cores, five with CUDA. It needs cmake, make, a C++17 compiler,
# MPI with its headers (mpicxx) and Python's headers. For a torch with CUDA it also needs nvcc and
# NCCL. Build with the modules that the jobs will load.
#
# Read from the environment, all optional:
#   PYTHON         the interpreter, with torch and pip              (python3)
#   NCCL_PATH      folder with include/nccl.h and lib/libnccl.so*   (pip's NCCL beside torch)
#   CUDA_HOME      folder with bin/nvcc                 (that of nvcc on PATH, else /usr/local/cuda)
#   HOROVOD_BUILD_CUDA_CC_LIST   the GPUs to build for: 90 is H100  (all that nvcc knows)
#   MAKEFLAGS      -jN: compile N files at once, 1.5 GB each        (one per core, at most 16)
#   PIP_NO_INDEX   1: this machine reaches no package index, so pip takes everything from
#                  WHEEL_FOLDER. Fill it on a machine that reaches an index and has the same
#                  processor and Python version:
#                  pip download -d wheels horovod==0.28.1 'setuptools<81' wheel
set -euo pipefail

VERSION=0.28.1        # the last release; written for torch 2.0, so patch_source changes it
TOOLS='setuptools<81' # later ones have no pkg_resources

main() {
    find_folders "$@"  # sets project, wheels, and work, a temporary folder
    read_torch_version # sets torch, cuda, python_tag, torch_label
    if ! wheel=$(find_wheel); then
        # In a subshell, since build changes folder and environment. On a line of its own, since
        # set -e has no effect in a condition.
        (build)
        wheel=$(find_wheel) || die "the build has left no horovod-$VERSION+$torch_label-*.whl in $wheels"
    fi
    install_wheel
    test_wheel
    echo "installed: Horovod $VERSION for torch $torch into" \
        "$("$PYTHON" -c 'import sys; print(sys.prefix)')"
}

build() {
    check_tools # may set CUDA_HOME
    if [[ -n $cuda ]]; then
        find_nccl # sets nccl, nccl_library
    fi
    install_build_tools
    download_source
    cd "$work/horovod-$VERSION"
    patch_source
    set_build_options
    build_wheel
    keep_wheel
}

# ---- before the build ---------------------------------------------------------------------------

# Sets project, wheels and work, which is removed when this script ends.
find_folders() {
    if (($# > 1)) || [[ ${1:-} == -* ]]; then
        die "'$*': expected one folder for the wheel, or nothing: see the top of this script"
    fi
    project=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
    command -v "${PYTHON:=python3}" >/dev/null || die "$PYTHON: not found; set PYTHON"
    mkdir -p "${1:-$project/wheels}"
    wheels=$(realpath "${1:-$project/wheels}")
    work=$(mktemp -d)
    trap 'rm -rf "$work" "$wheels"/.horovod-*.$$' EXIT
}

# Asks the interpreter for its versions. Sets cuda to nothing for a torch without CUDA.
read_torch_version() {
    local versions hip code
    code='import torch; print(torch.__version__, torch.version.cuda or "-",'
    code+=' torch.version.hip or "-", "cp%d%d" % sys.version_info[:2], file=out)'
    versions=$(ask_python "$code") ||
        die "$PYTHON cannot import torch ($(tail -n1 "$work/messages")):" \
            "name one that can, PYTHON=$project/.venv/bin/python for example"
    read -r torch cuda hip python_tag <<<"$versions"
    if [[ $cuda == - ]]; then
        cuda=''
    fi
    [[ $hip == - ]] || die "torch $torch is built for ROCm: this script knows CPUs and CUDA"
    "$PYTHON" -m pip --version >/dev/null 2>&1 ||
        die "$PYTHON has no pip: $PYTHON -m ensurepip, or another PYTHON"
    # A wheel fits one version of torch, so its name says which, in characters allowed there. As in
    # all versions of packages, 01 is written 1 (PEP 440): NVIDIA's torch is one of nv26.01.
    torch_label=torch$(tr -c 'A-Za-z0-9\n' . <<<"$torch" | tr '[:upper:]' '[:lower:]' |
        sed -E ':again; s/\.0+([0-9]+)(\.|$)/.\1\2/; t again')
}

# Prints the path of a wheel for this torch, Python and processor.
find_wheel() {
    local match=("$wheels/horovod-$VERSION+$torch_label-$python_tag-"*"_$(uname -m).whl")
    [[ -e ${match[0]} ]] && echo "${match[0]}"
}

# ask_python CODE runs CODE, which prints its answer to `out`. Lines that torch or a site's start-up
# files print go to $work/messages. Some Pythons flush only sys.stdout when they end, hence flush().
ask_python() {
    local code="import sys; out, sys.stdout = sys.stdout, sys.stderr; $1; out.flush()"
    "$PYTHON" -c "$code" 2>"$work/messages"
}

# Refuses with the names of all missing tools, before minutes of compiling. Sets CUDA_HOME for a
# torch with CUDA.
check_tools() {
    local missing=() nvcc headers code
    code='import sysconfig; print(sysconfig.get_paths()["include"], file=out)'
    headers=$(ask_python "$code") || true
    need cmake cmake --version # Horovod's CMakeLists.txt says so if it is too old
    need make make --version
    need "a C++17 compiler" "${CXX:-c++}" -std=c++17 -x c++ -fsyntax-only /dev/null
    need "MPI with its headers" mpicxx -include mpi.h -x c++ -fsyntax-only /dev/null
    need "Python's headers" ls "$headers/Python.h"
    if [[ -n $cuda ]]; then
        if nvcc=$(find_nvcc); then
            CUDA_HOME=$(dirname "$(dirname "$(realpath "$nvcc")")")
        else
            missing+=("nvcc of CUDA $cuda (CUDA_HOME)")
        fi
    fi
    ((${#missing[@]} == 0)) ||
        die "missing: $(printf '%s; ' "${missing[@]}")load the modules that have them" \
            "(MODULES in env.sh);" \
            "on Debian: apt-get install cmake make g++ libopenmpi-dev python3-dev"
}

# need TOOL COMMAND…: if COMMAND fails, adds TOOL to missing, with the command's first message.
need() {
    local tool=$1
    if ! "${@:2}" >/dev/null 2>"$work/messages"; then
        missing+=("$tool ($(sed 's/.*: line [0-9]*: //; q' "$work/messages"))")
    fi
}

find_nvcc() {
    command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" || command -v /usr/local/cuda/bin/nvcc
}

# Sets nccl, the folder, and nccl_library, the file in it.
find_nccl() {
    nccl=${NCCL_PATH:-}
    if [[ -z $nccl ]]; then
        nccl=$(ask_python 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0], file=out)') ||
            die "torch $torch is built for CUDA $cuda, but pip installed no NCCL beside it:" \
                "set NCCL_PATH to a folder with include/nccl.h and lib/libnccl.so"
    fi
    [[ -f $nccl/include/nccl.h ]] ||
        die "no include/nccl.h in '$nccl' (NCCL_PATH): name the folder that has it"
    for nccl_library in "$nccl"/{lib,lib64,"lib/$(uname -m)-linux-gnu"}/libnccl.so{,.2}; do
        if [[ -e $nccl_library ]]; then
            return
        fi
    done
    die "no libnccl.so in lib, lib64 or lib/$(uname -m)-linux-gnu of '$nccl' (NCCL_PATH):" \
        "name the folder that has it"
}

# ---- the build ----------------------------------------------------------------------------------

# Installs what Horovod's setup.py imports, into a folder that only this build uses.
install_build_tools() {
    "$PYTHON" -m pip install --quiet --target "$work/tools" --find-links "$wheels" \
        "$TOOLS" wheel packaging cloudpickle psutil pyyaml cffi
    export PYTHONPATH="$work/tools${PYTHONPATH:+:$PYTHONPATH}"
}

download_source() {
    "$PYTHON" -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation \
        --dest "$work" --find-links "$wheels" "horovod==$VERSION" ||
        die "pip could not download the source of Horovod, see above. On a machine with internet run" \
            "'pip download -d wheels horovod==$VERSION \"$TOOLS\" wheel', then copy wheels/ to $wheels"
    tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
}

# Makes the source fit today's torch, Python and NCCL.
patch_source() {
    # torch's headers are C++17.
    sed -i -E 's/(CMAKE_C(XX|UDA)_STANDARD) 1[14]\)/\1 17)/' CMakeLists.txt \
        horovod/torch/CMakeLists.txt horovod/common/ops/cuda/CMakeLists.txt
    # CMake asks distutils for the folder of Python's headers. Python 3.12 has no distutils.
    local old="from distutils.sysconfig import get_python_inc; print(.*())"
    local new="import sysconfig; print(sysconfig.get_paths()['include'])"
    sed -i "s/$old/$new/" horovod/torch/CMakeLists.txt
    # pip's NCCL has only a libnccl.so with a number.
    if [[ -n $cuda ]]; then
        sed -i "s/set(NCCL_LIBNAME \"nccl\")/set(NCCL_LIBNAME \"${nccl_library##*/}\")/" \
            cmake/Modules/FindNCCL.cmake
    fi
}

# Exports the variables that Horovod's setup.py reads.
set_build_options() {
    export HOROVOD_LOCAL_VERSION=$torch_label
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    # gloo is for a start without MPI. Horovod's copy of it does not compile with newer compilers.
    export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1
    unset HOROVOD_GPU_OPERATIONS
    if [[ -n $cuda ]]; then
        export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL
        export HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_LIB=${nccl_library%/*}
        export HOROVOD_NCCL_LINK=SHARED # the NCCL that torch has loaded, not a second one
    fi
    local cores
    cores=$(nproc)
    export MAKEFLAGS=${MAKEFLAGS:--j$((cores < 16 ? cores : 16))}
}

build_wheel() {
    echo "building Horovod $VERSION for torch $torch" \
        "with $(command -v mpicxx)${cuda:+, NCCL} and $MAKEFLAGS: some minutes"
    if ! "$PYTHON" -m pip wheel --no-deps --no-build-isolation --no-index \
        --wheel-dir "$work/wheel" . >"$work/log" 2>&1; then
        grep -E 'error|Error' "$work/log" | head -n5 >&2 || true
        tail -n30 "$work/log" >&2
        die "Horovod's build failed: look above for the first error of the compiler"
    fi
}

# Puts the wheel into its folder, whole: another call may be looking for its name.
keep_wheel() {
    local built=("$work"/wheel/horovod-*.whl) name
    name=${built[0]##*/}
    cp "${built[0]}" "$wheels/.$name.$$"
    mv "$wheels/.$name.$$" "$wheels/$name"
}

# ---- after the build ----------------------------------------------------------------------------

# Uninstalls first: pip would keep a Horovod of the same version that was built for another torch.
install_wheel() {
    "$PYTHON" -m pip uninstall --quiet --yes horovod 2>/dev/null || true
    "$PYTHON" -m pip install --quiet --find-links "$wheels" "$wheel"
}

# Imports Horovod. It may have been built with other modules than those that are loaded now.
test_wheel() {
    local code="import horovod.torch as hvd; assert hvd.mpi_built(), 'without MPI'"
    if [[ -n $cuda ]]; then
        code+="; assert hvd.nccl_built(), 'without NCCL'"
    fi
    if ! ask_python "$code"; then
        "$PYTHON" -m pip uninstall --quiet --yes horovod
        die "$wheel does not work here ($(tail -n1 "$work/messages")):" \
            "load the modules it was built with, or remove it and run this again"
    fi
}

die() {
    echo "extras/mpi/build_horovod.sh: $*" >&2
    exit 2
}

main "$@"
