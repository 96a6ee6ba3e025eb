#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
# Stands before the launcher of the ranks, inside their container: has each Python of a rank read
# python/sitecustomize.py when it starts, then becomes the launcher.
#
#   extras/hangs/with_stacks.sh launch/torchrun.sh program.py [arguments]
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export PYTHONPATH="$here/python${PYTHONPATH:+:$PYTHONPATH}"
#? if kind != "runai"
export TIMEOUT_FILE=$RUN_DIR/timeout # a rank creates it when its collective has timed out
#? endif
#? if kind == "slurm"
export HEARTBEAT_FILE=$RUN_DIR/heartbeat # for programs that print little, see extras/hangs/README.md
#? endif
exec "$@"
