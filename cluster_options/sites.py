"""Site files: finds and reads one, and tells all of its faults at once."""

from __future__ import annotations

import re
from datetime import date, timedelta
from functools import cache
from pathlib import Path

import click
import yaml

from .contradictions import contradictions
from .defaults import complete_facts
from .schema import SCHEMA
from .wording import did_you_mean

SITES = Path(__file__).resolve().parent.parent / "sites"


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
