"""JupyterLab on a compute node, by extras/notebook/notebook.sh on a real Slurm.

Cells run as a browser runs them: over the server's web socket, through the socket on the login node. Among the drills,
Chromium does so through ssh -L. They need jupyterlab, and the drill Chromium and an ssh server.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from baking import bake
from launching import everywhere, get_image, surroundings
from needs import needs_namespaces
from slurm_cluster import Cluster
from submitting import apptainer_project, cluster
from submitting import project_of_extras as project
from two_nodes import ENVIRONMENT
from waiting import PATIENCE, wait_for

websocket = pytest.importorskip("websocket", reason="no jupyterlab")
pytest.importorskip("jupyterlab")

BROWSE = Path(__file__).with_name("browse.py")
SETTINGS = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
# A cell as a user of two GPUs writes it.
DISTRIBUTED = """\
import os, socket, subprocess
print("on", socket.gethostname(), "with GPUs", os.environ["CUDA_VISIBLE_DEVICES"])
print(subprocess.run(["bash", "launch/torchrun.sh", "check/hello.py"], env={**os.environ, "NPROC_PER_NODE": "2"},
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)
"""


class Notebook:
    """extras/notebook/notebook.sh as it runs on the login node."""

    def __init__(self, cluster, project, *words, **environment):
        self.cluster, self.project, self.words = cluster, project, words
        self.said = project.parent / f"said-{uuid.uuid4().hex[:8]}"
        script = shlex.join(["bash", str(project / "extras/notebook/notebook.sh"), *map(str, words)])
        # A command in the background ignores SIGINT, and hands that on. env resets it.
        command = f"setsid env --default-signal=INT {script} >{shlex.quote(str(self.said))} 2>&1 </dev/null & echo $!"
        done = cluster.run("bash", "-c", command, cwd=project, env={**SETTINGS, **environment})
        self.pid = int(done.stdout)

    def output(self):
        return self.said.read_text()

    def find(self, pattern):
        """Wait for a text in the output; return what its group has."""
        wait_for(
            lambda: re.search(pattern, self.output()), lambda: f"{pattern} in:\n{self.output()}{self.job_output()}"
        )
        return re.search(pattern, self.output()).group(1)

    def job_output(self):
        return "".join(path.read_text() for path in self.project.glob("notebook-*.out"))

    def wait_until_connected(self):
        connects_again = re.fullmatch(r"\d+", str(self.words[0])) if self.words else None
        self.job = int(connects_again.group() if connects_again else self.find(r"job (\d+) is submitted"))
        self.path, self.token = self.find(r"-L 8888:(\S+) "), self.find(r"lab\?token=(\S+)")
        return self

    def signal(self, name):
        self.cluster.run("kill", f"-{name}", str(self.pid))
        wait_for(lambda: self.cluster.run("kill", "-0", str(self.pid), check=False).returncode != 0, "its end")


class Server:
    """The notebook's server, as a browser reaches it through a socket."""

    def __init__(self, path, token):
        self.path, self.token = str(path), token

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(self.path)
        return connection

    def request(self, method, name, token=None):
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect()
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        connection.request(method, name, headers=headers, body='{"path": "a.ipynb"}' if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def kernel(self):
        """Start a kernel; return its identifier."""
        status, body = self.request("POST", "/api/kernels")
        assert status == 201, body
        return json.loads(body)["id"]

    def channel(self, kernel):
        url = f"ws://localhost/api/kernels/{kernel}/channels?token={self.token}"
        return websocket.create_connection(url, socket=self.connect(), timeout=PATIENCE)

    @staticmethod
    def execute(channel, code):
        """Run a cell; return the identifier that its answers bear."""
        header = {"msg_id": uuid.uuid4().hex, "username": "", "session": uuid.uuid4().hex, "version": "5.3"}
        message = {"header": {**header, "msg_type": "execute_request"}, "parent_header": {}, "metadata": {}}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        channel.send(json.dumps({**message, "content": content, "channel": "shell", "buffers": []}))
        return header["msg_id"]

    def run(self, kernel, code):
        """Run a cell; return what it prints, and its error."""
        channel = self.channel(kernel)
        identifier = self.execute(channel, code)
        text = ""
        while True:
            answer = json.loads(channel.recv())
            if answer["parent_header"].get("msg_id") != identifier:
                continue
            content = answer["content"]
            text += content.get("text", "") + "\n".join(content.get("traceback", []))
            if answer["msg_type"] == "status" and content["execution_state"] == "idle":
                channel.close()
                return text


@pytest.fixture
def notebook(cluster, project):
    """Returns notebook(*words, **environment) -> a Notebook that is connected."""
    begun = []

    def start(*words, **environment):
        begun.append(Notebook(cluster, project, *words, **environment))
        return begun[-1].wait_until_connected()

    yield start
    for notebook in begun:
        cluster.run("kill", str(notebook.pid), check=False)
        if hasattr(notebook, "job"):
            cluster.run("scancel", str(notebook.job), check=False)
            cluster.wait(notebook.job)


def test_a_cell_runs_torch_distributed(cluster, project, notebook):
    """In the project's software, on the node's GPUs. The folder is the one in which the notebook was submitted."""
    book = notebook()
    server = Server(book.path, book.token)
    said = server.run(server.kernel(), "import sys; print(sys.executable)\n" + DISTRIBUTED)
    assert said.startswith(f"{sys.executable}\non node1 with GPUs 0,1\n"), said
    assert re.search("rank 0 of 2", said) and re.search("rank 1 of 2", said), said
    status, body = server.request("GET", "/api/contents")
    assert status == 200 and "check" in [item["name"] for item in json.loads(body)["content"]]
    # A tab that reads nothing does not hold up the others.
    silent = server.channel(server.kernel())
    Server.execute(silent, f"print('0123456789' * {500_000})")
    # More than one of srun's messages, and more than its buffers.
    sent = "0123456789" * 200_000
    assert server.run(server.kernel(), f"print('0123456789' * {200_000})") == sent + "\n"
    silent.close()


def test_nobody_else_can_connect(cluster, project, notebook):
    book = notebook()
    server = Server(book.path, book.token)
    server.run(server.kernel(), "1")
    assert server.request("GET", "/api/contents", token="wrong")[0] == 403
    assert server.request("GET", "/api/contents", token="")[0] == 403
    # The job has no port but for Slurm's and one of the kernel, which only takes what its subprocesses print
    # (ipykernel's iostream.py). Of the files, none can be opened by others.
    step = ["srun", f"--jobid={book.job}", "--overlap", "--ntasks=1"]
    listening = cluster.run(*step, "ss", "-Hlntp").stdout
    others = [line for line in listening.splitlines() if '("slurm' not in line and '("srun' not in line]
    others = [line for line in others if is_of_job(line, book.job, step, cluster)]
    assert len(others) <= 1 and all(" 127.0.0.1:" in line for line in others), listening
    folder = project / f"logs/{book.job}.0"
    for path in (Path(book.path).parent, folder):
        assert path.stat().st_mode & 0o777 == 0o700, path
    assert (folder / "token").read_text() == book.token and (folder / "token").stat().st_mode & 0o777 == 0o600
    arguments = cluster.run(*step, "ps", "-eo", "args").stdout
    assert "lab.py" in arguments and book.token not in arguments
    if os.getuid() == 0:
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c"]
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        for run, path in (([], book.path), (step, folder / "jupyter.sock")):
            done = cluster.run(*run, *other, code, path, check=False)
            assert "PermissionError" in done.stderr, done.stderr


def is_of_job(socket_line, job, step, cluster):
    """Whether a job's process has a socket, a line of ss: that of an earlier test may have left one on the node."""
    pid = re.search(r"pid=(\d+)", socket_line)[1]
    return f"SLURM_JOB_ID={job}\0" in cluster.run(*step, "cat", f"/proc/{pid}/environ").stdout


def test_the_notebook_outlives_its_connection(cluster, project, notebook):
    """Ctrl-C, and a login shell that is gone; a variable of the kernel is still there."""
    book = notebook()
    server = Server(book.path, book.token)
    kernel = server.kernel()
    server.run(kernel, "kept = 42")
    book.signal("INT")
    assert f"the notebook goes on: bash extras/notebook/notebook.sh {book.job} connects again" in book.output()
    assert not Path(book.path).exists() and "error" not in book.output().lower(), book.output()
    again = notebook(book.job)
    assert again.token == book.token
    assert Server(again.path, again.token).run(kernel, "print(kept)") == "42\n"
    last = notebook(book.job)
    assert last.path == again.path
    again.signal("HUP")  # it leaves alone the socket of the later call
    assert Server(last.path, last.token).run(kernel, "print(kept)") == "42\n"


@pytest.mark.drill
def test_the_way_to_the_node_is_cut(cluster, project, notebook):
    """The step that carries the connections dies. The next one takes its place, under the same address."""
    book = notebook()
    server = Server(book.path, book.token)
    kernel = server.kernel()
    server.run(kernel, "kept = 43")
    cluster.run("scancel", f"{book.job}.1")
    book.find("(the connection to node1 was cut; connecting again)")
    book.find("(connected again)")
    assert server.run(kernel, "print(kept)") == "43\n"


@pytest.mark.drill
def test_two_notebooks_at_once(cluster, project, notebook):
    books = [notebook("--gpus-per-node=1", "--exclusive=user"), notebook("--gpus-per-node=1", "--exclusive=user")]
    assert books[0].path != books[1].path
    for book in books:
        server = Server(book.path, book.token)
        assert server.run(server.kernel(), "import os; print(os.environ['SLURM_JOB_ID'])") == f"{book.job}\n"


def test_the_job_ends(cluster, project, notebook):
    """The message names the job's output, wherever that is."""
    book = notebook("--output=own %j.txt", "--job-name=my own")
    cluster.run("scancel", str(book.job))
    output = re.escape(f"{project}/own {book.job}.txt")
    book.find(rf"(job {book.job} has ended: CANCELLED. See its output, {output})\n")


@pytest.mark.drill
@pytest.mark.parametrize("name", ["cluster24", "cluster26"])
def test_newer_slurms(request, name, project):
    """Lines of several messages go through their srun whole, too."""
    cluster = request.getfixturevalue(name)
    book = Notebook(cluster, project).wait_until_connected()
    try:
        server = Server(book.path, book.token)
        said = server.run(server.kernel(), DISTRIBUTED + "\nprint('0123456789' * 200_000)")
        assert "rank 1 of 2" in said and said.endswith("0123456789" * 200_000 + "\n")
    finally:
        book.signal("INT")
        cluster.run("scancel", str(book.job))
        cluster.wait(book.job)


@pytest.mark.drill
def test_in_a_browser(cluster, project, notebook, tmp_path):
    """Through the line of ssh that was printed, in Chromium. make pictures keeps the picture (NOTEBOOK_PICTURE)."""
    for tool in ("chromium", "ssh", "/usr/sbin/sshd"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}")
    pytest.importorskip("playwright")
    book = notebook()
    config = ssh_server(cluster, tmp_path)
    (line,) = re.findall(r"^ +ssh (.*)$", book.output(), re.MULTILINE)
    (address,) = re.findall(r"^ +(http://.*)$", book.output(), re.MULTILINE)
    background = f"setsid ssh -F {shlex.quote(str(config))} {line} >{tmp_path}/ssh.log 2>&1 </dev/null & echo $!"
    ssh = cluster.run("bash", "-c", background).stdout.strip()
    try:
        wait_for(
            lambda: cluster.run("curl", "-s", address, check=False).returncode == 0, (tmp_path / "ssh.log").read_text
        )
        picture = Path(os.environ.get("NOTEBOOK_PICTURE") or tmp_path / "notebook.png")
        cell = "!hostname\n!NPROC_PER_NODE=2 bash launch/torchrun.sh check/hello.py"
        home = {"HOME": str(tmp_path)}
        said = cluster.run(sys.executable, "-B", BROWSE, address, cell, picture, env=home).stdout
        assert said.startswith("node1\n") and "rank 1 of 2 on node1" in said and "the sum of all ranks is 1" in said
        assert picture.stat().st_size > 10_000
        # What the page tells of: the port of the laptop is taken, and notebook.sh has ended.
        done = cluster.run("bash", "-c", f"timeout 10 ssh -o ExitOnForwardFailure=yes -F {config} {line}", check=False)
        assert "bind [127.0.0.1]:8888: Address already in use" in done.stderr, done
        book.signal("INT")
        assert cluster.run("curl", "-s", address, check=False).returncode
        assert "open failed: connect failed: open failed" in (tmp_path / "ssh.log").read_text()
    finally:
        cluster.run("kill", ssh, check=False)
        cluster.run("pkill", "-f", f"sshd.*{tmp_path}", check=False)


def ssh_server(cluster, folder):
    """Start an ssh server on the login node; return a file of settings with which ssh reaches it under its name."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    server = f"Port 2222\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\n"
    (folder / "sshd_config").write_text(f"{server}PermitRootLogin yes\nUsePAM no\nPidFile none\n")
    client = f"Port 2222\nIdentityFile {folder}/user\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    (folder / "ssh_config").write_text(client)
    cluster.run("bash", "-c", f"mkdir -p /run/sshd; /usr/sbin/sshd -f '{folder}/sshd_config' -E '{folder}/sshd.log'")
    return folder / "ssh_config"


@pytest.mark.drill
def test_the_time_limit_is_over(cluster, project, notebook):
    book = notebook("--time=1")
    said = book.find(rf"(job {book.job} has ended: TIMEOUT\. .*)")
    assert said.endswith("Its time limit is over: bash extras/notebook/notebook.sh --time=HH:MM:SS asks for more")


@pytest.mark.drill
def test_a_node_that_does_not_answer(project, tmp_path):
    with Cluster(tmp_path / "cluster", nodes=1) as cluster:
        needs_namespaces(cluster)
        first = Notebook(cluster, project, "--gpus-per-node=0").wait_until_connected()
        first.signal("INT")
        cluster.crash("node1")
        second = Notebook(cluster, project, first.job)
        second.find(
            r"(node1 does not answer: bash extras/notebook/notebook.sh \d+ tries again, scancel \d+ ends the job)"
        )


@pytest.mark.drill
@pytest.mark.parametrize("folder", ["a b", "x" * 120])
def test_in_apptainer(containers, sif, tmp_path, tmp_path_factory, folder):
    """The socket's name may be longer than the kernel takes."""
    needs_namespaces(containers)
    project = apptainer_project(tmp_path_factory, sif, "notebook").rename(tmp_path / folder)
    book = Notebook(containers, project).wait_until_connected()
    try:
        server = Server(book.path, book.token)
        said = server.run(server.kernel(), DISTRIBUTED)
        assert "rank 1 of 2" in said, said
    finally:
        containers.run("scancel", str(book.job))
        containers.wait(book.job)


@pytest.mark.drill
@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "edf", "shifter", "podman-hpc"])
def test_in_a_container(containers, everywhere, runtime, surroundings, tmp_path):
    needs_namespaces(containers)
    answers = {"site": everywhere, "runtime": runtime, "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path / "a_b", **answers, extras="notebook")
    environment = surroundings(runtime, project, tmp_path, containers)
    get_image(containers, project, runtime, {**ENVIRONMENT, **environment})
    book = Notebook(containers, project, **environment).wait_until_connected()
    try:
        server = Server(book.path, book.token)
        said = server.run(server.kernel(), "import os; print(os.environ['STAND_IN_RUNTIME'])\n" + DISTRIBUTED)
        assert said.startswith(f"{runtime}\non node1"), said
        assert "rank 1 of 2" in said, said
    finally:
        containers.run("kill", str(book.pid), check=False)
        containers.run("scancel", str(book.job))
        containers.wait(book.job)


def test_wrong_use_is_refused(cluster, project, tmp_path):
    def refused(*words, **environment):
        script = project / "extras/notebook/notebook.sh"
        done = cluster.run("bash", script, *words, cwd=tmp_path, env={**SETTINGS, **environment}, check=False)
        assert done.returncode == 2, done
        return done.stderr

    assert "'demo': expected the number of a job" in refused("demo")
    assert "'7 8': expected options of sbatch, or the number of one job" in refused("7", "8")
    assert "Slurm knows no job 999999" in refused("999999")
    assert "sbatch refused the job, see above" in refused("--partition=nowhere")
    said = refused(PYTHON="/usr/bin/python3")
    assert "/usr/bin/python3 has no JupyterLab: /usr/bin/python3 -m pip install jupyterlab" in said
    job = cluster.submit("--wrap=true", cwd=tmp_path)
    assert f"job {job.id} is COMPLETED: only a running one" in refused(str(job.id))


def test_a_job_that_waits(cluster, project):
    """Ctrl-C leaves it in the queue."""
    book = Notebook(cluster, project, "--begin=now+1hour")
    job = book.find(r"job (\d+): PENDING \(BeginTime\)")
    book.signal("INT")
    assert f"job {job} stays in the queue: scancel {job} removes it." in book.output()
    assert "PENDING" in cluster.run("squeue", "-h", "-o%T", f"--jobs={job}").stdout
    cluster.run("scancel", job)


def test_software_that_breaks_at_the_start(cluster, project, tmp_path):
    """The job ends, and the message leads to its output."""
    broken = tmp_path / "python"
    broken.write_text('#!/bin/bash\n[[ $1 == -c ]] && exit\necho "ImportError: broken" >&2; exit 1\n')
    broken.chmod(0o755)
    book = Notebook(cluster, project, PYTHON=str(broken))
    job = book.find(r"job (\d+) is submitted")
    says = r"(job \d+ has ended: FAILED. See its output, .*notebook-|job \d+ is (FAILED|COMPLETING): only a running)"
    book.find(says)
    assert "ImportError: broken" in (project / f"notebook-{job}.out").read_text()
