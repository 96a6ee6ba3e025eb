"""Record a session on the login node of a real Slurm cluster, and draw two figures from jobs on it.

    make pictures                                everything, in about eight minutes
    .venv/bin/python docs/record.py --session    the session alone, in one or two minutes

The session becomes docs/first-job.svg, which README.md shows, and the transcript in docs/first-job.md. The figures are
docs/bandwidth.png and docs/losses.png.

The cluster is that of the tests: four nodes of two ranks each, which are namespaces of this machine. So the session and
the losses are those of any cluster, the bandwidth is that of this machine's memory.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import platform
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from terminal import Event, draw, shorten, transcript

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
PAGE = DOCS / "first-job.md"
PICTURE = DOCS / "first-job.svg"
COLUMNS, ROWS = 114, 30
SECONDS = 27  # that the picture takes at most until it shows its last screen

sys.path.insert(0, str(REPOSITORY / "tests/clusters"))
from slurm_cluster import Cluster  # noqa: E402  (the cluster of the tests)


class Session:
    """A shell on the login node, in a terminal at which this program types as a person does.

    events: what the terminal has shown so far, with times.
    """

    PROMPT = r"\$ $"
    KEY_PAUSE = 0.06  # seconds from key to key
    LOOK = 0.4  # seconds that a person looks at a prompt

    def __init__(self, cluster: Cluster) -> None:
        """Start the shell. Its home folder has venv/, the environment of this program."""
        (cluster.home / "venv").symlink_to(sys.prefix)
        settings = ["PS1=$ ", "TERM=dumb", "VIRTUAL_ENV_DISABLE_PROMPT=1", f"COLUMNS={COLUMNS}", f"LINES={ROWS}"]
        self._shell, self._terminal = pty.fork()
        if self._shell == 0:
            os._exit(cluster.shell(("env", *settings, "bash", "--norc")))  # the parent process ends the cluster
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._start = time.monotonic()
        self.events: list[Event] = []
        self.wait_for(self.PROMPT)

    def _read(self, patience: float, typed: bool = False) -> str:
        """Return what the terminal shows next; '' if it shows nothing for `patience` seconds."""
        if not select.select([self._terminal], [], [], patience)[0]:
            return ""
        text = self._decoder.decode(os.read(self._terminal, 65536))
        self.events.append(Event(time.monotonic() - self._start, text, typed))
        return text

    def wait_for(self, pattern: str, within: float = 60) -> str:
        """Read until the output matches a pattern, at most for `within` seconds; return the output."""
        deadline = time.monotonic() + within
        output = ""
        while not re.search(pattern, output):
            if time.monotonic() > deadline:
                sys.exit(f"docs/record.py: {pattern!r} did not come in {within} s, but:\n{output}")
            output += self._read(patience=1)
        return output

    def type(self, text: str) -> None:
        """Type a text letter by letter, then Enter."""
        time.sleep(self.LOOK)
        for letter in text:
            os.write(self._terminal, letter.encode())
            self._read(patience=10, typed=True)
            time.sleep(self.KEY_PAUSE)
        os.write(self._terminal, b"\n")

    def run(self, command: str) -> None:
        """Type a command and wait until it has ended."""
        self.type(command)
        self.wait_for(self.PROMPT)

    def answer_questions(self) -> None:
        """Press Enter at each question of a program, which takes the default, until the program has ended."""
        while self.wait_for(rf"\): $|{self.PROMPT}").endswith("): "):
            self.type("")

    def press_control_c(self) -> None:
        """End the program that runs, and wait for the prompt."""
        time.sleep(self.LOOK)
        os.write(self._terminal, b"\3")
        self.wait_for(self.PROMPT)

    def end(self) -> None:
        """Close the terminal, which ends the shell."""
        os.close(self._terminal)
        os.waitpid(self._shell, 0)


def copy_template(target: Path) -> None:
    """Copy this repository as it is now, without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():  # git still lists a file that was removed since the last commit
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)


def record_session(cluster: Cluster) -> list[Event]:
    """Write a project and run its first two jobs as a person would; the project is left in the home folder."""
    copy_template(cluster.home / "template")
    session = Session(cluster)
    session.run("source venv/bin/activate")  # has torch and cookiecutter
    session.type("cookiecutter template")
    session.answer_questions()
    session.run("cd demo")
    session.run("bash slurm/submit_multinode.sh check/ranks.py")
    session.type("tail -F demo-1.out")
    session.wait_for(r": right\r?\n", within=600)
    session.press_control_c()
    session.run("bash slurm/submit_multinode.sh")
    session.type("tail -F demo-2.out")
    session.wait_for(r"done    loss.*\n", within=600)
    session.press_control_c()
    session.end()
    home = str(cluster.home)
    events = [replace(event, text=event.text.replace(home, "~")) for event in session.events]
    if home in transcript(events):
        sys.exit(f"docs/record.py: {home} was read in two parts, and cannot be shown as ~: run this again")
    return events


def show_session(events: list[Event], where: str) -> None:
    """Write the picture of a session, and its transcript. where: the cluster, in words."""
    PICTURE.write_text(
        draw(
            shorten(events, total=SECONDS),
            title="The first job",
            description="A terminal on a login node. cookiecutter asks its questions and writes a project, "
            "slurm/submit_multinode.sh submits a job of two nodes, and tail shows how the job checks its four ranks "
            f"and trains a model. Recorded on {where}. docs/first-job.md has the text.",
            window="login node",
            columns=COLUMNS,
            rows=ROWS,
        )
    )
    text = f"```console\n{transcript(events)}```\n\nRecorded on the tests' cluster: {where}.\n"
    block = r"(<!-- make pictures -->\n).*?(<!-- end -->)"
    page, count = re.subn(block, lambda match: match[1] + text + match[2], PAGE.read_text(), flags=re.S)
    if count != 1:
        sys.exit(f"{PAGE}: expected one <!-- make pictures -->, found {count}")
    PAGE.write_text(page)


def draw_figures(cluster: Cluster) -> None:
    """Draw the bandwidth of 1, 2 and 4 nodes, and the losses of 1 to 8 ranks, into docs/."""
    project = cluster.home / "demo"
    python = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def wait() -> None:
        for number in re.findall(r"^\d+", cluster.run("squeue", "--noheader", "--format=%i").stdout, re.M):
            job = cluster.wait(int(number), timeout=300)
            if job.state != "COMPLETED":
                sys.exit(job.output)

    page = (project / "slurm/docs/extras.md").read_text()
    add = re.search(r"^cookiecutter .*extras=\+NAME$", page, re.M)[0].replace("+NAME", "+scaling")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    cluster.run("bash", "-c", add, cwd=project.parent, env=path)
    scaling = ("bash", "extras/scaling/scaling.sh", "--name", "gloo", "1", "2", "4", "--", "--max", "64M")
    cluster.run(*scaling, cwd=project, env=python)
    wait()
    report = (sys.executable, "extras/scaling/report.py", "logs/scaling/gloo", "--plot", DOCS / "bandwidth")
    cluster.run(*report, cwd=project)
    runs = []
    for nodes, program in (("1", "ddp"), ("2", "ddp"), ("4", "fsdp")):  # of two ranks each
        runs.append(f"runs/{program}-{nodes}")
        training = (f"training/train_{program}.py", "--steps", "120", "--dtype", "float64", "--out", runs[-1])
        cluster.run("sbatch", f"--nodes={nodes}", "slurm/submit_multinode.sh", *training, cwd=project, env=python)
        wait()
    print(cluster.run(sys.executable, "training/compare.py", *runs, cwd=project).stdout)
    draw_losses(project, runs)
    (DOCS / "bandwidth.svg").unlink()  # the same again


def draw_losses(project: Path, runs: list[str]) -> None:
    """Draw the losses of training runs over their steps, the later runs with thinner lines, into docs/losses.png."""
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        rows = [json.loads(line) for line in (project / run / "metrics.jsonl").read_text().splitlines()]
        losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
        axes.plot(*zip(*losses), linewidth=1 + len(runs) - number, label=run)
    axes.set(xlabel="step", ylabel="loss [nats per token]")
    axes.legend()
    figure.savefig(DOCS / "losses.png", dpi=200)


def main() -> None:
    """Start the cluster, record, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--session", action="store_true", help="record the session alone, without the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder, "cluster"), cpus=4, gpus=0) as cluster:
        nodes = f"four namespaces of one {platform.machine()} machine with {os.cpu_count()} cores"
        show_session(record_session(cluster), f"Slurm {cluster.version} on {nodes}")
        if not args.session:
            draw_figures(cluster)


if __name__ == "__main__":
    main()
