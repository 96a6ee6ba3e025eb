"""Which index `make` names to pip for torch, and which wheel pip takes then. Nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from baking import REPOSITORY
from waiting import PATIENCE

TORCH = re.search(r"^torch==(\S+)", (REPOSITORY / "requirements-dev.txt").read_text(), re.M)[1]


class Silent(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and writes no log."""

    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """A web server on this machine; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def unanswered():
    """A server that takes connections and never says a word; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def chosen(tmp_path):
    """Returns chosen(index, gpus=…, words, **environment) -> the options of pip's call in `make --dry-run`."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/tests").mkdir()
    for name in ("Makefile", "requirements-dev.txt", "tests/torch_index.py"):
        shutil.copy(REPOSITORY / name, tmp_path / "here" / name)
    tools = tmp_path / "tools"  # all that is on PATH, as this machine may have GPUs
    tools.mkdir()
    for name in ("make", "sh", "bash"):
        (tools / name).symlink_to(shutil.which(name))

    def call(index, *words, nvidia_smi=None, **environment):
        if nvidia_smi:
            (tools / "nvidia-smi").write_text(f"#!/usr/bin/env bash\n{nvidia_smi}\n")
            (tools / "nvidia-smi").chmod(0o755)
        # A clean environment: `make test` hands its own PIP_ARGS and MAKEFLAGS to what it starts.
        clean = {"PATH": str(tools), "TORCH_CPU_INDEX": index, "no_proxy": "*", **environment}
        command = ["make", "--dry-run", f"PYTHON={sys.executable}", ".venv/ready", *words]
        done = subprocess.run(
            command, cwd=tmp_path / "here", env=clean, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        (options,) = re.findall(r"^\.venv/bin/pip install --quiet(.*) -r requirements-dev\.txt$", done.stdout, re.M)
        return options.strip()

    return call


@pytest.fixture
def index(tmp_path):
    """The folder of an index of CPU wheels that has torch."""
    (tmp_path / "cpu/torch").mkdir(parents=True)
    return tmp_path / "cpu"


def test_cpu_wheels_where_there_is_no_gpu(chosen, index):
    with served(index) as address:
        assert chosen(address) == f"--extra-index-url {address}"
        # a driver is installed, but finds no GPU, as on many login nodes
        assert chosen(address, nvidia_smi="echo No devices found.; exit 6") == f"--extra-index-url {address}"


def test_pip_s_own_index_where_there_is_a_gpu(chosen, index):
    with served(index) as address:
        assert chosen(address, nvidia_smi="echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1234)'") == ""


def test_pip_s_own_index_where_the_other_does_not_answer(chosen, index):
    with unanswered() as address:
        assert chosen(address) == ""
    assert chosen(address) == ""  # nobody listens any more
    (index / "torch").rmdir()
    with served(index) as address:
        assert chosen(address) == ""  # not found
    assert chosen("http://no-such-host.invalid/cpu") == ""


def test_what_the_user_says_wins(chosen, index):
    with served(index) as address:
        for words, environment in ((["PIP_ARGS=--no-cache"], {}), ([], {"PIP_ARGS": "--no-cache"})):
            assert chosen(address, *words, **environment) == "--no-cache"
        assert chosen(address, "PIP_ARGS=") == ""


def wheel(folder, version):
    """Put a wheel of a torch that is empty into an index."""
    page = folder / "torch"
    page.mkdir(parents=True, exist_ok=True)
    name = f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(page / name, "w") as archive:
        info = f"torch-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (page / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>\n')


def test_the_pinned_torch_is_the_cpu_wheel_where_its_index_is_named(tmp_path):
    """Its version there is 2.13.0+cpu, which `==2.13.0` allows and pip takes for newer than 2.13.0."""
    wheel(tmp_path / "both/simple", TORCH)
    wheel(tmp_path / "both/cpu", f"{TORCH}+cpu")
    (tmp_path / "torch.txt").write_text(f"torch=={TORCH}\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    clean |= {"PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path), "no_proxy": "*"}
    with served(tmp_path / "both") as address:
        own = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "-r", "torch.txt"]
        own += ["--index-url", f"{address}/simple", "--dest"]
        subprocess.run([*own, "own"], cwd=tmp_path, env=clean, check=True)
        subprocess.run([*own, "two", "--extra-index-url", f"{address}/cpu"], cwd=tmp_path, env=clean, check=True)
    assert [path.name for path in (tmp_path / "own").iterdir()] == [f"torch-{TORCH}-py3-none-any.whl"]
    assert [path.name for path in (tmp_path / "two").iterdir()] == [f"torch-{TORCH}+cpu-py3-none-any.whl"]
