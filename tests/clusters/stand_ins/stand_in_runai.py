"""What the stand-ins for Run:ai's command line, runai_v1/runai and runai_v2/runai, share.

They know exactly the documented commands and options, refuse what the real clients or the cluster would refuse, add
each call to calls.jsonl in the cluster's folder ($STAND_IN_RUNAI), and hand workloads over to runai_pods.py.
`parse` reads a command line as the real clients do, which are written in Go with cobra and pflag. Messages about flags
are pflag's; all other messages and what the commands print are made up: no script may depend on their words.

Sources of the options:
  v2: docs/run-ai/reference/cli/runai/ (Run:ai 2.25) in dirkpetersen/slurm2runai, 96d3bf7, May 2026
  v1: docs/Researcher/cli-reference/runai-{submit-dist-pytorch,submit,bash,exec,logs,describe,delete,list,config}.md in
      run-ai/docs (submit: 8bc0a44); exec --pod: the client's source, run-ai/runai-cli; --existing-pvc and --new-pvc
      (the pages say --pvc-exists, --pvc-new), --run-as-uid, --run-as-gid: EPFL's users (epfml/getting-started csub.py
      5b3f69d; submit scripts of courses), as is --supplemental-groups of submit
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path

from stand_in import Refused, set_of

# ---- commands and their options: "name" or "name,letter" by type


def options(**kinds: str) -> dict[str, tuple[str, str]]:
    """The options of a command: name -> type, letter."""
    found = {}
    for kind, text in kinds.items():
        for word in text.split():
            name, _, letter = word.partition(",")
            found[name] = (kind, letter)
    return found


V2_GLOBAL = options(bool="debug,d quiet,q verbose help,h", string="config-file config-path")
V2_PROJECT = {**V2_GLOBAL, **options(string="project,p")}
V2_TABLE = options(bool="json no-headers table yaml")
V2_LIST = {
    **V2_TABLE,
    **options(bool="no-pagination raw set-default-columns", strings="columns", int32="max-items page-size"),
    **options(string="next-token"),
}
V2_WORKLOADS = {**V2_PROJECT, **V2_LIST, **options(bool="all,A deleted", string="status")}
V2_SUBMIT = {
    **V2_PROJECT,
    **options(
        bool="""allow-privilege-escalation attach command,c create-home-dir host-ipc host-network large-shm privileged
        run-as-non-root run-as-user stdin tty,t""",
        stringArray="""annotation capability configmap-map-volume datasource datavolume empty-dir-volume
        env-my-credentials env-pod-field-ref env-secret environment environment-variable,e exclude-node existing-pvc
        extended-resource external-url git-sync host-path image-pull-my-credentials label new-pvc nfs node-pools port s3
        secret-volume toleration""",
        string="""compute cpu-memory-limit cpu-memory-request gpu-memory-limit gpu-memory-request gpu-request-type
        image,i image-pull-policy name-prefix node-type preferred-pod-topology-key priority required-pod-topology-key
        seccomp-profile template user-group-source working-dir preemptibility restart-policy""",
        duration="""auto-deletion-time-after-completion pod-running-timeout termination-grace-period wait-for-submit""",
        int32="backoff-limit",
        int="run-as-gid run-as-uid",
        ints="supplemental-groups",
        positiveInt="gpu-devices-request,g",
        positiveFloat="cpu-core-limit cpu-core-request gpu-portion-limit gpu-portion-request",
    ),
}
V2_STANDARD = {**V2_SUBMIT, **options(int32="parallelism runs")}
V2_PYTORCH = {
    **V2_SUBMIT,
    **options(
        bool="master-no-pvcs no-master",
        stringArray="master-environment-variable master-extended-resource",
        string="""clean-pod-policy master-args master-command master-cpu-memory-limit master-cpu-memory-request
        master-restart-policy""",
        int32="max-replicas min-replicas workers",
        positiveInt="master-gpu-devices-request",
        positiveFloat="""master-cpu-core-limit master-cpu-core-request master-gpu-portion-limit
        master-gpu-portion-request""",
    ),
}
V2_ENTER = {
    **V2_PROJECT,
    **options(bool="stdin,i tty,t", string="container,c pod", duration="pod-running-timeout wait-timeout"),
}
V2_JOB = {
    "describe": {
        **V2_PROJECT,
        **options(bool="compute containers events general networks pods storage", int32="event-limit pod-limit"),
        **options(string="output,o sortEvents uuid"),  # uuid: in the page's examples only
    },
    "logs": {
        **V2_PROJECT,
        **options(bool="follow,f previous timestamps", string="container,c name pod since-time"),
        **options(int="limit-bytes tail,t", duration="since wait-timeout"),
    },
    "bash": V2_ENTER,
    "exec": V2_ENTER,
    "delete": {**V2_PROJECT, **options(string="uuid,u")},
    "list": V2_WORKLOADS,
}
V1_GLOBAL = options(bool="help,h", string="loglevel project,p")
V1_PYTORCH = {
    **V1_GLOBAL,
    **options(
        bool="""attach command create-home-dir stdin tty,t large-shm mount-propagation host-ipc host-network
        allow-privilege-escalation run-as-user""",
        stringArray="""add-capability annotation,a environment,e label,l extended-resource git-sync pvc existing-pvc
        new-pvc s3 volume,v port toleration configmap-volume""",
        strings="node-pools",
        string="""job-name-prefix name template image,i image-pull-policy preferred-pod-topology-key
        required-pod-topology-key working-dir gpu-memory memory memory-limit mig-profile nfs-server address
        service-type,s node-type clean-pod-policy""",
        double="cpu cpu-limit gpu,g",
        int="backoff-limit workers max-replicas min-replicas run-as-uid run-as-gid",
        duration="ttl-after-finish",
    ),
}
V1_SUBMIT = {
    **{name: kind for name, kind in V1_PYTORCH.items() if name not in set_of("workers max-replicas min-replicas")},
    **options(bool="interactive jupyter preemptible", int="completions parallelism", ints="supplemental-groups"),
}
del V1_SUBMIT["clean-pod-policy"]
COMMANDS = {
    "v2": {
        "version": {**V2_GLOBAL, **options(bool="wide")},
        "pvc list": {**V2_PROJECT, **V2_TABLE},
        "nodepool list": {**V2_GLOBAL, **V2_TABLE},
        "project list": {**V2_GLOBAL, **V2_LIST},
        "workload list": {**V2_WORKLOADS, **options(string="framework type")},
        "workload delete": {**V2_PROJECT, **options(string="framework type", bool="yes,y")},
        "training submit": V2_STANDARD,
        "training standard submit": V2_STANDARD,
        "training pytorch submit": V2_PYTORCH,
        "pytorch submit": V2_PYTORCH,
        "training list": {**V2_WORKLOADS, **options(string="framework")},
        **{f"{group} {verb}": known for verb, known in V2_JOB.items()
           for group in ("training pytorch", "training standard", "pytorch", "training")
           if (group, verb) != ("training", "list")},
    },
    "v1": {
        "version": V1_GLOBAL,
        "submit": V1_SUBMIT,
        "submit-dist pytorch": V1_PYTORCH,
        "describe job": {**V1_GLOBAL, **options(string="output,o")},
        "logs": {
            **V1_GLOBAL,
            **options(bool="follow,f timestamps", string="pod since-time", int="tail,t", duration="since"),
        },
        "bash": {**V1_GLOBAL, **options(string="pod")},
        "exec": {**V1_GLOBAL, **options(bool="stdin,i tty,t", string="pod")},
        "delete job": V1_GLOBAL,
        "list": {**V1_GLOBAL, **options(bool="all-projects,A")},
        "list jobs": {**V1_GLOBAL, **options(bool="all-projects,A")},
        "list projects": V1_GLOBAL,
        "list nodes": V1_GLOBAL,
        "config project": V1_GLOBAL,
    },
}  # fmt: skip

# ---- reading a command line as pflag does


def parse(generation: str, argv: list[str]) -> dict:
    """Read a command line, without the program's name. Refused: what the real client would say.

    Returns command, options (name -> value, list or True), arguments, words (what follows --; None without), help.
    """
    known = COMMANDS[generation]
    path: list[str] = []
    for word in argv:
        if not any(f"{name} ".startswith(" ".join([*path, word, ""])) for name in known):
            break
        path.append(word)
    command, rest = " ".join(path), argv[len(path) :]
    if command not in known:
        wrong = [word for word in rest if not word.startswith("-")]
        if wrong and not path:
            raise Refused(f'unknown command "{wrong[0]}" for "runai"\nRun \'runai --help\' for usage.')
        if flags := [word for word in rest if word.startswith("-") and word not in ("-h", "--help")]:
            raise Refused(f"unknown flag: {flags[0]}")
        return {"command": command, "options": {}, "arguments": [], "words": None, "help": True}
    found, arguments, words = pflag(rest, known[command])
    wanted = bool(found.pop("help", False))
    result = {"command": command, "options": found, "arguments": arguments, "words": words, "help": wanted}
    if not wanted:
        check_arguments(generation, result)
        if command.endswith("submit") or command == "submit-dist pytorch":
            check_submit(generation, result)
    return result


def pflag(rest: list[str], known: dict[str, tuple[str, str]]) -> tuple[dict, list[str], list[str] | None]:
    """Options, arguments, and what follows --."""
    found: dict = {}
    arguments, rest = [], list(rest)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return found, arguments, rest
        if not word.startswith("-") or word == "-":
            arguments.append(word)
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not name or name.startswith("-"):
                raise Refused(f"bad flag syntax: {word}")
            if name not in known:
                raise Refused(f"unknown flag: --{name}")
            if not equals and known[name][0] != "bool" and not rest:
                raise Refused(f"flag needs an argument: --{name}")
            if not equals:
                value = "true" if known[name][0] == "bool" else rest.pop(0)
            store(found, name, known[name], value)
        else:
            shorthand(word[1:], rest, known, found)
    return found, arguments, None


def shorthand(short: str, rest: list[str], known: dict[str, tuple[str, str]], found: dict) -> None:
    """-x, -xyz, -xVALUE, -x=VALUE and -x VALUE."""
    letters = {letter: name for name, (_, letter) in known.items() if letter}
    while short:
        letter, after = short[0], short[1:]
        if letter not in letters:
            raise Refused(f"unknown shorthand flag: '{letter}' in -{short}")
        name = letters[letter]
        if len(after) > 1 and after[0] == "=":
            value, after = after[1:], ""
        elif known[name][0] == "bool":
            value = "true"
        elif after or rest:
            value, after = after or rest.pop(0), ""
        else:
            raise Refused(f"flag needs an argument: '{letter}' in -{short}")
        store(found, name, known[name], value)
        short = after


def store(found: dict, name: str, flag: tuple[str, str], text: str) -> None:
    """Convert a value and keep it."""
    kind, letter = flag
    shown = f"-{letter}, --{name}" if letter else f"--{name}"
    try:
        value = convert(kind, text)
        CHECKS.get(name, lambda _: None)(text)
    except ValueError as error:
        raise Refused(f'invalid argument {json.dumps(text)} for "{shown}" flag: {error}') from None
    if kind in ("stringArray", "strings", "ints"):
        found.setdefault(name, []).extend(value)
    else:
        found[name] = value


def convert(kind: str, text: str):
    """A value of a type. ValueError: what Go says."""
    quoted = json.dumps(text)
    if kind == "bool":
        if text in set_of("1 t T TRUE true True"):
            return True
        if text in set_of("0 f F FALSE false False"):
            return False
        raise ValueError(f"strconv.ParseBool: parsing {quoted}: invalid syntax")
    if kind in ("int", "int32", "positiveInt"):
        if not re.fullmatch(r"[+-]?\d+", text):
            raise ValueError(f"strconv.ParseInt: parsing {quoted}: invalid syntax")
        if not -(2**31) <= int(text) < 2**31:
            raise ValueError(f"strconv.ParseInt: parsing {quoted}: value out of range")
    if kind in ("double", "positiveFloat") and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text):
        raise ValueError(f"strconv.ParseFloat: parsing {quoted}: invalid syntax")
    if kind in ("positiveInt", "positiveFloat") and float(text) <= 0:
        raise ValueError("must be greater than 0")
    if kind == "duration" and not re.fullmatch(r"0|(\d+(\.\d+)?(ns|us|ms|s|m|h))+", text):
        raise ValueError(f"time: invalid duration {quoted}")
    if kind == "ints":
        return [convert("int", part) for part in text.split(",")]
    if kind in ("int", "int32", "positiveInt"):
        return int(text)
    if kind in ("double", "positiveFloat"):
        return float(text)
    return {"stringArray": [text], "strings": text.split(",")}.get(kind, text)


# ---- what is wrong with values


def matching(pattern: str, expected: str):
    """A check of a value against a regular expression."""

    def check(text: str) -> None:
        if not re.fullmatch(pattern, text, re.S):
            raise ValueError(f"expected {expected}")

    return check


def one_of(words: str):
    return matching("|".join(words.split()), f"one of {', '.join(words.split())}")


def existing_pvc(text: str) -> None:
    """claimname=…,path=…, and no more: EPFL's users report "unknown parameter 'ro'" (2026)."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in ("claimname", "path"):
            raise ValueError(f"unknown parameter '{key}'")
        if key in given or not value:
            raise ValueError(f"parameter '{key}' must be given once, with a value")
        given[key] = value
    matching(LABEL, "a claim's name")(given.get("claimname", ""))
    if not given.get("path", "").startswith("/"):
        raise ValueError("path must be absolute")


LABEL = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
QUANTITY = r"\d+(\.\d+)?([KMGTPE]i?|[mk])?"
variable = matching(rf"{VARIABLE}=(SECRET:{LABEL},[\w.-]+|(?!SECRET:).*)", "NAME=VALUE or NAME=SECRET:secret,key")
key_value = matching(rf"({LABEL}/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?=.*", "key=value")
resource = matching(rf"({LABEL}/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?={QUANTITY}", "resource=quantity")
memory = matching(QUANTITY, "an amount of memory, such as 1G")
policy = one_of("Always OnFailure Never")
CHECKS = {
    "existing-pvc": existing_pvc,
    "annotation": key_value,
    "label": key_value,
    "extended-resource": resource,
    "master-extended-resource": resource,
    "environment-variable": variable,
    "master-environment-variable": variable,
    "env-secret": matching(rf"{VARIABLE}={LABEL},key=[\w.-]+", "NAME=secret,key=key"),
    "clean-pod-policy": one_of("None All Running"),
    "preemptibility": one_of("preemptible non-preemptible"),
    "restart-policy": policy,
    "master-restart-policy": policy,
    "image-pull-policy": one_of("Always IfNotPresent Never"),
    "priority": one_of("very-low low medium-low medium medium-high high very-high"),
    "gpu-request-type": one_of("portion memory"),
    "user-group-source": one_of("fromTheImage fromIdpToken"),
    "loglevel": one_of("debug info warn error"),
    "image": matching(r"[a-z0-9]([\w./:@-]*\w)?", "an image"),
    "working-dir": matching("/.*", "an absolute path"),
    "port": matching(r"\S+", "a port"),
    **dict.fromkeys(("memory", "memory-limit", "gpu-memory"), memory),
    **{f"{who}cpu-memory-{which}": memory for who in ("", "master-") for which in ("request", "limit")},
}


def check_arguments(generation: str, call: dict) -> None:
    """How many arguments a command takes."""
    verb, given = call["command"].split()[-1], len(call["arguments"])
    if call["command"] in ("submit", "submit-dist pytorch") or verb == "submit":
        most = 1 if generation == "v2" else 2
    elif generation == "v1" and verb == "exec":
        call["words"] = call["arguments"][1:] + (call["words"] or [])  # runai exec JOB COMMAND works without --
        call["arguments"] = call["arguments"][:1]
        most = 1
    elif call["command"] == "workload delete":
        most = 100
    else:
        most = 0 if verb in ("version", "list", "jobs", "projects", "nodes") else 1
    if given > most:
        raise Refused(f"accepts at most {most} arg(s), received {given}")
    if verb in ("describe", "job", "logs", "bash", "exec", "delete", "project"):
        if not call["arguments"] and not {"uuid", "name"} & {*call["options"]}:
            raise Refused("accepts 1 arg(s), received 0")
        if verb == "exec" and not call["words"]:
            raise Refused("you must specify at least one command for the container")


def check_submit(generation: str, call: dict) -> None:
    """What a submission lacks, whatever the cluster."""
    given = call["options"]
    if generation == "v1":
        for text in given.get("environment", []):
            try:
                variable(text)
            except ValueError as error:
                raise Refused(f'invalid argument {json.dumps(text)} for "-e, --environment" flag: {error}') from None
    if not {"image", "template", *(["environment"] if generation == "v2" else [])} & {*given}:
        raise Refused("an image must be specified: --image")
    if given.get("command") and not call["words"]:
        raise Refused("--command takes a command after --")
    for name in ("backoff-limit", "workers", "run-as-uid", "run-as-gid"):
        if given.get(name, 0) < 0:
            raise Refused(f"--{name} must not be negative")
    paths = [re.search(r"path=([^,]*)", text)[1] for text in given.get("existing-pvc", [])]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise Refused(f'mountPath "{twice.pop()}" must be unique')
    check_name(job_name(generation, call), generation, call)


def check_name(name: str, generation: str, call: dict) -> None:
    """The name must be usable as the name of a service, also with what is added for the last pod."""
    if not name and ({"name-prefix", "job-name-prefix"} & {*call["options"]} or generation == "v1"):
        return
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        rule = "lower case alphanumeric characters or '-', a letter at the start, no '-' at the end"
        raise Refused(f'invalid name "{name}": a DNS-1035 label consists of {rule}')
    last = f"worker-{max(call['options'].get('workers', 0) - 1, 0)}" if "pytorch" in call["command"] else "0-0"
    if len(f"{name}-{last}") > 63:
        raise Refused(f'invalid name "{name}": {name}-{last} has more than 63 characters')


def job_name(generation: str, call: dict) -> str:
    """v1's --name goes before a positional argument: csub.py gives both, `--allow-privilege-escalation true`."""
    given = call["options"]
    name = given.get("name", "") if generation == "v1" else ""
    return name or next(iter(call["arguments"]), "")


# ---- what the cluster is given

# The test cluster does what these ask for, or they change nothing that a test could see; it refuses all others.
IMPLEMENTED = set_of(
    """allow-privilege-escalation annotation backoff-limit capability add-capability clean-pod-policy command
    cpu-core-limit cpu-core-request cpu-memory-limit cpu-memory-request cpu cpu-limit memory memory-limit env-secret
    environment-variable environment existing-pvc exclude-node extended-resource gpu gpu-devices-request
    gpu-portion-request gpu-request-type help host-ipc image image-pull-policy interactive label large-shm loglevel
    master-cpu-core-limit master-cpu-core-request master-cpu-memory-limit master-cpu-memory-request
    master-environment-variable master-extended-resource master-gpu-devices-request master-gpu-portion-request
    master-restart-policy name name-prefix job-name-prefix node-pools node-type preemptibility preemptible priority
    project restart-policy run-as-gid run-as-uid supplemental-groups stdin tty toleration workers working-dir debug
    quiet verbose config-file config-path"""
)


def mangled(words: list[str]) -> list[str]:
    """Words as some old clients hand them over: joined, and taken apart by a shell that knows none of their variables.

    Hence the doubled quotes in public instructions: -- bash -c '"…"'. What a shell would run is cut off here.
    """
    text = re.sub(r"(?<!\\)\$(\w+|\{\w*\})", "", " ".join(words))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&`")
    lexer.whitespace_split = True
    try:
        return list(itertools.takewhile(lambda word: not set(word) <= set("();<>|&`"), lexer))
    except ValueError as error:
        raise Refused(f"unexpected EOF: {error}") from None


def workload(generation: str, call: dict, mangle_quotes: bool = False) -> dict:
    """A submission in the same words for both generations."""
    given = call["options"]
    v2 = generation == "v2"
    gpus = given.get("gpu-devices-request" if v2 else "gpu", 0)
    portion = given.get("gpu-portion-request", 1) if v2 else 1
    words = call["words"] or []
    if mangle_quotes:
        words = mangled(words)
    variables = []
    for kind in ("environment-variable",) if v2 else ("environment",):
        variables += [text.partition("=")[::2] for text in given.get(kind, [])]
    for text in given.get("env-secret", []):
        name, _, where = text.partition("=")
        variables.append((name, f"SECRET:{where.replace(',key=', ',')}"))
    mounts = [dict(part.split("=", 1) for part in text.split(",")) for text in given.get("existing-pvc", [])]
    return {
        "name": job_name(generation, call),
        "uuid": str(uuid.uuid4()),
        "generation": generation,
        "project": given.get("project", ""),
        "distributed": "pytorch" in call["command"],
        "count": given.get("workers", 0) + 1 if "pytorch" in call["command"] else 1,
        "gpus": gpus * portion,
        "master_gpus": given.get("master-gpu-devices-request", gpus) * given.get("master-gpu-portion-request", portion),
        "devices": bool(given.get("extended-resource")),
        "master_devices": bool(given.get("master-" * (v2 and "pytorch" in call["command"]) + "extended-resource")),
        "image": given.get("image", ""),
        "replace_entrypoint": bool(given.get("command")),
        "words": words,
        "variables": variables,
        "master_variables": [text.partition("=")[::2] for text in given.get("master-environment-variable", [])],
        "volumes": [(mount["claimname"], mount["path"]) for mount in mounts],
        "large_shm": bool(given.get("large-shm")),
        "host_ipc": bool(given.get("host-ipc")),
        "uid": given.get("run-as-uid"),
        "gid": given.get("run-as-gid"),
        "groups": given.get("supplemental-groups", []),
        "working_dir": given.get("working-dir", ""),
        "backoff_limit": given.get("backoff-limit", 6),
        "restart_policy": given.get("restart-policy", "OnFailure"),
        "master_restart_policy": given.get("master-restart-policy", given.get("restart-policy", "OnFailure")),
        "clean_pod_policy": given.get("clean-pod-policy", "None" if v2 else "Running"),
    }


class Client:
    """One call."""

    def __init__(self, generation: str, call: dict):
        self.generation, self.call, self.given = generation, call, call["options"]
        if not os.environ.get("STAND_IN_RUNAI"):
            raise Refused("no cluster is configured (STAND_IN_RUNAI)")
        self.folder = Path(os.environ["STAND_IN_RUNAI"])
        self.cluster = json.loads((self.folder / "cluster.json").read_text())

    def run(self) -> int:
        first, *_, last = self.call["command"].split() * 2
        verb = {"job": first, "pytorch": "submit"}.get(last, last)
        if verb == "submit" and self.cluster["default_project"]:
            self.given.setdefault("project", self.cluster["projects"][0])
        if verb == "submit" and "project" not in self.given:
            raise Refused("no project was specified, and there is no default project")
        if self.given.get("project", self.cluster["projects"][0]) not in self.cluster["projects"]:
            raise Refused(f'project "{self.given["project"]}" was not found')
        return getattr(self, f"do_{verb}")() or 0

    def do_version(self) -> None:
        print(f"Version: {'2.116.2' if self.generation == 'v2' else '2.18.94'}")  # EPFL's, May 2026 and April 2025

    def rows(self, header: str, rows: list[list[str]]) -> None:
        if self.given.get("json") or self.given.get("yaml"):
            print(json.dumps([dict(zip(header.lower().split(), row)) for row in rows], indent=2))
            return
        for row in [*([] if self.given.get("no-headers") else [header.split()]), *rows]:
            print("  ".join(f"{word:<24}" for word in row).rstrip())

    def do_list(self) -> None:
        what = self.call["command"].split()[0]
        if what in ("pvc", "nodepool", "project"):
            key = {"pvc": "volumes", "nodepool": "node_pools", "project": "projects"}[what]
            self.rows("NAME", [[name] for name in self.cluster[key]])
        else:
            self.do_jobs()

    def do_projects(self) -> None:
        self.rows("PROJECT", [[name] for name in self.cluster["projects"]])

    def do_nodes(self) -> None:
        print(*self.cluster["node_pools"], sep="\n")

    def do_project(self) -> None:
        if self.call["arguments"][0] not in self.cluster["projects"]:
            raise Refused(f'project "{self.call["arguments"][0]}" was not found')

    def do_jobs(self) -> None:
        known = [self.status(path.name) for path in sorted((self.folder / "jobs").iterdir())]
        self.rows("NAME STATUS PROJECT", [[job["name"], job["state"], job["project"]] for job in known
                                          if job["state"] != "Deleted"])  # fmt: skip

    def do_submit(self) -> None:
        if other := {*self.given} - IMPLEMENTED:
            raise Refused(f"the test cluster does not implement --{', --'.join(sorted(other))}")
        if self.generation == "v2" and "environment" in self.given:  # not variables, as in v1, and there are none here
            raise Refused(f'environment asset "{self.given["environment"][0]}" was not found')
        for pool in self.given.get("node-pools", []):
            if pool not in self.cluster["node_pools"]:
                raise Refused(f'node pool "{pool}" was not found')
        job = workload(self.generation, self.call, self.cluster["mangle_quotes"] and self.generation == "v1")
        taken = {path.name for path in (self.folder / "jobs").iterdir()}
        if not job["name"]:
            prefix = self.given.get("name-prefix") or self.given.get("job-name-prefix") or "job"
            job["name"] = next(name for number in range(1000) if (name := f"{prefix}-{number}") not in taken)
        place = self.folder / "jobs" / job["name"]
        if place.exists():
            if self.status(job["name"])["state"] != "Deleted":
                raise Refused(f'workload "{job["name"]}" already exists')
            (self.folder / "old").mkdir(exist_ok=True)
            place.rename(self.folder / "old" / str(uuid.uuid4()))
        new = self.folder / f".{job['uuid']}"
        new.mkdir()
        (new / "workload.json").write_text(json.dumps(job))
        new.rename(place)  # the operator sees it now
        print(f"Creating workload {job['name']}...\nJob {job['name']} submitted successfully")

    def status(self, name: str) -> dict:
        for file in ("status.json", "workload.json"):  # the second until the operator has seen it
            path = self.folder / "jobs" / name / file
            if name and path.exists():
                return {"state": "Pending", "pods": [], "events": [], **json.loads(path.read_text())}
        raise Refused(f'workload "{name}" was not found')

    def job(self) -> dict:
        name = next(iter(self.call["arguments"]), self.given.get("name", ""))
        for path in (self.folder / "jobs").iterdir() if "uuid" in self.given else []:
            name = path.name if self.status(path.name)["uuid"] == self.given["uuid"] else name
        job = self.status(name)
        distributed = {"pytorch": True, "standard": False}.get(self.call["command"].split()[-2:][0])
        wrong = self.generation == "v2" and distributed not in (None, job["distributed"])
        if job["state"] == "Deleted" or wrong or self.given.get("project", job["project"]) != job["project"]:
            raise Refused(f'workload "{job["name"]}" was not found')
        return job

    def pod(self, job: dict) -> dict:
        for pod in job["pods"]:
            if pod["name"] == self.given.get("pod", pod["name"]):
                return pod
        raise Refused(f'pod "{self.given.get("pod", "")}" was not found in workload "{job["name"]}"')

    def do_describe(self) -> None:
        job = self.job()
        if self.given.get("output") == "json":
            print(json.dumps(job, indent=2))
            return
        print(f"Name: {job['name']}\nProject: {job['project']}\nStatus: {job['state']}\n\nPods:")
        for pod in job["pods"][: self.given.get("pod-limit", 10)]:
            print(f"  {pod['name']:<40} {pod['state']:<12} {pod['node']}")
        print("\nEvents:", *job["events"], sep="\n  ")

    def do_logs(self) -> None:
        job = self.job()
        path = self.folder / "jobs" / job["name"] / self.pod(job)["name"] / "log"
        if not path.exists():
            raise Refused(f'container in pod "{self.pod(job)["name"]}" is waiting to start')
        with open(path, errors="replace") as log:
            lines = log.readlines()
            tail = self.given.get("tail", -1)
            sys.stdout.writelines(lines if tail < 0 else lines[max(len(lines) - tail, 0) :])
            while self.given.get("follow"):
                over = self.pod(self.job())["exit"] is not None
                sys.stdout.write(log.read())
                sys.stdout.flush()
                if over:
                    break
                time.sleep(0.1)

    def do_bash(self) -> int:
        self.given["stdin"] = True
        self.call["words"] = ["/bin/bash"]
        return self.do_exec()

    def do_exec(self) -> int:
        pod = self.pod(self.job())
        if pod["state"] != "Running":
            raise Refused(f'pod "{pod["name"]}" is not running')
        facts = json.loads((self.folder / "jobs" / self.job()["name"] / pod["name"] / "pod.json").read_text())
        cluster = int((self.folder / "pid").read_text())
        enter = ["nsenter", f"--target={cluster}", "--mount", "--net", f"--pid=/proc/{cluster}/ns/pid_for_children"]
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        enter += ["nsenter", f"--target={pod['init']}", *spaces, *facts["drop"]]
        enter += ["env", "-i", f"--chdir={facts['working_dir']}", *map("=".join, facts["environment"].items())]
        stdin = None if self.given.get("stdin") else subprocess.DEVNULL
        return subprocess.run([*enter, *self.call["words"]], stdin=stdin, check=False).returncode

    def do_delete(self) -> None:
        names = self.call["arguments"]
        if self.call["command"] == "workload delete" and "yes" not in self.given:
            raise Refused("it asks whether it may: nobody is here to answer, -y does so")
        for name in names or [self.job()["name"]]:
            self.call["arguments"] = [name]
            (self.folder / "jobs" / self.job()["name"] / "delete").touch()
            print(f"Workload {name} deleted successfully")


def usage(generation: str, command: str) -> str:
    """The help of a command, or of the commands below it."""
    if command not in COMMANDS[generation]:
        below = {name[len(command) :].split()[0] for name in COMMANDS[generation] if name.startswith(command)}
        return "\n  ".join(["Usage:", f"runai {command} [command]\n\nAvailable Commands:", *sorted(below)])
    lines = [f"Usage:\n  runai {command} [flags]\n", "Flags:"]
    for name, (kind, letter) in sorted(COMMANDS[generation][command].items()):
        lines.append(f"  {f'-{letter}, ' if letter else '    '}--{name} {kind if kind != 'bool' else ''}".rstrip())
    return "\n".join(lines)


def record(call: dict) -> None:
    """Add a line to the calls that the cluster has seen."""
    if os.environ.get("STAND_IN_RUNAI"):
        handle = os.open(f"{os.environ['STAND_IN_RUNAI']}/calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, (json.dumps(call) + "\n").encode())
        os.close(handle)


def main(generation: str) -> None:
    """Do what the command line says."""
    facts = {"generation": generation, "argv": sys.argv[1:]}
    try:
        call = parse(generation, sys.argv[1:])
        facts.update(copy.deepcopy(call))  # as it was given; below it changes
        if call["help"]:
            print(usage(generation, call["command"]))
            code = 0
        else:
            code = Client(generation, call).run()
    except Refused as error:
        facts["error"] = str(error)
        print(f"Error: {error}", file=sys.stderr)
        code = 1
    record(facts)
    raise SystemExit(code)
