"""What the programs say when they cannot train: wrong flags, no data, ranks that differ, a loss that is no number."""

import argparse
import dataclasses
import json
import os
import re
import shutil
import sys

import pytest
from training_runs import TINY, TRAINING, Launch, checkpoints, damage

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--steps", "0"], "argument --steps: '0' has to be a whole number above 0"),
        (["--steps", "1e3"], "argument --steps: '1e3' has to be a whole number above 0"),
        (["--layers", "0"], "and --context and --layers at least 1: Config(vocabulary=256, context=128, layers=0,"),
        (["--dtype", "half"], "argument --dtype: invalid choice: 'half'"),
        (["--micro-batch", "5"], "--micro-batch 5 does not divide the 32 sequences of a rank: choose a divisor"),
        (["--out", __file__], f"File exists: '{__file__}': give another --out"),
        (["--workers", "-1"], "--workers -1 has to be 0 or more"),
        (["--grad-clip", "0"], "argument --grad-clip: '0' has to be a number above 0"),
        (["--timeout", "inf"], "argument --timeout: 'inf' has to be a whole number above 0"),
        (["--profile", "5"], "argument --profile: '5' has to be FIRST:LAST, two steps from 2 on, for example 5:8"),
        (["--profile", "1:3"], "argument --profile: '1:3' has to be FIRST:LAST"),
        (["--profile", "8:5"], "argument --profile: '8:5' has to be FIRST:LAST"),
        (
            ["--data", "/nowhere"],
            "--data /nowhere: [Errno 2] No such file or directory: '/nowhere' (on this node, seen",
        ),
        (["--data", TRAINING], "Is a directory"),
        (["--data", __file__, "--context", 1000], " bytes of text, too few for --context 1000: add text"),
        (["--global-batch", 10**6], "add data, or lower --global-batch 1000000"),
    ],
)
def test_bad_flags(words, expected, refused):
    assert expected in refused(*words)


def test_fields_of_a_model_are_flags(modules, monkeypatch, capsys):
    @dataclasses.dataclass(frozen=True)
    class Config:
        dropout: bool = True
        rate: float = 0.5

    monkeypatch.setattr(modules.arguments, "Config", Config)
    parser = modules.arguments.make_parser("")
    assert (parser.parse_args([]).dropout, parser.parse_args(["--no-dropout"]).dropout) == (True, False)
    assert parser.parse_args(["--rate", "0.25"]).rate == 0.25
    monkeypatch.setattr(modules.arguments, "Config", dataclasses.make_dataclass("Config", [("micro_batch", int, 1)]))
    with pytest.raises(argparse.ArgumentError, match="conflicting option string: --micro-batch"):
        modules.arguments.make_parser("")


@pytest.mark.parametrize("program", ["train_single", "train_ddp", "train_fsdp", "compare", "sample"])
def test_help(program, server, tmp_path):
    """Which @record would take for the good end of a run."""
    done = Launch(tmp_path / "log", 1, TRAINING / f"{program}.py", "--help").wait()
    assert (done.codes, done.err) == ([0], "")
    assert done.out.startswith(f"usage: {program}.py")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("train_single", "each of 2 ranks would train by itself: use training/train_ddp.py"),
        (
            "train_ddp",
            "2 tasks started, but RANK is not set, so each would run as a separate job: "
            "start train_ddp.py through the submit script",
        ),
    ],
)
def test_ranks_that_do_not_know_of_each_other(program, expected, modules, text, tmp_path, monkeypatch, capsys):
    """Srun or mpirun without launch/rank.sh: each would train the whole and write to the same folder."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    words = [f"{program}.py", *TINY, "--steps", 1, "--data", text, "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    main = getattr(modules, program).main
    with pytest.raises(SystemExit) as end:
        getattr(main, "__wrapped__", main)()  # without @record, which reports to a launcher
    assert (end.value.code, capsys.readouterr().err) == (2, f"{program}.py: error: {expected}\n")


def test_a_loss_that_is_no_number(refused, text, tmp_path):
    assert "lower --learning-rate 1e+300" in refused(*TINY, "--data", text, "--learning-rate", "1e300")
    assert checkpoints(tmp_path / "run") == []
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert not [line for line in lines if "NaN" in line or "Infinity" in line]  # which is no JSON
    assert json.loads(lines[-1])["loss"] is None


def test_a_validation_loss_that_is_no_number_is_not_saved(refused, text, tmp_path):
    words = [*TINY, "--data", text, "--learning-rate", 1e30, "--steps", 5, "--save-every", 1, "--eval-every", 1]
    message = refused(*words)
    stopped = re.fullmatch(r"(?:val_)?loss is nan at step (\d): lower --learning-rate 1e\+30", message)
    assert stopped, message
    saved = [f"{step:02d}" for step in range(1, int(stopped[1]))]
    assert saved, message  # the first steps have losses, if large ones
    assert checkpoints(tmp_path / "run") == saved[-3:]  # --keep 3


def test_nodes_that_read_different_files(server, driver, text, tmp_path):
    """Each rank is sent to a file of its own: all must end, and say where which one was read."""
    for rank in (0, 1):
        (tmp_path / str(rank)).write_bytes(text.read_bytes() + bytes([rank]))
    path = driver(f"sys.argv += ['--data', {str(tmp_path)!r} + f'/{{rank}}']")
    done = Launch(tmp_path / "log", 2, path, TRAINING / "train_ddp.py", *TINY, "--out", tmp_path / "run").wait()
    assert done.codes == [2, 2]
    assert done.err.count("error: ranks differ in their data or checkpoints: text of 21,701 bytes (checksum ") == 2
    assert f" on {os.uname().nodename}. Share --data and --out among nodes" in done.err


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_nodes_that_see_different_checkpoints(program, half, driver, server, text, tmp_path):
    """Each rank has a folder of its own, as on nodes without a shared file system; one has a checkpoint more."""
    folder = half(program)
    for rank in (0, 1):
        shutil.copytree(folder, tmp_path / str(rank), symlinks=True)
    damage(tmp_path / "1" / os.readlink(folder / "latest"), "empty")
    path = driver(f"sys.argv += ['--out', {str(tmp_path)!r} + f'/{{rank}}']")
    words = [*TINY, "--data", text, "--resume"]
    done = Launch(tmp_path / "log", 2, path, TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2, 2], done.err
    assert "to start after step 20 on " in done.err

    shutil.rmtree(tmp_path / "1")
    done = Launch(tmp_path / "log", 2, path, TRAINING / f"{program}.py", *words).wait()
    assert done.codes == [2, 2], done.err
    assert f"to start after step 20 on {os.uname().nodename}. Share --data and --out among nodes\n" in done.err
