"""For a site's facts a real Slurm controller that is declared like that site, to ask what it thinks of a job.

    with Controllers(tmp_path) as controllers:
        controllers.announce("mn5", site_facts("mn5"))
        done = controllers["mn5"].test_only("--qos=acc_debug", "--nodes=9", script)

There are no nodes behind it, so nothing runs: `sbatch --test-only` says whether a job could. What a site enforces, this
controller enforces by the same means: limits of partitions, of a QoS (slurmdbd), of a partition's own QoS, and by
job_submit.lua what Slurm has no limit for: a walltime that depends on the number of nodes, an answer that is required.
One munged and one MariaDB serve all controllers. slurmdbd is one for each, because the name of a QoS belongs to a whole
database and every other site has a QoS called debug.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import accounting
from slurm_cluster import PATH, free_ports
from slurm_daemons import MUNGED
from waiting import PATIENCE

from cluster_options.checks import minutes_of

# Which this machine's Slurm may be too old for: tests/slurm/test_newest_slurm.py has them.
NEWER_OPTIONS = re.compile(r"--(?:segment=\d+|requeue=expedite)")
HOST = os.uname().nodename.split(".")[0]
ACCOUNT = "acc1"  # exists where the site's file names no other
# Where a site does not say how much there is: plenty.
NODES, CORES, GPUS, MEMORY = 64, 64, 8, "2000000M"

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={host}({address})
SlurmctldPort={port}
{listen}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
# no slurmd will ever report for duty: nodes of a cloud may be missing for ever
SlurmdTimeout=0
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
JobSubmitPlugins=lua
# refuse at submission what can never run
EnforcePartLimits=ALL
MailProg=/bin/true
"""

# What Slurm itself has no limit for. Sites do it with the same plug-in.
JOB_SUBMIT = """\
local required = {required}
local default = {default}
local tiers = {tiers}  -- by question, by name: {{nodes, minutes}}, the smallest first

function slurm_job_submit(job, partitions, user)
    for _, question in ipairs(required) do
        if (job[question] or "") == "" then
            slurm.log_user(question .. " is required")
            return slurm.ERROR
        end
    end
    for question, queues in pairs(tiers) do
        for _, tier in ipairs(queues[job[question] or default[question]] or {{}}) do
            if job.min_nodes <= tier[1] then
                if job.time_limit > tier[2] then
                    slurm.log_user("up to " .. tier[1] .. " nodes take at most " .. tier[2] .. " minutes")
                    return slurm.ERROR
                end
                break
            end
        end
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end
"""

# Controllers that start while a site's tests run. All at once would keep two cores busy for minutes.
AHEAD = 3
# Both scripts end, and with them all that they started, when the tests do, in whatever way.
BASE_SCRIPT = """
set -eu
source accounting.sh
setpriv --pdeathsig=KILL munged $MUNGED &
start_mariadb "$PWD/db" "$PWD/mysql.sock"
until [[ -S munge.sock ]]; do sleep 0.01; done
: >ready
wait
"""
SITE_SCRIPT = """
set -eu
source ../accounting.sh
until [[ -e ../ready ]]; do sleep 0.05; done
start_slurmdbd "$PWD/../mysql.sock" "$ADDRESS" "$SLURMDBD_PORT"
load_accounts accounts
setpriv --pdeathsig=KILL slurmctld -c -D &
pid=$!
until (: <"/dev/tcp/$ADDRESS/$SLURMCTLD_PORT") 2>/dev/null; do kill -0 $pid; sleep 0.1; done
: >ready
wait
"""


def missing() -> str:
    """Return why there can be no controllers here; '' if nothing is in their way."""
    if not shutil.which("slurmctld", path=PATH):
        return "Slurm is not installed: apt-get install slurm-wlm munge"
    return accounting.missing()


class Controllers:
    """munged, MariaDB and the controllers in `directory`, whose path must be short; a context manager."""

    def __init__(self, directory: Path):
        self.directory = Path(directory).resolve()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        try:
            self.address, self.listen = socket.gethostbyname(HOST), accounting.LISTEN
        except OSError:
            self.address, self.listen = "127.0.0.1", ""
        self._processes: list[subprocess.Popen] = []
        self._facts: dict[str, dict] = {}
        self._controllers: dict[str, Controller] = {}

    def __enter__(self) -> Controllers:
        d = self.directory
        d.mkdir(parents=True, exist_ok=True)
        for name in ("etc", "run", "log"):
            (d / name).mkdir()
        (d / "etc/munge.key").write_bytes(os.urandom(1024))
        (d / "etc/munge.key").chmod(0o600)
        (d / "accounting.sh").write_text(accounting.SHELL)
        self.spawn(d, BASE_SCRIPT, MUNGED=MUNGED.format(d=d, run=d))
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # what it started dies with it
            process.wait()

    def spawn(self, folder: Path, script: str, **environment: str) -> subprocess.Popen:
        """Run a script in a folder until the end of the tests; what it says is in script.log."""
        with open(folder / "script.log", "w") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "bash", "-c", script],
                cwd=folder,
                env={"PATH": PATH, "HOME": str(self.directory), "USER": self.user, "LANG": "C.UTF-8", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, not for the daemons
            )
        self._processes.append(process)
        return process

    def announce(self, name: str, facts: dict) -> None:
        """Name a site that will be asked for, in the order of the tests."""
        self._facts[name] = facts

    def __getitem__(self, name: str) -> Controller:
        """Return a site's controller as soon as it answers; those announced after it start meanwhile."""
        names = list(self._facts)
        first = names.index(name)
        for coming in names[first : first + 1 + AHEAD]:
            if coming not in self._controllers:
                self._controllers[coming] = Controller(self, f"site{names.index(coming)}", self._facts[coming])
        self._controllers[name].wait()
        return self._controllers[name]


class Controller:
    """A site's slurmctld and slurmdbd. `account` is one that exists."""

    def __init__(self, base: Controllers, cluster: str, facts: dict):
        self.folder = base.directory / cluster
        self.folder.mkdir()
        self.account = existing_account(facts)
        self._environment = {"PATH": PATH, "HOME": str(self.folder), "USER": base.user, "LANG": "C.UTF-8"}
        self._environment["SLURM_CONF"] = f"{self.folder}/slurm.conf"
        ports = free_ports(2)
        munge = base.directory / "munge.sock"
        conf = SLURM_CONF.format(
            cluster=cluster,
            host=HOST,
            address=base.address,
            port=ports[0],
            user=base.user,
            munge=munge,
            folder=self.folder,
            listen=base.listen,
        )
        conf += accounting.slurm_conf(base.address, ports[1], munge) + declaration(facts)
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "job_submit.lua").write_text(job_submit(facts))
        commands = accounting.accounts(cluster, {self.account: [base.user]}, qos(facts), default_queue(facts, "qos"))
        (self.folder / "accounts").write_text(commands)
        accounting.write_slurmdbd_conf(
            self.folder,
            host=base.address,
            port=ports[1],
            munge=munge,
            user=base.user,
            log=self.folder / "slurmdbd.log",
            database=cluster,
            listen=base.listen,
        )
        environment = {"ADDRESS": base.address, "SLURMCTLD_PORT": str(ports[0]), "SLURMDBD_PORT": str(ports[1])}
        self._process = base.spawn(self.folder, SITE_SCRIPT, **self._environment, **environment)

    def wait(self) -> None:
        """Return when it answers."""
        end = time.monotonic() + PATIENCE
        while not (self.folder / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the controller did not start\n{self._logs()}")
            time.sleep(0.02)

    def _logs(self) -> str:
        """Return the ends of the daemons' logs."""
        paths = [*self.folder.glob("*.log"), *self.folder.parent.glob("*.log")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def test_only(self, *words: str | Path) -> str:
        """Return '' if sbatch with these options (and script) could run here, else what Slurm says against it."""
        words = [str(word) for word in words if not NEWER_OPTIONS.match(str(word))]
        if words[-1].startswith("/"):
            script = self.folder / "job.sh"
            script.write_text(re.sub(rf"(?m)^#SBATCH {NEWER_OPTIONS.pattern}.*\n", "", Path(words[-1]).read_text()))
            words[-1] = str(script)
        done = subprocess.run(
            ["sbatch", "--test-only", *words],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode == 0 and not re.search(r"Job \d+ to start at", done.stderr):
            raise RuntimeError(f"neither accepted nor refused: {done.stderr}")
        if re.search(r"Unable to contact|Zero Bytes were transmitted", done.stderr):
            raise RuntimeError(f"the controller does not answer: {done.stderr}\n{self._logs()}")
        return done.stderr if done.returncode else ""


# ---- a site's facts in Slurm's own words -----------------------------------------------------------------------------


def existing_account(facts: dict) -> str:
    """Return the name of the one account that there is."""
    return facts["account"].get("example", ACCOUNT)


def default_queue(facts: dict, question: str) -> str:
    """Return the partition or QoS of jobs that name none: the one of which the site's file says that it is the default.

    Else the partition that the file takes for a first job, and the QoS that is there in every Slurm.
    """
    queues = facts["partitions" if question == "partition" else "qos"]
    other = facts["defaults"].get("partition", "") if question == "partition" else "normal"
    return next((name for name, limits in queues.items() if limits["default"]), other)


def declaration(facts: dict) -> str:
    """Return nodes and partitions for slurm.conf."""
    options = {name: value for name, _, value in (d["option"].partition("=") for d in facts["directives"])}
    features = sorted(set(re.findall(r"[A-Za-z_][\w.:-]*", options.get("--constraint", ""))))
    licenses = sorted(set(re.findall(r"[A-Za-z_][\w.-]*", options.get("--licenses", ""))))
    nomultithread = options.get("--hint") == "nomultithread" or options.get("--threads-per-core") == "1"
    partitions = facts["partitions"] or {"all": {}}
    default = default_queue(facts, "partition") or next(iter(partitions))
    lines = [f"Licenses={','.join(f'{name}:1000' for name in licenses)}"] if licenses else []
    groups = {}  # what the nodes have, and the name of those that have it
    for limits in partitions.values():
        node = {**facts["node"], **limits.get("node", {})}
        hardware = _hardware(node, features, nomultithread)
        if hardware not in groups:
            groups[hardware] = f"n{len(groups)}x[1-{_how_many(facts)}]"
            lines.append(f"NodeName={groups[hardware]} {hardware} State=CLOUD")
    restricted = any(limits["partitions"] for limits in facts["qos"].values())
    for name, limits in partitions.items():
        node = {**facts["node"], **limits.get("node", {})}
        words = [f"PartitionName={name}", f"Nodes={groups[_hardware(node, features, nomultithread)]}", "State=UP"]
        words.append(f"Default={'YES' if name == default else 'NO'}")
        words.append(f"MaxTime={limits.get('max_time') or 'INFINITE'}")
        words.append(f"OverSubscribe={'EXCLUSIVE' if node['whole'] else 'NO'}")
        words += [f"MaxNodes={limits['max_nodes']}"] if limits.get("max_nodes") else []
        words += [f"MinNodes={limits['min_nodes']}"] if limits.get("min_nodes") else []
        words += [f"QOS={_own_qos(name)}"] if limits and _tres(limits, of_a_partition=True) else []
        if restricted:
            allowed = [qos for qos, its in facts["qos"].items() if name in (its["partitions"] or [name])]
            words.append(f"AllowQos={','.join(dict.fromkeys(['normal', *allowed]))}")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _hardware(node: dict, features: list[str], nomultithread: bool) -> str:
    # Where jobs ask for cores without their second threads, a node has those, too, and they are of no use.
    cores, threads = node["cores"] or CORES, 2 if nomultithread else 1
    memory = node["memory"] if node["memory"] not in ("", "0") else MEMORY
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)B?", memory).groups()
    megabytes = int(number) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[unit]
    words = [f"Sockets=1 CoresPerSocket={cores} ThreadsPerCore={threads} CPUs={cores * threads}"]
    words.append(f"RealMemory={int(megabytes)}")
    gpus = GPUS if node["gpus"] is None else node["gpus"]
    kind = node["gpu_option"].partition("=")[2].removeprefix("gpu:")  # "" or TYPE:, of --gres or --gpus-per-node
    words += [f"Gres=gpu:{kind}{gpus}"] if gpus and node["gpu_option"] else []
    words += [f"Feature={','.join(features)}"] if features else []
    return " ".join(words)


def _how_many(facts: dict) -> int:
    """Return a number of nodes that no limit comes near to."""
    counts = [NODES]
    for limits in [*facts["partitions"].values(), *facts["qos"].values()]:
        counts += [limits["max_nodes"], limits["min_nodes"], limits["max_gpus"]]
        counts += [tier["max_nodes"] for tier in limits["tiers"]]
    return max(count or 0 for count in counts) + 1


def _own_qos(partition: str) -> str:
    return f"of_{partition}"


def _tres(limits: dict, of_a_partition: bool = False) -> str:
    """Return the limits of a QoS in the words of sacctmgr; for a partition those that slurm.conf has no words for."""
    nodes = None if of_a_partition else limits["max_nodes"]
    most = [f"node={nodes}"] if nodes else []
    most += [f"gres/gpu={limits['max_gpus']}"] if limits["max_gpus"] else []
    words = [f"MaxTRESPerJob={','.join(most)}"] if most else []
    words += [f"MaxTRESMinsPerJob=node={limits['max_node_minutes']}"] if limits["max_node_minutes"] else []
    if not of_a_partition:
        words += [f"MinTRESPerJob=node={limits['min_nodes']}"] if limits["min_nodes"] else []
        words += [f"MaxWall={limits['max_time']}"] if limits["max_time"] else []
    return " ".join(words)


def qos(facts: dict) -> dict[str, str]:
    """Return every QoS with its limits in the words of sacctmgr, those of partitions included."""
    found = {name: _tres(limits) for name, limits in facts["qos"].items()}
    own = {_own_qos(name): _tres(limits, of_a_partition=True) for name, limits in facts["partitions"].items()}
    return {**found, **{name: limits for name, limits in own.items() if limits}}


def job_submit(facts: dict) -> str:
    """Return job_submit.lua."""
    tiers = {}
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        for name, limits in facts[section].items():
            steps = sorted((tier["max_nodes"], int(minutes_of(tier["max_time"]))) for tier in limits["tiers"])
            if steps:
                tiers.setdefault(question, {})[name] = [list(step) for step in steps]
    default = {question: default_queue(facts, question) for question in ("partition", "qos")}
    return JOB_SUBMIT.format(required=_lua(facts["required"]), default=_lua(default), tiers=_lua(tiers))


def _lua(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'["{key}"] = {_lua(entry)}' for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
