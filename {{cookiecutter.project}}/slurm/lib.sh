#!/usr/bin/env bash
# A job of version 1.2 of these scripts reads this file, if it waited in the queue while an update
# replaced them. Nothing else does: remove it when no such job is left.
echo "slurm/lib.sh: this job was submitted by version 1.2 of the scripts, which an update has replaced:" \
    "submit it again" >&2
exit 2
