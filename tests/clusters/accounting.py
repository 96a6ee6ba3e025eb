"""Accounts and QoS for a Slurm of the tests: slurmdbd, and a MariaDB that only a socket leads to.

Four pieces, which fit a controller on loopback as well as the login node of slurm_cluster.Cluster:

    conf += slurm_conf(host, port, munge)              instead of the lines that name accounting_storage/none
    write_slurmdbd_conf(etc, host=…, port=…, …)        slurmdbd.conf, which must lie beside slurm.conf
    SHELL                                              functions of bash, to be run where munged runs already:
        start_mariadb $D/db /run/mysql.sock
        start_slurmdbd /run/mysql.sock 10.77.0.1 6819
        load_accounts $D/etc/accounts                  what sacctmgr is to be told, one command a line
        slurmctld -c -D &                              only now: it loads what is there, and can miss no change
    accounts("test", {"abc": ["root"]}, …)             the usual contents of that file

The rest of slurm.conf must not name AccountingStorageType and JobAcctGatherType as well. Most of the start is sacctmgr,
which waits for delayed acknowledgements on loopback; in a network namespace of one's own a route without them makes it
three times as fast:
    ip route change local 10.77.0.1 dev br0 table local proto kernel scope host src 10.77.0.1 quickack 1

Everything that is started dies with the shell that started it, however that shell ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from slurm_cluster import PATH

PACKAGES = "slurmdbd slurm-wlm-mysql-plugin mariadb-server-core"

SLURM_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={host}
AccountingStoragePort={port}
# of munged's socket AuthInfo alone does not tell it
AccountingStoragePass={munge}
AccountingStorageEnforce=associations,limits,qos,safe
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
"""

# Listen at the address of this machine's own name alone, if it has one.
LISTEN = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost=localhost
DbdAddr={host}
DbdPort={port}
SlurmUser={user}
LogFile={log}
PidFile={pid}
{listen}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc={database}
StorageUser=root
"""

SHELL = r"""
# start_mariadb FOLDER SOCKET: makes a database in a new folder and serves it; returns when the socket is there.
# The distribution's mariadb-install-db wants more packages, and fills tables with passwords and help that nobody needs.
start_mariadb() {
    local folder=$1 socket=$2 pid tables
    local options=(--no-defaults --datadir="$folder" --user="$(id -un)" --skip-grant-tables --skip-networking
        # What a crash would lose is not needed: nothing waits for the disk.
        --innodb-flush-method=nosync --innodb-flush-log-at-trx-commit=0 --sync-binlog=0
        # A file for each of a cluster's forty tables takes longer than all that is written into them.
        --innodb-file-per-table=OFF --innodb-stats-persistent=OFF
        --innodb-buffer-pool-size=64M --innodb-log-file-size=8M --performance-schema=OFF --pid-file="$folder/pid")
    for tables in /usr/share/m{ysql,ariadb}/m{ysql,ariadb}_system_tables.sql; do [[ ! -e $tables ]] || break; done
    mkdir -p "$folder"
    { printf 'create database mysql;\nuse mysql;\n' && cat "$tables"; } |
        mariadbd "${options[@]}" --bootstrap 2>"$folder.log" || { tail "$folder.log" >&2; return 1; }
    setpriv --pdeathsig=KILL mariadbd "${options[@]}" --socket="$socket" >>"$folder.log" 2>&1 &
    pid=$!
    until [[ -S $socket ]]; do kill -0 $pid || { tail "$folder.log" >&2; return 1; }; sleep 0.01; done
}

# start_slurmdbd SOCKET HOST PORT: returns when it answers. SLURM_CONF says in which folder its file lies.
start_slurmdbd() {
    local pid
    MYSQL_UNIX_PORT=$1 setpriv --pdeathsig=KILL slurmdbd -D &
    pid=$!
    until (: <"/dev/tcp/$2/$3") 2>/dev/null; do kill -0 $pid || return 1; sleep 0.1; done
}

# load_accounts FILE: what the cluster is called, and that it has GPUs, slurmdbd learns from a controller alone. So one
# runs until this is known, and the lines of the file can name both; without the QoS of partitions, which are not there.
load_accounts() {
    local said pid
    sed '/^PartitionName=/s/ \(QOS\|AllowQos\)=[^ ]*//g' "$SLURM_CONF" >"$SLURM_CONF.first"
    SLURM_CONF=$SLURM_CONF.first setpriv --pdeathsig=KILL slurmctld -c -D &
    pid=$!
    until [[ $(sacctmgr -nP show tres format=type,name) == *"gres|gpu"* ]]; do
        kill -0 $pid || return 1
        sleep 0.05
    done
    kill -9 $pid
    wait $pid 2>/dev/null || true
    said=$(sacctmgr -i <"$1" 2>&1) || { echo "$said" >&2; return 1; }
}
"""


def missing() -> str:
    """Return what is not installed and where it comes from; '' if all is there."""
    tools = [tool for tool in ("slurmdbd", "sacctmgr", "mariadbd", "setpriv") if not shutil.which(tool, path=PATH)]
    return f"{', '.join(tools)} not installed: apt-get install {PACKAGES}" if tools else ""


def slurm_conf(host: str, port: int, munge: Path | str) -> str:
    """Return the lines of slurm.conf; host is the address of slurmdbd, munge the path of munged's socket."""
    return SLURM_CONF.format(host=host, port=port, munge=munge)


def write_slurmdbd_conf(
    folder: Path, *, host: str, port: int, munge: Path | str, user: str, log: Path, database="slurm", listen=LISTEN
):
    """Write slurmdbd.conf, which slurmdbd wants to be readable by `user` alone, who must own it."""
    path = Path(folder) / "slurmdbd.conf"
    path.touch(mode=0o600)
    pid = Path(log).with_suffix(".pid")
    path.write_text(
        SLURMDBD_CONF.format(
            host=host, port=port, munge=munge, user=user, log=log, pid=pid, database=database, listen=listen
        )
    )


def accounts(cluster: str, users: dict[str, list[str]], qos: dict[str, str] | None = None, default_qos="") -> str:
    """Return commands for sacctmgr: accounts with their users, and each QoS with its limits.

    users: the accounts' names, and who belongs to them; of a user's accounts the first is the default.
    qos: names, and limits as sacctmgr calls them ("MaxWall=01:00:00 MaxTRESPerJob=node=4"). All users may use all, and
    what is beyond a limit is refused at submission instead of waiting for ever.
    """
    lines = []
    for name, limits in (qos or {}).items():
        lines.append(f"{'modify' if name == 'normal' else 'add'} qos {name} set {limits} Flags=DenyOnLimit")
    default_account = next(iter(users), "")
    names = ",".join(["normal", *(name for name in qos or {} if name != "normal")])
    for account, members in users.items():
        lines.append(f"add account {account} cluster={cluster}")
        for user in members:
            default = f" defaultqos={default_qos}" if default_qos else ""
            lines.append(f"add user {user} account={account} cluster={cluster} qos={names}{default}")
    if default_account and "root" in users[default_account]:  # Slurm itself has given root an account of that name
        lines.append(f"modify user root set defaultaccount={default_account}")
    return "\n".join(lines) + "\n"
