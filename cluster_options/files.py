"""Which files of the template a project keeps."""

from __future__ import annotations

import os
from pathlib import Path

from .extras import chosen_extras, is_adding
from .runtimes import IN_SRUN, KINDS
from .sites import site_facts
from .software import image_source

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "{{cookiecutter.project}}"
EXTRAS_FOLDER = "extras"
# What examples=no leaves out: what a project that exists has of its own, and programs to learn from.
EXAMPLES = ("README.md", ".gitignore", "requirements.txt", "benchmark", "check/hello.py", "pi", "tests", "training")


def needed(answers) -> dict[str, bool]:
    """Return the files that not every project has, by name, and whether this one does. All have what is not here."""
    facts, runtime = site_facts(answers["site"]), answers["runtime"]
    slurm, runai = facts["kind"] == "slurm", facts["kind"] == "runai"
    builds_image = slurm and image_source(answers) != ""
    into_a_project = answers["examples"] == "no"  # which has a README.md of its own
    return {
        "local/README.md": into_a_project,
        "runai/README.md": into_a_project,
        "slurm/README.md": into_a_project,
        "slurm/docs/container.md": in_container(answers),
        "requirements.txt": not runai,
        "launch/rank.sh": slurm,
        "launch/spawn.py": slurm,
        "slurm/doctor/causes_pyxis.py": runtime in IN_SRUN,
        "slurm/doctor/causes_apptainer.py": runtime == "apptainer",
        "slurm/build_venv.sh": "venv" in facts["runtimes"],
        "slurm/build_container.sh": builds_image,
        "container/Dockerfile": builds_image or runai,
        "container/requirements.txt": builds_image or runai,
        "container/start.sh": runtime in ("enroot", "podman-hpc"),
        f"container/{PROJECT}.toml": runtime == "edf",
        "extras/mpi/horovod.Dockerfile": builds_image and runtime not in IN_SRUN,
        "extras/scaling/published.csv": facts["all_reduce"] != [],
        "extras/scaling/slow_nodes.py": slurm or runai,
        "extras/snapshot/clean.sh": slurm,
        "extras/snapshot/repeat.py": slurm,
    }


def template_files() -> list[str]:
    """Return the paths of all files of a project, as they are named in the template."""
    top = os.path.join(ROOT, PROJECT, "")
    paths = (os.path.join(folder, file) for folder, _, files in os.walk(top) for file in files)
    return sorted(path[len(top) :] for path in paths)


def unneeded(answers) -> list[str]:
    """Return the paths of the template's files that the project does not keep."""
    kind, rules, chosen = site_facts(answers["site"])["kind"], needed(answers), chosen_extras(answers)
    unwanted = tuple(other for other in KINDS if other != kind)
    if answers["examples"] == "no":
        unwanted += EXAMPLES
    found = []
    for name in template_files():
        folder, _, inside = name.partition("/")
        if folder == EXTRAS_FOLDER:
            keep = inside.partition("/")[0] in chosen and rules.get(name, True)
        else:
            keep = not is_adding(answers) and not {name, folder} & {*unwanted} and rules.get(name, True)
        if not keep:
            found.append(name)
    return found


def files(answers) -> dict[str, bool]:
    """Return the paths of all files that a project may have, and whether this one keeps each of them."""
    dropped = {*unneeded(answers)}
    return {name.replace(PROJECT, answers["project"]): name not in dropped for name in template_files()}


def instructions(answers) -> str:
    """Return the path of the page of instructions: a project that exists has a README.md of its own."""
    return f"{site_facts(answers['site'])['kind']}/README.md" if answers["examples"] == "no" else "README.md"


def in_container(answers) -> bool:
    """Return whether programs run in a container that the scripts of slurm/ start."""
    return site_facts(answers["site"])["kind"] == "slurm" and answers["runtime"] not in ("venv", "none")
