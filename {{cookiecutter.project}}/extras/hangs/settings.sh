#!/usr/bin/env bash
#? if site_facts(cookiecutter.site).kind == "slurm"
# Seconds after which a job whose ranks neither print nor move is ended, with exit code 124: several
# times the longest silence of a healthy run. 0: never.
STALL_TIMEOUT="${STALL_TIMEOUT:-0}"
# end, or requeue: then such a job goes back into the queue, at most MAX_REQUEUES times (env.sh).
STALL_ACTION="${STALL_ACTION:-end}"
#? else
# This extra has no settings here: STALL_TIMEOUT and STALL_ACTION are for Slurm.
#? endif
