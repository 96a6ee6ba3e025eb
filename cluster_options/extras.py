"""The extras: folders extras/NAME of a written project, which a user chooses or does without.

The prompt, the rule, the table of the page on extras and the choice of files follow from EXTRAS.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .checks import check_word
from .runtimes import KINDS, MPI
from .sites import site_facts
from .wording import choose_from, did_you_mean

EXTRAS = {  # by name: the kinds of site that can have it, its word at the prompt, and what it is for
    "hangs": (
        ("slurm", "runai", "local"),
        "stuck ranks",
        "at which line each rank of a hanging job waits, and for which rank",
    ),
    "mpi": (
        ("slurm",),
        "mpirun",
        "the launchers mpirun and mpirun-ranks; Horovod is built, and trains a model",
    ),
    "notebook": (("slurm",), "Jupyter", "JupyterLab on a compute node, opened in your own browser"),
    "scaling": (
        ("slurm", "runai", "local"),
        "bandwidth",
        "one job per number of nodes, tables and pictures of bandwidth, the slow node",
    ),
    "snapshot": (
        ("slurm", "runai"),
        "code",
        "jobs run the sources as submitted; a record of each job, and its repetition",
    ),
    "spares": (
        ("slurm",),
        "nodes",
        "spare nodes in place of failed nodes, going on with fewer nodes, a memory of bad nodes",
    ),
    "stage": (
        ("slurm",),
        "local disk",
        "environment and data on the nodes' own disks, so that many nodes start fast",
    ),
    "sweep": (("slurm",), "many runs", "a job for each line of a file, as an array, and a table of their results"),
    "trackers": (("slurm",), "offline", "offline runs of W&B and MLflow are sent on from a login node"),
    "watch": (("slurm",), "GPU use", "a running job on one screen, and the use of its GPUs in its last line"),
}
# Extras that a project with examples=no cannot have: each runs a program that it leaves out.
NEEDS_EXAMPLES = {"scaling": "benchmark/all_reduce.py"}
# The launchers that an extra brings. It is for sites that have one of them, and these answers to `launcher` choose it.
LAUNCHERS_OF = {"mpi": MPI}
ADDING = "+"  # extras=+notebook writes extras/notebook/ into a project that the template has written, and nothing else
SETTING = re.compile(r"(?m)^(?:export )?([A-Z][A-Z0-9_]*)=")
FOLDER = Path(__file__).resolve().parent.parent / "{{cookiecutter.project}}" / "extras"


def extras_at(kind: str) -> dict[str, str]:
    """Return the extras that a kind of site can have, each with what it is for."""
    return {name: purpose for name, (kinds, _, purpose) in EXTRAS.items() if kind in kinds}


def extras_of(answers) -> dict[str, str]:
    """Return the extras that a project with these answers can have, chosen or not, each with what it is for."""
    facts = site_facts(answers["site"])
    return {
        name: purpose
        for name, purpose in extras_at(facts["kind"]).items()
        if (answers["examples"] == "yes" or name not in NEEDS_EXAMPLES)
        and (name not in LAUNCHERS_OF or set(facts["launchers"]) & set(LAUNCHERS_OF[name]))
    }


def extra_launchers(answers) -> dict[str, list[str]]:
    """Return the extras that bring launchers of the site, each with these launchers."""
    there = site_facts(answers["site"])["launchers"]
    found = {extra: [name for name in there if name in launchers] for extra, launchers in LAUNCHERS_OF.items()}
    return {extra: launchers for extra, launchers in found.items() if launchers}


def brought_extras(answers) -> list[str]:
    """Return the names of the extras that the launcher brings along, whatever the answer to `extras` says."""
    if is_adding(answers):
        return []
    return [extra for extra, launchers in LAUNCHERS_OF.items() if answers["launcher"] in launchers]


def chosen_extras(answers) -> list[str]:
    """Return the names of the extras that the answers choose."""
    answer = answers["extras"].removeprefix(ADDING)
    chosen = {"all": list(extras_of(answers)), "none": []}.get(answer, answer.split(","))
    return [*chosen, *(name for name in brought_extras(answers) if name not in chosen)]


def added_extras(answers) -> list[str]:
    """Return the names of the extras that are added to a project which is there; [] where it is written whole."""
    return chosen_extras(answers) if is_adding(answers) else []


def is_adding(answers) -> bool:
    """Return whether extras are added to a project that the template has written before."""
    return answers["extras"].startswith(ADDING)


def extra_settings(answers) -> dict[str, str]:
    """Return the settings of all extras that the site can have, each with the name of its extra."""
    settings = {}
    for name in extras_of(answers):
        path = os.path.join(FOLDER, name, "settings.sh")
        if os.path.exists(path):
            settings |= dict.fromkeys(SETTING.findall(Path(path).read_text()), name)
    return settings


def check_extras_text(question, value):
    """Yield what a shell would not take literally. Spaces are left to check_extras(), which says the right form."""
    yield from check_word(question, value.replace(" ", ""))


def check_extras(given, facts):
    """Yield what is wrong with the answer: its form, an unknown name, an extra that this project cannot have."""
    answer, possible = given["extras"], extras_of(given)
    prefix = ADDING if answer.strip().startswith(ADDING) else ""
    typed = answer.strip().removeprefix(ADDING).replace(",", " ").split()
    names = list(dict.fromkeys(typed))
    right_form = prefix + ",".join(names)
    example = prefix + ",".join(list(possible)[:2])
    if not names:
        yield f"extras {answer!r} has no name in it; answer none, all, or names with commas, as in {example}"
    elif len(names) > 1 and {"all", "none"} & {*names}:
        yield f"extras {answer!r}: all and none stand alone; answer none, all, or names with commas"
    elif right_form != answer:
        fault = "has a name twice" if names != typed else "is not written as names with commas, without spaces"
        yield f"extras {answer!r} {fault}; write extras={right_form}"
    elif answer == f"{ADDING}none":
        yield f"extras {answer!r} adds nothing; name extras, as in {example}"
    for name in names:
        if name not in {"all", "none", *possible}:
            yield why_not(name, possible, facts)


def why_not(name: str, possible: dict, facts: dict) -> str:
    """Return why a project cannot have an extra of this name."""
    if name not in EXTRAS:
        return f"extra {name!r} is not known{did_you_mean(name, possible)}; {choose_from(['none', 'all', *possible])}"
    if name in extras_at(facts["kind"]) and name in LAUNCHERS_OF:
        missing = " or ".join(sorted(LAUNCHERS_OF[name]))
        return f"extra {name!r} is for the launchers {missing}, which {facts['title']} does not have; leave it out"
    if name in extras_at(facts["kind"]):
        return f"extra {name!r} runs {NEEDS_EXAMPLES[name]}, which examples=no leaves out; leave the extra out, too"
    others = " or ".join(KINDS[kind]["name"] for kind in EXTRAS[name][0])
    return f"extra {name!r} is for {others}, but {facts['title']} has {KINDS[facts['kind']]['name']}; leave it out"
