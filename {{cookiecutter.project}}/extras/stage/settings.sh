#!/usr/bin/env bash
# 1: each node copies the virtual environment to its own disk before the ranks start. 0: the ranks
# load it from the shared file system. For RUNTIME=venv.
STAGE="${STAGE:-0}"
# A file or a folder of data that each node copies to its own disk, too. Empty: none.
STAGE_DATA="${STAGE_DATA:-}"
# A folder on each node's own disk. Where /tmp is memory, the copies take memory.
STAGE_DIR="${STAGE_DIR:-/tmp}"
# 1: the copies stay for the next job on these nodes; 0: the job removes them when it ends.
KEEP_STAGE="${KEEP_STAGE:-0}"
