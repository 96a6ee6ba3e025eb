"""The cluster's side of runai_cluster.py: the operator, and pods that are namespaces.

It is started as a program: with the word "operator" and the cluster's folder by runai_cluster.py, and by the operator
with "pod" and the folder of a pod.

What the operators set, by version (`operator`), and when a job is over: kubeflow/trainer pkg/controller.v1/pytorch
(1.6, 1.9: tags v1.4 to v1.9) and pkg/runtime/framework/plugins/torch (trainjob: v2.3.0). Run:ai's own variables:
run-ai/docs best-practices/env-variables.md (v1) and the 2.25 page workloads.md (v2). Assumptions are the names of the
pods of one-pod workloads (NAME-0-0), OnFailure as the default of the restart policies, RUNAI_NUM_OF_GPUS=0 without
GPUs, and that Run:ai's variables give way to the user's.
"""

from __future__ import annotations

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
from pathlib import Path

STAND_INS = Path(__file__).resolve().parent / "stand_ins"
sys.path.insert(0, str(STAND_INS))

from infiniband import write_infiniband  # noqa: E402
from stand_in import MS_BIND, MS_REC, Mount, Root, libc, mount  # noqa: E402
from waiting import PATIENCE  # noqa: E402

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


# ---- the operator: process 1 of the cluster's namespaces


def shm_size(spec: dict) -> str:
    """Return the option of mount for a pod's own /dev/shm; '' if it has the node's."""
    if spec["host_ipc"]:
        return ""
    return "size=50%" if spec["large_shm"] else "size=64m"


def end_with_standard_input() -> None:
    """Wait for the end of standard input, and end this process."""
    os.read(0, 1)
    os._exit(0)


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
        # Of a TrainJob without GPUs it is the number of cores that a pod asks for; these ask for none.
        processes = nproc or (1 if kind == "trainjob" and not self.gpus else "auto")
        elastic = {"PET_NNODES": settings["elastic"] or str(count), "PET_NPROC_PER_NODE": str(processes)}
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
            "shm": shm_size(spec),
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
        """Write this pod's /sys/class/infiniband; return where, or '' if it has none."""
        if not (trees := self.workload.operator.settings["infiniband"]):
            return ""
        top = self.folder / "infiniband"
        write_infiniband(top, trees[min(self.rank, len(trees) - 1)])
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
        """Run until standard input ends: then process 1 does, and the kernel ends all others."""
        threading.Thread(target=end_with_standard_input, daemon=True).start()
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
