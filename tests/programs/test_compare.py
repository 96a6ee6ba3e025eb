"""training/compare.py: programs that learn the same pass, a mistake of 1e-10 does not, and the pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TRAINING = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}" / "training"
TINY = ["--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--steps", 6, "--global-batch", 8]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
LOSSES = [5.5, 5.25, 5.0, 4.5]


def start(program, *arguments, code=0, folder=TRAINING, **environment):
    done = subprocess.run(
        [sys.executable, folder / program, *map(str, arguments)],
        env={**ENVIRONMENT, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def table(text):
    """What is printed of each run: the last step, the losses there, and by how much any differs from the reference."""
    found = re.findall(r"^ *(\d+) +(\S+) +(\S+) +(\S+) +(\S+)  (\S.*)$", text, re.M)
    titles = ("step", "loss", "val_loss", "speed", "apart")
    return {name: dict(zip(titles, figures)) for *figures, name in found}


def size_of(png):
    """Width and height of a picture in pixels, from its header."""
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    assert png.stat().st_size > 20_000, "empty axes alone"
    return struct.unpack(">II", head[16:])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"".join((TRAINING / f"{name}.py").read_bytes() for name in ("arguments", "metrics"))[:20_000])
    return path


@pytest.fixture(scope="module")
def real(text, tmp_path_factory):
    """What compare.py prints of three real runs, and the folder in which it keeps them."""
    folder = tmp_path_factory.mktemp("runs") / "kept"
    runs = ["single-1", "ddp-2-accumulated", "fsdp-4"]
    return start("compare.py", *runs, "--out", folder, "--", *TINY, "--data", text), folder


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write what a run leaves in its folder; return its name. The picture goes to the same place."""
    monkeypatch.chdir(tmp_path)

    def make(name, losses=LOSSES, first=1, val_loss=4.4, extra=""):
        (tmp_path / name).mkdir(exist_ok=True)
        lines = [
            {"step": step, "loss": loss, "lr": 1e-3, "tokens_per_second": 7.0 if step == 1 else 1000.0 + step}
            for step, loss in enumerate(losses, start=first)
        ]
        lines += [{"step": first + len(losses) - 1, "val_loss": val_loss}] if losses and val_loss else []
        text = "".join(json.dumps(line) + "\n" for line in lines) + extra
        (tmp_path / name / "metrics.jsonl").write_text(text)
        return name

    return make


@pytest.fixture
def hidden(tmp_path):
    """A PYTHONPATH that takes matplotlib away."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/matplotlib.py").write_text("raise ImportError('not in this test')")
    return str(tmp_path / "hidden")


def test_real_runs_are_equal(real):
    done, folder = real
    rows = table(done.stdout)
    assert list(rows) == ["single-1", "ddp-2-accumulated", "fsdp-4"]
    found = {name: (folder / name / "metrics.jsonl").read_text().splitlines() for name in rows}
    losses = {name: [json.loads(line) for line in lines] for name, lines in found.items()}
    reference = losses["single-1"]
    assert len(reference) == 7 and reference[5]["loss"] < reference[0]["loss"] - 0.01, "it learns"
    for name, row in rows.items():
        mine = losses[name]
        apart = [abs(a[key] - b[key]) for a, b in zip(reference, mine) for key in ("loss", "val_loss") if key in a]
        assert len(apart) == 7 and row["apart"] == f"{max(apart):.1e}" and max(apart) <= 1e-14
        assert row["step"] == "6" and row["loss"] == f"{mine[5]['loss']:.12f}"
        assert row["val_loss"] == f"{mine[6]['val_loss']:.12f}"
    assert re.search(r"^equal: .* from single-1 is .*; allowed is 1e-14$", done.stdout, re.M)
    if "picture:" in done.stdout:
        width, height = size_of(folder / "compare.png")
        assert 1000 < width < 2000 and 800 < height < 2000


@pytest.mark.drill
def test_a_program_with_a_mistake_is_caught(text, tmp_path):
    """Both ranks read the first one's share: a plausible curve, and not the same."""
    broken = shutil.copytree(TRAINING, tmp_path / "broken")
    source = (broken / "train_ddp.py").read_text()
    assert source.count("args.steps, rank, world_size)") == 1
    (broken / "train_ddp.py").write_text(source.replace("args.steps, rank, world_size)", "args.steps, 0, world_size)"))
    words = ["--out", tmp_path / "out", "--", *TINY, "--data", text]
    done = start("compare.py", "single-1", "ddp-2", *words, folder=broken, code=1)
    assert re.search(r"^NOT equal: .* from single-1 is .*, of ddp-2 at step \d; allowed is 1e-14$", done.stdout, re.M)
    assert float(table(done.stdout)["ddp-2"]["apart"]) > 1e-3


def test_a_run_that_fails(text, tmp_path):
    """What the program says is shown, before what torchrun says of it."""
    few = ["--steps", 1, "--global-batch", 3]
    words = ["--out", tmp_path, "--", *TINY, *few, "--data", text]
    done = start("compare.py", "ddp-2", *words, code=2)
    said = done.stderr.splitlines()
    assert said[0] == "compare.py: error: ddp-2 ended with exit code 1, and said:"
    assert "train_ddp.py: error: --global-batch 3 cannot be shared equally by 2 ranks" in done.stderr
    assert "equal" not in done.stdout


def test_runs_of_other_jobs(write, hidden):
    first, same = write("first"), write("same", [*LOSSES[:3], LOSSES[3] + 1e-15])
    done = start("compare.py", first, same, PYTHONPATH=hidden)
    assert done.stdout.splitlines() == [
        "",
        "last step         loss  validation loss  tokens/s  differs by  run",
        "        4 4.500000000000   4.400000000000     1,002     0.0e+00  first",
        "        4 4.500000000000   4.400000000000     1,002     8.9e-16  same",
        "",
        "equal: the largest difference from first is 8.9e-16, of same at step 4; allowed is 1e-14",
        "no matplotlib here, so no runs/compare/compare.png: pip install matplotlib",
    ]
    assert not Path("runs").exists()
    wrong = write("wrong", [5.5, 5.25 + 1e-10, 5.0, 4.5])
    done = start("compare.py", first, same, wrong, code=1)
    verdict = "NOT equal: the largest difference from first is 1.0e-10, of wrong at step 2; allowed is 1e-14\n"
    assert verdict in done.stdout
    wrong = write("wrong", val_loss=4.4 + 1e-10)
    assert "of wrong in the validation at step 4;" in start("compare.py", first, wrong, code=1).stdout
    start("compare.py", first, wrong, "--tolerance", "1e-9")
    assert "allowed is 0\n" in start("compare.py", first, same, "--tolerance", "0", code=1).stdout


def test_steps_in_common(write):
    """A run that was resumed elsewhere: neither its other steps nor its validation are compared."""
    first, late = write("first"), write("late", [5.0, 4.5, 4.0], first=3, val_loss=3)
    rows = table(start("compare.py", first, late).stdout)
    assert [row["step"] for row in rows.values()] == ["4", "5"] and rows["late"]["apart"] == "0.0e+00"
    done = start("compare.py", first, write("late", [5.0, 4.6, 4.0], first=3), code=1)
    assert "of late at step 4" in done.stdout
    done = start("compare.py", first, write("after", first=5), code=2)
    assert "after has no step in common with first: compare others" in done.stderr


@pytest.mark.parametrize("no_number", [None, float("nan")])  # NaN: of older programs
@pytest.mark.parametrize("order", [("good", "diverged"), ("diverged", "good")])
def test_no_number_is_not_equal(write, order, no_number):
    write("good")
    write("diverged", [*LOSSES[:3], no_number], val_loss=None)
    done = start("compare.py", *order, code=1)
    assert f"NOT equal: the largest difference from {order[0]} is inf, of {order[1]} at step 4" in done.stdout


def test_what_is_refused(write):
    write("good")
    write("nothing", [])
    Path("empty").mkdir()
    for name in ("gone", "empty", "nothing", "ddp-3"):
        done = start("compare.py", "good", name, code=2)
        named = "name folders that programs were given by --out, or some of single-1 ddp-2"
        assert done.stderr.startswith(f"compare.py: error: no step in {name}/metrics.jsonl: {named}")
        assert "equal" not in done.stdout


def test_a_run_alone(write):
    """As long as it has no validation, and another program still writes its last line."""
    done = start("compare.py", write("alone", [4.5], val_loss=None, extra='{"step": 6, "lo'))
    assert table(done.stdout)["alone"] == {
        "step": "1", "loss": "4.500000000000", "val_loss": "nan", "speed": "7", "apart": "0.0e+00",
    }  # fmt: skip
    assert "equal" not in done.stdout


def test_pictures(write):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -r requirements-dev.txt")
    long, short = write("long", [5 - step / 500 for step in range(1000)]), write("short", [5.0, 4.9])
    done = start("compare.py", long, short, code=1)
    assert "picture: runs/compare/compare.png\n" in done.stdout
    size_of(Path("runs/compare/compare.png"))
    start("compare.py", short, "--out", "new/folder")
    size_of(Path("new/folder/compare.png"))


def test_what_is_drawn_of_a_long_run():
    points = {step: float(step) for step in range(1, 201)}
    program = f"from compare import curve; print(curve({points}), curve({{1: 5.0, 3: 4.0}}), curve({{}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=TRAINING, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    means = [float(step) for step in range(2, 200, 3)] + [199.5]
    assert done.stdout == f"{[means, means]} {[[1.0, 3.0], [5.0, 4.0]]} {[[], []]}\n"
