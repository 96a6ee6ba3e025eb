"""A run that is killed goes on later as if nothing had happened, also on other numbers of ranks."""

import errno
import fcntl
import os

import pytest
from training_runs import (
    EXACT,
    HALF,
    STEPS,
    TINY,
    TO_HALF,
    TRAINING,
    WRITER,
    Launch,
    assert_continues,
    assert_same,
    await_steps,
    largest_difference,
)

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("program", "ranks"), [("train_single", 1), ("train_ddp", 4), ("train_fsdp", 4), ("train_fsdp", 1)]
)
def test_resumed_is_uninterrupted(program, ranks, half, train, whole):
    folder = half(WRITER[program])
    with (folder / "metrics.jsonl").open("a") as file:  # what a run writes after its checkpoint, before it dies
        file.write('{"step": 21, "loss": 99.0}\n{"step": 22, "lo')
    run = train(folder, ranks, program, "--resume")
    assert_continues(run, HALF, whole)
    assert run.figures["steps"] == STEPS
    assert run.err == ""


@pytest.mark.parametrize(("program", "ranks"), [("train_single", 1), ("train_ddp", 2), ("train_fsdp", 2)])
def test_killed_in_the_middle(program, ranks, train, text, tmp_path, whole_to):
    folder = tmp_path / "run"
    words = [*TINY, "--data", text, "--out", folder, "--save-every", 1, "--steps", 100_000, "--workers", 2]
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
    assert "start   at step 20: nothing is left of --steps 7" in run.out
    first = trained(WRITER[program], 2, *TO_HALF)
    assert (run.figures["steps"], run.figures["losses"]) == (HALF, [])
    for name in ("final_loss", "val_loss"):
        assert run.figures[name] == first.figures[name]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint*")} == files


def test_random_numbers_are_the_ranks_own_and_the_same_after_a_resume(modules):
    def drawn(step, rank):
        modules.schedule.seed_step(0, step, rank)
        return torch.rand(3).tolist()

    seen = [drawn(step, rank) for step in (1, 2, 3) for rank in (0, 1, 2)]
    assert len(set(map(tuple, seen))) == 9
    assert drawn(2, 1) == seen[4]


def test_dropout_resumed_is_uninterrupted(modules, solo, text, tmp_path, whole, monkeypatch):
    class Dropping(modules.model.GPT):
        def logits(self, tokens):
            return torch.nn.functional.dropout(super().logits(tokens), 0.5, self.training)

    monkeypatch.setattr(modules.train_single, "GPT", Dropping)
    words = [*TINY, "--data", text, "--steps"]
    losses = solo(*words, 20, "--out", tmp_path / "whole")["losses"]
    assert largest_difference(losses, whole.figures["losses"][:20]) > 0.01
    assert solo(*words, 10)["losses"] == losses[:10]
    assert solo(*words, 20, "--resume")["losses"] == losses[10:]
    assert_same(tmp_path / "run", tmp_path / "whole", 0, last=20)


def test_what_the_model_keeps_in_eval_mode_stays_so(modules, solo, text, whole, monkeypatch):
    class HalfFrozen(modules.model.GPT):
        def __init__(self, config):
            super().__init__(config)
            self.frozen = torch.nn.Dropout(0.9).eval()

        def logits(self, tokens):
            assert self.training == torch.is_grad_enabled()  # all else is in training but for an evaluation
            return self.frozen(super().logits(tokens))

    monkeypatch.setattr(modules.train_single, "GPT", HalfFrozen)
    losses = solo(*TINY, "--data", text, "--steps", 6, "--eval-every", 2)["losses"]
    assert largest_difference(losses, whole.figures["losses"][:6]) <= EXACT


def test_a_job_that_is_started_again_resumes_without_being_told(text, solo, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "76")
    solo(*TINY, "--data", text, "--steps", 3)

    def first_step(own_count, count_of_slurm):
        for name, count in (("RESTART_COUNT", own_count), ("SLURM_RESTART_COUNT", count_of_slurm)):
            monkeypatch.setenv(name, count)
        return solo(*TINY, "--data", text, "--steps", 5)["first_step"]

    assert first_step("1", "") == 3
    assert first_step("", "2") == 5  # a batch script of one's own that Slurm has requeued
    assert first_step("0", "2") == 0  # slurm/run_here.sh in such a job
    assert first_step("", "") == 0


def test_a_job_that_died_before_it_began_does_not_go_on_with_the_run_of_another(text, solo, monkeypatch):
    def first_step(job, attempt):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("RESTART_COUNT", attempt)
        return solo(*TINY, "--data", text, "--steps", 3)["first_step"]

    assert first_step("77", "0") == 0
    assert first_step("78", "1") == 0  # its first attempt has left nothing
    assert first_step("78", "2") == 3
    monkeypatch.setenv("SLURM_JOB_ID", "79")
    with pytest.raises(SystemExit):  # refused: the folder stays that of job 78
        solo(*TINY, "--data", text, "--resume", "--seed", 5)
    assert first_step("78", "3") == 3


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_one_run_at_a_time_in_a_folder(program, server, text, tmp_path):
    """But an attempt of the same job is not kept out by the one before, whose lock may outlive its node."""
    folder = tmp_path / "run"
    folder.mkdir()

    def start(**variables):
        words = [*TINY, "--data", text, "--steps", 1, "--out", folder]
        return Launch(tmp_path / "log", 2, TRAINING / f"{program}.py", *words, **variables).wait()

    with (folder / ".in-use").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        done = start()
        assert done.codes == [2, 2], done.err
        said = f"{folder} is in use by another run: give another --out, or wait for the end of that run\n"
        assert done.err.count(said) == 2
        assert [path.name for path in folder.iterdir()] == [".in-use"]
        os.pwrite(file.fileno(), b"77", 0)
        assert start(SLURM_JOB_ID=78, RESTART_COUNT=1).codes == [2, 2]
        assert start(SLURM_JOB_ID=77, RESTART_COUNT=1).codes == [0, 0]
    assert start().codes == [0, 0]


def test_a_file_system_without_locks(modules, solo, text, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(modules.checkpoints.fcntl, "lockf", refuse)
    assert solo(*TINY, "--data", text, "--steps", 1)["steps"] == 1


def test_a_folder_that_cannot_be_written_to(refused, text, tmp_path):
    """Permissions do not keep root out, but this does."""
    (tmp_path / "run/.in-use").mkdir(parents=True)
    assert refused(*TINY, "--data", text) == f"[Errno 21] Is a directory: '{tmp_path}/run/.in-use': give another --out"
