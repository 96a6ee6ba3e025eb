"""A run that is killed, or asked to stop, goes on later as if nothing had happened, also on other numbers of ranks."""

import argparse
import os
import re
import signal
import time

import pytest
from training_runs import (
    DEADLINE,
    EXACT,
    FORKING,
    HALF,
    STEPS,
    TINY,
    TO_HALF,
    TRAINING,
    WRITER,
    Launch,
    assert_continues,
    assert_same,
    checkpoints,
    largest_difference,
)

torch = pytest.importorskip("torch")


# Resume


@pytest.mark.parametrize(
    ("program", "ranks"),
    [("train_single", 1), ("train_ddp", 2), ("train_ddp", 4), ("train_fsdp", 2), ("train_fsdp", 4)],
)
def test_resumed_is_uninterrupted(program, ranks, half, train, whole):
    folder = half(WRITER[program])
    with (folder / "metrics.jsonl").open("a") as file:  # what a run writes after its checkpoint, before it dies
        file.write('{"step": 21, "loss": 99.0}\n{"step": 22, "lo')
    run = train(folder, ranks, program, "--resume")
    assert_continues(run, HALF, whole)
    assert (run.figures["steps"], run.figures["world_size"]) == (STEPS, ranks)
    assert abs(run.figures["val_loss"] - whole.figures["val_loss"]) <= EXACT
    assert run.err == ""


@pytest.fixture
def whole_to(whole, train, tmp_path):
    """Return a run without a pause that has at least so many steps."""

    def run(steps):
        if steps <= STEPS:
            return whole
        return train(tmp_path / "whole", 1, "train_single", "--steps", steps)

    return run


def await_steps(folder, steps, launch):
    """Wait until a run has noted so many."""
    end = time.monotonic() + DEADLINE
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < steps:
        assert launch.processes[0].is_alive(), "ended by itself"
        assert time.monotonic() < end, "no progress"
        time.sleep(0.002)


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)])
def test_killed_in_the_middle(program, ranks, train, text, tmp_path, whole_to):
    folder = tmp_path / "run"
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 1, "--steps", 100_000]
    launch = Launch(tmp_path / "killed", ranks, TRAINING / f"{program}.py", *words)
    try:
        await_steps(folder, 5, launch)
    finally:
        launch.kill()
    assert launch.wait().codes == [-9] * ranks
    reached = int(os.readlink(folder / "latest").partition(".")[0][-8:])
    last = max(12, reached + 2)  # how far it came is up to the machine
    run = train(folder, ranks, program, "--resume", "--steps", last)
    first_step = run.figures["first_step"]
    assert first_step in (reached, reached + 1)  # the link is made after the checkpoint
    assert_continues(run, first_step, whole_to(last), last)


@pytest.mark.parametrize("program", ["train_single", "train_fsdp"])
def test_nothing_left_to_do(program, half, train, trained):
    folder = half(WRITER[program])
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint*")}
    run = train(folder, 1, program, "--steps", 7, "--resume")
    assert "start   at step 20: nothing is left of --steps 7, a larger number continues" in run.out
    first = trained(WRITER[program], 2, *TO_HALF)
    assert (run.figures["steps"], run.figures["losses"]) == (HALF, [])
    for name in ("final_loss", "val_loss"):
        assert run.figures[name] == first.figures[name]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint*")} == files


def test_a_finished_run_that_is_started_again_keeps_its_figures(text, solo):
    done = solo(*TINY, "--data", text, "--steps", 3)
    assert len(done["losses"]) == 3
    assert solo(*TINY, "--data", text, "--steps", 3, "--resume") == done


def test_random_numbers_are_the_ranks_own_and_the_same_after_a_resume(modules):
    def drawn(step, rank):
        modules.schedule.seed_step(0, step, rank)
        return torch.rand(3).tolist()

    seen = [drawn(step, rank) for step in (1, 2, 3) for rank in (0, 1, 2)]
    assert len(set(map(tuple, seen))) == 9
    assert drawn(2, 1) == seen[4]


def test_dropout_resumed_is_uninterrupted(modules, solo, text, tmp_path, whole, monkeypatch):
    class Dropping(modules.model.GPT):
        def forward(self, tokens, targets):
            return torch.nn.functional.dropout(super().forward(tokens, targets), 0.5, self.training)

    monkeypatch.setattr(modules.train_single, "GPT", Dropping)
    words = [*TINY, "--data", text, "--steps"]
    losses = solo(*words, 20, "--out", tmp_path / "whole")["losses"]
    assert largest_difference(losses, whole.figures["losses"][:20]) > 0.01
    assert solo(*words, 10)["losses"] == losses[:10]
    assert solo(*words, 20, "--resume")["losses"] == losses[10:]
    assert_same(tmp_path / "run", tmp_path / "whole", 0, last=20)


# Asked to stop


@pytest.mark.parametrize(
    ("program", "ranks", "how"),
    [("train_single", 1, "time"), ("train_ddp", 2, "file"), ("train_ddp", 2, "signal"), ("train_fsdp", 2, "signal")],
)
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(program, ranks, how, train, text, tmp_path, whole_to):
    """At a step that nobody knows beforehand, all ranks after the same; the last rank alone hears the signal."""
    folder, asked = tmp_path / "run", {"STOP_FILE": tmp_path / "stop", "REQUEUE_FILE": tmp_path / "requeue"}
    asked |= {"TIMES_FILE": tmp_path / "times", "START_TIME": time.time()}
    if how == "time":
        asked["STOP_TIME"] = time.time() + 1
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 100_000, "--steps", 100_000, "--log-every", 3]
    launch = Launch(tmp_path / "stopped", ranks, TRAINING / f"{program}.py", *words, "--eval-every", 10, **asked)
    if how != "time":
        await_steps(folder, 5, launch)
    if how == "file":
        (tmp_path / "stop").touch()
    elif how == "signal":
        os.kill(launch.processes[-1].pid, signal.SIGUSR1)
    done = launch.wait()
    assert done.codes == [0] * ranks, done.err
    assert (tmp_path / "requeue").exists()
    assert re.fullmatch(r"start \d+\n(look \d+\n)?save \d+\n", (tmp_path / "times").read_text())
    stopped = int(re.search(rf"stopped at step (\d+) of 100000, saved in {folder}; --resume goes on", done.out)[1])
    assert checkpoints(folder) == [f"{stopped:08d}"[-2:]]
    last = max(12, stopped + 2)
    run = train(folder, ranks, program, "--resume", "--steps", last)
    assert_continues(run, stopped, whole_to(last), last)


def test_a_run_that_is_done_has_nothing_to_requeue(text, solo, tmp_path, monkeypatch):
    """Asked after its last step, or so late that this is the last."""
    for name in ("STOP_FILE", "REQUEUE_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "STOP_FILE").touch()
    solo(*TINY, "--data", text, "--steps", 1)
    assert not (tmp_path / "REQUEUE_FILE").exists()
    assert solo(*TINY, "--data", text, "--steps", 2)["steps"] == 1  # asked before its first step, it looks after that
    assert (tmp_path / "REQUEUE_FILE").exists()


def test_a_job_that_is_started_again_resumes_without_being_told(text, solo, tmp_path, monkeypatch):
    solo(*TINY, "--data", text, "--steps", 3)
    monkeypatch.setenv("RESTART_COUNT", "1")
    assert solo(*TINY, "--data", text, "--steps", 5)["first_step"] == 3
    for first_attempt in ("0", ""):
        monkeypatch.setenv("RESTART_COUNT", first_attempt)
        assert solo(*TINY, "--data", text, "--steps", 5)["first_step"] == 0


@pytest.mark.parametrize(("seconds", "most"), [(60.0, 1), (2.0, 2), (0.01, 10)])
def test_after_slow_steps_the_ranks_ask_each_other_one_by_one(seconds, most, modules, monkeypatch):
    """So that they hear within seconds that they have to stop; after quick ones only with the lines of progress."""
    checks, clock = [], [0.0]

    def two_ranks(mine):
        checks.append(step)
        return 2 * mine

    monkeypatch.setattr(modules.control, "time", argparse.Namespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(modules.distributed, "sum_over_ranks", two_ranks)
    args = argparse.Namespace(steps=1000, log_every=10, save_minutes=None)
    control = modules.control.Control(args, 0, torch.device("cpu"), 1, 2)
    for step in range(1, 61):
        clock[0] += seconds
        assert control.request(step) == ""
    assert checks[0] == 1
    assert max(b - a for a, b in zip(checks, checks[1:])) == most


def test_what_one_rank_is_asked_all_ranks_do(modules, monkeypatch, tmp_path):
    """A request to stop goes before one to save, and after the last step there is none."""
    clock = [0.0]
    monkeypatch.setattr(modules.control, "time", argparse.Namespace(monotonic=lambda: clock[0]))
    another = torch.zeros(3, dtype=torch.float64)
    monkeypatch.setattr(modules.distributed, "sum_over_ranks", lambda mine: mine + another)
    monkeypatch.setenv("REQUEUE_FILE", str(tmp_path / "requeue"))
    args = argparse.Namespace(steps=6, log_every=1, save_minutes=1.0)
    control = modules.control.Control(args, 0, torch.device("cpu"), 0, 2)
    assert control.request(1) == ""
    clock[0] = 61.0
    assert control.request(2) == "save"
    with pytest.raises(OSError), control.saving():
        assert control.stop.saving
        raise OSError
    assert not control.stop.saving
    with control.saving():
        assert control.stop.saving
    assert not control.stop.saving
    assert control.request(3) == ""  # the minute begins with the checkpoint
    another[1] = 1  # the other rank's checkpoint is overdue
    assert control.request(4) == "save"
    another[0] = 1  # the other rank is asked to stop
    assert control.request(5) == "stop"
    assert not (tmp_path / "requeue").exists()
    control.requeue()
    assert (tmp_path / "requeue").exists()
    assert control.request(6) == ""


def hold(folder, job, ready):
    os.environ["SLURM_JOB_ID"] = job
    assert __import__("checkpoint").acquire_lock(folder, 0) == ""
    ready.set()
    time.sleep(DEADLINE)


def test_one_job_at_a_time_in_a_folder(server, modules, refused, text, tmp_path, monkeypatch):
    """But an attempt of the same job is not kept out by the one before, whose lock may outlive its node."""
    (tmp_path / "run").mkdir()
    ready = FORKING.Event()
    holder = FORKING.Process(target=hold, args=(str(tmp_path / "run"), "77", ready))
    holder.start()
    assert ready.wait(DEADLINE)
    held = f"job 77 on {os.uname().nodename}"
    # Of the same job an earlier attempt may hold it; in the first one there are two at once in one allocation.
    for job, attempt, expected in (
        ("", "", held),
        ("78", "", held),
        ("7", "1", held),
        ("77", "", held),
        ("77", "1", ""),
    ):
        for name, value in (("SLURM_JOB_ID", job), ("RESTART_COUNT", attempt)):
            monkeypatch.delenv(name, raising=False)
            if value:
                monkeypatch.setenv(name, value)
        assert modules.checkpoint.acquire_lock(str(tmp_path / "run"), 0) == expected, (job, attempt)
    monkeypatch.delenv("SLURM_JOB_ID")
    expected = f"--out {tmp_path}/run is in use by {held}: give another --out, or wait for its end"
    assert refused(*TINY, "--data", text, "--timeout", 1) == expected
    holder.kill()
    holder.join()
    assert modules.checkpoint.acquire_lock(str(tmp_path / "run"), 0) == ""
