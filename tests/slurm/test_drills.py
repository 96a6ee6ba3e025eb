"""What happens when something breaks, on a real Slurm: does the job end soon, does it say why, is nothing lost?

A run of two nodes of two ranks is broken in the middle; it then goes on, and its losses (float64) are compared with
those of a run that nothing happened to. What is measured is a row of the table that ends the test run (conftest.py).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
from baking import bake
from container_root import python_folders
from drills import (
    BUSY,
    MEETS,
    ONE_THREAD,
    OWN_PROGRAM,
    SAME,
    SAVE_EVERY,
    TELLS,
    Drill,
    breakable,
    cancelled,
    cluster,
    drill,
    launcher_stays_until_the_time_limit,
    project,
    rank_killed,
    reference,
    warned_early,
)
from needs import needs_namespaces
from slurm_cluster import PATH
from two_nodes import ANSWERS
from waiting import wait_for

from cluster_options.runtimes import LAUNCHERS

pytestmark = pytest.mark.drill


# ---- something dies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_is_killed(drill, launcher):
    rank_killed(drill, f"`kill -9` of a rank, {launcher}", LAUNCHER=launcher)


def test_a_torchrun_is_killed(drill):
    drill.submit()
    drill.reach()
    drill.start_clock()
    os.kill(drill.process("node2", "torch.distributed.run"), signal.SIGKILL)
    job, seconds = drill.await_failure(within=30)
    said = drill.first_failure(job, rank=None, host="node2", exit_code=-9)
    drill.row("`kill -9` of a torchrun", job, seconds, message=said, lost=drill.resume())


def test_a_slurmd_is_killed(drill, cluster):
    """Slurm takes the node for dead and starts the job on others; what ran on the node ends too."""
    drill.submit(PAUSE="0.5")
    drill.reach()
    drill.start_clock()
    os.kill(drill.process("node2", "slurmd -D", daemons=True), signal.SIGKILL)
    seconds = drill.await_restart(within=90)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ["node1", "node3"]), job.output
    drill.await_no_process(within=20)
    drill.row("`kill -9` of a slurmd", job, seconds, until="running on other nodes", lost=drill.lost())


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_a_node_dies(drill, cluster, node):
    drill.submit()
    drill.reach()
    drill.start_clock()
    cluster.crash(node)
    seconds = drill.await_restart(within=90)
    job, _ = drill.await_end()
    others = [name for name in cluster.nodes if name != node]
    assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, others), job.output
    drill.await_no_process()
    which = "first" if node == "node1" else "second"
    drill.row(f"power failure of the {which} node", job, seconds, until="running on other nodes", lost=drill.lost())


def test_a_rank_hangs(drill):
    """The others wait for it as long as --timeout says."""
    drill.submit()
    drill.reach()
    drill.start_clock()
    os.kill(drill.rank(3), signal.SIGSTOP)
    job, seconds = drill.await_failure(within=60)
    answer = drill.ask_doctor(job)
    assert answer["way"] == "waited" and answer["causes"][0]["says"].startswith("rank 3 on node2 has "), answer
    said = drill.line_of_report(job, "cause: ")
    drill.row("`kill -STOP` of a rank, `--timeout 10`", job, seconds, message=said, lost=drill.resume())


# ---- the job has to stop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_early_warning(drill, launcher):
    warned_early(drill, f"early warning, {launcher}", LAUNCHER=launcher)


def test_early_warning_under_apptainer(containers, sif, tmp_path, tmp_path_factory, record_property, reference):
    """Inside, nothing of Slurm is known and the ranks have other process numbers: a file reaches them."""
    needs_namespaces(containers)
    project = bake(tmp_path_factory.mktemp("a b") / "apptainer", **ANSWERS, runtime="apptainer", image=sif)
    settings = project / "env.sh"
    binds = "".join(f"    {path!s}\n" for path in (sys.prefix, *python_folders()))
    settings.write_text(settings.read_text().replace("BINDS=(\n", f"BINDS=(\n{binds}"))
    drill = Drill(containers, project, tmp_path, reference, record_property)
    warned_early(drill, "early warning, torchrun in Apptainer, Slurm 24.11")


def test_slurm_s_own_early_warning(drill, cluster, project):
    """Sent as soon as the rest of the walltime is less than asked for, which Slurm looks at every half minute."""
    drill.submit("--time=11", "--signal=B:USR1@650", PAUSE="1")
    wait_for((project / f"logs/{drill.job}.0/stop").exists, "the early warning")
    drill.start_clock()
    drill.await_restart(within=60)
    # Else the second attempt is warned, too, where the machine is so busy that it takes more than ten seconds.
    cluster.run("scontrol", "update", f"JobId={drill.job}", "TimeLimit=60")
    drill.assert_requeued("early warning, by Slurm itself")


def test_time_limit(drill, cluster):
    """The shortest one: it saves by the clock, since Slurm's warning is up to a minute too early."""
    drill.submit("--time=1", "--signal=B:CONT@1", PAUSE="1")
    wait_for(lambda: "stopped at step" in drill.output, "the stop")
    drill.start_clock()
    # While the job waits in the queue: where the machine is busy, one more minute is too short for all that is left.
    wait_for(lambda: "back into the queue" in drill.output, "the requeue")
    longer = ["scontrol", "update", f"JobId={drill.job}", "TimeLimit=60"]
    wait_for(lambda: cluster.run(*longer, check=False).returncode == 0, "a longer time limit")
    drill.assert_requeued("time limit of a minute")


def test_scancel(drill):
    cancelled(drill, "`scancel`")


def test_scancel_while_it_saves(drill, cluster):
    drill.submit(SLOW_DISK="2", LAUNCHER="spawn")
    drill.reach()
    drill.warn()
    wait_for((drill.folder / "saving").exists, "saving")
    drill.start_clock()
    cluster.run("scancel", str(drill.job))
    job, seconds = drill.await_end(within=30)
    drill.assert_cancelled(job)
    drill.row("`scancel` while it saves after an early warning", job, seconds, lost=drill.resume())


def test_preemption(drill, cluster):
    drill.submit()
    drill.reach()
    drill.start_clock()
    (drill.folder / "urgent.sh").write_text("#!/bin/sh\nsrun sleep 1\n")
    urgent = ["--partition=urgent", "--nodelist=node1,node2", "--exclusive", drill.folder / "urgent.sh"]
    more_urgent = cluster.sbatch(*urgent, cwd=drill.folder)
    drill.assert_requeued("preemption by another partition, 10 s of grace")
    assert cluster.wait(more_urgent).state == "COMPLETED"


def test_scontrol_requeue(drill, cluster):
    """By the user or an admin: nothing is announced, the last checkpoint counts."""
    drill.submit(LAUNCHER="spawn")
    drill.reach()
    drill.start_clock()
    cluster.run("scontrol", "requeue", str(drill.job))
    seconds = drill.await_restart(within=60)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    drill.await_no_process()
    drill.row("`scontrol requeue`", job, seconds, until="running again", lost=drill.lost())


def test_a_requeue_that_ends_scontrol(drill, cluster):
    """Slurm may end the script's processes before scontrol has told of its success: that is no refusal."""
    (drill.folder / "tells.py").write_text(TELLS)
    for attempt in "01":
        (drill.folder / f"start.{attempt}").touch()
    (drill.folder / "bin").mkdir()
    scontrol = drill.folder / "bin/scontrol"
    scontrol.write_text(f'#!/bin/sh\nPATH={PATH}\nscontrol "$@" || exit\n[ "$1" != requeue ] || kill -TERM $$\n')
    scontrol.chmod(0o755)
    how = {"LAUNCHER": "srun", "NPROC_PER_NODE": "1", "PATH": f"{scontrol.parent}:{PATH}"}
    drill.submit("--nodes=1", program="tells.py", **how)
    wait_for(lambda: "first step" in drill.output, "the first step")
    drill.warn()
    wait_for(lambda: "saved" in drill.output, "the save")
    (drill.folder / "enough").touch()
    drill.await_restart(within=60)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, drill.attempts) == ("COMPLETED", 0, 2), job.output
    assert "back into the queue as attempt 1" in job.output and "may not be requeued" not in job.output, job.output


def test_requeues_are_counted(drill, cluster):
    drill.submit(MAX_REQUEUES="1", SLOW_ATTEMPTS="2", LAUNCHER="spawn")
    drill.reach()
    drill.warn()
    drill.start_clock()
    drill.await_restart(within=60)
    drill.reach(drill.step() + 15)
    drill.start_clock()
    drill.warn()
    job, seconds = drill.await_end()
    said = re.search("saved.*MAX_REQUEUES.*", job.output.split("meeting at")[2])
    assert said, job.output
    drill.await_no_process()
    lost = drill.resume()
    assert lost == 0, job.output
    drill.row("early warning, `MAX_REQUEUES=1` used up", job, seconds, message=said[0], lost=lost)


def test_where_jobs_are_not_requeued(drill, cluster):
    """Jobs of one name that wait for each other: the second one goes on where the first one ended."""
    first = drill.submit("--no-requeue", LAUNCHER="spawn")
    drill.reach()
    options = ["--no-requeue", "--dependency=singleton"]
    drill.start_clock()
    drill.submit(*options, program="training/train_ddp.py", arguments=["--resume"], LAUNCHER="spawn")
    cluster.run("scancel", "--signal=USR1", "--batch", str(first))
    wait_for(lambda: drill.attempts == 1, "the second job")
    seconds = time.monotonic() - drill.broken
    stopped, (job, _) = cluster.wait(first), drill.await_end()
    assert [stopped.state, job.state] == ["COMPLETED", "COMPLETED"], stopped.output + job.output
    assert "may not be requeued" in stopped.output, stopped.output
    drill.await_no_process()
    lost = drill.lost()
    assert lost == 0, job.output
    drill.row("early warning, `--no-requeue --dependency=singleton`", stopped, seconds, until="the next job", lost=lost)


def test_a_program_of_ones_own(drill, cluster):
    """It does what README.md asks of it, and knows nothing else of all this."""
    (drill.folder / "own.py").write_text(OWN_PROGRAM)
    drill.submit("--nodes=1", program="own.py", LAUNCHER="srun", NPROC_PER_NODE="1")
    count = drill.folder / "count"
    wait_for(lambda: count.exists() and int(count.read_text() or 0) >= 10)
    drill.start_clock()
    drill.warn()
    seconds = drill.await_restart(within=60)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert count.read_text() == "100"
    again = int(re.findall(r"starts at (\d+)", job.output)[1])
    assert f"stops at {again}" in job.output and again >= 10, job.output
    drill.row("early warning, a program of one's own", job, seconds, until="running again", lost=0, compare=False)


def test_a_launcher_that_does_not_end_before_the_time_limit(drill):
    launcher_stays_until_the_time_limit(drill, "time limit of a minute, the launcher does not end")


# ---- network, disk, checkpoints --------------------------------------------------------------------------------------


def test_a_port_is_taken(drill, cluster):
    """Before the job starts: it takes another one."""
    taken = "first = 10000\nports = [first + (int(os.environ['SLURM_JOB_ID']) + n) % 20000 for n in range(1, 9)]"
    (drill.folder / "listen.py").write_text(
        f"import os, socket, time\n{taken}\nkept = [socket.create_server(('', port)) for port in ports]\n"
        "print(*ports, flush=True)\ntime.sleep(300)\n"
    )
    (drill.folder / "listen.sh").write_text(f"#!/bin/sh\nexec {sys.executable} listen.py\n")
    shared = ["--exclusive=user", "--cpus-per-task=1", "--mem=1G"]
    listener = cluster.sbatch("--nodelist=node1", "--output=ports", *shared, "listen.sh", cwd=drill.folder)
    ports = wait_for(lambda: (drill.folder / "ports").exists() and (drill.folder / "ports").read_text().split())
    drill.start_clock()
    drill.submit("--nodelist=node1,node2", *shared, "--gpus-per-node=2", PAUSE="0", LAUNCHER="spawn")
    job, seconds = drill.await_end()
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert job.id - listener in range(1, 9)
    met = re.search(r"meeting at node1:(\d+)", job.output)
    assert met[1] not in ports and int(met[1]) == int(ports[-1]) + 1, job.output
    drill.row(
        "the port is taken when the job starts", job, seconds, message=met.string[met.start() :].split("\n")[0], lost=0
    )


def test_a_port_is_taken_in_the_last_moment(drill, cluster):
    """Between the look at it and the start of rank 0."""
    (drill.folder / "bin").mkdir()
    (drill.folder / "listen.py").write_text(
        "import os, socket, time\nsrun = os.getppid()\n"
        "kept = socket.create_server(('', int(os.environ['MASTER_PORT'])))\n"
        "while os.getppid() == srun:\n    time.sleep(0.1)\n"
    )
    (drill.folder / "bin/srun").write_text(
        "#!/usr/bin/env bash\n"
        f"if [[ $* == */launch/torchrun.sh* ]]; then {sys.executable} '{drill.folder}/listen.py' & fi\n"
        'exec /usr/bin/srun "$@"\n'
    )
    (drill.folder / "bin/srun").chmod(0o755)
    drill.start_clock()
    drill.submit(PATH=f"{drill.folder}/bin:{PATH}")
    job, seconds = drill.await_failure(within=60)
    said = drill.cause(job, "port")
    drill.row("the port is taken in the last moment", job, seconds, message=said, lost=drill.resume())


def test_a_name_that_one_node_does_not_know(drill, cluster):
    hosts = drill.folder / "hosts"
    known = (cluster.directory / "etc/hosts").read_text()
    hosts.write_text("".join(line for line in known.splitlines(keepends=True) if not line.endswith("node1\n")))
    on_node2 = ["srun", "--nodelist=node2", "--nodes=1"]
    cluster.run(*on_node2, "mount", "--bind", hosts, "/etc/hosts")
    try:
        drill.start_clock()
        drill.submit()
        job, seconds = drill.await_failure(within=40)
    finally:
        cluster.run(*on_node2, "umount", "/etc/hosts")
    said = [line for line in job.output.splitlines() if "node2" in line and "node1:" in line and "not known" in line]
    assert said and "meeting at" not in job.output, job.output
    drill.row("a name that one node does not know", job, seconds, message=said[0], lost=drill.resume())


def test_a_cable_is_pulled_for_5_seconds(drill, cluster):
    drill.submit(LAUNCHER="spawn")
    drill.reach()
    drill.start_clock()
    reached = drill.step()
    cluster.cut("node2")
    time.sleep(5)
    cluster.mend("node2")
    wait_for(lambda: drill.step() > reached + 10 or drill.attempts > 1)
    seconds = time.monotonic() - drill.broken
    drill.reached = max(drill.reached, drill.step()) if drill.attempts == 1 else drill.reached
    job, _ = drill.await_end(within=120)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    drill.await_no_process()
    lost = drill.lost() if drill.attempts > 1 else 0
    drill.row("one node's network is down for 5 s", job, seconds, until="going on", lost=lost)


def test_a_cable_is_pulled_for_good(drill, cluster):
    drill.submit()
    drill.reach()
    drill.start_clock()
    cluster.cut("node2")
    seconds = drill.await_restart(within=120)
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ["node1", "node3"]), job.output
    cluster.mend("node2")
    drill.await_no_process(within=30)
    drill.row("one node's network is down for good", job, seconds, until="running on other nodes", lost=drill.lost())


def test_a_full_disk(drill, cluster):
    drill.out = cluster.disk / "run"
    drill.submit(PAUSE="0.12")
    drill.reach(2 * SAVE_EVERY + 5)
    fill = "head -c $(($(df --output=avail -B1 . | tail -n 1) - 100000)) /dev/zero >filler"
    cluster.run("bash", "-c", fill, cwd=cluster.disk)
    assert drill.step() < 3 * SAVE_EVERY
    wait_for(lambda: drill.step() >= 3 * SAVE_EVERY)
    drill.start_clock()
    job, seconds = drill.await_failure(within=30)
    said = drill.cause(job, "disk")
    assert "No space left on device" in job.output, job.output
    drill.first_failure(job, rank=0, host="node1", exit_code=1)
    cluster.run("rm", cluster.disk / "filler")
    drill.row("the disk is full when a checkpoint is written", job, seconds, message=said, lost=drill.resume())
    cluster.run("rm", "-r", drill.out)


def test_a_checkpoint_cut_in_half(drill, cluster):
    """It is passed over, with a warning: the one before it is whole."""
    drill.submit(LAUNCHER="spawn")
    drill.reach(2 * SAVE_EVERY + 5)
    cluster.run("scancel", str(drill.job))
    drill.await_end(within=30)
    newest = max(drill.out.glob("checkpoint-*.pt"))
    os.truncate(newest, newest.stat().st_size // 2)
    drill.start_clock()
    drill.submit(program="training/train_ddp.py", arguments=["--resume"], LAUNCHER="spawn")
    job, seconds = drill.await_end()
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    said = re.search(rf"warning: .*{newest.name} is torn.*", job.output)
    assert said and 0 < drill.lost() <= SAVE_EVERY, job.output
    drill.row("the newest checkpoint is cut in half", job, seconds, message=said[0], lost=drill.lost())


def test_two_jobs_in_one_folder(drill, cluster):
    """The second one is refused, and the first one is not disturbed."""
    first = drill.submit(PAUSE="0.2", LAUNCHER="spawn")
    drill.reach(10)
    (drill.folder / "hold").touch()  # the first one waits until the second has ended
    drill.start_clock()
    drill.submit("--nodes=1", program="training/train_ddp.py", LAUNCHER="spawn")
    second, seconds = drill.await_end(within=60)
    assert second.state == "FAILED" and second.exit_code, second.output
    assert f"{drill.out} is in use by another run" in second.output, second.output
    said = drill.cause(second, "project")
    (drill.folder / "hold").unlink()
    job = cluster.wait(first)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    drill.row("two jobs with one `--out`", second, seconds, message=said, lost=0)


def test_an_array(drill, cluster):
    """Each job of it has a folder of its own, and one alone is requeued: also that which has the array's own number."""
    (drill.folder / "of_array.py").write_text(
        "import os, sys\n"
        "sys.argv = [word.replace('INDEX', os.environ['SLURM_ARRAY_TASK_ID']) for word in sys.argv]\n"
        "exec(open('slowly.py').read())\n"
    )
    drill.out = "runs/INDEX"
    array = drill.submit("--array=0-1", "--nodes=1", program="of_array.py", PAUSE="0.1", LAUNCHER="spawn")
    listing = ["scontrol", "show", "job", str(array)]

    def tasks():
        found = re.findall(r"JobId=(\d+) .*?ArrayTaskId=(\d+)\s", cluster.run(*listing).stdout, re.DOTALL)
        return {int(task): int(job) for job, task in found} if len(found) == 2 else None

    jobs = wait_for(tasks)
    warned = next(task for task, job in jobs.items() if job == array)
    drill.jobs, drill.out = [array], drill.folder / f"runs/{warned}"
    drill.reach()
    drill.start_clock()
    cluster.run("scancel", "--signal=USR1", "--batch", f"{array}_{warned}")
    drill.assert_requeued("early warning of one job of an array")
    drill.jobs, drill.out = [jobs[1 - warned]], drill.folder / f"runs/{1 - warned}"
    job, _ = drill.await_end()
    assert (job.state, job.exit_code, drill.attempts) == ("COMPLETED", 0, 1), job.output
    assert drill.difference() <= SAME


def test_thirty_short_jobs_on_one_node(drill, cluster, project):
    """No port, process or file of one is in the way of the next. Three start torch, under a launcher each."""
    (drill.folder / "meets.py").write_text(MEETS)
    options = ["--nodes=1", "--nodelist=node1", project / "slurm/submit_multinode.sh"]
    local = cluster.node_local / "tmp"  # /tmp is the machine's; this is the node's own
    cluster.run("srun", "--nodelist=node1", "mkdir", local)

    def there():
        """Files, and ports that somebody listens on."""
        node = cluster.proc("node1")
        files = [str(path) for name in ("dev/shm", str(local)[1:]) for path in (node / "root" / name).rglob("*")]
        tcp = [line.split() for name in ("tcp", "tcp6") for line in (node / "net" / name).read_text().splitlines()[1:]]
        return sorted(files) + sorted(int(line[1].rpartition(":")[2], 16) for line in tcp if line[3] == "0A")

    before = there()
    drill.start_clock()
    jobs = []
    for number in range(30):
        launcher = {0: "torchrun", 10: "spawn", 20: "mpirun"}.get(number, "srun")
        program = ["pi/pi.py", "--intervals", "1e4"] if launcher != "srun" else ["meets.py"]
        environment = {**ONE_THREAD, "LAUNCHER": launcher, "TMPDIR": str(local)}
        jobs.append(cluster.sbatch(*options, *program, cwd=drill.folder, env=environment))
    done = [cluster.wait(job, BUSY * 300) for job in jobs]
    seconds = time.monotonic() - drill.broken
    for job in done:
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    drill.await_no_process()
    wait_for(lambda: there() == before, "a node as it was")
    ports = {re.search(r"meeting at node1:(\d+)", job.output)[1] for job in done}
    assert len(ports) == 30
    drill.row("30 jobs one after the other on a node", done[-1], seconds, lost=0, compare=False)
