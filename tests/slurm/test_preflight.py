"""slurm/preflight.sh on a real Slurm, with the faults made for real wherever a node of the cluster can have them.

A node is a set of namespaces: what is mounted in it, its /etc/hosts and its routes are its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from baking import TEMPLATE
from needs import needs_namespaces
from slurm_cluster import PATH
from submitting import THIS_AND_NEWER
from users import NEIGHBOUR, ONE, as_user, folder_of_all, needs_two_users
from waiting import FOREVER, wait_for

SCRIPT = Path(__file__).with_name("preflight_alone.sh")
FIT = (0, ["2 node(s) fit"])
WITHOUT = ", and sbatch --exclude=node2 takes others"


@pytest.fixture(params=THIS_AND_NEWER)
def usual_slurm(request):
    """One version of Slurm after the other, if its nodes have names of their own."""
    cluster = request.getfixturevalue(request.param)
    needs_namespaces(cluster)
    return cluster


@pytest.fixture
def run_dir(tmp_path):
    """The folder of the ranks' logs; the folder of submission is the one above it."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def preflight(cluster, run_dir, *needs, before="", cpus=1, gpus="--gpus-per-node=2", **environment):
    """Look at node1 and node2 in an allocation; returns the exit code and the lines without 'preflight: '."""
    allocate = ["salloc", "--nodelist=node1,node2", "--nodes=2", gpus, f"--cpus-per-task={cpus}"]
    allocate += ["bash", "-c", f'{before}\nbash "{SCRIPT}" "$@"', "bash"]
    environment = {"RUN_DIR": str(run_dir), **{name: str(value) for name, value in environment.items()}}
    present = sorted(run_dir.parent.rglob("*"))
    done = cluster.run(*allocate, *needs, cwd=run_dir.parent, env=environment, check=False)
    assert sorted(run_dir.parent.rglob("*")) == present, "something was left behind"
    lines = re.findall(r"^preflight: (.*?)(?: \(\d+ s\))?$", done.stderr + done.stdout, re.MULTILINE)
    assert lines, done.stdout + done.stderr
    return done.returncode, lines


def fault_of_node2(found):
    """The text of the one line that there must be: node2 is unfit, node1 is not named."""
    code, lines = found
    assert code == 1 and [line.split(": ")[0] for line in lines[:-1]] == ["node2"], lines
    assert lines[1] == f"1 of 2 nodes unfit; PREFLIGHT=0 starts the ranks anyway{WITHOUT}", lines
    return lines[0].removeprefix("node2: ")


def on(cluster, node, command):
    """Run a shell command on one node."""
    cluster.run("srun", "--nodes=1", f"--nodelist={node}", "bash", "-ec", command)


@contextmanager
def mounted(cluster, node, folder, command=":", options=""):
    """Mount an empty file system over a folder of one node alone, then run a command there."""
    try:
        on(cluster, node, f"mount -t tmpfs {options} tmpfs '{folder}'; {command}")
        yield
    finally:
        on(cluster, node, f"umount '{folder}'")


@contextmanager
def hosts(cluster, node, tmp_path, pattern, replacement):
    """Replace something in one node's /etc/hosts."""
    text = (cluster.directory / "etc/hosts").read_text()
    (tmp_path / "hosts").write_text(re.sub(pattern, replacement, text))
    try:
        on(cluster, node, f"mount --bind '{tmp_path}/hosts' /etc/hosts")
        yield
    finally:
        on(cluster, node, "umount /etc/hosts")


def tool(tmp_path, name, script):
    """A PATH on which a tool comes first that is not there in truth, or says something else."""
    folder = tmp_path.parent / f"{tmp_path.name}-bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{PATH}"


# ---- healthy nodes ---------------------------------------------------------------------------------------------------


def test_healthy_nodes(usual_slurm, run_dir, capsys):
    start = time.monotonic()
    assert preflight(usual_slurm, run_dir, "bash", run_dir) == FIT
    with capsys.disabled():
        print(f"\n{usual_slurm.version}: {time.monotonic() - start:.1f} s with salloc")
    on(usual_slurm, "node1", "! ls /tmp/.preflight.* /dev/shm/.preflight.*")


def test_in_a_shell_on_a_node(usual_slurm, run_dir):
    """Also without any setting; and where SLURM_CPUS_PER_TASK is set, and a step holds the node's cores."""
    shell = ["salloc", "--nodes=2", "--cpus-per-task=8", "srun", "--nodes=1", "--ntasks=1", "bash", SCRIPT]
    done = usual_slurm.run(*shell, cwd=run_dir)
    assert "preflight: 2 node(s) fit" in done.stdout, done.stderr


# ---- names and network -----------------------------------------------------------------------------------------------


def test_names(usual_slurm, run_dir, tmp_path):
    code, lines = preflight(usual_slurm, run_dir, MASTER_ADDR="node1-ib", MASTER_PORT=23456)
    said = "cannot reach node1-ib:23456 (Name or service not known): set MASTER_ADDR_SUFFIX in env.sh"
    assert (code, lines) == (1, [f"on all of 2 nodes: {said}; PREFLIGHT=0 starts the ranks anyway"])
    with hosts(usual_slurm, "node2", tmp_path, " node2\n", " node9\n"):
        line = fault_of_node2(preflight(usual_slurm, run_dir))
        assert line == "its own name node2 does not resolve: tell your site"
        assert preflight(usual_slurm, run_dir, GLOO_SOCKET_IFNAME="eth0") == FIT  # then gloo does not ask for it


def test_a_master_with_an_address_that_has_no_route(usual_slurm, run_dir, tmp_path):
    """Its name has an IPv6 address too, and the nodes' network carries IPv4 alone: torch tries both."""
    for node in ("node1", "node2"):
        on(usual_slurm, node, "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")
    dual = r"(\S+) node1\n", r"fd00::11 node1\n\1 node1\n"
    with hosts(usual_slurm, "node1", tmp_path, *dual), hosts(usual_slurm, "node2", tmp_path, *dual):
        assert preflight(usual_slurm, run_dir, MASTER_PORT=23456) == FIT


def test_the_way_to_the_master(usual_slurm, run_dir):
    for route, reason in ("unreachable 10.77.0.11", "No route to host"), ("10.77.0.11 dev lo", "no answer in 3 s"):
        on(usual_slurm, "node2", f"ip route add {route}")
        try:
            line = fault_of_node2(preflight(usual_slurm, run_dir, MASTER_PORT=23456))
        finally:
            on(usual_slurm, "node2", f"ip route del {route}")
        assert line == f"cannot reach node1:23456 ({reason}): set MASTER_ADDR_SUFFIX in env.sh"


@pytest.mark.parametrize("master", ["node1", "node2"])
def test_the_master_s_port(usual_slurm, run_dir, master):
    listen = f"import socket, time; s = socket.create_server(('', 23456)); print(flush=True); time.sleep({FOREVER})"
    srun = f"srun --overlap --nodes=1 --ntasks=1 --nodelist={master}"
    before = f"""exec 3< <({srun} '{sys.executable}' -c "{listen}"); read -ru 3"""
    code, lines = preflight(usual_slurm, run_dir, before=before, MASTER_ADDR=master, MASTER_PORT=23456)
    assert code == 1 and lines[0].startswith(f"{master}: the master's port 23456 is in use: submit again"), lines
    assert len(lines) == 2, lines


# ---- folders and software --------------------------------------------------------------------------------------------


def test_folders(usual_slurm, run_dir):
    with mounted(usual_slurm, "node2", run_dir.parent):
        line = fault_of_node2(preflight(usual_slurm, run_dir))
        assert line.startswith(f"cannot write to {run_dir} (No such file or directory): free space there if it is full")
    for folder, fix in (run_dir, "put it on a file system that all nodes share"), ("/dev/shm", "tell your site"):
        with mounted(usual_slurm, "node2", folder, f"head -c 1M /dev/zero >{folder}/full || true", "-o size=64k"):
            line = fault_of_node2(preflight(usual_slurm, run_dir))
        assert line == f"cannot write to {folder} (No space left on device): free space there if it is full, else {fix}"


@needs_two_users
@pytest.mark.parametrize("plant", ["echo x >{name}", "ln -s {precious} {name}"])
def test_a_neighbour_s_files_are_not_touched_and_make_no_node_unfit(folder_of_all, plant):
    """Another user takes the names that a run has taken, before the same job runs again."""
    tools, names, precious = folder_of_all / "tools", folder_of_all / "names", folder_of_all / "precious"
    for folder in (tools, folder_of_all / "logs"):
        folder.mkdir()
    (folder_of_all / "logs").chmod(0o777)  # of a group, without the sticky bit
    log = 'for word; do case $word in of=*) echo "${word#of=}" >>'  # dd's file
    (tools / "dd").write_text(f'#!/bin/bash\n{log}"{names}" ;; esac; done\nexec /bin/dd "$@"\n')
    (tools / "dd").chmod(0o755)
    script = (TEMPLATE / "launch/count_gpus.sh").read_text() + (TEMPLATE / "slurm/preflight_node.sh").read_text()
    job = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "node1", "SLURM_NODEID": "0", "NPROC_PER_NODE": "1"}
    job |= {"RUN_DIR": f"{folder_of_all}/logs", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    look = partial(as_user, ONE, "bash", "-c", script, PATH=f"{tools}:{PATH}", **job)
    as_user(ONE, "sh", "-c", f"echo 1 >{precious}")
    assert "fault" not in look().stdout
    taken = names.read_text().split()
    assert [str(Path(name).parent) for name in taken] == ["/tmp", "/dev/shm", job["RUN_DIR"]]
    for name in taken:
        as_user(NEIGHBOUR, "sh", "-c", plant.format(name=name, precious=precious))
    try:
        assert "fault" not in look().stdout
        assert precious.read_text() == "1\n" and all(Path(name).is_symlink() or Path(name).exists() for name in taken)
    finally:
        for name in taken:
            Path(name).unlink(missing_ok=True)


def test_software(usual_slurm, run_dir):
    real, python = run_dir.parent / "real", run_dir.parent / "python"
    real.mkdir()
    (real / "tool").write_text("#!/bin/sh\n")
    (real / "tool").chmod(0o755)
    python.symlink_to(real / "tool")
    look = (usual_slurm, run_dir, "bash", "tool", python, real / "tool", run_dir)
    assert preflight(*look, PATH=f"{real}:{PATH}") == FIT
    with mounted(usual_slurm, "node2", real):
        faults = fault_of_node2(preflight(*look, PATH=f"{real}:{PATH}")).split("; ")
    assert faults == [
        f"cannot read {what}: put it where all nodes see it, or name its module in MODULES of env.sh"
        for what in ("tool", f"{python} -> {real}/tool", f"{real}/tool")
    ]


def test_folders_of_the_container(usual_slurm, run_dir):
    """A folder that only node1 has; the message for a program or a file stays another one."""
    only, missing = usual_slurm.node_local / "only here", usual_slurm.node_local / "nowhere"
    on(usual_slurm, "node1", f"mkdir -p '{only}'")
    assert preflight(usual_slurm, run_dir, "bash", "--mounts", run_dir) == FIT
    said = "put it where all nodes see it, or take it out of"
    line = fault_of_node2(preflight(usual_slurm, run_dir, "bash", "--mounts", run_dir, only))
    assert line == f"the container cannot mount {only}: {said} BINDS in env.sh"
    line = fault_of_node2(preflight(usual_slurm, run_dir, "--mounts", only, MOUNTS_SETTING="mounts in x.toml"))
    assert line == f"the container cannot mount {only}: {said} mounts in x.toml"
    code, lines = preflight(usual_slurm, run_dir, missing, "--mounts", missing)
    faults = [f"cannot read {missing}: put it where all nodes see it, or name its module in MODULES of env.sh"]
    faults += [f"the container cannot mount {missing}: {said} BINDS in env.sh"]
    assert code == 1 and lines[0].startswith(f"on all of 2 nodes: {'; '.join(faults)}; PREFLIGHT=0"), lines


# ---- hardware --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        ("", "nvidia-smi -L sees 1 GPU(s), not 2: tell your site"),
        (
            "echo 'Unable to ask GPU 1'; exit 255",
            "nvidia-smi -L sees 1 GPU(s), not 2 (Unable to ask GPU 1): tell your site",
        ),
        (f"sleep {FOREVER}", "no answer, stuck at: nvidia-smi -L"),
        ('for part in 0 1; do echo "  MIG 3g.40gb Device $part: (UUID: MIG-$part)"; done', None),
        ("echo '  MIG 3g.40gb Device 0: (UUID: MIG-a)'", "nvidia-smi -L sees 1 GPU(s), not 2: tell your site"),
    ],
)
def test_gpus(usual_slurm, run_dir, tmp_path, second, wanted):
    script = f"echo GPU 0: A100; if [[ $(uname -n) == node2 ]]; then :; {second}\nelse echo GPU 1: A100; fi"
    hangs = {"PREFLIGHT_TIMEOUT": 10} if "sleep" in second else {}
    found = preflight(usual_slurm, run_dir, PATH=tool(tmp_path, "nvidia-smi", script), **hangs)
    assert found == FIT if wanted is None else fault_of_node2(found) == wanted


def test_gpus_of_which_slurm_says_nothing(usual_slurm, run_dir, tmp_path):
    """With --exclusive alone: each node counts its GPUs, and the driver of node2 does not answer."""
    script = "[[ $(uname -n) != node2 ]] || { echo NVIDIA-SMI has failed; exit 9; }; echo GPU 0: A100; echo GPU 1: A100"
    exclusive = {"gpus": "--exclusive", "PATH": tool(tmp_path, "nvidia-smi", script)}
    assert fault_of_node2(preflight(usual_slurm, run_dir, **exclusive)) == "GPUs: 0, but 2 on others"


def test_the_check_that_hangs_is_named(usual_slurm, run_dir, tmp_path):
    path = tool(tmp_path, "nproc", f"[[ $(uname -n) != node2 ]] || sleep {FOREVER}; echo 1")
    line = fault_of_node2(preflight(usual_slurm, run_dir, "bash", PATH=path, PREFLIGHT_TIMEOUT=10))
    assert line == "no answer, stuck at: cores"


def test_driver_rdma_and_cores(usual_slurm, run_dir, tmp_path):
    version = "mkdir /sys/module/nvidia; echo {} >/sys/module/nvidia/version"
    new, old = version.format("570.86.15"), version.format("535.129.03")
    with mounted(usual_slurm, "node1", "/sys/module", new), mounted(usual_slurm, "node2", "/sys/module", old):
        assert preflight(usual_slurm, run_dir) == FIT  # a site updates its nodes one by one
    with mounted(usual_slurm, "node1", "/sys/module", new), mounted(usual_slurm, "node2", "/sys/module", "true"):
        line = fault_of_node2(preflight(usual_slurm, run_dir))
    assert line == "GPU drivers: 0, but 1 on others"

    port = "mkdir -p /sys/class/infiniband/mlx5_0/ports/1; echo {} >/sys/class/infiniband/mlx5_0/ports/1/state"
    up, down = port.format("4: ACTIVE"), port.format("1: DOWN")
    with mounted(usual_slurm, "node1", "/sys/class", up), mounted(usual_slurm, "node2", "/sys/class", down):
        line = fault_of_node2(preflight(usual_slurm, run_dir))
    assert line == "RDMA networks with an active port: 0, but 1 on others"

    path = tool(tmp_path, "nproc", "[[ $(uname -n) != node2 ]] || exec echo 1; echo 64")
    line = fault_of_node2(preflight(usual_slurm, run_dir, PATH=path, cpus=8))
    assert line == "one core, not SLURM_CPUS_PER_TASK=8: export SLURM_CPU_BIND=none in env.sh"


# ---- nodes that do not answer, and a thousand that do ----------------------------------------------------------------


def test_a_dead_node(usual_slurm, run_dir):
    """Its power is cut in a job that --no-kill keeps alive; called by hand, with no more than the job's number."""
    job = usual_slurm.sbatch("--nodelist=node[1-3]", "--nodes=3", "--no-kill", f"--wrap=sleep {FOREVER}", cwd=run_dir)
    try:
        environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_NUM_NODES": "3"}
        wait_for(lambda: "RUNNING" in usual_slurm.run("squeue", "-h", "-o%T", f"--jobs={job}").stdout, "a job runs")
        usual_slurm.crash("node2")
        done = usual_slurm.run("bash", SCRIPT, cwd=run_dir, env=environment, check=False)
    finally:
        usual_slurm.run("scancel", str(job))
        usual_slurm.boot("node2")
        usual_slurm.wait_for_nodes()
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == 2, done.stderr
    assert lines[0].startswith("preflight: node2: no answer, stuck at: "), lines
    assert "1 of 3 nodes unfit" in lines[1] and lines[1].endswith(WITHOUT), lines


def test_a_dead_node_because_of_which_srun_starts_nothing(usual_slurm, run_dir, tmp_path):
    said = "srun: error: Task launch for StepId=1.0 failed on node node2: Communication connection failure"
    path = tool(tmp_path, "srun", f"echo '{said}' >&2; exit 1")
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-3]", "PATH": path}
    environment["UNFIT_FILE"] = str(tmp_path / "unfit")
    done = usual_slurm.run("bash", SCRIPT, cwd=run_dir, env=environment, check=False)
    assert done.returncode == 1 and f"node2: no answer, stuck at: {said}\n" in done.stderr, done.stderr
    assert (tmp_path / "unfit").read_text() == f"node2\tno answer, stuck at: {said}\n"


def test_each_dead_node_has_its_own_message(usual_slurm, run_dir, tmp_path):
    """srun says something else first, and nothing of the third node."""
    lines = ["srun: warning: this is of no node"]
    lines += [f"srun: error: Task launch for StepId=1.0 failed on node {n}: Fault of {n}" for n in ("node1", "node2")]
    path = tool(tmp_path, "srun", "".join(f"echo '{line}' >&2; " for line in lines) + "exit 1")
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-3]", "PATH": path}
    done = usual_slurm.run("bash", SCRIPT, cwd=run_dir, env=environment, check=False)
    assert done.stderr.splitlines()[:2] == [f"preflight: node{n}: no answer, stuck at: {lines[n]}" for n in (1, 2)], (
        done.stderr
    )


def test_a_message_of_srun_that_names_no_node(usual_slurm, run_dir, tmp_path):
    said = "srun: error: task 1 launch failed: Invalid job credential"
    path = tool(tmp_path, "srun", f"printf 'node1\\tat\\tend\\n'; echo '{said}' >&2; exit 1")
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-2]", "PATH": path}
    done = usual_slurm.run("bash", SCRIPT, cwd=run_dir, env=environment, check=False)
    assert f"node2: no answer, stuck at: {said}\n" in done.stderr and "node1:" not in done.stderr, done.stderr


def test_a_thousand_nodes(usual_slurm, run_dir, tmp_path):
    """What one node says, under a thousand names."""
    path = tool(
        tmp_path,
        "srun",
        'until [[ $1 == bash ]]; do shift; done; said=$(SLURMD_NODENAME=node1 SLURM_NODEID=0 "$@")\n'
        'for ((n = 1; n <= 1000; n++)); do echo "${said//node1/n$n}"; done'
        " | sed '/\\tnetworks/s/.$/1/; /^n77[78]\\tnetworks/s/1$/0/'",
    )
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-1000]", "SLURM_JOB_NUM_NODES": "1000"}
    done = usual_slurm.run("bash", SCRIPT, cwd=run_dir, env={"PATH": path, "MASTER_ADDR": "login", **job}, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and [line.split(": ")[1] for line in lines[:-1]] == ["n777", "n778"], lines
