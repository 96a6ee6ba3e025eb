"""The training example: equal losses however it is divided, exact resume, and what it says when it cannot run.

Runs of one rank happen in this process (an import of torch costs seconds); only what needs several ranks, or a process
that dies, starts some.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

TRAINING = Path(__file__).resolve().parent.parent / "{{cookiecutter.project}}" / "training"
PROGRAM = TRAINING / "train_ddp.py"
STEPS = 20
TINY = ["--context", "16", "--layers", "1", "--heads", "2", "--width", "16", "--dtype", "float64", "--log-every", "7"]
EXACT = 1e-12  # between two orders of adding the same numbers, in float64
NO_LAUNCHER = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}}
# Byte code beside the sources would become part of every project that is written from here.
ENVIRONMENT = {**NO_LAUNCHER, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
SHOWN = "the text that every run of this file learns\n" * 40


@pytest.fixture(scope="module")
def modules():
    """train_ddp, data and model as their neighbours import them, and afterwards gone."""
    sys.path.insert(0, str(TRAINING))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    import data
    import model
    import train_ddp

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a tiny model more only wait for each other
    yield argparse.Namespace(train_ddp=train_ddp, data=data, model=model)
    torch.set_num_threads(threads)
    sys.dont_write_bytecode = writes
    sys.path.remove(str(TRAINING))
    for name in ("train_ddp", "data", "model"):
        del sys.modules[name]


@pytest.fixture(autouse=True)
def alone(monkeypatch, modules):
    """No trace of a launcher, no GPU."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    if torch.distributed.is_initialized():  # a run in this process has failed
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 21,001 bytes: 65 windows of 16 to validate, which 2 or 4 ranks cannot share equally."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    source = PROGRAM.read_bytes() + (TRAINING / "data.py").read_bytes()
    path.write_bytes(source[:21_001].ljust(21_001))
    return path


@pytest.fixture
def solo(modules, monkeypatch, tmp_path):
    """Run the program in this process with one rank; return its figures."""

    def run(*flags):
        figures = tmp_path / "solo.json"
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), "--json", str(figures), *map(str, flags)])
        modules.train_ddp.main.__wrapped__()  # without @record, which reports to a launcher
        return json.loads(figures.read_text())

    return run


@pytest.fixture
def refused(solo, capsys):
    """Run the program, which must end with exit code 2; return its message, one line without the name in front."""

    def run(*flags):
        with pytest.raises(SystemExit) as end:
            solo(*flags)
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("train_ddp.py: error: ")
        return line

    return run


def start(ranks, *command, **options):
    """Start `ranks` ranks through torchrun; return the finished process."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
    return subprocess.run(
        [str(word) for word in line],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def parallel(ranks, out, *flags):
    """Train with several ranks; return the figures and what was printed."""
    done = start(ranks, PROGRAM, *TINY, "--out", out, "--json", f"{out}.json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(Path(f"{out}.json").read_text()), done.stdout


@pytest.fixture(scope="module")
def uninterrupted(modules, text, tmp_path_factory):
    """What all other runs are compared with: one process, no accumulation, 20 steps, evaluated every 5."""
    out = tmp_path_factory.mktemp("uninterrupted")
    flags = [*TINY, "--steps", STEPS, "--eval-every", 5, "--data", text, "--out", out, "--json", out / "figures.json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(sys, "argv", [str(PROGRAM), *map(str, flags)])
        modules.train_ddp.main.__wrapped__()
    return out, json.loads((out / "figures.json").read_text())


@pytest.fixture(scope="module")
def half(text, tmp_path_factory):
    """Two ranks that stop after half of the steps."""
    out = tmp_path_factory.mktemp("half") / "run"
    flags = ["--steps", STEPS // 2, "--decay-steps", STEPS, "--eval-every", 5, "--data", text]
    figures, printed = parallel(2, out, *flags)
    return out, figures, printed


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def without_speed(lines):
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def largest_difference(some, others):
    assert len(some) == len(others)
    return max(abs(a - b) for a, b in zip(some, others))


def assert_same_metrics(some, others):
    some, others = without_speed(metrics(some)), without_speed(metrics(others))
    assert [(sorted(line), line["step"]) for line in some] == [(sorted(line), line["step"]) for line in others]
    for name in ("loss", "lr", "val_loss"):
        mine, theirs = ([line[name] for line in lines if name in line] for lines in (some, others))
        assert largest_difference(mine, theirs) <= EXACT, name


# Equal losses


def test_accumulation_changes_nothing(solo, text, tmp_path, uninterrupted):
    flags = [*TINY, "--steps", STEPS, "--eval-every", 5, "--data", text, "--out", tmp_path / "run"]
    figures = solo(*flags, "--micro-batch", 4)
    assert figures["accumulation"] == 8
    assert_same_metrics(tmp_path / "run", uninterrupted[0])


def test_four_ranks_that_accumulate(text, tmp_path, uninterrupted):
    flags = ["--steps", STEPS, "--eval-every", 5, "--data", text, "--micro-batch", 2]
    figures, printed = parallel(4, tmp_path / "run", *flags)
    assert (figures["world_size"], figures["accumulation"]) == (4, 4)
    assert "32 sequences = 4 (ranks) x 2 (micro batch) x 4 (accumulation), 512 tokens a step" in printed
    assert_same_metrics(tmp_path / "run", uninterrupted[0])
    assert largest_difference(figures["losses"], uninterrupted[1]["losses"]) <= EXACT
    assert abs(figures["val_loss"] - uninterrupted[1]["val_loss"]) <= EXACT


def test_two_ranks(half, uninterrupted):
    _, figures, printed = half
    assert figures["world_size"] == 2
    assert largest_difference(figures["losses"], uninterrupted[1]["losses"][: STEPS // 2]) <= EXACT
    assert printed.count("ranks   2 (cpu, float64)") == 1  # rank 0 alone prints


def test_no_sync_is_left_only_for_the_last_micro_batch(modules):
    model = torch.nn.Linear(4, 4)
    events = []

    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.quiet = model, False

        def forward(self, x):
            events.append("quiet" if self.quiet else "reduced")
            return self.inner(x.float()[..., None].expand(-1, -1, 4))

        def no_sync(self):
            watched = self

            class Quiet:
                def __enter__(self):
                    watched.quiet = True

                def __exit__(self, *_):
                    watched.quiet = False

            return Quiet()

    tokens = torch.zeros(6, 3, dtype=torch.long)
    modules.train_ddp.train_step(Watched(), torch.optim.SGD(model.parameters()), tokens, tokens, 2, nullcontext())
    assert events == ["quiet", "quiet", "reduced"]


# Evaluation


def test_evaluation_is_the_mean_over_every_window(modules, solo, text, tmp_path, monkeypatch):
    """Against the plainest code: one window after the other, no batches."""
    out = tmp_path / "run"
    figures = solo(*TINY, "--steps", 3, "--data", text, "--out", out)
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    model = modules.model.GPT(modules.model.Config(context=16, layers=1, heads=2, width=16)).double()
    model.load_state_dict(state["model"])
    validation = modules.data.read_corpus(str(text)).validation.long()
    assert len(validation) == 1050
    losses = [
        torch.nn.functional.cross_entropy(model(validation[None, i : i + 16])[0], validation[i + 1 : i + 17]).item()
        for i in range(0, 65 * 16, 16)
    ]
    assert len(losses) == 65
    assert abs(math.fsum(losses) / 65 - figures["val_loss"]) <= EXACT


def test_more_ranks_than_windows_to_evaluate(modules, monkeypatch):
    """A rank without a window takes part in the sum and adds nothing."""
    model = modules.model.GPT(modules.model.Config(context=16, layers=1, heads=2, width=16)).double()
    shares = []
    monkeypatch.setattr(modules.train_ddp.dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(modules.train_ddp.dist, "all_reduce", lambda sums: shares.append(sums.clone()))
    text = torch.arange(33, dtype=torch.uint8)  # two windows
    for rank in range(3):
        monkeypatch.setattr(modules.train_ddp.dist, "get_rank", lambda rank=rank: rank)
        modules.train_ddp.evaluate(model, text, 16, 4, nullcontext())
    assert [share[1].item() for share in shares] == [16, 16, 0]


# Who reads what


def test_every_epoch_reads_every_window_once_in_another_order(modules):
    windows, batch = 50, 8
    steps = windows // batch
    epochs = [
        torch.cat([modules.data.step_order(e * steps + s, windows, batch, 7) for s in range(steps)]) for e in (0, 1)
    ]
    for order in epochs:
        assert len(set(order.tolist())) == steps * batch
    assert epochs[0].tolist() != epochs[1].tolist()
    assert modules.data.step_order(0, windows, batch, 8).tolist() != epochs[0][:batch].tolist()
    # Ranks take strides: together the whole batch, none twice, for any number of them.
    for world in (1, 2, 4, 8):
        shares = [modules.data.step_order(3, windows, batch, 7)[rank::world].tolist() for rank in range(world)]
        together = sorted(window for share in shares for window in share)
        assert together == sorted(epochs[0][3 * batch : 4 * batch].tolist())


def test_a_window_is_text_and_its_targets_are_one_byte_later(modules):
    tokens = torch.arange(100, dtype=torch.uint8)
    assert modules.data.count(tokens, 33) == 3
    assert modules.data.count(tokens, 100) == 0
    inputs, targets = modules.data.cut(tokens, torch.tensor([0, 2]), 33)
    assert inputs[1].tolist() == list(range(66, 99))
    assert targets[1].tolist() == list(range(67, 100))


def test_a_folder_is_its_text_files_in_the_order_of_their_names(modules, tmp_path):
    for name, content in {
        "b.txt": b"B" * 40,
        "a/z.md": b"Z" * 40,
        ".git/x": b"no",
        "c.bin": b"n\0o",
        ".x": b"no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    corpus = modules.data.read_corpus(str(tmp_path))
    whole = bytes(torch.cat([corpus.train, corpus.validation]).tolist())
    assert whole == b"Z" * 40 + b"B" * 40
    assert len(corpus.validation) == 4


def test_the_checksum_sees_any_byte_up_to_64_mib(modules, monkeypatch):
    monkeypatch.setattr(modules.data, "HASH_BLOCK", 16)  # 64 blocks: 1 kB
    content = bytearray(os.urandom(1000))
    checksum = modules.data._checksum(content)
    for place in range(len(content)):
        content[place] ^= 1
        assert modules.data._checksum(content) != checksum
        content[place] ^= 1
    long = bytearray(100_000)
    sampled = modules.data._checksum(long)
    long[-1] = 1
    assert modules.data._checksum(long) != sampled
    assert modules.data._checksum(long[:-1]) != sampled


def test_the_default_corpus_is_python_without_tests(modules):
    corpus = modules.data.read_corpus(None)
    assert len(corpus.train) == 7_600_000
    assert len(corpus.validation) == 400_000
    assert modules.data.read_corpus(None).checksum == corpus.checksum


# Resume


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_is_uninterrupted(ranks, half, text, solo, tmp_path, uninterrupted):
    out = tmp_path / "run"
    shutil.copytree(half[0], out)
    with (out / "metrics.jsonl").open("a") as file:  # what a run writes after its checkpoint, before it dies
        file.write('{"step": 11, "loss": 99.0}\n{"step": 12, "lo')
    flags = ["--steps", STEPS, "--eval-every", 5, "--data", text, "--resume"]
    figures = solo(*TINY, *flags, "--out", out) if ranks == 1 else parallel(2, out, *flags)[0]
    assert (figures["first_step"], figures["steps"], figures["world_size"]) == (10, 20, ranks)
    assert largest_difference(figures["losses"], uninterrupted[1]["losses"][10:]) <= EXACT
    assert_same_metrics(out, uninterrupted[0])


def test_killed_in_the_middle(text, solo, tmp_path, uninterrupted):
    out = tmp_path / "run"
    flags = [*TINY, "--eval-every", 5, "--data", str(text), "--out", str(out)]
    command = [sys.executable, PROGRAM, *flags, "--steps", "100000", "--decay-steps", str(STEPS), "--save-every", "1"]
    with subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 60
            while not (out / "metrics.jsonl").exists() or len(metrics_so_far(out)) < 8:
                assert process.poll() is None, "ended by itself"
                assert time.monotonic() < end, "no progress"
                time.sleep(0.002)
        finally:
            process.send_signal(signal.SIGKILL)
    reached = torch.load(out / "checkpoint.pt", weights_only=True)["step"]
    last = max(STEPS, reached + 1)  # how far it came is up to the machine
    figures = solo(*flags, "--steps", last, "--decay-steps", STEPS, "--resume")
    assert figures["first_step"] == reached
    whole = solo(*flags[:-1], tmp_path / "whole", "--steps", last, "--decay-steps", STEPS)
    assert largest_difference(figures["losses"], whole["losses"][reached:]) <= EXACT
    assert largest_difference(whole["losses"][:STEPS], uninterrupted[1]["losses"]) <= EXACT
    assert_same_metrics(out, tmp_path / "whole")


def metrics_so_far(out):
    return (out / "metrics.jsonl").read_text().splitlines()


def test_nothing_left_to_do(half, text, solo, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(half[0], out)
    before = (out / "checkpoint.pt").read_bytes()
    figures = solo(*TINY, "--steps", 7, "--data", text, "--out", out, "--resume")
    printed = capsys.readouterr().out
    assert "checkpoint.pt is at step 10: nothing is left of --steps 7, a larger number continues" in printed
    assert (figures["steps"], figures["losses"]) == (10, [])
    assert figures["val_loss"] == half[1]["val_loss"]
    assert figures["final_loss"] == half[1]["final_loss"]
    assert (out / "checkpoint.pt").read_bytes() == before


def test_resume_without_a_checkpoint_says_so(text, solo, tmp_path, capsys):
    solo(*TINY, "--steps", 1, "--data", text, "--out", tmp_path / "run", "--resume")
    assert "start   at step 0, there is no" in capsys.readouterr().out
    solo(*TINY, "--steps", 1, "--data", text, "--out", tmp_path / "run")
    assert "will be overwritten (--resume continues it)" in capsys.readouterr().out
    assert [line["step"] for line in metrics(tmp_path / "run")] == [1, 1]  # a loss, an evaluation; of the second run


def test_a_failed_save_leaves_the_old_checkpoint(modules, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"old")

    def dies(file):
        file.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        modules.train_ddp.replace(path, dies)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["torn", "empty", "foreign", "foreign weights"])
def test_a_checkpoint_that_is_none(kind, half, text, refused, tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    shutil.copytree(half[0], path.parent)
    if kind == "torn":
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        torch.save({"model": {}} if kind == "foreign" else [torch.zeros(2)], path)
    message = refused(*TINY, "--data", text, "--out", path.parent, "--resume")
    assert str(path) in message
    assert "without --resume" in message
    assert (
        "it is torn, or no checkpoint" if kind in ("torn", "empty") else "was not written by this program"
    ) in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--seed", 1], "seed is 0 there and 1 here"),
        (["--global-batch", 64], "global_batch is 32 there and 64 here"),
        (["--width", 32], "width is 16 there and 32 here"),
        (["--context", 8], "context is 16 there and 8 here"),
        (["--data", TRAINING], "corpus is "),
    ],
)
def test_a_checkpoint_of_another_run(flags, expected, half, text, refused):
    message = refused(*TINY, "--data", text, "--out", half[0], "--resume", *flags)
    assert "belongs to another run" in message
    assert expected in message
    assert message.endswith("Use its values, or give another --out")


# Refusals


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--steps", "0"], "argument --steps: '0' is not a whole number of at least 1"),
        (["--steps", "1e3"], "argument --steps: '1e3' is not a whole number of at least 1"),
        (["--timeout", "nan"], "argument --timeout: 'nan' is not a number above 0"),
        (["--learning-rate", "-1"], "argument --learning-rate: '-1' is not a number above 0"),
        (["--dtype", "half"], "argument --dtype: invalid choice: 'half'"),
        (["--micro-batch", "5"], "each of 1 ranks gets of --global-batch 32: choose one of 1, 2, 4, 8, 16, 32"),
        (["--width", "100", "--heads", "3"], "--width 100 is no multiple of --heads 3: choose --width 99"),
        (["--json", "/nowhere/x.json"], "--json /nowhere/x.json: there is no folder /nowhere"),
        (["--out", __file__], "is a file: name a folder"),
        (["--data", "/nowhere"], "--data /nowhere: no such file or folder"),
        (["--data", "/dev/null"], "--data /dev/null is neither a file nor a folder"),
    ],
)
def test_bad_flags(flags, expected, refused):
    assert expected in refused(*flags)


@pytest.mark.parametrize(("world", "fix"), [(3, "choose 30 or 33"), (64, "choose 64")])
def test_a_batch_that_the_ranks_cannot_share(world, fix, refused, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert refused().endswith(f"--global-batch 32 sequences cannot be shared equally by {world} ranks: {fix}")


def test_data_that_is_none(refused, tmp_path):
    flags = ["--out", tmp_path / "run", "--data"]
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refused(*flags, tmp_path / "empty.txt")
    (tmp_path / "folder").mkdir()
    assert "no text (hidden files" in refused(*flags, tmp_path / "folder")
    (tmp_path / "folder" / "short.txt").write_text("short " * 100)
    assert "has 600 bytes; a batch of 32 x 128 bytes and something to validate need 4,312" in refused(
        *flags, tmp_path / "folder"
    )


def test_the_number_of_bytes_it_asks_for_is_enough(modules, solo, refused, tmp_path):
    for batch, context in ((32, 16), (1, 16)):
        flags = [*TINY, "--steps", 1, "--global-batch", batch, "--context", context, "--data", tmp_path / "t.txt"]
        (tmp_path / "t.txt").write_text("x")
        needed = int(refused(*flags, "--out", tmp_path / "r").split("need ")[1].split(":")[0].replace(",", ""))
        (tmp_path / "t.txt").write_text("x" * (needed - 1))
        refused(*flags, "--out", tmp_path / "r")
        (tmp_path / "t.txt").write_text("x" * needed)
        assert solo(*flags, "--out", tmp_path / "r")["steps"] == 1


def test_a_loss_that_is_no_number(refused, text, tmp_path):
    flags = [*TINY, "--data", text, "--out", tmp_path / "run", "--learning-rate", "1e300", "--steps", 20]
    assert "lower --learning-rate 1e+300" in refused(*flags)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_nodes_that_read_different_files(tmp_path):
    """Each rank is sent to a file of its own: all must end, and say where which one was read."""
    for rank in (0, 1):
        (tmp_path / f"{rank}.txt").write_text(SHOWN + str(rank))
    send = tmp_path / "send.py"
    send.write_text(
        "import os, runpy, sys\n"
        f"sys.path.insert(0, {str(TRAINING)!r})\n"
        f"sys.argv = ['train_ddp.py', *sys.argv[1:], '--data', {str(tmp_path)!r} + f'/{{os.environ[\"RANK\"]}}.txt']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    done = start(2, send, *TINY, "--out", tmp_path / "run")
    assert done.returncode != 0
    (message,) = (line for line in done.stderr.splitlines() if "error: " in line and "train_ddp.py" in line)
    host = os.uname().nodename
    assert "the ranks do not have the same corpus: checksum " in message
    assert f"on {host} (rank 0); checksum " in message
    assert f"on {host} (rank 1). Give --data a path that all nodes share" in message
    assert "exitcode  : 2" in done.stderr


def test_disagreement_names_hosts_once_each(modules, monkeypatch, capsys):
    def gather(rows, mine):
        for rank, row in enumerate(rows):
            fact = "none" if rank > 5 else "step 7"
            row.copy_(torch.tensor(list(f"{fact}\0n{rank // 2}".encode().ljust(len(mine), b"\0")), dtype=torch.uint8))

    monkeypatch.setattr(modules.train_ddp.dist, "get_world_size", lambda: 14)
    monkeypatch.setattr(modules.train_ddp.dist, "all_gather", gather)
    with pytest.raises(SystemExit):
        modules.train_ddp.agree("checkpoint", "step 7", torch.device("cpu"), "Fix it")
    assert capsys.readouterr().err.endswith(
        "the ranks do not have the same checkpoint: step 7 on n0 (rank 0, 1), n1 (rank 2, 3), n2 (rank 4, 5); "
        "none on n3 (rank 6, 7), n4 (rank 8, 9), n5 (rank 10, 11) and 1 more. Fix it\n"
    )


# The whole


def test_it_learns(solo, tmp_path):
    """The default text and learning rate on a smaller model: a minute's worth of the default in some seconds."""
    flags = ["--layers", "2", "--width", "64", "--context", "64", "--steps", "60", "--eval-every", "1000"]
    figures = solo(*flags, "--out", tmp_path / "run")
    assert abs(figures["losses"][0] - math.log(256)) < 0.5
    assert figures["final_loss"] < 3.6
    assert figures["val_loss"] < 3.6
    assert figures["tokens_per_second"] > 0


def test_bfloat16_learns_too(solo, tmp_path):
    flags = ["--layers", 1, "--width", 32, "--context", 32, "--steps", 20, "--eval-every", 99, "--dtype", "bfloat16"]
    figures = solo(*flags, "--out", tmp_path / "run")
    assert figures["final_loss"] < figures["losses"][0] - 0.5
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert not any(name.startswith("module.") for name in saved)


def test_plain_python_from_anywhere_without_numpy(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here')")
    (tmp_path / "words.txt").write_text(SHOWN)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *TINY, "--steps", "2", "--data", "words.txt"],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 2/2  validation loss" in done.stdout
    assert sorted(path.name for path in (tmp_path / "runs/train").iterdir()) == ["checkpoint.pt", "metrics.jsonl"]


def test_a_terminal_rewrites_its_line_and_a_log_does_not(solo, text, tmp_path, capsys, monkeypatch):
    flags = [*TINY, "--log-every", 1, "--steps", 3, "--data", text, "--out", tmp_path / "run"]
    solo(*flags)
    assert "\r" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    solo(*flags)
    printed = capsys.readouterr().out
    assert printed.count("\rstep ") == 3
    assert "\nstep 3/3  validation loss" in printed
