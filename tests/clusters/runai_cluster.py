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

runai_pods.py has the operator and the pods, and what they follow.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import runai_pods
from runai_pods import FORK, STAND_INS, TICK, UNSHARE
from waiting import PATIENCE

REPOSITORY = STAND_INS.parent.parent.parent


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
    job's specification has; None is the operators' default. `elastic`: "min:max", with operator 1.9.
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
                [*UNSHARE, *FORK, "--ipc", sys.executable, "-B", runai_pods.__file__, "operator", self.directory],
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
