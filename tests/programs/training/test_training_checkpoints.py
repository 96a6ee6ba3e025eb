"""Checkpoints survive what happens to them: damage, full disks, crashes, other runs in the same folder."""

import os
import re
import subprocess
import sys

import pytest
from training_runs import (
    ENVIRONMENT,
    EXACT,
    TINY,
    TRAINING,
    WRITER,
    Launch,
    assert_same,
    checkpoints,
    damage,
    largest_difference,
    metrics,
)

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_fsdp", 2)])
def test_the_newest_are_kept(program, ranks, train, tmp_path):
    run = train(tmp_path / "run", ranks, program, "--steps", 10, "--save-every", 3, "--keep", 2)
    assert checkpoints(run.folder) == ["09", "10"]
    assert os.readlink(run.folder / "latest") == "checkpoint-00000010.pt"
    names = {"checkpoint-00000009.pt", "checkpoint-00000010.pt", "latest", "metrics.jsonl", ".in-use"}
    assert {path.name for path in run.folder.iterdir()} == names


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("train_single", "empty"),
        ("train_single", "cut short"),
        ("train_single", "of another program"),
        ("train_ddp", "cut"),
        ("train_fsdp", "cut"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(program, kind, half, train, whole):
    ranks = 1 if program == "train_single" else 2
    folder = half(WRITER[program])
    newest = folder / os.readlink(folder / "latest")
    damage(newest, kind)
    run = train(folder, ranks, program, "--resume", "--save-every", 15, "--steps", 18, "--workers", 2)
    assert f"warning: {newest} is torn, or no checkpoint (" in run.err
    assert "checkpoint-00000010" not in run.err
    assert run.figures["first_step"] == 10
    assert largest_difference(run.figures["losses"], whole.figures["losses"][10:18]) <= EXACT
    assert_same(folder, whole.folder, last=18)
    assert checkpoints(folder) == ["10", "15", "18"]
    assert newest.with_suffix(".torn-1").exists()


def test_the_link_names_what_a_run_has_gone_on_from(half, train):
    folder = half("train_ddp")
    damage(folder / os.readlink(folder / "latest"), "empty")
    train(folder, 2, "train_ddp", "--resume", "--steps", 10)  # the step of the checkpoint before: it saves none
    assert os.readlink(folder / "latest") == "checkpoint-00000010.pt"


ROOT_OF_ZERO = """
from lm.model import GPT
forward = GPT.forward
GPT.forward = lambda self, *batch: forward(self, *batch) + self.norm.bias[0].square().sqrt()
"""


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)])
def test_weights_that_are_no_numbers_are_not_saved(program, ranks, driver, server, text, tmp_path):
    """The root of 0 has no gradient. So the step's loss is a number, and the weights after it are none."""
    words = [*TINY, "--data", text, "--out", tmp_path / "run", "--save-every", 1]
    done = Launch(tmp_path / "log", ranks, driver(ROOT_OF_ZERO), TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2] * ranks, done.err
    assert "loss is nan at step 1: lower --learning-rate 0.001" in done.err
    assert checkpoints(tmp_path / "run") == []


FAILS = """
import builtins, errno, io, pathlib
opened = io.open
def fail(file, *words, **options):
    if '-00000020' in str(file) and str(file).endswith('.pt'):
        raise OSError(errno.ESTALE, 'Stale file handle', str(file))
    return opened(file, *words, **options)
builtins.open = io.open = fail
"""


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_what_cannot_be_read_is_neither_passed_over_nor_removed(program, half, driver, text):
    """A file server that is away for a moment: the newest checkpoint is as good as before."""
    ranks = 1 if program == "train_single" else 2
    folder = half(WRITER[program])
    words = [*TINY, "--data", text, "--out", folder, "--resume"]
    done = Launch(folder, ranks, driver(FAILS), TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2] * ranks, done.err
    assert re.search(r"error: .*-00000020\.pt is there, but could not be read \(.*Stale file handle", done.err)
    assert checkpoints(folder) == ["10", "20"]


class Opens:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("reader", ["sample", "train_single", "train_fsdp"])
def test_a_checkpoint_of_somebody_else_runs_no_code(reader, half, server, text, tmp_path):
    folder = half("train_ddp")
    newest = folder / "checkpoint-00000020.pt"
    torch.save({**torch.load(newest, weights_only=True), "step": Opens(tmp_path / "ran")}, newest)
    if reader == "sample":
        words = [sys.executable, TRAINING / "sample.py", newest, "--length", "1"]
        assert subprocess.run(words, check=False, env=ENVIRONMENT, capture_output=True).returncode == 2
    else:
        words = [*TINY, "--data", text, "--out", folder, "--resume", "--steps", 21]
        done = Launch(folder, 1, TRAINING / f"{reader}.py", *words).wait()
        assert f"{newest} is torn, or no checkpoint (UnpicklingError: " in done.err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_fsdp", 2)])
def test_no_checkpoint_is_good(program, ranks, half, server, text):
    folder = half(WRITER[program])
    for path in folder.glob("checkpoint-*"):
        damage(path, "cut")
    done = Launch(folder, ranks, TRAINING / f"{program}.py", *TINY, "--data", text, "--out", folder, "--resume").wait()
    assert done.codes == [2] * ranks
    assert f"no checkpoint in {folder} is good: give another --out, or move these files away\n" in done.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--global-batch", 64], "--global-batch is 16 there and 64 here"),
        (["--context", 8, "--layers", 1], "--context is 32 there and 8 here; --layers is 2 there and 1 here"),
        (["--data", __file__], "--data is text of 21,700 bytes (checksum "),
    ],
)
def test_a_checkpoint_of_another_run(words, expected, half, text, refused):
    folder = half("train_ddp")
    damage(folder / "checkpoint-00000020.pt", "cut")  # to look further back would find nothing else
    message = refused(*TINY, "--data", text, "--out", folder, "--resume", *words)
    assert f"{folder}/checkpoint-00000010.pt belongs to another run: " in message
    assert expected in message
    assert message.endswith(". Give the values of the checkpoint, or another --out")


def test_a_checkpoint_of_a_model_that_has_changed_is_no_torn_one(half, text, solo):
    """The flags are the same, and model.py is another one."""
    newest = half("train_ddp") / "checkpoint-00000020.pt"
    content = torch.load(newest, weights_only=True)
    content["model"]["former.weight"] = content["model"].pop(next(iter(content["model"])))
    torch.save(content, newest)
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for GPT:(.|\n)*former.weight"):
        solo(*TINY, "--data", text, "--out", newest.parent, "--resume", "--steps", 21)
    assert newest.exists()


def test_a_sharded_checkpoint_of_another_run(half, server, text):
    words = [*TINY, "--data", text, "--out", half("train_fsdp"), "--resume", "--width", 64]
    done = Launch(words[-4], 2, TRAINING / "train_fsdp.py", *words).wait()
    assert done.codes == [2, 2]
    assert "checkpoint-00000020.pt belongs to another run: --width is 32 there and 64 here. Give" in done.err


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


def test_what_a_crash_has_left_does_no_harm(text, solo, tmp_path, whole):
    """A link that was not renamed any more, to the name of the checkpoint that comes now, and a part of another one."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint-00000004.tmp").symlink_to("checkpoint-00000004.pt")
    (folder / "checkpoint-00000006.tmp").write_bytes(b"x" * 1000)
    assert solo(*TINY, "--data", text, "--steps", 4)["steps"] == 4
    assert list(folder.glob("*.tmp")) == [] and not (folder / "checkpoint-00000004.pt").is_symlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\0" * 100 + "}\n")  # of a node that died
    assert solo(*TINY, "--data", text, "--steps", 12, "--resume")["first_step"] == 4
    assert_same(folder, whole.folder, last=12)


def test_an_end_while_a_checkpoint_is_read_is_no_damage(modules, monkeypatch, tmp_path, capsys):
    (tmp_path / "checkpoint-00000001.pt").touch()
    monkeypatch.setattr(torch, "load", lambda *_, **__: sys.exit(3))
    with pytest.raises(SystemExit) as end:
        modules.checkpoints.read_newest(tmp_path, mmap=False)
    assert (end.value.code, capsys.readouterr().err) == (3, "")


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_a_new_run_moves_the_one_before_aside(program, half, train, tmp_path):
    folder = half(WRITER[program])
    aside = folder / "previous-2"
    (folder / "previous-1").mkdir()
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".in-use")
    before = {path.relative_to(folder): path.read_bytes() for path in files}
    run = train(folder, 1, program, "--steps", 1)
    assert f"before  an earlier run is now in {aside}; --resume goes on from a checkpoint" in run.out
    moved = {path.relative_to(aside): path for path in aside.rglob("*")}
    for name, content in before.items():
        assert moved[name].read_bytes() == content
    assert checkpoints(folder) == ["01"]
    assert [line["step"] for line in metrics(folder)] == [1, 1]  # a loss, an evaluation; of the second run


@pytest.mark.parametrize("words", [[], ["--resume"]])
def test_a_run_without_a_checkpoint_is_moved_aside_too(words, text, solo, tmp_path, capsys):
    """Its metrics.jsonl may say why it died; an empty one says nothing."""
    folder = tmp_path / "run"
    folder.mkdir()
    for number, left in enumerate(("", '{"step": 1, "loss": null}\n'), start=1):
        (folder / "metrics.jsonl").write_text(left)
        solo(*TINY, "--steps", 1, "--data", text, *words)
        assert f"an earlier run is now in {folder}/previous-{number};" in capsys.readouterr().out
        assert [line["step"] for line in metrics(folder)] == [1, 1]
        for path in [*folder.glob("checkpoint-*"), folder / "latest"]:
            path.unlink()
    assert (folder / "previous-2/metrics.jsonl").read_text() == left


@pytest.mark.drill
@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_ranks_wait_for_a_slow_checkpoint_beyond_their_timeout(program, server, driver, text, tmp_path):
    change = """
synchronized = os.fsync
def fsync(file):
    os.fsync = synchronized
    print('sleeps', flush=True)
    time.sleep(12)
if rank == 0:
    os.fsync = fsync
"""
    words = [*TINY, "--data", text, "--out", tmp_path / "run", "--steps", 3, "--timeout", 10, "--save-every", 1]
    done = Launch(tmp_path / "log", 2, driver(change), TRAINING / f"{program}.py", *words).wait()
    assert (done.codes, done.out.count("sleeps")) == ([0, 0], 1), done.err
    assert checkpoints(tmp_path / "run") == ["01", "02", "03"]


def test_all_of_a_checkpoint_is_brought_to_the_disk(train, driver, tmp_path):
    change = """
synchronized = os.fsync
def fsync(file):
    print('disk', os.path.basename(os.readlink(f'/proc/self/fd/{file}')), flush=True)
    synchronized(file)
os.fsync = fsync
"""
    done = train(tmp_path / "run", 1, "train_ddp", "--steps", 1, driver=driver(change))
    assert set(re.findall("disk (.*)", done.out)) == {"checkpoint-00000001.tmp", "run"}


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


# The function is torch's own affair: this fails where it is gone. A torch without GPUs says cpu.
BUILT_FOR_GPUS = """
import torch
assert torch._C._get_accelerator().type in ("cpu", "cuda")
def get_accelerator(*_):
    print("asked for the accelerator", flush=True)
    return torch.device("cuda")
torch._C._get_accelerator = get_accelerator
"""


def test_sharded_on_cpus_by_a_torch_that_is_built_for_gpus(train, driver, tmp_path):
    run = train(tmp_path / "run", 2, "train_fsdp", "--steps", 2, driver=driver(BUILT_FOR_GPUS))
    assert "asked for the accelerator\n" in run.out
