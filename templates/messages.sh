# ---- messages, and the state of this shell -------------------------------------------------------

script=$1 # its name begins each message
set +o posix # in posix mode bash before 5.1 cannot read the < <( ) of the scripts

# Puts this bash, and each bash that it starts, into the state that the scripts are written for. A job
# inherits another state from the user's shell by --export=ALL: options of bash (SHELLOPTS,
# POSIXLY_CORRECT), and a file that each bash reads first (BASH_ENV).
start_in_known_state() {
    export -n SHELLOPTS BASHOPTS
    unset POSIXLY_CORRECT CDPATH GLOBIGNORE
    # The bash of a job has read BASH_ENV by now. On a login node it stays: it may define `module`.
    if [[ -n ${SLURM_JOB_ID:-} ]]; then unset BASH_ENV; fi
    set +o noglob +o noclobber +o nounset +o errexit +o pipefail
    shopt -u nullglob failglob nocaseglob nocasematch dotglob
    IFS=$' \t\n'
}
start_in_known_state

# Prints what the user has to change, and ends the script with exit code 2.
die() {
    echo "$script: $*" >&2
    exit 2
}

# Prints a message with the time. It starts no process, such as date, which a requeue would end. It
# returns 0 also if the disk is full: that must not end the script while ranks save.
say() { printf '%(%F %T)T %s\n' -1 "$*" || true; }

# Prints the usage of a script: the comment at its top. Argument: the script.
print_usage() { sed -n '1d; /^# shellcheck/d; /^#SBATCH/q; /^#/!q; s/^# \{0,1\}//p' "$1"; }

# Reads env.sh. Sets its settings. Refuses an env.sh that bash cannot read to its end, or that ends the
# script: by `exit 0` a job would be COMPLETED, with no output and nothing run. A script sets a trap for
# its own end after this.
read_settings() {
    bash -n "$PROJECT_DIR/env.sh" || die "env.sh has a syntax error, see above: correct it"
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

