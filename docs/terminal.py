"""Draws a recorded terminal session as an animated SVG, with CSS alone: GitHub shows it where it allows no script.

    events = [Event(0, "$ "), Event(0.5, "ls", typed=True), Event(0.9, "\\r\\nenv.sh\\r\\n$ ")]
    Path("session.svg").write_text(draw(events, title="A session", description="It lists a folder."))

All lines of the session lie below each other in one column. Each piece of text is hidden until its time has come. The
column moves up by whole lines, behind a window of `rows` lines, as a terminal scrolls. A viewer who wants no motion,
or whose program knows no animation, sees the last screen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from html import escape

FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace'
FONT_SIZE = 13
CELL = 7.8  # width of a character: 0.6 of the font's size
LINE = 18  # height of a line
MARGIN = 16  # round the text
BAR = 30  # height of the window's title bar
COLOURS = {"page": "#0d1117", "bar": "#21262d", "edge": "#444c56", "output": "#c9d1d9", "typed": "#7ee787"}
BUTTONS = ("#ff5f56", "#ffbd2e", "#27c93f")


@dataclass(frozen=True)
class Event:
    """Text that appears on a terminal `time` seconds after the start. `typed`: the echo of a key."""

    time: float
    text: str
    typed: bool = False


@dataclass(frozen=True)
class Piece:
    """Words within one line of the screen, and when they appear."""

    time: float
    row: int
    column: int
    text: str
    typed: bool


def transcript(events: list[Event]) -> str:
    """Return the session as text, without the prompt that waits at its end."""
    lines = "".join(event.text for event in events).replace("\r\n", "\n").splitlines()
    while lines and lines[-1].rstrip() in ("", "$"):
        lines.pop()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def shorten(events: list[Event], total: float, longest: float = 1.0) -> list[Event]:
    """Return the events with each pause cut to `longest` seconds, or to fewer, so that all take at most `total`."""
    pauses = [max(0.0, after.time - before.time) for before, after in zip(events, events[1:])]
    while sum(min(pause, longest) for pause in pauses) > total:
        longest *= 0.98
    times = [0.0]
    for pause in pauses:
        times.append(times[-1] + min(pause, longest))
    return [replace(event, time=time) for event, time in zip(events, times)]


def lay_out(events: list[Event], columns: int) -> tuple[list[Piece], list[tuple[float, int, int]]]:
    """Return the pieces of text, and where the cursor is: (time, row, column) after each event.

    Lines that are too long go on in the next row. Several spaces end a piece, so that columns stand below each other in
    each font. Raises ValueError for control characters other than line ends.
    """
    row = column = 0
    pieces, cursor = [], []
    for event in events:
        for number, line in enumerate(event.text.replace("\r\n", "\n").split("\n")):
            if not line.isprintable():
                raise ValueError(f"{line!r}: a control character, which terminal.py cannot draw")
            if number > 0:
                row, column = row + 1, 0
            rest = line
            while rest:
                if column == columns:
                    row, column = row + 1, 0
                part, rest = rest[: columns - column], rest[columns - column :]
                for words in re.finditer(r"\S+( \S+)*", part):
                    pieces.append(Piece(event.time, row, column + words.start(), words[0], event.typed))
                column += len(part)
        cursor.append((event.time, row, column))
    return pieces, cursor


def draw(
    events: list[Event],
    title: str,
    description: str,
    window: str = "",
    columns: int = 114,
    rows: int = 30,
    hold: float = 5.0,
) -> str:
    """Return the SVG of a session, which begins again `hold` seconds after the last event. window: its title bar."""
    duration = events[-1].time + hold
    pieces, cursor = lay_out(events, columns)
    text, appearances = draw_text(pieces, duration)
    scrolls = {at(time, duration): shift(0, -LINE * max(0, row - rows + 1)) for time, row, _ in cursor}
    moves = {at(time, duration): shift(min(column, columns - 1) * CELL, row * LINE) for time, row, column in cursor}

    width, height = columns * CELL + 2 * MARGIN, rows * LINE + BAR + 2 * MARGIN
    buttons = "".join(
        f'<circle cx="{MARGIN + 4 + 20 * number}" cy="{BAR / 2:g}" r="6" fill="{colour}"/>'
        for number, colour in enumerate(BUTTONS)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" \
role="img" aria-labelledby="title description">
<title id="title">{escape(title)}</title>
<desc id="description">{escape(description)}</desc>
<style>
text{{font:{FONT_SIZE}px {FONT};fill:{COLOURS["output"]}}}
.typed{{fill:{COLOURS["typed"]};font-weight:bold}}
.window{{text-anchor:middle}}
.column,.text,.cursor{{animation:{duration:.2f}s step-end infinite}}
.column{{animation-name:scroll;{last(scrolls)}}}
.cursor{{animation-name:cursor;{last(moves)};fill:{COLOURS["output"]};opacity:.6}}
{keyframes("scroll", scrolls)}{keyframes("cursor", moves)}{appearances}\
@media (prefers-reduced-motion:reduce){{.column,.text,.cursor{{animation:none!important}}}}
</style>
<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="{COLOURS["page"]}" \
stroke="{COLOURS["edge"]}"/>
<path d="M1 {BAR}V8.5a7.5 7.5 0 0 1 7.5-7.5H{width - 8.5:g}a7.5 7.5 0 0 1 7.5 7.5V{BAR}Z" fill="{COLOURS["bar"]}"/>
{buttons}
<text class="window" x="{width / 2:g}" y="{BAR / 2 + 4.5:g}">{escape(window)}</text>
<svg id="screen" x="{MARGIN}" y="{BAR + MARGIN}" width="{columns * CELL:g}" height="{rows * LINE}">
<g class="column">
{text}<rect class="cursor" width="{CELL}" height="{LINE - 2}"/>
</g>
</svg>
</svg>
"""


def draw_text(pieces: list[Piece], duration: float) -> tuple[str, str]:
    """Return the SVG of all pieces, and the CSS that shows each when its time has come."""
    together: dict[str, str] = {}  # what appears at each moment
    for piece in pieces:
        moment = at(piece.time, duration)
        together[moment] = together.get(moment, "") + draw_piece(piece)
    text = styles = ""
    for number, (moment, shown) in enumerate(together.items()):
        text += f'<g class="text" style="animation-name:t{number}">{shown}</g>\n'
        styles += keyframes(f"t{number}", {"0.00%": "opacity:0", moment: "opacity:1"})
    return text, styles


def draw_piece(piece: Piece) -> str:
    """Return the SVG of a piece of text, as wide as its columns in whatever font the viewer has."""
    x, y = piece.column * CELL, (piece.row + 0.75) * LINE
    width = f' textLength="{len(piece.text) * CELL:g}"' if len(piece.text) > 1 else ""
    typed = ' class="typed"' if piece.typed else ""
    return f'<text x="{x:g}" y="{y:g}"{width}{typed}>{escape(piece.text, quote=False)}</text>'


# ---- CSS -------------------------------------------------------------------------------------------------------------


def at(time: float, duration: float) -> str:
    """Return a moment as CSS wants it, in percent of the whole animation."""
    return f"{100 * time / duration:.2f}%"


def shift(x: float, y: float) -> str:
    """Return the CSS that moves an element."""
    return f"transform:translate({x:g}px,{y:g}px)"


def last(steps: dict[str, str]) -> str:
    """Return the style at the end. A viewer without motion sees it all the time."""
    return [*steps.values()][-1]


def keyframes(name: str, steps: dict[str, str]) -> str:
    """Return a CSS animation. steps: the style from each moment on."""
    frames, before = "", None
    for moment, style in steps.items():
        if style != before:
            frames += f"{moment}{{{style}}}"
        before = style
    return f"@keyframes {name}{{{frames}}}\n"
