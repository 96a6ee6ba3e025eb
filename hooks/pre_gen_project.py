"""Refuses answers that the cluster would refuse. The questions check them too, but a replay and cruft ask none.

It also refuses a project that has a folder where the template has a file. The reverse, a file where the template has a
folder, is refused too. So is a project in which an earlier run was interrupted.

Then it makes the folder .being-written. post_gen_project.py reads and removes this folder:

    there.json   the template's files that are there already, each with the time of its last change (mtime) [ns],
                 and the template's folders that are there and empty
    files/       copies of the user's files that have a name in LEFT_OUT
"""

import json
import shutil
import sys
from pathlib import Path

# A replay of an older version lacks some answers. The next line fills them in, before the lines below read them. The
# line after it spares the rendering of files that post_gen_project.py removes. Both stand in comments because they
# leave no text.
# {{ complete(cookiecutter) }}
# {{ leave_out_other_kinds is defined and leave_out_other_kinds(cookiecutter) }}
PROBLEMS = {{problems(cookiecutter)}}  # noqa: F821  (rendered by cookiecutter: a list of sentences)
FILES = {{template_files(cookiecutter)}}  # noqa: F821
# The template's files that this project does not keep, and that are the user's own if they are there. cookiecutter
# writes them all the same. With --overwrite-if-exists it writes over the user's files of these names.
# post_gen_project.py then copies the user's files back.
LEFT_OUT = {{left_out(cookiecutter) if not problems(cookiecutter) else []}}  # noqa: F821
EXTRAS = "{{ cookiecutter.extras }}"
ADDING = {{is_adding(cookiecutter)}}  # noqa: F821

FOLDERS = sorted({str(folder) for name in FILES for folder in Path(name).parents})
for folder in filter(Path.exists, map(Path, FOLDERS)):
    if not folder.is_dir():
        PROBLEMS.append(f"'{folder}' is a file, and the template writes a folder of this name: rename yours")
for name in FILES:
    if name not in LEFT_OUT and Path(name).is_dir():  # cookiecutter would leave out the file silently
        PROBLEMS.append(f"'{name}' is a folder, and the template writes a file of this name: rename yours")
if Path(".being-written").exists():
    PROBLEMS.append(
        "an earlier run was interrupted, and may have overwritten files of yours: to get them back, run in "
        f"{Path.cwd()} 'cp -a .being-written/files/. .', then 'rm -r .being-written'"
    )
if ADDING and not Path("launch/extras.sh").exists():
    written = f"write the project with extras={EXTRAS[1:]}"
    PROBLEMS.append(f"extras={EXTRAS} adds to a project of this template, and {Path.cwd()} is none: {written}")
if PROBLEMS:
    print("Nothing was written, because of", *PROBLEMS, sep="\n  ", file=sys.stderr)
    sys.exit(1)

there = {name: Path(name).stat().st_mtime_ns for name in FILES if Path(name).exists()}
empty = [folder for folder in FOLDERS if Path(folder).is_dir() and not any(Path(folder).iterdir())]
unfinished = Path(".being-written.unfinished")  # becomes .being-written when all copies are complete
shutil.rmtree(unfinished, ignore_errors=True)
(unfinished / "files").mkdir(parents=True)
(unfinished / "there.json").write_text(json.dumps({"files": there, "empty folders": empty}))
for name in LEFT_OUT:
    if Path(name).is_file():
        (unfinished / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, unfinished / "files" / name)
unfinished.rename(".being-written")
