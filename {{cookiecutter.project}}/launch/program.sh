#!/usr/bin/env bash
# Finds the program of a run. Before the job is submitted it refuses a file that Python cannot run; modules are not checked.
#
#   find_program [WORD [ARGUMENT …]]     prints the program's path, or -m; without a word, that of check/ranks.py
#   starts_its_own_ranks FILE            whether the program calls torch.multiprocessing.spawn by itself
#   make_logs_folder                     makes logs/, which git does not list
#   print_usage FILE                     prints the comment at the top of a script
#
# The submit scripts read this file. Each of them has a function `die`, which prints a sentence and exits with code 2.
# A program is a Python file, since torchrun and the other launchers start Python. That includes console scripts, as pip
# writes them: their first line names a Python. This file works with the bash of macOS (3.2).

# Looks for the program in the current folder, then in the project.
find_program() {
    local file=${1:-$PROJECT_DIR/check/ranks.py}
    (($# == 0)) || [[ -n $1 ]] || die "no program '': name one, as in pi/pi.py or -m package.module"
    if [[ $file == -m ]]; then
        [[ -n ${2:-} ]] || die "no program '-m': name a module, as in -m package.module"
        echo -m
        return
    fi
    refuse_launch_command "$@"
    [[ -e $file || $file == /* ]] || file=$PROJECT_DIR/$file
    [[ -e $file ]] || program_not_found "${1:-check/ranks.py}"
    refuse_other_than_python "$file"
    echo "$file"
}

# Refuses commands that start Python or the ranks, and names the program that follows them.
refuse_launch_command() {
    local command=${1:-} reason program
    command=${command##*/}
    if [[ $command =~ ^python[0-9.]*$ ]]; then
        reason="$command is started by the launcher"
    elif [[ $command =~ ^(torchrun|accelerate|deepspeed|horovodrun|srun|mpirun|mpiexec)$ ]]; then
        reason="$command is not needed: the submit script starts the ranks"
    else
        return 0
    fi
    program=$(program_among "$@")
    die "no program '$1': $reason; name the program alone, as in ${program:-pi/pi.py or -m package.module}"
}

# Prints the program that a launch command starts: the first argument that is a Python file, else "-m MODULE" of Python.
program_among() {
    local command=${1##*/} word
    for word in "${@:2}"; do
        [[ $word != *.py || (! -f $word && ! -f $PROJECT_DIR/$word) ]] || { echo "$word" && return; }
    done
    [[ $command =~ ^(python[0-9.]*|torchrun|accelerate|deepspeed)$ ]] || return 0
    while (($#)); do
        if [[ $1 == -m && ${2:-} =~ ^[A-Za-z_][A-Za-z0-9_.]*$ && $2 != torch.distributed.* ]]; then
            echo "-m $2"
            return
        fi
        shift
    done
}

# Says that there is no such file, and what may have been meant.
program_not_found() {
    local folders=$PWD path=${1//.//} command
    [[ $1 != /* ]] || die "no program '$1': there is no such file"
    [[ $PWD -ef $PROJECT_DIR ]] || folders="$PWD nor in $PROJECT_DIR"
    command=$(type -P -- "$1" || true)
    if [[ -f $1.py || -f $PROJECT_DIR/$1.py ]]; then
        die "no program '$1' in $folders: its name is $1.py"
    elif [[ -f $path.py || -f $path/__main__.py ]]; then
        die "no program '$1' in $folders: the module is -m $1"
    elif [[ -n $command ]] && is_python "$command"; then
        die "no program '$1' in $folders: to run the installed command $command, name its file, as in \"\$(command -v $1)\""
    elif [[ -n $command ]]; then
        die "no program '$1' in $folders: $command is no Python program, and the launcher starts Python"
    elif [[ -f $PROJECT_DIR/.venv/bin/$1 ]]; then
        die "no program '$1' in $folders: to run the installed command, name its file, $PROJECT_DIR/.venv/bin/$1"
    fi
    die "no program '$1' in $folders: name the program alone, as in pi/pi.py or -m package.module"
}

# Refuses what Python cannot run; it would fail only after the wait in the queue.
refuse_other_than_python() {
    local file=$1 first=
    [[ ! -d $file ]] || die "'$file' is a folder: name the program in it, or a package as -m package"
    [[ -r $file ]] || die "cannot read '$file': chmod u+r it, or name another program"
    [[ -s $file ]] || die "'$file' is empty: save the program, or name another one"
    ! is_python "$file" || return 0
    ! is_binary "$file" ||
        die "'$file' is a binary, and the launcher starts Python: run it with srun or mpirun in a script of its own"
    IFS= read -r first <"$file" || true
    case $file:$first in
        *.ipynb:*)
            die "'$file' is a notebook: make a program of it with jupyter nbconvert --to script '$file'" ;;
        *:'#!'*)
            die "'$file' is for '${first#??}', and the launcher starts Python: name the Python program that it calls; put modules and variables into env.sh" ;;
    esac
    die "'$file' is not a Python program by its name: name one, or rename it to NAME.py"
}

# Whether Python can run a file, by its name and its first line.
is_python() {
    local first='' second='' start='^#! *([^ ]*/)?(env +(-S +)?)?([^ ]*/)?(python|pypy)'
    case $1 in
        *.py | *.pyc | *.pyz) return 0 ;;
    esac
    ! is_binary "$1" || return 1
    { IFS= read -r first && IFS= read -r second; } 2>/dev/null <"$1" || true
    # Where the path of its Python is long or has a space, pip writes a script that sh hands to Python
    # (https://github.com/pypa/distlib, scripts.py; 2026-11-22).
    [[ ! $first =~ $start && $second != "'''exec' "* ]] || return 0
    [[ $first != '#!'* ]] || return 1
    # The first line says nothing: a file is a program unless its suffix belongs to another kind of file.
    case ${1##*/} in
        *.sh | *.bash | *.zsh | *.csh | *.slurm | *.sbatch | *.job) return 1 ;;
        *.R | *.jl | *.c | *.cc | *.cpp | *.cu) return 1 ;;
        *.ipynb | *.yaml | *.yml | *.json | *.toml | *.cfg | *.ini | *.txt | *.md | *.csv) return 1 ;;
    esac
    return 0
}

# Whether a file begins as no text does: with a byte 0 among the first thousand.
is_binary() {
    local bytes text
    bytes=$(head -c 1000 "$1" 2>/dev/null | wc -c)
    text=$(head -c 1000 "$1" 2>/dev/null | tr -d '\0' | wc -c)
    ((text < bytes))
}

# Whether a program starts its ranks itself, one per GPU of a node: it calls torch.multiprocessing.spawn, as the ImageNet
# example of PyTorch does, or detectron2's launch, and does not ask torchrun for its LOCAL_RANK.
# Such a program must not run under torchrun. torchrun sets TORCHELASTIC_USE_AGENT_STORE, and then torch makes each rank a
# client of the store at the address that the program chose, and none its server. All ranks wait until the timeout of
# init_process_group, 10 to 30 minutes (torch 2.13; https://github.com/pytorch/pytorch/pull/191989, 2026-08-03).
starts_its_own_ranks() {
    [[ -f $1 ]] && ! grep -qE 'LOCAL_RANK|--local[-_]rank' "$1" || return 1
    grep -qE '^([^#]*[^#.A-Za-z0-9_])?(mp|(torch\.)?multiprocessing)\.(spawn|start_processes)\(' "$1" && return
    grep -qE 'torch\.multiprocessing import .*(spawn|start_processes)' "$1" && return
    grep -q 'from detectron2' "$1" && grep -qE '^ *launch\(' "$1"
}

# Makes the folder of the ranks' logs. Its own .gitignore keeps git from listing the logs, whatever the project's says.
make_logs_folder() {
    mkdir -p "$PROJECT_DIR/logs" && [[ -w $PROJECT_DIR/logs ]] || return
    [[ -e $PROJECT_DIR/logs/.gitignore ]] || echo '*' >"$PROJECT_DIR/logs/.gitignore"
}

# Prints the usage of a script: the comment at its top.
print_usage() { sed -n '1d; /^#SBATCH/q; /^#/!q; s/^# \{0,1\}//p' "$1"; }
