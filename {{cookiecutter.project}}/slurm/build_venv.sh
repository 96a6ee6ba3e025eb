#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set job = build_answers(cookiecutter, "00:30:00")
#? set horovod = cookiecutter.launcher == "mpirun-ranks"
# Builds the virtual environment of env.sh (VENV) from requirements.txt, on a compute node, so that it fits the nodes that
# will use it: another processor or driver than the login node's is common. {{ site.title }}.
#
#   bash slurm/build_venv.sh [options of sbatch]       submits itself
#? if horovod
#   INSTALL_HOROVOD=1 bash slurm/build_venv.sh         with Horovod, see slurm/build_horovod.sh
#? endif
#? if site.internet is false
#
# Compute nodes reach no package index. Fill the folder wheels/ before, on a machine that does and has the same processor
# and Python version:   pip download -r requirements.txt -d wheels
#? endif
#
#SBATCH {{ pad("--job-name=build-venv") }} # shown by squeue
#SBATCH {{ pad("--nodes=1") }} # one machine
#SBATCH {{ pad("--ntasks=1") }} # pip is one process
#? for option, why in resources(job, builds=true)
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission

die() {
    echo "slurm/build_venv.sh: $*" >&2
    exit 2
}

# Everything that can be known to be wrong before the job waits in the queue; sets up the Python that it is built from.
prepare() {
    [[ -f $PROJECT_DIR/env.sh ]] || die "no env.sh in '$PROJECT_DIR': submit with 'bash slurm/build_venv.sh'"
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    [[ ! -e $VENV ]] || die "$VENV exists already; remove it first, or set VENV to another folder"
    #? if site.internet is false
    compgen -G "$WHEELS/torch-*.whl" >/dev/null ||
        die "no torch wheel in $WHEELS: fill that folder first, see the top of this file"
    #? if horovod
    [[ ${INSTALL_HOROVOD:-0} != 1 ]] || compgen -G "$WHEELS/horovod-*" >/dev/null ||
        die "no Horovod in $WHEELS: see the top of slurm/build_horovod.sh"
    #? endif
    #? endif
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    RUNTIME=none set_up_software || exit
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || # what the torch of requirements.txt asks for
        die "$("$PYTHON" --version) is too old, 3.10 is needed; name a module in MODULES of env.sh, or set PYTHON"
}

export RUNTIME=venv # MODULES of env.sh may depend on it
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
if [[ -f $PROJECT_DIR/env.sh ]]; then # called with bash
    (prepare) || exit # in a shell of its own: the job shall read env.sh as it is when it starts
    exec sbatch --export=ALL "$@" "${BASH_SOURCE[0]}" "$PROJECT_DIR"
fi
PROJECT_DIR=${1:-$SLURM_SUBMIT_DIR} # in the job this file is a copy in a spool folder
prepare
set -euo pipefail
trap '[[ ! -e $VENV/.unfinished ]] || rm -rf "$VENV"' EXIT # half an environment would pass for a whole one
mkdir -p "$VENV" && touch "$VENV/.unfinished"
"$PYTHON" -m venv "$VENV"
#? if site.internet is false
"$VENV/bin/python" -m pip install --no-index --find-links "$WHEELS" -r "$PROJECT_DIR/requirements.txt"
#? else
"$VENV/bin/python" -m pip install -r "$PROJECT_DIR/requirements.txt"
#? endif
#? if horovod
if [[ ${INSTALL_HOROVOD:-0} == 1 ]]; then
    #? if site.internet is false
    PIP_NO_INDEX=1 PYTHON="$VENV/bin/python" bash "$PROJECT_DIR/slurm/build_horovod.sh" "$WHEELS"
    #? else
    PYTHON="$VENV/bin/python" bash "$PROJECT_DIR/slurm/build_horovod.sh"
    #? endif
fi
#? endif
#? if node_facts(job).gpu_vendor == "amd"
"$VENV/bin/python" -c 'import sys, torch; sys.exit(torch.version.hip is None)' ||
    die "pip took a torch that is not for AMD GPUs; name its index in PIP_EXTRA_INDEX_URL of env.sh"
#? endif
"$VENV/bin/python" -c 'import torch; print("torch", torch.__version__, "sees", torch.cuda.device_count(), "GPU(s) here")'
rm "$VENV/.unfinished"
echo "ready: $VENV"
