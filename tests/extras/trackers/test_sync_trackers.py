"""extras/trackers: runs of W&B and MLflow that jobs have written without internet are sent on.

wandb is the real one. Its server, and the commands of mlflow-export-import, are stand-ins.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from baking import bake
from waiting import FOREVER, PATIENCE
from wandb_server import StandInServer

pytest.importorskip("wandb", reason="wandb is not installed: pip install -r requirements-dev.txt")

TRAINING = """\
import os, wandb
os.makedirs("run")
with wandb.init(project="our project", mode="offline", dir="run") as run:
    for step in (1, 2, 3):
        run.log({"loss": 1 / step}, step=step)
"""
# Stand-ins for the commands of mlflow-export-import 1.2.0, which refuse what these would: they note where runs went.
EXPORT = """\
#!/bin/bash
[[ $1 == --experiments && $2 == all && $3 == --output-dir && $# == 4 ]] || exit 2
[[ $MLFLOW_TRACKING_URI == sqlite:////* ]] || exit 2
[[ -s ${MLFLOW_TRACKING_URI#sqlite:///} ]] && echo "$MLFLOW_TRACKING_URI" >"$4/experiments.json"
"""
IMPORT = """\
#!/bin/bash
[[ $1 == --input-dir && $# == 2 && -s $2/experiments.json && $MLFLOW_TRACKING_URI == http* ]] || exit 2
[[ ! -e $REFUSES ]] && cat "$2/experiments.json" >>"$NOTES"
"""


def sync(project, folder, *words, **environment):
    """Call extras/trackers/sync_trackers.sh in a folder."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    clean = {"PATH": path, "HOME": str(folder), "NOTES": str(folder / "notes"), "REFUSES": str(folder / "refuses")}
    command = ["bash", project / "extras/trackers/sync_trackers.sh", *words]
    return subprocess.run(
        command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture
def offline(tmp_path):
    """A project on Slurm, and a folder in which a job has left a run of MLflow an hour ago."""
    for name, text in (("export-experiments", EXPORT), ("import-experiments", IMPORT)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    project = bake(tmp_path / "the projects", site="slurm", extras="trackers")
    database = tmp_path / "logs/4711.0/mlflow.db"
    database.parent.mkdir(parents=True)
    database.write_text("runs")
    (tmp_path / "logs/latest").symlink_to("4711.0")
    age(database)
    return project, database


def age(path, hours=1):
    os.utime(path, (time.time() - 3600 * hours,) * 2)


def test_offline_runs_of_wandb_are_sent_once(offline, tmp_path):
    """By the real wandb, to a stand-in for its server: all steps arrive."""
    project, database = offline
    database.unlink()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    clean |= {"HOME": str(tmp_path), "NETRC": "/nowhere"}
    subprocess.run([sys.executable, "-c", TRAINING], cwd=tmp_path, env=clean, check=True, timeout=FOREVER)
    (folder,) = (tmp_path / "run/wandb").glob("offline-run-*")
    with StandInServer() as stand_in:
        server = {"WANDB_BASE_URL": stand_in.address, "WANDB_API_KEY": "k" * 40}
        done = sync(project, tmp_path, "run", **server)
        assert "left out: run/wandb/offline-run-" in done.stderr and "nothing to send in run" in done.stdout
        age(next(folder.glob("*.wandb")))
        done = sync(project, tmp_path, "run", "--dry-run")
        assert (done.returncode, done.stdout) == (0, f"W&B: run/wandb/{folder.name}\n"), done
        assert stand_in.rows == {}
        done = sync(project, tmp_path, "run", **server)
        assert done.returncode == 0 and f"W&B: run/wandb/{folder.name}\n" in done.stdout, done
        assert [row["_step"] for row in stand_in.rows.values()] == [1, 2, 3], stand_in.rows
        assert "nothing to send in ." in sync(project, tmp_path, **server).stdout


def test_offline_runs_of_mlflow_are_sent_once(offline, tmp_path):
    project, database = offline
    uri = {"MLFLOW_TRACKING_URI": "https://mlflow.example.org"}
    (tmp_path / "refuses").touch()
    done = sync(project, tmp_path, **uri)
    assert (
        done.returncode == 2
        and "some runs were not sent, see above: call extras/trackers/sync_trackers.sh again" in done.stderr
    )
    (tmp_path / "refuses").unlink()
    for _ in range(2):
        done = sync(project, tmp_path, **uri)
        assert done.returncode == 0, done
        assert (tmp_path / "notes").read_text() == f"sqlite:///{database}\n"
    assert done.stdout == "nothing to send in .\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_own_runs_alone_are_sent_whatever_the_names_of_folders_are(offline, tmp_path):
    """wandb would take a folder -x for an option, and find one ( for a word of its own."""
    project, database = offline
    os.chown(database, 1002, -1)
    stand_in = tmp_path / "bin/wandb"
    stand_in.write_text('#!/bin/bash\n[[ $1 == sync && $2 != -* && $# == 2 ]] && echo "sent $2"\n')
    stand_in.chmod(0o755)
    for folder in ("-x", "("):
        run = tmp_path / folder / "offline-run-1/run-1.wandb"
        run.parent.mkdir(parents=True)
        run.touch()
        age(run)
    done = sync(project, tmp_path, "(")
    assert (done.returncode, done.stdout) == (0, "W&B: (/offline-run-1\nsent (/offline-run-1\n"), done
    done = sync(project, tmp_path)
    assert (done.returncode, done.stdout) == (0, "W&B: ./-x/offline-run-1\nsent ./-x/offline-run-1\n"), done
    assert "nothing to send in logs" in sync(project, tmp_path, "logs").stdout


def test_what_keeps_runs_from_being_sent(offline, tmp_path):
    project, _ = offline
    done = sync(project, tmp_path, MLFLOW_TRACKING_URI="sqlite:///here.db")
    assert done.returncode == 2 and "export MLFLOW_TRACKING_URI=https://YOUR-SERVER" in done.stderr
    for words, said in ((["nowhere"], "'nowhere' is no folder"), (["--all"], "'--all' is not known")):
        done = sync(project, tmp_path, *words)
        assert done.returncode == 2 and said in done.stderr
    (tmp_path / "bin/export-experiments").unlink()
    done = sync(project, tmp_path)
    assert done.returncode == 2 and "no command export-experiments: pip install mlflow-export-import" in done.stderr
