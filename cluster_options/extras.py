"""The extras: folders extras/NAME of a written project, which a user chooses or does without.

EXTRAS is the one table. The prompt, the rule, the table in README.md and the choice of files follow from it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .checks import check_word
from .runtimes import KINDS
from .sites import site_facts
from .wording import choose_from, did_you_mean

EXTRAS = {  # by name: the kinds of site that can have it, and what it is for
    "notebook": (("slurm",), "JupyterLab on a compute node, opened in your own browser"),
    "scaling": (
        ("slurm", "runai", "local"),
        "one job per number of nodes, tables and pictures of bandwidth, the slow node",
    ),
    "trackers": (("slurm",), "offline runs of W&B and MLflow are sent on from a login node"),
}
NEEDS_EXAMPLES = {"scaling": "benchmark/all_reduce.py"}  # by name: what examples=no leaves out, and the extra runs
ADDING = "+"  # extras=+watch writes the folder of watch into a project that the template has written, and nothing else
SETTING = re.compile(r"(?m)^(?:export )?([A-Z][A-Z0-9_]*)=")
FOLDER = Path(__file__).resolve().parent.parent / "{{cookiecutter.project}}" / "extras"


def extras_at(kind: str) -> dict[str, str]:
    """Return the extras that a kind of site can have, each with what it is for."""
    return {name: purpose for name, (kinds, purpose) in EXTRAS.items() if kind in kinds}


def extras_of(answers) -> dict[str, str]:
    """Return the extras that a project with these answers can have, chosen or not, each with what it is for."""
    there = extras_at(site_facts(answers["site"])["kind"])
    return {
        name: purpose for name, purpose in there.items() if answers["examples"] == "yes" or name not in NEEDS_EXAMPLES
    }


def chosen_extras(answers) -> list[str]:
    """Return the names of the extras that the answers choose."""
    answer = answers["extras"].removeprefix(ADDING)
    return {"all": list(extras_of(answers)), "none": []}.get(answer, answer.split(","))


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
    """Yield that the answer names no extras, in another form than NAME,NAME, or some that the site cannot have."""
    answer, there = given["extras"], extras_at(facts["kind"])
    names = answer.strip().removeprefix(ADDING).replace(",", " ").split()
    form = "answer none, all, or names with commas"
    once = list(dict.fromkeys(names))
    right = ADDING * answer.startswith(ADDING) + ",".join(once)
    if not names:
        yield f"extras {answer!r} names none; {form}, as in {','.join(list(there)[:2])}"
    elif len(once) > 1 and {"all", "none"} & {*once}:
        yield f"extras {answer!r}: all and none stand alone; {form}"
    elif right != answer:
        fault = "has a name twice" if once != names else "has spaces or a comma too many"
        yield f"extras {answer!r} {fault}; write extras={right}"
    elif right == f"{ADDING}none":
        yield f"extras {answer!r} adds nothing; name extras, as in {ADDING}{','.join(list(there)[:2])}"
    for name in once if once not in (["all"], ["none"]) else []:
        if name in NEEDS_EXAMPLES and name in there and given["examples"] == "no":
            yield f"extra {name!r} runs {NEEDS_EXAMPLES[name]}, which examples=no leaves out; leave the extra out, too"
        if name in {"all", "none", *there}:
            continue
        if name in EXTRAS:
            others = " or ".join(KINDS[kind]["name"] for kind in EXTRAS[name][0])
            own = KINDS[facts["kind"]]["name"]
            yield f"extra {name!r} is for {others}, but {facts['title']} has {own}; leave it out"
        else:
            yield f"extra {name!r} is not known{did_you_mean(name, there)}; {choose_from(['none', 'all', *there])}"
