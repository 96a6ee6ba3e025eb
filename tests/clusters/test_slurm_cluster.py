"""The test cluster itself: is it like a cluster, and does nothing of it stay behind?"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import accounting
import pytest
from slurm_cluster import PATH, Cluster, ClusterError, Nodes, reachable
from waiting import FOREVER, PATIENCE, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("slurmctld", path=PATH), reason="Slurm is not installed")
STARTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
sys.path.insert(0, sys.argv[1])
from slurm_cluster import Cluster
with Cluster(sys.argv[2], nodes=2, namespaces=None if sys.argv[3] == "namespaces" else False):
    print("up", flush=True)
    signal.pause()
"""

# A step that leaves a file for each of its tasks when these run, and then does not end.
STEP = f"srun bash -c 'touch here.$SLURM_PROCID; sleep {FOREVER}'"


@pytest.fixture
def anybody():
    """A directory with a short name that every user can reach, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="slurm-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["cluster", "cluster24", pytest.param("cluster26", marks=pytest.mark.drill)])
def either(request):
    """One version of Slurm after the other."""
    return request.getfixturevalue(request.param)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
    return path


def test_versions(cluster, debian13, cluster24):
    assert cluster.version != cluster24.version
    assert cluster24.version.startswith("24.11")


@pytest.mark.drill
def test_the_newest_version(cluster26):
    """26.05, or what has followed it in Debian 14."""
    assert [int(number) for number in cluster26.version.split(".")[:2]] >= [26, 5]


def test_every_node_is_a_machine_of_its_own(either):
    if not either.namespaces:
        pytest.skip(either.no_namespaces)
    show = 'echo "$(hostname) $(hostname -i) $(ls /dev/shm | grep -c mine) $(ls /sys/class/net | xargs)"'
    show += "; touch /dev/shm/mine"
    lines = either.run("srun", "-N4", "bash", "-c", show).stdout.splitlines()
    assert sorted(lines) == [f"node{i} 10.77.0.{10 + i} 0 eth0 lo" for i in range(1, 5)]


def test_nodes_reach_each_other_by_name(either):
    if not either.namespaces:
        pytest.skip(either.no_namespaces)
    listen = "import socket; s = socket.create_server(('0.0.0.0', 29500)); print(s.accept()[1][0])"
    script = f'if [[ $(hostname) = node2 ]]; then {sys.executable} -c "{listen}"; else until : </dev/tcp/node2/29500; '
    script += "do sleep 0.1; done 2>/dev/null; fi"
    assert either.run("srun", "-N2", "bash", "-c", script).stdout == "10.77.0.11\n"


def test_gpus_are_allotted(either):
    show = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    assert either.run("srun", "-N2", "--gpus-per-node=2", "bash", "-c", show).stdout.splitlines() == ["0,1 2"] * 2
    assert either.run("srun", "-N2", "--gres=gpu:1", "bash", "-c", show).stdout.splitlines() == ["0 1"] * 2
    assert either.run("srun", "bash", "-c", show).stdout == "\n"


def test_a_job(either, tmp_path):
    cwd = tmp_path / "with space"
    cwd.mkdir()
    write(cwd / "job.sh", 'echo "$PWD $1 $ANSWER"', "srun hostname")
    job = either.submit("--nodes=3", "--output=%x-%j.out", "job.sh", "word", cwd=cwd, env={"ANSWER": "42"})
    assert (job.state, job.exit_code, job.signal, job.nodes) == ("COMPLETED", 0, 0, either.nodes[:3])
    first, *rest = job.output.splitlines()
    assert first == f"{cwd} word 42"
    if either.namespaces:
        assert sorted(rest) == job.nodes
    assert (cwd / f"job.sh-{job.id}.out").read_text() == job.output


@pytest.mark.parametrize(
    ("lines", "state", "code", "number"),
    [
        (["exit 3"], "FAILED", 3, 0),
        (["srun -N2 false"], "FAILED", 1, 0),
        (["kill -9 $$"], "FAILED", 0, 9),
    ],
)
def test_a_failing_job(either, tmp_path, lines, state, code, number):
    write(tmp_path / "job.sh", *lines)
    job = either.submit("--nodes=2", "job.sh", cwd=tmp_path)
    assert (job.state, job.exit_code, job.signal) == (state, code, number), job.output


@pytest.mark.parametrize("option", ["--nodes=5", "--gpus-per-node=3", "--cpus-per-task=9", "--partition=no", "--bogus"])
def test_what_can_never_run_is_refused(either, tmp_path, option):
    write(tmp_path / "job.sh", "true")
    with pytest.raises(ClusterError, match="sbatch: "):
        either.sbatch(option, "job.sh", cwd=tmp_path)


@pytest.mark.drill
def test_what_takes_too_long_is_ended(either, tmp_path):
    seconds, said = 0.5, ""
    while "before" not in said:  # how long srun takes to start four tasks is up to the machine
        seconds *= 2
        with pytest.raises(TimeoutError, match=f"not done after {seconds:.1f} s") as ended:
            either.run("srun", "-N4", "bash", "-c", f"echo before; sleep {FOREVER}", timeout=seconds)
        said = str(ended.value)
        assert seconds < PATIENCE, said
    write(tmp_path / "job.sh", "echo before", f"sleep {FOREVER}")
    job = either.sbatch("-N4", "--output=out", "job.sh", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text(), "that the job begins")
    with pytest.raises(TimeoutError, match=r"RUNNING(.|\n)*before"):
        either.wait(job, timeout=1.5)
    assert either.run("srun", "-N4", "echo", "free").stdout == "free\n" * 4


def test_a_clean_environment_but_this_machines_files(either, tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "leaked")
    shown = either.run("env", cwd=tmp_path).stdout
    assert "leaked" not in shown and f"HOME={either.home}" in shown and f"PWD={tmp_path}" in shown
    words = ["-c", "import sys; print(sys.prefix, sys.stdin.read())"]
    assert either.run(sys.executable, *words, stdin="input").stdout == f"{sys.prefix} input\n"


@pytest.mark.parametrize("namespaces", [None, False])
def test_kinds_of_nodes_and_partitions(anybody, namespaces):
    kinds = [Nodes(2, gpu_type="a100"), Nodes(1, cpus=3, gpus=0, memory_mb=500, features="slow,old", more="Weight=7")]
    name = "node" if namespaces is None else "127.0.0.1"
    partitions = (f"PartitionName=gpu Nodes={name}[1-2]", f"PartitionName=cpu Nodes={name}3 Default=YES MaxTime=60")
    with Cluster(anybody / "c", nodes=kinds, partitions=partitions, namespaces=namespaces) as cluster:
        shown = cluster.run("sinfo", "-he", "-o", "%R %D %c %m %G %f %w %l").stdout.split("\n")
        assert shown == ["gpu 2 8 64000 gpu:a100:2 (null) 1 infinite", "cpu 1 3 500 (null) slow,old 7 1:00:00", ""]
        show = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
        assert cluster.run("srun", "-pgpu", "--gres=gpu:a100:1", "bash", "-c", show).stdout == "0 1\n"


@pytest.mark.drill
@pytest.mark.skipif(bool(accounting.missing()) and not os.environ.get("CI"), reason=accounting.missing())
@pytest.mark.parametrize("user", [None, "nobody"])
def test_accounts_and_qos_are_enforced(anybody, user):
    if user and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    lines = accounting.accounts("test", {"abc": [user or "root"]}, {"small": "MaxTRESPerJob=node=1"})
    with Cluster(anybody / "c", nodes=2, user=user, accounts=lines) as cluster:
        job = write(anybody / "job.sh", "srun echo $SLURM_JOB_ACCOUNT $SLURM_JOB_QOS")
        assert cluster.submit("--account=abc", "--qos=small", job, cwd=cluster.home).output == "abc small\n"
        for options, why in {
            ("--account=none",): "Invalid account",
            ("--account=abc", "--qos=none"): "Invalid qos",
            ("--account=abc", "--qos=small", "--nodes=2"): "QOSMaxNodePerJobLimit",
        }.items():
            with pytest.raises(ClusterError, match=why):
                cluster.sbatch(*options, job, cwd=cluster.home)
    assert not cluster.processes()


@pytest.mark.drill
def test_accounts_that_cannot_be_had(anybody):
    with pytest.raises(ClusterError, match="accounts take namespaces: switched off"):
        Cluster(anybody / "c", namespaces=False, accounts="add qos x")
    if not accounting.missing() and Cluster(anybody / "c").namespaces:
        cluster = Cluster(anybody / "c", nodes=1, accounts="add nonsense")
        with pytest.raises(ClusterError, match="sacctmgr refused"):
            cluster.start()
        assert not cluster.processes()


@pytest.mark.drill
@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests here are an ordinary user's already")
@pytest.mark.parametrize("slurm", ["this machine's", "debian13"])
def test_an_ordinary_user(anybody, slurm, request):
    root = request.getfixturevalue("debian13") if slurm == "debian13" else None
    if root and not reachable(root / "usr", "nobody"):
        pytest.skip(f"nobody may not enter {root}: a folder above it is closed to others")
    with Cluster(anybody / "c", nodes=2, user="nobody", root=root) as cluster:
        script = write(anybody / "job.sh", "srun id -un", "touch mine", "echo $HOME")
        job = cluster.submit("-N2", script, cwd=cluster.home)
        assert job.output == f"nobody\nnobody\n{cluster.home}\n"
        assert (cluster.home / "mine").owner() == "nobody"
        assert cluster.processes()
    assert not cluster.processes()


@pytest.mark.drill
def test_without_namespaces(anybody):
    with Cluster(anybody / "c", nodes=3, namespaces=False) as cluster:
        job = cluster.submit("-N2", "--gpus-per-node=2", write(anybody / "job.sh", "srun env"), cwd=anybody)
        assert job.nodes == ["127.0.0.11", "127.0.0.12"]
        assert job.output.count("CUDA_VISIBLE_DEVICES=0,1\n") == 2
        cluster.sbatch("-N2", write(anybody / "long.sh", STEP), cwd=anybody)
        wait_for(lambda: len([*anybody.glob("here.*")]) == 2, "that the step runs")
    assert not cluster.processes()


@pytest.mark.drill
def test_nothing_stays_behind(tmp_path):
    before = os.listdir("/sys/class/net"), os.uname().nodename
    with Cluster(tmp_path / "c", nodes=2) as cluster:
        lines = ["trap '' TERM", f"setsid sleep {FOREVER} &", STEP]
        cluster.sbatch("-N2", write(tmp_path / "job.sh", *lines), cwd=tmp_path)
        wait_for(lambda: len([*tmp_path.glob("here.*")]) == 2, "that the step runs")
        assert cluster.processes()
    assert not cluster.processes()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert before == (os.listdir("/sys/class/net"), os.uname().nodename)


@pytest.mark.drill
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
def test_nothing_stays_behind_when_the_tests_are_killed(anybody, how, mode):
    words = [sys.executable, "-c", STARTER, str(Path(__file__).parent), str(anybody / "c"), mode]
    cluster = Cluster(anybody / "c")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "up\n"
        assert len(cluster.processes()) > 3
        process.send_signal(getattr(signal, how))
    wait_for(lambda: not cluster.processes(), "that no process is left")


@pytest.mark.parametrize("namespaces", [None, False])
def test_a_start_that_fails_says_why_and_leaves_nothing(anybody, namespaces):
    cluster = Cluster(anybody / "c", namespaces=namespaces, extra_conf="SelectType=select/nonsense")
    with pytest.raises(ClusterError, match="select/nonsense"):
        cluster.start()
    assert not cluster.processes()


@pytest.mark.drill
def test_crash_and_boot(tmp_path):
    with Cluster(tmp_path / "c", nodes=2, extra_conf="SlurmdTimeout=5") as cluster:
        job = cluster.sbatch("-N2", "--no-requeue", write(tmp_path / "job.sh", f"srun sleep {FOREVER}"), cwd=tmp_path)
        wait_for(lambda: any("sleep" in line for line in cluster.running("node2").values()), "that the step runs")
        cluster.crash("node2")
        assert cluster.wait(job).state == "NODE_FAIL"
        cluster.boot("node2")
        cluster.wait_for_nodes()
        assert cluster.run("srun", "-N2", "echo", "back").stdout == "back\n" * 2


@pytest.mark.drill
def test_processes_cables_and_a_small_disk(anybody):
    """What drills break: a daemon alone, the network of a node, a disk that is full."""
    if Cluster(anybody / "c").no_namespaces:
        pytest.skip("no namespaces")
    with Cluster(anybody / "c", nodes=2, disk_mb=1) as cluster:
        cluster.sbatch("-N2", write(anybody / "job.sh", f"srun sleep {FOREVER}"), cwd=anybody)
        sleeping = wait_for(lambda: [number for number, line in cluster.running("node2").items() if "sleep" in line])
        assert Path(f"/proc/{sleeping[0]}/ns/uts").readlink() == (cluster.proc("node2") / "ns/uts").readlink()
        cluster.run("scancel", "--user", cluster.user)
        wait_for(lambda: not cluster.running("node2"))

        look = ["timeout", "1", "bash", "-c", ": </dev/tcp/node2/6818"]
        wait_for(lambda: cluster.run(*look, check=False).returncode == 0)
        cluster.cut("node2")
        wait_for(lambda: cluster.run(*look, check=False).returncode)
        cluster.mend("node2")
        wait_for(lambda: cluster.run(*look, check=False).returncode == 0)

        fill = f"head -c 900000 /dev/zero >{cluster.disk}/$(hostname)"
        assert cluster.run("srun", "-w", "node1", "bash", "-c", fill).stderr == ""
        assert "No space left" in cluster.run("srun", "-w", "node2", "bash", "-c", fill, check=False).stderr
        assert (cluster.proc("login") / f"root{cluster.disk}/node1").stat().st_size == 900000
        assert not list(cluster.disk.iterdir())  # it is the cluster's alone

        cluster.wait_for_nodes()  # or a daemon that dies takes with it that a job is done
        daemon = next(number for number, line in cluster.running("node2", daemons=True).items() if "slurmd -D" in line)
        os.kill(daemon, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{daemon}").exists(), "that process 1 of the node notices")
        assert cluster.running("node2", daemons=True)  # the node itself goes on
        cluster.crash("node2")
        cluster.boot("node2")  # at once
        cluster.wait_for_nodes()
    assert not cluster.processes()


def by_hand(*words):
    command = [sys.executable, "-B", "-m", "slurm_cluster", *words]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)


@pytest.mark.drill
def test_a_cluster_by_hand_ends_with_its_command():
    done = by_hand("--nodes=3", "--", "bash", "-c", "srun --nodes=3 --gpus-per-node=2 hostname; echo in $PWD; exit 7")
    assert done.returncode == 7, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"in {Path(__file__).parent}", "node1", "node2", "node3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes=0"], "--nodes 0 --cpus 8: expected at least 1 of each"),
        (["--gpus=9"], "--gpus 9: expected a number from 0 to 8"),
        (["--nodes=two"], "argument --nodes: invalid int value: 'two'"),
    ],
)
def test_a_cluster_by_hand_refuses_wrong_sizes(words, said):
    done = by_hand(*words)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(said), done.stderr
