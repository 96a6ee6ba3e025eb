"""Whether an answer fits a site: choices, image, account, queues, nodes, GPUs, walltime.

A check is a function of (given, facts) that yields a sentence for each fault: value, rule and way out.

    given    the answers by question; all are text
    facts    what sites.site_facts() returns

check_choice() and check_queue() return the check of a question.
"""

from __future__ import annotations

import re

from .defaults import LIMIT_DEFAULTS
from .rules import WALLTIME
from .runtimes import IN_SRUN, KINDS, MPI, RUNTIMES, image_fits, image_rule, other_spelling
from .wording import choose_from, did_you_mean

FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Account, partition and so on stand in #SBATCH lines, where a space or a # ends the value; an image stands in quotes.
UNSAFE = re.compile(r"[^A-Za-z0-9._:/@+=,-]")
UNSAFE_IN_QUOTES = re.compile(r"[^A-Za-z0-9._:/@+=,# -]")
LONGEST = 200  # characters of an answer


class Doubt(str):
    """A fault that warns instead of refusing: the limit it breaks could not be confirmed."""


class Limit(str):
    """A fault that a newer site file could cure."""


# ---- text: functions of (question, value), whatever the site ---------------------------------------------------------


def accept_anything(*_):
    """Yield nothing."""
    yield from ()


def check_folder_name(question, value):
    """Yield that a value is no plain name of a folder."""
    if not FOLDER.fullmatch(value):
        yield (
            f"{question} {value!r} is no plain folder name: use letters, digits, '.', '_', '-', at most 64, "
            "beginning with a letter or digit"
        )


def check_word(question, value, unsafe=UNSAFE):
    """Yield what a shell or an #SBATCH line would not take literally, and that a value is too long."""
    if len(value) > LONGEST:
        yield f"{question} {value[:20]!r}… has {len(value)} characters; it may have {LONGEST}"
    bad = sorted(set(unsafe.findall(value)))
    if bad:
        shown = " ".join(repr(character) for character in bad)
        yield f"{question} {value!r} holds {shown}, which would not reach the job as typed; leave it out"


def check_words_in_quotes(question, value):
    """Yield what would not be taken literally between double quotes."""
    yield from check_word(question, value, UNSAFE_IN_QUOTES)


# ---- choices ---------------------------------------------------------------------------------------------------------


def check_choice(question):
    """Return the check of `launcher` or `runtime`: one of those that the site has."""

    def check(given, facts):
        value, allowed, kind = given[question], facts[f"{question}s"], KINDS[facts["kind"]]
        if value not in allowed:
            others = [other["name"] for other in KINDS.values() if value in other[f"{question}s"]]
            why = f"is not available for {facts['title']}{did_you_mean(value, allowed)}"
            if others and value not in kind[f"{question}s"]:
                why = f"is for {' or '.join(others)}, but {facts['title']} has {kind['name']}"
            yield f"{question} {value!r} {why}; {choose_from(allowed)}"
        elif question == "runtime" and value in IN_SRUN and given["launcher"] in MPI & {*facts["launchers"]}:
            others = [runtime for runtime in allowed if runtime not in IN_SRUN]
            yield (
                f"launcher {given['launcher']!r} cannot start runtime {value!r}, a container that only srun starts; "
                f"{choose_from(others)}, or launcher torchrun"
            )

    return check


def check_image(given, facts):
    """Yield that the runtime takes no image, or another kind of image."""
    runtime, image = given["runtime"], given["image"]
    if RUNTIMES.get(runtime) is None:
        if image:
            yield f"image {image!r} was given, but runtime {runtime!r} is no container; leave the image empty"
    elif not image:
        yield f"image is empty, but runtime {runtime!r} needs one; {image_rule(runtime)}"
    elif not image_fits(runtime, image):
        right = other_spelling(runtime, image)
        hint = f": here {right}" if right else ""
        yield f"image {image!r} is of the wrong kind for runtime {runtime!r}; {image_rule(runtime)}{hint}"


def check_account(given, facts):
    """Yield that an account is missing, not one of the user's, or of another form than the site's."""
    account, known, form = given["account"], facts["accounts"], facts["account"]
    yield from check_needed("account", given, facts)
    if not account:
        return
    if known and account not in known:
        yield f"account {account!r} is not one of yours{did_you_mean(account, known)}; {choose_from(known)}"
    elif form and not re.fullmatch(form["like"], account):
        find = facts["commands"].get("accounts", "")
        yield f"account {account!r}: at {facts['title']} it looks like {form['example']}; list yours with: {find}"


def check_needed(question, given, facts):
    """Yield that an answer is missing, or that there is nothing it could mean."""
    value, kind = given[question], KINDS[facts["kind"]]
    if facts["kind"] == "local" or (facts["kind"] == "runai" and question in ("qos", "time_limit")):
        if value:
            yield f"{question} {value!r} means nothing where there is {kind['name']}; leave it empty"
    elif not value and question in facts["required"]:
        find = facts["commands"].get("accounts" if question == "account" else "queues", "")
        example = f", for example {facts['account']['example']}" if question == "account" and facts["account"] else ""
        yield f"{question} is empty, but {facts['title']} wants one for every job{example}; list yours with: {find}"


def check_examples(given, facts):
    """Yield that the answer is neither yes nor no."""
    value = given["examples"]
    if value not in ("yes", "no"):
        hint = '; in a YAML file, which reads no as False, write "no" in quotes' if value in ("True", "False") else ""
        yield f"examples {value!r} is neither yes nor no; choose yes, or no for a project that exists{hint}"


# ---- queues and their limits -----------------------------------------------------------------------------------------


def check_queue(question):
    """Return the check of `partition` or `qos`: whether the site has it, and the QoS goes with the partition."""
    section = "partitions" if question == "partition" else "qos"

    def check(given, facts):
        value, known = given[question], facts[section]
        yield from check_needed(question, given, facts)
        if not value or not known:
            return
        # If the answer names no partition, the job goes to the cluster's default. If the file does not say which that
        # is, it is most likely the one that the file suggests.
        partition = chosen_queue("partition", given, facts) or facts["defaults"].get("partition", "")
        partitions = known.get(value, LIMIT_DEFAULTS)["partitions"]
        if value not in known:
            near = did_you_mean(value, known)
            yield f"{question} {value!r} is not known at {facts['title']}{near}; {choose_from(known)}"
        elif partitions and partition in facts["partitions"] and partition not in partitions:
            yield f"qos {value!r} does not go with partition {partition!r}; {choose_from(partitions)}"

    return check


def limits_of(given, facts):
    """Yield a triple for the chosen partition and for the chosen QoS, as far as they have limits.

    It is its name for messages, a function that makes a fault of a sentence, and its limits.
    """
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        name = chosen_queue(question, given, facts)
        limits = facts[section].get(name)
        if limits:
            yield f"{question} {name}", (Limit if limits["confirmed"] else doubt), limits


def chosen_queue(question, given, facts):
    """Return the chosen partition or QoS, or else the cluster's default; '' where that is not known."""
    queues = facts["partitions" if question == "partition" else "qos"]
    return given[question] or next((name for name, limits in queues.items() if limits["default"]), "")


def doubt(text):
    """Return a fault that warns, because the limit is not confirmed."""
    return Doubt(f"{text} (the site file marks this limit as unconfirmed)")


def node_of(facts, partition: str, qos: str = "") -> dict:
    """Return what is known of the nodes of a partition. What a QoS says of them goes first."""
    own = facts["partitions"].get(partition, LIMIT_DEFAULTS)["node"], facts["qos"].get(qos, LIMIT_DEFAULTS)["node"]
    return {**facts["node"], **own[0], **own[1]}


def check_nodes(given, facts):
    """Yield that there are too many nodes, or too few, for partition and QoS."""
    nodes = whole_number(given["nodes"])
    if not nodes:
        yield f"nodes {given['nodes']!r} is not a whole number of at least 1; for example nodes=2"
        return
    for where, fault, limits in limits_of(given, facts):
        most, least = limits["max_nodes"], limits["min_nodes"]
        if most and nodes > most:
            yield fault(f"nodes {nodes}: {where} allows at most {most}")
        if least and nodes < least:
            yield fault(f"nodes {nodes}: {where} takes jobs of at least {least}")
    partition, qos = (chosen_queue(question, given, facts) for question in ("partition", "qos"))
    segment = node_of(facts, partition, qos)["segment"]
    if segment and nodes > segment and nodes % segment:
        fewer = nodes - nodes % segment
        rule = f"a job of more than {segment} nodes needs a multiple of {segment} (--segment)"
        yield Limit(f"nodes {nodes}: at {facts['title']} {rule}; use {fewer} or {fewer + segment}")


def check_gpus(given, facts):
    """Yield that a node has fewer GPUs, that a job may have fewer, or that there are no nodes for 0 GPUs."""
    nodes, gpus = whole_number(given["nodes"]), whole_number(given["gpus_per_node"])
    partition = chosen_queue("partition", given, facts)
    node = node_of(facts, partition, chosen_queue("qos", given, facts))
    most, cpu_only = node["gpus"], node["cpu_only"]
    if gpus is None:
        yield f"gpus_per_node {given['gpus_per_node']!r} is not a whole number of at least 0; for example {most or 4}"
    elif most is not None and gpus > most:
        own = facts["partitions"].get(partition, LIMIT_DEFAULTS)["node"]
        where = f"partition {partition}" if own else facts["title"]
        fix = f"use at most {most} and more nodes" if most else "use 0, or another partition"
        yield f"gpus_per_node {gpus}: a node of {where} has {most}; {fix}"
    elif gpus == 0 and not cpu_only and most != 0:
        use = f"1 to {most}" if most else "at least 1"
        yield f"gpus_per_node 0: {facts['title']} is described by its GPU nodes only; use {use}"
    else:
        for where, fault, limits in limits_of(given, facts):
            total = (nodes or 0) * gpus
            if total > (limits["max_gpus"] or total):
                yield fault(f"gpus_per_node {gpus} on {nodes} nodes: {where} allows {limits['max_gpus']} GPUs per job")


def check_time(given, facts):
    """Yield that this is no walltime, or that it is too long for partition, QoS and number of nodes."""
    nodes, minutes, text = whole_number(given["nodes"]), minutes_of(given["time_limit"]), given["time_limit"]
    if facts["kind"] != "slurm":
        yield from check_needed("time_limit", given, facts)
    elif not minutes:
        yield f"time_limit {text!r} is no walltime [D-]HH:MM:SS above zero; for example 01:30:00"
    else:
        for where, fault, limits in limits_of(given, facts):
            yield from map(fault, too_long(where, limits, nodes, minutes, text))


def too_long(where, limits, nodes, minutes, text):
    """Yield how a walltime exceeds the limits of one queue. where: its name; text: the walltime as it was answered."""
    longest, product = limits["max_time"], limits["max_node_minutes"]
    tiers = sorted(
        (tier["max_nodes"], tier["max_time"]) for tier in limits["tiers"] if (nodes or 0) <= tier["max_nodes"]
    )
    if longest and minutes > minutes_of(longest):
        yield f"time_limit {text}: {where} allows at most {longest}"
    elif tiers and minutes > minutes_of(tiers[0][1]):
        yield f"time_limit {text}: {where} allows jobs of up to {tiers[0][0]} nodes at most {tiers[0][1]}"
    if nodes and product and nodes * minutes > product and nodes <= (limits["max_nodes"] or nodes):
        longest = walltime(product // nodes)
        yield (
            f"time_limit {text} on {nodes} nodes: {where} allows {product} node-minutes per job, "
            f"so {nodes} node{'s' * (nodes > 1)} for at most {longest}"
        )


def within_limits(answers, facts, longest):
    """Return the shorter of a walltime and the longest one that the chosen queue allows for so many nodes."""
    nodes, times = whole_number(answers["nodes"]) or 1, [longest]
    for _, _, limits in limits_of(answers, facts):
        times += [limits["max_time"], *(tier["max_time"] for tier in limits["tiers"] if nodes <= tier["max_nodes"])]
        times += [walltime(minutes // nodes) for minutes in [limits["max_node_minutes"]] if minutes]
    return min(filter(None, times), key=minutes_of)


# ---- numbers and times -----------------------------------------------------------------------------------------------


def whole_number(text: str) -> int | None:
    """Return a number of at most six digits; None if the text is something else."""
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else None


def minutes_of(text: str) -> float | None:
    """Return a walltime in minutes; None if the text is something else."""
    match = WALLTIME.fullmatch(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def walltime(minutes: int) -> str:
    """Return whole minutes as HH:MM:SS."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
