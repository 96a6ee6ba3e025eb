"""The programs of the training example have equal losses, however the batch is divided and the model is sharded."""

import argparse
import difflib
import math
import re
import shutil
from contextlib import contextmanager, nullcontext

import pytest
from training_runs import (
    EXACT,
    EXACT_COMPILED,
    EXACT_FLOAT32,
    STEPS,
    TINY,
    TRAINING,
    Launch,
    assert_same,
    largest_difference,
)
from waiting import PATIENCE

torch = pytest.importorskip("torch")


# Alike


def changed_lines(some, others):
    """Return the lines that diff shows of two texts, without its headers."""
    lines = difflib.unified_diff(some.splitlines(), others.splitlines(), n=0)
    return [line for line in lines if line[:3] not in ("---", "+++", "@@ ")]


@pytest.mark.parametrize(
    ("one", "other", "most"),
    [("train_single", "train_ddp", 60), ("train_ddp", "train_fsdp", 90)],  # the second builds its model in a function
)
def test_the_programs_are_there_to_be_compared(one, other, most):
    some, others = ((TRAINING / f"{name}.py").read_text() for name in (one, other))
    assert 0 < len(changed_lines(some, others)) <= most


def test_the_readme_shows_the_difference_and_a_reason_for_each_part():
    sources = ((TRAINING / f"train_{name}.py").read_text() for name in ("single", "ddp"))
    some, others = (re.sub(r'^ *""".*?"""\n', "", source, flags=re.S | re.M) for source in sources)
    shown = re.search(r"```diff\n(.*?)```", (TRAINING / "README.md").read_text(), re.S)[1]
    assert [line for line in shown.splitlines() if line[0] != "#"] == changed_lines(some, others)
    parts = re.split(r"^# .*\n", shown, flags=re.M)
    assert parts[0] == "" and max(part.count("\n") for part in parts) <= 6


@pytest.mark.parametrize(
    ("program", "ranks", "words"),
    [
        ("train_single", 1, ("--micro-batch", 4)),
        ("train_ddp", 1, ()),
        ("train_ddp", 2, ("--micro-batch", 2)),
        ("train_ddp", 4, ()),
        ("train_fsdp", 2, ("--micro-batch", 4)),
        ("train_fsdp", 4, ()),
    ],
)
def test_losses_are_equal_however_the_batch_is_divided(program, ranks, words, trained, whole):
    run, micro = trained(program, ranks, *words), words[1] if words else 16 // ranks
    parts = 16 // ranks // micro
    assert f"16 sequences = {ranks} (ranks) x {micro} (micro batch) x {parts} (accumulation), 512 tokens" in run.out
    assert run.out.count(f"ranks   {ranks} (cpu, float64)") == 1  # rank 0 alone prints
    figures = {"program": program, "world_size": ranks, "micro_batch": micro, "accumulation": parts, "first_step": 0}
    assert {name: run.figures[name] for name in figures} == figures
    assert (run.figures["steps"], len(run.figures["losses"])) == (STEPS, STEPS)
    assert_same(run.folder, whole.folder)
    assert largest_difference(run.figures["losses"], whole.figures["losses"]) <= EXACT
    assert abs(run.figures["val_loss"] - whole.figures["val_loss"]) <= EXACT


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


FLOAT64 = argparse.Namespace(name="float64", weights_dtype=torch.float64, autocast=nullcontext())


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("train_ddp", 2),
        pytest.param("train_single", 1, marks=pytest.mark.drill),
        pytest.param("train_fsdp", 2, marks=pytest.mark.drill),
    ],
)
def test_losses_are_equal_with_activations_that_are_computed_again(program, ranks, train, driver, tmp_path, whole):
    """And far fewer of them are kept: of a layer its input alone."""
    change = """
import model, torch
logits = model.GPT.logits
def watched(self, tokens):
    kept = []
    def keep(tensor):
        kept.append(tensor.nbytes)
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = logits(self, tokens)
    if self.training:
        print("kept", sum(kept), flush=True)
    return result
model.GPT.logits = watched
"""
    kept = {}
    for words in ((), ("--activation-checkpointing",)):
        run = train(tmp_path / f"run{len(words)}", ranks, program, "--steps", 8, *words, driver=driver(change))
        assert largest_difference(run.figures["losses"], whole.figures["losses"][:8]) <= EXACT
        kept[len(words)] = max(map(int, re.findall(r"kept (\d+)", run.out)))
    assert kept[1] < kept[0] / 4


def test_gradients_are_averaged_and_not_added_up(train, driver, tmp_path):
    """AdamW and clipping would hide a factor: plain SGD, unclipped, on all programs."""
    plain = """
import optimizer, torch
torch.nn.utils.clip_grad_norm_ = lambda *_: None
optimizer.make_optimizer = lambda model, rate: torch.optim.SGD(model.parameters(), lr=rate)
"""
    words = ["--steps", 5, "--learning-rate", 0.5]
    runs = [
        train(tmp_path / f"{program}-{ranks}", ranks, program, *words, *more, driver=driver(plain)).figures["losses"]
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
    model.forward = lambda inputs, targets: 30 * model.weight * inputs
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    batch = [torch.ones(4, 1).double(), torch.ones(4, 1)]
    args = argparse.Namespace(micro_batch=2, grad_clip=0.5)
    modules.train_single.train_step(model, optimizer, batch, args, FLOAT64)
    assert before - model.weight.item() == pytest.approx(0.5, rel=1e-4)
    args.grad_clip = 100.0
    modules.train_single.train_step(model, optimizer, batch, args, FLOAT64)
    assert before - model.weight.item() == pytest.approx(30.5, rel=1e-4)


def test_a_model_with_buffers_cannot_be_drawn_weight_by_weight(server, driver, text, tmp_path):
    change = """
import model, torch
build = model.GPT.__init__
def with_buffer(self, config):
    build(self, config)
    self.register_buffer("mask", torch.ones(2))
model.GPT.__init__ = with_buffer
"""
    words = [*TINY, "--data", text, "--out", tmp_path / "run"]
    done = Launch(tmp_path / "log", 1, driver(change), TRAINING / "train_fsdp.py", *words).wait()
    assert done.codes == [2]
    assert "train_fsdp.py: error: GPT in model.py has init_weight() and buffers, which have no values here" in done.err


def test_no_rank_ever_holds_the_whole_of_a_sharded_model(server, driver, text, tmp_path):
    """Peak memory of four ranks while they build 100 MB of weights: their parts and one weight more, at most."""
    change = """
import argparse
import train_fsdp
from model import Config
def peak():  # bytes
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
def measured(build, *arguments):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = peak()
    model = build(*arguments)
    return peak() - before, model
build = train_fsdp.build_sharded_model
def compared(args, *others):
    build(argparse.Namespace(**dict(vars(args), config=Config())), *others)  # what the first use imports
    parts, model = measured(build, args, *others)
    weights = [4 * weight.numel() for weight in model.parameters()]
    whole, model = measured(train_fsdp.GPT, args.config)
    print("peak", parts, whole, sum(weights), max(weights), flush=True)
    os._exit(0)
train_fsdp.build_sharded_model = compared
train_fsdp.main()
"""
    words = [*TINY, "--dtype", "float32", "--data", text, "--layers", 8, "--width", 512, "--out", tmp_path / "run"]
    done = Launch(tmp_path / "log", 4, driver(change), TRAINING / "train_fsdp.py", *words).wait()
    assert done.codes == [0] * 4, done.err
    peaks = [list(map(int, line)) for line in re.findall(r"peak (\d+) (\d+) (\d+) (\d+)", done.out)]
    assert len(peaks) == 4
    for parts, full, weights, largest in peaks:
        assert weights > 100e6
        assert full > 0.85 * weights  # what it would be otherwise: the measurement sees it
        assert parts < weights / 4 + 2 * largest + 10e6


def test_sharded_layers_keep_no_copy_of_their_weights_for_the_backward_pass(train, driver, tmp_path):
    """Autocast would keep a bfloat16 copy of each gathered weight alive, and with them the whole model."""
    watch = """
import model, torch
alive, forward = [], model.GPT.forward
def keep(tensor):
    alive.append(tensor)
    return tensor
def watched(self, *batch):
    alive.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = forward(self, *batch)
    parts = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive if t.dtype == torch.bfloat16}
    weights = {tuple(p.shape) for block in self.blocks for p in block.parameters() if p.dim() == 2}
    shapes = weights | {shape[::-1] for shape in weights}
    whole = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive if tuple(t.shape) in shapes}
    print("weights kept:", sum(whole.values()), "of", len(parts), flush=True)
    return losses
model.GPT.forward = watched
"""
    run = train(tmp_path / "run", 2, "train_fsdp", "--steps", 1, "--dtype", "bfloat16", driver=driver(watch))
    kept = [int(size) for size in re.findall(r"weights kept: (\d+) of [1-9]", run.out)]
    assert kept and set(kept) == {0}


class Watched(torch.nn.Module):
    """A model that notes whether a micro batch's passes are to be reduced, asked in the way of DDP or of FSDP."""

    def __init__(self):
        super().__init__()
        self.weight, self.reduces, self.events = torch.nn.Parameter(torch.ones(())), True, []
        self.weight.register_hook(lambda _: self.events.append(("backward", self.reduces)))

    def forward(self, tokens, targets):
        self.events.append(("forward", self.reduces))
        return self.weight * tokens.double()

    @contextmanager
    def no_sync(self):
        self.reduces = False
        yield
        self.reduces = True

    def set_requires_gradient_sync(self, reduces):
        self.reduces = reduces


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_the_last_micro_batch_alone_is_reduced(program, modules):
    model, tokens = Watched(), torch.zeros(6, 3, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters())
    args = argparse.Namespace(micro_batch=2, grad_clip=1.0)
    getattr(modules, program).train_step(model, optimizer, [tokens, tokens], args, FLOAT64)
    assert model.events == [(part, last) for last in (False, False, True) for part in ("forward", "backward")]


@pytest.mark.parametrize(
    ("program", "operation", "per_step"),
    [("train_ddp", "c10d::allreduce_", 1), ("train_fsdp", "c10d::_reduce_scatter_base_", 3)],  # 2 layers, and the rest
)
def test_gradients_cross_the_network_once_per_step(program, operation, per_step, train, driver, tmp_path):
    change = f"""
import {program}, torch.profiler
step = {program}.train_step
def counted(*arguments):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        loss = step(*arguments)
    print("reductions", sum(event.name == "{operation}" for event in seen.events()), flush=True)
    return loss
{program}.train_step = counted
{program}.main()
{program}.shutdown()
"""
    run = train(tmp_path / "run", 2, program, "--steps", 3, "--micro-batch", 2, driver=driver(change))
    assert run.figures["accumulation"] == 4
    assert re.findall(r"reductions (\d+)", run.out) == 2 * 3 * [str(per_step)]


# Evaluation


def test_evaluation_is_the_mean_over_every_window(modules, whole, text):
    """Against the plainest code: one window after the other, no batches."""
    state = torch.load(whole.folder / "latest", weights_only=True)
    model = modules.model.GPT(modules.model.Config(context=32, layers=2, heads=2, width=32)).double()
    model.load_state_dict(state["model"])
    content = torch.tensor(list(text.read_bytes()[-1085:]))
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model.logits(content[None, i : i + 32])[0], content[i + 1 : i + 33])
            for i in range(0, 33 * 32, 32)
        ]
    assert len(losses) == 33
    assert abs(math.fsum(losses) / 33 - whole.figures["val_loss"]) <= EXACT


class Echo(torch.nn.Module):
    """A model whose loss is its input; it notes the sizes of the batches."""

    def __init__(self):
        super().__init__()
        self.sizes, self.seen = [], []

    def forward(self, tokens, targets):
        assert not self.training
        self.sizes.append(len(tokens))
        self.seen += tokens[:, 0].tolist()
        return tokens.double()


def evaluate(modules, content, context, size, rank=0, world=1):
    """Return the model, and the sum and number of losses that a rank adds to those of others."""
    sums = []
    samples, model = modules.data.Windows(content, 0, len(content), context), Echo()

    def note(mine):
        sums.extend(mine.tolist())
        return mine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.distributed, "sum_over_ranks", note)
        modules.evaluation.evaluate(model, samples, size, FLOAT64, torch.device("cpu"), rank, world)
    assert model.training
    return model, *sums


@pytest.mark.parametrize(
    ("bytes_", "world", "size"), [(21 * 4 + 1, 1, 5), (21 * 4 + 1, 4, 2), (2 * 4 + 1, 3, 4), (9 * 4 + 1, 4, 3)]
)
def test_ranks_evaluate_each_window_once_in_the_same_number_of_batches(bytes_, world, size, modules):
    """Where there are fewer windows than ranks too: a rank without one takes part, and adds nothing."""
    content = bytes(range(bytes_))
    models, sums, numbers = zip(*(evaluate(modules, content, 4, size, rank, world) for rank in range(world)))
    assert len({len(model.sizes) for model in models}) == 1
    assert max(models[0].sizes) <= size
    assert sum(numbers) == bytes_ - 1
    assert sum(sums) == sum(content[:-1])


def test_a_large_text_is_evaluated_in_a_sample_spread_over_it(modules, monkeypatch):
    monkeypatch.setattr(modules.evaluation, "MOST_SAMPLES", 10)
    model, _, number = evaluate(modules, bytes(range(201)), 2, 4)
    assert model.seen == list(range(0, 200, 20)) and number == 10 * 2
