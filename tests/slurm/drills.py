"""What the drills of test_drills.py are made of: programs that break in the middle, a cluster whose nodes can be broken
and mended, and Drill, a run with what is measured of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from baking import bake
from needs import needs_namespaces
from slurm_cluster import Cluster, ClusterError, Nodes
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import wait_for

# The nodes have fewer cores than they declare.
ONE_THREAD = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
PARTITIONS = (
    "PartitionName=main Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10",
    "PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF",
)
STEPS, SAVE_EVERY = 120, 20
RUN = f"--steps {STEPS} --save-every {SAVE_EVERY} --log-every 5 --eval-every 1000 --dtype float64 --timeout 10"
RUN += " --layers 1 --width 32 --context 32 --global-batch 8"
SAME = 1e-14  # how far a loss may be from that of the run that nothing happened to
# The project's own program with a pause before each step, in which things break; later attempts of the job do without.
SLOWLY = """\
import os, runpy, sys, time
training = os.environ["PROJECT_DIR"] + "/training"
sys.path.insert(0, training)
from lm import schedule
slow = int(os.environ.get("RESTART_COUNT", 0)) < int(os.environ.get("SLOW_ATTEMPTS", 1))
seconds = float(os.environ.get("PAUSE", "0.06")) if slow else 0
def set_learning_rate(*arguments, set_learning_rate=schedule.set_learning_rate):
    if os.environ["RANK"] == "3" and os.environ.get("ABORT_AT") == str(arguments[1]):
        os.abort()
    if os.environ["RANK"] == "3" and os.environ.get("RAISE_AT") == str(arguments[1]):
        raise KeyError("a bug")
    time.sleep(seconds)
    while os.path.exists("hold"):
        time.sleep(0.05)
    return set_learning_rate(*arguments)
schedule.set_learning_rate = set_learning_rate
if os.environ.get("SLOW_DISK"):  # a checkpoint takes seconds once the run has been asked to stop
    import lm.checkpoints
    def fsync(file, fsync=os.fsync):
        if os.path.exists(os.environ["STOP_FILE"]):
            open("saving", "w").close()
            time.sleep(float(os.environ["SLOW_DISK"]))
        fsync(file)
    os.fsync = fsync
runpy.run_path(f"{training}/train_ddp.py", run_name="__main__")
"""
# A user's own program, and what README.md asks of it.
OWN_PROGRAM = """\
import os, time
count = int(open("count").read()) if os.path.exists("count") else 0
print("starts at", count, flush=True)
while count < int(os.environ.get("LAST", 100)):
    time.sleep(0.1)
    count += 1
    open("count.tmp", "w").write(str(count))
    os.replace("count.tmp", "count")
    if os.path.exists(os.environ["STOP_FILE"]):
        open(os.environ["REQUEUE_FILE"], "w").close()
        print("stops at", count, flush=True)
        break
"""
# A program that stops by training/lm/stop.py. To start it waits for a file. With LINGER it stays after it has saved,
# until Slurm tells it to end.
TELLS = """\
import os, sys, time
sys.path.insert(0, os.environ["PROJECT_DIR"] + "/training/lm")
from stop import Stop
attempt = os.environ["RESTART_COUNT"]
while not os.path.exists("start." + attempt):
    time.sleep(0.05)
stop = Stop()
for step in range(100_000):
    if step == 1:
        print("first step", flush=True)
    time.sleep(0.1)
    if os.path.exists("enough"):
        break
    if stop.requested():
        stop.requeue()
        print("saved", step, flush=True)
        while os.environ.get("LINGER") and attempt == "0" and not stop.signalled:
            time.sleep(0.05)
        break
"""
# Two ranks meet at the port of the run, without torch.
MEETS = """\
import os, socket, time
here = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(here) as server:
        assert server.accept()[0].recv(9) == b"hello"
while os.environ["RANK"] == "1":
    try:
        socket.create_connection(here).sendall(b"hello")
        print("they met")
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """Without spares, so that Slurm alone decides what becomes of a job when a node dies."""
    return bake(tmp_path_factory.mktemp("a b") / "drills", **ANSWERS, extras="hangs,mpi,snapshot,watch")


@pytest.fixture(scope="session")
def breakable(tmp_path_factory):
    """Three nodes, of which the third is a spare; jobs of the partition urgent preempt others."""
    nodes = [Nodes(2), Nodes(1, more="Weight=9")]
    conf = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSlurmdTimeout=5"
    conf += "\nKillWait=30"  # as on most clusters, by default: what a script may take to say why it ends
    cluster = Cluster(
        tmp_path_factory.mktemp("slurm") / "d", nodes=nodes, partitions=PARTITIONS, extra_conf=conf, disk_mb=4
    )
    needs_namespaces(cluster)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(breakable):
    """The cluster, whole again after each drill."""
    yield breakable
    breakable.run("scancel", "--user", breakable.user)
    for node in breakable.nodes:
        breakable.mend(node)
        with suppress(ClusterError):
            if any("slurmd -D" in line for line in breakable.running(node, daemons=True).values()):
                continue
            breakable.crash(node)
        breakable.boot(node)
    breakable.wait_for_nodes()


# The seconds that a drill waits are what a quiet machine needs at most. A busy one may take so many times as long.
BUSY = 10


def losses_in(metrics):
    """Return the losses that stand in metrics.jsonl, by step; the last line may not be whole yet."""
    found = {}
    with suppress(OSError, ValueError):
        for line in metrics.read_text().splitlines():
            row = json.loads(line)
            found[row["step"]] = row.get("loss", found.get(row["step"]))
    return found


def how_it_ended(job):
    """Return the state of a job, and the exit code or signal if that is not 0."""
    if job.exit_code:
        return f"{job.state} {job.exit_code}"
    if job.signal:
        return f"{job.state} by signal {job.signal}"
    return job.state


class Drill:
    """A run in `folder`, the jobs that do it, and what is measured of it."""

    table = "drill"  # where its row goes

    def __init__(self, cluster, project, folder, reference, note):
        self.cluster, self.project, self.folder, self.reference, self.note = cluster, project, folder, reference, note
        self.out, self.jobs, self.broken, self.reached = folder / "run", [], 0.0, 0
        (folder / "slowly.py").write_text(SLOWLY)

    def submit(self, *options, program="slowly.py", arguments=(), **environment):
        """Submit the run, and return the number of the job."""
        words = [*options, self.project / "slurm/submit_multinode.sh", program]
        if program != "own.py":
            words += [*RUN.split(), "--out", self.out, *arguments]
        self.jobs.append(self.cluster.sbatch(*words, cwd=self.folder, env={**ONE_THREAD, **environment}))
        return self.job

    @property
    def job(self):
        """The number of the newest job, which the methods below are about."""
        return self.jobs[-1]

    @property
    def output(self):
        """What the job has written."""
        path = self.folder / f"demo-{self.job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def attempts(self):
        """How often the job has started its ranks."""
        return self.output.count("meeting at")

    def metrics(self):
        """Return the run's metrics.jsonl, as the login node sees it: the small disk is the cluster's alone."""
        return Path(f"{self.cluster.proc('login')}/root{self.out}/metrics.jsonl")

    def step(self):
        """Return the newest step that the run has told of."""
        return max(losses_in(self.metrics()), default=0)

    def reach(self, step=30):
        """Wait until the run is in the middle."""
        wait_for(lambda: self.step() >= step or "cause:" in self.output, f"step {step}")
        assert self.step() >= step, self.output

    def start_clock(self):
        """Count the seconds, and the steps, from here: now the run is broken."""
        self.broken, self.reached = time.monotonic(), self.step()

    def process(self, node, what, daemons=False):
        """Return the process of a node that has `what` in its command line."""
        return next(number for number, line in self.cluster.running(node, daemons).items() if what in line)

    def rank(self, rank):
        """Return the process that is a rank: RANK is in its environment, unless launch/spawn.py has forked it."""
        node, spawned = self.cluster.nodes[rank // 2], []
        for number, line in self.cluster.running(node).items():
            stat, environment = Path(f"/proc/{number}/stat"), Path(f"/proc/{number}/environ")
            with suppress(OSError):
                if "launch/spawn.py" in line:
                    spawned.append((number, int(stat.read_text().rpartition(")")[2].split()[1])))
                elif "python" in line.split()[0] and f"RANK={rank}".encode() in environment.read_bytes().split(b"\0"):
                    return number
        parents = {number for number, _ in spawned}
        return [number for number, parent in spawned if parent in parents][rank % 2]

    def warn(self):
        """Send what Slurm sends before the time limit: USR1 to the batch script."""
        self.cluster.run("scancel", "--signal=USR1", "--batch", str(self.job))

    def await_restart(self, within, attempts=2):
        """Wait until the job runs again; return the seconds since it was broken."""
        end = time.monotonic() + BUSY * within
        while True:
            shown = self.cluster.run("scontrol", "show", "job", str(self.job)).stdout
            if self.attempts >= attempts:  # looked at last, as the job may end in between
                break
            state = re.search(r"JobState=(\S+)", shown)[1]
            assert time.monotonic() < end and state not in {"COMPLETED", "FAILED", "CANCELLED"}, shown + self.output
            self.reached = max(self.reached, self.step())
            time.sleep(0.1)
        return time.monotonic() - self.broken

    def await_end(self, within=90):
        """Wait for the end of the job; return it and the seconds since the run was broken."""
        job = self.cluster.wait(self.job, BUSY * within)
        seconds = time.monotonic() - self.broken
        if len(self.jobs) == 1 and self.attempts == 1:
            self.reached = max(self.reached, self.step())
        return job, seconds

    def await_failure(self, within):
        """Wait for a job that has to fail."""
        job, seconds = self.await_end(within)
        assert job.state == "FAILED" and job.exit_code, job.output
        self.await_no_process()
        return job, seconds

    def assert_requeued(self, name):
        """Wait until the job has saved, run again and lost nothing; note it."""
        seconds = self.await_restart(within=60)
        job, _ = self.await_end()
        assert (job.state, job.exit_code, self.attempts) == ("COMPLETED", 0, 2), job.output
        assert "may not be requeued" not in job.output, job.output
        self.await_no_process()
        lost = self.lost()
        assert lost == 0, job.output
        logs = self.project / "logs"
        assert (logs / f"{job.id}.0").is_dir() and (logs / "latest").resolve() == logs / f"{job.id}.1"
        self.row(name, job, seconds, until="running again", lost=lost)

    def assert_cancelled(self, job):
        """The job was cancelled and stays so."""
        assert job.state == "CANCELLED", job.output
        self.await_no_process()
        shown = self.cluster.run("scontrol", "show", "job", str(job.id)).stdout
        assert "Restarts=0" in shown and self.attempts == 1, shown + job.output

    def await_no_process(self, within=10):
        """Wait until no process of any job is left on any node."""

        def left():
            found = {}
            for node in self.cluster.nodes:
                with suppress(ClusterError):  # it is down
                    found |= self.cluster.running(node)
            return found

        end = time.monotonic() + BUSY * within
        while (found := left()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not found, found

    def resume(self, *options, **environment):
        """Run the rest as a user would, in a job of its own; return the steps that were lost."""
        environment = {"LAUNCHER": "spawn", **environment}  # the quickest to start
        self.submit(*options, program="training/train_ddp.py", arguments=["--resume"], **environment)
        job = self.cluster.wait(self.job)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
        return self.lost()

    def lost(self):
        """Return how many steps that the run had told of were done again, after the last start."""
        starts = re.findall(r"start   at step (\d+)", self.output)
        return max(0, self.reached - int(starts[-1]))

    def difference(self):
        """Return how far the losses are from those of the run that nothing happened to."""
        found = losses_in(self.metrics())
        assert sorted(found) == list(range(1, STEPS + 1)), self.output
        assert self.metrics().read_text().count('"loss"') == STEPS  # each step once
        return max(abs(found[step] - self.reference[step]) for step in found)

    def first_failure(self, job, rank, host, exit_code):
        """Assert which rank failed first, as the doctor says; return the line of the job's output that says so."""
        answer = self.ask_doctor(job)
        assert (answer["rank"], answer["host"], answer["exit_code"]) == (rank, host, exit_code), (answer, job.output)
        return self.line_of_report(job, "first failure: ")

    def cause(self, job, name):
        """Assert which cause the doctor names; return the line of the job's output that says so."""
        answer = self.ask_doctor(job)
        assert [cause["name"] for cause in answer["causes"]] == [name], (answer, job.output)
        return self.line_of_report(job, "cause: ")

    def ask_doctor(self, job):
        """Return what slurm/doctor.py --json says of a job."""
        command = ["python3", self.project / "slurm/doctor.py", "--json", str(job.id)]
        return json.loads(self.cluster.run(*command, cwd=self.folder, check=False).stdout)

    def line_of_report(self, job, begins):
        """Return a line of the doctor's report, with which the job's output ends."""
        lines = [line for line in job.output.splitlines()[-45:] if line.startswith(begins)]
        assert lines, job.output
        return lines[0]

    def more(self, job):
        """Return further columns of the table."""
        return {}

    def row(self, name, job, seconds, *, lost, message=None, until="its end", compare=True):
        """Note what was measured, and compare the losses."""
        difference = self.difference() if compare else None
        attempts = re.split(r"(?m)^preflight: .* fit .*$", job.output)  # the last words of the one that broke
        lines = [line for line in attempts[min(1, len(attempts) - 1)].splitlines() if line.strip()]
        saved = [line for line in lines if "saved, but not done" in line]
        said = message or (saved or [line for line in lines if line != "Terminated"])[-1]
        said = re.sub(r"^\[\S+\] +|^\d+: +|^\d\S+ \d\S+ +", "", said.strip())
        for folder in (self.project, self.folder, self.cluster.disk):
            said = said.replace(f"{folder}/", "")
        said = re.sub(r" \(logs/\S+\)", "", said)
        row = {
            "drill": name,
            "Slurm says": how_it_ended(job),
            "seconds": f"{seconds:.1f} to {until}",
            "message": f"`{said[:110]}`",
            "steps done again": lost,
            "losses differ by": f"{difference:.0e}" if compare else "–",
            **self.more(job),
        }
        self.note(self.table, row)
        assert lost <= SAVE_EVERY and (not compare or difference <= SAME)


@pytest.fixture(scope="session")
def reference(breakable, project, tmp_path_factory):
    """The losses of a run that nothing happens to, by step."""
    folder = tmp_path_factory.mktemp("reference")
    command = [project / "slurm/submit_multinode.sh", "training/train_ddp.py", *RUN.split(), "--out", folder / "run"]
    job = breakable.submit(*command, cwd=folder, env={**ONE_THREAD, "LAUNCHER": "spawn"})
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    losses = losses_in(folder / "run/metrics.jsonl")
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses


@pytest.fixture
def drill(cluster, project, tmp_path, reference, record_property):
    return Drill(cluster, project, tmp_path, reference, record_property)


# ---- drills of this and of the newest Slurm --------------------------------------------------------------------------


def warned_early(drill, name, **how):
    """The run saves, is requeued and goes on."""
    drill.submit(**how)
    drill.reach()
    drill.start_clock()
    drill.warn()
    drill.assert_requeued(name)


def rank_killed(drill, name, *options, **how):
    """The job fails soon, and names the rank."""
    drill.submit(*options, **how)
    drill.reach()
    drill.start_clock()
    os.kill(drill.rank(3), signal.SIGKILL)
    job, seconds = drill.await_failure(within=30)
    said = drill.first_failure(job, rank=3, host="node2", exit_code=-9)
    drill.row(name, job, seconds, message=said, lost=drill.resume())


def cancelled(drill, name):
    """The run saves, and is not put back into the queue."""
    drill.submit()
    drill.reach()
    drill.start_clock()
    drill.cluster.run("scancel", str(drill.job))
    job, seconds = drill.await_end(within=30)
    drill.assert_cancelled(job)
    lost = drill.resume()
    assert lost == 0, job.output
    drill.row(name, job, seconds, lost=lost)


def launcher_stays_until_the_time_limit(drill, name):
    """The program saves when it was asked to, and stays until Slurm ends the job, which is requeued all the same."""
    (drill.folder / "tells.py").write_text(TELLS)
    for attempt in "01":
        (drill.folder / f"start.{attempt}").touch()  # neither has to wait
    options, how = ["--nodes=1", "--time=1", "--signal=B:CONT@1"], {"LAUNCHER": "srun", "NPROC_PER_NODE": "1"}
    drill.submit(*options, program="tells.py", LINGER="1", **how)
    wait_for(lambda: "saved" in drill.output, "the save")
    (drill.folder / "enough").touch()
    drill.start_clock()
    seconds = drill.await_restart(within=120)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, drill.attempts) == ("COMPLETED", 0, 2), job.output
    assert "DUE TO TIME LIMIT" in job.output, job.output
    drill.row(name, job, seconds, until="running again", lost=0, compare=False)
