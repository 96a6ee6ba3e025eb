"""How the keys of one site file contradict each other. The schema checks each key alone."""

from __future__ import annotations

import re

from .checks import Doubt, check_gpus, check_nodes, check_time
from .defaults import POD_DEFAULTS
from .runtimes import KINDS, image_fits, image_rule
from .wording import choose_from

# Options of sbatch that come from elsewhere than `directives`.
OWN_OPTIONS = {
    "--nodes": "the question nodes",
    "--time": "the question time_limit",
    "--partition": "the question partition",
    "--qos": "the question qos",
    "--account": "the question account",
    "--job-name": "the question project",
    "--gpus-per-node": "gpus_per_node and node.gpu_option",
    "--gres": "gpus_per_node and node.gpu_option",
    "--cpus-per-task": "node.cores",
    "--ntasks": "the launcher",
    "--ntasks-per-node": "the launcher",
    "--mem": "node.memory",
    "--segment": "node.segment",
    "--requeue": "the template, and expedited_requeue",
    "--output": "the template alone",
    "--open-mode": "the template alone",
    "--export": "the template alone",
}
# Options that plug-ins of Slurm bring; they are the matter of `containers`.
PLUGIN_OPTIONS = ("--environment", "--uenv", "--view", "--container", "--image", "--module", "--volume")


def contradictions(facts, broken):
    """Yield how keys contradict each other; `broken` are those whose own fault is known already."""
    kind = KINDS[facts["kind"]]
    for key in ("runtimes", "launchers"):
        if not facts[key] and key not in broken:
            yield f"{key}: expected at least one"
        for value in facts[key]:
            if value not in kind[key]:
                yield f"{key}: {value!r} does not go with kind: {facts['kind']}; {choose_from(kind[key])}"
    yield from contradictions_of_containers(facts, broken)
    commands = [("commands", "accounts"), ("commands", "queues")]
    needed = {  # keys that scripts and README need
        "slurm": [("defaults", "time_limit"), *commands],
        "runai": [*commands, ("commands", "login"), ("commands", "volumes")],
    }
    for section, key in needed.get(facts["kind"], []):
        if section not in broken and not facts[section].get(key):
            yield f"{section}.{key}: missing"
    yield from contradictions_of_pods(facts, broken)
    yield from contradictions_of_options(facts, broken)
    if "runtimes" not in broken:
        yield from contradictions_of_notes(facts)
    yield from contradictions_of_queues(facts)
    yield from contradictions_of_nodes(facts)
    if facts["ports"] and facts["ports"]["first"] > facts["ports"]["last"]:
        yield f"ports: {facts['ports']['first']} comes after {facts['ports']['last']}"
    if not {"node", "partitions", "qos"} & broken:
        asked = ("partition", "qos", "nodes", "gpus_per_node", "time_limit")
        given = {question: str(facts["defaults"].get(question, "")) for question in asked}
        for check in (check_nodes, check_gpus, check_time):
            faults = check(given, facts)
            yield from (f"defaults: {fault}" for fault in faults if not isinstance(fault, Doubt))


def contradictions_of_pods(facts, broken):
    """Yield pods at a site without Run:ai, and {names} in volumes that are no named groups of account.like."""
    if facts["kind"] != "runai" and facts["pods"] != POD_DEFAULTS:
        yield "pods: only a site with kind: runai has them"
    if not {"account", "pods"} & broken:
        groups = re.compile(facts["account"].get("like", "")).groupindex
        for place, volume in enumerate(facts["pods"]["volumes"]):
            for group in re.findall(r"{(.*?)}", volume["claim"] + volume["path"]):
                if group not in groups:
                    yield f"pods.volumes[{place}]: account.like has no group {group!r}"


def contradictions_of_options(facts, broken):
    """Yield options of sbatch that come from elsewhere, and options of srun that need a number of GPUs."""
    for place, directive in enumerate(facts["directives"]):
        name = re.split("[= ]", directive["option"])[0]
        if name in OWN_OPTIONS:
            yield f"directives[{place}].option: {name} is written from {OWN_OPTIONS[name]}; say it there"
        elif name.startswith(PLUGIN_OPTIONS):
            yield f"directives[{place}].option: {name} belongs to a plug-in of srun; use containers"
    if (
        "node" not in broken
        and facts["node"]["gpus"] is None
        and any(option["tasks"] == "rank" for option in facts["srun"])
    ):
        yield "srun: tasks: rank is for one rank on each GPU of a node; say how many there are in node.gpus"
    if facts["torchrun"] and facts["kind"] != "slurm":
        yield "torchrun: only a site with kind: slurm has them"
    elif facts["torchrun"] and "node" not in broken and not facts["node"]["gpus"]:
        yield "torchrun: these options are for a process on each GPU of a node; say how many there are in node.gpus"


def contradictions_of_queues(facts):
    """Yield partitions and QoS that are named but not listed."""
    for section in ("defaults", "interactive", "production"):
        for key, names in (("partition", facts["partitions"]), ("qos", facts["qos"])):
            value = facts[section].get(key)
            if value and names and value not in names:
                yield f"{section}.{key}: {value!r} is not among {', '.join(names)}"
    for section, names in (("partition", facts["partitions"]), ("qos", facts["qos"])):
        for name, limits in names.items():
            if limits["unnamed"] and not limits["default"]:
                yield f"{section} {name}: unnamed, but not the default: no job could get it"
    for name, limits in facts["qos"].items():
        for partition in limits["partitions"]:
            if facts["partitions"] and partition not in facts["partitions"]:
                yield f"qos.{name}.partitions: {partition!r} is not among {', '.join(facts['partitions'])}"


def contradictions_of_nodes(facts):
    """Yield nodes with fewer cores than GPUs, and nodes whose GPUs Slurm cannot be asked for, unless they have one."""
    nodes = {
        f"{section}.{name}.node": limits["node"]
        for section in ("partitions", "qos")
        for name, limits in facts[section].items()
    }
    for where, own in {"node": facts["node"], **nodes}.items():
        node = {**facts["node"], **own}
        if own and (node["cores"] or node["gpus"] or 0) < (node["gpus"] or 0):
            yield f"{where}.cores: {node['cores']} for {node['gpus']} GPUs; each needs one at least"
        if node["gpu_option"] == "" and node["gpus"] != 1:
            yield f"{where}.gpu_option: empty, so a node must have one GPU, but node.gpus is {node['gpus']}"


def contradictions_of_containers(facts, broken):
    """Yield containers of runtimes that the site does not have, images of the wrong kind, and misplaced wheelhouses."""
    for runtime, container in facts["containers"].items():
        if runtime not in facts["runtimes"]:
            if "runtimes" not in broken:
                yield f"containers.{runtime}: there is no such runtime in runtimes; add it there"
        elif container["entry_environment"] and not container["entry"]:
            yield f"containers.{runtime}.entry_environment: without entry nothing overwrites variables; use environment"
        elif container["image"] and not image_fits(runtime, container["image"]):
            yield f"containers.{runtime}.image: {container['image']!r} is of the wrong kind; {image_rule(runtime)}"
        if container["wheelhouse"] and runtime != "venv":
            yield f"containers.{runtime}.wheelhouse: only a virtual environment is built from it; use containers.venv"
        if container["torch"] and runtime != "venv":
            yield f"containers.{runtime}.torch: only a virtual environment has a requirements.txt; use containers.venv"
        elif container["torch"] and container["wheelhouse"]:
            yield "containers.venv.torch: a wheelhouse has versions of its own; leave out one of both"
        if container["on_login_node"] and (runtime != "venv" or facts["login_internet"] is not True):
            yield f"containers.{runtime}.on_login_node: pip runs there for venv, and needs login_internet: true"
        if container["unset"] and runtime != "apptainer":
            yield f"containers.{runtime}.unset: only apptainer takes over the host's variables; use module_lines"


def contradictions_of_notes(facts):
    """Yield the keys of runtimes that the site does not have."""
    for key in ("notes", "problems", "unconfirmed"):
        for place, entry in enumerate(facts[key]):
            for runtime in entry.get("runtimes", ()):
                if runtime not in facts["runtimes"]:
                    yield f"{key}[{place}].runtimes: there is no {runtime!r} in runtimes; add it there"
