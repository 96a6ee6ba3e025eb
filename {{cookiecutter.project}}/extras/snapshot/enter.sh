#!/usr/bin/env bash
# Stands before the launcher on each node, or before each rank, inside the container. It has Python
# import the sources of the copies, and has one process list the packages. Then it becomes COMMAND.
#
#   extras/snapshot/enter.sh [COPY …] -- COMMAND
#
# COPY is a folder logs/snapshots/HASH. Read from the environment: RUN_DIR, and PYTHON, the interpreter
# of the ranks (python3).
set -euo pipefail

here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
copies=()
while (($#)) && [[ $1 != -- ]]; do
    copies+=("$1")
    shift
done
if (($# < 2)) || [[ -z ${RUN_DIR:-} ]]; then
    echo "extras/snapshot/enter.sh: expected [COPY …] -- COMMAND, and RUN_DIR; jobs call this file" >&2
    exit 2
fi
shift

# What follows is no rank, and must not look like one: pods have a RANK before their launcher starts.
python=(env -u RANK "${PYTHON:-python3}" -B)

# The first process that can make the new file has the packages listed. packages.py is no child of
# COMMAND, which could wait for it.
file=$RUN_DIR/packages.txt
if [[ ! -e $file ]] && (set -o noclobber && : >"$file.new") 2>/dev/null; then
    ("${python[@]}" "$here/packages.py" "$file" </dev/null &>/dev/null &)
fi
if ((${#copies[@]})); then
    path=$("${python[@]}" "$here/imports.py" "${copies[@]}") || {
        echo "extras/snapshot/enter.sh on ${SLURMD_NODENAME:-$HOSTNAME}: Python did not say which" \
            "folders it imports from, see above; without that it would run other code than was" \
            "submitted. To run without a copy: SNAPSHOT=0" >&2
        exit 2
    }
    path=${path##*$'\n'} path=${path#path=}
    [[ -z $path ]] || export PYTHONPATH=$path
fi
exec "$@"
