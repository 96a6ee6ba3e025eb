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
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import date

from .slurm_cluster import NOTHING, Cluster, DescribeError
from .slurm_commands import COMMANDS, as_walltime, printable, run_command, unique, what_is_wrong

LINE = 150  # characters
GIVE_UP = "answer another site, for example site=slurm, which assumes nothing about the cluster"
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
SHOWN = "TotalNodes|(Max|Min)Nodes|MaxTime|QoS|(Allow|Deny)(Accounts|Qos)"  # of a partition
PLUGINS = {"pyxis": "--container-image", "edf": "--environment"}  # options that these add to srun


def describe() -> str:
    """Return the text of a site file for the Slurm cluster that this machine belongs to, as its user may use it.

    Takes a fraction of a second where the cluster answers, and at most 30 where it does not. Raises DescribeError.
    """
    if not shutil.which("scontrol"):
        raise DescribeError(f"scontrol: there is no such program on PATH; load the module that has it, or {GIVE_UP}")
    said = {"ping": run_command(["scontrol", "ping"])}  # says in milliseconds what other commands try for ten seconds
    if " is UP" in said["ping"].stdout:
        user = run_command(["id", "-un"]).stdout.strip() or str(os.getuid())
        commands = [[word.replace("{user}", user) for word in command] for command in COMMANDS.values()]
        with ThreadPoolExecutor(len(commands)) as pool:
            said |= zip(COMMANDS, pool.map(run_command, commands))
    asked = [said.get(name, said["ping"]) for name in ("config", "partitions", "nodes")]
    failed = [answer for answer in asked if len(said) == 1 or answer.returncode != 0]
    if failed:
        again = "try again when the controller of this cluster answers (scontrol ping)"
        raise DescribeError(f"{what_is_wrong(failed[0])}; {again}, or {GIVE_UP}")
    return "\n".join(_lines(Cluster(user, said))) + "\n"


# ---- writing ---------------------------------------------------------------------------------------------------------


WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # which YAML does not take for text


def _yaml(value) -> str:
    """Return a value as YAML on one line; text in quotes unless it is a plain word that can only be read as text."""
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    text = printable(value)
    if re.fullmatch(r"[a-zA-Z_/][\w/+-]*([. ][\w/+-]+)*", text, re.ASCII) and text.lower() not in WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _clip(text, before=0) -> str:
    """Return a comment short enough for its line, of which some characters are taken."""
    text, most = printable(text), max(LINE - before, 60)
    return "# " + (text if len(text) <= most else f"{text[: most - 1]}…")


def _fact(key, value, why="", indent=0) -> str:
    """Return the line KEY: VALUE # WHY; None for the head of lines that follow further in."""
    line = f"{'  ' * indent}{_yaml(key)}:{'' if value is None else ' ' + _yaml(value)}"
    return f"{line} {_clip(why, len(line))}" if why else line


def _queue(name, limits, about, **more):
    """Yield the lines of a partition or QoS, one if it is short enough; what says nothing is left out."""
    facts = {**limits, "about": "; ".join(about), **more}
    if "max_time" in limits:
        facts["max_time"] = as_walltime(limits["max_time"])
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
        yield _clip(f"Accounts and QoS are not known: {what_is_wrong(cluster.failed)}")
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
        holders = unique(one["Account"] for one in cluster.associations if name in one["QOS"].split(","))
        if "qos" in cluster.enforced and len(holders) < len(cluster.accounts):
            told.append(f"with account {' or '.join(holders)}")
        only = [one.name for one in goes] if len(goes) < len(cluster.partitions) else None
        yield _said(row)
        yield from _queue(name, limits, told, default=name == cluster.default_qos or None, partitions=only)


def _lines_of_software(said):
    words = (re.sub(r"\s*[(<].*$", "", line.strip()) for line in said["modules"].stdout.splitlines())
    words = (word for word in words if re.fullmatch(r"[\w.+@-]+(/[\w.+@-]+)*", word, re.ASCII))
    modules = unique(re.sub(r"/v?\d[^/]*$", "", word) for word in words)  # without versions
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
