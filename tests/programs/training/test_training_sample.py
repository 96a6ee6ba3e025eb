"""sample.py: text from a checkpoint of any of the programs, and what it says when it cannot write any."""

import math
import os
import re
import subprocess
import sys

import pytest
from training_runs import ENVIRONMENT, SHAPE, TRAINING, damage

torch = pytest.importorskip("torch")


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
        printed = sample(tmp_path / "run", "--prompt", begin, "--length", len(expected) - len(begin) - 1, *words)
        assert printed.out == expected


@pytest.mark.parametrize("bytes_", [b"\xc3\xa9!", b"\xff\xc3!\xe2\x82", "日本".encode(), b"\x1b[2J"])
def test_bytes_that_are_no_character_are_replaced(bytes_, whole, sample, modules, monkeypatch):
    """Bytes of a character are put together, those that are none of any are replaced. A terminal obeys none."""
    coming = iter(bytes_)
    monkeypatch.setattr(torch, "multinomial", lambda *_, generator: torch.tensor([next(coming)]))
    printed = sample(whole.folder, "--prompt", "à ", "--length", len(bytes_)).out
    assert printed == "à " + bytes_.decode(errors="replace").replace("\x1b", "^[") + "\n"


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


@pytest.mark.parametrize(
    ("program", "code", "printed", "said"),
    [
        ("train_ddp", 0, b"begin", "checkpoint-00000040.pt: step 40, loss "),
        ("train_fsdp", 2, b"", "checkpoint-00000040 is of train_fsdp.py, and torch needs NumPy to read its parts: pip"),
    ],
)
def test_sample_without_numpy(program, code, printed, said, trained, tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here')")
    words = [trained(program, 2).folder, "--length", "5", "--prompt", "begin"]
    done = subprocess.run(
        list(map(str, [sys.executable, TRAINING / "sample.py", *words])),
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert done.stdout[:5] == printed
