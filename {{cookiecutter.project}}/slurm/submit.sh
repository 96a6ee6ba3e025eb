#!/usr/bin/env bash
#? set site = site_facts(cookiecutter.site)
# Steps of slurm/submit_multinode.sh that read its arguments, check them and submit the job. The job and
# slurm/run_here.sh take read_program and check_settings, too. slurm/project.sh and launch/extras.sh have
# what is called here and not defined here. The steps share:
#
#   variable             what it holds                                          set by
#   sbatch_options       options of sbatch, the words before --                 read_command_line
#   typed                the program and its arguments, as typed                read_command_line
#   job_script           the script that sbatch submits                         submit_multinode.sh
#   program, arguments   a path or -m, and the words after it                   read_program
#   save_seconds         SAVE_SECONDS of env.sh, which sbatch gets as --signal  check_submission
#   wrapper              what each task of LAUNCHER runs                        ranks.sh, or an extra
#
# At submission the steps from read_settings to require_torch run in a shell of their own, and only
# program and save_seconds come out of it. launch/moments.sh says which variables an extra may change.
# shellcheck disable=SC2034,SC2153,SC2154 # the scripts of slurm/ share variables

sbatch_options=() typed=() wrapper=()

# ---- the arguments -------------------------------------------------------------------------------

# Sets sbatch_options and typed. Arguments: those of the submit script.
read_command_line() {
    typed=("$@")
    if [[ ${1:-} != -* || $1 == -m ]]; then return; fi
    while (($#)) && [[ $1 != -- ]]; do
        sbatch_options+=("$1")
        shift
    done
    (($#)) ||
        die "options for sbatch end with --, as in:" \
            "bash slurm/submit_multinode.sh --nodes=4 -- program.py"
    typed=("${@:2}")
}

#? include "program.sh"
# ---- settings ------------------------------------------------------------------------------------

# Refuses settings that cannot work. Call it after load_software: a module may bring srun.
check_settings() {
    local name
    type -P srun >/dev/null ||
        die "srun was not found after MODULES of env.sh were loaded: add the module of Slurm itself"
    refuse_unknown_launcher
    for name in NPROC_PER_NODE CPU_RANKS_PER_NODE PREFLIGHT_TIMEOUT; do
        [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || die "$name='${!name}': expected a whole number above 0"
    done
    for name in SAVE_SECONDS MAX_REQUEUES; do
        [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || die "$name='${!name}': expected a whole number"
    done
    ((SAVE_SECONDS <= 65535)) ||
        die "SAVE_SECONDS=$SAVE_SECONDS: Slurm takes at most 65535 s for the time to save"
    [[ $PREFLIGHT =~ ^[01]$ ]] ||
        die "PREFLIGHT='$PREFLIGHT': expected 1, or 0 to start the ranks without a check of the nodes"
    [[ -z $STOP_SIGNAL || $STOP_SIGNAL =~ ^(USR1|USR2|TERM|INT|HUP)$ ]] ||
        die "STOP_SIGNAL='$STOP_SIGNAL': expected USR1, USR2, TERM, INT, HUP, or nothing"
    check_rank_prefix
    call_extras check_settings
    refuse_program_with_own_ranks
    make_logs_folder ||
        die "cannot write to $PROJECT_DIR/logs, where the ranks' logs go:" \
            "copy the project to a folder that is yours"
}

# Refuses a program that starts its own ranks, if torchrun, or one process per GPU, would start it: its
# ranks would wait for each other. NPROC_PER_NODE=2 or more says that it does not start them.
refuse_program_with_own_ranks() {
    if [[ -z ${NPROC_PER_NODE:-} || $NPROC_PER_NODE == 1 ]] && starts_its_own_ranks "$program"; then
        if [[ -z ${NPROC_PER_NODE:-} ]] || torchrun_starts_ranks; then
            die "$program starts its own ranks, so it has to be started once per node, and not by" \
                "torchrun: LAUNCHER=srun NPROC_PER_NODE=1 bash slurm/submit_multinode.sh $program"
        fi
    fi
}

# Whether torchrun starts the ranks: with LAUNCHER=torchrun, or with a launcher of an extra.
torchrun_starts_ranks() { [[ $LAUNCHER == torchrun || ${wrapper[*]} == */launch/torchrun.sh ]]; }

# Refuses a Python without torch, unless a container has the Python. It imports nothing: importing
# torch takes a second.
require_torch() {
    if ((${#CONTAINER_SRUN_ARGS[@]} + ${#CONTAINER_EXEC[@]})); then return; fi
    "$PYTHON" -c \
        'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
        #? if "venv" in site.runtimes
        die "$PYTHON has no torch: set MODULES or PYTHON in env.sh to one that has it, or set" \
            "RUNTIME=venv and build the environment with 'bash slurm/build_venv.sh'"
        #? else
        die "$PYTHON has no torch: set RUNTIME, MODULES or PYTHON in env.sh to one that has it"
        #? endif
}

# ---- checks before the queue ---------------------------------------------------------------------

# Refuses what would fail after hours in the queue. Sets program and save_seconds.
check_submission() {
    local checked
    refuse_options
    refuse_other_spelling
    # In a shell of its own, as the job reads env.sh and loads its modules itself. What they print goes
    # to standard error: with --parsable, standard output has the job's number alone.
    checked=$(
        {
            read_settings
            read_program "${typed[@]}"
            load_software
            check_settings
            require_torch
        } >&2
        printf '%s\n' "$SAVE_SECONDS" "$program"
    ) || exit
    { read -r save_seconds && IFS= read -r program; } <<<"$checked" ||
        die "the checks ended early: look for exit in what activates the environment, and in extras"
}

# Refuses options of sbatch with which the job would end without output or without the settings of
# this shell, or would not find its program.
refuse_options() {
    local option value folder
    value=$(option_of_job export '' "$job_script")
    [[ -z $value || $value =~ ^ALL(,|$) ]] ||
        die "--export=$value: the job needs the settings of this shell: --export=ALL,NAME=value"
    value=$(option_of_job chdir D "$job_script")
    [[ -z $value ]] || die "--chdir=$value: run this script in that folder instead: cd '$value'"
    for option in "output o" "error e"; do
        # shellcheck disable=SC2086 # two words
        value=$(option_of_job $option "$job_script")
        if [[ -z $value ]]; then continue; fi
        folder=$PWD
        if [[ $value == */* ]]; then folder=${value%/*} && folder=${folder:-/}; fi
        # Slurm 23.02 and later makes a missing folder, an older one ends the job without output. A
        # folder with % has its name in the job.
        if [[ -d $value ]]; then die "--${option% *}=$value is a folder: name a file, as in ${value%/}/%x-%j.out"; fi
        if [[ $folder != *%* && ! -w $folder && ! -w $value ]]; then # $value: /dev/null
            die "--${option% *}=$value: the job's output goes to '$folder', and you cannot write there:" \
                "mkdir -p '$folder', or submit from a folder of yours"
        fi
    done
}

# Refuses options of GPUs, tasks and signals that contradict the #SBATCH lines or a setting: an option
# replaces only the #SBATCH line of its own name. If GPUs are asked for in two spellings, Slurm 26.05
# refuses the job, and older versions may obey the #SBATCH line.
refuse_other_spelling() {
    local word value of_header=''
    if grep -q '^#SBATCH [^#]*--gpus-per-node' "$job_script"; then
        of_header=--gpus-per-node=N
    elif grep -qE '^#SBATCH [^#]*--gres[= ][^# ]*gpu' "$job_script"; then
        of_header=--gres=gpu:N
    fi
    # The value of an option may be the next word, as in --gres gpu:4.
    set -- "${sbatch_options[@]}"
    while (($#)); do
        word=$1 value=${1#*=}
        if [[ $word == "$value" ]]; then value=${2:-}; fi
        case $word in
            --gpus | --gpus=* | -G* | --gpus-per-[ts]* | --ntasks-per-gpu*)
                die "$word: ask for the GPUs of each node, ${of_header:---gpus-per-node=N}"
                ;;
            --gpus-per-node* | --gres | --gres=*)
                if [[ -n $of_header && ${word%%=*} != "${of_header%%=*}" && "$word $value" == *gpu* ]]; then
                    die "$word: the #SBATCH lines ask for GPUs with $of_header; use that"
                elif [[ $of_header == --gres* && "$word $value" != *gpu* ]]; then
                    die "$word: it replaces the #SBATCH line that asks for GPUs: add ,gpu:N to it"
                fi
                ;;
            -n* | --ntasks* | --tasks-per-node*)
                die "$word: the steps of the job set the number of tasks. Ranks on each node:" \
                    "NPROC_PER_NODE=N bash slurm/submit_multinode.sh …"
                ;;
            --signal*)
                die "$word: SAVE_SECONDS of env.sh is the time to save, as in" \
                    "SAVE_SECONDS=600 bash slurm/submit_multinode.sh …"
                ;;
        esac
        shift
    done
}

# Prints the value of an option of sbatch: as it was typed, else as in the #SBATCH lines. Arguments:
# its long name, its letter ('' if it has none), the script with these lines.
option_of_job() {
    local long=$1 letter=${2:-no letter} value='' header
    # xargs makes words of the lines, as a shell does: a value may have quotes.
    mapfile -t header < <(sed -n 's/ #.*//; s/^#SBATCH //p' "$3" | xargs printf '%s\n')
    set -- "${header[@]}" "${sbatch_options[@]}"
    while (($#)); do
        case $1 in
            "--$long" | "-$letter") value=${2:-} ;;
            "--$long="*) value=${1#*=} ;;
            "-$letter"*) value=${1#"-$letter"} ;;
        esac
        shift
    done
    echo "$value"
}

# ---- submit --------------------------------------------------------------------------------------

# Submits job_script. Returns the exit code of sbatch.
submit() {
    local code=0 environment
    environment=$(option_of_job export '' "$job_script") # ALL, or ALL,NAME=value
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        echo "This shell is in job $SLURM_JOB_ID, and this submits another job. To run the program in" \
            "job $SLURM_JOB_ID: bash slurm/run_here.sh PROGRAM.py" >&2
        unset_allocation
    fi
    sbatch --export="${environment:-ALL}" --signal="B:USR1@$save_seconds" "${sbatch_options[@]}" "$job_script" \
        "${typed[@]}" || code=$?
    ((code == 0)) || explain_refusal >&2
    return "$code"
}

# Unsets Slurm's variables of the allocation that this shell is in: the new job would take some of
# them for its own.
unset_allocation() {
    local name
    for name in "${!SLURM_@}"; do
        # The file with the cluster's configuration, and a token by which a user logs in.
        if [[ $name != SLURM_CONF && $name != SLURM_JWT ]]; then unset "$name"; fi
    done
}

# Prints where to look if sbatch has refused the job. With --wait, sbatch may also have the code of a
# job that failed.
explain_refusal() {
    echo "If sbatch refused the job: list your accounts with '{{ in_quotes(site.commands.get('accounts', '')) }}', your queues with '{{ in_quotes(site.commands.get('queues', '')) }}'"
}
