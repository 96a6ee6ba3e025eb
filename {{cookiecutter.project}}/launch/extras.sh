#!/usr/bin/env bash
# Prints the template's extras that are in this project, with commas between them, or "none".
# The pages' commands call it, to write the same project again. A folder of your own does not count.
folder=$(dirname "${BASH_SOURCE[0]}")/../extras
names="{{ extras_of(cookiecutter) | join(' ') }}"
found=''
for name in $names; do
    if [[ -d $folder/$name ]]; then
        found+=",$name"
    fi
done
found=${found#,}
echo "${found:-none}"
