"""Asks Slurm with commands that any user may type, and reads what they print. It needs no package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter, defaultdict
from types import SimpleNamespace

TIMEOUT = 10  # seconds, for each command
MODULE_TIMEOUT = 3  # modules are a help, not a need
ASSOCIATION = ("Cluster", "Account", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxTRES", "MaxTRESMins")
MOST = {"node": "max_nodes", "gres/gpu": "max_gpus"}
TRES = {  # columns of sacctmgr: the limits that they are; one job cannot be larger than all of a user's together
    **{"MaxTRES": MOST, "MaxTRESPU": MOST, "MaxTRESPA": MOST, "GrpTRES": MOST},
    **{"MinTRES": {"node": "min_nodes"}, "MaxTRESMins": {"node": "max_node_minutes"}},
}
QOS = ("Name", "Flags", "MaxWall", *TRES)
DOWN = r"\b(DOWN|DRAIN|FAIL|INVAL|ERROR|UNK|MAINT|FUTURE|NO_RESP|NOT_RESP|REBOOT)|[*$]"  # states of nodes

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


def run_command(command) -> subprocess.CompletedProcess:
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


def what_is_wrong(answer) -> str:
    """Return a command and the line of its output that says what went wrong."""
    said = answer.stderr.strip().splitlines()[-1:] or answer.stdout.strip().splitlines()[:1] or ["nothing"]
    return f"{' '.join(answer.args)}: {printable(said[0])}"


def printable(text) -> str:
    """Return text from the cluster as it may stand in a comment or a sentence: one line, nothing unprintable."""
    return "".join(character if character.isprintable() else " " for character in str(text)).strip()


# ---- reading what commands print -------------------------------------------------------------------------------------


def settings_in(text):
    """Return the lines of scontrol --oneliner as mappings; of equal keys the first, for a comment may hold anything."""
    return [defaultdict(str, re.findall(r"(\w+)=(\S*)", line)[::-1]) for line in text.splitlines()]


def rows_in(text, names):
    """Return the lines of sacctmgr -P as mappings."""
    lines = (line.split("|") for line in text.splitlines())
    return [dict(zip(names, parts)) for parts in lines if len(parts) == len(names)]


def kinds_of_nodes(text):
    """Return the kinds of nodes of each partition: memory in MB, GPUs by type, how many there are and are up."""
    found = {}
    for said in settings_in(text):
        # Efctv: without the cores that the system keeps for itself; older Slurm does not say it
        cpus, memory = number_in(said["CPUEfctv"] or said["CPUTot"]), number_in(said["RealMemory"])
        gres, features = (said[key].replace("(null)", "none") for key in ("Gres", "AvailableFeatures"))
        for name in said["Partitions"].split(","):
            kinds = found.setdefault(name, {})
            new = {"cpus": cpus, "memory": memory, "gres": gres, "features": features, "gpus": gpus_in(gres)}
            kind = kinds.setdefault(tuple(map(str, new.values())), SimpleNamespace(**new, count=0, up=0))
            kind.count += 1
            # * and NOT_RESPONDING mean that it does not answer; POWERED_DOWN, that it is asleep
            kind.up += not re.search(DOWN, said["State"])
    return {name: list(kinds.values()) for name, kinds in found.items()}


def number_in(text) -> int:
    """Return a whole number; 0 for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def minutes_in(text) -> float:
    """Return a time as Slurm prints it, [D-]HH:MM:SS, in minutes; 0 for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def as_walltime(minutes) -> str:
    """Return minutes as [D-]HH:MM:SS."""
    seconds = round(minutes * 60)
    days, hours = divmod(seconds // 3600, 24)
    return (f"{days}-" if days else "") + f"{hours:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def gpus_in(gres) -> dict:
    """Return the count of GPUs by type, '' where there is none, in for example gpu:a100:4(S:0-1),nvme:1."""
    found = Counter()
    for name, count in re.findall(r"\bgpu(?::([^:,]+?))??(?::(\d+))?(?=,|$)", re.sub(r"\([^)]*\)", "", gres)):
        found[name] += int(count or 1)
    return dict(+found)


def default_qos_of(association) -> str:
    """Return what Slurm takes for a job that names no QoS."""
    names = association.get("QOS", "").split(",")
    return association.get("DefaultQOS") or (names[0] if len(names) == 1 else "") or "normal"


def stricter(limits, more) -> dict:
    """Return the limits of both, where both have one the narrower."""
    narrower = {key: (max if key == "min_nodes" else min)(value, limits.get(key, value)) for key, value in more.items()}
    return {**limits, **narrower}


def unique(names) -> list:
    """Return each name once, in order."""
    return list(dict.fromkeys(names))
