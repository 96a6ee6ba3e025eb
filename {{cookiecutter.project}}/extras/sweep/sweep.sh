#!/usr/bin/env bash
#? set examples = cookiecutter.examples == "yes"
#? set program = "training/train_ddp.py" if examples else "train.py"
# Runs a program once for each line of a file: a sweep over its arguments, as an array of jobs.
#
#   bash extras/sweep/sweep.sh lines.txt -- {{ program }} --steps 500
#   bash extras/sweep/sweep.sh lines.txt --max-at-once 4 --nodes=1 -- {{ program }} --steps 500
#   bash extras/sweep/sweep.sh JOBID                      a table: each job's state, losses, cause of failure
#
# Each line of the file is added to the arguments after --. A job's index is the number of its line, and
# each %a in its arguments becomes that number. Empty lines and lines that begin with # start no job, but
# keep their number. sbatch gets the options before --. The option --max-at-once N is of this script: at
# most N jobs run at a time.
#
#? if examples
# A job of training/ without --out writes into a new folder: runs/NAME.SUFFIX/LINE.
#? endif
# extras/sweep/README.md shows an example, and what to do with Hydra and Optuna.

PROJECT_DIR=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=/dev/null
source "$PROJECT_DIR/slurm/project.sh" extras/sweep/sweep.sh

case ${1:-} in
    -h | --help)
        print_usage "${BASH_SOURCE[0]}"
        exit
        ;;
    '') die "expected a file with a line for each job, or the number of a sweep's job" ;;
esac
if [[ $# == 1 && $1 =~ ^[0-9]+$ && ! -e $1 ]]; then
    [[ -d $PROJECT_DIR/logs/sweeps/$1 ]] ||
        die "job $1 is no sweep of this project: ls $PROJECT_DIR/logs/sweeps lists them"
    exec python3 -B "$PROJECT_DIR/extras/sweep/table.py" "$PROJECT_DIR/logs/sweeps/$1"
fi

lines=$1 at_once='' options=()
shift
while (($#)) && [[ $1 != -- ]]; do
    case $1 in
        --max-at-once=*) set -- --max-at-once "${1#*=}" "${@:2}" && continue ;;
        --max-at-once)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] ||
                die "--max-at-once '${2:-}': expected a number of jobs, 1 or more"
            at_once=$2
            shift
            ;;
        -a* | --array* | --export* | -W | --wait | -Q | --quiet | --parsable | --test-only)
            die "$1: leave it out. The lines of the file are the array, the jobs get your environment," \
                "and this script reads what sbatch prints"
            ;;
        *) options+=("$1") ;;
    esac
    shift
done
(($# > 1)) ||
    die "no program: expected bash extras/sweep/sweep.sh $lines -- PROGRAM ARGUMENTS, or, for a table," \
        "the number that a sweep has printed"
shift

# jobs.py writes the arguments of each job into a folder of this sweep, and prints the jobs' indices.
{ make_logs_folder && mkdir -p "$PROJECT_DIR/logs/sweeps"; } ||
    die "cannot write to $PROJECT_DIR/logs, where the sweep's folder goes"
name=${lines##*/} name=${name%.*}
SWEEP_FOLDER=$(mktemp -d "$PROJECT_DIR/logs/sweeps/$name.XXXXXX") || exit
export SWEEP_FOLDER
unset SWEEP_JOB   # it is there if a job of another sweep runs this script
unset SBATCH_WAIT # sbatch would answer only when the last job has ended
trap 'rm -rf "$SWEEP_FOLDER"' EXIT # if the submission fails, or this script is interrupted
indices=$(python3 -B "$PROJECT_DIR/extras/sweep/jobs.py" "$lines" "$SWEEP_FOLDER" "$@") || exit
said=$(bash "$PROJECT_DIR/slurm/submit_multinode.sh" --job-name="$name" \
    --array="$indices${at_once:+%$at_once}" "${options[@]}" -- "$@") || exit
trap - EXIT
echo "$said"
[[ $said =~ Submitted\ batch\ job\ ([0-9]+) ]] || # on a federation more words follow
    die "sbatch has accepted the jobs, but printed no number: '$said'"
job=${BASH_REMATCH[1]}
ln -sfn "${SWEEP_FOLDER##*/}" "$PROJECT_DIR/logs/sweeps/$job"
echo "bash extras/sweep/sweep.sh $job prints the table of this sweep"
