"""Numbers, times and names as a reader wants them. Python 3.6, standard library only."""


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
    """Return seconds as h:mm:ss, with days if there are some."""
    seconds = max(0, round(seconds))
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def shortened(names, most=8):
    """Return names as a list in words, of at most `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
