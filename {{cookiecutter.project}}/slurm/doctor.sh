#!/usr/bin/env bash
# Says why a job failed: cause, the line that proves it, fix; and last, what the first rank that failed said.
#
#   bash slurm/doctor.sh 123                 a job; 12_3 of an array too
#   bash slurm/doctor.sh demo-123.out        an output alone, also of a job that has nothing to do with this project
#   bash slurm/doctor.sh logs/123.0          the logs of one attempt's ranks
#
# It reads the last 20 MB of the job's output, the last 16 KB of each rank's stderr.log, and what Slurm knows of the job.
# Exit code: 0 if it found a cause, or the job did not fail; 1 if it knows none; 2 if there is nothing to read.
set -u
export LC_ALL=C # not every byte is UTF-8

# What is known: a regular expression, and below it "cause -> fix"; "=" is the line that was found. The number before it: 1 says by
# itself why a run failed, the first in the log counts; 2 is what Slurm did to the job, and what may also come from a 1; 3 is all
# that is left of a rank that could not say why; 4 is said by ranks that lost another one.
# The wording is that of torch 2.13, Slurm 22.05 and 24.11 and their sources, and of threads on GitHub (read 2026-11-21):
# huggingface/accelerate #2246, NVIDIA/nccl #1948, MIC-DKFZ/nnUNet #1519, vllm-project/vllm #5222, NVIDIA/enroot #243,
# pytorch/pytorch #5040 #69197 #73656 #108861 #126510, NVIDIA/pyxis #61 #127 #168, apptainer/singularity #5183,
# apptainer/apptainer #1051, sgl-project/sglang #3226.
read -rd '' known <<'EOF'
1 (launch|slurm|container)/[a-z_]+\.(sh|py)( on [^ ]+)?: [^r]|(^|[: ])env\.sh: .|\.py: error: .|(^|[: ])(FAULT:|SLOW NODE|WRONG DATA) .|preflight: .*: .
    = -> as that line says
1 oom[-_]kill|: Out Of Memory|OUT_OF_MEMORY|(^|Array|[^a-zA-Z.])MemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator
    the memory of a host was not enough -> ask for more with --mem (--mem=0: all of a node), or use fewer --workers and ranks per node
1 (CUDA|HIP|XPU) out of memory|(CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory
    the memory of a GPU was not enough -> a smaller batch per rank (--micro-batch keeps the whole one), or shard as train_fsdp.py does
1 on your system is too old|forward compatibility|driver version is insufficient|Driver/library version|no kernel image is
    torch, driver and GPUs do not fit -> take a torch for the CUDA that nvidia-smi shows, and with these GPUs in torch.cuda.get_arch_list()
1 No (CUDA|HIP) GPUs are available|CUDA-capable device|Found no NVIDIA|not compiled with CUDA|Duplicate GPU|invalid device ordinal
    the ranks see no GPU, or not one each -> --gpus-per-node; --nv for a container; torch for CUDA; cuda:LOCAL_RANK, no --gpus-per-task
1 Xid \(PCI|uncorrectable (NVLink|ECC)|GPU is lost|fallen off the bus|determine the device handle|UNCORRECTABLE MEMORY
    a GPU or a node is broken -> submit again with --exclude=NODE, and tell your site
1 Disk quota exceeded|No space left on device|Read-only file system
    a disk is full, over your quota, or read-only -> remove files (their number counts too), or write elsewhere: --out, TMPDIR, HF_HOME
1 DataLoader worker \(pid.*(signal: [^T]|unexpectedly)|insufficient shared|: Bus error|exitcode +: -7 |by signal 7$|Too many open files|ancdata
    too little /dev/shm, memory or open files to read data ahead -> fewer --workers (0 shows errors), or ulimit -n 65536 in env.sh
1 ModuleNotFoundError: |python[0-9.]*: No module named .|(module|extension)\(s\).* (are unknown|cannot be loaded)|locate a modulefile
    a module is not found -> RUNTIME, VENV, MODULES (module spider) in env.sh; of pip: requirements.txt; your own: -m, or PYTHONPATH
1 GLIBC(XX)?_[0-9.]+' not found|static TLS block|cannot open shared|: undefined symbol: .|Illegal instruction|exitcode +: -4 |by signal 4$
    a library is missing, or made for another system or processor -> build it on a compute node, use a container, or MODULES in env.sh
1 Invalid (account|qos)|nvalid partition|Requested (node con|time li)|violates accounting|Unable to create step|More processors req|enough slots
    Slurm refuses what was asked for -> edit the #SBATCH lines; sinfo, and sacctmgr show associations user=$USER, say what there is
1 pyxis: (couldn|failed|container start failed)|\[ERROR\] (No such file|URL )|FATAL: +(could not open|Unable to handle|[Ww]hile )
    the container image is not there, or does not start -> slurm/build_container.sh makes it; IMAGE in env.sh: a path all nodes see
1 EADDRINUSE|[Aa]ddress already in use
    the port is taken -> submit again (the port follows from the job), do not set MASTER_PORT, and start torchrun once on a node
1 Unable to find address for: |[Nn]o socket interface found|connectFullMesh failed
    the ranks use the wrong network interface -> set NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME to one that all nodes have (ip -br address)
2 DUE TO TIME LIMIT|JobState=(TIMEOUT|DEADLINE)
    the walltime was over -> more --time, or --resume from what was saved; a program of your own whose rank hangs ends so too
2 DUE TO (PREEMPTION|NODE FAILURE)|JobState=(PREEMPTED|NODE_FAIL|BOOT_FAIL)|error: Node failure on .
    a node failed, or a job of higher priority took it -> submit with --requeue, save often, and --resume; --exclude=NODE if it fails again
2 \*\*\* JOB [0-9]+ ON [^ ]+ CANCELLED AT [^ ]+ \*\*\*|JobState=CANCELLED
    the job was cancelled -> by whom: sacct -X -o state%30 -j JOBID
2 service not known|name resolution|Could not resolve|is unreachable|No route to host|Max retries|onnect to 'http|urlopen error|requests\.exceptions\.Conn
    a host has no address, or cannot be reached -> a node: MASTER_ADDR_SUFFIX in env.sh; the internet: download on the login node first
2 client socket has timed out|seconds waiting for clients|Rendezvous(Timeout|Connection|Closed)Error
    not all nodes met -> those without a folder in logs/JOBID.ATTEMPT did not start: --exclude them; slow ones: raise RDZV_TIMEOUT
2 Permission denied|FileNotFoundError: |can't open file '|execve\(\): .*No such file|: command not found|ExitCode=0:53
    something is not there, or not yours -> ls -ld PATH on a node: it has to be where all nodes see it; ExitCode 0:53: the folder of --output
3 Watchdog caught collective operation timeout|Timed out waiting [0-9]+ms for (send|recv) operation|Monitored barrier
    ranks waited in vain for one that hung, or was busy -> see who below; if busy: raise --timeout (your program: init_process_group)
3 tasks? [0-9,-]+: Killed|line [0-9]+: +[0-9]+ Killed|exitcode +: -(9|11) |exit code 13[79]|signal (9|11)( \(|$)|Segmentation fault
    a process was killed, or crashed -> killed: mostly for lack of memory: more --mem, fewer --workers; else PYTHONFAULTHANDLER=1 shows where
4 ncclRemoteError|Connection (closed|reset) by peer|HorovodInternalError
    a rank lost another one, which left no word -> look at the other node: sinfo -N -l, and the logs of its ranks
EOF
# Said in good runs too (the exit barrier: pytorch/pytorch #69520), or by this script.
harmless='Address family not supported|failed to shutdown the rendezvous|exit barrier|recvValueWithTimeout|:(cause|proof|fix): '
# The last words of a rank that ended because of another one, and of one that waited for another.
peer='Connection (closed|reset) by peer|Connection refused|Broken pipe|(recvVector|sendBytes) failed|got 0 bytes|remote process exited'
peer+='|ncclRemoteError|communicator was aborted|HorovodInternalError|ChildFailedError|SignalException|KeyboardInterrupt'
download='^[a-z]*(requests|urllib|http)' # the peer in their errors is no rank
waited='[Tt]imed out (waiting|after)|Watchdog caught|[Ww]ait timeout|client socket has timed out'
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    echo "slurm/doctor.sh: $*" >&2
    exit 2
}

# Prints the ends of files as a terminal would show them: no colours, the last state of a progress bar; none before words.
show() { tail "$@" | tr -d '\0' | sed -E 's/\x1b\[[0-9;]*[A-Za-z]//g; s/\r+$//; s/.*\r//; s,.*(it/s|s/it)[^]]*\](.),\2,; y/\t/ /'; }
# Of the output, attempts that are past are left out; the lines keep their numbers.
show_output() { show -c 20000000 -- "${output:-/dev/null}" | awk -v since="$since" '{ print NR < since ? "" : $0 }'; }

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit; }
shopt -s nullglob
id=${1:-} output='' run='' state='' since='' logs=()
if [[ -f $id ]]; then
    output=$id id='' # alone: a number in its name may be a date's, or that of a job elsewhere
elif [[ -d $id ]]; then
    run=$(realpath -- "$id") # logs/latest is a link
    id=${run##*/} id=${id%.*}
fi
[[ $# == 1 && (-n $output || $id =~ ^[1-9][0-9]*(_[0-9]+)?$) ]] ||
    die "'$*': expected a job's number, the output of a job, or a folder logs/JOBID.ATTEMPT"
if [[ -n $id ]]; then
    facts=$(timeout 20 scontrol show job "$id" 2>/dev/null)
    (($(grep -c ^JobId= <<<"$facts") < 2)) || die "job $id is an array: name one of it, as ${id}_1"
    [[ ! $facts =~ JobId=([0-9]+) ]] || id=${BASH_REMATCH[1]} # that of 12_3 is another one
    state=$(grep -oE '\<(JobState|Reason|ExitCode)=[^ ]+' <<<"$facts" | paste -sd' ')
    [[ -n $state ]] || # scontrol forgets a job after minutes
        state=$(timeout 20 sacct -nPX -j "$id" -o State,ExitCode 2>/dev/null | sed -n '1s/\(.*\)|/JobState=\1 ExitCode=/p')
    output=$(sed -n 's/^ *StdOut=//p' <<<"$facts")
    outputs=({"$PWD","$project"}/*-{"$id","$1"}.out)
    [[ -f $output ]] || output=${outputs[0]:-}
    [[ -n $run ]] || run=$(printf '%s\n' "$project/logs/$id".* | sort -V | tail -n 1) # the newest attempt
fi
[[ -n $output$run$state ]] || die "Slurm does not know a job $id, and there is no *-$id.out in $PWD or $project: name its output file"
[[ $state != *COMPLETED* ]] || { echo "job $id did not fail: $state" && exit; }

[[ -z $run ]] || mapfile -t logs < <(cd "$run" && find . -name stderr.log -printf '%T@ %P\n' | sort -n)
read -r per_node late < <(printf '%s\n' "${logs[@]}" | awk -F '[ /]' '
    NF && $(NF - 1) >= most { most = $(NF - 1) + 1 }
    { late = NR > 1 && $1 - time > 0.5; time = $1 } # the last one ended half a second after all others
    END { print most + 0, late }')
since=$(show_output | grep -anE ' on [0-9]+ node\(s\), meeting at ' | tail -n 1 | cut -d : -f 1) # the newest attempt
# How the first rank failed (killed, error, exited, waited, peer, none) and the file that says so; then what the user sees of
# it. Where ranks have logs, of the output only launchers' words count.
mapfile -t failure < <(
    awk -v peer="$peer" -v download="$download" -v waited="$waited" -v per_node="$per_node" -v late="$late" \
        -v run="${run#"$PWD"/}" -v output="${output#"$PWD"/}" '
        function kind_of(text) { return text ~ peer && text !~ download ? "peer" : text ~ waited ? "waited" : "error" }
        function begin(way) {
            before[++count] = of[key]
            n = of[key] = count
            whose[n] = key (key == "" ? "" : " ")
            where[n] = from == "ranks" ? run "/" path : output ":" FNR
            kind[n] = way
            more[n] = 12 # lines of a message at most
        }
        function report(rank, host, way) { # a launcher says that a rank has ended; srun may mean the launcher of a node
            sub(/:$/, "", host)
            key = "rank " rank + 0 " on " host
            if ($1 == "srun:" && (parts > 3 || !(key in of))) key = "on " host
            # Who may have said why: that rank under its label; or, where a launcher ends as its ranks did, any of these.
            gsub(/\[[^]]*\]/, "[0-9]+", host) # srun may name several at once, node[9-10]
            spoke = $1 != "srun:" ? "rank" rank + 0 "]$" : "^ *" rank + 0 "(:|$)" (way == "exited" ? "| on " host "$" : "")
            n = of[key]
            for (k in of)
                if (!n && kind[of[k]] != "silent" && k ~ spoke) n = of[k]
            of[key] = n
            if (!n) begin("silent")
            if (kind[n] !~ /silent|cut/) return
            kind[n] = way
            said[n] = "; " substr($0, match($0, /[^ ]/))
        }
        from == "ranks" && /^==> .* <==$/ { # node1-HOST/…/LOCAL_RANK/stderr.log, the first to end comes first
            parts = split(path = $2, part, "/")
            key = last = "rank " substr(part[1], 5) * per_node + part[parts - 1] " on " substr(part[1], index(part[1], "-") + 1)
            begin("silent")
            next
        }
        from == "output" {
            if (/ (STEP|JOB) [0-9.]+ ON .* CANCELLED AT |Terminating (StepId|job step)/) told = 1 # to end, with signal 15 or 2
            if (!told && /^(srun: error: [^ ]+: tasks?|launch\/spawn\.py on [^ ]+: rank) [0-9]/ &&
                !/: Terminated|exit code (143|130)$|signal (15|2)$/)
                report($5, $3, / exit code / && $NF < 128 ? "exited" : "killed")
            if (/^[a-z]+ noticed that process rank /) report($6, $12, "killed") # mpirun; that of Open MPI 5 breaks the line
            if (/^ +(host|rank) +: /) seen[$1] = $3 # torchrun, on each node
            if (/^ +exitcode +: / && $3 != -15 && $3 != -2) report(seen["rank"], seen["host"], $3 < 0 ? "killed" : "exited")
            if (last) next
        }
        { # a line of a rank, which begins with [HOST:RANK], RANK: or [rankRANK]:
            match($0, /^(\[[^] ]+:[0-9]+\] ?|\[(default|rank)[0-9]+\]: ?| *[0-9]+: )*/)
            text = substr($0, RLENGTH + 1)
            if (!last) key = substr($0, 1, RLENGTH)
            sub(/[: ]+$/, "", key)
            n = of[key]
        }
        text ~ /^(\[?[WIE][0-9]+ |srun: |slurmstepd|-----|[ \t]*$)/ && text !~ /Watchdog caught/ { next }
        text ~ /^Traceback \(most|Watchdog caught|^terminate called|^Fatal Python error|[a-z]\.py: error: / {
            if (text ~ /^terminate/ && kind[n] ~ /error|waited|peer/) more[n] = 0 # it goes down, and has said why
            else if (!chained[n]) begin(text ~ /^Traceback/ ? "cut" : kind_of(text))
            inside[n] = text ~ /^Traceback/
        }
        inside[n] || kind[n] == "silent" || more[n]-- > 0 {
            words[n, ++lines[n]] = substr($0, 1, 240)
            # The next traceback is no failure of its own: of a chain, of a thread that goes down too, of what Python tidies up.
            chained[n] = text ~ /^(Exception ignored|Error in atexit)/ ||
                kind[n] != "silent" && text ~ /^(During handling of|The above exception was|Exception in thread)/
            if (!inside[n] && kind[n] == "error" && kind_of(text) == "peer") kind[n] = "peer"
            if (!inside[n] || text ~ /^( |Traceback)/) next
            if (key == "" && before[n] && text ~ /ChildFailedError|CalledProcessError/) kind[n] = "launcher" # a rank spoke
            if (kind[n] == "cut") kind[n] = kind_of(text) # of a chain of exceptions the first one decides
            if (!head[n]) head[n] = lines[n]
            inside[n] = 0
        }
        END {
            for (n = count; n; n--) # what each said last
                if (kind[n] != "launcher" && !heard[whose[n]]++) earliest[kind[n]] = n
            split("killed error exited waited peer", ways, " ")
            while (!one && i++ < 5) one = earliest[found = ways[i]]
            # All others complain: it is the one that said nothing, or, if it was stopped and woke up to be told to end, the last.
            if (found ~ /waited|peer/) hung = earliest["silent"]
            if (found == "waited" && !hung && (late || last && kind[of[last]] == "peer")) hung = of[last]
            if (found == "peer" && lines[hung]) one = hung # it has an error message of its own
            print (one ? found : "none") "\t" where[one]
            if (hung) print "first failure: " whose[hung] "(" where[hung] ") hung, or ended without a traceback"
            if (one && one != hung) print (hung ? "who waited for it: " : "first failure: ") whose[one] "(" where[one] ")" said[one]
            if (head[one] && head[one] < lines[one] - 29) print words[one, head[one]] # the first one of a chain
            for (i = lines[one] > 30 ? lines[one] - 29 : 1; i <= lines[one]; i++) print words[one, i]
        }
    ' from=ranks <([[ -z ${logs[*]} ]] || { cd "$run" && show -v -c 16384 -- "${logs[@]#* }"; }) from=output <(show_output)
)
IFS=$'\t' read -r found file <<<"${failure[0]}"
output=${output:-$file} name=${output#"$PWD"/}
[[ ! -f $output ]] || (($(stat -Lc %s -- "$output") <= 20000000)) || name+=" (its last 20 MB)"
hits=$(show_output | grep -m 20000 -naE -f <(sed -n 's/^[1-4] //p' <<<"$known") | grep -avE "$harmless" | cut -c 1-300)
# A rank that failed of itself says why. Beside it are warnings that stand in good runs too: only what Slurm says counts.
[[ $found != error ]] || hits=$(grep -aF -f <(printf '%s\n' "${failure[@]:2}" slurmstepd srun: oom DUE Xid '*** JOB' .sh:) <<<"$hits")
[[ -z $state ]] || hits="0:$state"$'\n'$hits
case $found in error) lost=0 ;; peer) lost=4 ;; *) lost=3 ;; esac
# The three most probable causes in these lines.
while read -r section regex && read -r advice; do
    hit=$(grep -am 1 -E -- "$regex" <<<"$hits") && printf '%s\t%s\t%s\n' "$section" "${hit/:/$'\t'}" "${advice/ -> /$'\t'}"
done <<<"$known" | sort -s -t $'\t' -k 1,1n -k 2,2n | awk -F '\t' -v lost="$lost" -v name="$name" -v job="$id" '
    !seen[$2]++ && ($1 < 3 || $1 == lost && !causes) && ++causes <= 3 { # a line proves one cause
        print "cause: " ($4 == "=" ? $3 : $4)
        print "proof: " ($2 ? name ":" $2 : "scontrol show job " job) ": " $3
        print "fix: " $5
    }
    END { exit !causes }'
unknown=$?
((!unknown)) || [[ $found == error ]] || echo "no cause known to doctor.sh${state:+ ($state)}; what follows may say more"
[[ $unknown$found != 1error ]] || failure[1]+=": the program failed by itself; its own words:"
[[ $unknown$found != 1none ]] || mapfile -t -O 1 failure < <(show_output | tail -n 10 | cut -c 1-240)
((${#failure[@]} < 2)) || printf '%s\n' "${failure[@]:1}"
[[ $found != exited ]] || show -n 10 -- "${file%err.log}out.log" 2>/dev/null | cut -c 1-240 # it may have said why there
exit $unknown
