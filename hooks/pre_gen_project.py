"""Refuses what the cluster would refuse, whichever way the answers came: a replay and cruft ask no questions."""

import sys

PROBLEMS = {{problems(cookiecutter)}}  # noqa: F821  (rendered by cookiecutter: a list of sentences)

if PROBLEMS:
    print("Nothing was written, because of", *PROBLEMS, sep="\n  ", file=sys.stderr)
    sys.exit(1)
