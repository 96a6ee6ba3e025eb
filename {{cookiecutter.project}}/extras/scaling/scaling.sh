#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? set published = site_facts(cookiecutter.site).all_reduce
#? set limit = plan_of(cookiecutter).job_limit
#? set variable = "SBATCH_" ~ limit.question | upper if limit else ""
# Measures all-reduce on several numbers of nodes, one job for each. Results are in
# logs/scaling/NAME/nodes-N.json, and extras/scaling/report.py makes tables of them.
#
#   bash extras/scaling/scaling.sh 1 2 4 8               benchmark/all_reduce.py on 1, 2, 4, 8 nodes
#   bash extras/scaling/scaling.sh 1 2 4 -- --max 4G     options of all_reduce.py come after --
#   bash extras/scaling/scaling.sh --name before 1 2 4   sets NAME (default: today's date)
#? if kind == "slurm"
#   bash extras/scaling/scaling.sh --parallel 1 2 4      all jobs at once
#
# Without --parallel each job waits until the one before has ended or failed: jobs that share links
# slow each other down. Called again with the same NAME, this script skips each number of nodes that
# has a JSON file, or a job that waits or runs. The jobs' output is beside the JSON files.
#? if limit
#
# {{ limit.name }} takes {{ limit.max_jobs }} of your jobs at a time, waiting or running. To submit more, name another
# queue: {{ variable }}=NAME bash extras/scaling/scaling.sh 1 2 4 8
#? endif
#? elif kind == "runai"
#
# Run:ai cannot let one job wait for another, so all jobs are submitted at once. Jobs that share
# links slow each other down. To avoid that, call this script with one number of nodes at a time.
# Called again with the same NAME, it skips each number of nodes that has a JSON file, or a job that
# waits or runs. Pods write to the project on the volume: call this script there.
#? else
#
# The runs follow each other on this machine. Called again with the same NAME, this script skips
# each number of nodes that has a JSON file.
#? endif
# Settings: env.sh.

unset CDPATH # with it, cd could go to another folder and print it
PROJECT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=/dev/null
source "$PROJECT_DIR/{{ kind }}/project.sh" extras/scaling/scaling.sh # die and other functions
set -euo pipefail
cd "$PROJECT_DIR"

#? if kind == "local"
failed=() # numbers of nodes whose run failed
#? else
failed=() # numbers of nodes for which no job could be submitted
#? endif

# Sets counts to the numbers of nodes, flags to the options of all_reduce.py, and folder to that of
#? if kind == "slurm"
# the results. Sets chain to nothing if jobs do not wait for each other.
#? else
# the results.
#? endif
read_arguments() {
    local name
    name=$(date +%F) counts=() flags=()
    #? if kind == "slurm"
    chain=1
    #? endif
    while (($#)); do
        case $1 in
            -h | --help)
                print_usage extras/scaling/scaling.sh
                exit
                ;;
            --name)
                name=${2:-}
                shift $(($# > 1))
                ;;
            #? if kind == "slurm"
            --parallel) chain='' ;;
            #? endif
            --)
                flags=("${@:2}")
                break
                ;;
            *[!0-9]* | 0* | '')
                die "'$1' is no number of nodes: write 1 2 4 8," \
                    "and options of all_reduce.py after --"
                ;;
            *) counts+=("$1") ;;
        esac
        shift
    done
    ((${#counts[@]})) ||
        die "no number of nodes: write for example bash extras/scaling/scaling.sh 1 2 4 8"
    [[ $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] ||
        die "--name '$name': expected letters, digits and ._- only, as in --name before"
    folder=logs/scaling/$name
}

make_results_folder() {
    { make_logs_folder && mkdir -p "$folder"; } ||
        die "cannot write to $PROJECT_DIR/logs, where the results go:" \
            "copy the project to a folder that is yours"
}

#? if kind == "runai"
# Prints runai's table of the project's jobs. It runs in a shell of its own.
list_jobs() {
    set +u # env.sh may read what is not set
    # shellcheck source=/dev/null
    source runai/submit.sh
    read_settings
    require_project
    find_client
    # shellcheck disable=SC2153 # env.sh has the settings
    if [[ $RUNAI_CLI == v2 ]]; then
        runai training list -p "$RUNAI_PROJECT"
    else
        runai list jobs -p "$RUNAI_PROJECT"
    fi
}

#? endif
#? if kind != "local"
#? if kind == "slurm"
# Whether a job waits or runs. Argument: its number.
#? else
# Whether a job waits or runs, as jobs says. Argument: its name.
#? endif
unfinished() {
    #? if kind == "slurm"
    local states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING said
    said=$(squeue --noheader --format=%i --jobs="$1" --states=$states 2>&1) ||
        [[ $said == *"Invalid job id"* ]] || # it ended a while ago
        die "squeue does not say whether job $1 still waits or runs: $said"
    grep -qx "$1" <<<"$said"
    #? else
    local row
    row=$(grep -wF -e "$1" <<<"$jobs") &&
        ! grep -qwiE 'completed|succeeded|failed|stopped|deleting|terminating' <<<"$row"
    #? endif
}

#? if kind == "slurm"
# Sets before to :JOB:JOB, the jobs of earlier calls that have not ended: new jobs wait for them.
#? else
# Sets jobs to runai's table of the project's jobs, if an earlier call has submitted some.
#? endif
find_earlier_jobs() {
    #? if kind == "slurm"
    local file job
    before=''
    for file in "$folder"/*.job; do
        if [[ -n $chain && -s $file ]]; then # an interrupted call may leave an empty one
            job=$(<"$file")
            ! unfinished "$job" || before+=:$job
        fi
    done
    #? else
    jobs=''
    if compgen -G "$folder/*.job" >/dev/null; then
        jobs=$(list_jobs) || exit
    fi
    #? endif
}

#? if kind == "slurm"
# Submits a job and prints its number. Argument: the number of nodes.
#? else
# Submits a job and prints its name. Argument: the number of nodes.
#? endif
submit() {
    #? if kind == "slurm"
    local results=$PROJECT_DIR/$folder/nodes-$1
    bash slurm/submit_multinode.sh --parsable --nodes="$1" --output="$results-%j.out" \
        ${before:+"--dependency=afterany$before"} -- \
        benchmark/all_reduce.py "${flags[@]}" --json "$results.json" |
        sed '$!d; s/;.*//' # NUMBER;CLUSTER
    #? else
    local said
    # Pods start in the project's folder, whatever its name there.
    said=$(NNODES=$1 bash runai/submit_multinode.sh \
        benchmark/all_reduce.py ${flags[@]+"${flags[@]}"} --json "$folder/nodes-$1.json") || return
    sed -n 's|.*/logs/\(.*\)\.\*/$|\1|p' <<<"$said"
    #? endif
}

#? endif
#? if limit
# Sets room to the number of jobs that the queue still takes.
read_limit() {
    local variable="{{ variable }}"
    room=${#counts[@]}
    if [[ -z ${!variable:-} ]] &&
        grep -q '^#SBATCH --{{ limit.question }}={{ limit.name }} ' slurm/submit_multinode.sh; then
        room="{{ limit.max_jobs }}"
    fi
}

#? endif
#? if kind == "local"
# Measures a number of nodes, unless its results are there. Argument: the number of nodes.
#? else
# Submits the job for a number of nodes, unless its results are there, or a job is still to write
# them. Argument: the number of nodes.
#? endif
measure() {
    #? if kind == "local"
    local nodes=$1 results=$folder/nodes-$1.json
    if [[ -f $results ]]; then
        echo "nodes $nodes: $results is there"
    else
        NNODES=$nodes bash local/submit.sh \
            benchmark/all_reduce.py "${flags[@]}" --json "$results" || failed+=("$nodes")
    fi
    #? else
    local nodes=$1 job='' record=$folder/nodes-$1.job results=$folder/nodes-$1.json
    [[ ! -f $record ]] || job=$(<"$record")
    # The job is asked for before the file, as it may end in between.
    if [[ -n $job ]] && unfinished "$job"; then
        echo "nodes $nodes: job $job waits or runs"
        #? if limit
        room=$((room - 1))
        #? endif
    elif [[ -f $results ]]; then
        echo "nodes $nodes: $results is there"
    #? if limit
    elif ((room <= 0)); then
        held+=("$nodes")
    #? endif
    elif job=$(submit "$nodes") && [[ -n $job ]]; then
        echo "$job" >"$record"
        echo "nodes $nodes: job $job"
        #? if limit
        room=$((room - 1))
        #? endif
        #? if kind == "slurm"
        [[ -z $chain ]] || before=:$job
        #? endif
    else
        failed+=("$nodes")
    fi
    #? endif
}

read_arguments "$@"
#? if kind == "slurm"
[[ -z ${SLURM_JOB_ID:-} ]] ||
    die "this shell is inside job $SLURM_JOB_ID: call it from a login node"
#? endif
#? if limit
held=() # numbers of nodes for which the queue has no room
read_limit
#? endif
make_results_folder
#? if kind != "local"
find_earlier_jobs
#? endif
for nodes in "${counts[@]}"; do
    measure "$nodes"
done

#? if published
echo "report, in $PROJECT_DIR:" \
    "python3 extras/scaling/report.py extras/scaling/published.csv $folder"
#? else
echo "report, in $PROJECT_DIR: python3 extras/scaling/report.py $folder"
#? endif
#? if limit
if ((${#held[@]})); then
    echo "nodes ${held[*]}: not submitted, as {{ limit.name }} takes {{ limit.max_jobs }} of your jobs at a time;" \
        "call this again with --name ${folder##*/} when one has ended, or name another queue," \
        "{{ variable }}=NAME" >&2
fi
#? endif
if ((${#failed[@]})); then
    echo "extras/scaling/scaling.sh: failed with these numbers of nodes: ${failed[*]}." \
        "See above, then call it again with --name ${folder##*/}" >&2
    exit 1
fi
#? if limit
((${#held[@]} == 0)) # the exit code
#? endif
