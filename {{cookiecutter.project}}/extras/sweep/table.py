"""Prints a table of a sweep's jobs. extras/sweep/sweep.sh calls it.

    python3 extras/sweep/table.py FOLDER

A row for each job: its line, its state, how long it ran, and its losses, from metrics.jsonl in the folder of --out.
The causes of failures follow the rows. Python 3.6, standard library only.
"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from jobs import out_of, refuse

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED")
TITLES = ("line", "state", "time", "step", "loss", "validation", "arguments")
TAIL = 1 << 16  # bytes that are read of a metrics.jsonl, from the end
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8


def main():
    """Print the table, then the causes of failures."""
    folder = sys.argv[1] if len(sys.argv) == 2 else ""
    if not os.path.isfile(os.path.join(folder, "sweep.json")):
        refuse("call bash extras/sweep/sweep.sh JOBID, with the number of a sweep, which starts extras/sweep/table.py")
    with open(os.path.join(folder, "sweep.json")) as file:
        sweep = json.load(file)
    number = os.path.basename(folder)
    states = states_of(number)
    rows, causes = [TITLES], []
    for line, words in sorted(((int(line), words) for line, words in sweep["jobs"].items())):
        state, seconds = states.get(line, ("UNKNOWN", None))
        end = end_of(folder, line)
        if end and state not in UNFINISHED:  # squeue prints 0:00 for an ended job, and later drops it
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
        print(printable(cause))


def end_of(folder, line):
    """Return state and seconds of the file that a job writes at its end; None if Slurm or a user ended it before."""
    try:
        with open(os.path.join(folder, f"{line}.end")) as file:
            code, seconds = file.read().split()
    except (OSError, ValueError):
        return None
    return ("COMPLETED" if code == "0" else "FAILED"), int(seconds)


def states_of(number):
    """Return state and elapsed seconds of the jobs of an array, by index, from sacct and squeue."""
    states = {}
    for line in output_of("sacct", "-nPX", "-j", number, "-o", "JobID,State,ElapsedRaw").splitlines():
        index, state, seconds = line.split("|")
        if re.search(r"_\d+$", index):
            states[int(index.rpartition("_")[2])] = (state.split()[0], int(seconds or 0))
    for line in output_of("squeue", "-h", "-r", "-j", number, "-t", "all", "-o", "%K %T %M").splitlines():
        index, state, time = line.split()
        if index.isdigit() and (state in UNFINISHED or int(index) not in states):
            states[int(index)] = (state, seconds_of(time))
    return states


def seconds_of(text):
    """Return a time of Slurm's, as 1-02:03:04, in seconds; None if the text is no time."""
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
            step, loss, validation = newest(os.path.join(sweep["folder"], out, "metrics.jsonl"))
            cells = ["" if step is None else str(step)]
            cells += ["" if value is None else f"{value:.4f}" for value in (loss, validation)]
        except OSError:
            pass  # the program has not begun, or writes no metrics.jsonl
    return [*cells, printable(" ".join(words).replace("%a", str(line)))]


def newest(path):
    """Return step, loss and validation loss, each of the last line of metrics.jsonl that has it, else None."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    found = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the first line may be cut, and the last one not be written whole
        if isinstance(row, dict) and isinstance(row.get("step"), (int, float)):
            found.update((name, value) for name, value in row.items() if isinstance(value, (int, float)))
    return tuple(found.get(name) for name in ("step", "loss", "val_loss"))


def output_of(*command, codes=(0,)):
    """Return the standard output of a command; "" if it ends with no code of `codes`, or takes more than 60 s."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode in codes else ""


def duration(seconds):
    """Return seconds as h:mm:ss, from one day on as d-h:mm:ss."""
    days, rest = divmod(max(0, round(seconds)), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def printable(text):
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def cause_of(job):
    """Return the cause of a failure that slurm/doctor.py finds, else the last line of the rank that failed first."""
    doctor = os.path.join(PROJECT, "slurm", "doctor.py")
    said = output_of(sys.executable, doctor, "--json", job, codes=(0, 1))  # 1: it knows no cause
    answer = json.loads(said or '{"causes": [], "words": []}')
    says = [cause["says"] for cause in answer["causes"]] or answer["words"][-1:]
    says = says or ["no cause found, perhaps cancelled"]
    return f"{printable(says[0].strip())} (python3 slurm/doctor.py {job})"


if __name__ == "__main__":
    main()
