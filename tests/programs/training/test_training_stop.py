"""lm/stop.py: how a run is asked to save and to end, in the training programs and in a program that copies the file."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from training_runs import (
    ENVIRONMENT,
    TINY,
    TRAINING,
    Launch,
    assert_continues,
    await_steps,
    checkpoints,
)
from waiting import PATIENCE, wait_for

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("program", "ranks", "how"),
    [("train_single", 1, "time"), ("train_ddp", 2, "file"), ("train_ddp", 2, "signal"), ("train_fsdp", 2, "all die")],
)
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(program, ranks, how, train, text, tmp_path, whole_to):
    """At a step that is not known beforehand, all ranks after the same one.

    signal: the last rank alone hears it. all die: SIGTERM reaches the ranks' data workers first, as scancel sends it.
    """
    folder, asked = tmp_path / "run", {"STOP_FILE": tmp_path / "stop", "REQUEUE_FILE": tmp_path / "requeue"}
    if how == "time":
        asked["STOP_TIME"] = time.time() + 1
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 100_000, "--steps", 100_000, "--log-every", 3]
    launch = Launch(
        tmp_path / "stopped", ranks, TRAINING / f"{program}.py", *words, "--eval-every", 10, "--workers", 2, **asked
    )
    if how != "time":
        await_steps(folder, 5, launch)
    if how == "file":
        (tmp_path / "stop").touch()
    elif how == "signal":
        os.kill(launch.processes[-1].pid, signal.SIGUSR1)
    elif how == "all die":
        pids = [process.pid for process in launch.processes]
        workers = [pid for parent in pids for pid in children(parent)]
        assert len(workers) == 2 * ranks
        for pid in [*workers, *pids]:
            os.kill(pid, signal.SIGTERM)
    done = launch.wait()
    assert done.codes == [0] * ranks, done.err
    assert (tmp_path / "requeue").exists()
    stopped = int(re.search(rf"stopped at step (\d+) of 100000, saved in {folder}; --resume goes on", done.out)[1])
    assert checkpoints(folder) == [f"{stopped:08d}"[-2:]]
    last = max(12, stopped + 2)
    run = train(folder, ranks, program, "--resume", "--steps", last)
    assert_continues(run, stopped, whole_to(last), last)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_run_that_is_done_has_nothing_to_requeue(text, solo, tmp_path, monkeypatch):
    """Asked after its last step, or so late that this is the last."""
    for name in ("STOP_FILE", "REQUEUE_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "STOP_FILE").touch()
    solo(*TINY, "--data", text, "--steps", 1)
    assert not (tmp_path / "REQUEUE_FILE").exists()
    assert solo(*TINY, "--data", text, "--steps", 2)["steps"] == 1  # asked before its first step, it looks after that
    assert (tmp_path / "REQUEUE_FILE").exists()


@pytest.mark.parametrize(("seconds", "most"), [(60.0, 1), (0.4, 2), (0.0001, 100)])
def test_after_slow_steps_the_ranks_ask_each_other_one_by_one(seconds, most, modules, monkeypatch):
    """So that they hear within seconds that they have to stop. After quick steps they ask seldom."""
    clock = [0.0]
    monkeypatch.setattr(modules.stop.time, "monotonic", lambda: clock[0])
    stop, asked = modules.stop.Stop(), []
    monkeypatch.setattr(stop, "_asked", lambda: bool(asked.append(stop.step)))
    for _ in range(300):
        clock[0] += seconds
        assert not stop.requested()
    assert asked[0] == 1
    assert max(b - a for a, b in zip(asked, asked[1:])) == most


def test_the_answer_stays(modules, monkeypatch):
    """A program may have loops in loops, and leave one of them alone."""
    stop = modules.stop.Stop()
    monkeypatch.setattr(stop, "_asked", lambda: stop.step == 1)
    assert [stop.requested() for _ in range(3)] == [True] * 3


def test_batches_that_come_in_bursts(modules, monkeypatch):
    """Workers hand over what they have read ahead: after a slow step some quick ones, which say nothing of the next."""
    clock = [0.0]
    monkeypatch.setattr(modules.stop.time, "monotonic", lambda: clock[0])
    stop, asked = modules.stop.Stop(), []
    monkeypatch.setattr(stop, "_asked", lambda: bool(asked.append(clock[0])))
    for step in range(300):
        clock[0] += 0.001 if step % 8 else 4.0
        assert not stop.requested()
    assert max(b - a for a, b in zip(asked, asked[1:])) < 4.1


# What the head of stop.py shows, and the page on jobs that are longer than the walltime.
OWN_PROGRAM = """
import os, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from stop import Stop, ignore_signals
dist.init_process_group("gloo")
stop = Stop()
for step, batch in enumerate(DataLoader(range(100_000), num_workers=2, worker_init_fn=ignore_signals), start=1):
    total = batch.clone()
    dist.all_reduce(total)
    if step == 3:
        open(f"ready{dist.get_rank()}", "w").close()
    if stop.requested():
        open(f"saved{dist.get_rank()}", "w").write(str(step))
        stop.requeue()
        break
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.drill) for one in (signal.SIGUSR1, signal.SIGUSR2))],
)
def test_a_copy_of_the_file_serves_a_program_of_ones_own(number, tmp_path):
    """A signal to the whole group of processes, the data workers among them, as a scheduler sends it."""
    shutil.copy(TRAINING / "lm/stop.py", tmp_path)
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # as torchrun has one
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "REQUEUE_FILE": str(tmp_path / "requeue")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "own.py"],
            cwd=tmp_path,
            env={**ENVIRONMENT, **shared, "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank)},
            start_new_session=True,
        )
        for rank in (0, 1)
    ]
    wait_for(lambda: all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)), "three steps")
    os.killpg(ranks[1].pid, number)
    assert [rank.wait(PATIENCE) for rank in ranks] == [0, 0]
    assert (tmp_path / "saved0").read_text() == (tmp_path / "saved1").read_text()
    assert (tmp_path / "requeue").exists()
