"""Text for documents: cells of tables, notes and problems of a site, the commands that log in and copy."""

from __future__ import annotations

import re

from .sbatch import jobs_of
from .sites import site_facts


def cell(text) -> str:
    """Return text as it may stand in a table of Markdown."""
    return str(text).replace("|", r"\|")


def told(answers, key: str) -> list[dict]:
    """Return the notes, problems or unconfirmed facts of a site that concern the answered runtime."""
    entries = site_facts(answers["site"])[key]
    return [entry for entry in entries if answers["runtime"] in entry.get("runtimes", [answers["runtime"]])]


def unless_told(answers, caller) -> str:
    """Return rows of the table of problems, for a call block, without those whose messages the site's own rows have."""
    own = "\n".join(problem["printed"] for problem in told(answers, "problems"))
    kept = []
    for row in caller().splitlines(keepends=True):
        messages = re.findall("`([^`]{10,})`", row.split(" | ")[0])  # a shorter one may be a word of another message
        if not messages or not all(message in own for message in messages):
            kept.append(row)
    return "".join(kept)


def in_code(text: str) -> str:
    """Return what a program prints as Markdown shows it; a text that has its own marks, or tells of nothing, stays."""
    text = cell(text)
    return text if "`" in text or text.startswith("nothing") else f"`{text}`"


def nodes_of(limits) -> str:
    """Return how many nodes a queue gives to one job, for a table."""
    least, most = limits["min_nodes"], limits["max_nodes"]
    return f"{least} to {most}" if least and most else f"at least {least}" if least else str(most or "")


def project_folder(answers):
    """Return the file system on which a written project belongs, as its row in the site file; None: unknown.

    Where several users share it, the path is that of a folder of the user's own in it.
    """
    row = next((row for row in site_facts(answers["site"])["file_systems"] if row.get("project")), None)
    return {**row, "path": f"{row['path']}/$USER"} if row and row.get("shared") else row


def ssh_command(answers) -> str:
    """Return the command that logs in, with words in capitals for what is not known."""
    facts = site_facts(answers["site"])
    login = facts["login"]
    return " ".join(filter(None, ["ssh", login.get("options"), login_name(facts)]))


def login_name(facts) -> str:
    """Return what ssh and rsync call the login node: USER@HOST, or HOST where ssh's configuration has the name."""
    user, host = facts["login"].get("user", "USER"), facts["login"].get("host", "HOST")
    return f"{user}@{host}" if user else host


def rsync_command(answers, words: str) -> str:
    """Return the command that copies files to the cluster, up to the colon. words: options of rsync, and the files."""
    facts = site_facts(answers["site"])
    login = facts["login"]
    if facts["transfer_host"]:
        return f"rsync {words} USER@{facts['transfer_host']}"
    shell = f'-e "ssh {login["options"]}" ' if "options" in login else ""
    return f"rsync {shell}{words} {login_name(facts)}"


def placeholders(answers) -> str:
    """Return the words that a user replaces in rsync_command() and copy_target(), as in '`USER` and `GROUP`'."""
    row = project_folder(answers)
    line = f"{rsync_command(answers, '')}:{copy_target(answers)} {row['path'] if row else ''}"
    words = dict.fromkeys(re.findall(r"(?<![$\w])[A-Z]{3,}\b", line))
    return " and ".join(f"`{word}`" for word in words)


def copy_target(answers) -> str:
    """Return the folder of project_folder() as another machine can name it; '' if it has a variable of the cluster."""
    row = project_folder(answers)
    path = row["path"].replace("$USER", "USER") if row else ""
    return "" if "$" in path else path


def remarks(limits) -> str:
    """Return what a table of queues says beside nodes and walltime."""
    tiers = [f"up to {tier['max_nodes']} nodes {tier['max_time']}" for tier in limits["tiers"]]
    found = [
        "the default" if limits["default"] else "",
        limits["about"],
        jobs_of(limits),
        f"{limits['max_node_minutes']} node-minutes per job" if limits["max_node_minutes"] else "",
        f"{limits['max_gpus']} GPUs per job" if limits["max_gpus"] else "",
        ", ".join(tiers),
        f"with partition {' or '.join(limits['partitions'])}" if limits["partitions"] else "",
        "" if limits["confirmed"] else "unconfirmed",
    ]
    return cell("; ".join(filter(None, found)))


def bandwidths(published) -> str:
    """Return a table of published bandwidths: a column for each figure that its rows have."""
    titles = {"nodes": "nodes", "gpus": "GPUs", "busbw": "busbw", "algbw": "algbw"}
    columns = [name for name in titles if published["rows"][0].get(name)]
    lines = [[titles[name] for name in columns], ["---"] * len(columns)]
    lines += [[str(row.get(name, "")) for name in columns] for row in published["rows"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
