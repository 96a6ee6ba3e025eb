"""What the daemons of slurm_cluster.py are given: options, slurm.conf, and the scripts that start them on each node."""

from __future__ import annotations

MUNGED = (
    "--foreground --force --key-file={d}/etc/munge.key --socket={run}/munge.sock --pid-file={d}/run/munged.pid"
    " --log-file={d}/log/munged.log --seed-file={d}/run/munged.seed"
)

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={login}({login_address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# cred_expire: otherwise a requeued job waits two minutes before it may start again
AuthInfo=socket={run}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={d}/state
SlurmdSpoolDir={spool}
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
# PMIx keeps its files here: every node needs a place of its own
TmpFS={node_local}
# nothing that needs cgroups or more cores than this machine has; config_overrides: believe the declared hardware
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# schedule at once
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1
# refuse at submission what can never run
EnforcePartLimits=ALL
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=30
TCPTimeout=2
MessageTimeout=10
KillWait=5
MinJobAge=3600
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={d}/log/jobcomp.log
MailProg=/bin/true
"""
PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"

# Process 1 of the login node. It ends when its standard input does, that is when the test process closes the pipe or
# dies in whatever way; with it the kernel ends every process of the cluster and takes down mounts and network.
LOGIN_SCRIPT = """
set -eu
die() { echo "$*" >&2; exit 1; }
hostname login
if [[ -n $ROOT ]]; then  # enter another distribution, of which nothing is changed
    mount -t tmpfs tmpfs "$D/root"
    for entry in "$ROOT"/*; do
        name=${entry##*/}
        if [[ -L $entry ]]; then cp -P "$entry" "$D/root/"; fi
        if [[ -L $entry || ! -d $entry ]]; then continue; fi
        mkdir "$D/root/$name"
        [[ " dev home proc root run sys tmp " == *" $name "* ]] || mount --bind "$entry" "$D/root/$name"
    done
    for path in "$@"; do
        if [[ -d $path ]]; then mkdir -p "$D/root$path"; else touch "$D/root$path"; fi
        mount --rbind "$path" "$D/root$path"
    done
    mount --bind /etc/passwd "$D/root/etc/passwd"
    mount --bind /etc/group "$D/root/etc/group"
    cd "$D/root"
    pivot_root . .
    umount -l .
    cd /
fi
mount --bind "$D/etc/hosts" /etc/hosts
mount --bind "$D/etc/nsswitch.conf" /etc/nsswitch.conf
mount -t tmpfs tmpfs /run  # sockets: their paths must be short
mkdir /run/slurmd
source "$D/etc/private.sh"
ip link add br0 type bridge
ip address add 10.77.0.1/24 dev br0
ip link set br0 up
[[ -z $DISK_MB ]] || mount -t tmpfs -o "size=${DISK_MB}m" tmpfs "$D/disk"

munged $MUNGED &
munged=$!
until [[ -S /run/munge.sock ]]; do kill -0 $munged || die "munged did not start"; sleep 0.01; done
if [[ -e $D/etc/accounts ]]; then
    source "$D/etc/accounting.sh"
    # sacctmgr waits for acknowledgements that loopback delays
    ip route change local 10.77.0.1 dev br0 table local proto kernel scope host src 10.77.0.1 quickack 1
    start_mariadb "$D/db" /run/mysql.sock || die "MariaDB did not start"
    start_slurmdbd /run/mysql.sock 10.77.0.1 6819 || die "slurmdbd did not start"
    load_accounts "$D/etc/accounts" || die "sacctmgr refused $D/etc/accounts"
fi
slurmctld -c -D &
slurmctld=$!
until (: </dev/tcp/10.77.0.1/6817) 2>/dev/null; do kill -0 $slurmctld || die "slurmctld did not start"; sleep 0.02; done

declare -A pid
boot() {
    local name=$1 number=${1#node}
    unshare $UNSHARE bash "$D/etc/node.sh" "$name" "10.77.0.$((10 + number))" &
    pid[$name]=$!
    until [[ $(readlink "/proc/${pid[$name]}/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.005; done
    ip link delete "veth$number" 2>/dev/null || :  # of a node that crashed a moment ago: the kernel takes its time
    # always the same address: the others would look for a node that is booted again at the old one
    ip link add "veth$number" type veth peer name eth0 address "$(printf 02:00:00:00:00:%02x "$number")" \
        netns "${pid[$name]}"
    ip link set "veth$number" master br0 up
}
for name in $NODES; do boot "$name"; done
: >"$D/run/ready"
while read -r verb name; do
    case $verb in
        boot) boot "$name" ;;
        crash) kill -9 "${pid[$name]}" ;;
        cut) ip link set "veth${name#node}" down || : ;;  # a node without power has none
        mend) ip link set "veth${name#node}" up || : ;;
    esac
done
"""

NODE_SCRIPT = """
set -eu
hostname "$1"
source "$D/etc/private.sh"
until ip link set eth0 up 2>/dev/null; do sleep 0.005; done
ip address add "$2/24" dev eth0
slurmd -D -N "$1" &
sleep infinity  # without its slurmd a node goes on
"""

PRIVATE_SCRIPT = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs "$D/node"
mount -t tmpfs tmpfs /run/slurmd
mount -t sysfs sysfs /sys  # /sys/class/net of this node, not of the machine
ip link set lo up
"""
