"""The Jinja extension, and the list of functions of this package that templates can call."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import jinja2
from jinja2.ext import Extension

from . import answers, detect, files, pages, plan, provenance, runtimes, sbatch, sites, software

PACKAGE = Path(__file__).resolve().parent


def files_of_project(answers) -> dict[str, bool]:
    """Return files.files(), for the hooks, and have ClusterOptions.preprocess leave out the files that are not kept."""
    ClusterOptions.unneeded = frozenset(files.unneeded(answers))
    return files.files(answers)


# The first four serve cookiecutter.json, the next four the hooks, and the others every file. The last ones format text.
GLOBALS = [
    detect.site_here,
    answers.suggest,
    answers.settle,
    answers.refuse_problems,
    answers.complete,
    answers.problems,
    answers.skips_files,
    files_of_project,
    sites.site_facts,
    plan.plan_of,
    pages.bandwidths,
    pages.cell,
    pages.in_code,
    pages.nodes_of,
    pages.remarks,
    sbatch.pad,
    software.in_quotes,
    software.overridable,
]
CONSTANTS = {"LAUNCHER_ROWS": runtimes.LAUNCHER_ROWS, "VERSION": provenance.VERSION}


def stamps() -> dict[Path, int]:
    """Return when each file of this package and each site file was written [ns]."""
    return {path: path.stat().st_mtime_ns for path in [*PACKAGE.glob("*.py"), *sites.SITES.glob("*.yaml")]}


STAMPS = stamps()


class ClusterOptions(Extension):
    """Makes GLOBALS and CONSTANTS known to cookiecutter.json, to the hooks and to every rendered file.

    unneeded: the files that the project will not have. It is empty before the hook pre_gen_project.py has set it, and
        where cookiecutter runs no hooks. The hook and the files are rendered in different environments, so it is the
        class's.
    """

    unneeded: frozenset[str] = frozenset()

    def __init__(self, environment: jinja2.Environment) -> None:
        """Add them as globals.

        `cruft update` renders the older and the newer version of the template in one process, one after the other in
        the same folder. For the newer one, too, Python takes this class of the older one.
        """
        super().__init__(environment)
        provenance.commit.cache_clear()  # another one may be checked out now
        current = sys.modules[__name__] if stamps() == STAMPS else import_anew()
        environment.globals.update({function.__name__: function for function in current.GLOBALS})
        environment.globals.update(current.CONSTANTS)
        ClusterOptions.unneeded = frozenset()  # those of the project that was written before in this process

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Return no path for a file that the project does not keep. cookiecutter writes no file without a name."""
        return "" if source in ClusterOptions.unneeded else source


def import_anew() -> ModuleType:
    """Import the package again, because its files have changed; return this module of it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]:
        del sys.modules[name]
    # From its sources: Python takes compiled code for current if the source has the same size and was written in the
    # same second. No compiled code is below this path, and none can be written there.
    sys.pycache_prefix = os.devnull
    importlib.invalidate_caches()
    return importlib.import_module(__name__)
