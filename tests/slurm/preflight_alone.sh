#!/usr/bin/env bash
# Calls slurm/preflight.sh of the template as slurm/job.sh does, for all nodes of the job that it is in.
#
#   bash tests/slurm/preflight_alone.sh [NAME|PATH …] [--mounts FOLDER …]
set -euo pipefail
PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../{{cookiecutter.project}}")
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
joined() { (IFS=, && echo "$*"); } # of slurm/job.sh
export RUN_DIR=${RUN_DIR:-$PWD} MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}} MASTER_PORT=${MASTER_PORT:-29500}
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/preflight.sh"
preflight "$@"
