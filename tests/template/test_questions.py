"""The questions: which site is offered on which login node, and what a wrong answer at a terminal leads to."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from baking import REPOSITORY, account, bake, cookiecutter
from slurm_cluster import PATH
from waiting import PATIENCE

from cluster_options.detect import detect_line
from cluster_options.questions import QUESTION_NAMES
from cluster_options.sites import site_facts, site_names

CONF = "# a comment\nSlurmctldHost=ctl\nClusterName={}\n"
ASKED = "#!/bin/sh\n[ \"$*\" = 'show config' ] || exit 9\n"
# what a login node is like: host name, files, commands; the site that is offered there
LOGIN_NODES = {
    "a Cray tells by /etc/xthostname": ("x1", {"/etc/xthostname": "clariden\n"}, {}, "clariden"),
    "ClusterName in /etc/slurm": ("login9", {"/etc/slurm/slurm.conf": CONF.format("Lab")}, {}, "lab"),
    "ClusterName in $SLURM_CONF": ("login9", {"/etc/elsewhere.conf": CONF.format("lab")}, {}, "lab"),
    "a configless node": ("login9", {"/run/slurm/conf/slurm.conf": CONF.format("lab")}, {}, "lab"),
    "the host's name": ("lablogin3.example.org", {}, {}, "lab"),
    "scontrol, last": ("n1", {}, {"scontrol": f"{ASKED}echo 'ClusterName             = lab'"}, "lab"),
    "a cluster without a file": ("n1", {}, {"scontrol": f"{ASKED}echo 'ClusterName = unheard-of'"}, "here"),
    "a controller that does not answer": ("n1", {}, {"scontrol": "#!/bin/sh\n/bin/sleep 5"}, "slurm"),
    "a controller that is down": (
        "n1",
        {"/etc/slurm/slurm.conf": CONF.format("unheard-of")},
        {"scontrol": "#!/bin/sh\necho 'slurm_load_ctl_conf error' >&2; exit 1"},
        "slurm",
    ),
    "Slurm's programs without a cluster": ("laptop", {}, {"scontrol": "#!/bin/sh\nexit 1"}, "local"),
    "a host whose name begins alike": ("lablogin3x", {}, {}, "local"),
}
ON_LOGIN_NODE = r"""
set -eu
hostname "$1"
mount --bind "$2/etc" /etc
mount --bind "$2/run" /run
shift 2
exec "$@"
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """What decides on the site that is offered, with one site file more, which its clusters know by these signs."""
    folder = tmp_path_factory.mktemp("template")
    for name in ("cluster_options", "sites"):
        shutil.copytree(REPOSITORY / name, folder / name)
    lab = (REPOSITORY / "sites/slurm.yaml").read_text().replace("your Slurm cluster", "the lab")
    lab += '\ndetect: {cluster: [lab, lab2], host: "lablogin\\\\d+(\\\\.example\\\\.org)?"}\n'
    (folder / "sites/lab.yaml").write_text(lab)
    return folder


# Prints the site that is offered on this host, then for each other host and ClusterName.
OFFER = """
import json, socket, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cluster_options.detect import site_here
for host, conf in [("", ""), *json.loads(sys.argv[2])]:
    if host:
        socket.sethostname(host)
    if conf:
        Path("/etc/slurm/slurm.conf").write_text(conf)
    print(site_here())
"""


def offered(template, place, host, files, commands, turns=()):
    """Return the site that is offered on a login node, then for each turn.

    turns: names of the host and contents of slurm.conf that the node takes on one after the other; "" for no change.
    """
    for name in ("etc", "run", "bin"):
        (place / name).mkdir()
    for name in ("passwd", "group", "nsswitch.conf"):
        (place / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
    for path, text in files.items():
        target = place / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name, text in commands.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    unshare = ["unshare", "--uts", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    environment = {"PATH": f"{place}/bin:/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    if "/etc/elsewhere.conf" in files:
        environment["SLURM_CONF"] = "/etc/elsewhere.conf"
    words = ["bash", "-c", f"PATH=/usr/bin:/bin:/usr/sbin:/sbin\n{ON_LOGIN_NODE}", "_", host, place, "env"]
    words += [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        [*unshare, *words, sys.executable, "-c", OFFER, template, json.dumps(list(turns))],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("case", LOGIN_NODES)
def test_the_site_one_stands_on_is_offered(case, template, tmp_path):
    host, files, commands, expected = LOGIN_NODES[case]
    assert offered(template, tmp_path, host, files, commands) == [expected]


# Login nodes by the names that the sources in some site files give; compute nodes and other centres' do not match.
HOSTS = {
    "clariden-ln001": "clariden",
    "alogin2.bsc.es": "mn5",
    "login07.leonardo.local": "leonardo",
    "jean-zay-pp1.idris.fr": "jean-zay",
    "int4.local.snellius.surf.nl": "snellius",
    "gh-login01": "deltaai",
    "della-gpu": "della",
    "torch-login-b-1": "nyu-torch",
    "boslogin01": "cannon",
    "login07": "local",
    "gcn6.local.snellius.surf.nl": "local",
    "della-l07g2": "local",
}


def test_every_site_is_found_by_its_own_signs(template, tmp_path):
    """What a file says under `detect` leads to that site and to no other."""
    named = {}
    for site in site_names():
        facts = site_facts(site)
        assert detect_line(site) == facts["detect"], f"{site}: detect belongs on one line"
        named |= dict.fromkeys(facts["detect"].get("cluster", []), site)
    turns = [(host, "") for host in HOSTS] + [("", CONF.format(name)) for name in named]
    _, *found = offered(template, tmp_path, "n1", {"/etc/slurm/slurm.conf": CONF.format("unheard-of")}, {}, turns)
    assert dict(zip([*HOSTS, *named], found)) == {**HOSTS, **named}


# ---- at a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """cookiecutter with somebody at a terminal."""

    def __init__(self, home, *words):
        self.shown = ""
        main, second = pty.openpty()
        self.main = main
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        fcntl.ioctl(second, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 300, 0, 0))  # no line is broken
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cookiecutter", REPOSITORY, *words],
            cwd=home,
            env=environment,
            stdin=second,
            stdout=second,
            stderr=second,
            start_new_session=True,
        )
        os.close(second)

    def answer(self, question, text=""):
        """Wait until `question` is what the terminal asks, then type; returns what was printed before."""
        before = self.wait(rf"{question}.*: ?$")
        os.write(self.main, f"{text}\n".encode())
        return before

    def wait(self, pattern):
        """Read until the last line is like `pattern`, or the program has ended, which "(?!)" waits for."""
        text, end = "", time.monotonic() + PATIENCE
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "").split("\n")[-1]):
            assert time.monotonic() < end, f"waited for {pattern}; so far: {self.shown}{text}"
            if select.select([self.main], [], [], 0.1)[0]:
                try:
                    text += os.read(self.main, 4096).decode()
                except OSError:  # the program is gone
                    break
        text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "")
        self.shown += text
        return text


def test_a_wrong_answer_is_asked_again_on_the_spot(tmp_path):
    terminal = Terminal(tmp_path)
    terminal.answer(r"\[1/13\]", "a b")
    assert "project 'a b' is no plain folder name" in terminal.answer(r"project \(demo\)", "talk")
    terminal.answer(r"\[2/13\]", "claridn")
    again = terminal.answer(r"site \(\w+\)", "clariden")
    assert re.search(r"site 'claridn' is not known \(did you mean clariden", again)
    assert len(again.strip().splitlines()) == 3, again  # what was typed, why it is wrong, the question
    terminal.answer(r"\[3/13\].*torchrun", "mpirun")
    assert "not available for Clariden" in terminal.answer(r"launcher \(torchrun\)", "srun")
    for number in (4, 5, 6, 7, 8):
        terminal.answer(rf"\[{number}/13\]")
    terminal.answer(r"\[9/13\]", "4")
    terminal.answer(r"\[10/13\]", "9")
    assert "has 4; use at most 4" in terminal.answer(r"gpus_per_node \(4\)", "4")
    terminal.answer(r"\[11/13\]", "00:30:00")
    assert "90 node-minutes per job, so 4 nodes for at most 00:22:00" in terminal.answer(r"time_limit \(00:22:00\)")
    terminal.answer(r"\[12/13\].*yes", "maybe")
    assert "examples 'maybe' is neither yes nor no" in terminal.answer(r"examples \(yes\)")
    terminal.answer(r"\[13/13\].*none", "all,notebook")
    assert "all and none stand alone" in terminal.answer(r"extras \(none\)", "notebook")
    terminal.wait("(?!)")
    assert terminal.process.wait(PATIENCE) == 0, terminal.shown
    header = (tmp_path / "talk/slurm/submit_multinode.sh").read_text()
    for option in ("--nodes=4", "--gpus-per-node=4", "--time=00:22:00", "--partition=debug"):
        assert f"#SBATCH {option} " in header
    assert 'LAUNCHER="${LAUNCHER:-srun}"' in (tmp_path / "talk/env.sh").read_text()


def test_an_unconfirmed_limit_warns_at_the_terminal(tmp_path):
    terminal = Terminal(tmp_path, "site=juwels-booster", "project=talk", "account=a", "partition=develbooster")
    for number in range(1, 9):
        terminal.answer(rf"\[{number}/13\]")
    terminal.answer(r"\[9/13\]", "5")
    warning = "Warning: nodes 5: partition develbooster allows at most 4 (the site file marks"
    assert warning in terminal.answer(r"\[10/13\]")
    for number in (11, 12, 13):
        terminal.answer(rf"\[{number}/13\]")
    terminal.wait("(?!)")
    assert terminal.process.wait(PATIENCE) == 0
    assert terminal.shown.count("Warning") == 1


def piped(folder, *words, path=os.environ["PATH"], answers=""):
    """Run cookiecutter without a terminal, with these folders of programs."""
    return subprocess.run(
        [sys.executable, "-m", "cookiecutter", *words, REPOSITORY, *(["site=here"] if "--no-input" in words else [])],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        input=answers,
        capture_output=True,
        text=True,
        check=False,
    )


def test_answers_from_a_pipe_are_refused_together(tmp_path):
    """Asking again would take the next answer for the missing one."""
    answers = "\n".join(["demo", "mn5", "", "", "", "", "", "", "0", "", "", "", "", ""])
    done = piped(tmp_path, answers=answers)
    assert done.returncode == 1
    assert "account is empty" in done.stderr and "nodes '0'" in done.stderr
    assert not (tmp_path / "demo").exists()


# ---- a site file of one's own ----------------------------------------------------------------------------------------


def test_a_site_file_of_ones_own_as_the_default(tmp_path):
    """default_context of cookiecutter's configuration: nobody in the laboratory has to answer `site`."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text().replace("your Slurm cluster", "our cluster")
    (tmp_path / "our-cluster.yaml").write_text(text)
    (tmp_path / ".cookiecutterrc").write_text('default_context: {site: "~/our-cluster.yaml"}\n')
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "demo is written for our cluster" in done.stdout
    (tmp_path / "our-cluster.yaml").write_text(text.replace("nodes: 2", "nodes: many"))
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, project="again")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/our-cluster.yaml" in done.stderr
    assert "defaults.nodes: expected a whole number of at least 1, got 'many'" in done.stderr
    assert not (tmp_path / "again").exists()


def test_here_without_slurm_is_refused_in_one_line(tmp_path):
    """A cluster that does not answer is asked once: each question asks for the site's facts again."""
    for program in ("", f"#!/bin/sh\necho x >>{tmp_path}/asked\necho 'cannot contact' >&2\nexit 1\n"):
        if program:
            (tmp_path / "scontrol").write_text(program)
            (tmp_path / "scontrol").chmod(0o755)
        done = piped(tmp_path, "--no-input", path=f"{tmp_path}:/nowhere")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: site 'here': scontrol") and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "asked").read_text() == "x\n"


@pytest.mark.parametrize("version", ["cluster", pytest.param("cluster24", marks=pytest.mark.drill)])
def test_an_unknown_cluster_is_offered_and_the_project_runs_there_unedited(version, request, tmp_path):
    """Nothing is answered at all: what is on PATH and what Slurm says is enough."""
    cluster = request.getfixturevalue(version)
    environment = {"PATH": f"{Path(sys.executable).parent}:{PATH}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "cookiecutter", "--no-input", REPOSITORY]
    done = cluster.run(*command, "project=mine", cwd=tmp_path, env=environment)
    assert "mine is written for test (this cluster)" in done.stdout
    header = (tmp_path / "mine/slurm/submit_multinode.sh").read_text()
    for option in ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8", "--partition=main", "--time=00:30:00"):
        assert f"#SBATCH {option} " in header
    done = cluster.run(
        "bash",
        "slurm/submit_multinode.sh",
        "check/ranks.py",
        cwd=tmp_path / "mine",
        env={**environment, "ALLOW_CPU": "1", "LAUNCHER": "srun", "NPROC_PER_NODE": "1"},
    )
    job = cluster.wait(int(done.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "all-reduce over 2 rank(s) on 2 host(s): right" in job.output


def test_describe_prints_a_site_file_that_can_be_answered(cluster, tmp_path):
    """As docs/your-own-cluster.md has it, with a Python that has neither PyYAML nor Jinja; then the file is used."""
    done = cluster.run("python3", "-B", REPOSITORY / "cluster_options", "describe", cwd=tmp_path)
    (tmp_path / "our-cluster.yaml").write_text(done.stdout)
    project = bake(tmp_path / "x", site=tmp_path / "our-cluster.yaml")
    assert "#SBATCH --partition=main " in (project / "slurm/submit_multinode.sh").read_text()


def test_a_replay_at_a_terminal_asks_nothing(tmp_path):
    """Its answers come after the questions' checks; the hook has the last word."""
    answers = {**dict.fromkeys(QUESTION_NAMES, ""), "project": "again", "site": "local", "nodes": "2"}
    answers |= {"launcher": "torchrun", "runtime": "none", "gpus_per_node": "0", "examples": "yes", "extras": "all"}
    (tmp_path / "answers.json").write_text(json.dumps({"cookiecutter": answers}))
    terminal = Terminal(tmp_path, "--replay-file", tmp_path / "answers.json")
    terminal.wait("(?!)")
    assert terminal.process.wait(PATIENCE) == 0, terminal.shown
    assert "again is written for this machine" in terminal.shown


# ---- the table in docs/sites.md, and the list in README.md -----------------------------------------------------------


@pytest.mark.parametrize(("command", "document"), [("table", "docs/sites.md"), ("titles", "README.md")])
def test_the_documents_list_the_sites_of_the_files(command, document):
    """`make sites` writes both; adding a site adds one file."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "cluster_options", command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    between = re.search(r"<!-- make sites -->\n(.*?)<!-- end -->", (REPOSITORY / document).read_text(), re.DOTALL)
    assert between and between[1] == done.stdout


@pytest.mark.parametrize("site", site_names())
def test_a_written_project_speaks_of_its_own_site_alone(site, written):
    project = written(site=site, account=account(site), extras="all")
    text = "\n".join(
        path.read_text() for path in project.rglob("*") if path.is_file() and path.suffix not in (".py", ".png")
    )
    text = text.replace(site_facts(site)["login"].get("host", "HOST"), "HOST")  # DeltaAI's is below delta.ncsa…
    text = text.replace(site_facts(site)["title"], "TITLE")  # tamIA is of Mila
    allowed = {site, "local", "slurm", "here", "runai"}
    if site in ("cannon", "kempner"):  # both are Harvard's
        allowed |= {"cannon", "kempner"}
    others = {name.split("-")[0] for name in site_names() if name not in allowed}
    assert not others & set(re.findall(r"\w+", text.lower()))
