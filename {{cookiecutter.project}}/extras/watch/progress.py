"""Reads the last step, the speed and the end of a training from metrics.jsonl.

A line of metrics.jsonl is a JSON object with "step". Optional keys: "time" (seconds since 1970), "steps" (of the whole
run), "loss", "val_loss" and "tokens_per_second". Python 3.6, standard library only.
"""

import json
import os

TAIL = 1 << 16  # bytes that are read, from the end
SPEED_OVER = 600.0  # seconds of the mean speed, which includes evaluations and checkpoints


class Training:
    """The newest values of metrics.jsonl; None if no line has the key.

    step, steps, loss, val_loss, tokens_per_second; time: when the last step was written [s since 1970].
    seconds_per_step: on average, over the last SPEED_OVER seconds. longest_pause: between two writes in this time [s].
    """

    def __init__(self, path):
        """Read the file. Raises OSError."""
        rows = rows_of(path)
        self.step, self.steps = newest(rows, "step"), newest(rows, "steps")
        self.loss, self.val_loss = newest(rows, "loss"), newest(rows, "val_loss")
        self.tokens_per_second = newest(rows, "tokens_per_second")
        self.time, self.seconds_per_step = newest(rows, "time"), None
        # Lines may share a time. The last of their steps counts.
        steps = {row["time"]: row["step"] for row in rows if "time" in row and row["time"] >= self.time - SPEED_OVER}
        times = sorted(steps)
        pauses = [times[index + 1] - times[index] for index in range(len(times) - 1)]
        self.longest_pause = max(pauses, default=None)
        if len(times) > 1 and steps[times[-1]] > steps[times[0]]:
            self.seconds_per_step = (times[-1] - times[0]) / (steps[times[-1]] - steps[times[0]])

    def seconds_left(self, now):
        """Return in how many seconds the last step will be done; None if that is not known."""
        if None in (self.steps, self.step, self.seconds_per_step):
            return None
        return max(0.0, (self.steps - self.step) * self.seconds_per_step - (now - self.time))

    def is_late(self, now):
        """Return whether the file has not grown for a minute, and for three times its longest pause."""
        if self.longest_pause is None or self.step == self.steps:
            return False
        return now - self.time > max(60.0, 3 * self.longest_pause)


def newest(rows, name):
    """Return the value of `name` in the last row that has it, else None."""
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def rows_of(path):
    """Return the rows at the end of the file, the newest last."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the first line may be cut, and the last one not be written whole
        if isinstance(row, dict) and isinstance(row.get("step"), (int, float)):
            rows.append({name: value for name, value in row.items() if isinstance(value, (int, float))})
    return rows
