"""How slurm/doctor.py reads a line of an output: the label of a rank, and a progress bar that it stands behind."""

from __future__ import annotations

import pytest
from doctor_cases import DOCTOR, GOOD, doctor, labelled, lines_of, project, read, traceback

# ---- its functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "rank", "host"),
    [
        ("[node2:3] ", 3, "node2"),
        ("[node2:3] [rank3]: ", 3, "node2"),
        ("12: ", 12, ""),
        ("1: [rank1]: ", 1, ""),
        ("", None, ""),
    ],
)
def test_who_said_a_line(label, rank, host):
    (line,) = lines_of(f"{label}words: 3: more")
    assert (line.label, line.text) == (label, "words: 3: more")
    assert DOCTOR.rank_of(label) == (rank, host)


@pytest.mark.parametrize(
    "line",
    [
        "[WARNING|trainer.py:906] 2025-11-26 12:43:53,007 >> The model is already on multiple devices.",  # transformers
        "[INFO|tokenization_utils_base.py:2060] 2025-11-26 12:43:30,112 >> loading file tokenizer.json",
        "[train.py:30] step 100 loss 2.31",
        "[pair.cc:553] Connection closed by peer [10.77.0.12]:23942",
    ],
)
def test_the_place_in_a_source_file_is_no_label(line):
    for label in ("", "3: ", "[node2:3] ", "[node2.site.org:3] "):
        (found,) = lines_of(label + line)
        assert (found.label, found.text) == (label, line)
    assert bool(DOCTOR.HARMLESS.search(found.text)) is ("|" in line)  # the level of a logger is seen


def test_a_progress_bar_as_a_terminal_shows_it():
    assert (
        DOCTOR.shown("10%|#  | 1/9 [00:01<00:10,  4.0it/s]\r20%|## | 2/9 [00:01<00:10,  4.0it/s, loss=2]words\r")
        == "words"
    )
    assert DOCTOR.shown("100 it/s") == "100 it/s"
    assert DOCTOR.shown("7it [00:01,  4.00it/s]words") == DOCTOR.shown("0%| | 0/9 [00:00<?, ?s/it]words") == "words"


@pytest.mark.parametrize("label", ["3: ", "[node2:3] ", "[node2:3] [rank3]: "])
def test_a_progress_bar_does_not_hide_a_label(read, label):
    """srun writes its label where the line begins, and tqdm a carriage return behind it."""
    bars = "\r  0%|          | 0/100 [00:00<?, ?it/s]\r 10%|#         | 10/100 [00:01<00:10,  4.0it/s]"
    outer, space, inner = label.partition(" ")
    for bar in (bars, bars.lstrip("\r")):
        text = outer + space + bar + inner + traceback("KeyError: 'lr'", label)[len(label) :]
        code, report = read(GOOD + text)
        said = f"first failure: {label.strip(': ')} (my job-12.out:7): the program failed by itself; its own words:\n"
        assert code == 1 and report == said + traceback("KeyError: 'lr'", label), report


def test_a_progress_bar_may_begin_with_a_number_that_is_no_label():
    """tqdm(desc="3"), of an output without labels."""
    (line,) = lines_of("\r3:  10%|#         | 10/100 [00:01<00:10,  4.0it/s]Traceback (most recent call last):")
    assert (line.label, line.text) == ("", "Traceback (most recent call last):")


@pytest.mark.parametrize("path", ["git/src/m.pt", "units/items", "100it/s"])
def test_what_looks_like_a_progress_bar(path):
    error = f"RuntimeError: /home/u/{path}: size mismatch [4096] vs [512]"
    assert DOCTOR.shown(error) == error


# ---- labels of a job -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["[node1:4242] ", "[step:3] ", "[step:100] "])
def test_a_label_is_that_of_a_rank_of_the_job(doctor, project, label):
    """Open MPI names a process there, and a program what it likes."""
    logs = [DOCTOR.RankLog("f", 0.0, rank, f"node{rank // 2 + 1}", 3, []) for rank in range(4)]
    is_rank = DOCTOR.rank_test("node[1-2]", logs)
    for outer in ("", "2: ", "[node2:3] ", "[node2.site.org:3] "):
        line = DOCTOR.labelled(1, f"{outer}{label}words", "x.out", is_rank)
        assert (line.label, line.text) == (outer, f"{label}words")
    assert DOCTOR.rank_test("", [])("step", "100")  # of an output alone nothing is known
    assert DOCTOR.rank_test("", logs)("node7", "9")  # whose logs may lack
    assert is_rank("node1", "3")  # torchrun may number the nodes in another order than the folders of the logs
    record = f"JobId=62\n JobState=FAILED ExitCode=1:0\n NodeList=node[1-2]\n StdOut={project}/demo-62.out\n"
    (project / "demo-62.out").write_text(GOOD + labelled("[step:100] ", traceback("KeyError: 'x'")))
    report = doctor("62", cwd=project, scontrol=record).stdout.decode()
    assert "Traceback" in report and not report.startswith("first failure: "), report
