"""What the template knows of clusters: reads sites/*.yaml and says what is wrong with a set of answers.

Loaded by cookiecutter as a Jinja extension (cookiecutter.json, "_extensions"), so that the questions, the hooks and the
written files all see the same functions. Everything here is a plain function of its arguments.
"""

from __future__ import annotations

import difflib
import re
from datetime import date
from functools import cache
from pathlib import Path

import click
import yaml
from jinja2.ext import Extension

SITES = Path(__file__).resolve().parent / "sites"

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
}
VENDOR_IMAGES = {
    "nvidia": "nvcr.io/nvidia/pytorch:26.01-py3",
    "amd": "docker.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
}
# These live in options of srun, so mpirun, whose tasks are no steps of their own, cannot start them.
IN_SRUN = ("pyxis", "edf")
LAUNCHERS = ("torchrun", "srun", "spawn", "mpirun", "mpirun-ranks")
# A site file states what the cluster has; of these the template can write projects so far.
WRITTEN_KINDS = ("local", "slurm")

WALLTIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Account, partition and so on stand in #SBATCH lines, where a space or a # ends the value; an image stands in quotes.
UNSAFE = re.compile(r"[^A-Za-z0-9._:/@+=,-]")
UNSAFE_IN_QUOTES = re.compile(r"[^A-Za-z0-9._:/@+=,# -]")
QUESTIONS = ("project", "site", "launcher", "runtime", "image", "account", "partition", "qos")
QUESTIONS += ("nodes", "gpus_per_node", "time_limit")


# ---- site files ------------------------------------------------------------------------------------------------------


class SiteError(click.ClickException):
    """A site that does not exist or a site file that breaks the schema; shown by cookiecutter as one message."""


def _text(value, key):
    if not isinstance(value, str):
        yield f"{key}: expected text, got {value!r}; put it in quotes"


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


def _one_of(*allowed):
    def check(value, key):
        if value not in allowed:
            yield f"{key}: expected one of {', '.join(allowed)}, got {value!r}"

    return check


def _list(item):
    def check(value, key):
        if not isinstance(value, list):
            yield f"{key}: expected a list, got {value!r}"
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


_LIMITS = _record(
    {},
    {
        "max_nodes": _count(1),
        "max_time": _walltime,
        "max_node_minutes": _count(1),  # nodes x walltime of one job
        "confirmed": _flag,  # false: nobody could confirm these figures, so they warn instead of refusing
        "about": _text,
    },
)

SCHEMA = _record(
    {
        "title": _text,
        "kind": _one_of("local", "slurm", "runai"),
        "docs": _text,
        "checked": _day,
        "contact": _text,
        "runtimes": _list(_one_of(*RUNTIMES)),  # the first that the template can write is the default
        "launchers": _list(_one_of(*LAUNCHERS)),
        "defaults": _record(
            {"nodes": _count(1), "gpus_per_node": _count(0)},
            {"time_limit": _walltime, "partition": _text, "qos": _text},
        ),
    },
    {
        "node": _record(
            {},
            {
                "gpus": _count(0),
                "cores": _count(1),
                "memory": _text,  # value of --mem
                "gpu_option": _one_of("--gpus-per-node=", "--gres=gpu:"),
                "gpu_vendor": _one_of("nvidia", "amd"),
                "whole": _flag,  # the scheduler gives whole nodes: ask for all cores, however few GPUs are used
                "cpu_only": _flag,  # has nodes where gpus_per_node=0 makes sense
            },
        ),
        "required": _list(_one_of("account", "partition", "qos")),  # questions that this site wants an answer to
        "partitions": _named(_LIMITS),  # empty: any name is taken as it is
        "qos": _named(_LIMITS),
        "directives": _list(_record({"option": _like("--.+", "an option --NAME"), "why": _text})),  # more #SBATCH lines
        "modules": _list(_text),
        "environment": _list(
            _record(
                {
                    "name": _like("[A-Za-z_][A-Za-z0-9_]*", "the name of a variable"),
                    "value": _like('[^"`$\\\\]*', 'text without ", `, $ and \\'),  # it will stand in double quotes
                    "why": _text,
                }
            )
        ),
        # beside what a container runtime needs everywhere: default image, modules that bring the program, more flags
        "containers": _named(
            _record({}, {"image": _text, "modules": _list(_text), "options": _list(_like("-.*", "an option"))})
        ),
        # folders that containers should see; variables in braces, as EDF files want them
        "binds": _list(_like(r'([^"`\\:,$]|\$\{\w+\})+', "a folder, such as /scratch or ${SCRATCH}")),
        "host_suffix": _text,  # appended to the first host's name where a second name leads to the fast network
        "internet": _flag,  # do compute nodes reach it?
        "file_systems": _list(_record({"path": _text, "use": _text}, {"limits": _text})),
        "commands": _named(_text),  # what a user of this site types: accounts, queues, jobs, quota
    },
)
_NODE = {"gpus": None, "cores": None, "memory": "", "gpu_option": "--gpus-per-node=", "gpu_vendor": "nvidia"}
_NODE |= {"whole": False, "cpu_only": False}
_CONTAINER = {"image": "", "modules": [], "options": []}
_LIMIT = {"max_nodes": None, "max_time": None, "max_node_minutes": None, "confirmed": True, "about": ""}
_ABSENT = {
    "node": {},
    "required": [],
    "partitions": {},
    "qos": {},
    "directives": [],
    "modules": [],
    "environment": [],
    "containers": {},
    "binds": [],
    "host_suffix": "",
    "internet": None,
    "file_systems": [],
    "commands": {},
}


def site_names() -> list[str]:
    """Names that can be answered to the question `site`."""
    return sorted(path.stem for path in SITES.glob("*.yaml"))


def site_answer(answer: str) -> str:
    """Return the site as it is kept: a known name, or the absolute path of a user's own site file.

    The path is made absolute because hooks are rendered from another folder. Raises SiteError.
    """
    if answer in site_names():
        return answer
    if "/" in answer or answer.endswith((".yaml", ".yml")):
        path = Path(answer).expanduser().resolve()
        if UNSAFE_IN_QUOTES.search(str(path)):
            raise SiteError(f"site {answer!r}: the path may hold letters, digits and . _ : / @ + = , # - only")
        if path.is_file():
            return str(path)
        raise SiteError(f"site {answer!r}: there is no such file; give the path of a site file, or a name: {_sites()}")
    raise SiteError(f"site {answer!r} is not known{_nearest(answer, site_names())}; choose one of {_sites()}")


@cache
def site_facts(site: str) -> dict:
    """Return the checked content of a site file, every key present; all faults of the file in one SiteError."""
    name = site_answer(site)
    path = Path(name) if "/" in name else SITES / f"{name}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SiteError(f"{path}: not readable as YAML: {error}") from error
    faults = list(SCHEMA(content, ""))
    if not faults:
        facts = {**_ABSENT, **content}
        facts["node"] = {**_NODE, **facts["node"]}
        for section in ("partitions", "qos"):
            facts[section] = {name: {**_LIMIT, **limits} for name, limits in facts[section].items()}
        containers = facts["containers"]
        for runtime in [*facts["runtimes"], *containers]:
            containers = {**containers, runtime: {**_CONTAINER, **containers.get(runtime, {})}}
        facts["containers"] = containers
        facts["file_systems"] = [{"limits": "", **place} for place in facts["file_systems"]]
        faults = list(_inconsistent(facts))
    if faults:
        raise SiteError(
            "\n  ".join([f"the site file {path} is not as SCHEMA in cluster_options.py wants it:", *faults])
        )
    return facts


def _inconsistent(facts):
    """Yield what each key alone cannot show."""
    for key, names in (("partition", facts["partitions"]), ("qos", facts["qos"])):
        value = facts["defaults"].get(key)
        if value and names and value not in names:
            yield f"defaults.{key}: {value!r} is not among {', '.join(names)}"
    for key in ("runtimes", "launchers"):
        if not facts[key]:
            yield f"{key}: expected at least one"
    if facts["kind"] == "local":
        for key, allowed in (("runtimes", ("none", "venv")), ("launchers", ("torchrun",))):
            for value in facts[key]:
                if value not in allowed:
                    yield f"{key}: {value!r} needs a scheduler, but kind is local; use {' or '.join(allowed)}"
    yield from _inconsistent_containers(facts)
    if facts["kind"] not in WRITTEN_KINDS:
        yield f"kind: {facts['kind']!r} cannot be written by this template yet; use one of {', '.join(WRITTEN_KINDS)}"
    if facts["kind"] == "slurm":  # what the scripts for a scheduler cannot do without
        for section, key in (("defaults", "time_limit"), ("commands", "accounts"), ("commands", "queues")):
            if not facts[section].get(key):
                yield f"{section}.{key}: missing"


def _inconsistent_containers(facts):
    for runtime, container in facts["containers"].items():
        if runtime not in facts["runtimes"]:
            yield f"containers.{runtime}: there is no such runtime in runtimes; add it there"
        elif container["image"] and not _image_fits(runtime, container["image"]):
            yield f"containers.{runtime}.image: {container['image']!r} is of the wrong kind; {_image_wanted(runtime)}"


def suggest(site: str, question: str, runtime: str = "") -> str:
    """Return the default of a question for a site; '' where it has none. The runtime matters for the image alone."""
    facts = site_facts(site)
    if question in ("runtime", "launcher"):
        return facts[f"{question}s"][0]
    if question == "image":
        return _default_image(facts, runtime)
    return str(facts["defaults"].get(question, ""))


# ---- answers ---------------------------------------------------------------------------------------------------------


def problems(answers) -> list[str]:
    """Return every fault of the answers, each with value, rule and way out; [] when the project can be written.

    answers: the mapping of question to answer, as cookiecutter holds it; values are text.
    """
    return _review(answers)[0]


def warnings(answers) -> list[str]:
    """Return what is probably wrong: answers beyond limits that the site file marks as unconfirmed."""
    return _review(answers)[1]


def refuse_problems(answers) -> str:
    """Raise a ClickException with all faults of the answers, which cookiecutter prints alone; else return ''."""
    faults, doubts = _review(answers)
    for doubt in doubts:
        click.echo(f"Warning: {doubt}", err=True)
    if faults:
        raise click.ClickException("\n  ".join(["nothing was written, because of", *faults]))
    return ""


def _review(answers) -> tuple[list[str], list[str]]:
    given = {name: str(answers.get(name, "")) for name in QUESTIONS}
    faults, over, doubts = list(_characters(given)), [], []
    try:
        facts = site_facts(given["site"])
    except SiteError as error:
        return [*faults, error.message], doubts
    faults += _choices(given, facts)
    faults += _image(given)
    nodes, minutes = _amounts(given, facts, faults)
    if facts["kind"] == "slurm":
        for question in facts["required"]:
            if not given[question]:
                find = facts["commands"]["accounts" if question == "account" else "queues"]
                faults.append(
                    f"{question} is empty, but {facts['title']} wants one for every job; list yours with: {find}"
                )
        for question, known in (("partition", facts["partitions"]), ("qos", facts["qos"])):
            value = given[question]
            if not value or not known:
                continue
            if value not in known:
                near = _nearest(value, known)
                faults.append(f"{question} {value!r} is not known at {facts['title']}{near}; {_known(known)}")
                continue
            limits = known[value]
            beyond = _beyond(limits, f"{question} {value}", nodes, minutes, given["time_limit"])
            if limits["confirmed"]:
                over += beyond
            else:
                doubts += [f"{line}, a limit that nobody could confirm" for line in beyond]
    if over:
        over.append("if a limit has changed: copy the site's file, edit it, and answer site=PATH")
    return faults + over, doubts


def _characters(given):
    """Yield answers that are no folder name, or that a shell or an #SBATCH line would not take literally."""
    if not FOLDER.fullmatch(given["project"]):
        yield (
            f"project {given['project']!r} is no plain folder name: use letters, digits, '.', '_', '-', at most 64, "
            "beginning with a letter or digit"
        )
    for name in QUESTIONS[2:]:
        unsafe = UNSAFE_IN_QUOTES if name == "image" else UNSAFE
        bad = sorted(set(unsafe.findall(given[name])))
        if bad:
            shown = " ".join(repr(character) for character in bad)
            yield f"{name} {given[name]!r} holds {shown}, which would not reach the job as typed; leave it out"


def _choices(given, facts):
    for name in ("launcher", "runtime"):
        allowed = facts[f"{name}s"]
        if given[name] not in allowed:
            yield (
                f"{name} {given[name]!r} is not available for {facts['title']}{_nearest(given[name], allowed)}; "
                f"{_known(allowed)}"
            )
    if given["launcher"].startswith("mpirun") and given["runtime"] in IN_SRUN:
        starters = [launcher for launcher in facts["launchers"] if not launcher.startswith("mpirun")]
        yield (
            f"launcher {given['launcher']!r} cannot start runtime {given['runtime']!r}, which lives in options of "
            f"srun; {_known(starters)}"
        )


def _image(given):
    runtime, image = given["runtime"], given["image"]
    if RUNTIMES.get(runtime) is None:
        if image:
            yield f"image {image!r} was given, but runtime {runtime!r} is no container; leave the image empty"
    elif not image:
        yield f"image is empty, but runtime {runtime!r} needs one; {_image_wanted(runtime)}"
    elif not _image_fits(runtime, image):
        yield f"image {image!r} is of the wrong kind for runtime {runtime!r}; {_image_wanted(runtime)}"


def _default_image(facts, runtime):
    """Return the site's image for a runtime, else the vendor's own in that runtime's spelling; '' for no container."""
    if RUNTIMES.get(runtime) is None:
        return ""
    image = facts["containers"].get(runtime, _CONTAINER)["image"]
    if image:
        return image
    image = VENDOR_IMAGES[facts["node"]["gpu_vendor"]]
    if runtime == "apptainer":
        return f"docker://{image}"
    return image if runtime in ("shifter", "podman-hpc") else image.replace("/", "#", 1)


def _image_fits(runtime, image):
    return RUNTIMES[runtime] and re.fullmatch(RUNTIMES[runtime][0], image)


def _image_wanted(runtime):
    return f"give {RUNTIMES[runtime][1]}" if RUNTIMES[runtime] else "this runtime is no container"


def _amounts(given, facts, faults) -> tuple[int | None, float | None]:
    """Return nodes and walltime in minutes, None for what cannot be read; appends to faults."""
    node = facts["node"]
    nodes, gpus, minutes = _whole(given["nodes"]), _whole(given["gpus_per_node"]), _minutes(given["time_limit"])
    if not nodes:
        faults.append(f"nodes {given['nodes']!r} is not a whole number of at least 1; for example nodes=2")
    most = node["gpus"]
    if gpus is None:
        faults.append(f"gpus_per_node {given['gpus_per_node']!r} is not a whole number; for example {most or 4}")
    elif most is not None and gpus > most:
        faults.append(f"gpus_per_node {gpus}: a node of {facts['title']} has {most}; use at most {most} and more nodes")
    elif gpus == 0 and not node["cpu_only"]:
        faults.append(f"gpus_per_node 0: {facts['title']} is described by its GPU nodes only; use 1 to {most}")
    if facts["kind"] == "slurm" and not minutes:
        faults.append(
            f"time_limit {given['time_limit']!r} is no walltime [D-]HH:MM:SS above zero; for example 01:30:00"
        )
    return nodes, minutes


def _beyond(limits, where, nodes, minutes, time_limit):
    most, longest, product = (limits[key] for key in ("max_nodes", "max_time", "max_node_minutes"))
    if nodes and most and nodes > most:
        yield f"nodes {nodes}: {where} allows at most {most}"
    if minutes and longest and minutes > _minutes(longest):
        yield f"time_limit {time_limit}: {where} allows at most {longest}"
    if nodes and minutes and product and nodes * minutes > product and nodes <= (most or nodes):
        longest = walltime(int(product // nodes))
        yield (
            f"nodes {nodes} x {minutes:g} minutes: {where} allows {product} node-minutes per job, "
            f"so {nodes} node{'s' * (nodes > 1)} for at most {longest}"
        )


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else None


def _minutes(text: str) -> float | None:
    match = WALLTIME.fullmatch(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def walltime(minutes: int) -> str:
    """Return whole minutes as HH:MM:SS."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _nearest(value, names) -> str:
    near = difflib.get_close_matches(str(value), [str(name) for name in names], n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _known(names) -> str:
    return f"choose {' or '.join(names) if len(names) < 3 else 'one of ' + ', '.join(names)}"


def _sites() -> str:
    return f"{', '.join(site_names())}, or the path of a site file of your own"


# ---- what the written files are rendered with ------------------------------------------------------------------------


def cores_per_node(answers) -> int | None:
    """Return the cores a job asks for on each node: all of a whole node, else the GPUs' share; None if unknown."""
    node = site_facts(answers["site"])["node"]
    cores, gpus = node["cores"], int(answers["gpus_per_node"])
    if cores is None or node["whole"] or not gpus or not node["gpus"]:
        return cores
    return cores * gpus // node["gpus"]


def image_source(answers) -> str:
    """Return REGISTRY/NAME:TAG, what the image is built from; '' for a ready file and where there is no container."""
    found = RUNTIMES[answers["runtime"]] and re.fullmatch(RUNTIMES[answers["runtime"]][0], answers["image"])
    name = (found[1] or "").replace("#", "/") if found else ""
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
    return f"${{{variable['name']}:-{variable['value']}}}"


def in_quotes(command: str) -> str:
    """Return a command as it stands inside double quotes of a shell."""
    return re.sub(r'(["`\\])', r"\\\1", command)


class ClusterOptions(Extension):
    """Makes the functions above known to cookiecutter.json, to the hooks and to every rendered file."""

    def __init__(self, environment):
        """Add them as globals."""
        super().__init__(environment)
        for function in (
            site_answer,
            site_facts,
            suggest,
            problems,
            refuse_problems,
            cores_per_node,
            image_source,
            image_name,
            pad,
            overridable,
            in_quotes,
        ):
            environment.globals[function.__name__] = function
