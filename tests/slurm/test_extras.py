"""The moments at which a job calls its extras, on a real Slurm: in which order, what they may change, what is refused.

The extras are written by the tests. Those of the template have their own tests below tests/extras/.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import accounting
import pytest
from baking import REPOSITORY, bake
from launching import write_short_torchrun
from slurm_cluster import Cluster
from submitting import cluster, python_environment
from two_nodes import ANSWERS, MPIRUN_AS_ROOT
from waiting import wait_for

# One rank on each node, without torch, whose import would take most of the time.
QUICK = python_environment(LAUNCHER="srun", NPROC_PER_NODE="1", PREFLIGHT="0")
# Notes each call, and whether it comes from a job. What runs beside the ranks notes its end, too.
NOTE = """\
NAME_note() { printf '%s\\n' "NAME ${1}${SLURM_JOB_ID:+ in the job}${2:+: $2}" >>"$PROJECT_DIR/log"; }
NAME_check_settings() { NAME_note check_settings "$NAME_WORD"; }
NAME_before_submit() { NAME_note before_submit "${typed[*]}"; }
NAME_job_start() { NAME_note job_start "${arguments[*]}"; }
NAME_before_launch() { NAME_note before_launch "$RESTART_COUNT"; }
NAME_beside_launch() {
    trap 'NAME_note beside_launch ended; exit' TERM
    NAME_note beside_launch started
    while :; do sleep 1000 & wait; done
}
NAME_after_launch() { NAME_note after_launch "$code"; }
NAME_job_end() { NAME_note job_end "$code $outcome"; }
"""


def add(project, name, hooks=None, settings=""):
    """Write an extra into a project."""
    folder = project / "extras" / name
    folder.mkdir(parents=True, exist_ok=True)
    if settings is not None:
        (folder / "settings.sh").write_text(settings)
    if hooks is not None:
        (folder / "hooks.sh").write_text(hooks)


def program(project, text):
    """Write a program into a project; return its name."""
    (project / "program.py").write_text("import os, sys\n" + text)
    return "program.py"


@pytest.fixture
def project(tmp_path):
    """A project without extras, in a folder with a space in its name."""
    return bake(tmp_path / "a b", **ANSWERS, extras="none")


@pytest.fixture
def submit(cluster, project):
    """Returns submit(*words, **environment): types the command on the login node, and returns the job at its end."""

    def run(*words, **environment):
        typed = ["bash", project / "slurm/submit_multinode.sh", *words]
        done = cluster.run(*typed, cwd=project, env={**QUICK, **environment})
        return cluster.wait(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))

    return run


# ---- what a job calls ------------------------------------------------------------------------------------------------

# Its first start fails, and an extra starts the ranks again. The second fails, and the job goes back into the queue.
# The other rank has ended before: srun would end it, and with its code.
THRICE = """\
import time
time.sleep(0.5)
attempt = os.environ["RESTART_COUNT"]
if os.environ["RANK"] == "1":
    open("ended-" + attempt, "w").close()
    os._exit(0)
while not os.path.exists("ended-" + attempt):
    time.sleep(0.1)
time.sleep(1)
sys.exit({"0": 3, "1": 4, "2": 0}[attempt])
"""


def test_moments_of_a_job_that_restarts_and_is_requeued(submit, project):
    for name in ("one", "two"):  # in the order of names
        add(project, name, NOTE.replace("NAME", name), f'{name}_WORD="${{{name}_WORD:-default}}"\n')
    decide = "three_after_launch() { case $RESTART_COUNT in 0) outcome=restart ;; 1) outcome=requeue ;; esac; }\n"
    add(project, "three", decide)
    add(project, "commands", None, None)  # a folder without hooks.sh
    job = submit(program(project, THRICE), "a b", two_WORD="chosen")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    log = (project / "log").read_text().splitlines()
    of_one, of_two = ([line.partition(" ")[2] for line in log if line.startswith(name)] for name in ("one", "two"))
    at_start = ["check_settings: default", "before_submit: program.py a b"]
    in_job = ["job_start in the job: a b", "check_settings in the job: default"]

    def launch(attempt, code):
        beside = "beside_launch in the job"
        before, after = f"before_launch in the job: {attempt}", f"after_launch in the job: {code}"
        return [before, f"{beside}: started", f"{beside}: ended", after]

    expected = [*at_start, *in_job, *launch(0, 3), *launch(1, 4), "job_end in the job: 4 requeue"]
    expected += [*in_job, *launch(2, 0), "job_end in the job: 0 "]
    assert of_one == expected, log
    assert of_two == [line.replace("default", "chosen") for line in expected], log
    order = [line.split(" ")[0] for line in log if "beside" not in line]  # those two run at the same time
    assert order == ["one", "two"] * (len(order) // 2)
    assert "an extra wants a requeue: back into the queue as attempt 2" in job.output
    assert sorted(path.name for path in project.glob(f"logs/{job.id}.*")) == [f"{job.id}.{n}" for n in range(3)]


CHANGES = """\
mine_before_submit() {
    sbatch_options+=(--comment="$MINE_WORD")
    typed+=("from before_submit")
    export MINE_SUBMITTED=yes
}
mine_job_start() {
    arguments+=("from job_start $MINE_SUBMITTED")
    attempt=7
}
choose_nodes() {
    hosts=("${nodes[-1]}")
    set_endpoint
    check_nodes
}
build_step_of_mine() {
    wrapper=("$PROJECT_DIR/launch/rank.sh")
    step=(srun --export=ALL "${on_hosts[@]}" --ntasks=2 --ntasks-per-node=2)
    export NPROC_PER_NODE=2
}
mine_before_launch() {
    srun_options+=(--label)
    rank_prefix+=(env "FROM_PREFIX=${hosts[*]}")
    export FROM_EXPORT=yes
}
mine_after_launch() { code=0 outcome=end; }
"""
SHOW = "words = [os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'FROM_PREFIX', 'FROM_EXPORT')]\n"
SHOW += "sys.stdout.write('RESULT ' + '|'.join([*words, *sys.argv[1:]]) + '\\n')\nsys.exit(5)\n"


def test_what_an_extra_may_change(submit, project, cluster):
    add(project, "mine", CHANGES, 'MINE_WORD="${MINE_WORD:-settings}"\n')
    job = submit(program(project, SHOW), LAUNCHER="mine")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    words = f"|2|{job.nodes[-1]}|yes|from before_submit|from job_start yes"
    assert sorted(re.findall(r"(?m)^\d: RESULT .*", job.output)) == [f"{r}: RESULT {r}{words}" for r in (0, 1)]
    assert "Comment=settings" in cluster.run("scontrol", "show", "job", str(job.id)).stdout
    assert (project / f"logs/{job.id}.7").is_dir()


def test_an_extra_that_fails_after_a_good_program_changes_nothing(submit, project):
    """Whether it returns a code, reads an unset variable, or fails beside the ranks; the rest of the job goes on."""
    hooks = "bad_beside_launch() { return 5; }\nbad_after_launch() { return 6; }\n"
    add(project, "bad", hooks + 'bad_job_end() { echo "unset: $nosuch"; return 7; }\n')
    job = submit(program(project, "import time; time.sleep(1)\n"))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    for said in (
        "extras/bad: bad_beside_launch failed with exit code 5; the job goes on",
        "extras/bad: bad_after_launch failed with exit code 6; the job goes on",
        "unset: \n",
        "extras/bad: bad_job_end failed with exit code 7; the job goes on",
    ):
        assert said in job.output, job.output


@pytest.mark.parametrize(("program_s", "extra_s"), [(9, 0), (0, 9)])
def test_an_extra_that_calls_exit_leaves_the_exit_code(submit, project, program_s, extra_s):
    add(project, "bad", f"bad_after_launch() {{ exit {extra_s}; }}\n")
    job = submit("--nodes=1", "--", program(project, f"sys.exit({program_s})"))
    assert job.exit_code == program_s, job.output
    assert "extras/bad: bad_after_launch ended the script, and with it the job" in job.output


@pytest.mark.parametrize("moment", ["job_start", "before_launch"])
def test_an_extra_that_fails_before_the_launch_ends_the_job(submit, project, moment):
    add(project, "bad", f"bad_{moment}() {{ echo 'no such thing'; return 3; }}\n")
    job = submit(program(project, "print('RESULT')"))
    assert (job.state, job.exit_code) == ("FAILED", 2), job.output
    assert f"slurm/submit_multinode.sh: extras/bad: bad_{moment} failed with exit code 3" in job.output
    assert "no such thing" in job.output and "RESULT" not in job.output


@pytest.mark.parametrize(("exit_code", "state"), [(0, "COMPLETED"), (5, "FAILED")])
def test_an_extra_may_end_the_job_at_its_start(submit, project, exit_code, state):
    add(project, "early", f"early_job_start() {{ exit {exit_code}; }}\n")
    job = submit("--nodes=1", "--", program(project, "print('RESULT')"))
    assert (job.state, job.exit_code, job.output) == (state, exit_code, "")


NSYS = """#!/bin/sh
echo "NSYS on $SLURMD_NODENAME: $1 $2"
shift 2
exec "$@"
"""


def test_the_examples_of_the_documents(submit, project, cluster):
    """Pasted as they stand: one looks once a second, at both nodes; nsys is a stand-in that runs what it is given."""
    page = (REPOSITORY / "docs/your-own-extra.md").read_text()
    files = dict(re.findall(r"^`(extras/\S+)`[^\n]*:\n\n```bash\n(.*?)^```$", page, re.M | re.S))
    assert [Path(name).name for name in files] == ["settings.sh", "hooks.sh", "look.sh", "on_first_node.sh"]
    (function,) = re.findall(r"^profile_before_launch.*?^}$", page, re.M | re.S)
    files |= {"extras/profile/hooks.sh": function + "\n", "extras/profile/settings.sh": "", "bin/nsys": NSYS}
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    path = f"{project}/bin:{QUICK.get('PATH', os.environ['PATH'])}"
    job = submit(program(project, "import time; time.sleep(4)"), MEMORY_EVERY="1", PATH=path)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert re.search(r"least free memory: \d+\.\d GiB on node[12]\n", job.output), job.output
    notes = (project / f"logs/{job.id}.0/memory.txt").read_text()
    assert {"node1", "node2"} <= set(notes.split()), notes
    expected = f"NSYS on {job.nodes[0]}: profile --output={project}/logs/{job.id}.0/%h\n"
    assert job.output.count("NSYS") == 1 and expected in job.output


def test_without_extras_and_after_their_deletion(submit, project, cluster):
    """The folder is deleted by hand while a job waits in the queue."""
    add(project, "one", NOTE.replace("NAME", "one"), 'one_WORD=""\n')
    name = program(project, "print('RESULT')")
    typed = ["bash", project / "slurm/submit_multinode.sh", "--hold", "--", name]
    number = re.search(r"Submitted batch job (\d+)", cluster.run(*typed, cwd=project, env=QUICK).stdout)[1]
    shutil.rmtree(project / "extras")
    cluster.run("scontrol", "release", number)
    for job in (cluster.wait(int(number)), submit(name)):
        assert (job.state, job.exit_code) == ("COMPLETED", 0) and job.output.count("RESULT") == 2, job.output
    assert "in the job" not in (project / "log").read_text()


def test_a_project_without_extras_starts_no_program_for_them(project):
    """launch/extras.sh uses builtins alone: its functions work with an empty PATH. It does not read moments.sh."""
    (project / "launch/moments.sh").unlink()
    code = f"""PROJECT_DIR='{project}' PATH='' script=x
    source "$PROJECT_DIR/launch/extras.sh"
    read_extras; refuse_misplaced_settings
    for moment in check_settings before_submit job_start before_launch; do call_extras "$moment"; done
    start_beside; end_beside; call_extras after_launch; call_extras job_end"""
    done = subprocess.run(["/bin/bash", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def test_a_folder_that_an_extra_mounts_in_the_container(tmp_path):
    project = bake(tmp_path / "a b", site="slurm", runtime="apptainer", image="/image.sif", extras="none")
    (tmp_path / "image.sif").touch()
    for name in ("apptainer", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    add(project, "one", f"one_job_start() {{ container_folders+=('{tmp_path}/more'); }}\n")
    (tmp_path / "more").mkdir()
    code = f"""export PROJECT_DIR='{project}' && cd "$PROJECT_DIR" && source slurm/project.sh slurm/x.sh || exit
    source slurm/submit.sh; source slurm/job.sh; read_extras; read_settings; read_program check/hello.py
    call_extras job_start; load_software
    printf '%s\\n' "${{CONTAINER_EXEC[@]}}" "${{CONTAINER_FOLDERS[@]}}" """
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "IMAGE": f"{tmp_path}/image.sif", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{tmp_path}/more" in done.stdout.splitlines(), done


# ---- a command before each rank --------------------------------------------------------------------------------------

PER_NODE = {"torchrun": 1, "spawn": 1, "mpirun": 1, "srun": 2, "mpirun-ranks": 2}
WRAPPER = '#!/bin/sh\necho "PREFIX $1|$2 $(basename "$3")" >>"$PREFIXES"\nshift\nexec "$@"\n'


def test_rank_prefix_with_every_launcher(cluster, tmp_path):
    """The user's, then those of extras; torchrun and mpirun start it once per node, the others once per rank."""
    project = bake(tmp_path / "a b", **ANSWERS, extras="mpi")
    for name in ("user's", "extra's"):
        (project / name).write_text(WRAPPER)
        (project / name).chmod(0o755)
    settings = project / "env.sh"
    own = """RANK_PREFIX=("$PROJECT_DIR/user's" "a b")"""
    settings.write_text(re.sub(r"(?m)^RANK_PREFIX=\(\)$", lambda _: own, settings.read_text()))
    add(project, "one", """one_before_launch() { rank_prefix+=("$PROJECT_DIR/extra's" one); }\n""")
    write_short_torchrun(project)
    lines = []
    for launcher in PER_NODE:
        log = f"PREFIXES='{project}/{launcher}' LAUNCHER={launcher}"
        lines.append(f"{log} bash slurm/run_here.sh {program(project, 'pass')}")
    allocation = ["salloc", "--nodes=1", "--gpus-per-node=2", "--cpus-per-task=8", "bash", "-ec", "\n".join(lines)]
    environment = python_environment(**MPIRUN_AS_ROOT, PREFLIGHT="0", NPROC_PER_NODE="2")
    cluster.run(*allocation, cwd=project, env=environment)
    for launcher, count in PER_NODE.items():
        wrapper = "rank.sh" if count == 2 else "torchrun.sh"
        expected = [f"PREFIX a b|{project}/extra's one"] * count
        command = "bash ranks.sh" if launcher.startswith("mpirun") else f"bash {wrapper}"
        expected += [f"PREFIX one|{command}"] * count
        assert sorted((project / launcher).read_text().splitlines()) == sorted(expected), launcher


def test_a_rank_prefix_that_the_nodes_lack(submit, project):
    """The check of the nodes names it, before any rank starts."""
    settings = project / "env.sh"
    settings.write_text(re.sub(r"(?m)^RANK_PREFIX=\(\)$", "RANK_PREFIX=(no-such-profiler run)", settings.read_text()))
    job = submit(program(project, "print('a rank')"), PREFLIGHT="1")
    assert job.state == "FAILED" and "a rank" not in job.output, job.output
    assert re.search(r"^preflight: on all of 2 nodes: cannot read no-such-profiler: put it where", job.output, re.M)


# ---- what is refused before the queue --------------------------------------------------------------------------------

ENV_LINE = '\nWORDS="${WORDS:-2}"  # of an older version\n'
GOOD = "one_job_end() { :; }\n"


@pytest.fixture(scope="module")
def login_node(tmp_path_factory):
    """A project whose settings WORDS and COUNT are of the extra one, and Slurm's commands; sbatch says Submitted."""
    folder = tmp_path_factory.mktemp("refused")
    project = bake(folder / "a b", **ANSWERS, extras="none")
    script = project / "launch/extras.sh"
    text, count = re.subn(r'local owners=".*"\n', 'local owners="WORDS=one COUNT=one"\n', script.read_text())
    assert count == 1
    script.write_text(text)
    (folder / "bin").mkdir()
    for name in ("sbatch", "srun", "scontrol", "sinfo"):
        (folder / "bin" / name).write_text(f"#!/bin/bash\n[[ {name} != sbatch ]] || echo Submitted\n")
        (folder / "bin" / name).chmod(0o755)
    return project, folder / "bin"


@pytest.fixture
def refused(login_node):
    """Returns refused(**environment) -> what the submit script says, in a project as the test has changed it."""
    project, tools = login_node
    before = (project / "env.sh").read_text()

    def run(*arguments, refused=True, **environment):
        environment = {**QUICK, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(project), **environment}
        command = ["bash", "slurm/submit_multinode.sh", "check/hello.py", *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "Submitted" in done.stdout) == ((2, False) if refused else (0, True)), done
        return done.stderr

    run.project = project
    yield run
    (project / "env.sh").write_text(before)
    shutil.rmtree(project / "extras", ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "hooks", "settings", "said"),
    [
        ("one", GOOD, None, "extras/one has hooks.sh, but no settings.sh: write one, which may be empty"),
        ("one", "one_job_end() {\n", "", "extras/one/hooks.sh failed: see above"),
        ("one", "one_job_end() { :; }\nfi\n", "", "extras/one/hooks.sh failed: see above"),
        ("one", GOOD, "A=$NOSUCH\n", "extras/one/settings.sh failed: see above"),
        ("one", GOOD, "A='\n", "extras/one/settings.sh failed: see above"),
        ("one", "exit 0\n", "", "extras/one: settings.sh or hooks.sh ended the script"),
        ("my-own", GOOD, "", "extras/my-own: its functions begin with this name"),
        ("one", "one_check_settings() { false; }\n", "", "extras/one: one_check_settings failed with exit code 1"),
        ("one", "one_before_submit() { die 'not here'; }\n", "", "extras/one: one_before_submit ended the script"),
        ("one", "one_before_submit() { return 4; }\n", "", "extras/one: one_before_submit failed with exit code 4"),
    ],
)
def test_an_extra_that_cannot_work(refused, name, hooks, settings, said):
    add(refused.project, name, hooks, settings)
    assert said in refused()


def test_a_setting_of_an_extra_that_is_not_here(refused):
    said = refused(WORDS="2")
    start = "slurm/submit_multinode.sh: WORDS=2: extras/one is not in this project. To add it: cookiecutter"
    assert said.startswith(start)
    assert " extras=+one (in the folder above the project). To run without it, unset WORDS" in said
    for off in ("", "0", "no"):
        refused(refused=False, WORDS=off)
    add(refused.project, "one", GOOD)
    refused(refused=False, WORDS="2")


@pytest.mark.parametrize("line", [ENV_LINE, "\nWORDS=2\n", "\n  export WORDS='2'\n", "\nexport A=1 WORDS=2\n"])
def test_a_setting_of_an_extra_in_env(refused, line):
    settings = refused.project / "env.sh"
    settings.write_text(settings.read_text() + line)
    assert "WORDS=2: extras/one is not in this project. To add it: cookiecutter" in refused()
    said = "WORDS in env.sh: it belongs in extras/one/settings.sh"
    add(refused.project, "one", GOOD, 'WORDS="${WORDS:-0}"\n')
    assert f"{said}, so move it there" in refused()
    assert f"{said}, so move it there" in refused(WORDS="3")


def test_a_setting_in_env_that_switches_the_extra_off(refused):
    settings = refused.project / "env.sh"
    settings.write_text(settings.read_text() + '\nWORDS="${WORDS:-0}"  # none\nCOUNT=""\n')
    refused(refused=False)


def test_settings_that_bash_cannot_read_to_the_end(refused):
    """It would print the error and go on with what stands before."""
    settings = refused.project / "env.sh"
    settings.write_text(settings.read_text() + "\nif true; then\nexport MORE=1\n")
    assert "env.sh has a syntax error, see above: correct it" in refused()


@pytest.mark.parametrize("last", ["exit 0", "exit 1"])
def test_settings_that_end_the_script(refused, last):
    """The job would be done, with no output and nothing run."""
    settings = refused.project / "env.sh"
    settings.write_text(f"{settings.read_text()}\n{last}\n")
    assert "env.sh ended this script: look for exit, or set -e and a command that fails" in refused()


def test_checks_that_end_early(refused):
    """By `exit 0` in what env.sh names; unchecked, the job would wait in the queue."""
    environment = refused.project / "own/bin"
    environment.mkdir(parents=True)
    (environment / "activate").write_text("exit 0\n")
    said = refused(RUNTIME="venv", VENV=str(environment.parent))
    assert "the checks ended early: look for exit in what activates the environment" in said


@pytest.mark.parametrize("number", ["65536", "1 m", "-1"])
def test_a_time_to_save_that_slurm_does_not_take(refused, number):
    assert refused(SAVE_SECONDS=number).startswith("slurm/submit_multinode.sh: SAVE_SECONDS=")


def test_a_check_of_the_nodes_that_is_neither_on_nor_off(refused):
    assert "PREFLIGHT='no': expected 1, or 0 to start" in refused(PREFLIGHT="no")
    assert "PREFLIGHT_TIMEOUT='30s': expected a whole number" in refused(PREFLIGHT_TIMEOUT="30s")


@pytest.mark.parametrize("value", ["nsys profile", ""])
def test_a_rank_prefix_in_one_word(refused, value):
    settings = refused.project / "env.sh"
    settings.write_text(re.sub(r"(?m)^RANK_PREFIX=\(\)$", f"RANK_PREFIX='{value}'", settings.read_text()))
    assert f"RANK_PREFIX='{value}': expected a list of words, as in RANK_PREFIX=(numactl" in refused()


# ---- what a job is without extras ------------------------------------------------------------------------------------

# Stands before launch/torchrun.sh: starts torchrun by hand first, in the same step, and then what was to be started.
BY_HAND = """\
#!/usr/bin/env bash
FOLDER=by-hand "$PYTHON" -m torch.distributed.run --nnodes="$SLURM_STEP_NUM_NODES" --nproc-per-node=2 \\
    --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port=$((MASTER_PORT + 1)) "${@: -1}"
FOLDER=ours exec "$@"
"""
WRITES_ITS_ENVIRONMENT = """\
import importlib.util, json
spec = importlib.util.find_spec("sitecustomize")
own = {"sitecustomize": spec.origin if spec else "", "path": sys.path[1:], "environment": dict(os.environ)}
with open(os.environ["FOLDER"] + "-" + os.environ["RANK"], "w") as file:
    json.dump(own, file)
"""


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_a_rank_sees_what_torchrun_typed_by_hand_gives_it(submit, project, nodes):
    """And the variables that the header of launch/torchrun.sh lists, nothing else: no sitecustomize, no PYTHONPATH."""
    (project / "by_hand.sh").write_text(BY_HAND)
    settings = project / "env.sh"
    line = f"RANK_PREFIX=(bash '{project}/by_hand.sh')"
    settings.write_text(re.sub(r"(?m)^RANK_PREFIX=\(\)$", line, settings.read_text()))
    words = [f"--nodes={nodes}", "--", program(project, WRITES_ITS_ENVIRONMENT)]
    job = submit(*words, LAUNCHER="torchrun", NPROC_PER_NODE="2")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    header = (project / "launch/torchrun.sh").read_text().split("Sets for the ranks")[1].split("set -euo")[0]
    listed = set(re.findall(r"\b[A-Z]+_?[A-Z_]+\b", header))
    for rank in range(2 * nodes):
        by_hand, ours = (json.loads((project / f"{name}-{rank}").read_text()) for name in ("by-hand", "ours"))
        assert ours["sitecustomize"] == by_hand["sitecustomize"] and ours["path"] == by_hand["path"]
        assert not ours["sitecustomize"].startswith(str(project))
        # One run beside the other has another port, and with it another name; the rest is the test's own.
        apart = {"FOLDER", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "_", "SHLVL", "BASH_EXECUTION_STRING"}
        apart |= {"MASTER_ADDR"} if nodes == 1 else set()  # a node alone meets itself, at 127.0.0.1
        before, now = by_hand["environment"], ours["environment"]
        differ = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - apart
        assert differ <= listed, {name: (before.get(name), now.get(name)) for name in differ - listed}


SLEEPS = "import time; time.sleep(40)\n"


def processes_with(*variables):
    """Return {process: its words} of those whose environment has each NAME=VALUE."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if {*variables} <= {*(folder / "environ").read_text(errors="replace").split("\0")}:
                found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        except OSError:  # it has ended
            pass
    return found


@pytest.mark.drill
def test_nothing_of_ours_waits_or_looks_while_the_ranks_sleep(cluster, project):
    """Of the project only the submit script is there. In 20 s it and its children touch 5 paths at most."""
    tag = f"TAG={project}"
    name = program(project, SLEEPS)
    typed = ["bash", project / "slurm/submit_multinode.sh", name]
    done = cluster.run(*typed, cwd=project, env=python_environment(NPROC_PER_NODE="2", TAG=str(project)))
    job = int(re.search(r"Submitted batch job (\d+)", done.stdout)[1])
    wait_for(lambda: all(processes_with(tag, f"RANK={rank}") for rank in range(4)), "four ranks")
    found = processes_with(tag)
    of_ours = [words for words in found.values() if any(word.startswith(str(project)) for word in words)]
    of_ours = [words for words in of_ours if not words[0].endswith(("srun", "python3", "python"))]
    scripts = {pid for pid, words in found.items() if any(word.endswith("/slurm_script") for word in words)}
    assert len(scripts) == 1 and not of_ours, (scripts, of_ours)
    sruns = {pid for pid, words in found.items() if words[0].endswith("srun")}
    traced = [word for pid in scripts | sruns for word in ("-p", str(pid))]
    trace = project / "trace"
    strace = ["timeout", "--signal=INT", "20", "strace", "-f", "-e", "trace=%file", "-o", trace, *traced]
    said = subprocess.run(list(map(str, strace)), capture_output=True, text=True, check=False).stderr
    assert said.count(" attached") >= len(scripts | sruns), said
    calls = [line for line in trace.read_text().splitlines() if "(" in line]
    assert len(calls) <= 5, "\n".join(calls[:40])
    ended = cluster.wait(job)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), ended.output


@pytest.mark.drill
@pytest.mark.parametrize(("extras", "steps"), [("none", 2), ("watch", 3)])
def test_the_steps_that_a_job_has_in_the_accounting(tmp_path, extras, steps):
    """The preflight's and the ranks': without extras nothing is sampled beside them. watch adds a step of its own."""
    project = bake(tmp_path, **ANSWERS, extras=extras)
    name = program(project, "import time; time.sleep(60); print('slept')\n")
    accounts = accounting.accounts("test", {"acc": [pwd.getpwuid(os.geteuid()).pw_name]})
    with Cluster(tmp_path / "cluster", nodes=2, accounts=accounts) as cluster:
        words = ["bash", project / "slurm/submit_multinode.sh", "--account=acc", "--", name]
        done = cluster.run(*words, cwd=project, env=python_environment(NPROC_PER_NODE="1"))
        job = cluster.wait(int(re.search(r"Submitted batch job (\d+)", done.stdout)[1]))
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        asked = ["sacct", "-nP", "-j", str(job.id), "-o", "JobID,State"]
        wait_for(lambda: f"{job.id}|COMPLETED" in cluster.run(*asked).stdout.split(), "the job's end in the accounting")
        rows = cluster.run(*asked).stdout.split()
    assert [row.split("|")[0] for row in rows if re.match(r"\d+\.\d", row)] == [f"{job.id}.{n}" for n in range(steps)]
    after = job.output[job.output.rindex("slept") :].splitlines()[1:]
    assert [line.partition(":")[0] for line in after] == ["CPUs"] * (steps - 2), job.output


ASKED_ONCE = """\
import time
print("got", *sys.argv[1:], os.environ["RESTART_COUNT"], flush=True)
if os.environ["RESTART_COUNT"] == "0":
    while not os.path.exists(os.environ["STOP_FILE"]):
        time.sleep(0.1)
    open(os.environ["REQUEUE_FILE"], "w").close()
    sys.exit()
time.sleep(6)
"""


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_all_extras_together_in_an_array_after_a_requeue(cluster, tmp_path, launcher):
    project = bake(tmp_path / "a b", **ANSWERS, extras="all")
    name = program(project, ASKED_ONCE)
    (project / "lines.txt").write_text("first %a\n")
    typed = ["bash", project / "extras/sweep/sweep.sh", "lines.txt", "--nodes=2", "--", name]
    environment = python_environment(LAUNCHER=launcher, NPROC_PER_NODE="1", PREFLIGHT="0", MEASURE_EVERY="1")
    number = cluster.run(*typed, cwd=project, env=environment).stdout.split()[3]

    def output():
        return "".join(path.read_text() for path in project.glob("lines-*.out"))

    wait_for(lambda: output().count("got first 1 0") == 2, output)
    cluster.run("scancel", "--signal=USR1", "--batch", f"{number}_1")
    table = ["bash", project / "extras/sweep/sweep.sh", number]
    wait_for(lambda: "1 COMPLETED" in cluster.run(*table).stdout, output)
    assert output().count("got first 1 1") == 2, output()
    assert output().splitlines()[-1].startswith("CPUs: a rank used "), output()
