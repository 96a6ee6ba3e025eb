"""Jobs whose nodes copy software and data to their own disks first (STAGE=1, STAGE_DATA), on a real Slurm.

The node's own disk is /dev/shm here, which each node of the tests' cluster has for itself.
tests/template/test_pack.py has what is packed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest
from baking import TEMPLATE, bake
from needs import needs_namespaces
from slow_files import FUSE_IS_HERE, slow_files
from slurm_cluster import PATH, Cluster
from submitting import ANSWERS, cluster, python_environment
from users import NEIGHBOUR, needs_two_users
from waiting import FOREVER, wait_for

HAVE_SQUASHFS = shutil.which("mksquashfs") and shutil.which("squashfuse") and FUSE_IS_HERE
SQUASHFS = pytest.param("squashfs", marks=pytest.mark.skipif(not HAVE_SQUASHFS, reason="no squashfuse, or no FUSE"))
OWN = f"/dev/shm/staged-{os.getuid()}"  # the folder of copies on a node
# It imports no torch: where srun starts it, a job takes a second.
PROGRAM = """\
import os, subprocess, sys
import thing
words = [thing.VALUE, sys.prefix, os.environ["VIRTUAL_ENV"], thing.__file__, sys.base_prefix]
words += [subprocess.run(["a-script"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip(), os.getcwd()]
words += ["staged" if os.stat(thing.__file__).st_dev != os.stat(sys.prefix).st_dev else "as it lies"]
words += [os.environ["SLURMD_NODENAME"], os.readlink("/proc/self/ns/mnt")]
sys.stdout.write("RESULT " + "|".join(words) + "\\n")
"""


def make_environment(folder: Path, value: str = "first") -> Path:
    """Make a virtual environment with a module and a script, and the tests' torch, which stays where it is."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "thing.py").write_text(f"VALUE = {value!r}\n")
    (site / "torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    script = folder / "bin/a-script"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nprint('script of', sys.prefix)\n")
    script.chmod(0o755)
    return folder


class Jobs:
    """Submits jobs of a project to a cluster, with a launcher."""

    def __init__(self, cluster, launcher, project, environment):
        self.cluster, self.project, self.venv, self.submitted = cluster, project, environment, []
        self.settings = python_environment(LAUNCHER=launcher, NPROC_PER_NODE="2", OMP_NUM_THREADS="1")
        self.settings |= {"PYTHON": "python3", "RUNTIME": "venv", "VENV": str(environment), "STAGE": "1"}
        self.settings |= {"STAGE_DIR": "/dev/shm", "STAGE_FORMAT": "tar"}

    def call(self, *words, options=("--nodes=2",), check=True, script=None, **settings):
        """Call slurm/submit_multinode.sh; return the finished process."""
        command = script or ["bash", self.project / "slurm/submit_multinode.sh", *options, "--"]
        return self.cluster.run(*command, *words, cwd=self.project, env={**self.settings, **settings}, check=check)

    def submit(self, *words, **more):
        """Submit a job; return its number."""
        self.submitted.append(re.search(r"Submitted batch job (\d+)", self.call(*words, **more).stdout)[1])
        return int(self.submitted[-1])

    def run(self, *words, **more):
        """Submit a job that has to succeed, and wait for its end."""
        return self.ended(self.submit(*words, **more))

    def ended(self, number):
        job = self.cluster.wait(number)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        return job

    def on_node(self, node, *command):
        """Run a command on a node; return what it prints."""
        options = ["--overcommit", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
        return self.cluster.run("srun", *options, *command, check=True).stdout

    def copies(self, node):
        """Return the names of the copies on a node."""
        listed = self.on_node(node, "sh", "-c", "ls -A /dev/shm /dev/shm/staged-* 2>/dev/null || true").split()
        return [name for name in listed if re.fullmatch(r"[0-9a-f]{16}|.*\.sent-.*|.*unfinished", name)]


@pytest.fixture(params=["srun", pytest.param("torchrun", marks=pytest.mark.drill)])
def jobs(request, cluster, tmp_path):
    """Jobs of two nodes of two ranks; the folder of the environment has a space in its name."""
    needs_namespaces(cluster)
    project = bake(tmp_path / "a b", **ANSWERS)
    (project / "prog.py").write_text(PROGRAM)
    jobs = Jobs(cluster, request.param, project, make_environment(tmp_path / "an_environment"))
    yield jobs
    cluster.run("scancel", *jobs.submitted, check=False)
    for node in ("node1", "node2"):
        cluster.run(
            "srun",
            "--overcommit",
            "-N1",
            "-n1",
            f"--nodelist={node}",
            "sh",
            "-c",
            "rm -rf /dev/shm/staged-*",
        )


def results(text):
    """Return the words that each rank has printed."""
    return [line.split("|") for line in sorted(re.findall(r"RESULT (.*)", text))]


@pytest.mark.parametrize("form", ["tar", SQUASHFS])
def test_ranks_load_a_copy_under_the_same_paths(jobs, form):
    """Paths, variables and scripts are as without it; the ranks of a node share a namespace; nothing is left."""
    job = jobs.run("prog.py", STAGE_FORMAT=form)
    found, environment = results(job.output), str(jobs.venv)
    assert len(found) == 4, job.output
    for value, prefix, variable, file, base, script, folder, where, _, _ in found:
        assert (value, prefix, variable, where) == ("first", environment, environment, "staged"), job.output
        assert file.startswith(f"{environment}/lib/") and base == sys.base_prefix
        assert (script, folder) == (f"script of {environment}", str(jobs.project))
    assert len({(node, namespace) for *_, node, namespace in found}) == 2, job.output
    assert f"{environment} is on this node's disk" in job.output and "by sbcast" in job.output
    recorded = json.loads((jobs.project / f"logs/{job.id}.0/run.json").read_text())["staged"][0]
    assert (recorded["kind"], recorded["path"]) == ("environment", environment)
    assert recorded["pack"].endswith(".tar" if form == "tar" else ".sqsh")
    assert [jobs.copies(node) for node in ("node1", "node2")] == [[], []]
    servers = jobs.cluster.run("pgrep", "-af", f"squashfuse.*{jobs.project}|squashfuse -f /dev/shm", check=False).stdout
    assert servers == ""


def own_python(folder: Path) -> Path:
    """Copy the tests' Python without its packages, as uv and conda bring one of their own; return bin/python3."""
    (folder / "bin").mkdir(parents=True)
    original, version = Path(sys.executable).resolve(), f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(original, folder / "bin" / version)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(version)
    unneeded = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*", "idlelib")
    shutil.copytree(sysconfig.get_path("stdlib"), folder / "lib" / version, ignore=unneeded, symlinks=True)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        library = sysconfig.get_config_var("INSTSONAME")
        shutil.copy2(Path(sysconfig.get_config_var("LIBDIR")) / library, folder / "lib" / library)
    return folder / "bin/python3"


def fill(folder: Path, python: Path) -> Path:
    """Put into an environment what make_environment() puts there; return it."""
    question = "import site, sys; print(next(p for p in site.getsitepackages() if p.startswith(sys.prefix)))"
    site = Path(subprocess.run([python, "-c", question], capture_output=True, text=True, check=True).stdout.strip())
    site.mkdir(parents=True, exist_ok=True)
    (site / "thing.py").write_text("VALUE = 'first'\n")
    (site / "torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    script = folder / "bin/a-script"
    script.write_text(f"#!{python}\nimport sys\nprint('script of', sys.prefix)\n")
    script.chmod(0o755)
    return folder


def environment_of_uv(folder: Path) -> tuple[Path, Path]:
    """Have uv make an environment; return it and its Python, which lies where uv keeps those that it downloads."""
    version = ".".join(map(str, sys.version_info[:3]))
    pythons = folder / "home/.local/share/uv/python"
    python = own_python(pythons / f"cpython-{version}-linux-x86_64-gnu")
    settings = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(pythons), "UV_CACHE_DIR": str(folder / "cache")}
    command = [shutil.which("uv", path=Path(sys.executable).parent), "venv", "--offline", "--python", python]
    subprocess.run([*command, folder / "of-uv"], env=settings, capture_output=True, check=True)
    assert "uv = " in (folder / "of-uv/pyvenv.cfg").read_text()
    return fill(folder / "of-uv", folder / "of-uv/bin/python"), python.parent.parent


def environment_of_conda(folder: Path) -> tuple[Path, Path]:
    """Make an environment as conda does, with a Python of its own: a stand-in, as conda's packages are not on PyPI."""
    python = own_python(folder / "of-conda")
    (folder / "of-conda/conda-meta").mkdir()
    (folder / "of-conda/conda-meta/history").touch()
    return fill(folder / "of-conda", python), folder / "of-conda"


OWN_PYTHON = """\
import os, subprocess, sys
import thing
words = [sys.prefix, sys.base_prefix, os.environ.get("VIRTUAL_ENV") or os.environ["CONDA_PREFIX"], thing.__file__]
words += [subprocess.run(["a-script"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()]
disk = os.stat(sys.argv[0]).st_dev
words += [name for name, file in (("package", thing.__file__), ("library", os.__file__), ("python", sys.executable))
          if os.stat(file).st_dev == disk]
sys.stdout.write("RESULT " + "|".join(words) + "\\n")
"""


@pytest.mark.parametrize("form", [pytest.param("tar", marks=pytest.mark.drill), SQUASHFS])
@pytest.mark.parametrize("make", [environment_of_uv, environment_of_conda])
def test_environments_with_a_python_of_their_own(jobs, make, form, tmp_path):
    """The interpreter, its library and the packages are loaded from the node's disk, under the same paths."""
    (jobs.project / "own.py").write_text(OWN_PYTHON)
    environment, python = make(tmp_path)
    job = jobs.run("own.py", VENV=str(environment), STAGE_FORMAT=form)
    expected = [str(environment), str(python), str(environment)]
    for prefix, base, variable, module, script, *not_copied in results(job.output):
        assert [prefix, base, variable] == expected and module.startswith(str(environment)), job.output
        assert (script, not_copied) == (f"script of {environment}", []), job.output
    assert len(results(job.output)) == 4 and jobs.copies("node1") == []


def test_without_it_they_load_what_lies_there(jobs):
    """What the test above cannot see: that it tells a copy from the original."""
    found = results(jobs.run("prog.py", STAGE="0").output)
    assert [words[7] for words in found] == ["as it lies"] * 4
    assert not list((jobs.project / "logs").glob("staged*"))


@pytest.mark.drill
@pytest.mark.skipif(not FUSE_IS_HERE, reason="no /dev/fuse")
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
@pytest.mark.parametrize("form", ["tar", SQUASHFS])
def test_the_shared_file_system_is_asked_for_less(launcher, form, tmp_path):
    """Opens of the environment on it, counted by a file system that counts; it is mounted before the nodes start."""
    project, environment = bake(tmp_path / "project", **ANSWERS), make_environment(tmp_path / "environment")
    site = next(environment.glob("lib/python*/site-packages"))
    for number in range(50):  # so that the ranks' imports outweigh what the scripts themselves read
        (site / f"module{number}.py").touch()
    imports = "".join(f"import module{number}\n" for number in range(50))
    (project / "prog.py").write_text(imports + PROGRAM)
    original = environment.rename(tmp_path / "disks")
    environment.mkdir()
    asked = {}
    with slow_files(original, environment) as counts, Cluster(tmp_path / "cluster", nodes=2) as own_cluster:
        needs_namespaces(own_cluster)
        jobs = Jobs(own_cluster, launcher, project, environment)
        for stage in ("0", "1"):
            number = jobs.submit("prog.py", options=["--nodes=2", "--hold"], STAGE=stage, STAGE_FORMAT=form)
            before = counts()
            own_cluster.run("scontrol", "release", str(number))
            assert len(results(jobs.ended(number).output)) == 4
            asked[stage] = {name: counts()[name] - before.get(name, 0) for name in ("open", "getattr")}
    # Left are what the submit script reads (bin/activate), and pyvenv.cfg, which each Python reads once.
    assert asked["0"]["open"] >= 16 and asked["1"]["open"] <= asked["0"]["open"] - 8, asked
    assert asked["1"]["getattr"] < asked["0"]["getattr"] / 2, asked


def test_data(jobs, tmp_path):
    """A file and a folder, also without an environment; a relative path is that of the folder of submission."""
    (jobs.project / "data/inner").mkdir(parents=True)
    (jobs.project / "data/inner/a").write_text("in a folder")
    (jobs.project / "one.bin").write_text("in a file")
    program = (
        "import os, sys\nsys.stdout.write(f'RESULT {open(sys.argv[1]).read()}|{os.stat(sys.argv[1]).st_dev}\\n')\n"
    )
    (jobs.project / "read.py").write_text(program)
    disk = str(os.stat(jobs.project / "one.bin").st_dev)
    for data, file, text in (("data", "data/inner/a", "in a folder"), ("one.bin", "one.bin", "in a file")):
        job = jobs.run("read.py", file, STAGE="0", STAGE_DATA=data)
        found = results(job.output)
        assert [words[0] for words in found] == [text] * 4, job.output
        assert disk not in [words[1] for words in found], job.output
    both = results(jobs.run("read.py", "one.bin", STAGE_DATA=str(jobs.project / "one.bin")).output)
    assert [words[0] for words in both] == ["in a file"] * 4


def test_plain_sbatch_packs_in_the_job(jobs):
    """And a list that another job has left in the shell is not taken for this one's."""
    other = make_environment(jobs.venv.parent / "other", "other")
    jobs.run("prog.py", VENV=str(other))
    (listed,) = (jobs.project / "logs").glob("staged-*/*.packs")
    command = ["sbatch", "--nodes=2", jobs.project / "slurm/submit_multinode.sh"]
    job = jobs.run("prog.py", script=command, STAGED=str(listed))
    assert [(words[0], words[7]) for words in results(job.output)] == [("first", "staged")] * 4, job.output
    assert "STAGE: packing" in job.output


def test_a_job_that_waits_keeps_its_software(jobs, cluster):
    """The packs are made when a job is submitted."""
    number = jobs.submit("prog.py", options=["--nodes=2", "--hold"])
    for module in jobs.venv.glob("lib/python*/site-packages/thing.py"):
        module.write_text("VALUE = 'second'\n")
    cluster.run("scontrol", "release", str(number))
    assert [words[0] for words in results(jobs.ended(number).output)] == ["first"] * 4
    assert [words[0] for words in results(jobs.run("prog.py").output)] == ["second"] * 4


WAITING = """\
import os, time
import thing
open(f"{os.environ['RUN_DIR']}/ready{os.environ['RANK']}", "w").close()
while not os.path.exists("go" + os.environ["SLURM_JOB_ID"]):
    time.sleep(0.1)
print("RESULT " + thing.__file__ + " " + str(len(os.listdir(os.path.dirname(thing.__file__)))))
"""


def wait_until_ready(jobs, number, ranks=4):
    logs = jobs.project / f"logs/{number}.0"
    wait_for(lambda: len(list(logs.glob("ready*"))) == ranks, f"that {number} runs")


@pytest.mark.parametrize("form", [pytest.param("tar", marks=pytest.mark.drill), SQUASHFS])
def test_two_jobs_share_a_copy(jobs, form):
    """The first one's end does not take it from the second; the second one's does."""
    (jobs.project / "wait.py").write_text(WAITING)
    half = ["--nodes=2", "--exclusive=user", "--cpus-per-task=2", "--gpus-per-node=1", "--mem=1G"]
    numbers = [jobs.submit("wait.py", options=half, STAGE_FORMAT=form) for _ in range(2)]
    for number in numbers:
        wait_until_ready(jobs, number)
    copies = jobs.copies("node1")
    assert len(copies) == len(set(copies)) == 1 + (not Path(sys.base_prefix).resolve().is_relative_to("/usr")), copies
    for number in numbers:
        (jobs.project / f"go{number}").touch()
        assert len(results(jobs.ended(number).output)) == 4
        assert jobs.copies("node1") == (copies if number == numbers[0] else [])


def test_keep_stage(jobs):
    """The next job on the node uses the copy; one without KEEP_STAGE leaves it, too."""
    first = jobs.run("prog.py", KEEP_STAGE="1")
    copies = jobs.copies("node2")
    assert copies and "by sbcast" in first.output
    second = jobs.run("prog.py")
    assert [words[7] for words in results(second.output)] == ["staged"] * 4
    assert "by sbcast" not in second.output and jobs.copies("node2") == copies


def test_a_job_that_is_killed_leaves_nothing_half_done(jobs, cluster, tmp_path):
    """It is killed while the copies are made. The next job makes them anew, and removes them at its end."""
    number = jobs.submit("prog.py", options=["--nodes=2", "--hold"])
    tools = tmp_path / "tools"  # a tar that hangs in the middle, on the nodes
    tools.mkdir()
    begun = tmp_path / "begun"
    script = f'#!/bin/sh\nfor folder; do :; done\necho half >"$folder/half"\necho >>"{begun}"\nsleep {FOREVER}\n'
    (tools / "tar").write_text(script)
    (tools / "tar").chmod(0o755)
    cluster.run("scancel", str(number))
    number = jobs.submit("prog.py", PATH=f"{tools}:{os.environ['PATH']}")
    wait_for(lambda: begun.exists() and len(begun.read_text()) >= 2, "that both nodes unpack")
    cluster.run("scancel", "--signal=KILL", str(number))
    cluster.run("scancel", str(number))
    cluster.wait(number)
    job = jobs.run("prog.py")
    assert [(words[0], words[7]) for words in results(job.output)] == [("first", "staged")] * 4, job.output
    left = jobs.copies("node1") + jobs.copies("node2")  # what sbcast had sent to the killed job, for a day
    assert all(name.endswith(f".sent-{number}") for name in left), left


def test_sbcast_that_fails(jobs, tmp_path):
    """The nodes then read the packs themselves."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbcast").write_text("#!/bin/sh\nexit 1\n")
    (tools / "sbcast").chmod(0o755)
    job = jobs.run("prog.py", PATH=f"{tools}:{os.environ['PATH']}")
    assert "sbcast could not send" in job.output and "read from the shared file system" in job.output
    assert [words[7] for words in results(job.output)] == ["staged"] * 4, job.output


@needs_two_users
def test_what_sbcast_sends_is_closed_to_other_users(jobs, tmp_path):
    """A file that they could read, in a folder that they cannot enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "data").write_text("1")
    (private / "data").chmod(0o644)
    tools = tmp_path / "tools"
    tools.mkdir()
    look = f"setpriv --reuid={NEIGHBOUR} --clear-groups find {OWN} -type f -readable 2>/dev/null"
    sent = f'ls -d "$3" >>"{tmp_path}/sent"; {look} >>"{tmp_path}/read"'
    (tools / "sbcast").write_text(f'#!/bin/sh\n{shutil.which("sbcast", path=PATH)} "$@" && {{ {sent}; true; }}\n')
    (tools / "sbcast").chmod(0o755)
    settings = {"STAGE_DATA": str(private / "data"), "PATH": f"{tools}:{os.environ['PATH']}"}
    assert "sent by sbcast" in jobs.run("prog.py", **settings).output
    assert (tmp_path / "sent").read_text() and (tmp_path / "read").read_text() == ""


@needs_two_users
def test_nothing_is_sent_to_a_folder_of_another_user(jobs):
    for node in ("node1", "node2"):
        jobs.on_node(node, "sh", "-c", f"mkdir -m 777 {OWN} && chown {NEIGHBOUR} {OWN}")
    try:
        output = jobs.run("prog.py", options=["--nodes=2", "--nodelist=node1,node2"]).output
        assert f"not all nodes could make {OWN}" in output and "is not a folder of yours" in output
        assert jobs.copies("node1") == jobs.copies("node2") == []
        assert [words[7] for words in results(output)] == ["as it lies"] * 4
    finally:
        for node in ("node1", "node2"):
            jobs.on_node(node, "rm", "-r", OWN)


def test_a_full_disk(jobs):
    """The check before the launch names the space; without the check, the ranks load what lies there."""
    (jobs.venv / "lib/weights").write_bytes(os.urandom(3 << 20))  # a bare environment would fit into 1 MiB
    small, there = "/dev/shm/small", ("--nodes=2", "--nodelist=node1,node2")
    for node in ("node1", "node2"):
        jobs.on_node(node, "sh", "-c", f"mkdir -p {small} && mount -t tmpfs -o size=1m tmpfs {small}")
    try:
        job = jobs.cluster.wait(jobs.submit("prog.py", options=there, STAGE_DIR=small))
        assert job.state == "FAILED" and re.search(
            r"small has [01] MiB left, and the copies of STAGE need \d+ MiB", job.output
        ), job.output
        assert "set STAGE_DIR to a larger disk of the node, or STAGE=0" in job.output
        job = jobs.run("prog.py", options=there, STAGE_DIR=small, PREFLIGHT="0")
        assert [words[7] for words in results(job.output)] == ["as it lies"] * 4, job.output
        assert "set STAGE_DIR to a larger disk of the node. Ranks of this node read" in job.output
    finally:
        for node in ("node1", "node2"):
            jobs.on_node(node, "umount", "-l", small)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"STAGE": "yes"}, "STAGE='yes': expected 1 or 0"),
        ({"KEEP_STAGE": "2"}, "KEEP_STAGE='2': expected 1 or 0"),
        ({"STAGE_DIR": "tmp"}, "STAGE_DIR='tmp': expected an absolute path"),
        ({"STAGE_DATA": "nowhere"}, "STAGE_DATA='nowhere': expected a file or a folder"),
        ({"RUNTIME": "none", "PYTHON": sys.executable}, "STAGE=1 copies a virtual environment, and RUNTIME='none'"),
        ({"STAGE_FORMAT": "zip"}, "STAGE_FORMAT='zip': expected squashfs or tar"),
    ],
)
def test_wrong_settings_are_refused_at_submission(jobs, settings, words):
    done = jobs.call("prog.py", check=False, **settings)
    assert done.returncode == 2 and words in done.stderr and "Submitted" not in done.stdout, done.stderr


# ---- launch/stage/enter.py alone -------------------------------------------------------------------------------------


@pytest.fixture
def staged(tmp_path):
    """Data that are packed, as pack.py lists them, and a folder for the copies."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("1")
    (tmp_path / "disk").mkdir()
    return tmp_path


def pack(folder, form="tar"):
    command = [sys.executable, "-B", TEMPLATE / "launch/stage/pack.py", folder / "packs", "--data", folder / "data"]
    environment = {**os.environ, "STAGE_FORMAT": form}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def enter(folder, *words, before="", **environment):
    """Call enter.py, after some lines of Python; return the finished process."""
    lines = f"import sys; sys.path.insert(0, {str(TEMPLATE / 'launch/stage')!r}); import enter; {before}\nenter.main()"
    command = [sys.executable, "-B", "-c", lines, folder / "disk", "--packs", *words]
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


CAN_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
needs_mount = pytest.mark.skipif(not CAN_MOUNT, reason="mount namespaces are not allowed here")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("enter.libc.unshare = lambda *_: 1", "cannot make a "),
        ("enter.libc.mount = lambda *_: 1", "cannot mount "),
        ("enter.new_namespace = lambda: enter.os._exit(0)", "the process that mounts the copies was killed"),
        ("enter.shutil.disk_usage = 0; enter.check_space = lambda *_: enter.os.stat('/nowhere')", "No such file"),
    ],
)
def test_a_node_that_cannot_mount_loads_what_lies_there(staged, lines, words):
    """As where user namespaces are forbidden. The line says what the ranks do instead."""
    done = enter(staged, pack(staged), "--", "cat", staged / "data/file", before=lines)
    assert (done.returncode, done.stdout) == (0, "1"), done.stderr
    assert words in done.stderr and f"read {staged / 'data'} from the shared file system" in done.stderr


@needs_mount
def test_a_rank_that_cannot_mount_stays_where_it_was(staged):
    """Half of the mounts are no state to run in. The next ranks of the step do not try; a later step does."""
    listed = pack(staged)
    broken = (
        "mount = enter.mount; enter.mount = lambda s, t, f: (mount(s, t, f), s == 'none' or enter.call('x', lambda: 1))"
    )
    for before, step, words in ((broken, "1", "cannot x"), ("", "1", "another rank could not"), ("", "2", "")):
        done = enter(staged, listed, "--", "readlink", "/proc/self/ns/mnt", before=before, SLURM_STEP_ID=step)
        assert words in done.stderr, done.stderr
        assert (done.stdout.strip() == os.readlink("/proc/self/ns/mnt")) == (step == "1")


@needs_mount
def test_a_second_run_of_a_step_makes_the_namespace_anew(staged):
    """The record of a process that has ended is replaced, and the rank after it joins."""
    listed = pack(staged)
    for _ in range(3):
        done = enter(staged, listed, "--", "cat", staged / "data/file")
        assert (done.returncode, done.stdout) == (0, "1") and "Ranks of this node" not in done.stderr, done.stderr


@needs_mount
def test_half_a_copy_is_never_used(staged):
    """As a process leaves it that was killed while it copied, or while it removed."""
    listed = pack(staged)
    key = Path(listed).read_text().split("\t")[1]
    for left in (".unfinished", ".removing"):
        half = staged / "disk" / f"staged-{os.getuid()}" / f"{key}{left}/content"
        half.mkdir(parents=True, mode=0o700)
        (half / "file").write_text("half")
        done = enter(staged, listed, "--", "cat", staged / "data/file")
        assert (done.returncode, done.stdout) == (0, "1") and "Ranks of this node" not in done.stderr, done.stderr


def test_signals_are_those_of_any_program(staged):
    """Python ignores SIGPIPE, and a program would inherit that."""
    done = enter(staged, pack(staged), "--", "grep", "SigIgn", "/proc/self/status")
    assert int(done.stdout.split()[1], 16) & (1 << 12) == 0, done.stdout


def test_another_users_folder_is_not_used(staged):
    (staged / "disk" / f"staged-{os.getuid()}").symlink_to(staged)
    done = enter(staged, pack(staged), "--", "cat", staged / "data/file")
    assert (done.returncode, done.stdout) == (0, "1") and "is not a folder of yours" in done.stderr


@needs_mount
def test_left_overs_are_removed_after_a_day(staged):
    """Those of a job that was killed, and kept ones after a week; not what a process uses, or is wanted."""
    own = staged / "disk" / f"staged-{os.getuid()}"
    own.mkdir(mode=0o700)
    for name, days, kept in (("old", 2, False), ("new", 0, False), ("kept", 2, True), ("too-old", 8, True)):
        (own / name).mkdir()
        (own / name / "in-use").touch()
        if kept:
            (own / name / "keep").touch()
        if days > 1:
            (own / f"{name}.unfinished").mkdir()
        then = time.time() - 86400 * days
        os.utime(own / name / "in-use", (then, then))
    sent = [own / f"{name}.sent-7" for name in ("old", "new")]
    for path in sent:
        path.touch()
    os.utime(sent[0], (time.time() - 2 * 86400,) * 2)
    done = enter(staged, pack(staged), "--", "ls", own)
    assert [path.exists() for path in sent] == [False, True]
    assert [name for name in ("old", "new", "kept", "too-old") if name in done.stdout.split()] == ["new", "kept"]
    assert not [name for name in done.stdout.split() if name.endswith((".unfinished", ".removing"))]


@needs_mount
@pytest.mark.skipif(not HAVE_SQUASHFS, reason="no squashfuse, or no FUSE")
def test_squashfuse_survives_the_signals_that_end_a_job(staged):
    """The ranks need their files while they save. It ends with the removal of the copy."""
    script = (
        f"kill -TERM -1; kill -HUP -1; sleep 0.2; cat {staged}/data/file; touch {staged}/data/new || echo read-only"
    )
    lines = ["trap '' TERM HUP", script]
    listed = pack(staged, "squashfs")
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-B"]
    command = [*inside, TEMPLATE / "launch/stage/enter.py", staged / "disk", "--packs", listed, "--"]
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "1"}
    done = subprocess.run(
        [*command, "bash", "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1read-only\n", done.stderr
