"""What the template knows of clusters: reads sites/*.yaml and says what is wrong with a set of answers.

Loaded by cookiecutter as a Jinja extension (cookiecutter.json, "_extensions"), so that the questions, the hooks and the
written files all see the same functions. Everything here is a plain function of its arguments.

    python3 cluster_options.py describe      prints a site file for this Slurm cluster; Python 3.9 or newer
    python3 cluster_options.py table         prints the table of sites that README.md shows
    python3 cluster_options.py dates         fails and names the sites that nobody has checked for a year

Nothing here is newer than Python 3.6 can read, so that an old one says what it lacks.
"""

import difflib
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

if sys.version_info < (3, 9):  # noqa: UP036
    TOO_OLD = f"this template needs Python 3.9 or newer, and {sys.executable} is {sys.version.split()[0]}"
    if __name__ == "__main__":
        sys.exit(f"{TOO_OLD}; name a newer one, for example python3.11")
    raise ImportError(
        f"{TOO_OLD}; install cookiecutter with a newer one: pipx install --python python3.11 cookiecutter"
    )

if __name__ == "__main__" and sys.argv[1:] == ["describe"]:  # before the imports below, which it can do without
    import describe_cluster

    try:
        print(describe_cluster.describe(), end="")
    except describe_cluster.DescribeError as error:
        sys.exit(f"describe: {error}")
    sys.exit()

from functools import cache

import click
import yaml
from jinja2.ext import Extension

VERSION = "1.2.0"  # CHANGELOG.md begins with it
SITES = Path(__file__).resolve().parent / "sites"
STARTED_IN = Path.cwd()  # cookiecutter renders from other folders

# The container image that a runtime needs: None, or a pattern and what to say to who misses it. The group of a pattern
# is a name in a registry, from which the image is made; without it the image is a file that is ready.
_NAME = r"[\w.-]+(?::\d+)?(?:/[\w.-]+)+:[\w.-]+|[\w.-]+:[\w.-]+"
# enroot before 4.0.1 takes REGISTRY/NAME for a name of Docker Hub (NVIDIA/enroot f29a45c, 2025-08-27), hence the #.
_PATH = r"[\w-]+(?:/[\w.-]+)*:[\w.-]+"
_SQUASHED = (rf"/.*\.sqsh|((?:[\w.:-]+#)?{_PATH})", "the absolute path of a .sqsh file, or REGISTRY#NAME:TAG")
RUNTIMES = {
    "none": None,
    "venv": None,
    "apptainer": (rf"/.*\.sif|docker://({_NAME})", "the absolute path of a .sif file, or docker://REGISTRY/NAME:TAG"),
    "pyxis": _SQUASHED,
    "enroot": _SQUASHED,
    "edf": _SQUASHED,
    "shifter": (rf"({_NAME})", "NAME:TAG"),
    "podman-hpc": (rf"({_NAME})", "REGISTRY/NAME:TAG"),
    "pod": (rf"({_NAME})", "REGISTRY/NAME:TAG"),
}
VENDOR_IMAGES = {
    "nvidia": "nvcr.io/nvidia/pytorch:26.01-py3",
    "amd": "docker.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
}
# These live in options of srun, so mpirun, whose tasks are no steps of their own, cannot start them.
IN_SRUN = ("pyxis", "edf")
MPI = {"mpirun", "mpirun-ranks"}
LAUNCHERS = ("torchrun", "srun", "spawn", "mpirun", "mpirun-ranks")
LAUNCHER_ROWS = {  # of a table: what is started, what that starts, when to pick it
    "torchrun": "one per node | this node's ranks | for a log of each rank, the same on a laptop and on Kubernetes",
    "srun": "every rank | | to bind or profile ranks with srun's options; nothing stands between Slurm and a rank",
    "spawn": "one Python per node | forks its ranks | for the quickest start: torch is imported once per node",
    "mpirun": "by Open MPI instead: one torchrun per node | this node's ranks | where a tool wraps mpirun",
    "mpirun-ranks": "by Open MPI instead: every rank | | for Horovod and mpi4py",
}
# What each kind of site can have; a site file lists which of these it has.
KINDS = {
    "local": {"runtimes": ("none", "venv"), "launchers": ("torchrun",), "name": "no scheduler"},
    "slurm": {"runtimes": tuple(RUNTIMES)[:-1], "launchers": LAUNCHERS, "name": "Slurm"},
    "runai": {"runtimes": ("pod",), "launchers": ("torchrun",), "name": "Run:ai"},
}
HOSTS = {"gh": "https://github.com/{}.git", "gl": "https://gitlab.com/{}.git", "bb": "https://bitbucket.org/{}"}
# Files and folders that examples=no leaves out: what a project that exists has of its own, and programs to learn from.
EXAMPLES = ("README.md", ".gitignore", "requirements.txt", "benchmark", "check/hello.py", "pi", "tests", "training")
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
    "--output": "the template alone",
    "--open-mode": "the template alone",
    "--export": "the template alone",
}
PLUGIN_OPTIONS = ("--environment", "--uenv", "--view", "--container", "--image", "--module", "--volume")

WALLTIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Account, partition and so on stand in #SBATCH lines, where a space or a # ends the value; an image stands in quotes.
UNSAFE = re.compile(r"[^A-Za-z0-9._:/@+=,-]")
UNSAFE_IN_QUOTES = re.compile(r"[^A-Za-z0-9._:/@+=,# -]")
QUESTIONS = ("project", "site", "launcher", "runtime", "image", "account", "partition", "qos")
QUESTIONS += ("nodes", "gpus_per_node", "time_limit", "examples")
UNASKED = "the default"  # see cookiecutter.json: what a replay does not hold is rendered without this extension


# ---- site files ------------------------------------------------------------------------------------------------------


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key that is there twice is a fault; otherwise the second would win, silently."""

    def construct_mapping(self, node, deep=False):
        """Refuse what is there twice."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class SiteError(click.ClickException):
    """A site that does not exist or a site file that breaks the schema; shown by cookiecutter as one message."""


def _text(value, key):
    if not isinstance(value, str):
        yield f"{key}: expected text, got {value!r}; put it in quotes"
    elif "\n" in value:  # it will stand in a comment or in quotes
        yield f"{key}: expected one line, got {value!r}; fold long text with >-"


def _like(pattern, what):
    def check(value, key):
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{key}: expected {what}, got {value!r}"

    return check


def _walltime(value, key):
    if isinstance(value, str) and WALLTIME.fullmatch(value):
        return
    hint = '; YAML reads 12:00:00 without quotes as a number: write "12:00:00"' if isinstance(value, int) else ""
    yield f"{key}: expected a time [D-]HH:MM:SS in quotes, got {value!r}{hint}"


def _day(value, key):
    try:
        date.fromisoformat(value)
    except (TypeError, ValueError):
        yield f'{key}: expected a day in quotes, "YYYY-MM-DD", got {value!r}'


def _flag(value, key):
    if not isinstance(value, bool):
        yield f"{key}: expected true or false, got {value!r}"


def _count(least):
    def check(value, key):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield f"{key}: expected a whole number of at least {least}, got {value!r}"

    return check


def _number(value, key):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        yield f"{key}: expected a number above 0, got {value!r}"


def _one_of(*allowed):
    def check(value, key):
        if value not in allowed:
            yield f"{key}: expected one of {', '.join(allowed)}, got {value!r}"

    return check


def _list(item, least=0):
    def check(value, key):
        if not isinstance(value, list) or len(value) < least:
            yield f"{key}: expected a list{' that is not empty' * least}, got {value!r}"
            return
        for place, entry in enumerate(value):
            yield from item(entry, f"{key}[{place}]")

    return check


def _named(item):
    def check(value, key):
        if not isinstance(value, dict):
            yield f"{key}: expected names with values, got {value!r}"
            return
        for name, entry in value.items():
            yield from _text(name, f"{key}: the name {name!r}")
            yield from item(entry, f"{key}.{name}")

    return check


def _record(required, optional=None):
    known = {**required, **(optional or {})}

    def check(value, key):
        prefix = f"{key}." if key else ""
        if not isinstance(value, dict):
            yield f"{key or 'the file'}: expected keys with values, got {value!r}"
            return
        for name in required:
            if name not in value:
                yield f"{prefix}{name}: missing"
        for name, entry in value.items():
            if name in known:
                yield from known[name](entry, f"{prefix}{name}")
            else:
                yield f"{prefix}{name}: unknown key{_nearest(name, known)}"

    return check


def _pattern(value, key):
    try:
        re.compile(value)
    except (TypeError, re.error) as error:
        yield f"{key}: expected a regular expression in quotes, got {value!r} ({error})"


_NODE_KEYS = {
    "gpus": _count(0),
    "gpu_name": _text,
    "cores": _count(1),
    "memory": _like(r"\d+([KMGT]B?)?", "a value of --mem such as 450G, in quotes"),
    "gpu_option": _like(
        r"--(gpus-per-node=|gres=gpu:)([\w-]+:)?", "--gpus-per-node= or --gres=gpu:, with TYPE: if need be"
    ),
    "gpu_vendor": _one_of("nvidia", "amd"),
    "whole": _flag,  # the scheduler gives whole nodes: ask for all cores, however few GPUs are used
    "cpu_only": _flag,  # has nodes where gpus_per_node=0 makes sense
}
_LIMIT_KEYS = {  # of one job
    "max_nodes": _count(1),
    "min_nodes": _count(1),
    "max_time": _walltime,
    "max_node_minutes": _count(1),  # nodes x walltime
    "max_gpus": _count(1),  # of all its nodes together
    "tiers": _list(_record({"max_nodes": _count(1), "max_time": _walltime})),  # the longest time by number of nodes
    "default": _flag,  # what jobs get that name none
    "confirmed": _flag,  # false: nobody could confirm these figures, so they warn instead of refusing
    "about": _text,
    "node": _record({}, _NODE_KEYS),  # what its nodes, or what it gives of them, have different
}

# It will stand in #SBATCH lines, where a space or a # ends it, and in double quotes.
_OPTION = _like(r"--[^\s#\"$`\\]+", "an option --NAME=VALUE without spaces, quotes, # and $")
_ROW = _record({"busbw": _number}, {"nodes": _count(1), "gpus": _count(1), "algbw": _number})

SCHEMA = _record(
    {
        "title": _text,
        "kind": _one_of("local", "slurm", "runai"),
        "docs": _text,
        "checked": _day,
        "contact": _text,
        "runtimes": _list(_one_of(*RUNTIMES)),  # the first is the default
        "launchers": _list(_one_of(*LAUNCHERS)),
        "defaults": _record(
            {"nodes": _count(1), "gpus_per_node": _count(0)},
            {"time_limit": _walltime, "partition": _text, "qos": _text, "account": _text},
        ),
    },
    {
        "detect": _record({}, {"cluster": _list(_text), "host": _pattern}),  # in one line: see site_here
        "node": _record({}, _NODE_KEYS),
        "account": _record({"like": _pattern, "example": _text}),  # the form that names of accounts have
        "accounts": _list(_text),  # the ones that there are, where the file is of one user's making
        "required": _list(_one_of("account", "partition", "qos")),  # questions that this site wants an answer to
        "partitions": _named(_record({}, _LIMIT_KEYS)),  # empty: any name is taken as it is
        "qos": _named(_record({}, {**_LIMIT_KEYS, "partitions": _list(_text)})),  # goes with these partitions alone
        "directives": _list(_record({"option": _OPTION, "why": _text})),  # more #SBATCH lines
        # more options of srun: always, or only where it starts one task per node, or one per rank with all GPUs
        "srun": _list(_record({"option": _like("-.+", "an option"), "why": _text}, {"tasks": _one_of("node", "rank")})),
        "interactive": _record({}, {"partition": _text, "qos": _text, "time_limit": _walltime}),  # for interactive.sh
        "modules": _list(_text),
        "modules_after": _one_of("purge", "reset"),  # what is said to module before; purge by default
        "environment": _list(
            _record(
                {
                    "name": _like("[A-Za-z_][A-Za-z0-9_]*", "the name of a variable"),
                    # it will stand in double quotes
                    "value": _like('([^"`$\\\\}]|\\$\\{\\w+\\})*', 'text without ", `, \\, } and $, but for ${NAME}'),
                    "why": _text,
                },
                {"force": _flag},  # whatever the job had before
            )
        ),
        # beside what a container runtime needs everywhere: default image, modules that bring the program, more flags
        "containers": _named(
            _record(
                {},
                {
                    "image": _text,
                    "modules": _list(_text),
                    "options": _list(_like("-.*", "an option")),
                    "gpu_option": _text,  # of apptainer, in place of --nv or --rocm; empty for none
                    "entry": _list(_text),  # of apptainer: what is put before each command inside
                    "build_with": _text,  # of podman-hpc and shifter: what is put before the build on a login node
                    "after_build": _text,  # what is left to do when the image is there
                },
            )
        ),
        # of a site with Run:ai. A group of account.like may stand in volumes, in braces: {lab}-scratch
        "pods": _record(
            {},
            {
                "volumes": _list(
                    _record(
                        {
                            "claim": _like(r"[\w.{}-]+", "the name of a PVC"),
                            "path": _like(r"/[\w.{}/-]*[\w.{}-]", "an absolute path of letters, digits and ._-"),
                        }
                    )
                ),
                "run_as_user": _flag,  # the volumes belong to users: pods have to run as one
                "annotations": _list(
                    _like(r"[\w./-]+=[\w./:@%+,-]+", "NAME=VALUE")
                ),  # what it takes to have RDMA between pods
                "extended_resources": _list(_like(r"[\w./-]+=\d+", "RESOURCE=QUANTITY")),
            },
        ),
        # folders that containers should see; variables in braces, as EDF files want them
        "binds": _list(_like(r'([^"`\\:,$]|\$\{\w+\})+', "a folder, such as /scratch or ${SCRATCH}")),
        "host_suffix": _text,  # appended to the first host's name where a second name leads to the fast network
        "internet": _flag,  # do compute nodes reach it?
        "login_internet": _flag,  # and login nodes?
        "ports": _record({"first": _count(1024), "last": _count(1024)}),  # that nodes may meet at
        "file_systems": _list(_record({"path": _text, "use": _text}, {"limits": _text})),
        "commands": _named(_text),  # what a user of this site types: accounts, queues, jobs, quota
        # For the README of the written project, in Markdown:
        "placement": _text,  # the network's topology, --contiguous, --switches
        "notes": _list(_text),
        "problems": _list(_record({"printed": _text, "cause": _text, "fix": _text})),
        "all_reduce": _list(
            _record({"about": _text, "source": _text, "unit": _one_of("GB/s", "Gbit/s"), "rows": _list(_ROW, 1)})
        ),
        "unconfirmed": _list(_text),  # what stands in the file though nobody could confirm it, limits aside
    },
)
_NODE = {
    "gpus": None,
    "gpu_name": "",
    "cores": None,
    "memory": "",
    "gpu_option": "--gpus-per-node=",
    "gpu_vendor": "nvidia",
}
_NODE |= {"whole": False, "cpu_only": False}
_CONTAINER = {"image": "", "modules": [], "options": [], "gpu_option": None, "entry": []}
_CONTAINER |= {"build_with": "", "after_build": ""}
_PODS = {"volumes": [], "run_as_user": False, "annotations": [], "extended_resources": []}
_LIMIT = {name: None for name in _LIMIT_KEYS} | {
    "tiers": [],
    "default": False,
    "confirmed": True,
    "about": "",
    "partitions": [],
    "node": {},
}
_MAPS = ("detect", "node", "account", "partitions", "qos", "containers", "pods", "interactive", "ports", "commands")
_LISTS = ("accounts", "required", "directives", "srun", "modules", "environment", "binds", "file_systems", "notes")
_LISTS += ("problems", "all_reduce", "unconfirmed")
_ABSENT = {"host_suffix": "", "internet": None, "login_internet": None, "placement": "", "modules_after": "purge"}


def site_names() -> list[str]:
    """Names that can be answered to the question `site`, apart from `here`."""
    return sorted(path.stem for path in SITES.glob("*.yaml"))


def site_answer(answer: str) -> str:
    """Return the site as it is kept: `here`, a known name, or the absolute path of a user's own site file.

    The path is made absolute because hooks are rendered from another folder. Raises SiteError.
    """
    if answer in ("here", *site_names()):
        return answer
    if "/" in answer or answer.endswith((".yaml", ".yml")):
        path = Path(answer).expanduser().resolve()
        if path.is_file():
            return str(path)
        what = "that is a folder" if path.is_dir() else "there is no such file"
        raise SiteError(f"site {answer!r}: {what}; give the path of a site file, or a name: {_sites()}")
    raise SiteError(f"site {answer!r} is not known{_nearest(answer.lower(), site_names())}; choose one of {_sites()}")


@cache
def site_facts(site: str) -> dict:
    """Return the checked content of a site file, every key present; all faults of the file in one SiteError.

    `here` is read off the Slurm cluster that this runs on.
    """
    name = site_answer(site)
    if name == "here":
        source, (text, error) = "what was read off this cluster", _described()
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
    faults = list(SCHEMA(content, ""))
    if not isinstance(content, dict) or any(fault.startswith(("kind:", "defaults")) for fault in faults):
        facts = None
    else:  # what is wrong in one place does not hide what is wrong in another
        broken = {re.match(r"\w*", fault)[0] for fault in faults}
        facts = _complete({name: value for name, value in content.items() if name not in broken})
        faults += _inconsistent(facts, broken)
    if faults:
        raise SiteError("\n  ".join([f"{source} is not as SCHEMA in cluster_options.py wants it:", *faults]))
    return facts


@cache
def _described() -> tuple[str, str]:
    """Return the text of the site file of this cluster, and why there is none; a cluster is asked only once."""
    import describe_cluster  # only where it is asked for

    try:
        return describe_cluster.describe(), ""
    except describe_cluster.DescribeError as error:
        return "", f"site 'here': {error}"


def _complete(content) -> dict:
    """Return the content of a site file with every key that there can be."""
    facts = {**_ABSENT, **{name: {} for name in _MAPS}, **{name: [] for name in _LISTS}}
    facts |= {"runtimes": [], "launchers": [], "title": "", **content}
    facts["node"] = {**_NODE, **facts["node"]}
    facts["pods"] = {**_PODS, **facts["pods"]}
    for section in ("partitions", "qos"):
        facts[section] = {name: {**_LIMIT, **limits} for name, limits in facts[section].items()}
    for runtime in facts["runtimes"]:
        facts["containers"] = {runtime: {}, **facts["containers"]}
    facts["containers"] = {runtime: {**_CONTAINER, **more} for runtime, more in facts["containers"].items()}
    facts["file_systems"] = [{"limits": "", **place} for place in facts["file_systems"]]
    facts["srun"] = [{"tasks": "", **option} for option in facts["srun"]]
    facts["all_reduce"] = [
        {**table, "rows": [{"nodes": "", "gpus": "", "algbw": "", **row} for row in table["rows"]]}
        for table in facts["all_reduce"]
    ]
    return facts


def _inconsistent(facts, broken):
    """Yield what each key alone cannot show; `broken` are the keys whose fault is known already."""
    kind = KINDS[facts["kind"]]
    for key in ("runtimes", "launchers"):
        if not facts[key] and key not in broken:
            yield f"{key}: expected at least one"
        for value in facts[key]:
            if value not in kind[key]:
                yield f"{key}: {value!r} does not go with kind: {facts['kind']}; {_known(kind[key])}"
    yield from _inconsistent_containers(facts, broken)
    commands = [("commands", "accounts"), ("commands", "queues")]
    needed = {  # what scripts and README cannot do without
        "slurm": [("defaults", "time_limit"), *commands],
        "runai": [*commands, ("commands", "login"), ("commands", "volumes")],
    }
    for section, key in needed.get(facts["kind"], []):
        if section not in broken and not facts[section].get(key):
            yield f"{section}.{key}: missing"
    yield from _inconsistent_pods(facts, broken)
    yield from _inconsistent_options(facts)
    yield from _inconsistent_queues(facts)
    yield from _inconsistent_nodes(facts)
    if facts["ports"] and facts["ports"]["first"] > facts["ports"]["last"]:
        yield f"ports: {facts['ports']['first']} comes after {facts['ports']['last']}"
    if not {"node", "partitions", "qos"} & broken:
        given = {question: str(facts["defaults"].get(question, "")) for question in QUESTIONS}
        for question in ("nodes", "gpus_per_node", "time_limit"):
            faults = CHECKS[question](given, facts)
            yield from (f"defaults: {fault}" for fault in faults if not isinstance(fault, Doubt))


def _inconsistent_pods(facts, broken):
    if facts["kind"] != "runai" and facts["pods"] != _PODS:
        yield "pods: only a site with kind: runai has them"
    if not {"account", "pods"} & broken:
        groups = re.compile(facts["account"].get("like", "")).groupindex
        for place, volume in enumerate(facts["pods"]["volumes"]):
            for group in re.findall(r"{(.*?)}", volume["claim"] + volume["path"]):
                if group not in groups:
                    yield f"pods.volumes[{place}]: account.like has no group {group!r}"


def _inconsistent_options(facts):
    for place, directive in enumerate(facts["directives"]):
        name = re.split("[= ]", directive["option"])[0]
        if name in OWN_OPTIONS:
            yield f"directives[{place}].option: {name} is written from {OWN_OPTIONS[name]}; say it there"
        elif name.startswith(PLUGIN_OPTIONS):
            yield f"directives[{place}].option: {name} belongs to a plug-in of srun; use containers"
    if facts["node"]["gpus"] is None and any(option["tasks"] == "rank" for option in facts["srun"]):
        yield "srun: tasks: rank is for one rank on each GPU of a node; say how many there are in node.gpus"


def _inconsistent_queues(facts):
    for section in ("defaults", "interactive"):
        for key, names in (("partition", facts["partitions"]), ("qos", facts["qos"])):
            value = facts[section].get(key)
            if value and names and value not in names:
                yield f"{section}.{key}: {value!r} is not among {', '.join(names)}"
    for name, limits in facts["qos"].items():
        for partition in limits["partitions"]:
            if facts["partitions"] and partition not in facts["partitions"]:
                yield f"qos.{name}.partitions: {partition!r} is not among {', '.join(facts['partitions'])}"


def _inconsistent_nodes(facts):
    nodes = {
        f"{section}.{name}.node": limits["node"]
        for section in ("partitions", "qos")
        for name, limits in facts[section].items()
    }
    for where, own in {"node": facts["node"], **nodes}.items():
        node = {**facts["node"], **own}
        if own and (node["cores"] or node["gpus"] or 0) < (node["gpus"] or 0):
            yield f"{where}.cores: {node['cores']} for {node['gpus']} GPUs; each needs one at least"


def _inconsistent_containers(facts, broken):
    for runtime, container in facts["containers"].items():
        if runtime not in facts["runtimes"]:
            if "runtimes" not in broken:
                yield f"containers.{runtime}: there is no such runtime in runtimes; add it there"
        elif container["image"] and not _image_fits(runtime, container["image"]):
            yield f"containers.{runtime}.image: {container['image']!r} is of the wrong kind; {_image_wanted(runtime)}"


def suggest(site: str, question: str, runtime: str = "") -> str:
    """Return the default of a question for a site; '' where it has none. The runtime matters for the image alone.

    '' for a site that there is not, so that its fault is told together with those of the other answers.
    """
    if question == "examples":
        return "yes"
    try:
        facts = site_facts(site)
    except SiteError:
        return ""
    if question in ("runtime", "launcher"):
        return facts[f"{question}s"][0]
    if question == "image":
        return _default_image(facts, runtime)
    return str(facts["defaults"].get(question, ""))


# ---- the site one stands on ------------------------------------------------------------------------------------------


def site_here() -> str:
    """Return the site whose login node this is; `here` on a Slurm cluster without a file; else `local`.

    Asks files first and the controller last, for a quarter of a second at most. `slurm` where that does not answer.
    """
    patterns = {site: _detect(site) for site in site_names()}
    named = [_first_line("/etc/xthostname"), _first_line("/etc/FZJ/systemname")]  # on Cray systems; at Jülich
    confs = [os.environ.get("SLURM_CONF", ""), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"]
    configured = [_cluster_name(_read(conf)) for conf in confs if conf]
    site = _named(patterns, named + configured)
    if site:
        return site
    hosts = {socket.gethostname(), socket.gethostname().split(".")[0]}
    for site, pattern in patterns.items():
        if pattern.get("host") and any(re.fullmatch(pattern["host"], host) for host in hosts):
            return site
    try:
        asked = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=0.25, check=False
        )
    except (FileNotFoundError, PermissionError):
        return "local"
    except (OSError, subprocess.TimeoutExpired):
        return "slurm"
    if asked.returncode == 0:
        return _named(patterns, [_cluster_name(asked.stdout)]) or "here"
    return "slurm" if any(configured) else "local"


def _detect(site) -> dict:
    """Return what the line `detect` of one of the template's own files says; parsing them all would take too long."""
    line = re.search(r"^detect:.*$", _read(SITES / f"{site}.yaml"), re.MULTILINE)
    return yaml.load(line[0], Loader)["detect"] if line else {}


def _named(patterns, names) -> str:
    found = {name.lower() for name in names if name}
    for site, pattern in patterns.items():
        if found & {name.lower() for name in pattern.get("cluster", [])}:
            return site
    return ""


def _cluster_name(text) -> str:
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def _first_line(path) -> str:
    return (_read(path).splitlines() or [""])[0].strip()


def _read(path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---- answers ---------------------------------------------------------------------------------------------------------


class Doubt(str):
    """A fault that warns instead of refusing: the limit it breaks could not be confirmed."""


class Limit(str):
    """A fault that a newer site file could cure."""


def problems(answers) -> list[str]:
    """Return every fault of the answers, each with value, rule and way out; [] when the project can be written.

    answers: the mapping of question to answer, as cookiecutter holds it; values are text.
    """
    found = [fault for fault in _review(answers) if not isinstance(fault, Doubt)]
    if any(isinstance(fault, Limit) for fault in found):
        found.append(_way_out(answers))
    return found


def _way_out(answers) -> str:
    """Return what to do where a limit is not what the site's file says."""
    site = str(answers["site"])
    known = {"here": "write it down with 'python3 cluster_options.py describe >FILE', edit that, and answer site=FILE"}
    known |= dict.fromkeys(site_names(), "copy the site's file, edit it, and answer site=PATH")
    return f"if a limit has changed: {known.get(site, f'edit {site}')}"


def warnings(answers) -> list[str]:
    """Return what is probably wrong: answers beyond limits that the site file marks as unconfirmed."""
    return [fault for fault in _review(answers) if isinstance(fault, Doubt)]


def refuse_problems(answers) -> str:
    """Raise a ClickException with all faults of the answers, which cookiecutter prints alone; else return ''."""
    if "project" not in answers:  # a replay, whose answers come later: the hook checks them
        return ""
    if not _at_terminal():
        for doubt in warnings(answers):
            click.echo(f"Warning: {doubt}", err=True)
    faults = problems(answers)
    if faults:
        heading = ["nothing was written, because of"] * (len(faults) > 1)
        raise click.ClickException("\n  ".join([*heading, *faults]))
    return ""


def settle(answers, question: str) -> str:
    """Ask again, at a terminal, until the answer to a question has no fault; elsewhere leave it to refuse_problems.

    The site is brought into the form in which it is kept. Returns ''.
    """
    if question not in answers:  # a replay, see refuse_problems
        return ""
    while True:
        found = list(_faults_of(answers, question))
        faults = [fault for fault in found if not isinstance(fault, Doubt)]
        if not faults or not _at_terminal():
            break
        for fault in faults:
            click.secho(f"  {fault}", fg="red", err=True)
        if any(isinstance(fault, Limit) for fault in faults):
            click.echo(f"  {_way_out(answers)}", err=True)
        first = {"project": "demo", "site": site_here()} if question in ("project", "site") else {}
        default = first.get(question) or suggest(answers["site"], question, answers.get("runtime", ""))
        if question == "time_limit" and _minutes(default):
            default = _within_limits(answers, default)
        again = click.prompt(f"  {question} ({default})", default=default, show_default=False)
        answers.update({question: again.strip()})
    if question == "site" and not faults:
        answers.update({"site": site_answer(answers["site"])})
    if _at_terminal():
        for doubt in found:
            click.secho(f"  Warning: {doubt}", fg="yellow", err=True)
    return ""


def _at_terminal() -> bool:
    """Whether cookiecutter's command asks somebody who sits at a terminal."""
    context = click.get_current_context(silent=True)
    return bool(context) and not context.params.get("no_input", True) and sys.stdin.isatty()


def _review(answers):
    for question in QUESTIONS:
        yield from _faults_of(answers, question)


def _faults_of(answers, question):
    """Yield the faults of one answer, in the light of the answers before it."""
    given = {name: str(answers.get(name, "")) for name in QUESTIONS}
    yield from _unsafe(question, given)
    if question == "project":
        return
    try:
        facts = site_facts(given["site"])
    except SiteError as error:
        if question == "site":
            yield error.message
        return
    if question in CHECKS:
        yield from CHECKS[question](given, facts)


def _unsafe(question, given):
    """Yield what is no folder name, or what a shell or an #SBATCH line would not take literally."""
    value = given[question]
    if question == "project" and not FOLDER.fullmatch(value):
        yield (
            f"project {value!r} is no plain folder name: use letters, digits, '.', '_', '-', at most 64, "
            "beginning with a letter or digit"
        )
    if question in ("project", "site"):
        return
    if len(value) > 200:
        yield f"{question} {value[:20]!r}… has {len(value)} characters; it may have 200"
    bad = sorted(set((UNSAFE_IN_QUOTES if question == "image" else UNSAFE).findall(value)))
    if bad:
        shown = " ".join(repr(character) for character in bad)
        yield f"{question} {value!r} holds {shown}, which would not reach the job as typed; leave it out"


def _check_choice(question):
    def check(given, facts):
        value, allowed, kind = given[question], facts[f"{question}s"], KINDS[facts["kind"]]
        if value not in allowed:
            others = [other["name"] for other in KINDS.values() if value in other[f"{question}s"]]
            why = f"is not available for {facts['title']}{_nearest(value, allowed)}"
            if others and value not in kind[f"{question}s"]:
                why = f"is for {' or '.join(others)}, but {facts['title']} has {kind['name']}"
            yield f"{question} {value!r} {why}; {_known(allowed)}"
        elif question == "runtime" and value in IN_SRUN and given["launcher"] in MPI & {*facts["launchers"]}:
            others = [runtime for runtime in allowed if runtime not in IN_SRUN]
            yield (
                f"launcher {given['launcher']!r} cannot start runtime {value!r}, which lives in options of srun; "
                f"{_known(others)}, or launcher torchrun"
            )

    return check


def _check_image(given, facts):
    runtime, image = given["runtime"], given["image"]
    if RUNTIMES.get(runtime) is None:
        if image:
            yield f"image {image!r} was given, but runtime {runtime!r} is no container; leave the image empty"
    elif not image:
        yield f"image is empty, but runtime {runtime!r} needs one; {_image_wanted(runtime)}"
    elif not _image_fits(runtime, image):
        yield f"image {image!r} is of the wrong kind for runtime {runtime!r}; {_image_wanted(runtime)}"


def _check_account(given, facts):
    account, known, form = given["account"], facts["accounts"], facts["account"]
    yield from _check_needed("account", given, facts)
    if not account:
        return
    if known and account not in known:
        yield f"account {account!r} is not one of yours{_nearest(account, known)}; {_known(known)}"
    elif form and not re.fullmatch(form["like"], account):
        find = facts["commands"].get("accounts", "")
        yield f"account {account!r}: at {facts['title']} it looks like {form['example']}; list yours with: {find}"


def _check_needed(question, given, facts):
    """Yield that an answer is missing, or that there is nothing it could mean."""
    value, kind = given[question], KINDS[facts["kind"]]
    if facts["kind"] == "local" or (facts["kind"] == "runai" and question in ("qos", "time_limit")):
        if value:
            yield f"{question} {value!r} means nothing where there is {kind['name']}; leave it empty"
    elif not value and question in facts["required"]:
        find = facts["commands"].get("accounts" if question == "account" else "queues", "")
        example = f", for example {facts['account']['example']}" if question == "account" and facts["account"] else ""
        yield f"{question} is empty, but {facts['title']} wants one for every job{example}; list yours with: {find}"


def _check_queue(question):
    section = "partitions" if question == "partition" else "qos"

    def check(given, facts):
        value, known = given[question], facts[section]
        yield from _check_needed(question, given, facts)
        if not value or not known:
            return
        # where none is named, the cluster's default is most likely the one that the file suggests
        partition = _queue("partition", given, facts) or facts["defaults"].get("partition", "")
        partitions = known.get(value, _LIMIT)["partitions"]
        if value not in known:
            yield f"{question} {value!r} is not known at {facts['title']}{_nearest(value, known)}; {_known(known)}"
        elif partitions and partition in facts["partitions"] and partition not in partitions:
            yield f"qos {value!r} does not go with partition {partition!r}; {_known(partitions)}"

    return check


def _limits(given, facts):
    """Yield the limits of the chosen partition and QoS: where they stand, how their faults are told, what they are."""
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        name = _queue(question, given, facts)
        limits = facts[section].get(name)
        if limits:
            yield f"{question} {name}", Limit if limits["confirmed"] else _doubt, limits


def _queue(question, given, facts):
    """Return the chosen partition or QoS, or else the cluster's default; '' where that is not known."""
    queues = facts["partitions" if question == "partition" else "qos"]
    return given[question] or next((name for name, limits in queues.items() if limits["default"]), "")


def _doubt(text):
    return Doubt(f"{text}, a limit that nobody could confirm")


def _check_nodes(given, facts):
    nodes = _whole(given["nodes"])
    if not nodes:
        yield f"nodes {given['nodes']!r} is not a whole number of at least 1; for example nodes=2"
        return
    for where, fault, limits in _limits(given, facts):
        most, least = limits["max_nodes"], limits["min_nodes"]
        if most and nodes > most:
            yield fault(f"nodes {nodes}: {where} allows at most {most}")
        if least and nodes < least:
            yield fault(f"nodes {nodes}: {where} takes jobs of at least {least}")


def _check_gpus(given, facts):
    nodes, gpus = _whole(given["nodes"]), _whole(given["gpus_per_node"])
    partition = _queue("partition", given, facts)
    node = node_of(facts, partition, _queue("qos", given, facts))
    most, cpu_only = node["gpus"], node["cpu_only"]
    if gpus is None:
        yield f"gpus_per_node {given['gpus_per_node']!r} is not a whole number of at least 0; for example {most or 4}"
    elif most is not None and gpus > most:
        own = facts["partitions"].get(partition, _LIMIT)["node"]
        where = f"partition {partition}" if own else facts["title"]
        fix = f"use at most {most} and more nodes" if most else "use 0, or another partition"
        yield f"gpus_per_node {gpus}: a node of {where} has {most}; {fix}"
    elif gpus == 0 and not cpu_only and most != 0:
        use = f"1 to {most}" if most else "at least 1"
        yield f"gpus_per_node 0: {facts['title']} is described by its GPU nodes only; use {use}"
    else:
        for where, fault, limits in _limits(given, facts):
            total = (nodes or 0) * gpus
            if total > (limits["max_gpus"] or total):
                yield fault(f"gpus_per_node {gpus} on {nodes} nodes: {where} allows {limits['max_gpus']} GPUs per job")


def _check_time(given, facts):
    nodes, minutes, text = _whole(given["nodes"]), _minutes(given["time_limit"]), given["time_limit"]
    if facts["kind"] != "slurm":
        yield from _check_needed("time_limit", given, facts)
    elif not minutes:
        yield f"time_limit {text!r} is no walltime [D-]HH:MM:SS above zero; for example 01:30:00"
    else:
        for where, fault, limits in _limits(given, facts):
            yield from map(fault, _too_long(where, limits, nodes, minutes, text))


def _too_long(where, limits, nodes, minutes, text):
    longest, product = limits["max_time"], limits["max_node_minutes"]
    tiers = sorted(
        (tier["max_nodes"], tier["max_time"]) for tier in limits["tiers"] if (nodes or 0) <= tier["max_nodes"]
    )
    if longest and minutes > _minutes(longest):
        yield f"time_limit {text}: {where} allows at most {longest}"
    elif tiers and minutes > _minutes(tiers[0][1]):
        yield f"time_limit {text}: {where} allows jobs of up to {tiers[0][0]} nodes at most {tiers[0][1]}"
    if nodes and product and nodes * minutes > product and nodes <= (limits["max_nodes"] or nodes):
        longest = walltime(product // nodes)
        yield (
            f"time_limit {text} on {nodes} nodes: {where} allows {product} node-minutes per job, "
            f"so {nodes} node{'s' * (nodes > 1)} for at most {longest}"
        )


def _check_examples(given, facts):
    value = given["examples"]
    if value not in ("yes", "no"):
        hint = '; in a YAML file, which reads no as False, write "no" in quotes' if value in ("True", "False") else ""
        yield f"examples {value!r} is neither yes nor no; choose yes, or no for a project that exists{hint}"


CHECKS = {
    "launcher": _check_choice("launcher"),
    "runtime": _check_choice("runtime"),
    "image": _check_image,
    "account": _check_account,
    "partition": _check_queue("partition"),
    "qos": _check_queue("qos"),
    "nodes": _check_nodes,
    "gpus_per_node": _check_gpus,
    "time_limit": _check_time,
    "examples": _check_examples,
}


def _default_image(facts, runtime):
    """Return the site's image for a runtime, else the vendor's own in that runtime's spelling; '' if it takes none."""
    if RUNTIMES.get(runtime) is None:
        return ""
    image = facts["containers"].get(runtime, _CONTAINER)["image"]
    if image:
        return image
    image = VENDOR_IMAGES[facts["node"]["gpu_vendor"]]
    spellings = (image, f"docker://{image}", image.replace("/", "#", 1))
    return next((spelling for spelling in spellings if _image_fits(runtime, spelling)), "")


def _image_fits(runtime, image):
    return RUNTIMES[runtime] and re.fullmatch(RUNTIMES[runtime][0], image)


def _image_wanted(runtime):
    return f"give {RUNTIMES[runtime][1]}" if RUNTIMES[runtime] else "this runtime is no container"


def _whole(text: str) -> "int | None":
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else None


def _minutes(text: str) -> "float | None":
    match = WALLTIME.fullmatch(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def warning(answers) -> int:
    """Return how many seconds before its walltime is over a job is warned: a tenth of it, 30 s to 5 min."""
    return min(300, max(30, int((_minutes(answers["time_limit"]) or 0) * 6)))


def walltime(minutes: int) -> str:
    """Return whole minutes as HH:MM:SS."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _nearest(value, names) -> str:
    near = difflib.get_close_matches(str(value), [str(name) for name in names], n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _known(names) -> str:
    return f"choose {' or '.join(names) if len(names) < 3 else 'one of ' + ', '.join(names)}"


def _sites() -> str:
    return f"{', '.join(site_names())}, here (any Slurm cluster one stands on), or the path of a site file of your own"


# ---- what the written files are rendered with ------------------------------------------------------------------------


def node_of(facts, partition: str, qos: str = "") -> dict:
    """Return what is known of the nodes of a partition, as a QoS gives them."""
    own = facts["partitions"].get(partition, _LIMIT)["node"], facts["qos"].get(qos, _LIMIT)["node"]
    return {**facts["node"], **own[0], **own[1]}


def node_facts(answers) -> dict:
    """Return what is known of the nodes that the answers ask for."""
    facts = site_facts(answers["site"])
    return node_of(facts, _queue("partition", answers, facts), _queue("qos", answers, facts))


def interactive_answers(answers) -> dict:
    """Return the answers for a shell: one node, half an hour or what the site has, in the queue it has for that."""
    queue = dict(site_facts(answers["site"])["interactive"])
    return _one_node(answers, queue.pop("time_limit", "00:30:00"), queue, int(answers["gpus_per_node"]))


def build_answers(answers, longest: str) -> dict:
    """Return the answers for a job that builds something: one node, `longest` at most, one GPU where nodes are shared.

    It is no test: it goes where jobs go that name no queue, if the answered queue is one for tests.
    """
    facts, gpus = site_facts(answers["site"]), int(answers["gpus_per_node"])
    queue = _usual_queue(answers, facts) if for_tests(facts, answers) else {}
    whole = node_facts(answers)["whole"] and not _exclusive(facts)
    return _one_node(answers, longest, queue, gpus if whole else min(gpus, 1))


def _one_node(answers, longest, queue, gpus):
    """Return the answers for one node, in the first that takes it: the given, answered, suggested or default queue."""
    facts = site_facts(answers["site"])
    suggested = {question: suggest(answers["site"], question) for question in ("partition", "qos")}
    for names in (queue, {}, suggested, _usual_queue(answers, facts)):
        job = {**answers, "nodes": "1", **names}
        known = [node_facts(job)["gpus"], *(limits["max_gpus"] for _, _, limits in _limits(job, facts))]
        job["gpus_per_node"] = str(min([gpus, *(count for count in known if count is not None)]))
        job["time_limit"] = _within_limits(job, longest)
        faults = [fault for question in ("qos", "nodes", "gpus_per_node") for fault in CHECKS[question](job, facts)]
        if not faults and (job["gpus_per_node"] != "0" or gpus == 0):
            break
    return job


def _usual_queue(answers, facts):
    """Return where jobs go that name no queue, as far as that is known."""
    found = {question: _queue(question, {**answers, question: ""}, facts) for question in ("partition", "qos")}
    return {question: name for question, name in found.items() if name}


def _exclusive(facts) -> bool:
    return any(directive["option"] == "--exclusive" for directive in facts["directives"])


def _within_limits(answers, longest):
    """Return a walltime, or the longest that the chosen queue allows for so many nodes."""
    nodes, times = _whole(answers["nodes"]) or 1, [longest]
    for _, _, limits in _limits(answers, site_facts(answers["site"])):
        times += [limits["max_time"], *(tier["max_time"] for tier in limits["tiers"] if nodes <= tier["max_nodes"])]
        times += [walltime(minutes // nodes) for minutes in [limits["max_node_minutes"]] if minutes]
    return min(filter(None, times), key=_minutes)


def example_nodes(answers) -> str:
    """Return a number of nodes for an example that the chosen queue takes: 4, or as many as were answered."""
    more = {**answers, "nodes": "4"}
    return answers["nodes"] if list(_review(more)) else "4"


def cores_per_node(answers) -> "int | None":
    """Return the cores a job asks for on each node: all of a whole node, else the GPUs' share; None if unknown."""
    node = node_facts(answers)
    return node["cores"] and _share(node["cores"], node, int(answers["gpus_per_node"]))


def _memory(node, gpus) -> str:
    """Return the value of --mem: of a shared node the GPUs' part of its memory, in MB so that it is a whole number."""
    amount, unit = re.fullmatch(r"(\d*)(.*)", node["memory"]).groups()
    megabytes = int(amount or 0) * {"T": 1024**2, "G": 1024}.get(unit[:1], 1)
    share = _share(megabytes, node, gpus)
    return node["memory"] if share == megabytes or unit[:1] == "K" else f"{share}M"


def _share(amount, node, gpus):
    return amount if node["whole"] or not gpus or not node["gpus"] else amount * gpus // node["gpus"]


def resources(answers, builds=False) -> list[tuple[str, str]]:
    """Return the options of sbatch that say what a job takes and from which queue, each with its reason.

    builds: where it takes --exclusive to have a whole node, a job that builds something leaves the others their share.
    """
    facts, node, cores = site_facts(answers["site"]), node_facts(answers), cores_per_node(answers)
    gpus, partition, qos = int(answers["gpus_per_node"]), answers["partition"], answers["qos"]
    shared = builds and _exclusive(facts)
    memory = "" if shared else _memory(node, gpus)
    about_partition = _queue_reason(facts["partitions"].get(partition, _LIMIT), "which nodes")
    about_qos = _queue_reason(facts["qos"].get(qos, _LIMIT), "which limits and priority")
    share = "all cores of a node, as Slurm counts" if cores == node["cores"] else "the cores that come with these GPUs"
    options = [
        (f"{node['gpu_option']}{gpus}", "GPUs of each node", gpus),
        (f"--cpus-per-task={cores}", f"{share}; without it, one", cores),
        (f"--mem={memory}", "of each node" + "; 0 means all" * (memory == "0"), memory),
        *((one["option"], one["why"], not shared or one["option"] != "--exclusive") for one in facts["directives"]),
        (f"--time={answers['time_limit']}", "walltime; a shorter job starts sooner", True),
        (f"--partition={partition}", about_partition, partition),
        (f"--qos={qos}", about_qos, qos),
        (f"--account={answers['account']}", "who is charged", answers["account"]),
    ]
    return [(option, why) for option, why, wanted in options if wanted]


def _queue_reason(limits, otherwise: str) -> str:
    """Return what stands beside the option that names a queue: what it is for, and its longest walltime if known."""
    known = limits["max_time"] and limits["confirmed"] and not limits["tiers"]
    return (limits["about"] or otherwise) + f"; walltime up to {limits['max_time']}" * bool(known)


def has_own_queue(job, answers) -> bool:
    """Return whether a job goes to another partition or QoS than slurm/submit_multinode.sh names."""
    return any(job[question] != answers[question] for question in ("partition", "qos"))


def own_resources(job, own_queue: bool, builds=False) -> list[tuple[str, str]]:
    """Return resources(job) without what a script takes from the submit script: the account, mostly the queue."""
    shared = ("--account=",) if own_queue else ("--account=", "--partition=", "--qos=")
    return [(option, why) for option, why in resources(job, builds) if not option.startswith(shared)]


def nodes_of(limits) -> str:
    """Return how many nodes a queue gives to one job, for a table."""
    least, most = limits["min_nodes"], limits["max_nodes"]
    return f"{least} to {most}" if least and most else f"at least {least}" if least else str(most or "")


def for_tests(facts, answers) -> bool:
    """Whether the chosen queue is one for tests, which takes some consideration."""
    chosen = {**facts["partitions"], **facts["qos"]}
    names = [_queue(question, answers, facts) for question in ("partition", "qos")]
    words = r"(?<![a-z])(debug|tests?|dev(el\w*)?)(?![a-z])"
    return any(re.search(words, f"{name} {chosen[name]['about']}") for name in names if name in chosen)


def remarks(limits) -> str:
    """Return what a table of queues says beside nodes and walltime."""
    tiers = [f"up to {tier['max_nodes']} nodes {tier['max_time']}" for tier in limits["tiers"]]
    found = [
        "the default" if limits["default"] else "",
        limits["about"],
        f"{limits['max_node_minutes']} node-minutes per job" if limits["max_node_minutes"] else "",
        f"{limits['max_gpus']} GPUs per job" if limits["max_gpus"] else "",
        ", ".join(tiers),
        f"with partition {' or '.join(limits['partitions'])}" if limits["partitions"] else "",
        "" if limits["confirmed"] else "unconfirmed",
    ]
    return cell("; ".join(filter(None, found)))


def gpu_option(answers) -> str:
    """Return the option of apptainer that brings the GPUs into the container; '' for none."""
    own = site_facts(answers["site"])["containers"].get("apptainer", _CONTAINER)["gpu_option"]
    if int(answers["gpus_per_node"]) == 0:
        return ""
    return own if own is not None else "--rocm" if node_facts(answers)["gpu_vendor"] == "amd" else "--nv"


def cell(text) -> str:
    """Return text as it may stand in a table of Markdown."""
    return str(text).replace("|", r"\|")


def in_code(text: str) -> str:
    """Return what a program prints as Markdown shows it; a text that has its own marks, or tells of nothing, stays."""
    text = cell(text)
    return text if "`" in text or text.startswith("nothing") else f"`{text}`"


def modules_of(answers) -> dict:
    """Return the modules of each runtime that RUNTIME may be set to; if all want the same, these under ''."""
    facts = site_facts(answers["site"])
    names = dict.fromkeys([answers["runtime"], *(name for name in ("venv", "none") if name in facts["runtimes"])])
    found = {name: facts["modules"] + facts["containers"][name]["modules"] for name in names}
    first = found[answers["runtime"]]
    return {"": first} if all(modules == first for modules in found.values()) else found


def interactive_line(answers) -> str:
    """Return the one line that opens a shell on a compute node, in the chosen software; for the project's folder."""
    facts, job, runtime = site_facts(answers["site"]), interactive_answers(answers), answers["runtime"]
    here, container = '"$PWD"', facts["containers"][runtime]
    image, ending = answers["image"], "sif" if runtime == "apptainer" else "sqsh"
    if image_source(answers) and runtime in ("apptainer", "enroot", *IN_SRUN):
        image = f'"$PWD/container/{answers["project"]}.{ending}"'
    if runtime == "podman-hpc":
        image = f"localhost/{image_name(answers)}:latest"
    enter = {  # what comes between srun and the shell
        "apptainer": ["singularity exec", gpu_option(answers), *container["options"], image, *container["entry"]],
        "pyxis": [
            f"--container-image={image} --container-mounts={here} --container-workdir={here}",
            *container["options"],
        ],
        "edf": ['"${CONTAINER_SRUN_ARGS[@]}"'],
        "enroot": [f"container/start.sh {image} {here} --"],
        "podman-hpc": [f"container/start.sh {image} {here} --"],
        "shifter": [f"shifter --image=docker:{image}", *container["options"]],
    }.get(runtime, [])
    modules = " ".join([*facts["modules"], *container["modules"]])
    before = f"module load {modules}; " * bool(modules) + f"export PROJECT_DIR={here}"
    before += " ENROOT_LOGIN_SHELL=no" * (runtime == "pyxis")
    options = [shlex.quote(option) for option, _ in resources(job)]
    srun = [option["option"] for option in facts["srun"] if option["tasks"] != "rank"]
    shell = "bash" if enter else "bash --rcfile slurm/interactive.rc"
    words = ["salloc --nodes=1 --ntasks=1", *options, "srun --pty", *srun, *enter, shell]
    line = " ".join(filter(None, words))
    if runtime == "edf":  # set_up_software writes the file that describes the container, and loads the modules
        line = f"source env.sh && source launch/software.sh && set_up_software {here} && exec {line}"
        return f"export PROJECT_DIR={here}; bash -c {shlex.quote(line)}"
    return f"{before}; {line}"


def pod_volumes(answers) -> list[str]:
    """Return the volumes that pods mount, as CLAIM:/FOLDER, with what the account says of them filled in."""
    facts = site_facts(answers["site"])
    found = re.fullmatch(facts["account"].get("like", ""), answers["account"])
    named = found.groupdict() if found else {}
    volumes = (f"{volume['claim']}:{volume['path']}" for volume in facts["pods"]["volumes"])
    return [re.sub(r"{(.*?)}", lambda group: named[group[1]], volume) for volume in volumes]


def image_source(answers) -> str:
    """Return REGISTRY/NAME:TAG, what the image is built from; '' for a ready file and where there is no container."""
    found = RUNTIMES[answers["runtime"]] and re.fullmatch(RUNTIMES[answers["runtime"]][0], answers["image"])
    name = (found[1] or "").replace("#", "/") if found and found.groups() else ""
    registry, slash, _ = name.partition("/")
    if name and not (slash and re.search(r"[.:]", registry)):  # what Docker alone would look up in its own registry
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    return name


def image_name(answers) -> str:
    """Return the project's name as it may stand in the name of an image: small letters, digits, single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", answers["project"].lower()).strip("-")


def pad(option: str) -> str:
    """Return an #SBATCH option filled up so that the reasons beside the options stand in one column."""
    return option.ljust(30)


def overridable(variable: dict) -> str:
    """Return the shell text that keeps an environment variable as the user set it, or else takes the site's value."""
    if variable.get("force") or "SLURM_JOB_ID" in variable["value"]:  # another job's is never right
        return variable["value"]
    return f"${{{variable['name']}:-{variable['value']}}}"


def in_quotes(command: str) -> str:
    """Return a command as it stands inside double quotes of a shell."""
    return re.sub(r'(["`\\]|\$(?=\())', r"\\\1", command)


# ---- where a project comes from --------------------------------------------------------------------------------------


def complete(answers) -> str:
    """Give the questions that a replay of an older version does not know their default. Returns ''."""
    if not answers.get("site"):
        answers["site"] = site_here()
    for question in QUESTIONS[2:]:
        if answers.get(question, UNASKED) == UNASKED:
            answers[question] = suggest(answers["site"], question, answers.get("runtime", ""))
    return ""


def template_source(answers) -> dict:
    """Return where the template came from: its `name` for cookiecutter, its `commit` if known, its `git` URL for cruft.

    Local names are made absolute. `git` is empty for a zip file, which has no history.
    """
    name, local = str(answers["_template"]), STARTED_IN / str(answers["_template"])
    if local.exists():
        name = str(local.resolve())
    url = name
    for short, long in HOSTS.items():  # cruft knows long ones alone, and what it writes has to be the same
        if re.fullmatch(long.format("(.+)"), name):
            name = re.sub(long.format("(.+)"), rf"{short}:\1", name)
        if name.startswith(f"{short}:"):
            url = long.format(name.partition(":")[2])
    return {"name": name, "commit": _commit(), "git": "" if name.lower().endswith(".zip") else url}


@cache
def _commit() -> str:
    """Return the commit of the template's repository; '' where it is none."""
    if not (SITES.parent / ".git").exists():
        return ""
    try:
        asked = ["git", "-C", SITES.parent, "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _given(answers) -> dict:
    """Return the answers that a project cannot be written without: those that are not its site's default."""
    site, runtime = answers["site"], answers["runtime"]
    own = {question: answers[question] for question in QUESTIONS[2:]}
    changed = {question: value for question, value in own.items() if value != suggest(site, question, runtime)}
    return {"project": answers["project"], "site": site, **changed}


def bake_command(answers) -> str:
    """Return the command that writes the same project again, whatever cookiecutter's configuration says."""
    source = template_source(answers)
    local = source["name"].startswith("/")  # cookiecutter ignores --checkout there
    checkout = [] if local or not source["commit"] else ["--checkout", source["commit"]]
    existing = ["--overwrite-if-exists", "--skip-if-file-exists"] if answers["examples"] == "no" else []
    words = ["cookiecutter", "--no-input", "--default-config", *existing, *checkout, source["name"]]
    return shlex.join(words + [f"{question}={value}" for question, value in _given(answers).items()])


def link_command(answers) -> str:
    """Return the command that tells cruft what a project was written from; for the project's folder."""
    source = template_source(answers)
    checkout = ["--checkout", source["commit"]] if source["commit"] else []
    words = ["cruft", "link", "--no-input", "--default-config", *checkout, source["git"]]
    return shlex.join([*words, "--extra-context", json.dumps(_given(answers))])


def scripts() -> list:
    """Return the template's scripts, which begin with #!, by the paths that they are written to."""
    folder = SITES.parent / "{{cookiecutter.project}}"
    files = [path for pattern in ("*.sh", "*.sbatch", "*.py") for path in folder.rglob(pattern)]
    return sorted(str(path.relative_to(folder)) for path in files if path.read_bytes().startswith(b"#!"))


def template_files(answers) -> list[str]:
    """Return the paths of all files that cookiecutter writes, before the hook removes what was not answered for."""
    folder = SITES.parent / "{{cookiecutter.project}}"
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name.replace(folder.name, answers["project"]) for name in names)


def left_out(answers) -> list[str]:
    """Return the paths of the files that examples=no leaves out."""
    names = template_files(answers) if answers["examples"] == "no" else []
    return [name for name in names if name in EXAMPLES or name.split("/")[0] in EXAMPLES]


def instructions(answers) -> str:
    """Return the path of the page of instructions: a project that exists has a README.md of its own."""
    return f"{site_facts(answers['site'])['kind']}/README.md" if answers["examples"] == "no" else "README.md"


GLOBALS = [
    site_here,
    site_facts,
    suggest,
    settle,
    problems,
    refuse_problems,
    node_facts,
    interactive_answers,
    build_answers,
    resources,
    has_own_queue,
    own_resources,
    warning,
    example_nodes,
    nodes_of,
    for_tests,
    remarks,
    gpu_option,
    cell,
    in_code,
    modules_of,
    interactive_line,
    cores_per_node,
    pod_volumes,
    image_source,
    image_name,
    pad,
    overridable,
    in_quotes,
    complete,
    template_source,
    bake_command,
    link_command,
    scripts,
    template_files,
    left_out,
    instructions,
]


def _stamps() -> dict:
    return {path: path.stat().st_mtime_ns for path in [*SITES.parent.glob("*.py"), *SITES.glob("*.yaml")]}


STAMPS = _stamps()


class ClusterOptions(Extension):
    """Makes the functions above known to cookiecutter.json, to the hooks and to every rendered file."""

    def __init__(self, environment):
        """Add them as globals.

        `cruft update` renders the old and the new template in one process, one after the other in the same folder.
        """
        super().__init__(environment)
        _commit.cache_clear()
        if _stamps() != STAMPS:
            sys.modules.pop("describe_cluster", None)
            Path(importlib.util.cache_from_source(__file__)).unlink(missing_ok=True)  # it knows whole seconds only
            importlib.reload(sys.modules[__name__])
        environment.globals.update({function.__name__: function for function in GLOBALS})
        environment.globals.update(LAUNCHER_ROWS=LAUNCHER_ROWS, VERSION=VERSION)


def table() -> str:
    """Return the site files as the table of README.md."""
    lines = ["| `site` | cluster | a node | runtimes, the first by default | queues | checked |"]
    lines += ["|---|---|---|---|---|---|"]
    for site in site_names():
        facts = site_facts(site)
        nodes = [node_of(facts, partition) for partition in facts["partitions"]] or [facts["node"]]
        amounts = dict.fromkeys(
            f"{node['gpus']} x {node['gpu_name'] or 'GPU'}" + f", {node['cores']} cores" * bool(node["cores"])
            for node in nodes
            if node["gpus"]
        )
        queues = len(facts["partitions"]) + len(facts["qos"])
        words = [f"`{site}`", f"[{facts['title']}]({facts['docs']})", "; ".join(amounts) or "any"]
        words += [", ".join(facts["runtimes"]), str(queues or "any"), facts["checked"]]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def outdated(today: date) -> list[str]:
    """Return a sentence for each site whose facts were last checked more than a year before a day."""
    days = {site: site_facts(site)["checked"] for site in site_names()}
    return [
        f"sites/{site}.yaml was checked on {day}, more than a year ago: compare it with its sources, correct `checked`"
        for site, day in days.items()
        if date.fromisoformat(day) < today - timedelta(days=365)
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table(), end="")
    elif sys.argv[1:] == ["dates"]:
        sys.exit("\n".join(outdated(date.today())) or None)
    else:
        sys.exit("usage: python3 cluster_options.py describe | table | dates")
