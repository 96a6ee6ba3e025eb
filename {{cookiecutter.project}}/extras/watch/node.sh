#!/usr/bin/env bash
# Prints, every few seconds, how busy this node is, and each rank of a job on it.
#
#   extras/watch/node.sh JOBID SECONDS               until it is ended
#   extras/watch/node.sh JOBID SECONDS SAMPLES       so many samples
#   extras/watch/node.sh JOBID SECONDS while-ranks   until the ranks on this node have ended
#
# extras/watch/watch.sh, and a job for its summary, start this script on each node. It prints, in MiB and
# seconds:
#   node host=node1 load=3.20 used=5120 total=257000
#   nvidia 0, 97, 71680, 81559, 640.12             index, use [%], memory used and in all, power [W]
#   amd device,GPU use (%),VRAM Total Memory (B),…  the columns of rocm-smi, then a line for each GPU
#   rank 3 cpu=812.40 silent=4                     CPU time so far; how long it has printed nothing
#   metrics /path/of/metrics.jsonl                 if a rank has it open
#   end 812.30                                     this sample is whole; seconds since the node's start
set -uo pipefail

ticks_per_second=$(getconf CLK_TCK)

main() {
    local number='^[1-9][0-9]*$'
    [[ $# -ge 2 && $1 =~ $number && $2 =~ $number ]] &&
        [[ ${3:-1} =~ $number || $3 == while-ranks ]] || {
        echo "extras/watch/node.sh: '$*': expected JOBID SECONDS [SAMPLES | while-ranks]" >&2
        exit 2
    }
    local sample last=${3:-} next_search=0
    [[ $last != while-ranks ]] || last=''
    look_at_pipes
    for ((sample = 1; sample <= ${last:-sample}; sample++)); do # without a last one it has no end
        # A search reads the variables of each process of the node, hence not every time.
        if ((SECONDS >= next_search)) || rank_has_ended; then
            find_ranks "$1"
            find_first_processes
            next_search=$((SECONDS + 30))
        fi
        print_node
        print_gpus
        print_ranks
        print_metrics_files
        echo "end $(cut -d ' ' -f 1 /proc/uptime)"
        if [[ ${3:-} == while-ranks ]]; then
            sleep_while_ranks_run "$1" "$2" || return 0
        else
            ((sample == ${last:-0})) || sleep "$2"
        fi
    done
}

# Sets rank_of[PID], the ranks of the job's processes on this node: RANK, with which a process was
# started, or the name that launch/spawn.py gives to the ranks that it forks. The tests have several
# nodes on one machine, so the name of the node has to fit, too. Argument: the job's number.
find_ranks() {
    local path pid rank found=(/proc/[0-9]*/environ) variable
    declare -gA rank_of=()
    for variable in "SLURM_JOB_ID=$1" ${SLURMD_NODENAME:+"SLURMD_NODENAME=$SLURMD_NODENAME"}; do
        ((${#found[@]} == 0)) ||
            mapfile -t found < <(grep -lzxF -e "$variable" "${found[@]}" 2>/dev/null)
    done
    for path in "${found[@]}"; do
        pid=${path#/proc/} pid=${pid%/environ}
        rank=$(tr '\0' '\n' 2>/dev/null <"$path" | grep -m1 -xE 'RANK=[0-9]+') ||
            rank=$(grep -xE 'rank [0-9]+' "/proc/$pid/comm" 2>/dev/null) || continue
        rank_of[$pid]=${rank##*[= ]}
    done
}

# Prints a field of /proc/PID/status.
status() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" 2>/dev/null; }

# Sleeps. Fails if the ranks that this node had have ended. A node that Slurm takes for dead is not
# told of the job's end. Arguments: the job's number, seconds.
sleep_while_ranks_run() {
    local end=$((SECONDS + $2))
    while ((SECONDS < end)); do
        sleep $((end - SECONDS < 5 ? end - SECONDS : 5))
        if ((${#rank_of[@]})) && rank_has_ended; then
            find_ranks "$1"
            ((${#rank_of[@]})) || return 1
            find_first_processes
        fi
    done
}

# Sets pipes_have_times: whether a pipe's time changes when something is written to it. It does not
# with Linux 6.18 (seen 2026-11-25). With LAUNCHER=srun a rank prints into a pipe.
look_at_pipes() {
    local pipe before after
    exec {pipe}> >(cat >/dev/null)
    before=$(stat --dereference --format=%y "/proc/$$/fd/$pipe")
    sleep 0.05
    echo >&"$pipe"
    after=$(stat --dereference --format=%y "/proc/$$/fd/$pipe")
    exec {pipe}>&-
    pipes_have_times=''
    [[ $before == "$after" ]] || pipes_have_times=1
}

# Whether a process of the last search has ended, or none was found: a job's ranks may start anew.
rank_has_ended() {
    local pid
    ((${#rank_of[@]})) || return 0
    for pid in "${!rank_of[@]}"; do
        [[ -d /proc/$pid ]] || return 0
    done
    return 1
}

# Sets first_of[RANK], the rank's own process. Its other ones, as workers of a data loader, descend
# from it.
find_first_processes() {
    local pid parent
    declare -gA first_of=()
    for pid in "${!rank_of[@]}"; do
        parent=$(status "$pid" PPid)
        [[ ${rank_of[${parent:-0}]:-} == "${rank_of[$pid]}" ]] || first_of[${rank_of[$pid]}]=$pid
    done
}

print_node() {
    local load name value total=0 available=0
    read -r load _ </proc/loadavg
    while read -r name value _; do
        case $name in
            MemTotal:) total=$((value / 1024)) ;;
            MemAvailable:) available=$((value / 1024)) ;;
        esac
    done </proc/meminfo
    echo "node host=${SLURMD_NODENAME:-$HOSTNAME} load=$load used=$((total - available)) total=$total"
}

# Prints what the vendor's command says of the GPUs that this job may use.
print_gpus() {
    local query=index,utilization.gpu,memory.used,memory.total,power.draw
    if type -P nvidia-smi >/dev/null; then
        timeout 10 nvidia-smi --query-gpu="$query" --format=csv,noheader,nounits 2>/dev/null |
            sed -n 's/^[0-9]/nvidia &/p'
    elif type -P rocm-smi >/dev/null; then
        timeout 10 rocm-smi --showuse --showmeminfo vram --csv 2>/dev/null |
            sed -nE 's/^(device|card)/amd &/p'
    fi
}

# Prints the CPU time of each rank, with that of all its processes, and how long it has been silent.
print_ranks() {
    local pid rank fields
    local -A ticks=()
    for pid in "${!rank_of[@]}"; do
        # The command's name, in parentheses, may contain spaces.
        read -r -a fields < <(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || continue
        rank=${rank_of[$pid]}
        ticks[$rank]=$((${ticks[$rank]:-0} + fields[11] + fields[12])) # utime, stime (proc(5))
    done
    for rank in "${!ticks[@]}"; do
        echo "rank $rank cpu=$(seconds "${ticks[$rank]}") silent=$(silence_of "${first_of[$rank]:-0}")"
    done
}

# Prints how long a process has written nothing to its output and its errors [s]; nothing if that is
# not known. A file has the time at which it was last written to, and a pipe on older kernels.
silence_of() {
    local kind time newest='' now
    while read -r time kind; do
        [[ $kind != fifo || -n $pipes_have_times ]] || return
        ((time <= ${newest:-0})) || newest=$time
    done < <(stat --dereference --format='%Y %F' "/proc/$1/fd/1" "/proc/$1/fd/2" 2>/dev/null)
    printf -v now '%(%s)T' -1
    echo "${newest:+$((now - newest))}"
}

# Prints clock ticks as seconds.
seconds() {
    local hundredths=$(($1 * 100 / ticks_per_second))
    printf '%d.%02d\n' $((hundredths / 100)) $((hundredths % 100))
}

print_metrics_files() {
    local pid
    for pid in "${first_of[@]}"; do
        find "/proc/$pid/fd" -lname '*/metrics.jsonl' -printf 'metrics %l\n' 2>/dev/null
    done | sort -u
}

main "$@"
