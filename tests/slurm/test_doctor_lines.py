"""How slurm/doctor.py reads a line of an output: the label of a rank, and a progress bar that it stands behind."""

from __future__ import annotations

import sys

import pytest
from doctor_cases import GOOD, LOGS, ask, ask_job, doctor, labelled, lines_of, project, read, told, traceback

MESSAGES = sys.modules["errors"]

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
    assert LOGS.rank_of(label) == (rank, host)


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
    assert bool(MESSAGES.HARMLESS.search(found.text)) is ("|" in line)  # the level of a logger is seen


def test_a_progress_bar_as_a_terminal_shows_it():
    assert (
        LOGS.shown("10%|#  | 1/9 [00:01<00:10,  4.0it/s]\r20%|## | 2/9 [00:01<00:10,  4.0it/s, loss=2]words\r")
        == "words"
    )
    assert LOGS.shown("100 it/s") == "100 it/s"
    assert LOGS.shown("7it [00:01,  4.00it/s]words") == LOGS.shown("0%| | 0/9 [00:00<?, ?s/it]words") == "words"


@pytest.mark.parametrize("label", ["3: ", "[node2:3] ", "[node2:3] [rank3]: "])
def test_a_progress_bar_does_not_hide_a_label(ask, label):
    """srun writes its label where the line begins, and tqdm a carriage return behind it."""
    bars = "\r  0%|          | 0/100 [00:00<?, ?it/s]\r 10%|#         | 10/100 [00:01<00:10,  4.0it/s]"
    outer, space, inner = label.partition(" ")
    for bar in (bars, bars.lstrip("\r")):
        answer = ask(GOOD + outer + space + bar + inner + traceback("KeyError: 'lr'", label)[len(label) :])
        assert told(answer) == ("error", 3, "") and answer["words"] == traceback("KeyError: 'lr'").splitlines(), answer


def test_a_progress_bar_may_begin_with_a_number_that_is_no_label():
    """tqdm(desc="3"), of an output without labels."""
    shown = LOGS.shown("\r3:  10%|#         | 10/100 [00:01<00:10,  4.0it/s]Traceback (most recent call last):")
    (line,) = lines_of(shown)
    assert (line.label, line.text) == ("", "Traceback (most recent call last):")


@pytest.mark.parametrize("path", ["git/src/m.pt", "units/items", "100it/s"])
def test_what_looks_like_a_progress_bar(path):
    error = f"RuntimeError: /home/u/{path}: size mismatch [4096] vs [512]"
    assert LOGS.shown(error) == error


@pytest.mark.parametrize("label", ["[node1:00040] ", "[node1:42420] "])
def test_a_process_of_open_mpi_is_no_rank(label):
    """It writes at least five digits."""
    (line,) = lines_of(f"{label}words")
    assert (line.label, line.text) == ("", f"{label}words")
