"""Formats numbers, times and lists of names. Python 3.6, standard library only."""

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8


def ranges(numbers):
    """Return numbers as 0-3,8."""
    runs = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def duration(seconds):
    """Return seconds as h:mm:ss, from one day on as d-h:mm:ss."""
    seconds = max(0, round(seconds))
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def shortened(names, most=8):
    """Return at most `most` names, joined by commas, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable(text):
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)
