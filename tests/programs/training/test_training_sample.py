"""sample.py: text from a checkpoint of any of the programs, and what it says when it cannot write any."""

import re
import sys

import pytest
from training_runs import SHAPE, TRAINING, damage

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


def test_any_program_on_any_number_of_ranks_leaves_a_checkpoint_that_writes_the_same_text(trained, whole, sample):
    folders = [trained(program, 2).folder for program in ("train_ddp", "train_fsdp")]
    folders += [whole.folder / "checkpoint-00000040.pt"]
    expected = sample(whole.folder, "--length", 100, "--seed", 3)
    assert re.fullmatch(rf"{whole.folder}/checkpoint-00000040\.pt: step 40, loss \d\.\d{{4}}\n", expected.err)
    for folder in folders:
        assert sample(folder, "--length", 100, "--seed", 3).out == expected.out, folder
    assert sample(whole.folder, "--length", 100, "--seed", 4).out != expected.out


def test_it_continues_what_it_has_learned(solo, sample, tmp_path):
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog, " * 500)
    words = ["--steps", 150, "--learning-rate", 0.01, "--global-batch", 8, "--log-every", 50]
    solo(*SHAPE, *words, "--dtype", "float32", "--data", tmp_path / "text")
    begin = "jumps over the lazy dog, the quick bro"  # longer than the 32 bytes that the model sees
    expected = f"{begin}wn fox jumps over the lazy dog, the quick brown fox jumps over the\n"
    for words in (["--temperature", 0], ["--temperature", 0.1]):
        printed = sample(tmp_path / "run", "--prompt", begin, "--length", len(expected) - len(begin) - 1, *words)
        assert printed.out == expected


@pytest.mark.parametrize("bytes_", [b"\xff\xc3!\xe2\x82", "日本".encode(), b"\x1b[2J"])
def test_bytes_that_are_no_character_are_replaced(bytes_, whole, sample, monkeypatch):
    """And a terminal obeys none."""
    coming = iter(bytes_)
    monkeypatch.setattr(torch, "multinomial", lambda *_, generator: torch.tensor([next(coming)]))
    printed = sample(whole.folder, "--prompt", "à ", "--length", len(bytes_)).out
    assert printed == "à " + bytes_.decode(errors="replace").replace("\x1b", "\ufffd") + "\n"


def test_sample_passes_over_a_torn_checkpoint(half, sample, capsys):
    folder = half("train_ddp")
    before = sample(folder / "checkpoint-00000010.pt", "--length", 20)
    damage(folder / "checkpoint-00000020.pt", "empty")
    after = sample(folder, "--length", 20)
    assert after.out == before.out
    assert f"warning: {folder}/checkpoint-00000020.pt is torn, or no checkpoint (" in after.err
    damage(folder / "checkpoint-00000010.pt", "empty")
    with pytest.raises(SystemExit) as end_of_it:
        sample(folder)
    assert end_of_it.value.code == 2 and f"no checkpoint in {folder} is good" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/nowhere"], "/nowhere has no checkpoint"),
        ([TRAINING], f"{TRAINING} has no checkpoint"),
        (["--prompt", ""], "--prompt '' has to have a character"),
        (["--temperature", "-0.1"], "--temperature -0.1 to be 0 or more"),
        (["--length", "0"], "argument --length: '0' has to be a whole number above 0"),
    ],
)
def test_no_sample(words, expected, sample, capsys):
    with pytest.raises(SystemExit) as end:
        sample(*words)
    assert end.value.code == 2 and expected in capsys.readouterr().err
