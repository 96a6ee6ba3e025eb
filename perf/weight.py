"""How much is a written project, and how much of it does a job read or run?

    python perf/weight.py

Prints files and lines of written projects, folder by folder: of the default answers, of examples=no and of extras=all,
for Slurm, Run:ai and one machine. Pictures have no lines. Then it submits the check of the ranks and the training
of a default project to a real Slurm of two nodes, and lists which files of the project strace has seen opened or
started, by the submission, by the job's scripts, and by what the job starts on its nodes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/clusters", "tests/slurm")]

from baking import bake  # noqa: E402  (it lies in another folder)
from slurm_cluster import Cluster  # noqa: E402
from two_nodes import ANSWERS, ENVIRONMENT  # noqa: E402

PROJECTS = {
    "slurm": [{}, {"examples": "no"}, {"extras": "all"}],
    "runai": [{}, {"examples": "no"}, {"extras": "all"}],
    "local": [{}, {"examples": "no"}, {"extras": "all"}],
}
ACCOUNTS = {"runai": {"account": "lab"}}
PICTURES = {".png", ".svg"}
JOBS = {"check/ranks.py": [], "training/train_ddp.py": ["--steps", "2"]}


def lines_of(path: Path) -> int:
    """Return the lines of a file; 0 for a picture."""
    return 0 if path.suffix in PICTURES else len(path.read_text().splitlines())


def files_of(project: Path) -> list[Path]:
    """Return the names of all files of a project."""
    return sorted(path.relative_to(project) for path in project.rglob("*") if path.is_file())


def table(site: str, folder: Path) -> None:
    """Print a column for each project of a site, a row for each folder: files, lines."""
    columns, names = [], []
    for answers in PROJECTS[site]:
        names.append(" ".join(f"{name}={answer}" for name, answer in answers.items()) or "default")
        project = bake(folder / f"{site}-{len(names)}", site=site, **ACCOUNTS.get(site, {}), **answers)
        files, lines = Counter(), Counter()
        for name in files_of(project):
            room = name.parts[0] if len(name.parts) > 1 else "."
            files[room] += 1
            lines[room] += lines_of(project / name)
        columns.append((files, lines))
    print(f"\n{site:12}" + "".join(f"{name:>22}" for name in names))
    for room in sorted({room for files, _ in columns for room in files}):
        print(f"{room:12}" + "".join(f"{files[room]:12}{lines[room]:10,}" for files, lines in columns))
    print(f"{'all':12}" + "".join(f"{files.total():12}{lines.total():10,}" for files, lines in columns))


def seen(trace: Path, project: Path) -> set[str]:
    """Return the names of files that a trace has as opened or started, as a project names its own."""
    paths = set()
    for line in trace.read_text(errors="replace").splitlines():
        found = re.search(r'(?:openat\(\S+|execve\(|open\()\s*"([^"]+)".* = \d', line)
        if found:  # jobs begin in the project's folder
            paths.add(os.path.relpath(os.path.normpath(project / found[1]), project))
    return paths


def job_reads(folder: Path, program: str, arguments: list[str]) -> None:
    """Submit a program to a new Slurm of two nodes, and print the files of the project that are read or run."""
    project = bake(folder / "project", **ANSWERS)
    ours = set(map(str, files_of(project)))
    with Cluster(folder / "cluster", nodes=2) as cluster:
        daemons = subprocess.check_output(["pgrep", "-x", "slurmd"], text=True).split()
        follow = ["strace", "-f", "-s", "500", "-e", "trace=openat,open,execve", "-o", folder / "job"]
        on_nodes = subprocess.Popen(
            [*follow, *(word for pid in daemons for word in ("-p", pid))], stderr=subprocess.PIPE, text=True
        )
        while "attached" not in (line := on_nodes.stderr.readline()):
            if not line:
                sys.exit("strace cannot follow the tests' slurmd")
        time.sleep(1)  # until it follows all of them
        submit = [*follow[:-1], folder / "submission", "bash", "slurm/submit_multinode.sh", program, *arguments]
        done = cluster.run(*submit, cwd=project, env=ENVIRONMENT)
        job = cluster.wait(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))
        if job.state != "COMPLETED":
            sys.exit(f"{program}: {job.state}\n{job.output}")
        on_nodes.terminate()
        on_nodes.wait()
    read = (seen(folder / "submission", project) | seen(folder / "job", project)) & ours
    scripts = {name for name in read if not name.startswith(("training/", "check/"))}
    print(f"\n{program}: {len(scripts)} files, {sum(lines_of(project / name) for name in scripts):,} lines of the core")
    for name in sorted(read):
        print(f"  {lines_of(project / name):6,}  {name}{'' if name in scripts else '  (the program)'}")


def main() -> None:
    """Print the tables, and what two jobs read."""
    with tempfile.TemporaryDirectory(prefix="weight-") as temporary:
        folder = Path(temporary)
        for site in PROJECTS:
            table(site, folder)
        if not shutil.which("strace"):
            print("\nwhat a job reads: not known without strace")
            return
        for number, (program, arguments) in enumerate(JOBS.items()):
            (folder / str(number)).mkdir()
            job_reads(folder / str(number), program, arguments)


if __name__ == "__main__":
    main()
