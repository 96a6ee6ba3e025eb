"""A real Slurm cluster on one machine, for tests: several nodes, fake GPUs, up in half a second, gone without a trace.

    with Cluster(tmp_path / "cluster", nodes=4, gpus=2) as cluster:
        job = cluster.submit("--nodes=2", "job.sh", cwd=project)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output

Each node is a set of namespaces (network, host name, mounts, IPC, processes) around one slurmd, and so is the login
node, which also runs munged and slurmctld. As on a real cluster, host names resolve to addresses that are not loopback,
/dev/shm and the directory `node_local` belong to one node, and every other file is shared. The machine's own network,
mounts and host name are never touched. It needs root, or user namespaces for an ordinary user. Where neither is allowed
all daemons run side by side on loopback, and `Cluster.no_namespaces` says why.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_daemons import LOGIN_SCRIPT, MUNGED, NODE_SCRIPT, PARTITION, PRIVATE_SCRIPT, SLURM_CONF
from waiting import PATIENCE, wait_for

# A GPU needs a character device of its own, or Slurm leaves CUDA_VISIBLE_DEVICES empty. These exist in any container.
DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "kmsg")]
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
GRACE = 60  # seconds for a command that is told to end; one that ignores SIGTERM is then killed
NAMESPACES = ["--net", "--uts", "--mount", "--ipc", "--pid"]
UNSHARE = [*NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
DAEMONS = re.compile(r"(\S*/)?slurmd |slurmstepd: |bash \S*/etc/node\.sh |sleep infinity ")
FINISHED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}


class ClusterError(RuntimeError):
    """The cluster did not start; the message has the ends of the daemons' logs."""


@dataclass
class Nodes:
    """Nodes of one kind. `features` as in slurm.conf, `more` for whatever else is to stand in their lines there."""

    count: int
    cpus: int = 8
    gpus: int = 2
    gpu_type: str = ""
    memory_mb: int = 64000
    features: str = ""
    more: str = ""

    @property
    def conf(self) -> str:
        """Their hardware in slurm.conf."""
        gpus = f" Gres=gpu:{self.gpu_type and self.gpu_type + ':'}{self.gpus}" if self.gpus else ""
        features = f" Feature={self.features}" if self.features else ""
        cores = f"CoresPerSocket={self.cpus} ThreadsPerCore=1 CPUs={self.cpus}"
        return f"SocketsPerBoard=1 {cores} RealMemory={self.memory_mb}{gpus}{features} {self.more}".strip()

    @property
    def gres(self) -> str:
        """Their GPUs in gres.conf; '' without any."""
        kind = f" Type={self.gpu_type}" if self.gpu_type else ""
        return f"Name=gpu{kind} File={','.join(DEVICES[: self.gpus])}" if self.gpus else ""


@dataclass
class Job:
    """A finished job."""

    id: int
    state: str
    exit_code: int
    signal: int
    output: str
    nodes: list[str]


class Cluster:
    """A Slurm cluster with its files in `directory`, from `start()` to `stop()`, or as a context manager.

    `user`: run everything as this user (only root can). `root`: the root directory of a Debian whose Slurm is to be
    used instead of this machine's; /tmp, /home, /root and the directories in `bind` are the same inside.
    `nodes`: how many, or several kinds: node1, node2… in this order. `partitions`: their lines in slurm.conf.
    `accounts`: what sacctmgr is told, one command a line; accounts and QoS are then enforced (see accounting.py).
    `extra_conf`: lines for slurm.conf, in the place of those in slurm_daemons.py. `disk_mb`: the size of a file
    system that all nodes share, the directory `disk`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int | list[Nodes] = 4,
        cpus: int = 8,
        gpus: int = 2,
        memory_mb: int = 64000,
        root: Path | None = None,
        bind: list[Path] | None = None,
        namespaces: bool | None = None,
        user: str | None = None,
        partitions: tuple[str, ...] = (PARTITION,),
        accounts: str = "",
        extra_conf: str = "",
        disk_mb: int | None = None,
    ):
        self.directory = Path(directory).resolve()
        if re.search(r"[\s,#%]", str(self.directory)):
            raise ValueError(f"{self.directory}: Slurm cannot have spaces or any of ,#% in the paths of its own files")
        kinds = [Nodes(nodes, cpus, gpus, memory_mb=memory_mb)] if isinstance(nodes, int) else nodes
        if max(kind.gpus for kind in kinds) > len(DEVICES):
            raise ValueError(f"{kinds}: there are only {len(DEVICES)} devices to pass off as GPUs")
        self.user = user or pwd.getpwuid(os.geteuid()).pw_name
        self._drop = []
        if user and os.geteuid() == 0:
            entry = pwd.getpwnam(user)
            self._drop = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        self._user_namespace = ["--user"] if user or os.geteuid() != 0 else []
        self.no_namespaces = "switched off" if namespaces is False else self._try_namespaces()
        if self.no_namespaces and (namespaces or root):
            raise ClusterError(f"namespaces are not allowed here: {self.no_namespaces}")
        self.namespaces = not self.no_namespaces
        if accounts and not self.namespaces:
            raise ClusterError(f"accounts take namespaces: {self.no_namespaces}")
        if not self.namespaces and len(str(self.directory)) > 60:
            raise ValueError(f"{self.directory}: without namespaces Slurm's sockets need a shorter path")
        if not self.namespaces:  # here it needs this for the daemons to end with the test process
            self._drop = ["setpriv", "--pdeathsig=KILL", *self._drop[1:]]
        prefix = "node" if self.namespaces else "127.0.0.1"
        self.kinds = [kind for kind in kinds for _ in range(kind.count)]  # of every node
        self.nodes = [f"{prefix}{number}" for number in range(1, len(self.kinds) + 1)]
        self.partitions = partitions
        self.accounts = accounts
        self.root = Path(root).resolve() if root else None
        self.bind = [Path(path).absolute() for path in bind or []]
        self.extra_conf = extra_conf
        self.disk_mb = disk_mb
        self.disk = self.directory / "disk"
        self.home = self.directory / "home"
        self.node_local = self.directory / "node" / ("" if self.namespaces else "%n")
        self.version = ""
        self._processes: list[subprocess.Popen] = []

    # ---- starting and stopping

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Write the configuration, start the daemons, return when all nodes are idle."""
        atexit.register(self.stop)
        try:
            self._configure()
            if self.namespaces:
                self._start_namespaces()
            else:
                self._start_loopback()
            self.wait_for_nodes()
            self.version = self.run("slurmctld", "-V").stdout.split()[-1]
        except BaseException as error:
            self.stop()
            if isinstance(error, Exception):
                raise ClusterError(f"{error}\n{self.logs()}") from error
            raise

    def stop(self) -> None:
        """End every process of the cluster. Log files and job output stay."""
        atexit.unregister(self.stop)
        for process in reversed(self._processes):
            if process.stdin:
                process.stdin.close()  # process 1 of the login node ends, and with it all others
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
            process.kill()
            process.wait()
        if self._processes and not self.namespaces:
            while left := self.processes():  # job steps leave slurmd's process tree
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        self._processes = []

    def processes(self) -> list[int]:
        """Processes of this cluster, daemons and jobs, as far as they kept the environment variable SLURM_CONF."""
        mark = f"SLURM_CONF={self.directory}/etc/slurm.conf".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def crash(self, node: str) -> None:
        """Cut a node's power: all its processes are gone at once. Slurm notices some seconds later."""
        self._tell("crash", node)

    def boot(self, node: str) -> None:
        """Start a crashed node again."""
        self._tell("boot", node)

    def cut(self, node: str) -> None:
        """Pull a node's network cable: what is sent to it, or by it, is lost."""
        self._tell("cut", node)

    def mend(self, node: str) -> None:
        """Plug the cable in again."""
        self._tell("mend", node)

    def proc(self, node: str) -> Path:
        """The folder in /proc of the first process of a node, or of "login": net/tcp, root/dev/shm… are that node's."""
        start = f"bash\0{self.directory}/etc/{'login' if node == 'login' else 'node'}.sh\0".encode()
        start += b"" if node == "login" else f"{node}\0".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "cmdline").read_bytes().startswith(start):
                    return path
        raise ClusterError(f"{node} is not running")

    def running(self, node: str, daemons: bool = False) -> dict[int, str]:
        """Command lines of a node's processes, by the numbers that they have on this machine."""
        space, found = os.readlink(self.proc(node) / "ns/pid"), {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns/pid") == space:
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line and (daemons or not DAEMONS.match(line)):  # one that has ended has none
                        found[int(path.name)] = line
        return dict(sorted(found.items()))

    def _tell(self, verb: str, node: str) -> None:
        if not self.namespaces:
            raise ClusterError(f"{verb}: only with namespaces")
        self._processes[0].stdin.write(f"{verb} {node}\n")
        self._processes[0].stdin.flush()

    def logs(self, lines: int = 15) -> str:
        """The end of every daemon's log."""
        parts = []
        for path in sorted((self.directory / "log").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts += [f"--- {path}", *tail]
        return "\n".join(parts)

    def wait_for_nodes(self) -> None:
        """Return when every node is idle."""

        def idle() -> bool:
            for process in self._processes:
                if process.poll() is not None:
                    raise ClusterError(f"{process.args[len(self._drop)]} ended with exit code {process.returncode}")
            if self.namespaces and not self._ready.exists():
                return False
            return set(self.run("sinfo", "-hN", "-o%T", check=False).stdout.split()) == {"idle"}

        wait_for(idle, "that all nodes are idle", pause=0.03)

    def _try_namespaces(self) -> str:
        """The reason why namespaces cannot be had, or nothing."""
        for tool in ("unshare", "nsenter", "ip", "hostname"):
            if not shutil.which(tool, path=PATH):
                return f"{tool} is not installed"
        probe = (
            "ip link add br0 type bridge && ip link add veth1 type veth peer name eth0 && mount -t tmpfs tmpfs /dev/shm"
            " && exec unshare --mount --pid --fork --mount-proc true"
        )
        done = subprocess.run(
            [*self._drop, *self._unshare(), "sh", "-c", probe],
            env={"PATH": PATH},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode == 0:
            return ""
        return done.stderr.strip() or f"exit code {done.returncode}"

    def _unshare(self) -> list[str]:
        # Not --map-root-user: as a pretended root slurmd tries setgroups, which is not allowed.
        return ["unshare", *(["--user", "--map-current-user", "--keep-caps"] if self._user_namespace else []), *UNSHARE]

    def _configure(self) -> None:
        d = self.directory
        for name in ("disk", "etc", "home", "log", "node", "root", "run", "spool", "state"):
            (d / name).mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        addresses = [f"10.77.0.{10 + i}" if self.namespaces else "127.0.0.1" for i in range(1, len(self.nodes) + 1)]
        ports = free_ports(len(self.nodes) + 1) if not self.namespaces else [6817, *[6818] * len(self.nodes)]
        here = os.uname().nodename.split(".")[0]
        conf = SLURM_CONF.format(
            d=d,
            login="login" if self.namespaces else here,
            login_address="10.77.0.1" if self.namespaces else "127.0.0.1",
            port=ports[0],
            user=self.user,
            run="/run" if self.namespaces else d / "run",
            spool="/run/slurmd" if self.namespaces else d / "spool/%n",
            node_local=self.node_local,
        )
        if not self.namespaces:
            conf += "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"  # listen on loopback only
        if self.accounts:
            conf = self._configure_accounting(conf)
        for name in re.findall(r"(?m)^\s*(\w+)=", self.extra_conf):
            conf = re.sub(rf"(?m)^{name}=.*\n", "", conf)
        conf += "\n".join([*self.partitions, self.extra_conf.strip()]) + "\n"
        gres = ""
        for name, kind, address, port in zip(self.nodes, self.kinds, addresses, ports[1:]):
            host = name if self.namespaces else here
            conf += f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} {kind.conf} State=UNKNOWN\n"
            gres += f"NodeName={name} {kind.gres}\n" if kind.gres else ""
            if not self.namespaces:
                (d / "node" / name).mkdir(exist_ok=True)
        for name, script in {"login": LOGIN_SCRIPT, "node": NODE_SCRIPT, "private": PRIVATE_SCRIPT}.items():
            (d / f"etc/{name}.sh").write_text(script)
        (d / "etc/slurm.conf").write_text(conf)
        (d / "etc/gres.conf").write_text(gres)
        # No control groups are used, but slurmd looks for some; this plugin alone starts without any.
        (d / "etc/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (d / "etc/munge.key").write_bytes(os.urandom(1024))
        (d / "etc/munge.key").chmod(0o600)
        hosts = ["127.0.0.1 localhost", "10.77.0.1 login", *map(" ".join, zip(addresses, self.nodes))]
        (d / "etc/hosts").write_text("\n".join(hosts) + "\n")
        switch = Path("/etc/nsswitch.conf").read_text() if Path("/etc/nsswitch.conf").exists() else ""
        # no DNS: there is no network to ask, and every reverse look-up would wait for it
        (d / "etc/nsswitch.conf").write_text(re.sub(r"(?m)^hosts:.*\n", "", switch) + "hosts: files\n")
        if self._drop:
            for path in [d, *d.rglob("*")]:
                shutil.chown(path, self.user)
            if subprocess.run([*self._drop, "test", "-w", d], check=False).returncode:
                raise ClusterError(f"{self.user} has no access to {d}")

    def _configure_accounting(self, conf: str) -> str:
        """Write what slurmdbd needs; returns slurm.conf with it."""
        import accounting  # which imports this file

        if reason := accounting.missing():
            raise ClusterError(reason)
        etc = self.directory / "etc"
        (etc / "accounting.sh").write_text(accounting.SHELL)
        (etc / "accounts").write_text(self.accounts)
        (etc / "slurmdbd.conf").unlink(missing_ok=True)
        where = {"host": "10.77.0.1", "port": 6819, "munge": "/run/munge.sock"}
        accounting.write_slurmdbd_conf(etc, **where, user=self.user, log=self.directory / "log/slurmdbd.log")
        return re.sub(r"(?m)^(AccountingStorageType|JobAcctGatherType)=.*\n", "", conf) + accounting.slurm_conf(**where)

    @property
    def _ready(self) -> Path:
        return self.directory / "run/ready"

    @property
    def _environment(self) -> dict[str, str]:
        conf = f"{self.directory}/etc/slurm.conf"
        # Open MPI 5 does not start where a killed process of its own, with the same number, has left a folder in /tmp.
        # The nodes here share /tmp, and number processes from 1. Each node's /dev/shm is new when it boots.
        folder = {"PRTE_MCA_prte_tmpdir_base": "/dev/shm"}
        return {
            "PATH": PATH,
            "HOME": str(self.home),
            "USER": self.user,
            "LANG": "C.UTF-8",
            "SLURM_CONF": conf,
            **folder,
        }

    def _spawn(self, name: str, *command: str, **environment: str) -> None:
        with open(self.directory / "log" / f"{name}.start.log", "w") as log:
            process = subprocess.Popen(
                [*self._drop, *command],
                cwd=self.directory,
                env={**self._environment, **environment},
                stdin=subprocess.PIPE if self.namespaces else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the tests, not for the daemons
            )
        self._processes.append(process)

    def _start_namespaces(self) -> None:
        shared = [Path(path) for path in ("/dev", "/proc", "/sys", "/home", "/root", "/tmp")]
        for path in sorted([*self.bind, self.directory]):
            if not any(path.is_relative_to(other) for other in shared):
                shared.append(path)
        environment = {
            "D": str(self.directory),
            "ROOT": str(self.root or ""),
            "NODES": " ".join(self.nodes),
            "DISK_MB": str(self.disk_mb or ""),
            "UNSHARE": " ".join(UNSHARE),
            "MUNGED": MUNGED.format(d=self.directory, run="/run"),
        }
        script = ["bash", f"{self.directory}/etc/login.sh", *map(str, shared)]
        self._spawn("login", *self._unshare(), *script, **environment)

    def _start_loopback(self) -> None:
        d = self.directory
        self._spawn("munged", "munged", *MUNGED.format(d=d, run=d / "run").split())
        self._wait_until((d / "run/munge.sock").exists)
        self._spawn("slurmctld", "slurmctld", "-c", "-D")
        port = int(re.search(r"SlurmctldPort=(\d+)", (d / "etc/slurm.conf").read_text())[1])
        self._wait_until(lambda: listening(port))
        for name in self.nodes:
            self._spawn(f"slurmd.{name}", "slurmd", "-D", "-N", name)

    def _wait_until(self, condition) -> None:
        def met() -> bool:
            if self._processes[-1].poll() is not None:
                raise ClusterError(f"{self._processes[-1].args[len(self._drop)]} did not start")
            return condition()

        wait_for(met, f"that {self._processes[-1].args[len(self._drop)]} starts", pause=0.01)

    # ---- using it

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = PATIENCE,
        check: bool = True,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess:
        """Run a command on the login node, in a clean environment plus `env`. `stdin` is text.

        Raises ClusterError where the command fails, unless check=False, and TimeoutError where it takes too long.
        """
        shown = " ".join(map(str, command))
        process = subprocess.Popen(
            self._on_login_node(command, cwd or self.home),
            env={**self._environment, **(env or {})},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException as error:  # also Ctrl-C
            out, err = self._end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"{shown}: not done after {timeout} s\n{out}{err}") from None
            raise
        if check and process.returncode:
            raise ClusterError(f"{shown}: exit code {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def shell(self, command: Sequence[str | Path] = ("bash", "--norc"), cwd: Path | None = None) -> int:
        """Open a shell on the login node, in the terminal of this process; return its exit code."""
        shown = {"PS1": r"[login \W]\$ ", "TERM": os.environ.get("TERM", "dumb")}
        words = self._on_login_node(command, cwd or self.home)
        return subprocess.run(words, env={**self._environment, **shown}, check=False).returncode

    def _on_login_node(self, command: Sequence[str | Path], cwd: Path) -> list[str]:
        """Return the command that runs a command on the login node."""
        enter = self._drop
        if self.namespaces:
            pid = self._processes[0].pid
            enter = [*self._drop, "nsenter", f"--target={pid}"]
            enter += ["--user", "--preserve-credentials"] if self._user_namespace else []
            enter += [*NAMESPACES[:-1], f"--pid=/proc/{pid}/ns/pid_for_children"]
        return [*enter, "env", f"--chdir={cwd}", f"PWD={cwd}", *map(str, command)]

    @staticmethod
    def _end(process: subprocess.Popen) -> tuple[str, str]:
        # SIGTERM lets srun end its job step, so that the nodes are free again; a command that ignores it is killed.
        for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, PATIENCE)):
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=patience)
        return "", ""

    def sbatch(self, *args: str | Path, **options) -> int:
        """Submit a job and return its number. The options are those of `run`."""
        return int(self.run("sbatch", "--parsable", *args, **options).stdout.split(";")[0])

    def wait(self, job: int, timeout: float = PATIENCE) -> Job:
        """Wait for the end of a job. After `timeout` seconds it is cancelled, and TimeoutError shows its processes."""
        end = time.monotonic() + timeout
        state, pause = "", 0.05
        while state not in FINISHED and time.monotonic() < end:
            if state:  # each look takes 5 ms of a core
                time.sleep(pause := min(0.3, 1.2 * pause))
            shown = self.run("scontrol", "show", "job", str(job)).stdout  # of an array's number, all of its jobs
            shown = next(record for record in shown.split("\n\n") if record.startswith(f"JobId={job} "))
            facts = dict(re.findall(r"\b(JobState|ExitCode)=(\S+)", shown))
            facts.update(re.findall(r"^ *(NodeList|StdOut)=(.*)$", shown, re.M))
            state = facts["JobState"]
        path = Path(facts.get("StdOut", ""))
        output = path.read_text(errors="replace") if path.is_file() else ""
        if state not in FINISHED:
            processes = self.run("ps", "-eww", "--forest", "-o", "pid,stat,etime,wchan:20,args", check=False).stdout
            self.run("scancel", str(job))
            raise TimeoutError(f"job {job} is {state} after {timeout} s\n{shown}\n{output}\n{processes}")
        code, number = map(int, facts["ExitCode"].split(":"))
        nodes = facts.get("NodeList", "")
        names = [] if nodes in ("", "(null)") else self.run("scontrol", "show", "hostnames", nodes).stdout.split()
        return Job(job, state, code, number, output, names)

    def submit(self, *args: str | Path, timeout: float = PATIENCE, **options) -> Job:
        """`sbatch`, then `wait`."""
        return self.wait(self.sbatch(*args, **options), timeout)


def reachable(path: Path, user: str) -> bool:
    """Whether `user` can read `path`; only root may ask."""
    entry = pwd.getpwnam(user)
    words = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "test", "-r", str(path)]
    return subprocess.run(words, check=False).returncode == 0


def free_ports(count: int) -> list[int]:
    """Port numbers that nobody listens on at the moment.

    They lie below those of outgoing connections: before a daemon listens there, one of these may take the port.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("", random.randrange(5000, max(below, 10000))))
                ports.append(one.getsockname()[1])
    return ports


def listening(port: int) -> bool:
    """Whether somebody listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    """Start a cluster, open a shell on its login node, and end the cluster with the shell."""
    parser = argparse.ArgumentParser(
        prog="python3 -m slurm_cluster", description="A Slurm cluster on this machine, until the shell ends."
    )
    parser.add_argument("--nodes", type=int, default=2, help="how many nodes (2)")
    parser.add_argument("--cpus", type=int, default=8, help="cores of a node, as Slurm counts them (8)")
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of a node, of which none is real (2)")
    parser.add_argument("command", nargs="*", help="what to run on the login node in place of a shell; after --")
    args = parser.parse_args()
    if args.nodes < 1 or args.cpus < 1:
        parser.error(f"--nodes {args.nodes} --cpus {args.cpus}: expected at least 1 of each")
    if not 0 <= args.gpus <= len(DEVICES):
        parser.error(f"--gpus {args.gpus}: expected a number from 0 to {len(DEVICES)}")
    if not shutil.which("slurmctld", path=PATH):
        sys.exit("Slurm is not installed: apt-get install slurm-wlm munge iproute2 openmpi-bin")
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        try:
            cluster = Cluster(Path(folder, "c"), nodes=args.nodes, cpus=args.cpus, gpus=args.gpus)
            cluster.start()
        except (ClusterError, ValueError) as error:
            sys.exit(f"no cluster: {error}")
        try:
            if not args.command:
                print(
                    f"Slurm {cluster.version}: {', '.join(cluster.nodes)} are idle. exit ends the cluster.", flush=True
                )
            code = cluster.shell(args.command or ("bash", "--norc"), Path.cwd())
        finally:
            cluster.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
