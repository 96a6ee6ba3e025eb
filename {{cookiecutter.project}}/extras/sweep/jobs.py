"""Reads the lines of a sweep, and writes the words of each job into a folder. extras/sweep/sweep.sh calls it.

    python3 extras/sweep/jobs.py LINES FOLDER PROGRAM [ARGUMENTS]

FOLDER/N gets the words that line N adds to ARGUMENTS, a word on each line. sweep.json gets the current folder, the
command, and the words of all jobs. Prints the numbers of the lines, as sbatch --array takes them. Exit code 2: LINES
cannot be read, or a line is not valid. Python 3.6, standard library only.
"""

import json
import os
import re
import shlex
import subprocess
import sys


def main():
    """Write a file for each job."""
    if len(sys.argv) < 4 or not os.path.isdir(sys.argv[2]):
        refuse("call bash extras/sweep/sweep.sh LINES -- PROGRAM, which starts extras/sweep/jobs.py")
    file, folder, *command = sys.argv[1:]
    try:
        with open(file, encoding="utf-8-sig") as lines:
            jobs = read(lines, file)
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"cannot read '{file}': {error}")
    if not jobs:
        refuse(f"'{file}' has no line with arguments: write one line for each job")
    refuse_large_index(max(jobs), file)
    add_folders(jobs, os.path.basename(folder), command)
    refuse_equal_folders(jobs, file, command)
    for number, words in jobs.items():
        with open(os.path.join(folder, str(number)), "w", encoding="utf-8") as words_file:
            words_file.writelines(word + "\n" for word in words)
    with open(os.path.join(folder, "sweep.json"), "w") as record:
        json.dump({"folder": os.getcwd(), "command": command, "jobs": jobs}, record, indent=1)
    print(ranges(jobs))


def read(lines, file):
    """Return the words of each job by the number of its line."""
    jobs = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                jobs[number] = shlex.split(line.rstrip("\n"))  # else a \ at the end is a word
            except ValueError as error:
                refuse(f"{file}:{number}: {line.strip()}: {error}: in a word, write \\' or \\\" or \\\\")
            if "#" in jobs[number]:
                refuse(f"{file}:{number}: {line.strip()}: a comment needs a line of its own")
    return jobs


def refuse_large_index(number, file):
    """Refuse more lines than this Slurm numbers in an array."""
    try:
        conf = subprocess.run(["scontrol", "show", "config"], stdout=subprocess.PIPE, check=False).stdout.decode()
    except OSError:
        return  # slurm/submit_multinode.sh reports the missing Slurm
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", conf, re.MULTILINE)
    if size and number >= int(size.group(1)):
        refuse(f"{file}:{number}: Slurm numbers the jobs of an array up to {int(size.group(1)) - 1}: split the file")


def add_folders(jobs, name, command):
    """Give each job of training/ its own --out, unless the user gives one. name: the name of the sweep's folder."""
    if os.path.basename(os.path.dirname(os.path.realpath(command[0]))) != "training":
        return
    for number, words in jobs.items():
        if out_of([*command, *words], number) is None:
            words += ["--out", f"runs/{name}/{number}"]


def refuse_equal_folders(jobs, file, command):
    """Refuse two jobs with the same --out: each would overwrite what the other writes."""
    first = {}
    for number, words in jobs.items():
        out = out_of([*command, *words], number)
        if out is not None and first.setdefault(out, number) != number:
            refuse(f"{file}:{number}: line {first[out]} has --out {out} too: write --out {out}/%a")


def out_of(words, number):
    """Return the folder that --out names in the words of a job, or None."""
    words = [word.replace("%a", str(number)) for word in words]
    out = None
    for word, following in zip(words, [*words[1:], None]):  # argparse uses the last --out
        if word.startswith("--out="):
            out = word[len("--out=") :]
        elif word == "--out" and following is not None:
            out = following
    return None if out is None else os.path.normpath(out)


def refuse(message):
    """End with a message about what the user wrote."""
    sys.stderr.write(f"extras/sweep/sweep.sh: {message}\n")
    sys.exit(2)


def ranges(numbers):
    """Return numbers as 0-3,8."""
    runs = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


if __name__ == "__main__":
    main()
