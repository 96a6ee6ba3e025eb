"""Finishes a written project: removes superfluous files, and prints the next commands.

cookiecutter runs it in the project's folder, which may have held a project before. It asks no questions, as `cruft
update` runs it twice.
"""

import json
import os
import shlex
from pathlib import Path

PROJECT = "{{ cookiecutter.project }}"
OUTPUT_FOLDER = {{cookiecutter._output_dir | default("") | tojson}}  # noqa: F821  (cruft has none, and moves the project)
TITLE = {{site_facts(cookiecutter.site).title | tojson}}  # noqa: F821
KIND = "{{ site_facts(cookiecutter.site).kind }}"
LAUNCHER = "{{ cookiecutter.launcher }}"
EXAMPLES = "{{ cookiecutter.examples }}"
FILES = {{files_of_project(cookiecutter)}}  # noqa: F821
SKIPS = {{skips_files()}}  # noqa: F821
ADDED = {{plan_of(cookiecutter).added_extras}}  # noqa: F821
BROUGHT = {{plan_of(cookiecutter).brought_extras}}  # noqa: F821
LOST = {{plan_of(cookiecutter).extras_lost}}  # noqa: F821


def remove_unneeded(there: list, empty_folders: list) -> None:
    """Remove superfluous files of this run, and the folders that they leave empty.

    Only `cruft update` from an older version writes superfluous files. Files from before the run stay.
    """
    for path in (Path(name) for name, kept in FILES.items() if not kept):
        if path.is_file() and str(path) not in there:
            path.unlink()
        for folder in list(path.parents)[:-1]:  # but for the project itself
            is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
            if is_empty and str(folder) not in empty_folders:
                folder.rmdir()


def say_what_is_left_over(there: list) -> None:
    """List the files from before the run that the answers do not need: an earlier run's, or the user's own."""
    names = {}
    for name, kept in FILES.items():
        if name in there and not kept:
            folder, file = os.path.split(name)
            names.setdefault(f"{folder}/" if folder else "", []).append(file)
    if names:
        print("These files were here before, and stay, although your answers do not need them:")
        for folder, files in names.items():
            print(f"  {folder}: {', '.join(files)}" if folder else f"  {', '.join(files)}")
        print("Remove all but your own. An extra among them takes part in each job.")


def say_what_was_kept(there: list) -> None:
    """List the files that --skip-if-file-exists has kept: the template's from an earlier run, or the user's."""
    needed = [name for name, kept in FILES.items() if kept]
    kept = [name for name in needed if name in there]
    if len(kept) == len(needed):
        print(f"All {len(kept)} files were in {PROJECT} before, and none was changed.")
    elif kept:
        named = ", ".join(kept[:5]) + ", ..." * (len(kept) > 5)
        print(f"Of the template's {len(needed)} files, {len(kept)} were there before, and were kept: {named}")
        print("If one of them is yours, rename it and run this again: the scripts need the template's file.")


def say_what_an_update_takes_away() -> None:
    """Name the parts of each project of version 1 that are extras now, before cruft asks whether to go on."""
    if LOST:
        print("Since version 2 these are extras, which a project has only on demand. This update takes them away:")
        print(f"  {', '.join(LOST)}")
        print("To keep them, answer n below, and type:")
        print("""  cruft update --variables-to-update '{"extras": "all"}'""")


def path_from_the_shell() -> str:
    """Return the project's path: relative if it lies below the shell's folder, else absolute."""
    if not OUTPUT_FOLDER:
        return PROJECT
    shell = os.environ.get("PWD", "?")
    path = os.path.join(OUTPUT_FOLDER, PROJECT)
    return path[len(shell) + 1 :] if path.startswith(f"{shell}/") else path


def say_what_comes_next() -> None:
    """Say that the project is written, and print the commands that open its README."""
    if ADDED:
        written = f"{PROJECT} has {', '.join(f'extras/{name}' for name in ADDED)} now."
        pages = [f"extras/{name}/README.md" for name in ADDED]
    elif EXAMPLES == "no":  # a project that exists has a README.md of its own
        written, pages = f"{PROJECT} can run on {TITLE}.", [f"{KIND}/README.md"]
    else:
        written, pages = f"{PROJECT} is written for {TITLE}.", ["README.md"]
    print(f"{written} Next:")
    print(f"  cd {shlex.quote(path_from_the_shell())}")
    for page in pages:
        print(f"  less {page}")
    for name in BROUGHT:
        print(f"  less extras/{name}/README.md  # an extra that launcher={LAUNCHER} brings along")


note = Path(".files-before.json")
before = json.loads(note.read_text())
note.unlink()
remove_unneeded(before["files"], before["empty folders"])
if SKIPS:
    say_what_was_kept(before["files"])
elif not ADDED and EXAMPLES == "yes":  # else files of these names are the user's, or the project's extras
    say_what_is_left_over(before["files"])
say_what_an_update_takes_away()
say_what_comes_next()
