"""Finishes a written project: drops what its answers do not need, restores run bits, prints the next commands.

cookiecutter runs it in the project's folder, which may have held a project before. `cruft update` runs it twice. So it
asks no questions, and removes only files that were written just now, by their names. What was there before stands in
.being-written, the notes of pre_gen_project.py.
"""

import json
import shutil
from pathlib import Path

PROJECT = "{{ cookiecutter.project }}"
TITLE = {{site_facts(cookiecutter.site).title | tojson}}  # noqa: F821
KIND = "{{ site_facts(cookiecutter.site).kind }}"
RUNTIME = "{{ cookiecutter.runtime }}"
BUILDS_IMAGE = {{"slurm/build_container.sh" not in unneeded(cookiecutter) and builds_image(cookiecutter)}}  # noqa: F821
OFFLINE = {{site_facts(cookiecutter.site).internet is false}}  # noqa: F821
FILLS_WHEELS = {{packages_from(cookiecutter) == "folder"}}  # noqa: F821
SCRIPTS = {{scripts()}}  # noqa: F821
FILES = {{template_files(cookiecutter)}}  # noqa: F821
UNNEEDED = {{unneeded(cookiecutter)}}  # noqa: F821
LEFT_OUT = {{left_out(cookiecutter)}}  # noqa: F821
EXAMPLES = "{{ cookiecutter.examples }}"
ADDED = {{chosen_extras(cookiecutter) if is_adding(cookiecutter) else []}}  # noqa: F821
BROUGHT = {{brought_extras(cookiecutter)}}  # noqa: F821
LOST = {{extras_lost(cookiecutter)}}  # noqa: F821
LAUNCHER = "{{ cookiecutter.launcher }}"
PAGE = "{{ instructions(cookiecutter) }}"

SUBMIT = "bash local/submit.sh" if KIND == "local" else f"bash {KIND}/submit_multinode.sh"
FIRST_JOBS = [
    (f"{SUBMIT} check/ranks.py", "checks the node, GPU and network of each rank"),
    (SUBMIT, "trains 200 steps"),
]
if EXAMPLES == "no":
    FIRST_JOBS[1] = (f"{SUBMIT} PROGRAM.py", "a program of yours; its arguments may follow")
FIRST_STEPS = {
    "local": FIRST_JOBS,
    "slurm": FIRST_JOBS,
    "runai": [
        (f"less {PAGE}", "how to copy the project to a volume that pods see (First run)"),
        (f"{SUBMIT} --dry-run", "prints the command for runai; without --dry-run submits it"),
    ],
}
PACKAGES = ("echo torch >requirements.txt", "the packages of your programs, one a line")
BUILD = {
    "local": ("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt", "once"),
    "slurm": ("bash slurm/build_venv.sh", "once; go on when its output ends with ready:"),
}
BUILD_IMAGE = ("bash slurm/build_container.sh", "once; go on when its output ends with ready:")


def restore(there: dict) -> None:
    """Bring back the user's files of LEFT_OUT that cookiecutter has written over just now.

    there: the files that were there before, with the time [ns] when each was written.
    """
    for name in LEFT_OUT:
        if name in there and Path(name).stat().st_mtime_ns != there[name]:
            shutil.copy2(f".being-written/files/{name}", name)


def drop(there: dict, empty_folders: list) -> None:
    """Remove what was written just now and is not needed, and the folders that this leaves empty."""
    for path in map(Path, UNNEEDED):
        if path.exists() and path.stat().st_mtime_ns != there.get(str(path)):
            path.unlink()
        for folder in list(path.parents)[:-1]:  # but for the project itself
            if folder.is_dir() and not any(folder.iterdir()) and str(folder) not in empty_folders:
                folder.rmdir()


def say_what_was_kept(kept: list) -> None:
    """Tell of files that --skip-if-file-exists has kept: the template's own, of an earlier run, or the user's."""
    if not kept:
        return
    if len(kept) == len(FILES) - len(UNNEEDED):
        print(f"All {len(kept)} files were in {PROJECT} before, and none was changed.")
        return
    print("These files were there before, and were kept:", *kept, sep="\n  ")
    print("If one of them is yours, rename it and run this again: the scripts need the template's file of that name.")


def say_what_an_update_takes_away() -> None:
    """Tell of what version 1 had in each project, before cruft asks whether to go on."""
    if LOST:
        print("This update takes away what are extras since version 2, and no part of each project any more:")
        print(f"  {', '.join(LOST)}")
        print("To keep them, answer n below, and type:")
        print("""  cruft update --variables-to-update '{"extras": "all"}'""")


def main() -> None:
    """Drop, restore, say."""
    before = json.loads(Path(".being-written/there.json").read_text())
    there = before["files"]
    restore(there)
    drop(there, before["empty folders"])
    shutil.rmtree(".being-written")
    needed = [Path(name) for name in FILES if name not in UNNEEDED and Path(name).exists()]
    kept = [str(path) for path in needed if path.stat().st_mtime_ns == there.get(str(path))]
    for path in needed:  # a template that came as a zip file has lost the run bits
        if str(path) in SCRIPTS and str(path) not in kept:
            path.chmod(path.stat().st_mode | 0o111)

    steps = [(f"cd {PROJECT}", f"settings: env.sh; instructions: {PAGE}")]
    steps += [(f"less extras/{name}/README.md", f"an extra that launcher={LAUNCHER} brings along") for name in BROUGHT]
    if KIND == "slurm" and OFFLINE and (BUILDS_IMAGE or (RUNTIME == "venv" and FILLS_WHEELS)):
        steps.append((f"less {PAGE}", "what to fetch first, as compute nodes have no internet (First run)"))
    if RUNTIME == "venv":
        steps += [PACKAGES] * (not Path("requirements.txt").exists()) + [BUILD[KIND]]
    steps += [BUILD_IMAGE] * BUILDS_IMAGE + FIRST_STEPS[KIND]
    written = f"{PROJECT} is written for {TITLE}." if EXAMPLES == "yes" else f"{PROJECT} can run on {TITLE}."
    if ADDED:
        written = f"{PROJECT} has {', '.join(f'extras/{name}' for name in ADDED)} now."
        steps = [steps[0], *((f"less extras/{name}/README.md", "what it does, and its settings") for name in ADDED)]
    width = max(len(command) for command, _ in steps)
    say_what_was_kept(kept)
    say_what_an_update_takes_away()
    print(f"{written} Next:")
    for command, why in steps:
        print(f"  {command:{width}}  # {why}")


main()
