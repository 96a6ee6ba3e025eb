"""The values of keys that a site file leaves out."""

from __future__ import annotations

from .schema import LIMITS

NODE_DEFAULTS = {
    "gpus": None,
    "gpu_name": "",
    "cores": None,
    "cores_per_gpu": None,
    "memory": "",
    "gpu_option": "--gpus-per-node=",
    "gpu_vendor": "nvidia",
    "whole": False,
    "cpu_only": False,
    "segment": None,
}
CONTAINER_DEFAULTS = {
    "image": "",
    "modules": [],
    "options": [],
    "gpu_option": None,
    "entry": [],
    "entry_environment": [],
    "unset": [],
    "torch": {},
    "on_login_node": False,
    "build_with": "",
    "find_image": "",
    "after_build": "",
    "wheelhouse": "",
}
POD_DEFAULTS = {"volumes": [], "run_as_user": False, "annotations": [], "extended_resources": []}
LIMIT_DEFAULTS = {
    **dict.fromkeys(LIMITS),
    "tiers": [],
    "default": False,
    "unnamed": False,
    "confirmed": True,
    "about": "",
    "partitions": [],
    "node": {},
}
EMPTY_MAPS = (
    "detect",
    "node",
    "account",
    "partitions",
    "qos",
    "containers",
    "pods",
    "production",
    "interactive",
    "module_lines",
    "ports",
    "commands",
)
EMPTY_LISTS = (
    "accounts",
    "required",
    "directives",
    "srun",
    "torchrun",
    "modules",
    "environment",
    "binds",
    "file_systems",
    "notes",
)
EMPTY_LISTS += ("problems", "all_reduce", "unconfirmed")
OTHER_DEFAULTS = {
    "check": "",
    "expedited_requeue": False,
    "host_suffix": "",
    "login": {},
    "transfer_host": "",
    "internet": None,
    "login_internet": None,
    "notebooks": "",
    "placement": "",
    "modules_after": "purge",
}


def complete_facts(content) -> dict:
    """Return the content of a site file, with the defaults of this module for the keys that it leaves out."""
    facts = {**OTHER_DEFAULTS, **{name: {} for name in EMPTY_MAPS}, **{name: [] for name in EMPTY_LISTS}}
    facts |= {"runtimes": [], "launchers": [], "title": "", **content}
    facts["node"] = {**NODE_DEFAULTS, **facts["node"]}
    facts["pods"] = {**POD_DEFAULTS, **facts["pods"]}
    facts["module_lines"] = {"before": [], "after": [], **facts["module_lines"]}
    for section in ("partitions", "qos"):
        facts[section] = {name: {**LIMIT_DEFAULTS, **limits} for name, limits in facts[section].items()}
    for runtime in facts["runtimes"]:
        facts["containers"] = {runtime: {}, **facts["containers"]}
    facts["containers"] = {runtime: {**CONTAINER_DEFAULTS, **more} for runtime, more in facts["containers"].items()}
    facts["file_systems"] = [{"limits": "", **place} for place in facts["file_systems"]]
    for key in ("notes", "unconfirmed"):
        facts[key] = [note if isinstance(note, dict) else {"text": note} for note in facts[key]]
    facts["srun"] = [{"tasks": "", **option} for option in facts["srun"]]
    facts["all_reduce"] = [
        {**table, "rows": [{"nodes": "", "gpus": "", "algbw": "", **row} for row in table["rows"]]}
        for table in facts["all_reduce"]
    ]
    return facts
