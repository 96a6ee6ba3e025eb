"""Refuses what the cluster would refuse, whichever way the answers came: a replay and cruft ask no questions.

Then it notes in .being-written which of the template's files are there already, for post_gen_project.py.
"""

import json
import shutil
import sys
from pathlib import Path

# {{ complete(cookiecutter) }}
PROBLEMS = {{problems(cookiecutter)}}  # noqa: F821  (rendered by cookiecutter: a list of sentences)
FILES = {{template_files(cookiecutter)}}  # noqa: F821
LEFT_OUT = {{left_out(cookiecutter)}}  # noqa: F821

FOLDERS = sorted({str(folder) for name in FILES for folder in Path(name).parents})
for folder in filter(Path.exists, map(Path, FOLDERS)):
    if not folder.is_dir():
        PROBLEMS.append(f"'{folder}' is a file, and the template writes a folder of this name: rename yours")
if PROBLEMS:
    print("Nothing was written, because of", *PROBLEMS, sep="\n  ", file=sys.stderr)
    sys.exit(1)

Path(".being-written").mkdir(exist_ok=True)
there = {name: Path(name).stat().st_mtime_ns for name in FILES if Path(name).exists()}
empty = [folder for folder in FOLDERS if Path(folder).is_dir() and not any(Path(folder).iterdir())]
Path(".being-written/there.json").write_text(json.dumps({"files": there, "empty folders": empty}))
for number, name in enumerate(LEFT_OUT):  # --overwrite-if-exists alone overwrites these too, and they are the user's
    if Path(name).is_file():
        shutil.copy2(name, f".being-written/{number}")
