"""Record what README.md shows: a session on the login node of a real Slurm cluster, and two figures from jobs on it.

    make pictures        (six minutes)

The cluster is that of the tests: four nodes of two ranks each, which are namespaces of this machine. So the session and
the losses are those of any cluster, the bandwidth is that of this machine's memory.
"""

from __future__ import annotations

import os
import platform
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
README = REPOSITORY / "README.md"
ANSWERS = {"Where Python and torch come from": "none"}  # the Python on PATH

sys.path.insert(0, str(REPOSITORY / "tests/clusters"))
from slurm_cluster import Cluster  # noqa: E402  (the cluster of the tests)


def answer(command: list[str]) -> None:
    """Run a command in a terminal, and print what a person sees who presses Enter where ANSWERS has nothing."""
    os.environ["TERM"] = "dumb"  # no colours
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    seen = question = ""
    while True:
        try:
            question += os.read(terminal, 1000).decode()
        except OSError:  # it has ended
            break
        if question.endswith("): "):
            typed = next((text for words, text in ANSWERS.items() if words in question), "")
            os.write(terminal, f"{typed}\n".encode())
            seen, question = seen + question, ""
    sys.stdout.write((seen + question).replace("\r\n", "\n"))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def put(marker: str, text: str) -> None:
    """Put a block between <!-- marker --> and the next <!-- end --> of README.md."""
    old = README.read_text()
    new, count = re.subn(rf"(<!-- {marker} -->\n).*?(<!-- end -->)", lambda m: m[1] + text + m[2], old, flags=re.S)
    if count != 1:
        sys.exit(f"README.md: expected one <!-- {marker} -->, found {count}")
    README.write_text(new)


def session(cluster: Cluster) -> str:
    """Return the session as text; the project is left in the home folder."""
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, cluster.home / "template"], check=True)
    shown = ""

    def typed(line: str, *command: str | Path, cwd: Path = cluster.home, **options) -> None:
        nonlocal shown
        said = cluster.run(*command, cwd=cwd, timeout=300, **options).stdout
        shown += f"$ {line}\n" + "".join(f"{row.rstrip()}\n" for row in said.splitlines())

    cookiecutter = Path(sys.executable).with_name("cookiecutter")
    home = {"HOME": str(cluster.home)}
    shown += "$ source venv/bin/activate\n"  # has torch and cookiecutter
    typed("cookiecutter template", sys.executable, __file__, "answer", cookiecutter, "template", env=home)
    project = cluster.home / "demo"
    shown += "$ cd demo\n"
    python = {"PYTHON": sys.executable}  # that has torch
    submit = ("bash", "slurm/submit_multinode.sh")
    typed("bash slurm/submit_multinode.sh", *submit, cwd=project, env=python)
    job = cluster.wait(1, timeout=300)
    if job.state != "COMPLETED":
        sys.exit(job.output)
    typed("cat demo-1.out", "cat", "demo-1.out", cwd=project)
    return shown.replace(str(cluster.home), "~")


def figures(cluster: Cluster) -> None:
    """Draw the bandwidth of 1, 2 and 4 nodes, and the losses of 1 to 8 ranks, into docs/."""
    project = cluster.home / "demo"
    python = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def wait() -> None:
        for number in re.findall(r"^\d+", cluster.run("squeue", "--noheader", "--format=%i").stdout, re.M):
            job = cluster.wait(int(number), timeout=300)
            if job.state != "COMPLETED":
                sys.exit(job.output)

    scaling = ("bash", "benchmark/scaling.sh", "--name", "gloo", "1", "2", "4", "--", "--max", "64M")
    cluster.run(*scaling, cwd=project, env=python)
    wait()
    report = (sys.executable, "benchmark/report.py", "benchmark/results/gloo", "--plot", DOCS / "bandwidth")
    cluster.run(*report, cwd=project)
    runs = []
    for nodes, program in (("1", "ddp"), ("2", "ddp"), ("4", "fsdp")):  # of two ranks each
        runs.append(f"runs/{program}-{nodes}")
        training = (f"training/train_{program}.py", "--steps", "120", "--dtype", "float64", "--out", runs[-1])
        cluster.run("sbatch", f"--nodes={nodes}", "slurm/submit_multinode.sh", *training, cwd=project, env=python)
        wait()
    compare = (sys.executable, "training/compare.py", *runs, "--out", DOCS)
    print(cluster.run(*compare, cwd=project).stdout)
    (DOCS / "compare.png").rename(DOCS / "losses.png")
    (DOCS / "bandwidth.svg").unlink()  # the same again


def main() -> None:
    """Start the cluster, record, write."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder, "cluster"), cpus=4, gpus=0) as cluster:
        text = session(cluster)
        figures(cluster)
        nodes = f"four namespaces of one {platform.machine()} machine with {os.cpu_count()} cores"
        where = f"Slurm {cluster.version} on {nodes}"
    none = "The environment that is activated has torch too, hence `none`. With `venv`,\nwhich was"
    none += " offered, `bash slurm/build_venv.sh` comes first, once; with a container `bash slurm/build_container.sh`."
    put("make pictures", f"```console\n{text}```\n\nRecorded on the tests' cluster: {where}. {none}\n")


if __name__ == "__main__":
    answer(sys.argv[2:]) if sys.argv[1:2] == ["answer"] else main()
