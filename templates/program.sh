# ---- the program ---------------------------------------------------------------------------------

# Sets program, a path or -m for a module, and arguments, the words after it. Arguments: the words as
# typed; without any, the program is DEFAULT_PROGRAM of env.sh. A file is looked up in the current
# folder, then in the project. Refuses what would fail only after the wait in the queue.
read_program() {
    if (($# == 0)); then set -- "$DEFAULT_PROGRAM"; fi
    program=$1 arguments=("${@:2}")
    case $program in
        -m)
            [[ -n ${2:-} ]] || die "no program '-m': name a module, as in -m package.module"
            return
            ;;
        -*)
            #? if site_facts(cookiecutter.site).kind == "slurm"
            die "no program '$program': name the program before its arguments, as in" \
                "program.py --lr 1e-3. In a job, options of sbatch have no effect. If a file has this" \
                "name, write ./$program"
            #? else
            die "no program '$program': name the program before its arguments, as in" \
                "program.py --lr 1e-3; if a file has this name, write ./$program"
            #? endif
            ;;
    esac
    refuse_launch_command "$program"
    if [[ ! -e $program && $program != /* ]]; then program=$PROJECT_DIR/$program; fi
    [[ -e $program ]] ||
        die "no program '$1', neither here nor in $PROJECT_DIR:" \
            "name a Python file or a module, as in program.py or -m package.module"
    refuse_other_than_python "$program"
}

# Refuses words that start Python or the ranks. Argument: the first word as typed.
# shellcheck disable=SC2154 # the submit script's name is script
refuse_launch_command() {
    local launch_command='^(python[0-9.]*|torchrun|accelerate|deepspeed|horovodrun|srun|mpirun|mpiexec|(ba|z)?sh)$'
    if [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*= && ! -e $1 ]]; then
        die "no program '$1': put variables before this command, as in $1 bash $script …"
    elif [[ ${1##*/} =~ $launch_command ]]; then
        die "no program '$1': the submit script starts Python and the ranks, with the software of" \
            "env.sh; name only the program and its arguments, as in program.py --lr 1e-3"
    fi
}

# Refuses a file that cannot be read, or that is no Python program by its name. Files without a suffix
# are programs, as those that pip installs. Python also runs archives that have a __main__.py. Argument:
# the file.
refuse_other_than_python() {
    if [[ -d $1 ]]; then
        die "'$1' is a folder: name the program in it, or a package as -m package"
    elif [[ ! -r $1 ]]; then
        die "cannot read '$1': chmod u+r it, or name another program"
    fi
    case ${1##*/} in
        *.py | *.pyz | *.pex | *.zip) ;;
        *.*)
            die "'$1' is no Python program by its name, and the launcher starts Python: name the program" \
                "that it calls and put modules and variables into env.sh, or rename it to NAME.py"
            ;;
    esac
}

# Whether a program starts its ranks itself, by torch.multiprocessing.spawn, as the ImageNet example of
# PyTorch does. A program that reads torchrun's LOCAL_RANK does not.
#
# torchrun sets TORCHELASTIC_USE_AGENT_STORE, with which torch makes each rank a client (torch
# 2.13; https://github.com/pytorch/pytorch/pull/191989, 2026-08-03). So no rank opens the store at the
# address that the program chose, and all wait until init_process_group times out, after 10 to 30
# minutes.
starts_its_own_ranks() {
    local before='^([^#]*[^#.A-Za-z0-9_])?' spawn='(spawn|start_processes)'
    [[ -f $1 ]] || return
    if grep -qE 'LOCAL_RANK|--local[-_]rank' "$1"; then return 1; fi
    grep -qE -e "$before(mp|(torch\.)?multiprocessing)\.$spawn\(" \
        -e "${before}torch\.multiprocessing import ([^#]*[^#A-Za-z0-9_])?$spawn([^A-Za-z0-9_]|\$)" "$1"
}
