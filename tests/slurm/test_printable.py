"""Text of logs, ranks and other users on a terminal, which obeys control characters: each reader shows them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import datetime
from types import SimpleNamespace

import pytest
from baking import TEMPLATE, bake
from doctor_cases import doctor, project
from waiting import PATIENCE

# A title, a link, the clipboard, another screen, a reset, a way back in the line; C1 in UTF-8, and as a byte alone.
NASTY = "\x1b]0;t\x07\x1b]8;;http://x\x1b\\\x1b]52;c;eA==\x07\x1b[?1049h\x1bc\x1bP1\x9b2J\x08\x7f\udc9b ü"
READERS = ["slurm/doctor.py", "extras/hangs/group.py"]


def load(name):
    spec = importlib.util.spec_from_file_location("reader", TEMPLATE / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_harmless(output):
    """Whether a terminal obeys nothing in an output but its line ends; and all that is not empty."""
    controls = {*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), *map(chr, range(0xDC80, 0xDCA0))}
    return output and not set(output.decode(errors="surrogateescape")) & (controls - {"\n", "\t"})


@pytest.mark.parametrize("name", READERS)
def test_control_characters_are_shown(name):
    """By all readers alike: they have the function each, as their folders are copied one by one."""
    reader = load(name)
    assert reader.printable("\x1b[2J\x9b\udc9b\x07\x7f\r\0") == "^[[2J^[^[^G^?^M^@"
    characters = "".join(map(chr, [*range(0x110), *range(0xDC80, 0xDD00)]))
    assert is_harmless(reader.printable(characters).encode(errors="surrogateescape"))
    assert reader.printable("a ü 日本\udcff\t\n") == "a ü 日本\udcff\t\n"


@pytest.mark.parametrize("words", [f"ValueError: {NASTY}", f"CUDA out of memory {NASTY}"])
def test_doctor(doctor, tmp_path, words):
    """On an output, in which its own report stands already, and on another user's job."""
    label = "[n\x07:0] "
    text = f"{label}Traceback (most recent call last):\n{label}  File\n{label}{words}\n{words}\n"
    file = tmp_path / "x\x07-7.out"
    file.write_bytes(text.encode(errors="surrogateescape"))
    alone = doctor(file.name)
    assert is_harmless(alone.stdout) and b"^[]52;c;" in alone.stdout
    file.write_bytes(file.read_bytes() + alone.stdout)
    assert doctor(file.name).stdout == alone.stdout
    record = f"JobId=7 JobName={NASTY[:5]}\n UserId=anna(4711) JobState=FAILED\n StdOut={file}\n"
    foreign = doctor("7", scontrol=record)
    assert is_harmless(foreign.stdout) and foreign.stdout.startswith(b"job 7 is not yours, but anna's\n")
    assert is_harmless(doctor(NASTY[:9]).stderr)


def test_group():
    facts = f"0: == rank=0 of=1 host={NASTY.replace(' ', '')} pid=1 parent=0 state=S wchan={NASTY[:5]} name=x"
    stack = f'0: Current thread 0x1 (most recent call first):\n0:   File "{NASTY}", line 1 in {NASTY}'
    call = {"group": "gloo 0", "number": 1, "kind": NASTY, "tensors": NASTY, "finished": False, "failed": True}
    call |= {"age": 9, "since": 0, "ranks": "", "group_name": NASTY, "amount": "", "frames": []}
    lines = f"{facts}\n{stack}\n0: collective {json.dumps(call)}\n0: end gloo\n"
    command = [sys.executable, "-B", TEMPLATE / "extras/hangs/group.py", "--stacks"]
    done = subprocess.run(
        command, input=lines.encode(errors="surrogateescape"), capture_output=True, check=False, timeout=PATIENCE
    )
    assert is_harmless(done.stdout) and not done.stderr and b"^[]52;c;" in done.stdout


def test_reasons_of_bad_nodes(tmp_path):
    """Any user of the project writes into this file."""
    project = bake(tmp_path, site="slurm", extras="spares")
    file = project / "logs/bad_nodes"
    file.parent.mkdir(exist_ok=True)
    reason = NASTY.replace("\udc9b", "").encode()
    file.write_bytes(f"node1\t{datetime.now():%FT%T}\t7\t".encode() + reason + b"\n")
    command = ["bash", project / "extras/spares/bad_nodes.sh"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE)
    assert is_harmless(done.stdout) and "ü".encode() in done.stdout
