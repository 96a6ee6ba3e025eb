"""Functions of the scripts of slurm/, each by itself, and two of launch/."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from baking import TEMPLATE, bake

# ---- functions of slurm/ and launch/ ---------------------------------------------------------------------------------


def function(script, name):
    found = re.search(rf"^{name}\(\) {{.*?^}}", script.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{name} is gone from {script}"
    return found.group()


@pytest.fixture(scope="module")
def submit(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("submit"), site="slurm") / "slurm/submit_multinode.sh"


def bash(code, **environment):
    clean = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(["bash", "-c", code], env=clean, capture_output=True, text=True, check=False)


def test_what_a_submission_from_a_job_keeps_of_its_variables(submit):
    """The cluster's configuration and the user's token: without them, sbatch reaches no controller."""
    code = function(submit.with_name("submit.sh"), "unset_allocation") + "\nunset_allocation; env"
    kept = {"SLURM_CONF": "/etc/elsewhere.conf", "SLURM_JWT": "a.token"}
    said = bash(code, SLURM_NNODES="2", **kept).stdout.splitlines()
    assert sorted(line for line in said if line.startswith("SLURM_")) == [f"{n}={v}" for n, v in kept.items()]


@pytest.mark.parametrize(
    ("header", "typed", "told"),
    [
        ("--gpus-per-node=4", "--gres=gpu:2", "--gpus-per-node=N; use that"),
        ("--gpus-per-node=4", "--gres gpu:a100:2", "--gpus-per-node=N; use that"),
        ("--nodes=2 --gpus-per-node=4", "--gres=nvme:1,gpu:2", "--gpus-per-node=N; use that"),
        ("--gres=gpu:a100:4", "--gpus-per-node=2", "--gres=gpu:N; use that"),
        ("--gres=gpu:4", "-G 4", "--gres=gpu:N"),
        ("--gres=gpu:4", "--gres=tmpfs:20G", "add ,gpu:N"),
        ("--gpus-per-node=4", "--gpus=4", "--gpus-per-node=N"),
        ("--gpus-per-node=4", "--gpus-per-task=1", "--gpus-per-node=N"),
        ("--nodes=2", "--gpus 4", "--gpus-per-node=N"),
        ("--gpus-per-node=4", "--ntasks-per-node=4", "NPROC_PER_NODE=N bash slurm/submit_multinode.sh"),
        ("--gpus-per-node=4", "--tasks-per-node 2", "NPROC_PER_NODE=N bash slurm/submit_multinode.sh"),
        ("--gpus-per-node=4", "-n 8", "NPROC_PER_NODE=N bash slurm/submit_multinode.sh"),
        ("--gpus-per-node=4", "--signal=B:USR1@60", "SAVE_SECONDS=600 bash slurm/submit_multinode.sh"),
        ("--gpus-per-node=4", "--gpus-per-node=2 --nodes=2 -N 3 --gres=nvme:1 --no-requeue", ""),
        ("--gres=gpu:4", "--gres gpu:2 --gpu-freq=low --gres-flags=enforce-binding", ""),
        ("--nodes=2  # not --gpus-per-node", "--gres=gpu:2", ""),
        ("--gres=nvme:1", "--gpus-per-node=2", ""),
    ],
)
def test_a_number_in_other_words_is_refused(submit, tmp_path, header, typed, told):
    """Slurm would take both spellings of GPUs; the message has the right one."""
    (tmp_path / "header").write_text(f"#!/bin/bash\n#SBATCH {header}\n")
    code = function(submit.with_name("submit.sh"), "refuse_other_spelling")
    code = f'die() {{ echo "$*"; exit 2; }}\n{code}\njob_script={tmp_path}/header sbatch_options=({typed})'
    done = bash(f"{code}\nrefuse_other_spelling")
    assert (done.returncode, told in done.stdout, done.stderr) == (2 if told else 0, True, ""), done


def port(submit, job, attempt=0, port_range=None):
    library = submit.with_name("job.sh")
    code = function(library, "free_port") + "\n" + function(library, "port_range")
    in_use = re.search(r"^in_use\(\) {.*}$", library.read_text(), re.MULTILINE)[0]
    if port_range:
        code = code.replace("/proc/sys/net/ipv4/ip_local_port_range", f"<(echo {port_range})").replace("<<(", "< <(")
    done = bash(
        f'die() {{ echo "$*"; exit 2; }}\n{code}\n{in_use}\nfree_port',
        SLURM_JOB_ID=str(job),
        attempt=str(attempt),
    )
    return int(done.stdout) if done.returncode == 0 else done.stdout


def test_the_port_follows_from_job_and_attempt(submit):
    assert port(submit, 1234) == port(submit, 1234)
    assert len({port(submit, 1234, attempt) for attempt in range(5)}) == 5
    assert port(submit, 1234) != port(submit, 1235)
    assert port(submit, 89) == 10089  # not an octal number


@pytest.mark.parametrize(
    ("port_range", "allowed"),
    [
        ("32768 60999", range(10000, 30000)),
        ("16384 65000", range(10000, 16384)),
        ("1024 60999", range(61000, 65536)),
        ("1024 9000", range(9001, 29001)),
        ("1024 65535", range(10000, 30000)),  # nothing is left outside
    ],
)
def test_the_port_is_outside_the_range_of_outgoing_connections(submit, port_range, allowed):
    assert all(port(submit, job, 3, port_range) in allowed for job in (1, 7, 19999, 20000, 4294967295))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_in_use_is_passed_over(submit, family):
    first = port(submit, 4711)
    with socket.socket(family) as listener:
        try:
            listener.bind(("" if family == socket.AF_INET else "::1", first))
        except OSError as error:  # a machine without IPv6 has no IPv6 port to collide with
            assert family == socket.AF_INET6, error
            return
        listener.listen()
        assert port(submit, 4711) == first + 1
    assert port(submit, 4711) == first


@pytest.mark.parametrize(
    "command",
    [
        "{project}/slurm/submit_multinode.sh",
        "{project}/experiments/mine.sh pi/pi.py",  # a renamed copy
        "{project}/slurm/submit_multinode.sh pi/pi.py --intervals 5",
        "{project}/slurm/submit_multinode.sh /data/slurm/x.py /slurm/",
        "slurm/submit_multinode.sh x.py",
        "./slurm/submit_multinode.sh",
        "(null)",
    ],
)
def test_the_project_is_found_from_a_spooled_copy(submit, command, tmp_path):
    """As in a job: this file is somewhere else, and scontrol tells where it came from."""
    project = tmp_path / "in slurm/my project"
    shutil.copytree(submit.parents[1], project)
    (project / "experiments").mkdir()
    shutil.copy(submit, project / "experiments/mine.sh")
    (project / "slurm/project.sh").write_text('echo "$PROJECT_DIR"; exit\n')
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    line = f"   Command={command.format(project=project)}"
    scontrol.write_text(f"#!/bin/bash\n[[ $* == *'show job 7' ]] && echo 'JobId=7' && echo '{line}'\n")
    scontrol.chmod(0o755)
    script = tmp_path / "spool/slurm_script"
    script.parent.mkdir()
    shutil.copy(submit, script)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    def found(**more):
        done = bash(f"bash '{script}' program.py", **environment, **more)
        assert (done.returncode == 0) or "holds slurm/job.sh" in done.stderr, done
        return done.stdout.strip()

    assert found(SLURM_SUBMIT_DIR=str(project)) == str(project)
    assert bool(found(SLURM_SUBMIT_DIR="/")) == command.startswith("{project}")
    assert found(SLURM_SUBMIT_DIR="/", PROJECT_DIR=str(project)) == str(project)
    if command == "(null)":  # not another project in whose folder the user stood
        other = tmp_path / "other/slurm"
        other.mkdir(parents=True)
        (other / "job.sh").touch()
        assert found(SLURM_SUBMIT_DIR=str(other.parent), PROJECT_DIR=str(project)) == str(project)
    own = bash(f"bash '{project}/experiments/mine.sh'") if "mine" in command else None
    assert own is None or own.stdout.strip() == str(project), own


@pytest.mark.parametrize(("site", "own_queue"), [("slurm", False), ("clariden", True)])
def test_other_jobs_take_account_and_queue_from_the_submit_script(site, own_queue, tmp_path):
    """Edited there, they change everywhere, but for the queue that a site has for shells or for building."""
    project = bake(tmp_path, site=site, runtime="venv", account="abc", partition="debug")
    submit = project / "slurm/submit_multinode.sh"
    header = submit.read_text().replace("#SBATCH --account=abc ", "#SBATCH -A other ")
    header = header.replace("#SBATCH --partition=debug ", "#SBATCH --partition=large ")
    assert header.count("-A other") == header.count("--partition=large") == 1
    submit.write_text(header + "# #SBATCH --account=no\n")
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "salloc"):
        (tmp_path / "bin" / name).write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "RUNTIME": "none"}

    def asked(script, *options):
        command = ["bash", project / "slurm" / script, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    taken = ["--account=other", *([] if own_queue else ["--partition=large"])]
    build = [*taken, "--time=00:01:00", str(project / "slurm/build_venv.sh"), str(project)]
    assert asked("build_venv.sh", "--time=00:01:00") == ["--export=ALL", *build]
    assert ("#SBATCH --partition=normal " in (project / "slurm/build_venv.sh").read_text()) == own_queue
    shell = asked("interactive.sh")
    assert shell[: len(taken)] == taken and ("--partition=debug" in shell) == own_queue


def test_a_conda_environment_does_as_well(submit, tmp_path):
    """It has no bin/activate, and is known by its conda-meta."""
    for folder in ("bin", "conda-meta"):
        (tmp_path / "my env" / folder).mkdir(parents=True)
    python = tmp_path / "my env/bin/python3"
    python.write_text("#!/bin/bash\necho conda\n")
    python.chmod(0o755)
    settings, software = (submit.parent.parent / name for name in ("env.sh", "launch/software.sh"))
    environment = {"PROJECT_DIR": str(settings.parent), "RUNTIME": "venv", "VENV": f"{tmp_path}/my env"}
    set_up = f"source '{settings}' && source '{software}' && set_up_software"
    done = bash(f"{set_up} && $PYTHON && echo $CONDA_PREFIX", **environment)
    assert done.stdout == f"conda\n{tmp_path}/my env\n", done.stderr
    assert bash(set_up, **{**environment, "VENV": "/no/such"}).returncode == 2
    for runtime, fix in ("venv", "VENV"), ("none", "RUNTIME=venv"):
        done = bash(set_up, **{**environment, "PYTHON": "pythonn", "RUNTIME": runtime})
        assert (done.returncode, done.stderr) == (2, f"env.sh: pythonn was not found; set PYTHON, or {fix}\n")
    in_a_container = set_up.replace(" && source", " && CONTAINER_EXEC=(apptainer exec own.sif) && source")
    assert bash(in_a_container, **{**environment, "PYTHON": "/in/the/image/python", "RUNTIME": "none"}).returncode == 0


def test_no_gpus_are_no_failure(tmp_path):
    """With set -e a script would end where grep counts nothing."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/bash\necho NVIDIA-SMI has failed; exit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    code = f"set -eo pipefail; source '{TEMPLATE}/launch/count_gpus.sh'; count_gpus; echo goes on"
    assert bash(code, PATH=f"{tmp_path}:{os.environ['PATH']}").stdout == "0\ngoes on\n"


# ---- what Slurm says of a job, or does not say -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Calls functions of slurm/, where scontrol fails so many times before it prints a record."""
    library = bake(tmp_path_factory.mktemp("steps"), site="mn5", account="abc") / "slurm/commands.sh"
    tools = 'sleep() { echo "sleep $1" >&2; }; sbatch() { echo "sbatch $*"; }; exec() { "$@"; }\n'
    tools += "scontrol() { if [[ $2 == hostnames ]]; then echo n1; return; fi\n"
    tools += '  echo >>"$CALLS"; (($(wc -l <"$CALLS") > FAILS)) || return 1; echo "$RECORD"; }\n'

    def call(code, fails=0, record="", **environment):
        calls = tmp_path_factory.mktemp("calls") / "calls"
        calls.touch()
        environment |= {"PROJECT_DIR": str(library.parent.parent), "CALLS": str(calls), "FAILS": str(fails)}
        read = "".join(f"source '{library.with_name(name)}'\n" for name in ("submit.sh", "job.sh", "ranks.sh"))
        return bash(f"{tools}source '{library}' slurm/x.sh\n{read}{code}", RECORD=record, **environment)

    return call


OF_AN_ARRAY = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("record", "said"),
    [("JobId=9 ArrayTaskId=3 Restarts=2", "7_3 of task 3, 2"), ("JobId=9 Restarts=0", "9 of task -, 0")],
)
def test_a_busy_controller_is_asked_again_whether_a_job_is_of_an_array(steps, record, said):
    """A job that took itself for another's would have that one requeued."""
    code = 'identify_job; echo "$job_id of task ${SLURM_ARRAY_TASK_ID:--}, $requeues${SLURM_RESTART_COUNT:+ counted}"'
    of_another = {**OF_AN_ARRAY, "SLURM_RESTART_COUNT": "2"}
    done = steps(code, fails=2, record=record, **of_another)
    assert done.stdout == f"{said}{' counted' if said[-1] == '2' else ''}\n" and done.stderr == "sleep 1\nsleep 2\n"
    done = steps(code, fails=9, record=record, **OF_AN_ARRAY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "slurm/x.sh: Slurm does not answer 'scontrol show job 9', which says whether this job belongs" in done.stderr


def test_a_record_of_siblings_decides_nothing(steps):
    """For the last task of an array, `scontrol show job` of its number prints all tasks: the own one is asked for."""
    own = "JobId=7 ArrayTaskId=3 JobState=RUNNING Restarts=1"
    tools = (
        f"scontrol() {{ if [[ $4 == 7_3 ]]; then echo '{own}'; else echo 'JobId=8 ArrayTaskId=2 Restarts=0'; fi; }}\n"
    )
    code = 'identify_job; echo "$job_id $requeues"'
    assert steps(tools + code, **{**OF_AN_ARRAY, "SLURM_JOB_ID": "7"}).stdout == "7_3 1\n"


def test_what_the_allocation_has(steps):
    """Cores of all tasks of a node. Without Slurm's answer its GPUs are not taken for none."""
    given = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "80(x2)"}
    given |= {"SLURM_GPUS_ON_NODE": "4"}
    code = 'record=$RECORD; read_allocation; echo "$cores cores, gpus=$gpus, ${SLURM_GPUS_ON_NODE:-unset}"'
    record = "   JobState=RUNNING\n   Nodes=n1 CPU_IDs=0-79 Mem=0 GRES=gpu:hopper:4(IDX:0-3)"
    done = steps(code, record=record, **given, SLURM_CPUS_PER_TASK="20", SLURM_TASKS_PER_NODE="4(x2)")
    assert done.stdout == "80 cores, gpus=4, 4\n", done.stderr
    assert steps(code, record=record, **given, SLURM_CPUS_PER_TASK="20").stdout == "20 cores, gpus=4, 4\n"
    assert steps(code, record="JobState=RUNNING Nodes=n1 GRES=", **given).stdout == "80 cores, gpus=, unset\n"
    assert steps(code, **given).stdout == "80 cores, gpus=unknown, 4\n"


def test_what_a_rank_of_torchrun_leaves_to_a_job_that_it_submits(steps):
    """Each rank would take itself for a client of a store that torchrun has not opened."""
    code = 'unset_stale_variables; echo "${RANK:-gone} ${TORCHELASTIC_USE_AGENT_STORE:-gone}"'
    assert steps(code, RANK="3", TORCHELASTIC_USE_AGENT_STORE="True").stdout == "gone gone\n"


def test_gpus_that_env_sh_chooses_in_a_job_without_gpus(steps, tmp_path):
    """Where Slurm does not count them. What another shell has left is unset."""
    (tmp_path / "env.sh").write_text("")
    given = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "72,80(x2)", "CUDA_VISIBLE_DEVICES": "2"}
    given |= {"FOLDER": str(tmp_path), "record": "JobState=RUNNING Nodes=n1 GRES="}
    code = 'record=$RECORD PROJECT_DIR=$FOLDER; read_allocation; echo "$cores cores, ${CUDA_VISIBLE_DEVICES:-none}"'
    assert steps(code, **given).stdout == "72 cores, none\n"
    for line in ("export CUDA_VISIBLE_DEVICES=2", '  export "CUDA_VISIBLE_DEVICES=0,1"', "CUDA_VISIBLE_DEVICES=2"):
        (tmp_path / "env.sh").write_text(f"{line}\n")
        assert steps(code, **given).stdout == "72 cores, 2\n"


@pytest.mark.parametrize(
    ("asked", "held", "gpus", "told"),
    [
        ("TresPerNode=gres:gpu:2", "4 4", "2", ""),  # Slurm 22.05, with --exclusive
        ("TresPerNode=gres/gpu:a100:2", "2 2", "2", ""),
        ("TresPerNode=gres:gpu", "1 1", "1", ""),
        ("TresPerNode=gres:tmpfs:100G,gres:gpu:4", "4 4", "4", ""),
        ("TresPerNode=gres:tmpfs:100G", "", "", ""),
        ("TresPerNode=gres/gpumem=10", "", "", ""),
        ("TresPerJob=gres:gpu:8", "a100:4 a100:4", "4", "4"),  # the number, and none of the type
        ("TresPerTask=gres/gpu=1", "nvidia_a100_3g.20gb:8", "8", "8"),
        ("", "t4:8", "8", ""),
        ("TresPerJob=gres:gpu:4", "2 2", "2", "2"),
        ("TresPerTask=gres/gpu=1", "2 2", "2", "2"),
        ("", "4 4", "4", ""),  # --exclusive, and none asked for
        ("", "", "", ""),
    ],
)
def test_gpus_in_the_record_of_a_job(steps, asked, held, gpus, told):
    nodes = "".join(f"     Nodes=n{n} GRES=gpu:{count}(IDX:0)\n" for n, count in enumerate(held.split()))
    code = 'record=$RECORD; read_gpus; echo "gpus=$gpus told=${SLURM_GPUS_PER_NODE:-}"'
    assert steps(code, record=f"JobState=RUNNING\n{nodes}   {asked}\n").stdout == f"gpus={gpus} told={told}\n"


def test_settings_leave_the_shell_as_it_was(steps, tmp_path):
    (tmp_path / "env.sh").write_text("set -eu\n")
    code = "PROJECT_DIR=$FOLDER; read_settings; false; echo went on $UNSET"
    assert steps(code, FOLDER=str(tmp_path)).stdout == "went on\n"
    (tmp_path / "env.sh").write_text("set -e\nfalse\n")
    done = steps(code, FOLDER=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "") and "env.sh ended this script" in done.stderr


@pytest.fixture(scope="module")
def ends_early(tmp_path_factory):
    """A project whose env.sh ends the script that reads it, and says that nothing is wrong."""
    project = bake(tmp_path_factory.mktemp("ends"), site="slurm", extras="notebook,trackers")
    with open(project / "env.sh", "a") as settings:
        settings.write("exit 0\n")
    return project


@pytest.mark.parametrize(
    "command",
    ["slurm/build_venv.sh", "slurm/interactive.sh", "extras/notebook/notebook.sh", "extras/trackers/sync_trackers.sh"],
)
def test_commands_refuse_settings_that_end_them(ends_early, command):
    done = bash(f"bash '{ends_early / command}'")
    assert (done.returncode, done.stdout) == (2, "") and "env.sh ended this script" in done.stderr, done.stderr


# ---- the end of a job ------------------------------------------------------------------------------------------------

END = "in_batch_job=1 job_id=9 requeues=0 attempt=0 code={code} stop={stop} MAX_REQUEUES=2 STOP_TIME={clock}\n"
END += "explained=''; explain_failure() {{ echo explained; }}; outcome={outcome}\nrequeue_or_explain"
BACK = "back into the queue as attempt 1"


@pytest.mark.parametrize(
    ("values", "record", "said"),
    [
        ({"stop": "asked"}, "JobState=RUNNING Reason=None", f"saved, but not done: {BACK}"),
        ({"stop": "asked"}, "Reason=None JobState=RUNNING", f"saved, but not done: {BACK}"),  # by name, not by order
        ({"clock": 0}, "JobState=RUNNING Reason=None", f"saved, but not done: {BACK}"),  # it stopped by the clock
        ({}, "JobState=RUNNING Reason=None", "saved, but not done: no requeue, as no stop was due"),  # nobody asked
        ({"stop": "asked", "code": 1}, "JobState=RUNNING Reason=None", "no requeue, as the program failed\nexplained"),
        ({"stop": "cancelled"}, "JobState=CANCELLED Reason=None", "told to end"),
        ({"stop": "cancelled", "outcome": "requeue"}, "JobState=CANCELLED Reason=None", "told to end"),
        ({"stop": "cancelled"}, "JobState=RUNNING Reason=None PreemptTime=None", "told to end"),
        ({"code": 1}, "JobState=RUNNING PreemptTime=2026-11-27T10:00:00", f"saved, but not done: {BACK}"),
        ({"stop": "cancelled"}, "JobState=RUNNING PreemptTime=2026-11-27T10:00:00", f"saved, but not done: {BACK}"),
        ({"stop": "cancelled"}, "JobState=TIMEOUT Reason=TimeLimit", f"saved, but not done: {BACK}"),
        ({"code": 1, "outcome": "requeue"}, "JobState=RUNNING", f"an extra wants a requeue: {BACK}"),
        ({"code": 143, "outcome": "requeue"}, "JobState=CANCELLED", "no requeue, as the program failed\nexplained"),
        ({"stop": "asked", "outcome": "end"}, "JobState=RUNNING", ""),
        ({"stop": "asked"}, "JobState=RUNNING Requeue=0", "saved, but not done, and this job may not be requeued"),
    ],
)
def test_whether_a_job_goes_back_into_the_queue(steps, tmp_path, values, record, said):
    (tmp_path / "requeue").touch()
    code = END.format(**{"code": 0, "stop": "''", "outcome": "''", "clock": 9999999999, **values})
    done = steps(code, record=record, REQUEUE_FILE=str(tmp_path / "requeue"))
    assert done.returncode == 0 and (said in done.stdout if said else not done.stdout), done


def test_a_job_that_saved_says_so_where_slurm_does_not_answer(steps, tmp_path):
    (tmp_path / "requeue").touch()
    code = END.format(code=0, stop="asked", outcome="''", clock=0)
    where = {"REQUEUE_FILE": str(tmp_path / "requeue")}
    record = "   JobState=RUNNING Reason=None\n   Requeue=1 Restarts=0"
    assert BACK in steps(code, fails=2, record=record, **where).stdout
    done = steps(code, fails=9, record=record, **where)
    assert "saved, but not done, and Slurm has not requeued this job, see above: the next job" in done.stdout
    answers = f"if [[ $* == *show* ]]; then echo '{record}'; else ((++asked > FAILS)); fi"
    once = f"asked=0\nscontrol() {{ {answers}; }}\n{code}"
    assert BACK in steps(once, fails=2, **where).stdout
    assert "and Slurm has not requeued this job, see above: the next job" in steps(once, fails=3, **where).stdout
    ended = f"scontrol() {{ if [[ $* == *show* ]]; then echo '{record}'; else return 143; fi; }}\n{code}"
    assert BACK in steps(ended, **where).stdout  # the requeue has ended scontrol, too


def test_the_exit_code_of_ranks_that_bash_has_forgotten(steps):
    """In its POSIX mode bash knows the exit code of a process once; a signal may come before and after its end."""
    code = "set -o posix; set -m; trap 'interrupted=1' USR1\nstart_ranks bash -c 'sleep 0.5; exit 7'\n"
    code += '(command sleep 0.1; kill -USR1 $$) &\nwait_for_ranks; echo "$code${ranks:-}"'
    assert steps(code).stdout == "7\n"


@pytest.mark.parametrize(
    ("save_seconds", "left", "reserve"), [(180, 3600, 180), (180, 600, 60), (600, 36000, 600), (0, 3600, 0)]
)
def test_the_clock_of_a_program_follows_from_one_number(steps, save_seconds, left, reserve):
    code = f'end=$(($(date +%s) + {left})); record="EndTime=$(date -d @$end +%FT%T) Deadline=N/A"\n'
    code += f"SAVE_SECONDS={save_seconds}; set_stop_time; echo $((end - STOP_TIME))"
    assert int(steps(code).stdout) in (reserve, reserve - 1)


def test_the_clock_where_slurm_does_not_answer(steps):
    code = "record='' SAVE_SECONDS=60; set_stop_time; echo $((STOP_TIME - $(date +%s)))"
    end = int(time.time()) + 3600
    assert int(steps(code, SLURM_JOB_END_TIME=str(end)).stdout) in range(3500, 3542)
    said, seconds = steps(code).stdout.splitlines()
    assert "the end of this job is not known" in said and int(seconds) > 364 * 86400


def test_a_message_that_cannot_be_written_ends_nothing(steps):
    done = steps("set -e; say x >/dev/full; echo goes on")
    assert done.stdout == "goes on\n"


def test_a_header_with_options_that_echo_knows(steps, tmp_path):
    (tmp_path / "header").write_text("#SBATCH -e no/err -n 4  # why\n#SBATCH --comment='a b'\n")
    code = f"for o in 'error e' 'ntasks n' 'comment x'; do option_of_job $o '{tmp_path}/header'; done"
    assert steps(code).stdout == "no/err\n4\na b\n"


def test_a_job_that_was_cancelled_meanwhile_starts_no_ranks(steps):
    done = steps("program=x.py arguments=() hosts=(n1) stop=cancelled; start_ranks() { echo started; }; run_program")
    assert (done.returncode, done.stdout) == (143, "")


def test_a_job_without_a_time_limit_stops_by_no_clock(steps):
    code = "record=EndTime=Unknown SAVE_SECONDS=60; set_stop_time; echo $(((STOP_TIME - $(date +%s)) / 86400))"
    assert int(steps(code).stdout) >= 364


@pytest.mark.parametrize("own", ["--partition=fast", "--qos fast", "-p fast", "-qfast"])
def test_a_build_s_own_queue_stays(steps, own, tmp_path):
    script = tmp_path / "build.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    assert "--qos=" in steps(f"submit_build '{script}'").stdout
    script.write_text(f"#!/bin/bash\n#SBATCH {own}\n")
    said = steps(f"submit_build '{script}'").stdout
    assert "--account=abc" in said and "--qos=" not in said and "--partition=" not in said


# ---- why a run failed ------------------------------------------------------------------------------------------------

EXPLAIN = """\
DOCTOR_LIMIT=1 LAUNCHER=torchrun PROJECT_DIR='/a b' RUN_DIR='/a b/logs/12.0' code=3 explained=''
job_id={job} in_batch_job={batch}
say() {{ echo "$*"; }}
explain_failure
explain_failure # once for each start
"""


@pytest.mark.parametrize(
    ("job", "python", "said"),
    [
        ("12", 'echo "cause: $*"', ["cause: -B /a b/slurm/doctor.py 12", "To ask again, run {} 12"]),
        ("3_7", "exit 1", ["To ask again, run {} 3_7"]),
        (
            "in a shell",
            'echo "cause: $*"',
            ["cause: -B /a b/slurm/doctor.py /a b/logs/12.0", "To ask again, run {} logs/12.0"],
        ),
        ("12", "exec sleep 60", ["slurm/doctor.py found no answer within 1 s", "To ask again, run {} 12"]),
        # It does not end by TERM; bash then tells of the KILL.
        ("12", "trap '' TERM; sleep 9", ["slurm/doctor.py found no answer within 1 s", "To ask again, run {} 12"]),
        ("12", "", ["To see why, run {} 12 on a login node: this node has no python3"]),
    ],
)
def test_the_doctor_in_a_job(submit, tmp_path, job, python, said):
    """The cause first, then the exit code and the command to ask again; the nodes do not wait for ever."""
    for tool in ("bash", "timeout", "sleep"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    if python:
        (tmp_path / "python3").write_text(f"#!/bin/bash\n{python}\n")
        (tmp_path / "python3").chmod(0o755)
    code = EXPLAIN.format(job=job.split()[-1], batch=0 if " " in job else 1)
    done = bash(function(submit.with_name("ranks.sh"), "explain_failure") + "\n" + code, PATH=str(tmp_path))
    *report, last = said
    expected = [*report, "torchrun ended with exit code 3. " + last.format("python3 slurm/doctor.py")]
    lines = [line for line in (done.stderr + done.stdout).splitlines() if " Killed " not in line]
    assert sorted(lines) == sorted(expected), done
    assert done.stdout.splitlines()[-1] == expected[-1]
