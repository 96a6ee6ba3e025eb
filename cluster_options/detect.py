"""Which site this machine belongs to."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import yaml

from .sites import SITES, Loader, site_names


def site_here() -> str:
    """Return the site whose login node this is; `here` on a Slurm cluster without a file; else `local`.

    Asks files first and the controller last, for a quarter of a second at most. `slurm` where that does not answer.
    """
    patterns = {site: detect_line(site) for site in site_names()}
    named = [first_line("/etc/xthostname"), first_line("/etc/FZJ/systemname")]  # on Cray systems; at Jülich
    confs = [os.environ.get("SLURM_CONF", ""), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"]
    configured = [cluster_name(read_or_empty(conf)) for conf in confs if conf]
    site = site_of_cluster(patterns, named + configured)
    if site:
        return site
    hosts = {socket.gethostname(), socket.gethostname().split(".")[0]}
    for site, pattern in patterns.items():
        if pattern.get("host") and any(re.fullmatch(pattern["host"], host) for host in hosts):
            return site
    try:
        asked = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=0.25, check=False
        )
    except (FileNotFoundError, PermissionError):
        return "local"
    except (OSError, subprocess.TimeoutExpired):
        return "slurm"
    if asked.returncode == 0:
        return site_of_cluster(patterns, [cluster_name(asked.stdout)]) or "here"
    return "slurm" if any(configured) else "local"


def detect_line(site) -> dict:
    """Return what the line `detect` of one of the template's own files says; parsing them all would take too long."""
    line = re.search(r"^detect:.*$", read_or_empty(SITES / f"{site}.yaml"), re.MULTILINE)
    return yaml.load(line[0], Loader)["detect"] if line else {}


def site_of_cluster(patterns, names) -> str:
    """Return the site that knows one of these names of clusters; '' if none does. patterns: detect_line() by site."""
    found = {name.lower() for name in names if name}
    for site, pattern in patterns.items():
        if found & {name.lower() for name in pattern.get("cluster", [])}:
            return site
    return ""


def cluster_name(text) -> str:
    """Return ClusterName of slurm.conf, or of what scontrol show config prints; '' if there is none."""
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def first_line(path) -> str:
    """Return the first line of a file; '' if it is empty or cannot be read."""
    return (read_or_empty(path).splitlines() or [""])[0].strip()


def read_or_empty(path) -> str:
    """Return the text of a file; '' if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
