"""A place in which the tests of the stand-ins run them: an image, a folder to work in, and an environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

HERE = Path(__file__).resolve().parent / "stand_ins"
PYTHON = str(Path(sys.executable).parent)
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # Debian's /etc/profile, for root
CAN_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0 or not CAN_MOUNT, reason="the stand-ins mount things, as root")
# What the test's srun does: it runs the command, once, after refusing options it does not know.
FAKE_SRUN = """\
#!/bin/bash
while [[ $1 == -* ]]; do
    case $1 in
        --help) echo "      --mpi=type              type of MPI being used
  -n, --ntasks=ntasks         number of tasks to run"; exit ;;
        -n | --ntasks) shift ;;
        --ntasks=* | --label | -l | -ln2) ;;
        *) echo "srun: unrecognized option '$1'" >&2; exit 255 ;;
    esac
    shift
done
exec "$@"
"""


class Place:
    """A folder to play in, with an image, and the stand-ins first on PATH."""

    def __init__(self, folder: Path):
        self.folder, self.image, self.log = folder, folder / "image file.sqsh", folder / "log"
        self.work = folder / "work space"
        self.work.mkdir()
        (self.work / "here").write_text("here")
        content = {"env": {"PATH": f"{PYTHON}:/usr/bin:/bin", "OF_IMAGE": "image", "BOTH": "image"}, "workdir": "/usr"}
        self.image.write_text(json.dumps({**content, "entrypoint": ["env", "ENTRY=1"]}))
        (folder / "bin").mkdir()
        (folder / "bin/srun").write_text(FAKE_SRUN)
        (folder / "bin/srun").chmod(0o755)
        self.environ = {
            "PATH": f"{HERE}:{folder}/bin:{PYTHON}:/usr/bin:/bin", "HOME": f"{folder}/home",
            "STAND_IN_HIDE": str(folder),
            "STAND_IN_STATE": f"{folder}/node", "STAND_IN_LOG": str(self.log), "STAND_IN_IMAGE": str(self.image),
            "STAND_IN_GATEWAY": f"{folder}/gateway", "SCRATCH": f"{folder}/scratch", "OF_HOST": "host", "BOTH": "host",
            "SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
        }  # fmt: skip

    def start(self, *words, **environ) -> subprocess.Popen:
        cwd = environ.pop("cwd", self.work)
        return subprocess.Popen(
            list(map(str, words)), env={**self.environ, **environ}, cwd=cwd, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def refused(self, *words, **environ) -> str:
        """What it says on standard error, having failed."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0, out
        return err

    def run(self, *words, **environ) -> str:
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        return out

    def env(self, *words, **environ) -> dict[str, str]:
        """The environment that a command has there."""
        return dict(line.split("=", 1) for line in self.run(*words, "env", **environ).splitlines())

    def logged(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)
