#!/usr/bin/env bash
# What the scripts of runai/ and of extras/ share, where you submit and in the pods: messages, the check
# of a program, the calls of extras. It works with the bash of macOS (3.2), but for say.
#
# A script sets PROJECT_DIR, and reads this file with its own name, which stands in front of messages:
#   source "$PROJECT_DIR/runai/project.sh" runai/NAME.sh
# shellcheck disable=SC2034,SC2153 # env.sh has the settings; the scripts use what functions set

#? include "messages.sh"
#? include "program.sh"
# shellcheck source=/dev/null
source "$PROJECT_DIR/launch/extras.sh" # read_extras, call_extras
