"""Reads the facts of a Slurm cluster off the cluster itself, and writes them down as a site file.

`site=here` and `python3 -m cluster_options describe` call it. It asks with commands that any user may type on a login
node, each with a time limit, and needs nothing but Python. Where only Slurm itself can say which of two limits goes
first, the limit is written with `confirmed: false`. Then it warns instead of refusing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace

TIMEOUT = 10  # seconds, for each command
MODULE_TIMEOUT = 3  # modules are a help, not a need
LINE = 150  # characters
GIVE_UP = "answer another site, for example site=slurm, which assumes nothing about the cluster"
SUPPORT = "ask your cluster's support"

ASSOCIATION = ("Cluster", "Account", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxTRES", "MaxTRESMins")
_MOST = {"node": "max_nodes", "gres/gpu": "max_gpus"}
TRES = {  # columns of sacctmgr: the limits that they are; one job cannot be larger than all of a user's together
    **{"MaxTRES": _MOST, "MaxTRESPU": _MOST, "MaxTRESPA": _MOST, "GrpTRES": _MOST},
    **{"MinTRES": {"node": "min_nodes"}, "MaxTRESMins": {"node": "max_node_minutes"}},
}
QOS = ("Name", "Flags", "MaxWall", *TRES)
RUNTIMES = {"apptainer": "apptainer", "singularity": "apptainer"}  # programs, and what the template calls them
RUNTIMES |= {name: name for name in ("enroot", "shifter", "podman-hpc")}
SOURCES = {  # of what is said of nodes
    "gpus": "scontrol show node: Gres; of several kinds the least",
    "cores": "scontrol show node: CPUEfctv, scontrol show partition: MaxCPUsPerNode; of several the least",
    "gpu_option": "scontrol show config: SelectType; with a type where Gres has several, which would be mixed",
    "gpu_vendor": "scontrol show node: Gres or AvailableFeatures with mi… are AMD's",
    "whole": "scontrol show partition: OverSubscribe=EXCLUSIVE, or scontrol show config: SelectType=select/linear",
    "cpu_only": "scontrol show node: whether some have no Gres=gpu",
    "memory": "scontrol show config: SelectTypeParameters allots memory, and a job on whole nodes wants all",
}
DOWN = r"\b(DOWN|DRAIN|FAIL|INVAL|ERROR|UNK|MAINT|FUTURE|NO_RESP|NOT_RESP|REBOOT)|[*$]"  # states of nodes
NOTHING = ("", "ALL", "N/A", "(null)", "NONE")  # settings that set nothing
SHOWN = "TotalNodes|(Max|Min)Nodes|MaxTime|QoS|(Allow|Deny)(Accounts|Qos)"  # of a partition
PLUGINS = {"pyxis": "--container-image", "edf": "--environment"}  # options that these add to srun

COMMANDS = {
    "config": ["scontrol", "show", "config"],
    "partitions": ["scontrol", "--oneliner", "show", "partition"],
    "nodes": ["scontrol", "--oneliner", "show", "node"],
    "associations": ["sacctmgr", "-nP", "show", "assoc", "user={user}", f"format={','.join(ASSOCIATION)}"],
    "default": ["sacctmgr", "-nP", "show", "user", "{user}", "format=defaultaccount"],
    "qos": ["sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS)}"],
    "srun": ["srun", "--help"],
    "mpirun": ["mpirun", "--version"],
    "torch": ["python3", "-c", "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"],
    "modules": ["bash", "-lc", "type module >/dev/null 2>&1 && module -t avail 2>&1"],
}


class DescribeError(Exception):
    """The cluster cannot be described; the message is one sentence: the command, what it said, what to do."""


def describe() -> str:
    """Return the text of a site file for the Slurm cluster that this machine belongs to, as its user may use it.

    Takes a fraction of a second where the cluster answers, and at most 30 where it does not. Raises DescribeError.
    """
    if not shutil.which("scontrol"):
        raise DescribeError(f"scontrol: there is no such program on PATH; load the module that has it, or {GIVE_UP}")
    said = {"ping": _run(["scontrol", "ping"])}  # says in milliseconds what other commands try for ten seconds
    if " is UP" in said["ping"].stdout:
        user = _run(["id", "-un"]).stdout.strip() or str(os.getuid())
        commands = [[word.replace("{user}", user) for word in command] for command in COMMANDS.values()]
        with ThreadPoolExecutor(len(commands)) as pool:
            said |= zip(COMMANDS, pool.map(_run, commands))
    asked = [said.get(name, said["ping"]) for name in ("config", "partitions", "nodes")]
    failed = [answer for answer in asked if len(said) == 1 or answer.returncode != 0]
    if failed:
        again = "try again when the controller of this cluster answers (scontrol ping)"
        raise DescribeError(f"{_what_is_wrong(failed[0])}; {again}, or {GIVE_UP}")
    return "\n".join(_lines(_Cluster(user, said))) + "\n"


# ---- asking ----------------------------------------------------------------------------------------------------------


def _run(command) -> subprocess.CompletedProcess:
    """Return what a command says; the exit code is None where it is missing or took too long."""
    timeout = MODULE_TIMEOUT if command[0] == "bash" else TIMEOUT
    # settings that would change what these commands print, or turn them to another cluster
    unwanted = re.compile(r"(SINFO|SCONTROL|SACCTMGR)_|SLURM_(CLUSTERS|TIME_FORMAT)$")
    try:
        process = subprocess.Popen(
            command,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not unwanted.match(name)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, None, "", str(error.strerror))
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
            return subprocess.CompletedProcess(command, process.returncode, out, err)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            return subprocess.CompletedProcess(command, None, "", f"no answer within {timeout} s")


def _what_is_wrong(answer) -> str:
    """Return a command and the line of its output that says what went wrong."""
    said = answer.stderr.strip().splitlines()[-1:] or answer.stdout.strip().splitlines()[:1] or ["nothing"]
    return f"{' '.join(answer.args)}: {_plain(said[0])}"


# ---- understanding ---------------------------------------------------------------------------------------------------


class _Cluster:
    """The facts, ready to be written."""

    def __init__(self, user, said):
        self.user, self.said = user, said
        self.config = dict(re.findall(r"^(\w+)\s*= *(.*?) *$", said["config"].stdout, re.M))
        self.name = self.config.get("ClusterName", "")
        self.enforced = self.config.get("AccountingStorageEnforce", "").lower().split(",")
        self._read_accounting()
        kinds = _read_nodes(said["nodes"].stdout)
        found = [_Partition(self, row, kinds) for row in _settings(said["partitions"].stdout) if "PartitionName" in row]
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
        self.associations = [row for row in _rows(rows, ASSOCIATION) if row["Cluster"].lower() == self.name.lower()]
        self.accounts = _once(row["Account"] for row in self.associations)
        self.default_account = next((name for name in default.split("\n")[:1] if name in self.accounts), "")
        if "associations" not in self.enforced:
            self.accounts = []
        elif not self.accounts and not self.failed:
            none = f"sacctmgr show assoc user={self.user}: none, and this cluster refuses jobs without an account"
            raise DescribeError(f"{none}; {SUPPORT} for one")
        self.every_qos = {row["Name"]: row for row in _rows(qos, QOS)}
        own = {name for row in self.associations for name in row["QOS"].split(",")}
        if "qos" not in self.enforced:  # then anybody may take any
            own = self.every_qos if "limits" in self.enforced else ()
        self.qos = {name: row for name, row in self.every_qos.items() if name in own}

    def limits_of(self, row):
        """Return what a QoS or association allows one job (minutes), and in words what a site file has no key for."""
        limits, told, row = {}, [], row if "limits" in self.enforced else {}
        if _minutes(row.get("MaxWall", "")):
            limits["max_time"] = _minutes(row["MaxWall"])
        for column, keys in TRES.items():
            for name, amount in re.findall(r"([\w/:.-]+)=([\w.]+)", row.get(column, "")):
                if name in keys and _number(amount):
                    limits = _stricter(limits, {keys[name]: _number(amount)})
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
            default = _default_qos(self.association)
            allowed = self.association.get("QOS", "").split(",")
            usable = [name for name in self.main.qos if name in allowed] or self.main.qos
            self.needs_qos = default not in usable
            if self.needs_qos:  # one that takes a single node, as builds are
                self.named_qos = min(usable, key=lambda name: self.limits_of(self.qos[name])[0].get("min_nodes", 1))
            elif all(_default_qos(row) == default for row in self.associations):
                self.default_qos = default
            elif self.limits_of(self.qos[default])[0]:  # with other accounts it is another: checked only if named
                self.named_qos = default

    def defaults(self):
        """Return nodes, GPUs and time of a first job, within all limits that it meets."""
        limits = self.main.limits
        for row in (self.qos.get(self.named_qos or self.default_qos, {}), self.association):
            limits = _stricter(limits, self.limits_of(row)[0])
        gpus, most = self.main.node["gpus"], limits.get("max_gpus", 10**6)
        nodes = max(limits.get("min_nodes", 1), min(2, limits["max_nodes"], max(1, self.main.usable), most))
        minutes = min(30, limits.get("max_time", 30), max(1, limits.get("max_node_minutes", 30 * nodes) // nodes))
        return {"nodes": nodes, "gpus_per_node": min(gpus, most // nodes), "time_limit": _walltime(minutes)}


class _Partition:
    """What a user may have of a partition; `closed` is why that is nothing, and then the rest is not read."""

    def __init__(self, cluster, said, kinds):
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
        self.accounts = _once(row["Account"] for row in self.associations)
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
        cores = min([kind.cpus for kind in kinds] + [_number(said["MaxCPUsPerNode"]) or kinds[0].cpus])
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
        self.limits = {"max_nodes": _number(said["TotalNodes"])}
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
        stated = {"max_nodes": _number(self.said["MaxNodes"]), "min_nodes": _number(self.said["MinNodes"])}
        stated["max_time"] = _minutes(self.said["MaxTime"])
        stated = {key: value for key, value in stated.items() if value > (key == "min_nodes")}  # a least of 1 is none
        self.own_limits, told = cluster.limits_of(cluster.every_qos.get(self.said["QoS"], {}))
        self.limits = _stricter(_stricter(self.limits, stated), self.own_limits)
        gpus = _once(f"{count} {name}".strip() for kind in self.kinds for name, count in kind.gpus.items())
        self.about = [f"GPUs of a node: {', '.join(gpus)}"] * bool(gpus) + self.about + told
        lifting = [name for name in self.qos if re.search("Partition|OverPartQOS", cluster.qos[name]["Flags"])]
        if lifting:
            self.limits["confirmed"] = False
            self.about.append(f"QoS {', '.join(lifting)} may go beyond these limits (Flags)")


# ---- reading what commands print -------------------------------------------------------------------------------------


def _settings(text):
    """Return the lines of scontrol --oneliner as mappings; of equal keys the first, for a comment may hold anything."""
    return [defaultdict(str, re.findall(r"(\w+)=(\S*)", line)[::-1]) for line in text.splitlines()]


def _rows(text, names):
    """Return the lines of sacctmgr -P as mappings."""
    lines = (line.split("|") for line in text.splitlines())
    return [dict(zip(names, parts)) for parts in lines if len(parts) == len(names)]


def _read_nodes(text):
    """Return the kinds of nodes of each partition: memory in MB, GPUs by type, how many there are and are up."""
    found = {}
    for said in _settings(text):
        # Efctv: without the cores that the system keeps for itself; older Slurm does not say it
        cpus, memory = _number(said["CPUEfctv"] or said["CPUTot"]), _number(said["RealMemory"])
        gres, features = (said[key].replace("(null)", "none") for key in ("Gres", "AvailableFeatures"))
        for name in said["Partitions"].split(","):
            kinds = found.setdefault(name, {})
            new = {"cpus": cpus, "memory": memory, "gres": gres, "features": features, "gpus": _gpus(gres)}
            kind = kinds.setdefault(tuple(map(str, new.values())), SimpleNamespace(**new, count=0, up=0))
            kind.count += 1
            # * and NOT_RESPONDING mean that it does not answer; POWERED_DOWN, that it is asleep
            kind.up += not re.search(DOWN, said["State"])
    return {name: list(kinds.values()) for name, kinds in found.items()}


def _number(text) -> int:
    """Return a whole number; 0 for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def _minutes(text) -> float:
    """Return a time as Slurm prints it, [D-]HH:MM:SS, in minutes; 0 for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def _walltime(minutes) -> str:
    seconds = round(minutes * 60)
    days, hours = divmod(seconds // 3600, 24)
    return (f"{days}-" if days else "") + f"{hours:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _gpus(gres) -> dict:
    """Return the count of GPUs by type, '' where there is none, in for example gpu:a100:4(S:0-1),nvme:1."""
    found = Counter()
    for name, count in re.findall(r"\bgpu(?::([^:,]+?))??(?::(\d+))?(?=,|$)", re.sub(r"\([^)]*\)", "", gres)):
        found[name] += int(count or 1)
    return dict(+found)


def _default_qos(association) -> str:
    """Return what Slurm takes for a job that names no QoS."""
    names = association.get("QOS", "").split(",")
    return association.get("DefaultQOS") or (names[0] if len(names) == 1 else "") or "normal"


def _stricter(limits, more) -> dict:
    """Return the limits of both, where both have one the narrower."""
    narrower = {key: (max if key == "min_nodes" else min)(value, limits.get(key, value)) for key, value in more.items()}
    return {**limits, **narrower}


def _once(names) -> list:
    return list(dict.fromkeys(names))


# ---- writing ---------------------------------------------------------------------------------------------------------


def _plain(text) -> str:
    """Return text from the cluster as it may stand in a comment or a sentence: one line, nothing unprintable."""
    return "".join(character if character.isprintable() else " " for character in str(text)).strip()


WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # which YAML does not take for text


def _yaml(value) -> str:
    """Return a value as YAML on one line; text in quotes unless it is a plain word that can only be read as text."""
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    text = _plain(value)
    if re.fullmatch(r"[a-zA-Z_/][\w/+-]*([. ][\w/+-]+)*", text, re.ASCII) and text.lower() not in WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _clip(text, before=0) -> str:
    """Return a comment short enough for its line, of which some characters are taken."""
    text, most = _plain(text), max(LINE - before, 60)
    return "# " + (text if len(text) <= most else f"{text[: most - 1]}…")


def _fact(key, value, why="", indent=0) -> str:
    """Return the line KEY: VALUE # WHY; None for the head of lines that follow further in."""
    line = f"{'  ' * indent}{_yaml(key)}:{'' if value is None else ' ' + _yaml(value)}"
    return f"{line} {_clip(why, len(line))}" if why else line


def _queue(name, limits, about, **more):
    """Yield the lines of a partition or QoS, one if it is short enough; what says nothing is left out."""
    facts = {**limits, "about": "; ".join(about), **more}
    if "max_time" in limits:
        facts["max_time"] = _walltime(limits["max_time"])
    facts = {key: value for key, value in facts.items() if value not in (None, "", {})}
    line = _fact(name, facts, indent=1)
    yield from [line] if len(line) <= LINE else [_fact(name, None, indent=1)]
    yield from (_fact(key, value, indent=2) for key, value in facts.items() if len(line) > LINE)


def _lines(cluster):
    """Yield the lines of the site file."""
    today, host = date.today().isoformat(), socket.gethostname().split(".")[0]
    yield _clip(f"The Slurm cluster {cluster.name} as its commands show it to {cluster.user} on {host}, {today}.")
    yield "# Each fact names the command it was read from. Keep it, correct it, and answer its path as the site."
    if (plugins := cluster.config.get("JobSubmitPlugins", "(null)")) != "(null)":
        yield _clip(f"scontrol show config: JobSubmitPlugins={plugins}: jobs are changed or refused by unknown rules")
    if cluster.failed and "associations" in cluster.enforced:
        yield _clip(f"Accounts and QoS are not known: {_what_is_wrong(cluster.failed)}")
    yield from (_fact("title", f"{cluster.name} (this cluster)"), _fact("checked", today))
    yield from ("kind: slurm", "contact: your cluster's support")
    yield "docs: https://slurm.schedmd.com/sbatch.html # better: the pages of your own cluster"
    yield _fact("detect", {"cluster": [cluster.name]}, "scontrol show config: ClusterName")
    yield _fact("node", None, f"those of partition {cluster.main.name}")
    yield from (_fact(key, value, SOURCES[key], 1) for key, value in cluster.node.items())
    needed = {"account": cluster.accounts and not cluster.default_account, "qos": cluster.needs_qos}
    needed["partition"] = not any(one.default for one in cluster.partitions)
    if any(needed.values()):
        why = "has no default: sacctmgr show user, sacctmgr show assoc, scontrol show partition"
        yield _fact("required", [question for question, holds in needed.items() if holds], why)
    if cluster.accounts:
        yield _fact("accounts", cluster.accounts, "sacctmgr show assoc, which says:")
        yield from (_said(row) for row in cluster.associations)
    if "enable_expedited_requeue" in cluster.config.get("SlurmctldParameters", ""):
        yield _fact("expedited_requeue", True, "scontrol show config: SlurmctldParameters")
    yield from _lines_of_partitions(cluster)
    yield from _lines_of_qos(cluster)
    yield from _lines_of_software(cluster.said)
    yield from _lines_of_defaults(cluster)


def _said(row) -> str:
    """Return what sacctmgr says as a comment."""
    return f"  {_clip(' '.join(f'{key}={value}' for key, value in row.items() if value))}"


def _lines_of_partitions(cluster):
    yield "partitions: # scontrol show partition, above each line what it and scontrol show node say"
    for one in cluster.partitions:
        said = [
            f"{kind.up} of {kind.count} nodes up ({kind.cpus} CPUs, {kind.memory} MB, {kind.gres}, {kind.features})"
            for kind in one.kinds
        ]
        said += [f"{key}={value}" for key, value in one.said.items() if re.match(SHOWN, key) and value not in NOTHING]
        yield f"  {_clip(', '.join(said))}"
        differs = {key: value for key, value in one.node.items() if value != cluster.node.get(key)}
        yield from _queue(one.name, one.limits, one.about, default=one.default or None, node=differs)
    yield from (f"  {_clip(f'left out: {reason}')}" for reason in cluster.closed)


def _lines_of_qos(cluster):
    names = [name for name in cluster.qos if any(name in one.qos for one in cluster.partitions)]
    if names:
        yield "qos: # sacctmgr show qos, above each line what it says; which are yours: sacctmgr show assoc"
    for name in names:
        row, goes = cluster.qos[name], [one for one in cluster.partitions if name in one.qos]
        limits, told = cluster.limits_of(row)
        first = [one.name for one in goes if limits and one.own_limits]
        if first:
            limits["confirmed"] = False
            told.append(f"the QoS of partition {', '.join(first)} may go first")
        holders = _once(one["Account"] for one in cluster.associations if name in one["QOS"].split(","))
        if "qos" in cluster.enforced and len(holders) < len(cluster.accounts):
            told.append(f"with account {' or '.join(holders)}")
        only = [one.name for one in goes] if len(goes) < len(cluster.partitions) else None
        yield _said(row)
        yield from _queue(name, limits, told, default=name == cluster.default_qos or None, partitions=only)


def _lines_of_software(said):
    words = (re.sub(r"\s*[(<].*$", "", line.strip()) for line in said["modules"].stdout.splitlines())
    words = (word for word in words if re.fullmatch(r"[\w.+@-]+(/[\w.+@-]+)*", word, re.ASCII))
    modules = _once(re.sub(r"/v?\d[^/]*$", "", word) for word in words)  # without versions
    has_torch = said["torch"].returncode == 0
    torch = [name for name in modules if "pytorch" in name.lower() and not has_torch]
    runtimes = ["none", "venv"] if torch or has_torch else ["venv", "none"]
    needed = {"none": {"modules": [min(torch, key=len)]}} if torch else {}
    for program, runtime in RUNTIMES.items():
        module = [name for name in modules if name.split("/")[-1].lower() == program][:1]
        if runtime not in runtimes and (shutil.which(program) or module):
            runtimes.append(runtime)
            needed |= {} if shutil.which(program) else {runtime: {"modules": module}}
    srun = said["srun"].stdout
    runtimes += [name for name, option in PLUGINS.items() if re.search(rf"^\s*(-\w, )?{option}\b", srun, re.M)]
    yield _fact("runtimes", runtimes, "programs on PATH, module -t avail, srun --help; none first if python3 has torch")
    if said["modules"].returncode is None:
        yield f"# module -t avail: {said['modules'].stderr}, so modules are not known"
    if needed:
        yield _fact("containers", needed, "module -t avail")
    mpirun = ["mpirun", "mpirun-ranks"] * ("Open MPI" in said["mpirun"].stdout)
    yield _fact("launchers", ["torchrun", "srun", "spawn", *mpirun], "mpirun --version: whether it is Open MPI")


def _lines_of_defaults(cluster):
    yield "defaults:"
    yield _fact("partition", cluster.main.name, "as far as can be with nodes that are up, GPUs, and Default=YES", 1)
    if cluster.named_qos:
        why = "one must be named" if cluster.needs_qos else "the default of this account, named so that it is checked"
        yield _fact("qos", cluster.named_qos, why, 1)
    if cluster.account:
        yield _fact("account", cluster.account, "sacctmgr show user: your default account, or your only one here", 1)
    yield from (_fact(key, value, indent=1) for key, value in cluster.defaults().items())
    accounts = "sacctmgr show associations user=$USER format=account%30,partition,qos%60"
    yield from ("commands:", f"  accounts: {'id -Gn' if cluster.failed else accounts}", "  queues: sinfo -s")
    yield _fact("limits of a queue", f"scontrol show partition {cluster.main.name}", indent=1)
    if not cluster.failed:
        yield "  limits of a QoS: sacctmgr show qos format=name%25,maxwall,maxtres%40,maxtrespu%40"
    yield "  jobs: squeue --me"
