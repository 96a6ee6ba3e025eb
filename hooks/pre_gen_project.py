"""Refuses what the cluster would refuse, whichever way the answers came: a replay and cruft ask no questions."""

import sys
from pathlib import Path

# {{ complete(cookiecutter) }}
PROBLEMS = {{problems(cookiecutter)}}  # noqa: F821  (rendered by cookiecutter: a list of sentences)

if PROBLEMS:
    print("Nothing was written, because of", *PROBLEMS, sep="\n  ", file=sys.stderr)
    sys.exit(1)

Path(".began").touch()  # what post_gen_project.py finds older than this was there before
