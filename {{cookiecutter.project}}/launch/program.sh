#!/usr/bin/env bash
# Finds the program of a run. Before the job is submitted it refuses a file that Python cannot run.
# It does not check modules.
#
#   find_program [WORD [ARGUMENT …]]   prints the program's path, or -m for a module; without
#                                      a WORD, the path of check/ranks.py. If there is no such
#                                      program, only the subshell of $(…) ends, so write
#                                      program=$(find_program "$@") || exit
#   starts_its_own_ranks FILE          whether the program calls torch.multiprocessing.spawn itself
#   has_own_endpoint FILE              whether the program chooses where its ranks meet
#   make_logs_folder                   makes logs/, which git does not list
#   print_usage FILE                   prints the comment at the top of a script
#   refuse_windows_line_ends FILE      refuses a file that was saved on Windows
#   die MESSAGE                        prints a message and ends the script with exit code 2
#   say MESSAGE                        prints a message with the time
#
# A script sets PROJECT_DIR, the project's folder, and reads this file with its own name, which
# stands in front of its messages. With the bash of macOS (3.2) all functions but say work.
#
# A program is a Python file, since torchrun and the other launchers start Python. Console scripts,
# as pip writes them, are Python files too: their first line names a Python.
script=$1

# Puts this bash into the state that the scripts are written for, and keeps what would disturb others
# from those that it starts. A job inherits it from the user's shell by --export=ALL: options of bash
# (SHELLOPTS, POSIXLY_CORRECT), a file that each bash reads first (BASH_ENV), and functions. An
# exported function goes if it hides a program: `module` stays, and `grep` with colors does not.
start_in_known_state() {
    local attributes name
    export -n SHELLOPTS BASHOPTS
    unset POSIXLY_CORRECT CDPATH GLOBIGNORE
    # The bash of a job has read it by now. On a login node it stays: it may define `module`.
    [[ -z ${SLURM_JOB_ID:-} ]] || unset BASH_ENV
    set +o posix +o noglob +o noclobber +o nounset +o errexit +o pipefail
    shopt -u nullglob failglob nocaseglob nocasematch dotglob
    IFS=$' \t\n'
    while read -r _ attributes name; do
        [[ $attributes != *x* ]] || ! type -P "$name" >/dev/null || unset -f "$name"
    done < <(declare -F)
}
start_in_known_state

# Refuses a file of the project whose lines end as on Windows. bash would take the invisible
# character at the end of each line for a part of the last word.
refuse_windows_line_ends() {
    ! grep -q $'\r$' "$1" ||
        die "$1 has the line ends of Windows, which bash cannot read: perl -pi -e 's/\r\$//' '$1'"
}

die() {
    echo "$script: $*" >&2
    exit 2
}

# It does not call date: a requeue ends each process that slurm/submit_multinode.sh starts.
say() { printf '%(%F %T)T %s\n' -1 "$*"; }

# Looks for the program in the current folder, then in the project.
find_program() {
    local name=${1-check/ranks.py} file
    [[ -n $name ]] || die "no program '': name one, as in program.py or -m package.module"
    if [[ $name == -m ]]; then
        [[ -n ${2:-} ]] || die "no program '-m': name a module, as in -m package.module"
        echo -m
        return
    fi
    # Python and other programs would take it for an option.
    [[ $name != -* ]] || die "no program '$name': write ./$name if a file has this name"
    refuse_launch_command "$@"
    file=$name
    if (($# == 0)) || [[ ! -e $name && $name != /* ]]; then
        file=$PROJECT_DIR/$name
    fi
    [[ -e $file ]] || program_not_found "$name"
    refuse_other_than_python "$file"
    echo "$file"
}

# Refuses commands that start Python or the ranks, and names the program that the user meant.
refuse_launch_command() {
    local command reason program
    (($#)) || return 0 # the default program
    command=${1##*/}
    program=$(program_among "$@")
    if [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then
        die "no program '$1': put variables before this command, as in $1 bash $script …"
    elif [[ $command =~ ^python[0-9.]*$ ]]; then
        reason="$command is started by the launcher"
    elif [[ $command =~ ^(torchrun|accelerate|deepspeed|horovodrun|srun|mpirun|mpiexec)$ ]]; then
        reason="$command is not needed: the submit script starts the ranks"
    elif [[ ! -e $1 && ! -e $PROJECT_DIR/$1 && -n $program && $1 != *.py ]]; then
        reason="$command is not needed: env.sh names the environment or the container (RUNTIME, VENV)"
    elif [[ $command =~ ^(ba|z|k|c|)sh$ ]]; then
        reason="$command runs no Python; put what the script sets into env.sh"
    else
        return 0
    fi
    die "no program '$1': $reason;" \
        "name only the program and its arguments, as in ${program:-program.py or -m package.module}"
}

# Prints the program that a launch command starts: the first argument that is a Python file, else
# "-m MODULE".
program_among() {
    local command=${1##*/} word
    for word in "${@:2}"; do
        if [[ $word == *.py && (-f $word || -f $PROJECT_DIR/$word) ]]; then
            echo "$word"
            return
        fi
    done
    # -m has another meaning to srun and mpirun.
    [[ $command =~ ^(python[0-9.]*|torchrun|accelerate|deepspeed)$ ]] || return 0
    while (($#)); do
        if [[ $1 == -m && ${2:-} =~ ^[A-Za-z_][A-Za-z0-9_.]*$ && $2 != torch.distributed.* ]]; then
            echo "-m $2"
            return
        fi
        shift
    done
}

# Says that there is no such file, and which file, module or command the user may have meant.
program_not_found() {
    local name=$1 folders=$PWD module_path=${1//.//} command
    [[ $name != /* ]] || die "no program '$name': there is no such file"
    [[ $PWD -ef $PROJECT_DIR ]] || folders="$PWD nor in $PROJECT_DIR"
    command=$(type -P -- "$name" || true)
    if [[ -f $name.py || -f $PROJECT_DIR/$name.py ]]; then
        die "no program '$name' in $folders: name $name.py"
    elif [[ -f $module_path.py || -f $module_path/__main__.py ]]; then
        die "no program '$name' in $folders: to run the module, write -m $name"
    elif [[ -n $command ]] && is_python "$command"; then
        die "no program '$name' in $folders: to run the installed command $command on each rank," \
            "name its file, as in \"\$(command -v $name)\"; if it starts ranks itself, with" \
            "LAUNCHER=srun NPROC_PER_NODE=1"
    elif [[ -n $command ]]; then
        die "no program '$name' in $folders: $command is no Python program," \
            "and the launcher starts Python"
    elif [[ -f $PROJECT_DIR/.venv/bin/$name ]]; then
        die "no program '$name' in $folders: to run the installed command, name its file," \
            "$PROJECT_DIR/.venv/bin/$name"
    fi
    die "no program '$name' in $folders:" \
        "name a Python file or a module, as in program.py or -m package.module"
}

# Refuses a file that Python cannot run, which would fail only after the wait in the queue.
refuse_other_than_python() {
    local file=$1 first_line=''
    [[ ! -d $file ]] ||
        die "'$file' is a folder: name the program in it, or a package as -m package"
    [[ -r $file ]] || die "cannot read '$file': chmod u+r it, or name another program"
    [[ -s $file ]] || die "'$file' is empty: save the program, or name another one"
    if is_python "$file"; then
        return 0
    fi
    if is_binary "$file"; then
        die "'$file' is a binary, and the launcher starts Python:" \
            "run it with srun or mpirun in a script of its own"
    fi
    if [[ $file == *.ipynb ]]; then
        die "'$file' is a notebook: make a program of it with jupyter nbconvert --to script '$file'"
    fi
    IFS= read -r first_line <"$file" || true
    if [[ $first_line == '#!'* ]]; then
        die "'$file' is for '${first_line#??}', and the launcher starts Python:" \
            "name the Python program that it calls; put modules and variables into env.sh"
    fi
    die "'$file' has not the name of a Python program: name another one, or rename it to NAME.py"
}

# Whether Python can run a file. A suffix of Python decides, else the first line, else any other
# suffix. A text without a suffix counts as Python. Python also runs archives that have a
# __main__.py: *.pyz, *.pex and *.zip.
is_python() {
    local file=$1 first_line='' second_line=''
    case $file in
        *.py | *.pyc | *.pyz | *.pex | *.zip) return 0 ;;
    esac
    if is_binary "$file"; then
        return 1
    fi
    { IFS= read -r first_line && IFS= read -r second_line; } 2>/dev/null <"$file" || true
    if [[ $first_line == '#!'* ]]; then
        names_python "$first_line" "$second_line"
        return
    fi
    case ${file##*/} in
        *.sh | *.bash | *.zsh | *.csh | *.slurm | *.sbatch | *.job) return 1 ;;
        *.R | *.jl | *.c | *.cc | *.cpp | *.cu) return 1 ;;
        *.yaml | *.yml | *.json | *.toml | *.cfg | *.ini) return 1 ;;
        *.ipynb | *.txt | *.md | *.csv) return 1 ;;
    esac
    return 0
}

# Whether the first two lines of a script name a Python, as in "#!/usr/bin/env -S python3 -u".
names_python() {
    local first_line=$1 second_line=$2
    local maybe_path='([^ ]*/)?' maybe_env='(env +(-S +)?)?'
    local pattern="^#! *$maybe_path$maybe_env$maybe_path(python|pypy)"
    if [[ $first_line =~ $pattern ]]; then
        return 0
    fi
    # Where the path of its Python is long or has a space, pip writes a script that sh passes to
    # Python (https://github.com/pypa/distlib, scripts.py; 2026-11-22).
    [[ $second_line == "'''exec' "* ]]
}

# Whether a file has a byte 0 among its first thousand, as no text has.
is_binary() {
    local bytes text
    bytes=$(head -c 1000 "$1" 2>/dev/null | wc -c)
    text=$(head -c 1000 "$1" 2>/dev/null | tr -d '\0' | wc -c)
    ((text < bytes))
}

# Whether a program starts its ranks itself, one per GPU of a node: it calls
# torch.multiprocessing.spawn, as the ImageNet example of PyTorch does, or detectron2's launch. A
# program that reads torchrun's LOCAL_RANK does not.
#
# A program that starts its own ranks must not run under torchrun. torchrun sets
# TORCHELASTIC_USE_AGENT_STORE, and then torch makes each rank a client of the store at the address
# that the program chose, and none its server. All ranks wait until the timeout of
# init_process_group, 10 to 30 minutes (torch 2.13; https://github.com/pytorch/pytorch/pull/191989,
# 2026-08-03).
starts_its_own_ranks() {
    local file=$1
    if [[ ! -f $file ]] || grep -qE 'LOCAL_RANK|--local[-_]rank' "$file"; then
        return 1
    fi
    # A call of mp.spawn or an import of spawn, neither in a comment nor as part of another name.
    local before='^([^#]*[^#.A-Za-z0-9_])?' module='(mp|(torch\.)?multiprocessing)'
    local spawn='(spawn|start_processes)'
    local imports='torch\.multiprocessing import ([^#]*[^#A-Za-z0-9_])?'
    if grep -qE "$before$module\.$spawn\(" "$file"; then
        return 0
    fi
    if grep -qE "$before$imports$spawn([^A-Za-z0-9_]|$)" "$file"; then
        return 0
    fi
    grep -q 'from detectron2' "$file" && grep -qE '^ *launch\(' "$file"
}

# Whether each call of init_process_group in a program names an address of its own, as in
# init_method="tcp://node1:29500". Under torchrun all ranks are then clients of a store that no rank
# opens, for the reason above, and wait for as long.
has_own_endpoint() {
    local file=$1 calls addresses
    [[ -f $file ]] && ! grep -q TORCHELASTIC_USE_AGENT_STORE "$file" || return
    calls=$(grep -cE '^[^#]*init_process_group\(' "$file")
    addresses=$(grep -cE "^[^#]*init_method *= *[fr]?[\"']tcp://" "$file")
    ((calls > 0 && calls == addresses))
}

# Makes the folder of the ranks' logs. Its own .gitignore hides the logs from git, also in a project
# whose .gitignore does not name logs/.
make_logs_folder() {
    local logs=$PROJECT_DIR/logs
    mkdir -p "$logs" || return
    [[ -w $logs ]] || return
    if [[ ! -e $logs/.gitignore ]]; then
        echo '*' >"$logs/.gitignore"
    fi
}

# Prints the usage of a script: the comment at its top.
print_usage() { sed -n '1d; /^#SBATCH/q; /^#/!q; s/^# \{0,1\}//p' "$1"; }
