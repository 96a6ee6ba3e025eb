"""What does SNAPSHOT=1 cost? The submission of a job with a copy of the sources, and without one.

    python perf/snapshot.py [--files 3000] [--rounds 7]

Submits the training of a written project, and that of the same project in a repository with more files of 10 kB. sbatch
is a stand-in that ends at once, so the time is that of slurm/submit_multinode.sh and of the copy alone. In each round a
file has changed, as between two jobs of a day's work. The ways take turns, and the program prints medians.

Then it prints what extras/snapshot/enter.sh takes on each node before the launcher: one start of Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from start import QUIET, REPOSITORY, cpu_seconds, environment, time_of

sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests/template")]
from baking import bake  # noqa: E402
from sources import git, write  # noqa: E402

SIZE = 10_000  # bytes of each further file


def project(folder: Path, files: int) -> Path:
    """Write a project into a repository with further files, and commit all; return its folder."""
    project = bake(folder, site="slurm", account="x", extras="snapshot")
    write(folder, {f"library/part{n // 100}/file{n}.py": f"# {n}\n" + "x" * SIZE for n in range(files)})
    write(folder, {".gitignore": "logs/\n"})
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return project


def submission(project: Path, variables: dict[str, str], snapshot: str, turn: int) -> float:
    """Return the seconds of a submission, after an edit."""
    (project / "training/edited.py").write_text(f"turn = {turn}\n")
    command = ["bash", str(project / "slurm/submit_multinode.sh"), "training/train_ddp.py"]
    return time_of(command, {**variables, "SNAPSHOT": snapshot})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time of submissions with and without SNAPSHOT=1.")
    parser.add_argument("--files", type=int, default=3000, help="further files of the larger one (default: 3000)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way (default: 7)")
    args = parser.parse_args()
    if args.rounds < 1 or args.files < 1:
        parser.error("--rounds and --files: expected at least 1")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tool in ("sbatch", "srun"):
            (write(folder / "bin", {tool: "#!/bin/sh\nexit 0\n"}) / tool).chmod(0o755)
        variables = environment(HOME=name, PYTHON=sys.executable)
        variables["PATH"] = f"{folder}/bin:{variables['PATH']}"
        begin = cpu_seconds()
        for files in (0, args.files):
            (folder / str(files)).mkdir()
            ours = project(folder / str(files), files)
            times: dict[str, list[float]] = {"0": [], "1": []}
            for turn in range(args.rounds):
                for snapshot in ("0", "1") if turn % 2 else ("1", "0"):
                    times[snapshot].append(submission(ours, variables, snapshot, turn))
            count = len(git(folder / str(files), "ls-files").splitlines())
            without, copied = (statistics.median(times[way]) for way in ("0", "1"))
            print(f"{count:,} files: a submission takes {without:.2f} s without a copy, {copied:.2f} s with one")
        copies = [str(path.parent) for path in ours.glob("logs/snapshots/*/original")][:1]
        (folder / "packages.txt").touch()  # they are listed once for each job, beside the ranks
        enter = ["bash", str(ours / "extras/snapshot/enter.sh"), *copies, "--", "true"]
        times_of_enter = [time_of(enter, {**variables, "RUN_DIR": name}) for _ in range(args.rounds)]
        print(f"before the launcher on each node: {statistics.median(times_of_enter):.2f} s")
        wall, busy, own = (after - before for before, after in zip(begin, cpu_seconds()))
    others = max(0.0, busy - own) / wall
    print(f"\nOther work used {others:.0%} of a CPU meanwhile: {'quiet enough' if others <= QUIET else 'repeat it'}.")


if __name__ == "__main__":
    main()
