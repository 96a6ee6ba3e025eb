"""Every container runtime on a real Slurm, with every launcher: images, mounts, names, refusals, and how jobs end.

Open MPI and Apptainer are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from baking import bake, page
from container_root import write_wheel
from launching import (
    OWN_PROGRAM,
    RUNTIMES,
    STAND_INS,
    build_image,
    container_cluster,
    everywhere,
    get_image,
    matrix,
    salloc,
    stand_in_image,
    surroundings,
    write_short_torchrun,
)
from needs import needs_namespaces
from slurm_cluster import PATH
from submitting import apptainer_project
from two_nodes import ENVIRONMENT
from users import NEIGHBOUR, ONE, as_user, folder_of_all, needs_two_users
from waiting import wait_for

from cluster_options.runtimes import IN_SRUN, LAUNCHERS
from cluster_options.sites import site_facts, site_names

REAL = ("none", "venv", "apptainer")  # the others are stand-ins, which check what they are given as the real ones do
ARGUMENTS = ["a b", '"', "$HOME", "--max"]


def cells():
    """Rows of the matrix. In every run: without a container all launchers, else srun and those that are refused.

    torchrun starts containers once per node: with Apptainer here, with the others in test_minimal_with_every_runtime.
    The drills have the rest, and the real torchrun.
    """
    for runtime in RUNTIMES:
        refused = [name for name in LAUNCHERS if runtime in IN_SRUN and "mpi" in name]
        quick = {"none": LAUNCHERS, "apptainer": ["torchrun", "srun"]}.get(runtime, ["srun", *refused])
        yield pytest.param("short", runtime, quick, id=runtime)
        rest = [name for name in LAUNCHERS if name in ("torchrun", "mpirun") or name not in quick]
        if rest := [name for name in rest if name not in refused]:
            yield pytest.param("real", runtime, rest, id=f"{runtime}-rest", marks=pytest.mark.drill)


@pytest.mark.parametrize(("torchrun", "runtime", "launchers"), cells())
def test_every_launcher_with_every_runtime(
    container_cluster, torchrun, runtime, launchers, everywhere, surroundings, tmp_path, matrix
):
    """Each cell of the matrix runs on two nodes of two ranks, or is refused with its reason.

    The project, the program and where it is started from are three folders, with spaces in their names, but for edf.
    """
    cluster = container_cluster
    blank = "_" if runtime == "edf" else " "
    project = bake(
        tmp_path / f"my{blank}projects", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2", extras="mpi"
    )
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "OF_THE_HOST": "1"}
    get_image(cluster, project, runtime, environment)
    here, there = tmp_path / f"here{blank}I{blank}am", tmp_path / f"my{blank}programs"
    here.mkdir()
    there.mkdir()
    (there / "own.py").write_text(OWN_PROGRAM)
    if torchrun == "short":
        write_short_torchrun(here)
    stand_before_launchers(project, there / "prefix.sh")
    command = ["bash", project / "slurm/run_here.sh", there / "own.py", *ARGUMENTS]
    for launcher in launchers:
        allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
        done = cluster.run(*allocation, *command, cwd=here, env={**environment, "LAUNCHER": launcher}, check=False)
        if runtime in IN_SRUN and launcher.startswith("mpirun"):
            assert done.returncode == 2 and "RESULT" not in done.stdout
            assert (
                f"LAUNCHER={launcher} cannot start RUNTIME={runtime}, a container that only srun starts" in done.stderr
            )
            matrix[runtime, launcher] = "refused"
            continue
        assert done.returncode == 0, done.stdout + done.stderr
        inside = runtime if runtime not in ("none", "venv") else "host"
        found = sorted(re.findall(r"RESULT (.*)", done.stdout))
        assert found == ["|".join([str(rank), "4", "6", inside, str(here), *ARGUMENTS]) for rank in range(4)], launcher
        wrapper, count = ("rank.sh", 4) if launcher in ("srun", "mpirun-ranks") else ("torchrun.sh", 2)
        first = "extras/mpi/ranks.sh" if launcher.startswith("mpirun") else f"launch/{wrapper}"
        expected = [f"{inside}|a b|bash {project}/{first}"] * count
        assert re.findall(r"PREFIX (.*)", done.stdout) == expected, done.stdout
        (requeue,) = project.glob("logs/latest/requeue")  # a program reaches what it may ask by, wherever it runs
        requeue.unlink()
        matrix[runtime, launcher] = "real" if runtime in REAL else "stand-in"


# What a user may write before each launcher; it says whether it runs in the container.
PREFIX = """\
#!/bin/sh
inside=${STAND_IN_RUNTIME:-host}
[ ! -e /.singularity.d ] || inside=apptainer
echo "PREFIX $inside|$1|$2 $3"
shift
exec "$@"
"""


def stand_before_launchers(project, script):
    """Write PREFIX into a file, and have env.sh of a project name it in RANK_PREFIX."""
    script.write_text(PREFIX)
    script.chmod(0o755)
    text = (project / "env.sh").read_text()
    assert text.count("\nRANK_PREFIX=()\n") == 1
    (project / "env.sh").write_text(text.replace("\nRANK_PREFIX=()\n", f'\nRANK_PREFIX=("{script}" "a b")\n'))


STARTED_BY = [("short", runtime) for runtime in RUNTIMES if runtime not in REAL]
STARTED_BY += [pytest.param("real", runtime, marks=pytest.mark.drill) for runtime in RUNTIMES if runtime != "none"]


@pytest.mark.parametrize(("torchrun", "runtime"), STARTED_BY)
def test_minimal_with_every_runtime(container_cluster, torchrun, runtime, everywhere, surroundings, tmp_path):
    """In a folder that holds the file, the program, and the image or the environment."""
    cluster, alone = container_cluster, tmp_path / "alone"
    project = bake(tmp_path / "project", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "OF_THE_HOST": "1"}
    get_image(cluster, project, runtime, environment)
    alone.mkdir()
    text = (project / "slurm/minimal.sbatch").read_text()
    if "IMAGE" in environment:  # a ready file: the user names it
        text = re.sub("(?m)^export IMAGE=.*", f'export IMAGE="{environment["IMAGE"]}"', text)
    (alone / "minimal.sbatch").write_text(text)
    (alone / "own.py").write_text(OWN_PROGRAM)
    (alone / ".venv").symlink_to(sys.prefix)
    if (project / "container").exists():
        (alone / "container").symlink_to(project / "container")
    if torchrun == "short":
        write_short_torchrun(alone)
    environment["APPTAINERENV_PREPEND_PATH"] = str(Path(sys.executable).parent)  # its image has no torch
    before = {path.name for path in alone.iterdir()}
    job = cluster.submit("minimal.sbatch", "own.py", *ARGUMENTS, cwd=alone, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    inside = runtime if runtime != "venv" else "host"
    expected = ["|".join([str(rank), "4", "6", inside, str(alone), *ARGUMENTS]) for rank in range(4)]
    assert sorted(re.findall(r"RESULT (.*)", job.output)) == expected, job.output
    assert {path.name for path in alone.iterdir()} - before == {f"demo-{job.id}.out"}, "it leaves files behind"


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "edf"])
def test_an_image_with_packages_of_one_s_own(cluster, everywhere, runtime, surroundings, tmp_path):
    """podman builds it and enroot imports it, on nodes without docker; podman's container is removed."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    with open(project / "container/requirements.txt", "a") as file:
        file.write("einops\n")
    build_image(cluster, project, environment)
    assert [path.suffix for path in (project / "container").glob("demo.sqsh*")] == [".sqsh"]
    calls = [json.loads(line)["argv"] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls[-1][:1] == ["rm"] and calls[-2][0] == "import" and calls[-2][-1] == "podman://demo:latest"
    look = "ls /dev/shm/stand_ins/podman-containers"
    assert cluster.run("srun", "--nodes=2", "bash", "-c", f"{look} || true").stdout == ""
    if runtime == "edf":  # which else pulls the image of the answers
        environment["IMAGE"] = str(project / "container/demo.sqsh")
    (project / "own.py").write_text(OWN_PROGRAM)
    job = cluster.submit("slurm/submit_multinode.sh", "own.py", cwd=project, env={**environment, "LAUNCHER": "srun"})
    assert (job.state, job.exit_code) == ("COMPLETED", 0) and job.output.count(f"|{runtime}|") == 4, job.output
    used = [json.loads(line).get("image", "") for line in (tmp_path / "log").read_text().splitlines()]
    assert used[-1] and not used[-1].startswith("nvcr.io"), used


def test_podman_s_store_is_a_folder_of_its_own(cluster, everywhere, surroundings, tmp_path):
    """In /dev/shm, which all users of a node share: no name that another user could have taken."""
    project = bake(tmp_path, site=everywhere, runtime="edf", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("edf", project, tmp_path, cluster)}
    (tmp_path / "bin").mkdir()
    look = """sed -n 's/graphroot = "\\(.*\\)"/\\1/p' "$CONTAINERS_STORAGE_CONF" | xargs dirname"""
    look += f""" | xargs stat -c '%u %a %n' >>"{tmp_path}/stores" """
    script = f'#!/bin/bash\n[[ $1 != build ]] || {look}\nexec "{STAND_INS}/podman" "$@"\n'
    (tmp_path / "bin/podman").write_text(script)
    (tmp_path / "bin/podman").chmod(0o755)
    environment["PATH"] = f"{tmp_path}/bin:{environment['PATH']}"
    for _ in range(2):
        build_image(cluster, project, environment)
        (project / "container/demo.sqsh").unlink()
    stores = [line.split() for line in (tmp_path / "stores").read_text().splitlines()]
    assert [(user, mode) for user, mode, _ in stores] == [(str(os.getuid()), "700")] * 2
    assert stores[0][2] != stores[1][2] and stores[0][2].startswith("/dev/shm/")


@pytest.mark.parametrize("runtime", [pytest.param("pyxis", marks=pytest.mark.drill), "enroot"])
def test_the_image_s_path_and_each_rank_s_threads(cluster, everywhere, runtime, surroundings, tmp_path):
    """enroot's login shell has another PATH, and its hook for PyTorch would give each rank one thread."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "PYTHON": "python3"}
    build_image(cluster, project, environment)
    names = ("PATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS")
    (tmp_path / "own.py").write_text(
        "import os, sys\ncores = min(len(os.sched_getaffinity(0)), int(os.environ['SLURM_CPUS_PER_TASK']))\n"
        f"values = [os.environ[name] for name in {names}]\n"
        "sys.stdout.write('RESULT ' + '|'.join([str(cores), str('HOME' in os.environ), *values]) + '\\n')\n"
    )
    write_short_torchrun(tmp_path)
    command = ["bash", project / "slurm/run_here.sh", "own.py"]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"

    def run(launcher, **more):
        allocation = ["salloc", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=8"]
        done = cluster.run(*allocation, *command, cwd=tmp_path, env={**environment, "LAUNCHER": launcher, **more})
        found = sorted(line.split("|") for line in re.findall(r"RESULT (.*)", done.stdout))
        cores = found[0][0]
        ranks = [[cores, "True", path, str(rank), "4", str(rank % 2)] for rank in range(4)]
        assert [row[:-1] for row in found] == ranks
        return int(cores), {int(row[-1]) for row in found}

    cores, threads = run("srun")
    assert threads == {cores}
    assert run("srun", OMP_NUM_THREADS="3")[1] == {3}
    cores, threads = run("torchrun")
    assert threads == {max(cores // 2, 1)}


NAMES = ["costs $5", 'a "b"', "`id`"]


@pytest.mark.parametrize(
    ("runtime", "names"),
    [pytest.param("pyxis", NAMES, marks=pytest.mark.drill), ("edf", [*NAMES, "a b", "a;b", "back\\slash"])],
)
def test_names_that_a_container_engine_breaks(cluster, everywhere, runtime, names, surroundings, tmp_path):
    """Each is refused when the job is submitted, and in the job; other names work."""
    project = bake(tmp_path, site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "LAUNCHER": "srun"}
    get_image(cluster, project, runtime, environment)
    said = {
        "pyxis": "env.sh: the container cannot see '{}': a shell of pyxis reads its name",
        "edf": "env.sh: the container engine takes no spaces and none of \" ; $ ` \\ in names, but PROGRAM_DIR is '{}'",
    }[runtime]
    script = project / "slurm/submit_multinode.sh"
    for name in [*names, "it's" if runtime == "edf" else "it's one's own"]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.py").write_text(OWN_PROGRAM)
        if name not in names:
            job = cluster.submit(script, folder / "own.py", cwd=project, env=environment)
            assert (job.state, job.exit_code) == ("COMPLETED", 0) and job.output.count("RESULT") == 4, job.output
            continue
        done = cluster.run("bash", script, folder / "own.py", cwd=project, env=environment, check=False)
        assert done.returncode == 2 and done.stderr.startswith(said.format(folder)), done.stderr
        assert len(done.stderr.splitlines()) == 1 and "Submitted" not in done.stdout
    job = cluster.submit(script, tmp_path / names[0] / "own.py", cwd=project, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 2) and said.format(tmp_path / names[0]) in job.output, job.output


def pairs_of_sites():
    """Each Slurm site with each runtime: in every run those whose variables differ most, the others as drills."""
    quick = {("daint", "edf"), ("perlmutter", "podman-hpc"), ("jupiter", "none")}
    for site in site_names():
        facts = site_facts(site)
        for runtime in facts["runtimes"] if facts["kind"] == "slurm" and facts["environment"] else ():
            marks = () if (site, runtime) in quick else pytest.mark.drill
            yield pytest.param(site, runtime, id=f"{site}-{runtime}", marks=marks)


def variables_of_all_sites():
    """The names of all variables that a site sets, but for what Slurm sets itself."""
    facts = [site_facts(site) for site in site_names()]
    return {variable["name"] for each in facts for variable in each["environment"]} - {"CUDA_VISIBLE_DEVICES"}


SHOW_VARIABLES = (
    "import os, sys\nfor name in sys.argv[1:]:\n    print(f'HAS {name}={os.environ.get(name)}', flush=True)\n"
)


@pytest.mark.parametrize(("site", "runtime"), pairs_of_sites())
def test_the_variables_of_a_site_reach_the_ranks(
    request, container_cluster, site, runtime, everywhere, surroundings, tmp_path
):
    """Those of env.sh with their values, in each of the site's runtimes, and none that other sites have."""
    cluster, facts = container_cluster, site_facts(site)
    variables = facts["environment"] + facts["containers"][runtime]["entry_environment"]
    text = everywhere.read_text() + f"environment: {json.dumps(variables)}\n"
    (tmp_path / "site.yaml").write_text(text)
    project = bake(tmp_path, site=tmp_path / "site.yaml", runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "LAUNCHER": "srun"}
    (tmp_path / "scratch").mkdir(exist_ok=True)
    environment |= dict.fromkeys(("SCRATCH", "WORK"), str(tmp_path / "scratch"))
    if runtime == "apptainer":
        environment["IMAGE"] = str(request.getfixturevalue("sif"))
    else:
        get_image(cluster, project, runtime, environment)
    (tmp_path / "own.py").write_text(SHOW_VARIABLES)
    own = {variable["name"] for variable in variables}
    others = {name for name in variables_of_all_sites() if name not in own and name not in environment}
    names = [*own, *sorted(others)]
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", *names, cwd=tmp_path, env=environment)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    known = {**environment, "USER": cluster.user, "SLURM_JOB_ID": str(job.id)}
    for variable in variables:
        if variable["name"] == "CUDA_VISIBLE_DEVICES":
            continue  # the tests' Slurm sets it anew in each step
        if runtime == "apptainer" and variable["name"].startswith("APPTAINER_"):
            continue  # Apptainer keeps its own settings outside
        value = re.sub(r"\$\{(\w+)\}", lambda name: known[name[1]], variable["value"])
        assert job.output.count(f"HAS {variable['name']}={value}\n") == 4, job.output
    there = set(re.findall(r"HAS (\w+)=(?!None\n)", job.output))
    assert there <= own, f"variables of other sites, or that this site's file has dropped: {there - own}"


@pytest.mark.parametrize("scratch", ["older/scratch/me", "newer/scratch/me"])
def test_a_container_sees_the_scratch_that_is_set(cluster, everywhere, surroundings, tmp_path, scratch):
    """Below a folder that is mounted anyway, and elsewhere: a site may move it while jobs use both."""
    site, folder = tmp_path / "site.yaml", tmp_path / scratch
    mounts = json.dumps([str(tmp_path / "older"), "${SCRATCH}"])
    site.write_text(re.sub(r"binds: \[", f"binds: [{mounts[1:-1]}, ", everywhere.read_text()))
    project = bake(tmp_path, site=site, runtime="edf", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("edf", project, tmp_path, cluster), "LAUNCHER": "srun"}
    (tmp_path / "older").mkdir()
    folder.mkdir(parents=True)
    (folder / "data.bin").touch()
    program = project / "own.py"
    program.write_text("import os\nprint('SEES', *os.listdir(os.environ['SCRATCH']), flush=True)\n")
    job = cluster.submit("slurm/submit_multinode.sh", program, cwd=project, env={**environment, "SCRATCH": str(folder)})
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count("SEES data.bin") == 4, job.output


def test_the_file_that_describes_a_container_is_filled_in(cluster, everywhere, surroundings, tmp_path):
    """The user's own lines stay, and what srun gets has no ${NAME} but in [env]."""
    project = bake(tmp_path, site=everywhere, runtime="edf", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("edf", project, tmp_path, cluster), "DATA": str(tmp_path / "data")}
    environment["LAUNCHER"] = "srun"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.bin").touch()
    template = project / "container/demo.toml"
    own = template.read_text().replace("mounts = [", 'mounts = [\n    "${DATA}:/data:ro",\n    # "${NOWHERE}:/x",')
    template.write_text(own + 'SEEN = "${DATA}"\n')
    (tmp_path / "own.py").write_text("import os\nprint(*os.listdir('/data'), os.environ['SEEN'], flush=True)\n")
    submit = ["bash", project / "slurm/submit_multinode.sh", tmp_path / "own.py"]
    job = cluster.wait(int(cluster.run(*submit, cwd=project, env=environment).stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"train.bin {environment['DATA']}") == 4, job.output
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (option,) = {argument for call in calls if call["runtime"] == "edf" for argument in call["argv"]}
    written = list(project.glob("logs/container-*"))
    assert [f"--environment={path}" for path in written] == [option]  # at submission, and in the job
    lines = [line for line in written[0].read_text().splitlines() if "${" in line and not line.strip().startswith("#")]
    assert lines == ['SEEN = "${DATA}"'] and f'"{tmp_path}/data:/data:ro",' in written[0].read_text()
    for line, said in (
        ('"${NOWHERE}:/x",', "names ${NOWHERE}, which is not set"),
        ('"$HOME:/x",', "a $ that does not begin"),
    ):
        template.write_text(own.replace('# "${NOWHERE}:/x",', line))
        done = cluster.run(*submit, cwd=project, env=environment, check=False)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.drill
def test_enroot_speaks_only_where_it_fails(cluster, everywhere, surroundings, tmp_path):
    """What it prints while it unpacks an image is kept back, and shown where that fails."""
    project = bake(tmp_path, site=everywhere, runtime="enroot", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("enroot", project, tmp_path, cluster)}
    build_image(cluster, project, environment)
    (tmp_path / "own.py").write_text("print('RESULT', flush=True)\n")
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert job.output.count("RESULT") == 4 and "Extracting" not in job.output, job.output
    (project / "container/demo.sqsh").write_text("cut off")
    job = cluster.submit(project / "slurm/submit_multinode.sh", "own.py", cwd=tmp_path, env=environment)
    assert job.state == "FAILED" and "[ERROR] Invalid image format: " in job.output, job.output


@pytest.mark.parametrize("runtime", [pytest.param("shifter", marks=pytest.mark.drill), "podman-hpc"])
def test_perlmutter_s_own_flags(cluster, runtime, surroundings, tmp_path):
    """With the image and the flags that its site file names; podman's folders there are variables."""
    project = bake(tmp_path / "a b", site="perlmutter", runtime=runtime)
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "CFS": str(tmp_path)}
    (tmp_path / "scratch").mkdir()
    options = ["--constraint=", "--gpus-per-node=2", "--cpus-per-task=8"]
    build_image(cluster, project, environment)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    command = ["bash", project / "slurm/submit_multinode.sh", *options, "--", "own.py"]
    environment["LAUNCHER"] = "srun"
    job = cluster.wait(int(cluster.run(*command, cwd=tmp_path, env=environment).stdout.split()[-1]))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.output.count(f"|4|6|{runtime}|{tmp_path}") == 4, job.output


@pytest.mark.parametrize(
    "runtime", ["edf", *(pytest.param(name, marks=pytest.mark.drill) for name in ("pyxis", "enroot", "podman-hpc"))]
)
def test_an_interactive_shell_in_a_container(cluster, everywhere, runtime, surroundings, tmp_path):
    """A terminal of its own, as a user has; in it a program runs on all ranks of the node."""
    project = bake(
        tmp_path / ("a_b" if runtime == "edf" else "a b"),
        site=everywhere,
        runtime=runtime,
        nodes="2",
        gpus_per_node="2",
    )
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster), "TERM": "dumb"}
    get_image(cluster, project, runtime, environment)
    write_short_torchrun(project)
    (project / "own.py").write_text(OWN_PROGRAM)
    typed = 'echo "in $STAND_IN_RUNTIME on $(hostname)"\nbash launch/torchrun.sh own.py\nexit\n'
    command = ["script", "-qec", "bash slurm/interactive.sh --time=00:30:00", "/dev/null"]
    done = cluster.run(*command, cwd=project, env=environment, stdin=typed)
    assert f"in {runtime} on node" in done.stdout, done.stdout
    ranks = re.findall(rf"RESULT (\d)\|2\|1\|{runtime}", done.stdout)
    assert sorted(ranks) == ["0", "1"], done.stdout
    line = re.search(r"opens the same shell .*\n\n```bash\n(.*)\n```", page(project, "cluster"))[1]
    typed = 'echo "in $STAND_IN_RUNTIME on $(hostname), which sees $(ls env.sh)"\nexit\n'
    done = cluster.run("script", "-qec", line, "/dev/null", cwd=project, env=environment, stdin=typed)
    assert re.search(rf"in {runtime} on node\d, which sees env.sh", done.stdout), done.stdout


@pytest.mark.drill
def test_packages_on_top_of_an_image(containers, sif, tmp_path_factory):
    """The commands of the page, with this machine's Python in place of the image's, which has none."""
    project = apptainer_project(tmp_path_factory, sif, "none")
    write_wheel(project / "wheels")
    section = page(project, "container").partition("## More packages")[2]
    enter = re.search(r"`(bash slurm/interactive\.sh)`", section)[1]
    make, line = re.findall(r"```bash\n(.*)\n```", section)
    make = make.replace("python3", sys.executable).replace("einops", "--no-index --find-links wheels answer")
    command = ["script", "-qec", f"{enter} --time=00:30:00", "/dev/null"]
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHON"}
    done = containers.run(*command, cwd=project, env={**environment, "TERM": "dumb"}, stdin=f"{make}\nexit\n")
    assert "Successfully installed answer-1.0" in done.stdout, done.stdout
    before, python, after = re.split("(?m)^(export PYTHON=.*)$", (project / "env.sh").read_text())
    (project / "env.sh").write_text(f"{before}{python}\n{line}{after}")
    (project / "own.py").write_text("import answer, os, sys; print(os.environ['RANK'], answer.ANSWER, sys.prefix)\n")
    job = containers.submit("slurm/submit_multinode.sh", "own.py", cwd=project, env={**environment, "LAUNCHER": "srun"})
    assert job.state == "COMPLETED", job.output
    assert all(f": {rank} 42 {project}/packages\n" in job.output for rank in range(4)), job.output


@pytest.mark.drill
def test_two_jobs_at_once_unpack_the_image_once_per_node(cluster, everywhere, surroundings, tmp_path):
    """enroot create is neither atomic nor locked: a second job on the node must wait for the first one's."""
    answers = {"project": "at-once", "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path, site=everywhere, runtime="enroot", **answers)
    environment = {**ENVIRONMENT, **surroundings("enroot", project, tmp_path, cluster), "LAUNCHER": "srun"}
    (project / "own.py").write_text(OWN_PROGRAM)
    build_image(cluster, project, environment)
    options = ["--nodelist=node1,node2", "--exclusive=user", "--cpus-per-task=2", "--gpus-per-node=1", "--mem=1G"]
    jobs = [
        cluster.sbatch(*options, project / "slurm/submit_multinode.sh", "own.py", cwd=project, env=environment)
        for _ in range(2)
    ]
    for job in [cluster.wait(job) for job in jobs]:
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    made = [call["host"] for call in calls if call["runtime"] == "enroot" and call["argv"][0] == "create"]
    assert sorted(made) == ["node1", "node2"]


LOCKS = Path(f"/var/tmp/two-users-{ONE}")


@pytest.fixture
def start(everywhere, folder_of_all):
    """Calls container/start.sh as a user, with an enroot that starts nothing."""
    project = bake(folder_of_all, project="two-users", site=everywhere, runtime="enroot")
    (folder_of_all / "image").touch()
    (folder_of_all / "enroot").write_text("#!/bin/sh\n[ $1 != start ] || echo started\n")
    (folder_of_all / "enroot").chmod(0o755)
    words = ["bash", project / "container/start.sh", folder_of_all / "image", folder_of_all, "--", "true"]
    yield partial(as_user, ONE, *words, PATH=f"{folder_of_all}:{PATH}", check=False)
    subprocess.run("rm -rf /var/tmp/two-users-*", shell=True, check=True)


@needs_two_users
def test_a_neighbour_cannot_hold_the_lock_of_an_image(start):
    assert start().stdout == start().stdout == "started\n"
    made = list(Path("/var/tmp").glob("two-users-*"))
    opened = as_user(NEIGHBOUR, "find", *made, "-type", "f", "-readable", check=False)
    assert made and opened.stdout == ""


@needs_two_users
@pytest.mark.parametrize("plant", ["touch {0}", "mkdir -m 777 {0}", "ln -s {1} {0}"])
def test_a_neighbour_s_folder_of_locks_is_refused(start, plant, folder_of_all):
    as_user(ONE, "mkdir", mine := folder_of_all / "mine")
    as_user(NEIGHBOUR, "sh", "-c", plant.format(LOCKS, mine))
    done = start()
    assert (done.returncode, done.stdout) == (2, "") and f"{LOCKS}, where jobs" in done.stderr, done.stderr
    assert "is not a folder of yours" in done.stderr and not [*mine.iterdir(), *LOCKS.glob("*")]


@pytest.mark.drill
def test_a_named_container_is_used_again(cluster, everywhere, surroundings, tmp_path):
    """With pyxis and KEEP_CONTAINER the second run finds what the first one unpacked; without it nothing is kept."""
    answers = {"project": "named", "nodes": "2", "gpus_per_node": "2"}
    project = bake(tmp_path, site=everywhere, runtime="pyxis", **answers)
    environment = {**ENVIRONMENT, **surroundings("pyxis", project, tmp_path, cluster), "LAUNCHER": "spawn"}
    build_image(cluster, project, environment)
    (project / "own.py").write_text(OWN_PROGRAM)
    run = "bash slurm/run_here.sh own.py"
    salloc(cluster, [f"KEEP_CONTAINER=kept {run}"] * 2 + [run] * 2, cwd=project, **environment)
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    found = [call["how"] for call in calls if call["host"] == "node2" and "how" in call]
    assert found == ["created", "reused", "temporary", "temporary"]


def test_what_a_container_lacks_is_said_before_the_queue(cluster, everywhere, surroundings, tmp_path):
    """Program, image and folders, for each runtime; inside a job too, and before anything is started on the nodes."""
    said = {
        "apptainer": "neither apptainer nor singularity was found on login",
        "pyxis": "srun on login knows no --container-image: pyxis is not installed",
        "edf": "srun on login knows no --environment: the container engine is not there",
        "enroot": "enroot was not found on login",
        "shifter": "shifter was not found on login",
        "podman-hpc": "podman-hpc was not found on login",
    }
    for runtime, sentence in said.items():
        answers = {"project": f"lacks-{runtime}", "nodes": "2", "gpus_per_node": "2"}
        project = bake(tmp_path, site=everywhere, runtime=runtime, **answers)
        submit = ["bash", project / "slurm/submit_multinode.sh", "pi/pi.py"]

        def refused(submit=submit, project=project, **more):
            done = cluster.run(*submit, cwd=project, env={**ENVIRONMENT, **more}, check=False)
            assert (done.returncode, done.stdout) == (2, ""), done.stdout
            assert len(done.stderr.splitlines()) == 1, done.stderr
            return done.stderr

        assert sentence in refused()
        if runtime == "apptainer":
            continue
        environment = surroundings(runtime, project, tmp_path, cluster)
        if runtime == "edf":  # the name of an image is enough; a file has to be there
            assert "no image at '/no.sqsh': set IMAGE to a name REGISTRY#" in refused(**environment, IMAGE="/no.sqsh")
            assert "no image at 'docker://a/b:1'" in refused(**environment, IMAGE="docker://a/b:1")
        else:
            missing = {"shifter": "was not pulled", "podman-hpc": "has no migrated image"}.get(runtime, "no image at")
            assert missing in refused(**environment) and "slurm/build_container.sh" in refused(**environment)
        if runtime not in ("edf", "shifter"):
            build_image(cluster, project, {**ENVIRONMENT, **environment})
            settings = project / "env.sh"
            settings.write_text(settings.read_text().replace("BINDS=(", "BINDS=(\n    /no/such/folder"))
            assert "the container cannot see '/no/such/folder'" in refused(**environment)
        job = cluster.submit(*submit[1:], cwd=project, env=ENVIRONMENT)
        assert (job.state, job.exit_code) == ("FAILED", 2), job.output
        assert sentence.replace("login", "node1") in job.output


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis", "edf", "enroot", "podman-hpc"])
def test_a_folder_of_the_container_that_one_node_lacks(cluster, everywhere, runtime, surroundings, tmp_path):
    """The line before the launch names node, folder and setting; nothing of the container is started."""
    needs_namespaces(cluster)
    space = "_" if runtime == "edf" else " "  # the container engine takes no spaces
    folder = cluster.node_local / f"data{space}of{space}{runtime}"
    site = tmp_path / "site.yaml"
    site.write_text(re.sub("binds: .*", f'binds: ["{folder}"]', everywhere.read_text()))
    project = bake(tmp_path / f"a{space}b", site=site, runtime=runtime, nodes="2", gpus_per_node="2")
    if runtime == "apptainer":  # any program of that name: it is not started
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/apptainer").symlink_to("/bin/true")
        image = stand_in_image(tmp_path / "image")
        environment = {**ENVIRONMENT, "IMAGE": str(image), "PATH": f"{tmp_path}/bin:{PATH}"}
    else:
        environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
        get_image(cluster, project, runtime, environment)
    cluster.run("srun", "--nodes=1", "--nodelist=node1", "mkdir", "-p", folder)
    submit = ["--nodelist=node1,node2", project / "slurm/submit_multinode.sh", "pi/pi.py"]
    job = cluster.submit(*submit, cwd=project, env=environment)
    assert (job.state, job.exit_code) == ("FAILED", 1), job.output
    lines = [line for line in job.output.splitlines() if line.startswith("preflight: ")]
    said = f"the container cannot mount {folder}: put it where all nodes see it, or take it out of {SETTING[runtime]}"
    assert len(lines) == 2 and lines[0].startswith(f"preflight: node2: {said}"), job.output
    assert "1 of 2 nodes unfit" in lines[1] and "meeting at" not in job.output


@pytest.mark.parametrize("runtime", ["enroot", "podman-hpc"])  # container/start.sh calls them
def test_a_runtime_that_one_node_lacks(cluster, everywhere, runtime, surroundings, tmp_path):
    needs_namespaces(cluster)
    project = bake(tmp_path / "a b", site=everywhere, runtime=runtime, nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings(runtime, project, tmp_path, cluster)}
    build_image(cluster, project, environment)
    on_node2 = ["srun", "--nodes=1", "--nodelist=node2"]
    cluster.run(*on_node2, "mount", "-t", "tmpfs", "tmpfs", STAND_INS)
    try:
        submit = ["--nodelist=node1,node2", project / "slurm/submit_multinode.sh", "pi/pi.py"]
        job = cluster.submit(*submit, cwd=project, env=environment)
    finally:
        cluster.run(*on_node2, "umount", STAND_INS)
    assert (job.state, job.exit_code) == ("FAILED", 1), job.output
    assert f"preflight: node2: cannot read {runtime}: put it where all nodes see it, or name its module" in job.output


# Where a project names the folders that its container sees.
SETTING = dict.fromkeys(RUNTIMES, "BINDS in env.sh") | {"edf": "mounts in container/demo.toml"}


def test_podman_hpc_s_image_has_to_be_migrated(cluster, everywhere, surroundings, tmp_path):
    """An image that only the login node has is refused there, by the build and before the queue."""
    project = bake(tmp_path / "a b", site=everywhere, runtime="podman-hpc", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("podman-hpc", project, tmp_path, cluster)}
    build = ["bash", "slurm/build_container.sh"]
    done = cluster.run(*build, cwd=project, env={**environment, "STAND_IN_MKSQUASHFS": "no"}, check=False)
    assert done.returncode == 2 and "ready: " not in done.stdout, done.stdout
    assert "the image was not migrated, see above" in done.stderr and "Squash Failed" in done.stderr
    submit = ["bash", "slurm/submit_multinode.sh", "pi/pi.py"]
    done = cluster.run(*submit, cwd=project, env=environment, check=False)
    assert done.returncode == 2 and "no migrated image localhost/demo:latest" in done.stderr, done.stderr
    build_image(cluster, project, environment)


@pytest.mark.parametrize("end", ["a rank fails", "scancel"])
def test_ranks_in_podman_hpc_end_by_the_first_signal(cluster, everywhere, surroundings, tmp_path, end):
    """Slurm sends SIGTERM, and SIGKILL after KillWait: none of the ranks has to wait for that."""
    project = bake(tmp_path / "a b", site=everywhere, runtime="podman-hpc", nodes="2", gpus_per_node="2")
    environment = {**ENVIRONMENT, **surroundings("podman-hpc", project, tmp_path, cluster), "LAUNCHER": "srun"}
    build_image(cluster, project, environment)
    (project / "waits.py").write_text(WAITS)
    job = cluster.sbatch(project / "slurm/submit_multinode.sh", "waits.py", cwd=project, env=environment)

    def all_started():
        assert cluster.run("squeue", "-h", f"--jobs={job}").stdout, (project / f"demo-{job}.out").read_text()
        return len(list(project.glob("started.*"))) == 4

    wait_for(all_started)
    if end == "scancel":
        cluster.run("scancel", str(job))
    else:
        (project / "fail").touch()
    job = cluster.wait(job)
    assert job.state == ("CANCELLED" if end == "scancel" else "FAILED"), job.output
    ended = {}
    for tasks, how in re.findall(r"srun: error: node\d: tasks? ([\d,-]+): (.*)", job.output):
        ended |= dict.fromkeys(numbers(tasks), how)
    by_sigterm = "Exited with exit code 143"
    last = by_sigterm if end == "scancel" else "Exited with exit code 7"
    assert ended == {0: by_sigterm, 1: by_sigterm, 2: by_sigterm, 3: last}, job.output


# Ranks that wait for each other, until the last one fails.
WAITS = """\
import os, sys, time
open(f"started.{os.environ['RANK']}", "x").close()
while not (os.environ["RANK"] == "3" and os.path.exists("fail")):
    time.sleep(0.1)
sys.exit(7)
"""


def numbers(tasks):
    """The tasks that srun means by 0,2-3."""
    ends = [part.split("-") for part in tasks.split(",")]
    return [number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)]
