"""The programs of the training example have equal losses, however the batch is divided and the model is sharded."""

import argparse
import difflib
import math
import re
import shutil

import pytest
from training_runs import (
    EXACT,
    EXACT_COMPILED,
    EXACT_FLOAT32,
    STEPS,
    TRAINING,
    assert_same,
    largest_difference,
)
from waiting import PATIENCE

torch = pytest.importorskip("torch")


def test_the_readme_shows_the_difference_and_a_reason_for_each_part():
    sources = ((TRAINING / f"train_{name}.py").read_text() for name in ("single", "ddp"))
    some, others = (re.sub(r'^ *""".*?"""\n', "", source, flags=re.S | re.M).splitlines() for source in sources)
    changed = [line for line in difflib.unified_diff(some, others, n=0) if line[:3] not in ("---", "+++", "@@ ")]
    shown = re.search(r"```diff\n(.*?)```", (TRAINING / "README.md").read_text(), re.S)[1]
    assert [line for line in shown.splitlines() if line[0] != "#"] == changed
    parts = re.split(r"^# .*\n", shown, flags=re.M)
    assert parts[0] == "" and max(part.count("\n") for part in parts) <= 6


@pytest.mark.parametrize(
    ("program", "ranks", "words"),
    [
        ("train_single", 1, ("--micro-batch", 4)),
        pytest.param("train_ddp", 1, (), marks=pytest.mark.drill),
        ("train_ddp", 2, ("--micro-batch", 2)),
        ("train_ddp", 4, ()),
        pytest.param("train_fsdp", 2, ("--micro-batch", 4), marks=pytest.mark.drill),
        ("train_fsdp", 4, ()),
    ],
)
def test_losses_are_equal_however_the_batch_is_divided(program, ranks, words, trained, whole):
    run, micro = trained(program, ranks, *words), words[1] if words else 16 // ranks
    parts = 16 // ranks // micro
    assert f"16 sequences = {ranks} (ranks) x {micro} (micro batch) x {parts} (accumulation)" in run.out
    assert run.out.count(f"ranks   {ranks} (cpu, float64)") == 1  # rank 0 alone prints
    assert len(run.figures["losses"]) == STEPS
    assert_same(run.folder, whole.folder)


def test_losses_are_equal_in_float32(train, tmp_path):
    one, two = (
        train(tmp_path / program, ranks, program, "--dtype", "float32")
        for program, ranks in (("train_single", 1), ("train_ddp", 2))
    )
    assert largest_difference(one.figures["losses"], two.figures["losses"]) <= EXACT_FLOAT32


@pytest.mark.drill
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)])
def test_losses_are_equal_when_compiled(program, ranks, train, tmp_path, whole):
    words = ["--compile", "--steps", 8, "--micro-batch", 4]
    run = train(tmp_path / "run", ranks, program, *words, seconds=2 * PATIENCE)
    assert f"ranks   {ranks} (cpu, float64, compiled)" in run.out
    assert largest_difference(run.figures["losses"], whole.figures["losses"][:8]) <= EXACT_COMPILED


def test_gradients_are_averaged_and_not_added_up(train, driver, tmp_path):
    """AdamW and clipping would hide a factor: plain SGD, unclipped, on all programs."""
    plain = """
import torch
from lm import schedule
schedule.make_optimizer = lambda model, rate: torch.optim.SGD(model.parameters(), lr=rate)
"""
    words = ["--steps", 5, "--learning-rate", 0.5, "--grad-clip", "inf"]
    runs = [
        train(tmp_path / program, ranks, program, *words, *more, driver=driver(plain)).figures["losses"]
        for program, ranks, more in (
            ("train_single", 1, ()),
            ("train_ddp", 2, ("--micro-batch", 2)),
            ("train_fsdp", 2, ("--micro-batch", 2)),
        )
    ]
    assert runs[0][-1] < runs[0][0] - 0.1
    assert max(largest_difference(runs[0], run) for run in runs[1:]) <= EXACT


def test_gradients_are_clipped(modules):
    model = torch.nn.Linear(1, 1, bias=False).double()
    before = model.weight.item()
    model.forward = lambda inputs, targets: (30 * model.weight * inputs).mean()
    optimizer, device = torch.optim.SGD(model.parameters(), lr=1), torch.device("cpu")
    batch = [torch.ones(4, 1).double(), torch.ones(4, 1)]
    for largest, moved in ((0.5, 0.5), (100.0, 30.5)):
        args = argparse.Namespace(micro_batch=2, grad_clip=largest, dtype="float64")
        modules.train_single.schedule.train_step(model, optimizer, batch, args, device)
        assert before - model.weight.item() == pytest.approx(moved, rel=1e-4)


@pytest.mark.parametrize(
    ("program", "operation", "per_step"),
    [("train_ddp", "c10d::allreduce_", 1), ("train_fsdp", "c10d::_reduce_scatter_base_", 3)],  # 2 layers, and the rest
)
def test_gradients_cross_the_network_once_per_step(program, operation, per_step, train, driver, tmp_path):
    """With four micro batches, of which the last one alone is reduced."""
    change = f"""
import {program}, torch.profiler
from lm import schedule
step = schedule.train_step
def counted(*arguments):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        loss = step(*arguments)
    print("reductions", sum(event.name == "{operation}" for event in seen.events()), flush=True)
    return loss
schedule.train_step = counted
{program}.main()
{program}.setup.leave()
"""
    run = train(tmp_path / "run", 2, program, "--steps", 3, "--micro-batch", 2, driver=driver(change))
    assert re.findall(r"reductions (\d+)", run.out) == 2 * 3 * [str(per_step)]


# Evaluation


def test_evaluation_is_the_mean_over_every_sample(modules, whole, text):
    """Against the plainest code: one sample after the other, no batches."""
    state = torch.load(whole.folder / "latest", weights_only=True)
    model = modules.model.GPT(modules.model.Config(context=32, layers=2, heads=2, width=32)).double()
    model.load_state_dict(state["model"])
    content = torch.tensor(list(text.read_bytes()[-1085:]))
    with torch.no_grad():
        losses = [model(content[None, i : i + 32], content[None, i + 1 : i + 33]) for i in range(0, 33 * 32, 32)]
    assert len(losses) == 33
    assert abs(math.fsum(losses) / 33 - whole.figures["val_loss"][0]) <= EXACT


@pytest.mark.parametrize(("samples", "world", "size"), [(21, 1, 5), (21, 4, 2), (2, 3, 4), (9, 4, 3)])
def test_ranks_evaluate_each_sample_once_in_the_same_number_of_batches(samples, world, size, modules, monkeypatch):
    """Where there are fewer samples than ranks too: a rank without one takes part, and adds nothing."""
    sums, batches = [], []

    class Echo(torch.nn.Module):
        def forward(self, numbers):
            assert not self.training and len(numbers) <= size
            batches[-1] += 1
            return numbers.double().mean()

    monkeypatch.setattr(modules.setup, "sum_over_ranks", lambda mine: sums.append(mine.item()) or mine)
    data, model = [(torch.tensor(number),) for number in range(samples)], Echo()
    for rank in range(world):
        batches.append(0)
        args = argparse.Namespace(micro_batch=size, dtype="float64")
        modules.metrics.evaluate(model, data, args, torch.device("cpu"), rank, world)
    assert model.training and len(set(batches)) == 1
    assert sum(sums) == pytest.approx(sum(range(samples)))
