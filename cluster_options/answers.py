"""Defaults and faults of a set of answers. At a terminal, a question with a wrong answer is asked again at once."""

from __future__ import annotations

import sys

import click

from .checks import Doubt, Limit, minutes_of, within_limits
from .detect import site_here
from .questions import BY_NAME, QUESTION_NAMES, UNASKED
from .sites import SiteError, site_answer, site_facts, site_names


def suggest(site: str, question: str, runtime: str = "") -> str:
    """Return the default of a question for a site; '' where it has none. The runtime matters for the image alone.

    '' if the site is unknown, so that this fault is told together with those of the other answers.
    """
    default = BY_NAME[question].default
    if isinstance(default, str):  # the same at every site
        return default
    try:
        return BY_NAME[question].default_at(site_facts(site), runtime)
    except SiteError:
        return ""


def problems(answers) -> list[str]:
    """Return every fault of the answers, each with value, rule and way out; [] when the project can be written.

    answers: the mapping of question to answer, as cookiecutter holds it; values are text.
    """
    found = [fault for fault in all_faults(answers) if not isinstance(fault, Doubt)]
    if any(isinstance(fault, Limit) for fault in found):
        found.append(way_out(answers))
    return found


def way_out(answers) -> str:
    """Return what to do where a limit is not what the site's file says."""
    site = str(answers["site"])
    known = {"here": "write it down with 'python3 -m cluster_options describe >FILE', edit that, and answer site=FILE"}
    known |= dict.fromkeys(site_names(), "copy the site's file, edit it, and answer site=PATH")
    return f"if a limit has changed: {known.get(site, f'edit {site}')}"


def warnings(answers) -> list[str]:
    """Return what is probably wrong: answers beyond limits that the site file marks as unconfirmed."""
    return [fault for fault in all_faults(answers) if isinstance(fault, Doubt)]


def refuse_problems(answers) -> str:
    """Raise a ClickException with all faults of the answers, which cookiecutter prints without a traceback.

    Without a terminal it prints the doubts, too. Returns '', because Jinja puts what it returns into the answers.
    """
    if "project" not in answers:  # a replay: cookiecutter renders this before it reads the answers, and the hook checks
        return ""
    if not at_terminal():
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
        found = list(faults_of(answers, question))
        faults = [fault for fault in found if not isinstance(fault, Doubt)]
        if not faults or not at_terminal():
            break
        for fault in faults:
            click.secho(f"  {fault}", fg="red", err=True)
        if any(isinstance(fault, Limit) for fault in faults):
            click.echo(f"  {way_out(answers)}", err=True)
        default = site_here()
        if question != "site":
            default = suggest(answers.get("site", ""), question, answers.get("runtime", ""))
        if question == "time_limit" and minutes_of(default):
            default = within_limits(answers, site_facts(answers["site"]), default)
        again = click.prompt(f"  {question} ({default})", default=default, show_default=False)
        answers.update({question: again.strip()})
    if question == "site" and not faults:
        answers.update({"site": site_answer(answers["site"])})
    if at_terminal():
        for doubt in found:
            click.secho(f"  Warning: {doubt}", fg="yellow", err=True)
    return ""


def at_terminal() -> bool:
    """Whether cookiecutter's command asks somebody who sits at a terminal."""
    context = click.get_current_context(silent=True)
    return bool(context) and not context.params.get("no_input", True) and sys.stdin.isatty()


def skips_files() -> bool:
    """Whether cookiecutter has to leave files alone that are there already.

    That is its option --skip-if-file-exists. Where no command was typed, a program may have said so.
    """
    context = click.get_current_context(silent=True)
    return context is None or bool(context.params.get("skip_if_file_exists"))


def all_faults(answers):
    """Yield the faults of all answers, in the order of the questions."""
    for question in QUESTION_NAMES:
        yield from faults_of(answers, question)


def faults_of(answers, name):
    """Yield the faults of the answer to one question, in the light of the answers before it."""
    question = BY_NAME[name]
    given = {other: str(answers.get(other, "")) for other in QUESTION_NAMES}
    yield from question.check_text(name, given[name])
    if name == "project":
        return
    try:
        facts = site_facts(given["site"])
    except SiteError as error:
        if name == "site":
            yield error.message
        return
    yield from question.check(given, facts)


def complete(answers) -> str:
    """Fill in the defaults of questions that an older version did not ask, as a replay lacks them. Returns ''."""
    if not answers.get("site"):
        answers["site"] = site_here()
    for question in QUESTION_NAMES[2:]:  # all but project and site
        if answers.get(question, UNASKED) == UNASKED:
            answers[question] = suggest(answers["site"], question, answers.get("runtime", ""))
    return ""
