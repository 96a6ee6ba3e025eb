"""--profile: a trace of the chosen steps, which Perfetto can read."""

import gzip
import json

import pytest
from training_runs import EXACT, TINY, largest_difference

torch = pytest.importorskip("torch")


def recorded_steps(path):
    """Return the steps that a trace has, in their order, if each has its operations."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    steps = sorted((event for event in events if event["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    for step in steps:
        inside = [e for e in events if step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"]]
        assert sum(event["name"] == "Optimizer.step#AdamW.step" for event in inside) == 1
    return [int(step["name"].partition("#")[2]) for step in steps]


def test_a_trace_of_chosen_steps(train, tmp_path, whole):
    run = train(tmp_path / "run", 2, "train_ddp", "--steps", 8, "--profile", "3:5")
    assert largest_difference(run.figures["losses"], whole.figures["losses"][:8]) <= EXACT
    (path,) = run.folder.glob("trace*")  # of rank 0 alone
    assert f"\nprofile {path}: open it in https://ui.perfetto.dev\n" in run.out
    assert recorded_steps(path) == [3, 4, 5]


def test_steps_that_do_not_come(refused, text):
    message = refused(*TINY, "--data", text, "--steps", 4, "--profile", "20:23")
    assert message == "--profile 20:23 ends after --steps 4: record earlier steps"


@pytest.mark.parametrize(("wanted", "recorded"), [("5:9", [5, 6]), ("4:9", [4, 5, 6]), ("2:4", [4])])
def test_a_resumed_run_counts_on_and_a_stopped_one_writes_what_it_has(
    wanted, recorded, modules, solo, text, tmp_path, monkeypatch
):
    words = [*TINY, "--data", text]
    solo(*words, "--steps", 3)
    calls = iter((False, False, True))
    monkeypatch.setattr(modules.train_single.Stop, "requested", lambda _: next(calls))
    assert solo(*words, "--steps", 12, "--resume", "--profile", wanted)["steps"] == 6
    (path,) = (tmp_path / "run").glob("trace*")
    assert recorded_steps(path) == recorded
