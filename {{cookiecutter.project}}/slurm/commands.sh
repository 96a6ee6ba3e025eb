#!/usr/bin/env bash
# What commands share that look at a job, or submit another one than slurm/submit_multinode.sh does. A
# script sets PROJECT_DIR, and reads this file with its own name, as it would read slurm/project.sh:
#   source "$PROJECT_DIR/slurm/commands.sh" slurm/NAME.sh
# shellcheck disable=SC2034 # the scripts use what functions set
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" "$1"

# Sets number, what Slurm calls a job that runs, and hosts, its nodes. Refuses one that does not run.
# Argument: the number as squeue shows it, also of a job of an array.
find_running_job() {
    local record state
    [[ $1 =~ ^[0-9]+(_[0-9]+)?$ ]] ||
        die "'$1': expected the number of a job, as 4711 or 4711_3; squeue --me lists yours"
    record=$(job_record "$1" 2>&1) ||
        die "Slurm knows no job $1 (${record%%$'\n'*}): squeue --me lists yours"
    state=$(field JobState)
    [[ $state != PENDING ]] ||
        die "job $1 waits in the queue, and has no ranks yet: squeue --start --jobs=$1 says when it may start"
    [[ $state == RUNNING ]] ||
        die "job $1 is $state: only a running one has ranks. Why a job ended: python3 slurm/doctor.py $1"
    number=$(field JobId)
    mapfile -t hosts < <(scontrol show hostnames "$(field NodeList)")
}

# ---- commands that submit other jobs -------------------------------------------------------------

# Prints the usage of a script if it is asked for. Refuses words that are neither options nor follow one:
# sbatch would take one for its script, and salloc for its command. Arguments: the script, and its words.
expect_options() {
    local word before=''
    for word in "${@:2}"; do
        if [[ $word == -h || $word == --help ]]; then
            print_usage "$1"
            exit
        fi
        # After --option and -o, a word may be the option's value.
        [[ $word == -?* || $before =~ ^(-[A-Za-z]|--[^=]+)$ ]] ||
            die "'$word' is not known: expected options of Slurm, as in --time=00:10:00"
        before=$word
    done
}

# Prints options of the #SBATCH lines of slurm/submit_multinode.sh, one per line. Arguments: account,
# partition, qos.
options_of_jobs() {
    local name letter
    for name in "$@"; do
        case $name in
            account) letter=A ;;
            partition) letter=p ;;
            qos) letter=q ;;
        esac
        sed -nE "s/^#SBATCH +(--${name}[= ]+|-$letter *)([^ #]+).*/--$name=\2/p" \
            "$PROJECT_DIR/slurm/submit_multinode.sh"
    done
}

# Submits a script that builds something and ends this one. Arguments: the script, then options of
# sbatch. Slurm runs a copy of the script from a spool folder, so the job gets the project's folder
# as its argument.
submit_build() {
    local names=(account) options
    # A script that has a queue of its own keeps it.
    grep -qE '^#SBATCH +(--(partition|qos)[= ]|-[pq])' "$1" || names+=(partition qos)
    mapfile -t options < <(options_of_jobs "${names[@]}")
    exec sbatch --export=ALL "${options[@]}" "${@:2}" "$1" "$PROJECT_DIR"
}
