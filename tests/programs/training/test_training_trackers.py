"""--tensorboard, --wandb and --mlflow: what people see of a run is what metrics.jsonl has, also after a resume.

TensorBoard and W&B are the real packages. What they have written is read back: event files by TensorBoard's own reader,
and what W&B got by its own functions. MLflow, which has a hundred dependencies, is a stand-in that notes its calls.
"""

import os
import sys
import types

import pytest
from training_runs import TINY, metrics

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -r requirements-dev.txt")
wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install -r requirements-dev.txt")

LAST, SAVED, DIED = 24, 10, 17  # steps: of the whole run, of the last checkpoint, of the kill


def rows_of(folder):
    """Return metrics.jsonl with one row per step, and without what trackers do not get."""
    rows = {}
    for line in metrics(folder):
        shown = {
            name: value for name, value in line.items() if name not in ("step", "steps", "time") and value is not None
        }
        rows.setdefault(line["step"], {}).update(shown)
    return rows


@pytest.fixture
def interrupted(modules, solo, text, tmp_path, monkeypatch):
    """Run with some flags: the first attempt dies at step DIED, which no checkpoint has, and the second goes on."""

    def run(*words):
        words = [*TINY, "--data", text, "--steps", LAST, "--save-every", SAVED, "--log-every", 1, *words]
        log = modules.metrics.Metrics.log
        with monkeypatch.context() as patch:

            def log_and_die(self, step):
                log(self, step)
                if step == DIED:
                    raise KeyboardInterrupt

            patch.setattr(modules.metrics.Metrics, "log", log_and_die)
            with pytest.raises(KeyboardInterrupt):
                solo(*words)
        assert solo(*words, "--resume")["first_step"] == SAVED
        return tmp_path / "run"

    return run


def test_tensorboard_has_each_step_once(interrupted):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = interrupted("--tensorboard")
    assert len(list((folder / "tensorboard").glob("events.*"))) == 2  # one for each attempt
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    rows = rows_of(folder)
    assert set(events.Tags()["scalars"]) == {"loss", "lr", "tokens_per_second", "val_loss"}
    for name in events.Tags()["scalars"]:
        curve = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(step, row[name]) for step, row in sorted(rows.items()) if name in row]
        assert [step for step, _ in curve] == [step for step, _ in expected]
        assert [value for _, value in curve] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_the_newest_offline_run_of_wandb_has_the_whole(interrupted, monkeypatch):
    """Each attempt hands W&B all rows from the first one on, under the same id."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    told, log = [], wandb.Run.log

    def note(self, row, step):
        told.append((self.id, step, row))
        log(self, row, step=step)

    monkeypatch.setattr(wandb.Run, "log", note)
    folder = interrupted("--wandb", "our project")
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    assert len({run_id for run_id, _, _ in told}) == 1
    second = told[[step for _, step, _ in told].index(1, 1) :]  # from the second row of step 1 on
    rows = {}
    for _, step, row in second:
        rows.setdefault(step, {}).update(row)
    assert rows == rows_of(folder)


def test_mlflow_goes_on_with_its_run(interrupted, monkeypatch):
    calls = []

    def call(name, returns=None):
        return lambda *words, **named: calls.append((name, words, named)) or returns

    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
    names = ("set_experiment", "log_params", "log_metrics", "end_run")
    stand_in = types.SimpleNamespace(**{name: call(name) for name in names}, start_run=call("start_run", run))
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    folder = interrupted("--mlflow", "ours")
    assert [words[0] for name, words, _ in calls if name == "set_experiment"] == ["ours", "ours"]
    assert [named["run_id"] for name, _, named in calls if name == "start_run"] == [None, "r1"]
    rows = {}
    for _, words, named in (call for call in calls if call[0] == "log_metrics"):
        rows.setdefault(named["step"], {}).update(words[0])
    assert rows == rows_of(folder)


def test_a_new_run_moves_the_trackers_of_the_one_before_aside(solo, text, tmp_path):
    words = [*TINY, "--data", text, "--steps", 2, "--tensorboard"]
    for _ in range(2):
        solo(*words)
    for folder in (tmp_path / "run", tmp_path / "run/previous-1"):
        assert len(list((folder / "tensorboard").glob("events.*"))) == 1


def test_a_tracker_that_fails_does_not_end_the_run(modules, solo, text, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise ConnectionError("the server is away")

    for log, end, told in (
        (fail, print, "warning: --tensorboard is off from step 1 on: the server is away"),
        (print, fail, "warning: --tensorboard may lack the last steps: the server is away"),
    ):
        monkeypatch.setitem(modules.metrics.TRACKERS, "tensorboard", lambda *_, ways=(log, end): ways)
        assert solo(*TINY, "--data", text, "--steps", 3, "--tensorboard")["steps"] == 3
        assert capsys.readouterr().out.count(told) == 1


def test_a_missing_package_is_named(refused, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    message = refused(*TINY, "--data", text, "--mlflow", "ours")
    assert message.startswith("--mlflow does not start: ")
    assert ". It needs the package mlflow. Without internet, " in message
