"""Finishes a written project: drops what its site does not need, restores run bits, says what to do next.

Runs in the new folder, also over a project that exists already and twice during `cruft update`: it removes files by
their names, only what the template itself wrote, and asks nothing.
"""

from pathlib import Path

PROJECT = "{{ cookiecutter.project }}"
TITLE = {{site_facts(cookiecutter.site).title | tojson}}  # noqa: F821
KIND = "{{ site_facts(cookiecutter.site).kind }}"
RUNTIME = "{{ cookiecutter.runtime }}"

ONLY_FOR = {
    "local": ["local/submit.sh"],
    "slurm": ["slurm/submit_multinode.sh", "slurm/interactive.sh", "slurm/interactive.rc", "slurm/build_venv.sh"],
}
FIRST_STEPS = {
    "local": [
        ("bash local/submit.sh check/ranks.py", "who is rank N: the table to read before anything else"),
        ("bash local/submit.sh", "the same, then a short training"),
    ],
    "slurm": [
        ("bash slurm/submit_multinode.sh check/ranks.py", "who is rank N: the table to read before anything else"),
        ("bash slurm/submit_multinode.sh", "the same, then a short training"),
    ],
}
BUILD = {
    "local": ("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt", "once"),
    "slurm": ("bash slurm/build_venv.sh", "once, on a compute node; go on when its output ends with ready:"),
}


def main() -> None:
    """Drop, restore, say."""
    for kind, files in ONLY_FOR.items():
        for name in files:
            if kind != KIND:
                Path(name).unlink(missing_ok=True)
        folder = Path(files[0]).parent
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for name in ["env.sh", "launch/torchrun.sh", *ONLY_FOR[KIND]]:
        if name.endswith(".sh"):  # a template that came as a zip file has lost the run bits
            Path(name).chmod(Path(name).stat().st_mode | 0o111)

    steps = [(f"cd {PROJECT}", "settings: env.sh; all else: README.md")]
    steps += [BUILD[KIND]] * (RUNTIME == "venv") + FIRST_STEPS[KIND]
    width = max(len(command) for command, _ in steps)
    print(f"{PROJECT} is written for {TITLE}. Next:")
    for command, why in steps:
        print(f"  {command:{width}}  # {why}")


main()
