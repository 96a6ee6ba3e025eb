"""Writes projects from the template as cookiecutter's command line would."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from itertools import product
from pathlib import Path
from typing import IO, NoReturn

from cookiecutter import config, generate, hooks
from cookiecutter.cli import main as command
from cookiecutter.environment import StrictEnvironment
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter as write

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
sys.dont_write_bytecode = True  # byte code in the template's folder would be written into every project
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

from cluster_options import provenance  # noqa: E402
from cluster_options.answers import suggest  # noqa: E402  (the package lies beside cookiecutter.json)
from cluster_options.extension import ClusterOptions  # noqa: E402
from cluster_options.runtimes import IN_SRUN  # noqa: E402
from cluster_options.sbatch import node_facts  # noqa: E402
from cluster_options.sites import site_facts, site_names  # noqa: E402

TEMPLATE = REPOSITORY / "{{cookiecutter.project}}"
FIRST_BAKES = tempfile.TemporaryDirectory()
BAKED = {}  # projects there, by their answers and the text of a site's file
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


def cookiecutter(
    *arguments: object, home: Path, cwd: Path | None = None, **answers: object
) -> subprocess.CompletedProcess:
    """Run the cookiecutter command in `home`, or in `cwd`; its own files (replay, cloned templates) go to `home`.

    It runs in a fork of this process, which has imported all that it needs and compiled the templates.
    """
    if not COMPILED:
        with tempfile.TemporaryDirectory() as folder:
            bake(Path(folder), site="slurm")
    words = [*map(str, arguments), *(f"{name}={answer}" for name, answer in answers.items())]
    environment = {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8"}
    environment["PWD"] = str(cwd or home)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = os.fork()
        if not process:
            become_cookiecutter(words, cwd or home, environment, out, err)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["cookiecutter", *words], code, out.read(), err.read())


def become_cookiecutter(
    words: list[str], cwd: Path, environment: dict[str, str], out: IO[str], err: IO[str]
) -> NoReturn:
    """Be the cookiecutter command from here on."""
    code = 1
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out.fileno(), err.fileno())):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        # These were read from the other HOME and folder when the modules were imported.
        provenance.STARTED_IN = Path.cwd()
        config.USER_CONFIG_PATH = os.path.expanduser("~/.cookiecutterrc")
        config.DEFAULT_CONFIG["cookiecutters_dir"] = os.path.expanduser("~/.cookiecutters/")
        config.DEFAULT_CONFIG["replay_dir"] = os.path.expanduser("~/.cookiecutter_replay/")
        command(words, "cookiecutter")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def typed(line: str, cwd: Path, home: Path) -> subprocess.CompletedProcess:
    """Run a line of bash that calls cookiecutter once: bash takes it apart, and cookiecutter() gets the words."""
    script = f'cookiecutter() {{ printf \'%s\\0\' "$@" >"$HOME/words"; }}\n{line}'
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    environment["PWD"] = str(cwd or home)
    subprocess.run(["bash", "-ec", script], cwd=cwd, env=environment, check=True)
    words = (home / "words").read_text().split("\0")[:-1]
    (home / "words").unlink()
    return cookiecutter(*words, home=home, cwd=cwd)


def bake(folder: Path, *arguments: object, **answers: object) -> Path:
    """Write a project into `folder` and return its path; fails with cookiecutter's message if it is refused.

    In this process, unless there are `arguments` for the command: hundreds of projects are written. Those of the same
    answers are copies of the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers = {"project": "demo", **{name: str(answer) for name, answer in answers.items()}}
    project = folder / answers["project"]
    if arguments:
        done = cookiecutter("--no-input", "-o", folder, *arguments, REPOSITORY, home=folder, **answers)
        assert done.returncode == 0, done.stdout + done.stderr
        return project
    site = Path(answers.get("site", ""))
    key = (*sorted(answers.items()), site.read_text() if site.is_file() else "")
    if key not in BAKED:
        first = Path(tempfile.mkdtemp(dir=FIRST_BAKES.name))
        (first / "config").write_text(f"replay_dir: {json.dumps(str(first / 'replay'))}\n")
        options = {"no_input": True, "output_dir": str(first), "config_file": str(first / "config")}
        write(str(REPOSITORY), extra_context=answers, **options)
        BAKED[key] = first / answers["project"]
    shutil.copytree(BAKED[key], project, symlinks=True)
    return project


def given(answers: dict[str, object]) -> dict[str, str]:
    """Return the answers with which bake() writes the same project, without those that are the site's defaults."""
    site, runtime = str(answers["site"]), str(answers.get("runtime", ""))
    text = {"project": "demo", **{name: str(answer) for name, answer in answers.items()}}
    needed = ("project", "site")
    return {name: answer for name, answer in text.items() if name in needed or answer != suggest(site, name, runtime)}


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
    return facts["account"].get("example", "abc") if "account" in facts["required"] else ""


def gpu_counts(site: str) -> list[str]:
    """Return the numbers of GPUs per node that are worth a test: what the suggested queue gives, Enter, and one."""
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
    return list(dict.fromkeys([str(count), suggest(site, "gpus_per_node"), "1"]))


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
