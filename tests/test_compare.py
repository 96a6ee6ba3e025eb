"""training/compare.py and plot.py: programs that learn the same pass, a mistake of 1e-10 does not, and the pictures."""

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

TRAINING = Path(__file__).resolve().parent.parent / "{{cookiecutter.project}}" / "training"
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
    """The rows of a Markdown table, each as a dict."""
    titles, _, *rows = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:1] == "|"
    )
    return [dict(zip(titles, row)) for row in rows]


def size_of(png):
    """Width and height of a picture in pixels, from its header."""
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    assert png.stat().st_size > 20_000, "empty axes alone"
    return struct.unpack(">II", head[16:])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes((TRAINING / "common.py").read_bytes()[:20_000])
    return path


@pytest.fixture(scope="module")
def real(text, tmp_path_factory):
    """What compare.py prints of three real runs, and the folder in which it keeps them."""
    folder = tmp_path_factory.mktemp("runs") / "kept"
    runs = ["--runs", "ddp-2-accumulated", "fsdp-4"]
    return start("compare.py", *runs, "--out", folder, "--", *TINY, "--data", text), folder


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file as --json does, with what is different; return its path. The picture goes there, too."""
    monkeypatch.chdir(tmp_path)

    def make(name, losses=LOSSES, **different):
        facts = {"program": "train_ddp", "world_size": 2, "accumulation": 1, "global_batch": 8, "dtype": "float64"}
        facts |= {"first_step": 0, "losses": losses, "val_loss": 4.4, **different}
        path = tmp_path / name
        path.write_text(json.dumps(facts))
        return path

    return make


@pytest.fixture
def hidden(tmp_path):
    """A PYTHONPATH that takes matplotlib away."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/matplotlib.py").write_text("raise ImportError('not in this test')")
    return str(tmp_path / "hidden")


def metrics(folder, steps, extra=""):
    """Write metrics.jsonl as a training program does; a loss falls by 0.01 a step, the first step is slow."""
    folder.mkdir(exist_ok=True)
    lines = []
    for step in range(1, steps + 1):
        speed = 7.0 if step == 1 else 1000.0 + step
        lines.append({"step": step, "loss": 5 - step / 100, "lr": 1e-3, "tokens_per_second": speed})
        lines += [{"step": step, "val_loss": 5 - step / 100}] if step % 20 == 0 or step == steps else []
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + extra)
    return folder


def test_real_runs_are_equal(real):
    done, folder = real
    rows = table(done.stdout)
    facts = [(row["Run"], row["Program"], row["Ranks"], row["Accumulation"], row["Steps"]) for row in rows]
    assert facts == [
        ("single-1", "train_single", "1", "1", "1-6"),
        ("ddp-2-accumulated", "train_ddp", "2", "4", "1-6"),
        ("fsdp-4", "train_fsdp", "4", "1", "1-6"),
    ]
    for row in rows[1:]:
        found = [json.loads((folder / name / "figures.json").read_text()) for name in ("single-1", row["Run"])]
        assert len(found[1]["losses"]) == 6 and found[1]["losses"][-1] < found[1]["losses"][0] - 0.01, "it learns"
        largest = max(abs(a - b) for a, b in zip(found[0]["losses"], found[1]["losses"]))
        assert row["Losses differ by"] == f"{largest:.1e}" and largest <= 1e-14
        assert row["Last loss"] == f"{found[1]['final_loss']:.12f}"
        assert abs(found[0]["val_loss"] - found[1]["val_loss"]) <= 1e-14
    assert re.search(r"^equal: .* from single-1 is .*; allowed is 1e-14$", done.stdout, re.M)
    if "picture:" in done.stdout:
        width, height = size_of(folder / "compare.png")
        assert 1000 < width < 2000 and 800 < height < 2000


def test_a_program_with_a_mistake_is_caught(text, tmp_path):
    """Both ranks read the first one's share: a plausible curve, and not the same."""
    broken = shutil.copytree(TRAINING, tmp_path / "broken")
    source = (broken / "train_ddp.py").read_text()
    assert source.count("args.steps, rank, world)") == 1
    (broken / "train_ddp.py").write_text(source.replace("args.steps, rank, world)", "args.steps, 0, world)"))
    words = ["--out", tmp_path / "out", "--", *TINY, "--data", text]
    done = start("compare.py", "--runs", "ddp-2", *words, folder=broken, code=1)
    assert re.search(r"^NOT equal: .* from single-1 is .*, of ddp-2 at step \d; allowed is 1e-14$", done.stdout, re.M)
    assert float(table(done.stdout)[1]["Losses differ by"]) > 1e-3


def test_a_run_that_fails(text, tmp_path):
    """What the program says is shown, before what torchrun says of it."""
    few = ["--steps", 1, "--global-batch", 3]
    words = ["--out", tmp_path, "--", *TINY, *few, "--data", text]
    done = start("compare.py", "--runs", "ddp-2", *words, code=2)
    said = done.stderr.splitlines()
    assert said[0] == "compare.py: error: ddp-2 ended with exit code 1, and said:"
    assert "train_ddp.py: error: --global-batch 3 sequences cannot be shared equally by 2 ranks" in done.stderr
    assert "equal" not in done.stdout


def test_figures_of_other_jobs(write):
    one, same = write("one.json"), write("same.json", [*LOSSES[:3], LOSSES[3] + 1e-15], program="train_fsdp")
    done = start("compare.py", "--figures", one, same)
    assert [row["Program"] for row in table(done.stdout)] == ["train_ddp", "train_fsdp"]
    assert table(done.stdout)[1]["Losses differ by"] == "8.9e-16"
    wrong = write("wrong.json", [5.5, 5.25 + 1e-10, 5.0, 4.5])
    done = start("compare.py", "--figures", one, same, wrong, code=1)
    verdict = f"NOT equal: the largest difference from {one} is 1.0e-10, of {wrong} at step 2; allowed is 1e-14\n"
    assert verdict in done.stdout
    wrong = write("wrong.json", val_loss=4.4 + 1e-10)
    done = start("compare.py", "--figures", one, wrong, code=1)
    assert f"of {wrong} in the validation loss" in done.stdout
    single = [write(f"{name}.json", losses, dtype="float32") for name, losses in (("a", [5.0]), ("b", [5.000009]))]
    start("compare.py", "--figures", *single)
    bfloat16 = [write(f"{name}.json", losses, dtype="bfloat16") for name, losses in (("a", [5.0]), ("b", [5.000009]))]
    assert "allowed is 0\n" in start("compare.py", "--figures", *bfloat16, code=1).stdout


def test_steps_in_common(write):
    """A run that was resumed, and one that is shorter: neither their other steps nor their validation are compared."""
    one, late = write("one.json"), write("late.json", [5.0, 4.5, 4.0], first_step=2, val_loss=3)
    done = start("compare.py", "--figures", one, late)
    assert [row["Steps"] for row in table(done.stdout)] == ["1-4", "3-4"]
    done = start("compare.py", "--figures", one, write("late.json", [5.0, 4.6, 4.0], first_step=2), code=1)
    assert "late.json at step 4" in done.stdout
    after = write("after.json", first_step=4)
    assert "0 in common: compare runs that" in start("compare.py", "--figures", one, after, code=2).stderr


def test_what_compare_refuses(write, tmp_path):
    one = write("one.json")
    for arguments, message in (
        (["--figures", one], "--figures compares two files or more"),
        (["--figures", one, one, "--runs", "ddp-2"], "not allowed with argument"),
        (["--figures", one, write("other.json", global_batch=16)], "other.json had --global-batch 16 --dtype float64"),
        (
            ["--figures", one, write("float32.json", dtype="float32")],
            "32.json had --global-batch 8 --dtype float32",
        ),
        (["--figures", one, write("nan.json", [5.5, float("nan")])], "nan.json is not what a training program writes"),
        (["--figures", one, write("none.json", [])], "no loss, or one that is no number"),
        (["--figures", one, write("validation.json", val_loss=None)], "validation.json is not what a training program"),
        (["--figures", one, tmp_path / "gone.json"], "gone.json is not what a training program writes for --json"),
        (["--figures", one, TRAINING / "plot.py"], "plot.py is not what a training program writes for --json"),
        (["--runs", "single-1"], "invalid choice: 'single-1'"),
    ):
        done = start("compare.py", *arguments, code=2)
        assert message in done.stderr and "Traceback" not in done.stderr, arguments
        assert "equal" not in done.stdout


def test_pictures(write, tmp_path, hidden):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -r requirements-dev.txt")
    first, second = metrics(tmp_path / "first", 300), metrics(tmp_path / "second", 2)
    done = start("plot.py", first, second)
    assert f"picture: {first}/metrics.png\n" in done.stdout
    width, height = size_of(first / "metrics.png")
    assert 1000 < width < 2000 and 800 < height < 2000
    start("plot.py", second, metrics(tmp_path / "one step", 1), "--out", tmp_path / "few.png")
    size_of(tmp_path / "few.png")
    equal = [write("one.json"), write("two.json", [5.5, 5.25 + 1e-10, 5.0, 4.5])]
    start("compare.py", "--figures", *equal, "--out", tmp_path / "new/folder", code=1)
    size_of(tmp_path / "new/folder/compare.png")
    done = start("compare.py", "--figures", *equal, "--out", tmp_path / "none", code=1, PYTHONPATH=hidden)
    assert f"no matplotlib here, so no {tmp_path}/none/compare.png: pip install matplotlib" in done.stdout
    assert not (tmp_path / "none").exists()


def test_text_without_matplotlib(tmp_path, hidden):
    first, second = metrics(tmp_path / "first", 300), metrics(tmp_path / "second", 1)
    done = start("plot.py", first, second, PYTHONPATH=hidden)
    assert done.stdout.splitlines() == [
        f"{first}: loss 2.0000 at step 300, median 1,151 tokens/s after the first step",  # 1,151 without it
        f"{second}: loss 4.9900 at step 1",
        f"no matplotlib here, so no {first}/metrics.png: pip install matplotlib",
    ]


def test_means():
    points = {step: float(step) for step in range(1, 8)}
    done = subprocess.run(
        [sys.executable, "-c", f"from plot import means; print(means({points}, 3), means({points}, 50))"],
        cwd=TRAINING, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{ {2: 2.0, 5: 5.0, 7: 7.0} } {points}\n"


def test_a_run_that_died(tmp_path, hidden):
    """The line it died in is left out."""
    torn = metrics(tmp_path / "torn", 5, extra='{"step": 6, "lo')
    assert "loss 4.9500 at step 5" in start("plot.py", torn, PYTHONPATH=hidden).stdout


def test_what_plot_refuses(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/metrics.jsonl").write_text("")
    for folder, message in (
        ("gone", "gone/metrics.jsonl is not there: name folders that training programs were given by --out"),
        ("empty", "empty/metrics.jsonl is not there"),
        ("nothing", "nothing/metrics.jsonl has no step in it: wait for the first one, or name another run"),
    ):
        done = start("plot.py", tmp_path / folder, code=2)
        assert done.stderr.startswith("plot.py: error: ") and message in done.stderr
