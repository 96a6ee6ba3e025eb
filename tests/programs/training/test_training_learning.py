"""The learning rate, the figures of a run, and whole runs as people start them, which have to learn something."""

import json
import math
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest
from training_runs import ENVIRONMENT, SHAPE, STEPS, TINY, TRAINING, Launch, metrics

torch = pytest.importorskip("torch")


# Learning rate and figures


def test_the_learning_rate_rises_and_falls(modules):
    def rate(step, *words):
        args = modules.arguments.make_parser("").parse_args(["--learning-rate", "2", "--global-batch", "32", *words])
        return modules.schedule.learning_rate_at(step, args)

    rates = [rate(step) for step in range(1, 202)]
    assert rates[:20] == pytest.approx([0.1 * step for step in range(1, 21)])
    assert max(rates) == rates[19] == 2.0
    assert all(a > b for a, b in zip(rates[20:], rates[21:]))
    assert rates[110] == pytest.approx((2.0 + 0.2) / 2)  # half of the way down
    assert rates[-1] == rate(1000) == pytest.approx(0.2)
    assert rate(1, "--steps", "1") == 2.0


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_can_grow_with_the_batch(rule, factor, solo, text, tmp_path):
    words = [*TINY, "--data", text, "--steps", 1, "--decay-steps", 1, "--global-batch", 128]
    words += ["--learning-rate", 0.01]
    solo(*words)
    assert metrics(tmp_path / "run")[0]["lr"] == 0.01  # of a run of one step it is the peak
    solo(*words, "--scale-learning-rate", rule)
    assert metrics(tmp_path / "run")[0]["lr"] == pytest.approx(0.01 * factor)


def test_figures(whole, text):
    figures = whole.figures
    assert figures["program"] == "train_single"
    assert (figures["world_size"], figures["accumulation"], figures["dtype"]) == (1, 1, "float64")
    assert figures["tokens_per_second"] > 0
    assert figures["mfu"] is None  # nobody knows the peak of a CPU
    assert 50e6 < figures["peak_memory_bytes"] < 8e9
    lines = metrics(whole.folder)
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in losses] == figures["losses"]
    assert all(line["tokens_per_second"] > 0 and line["mfu"] is None for line in losses)
    assert [line["step"] for line in lines if "val_loss" in line] == [10, 20, 30, 40]
    assert (figures["final_loss"], figures["val_loss"]) == (figures["losses"][-1], lines[-1]["val_loss"])


def test_flops_of_gpt2(modules):
    """Against a count by hand of the model of 124 million parameters."""
    with torch.device("meta"):
        model = modules.model.GPT(modules.model.Config(vocabulary=50257, context=1024, layers=12, heads=12, width=768))
    embedding, norms = 50257 * 768, (2 * 12 + 1) * 2 * 768
    layer = (768 + 1) * 3 * 768 + (768 + 1) * 768 + (768 + 1) * 4 * 768 + (4 * 768 + 1) * 768
    weights = embedding + norms + 12 * layer
    assert sum(p.numel() for p in model.parameters()) == weights + 1024 * 768 == 124_439_808
    assert model.flops() == 6 * weights + 12 * 12 * 768 * 1024 == 855_166_464


@pytest.mark.parametrize(
    ("gpu", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA RTX A1000", None),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mfu_is_the_part_of_the_peak_that_the_gpus_reach(gpu, peak, dtype, modules, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    words = ["--dtype", "float32", "--global-batch", "8", "--steps", "3", "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--out", str(tmp_path), *words])
    args = modules.arguments.parse_arguments("", 4)
    model = modules.model.GPT(args.config)
    precision = modules.precision.Precision(dtype, torch.float32, nullcontext())
    state = {"step": 0, "loss": None, "val_loss": None}
    run = modules.metrics.Metrics(args, state, model, precision, torch.device("cuda"), 0, 4)
    for step, loss in enumerate((3.0, 2.0, 1.0), start=1):
        run.add(torch.tensor(loss))
        if step != 2:
            run.log(step)
    run.log_validation(3, 1.0)
    run.finish()
    line, figures = metrics(tmp_path)[-2], json.loads((tmp_path / "figures.json").read_text())
    if peak is None or dtype == "float32":  # the peaks are of bfloat16
        assert line["mfu"] is figures["mfu"] is None
        assert ", mfu " not in capsys.readouterr().out
    else:
        for measured in (line, figures):
            expected = measured["tokens_per_second"] * model.flops() / (4 * peak)
            assert measured["mfu"] == pytest.approx(expected, abs=1e-4)


# The whole


def test_it_learns(solo):
    """The default text and learning rate on a smaller model: a minute's worth of the default in some seconds."""
    words = ["--layers", "2", "--width", "64", "--context", "64", "--steps", "60", "--eval-every", "1000"]
    figures = solo(*words)
    assert abs(figures["losses"][0] - math.log(256)) < 0.5
    assert figures["final_loss"] < 3.6
    assert figures["val_loss"] < 3.6


OWN_MODEL = """
from dataclasses import dataclass
import torch
@dataclass(frozen=True)
class Config:
    context: int = 1
    classes: int = 4
    dropout: float = 0.25
class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 4, 3)])
        self.drop, self.last = torch.nn.Dropout(config.dropout), torch.nn.Linear(64, config.classes)
    def forward(self, images, labels):
        x = images.to(self.last.weight.dtype)
        for block in self.blocks:
            x = block(x).relu()
        return torch.nn.functional.cross_entropy(self.last(self.drop(x.flatten(1))), labels, reduction="none")
    def flops(self):
        return 0
"""
OWN_DATA = """
class Images(list):
    def __getitem__(self, numbers):
        images, labels = zip(*(list.__getitem__(self, number) for number in numbers))
        return torch.stack(images), torch.stack(labels)
def read_corpus(path, context):
    made = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % 4
    images = torch.rand(96, 1, 8, 8, generator=made) * 0.1
    for image, label in zip(images, labels):
        image[0, int(label) * 2] = 1.0
    pairs = list(zip(images, labels))
    return Corpus("stripes", Images(pairs[:64]), Images(pairs[64:]), "stripes, 1")
"""


def test_a_model_and_data_of_ones_own(tmp_path):
    """An image classifier with dropout in place of the two files; nothing else is touched."""
    folder = shutil.copytree(TRAINING, tmp_path / "training", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "model.py").write_text(OWN_MODEL)
    (folder / "data.py").write_text((folder / "data.py").read_text().replace("\ndef main", f"{OWN_DATA}\n\ndef main"))
    words = ["--steps", 30, "--learning-rate", 0.02, "--dropout", 0.1]
    for program, ranks in (("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)):
        figures = tmp_path / f"{program}.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--"]
        line = [sys.executable, *(launcher if ranks > 1 else []), folder / f"{program}.py", *words]
        line += ["--out", tmp_path / program, "--json", figures]
        done = subprocess.run([str(w) for w in line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "corpus  stripes: 64 samples to train on, 32 to validate; steps per epoch: 2" in done.stdout
        assert json.loads(figures.read_text())["val_loss"] < 0.5 < json.loads(figures.read_text())["losses"][0]


def test_no_default_makes_products_less_exact(tmp_path):
    """A variable that some containers set turns TF32 on; --dtype float32 means float32."""
    look = "import precision, torch; precision.choose_precision('float32', torch.device('cpu')); "
    look += "print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(TRAINING), "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "highest False\n"


@pytest.mark.drill
def test_the_default_learns_in_a_minute(server, tmp_path):
    words = ["--out", tmp_path / "run", "--json", tmp_path / "run.json"]
    assert Launch(tmp_path / "log", 2, TRAINING / "train_ddp.py", *words).wait(600).codes == [0, 0]
    losses = json.loads((tmp_path / "run.json").read_text())["losses"]
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


@pytest.mark.parametrize("program", ["train_single", "train_ddp", "train_fsdp"])
def test_plain_python_from_anywhere_without_numpy(program, tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here')")
    (tmp_path / "words.txt").write_text("the text that this run learns\n" * 80)
    done = subprocess.run(
        [sys.executable, str(TRAINING / f"{program}.py"), *SHAPE, "--steps", "2", "--data", "words.txt"],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if program == "train_fsdp":  # torch.distributed.checkpoint cannot do without; better said at once than at a save
        assert done.returncode == 1, done.stderr
        assert "torch.distributed.checkpoint needs NumPy: better said now" in done.stderr
        assert done.stdout == ""
    else:
        assert done.returncode == 0, done.stderr
        assert "step 2/2  validation loss" in done.stdout
        names = {"checkpoint-00000002.pt", "latest", "metrics.jsonl", ".in-use"}
        assert {path.name for path in (tmp_path / "runs/train").iterdir()} == names


@pytest.mark.parametrize(("terminal", "mpirun"), [(True, False), (False, False), (True, True)])
def test_a_terminal_has_a_progress_bar_and_a_log_has_lines(terminal, mpirun, solo, text, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    if mpirun:  # gives ranks a terminal even where its own output is a file
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    words = [*TINY, "--data", text, "--log-every", 2]
    solo(*words, "--steps", 2)
    capsys.readouterr()
    solo(*words, "--steps", 5, "--resume")
    printed = capsys.readouterr().out
    assert printed.endswith("\n")
    shown = [line.split("\r\033[K")[-1] for line in printed.split("\n")]  # what stays
    assert [line[:8] for line in shown if " loss " in line] == [
        "step 3/5",
        "step 4/5",
        "step 5/5",
        "step 5/5",
        "done    ",
    ]
    bars = re.findall(r"\r\033\[K\[(#*) *\] (\d)/5, \d:\d\d:\d\d left(?=\r)", printed)
    if terminal and not mpirun:
        assert bars == [(step * 8 * "#", str(step)) for step in (3, 4, 5)]
    else:
        assert "\r" not in printed and not bars
