#!/usr/bin/env bash
# Software and data on the nodes' own disks, with STAGE=1 and STAGE_DATA. These functions of
# slurm/submit_multinode.sh have launch/stage/pack.py pack the files, and launch/stage/enter.py copy
# the packs to each node. slurm/lib.sh reads this file.
#
# STAGED is the list that pack.py has written. It is made when the job is submitted, and a requeued
# job uses the list again. stage_exec is the command that stands before the ranks' launcher.
# shellcheck disable=SC2034,SC2153,SC2154 # variables of env.sh and of the scripts that read this

stage_exec=()

# Whether anything is to be copied to the nodes.
wants_staging() { [[ $STAGE == 1 || -n $STAGE_DATA ]]; }

# Refuses settings that cannot work.
check_stage_settings() {
    local name
    for name in STAGE KEEP_STAGE; do
        [[ ${!name} == [01] ]] || die "$name='${!name}': expected 1 or 0"
    done
    wants_staging || return 0
    [[ $STAGE_DIR == /* && $STAGE_DIR != *[[:space:]]* ]] ||
        die "STAGE_DIR='$STAGE_DIR': expected an absolute path on the nodes' disks, without spaces"
    [[ -z $STAGE_DATA || -r $STAGE_DATA ]] ||
        die "STAGE_DATA='$STAGE_DATA': expected a file or a folder that can be read from $PWD"
    ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]} == 0)) ||
        die "STAGE=1 and STAGE_DATA need a run without a container: set RUNTIME=venv, or STAGE=0" \
            "and STAGE_DATA= (an image is one large file already)"
    [[ $STAGE == 0 || $RUNTIME == venv ]] ||
        die "STAGE=1 copies a virtual environment, and RUNTIME='$RUNTIME' has none:" \
            "set RUNTIME=venv and VENV, or STAGE=0"
}

# Packs what changed since it was packed last, and prints the list of packs.
pack_files() {
    local python
    python=$(type -P python3) ||
        die "STAGE=1 and STAGE_DATA pack with python3, which was not found on this machine:" \
            "load a module that has it, or set STAGE=0 and STAGE_DATA="
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the packed files go:" \
            "copy the project to a folder that is yours"
    set --
    [[ $STAGE == 0 ]] || set -- --environment "$VENV"
    [[ -z $STAGE_DATA ]] || set -- "$@" --data "$STAGE_DATA"
    "$python" -B "$PROJECT_DIR/launch/stage/pack.py" "$(realpath "$PROJECT_DIR/logs")/staged-$UID" "$@"
}

# On a login node: packs the files before the job is submitted. Exports STAGED.
pack_for_submission() {
    # In a shell of its own: the job sets up its software itself.
    STAGED=$(
        # shellcheck source=/dev/null
        source "$PROJECT_DIR/env.sh" >/dev/null
        ! wants_staging || pack_files
    ) || exit
    export STAGED
}

# In a job: sets STAGED to the list of packs. A job that sbatch alone has submitted packs the files
# now.
find_packs() {
    wants_staging || return 0
    if ! is_list_of_this_job; then
        STAGED=$(pack_files) || {
            say "the files could not be packed, see above: the ranks read them where they are"
            STAGED=''
        }
    fi
    export -n STAGED # or a job that this one submits could take it for its own
    export KEEP_STAGE
}

# Whether STAGED lists the environment and the data of this job, and is a file of yours. It could also
# be that of another job, in whose shell this one was submitted.
is_list_of_this_job() {
    [[ -r ${STAGED:-} && -O $STAGED ]] || return
    [[ $STAGE == 0 ]] || lists environment "$(realpath "$VENV")" || return
    [[ -z $STAGE_DATA ]] || lists 'file|data' "$(realpath "$STAGE_DATA")"
}

# Whether STAGED has a line of this kind for this path. Arguments: a pattern of kinds, the path.
lists() {
    local kind key pack path
    while IFS=$'\t' read -r kind key pack path; do
        [[ ! $kind =~ ^($1)$ || $path != "$2" ]] || return 0
    done <"$STAGED"
    return 1
}

# Prints what slurm/preflight.sh needs to check the space on the nodes' disks: STAGE_DIR, and for
# each pack the folder of its copy and the MiB that it needs. slurm/preflight_node.sh passes over
# copies that are there already.
space_for_packs() {
    local kind key pack path bytes
    [[ -n ${STAGED:-} ]] || return 0
    printf '%s' "$STAGE_DIR"
    while IFS=$'\t' read -r kind key pack path; do
        bytes=$(stat -L -c %s "$pack") || continue
        [[ $kind == file || $pack != *.tar ]] || bytes=$((bytes * 2)) # the tar, and its content
        printf ' %s:%s' "staged-$UID/$key" $((bytes / 1048576 + 1))
    done <"$STAGED"
}

# Sends the packs to the nodes' disks, and sets stage_exec. launch/stage/enter.py makes copies of
# the packs that sbcast has sent. If sbcast fails, each node reads the packs where they lie.
send_packs() {
    local python=/usr/bin/python3
    stage_exec=()
    [[ -n ${STAGED:-} ]] && wants_staging || return 0
    ((${#hosts[@]} == 1)) || send_missing_packs # with one node there is nothing to send
    [[ -x $python ]] || python=$(type -P python3) || python=$PYTHON
    # -I: it ignores PYTHONPATH and the like, which are meant for the program.
    stage_exec=("$python" -I -B "$PROJECT_DIR/launch/stage/enter.py" "$STAGE_DIR"
        --packs "$STAGED" --)
}

# Sends the packs of which the first node has no copy. With KEEP_STAGE=1 it may have one that another
# node lacks: that node reads the pack from the shared file system.
send_missing_packs() {
    local kind key pack path folder=$STAGE_DIR/staged-$UID
    local -A missing=()
    while IFS=$'\t' read -r kind key pack path; do
        [[ -d $folder/$key ]] || missing[$key]=$pack
    done <"$STAGED"
    ((${#missing[@]})) || return 0
    if ! on_all_nodes bash -c "$MAKE_OWN_FOLDER" _ "$folder" &>/dev/null; then
        say "not all nodes could make $folder: they read the packs from the shared file system"
        return
    fi
    for key in "${!missing[@]}"; do
        sbcast --force "${missing[$key]}" "$folder/$key.sent-$SLURM_JOB_ID" </dev/null ||
            say "sbcast could not send ${missing[$key]}: the nodes read it from the shared file system"
    done
}

# Makes a folder that other users cannot enter, as own_folder in launch/stage/enter.py does. sbcast
# gives a file the mode of the original, so that only the folder keeps other users out.
# shellcheck disable=SC2016 # the shell on the node expands $1
MAKE_OWN_FOLDER='mkdir -m 700 "$1"; [[ -d $1 && -O $1 && ! -L $1 ]] && chmod 700 "$1"'

# Runs a command once on each node of the job.
on_all_nodes() {
    timeout --kill-after=5 60 srun --overlap --export=ALL --input=none --ntasks-per-node=1 \
        --nodes=${#nodes[@]} --ntasks=${#nodes[@]} "$@"
}

# Removes the copies from the nodes' disks, unless KEEP_STAGE=1, or another job uses them. A job that
# is told to end has no time for it: a later job removes them.
remove_packs() {
    ((${#stage_exec[@]})) && [[ $KEEP_STAGE == 0 && -z ${cancelled:-} ]] || return 0
    on_all_nodes "${stage_exec[@]:0:${#stage_exec[@]}-1}" --remove &>/dev/null ||
        say "copies may be left in $STAGE_DIR of the nodes: the next job with STAGE=1 removes them"
}
