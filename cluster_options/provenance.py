"""Where a project comes from: version, commit, the commands that write it again and link it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

from .answers import suggest
from .extras import ADDING, extras_of
from .questions import QUESTION_NAMES

VERSION = "2.0.0"  # CHANGELOG.md begins with it
ROOT = Path(__file__).resolve().parent.parent
STARTED_IN = Path.cwd()  # cookiecutter renders from other folders

HOSTS = {"gh": "https://github.com/{}.git", "gl": "https://gitlab.com/{}.git", "bb": "https://bitbucket.org/{}"}


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
    return {"name": name, "commit": commit(), "git": "" if name.lower().endswith(".zip") else url}


@cache
def commit() -> str:
    """Return the commit of the template's repository; '' where it is none."""
    if not (ROOT / ".git").exists():
        return ""
    try:
        asked = ["git", "-C", ROOT, "rev-parse", "--verify", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def given_answers(answers) -> dict:
    """Return the answers that a project cannot be written without: those that are not its site's default.

    The answer to `extras` is left out: it is read from the folders that are there, as extras come and go.
    """
    site, runtime = answers["site"], answers["runtime"]
    own = {question: answers[question] for question in QUESTION_NAMES[2:] if question != "extras"}
    changed = {question: value for question, value in own.items() if value != suggest(site, question, runtime)}
    return {"project": answers["project"], "site": site, **changed}


def bake_command(answers, options=(), newest=False, **others) -> str:
    """Return the command that writes the same project again, whatever cookiecutter's configuration says.

    It is to be typed in the folder above the project, whose extras it reads there. Another project gets none. options:
    more options of cookiecutter. newest: write it by the newest commit of the template instead of the same. others:
    answers that differ, as launcher="srun".
    """
    extras = "none" if "project" in others else f'"$(bash {answers["project"]}/launch/list_extras.sh)"'
    return f"{_command(answers, options, newest, others)} extras={extras}"


def add_command(answers, name: str) -> str:
    """Return the command that adds the folder of an extra to the project; to be typed in the folder above it.

    It writes no other file: see extras.ADDING. Both options are there for cookiecutter, which asks for the one and
    writes over files without the other.
    """
    options = ["--overwrite-if-exists", "--skip-if-file-exists"]
    existing = {**answers, "examples": "yes"}  # for which _command would add the options again
    examples = [f"examples={answers['examples']}"] if answers["examples"] == "no" else []
    return " ".join([_command(existing, options, False, {}), *examples, f"extras={ADDING}{name}"])


def _command(answers, options, newest, others) -> str:
    """Return bake_command() without the answer to `extras`."""
    answers = {**{name: answers[name] for name in (*QUESTION_NAMES, "_template")}, **others}
    source = template_source(answers)
    local = source["name"].startswith("/")  # cookiecutter ignores --checkout there
    checkout = [] if newest or local or not source["commit"] else ["--checkout", source["commit"]]
    existing = ["--overwrite-if-exists", "--skip-if-file-exists"] if answers["examples"] == "no" and not newest else []
    words = ["cookiecutter", "--no-input", "--default-config", *options, *existing, *checkout, source["name"]]
    return shlex.join(words + [f"{question}={value}" for question, value in given_answers(answers).items()])


def link_command(answers) -> str:
    """Return the command that tells cruft what a project was written from; to be typed in the project's folder."""
    source = template_source(answers)
    checkout = ["--checkout", source["commit"]] if source["commit"] else []
    words = ["cruft", "link", "--no-input", "--default-config", *checkout, source["git"]]
    context = json.dumps({**given_answers(answers), "extras": "EXTRAS"})
    return shlex.join([*words, "--extra-context", context]).replace("EXTRAS", "'\"$(bash launch/list_extras.sh)\"'")


def extras_lost(answers) -> list[str]:
    """Return the extras that a `cruft update` from version 1 takes away, where all of them were part of each project.

    cruft renders in another folder, and asks before it changes the project, so the hook can say this first. It is
    called in the project's folder, the shell's PWD; the .cruft.json there knows no answer to `extras`.
    """
    record = Path(os.environ.get("PWD", ""), ".cruft.json")
    if answers["extras"] != "none" or not record.exists():
        return []
    known = json.loads(record.read_text())["context"]["cookiecutter"]
    return [] if "extras" in known else list(extras_of(answers))
