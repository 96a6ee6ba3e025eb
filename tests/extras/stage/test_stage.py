"""Jobs whose nodes copy software and data to their own disks first (STAGE=1, STAGE_DATA), on a real Slurm.

The node's own disk is /dev/shm here, which each node of the tests' cluster has for itself. test_pack.py has what is
packed, and test_enter.py what a node makes of it.
"""

from __future__ import annotations

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
from baking import bake
from needs import needs_namespaces
from slow_files import FUSE_IS_HERE, slow_files
from slurm_cluster import PATH, Cluster
from submitting import ANSWERS, cluster, python_environment
from users import NEIGHBOUR, needs_two_users
from waiting import FOREVER, wait_for

OWN = f"/dev/shm/staged-{os.getuid()}"  # the folder of copies on a node
# It imports no torch: where srun starts it, a job takes a second.
PROGRAM = """\
import os, subprocess, sys
import thing
words = [thing.VALUE, sys.prefix, os.environ["VIRTUAL_ENV"], thing.__file__, sys.base_prefix]
words += [subprocess.run(["a-script"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip(), os.getcwd()]
words += ["staged" if sys.prefix.startswith("/dev/shm/") else "as it lies", os.environ["SLURMD_NODENAME"]]
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
        self.settings |= {"STAGE_DIR": "/dev/shm"}

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
    project = bake(tmp_path / "a b", **ANSWERS, extras="stage")
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


def test_ranks_load_a_copy(jobs):
    """Interpreter, packages and scripts are those of the copy; nothing is left."""
    job = jobs.run("prog.py")
    found, environment = results(job.output), str(jobs.venv)
    assert len(found) == 4, job.output
    for value, prefix, variable, file, base, script, folder, where, _ in found:
        assert re.fullmatch(rf"{OWN}/[0-9a-f]{{16}}/content/{jobs.venv.name}", prefix), job.output
        assert (value, variable, where) == ("first", prefix, "staged") and file.startswith(f"{prefix}/lib/"), job.output
        assert base == sys.base_prefix if is_below_usr() else base.startswith(f"{OWN}/"), job.output
        assert (script, folder) == (f"script of {prefix}", str(jobs.project))
    assert {node for *_, node in found} == {"node1", "node2"}
    assert f"{environment} is on this node's disk" in job.output and "by sbcast" in job.output
    packs = (jobs.project / f"logs/{job.id}.0/staged.txt").read_text().splitlines()
    assert packs[-1].split("\t")[::3] == ["environment", environment]
    assert [jobs.copies(node) for node in ("node1", "node2")] == [[], []]


def is_below_usr():
    """Return whether the tests' Python is on each node already, so that it is not packed."""
    return Path(sys.base_prefix).resolve().is_relative_to("/usr")


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
words = [sys.prefix, os.environ.get("VIRTUAL_ENV") or os.environ["CONDA_PREFIX"]]
words += [subprocess.run(["a-script"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()]
words += [thing.__file__, os.__file__, os.path.realpath(sys.executable), sys.base_prefix]
sys.stdout.write("RESULT " + "|".join(words) + "\\n")
"""


@pytest.mark.parametrize("make", [environment_of_uv, environment_of_conda])
def test_environments_with_a_python_of_their_own(jobs, make, tmp_path):
    """The interpreter, its library and the packages are loaded from the node's disk."""
    (jobs.project / "own.py").write_text(OWN_PYTHON)
    environment, _ = make(tmp_path)
    job = jobs.run("own.py", VENV=str(environment))
    for prefix, variable, script, *places in results(job.output):
        assert prefix.endswith(f"/content/{environment.name}"), job.output
        assert (variable, script) == (prefix, f"script of {prefix}"), job.output
        assert all(place.startswith(f"{OWN}/") for place in places), job.output
    assert len(results(job.output)) == 4 and jobs.copies("node1") == []


def test_without_it_they_load_what_lies_there(jobs):
    """What the test above cannot see: that it tells a copy from the original."""
    found = results(jobs.run("prog.py", STAGE="0").output)
    assert [words[7] for words in found] == ["as it lies"] * 4
    assert not list((jobs.project / "logs").glob("staged*"))


@pytest.mark.drill
@pytest.mark.skipif(not FUSE_IS_HERE, reason="no /dev/fuse")
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_the_shared_file_system_is_asked_for_less(launcher, tmp_path):
    """Opens of the environment on it, counted by a file system that counts; it is mounted before the nodes start."""
    project = bake(tmp_path / "project", **ANSWERS, extras="stage")
    environment = make_environment(tmp_path / "environment")
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
            number = jobs.submit("prog.py", options=["--nodes=2", "--hold"], STAGE=stage)
            before = counts()
            own_cluster.run("scontrol", "release", str(number))
            assert len(results(jobs.ended(number).output)) == 4
            asked[stage] = {name: counts()[name] - before.get(name, 0) for name in ("open", "getattr")}
    # Left are what the submit script reads (bin/activate), and pyvenv.cfg, which each Python reads once.
    assert asked["0"]["open"] >= 16 and asked["1"]["open"] <= asked["0"]["open"] - 8, asked
    assert asked["1"]["getattr"] < asked["0"]["getattr"] / 2, asked


def test_data(jobs):
    """A file and a folder, also without an environment: as arguments, as typed or by their real path; STAGE_DATA."""
    (jobs.project / "data/inner").mkdir(parents=True)
    (jobs.project / "data/inner/a").write_text("in a folder")
    (jobs.project / "one.bin").write_text("in a file")
    program = "import os, sys\nwords = [*sys.argv[1:], os.environ['STAGE_DATA'], open(sys.argv[1]).read()]\n"
    (jobs.project / "read.py").write_text(program + "sys.stdout.write('RESULT ' + '|'.join(words) + '\\n')\n")
    whole = str(jobs.project / "data")
    words = ["data/inner/a", f"--data={whole}/inner", f"train.data={whole}", "data", "database", f"{whole}s"]
    job = jobs.run("read.py", *words, STAGE="0", STAGE_DATA="data/")
    for *found, variable, text in results(job.output):
        assert re.fullmatch(rf"{OWN}/[0-9a-f]{{16}}/content/data", variable) and text == "in a folder", job.output
        copied = [f"{variable}/inner/a", f"--data={variable}/inner", f"train.data={variable}", variable]
        assert found == [*copied, "database", f"{whole}s"], job.output
    job = jobs.run("read.py", str(jobs.project / "one.bin"), STAGE="0", STAGE_DATA="one.bin")
    for argument, variable, text in results(job.output):
        assert argument == variable and re.fullmatch(rf"{OWN}/[0-9a-f]{{16}}/content/one.bin", variable), job.output
        assert text == "in a file"
    both = jobs.run("prog.py", STAGE_DATA=str(jobs.project / "one.bin"))
    assert [words[7] for words in results(both.output)] == ["staged"] * 4 and "one.bin is on" in both.output


def test_plain_sbatch_packs_in_the_job(jobs):
    """And packs that another job has left in the shell are not taken for this one's."""
    other = make_environment(jobs.venv.parent / "other", "other")
    packs = (jobs.project / f"logs/{jobs.run('prog.py', VENV=str(other)).id}.0/staged.txt").read_text()
    command = ["sbatch", "--nodes=2", jobs.project / "slurm/submit_multinode.sh"]
    job = jobs.run("prog.py", script=command, STAGE_PACKS=packs.strip())
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


def test_two_jobs_share_a_copy(jobs):
    """The first one's end does not take it from the second; the second one's does."""
    (jobs.project / "wait.py").write_text(WAITING)
    half = ["--nodes=2", "--exclusive=user", "--cpus-per-task=2", "--gpus-per-node=1", "--mem=1G"]
    numbers = [jobs.submit("wait.py", options=half) for _ in range(2)]
    for number in numbers:
        wait_until_ready(jobs, number)
    copies = jobs.copies("node1")
    assert len(copies) == len(set(copies)) == 1 + (not is_below_usr()), copies
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
    """On one of two nodes: its ranks load what lies there, and one line says why."""
    (jobs.venv / "lib/weights").write_bytes(os.urandom(3 << 20))  # a bare environment would fit into 1 MiB
    (jobs.project / "one.bin").write_text("in a file")
    small, there = "/dev/shm/small", ("--nodes=2", "--nodelist=node1,node2")
    for node, size in (("node1", "1m"), ("node2", "1g")):
        jobs.on_node(node, "sh", "-c", f"mkdir -p {small} && mount -t tmpfs -o size={size} tmpfs {small}")
    try:
        settings = {"STAGE_DIR": small, "STAGE_DATA": "one.bin"}
        job = jobs.run("prog.py", options=there, **settings)
        found = [(words[8], words[7]) for words in results(job.output)]
        assert sorted(found) == [("node1", "as it lies")] * 2 + [("node2", "staged")] * 2, job.output
        assert job.output.count("where they lie") == 1, job.output
        (said,) = re.findall("extras/stage on .*where they lie", job.output)
        assert "No space left" in said and str(jobs.venv) in said and str(jobs.project / "one.bin") in said, said
        assert jobs.on_node("node1", "find", small, "-name", "*.unfinished", "-o", "-name", "*.sent-*") == ""
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
    ],
)
def test_wrong_settings_are_refused_at_submission(jobs, settings, words):
    done = jobs.call("prog.py", check=False, **settings)
    assert done.returncode == 2 and words in done.stderr and "Submitted" not in done.stdout, done.stderr


def test_rank_prefix_stands_before_it(jobs):
    """A profiler of the user's sees the environment where it lies, and the ranks' copy."""
    settings = jobs.project / "env.sh"
    settings.write_text(
        settings.read_text().replace(
            "RANK_PREFIX=()", 'RANK_PREFIX=(env FROM_PREFIX=1 sh -c \'echo "PREFIX $VIRTUAL_ENV"; exec "$@"\' sh)'
        )
    )
    output = jobs.run("prog.py").output
    assert re.findall("PREFIX .*", output) == [f"PREFIX {jobs.venv}"] * len(re.findall("PREFIX .*", output)) != [], (
        output
    )
    assert [words[7] for words in results(output)] == ["staged"] * 4, output


@pytest.mark.drill
def test_in_an_array(jobs):
    """Each job uses the packs of the submission."""
    array = jobs.call("prog.py", options=["--nodes=2", "--array=1-2", "--parsable"]).stdout.strip()
    jobs.submitted.append(array)
    queue = ["squeue", "--noheader", f"--jobs={array}"]
    wait_for(lambda: not jobs.cluster.run(*queue, check=False).stdout.strip(), "the end of both jobs")
    outputs = [file.read_text() for file in jobs.project.glob("demo-*.out")]
    assert len(outputs) == 2
    for output in outputs:
        assert [words[7] for words in results(output)] == ["staged"] * 4 and "STAGE: packing" not in output, output
    assert jobs.copies("node1") == jobs.copies("node2") == []


CHANGES = """\
import glob
if os.environ["RESTART_COUNT"] == "0":
    for file in glob.glob(os.environ["ORIGINAL"] + "/lib/python*/site-packages/thing.py"):
        open(file, "w").write("VALUE = 'second'")
"""


@pytest.mark.drill
def test_after_a_requeue(jobs):
    """The job uses the packs of its submission again, though the environment has changed meanwhile."""
    (jobs.project / "again.py").write_text(PROGRAM + CHANGES)
    (jobs.project / "extras/again").mkdir()
    (jobs.project / "extras/again/settings.sh").touch()
    hooks = "again_after_launch() { [[ $RESTART_COUNT != 0 ]] || outcome=requeue; }\n"
    (jobs.project / "extras/again/hooks.sh").write_text(hooks)
    job = jobs.run("again.py", ORIGINAL=str(jobs.venv))
    assert [(words[0], words[7]) for words in results(job.output)] == [("first", "staged")] * 8, job.output
    assert "back into the queue as attempt 1" in job.output and "STAGE: packing" not in job.output
    assert jobs.copies("node1") == jobs.copies("node2") == []


@pytest.mark.drill
def test_nodes_without_zstd(jobs, tmp_path):
    """The job packs anew, without it."""
    only = tmp_path / "only"
    only.mkdir()
    for folder in PATH.split(":"):
        for program in Path(folder).glob("*"):
            if program.name != "zstd" and not (only / program.name).exists():
                (only / program.name).symlink_to(program)
    with open(jobs.project / "env.sh", "a") as settings:
        settings.write(f'[[ -z ${{SLURM_JOB_ID:-}} ]] || PATH="{only}"\n')
    job = jobs.run("prog.py")
    assert [words[7] for words in results(job.output)] == ["staged"] * 4, job.output
    packs = (jobs.project / f"logs/{job.id}.0/staged.txt").read_text().splitlines()
    assert all(line.split("\t")[2].endswith(".tar") for line in packs) and "STAGE: packing" in job.output, job.output


WAITS_ONCE = (
    PROGRAM
    + """\
import time
open(f"{os.environ['RUN_DIR']}/ready{os.environ['RANK']}", "w").close()
while os.environ["RESTART_COUNT"] == "0":
    time.sleep(0.1)
"""
)


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_spare_node_gets_its_copy(launcher, tmp_path):
    project = bake(tmp_path / "project", **ANSWERS, extras="stage,spares")
    environment = make_environment(tmp_path / "environment")
    (project / "waits.py").write_text(WAITS_ONCE)
    conf = "SlurmdTimeout=20\nKillWait=30"
    with Cluster(tmp_path / "cluster", nodes=3, extra_conf=conf) as own_cluster:
        needs_namespaces(own_cluster)
        jobs = Jobs(own_cluster, launcher, project, environment)
        number = jobs.submit("waits.py", options=["--nodes=2"], SPARES="1")
        wait_until_ready(jobs, number)
        own_cluster.crash("node2")
        job = jobs.ended(number)
        second = [words[7:9] for words in results(job.output.partition("attempt 1: ranks")[2])]
        assert sorted(second) == [["staged", "node1"]] * 2 + [["staged", "node3"]] * 2, job.output
        assert jobs.copies("node1") == jobs.copies("node3") == []


# ---- the folder extras/stage -----------------------------------------------------------------------------------------


@pytest.mark.drill
def test_alone_and_deleted(jobs):
    """In a project without other extras; without its folder its settings are refused, and jobs run."""
    jobs.project = bake(jobs.project.parent / "own", **ANSWERS, extras="stage")
    (jobs.project / "prog.py").write_text(PROGRAM)
    assert [words[7] for words in results(jobs.run("prog.py").output)] == ["staged"] * 4
    shutil.rmtree(jobs.project / "extras/stage")
    done = jobs.call("prog.py", check=False)
    assert done.returncode == 2 and ": extras/stage is not in this project" in done.stderr, done.stderr
    for name in ("STAGE", "STAGE_DIR"):
        del jobs.settings[name]
    assert [words[7] for words in results(jobs.run("prog.py").output)] == ["as it lies"] * 4


def test_clean_removes_packs_that_were_not_used_for_two_weeks(jobs, tmp_path):
    """And what a process that was killed has left of one. No other file, and none behind a link."""
    old, new = "0123456789abcdef", "fedcba9876543210"
    packs = jobs.project / f"logs/staged-{os.getuid()}"
    names = [f".unfinished-{new}-node1-7", f"{old}.packs", f"{old}.packs.node1-7", f"{old}.sqsh", f"{old}.tar.zst"]
    other = tmp_path / "scratch"
    for folder, files in (
        (packs, [f"{new}.tar", "results.csv", *names, f"{old}.csv", f"x{old}.tar"]),
        (other, [f"{old}.tar"]),
    ):
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).touch()
    (jobs.project / "logs/staged").symlink_to(other)
    (packs / f"{old}.tar").symlink_to(other / f"{old}.tar")
    for file in [*packs.iterdir(), *other.iterdir()]:
        days = 0 if file.name.startswith(new) else 15
        os.utime(file, (time.time() - 86400 * days,) * 2, follow_symlinks=False)
    before, named = sorted(packs.iterdir()), [f"{packs.relative_to(jobs.project)}/{name}" for name in names]
    command = ["bash", jobs.project / "extras/stage/clean.sh"]
    said = jobs.cluster.run(*command, "--dry-run", check=True).stdout
    assert sorted(said.splitlines()) == [f"would remove {name}" for name in named]
    assert sorted(packs.iterdir()) == before
    assert sorted(jobs.cluster.run(*command, check=True).stdout.splitlines()) == named
    assert sorted(packs.iterdir()) == [path for path in before if path.name not in names]
    assert (other / f"{old}.tar").exists()
