"""The stand-ins for Run:ai: does the client refuse what it should, and are the pods like pods?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from baking import REPOSITORY
from runai_cluster import Image, RunaiCluster
from runai_pods import STAND_INS
from stand_in_runai import COMMANDS, Refused, parse
from waiting import FOREVER, PATIENCE, wait_for

pytestmark = pytest.mark.drill

IMAGE = "registry.example.org/lab/torch:1"
UID, GID = 34567, 83070  # nobody on this machine
STARTER = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from runai_cluster import Image, RunaiCluster
with RunaiCluster(sys.argv[2], images={"i": Image()}) as cluster:
    words = ["training", "standard", "submit", "a", "-p", "lab-me", "-i", "i", "--command", "--", "sleep", sys.argv[3]]
    cluster.run("runai", *words)
    cluster.wait_until_running("a")
    print("up", flush=True)
    signal.pause()
"""

# ---- the client

SUBMIT = "training pytorch submit demo -p lab-me -i ubuntu"
SUBMIT_V1 = "submit-dist pytorch --name demo -p lab-me -i ubuntu"


@pytest.mark.parametrize(
    ("generation", "line"),
    [
        # the examples of the pages (see stand_in_runai.py) with a name for <workload-name>
        ("v2", "training pytorch submit demo -p lab-me -i runai.jfrog.io/demo/quickstart-demo"),
        ("v2", f"{SUBMIT} -- ls -la"),
        ("v2", "training pytorch submit demo -p lab-me --template mine"),
        ("v2", "training pytorch submit demo -p lab-me --environment asset"),
        ("v2", f"{SUBMIT} --command -- echo Hello"),
        ("v2", f"{SUBMIT} --env-pod-field-ref PROJECT=metadata.labels['project']"),
        ("v2", f"{SUBMIT} --master-command echo --command -- echo worker"),
        ("v2", "training standard submit jup -p lab-me -i jupyter/scipy-notebook --gpu-devices-request 1"
               " --external-url container=8888 --command -- start-notebook.sh"),
        ("v2", f"{SUBMIT} --workers 1 -g 1 --existing-pvc claimname=c,path=/checkpoints --working-dir /w"
               " --command -- bash run.sh"),
        ("v2", "training pytorch logs demo --pod=a --tail=100 --since=300s"),
        ("v2", "training pytorch exec demo --tty --stdin -- /bin/bash"),
        ("v2", "training pytorch describe demo --containers --pod-limit 20 --event-limit 100"),
        ("v2", "training pytorch delete --uuid=1 -p lab-me"),
        ("v2", "training pytorch list -A"),
        ("v1", "submit-dist pytorch --name distributed-job --workers=2 -g 1 -i ubuntu"),
        ("v1", "submit -i ubuntu --interactive --attach -g 1"),
        ("v1", "submit --name frac05 -i gcr.io/run-ai-demo/quickstart -g 0.5"),
        # epfml/getting-started docs/multinode.md and csub.py (5b3f69d): `true` is a positional argument
        ("v1", "submit-dist pytorch --name distributed-job --workers=1 -g 4 -i ic-registry.epfl.ch/mlo/mlo:v1"
               " --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1"
               " -- bash -c sleep"),
        ("v1", f"{SUBMIT_V1} --allow-privilege-escalation true --pvc mlo-scratch:/mloscratch --run-as-uid 1"),
        ("v1", "exec sandbox -it -- zsh"),
        ("v1", "describe job sandbox"),
    ],
)  # fmt: skip
def test_documented_lines_are_accepted(generation, line):
    assert parse(generation, line.split())["help"] is False


def test_values():
    line = f"{SUBMIT} -e A=1 -e B=x=y --node-pools a --node-pools b,c -tc --stdin=false -g2 --workers=3 -- -x --y"
    call = parse("v2", line.split())
    assert call["options"]["environment-variable"] == ["A=1", "B=x=y"]
    assert call["options"]["node-pools"] == ["a", "b,c"]  # but v1 takes it apart
    assert parse("v1", f"{SUBMIT_V1} --node-pools a,b".split())["options"]["node-pools"] == ["a", "b"]
    kept = {name: call["options"][name] for name in ("tty", "command", "stdin", "gpu-devices-request", "workers")}
    assert kept == {"tty": True, "command": True, "stdin": False, "gpu-devices-request": 2, "workers": 3}
    assert (call["arguments"], call["words"]) == (["demo"], ["-x", "--y"])


@pytest.mark.parametrize(
    ("generation", "line", "message"),
    [
        ("v1", SUBMIT, 'unknown command "training" for "runai"'),
        ("v2", SUBMIT_V1, 'unknown command "submit-dist" for "runai"'),
        ("v2", f"{SUBMIT} --name demo", "unknown flag: --name"),
        ("v2", f"{SUBMIT} --gpu 1", "unknown flag: --gpu"),
        ("v2", f"{SUBMIT} --worker 1", "unknown flag: --worker"),  # no abbreviations
        ("v2", f"{SUBMIT} -a b=c", "unknown shorthand flag: 'a' in -a"),
        ("v2", f"{SUBMIT} -txy", "unknown shorthand flag: 'x' in -xy"),
        ("v2", f"{SUBMIT} --workers", "flag needs an argument: --workers"),
        ("v2", f"{SUBMIT} -tg", "flag needs an argument: 'g' in -g"),
        ("v2", f"{SUBMIT} --workers x", 'invalid argument "x" for "--workers" flag: strconv.ParseInt'),
        ("v2", f"{SUBMIT} -g 0", 'invalid argument "0" for "-g, --gpu-devices-request" flag'),
        ("v2", f"{SUBMIT} -g 0.5", 'invalid argument "0.5" for "-g, --gpu-devices-request" flag'),
        ("v2", f"{SUBMIT} --large-shm true", "accepts at most 1 arg(s), received 2"),
        ("v2", f"{SUBMIT} --large-shm=yes", 'invalid argument "yes" for "--large-shm" flag: strconv.ParseBool'),
        ("v2", f"{SUBMIT} --existing-pvc claimname=a,path=/b,ro", "unknown parameter 'ro'"),
        ("v1", f"{SUBMIT_V1} --existing-pvc claimname=a,path=b", "path must be absolute"),
        ("v2", f"{SUBMIT} --existing-pvc name=a,path=/b", "unknown parameter 'name'"),
        ("v2", f"{SUBMIT} --existing-pvc claimname=a,path=/b --existing-pvc claimname=c,path=/b", "must be unique"),
        ("v2", f"{SUBMIT} --extended-resource rdma/rdma", "expected resource=quantity"),
        ("v2", f"{SUBMIT} --annotation roce", "expected key=value"),
        ("v2", f"{SUBMIT} -e 1A=b", "expected NAME=VALUE"),
        ("v1", f"{SUBMIT_V1} --environment A", 'for "-e, --environment" flag: expected NAME=VALUE'),
        ("v1", f"{SUBMIT_V1} -e A=SECRET:s", "expected NAME=VALUE or NAME=SECRET:secret,key"),
        ("v2", f"{SUBMIT} --env-secret A=s,k", "expected NAME=secret,key=key"),
        ("v2", f"{SUBMIT} --clean-pod-policy running", "expected one of None, All, Running"),
        ("v2", f"{SUBMIT} --preemptibility no", "expected one of preemptible, non-preemptible"),
        ("v1", f"{SUBMIT_V1} --restart-policy Never", "unknown flag: --restart-policy"),
        ("v2", "training pytorch submit demo -p lab-me", "an image must be specified"),
        ("v2", "training pytorch submit -p lab-me -i ubuntu", "invalid name"),
        ("v2", "training pytorch submit my_job -p lab-me -i ubuntu", 'invalid name "my_job"'),
        ("v2", f"training pytorch submit {'a' * 54} -i ubuntu --workers 11", "has more than 63 characters"),
        ("v2", f"{SUBMIT} --command", "--command takes a command after --"),
        ("v2", "training pytorch exec demo ls", "accepts at most 1 arg(s), received 2"),
        ("v1", "logs", "accepts 1 arg(s), received 0"),
    ],
)
def test_refusals(generation, line, message):
    with pytest.raises(Refused) as error:
        parse(generation, line.split())
    assert message in str(error.value)


@pytest.mark.parametrize(("generation", "command"), [("v2", "training pytorch submit"), ("v1", "submit-dist pytorch")])
def test_program(generation, command):
    def runai(*words: str) -> subprocess.CompletedProcess:
        path = STAND_INS / f"runai_{generation}" / "runai"
        return subprocess.run([path, *words], env={"PATH": os.defpath}, capture_output=True, text=True, check=False)

    shown = runai(*command.split(), "--help")
    assert shown.returncode == 0
    assert [name for name in COMMANDS[generation][command] if f"--{name}" not in shown.stdout] == []
    wrong = runai(*command.split(), "--foo")
    assert (wrong.returncode, wrong.stderr) == (1, "Error: unknown flag: --foo\n")
    assert runai("version").stderr == "Error: no cluster is configured (STAND_IN_RUNAI)\n"


# ---- the cluster


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "volume").mkdir(mode=0o777)
    (tmp_path / "volume").chmod(0o777)
    return tmp_path / "volume"


@pytest.fixture
def new(tmp_path, volume):
    """Make a cluster that is up."""
    if reason := RunaiCluster.missing():
        pytest.skip(reason)
    clusters = []

    def new(**options) -> RunaiCluster:
        images = {IMAGE: Image(), **options.pop("images", {})}
        clusters.append(RunaiCluster(tmp_path / "cluster", volumes={"scratch": volume}, images=images, **options))
        clusters[-1].start()
        return clusters[-1]

    yield new
    for cluster in clusters:
        cluster.stop()


def submit(cluster, script, *options, name="demo", workers=1, image=IMAGE, check=True):
    """Run a script in the pods of a workload; with 0 workers it is one of a single pod."""
    (cluster.directory.parent / "volume" / f"{name}.sh").write_text(script)
    v2 = cluster.generation == "v2"
    kind = ["pytorch", f"--workers={workers}"] if workers else ["standard"]
    first = ["training", kind[0], "submit", *kind[1:], name] if v2 else ["submit-dist", *kind, "--name", name]
    words = ["-p", "lab-me", "-i", image, "--existing-pvc", "claimname=scratch,path=/mnt/lab/scratch"]
    words += ["--backoff-limit=0", *(["--clean-pod-policy=Running"] if workers else [])]
    command = ["--command", "--", "bash", f"/mnt/lab/scratch/{name}.sh"]
    return cluster.run("runai", *first, *words, *options, *command, check=check)


def test_pods_are_like_pods(new, volume):
    cluster = new(hide=[Path("/usr/share")])
    script = """
        echo "process $$ of $(ls -d /proc/[0-9]* | wc -l), $(hostname) $(getent hosts $(hostname) | wc -l)"
        echo "seen: $(ls /root /home /tmp /mnt /usr/share | xargs)"
        echo "network: $(ls /sys/class/net | xargs), shm: $(df --output=size /dev/shm | tail -1), $(ls /sys/class)"
        echo "gpus: $(nvidia-smi -L | wc -l) of $RUNAI_NUM_OF_GPUS, caller: $SECRET $STAND_IN_RUNAI, $A"
        mkdir /mnt/lab/scratch/closed/new 2>/dev/null || echo closed
        ps -eo args | grep -c "[s]leep 987"; sleep 987 &
        python3 -c 'import importlib.util as util; print(util.find_spec("torch").name)'
        echo done >/mnt/lab/scratch/$HOSTNAME.txt
    """
    (volume / "closed").mkdir(mode=0o755)
    os.chown(volume / "closed", UID, GID)
    words = ["-e", "A=b c", "-g", "2", "--master-gpu-devices-request", "1"]
    submit(cluster, script, *words)
    job = cluster.wait("demo")
    assert (job.state, [*job.exit_codes.values()]) == ("Succeeded", [0, 0]), job.output
    master, worker = (text.splitlines() for text in job.outputs.values())
    assert master[0].startswith("process 1 of ")
    assert master[0].endswith(", demo-master-0 1")
    own = REPOSITORY.relative_to("/tmp").parts[:1] if REPOSITORY.is_relative_to("/tmp") else ()
    assert master[1] == " ".join(["seen: /home: /mnt: lab /root: /tmp:", *own, "/usr/share:"])  # Python's own folder
    assert master[2].split() == ["network:", "eth0", "lo,", "shm:", "65536,", "net"]
    assert [lines[3] for lines in (master, worker)] == [f"gpus: {n} of {n}, caller:  , b c" for n in (1, 2)]
    assert master[4:] == ["closed", "0", "torch"]
    assert {path.name for path in volume.glob("*.txt")} == {"demo-master-0.txt", "demo-worker-0.txt"}
    assert [call["options"]["environment-variable"] for call in cluster.calls] == [["A=b c"]]


@pytest.mark.parametrize(
    ("operator", "options", "expected"),
    [
        ("1.6", {"nproc_per_node": 4}, {"MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}),
        ("1.9", {"nproc_per_node": 4}, {"PET_NNODES": "2", "PET_NODE_RANK": "1", "WORLD_SIZE": "8"}),
        ("1.9", {"elastic": "1:2"}, {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_NPROC_PER_NODE": "auto"}),
        ("trainjob", {}, {"PET_MASTER_ADDR": "demo-node-0-0.demo", "PET_MASTER_PORT": "29500", "PET_NODE_RANK": "1"}),
        ("trainjob", {}, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}),
    ],
)
def test_operators(new, operator, options, expected):
    cluster = new(operator=operator, generation="v1" if operator == "1.6" else "v2", **options)
    submit(cluster, 'env; getent ahostsv4 "${PET_MASTER_ADDR:-$MASTER_ADDR}" || sleep 1; env >/dev/tcp/127.0.0.1/1')
    job = cluster.wait("demo")
    assert job.state == "Failed"  # nobody listens there
    _, worker = job.outputs.values()
    found = dict(line.split("=", 1) for line in worker.splitlines() if "=" in line)
    assert {name: found.get(name) for name in expected} == expected
    old, pet = (any(name.startswith(start) for name in found) for start in ("MASTER_", "PET_"))
    assert (old, pet) == (operator != "trainjob", operator != "1.6")
    assert ("JOB_UUID" in found, "RUNAI_JOB_UUID" in found) == (operator == "1.6", operator != "1.6")


def test_one_pod_has_nothing_of_an_operator(new):
    cluster = new()
    submit(cluster, "env", workers=0)
    job = cluster.wait("demo")
    assert list(job.exit_codes) == ["demo-0-0"]
    assert not any(word in job.output for word in ("MASTER", "PET_", "WORLD_SIZE", "RANK"))


def test_late_names(new, volume):
    script = 'until getent hosts "$PET_MASTER_ADDR"; do echo waiting; touch /mnt/lab/scratch/waiting; sleep 0.1; done'
    cluster = new(operator="trainjob", late={"master": str(volume / "waiting")})
    submit(cluster, script)
    job = cluster.wait("demo")
    assert job.state == "Succeeded", job.output
    assert "waiting" in list(job.outputs.values())[-1]
    cluster.stop()
    cluster = new(late={"master": 1})  # here the init container waits
    submit(cluster, script)
    assert "waiting" not in cluster.wait("demo").output
    cluster.stop()
    cluster = new(late={"master": 9}, init_seconds=0.5)
    submit(cluster, script, "--restart-policy=Never")
    assert "init container init-pytorch failed" in cluster.wait("demo").output


def test_end_of_a_job(new):
    cluster = new(grace=PATIENCE)
    go = "/mnt/lab/scratch/ready"  # the worker fails when the master has its trap
    master = f"trap 'echo asked; exit 3' TERM; touch {go}; sleep {FOREVER} & wait"
    submit(cluster, f"if ((RANK == 1)); then until [[ -e {go} ]]; do sleep 0.1; done; exit 7; fi; {master}")
    job = cluster.wait("demo")
    assert (job.state, [*job.exit_codes.values()]) == ("Failed", [3, 7]), job.output
    assert job.outputs["demo-master-0"] == "asked\n"
    cluster.stop()
    # process 1 ignores SIGTERM unless it has a handler, and the master's end is that of the job
    cluster = new(grace=1)
    go = "/mnt/lab/scratch/other"
    worker = f"touch {go}; sleep {FOREVER}"
    submit(
        cluster, f"if ((RANK == 0)); then until [[ -e {go} ]]; do sleep 0.1; done; exit 0; fi; {worker}", name="other"
    )
    job = cluster.wait("other")
    assert (job.state, [*job.exit_codes.values()]) == ("Succeeded", [0, 137]), job.output


def test_restart(new):
    cluster = new()
    submit(cluster, "echo once; cd /mnt/lab/scratch; mkdir $HOSTNAME", "--backoff-limit=1", workers=0)
    assert cluster.wait("demo").outputs == {"demo-0-0": "once\n"}
    job = "echo once; cd /mnt/lab/scratch; if mkdir $HOSTNAME-2; then exit 1; fi 2>/dev/null"
    submit(cluster, job, "--backoff-limit=1", workers=0, name="again")
    job = cluster.wait("again")
    assert (job.state, job.outputs) == ("Succeeded", {"again-0-0": "once\nonce\n"})


def test_shared_memory(new):
    cluster = new()
    script = "there=/mnt/lab/scratch/${HOSTNAME%-*-*}; if ((RANK == 1)); then echo x >/dev/shm/x; touch $there; else "
    script += "until [[ -e $there ]]; do sleep 0.1; done; ls /dev/shm; df --output=size /dev/shm; fi"
    submit(cluster, script)
    assert cluster.wait("demo").outputs["demo-master-0"].split() == ["1K-blocks", "65536"]
    submit(cluster, script, "--large-shm", name="large")
    assert int(cluster.wait("large").outputs["large-master-0"].split()[-1]) > 65536
    submit(cluster, script, "--host-ipc", name="host")
    assert cluster.wait("host").outputs["host-master-0"].split()[0] == "x"


def test_other_user(new, volume):
    os.chown(volume, UID, GID)
    volume.chmod(0o700)
    cluster = new(images={"home": Image(environment={"HOME": "/home/me"})})
    script = 'echo "$(id -u) $(id -g) $(id -G) $HOME"; echo x >/dev/stdout; touch /mnt/lab/scratch/mine; id -un'
    submit(cluster, script, f"--run-as-uid={UID}", f"--run-as-gid={GID}", image="home", workers=0)
    job = cluster.wait("demo")
    assert job.outputs["demo-0-0"].splitlines()[:2] == [f"{UID} {GID} {GID} /home/me", "x"]
    assert job.state == "Failed"  # id: no such user
    assert (volume / "mine").stat().st_uid == UID
    submit(cluster, "true", name="root", workers=0)  # which is nobody on that volume
    assert "Permission denied" in cluster.wait("root").output


@pytest.mark.parametrize(
    ("options", "event"),
    [
        (["--existing-pvc", "claimname=wrong,path=/b"], 'persistentvolumeclaim "wrong" not found'),
        (["--env-secret", "A=wrong,key=b"], 'secret "wrong" not found'),
        (["-e", "A=SECRET:wandb,b"], "couldn't find key b in Secret wandb"),
        (["-i", "lab/other:1"], 'Failed to pull image "lab/other:1"'),
    ],
)
def test_pending(new, options, event):
    cluster = new(secrets={("wandb", "key"): "s3cret"})
    submit(cluster, "true", *options)
    job = cluster.wait("demo")
    assert job.state == "Pending"
    assert event in job.events[0]
    assert event in cluster.run("runai", "training", "pytorch", "describe", "demo").stdout


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_other_commands(new, generation):
    cluster = new(generation=generation, grace=1, secrets={("wandb", "key"): "s3cret"})
    submit(cluster, "echo one; echo two; sleep 60", "-e", "KEY=SECRET:wandb,key", f"--run-as-uid={UID}")
    cluster.wait_until_running("demo")
    group, job = ([], ["job"]) if generation == "v1" else (["training", "pytorch"], [])
    words = ["exec", "demo", "--pod", "demo-worker-0", "--", "bash", "-c", "id -u; hostname; echo $KEY $RANK; exit 5"]
    done = cluster.run("runai", *group, *words, check=False)
    assert (done.returncode, done.stdout) == (5, f"{UID}\ndemo-worker-0\ns3cret 1\n")
    assert cluster.run("runai", *group, "bash", "demo", stdin="echo $RANK; cat").stdout == "0\n"
    assert cluster.run("runai", *group, "logs", "demo", "--tail", "1").stdout == "two\n"
    assert "Status: Running" in cluster.run("runai", *group, "describe", *job, "demo").stdout
    assert "demo" in cluster.run("runai", *group, "list").stdout
    assert "already exists" in submit(cluster, "true", check=False).stderr
    cluster.run("runai", *group, "delete", *job, "demo")
    assert cluster.wait("demo").state == "Deleted"
    assert "was not found" in cluster.run("runai", *group, "logs", "demo", check=False).stderr
    submit(cluster, "echo again")
    assert cluster.wait("demo").outputs["demo-master-0"] == "again\n"


def test_what_the_cluster_refuses(new):
    cluster = new()
    assert 'node pool "h100" was not found' in submit(cluster, "", "--node-pools=h100", check=False).stderr
    assert 'project "other" was not found' in submit(cluster, "", "-p", "other", check=False).stderr
    assert 'asset "A=b" was not found' in submit(cluster, "", "--environment", "A=b", check=False).stderr
    assert "does not implement --no-master" in submit(cluster, "", "--no-master", check=False).stderr
    for what, name in (("pvc", "scratch"), ("nodepool", "default"), ("project", "lab-me")):
        assert name in cluster.run("runai", what, "list").stdout.split()
    assert [call.get("error", "")[:9] for call in cluster.calls] == [
        "node pool",
        'project "',
        "environme",
        "the test ",
        "",
        "",
        "",
    ]


def test_images(new):
    wraps = Image(entrypoint=["bash", "-c", 'echo wrapped; exec bash -c "$*"', "entrypoint"], torch=False)
    cluster = new(images={"wraps": wraps})
    words = ["runai", "training", "standard", "submit", "-p", "lab-me", "-i", "wraps", "--backoff-limit", "0"]
    cluster.run(*words, "a", "--", "echo", "a  b")
    assert cluster.wait("a").outputs["a-0-0"] == "wrapped\na b\n"
    cluster.run(*words, "b", "--command", "--", "echo", "a  b")
    assert cluster.wait("b").outputs["b-0-0"] == "a  b\n"
    cluster.run(*words, "c", "--command", "--", "nothing")
    job = cluster.wait("c")
    assert job.exit_codes == {"c-0-0": 128}
    assert 'exec: "nothing": executable file not found in $PATH' in job.output
    cluster.run(*words, "d", "--command", "--", "python3", "-mtorch")
    assert "No module named torch" in cluster.wait("d").output


def test_old_clients_hand_words_to_a_shell(new):
    cluster = new(generation="v1", mangle_quotes=True)
    words = ["runai", "submit", "-p", "lab-me", "-i", IMAGE, "--backoff-limit", "0", "--name"]
    cluster.run(*words, "a", "--command", "--", "echo", "a  b", "$HOSTNAME", "/a-b_c.d:e=@%+,", "c;d")
    assert cluster.wait("a").outputs["a-0-0"] == "a b /a-b_c.d:e=@%+, c\n"
    cluster.run(*words, "b", "--command", "--", "bash", "-c", '"echo a;  echo b"')
    assert cluster.wait("b").outputs["b-0-0"] == "a\nb\n"


def test_infiniband(new):
    gids = [("fe80::", "IB/RoCE v1"), ("0000:0000:0000:0000:0000:ffff:ac12:8003", "RoCE v2"), ("other", None)]
    trees = [{"mlx5_bond_0": {1: {"gids": gids[rank:]}}} for rank in (0, 1)]
    cluster = new(infiniband=trees)
    submit(cluster, "cd /sys/class/infiniband/mlx5_bond_0/ports/1; cat link_layer gids/0 gid_attrs/types/*")
    job = cluster.wait("demo")
    assert job.outputs["demo-master-0"].splitlines()[:4] == ["Ethernet", "fe80::", "IB/RoCE v1", "RoCE v2"]
    assert job.outputs["demo-worker-0"].splitlines()[:3] == ["Ethernet", gids[1][0], "RoCE v2"]
    assert job.state == "Failed"  # the last one cannot be read


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind(new, tmp_path, number):
    seconds = str(100000 + os.getpid() + number)
    words = [sys.executable, "-c", STARTER, str(STAND_INS.parent), str(tmp_path / "c"), seconds]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        assert alive(seconds)
        process.send_signal(number)
    wait_for(lambda: not alive(seconds), "that no process is left")


def alive(seconds: str) -> bool:
    """Whether a process `sleep SECONDS` runs on this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
        except OSError:
            pass
    return False
