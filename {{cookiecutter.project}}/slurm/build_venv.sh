#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set job = plan.build_answers("00:30:00")
#? set own_queue = plan.has_own_queue(job)
#? set packages = plan.packages_from
#? set on_login_node = plan.builds_on_login_node
# Builds the virtual environment of env.sh (VENV) from requirements.txt: {{ site.title }}.
#? if on_login_node
# It does so where you call it: login nodes have the processor of compute nodes.
#? else
# It does so on a compute node, because login nodes often have another processor or driver.
#? endif
#? if packages == "wheelhouse"
#
# pip takes packages from the wheelhouse of this site alone, where torch is built for its nodes. So
# requirements.txt names no versions. This lists those of torch:   {{ site.containers.venv.wheelhouse }} torch
#? elif packages == "folder"
#
#? if plan.pip_index
# Compute nodes reach no package index. First fill the folder wheels/ on a machine that reaches one and has the same
# processor and Python version:
#   pip download {{ plan.pip_index }}-r requirements.txt -d wheels
#? else
# Compute nodes reach no package index. First fill the folder wheels/ on a machine that reaches one and has the same
# processor and Python version:   pip download -r requirements.txt -d wheels
#? endif
#? endif
#
#? if on_login_node
#   bash slurm/build_venv.sh                           on a login node

#? else
#   bash slurm/build_venv.sh [options of sbatch]       submits itself
#
#? if own_queue
# The account is that of slurm/submit_multinode.sh.
#? else
# Account and queue are those of slurm/submit_multinode.sh.
#? endif
#
#SBATCH {{ pad("--job-name=build-venv") }} # shown by squeue
#SBATCH {{ pad("--nodes=1") }} # one machine
#SBATCH {{ pad("--ntasks=1") }} # pip is one process
#? for option, why in plan_of(job).own_resources(own_queue, builds=true)
#SBATCH {{ pad(option) }} # {{ why }}
#? endfor
#SBATCH {{ pad("--no-requeue") }} # a second attempt would meet the folder of the first
#SBATCH {{ pad("--output=%x-%j.out") }} # in the folder of submission

#? endif
# Refuses what would fail after hours in the queue, and sets up the Python that the environment is
# made from.
prepare() {
    read_settings
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/launch/software.sh"
    [[ -f $PROJECT_DIR/requirements.txt ]] ||
        die "no requirements.txt in $PROJECT_DIR: write one with the packages of your programs," \
            "for example: echo torch >requirements.txt"
    [[ ! -e $VENV ]] || die "$VENV exists already; remove it first, or set VENV to another folder"
    #? if packages == "folder"
    compgen -G "$WHEELS/torch-*.whl" >/dev/null ||
        die "no torch wheel in $WHEELS: on a machine with internet, the same processor and Python, run" \
            "'pip download {{ plan.pip_index }}-r requirements.txt -d wheels', then copy its files there"
    #? endif
    RUNTIME=none set_up_software || exit
    #? if packages == "wheelhouse"
    command -v virtualenv >/dev/null ||
        die "virtualenv was not found on $(hostname); name a Python module in MODULES of env.sh"
    #? endif
    #? if cookiecutter.examples == "yes"
    # The torch of requirements.txt asks for Python 3.10.
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$("$PYTHON" --version) is too old: name a module with Python 3.10 or newer in MODULES of" \
            "env.sh, or set PYTHON to such a Python"
    #? else
    # The oldest torch that works here asks for Python 3.9.
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        die "$("$PYTHON" --version) is too old: name a module with Python 3.9 or newer in MODULES of" \
            "env.sh, or set PYTHON to such a Python"
    #? endif
    #? if packages != "wheelhouse"
    "$PYTHON" -c 'import ensurepip, venv' ||
        die "$PYTHON has no venv or ensurepip, see above:" \
            "name a Python module in MODULES of env.sh, or set PYTHON"
    #? endif
}

#? if on_login_node
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
#? else
# In the job this file is a copy in a spool folder, and its first argument is the project.
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
[[ -f $PROJECT_DIR/env.sh ]] || PROJECT_DIR=${1:-$SLURM_SUBMIT_DIR}
#? endif
if [[ ! -f $PROJECT_DIR/env.sh ]]; then
    echo "slurm/build_venv.sh: no env.sh in '$PROJECT_DIR': call it with 'bash slurm/build_venv.sh'" >&2
    exit 2
fi
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/commands.sh" slurm/build_venv.sh
export RUNTIME=venv # MODULES of env.sh may depend on it

#? if on_login_node
expect_options "${BASH_SOURCE[0]}" "$@"
(($# == 0)) || die "'$*' is not known: this script has no options"
#? else
if [[ ${BASH_SOURCE[0]##*/} != slurm_script ]]; then # called with bash
    expect_options "${BASH_SOURCE[0]}" "$@"
    (prepare) || exit # in a shell of its own: the job reads env.sh itself
    submit_build "${BASH_SOURCE[0]}" "$@" # ends this script
fi
#? endif

prepare
set -euo pipefail
# Half an environment would pass for a whole one. bin goes first, as Slurm may end this job meanwhile.
trap '[[ ! -e $VENV/.unfinished ]] || rm -rf "$VENV/bin" "$VENV"' EXIT
mkdir -p "$VENV" && touch "$VENV/.unfinished"
#? if packages == "wheelhouse"
virtualenv --no-download --python="$PYTHON" "$VENV"
"$VENV/bin/python" -m pip install --no-index --upgrade pip
"$VENV/bin/python" -m pip install --no-index -r "$PROJECT_DIR/requirements.txt" ||
    die "the wheelhouse lacks what pip names above; '{{ site.containers.venv.wheelhouse }} NAME' lists the versions it has"
#? elif packages == "folder"
"$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip install --no-index --find-links "$WHEELS" -r "$PROJECT_DIR/requirements.txt"
#? else
"$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip install -r "$PROJECT_DIR/requirements.txt"
#? endif
#? if plan_of(job).node_facts.gpu_vendor == "amd"
"$VENV/bin/python" -c 'import sys, torch; sys.exit(torch.version.hip is None)' ||
    die "pip took a torch that is not for AMD GPUs; name its index in PIP_EXTRA_INDEX_URL of env.sh"
#? endif
"$VENV/bin/python" -c \
    'import torch; gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("torch", torch.__version__, "sees", gpus, "GPU(s) here")' ||
    die "the new environment cannot import torch, see above: name torch in requirements.txt"
rm "$VENV/.unfinished"
echo "ready: $VENV"
