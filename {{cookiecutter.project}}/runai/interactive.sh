#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# Pods that wait for you to enter them: {{ site.title }}.
#
#   bash runai/interactive.sh                        NNODES pods of env.sh, for two hours
#   NNODES=1 bash runai/interactive.sh 00:30:00      one, for half an hour ([D-]HH:MM:SS); then it ends by itself
#   bash runai/interactive.sh --dry-run              prints the command for runai instead
#   bash runai/interactive.sh --delete NAME          ends them now: GPUs that wait are charged too
#
# How to enter each pod and how to start a run in all of them is printed. What runs in a shell ends with the connection: tmux or nohup.

# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/submit_multinode.sh"

die() {
    echo "runai/interactive.sh: $*" >&2
    exit 2
}

dry='' time=02:00:00
for word in "$@"; do
    case $word in
        -h | --help)
            sed -n '/^#!/d; /^$/q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit
            ;;
        --delete)
            [[ $# == 2 && $1 == --delete ]] || die "--delete wants the name of one job, and nothing else"
            # shellcheck source=/dev/null
            source "$PROJECT_DIR/env.sh" && find_client
            [[ $RUNAI_CLI == v2 ]] || exec runai delete job "$2" -p "$RUNAI_PROJECT"
            exec runai workload delete "$2" -y -p "$RUNAI_PROJECT"
            ;;
        --dry-run) dry=1 ;;
        *) time=$word ;;
    esac
done
[[ $time =~ ^(([0-9]+)-)?([0-9]+):([0-5][0-9]):([0-5][0-9])$ ]] || die "'$time': expected a time [D-]HH:MM:SS, such as 02:00:00"
seconds=$(((10#0${BASH_REMATCH[2]} * 24 + 10#${BASH_REMATCH[3]}) * 3600 + 10#${BASH_REMATCH[4]} * 60 + 10#${BASH_REMATCH[5]}))
((seconds)) || die "'$time': expected a time above zero"
(($# <= 1 || $# == 2 && ${#dry})) || die "'$*': expected one time, and --dry-run"

prepare
[[ -z $RUN_AS_UID ]] || forwarded+=(HOME=/tmp) # the image's belongs to another user
name=$(job_name "$JOB_PREFIX-shell")
assemble "$name" sleep $seconds
hand_over "$name"
[[ -z $dry ]] || exit 0

echo
if ((NNODES == 1)); then
    echo "In the shell:  bash $POD_PROJECT_DIR/runai/pod.sh check/ranks.py"
else
    pods="$name-master-0"
    for ((worker = 0; worker < NNODES - 1; worker++)); do
        pods+=" $name-worker-$worker"
    done
    echo "Shells, one for each pod:"
    for pod in $pods; do
        echo "  ${verb:?} bash $name -p $RUNAI_PROJECT --pod $pod"
    done
    echo "A run, once all pods run: type the same in every shell (those that come first wait for the others),"
    echo "  bash $POD_PROJECT_DIR/runai/pod.sh check/ranks.py"
    echo "or start all from here:"
    echo "  for pod in $pods; do $verb exec $name -p $RUNAI_PROJECT --pod \$pod -- bash $POD_PROJECT_DIR/runai/pod.sh check/ranks.py & done; wait"
fi
echo "They end by themselves after $time, or now: bash runai/interactive.sh --delete $name"
