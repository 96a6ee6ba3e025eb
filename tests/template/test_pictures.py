"""The pictures of docs/ and of a written project: valid SVG without scripts, whose text is that of the pages."""

from __future__ import annotations

import re
import sys
from itertools import product
from xml.etree import ElementTree

import pytest
from baking import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs"))
from terminal import Event, draw, lay_out, shorten, transcript  # the file that draws the recorded session

SVG = "{http://www.w3.org/2000/svg}"
EVENTS = [
    Event(0.0, "$ "),
    Event(0.5, "l", typed=True),
    Event(0.6, "s", typed=True),
    Event(1.0, "\r\na <file> & more\r\none  two\r\n$ "),
    Event(9.0, "\r\n$ "),
]
LAUNCHERS = ("torchrun", "srun", "spawn", "mpirun", "mpirun-ranks")


def texts(svg, within=""):
    """Return the words of all <text>, from top to bottom; of the element with the id `within`, if that is given."""
    root = ElementTree.fromstring(svg)
    root = next(element for element in root.iter() if element.get("id") == within) if within else root
    found = [(float(text.get("y")), float(text.get("x")), text.text) for text in root.iter(f"{SVG}text")]
    return [words for _, _, words in sorted(found)]


def assert_stands_alone(svg):
    """GitHub shows an SVG as an image, in which no script runs and nothing is loaded."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "image", "foreignObject", "use", "a"}
    assert not re.search(r"@import|@font-face|javascript:|\bon\w+=|href|url\((?!#)", svg)
    assert set(re.findall(r"https?://[^\"]+", svg)) == {"http://www.w3.org/2000/svg"}


# ---- terminal.py -----------------------------------------------------------------------------------------------------


def test_all_text_is_drawn_and_appears_in_order():
    svg = draw(EVENTS, title="a title", description="a <description>", window="a window", hold=1.0)
    assert_stands_alone(svg)
    assert texts(svg, within="screen") == ["$", "l", "s", "a <file> & more", "one", "two", "$", "$"]
    assert len(svg) < 10_000
    moments = [float(moment) for moment in re.findall(r"@keyframes t\d+\{0.00%\{opacity:0\}([\d.]+)%", svg)]
    assert moments == [5.0, 6.0, 10.0, 90.0]  # percent of ten seconds; the first prompt is there from the start
    cursor = re.search(r"@keyframes cursor\{(.*)\}", svg)[1]
    assert [float(moment) for moment in re.findall(r"([\d.]+)%", cursor)] == [0.0, *moments]
    assert "prefers-reduced-motion:reduce" in svg


def test_the_screen_scrolls_and_ends_on_its_last_rows():
    """A viewer without motion sees them: it is the style that holds without the animation."""
    events = [Event(number, f"line {number}\r\n") for number in range(6)]
    svg = draw(events, title="t", description="d", rows=4, hold=5.0)
    scroll = re.search(r"@keyframes scroll\{(.*)\}", svg)[1]
    assert re.findall(r"([\d.]+)%\{transform:translate\(0px,(-?\d+)px\)", scroll) == [
        ("0.00", "0"),
        ("30.00", "-18"),
        ("40.00", "-36"),
        ("50.00", "-54"),
    ]
    assert ".column{animation-name:scroll;transform:translate(0px,-54px)}" in svg


def test_long_lines_go_on_in_the_next_row():
    pieces, cursor = lay_out([Event(0, "abcdefgh"), Event(1, "ij\n  k")], columns=5)
    assert [(piece.row, piece.column, piece.text) for piece in pieces] == [
        (0, 0, "abcde"),
        (1, 0, "fgh"),
        (1, 3, "ij"),
        (2, 2, "k"),
    ]
    assert cursor == [(0, 1, 3), (1, 2, 3)]


def test_a_control_character_is_refused():
    with pytest.raises(ValueError, match="control character"):
        draw([Event(0, "\x1b[1mbold")], title="t", description="d")


def test_pauses_are_shortened_and_the_order_stays():
    assert [event.time for event in shorten(EVENTS, total=100)] == pytest.approx([0, 0.5, 0.6, 1.0, 2.0])
    short = [event.time for event in shorten(EVENTS, total=1.2)]
    assert short == sorted(short) and short[-1] <= 1.2
    assert short[2] - short[1] == pytest.approx(0.1)  # a pause from key to key is short already
    assert [event.text for event in shorten(EVENTS, total=1.2)] == [event.text for event in EVENTS]


def test_the_transcript_ends_without_the_prompt_that_waits():
    assert transcript(EVENTS) == "$ ls\na <file> & more\none  two\n"


# ---- the picture of a written project --------------------------------------------------------------------------------


# Each launcher and each runtime; the other pairs are drills.
PAIRS = list(product(LAUNCHERS, ("none", "venv", "apptainer")))
STARTS = [
    pair if pair[0] == "torchrun" or pair[1] == "none" else pytest.param(*pair, marks=pytest.mark.drill)
    for pair in PAIRS
]


@pytest.mark.parametrize(("launcher", "runtime"), STARTS)
def test_how_a_run_starts_is_drawn_for_each_launcher(launcher, runtime, written):
    project = written(site="slurm", launcher=launcher, runtime=runtime, extras="all")
    svg = (project / "slurm/docs/how-a-run-starts.svg").read_text()
    assert_stands_alone(svg)
    words = texts(svg)
    assert ("mpirun" in words) == launcher.startswith("mpirun")
    assert ("srun" in words) == (not launcher.startswith("mpirun"))
    assert words.count("launch/rank.sh") == (4 if launcher in ("srun", "mpirun-ranks") else 0)
    assert words.count("launch/torchrun.sh") == (0 if launcher in ("srun", "mpirun-ranks") else 2)
    assert words.count("torchrun") == (2 if launcher in ("torchrun", "mpirun") else 0)
    assert words.count("launch/spawn.py") == (2 if launcher == "spawn" else 0)
    assert words.count("in the container") == (2 if runtime == "apptainer" else 0)
    assert [f"RANK={rank}  LOCAL_RANK={rank % 2}" in words for rank in range(4)] == [True] * 4
    for name in re.findall(r">(?:bash )?([\w/]+\.(?:sh|py))<", svg):
        assert name == "program.py" or (project / name).is_file()
    for box in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rectangle = box.find(f"{SVG}rect")
        for text in [] if rectangle is None else box.iter(f"{SVG}text"):
            wide = 7.6 if "name" in text.get("class", "") else 6.4  # pixels of a character, in a wide font
            assert float(text.get("x")) + wide * len(text.text) <= float(rectangle.get("width")), text.text
    page = (project / "slurm/docs/how-a-run-starts.md").read_text()
    assert "(how-a-run-starts.svg)" in page
