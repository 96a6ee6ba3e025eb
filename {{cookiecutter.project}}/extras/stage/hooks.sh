#!/usr/bin/env bash
# Copies the environment and data to the nodes' own disks, with STAGE=1 and STAGE_DATA.
# launch/moments.sh calls the functions stage_MOMENT.
#
# pack.py packs the files when a job is submitted. STAGE_PACKS is what it prints: a line for each
# pack. A requeued job uses them again. enter.py stands before the launcher on each node: it makes the
# copies, and has the ranks load them.
# shellcheck disable=SC2034,SC2153,SC2154 # variables of env.sh and of the scripts that read this

stage_words=() # enter.py's words for the folder and the packs

# Refuses settings that cannot work.
stage_check_settings() {
    local name
    for name in STAGE KEEP_STAGE; do
        [[ ${!name} == [01] ]] || die "$name='${!name}': expected 1 or 0"
    done
    stage_is_wanted || return 0
    # A script's first line cannot name a Python whose path has a space.
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

# On a login node: packs the files before the job is submitted.
stage_before_submit() {
    stage_is_wanted || return 0
    local VENV=${VENV:-} # env.sh sets it, and has not been read in this shell
    # shellcheck source=/dev/null
    VENV=$(source "$PROJECT_DIR/env.sh" >/dev/null && echo "$VENV") || return
    STAGE_PACKS=$(stage_pack) || return
    export STAGE_PACKS
}

# Sends the packs to the nodes, and puts enter.py before the launcher. Another start of the ranks, on
# other nodes, comes here again.
stage_before_launch() {
    local packs way=--use
    stage_is_wanted || return 0
    [[ -z $STAGE_DATA ]] || export STAGE_DATA # for ranks without a copy
    if ! stage_find_packs; then
        say "the files could not be packed, see above: the ranks read them where they are"
        return 0
    fi
    echo "$STAGE_PACKS" >"$RUN_DIR/staged.txt"
    ((${#hosts[@]} == 1)) || stage_send_packs # with one node there is nothing to send
    mapfile -t packs < <(tr '\t' '\n' <<<"$STAGE_PACKS")
    stage_words=("$STAGE_DIR" "${packs[@]}")
    [[ $KEEP_STAGE == 0 ]] || way=--keep
    stage_choose_python
    rank_prefix+=("${stage_enter[@]}" "$way" "${stage_words[@]}" --)
}

# Removes the copies from the nodes' disks, unless KEEP_STAGE=1, or another job uses them. A job that
# is told to end has no time for it: a later job removes them.
stage_job_end() {
    ((${#stage_words[@]})) && [[ $KEEP_STAGE == 0 && $stop != cancelled ]] || return 0
    # No step starts on all nodes if one of them has died.
    stage_on_nodes "${nodes[@]}" -- "${stage_enter[@]}" --remove "${stage_words[@]}" &>/dev/null ||
        stage_on_nodes "${hosts[@]}" -- "${stage_enter[@]}" --remove "${stage_words[@]}" &>/dev/null ||
        say "copies may be left in $STAGE_DIR of the nodes: the next job with STAGE=1 removes them"
}

# Whether anything is to be copied to the nodes.
stage_is_wanted() { [[ $STAGE == 1 || -n $STAGE_DATA ]]; }

# ---- packs ---------------------------------------------------------------------------------------

# Packs what changed since it was packed last, and prints a line for each pack.
stage_pack() {
    local python what=()
    python=$(type -P python3) ||
        die "STAGE=1 and STAGE_DATA pack with python3, which was not found on this machine:" \
            "load a module that has it, or set STAGE=0 and STAGE_DATA="
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the packed files go:" \
            "copy the project to a folder that is yours"
    [[ $STAGE == 0 ]] || what+=(--environment "$VENV")
    [[ -z $STAGE_DATA ]] || what+=(--data "$STAGE_DATA")
    "$python" -B "$PROJECT_DIR/extras/stage/pack.py" \
        "$(realpath "$PROJECT_DIR/logs")/staged-$UID" "${what[@]}"
}

# Sets STAGE_PACKS. A job that sbatch alone has submitted packs the files now.
stage_find_packs() {
    stage_has_packs || STAGE_PACKS=$(stage_pack) || return
    export -n STAGE_PACKS # or a job that this one submits could take them for its own
}

# Whether STAGE_PACKS has the environment and the data of this job, and this node can unpack them: a
# node without zstd packs them anew, as pack.py then does without. STAGE_PACKS could also be that of
# another job, in whose shell this one was submitted.
stage_has_packs() {
    local pack paths
    [[ -n ${STAGE_PACKS:-} ]] || return
    while read -r pack; do
        [[ -r $pack ]] || return
        [[ $pack != *.zst ]] || type -P zstd >/dev/null || return
    done < <(cut -f 3 <<<"$STAGE_PACKS")
    paths=$(cut -f 4 <<<"$STAGE_PACKS")
    [[ $STAGE == 0 ]] || grep -qxF -- "$(realpath "$VENV")" <<<"$paths" || return
    [[ -z $STAGE_DATA ]] || grep -qxF -- "$(realpath "$STAGE_DATA")" <<<"$paths"
}

# ---- the nodes -----------------------------------------------------------------------------------

# Sends the packs of which this node has no copy. Another node may lack one that this node has, as
# with KEEP_STAGE=1, or if it has replaced a node: it reads the pack from the shared file system.
stage_send_packs() {
    local kind key pack path name folder=$STAGE_DIR/staged-$UID
    local -A missing=()
    while IFS=$'\t' read -r kind key pack path name; do
        [[ -d $folder/$key ]] || missing[$key]=$pack
    done <<<"$STAGE_PACKS"
    ((${#missing[@]})) || return 0
    if ! stage_on_nodes "${nodes[@]}" -- bash -c "$STAGE_MAKE_FOLDER" _ "$folder" &>/dev/null; then
        say "not all nodes could make $folder: they read the packs from the shared file system"
        return 0
    fi
    for key in "${!missing[@]}"; do
        sbcast --force "${missing[$key]}" "$folder/$key.sent-$SLURM_JOB_ID" </dev/null ||
            say "sbcast could not send ${missing[$key]}: the nodes read it from the shared file system"
    done
}

# Makes a folder that other users cannot enter, as own_folder in enter.py does. sbcast gives a file
# the mode of the original, so that only the folder keeps other users out.
# shellcheck disable=SC2016 # the shell on the node expands $1
STAGE_MAKE_FOLDER='mkdir -m 700 "$1"; [[ -d $1 && -O $1 && ! -L $1 ]] && chmod 700 "$1"'

# Runs a command once on each of these nodes. Arguments: nodes, --, the command.
stage_on_nodes() {
    local list=() on
    while [[ $1 != -- ]]; do
        list+=("$1")
        shift
    done
    on=$(IFS=, && echo "${list[*]}")
    timeout --kill-after=5 60 srun --overlap --export=ALL --input=none --nodelist="$on" \
        --nodes=${#list[@]} --ntasks=${#list[@]} --ntasks-per-node=1 "${@:2}"
}

# Sets stage_enter, the command that runs enter.py on a node. The environment's Python lies on the
# shared file system, so that of the system is better. -I: it ignores PYTHONPATH and the like, which
# are meant for the program.
stage_choose_python() {
    local python=/usr/bin/python3
    [[ -x $python ]] || python=$(type -P python3) || python=$PYTHON
    stage_enter=("$python" -I -B "$PROJECT_DIR/extras/stage/enter.py")
}
