"""The written project on a real Slurm: sites that differ, interactive shells, and the virtual environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from baking import REPOSITORY, bake, page
from launching import OWN_PROGRAM
from submitting import ANSWERS, cluster, each_slurm, project, python_environment, usual_slurm
from waiting import INSTALLATION

# ---- sites that differ -----------------------------------------------------------------------------------------------


def test_a_site_that_exports_nothing(usual_slurm, project, tmp_path):
    """Where SBATCH_EXPORT=NONE is the rule, env.sh alone says what the ranks get."""
    mine = tmp_path / "own"
    shutil.copytree(project, mine)
    settings = mine / "env.sh"
    text = settings.read_text().replace("${PYTHON:-python3}", sys.executable)
    settings.write_text(text.replace("${LAUNCHER:-torchrun}", "srun"))
    (mine / "own.py").write_text(OWN_PROGRAM)
    environment = {"SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE"}
    job = usual_slurm.submit("slurm/submit_multinode.sh", "own.py", cwd=mine, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert sorted(re.findall(r"RESULT (\d\|4\|6)\|", job.output)) == [f"{rank}|4|6" for rank in range(4)], job.output


def test_nodes_without_gpus(cluster, tmp_path):
    project = bake(tmp_path, site="slurm", nodes="2", gpus_per_node="0")
    # as if submitted from a step that had GPUs
    given = {"CPU_RANKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    environment = python_environment(LAUNCHER="srun", **given)
    (project / "own.py").write_text(OWN_PROGRAM)
    job = cluster.submit("slurm/submit_multinode.sh", "own.py", cwd=project, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert sorted(re.findall(r"RESULT (\d\|2\|1)\|", job.output)) == ["0|2|1", "1|2|1"], job.output
    assert job.nodes == ["node1", "node2"]


def test_headers_are_accepted(cluster, project):
    def tried(*arguments):
        return cluster.run("sbatch", "--test-only", *arguments, cwd=project, check=False)

    for script in ("slurm/submit_multinode.sh", "slurm/build_venv.sh"):
        assert tried(script).returncode == 0, tried(script).stderr
    assert tried("--gpus-per-node=3", "slurm/submit_multinode.sh").returncode != 0  # that it can be refused


def test_an_interactive_shell_has_the_software(each_slurm, project, tmp_path):
    """A terminal of its own, as a user has; the prompt is answered by what is typed."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    typed = 'echo "on $(hostname) with $(command -v python3), $SLURM_GPUS_ON_NODE GPUs, $SLURM_CPUS_ON_NODE cores"\n'
    # a run inside it, which is a step inside a step
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    typed += f"export PYTHON={sys.executable} RUNTIME=none LAUNCHER=srun\n"
    typed += f"bash slurm/run_here.sh '{tmp_path}/own.py' </dev/null\nexit\n"
    command = ["script", "-qec", "bash slurm/interactive.sh --time=00:30:00", "/dev/null"]
    done = each_slurm.run(
        *command, cwd=project, env={"RUNTIME": "venv", "VENV": str(venv), "TERM": "dumb"}, stdin=typed
    )
    assert re.search(rf"on node\d with {venv}/bin/python3, 2 GPUs, 8 cores", done.stdout), done.stdout
    assert sorted(re.findall(r"RESULT (\d\|2\|1)\|", done.stdout)) == ["0|2|1", "1|2|1"], done.stdout


def test_the_line_of_the_page_opens_such_a_shell_too(cluster, project):
    line = re.search(r"opens the same shell .*\n\n```bash\n(.*)\n```", page(project, "cluster"))[1]
    typed = 'echo "on $(hostname) with $PYTHON, $SLURM_GPUS_ON_NODE GPUs, $SLURM_CPUS_ON_NODE cores"\nexit\n'
    environment = {"PYTHON": sys.executable, "TERM": "dumb"}
    done = cluster.run("script", "-qec", line, "/dev/null", cwd=project, env=environment, stdin=typed)
    assert re.search(rf"on node\d with {sys.executable}, 2 GPUs, 8 cores", done.stdout), done.stdout


def test_what_a_site_asks_of_its_jobs_is_done(cluster, tmp_path):
    """Ports, a host's second name, options of srun per launcher, variables, modules: as a laboratory's file says."""
    text = (REPOSITORY / "sites/slurm.yaml").read_text()
    (tmp_path / "lab.yaml").write_text(
        text.replace("node:\n", "node:\n  gpus: 2\n", 1)
        + "ports: {first: 15000, last: 15004}\nhost_suffix: i\nmodules: [base]\nmodules_after: reset\n"
        "containers: {none: {modules: [torch]}, venv: {modules: [python]}}\n"
        f"module_lines:\n  before: [{{line: source {tmp_path}/modules.sh, why: x}}]\n"
        "  after: [{line: 'export LAB_MODULES=\"$LAB_MODULES, then a line\"', why: x}]\n"
        "environment:\n  - {name: LAB_FORCED, value: '0,1', why: x, force: true}\n"
        "  - {name: LAB_JOB, value: '/tmp/${USER}-${SLURM_JOB_ID}', why: x}\n  - {name: LAB_OWN, value: a b, why: x}\n"
        "srun:\n  - {option: --comment=always, why: x}\n  - {option: --comment=node, why: x, tasks: node}\n"
        "  - {option: --comment=rank, why: x, tasks: rank}\ntorchrun: [{option: --local-ranks-filter=0, why: x}]\n"
    )
    project = bake(tmp_path, site=tmp_path / "lab.yaml", nodes="2", gpus_per_node="2")
    # there are no modules here, and no second name: a function and the first name take their places
    (tmp_path / "modules.sh").write_text('module() { echo "module $*" && export LAB_MODULES="$*"; }\n')
    settings = project / "env.sh"
    settings.write_text(f'hash -p "{tmp_path}/srun" srun\n{settings.read_text()}')
    (tmp_path / "srun").write_text('#!/bin/sh\necho "srun $*"\nMASTER_ADDR=${MASTER_ADDR%i} exec /usr/bin/srun "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    names = "FORCED", "JOB", "OWN", "MODULES"
    (tmp_path / "own.py").write_text(f"import os\nprint([os.environ[f'LAB_{{name}}'] for name in {names}])\n")
    surroundings = {**python_environment(PREFLIGHT="0"), "LAB_FORCED": "7", "LAB_JOB": "/tmp/other", "LAB_OWN": "mine"}
    of_launchers = ("torchrun", "", "node", 2), ("srun", "", "rank", 4), ("srun", "1", "always", 2)
    for launcher, ranks, wanted, lines in of_launchers:
        environment = {**surroundings, "LAUNCHER": launcher, "NPROC_PER_NODE": ranks}
        job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        assert job.output.startswith("module reset\nmodule load base torch\n"), job.output
        assert re.search(r"meeting at node\di:1500[0-4]$", job.output, re.MULTILINE), job.output
        values = ["0,1", f"/tmp/{cluster.user}-{job.id}", "mine", "load base torch, then a line"]
        assert job.output.count(str(values)) == lines, job.output
        comments = re.findall(r"--comment=(\w+)", job.output)
        assert comments[-1] == wanted and comments[0] == "always", comments


# ---- the virtual environment -----------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path):
    """A project for a site whose compute nodes reach no package index, as the nodes of the test cluster do not."""
    site = tmp_path / "offline.yaml"
    site.write_text((REPOSITORY / "sites/slurm.yaml").read_text() + "internet: false\n")
    return bake(tmp_path / "a b", **{**ANSWERS, "site": site, "runtime": "venv"})


def stand_in_for_torch(folder):
    """A wheel that is called torch and has just enough of it for build_venv.sh: the real one is the drill below."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "torch-0.0.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "torch/__init__.py", "__version__ = '0.0.1'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
        )
        wheel.writestr("torch-0.0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
        wheel.writestr("torch-0.0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("torch-0.0.1.dist-info/RECORD", "")


def test_build_venv(cluster, offline):
    def build(**environment):
        command = ["bash", "slurm/build_venv.sh", "--time=00:30:00"]
        environment = {**python_environment(), "SBATCH_EXPORT": "NONE", "PROJECT_DIR": "/elsewhere", **environment}
        return cluster.run(*command, cwd=offline, env=environment, check=False)

    empty = build()
    assert empty.returncode == 2 and "'pip download -r requirements.txt -d wheels'" in empty.stderr
    settings = offline / "env.sh"  # as a user would who keeps them elsewhere
    settings.write_text(settings.read_text().replace("$PROJECT_DIR/wheels", str(offline.parent / "my wheels")))
    stand_in_for_torch(offline.parent / "my wheels")
    (offline / "requirements.txt").write_text("torch==0.0.2\n")
    job = cluster.wait(int(build().stdout.split()[-1]))
    assert job.state == "FAILED" and "torch==0.0.2" in job.output
    assert not (offline / ".venv").exists()  # half an environment is none
    old = offline.parent / "python3"
    old.write_text("#!/bin/bash\n[[ $1 != --version ]] || echo Python 3.6.8\nexit 1\n")
    old.chmod(0o755)
    refused = build(PYTHON=str(old))
    assert (
        refused.returncode == 2 and "Python 3.6.8 is too old: name a module with Python 3.10 or newer" in refused.stderr
    )
    bare = offline.parent / "python-without-venv"  # as Debian's, without the package python3-venv
    bare.write_text(f'#!/bin/bash\n[[ $2 != *ensurepip* ]] || exit 1\nexec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    refused = build(PYTHON=str(bare))
    assert refused.returncode == 2 and "python-without-venv has no venv or ensurepip" in refused.stderr
    (offline / "requirements.txt").write_text("torch==0.0.1\n")
    job = cluster.wait(int(build().stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert f"ready: {offline}/.venv" in job.output
    (offline / ".venv/.unfinished").touch()  # as while it is being built
    early = cluster.run("bash", "slurm/submit_multinode.sh", "pi/pi.py", cwd=offline, check=False)
    assert early.returncode == 2 and "is still being built; wait for the end of the job" in early.stderr
    again = build()
    assert again.returncode == 2 and "exists already; remove it first" in again.stderr


@pytest.mark.drill
def test_build_venv_on_the_login_node(cluster, tmp_path):
    """Where login nodes have internet and the processor of the compute nodes: no job, and no wait for one."""
    site = (REPOSITORY / "sites/slurm.yaml").read_text() + "login_internet: true\ninternet: false\n"
    (tmp_path / "lab.yaml").write_text(site + "containers: {venv: {on_login_node: true}}\n")
    project = bake(tmp_path / "a b", **{**ANSWERS, "site": tmp_path / "lab.yaml", "runtime": "venv"})
    stand_in_for_torch(tmp_path / "wheels")
    (project / "requirements.txt").write_text("torch==0.0.1\n")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}

    def build(*words):
        command = ["bash", "slurm/build_venv.sh", *words]
        return cluster.run(*command, cwd=project, env=python_environment(**index), check=False)

    refused = build("--time=00:30:00")
    assert refused.returncode == 2 and "this script has no options" in refused.stderr
    assert not (project / ".venv").exists()
    done = build()
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"ready: {project}/.venv", done.stderr
    assert "Submitted batch job" not in done.stdout and not list(project.glob("*.out"))


@pytest.mark.drill
def test_build_venv_from_a_wheelhouse(cluster, tmp_path):
    """pip finds the site's wheels by its own settings, and takes nothing else."""
    site = (REPOSITORY / "sites/slurm.yaml").read_text() + "containers: {venv: {wheelhouse: avail_wheels}}\n"
    (tmp_path / "lab.yaml").write_text(site)
    project = bake(tmp_path / "a b", **{**ANSWERS, "site": tmp_path / "lab.yaml", "runtime": "venv"})
    stand_in_for_torch(tmp_path / "wheelhouse")
    (tmp_path / "bin").mkdir()

    def build():
        environment = python_environment(PIP_FIND_LINKS=str(tmp_path / "wheelhouse"), SBATCH_EXPORT="NONE")
        environment |= {"PATH": f"{tmp_path}/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        command = ["bash", "slurm/build_venv.sh", "--time=00:30:00"]
        return cluster.run(*command, cwd=project, env=environment, check=False)

    (project / "requirements.txt").write_text("torch\nanother\n")
    without = build()
    assert without.returncode == 2 and "virtualenv was not found" in without.stderr
    own = tmp_path / "bin/virtualenv"  # with the options that the script gives it
    own.write_text('#!/bin/bash\n[[ $1 == --no-download && $# == 3 ]] && exec "${2#--python=}" -m venv "$3"\n')
    own.chmod(0o755)
    job = cluster.wait(int(build().stdout.split()[-1]))
    assert job.state == "FAILED" and "'avail_wheels NAME' lists the versions it has" in job.output, job.output
    assert "No matching distribution found for another" in job.output
    assert not (project / ".venv").exists()
    (project / "requirements.txt").write_text("torch\n")
    job = cluster.wait(int(build().stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "torch 0.0.1 sees 0 GPU(s) here" in job.output and f"ready: {project}/.venv" in job.output


@pytest.mark.drill
def test_build_venv_with_the_real_torch(cluster, offline):
    pip = [sys.executable, "-m", "pip", "download", "-q", "-r", offline / "requirements.txt", "-d", offline / "wheels"]
    subprocess.run(pip, check=True, timeout=INSTALLATION)
    done = cluster.run("bash", "slurm/build_venv.sh", cwd=offline, env=python_environment())
    job = cluster.wait(int(done.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    done = cluster.run("bash", "slurm/submit_multinode.sh", "pi/pi.py", "--intervals", "1e6", cwd=offline)
    job = cluster.wait(int(done.stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "4 ranks" in job.output
