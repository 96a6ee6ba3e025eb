"""What the template knows of clusters, and what follows from the answers to its questions.

The modules. Each imports only those above it:

    wording          phrases that several messages share
    runtimes         container runtimes and launchers: which kind of site can have each, which image a runtime needs
    rules            kinds of values: each checks one, and says the same as JSON Schema
    schema           what a site file may hold
    defaults         the values of what a site file leaves out
    checks           whether an answer fits a site: choices, queues, nodes, GPUs, walltime
    contradictions   how the keys of one site file contradict each other
    slurm_commands   asks Slurm, and reads what it prints; needs no package, like the next two
    slurm_cluster    what a user may have of a Slurm cluster
    describe         writes a site file for the Slurm cluster that it is on
    sources          whether a file in sites/ names a source for each kind of fact
    sites            finds and reads site files
    detect           which site this machine belongs to
    extras           the extras: what each is for, which kind of site can have it, which ones the answers choose
    questions        the questions: prompt, rule, default, check
    answers          defaults and faults of a set of answers; asks again
    sbatch           options of sbatch that follow from the answers, and their reasons
    software         modules, packages, images, and the lines that load or enter them
    pages            text for documents
    first_job        the steps to the first job, with their minutes, and the table of sites that shows them
    files            which files of the template a project keeps
    provenance       where a project comes from: version, commit, the commands that write it again and link it
    plan             what follows from the answers, in one object for templates
    extension        the Jinja extension, and the list of functions that templates can call
    __main__         the command line

This file and __main__ hold nothing newer than Python 3.6 can read. So an old Python can say that it is too old.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036
    TOO_OLD = f"this template needs Python 3.9 or newer, and {sys.executable} is {sys.version.split()[0]}; "
    if "cookiecutter" not in sys.modules:  # the command line
        sys.exit(TOO_OLD + "call it with a newer one, as in python3.11 -m cluster_options")
    raise ImportError(TOO_OLD + "install cookiecutter with a newer one: pipx install --python python3.11 cookiecutter")

# `cruft update` runs the older and the newer version of the template in one process. Before version 1.2 all this was a
# file, cluster_options.py. Its class reloads the module of that name, which executes this file in the namespace of the
# older one, and then takes these three from there.
if "GLOBALS" in globals():
    from .extension import GLOBALS  # noqa: F401
    from .provenance import VERSION  # noqa: F401
    from .runtimes import LAUNCHER_ROWS  # noqa: F401
