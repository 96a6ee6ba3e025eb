"""The way to the first job: what its steps are, and about how many minutes each takes, without the wait in the queue.

README.md of a written project has these steps, and docs/sites.md their sum. No job of ours has run on the named
clusters: the minutes are estimates, from what users of such clusters wrote down and from a venv that we made.
"""

from __future__ import annotations

from .answers import suggest
from .checks import node_of
from .questions import QUESTION_NAMES
from .sbatch import node_facts
from .sites import site_facts, site_names
from .software import builds_image, packages_from, pulls_image

COPY, ACCOUNT, CHECK, CLIENT = 2, 1, 2, 5
# What makes the software of a first job: is there, pulled or built.
PULL = 10
VENV = {"wheelhouse": 2, "index": 10, "folder": 20}


def software_minutes(answers) -> int:
    """Return about how many minutes it takes to get the software; 1: it is there."""
    facts, runtime = site_facts(answers["site"]), answers["runtime"]
    if runtime == "venv":
        return VENV[packages_from(answers)]
    if pulls_image(answers):
        return PULL
    if not builds_image(answers):
        return 1
    if runtime == "shifter":
        return 5
    return 120 if facts["internet"] is False and not facts["login_internet"] else 30


def builds(answers) -> bool:
    """Return whether the project has to make an image or an environment before its first job."""
    return answers["runtime"] == "venv" or builds_image(answers)


def steps(answers) -> dict[str, int]:
    """Return the steps to the first job in their order, each with its minutes."""
    kind = site_facts(answers["site"])["kind"]
    if kind == "local":
        return {"check": CHECK}
    if kind == "runai":
        return {"client": CLIENT, "copy": COPY, "check": CHECK}
    return {"copy": COPY, "account": ACCOUNT, "software": software_minutes(answers), "check": CHECK}


def suggested(site: str) -> dict[str, str]:
    """Return the answers that Enter gives at a site, with an account of its form if it wants one."""
    answers = {"project": "demo", "site": site, **{name: suggest(site, name) for name in QUESTION_NAMES[2:]}}
    facts = site_facts(site)
    answers["image"] = suggest(site, "image", answers["runtime"])
    if "account" in facts["required"]:
        answers["account"] = facts["account"].get("example", "abc")
    return answers


def cell(site: str) -> str:
    """Return the first job of a site for docs/sites.md: its size, and steps and minutes until it is submitted."""
    answers = suggested(site)
    found, gpus = steps(answers), answers["gpus_per_node"]
    size = f"{answers['nodes']} x {gpus} GPU" if gpus != "0" else f"{answers['nodes']} x all GPUs"
    if node_facts(answers)["gpus"] == int(gpus) and int(gpus) > 1:
        size += ", whole nodes"
    number = f"{len(found)} step{'s' * (len(found) > 1)}"
    return f"{size}; {number}, {sum(found.values())} min"


def table() -> str:
    """Return the site files as the table of docs/sites.md."""
    lines = ["| `site` | cluster | a node | runtimes, the first by default | queues | first job | checked |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for site in site_names():
        facts = site_facts(site)
        nodes = [node_of(facts, partition) for partition in facts["partitions"]] or [facts["node"]]
        amounts = dict.fromkeys(
            f"{node['gpus']} x {node['gpu_name'] or 'GPU'}" + f", {node['cores']} cores" * bool(node["cores"])
            for node in nodes
            if node["gpus"]
        )
        queues = len(facts["partitions"]) + len(facts["qos"])
        words = [f"`{site}`", f"[{facts['title']}]({facts['docs']})", "<br>".join(amounts) or "any"]
        words += [", ".join(facts["runtimes"]), str(queues or "any"), cell(site), facts["checked"]]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"
