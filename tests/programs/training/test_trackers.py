"""--tensorboard and --wandb: what people see of a run is what metrics.jsonl has, also after a kill and a resume.

The packages are the real ones. What they have written is read back: event files by TensorBoard's own reader, W&B's
files by the few lines of wandb_records(). W&B's server alone is a stand-in.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import struct
import sys

import pytest
from training_runs import TINY, TRAINING, Launch, metrics, write_driver
from wandb_server import StandInServer

pytest.importorskip("torch")
pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -r requirements-dev.txt")
pytest.importorskip("wandb", reason="wandb is not installed: pip install -r requirements-dev.txt")

LAST, SAVED, DIED = 24, 10, 17  # steps: of the whole run, of the last checkpoint, of the kill
KEY = "0" * 40
NO_KEY = {"NETRC": "/nowhere", "WANDB_BASE_URL": "https://api.wandb.ai"}

# Ranks that are killed after they have reported step DIED, which no checkpoint has. TensorBoard's thread writes slowly.
DIES = f"""
import signal, time
import metrics
from tensorboard.summary.writer.record_writer import RecordWriter
write = RecordWriter.write
def slow_write(self, data):
    time.sleep(0.01)
    write(self, data)
RecordWriter.write = slow_write
log = metrics.Metrics.log
def log_and_die(self, step):
    log(self, step)
    if step == {DIED}:
        os.kill(os.getpid(), signal.SIGKILL)
metrics.Metrics.log = log_and_die
"""


@pytest.fixture(scope="module", autouse=True)
def no_account():
    """No key and no settings of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name, value in NO_KEY.items():
            patch.setenv(name, value)
        yield


def event_files(folder):
    return sorted((folder / "tensorboard").glob("events.*"))


def board(path, purge=True):
    """Return what TensorBoard shows of a folder: (step, value) of each curve. purge: as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0}, purge_orphaned_data=purge).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def wandb_folders(folder):
    """Return the folders of offline attempts, in the order of their start."""
    return sorted((folder / "wandb").glob("offline-run-*"))


def wandb_records(folder):
    """Read a .wandb file: blocks of 32 KiB, in which parts of records follow a checksum, a length and a kind.

    This is LevelDB's format behind a header of 7 bytes (core/pkg/leveldb of wandb at b6e2950, 2026-08-21). A kind: 1 is
    a whole record, 2 its first part, 3 a further one, 4 its last.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    content, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        if not kind:
            return
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def wandb_rows(folder):
    """Return the rows of a W&B folder as those of metrics.jsonl, without what W&B adds, whose names begin with _."""
    rows = []
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            rows.append((items["_step"], {name: value for name, value in items.items() if name[0] != "_"}))
    return rows


def expected_rows(folder):
    """Return metrics.jsonl with one row per step, and without what is not known, or only for slurm/watch.sh."""
    rows = {}
    for line in metrics(folder):
        shown = {k: v for k, v in line.items() if k not in ("step", "steps", "time") and v is not None}
        rows.setdefault(line["step"], {}).update(shown)
    return sorted(rows.items())


def assert_board_shows_metrics(folder):
    """Every step once, none missing, and the values of metrics.jsonl, which TensorBoard keeps in float32."""
    rows, shown = expected_rows(folder), board(folder / "tensorboard")
    assert [step for step, _ in shown["loss"]] == list(range(1, LAST + 1))
    assert set(shown) == {"loss", "lr", "tokens_per_second", "val_loss"}
    for name, curve in shown.items():
        expected = [(step, row[name]) for step, row in rows if name in row]
        assert [step for step, _ in curve] == [step for step, _ in expected]
        assert [value for _, value in curve] == pytest.approx([value for _, value in expected], rel=1e-6)


WORDS = [*TINY, "--steps", LAST, "--save-every", SAVED, "--log-every", 1, "--tensorboard", "--wandb", "our project"]


@pytest.fixture(scope="module")
def killed(server, text, tmp_path_factory):
    """Two ranks that are killed at step DIED; and what was on the disk then."""
    folder = tmp_path_factory.mktemp("trackers") / "run"
    program = write_driver(folder.parent / "driver.py", DIES)
    words = [*WORDS, "--data", text, "--out", folder]
    done = Launch(folder, 2, program, TRAINING / "train_ddp.py", *words, **NO_KEY).wait()
    assert -9 in done.codes, done.err
    left = {"events": event_files(folder), "wandb": wandb_folders(folder)}
    return argparse.Namespace(folder=folder, words=words, done=done, **left)


@pytest.fixture(scope="module")
def resumed(killed):
    """The same run after --resume, and what it printed."""
    done = Launch(killed.folder, 2, TRAINING / "train_ddp.py", *killed.words, "--resume", **NO_KEY).wait()
    assert done.codes == [0, 0], done.err
    assert f"start   at step {SAVED}" in done.out
    return done


def test_a_kill_and_a_resume_leave_no_gap_and_no_doubled_step_in_tensorboard(killed, resumed):
    folder = killed.folder
    first, second = event_files(folder)  # one per attempt: rank 0 alone writes
    assert killed.events == [first]
    assert [step for step, _ in board(first)["loss"]] == list(range(1, DIED + 1))
    assert [step for step, _ in board(second)["loss"]] == list(range(SAVED + 1, LAST + 1))
    assert_board_shows_metrics(folder)
    assert f"board   tensorboard --logdir {folder}/tensorboard\n" in resumed.out


def test_a_kill_and_a_resume_leave_no_gap_and_no_doubled_step_in_wandb(killed, resumed):
    """Offline: the newest folder has the whole run, whatever became of the others, and the line at the end names it."""
    first, second = wandb_folders(killed.folder)
    assert killed.wandb == [first]
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2]  # W&B's id of the run
    assert wandb_rows(second) == expected_rows(killed.folder)
    assert [step for step, _ in wandb_rows(second)] == list(range(1, LAST + 1))
    command = f"wandb   to send it, from a machine with internet: wandb sync {second}\n"
    assert resumed.out.endswith(command) and resumed.out.count(command) == 2
    assert "wandb   offline: no API key for https://api.wandb.ai, wandb login stores one\n" in resumed.out
    assert str(first) in killed.done.out and resumed.err == ""


def test_what_wandb_is_told_of_the_run(killed, resumed):
    (record,) = [record.run for record in wandb_records(wandb_folders(killed.folder)[1]) if record.HasField("run")]
    assert (record.project, record.display_name) == ("our project", "run")
    config = {item.key: item.value_json for item in record.config.update}
    assert (config["steps"], config["dtype"], config["width"]) == (str(LAST), '"float64"', "32")


def test_a_new_run_moves_the_trackers_of_the_one_before_aside(solo, text, tmp_path, capsys):
    words = [*TINY, "--data", text, "--steps", 2, "--tensorboard", "--wandb", "ours"]
    for _ in range(2):
        solo(*words)
    folder = tmp_path / "run"
    for name in ("wandb", "tensorboard"):
        assert (folder / "previous-1" / name).is_dir()
    (before,), (after,) = wandb_folders(folder / "previous-1"), wandb_folders(folder)
    assert before.name.rpartition("-")[2] != after.name.rpartition("-")[2]
    assert wandb_rows(after) == expected_rows(folder)
    assert [step for step, _ in board(folder / "tensorboard")["loss"]] == [1, 2]


def test_a_tracker_that_comes_late_is_shown_all(solo, text, tmp_path):
    words = [*TINY, "--data", text, "--log-every", 1]
    solo(*words, "--steps", 12)
    solo(*words, "--steps", LAST, "--resume", "--tensorboard", "--wandb", "ours")
    assert_board_shows_metrics(tmp_path / "run")
    (folder,) = wandb_folders(tmp_path / "run")
    assert wandb_rows(folder) == expected_rows(tmp_path / "run")


def test_an_attempt_without_tensorboard_leaves_no_gap(solo, text, tmp_path):
    """Also where the first of two such attempts went back, to before the last step that TensorBoard has."""
    words = [*TINY, "--data", text, "--log-every", 1, "--save-every", 4]
    folder = tmp_path / "run"
    solo(*words, "--steps", 8, "--tensorboard")
    (folder / "checkpoint-00000008.pt").unlink()
    for steps in (12, 16):
        solo(*words, "--steps", steps, "--resume")
    solo(*words, "--steps", 20, "--resume", "--tensorboard")
    assert [step for step, _ in board(event_files(folder)[-1])["loss"]] == list(range(5, 21))
    solo(*words, "--steps", LAST, "--resume", "--tensorboard")
    assert [step for step, _ in board(event_files(folder)[-1])["loss"]] == list(range(21, LAST + 1))
    assert_board_shows_metrics(folder)


def test_an_attempt_that_is_killed_while_it_fills_a_gap_leaves_no_gap(modules, monkeypatch, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    folder, metrics_file = tmp_path / "tensorboard", tmp_path / "metrics.jsonl"
    metrics_file.write_text("".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 10)))
    with monkeypatch.context() as patch:
        patch.setattr(SummaryWriter, "flush", lambda _: sys.exit("killed"))
        with pytest.raises(SystemExit):
            modules.trackers.TensorBoard(folder, 9, metrics_file)
    (killed,) = event_files(tmp_path)
    modules.trackers.TensorBoard(folder, 9, metrics_file).finish()
    (second,) = {*event_files(tmp_path)} - {killed}
    assert [step for step, _ in board(second)["loss"]] == list(range(1, 10))
    assert not list(folder.glob("gap-after-*"))


def test_rows_of_earlier_attempts_are_brought_to_the_disk_at_once(modules, monkeypatch, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    flushed = []
    flush = SummaryWriter.flush

    def count_and_flush(self):
        flushed.append(self)
        flush(self)

    monkeypatch.setattr(SummaryWriter, "flush", count_and_flush)
    rows = [{"step": step, "loss": 1.0} for step in range(1, 10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracker = modules.trackers.TensorBoard(tmp_path / "tensorboard", 9, tmp_path / "metrics.jsonl")
    assert [step for step, _ in board(tmp_path / "tensorboard")["loss"]] == list(range(1, 10))
    assert len(flushed) == 1
    tracker.finish()


def test_nobody_pays_for_a_tracker_that_was_not_asked_for(train, driver, tmp_path):
    look = """
import metrics
finish = metrics.Metrics.finish
def look(self):
    finish(self)
    print("imported:", sorted({"tensorboard", "wandb"} & set(sys.modules)), flush=True)
metrics.Metrics.finish = look
"""
    assert "imported: []" in train(tmp_path / "run", 1, "train_single", "--steps", 1, driver=driver(look)).out


# Refusals


@pytest.mark.parametrize(
    ("words", "module"),
    [(["--tensorboard"], "tensorboard"), (["--tensorboard"], "numpy"), (["--wandb", "ours"], "wandb")],
)
def test_a_missing_package_is_named_before_the_ranks_join(words, module, modules, refused, monkeypatch, tmp_path):
    util = modules.trackers.importlib.util
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == module else find(name))
    expected = f"{words[0]} needs the package {module}: pip install {module}, or leave out {words[0]}"
    assert refused(*words) == expected
    assert not (tmp_path / "run").exists()


def test_a_folder_of_that_name_is_no_package(modules, monkeypatch, tmp_path):
    """W&B itself leaves ./wandb where it is used."""
    (tmp_path / "weights" / "any").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert modules.trackers.importlib.util.find_spec("weights") is not None
    assert not modules.trackers.is_installed("weights") and modules.trackers.is_installed("wandb")


def test_a_package_that_cannot_be_imported(refused, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = refused(*TINY, "--data", text, "--tensorboard")
    assert message.startswith("--tensorboard: ModuleNotFoundError: import of torch.utils.tensorboard halted")
    assert message.endswith("Install its package again, or leave out --tensorboard")


def test_a_package_that_is_too_old_for_protobuf(refused, modules, text, monkeypatch):
    def fail(_):
        raise TypeError("Descriptors cannot be created directly.\nIf this call came from a _pb2.py file")

    monkeypatch.setattr(modules.trackers, "importlib", argparse.Namespace(util=importlib.util, import_module=fail))
    assert refused(*TINY, "--data", text, "--tensorboard") == (
        "--tensorboard: TypeError: Descriptors cannot be created directly. If this call came from a _pb2.py file. "
        "Install its package again, or leave out --tensorboard"
    )


@pytest.mark.parametrize("attributes", [{"model_fields": {"init_timeout": 0}}, {}])  # {}: before 0.19
def test_a_wandb_that_could_wait_forever_is_refused(attributes, refused, text, monkeypatch):
    import wandb

    settings = argparse.Namespace(**attributes)
    old = argparse.Namespace(Settings=settings, __version__="0.26.1", __spec__=wandb.__spec__)
    monkeypatch.setitem(sys.modules, "wandb", old)
    message = refused(*TINY, "--data", text, "--wandb", "ours")
    assert message == "--wandb needs wandb 0.27 or newer, here is 0.26.1: pip install --upgrade wandb"
    assert "finish_timeout" in wandb.Settings.model_fields


def test_a_setting_that_wandb_does_not_know(server, text, tmp_path):
    words = [*TINY, "--data", text, "--out", tmp_path / "run", "--wandb", "ours"]
    more = {**NO_KEY, "WANDB_MODE": "sometimes"}
    done = Launch(tmp_path / "run", 1, TRAINING / "train_single.py", *words, **more).wait()
    assert done.codes == [2]
    assert "train_single.py: error: --wandb: ValidationError: " in done.err and "'sometimes'" in done.err


# Online or offline


@pytest.fixture
def online(server, text, tmp_path):
    """Train beside a W&B server; return what ranks have left, and the folder."""

    def run(address, *words, steps=LAST, programs=(), **more):
        folder = tmp_path / "run"
        words = [*TINY, "--data", text, "--out", folder, "--steps", steps, "--wandb", "ours", *words]
        environment = {**NO_KEY, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": address, **more}
        return Launch(folder, 1, *programs, TRAINING / "train_single.py", *words, **environment).wait(), folder

    return run


def test_rows_reach_a_server_that_can_be_reached(online):
    with StandInServer() as stand_in:
        done, folder = online(stand_in.address)
    assert done.codes == [0], done.err
    assert f"wandb   online: {stand_in.address}/us/ours/runs/" in done.out
    assert [row["_step"] for row in stand_in.rows.values()] == list(range(1, LAST + 1))
    assert [row["loss"] for row in stand_in.rows.values()] == [row["loss"] for _, row in expected_rows(folder)]
    assert "metrics.jsonl has them, and --resume" not in done.out and "wandb sync" not in done.out


@pytest.mark.drill
@pytest.mark.parametrize("known", [7, 17])
def test_a_server_gets_the_rows_that_it_has_not(known, online):
    """An attempt at step 12 goes on where the server knows less, as after an offline attempt, or more, as of a kill."""
    with StandInServer() as stand_in:
        assert online(stand_in.address, steps=12)[0].codes == [0]
    with StandInServer(last_step=known) as stand_in:
        done, folder = online(stand_in.address, "--resume")
    assert done.codes == [0], done.err
    assert [row["_step"] for row in stand_in.rows.values()] == list(range(known + 1, LAST + 1))
    assert list(stand_in.rows) == list(range(known, LAST))
    expected = [row["loss"] for step, row in expected_rows(folder) if step > known]
    assert [row["loss"] for row in stand_in.rows.values()] == expected


@pytest.mark.drill
def test_a_server_that_falls_silent_keeps_no_training_from_its_end(online):
    with StandInServer(hangs=True) as stand_in:
        done, folder = online(stand_in.address, "--timeout", 20)
    assert done.codes == [0], done.err
    assert "wandb   does not have all rows (TimeoutError: " in done.out
    assert done.out.endswith("): metrics.jsonl has them, and --resume sends them\n")
    assert [step for step, _ in expected_rows(folder)] == list(range(1, LAST + 1))


@pytest.mark.parametrize("variables", [{}, pytest.param({"WANDB_MODE": "online"}, marks=pytest.mark.drill)])
def test_a_server_that_is_out_of_reach_makes_the_run_offline(variables, online):
    """Found out before W&B begins, or, where online was asked for, by W&B itself."""
    done, folder = online("http://127.0.0.1:9", "--timeout", 20, **variables)
    assert done.codes == [0], done.err
    reason = "CommError: " if variables else "no answer from http://127.0.0.1:9 in 5 seconds\n"
    assert f"wandb   offline: {reason}" in done.out
    assert wandb_rows(wandb_folders(folder)[-1]) == expected_rows(folder)
    assert done.out.endswith(f"wandb sync {wandb_folders(folder)[-1]}\n")


@pytest.mark.parametrize("timeout", [2.0, 12.0, 600.0])
def test_other_ranks_do_not_wait_beyond_their_timeout(timeout, modules, monkeypatch, tmp_path):
    """For the server's answer, a beginning online that fails, and one offline; at the end for the last rows."""
    waits = []

    class SlowWandB:
        class Settings(argparse.Namespace):
            model_fields = ("finish_timeout",)

        def setup(self):
            return argparse.Namespace(settings=argparse.Namespace(mode="online", api_key=KEY, base_url="any"))

        def init(self, settings, **_):
            waits.append(settings.init_timeout)
            raise TimeoutError

        def teardown(self):
            pass

    def answers(_, seconds):
        waits.append(seconds)
        return True

    monkeypatch.setattr(modules.trackers, "import_or_fail", lambda *_: SlowWandB())
    monkeypatch.setattr(modules.trackers, "answers", answers)
    args = argparse.Namespace(timeout=timeout, out=str(tmp_path), resume=False, wandb="ours")
    tracker = modules.trackers.WandB(args, 0, tmp_path / "metrics.jsonl")
    assert len(waits) == 3 and sum(waits) < timeout
    assert waits == [min(5, timeout / 4), *2 * [min(60, timeout / 4)]]

    ends = []
    tracker.run, tracker.rows = object(), argparse.Namespace(put=lambda _: None)
    tracker.thread = argparse.Namespace(join=ends.append, is_alive=lambda: True)
    tracker.finish()
    assert len(ends) == 1 and ends[0] < timeout


WANDB_ENDS = f"""
import signal, subprocess
import metrics
log = metrics.Metrics.log
def log_without_wandb(self, step):
    if step == {DIED}:
        (child,) = subprocess.check_output(["pgrep", "-P", str(os.getpid()), "wandb-core"]).split()
        os.kill(int(child), signal.SIGTERM)
        time.sleep(1)
    log(self, step)
metrics.Metrics.log = log_without_wandb
"""


@pytest.mark.drill
def test_a_wandb_that_ends_early_ends_no_training(online, driver):
    """As where Slurm sends SIGTERM to all processes of a job. The next attempt hands over what is missing."""
    done, folder = online("https://x.example", "--log-every", 1, programs=[driver(WANDB_ENDS)], WANDB_MODE="offline")
    assert done.codes == [0], done.err
    told = r"\nwandb   does not have all rows \(.*\): metrics.jsonl has them, and --resume sends them\n$"
    assert re.search(told, done.out)
    assert [step for step, _ in expected_rows(folder)] == list(range(1, LAST + 1))
    done, folder = online("https://x.example", "--resume", WANDB_MODE="offline")
    assert done.codes == [0], done.err
    assert wandb_rows(wandb_folders(folder)[-1]) == expected_rows(folder)


@pytest.mark.parametrize(
    ("variables", "key", "answers", "expected"),
    [
        ({"WANDB_MODE": "offline"}, True, True, ("offline", "WANDB_MODE=offline")),
        ({"WANDB_MODE": "dryrun"}, True, True, ("offline", "WANDB_MODE=dryrun")),
        ({"WANDB_MODE": "online"}, False, False, ("online", "WANDB_MODE=online")),
        ({}, False, True, ("offline", "no API key for https://w.example, wandb login stores one")),
        ({}, True, False, ("offline", "no answer from https://w.example in 5 seconds")),
        ({}, True, True, ("online", "there is a key, and the server answers")),
    ],
)
def test_the_mode(variables, key, answers, expected, modules, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(modules.trackers, "answers", lambda *_: answers)
    settings = argparse.Namespace(base_url="https://w.example", api_key=KEY if key else None, identity_token_file=None)
    settings.mode = "online"
    assert modules.trackers.choose_mode(settings, 5.0) == expected
    if not variables:
        settings.mode = "disabled"
        expected = ("disabled", "W&B's settings say so, as after wandb disabled")
        assert modules.trackers.choose_mode(settings, 5.0) == expected


@pytest.mark.parametrize(
    ("server", "machine", "expected"),
    [
        ("https://api.wandb.ai", "api.wandb.ai", True),
        ("https://api.forge.coreweave.com", "api.wandb.ai", True),  # the default of 0.31, which is in front of it
        ("https://w.example:8080", "w.example:8080", True),
        ("https://w.example", "api.wandb.ai", False),
        ("https://api.wandb.ai", "api.wandb.ai.example", False),
    ],
)
def test_the_key_that_wandb_login_stores(server, machine, expected, modules, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text(f"machine {machine}\n  login user\n  password {KEY}\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = argparse.Namespace(base_url=server, api_key=None, identity_token_file=None)
    assert modules.trackers.has_key(settings) is expected
    (tmp_path / "netrc").write_bytes(b"machine \xff login user")
    assert modules.trackers.has_key(settings) is False
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert modules.trackers.has_key(settings) is False
