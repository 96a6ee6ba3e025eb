"""Which rank reads which samples in which step, and how large the batch is that the ranks share."""

import functools
import itertools
import mmap
import os
import shutil
import sys

import pytest
from training_runs import EXACT, SHAPE, TINY, TRAINING, Launch, assert_same, damage, largest_difference, metrics

torch = pytest.importorskip("torch")


# Who reads what


@pytest.fixture
def numbered(tmp_path):
    """A file of 50 windows of 4 bytes, each of which begins with its number, and 3 windows to validate."""
    path = tmp_path / "numbered.bin"
    path.write_bytes(b"".join(number.to_bytes(4, "little") for number in range(53)) + b"\0")
    return path


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_table_of_who_reads_what(ranks, modules, numbered, monkeypatch, capsys):
    """Complete and disjoint in an epoch, another order in the next, and what real loaders read."""
    batch, epochs = 8, 2
    words = ["--ranks", ranks, "--global-batch", batch, "--steps", 12, "--context", 4, "--seed", 7, "--data", numbered]
    monkeypatch.setattr(sys, "argv", ["data.py", *map(str, words)])
    modules.data.main()
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == f"--data {numbered}: 50 samples of 4 bytes, 6 steps per epoch"
    assert header.split() == ["step", "epoch", "rank", "samples"]
    table = [list(map(int, row.split())) for row in rows]
    assert [row[:3] for row in table] == [[s, (s - 1) // 6, rank] for s in range(1, 13) for rank in range(ranks)]
    read = {epoch: [] for epoch in range(epochs)}
    for _, epoch, _, *windows in table:
        read[epoch] += windows
    for windows in read.values():
        assert len(windows) == len(set(windows)) == 48  # 2 are left out of an epoch, because a batch has 8
        assert set(windows) <= set(range(50))
    assert read[0] != read[1]

    windows = modules.data.read_corpus(str(numbered), 4).train
    for rank in range(ranks):
        indices = modules.data.sample_indices(len(windows), batch, 7, 0, 12, rank, ranks)
        batches = list(modules.data.data_loader(windows, indices, 2, torch.device("cpu")))
        assert [tokens[:, 0].tolist() for tokens, _ in batches] == [row[3:] for row in table if row[2] == rank]


def test_the_batch_is_the_same_for_any_number_of_ranks_and_any_first_step(modules):
    def indices(first, rank, world, seed=7):
        return list(modules.data.sample_indices(50, 8, seed, first, 12, rank, world))

    of_one_rank = indices(0, 0, 1)
    for world in (2, 4, 8):
        ranks = [indices(0, rank, world) for rank in range(world)]
        assert {len(steps) for steps in ranks} == {len(of_one_rank)}
        for step, windows in enumerate(of_one_rank):
            assert sorted(itertools.chain(*(rank[step] for rank in ranks))) == sorted(windows)
    assert indices(5, 1, 2) == indices(0, 1, 2)[5:]
    assert indices(0, 0, 1, seed=8) != of_one_rank


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "0"], "--ranks 0 has to be above 0"),
        (["--ranks", "3"], "--global-batch 8 cannot be shared equally by 3 ranks: choose a multiple of 3"),
        (["--ranks", "9"], "--global-batch 8 has to be at least --ranks 9"),
        (["--global-batch", "52"], "at least --ranks 2 and at most 50, all samples"),
        (["--context", "0"], "--context 0 has to be above 0"),
        (["--first-step", "0"], "--first-step 0 has to be above 0"),
        (["--steps", "0"], "--steps 0 has to be above 0"),
        (["--data", "/nowhere"], "--data /nowhere: no such file or folder"),
    ],
)
def test_a_table_that_cannot_be(words, expected, modules, numbered, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["data.py", "--context", "4", "--data", str(numbered), *words])
    with pytest.raises(SystemExit) as end:
        modules.data.main()
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


def test_workers_change_nothing(modules, solo, text, whole, tmp_path):
    solo(*TINY, "--data", text, "--workers", 2)
    assert_same(tmp_path / "run", whole.folder, 0)


def test_windows_lie_side_by_side(modules):
    content = bytes(range(100))
    windows = modules.data.Windows(content, 1, 100, 33)
    inputs, targets = windows[[0, 1]]
    assert len(windows) == 2
    assert inputs.tolist() == [list(range(1, 34)), list(range(34, 67))]
    assert targets.tolist() == [list(range(2, 35)), list(range(35, 68))]
    assert len(modules.data.Windows(content, 0, 100, 33)) == 3
    assert len(modules.data.Windows(content, 0, 100, 100)) == 0


def test_a_folder_is_its_text_files_in_the_order_of_their_names(modules, tmp_path):
    for name, content in {
        "b.txt": b"B" * 40, "a/z.md": b"Z" * 40, "c": b"c" * 1000, "d": b"", "e": b"E",
        ".git/x": b"no", "c.bin": b"n\0o", ".x": b"no",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    corpus = modules.data.read_corpus(str(tmp_path), 100)
    content = b"Z" * 40 + b"B" * 40 + b"c" * 1000 + b"E"
    assert corpus.train.text == content
    assert (corpus.train.start, corpus.train.stop) == (0, corpus.validation.start)
    assert (len(content) - corpus.validation.start, corpus.validation.stop) == (len(content) // 20, len(content))
    # As one file, which is mapped, it is the same corpus.
    (tmp_path / "a" / "z.md").write_bytes(content)
    one = modules.data.read_corpus(str(tmp_path / "a" / "z.md"), 100)
    assert type(one.train.text) is mmap.mmap and one.checksum == corpus.checksum
    assert one.train[[1, 9]][1].tolist() == corpus.train[[1, 9]][1].tolist()


def test_the_checksum_sees_any_byte_up_to_64_mib(modules, monkeypatch):
    monkeypatch.setattr(modules.data, "HASH_BLOCK", 16)  # 64 blocks: 1 kB
    checksum, content = modules.data.checksum, bytearray(os.urandom(1000))
    before = checksum(content)
    for place in range(len(content)):
        content[place] ^= 1
        assert checksum(content) != before
        content[place] ^= 1
    long = bytearray(100_000)
    sampled = checksum(long)
    long[-1] = 1
    assert checksum(long) != sampled
    assert checksum(long[:-1]) != sampled


def test_the_default_corpus_is_pythons_own_library(modules):
    corpus = modules.data.read_corpus(None, 128)
    assert len(corpus.train) > 20_000 and len(corpus.validation) > 1000
    assert modules.data.read_corpus(None, 128).checksum == corpus.checksum


# The batch


def test_any_number_of_nodes_and_gpus_has_a_batch(modules, monkeypatch, tmp_path):
    """Without flags, and with the text that is there without --data; 32 where the ranks can share that equally."""
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--out", str(tmp_path)])
    monkeypatch.setattr(modules.arguments, "read_corpus", functools.lru_cache(modules.data.read_corpus))
    for ranks in {nodes * gpus for nodes in range(1, 13) for gpus in range(1, 9)}:
        args = modules.arguments.parse_arguments("", ranks)
        assert args.global_batch == ranks * args.micro_batch * args.accumulation
        assert 32 <= args.global_batch < 32 + ranks
        assert args.global_batch == 32 or 32 % ranks
        assert (args.batch_remark == "") == (args.global_batch == 32)


@pytest.mark.parametrize(
    ("program", "ranks", "batch"), [("train_ddp", 3, 33), ("train_ddp", 6, 36), ("train_fsdp", 3, 33)]
)
def test_ranks_that_cannot_share_32_sequences_run_without_flags(program, ranks, batch, server, text, tmp_path):
    """They learn as one process does that is given their batch, which goes on from their checkpoint without flags."""
    folder, words = tmp_path / "run", [*SHAPE, "--data", text, "--decay-steps", 4]
    done = Launch(folder, ranks, TRAINING / f"{program}.py", *words, "--steps", 3, "--out", folder).wait()
    assert done.codes == [0] * ranks, done.err
    rule = "the smallest multiple of the number of ranks that is at least 32"
    assert f"batch   {batch} sequences ({rule}) = {ranks} (ranks) x {batch // ranks} (micro batch)" in done.out
    as_one = [*words, "--steps", 4, "--out", tmp_path / "one", "--global-batch", batch]
    assert Launch(tmp_path / "one", 1, TRAINING / "train_single.py", *as_one).wait().codes == [0]
    again = [*words, "--steps", 4, "--out", folder, "--resume"]
    done = Launch(folder, 1, TRAINING / f"{program}.py", *again).wait()
    assert done.codes == [0], done.err
    assert f"batch   {batch} sequences (the batch of the checkpoint) = 1 (ranks) x " in done.out
    losses = [[line["loss"] for line in metrics(run) if "loss" in line] for run in (folder, tmp_path / "one")]
    assert len(losses[0]) == 4 and largest_difference(*losses) <= EXACT


@pytest.mark.parametrize("program", ["train_ddp", "train_fsdp"])
def test_a_run_keeps_its_batch_on_another_number_of_ranks(program, half, modules, monkeypatch, capsys):
    """Its default is another one there: that is no reason for a requeued job to fail, as long as it can be shared."""
    folder = half(program)

    def batch(ranks, *words):
        monkeypatch.setattr(sys, "argv", [f"{program}.py", *SHAPE, "--out", str(folder), *words])
        return modules.arguments.parse_arguments("", ranks).global_batch

    assert [batch(ranks, "--resume") for ranks in (1, 2, 4, 8, 16)] == 5 * [16]
    assert [batch(3, "--resume", "--global-batch", "18"), batch(3)] == [18, 33]  # asked for; a new run
    damage(folder / ("checkpoint-00000020" + (".pt" if program == "train_ddp" else "")), "cut")
    assert batch(4, "--resume") == 16  # that of the one before
    monkeypatch.setenv("RESTART_COUNT", "1")
    assert batch(4) == 16
    with pytest.raises(SystemExit) as end:
        batch(3)
    assert end.value.code == 2
    said = f"the checkpoints in --out {folder} were made with --global-batch 16, which 3 ranks cannot share equally: "
    said += "resume on 1, 2, 4, 8, 16 ranks, or give another --out\n"
    assert capsys.readouterr().err == f"{program}.py: error: {said}"
    shutil.rmtree(folder)
    assert batch(3) == 33  # it died before its first checkpoint
