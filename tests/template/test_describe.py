"""What `site=here` reads off a cluster: on real ones, of which every fact is known, and whose Slurm must agree."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import accounting
import pytest
import yaml
from baking import REPOSITORY, bake
from needs import skip_or_fail
from slurm_cluster import PATH, Cluster, Nodes
from waiting import FOREVER, PATIENCE

from cluster_options import describe, slurm_commands
from cluster_options.checks import minutes_of
from cluster_options.schema import SCHEMA
from cluster_options.sites import site_facts

# in CI, a run without it would prove nothing
MISSING = not shutil.which("slurmctld", path=PATH) and not os.environ.get("CI")
pytestmark = pytest.mark.skipif(MISSING, reason="Slurm is not installed")
# Slurm gives root and its own user more than others: ask as somebody else, where root runs the tests.
SOMEBODY = "nobody" if os.geteuid() == 0 else ""
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster_options import describe, slurm_commands
slurm_commands.TIMEOUT = float(sys.argv[2])
try:
    print(describe.describe())
except describe.DescribeError as error:
    sys.exit(f"refused: {error}")
"""


@contextmanager
def started(**options):
    """A cluster in a folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="describe-") as folder:
        Path(folder).chmod(0o755)
        with Cluster(Path(folder) / "c", **options) as cluster:
            shutil.copytree(REPOSITORY / "cluster_options", cluster.home / "cluster_options")
            yield cluster


def asked(cluster, user="", env=None, timeout=PATIENCE):
    """Run describe() on the login node, with the Python that runs the tests, or as another user with the system's."""
    python, folder = ("/usr/bin/python3", cluster.home) if user else (sys.executable, REPOSITORY)
    settings = [f"{name}={value}" for name, value in (env or {}).items()]
    return cluster.run(*become(user), "env", *settings, python, "-B", "-c", SCRIPT, folder, timeout, check=False)


def become(user):
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"] if user else []


def described(cluster, tmp_path, **options):
    """Return what describe() says, after the check that it is a site file; read in full by cluster_options."""
    done = asked(cluster, **options)
    assert done.returncode == 0, done.stderr
    facts = yaml.safe_load(done.stdout)
    assert list(SCHEMA.faults(facts)) == [], done.stdout
    path = tmp_path / f"{time.monotonic_ns()}.yaml"  # a new name: what is read is kept
    path.write_text(done.stdout)
    site_facts(str(path))
    return facts


def suits(cluster, tmp_path, user=""):
    """Check that Slurm takes the jobs of a project written with what described() found last, all defaults accepted."""
    site = max(tmp_path.glob("*.yaml"), key=lambda path: int(path.stem))
    project = bake(cluster.home / site.stem, site=site)
    submit = project / "slurm/submit_multinode.sh"
    queue = re.findall(r"^#SBATCH (--(?:account|partition|qos)=\S+)", submit.read_text(), re.MULTILINE)
    for script, options in ((submit, []), (project / "slurm/build_venv.sh", queue)):  # as submit_build adds them
        done = cluster.run(*become(user), "sbatch", "--test-only", *options, script, cwd="/tmp", check=False)
        assert done.returncode == 0 and " to start at " in done.stderr, f"{script.read_text()}\n{done.stderr}"


def refused(cluster, **options):
    done = asked(cluster, **options)
    assert done.returncode == 1 and done.stderr.startswith("refused: "), done.stdout + done.stderr
    return done.stderr


def allows(cluster, *options, user=""):
    """Whether Slurm would take a job with these options."""
    words = ["sbatch", "--test-only", "--chdir=/tmp", "--ntasks-per-node=1", *options, "--wrap", "true"]
    done = cluster.run(*become(user), *words, check=False)
    assert ("allocation failure: " if done.returncode else " to start at ") in done.stderr, done.stderr
    return done.returncode == 0


def agrees(cluster, facts, *always, user=""):
    """Check for each limit of each partition that Slurm takes the most that is described, and nothing beyond."""

    def edge(inside, beyond, *options):
        for option, expected in ((inside, True), (beyond, False)):
            words = [*always, f"--partition={name}", *options, *option.split()]
            assert allows(cluster, *words, user=user) == expected, f"{words}: {limits}"

    for name, limits in facts["partitions"].items():
        node, least = {**facts["node"], **limits.get("node", {})}, limits.get("min_nodes", 1)
        size = f"--nodes={least}"
        option, gpus = node["gpu_option"], node["gpus"]
        with_gpus = [f"{option}{gpus}"] if gpus else []
        edge(f"--cpus-per-task={node['cores']}", f"--cpus-per-task={node['cores'] + 1}", size, *with_gpus)
        if gpus and name not in ("mixed", "any"):  # in which some nodes have more
            edge(f"{option}{gpus}", f"{option}{gpus + 1}", size, f"--cpus-per-task={node['cores']}")
        edge(f"--nodes={limits['max_nodes']}", f"--nodes={limits['max_nodes'] + 1}")
        if least > 1:
            edge(size, f"--nodes={least - 1}")
        if "max_time" in limits:
            minutes = minutes_of(limits["max_time"])
            edge(f"--time={limits['max_time']}", f"--time={minutes + 1:.0f}", size)
        if "max_gpus" in limits:
            most = limits["max_gpus"] // gpus
            edge(f"--nodes={most}", f"--nodes={most + 1}", f"{option}{gpus}")
        if node.get("memory"):
            assert allows(cluster, *always, f"--partition={name}", size, f"--mem={node['memory']}", user=user)


# ---- a plain cluster -------------------------------------------------------------------------------------------------

NODE = {"gpus": 2, "cores": 8, "gpu_option": "--gpus-per-node=", "gpu_vendor": "nvidia"}
NODE |= {"whole": False, "cpu_only": False}
PLAIN = {
    **{"title": "test (this cluster)", "kind": "slurm", "docs": "https://slurm.schedmd.com/sbatch.html"},
    **{"contact": "your cluster's support", "detect": {"cluster": ["test"]}, "node": NODE},
    "partitions": {"main": {"max_nodes": 4, "about": "GPUs of a node: 2", "default": True}},
    "defaults": {"partition": "main", "nodes": 2, "gpus_per_node": 2, "time_limit": "00:30:00"},
    "commands": {
        **{"accounts": "id -Gn", "queues": "sinfo -s", "jobs": "squeue --me"},
        "limits of a queue": "scontrol show partition main",
    },
}
SOFTWARE = ("runtimes", "containers", "launchers")


@pytest.fixture(params=["cluster", "cluster24", pytest.param("cluster26", marks=pytest.mark.drill)])
def each_slurm(request):
    """One version of Slurm after the other."""
    return request.getfixturevalue(request.param)


def test_a_plain_cluster(each_slurm, tmp_path):
    facts = described(each_slurm, tmp_path)
    assert facts.pop("checked") == time.strftime("%Y-%m-%d")
    assert {key: value for key, value in facts.items() if key not in SOFTWARE} == PLAIN
    agrees(each_slurm, facts)
    suits(each_slurm, tmp_path)
    # every fact names its command
    assert "detect: {cluster: [test]} # scontrol show config: ClusterName\n" in asked(each_slurm).stdout


@pytest.fixture
def programs():
    """A folder with Slurm's commands and the shell's, to be a PATH of its own; and how to put a program there.

    Such a script has what it stands in for as $REAL. Every user can read the folder.
    """
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o755)
        for name in ("scontrol", "srun", "bash", "sh", "env", "cat", "sacctmgr"):
            (folder / name).symlink_to(shutil.which(name, path=PATH))

        def add(name, *lines):
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text("\n".join(["#!/bin/bash", f"REAL={shutil.which(name, path=PATH)}", *lines, ""]))
            (folder / name).chmod(0o755)

        yield folder, add


def test_software(cluster, tmp_path, programs):
    folder, add = programs
    path = {"PATH": str(folder), "HOME": str(tmp_path)}
    bare = described(cluster, tmp_path, env=path)
    assert (bare["runtimes"], bare["launchers"]) == (["venv", "none"], ["torchrun", "srun", "spawn"])
    assert "containers" not in bare
    for program in ("enroot", "shifter", "podman-hpc", "singularity"):
        add(program)
    add("mpirun", "echo 'mpirun (Open MPI) 5.0.7'")
    add("srun", "echo '      --container-image=[REGISTRY#]IMAGE[:TAG]|PATH  the image'; echo '  --environment=NAME'")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('must not be imported: that takes seconds')")
    add("python3", f'exec {sys.executable} "$@"')
    facts = described(cluster, tmp_path, env={**path, "PYTHONPATH": str(tmp_path)})
    assert facts["runtimes"] == ["none", "venv", "apptainer", "enroot", "shifter", "podman-hpc", "pyxis", "edf"]
    assert facts["launchers"] == ["torchrun", "srun", "spawn", "mpirun", "mpirun-ranks"]
    add("mpirun", "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.13'")
    assert "mpirun" not in described(cluster, tmp_path, env=path)["launchers"]


def test_modules(cluster, tmp_path, programs):
    folder, add = programs
    add("python3", "exit 1")
    path = {"PATH": str(folder), "HOME": str(tmp_path)}
    available = "/apps/modules:\nGCC/13.2\nPyTorch/\nPyTorch/2.1.2(default)\nPyTorch/2.6.0\nPyTorch-Lightning/2.2\n"
    available += "apptainer/1.3 (L,D)\n"
    (tmp_path / "modules").write_text(available)
    (tmp_path / ".bash_profile").write_text(f"module() {{ [[ $* = '-t avail' ]] && cat {tmp_path}/modules >&2; }}\n")
    facts = described(cluster, tmp_path, env=path)
    assert facts["runtimes"] == ["none", "venv", "apptainer"]
    assert facts["containers"] == {"none": {"modules": ["PyTorch"]}, "apptainer": {"modules": ["apptainer"]}}
    (tmp_path / ".bash_profile").write_text(f"module() {{ read -t {FOREVER} <> <(:); }}\n")
    assert "no answer within 3 s, so modules are not known\n" in asked(cluster, env=path).stdout


def test_missing_programs(cluster, tmp_path, programs):
    folder, _ = programs
    (folder / "sacctmgr").unlink()
    facts = described(cluster, tmp_path, env={"PATH": str(folder)})
    assert facts["commands"]["accounts"] == "id -Gn"
    assert not {"accounts", "qos", "required"} & set(facts)
    assert "scontrol ping: " in refused(cluster, env={"SLURM_CONF": "/nowhere"}, timeout=1)
    (folder / "scontrol").unlink()
    assert "refused: scontrol: there is no such program on PATH" in refused(cluster, env={"PATH": str(folder)})


# ---- no Slurm that answers -------------------------------------------------------------------------------------------


def test_nodes_without_gpus_and_then_no_controller(tmp_path):
    with started(nodes=2, gpus=0, cpus=4) as cluster:
        facts = described(cluster, tmp_path)
        expected = {"gpus": 0, "cores": 4, "gpu_option": "--gpus-per-node=", "whole": False, "cpu_only": True}
        assert facts["node"] == expected
        assert facts["defaults"] == {"partition": "main", "nodes": 2, "gpus_per_node": 0, "time_limit": "00:30:00"}
        agrees(cluster, facts)
        suits(cluster, tmp_path)
        controllers = [pid for pid in cluster.processes() if Path(f"/proc/{pid}/comm").read_text() == "slurmctld\n"]
        os.kill(controllers[0], signal.SIGSTOP)
        assert "scontrol ping: no answer within 0.5 s" in refused(cluster, timeout=0.5)
        for pid in controllers:
            os.kill(pid, signal.SIGKILL)
        said = refused(cluster)
        assert "scontrol ping: Slurmctld(primary) at" in said and said.count("\n") == 1


# ---- partitions and kinds of nodes -----------------------------------------------------------------------------------

KINDS = [
    Nodes(3, gpus=4, gpu_type="a100", features="a100,ib"),
    Nodes(2, cpus=6, gpus=2, gpu_type="mi250x", memory_mb=32000),
    Nodes(2, cpus=16, gpus=0, memory_mb=16000, more="CoreSpecCount=2"),
    Nodes(1, gpus=2, gpu_type="a100"),
]
PARTITIONS = (
    "PartitionName=cpu Nodes=node[6-7] Default=YES MaxTime=12:00:00 DefMemPerCPU=100",
    "PartitionName=a100 Nodes=node[1-3] MaxTime=1-00:00:00 MaxNodes=2 OverSubscribe=EXCLUSIVE",
    "PartitionName=amd Nodes=node[4-5] MinNodes=2 MaxCPUsPerNode=4",
    "PartitionName=mixed Nodes=node[1-3],node8 MaxTime=00:10:00",
    "PartitionName=any Nodes=node[1-8] MaxTime=INFINITE",
    "PartitionName=down Nodes=ALL State=DOWN",
    "PartitionName=root Nodes=ALL RootOnly=YES",
    "PartitionName=reserved Nodes=ALL ReqResv=YES",
    "PartitionName=group Nodes=ALL AllowGroups=root",
    "PartitionName=empty",
)
EXPECTED = """
cpu: {max_nodes: 2, max_time: "12:00:00", default: true, about: without --mem a job gets DefMemPerCPU=100 MB,
  node: {cores: 14, gpus: 0, whole: false, cpu_only: true}}
a100: {max_nodes: 2, max_time: "1-00:00:00", about: "GPUs of a node: 4 a100", node: {memory: "0"}}
amd: {max_nodes: 2, min_nodes: 2, about: "GPUs of a node: 2 mi250x; without --mem a job gets all memory of its nodes",
  node: {cores: 4, gpus: 2, gpu_vendor: amd, whole: false}}
mixed: {max_nodes: 4, max_time: "00:10:00", node: {gpus: 2, whole: false},
  about: "GPUs of a node: 4 a100, 2 a100; without --mem a job gets all memory of its nodes"}
any: {max_gpus: 8, max_nodes: 8, node: {gpus: 2, gpu_option: "--gres=gpu:a100:", whole: false, cpu_only: true},
  about: "GPUs of a node: 4 a100, 2 mi250x, 2 a100; without --mem a job gets all memory of its nodes"}
"""


def test_partitions_and_kinds_of_nodes(tmp_path):
    user = SOMEBODY
    conf = "SelectTypeParameters=CR_Core_Memory\nReturnToService=0"  # what is marked as down stays so
    with started(nodes=KINDS, partitions=PARTITIONS, extra_conf=conf) as cluster:
        facts = described(cluster, tmp_path, user=user)
        assert facts["partitions"] == yaml.safe_load(EXPECTED)
        assert facts["node"] == {**NODE, "gpus": 4, "whole": True}
        assert facts["defaults"] == {"partition": "a100", "nodes": 2, "gpus_per_node": 4, "time_limit": "00:30:00"}
        agrees(cluster, facts, user=user)
        suits(cluster, tmp_path, user)
        for name in ("root", "reserved", "group") if user else ("reserved",):
            assert not allows(cluster, f"--partition={name}", user=user)
        text = asked(cluster, user=user).stdout
        assert set(re.findall(r"# left out: (\w+), ", text)) >= {"down", "empty", "reserved"}

        steps = ("down", [0, 1], ("amd", 2)), ("drain", [3, 4], ("a100", 1)), ("down", range(8), ("a100", 1))
        for state, nodes, expected in steps:
            names = ",".join(cluster.nodes[place] for place in nodes)
            cluster.run("scontrol", "update", f"nodename={names}", f"state={state}", "reason=drill")
            facts = described(cluster, tmp_path, user=user)
            assert (facts["defaults"]["partition"], facts["defaults"]["nodes"]) == expected
            assert facts["partitions"]["a100"]["max_nodes"] == 2  # they will come back


def test_whole_nodes_everywhere(tmp_path):
    """An older scheduler, which knows no --gpus-per-node."""
    conf = "SelectType=select/linear\nSelectTypeParameters=CR_Memory"
    partitions = ("PartitionName=first Nodes=ALL MaxTime=00:05:00", "PartitionName=second Nodes=node1")
    with started(nodes=2, partitions=partitions, extra_conf=conf) as cluster:
        facts = described(cluster, tmp_path)
        assert (facts["node"]["whole"], facts["node"]["memory"]) == (True, "0")
        assert facts["node"]["gpu_option"] == "--gres=gpu:"
        assert facts["required"] == ["partition"]
        assert facts["defaults"]["time_limit"] == "00:05:00"
        agrees(cluster, facts)
        suits(cluster, tmp_path)


def test_nodes_that_are_not_shown(tmp_path):
    """Those of a cloud sleep until a job wants them."""
    conf = "NodeName=c[1-300] NodeAddr=10.77.0.99 CPUs=16 RealMemory=9000 State=CLOUD\nSuspendTime=600\n"
    conf += "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSlurmctldParameters=enable_expedited_requeue\n"
    partitions = ("PartitionName=cloud Nodes=c[1-300]", "PartitionName=main Nodes=node1,c[1-2] Default=YES")
    with started(nodes=1, partitions=partitions, extra_conf=conf) as cluster:
        facts, text = described(cluster, tmp_path), asked(cluster).stdout
        assert facts["partitions"]["main"]["max_nodes"] == 3  # two of them asleep
        assert facts["expedited_requeue"] is True
        assert "# left out: cloud, scontrol show node has no nodes of it\n" in text


# ---- accounts and QoS ------------------------------------------------------------------------------------------------

ACCOUNTS = """\
add qos short set MaxWall=00:20:00 MaxTRESPerJob=node=2 Flags=DenyOnLimit
add qos big set MaxTRESPerJob=node=3,cpu=24 MinTRESPerJob=node=2 MaxTRESPerUser=gres/gpu=5 Flags=DenyOnLimit
add qos budget set MaxTRESMinsPerJob=node=90 Flags=DenyOnLimit
add qos wide set MaxTRESPerJob=node=3 Flags=DenyOnLimit
add qos long set Flags=PartitionTimeLimit
add account abc cluster=test
add account sub cluster=test parent=abc
add account other cluster=test
add user nobody account=abc cluster=test qos=normal,short,big,budget defaultqos=short
add user nobody account=sub cluster=test qos=normal
add user daemon account=other cluster=test qos=big,budget
add user games account=other cluster=test partition=open qos=long,normal
"""
QUEUES = (
    "PartitionName=open Nodes=ALL Default=YES MaxTime=1-00:00:00",
    "PartitionName=abc Nodes=node[1-2] AllowAccounts=abc AllowQos=short,normal",
    "PartitionName=other Nodes=node[3-4] AllowAccounts=other",
    "PartitionName=denied Nodes=ALL DenyAccounts=abc,sub",
)


@pytest.fixture(scope="module")
def accounted():
    if os.geteuid() != 0:
        pytest.skip("only root can become several users")
    if accounting.missing():
        skip_or_fail(accounting.missing())
    with started(nodes=4, gpus=2, partitions=QUEUES, accounts=ACCOUNTS) as cluster:
        yield cluster


def test_accounts_and_qos(accounted, tmp_path):
    facts = described(accounted, tmp_path, user="nobody")
    assert facts["accounts"] == ["abc", "sub"]
    assert "required" not in facts
    assert list(facts["partitions"]) == ["open", "abc"]
    big = {"max_nodes": 3, "min_nodes": 2, "max_gpus": 5, "about": "MaxTRES cpu=24; with account abc"}
    assert facts["qos"] == {
        "big": {**big, "partitions": ["open"]},
        "budget": {"max_node_minutes": 90, "about": "with account abc", "partitions": ["open"]},
        "normal": {},
        "short": {"max_nodes": 2, "max_time": "00:20:00", "about": "with account abc"},
    }
    # short is what Slurm takes for this account, and not for the other
    expected = {"partition": "open", "qos": "short", "account": "abc", "nodes": 2, "gpus_per_node": 2}
    assert facts["defaults"] == {**expected, "time_limit": "00:20:00"}
    assert facts["commands"]["accounts"].startswith("sacctmgr show associations user=$USER")
    agrees(accounted, facts, "--qos=normal", user="nobody")
    suits(accounted, tmp_path, "nobody")


EDGES = (
    ("--nodes=2 --time=20", "--nodes=2 --time=21"),
    ("--nodes=4 --qos=normal", "--nodes=4 --qos=big"),
    ("--nodes=2 --qos=big --gpus-per-node=2", "--nodes=3 --qos=big --gpus-per-node=2"),
    ("--nodes=2 --qos=big", "--nodes=1 --qos=big"),
    ("--nodes=2 --qos=budget --time=45", "--nodes=2 --qos=budget --time=46"),
    ("--partition=abc --qos=short", "--partition=abc --qos=budget"),
    ("--partition=abc --qos=normal", "--partition=denied --qos=normal"),
)


def test_slurm_agrees_on_each_qos(accounted):
    """What the facts above forbid is refused, what they allow is not."""
    for inside, beyond in EDGES:
        assert allows(accounted, *inside.split(), user="nobody"), inside
        assert not allows(accounted, *beyond.split(), user="nobody"), beyond


def test_a_qos_must_be_named(accounted, tmp_path):
    facts = described(accounted, tmp_path, user="daemon")
    assert facts["required"] == ["qos"]
    assert facts["defaults"]["qos"] == "budget"  # big takes no single node
    assert facts["defaults"]["account"] == "other"
    assert list(facts["partitions"]) == ["open", "other", "denied"]
    suits(accounted, tmp_path, "daemon")
    assert not allows(accounted, "--nodes=2", user="daemon")
    assert allows(accounted, "--nodes=2", "--qos=budget", "--time=30", user="daemon")


def test_a_user_of_one_partition_whose_qos_lifts_its_limit(accounted, tmp_path):
    facts = described(accounted, tmp_path, user="games")
    limits = facts["partitions"].pop("open")
    assert not facts["partitions"]
    suits(accounted, tmp_path, "games")
    assert (limits["max_time"], limits["confirmed"]) == ("1-00:00:00", False)
    assert "QoS long may go beyond these limits" in limits["about"]
    assert "qos" not in facts["defaults"] and facts["qos"]["normal"] == {"default": True}
    assert not allows(accounted, "--time=2-00:00:00", user="games")
    assert allows(accounted, "--time=2-00:00:00", "--qos=long", user="games")


def test_a_user_without_an_account(accounted):
    assert "sacctmgr show assoc user=bin: none" in refused(accounted, user="bin")
    assert not allows(accounted, user="bin")


def test_a_qos_of_a_partition(accounted, tmp_path):
    """It narrows what the partition allows, and goes before a job's own."""
    accounted.run("scontrol", "update", "partitionname=open", "qos=wide")
    try:
        facts = described(accounted, tmp_path, user="nobody")
        assert facts["partitions"]["open"]["max_nodes"] == 3
        assert facts["qos"]["short"]["confirmed"] is False and "confirmed" not in facts["qos"]["normal"]
        assert "the QoS of partition open may go first" in facts["qos"]["short"]["about"]
        assert allows(accounted, "--nodes=3", "--qos=short", user="nobody")  # though short itself says 2
        assert not allows(accounted, "--nodes=4", "--qos=normal", user="nobody")
    finally:
        accounted.run("scontrol", "update", "partitionname=open", "qos=")


def test_limits_of_an_account(accounted, tmp_path):
    change = ["sacctmgr", "-i", "modify", "user", "nobody", "where", "account=abc", "set"]
    accounted.run(*change, "MaxTRESPerJob=node=1", "DefaultQOS=normal")
    try:
        facts, done = described(accounted, tmp_path, user="nobody"), asked(accounted, user="nobody")
        assert facts["defaults"]["nodes"] == 1 and "qos" not in facts["defaults"]
        assert facts["qos"]["normal"] == {"default": True}  # of both accounts
        assert " Account=abc QOS=big,budget,normal,short DefaultQOS=normal MaxTRES=node=1\n" in done.stdout
    finally:
        accounted.run(*change, "MaxTRESPerJob=node=-1", "DefaultQOS=short")


def test_no_default_account(accounted, tmp_path, programs):
    """As slurmdbd allows with AllowNoDefAcct."""
    folder, add = programs
    add("sacctmgr", '[[ "$*" = *"show user"* ]] || exec $REAL "$@"')
    facts = described(accounted, tmp_path, user="nobody", env={"PATH": f"{folder}:{PATH}"})
    assert facts["required"] == ["account"]
    assert "account" not in facts["defaults"]


def test_accounts_that_may_lie_below_an_allowed_one(accounted, tmp_path, programs):
    """Since Slurm 23.02 they are allowed, too: the partition stays, but is never the first choice."""
    folder, add = programs
    add("scontrol", '$REAL "$@" | sed "s/^\\(SLURM_VERSION *= \\).*/\\123.02.1/"')
    accounted.run("scontrol", "update", "partitionname=other", "default=yes")
    try:
        facts = described(accounted, tmp_path, user="nobody", env={"PATH": f"{folder}:{PATH}"})
        assert list(facts["partitions"]) == ["open", "abc", "other"] and facts["partitions"]["other"]["default"]
        assert "perhaps not for you: AllowAccounts names" in facts["partitions"]["other"]["about"]
        assert facts["defaults"]["partition"] == "open"
    finally:
        accounted.run("scontrol", "update", "partitionname=open", "default=yes")


# ---- what no cluster here has ----------------------------------------------------------------------------------------


def test_any_text_survives():
    for text in ("yes", "a: b #c", "1:30", "tab\there", "line\nbreak", '"\\', "é", "\x85\x7f", "0x1", "", "[", "on"):
        plain = slurm_commands.printable(text)
        assert yaml.safe_load(f"key: {describe._yaml({text: [text]})} # {plain}") == {"key": {plain: [plain]}}


def test_gres():
    assert slurm_commands.gpus_in("gpu:a100:4(S:0-1),nvme:1,shard:16") == {"a100": 4}
    assert slurm_commands.gpus_in("craynetwork:4,gpu:2(IDX:0,1)") == {"": 2}
    assert slurm_commands.gpus_in("gpu:a100:3,gpu:1g.5gb:7") == {"a100": 3, "1g.5gb": 7}
    assert slurm_commands.gpus_in("(null)") == {}


@pytest.mark.parametrize(
    ("states", "up"),
    [
        ("IDLE MIXED ALLOCATED IDLE+CLOUD+POWERED_DOWN MIXED+POWERING_UP IDLE+PLANNED IDLE+RESERVED+COMPLETING", 1),
        ("DOWN DOWN* IDLE* DOWN*+DRAIN IDLE+DRAIN IDLE+INVALID_REG UNKNOWN IDLE+MAINTENANCE IDLE+NOT_RESPONDING", 0),
    ],
)
def test_states(states, up):
    for state in states.split():
        shown = f"NodeName=n CPUTot=4 State={state} Partitions=p Reason=State=IDLE"
        kind = slurm_commands.kinds_of_nodes(shown)["p"][0]
        assert (kind.up, kind.count, kind.cpus) == (up, 1, 4), state
