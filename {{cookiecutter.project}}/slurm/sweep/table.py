"""Prints how the jobs of a sweep do. slurm/sweep.sh calls it.

    python3 slurm/sweep/table.py FOLDER

A row for each job: its line, its state, how long it ran, and its losses, from metrics.jsonl in the folder of --out.
Below the rows stands why jobs failed. PYTHONPATH has to name slurm/watch. Python 3.6, standard library only.
"""

import json
import os
import re
import sys

from job import output_of
from jobs import out_of
from progress import Training
from words import duration

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED")
TITLES = ("line", "state", "time", "step", "loss", "validation", "arguments")


def main():
    """Print the table, then the causes of failures."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "sweep.json")) as file:
        sweep = json.load(file)
    number = os.path.basename(folder)
    states = states_of(number)
    rows, causes = [TITLES], []
    for line, words in sorted(((int(line), words) for line, words in sweep["jobs"].items())):
        state, seconds = states.get(line, ("UNKNOWN", None))
        end = end_of(folder, line)
        if end and state not in UNFINISHED:  # squeue says 0:00 of a job that has ended, and soon nothing
            state, seconds = (end[0] if state == "UNKNOWN" else state), end[1]
        rows.append((str(line), state, "" if seconds is None else duration(seconds), *results(sweep, line, words)))
        if state not in (*UNFINISHED, "COMPLETED"):
            causes.append(f"line {line}: {cause_of(f'{number}_{line}')}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    counts = {}
    for row in rows[1:]:
        counts[row[1]] = counts.get(row[1], 0) + 1
    print("\n" + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    for cause in causes:
        print(cause)


def end_of(folder, line):
    """Return state and seconds that a job has left at its end; None if it was ended from outside."""
    try:
        with open(os.path.join(folder, f"{line}.end")) as file:
            code, seconds = file.read().split()
    except (OSError, ValueError):
        return None
    return ("COMPLETED" if code == "0" else "FAILED"), int(seconds)


def states_of(number):
    """Return what Slurm knows of the jobs of an array: state and seconds that they have run, by index."""
    states = {}
    for line in output_of("sacct", "-nPX", "-j", number, "-o", "JobID,State,ElapsedRaw").splitlines():
        index, state, seconds = line.split("|")
        if re.search(r"_\d+$", index):
            states[int(index.rpartition("_")[2])] = (state.split()[0], int(seconds or 0))
    for line in output_of("squeue", "-h", "-r", "-j", number, "-t", "all", "-o", "%K %T %M").splitlines():
        index, state, time = line.split()
        if index.isdigit():
            states[int(index)] = (state, seconds_of(time))
    return states


def seconds_of(text):
    """Return a time of Slurm's, as 1-02:03:04, in seconds; None for what is no time."""
    found = re.match(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$", text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def results(sweep, line, words):
    """Return step, loss, validation loss and arguments of a job, as cells."""
    out = out_of([*sweep["command"], *words], line)
    cells = ["", "", ""]
    if out is not None:
        try:
            training = Training(os.path.join(sweep["folder"], out, "metrics.jsonl"))
            values = (training.step, training.loss, training.val_loss)
            cells = [
                "" if value is None else f"{value:.4f}" if value is not values[0] else str(value) for value in values
            ]
        except OSError:
            pass  # it has not begun
    return [*cells, " ".join(words).replace("%a", str(line))]


def cause_of(job):
    """Return the cause that slurm/doctor.py finds. Without accounting, Slurm forgets a job that has not started."""
    doctor = os.path.join(PROJECT, "slurm", "doctor.py")
    said = output_of(sys.executable, doctor, job)
    cause = re.search(r"^cause: (.*)", said, re.MULTILINE)
    if not cause:
        return f"no cause found: was it cancelled? (python3 slurm/doctor.py {job})"
    return f"{cause.group(1)} (python3 slurm/doctor.py {job})"


if __name__ == "__main__":
    main()
