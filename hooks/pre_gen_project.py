"""Refuses answers that the cluster would refuse. The questions check them too, but a replay and cruft ask none.

It also refuses a project that has a folder where the template writes a file, or a file where the template writes a
folder.

Then it notes in the file .files-before.json what is there already. post_gen_project.py reads and removes this file.
"""

import json
import sys
from pathlib import Path

# A replay of an older version lacks some answers. The next line fills them in, before the lines below read them. It
# stands in a comment because it leaves no text.
# {{ complete(cookiecutter) }}
PROBLEMS = {{problems(cookiecutter)}}  # noqa: F821  (rendered by cookiecutter: a list of sentences)
FILES = {{files_of_project(cookiecutter) if not problems(cookiecutter) else {}}}  # noqa: F821
EXTRAS = {{cookiecutter.extras | tojson}}  # noqa: F821

folders = sorted({str(folder) for name in FILES for folder in Path(name).parents})
for path in map(Path, [*folders, *(name for name, kept in FILES.items() if kept)]):
    if path.is_symlink() and not path.exists():  # cookiecutter would fail there, in the middle
        PROBLEMS.append(f"'{path}' is a link to nowhere, and the template writes there: remove it, or mend it")
for folder in filter(Path.exists, map(Path, folders)):
    if not folder.is_dir():
        PROBLEMS.append(f"'{folder}' is a file, and the template writes a folder of this name: rename yours")
for name, kept in FILES.items():
    if kept and Path(name).is_dir():  # cookiecutter would leave out the file silently
        PROBLEMS.append(f"'{name}' is a folder, and the template writes a file of this name: rename yours")
if EXTRAS.startswith("+") and not Path("launch/extras.sh").exists():
    written = f"write the project with extras={EXTRAS[1:]}"
    PROBLEMS.append(f"extras={EXTRAS} adds to a project of this template, and {Path.cwd()} is none: {written}")
if PROBLEMS:
    print("Nothing was written, because of", *PROBLEMS, sep="\n  ", file=sys.stderr)
    sys.exit(1)

there = [name for name in FILES if Path(name).exists()]
empty = [folder for folder in folders if Path(folder).is_dir() and not any(Path(folder).iterdir())]
Path(".files-before.json").write_text(json.dumps({"files": there, "empty folders": empty}))
