#!/usr/bin/env bash
# Prints the template's extras that are in this project, with commas between them, or "none".
cd "$(dirname "${BASH_SOURCE[0]}")/../extras" 2>/dev/null || { echo none; exit; }
found=''
names="{{ extras_of(cookiecutter) | join(' ') }}"
for name in $names; do
    [[ ! -d $name ]] || found+=",$name"
done
found=${found#,}
echo "${found:-none}"
