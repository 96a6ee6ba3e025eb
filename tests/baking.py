"""Writes projects from the template as cookiecutter's command line would."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

from cookiecutter import generate, hooks
from cookiecutter.environment import StrictEnvironment
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter as write

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
sys.dont_write_bytecode = True  # byte code in the template's folder would be written into every project
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

from cluster_options.extension import ClusterOptions  # noqa: E402
from cluster_options.runtimes import IN_SRUN  # noqa: E402  (the package lies beside cookiecutter.json)
from cluster_options.sbatch import node_facts  # noqa: E402
from cluster_options.sites import site_facts, site_names  # noqa: E402

TEMPLATE = REPOSITORY / "{{cookiecutter.project}}"
COMPILED = {}  # templates by their text and name: compiling them anew for each project takes most of the time


def compile_once(environment, *words, compile_anew=StrictEnvironment.compile):
    """Stand in for jinja2's Environment.compile. Its result depends on its arguments and ClusterOptions.preprocess."""
    key = (ClusterOptions.unneeded.isdisjoint(words), *words)
    if key not in COMPILED:
        COMPILED[key] = compile_anew(environment, *words)
    return COMPILED[key]


StrictEnvironment.compile = compile_once
generate.is_binary = cache(generate.is_binary)  # of a file's name in the template


def run_in_this_process(script_path: str, cwd: Path | str = ".") -> None:
    """Stand in for cookiecutter's run_script: to start a Python takes longer than all that a hook does."""
    before = Path.cwd()
    os.chdir(cwd)
    try:
        runpy.run_path(script_path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise FailedHookException(f"Hook script failed (exit status: {end.code})") from end
    finally:
        os.chdir(before)


hooks.run_script = run_in_this_process


def cookiecutter(*arguments: object, home: Path, **answers: object) -> subprocess.CompletedProcess:
    """Run the cookiecutter command; its own files (replay, cloned templates) go to `home`."""
    command = [sys.executable, "-m", "cookiecutter", *map(str, arguments)]
    command += [f"{name}={answer}" for name, answer in answers.items()]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def bake(folder: Path, *arguments: object, **answers: object) -> Path:
    """Write a project into `folder` and return its path; fails with cookiecutter's message if it is refused.

    In this process, unless there are `arguments` for the command: hundreds of projects are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers = {"project": "demo", **answers}
    if arguments:
        done = cookiecutter("--no-input", "-o", folder, *arguments, REPOSITORY, home=folder, **answers)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        config = folder / ".cookiecutterrc"
        config.write_text(f"replay_dir: {json.dumps(str(folder / '.cookiecutter_replay'))}\n")
        given = {name: str(answer) for name, answer in answers.items()}
        write(str(REPOSITORY), no_input=True, extra_context=given, output_dir=str(folder), config_file=str(config))
    return folder / answers["project"]


def page(project: Path, name: str) -> str:
    """Return the text of a page that README.md of a written project links."""
    return next(project.glob(f"*/docs/{name}.md")).read_text()


def documents(project: Path) -> str:
    """Return the text of all Markdown of a written project."""
    return "\n".join(path.read_text() for path in sorted(project.rglob("*.md")))


def argument_for_hydra(project: Path) -> str:
    """Return the argument with which, says a page, all ranks name the same folder to hydra; as a shell reads it."""
    return shlex.split(re.search(r"hydra\.run\.dir='.*?'", page(project, "it-does-not-work"))[0])[0]


def account(site) -> str:
    """Return an account as it may look at a site; '' where none is asked for."""
    facts = site_facts(str(site))
    return facts["account"].get("example", "acc1") if "account" in facts["required"] else ""


def gpu_counts(site: str) -> list[str]:
    """Return the numbers of GPUs per node that are worth a test: what the suggested queue gives, and fewer."""
    facts = site_facts(site)
    suggested = facts["defaults"]
    node = node_facts({"site": site, **{name: suggested.get(name, "") for name in ("partition", "qos")}})
    limits = facts["partitions"].get(suggested.get("partition", ""), {}), facts["qos"].get(suggested.get("qos", ""), {})
    if node["gpus"] == 0:
        return ["0"]
    if node["cpu_only"]:
        return ["1", "0"]
    most = [limit["max_gpus"] // suggested["nodes"] for limit in limits if limit.get("max_gpus")]
    count = min([node["gpus"], *most]) if node["gpus"] else node["gpus"]
    return ["1"] if count == 1 else [str(count), "1"]


def combinations() -> list[dict[str, str]]:
    """Return the answers of every allowed combination of site, runtime and launcher, with all GPUs and with fewer."""
    found = []
    for site in site_names():
        facts = site_facts(site)
        both = [
            (runtime, launcher)
            for runtime, launcher in product(facts["runtimes"], facts["launchers"])
            if not (runtime in IN_SRUN and launcher.startswith("mpirun"))
        ]
        found += [
            {"site": site, "runtime": runtime, "launcher": launcher, "gpus_per_node": count, "account": account(site)}
            for (runtime, launcher), count in product(both, gpu_counts(site))
        ]
    return found
