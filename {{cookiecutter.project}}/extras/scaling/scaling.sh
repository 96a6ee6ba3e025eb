#!/usr/bin/env bash
#? set kind = site_facts(cookiecutter.site).kind
#? set limit = job_limit(cookiecutter)
#? set variable = "SBATCH_" ~ limit.question | upper if limit else ""
# Measures all-reduce on several numbers of nodes: benchmark/results/NAME/nodes-N.json, for benchmark/report.py.
#
#   bash benchmark/scaling.sh 1 2 4 8                   a run of benchmark/all_reduce.py on each number of nodes
#   bash benchmark/scaling.sh 1 2 4 8 -- --max 4G       options of benchmark/all_reduce.py come after --
#   bash benchmark/scaling.sh --name before 1 2 4 8     sets NAME (default: today's date)
#? if kind == "slurm"
#   bash benchmark/scaling.sh --parallel 1 2 4 8        all jobs at once: where they share links, they disturb each other
#
# Without --parallel each job waits until the one before has ended or failed. Called again with the same NAME, this script
# skips each number of nodes that has a JSON file, or a job that waits or runs. Output of jobs lies beside the JSON files.
#? if limit
#
# {{ limit.name }} takes {{ limit.max_jobs }} of your jobs at a time, waiting or running. To submit more, name another queue:
#   {{ variable }}=NAME bash benchmark/scaling.sh 1 2 4 8
#? endif
#? elif kind == "runai"
#
# Run:ai cannot let one job wait for another, so all jobs are submitted at once, and disturb each other where they share
# links. To avoid that, call this script with one number of nodes at a time. Called again with the same NAME, it skips each
# number of nodes that has a JSON file, or a job that waits or runs. Pods write to the project on the volume: call this
# script there.
#? else
#
# The runs follow each other on this machine. Called again with the same NAME, this script skips each number of nodes that
# has a JSON file.
#? endif
# Settings: env.sh.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "benchmark/scaling.sh: $*" >&2
    exit 2
}

#? if kind != "local"
# Whether job $1 has not come to its end.
unfinished() {
    #? if kind == "slurm"
    local states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING said
    said=$(squeue --noheader --format=%i --jobs="$1" --states=$states 2>&1) ||
        [[ $said == *"Invalid job id"* ]] || # it ended a while ago
        die "squeue does not say whether job $1 still waits or runs: $said"
    grep -qx "$1" <<<"$said"
    #? else
    local row
    row=$(grep -wF -e "$1" <<<"$jobs") && ! grep -qwiE 'completed|succeeded|failed|stopped|deleting|terminating' <<<"$row"
    #? endif
}

#? if kind == "slurm"
# Submits a job; prints its number.
#? else
# Submits a job; prints its name.
#? endif
submit() {
    #? if kind == "slurm"
    bash slurm/submit_multinode.sh --parsable --nodes="$nodes" --output="$PWD/$base-%j.out" \
        ${before:+"--dependency=afterany$before"} -- \
        benchmark/all_reduce.py "${flags[@]}" --json "$PWD/$base.json" | sed '$!d; s/;.*//' # NUMBER;CLUSTER
    #? else
    local said # pods start in the project's folder, whatever its name there
    said=$(NNODES=$nodes bash runai/submit_multinode.sh benchmark/all_reduce.py ${flags[@]+"${flags[@]}"} --json "$base.json") || return
    sed -n 's|.*/logs/\(.*\)\.\*/$|\1|p' <<<"$said"
    #? endif
}

#? endif
#? if kind == "slurm"
name=$(date +%F) counts=() flags=() failed=() chain=1 before=''
#? else
name=$(date +%F) counts=() flags=() failed=()
#? endif
while (($#)); do
    case $1 in
        -h | --help) sed -n '/^#!/d; /^[^#]/q; s/^# \{0,1\}//p' benchmark/scaling.sh && exit ;;
        --name) name=${2:-} && shift $(($# > 1)) ;;
        #? if kind == "slurm"
        --parallel) chain='' ;;
        #? endif
        --) flags=("${@:2}") && break ;;
        *[!0-9]* | 0* | '') die "'$1' is no number of nodes: write 1 2 4 8, and options of all_reduce.py after --" ;;
        *) counts+=("$1") ;;
    esac
    shift
done
((${#counts[@]})) || die "no number of nodes: write for example bash benchmark/scaling.sh 1 2 4 8"
[[ $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || die "--name '$name': expected letters, digits and ._- only, as in --name before"
#? if kind == "slurm"
[[ -z ${SLURM_JOB_ID:-} ]] || die "this shell is inside job $SLURM_JOB_ID: call it from a login node"
#? endif
#? if limit
room=${#counts[@]} held=() # how many jobs the queue still takes, and which numbers of nodes are left
variable="{{ variable }}"
if [[ -z ${!variable:-} ]] && grep -q '^#SBATCH --{{ limit.question }}={{ limit.name }} ' slurm/submit_multinode.sh; then
    room="{{ limit.max_jobs }}"
fi
#? endif
folder=benchmark/results/$name
mkdir -p "$folder"
#? if kind == "runai"
if compgen -G "$folder/*.job" >/dev/null; then # set +u: env.sh may read what is not set
    # shellcheck source=/dev/null
    jobs=$(set +u && export PROJECT_DIR=$PWD && source runai/lib.sh benchmark/scaling.sh && list_jobs) || exit
fi
#? endif
#? if kind == "slurm"
for file in "$folder"/*.job; do # new jobs wait for all that were submitted before
    if [[ -n $chain && -f $file ]] && job=$(<"$file") && unfinished "$job"; then
        before+=:$job
    fi
done
#? endif
for nodes in "${counts[@]}"; do
    base=$folder/nodes-$nodes
    #? if kind == "local"
    if [[ -f $base.json ]]; then
        echo "nodes $nodes: $base.json is there"
    else
        NNODES=$nodes bash local/submit.sh benchmark/all_reduce.py "${flags[@]}" --json "$base.json" || failed+=("$nodes")
    fi
    #? else
    job=$(cat "$base.job" 2>/dev/null) || job=''
    if [[ -n $job ]] && unfinished "$job"; then # asked before the file is looked for, as it may end in between
        echo "nodes $nodes: job $job waits or runs"
    elif [[ -f $base.json ]]; then
        echo "nodes $nodes: $base.json is there" && continue
    #? if limit
    elif ((room <= 0)); then
        held+=("$nodes") && continue
    #? endif
    elif job=$(submit) && [[ -n $job ]]; then
        echo "nodes $nodes: job $(tee "$base.job" <<<"$job")"
        #? if kind == "slurm"
        [[ -z $chain ]] || before=:$job
        #? endif
    else
        failed+=("$nodes") && continue
    fi
    #? if limit
    room=$((room - 1))
    #? endif
    #? endif
done
echo "report, in $PWD: python3 benchmark/report.py {{ "benchmark/published.csv " if site_facts(cookiecutter.site).all_reduce }}$folder"
#? if limit
((${#held[@]} == 0)) ||
    echo "nodes ${held[*]}: not submitted, as {{ limit.name }} takes {{ limit.max_jobs }} of your jobs at a time;" \
        "call this again with --name $name when one has ended, or name another queue, {{ variable }}=NAME" >&2
#? endif
if ((${#failed[@]})); then
    echo "benchmark/scaling.sh: failed with these numbers of nodes: ${failed[*]}. See above, then call it again with --name $name" >&2
    exit 1
fi
#? if limit
((${#held[@]} == 0)) # the exit code
#? endif
