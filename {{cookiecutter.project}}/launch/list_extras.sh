#!/usr/bin/env bash
#? set plan = plan_of(cookiecutter)
# Prints which of the template's extras this project has, with commas between them, or "none". Commands
# that write the project again call it. A folder of your own does not count.
set -euo pipefail

extras=$(dirname "${BASH_SOURCE[0]}")/../extras
names="{{ plan.extras | join(' ') }}" # all of the template
found=''
for name in $names; do
    if [[ -d $extras/$name ]]; then
        found+=",$name"
    fi
done
found=${found#,}
echo "${found:-none}"
