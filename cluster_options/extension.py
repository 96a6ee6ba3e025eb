"""The Jinja extension, and the list of functions of this package that templates can call."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import jinja2
from jinja2.ext import Extension

from . import (
    answers,
    detect,
    extras,
    files,
    first_job,
    pages,
    provenance,
    runtimes,
    sbatch,
    sites,
    software,
)

PACKAGE = Path(__file__).resolve().parent


def files_of_project(answers) -> dict[str, bool]:
    """Return files.files(), for the hooks, and have ClusterOptions.preprocess leave out the files that are not kept."""
    ClusterOptions.unneeded = frozenset(files.unneeded(answers))
    return files.files(answers)


GLOBALS = [
    answers.complete,
    answers.problems,
    answers.refuse_problems,
    answers.settle,
    answers.skips_files,
    answers.suggest,
    detect.site_here,
    sites.site_facts,
    sbatch.build_answers,
    sbatch.cores_per_node,
    sbatch.example_nodes,
    sbatch.for_tests,
    sbatch.has_own_queue,
    sbatch.interactive_answers,
    sbatch.job_limit,
    sbatch.longest_shell,
    sbatch.node_facts,
    sbatch.own_resources,
    sbatch.pad,
    sbatch.real_size,
    sbatch.requeue_option,
    sbatch.resources,
    sbatch.test_queue,
    sbatch.warning,
    software.add_package,
    pages.bandwidths,
    software.builds_image,
    software.builds_on_login_node,
    pages.cell,
    pages.copy_target,
    software.gpu_option,
    software.image_name,
    software.image_source,
    pages.in_code,
    software.in_quotes,
    software.interactive_line,
    pages.local_disk,
    software.module_lines,
    software.modules_of,
    pages.nodes_of,
    software.overridable,
    software.packages_from,
    software.pip_index,
    pages.placeholders,
    software.pod_volumes,
    pages.project_folder,
    software.pull_command,
    software.pulls_image,
    pages.remarks,
    pages.rsync_command,
    pages.ssh_command,
    pages.told,
    software.torch_pin,
    pages.unless_told,
    extras.brought_extras,
    extras.chosen_extras,
    extras.extra_launchers,
    extras.extra_settings,
    extras.extras_of,
    extras.is_adding,
    files.in_container,
    files.instructions,
    files_of_project,
    first_job.software_minutes,
    provenance.add_command,
    provenance.bake_command,
    provenance.extras_lost,
    provenance.link_command,
    provenance.template_source,
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
