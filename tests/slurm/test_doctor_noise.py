"""slurm/doctor.py beside what good runs print (doctor_noise.txt): the same cause with it, and none in a good run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys

import pytest
from doctor_cases import EXITS, GOOD, LAUNCHERS, labelled, project, traceback
from doctor_noise import MESSAGES, PLACES, label, with_noise
from good_runs import GOOD_RUNS
from test_doctor_causes import CASES, EXAMPLES


@pytest.fixture(scope="module")
def doctor(project):
    """The doctor of a written project, as a module: to start a Python for each of a thousand outputs takes minutes."""
    sys.path.insert(0, str(project / "slurm"))  # where it finds what it imports
    spec = importlib.util.spec_from_file_location("written_doctor", project / "slurm/doctor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(project / "slurm"))


@pytest.fixture
def ask(doctor, tmp_path, monkeypatch, capsysbinary):
    """Returns what the doctor says, as JSON, of an output, or of a job whose record scontrol prints."""

    def ask(text, record=""):
        (tmp_path / "my job-12.out").write_text(text)
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf %s '{record}'\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.chdir(tmp_path)
        for name, value in {"PWD": tmp_path, "PATH": f"{tmp_path}:/usr/bin:/bin"}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(sys, "argv", ["slurm/doctor.py", "--json", "12" if record else "my job-12.out"])
        doctor.main()
        said = capsysbinary.readouterr()
        assert not said.err, said.err
        return json.loads(said.out)

    return ask


def first_cause(answer):
    return answer["causes"][0]["name"] if answer["causes"] else ""


# ---- failures --------------------------------------------------------------------------------------------------------


def outputs():
    """Yield a name and an output for each case of the other tests: a row's lines, and what launchers report."""
    for name, _, log in CASES:
        yield name, GOOD + log.replace("|", "\n") + "\n"
    launchers = itertools.cycle(EXITS.items())
    for cause, example in EXAMPLES:
        if not example.startswith("JobState="):
            yield cause.name, GOOD + example + "\n"
            launcher, output = next(launchers)
            yield f"{cause.name}, {launcher}", output(example)  # as the words of the rank that failed
    for launcher, output in LAUNCHERS.items():
        yield f"killed, {launcher}", output(GOOD)
        yield f"raises, {launcher}", output(traceback("KeyError: 'lr'"))
    for launcher, output in EXITS.items():
        yield f"exits, {launcher}", output("config error: no key lr")


OUTPUTS = list(outputs())
WITHOUT_NOISE = {}  # what the doctor says of each output, for all places


@pytest.mark.parametrize("where", PLACES)
def test_the_same_cause_with_noise(ask, where):
    """All cases in one test: there are hundreds, and each takes milliseconds."""
    wrong = []
    for name, text in OUTPUTS:
        expected = WITHOUT_NOISE[text] = WITHOUT_NOISE.get(text) or ask(text)
        found = ask(with_noise(text, where))
        for key in ("way", "rank", "host", "exit_code"):
            is_known = expected[key] or key != "host"  # the labels of noise may name the node of a rank
            if is_known and expected[key] != found[key]:
                wrong.append(f"{name}: {key} {expected[key]!r}, with noise {found[key]!r}")
        if first_cause(expected) != first_cause(found):
            wrong.append(f"{name}: {first_cause(expected)!r}, with noise {first_cause(found)!r}")
    assert not wrong, f"{len(wrong)} of {len(OUTPUTS)}:\n" + "\n".join(wrong)
    found = sum(bool(answer["causes"]) for answer in WITHOUT_NOISE.values())
    assert found > len(EXAMPLES) / 2, f"only {found} outputs have a cause: this test would prove nothing"


@pytest.mark.parametrize("launcher", EXITS)
def test_the_words_with_noise(ask, launcher):
    """What the failing rank said last stays in its words, and is no other rank's noise."""
    text = with_noise(EXITS[launcher]("vocabulary size 50257 does not match checkpoint 32000"), "before")
    answer = ask(text)
    assert (answer["way"], answer["exit_code"], answer["causes"]) == ("exited", 3, []), answer
    assert answer["words"][-1] == "vocabulary size 50257 does not match checkpoint 32000", answer


# ---- good runs -------------------------------------------------------------------------------------------------------

STYLES = ("", "srun", "torchrun")
RECORD = "JobId=12 JobName=x\n   JobState=COMPLETED Reason=None ExitCode=0:0\n   StdOut={}\n"


def good_output(name, style):
    """Return the output of a good run: noise at its start and end, its own lines from rank 0, then from all."""
    lines = GOOD_RUNS[name]
    said = "".join(labelled(label(rank, style), lines) for rank in (range(4) if style else [0]))
    head = "2026-11-27 09:11:50 train.py on 2 node(s), meeting at node1:10002\npreflight: 2 node(s) fit (0.3 s)\n"
    return with_noise(with_noise(head + said, "before"), "after")


@pytest.mark.parametrize(("name", "style"), itertools.product(GOOD_RUNS, STYLES))
def test_a_good_run_has_no_cause(ask, name, style):
    for record in ("", RECORD):
        answer = ask(good_output(name, style), record)
        assert (answer["way"], answer["causes"], answer["rank"]) == ("none", [], None), answer


@pytest.mark.parametrize("message", MESSAGES, ids=[f"{message.stack}-{n}" for n, message in enumerate(MESSAGES)])
def test_a_message_alone_is_no_cause(ask, message):
    for style in STYLES:
        lines = [label(0, "" if message.stack == "slurm" else style) + line for line in message.lines]
        answer = ask(GOOD + "\n".join(lines) + "\n")
        assert (answer["way"], answer["causes"]) == ("none", []), answer


def test_the_messages():
    """Each says where its wording was read, and when."""
    assert len(MESSAGES) >= 40 and len(GOOD_RUNS) * len(STYLES) >= 40
    assert len({message.lines for message in MESSAGES}) == len(MESSAGES)
    for message in MESSAGES:
        assert re.search(r"\(2026-\d\d-\d\d\)$", message.source), message
