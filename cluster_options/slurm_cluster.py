"""What a user may have of a Slurm cluster, as the commands of slurm_commands.py say. It needs no package."""

from __future__ import annotations

import os
import re
from collections import Counter

from .slurm_commands import (
    ASSOCIATION,
    QOS,
    TRES,
    as_walltime,
    default_qos_of,
    kinds_of_nodes,
    minutes_in,
    number_in,
    rows_in,
    settings_in,
    stricter,
    unique,
)

NOTHING = ("", "ALL", "N/A", "(null)", "NONE")  # settings that set nothing
SUPPORT = "ask your cluster's support"


class DescribeError(Exception):
    """The cluster cannot be described; the message is one sentence: the command, what it said, what to do."""


class Cluster:
    """The facts, ready to be written."""

    def __init__(self, user, said):
        """said: the answer to each of COMMANDS."""
        self.user, self.said = user, said
        self.config = dict(re.findall(r"^(\w+)\s*= *(.*?) *$", said["config"].stdout, re.M))
        self.name = self.config.get("ClusterName", "")
        self.enforced = self.config.get("AccountingStorageEnforce", "").lower().split(",")
        self._read_accounting()
        kinds = kinds_of_nodes(said["nodes"].stdout)
        found = [
            Partition(self, row, kinds) for row in settings_in(said["partitions"].stdout) if "PartitionName" in row
        ]
        self.partitions = [one for one in found if not one.closed]
        self.closed = [f"{one.name}, {one.closed}" for one in found if one.closed]
        if not self.partitions:
            shown = "; ".join(self.closed[:5]) or "there is none"
            raise DescribeError(f"scontrol show partition: none is open to {user} ({shown}); {SUPPORT} which is yours")
        self.main = max(self.partitions, key=self._rank)
        # what holds where a partition says nothing else; memory only if all have it, as none cannot be said
        everywhere = all("memory" in one.node for one in self.partitions)
        self.node = {key: value for key, value in self.main.node.items() if key != "memory" or everywhere}
        self._choose_account_and_qos()

    def _read_accounting(self):
        """Set what the user may use of accounts and QoS; nothing where sacctmgr is silent or Slurm does not ask."""
        answers = [self.said[name] for name in ("associations", "qos", "default")]
        self.failed = next((answer for answer in answers if answer.returncode != 0), None)
        rows, qos, default = ("" if self.failed else answer.stdout for answer in answers)
        self.associations = [row for row in rows_in(rows, ASSOCIATION) if row["Cluster"].lower() == self.name.lower()]
        self.accounts = unique(row["Account"] for row in self.associations)
        self.default_account = next((name for name in default.split("\n")[:1] if name in self.accounts), "")
        if "associations" not in self.enforced:
            self.accounts = []
        elif not self.accounts and not self.failed:
            none = f"sacctmgr show assoc user={self.user}: none, and this cluster refuses jobs without an account"
            raise DescribeError(f"{none}; {SUPPORT} for one")
        self.every_qos = {row["Name"]: row for row in rows_in(qos, QOS)}
        own = {name for row in self.associations for name in row["QOS"].split(",")}
        if "qos" not in self.enforced:  # then anybody may take any
            own = self.every_qos if "limits" in self.enforced else ()
        self.qos = {name: row for name, row in self.every_qos.items() if name in own}

    def limits_of(self, row):
        """Return what a QoS or association allows one job (minutes), and in words what a site file has no key for."""
        limits, told, row = {}, [], row if "limits" in self.enforced else {}
        if minutes_in(row.get("MaxWall", "")):
            limits["max_time"] = minutes_in(row["MaxWall"])
        for column, keys in TRES.items():
            for name, amount in re.findall(r"([\w/:.-]+)=([\w.]+)", row.get(column, "")):
                if name in keys and number_in(amount):
                    limits = stricter(limits, {keys[name]: number_in(amount)})
                else:
                    told.append(f"{column} {name}={amount}")
        return limits, told

    def _rank(self, partition):
        """The partition for a first job: has nodes that are up, GPUs, and is where jobs go that name none."""
        return (
            partition.surely_open,
            partition.usable > 0,
            partition.node["gpus"] > 0,
            not self.default_account or self.default_account in partition.accounts,
            partition.default,
            len(partition.kinds) == 1,
            partition.usable,
        )

    def _choose_account_and_qos(self):
        """Set account, association and QoS of a first job, and the QoS that Slurm takes where a job names none."""
        own = self.main.accounts
        self.account = self.default_account if self.default_account in own else own[0] if len(own) == 1 else ""
        rows = sorted(self.main.associations, key=lambda row: row["Partition"])  # one of this very partition goes first
        self.association = next((row for row in rows[::-1] if row["Account"] == self.account), {})
        self.default_qos, self.named_qos, self.needs_qos = "", "", False
        if "qos" in self.enforced and self.associations:
            default = default_qos_of(self.association)
            allowed = self.association.get("QOS", "").split(",")
            usable = [name for name in self.main.qos if name in allowed] or self.main.qos
            self.needs_qos = default not in usable
            if self.needs_qos:  # one that takes a single node, as builds are
                self.named_qos = min(usable, key=lambda name: self.limits_of(self.qos[name])[0].get("min_nodes", 1))
            elif all(default_qos_of(row) == default for row in self.associations):
                self.default_qos = default
            elif self.limits_of(self.qos[default])[0]:  # with other accounts it is another: checked only if named
                self.named_qos = default

    def defaults(self):
        """Return nodes, GPUs and time of a first job, within all limits that it meets."""
        limits = self.main.limits
        for row in (self.qos.get(self.named_qos or self.default_qos, {}), self.association):
            limits = stricter(limits, self.limits_of(row)[0])
        gpus, most = self.main.node["gpus"], limits.get("max_gpus", 10**6)
        nodes = max(limits.get("min_nodes", 1), min(2, limits["max_nodes"], max(1, self.main.usable), most))
        minutes = min(30, limits.get("max_time", 30), max(1, limits.get("max_node_minutes", 30 * nodes) // nodes))
        return {"nodes": nodes, "gpus_per_node": min(gpus, most // nodes), "time_limit": as_walltime(minutes)}


class Partition:
    """What a user may have of a partition; `closed` is why that is nothing, and then the rest is not read."""

    def __init__(self, cluster, said, kinds):
        """said: the settings of the partition. kinds: the kinds of nodes of each partition."""
        self.name, self.said, self.about = said["PartitionName"], said, []
        self.kinds, self.default = kinds.get(self.name, []), said["Default"] == "YES"
        self._read_users(cluster)
        self.closed = self._closed_because(cluster)
        if not self.closed:
            self._read_node(cluster)
            self._read_limits(cluster)

    def _read_users(self, cluster):
        """Set which accounts and QoS of the user go with the partition."""
        held = [row for row in cluster.associations if row["Partition"] in ("", self.name)]
        self.associations = [row for row in held if self._takes("Accounts", row["Account"])]
        self.surely_open = bool(self.associations) or not self._listed("AllowAccounts")
        version = [int(number) for number in re.findall(r"\d+", cluster.config.get("SLURM_VERSION", ""))]
        # since 23.02 the list means the accounts below the named ones, too
        if not self.surely_open and (version >= [23, 2] or not cluster.accounts):
            self.associations = held
            self.about = ["perhaps not for you: AllowAccounts names no account known to be yours"]
        self.accounts = unique(row["Account"] for row in self.associations)
        if len(self.accounts) < len(cluster.accounts):
            self.about.append(f"of your accounts only {', '.join(self.accounts)}")
        own = {name for row in self.associations for name in row["QOS"].split(",")}
        own = own if "qos" in cluster.enforced else cluster.qos
        self.qos = [name for name in cluster.qos if name in own and self._takes("Qos", name)]

    def _closed_because(self, cluster):
        """Return why the user cannot use the partition; '' if that is not so."""
        said = self.said  # partitions of other groups Slurm does not even show
        rules = [f"{key}={said[key]}" for key in said if re.match("Allow|Deny", key) and said[key] not in NOTHING]
        reasons = {
            f"State={said['State']}": said["State"] != "UP",
            "scontrol show node has no nodes of it": not self.kinds,
            "RootOnly=YES": said["RootOnly"] == "YES" and os.getuid() != 0,
            "ReqResv=YES, it takes a reservation": said["ReqResv"] == "YES",
            f"no account of yours goes with it: {' '.join(rules)}": cluster.accounts and not self.accounts,
            f"no QoS of yours goes with it: {' '.join(rules)}": cluster.qos and not self.qos,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _listed(self, key):
        """Return the names in a setting, [] where all are meant or the setting is absent."""
        value = self.said[key]
        return [] if value in NOTHING else value.split(",")

    def _takes(self, what, name):
        allowed = self._listed(f"Allow{what}")
        return name in allowed if allowed else name not in self._listed(f"Deny{what}")

    def _read_node(self, cluster):
        """Set what holds for every node that has GPUs, or for every node if none has any."""
        total, said, config = Counter(), self.said, cluster.config
        for kind in self.kinds:
            total.update({name: kind.count * count for name, count in kind.gpus.items()})
        # the scheduler would mix types; a slice of a GPU (MIG) is the last that one wants
        names = [name for name in total if re.fullmatch(r"[\w-]+", name, re.ASCII)] if len(total) > 1 else []
        chosen = max(names, key=lambda name: (not re.search(r"\dg", name), total[name]), default="")
        kinds = [kind for kind in self.kinds if (chosen in kind.gpus if chosen else kind.gpus)] or self.kinds
        cores = min([kind.cpus for kind in kinds] + [number_in(said["MaxCPUsPerNode"]) or kinds[0].cpus])
        # each rank needs a core
        gpus = min(cores, *(kind.gpus[chosen] if chosen else sum(kind.gpus.values()) for kind in kinds))
        select, parameters = config.get("SelectType", ""), config.get("SelectTypeParameters", "")
        option = "--gpus-per-node=" if "cons_tres" in f"{select} {parameters}".lower() else "--gres=gpu:"
        whole = select == "select/linear" or said["OverSubscribe"] == "EXCLUSIVE"
        self.node = {"gpus": gpus, "cores": cores, "gpu_option": f"--gres=gpu:{chosen}:" if chosen else option}
        if gpus:
            words = ",".join(f"{kind.gres},{kind.features}" for kind in kinds)
            self.node["gpu_vendor"] = "amd" if re.search(r"(?<![a-z])mi\d{2,3}", words.lower()) else "nvidia"
        self.node |= {"whole": whole, "cpu_only": not all(kind.gpus for kind in self.kinds)}
        self.usable = sum(kind.up for kind in kinds)
        self.limits = {"max_nodes": number_in(said["TotalNodes"])}
        if len(kinds) < len(self.kinds) and gpus:
            self.limits["max_gpus"] = sum(kind.count for kind in kinds) * gpus
        parameters = ",".join(self._listed("SelectTypeParameters")) or parameters  # the partition's own go first
        if "memory" in parameters.lower():
            settings = " ".join(f"{key}={value}" for key, value in said.items()), cluster.said["config"].stdout
            found = [re.findall(r"(DefMemPer\w+) *= *([1-9]\d*)", text) for text in settings]
            given = ", ".join(f"{key}={amount} MB" for key, amount in found[0] or found[1])
            if whole:
                self.node["memory"] = "0"
            else:  # --mem=0 is what a job without gets anyway, and no figure suits every number of GPUs
                self.about.append(f"without --mem a job gets {given or 'all memory of its nodes'}")

    def _read_limits(self, cluster):
        """Set the limits of the partition and of the QoS that it has itself, which hold for every job in it."""
        stated = {"max_nodes": number_in(self.said["MaxNodes"]), "min_nodes": number_in(self.said["MinNodes"])}
        stated["max_time"] = minutes_in(self.said["MaxTime"])
        stated = {key: value for key, value in stated.items() if value > (key == "min_nodes")}  # a least of 1 is none
        self.own_limits, told = cluster.limits_of(cluster.every_qos.get(self.said["QoS"], {}))
        self.limits = stricter(stricter(self.limits, stated), self.own_limits)
        gpus = unique(f"{count} {name}".strip() for kind in self.kinds for name, count in kind.gpus.items())
        self.about = [f"GPUs of a node: {', '.join(gpus)}"] * bool(gpus) + self.about + told
        lifting = [name for name in self.qos if re.search("Partition|OverPartQOS", cluster.qos[name]["Flags"])]
        if lifting:
            self.limits["confirmed"] = False
            self.about.append(f"QoS {', '.join(lifting)} may go beyond these limits (Flags)")
