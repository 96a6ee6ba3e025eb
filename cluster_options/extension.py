"""What cookiecutter loads: a Jinja extension that brings functions of this package into every rendered file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import jinja2
from jinja2.ext import Extension

from . import provenance
from .answers import complete, problems, refuse_problems, settle, suggest
from .commands import (
    cell,
    gpu_option,
    image_name,
    image_source,
    in_code,
    in_quotes,
    interactive_line,
    modules_of,
    nodes_of,
    overridable,
    pod_volumes,
    remarks,
)
from .detect import site_here
from .provenance import (
    VERSION,
    bake_command,
    instructions,
    left_out,
    link_command,
    scripts,
    template_files,
    template_source,
)
from .runtimes import LAUNCHER_ROWS
from .sbatch import (
    build_answers,
    cores_per_node,
    example_nodes,
    for_tests,
    has_own_queue,
    interactive_answers,
    node_facts,
    own_resources,
    pad,
    resources,
    warning,
)
from .sites import SITES, site_facts

PACKAGE = Path(__file__).resolve().parent
GLOBALS = [
    # answers: cookiecutter.json and the hooks
    complete,
    problems,
    refuse_problems,
    settle,
    suggest,
    # detect, sites
    site_here,
    site_facts,
    # sbatch
    build_answers,
    cores_per_node,
    example_nodes,
    for_tests,
    has_own_queue,
    interactive_answers,
    node_facts,
    own_resources,
    pad,
    resources,
    warning,
    # commands
    cell,
    gpu_option,
    image_name,
    image_source,
    in_code,
    in_quotes,
    interactive_line,
    modules_of,
    nodes_of,
    overridable,
    pod_volumes,
    remarks,
    # provenance
    bake_command,
    instructions,
    left_out,
    link_command,
    scripts,
    template_files,
    template_source,
]
CONSTANTS = {"LAUNCHER_ROWS": LAUNCHER_ROWS, "VERSION": VERSION}


def stamps() -> dict[Path, int]:
    """Return when each file of this package and each site file was written [ns]."""
    return {path: path.stat().st_mtime_ns for path in [*PACKAGE.glob("*.py"), *SITES.glob("*.yaml")]}


STAMPS = stamps()


class ClusterOptions(Extension):
    """Makes GLOBALS and CONSTANTS known to cookiecutter.json, to the hooks and to every rendered file."""

    def __init__(self, environment: jinja2.Environment) -> None:
        """Add them as globals.

        `cruft update` renders the older and the newer version of the template in one process, one after the other in
        the same folder. For the newer one, too, Python takes this class of the older one.
        """
        super().__init__(environment)
        provenance.commit.cache_clear()  # another one may be checked out now
        newest = sys.modules[__name__] if stamps() == STAMPS else import_anew()
        environment.globals.update({function.__name__: function for function in newest.GLOBALS})
        environment.globals.update(newest.CONSTANTS)


def import_anew() -> ModuleType:
    """Import the package again, because its files have changed; return this module of it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]:
        del sys.modules[name]
    # Python takes a compiled file for current if its source has the same size and was written in the same second.
    for compiled in PACKAGE.glob("__pycache__/*.pyc"):
        compiled.unlink(missing_ok=True)
    importlib.invalidate_caches()
    return importlib.import_module(__name__)
