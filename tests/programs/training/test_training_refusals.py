"""What the programs say when they cannot train: wrong flags, no data, ranks that differ, a loss that is no number."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from training_runs import ENVIRONMENT, TINY, TRAINING, Launch, checkpoints, damage
from waiting import FOREVER, PATIENCE, wait_for

torch = pytest.importorskip("torch")


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


@pytest.mark.parametrize("program", ["train_single", "train_ddp", "train_fsdp", "data", "compare", "sample"])
def test_help(program):
    """Which @record would take for the good end of a run."""
    line = [sys.executable, TRAINING / f"{program}.py", "--help"]
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {program}.py")


@pytest.mark.parametrize("world", [3, 64])
def test_a_batch_that_the_ranks_cannot_share(world, modules, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--global-batch", "32"])
    with pytest.raises(SystemExit) as end:
        modules.arguments.parse_arguments("", world)
    assert end.value.code == 2
    expected = f"--global-batch 32 cannot be shared equally by {world} ranks: choose a multiple of {world}\n"
    assert capsys.readouterr().err == f"train_ddp.py: error: {expected}"


def test_a_program_for_one_rank_on_two(refused, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused() == "each of 2 ranks would train by itself: use training/train_ddp.py"


@pytest.mark.parametrize(
    ("program", "code", "expected"),
    [
        ("train_single", 2, "train_single.py: error: each of 2 ranks would train by itself: use training/train_ddp.py"),
        (
            "train_ddp",
            1,
            "2 tasks started, but RANK is not set, so each would run as a separate job: "
            "start train_ddp.py through the submit script",
        ),
    ],
)
def test_ranks_that_do_not_know_of_each_other(program, code, expected, modules, text, tmp_path, monkeypatch, capsys):
    """Srun or mpirun without launch/rank.sh: each would train the whole and write to the same folder."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    words = [f"{program}.py", *TINY, "--steps", 1, "--data", text, "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    main = getattr(modules, program).main
    with pytest.raises(SystemExit) as end:
        getattr(main, "__wrapped__", main)()  # without @record, which reports to a launcher
    told = capsys.readouterr().err
    if isinstance(end.value.code, str):  # Python prints what sys.exit() is given, and ends with code 1
        assert (code, expected, told) == (1, end.value.code, "")
    else:
        assert (code, f"{expected}\n") == (end.value.code, told)


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

    def ended():
        process.terminate()  # again and again: the first may be too early
        return not process.is_alive()

    wait_for(ended)
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


def test_a_validation_loss_that_is_no_number_is_not_saved(refused, text, tmp_path):
    words = [*TINY, "--data", text, "--learning-rate", 1e30, "--steps", 5, "--save-every", 1, "--eval-every", 1]
    message = refused(*words)
    stopped = re.fullmatch(r"(?:val_)?loss is nan at step (\d): lower --learning-rate 1e\+30", message)
    assert stopped, message
    saved = [f"{step:02d}" for step in range(1, int(stopped[1]))]
    assert saved, message  # the first steps have losses, if large ones
    assert checkpoints(tmp_path / "run") == saved[-3:]  # --keep 3


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

    def note(mine):
        sent.append(mine)
        return mine

    monkeypatch.setattr(distributed, "sum_over_ranks", note)
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
