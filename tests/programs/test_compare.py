"""training/compare.py: programs that learn the same pass, a mistake of 1e-10 does not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TRAINING = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}" / "training"
TINY = ["--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--steps", 6, "--global-batch", 8]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
LOSSES = [5.5, 5.25, 5.0, 4.5]


def start(program, *arguments, code=0, folder=TRAINING):
    done = subprocess.run(
        [sys.executable, folder / program, *map(str, arguments)],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def table(text):
    """What is printed of each run: the last step, the losses there, and by how much any differs from the reference."""
    found = re.findall(r"^ *(\d+) +(\S+) +(\S+) +(\S+) +(\S+)  (\S.*)$", text, re.M)
    titles = ("step", "loss", "val_loss", "speed", "apart")
    return {name: dict(zip(titles, figures)) for *figures, name in found}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write what a run leaves in its folder; return its name."""
    monkeypatch.chdir(tmp_path)

    def make(name, losses=LOSSES, first=1, val_loss=4.4, extra=""):
        (tmp_path / name).mkdir(exist_ok=True)
        lines = [
            {"step": step, "loss": loss, "tokens_per_second": 7.0 if step == 1 else 1000.0 + step}
            for step, loss in enumerate(losses, start=first)
        ]
        lines += [{"step": first + len(losses) - 1, "val_loss": val_loss}] if losses and val_loss else []
        text = "".join(json.dumps(line) + "\n" for line in lines) + extra
        (tmp_path / name / "metrics.jsonl").write_text(text)
        return name

    return make


@pytest.mark.drill
def test_real_runs_are_equal_and_a_program_with_a_mistake_is_caught(tmp_path, monkeypatch):
    """The mistake: both ranks read the samples of the first one. The curve is plausible, and not the same."""
    monkeypatch.chdir(tmp_path)
    runs = [f"runs/compare/{name}" for name in ("single-1", "ddp-2", "ddp-4", "ddp-2-accumulated", "fsdp-2", "fsdp-4")]
    words = ["--", *TINY, "--data", TRAINING / "lm/arguments.py"]
    done = start("compare.py", *words)
    rows = table(done.stdout)
    assert list(rows) == runs and all(row["step"] == "6" for row in rows.values())
    assert re.search(r"^equal: .*; allowed is 1e-14$", done.stdout, re.M)
    broken = shutil.copytree(TRAINING, tmp_path / "broken")
    source = (broken / "train_ddp.py").read_text()
    assert source.count("first_step, rank, world_size)") == 1
    (broken / "train_ddp.py").write_text(source.replace("first_step, rank, world_size)", "first_step, 0, world_size)"))
    done = start("compare.py", *words, folder=broken, code=1)
    assert re.search(r"^NOT equal: .*; allowed is 1e-14$", done.stdout, re.M)
    assert float(table(done.stdout)["runs/compare/ddp-2"]["apart"]) > 1e-3
    done = start("compare.py", *words, "--global-batch", 3, code=2)
    assert "--global-batch 3 cannot be shared equally by 2 ranks" in done.stderr


def test_runs_of_other_jobs(write):
    first, same = write("first"), write("same", [*LOSSES[:3], LOSSES[3] + 1e-15])
    done = start("compare.py", first, same)
    assert done.stdout.splitlines() == [
        "",
        "last step         loss  validation loss  tokens/s  differs by  run",
        "        4 4.500000000000   4.400000000000     1,002     0.0e+00  first",
        "        4 4.500000000000   4.400000000000     1,002     8.9e-16  same",
        "",
        "equal: the largest difference is 8.9e-16; allowed is 1e-14",
    ]
    for wrong in (write("wrong", [5.5, 5.25 + 1e-10, 5.0, 4.5]), write("late", val_loss=4.4 + 1e-10)):
        done = start("compare.py", first, same, wrong, code=1)
        assert "NOT equal: the largest difference is 1.0e-10; allowed is 1e-14\n" in done.stdout
    start("compare.py", first, wrong, "--tolerance", "1e-9")


def test_steps_in_common(write):
    """A run that was resumed elsewhere: neither its other steps nor its validation are compared."""
    first, late = write("first"), write("late", [5.0, 4.5, 4.0], first=3, val_loss=3)
    rows = table(start("compare.py", first, late).stdout)
    assert [row["step"] for row in rows.values()] == ["4", "5"] and rows["late"]["apart"] == "0.0e+00"
    assert "NOT equal: the largest difference is inf" in start("compare.py", first, write("x", first=5), code=1).stdout


@pytest.mark.parametrize("order", [("good", "diverged"), ("diverged", "good")])
def test_no_number_is_not_equal(write, order):
    write("good")
    for name in ("diverged", "too"):
        write(name, [*LOSSES[:3], None], val_loss=None)
    assert "NOT equal: the largest difference is inf" in start("compare.py", *order, code=1).stdout
    both = [write(name, [5.5, None, last], val_loss=None) for name, last in (("a", 2.0), ("b", 7.0))]
    assert "NOT equal: the largest difference is 5.0e+00" in start("compare.py", *both, code=1).stdout
    start("compare.py", both[0], write("same", [5.5, None, 2.0], val_loss=None))


@pytest.mark.parametrize("name", ["gone", "nothing", "ddp-3"])
def test_what_is_refused(write, name):
    write("nothing", [])
    done = start("compare.py", write("good"), name, code=2)
    assert done.stderr.startswith(f"compare.py: error: no step in {name}/metrics.jsonl: name folders")
    assert "equal" not in done.stdout


def test_a_run_alone_that_is_still_written(write):
    done = start("compare.py", write("alone", [4.5], val_loss=None, extra='{"step": 6, "lo'))
    assert table(done.stdout)["alone"] == {
        "step": "1", "loss": "4.500000000000", "val_loss": "nan", "speed": "7", "apart": "0.0e+00",
    }  # fmt: skip
