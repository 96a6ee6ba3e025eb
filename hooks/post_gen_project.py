"""Finishes a written project: drops what its site does not need, restores run bits, says what to do next.

Runs in the new folder, also over a project that exists already and twice during `cruft update`: it removes files by
their names, only what was written just now, and asks nothing.
"""

from pathlib import Path

PROJECT = "{{ cookiecutter.project }}"
TITLE = {{site_facts(cookiecutter.site).title | tojson}}  # noqa: F821
KIND = "{{ site_facts(cookiecutter.site).kind }}"
RUNTIME = "{{ cookiecutter.runtime }}"
IMAGE_SOURCE = "{{ image_source(cookiecutter) }}"
RUNTIMES = {{site_facts(cookiecutter.site).runtimes}}  # noqa: F821
OFFLINE = {{site_facts(cookiecutter.site).internet is false}}  # noqa: F821
LAUNCHER = "{{ cookiecutter.launcher }}"
PUBLISHED = {{site_facts(cookiecutter.site).all_reduce != []}}  # noqa: F821
SCRIPTS = {{scripts()}}  # noqa: F821

SLURM, RUNAI = KIND == "slurm", KIND == "runai"
BUILDS_IMAGE = SLURM and IMAGE_SOURCE != ""
HOROVOD = LAUNCHER == "mpirun-ranks"
NEEDED = {
    "requirements.txt": not RUNAI,
    "benchmark/published.csv": PUBLISHED,
    "benchmark/pairs.py": KIND != "local",
    "local/submit.sh": KIND == "local",
    "local/lib.sh": KIND == "local",
    "launch/rank.sh": SLURM,
    "launch/spawn.py": SLURM,
    "slurm/submit_multinode.sh": SLURM,
    "slurm/lib.sh": SLURM,
    "slurm/minimal.sbatch": SLURM,
    "slurm/preflight.sh": SLURM,
    "slurm/preflight_node.sh": SLURM,
    "slurm/doctor.py": SLURM,
    "slurm/interactive.sh": SLURM,
    "slurm/interactive.rc": SLURM,
    "slurm/build_venv.sh": SLURM and "venv" in RUNTIMES,
    "slurm/build_horovod.sh": HOROVOD,
    "training/train_horovod.py": HOROVOD,
    "slurm/build_container.sh": BUILDS_IMAGE,
    "container/Dockerfile": BUILDS_IMAGE or RUNAI,
    "container/requirements.txt": BUILDS_IMAGE or RUNAI,
    "runai/submit_multinode.sh": RUNAI,
    "runai/interactive.sh": RUNAI,
    "runai/pod.sh": RUNAI,
    "runai/lib.sh": RUNAI,
    "runai/pod_lib.sh": RUNAI,
    "container/start.sh": SLURM and RUNTIME in ("enroot", "podman-hpc"),
    f"container/{PROJECT}.toml": SLURM and RUNTIME == "edf",
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
    "runai": [
        ("less README.md", "First run: how the project comes to a volume that pods see"),
        ("bash runai/submit_multinode.sh --dry-run", "the command for runai, without --dry-run it is submitted"),
    ],
}
BUILD = {
    "local": ("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt", "once"),
    "slurm": ("bash slurm/build_venv.sh", "once, on a compute node; go on when its output ends with ready:"),
}
BUILD_IMAGE = ("bash slurm/build_container.sh", "once; go on when its output ends with ready:")


def main() -> None:
    """Drop, restore, say."""
    began = Path(".began").stat().st_mtime_ns
    Path(".began").unlink()
    for path in [Path(name) for name, needed in NEEDED.items() if not needed]:
        if path.exists() and path.stat().st_mtime_ns >= began:  # older ones were kept by --skip-if-file-exists
            path.unlink()
        if path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()
    for path in filter(Path.exists, map(Path, SCRIPTS)):  # a template that came as a zip file has lost the run bits
        path.chmod(path.stat().st_mode | 0o111)

    steps = [(f"cd {PROJECT}", "settings: env.sh; all else: README.md")]
    if SLURM and OFFLINE and (RUNTIME == "venv" or BUILDS_IMAGE):
        steps.append(("less README.md", "First run: what has to be fetched before, as compute nodes have no internet"))
    steps += [BUILD[KIND]] if RUNTIME == "venv" else []
    steps += [BUILD_IMAGE] * BUILDS_IMAGE + FIRST_STEPS[KIND]
    width = max(len(command) for command, _ in steps)
    print(f"{PROJECT} is written for {TITLE}. Next:")
    for command, why in steps:
        print(f"  {command:{width}}  # {why}")


main()
