#!/usr/bin/env bash
# Says why a job failed: cause, the line that proves it, fix; and last, what the first rank that failed said.
#
#   bash slurm/doctor.sh 123                 a job; 12_3 of an array too
#   bash slurm/doctor.sh demo-123.out        the output of a job, also of one that has nothing to do with this project
#   bash slurm/doctor.sh logs/123.0          the logs of one attempt's ranks
#
# It reads the last 20 MB of the job's output, the last 16 KB of each rank's stderr.log, and what Slurm knows of the job.
# Exit code: 0 if it found a cause, or the job did not fail; 1 if it knows none; 2 if there is nothing to read.
set -uo pipefail
export LC_ALL=C # not every byte is UTF-8

# What is known: regular expressions, and below them "cause -> fix"; "=" is the line that was found.
# The wording is that of torch 2.13, Slurm 22.05 and 24.11 and their sources, and of threads on GitHub (read 2026-11-21):
# huggingface/accelerate #2246, NVIDIA/nccl #1948, MIC-DKFZ/nnUNet #1519, vllm-project/vllm #5222, NVIDIA/enroot #243,
# pytorch/pytorch #5040 #69197 #73656 #108861 #126510, NVIDIA/pyxis #61 #127 #168, apptainer/singularity #5183,
# apptainer/apptainer #1051, sgl-project/sglang #3226, Lightning-AI/pytorch-lightning #10098 #19817.
known_causes() {
    cat <<'EOF'
== 1: says by itself why a run failed; the first in the log counts
launch/[a-z]+\.(sh|py) on [^ ]+: [^r]|(slurm|container)/[a-z_]+\.sh: .|(^|[: ])env\.sh: .
[A-Za-z0-9_]\.py: error: .|(^|[: ])FAULT: .|preflight: [^ :]+: .
    = -> as that line says
oom[-_]kill|: Out Of Memory|OUT_OF_MEMORY|[^a-zA-Z.]MemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: can
    the memory of a host was not enough -> ask for more with --mem (--mem=0: all of a node), or use fewer --workers and ranks per node
(CUDA|HIP|XPU) out of memory|(CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory
    the memory of a GPU was not enough -> a smaller batch per rank (--micro-batch keeps the whole one), or shard as train_fsdp.py does
on your system is too old|forward compatibility was attempted|driver version is insufficient|Driver/library version mismatch
no kernel image is available|invalid device function|is not compatible with the current PyTorch installation
    torch, driver and GPUs do not fit -> take a torch for the CUDA that nvidia-smi shows, and with these GPUs in torch.cuda.get_arch_list()
No (CUDA|HIP) GPUs are available|no CUDA-capable device|Found no NVIDIA driver|Torch not compiled with CUDA
    the ranks see no GPU -> ask for --gpus-per-node, give the container its GPU option (--nv), or install the CUDA build of torch
Duplicate GPU detected|invalid device ordinal
    ranks and GPUs do not match -> one rank per GPU, on cuda:LOCAL_RANK; no --gpus-per-task, no CUDA_VISIBLE_DEVICES
Xid \(PCI|uncorrectable (NVLink|ECC)|GPU is lost|fallen off the bus|determine the device handle|UNCORRECTABLE MEMORY
    a GPU or a node is broken -> submit again with --exclude=NODE, and tell your site
device-side assert triggered|illegal memory access|CUDA error: misaligned address
    a kernel on a GPU failed -> mostly an index or a label out of range: CUDA_LAUNCH_BLOCKING=1 makes the traceback point at it
Disk quota exceeded|No space left on device|Read-only file system
    a disk is full, over your quota, or read-only -> remove files (their number counts too), or write elsewhere: --out, TMPDIR, HF_HOME
DataLoader worker \(pid.*\) (is killed by signal: (Bus|Killed|Segm|Abort)|exited unexpectedly)
insufficient shared memory|: Bus error|exitcode +: -7 |by signal 7$
    not enough of /dev/shm or memory to read data ahead -> fewer --workers, a larger /dev/shm for the container; --workers 0 shows errors
Too many open files|received 0 items of ancdata
    too many open files -> ulimit -n 65536 in env.sh, or fewer --workers
ModuleNotFoundError: |: No module named .
    a Python module is not found -> torch: RUNTIME, VENV, MODULES in env.sh; one to install: requirements.txt; your own: -m, or PYTHONPATH
GLIBC(XX)?_[0-9.]+' not found|static TLS block|cannot open shared object file|: undefined symbol: .
Illegal instruction|exitcode +: -4 |by signal 4$
    a library is missing, or made for another system or processor -> build it on a compute node, use a container, or MODULES in env.sh
module\(s\) are unknown|module\(s\) or extension\(s\) exist but cannot be loaded|Unable to locate a modulefile
    there is no such environment module -> find its name with module spider or module avail, and set MODULES in env.sh
Invalid (account|qos)|[Ii]nvalid partition|Requested (node configuration|time limit) is|violates accounting/QOS
Unable to create step for job|More processors requested than permitted|not enough slots available
    Slurm refuses what was asked for -> edit the #SBATCH lines; sinfo, and sacctmgr show associations user=$USER, say what there is
ExitCode=0:53
    the folder of --output, or that of submission, is not there or not yours -> make it before you submit: Slurm does not
pyxis: (couldn|failed|container start failed)|\[ERROR\] (No such file|URL )|FATAL: +(could not open|Unable to handle|[Ww]hile )
    the container image is not there, or does not start -> slurm/build_container.sh makes it; IMAGE in env.sh: a path all nodes see
EADDRINUSE|[Aa]ddress already in use
    the port is taken -> submit again (the port follows from the job), do not set MASTER_PORT, and start torchrun once on a node
Unable to find address for: |[Nn]o socket interface found|connectFullMesh failed
    the ranks use the wrong network interface -> set NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME to one that all nodes have (ip -br address)
configured in SLURM .*does not match|.srun. command is available on your system but is not used
    Lightning and Slurm disagree -> Trainer(devices=ranks per node, num_nodes=nodes), started through slurm/submit_multinode.sh
== 2: what Slurm did to the job, and what may also come from one above
DUE TO TIME LIMIT|JobState=(TIMEOUT|DEADLINE)
    the walltime was over -> more --time, or --resume from what was saved; a program of your own whose rank hangs ends so too
DUE TO PREEMPTION|JobState=PREEMPTED
    another job, of higher priority, took the nodes -> submit with --requeue, save often, and --resume
DUE TO NODE FAILURE|JobState=(NODE_FAIL|BOOT_FAIL)|error: Node failure on .
    a node failed -> submit again with --resume; with --exclude=NODE if it was that one before
\*\*\* JOB [0-9]+ ON [^ ]+ CANCELLED AT [^ ]+ \*\*\*|JobState=CANCELLED
    the job was cancelled -> by whom: sacct -X -o state%30 -j JOBID
Name or service not known|Temporary failure in name resolution|gai error: -[23] |Could not resolve host
Network is unreachable|No route to host|Max retries exceeded with url
    a host has no address, or cannot be reached -> a node: MASTER_ADDR_SUFFIX in env.sh; the internet: download on the login node first
client socket has timed out|seconds waiting for clients|Rendezvous(Timeout|Connection|Closed)Error
    not all nodes met -> those without a folder in logs/JOBID.ATTEMPT did not start: --exclude them; slow ones: raise RDZV_TIMEOUT
Permission denied|FileNotFoundError: |can't open file '|execve\(\): .*No such file|: command not found
    something is not there, or not yours -> ls -ld PATH on a node: it has to be on a file system that all nodes see
ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage
    NCCL failed on a node -> run again with NCCL_DEBUG=INFO: its lines with WARN name the interface, the device or the limit
== 3: all that is left of a rank that could not say why
Watchdog caught collective operation timeout|Timed out waiting [0-9]+ms for (send|recv) operation|Monitored barrier
    ranks waited in vain for one that hung, or was busy -> see who below; if busy: raise --timeout (your program: init_process_group)
tasks? [0-9,-]+: Killed|exitcode +: -9 |exit code 137|signal 9( \(|$)
    a process was killed -> mostly by the kernel, for lack of memory: more --mem, fewer --workers
Segmentation fault|exitcode +: -11 |exit code 139|signal 11( \(|$)
    a process crashed in compiled code -> PYTHONFAULTHANDLER=1 shows where; mostly libraries that do not fit each other
== 4: said by ranks that lost another one
ncclRemoteError|Connection (closed|reset) by peer|HorovodInternalError
    a rank lost another one, which left no word -> look at the other node: sinfo -N -l, and the logs of its ranks
== 5: makes a run slow, if its walltime was over
max number of worker in current system is 1,|NET/IB : No device found|Using network Socket
    and it was slow: ranks on one core, or NCCL over TCP -> srun --cpus-per-task; NCCL_SOCKET_IFNAME, NCCL_IB_HCA; see check/ranks.py
EOF
}
# Said in good runs too, or by this script.
harmless='Failed to initialize NumPy|Address family not supported|failed to shutdown the rendezvous|preflight: warning|:(cause|proof|fix): '
# The last words of a rank that ended because of another one, and of one that waited for another.
peer='Connection (closed|reset) by peer|Connection refused|Broken pipe|(recvVector|sendBytes) failed|got 0 bytes|remote process exited'
peer+='|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError|SignalException|KeyboardInterrupt'
waited='[Tt]imed out (waiting|after)|Watchdog caught|[Ww]ait timeout|client socket has timed out'

project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    echo "slurm/doctor.sh: $*" >&2
    exit 2
}

# Fills id, state and output with what Slurm knows of a job, if anything.
ask_slurm() {
    local facts
    facts=$(timeout 20 scontrol show job "$1" 2>/dev/null)
    (($(grep -c ^JobId= <<<"$facts") < 2)) || # without _N it means all of them
        die "job $1 is an array; name one of it: $(grep -oE 'ArrayTaskId=[^ ]+' <<<"$facts" | sed "s/.*=/$1_/" | paste -sd' ')"
    [[ $facts =~ JobId=([0-9]+) ]] && id=${BASH_REMATCH[1]} || id=$1 # that of 12_3 is another one
    state=$(grep -oE '\<(JobState|Reason|ExitCode)=[^ ]+' <<<"$facts" | paste -sd' ')
    output=$(sed -n 's/^ *StdOut=//p' <<<"$facts")
    [[ -n $state ]] || # scontrol forgets a job after minutes
        state=$(timeout 20 sacct -nPX -j "$1" -o State,ExitCode 2>/dev/null | sed -n '1s/\(.*\)|/JobState=\1 ExitCode=/p')
}

# Prints the ends of files as a terminal would show them: the last state of a progress bar, and no colours.
show() {
    tail "$@" | tr -d '\0' | sed -E 's/\r+$//; s/.*\r//; s/\x1b\[[0-9;]*[A-Za-z]//g'
}
show_output() {
    [[ -z $output ]] || show -c 20000000 -- "$output"
}

# Prints a line of: how the first rank failed (killed, error, exited, waited, silent, peer, none), where in the output the last
# attempt starts, the file; then what the user sees of it. Where ranks have logs, of the output only launchers' words count.
first_failure() {
    awk -v peer="$peer" -v waited="$waited" -v late="$late" -v run="${run#"$PWD"/}" -v output="${output#"$PWD"/}" '
        function kind_of(text) { return text ~ peer ? "peer" : text ~ waited ? "waited" : "error" }
        function start() { kind[n] = "cut"; count[n] = 0; if (!logs) place[n] = FNR }
        function keep() { words[n, ++count[n]] = substr($0, 1, 240) }
        function name(n) { return (rank[n] == "" ? "" : ": rank " rank[n]) (host[n] == "" ? "" : " on " host[n]) " (" file(n) ")" }
        function file(n) { return logs ? run "/" path[n] : output ":" place[n] }
        # The first rank that ended in a way, or, if the sign is -1, the last one.
        function first(way, sign,   n, found) {
            for (n = 1; n <= ranks; n++)
                if (kind[n] == way && (!found || sign * place[n] < sign * place[found])) found = n
            return found
        }
        function report(number, node, way) {
            reports++; number_of[reports] = number + 0; node_of[reports] = node; way_of[reports] = way
            line[reports] = FNR; sub(/^ +/, ""); report_of[reports] = $0
        }
        from == "ranks" && /^==> .* <==$/ { # node1-HOST/…/LOCAL_RANK/stderr.log, the first to end comes first
            path[n = ++ranks] = substr($0, 5, length($0) - 8)
            parts = split(path[n], part, "/")
            key = part[1] "/" part[parts - 1]
            if (key in index_of) kind[index_of[key]] = "past" # of the program before this one
            index_of[key] = place[n] = n; kind[n] = "silent"; logs = 1
            host[n] = substr(part[1], index(part[1], "-") + 1); node[n] = substr(part[1], 5) + 0; local_rank[n] = part[parts - 1]
            if (local_rank[n] >= per_node) per_node = local_rank[n] + 1
            next
        }
        from == "output" { # who ended first, as the launchers say; 15 and 2 are how they end the others
            if (/\*\*\* (JOB|STEP) [0-9.]+ ON .* DUE TO |back into the queue as attempt/) requeued = 1
            if (requeued && / on [0-9]+ node\(s\), meeting at /) {
                since = FNR; requeued = told_to_end = reports = 0
                if (!logs) split("", kind)
            }
            if (/ (STEP|JOB) [0-9.]+ ON .* CANCELLED AT |Terminating (StepId|job step)/) told_to_end = 1
            if (/srun: error: [^ ]+: tasks? [0-9]|spawn\.py on [^ ]+: rank [0-9]+ was ended/ && !told_to_end &&
                !/: Terminated|exit code (143|130)$|signal (15|2)$/) {
                split($0, part, /srun: error: |spawn\.py on |: tasks? |: rank |: | was /) # "", node2, 3, Killed
                report(part[3], part[2], / exit code / && $NF < 128 ? "exited" : "killed")
            }
            if (/Root Cause \(first observed failure\)/) root = 1 # torchrun, on each node
            if (root && / (host|rank) +: /) seen[$1] = $3
            if (root && / exitcode +: / && $3 != -15 && $3 != -2) report(seen["rank"], seen["host"], $3 < 0 ? "killed" : "exited")
            if (/ exitcode +: /) root = 0
            if (/ noticed that process rank [0-9]+ with PID /) { # mpirun; that of Open MPI 5 breaks the line
                split($0, part, / process rank | with PID | on node | exited on/)
                report(part[2], part[4], "killed")
            }
            if (logs) next
        }
        { # a line of a rank, which begins with [HOST:RANK], RANK: or [rankRANK]:
            label = match($0, /^(\[[^] ]+:[0-9]+\] ?|\[(default|rank)[0-9]+\]: ?| *[0-9]+: )+/) ? substr($0, 1, RLENGTH) : ""
            text = substr($0, length(label) + 1)
            if (!logs && !(n = index_of[label])) {
                n = index_of[label] = ++ranks
                if (match(label, /^\[[^]]+:/)) { host[n] = substr(label, 2, RLENGTH - 2); label = substr(label, RLENGTH) }
                if (match(label, /[0-9]+/)) rank[n] = substr(label, RSTART, RLENGTH) + 0
            }
        }
        text ~ /^(\[[WIE][0-9]|srun: |slurmstepd|-----)/ && text !~ /Watchdog caught/ { more[n] = 0; next }
        text ~ /Traceback \(most recent call last\)/ {
            if (!chained[n]) start()
            inside[n] = 1; keep()
            next
        }
        inside[n] {
            keep()
            if (text ~ /^( |$)/) next
            if (!chained[n]) kind[n] = kind_of(text) # of a chain of exceptions the first one decides
            inside[n] = chained[n] = 0; more[n] = 12 # lines of a message at most
            next
        }
        more[n] && text ~ /^(During handling of|The above exception was)/ { chained[n] = 1 }
        text ~ /Watchdog caught|^terminate called|^Fatal Python error|[a-z]\.py: error: / { start(); kind[n] = kind_of(text); more[n] = 12 }
        kind[n] == "silent" || more[n]-- > 0 {
            keep()
            if (kind[n] == "error" && !chained[n] && text ~ peer) kind[n] = "peer"
        }
        END {
            for (n = 1; n <= ranks && logs; n++) rank[n] = kind[n] == "past" ? "" : node[n] * per_node + local_rank[n]
            for (r = 1; r <= reports; r++) { # of ranks that said nothing
                hit = 0
                for (n = ranks; n; n--)
                    if (rank[n] == number_of[r] && (host[n] == "" || host[n] == node_of[r])) { hit = n; break }
                    # Else srun means the launcher of a node: one of its ranks, unless the launcher itself has said which one.
                    else if (way_of[r] == "killed" && host[n] == node_of[r] && kind[n] ~ /silent|killed/ && kind[hit] != "killed") hit = n
                if (!hit && !logs) { hit = ++ranks; host[hit] = node_of[r]; rank[hit] = report_of[r] ~ /: tasks? / ? "" : number_of[r] }
                if (!hit || kind[hit] !~ /^(silent|cut)?$/) continue
                kind[hit] = way_of[r]; said[hit] = "; " report_of[r]
                if (!logs) place[hit] = line[r]
            }
            for (i = split("none peer waited exited error killed", ways, " "); i && !one; i--) one = first(found = ways[i], 1)
            # All others complain: it is the one that said nothing, or, if it was stopped and woke up to be told to end, the last.
            if (found == "waited" || found == "peer") hung = first("silent", 1)
            if (found == "waited" && logs && !hung) hung = late ? ranks : first("peer", -1)
            if (found == "peer" && hung) found = "silent"
            if (found == "silent" && count[hung]) one = hung # it has an error message of its own
            print found "\t" since + 0 "\t" (logs && one ? run "/" path[one] : output)
            if (hung) print "first failure" name(hung) " hung, or ended without a traceback"
            if (one && one != hung) print (hung ? "who waited for it" : "first failure") name(one) said[one]
            for (last = count[one]; last && words[one, last] ~ /^[ \t]*$/; ) last--
            for (i = 1; i <= last; i++)
                if (last <= 30 || i == 1 || i > last - 28) print words[one, i]
                else if (i == 2) print "..."
        }
    ' from=ranks <([[ -z ${logs[*]} ]] || { cd "$run" && show -v -c 16384 -- "${logs[@]}"; }) from=output <(show_output)
}

# Prints what is known of the lines in hits: section, line, text, "cause -> fix".
look_up() {
    local row regex='' section hit
    while IFS= read -r row; do
        if [[ $row == "== "* ]]; then
            section=${row:3:1}
        elif [[ $row != " "* ]]; then
            regex+=${regex:+|}$row
        else
            hit=$(grep -am 1 -E -- "$regex" <<<"$hits") && printf '%s\t%s\t%s\n' "$section" "${hit/:/$'\t'}" "${row:4}"
            regex=''
        fi
    done < <(known_causes)
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
(($# == 1)) || die "expected one argument: a job's number, its output file, or a folder logs/JOBID.ATTEMPT"
shopt -s nullglob globstar
id='' state='' output='' run=''
if [[ -d $1 ]]; then
    run=$(realpath -- "$1") # logs/latest is a link
    [[ ${run##*/} =~ ^([0-9]+)\.[0-9]+$ ]] || die "'$1' is not a folder of ranks' logs: expected logs/JOBID.ATTEMPT"
    ask_slurm "${BASH_REMATCH[1]}"
elif [[ -f $1 ]]; then
    if [[ ${1##*/} =~ -([0-9]+(_[0-9]+)?)\.[a-z]+$ ]]; then
        ask_slurm "${BASH_REMATCH[1]}"
        # The number may be a date's, or that of a job elsewhere.
        [[ $output -ef $1 ]] || state=''
        [[ $output -ef $1 ]] || grep -qaE ' on [0-9]+ node\(s\), meeting at ' -- "$1" || id=''
    fi
    output=$1
elif [[ $1 =~ ^[1-9][0-9]*(_[0-9]+)?$ ]]; then
    ask_slurm "$1"
else
    die "'$1' is neither a file nor a folder here, nor a job's number"
fi
outputs=({"$PWD","$project"}/*-{"$id","$1"}.out)
[[ -f $output ]] || output=${outputs[0]:-}
[[ -n $run || -z $id ]] || run=$(printf '%s\n' "$project/logs/$id".* | sort -V | tail -n 1) # the newest attempt
[[ -n $output$run$state ]] ||
    die "Slurm does not know a job $id, and there is no *-$id.out in $PWD or $project, and no $project/logs/$id.*: name its output file"
[[ $state != *COMPLETED* ]] || { echo "job $id did not fail: $state" && exit; }
[[ ! $state =~ RUNNING|PENDING || ${SLURM_JOB_ID:-} == "$id" ]] || echo "job $id has not ended, $state; so far:"
logs=()
# shellcheck disable=SC2012 # by time, and no name is strange
[[ -z $run ]] || mapfile -t logs < <(cd "$run" && logs=(node*/**/stderr.log) && ((${#logs[@]})) && ls -tr -- "${logs[@]}")

late='' # the last one ended half a second after all others
if ((${#logs[@]} > 1)); then
    { read -r one && read -r last; } < <(cd "$run" && stat -c %.3Y -- "${logs[@]: -2}" | tr -d .)
    ((last - one < 500)) || late=1
fi
mapfile -t failure < <(first_failure)
IFS=$'\t' read -r found since file <<<"${failure[0]}"
[[ -n $output ]] || output=$file
name=${output#"$PWD"/}
[[ ! -f $output ]] || (($(stat -Lc %s -- "$output") <= 20000000)) || name+=" (its last 20 MB)"
hits=$(show_output | grep -naE -f <(known_causes | grep '^[^ =]') | grep -avE -- "$harmless" | tr '\t' ' ' | cut -c 1-400 |
    awk -F : -v since="$since" '$1 > since' | head -n 20000)
# A rank that failed of itself says why. Beside it are warnings that stand in good runs too: only what Slurm says counts.
[[ $found != error ]] || hits=$(printf '%s\n' "${failure[@]:2}" | grep -a '[^ ]' |
    grep -aF -f - -f <(printf '%s\n' slurmstepd srun: oom DUE\ TO Xid "*** JOB" preflight: .sh:) <(printf '%s' "$hits"))
[[ -z $state ]] || hits="0:$state"$'\n'$hits
causes=0 time_over=''
while IFS=$'\t' read -r section line text advice; do
    case $section in
        3) ((causes == 0)) && [[ $found != error && $found != peer ]] || continue ;;
        4) ((causes == 0)) && [[ $found == peer ]] || continue ;;
        5) [[ -n $time_over ]] || continue ;;
    esac
    ((causes++ < 3)) || break
    text=${text:0:300} cause=${advice%% -> *} where=$name:$line
    [[ $cause != = ]] || cause=$text
    [[ $cause != "the walltime"* ]] || time_over=1
    ((line)) || where="scontrol show job $id"
    advice=${advice#* -> }
    printf 'cause: %s\nproof: %s: %s\nfix: %s\n' "$cause" "$where" "$text" "${advice/JOBID/${id:-JOBID}}"
done < <(look_up | sort -s -t $'\t' -k 1,1n -k 2,2n | awk -F '\t' '!seen[$2]++') # a line proves one cause

[[ $state != *RUNNING* ]] || state='' # it is the job itself that asks
((causes)) || echo "no cause known to doctor.sh${state:+ ($state)}; what follows may say more"
if ((${#failure[@]} > 1)); then
    printf '%s\n' "${failure[@]:1}"
    said=${file%stderr.log}stdout.log
    if [[ $found == exited && -s $said ]]; then # without a word among its errors
        echo "the end of $said:"
        show -n 10 -- "$said" | cut -c 1-240
    fi
elif ((causes == 0)); then
    show_output | grep -av '^no cause known' | tail -n 10 | cut -c 1-240
fi
((causes))
