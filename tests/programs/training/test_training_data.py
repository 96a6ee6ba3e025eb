"""Which rank reads which samples in which step, and how large the batch is that the ranks share."""

import argparse
import itertools
import mmap
import sys

import pytest
from torch.utils.data import DataLoader
from training_runs import EXACT, SHAPE, TINY, TRAINING, Launch, assert_same, largest_difference, metrics

torch = pytest.importorskip("torch")


# Who reads what


def samples_of_steps(modules, first=0, rank=0, world=1, seed=7, samples=50, batch=8, steps=12):
    """Return the samples that a rank reads in each step after `first`, as a DataLoader hands them out."""
    args = argparse.Namespace(global_batch=batch, seed=seed, steps=steps)
    sampler = modules.schedule.StepSampler(samples, args, first, rank, world)
    batches = DataLoader(range(samples), batch_size=batch // world, sampler=sampler)
    assert len(batches) == steps - first
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_each_epoch_has_each_sample_once_whatever_the_number_of_ranks(world, modules):
    of_one = samples_of_steps(modules)
    ranks = [samples_of_steps(modules, rank=rank, world=world) for rank in range(world)]
    for step, samples in enumerate(of_one):
        assert [rank[step] for rank in ranks] == [samples[rank::world] for rank in range(world)]
    epochs = [list(itertools.chain(*of_one[:6])), list(itertools.chain(*of_one[6:]))]
    for samples in epochs:
        assert len(set(samples)) == 48 and set(samples) <= set(range(50))  # 2 are left out, because a batch has 8
    assert epochs[0] != epochs[1]
    assert samples_of_steps(modules, seed=8) != of_one


def test_a_resumed_run_goes_on_in_the_middle_of_an_epoch(modules):
    for first in (5, 7, 12):
        assert samples_of_steps(modules, first, 1, 2) == samples_of_steps(modules, 0, 1, 2)[first:]


def test_workers_change_nothing(solo, text, whole, tmp_path):
    solo(*TINY, "--data", text, "--workers", 2)
    assert_same(tmp_path / "run", whole.folder, 0)


class Noise(torch.utils.data.Dataset):
    """Draws a number for each sample, as for a crop or a mask."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.rand(())


def test_what_workers_draw_differs_between_ranks_and_starts(modules):
    def drawn(first_step, rank):
        args = argparse.Namespace(global_batch=2, seed=7, steps=first_step + 2, workers=1)
        batches = modules.schedule.make_batches(Noise(), args, torch.device("cpu"), first_step, rank, 2)
        return tuple(torch.cat(list(batches)).tolist())

    cases = [(0, 0), (0, 1), (10, 0), (10, 1)]
    assert len({drawn(*case) for case in cases}) == 4 and drawn(0, 1) == drawn(0, 1)


def test_without_workers_data_draw_the_same_after_a_resume(modules):
    class NoiseInAnOrder(Noise):
        def __len__(self):
            return 50

    def drawn(first, rank, model_draws):
        args = argparse.Namespace(global_batch=8, seed=7, steps=12)
        sampler = modules.schedule.StepSampler(50, args, first, rank, world_size=2)
        batches = iter(DataLoader(NoiseInAnOrder(), batch_size=4, sampler=sampler))
        return [(next(batches).tolist(), torch.rand(model_draws))[0] for _ in range(first, 12)]

    whole = drawn(0, 0, model_draws=3)
    assert drawn(5, 0, model_draws=2) == whole[5:]
    numbers = [number for steps in (whole, drawn(0, 1, model_draws=3)) for step in steps for number in step]
    assert len(set(numbers)) == len(numbers)


def test_samples_lie_side_by_side(modules):
    content = bytes(range(100))
    samples = modules.data.Text(content, 1, 100, 33)
    assert len(samples) == 2
    for number, start in enumerate((1, 34)):
        inputs, targets = samples[number]
        assert inputs.tolist() == list(range(start, start + 33))
        assert targets.tolist() == list(range(start + 1, start + 34))
    assert len(modules.data.Text(content, 0, 100, 33)) == 3
    assert len(modules.data.Text(content, 0, 100, 100)) == 0


def test_the_name_of_the_data_has_a_checksum(modules, tmp_path):
    args, names = argparse.Namespace(data=str(tmp_path / "text"), context=10), set()
    for content in (b"a" * 1000, b"b" + b"a" * 999, b"a" * 999 + b"b"):
        (tmp_path / "text").write_bytes(content)
        train, validation, name = modules.data.load_data(args)
        assert type(train.text) is mmap.mmap and len(train) == 94 and len(validation) == 4
        names.add(name)
    assert len(names) == 3


# The batch


def test_any_number_of_nodes_and_gpus_has_a_batch(modules, monkeypatch, tmp_path):
    """Without flags: 32 where the ranks can share that equally."""
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--out", str(tmp_path)])
    for ranks in {nodes * gpus for nodes in range(1, 13) for gpus in range(1, 9)}:
        args = modules.arguments.read_arguments("", ranks)
        assert args.global_batch % ranks == 0 and args.global_batch // ranks == args.micro_batch
        assert 32 <= args.global_batch < 32 + ranks


@pytest.mark.parametrize(("program", "ranks", "batch"), [("train_ddp", 6, 36), ("train_fsdp", 3, 33)])
def test_ranks_that_cannot_share_32_sequences_run_without_flags(program, ranks, batch, server, text, tmp_path):
    """They learn as one process does that is given their batch, which goes on from their checkpoint with it, too."""
    folder, words = tmp_path / "run", [*SHAPE, "--data", text, "--decay-steps", 4]
    done = Launch(folder, ranks, TRAINING / f"{program}.py", *words, "--steps", 3, "--out", folder).wait()
    assert done.codes == [0] * ranks, done.err
    assert f"batch   {batch} sequences = {ranks} (ranks) x {batch // ranks} (micro batch)" in done.out
    as_one = [*words, "--steps", 4, "--out", tmp_path / "one", "--global-batch", batch]
    assert Launch(tmp_path / "one", 1, TRAINING / "train_single.py", *as_one).wait().codes == [0]
    resumed = [*words, "--steps", 4, "--out", folder, "--resume"]
    done = Launch(folder, 1, TRAINING / f"{program}.py", *resumed).wait()
    assert done.codes == [2]
    assert f"--global-batch is {batch} there and 32 here. Give the values of the checkpoint, or" in done.err
    done = Launch(folder, 1, TRAINING / f"{program}.py", *resumed, "--global-batch", batch).wait()
    assert done.codes == [0], done.err
    assert f"batch   {batch} sequences = 1 (ranks) x " in done.out
    losses = [[line["loss"] for line in metrics(run) if "loss" in line] for run in (folder, tmp_path / "one")]
    assert len(losses[0]) == 4 and largest_difference(*losses) <= EXACT
