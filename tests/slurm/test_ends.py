"""How jobs end: the exit code, a save that nothing puts back into the queue, a signal that asks the ranks to save."""

from __future__ import annotations

import json
import re

import pytest
from launching import salloc
from submitting import apptainer_project, cluster, project, python_environment
from waiting import FOREVER, wait_for

# Each saves on USR1, as Lightning does, and has three children that the signal would end, as a worker of a DataLoader:
# one that it has forked, one that runs a program, and one whose parent has ended.
SAVER = """\
import os, signal, subprocess, sys, time
from pathlib import Path
rank, folder = os.environ["RANK"], Path(sys.argv[1])
if os.environ["RESTART_COUNT"] != "0":
    (folder / f"again-{rank}").touch()
    sys.exit()
saves = []
signal.signal(signal.SIGUSR1, lambda *_: saves.append(1))
worker = os.fork()
if worker == 0:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    time.sleep(600)
    os._exit(0)
other = subprocess.Popen(["sleep", "600"])
orphan = int(subprocess.run("sleep 600 >/dev/null & echo $!", shell=True, stdout=subprocess.PIPE).stdout)
(folder / f"ready-{rank}").touch()
while not saves and not (folder / "give up").exists():
    time.sleep(0.05)
time.sleep(2)  # a second signal would be counted
alive = os.waitpid(worker, os.WNOHANG) == (0, 0) and other.poll() is None
alive = alive and os.path.exists(f"/proc/{orphan}")
os.kill(worker, signal.SIGKILL)
other.kill()
os.kill(orphan, signal.SIGKILL)
(folder / f"saved-{rank}-{len(saves)}-{'alive' if alive else 'dead'}").touch()
if rank == "0":
    Path(os.environ["REQUEUE_FILE"]).touch()
"""
RANKS = range(4)
SIGNALLED = {f"saved-{rank}-1-alive" for rank in RANKS}


def names(folder, start):
    return {path.name for path in folder.glob(f"{start}*")}


@pytest.fixture
def start(tmp_path):
    """Start a job of SAVER, and return its number and its folder once all ranks are ready."""

    def call(cluster, project, *options, **environment):
        (tmp_path / "saver.py").write_text(SAVER)
        folder = tmp_path / "saved"
        folder.mkdir()
        script = project / "slurm/submit_multinode.sh"
        words = [*options, script, tmp_path / "saver.py", folder]
        number = cluster.sbatch(*words, cwd=tmp_path, env=python_environment(**environment))
        wait_for(lambda: len(names(folder, "ready-")) == len(RANKS), "the ranks")
        return number, folder

    return call


OTHERS = [pytest.param(name, marks=pytest.mark.drill) for name in ("srun", "spawn", "mpirun", "mpirun-ranks")]


@pytest.mark.parametrize("launcher", ["torchrun", *OTHERS])
def test_a_signal_reaches_the_ranks_alone(cluster, project, start, launcher):
    """At the warning; the job goes back into the queue as ever, and its next attempt is not asked.

    torchrun, which imports torch on each node, has all ranks on one.
    """
    nodes = 1 if launcher == "torchrun" else 2
    number, folder = start(
        cluster, project, f"--nodes={nodes}", LAUNCHER=launcher, STOP_SIGNAL="USR1", NPROC_PER_NODE=str(4 // nodes),
        OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", RANK="0",  # as if a rank had submitted it
    )  # fmt: skip
    cluster.run("scancel", "--signal=USR1", "--batch", str(number))
    wait_for(lambda: len(names(folder, "again-")) == len(RANKS), "the next attempt", FOREVER)
    assert names(folder, "saved-") == SIGNALLED
    job = cluster.wait(number)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "back into the queue as attempt 1" in job.output


@pytest.mark.drill
def test_a_signal_reaches_ranks_in_a_container(containers, sif, tmp_path_factory, start):
    own = apptainer_project(tmp_path_factory, sif, "mpi")
    number, folder = start(containers, own, LAUNCHER="srun", STOP_SIGNAL="USR1", MAX_REQUEUES="0")
    containers.run("scancel", "--signal=USR1", "--batch", str(number))
    job = containers.wait(number)
    assert names(folder, "saved-") == SIGNALLED, job.output


@pytest.mark.drill
def test_a_signal_reaches_the_ranks_of_a_job_of_an_array(cluster, project, start):
    """Its number for scontrol is not the one by which its steps name it."""
    number, folder = start(cluster, project, "--array=3", LAUNCHER="srun", STOP_SIGNAL="USR1", MAX_REQUEUES="0")
    cluster.run("scancel", "--signal=USR1", "--batch", f"{number}_3")
    wait_for(lambda: len(names(folder, "saved-")) == len(RANKS), "the saves")
    assert names(folder, "saved-") == SIGNALLED


@pytest.mark.drill
def test_without_the_setting_no_signal_is_sent(cluster, project, start):
    number, folder = start(cluster, project, LAUNCHER="srun")
    cluster.run("scancel", "--signal=USR1", "--batch", str(number))
    output = next(folder.parent.glob("demo-*.out"))
    wait_for(lambda: "the program is asked to save" in output.read_text(), "the warning")
    (folder / "give up").touch()
    job = cluster.wait(number)
    assert names(folder, "saved-") == {f"saved-{rank}-0-alive" for rank in RANKS}, job.output


@pytest.mark.parametrize("name", ["KILL", "STOP", "SIGUSR1", "save"])
def test_a_signal_that_no_program_can_catch(cluster, project, name):
    command = ["bash", "slurm/submit_multinode.sh", "check/hello.py"]
    done = cluster.run(*command, cwd=project, env=python_environment(STOP_SIGNAL=name), check=False)
    assert done.returncode == 2 and f"STOP_SIGNAL='{name}'" in done.stderr and "USR1" in done.stderr


# A program of one's own, with workers that read its data, and a handler that saves.
LOADER = """\
import os, signal, sys, time
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        time.sleep(0.01)
        return index
def ignore_sigterm(worker):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank, folder, stop = os.environ["RANK"], Path(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
for step, batch in enumerate(DataLoader(Data(), num_workers=2, worker_init_fn=ignore_sigterm)):
    if step == 5:
        (folder / f"ready-{rank}").touch()
    if stop:
        (folder / f"saved-{rank}").touch()
        break
"""


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_workers_that_ignore_the_end_of_a_job(cluster, project, tmp_path, launcher):
    """The lines of "longer than the walltime": without them a worker's death ends its rank before it saves."""
    (tmp_path / "loader.py").write_text(LOADER)
    words = [project / "slurm/submit_multinode.sh", tmp_path / "loader.py", tmp_path]
    number = cluster.sbatch(*words, cwd=tmp_path, env=python_environment(LAUNCHER=launcher))
    wait_for(lambda: len(names(tmp_path, "ready-")) == len(RANKS), "the ranks", FOREVER)
    cluster.run("scancel", str(number))
    job = cluster.wait(number)
    assert names(tmp_path, "saved-") == {f"saved-{rank}" for rank in RANKS}, job.output


# ---- a save that nothing puts back into the queue --------------------------------------------------------------------


def test_a_run_inside_another_job(cluster, project, tmp_path):
    """The outer script's job is not put back into the queue, and the output says that the program was not done."""
    (tmp_path / "x.py").write_text("import os\nopen(os.environ['REQUEUE_FILE'], 'w')\n")
    line = f"bash '{project}/slurm/run_here.sh' '{tmp_path}/x.py'"
    done = salloc(cluster, [line], cwd=tmp_path, LAUNCHER="srun")
    assert done.stdout.count("saved, but not done") == 1 and "not requeued" in done.stdout
    (tmp_path / "x.py").write_text("print('done')\n")
    assert "saved, but" not in salloc(cluster, [line], cwd=tmp_path, LAUNCHER="srun").stdout


# ---- the exit code ---------------------------------------------------------------------------------------------------

FAILS = """\
import os, signal, sys, time
if os.environ["RANK"] == "3":
    {how}
time.sleep({seconds})
"""


HOW = {
    "exits": ("sys.exit(5)", "exited", 5),
    "raises": ("raise ValueError", "error", 1),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "killed", -9),
}
# In every run; test_doctor_jobs.py has a rank that raises.
QUICK = [("exits", "srun"), ("is killed", "torchrun")]


def ends_and_launchers():
    for name, values in HOW.items():
        for launcher in ("torchrun", "srun", "spawn"):
            marks = () if (name, launcher) in QUICK else pytest.mark.drill
            yield pytest.param(*values, launcher, id=f"{name}-{launcher}", marks=marks)


@pytest.mark.parametrize(("how", "way", "exit_code", "launcher"), ends_and_launchers())
def test_the_exit_code_of_a_job_that_fails(cluster, project, tmp_path, how, way, exit_code, launcher):
    """The job's is the launcher's, and not 0. The rank's stands in the doctor's report, which ends the output."""
    (tmp_path / "x.py").write_text(FAILS.format(how=how, seconds=600))
    command = [project / "slurm/submit_multinode.sh", tmp_path / "x.py"]
    job = cluster.submit(*command, cwd=tmp_path, env=python_environment(LAUNCHER=launcher))
    assert job.state == "FAILED" and job.exit_code not in (0, 2), job.output
    command = ["python3", project / "slurm/doctor.py", "--json", job.id]
    answer = json.loads(cluster.run(*command, cwd=tmp_path, check=False).stdout)
    told = [answer[key] for key in ("job", "state", "way", "rank", "host", "exit_code")]
    assert told == [str(job.id), "FAILED", way, 3, "node2", exit_code], (answer, job.output)
    last = f"{launcher} ended with exit code {job.exit_code}. To ask again, run python3 slurm/doctor.py {job.id}\n"
    assert "\nfirst failure: rank 3 on node2 " in job.output and job.output.endswith(last), job.output


OTHERS = [pytest.param(name, marks=pytest.mark.drill) for name in ("torchrun", "spawn")]


@pytest.mark.parametrize("launcher", ["srun", *OTHERS])  # torchrun: four_programs of test_slurm.py
def test_the_exit_code_of_a_job_that_ends_well(cluster, project, tmp_path, launcher):
    (tmp_path / "x.py").write_text(FAILS.format(how="pass", seconds=0))
    job = cluster.submit(
        project / "slurm/submit_multinode.sh",
        tmp_path / "x.py",
        cwd=tmp_path,
        env=python_environment(LAUNCHER=launcher),
    )
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "exit code" not in job.output
