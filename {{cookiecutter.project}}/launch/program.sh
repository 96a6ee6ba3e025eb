#!/usr/bin/env bash
# Finds the program of a run, and refuses what cannot run before it waits in a queue.
#
#   find_program [WORD [ARGUMENT …]]     prints the program's path, or -m; without a word, that of check/ranks.py
#   starts_its_own_ranks FILE            whether the program calls torch.multiprocessing.spawn by itself
#   make_logs_folder                     makes logs/, which git does not list
#
# The submit scripts read this file. Each of them has a function `die`, which prints a sentence and exits with code 2.
# A program is a Python file, since torchrun and the other launchers start Python. That includes console scripts, as pip
# writes them: their first line names a Python. This file works with the bash of macOS (3.2).

# Looks for the program in the current folder, then in the project.
find_program() {
    local file=${1:-$PROJECT_DIR/check/ranks.py}
    [[ -n ${1:-} || -f $file ]] || program_not_found check/ranks.py
    if [[ $file == -m ]]; then
        [[ -n ${2:-} ]] || die "no program '-m': name a module, as in -m package.module"
        echo -m
        return
    fi
    refuse_launch_command "$file" "${@:2}"
    [[ -e $file ]] || file=$PROJECT_DIR/$1
    [[ -e $file ]] || program_not_found "$1"
    refuse_other_than_python "$file"
    echo "$file"
}

# Refuses commands that start Python or the ranks, and names the program that follows them.
refuse_launch_command() {
    local command=${1##*/} program
    case $command in
        python | python[0-9]*) command+=" is started by the launcher" ;;
        torchrun | accelerate | deepspeed | horovodrun | srun | mpirun | mpiexec)
            command+=" is not needed: the submit script starts the ranks" ;;
        *) return 0 ;;
    esac
    program=$(program_among "${@:2}")
    die "no program '$1': $command; name the program alone, as in ${program:-pi/pi.py or -m package.module}"
}

# Prints the first argument that is a file, or "-m MODULE".
program_among() {
    while (($#)); do
        [[ $1 != -m ]] || { echo "-m ${2:-}" && return; }
        [[ ! -f $1 && ! -f $PROJECT_DIR/$1 ]] || { echo "$1" && return; }
        shift
    done
}

# Says that there is no such file, and what may have been meant.
program_not_found() {
    local folders=$PWD path=${1//.//} command
    [[ $PWD -ef $PROJECT_DIR ]] || folders="$PWD nor in $PROJECT_DIR"
    command=$(type -P -- "$1" || true)
    [[ -n $command || ! -f $PROJECT_DIR/.venv/bin/$1 ]] || command=$PROJECT_DIR/.venv/bin/$1
    if [[ -f $path.py || -f $path/__main__.py ]]; then
        die "no program '$1' in $folders: the module is -m $1"
    elif [[ -n $command ]] && is_python "$command"; then
        die "no program '$1' in $folders: to run the installed command $command, name its file, as in \"\$(command -v $1)\""
    elif [[ -n $command ]]; then
        die "no program '$1' in $folders: $command is no Python program, and the launcher starts Python"
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
    IFS= read -r first <"$file" || true
    case $file:$first in
        *:$'\x7fELF'*)
            die "'$file' is a binary, and the launcher starts Python: run it with srun or mpirun in a script of its own" ;;
        *.ipynb:*)
            die "'$file' is a notebook: make a program of it with jupyter nbconvert --to script '$file'" ;;
        *:'#!'*)
            die "'$file' is for '${first#??}', and the launcher starts Python: name the Python program that it calls; modules and variables belong into env.sh" ;;
    esac
    die "'$file' is not a Python program by its name: name one, or rename it to NAME.py"
}

# Whether Python can run a file, by its name and its first line.
is_python() {
    local first='' second='' start='^#! *([^ ]*/)?(env +(-S +)?)?([^ ]*/)?(python|pypy)'
    case $1 in
        *.py | *.pyc | *.pyz) return 0 ;;
    esac
    { IFS= read -r first && IFS= read -r second; } 2>/dev/null <"$1" || true
    # Where the path of its Python is long or has a space, pip writes a script that sh hands to Python
    # (https://github.com/pypa/distlib, scripts.py; 2026-11-22).
    [[ ! $first =~ $start && $second != "'''exec' "* ]] || return 0
    case $first in
        '#!'* | $'\x7fELF'*) return 1 ;;
    esac
    case ${1##*/} in # without a first line that says it: a program by its name, unless that is another kind's
        *.sh | *.bash | *.zsh | *.csh | *.slurm | *.sbatch | *.job) return 1 ;;
        *.ipynb | *.yaml | *.yml | *.json | *.toml | *.cfg | *.ini | *.txt | *.md | *.csv) return 1 ;;
    esac
}

# Whether a program starts its ranks itself, one per GPU of a node: it calls torch.multiprocessing.spawn, as the ImageNet
# example of PyTorch does, or detectron2's launch, and does not ask torchrun for its LOCAL_RANK.
# torchrun sets TORCHELASTIC_USE_AGENT_STORE, and then torch lets no rank host the store, whatever address the program
# chose: all ranks wait as clients until the timeout of init_process_group, 10 to 30 minutes
# (torch 2.13; https://github.com/pytorch/pytorch/pull/191989, 2026-08-03). srun does not set it.
starts_its_own_ranks() {
    [[ -f $1 ]] && ! grep -qE 'LOCAL_RANK|--local[-_]rank' "$1" || return 1
    grep -qE '^[^#]*(mp|multiprocessing)\.spawn\(|multiprocessing import spawn' "$1" && return
    grep -q 'from detectron2' "$1" && grep -qE '^ *launch\(' "$1"
}

# Makes the folder of the ranks' logs. Its .gitignore hides it from git in a project that ignores other names.
make_logs_folder() {
    mkdir -p "$PROJECT_DIR/logs" && [[ -w $PROJECT_DIR/logs ]] || return
    [[ -e $PROJECT_DIR/logs/.gitignore ]] || echo '*' >"$PROJECT_DIR/logs/.gitignore"
}
