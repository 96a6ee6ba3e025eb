"""A Run:ai cluster on one machine, for tests: the client, the operator, and pods that are namespaces.

    volumes = {"lab-scratch": tmp_path / "volume"}
    images = {"registry.example.org/lab/torch:1": Image()}
    with RunaiCluster(tmp_path / "cluster", volumes=volumes, images=images) as cluster:
        cluster.run("bash", "runai/submit_multinode.sh", cwd=project)
        job = cluster.wait("demo")
        assert job.state == "Succeeded", job.output

It stands in for Run:ai, the training operator and Kubernetes. The client is stand_ins/stand_in_runai.py: it checks the
command line and leaves the workload in the cluster's folder, where the operator, another process, finds it.
Each pod has its own network (eth0 on a bridge that belongs to the cluster), host name, mounts, IPC and processes: its
command is process 1. It sees this machine's programs, the volumes, and of the submitting side nothing: neither files
nor environment. Names resolve through /etc/hosts, which the operator edits as services appear. It takes root.

What the operators set, by version (`operator`), and when a job is over: kubeflow/trainer pkg/controller.v1/pytorch
(1.6, 1.9: tags v1.4 to v1.9) and pkg/runtime/framework/plugins/torch (trainjob: v2.3.0). Run:ai's own variables:
run-ai/docs best-practices/env-variables.md (v1) and the 2.25 page workloads.md (v2). Assumptions are the names of the
pods of one-pod workloads (NAME-0-0), OnFailure as the default of the restart policies, RUNAI_NUM_OF_GPUS=0 without
GPUs, and that Run:ai's variables give way to the user's.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

STAND_INS = Path(__file__).resolve().parent / "stand_ins"
sys.path.insert(0, str(STAND_INS))

from stand_in import MS_BIND, MS_REC, Mount, Root, libc, mount  # noqa: E402
from waiting import PATIENCE  # noqa: E402

REPOSITORY = STAND_INS.parent.parent.parent
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE_BIN = "/opt/image/bin"  # python3, torchrun, nvidia-smi and the test's own programs
IMAGE_PATH = f"{IMAGE_BIN}:{SYSTEM_PATH}"
UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid"]
FORK = ["--fork", "--kill-child", "--mount-proc"]
FINISHED = ("Succeeded", "Failed", "Deleted")
# What containerd leaves to root by default, without CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER: on a volume behind
# NFS's root squash these do not help.
CAPABILITIES = "fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write,setfcap"
LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback"
TICK = 0.05


class ClusterError(RuntimeError):
    """The cluster did not start, or a command on the submitting side failed."""


@dataclass
class Image:
    """What an image brings along. The rest is this machine's: /usr etc.

    `python`: the interpreter behind python3; `torch=False`: one that has no packages at all. `programs`: name -> text
    of further scripts in /opt/image/bin. `folders`: of this machine, to be seen under the same path.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    python: str = sys.executable
    torch: bool = True
    programs: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str | Path] = ()
    working_dir: str = "/"

    def facts(self) -> dict:
        """For the operator."""
        facts = {**asdict(self), "entrypoint": list(self.entrypoint), "command": list(self.command)}
        python = f'exec "{self.python}" "$@"' if self.torch else f'exec "{os.path.realpath(self.python)}" -S "$@"'
        own = {name: f"#!/bin/sh\n{python}\n" for name in ("python", "python3")}
        if self.torch:
            own["torchrun"] = f'#!/bin/sh\nexec "{self.python}" -m torch.distributed.run "$@"\n'
        facts["programs"] = {**own, **self.programs}
        folders = {*map(str, self.folders), sys.base_prefix, sys.prefix}
        facts["folders"] = sorted(folder for folder in folders if folder != "/usr")
        return facts


@dataclass
class Job:
    """A workload. Pods are in the order of their ranks; exit codes are None of pods that did not end."""

    name: str
    state: str
    exit_codes: dict[str, int | None]
    outputs: dict[str, str]
    events: list[str]
    pods: list[dict]
    settled: bool  # nothing more will happen

    @property
    def output(self) -> str:
        """Of all pods, and the events: for assertions."""
        parts = [f"--- {pod} ({self.exit_codes[pod]})\n{text}" for pod, text in self.outputs.items()]
        return "\n".join([f"{self.name}: {self.state}", *parts, "--- events", *self.events])


class RunaiCluster:
    """A cluster with its files in `directory`, from `start()` to `stop()`, or as a context manager.

    `generation`: of the client, v1 or v2. `operator`: 1.6, 1.9 (PyTorchJob) or trainjob. `nproc_per_node`: what the
    job's specification has; None is the operators' `auto`. `elastic`: "min:max", with operator 1.9.
    `volumes`: claim -> folder. `images`: name -> Image. `hide`: folders of this machine that no pod sees, beside those
    of the submitting side that are known anyway. `late`: {"master" or "worker-N": seconds}, its pod and name appear
    later, or when the file of that name is there. `infiniband`: {device: {port: {"link_layer": …, "gids": [(gid, type),
    …]}}}, or a list of these by rank; a type of None cannot be read. `secrets`: {(secret, key): value}.
    `mangle_quotes`: v1 hands the words after -- to a shell. `grace`: seconds between SIGTERM and SIGKILL.
    `init_seconds`: how long workers wait for the master's name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        generation: str = "v2",
        operator: str = "1.9",
        nproc_per_node: int | None = None,
        elastic: str = "",
        volumes: Mapping[str, Path] | None = None,
        images: Mapping[str, Image] | None = None,
        projects: Sequence[str] = ("lab-me",),
        default_project: bool = False,
        node_pools: Sequence[str] = ("default",),
        secrets: Mapping[tuple[str, str], str] | None = None,
        infiniband: dict | list | None = None,
        hide: Sequence[Path] = (),
        late: Mapping[str, float | str] | None = None,
        mangle_quotes: bool = False,
        grace: float = 5,
        init_seconds: float = 200,
    ):
        self.directory = Path(directory).resolve()
        self.home = self.directory / "home"
        self.generation = generation
        volumes = {name: str(Path(folder).resolve()) for name, folder in (volumes or {}).items()}
        hidden = [*hide, REPOSITORY, self.directory, "/root", "/home", "/mnt", "/media", *volumes.values()]
        self._settings = {
            "operator": operator,
            "nproc_per_node": nproc_per_node,
            "elastic": elastic,
            "volumes": volumes,
            "images": {name: image.facts() for name, image in (images or {}).items()},
            "projects": list(projects),
            "default_project": default_project,
            "node_pools": list(node_pools),
            "secrets": {",".join(where): value for where, value in (secrets or {}).items()},
            "infiniband": infiniband if isinstance(infiniband, list) or not infiniband else [infiniband],
            "hidden": [os.path.realpath(path) for path in hidden],
            "late": dict(late or {}),
            "mangle_quotes": mangle_quotes,
            "grace": grace,
            "init_seconds": init_seconds,
        }
        self._process: subprocess.Popen | None = None

    @staticmethod
    def missing() -> str:
        """Why there can be no cluster here; '' if there can."""
        if os.geteuid() != 0:
            return "pods take the rights of root"
        if lacking := [name for name in ("unshare", "nsenter", "setpriv", "ip") if not shutil.which(name)]:
            return f"not installed: {', '.join(lacking)}"
        words = [*UNSHARE, *FORK, "ip", "link", "add", "br0", "type", "bridge"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    # ---- starting and stopping

    def __enter__(self) -> RunaiCluster:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the operator."""
        if reason := self.missing():
            raise ClusterError(reason)
        for left in ("jobs", "old"):  # by an earlier cluster
            shutil.rmtree(self.directory / left, ignore_errors=True)
        (self.directory / "calls.jsonl").unlink(missing_ok=True)
        for folder in (self.home, self.directory / "jobs"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.directory / "cluster.json").write_text(json.dumps(self._settings))
        atexit.register(self.stop)
        with open(self.directory / "operator.log", "w") as log:
            self._process = subprocess.Popen(
                [*UNSHARE, *FORK, "--ipc", sys.executable, "-B", __file__, "operator", self.directory],
                stdin=subprocess.PIPE,  # the operator ends when this does, and with it every pod
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if self._process.stdout.readline() != b"up\n":
            self.stop()
            raise ClusterError((self.directory / "operator.log").read_text())
        (self.directory / "pid").write_text(str(self._process.pid))

    def stop(self) -> None:
        """End every process of the cluster. Its files stay."""
        atexit.unregister(self.stop)
        if self._process:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    # ---- using it

    @property
    def environment(self) -> dict[str, str]:
        """What the shell of a user of this cluster has."""
        path = f"{STAND_INS}/runai_{self.generation}:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "STAND_IN_RUNAI": str(self.directory)}

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        check: bool = True,
        timeout: float = PATIENCE,
        stdin: str | None = None,
        **env: str,
    ) -> subprocess.CompletedProcess:
        """Run a command on the submitting side, in a clean environment plus `env`. `stdin` is text."""
        done = subprocess.run(
            [*map(str, command)],
            cwd=cwd or self.home,
            env={**self.environment, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
        )
        if check and done.returncode:
            raise ClusterError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    @property
    def calls(self) -> list[dict]:
        """The client's calls so far: generation, argv and, if it could be read, what `parse` returns; error."""
        path = self.directory / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def job(self, name: str) -> Job:
        """A workload as it is now."""
        folder = self.directory / "jobs" / name
        if self._process and self._process.poll() is not None:
            raise ClusterError(f"the operator ended\n{(self.directory / 'operator.log').read_text()}")
        try:
            status = json.loads((folder / "status.json").read_text())
        except FileNotFoundError:
            if not folder.exists():
                raise ClusterError(f"there is no workload {name}") from None
            return Job(name, "Pending", {}, {}, [], [], False)
        pods = status["pods"]
        logs = {pod["name"]: folder / pod["name"] / "log" for pod in pods}
        outputs = {pod: log.read_text(errors="replace") if log.exists() else "" for pod, log in logs.items()}
        codes = {pod["name"]: pod["exit"] for pod in pods}
        return Job(name, status["state"], codes, outputs, status["events"], pods, status["settled"])

    def wait(self, name: str, timeout: float = PATIENCE) -> Job:
        """Wait for the end of a workload and its pods, or until nothing can become of it (Pending)."""
        return self._wait(name, timeout, lambda job: job.settled)

    def wait_until_running(self, name: str, timeout: float = PATIENCE) -> Job:
        """Wait until every pod runs."""
        return self._wait(name, timeout, lambda job: {pod["state"] for pod in job.pods} == {"Running"})

    def _wait(self, name: str, timeout: float, condition: Callable[[Job], bool]) -> Job:
        end = time.monotonic() + timeout
        while not condition(job := self.job(name)):
            if job.settled or time.monotonic() > end:
                raise TimeoutError(f"waited for {timeout} s at most\n{job.output}")
            time.sleep(TICK)
        return job


# ---- the operator: process 1 of the cluster's namespaces


class Pod:
    """A pod of a workload."""

    def __init__(self, workload: Workload, rank: int):
        self.workload, self.rank = workload, rank
        spec, operator = workload.spec, workload.operator
        self.role = "master" if rank == 0 else f"worker-{rank - 1}"
        self.subdomain = ""
        if not spec["distributed"]:
            self.hostname = self.name = f"{spec['name']}-0-0"
        elif operator.kind == "trainjob":  # a JobSet's
            self.hostname, self.subdomain = f"{spec['name']}-node-0-{rank}", spec["name"]
            self.name = f"{self.hostname}-{os.urandom(3).hex()[:5]}"
        else:
            self.hostname = self.name = f"{spec['name']}-{'master-0' if rank == 0 else self.role}"
        self.folder = workload.folder / self.name
        self.folder.mkdir()
        self.state, self.exit, self.address, self.init, self.kill_at = "Pending", None, "", None, math.inf
        self.process: subprocess.Popen | None = None
        self.restarts = 0
        late = operator.settings["late"].get(self.role, 0)
        self.awaited = Path(late) if isinstance(late, str) else None
        self.due = time.monotonic() + (0 if self.awaited else late)
        self.gpus = spec["master_gpus" if rank == 0 else "gpus"]

    @property
    def service(self) -> str:
        """The name under which others reach it."""
        return f"{self.hostname}.{self.subdomain}" if self.subdomain else self.hostname

    @property
    def over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.exit is not None or self.state == "Removed"

    def environment(self) -> dict[str, str]:
        """The image's, Run:ai's, the user's, and on top the operator's."""
        spec, settings = self.workload.spec, self.workload.operator.settings
        image = settings["images"][spec["image"]]
        found = {"PATH": IMAGE_PATH, "HOME": "/" if spec["uid"] else "/root", "HOSTNAME": self.hostname}
        found.update(image["environment"])
        found.update(KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443")
        found.update(NODE_NAME=f"node-{self.rank}", RUNAI_NUM_OF_GPUS=f"{self.gpus:g}")
        if spec["generation"] == "v1":
            found.update(JOB_NAME=spec["name"], JOB_UUID=spec["uuid"], POD_INDEX=str(self.rank))
            found.update(POD_UUID=f"{spec['uuid'][:-4]}{self.rank:04}")
        else:
            found.update(RUNAI_JOB_NAME=spec["name"], RUNAI_JOB_UUID=spec["uuid"], RUNAI_PROJECT=spec["project"])
        for name, value in [*spec["variables"], *(spec["master_variables"] if self.rank == 0 else [])]:
            found[name] = settings["secrets"][value[7:]] if value.startswith("SECRET:") else value
        return {**found, **(self.operator_variables() if spec["distributed"] else {})}

    def operator_variables(self) -> dict[str, str]:
        """What the training operator adds to the pods of distributed workloads."""
        settings, pods = self.workload.operator.settings, self.workload.pods
        kind, count, rank = settings["operator"], len(pods), str(self.rank)
        address, port = pods[0].service, "29500" if kind == "trainjob" else "23456"
        nproc = settings["nproc_per_node"]
        elastic = {"PET_NNODES": settings["elastic"] or str(count), "PET_NPROC_PER_NODE": str(nproc or "auto")}
        pet = {**elastic, "PET_NODE_RANK": rank, "PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
        if kind == "trainjob":
            return pet
        old = {"MASTER_ADDR": address, "MASTER_PORT": port, "RANK": rank}
        if kind == "1.6":
            return {**old, "WORLD_SIZE": str(count), "PYTHONUNBUFFERED": "0"}
        if settings["elastic"]:
            where = f"{self.workload.spec['name']}-worker-0:{port}"
            pet.update(PET_RDZV_ENDPOINT=where, PET_RDZV_BACKEND="c10d")
        return {**old, **pet, "WORLD_SIZE": str(count * (nproc or 1)), "PYTHONUNBUFFERED": "1"}

    def start(self) -> None:
        """Write down what the pod needs, start it, and connect its network."""
        spec, operator = self.workload.spec, self.workload.operator
        image = operator.settings["images"][spec["image"]]
        uid, gid = spec["uid"] or 0, spec["gid"] or 0
        self.address = self.address or operator.new_address()
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        if self.gpus:
            lines = "".join(f"echo 'GPU {n}: Stand-in (UUID: GPU-{n})'\n" for n in range(math.ceil(self.gpus)))
            image = {**image, "programs": {"nvidia-smi": f"#!/bin/sh\n{lines}", **image["programs"]}}
        for name, text in image["programs"].items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        full = f"{spec['project']}.svc.cluster.local"
        long = f"{self.service}.{full}"
        # the kubelet's line, then what DNS adds
        own = [f"{long} {self.hostname}", self.service] if self.subdomain else [self.hostname, long]
        lines = [LOCALHOST, *(f"{self.address} {names}" for names in own)]
        lines += [operator.line(*entry, full) for entry in operator.names.items() if entry[0] != self.service]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        words = spec["words"]
        if not spec["replace_entrypoint"]:
            words = [*image["entrypoint"], *(words or image["command"])]
        caps = f"-all,{','.join('+' + name for name in CAPABILITIES.split(','))}"
        groups = f"--groups={','.join(map(str, spec['groups']))}" if spec["groups"] else "--clear-groups"
        facts = {
            "hostname": self.hostname,
            "address": self.address,
            "environment": self.environment(),
            "working_dir": spec["working_dir"] or image["working_dir"],
            "command": words,
            "drop": [shutil.which("setpriv"), f"--reuid={uid}", f"--regid={gid}", groups, f"--bounding-set={caps}"],
            "folders": image["folders"],
            "volumes": sorted([(operator.settings["volumes"][claim], path) for claim, path in spec["volumes"]],
                              key=lambda entry: entry[1]),
            "hidden": operator.settings["hidden"],
            "shm": "" if spec["host_ipc"] else "size=50%" if spec["large_shm"] else "size=64m",
            "infiniband": self.write_infiniband(),
            "devices": spec["devices" if self.rank else "master_devices"],
        }  # fmt: skip
        (self.folder / "pod.json").write_text(json.dumps(facts))
        for left in ("started", "event"):
            (self.folder / left).unlink(missing_ok=True)
        read, write = os.pipe()  # as a container's: who runs as another user can open /dev/stdout as well
        os.fchown(write, uid, gid)
        self.process = subprocess.Popen(
            [*UNSHARE, *([] if spec["host_ipc"] else ["--ipc"]), sys.executable, "-B", __file__, "pod", self.folder],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            env={"PATH": SYSTEM_PATH},
            start_new_session=True,
        )
        os.close(write)
        self.reader = threading.Thread(target=self.keep_output, args=[read], daemon=True)
        self.reader.start()
        operator.connect(self.process.pid)
        self.init, self.state = None, "ContainerCreating"
        self.workload.events.append(f"pod {self.name} started")
        operator.publish(self.service, self.address, full)

    def keep_output(self, pipe: int) -> None:
        with open(self.folder / "log", "ab", buffering=0) as log:
            while block := os.read(pipe, 1 << 16):
                log.write(block)
        os.close(pipe)

    def write_infiniband(self) -> str:
        """/sys/class/infiniband of this pod, as the kernel lays it out; '' without any."""
        if not (trees := self.workload.operator.settings["infiniband"]):
            return ""
        top = self.folder / "infiniband"
        for device, ports in trees[min(self.rank, len(trees) - 1)].items():
            for port, facts in ports.items():
                place = top / device / "ports" / str(port)
                for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                    (place / folder).mkdir(parents=True, exist_ok=True)
                (place / "link_layer").write_text(f"{facts.get('link_layer', 'Ethernet')}\n")
                (place / "state").write_text("4: ACTIVE\n")
                for index, (gid, kind) in enumerate(facts.get("gids", [])):
                    (place / f"gids/{index}").write_text(f"{gid}\n")
                    if kind is None:  # EINVAL in a real pod, EISDIR here
                        (place / f"gid_attrs/types/{index}").mkdir(exist_ok=True)
                    else:
                        (place / f"gid_attrs/types/{index}").write_text(f"{kind}\n")
                        (place / f"gid_attrs/ndevs/{index}").write_text("net1\n")
        return str(top)

    def step(self) -> None:
        """Start what can start, notice what has ended."""
        now = time.monotonic()
        due = self.awaited.exists() if self.awaited else now >= self.due
        if self.state in ("Pending", "Init") and due:
            master = self.workload.pods[0]
            waits = self.rank and self.workload.operator.kind != "trainjob"
            if not waits or master.service in self.workload.operator.names:
                self.start()
            elif self.state == "Pending":
                self.state, self.gives_up = "Init", now + self.workload.operator.settings["init_seconds"]
            elif now > self.gives_up:
                self.end(1, f"pod {self.name}: init container init-pytorch failed: no name {master.service}")
        elif self.process and self.exit is None:
            if self.init is None and (self.folder / "started").exists():
                self.init, self.state = child(self.process.pid), "Running"
            code = self.process.poll()
            if code is not None:
                self.reader.join(PATIENCE)
                event = self.folder / "event"
                self.end(code, event.read_text() if event.exists() else "")
            elif now > self.kill_at:
                self.signal(signal.SIGKILL)

    def end(self, code: int, event: str = "") -> None:
        self.exit, self.state = code, "Failed" if code else "Succeeded"
        self.workload.events.append(event or f"pod {self.name} ended with exit code {code}")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(child(self.process.pid), number)  # process 1 of the pod

    def terminate(self) -> None:
        """SIGTERM to process 1, and in `step` SIGKILL after the grace period."""
        if self.exit is None and self.kill_at == math.inf:
            self.workload.events.append(f"pod {self.name} is removed")
            if not self.process:
                self.state = "Removed"
                return
            self.kill_at = time.monotonic() + self.workload.operator.settings["grace"]
            self.signal(signal.SIGTERM)

    def restart(self) -> None:
        """In place, as the kubelet does."""
        self.restarts += 1
        self.workload.events.append(f"pod {self.name} is restarted")
        self.exit = None
        self.start()


class Workload:
    """A job and its pods."""

    def __init__(self, operator: Operator, folder: Path):
        self.operator, self.folder = operator, folder
        self.spec = json.loads((folder / "workload.json").read_text())
        self.events: list[str] = []
        self.state, self.written = "Pending", ""
        self.blocked = self.find_obstacles()
        self.events += self.blocked
        self.pods: list[Pod] = []
        self.pods += [Pod(self, rank) for rank in range(self.spec["count"])]

    def find_obstacles(self) -> list[str]:
        """Why its pods can never start."""
        settings, spec = self.operator.settings, self.spec
        claims = {claim for claim, _ in spec["volumes"]}
        found = [f'persistentvolumeclaim "{claim}" not found' for claim in sorted(claims - {*settings["volumes"]})]
        if spec["image"] not in settings["images"]:
            found.append(f'Failed to pull image "{spec["image"]}": not found (ImagePullBackOff)')
        for _, value in [*spec["variables"], *spec["master_variables"]]:
            if value.startswith("SECRET:") and value[7:] not in settings["secrets"]:
                secret, _, key = value[7:].partition(",")
                exists = any(where.startswith(f"{secret},") for where in settings["secrets"])
                event = f"couldn't find key {key} in Secret {secret}" if exists else f'secret "{secret}" not found'
                found.append(event)
        return found

    def step(self) -> None:
        if self.state != "Deleted" and (self.folder / "delete").exists():
            self.finish("Deleted")
        if not self.blocked:
            for pod in self.pods:
                pod.step()
        if self.state in ("Pending", "Running"):
            self.judge()
        self.write()

    def judge(self) -> None:
        for pod in self.pods:
            if pod.state == "Failed":
                policy = self.spec["restart_policy" if pod.rank else "master_restart_policy"]
                if policy == "Never" or sum(one.restarts for one in self.pods) >= self.spec["backoff_limit"]:
                    self.finish("Failed")
                    return
                pod.restart()
        done = [pod.state == "Succeeded" for pod in self.pods]
        if all(done) or (done[0] and self.operator.kind != "trainjob"):
            self.finish("Succeeded")
        elif any(pod.process for pod in self.pods):
            self.state = "Running"

    def finish(self, state: str) -> None:
        self.state = state
        self.events.append(f"workload {self.spec['name']}: {state}")
        if state == "Deleted" or self.spec["clean_pod_policy"] != "None" or self.operator.kind == "trainjob":
            for pod in self.pods:
                pod.terminate()
        if state == "Deleted":
            for pod in self.pods:
                self.operator.names.pop(pod.service, None)

    def write(self) -> None:
        kept = self.spec["clean_pod_policy"] == "None" and self.state != "Deleted"
        over = self.state in FINISHED and (kept or all(pod.over for pod in self.pods))
        known = ("name", "role", "state", "exit", "address", "init", "restarts")
        pods = [{**{key: getattr(pod, key) for key in known}, "node": f"node-{pod.rank}"} for pod in self.pods]
        facts = {key: self.spec[key] for key in ("name", "uuid", "project", "distributed")}
        # a deleted workload can be submitted anew when its pods are gone
        state = "Deleting" if self.state == "Deleted" and not over else self.state
        facts = {**facts, "state": state, "settled": bool(over or (self.blocked and self.state == "Pending")),
                 "events": self.events, "pods": pods}  # fmt: skip
        text = json.dumps(facts)
        if text != self.written and self.folder.exists():
            (self.folder / "status.new").write_text(text)
            (self.folder / "status.new").rename(self.folder / "status.json")
            self.written = text


class Operator:
    """Everything on the cluster's side."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.settings = json.loads((directory / "cluster.json").read_text())
        self.kind = self.settings["operator"]
        self.names: dict[str, str] = {}
        self.workloads: dict[str, Workload] = {}
        self.addresses = 0

    def run(self) -> None:
        """Until standard input ends: then process 1 does, and the kernel ends all others."""
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")  # --host-ipc shares this one, not the machine's
        ip("link add br0 type bridge", "address add 10.88.0.1/16 dev br0", "link set br0 up", "link set lo up")
        print("up", flush=True)
        while True:
            for path in (self.directory / "jobs").iterdir():
                with contextlib.suppress(FileNotFoundError):  # the client has just put away a deleted one
                    key = json.loads((path / "workload.json").read_text())["uuid"]
                    if key not in self.workloads:
                        self.workloads[key] = Workload(self, path)
            for workload in self.workloads.values():
                if not (workload.state == "Deleted" and all(pod.over for pod in workload.pods)) or not workload.written:
                    workload.step()
            time.sleep(TICK)

    def new_address(self) -> str:
        self.addresses += 1
        return f"10.88.{1 + self.addresses // 250}.{1 + self.addresses % 250}"

    def connect(self, pid: int) -> None:
        """Lay a cable from a new pod's eth0 to the bridge."""
        here = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{pid}/ns/net") == here:
            time.sleep(0.005)
        ip(f"link add veth{pid} type veth peer name eth0 netns {pid}", f"link set veth{pid} master br0 up")

    @staticmethod
    def line(name: str, address: str, domain: str) -> str:
        return f"{address} {name}.{domain} {name}"

    def publish(self, name: str, address: str, domain: str) -> None:
        """A service appears: all pods that run can resolve its name now. The file is bound there: edit it in place."""
        self.names[name] = address
        for workload in self.workloads.values():
            for pod in workload.pods:
                if pod.process and pod.exit is None and pod.service != name:
                    with open(pod.folder / "hosts", "a") as hosts:
                        hosts.write(self.line(name, address, domain) + "\n")


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def child(pid: int) -> int | None:
    """The one child of a process."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return None


# ---- a pod: process 1 of its namespaces, until it becomes the container's command


def run_pod(folder: Path) -> None:
    """Wait for process 1 and pass on how it ended: unshare --fork cannot, where that was SIGKILL."""
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    mount("proc", "/proc", "proc")
    become_pod(folder)


def become_pod(folder: Path) -> None:
    """Build what the container sees, give up what it may not do, and become its command."""
    facts = json.loads((folder / "pod.json").read_text())
    place = os.open(folder, os.O_PATH)
    os.umask(0o022)
    name = facts["hostname"].encode()
    libc.sethostname(name, len(name))
    while "eth0" not in dict(map(reversed, socket.if_nameindex())):  # the operator is at it
        time.sleep(0.005)
    ip("link set lo up", "link set eth0 up", f"address add {facts['address']}/16 dev eth0")
    mounts = [*(Mount(path, path, "ro") for path in facts["folders"]), Mount(f"{folder}/bin", IMAGE_BIN, "ro")]
    mounts += [Mount(source, target) for source, target in facts["volumes"]]
    mounts += [Mount(f"{folder}/{file}", f"/etc/{file}") for file in ("hosts", "nsswitch.conf")]
    opened = [(os.open(entry.source, os.O_PATH), entry) for entry in mounts]
    infiniband = os.open(facts["infiniband"], os.O_PATH) if facts["infiniband"] else None
    root = Root(facts["hidden"], ["/tmp", "/run"], None)
    mounted: list[str] = []
    for handle, entry in opened:
        root.bind(handle, entry, mounted)
    own_devices(bool(facts["infiniband"] and facts["devices"]))
    if facts["shm"]:
        mount("tmpfs", "/dev/shm", "tmpfs", 0, f"mode=1777,{facts['shm']}")
    mount("sysfs", "/sys", "sysfs")
    classes = {"net": os.open("/sys/class/net", os.O_PATH), "infiniband": infiniband}
    mount("tmpfs", "/sys/class", "tmpfs", 0, "mode=755")
    for name, handle in classes.items():
        if handle is not None:
            os.mkdir(f"/sys/class/{name}")
            mount(f"/proc/self/fd/{handle}", f"/sys/class/{name}", None, MS_BIND | MS_REC)
    try:
        os.makedirs(facts["working_dir"], exist_ok=True)
        os.chdir(facts["working_dir"])
    except OSError as error:
        cannot_start(place, f"cannot enter {facts['working_dir']}: {error.strerror}")
    command, environment = facts["command"], facts["environment"]
    if not command:
        cannot_start(place, "no command specified")
    if not shutil.which(command[0], path=environment["PATH"]):
        cannot_start(place, f'exec: "{command[0]}": executable file not found in $PATH')
    os.close(os.open("started", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python had changed them
    os.execve(facts["drop"][0], [*facts["drop"], "--", *command], environment)


def own_devices(rdma: bool) -> None:
    """A /dev with what every container has; /sys/class/infiniband is the node's, its devices come with the resource."""
    names = [
        name for name in ("null", "zero", "full", "random", "urandom", "tty", "shm") if os.path.exists(f"/dev/{name}")
    ]
    handles = {name: os.open(f"/dev/{name}", os.O_PATH) for name in names}
    mount("tmpfs", "/dev", "tmpfs", 0, "mode=755")
    for name, handle in handles.items():
        os.mkdir("/dev/shm") if name == "shm" else open(f"/dev/{name}", "w").close()
        mount(f"/proc/self/fd/{handle}", f"/dev/{name}", None, MS_BIND | MS_REC)
        os.close(handle)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    if rdma:
        os.mkdir("/dev/infiniband")
        open("/dev/infiniband/uverbs0", "w").close()


def cannot_start(place: int, reason: str) -> None:
    handle = os.open("event", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, dir_fd=place)
    os.write(handle, f"Error: failed to start container: {reason}".encode())
    os._exit(128)


if __name__ == "__main__":
    {"operator": lambda path: Operator(path).run(), "pod": run_pod}[sys.argv[1]](Path(sys.argv[2]))
