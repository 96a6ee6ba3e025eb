"""The learning rate, the figures of a run, a user's own model and data, and whole runs, which have to learn."""

import argparse
import math
import os
import re
import shutil
import subprocess
import sys

import pytest
from training_runs import ENVIRONMENT, SHAPE, STEPS, TRAINING, Launch, figures_of, metrics

torch = pytest.importorskip("torch")


def test_the_learning_rate_rises_and_falls(modules, monkeypatch, tmp_path):
    def rate(step, *words):
        monkeypatch.setattr(sys, "argv", ["train_single.py", "--learning-rate", "2", "--out", str(tmp_path), *words])
        args = modules.arguments.read_arguments("", 1)
        return modules.schedule.learning_rate_at(step, args)

    rates = [rate(step) for step in range(1, 202)]
    assert rates[:20] == pytest.approx([0.1 * step for step in range(1, 21)])
    assert max(rates) == rates[19] == 2.0
    assert all(a > b for a, b in zip(rates[20:], rates[21:]))
    assert rates[110] == pytest.approx((2.0 + 0.2) / 2)  # half of the way down
    assert rates[-1] == rate(1000) == pytest.approx(0.2)
    assert rate(1, "--steps", "1") == 2.0


def test_figures(whole):
    lines = metrics(whole.folder)
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == list(range(1, STEPS + 1))
    assert all(line["tokens_per_second"] > 0 and line["steps"] == STEPS for line in losses)
    assert [line["step"] for line in lines if "val_loss" in line] == [10, 20, 30, 40]
    assert (
        f"done    loss {losses[-1]['loss']:.4f}, validation {lines[-1]['val_loss']:.4f}; see {whole.folder}"
        in whole.out
    )


def test_the_heartbeat_of_hangs(modules, tmp_path, monkeypatch):
    """It comes between lines of progress, too, and from rank 0 alone."""
    clock, beats = [0], []
    monkeypatch.setattr(modules.metrics.time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("HEARTBEAT_FILE", str(tmp_path / "heartbeat"))
    for rank in (1, 0):
        clock[0] = 0
        state = {"step": 0, "loss": None, "val_loss": None}
        args = argparse.Namespace(out=str(tmp_path), profile=None, tensorboard=False, wandb=None, mlflow=None)
        run = modules.metrics.Metrics(args, state, torch.device("cpu"), rank, 2)
        for clock[0] in range(12):
            run.add(torch.tensor(1.0))
            if (tmp_path / "heartbeat").exists():
                beats.append((rank, clock[0]))
                (tmp_path / "heartbeat").unlink()
    assert beats == [(0, 0), (0, 5), (0, 10)]


# The whole


def test_it_learns(solo):
    """The default text and learning rate on a smaller model: a minute's worth of the default in some seconds."""
    words = ["--layers", "2", "--width", "64", "--context", "64", "--steps", "60", "--eval-every", "1000"]
    figures = solo(*words)
    assert abs(figures["losses"][0] - math.log(256)) < 0.5
    assert figures["final_loss"] < 3.6
    assert figures["val_loss"][0] < 3.6


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("train_ddp", 2),
        *(pytest.param(*row, marks=pytest.mark.drill) for row in [("train_single", 1), ("train_fsdp", 2)]),
    ],
)
def test_a_model_and_data_of_ones_own(program, ranks, tmp_path):
    """The two files that README.md shows, an image classifier; nothing else is touched. In float64, as compare.py."""
    folder = shutil.copytree(TRAINING, tmp_path / "training", ignore=shutil.ignore_patterns("__pycache__"))
    shown = re.findall(r"```python\n# lm/(\w+)\.py\n(.*?)```", (TRAINING / "README.md").read_text(), re.S)
    assert [name for name, _ in shown] == ["model", "data"]
    for name, source in shown:
        (folder / f"lm/{name}.py").write_text(source)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--"]
    line = [sys.executable, *(launcher if ranks > 1 else []), folder / f"{program}.py", "--steps", 30]
    line += ["--learning-rate", 0.02, "--out", tmp_path / "run", *(["--dtype", "float64"] if ranks > 1 else [])]
    done = subprocess.run([str(w) for w in line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = figures_of(tmp_path / "run", 0)
    assert figures["val_loss"][0] < 0.5 < figures["losses"][0]


def test_float32_is_no_tf32():
    """A variable that some containers set turns TF32 on."""
    look = "from lm import setup; import torch; setup.choose_dtype('float32', torch.device('cpu')); "
    look += "print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(TRAINING), "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "highest False\n"


@pytest.mark.drill
def test_the_default_learns_in_a_minute(server, tmp_path):
    assert Launch(tmp_path / "log", 2, TRAINING / "train_ddp.py", "--out", tmp_path / "run").wait(600).codes == [0, 0]
    losses = figures_of(tmp_path / "run", 0)["losses"]
    assert len(losses) == 200
    assert abs(losses[0] - math.log(256)) < 0.5
    assert losses[-1] <= 2.6


def test_bfloat16_learns_too(train, tmp_path):
    words = ["--steps", 20, "--dtype", "bfloat16", "--learning-rate", 0.01]
    for program, ranks in (("train_single", 1), ("train_fsdp", 2)):
        run = train(tmp_path / program, ranks, program, *words)
        assert run.figures["final_loss"] < run.figures["losses"][0] - 0.5
    saved = torch.load(tmp_path / "train_single" / "latest", weights_only=True)["model"]
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert not any(name.startswith("module.") for name in saved)


@pytest.mark.parametrize(
    "program", ["train_fsdp", *(pytest.param(name, marks=pytest.mark.drill) for name in ("train_single", "train_ddp"))]
)
def test_plain_python_from_anywhere_without_numpy(program, tmp_path):
    """Copied into an empty folder; beside it are packages of the user that have the names of our modules."""
    folder = shutil.copytree(TRAINING, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("numpy", "data", "model", "metrics", "distributed"):
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError('not here')")
    (tmp_path / "words.txt").write_text("the text that this run learns\n" * 80)
    done = subprocess.run(
        [sys.executable, str(folder / f"{program}.py"), *SHAPE, "--steps", "2", "--data", "words.txt"],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 2/2  validation loss" in done.stdout
    assert (tmp_path / "runs/train/checkpoint-00000002.pt").exists()
    assert os.readlink(tmp_path / "runs/train/latest") == "checkpoint-00000002.pt"
