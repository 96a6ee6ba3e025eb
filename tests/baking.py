"""Writes projects from the template as cookiecutter's command line would."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
sys.dont_write_bytecode = True  # byte code in the template's folder would be written into every project
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

import cluster_options  # noqa: E402  (it lies beside cookiecutter.json, not in a package)

TEMPLATE = REPOSITORY / "{{cookiecutter.project}}"


def cookiecutter(*arguments: object, home: Path, **answers: object) -> subprocess.CompletedProcess:
    """Run the cookiecutter command; its own files (replay, cloned templates) go to `home`."""
    command = [sys.executable, "-m", "cookiecutter", *map(str, arguments)]
    command += [f"{name}={answer}" for name, answer in answers.items()]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def bake(folder: Path, *arguments: object, **answers: object) -> Path:
    """Write a project into `folder` and return its path; fails with cookiecutter's message if it is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    answers = {"project": "demo", **answers}
    done = cookiecutter("--no-input", "-o", folder, *arguments, REPOSITORY, home=folder, **answers)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / answers["project"]


def combinations() -> list[dict[str, str]]:
    """Return the answers of every allowed combination of site, runtime and launcher, with all GPUs and with fewer."""
    found = []
    for site in cluster_options.site_names():
        facts = cluster_options.site_facts(site)
        runtimes = [name for name in facts["runtimes"] if name in cluster_options.WRITTEN_RUNTIMES]
        launchers = [name for name in facts["launchers"] if name in cluster_options.WRITTEN_LAUNCHERS]
        gpus = ["1", "0"] if facts["node"]["cpu_only"] else [str(facts["node"]["gpus"]), "1"]
        account = "acc1" if "account" in facts["required"] else ""
        found += [
            {"site": site, "runtime": runtime, "launcher": launcher, "gpus_per_node": count, "account": account}
            for runtime, launcher, count in product(runtimes, launchers, gpus)
        ]
    return found
