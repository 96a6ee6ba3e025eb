"""What documents mention: links, files, variables and options, and which of them do not exist."""

from __future__ import annotations

import re
from pathlib import Path

SUBMIT = ("submit_multinode.sh", "local/submit.sh")


def dead_links(document: Path) -> list[str]:
    """Return the links of a Markdown file to files and headings that do not exist."""
    dead = []
    for link in re.findall(r"\]\((?!https?:)(.*?)\)", document.read_text()):
        name, _, anchor = link.replace("%7B", "{").replace("%7D", "}").partition("#")
        target = document.parent / name if name else document
        is_page = target.suffix == ".md" and target.is_file()
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE) if is_page else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if not (target.is_file() or (name.endswith("/") and target.is_dir())) or (anchor and anchor not in anchors):
            dead.append(link)
    return dead


def code_of(text: str) -> str:
    """Return the code of a Markdown text, inline and in blocks, without blocks of output and of other files."""
    blocks = re.findall(r"^ *```(?:bash|python|console)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", rest))


def files_of(text: str, folders: tuple[str, ...]) -> set[str]:
    """Return the files in some folders that the code of a text names; not those with a placeholder or a pattern."""
    pattern = rf"(?<![\w./~$}}-])((?:{'|'.join(folders)})/[\w./-]*\w\.\w+)(?![\w*])"
    return {name for name in re.findall(pattern, code_of(text)) if "/NAME/" not in name}


def variables_of(text: str) -> set[str]:
    """Return the variables that the code of a text sets, as SPARES in `SPARES=1 bash slurm/…`."""
    return set(re.findall(r"(?<![\w-])([A-Z][A-Z0-9_]{2,})=", code_of(text)))


def options_of(text: str) -> set[tuple[str, str]]:
    """Return script and option of the commands of a project, as ("slurm/watch.sh", "--once").

    The options between a submit script and -- are of sbatch, and left out.
    """
    found = set()
    for line in re.sub(r"\\\n", " ", code_of(text)).splitlines():
        command = re.split(r"(?:^|\s)# ", line)[0]
        scripts = re.findall(
            r"(?<![\w./~-])((?:slurm|local|runai|benchmark|training|check|pi|extras/\w+)/\w+\.(?:sh|py))(.*)", command
        )
        if not scripts:
            continue
        script, words = scripts[-1] if not scripts[0][0].endswith(SUBMIT) else scripts[0]
        if script.endswith(SUBMIT):
            inner = re.search(r"((?:benchmark|training|check|pi|extras/\w+)/\w+\.py)(.*)", words)
            if not inner:
                continue
            script, words = inner.groups()
        found |= {(script, option) for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", words.partition(" -- ")[0])}
    return found
