"""Site files: reads one, fills in what it leaves out, finds keys that contradict each other."""

from __future__ import annotations

import re
from datetime import date, timedelta
from functools import cache
from pathlib import Path

import click
import yaml

from .checks import Doubt, check_gpus, check_nodes, check_time
from .runtimes import KINDS, image_fits, image_rule
from .schema import (
    CONTAINER_DEFAULTS,
    EMPTY_LISTS,
    EMPTY_MAPS,
    LIMIT_DEFAULTS,
    NODE_DEFAULTS,
    OTHER_DEFAULTS,
    POD_DEFAULTS,
    SCHEMA,
)
from .wording import choose_from, did_you_mean

SITES = Path(__file__).resolve().parent.parent / "sites"
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


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key that is there twice is a fault; otherwise the second would win, silently."""

    def construct_mapping(self, node, deep=False):
        """Refuse what is there twice."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} is there twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class SiteError(click.ClickException):
    """A site that does not exist or a site file that breaks the schema; shown by cookiecutter as one message."""


def site_names() -> list[str]:
    """Names that can be answered to the question `site`, apart from `here`."""
    return sorted(path.stem for path in SITES.glob("*.yaml"))


def known_sites() -> str:
    """Return what can be answered to the question `site`, for a message."""
    return f"{', '.join(site_names())}, here (the Slurm cluster you are on), or the path of a site file of your own"


def site_answer(answer: str) -> str:
    """Return the site as it is kept: `here`, a known name, or the absolute path of a user's own site file.

    The path is made absolute because hooks are rendered from another folder. Raises SiteError.
    """
    if answer in ("here", *site_names()):
        return answer
    if "/" in answer or answer.endswith((".yaml", ".yml")):
        try:
            path = Path(answer).expanduser().resolve()
        except RuntimeError as error:  # ~somebody, who does not exist
            reason = str(error).rstrip(".")
            raise SiteError(f"site {answer!r}: {reason}; give the path of a site file") from error
        if path.is_file():
            return str(path)
        what = "that is a folder" if path.is_dir() else "there is no such file"
        raise SiteError(f"site {answer!r}: {what}; give the path of a site file, or a name: {known_sites()}")
    raise SiteError(
        f"site {answer!r} is not known{did_you_mean(answer.lower(), site_names())}; choose one of {known_sites()}"
    )


@cache
def site_facts(site: str) -> dict:
    """Return the checked content of a site file, every key present; all faults of the file in one SiteError.

    `here` is read off the Slurm cluster that this runs on.
    """
    name = site_answer(site)
    if name == "here":
        source, (text, error) = "what was read off this cluster", described()
        if error:
            raise SiteError(error)
    else:
        source = Path(name) if "/" in name else SITES / f"{name}.yaml"
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SiteError(f"{source}: not readable: {error}") from error
        source = f"the site file {source}"
    try:
        content = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise SiteError(f"{source}{line}: not readable as YAML: {getattr(error, 'problem', error)}") from error
    except ValueError as error:  # a day without quotes that no month has
        raise SiteError(f"{source}: not readable as YAML: {error}") from error
    content, faults = with_base(content)
    faults += SCHEMA.faults(content)
    if not isinstance(content, dict) or any(fault.startswith(("kind:", "defaults")) for fault in faults):
        facts = None
    else:  # what is wrong in one place does not hide what is wrong in another
        broken = {re.match(r"\w*", fault)[0] for fault in faults}
        facts = complete_facts({name: value for name, value in content.items() if name not in broken})
        faults += contradictions(facts, broken)
    if faults:
        raise SiteError("\n  ".join([f"{source} is not as sites/schema.json wants it:", *faults]))
    return facts


def with_base(content):
    """Return the content of a site file with what its `base` says, and the faults of that key.

    A value of the file itself goes first. Where both have a list, its entries come first. Named values are joined.
    """
    name = content.get("base") if isinstance(content, dict) else None
    if not isinstance(name, str):
        return content, []
    known = {path.stem: path for path in (SITES / "bases").glob("*.yaml")}
    if name not in known:
        return content, [f"base: {name!r} is not among {', '.join(sorted(known))}, the files in {SITES / 'bases'}"]
    return joined(content, yaml.load(known[name].read_text(encoding="utf-8"), Loader)), []


def joined(own, base):
    """Return two values of a key as one."""
    if isinstance(own, dict) and isinstance(base, dict):
        both = {name: joined(value, base[name]) for name, value in own.items() if name in base}
        return {**base, **own, **both}
    if isinstance(own, list) and isinstance(base, list):
        return own + base
    return own


@cache
def described() -> tuple[str, str]:
    """Return the text of the site file of this cluster, and why there is none; a cluster is asked only once."""
    from .describe import DescribeError, describe  # only where it is asked for

    try:
        return describe(), ""
    except DescribeError as error:
        return "", f"site 'here': {error}"


def complete_facts(content) -> dict:
    """Return the content of a site file, with the defaults of schema.py for what it leaves out."""
    facts = {**OTHER_DEFAULTS, **{name: {} for name in EMPTY_MAPS}, **{name: [] for name in EMPTY_LISTS}}
    facts |= {"runtimes": [], "launchers": [], "title": "", **content}
    facts["node"] = {**NODE_DEFAULTS, **facts["node"]}
    facts["pods"] = {**POD_DEFAULTS, **facts["pods"]}
    facts["module_lines"] = {"before": [], "after": [], **facts["module_lines"]}
    for section in ("partitions", "qos"):
        facts[section] = {name: {**LIMIT_DEFAULTS, **limits} for name, limits in facts[section].items()}
    for runtime in facts["runtimes"]:
        facts["containers"] = {runtime: {}, **facts["containers"]}
    facts["containers"] = {runtime: {**CONTAINER_DEFAULTS, **more} for runtime, more in facts["containers"].items()}
    facts["file_systems"] = [{"limits": "", **place} for place in facts["file_systems"]]
    for key in ("notes", "unconfirmed"):
        facts[key] = [note if isinstance(note, dict) else {"text": note} for note in facts[key]]
    facts["srun"] = [{"tasks": "", **option} for option in facts["srun"]]
    facts["all_reduce"] = [
        {**table, "rows": [{"nodes": "", "gpus": "", "algbw": "", **row} for row in table["rows"]]}
        for table in facts["all_reduce"]
    ]
    return facts


# ---- contradictions --------------------------------------------------------------------------------------------------


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
    needed = {  # what scripts and README cannot do without
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
    """Yield what is told of runtimes that the site does not have."""
    for key in ("notes", "problems", "unconfirmed"):
        for place, entry in enumerate(facts[key]):
            for runtime in entry.get("runtimes", ()):
                if runtime not in facts["runtimes"]:
                    yield f"{key}[{place}].runtimes: there is no {runtime!r} in runtimes; add it there"


# ---- all sites together ----------------------------------------------------------------------------------------------


def list_of_titles() -> str:
    """Return names and titles of the named clusters as the table of README.md, in two halves side by side."""
    named = [site for site in site_names() if site not in ("local", "runai", "slurm")]
    cells = [f"| `{site}` | {site_facts(site)['title']} " for site in named]
    half = (len(cells) + 1) // 2
    right = [*cells[half:], *["| | "] * (2 * half - len(cells))]
    rows = [left + other + "|\n" for left, other in zip(cells[:half], right)]
    return "| `site` | cluster | `site` | cluster |\n|---|---|---|---|\n" + "".join(rows)


def outdated(today: date) -> list[str]:
    """Return a sentence for each site whose facts were last checked more than a year before a day."""
    days = {site: site_facts(site)["checked"] for site in site_names()}
    return [
        f"sites/{site}.yaml was checked on {day}, more than a year ago: compare it with its sources, correct `checked`"
        for site, day in days.items()
        if date.fromisoformat(day) < today - timedelta(days=365)
    ]
