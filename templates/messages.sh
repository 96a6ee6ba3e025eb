# ---- messages, and the state of this shell -------------------------------------------------------

script=$1 # its name begins each message
set +o posix # in posix mode bash before 5.1 cannot read the < <( ) below

# Puts this bash, and each bash that it starts, into the state that the scripts are written for. A job
# inherits another one from the user's shell by --export=ALL: options of bash (SHELLOPTS,
# POSIXLY_CORRECT), a file that each bash reads first (BASH_ENV), and functions. An exported function is
# unset if it hides a program: `module` stays, and `grep` with colors does not. `spack` stays beside its
# program, as it loads packages (setup-env.sh of Spack exports it, read 2026-11-29).
start_in_known_state() {
    local attributes name
    export -n SHELLOPTS BASHOPTS
    unset POSIXLY_CORRECT CDPATH GLOBIGNORE
    # The bash of a job has read BASH_ENV by now. On a login node it stays: it may define `module`.
    if [[ -n ${SLURM_JOB_ID:-} ]]; then unset BASH_ENV; fi
    set +o noglob +o noclobber +o nounset +o errexit +o pipefail
    shopt -u nullglob failglob nocaseglob nocasematch dotglob
    IFS=$' \t\n'
    while read -r _ attributes name; do
        if [[ $attributes == *x* && $name != spack ]] && type -P "$name" >/dev/null; then
            unset -f "$name"
        fi
    done < <(declare -F)
}
start_in_known_state

# Prints what the user has to change, and ends the script with exit code 2.
die() {
    echo "$script: $*" >&2
    exit 2
}

# Prints a message with the time. It starts no process: Slurm ends all processes of a job that is requeued.
# It returns 0 also if the disk is full: that must not end the script while ranks save.
say() { printf '%(%F %T)T %s\n' -1 "$*" || true; }

# Prints the usage of a script: the comment at its top. Argument: the script.
print_usage() { sed -n '1d; /^# shellcheck/d; /^#SBATCH/q; /^#/!q; s/^# \{0,1\}//p' "$1"; }

# Refuses a file of the project whose lines end as on Windows: bash would take the invisible character
# at the end of each line for a part of the last word.
refuse_windows_line_ends() {
    if grep -q $'\r$' "$1"; then
        die "$1 has the line ends of Windows, which bash cannot read: perl -pi -e 's/\r\$//' '$1'"
    fi
}

# Refuses a file with settings that bash cannot read to its end. Argument: the file.
refuse_broken_settings() {
    refuse_windows_line_ends "$1"
    bash -n "$1" || die "$1 has a syntax error, see above: correct it"
}

# Reads env.sh. Sets its settings. Refuses an env.sh that ends the script: by `exit 0` a job would be
# COMPLETED, with no output and nothing run. A script sets a trap for its own end after this.
read_settings() {
    refuse_broken_settings "$PROJECT_DIR/env.sh"
    trap 'die "env.sh ended this script: look for exit, or set -e and a command that fails, in what it reads"' EXIT
    # shellcheck source=/dev/null
    source "$PROJECT_DIR/env.sh"
    set +o errexit +o nounset +o pipefail
    trap - EXIT
    refuse_misplaced_settings # of launch/extras.sh
}

# Makes the folder of the ranks' logs. Its own .gitignore hides the logs from git, also in a project
# whose .gitignore does not name logs/. Returns 1 if the folder cannot be written to.
make_logs_folder() {
    local logs=$PROJECT_DIR/logs
    mkdir -p "$logs" && [[ -w $logs ]] || return
    if [[ ! -e $logs/.gitignore ]]; then
        echo '*' >"$logs/.gitignore"
    fi
}

